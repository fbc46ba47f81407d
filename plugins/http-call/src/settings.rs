//! The configuration of the plugin.
//!
//! In: the values that the host grants. Out: [`Settings`], or a failure that names the key and the way out.
//! A wrong value is never the task's fault, so it is a retry.
//!
//! | key | default | meaning |
//! |---|---|---|
//! | `url` | required | where tasks are posted; `{queue}` in its path stands for the queue's name |
//! | `secret` | required | `whsec_…`; several with blanks between them, to change it without a gap |
//! | `body` | `json` | `json`, or the name of a field that is sent as it is |
//! | `content_type` | see [`Body`] | the header `content-type` |
//! | `defer_status` | none | the status that defers a task |
//! | `timeout` | the attempt's | how long one request may take |

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model_server::setting;
use tqhost_handler::Failure;

use crate::answer::outage;

/// The place in `url` for the queue's name.
const QUEUE: &str = "{queue}";
const PREFIX: &str = "whsec_";
/// The bytes of a key, as Standard Webhooks bounds them.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
const MAX_KEYS: usize = 8;

pub struct Settings {
    url: String,
    /// Signs each request with every key.
    pub keys: Vec<Vec<u8>>,
    pub body: Body,
    pub content_type: String,
    pub defer_status: Option<u16>,
    pub timeout: Option<Duration>,
}

/// The part of a task that is sent.
pub enum Body {
    /// The whole task, as `application/json`.
    Json,
    /// This field as it is, as `application/octet-stream` unless `content_type` says what it is.
    Field(String),
}

impl Settings {
    pub fn read(get: impl Fn(&str) -> Result<Option<String>, Failure>) -> Result<Settings, Failure> {
        let get = |key: &str| setting(&get, key);
        let body = match get("body")?.as_deref() {
            None | Some("json") => Body::Json,
            Some(field) => Body::Field(field.to_owned()),
        };
        let default_type = match body {
            Body::Json => "application/json",
            Body::Field(_) => "application/octet-stream",
        };
        let content_type = get("content_type")?.unwrap_or_else(|| default_type.to_owned());
        if !content_type.contains('/') || !content_type.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err(wrong("content_type", "a media type such as application/json"));
        }
        Ok(Settings {
            url: url(get("url")?)?,
            keys: keys(get("secret")?)?,
            body,
            content_type,
            defer_status: get("defer_status")?.map(|text| defer_status(&text)).transpose()?,
            timeout: get("timeout")?.map(|text| timeout(&text)).transpose()?,
        })
    }

    /// The url for a task of this queue. A queue's name has only characters that a path can have.
    pub fn url(&self, queue: &str) -> String {
        self.url.replace(QUEUE, queue)
    }

    /// The scheme, the host and the port, as an entry of allowed_hosts has them.
    pub fn origin(&self) -> &str {
        origin(&self.url).unwrap_or(&self.url)
    }
}

fn url(value: Option<String>) -> Result<String, Failure> {
    let example = "the address that takes the tasks, such as https://app.example.com/tasks";
    let value = value.ok_or_else(|| wrong("url", example))?;
    let Some(origin) = origin(&value) else { return Err(wrong("url", example)) };
    if origin.contains('{') {
        return Err(wrong("url", &format!("an address that has {QUEUE} only in its path")));
    }
    let rest = value.replace(QUEUE, "");
    if rest.contains(['{', '}']) {
        return Err(wrong("url", &format!("an address without braces but those of {QUEUE}")));
    }
    if !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(wrong("url", "an address without blanks, in ASCII: percent-encode other characters"));
    }
    Ok(value)
}

fn origin(url: &str) -> Option<&str> {
    let host = url.find("://")? + 3;
    let scheme = url[..host].to_ascii_lowercase();
    let end = url[host..].find(['/', '?', '#']).map_or(url.len(), |at| host + at);
    let is_http = matches!(scheme.as_str(), "http://" | "https://");
    (is_http && end > host && !url[host..end].contains('@')).then_some(&url[..end])
}

fn keys(value: Option<String>) -> Result<Vec<Vec<u8>>, Failure> {
    let example = "a secret such as the output of: echo \"whsec_$(openssl rand -base64 32)\"";
    let value = value.ok_or_else(|| wrong("secret", example))?;
    let keys: Vec<&str> = value.split_whitespace().collect();
    if keys.len() > MAX_KEYS {
        return Err(wrong("secret", &format!("at most {MAX_KEYS} secrets")));
    }
    let many = keys.len() > 1;
    let key = |(at, text): (usize, &&str)| {
        let which = if many { format!("{example}; number {} is none", at + 1) } else { example.to_owned() };
        let text = text.strip_prefix(PREFIX).ok_or_else(|| wrong("secret", &which))?;
        let key = STANDARD.decode(text).map_err(|_| wrong("secret", &which))?;
        if KEY_BYTES.contains(&key.len()) {
            return Ok(key);
        }
        let (least, most) = (KEY_BYTES.start(), KEY_BYTES.end());
        Err(wrong("secret", &format!("{PREFIX} and {least} to {most} bytes in base64, not {}", key.len())))
    };
    keys.iter().enumerate().map(key).collect()
}

fn defer_status(text: &str) -> Result<u16, Failure> {
    let status = text.parse().ok().filter(|status| (200..600).contains(status));
    status.ok_or_else(|| wrong("defer_status", "one status from 200 to 599, such as \"202\""))
}

/// A time in the form that the host's configuration has: `30s`, `1m30s`, `500ms`.
fn timeout(text: &str) -> Result<Duration, Failure> {
    let wrong = || wrong("timeout", "a time of 1ms to 7d, such as \"30s\", \"500ms\" or \"1m30s\"");
    let (mut rest, mut total) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(digits);
        let unit = &tail[..tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len())];
        let millis: u64 = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60 * 1000,
            "h" => 60 * 60 * 1000,
            "d" => 24 * 60 * 60 * 1000,
            _ => return Err(wrong()),
        };
        let number: u64 = number.parse().map_err(|_| wrong())?;
        total = total.saturating_add(Duration::from_millis(number.saturating_mul(millis)));
        rest = &tail[unit.len()..];
    }
    let longest = Duration::from_secs(7 * 24 * 60 * 60);
    if total.is_zero() || total > longest { Err(wrong()) } else { Ok(total) }
}

/// The failure for a value that cannot be used. It hits every task, so it is an outage.
fn wrong(key: &str, must: &str) -> Failure {
    outage(format_args!("the plugin's configuration: `{key}` must be {must}"))
}

/// The text of a failure.
pub fn text(failure: Failure) -> String {
    match failure {
        Failure::Retry(retry) => retry.message,
        Failure::Reject(message) => message,
        Failure::Defer(deferral) => deferral.message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn read(values: &[(&str, &str)]) -> Result<Settings, String> {
        let all = [&[("url", "https://app.example.com:8443/tasks/{queue}"), ("secret", SECRET)], values];
        let all: std::collections::HashMap<&str, &str> = all.concat().into_iter().collect();
        Settings::read(|key| Ok(all.get(key).map(|value| value.to_string()))).map_err(text)
    }

    #[test]
    fn what_is_not_given_has_a_default() {
        let settings = read(&[]).unwrap();
        assert_eq!(settings.url("resume-analyze"), "https://app.example.com:8443/tasks/resume-analyze");
        assert_eq!(settings.origin(), "https://app.example.com:8443");
        assert!(matches!(settings.body, Body::Json));
        assert_eq!((settings.content_type.as_str(), settings.keys.len()), ("application/json", 1));
        assert_eq!((settings.defer_status, settings.timeout), (None, None));

        let two = format!("{SECRET}\n whsec_{}", STANDARD.encode([7; 64]));
        let given =
            [("body", "data"), ("secret", two.as_str()), ("defer_status", "202"), ("timeout", "1m30s")];
        let settings = read(&given).unwrap();
        assert!(matches!(&settings.body, Body::Field(field) if field == "data"));
        assert_eq!((settings.content_type.as_str(), settings.keys.len()), ("application/octet-stream", 2));
        assert_eq!((settings.defer_status, settings.timeout), (Some(202), Some(Duration::from_secs(90))));
    }

    #[test]
    fn a_wrong_value_is_named_and_secrets_are_not_shown() {
        let short = format!("whsec_{}", STANDARD.encode([7; 23]));
        let two = format!("{SECRET} hunter2hunter2");
        for (key, value, says) in [
            ("url", "", "`url` must be the address"),
            ("url", "app.example.com/tasks", "`url` must be the address"),
            ("url", "https://user:hunter2@app.example.com/", "`url` must be the address"),
            ("url", "https://{queue}.example.com/", "only in its path"),
            ("url", "https://app.example.com/{id}", "without braces"),
            ("url", "https://app.example.com/a b", "without blanks"),
            ("secret", "", "`secret` must be a secret such as"),
            ("secret", "hunter2hunter2", "openssl rand"),
            ("secret", "whsec_hunter2!", "openssl rand"),
            ("secret", &short, "24 to 64 bytes in base64, not 23"),
            ("secret", &two, "number 2 is none"),
            ("content_type", "json", "a media type"),
            ("defer_status", "100", "200 to 599"),
            ("defer_status", "202 409", "one status"),
            ("timeout", "30", "a time of 1ms to 7d"),
            ("timeout", "0s", "a time of 1ms to 7d"),
            ("timeout", "8d", "a time of 1ms to 7d"),
        ] {
            let error = read(&[(key, value)]).err().unwrap_or_else(|| panic!("{key} = {value:?} is taken"));
            assert!(error.contains(says), "{key} = {value:?}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
