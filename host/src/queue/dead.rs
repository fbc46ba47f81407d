//! Dead letters: list, show, requeue, purge. Everything happens in bounded pages, oldest first.
//!
//! In: filters, ids and rates. Out: [`DeadLetter`]s and counts. Not here: the burial of a task (`settle`).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use super::codec::{self, RawFields, StreamEntry};
use super::error::QueueError;
use super::handle::Queue;
use super::reply;
use super::script::{self, ScriptCall, with_fields};
use crate::config::model::Rate;
use crate::task::Task;

/// Dead letters read, requeued or purged in one step.
const PAGE: usize = 200;
/// The reply of requeue.lua for a task whose flow is not known any more.
const REQUEUED_WITHOUT_FLOW: u64 = 2;

/// A task that will not be tried again. Times are milliseconds since the Unix epoch, by Redis's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its own entry in the stream of dead letters.
    pub entry: String,
    /// The task's id.
    pub id: String,
    pub queue: String,
    pub reason: String,
    pub error: String,
    pub attempts: u32,
    pub enqueued_at: u64,
    pub failed_at: u64,
    pub consumer: String,
    pub plugin: String,
    /// The producer's fields.
    pub fields: RawFields,
    pub(crate) raw: RawFields,
}

/// The reason of a dead letter that another program wrote.
pub(crate) const FOREIGN: &str = "foreign";

impl DeadLetter {
    fn read(entry: StreamEntry) -> DeadLetter {
        // The host's own fields come last; a malformed task may have fields of these names before them.
        let text = |name: &str| {
            let found = entry.fields.iter().rev().find(|(known, _)| known == name.as_bytes());
            found.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
        };
        let is_foreign = !entry.fields.iter().any(|(name, _)| name == b"tq-reason");
        // An entry's id is no name for a foreign one: a task of the queue may have that id.
        let unnamed = if is_foreign { format!("{FOREIGN}-{}", entry.id) } else { entry.id.clone() };
        let id = Some(text("tq-id")).filter(|id| !id.is_empty()).unwrap_or(unnamed);
        let number = |name: &str| text(name).parse().ok();
        let failed_at =
            number("tq-failed-at").unwrap_or(if is_foreign { codec::entry_time_ms(&entry.id) } else { 0 });
        let is_own =
            |(name, _): &&(Vec<u8>, Vec<u8>)| !std::str::from_utf8(name).is_ok_and(codec::is_of_host);
        DeadLetter {
            id,
            queue: text("tq-queue"),
            reason: if is_foreign { FOREIGN.to_owned() } else { text("tq-reason") },
            error: text("tq-error"),
            attempts: text("tq-attempts").parse().unwrap_or(0),
            enqueued_at: number("tq-enqueued-at").unwrap_or(0),
            failed_at,
            consumer: text("tq-consumer"),
            plugin: text("tq-plugin"),
            fields: entry.fields.iter().filter(is_own).cloned().collect(),
            entry: entry.id,
            raw: entry.fields,
        }
    }

    /// The task, as its last attempt had it.
    pub(crate) fn task(&self, queue: &Arc<str>) -> Result<Task, codec::Malformed> {
        if self.is_packed() {
            return Err(codec::Malformed::TooManyFields(self.raw.len()));
        }
        let entry = StreamEntry { id: self.entry.clone(), fields: self.raw.clone(), deliveries: 1 };
        let task = codec::decode(queue, entry).map_err(|(why, _)| why)?;
        // The number in the dead letter is that of its last delivery, and counts no further one.
        Ok(Task { attempt: self.attempts.max(1), fence: task.fence.saturating_sub(1).max(1), ..task })
    }

    /// Whether another program wrote it, and nothing was noted about it.
    pub(crate) fn is_unread(&self) -> bool {
        !self.raw.iter().any(|(name, _)| name == b"tq-reason")
    }

    /// Whether it had too many fields to keep them one by one: such a task can never run.
    fn is_packed(&self) -> bool {
        self.raw.iter().any(|(name, _)| name == b"tq-packed")
    }

    fn is_named(&self, ids: &HashSet<&str>) -> bool {
        // The new id is not the entry id of the dead letter. That has the form of a task's id, and where many
        // tasks die at once another task soon has the same one.
        ids.contains(self.id.as_str())
    }
}

/// A filter for dead letters. An empty one takes all.
#[derive(Debug, Clone, Default)]
pub struct DeadFilter {
    /// The value of `tq-reason`.
    pub reason: Option<String>,
    /// Text that occurs in the error, in the id or in a field's value.
    pub text: Option<String>,
    /// Dead for at least this long, by Redis's clock.
    pub older_than: Option<Duration>,
    /// Dead for less than this long, by Redis's clock.
    pub newer_than: Option<Duration>,
}

impl DeadFilter {
    /// Whether the filter is empty and takes all.
    pub fn is_empty(&self) -> bool {
        self.reason.is_none() && self.text.is_none() && self.older_than.is_none() && self.newer_than.is_none()
    }

    fn takes(&self, letter: &DeadLetter, now_ms: u64) -> bool {
        let age = Duration::from_millis(now_ms.saturating_sub(letter.failed_at));
        let has = |text: &str| {
            let in_fields =
                || letter.fields.iter().any(|(_, value)| String::from_utf8_lossy(value).contains(text));
            letter.error.contains(text) || letter.id.contains(text) || in_fields()
        };
        self.reason.as_ref().is_none_or(|reason| *reason == letter.reason)
            && self.text.as_deref().is_none_or(has)
            && self.older_than.is_none_or(|least| age >= least)
            && self.newer_than.is_none_or(|most| age < most)
    }
}

/// The dead letters that an operation applies to.
#[derive(Debug, Clone)]
pub enum DeadChoice {
    /// By task id, or by alias: then the newest task with this alias.
    Ids(Vec<String>),
    /// All that exist now and pass the filter.
    All(DeadFilter),
}

/// The result of a requeue or purge. Both numbers together are the number of dead letters asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Redriven {
    pub succeeded: u64,
    /// Is not dead (any more), or can never run.
    pub skipped: u64,
    /// So many of the succeeded ones belong to a flow that is not known any more.
    #[serde(skip_serializing_if = "is_zero")]
    pub without_flow: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Why a requeue or purge ended too early, and how far it came. It may be repeated.
#[derive(Debug)]
pub struct RedriveError {
    pub cause: QueueError,
    /// The dead letters that were requeued or purged for certain.
    pub succeeded: u64,
    /// Whether Redis may have carried out the last step, since its reply did not come.
    pub in_doubt: bool,
}

#[derive(Default)]
struct RedriveProgress {
    succeeded: u64,
    without_flow: u64,
    is_writing: bool,
}

#[derive(Clone, Copy)]
enum RedriveStep {
    /// At most at this rate.
    Requeue(Option<Rate>),
    Purge,
}

impl Queue {
    /// Up to `limit` dead letters that pass the filter, oldest first.
    pub async fn dead_letters(
        &self,
        filter: &DeadFilter,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, QueueError> {
        let now_ms = self.now_ms().await?;
        let mut out = Vec::new();
        let mut pages = Pages::new(None);
        while let Some(page) = pages.next(self).await? {
            out.extend(
                page.into_iter().filter(|letter| filter.takes(letter, now_ms)).take(limit - out.len()),
            );
            if out.len() >= limit {
                break;
            }
        }
        Ok(out)
    }

    /// The oldest dead letter of the task with this id, or else the newest one of a task with this alias.
    pub async fn dead_letter(&self, id: &str) -> Result<Option<DeadLetter>, QueueError> {
        let ids = HashSet::from([id]);
        let mut aliased = None;
        let mut pages = Pages::new(None);
        while let Some(page) = pages.next(self).await? {
            for letter in page {
                if letter.is_named(&ids) {
                    return Ok(Some(letter));
                }
                if self.is_alias(id, &letter.fields) {
                    aliased = Some(letter);
                }
            }
        }
        Ok(aliased)
    }

    /// The dead letters that are meant by these names, as with [`Queue::dead_letter`], up to the entry
    /// `last`. Gives their entries.
    async fn dead_entries(&self, names: &[String], last: &str) -> Result<HashSet<String>, QueueError> {
        let ids: HashSet<&str> = names.iter().map(String::as_str).collect();
        let aliases: HashMap<Vec<u8>, &str> = ids.iter().map(|name| (self.alias_key(name), *name)).collect();
        let (mut by_id, mut by_alias) = (HashMap::new(), HashMap::new());
        let mut pages = Pages::new(Some(last.to_owned()));
        while let Some(page) = pages.next(self).await? {
            for letter in page {
                let alias = self.alias_of(&letter.fields).and_then(|alias| aliases.get(&alias));
                if let Some(name) = alias {
                    by_alias.insert(*name, letter.entry.clone());
                }
                if let Some(name) = ids.get(letter.id.as_str()) {
                    by_id.entry(*name).or_insert(letter.entry);
                }
            }
        }
        Ok(ids.into_iter().filter_map(|name| by_id.remove(name).or_else(|| by_alias.remove(name))).collect())
    }

    /// Brings dead letters back into the queue, as tasks on their first attempt. `rate` keeps tasks that
    /// failed from all coming back at once. May be interrupted and repeated.
    pub async fn requeue(&self, choice: &DeadChoice, rate: Option<Rate>) -> Result<Redriven, RedriveError> {
        self.redrive(choice, RedriveStep::Requeue(rate)).await
    }

    /// Deletes dead letters for good. May be interrupted and repeated.
    pub async fn purge(&self, choice: &DeadChoice) -> Result<Redriven, RedriveError> {
        self.redrive(choice, RedriveStep::Purge).await
    }

    async fn redrive(&self, choice: &DeadChoice, step: RedriveStep) -> Result<Redriven, RedriveError> {
        let mut progress = RedriveProgress::default();
        let asked_for = self.redrive_pages(choice, step, &mut progress).await;
        let RedriveProgress { succeeded, without_flow, is_writing } = progress;
        match asked_for {
            Ok(asked_for) => Ok(Redriven { succeeded, skipped: asked_for - succeeded, without_flow }),
            Err(cause) => {
                Err(RedriveError { succeeded, in_doubt: is_writing && cause.is_connection(), cause })
            }
        }
    }

    /// Gives how many dead letters were asked for.
    async fn redrive_pages(
        &self,
        choice: &DeadChoice,
        step: RedriveStep,
        progress: &mut RedriveProgress,
    ) -> Result<u64, QueueError> {
        // Tasks that die during this call are left for the next one. Otherwise the call might never end.
        let last = self.last_dead().await?;
        let mut pages = Pages::new(Some(last.clone()));
        let now_ms = self.now_ms().await?;
        match choice {
            DeadChoice::All(filter) => {
                let mut asked_for = 0;
                while let Some(page) = pages.next(self).await? {
                    let chosen: Vec<_> =
                        page.into_iter().filter(|letter| filter.takes(letter, now_ms)).collect();
                    asked_for += chosen.len() as u64;
                    self.redrive_page(&chosen, step, progress).await?;
                }
                Ok(asked_for)
            }
            // A task may be named by its alias, and only a look at all of them tells which one is the newest.
            DeadChoice::Ids(names) if self.rules.id.is_some() => {
                let mut entries = self.dead_entries(names, &last).await?;
                while !entries.is_empty()
                    && let Some(page) = pages.next(self).await?
                {
                    let chosen: Vec<_> =
                        page.into_iter().filter(|letter| entries.remove(&letter.entry)).collect();
                    self.redrive_page(&chosen, step, progress).await?;
                }
                Ok(names.len() as u64)
            }
            DeadChoice::Ids(ids) => {
                let mut open: HashSet<&str> = ids.iter().map(String::as_str).collect();
                while !open.is_empty()
                    && let Some(page) = pages.next(self).await?
                {
                    let mut chosen = Vec::new();
                    for letter in page.into_iter().filter(|letter| letter.is_named(&open)).collect::<Vec<_>>()
                    {
                        if open.remove(letter.id.as_str()) {
                            chosen.push(letter);
                        }
                    }
                    self.redrive_page(&chosen, step, progress).await?;
                }
                Ok(ids.len() as u64)
            }
        }
    }

    async fn redrive_page(
        &self,
        letters: &[DeadLetter],
        step: RedriveStep,
        progress: &mut RedriveProgress,
    ) -> Result<(), QueueError> {
        match step {
            RedriveStep::Requeue(rate) => {
                let able: Vec<&DeadLetter> = letters.iter().filter(|letter| !letter.is_packed()).collect();
                for some in able.chunks(rate.map_or(PAGE, at_once)) {
                    let calls: Vec<ScriptCall> =
                        some.iter().map(|letter| self.requeue_call(letter)).collect();
                    progress.is_writing = true;
                    let replies = self.link.scripts("requeue", &calls).await?;
                    let counts: Vec<Result<u64, QueueError>> = replies
                        .into_iter()
                        .map(|reply| self.shaped("requeue", reply::count(&reply?)))
                        .collect();
                    let of_kind =
                        |is: fn(&u64) -> bool| counts.iter().flatten().filter(|n| is(n)).count() as u64;
                    progress.succeeded += of_kind(|n| *n > 0);
                    progress.without_flow += of_kind(|n| *n == REQUEUED_WITHOUT_FLOW);
                    counts.into_iter().collect::<Result<Vec<u64>, QueueError>>()?;
                    progress.is_writing = false;
                    let named: Vec<_> = some
                        .iter()
                        .filter_map(|letter| self.waiting(&letter.id, &letter.fields, letter.enqueued_at))
                        .collect();
                    self.note(&self.keys, &named).await?;
                    if let Some(rate) = rate {
                        tokio::time::sleep(rate.per.mul_f64(some.len() as f64 / f64::from(rate.count))).await;
                    }
                }
            }
            RedriveStep::Purge if letters.is_empty() => {}
            RedriveStep::Purge => {
                let mut delete = redis::cmd("XDEL");
                delete
                    .arg(&self.keys.dead)
                    .arg(letters.iter().map(|letter| &letter.entry).collect::<Vec<_>>());
                progress.is_writing = true;
                let reply = self.link.command("purge", &delete).await?;
                progress.succeeded += self.shaped("purge", reply::count(&reply))?;
                progress.is_writing = false;
            }
        }
        Ok(())
    }

    fn requeue_call(&self, letter: &DeadLetter) -> ScriptCall {
        let call = ScriptCall::new(&script::REQUEUE)
            .key(&self.keys.stream)
            .key(&self.keys.dead)
            .key(self.keys.task(&letter.id))
            .telling(Arc::clone(&self.told));
        with_fields(call.arg(&letter.entry).arg(letter.enqueued_at), codec::revived(&letter.id, &letter.raw))
    }

    /// Redis's clock, in milliseconds since the Unix epoch.
    pub(crate) async fn now_ms(&self) -> Result<u64, QueueError> {
        let reply = self.link.command("ask for the time", &redis::cmd("TIME")).await?;
        self.shaped("ask for the time", super::census::time_ms(reply))
    }

    /// The newest dead letter's entry id; `0-0` when there is none.
    pub(crate) async fn last_dead(&self) -> Result<String, QueueError> {
        let command: Cmd =
            redis::cmd("XREVRANGE").arg(&self.keys.dead).arg("+").arg("-").arg("COUNT").arg(1).to_owned();
        let reply = self.link.command("read dead letters", &command).await?;
        let first = |reply| {
            let Some(entry) = reply::array(reply)?.into_iter().next() else { return Ok("0-0".to_owned()) };
            let [id, _] = reply::tuple(entry)?;
            reply::text(id)
        };
        self.shaped("read dead letters", first(reply))
    }
}

/// How many dead letters one step requeues: those of a tenth of a second, at least one.
fn at_once(rate: Rate) -> usize {
    let tenth = f64::from(rate.count) / rate.per.as_secs_f64() / 10.0;
    (tenth as usize).clamp(1, PAGE)
}

/// Reads the dead letters page by page. Deleting entries that were read does not disturb it.
pub(crate) struct Pages {
    from: Option<String>,
    to: String,
}

impl Pages {
    /// The last entry to read; none: the end of the stream.
    pub(crate) fn new(to: Option<String>) -> Pages {
        Pages { from: Some("-".to_owned()), to: to.unwrap_or_else(|| "+".to_owned()) }
    }

    pub(crate) async fn next(&mut self, queue: &Queue) -> Result<Option<Vec<DeadLetter>>, QueueError> {
        let Some(from) = &self.from else { return Ok(None) };
        let page = queue.range(&queue.keys.dead, from, &self.to, PAGE).await?;
        self.from = page.last().filter(|_| page.len() == PAGE).map(|last| format!("({}", last.id));
        Ok(Some(page.into_iter().map(DeadLetter::read).collect()).filter(|page: &Vec<_>| !page.is_empty()))
    }
}
