//! From claimed entries to running tasks.
//!
//! In: entries that Redis says are ours, with a permit for each. Out: a runner for each task that may run; a
//! burial for what is malformed, or brought its host down while it ran alone.
//!
//!     read just now, and plain ─────────────────────────────▶ runs; `teller` tells Redis, if it runs for long
//!     everything else ─▶ the gate: a script that looks once more ─▶ runs, or is settled by the gate
//!
//! A plain task needs no gate: its delivery says that it is ours, nobody can have its id or its key, and nobody can have marked it as cancelled.

use std::sync::Arc;

use tokio::time::Instant;

use super::capacity::Permits;
use super::inflight::{Claim, Hold};
use super::pace::Pace;
use super::shared::Shared;
use super::{settle, suspect};
use crate::admin;
use crate::plugins::Version;
use crate::queue::{Begun, Entry, Start, Subject, codec};
use crate::task::{Origin, Task};

/// How entries came to be ours.
#[derive(Debug, Clone, Copy)]
pub enum Claimed {
    /// By a read that was sent then: nobody had them before.
    Read { since: Instant },
    /// Another consumer had them, or this one had them unseen.
    Again,
}

/// Admits entries. `permits` holds at least as many as there are entries; what is left over is given back.
///
/// `version` is the one that was active when the claim began. A claim can wait for a while: what it brought is run by the version that is
/// active now, and given back if there is none any more.
pub async fn admit(
    shared: &Arc<Shared>,
    version: &Arc<Version>,
    entries: Vec<Entry>,
    how: Claimed,
    mut permits: Permits,
) {
    let active = shared.versions.borrow().clone();
    let version = active.as_ref().unwrap_or(version);
    let label = version.label();
    let since = match how {
        Claimed::Read { since } => since,
        Claimed::Again => Instant::now(),
    };
    let mut gated: Vec<(Task, Hold)> = Vec::new();
    for entry in entries {
        let Some(permit) = permits.split_one() else {
            // Cannot be: no more is asked for than there are permits. Left pending, it would be reclaimed.
            tracing::error!(entry = entry.id, "more entries than permits");
            break;
        };
        let decoded = codec::decode(&shared.name, entry);
        let Some(mut hold) = hold(shared, &decoded, since, permit) else { continue };
        let (subject, verdict) = match decoded {
            Ok(task) => match settle::unrun(&task, &shared.queue.rules) {
                Some(verdict) => (Subject::Task(Box::new(task)), verdict),
                None if active.is_some() && is_plain(shared, &task, &hold, how) => {
                    hold.begun(task.origin != Origin::Producer);
                    shared.gathering.add(shared, version, task, hold);
                    continue;
                }
                None => {
                    gated.push((task, hold));
                    continue;
                }
            },
            Err((why, entry)) => (Subject::Malformed(entry), settle::malformed(&why.to_string())),
        };
        shared.settle(subject, label.clone(), None, verdict, hold).await;
    }
    permits.unused();
    shared.begun.notify_one();
    if !gated.is_empty() {
        let begun = if active.is_some() { begin(shared, &label, &gated, since, false).await } else { None };
        match begun {
            Some(begun) => {
                for ((task, hold), begun) in gated.into_iter().zip(begun) {
                    match go_on(shared, version, task, hold, begun).await {
                        Some((task, hold)) if settle::is_suspect(&task, &shared.queue.rules) => {
                            suspect::start(shared, version, task, hold);
                        }
                        Some((task, hold)) => shared.gathering.add(shared, version, task, hold),
                        None => {}
                    }
                }
            }
            None => {
                for (task, hold) in gated {
                    let verdict = settle::release(&task);
                    shared.settle(Subject::Task(Box::new(task)), label.clone(), None, verdict, hold).await;
                }
            }
        }
    }
    if !shared.line.has_room() {
        // Nobody may hold permits only to wait for tasks that cannot come.
        shared.gathering.close();
    }
}

/// Takes an entry into the table of what is in flight. None when it is there already.
fn hold(
    shared: &Shared,
    decoded: &Result<Task, (codec::Malformed, Entry)>,
    since: Instant,
    permit: Permits,
) -> Option<Hold> {
    let claim = match decoded {
        Ok(task) => Claim {
            entry: &task.entry,
            task_id: &task.id,
            key: codec::idempotency_key(task, &shared.queue.rules),
            attempt: task.attempt,
            enqueued_at_ms: task.enqueued_at_ms,
            since,
        },
        // It never runs, so that nobody asks for more than its entry.
        Err((_, entry)) => {
            Claim { entry: &entry.id, task_id: &entry.id, key: None, attempt: 1, enqueued_at_ms: 0, since }
        }
    };
    shared.inflight.hold(&claim, permit)
}

/// Whether its delivery is all that has to be known of a task.
fn is_plain(shared: &Shared, task: &Task, hold: &Hold, how: Claimed) -> bool {
    // While its reply was on its way for long, another host may have taken it over.
    let is_fresh = matches!(how, Claimed::Read { since } if since.elapsed() < shared.queue.rules.lease / 2);
    is_fresh && task.origin != Origin::Other && task.crashes == 0 && hold.key().is_none()
}

/// Gives a task back that has passed the gate. Counts why another one has not, and buries what brought its
/// host down.
pub async fn go_on(
    shared: &Shared,
    version: &Version,
    task: Task,
    hold: Hold,
    begun: Begun,
) -> Option<(Task, Hold)> {
    let queue = shared.name.as_ref();
    match begun {
        Begun::Owned => return Some((task, hold)),
        Begun::Crashed => {
            let verdict = settle::crashed(&task);
            shared.settle(Subject::Task(Box::new(task)), version.label(), None, verdict, hold).await;
        }
        Begun::Cancelled => shared.metrics.settled(admin::Settled::Cancelled),
        Begun::Duplicate => {
            shared.metrics.settled(admin::Settled::Duplicate);
            tracing::info!(queue, task = task.id, "not run: another task has its idempotency key or its id");
        }
        Begun::Gone => shared.count_deleted(std::slice::from_ref(&task.entry)),
        Begun::Lost => {
            shared.metrics.lease_lost(1);
            tracing::warn!(queue, task = task.id, "not run: another host owns this task by now");
        }
    }
    None
}

/// Marks tasks as PROCESSING, however long Redis takes, and whether they run `alone`. None when the host
/// stops meanwhile.
pub async fn begin(
    shared: &Shared,
    plugin: &str,
    tasks: &[(Task, Hold)],
    since: Instant,
    alone: bool,
) -> Option<Vec<Begun>> {
    let mut pace = Pace::new(&shared.name, "begin");
    loop {
        let starts =
            tasks.iter().map(|(task, hold)| Start { alone, ..Start::of(task, hold.key(), since.elapsed()) });
        let starts: Vec<Start<'_>> = starts.collect();
        let wait = match shared.queue.begin(&shared.consumer, plugin, &starts).await {
            Ok(begun) => {
                pace.succeeded();
                return Some(begun);
            }
            Err(error) => pace.failed(&error),
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = shared.stop.running.cancelled() => return None,
        }
    }
}
