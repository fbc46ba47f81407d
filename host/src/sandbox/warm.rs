//! Instances that wait for the next task of their version, and the places in the engine's pool that all
//! instances take.
//!
//! In: an instance whose task has ended well. Out: the same instance for a later attempt of the same version.
//! It is dropped before that if it was idle for too long, if its version is gone, or if an attempt needs its
//! place.
//!
//! An instance gets a place before it is made, and has it until it is dropped, also while it is idle. An idle
//! instance never makes an attempt wait: an attempt that finds no free place takes the place of the instance
//! that is idle for longest. While an attempt waits, no instance becomes idle.
//!
//! Not here: whether an instance may run another task (`handler`).

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wasmtime::Store;

use super::number::VersionNumber;
use super::state::GuestState;
use crate::guarded::Guarded;

/// How long an instance waits for a task before it is dropped.
pub(super) const IDLE: Duration = Duration::from_secs(60);

/// An instance that runs attempts. The order of its fields matters: its memory is freed before its place.
pub(super) struct Instance {
    pub(super) store: Store<GuestState>,
    /// None before the first call.
    pub(super) running: Option<wasmtime::component::Instance>,
    /// The number of tasks begun so far.
    pub(super) tasks: u32,
    place: OwnedSemaphorePermit,
}

impl Instance {
    pub(super) fn new(store: Store<GuestState>, place: OwnedSemaphorePermit) -> Instance {
        Instance { store, running: None, tasks: 0, place }
    }
}

pub(super) struct Pool {
    places: Arc<Semaphore>,
    idle: Guarded<Idle>,
}

#[derive(Default)]
struct Idle {
    /// The idle instances of each version; the one that is idle for longest is first.
    instances: BTreeMap<VersionNumber, VecDeque<Resting>>,
    /// The number of attempts that wait for a place.
    waiting: usize,
    /// Whether [`drop_idle`] runs.
    is_watched: bool,
}

struct Resting {
    instance: Instance,
    since: Instant,
}

impl Pool {
    pub(super) fn new(places: u32) -> Pool {
        Pool { places: Arc::new(Semaphore::new(places.max(1) as usize)), idle: Guarded::default() }
    }

    /// Waits for a place for a new instance. Returns None only when the sandbox ends.
    pub(super) async fn place(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = self.places.clone().try_acquire_owned() {
            return Some(place);
        }
        let _waiting = {
            let mut idle = self.idle.lock();
            if let Some(Instance { store, place, .. }) = idle.longest() {
                drop(idle);
                drop(store);
                return Some(place);
            }
            idle.waiting += 1;
            WaitingForPlace(self)
        };
        self.places.clone().acquire_owned().await.ok()
    }

    /// Takes an idle instance of this version, the one that was used last.
    pub(super) fn take(&self, version: VersionNumber) -> Option<Instance> {
        let mut idle = self.idle.lock();
        let resting = idle.instances.get_mut(&version)?;
        let taken = resting.pop_back().map(|resting| resting.instance);
        if resting.is_empty() {
            idle.instances.remove(&version);
        }
        taken
    }

    /// Keeps an instance for a later task, unless `most` instances of its version are kept, or an attempt
    /// waits for a place. Must be called on the guests' runtime.
    pub(super) fn keep(self: &Arc<Pool>, version: VersionNumber, most: u32, instance: Instance) {
        let mut idle = self.idle.lock();
        let kept = idle.instances.get(&version).map_or(0, VecDeque::len);
        if idle.waiting > 0 || kept >= most as usize {
            // Unlock before the drop, so that others do not wait for it.
            drop(idle);
            drop(instance);
            return;
        }
        idle.instances.entry(version).or_default().push_back(Resting { instance, since: Instant::now() });
        if !std::mem::replace(&mut idle.is_watched, true) {
            tokio::spawn(drop_idle(Arc::downgrade(self)));
        }
    }

    /// Drops all kept instances of this version.
    pub(super) fn drop_version(&self, version: VersionNumber) {
        let dropped = self.idle.lock().instances.remove(&version);
        drop(dropped);
    }

    /// Drops all kept instances.
    pub(super) fn clear(&self) {
        let instances = std::mem::take(&mut self.idle.lock().instances);
        drop(instances);
    }

    /// Drops instances that are idle for too long. Returns the time of the next check, or None if nothing is
    /// kept.
    pub(super) fn drop_idle(&self, now: Instant) -> Option<Instant> {
        let mut idle = self.idle.lock();
        let mut dropped = Vec::new();
        for resting in idle.instances.values_mut() {
            let late = resting.partition_point(|resting| resting.since + IDLE <= now);
            dropped.extend(resting.drain(..late));
        }
        idle.instances.retain(|_, resting| !resting.is_empty());
        let longest_idle = idle.instances.values().filter_map(VecDeque::front);
        let next = longest_idle.map(|resting| resting.since + IDLE).min();
        idle.is_watched = next.is_some();
        drop(idle);
        drop(dropped);
        next
    }

    /// Places that are neither in use nor kept.
    #[cfg(test)]
    pub(super) fn free_places(&self) -> usize {
        self.places.available_permits()
    }

    /// Instances that wait for a task.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.idle.lock().instances.values().map(VecDeque::len).sum()
    }
}

impl Idle {
    /// Removes the instance that is idle for longest.
    fn longest(&mut self) -> Option<Instance> {
        let since = |resting: &VecDeque<Resting>| resting.front().map(|resting| resting.since);
        let version = *self.instances.iter().min_by_key(|(_, resting)| since(resting))?.0;
        let resting = self.instances.get_mut(&version)?;
        let longest = resting.pop_front().map(|resting| resting.instance);
        if resting.is_empty() {
            self.instances.remove(&version);
        }
        longest
    }
}

/// Counts one attempt as waiting until it is dropped.
struct WaitingForPlace<'p>(&'p Pool);

impl Drop for WaitingForPlace<'_> {
    fn drop(&mut self) {
        self.0.idle.lock().waiting -= 1;
    }
}

/// Drops idle instances as long as any are kept.
async fn drop_idle(pool: Weak<Pool>) {
    while let Some(next) = pool.upgrade().and_then(|pool| pool.drop_idle(Instant::now())) {
        tokio::time::sleep_until(next.into()).await;
    }
}
