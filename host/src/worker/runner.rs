//! Runs claimed tasks from start to settlement: one, or a batch that its handler takes in one call.
//!
//! In: tasks that this host owns. Out: exactly one settlement for each task, or none if its lease was lost
//! before it had an outcome (the new owner settles instead).
//!
//!     claimed ─▶ sandbox ─▶ one Outcome per task ─▶ settle::decide ─▶ settler
//!        ▲          └ a failed batch: its tasks run again one by one
//!        └──────────┘
//!
//! Not here: which task to run (`fetcher`, `reclaimer`), batches (`gather`), when to try again (`backoff`),
//! Redis (`queue`).

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::inflight::Ownership;
use super::notices::NoticeKind;
use super::settle;
use super::shared::{Ran, SharedQueue};
use crate::config::QueueRules;
use crate::plugins::{Judged, RanAttempt, Ruling, Version};
use crate::queue::attempts::AttemptRecord;
use crate::queue::size::is_large;
use crate::queue::{EndingSubject, codec};
use crate::sandbox::Attempt;
use crate::task::{AttemptEnd, Outcome, SettledAs, Task};
use crate::telemetry::{AttemptTrace, RunEnd};

/// Runs a task or a batch beside other attempts. Within the guests' runtime, the handler begins without
/// another hop.
pub(crate) async fn run(shared: Arc<SharedQueue>, version: Arc<Version>, members: Vec<(Task, Ownership)>) {
    members.iter().for_each(|(task, _)| record_wait(&shared, task));
    run_shared(shared, version, members, 0).await;
}

/// Records how long a task has waited, since its entry was added, or since it was due if it was delayed.
pub(crate) fn record_wait(shared: &SharedQueue, task: &Task) {
    shared.metrics.wait.observe(age(codec::entry_time_ms(&task.entry)));
}

/// Runs tasks beside other attempts, once no attempt runs alone.
async fn run_shared(
    shared: Arc<SharedQueue>,
    version: Arc<Version>,
    members: Vec<(Task, Ownership)>,
    disturbed: u32,
) {
    let _others = shared.capacity.alone().enter_shared().await;
    run_attempt(shared.clone(), version, members, disturbed).await;
}

/// Runs tasks that may run now, which other tasks have `disturbed` so often.
pub(crate) async fn run_attempt(
    shared: Arc<SharedQueue>,
    version: Arc<Version>,
    members: Vec<(Task, Ownership)>,
    disturbed: u32,
) {
    let mut members = members;
    // A process that was stopped for a while goes on here before it knows of that.
    shared.give_up_late_attempts();
    // Tasks that were cancelled or lost while they waited for a batch must not run.
    let is_stopped = |(_, owned): &mut (Task, Ownership)| owned.is_lost() || owned.is_cancelled();
    let stopped: Vec<(Task, Ownership)> = members.extract_if(.., is_stopped).collect();
    if !stopped.is_empty() {
        settle_stopped(&shared, &version, stopped, false).await;
    }
    if members.is_empty() {
        return;
    }
    let (tasks, owned): (Vec<Task>, Vec<Ownership>) = members.into_iter().unzip();
    let trace = shared.traces.begin(&tasks, codec::last_span);
    let tasks = Arc::new(tasks);
    let judged = attempt(&shared, &version, &tasks, &owned, &trace, disturbed).await;
    let mut tasks = Arc::unwrap_or_clone(tasks);
    trace_ends(&shared, &version, &mut tasks, &owned, &trace, judged.as_ref().map(|ran| &ran.judged));
    match judged {
        Some(RanAttempt { duration, last_lines, judged: Judged::Each(ends) }) => {
            settle_ends(&shared, &version, (tasks, owned), ends, duration, &last_lines).await;
        }
        Some(RanAttempt { judged: Judged::Split { kind, message }, .. }) => {
            if tasks.len() > 1 {
                shared.metrics.split_batches.inc();
                tracing::warn!(
                    queue = shared.queue.rules.name,
                    tasks = tasks.len(),
                    kind = kind.into_str(),
                    error = message,
                    "a batch failed; its tasks run again one by one"
                );
            }
            for (task, owned) in tasks.into_iter().zip(owned) {
                run_singly(&shared, &version, task, owned, disturbed + 1);
            }
        }
        None => settle_stopped(&shared, &version, tasks.into_iter().zip(owned).collect(), true).await,
    }
}

/// Settles the tasks of an attempt by its outcomes.
async fn settle_ends(
    shared: &Arc<SharedQueue>,
    version: &Arc<Version>,
    (tasks, owned): (Vec<Task>, Vec<Ownership>),
    ends: Vec<(Outcome, Ruling)>,
    duration: Duration,
    last_lines: &str,
) {
    let rules = &shared.queue.rules;
    if ends.len() > 1 {
        shared.metrics.whole_batches.inc();
    }
    let outcomes = ends.iter().map(|(outcome, _)| outcome);
    let charge = shared.holding.ended(tasks.iter().zip(outcomes)).await;
    for ((mut task, owned), (outcome, ruling)) in tasks.into_iter().zip(owned).zip(ends) {
        shared.metrics.duration.observe(duration);
        let end = AttemptEnd::from(&outcome);
        shared.metrics.attempted(&version.own_figures, &version.label(), end, duration);
        tracing::debug!(
            queue = rules.name,
            task = task.id,
            attempt = task.attempt,
            version = version.short(),
            outcome = outcome.word(),
            error = outcome.error(),
            given_back = ruling != Ruling::AsUsual,
            "attempt ended"
        );
        let record = record_of(rules, &outcome, last_lines);
        let jitter = fastrand::f64() * 2.0 - 1.0;
        let decision = match ruling {
            Ruling::AsUsual => settle::after_outage(&outcome, &mut task, rules, charge, jitter)
                .unwrap_or_else(|| settle::decide(outcome, &task, rules, jitter)),
            Ruling::GiveBack(delay) => settle::give_back(&outcome, &task, delay),
        };
        // A deferral is no failure.
        let record = record.filter(|_| decision.label != SettledAs::Deferred);
        settle(shared, version, task, Some(Ran { duration, record }), owned, decision).await;
    }
}

/// Settles tasks that were stopped before their attempt, or in it.
async fn settle_stopped(
    shared: &Arc<SharedQueue>,
    version: &Arc<Version>,
    members: Vec<(Task, Ownership)>,
    has_begun: bool,
) {
    shared.holding.stopped(members.iter().map(|(task, _)| task.entry.as_str())).await;
    for (task, owned) in members {
        let is_lost = owned.is_lost();
        if is_lost && let Some(more) = shared.notices.admit(NoticeKind::Lost) {
            let (queue, task) = (&shared.queue.rules.name, &task.id);
            let what = if has_begun { "stopped" } else { "not run" };
            tracing::info!(queue, task, more, "{what}: this host does not own the task any more");
        }
        if is_lost && has_begun {
            continue;
        }
        let decision = match owned.is_cancelled() && !is_lost {
            true => settle::cancelled(&task),
            // If nobody has taken over a lost one, it must not wait until it looks like one of a dead host.
            false => settle::release(&task),
        };
        settle(shared, version, task, None, owned, decision).await;
    }
}

/// Ends the spans of an attempt, and notes which these were in the tasks that something comes after.
fn trace_ends(
    shared: &SharedQueue,
    version: &Version,
    tasks: &mut [Task],
    owned: &[Ownership],
    trace: &AttemptTrace,
    judged: Option<&Judged>,
) {
    // The tasks of a batch that failed run again at once, and only those runs count.
    if !shared.traces.are_sent() || matches!(judged, Some(Judged::Split { .. })) {
        return;
    }
    for (index, (task, owned)) in tasks.iter_mut().zip(owned).enumerate() {
        let outcome = match judged {
            Some(Judged::Each(ends)) => ends.get(index).map(|(outcome, _)| outcome),
            _ => None,
        };
        let (word, error) = match outcome {
            Some(outcome) => (outcome.word(), outcome.error()),
            _ if owned.is_lost() => ("lost", None),
            _ if owned.is_cancelled() => ("cancelled", None),
            _ => ("released", None),
        };
        let since_ms = task.waits_since_ms.unwrap_or_else(|| codec::entry_time_ms(&task.entry));
        let (plugin, rules) = (&*version.label(), &shared.queue.rules);
        let links = codec::links(task);
        let end = RunEnd { plugin, group: &rules.group, outcome: word, error, since_ms, links };
        trace.ended(index, task, &end);
        let is_told = rules.on_end.completed.is_some() || codec::is_child(task);
        let is_last = outcome.is_some_and(is_over) && !is_told;
        if !is_last && let Some(span) = trace.span(index, task) {
            codec::set_span(task, span);
        }
    }
}

/// Whether no other attempt can follow. An attempt that completed still fails if Redis refuses its effects or
/// its result.
fn is_over(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Completed { result, effects: None } if !is_large(result.as_deref()))
}

/// The record that is kept of an attempt if it does not complete its task.
fn record_of(rules: &QueueRules, outcome: &Outcome, last_lines: &str) -> Option<Box<AttemptRecord>> {
    (rules.keeps_failed_attempts() && !is_over(outcome))
        .then(|| Box::new(AttemptRecord { outcome: outcome.word(), last_lines: last_lines.to_owned() }))
}

/// Runs a task by itself that others have disturbed, beside the others.
fn run_singly(
    shared: &Arc<SharedQueue>,
    version: &Arc<Version>,
    task: Task,
    owned: Ownership,
    disturbed: u32,
) {
    let again = run_shared(shared.clone(), version.clone(), vec![(task, owned)], disturbed);
    drop(shared.runners.spawn(again));
}

/// Runs one attempt, which is stopped when all of its tasks are to stop. `None`: it was stopped.
async fn attempt(
    shared: &SharedQueue,
    version: &Arc<Version>,
    tasks: &Arc<Vec<Task>>,
    owned: &[Ownership],
    trace: &AttemptTrace,
    disturbed: u32,
) -> Option<RanAttempt> {
    let rules = &shared.queue.rules;
    let stop = if let [only] = owned { only.stop().clone() } else { CancellationToken::new() };
    let attempt = Attempt {
        tasks: tasks.clone(),
        plugin: version.plugin.clone(),
        max_attempts: rules.max_retries.saturating_add(1),
        timeout: rules.timeout,
        progress: owned.iter().map(|task| task.progress().clone()).collect(),
        effects: shared.effects.clone(),
        trace: trace.clone(),
        stop: stop.clone(),
        disturbed,
    };
    if owned.len() == 1 {
        return version.run(attempt).await;
    }
    let stopped = async {
        join_all(owned.iter().map(|task| task.stop().cancelled())).await;
        stop.cancel();
        std::future::pending().await
    };
    tokio::select! {
        biased;
        judged = version.run(attempt) => judged,
        never = stopped => never,
    }
}

async fn settle(
    shared: &SharedQueue,
    version: &Version,
    task: Task,
    ran: Option<Ran>,
    owned: Ownership,
    decision: settle::Decision,
) {
    shared.settle(EndingSubject::Task(Box::new(task)), version.label(), ran, decision, owned).await;
}

/// The time since `since_ms` by this host's clock, for metrics only.
fn age(since_ms: u64) -> Duration {
    let since = Duration::from_millis(since_ms);
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(since)
}
