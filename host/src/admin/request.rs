//! Facts about a request that every answer needs: its id, whether it asks for a change, and whether its
//! headers `Host` and `Origin` name this listener.
//!
//! Not here: who may ask (`api::guard`), the line of a change (`audit`).

use std::net::{IpAddr, SocketAddr};

use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use uuid::Uuid;

use super::problem::{ApiProblem, ProblemCode};
use super::tokens::Tokens;

/// The longest id of a request that is taken from the client.
const MAX_REQUEST_ID: usize = 128;
/// The most characters of a header in a message.
const MAX_SHOWN: usize = 200;

pub(crate) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(crate) static FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

pub(crate) fn is_change(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// The id that the client gave to its request, or a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(&REQUEST_ID).and_then(|id| id.to_str().ok());
    let is_good = |id: &&str| {
        (1..=MAX_REQUEST_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
    };
    given.filter(is_good).map_or_else(|| Uuid::now_v7().to_string(), str::to_owned)
}

/// Without tokens, refuses a `Host` that is not this machine: a page of another site may have given its own
/// name this address, so that the browser takes this host for that site.
pub(crate) fn known_host(tokens: &Tokens, headers: &HeaderMap, listen: SocketAddr) -> Result<(), ApiProblem> {
    if tokens.are_set() || host(headers).is_some_and(|host| is_loopback_name(host, listen)) {
        return Ok(());
    }
    let detail = "this address has no token, so it answers only requests to localhost or a loopback address: \
                  use one, or set token of [admin]";
    Err(ApiProblem::new(ProblemCode::ForeignHost, detail))
}

fn host(headers: &HeaderMap) -> Option<&str> {
    headers.get(HOST).and_then(|host| host.to_str().ok())
}

/// Whether this `Host` is a name that always leads to this machine, or the address that is listened on.
fn is_loopback_name(host: &str, listen: SocketAddr) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let address: Option<IpAddr> = name.trim_matches(['[', ']']).parse().ok();
    name.eq_ignore_ascii_case("localhost")
        || address.is_some_and(|address| address.is_loopback() || address == listen.ip())
}

/// Refuses a change that a browser sent for a page of another origin. A proxy in front keeps the `Host` that
/// the browser sent, but may write it with its port, also where that is the usual one of the origin's scheme.
pub(crate) fn own_origin(headers: &HeaderMap) -> Result<(), ApiProblem> {
    let foreign = |why: String| {
        let what = "the request comes from the page of another origin, which may not change anything";
        Err(ApiProblem::new(ProblemCode::ForeignOrigin, format!("{what}: {why}")))
    };
    let site = headers.get(&FETCH_SITE).map(HeaderValue::as_bytes);
    if !matches!(site, None | Some(b"same-origin" | b"none")) {
        return foreign(format!("Sec-Fetch-Site is {}", shown(headers.get(&FETCH_SITE))));
    }
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let same = || {
        let (scheme, authority) = origin.to_str().ok()?.split_once("://")?;
        let usual = match scheme.to_ascii_lowercase().as_str() {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        Some(address_of(authority, usual)? == address_of(host(headers)?, usual)?)
    };
    if same().unwrap_or(false) {
        return Ok(());
    }
    foreign(format!(
        "Host is {}, Origin is {}. Where the page is one of this host, let the proxy keep the Host header \
         (nginx: proxy_set_header Host $http_host)",
        shown(headers.get(HOST)),
        shown(Some(origin))
    ))
}

/// A header as a message has it.
fn shown(value: Option<&HeaderValue>) -> String {
    let text = value.map(|value| String::from_utf8_lossy(value.as_bytes()));
    text.map_or("missing".to_owned(), |text| text.chars().take(MAX_SHOWN).collect())
}

/// The name in small letters, and the port, which is `usual` where it is not written. None: this is no plain
/// address.
fn address_of(authority: &str, usual: u16) -> Option<(String, u16)> {
    let authority: Authority = authority.parse().ok()?;
    let is_plain = !authority.as_str().contains('@') && !authority.host().is_empty();
    let port = match authority.port() {
        None => usual,
        Some(port) => port.as_str().parse().ok()?,
    };
    is_plain.then(|| (authority.host().to_ascii_lowercase(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_names() {
        let listen = "192.0.2.7:7700".parse().unwrap();
        for good in
            ["localhost", "LOCALHOST:7700", "127.0.0.1:1", "127.9.9.9", "[::1]:7700", "192.0.2.7:7700"]
        {
            assert!(is_loopback_name(good, listen), "{good}");
        }
        for bad in
            ["", "example.com", "localhost.example.com", "127.0.0.1.example.com:80", "10.0.0.1", "::1]"]
        {
            assert!(!is_loopback_name(bad, listen), "{bad}");
        }
    }

    #[test]
    fn origins() {
        let table = [
            (None, None, true),
            (Some("http://localhost:7700"), None, true),
            (Some("https://localhost:7700"), None, true),
            (Some("http://localhost:7701"), None, false),
            (Some("http://evil.example"), None, false),
            (Some("null"), None, false),
            (Some(""), None, false),
            (None, Some("cross-site"), false),
            (None, Some("same-site"), false),
            (None, Some("none"), true),
            (Some("http://localhost:7700"), Some("same-origin"), true),
        ];
        for (origin, site, expected) in table {
            let mut headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static("localhost:7700"))]);
            origin.map(|origin| headers.insert(ORIGIN, origin.parse().unwrap()));
            site.map(|site| headers.insert(&FETCH_SITE, site.parse().unwrap()));
            assert_eq!(own_origin(&headers).is_ok(), expected, "{origin:?} {site:?}");
        }
    }

    #[test]
    fn a_host_is_compared_with_the_usual_port_and_without_capitals() {
        let table = [
            ("https://tq.example", "tq.example", true),
            ("https://tq.example", "tq.example:443", true),
            ("https://tq.example", "TQ.Example", true),
            ("HTTPS://tq.example", "tq.example:443", true),
            ("http://tq.example", "tq.example:80", true),
            ("http://tq.example:80", "tq.example", true),
            ("http://[::1]:80", "[::1]", true),
            ("http://tq.example", "tq.example:443", false),
            ("https://tq.example", "tq.example:80", false),
            ("https://tq.example:8443", "tq.example", false),
            ("https://tq.example", "tq.example.evil", false),
            ("https://tq.example@evil.example", "evil.example", false),
            ("ftp://tq.example", "tq.example", false),
            ("https://", "", false),
        ];
        for (origin, host, expected) in table {
            let headers = [(HOST, host.parse().unwrap()), (ORIGIN, origin.parse().unwrap())];
            let told = own_origin(&HeaderMap::from_iter(headers)).map_err(|problem| problem.detail);
            assert_eq!(told.is_ok(), expected, "{origin} {host}");
            let named = format!("Host is {host}, Origin is {origin}.");
            assert!(told.is_ok() || told.is_err_and(|told| told.contains(&named)), "{named}");
        }
    }
}
