//! Connections to the servers of Redis: one to each, and a new one after it has failed.
//!
//! In: a server. Out: a connection to it, or why there is none. A connection that failed in any way is
//! dropped. That includes a timeout, because a half-open connection never answers. The next call connects
//! again, after a growing, jittered delay while the server is unreachable.
//!
//! The `ConnectionManager` of the crate redis does not do this: it keeps a connection after a timeout, and
//! one to a server that became a replica. Its client of clusters repeats calls that may have been carried
//! out.
//!
//! Not here: sending a call (`link`), opening one connection (`connect`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use redis::{AsyncConnectionConfig, ErrorKind, RedisError, ServerErrorKind};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::connect::OpenConnection;
use super::error::{QueueError, QueueResult};
use super::node::Node;
use super::pushes::Pushes;
use super::servers::Redis;
use crate::guarded::Guarded;

/// The first and the longest delay between connection attempts.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(2);

/// At most one connection to each server.
#[derive(Debug)]
pub(super) struct Connections {
    redis: Redis,
    config: AsyncConnectionConfig,
    /// Set if the servers tell on these connections which keys have changed.
    pub(super) pushes: Option<Pushes>,
    all: Guarded<Vec<(Arc<Node>, Slot)>>,
}

/// The place of the connection to one server. While one caller connects, the others wait for its lock.
type Slot = Arc<Mutex<ConnectionState>>;

#[derive(Debug, Default)]
struct ConnectionState {
    connection: Option<OpenConnection>,
    /// Counts connections, so that a late error of an old one does not close a new one.
    epoch: u64,
    /// Failed attempts in a row.
    failures: usize,
    not_before: Option<Instant>,
    /// When the last attempt failed, and why.
    failed: Option<(Instant, RedisError)>,
}

impl Connections {
    pub(super) fn new(redis: &Redis, config: AsyncConnectionConfig, pushes: Option<Pushes>) -> Connections {
        Connections { redis: redis.clone(), config, pushes, all: Guarded::default() }
    }

    /// The present connection to a server, or a new one, and its epoch. While the server is unreachable,
    /// callers wait in line here, so that any number of loops makes no more connection attempts than the
    /// delays allow.
    pub(super) async fn to(&self, node: &Arc<Node>) -> Result<(OpenConnection, u64), RedisError> {
        let slot = self.slot_of(node);
        let since = Instant::now();
        let mut state = slot.lock().await;
        if let Some(connection) = &state.connection {
            return Ok((connection.clone(), state.epoch));
        }
        // The attempt of another caller failed meanwhile. In a cluster other nodes may answer, so this caller
        // does not wait for one more attempt.
        if let Some((at, error)) = &state.failed
            && *at >= since
            && self.redis.is_cluster()
        {
            return Err(error.clone());
        }
        if let Some(not_before) = state.not_before {
            tokio::time::sleep_until(not_before).await;
        }
        // A handshake has a large future, which would be a part of that of every call.
        match Box::pin(self.open(node)).await {
            Ok(connection) => {
                if state.epoch > 0 {
                    self.redis.reconnects.fetch_add(1, Ordering::Relaxed);
                }
                let (epoch, opened) = (state.epoch + 1, Some(connection.clone()));
                *state = ConnectionState { connection: opened, epoch, ..ConnectionState::default() };
                Ok((connection, state.epoch))
            }
            Err(error) => {
                state.not_before = Some(Instant::now() + reconnect_delay(state.failures));
                state.failures += 1;
                state.failed = Some((Instant::now(), error.clone()));
                self.redis.nodes.suspect(node);
                Err(error)
            }
        }
    }

    async fn open(&self, node: &Node) -> Result<OpenConnection, RedisError> {
        match &self.pushes {
            Some(pushes) => pushes.open(node, &self.config).await,
            None => node.connect(&self.config, false).await,
        }
    }

    fn slot_of(&self, node: &Arc<Node>) -> Slot {
        let mut all = self.all.lock();
        if let Some((_, slot)) = all.iter().find(|(known, _)| Arc::ptr_eq(known, node)) {
            return slot.clone();
        }
        let before = all.len();
        all.retain(|(known, _)| !known.is_replaced());
        if all.len() < before {
            self.forget();
        }
        let slot = Slot::default();
        all.push((node.clone(), slot.clone()));
        slot
    }

    /// Forgets all remembered replies: no server can tell on a closed connection that a key has changed.
    fn forget(&self) {
        if let Some(pushes) = &self.pushes {
            pushes.forget();
        }
    }

    /// Notes what a reply tells about its server, and drops the connection with this epoch if the error means
    /// that it is unusable. `epoch`: none if there was no connection.
    pub(super) async fn check<T>(
        &self,
        what: &'static str,
        node: &Arc<Node>,
        epoch: Option<u64>,
        reply: Result<T, RedisError>,
    ) -> QueueResult<T> {
        match reply {
            Ok(value) => {
                node.answered();
                Ok(value)
            }
            Err(error) => {
                let error = QueueError::new(what, &node.address, error);
                if error.refuses_writes() {
                    node.interrupted();
                }
                if ends_connection(error.source()) {
                    self.redis.nodes.suspect(node);
                    let slot = self.slot_of(node);
                    let mut state = slot.lock().await;
                    if epoch == Some(state.epoch) && state.connection.take().is_some() {
                        state.not_before = Some(Instant::now() + reconnect_delay(0));
                        self.forget();
                    }
                }
                Err(error)
            }
        }
    }
}

/// Whether a connection is useless after this error. A server that became a replica, or lost its primary, may
/// have a successor at the same address.
fn ends_connection(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(kind) => matches!(
            kind,
            ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown | ServerErrorKind::BusyLoading
        ),
        ErrorKind::Io | ErrorKind::Parse => true,
        _ => error.is_unrecoverable_error() || error.is_timeout(),
    }
}

/// The delay after the n-th failure in a row.
fn reconnect_delay(failures: usize) -> Duration {
    let delays = ExponentialBuilder::default()
        .with_min_delay(FIRST_DELAY)
        .with_max_delay(MAX_DELAY)
        .with_max_times(usize::MAX)
        .with_jitter();
    // With jitter a delay is up to twice as long, and never shorter.
    delays.build().nth(failures.min(16)).unwrap_or(MAX_DELAY).min(MAX_DELAY * 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reconnect_delays_grow_and_are_bounded() {
        assert!(reconnect_delay(0) <= Duration::from_millis(200));
        for failures in [5, 100, 10_000] {
            let delay = reconnect_delay(failures);
            assert!(delay >= Duration::from_secs(2) && delay <= Duration::from_secs(4), "{delay:?}");
        }
    }
}
