//! Connections that are kept for later requests of any task of the plugin.
//!
//! ```text
//! connect ─▶ HttpConnection ─▶ a request, its response to the end ─▶ KeptConnections ─▶ the next request
//! ```
//!
//! In: connections whose last response was read to its end. Out: for a request to the same target, the one
//! that was used last. A connection waits for `http.keep_alive` at most, and for less if its server says so.
//! Waiting and serving connections together are at most `max_connections`.
//!
//! Connections belong to one version of a plugin with its grants and its TLS settings, and end with it. The
//! checks of a connection's address and certificate depend on these and on the target only.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;
use wasmtime_wasi_http::io::TokioIo;

use super::outgoing::Outgoing;
use super::target::Target;
use crate::guarded::Guarded;
use crate::sandbox::slices::Polls;

/// Bytes that are read at once. A response's head must fit in. A piece of a body has at most twice as many.
pub(super) const MAX_BUFFER: usize = 32 * 1024;
const MAX_HEADERS: usize = 128;

/// The longest life of a connection: after that the name is looked up and the address checked again.
const MAX_AGE: Duration = Duration::from_secs(300);
/// How long a connection may take to be ready for another request, or to close.
const PATIENCE: Duration = Duration::from_millis(20);
/// A connection is given up this long before its server closes it, so that no request meets its end.
const BEFORE_SERVER: Duration = Duration::from_secs(1);

pub(super) trait HttpStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> HttpStream for S {}

/// An open connection.
pub(super) struct HttpConnection {
    sender: SendRequest<Outgoing>,
    /// Drives the connection until it is closed.
    driver: AbortOnDropHandle<()>,
    opened: Instant,
}

impl HttpConnection {
    /// Opens a connection over a stream. Each of its polls is a slice of `polls`.
    pub(super) async fn over(
        stream: Box<dyn HttpStream>,
        runtime: &Handle,
        polls: Polls,
    ) -> Result<HttpConnection, hyper::Error> {
        let handshake = http1::Builder::new()
            .max_buf_size(MAX_BUFFER)
            .max_headers(MAX_HEADERS)
            .handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await?;
        // The result is not needed: the reader of the response sees how the connection ended.
        let driver = runtime.spawn(polls.run(async { drop(connection.await) }));
        Ok(HttpConnection { sender, driver: AbortOnDropHandle::new(driver), opened: Instant::now() })
    }

    /// Sends a request, and waits for the head of the response. An error has the request if nothing of it was
    /// sent.
    pub(super) async fn send(
        &mut self,
        request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Outgoing>>> {
        self.sender.try_send_request(request).await
    }

    /// Closes it, so that the server sees the end before the next connection.
    pub(super) async fn close(self) {
        let HttpConnection { sender, mut driver, .. } = self;
        drop(sender);
        if timeout(PATIENCE, &mut driver).await.is_err() {
            driver.abort();
            let _ = driver.await;
        }
    }
}

/// The connections of one version of a plugin that wait for a request.
pub(super) struct KeptConnections {
    keep_alive: Duration,
    runtime: Handle,
    idle: Guarded<IdleConnections>,
}

#[derive(Default)]
struct IdleConnections {
    /// The one that waits longest comes first.
    connections: VecDeque<IdleConnection>,
    /// Whether [`sweep`] runs.
    is_swept: bool,
}

impl IdleConnections {
    /// Drops connections that have waited for too long, or that their server has closed.
    fn drop_late(&mut self) {
        let now = Instant::now();
        self.connections.retain(|kept| kept.until > now && !kept.connection.sender.is_closed());
    }
}

struct IdleConnection {
    target: Target,
    connection: HttpConnection,
    until: Instant,
}

impl KeptConnections {
    pub(super) fn new(keep_alive: Duration, runtime: Handle) -> KeptConnections {
        KeptConnections { keep_alive, runtime, idle: Guarded::default() }
    }

    /// The open connection to this target that was used last.
    pub(super) fn take(&self, target: &Target) -> Option<HttpConnection> {
        let mut idle = self.idle.lock();
        idle.drop_late();
        let last = idle.connections.iter().rposition(|kept| kept.target == *target)?;
        idle.connections.remove(last).map(|kept| kept.connection)
    }

    /// Closes the connections that have waited longest, until at most `most` are left.
    pub(super) async fn shorten(&self, most: usize) {
        let surplus: Vec<_> = {
            let connections = &mut self.idle.lock().connections;
            let surplus = connections.len().saturating_sub(most);
            connections.drain(..surplus).collect()
        };
        for kept in surplus {
            kept.connection.close().await;
        }
    }

    /// Keeps a connection whose last response, with this head, was read to its end. Closes the connection if
    /// its server does so, or if it is too old.
    pub(super) async fn put(
        self: &Arc<Self>,
        target: Target,
        mut connection: HttpConnection,
        head: &HeaderMap,
    ) {
        let time = time_to_keep(head, self.keep_alive);
        let may_wait = !time.is_zero() && connection.opened.elapsed() < MAX_AGE;
        if !may_wait || !matches!(timeout(PATIENCE, connection.sender.ready()).await, Ok(Ok(()))) {
            return connection.close().await;
        }
        let mut idle = self.idle.lock();
        idle.connections.push_back(IdleConnection { target, connection, until: Instant::now() + time });
        if !std::mem::replace(&mut idle.is_swept, true) {
            self.runtime.spawn(sweep(Arc::downgrade(self)));
        }
    }
}

/// Closes connections that have waited for too long, as long as there are any.
async fn sweep(kept: Weak<KeptConnections>) {
    let next_end = |kept: Arc<KeptConnections>| {
        let mut idle = kept.idle.lock();
        idle.drop_late();
        let next = idle.connections.iter().map(|kept| kept.until).min();
        idle.is_swept = next.is_some();
        next
    };
    while let Some(next) = kept.upgrade().and_then(next_end) {
        sleep_until(next).await;
    }
}

/// How long a connection is kept: `longest`, or less if the server says after what time it closes it
/// (`Keep-Alive: timeout=SECONDS`).
fn time_to_keep(head: &HeaderMap, longest: Duration) -> Duration {
    let said = head.get_all("keep-alive").iter().filter_map(|value| value.to_str().ok());
    let seconds = said.flat_map(|value| value.split(',')).find_map(|part| {
        let (name, value) = part.split_once('=')?;
        name.trim().eq_ignore_ascii_case("timeout").then(|| value.trim().trim_matches('"').parse().ok())?
    });
    let by_server = seconds.map(|seconds| Duration::from_secs(seconds).saturating_sub(BEFORE_SERVER));
    by_server.map_or(longest, |by_server| by_server.min(longest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_may_shorten_the_time_for_which_its_connection_is_kept() {
        let kept = |values: &[&str]| {
            let pairs =
                values.iter().map(|value| (http::HeaderName::from_static("keep-alive"), value.parse()));
            let head = pairs.map(|(name, value)| (name, value.expect("a value"))).collect();
            time_to_keep(&head, Duration::from_secs(4)).as_secs()
        };
        for (values, seconds) in [
            (&[][..], 4),
            (&["timeout=60, max=100"], 4),
            (&["max=100, Timeout=3"], 2),
            (&["max=7", "timeout=\"2\""], 1),
            (&["timeout=1"], 0),
            (&["timeout=0"], 0),
            (&["timeout=soon"], 4),
        ] {
            assert_eq!(kept(values), seconds, "{values:?}");
        }
    }
}
