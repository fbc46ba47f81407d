//! Connections to Redis: a [`Link`] is one connection to each server that reconnects.
//!
//! In: commands, pipelines and calls of scripts. Out: replies, or a [`QueueError`] that distinguishes a lost
//! connection from a refusal by Redis. A connection that failed in any way is dropped. That includes a
//! timeout, because a half-open connection never answers. The next call connects again, after a growing,
//! jittered delay while Redis is unreachable.
//!
//! A call goes to the server that has its first key; a call without a key to the home of the link. A node
//! of a cluster that refuses a call because it does not have the slot did nothing, so the call is sent on.
//!
//! The `ConnectionManager` of the crate redis does not do this: it keeps a connection after a timeout, and
//! one to a server that became a replica. Its client of clusters repeats calls that may have been carried
//! out.
//!
//! Not here: repeating a call that may have been carried out. Only the caller knows whether that is safe.
//! Which servers there are (`nodes`). Calls of scripts (`library`).

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::connect::{CONNECT_TIMEOUT, OpenConnection};
use super::error::{QueueError, QueueResult, timed_out};
use super::node::{Node, Recovery};
use super::nodes::{Destination, Redirect};
use super::pushes::Pushes;
use super::reply::{self, UnexpectedShape};
use super::servers::Redis;
use crate::guarded::Guarded;

/// How long a reply may take, beyond the time for which a call blocks. A stall of five seconds is survived.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The first and the longest delay between connection attempts.
const RECONNECT_DELAY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// A node of a cluster that takes longer than this may have been replaced by now.
const LONG: Duration = Duration::from_millis(1500);
/// How often a call is sent on to another node of a cluster, however long that takes.
const MOST_REDIRECTS: usize = 5;
/// For how long else a call is sent on, or waits for its slot to move, and how often it asks.
const MOVE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(50));
/// The longest time that a prompt call waits for a connection.
const PROMPT: Duration = Duration::from_secs(1);
/// How long one server may take where calls to several ones wait for each other.
const PART: Duration = Duration::from_secs(3);
/// Commands of one pipeline.
const MAX_PIPELINE: usize = 1000;

impl Redis {
    /// A connection for ordinary calls, which may be shared.
    pub fn link(&self) -> Link {
        self.link_blocking_for(Duration::ZERO)
    }

    /// A connection for calls that block for at most `block`. It must not be shared: other calls would wait.
    pub fn link_blocking_for(&self, block: Duration) -> Link {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(block + RESPONSE_TIMEOUT));
        Link {
            redis: self.clone(),
            config,
            block,
            home: Destination::Any,
            is_prompt: false,
            pushes: None,
            connections: Arc::default(),
        }
    }

    /// A connection to wait for new entries of many streams ([`wait_for_any`](super::wait::wait_for_any)).
    pub(crate) fn link_for_waiting(&self, block: Duration) -> Link {
        let link = self.link_blocking_for(block);
        if !self.nodes.is_cluster() {
            return link;
        }
        Link { pushes: Some(Arc::default()), ..link }
    }
}

/// Calls to Redis, over one connection to each server that reconnects. Clones share the connections.
#[derive(Debug, Clone)]
pub struct Link {
    pub(super) redis: Redis,
    config: AsyncConnectionConfig,
    /// The longest time for which its calls block.
    block: Duration,
    /// Where calls without a key go.
    home: Destination,
    /// A call goes to one server only, at once or not at all.
    is_prompt: bool,
    /// Servers say by themselves on these connections which keys have changed.
    pushes: Option<Arc<Pushes>>,
    connections: Arc<Guarded<Connections>>,
}

type Connection = Arc<Mutex<ConnectionState>>;
type Connections = Vec<(Arc<Node>, Connection)>;

/// A reply, and where it is from.
pub(super) struct Reply {
    pub(super) reply: QueueResult<Value>,
    /// The server that gave it; none: none could be asked.
    pub(super) by: Option<Arc<Node>>,
    /// How often that server had loaded the library before the call.
    pub(super) loads: u64,
}

#[derive(Debug, Default)]
struct ConnectionState {
    connection: Option<OpenConnection>,
    /// Counts connections, so that a late error of an old one does not close a new one.
    epoch: u64,
    failures: usize,
    not_before: Option<Instant>,
    /// When the last try failed, and why.
    failed: Option<(Instant, RedisError)>,
}

impl Link {
    /// The same connections, for which the server that has this key is the home.
    pub(crate) fn at_key(&self, key: &str) -> Link {
        Link { home: self.redis.nodes.destination_of_key(key.as_bytes()), ..self.clone() }
    }

    /// The same connections, with a server as the home.
    pub(super) fn at_node(&self, node: Arc<Node>) -> Link {
        Link { home: Destination::Node(node), ..self.clone() }
    }

    /// The same connections, for calls that are wrong when they come late: one fails that has to wait for a
    /// connection for longer than [`PROMPT`], or that would be sent on.
    pub(super) fn prompt(&self) -> Link {
        Link { is_prompt: true, ..self.clone() }
    }

    /// The same connections, once for each server as the home.
    pub(crate) async fn at_each_node(&self) -> QueueResult<Vec<Link>> {
        let nodes = self.redis.nodes.all().await.map_err(|error| self.failed("find the nodes", error))?;
        Ok(nodes.into_iter().map(|node| self.at_node(node)).collect())
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.redis.nodes.is_cluster()
    }

    /// Puts keys that one call may name together.
    pub(super) fn together<'k>(&self, keys: &'k [String]) -> Vec<Vec<&'k str>> {
        let mut parts: Vec<(Option<u16>, Vec<&str>)> = Vec::new();
        for key in keys {
            let slot = match self.redis.nodes.destination_of_key(key.as_bytes()) {
                Destination::Slot(slot) => Some(slot),
                _ => None,
            };
            match parts.iter_mut().find(|(known, _)| *known == slot) {
                Some((_, part)) => part.push(key),
                None => parts.push((slot, vec![key])),
            }
        }
        parts.into_iter().map(|(_, part)| part).collect()
    }

    /// How often slots of the cluster have changed hands.
    pub(super) fn moves(&self) -> u64 {
        self.redis.nodes.moves()
    }

    pub(super) fn pushes(&self) -> Option<&Pushes> {
        self.pushes.as_deref()
    }

    /// When the server of this link's home last answered again after a silence or refused a write, over any
    /// connection of this host, or took the place of another one.
    pub fn recovery(&self) -> Option<Recovery> {
        self.redis.nodes.known(&self.home)?.recovery()
    }

    /// The address of the node of a cluster that is this link's home, as far as is known.
    pub(super) fn node(&self) -> Option<String> {
        self.server().map(|(address, _)| address).filter(|_| self.is_cluster())
    }

    /// The address of the server that is this link's home, as far as is known, and since when it has been
    /// that, or answers again. It may have been another server's replica before.
    pub(super) fn server(&self) -> Option<(String, Option<Instant>)> {
        let node = self.redis.nodes.known(&self.home)?;
        Some((node.address.to_string(), node.recovery().map(|recovery| recovery.since)))
    }

    /// The address of this link's home, or of all servers, without a password.
    pub fn address(&self) -> &str {
        match &self.home {
            Destination::Node(node) => &node.address,
            _ => self.redis.address(),
        }
    }

    fn failed(&self, what: &'static str, error: RedisError) -> QueueError {
        QueueError::new(what, self.address(), error)
    }

    /// Asks whether Redis answers. It refuses even a PING while it cannot save (MISCONF), and answers reads.
    pub async fn ping(&self) -> QueueResult {
        self.ping_for("ping").await
    }

    /// Like [`Link::ping`]. An error says `what` it was for.
    pub(super) async fn ping_for(&self, what: &'static str) -> QueueResult {
        match self.command(what, &redis::cmd("PING")).await {
            Err(error) if error.cannot_save() => Ok(()),
            reply => reply.map(drop),
        }
    }

    /// Redis's clock, in milliseconds since the Unix epoch.
    pub(crate) async fn now_ms(&self) -> QueueResult<u64> {
        const WHAT: &str = "ask for the time";
        let time = self.command(WHAT, &redis::cmd("TIME")).await?;
        reply::time_ms(time).map_err(|UnexpectedShape| QueueError::unexpected(WHAT, self.address()))
    }

    /// Sends one command.
    pub async fn command(&self, what: &'static str, command: &Cmd) -> QueueResult<Value> {
        self.routed(what, command).await.reply
    }

    /// Sends one command to the server that has its key, and on to another one if that refuses it because
    /// the key is not there.
    pub(super) async fn routed(&self, what: &'static str, command: &Cmd) -> Reply {
        let to = self.redis.nodes.destination_of(command).unwrap_or_else(|| self.home.clone());
        let began = Instant::now();
        let (mut redirects, mut sent_on) = (0, None);
        loop {
            let (node, is_asking) = match sent_on.take() {
                Some(to) => to,
                None => match self.redis.nodes.of(&to).await {
                    Ok(node) => (node, false),
                    Err(error) => {
                        return Reply { reply: Err(self.failed(what, error)), by: None, loads: 0 };
                    }
                },
            };
            let loads = node.loads.load(Ordering::Acquire);
            let (reply, was_sent) = self.try_send(&node, what, command, is_asking).await;
            let redirect = match &reply {
                // Another server took its place while the call waited for a connection.
                Err(_) if !was_sent && node.is_replaced() => {
                    let other = Box::pin(self.redis.nodes.of(&to)).await.ok();
                    other.filter(|other| other.address != node.address).map(Redirect::To)
                }
                Err(error) => self.redis.nodes.redirect(error.source(), &node),
                Ok(_) => None,
            };
            match redirect {
                None => return Reply { reply, by: Some(node), loads },
                Some(_) if self.is_prompt || redirects >= MOST_REDIRECTS && began.elapsed() >= MOVE.0 => {
                    return Reply { reply, by: Some(node), loads };
                }
                Some(Redirect::To(other)) => sent_on = Some((other, false)),
                Some(Redirect::Asking(other)) => sent_on = Some((other, true)),
                Some(Redirect::Later) => redirects = redirects.max(MOST_REDIRECTS),
            }
            // The slot moves, or the nodes do not agree yet.
            if redirects > 1 {
                tokio::time::sleep(MOVE.1).await;
            }
            redirects += 1;
        }
    }

    /// Sends one command to a server. `is_asking`: the server takes the slot of its key, and has the key.
    pub(super) async fn send(
        &self,
        node: &Arc<Node>,
        what: &'static str,
        command: &Cmd,
        is_asking: bool,
    ) -> QueueResult<Value> {
        self.try_send(node, what, command, is_asking).await.0
    }

    /// Like [`Link::send`]. Returns also whether the command may have been sent.
    async fn try_send(
        &self,
        node: &Arc<Node>,
        what: &'static str,
        command: &Cmd,
        is_asking: bool,
    ) -> (QueueResult<Value>, bool) {
        if is_asking {
            // Seldom, and its future is large.
            return (Box::pin(self.ask(node, what, command)).await, true);
        }
        let mut epoch = 0;
        let reply = {
            let call = pin!(async {
                let began = self.is_prompt.then(Instant::now);
                let (mut connection, opened) = self.connection(node).await?;
                epoch = opened;
                if began.is_some_and(|began| began.elapsed() > PROMPT) {
                    return Err(timed_out());
                }
                connection.calls.send_packed_command(command).await.and_then(Value::extract_error)
            });
            self.watched(node, call).await
        };
        // The first connection has the epoch 1.
        (self.check(what, node, epoch, reply).await, epoch > 0)
    }

    /// Sends a command to the server that takes its slot, and has its key already.
    async fn ask(&self, node: &Arc<Node>, what: &'static str, command: &Cmd) -> QueueResult<Value> {
        let both = [redis::cmd("ASKING"), command.clone()];
        let replies = self.send_all(node, what, &both).await?;
        let [asking, reply] = replies.try_into().map_err(|_| QueueError::unexpected(what, &node.address))?;
        asking.and(reply)
    }

    /// Gives a call up when another server takes the place of this one, and asks for that when it takes long.
    async fn watched<T>(
        &self,
        node: &Arc<Node>,
        call: Pin<&mut impl Future<Output = Result<T, RedisError>>>,
    ) -> Result<T, RedisError> {
        if !self.is_cluster() {
            return node.while_in_charge(call).await;
        }
        let mut call = pin!(node.while_in_charge(call));
        if self.pushes.is_some() {
            let in_time = tokio::time::timeout(PART, call).await;
            return in_time.unwrap_or_else(|_| Err(timed_out()));
        }
        match tokio::time::timeout(self.block + LONG, &mut call).await {
            Ok(reply) => reply,
            Err(_) => {
                self.redis.nodes.suspect(node);
                call.await
            }
        }
    }

    /// Sends commands in one go and gives each its own reply. The outer error means that the connection
    /// failed: Redis may have carried out any of them. If they went to several servers, only those to the
    /// server that failed have that error, each by itself.
    pub async fn pipeline(
        &self,
        what: &'static str,
        commands: &[Cmd],
    ) -> QueueResult<Vec<QueueResult<Value>>> {
        if self.redis.nodes.is_cluster() {
            return Box::pin(self.pipeline_of_nodes(what, commands)).await;
        }
        let node = self.redis.nodes.of(&self.home).await.map_err(|error| self.failed(what, error))?;
        self.send_all(&node, what, commands).await
    }

    /// A command without a key goes where the next one with a key goes.
    async fn pipeline_of_nodes(
        &self,
        what: &'static str,
        commands: &[Cmd],
    ) -> QueueResult<Vec<QueueResult<Value>>> {
        let mut parts: Vec<(Arc<Node>, Vec<usize>)> = Vec::new();
        let mut replies: Vec<Option<QueueResult<Value>>> = commands.iter().map(|_| None).collect();
        let mut to = self.home.clone();
        for (index, command) in commands.iter().enumerate().rev() {
            to = self.redis.nodes.destination_of(command).unwrap_or(to);
            match self.redis.nodes.of(&to).await {
                Ok(node) => match parts.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &node)) {
                    Some((_, indexes)) => indexes.push(index),
                    None => parts.push((node, vec![index])),
                },
                Err(error) => replies[index] = Some(Err(self.failed(what, error))),
            }
        }
        let is_one = parts.len() == 1 && replies.iter().all(Option::is_none);
        let asked = parts.into_iter().map(|(node, mut indexes)| async move {
            indexes.reverse();
            let part: Vec<Cmd> = indexes.iter().map(|index| commands[*index].clone()).collect();
            (self.send_all(&node, what, &part).await, node, indexes)
        });
        for (found, node, indexes) in futures_util::future::join_all(asked).await {
            match found {
                Err(error) if is_one => return Err(error),
                Err(error) => indexes.iter().for_each(|index| replies[*index] = Some(Err(error.clone()))),
                Ok(found) => {
                    for (index, reply) in indexes.into_iter().zip(found) {
                        let is_elsewhere =
                            |error: &QueueError| self.redis.nodes.redirect(error.source(), &node).is_some();
                        replies[index] = Some(match reply {
                            Err(error) if is_elsewhere(&error) => self.command(what, &commands[index]).await,
                            reply => reply,
                        });
                    }
                }
            }
        }
        let lost = || Err(QueueError::unexpected(what, self.address()));
        Ok(replies.into_iter().map(|reply| reply.unwrap_or_else(lost)).collect())
    }

    async fn send_all(
        &self,
        node: &Arc<Node>,
        what: &'static str,
        commands: &[Cmd],
    ) -> QueueResult<Vec<QueueResult<Value>>> {
        let mut replies = Vec::with_capacity(commands.len());
        for chunk in commands.chunks(MAX_PIPELINE) {
            let mut pipeline = Pipeline::with_capacity(chunk.len());
            pipeline.ignore_errors();
            for command in chunk {
                pipeline.add_command(command.clone());
            }
            let mut epoch = 0;
            let reply = {
                let call = pin!(async {
                    let (mut connection, opened) = self.connection(node).await?;
                    epoch = opened;
                    connection.calls.send_packed_commands(&pipeline, 0, chunk.len()).await
                });
                self.watched(node, call).await
            };
            for value in self.check(what, node, epoch, reply).await? {
                replies.push(self.check(what, node, epoch, value.extract_error()).await);
            }
        }
        Ok(replies)
    }

    /// The present connection to a server, or a new one. While it is unreachable, callers wait in line here,
    /// so that any number of loops makes no more connection attempts than the delays allow.
    async fn connection(&self, node: &Arc<Node>) -> Result<(OpenConnection, u64), RedisError> {
        let state = self.connection_to(node);
        let since = Instant::now();
        let mut state = state.lock().await;
        if let Some(connection) = &state.connection {
            return Ok((connection.clone(), state.epoch));
        }
        // Other nodes may answer, so nobody waits here for one try after the other.
        if let Some((_, error)) = state.failed.as_ref().filter(|(at, _)| self.is_cluster() && *at >= since) {
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
                *state = ConnectionState {
                    connection: Some(connection.clone()),
                    epoch: state.epoch + 1,
                    failures: 0,
                    not_before: None,
                    failed: None,
                };
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

    fn connection_to(&self, node: &Arc<Node>) -> Connection {
        let mut all = self.connections.lock();
        if let Some((_, connection)) = all.iter().find(|(known, _)| Arc::ptr_eq(known, node)) {
            return connection.clone();
        }
        let before = all.len();
        all.retain(|(known, _)| !known.is_replaced());
        if all.len() < before {
            self.forget();
        }
        let connection = Connection::default();
        all.push((node.clone(), connection.clone()));
        connection
    }

    /// Nothing that was read on a connection holds once it is closed.
    fn forget(&self) {
        if let Some(pushes) = &self.pushes {
            pushes.forget();
        }
    }

    /// Drops the connection if the error means that it is unusable.
    async fn check<T>(
        &self,
        what: &'static str,
        node: &Arc<Node>,
        epoch: u64,
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
                    let state = self.connection_to(node);
                    let mut state = state.lock().await;
                    if state.epoch == epoch && state.connection.take().is_some() {
                        state.not_before = Some(Instant::now() + reconnect_delay(0));
                        self.forget();
                    }
                }
                Err(error)
            }
        }
    }
}

/// A server that became a replica, or lost its primary, may have a successor at the same address.
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
    let (min, max) = RECONNECT_DELAY;
    let delays = ExponentialBuilder::default()
        .with_min_delay(min)
        .with_max_delay(max)
        .with_max_times(usize::MAX)
        .with_jitter();
    // With jitter a delay is up to twice as long, and never shorter.
    delays.build().nth(failures.min(16)).unwrap_or(max).min(max * 2)
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
