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
//! The rules count everything that can be counted: language, words, sections, mentions of skills, years. The
//! API key is only in the request's header. If a reply repeats the key, it is removed before the reply is
//! used.
//!
//! Not here: the prompt ([`prompt`]), the check of an answer ([`answer`]), and HTTP (`tqhost_handler::http`).

pub mod answer;
pub mod prompt;

use std::time::Duration;

use serde_json::Value;
use tqhost_handler::http::{Error, Request, Response};
use tqhost_handler::{Failure, context, log, progress};

use crate::analysis::Analysis;
use crate::dates::Month;
use answer::Answer;
use prompt::{Format, Message};

/// The default of `max_chars`: the most characters of the resume that are sent.
const MAX_CHARS: usize = 24_000;
/// The most bytes of a reply. A reply has a few KiB, or more if it includes the model's reasoning.
const MAX_RESPONSE: usize = 2 * 1024 * 1024;
/// The least time that is worth a request.
const LEAST_TIME: Duration = Duration::from_millis(200);
/// A key of fewer bytes is not treated as a secret.
const LEAST_SECRET: usize = 8;
/// The most characters of the server's own explanation.
const MAX_EXPLANATION: usize = 200;

/// The model's settings in the plugin's configuration.
pub struct Settings {
    pub model: String,
    /// The url without a slash at its end.
    url: String,
    api_key: Option<String>,
    max_chars: usize,
    max_tokens: Option<u32>,
    temperature: Option<f64>,
    format: Format,
}

impl Settings {
    /// `None` if the configuration has neither a model nor a url. A wrong value is a retry, because the
    /// operator can correct it, and the task is correct.
    pub fn read(get: impl Fn(&str) -> Result<Option<String>, Failure>) -> Result<Option<Settings>, Failure> {
        let get = |key: &str| {
            get(key).map(|value| value.map(|value| value.trim().to_owned()).filter(|value| !value.is_empty()))
        };
        let wrong = |key: &str, must: &str| {
            Failure::retry(format_args!("the plugin's configuration: `{key}` must be {must}"))
        };
        let (model, url) = match (get("model")?, get("url")?) {
            (None, None) => return Ok(None),
            (Some(model), Some(url)) => (model, url),
            (Some(_), None) => {
                return Err(wrong("url", "given with `model`, such as https://api.openai.com/v1"));
            }
            (None, Some(_)) => return Err(wrong("model", "given with `url`")),
        };
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
        let url = url.trim_end_matches('/').to_owned();
        Ok(Some(Settings {
            model,
            url,
            api_key: get("api_key")?,
            max_chars,
            max_tokens,
            temperature,
            format,
        }))
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
    Ok(answer.analysis(rules, content, &settings.model, resume.note()))
}

/// Makes one request and returns the text that the model has written.
fn ask(
    settings: &Settings,
    messages: &[Message<'_>],
    now_ms: u64,
    send: &mut impl FnMut(&Request) -> Result<Response, Error>,
) -> Result<String, Failure> {
    let time = time_left();
    if time < LEAST_TIME {
        return Err(Failure::retry("no time is left to ask the model"));
    }
    let body =
        prompt::body(&settings.model, messages, settings.format, settings.temperature, settings.max_tokens);
    let mut request = Request::post(format!("{}/chat/completions", settings.url), body)
        .header("content-type", "application/json")
        .header("accept", "application/json")
        .timeout(time)
        .max_response(MAX_RESPONSE);
    if let Some(key) = &settings.api_key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let response = send(&request).map_err(unsent)?;
    let key = settings.api_key.as_deref();
    let text = without_key(&String::from_utf8_lossy(&response.body), key);
    match response.status {
        200..=299 => written(&text, key),
        _ => Err(status(&response, &without_key(&explanation(&text), key), now_ms)),
    }
}

/// The time that a request may take. It is shorter than the time that the attempt has left, so that the
/// attempt ends with a clear reason instead of the host's timeout.
fn time_left() -> Duration {
    let left = context::remaining();
    left.saturating_sub((left / 10).min(Duration::from_millis(500)))
}

/// The failure if there is no response. It is always a retry: the operator can correct a wrong url or header.
fn unsent(error: Error) -> Failure {
    match error {
        Error::Invalid(why) => Failure::retry(format_args!("the plugin's configuration of the model: {why}")),
        Error::Timeout => Failure::retry("the model did not answer in time"),
        other => Failure::retry(format_args!("asking the model: {other}")),
    }
}

/// The failure for a response whose status is not 2xx.
fn status(response: &Response, explanation: &str, now_ms: u64) -> Failure {
    let status = response.status;
    let later = |why: &str| {
        let failure = Failure::retry(format_args!("the model's server {why} ({status})"));
        response.retry_after(now_ms).into_iter().fold(failure, Failure::after)
    };
    match status {
        429 => later("asks for fewer requests"),
        503 => later("is not available"),
        408 | 425 | 500.. => later("failed"),
        402 => Failure::retry(
            "the credit at the model's server is used up (402): look at the account of `api_key` of the \
             plugin's configuration",
        ),
        // The server's explanation is left out, because it often quotes the key.
        401 | 403 => Failure::retry(format_args!(
            "the model's server refuses the key ({status}): look at `api_key` of the plugin's configuration"
        )),
        404 => Failure::retry(
            "the model's server has no such model or address (404): look at `model` and `url` of the \
             plugin's configuration",
        ),
        300..=399 => Failure::retry(format_args!(
            "the model's server sends elsewhere ({status}): look at `url` of the plugin's configuration"
        )),
        _ => Failure::reject(format_args!(
            "the model's server does not take the request ({status}){explanation}"
        )),
    }
}

/// A colon and the server's error message, or an empty text if there is none.
fn explanation(body: &str) -> String {
    let json: Value = serde_json::from_str(body).unwrap_or_default();
    let message = json["error"]["message"].as_str().or(json["error"].as_str()).or(json["message"].as_str());
    message.map(|message| format!(": {}", answer::line(message, MAX_EXPLANATION))).unwrap_or_default()
}

/// The text of the model's message, or the failure if there is none.
fn written(body: &str, key: Option<&str>) -> Result<String, Failure> {
    let json: Value =
        serde_json::from_str(body).map_err(|_| Failure::retry("the model's server sent no JSON"))?;
    let choice = &json["choices"][0];
    if let Some(refusal) = choice["message"]["refusal"].as_str().filter(|refusal| !refusal.is_empty()) {
        return Err(Failure::reject(format_args!(
            "the model refuses: {}",
            answer::line(&without_key(refusal, key), MAX_EXPLANATION)
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
        Some(content) => Ok(without_key(content, key)),
        None => Err(Failure::retry("the model's server sent no answer of the model")),
    }
}

/// Replaces the key with `[key]`. This is done before JSON is parsed and after, because JSON may have the key
/// with escapes. A short key such as `local` or `none` is not a secret, and a resume may contain this word.
fn without_key(text: &str, key: Option<&str>) -> String {
    match key.filter(|key| key.len() >= LEAST_SECRET) {
        Some(key) => text.replace(key, "[key]"),
        None => text.to_owned(),
    }
}
