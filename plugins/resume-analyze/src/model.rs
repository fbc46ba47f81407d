//! Asks a model to judge the resume, at any server with OpenAI's chat completions API.
//!
//! In: the [`Settings`] from the plugin's configuration, the resume's text, and the rules' [`Analysis`]. Out:
//! this analysis with the model's findings instead of the rules', or a [`Failure`]. There are at most two
//! requests. The second request only asks the model to correct an unusable answer.
//!
//! ```text
//! prompt ─▶ request ─▶ reply ─▶ answer checked ─▶ Analysis
//!              └── once more, with the problem ──┘
//! ```
//!
//! The rules count everything that can be counted: language, words, sections, mentions of skills, years.
//!
//! Not here: the prompt ([`prompt`]), the check of an answer ([`answer`]), and the server (`model_server`).

pub mod answer;
pub mod prompt;

use model_server::{LEAST_TIME, MAX_EXPLANATION, Server, wrong};
use serde_json::Value;
use tqhost_handler::http::{Error, Request, Response, time_left};
use tqhost_handler::{Failure, log, progress};

use crate::analysis::Analysis;
use crate::dates::Month;
use answer::Answer;
use prompt::{Format, Message};

/// The default of `max_chars`: the most characters of the resume that are sent.
const MAX_CHARS: usize = 24_000;
/// The most bytes of a reply. A reply has a few KiB, or more if it includes the model's reasoning.
const MAX_RESPONSE: usize = 2 * 1024 * 1024;

/// The model's settings in the plugin's configuration.
pub struct Settings {
    server: Server,
    max_chars: usize,
    max_tokens: Option<u32>,
    temperature: Option<f64>,
    format: Format,
}

impl Settings {
    /// `None` if the configuration has neither a model nor a url. A wrong value is an outage, because
    /// the operator can correct it, and every task meets it.
    pub fn read(get: impl Fn(&str) -> Result<Option<String>, Failure>) -> Result<Option<Settings>, Failure> {
        let Some(server) = Server::read(&get)? else { return Ok(None) };
        let get = |key: &str| model_server::setting(&get, key);
        let temperature = match get("temperature")?.as_deref() {
            None => Some(0.0),
            Some("none") => None,
            Some(text) => match text.parse() {
                Ok(temperature) if (0.0..=2.0).contains(&temperature) => Some(temperature),
                _ => return Err(wrong("temperature", "a number from 0 to 2, or none")),
            },
        };
        let format = match get("response_format")?.as_deref() {
            None | Some("json_schema") => Format::Schema,
            Some("json_object") => Format::Object,
            Some("none") => Format::Free,
            Some(_) => return Err(wrong("response_format", "json_schema, json_object or none")),
        };
        let max_chars = match get("max_chars")?.map(|text| text.parse()) {
            None => MAX_CHARS,
            Some(Ok(chars @ 500..=200_000)) => chars,
            Some(_) => return Err(wrong("max_chars", "a whole number from 500 to 200000")),
        };
        let max_tokens = match get("max_tokens")?.map(|text| text.parse()) {
            None => None,
            Some(Ok(tokens @ 1..)) => Some(tokens),
            Some(_) => return Err(wrong("max_tokens", "a whole number above 0")),
        };
        Ok(Some(Settings { server, max_chars, max_tokens, temperature, format }))
    }
}

/// Replaces the rules' findings with the model's. `send` makes a request. `now_ms` is compared with a
/// `Retry-After` date if the response has no `Date`.
pub fn analyze(
    settings: &Settings,
    content: &str,
    rules: Analysis,
    now: Month,
    now_ms: u64,
    mut send: impl FnMut(&Request) -> Result<Response, Error>,
) -> Result<Analysis, Failure> {
    let resume = prompt::Resume::cut(content, settings.max_chars);
    let mut messages = prompt::messages(&resume, rules.language);
    progress(10, "asking the model");
    let first = ask(settings, &messages, now_ms, &mut send)?;
    let answer = match Answer::check(&first, now) {
        Ok(answer) => answer,
        Err(problem) => {
            log::info(format_args!("the model's answer is not usable and is asked for again: {problem}"));
            progress(50, "asking the model to put its answer right");
            if time_left() < LEAST_TIME {
                return Err(Failure::retry(format_args!(
                    "the model's answer is not usable, and no time is left to ask again: {problem}"
                )));
            }
            messages.extend(prompt::repair(&first, &problem));
            let second = ask(settings, &messages, now_ms, &mut send)?;
            Answer::check(&second, now).map_err(|problem| {
                Failure::retry(format_args!("the model's answer is not usable, twice: {problem}"))
            })?
        }
    };
    Ok(answer.analysis(rules, content, &settings.server.model, resume.note()))
}

/// Makes one request and returns the text that the model has written.
fn ask(
    settings: &Settings,
    messages: &[Message<'_>],
    now_ms: u64,
    send: &mut impl FnMut(&Request) -> Result<Response, Error>,
) -> Result<String, Failure> {
    let server = &settings.server;
    let body =
        prompt::body(&server.model, messages, settings.format, settings.temperature, settings.max_tokens);
    let text = server.post("/chat/completions", body, MAX_RESPONSE, now_ms, send)?;
    written(&text, server)
}

/// The text of the model's message, or the failure if there is none.
fn written(body: &str, server: &Server) -> Result<String, Failure> {
    let json: Value =
        serde_json::from_str(body).map_err(|_| Failure::retry("the model's server sent no JSON"))?;
    let choice = &json["choices"][0];
    if let Some(refusal) = choice["message"]["refusal"].as_str().filter(|refusal| !refusal.is_empty()) {
        return Err(Failure::reject(format_args!(
            "the model refuses: {}",
            model_server::line(&server.without_key(refusal), MAX_EXPLANATION)
        )));
    }
    match choice["finish_reason"].as_str() {
        Some("content_filter") => {
            return Err(Failure::reject("the model's server filtered the answer (content_filter)"));
        }
        // A retry would be cut at the same place.
        Some("length") => {
            return Err(Failure::reject(
                "the model's answer was cut off (length): raise `max_tokens` or lower `max_chars` in the \
                 plugin's configuration",
            ));
        }
        _ => {}
    }
    match choice["message"]["content"].as_str() {
        Some(content) => Ok(server.without_key(content)),
        None => Err(Failure::retry("the model's server sent no answer of the model")),
    }
}
