//! Requeues, purges and copies dead letters, in bounded steps, oldest first.
//!
//! In: which dead letters, and what becomes of them. Out: counts. An operation on all that match can be split
//! into steps, each with a budget. Each step begins where the step before it ended. With a rate, a step also
//! ends when it would have to wait beyond its budget of time.
//!
//! Not here: finding dead letters (`dead`), waiting for a rate (`pace`).

use std::collections::HashSet;
use std::time::Duration;

use super::codec;
use super::dead::{DeadLetter, PAGE, Pages};
use super::error::{QueueError, QueueResult};
use super::filter::TaskFilter;
use super::handle::Queue;
use super::pace::Pace;
pub(crate) use super::pace::StepBudget;
use super::reply;
use super::script::{self, ScriptCall};
use crate::config::rules::Rate;

/// The most tasks that a count returns as a sample.
pub(crate) const SAMPLE: usize = 5;
/// The most bytes of dead letters that one call keeps. The first letter of a call may be larger.
const CALL_BYTES: usize = 4 << 20;
/// The most named dead letters that are looked up at once.
const NAMES: usize = 100;
/// The reply of requeue.lua for a task whose flow is not known any more.
const REQUEUED_WITHOUT_FLOW: u64 = 2;

/// The dead letters that an operation applies to.
#[derive(Debug, Clone)]
pub enum DeadChoice {
    /// The tasks with these ids, or the newest task with each alias.
    Ids(Vec<String>),
    /// All dead letters that exist now and pass the filter.
    All(Box<TaskFilter>),
}

/// The result of a requeue or purge. `succeeded` and `skipped` together are the number that was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct RedriveCounts {
    pub succeeded: u64,
    /// Tasks that are not dead (any more), or that can never run.
    pub skipped: u64,
    /// How many of the succeeded tasks belong to a flow that is not known any more.
    #[serde(skip_serializing_if = "is_zero")]
    pub without_flow: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Why a requeue or purge ended too early, and how far it came. The operation may be repeated.
#[derive(Debug)]
pub struct RedriveError {
    pub cause: QueueError,
    /// The dead letters that were requeued or purged for certain.
    pub succeeded: u64,
    /// Whether Redis may have carried out the last call, whose reply did not come.
    pub in_doubt: bool,
}

/// The fate of the chosen dead letters.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Redrive {
    /// At most at this rate.
    Requeue(Option<Rate>),
    Purge,
    /// The letters stay, and copies go into the stream of a job. The queue is one of [`Queue::keeping`].
    Copy,
    /// Letters that a job has kept become dead letters again. The queue is one of [`Queue::kept_by`].
    Restore,
    /// Counts the dead letters that a requeue or a purge would take, and changes nothing.
    Count(Counted),
}

/// Which dead letters are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    /// All, as a purge takes them.
    Purged,
    /// The ones that a requeue would bring back. Redis is asked about each.
    Requeued,
    /// The ones that a requeue would try to bring back. Redis is not asked.
    Tried,
}

impl Redrive {
    /// The rate at which letters go back. None: without a pause.
    fn rate(self) -> Option<Rate> {
        match self {
            Redrive::Requeue(rate) => rate,
            _ => None,
        }
    }
}

/// How far an operation on all dead letters that match has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeadWalk {
    /// Where the rest begins, as XRANGE takes it: `-`, or `(` and the last entry that is done.
    pub from: String,
    /// The last entry when the operation began. Tasks that die later are left out: otherwise the operation
    /// might never end.
    pub last: String,
    /// At a rate, nothing is requeued before this time (ms since the Unix epoch, by Redis's clock).
    pub not_before_ms: u64,
}

/// The result of a step.
#[derive(Debug)]
pub(crate) struct RedriveStep {
    pub done: RedriveCounts,
    pub examined: u64,
    /// None: nothing is left.
    pub next: Option<DeadWalk>,
    /// With a rate: how long the next step has to wait before it can requeue anything.
    pub wait: Duration,
    /// The first letters that were counted.
    pub sample: Vec<DeadLetter>,
}

#[derive(Default)]
struct RedriveProgress {
    asked_for: u64,
    examined: u64,
    succeeded: u64,
    without_flow: u64,
    /// Whether a call that writes has been sent, and its reply is not known.
    is_writing: bool,
    /// The number of letters in the latest call that writes.
    sent: u64,
    sample: Vec<DeadLetter>,
}

impl RedriveProgress {
    /// Counts letters that a requeue or a purge would take.
    fn count<'l>(&mut self, letters: impl Iterator<Item = &'l DeadLetter>) {
        for letter in letters {
            self.succeeded += 1;
            if self.sample.len() < SAMPLE {
                self.sample.push(letter.clone());
            }
        }
    }

    fn done(&self) -> RedriveCounts {
        RedriveCounts {
            succeeded: self.succeeded,
            skipped: self.asked_for - self.succeeded,
            without_flow: self.without_flow,
        }
    }

    fn failed(&self, cause: QueueError) -> RedriveError {
        let in_doubt = self.is_writing && cause.is_connection();
        RedriveError { succeeded: self.succeeded, in_doubt, cause }
    }
}

impl Queue {
    /// Brings dead letters back into the queue, as tasks on their first attempt. `rate` keeps tasks that
    /// failed from all coming back at once. May be interrupted and repeated.
    pub async fn requeue(
        &self,
        choice: &DeadChoice,
        rate: Option<Rate>,
    ) -> Result<RedriveCounts, RedriveError> {
        self.redrive(choice, Redrive::Requeue(rate)).await
    }

    /// Deletes dead letters for good. May be interrupted and repeated.
    pub async fn purge(&self, choice: &DeadChoice) -> Result<RedriveCounts, RedriveError> {
        self.redrive(choice, Redrive::Purge).await
    }

    /// Requeues, purges or counts the chosen dead letters, however many there are. With a filter, and for
    /// names that no status knows, it reads all dead letters.
    pub(crate) async fn redrive(
        &self,
        choice: &DeadChoice,
        what: Redrive,
    ) -> Result<RedriveCounts, RedriveError> {
        let mut progress = RedriveProgress::default();
        let ended = self.redrive_chosen(choice, what, &mut progress).await;
        ended.map(|()| progress.done()).map_err(|cause| progress.failed(cause))
    }

    /// Takes one step of an operation on all dead letters that match. `walk` is [`Queue::begin_walk`] at
    /// first, and then the one that the step before returned.
    pub(crate) async fn redrive_step(
        &self,
        filter: &TaskFilter,
        what: Redrive,
        mut walk: DeadWalk,
        budget: StepBudget,
    ) -> Result<RedriveStep, RedriveError> {
        let mut progress = RedriveProgress::default();
        match self.redrive_all(filter, what, &mut walk, Some(budget), &mut progress).await {
            Ok(wait) => Ok(RedriveStep {
                done: progress.done(),
                examined: progress.examined,
                next: wait.is_some().then_some(walk),
                wait: wait.unwrap_or_default(),
                sample: progress.sample,
            }),
            Err(cause) => Err(progress.failed(cause)),
        }
    }

    /// Requeues, purges or counts the dead letters with these names, as far as [`Queue::dead_named`] finds
    /// them.
    pub(crate) async fn redrive_named(
        &self,
        names: &[String],
        what: Redrive,
    ) -> Result<RedriveCounts, RedriveError> {
        let mut progress = RedriveProgress { asked_for: names.len() as u64, ..RedriveProgress::default() };
        let ended = self.redrive_names(names, what, &mut progress).await;
        ended.map(|()| progress.done()).map_err(|cause| progress.failed(cause))
    }

    async fn redrive_names(
        &self,
        names: &[String],
        what: Redrive,
        progress: &mut RedriveProgress,
    ) -> QueueResult {
        let mut pace = Pace::new(what.rate());
        // An id and an alias may name one dead letter.
        let mut taken = HashSet::new();
        for some in names.chunks(NAMES) {
            let mut found = self.dead_by_name(some).await?;
            let letters = some.iter().filter_map(|name| found.remove(name.as_str()));
            let letters: Vec<DeadLetter> =
                letters.filter(|letter| taken.insert(letter.entry.clone())).collect();
            self.redrive_page(&letters, what, &mut pace, progress).await?;
        }
        Ok(())
    }

    /// The beginning of a walk through the letters that are dead now.
    pub(crate) async fn begin_walk(&self) -> QueueResult<DeadWalk> {
        Ok(DeadWalk { from: "-".to_owned(), last: self.last_dead().await?, not_before_ms: 0 })
    }

    async fn redrive_chosen(
        &self,
        choice: &DeadChoice,
        what: Redrive,
        progress: &mut RedriveProgress,
    ) -> QueueResult {
        let mut walk = self.begin_walk().await?;
        match choice {
            DeadChoice::All(filter) => {
                self.redrive_all(filter, what, &mut walk, None, progress).await?;
            }
            DeadChoice::Ids(names) => {
                progress.asked_for = names.len() as u64;
                let mut pace = Pace::new(what.rate());
                for entries in self.dead_entries(names, &walk.last).await?.chunks(PAGE) {
                    let letters = self.dead_at(entries).await?;
                    self.redrive_page(&letters, what, &mut pace, progress).await?;
                }
            }
        }
        Ok(())
    }

    /// Goes through all dead letters from `walk` on, until the budget is spent. Returns how long the next
    /// step has to wait; none when no dead letter is left.
    async fn redrive_all(
        &self,
        filter: &TaskFilter,
        what: Redrive,
        walk: &mut DeadWalk,
        budget: Option<StepBudget>,
        progress: &mut RedriveProgress,
    ) -> QueueResult<Option<Duration>> {
        let now_ms = self.now_ms().await?;
        let mut pace = Pace::within(budget, what.rate(), walk.not_before_ms, now_ms);
        let mut pages = Pages::between(walk.from.clone(), walk.last.clone());
        while let Some(page) = pages.next(self).await? {
            progress.examined += page.len() as u64;
            let end = page.last().map(|last| last.entry.clone()).unwrap_or_default();
            let chosen: Vec<_> =
                page.into_iter().filter(|letter| filter.takes(&letter.traits(), now_ms)).collect();
            for some in chosen.chunks(pace.at_once()) {
                if !pace.wait().await {
                    walk.not_before_ms = pace.free_at_ms();
                    return Ok(Some(pace.left()));
                }
                progress.asked_for += some.len() as u64;
                self.redrive_some(some, what, progress).await?;
                pace.note(progress.sent);
                if let Some(last) = some.last() {
                    walk.from = format!("({}", last.entry);
                    walk.not_before_ms = pace.free_at_ms();
                }
                // If the time is up, but this was the very last letter, the operation is done.
                let is_end = some.last().is_some_and(|last| last.entry == end) && !pages.has_more();
                if pace.is_late() && !is_end {
                    return Ok(Some(pace.left()));
                }
            }
            walk.from = format!("({end}");
            if pace.is_spent(progress.examined) && pages.has_more() {
                return Ok(Some(pace.left()));
            }
        }
        Ok(None)
    }

    /// Requeues, purges or counts letters, in as many calls as the pace asks for.
    async fn redrive_page(
        &self,
        letters: &[DeadLetter],
        what: Redrive,
        pace: &mut Pace,
        progress: &mut RedriveProgress,
    ) -> QueueResult {
        for some in letters.chunks(pace.at_once()) {
            pace.wait().await;
            self.redrive_some(some, what, progress).await?;
            pace.note(progress.sent);
        }
        Ok(())
    }

    /// Requeues, restores, purges, copies or counts letters. There are no more than one call may take.
    async fn redrive_some(
        &self,
        letters: &[DeadLetter],
        what: Redrive,
        progress: &mut RedriveProgress,
    ) -> QueueResult {
        let runnable: Vec<&DeadLetter> = letters.iter().filter(|letter| !letter.is_packed()).collect();
        progress.sent = 0;
        match what {
            Redrive::Count(Counted::Purged) => progress.count(letters.iter()),
            Redrive::Count(Counted::Tried) => progress.count(runnable.into_iter()),
            Redrive::Count(Counted::Requeued) => {
                let calls: Vec<_> = runnable.iter().map(|letter| self.requeue_call(letter, true)).collect();
                for (letter, reply) in runnable.iter().zip(self.requeued(&calls, progress).await?) {
                    if reply? > 0 {
                        progress.count([*letter].into_iter());
                    }
                }
            }
            Redrive::Requeue(_) => {
                let calls: Vec<_> = runnable.iter().map(|letter| self.requeue_call(letter, false)).collect();
                self.bring_back(&calls, progress).await?;
                let waiting =
                    |letter: &&DeadLetter| self.waiting(&letter.id, &letter.fields, letter.enqueued_at);
                let named: Vec<_> = runnable.iter().filter_map(waiting).collect();
                self.note(&self.keys, &named).await?;
            }
            Redrive::Restore => {
                let calls: Vec<_> = letters.iter().map(|letter| self.restore_call(letter)).collect();
                self.bring_back(&calls, progress).await?;
            }
            Redrive::Copy => {
                // The script takes the queue's own stream for that of a job.
                assert!(self.is_keeping(), "a job copies dead letters into its own stream");
                self.keep_some(letters, false, progress).await?;
            }
            Redrive::Purge if self.is_keeping() => self.keep_some(letters, true, progress).await?,
            Redrive::Purge => {
                let entries: Vec<&str> = letters.iter().map(|letter| letter.entry.as_str()).collect();
                progress.is_writing = true;
                progress.succeeded += self.delete_dead(&entries).await?;
                progress.is_writing = false;
            }
        }
        Ok(())
    }

    /// Makes calls that requeue or restore one letter each.
    async fn bring_back(&self, calls: &[ScriptCall], progress: &mut RedriveProgress) -> QueueResult {
        (progress.is_writing, progress.sent) = (!calls.is_empty(), calls.len() as u64);
        let replies = self.requeued(calls, progress).await?;
        progress.succeeded += replies.iter().flatten().filter(|number| **number > 0).count() as u64;
        replies.into_iter().try_for_each(|reply| reply.map(drop))?;
        progress.is_writing = false;
        Ok(())
    }

    /// The reply to each of these calls: 0, or [`REQUEUED_WITHOUT_FLOW`], or another number.
    async fn requeued(
        &self,
        calls: &[ScriptCall],
        progress: &mut RedriveProgress,
    ) -> QueueResult<Vec<QueueResult<u64>>> {
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        let replies = self.link.scripts("requeue", calls).await?;
        let number = |reply: QueueResult<_>| self.shaped("requeue", reply::count(&reply?));
        let replies: Vec<QueueResult<u64>> = replies.into_iter().map(number).collect();
        let without_flow = replies.iter().flatten().filter(|number| **number == REQUEUED_WITHOUT_FLOW);
        progress.without_flow += without_flow.count() as u64;
        Ok(replies)
    }

    /// Copies letters into the stream of the job for which this queue keeps them. With `deletes`, the call
    /// that copies a letter also deletes it.
    async fn keep_some(
        &self,
        letters: &[DeadLetter],
        deletes: bool,
        progress: &mut RedriveProgress,
    ) -> QueueResult {
        let mut bytes = 0;
        let fits_with_those_before = |_: &DeadLetter, next: &DeadLetter| {
            bytes += next.bytes();
            let fits = bytes <= CALL_BYTES;
            bytes = if fits { bytes } else { 0 };
            fits
        };
        for some in letters.chunk_by(fits_with_those_before) {
            let entries: Vec<&String> = some.iter().map(|letter| &letter.entry).collect();
            let call = self.call(&script::PURGE).arg("lives", self.kept_ms());
            let call = call.arg("deletes", u8::from(deletes)).arg("letters", entries);
            progress.is_writing = true;
            let reply = self.link.script(&call).await?;
            progress.succeeded += self.shaped("purge", reply::count(&reply))?;
            progress.is_writing = false;
        }
        Ok(())
    }

    /// The call that requeues a letter. With `only_says`, it has the same reply, and writes nothing.
    fn requeue_call(&self, letter: &DeadLetter, only_says: bool) -> ScriptCall {
        let call = self
            .call(if only_says { &script::REQUEUE_LOOK } else { &script::REQUEUE })
            .key("status", self.keys.task(&letter.id));
        let call = call.arg("letter", &letter.entry).arg("enqueued_at", letter.enqueued_at);
        let call = call.arg("only_says", u8::from(only_says));
        if only_says {
            let of_flow = letter.raw.iter().filter(|(name, _)| codec::is_of_flow(name));
            let named = of_flow.cloned().chain([codec::raw("tq-id", &letter.id)]);
            return call.fields(&named.collect());
        }
        call.fields(&codec::revived(&letter.id, &letter.raw))
    }
}
