//! Starts and stops all loops of one queue.
//!
//! In: a queue, and what all queues of its host share ([`Common`]). Out: a [`Worker`].
//! [`Worker::stop`] gives the order in which the loops end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Mutex, Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::capacity::{Capacity, QueueCapacity};
use super::ended::{EndedAttempt, Room};
use super::holding::Holding;
use super::idle::IdleState;
use super::inflight::Inflight;
use super::limits::KnownLimits;
use super::lookout::Lookout;
use super::metrics::QueueMetrics;
use super::notices::Notices;
use super::pace::Pace;
use super::shared::{LANES, SharedQueue};
use super::starts::Starts;
use super::waiter::Waiter;
use super::{
    census, fetcher, heartbeat, intake, mover, poller, preparer, promoter, reclaimer, relay, scheduler,
    settler, status_writer,
};
use crate::admin::FetchPulse;
use crate::chain::chain;
use crate::guarded::Guarded;
use crate::plugins::Version;
use crate::queue::{Link, Queue, QueueEffects, QueueError, Redis};
use crate::shutdown::Stop;
use crate::telemetry::Traces;

/// The most entries that one call gives back at the end, where a claim has failed.
const MAX_UNSEEN: usize = 100;

/// The parts that all queues of one host share.
pub(crate) struct Common {
    pub redis: Redis,
    /// The host's consumer name in every group, unique for each start.
    pub consumer: Arc<str>,
    pub capacity: Capacity,
    pub waiter: Waiter,
    pub lookout: Lookout,
    /// The connection for reads that do not block. All queues use it.
    pub reads: Link,
    pub traces: Traces,
    pub stop: Stop,
}

/// All loops of one queue.
pub(crate) struct Worker {
    pub shared: Arc<SharedQueue>,
    /// The loops that claim or move tasks.
    claimers: TaskTracker,
    /// The loops that serve until the last task is settled.
    servants: TaskTracker,
    settler: TaskTracker,
    /// Cancelled when no more ended attempts can be sent to the settler.
    drained: CancellationToken,
    /// Cancelled when the last task is settled.
    served: CancellationToken,
    /// Cancelled when another worker takes over the queue, when this host gives it up, or with `served`.
    retired: CancellationToken,
}

impl Worker {
    /// Starts the loops of `queue` in `host`. The configuration was applied `reloads` times before.
    pub(crate) fn start(
        host: &Common,
        queue: Queue,
        reloads: u64,
        capacity: Arc<QueueCapacity>,
        versions: watch::Receiver<Option<Arc<Version>>>,
        metrics: Arc<QueueMetrics>,
        pulse: FetchPulse,
    ) -> Worker {
        // Each worker has its own consumer name. A retired worker of the queue may still run attempts, under
        // older rules, which the new one must not recover.
        let follows_older_worker = reloads > 0;
        let consumer: Arc<str> = if follows_older_worker {
            format!("{}.{reloads}", host.consumer).into()
        } else {
            host.consumer.clone()
        };
        let concurrency = queue.rules.concurrency as usize;
        let (ended, waiting) = mpsc::unbounded_channel();
        let inflight = Arc::<Inflight>::default();
        let holding = Holding::new(queue.clone(), consumer.clone(), inflight.clone(), metrics.clone());
        let shared = Arc::new(SharedQueue {
            name: queue.rules.name.as_str().into(),
            inflight,
            holding,
            limits: KnownLimits::new(queue.rules.clone(), capacity.clone()),
            open_batch: Guarded::default(),
            capacity,
            unsettled: Guarded::default(),
            parked: Notify::new(),
            relay_wanted: Notify::new(),
            relays_all: AtomicBool::new(false),
            settled: Notify::new(),
            takeover_wanted: Notify::new(),
            begun: Notify::new(),
            idle: IdleState::default(),
            unseen: AtomicBool::new(false),
            claiming: Mutex::new(()),
            runners: TaskTracker::new(),
            starts: Starts::default(),
            effects: Arc::new(QueueEffects::new(queue.clone())),
            queue,
            consumer,
            versions,
            ended,
            room: Room::new(concurrency),
            metrics,
            traces: host.traces.clone(),
            notices: Notices::default(),
            stop: host.stop.child(),
        });
        let served = CancellationToken::new();
        let worker = Worker {
            shared,
            claimers: TaskTracker::new(),
            servants: TaskTracker::new(),
            settler: TaskTracker::new(),
            drained: CancellationToken::new(),
            retired: served.child_token(),
            served,
        };
        host.lookout.add(&worker.shared);
        worker.start_claiming(host, follows_older_worker, &pulse);
        worker.start_serving(waiting, &pulse);
        worker
    }

    /// Starts the loops that prepare the queue, and claim and move its tasks.
    fn start_claiming(&self, host: &Common, follows_older_worker: bool, pulse: &FetchPulse) {
        let shared = &self.shared;
        let (claiming, prepared) = (&shared.stop.claiming, CancellationToken::new());
        let (redis, waiter, reads) = (host.redis.clone(), host.waiter.clone(), host.reads.clone());
        let preparer =
            preparer::Preparer { shared: shared.clone(), pulse: pulse.clone(), prepared: prepared.clone() };
        self.claimers.spawn(preparer.run(claiming.clone()));
        let fetcher = fetcher::Fetcher::new(shared.clone(), pulse.clone(), redis, waiter, reads);
        self.claim_with(&prepared, fetcher.run(claiming.clone()));
        let reclaimer = reclaimer::Reclaimer { shared: shared.clone(), follows_older_worker };
        self.claim_with(&prepared, reclaimer.run(claiming.clone()));
        self.claim_with(&prepared, promoter::Promoter { shared: shared.clone() }.run(claiming.clone()));
        if let Some(list) = shared.queue.rules.list.clone() {
            let lists = list.keys();
            for waits_for in 0..lists.len() {
                let link = host.redis.link_blocking_for(mover::BLOCK);
                let mover = mover::Mover { shared: shared.clone(), lists: lists.clone(), waits_for, link };
                self.claim_with(&prepared, mover.run(claiming.clone()));
            }
            if let Some(sidekiq) = list.sidekiq() {
                let poller = poller::Poller { shared: shared.clone(), sets: sidekiq.sets };
                self.claim_with(&prepared, poller.run(claiming.clone()));
            }
        }
        if let Some(schedule) = shared.queue.rules.schedule.clone() {
            let scheduler = scheduler::Scheduler::new(shared.clone(), schedule);
            self.claim_with(&prepared, scheduler.run(claiming.clone()));
        }
    }

    /// Starts the loops that settle tasks, and keep what is known of them up to date.
    fn start_serving(&self, ended: mpsc::UnboundedReceiver<EndedAttempt>, pulse: &FetchPulse) {
        let shared = &self.shared;
        let ended: settler::EndedAttempts = Arc::new(Mutex::new(ended));
        let pace = Pace::new(&shared.name, "settle");
        for lane in 0..LANES {
            let (drained, give_up) = (self.drained.clone(), shared.stop.settling.clone());
            let (shared, ended, pulse) = (shared.clone(), ended.clone(), pulse.clone());
            let (last_call, pace) = (0, pace.another());
            let settler = settler::Settler { shared, lane, ended, last_call, pace, pulse, drained, give_up };
            self.settler.spawn(settler.run());
        }
        let writer = status_writer::StatusWriter { shared: shared.clone() };
        self.servants.spawn(writer.run(self.served.clone()));
        let heartbeat = heartbeat::Heartbeat { shared: shared.clone(), retired: self.retired.clone() };
        self.servants.spawn(heartbeat.run(self.served.clone()));
        // Tasks may be left from before a change of the configuration.
        if shared.queue.link.is_cluster() {
            self.servants.spawn(relay::Relay::new(shared.clone()).run(self.served.clone()));
        }
        let census = census::CensusTaker { shared: shared.clone() };
        self.servants.spawn(census.run(self.retired.clone()));
    }

    /// Starts a loop that claims or moves tasks, once the queue is `prepared`.
    fn claim_with(&self, prepared: &CancellationToken, claims: impl Future<Output = ()> + Send + 'static) {
        let (prepared, claiming) = (prepared.clone(), self.shared.stop.claiming.clone());
        self.claimers.spawn(async move {
            if claiming.run_until_cancelled_owned(prepared.cancelled_owned()).await.is_some() {
                claims.await;
            }
        });
    }

    /// Stops claiming, because another worker takes over the queue or this host gives it up.
    ///
    /// Running attempts continue until they end.
    pub(crate) fn retire(&self) {
        self.shared.stop.claiming.cancel();
        self.retired.cancel();
    }

    /// Ends all loops in the order of the steps below. The tokens in [`Stop`] bound the time of each step.
    pub(crate) async fn stop(self) {
        let runs = async {
            // 1. Nothing new is claimed (`Stop::claiming`), and entries that were delivered unseen are given
            //    back.
            self.finish(&self.claimers).await;
            self.give_back_unseen().await;
            // 2. Running attempts end by themselves, or are stopped (`Stop::running`). A claim that waits for
            //    Redis does not hold that up.
            self.finish(&self.shared.runners).await;
        };
        let mut runs = std::pin::pin!(runs);
        tokio::select! {
            () = &mut runs => {}
            () = self.shared.stop.running.cancelled() => {
                self.shared.inflight.stop_all();
                runs.await;
            }
        }
        // 3. Ended attempts are settled, or given up (`Stop::settling`).
        self.drained.cancel();
        self.finish(&self.settler).await;
        // 4. No lease is left to renew.
        self.served.cancel();
        self.finish(&self.servants).await;
        // 5. The consumer leaves the group, unless it still has pending entries.
        tokio::select! {
            biased;
            // While Redis is unreachable, queues leave one after the other, each after its own timeout.
            () = self.shared.stop.settling.cancelled() => {}
            left = self.shared.queue.leave(&self.shared.consumer, LANES) => {
                if let Err(error) = left {
                    let queue = self.shared.name.as_ref();
                    tracing::debug!(queue, error = chain(&error), "could not leave the group");
                }
            }
        }
    }

    /// After a claim that failed, gives back the entries that Redis delivered in a reply that was lost. It
    /// tries once: entries that stay pending are taken over by another host.
    async fn give_back_unseen(&self) {
        let shared = &self.shared;
        if !shared.unseen.load(Ordering::Acquire) {
            return;
        }
        let given_back = async {
            let _claiming = shared.claiming.lock().await;
            loop {
                let known = shared.inflight.entries();
                let (queue, consumer) = (&shared.queue, &shared.consumer);
                let found = queue.recover(&queue.link, consumer, &known, MAX_UNSEEN).await?;
                shared.end_lost(&found.lost).await;
                if !found.entries.is_empty() {
                    let (queue, tasks) = (shared.name.as_ref(), found.entries.len());
                    tracing::info!(
                        queue,
                        tasks,
                        "gives back tasks that were delivered in a reply that was lost"
                    );
                }
                intake::give_back(shared, found.entries).await;
                if !found.more {
                    return Ok::<(), QueueError>(());
                }
            }
        };
        if let Some(Err(error)) = shared.stop.settling.run_until_cancelled(given_back).await {
            let (queue, error) = (shared.name.as_ref(), chain(&error));
            tracing::debug!(queue, error, "could not look for tasks that were delivered unseen");
        }
    }

    /// Waits for loops to end, until `Stop::settling` is cancelled.
    ///
    /// A loop that still waits for an unreachable Redis ends with the process.
    async fn finish(&self, loops: &TaskTracker) {
        loops.close();
        tokio::select! {
            () = loops.wait() => {}
            () = self.shared.stop.settling.cancelled() => {}
        }
    }
}
