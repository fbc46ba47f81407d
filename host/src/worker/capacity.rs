//! Bounds how many attempts run at once, by the concurrency of each queue and of the whole host.
//!
//! In: queues with their concurrency and priority, and their requests. Out: [`Permits`], returned when
//! dropped.
//!
//! Where queues compete, a free permit goes to the queue with the fewest starts divided by its priority. Each
//! queue has a virtual time. A start advances it by 1/priority, and the queue with the lowest time is served
//! first. A queue that was idle is set to the time of the others, so idleness saves nothing up.
//!
//! A fetcher takes permits, reads, and then asks for more. [`QueueCapacity::wants_more`] keeps its place
//! during the read, and permits granted meanwhile wait for it. Without this, queues with short tasks would
//! share by the speed of their reads instead of by priority.
//!
//! Large tasks also take bytes, from their read until their settlement is known. While those of all queues
//! together hold more than the host's bound, a queue that has some of them gets no permit. A queue with small
//! tasks is not held up.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;

use super::alone::Alone;
use super::host_time::HostTime;
use crate::guarded::Guarded;

/// One start of a queue of priority 1, in virtual time. It is large, so that dividing it by a priority is
/// exact enough.
const LONGEST_STEP: u64 = 1 << 32;

/// The bytes of a smaller task are not counted: that would cost more than it is worth.
const LARGE: usize = 64 << 10;

/// The capacity that all queues of this host share. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Capacity {
    pool: Arc<Guarded<PermitPool>>,
    alone: Arc<Alone>,
    host_time: Arc<HostTime>,
}

#[derive(Debug, Default)]
struct PermitPool {
    /// The bound of permits for all queues together. `None`: the host sets no bound.
    limit: Option<usize>,
    /// The permits of all queues that are taken or granted.
    out: usize,
    /// The most bytes of large tasks. `None`: the host sets no bound.
    most_bytes: Option<usize>,
    /// The bytes of the large tasks of all queues.
    bytes: usize,
    /// The virtual time of the last start.
    now: u64,
    shares: BTreeMap<u64, QueueShare>,
    next_id: u64,
}

/// One queue's permits and its demand.
#[derive(Debug, Default)]
struct QueueShare {
    concurrency: usize,
    /// A bound that an operator has set. Only a lower one than `concurrency` counts.
    lowered: Option<usize>,
    /// Permits in use.
    taken: usize,
    /// Permits set aside for the queue, and not taken yet.
    granted: usize,
    /// The bytes of its large tasks.
    bytes: usize,
    /// A loop waits for a permit.
    waits: bool,
    /// A loop will ask for more permits at once.
    wants_more: bool,
    /// One start, in virtual time.
    step: u64,
    /// When its next start is due, in virtual time.
    due: u64,
    /// Notified when permits are granted.
    granted_notify: Arc<Notify>,
}

/// The capacity that one queue has in this host: its loops take their permits here.
#[derive(Debug)]
pub(crate) struct QueueCapacity {
    host: Capacity,
    /// The queue's key in [`PermitPool::shares`].
    id: u64,
    granted_notify: Arc<Notify>,
    /// Locked by the loop that waits, so that the loops of the queue are served in order of arrival.
    turn: tokio::sync::Mutex<()>,
}

/// The bytes that a large task of a queue takes. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct TaskBytes {
    queue: Arc<QueueCapacity>,
    bytes: usize,
}

/// The right to run `count` attempts of one queue. Dropping it frees the permits for others that wait.
#[derive(Debug)]
pub(crate) struct Permits {
    queue: Arc<QueueCapacity>,
    count: usize,
}

impl Capacity {
    /// Room for `limit` attempts. `None`: only each queue's own concurrency counts.
    pub(crate) fn new(limit: Option<u32>) -> Capacity {
        let pool = PermitPool { limit: limit.map(|limit| limit as usize), ..PermitPool::default() };
        Capacity { pool: Arc::new(Guarded::new(pool)), alone: Arc::default(), host_time: Arc::default() }
    }

    /// Bounds the bytes of large tasks.
    pub(crate) fn with_bytes(self, most: u64) -> Capacity {
        self.pool.lock().most_bytes = Some(usize::try_from(most).unwrap_or(usize::MAX));
        self
    }

    pub(crate) fn limit(&self) -> Option<usize> {
        self.pool.lock().limit
    }

    /// Changes the bound. Permits in use stay valid; the excess is not granted again.
    pub(crate) fn resize(&self, limit: Option<u32>) {
        let mut pool = self.pool.lock();
        pool.limit = limit.map(|limit| limit as usize);
        pool.grant_all();
    }

    /// Adds a queue, which competes for permits until the value is dropped.
    pub(crate) fn queue(&self, concurrency: u32, priority: u32) -> Arc<QueueCapacity> {
        let granted_notify = Arc::new(Notify::new());
        let mut pool = self.pool.lock();
        let id = pool.next_id;
        pool.next_id += 1;
        let share = QueueShare {
            concurrency: concurrency as usize,
            step: step(priority),
            due: pool.now,
            granted_notify: granted_notify.clone(),
            ..QueueShare::default()
        };
        pool.shares.insert(id, share);
        drop(pool);
        Arc::new(QueueCapacity {
            host: self.clone(),
            id,
            granted_notify,
            turn: tokio::sync::Mutex::default(),
        })
    }
}

impl PermitPool {
    /// Whether the large tasks of all queues hold more bytes than they may.
    fn is_full(&self) -> bool {
        self.most_bytes.is_some_and(|most| self.bytes > most)
    }

    /// Changes one queue's share, and grants the permits that this frees. `None`: there is no such queue.
    fn change<T>(&mut self, id: u64, change: impl FnOnce(&mut QueueShare) -> T) -> Option<T> {
        let share = self.shares.get_mut(&id)?;
        let before = share.taken + share.granted;
        let result = change(share);
        if !share.waits && !share.wants_more {
            share.take_back(share.granted);
        }
        self.out = self.out + share.taken + share.granted - before;
        self.grant_free(id);
        debug_assert_eq!(
            self.out,
            self.shares.values().map(|share| share.taken + share.granted).sum::<usize>()
        );
        Some(result)
    }

    fn grant_all(&mut self) {
        let ids: Vec<u64> = self.shares.keys().copied().collect();
        ids.into_iter().for_each(|id| self.grant_free(id));
    }

    /// Grants free permits to queues with demand. If the host sets no bound, only the queue `changed` is
    /// looked at.
    fn grant_free(&mut self, changed: u64) {
        let is_full = self.is_full();
        let Some(limit) = self.limit else {
            if let Some(share) = self.shares.get_mut(&changed) {
                let demand = share.demand(is_full);
                share.grant(demand);
                self.out += demand;
            }
            return;
        };
        while self.out < limit {
            let wanting = self.shares.values_mut().filter(|share| share.demand(is_full) > 0);
            let Some(first) = wanting.min_by_key(|share| share.due.max(self.now)) else { return };
            self.now = first.due.max(self.now);
            first.due = self.now + first.step;
            first.grant(1);
            self.out += 1;
        }
    }
}

impl QueueShare {
    /// Whether the queue gets no permit because of its large tasks, if the pool `is_full`.
    fn is_held_up(&self, is_full: bool) -> bool {
        is_full && self.bytes > 0
    }

    /// How many more permits the queue can use.
    fn demand(&self, is_full: bool) -> usize {
        let has_demand = (self.waits || self.wants_more) && !self.is_held_up(is_full);
        if has_demand { self.bound().saturating_sub(self.taken + self.granted) } else { 0 }
    }

    fn bound(&self) -> usize {
        self.lowered.unwrap_or(usize::MAX).min(self.concurrency)
    }

    /// Takes granted permits back that are above a bound that was lowered.
    fn shed(&mut self) {
        let too_many = (self.taken + self.granted).saturating_sub(self.bound());
        self.take_back(too_many.min(self.granted));
    }

    fn take_back(&mut self, granted: usize) {
        self.granted -= granted;
        self.refund(granted);
    }

    fn grant(&mut self, count: usize) {
        self.granted += count;
        if count > 0 && self.waits {
            self.granted_notify.notify_one();
        }
    }

    /// Uncounts starts that did not take place.
    fn refund(&mut self, starts: usize) {
        self.due = self.due.saturating_sub(self.step.saturating_mul(starts as u64));
    }
}

/// One start, in virtual time.
fn step(priority: u32) -> u64 {
    LONGEST_STEP / u64::from(priority.max(1))
}

impl QueueCapacity {
    /// Waits for a permit, and takes up to `most` of the permits that are free. This future is cancel-safe.
    pub(crate) async fn acquire(self: &Arc<QueueCapacity>, most: usize) -> Permits {
        let _turn = self.turn.lock().await;
        drop(self.host.alone.enter_shared().await);
        let _guard = WaitGuard::new(self);
        loop {
            let granted = self.granted_notify.notified();
            if let Some(permits) = self.take(most) {
                return permits;
            }
            granted.await;
        }
    }

    /// The lock that every attempt of this host takes before it begins.
    ///
    /// While an attempt runs alone or asks to, no permit is given out.
    pub(crate) fn alone(&self) -> &Alone {
        &self.host.alone
    }

    /// The time that attempts of all queues take on the host's own threads.
    pub(crate) fn host_time(&self) -> &HostTime {
        &self.host.host_time
    }

    /// Notes whether the loop that took permits last will ask for more at once. If so, its place is kept.
    pub(crate) fn wants_more(&self, more: bool) {
        self.change(|share| share.wants_more = more);
    }

    /// Whether the host bounds all queues together. Then no loop may hold permits only to wait for tasks.
    pub(crate) fn is_shared(&self) -> bool {
        self.host.pool.lock().limit.is_some()
    }

    /// Changes concurrency and priority. Permits in use stay valid; the excess is not granted again.
    pub(crate) fn resize(&self, concurrency: u32, priority: u32) {
        self.change(|share| {
            share.concurrency = concurrency as usize;
            share.step = step(priority);
            share.shed();
        });
    }

    /// Lowers the concurrency until another call. Permits in use stay valid; the excess is not granted again.
    pub(crate) fn lower(&self, most: Option<u32>) {
        let lowered = most.map(|most| most as usize);
        let is_known = |share: &QueueShare| share.lowered == lowered;
        if self.host.pool.lock().shares.get(&self.id).is_none_or(is_known) {
            return;
        }
        self.change(|share| {
            share.lowered = lowered;
            share.shed();
        });
    }

    /// Grants no more permits, because this host gives the queue up. [`QueueCapacity::resize`] opens it
    /// again.
    pub(crate) fn close(&self) {
        self.resize(0, 1);
    }

    /// Whether another attempt could begin now, by the queue's own concurrency and the host's bounds.
    pub(crate) fn has_room(&self) -> bool {
        let pool = self.host.pool.lock();
        let may_begin = |share: &QueueShare| share.taken < share.bound() && !share.is_held_up(pool.is_full());
        pool.limit.is_none_or(|limit| pool.out < limit) && pool.shares.get(&self.id).is_some_and(may_begin)
    }

    /// Takes the bytes of a task that was claimed. `None`: the task is small.
    pub(crate) fn take_bytes(self: &Arc<QueueCapacity>, bytes: usize) -> Option<TaskBytes> {
        if bytes < LARGE {
            return None;
        }
        self.count_bytes(|held| held + bytes);
        Some(TaskBytes { queue: self.clone(), bytes })
    }

    fn count_bytes(&self, change: impl Fn(usize) -> usize) {
        let mut pool = self.host.pool.lock();
        let was_full = pool.is_full();
        pool.bytes = change(pool.bytes);
        if let Some(share) = pool.shares.get_mut(&self.id) {
            share.bytes = change(share.bytes);
        }
        if was_full && !pool.is_full() {
            pool.grant_all();
            // Permits that were set aside may be taken now.
            let waiting = pool.shares.values().filter(|share| share.waits && share.granted > 0);
            waiting.for_each(|share| share.granted_notify.notify_one());
        }
    }

    /// The permits in use.
    pub(crate) fn taken(&self) -> usize {
        self.host.pool.lock().shares.get(&self.id).map_or(0, |share| share.taken)
    }

    fn take(self: &Arc<QueueCapacity>, most: usize) -> Option<Permits> {
        let mut pool = self.host.pool.lock();
        let is_full = pool.is_full();
        let take = |share: &mut QueueShare| {
            let count = if share.is_held_up(is_full) { 0 } else { share.granted.min(most) };
            share.granted -= count;
            share.taken += count;
            count
        };
        let count = pool.change(self.id, take).filter(|count| *count > 0)?;
        Some(Permits { queue: self.clone(), count })
    }

    fn change<T>(&self, change: impl FnOnce(&mut QueueShare) -> T) -> Option<T> {
        self.host.pool.lock().change(self.id, change)
    }
}

impl Drop for TaskBytes {
    fn drop(&mut self) {
        self.queue.count_bytes(|held| held.saturating_sub(self.bytes));
    }
}

impl Drop for QueueCapacity {
    /// Runs when no permit is in use, because each permit holds this value.
    fn drop(&mut self) {
        self.wants_more(false);
        self.host.pool.lock().shares.remove(&self.id);
    }
}

/// A loop waits for permits while this lives.
struct WaitGuard<'l>(&'l QueueCapacity);

impl WaitGuard<'_> {
    fn new(queue: &QueueCapacity) -> WaitGuard<'_> {
        queue.change(|share| share.waits = true);
        WaitGuard(queue)
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.0.change(|share| share.waits = false);
    }
}

impl Permits {
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Takes one permit out of these; `None` if no permit is left.
    pub(crate) fn split_one(&mut self) -> Option<Permits> {
        self.count = self.count.checked_sub(1)?;
        Some(Permits { queue: self.queue.clone(), count: 1 })
    }

    /// Gives back permits without a start: none is counted.
    pub(crate) fn unused(mut self) {
        let count = std::mem::take(&mut self.count);
        self.queue.change(|share| {
            share.taken -= count;
            share.refund(count);
        });
    }
}

impl Drop for Permits {
    fn drop(&mut self) {
        if self.count > 0 {
            self.queue.change(|share| share.taken -= self.count);
        }
    }
}

#[cfg(test)]
mod tests;
