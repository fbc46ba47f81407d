//! Waits for new entries of many streams in a cluster, where no command waits for keys of several slots.
//!
//! In: the positions of streams. Out: those that have an entry after their position. Each server remembers
//! which streams were read on a connection, and says once by itself when one of them changes (CLIENT
//! TRACKING). So there is one connection to each server, for any number of slots, and streams that rest are
//! not read again. A server that does not do this is asked about all streams every [`POLL`].
//!
//!     a position ─▶ XREAD finds nothing: it rests ─▶ the server says that the key has changed ─▶ XREAD again
//!
//! A stream whose slot moves away has changed, too, and is read at its new place.

use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use super::error::QueueError;
use super::link::Link;
use super::pushes::{Pushes, StreamPosition};
use super::reply::{self, Shaped, UnexpectedShape};

/// How often all streams are read where no server tells of changes.
const POLL: Duration = Duration::from_millis(250);

/// As [`wait_for_any`](super::wait::wait_for_any), on a link for waiting.
pub(super) async fn wait(
    link: &Link,
    pushes: &Pushes,
    positions: &[StreamPosition],
    block: Duration,
) -> Result<Vec<StreamPosition>, QueueError> {
    let until = Instant::now() + block;
    loop {
        let ready = read(link, pushes, &pushes.to_read(positions)).await?;
        let left = until.saturating_duration_since(Instant::now());
        if !ready.is_empty() || left.is_zero() {
            return Ok(ready);
        }
        let rest = if pushes.are_refused() { left.min(POLL) } else { left };
        if !pushes.heard(rest).await && rest == left {
            // A connection that is lost without a word would be silent for ever.
            for node in link.at_each_node().await? {
                node.ping_for("wait for new tasks").await?;
            }
        }
    }
}

async fn read(
    link: &Link,
    pushes: &Pushes,
    positions: &[&StreamPosition],
) -> Result<Vec<StreamPosition>, QueueError> {
    const WHAT: &str = "wait for new tasks";
    let command = |position: &&StreamPosition| {
        let StreamPosition { stream, after } = position;
        redis::cmd("XREAD").arg("COUNT").arg(1).arg("STREAMS").arg(stream).arg(after).to_owned()
    };
    let commands: Vec<_> = positions.iter().map(command).collect();
    let mut ready = Vec::new();
    for (position, found) in positions.iter().zip(link.pipeline(WHAT, &commands).await?) {
        let newest =
            first_entry(found?).map_err(|UnexpectedShape| QueueError::unexpected(WHAT, link.address()))?;
        match newest {
            Some(after) => ready.push(StreamPosition { stream: position.stream.clone(), after }),
            None => pushes.rests(position),
        }
    }
    Ok(ready)
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
