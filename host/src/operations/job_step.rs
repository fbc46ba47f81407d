//! One step of a job: a process takes the lease, does the step, and writes down what it did.
//!
//! In: a job as it stands. Out: the job after that: what the step did, where the next one goes on, and what
//! the job keeps. Not here: which jobs there are (`jobs`), changing tasks (`cancel_all`, `queue::redrive`).

use std::time::Duration;

use tokio::time::Instant;

use super::cancel_all::{BulkCancel, cancel_all};
use super::dead::{read_walk, write_walk};
use super::deed::Deed;
use super::error::{OperationError, OperationResult};
use super::jobs::{BulkJob, JobState, edit};
use super::many::ManyDone;
use crate::config::QueueRules;
use crate::config::units::parse_rate;
use crate::mask::FieldMask;
use crate::queue::redrive::{Redrive, StepBudget};
use crate::queue::undo::{KeptTasks, MOST_BYTES};
use crate::queue::{Queue, TaskFilter};

/// For how long a step works, and how many dead letters it looks at. A host that is killed has not counted
/// the work of its last step.
const STEP: Duration = Duration::from_millis(300);
const STEP_LOOKS: u64 = 2_000;

/// The longest error, in characters.
const MAX_ERROR: usize = 500;
/// A process that has not written for this long has lost the job.
const LEASE: Duration = Duration::from_secs(10);
/// The time between two looks at a job that another process carries out, or that waits for its rate.
const LOOK: Duration = Duration::from_millis(500);

/// How the job stands after a step.
#[derive(Debug)]
pub(crate) enum JobProgress {
    /// It goes on after this time.
    Goes(BulkJob, Duration),
    /// Another process has it, or it is paused: look again after this time.
    Waits(BulkJob, Duration),
    Over(BulkJob),
    /// The step failed: the job, too, or the step is to be repeated.
    Failed(BulkJob, OperationError),
}

impl BulkJob {
    /// Whether the process that carries it out has written lately, so that no other one may take a step.
    pub(super) fn has_lease(&self, now_ms: u64) -> bool {
        !self.host.is_empty() && self.seen_at + LEASE.as_millis() as u64 > now_ms
    }
}

/// Takes the next step of a job on this queue, if no other process has it. `me` is the name of this
/// process.
pub(crate) async fn carry_on(
    queues: &[QueueRules],
    queue: &Queue,
    mask: &FieldMask,
    id: &str,
    me: &str,
) -> OperationResult<JobProgress> {
    let link = &queue.link;
    let take = |mut job: BulkJob, now_ms: u64| {
        if job.state != JobState::Running {
            let was_mine = job.host == me;
            job.host.clear();
            return Ok(was_mine.then_some(job));
        }
        if job.host != me && job.has_lease(now_ms) {
            return Ok(None);
        }
        // Time in which nobody had it does not count.
        job.took_ms += if job.host == me { now_ms.saturating_sub(job.seen_at) } else { 0 };
        (job.host, job.seen_at) = (me.to_owned(), now_ms);
        Ok(Some(job))
    };
    let (job, _) = edit(link, id, take).await?;
    if job.state.is_over() {
        return Ok(JobProgress::Over(job));
    }
    if job.host != me {
        return Ok(JobProgress::Waits(job, LOOK));
    }
    let counts = ManyDone { next: job.next.clone(), ..ManyDone::default() };
    let mut step = JobStep { counts, kept: job.kept.clone(), wait: Duration::ZERO };
    let ended = step.take(&job, queues, queue, mask).await;
    // Where the error may pass, the step is to be repeated.
    let error = ended.as_ref().err().map(|error| error.in_queue(&queue.rules.name));
    let error = error.map(|error| error.chars().take(MAX_ERROR).collect::<String>());
    let is_failed = ended.as_ref().is_err_and(|error| !error.may_pass());
    let JobStep { counts, kept, wait } = step;
    let note = |mut job: BulkJob, now_ms: u64| {
        if job.host != me {
            return Ok(None);
        }
        job.took_ms += now_ms.saturating_sub(job.seen_at);
        job.seen_at = now_ms;
        job.examined += counts.examined;
        // A copy that is made again takes the place of the first one, so what the job keeps is counted.
        job.done = match job.deed {
            Deed::Export => kept.as_ref().map_or(job.done, |kept| kept.tasks),
            _ => job.done + counts.succeeded,
        };
        job.skipped += counts.skipped;
        job.children += counts.children;
        job.without_flow += counts.without_flow;
        (job.next, job.error, job.kept) = (counts.next.clone(), error.clone(), kept.clone());
        if !job.state.is_over() && (job.next.is_none() || is_failed) {
            job.state = if is_failed { JobState::Failed } else { JobState::Done };
            job.ended_at = Some(now_ms);
        }
        if job.state != JobState::Running {
            job.host.clear();
        }
        Ok(Some(job))
    };
    let (job, _) = edit(link, id, note).await?;
    Ok(match (ended, job.state) {
        (Err(error), _) => JobProgress::Failed(job, error),
        (Ok(()), state) if state.is_over() => JobProgress::Over(job),
        (Ok(()), JobState::Running) => JobProgress::Goes(job, wait.min(LOOK)),
        (Ok(()), _) => JobProgress::Waits(job, LOOK),
    })
}

/// The result of one step of a job.
struct JobStep {
    /// Its `next` is where the next step goes on.
    counts: ManyDone,
    /// The tasks that the job keeps.
    kept: Option<KeptTasks>,
    /// The time that its rate lets pass before the next step.
    wait: Duration,
}

impl JobStep {
    async fn take(
        &mut self,
        job: &BulkJob,
        queues: &[QueueRules],
        queue: &Queue,
        mask: &FieldMask,
    ) -> OperationResult {
        // Without a place the operation would begin anew.
        let Some(next) = job.next.as_deref() else { return Ok(()) };
        let (rest, way_out) = match job.deed {
            // A new one would begin with the same dead letters.
            Deed::Export => (
                "choose fewer with a filter",
                "or run `tqhost dead export --all --out FILE`, which keeps nothing in Redis",
            ),
            _ => (
                "begin one for the rest",
                "or begin a job that keeps nothing (`--no-undo`, or \"keep\": false)",
            ),
        };
        if self.kept.as_ref().is_some_and(|kept| kept.bytes >= MOST_BYTES) {
            let most = MOST_BYTES >> 20;
            let why = format!("the job keeps {most} MiB, which is the most: {rest}, {way_out}");
            return Err(OperationError::OutOfReach(why));
        }
        // The file would lack what was copied before a long pause, and nobody would see it.
        if job.deed == Deed::Export && self.kept.as_ref().is_some_and(|kept| kept.until <= job.seen_at) {
            let why = "what it had copied has expired: begin a new one".to_owned();
            return Err(OperationError::OutOfReach(why));
        }
        let filter = TaskFilter { mask: mask.clone(), ..job.filter.clone() };
        let view = job.view(queue);
        let ended = self.act(job, queues, &view, &filter, next).await;
        if !job.keep {
            return ended;
        }
        // The next step looks again.
        self.kept = queue.kept_tasks(&job.id).await.unwrap_or(self.kept.take());
        ended.map_err(|error| match error.is_out_of_memory() {
            true => OperationError::OutOfReach(format!(
                "Redis is full, so the job can keep nothing more, and the rest stays where it is: raise its \
                 maxmemory, {way_out}"
            )),
            false => error,
        })
    }

    async fn act(
        &mut self,
        job: &BulkJob,
        queues: &[QueueRules],
        queue: &Queue,
        filter: &TaskFilter,
        next: &str,
    ) -> OperationResult {
        let what = match job.deed {
            Deed::Cancel | Deed::Drain => {
                let (states, only_waiting, cursor) = (job.states(), job.deed == Deed::Drain, next);
                let bulk = BulkCancel { states, filter, cursor, only_waiting };
                let ended = Box::pin(cancel_all(queues, queue, &bulk, STEP, &mut self.counts)).await;
                if ended.is_err() {
                    self.counts.next = Some(next.to_owned());
                }
                return ended;
            }
            Deed::Requeue => Redrive::Requeue(job.rate.as_deref().and_then(|rate| parse_rate(rate).ok())),
            Deed::Purge => Redrive::Purge,
            Deed::Export => Redrive::Copy,
            Deed::Import => Redrive::Restore,
        };
        let budget = StepBudget { entries: STEP_LOOKS, until: Instant::now() + STEP };
        match queue.redrive_step(filter, what, read_walk(next)?, budget).await {
            Ok(step) => {
                let next = step.next.map(|walk| write_walk(&walk));
                self.counts = ManyDone { examined: step.examined, next, ..step.done.into() };
                self.wait = step.wait;
                Ok(())
            }
            Err(error) => {
                self.counts.succeeded = error.succeeded;
                Err(error.into())
            }
        }
    }
}
