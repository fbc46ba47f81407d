//! The table of a queue's entries that this host owns, from their read until their settlement is known.
//!
//! In: claimed entries with their permits. Out: an [`Ownership`] for each entry. Dropping it removes the
//! entry from the table, so no entry stays by mistake. The permit is freed when the attempt has run.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::capacity::{Permits, TaskBytes};
use crate::guarded::Guarded;
use crate::queue::HeartbeatReport;
use crate::task::{Progress, Task};

/// The state of an owned entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum EntryPhase {
    /// The task runs, but Redis does not know: it has no status yet, or its status is PENDING.
    Begun,
    /// The task runs. Its status is PROCESSING, or this is being written.
    Running,
    /// The lease is lost, so this host must not settle the task.
    Lost,
    /// The settlement is on the way to Redis, which also checks the lease.
    Settling,
}

#[derive(Debug, Default)]
pub(crate) struct Inflight(Guarded<OwnedEntries>);

#[derive(Debug, Default)]
struct OwnedEntries {
    leases: HashMap<Arc<str>, LeaseState>,
    /// The host stops, so attempts at entries that are still added have to end at once.
    is_stopped: bool,
}

#[derive(Debug)]
struct LeaseState {
    entry: Arc<OwnedEntry>,
    /// When the lease was last known to be renewed.
    renewed: Instant,
    /// The entry was deleted from the stream, and this has been reported.
    deleted: bool,
}

/// An entry that is in flight.
#[derive(Debug)]
pub(crate) struct OwnedEntry {
    pub id: Arc<str>,
    pub task_id: String,
    /// The task's idempotency key.
    key: Option<Vec<u8>>,
    pub attempt: u32,
    pub enqueued_at_ms: u64,
    /// When the entry was claimed.
    pub since: Instant,
    phase: AtomicU8,
    /// The task was cancelled while it ran. This host has to settle it, if it still owns it.
    cancelled: AtomicBool,
    stop: CancellationToken,
    progress: Progress,
}

/// A claimed entry that is to be added to the table.
pub(crate) struct Claim<'t> {
    pub entry: &'t str,
    pub task_id: &'t str,
    pub key: Option<&'t [u8]>,
    pub attempt: u32,
    pub enqueued_at_ms: u64,
    /// The earliest time at which the entry can have been claimed. Its lease counts from then.
    pub since: Instant,
}

/// One entry that this host owns.
#[derive(Debug)]
pub(crate) struct Ownership {
    table: Arc<Inflight>,
    entry: Arc<OwnedEntry>,
    /// Whether the task may have a status: the script began it, or a host enqueued it.
    is_known: bool,
    permit: Option<Permits>,
    /// The bytes of a large task.
    bytes: Option<TaskBytes>,
    /// While an attempt that runs alone has this, no other attempt runs.
    alone: Option<DropGuard>,
}

/// A task whose entry this host owns.
pub(crate) type OwnedTask = (Task, Ownership);

impl Inflight {
    /// Adds an entry, with a permit if its task may run. `None`: the entry is in the table already, and must
    /// not run twice.
    pub(crate) fn own(self: &Arc<Self>, claim: &Claim<'_>, permit: Option<Permits>) -> Option<Ownership> {
        let mut table = self.0.lock();
        if table.leases.contains_key(claim.entry) {
            return None;
        }
        let entry = Arc::new(OwnedEntry {
            id: claim.entry.into(),
            task_id: claim.task_id.to_owned(),
            key: claim.key.map(<[u8]>::to_vec),
            attempt: claim.attempt,
            enqueued_at_ms: claim.enqueued_at_ms,
            since: claim.since,
            phase: AtomicU8::new(EntryPhase::Running as u8),
            cancelled: AtomicBool::new(false),
            stop: CancellationToken::new(),
            progress: Progress::default(),
        });
        if table.is_stopped {
            entry.stop.cancel();
        }
        let lease = LeaseState { entry: entry.clone(), renewed: claim.since, deleted: false };
        table.leases.insert(entry.id.clone(), lease);
        Some(Ownership { table: self.clone(), entry, is_known: true, permit, bytes: None, alone: None })
    }

    /// The entries that are owned now.
    pub(crate) fn entries(&self) -> Vec<String> {
        self.0.lock().leases.keys().map(|id| id.to_string()).collect()
    }

    pub(crate) fn contains(&self, entry: &str) -> bool {
        self.0.lock().leases.contains_key(entry)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().leases.len()
    }

    /// The age of the entry that was claimed first.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.0.lock().leases.values().map(|lease| lease.entry.since).min().map(|since| since.elapsed())
    }

    /// The entries whose heartbeat is due: their leases were not renewed for `every`, or they have new
    /// progress.
    pub(crate) fn due(&self, every: Duration, now: Instant) -> Vec<HeartbeatReport> {
        let due = |lease: &LeaseState| {
            let entry = &lease.entry;
            // Progress is part of the status, so it waits until there is one.
            let progress = if entry.is(EntryPhase::Begun) { None } else { entry.progress.take() };
            let is_due = progress.is_some() || now.duration_since(lease.renewed) >= every;
            is_due.then(|| HeartbeatReport {
                entry: entry.id.to_string(),
                task_id: entry.task_id.clone(),
                key: entry.key.clone(),
                progress,
            })
        };
        self.0.lock().leases.values().filter_map(due).collect()
    }

    /// Puts back the progress of a heartbeat that failed, unless there is newer progress.
    pub(crate) fn restore_progress(&self, beats: &[HeartbeatReport]) {
        let table = self.0.lock();
        for beat in beats {
            if let (Some(lease), Some(progress)) = (table.leases.get(beat.entry.as_str()), &beat.progress) {
                lease.entry.progress.put_back(progress.clone());
            }
        }
    }

    /// Marks the tasks as running that have run for `least` without the status PROCESSING, and returns them
    /// with the time until the next task has run for `least`.
    pub(crate) fn take_unreported(
        &self,
        least: Duration,
        now: Instant,
    ) -> (Vec<Arc<OwnedEntry>>, Option<Duration>) {
        let mut found = Vec::new();
        let mut next = None;
        let table = self.0.lock();
        let entries = table.leases.values().map(|lease| &lease.entry);
        for entry in entries.filter(|entry| entry.is(EntryPhase::Begun)) {
            let age = now.saturating_duration_since(entry.since);
            if age < least {
                next = Some(next.unwrap_or(least).min(least - age));
            } else if entry.transition(EntryPhase::Begun, EntryPhase::Running) {
                found.push(entry.clone());
            }
        }
        (found, next)
    }

    /// Notes that a lease was renewed.
    pub(crate) fn mark_renewed(&self, entry: &str, now: Instant) {
        if let Some(lease) = self.0.lock().leases.get_mut(entry) {
            lease.renewed = now;
        }
    }

    /// Notes that the entry was deleted. Returns false if this is known already, or if this host does not own
    /// the entry.
    pub(crate) fn mark_deleted(&self, entry: &str) -> bool {
        let mut table = self.0.lock();
        let Some(lease) = table.leases.get_mut(entry) else { return false };
        // The heartbeat that found the deletion has written a status, even for a task that had none.
        lease.entry.transition(EntryPhase::Begun, EntryPhase::Running);
        !std::mem::replace(&mut lease.deleted, true)
    }

    /// Whether the entry is owned here, and known to be deleted.
    pub(crate) fn is_deleted(&self, entry: &str) -> bool {
        self.0.lock().leases.get(entry).is_some_and(|lease| lease.deleted)
    }

    /// Notes that a lease is lost, and stops the attempt. Returns false if the attempt has ended already.
    pub(crate) fn mark_lost(&self, entry: &str) -> bool {
        let table = self.0.lock();
        let Some(LeaseState { entry, .. }) = table.leases.get(entry) else { return false };
        let running = entry.transition(EntryPhase::Running, EntryPhase::Lost)
            || entry.transition(EntryPhase::Begun, EntryPhase::Lost);
        if running {
            entry.stop.cancel();
        }
        running
    }

    /// Notes that a cancel has ended the task, and stops the attempt. Returns false if the attempt has ended
    /// already.
    pub(crate) fn mark_cancelled(&self, entry: &str) -> bool {
        if let Some(LeaseState { entry, .. }) = self.0.lock().leases.get(entry) {
            entry.cancelled.store(true, Ordering::Release);
        }
        self.mark_lost(entry)
    }

    /// Stops the attempt of a task that was cancelled, and that this host still has to settle.
    pub(crate) fn cancel(&self, entry: &str) {
        if let Some(LeaseState { entry, .. }) = self.0.lock().leases.get(entry) {
            entry.cancelled.store(true, Ordering::Release);
            entry.stop.cancel();
        }
    }

    /// Gives up the leases that were not renewed for `longest`, and stops their attempts, since another host
    /// may own the tasks soon. Returns the number of attempts.
    pub(crate) fn expire(&self, longest: Duration, now: Instant) -> usize {
        let old = |lease: &&LeaseState| now.saturating_duration_since(lease.renewed) >= longest;
        let expired: Vec<Arc<str>> =
            self.0.lock().leases.values().filter(old).map(|lease| lease.entry.id.clone()).collect();
        expired.into_iter().filter(|entry| self.mark_lost(entry)).count()
    }

    /// Stops every attempt, including attempts that begin later.
    pub(crate) fn stop_all(&self) {
        let mut table = self.0.lock();
        table.is_stopped = true;
        table.leases.values().for_each(|lease| lease.entry.stop.cancel());
    }
}

impl Ownership {
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.entry.key.as_deref()
    }

    /// Cancelled when the attempt has to end: its lease is lost, or the host stops.
    pub(crate) fn stop(&self) -> &CancellationToken {
        &self.entry.stop
    }

    pub(crate) fn progress(&self) -> &Progress {
        &self.entry.progress
    }

    /// Whether this host has lost the lease.
    pub(crate) fn is_lost(&self) -> bool {
        self.entry.is(EntryPhase::Lost)
    }

    /// Whether the task was cancelled. This host has to settle it, unless it has lost the lease: then the
    /// cancel has ended the task.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.entry.cancelled.load(Ordering::Acquire)
    }

    /// The time since the entry was claimed.
    pub(crate) fn age(&self) -> Duration {
        self.entry.since.elapsed()
    }

    /// Notes that the task begins without a call to Redis. `is_known`: the task has a status, PENDING.
    pub(crate) fn begun(&mut self, is_known: bool) {
        self.is_known = is_known;
        self.entry.transition(EntryPhase::Running, EntryPhase::Begun);
    }

    /// Notes that the attempt has ended and will be settled. From now on, a lost lease does not matter.
    /// Returns whether the task may have a status.
    pub(crate) fn settling(&self) -> bool {
        let is_unreported = self.entry.transition(EntryPhase::Begun, EntryPhase::Settling);
        if !is_unreported {
            self.entry.transition(EntryPhase::Running, EntryPhase::Settling);
        }
        self.is_known || !is_unreported
    }

    /// Notes that the attempt runs alone. A crash counts against it until it is settled, so no other attempt
    /// may run before that.
    pub(crate) fn runs_alone(&mut self, settled: DropGuard) {
        self.alone = Some(settled);
    }

    /// Keeps the bytes of the task as long as this value.
    pub(crate) fn takes(&mut self, bytes: Option<TaskBytes>) {
        self.bytes = bytes;
    }

    /// Frees the permit, because the attempt has run.
    pub(crate) fn has_run(&mut self) {
        self.permit = None;
    }
}

impl Drop for Ownership {
    fn drop(&mut self) {
        self.table.0.lock().leases.remove(&self.entry.id);
    }
}

impl OwnedEntry {
    fn is(&self, phase: EntryPhase) -> bool {
        self.phase.load(Ordering::Acquire) == phase as u8
    }

    /// Returns false if the entry was in another phase than `from`.
    fn transition(&self, from: EntryPhase, to: EntryPhase) -> bool {
        self.phase.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use futures_util::FutureExt as _;

    use super::super::capacity::{Capacity, QueueCapacity};
    use super::*;

    pub(crate) fn own(
        table: &Arc<Inflight>,
        capacity: &Arc<QueueCapacity>,
        entry: &str,
    ) -> Option<Ownership> {
        let claim =
            Claim { entry, task_id: entry, key: None, attempt: 1, enqueued_at_ms: 1, since: Instant::now() };
        table.own(&claim, Some(capacity.acquire(1).now_or_never().expect("a free permit")))
    }

    /// A table with these entries.
    fn all_owned<const N: usize>(entries: [&str; N]) -> (Arc<Inflight>, [Ownership; N]) {
        let (table, capacity) = (Arc::new(Inflight::default()), Capacity::new(None).queue(9, 1));
        let owned = entries.map(|entry| own(&table, &capacity, entry).unwrap());
        (table, owned)
    }

    #[tokio::test]
    async fn an_entry_is_held_once_and_its_permit_comes_back_when_it_has_run() {
        let (table, capacity) = (Arc::new(Inflight::default()), Capacity::new(None).queue(2, 1));
        let mut first = own(&table, &capacity, "1-0").unwrap();
        assert!(own(&table, &capacity, "1-0").is_none());
        assert_eq!((table.len(), capacity.taken()), (1, 1));
        first.has_run();
        assert_eq!((table.len(), capacity.taken()), (1, 0));
        drop(first);
        assert_eq!(table.len(), 0);
    }

    #[tokio::test]
    async fn a_lost_lease_stops_only_what_runs() {
        let (table, [running, ended]) = all_owned(["1-0", "2-0"]);
        ended.settling();
        assert!(table.mark_lost("1-0") && !table.mark_lost("2-0") && !table.mark_lost("3-0"));
        assert!(running.is_lost() && running.stop().is_cancelled());
        assert!(!ended.is_lost() && !ended.stop().is_cancelled());
    }

    #[tokio::test]
    async fn a_lease_that_was_not_renewed_is_lost_without_asking() {
        let (table, [old, renewed]) = all_owned(["1-0", "2-0"]);
        let lease = Duration::from_secs(3);
        let later = Instant::now() + lease;
        table.mark_renewed("2-0", later);
        assert_eq!(table.expire(lease, later), 1);
        assert!(old.is_lost() && old.stop().is_cancelled() && !renewed.is_lost());
        assert_eq!(table.expire(lease, later), 0, "it is counted once");
    }

    #[tokio::test]
    async fn a_host_that_stops_stops_what_runs_and_what_is_taken_in_later() {
        let (table, [running]) = all_owned(["1-0"]);
        table.stop_all();
        let late = own(&table, &Capacity::new(None).queue(1, 1), "2-0").unwrap();
        assert!(running.stop().is_cancelled() && late.stop().is_cancelled());
        assert!(!running.is_lost() && !late.is_lost(), "they are given back");
    }

    #[tokio::test]
    async fn redis_hears_once_of_what_runs_for_long() {
        let (table, [mut long, mut short]) = all_owned(["1-0", "2-0"]);
        let least = Duration::from_millis(20);
        long.begun(false);
        short.begun(false);
        assert!(!short.settling(), "it ended before anybody was told");
        let (none, next) = table.take_unreported(least, Instant::now());
        assert!(none.is_empty() && next.is_some_and(|next| next <= least));
        let later = Instant::now() + least;
        let (found, next) = table.take_unreported(least, later);
        assert_eq!(found.iter().map(|entry| &*entry.id).collect::<Vec<_>>(), ["1-0"]);
        assert_eq!(next, None);
        assert!(table.take_unreported(least, later).0.is_empty());
        assert!(long.settling(), "it has a status by now, or will have");
    }

    #[tokio::test]
    async fn redis_has_heard_of_what_runs_without_its_entry() {
        let (table, [mut owned]) = all_owned(["1-0"]);
        owned.begun(false);
        assert!(table.mark_deleted("1-0") && !table.mark_deleted("1-0"));
        assert!(owned.settling(), "the heartbeat wrote a status");
    }

    #[tokio::test]
    async fn a_heartbeat_takes_what_is_old_and_what_has_news() {
        let (table, [first]) = all_owned(["1-0"]);
        let every = Duration::from_secs(10);
        let now = Instant::now();
        assert!(table.due(every, now).is_empty());
        first.progress().set(150, "far");
        let beats = table.due(every, now);
        let said =
            |beats: &[HeartbeatReport]| beats.iter().map(|beat| beat.progress.clone()).collect::<Vec<_>>();
        assert_eq!(said(&beats), [Some((100, "far".to_owned()))]);
        table.restore_progress(&beats);
        assert_eq!(
            said(&table.due(every, now)),
            [Some((100, "far".to_owned()))],
            "what did not arrive is said again"
        );
        let later = Instant::now() + every;
        assert_eq!(table.due(every, later).len(), 1);
        table.mark_renewed("1-0", later);
        assert!(table.due(every, later).is_empty());
        first.progress().set(1, "new");
        table.restore_progress(&beats);
        assert_eq!(
            said(&table.due(every, later)),
            [Some((1, "new".to_owned()))],
            "unless there is something newer"
        );
    }
}
