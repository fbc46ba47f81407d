//! Asks about many keys in a cluster, and waits for new entries of many streams there, because no command
//! takes keys of several slots.
//!
//! In: commands that read one key each; the positions of streams. Out: their replies; the streams that have
//! an entry after their position. Each server remembers which keys were read on a connection, and tells once,
//! unasked, when one of them changes (CLIENT TRACKING). So there is one connection to each server, for any
//! number of slots, and a key that has not changed is not read again. If a server does not do this, all
//! streams are read every [`POLL`].
//!
//!     XREAD finds nothing ─▶ the reply holds ─▶ the server tells that the key has changed ─▶ XREAD again
//!
//! A key whose slot moves to another server counts as changed, and is read there.

use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::Instant;

use super::error::{QueueError, QueueResult};
use super::link::Link;
use super::pushes::Pushes;
use super::reply::{self, Shaped, UnexpectedShape};

/// A stream, and the entry that precedes its new ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StreamPosition {
    pub stream: String,
    pub after: String,
}

/// The end of a wait for streams.
#[derive(Debug, Default)]
pub(crate) struct Waited {
    /// The streams that have an entry after their position, with the id of that entry.
    pub ready: Vec<StreamPosition>,
    /// The streams whose node of a cluster does not answer. Empty if no node answers: that is an error.
    pub unreachable: Vec<String>,
}

/// How often all streams are read if a server does not tell of changes.
const POLL: Duration = Duration::from_millis(250);

/// Does what [`wait_for_any`](super::wait::wait_for_any) says, on a link for waiting.
pub(super) async fn wait(
    link: &Link,
    pushes: &Pushes,
    positions: &[StreamPosition],
    block: Duration,
) -> QueueResult<Waited> {
    let until = Instant::now() + block;
    loop {
        let waited = read(link, positions).await?;
        let left = until.saturating_duration_since(Instant::now());
        if !waited.ready.is_empty() || !waited.unreachable.is_empty() {
            return Ok(waited);
        }
        if left.is_zero() {
            // A connection that was lost without a notice would stay silent. If so, the ping drops it, and
            // the next wait reads its streams again and finds which nodes cannot be reached.
            let nodes = link.at_each_node().await?;
            futures_util::future::join_all(nodes.iter().map(|node| node.ping_for(WAIT))).await;
            return Ok(waited);
        }
        pushes.forgotten(if pushes.are_refused() { left.min(POLL) } else { left }).await;
    }
}

/// The purpose of the calls of [`wait`], for errors.
const WAIT: &str = "wait for new tasks";

/// Finds the streams that have an entry after their position now. An error means that no node answers, or
/// that a node refuses to.
async fn read(link: &Link, positions: &[StreamPosition]) -> QueueResult<Waited> {
    let command = |position: &StreamPosition| {
        let StreamPosition { stream, after } = position;
        let read = redis::cmd("XREAD").arg("COUNT").arg(1).arg("STREAMS").arg(stream).arg(after).to_owned();
        (stream.clone(), read)
    };
    let asked: Vec<_> = positions.iter().map(command).collect();
    let (mut waited, mut lost) = (Waited::default(), None);
    for (position, found) in positions.iter().zip(ask(link, WAIT, &asked).await?) {
        match found {
            Err(error) if error.may_pass() => {
                lost = Some(error);
                waited.unreachable.push(position.stream.clone());
            }
            found => {
                let first = link.shaped(WAIT, first_entry(found?))?;
                let ready = first.map(|after| StreamPosition { stream: position.stream.clone(), after });
                waited.ready.extend(ready);
            }
        }
    }
    match lost {
        Some(error) if waited.unreachable.len() == positions.len() => Err(error),
        _ => Ok(waited),
    }
}

/// Sends commands that read one key each, except those whose earlier replies still hold. Each item is a key
/// and its command.
pub(super) async fn ask(
    link: &Link,
    what: &'static str,
    asked: &[(String, Cmd)],
) -> QueueResult<Vec<QueueResult<Value>>> {
    let Some(pushes) = link.pushes() else {
        let commands: Vec<Cmd> = asked.iter().map(|(_, command)| command.clone()).collect();
        return link.pipeline(what, &commands).await;
    };
    pushes.count_moves(link.redis.nodes.moves());
    let known: Vec<Option<Value>> =
        asked.iter().map(|(key, command)| pushes.known(key.as_bytes(), command)).collect();
    let unknown = || asked.iter().zip(&known).filter(|(_, known)| known.is_none()).map(|(asked, _)| asked);
    let commands: Vec<Cmd> = unknown().map(|(_, command)| command.clone()).collect();
    // Remembered replies of other nodes hold although no node answers now.
    let mut replies = match link.pipeline(what, &commands).await {
        Err(error) if error.is_connection() => commands.iter().map(|_| Err(error.clone())).collect(),
        replies => replies?,
    };
    pushes.count_moves(link.redis.nodes.moves());
    for ((key, command), reply) in unknown().zip(&replies) {
        if let Ok(reply) = reply {
            pushes.learn(key.as_bytes(), command, reply);
        }
    }
    let mut replies = replies.drain(..);
    let lost = || Err(QueueError::unexpected(what, link.address()));
    Ok(known.into_iter().map(|known| known.map_or_else(|| replies.next().unwrap_or_else(lost), Ok)).collect())
}

/// The id of the first entry in a reply of XREAD for one stream. Its form depends on the protocol.
fn first_entry(found: Value) -> Shaped<Option<String>> {
    let entries = match found {
        Value::Nil => return Ok(None),
        Value::Map(streams) => streams.into_iter().next().ok_or(UnexpectedShape)?.1,
        streams => {
            let [_, entries] = reply::tuple(reply::array(streams)?.pop().ok_or(UnexpectedShape)?)?;
            entries
        }
    };
    let [id, _] = reply::tuple(reply::array(entries)?.pop().ok_or(UnexpectedShape)?)?;
    reply::text(id).map(Some)
}
