//! Requests to a model, at any server with OpenAI's API.
//!
//! In: the [`Server`] from a plugin's configuration, a path, and a body. Out: the text of the reply, or a
//! [`Failure`] that says whether another attempt may help, and when.
//!
//! A failure that any task would have met is an outage. Its cause is a server that is down or asks for fewer
//! requests, or the address, the key, the credit or the grant, which the operator corrects. A queue with
//! `hold` waits until then, and no task pays for it. 500 and a connection that ends within the answer may be
//! the task's own doing, so they use up its attempts.
//!
//! The API key is only in the request's header. If a reply repeats the key, it is removed before the reply is
//! used.
//!
//! Not here: what the body asks for and what the reply must have, which differs by handler.

use std::time::Duration;

use serde_json::Value;
use tqhost_handler::http::{Error, Request, Response, time_left};
use tqhost_handler::{Failure, Task, context};

/// The least time that is worth a request.
pub const LEAST_TIME: Duration = Duration::from_millis(200);
/// The most characters of the server's own explanation.
pub const MAX_EXPLANATION: usize = 200;
/// A key of fewer bytes is not treated as a secret.
const LEAST_SECRET: usize = 8;

/// A server and the model that it is asked for.
pub struct Server {
    pub model: String,
    /// The url without a slash at its end.
    url: String,
    api_key: Option<String>,
}

impl Server {
    /// `None` if the configuration has neither a model nor a url. A wrong value is an outage, because
    /// the operator can correct it, and every task meets it.
    pub fn read(get: impl Fn(&str) -> Result<Option<String>, Failure>) -> Result<Option<Server>, Failure> {
        let get = |key: &str| setting(&get, key);
        match (get("model")?, get("url")?) {
            (None, None) => Ok(None),
            (Some(model), Some(url)) => {
                let url = url.trim_end_matches('/').to_owned();
                Ok(Some(Server { model, url, api_key: get("api_key")? }))
            }
            (Some(_), None) => Err(wrong("url", "given with `model`, such as https://api.openai.com/v1")),
            (None, Some(_)) => Err(wrong("model", "given with `url`")),
        }
    }

    /// Posts JSON to this path of the server, and returns the body of a response with a status of 2xx. `send`
    /// makes the request. `now_ms` is compared with a `Retry-After` date if the response has no `Date`.
    pub fn post(
        &self,
        path: &str,
        body: impl Into<Vec<u8>>,
        max_response: usize,
        now_ms: u64,
        send: &mut impl FnMut(&Request) -> Result<Response, Error>,
    ) -> Result<String, Failure> {
        let time = time_left();
        if time < LEAST_TIME {
            return Err(Failure::retry("no time is left to ask the model"));
        }
        let mut request = Request::post(format!("{}{path}", self.url), body)
            .header("content-type", "application/json")
            .header("accept", "application/json")
            .timeout(time)
            .max_response(max_response);
        if let Some(key) = &self.api_key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let response = send(&request).map_err(unsent)?;
        let text = self.without_key(&String::from_utf8_lossy(&response.body));
        match response.status {
            200..=299 => Ok(text),
            _ => Err(status(&response, &self.without_key(&explanation(&text)), now_ms)),
        }
    }

    /// Replaces the key with `[key]`. Call it again on text that was in JSON, because JSON may have the key
    /// with escapes. A short key such as `local` or `none` is not a secret, and a document may contain this
    /// word.
    pub fn without_key(&self, text: &str) -> String {
        match self.api_key.as_deref().filter(|key| key.len() >= LEAST_SECRET) {
            Some(key) => text.replace(key, "[key]"),
            None => text.to_owned(),
        }
    }
}

/// A value of the configuration without blanks around it, or `None` if it is empty.
pub fn setting(
    get: impl Fn(&str) -> Result<Option<String>, Failure>,
    key: &str,
) -> Result<Option<String>, Failure> {
    get(key).map(|value| value.map(|value| value.trim().to_owned()).filter(|value| !value.is_empty()))
}

/// The failure for a value of the configuration that cannot be used. It hits every task, so it is an outage.
pub fn wrong(key: &str, must: &str) -> Failure {
    Failure::unavailable(format_args!("the plugin's configuration: `{key}` must be {must}"))
}

/// The time of this attempt in milliseconds since the Unix epoch, as the host tells it.
pub fn now_ms(task: &Task) -> u64 {
    let remaining = u64::try_from(context::remaining().as_millis()).unwrap_or(u64::MAX);
    task.deadline_ms.saturating_sub(remaining)
}

/// The text as one line of at most `most` characters, and `…` if it was longer.
pub fn line(text: &str, most: usize) -> String {
    let text = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", text[..end].trim_end()),
        None => text,
    }
}

/// The failure if there is no response. It is always tried again: the operator can correct a wrong url,
/// header or grant.
fn unsent(error: Error) -> Failure {
    match error {
        Error::Invalid(why) => {
            Failure::unavailable(format_args!("the plugin's configuration of the model: {why}"))
        }
        Error::Timeout => Failure::unavailable("the model did not answer in time"),
        Error::Unreachable(why) | Error::Denied(why) => {
            Failure::unavailable(format_args!("asking the model: {why}"))
        }
        // The connection ended within the answer, or the answer is too large.
        other => Failure::retry(format_args!("asking the model: {other}")),
    }
}

/// The failure for a response whose status is not 2xx.
fn status(response: &Response, explanation: &str, now_ms: u64) -> Failure {
    let status = response.status;
    let text = |why: &str| format!("the model's server {why} ({status})");
    let later = |failure| response.retry_after(now_ms).into_iter().fold(failure, Failure::after);
    match status {
        429 => later(Failure::unavailable(text("asks for fewer requests"))),
        503 => later(Failure::unavailable(text("is not available"))),
        // A gateway got no good answer, or the server has too much to do.
        502 | 504 | 529 => later(Failure::unavailable(text("failed"))),
        408 | 425 | 500.. => later(Failure::retry(text("failed"))),
        402 => Failure::unavailable(
            "the credit at the model's server is used up (402): look at the account of `api_key` of the \
             plugin's configuration",
        ),
        // The server's explanation is left out, because it often quotes the key.
        401 | 403 => Failure::unavailable(format_args!(
            "the model's server refuses the key ({status}): look at `api_key` of the plugin's configuration"
        )),
        404 => Failure::unavailable(
            "the model's server has no such model or address (404): look at `model` and `url` of the \
             plugin's configuration",
        ),
        405 => Failure::unavailable(
            "the model's server takes no POST at this address (405): look at `url` of the plugin's \
             configuration",
        ),
        300..=399 => Failure::unavailable(format_args!(
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
    message.map(|message| format!(": {}", line(message, MAX_EXPLANATION))).unwrap_or_default()
}
