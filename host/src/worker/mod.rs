//! Carries tasks from claim to settlement: the loops of one queue.
//!
//! A newcomer finds a loop by its file: [`fetcher`] and [`reclaimer`] claim, [`gather`] puts together, [`runner`] runs, [`settler`] settles, [`promoter`] brings back what
//! is due, [`mover`] and [`scheduler`] make tasks, [`heartbeat`] keeps leases, [`census`] counts. What they share is [`Shared`]; the order in which they end is in [`Worker::stop`].

pub mod backoff;
pub mod capacity;
pub mod census;
pub mod fetcher;
pub mod gather;
pub mod heartbeat;
pub mod inflight;
pub mod intake;
pub mod janitor;
pub mod mover;
pub mod pace;
pub mod promoter;
pub mod reclaimer;
pub mod runner;
pub mod scheduler;
pub mod settle;
pub mod settler;
pub mod workers;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, MutexGuard, PoisonError};

use tokio::sync::{Mutex, Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::{FetchPulse, QueueMetrics};
use crate::chain::chain;
use crate::plugins::Version;
use crate::queue::{Queue, Redis};
use capacity::{Capacity, Line};
use inflight::Inflight;
use settler::Job;

/// How the host stops, in two steps: stopping to claim is not stopping to work.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    /// No new task is claimed.
    pub claiming: CancellationToken,
    /// Attempts that still run are stopped and their tasks given back.
    pub running: CancellationToken,
    /// What is not settled by now is left for other hosts.
    pub settling: CancellationToken,
}

impl Stop {
    /// Stops when this does, or earlier by itself.
    fn child(&self) -> Stop {
        Stop { claiming: self.claiming.child_token(), running: self.running.child_token(), settling: self.settling.child_token() }
    }
}

/// What the queues of one host share.
pub struct Host {
    pub redis: Redis,
    /// Its name in every group, unique for each start.
    pub consumer: Arc<str>,
    pub capacity: Capacity,
    pub stop: Stop,
}

/// What the loops of one queue share.
pub struct Shared {
    /// The queue's name.
    pub name: Arc<str>,
    pub queue: Queue,
    /// This host's name in the group, unique for each start.
    pub consumer: Arc<str>,
    pub inflight: Arc<Inflight>,
    pub gathering: gather::Gathering,
    /// Its place among the queues of this host.
    pub line: Arc<Line>,
    /// The plugin's working version, if there is one.
    pub versions: watch::Receiver<Option<Arc<Version>>>,
    pub jobs: mpsc::Sender<Job>,
    /// Why Redis does not carry out settlements at present.
    unsettled: std::sync::Mutex<Option<String>>,
    /// Told whenever a task was parked.
    pub parked: Notify,
    /// After a claim that failed, entries may be ours that nobody saw.
    pub unseen: AtomicBool,
    /// Held from a claim to the moment at which all that was claimed is in `inflight`.
    pub claiming: Mutex<()>,
    pub metrics: QueueMetrics,
    pub stop: Stop,
    pub runners: TaskTracker,
}

impl Shared {
    fn unsettled(&self) -> MutexGuard<'_, Option<String>> {
        self.unsettled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts and names entries that somebody else deleted while they were pending.
    fn count_deleted(&self, entries: &[String]) {
        if !entries.is_empty() {
            self.metrics.lost_entries(entries.len() as u64);
            let queue = self.name.as_ref();
            tracing::error!(
                queue,
                ?entries,
                "entries were deleted by somebody else while they were pending; tasks that do not run are lost"
            );
        }
    }

    /// The same for entries of which nobody can run or settle the tasks any more.
    async fn lost(&self, entries: &[String]) {
        let new: Vec<String> = entries.iter().filter(|entry| !self.inflight.is_deleted(entry)).cloned().collect();
        self.count_deleted(&new);
        if !entries.is_empty()
            && let Err(error) = self.queue.lose(entries).await
        {
            tracing::debug!(queue = self.name.as_ref(), error = chain(&error), "could not note on their statuses that tasks are lost");
        }
    }
}

/// All loops of one queue.
pub struct Worker {
    pub shared: Arc<Shared>,
    /// The loops that claim or move tasks.
    claimers: TaskTracker,
    /// The loops that serve until the last task is settled.
    servants: TaskTracker,
    settler: TaskTracker,
    /// Cancelled when no job will come any more.
    drained: CancellationToken,
    /// Cancelled when the last task is settled.
    served: CancellationToken,
    /// Cancelled when the queue is another worker's, or no longer this host's; the same as `served` otherwise.
    retired: CancellationToken,
}

impl Worker {
    /// Starts the loops of `queue` in `host`, which claim for `consumer`, as much as `line` gives. `later`: this host may still run tasks of the
    /// queue under other rules.
    pub fn start(
        host: &Host,
        queue: Queue,
        consumer: Arc<str>,
        line: Arc<Line>,
        versions: watch::Receiver<Option<Arc<Version>>>,
        (metrics, pulse): (QueueMetrics, FetchPulse),
        later: bool,
    ) -> Worker {
        let concurrency = queue.rules.concurrency as usize;
        let (jobs, waiting) = mpsc::channel(concurrency);
        let shared = Arc::new(Shared {
            name: queue.rules.name.as_str().into(),
            inflight: Arc::default(),
            gathering: gather::Gathering::default(),
            line,
            unsettled: std::sync::Mutex::default(),
            parked: Notify::new(),
            unseen: AtomicBool::new(false),
            claiming: Mutex::new(()),
            runners: TaskTracker::new(),
            queue,
            consumer,
            versions,
            jobs,
            metrics,
            stop: host.stop.child(),
        });
        let served = CancellationToken::new();
        let worker = Worker {
            shared: shared.clone(),
            claimers: TaskTracker::new(),
            servants: TaskTracker::new(),
            settler: TaskTracker::new(),
            drained: CancellationToken::new(),
            retired: served.child_token(),
            served,
        };
        let claiming = &shared.stop.claiming;
        let link = host.redis.link_blocking_for(fetcher::BLOCK);
        worker.claimers.spawn(fetcher::Fetcher::new(shared.clone(), pulse, link).run(claiming.clone()));
        worker.claimers.spawn(reclaimer::Reclaimer { shared: shared.clone(), later }.run(claiming.clone()));
        worker.claimers.spawn(promoter::Promoter { shared: shared.clone() }.run(claiming.clone()));
        if let Some(list) = shared.queue.rules.list.clone() {
            let link = host.redis.link_blocking_for(mover::BLOCK);
            worker.claimers.spawn(mover::Mover { shared: shared.clone(), list: list.key, link }.run(claiming.clone()));
        }
        if let Some(schedule) = shared.queue.rules.schedule.clone() {
            worker.claimers.spawn(scheduler::Scheduler::new(shared.clone(), schedule).run(claiming.clone()));
        }
        worker.claimers.spawn(janitor::Janitor { shared: shared.clone(), every: janitor::EVERY }.run(claiming.clone()));
        let settler = settler::Settler { shared: shared.clone(), jobs: waiting, give_up: shared.stop.settling.clone() };
        worker.settler.spawn(settler.run(worker.drained.clone()));
        worker.servants.spawn(heartbeat::Heartbeat { shared: shared.clone(), retired: worker.retired.clone() }.run(worker.served.clone()));
        worker.servants.spawn(census::CensusTaker { shared }.run(worker.retired.clone()));
        worker
    }

    /// Claims nothing more: the queue is another worker's from now on, or no longer this host's. What runs goes on until its end.
    pub fn retire(&self) {
        self.shared.stop.claiming.cancel();
        self.retired.cancel();
    }

    /// Waits until everything has ended, in this order. The tokens in [`Stop`] say how long each step may take at most.
    pub async fn stop(self) {
        // 1. Nothing new is claimed (`Stop::claiming`).
        self.finish(&self.claimers).await;
        // 2. What runs ends by itself, or is stopped (`Stop::running`).
        self.finish(&self.shared.runners).await;
        // 3. What ended is settled, or given up (`Stop::settling`).
        self.drained.cancel();
        self.finish(&self.settler).await;
        // 4. Leases need no renewal any more.
        self.served.cancel();
        self.finish(&self.servants).await;
        // 5. The consumer's name is of no use to anyone, unless something is still pending for it.
        tokio::select! {
            biased;
            // Here, too: the queues of a host leave one after the other while Redis is away, each after a pause of its own.
            () = self.shared.stop.settling.cancelled() => {}
            left = self.shared.queue.leave(&self.shared.consumer) => {
                if let Err(error) = left {
                    tracing::debug!(queue = self.shared.name.as_ref(), error = chain(&error), "could not leave the group");
                }
            }
        }
    }

    /// Waits for loops to end. Not for ever: one that waits for a Redis that is away is left behind, and ends with the process.
    async fn finish(&self, loops: &TaskTracker) {
        loops.close();
        tokio::select! {
            () = loops.wait() => {}
            () = self.shared.stop.settling.cancelled() => {}
        }
    }
}
