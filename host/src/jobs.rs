//! Carries out jobs on this host: work on all tasks of a queue that match.
//!
//! In: a bell, which rings when a job was begun here, or when the orders that hosts read every few seconds
//! have one that is under way. Out: steps of the jobs on this host's queues, one after the other, until none
//! is under way. Not here: what a step does, and which process takes it (`operations::jobs`).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::mask::FieldMask;
use crate::operations::jobs::{self, BulkJob, JobState, JobTurn};
use crate::operations::{OperationError, find_queue};
use crate::queue::Link;
use crate::reload::ConfigReloads;

/// The longest time between two rounds while jobs are under way, and the time after an error.
const ROUND: Duration = Duration::from_secs(1);
const AFTER_ERROR: Duration = Duration::from_secs(3);

/// Wakes the loop. Clones ring the same one.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobBell(Arc<Notify>);

impl JobBell {
    pub(crate) fn ring(&self) {
        self.0.notify_one();
    }
}

/// The loop.
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
        let rounds = async {
            loop {
                self.bell.0.notified().await;
                while let Some(wait) = self.round().await {
                    tokio::time::sleep(wait).await;
                }
            }
        };
        if stop.run_until_cancelled(rounds).await.is_none() {
            self.hand_over().await;
        }
    }

    /// Takes a turn of each job. Returns when the next round is due; none: no job is under way.
    async fn round(&self) -> Option<Duration> {
        let own = match self.own().await {
            Ok(own) => own,
            Err(error) => {
                tracing::debug!(%error, "could not list jobs");
                return Some(AFTER_ERROR);
            }
        };
        let (mut next, queues) = (None, self.reloads.queues());
        for job in own {
            let Ok(queue) = find_queue(&queues, &job.queue, &self.link) else { continue };
            let turn = jobs::turn(&queues, &queue, &self.mask, &job.id, &self.host);
            let wait = match Box::pin(turn).await {
                Ok(JobTurn::Goes(_, wait) | JobTurn::Waits(_, wait)) => Some(wait),
                Ok(JobTurn::Over(job)) => {
                    tell(&job);
                    None
                }
                Ok(JobTurn::Failed(job, _)) if job.state.is_over() => {
                    tell(&job);
                    None
                }
                Ok(JobTurn::Failed(..)) => Some(AFTER_ERROR),
                Err(error) => {
                    tracing::debug!(job = job.id, %error, "cannot take a turn of a job");
                    Some(AFTER_ERROR)
                }
            };
            next = [next, wait].into_iter().flatten().min();
        }
        next.map(|wait: Duration| wait.min(ROUND))
    }

    /// The jobs that run, or that this host has.
    async fn own(&self) -> Result<Vec<BulkJob>, OperationError> {
        let mut all = jobs::list(&self.link).await?;
        all.retain(|job| job.state == JobState::Running || job.host == *self.host);
        Ok(all)
    }

    /// Lets other hosts go on at once with the jobs that this one had.
    async fn hand_over(&self) {
        for job in self.own().await.unwrap_or_default() {
            if job.host == *self.host
                && let Err(error) = jobs::release(&self.link, &job.id, &self.host).await
            {
                tracing::debug!(job = job.id, %error, "could not hand over a job");
            }
        }
    }
}

fn tell(job: &BulkJob) {
    let BulkJob { id, queue, done, skipped, who, error, .. } = job;
    let (what, state): (&str, &str) = (job.deed.into(), job.state.into());
    tracing::info!(job = id, queue, what, state, done, skipped, who, error, "a job is over");
}
