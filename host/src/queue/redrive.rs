//! Requeues, purges and copies dead letters, in bounded steps, oldest first.
//!
//! In: which dead letters, and what becomes of them. Out: counts. An operation on all that match can be split
//! into steps, each with a budget, and taken up again where the step before it ended. With a rate, a step
//! also ends when it would have to wait beyond its budget of time.
//!
//! Not here: finding dead letters (`dead`).

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;

use super::codec;
use super::dead::{DeadLetter, PAGE, Pages};
use super::error::{QueueError, QueueResult};
use super::filter::TaskFilter;
use super::handle::Queue;
use super::reply;
use super::script::{self, ScriptCall};
use crate::config::rules::Rate;

/// The most tasks that a count gives as a sample.
pub(crate) const SAMPLE: usize = 5;
/// The most bytes of dead letters that one call keeps, without those of the first of them.
const CALL_BYTES: usize = 4 << 20;
/// The most named dead letters that are looked up at once.
const NAMES: usize = 100;
/// The reply of requeue.lua for a task whose flow is not known any more.
const REQUEUED_WITHOUT_FLOW: u64 = 2;

/// The dead letters that an operation applies to.
#[derive(Debug, Clone)]
pub enum DeadChoice {
    /// By task id, or by alias: then the newest task with this alias.
    Ids(Vec<String>),
    /// All that exist now and pass the filter.
    All(Box<TaskFilter>),
}

/// The result of a requeue or purge. `succeeded` and `skipped` together are the number that was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct RedriveCounts {
    pub succeeded: u64,
    /// Tasks that are not dead (any more), or that can never run.
    pub skipped: u64,
    /// The number of succeeded ones that belong to a flow which is not known any more.
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

/// The fate of the chosen dead letters.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Redrive {
    /// At most at this rate.
    Requeue(Option<Rate>),
    Purge,
    /// They stay, and are copied into the stream of the job for which this queue keeps them
    /// (`Queue::keeping`).
    Copy,
    /// Letters that a job kept become dead letters again. They are read from the job's stream
    /// (`Queue::kept_by`).
    Restore,
    /// Nothing is changed: the dead letters that a requeue or a purge would take are counted.
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
    /// How many dead letters one step takes: at a rate, those of a tenth of a second, at least one.
    fn at_once(self) -> usize {
        let Redrive::Requeue(Some(rate)) = self else { return PAGE };
        let tenth = f64::from(rate.count) / rate.per.as_secs_f64() / 10.0;
        (tenth as usize).clamp(1, PAGE)
    }

    /// The time between requeueing `count` letters and requeueing the next ones.
    fn pause(self, count: u64) -> Duration {
        let Redrive::Requeue(Some(rate)) = self else { return Duration::ZERO };
        rate.per.mul_f64(count as f64 / f64::from(rate.count))
    }
}

/// How far an operation on all dead letters that match has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeadWalk {
    /// The beginning of the rest, as XRANGE takes it: `-`, or `(` and the last entry that is done.
    pub from: String,
    /// The last entry when the operation began. Tasks that die later are left out: else it might never end.
    pub last: String,
    /// At a rate, nothing is requeued before this time (ms since the Unix epoch, by Redis's clock).
    pub not_before_ms: u64,
}

/// The most that a step of an operation does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepBudget {
    /// Entries that it looks at.
    pub entries: u64,
    pub until: Instant,
}

/// The result of a step.
#[derive(Debug)]
pub(crate) struct RedriveStep {
    pub done: RedriveCounts,
    pub examined: u64,
    /// None: nothing is left.
    pub next: Option<DeadWalk>,
    /// The time that the rate lets pass before the next step can do anything.
    pub wait: Duration,
    /// The first ones of those that were counted.
    pub sample: Vec<DeadLetter>,
}

#[derive(Default)]
struct RedriveProgress {
    asked_for: u64,
    examined: u64,
    succeeded: u64,
    without_flow: u64,
    is_writing: bool,
    /// The number of dead letters that the latest call sent to Redis.
    sent: u64,
    sample: Vec<DeadLetter>,
}

/// When a step may go on: at a rate, and within its budget.
struct RedrivePace {
    what: Redrive,
    budget: Option<StepBudget>,
    /// Nothing is requeued before this moment.
    free_at: Option<Instant>,
    /// The beginning of the step, by this machine's clock and by Redis's.
    begun: (Instant, u64),
}

impl RedrivePace {
    fn new(what: Redrive, budget: Option<StepBudget>, not_before_ms: u64, now_ms: u64) -> RedrivePace {
        // A client sends this time. It may be wrong, or from a request with another rate, so it counts for no
        // longer than one pause of this rate.
        let longest = what.pause(what.at_once() as u64);
        let ahead = Duration::from_millis(not_before_ms.saturating_sub(now_ms)).min(longest);
        let begun = Instant::now();
        let free_at = (!ahead.is_zero()).then(|| begun + ahead);
        RedrivePace { what, budget, free_at, begun: (begun, now_ms) }
    }

    /// When the next ones may be requeued, by Redis's clock; 0: at once.
    fn free_at_ms(&self) -> u64 {
        let (begun, begun_ms) = self.begun;
        self.free_at
            .map_or(0, |free_at| begun_ms + free_at.saturating_duration_since(begun).as_millis() as u64)
    }

    fn is_late(&self) -> bool {
        self.budget.is_some_and(|budget| Instant::now() >= budget.until)
    }

    /// Waits until the next ones may be requeued. False: the step would take too long.
    async fn wait(&self) -> bool {
        let Some(free_at) = self.free_at else { return true };
        if self.budget.is_some_and(|budget| free_at > budget.until) {
            return false;
        }
        tokio::time::sleep_until(free_at).await;
        true
    }

    /// Notes that `sent` letters were requeued just now.
    fn note(&mut self, sent: u64) {
        let pause = self.what.pause(sent);
        self.free_at = (!pause.is_zero()).then(|| Instant::now() + pause);
    }

    /// The time that is left to wait.
    fn left(&self) -> Duration {
        self.free_at.map_or(Duration::ZERO, |free_at| free_at.saturating_duration_since(Instant::now()))
    }
}

impl RedriveProgress {
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
        match self.redrive_chosen(choice, what, &mut progress).await {
            Ok(()) => Ok(progress.done()),
            Err(cause) => Err(progress.failed(cause)),
        }
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
        match self.redrive_names(names, what, &mut progress).await {
            Ok(()) => Ok(progress.done()),
            Err(cause) => Err(progress.failed(cause)),
        }
    }

    async fn redrive_names(
        &self,
        names: &[String],
        what: Redrive,
        progress: &mut RedriveProgress,
    ) -> QueueResult {
        let mut pace = RedrivePace::new(what, None, 0, 0);
        // An id and an alias may name one dead letter.
        let mut taken = HashSet::new();
        for some in names.chunks(NAMES) {
            let mut found = self.dead_by_name(some).await?;
            let letters = some.iter().filter_map(|name| found.remove(name.as_str()));
            let letters: Vec<DeadLetter> =
                letters.filter(|letter| taken.insert(letter.entry.clone())).collect();
            self.redrive_page(&letters, &mut pace, progress).await?;
        }
        Ok(())
    }

    /// The beginning of a walk through those that are dead now.
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
                let mut pace = RedrivePace::new(what, None, 0, 0);
                for entries in self.dead_entries(names, &walk.last).await?.chunks(PAGE) {
                    let letters = self.dead_at(entries).await?;
                    self.redrive_page(&letters, &mut pace, progress).await?;
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
        let mut pace = RedrivePace::new(what, budget, walk.not_before_ms, now_ms);
        let mut pages = Pages::between(walk.from.clone(), walk.last.clone());
        while let Some(page) = pages.next(self).await? {
            progress.examined += page.len() as u64;
            let end = page.last().map(|last| last.entry.clone()).unwrap_or_default();
            let chosen: Vec<_> =
                page.into_iter().filter(|letter| filter.takes(&letter.traits(), now_ms)).collect();
            for some in chosen.chunks(what.at_once()) {
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
            let is_spent = budget.is_some_and(|budget| progress.examined >= budget.entries);
            if (is_spent || pace.is_late()) && pages.has_more() {
                return Ok(Some(pace.left()));
            }
        }
        Ok(None)
    }

    async fn redrive_page(
        &self,
        letters: &[DeadLetter],
        pace: &mut RedrivePace,
        progress: &mut RedriveProgress,
    ) -> QueueResult {
        for some in letters.chunks(pace.what.at_once()) {
            pace.wait().await;
            self.redrive_some(some, pace.what, progress).await?;
            pace.note(progress.sent);
        }
        Ok(())
    }

    /// Requeues, purges, copies or counts these letters. The caller passes no more than one step may take.
    async fn redrive_some(
        &self,
        letters: &[DeadLetter],
        what: Redrive,
        progress: &mut RedriveProgress,
    ) -> QueueResult {
        let runnable = || letters.iter().filter(|letter| !letter.is_packed());
        progress.sent = 0;
        match what {
            Redrive::Count(Counted::Purged) => progress.count(letters.iter()),
            Redrive::Count(Counted::Tried) => progress.count(runnable()),
            Redrive::Count(Counted::Requeued) | Redrive::Requeue(_) | Redrive::Restore => {
                let only_says = matches!(what, Redrive::Count(_));
                let calls: Vec<ScriptCall> = match what {
                    Redrive::Restore => letters.iter().map(|letter| self.restore_call(letter)).collect(),
                    _ => runnable().map(|letter| self.requeue_call(letter, only_says)).collect(),
                };
                if calls.is_empty() {
                    return Ok(());
                }
                if !only_says {
                    (progress.is_writing, progress.sent) = (true, calls.len() as u64);
                }
                let replies = self.link.scripts("requeue", &calls).await?;
                let counts: Vec<QueueResult<u64>> =
                    replies.into_iter().map(|reply| self.shaped("requeue", reply::count(&reply?))).collect();
                let of_kind = |is: fn(&u64) -> bool| counts.iter().flatten().filter(|n| is(n)).count() as u64;
                let is_done = |count: &QueueResult<u64>| matches!(count, Ok(1..));
                match only_says {
                    true => {
                        progress.count(runnable().zip(&counts).filter(|(_, n)| is_done(n)).map(|(it, _)| it));
                    }
                    false => progress.succeeded += of_kind(|n| *n > 0),
                }
                progress.without_flow += of_kind(|n| *n == REQUEUED_WITHOUT_FLOW);
                counts.into_iter().collect::<QueueResult<Vec<u64>>>()?;
                progress.is_writing = false;
                if !matches!(what, Redrive::Requeue(_)) {
                    return Ok(());
                }
                let named: Vec<_> = runnable()
                    .filter_map(|letter| self.waiting(&letter.id, &letter.fields, letter.enqueued_at))
                    .collect();
                self.note(&self.keys, &named).await?;
            }
            Redrive::Purge | Redrive::Copy if letters.is_empty() => {}
            Redrive::Copy => {
                // Else they would go to the queue's own stream.
                assert!(self.is_keeping(), "a job copies dead letters into its own stream");
                self.keep_some(letters, false, progress).await?;
            }
            Redrive::Purge if self.is_keeping() => self.keep_some(letters, true, progress).await?,
            Redrive::Purge => {
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

    /// Copies letters into the stream of the job for which this queue keeps them. With `deletes`, the same
    /// step deletes the originals.
    async fn keep_some(
        &self,
        letters: &[DeadLetter],
        deletes: bool,
        progress: &mut RedriveProgress,
    ) -> QueueResult {
        let mut bytes = 0;
        let fits = |_: &DeadLetter, next: &DeadLetter| {
            bytes += next.bytes();
            let fits = bytes <= CALL_BYTES;
            bytes = if fits { bytes } else { 0 };
            fits
        };
        for some in letters.chunk_by(fits) {
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

    /// With `only_says`, the call gives the same reply, and writes nothing.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pause_fits_into_the_step_or_ends_it_and_is_never_longer_than_the_rate_asks() {
        let rate = |count, secs| Redrive::Requeue(Some(Rate { count, per: Duration::from_secs(secs) }));
        let budget = StepBudget { entries: 1, until: Instant::now() + Duration::from_secs(10) };
        let begun = |what, not_before_ms| RedrivePace::new(what, Some(budget), not_before_ms, 1_000);
        let slow = begun(rate(1, 60), u64::MAX);
        assert!(!slow.wait().await && slow.left() > Duration::from_secs(50), "{:?}", slow.left());
        assert!((1_001..=61_000).contains(&slow.free_at_ms()), "{}", slow.free_at_ms());
        assert!(begun(rate(1, 60), 1_000).wait().await, "its time has come");
        for unpaced in [Redrive::Purge, Redrive::Requeue(None), Redrive::Count(Counted::Requeued)] {
            assert!(begun(unpaced, u64::MAX).wait().await, "{unpaced:?}");
        }
        let mut quick = begun(rate(100, 1), 0);
        quick.note(10);
        assert!(quick.left() <= Duration::from_millis(100) && quick.wait().await);
    }
}
