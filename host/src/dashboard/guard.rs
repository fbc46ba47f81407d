//! Stands in front of every page: who looks, from where, and whether a form is one of ours.
//!
//! In: a request. Out: the answer of the page with the headers that keep browsers safe, beside those of
//! `admin`; the way to the login; or a problem. A change needs all of these: a session or a user of a trusted
//! proxy (or no token at all), the role that the change needs, an `Origin` or `Sec-Fetch-Site` of this
//! listener itself, and the token of the form. It goes on when its client has gone, and has a line in the
//! audit.
//!
//! Not here: the same for programs (`api::guard`), the rules about `Host` and `Origin` (`admin::request`),
//! who needs which role (`admin::roles`), how a session is known (`session`).

use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{self, ORIGIN};
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};

use super::live;
use super::problem::{self, PageProblem};
use super::session::{FORM_TOKEN, SessionKey, Visitor};
use super::state::Dashboard;
use super::values::{Values, link};
use crate::admin::base_path::at;
use crate::admin::problem::{ApiProblem, ProblemCode};
use crate::admin::request::{FETCH_SITE, REQUEST_ID, is_change, own_origin, request_id};
use crate::admin::tokens::Caller;
use crate::admin::{self, ProxiedUser, audit, roles};
use crate::api::guard::{in_time, to_its_end};

/// The number of incidents in the title of a page is not older than this.
const TITLE_MS: u64 = 60_000;
/// The most bytes of a form.
const MAX_FORM: usize = 1 << 20;
/// How long a form may take to come.
const FORM_TIME: Duration = Duration::from_secs(5);
/// The paths that are open without a session.
const OPEN: [&str; 4] = ["/login", "/dashboard.css", "/dashboard.js", "/favicon.svg"];
/// The ends of the paths of pages without a part that changes by itself.
const STILL: [&str; 8] =
    ["/search", "/drain", "/confirm", "/chosen", "/export", "/file", "/rollback", "/lift"];
/// A page that is not there at present comes back by itself after this number of seconds.
const AGAIN: &str = "5";

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
        let changed = to_its_end(change(dashboard, request, next, request_id.clone())).await;
        changed.unwrap_or_else(|problem| PageProblem(problem).into_response())
    } else if live::is_asked(request.headers()) && !is_still(&request) {
        watch(&dashboard, request, next).await
    } else {
        read(&dashboard, request, next, false).await
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

/// Whether nothing on the page changes by itself. Some of these pages read much, and are not read again and
/// again.
fn is_still(request: &Request) -> bool {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let is_still = |route: &str| STILL.iter().any(|end| route.ends_with(end));
    OPEN.contains(&request.uri().path()) || route.is_none_or(is_still)
}

/// Answers a request that changes nothing. `waits`: it waits while too many others are being answered.
async fn read(dashboard: &Dashboard, mut request: Request, next: Next, waits: bool) -> Response {
    if let Err(problem) = known_host(dashboard, request.headers()) {
        return problem.into_response();
    }
    let path = request.uri().path();
    let visitor = match visitor(dashboard, request.headers(), request.extensions(), false).await {
        Ok(PageCaller::Visitor(visitor)) => visitor,
        Ok(PageCaller::Stranger(key)) if OPEN.contains(&path) => stranger(&key),
        Ok(PageCaller::Stranger(_)) => return Redirect::to(&login_path(&request)).into_response(),
        Err(problem) => return problem.into_response(),
    };
    let visitor = placed(dashboard, visitor, &request);
    request.extensions_mut().insert(visitor.clone());
    let mut response = problem::framed(limited(dashboard, request, next, waits).await, &visitor);
    if response.status() == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(header::REFRESH, HeaderValue::from_static(AGAIN));
    }
    response
}

/// The visitor of a page, with what its frame has.
fn placed(dashboard: &Dashboard, visitor: Visitor, request: &Request) -> Visitor {
    Visitor { open: dashboard.last.open(TITLE_MS), path: request.uri().path().to_owned(), ..visitor }
}

/// Answers with the stream of a page. Only somebody who may look at pages gets one of the places.
async fn watch(dashboard: &Dashboard, request: Request, next: Next) -> Response {
    if let Err(problem) = known_host(dashboard, request.headers()) {
        return problem.into_response();
    }
    let found = visitor(dashboard, request.headers(), request.extensions(), false).await;
    if !matches!(found, Ok(PageCaller::Visitor(_))) {
        return live::over();
    }
    let looks = dashboard.clone();
    live::stream(dashboard, &request, move |request| {
        let (dashboard, next) = (looks.clone(), next.clone());
        async move { read(&dashboard, request, next, true).await }
    })
}

async fn change(dashboard: Dashboard, request: Request, next: Next, request_id: String) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let (who, response) = match admit(&dashboard, request).await {
        Ok((visitor, request)) => {
            let response = problem::framed(limited(&dashboard, request, next, false).await, &visitor);
            (visitor.caller, response)
        }
        Err((who, problem)) => (who, problem.into_response()),
    };
    // A login leaves its caller in the response.
    let who = response.extensions().get::<Caller>().cloned().unwrap_or(who);
    audit::write(&who.name, &method, &path, &request_id, &response);
    response
}

/// Reads the form of a change, and lets the request through. The error is the refused caller, and the reason.
async fn admit(
    dashboard: &Dashboard,
    mut request: Request,
) -> Result<(Visitor, Request), (Caller, PageProblem)> {
    let by_nobody = |problem| (Caller::nobody(), problem);
    known_host(dashboard, request.headers()).map_err(by_nobody)?;
    let found = visitor(dashboard, request.headers(), request.extensions(), true).await;
    let visitor = match found.map_err(by_nobody)? {
        PageCaller::Visitor(visitor) => visitor,
        PageCaller::Stranger(key) if request.uri().path() == "/login" => stranger(&key),
        PageCaller::Stranger(_) => {
            let detail = format!("log in first, at {}", at("/login"));
            return Err(by_nobody(ApiProblem::new(ProblemCode::Unauthorized, detail).into()));
        }
    };
    let visitor = placed(dashboard, visitor, &request);
    match form_of(&visitor, &mut request).await {
        Ok(values) => {
            request.extensions_mut().insert(visitor.clone());
            request.extensions_mut().insert(values);
            Ok((visitor, request))
        }
        Err(problem) => Err((visitor.caller, problem.into())),
    }
}

/// Checks what a visitor may change, and from where; and reads the form.
async fn form_of(visitor: &Visitor, request: &mut Request) -> Result<Values, ApiProblem> {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let what = format!("{} {}", request.method(), route.unwrap_or_default());
    roles::check(&visitor.caller, roles::needed(request.method(), route), &what)?;
    let headers = request.headers();
    if !headers.contains_key(ORIGIN) && !headers.contains_key(&FETCH_SITE) {
        let detail = "the request has neither Origin nor Sec-Fetch-Site, so it does not come from a page of \
                      this address: let the proxy keep them";
        return Err(ApiProblem::new(ProblemCode::ForeignOrigin, detail));
    }
    own_origin(headers)?;
    let body = std::mem::take(request.body_mut());
    // Also a stranger may send a form, and must not keep a connection by sending it slowly.
    let Ok(Ok(body)) = tokio::time::timeout(FORM_TIME, to_bytes(body, MAX_FORM)).await else {
        let (size, time) = (MAX_FORM >> 10, FORM_TIME.as_secs());
        let detail = format!("the form is larger than {size} KiB, or did not come whole within {time} s");
        return Err(ApiProblem::new(ProblemCode::TooLarge, detail));
    };
    let values = Values::read(&body);
    if !values.get(FORM_TOKEN).is_some_and(|given| visitor.is_form_token(given)) {
        let detail = "the form is not one of this session: load its page again, and send it from there";
        return Err(ApiProblem::new(ProblemCode::ForeignOrigin, detail));
    }
    Ok(values)
}

/// Answers, unless too many others are being answered, or it takes too long. `waits`: until there are fewer.
async fn limited(dashboard: &Dashboard, request: Request, next: Next, waits: bool) -> Response {
    if request.method() == Method::GET && OPEN.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let place = if waits { dashboard.api.place_in_line().await } else { dashboard.api.place() };
    let _permit = match place {
        Ok(permit) => permit,
        Err(problem) => return PageProblem(problem).into_response(),
    };
    let path = request.uri().path().to_owned();
    let answer = in_time(&path, next.run(request)).await;
    answer.unwrap_or_else(|problem| PageProblem(problem).into_response())
}

/// Without tokens, refuses names that may lead here only by a trick.
fn known_host(dashboard: &Dashboard, headers: &HeaderMap) -> Result<(), PageProblem> {
    let parts = dashboard.api.parts();
    Ok(admin::request::known_host(&parts.tokens, headers, parts.listen)?)
}

/// The sender of a request for a page.
enum PageCaller {
    Visitor(Visitor),
    /// Somebody who has not logged in.
    Stranger(SessionKey),
}

async fn visitor(
    dashboard: &Dashboard,
    headers: &HeaderMap,
    extensions: &Extensions,
    changes: bool,
) -> Result<PageCaller, PageProblem> {
    let parts = dashboard.api.parts();
    let (tokens, key) = (&parts.tokens, dashboard.sessions.key(&parts.link).await);
    if !tokens.are_set() {
        // Without tokens, everybody who reaches the address is a caller.
        return Ok(PageCaller::Visitor(key.visitor_without(Caller::anybody())));
    }
    let proxied = extensions.get::<ProxiedUser>();
    let proxied = proxied.map_or(Ok(None), |user| user.0.clone())?;
    // A token may have a higher role than the proxy's users, so a login goes first.
    let found = key.visitor(&parts.link, tokens, headers, changes).await?;
    let found = found.or_else(|| proxied.map(|user| key.visitor_without(user)));
    Ok(found.map_or_else(|| PageCaller::Stranger(key), PageCaller::Visitor))
}

fn stranger(key: &SessionKey) -> Visitor {
    key.visitor_without(Caller::nobody())
}

fn login_path(request: &Request) -> String {
    let page = request.uri().path_and_query().map_or("/", |page| page.as_str());
    link(&at("/login"), &[("next", page)])
}
