//! Servers say by themselves that a stream that rests has changed.
//!
//! In: what they say on the connections of a link. Out: the streams that have to be read.
//!
//! Not here: reading them (`tracking`).

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::SendError;
use redis::{AsyncConnectionConfig, ErrorKind, PushInfo, PushKind, RedisResult, Value};
use tokio::sync::Notify;

use super::connect::OpenConnection;
use super::node::Node;
use super::reply;
use crate::chain::chain;

/// A stream, and the entry that precedes its new ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamPosition {
    pub stream: String,
    pub after: String,
}

/// The words of the servers of one link.
#[derive(Debug, Default)]
pub(super) struct Pushes {
    heard: Arc<Heard>,
    /// The streams that rest, each with the entry after which it has none.
    resting: Mutex<HashMap<String, String>>,
    /// A server does not tell of changes.
    is_refused: AtomicBool,
}

#[derive(Debug, Default)]
struct Heard {
    changed: Mutex<Changed>,
    told: Notify,
}

#[derive(Debug)]
enum Changed {
    Some(HashSet<Vec<u8>>),
    /// A connection was lost, or a server forgot what it remembered.
    All,
}

impl Default for Changed {
    fn default() -> Changed {
        Changed::Some(HashSet::new())
    }
}

impl Heard {
    fn push(&self, push: PushInfo) {
        let mut changed = lock(&self.changed);
        match push.kind {
            PushKind::Invalidate => match (push.data.into_iter().next(), &mut *changed) {
                // A server tells of each key once, until it is read again.
                (Some(Value::Array(keys)), Changed::Some(known)) => {
                    known.extend(keys.into_iter().filter_map(|key| reply::bytes(key).ok()));
                }
                _ => *changed = Changed::All,
            },
            PushKind::Disconnection => *changed = Changed::All,
            _ => return,
        }
        self.told.notify_one();
    }
}

impl Pushes {
    /// A connection calls this for everything that its server says by itself.
    pub(super) fn sender(&self) -> impl Fn(PushInfo) -> Result<(), SendError> + Send + Sync + 'static {
        let heard = self.heard.clone();
        move |push| {
            heard.push(push);
            Ok(())
        }
    }

    /// Opens a connection on which the server tells of changes, if it can.
    pub(super) async fn open(
        &self,
        node: &Node,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<OpenConnection> {
        if !self.are_refused() {
            let opened = async {
                let mut connection = node.connect(config, true).await?;
                let on = redis::cmd("CLIENT").arg("TRACKING").arg("ON").to_owned();
                connection.calls.send_packed_command(&on).await?.extract_error()?;
                Ok(connection)
            };
            match opened.await {
                Err(error) if is_refusal(&error) => {
                    self.is_refused.store(true, Ordering::Relaxed);
                    let (node, why) = (node.address.as_ref(), chain(&error));
                    tracing::info!(node, why, "Redis does not tell of changes, so streams are read in turn");
                }
                opened => return opened,
            }
        }
        node.connect(config, false).await
    }

    /// Waits until a server says something, for this long at most. False: none did.
    pub(super) async fn heard(&self, rest: Duration) -> bool {
        tokio::time::timeout(rest, self.heard.told.notified()).await.is_ok()
    }

    /// Whether streams have to be read in turn, because a server does not tell of changes.
    pub(super) fn are_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// Notes that the stream has nothing after this position.
    pub(super) fn rests(&self, position: &StreamPosition) {
        lock(&self.resting).insert(position.stream.clone(), position.after.clone());
    }

    /// The positions whose streams have to be read.
    pub(super) fn to_read<'p>(&self, positions: &'p [StreamPosition]) -> Vec<&'p StreamPosition> {
        let mut resting = lock(&self.resting);
        match std::mem::take(&mut *lock(&self.heard.changed)) {
            Changed::All => resting.clear(),
            Changed::Some(keys) => resting.retain(|stream, _| !keys.contains(stream.as_bytes())),
        }
        if self.are_refused() {
            resting.clear();
        }
        // A stream that nobody waits for any more is forgotten now and then.
        if resting.len() > 2 * positions.len() {
            resting.retain(|stream, _| positions.iter().any(|position| position.stream == *stream));
        }
        positions.iter().filter(|position| resting.get(&position.stream) != Some(&position.after)).collect()
    }
}

/// A server without this protocol or this command, or without the right to it.
fn is_refusal(error: &redis::RedisError) -> bool {
    match error.kind() {
        ErrorKind::RESP3NotSupported => true,
        ErrorKind::Server(redis::ServerErrorKind::BusyLoading) => false,
        ErrorKind::Server(_) => true,
        ErrorKind::Extension => matches!(error.code(), Some("ERR" | "NOPERM" | "NOPROTO")),
        _ => false,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
