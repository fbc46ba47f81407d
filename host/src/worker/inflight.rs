//! The one list of what this host owns of a queue: from before an entry is read until its settlement is known.
//!
//! A [`Hold`] stands for one entry in it. Dropping it takes the entry out and gives the permit back, so neither can be forgotten.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::capacity::Permits;
use crate::queue::Beat;
use crate::task::Progress;

/// What a held entry is in the middle of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    Running,
    /// Its lease belongs to somebody else now: nothing is to be settled.
    Lost,
    /// Its settlement is on the way; whether the lease still stands will be seen by that.
    Settling,
}

/// The entries of one queue that this host owns.
#[derive(Debug, Default)]
pub struct Inflight(Mutex<HashMap<String, Slot>>);

#[derive(Debug)]
struct Slot {
    task_id: String,
    progress: Progress,
    stop: CancellationToken,
    phase: Arc<AtomicU8>,
    /// When its lease was last known to be renewed.
    renewed: Instant,
    /// Its entry is gone from the stream, and that has been said.
    deleted: bool,
}

/// One entry that this host owns.
#[derive(Debug)]
pub struct Hold {
    table: Arc<Inflight>,
    entry: String,
    phase: Arc<AtomicU8>,
    /// Cancelled when the attempt has to end: its lease is lost, or the host stops.
    pub stop: CancellationToken,
    pub progress: Progress,
    _permit: Permits,
}

impl Inflight {
    /// Takes an entry in. None when it is there already: then it is running, and must not run twice.
    pub fn hold(self: &Arc<Self>, entry: &str, task_id: &str, permit: Permits, stop: CancellationToken) -> Option<Hold> {
        let mut slots = self.lock();
        if slots.contains_key(entry) {
            return None;
        }
        let progress = Progress::default();
        let phase = Arc::new(AtomicU8::new(Phase::Running as u8));
        let slot = Slot {
            task_id: task_id.to_owned(),
            progress: progress.clone(),
            stop: stop.clone(),
            phase: phase.clone(),
            renewed: Instant::now(),
            deleted: false,
        };
        slots.insert(entry.to_owned(), slot);
        Some(Hold { table: self.clone(), entry: entry.to_owned(), phase, stop, progress, _permit: permit })
    }

    /// The entries that are owned now.
    pub fn entries(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// What has to go out in the next heartbeat: leases that were not renewed for `every`, and news of progress.
    pub fn due(&self, every: Duration, now: Instant) -> Vec<Beat> {
        let due = |(entry, slot): (&String, &Slot)| {
            let progress = slot.progress.take();
            let is_due = progress.is_some() || now.duration_since(slot.renewed) >= every;
            is_due.then(|| Beat { entry: entry.clone(), task_id: slot.task_id.clone(), progress })
        };
        self.lock().iter().filter_map(due).collect()
    }

    /// Notes that a lease was renewed.
    pub fn renewed(&self, entry: &str, now: Instant) {
        if let Some(slot) = self.lock().get_mut(entry) {
            slot.renewed = now;
        }
    }

    /// Notes that the entry was deleted. False when that is known already, or it is not owned any more.
    pub fn deleted(&self, entry: &str) -> bool {
        self.lock().get_mut(entry).is_some_and(|slot| !std::mem::replace(&mut slot.deleted, true))
    }

    /// Whether the entry is owned here, and known to be deleted.
    pub fn is_deleted(&self, entry: &str) -> bool {
        self.lock().get(entry).is_some_and(|slot| slot.deleted)
    }

    /// Notes that a lease is lost, and stops the attempt. False when it was not running any more.
    pub fn lost(&self, entry: &str) -> bool {
        let slots = self.lock();
        let Some(slot) = slots.get(entry) else { return false };
        let running = swap(&slot.phase, Phase::Running, Phase::Lost);
        if running {
            slot.stop.cancel();
        }
        running
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Slot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hold {
    /// The entry's id.
    pub fn entry(&self) -> &str {
        &self.entry
    }

    /// Whether somebody else owns the entry now.
    pub fn is_lost(&self) -> bool {
        self.phase.load(Ordering::Acquire) == Phase::Lost as u8
    }

    /// The attempt is over and will be settled: a lease that turns out to be gone is no news from now on.
    pub fn settling(&self) {
        swap(&self.phase, Phase::Running, Phase::Settling);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.table.lock().remove(&self.entry);
    }
}

fn swap(phase: &AtomicU8, from: Phase, to: Phase) -> bool {
    phase.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt as _;

    use super::super::capacity::{Capacity, Line};
    use super::*;

    fn line() -> Arc<Line> {
        Capacity::new(None).line(2, 1)
    }

    fn permit(line: &Arc<Line>) -> Permits {
        line.acquire(1).now_or_never().expect("a free permit")
    }

    #[tokio::test]
    async fn an_entry_is_held_once_and_its_permit_comes_back() {
        let table = Arc::new(Inflight::default());
        let line = line();
        let hold = table.hold("1-0", "a", permit(&line), CancellationToken::new()).unwrap();
        assert!(table.hold("1-0", "a", permit(&line), CancellationToken::new()).is_none());
        assert_eq!((table.len(), line.free()), (1, 1));
        drop(hold);
        assert_eq!((table.len(), line.free()), (0, 2));
    }

    #[tokio::test]
    async fn a_lost_lease_stops_only_what_runs() {
        let table = Arc::new(Inflight::default());
        let line = line();
        let running = table.hold("1-0", "a", permit(&line), CancellationToken::new()).unwrap();
        let ended = table.hold("2-0", "b", permit(&line), CancellationToken::new()).unwrap();
        ended.settling();
        assert!(table.lost("1-0") && !table.lost("2-0") && !table.lost("3-0"));
        assert!(running.is_lost() && running.stop.is_cancelled());
        assert!(!ended.is_lost() && !ended.stop.is_cancelled());
    }

    #[tokio::test]
    async fn a_heartbeat_takes_what_is_old_and_what_has_news() {
        let table = Arc::new(Inflight::default());
        let line = line();
        let every = Duration::from_secs(10);
        let first = table.hold("1-0", "a", permit(&line), CancellationToken::new()).unwrap();
        let now = Instant::now();
        assert!(table.due(every, now).is_empty());
        first.progress.set(150, "far");
        let beats = table.due(every, now);
        assert_eq!(beats.iter().map(|beat| beat.progress.clone()).collect::<Vec<_>>(), [Some((100, "far".to_owned()))]);
        let later = Instant::now() + every;
        assert_eq!(table.due(every, later).len(), 1);
        table.renewed("1-0", later);
        assert!(table.due(every, later).is_empty());
    }
}
