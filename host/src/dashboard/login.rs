//! Login with a token of `[admin]`, and logout.
//!
//! Not here: sessions (`session`), what needs one (`guard`).

use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;

use super::layout::{done, form_token, page};
use super::problem::PageAnswer;
use super::session::{LIFE, Visitor, end};
use super::state::PageCall;
use super::values::Values;
use crate::admin::base_path::{self, at};
use crate::admin::problem::ProblemCode;

pub(super) async fn show(call: PageCall) -> Response {
    form(&call.visitor, &call.values, None)
}

fn form(visitor: &Visitor, values: &Values, error: Option<&str>) -> Response {
    page(
        visitor,
        "Log in",
        &html! {
            h1 { "Log in" }
            (done(values))
            @if let Some(error) = error { p.error id="wrong" role="alert" { (error) } }
            form.stacked method="post" action=(at("/login")) {
                (form_token(visitor))
                input type="hidden" name="next" value=(values.get("next").unwrap_or("/"));
                label for="token" { "Token" }
                input id="token" name="token" type="password" required autocomplete="current-password"
                    aria-describedby=[error.map(|_| "wrong")];
                p.note { "One of the tokens of [admin] in the configuration of this host." }
                button.primary { "Log in" }
            }
        },
    )
}

pub(super) async fn login(call: PageCall, headers: HeaderMap) -> PageAnswer {
    let PageCall { dashboard, visitor, values } = call;
    let parts = dashboard.api.parts();
    let caller = parts.tokens.caller_with(values.get("token").unwrap_or_default().as_bytes());
    let key = dashboard.sessions.key(&parts.link).await;
    let begun = caller.and_then(|caller| Some((key.begin(&parts.tokens, &caller)?, caller)));
    let Some((cookie, caller)) = begun else {
        let mut response = form(&visitor, &values, Some("No token of [admin] is like this one."));
        *response.status_mut() = StatusCode::UNAUTHORIZED;
        response.extensions_mut().insert(ProblemCode::Unauthorized);
        return Ok(response);
    };
    let to = values.get("next").filter(|page| is_own_page(page)).unwrap_or("/");
    let cookie = format!("{}={cookie}; Max-Age={}", key.cookie_name(), LIFE.as_secs());
    let mut response = with_cookie(&cookie, &headers, Redirect::to(&at(to)));
    // The audit learns from here who it was.
    response.extensions_mut().insert(caller);
    Ok(response)
}

/// Ends the session on all hosts; while Redis is away, it does not.
pub(super) async fn logout(call: PageCall, headers: HeaderMap) -> PageAnswer {
    let PageCall { dashboard, visitor, .. } = call;
    let link = &dashboard.api.parts().link;
    end(link, &visitor).await?;
    let cookie = format!("{}=; Max-Age=0", dashboard.sessions.key(link).await.cookie_name());
    Ok(with_cookie(&cookie, &headers, Redirect::to(&at("/login?done=logged-out"))))
}

/// Whether a redirect to it stays at this address: `//name` and `/\name` would lead to another one.
fn is_own_page(page: &str) -> bool {
    let is_plain = page.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    is_plain && page.starts_with('/') && !page.starts_with("//")
}

fn with_cookie(cookie: &str, headers: &HeaderMap, to: Redirect) -> Response {
    let mut response = to.into_response();
    // Several proxies in a row make a list: the first one is that of the browser.
    let proto = headers.get("x-forwarded-proto").and_then(|proto| proto.to_str().ok());
    let proto = proto.and_then(|list| list.split(',').next());
    let is_encrypted = proto.is_some_and(|proto| proto.trim().eq_ignore_ascii_case("https"));
    let secure = if is_encrypted { "; Secure" } else { "" };
    let path = match base_path::get() {
        "" => "/",
        base => base,
    };
    let cookie = format!("{cookie}; Path={path}; HttpOnly; SameSite=Strict{secure}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::is_own_page;

    #[test]
    fn a_login_leads_to_a_page_of_this_address_only() {
        assert!(is_own_page("/") && is_own_page("/queues/a?state=dead"));
        for bad in ["", "//evil.example", "/\\evil.example", "https://evil.example", "/a\r\nb", "/a b"] {
            assert!(!is_own_page(bad), "{bad}");
        }
    }
}
