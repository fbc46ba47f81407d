//! From claimed entries to running tasks.
//!
//! In: entries that Redis says are ours, with a permit for each. Out: a runner for each task that we still own after it was marked as
//! PROCESSING; a burial for what is malformed or crashed too often.

use std::sync::Arc;

use super::Shared;
use super::capacity::Permits;
use super::inflight::Hold;
use super::pace::Pace;
use super::settle::{self, Verdict};
use super::settler::Job;
use crate::admin;
use crate::plugins::Version;
use crate::queue::{Begun, Entry, Subject, codec};
use crate::task::Task;

/// Admits entries. `permits` holds at least as many as there are entries; what is left over is given back.
///
/// `version` is the one that was active when the claim began. A claim can wait for a while: what it brought is run by the version that is
/// active now, and given back if there is none any more.
pub async fn admit(shared: &Arc<Shared>, version: &Arc<Version>, entries: Vec<Entry>, mut permits: Permits) {
    let active = shared.versions.borrow().clone();
    let version = active.as_ref().unwrap_or(version);
    let mut claimed: Vec<(Task, Hold)> = Vec::with_capacity(entries.len());
    for entry in entries {
        let Some(permit) = permits.split_one() else {
            // Cannot be: no more is asked for than there are permits. Left pending, it would be reclaimed.
            tracing::error!(entry = entry.id, "more entries than permits");
            break;
        };
        let Some(hold) = shared.inflight.hold(&entry.id, &codec::id_of(&entry), permit, shared.stop.running.child_token()) else {
            continue;
        };
        match codec::decode(&shared.name, &entry) {
            Ok(task) => match settle::unrun(&task, &shared.queue.rules) {
                Some(verdict) => end(shared, version, Subject::Task(Box::new(task)), verdict, hold).await,
                None => claimed.push((task, hold)),
            },
            Err(why) => end(shared, version, Subject::Malformed(entry), settle::malformed(&why.to_string()), hold).await,
        }
    }
    permits.unused();
    if claimed.is_empty() {
        return;
    }
    let begun = if active.is_some() { begin(shared, version, &claimed).await } else { None };
    let Some(begun) = begun else {
        for (task, hold) in claimed {
            let verdict = settle::release(&task);
            end(shared, version, Subject::Task(Box::new(task)), verdict, hold).await;
        }
        return;
    };
    let mut deleted = Vec::new();
    for ((task, hold), begun) in claimed.into_iter().zip(begun) {
        match begun {
            Begun::Owned => shared.gathering.add(shared, version, task, hold),
            Begun::Cancelled => shared.metrics.settled(admin::Settled::Cancelled),
            Begun::Duplicate => {
                shared.metrics.settled(admin::Settled::Duplicate);
                tracing::info!(queue = shared.name.as_ref(), task = task.id, "not run: another task has its idempotency key");
            }
            Begun::Gone => deleted.push(hold.entry().to_owned()),
            Begun::Lost => {
                shared.metrics.lease_lost(1);
                tracing::warn!(queue = shared.name.as_ref(), task = task.id, "not run: another host owns this task by now");
            }
        }
    }
    shared.count_deleted(&deleted);
    if !shared.line.has_room() {
        // Nobody may hold permits only to wait for tasks that cannot come.
        shared.gathering.close();
    }
}

/// Marks tasks as PROCESSING, however long Redis takes. None when the host stops meanwhile.
async fn begin(shared: &Shared, version: &Version, claimed: &[(Task, Hold)]) -> Option<Vec<Begun>> {
    let tasks: Vec<&Task> = claimed.iter().map(|(task, _)| task).collect();
    let mut pace = Pace::new(&shared.name, "begin");
    loop {
        let wait = match shared.queue.begin(&shared.consumer, &version.label(), &tasks).await {
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

async fn end(shared: &Shared, version: &Version, subject: Subject, verdict: Verdict, hold: Hold) {
    let _ = shared.jobs.send(Job::new(subject, version.label(), verdict, hold)).await;
}
