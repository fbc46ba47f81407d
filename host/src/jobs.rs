//! Carries out jobs on this host: work on all tasks of a queue that match.
//!
//! In: a bell, which rings when a job was begun here, or when the orders that hosts read every few seconds
//! have one that is under way. Out: steps of the jobs on this host's queues, each in a loop of its own, so
//! that a queue whose node is away holds up no other. Not here: what a step does, and which process takes it
//! (`operations::jobs`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::mask::FieldMask;
use crate::operations::jobs::{self, BulkJob, JobState};
use crate::operations::{JobProgress, carry_on, find_queue};
use crate::queue::Link;
use crate::reload::ConfigReloads;

/// The time before a step is repeated.
const AFTER_ERROR: Duration = Duration::from_secs(3);
/// How long the last steps have when the host stops.
const LAST_STEPS: Duration = Duration::from_secs(3);

/// Wakes the loop. Clones ring the same one.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobBell(Arc<Notify>);

impl JobBell {
    pub(crate) fn ring(&self) {
        self.0.notify_one();
    }
}

/// The loop.
#[derive(Clone)]
pub(crate) struct JobLoop {
    pub link: Link,
    pub reloads: ConfigReloads,
    pub mask: FieldMask,
    /// The name of this host.
    pub host: Arc<str>,
    pub bell: JobBell,
}

impl JobLoop {
    pub(crate) async fn run(self, stop: CancellationToken) {
        // The jobs that this host carries out, or waits for.
        let (mut ids, mut loops) = (HashSet::new(), JoinSet::new());
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.bell.0.notified() => {
                    for job in self.running().await {
                        if ids.insert(job.id.clone()) {
                            loops.spawn(self.clone().carry_out(job, stop.clone()));
                        }
                    }
                }
                Some(ended) = loops.join_next() => match ended {
                    Ok(id) => _ = ids.remove(&id),
                    // A loop has panicked, and its job is not known: each job may get a second loop, which
                    // does no harm.
                    Err(_) => ids.clear(),
                },
            }
        }
        // A step is not broken off between a task and its flow.
        let over = async { while loops.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_STEPS, over).await;
    }

    async fn running(&self) -> Vec<BulkJob> {
        match jobs::list(&self.link).await {
            Ok(all) => all.into_iter().filter(|job| job.state == JobState::Running).collect(),
            Err(error) => {
                tracing::debug!(%error, "could not list jobs");
                Vec::new()
            }
        }
    }

    /// Takes steps of a job until it is over, or another process has it. In that case a later ring of the
    /// bell begins anew. Returns the job's id.
    async fn carry_out(self, BulkJob { id, queue: name, .. }: BulkJob, stop: CancellationToken) -> String {
        loop {
            let queues = self.reloads.queues();
            let Ok(queue) = find_queue(&queues, &name, &self.link) else { return id };
            let step = Box::pin(carry_on(&queues, &queue, &self.mask, &id, &self.host));
            let wait = match step.await {
                Ok(JobProgress::Goes(_, wait)) => wait,
                Ok(JobProgress::Waits(..)) => return id,
                Ok(JobProgress::Failed(job, _)) if !job.state.is_over() => AFTER_ERROR,
                Ok(JobProgress::Over(job) | JobProgress::Failed(job, _)) => {
                    tell(&job);
                    return id;
                }
                Err(error) if error.may_pass() => AFTER_ERROR,
                Err(error) => {
                    tracing::debug!(job = id, %error, "cannot take a step of a job");
                    return id;
                }
            };
            if stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                break;
            }
        }
        // Another host goes on at once.
        if let Err(error) = Box::pin(jobs::release(&self.link, &id, &self.host)).await {
            tracing::debug!(job = id, %error, "could not hand over a job");
        }
        id
    }
}

fn tell(job: &BulkJob) {
    let BulkJob { id, queue, done, skipped, who, error, .. } = job;
    let (what, state): (&str, &str) = (job.deed.into(), job.state.into());
    tracing::info!(job = id, queue, what, state, done, skipped, who, error, "a job is over");
}
