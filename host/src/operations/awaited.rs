//! The wait for the end of a job, in requests of some seconds.
//!
//! In: a job, or `next` of the answer before. Out: the work that it has done since then, so that the answers
//! add up. A client that goes away leaves the job running. Not here: its steps (`jobs`).

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::cursor::{self, BadCursor};
use super::deed::Deed;
use super::error::{OperationError, OperationResult};
use super::jobs::{self, BulkJob, JobState};
use super::many::ManyDone;
use crate::queue::{Link, Queue};

/// How long one request waits, and how long a look may take at its end.
const WAIT: Duration = Duration::from_secs(10);
const LAST_LOOK: Duration = Duration::from_secs(2);
/// The time between two looks at a job, at first and at most.
const FIRST_LOOK: Duration = Duration::from_millis(10);
const SLOWEST_LOOK: Duration = Duration::from_millis(250);
const KIND: &str = "job";

impl From<&BulkJob> for ManyDone {
    fn from(job: &BulkJob) -> ManyDone {
        ManyDone {
            succeeded: job.done,
            skipped: job.skipped,
            children: job.children,
            without_flow: job.without_flow,
            examined: job.examined,
            job: Some(job.id.clone()),
            ..ManyDone::default()
        }
    }
}

/// A job for whose end a client waits, and the counts that the client was told before.
#[derive(Debug)]
pub(crate) struct AwaitedJob {
    id: String,
    told: ManyDone,
}

impl AwaitedJob {
    /// A job of which nothing was told.
    pub(crate) fn new(id: String) -> AwaitedJob {
        AwaitedJob { id, told: ManyDone::default() }
    }

    /// Reads `next` of an answer before.
    pub(crate) fn read(cursor: &str) -> OperationResult<AwaitedJob> {
        let [id, told] = cursor::read(KIND, cursor)?;
        let counts: Vec<u64> = told.split(' ').map_while(|count| count.parse().ok()).collect();
        let [succeeded, skipped, children, without_flow, examined] =
            counts.try_into().map_err(|_| BadCursor)?;
        let none = ManyDone::default();
        Ok(AwaitedJob { id, told: ManyDone { succeeded, skipped, children, without_flow, examined, ..none } })
    }

    /// Waits until the job, which does `deed` to this queue, is over, for some seconds. Returns what it has
    /// done since that was last told. A job that cannot go on is stopped in the name of `who`, as the request
    /// fails, and may be repeated.
    pub(crate) async fn wait(
        self,
        link: &Link,
        (queue, deed): (&Queue, Deed),
        who: &str,
    ) -> OperationResult<ManyDone> {
        let (end, mut pause) = (Instant::now() + WAIT, FIRST_LOOK);
        let is_stuck = |job: &BulkJob| job.state == JobState::Running && job.error.is_some();
        let mut job = loop {
            let job = match timeout_at(end + LAST_LOOK, jobs::find(link, &self.id)).await {
                Ok(Err(error)) if !error.may_pass() => return Err(error),
                Ok(Ok(job)) => job,
                // The job goes on without Redis's answer, so the client may wait on, too.
                _ => return Ok(self.nothing_new()),
            };
            if job.queue != queue.rules.name || job.deed != deed {
                return Err(BadCursor.into());
            }
            if job.state.is_over() || is_stuck(&job) || Instant::now() + pause.max(job.pause()) > end {
                break job;
            }
            sleep(pause).await;
            pause = (pause * 2).min(SLOWEST_LOOK);
        };
        let may_pass = is_stuck(&job);
        if may_pass {
            job = jobs::change(link, &self.id, JobState::Stopped, who).await?;
        }
        let (id, state, figure): (_, &str, _) = (&job.id, job.state.into(), job.figure());
        let told = format!("{figure}, not all of them: job {id} is {state}");
        match (job.state, &job.error) {
            (JobState::Stopped | JobState::Failed, Some(error)) => {
                Err(OperationError::JobFailed { why: format!("{error}; {told}"), may_pass })
            }
            (JobState::Stopped, None) => Err(OperationError::NotRunning(told)),
            _ => Ok(self.done(&job)),
        }
    }

    /// The answer where it is not known what the job has done meanwhile.
    fn nothing_new(self) -> ManyDone {
        let next = Some(self.cursor(&self.told));
        ManyDone { job: Some(self.id), next, ..ManyDone::default() }
    }

    fn cursor(&self, told: &ManyDone) -> String {
        let ManyDone { succeeded, skipped, children, without_flow, examined, .. } = told;
        let told = format!("{succeeded} {skipped} {children} {without_flow} {examined}");
        cursor::write(KIND, &[&self.id, &told])
    }

    /// The work of the job that was not told yet.
    fn done(&self, job: &BulkJob) -> ManyDone {
        let all = ManyDone::from(job);
        let since = |count: fn(&ManyDone) -> u64| count(&all).saturating_sub(count(&self.told));
        let goes_on = !job.state.is_over();
        ManyDone {
            succeeded: since(|done| done.succeeded),
            skipped: since(|done| done.skipped),
            children: since(|done| done.children),
            without_flow: since(|done| done.without_flow),
            examined: since(|done| done.examined),
            next: goes_on.then(|| self.cursor(&all)),
            wait_ms: Some(job.pause().as_millis() as u64).filter(|ms| goes_on && *ms > 0),
            job: Some(job.id.clone()),
            sample: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answers_add_up_to_what_the_job_has_done() {
        let job = |done: u64, state: &str| -> BulkJob {
            let text = format!(
                "{{\"id\":\"a\",\"queue\":\"q\",\"do\":\"purge\",\"state\":\"{state}\",\"filter\":{{}},\
                 \"who\":\"\",\"started_at\":0,\"places\":9,\"examined\":{},\"done\":{done},\"skipped\":1,\
                 \"took_ms\":0,\"seen_at\":0}}",
                done + 1
            );
            serde_json::from_str(&text).expect("a job")
        };
        let (mut awaited, mut sum) = (AwaitedJob::new("a".into()), [0, 0, 0]);
        for (done, state) in [(3, "running"), (3, "paused"), (7, "running"), (8, "done")] {
            let part = awaited.done(&job(done, state));
            sum = [sum[0] + part.succeeded, sum[1] + part.skipped, sum[2] + part.examined];
            let Some(next) = part.next else { break };
            awaited = AwaitedJob::read(&next).expect("a cursor");
        }
        assert_eq!(sum, [8, 1, 9]);
        assert!(AwaitedJob::read(&cursor::write(KIND, &["a", "1 x 0 0 0"])).is_err());
    }
}
