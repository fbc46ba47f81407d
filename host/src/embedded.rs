//! The private Redis: a server that the host starts for itself when the configuration has no `redis.url`.
//!
//! In: the host's `data_dir`. Out: a running server on a Unix socket, with an append-only file. It ends with
//! the host, however the host ends, and is started again if it ends on its own.
//!
//!     lock ─▶ program ─▶ shut down the orphan of a killed host, if any ─▶ server thread ─▶ PING ─▶ Embedded
//!
//! Files under `data_dir/redis`: `lock` (locked while the host runs; its text is the host's pid),
//! `redis.sock`, `redis.log`, and the files of Redis.
//!
//! Not here: the client's connections (`queue`). This module itself sends only PING and SHUTDOWN (`socket`).

mod error;
mod program;
mod server;
mod socket;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep};

pub(crate) use error::EmbeddedError;

use crate::secrets::hex;
use server::{Launch, Server};
use socket::PingReply;

/// A Unix socket's path is at most 107 bytes on Linux and 103 elsewhere.
const MAX_SOCKET_PATH_BYTES: usize = 100;
/// A server counts as failed after it has not answered for this long. While it loads its file, it answers
/// `LOADING`.
const SILENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// How long to try to take the lock. A child process that another thread starts has a copy of the handle
/// until it runs its program, so the lock of a host that has ended may be held for a moment.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);

/// A running private Redis. Dropping it asks the server to end; [`Embedded::stop`] also waits for the end.
#[derive(Debug)]
pub(crate) struct Embedded {
    server: Server,
}

impl Embedded {
    /// Starts the server of this `data_dir` and waits until it answers.
    pub(crate) async fn start(data_dir: &Path) -> Result<Embedded, EmbeddedError> {
        Embedded::start_from(data_dir, &std::env::var_os("PATH").unwrap_or_default()).await
    }

    /// Like [`Embedded::start`]. `path` is the list of folders that may hold the program, as in `PATH`.
    async fn start_from(data_dir: &Path, path: &OsStr) -> Result<Embedded, EmbeddedError> {
        let folder = absolute(data_dir).join("redis");
        own_folder(&folder)?;
        let lock = take_lock(&folder)?;
        let program = program::find(path).await?;
        let socket = socket_path(data_dir);
        if let Some(parent) = socket.parent() {
            own_folder(parent)?;
        }
        socket::end_orphan(&socket).await.map_err(io("end the orphaned server on", &socket))?;
        let log = folder.join("redis.log");
        server::rotate(&log).map_err(io("rotate", &log))?;
        tracing::info!(
            program = %program.display(),
            socket = %socket.display(),
            "starting the private Redis"
        );
        let launch = Launch { program, folder, socket: socket.clone(), log: log.clone() };
        let server = Server::start(launch, lock).map_err(io("start a thread for", &socket))?;
        wait_until_ready(&server, &socket, &log).await?;
        Ok(Embedded { server })
    }

    /// Asks the server to end, waits up to 15 seconds, then kills it. After this call all written data is in
    /// the server's file.
    pub(crate) async fn stop(self) {
        self.server.stop().await;
    }
}

/// The path of the socket for this `data_dir`, also if no server runs: `redis/redis.sock` in it. If that path
/// is too long for a socket, the socket is in the folder for temporary files. The path depends only on
/// `data_dir`.
pub(crate) fn socket_path(data_dir: &Path) -> PathBuf {
    let data_dir = absolute(data_dir);
    let socket = data_dir.join("redis/redis.sock");
    if socket.as_os_str().len() <= MAX_SOCKET_PATH_BYTES {
        return socket;
    }
    let digest = Sha256::digest(data_dir.as_os_str().as_bytes());
    let short = format!("tqhost-{}/redis.sock", hex(&digest[..16]));
    let socket = std::env::temp_dir().join(&short);
    if socket.as_os_str().len() <= MAX_SOCKET_PATH_BYTES { socket } else { Path::new("/tmp").join(short) }
}

/// Whether a server listens on the socket of this `data_dir`.
pub(crate) async fn takes_connections(data_dir: &Path) -> bool {
    socket::takes_connections(&socket_path(data_dir)).await
}

/// The url of the socket of this `data_dir`.
pub(crate) fn url(data_dir: &Path) -> String {
    let mut url = String::from("redis+unix://");
    for byte in socket_path(data_dir).as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(byte) {
            url.push(char::from(*byte));
        } else {
            let _ = write!(url, "%{byte:02X}");
        }
    }
    url
}

/// Waits until the server answers PING, or has failed.
async fn wait_until_ready(server: &Server, socket: &Path, log: &Path) -> Result<(), EmbeddedError> {
    let mut deadline = Instant::now() + SILENCE;
    loop {
        let answer = socket::ping(socket).await;
        let ready = answer == Some(PingReply::Pong);
        server.check(ready).map_err(|why| EmbeddedError::Ended { why, log: log_tail(log) })?;
        if ready {
            return Ok(());
        }
        if answer == Some(PingReply::Loading) {
            deadline = Instant::now() + SILENCE;
        } else if Instant::now() > deadline {
            return Err(EmbeddedError::Silent { log: log_tail(log) });
        }
        sleep(POLL).await;
    }
}

/// Takes the lock, which is held until the file is dropped. The pid in the file is only for the message that
/// another host gives when it finds the lock taken.
fn take_lock(folder: &Path) -> Result<File, EmbeddedError> {
    let path = folder.join("lock");
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = open.map_err(io("open", &path))?;
    let until = Instant::now() + LOCK_TIMEOUT;
    let locked = loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOCK_TIMEOUT / 50),
            locked => break locked,
        }
    };
    match locked {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let read = file.take(20).read_to_string(&mut pid);
            let known = read.is_ok() && !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit());
            let data_dir = folder.parent().unwrap_or(folder).to_owned();
            return Err(EmbeddedError::Busy { pid: if known { pid } else { "unknown".into() }, data_dir });
        }
        Err(TryLockError::Error(source)) => return Err(io("lock", &path)(source)),
    }
    file.set_len(0).and_then(|()| write!(file, "{}", std::process::id())).map_err(io("write", &path))?;
    Ok(file)
}

/// Makes a folder that no other user can read. It is an error if the folder belongs to another user: in
/// `/tmp`, any user can make one.
fn own_folder(path: &Path) -> Result<(), EmbeddedError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io("create", path))?;
    let metadata = path.symlink_metadata().map_err(io("look at", path))?;
    if !metadata.is_dir() || metadata.uid() != nix::unistd::geteuid().as_raw() {
        return Err(EmbeddedError::Foreign { path: path.to_owned() });
    }
    if metadata.mode() & 0o077 != 0 {
        std::fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(io("make private", path))?;
    }
    Ok(())
}

/// The last lines of the server's log.
fn log_tail(log: &Path) -> String {
    const LINES: usize = 12;
    const MAX_BYTES: usize = 4096;
    let bytes = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(MAX_BYTES)..]).into_owned();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> EmbeddedError {
    let path = path.to_owned();
    move |source| EmbeddedError::Io { what, path, source }
}
