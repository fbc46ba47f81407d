//! The counts of work on many tasks, as clients and commands are told them.
//!
//! Not here: the work (`jobs`, `cancel`, `dead`), the wait for it (`awaited`).

use serde::Serialize;
use utoipa::ToSchema;

use super::sample::TaskSample;
use crate::queue::RedriveCounts;
use crate::queue::redrive::SAMPLE;

/// The counts of work on many tasks. The names are stable.
#[derive(Debug, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct ManyDone {
    /// Cancelled, requeued, deleted or exported since the request before; with `dry_run`: would be.
    pub succeeded: u64,
    /// Asked for, and not known, not there any more, or ended already; in a drain: taken by a host meanwhile;
    /// in a requeue: can never run.
    pub skipped: u64,
    /// Tasks of their flows that were cancelled with them.
    pub children: u64,
    /// The number of succeeded ones whose flow is not known any more.
    pub without_flow: u64,
    /// How many places were looked at; of tasks that were named, how many names are done.
    pub examined: u64,
    /// The cursor with which the next request goes on, or waits on; null when nothing is left.
    pub next: Option<String>,
    /// The milliseconds that pass at this rate before anything more is done; null: none.
    pub wait_ms: Option<u64>,
    /// The job that does it, which hosts go on with whether somebody waits or not; null: there is none.
    pub job: Option<String>,
    /// With `dry_run` and `all`: up to 5 of the counted tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<Vec<TaskSample>>,
}

impl ManyDone {
    /// Counts one task: as done, or as skipped.
    pub(super) fn count(&mut self, is_done: bool) {
        if is_done {
            self.succeeded += 1;
        } else {
            self.skipped += 1;
        }
    }
}

/// How many tasks a job would be on.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct JobCount {
    pub matched: u64,
    /// Dead letters that match, and that a requeue would leave: they were sent again, or can never run.
    pub skipped: u64,
    /// The number of matching ones whose flow is not known any more.
    pub without_flow: u64,
    /// How many places were looked at.
    pub examined: u64,
    /// The cursor with which the count goes on; null when nothing is left.
    pub next: Option<String>,
    /// Where a job on exactly these tasks begins.
    pub begin: String,
    /// Up to 5 of the counted tasks.
    pub sample: Vec<TaskSample>,
}

impl JobCount {
    /// Adds the part that was counted behind this one, or to nothing the first part.
    pub(crate) fn add(&mut self, part: JobCount) {
        if self.begin.is_empty() {
            self.begin = part.begin;
        }
        self.matched += part.matched;
        self.skipped += part.skipped;
        self.without_flow += part.without_flow;
        self.examined += part.examined;
        self.next = part.next;
        self.sample.extend(part.sample);
        self.sample.truncate(SAMPLE);
    }
}

impl From<JobCount> for ManyDone {
    fn from(JobCount { matched, skipped, without_flow, examined, next, sample, .. }: JobCount) -> ManyDone {
        let sample = Some(sample);
        ManyDone { succeeded: matched, skipped, without_flow, examined, next, sample, ..ManyDone::default() }
    }
}

impl From<RedriveCounts> for ManyDone {
    fn from(RedriveCounts { succeeded, skipped, without_flow }: RedriveCounts) -> ManyDone {
        let examined = succeeded + skipped;
        ManyDone { succeeded, skipped, without_flow, examined, ..ManyDone::default() }
    }
}
