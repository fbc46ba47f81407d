//! Starts, changes and retires the queues of this host while the host runs.
//!
//! In: the queues of the current configuration. Out: one [`Worker`] for each, and a [`QueueBoard`] that shows
//! what runs.
//!
//! A queue whose rules change gets a new worker with its own consumer name. The old worker stops claiming,
//! finishes its attempts under the old rules, and leaves the group. Both take permits from one
//! [`QueueCapacity`], so the queue's concurrency holds for the two together.
//!
//! Not here: which parts of the file changed, and whether they may change (`reload`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio_util::task::TaskTracker;

use super::capacity::QueueCapacity;
use super::inflight::Inflight;
use super::lifecycle::{Common, Worker};
use super::metrics::{QueueMetrics, ScrapedTimes};
use super::shared::SharedQueue;
use crate::admin::Health;
use crate::config::model::HistogramForm;
use crate::guarded::Guarded;
use crate::plugins::Plugins;
use crate::queue::Queue;

/// The workers of one host.
pub(crate) struct Workers {
    host: Common,
    plugins: Plugins,
    health: Health,
    /// In the order of the configuration.
    running: Vec<Worker>,
    /// Tracks retired workers until their last attempt is settled.
    retired: TaskTracker,
    /// The capacity of each queue whose attempts still run. A queue that is added again gets it back.
    capacities: HashMap<String, Weak<QueueCapacity>>,
    /// How often the configuration was applied.
    times_applied: u64,
    board: QueueBoard,
}

/// The queues of this host and their attempts in flight. Clones share the board.
#[derive(Debug, Clone, Default)]
pub(crate) struct QueueBoard(Arc<Guarded<BoardState>>);

#[derive(Debug, Default)]
struct BoardState {
    queues: Vec<QueueEntry>,
    /// Names of all configured queues, set before their workers start.
    wanted: BTreeSet<String>,
    /// The counts of each queue, until its last attempt is settled.
    metrics: BTreeMap<Arc<str>, Arc<QueueMetrics>>,
    histograms: HistogramForm,
    /// The sum of the times of the queues that are gone.
    gone: Option<[ScrapedTimes; 2]>,
}

/// One queue on the board.
#[derive(Debug, Clone)]
pub(crate) struct QueueEntry {
    pub name: Arc<str>,
    pub metrics: Arc<QueueMetrics>,
    pub queue: Queue,
    /// [`QueueRules::mark`](crate::config::QueueRules::mark).
    pub rules: Arc<str>,
    shared: Weak<SharedQueue>,
    /// The in-flight tables of its worker and of its retired workers.
    inflight: Vec<Weak<Inflight>>,
}

/// The names of the queues that [`Workers::apply`] added, changed and removed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    pub added: Vec<String>,
    pub changed: Vec<String>,
    pub removed: Vec<String>,
}

impl Workers {
    pub(crate) fn new(host: Common, plugins: Plugins, health: Health) -> Workers {
        Workers {
            host,
            plugins,
            health,
            running: Vec::new(),
            retired: TaskTracker::new(),
            capacities: HashMap::new(),
            times_applied: 0,
            board: QueueBoard::default(),
        }
    }

    pub(crate) fn board(&self) -> QueueBoard {
        self.board.clone()
    }

    /// Runs exactly these queues, in their order. A queue whose rules are the same is not touched.
    pub(crate) fn apply(&mut self, queues: Vec<Queue>) -> Applied {
        let mut applied = Applied::default();
        self.board.0.lock().wanted = queues.iter().map(|queue| queue.rules.name.clone()).collect();
        let mut before = std::mem::take(&mut self.running);
        for queue in queues {
            let name = queue.rules.name.clone();
            let known = before.iter().position(|worker| *worker.shared.name == *name);
            match known.map(|at| before.remove(at)) {
                Some(worker) if worker.shared.queue.rules == queue.rules => {
                    self.running.push(worker);
                    continue;
                }
                Some(worker) => {
                    applied.changed.push(name);
                    self.retire(worker);
                }
                None => applied.added.push(name),
            }
            let worker = self.start(queue);
            self.running.push(worker);
        }
        for worker in before {
            worker.shared.capacity.close();
            applied.removed.push(worker.shared.name.to_string());
            self.health.remove(&worker.shared.name);
            self.retire(worker);
        }
        self.board.post(&self.running);
        self.times_applied += 1;
        applied
    }

    fn start(&mut self, queue: Queue) -> Worker {
        let name = &queue.rules.name;
        let (concurrency, priority) = (queue.rules.concurrency, queue.rules.priority);
        self.capacities.retain(|_, capacity| capacity.strong_count() > 0);
        let known = self.capacities.get(name).and_then(Weak::upgrade);
        let capacity = known.unwrap_or_else(|| self.host.capacity.queue(concurrency, priority));
        capacity.resize(concurrency, priority);
        self.capacities.insert(name.clone(), Arc::downgrade(&capacity));
        let versions = self.plugins.subscribe(&queue.rules.plugin);
        let (metrics, pulse) = (self.board.queue(name), self.health.queue(name));
        metrics.set_timeout(queue.rules.timeout);
        Worker::start(&self.host, queue, self.times_applied, capacity, versions, metrics, pulse)
    }

    fn retire(&self, worker: Worker) {
        worker.retire();
        let (board, name) = (self.board.clone(), worker.shared.name.clone());
        self.retired.spawn(async move {
            worker.stop().await;
            // If the queue was added again meanwhile, its counts stay.
            let mut state = board.0.lock();
            if !state.wanted.contains(&*name) {
                state.forget(&name);
            }
        });
    }

    /// Attempts that run or are being settled, of all queues.
    pub(crate) fn running(&self) -> usize {
        self.board.queues().iter().map(QueueEntry::running).sum()
    }

    /// Waits until all workers have ended. The tokens of [`crate::shutdown::Stop`] bound how long that takes.
    pub(crate) async fn stop(self) {
        join_all(self.running.into_iter().map(Worker::stop)).await;
        self.retired.close();
        self.retired.wait().await;
    }
}

impl QueueBoard {
    /// All queues, in the order of the configuration.
    pub(crate) fn queues(&self) -> Vec<QueueEntry> {
        self.0.lock().queues.clone()
    }

    /// The counts of all queues, by name.
    pub(crate) fn metrics(&self) -> Vec<(Arc<str>, Arc<QueueMetrics>)> {
        self.0.lock().metrics.iter().map(|(name, metrics)| (name.clone(), metrics.clone())).collect()
    }

    /// The counts of one queue. Each call returns the same counts, until the queue is removed.
    pub(crate) fn queue(&self, name: &str) -> Arc<QueueMetrics> {
        self.0.lock().metrics.entry(name.into()).or_default().clone()
    }

    pub(crate) fn set_histograms(&self, histograms: HistogramForm) {
        self.0.lock().histograms = histograms;
    }

    /// How long attempts ran, and how long tasks waited, by queue. With [`HistogramForm::Host`] there is only
    /// the sum of all queues, as `*`. It includes the queues that are gone, so that it does not go back.
    pub(crate) fn times(&self) -> Vec<(Arc<str>, [ScrapedTimes; 2])> {
        let state = self.0.lock();
        let form = state.histograms;
        let each = state.metrics.iter().map(|(name, metrics)| (name.clone(), metrics.scraped(form)));
        match form {
            HistogramForm::Full | HistogramForm::Few => each.collect(),
            HistogramForm::Host => {
                let all = each.map(|(_, times)| times).chain(state.gone.clone()).reduce(together);
                all.map(|times| (Arc::from("*"), times)).into_iter().collect()
            }
        }
    }

    /// Shows a queue without a worker.
    #[cfg(test)]
    pub(crate) fn show(&self, queue: Queue) {
        let name: Arc<str> = queue.rules.name.as_str().into();
        let metrics = self.queue(&name);
        metrics.set_timeout(queue.rules.timeout);
        let entry =
            QueueEntry { name, metrics, queue, rules: "".into(), shared: Weak::new(), inflight: Vec::new() };
        self.0.lock().queues.push(entry);
    }

    /// Leaves a queue out, as if its last worker had ended.
    #[cfg(test)]
    pub(crate) fn forget(&self, name: &str) {
        self.0.lock().forget(name);
    }

    fn post(&self, running: &[Worker]) {
        let mut state = self.0.lock();
        let before = std::mem::take(&mut state.queues);
        state.queues.extend(running.iter().map(|Worker { shared, .. }| {
            let own = Arc::downgrade(&shared.inflight);
            let others = before
                .iter()
                .filter(|entry| entry.name == shared.name)
                .flat_map(|entry| entry.inflight.iter());
            let mut inflight: Vec<_> =
                others.filter(|other| other.strong_count() > 0 && !other.ptr_eq(&own)).cloned().collect();
            inflight.push(own);
            QueueEntry {
                name: shared.name.clone(),
                metrics: shared.metrics.clone(),
                queue: shared.queue.clone(),
                rules: shared.queue.rules.mark().into(),
                shared: Arc::downgrade(shared),
                inflight,
            }
        }));
    }
}

impl BoardState {
    /// Removes the counts of a queue, and adds its times to the sum.
    fn forget(&mut self, name: &str) {
        let Some(metrics) = self.metrics.remove(name) else { return };
        let times = metrics.scraped(self.histograms);
        self.gone = self.gone.take().into_iter().chain([times]).reduce(together);
    }
}

fn together(
    [ran, waited]: [ScrapedTimes; 2],
    [also_ran, also_waited]: [ScrapedTimes; 2],
) -> [ScrapedTimes; 2] {
    [ran.with(also_ran), waited.with(also_waited)]
}

impl QueueEntry {
    /// Whether this host has the queue's duties, while it serves the queue.
    pub(crate) fn has_duty(&self) -> bool {
        self.shared.upgrade().is_some_and(|shared| shared.idle.has_duty())
    }

    /// The age of the oldest attempt in flight; zero if there is none.
    pub(crate) fn oldest(&self) -> Duration {
        let tables = self.inflight.iter().filter_map(Weak::upgrade);
        tables.filter_map(|inflight| inflight.oldest()).max().unwrap_or_default()
    }

    /// Attempts that run or are being settled.
    pub(crate) fn running(&self) -> usize {
        self.inflight.iter().filter_map(Weak::upgrade).map(|inflight| inflight.len()).sum()
    }
}
