//! Runs claimed tasks from start to settlement: one, or a batch that its handler takes in one call.
//!
//! In: tasks that this host owns. Out: one settlement for each task that this host still owns. A task is lost
//! when its lease is, or when a cancel has ended it (in queues with limits, this host still owns a cancelled
//! task and settles it). If the loss is noticed while its handler runs, there is no settlement. A task that
//! was lost before is released, which does nothing if somebody else owns it now.
//!
//!     claimed ─▶ sandbox ─▶ one Outcome per task ─▶ settle::decide ─▶ settler
//!        ▲          └ a failed batch, or a task whose instance another task made fail: run again, one by one
//!        └──────────┘
//!
//! Not here: which task to run (`fetcher`, `reclaimer`), batches (`gather`), when to try again (`backoff`),
//! Redis (`queue`).

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::inflight::{OwnedTask, Ownership};
use super::notices::NoticeKind;
use super::settle;
use super::shared::{Ran, SharedQueue};
use super::starts::PendingAttempt;
use crate::config::QueueRules;
use crate::plugins::{Judged, RanAttempt, Ruling, Version};
use crate::queue::attempts::AttemptRecord;
use crate::queue::size::is_large;
use crate::queue::{EndingSubject, codec};
use crate::sandbox::Attempt;
use crate::task::{AttemptEnd, Outcome, SettledAs, Task};
use crate::telemetry::{AttemptTrace, RunEnd};

/// Runs an attempt beside other attempts. Within the guests' runtime, the handler begins without another hop.
pub(crate) async fn run(shared: Arc<SharedQueue>, attempt: PendingAttempt) {
    attempt.tasks.iter().for_each(|(task, _)| record_wait(&shared, task));
    run_beside_others(shared, attempt, 0).await;
}

/// Records how long a task has waited, since its entry was added, or since it was due if it was delayed.
pub(crate) fn record_wait(shared: &SharedQueue, task: &Task) {
    let since = Duration::from_millis(codec::entry_time_ms(&task.entry));
    // By this host's clock, which is good enough for metrics.
    let waited = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(since);
    shared.metrics.wait.observe(waited);
}

/// Runs an attempt beside other attempts, once no attempt runs alone. Its tasks were `disturbed` this often.
async fn run_beside_others(shared: Arc<SharedQueue>, attempt: PendingAttempt, disturbed: u32) {
    let _others = shared.capacity.alone().enter_shared().await;
    run_attempt(shared.clone(), attempt, disturbed).await;
}

/// Runs an attempt now. Its tasks were `disturbed` by other tasks this often.
pub(crate) async fn run_attempt(shared: Arc<SharedQueue>, attempt: PendingAttempt, disturbed: u32) {
    let PendingAttempt { version, mut tasks } = attempt;
    // A process that was stopped for a while continues here before it knows that it was.
    shared.give_up_late_attempts();
    // Tasks that were cancelled or lost while they waited for a batch must not run.
    let is_stopped = |(_, owned): &mut OwnedTask| owned.is_lost() || owned.is_cancelled();
    let stopped: Vec<OwnedTask> = tasks.extract_if(.., is_stopped).collect();
    if !stopped.is_empty() {
        settle_stopped(&shared, &version, stopped, false).await;
    }
    if tasks.is_empty() {
        return;
    }
    let (tasks, owned): (Vec<Task>, Vec<Ownership>) = tasks.into_iter().unzip();
    let trace = shared.traces.begin(&tasks, codec::last_span);
    let tasks = Arc::new(tasks);
    let ran = call_handler(&shared, &version, &tasks, &owned, &trace, disturbed).await;
    let mut tasks = Arc::unwrap_or_clone(tasks);
    trace_ends(&shared, &version, &mut tasks, &owned, &trace, ran.as_ref().map(|ran| &ran.judged));
    match ran {
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
            for task in tasks.into_iter().zip(owned) {
                let single = PendingAttempt { version: version.clone(), tasks: vec![task] };
                run_again(&shared, single, disturbed + 1);
            }
        }
        None => settle_stopped(&shared, &version, tasks.into_iter().zip(owned).collect(), true).await,
    }
}

/// Starts another attempt, which runs beside this one.
fn run_again(shared: &Arc<SharedQueue>, attempt: PendingAttempt, disturbed: u32) {
    drop(shared.runners.spawn(run_beside_others(shared.clone(), attempt, disturbed)));
}

/// Settles the tasks of an attempt by its outcomes.
async fn settle_ends(
    shared: &SharedQueue,
    version: &Version,
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
            // `after_outage` decides if nobody is to be charged for the outcome, because a service is down.
            Ruling::AsUsual => settle::after_outage(&outcome, &mut task, rules, charge, jitter)
                .unwrap_or_else(|| settle::decide(outcome, &task, rules, jitter)),
            Ruling::GiveBack(delay) => settle::give_back(&outcome, &task, delay),
        };
        // A deferral is no failure.
        let record = record.filter(|_| decision.label != SettledAs::Deferred);
        let (subject, ran) = (EndingSubject::Task(Box::new(task)), Some(Ran { duration, record }));
        shared.settle(subject, version.label(), ran, decision, owned).await;
    }
}

/// Settles tasks that were stopped before their attempt, or in it if it `has_begun`.
async fn settle_stopped(shared: &SharedQueue, version: &Version, tasks: Vec<OwnedTask>, has_begun: bool) {
    shared.holding.stopped(tasks.iter().map(|(task, _)| task.entry.as_str())).await;
    for (task, owned) in tasks {
        let is_lost = owned.is_lost();
        // About a cancelled one there is a line already, or there will be when it is settled.
        if is_lost
            && !owned.is_cancelled()
            && let Some(more) = shared.notices.admit(NoticeKind::Lost)
        {
            let (queue, task) = (&shared.queue.rules.name, &task.id);
            let what = if has_begun { "stopped" } else { "not run" };
            tracing::info!(queue, task, more, "{what}: this host does not own the task any more");
        }
        if is_lost && has_begun {
            continue;
        }
        let decision = match owned.is_cancelled() && !is_lost {
            true => settle::cancelled(&task),
            // This host stops, or the task was lost before it began. A lost task that no host has taken over
            // yet is free at once by that, and not only when its lease has ended.
            false => settle::release(&task),
        };
        shared.settle_unrun((task, owned), &version.label(), decision).await;
    }
}

/// Ends the spans of an attempt. A task that is followed by another attempt or task keeps the id of its span.
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
            _ if owned.is_cancelled() => ("cancelled", None),
            _ if owned.is_lost() => ("lost", None),
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

/// Whether the task is completed, whatever Redis says: an attempt still fails if Redis refuses its effects or
/// its large result.
fn is_over(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Completed { result, effects: None } if !is_large(result.as_deref()))
}

/// The record that is kept of an attempt if it does not complete its task.
fn record_of(rules: &QueueRules, outcome: &Outcome, last_lines: &str) -> Option<Box<AttemptRecord>> {
    (rules.keeps_failed_attempts() && !is_over(outcome))
        .then(|| Box::new(AttemptRecord { outcome: outcome.word(), last_lines: last_lines.to_owned() }))
}

/// Calls the handler. The call is stopped when all of its tasks are to stop, and then returns `None`.
async fn call_handler(
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
