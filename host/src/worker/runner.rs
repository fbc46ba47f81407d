//! Runs one claimed task from start to settlement.
//!
//! In: a task that this host owns. Out: exactly one settlement, or none if the lease was lost (the new owner settles instead).
//!
//!     claimed ─▶ sandbox ─▶ Outcome ─▶ settle::decide ─▶ settler
//!
//! Not here: which task to run (`fetcher`, `reclaimer`), when to try again (`backoff`), Redis (`queue`).

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Shared;
use super::inflight::Hold;
use super::settle;
use super::settler::Job;
use crate::plugins::{Ruling, Version};
use crate::queue::{Subject, codec};
use crate::sandbox::Attempt;
use crate::task::Task;

pub async fn run(shared: Arc<Shared>, version: Arc<Version>, task: Task, hold: Hold) {
    let rules = &shared.queue.rules;
    // From when this entry was added: for a task that was delayed, from when it was due.
    shared.metrics.wait(age(codec::entry_time_ms(&task.entry)));
    let task = Arc::new(task);
    let attempt = Attempt {
        task: task.clone(),
        plugin: version.plugin.clone(),
        max_attempts: rules.max_retries.saturating_add(1),
        timeout: rules.timeout,
        progress: hold.progress.clone(),
        stop: hold.stop.clone(),
    };
    let report = version.run(attempt).await;
    let verdict = match report {
        Some((report, ruling)) => {
            shared.metrics.duration(report.duration);
            tracing::debug!(queue = rules.name, task = task.id, attempt = task.attempt, outcome = ?report.outcome, ?ruling, "attempt ended");
            match ruling {
                Ruling::AsUsual => settle::decide(report.outcome, &task, rules, fastrand::f64() * 2.0 - 1.0),
                Ruling::GiveBack(delay) => settle::give_back(&report.outcome, &task, delay),
            }
        }
        None if hold.is_lost() => {
            tracing::info!(queue = rules.name, task = task.id, "stopped: this host does not own the task any more");
            return;
        }
        None => settle::release(&task),
    };
    let task = Arc::unwrap_or_clone(task);
    let job = Job::new(Subject::Task(Box::new(task)), version.label(), verdict, hold);
    // The settler outlives the runners; when it has given up all the same, the task stays pending and is reclaimed.
    let _ = shared.jobs.send(job).await;
}

/// How long ago, by this host's clock: for a metric only.
fn age(since_ms: u64) -> Duration {
    let since = Duration::from_millis(since_ms);
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(since)
}
