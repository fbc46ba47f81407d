//! Remembers replies about keys until a server tells, unasked, that a key has changed (CLIENT TRACKING).
//!
//! In: replies, and the messages of the servers on the connections of one link. Out: the replies that still
//! hold.
//!
//! Not here: asking (`tracking`).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::SendError;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, PushInfo, PushKind, RedisResult, Value};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::connect::OpenConnection;
use super::node::Node;
use super::reply;
use crate::chain::chain;
use crate::guarded::Guarded;

/// A reply is asked for again after this time, even if no server told that its key has changed.
const HOLDS: Duration = Duration::from_secs(300);
/// The most replies that are remembered. Before one more is, all others are forgotten.
const MOST: usize = 100_000;

/// The messages of the servers of one link, and the replies that still hold.
#[derive(Debug, Default)]
pub(super) struct Pushes {
    shared: Arc<SharedReplies>,
    /// Whether a server does not tell of changes. Then nothing is remembered.
    is_refused: AtomicBool,
}

/// The replies, for the connections that take messages and for callers.
#[derive(Debug, Default)]
struct SharedReplies {
    replies: Guarded<Replies>,
    /// Notified when replies were forgotten.
    forgotten: Notify,
}

/// The replies by key. Only one command at a time asks about a key.
#[derive(Debug, Default)]
struct Replies {
    /// The keys about which a command has been sent, and which have not changed since.
    asked: HashSet<Vec<u8>>,
    known: HashMap<Vec<u8>, Known>,
    /// How often slots had changed hands when these replies were read.
    moves: u64,
}

#[derive(Debug)]
struct Known {
    command: Vec<u8>,
    reply: Value,
    at: Instant,
}

impl SharedReplies {
    /// Takes a message of a server.
    fn push(&self, push: PushInfo) {
        let mut replies = self.replies.lock();
        match push.kind {
            PushKind::Invalidate => match push.data.into_iter().next() {
                // A server tells of each key once, until it is read again.
                Some(Value::Array(keys)) => {
                    for key in keys.into_iter().filter_map(|key| reply::bytes(key).ok()) {
                        replies.asked.remove(&key);
                        replies.known.remove(&key);
                    }
                }
                // The server has forgotten which keys it has to tell of.
                _ => *replies = Replies::default(),
            },
            PushKind::Disconnection => *replies = Replies::default(),
            _ => return,
        }
        self.forgotten.notify_one();
    }
}

impl Pushes {
    /// The function that a connection calls for each message of its server.
    fn sender(&self) -> impl Fn(PushInfo) -> Result<(), SendError> + Send + Sync + 'static {
        let shared = self.shared.clone();
        move |push| {
            shared.push(push);
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
                let telling = config.clone().set_push_sender(self.sender());
                let mut connection = node.connect(&telling, true).await?;
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

    /// Forgets all replies: a connection is closed, and no server tells of its keys any more.
    pub(super) fn forget(&self) {
        *self.shared.replies.lock() = Replies::default();
        self.shared.forgotten.notify_one();
    }

    /// Forgets all replies if slots have changed hands since they were read. A slot moves key by key, and no
    /// server tells of a key that does not exist.
    pub(super) fn count_moves(&self, moves: u64) {
        let mut replies = self.shared.replies.lock();
        if replies.moves != moves {
            *replies = Replies { moves, ..Replies::default() };
        }
    }

    /// Waits until replies were forgotten, at most for the time `rest`.
    pub(super) async fn forgotten(&self, rest: Duration) {
        let _ = tokio::time::timeout(rest, self.shared.forgotten.notified()).await;
    }

    /// Whether a server does not tell of changes, so that nothing is remembered.
    pub(super) fn are_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// The reply to a command about this key, if it still holds. None: the caller sends the command now.
    pub(super) fn known(&self, key: &[u8], command: &Cmd) -> Option<Value> {
        let mut replies = self.shared.replies.lock();
        if let Some(known) = replies.known.get(key)
            && known.at.elapsed() < HOLDS
            && known.command == command.get_packed_command()
        {
            return Some(known.reply.clone());
        }
        replies.known.remove(key);
        replies.asked.insert(key.to_owned());
        None
    }

    /// Remembers a reply, unless the key has changed since [`Pushes::known`] returned none for it.
    pub(super) fn learn(&self, key: &[u8], command: &Cmd, reply: &Value) {
        let mut replies = self.shared.replies.lock();
        if replies.asked.remove(key) && !self.are_refused() {
            if replies.known.len() >= MOST {
                replies.known.clear();
            }
            let (command, reply, at) = (command.get_packed_command(), reply.clone(), Instant::now());
            replies.known.insert(key.to_owned(), Known { command, reply, at });
        }
    }
}

/// Whether a server does not have this protocol or command, or the user has no right to it. An error that may
/// pass, such as too many clients, is no refusal.
fn is_refusal(error: &redis::RedisError) -> bool {
    let is_unknown = || error.detail().is_some_and(|why| why.to_lowercase().contains("unknown"));
    match error.code() {
        Some("NOPERM" | "NOPROTO") => true,
        Some("ERR") => is_unknown(),
        _ => error.kind() == ErrorKind::RESP3NotSupported,
    }
}
