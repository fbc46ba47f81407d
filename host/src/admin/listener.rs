//! Listens on the admin address, with bounds on the number of connections and on how long each may wait for
//! its client.
//!
//! In: an address from the configuration. Out: connections for axum, each with a [`ClientPlace`], of which
//! there are [`MAX_CONNECTIONS`].
//!
//! A slow client loses its place. The rest of a request's head has to come within 5 seconds after its first
//! bytes, and a connection is closed when the server has written nothing to it for 30 seconds; a handler that
//! streams has to write something within that time. While all places are taken, a new connection gets the
//! place of the one that has waited longest for its client, so silent connections never keep a probe out.
//!
//! A few file descriptors are kept for these connections. So a process that has no other left still tells
//! probes that it lives, and what it lacks.
//!
//! Not here: what is answered (`admin`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::guarded::Guarded;

const MAX_CONNECTIONS: usize = 64;
const WAITS: ClientWaits = ClientWaits { head: Duration::from_secs(5), idle: Duration::from_secs(30) };
/// The number of [`SpareFiles`].
const SPARE_FILES: usize = 4;
/// The pause after a failure to accept.
const AGAIN: Duration = Duration::from_millis(100);

/// Binds `admin.listen`.
pub(crate) async fn bind(addr: SocketAddr) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(addr).await {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(anyhow!(
            "admin.listen: {addr} is in use by another process; choose another address, or port 0"
        )),
        bound => bound.with_context(|| format!("admin.listen: cannot listen on {addr}")),
    }
}

/// How long a connection may wait for its client.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientWaits {
    /// From the first byte of a request, or from the start of the connection, to the end of its head.
    pub head: Duration,
    /// Since something was written last.
    pub idle: Duration,
}

/// A listener with a limit on connections.
pub(super) struct Limited {
    listener: TcpListener,
    places: Arc<PlaceTable>,
    times: ClientWaits,
    spare: SpareFiles,
}

/// Open files, one of which is closed when a connection needs a descriptor and the process has none left.
#[derive(Clone, Default)]
struct SpareFiles(Arc<Guarded<Vec<File>>>);

impl SpareFiles {
    /// Opens what is missing, as far as possible.
    fn fill(&self) {
        let mut files = self.0.lock();
        while files.len() < SPARE_FILES
            && let Ok(file) = File::open("/dev/null")
        {
            files.push(file);
        }
    }

    /// Closes one. False: there is none.
    fn close_one(&self) -> bool {
        self.0.lock().pop().is_some()
    }
}

/// Opens the missing spare files when it is dropped. A connection drops it right after its descriptor was
/// closed, before another part of the process can use that.
struct RefillOnDrop(SpareFiles);

impl Drop for RefillOnDrop {
    fn drop(&mut self) {
        self.0.fill();
    }
}

impl Limited {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self::with(listener, MAX_CONNECTIONS, WAITS)
    }

    pub(super) fn with(listener: TcpListener, most: usize, times: ClientWaits) -> Self {
        let places = PlaceTable { most, taken: Guarded::default(), changed: Notify::new() };
        let spare = SpareFiles::default();
        spare.fill();
        Limited { listener, places: Arc::new(places), times, spare }
    }
}

impl Listener for Limited {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, addr) = loop {
            match self.listener.accept().await {
                Ok(accepted) => break accepted,
                Err(error) if has_no_descriptor(&error) && self.spare.close_one() => {}
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection to the admin address");
                    sleep(AGAIN).await;
                }
            }
        };
        let place = self.places.take(addr.ip(), self.times).await;
        let evicted = Box::pin(place.0.evicted.clone().cancelled_owned());
        let deadline = Box::pin(sleep_until(place.0.phase.lock().ends));
        (Connection { stream, place, evicted, deadline, _refill: RefillOnDrop(self.spare.clone()) }, addr)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

fn has_no_descriptor(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(nix::libc::EMFILE | nix::libc::ENFILE))
}

/// The places that are taken, in the order of their connections.
struct PlaceTable {
    most: usize,
    taken: Guarded<BTreeMap<u64, ClientPlace>>,
    /// Notified when a place comes free, or a connection begins to wait for its client.
    changed: Notify,
}

impl PlaceTable {
    async fn take(self: &Arc<PlaceTable>, peer: IpAddr, times: ClientWaits) -> ClientPlace {
        loop {
            if let Some(place) = self.take_now(peer, times) {
                return place;
            }
            self.changed.notified().await;
        }
    }

    /// Takes a free place, or that of the connection that has waited longest for its client. None: there is
    /// no free place, and no connection waits for its client.
    fn take_now(self: &Arc<PlaceTable>, peer: IpAddr, times: ClientWaits) -> Option<ClientPlace> {
        let mut taken = self.taken.lock();
        if taken.len() >= self.most {
            let waiting =
                taken.iter().filter_map(|(id, place)| Some((place.0.phase.lock().waits_since?, *id)));
            let evicted = waiting.min().and_then(|(_, id)| taken.remove(&id))?;
            evicted.0.evicted.cancel();
        }
        let id = taken.last_key_value().map_or(0, |(last, _)| last + 1);
        let place = ClientPlace(Arc::new(ClientState {
            id,
            peer,
            times,
            phase: Guarded::new(ClientPhase::begins(times)),
            evicted: CancellationToken::new(),
            places: Arc::clone(self),
        }));
        taken.insert(id, place.clone());
        Some(place)
    }
}

/// The state of one connection. Clones share it.
#[derive(Clone)]
pub(super) struct ClientPlace(Arc<ClientState>);

struct ClientState {
    id: u64,
    peer: IpAddr,
    times: ClientWaits,
    phase: Guarded<ClientPhase>,
    /// Another connection has the place.
    evicted: CancellationToken,
    places: Arc<PlaceTable>,
}

struct ClientPhase {
    /// A request has come whole, and its answer is being made or written.
    is_answered: bool,
    /// A part of a request's head has come.
    has_begun: bool,
    /// Since when the connection waits for its client to send or to read.
    waits_since: Option<Instant>,
    /// When the connection is closed, unless something happens.
    ends: Instant,
}

impl ClientPhase {
    fn begins(times: ClientWaits) -> ClientPhase {
        let now = Instant::now();
        ClientPhase { is_answered: false, has_begun: true, waits_since: Some(now), ends: now + times.head }
    }
}

impl ClientPlace {
    pub(super) fn peer(&self) -> IpAddr {
        self.0.peer
    }

    /// Notes that the head of a request has come. The request counts as being answered until the result is
    /// dropped. If it has a body, the connection counts as waiting for its client until something is written
    /// to it.
    pub(super) fn answers(&self, has_body: bool) -> Answering {
        let mut phase = self.0.phase.lock();
        phase.is_answered = true;
        phase.waits_since = has_body.then(Instant::now);
        phase.ends = Instant::now() + self.0.times.idle;
        Answering(self.clone())
    }

    fn answered(&self) {
        let now = Instant::now();
        let ends = now + self.0.times.idle;
        *self.0.phase.lock() =
            ClientPhase { is_answered: false, has_begun: false, waits_since: Some(now), ends };
        self.0.places.changed.notify_one();
    }

    /// Notes that bytes came. Returns when the connection ends, if that is sooner now.
    fn received(&self) -> Option<Instant> {
        let mut phase = self.0.phase.lock();
        if phase.is_answered || phase.has_begun {
            return None;
        }
        phase.has_begun = true;
        phase.ends = phase.ends.min(Instant::now() + self.0.times.head);
        Some(phase.ends)
    }

    /// Notes whether bytes could be written.
    fn wrote(&self, is_ready: bool) {
        let mut phase = self.0.phase.lock();
        if is_ready {
            phase.ends = Instant::now() + self.0.times.idle;
            if phase.is_answered {
                phase.waits_since = None;
            }
        } else if phase.waits_since.is_none() {
            phase.waits_since = Some(Instant::now());
            self.0.places.changed.notify_one();
        }
    }

    fn leave(&self) {
        self.0.places.taken.lock().remove(&self.0.id);
        self.0.places.changed.notify_one();
    }
}

impl Connected<IncomingStream<'_, Limited>> for ClientPlace {
    fn connect_info(stream: IncomingStream<'_, Limited>) -> ClientPlace {
        stream.io().place.clone()
    }
}

/// A request of the connection is answered for as long as this lives.
pub(super) struct Answering(ClientPlace);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.answered();
    }
}

impl Answering {
    /// Ties this to the body of the answer: the server drops the body when it has taken all of it.
    pub(super) fn with(self, body: Body) -> Body {
        Body::new(AnswerBody { body, _answering: self })
    }
}

struct AnswerBody {
    body: Body,
    _answering: Answering,
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection that fails when its client has kept it waiting for too long, or another one has its place.
pub(super) struct Connection {
    // Fields are dropped in this order, which RefillOnDrop relies on.
    stream: TcpStream,
    _refill: RefillOnDrop,
    place: ClientPlace,
    evicted: Pin<Box<WaitForCancellationFutureOwned>>,
    /// May be earlier than the end of the phase, never later.
    deadline: Pin<Box<Sleep>>,
}

impl Connection {
    /// Fails once the connection has to end. Before that, it arranges that the end wakes the task of `cx`.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.evicted.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        while self.deadline.as_mut().poll(cx).is_ready() {
            let ends = self.place.0.phase.lock().ends;
            if ends <= Instant::now() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.deadline.as_mut().reset(ends);
        }
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.place.leave();
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if let Some(ends) = self.place.received() {
            self.deadline.as_mut().reset(ends);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.place.wrote(written.is_ready());
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::bind;

    #[tokio::test]
    async fn another_failure_names_the_key_and_the_cause() {
        // No interface of this machine has this address (TEST-NET-1).
        let error = bind("192.0.2.1:7700".parse().unwrap()).await.unwrap_err();
        assert!(error.chain().nth(1).is_some_and(|cause| cause.is::<std::io::Error>()), "{error:#}");
        insta::assert_snapshot!(error, @"admin.listen: cannot listen on 192.0.2.1:7700");
    }
}
