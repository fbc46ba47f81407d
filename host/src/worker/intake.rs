//! Turns claimed entries into running tasks.
//!
//! In: entries that this host has claimed, with a permit for each. Out: a runner for each task that may run,
//! or a settlement. Tasks that are malformed, that have expired, or that crashed a host while they ran alone,
//! are dead-lettered.
//!
//!     just read, and plain ─────────────────────────▶ runs; if for long, `status_writer` writes PROCESSING
//!     every other task ─▶ the gate (begin.lua) ─▶ runs, or is settled by the gate
//!
//! A plain task needs no gate. Its delivery shows that this host owns it, no other task can have its id or
//! its key, and no client can have marked it as cancelled.
//!
//! Not here: the claim (`fetcher`, `reclaimer`), batches (`gather`), the gate itself (`gate`), the attempt
//! (`runner`).

use std::convert::identity;
use std::sync::Arc;

use tokio::time::Instant;

use super::arrivals::{self, Decoded};
use super::capacity::Permits;
use super::inflight::{Claim, OwnedTask, Ownership};
use super::settle::Decision;
use super::shared::SharedQueue;
use super::{gate, gather, settle, suspect};
use crate::plugins::Version;
use crate::queue::{EndingSubject, StreamEntry, codec};
use crate::task::{Origin, Task};

/// The most tasks of a claim that begin on the thread that claimed them. More of them show that the queue is
/// busy, and a settlement that gathers many of them would make the next ones wait.
const FEW: usize = 4;

/// How this host got its entries.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Delivery {
    /// By a read that was sent at `since`. No consumer had them before.
    First { since: Instant },
    /// Another consumer had them before, or they were delivered to this one unseen.
    Repeated,
}

/// Admits entries. `permits` holds at least one permit for each entry; unused permits are given back.
///
/// `version` was active when the claim began. A claim can take a while, so the tasks run on the version that
/// is active now. If there is none, or if the queue is on hold since then, they are given back.
pub(crate) async fn admit(
    shared: &Arc<SharedQueue>,
    version: &Arc<Version>,
    mut entries: Vec<StreamEntry>,
    delivery: Delivery,
    mut permits: Permits,
) {
    if !arrivals::keep_trusted(shared, &mut entries).await {
        return;
    }
    let is_stopped = entries.first().is_some_and(|entry| shared.holding.stops(&entry.id));
    let active = shared.versions.borrow().clone().filter(|_| !is_stopped);
    let version = active.as_ref().unwrap_or(version);
    let label = version.label();
    let (since, was_delivered) = match delivery {
        Delivery::First { since } => (since, false),
        Delivery::Repeated => (Instant::now(), true),
    };
    let claimed = own_all(shared, entries, since, was_delivered, &mut permits);
    // There were more permits than entries.
    let is_drained = permits.count() > 0;
    permits.unused();
    arrivals::note_aliases(shared, &claimed).await;
    // A task that was delivered before may have begun.
    let now_ms = if was_delivered { None } else { arrivals::now_ms(shared).await };
    let here = may_begin_here(shared, claimed.len(), is_drained);
    let mut gated: Vec<OwnedTask> = Vec::new();
    for (decoded, mut owned) in claimed {
        match may_run(shared, decoded, now_ms) {
            Ok(task) if active.is_some() && is_plain(shared, &task, &owned, delivery) => {
                owned.begun(task.origin != Origin::Producer);
                gather::add(shared, version, (task, owned), here);
            }
            Ok(task) => gated.push((task, owned)),
            Err((subject, decision)) => shared.settle(subject, label.clone(), None, decision, owned).await,
        }
    }
    shared.begun.notify_one();
    if active.is_none() {
        gate::release(shared, &label, gated).await;
    } else if !gated.is_empty() {
        let way = gate::Way { alone: false, again: was_delivered };
        for task in gate::pass(shared, &label, gated, since, way).await {
            if settle::is_suspect(&task.0, &shared.queue.rules) {
                suspect::start(shared, version, task);
            } else {
                gather::add(shared, version, task, here);
            }
        }
    }
    if !shared.capacity.has_room() {
        // A batch must not hold permits while it waits for tasks that cannot arrive.
        gather::end(shared);
    }
}

/// Decodes entries, and adds them to the table of what this host owns, each with one of `permits`. Entries
/// that run already are left out.
fn own_all(
    shared: &SharedQueue,
    entries: Vec<StreamEntry>,
    since: Instant,
    was_delivered: bool,
    permits: &mut Permits,
) -> Vec<(Decoded, Ownership)> {
    let mut all = Vec::with_capacity(entries.len());
    for entry in entries {
        // A claim asks for no more entries than permits.
        let Some(permit) = permits.split_one() else { break };
        // Redis does not count a takeover from an owner that lives. The gate raises the fence further if the
        // status knows a higher one.
        let is_uncounted = was_delivered && entry.deliveries == 1;
        let bytes = shared.capacity.take_bytes(entry.bytes());
        let mut decoded = codec::decode(&shared.name, entry);
        if let (true, Ok(task)) = (is_uncounted, &mut decoded) {
            task.fence = task.fence.saturating_add(1);
        }
        let Some(mut owned) = own(shared, &decoded, since, Some(permit)) else { continue };
        owned.takes(bytes);
        all.push((decoded, owned));
    }
    all
}

/// Returns the task if it may run. The error says how it ends without a run. `now_ms` is Redis's clock;
/// `None`: the task cannot have expired.
fn may_run(
    shared: &SharedQueue,
    decoded: Decoded,
    now_ms: Option<u64>,
) -> Result<Task, (EndingSubject, Decision)> {
    let rules = &shared.queue.rules;
    let expired = |task: &Task| settle::expired(task, rules, now_ms?);
    match decoded {
        Ok(task) => match settle::unrun(&task, rules).or_else(|| expired(&task)) {
            Some(decision) => Err((EndingSubject::Task(Box::new(task)), decision)),
            None => Ok(task),
        },
        Err((why, entry)) => Err((EndingSubject::Malformed(entry), settle::malformed(&why.to_string()))),
    }
}

/// Gives back entries that were delivered to this host unseen, because it claims nothing any more. None of
/// them runs, so they need no permits.
pub(crate) async fn give_back(shared: &SharedQueue, mut entries: Vec<StreamEntry>) {
    if !arrivals::keep_trusted(shared, &mut entries).await {
        return;
    }
    let label = shared.versions.borrow().as_ref().map_or_else(|| Arc::from(""), |version| version.label());
    for entry in entries {
        let decoded = codec::decode(&shared.name, entry);
        let Some(owned) = own(shared, &decoded, Instant::now(), None) else { continue };
        let (subject, decision) = may_run(shared, decoded, None).map_or_else(identity, |task| {
            let decision = settle::release(&task);
            (EndingSubject::Task(Box::new(task)), decision)
        });
        shared.settle(subject, label.clone(), None, decision, owned).await;
    }
}

/// Adds an entry to the table of what this host owns. `None`: it runs already.
fn own(
    shared: &SharedQueue,
    decoded: &Decoded,
    since: Instant,
    permit: Option<Permits>,
) -> Option<Ownership> {
    let key = decoded.as_ref().ok().and_then(|task| codec::idempotency_key(task, &shared.queue.rules));
    let claim = match decoded {
        Ok(task) => Claim {
            entry: &task.entry,
            task_id: &task.id,
            key: key.as_deref(),
            attempt: task.attempt,
            enqueued_at_ms: task.enqueued_at_ms,
            since,
        },
        // A malformed task never runs, so only its entry is needed.
        Err((_, entry)) => {
            Claim { entry: &entry.id, task_id: &entry.id, key: None, attempt: 1, enqueued_at_ms: 0, since }
        }
    };
    shared.inflight.own(&claim, permit)
}

/// Whether the tasks of a claim may begin on the thread that claimed them. They may if they are few and
/// short, and no other task of the queue runs or waits: then it would take longer to wake another thread.
fn may_begin_here(shared: &SharedQueue, claimed: usize, is_drained: bool) -> bool {
    claimed <= FEW
        && (is_drained || claimed == 1)
        && shared.capacity.taken() == claimed
        && shared.starts.first_poll.is_short_for(claimed)
}

/// Whether a task is plain, so that it can run without the gate.
fn is_plain(shared: &SharedQueue, task: &Task, owned: &Ownership, delivery: Delivery) -> bool {
    // If the reply took half a lease, another host may have taken the task over.
    let is_fresh =
        matches!(delivery, Delivery::First { since } if since.elapsed() < shared.queue.rules.lease / 2);
    // Where turns are limited, each task passes the gate, which gives it a status: a cancellation marks this.
    let is_limited = shared.queue.rules.turns.are_limited();
    is_fresh && !is_limited && task.origin != Origin::Other && task.crashes == 0 && owned.key().is_none()
}
