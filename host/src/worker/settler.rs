//! Carries settlements out, until Redis has answered each of them.
//!
//! In: jobs from the runners. Out: one pipeline for whatever is waiting, so a busy queue needs few round trips and an idle one
//! waits for nothing. A settlement that failed is sent again, with growing waits; the others do not wait for it.
//!
//! Not here: what the settlement is (`settle`).

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::inflight::Hold;
use super::pace::Pace;
use super::settle::Verdict;
use crate::chain::chain;
use crate::queue::{Ending, QueueError, Settled, Settlement, Subject};

/// Settlements sent in one go.
const MAX_BATCH: usize = 128;

/// The end of one attempt, on its way to Redis.
#[derive(Debug)]
pub struct Job {
    pub ending: Ending,
    pub label: crate::admin::Settled,
    /// Given back when the settlement is known.
    pub hold: Hold,
}

impl Job {
    pub fn new(subject: Subject, plugin: Arc<str>, verdict: Verdict, hold: Hold) -> Job {
        hold.settling();
        Job { ending: Ending { subject, settlement: verdict.settlement, plugin }, label: verdict.label, hold }
    }
}

/// The loop. It ends when no job will come any more and everything is settled, or when it is told to give up.
pub struct Settler {
    pub shared: Arc<Shared>,
    pub jobs: mpsc::Receiver<Job>,
    /// Cancelled when waiting for Redis any longer is no use. What is not settled then is pending, and will be reclaimed.
    pub give_up: CancellationToken,
}

impl Settler {
    /// `drained` is cancelled when no job will come any more.
    pub async fn run(mut self, drained: CancellationToken) {
        let mut waiting: VecDeque<Job> = VecDeque::new();
        // Every job holds a permit, so no more than this can wait at once.
        let limit = self.jobs.max_capacity().max(MAX_BATCH);
        let mut pace = Pace::new(&self.shared.queue.rules.name, "settle");
        let mut not_before = Instant::now();
        loop {
            if waiting.is_empty() {
                tokio::select! {
                    biased;
                    Some(job) = self.jobs.recv() => waiting.push_back(job),
                    () = drained.cancelled() => return,
                }
            }
            while waiting.len() < limit
                && let Ok(job) = self.jobs.try_recv()
            {
                waiting.push_back(job);
            }
            tokio::select! {
                () = tokio::time::sleep_until(not_before) => {}
                () = self.give_up.cancelled() => break,
                // New work does not wait for what Redis refused before.
                Some(job) = self.jobs.recv(), if waiting.len() < limit => waiting.push_front(job),
            }
            let batch: Vec<Job> = waiting.drain(..waiting.len().min(MAX_BATCH)).collect();
            let (failed, wait) = tokio::select! {
                done = self.settle(batch, &mut pace) => done,
                () = self.give_up.cancelled() => break,
            };
            waiting.extend(failed);
            not_before = Instant::now() + wait;
        }
        if !waiting.is_empty() {
            let queue = &self.shared.queue.rules.name;
            tracing::warn!(queue, tasks = waiting.len(), "stopped before these tasks could be settled; another host will run them again");
        }
    }

    /// Sends a batch. Gives the jobs that have to be sent again, and how long to wait before that.
    async fn settle(&self, batch: Vec<Job>, pace: &mut Pace) -> (Vec<Job>, std::time::Duration) {
        let endings: Vec<&Ending> = batch.iter().map(|job| &job.ending).collect();
        let replies = match self.shared.queue.settle(&self.shared.consumer, &endings).await {
            Ok(replies) => replies,
            Err(error) => return (batch, self.failed(&error, pace)),
        };
        let mut failed = Vec::new();
        let mut wait = std::time::Duration::ZERO;
        for (job, reply) in batch.into_iter().zip(replies) {
            match reply {
                Ok(settled) => self.settled(job, settled),
                Err(error) => {
                    wait = wait.max(self.failed(&error, pace));
                    failed.push(job);
                }
            }
        }
        if failed.is_empty() {
            pace.succeeded();
            self.shared.unsettled().take();
        }
        (failed, wait)
    }

    /// Notes an error, and gives how long to wait before the next try.
    fn failed(&self, error: &QueueError, pace: &mut Pace) -> std::time::Duration {
        *self.shared.unsettled() = Some(chain(error));
        pace.failed(error)
    }

    fn settled(&self, job: Job, settled: Settled) {
        let Job { ending, label, hold } = job;
        match settled {
            Settled::Done => self.shared.metrics.settled(label),
            // Our own settlement whose reply was lost, or another host's. Which one cannot be told, and does not matter.
            Settled::Overtaken => tracing::debug!(task = ending.subject.id(), "was settled before"),
        }
        if let Settlement::Park { .. } = ending.settlement {
            self.shared.parked.notify_one();
        }
        if let (Settled::Done, Settlement::Bury { reason, error }) = (settled, &ending.settlement) {
            let (queue, task) = (&self.shared.queue.rules.name, ending.subject.id());
            tracing::warn!(queue, task, reason = reason.as_str(), error, "dead-lettered");
        }
        drop(hold);
    }
}
