//! Takes tasks to queues in other slots of a cluster.
//!
//! In: the tasks that ended attempts have left in `tq:{S}:out`, in the step in which they ended. Out: each is
//! in its queue once, and not here any more.
//!
//!     settle ─▶ tq:{S}:out ─▶ the clocks of the targets ─▶ a page of tasks ─▶ relay.lua at each target
//!                   ▲                                                              │ enqueued, now or before
//!                   └──────────────────────── XDEL ────────────────────────────────┘
//!
//! Any host may take a task to its queue, also a second time: its status there tells that it was enqueued.
//! This status lives for at least a minute after the task has ended. So that no call comes after that, a call
//! enqueues tasks only within [`CALL_COUNTS`] after its host has looked which tasks wait, by the clock of the
//! target.
//!
//! Not here: leaving a task (`settle`, `ends.lua`), when to look (`worker::relay`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::codec::{self, RawFields, StreamEntry};
use super::effects::{enqueue_call, with_effect};
use super::error::{QueueError, QueueResult, timed_out};
use super::handle::{Queue, millis};
use super::link::Link;
use super::reply;
use super::script::{self, Part, ScriptCall};
use super::value::idempotency_key;
use super::wait;
use crate::config::TargetQueue;
use crate::task::Field;

/// For how long a call enqueues tasks after its host has looked which tasks wait. This is much less than a
/// status lives after the end of its task.
const CALL_COUNTS: Duration = Duration::from_secs(10);
/// How long the node of another queue may take to tell its clock.
const ANSWER: Duration = Duration::from_secs(1);
/// A walk asks for the clocks again after this time.
const CLOCKS_COUNT: Duration = Duration::from_secs(3);
/// The entries of the first page, and the most entries of any other page.
const FIRST_PAGE: usize = 8;
const MAX_PAGE: usize = 32;
/// The bytes that a page should have at most. A page has more if large tasks follow small ones.
const PAGE_BYTES: usize = 1 << 20;
/// The most pages of a walk over the tasks of one host.
const MAX_PAGES: usize = 64;
const WHAT: &str = "take tasks to other queues";

/// The tasks that one host has left. Each is looked at once. A task that cannot be taken to its queue then is
/// left to the walks over the tasks of all hosts: otherwise each new task would cost a look at all that wait.
pub(crate) struct OwnTasks {
    consumer: String,
    /// Where the tasks begin that were not looked at yet, as XRANGE takes it.
    from: String,
}

impl OwnTasks {
    pub(crate) fn of(consumer: &str) -> OwnTasks {
        OwnTasks { consumer: consumer.to_owned(), from: "-".to_owned() }
    }
}

/// The end of a walk over the tasks that wait.
#[derive(Debug, Default)]
pub(crate) struct Relayed {
    /// Whether tasks are left that the next walk over the tasks of all hosts may take to their queues.
    pub is_behind: bool,
    /// Whether the walk ended before the last task, because it may not go on for ever.
    pub has_more: bool,
    /// The id of a task that was refused, and why: one for each reason. The task stays, and may be taken
    /// later.
    pub refused: Vec<(String, String)>,
    /// The error of a queue that cannot be reached. Its tasks stay.
    pub lost: Option<QueueError>,
}

/// A task that waits to be taken to another queue.
struct Waiting {
    entry: String,
    id: String,
    delay_ms: u64,
    fields: RawFields,
}

/// The tasks of a page for one queue.
struct ForTarget<'q> {
    target: &'q TargetQueue,
    tasks: Vec<Waiting>,
}

/// The clocks of the targets, by their streams, before tasks were looked for.
struct Clocks {
    asked: Instant,
    by_stream: BTreeMap<String, QueueResult<u64>>,
}

impl Queue {
    /// Moves the tasks in `tq:{S}:out` to their queues: all of them, or only the new ones that one host has
    /// left there.
    pub(crate) async fn relay(&self, mut own: Option<&mut OwnTasks>) -> QueueResult<Relayed> {
        let (mut relayed, mut count) = (Relayed::default(), FIRST_PAGE);
        let mut from = own.as_ref().map_or_else(|| "-".to_owned(), |own| own.from.clone());
        let (mut clocks, mut have_delays) = (self.clocks().await, false);
        // A queue that did not answer once is not asked again in this walk.
        let mut away = BTreeSet::new();
        for page_number in 1.. {
            if clocks.asked.elapsed() > CLOCKS_COUNT {
                clocks = self.clocks().await;
            }
            let mut page = redis::cmd("XRANGE");
            page.arg(&self.keys.out).arg(&from).arg("+").arg("COUNT").arg(count);
            let page = self.link.read(WHAT, &page, reply::stream_entries).await?;
            let Some(last) = page.last() else { break };
            from = format!("({}", last.id);
            let is_last = page.len() < count;
            let bytes: usize = page.iter().map(StreamEntry::bytes).sum();
            count = if bytes > PAGE_BYTES { (count / 4).max(1) } else { (count * 4).min(MAX_PAGE) };
            let mut parts = self.parts(page, own.as_ref().map(|own| own.consumer.as_str()), &mut relayed);
            parts.retain(|part| !away.contains(&part.target.stream));
            let results = join_all(parts.iter().map(|part| self.deliver(part, &clocks))).await;
            for (part, delivered) in parts.iter().zip(results) {
                match delivered {
                    Ok(delivered) => {
                        have_delays |= delivered.have_delays;
                        relayed.is_behind |= delivered.is_late;
                        relayed.refuse(delivered.refused);
                    }
                    Err(error) => {
                        away.insert(part.target.stream.clone());
                        (relayed.is_behind, relayed.lost) = (true, Some(error));
                    }
                }
            }
            if let Some(own) = &mut own {
                own.from.clone_from(&from);
            }
            if is_last {
                break;
            }
            if own.is_some() && page_number == MAX_PAGES {
                relayed.has_more = true;
                break;
            }
        }
        if have_delays {
            // Without this request the hosts would look somewhat later.
            let _ = tokio::time::timeout(ANSWER, wait::request_look(&self.link)).await;
        }
        Ok(relayed)
    }

    /// Asks for the clocks of all targets.
    async fn clocks(&self) -> Clocks {
        let asked = Instant::now();
        let targets = self.rules.enqueue_to.iter().chain(self.rules.on_end.targets());
        let mut streams: Vec<&String> = targets.map(|target| &target.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        // A queue whose node is away must not hold up the others.
        let times = streams.into_iter().map(|stream| async move {
            let link = self.link.at_key(stream);
            let time = tokio::time::timeout(ANSWER, link.now_ms()).await;
            (stream.clone(), time.unwrap_or_else(|_| Err(late(&link))))
        });
        Clocks { asked, by_stream: join_all(times).await.into_iter().collect() }
    }

    /// Groups the tasks of a page by their queues. With `by`, only the tasks that this host has left.
    fn parts(&self, page: Vec<StreamEntry>, by: Option<&str>, relayed: &mut Relayed) -> Vec<ForTarget<'_>> {
        let mut parts: BTreeMap<&str, ForTarget<'_>> = BTreeMap::new();
        for entry in page {
            let id = entry.id.clone();
            let mut fields = entry.fields.into_iter();
            let mut next = |name: &str| {
                let (known, value) = fields.next()?;
                (known == name.as_bytes()).then(|| String::from_utf8_lossy(&value).into_owned())
            };
            let left_by = next("by").unwrap_or_default();
            if by.is_some_and(|by| by != left_by) {
                continue;
            }
            match self.waiting_for(id.clone(), fields) {
                Ok((target, task)) => {
                    let part = parts.entry(&target.stream);
                    part.or_insert_with(|| ForTarget { target, tasks: Vec::new() }).tasks.push(task);
                }
                Err(why) => relayed.refuse(Some((id, why))),
            }
        }
        parts.into_values().collect()
    }

    /// Reads a task, and finds its queue. Key names are never taken from data: the queue must be one of the
    /// configuration.
    fn waiting_for(
        &self,
        entry: String,
        mut fields: impl Iterator<Item = (Vec<u8>, Vec<u8>)>,
    ) -> Result<(&TargetQueue, Waiting), String> {
        let damaged = || "this is not a task that a host has left for another queue".to_owned();
        let (kind, to) = fields.next().ok_or_else(damaged)?;
        let on_end = &self.rules.on_end;
        let target = match (kind.as_slice(), to.as_slice()) {
            (b"to", stream) => self.rules.enqueue_to.iter().find(|target| target.stream.as_bytes() == stream),
            (b"on_end", b"COMPLETED") => on_end.completed.as_ref(),
            (b"on_end", b"FAILED") => on_end.dead.as_ref(),
            (b"on_end", b"CANCELLED") => on_end.cancelled.as_ref(),
            _ => return Err(damaged()),
        };
        let target = target.ok_or_else(|| {
            let (kind, to) = (String::from_utf8_lossy(&kind), String::from_utf8_lossy(&to));
            format!(
                "`enqueue_to` and `on_end` of this queue lead there no more ({kind} {to}): put it back until \
                 such tasks are through"
            )
        })?;
        let delay_ms = match kind.as_slice() {
            b"to" => fields.next().and_then(|(_, delay)| std::str::from_utf8(&delay).ok()?.parse().ok()),
            _ => Some(0),
        };
        let mut fields: RawFields = fields.collect();
        codec::keep_open(&mut fields);
        let id = text_of(&fields, "tq-id");
        let (delay_ms, id) = delay_ms.zip(id).ok_or_else(damaged)?;
        Ok((target, Waiting { entry, id, delay_ms, fields }))
    }

    /// Takes tasks of a page to one queue, and deletes the entries that are done.
    async fn deliver(&self, part: &ForTarget<'_>, clocks: &Clocks) -> QueueResult<Delivered> {
        let ForTarget { target, tasks } = part;
        let now_ms = match clocks.by_stream.get(&target.stream) {
            Some(Ok(now_ms)) => *now_ms,
            Some(Err(error)) => return Err(error.clone()),
            None => return Ok(Delivered::default()),
        };
        let (mut delivered, mut rest) = (Delivered::default(), tasks.as_slice());
        while !rest.is_empty() {
            let (now, later) = rest.split_at(fitting(rest));
            rest = later;
            let mut call = ScriptCall::new(&script::RELAY).arg("ends", now_ms + millis(CALL_COUNTS));
            for task in now {
                call = with_effect(call, "tasks", &task.call(target));
            }
            let reply = match tokio::time::timeout(CALL_COUNTS, self.link.script(&call)).await {
                Ok(reply) => reply?,
                Err(_) => return Err(late(&self.link)),
            };
            if reply == redis::Value::Nil {
                delivered.is_late = true;
                break;
            }
            for (task, reply) in now.iter().zip(self.shaped(WHAT, reply::array(reply))?) {
                match reply {
                    redis::Value::Int(_) => {
                        delivered.done.push(task.entry.clone());
                        delivered.have_delays |= task.delay_ms > 0;
                    }
                    why => {
                        let why = self.shaped(WHAT, reply::text(why))?;
                        delivered.refused.get_or_insert((task.id.clone(), why));
                    }
                }
            }
        }
        // This does not wait for the tasks of other queues: the statuses of these tasks might expire
        // meanwhile.
        if !delivered.done.is_empty() {
            let gone = redis::cmd("XDEL").arg(&self.keys.out).arg(&delivered.done).to_owned();
            self.link.command(WHAT, &gone).await?;
        }
        Ok(delivered)
    }
}

/// The result for the tasks of a page for one queue.
#[derive(Default)]
struct Delivered {
    /// The entries of tasks that are in their queue.
    done: Vec<String>,
    /// Whether a call came too late, so that the rest of the tasks stay until the next walk.
    is_late: bool,
    have_delays: bool,
    /// The id of the first task that was refused, and why.
    refused: Option<(String, String)>,
}

fn late(link: &Link) -> QueueError {
    QueueError::new(WHAT, link.address(), timed_out())
}

impl Relayed {
    fn refuse(&mut self, refused: Option<(String, String)>) {
        if let Some((id, why)) = refused
            && self.refused.iter().all(|(_, known)| *known != why)
            && self.refused.len() < MAX_PAGE
        {
            self.refused.push((id, why));
        }
    }
}

impl Waiting {
    /// The part of a call that enqueues this task.
    fn call(&self, target: &TargetQueue) -> Part {
        let own_key = text_of(&self.fields, "tq-key");
        let mut fields = Vec::new();
        if !target.key.is_empty() {
            let field = |(name, value): &(Vec<u8>, Vec<u8>)| Field {
                name: String::from_utf8_lossy(name).into_owned(),
                value: value.clone(),
            };
            fields.extend(self.fields.iter().map(field));
        }
        let key = idempotency_key(own_key.as_deref(), &fields, &target.key);
        enqueue_call(target, &self.id, self.delay_ms, key.as_deref(), self.fields.clone())
    }
}

/// How many of these tasks fit into one call: at least one.
fn fitting(tasks: &[Waiting]) -> usize {
    let mut bytes = 0;
    let fit = tasks.iter().take_while(|task| {
        bytes += codec::bytes_in(&task.fields);
        bytes <= PAGE_BYTES
    });
    fit.count().max(1)
}

fn text_of(fields: &RawFields, name: &str) -> Option<String> {
    String::from_utf8(reply::value_of(fields, name)?.to_vec()).ok()
}
