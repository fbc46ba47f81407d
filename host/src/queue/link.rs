//! Calls to Redis, over a [`Link`]: commands, pipelines, and the way to the right server.
//!
//! In: commands, pipelines and calls of scripts. Out: replies, or a [`QueueError`] that distinguishes a lost
//! connection from a refusal by Redis.
//!
//! A call goes to the server that has its first key; a call without a key goes to the home of the link. A
//! node of a cluster that refuses a call because it does not have the slot did nothing, so the call is sent
//! on.
//!
//! Not here: repeating a call that may have been carried out. Only the caller knows whether that is safe.
//! The connections (`connections`). Which servers there are (`nodes`). Calls of scripts (`library`).

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisError, Value};
use tokio::time::Instant;

use super::connect::CONNECT_TIMEOUT;
use super::connections::Connections;
use super::error::{QueueError, QueueResult, timed_out};
use super::node::{Node, Recovery};
use super::nodes::{Destination, Redirect};
use super::pushes::Pushes;
use super::reply::{self, Shaped, UnexpectedShape};
use super::servers::Redis;

/// How long a reply may take, beyond the time for which a call blocks. A stall of five seconds is survived.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// A node of a cluster that takes longer than this for a reply may have been replaced by now.
const SLOW: Duration = Duration::from_millis(1500);
/// A call is sent on to another node of a cluster this often, however long that takes.
const MOST_REDIRECTS: usize = 5;
/// After that, a call is sent on, or waits for its slot to move, until this time has passed since it began.
const MOVE_TIMEOUT: Duration = Duration::from_secs(2);
/// The time between two tries of a call whose slot moves.
const MOVE_POLL: Duration = Duration::from_millis(50);
/// The longest time that a prompt call waits for a connection.
const PROMPT: Duration = Duration::from_secs(1);
/// How long one server may take where calls to several servers wait for each other.
const NODE_TIMEOUT: Duration = Duration::from_secs(3);
/// The most commands of one pipeline.
const MAX_PIPELINE: usize = 1000;

impl Redis {
    /// A link for ordinary calls, which may be shared.
    pub fn link(&self) -> Link {
        self.link_blocking_for(Duration::ZERO)
    }

    /// A link for calls that block for at most `block`. It must not be shared: other calls would wait.
    pub fn link_blocking_for(&self, block: Duration) -> Link {
        self.link_with(block, None)
    }

    /// A link to wait for new entries of many streams ([`wait_for_any`](super::wait::wait_for_any)).
    pub(crate) fn link_for_waiting(&self, block: Duration) -> Link {
        self.link_with(block, self.is_cluster().then(Pushes::default))
    }

    fn link_with(&self, block: Duration, pushes: Option<Pushes>) -> Link {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(block + RESPONSE_TIMEOUT));
        let connections = Arc::new(Connections::new(self, config, pushes));
        Link { redis: self.clone(), block, home: Destination::Any, is_prompt: false, connections }
    }
}

/// Calls to Redis. Clones share the connections.
#[derive(Debug, Clone)]
pub struct Link {
    pub(super) redis: Redis,
    /// The longest time for which its calls block.
    block: Duration,
    /// Where calls without a key go.
    home: Destination,
    /// A call goes to one server only, at once or not at all.
    is_prompt: bool,
    connections: Arc<Connections>,
}

/// A reply, and where it is from.
pub(super) struct Reply {
    pub(super) reply: QueueResult<Value>,
    /// The server that gave the reply. None: no server could be asked.
    pub(super) by: Option<Arc<Node>>,
    /// How often that server had loaded the library before the call.
    pub(super) loads: u64,
}

impl Link {
    /// A link whose home is the server that has this key.
    pub(crate) fn at_key(&self, key: &str) -> Link {
        Link { home: self.redis.nodes.destination_of_key(key.as_bytes()), ..self.clone() }
    }

    /// A link whose home is this server.
    pub(super) fn at_node(&self, node: Arc<Node>) -> Link {
        Link { home: Destination::Node(node), ..self.clone() }
    }

    /// A link for calls that do harm when they come late. A call fails if it has to wait for a connection for
    /// longer than [`PROMPT`], or if it would be sent on.
    pub(super) fn prompt(&self) -> Link {
        Link { is_prompt: true, ..self.clone() }
    }

    /// A link for each server, whose home is that server.
    pub(crate) async fn at_each_node(&self) -> QueueResult<Vec<Link>> {
        let nodes = self.redis.nodes.all().await.map_err(|error| self.failed("find the nodes", error))?;
        Ok(nodes.into_iter().map(|node| self.at_node(node)).collect())
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.redis.nodes.is_cluster()
    }

    /// Groups keys: one call may name all keys of a group.
    pub(super) fn together<'k>(&self, keys: &'k [String]) -> Vec<Vec<&'k str>> {
        let mut parts: Vec<(Option<u16>, Vec<&str>)> = Vec::new();
        for key in keys {
            let slot = self.redis.nodes.destination_of_key(key.as_bytes()).slot();
            match parts.iter_mut().find(|(known, _)| *known == slot) {
                Some((_, part)) => part.push(key),
                None => parts.push((slot, vec![key])),
            }
        }
        parts.into_iter().map(|(_, part)| part).collect()
    }

    pub(super) fn pushes(&self) -> Option<&Pushes> {
        self.connections.pushes.as_ref()
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

    /// The address of the server that is this link's home, as far as is known. Also the time since which this
    /// server has been in charge, or has answered again. Before that it may have been a replica.
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

    /// Turns a reply of an unexpected shape into an error of the call `what`.
    pub(crate) fn shaped<T>(&self, what: &'static str, shaped: Shaped<T>) -> QueueResult<T> {
        shaped.map_err(|UnexpectedShape| QueueError::unexpected(what, self.address()))
    }

    fn failed(&self, what: &'static str, error: RedisError) -> QueueError {
        QueueError::new(what, self.address(), error)
    }

    /// Asks whether Redis answers. A Redis that cannot save refuses even a PING (MISCONF). That counts as an
    /// answer, because it still answers reads.
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
        self.read("ask for the time", &redis::cmd("TIME"), reply::time_ms).await
    }

    /// Sends one command.
    pub async fn command(&self, what: &'static str, command: &Cmd) -> QueueResult<Value> {
        self.routed(what, command).await.reply
    }

    /// Sends one command, and reads its reply. An unexpected shape of the reply is an error.
    pub(crate) async fn read<T>(
        &self,
        what: &'static str,
        command: &Cmd,
        read: impl FnOnce(Value) -> Shaped<T>,
    ) -> QueueResult<T> {
        let reply = self.command(what, command).await?;
        self.shaped(what, read(reply))
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
                // Another server took the place of this one while the call waited for a connection.
                Err(_) if !was_sent && node.is_replaced() => {
                    let other = Box::pin(self.redis.nodes.of(&to)).await.ok();
                    other.filter(|other| other.address != node.address).map(Redirect::To)
                }
                Err(error) => self.redis.nodes.redirect(error.source(), &node),
                Ok(_) => None,
            };
            let gives_up = self.is_prompt || (redirects >= MOST_REDIRECTS && began.elapsed() >= MOVE_TIMEOUT);
            match redirect.filter(|_| !gives_up) {
                None => return Reply { reply, by: Some(node), loads },
                Some(Redirect::To(other)) => sent_on = Some((other, false)),
                Some(Redirect::Asking(other)) => sent_on = Some((other, true)),
                Some(Redirect::Later) => redirects = redirects.max(MOST_REDIRECTS),
            }
            // The slot moves, or the nodes do not agree yet.
            if redirects > 1 {
                tokio::time::sleep(MOVE_POLL).await;
            }
            redirects += 1;
        }
    }

    /// Sends one command to this server.
    pub(super) async fn send(
        &self,
        node: &Arc<Node>,
        what: &'static str,
        command: &Cmd,
    ) -> QueueResult<Value> {
        self.try_send(node, what, command, false).await.0
    }

    /// Sends one command to this server. Returns also whether the command may have been sent. `is_asking`:
    /// the server takes over the slot of the command's key, and has the key already.
    async fn try_send(
        &self,
        node: &Arc<Node>,
        what: &'static str,
        command: &Cmd,
        is_asking: bool,
    ) -> (QueueResult<Value>, bool) {
        if is_asking {
            // This is rare, and its future is large.
            return (Box::pin(self.ask(node, what, command)).await, true);
        }
        let mut epoch = None;
        let reply = {
            let call = pin!(async {
                let began = self.is_prompt.then(Instant::now);
                let (mut connection, opened) = self.connections.to(node).await?;
                epoch = Some(opened);
                if began.is_some_and(|began| began.elapsed() > PROMPT) {
                    return Err(timed_out());
                }
                connection.calls.send_packed_command(command).await.and_then(Value::extract_error)
            });
            self.watched(node, call).await
        };
        (self.connections.check(what, node, epoch, reply).await, epoch.is_some())
    }

    /// Sends a command to the server that takes its slot, and has its key already.
    async fn ask(&self, node: &Arc<Node>, what: &'static str, command: &Cmd) -> QueueResult<Value> {
        let both = [redis::cmd("ASKING"), command.clone()];
        let replies = self.send_all(node, what, &both).await?;
        let [asking, reply] = replies.try_into().map_err(|_| QueueError::unexpected(what, &node.address))?;
        asking.and(reply)
    }

    /// Gives a call up when another server takes the place of this one. If the call takes long, asks the
    /// other nodes whether that has happened.
    async fn watched<T>(
        &self,
        node: &Arc<Node>,
        call: Pin<&mut impl Future<Output = Result<T, RedisError>>>,
    ) -> Result<T, RedisError> {
        if !self.is_cluster() {
            return node.while_in_charge(call).await;
        }
        let mut call = pin!(node.while_in_charge(call));
        if self.pushes().is_some() {
            let in_time = tokio::time::timeout(NODE_TIMEOUT, call).await;
            return in_time.unwrap_or_else(|_| Err(timed_out()));
        }
        match tokio::time::timeout(self.block + SLOW, &mut call).await {
            Ok(reply) => reply,
            Err(_) => {
                self.redis.nodes.suspect(node);
                call.await
            }
        }
    }

    /// Sends commands in one go. Returns one reply for each. The outer error means that the connection
    /// failed: Redis may have carried out any of them. If they went to several servers, and one of these
    /// failed, each command to that server has the error instead.
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

    /// Sends commands to one server in one go, with errors as [`Link::pipeline`] has them.
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
            let mut epoch = None;
            let reply = {
                let call = pin!(async {
                    let (mut connection, opened) = self.connections.to(node).await?;
                    epoch = Some(opened);
                    connection.calls.send_packed_commands(&pipeline, 0, chunk.len()).await
                });
                self.watched(node, call).await
            };
            for value in self.connections.check(what, node, epoch, reply).await? {
                replies.push(self.connections.check(what, node, epoch, value.extract_error()).await);
            }
        }
        Ok(replies)
    }
}
