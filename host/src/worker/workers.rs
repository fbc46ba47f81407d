//! Starts, changes and retires the queues of this host while the host runs.
//!
//! In: the queues of the current configuration. Out: one [`Worker`] for each, and a [`Board`] that shows what
//! runs.
//!
//! A queue whose rules change gets a new worker with its own consumer name. The old worker stops claiming,
//! finishes its attempts under the old rules, and leaves the group. Both take permits from one [`Line`], so
//! the queue's concurrency holds for the two together.
//!
//! Not here: which parts of the file changed, and whether they may change (`reload`).

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures_util::future::join_all;
use tokio_util::task::TaskTracker;

use super::capacity::Line;
use super::common::Common;
use super::inflight::Inflight;
use super::lifecycle::Worker;
use crate::admin::{Health, Metrics, QueueMetrics};
use crate::plugins::Plugins;
use crate::queue::Queue;

/// The workers of one host.
pub struct Workers {
    host: Common,
    plugins: Plugins,
    metrics: Metrics,
    health: Health,
    /// In the order of the configuration.
    running: Vec<Running>,
    /// Retired workers whose last attempts still run.
    retired: TaskTracker,
    /// Lines of removed queues whose attempts still run. A queue that is added again gets its old line back.
    lines: HashMap<String, Weak<Line>>,
    /// The number of workers that were started after the first configuration.
    later: Option<u64>,
    board: Board,
}

struct Running {
    worker: Worker,
    line: Arc<Line>,
}

/// The queues of this host and their attempts in flight. Clones share the board.
#[derive(Debug, Clone, Default)]
pub struct Board(Arc<Mutex<Posts>>);

#[derive(Debug, Default)]
struct Posts {
    queues: Vec<Posted>,
    /// Names of all configured queues, known before their workers start.
    wanted: BTreeSet<String>,
}

/// One queue on the board.
#[derive(Debug, Clone)]
pub struct Posted {
    pub name: Arc<str>,
    pub metrics: QueueMetrics,
    /// The tables of its worker and of its retired workers.
    inflight: Vec<Weak<Inflight>>,
}

/// The names of the queues that [`Workers::apply`] added, changed and removed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Applied {
    pub added: Vec<String>,
    pub changed: Vec<String>,
    pub removed: Vec<String>,
}

impl Workers {
    pub fn new(host: Common, plugins: Plugins, metrics: Metrics, health: Health) -> Workers {
        Workers {
            host,
            plugins,
            metrics,
            health,
            running: Vec::new(),
            retired: TaskTracker::new(),
            lines: HashMap::new(),
            later: None,
            board: Board::default(),
        }
    }

    pub fn board(&self) -> Board {
        self.board.clone()
    }

    /// Makes the queues those that are given, in their order. One whose rules are the same is not touched.
    pub fn apply(&mut self, queues: Vec<Queue>) -> Applied {
        let mut applied = Applied::default();
        self.board.lock().wanted = queues.iter().map(|queue| queue.rules.name.clone()).collect();
        let mut before = std::mem::take(&mut self.running);
        for queue in queues {
            let name = queue.rules.name.clone();
            let same = before
                .iter()
                .position(|running| *running.worker.shared.name == *name)
                .map(|at| before.remove(at));
            let running = match same {
                Some(running) if running.worker.shared.queue.rules == queue.rules => running,
                Some(Running { worker, line }) => {
                    applied.changed.push(name);
                    line.resize(queue.rules.concurrency, queue.rules.priority);
                    self.retire(worker);
                    self.start(queue, line)
                }
                None => {
                    let line = self.line(&queue);
                    applied.added.push(name);
                    self.start(queue, line)
                }
            };
            self.running.push(running);
        }
        for Running { worker, line } in before {
            line.close();
            applied.removed.push(worker.shared.name.to_string());
            self.health.remove(&worker.shared.name);
            self.retire(worker);
        }
        self.board.post(&self.running);
        self.later.get_or_insert(0);
        applied
    }

    fn line(&mut self, queue: &Queue) -> Arc<Line> {
        let (concurrency, priority) = (queue.rules.concurrency, queue.rules.priority);
        self.lines.retain(|_, line| line.strong_count() > 0);
        let known = self.lines.get(&queue.rules.name).and_then(Weak::upgrade);
        let line = known.unwrap_or_else(|| self.host.capacity.line(concurrency, priority));
        line.resize(concurrency, priority);
        self.lines.insert(queue.rules.name.clone(), Arc::downgrade(&line));
        line
    }

    fn start(&mut self, queue: Queue, line: Arc<Line>) -> Running {
        let later = self.later.as_mut().map(|later| {
            *later += 1;
            *later
        });
        let host = &self.host;
        // A worker before it may still heartbeat under a name of its own; what that one has in hand is not
        // this one's to recover.
        let consumer =
            later.map_or_else(|| host.consumer.clone(), |n| format!("{}.{n}", host.consumer).into());
        let versions = self.plugins.subscribe(&queue.rules.plugin);
        let (metrics, pulse) = (self.metrics.queue(&queue.rules.name), self.health.queue(&queue.rules.name));
        let worker =
            Worker::start(host, queue, consumer, line.clone(), versions, (metrics, pulse), later.is_some());
        Running { worker, line }
    }

    fn retire(&self, worker: Worker) {
        worker.retire();
        let (board, metrics, name) = (self.board.clone(), self.metrics.clone(), worker.shared.name.clone());
        self.retired.spawn(async move {
            worker.stop().await;
            // In one step: a queue that comes back has its series from its start on.
            let posts = board.lock();
            if !posts.wanted.contains(&*name) {
                metrics.remove_queue(&name);
            }
        });
    }

    /// Attempts that run.
    pub fn running(&self) -> usize {
        self.board.queues().iter().map(Posted::running).sum()
    }

    /// Waits until everything has ended. The host's [`crate::shutdown::Stop`] says how long that may take.
    pub async fn stop(self) {
        join_all(self.running.into_iter().map(|running| running.worker.stop())).await;
        self.retired.close();
        self.retired.wait().await;
    }
}

impl Board {
    /// All queues, in the order of the configuration.
    pub fn queues(&self) -> Vec<Posted> {
        self.lock().queues.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Posts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self, running: &[Running]) {
        let mut posts = self.lock();
        let before = std::mem::take(&mut posts.queues);
        posts.queues.extend(running.iter().map(|Running { worker, .. }| {
            let shared = &worker.shared;
            let own = Arc::downgrade(&shared.inflight);
            let others = before
                .iter()
                .filter(|posted| posted.name == shared.name)
                .flat_map(|posted| posted.inflight.iter());
            let mut inflight: Vec<_> =
                others.filter(|other| other.strong_count() > 0 && !other.ptr_eq(&own)).cloned().collect();
            inflight.push(own);
            Posted { name: shared.name.clone(), metrics: shared.metrics.clone(), inflight }
        }));
    }
}

impl Posted {
    /// Attempts that run or are being settled.
    pub fn running(&self) -> usize {
        self.inflight.iter().filter_map(Weak::upgrade).map(|inflight| inflight.len()).sum()
    }
}
