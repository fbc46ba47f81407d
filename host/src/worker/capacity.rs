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

/// One start of a queue of priority 1, in virtual time. Divided by the priority, it is exact enough.
const STEP: u64 = 1 << 32;

/// A task with fewer bytes than this is not counted, which would cost more than it is worth.
const LARGE: usize = 64 << 10;

/// The capacity that all queues of this host share. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Capacity {
    pool: Arc<Guarded<PermitPool>>,
    alone: Arc<Alone>,
    host_time: Arc<HostTime>,
}

#[derive(Debug)]
struct PermitPool {
    /// The bound of permits for all queues together. `None`: the host sets no bound.
    most: Option<usize>,
    /// Permits that are granted, whether taken or not.
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
#[derive(Debug)]
struct QueueShare {
    /// The queue's own concurrency, and the lower one that an operator has set.
    most: usize,
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
    /// Virtual time of one start.
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
    /// Locked by the loop that waits, so that the queue's loops are served in order of arrival.
    turn: tokio::sync::Mutex<()>,
}

/// The bytes that a large task of a queue takes. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct TaskBytes {
    queue: Arc<QueueCapacity>,
    bytes: usize,
}

/// The right to run `count` attempts of one queue. Dropping it frees the permits for other waiters.
#[derive(Debug)]
pub(crate) struct Permits {
    queue: Arc<QueueCapacity>,
    count: usize,
}

impl Capacity {
    /// Room for `limit` attempts. `None`: only each queue's own concurrency counts.
    pub(crate) fn new(limit: Option<u32>) -> Capacity {
        let most = limit.map(|limit| limit as usize);
        let (shares, next_id, now) = (BTreeMap::new(), 0, 0);
        let pool = PermitPool { most, out: 0, most_bytes: None, bytes: 0, now, shares, next_id };
        Capacity { pool: Arc::new(Guarded::new(pool)), alone: Arc::default(), host_time: Arc::default() }
    }

    /// Bounds the bytes of large tasks.
    pub(crate) fn with_bytes(self, most: u64) -> Capacity {
        self.pool.lock().most_bytes = Some(usize::try_from(most).unwrap_or(usize::MAX));
        self
    }

    /// The bound.
    pub(crate) fn limit(&self) -> Option<usize> {
        self.pool.lock().most
    }

    /// Changes the bound. Permits in use stay valid; the excess is not granted again.
    pub(crate) fn resize(&self, limit: Option<u32>) {
        let mut pool = self.pool.lock();
        pool.most = limit.map(|limit| limit as usize);
        let ids: Vec<u64> = pool.shares.keys().copied().collect();
        ids.into_iter().for_each(|id| pool.grant_free(id));
    }

    /// Adds a queue, which competes for permits until the value is dropped.
    pub(crate) fn queue(&self, concurrency: u32, priority: u32) -> Arc<QueueCapacity> {
        let granted_notify = Arc::new(Notify::new());
        let mut pool = self.pool.lock();
        let id = pool.next_id;
        pool.next_id += 1;
        let due = pool.now;
        pool.shares.insert(
            id,
            QueueShare {
                most: concurrency as usize,
                lowered: None,
                taken: 0,
                granted: 0,
                bytes: 0,
                waits: false,
                wants_more: false,
                step: step(priority),
                due,
                granted_notify: granted_notify.clone(),
            },
        );
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
    fn is_full(&self) -> bool {
        self.most_bytes.is_some_and(|most| self.bytes > most)
    }

    /// Changes one queue's share, and grants the permits that this frees.
    fn change<T>(&mut self, id: u64, change: impl FnOnce(&mut QueueShare, &mut usize) -> T) -> Option<T> {
        let found = self.shares.get_mut(&id)?;
        let given = change(found, &mut self.out);
        if !found.waits && !found.wants_more {
            found.refund(found.granted);
            self.out -= std::mem::take(&mut found.granted);
        }
        self.grant_free(id);
        Some(given)
    }

    /// Grants free permits to queues with demand. If the host sets no bound, only the queue `changed` is
    /// looked at.
    fn grant_free(&mut self, changed: u64) {
        let is_full = self.is_full();
        let Some(most) = self.most else {
            if let Some(share) = self.shares.get_mut(&changed) {
                let demand = share.demand(is_full);
                share.grant(demand);
                self.out += demand;
            }
            return;
        };
        while self.out < most {
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
    /// `is_full`: large tasks hold as many bytes as they may.
    fn is_held_up(&self, is_full: bool) -> bool {
        is_full && self.bytes > 0
    }

    fn demand(&self, is_full: bool) -> usize {
        let has_demand = (self.waits || self.wants_more) && !self.is_held_up(is_full);
        if has_demand { self.most().saturating_sub(self.taken + self.granted) } else { 0 }
    }

    fn most(&self) -> usize {
        self.lowered.map_or(self.most, |lowered| lowered.min(self.most))
    }

    /// Takes permits back that are granted and not taken, if the bound has changed and there are too many.
    fn shed(&mut self, out: &mut usize) {
        let too_many = (self.taken + self.granted).saturating_sub(self.most()).min(self.granted);
        self.granted -= too_many;
        *out -= too_many;
        self.refund(too_many);
    }

    fn grant(&mut self, count: usize) {
        self.granted += count;
        if count > 0 && self.waits {
            self.granted_notify.notify_one();
        }
    }

    /// Starts that did not take place are not counted.
    fn refund(&mut self, count: usize) {
        self.due = self.due.saturating_sub(self.step.saturating_mul(count as u64));
    }
}

/// One start, in virtual time.
fn step(priority: u32) -> u64 {
    STEP / u64::from(priority.max(1))
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
        self.change(|share, _| share.wants_more = more);
    }

    /// Whether the host bounds all queues together. Then no loop may hold permits only to wait for tasks.
    pub(crate) fn is_shared(&self) -> bool {
        self.host.pool.lock().most.is_some()
    }

    /// Changes concurrency and priority. Permits in use stay valid; the excess is not granted again.
    pub(crate) fn resize(&self, concurrency: u32, priority: u32) {
        self.change(|share, out| {
            share.most = concurrency as usize;
            share.step = step(priority);
            share.shed(out);
        });
    }

    /// Lowers the concurrency until another call. Permits in use stay valid; the excess is not granted again.
    pub(crate) fn lower(&self, most: Option<u32>) {
        let lowered = most.map(|most| most as usize);
        let is_known = |share: &QueueShare| share.lowered == lowered;
        if self.host.pool.lock().shares.get(&self.id).is_none_or(is_known) {
            return;
        }
        self.change(|share, out| {
            share.lowered = lowered;
            share.shed(out);
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
        let may_begin = |share: &QueueShare| share.taken < share.most() && !share.is_held_up(pool.is_full());
        pool.most.is_none_or(|most| pool.out < most) && pool.shares.get(&self.id).is_some_and(may_begin)
    }

    /// Takes the bytes of a task that was claimed. None: it is small.
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
            let ids: Vec<u64> = pool.shares.keys().copied().collect();
            ids.into_iter().for_each(|id| pool.grant_free(id));
            // Permits that were set aside may be taken now.
            let waiting = pool.shares.values().filter(|share| share.waits && share.granted > 0);
            waiting.for_each(|share| share.granted_notify.notify_one());
        }
    }

    /// The permits in use.
    pub(crate) fn taken(&self) -> usize {
        self.host.pool.lock().shares.get(&self.id).map(|share| share.taken).unwrap_or_default()
    }

    fn take(self: &Arc<QueueCapacity>, most: usize) -> Option<Permits> {
        let mut pool = self.host.pool.lock();
        let is_full = pool.is_full();
        let take = |share: &mut QueueShare, _: &mut usize| {
            let count = if share.is_held_up(is_full) { 0 } else { share.granted.min(most) };
            share.granted -= count;
            share.taken += count;
            count
        };
        let count = pool.change(self.id, take).filter(|count| *count > 0)?;
        Some(Permits { queue: self.clone(), count })
    }

    fn give(&self, count: usize, refund: bool) {
        self.change(|share, out| {
            share.taken -= count;
            *out -= count;
            if refund {
                share.refund(count);
            }
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut QueueShare, &mut usize) -> T) -> Option<T> {
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
        queue.change(|share, _| share.waits = true);
        WaitGuard(queue)
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.0.change(|share, _| share.waits = false);
    }
}

impl Permits {
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// One of them; none when there is none left.
    pub(crate) fn split_one(&mut self) -> Option<Permits> {
        self.count = self.count.checked_sub(1)?;
        Some(Permits { queue: self.queue.clone(), count: 1 })
    }

    /// Gives back what was not used: no starts are counted for it.
    pub(crate) fn unused(mut self) {
        let count = std::mem::take(&mut self.count);
        self.queue.give(count, true);
    }
}

impl Drop for Permits {
    fn drop(&mut self) {
        if self.count > 0 {
            self.queue.give(self.count, false);
        }
    }
}

#[cfg(test)]
mod tests;
