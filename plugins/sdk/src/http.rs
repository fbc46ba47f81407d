//! HTTP requests, with the feature `http`.
//!
//! In: a [`Request`]. Out: the whole [`Response`], whatever its status is, or an [`Error`]. A request has two
//! limits: the time from the start to the last byte, and the size of the response's body.
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
//! The host's configuration grants the servers that requests may go to (`allowed_hosts`). In a native build
//! there is no network: a test answers the requests with `insert`, and looks at them with `requests`.
//!
//! Not here: redirects, which are responses like any other, and bodies that are streamed.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::Failure;

#[cfg(target_family = "wasm")]
mod wasi;

/// The default of [`Request::max_response`], in bytes.
const MAX_RESPONSE: usize = 1024 * 1024;
/// The most time that is left for the handler after a request.
const MARGIN: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub struct Request {
    pub method: Method,
    pub url: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The time for the whole request and its response. The default is [`time_left`], which is also the most.
    pub timeout: Option<Duration>,
    /// The most bytes that the response's body may have, 1 MiB by default. A larger body is an
    /// [`Error::TooLarge`].
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
    /// The headers in their order, with names in lower case. Headers whose values are not UTF-8 are left out.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// The reason why there is no response. Its text may name the url's host and a header, but never quotes the
/// url's path, a header's value, or a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The url or a header cannot be sent as it is.
    Invalid(String),
    /// The host refuses the request because of the plugin's `allowed_hosts`, `private_addresses` or
    /// `max_requests`.
    Denied(String),
    /// The request took longer than its `timeout`, or than the host allows.
    Timeout,
    /// The body of the request or of the response is larger than its limit.
    TooLarge(String),
    /// There is no answer: the name was not found, no connection was made, the server's certificate is not
    /// trusted, or the connection ended before the answer began.
    Unreachable(String),
    /// The connection ended within the answer, or the answer is no HTTP.
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

    /// Sends the request and waits for the whole response.
    pub fn send(&self) -> Result<Response, Error> {
        let target = Target::of(&self.url)?;
        #[cfg(target_family = "wasm")]
        return wasi::send(self, &target);
        #[cfg(not(target_family = "wasm"))]
        crate::memory::with(|memory| {
            memory.requests.push(self.clone());
            memory.answers.pop_front().unwrap_or_else(|| {
                let name = target.authority;
                let why = format!("there is no network for {name} in a native build: `http::insert` answers");
                Err(Error::Network(why))
            })
        })
    }
}

/// In a native build: answers the next request of this thread that has no answer yet.
#[cfg(not(target_family = "wasm"))]
pub fn insert(answer: Result<Response, Error>) {
    crate::memory::with(|memory| memory.answers.push_back(answer));
}

/// In a native build: the requests that this thread has sent, in order.
#[cfg(not(target_family = "wasm"))]
pub fn requests() -> Vec<Request> {
    crate::memory::with(|memory| memory.requests.clone())
}

/// The time that a request may take: a little less than the attempt has left, by a tenth and at most by half
/// a second. So the handler can still tell that a server did not answer. If the host stopped the attempt
/// instead, nobody would know whether the server or the handler was slow.
pub fn time_left() -> Duration {
    without_margin(crate::context::remaining())
}

fn without_margin(left: Duration) -> Duration {
    left.saturating_sub((left / 10).min(MARGIN))
}

/// Whether the host would send a request to this url: the url is valid, and the plugin's `allowed_hosts`
/// allow its host. It sends nothing, so it says nothing about the server. It is meant for a self-check. In a
/// native build, every host is allowed.
pub fn is_granted(url: &str) -> Result<(), Error> {
    let target = Target::of(url)?;
    #[cfg(target_family = "wasm")]
    return wasi::is_granted(&target);
    #[cfg(not(target_family = "wasm"))]
    {
        let _ = target;
        Ok(())
    }
}

/// The parts of a url, which wasi:http takes one by one.
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

    /// Whether the server cannot take requests now, whatever they ask for: 429 or 503. Return
    /// [`Failure::unavailable`] then, with [`retry_after`](Self::retry_after) as the delay.
    pub fn is_unavailable(&self) -> bool {
        matches!(self.status, 429 | 503)
    }

    pub fn text(&self) -> Result<&str, Error> {
        str::from_utf8(&self.body).map_err(|_| Error::Network("the response is not UTF-8 text".into()))
    }

    /// The delay that the server asks for with `Retry-After`, in seconds or as a date. A date is compared
    /// with the response's own `Date`. If there is none, it is compared with `now`, in milliseconds since the
    /// Unix epoch.
    pub fn retry_after(&self, now: u64) -> Option<Duration> {
        let value = self.header("retry-after")?.trim();
        if let Some(seconds) = seconds(value) {
            return Some(Duration::from_secs(seconds));
        }
        // Some servers write the offset of GMT in place of its name.
        let in_gmt = value.strip_suffix("+0000").or_else(|| value.strip_suffix("UTC"));
        let until = match in_gmt {
            Some(date) => httpdate::parse_http_date(&format!("{date}GMT")),
            None => httpdate::parse_http_date(value),
        };
        let until = until.ok()?;
        let server = self.header("date").and_then(|date| httpdate::parse_http_date(date.trim()).ok());
        let now = server.or_else(|| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(now)))?;
        Some(until.duration_since(now).unwrap_or_default())
    }
}

/// Whole seconds, or with a fraction, which is rounded up. What is longer than any time is the longest one.
fn seconds(value: &str) -> Option<u64> {
    let (whole, fraction) = value.split_once('.').unwrap_or((value, "0"));
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !are_digits(whole) || !are_digits(fraction) {
        return None;
    }
    let rest = u64::from(fraction.bytes().any(|digit| digit != b'0'));
    Some(whole.parse().unwrap_or(u64::MAX).saturating_add(rest))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Timeout => f.write_str("no answer in time"),
            Error::Invalid(why)
            | Error::Denied(why)
            | Error::TooLarge(why)
            | Error::Unreachable(why)
            | Error::Network(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}

/// An error is a retry if it may pass or if the operator can fix it, and [`Failure::unavailable`] if the
/// server does not answer at all, or not in time. An error that would occur again is a rejection.
impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Invalid(_) | Error::TooLarge(_) => Failure::reject(error),
            Error::Timeout | Error::Unreachable(_) => Failure::unavailable(error),
            Error::Denied(_) | Error::Network(_) => Failure::retry(error),
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
    fn a_request_leaves_time_to_tell_how_it_ended() {
        for (left, expected) in [(60_000, 59_500), (5000, 4500), (1000, 900), (10, 9), (0, 0)] {
            let [left, expected] = [left, expected].map(Duration::from_millis);
            assert_eq!(without_margin(left), expected);
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let after = |headers: &[(&str, &str)]| {
            let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            // 10:00:00 on the day of `date`.
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
        assert_eq!(
            after(&[("retry-after", "Tue, 28 Jul 2026 10:00:30 +0000")]),
            Some(Duration::from_secs(30))
        );
        for (value, seconds) in [("20.0", 20), ("1.5", 2), ("99999999999999999999", u64::MAX)] {
            assert_eq!(after(&[("retry-after", value)]), Some(Duration::from_secs(seconds)), "{value}");
        }
        for nothing in
            [&[][..], &[("retry-after", "soon")], &[("retry-after", "-1")], &[("retry-after", "1.")]]
        {
            assert_eq!(after(nothing), None);
        }
    }

    #[test]
    fn a_test_answers_requests_in_their_order() {
        insert(Ok(Response { status: 204, ..Response::default() }));
        insert(Err(Error::Timeout));
        let ask = |path: &str| Request::post(format!("https://api.example.com{path}"), path).send();
        assert_eq!(ask("/a").map(|response| response.status), Ok(204));
        assert_eq!(ask("/b").err(), Some(Error::Timeout));
        assert!(matches!(ask("/c"), Err(Error::Network(_))));
        let seen: Vec<Vec<u8>> = requests().into_iter().map(|request| request.body).collect();
        assert_eq!(seen, [b"/a", b"/b", b"/c"]);
    }

    #[test]
    fn errors_are_retried_if_they_may_pass() {
        let error = Request::get("https://api.example.com/secret").send().unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
        let failure = Failure::from(error);
        assert!(matches!(failure, Failure::Retry(_)) && !failure.is_unavailable());
        assert!(Failure::from(Error::Timeout).is_unavailable());
        assert!(Failure::from(Error::Unreachable("h refuses connections".into())).is_unavailable());
        assert!(matches!(Failure::from(Error::Invalid("x".into())), Failure::Reject(_)));
    }
}
