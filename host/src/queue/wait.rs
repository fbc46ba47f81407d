//! Asks about many queues at once, one command for each question: is there a new entry, a pause, a delayed
//! task?
//!
//! So an idle host costs the same for any number of queues. On a cluster each key has a command of its own,
//! all in one go to each node. Claims nothing, and writes nothing except in [`request_look`].
//!
//! Not here: when to ask (`worker::waiter`, `worker::lookout`).

use std::iter;
use std::ops::Range;
use std::time::Duration;

use redis::Value;

use super::census::find_group;
use super::error::{QueueError, QueueResult};
use super::handle::{Queue, millis};
use super::hold::{self, HoldFound};
use super::keys;
use super::limits::{self, QueueLimits};
use super::link::Link;
use super::pause::QueuePause;
use super::reply::{self, Shaped, UnexpectedShape};
use super::tracking;
pub(crate) use super::tracking::{StreamPosition, Waited};
use crate::chain::chain;
use crate::clock::now_ms;

/// The entries that the stream of signals keeps. A host that missed more looks anyway.
const SIGNALS: usize = 100;

/// The position of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupPosition {
    /// Delivered and not settled.
    pub pending: u64,
    /// The last entry that was delivered. Entries after it are new.
    pub delivered: String,
}

impl Queue {
    /// The position of the queue's group; none where there is no group.
    pub async fn group_position(&self) -> QueueResult<Option<GroupPosition>> {
        const WHAT: &str = "look where the group stands";
        let reply = self.link.command(WHAT, redis::cmd("XINFO").arg("GROUPS").arg(&self.keys.stream)).await?;
        let found = self.shaped(WHAT, find_group(reply, &self.rules.group))?;
        Ok(found.map(|group| GroupPosition { pending: group.pending, delivered: group.last_delivered }))
    }

    /// The position from which to wait for new entries.
    pub fn after(&self, position: &GroupPosition) -> StreamPosition {
        StreamPosition { stream: self.keys.stream.clone(), after: position.delivered.clone() }
    }
}

/// Waits up to `block` until one of the streams has an entry after its position. Nothing else may use `link`.
pub(crate) async fn wait_for_any(
    link: &Link,
    positions: &[StreamPosition],
    block: Duration,
) -> QueueResult<Waited> {
    const WHAT: &str = "wait for new tasks";
    if let Some(pushes) = link.pushes() {
        return tracking::wait(link, pushes, positions, block).await;
    }
    // The reply contains the entries, which are not needed: no command waits without reading.
    let mut wait = redis::cmd("XREAD");
    wait.arg("COUNT").arg(1).arg("BLOCK").arg(millis(block).max(1)).arg("STREAMS");
    for position in positions {
        wait.arg(&position.stream);
    }
    for position in positions {
        wait.arg(&position.after);
    }
    let reply = link.command(WHAT, &wait).await?;
    let position = |item| {
        let [stream, entries] = reply::tuple(item)?;
        let [id, _] = reply::tuple(reply::array(entries)?.pop().ok_or(UnexpectedShape)?)?;
        Ok(StreamPosition { stream: reply::text(stream)?, after: reply::text(id)? })
    };
    let ready = reply::array(reply).and_then(|items| items.into_iter().map(position).collect());
    Ok(Waited { ready: shaped(link, WHAT, ready)?, away: Vec::new() })
}

/// The purpose of the calls of [`stops`], for errors.
const STOPS: &str = "look for pauses";

/// Why the hosts may not claim tasks of a queue, or not as many as its configuration allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stops {
    pub pause: Option<QueuePause>,
    pub held: HoldFound,
    pub limits: Option<QueueLimits>,
}

/// Finds the queues that are paused, held or limited. A queue whose keys Redis refuses has its own error, and
/// costs a few more commands; so has one whose node of a cluster does not answer.
pub(crate) async fn stops(link: &Link, queues: &[&Queue]) -> QueueResult<Vec<QueueResult<Stops>>> {
    if link.is_cluster() {
        return stops_in_cluster(link, queues).await;
    }
    let mut found = Vec::with_capacity(queues.len());
    let mut parts: Vec<Range<usize>> = iter::once(0..queues.len()).collect();
    while let Some(part) = parts.pop().filter(|part| !part.is_empty()) {
        match stops_of(link, &queues[part.clone()]).await {
            Ok(stops) => found.extend(stops.into_iter().map(Ok)),
            Err(error) if !error.is_denied_key() => return Err(error),
            Err(error) if part.len() == 1 => found.push(Err(error)),
            // The first half is next, so the order stays.
            Err(_) => {
                let middle = part.start.midpoint(part.end);
                parts.extend([middle..part.end, part.start..middle]);
            }
        }
    }
    Ok(found)
}

async fn stops_of(link: &Link, queues: &[&Queue]) -> QueueResult<Vec<Stops>> {
    let mut get = redis::cmd("MGET");
    get.arg(queues.iter().flat_map(|queue| queue.stop_keys()).collect::<Vec<_>>());
    let found = shaped(link, STOPS, reply::array(link.command(STOPS, &get).await?))?;
    let mut found = found.into_iter();
    let stops = queues.iter().map(|queue| queue.stops(&mut found, 0));
    stops.collect::<Option<_>>().ok_or_else(|| QueueError::unexpected(STOPS, link.address()))
}

async fn stops_in_cluster(link: &Link, queues: &[&Queue]) -> QueueResult<Vec<QueueResult<Stops>>> {
    let keys = queues.iter().flat_map(|queue| queue.stop_keys());
    let asked: Vec<_> = keys.map(|key| (key.clone(), redis::cmd("GET").arg(key).to_owned())).collect();
    let mut replies = tracking::ask(link, STOPS, &asked).await?.into_iter();
    let mut found = Vec::with_capacity(queues.len());
    for queue in queues {
        let own: Vec<_> = replies.by_ref().take(queue.stop_keys().count()).collect();
        found.push(match own.into_iter().collect::<Result<Vec<_>, _>>() {
            Ok(own) => queue.stops_unless_old(link, own).await,
            Err(error) => Err(error),
        });
    }
    Ok(found)
}

impl Queue {
    /// Reads replies that may be remembered. The server need not tell soon that a key has expired, so one
    /// that should have by this machine's clock is asked for anew.
    async fn stops_unless_old(&self, link: &Link, replies: Vec<Value>) -> QueueResult<Stops> {
        let unexpected = || QueueError::unexpected(STOPS, link.address());
        let all = self.stops(&mut replies.clone().into_iter(), 0).ok_or_else(unexpected)?;
        if self.stops(&mut replies.into_iter(), now_ms()).as_ref() == Some(&all) {
            return Ok(all);
        }
        let mut fresh = Vec::new();
        for key in self.stop_keys() {
            fresh.push(link.command(STOPS, redis::cmd("GET").arg(key)).await?);
        }
        self.stops(&mut fresh.into_iter(), 0).ok_or_else(unexpected)
    }

    /// The keys that tell whether the queue is paused, held or limited.
    pub(super) fn stop_keys(&self) -> impl Iterator<Item = &String> {
        let keys = &self.keys;
        [Some(&keys.paused), self.rules.hold.map(|_| &keys.hold), Some(&keys.limits)].into_iter().flatten()
    }

    /// Reads the values of these keys. `now_ms` is by this machine's clock, or Redis's: a reply that is
    /// remembered may be older than the end of a pause or of limits, and the server need not tell of it soon.
    pub(super) fn stops(&self, values: &mut impl Iterator<Item = Value>, now_ms: u64) -> Option<Stops> {
        let lasts = |until: Option<u64>| until.is_none_or(|until| until > now_ms);
        let pause = QueuePause::read(&values.next()?).filter(|pause| lasts(pause.until_ms));
        let held = match self.rules.hold {
            Some(rules) => hold::found(&values.next()?, &rules),
            None => HoldFound::default(),
        };
        let limits = limits::found(&values.next()?).filter(|limits| lasts(limits.until_ms));
        Some(Stops { pause, held, limits })
    }
}

/// Finds the queues that have delayed tasks which are due at some time, by their position in the list. It
/// takes one command if there are none, and a few more for each that has some, or whose key Redis refuses.
pub(crate) async fn with_delayed(link: &Link, queues: &[&Queue]) -> QueueResult<Vec<usize>> {
    const WHAT: &str = "look for delayed tasks";
    let mut found = Vec::new();
    if link.is_cluster() {
        found = filled(link, WHAT, "EXISTS", queues.iter().map(|queue| &queue.keys.delayed)).await?;
    }
    let rest = if link.is_cluster() { 0 } else { queues.len() };
    let mut parts: Vec<Range<usize>> = iter::once(0..rest).collect();
    while let Some(part) = parts.pop().filter(|part| !part.is_empty()) {
        let mut exist = redis::cmd("EXISTS");
        for queue in &queues[part.clone()] {
            exist.arg(&queue.keys.delayed);
        }
        let count = match link.command(WHAT, &exist).await {
            Ok(count) => shaped(link, WHAT, reply::count(&count))?,
            // One of them is refused, or some.
            Err(error) if error.is_denied_key() && part.len() > 1 => 1,
            // Its promoter says what is wrong.
            Err(error) if error.is_denied_key() => 0,
            Err(error) => return Err(error),
        };
        if count == part.len() as u64 {
            found.extend(part);
        } else if count > 0 {
            let middle = part.start.midpoint(part.end);
            parts.extend([part.start..middle, middle..part.end]);
        }
    }
    let mut due = Vec::new();
    for place in found {
        // Nobody has to look for tasks that are held: the end of another task calls them up.
        let has_due = match queues[place].ask_not_held() {
            None => true,
            Some(ask) => match link.command(WHAT, &ask).await {
                Ok(count) => shaped(link, WHAT, reply::count(&count))? > 0,
                Err(error) if error.is_connection() && !link.is_cluster() => return Err(error),
                // The promoter says what is wrong.
                Err(_) => true,
            },
        };
        if has_due {
            due.push(place);
        }
    }
    Ok(due)
}

/// Finds the queues that have left tasks for queues in other slots of a cluster, by their position in the
/// list.
pub(crate) async fn with_relayed(link: &Link, queues: &[&Queue]) -> QueueResult<Vec<usize>> {
    // A stream stays when its last entry goes.
    let keys = queues.iter().map(|queue| &queue.keys.out);
    filled(link, "look for tasks that go to other queues", "XLEN", keys).await
}

/// The keys of a cluster of which this command counts something, by their position.
async fn filled<'k>(
    link: &Link,
    what: &'static str,
    count: &str,
    keys: impl Iterator<Item = &'k String>,
) -> QueueResult<Vec<usize>> {
    let asked: Vec<_> = keys.map(|key| (key.clone(), redis::cmd(count).arg(key).to_owned())).collect();
    let replies = tracking::ask(link, what, &asked).await?;
    // The loop of a queue says what is wrong with it.
    let exists = |reply: &QueueResult<Value>| !matches!(reply, Ok(Value::Int(0)) | Err(_));
    Ok(replies.iter().enumerate().filter(|(_, reply)| exists(reply)).map(|(place, _)| place).collect())
}

/// Signals all hosts to look now instead of a moment later: at pauses, delayed tasks, duties without a host.
pub(crate) async fn request_look(link: &Link) {
    let mut add = redis::cmd("XADD");
    add.arg(keys::LOOK_REQUESTED).arg("MAXLEN").arg("~").arg(SIGNALS).arg("*").arg("look").arg(1);
    if let Err(error) = link.write("tell the hosts", &add).await {
        tracing::debug!(
            error = chain(&error),
            "could not tell the hosts to look; they will find out by themselves"
        );
    }
}

/// The position from which to wait for signals.
pub(crate) async fn signals(link: &Link) -> QueueResult<StreamPosition> {
    const WHAT: &str = "look what hosts were told";
    let reply = link
        .command(
            WHAT,
            redis::cmd("XREVRANGE").arg(keys::LOOK_REQUESTED).arg("+").arg("-").arg("COUNT").arg(1),
        )
        .await?;
    let newest = |reply| -> Shaped<Option<String>> {
        let Some(entry) = reply::array(reply)?.pop() else { return Ok(None) };
        let [id, _] = reply::tuple(entry)?;
        reply::text(id).map(Some)
    };
    let after = shaped(link, WHAT, newest(reply))?.unwrap_or_else(|| "0-0".to_owned());
    Ok(StreamPosition { stream: keys::LOOK_REQUESTED.to_owned(), after })
}

fn shaped<T>(link: &Link, what: &'static str, shaped: Shaped<T>) -> QueueResult<T> {
    shaped.map_err(|UnexpectedShape| QueueError::unexpected(what, link.address()))
}
