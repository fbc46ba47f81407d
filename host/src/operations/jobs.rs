//! Jobs: work on all tasks of a queue that match, carried out in steps by one process at a time.
//!
//! In: an order. Out: the job as it stands in Redis, after each step. One process at a time has the lease of
//! a job: the command that began it, then hosts. What a step does may be done twice, so a process that loses
//! its lease harms nothing; only its last step is not counted.
//!
//! ```text
//! start ─▶ running ─▶ turn: take the lease ─▶ step ─▶ write counts and place ─▶ … ─▶ done, or failed
//!             │ ▲
//!             ▼ │ pause, resume
//!           paused                           stop: from either ─▶ stopped
//! ```
//!
//! Not here: which tasks it is on (`scope`), what a step does (`cancel`, `queue::redrive`), the loop of a
//! host (`jobs` of the crate).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use utoipa::ToSchema;
use uuid::Uuid;

use super::cancel::{BulkCancel, cancel_all};
use super::changes::{self, ChangeKind, ChangeView, check_why};
pub(crate) use super::dead::read_walk;
use super::dead::write_walk;
pub(crate) use super::deed::Deed;
use super::error::OperationError;
pub(crate) use super::many::JobCount;
use super::many::ManyDone;
use super::patience::patiently;
use super::scope::check_place;
pub(crate) use super::scope::{JobOrder, begin, count, places, rough_count, sample, states};
use crate::config::QueueRules;
use crate::config::units::parse_rate;
use crate::mask::FieldMask;
use crate::queue::jobs::{self, JobText};
use crate::queue::listing::ListedState;
use crate::queue::orders;
use crate::queue::redrive::{Redrive, StepBudget};
use crate::queue::{Link, Queue, TaskFilter};

/// The most jobs that are under way, and the most ended ones that are kept: hosts read all of them every few
/// seconds.
const MOST: usize = 20;
/// The longest text of a job, in bytes.
const MAX_BYTES: usize = 8 << 10;
/// The longest error, in characters.
const MAX_ERROR: usize = 500;
/// A process that has not written for this long has lost the job.
const LEASE: Duration = Duration::from_secs(10);
/// For how long a step works, and how many dead letters it looks at: what a host that is killed has not
/// counted.
const STEP: Duration = Duration::from_millis(300);
const STEP_LOOKS: u64 = 2_000;
/// The time between two looks at a job that another process carries out, or that waits for its rate.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr, ToSchema)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub(crate) enum JobState {
    Running,
    Paused,
    /// Somebody stopped it.
    Stopped,
    /// Nothing is left of it.
    Done,
    /// It cannot go on.
    Failed,
}

impl JobState {
    pub(crate) fn is_over(self) -> bool {
        !matches!(self, JobState::Running | JobState::Paused)
    }
}

/// A job. The names are stable. Times are milliseconds since the Unix epoch, by Redis's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
// A host of another version must not do more than was ordered because it does not know a word.
#[serde(deny_unknown_fields)]
#[schema(as = Job)]
pub(crate) struct BulkJob {
    pub id: String,
    pub queue: String,
    #[serde(rename = "do")]
    pub deed: Deed,
    pub state: JobState,
    /// Which tasks.
    #[schema(value_type = Object)]
    pub filter: TaskFilter,
    /// The only state of tasks that are cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<ListedState>,
    /// No faster than this, like `50/s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// The operator.
    pub who: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    pub started_at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<u64>,
    /// How many places there were to look at when it began, and how many were looked at.
    pub places: u64,
    pub examined: u64,
    /// How many tasks matched, if somebody counted them before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matched: Option<u64>,
    /// Cancelled, requeued or deleted.
    pub done: u64,
    /// Were not there any more, or could not be changed.
    pub skipped: u64,
    /// Tasks of flows that were cancelled with them.
    #[serde(default)]
    pub children: u64,
    /// Requeued although their flow is not known any more.
    #[serde(default)]
    pub without_flow: u64,
    /// How long it was under way, in milliseconds.
    pub took_ms: u64,
    /// Why it failed, or why its last step has to be repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The process that carries it out; empty: none.
    #[serde(default)]
    pub host: String,
    /// When that process last wrote.
    pub seen_at: u64,
    /// Where it goes on, as the cursor of its operation. Nobody needs to read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The end of a turn.
#[derive(Debug)]
pub(crate) enum JobTurn {
    /// It goes on after this time.
    Goes(BulkJob, Duration),
    /// Another process has it, or it is paused: look again after this time.
    Waits(BulkJob, Duration),
    Over(BulkJob),
    /// The step failed: the job, too, or the step is to be repeated.
    Failed(BulkJob, OperationError),
}

impl BulkJob {
    fn states(&self) -> &[ListedState] {
        states(self.deed, self.only.as_ref())
    }

    /// Without what nobody needs to see.
    pub(crate) fn shown(self) -> BulkJob {
        BulkJob { next: None, ..self }
    }

    fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// How much of it is behind, from 0 to 1. None: not known.
    pub(crate) fn part(&self) -> Option<f64> {
        match self.matched.filter(|matched| *matched > 0) {
            _ if self.state == JobState::Done => Some(1.0),
            Some(matched) => Some((self.done.saturating_add(self.skipped) as f64 / matched as f64).min(0.99)),
            None if self.places > 0 => Some((self.examined as f64 / self.places as f64).min(0.99)),
            None => None,
        }
    }

    /// The part in words. None: not known.
    pub(crate) fn percent(&self) -> Option<String> {
        self.part().map(|part| format!("{:.0} %", (part * 100.0).floor()))
    }

    /// Tasks per second; None: it has hardly begun.
    pub(crate) fn per_second(&self) -> Option<f64> {
        (self.took_ms >= 500)
            .then(|| self.done.saturating_add(self.skipped) as f64 * 1000.0 / self.took_ms as f64)
    }

    /// The time that its rate lets pass before it does anything more.
    pub(crate) fn pause(&self) -> Duration {
        let is_paced = self.deed == Deed::Requeue && self.rate.is_some();
        let walk = self.next.as_deref().filter(|_| is_paced).and_then(|next| read_walk(next).ok());
        walk.map_or(Duration::ZERO, |walk| {
            Duration::from_millis(walk.not_before_ms.saturating_sub(self.seen_at))
        })
    }

    /// How much it has done, in words.
    pub(crate) fn figure(&self) -> String {
        let (done, noun) = (self.done, self.deed.noun());
        format!("{done} {noun}{} {}", if done == 1 { "" } else { "s" }, self.deed.done())
    }

    /// The time until its end at this speed.
    pub(crate) fn left(&self) -> Option<Duration> {
        let part = self.part().filter(|part| self.took_ms >= 500 && *part > 0.0)?;
        let took = Duration::from_millis(self.took_ms).as_secs_f64();
        Duration::try_from_secs_f64(took / part - took).ok().filter(|_| self.state == JobState::Running)
    }
}

/// All jobs, the newest first.
pub(crate) async fn list(link: &Link) -> Result<Vec<BulkJob>, OperationError> {
    let found = patiently(|| orders::list(link)).await?.jobs;
    // One that another version of tqhost wrote in another form is left out.
    let mut all: Vec<BulkJob> = found.values().filter_map(|text| serde_json::from_str(text).ok()).collect();
    all.sort_by(|a, b| (b.started_at, &b.id).cmp(&(a.started_at, &a.id)));
    Ok(all)
}

/// Whether one of these texts is that of a job under way.
pub(crate) fn is_under_way<'t>(mut texts: impl Iterator<Item = &'t String>) -> bool {
    texts.any(|text| serde_json::from_str(text).is_ok_and(|job: BulkJob| job.state == JobState::Running))
}

/// Begins a job. The caller carries it out, or rings for this host.
pub(crate) async fn start(link: &Link, queue: &Queue, order: JobOrder) -> Result<BulkJob, OperationError> {
    let JobOrder { deed, filter, only, rate, who, why, counted } = order;
    check_why(&why)?;
    if let Some(Err(error)) = rate.as_deref().map(parse_rate) {
        return Err(OperationError::Invalid(format!("rate: {error}")));
    }
    make_room(link).await?;
    let (next, matched) = match counted {
        Some((place, count)) => {
            check_place(&place, deed, only.as_ref())?;
            (place, count)
        }
        None => (begin(queue, deed, only.as_ref()).await?, None),
    };
    let census = patiently(|| queue.census()).await?;
    // The random end: its beginning is the time.
    let id = Uuid::now_v7().simple().to_string().split_off(20);
    let started_at = patiently(|| jobs::find(link, &id)).await?.now_ms;
    // Tasks grow older while the job runs.
    let has_age = filter.older_than.is_some() || filter.newer_than.is_some();
    let filter = TaskFilter { as_of_ms: has_age.then_some(started_at), ..filter };
    let job = BulkJob {
        id,
        queue: queue.rules.name.clone(),
        deed,
        state: JobState::Running,
        filter,
        places: places(&census, deed, only.as_ref()),
        only,
        rate,
        who,
        why,
        started_at,
        ended_at: None,
        examined: 0,
        matched,
        done: 0,
        skipped: 0,
        children: 0,
        without_flow: 0,
        took_ms: 0,
        error: None,
        host: String::new(),
        seen_at: started_at,
        next: Some(next),
    };
    let text = job.text();
    if text.len() > MAX_BYTES {
        return Err(OperationError::Invalid(format!("the filters have more than {MAX_BYTES} bytes")));
    }
    patiently(|| jobs::replace(link, &job.id, "", &text)).await?;
    let change = ChangeView::new(ChangeKind::JobStarted, &job.who).job(deed, &job.id);
    changes::note(link, change.queue(&job.queue).why(&job.why)).await;
    Ok(job)
}

/// Forgets the oldest jobs that are over. Refuses one more if too many are under way.
async fn make_room(link: &Link) -> Result<(), OperationError> {
    let (over, others): (Vec<BulkJob>, Vec<BulkJob>) =
        list(link).await?.into_iter().partition(|job| job.state.is_over());
    if others.len() >= MOST {
        return Err(OperationError::Invalid(format!(
            "{MOST} jobs are under way: wait for one, or stop it with `tqhost jobs stop ID`"
        )));
    }
    let old: Vec<&str> = over.iter().skip(MOST - 1).map(|job| job.id.as_str()).collect();
    if !old.is_empty() {
        patiently(|| jobs::forget(link, &old)).await?;
    }
    Ok(())
}

/// The job with this id.
pub(crate) async fn find(link: &Link, id: &str) -> Result<BulkJob, OperationError> {
    read(id, &patiently(|| jobs::find(link, id)).await?.text)
}

fn read(id: &str, text: &str) -> Result<BulkJob, OperationError> {
    let unknown = |_| OperationError::UnknownJob(format!("no job {id:?} is known, or not any more"));
    serde_json::from_str(text).map_err(unknown)
}

/// Pauses a job, lets it go on, or stops it. `who` is the operator.
pub(crate) async fn change(
    link: &Link,
    id: &str,
    state: JobState,
    who: &str,
) -> Result<BulkJob, OperationError> {
    let change = |mut job: BulkJob, now_ms: u64| {
        // A request may be repeated, and the job may have ended on its own.
        if job.state == state || state == JobState::Stopped && job.state.is_over() {
            return Ok(None);
        }
        if job.state.is_over() {
            let (state, done): (&str, _) = (job.state.into(), job.done);
            let why = format!("job {} is {state} already, with {done} done", job.id);
            return Err(OperationError::NotRunning(why));
        }
        // The process that has it writes its last step yet.
        (job.state, job.ended_at) = (state, state.is_over().then_some(now_ms));
        Ok(Some(job))
    };
    let (job, is_new) = edit(link, id, change).await?;
    if is_new {
        let kind = match state {
            JobState::Running => ChangeKind::JobResumed,
            JobState::Paused => ChangeKind::JobPaused,
            _ => ChangeKind::JobStopped,
        };
        let change = ChangeView::new(kind, who).job(job.deed, &job.id);
        changes::note(link, change.queue(&job.queue)).await;
    }
    Ok(job)
}

/// Changes a job as it is now: `change` gets it and the time, and returns what it is to become. None: as it
/// is. Returns the job after that, and whether it was changed.
async fn edit(
    link: &Link,
    id: &str,
    change: impl Fn(BulkJob, u64) -> Result<Option<BulkJob>, OperationError>,
) -> Result<(BulkJob, bool), OperationError> {
    let mut seen = patiently(|| jobs::find(link, id)).await?;
    loop {
        let JobText { now_ms, text } = seen;
        let job = read(id, &text)?;
        let Some(changed) = change(job.clone(), now_ms)? else { return Ok((job, false)) };
        let after = changed.text();
        seen = patiently(|| jobs::replace(link, id, &text, &after)).await?;
        if seen.text == after {
            return Ok((changed, true));
        }
    }
}

/// Gives up the lease of a job, so that another process goes on at once.
pub(crate) async fn release(link: &Link, id: &str, me: &str) -> Result<BulkJob, OperationError> {
    let release = |mut job: BulkJob, _| {
        let is_mine = job.host == me;
        job.host.clear();
        Ok(is_mine.then_some(job))
    };
    Ok(edit(link, id, release).await?.0)
}

/// Takes the next turn of a job on this queue: a step, if no other process has it. `me` is the name of this
/// process.
pub(crate) async fn turn(
    queues: &[QueueRules],
    queue: &Queue,
    mask: &FieldMask,
    id: &str,
    me: &str,
) -> Result<JobTurn, OperationError> {
    let link = &queue.link;
    let take = |mut job: BulkJob, now_ms: u64| {
        let has_another =
            !job.host.is_empty() && job.host != me && job.seen_at + LEASE.as_millis() as u64 > now_ms;
        if job.state != JobState::Running {
            let was_mine = job.host == me;
            job.host.clear();
            return Ok(was_mine.then_some(job));
        }
        if has_another {
            return Ok(None);
        }
        // Time in which nobody had it does not count.
        job.took_ms += if job.host == me { now_ms.saturating_sub(job.seen_at) } else { 0 };
        (job.host, job.seen_at) = (me.to_owned(), now_ms);
        Ok(Some(job))
    };
    let (job, _) = edit(link, id, take).await?;
    if job.state.is_over() {
        return Ok(JobTurn::Over(job));
    }
    if job.host != me {
        return Ok(JobTurn::Waits(job, LOOK));
    }
    let mut step = JobStep { next: job.next.clone(), ..JobStep::default() };
    let ended = step.take(&job, queues, queue, mask).await;
    // Where the error may pass, the step is to be repeated.
    let error = ended.as_ref().err().map(|error| error.in_queue(&queue.rules.name));
    let error = error.map(|error| error.chars().take(MAX_ERROR).collect::<String>());
    let is_failed = ended.as_ref().is_err_and(|error| !error.may_pass());
    let note = |mut job: BulkJob, now_ms: u64| {
        if job.host != me {
            return Ok(None);
        }
        job.took_ms += now_ms.saturating_sub(job.seen_at);
        job.seen_at = now_ms;
        job.examined += step.examined;
        job.done += step.done;
        job.skipped += step.skipped;
        job.children += step.children;
        job.without_flow += step.without_flow;
        (job.next, job.error) = (step.next.clone(), error.clone());
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
        (Err(error), _) => JobTurn::Failed(job, error),
        (Ok(()), state) if state.is_over() => JobTurn::Over(job),
        (Ok(()), JobState::Running) => JobTurn::Goes(job, step.wait.min(LOOK)),
        (Ok(()), _) => JobTurn::Waits(job, LOOK),
    })
}

/// The result of one step of a job.
#[derive(Default)]
struct JobStep {
    examined: u64,
    done: u64,
    skipped: u64,
    children: u64,
    without_flow: u64,
    /// Where the next step goes on.
    next: Option<String>,
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
    ) -> Result<(), OperationError> {
        // Without a place the operation would begin anew.
        let Some(next) = job.next.as_deref() else { return Ok(()) };
        let filter = TaskFilter { mask: mask.clone(), ..job.filter.clone() };
        let what = match job.deed {
            Deed::Cancel | Deed::Drain => {
                let (states, only_waiting) = (job.states(), job.deed == Deed::Drain);
                let bulk = BulkCancel { states, filter: &filter, cursor: next, only_waiting };
                let mut sum = ManyDone::default();
                let ended = Box::pin(cancel_all(queues, queue, &bulk, STEP, &mut sum)).await;
                let ManyDone { succeeded, skipped, children, examined, next, .. } = sum;
                (self.done, self.skipped, self.children) = (succeeded, skipped, children);
                (self.examined, self.next) = (examined, if ended.is_ok() { next } else { self.next.take() });
                return ended;
            }
            Deed::Requeue => Redrive::Requeue(job.rate.as_deref().and_then(|rate| parse_rate(rate).ok())),
            Deed::Purge => Redrive::Purge,
        };
        let budget = StepBudget { entries: STEP_LOOKS, until: Instant::now() + STEP };
        match queue.redrive_step(&filter, what, read_walk(next)?, budget).await {
            Ok(step) => {
                (self.done, self.skipped) = (step.done.succeeded, step.done.skipped);
                (self.without_flow, self.examined) = (step.done.without_flow, step.examined);
                (self.next, self.wait) = (step.next.map(|walk| write_walk(&walk)), step.wait);
                Ok(())
            }
            Err(error) => {
                self.done = error.succeeded;
                Err(error.into())
            }
        }
    }
}
