//! Sends PING and SHUTDOWN to the private Redis, before the host's own connections are made.
//!
//! The commands are written to the socket directly: only `queue` may use the crate redis, and its connections
//! need a server that is ready.

use std::io;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an orphan may take to write its file and end.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(20);
const MAX_ANSWER_BYTES: u64 = 1024;

#[derive(Debug, PartialEq)]
pub(super) enum PingReply {
    Pong,
    /// The server reads its append-only file.
    Loading,
    /// The server answered something else.
    Other,
}

/// Whether a server listens on the socket. A server that is too busy to accept the connection counts as
/// listening.
pub(super) async fn takes_connections(socket: &Path) -> bool {
    !matches!(timeout(CONNECT_TIMEOUT, UnixStream::connect(socket)).await, Ok(Err(_)))
}

/// Sends PING. None: no server answers.
pub(super) async fn ping(socket: &Path) -> Option<PingReply> {
    let line = timeout(ANSWER_TIMEOUT, ask(socket, b"PING\r\n")).await.ok()?.ok()?;
    Some(match line.as_str() {
        "+PONG" => PingReply::Pong,
        line if line.starts_with("-LOADING") => PingReply::Loading,
        _ => PingReply::Other,
    })
}

/// Ends a server that outlived its host: no other server may use the files when ours starts. The caller must
/// hold the lock.
pub(super) async fn end_orphan(socket: &Path) -> io::Result<()> {
    if UnixStream::connect(socket).await.is_err() {
        return Ok(());
    }
    tracing::warn!(
        socket = %socket.display(),
        "a private Redis of a host that is gone still runs: shutting it down"
    );
    // A server that obeys sends no answer.
    let _ = timeout(ANSWER_TIMEOUT, ask(socket, b"SHUTDOWN\r\n")).await;
    // The server removes its socket once its file is written.
    if wait_until(|| async { !socket.exists() }).await {
        return Ok(());
    }
    if let Ok(stream) = UnixStream::connect(socket).await
        && let Some(pid) = stream.peer_cred()?.pid().filter(|pid| *pid > 1)
    {
        tracing::warn!(pid, "the orphaned Redis does not shut down: killing it");
        kill(Pid::from_raw(pid), Signal::SIGKILL)?;
    }
    if wait_until(|| async { UnixStream::connect(socket).await.is_err() }).await {
        return Ok(());
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Waits up to [`ORPHAN_TIMEOUT`] for a condition. Returns whether it holds.
async fn wait_until<F: Future<Output = bool>>(condition: impl Fn() -> F) -> bool {
    let deadline = Instant::now() + ORPHAN_TIMEOUT;
    loop {
        if condition().await {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        sleep(POLL).await;
    }
}

/// The first line of the answer to one command.
pub(super) async fn ask(socket: &Path, command: &[u8]) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(command).await?;
    let mut answer = Vec::new();
    let mut limited = stream.take(MAX_ANSWER_BYTES);
    while !answer.contains(&b'\n') && limited.read_buf(&mut answer).await? > 0 {}
    let line = answer.split(|byte| *byte == b'\r' || *byte == b'\n').next().unwrap_or_default();
    Ok(String::from_utf8_lossy(line).into_owned())
}
