//! Stands in front of every endpoint: who may ask, from where, how many at once and for how long.
//!
//! In: a request. Out: the answer of the endpoint, with its `x-request-id`; or a problem. A change goes on
//! when its client has gone, so that it is either whole or audited as what it is.
//!
//! **Foreign pages.** A browser sends requests for any page that its user looks at. There is no CORS, so no
//! page reads an answer. To change something, a request with an `Origin` must have that of the listener
//! itself (the `Host` that it was sent to). A listener without a token also refuses requests to any `Host`
//! but a loopback name, reads included: a page whose name leads to 127.0.0.1 would have its own origin.
//!
//! Not here: comparing tokens (`admin::tokens`), the line of the audit (`admin::audit`).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problems::naming;
use super::state::Api;
use crate::admin::audit;
use crate::admin::problem::{ApiProblem, ProblemCode};
use crate::admin::request::{REQUEST_ID, is_change, request_id};
use crate::admin::tokens::Caller;

/// How long an answer may take. A step of an operation ends by itself after 10 seconds.
pub(crate) const TIME: Duration = Duration::from_secs(25);

pub(crate) static FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

pub(super) async fn guard(State(api): State<Api>, request: Request, next: Next) -> Response {
    let request_id = request_id(request.headers());
    let mut response = if is_change(request.method()) {
        // The client may go away, or the server stop waiting: the change ends nevertheless.
        let changing = tokio::spawn(change(api, request, next, request_id.clone()));
        changing.await.unwrap_or_else(|error| {
            ApiProblem::new(ProblemCode::Internal, format!("the request failed: {error}")).into_response()
        })
    } else {
        match admit(&api, request.method(), request.headers()) {
            Ok(_) => limited(&api, request, next).await,
            Err((_, problem)) => problem.into_response(),
        }
    };
    if let Ok(id) = HeaderValue::from_str(&request_id) {
        response.headers_mut().insert(REQUEST_ID.clone(), id);
    }
    response
}

async fn change(api: Api, request: Request, next: Next, request_id: String) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let (who, response) = match admit(&api, &method, request.headers()) {
        Ok(caller) => (caller.name, limited(&api, request, next).await),
        Err((who, problem)) => (who, problem.into_response()),
    };
    audit::write(who, &method, &path, &request_id, &response);
    response
}

/// Answers, unless too many others are being answered, or it takes too long.
async fn limited(api: &Api, request: Request, next: Next) -> Response {
    let _permit = match api.place() {
        Ok(permit) => permit,
        Err(problem) => return problem.into_response(),
    };
    let path = request.uri().path().to_owned();
    match tokio::time::timeout(TIME, naming(&path, next.run(request))).await {
        Ok(response) => response,
        Err(_) => timed_out().into_response(),
    }
}

pub(crate) fn timed_out() -> ApiProblem {
    let detail = format!("there was no answer within {} s; what it did so far stays", TIME.as_secs());
    ApiProblem::new(ProblemCode::TimedOut, detail)
}

/// Gives the caller, if the request may go on; else the name of the caller that was refused, and why.
fn admit(api: &Api, method: &Method, headers: &HeaderMap) -> Result<Caller, (&'static str, ApiProblem)> {
    let tokens = &api.0.tokens;
    let refused = |who, code, detail: &str| Err((who, ApiProblem::new(code, detail)));
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    if !tokens.are_set() && !host.is_some_and(|host| is_loopback_name(host, api.0.listen)) {
        let detail = "this address has no token, so it answers only requests to localhost or a loopback \
                      address: use one, or set token of [admin]";
        return refused("nobody", ProblemCode::ForeignHost, detail);
    }
    let Some(caller) = tokens.caller(headers) else {
        let detail = "this API asks for a token of [admin]: Authorization: Bearer …";
        return refused("nobody", ProblemCode::Unauthorized, detail);
    };
    if !is_change(method) {
        return Ok(caller);
    }
    if !caller.may_change {
        let detail = "read_token is for reading only: use token of [admin] to change something";
        return refused(caller.name, ProblemCode::ReadOnly, detail);
    }
    if !is_own_origin(headers, host) {
        let detail = "the request comes from the page of another origin, which may not change anything";
        return refused(caller.name, ProblemCode::ForeignOrigin, detail);
    }
    Ok(caller)
}

/// Whether this `Host` is a name that always leads to this machine, or the address that is listened on.
pub(crate) fn is_loopback_name(host: &str, listen: SocketAddr) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let address: Option<IpAddr> = name.trim_matches(['[', ']']).parse().ok();
    name.eq_ignore_ascii_case("localhost")
        || address.is_some_and(|address| address.is_loopback() || address == listen.ip())
}

/// Whether no browser sent the request for a page of another origin.
pub(crate) fn is_own_origin(headers: &HeaderMap, host: Option<&str>) -> bool {
    let site = headers.get(&FETCH_SITE).map(HeaderValue::as_bytes);
    if !matches!(site, None | Some(b"same-origin" | b"none")) {
        return false;
    }
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let authority = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, rest)| rest);
    authority.is_some() && authority == host
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
            let mut headers = HeaderMap::new();
            origin.map(|origin| headers.insert(ORIGIN, origin.parse().unwrap()));
            site.map(|site| headers.insert(&FETCH_SITE, site.parse().unwrap()));
            assert_eq!(is_own_origin(&headers, Some("localhost:7700")), expected, "{origin:?} {site:?}");
        }
    }
}
