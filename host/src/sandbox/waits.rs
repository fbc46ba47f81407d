//! The waits of a guest, which end at the deadline of its attempt, and its open requests.
//!
//! In: waits of the guest, and the requests that it begins. Out: a trap at the deadline, and words for the
//! task's error. Not here: the place in the guest (`place`), the requests themselves (`host::http`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use thiserror::Error;
use tokio::sync::Notify;

use super::failure::Whereabouts;
use crate::guarded::Guarded;

/// The requests that are told, the oldest ones.
const MOST_REQUESTS: usize = 2;
/// The most characters of a request.
const MOST_REQUEST: usize = 200;

/// Ends a guest that waits at its deadline. As this is a trap, it has the calls that led to the wait.
#[derive(Debug, Error)]
#[error("it waited until its deadline")]
pub(super) struct LateWait;

/// The waits of one attempt: its requests, and the calls in which its guest waits.
#[derive(Default)]
pub(super) struct GuestWaits {
    /// Notified at the deadline.
    pub(super) late: Notify,
    numbers: AtomicU64,
    open: Guarded<Vec<OpenRequest>>,
}

struct OpenRequest {
    number: u64,
    method: http::Method,
    uri: http::Uri,
    since: Instant,
}

impl OpenRequest {
    /// The request in words. Its query is left out, as some services have keys there.
    fn words(&self) -> String {
        let (uri, scheme) = (&self.uri, self.uri.scheme_str().unwrap_or("http"));
        let host = uri.authority().map_or("", |authority| authority.as_str());
        let mut what = format!("{} {scheme}://{host}{}", self.method, uri.path());
        if let Some((cut, _)) = what.char_indices().nth(MOST_REQUEST) {
            what.truncate(cut);
            what.push('…');
        }
        format!("{what} has been open for {:.1}s", self.since.elapsed().as_secs_f64())
    }
}

/// A request that has not ended, until this is dropped.
pub(super) struct RequestMark {
    waits: Arc<GuestWaits>,
    number: u64,
}

impl Drop for RequestMark {
    fn drop(&mut self) {
        self.waits.open.lock().retain(|request| request.number != self.number);
    }
}

impl GuestWaits {
    /// Waits for something, but no longer than until the deadline.
    pub(super) async fn or_deadline<T>(
        &self,
        work: impl Future<Output = wasmtime::Result<T>>,
    ) -> wasmtime::Result<T> {
        tokio::select! {
            biased;
            done = work => done,
            () = self.late.notified() => Err(LateWait.into()),
        }
    }

    /// Notes a request. Its words are made only if the deadline comes.
    pub(super) fn request<T>(self: &Arc<Self>, request: &http::Request<T>) -> RequestMark {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.open.lock().push(OpenRequest { number, method, uri, since: Instant::now() });
        RequestMark { waits: self.clone(), number }
    }

    /// The oldest open requests, in words. None if no request is open.
    pub(super) fn requests(&self) -> Option<String> {
        let open = self.open.lock();
        let mut told: Vec<String> = open.iter().take(MOST_REQUESTS).map(OpenRequest::words).collect();
        if open.len() > MOST_REQUESTS {
            told.push(format!("{} more are open", open.len() - MOST_REQUESTS));
        }
        (!told.is_empty()).then(|| told.join(", "))
    }

    /// The whereabouts of a guest whose calls cannot be seen.
    pub(super) fn whereabouts(&self) -> Whereabouts {
        Whereabouts { requests: self.requests(), ..Whereabouts::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_told_without_its_query_until_it_ends() {
        let waits: Arc<GuestWaits> = Arc::default();
        let request = |method: &str, uri: &str| {
            let request = http::Request::builder().method(method).uri(uri).body(());
            waits.request(&request.expect("a request"))
        };
        assert_eq!(waits.requests(), None);
        let first = request("POST", "https://api.example.com:8443/v1/chat?key=hunter2");
        let told = || {
            let text = waits.requests().expect("some are open");
            // Without the seconds.
            let parts = text.split("for ").map(|part| part.trim_start_matches(|c| "0123456789.".contains(c)));
            parts.collect::<Vec<_>>().join("for ")
        };
        insta::assert_snapshot!(told(), @"POST https://api.example.com:8443/v1/chat has been open for s");
        let others = ["GET", "PUT"].map(|method| request(method, "http://a.example/"));
        insta::assert_snapshot!(told(), @"
        POST https://api.example.com:8443/v1/chat has been open for s, GET http://a.example/ has been open \
        for s, 1 more are open
        ");
        drop((first, others));
        assert_eq!(waits.requests(), None);
    }
}
