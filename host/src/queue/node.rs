//! One server of Redis, as this host sees it over all its connections: when it last recovered, and whether it
//! is still in charge.
//!
//! Not here: which server a call goes to (`nodes`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::{AsyncConnectionConfig, RedisError, RedisResult};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::connect::{Endpoint, OpenConnection};
use super::reply;
use crate::guarded::Guarded;

/// A host sends a request at least every second. A longer time without a reply means that a server was
/// unreachable or stalled.
const SILENCE: Duration = Duration::from_millis(1500);
/// A silence counts as a part of the outage before it if no more than this time has passed between them.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The end of a time in which no lease could be renewed: there was no reply, or writes were refused.
#[derive(Debug, Clone, Copy)]
pub struct Recovery {
    pub since: Instant,
    /// How long leases could not be renewed. [`Duration::MAX`]: that is not known.
    pub silence: Duration,
}

/// One server.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) endpoint: Endpoint,
    /// The address without a password, for messages.
    pub(super) address: Arc<str>,
    /// How often this host has loaded the library of functions again.
    pub(super) loads: AtomicU64,
    /// Held by the caller that loads the library, for all callers.
    pub(super) loading: tokio::sync::Mutex<()>,
    last_reply: Guarded<LastReply>,
    /// Whether a call failed for which another server may be in charge by now, and no call was answered
    /// since.
    is_suspected: AtomicBool,
    role: Role,
}

/// When a server last answered this host, over any connection.
#[derive(Debug, Default)]
struct LastReply {
    at: Option<Instant>,
    recovery: Option<Recovery>,
}

#[derive(Debug)]
enum Role {
    /// The configuration names this server, and no other server can take its place.
    Only,
    /// Sentinels or nodes of a cluster name it as a primary. `replaced` is cancelled when they name another
    /// server instead. `asks`: each new connection asks the server whether it is a primary.
    Named { replaced: CancellationToken, asks: bool },
}

impl Node {
    pub(super) fn only(endpoint: Endpoint, address: Arc<str>) -> Arc<Node> {
        Node::with(endpoint, address, Role::Only)
    }

    /// A server that Sentinels or nodes name as a primary, with the login and the TLS of `like`.
    pub(super) fn named(like: &Endpoint, host: &str, port: u16, asks: bool) -> RedisResult<Arc<Node>> {
        let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let role = Role::Named { replaced: CancellationToken::new(), asks };
        Ok(Node::with(like.at(host, port)?, address.into(), role))
    }

    fn with(endpoint: Endpoint, address: Arc<str>, role: Role) -> Arc<Node> {
        let (loads, loading, last_reply, is_suspected) = Default::default();
        Arc::new(Node { endpoint, address, loads, loading, last_reply, is_suspected, role })
    }

    pub(super) fn is_at(&self, host: &str, port: u16) -> bool {
        self.endpoint.host_and_port() == Some((host, port))
    }

    /// Opens a connection. `takes_messages`: one on which the server may send messages unasked. An error also
    /// means that the server is not the primary any more.
    pub(super) async fn connect(
        &self,
        config: &AsyncConnectionConfig,
        takes_messages: bool,
    ) -> RedisResult<OpenConnection> {
        let mut connection = if takes_messages {
            self.endpoint.taking_messages()?.connect(config).await?
        } else {
            self.endpoint.connect(config).await?
        };
        if let Role::Named { replaced, asks: true } = &self.role {
            let role = connection.calls.send_packed_command(&redis::cmd("ROLE")).await?.extract_error()?;
            let role = reply::array(role).ok().and_then(|about| reply::text(about.into_iter().next()?).ok());
            if role.as_deref() != Some("master") {
                replaced.cancel();
                return Err(not_in_charge());
            }
        }
        Ok(connection)
    }

    /// Makes a call, but gives it up when another server takes the place of this one.
    pub(super) async fn while_in_charge<T>(
        &self,
        call: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        match &self.role {
            Role::Only => call.await,
            Role::Named { replaced, .. } => {
                replaced.run_until_cancelled(call).await.unwrap_or_else(|| Err(not_in_charge()))
            }
        }
    }

    /// Whether another server has taken the place of this one.
    pub(super) fn is_replaced(&self) -> bool {
        matches!(&self.role, Role::Named { replaced, .. } if replaced.is_cancelled())
    }

    /// Notes that another server has taken the place of this one. All calls to this one are given up.
    pub(super) fn replace(&self) {
        if let Role::Named { replaced, .. } = &self.role {
            replaced.cancel();
        }
    }

    pub(super) fn suspect(&self) {
        self.is_suspected.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_suspected(&self) -> bool {
        self.is_suspected.load(Ordering::Relaxed)
    }

    pub(super) fn recovery(&self) -> Option<Recovery> {
        self.last_reply.lock().recovery
    }

    /// Notes that the server has answered.
    pub(super) fn answered(&self) {
        let now = Instant::now();
        self.is_suspected.store(false, Ordering::Relaxed);
        let mut last_reply = self.last_reply.lock();
        let silence = last_reply.at.replace(now).map_or(Duration::ZERO, |last| now - last);
        if silence >= SILENCE {
            // An outage may have begun with refused writes, and end with a restart.
            let before = last_reply.recovery.filter(|before| before.since.elapsed() < silence + REMEMBERED);
            let silence = before.map_or(silence, |before| before.silence.max(silence));
            last_reply.recovery = Some(Recovery { since: now, silence });
        }
    }

    /// Notes that leases may have ended because no host could renew them: the server refused a write although
    /// it answers reads, or it took the place of another one.
    pub(super) fn interrupted(&self) {
        let recovery = Recovery { since: Instant::now(), silence: Duration::MAX };
        self.last_reply.lock().recovery = Some(recovery);
    }
}

fn not_in_charge() -> RedisError {
    io::Error::new(io::ErrorKind::ConnectionAborted, "it is not the primary any more").into()
}
