//! HTTP requests, with the feature `http`.
//!
//! In: a [`Request`]. Out: the whole [`Response`], whatever its status, or an [`Error`]. Everything is bounded: the time from the first
//! moment to the last byte, and the size of the response's body.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use tqhost_handler::{Failure, http::Request};
//! # fn ask() -> Result<String, Failure> {
//! let response = Request::post("https://api.example.com/v1/orders", r#"{"id":7}"#)
//!     .header("content-type", "application/json")
//!     .timeout(Duration::from_secs(20))
//!     .send()?;
//! response.text().map_err(Failure::from).map(str::to_owned)
//! # }
//! ```
//!
//! Where requests may go is granted in the host's configuration (`allowed_hosts`). In a native build there is no network, and each request is
//! an [`Error::Network`]; [`Response`] has public fields, so that a test can play the server's part.
//!
//! Not here: redirects (a response like any other) and bodies that come in pieces.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::Failure;

#[cfg(target_family = "wasm")]
mod wasi;

/// What a response's body may hold unless the request says otherwise.
const MAX_RESPONSE: usize = 1024 * 1024;

#[derive(Clone)]
pub struct Request {
    pub method: Method,
    pub url: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// For all of it; without one, what is left of the attempt.
    pub timeout: Option<Duration>,
    /// Bytes of the response's body; more is an [`Error::TooLarge`].
    pub max_response: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Post,
}

#[derive(Clone, Debug, Default)]
pub struct Response {
    pub status: u16,
    /// In their order, names in lower case. Values that are not text are left out.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// Why there is no response. Its text names the host of the url at most: never a path, a header or a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The url or a header cannot be sent as it is.
    Invalid(String),
    /// The host does not allow it: the plugin's `allowed_hosts`, `private_addresses` or `max_requests`.
    Denied(String),
    /// It took longer than the request's `timeout`, or than the host lets it.
    Timeout,
    /// The body of the request or the response is larger than it may be.
    TooLarge(String),
    /// No connection, or one that ended too early.
    Network(String),
}

impl Request {
    pub fn get(url: impl Into<String>) -> Request {
        Request {
            method: Method::Get,
            url: url.into(),
            headers: Vec::new(),
            body: Vec::new(),
            timeout: None,
            max_response: MAX_RESPONSE,
        }
    }

    pub fn post(url: impl Into<String>, body: impl Into<Vec<u8>>) -> Request {
        Request { method: Method::Post, body: body.into(), ..Request::get(url) }
    }

    pub fn header(mut self, name: &str, value: impl Into<String>) -> Request {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub fn timeout(self, timeout: Duration) -> Request {
        Request { timeout: Some(timeout), ..self }
    }

    pub fn max_response(self, bytes: usize) -> Request {
        Request { max_response: bytes, ..self }
    }

    /// Sends it and waits for all of the response.
    pub fn send(&self) -> Result<Response, Error> {
        let target = Target::of(&self.url)?;
        #[cfg(target_family = "wasm")]
        return wasi::send(self, &target);
        #[cfg(not(target_family = "wasm"))]
        Err(Error::Network(format!("there is no network for {} in a native build", target.authority)))
    }
}

/// The parts of a url that wasi:http takes one by one.
#[derive(Debug, PartialEq)]
struct Target<'a> {
    tls: bool,
    authority: &'a str,
    path: String,
}

impl Target<'_> {
    fn of(url: &str) -> Result<Target<'_>, Error> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| Error::Invalid("the url does not begin with http:// or https://".into()))?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(Error::Invalid("the url does not begin with http:// or https://".into())),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.is_empty() || authority.contains('@') {
            return Err(Error::Invalid("the url has no host, or a user name in it".into()));
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Target { tls, authority, path })
    }
}

impl Response {
    /// The first header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> Result<&str, Error> {
        str::from_utf8(&self.body).map_err(|_| Error::Network("the response is not UTF-8 text".into()))
    }

    /// How long the server asks to wait (`Retry-After`, in seconds or as a date). A date is held against the server's own clock where the
    /// response has it, or else against `now`, in milliseconds since the Unix epoch.
    pub fn retry_after(&self, now: u64) -> Option<Duration> {
        let value = self.header("retry-after")?.trim();
        if let Ok(seconds) = value.parse() {
            return Some(Duration::from_secs(seconds));
        }
        let until = httpdate::parse_http_date(value).ok()?;
        let server = self.header("date").and_then(|date| httpdate::parse_http_date(date.trim()).ok());
        let now = server.or_else(|| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(now)))?;
        Some(until.duration_since(now).unwrap_or_default())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Timeout => f.write_str("no answer in time"),
            Error::Invalid(why) | Error::Denied(why) | Error::TooLarge(why) | Error::Network(why) => {
                f.write_str(why)
            }
        }
    }
}

impl std::error::Error for Error {}

/// What the network or the operator can mend is retried; what would be the same again is not.
impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Invalid(_) | Error::TooLarge(_) => Failure::reject(error),
            Error::Denied(_) | Error::Timeout | Error::Network(_) => Failure::retry(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let table = [
            ("https://api.example.com/v1/x?y=1#z", Some((true, "api.example.com", "/v1/x?y=1"))),
            ("HTTP://127.0.0.1:8080", Some((false, "127.0.0.1:8080", "/"))),
            ("http://[::1]:80?a", Some((false, "[::1]:80", "/?a"))),
            ("ftp://example.com", None),
            ("example.com", None),
            ("https:///path", None),
            ("https://user:secret@example.com/", None),
        ];
        for (url, expected) in table {
            let target = Target::of(url);
            let expected =
                expected.map(|(tls, authority, path)| Target { tls, authority, path: path.into() });
            assert_eq!(target.as_ref().ok(), expected.as_ref(), "{url}");
            assert!(!format!("{target:?}").contains("secret"));
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let after = |headers: &[(&str, &str)]| {
            let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            // 10:00:00 of that day.
            Response { headers, ..Response::default() }.retry_after(1_785_232_800_000)
        };
        let date = "Tue, 28 Jul 2026 10:00:30 GMT";
        assert_eq!(after(&[("retry-after", " 7 ")]), Some(Duration::from_secs(7)));
        assert_eq!(after(&[("retry-after", date)]), Some(Duration::from_secs(30)));
        assert_eq!(
            after(&[("retry-after", date), ("date", "Tue, 28 Jul 2026 10:00:10 GMT")]),
            Some(Duration::from_secs(20))
        );
        assert_eq!(
            after(&[("retry-after", date), ("date", "Tue, 28 Jul 2026 11:00:00 GMT")]),
            Some(Duration::ZERO)
        );
        for nothing in
            [&[][..], &[("retry-after", "soon")], &[("retry-after", "-1")], &[("retry-after", "1.5")]]
        {
            assert_eq!(after(nothing), None);
        }
    }

    #[test]
    fn errors_are_retried_if_they_may_pass() {
        let error = Request::get("https://api.example.com/secret").send().unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
        assert!(matches!(Failure::from(error), Failure::Retry(_)));
        assert!(matches!(Failure::from(Error::Timeout), Failure::Retry(_)));
        assert!(matches!(Failure::from(Error::Invalid("x".into())), Failure::Reject(_)));
    }
}
