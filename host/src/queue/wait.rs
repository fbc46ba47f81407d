//! Asks about many queues at once: is there a new entry, a pause, a delayed task?
//!
//! Each question is one command, so an idle host costs the same for any number of queues. On a cluster each
//! key has a command of its own, all in one go to each node. Claims nothing, and writes nothing except in
//! [`request_look`].
//!
//! Not here: when to ask (`worker::waiter`, `worker::lookout`).

use std::iter;
use std::ops::Range;
use std::time::Duration;

use redis::Value;

use super::census::{GroupCount, find_group};
use super::error::QueueResult;
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

/// The number of entries that the stream of signals keeps. A host that has missed more signals looks anyway.
const SIGNALS: usize = 100;

impl Queue {
    /// The counts of the queue's group. None: there is no group. It is an error if there is no stream.
    pub(crate) async fn group(&self) -> QueueResult<Option<GroupCount>> {
        let ask = redis::cmd("XINFO").arg("GROUPS").arg(&self.keys.stream).to_owned();
        let find = |groups| find_group(groups, &self.rules.group);
        self.link.read("look where the group stands", &ask, find).await
    }

    /// The last entry that the group was given; `0-0` if it was given none, or there is no group.
    pub(super) async fn last_delivered(&self) -> QueueResult<String> {
        let group = match self.group().await {
            Err(error) if error.is_no_group() => None,
            group => group?,
        };
        Ok(group.unwrap_or_default().last_delivered)
    }

    /// The position from which to wait for entries that the group has not been given.
    pub(crate) fn after(&self, group: GroupCount) -> StreamPosition {
        StreamPosition { stream: self.keys.stream.clone(), after: group.last_delivered }
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
    let position = |item| {
        let [stream, entries] = reply::tuple(item)?;
        let [id, _] = reply::tuple(reply::array(entries)?.pop().ok_or(UnexpectedShape)?)?;
        Ok(StreamPosition { stream: reply::text(stream)?, after: reply::text(id)? })
    };
    let ready = link.read(WHAT, &wait, |streams| reply::each(streams, position)).await?;
    Ok(Waited { ready, unreachable: Vec::new() })
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

/// Finds for each queue whether it is paused, held or limited. A queue whose keys Redis refuses has an error
/// of its own, and costs a few more commands. A queue whose node of a cluster does not answer has an error,
/// too.
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
    let mut found = link.read(STOPS, &get, reply::array).await?.into_iter();
    let stops = queues.iter().map(|queue| queue.stops(&mut found, 0));
    link.shaped(STOPS, stops.collect())
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
    /// Reads replies that may be remembered from an earlier call. A server may tell late that a key has
    /// expired, so all keys are read again if one should have expired by this machine's clock.
    async fn stops_unless_old(&self, link: &Link, replies: Vec<Value>) -> QueueResult<Stops> {
        let remembered = link.shaped(STOPS, self.stops(&mut replies.clone().into_iter(), 0))?;
        let current = link.shaped(STOPS, self.stops(&mut replies.into_iter(), now_ms()))?;
        if remembered == current {
            return Ok(current);
        }
        let mut fresh = Vec::new();
        for key in self.stop_keys() {
            fresh.push(link.command(STOPS, redis::cmd("GET").arg(key)).await?);
        }
        link.shaped(STOPS, self.stops(&mut fresh.into_iter(), 0))
    }

    /// The keys that tell whether the queue is paused, held or limited.
    pub(super) fn stop_keys(&self) -> impl Iterator<Item = &String> {
        let keys = &self.keys;
        [Some(&keys.paused), self.rules.hold.map(|_| &keys.hold), Some(&keys.limits)].into_iter().flatten()
    }

    /// Reads the values of these keys. A pause or limits that have ended are left out. `now_ms` is by this
    /// machine's clock or by Redis's.
    pub(super) fn stops(&self, values: &mut impl Iterator<Item = Value>, now_ms: u64) -> Shaped<Stops> {
        let mut next = || values.next().ok_or(UnexpectedShape);
        let lasts = |until: Option<u64>| until.is_none_or(|until| until > now_ms);
        let pause = QueuePause::read(&next()?).filter(|pause| lasts(pause.until_ms));
        let held = match self.rules.hold {
            Some(rules) => hold::found(&next()?, &rules),
            None => HoldFound::default(),
        };
        let limits = limits::found(&next()?).filter(|limits| lasts(limits.until_ms));
        Ok(Stops { pause, held, limits })
    }
}

/// The purpose of the calls of [`with_delayed`], for errors.
const DELAYED: &str = "look for delayed tasks";

/// Finds the queues that have delayed tasks which are due at some time. Returns their places in the list.
pub(crate) async fn with_delayed(link: &Link, queues: &[&Queue]) -> QueueResult<Vec<usize>> {
    let found = if link.is_cluster() {
        filled(link, DELAYED, "EXISTS", queues.iter().map(|queue| &queue.keys.delayed)).await?
    } else {
        with_delayed_key(link, queues).await?
    };
    let mut due = Vec::new();
    for place in found {
        // Held tasks are not looked for: the end of another task brings them back.
        let has_due = match queues[place].ask_not_held() {
            None => true,
            Some(ask) => match link.read(DELAYED, &ask, |count| reply::count(&count)).await {
                Ok(count) => count > 0,
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

/// Finds the queues that have delayed or held tasks. It takes one command if there are none, and a few more
/// for each queue that has some, or whose key Redis refuses.
async fn with_delayed_key(link: &Link, queues: &[&Queue]) -> QueueResult<Vec<usize>> {
    let mut found = Vec::new();
    let mut parts: Vec<Range<usize>> = iter::once(0..queues.len()).collect();
    while let Some(part) = parts.pop().filter(|part| !part.is_empty()) {
        let mut exist = redis::cmd("EXISTS");
        for queue in &queues[part.clone()] {
            exist.arg(&queue.keys.delayed);
        }
        let count = match link.read(DELAYED, &exist, |count| reply::count(&count)).await {
            Ok(count) => count,
            // Redis refuses at least one key: each half is asked for by itself.
            Err(error) if error.is_denied_key() && part.len() > 1 => 1,
            // The promoter of this queue says what is wrong.
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
    Ok(found)
}

/// Finds the queues that have left tasks for queues in other slots of a cluster. Returns their places in the
/// list.
pub(crate) async fn with_relayed(link: &Link, queues: &[&Queue]) -> QueueResult<Vec<usize>> {
    // EXISTS would not do: a stream stays when its last entry is deleted.
    let keys = queues.iter().map(|queue| &queue.keys.out);
    filled(link, "look for tasks that go to other queues", "XLEN", keys).await
}

/// Finds the keys of a cluster for which the command `count` does not return 0. Returns their places in the
/// list. Keys with an error are left out: a loop of their queue says what is wrong.
async fn filled<'k>(
    link: &Link,
    what: &'static str,
    count: &str,
    keys: impl Iterator<Item = &'k String>,
) -> QueueResult<Vec<usize>> {
    let asked: Vec<_> = keys.map(|key| (key.clone(), redis::cmd(count).arg(key).to_owned())).collect();
    let replies = tracking::ask(link, what, &asked).await?;
    let is_filled = |place: &usize| !matches!(replies[*place], Ok(Value::Int(0)) | Err(_));
    Ok((0..replies.len()).filter(is_filled).collect())
}

/// Signals all hosts to look at pauses, delayed tasks, and duties without a host now instead of a moment
/// later.
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
    let mut newest = redis::cmd("XREVRANGE");
    newest.arg(keys::LOOK_REQUESTED).arg("+").arg("-").arg("COUNT").arg(1);
    let newest = link.read("look what hosts were told", &newest, reply::stream_entries).await?.pop();
    let after = newest.map_or_else(|| "0-0".to_owned(), |newest| newest.id);
    Ok(StreamPosition { stream: keys::LOOK_REQUESTED.to_owned(), after })
}
