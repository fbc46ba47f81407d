//! Sends a page again and again, as it changes: a stream of events (SSE) at the page's own address.
//!
//! In: a request for a page that asks for `text/event-stream`, and the function that answers such requests.
//! Out: events:
//!
//!     page   the page has changed: its HTML as a JSON string, without live sections that have not changed
//!            since this stream sent them, as the charts of a week are large
//!     none   there is no page at present: the status of the answer
//!     over   the session has ended, or may not see the page; the stream ends
//!
//! Each look is a request like any other, with its checks and limits (`guard`). The script puts the parts
//! that have changed in place. Not here: the streams of the API, which tell single events (`api::events`).

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header::ACCEPT;
use axum::http::{Extensions, HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response, Sse};
use futures_util::stream;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::problem::PageProblem;
use super::state::Dashboard;

/// The time between two looks.
const LOOK: Duration = Duration::from_secs(3);
/// The longest stream. The browser asks again by itself, and is let in anew.
const LONGEST: Duration = Duration::from_secs(600);
/// The most bytes of a page.
const MAX_PAGE: usize = 8 << 20;

/// Whether a request asks for a stream.
pub(super) fn is_asked(headers: &HeaderMap) -> bool {
    headers.get(ACCEPT).is_some_and(|kind| kind == "text/event-stream")
}

/// Answers with the stream of a page. `look` answers a request for the page.
pub(super) fn stream<F>(
    dashboard: &Dashboard,
    request: &Request,
    look: impl FnMut(Request) -> F + Send + 'static,
) -> Response
where
    F: Future<Output = Response> + Send + 'static,
{
    let place = match dashboard.api.stream_place() {
        Ok(place) => place,
        Err(problem) => return PageProblem(problem).into_response(),
    };
    let mut headers = request.headers().clone();
    headers.insert(ACCEPT, HeaderValue::from_static("text/html"));
    let (uri, extensions) = (request.uri().clone(), request.extensions().clone());
    let ends = Instant::now() + LONGEST;
    let sent = HashMap::new();
    let page = LivePage { look, uri, headers, extensions, ends, last: None, sent, is_over: false };
    dashboard.api.streamed(place, stream::unfold(page, async |mut page| Some((page.next().await?, page))))
}

/// Answers somebody who has no session (any more). It takes no place, as it ends at once.
pub(super) fn over() -> Response {
    Sse::new(stream::iter([Ok::<Event, Infallible>(over_event())])).into_response()
}

fn over_event() -> Event {
    Event::default().event("over").data("{}")
}

/// A page that somebody looks at.
struct LivePage<L> {
    look: L,
    uri: Uri,
    headers: HeaderMap,
    /// The names in the path, which the router has found.
    extensions: Extensions,
    ends: Instant,
    /// The digest of what was sent last.
    last: Option<[u8; 32]>,
    /// The digests of the live sections, by their names, as they were sent last.
    sent: HashMap<String, [u8; 32]>,
    is_over: bool,
}

impl<L: FnMut(Request) -> F, F: Future<Output = Response>> LivePage<L> {
    /// The next event; none at the end.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if self.is_over || Instant::now() >= self.ends {
                return None;
            }
            if self.last.is_some() {
                tokio::time::sleep(LOOK).await;
            }
            let mut request = Request::new(Body::empty());
            (*request.uri_mut(), *request.headers_mut()) = (self.uri.clone(), self.headers.clone());
            *request.extensions_mut() = self.extensions.clone();
            let answer = (self.look)(request).await;
            let status = answer.status();
            let is_refused = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
            if is_refused || status.is_redirection() {
                self.is_over = true;
                return Some(over_event());
            }
            let page = to_bytes(answer.into_body(), MAX_PAGE).await.ok().filter(|_| status.is_success());
            let text = page.and_then(|page| String::from_utf8(page.into()).ok());
            let digest = text.as_ref().map_or([0; 32], |text| Sha256::digest(text).into());
            if self.last.replace(digest) == Some(digest) {
                continue;
            }
            let text = text.map(|text| news(&text, &mut self.sent));
            // JSON, as a stream has no carriage returns.
            let event = text.and_then(|text| Event::default().event("page").json_data(text).ok());
            return event.or_else(|| Event::default().event("none").json_data(status.as_u16()).ok());
        }
    }
}

/// The page without the live sections that were sent before. Sections do not contain each other, and nothing
/// that users wrote can look like their ends.
fn news(page: &str, sent: &mut HashMap<String, [u8; 32]>) -> String {
    let mut news = String::new();
    for piece in page.split_inclusive("</section>") {
        let (before, section) = piece.split_at(piece.rfind("<section ").unwrap_or(piece.len()));
        let name = section.split_once('>').and_then(|(tag, _)| tag.split_once(" data-live=\""));
        let name = name.and_then(|(_, name)| name.split('"').next());
        let digest: [u8; 32] = Sha256::digest(section).into();
        news += before;
        if name.is_none_or(|name| sent.insert(name.to_owned(), digest) != Some(digest)) {
            news += section;
        }
    }
    news
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_section_is_sent_again_only_if_it_has_changed() {
        let page = |count: u32| {
            format!(
                "<h1>x</h1><section id=\"a\" data-live=\"a\">{count}</section><p>y</p>\
                 <section data-live=\"b\">large</section><section>still</section><footer>z</footer>"
            )
        };
        let mut sent = HashMap::new();
        assert_eq!(news(&page(1), &mut sent), page(1), "all of it at first");
        let rest = "<h1>x</h1><p>y</p><section>still</section><footer>z</footer>";
        assert_eq!(news(&page(1), &mut sent), rest);
        let changed = rest.replace("<p>", "<section id=\"a\" data-live=\"a\">2</section><p>");
        assert_eq!(news(&page(2), &mut sent), changed);
    }
}
