//! Jobs: work on all tasks of a queue that match, carried out in steps by one process at a time.
//!
//! In: an order. Out: the job as it stands in Redis, after each step. One process at a time has the lease of
//! a job: the command that began it, then hosts. What a step does may be done twice, so a process that loses
//! its lease harms nothing; only its last step is not counted.
//!
//! ```text
//! start ─▶ running ─▶ take the lease ─▶ step ─▶ write counts and place ─▶ … ─▶ done, or failed
//!             │ ▲
//!             ▼ │ pause, resume
//!           paused                           stop: from either ─▶ stopped
//! ```
//!
//! Not here: which tasks it is on (`scope`), the steps (`job_step`), the way back (`undo`), the loop of
//! a host (`jobs` of the crate).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::changes::{self, ChangeKind, ChangeView, check_why};
use super::dead::read_walk;
pub(crate) use super::deed::Deed;
use super::error::{OperationError, OperationResult};
pub(crate) use super::many::JobCount;
pub(crate) use super::scope::{JobOrder, count, places, rough_count, sample};
use super::scope::{begin, check_place, states};
use crate::config::units::parse_rate;
use crate::queue::jobs::{self, JobText};
use crate::queue::listing::ListedState;
use crate::queue::orders;
use crate::queue::repeat::patiently;
use crate::queue::undo::KeptTasks;
use crate::queue::{Link, Queue, TaskFilter};

/// The most jobs that are under way, and the most ended ones that are kept: hosts read all of them every few
/// seconds.
const MOST: usize = 20;
/// The longest text of a job, in bytes.
const MAX_BYTES: usize = 8 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr, ToSchema)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub(crate) enum JobState {
    Running,
    Paused,
    /// Somebody stopped it.
    Stopped,
    /// No task is left to do.
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
    /// It brings back the tasks that the job with this id keeps. With its own id, it imports a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// It keeps the tasks that it takes away for a day, so that it can be undone. An export keeps its file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep: bool,
    /// The tasks that it keeps, as its last step left them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptTasks>,
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
    /// Cancelled, requeued, deleted or exported.
    pub done: u64,
    /// Had gone meanwhile, or could not be changed.
    pub skipped: u64,
    /// Tasks of flows that were cancelled with them.
    #[serde(default)]
    pub children: u64,
    /// Requeued although nothing is kept of their flow.
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

impl BulkJob {
    pub(super) fn states(&self) -> &[ListedState] {
        states(self.deed, self.only.as_ref())
    }

    /// The queue as it sees it.
    pub(super) fn view(&self, queue: &Queue) -> Queue {
        match &self.from {
            Some(from) => queue.kept_by(from),
            None if self.keep => queue.keeping(&self.id),
            None => queue.clone(),
        }
    }

    /// The job for clients, who do not need the place where it goes on.
    pub(crate) fn shown(self) -> BulkJob {
        BulkJob { next: None, ..self }
    }

    fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// How much of it is done, from 0 to 1. None: not known.
    pub(crate) fn part(&self) -> Option<f64> {
        if self.state == JobState::Done {
            return Some(1.0);
        }
        let (done, all) = match self.matched {
            Some(matched) if matched > 0 => (self.done.saturating_add(self.skipped), matched),
            _ => (self.examined, self.places),
        };
        (all > 0).then(|| (done as f64 / all as f64).min(0.99))
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

    /// The words for one of the tasks that it has changed, and for what became of them.
    pub(crate) fn done_words(&self) -> (&'static str, &'static str) {
        match self.from {
            Some(_) => ("task", Deed::Import.done()),
            None => (self.deed.noun(), self.deed.done()),
        }
    }

    /// How much it has done, in words.
    pub(crate) fn figure(&self) -> String {
        let (noun, done) = self.done_words();
        format!("{} {noun}{} {done}", self.done, if self.done == 1 { "" } else { "s" })
    }

    /// The time until its end at this speed.
    pub(crate) fn left(&self) -> Option<Duration> {
        let part = self.part().filter(|part| self.took_ms >= 500 && *part > 0.0)?;
        let took = Duration::from_millis(self.took_ms).as_secs_f64();
        Duration::try_from_secs_f64(took / part - took).ok().filter(|_| self.state == JobState::Running)
    }
}

/// All jobs, the newest first.
pub(crate) async fn list(link: &Link) -> OperationResult<Vec<BulkJob>> {
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

/// A new id: the random end of an UUID, whose beginning is the time.
pub(crate) fn new_id() -> String {
    Uuid::now_v7().simple().to_string().split_off(20)
}

/// Begins a job; returns the one that has its id already, if there is one. The caller carries it out, or
/// rings for this host.
pub(crate) async fn start(link: &Link, queue: &Queue, order: JobOrder) -> OperationResult<BulkJob> {
    let JobOrder { deed, filter, only, rate, keep, from, id, who, why, counted } = order;
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
        None => {
            let kept = from.as_ref().map(|from| queue.kept_by(from));
            (begin(kept.as_ref().unwrap_or(queue), deed, only.as_ref()).await?, None)
        }
    };
    let places = match &from {
        Some(from) => patiently(|| queue.kept_tasks(from)).await?.map_or(0, |kept| kept.tasks),
        None => places(&patiently(|| queue.census()).await?, deed, only.as_ref()),
    };
    let id = id.unwrap_or_else(new_id);
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
        places,
        only,
        rate,
        keep: keep && deed.can_undo() || deed == Deed::Export,
        kept: None,
        from,
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
    let stands = patiently(|| jobs::replace(link, &job.id, "", &text)).await?.text;
    if stands != text {
        return read(&job.id, &stands);
    }
    let change = ChangeView::new(ChangeKind::JobStarted, &job.who).job(deed, &job.id);
    changes::note(link, change.queue(&job.queue).why(&job.why)).await;
    Ok(job)
}

/// Forgets the oldest jobs that are over, first those that cannot be undone. Refuses one more if too many are
/// under way.
async fn make_room(link: &Link) -> OperationResult {
    let (over, others): (Vec<BulkJob>, Vec<BulkJob>) =
        list(link).await?.into_iter().partition(|job| job.state.is_over());
    if others.len() >= MOST {
        return Err(OperationError::TooManyJobs(format!(
            "{MOST} jobs are under way: wait for one, or stop it with `tqhost jobs stop ID`"
        )));
    }
    let now_ms = patiently(|| link.now_ms()).await?;
    let (kept, rest): (Vec<&BulkJob>, Vec<&BulkJob>) =
        over.iter().partition(|job| job.kept.as_ref().is_some_and(|kept| kept.until > now_ms));
    let old: Vec<&str> = kept.iter().chain(&rest).skip(MOST - 1).map(|job| job.id.as_str()).collect();
    if !old.is_empty() {
        patiently(|| jobs::forget(link, &old)).await?;
    }
    Ok(())
}

/// The job with this id.
pub(crate) async fn find(link: &Link, id: &str) -> OperationResult<BulkJob> {
    read(id, &patiently(|| jobs::find(link, id)).await?.text)
}

fn read(id: &str, text: &str) -> OperationResult<BulkJob> {
    let unknown = |_| OperationError::NotFound(format!("no job {id:?} is known, or not any more"));
    serde_json::from_str(text).map_err(unknown)
}

/// Pauses a job, lets it go on, or stops it. `who` is the operator.
pub(crate) async fn change(link: &Link, id: &str, state: JobState, who: &str) -> OperationResult<BulkJob> {
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
        // The process that carries it out still adds the counts of its last step.
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

/// Changes a job as it is now. `change` gets the job and Redis's time, and returns the changed job, or None
/// to leave it as it is. Returns the job after that, and whether it was changed.
pub(super) async fn edit(
    link: &Link,
    id: &str,
    change: impl Fn(BulkJob, u64) -> OperationResult<Option<BulkJob>>,
) -> OperationResult<(BulkJob, bool)> {
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
pub(crate) async fn release(link: &Link, id: &str, me: &str) -> OperationResult<BulkJob> {
    let release = |mut job: BulkJob, _| {
        let is_mine = job.host == me;
        job.host.clear();
        Ok(is_mine.then_some(job))
    };
    Ok(edit(link, id, release).await?.0)
}
