//! Stands in front of every page: who looks, from where, and whether a form is one of ours.
//!
//! In: a request. Out: the answer of the page with the headers that keep browsers safe, beside those of
//! `admin`; the way to the login; or a problem. A change needs all of these: a session that may change
//! something (or no token at all), an `Origin` or `Sec-Fetch-Site` of this listener itself, and the token of
//! the form. It goes on when its client has gone, and has a line in the audit.
//!
//! Not here: the same for programs (`api::guard`), the rules about `Host` and `Origin` (`admin::request`).

use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::header::{self, COOKIE, ORIGIN};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use url::form_urlencoded;

use super::live;
use super::problem::PageProblem;
use super::session::{FORM_TOKEN, Visitor};
use super::state::Dashboard;
use super::values::Values;
use crate::admin::problem::{ApiProblem, ProblemCode};
use crate::admin::request::{FETCH_SITE, REQUEST_ID, is_change, is_own_origin, request_id};
use crate::admin::tokens::Caller;
use crate::admin::{self, audit};
use crate::api::guard::{TIME, timed_out};
use crate::api::naming;

/// The most bytes of a form.
const MAX_FORM: usize = 1 << 20;
/// How long a form may take to come.
const FORM_TIME: Duration = Duration::from_secs(5);
/// The paths that are open without a session.
const OPEN: [&str; 3] = ["/login", "/dashboard.css", "/dashboard.js"];

const HEADERS: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; img-src 'self' data:; script-src 'self'; form-action 'self'; \
         frame-ancestors 'none'; base-uri 'none'; connect-src 'self'",
    ),
    (header::X_FRAME_OPTIONS, "DENY"),
    // With `no-referrer`, browsers would send `Origin: null` with our own forms.
    (header::REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

pub(super) async fn guard(State(dashboard): State<Dashboard>, request: Request, next: Next) -> Response {
    let request_id = request_id(request.headers());
    let mut response = if is_change(request.method()) {
        // The client may go away, or the server stop waiting: the change ends nevertheless.
        let changing = tokio::spawn(change(dashboard, request, next, request_id.clone()));
        changing.await.unwrap_or_else(|error| {
            let why = format!("the request failed: {error}");
            PageProblem(ApiProblem::new(ProblemCode::Internal, why)).into_response()
        })
    } else if live::is_asked(request.headers()) && !OPEN.contains(&request.uri().path()) {
        watch(&dashboard, &request, next)
    } else {
        read(&dashboard, request, next).await
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(id) = HeaderValue::from_str(&request_id) {
        headers.insert(REQUEST_ID.clone(), id);
    }
    response
}

/// Answers a request that changes nothing.
async fn read(dashboard: &Dashboard, mut request: Request, next: Next) -> Response {
    if let Err(problem) = known_host(dashboard, request.headers()) {
        return problem.into_response();
    }
    let path = request.uri().path();
    let visitor = match visitor(dashboard, request.headers()) {
        Some(visitor) => visitor,
        None if OPEN.contains(&path) => stranger(dashboard),
        None => return Redirect::to(&login_path(&request)).into_response(),
    };
    request.extensions_mut().insert(visitor);
    limited(dashboard, request, next).await
}

/// Answers with the stream of a page. Only somebody who may look at pages gets one of the places.
fn watch(dashboard: &Dashboard, request: &Request, next: Next) -> Response {
    if let Err(problem) = known_host(dashboard, request.headers()) {
        return problem.into_response();
    }
    if visitor(dashboard, request.headers()).is_none() {
        return live::over();
    }
    let looks = dashboard.clone();
    live::stream(dashboard, request, move |request| {
        let (dashboard, next) = (looks.clone(), next.clone());
        async move { read(&dashboard, request, next).await }
    })
}

async fn change(dashboard: Dashboard, request: Request, next: Next, request_id: String) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let (who, response) = match admit(&dashboard, request).await {
        Ok((visitor, request)) => (visitor.caller.name, limited(&dashboard, request, next).await),
        Err((who, problem)) => (who, problem.into_response()),
    };
    // A login tells who it was.
    let who = response.extensions().get::<Caller>().map_or(who, |caller| caller.name);
    audit::write(who, &method, &path, &request_id, &response);
    response
}

/// Lets a change through, with its form read.
async fn admit(
    dashboard: &Dashboard,
    mut request: Request,
) -> Result<(Visitor, Request), (&'static str, PageProblem)> {
    let refused = |who, code, detail: &str| Err((who, PageProblem(ApiProblem::new(code, detail))));
    let (path, headers) = (request.uri().path().to_owned(), request.headers());
    known_host(dashboard, headers).map_err(|problem| ("nobody", problem))?;
    let visitor = match visitor(dashboard, headers) {
        Some(visitor) => visitor,
        None if path == "/login" => stranger(dashboard),
        None => return refused("nobody", ProblemCode::Unauthorized, "log in first, at /login"),
    };
    let who = visitor.caller.name;
    if !visitor.may_change() && !["/login", "/logout"].contains(&path.as_str()) {
        let detail = "read_token is for reading only: log in with token of [admin] to change something";
        return refused(who, ProblemCode::ReadOnly, detail);
    }
    let is_told = headers.contains_key(ORIGIN) || headers.contains_key(&FETCH_SITE);
    if !is_told || !is_own_origin(headers) {
        let detail = "the request does not come from a page of this address, so it may not change anything";
        return refused(who, ProblemCode::ForeignOrigin, detail);
    }
    let body = std::mem::take(request.body_mut());
    // Also a stranger may send a form, and must not keep a connection by sending it slowly.
    let Ok(Ok(body)) = tokio::time::timeout(FORM_TIME, to_bytes(body, MAX_FORM)).await else {
        let (size, time) = (MAX_FORM >> 10, FORM_TIME.as_secs());
        let detail = format!("the form is larger than {size} KiB, or did not come whole within {time} s");
        return refused(who, ProblemCode::TooLarge, &detail);
    };
    let values = Values::read(&body);
    if !values.get(FORM_TOKEN).is_some_and(|given| visitor.is_form_token(given)) {
        let detail = "the form is not one of this session: load its page again, and send it from there";
        return refused(who, ProblemCode::ForeignOrigin, detail);
    }
    request.extensions_mut().insert(visitor.clone());
    request.extensions_mut().insert(values);
    Ok((visitor, request))
}

/// Answers, unless too many others are being answered, or it takes too long.
async fn limited(dashboard: &Dashboard, request: Request, next: Next) -> Response {
    if request.method() == Method::GET && OPEN.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let _permit = match dashboard.api.place() {
        Ok(permit) => permit,
        Err(problem) => return PageProblem(problem).into_response(),
    };
    let path = request.uri().path().to_owned();
    match tokio::time::timeout(TIME, naming(&path, next.run(request))).await {
        Ok(response) => response,
        Err(_) => PageProblem(timed_out()).into_response(),
    }
}

/// Without tokens, refuses names that may lead here only by a trick.
fn known_host(dashboard: &Dashboard, headers: &HeaderMap) -> Result<(), PageProblem> {
    let parts = dashboard.api.parts();
    Ok(admin::request::known_host(&parts.tokens, headers, parts.listen)?)
}

fn visitor(dashboard: &Dashboard, headers: &HeaderMap) -> Option<Visitor> {
    let tokens = &dashboard.api.parts().tokens;
    if !tokens.are_set() {
        // Without tokens, everybody who reaches the address is a caller.
        return tokens.caller(headers).map(|caller| dashboard.sessions.visitor_without(caller));
    }
    dashboard.sessions.visitor(session_of(dashboard, headers)?)
}

/// Somebody who has not logged in.
fn stranger(dashboard: &Dashboard) -> Visitor {
    let caller = Caller { name: "nobody", may_change: false };
    dashboard.sessions.visitor_without(caller)
}

/// The name of the cookie. Browsers do not tell ports apart, and two hosts may run on one machine.
pub(super) fn cookie_name(dashboard: &Dashboard) -> String {
    format!("tqhost-{}", dashboard.api.parts().listen.port())
}

/// The value of the session's cookie.
pub(super) fn session_of<'h>(dashboard: &Dashboard, headers: &'h HeaderMap) -> Option<&'h str> {
    let name = cookie_name(dashboard);
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    lines
        .flat_map(|line| line.split(';'))
        .find_map(|pair| pair.trim().strip_prefix(name.as_str())?.strip_prefix('='))
}

fn login_path(request: &Request) -> String {
    let page = request.uri().path_and_query().map_or("/", |page| page.as_str());
    let query: String = form_urlencoded::Serializer::new(String::new()).append_pair("next", page).finish();
    format!("/login?{query}")
}
