//! Listens on the admin address, with bounds on the number of connections and on their idle time.
//!
//! In: an address from the configuration. Out: connections for axum, at most [`MAX_CONNECTIONS`] at once.
//!
//! A connection is closed when the server has written nothing to it for the idle time. So a client that sends
//! nothing, sends its request byte by byte, or does not read the answer cannot keep its place. A handler that
//! streams has to write something within the idle time.
//!
//! Not here: what is answered (`admin`).

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

const MAX_CONNECTIONS: usize = 64;
const IDLE: Duration = Duration::from_secs(30);

/// Binds `admin.listen`.
pub(crate) async fn bind(addr: SocketAddr) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(addr).await {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(anyhow!(
            "admin.listen: {addr} is in use by another process; choose another address, or port 0"
        )),
        bound => bound.with_context(|| format!("admin.listen: cannot listen on {addr}")),
    }
}

/// A listener with a limit on connections and on how long one may be idle.
pub(super) struct Limited {
    listener: TcpListener,
    places: Arc<Semaphore>,
    idle: Duration,
}

impl Limited {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self::with(listener, MAX_CONNECTIONS, IDLE)
    }

    pub(super) fn with(listener: TcpListener, places: usize, idle: Duration) -> Self {
        Limited { listener, places: Arc::new(Semaphore::new(places)), idle }
    }
}

impl Listener for Limited {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // The semaphore is never closed. While no place is free, connections wait in the kernel's backlog.
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        let (stream, addr) = Listener::accept(&mut self.listener).await;
        (Connection { stream, idle: self.idle, deadline: Box::pin(sleep(self.idle)), _place: place }, addr)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that fails with `TimedOut` when nothing was written to it for its idle time.
pub(super) struct Connection {
    stream: TcpStream,
    idle: Duration,
    deadline: Pin<Box<Sleep>>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// Fails once the deadline has passed. Until then the deadline wakes the task of `cx`.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if written.is_ready() {
            let next = Instant::now() + self.idle;
            self.deadline.as_mut().reset(next);
        }
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
    async fn an_address_in_use_is_explained() {
        let taken = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let addr = taken.local_addr().unwrap();
        let error = format!("{:#}", bind(addr).await.unwrap_err());
        assert_eq!(
            error,
            format!("admin.listen: {addr} is in use by another process; choose another address, or port 0")
        );
    }

    #[tokio::test]
    async fn another_failure_names_the_key_and_the_cause() {
        // No interface of this machine has this address (TEST-NET-1).
        let error = format!("{:#}", bind("192.0.2.1:7700".parse().unwrap()).await.unwrap_err());
        assert!(error.starts_with("admin.listen: cannot listen on 192.0.2.1:7700: "), "{error}");
    }
}
