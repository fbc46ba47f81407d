//! Takes over a queue that another consumer served: tells what it left, and what is to be done, and does it.
//!
//!     look (adopt_look) ─▶ plan, a pure function ─▶ AdoptReport ─▶ with `act`: its steps, one by one
//!
//! In: a queue, and what the operator decided. Out: an [`AdoptReport`]. A second call finds nothing to do.
//!
//! Not here: the way back (`give_back`), how hosts count what they take over (`queue/scripts/reclaim.lua`).

use std::time::Duration;

use serde::Serialize;
use strum::IntoStaticStr;

use super::adopt_look::{Remains, WrongKey};
use super::dead_format;
use super::walk::FIRST;
use crate::config::units::show_duration;
use crate::queue::hosts::is_host;
use crate::queue::reply;
use crate::queue::script::{ADOPT, FORGET};
use crate::queue::stand::{EntryNumber, entry_number};
use crate::queue::{Queue, QueueResult};

/// A consumer that was heard from in this time lives.
const LIVES: Duration = Duration::from_secs(30);
/// A consumer that was given entries in this time may work on them. It may have read several at once, and in
/// Redis 7.0 an XACK is no sign of life.
const MAY_WORK: Duration = Duration::from_secs(600);
/// Entries in one step of a deletion, and the bytes at which it ends.
const PAGE: usize = 500;
const BYTES: usize = 1 << 20;
/// Names in one sentence.
const NAMED: usize = 5;

/// The operator's decisions.
#[derive(Debug, Default)]
pub(crate) struct AdoptOrders {
    pub act: bool,
    pub from: Option<Beginning>,
    /// The consumers that are no hosts are stopped, though Redis cannot tell yet.
    pub are_stopped: bool,
    /// Entries that others have acknowledged since a host first came are done, and are not to run again.
    pub is_done: bool,
    /// Entries that were done before are deleted.
    pub delete_acked: bool,
    pub dead_fields: Vec<(String, String)>,
}

/// Where a new group begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// After this entry.
    After(EntryNumber),
    /// With the next entry.
    End,
}

impl Beginning {
    /// Reads `0`, `$`, an entry's id, or a time.
    pub(crate) fn parse(text: &str) -> Result<Beginning, String> {
        let before = |(ms, sequence): EntryNumber| match (ms, sequence) {
            (0, 0) => (0, 0),
            (ms, 0) => (ms - 1, u64::MAX),
            (ms, sequence) => (ms, sequence - 1),
        };
        if text == "$" {
            return Ok(Beginning::End);
        }
        if let Some(id) = entry_number(text) {
            return Ok(Beginning::After(before(id)));
        }
        let time =
            text.parse::<jiff::Timestamp>().ok().and_then(|time| time.as_millisecond().try_into().ok());
        time.map(|ms| Beginning::After(before((ms, 0)))).ok_or_else(|| {
            "write 0, $, the id of an entry (1795242534558-0), or a time (2026-11-24T08:00:00Z)".to_owned()
        })
    }

    fn after(self) -> EntryNumber {
        match self {
            Beginning::After(id) => id,
            Beginning::End => (u64::MAX, u64::MAX),
        }
    }

    fn in_redis(self) -> String {
        match self {
            Beginning::After((ms, sequence)) => format!("{ms}-{sequence}"),
            Beginning::End => "$".to_owned(),
        }
    }
}

/// The findings, each with its step.
#[derive(Debug, Default)]
pub(crate) struct AdoptReport {
    pub items: Vec<AdoptItem>,
    /// Whether the steps were carried out.
    pub acted: bool,
    /// Whether the operator still has to say where the group begins.
    pub lacks_beginning: bool,
}

impl AdoptReport {
    /// Whether a finding keeps all steps from being taken.
    pub(crate) fn is_blocked(&self) -> bool {
        self.items.iter().any(|item| item.blocks)
    }
}

/// One finding. The names are stable as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct AdoptItem {
    pub kind: AdoptKind,
    pub count: u64,
    pub what: String,
    /// The step that `--yes` takes, or has taken. If the finding blocks, or the group has no beginning: what
    /// the operator has to do before.
    pub step: Option<String>,
    pub done: bool,
    /// No step of any finding is taken while this one is there.
    pub blocks: bool,
}

impl AdoptItem {
    pub(super) fn new(kind: AdoptKind, count: u64, what: impl Into<String>) -> AdoptItem {
        AdoptItem { kind, count, what: what.into(), step: None, done: false, blocks: false }
    }

    pub(super) fn with_step(self, step: impl Into<String>) -> AdoptItem {
        AdoptItem { step: Some(step.into()), ..self }
    }

    pub(super) fn with_step_if(self, is_needed: bool, step: impl Into<String>) -> AdoptItem {
        if is_needed { self.with_step(step) } else { self }
    }

    pub(super) fn blocking(self) -> AdoptItem {
        AdoptItem { blocks: true, ..self }
    }

    /// Returns the items whose count is not zero.
    pub(super) fn non_zero(items: impl IntoIterator<Item = AdoptItem>) -> Vec<AdoptItem> {
        items.into_iter().filter(|item| item.count > 0).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, Serialize)]
#[strum(serialize_all = "kebab-case", const_into_str)]
#[serde(into = "&'static str")]
pub(crate) enum AdoptKind {
    WrongType,
    NoGroup,
    OtherGroup,
    LivingConsumer,
    BusyConsumer,
    Waiting,
    ListItems,
    Unacked,
    Later,
    Running,
    Pending,
    Acked,
    AckedSince,
    Trimmed,
    LostUnread,
    LostPending,
    Group,
    DeadList,
    DeadForeign,
    Dead,
    RetryCount,
    Paused,
    // The way back.
    Host,
    Delayed,
    Held,
    Timed,
    Flow,
    Unfit,
    Ended,
    Reserved,
    Keys,
}

/// Looks at the queue, and takes the steps if `orders.act` and no finding blocks them.
pub(crate) async fn adopt(queue: &Queue, orders: &AdoptOrders) -> QueueResult<AdoptReport> {
    let found = queue.look_around(orders.from.map(Beginning::after)).await?;
    let mut report = plan(queue, &found, orders);
    if !orders.act || report.is_blocked() || report.lacks_beginning {
        return Ok(report);
    }
    queue.take_over(&found, orders).await?;
    for item in report.items.iter_mut().filter(|item| item.step.is_some()) {
        match item.kind {
            AdoptKind::Acked if orders.delete_acked => item.count = queue.forget_history().await?,
            AdoptKind::Unacked => item.count = queue.restore_taken().await?,
            AdoptKind::DeadList => {
                item.count = queue.convert_list().await?;
                queue.convert_dead(&orders.dead_fields, &found.task_fields).await?;
            }
            AdoptKind::DeadForeign => {
                item.count = queue.convert_dead(&orders.dead_fields, &found.task_fields).await?;
            }
            // `take_over` has taken the steps of the others.
            _ => {}
        }
        item.done = true;
    }
    report.acted = true;
    Ok(report)
}

/// Makes the findings, each with its step. It asks nothing of Redis and changes nothing there.
fn plan(queue: &Queue, found: &Remains, orders: &AdoptOrders) -> AdoptReport {
    let lacks_group = found.stand.as_ref().is_some_and(|stand| stand.group.is_none() && stand.length > 0);
    let mut items = wrong_keys(found);
    items.extend(own_group(queue, found, orders));
    items.extend(consumers(found, orders));
    items.extend(other_groups(found));
    items.extend(tasks(queue, found));
    items.extend(outside(queue, found, orders));
    items.extend(done_before(found, orders));
    items.extend(done_since(found, orders));
    items.extend(trims(found));
    items.extend(dead(queue, found, orders));
    items.extend(retry_counts(found));
    if found.paused {
        let what = format!("the queue is paused: `tqhost resume {}` lets hosts claim", queue.rules.name);
        items.push(AdoptItem::new(AdoptKind::Paused, 1, what));
    }
    AdoptReport { items, acted: false, lacks_beginning: lacks_group && orders.from.is_none() }
}

fn wrong_keys(found: &Remains) -> Vec<AdoptItem> {
    let item = |WrongKey { key, holds, expected }: &WrongKey| {
        let what = format!("{key} holds a {holds}, not a {expected}: rename it, or name another key");
        AdoptItem::new(AdoptKind::WrongType, 1, what).blocking()
    };
    found.wrong.iter().map(item).collect()
}

/// The group of the queue: where it stands, or where it is to begin.
fn own_group(queue: &Queue, found: &Remains, orders: &AdoptOrders) -> Option<AdoptItem> {
    let (stand, name) = (found.stand.as_ref()?, &queue.rules.group);
    match (&stand.group, orders.from) {
        (Some(group), Some(_)) => {
            let (ms, sequence) = group.delivered;
            let what = format!(
                "the group {name} exists, and was given all up to {ms}-{sequence}: --from is not used"
            );
            Some(AdoptItem::new(AdoptKind::Group, 1, what))
        }
        (Some(_), None) => None,
        (None, from) => {
            let what = format!("the stream has no group {name}, and {} entries", stand.length);
            let item = AdoptItem::new(AdoptKind::NoGroup, stand.length, what);
            let ask = "say with --from where it begins: 0 runs every entry, $ none of them, an entry's id or \
                       a time what came since";
            Some(match from {
                Some(_) => item.with_step("the group is created at the place that --from names"),
                None => item.with_step_if(stand.length > 0, ask),
            })
        }
    }
}

fn other_groups(found: &Remains) -> impl Iterator<Item = AdoptItem> {
    found.stand.iter().flat_map(|stand| &stand.others).map(|other| {
        let (ms, sequence) = other.delivered;
        let what = format!(
            "entries are pending in another group of the stream, {}, which was given all up to \
             {ms}-{sequence}. It loses each entry when its task has ended here",
            other.name
        );
        let step = "it is noted that this is meant; until then no host serves the queue";
        AdoptItem::new(AdoptKind::OtherGroup, other.pending, what).with_step_if(!other.is_confirmed, step)
    })
}

/// The tasks that wait, run, or are lost.
fn tasks(queue: &Queue, found: &Remains) -> Vec<AdoptItem> {
    let list = queue.rules.list.as_ref().map_or("", |list| list.key.as_str());
    let unread = "entries wait that the group has not read: they run";
    let listed = format!("items wait in the list {list}: they run");
    let gone = "of the pending entries, so many were trimmed or deleted: they are lost";
    AdoptItem::non_zero([
        AdoptItem::new(AdoptKind::Waiting, found.waiting, unread),
        AdoptItem::new(AdoptKind::ListItems, found.items, listed),
        AdoptItem::new(
            AdoptKind::Running,
            found.running,
            "tasks run on hosts, or were left by hosts that ended",
        ),
        pending(queue, found),
        AdoptItem::new(AdoptKind::LostPending, found.foreign.gone, gone),
    ])
}

/// The messages and jobs that Celery and Sidekiq keep outside of the lists.
fn outside(queue: &Queue, found: &Remains, orders: &AdoptOrders) -> Vec<AdoptItem> {
    let list = queue.rules.list.as_ref().map_or("", |list| list.key.as_str());
    let what = "messages were taken by workers of Celery, and not acknowledged";
    let item = AdoptItem::new(AdoptKind::Unacked, found.outside.unacked, what);
    let may_work = found.outside.taken_ms_ago.is_some_and(|ms| u128::from(ms) < MAY_WORK.as_millis());
    let taken = match may_work && !orders.are_stopped {
        true => item
            .with_step("stop the workers, and let them end what they run; add --stopped if they are stopped")
            .blocking(),
        false => item.with_step(format!("they are put back into the list {list}, and run first")),
    };
    let later = found.outside.later.iter().map(|(set, count)| {
        let what =
            format!("jobs of all queues are in {set}: hosts run those of this queue when they are due");
        AdoptItem::new(AdoptKind::Later, *count, what)
    });
    AdoptItem::non_zero([taken].into_iter().chain(later))
}

/// The entries that were done before a host first came.
fn done_before(found: &Remains, orders: &AdoptOrders) -> Option<AdoptItem> {
    let stand = found.stand.as_ref()?;
    // A host, or an earlier `adopt`, has noted where the group stood when it came.
    let is_noted = stand.noted.is_some();
    let item = |what: &str| AdoptItem::new(AdoptKind::Acked, found.acked, what);
    if found.acked > 0 {
        let item = item("entries were done before, and not deleted: they do not run");
        let stay = "it is noted where they end; they stay (--delete-acked deletes them)";
        Some(match orders.delete_acked {
            true => item.with_step("they are deleted"),
            false => item.with_step_if(!is_noted, stay),
        })
    } else if stand.group.is_some() && !is_noted {
        let item = item("the group was served before, and everything that it did is deleted");
        Some(item.with_step("it is noted where it stands"))
    } else {
        None
    }
}

/// The entries that others were done with since a host first came.
fn done_since(found: &Remains, orders: &AdoptOrders) -> Vec<AdoptItem> {
    let what = "entries were acknowledged by others since a host first came, and not deleted: `tqhost \
                doctor --fix` runs them again";
    let what = if orders.is_done { what.to_owned() } else { format!("{what}; if they are done, add --done") };
    let item = AdoptItem::new(AdoptKind::AckedSince, found.acked_since, what);
    AdoptItem::non_zero([item.with_step_if(orders.is_done, "it is noted that they are done")])
}

fn retry_counts(found: &Remains) -> impl Iterator<Item = AdoptItem> {
    found.retry_counts.iter().map(|count| {
        let what = format!(
            "the field {} of payloads seems to count retries; {} of those looked at have one above 0, the \
             highest {}. tqhost counts attempts itself, from 1, and leaves the field as it is",
            count.name, count.above_zero, count.highest
        );
        AdoptItem::new(AdoptKind::RetryCount, count.above_zero as u64, what)
    })
}

/// The consumers that may still work: those that were heard from, and those that were given entries lately.
fn consumers(found: &Remains, orders: &AdoptOrders) -> Vec<AdoptItem> {
    let is_in = |ms: u64, time: Duration| u128::from(ms) < time.as_millis();
    let others = found.consumers.iter().filter(|consumer| !is_host(&consumer.name));
    let living: Vec<&str> = others
        .filter(|consumer| is_in(consumer.idle_ms, LIVES))
        .map(|consumer| consumer.name.as_str())
        .collect();
    let given = found.foreign.given_ms.iter().filter(|(_, given)| is_in(**given, MAY_WORK));
    let busy: Vec<&str> =
        given.map(|(name, _)| name.as_str()).filter(|name| !living.contains(name)).collect();
    let are_alive = format!(
        "consumers of the group that are no hosts were heard from in the last {}: {}. While they work, what \
         they acknowledge is not known to be done",
        show_duration(LIVES),
        named(living.iter().copied())
    );
    let have_entries = format!(
        "consumers of the group that are no hosts hold entries that they were given in the last {}: {}. If \
         they work on them, the work is done twice",
        show_duration(MAY_WORK),
        named(busy.iter().copied())
    );
    let wait = "stop them, and wait, or add --stopped if they are stopped";
    let end = "let them end what they have read and stop them, or add --stopped if they are stopped";
    let item = |kind, names: &[&str], what: String, step: &str| {
        let item = AdoptItem::new(kind, names.len() as u64, what);
        if orders.are_stopped { item } else { item.with_step(step).blocking() }
    };
    AdoptItem::non_zero([
        item(AdoptKind::LivingConsumer, &living, are_alive, wait),
        item(AdoptKind::BusyConsumer, &busy, have_entries, end),
    ])
}

fn pending(queue: &Queue, found: &Remains) -> AdoptItem {
    let foreign = &found.foreign;
    let what = format!(
        "entries are pending at consumers that are no hosts ({}), delivered up to {} times, the oldest for \
         {}. Each is taken over when it was silent for the lease of {}, as a first attempt",
        named(foreign.consumers.iter().map(String::as_str)),
        foreign.most_deliveries,
        show_duration(Duration::from_secs(foreign.oldest_idle_ms / 1000)),
        show_duration(queue.rules.lease)
    );
    AdoptItem::new(AdoptKind::Pending, foreign.count, what)
}

fn trims(found: &Remains) -> Vec<AdoptItem> {
    let Some(stand) = &found.stand else { return Vec::new() };
    let unread = format!(
        "of {} entries that were ever added, so many were trimmed before the group read them: they are lost",
        stand.added
    );
    let trimmed = if stand.is_trimmed() { stand.added - stand.length } else { 0 };
    let trims = format!(
        "of {} entries, {} are left: a producer trims the stream (MAXLEN or MINID). What has ended is \
         deleted here, so a trim only takes tasks that have not run: leave it out of XADD",
        stand.added, stand.length
    );
    AdoptItem::non_zero([
        AdoptItem::new(AdoptKind::LostUnread, stand.trimmed_unread().unwrap_or(0), unread),
        AdoptItem::new(AdoptKind::Trimmed, trimmed, trims),
    ])
}

fn dead(queue: &Queue, found: &Remains, orders: &AdoptOrders) -> Vec<AdoptItem> {
    let (dead, key) = (&found.dead, &queue.keys.dead);
    let meaning = |name: &String| match dead_format::meaning(name, &orders.dead_fields, &found.task_fields) {
        Some("*") => format!("{name} → the task"),
        Some(new) => format!("{name} → {new}"),
        None => name.clone(),
    };
    let names: Vec<String> = dead.names.iter().map(meaning).collect();
    let items = format!("dead letters are items of a list, {key}: no host can add one there");
    let foreign = format!("dead letters of another program, with the fields {}", names.join(", "));
    let own = format!("dead letters are there: `tqhost dead list {}` shows them", queue.rules.name);
    AdoptItem::non_zero([
        AdoptItem::new(AdoptKind::DeadList, dead.items, items)
            .with_step("each becomes an entry of a stream of this name, with the item as the field data"),
        AdoptItem::new(AdoptKind::DeadForeign, dead.foreign, foreign)
            .with_step("they get the form of tqhost's own (--dead-field NEW=OLD says what a field is)"),
        AdoptItem::new(AdoptKind::Dead, dead.own, own),
    ])
}

/// The first [`NAMED`] names as one text, with the number of the others.
pub(super) fn named<'n>(names: impl ExactSizeIterator<Item = &'n str>) -> String {
    let more = names.len().saturating_sub(NAMED);
    let listed: Vec<&str> = names.take(NAMED).collect();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    listed.join(", ") + &rest
}

impl Queue {
    /// Notes where the group stands and, if the operator says so, that others have done what they have
    /// acknowledged since, and confirms the other groups. Creates a missing group at `orders.from`; without
    /// that, none (a stream without entries).
    async fn take_over(&self, found: &Remains, orders: &AdoptOrders) -> QueueResult {
        let Some(stand) = &found.stand else { return Ok(()) };
        let call = self.call(&ADOPT);
        let from = orders.from.map(Beginning::in_redis).unwrap_or_default();
        let groups: Vec<&str> = stand.others.iter().map(|group| group.name.as_str()).collect();
        self.link
            .script(&call.arg("from", from).arg("is_done", u8::from(orders.is_done)).arg("groups", groups))
            .await
            .map(drop)
    }

    /// Deletes what the group was done with before tqhost came. Returns how many entries.
    async fn forget_history(&self) -> QueueResult<u64> {
        let (mut from, mut deleted) = (FIRST.to_owned(), 0);
        while !from.is_empty() {
            let call = self.call(&FORGET).arg("from", &from).arg("limit", PAGE).arg("bytes", BYTES);
            let reply = self.link.script(&call).await?;
            let [next, count] = self.shaped("forget", reply::tuple(reply))?;
            deleted += self.shaped("forget", reply::count(&count))?;
            from = self.shaped("forget", reply::text(next))?;
        }
        Ok(deleted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_a_place_before_the_first_entry_that_runs() {
        let table = [
            ("0", Beginning::After((0, 0))),
            ("$", Beginning::End),
            ("5-3", Beginning::After((5, 2))),
            ("5-0", Beginning::After((4, u64::MAX))),
            ("5", Beginning::After((4, u64::MAX))),
            ("1970-01-01T00:00:01Z", Beginning::After((999, u64::MAX))),
        ];
        for (text, expected) in table {
            assert_eq!(Beginning::parse(text), Ok(expected), "{text}");
        }
        for bad in ["", "x", "-1", "5-x", "1969-12-31T00:00:00Z"] {
            assert!(Beginning::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn many_names_are_cut() {
        let names: Vec<String> = (0..7).map(|n| format!("c{n}")).collect();
        assert_eq!(named(names.iter().map(String::as_str)), "c0, c1, c2, c3, c4 and 2 more");
    }
}
