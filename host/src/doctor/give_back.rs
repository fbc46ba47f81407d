//! Gives a queue back to a plain consumer: tells what that takes, and does what is safe.
//!
//!     hosts are gone? ─▶ tasks go to the stream, or to the list ─▶ keys go
//!
//! Into a stream go delayed, held and running tasks; waiting tasks are there already. Into a list go all of
//! these, and the waiting tasks.
//!
//! A list gets its items in such an order that the consumer takes them as hosts would have run them. What
//! goes to a stream comes behind what waits there.
//!
//! In: a queue that no host serves, and what the operator decided. Out: an [`AdoptReport`]. It may be
//! interrupted and repeated. Dead letters stay, and statuses of ended tasks until they expire.
//!
//! Not here: the way in (`adopt`).

use std::time::Duration;

use redis::Value;
use strum::EnumCount;

use super::adopt::{AdoptItem, AdoptKind, AdoptReport, named};
use super::walk::{FIRST, SCAN, START};
use crate::config::units::show_duration;
use crate::queue::hosts::{HostInfo, is_host};
use crate::queue::reply::{self, Shaped, optional};
use crate::queue::script::{NAMES, RETURN, RETURN_LOOK, ScriptCall};
use crate::queue::stand::entry_number;
use crate::queue::turns::HELD;
use crate::queue::{Queue, QueueResult, Status};

/// For calls that name members of the delayed tasks: which entries are given back does not matter there.
const ANY: &str = "pending";
/// Tasks in one step.
const PAGE: usize = 100;
/// One call looks at no more entries once those that it has looked at reach this many bytes.
const BYTES: usize = 4 << 20;
/// How long a call waits for the leases of hosts. It refuses if they last longer.
const WAITS: Duration = Duration::from_secs(15);

/// The contents of a queue.
#[derive(Debug, Default)]
struct Holdings {
    tasks: Returned,
    /// The entries that the group has not read.
    queued: u64,
    /// The number of entries with fields of tqhost among the first hundred that wait.
    reserved: u64,
    /// Pending at hosts, whatever becomes of them.
    pending: u64,
    /// How long the last lease of the pending tasks lasts: a host that is frozen or cut off may run them
    /// until then.
    lease_left: Duration,
    dead: u64,
    /// The number of consumers that are hosts.
    consumers: u64,
}

/// The kinds of tasks that return.lua tells apart, in the order of its KINDS.
#[derive(Debug, Clone, Copy, EnumCount)]
enum Kind {
    Waiting,
    Running,
    /// Delayed after an attempt, or due.
    Retried,
    Held,
    /// Delayed by its producer.
    Timed,
    OfFlow,
    Unfit,
    /// Pending at a consumer that is no host.
    Elsewhere,
    Ended,
}

/// The counts of return.lua.
#[derive(Debug, Default)]
struct Returned {
    given: u64,
    left: u64,
    /// The latest time at which a task that its producer delayed is due.
    latest_due_ms: u64,
    kinds: [u64; Kind::COUNT],
}

impl Returned {
    fn of(&self, kind: Kind) -> u64 {
        self.kinds[kind as usize]
    }

    fn read(reply: Value) -> Shaped<Returned> {
        let [given, left, latest_due_ms, kinds @ ..] = reply::tuple::<{ 3 + Kind::COUNT }>(reply)?;
        let mut all = Returned {
            given: reply::count(&given)?,
            left: reply::count(&left)?,
            latest_due_ms: reply::count(&latest_due_ms)?,
            ..Returned::default()
        };
        for (number, value) in all.kinds.iter_mut().zip(&kinds) {
            *number = reply::count(value)?;
        }
        Ok(all)
    }

    fn add(&mut self, more: &Returned) {
        self.given += more.given;
        self.left += more.left;
        self.latest_due_ms = self.latest_due_ms.max(more.latest_due_ms);
        self.kinds.iter_mut().zip(more.kinds).for_each(|(number, more)| *number += more);
    }
}

/// Which tasks are given back.
#[derive(Debug, Clone, Copy)]
struct Terms {
    /// Tasks that their producer delayed are given back, too.
    early: bool,
    /// A task that is pending under a lease that lasts is left. Zero: no lease is looked at.
    lease: Duration,
    /// Nothing is changed, only counted.
    only_looks: bool,
}

/// The operator's decisions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GiveBackOrders {
    pub act: bool,
    /// Give back what producers delayed, too.
    pub early: bool,
    /// The hosts have ended, although leases of theirs last.
    pub are_stopped: bool,
}

/// Tells what going back takes, and does what is safe if `orders.act`.
pub(crate) async fn give_back(
    queue: &Queue,
    hosts: &[HostInfo],
    orders: GiveBackOrders,
) -> QueueResult<AdoptReport> {
    let GiveBackOrders { act, early, are_stopped } = orders;
    let serving: Vec<&str> = hosts
        .iter()
        .filter(|host| host.queues.iter().any(|known| known.serves(&queue.rules)))
        .map(|host| host.id.as_str())
        .collect();
    let mut held = queue.holdings(are_stopped).await?;
    if act && serving.is_empty() && !held.lease_left.is_zero() && held.lease_left <= WAITS {
        // A host that goes on meanwhile renews them.
        tokio::time::sleep(held.lease_left + Duration::from_millis(10)).await;
        held = queue.holdings(are_stopped).await?;
    }
    let now_ms = queue.now_ms().await?;
    let mut report = plan(queue, &held, &serving, now_ms, orders);
    if !act || report.is_blocked() {
        return Ok(report);
    }
    let Returned { given, left, .. } = queue.return_all(early, are_stopped).await?;
    let removed = queue.remove_keys().await?;
    for item in report.items.iter_mut().filter(|item| item.step.is_some()) {
        item.done = true;
        if item.kind == AdoptKind::Keys {
            item.count = removed;
            item.what = format!("{} ({given} tasks were given back, {left} were left)", item.what);
        }
    }
    report.acted = true;
    Ok(report)
}

fn plan(
    queue: &Queue,
    held: &Holdings,
    serving: &[&str],
    now_ms: u64,
    orders: GiveBackOrders,
) -> AdoptReport {
    let destination = match &queue.rules.list {
        Some(list) => format!("they go to the end of the list {} that BRPOP reads", list.key),
        None => format!("they go to the end of the stream {}, as new entries", queue.keys.stream),
    };
    let serves = format!("hosts serve the queue: {}", named(serving.iter().copied()));
    let hosts = AdoptItem::new(AdoptKind::Host, serving.len() as u64, serves)
        .with_step("stop them, or take the queue out of their configuration")
        .blocking();
    let tasks = entries(queue, held, now_ms, orders.act, &destination)
        .into_iter()
        .chain(delayed(held, now_ms, orders.early, &destination))
        .chain(left(queue, held));
    let mut items = AdoptItem::non_zero([hosts].into_iter().chain(tasks));
    let what = format!(
        "consumers of hosts, the keys of tqhost for this queue, and statuses of tasks that have not ended. \
         The group {} stays; statuses of ended tasks expire by themselves. Entries of tasks that have ended \
         were deleted when they ended",
        queue.rules.group
    );
    items.push(AdoptItem::new(AdoptKind::Keys, held.consumers, what).with_step("they are removed"));
    AdoptReport { items, ..AdoptReport::default() }
}

/// Tells of the stream's entries. `destination` says where tasks go that are given back.
fn entries(queue: &Queue, held: &Holdings, now_ms: u64, act: bool, destination: &str) -> [AdoptItem; 5] {
    let unread = format!("tasks wait in the stream, and the group {} has not read them", queue.rules.group);
    let (waiting, reserved) = match &queue.rules.list {
        Some(_) => (
            AdoptItem::new(AdoptKind::Waiting, held.tasks.of(Kind::Waiting), unread).with_step(destination),
            0,
        ),
        None => (AdoptItem::new(AdoptKind::Waiting, held.queued, unread), held.reserved),
    };
    let fields = "of the first hundred of them have fields that begin with tq-: a consumer that reads fields \
                  by name does not notice";
    let others = "tasks are pending at consumers that are no hosts: they stay with them";
    let over = "tasks were cancelled while they ran, or had completed under their ids: they do not run";
    [
        waiting,
        AdoptItem::new(AdoptKind::Reserved, reserved, fields),
        running(held, now_ms, act, destination),
        AdoptItem::new(AdoptKind::Pending, held.tasks.of(Kind::Elsewhere), others),
        AdoptItem::new(AdoptKind::Ended, held.tasks.of(Kind::Ended), over)
            .with_step("their entries are deleted"),
    ]
}

/// Tells of the tasks that wait for their time or their turn.
fn delayed(held: &Holdings, now_ms: u64, early: bool, destination: &str) -> [AdoptItem; 3] {
    let timed = held.tasks.of(Kind::Timed);
    let due = "tasks are due, or wait for another attempt: a plain consumer cannot see them";
    let behind = "tasks wait for their turn, behind others that have not ended";
    let last = Duration::from_secs(held.tasks.latest_due_ms.saturating_sub(now_ms) / 1000);
    let last =
        format!("tasks were delayed by their producer, the last one for another {}", show_duration(last));
    let stay = ": they stay where they are. Let a host run until then, or add --early";
    let timed = match early {
        true => AdoptItem::new(AdoptKind::Timed, timed, last).with_step(format!("{destination}, now")),
        false => AdoptItem::new(AdoptKind::Timed, timed, last + stay),
    };
    [
        AdoptItem::new(AdoptKind::Delayed, held.tasks.of(Kind::Retried), due)
            .with_step(format!("{destination}, now")),
        AdoptItem::new(AdoptKind::Held, held.tasks.of(Kind::Held), behind)
            .with_step(format!("{destination}, in their order")),
        timed,
    ]
}

/// Tells of the tasks that only a host can end, and of the dead letters.
fn left(queue: &Queue, held: &Holdings) -> [AdoptItem; 3] {
    let flows = "tasks belong to flows that have not ended: only a host can run them; let it end them first";
    let (unreadable, rest) = match &queue.rules.list {
        Some(_) => (
            "tasks have other fields than data, which an item of the list cannot keep, or cannot be read",
            ". A consumer that writes its own to a list of this name needs the key: rename it",
        ),
        None => ("tasks cannot be read", ""),
    };
    let unfit_stay = format!("{unreadable}: they stay. Let a host end them first");
    let dead = format!("dead letters stay in the stream {}{rest}", queue.keys.dead);
    [
        AdoptItem::new(AdoptKind::Flow, held.tasks.of(Kind::OfFlow), flows),
        AdoptItem::new(AdoptKind::Unfit, held.tasks.of(Kind::Unfit), unfit_stay),
        AdoptItem::new(AdoptKind::Dead, held.dead, dead),
    ]
}

/// Tells what is pending at hosts. It blocks all steps while a lease lasts that is too long to wait for.
fn running(held: &Holdings, now_ms: u64, act: bool, destination: &str) -> AdoptItem {
    let (left, running) = (held.lease_left, held.tasks.of(Kind::Running));
    if left.is_zero() {
        let what = "tasks are pending at hosts that have ended: they begin anew";
        return AdoptItem::new(AdoptKind::Running, running, what).with_step(destination);
    }
    let end = i64::try_from((u128::from(now_ms) + left.as_millis()).div_ceil(1000)).ok();
    let end = end.and_then(|end| jiff::Timestamp::from_second(end).ok());
    let end = end.map_or_else(String::new, |end| format!(", until {end}"));
    let what = format!(
        "tasks are pending at hosts under leases that last for another {}{end}: a host that is frozen or \
         cut off may still run them",
        show_duration(Duration::from_secs(left.as_secs().max(1)))
    );
    let item = AdoptItem::new(AdoptKind::Running, held.pending, what);
    // With `act`, the leases have had their time to end.
    match act || left > WAITS {
        true => item
            .with_step("wait until then, or add --stopped if the processes of those hosts have ended")
            .blocking(),
        false => item.with_step(format!("{destination}, once the leases are over")),
    }
}

impl Queue {
    /// Counts what the queue has. If hosts `are_stopped`, their leases do not matter.
    async fn holdings(&self, are_stopped: bool) -> QueueResult<Holdings> {
        let census = self.census().await?;
        let mut held = Holdings {
            pending: census.consumers.iter().filter(|one| is_host(&one.name)).map(|one| one.pending).sum(),
            queued: census.queued,
            dead: census.dead,
            consumers: census.consumers.iter().filter(|one| is_host(&one.name)).count() as u64,
            ..Holdings::default()
        };
        for host in census.consumers.iter().filter(|one| one.pending > 0 && is_host(&one.name)) {
            if !are_stopped {
                held.lease_left = held.lease_left.max(self.lease_left(&host.name).await?);
            }
        }
        let unread =
            self.group().await?.map_or_else(|| FIRST.to_owned(), |at| format!("({}", at.last_delivered));
        let (mut from, mut seen) = (unread, 0);
        while seen < PAGE {
            let page = self.names("XRANGE", &from, "+", PAGE - seen).await?;
            let Some((last, _)) = page.last() else { break };
            from = format!("({last}");
            seen += page.len();
            held.reserved += page.iter().filter(|(_, is_reserved)| *is_reserved).count() as u64;
        }
        let look = Terms { early: false, lease: Duration::ZERO, only_looks: true };
        let which = if self.rules.list.is_some() { "all" } else { "pending" };
        held.tasks = self.return_entries(which, look).await?;
        held.tasks.add(&self.return_delayed(look, true).await?);
        Ok(held)
    }

    /// A page of the stream by XRANGE or XREVRANGE: ids, and whether the entry has fields of tqhost.
    async fn names(
        &self,
        command: &str,
        from: &str,
        to: &str,
        most: usize,
    ) -> QueueResult<Vec<(String, bool)>> {
        let call = self.call(&NAMES).arg("from", from).arg("to", to);
        let reply =
            self.link.script(&call.arg("command", command).arg("most", most).arg("bytes", BYTES)).await?;
        let row = |row| {
            let [id, is_reserved] = reply::tuple(row)?;
            Ok((reply::text(id)?, reply::count(&is_reserved)? == 1))
        };
        self.shaped("names", reply::each(reply, row))
    }

    /// How long the last lease of a host's pending entries lasts.
    async fn lease_left(&self, host: &str) -> QueueResult<Duration> {
        let (mut from, mut longest) = (FIRST.to_owned(), Duration::ZERO);
        loop {
            let rows = self.pending_rows(&from, PAGE, Some(host)).await?;
            let Some(last) = rows.last() else { return Ok(longest) };
            from = format!("({}", last.entry);
            for row in rows {
                longest = longest.max(self.rules.lease.saturating_sub(Duration::from_millis(row.idle_ms)));
            }
        }
    }

    /// Gives back all tasks to the list or the stream. Returns the number of tasks of all kinds together.
    ///
    /// A consumer reads first what comes to a list last. So a list gets first what was added last, and last
    /// what has begun, which may be a retry in front of tasks that are held for it.
    async fn return_all(&self, early: bool, are_stopped: bool) -> QueueResult<Returned> {
        let lease = if are_stopped { Duration::ZERO } else { self.rules.lease };
        let terms = Terms { early, lease, only_looks: false };
        // The first steps take tasks that must come before or after others, and leave the rest of their place
        // to the last step there. That one also counts what cannot be given: so the delayed tasks are gone
        // through with the held ones again, though these have been given back.
        let (earlier, mut all);
        if self.rules.list.is_some() {
            earlier = self.return_entries("unread", terms).await?.given + self.return_held(terms).await?;
            all = self.return_delayed(terms, true).await?;
            all.add(&self.return_entries("all", terms).await?);
        } else {
            all = self.return_entries("pending", terms).await?;
            earlier = self.return_delayed(terms, false).await?.given + self.return_held(terms).await?;
            all.add(&self.return_delayed(terms, true).await?);
        }
        all.given += earlier;
        Ok(all)
    }

    /// Gives back delayed tasks, and with `with_held` also held tasks.
    async fn return_delayed(&self, terms: Terms, with_held: bool) -> QueueResult<Returned> {
        const WHAT: &str = "look through the delayed tasks";
        let (mut cursor, mut all) = (START.to_owned(), Returned::default());
        loop {
            let scan =
                redis::cmd("ZSCAN").arg(&self.keys.delayed).arg(&cursor).arg("COUNT").arg(PAGE).to_owned();
            let [next, found] = self.shaped(WHAT, reply::tuple(self.link.command(WHAT, &scan).await?))?;
            let found = self.shaped(WHAT, reply::pairs(found))?.into_iter();
            let members: Vec<Vec<u8>> = found
                .filter(|(_, due)| with_held || due != HELD.as_bytes())
                .map(|(member, _)| member)
                .collect();
            for some in members.chunks(PAGE) {
                all.add(&self.return_these(some, ANY, terms).await?);
            }
            cursor = self.shaped(WHAT, reply::text(next))?;
            if cursor == START {
                return Ok(all);
            }
        }
    }

    /// Gives back the held tasks. The tasks of one key keep their order. Returns the number of tasks.
    async fn return_held(&self, terms: Terms) -> QueueResult<u64> {
        const WHAT: &str = "look through the held tasks";
        let (command, first, last) = match self.rules.list {
            Some(_) => ("ZREVRANGEBYLEX", "+", "-"),
            None => ("ZRANGEBYLEX", "-", "+"),
        };
        let (mut from, mut given) = (first.as_bytes().to_vec(), 0);
        loop {
            let mut look = redis::cmd(command);
            look.arg(&self.keys.tracks).arg(&from).arg(last).arg("LIMIT").arg(0).arg(PAGE);
            let members =
                self.shaped(WHAT, reply::each(self.link.command(WHAT, &look).await?, reply::bytes))?;
            let Some(end) = members.last() else { return Ok(given) };
            from = [b"(", end.as_slice()].concat();
            // A track has members of tasks that are held, which are delayed tasks by the same name, and of
            // tasks that have their turn. The script passes over the latter, which are no delayed tasks.
            given += self.return_these(&members, ANY, terms).await?.given;
        }
    }

    /// Gives back entries of the stream, `which` as return.lua says: with a list the newest first, so that
    /// the oldest is read first.
    async fn return_entries(&self, which: &str, terms: Terms) -> QueueResult<Returned> {
        let to_list = self.rules.list.is_some();
        let (mut from, mut all) =
            (if to_list { "+".to_owned() } else { FIRST.to_owned() }, Returned::default());
        loop {
            let ids: Vec<String> = if to_list {
                let page = self.names("XREVRANGE", &from, FIRST, PAGE).await?;
                page.into_iter().map(|(id, _)| id).collect()
            } else {
                match self.pending_rows(&from, PAGE, None).await {
                    Err(error) if error.is_no_group() => return Ok(all),
                    rows => rows?.into_iter().map(|row| row.entry).collect(),
                }
            };
            let Some(last) = ids.last() else { return Ok(all) };
            from = format!("({last}");
            let ids: Vec<Vec<u8>> = ids.into_iter().map(String::into_bytes).collect();
            all.add(&self.return_these(&ids, which, terms).await?);
        }
    }

    async fn return_these(&self, these: &[Vec<u8>], which: &str, terms: Terms) -> QueueResult<Returned> {
        let keys = &self.keys;
        let Terms { early, lease, only_looks } = terms;
        let list = self.rules.list.as_ref().map_or(&keys.stream, |list| &list.key);
        let call = self.call(if only_looks { &RETURN_LOOK } else { &RETURN });
        let call = call.key("list", list).arg("which", which).arg("early", u8::from(early));
        let call = call.arg("lease", lease.as_millis() as u64).arg("statuses", keys.task(""));
        let call = call.arg("only_looks", u8::from(only_looks)).arg("tasks", these);
        let reply = self.link.script(&call).await?;
        self.shaped("return", Returned::read(reply))
    }

    /// Removes consumers, and the keys that only hosts need. Returns how many.
    async fn remove_keys(&self) -> QueueResult<u64> {
        const WHAT: &str = "remove keys";
        let mut removed = 0;
        let consumers = self.census().await?.consumers;
        let calls: Vec<ScriptCall> = consumers
            .iter()
            .filter(|one| one.pending == 0 && is_host(&one.name))
            .map(|one| self.leaving(&one.name, 0))
            .collect();
        for reply in self.link.scripts(WHAT, &calls).await? {
            removed += self.shaped(WHAT, reply::count(&reply?))?;
        }
        // Without delayed and held tasks nobody waits for a turn. The turns that are left are of tasks that
        // somebody has deleted.
        let count = redis::cmd("ZCARD").arg(&self.keys.delayed).to_owned();
        if self.shaped(WHAT, reply::count(&self.link.command(WHAT, &count).await?))? == 0 {
            let turns = redis::cmd("UNLINK").arg(&self.keys.owners).arg(&self.keys.tracks).to_owned();
            removed += self.shaped(WHAT, reply::count(&self.link.command(WHAT, &turns).await?))?;
        }
        // A marker is judged by the status of its task, so statuses are removed first.
        for markers in [false, true] {
            let mut next = Some(START.to_owned());
            while let Some(cursor) = next {
                let page = self.keys(&cursor, SCAN).await?;
                let useless = match markers {
                    true => self.useless_markers(page.items).await?,
                    false => self.useless_keys(page.items).await?,
                };
                if !useless.is_empty() {
                    let reply = self.link.command(WHAT, redis::cmd("UNLINK").arg(useless)).await?;
                    removed += self.shaped(WHAT, reply::count(&reply))?;
                }
                next = page.next;
            }
        }
        Ok(removed)
    }

    /// The keys of hosts, and the statuses of tasks that have not ended and are not left behind.
    async fn useless_keys(&self, keys: Vec<Vec<u8>>) -> QueueResult<Vec<Vec<u8>>> {
        const WHAT: &str = "look at statuses";
        let (mut useless, others): (Vec<_>, Vec<_>) =
            keys.into_iter().partition(|key| self.keys.is_of_hosts(key));
        let statuses: Vec<Vec<u8>> =
            others.into_iter().filter(|key| self.keys.task_of(key).is_some()).collect();
        let ask = |key: &Vec<u8>| {
            let fields = ["status", "parked_as", "joins", "flow", "entry"];
            redis::cmd("HMGET").arg(key).arg(&fields).to_owned()
        };
        let replies = self.link.pipeline(WHAT, &statuses.iter().map(ask).collect::<Vec<_>>()).await?;
        for (key, reply) in statuses.into_iter().zip(replies) {
            let Ok(reply) = reply else { continue };
            let [status, parked, joins, flow, entry] =
                self.shaped(WHAT, reply::tuple::<5>(reply))?.map(optional);
            let has_ended = self
                .shaped(WHAT, status)?
                .and_then(|text| text.parse::<Status>().ok())
                .is_none_or(Status::is_end);
            let in_flow = self.shaped(WHAT, joins)?.is_some() || self.shaped(WHAT, flow)?.is_some();
            let (parked, entry) = (self.shaped(WHAT, parked)?, self.shaped(WHAT, entry)?);
            let is_left = self.is_delayed(parked).await? || self.is_left_in_stream(entry).await?;
            if !has_ended && !in_flow && !is_left {
                useless.push(key);
            }
        }
        Ok(useless)
    }

    /// Whether a task is still among the delayed ones, under the member that its status names.
    async fn is_delayed(&self, member: Option<String>) -> QueueResult<bool> {
        let Some(member) = member else { return Ok(false) };
        let score = redis::cmd("ZSCORE").arg(&self.keys.delayed).arg(member).to_owned();
        Ok(self.link.command("look at statuses", &score).await? != Value::Nil)
    }

    /// Whether a task was left in the stream, under the entry that its status names. Without a list none is:
    /// the consumer reads the stream.
    async fn is_left_in_stream(&self, entry: Option<String>) -> QueueResult<bool> {
        match entry.filter(|entry| self.rules.list.is_some() && entry_number(entry).is_some()) {
            Some(entry) => Ok(!self.names("XRANGE", &entry, &entry, 1).await?.is_empty()),
            None => Ok(false),
        }
    }

    /// The markers that are held for tasks without a status.
    async fn useless_markers(&self, keys: Vec<Vec<u8>>) -> QueueResult<Vec<Vec<u8>>> {
        const WHAT: &str = "look at idempotency keys";
        let markers: Vec<Vec<u8>> = keys.into_iter().filter(|key| self.keys.is_marker(key)).collect();
        let ask =
            |key: &Vec<u8>| [redis::cmd("PTTL").arg(key).to_owned(), redis::cmd("GET").arg(key).to_owned()];
        let asked: Vec<_> = markers.iter().flat_map(ask).collect();
        let mut replies = self.link.pipeline(WHAT, &asked).await?.into_iter();
        let mut useless = Vec::new();
        for marker in markers {
            let (Some(Ok(ttl)), Some(Ok(id))) = (replies.next(), replies.next()) else { continue };
            let (ttl, id) = (self.shaped(WHAT, reply::int(&ttl))?, self.shaped(WHAT, optional(id))?);
            let Some(id) = id.filter(|_| ttl == -1) else { continue };
            let exists = redis::cmd("EXISTS").arg(self.keys.task(&id)).to_owned();
            if self.link.command(WHAT, &exists).await? == Value::Int(0) {
                useless.push(marker);
            }
        }
        Ok(useless)
    }
}
