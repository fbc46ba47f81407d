//! Looks for changes that no entry announces, for all queues of this host: pauses, holds, limits, duties, and
//! delayed tasks of others.
//!
//! A look is a few commands for any number of queues. There is one each second, and one at once when hosts
//! are asked to look (`queue::wait::request_look`). Its findings go to each queue's
//! [`IdleState`](super::idle::IdleState), or wake its promoter.
//!
//! The promoter knows the delayed tasks that this host parked, and sleeps until they are due. Other delayed
//! tasks come from producers and from hosts that died. The host with the queue's duties looks for them: in
//! all queues whose promoter knows no delayed task, and in turn in the other queues.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::idle::Pause;
use super::pace::Pace;
use super::shared::SharedQueue;
use super::storm::OUTAGES;
use super::waiter::Waiter;
use crate::chain::chain;
use crate::guarded::Guarded;
use crate::queue::{Link, Queue, QueueResult, duties, wait};

/// The time between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// The least time between two looks, however often hosts are asked to look.
const GAP: Duration = Duration::from_millis(50);
/// The time between two renewals of the lease of duties. Another host takes over the duties of a dead one
/// within `RENEW` plus `LEASE`.
const RENEW: Duration = Duration::from_secs(4);
const LEASE: Duration = Duration::from_secs(9);
/// The most promoters with delayed tasks that one look wakes.
const MAX_WOKEN: usize = 20;

/// The queues of one host that the loop looks after. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Lookout(Arc<LookoutQueues>);

#[derive(Default)]
struct LookoutQueues {
    queues: Guarded<Vec<Weak<SharedQueue>>>,
    added: Notify,
}

/// The connections of the loop.
pub(crate) struct LookoutLinks {
    /// For the looks.
    pub looks: Link,
    /// For the duties.
    pub link: Link,
}

impl Lookout {
    /// Adds a queue. The loop looks after it until it is dropped or stops claiming.
    pub(crate) fn add(&self, queue: &Arc<SharedQueue>) {
        self.0.queues.lock().push(Arc::downgrade(queue));
        self.0.added.notify_one();
    }

    /// The queues whose duties this host has.
    pub(crate) fn with_duty(&self) -> Vec<Arc<SharedQueue>> {
        self.queues().into_iter().filter(|queue| queue.idle.has_duty()).collect()
    }

    /// All queues that this host serves.
    fn queues(&self) -> Vec<Arc<SharedQueue>> {
        let mut queues = self.0.queues.lock();
        let serves = |queue: &Arc<SharedQueue>| !queue.stop.claiming.is_cancelled();
        queues.retain(|queue| queue.upgrade().as_ref().is_some_and(serves));
        queues.iter().filter_map(Weak::upgrade).collect()
    }

    /// `host` is the name of this host among those that hold duties.
    pub(crate) async fn run(
        self,
        LookoutLinks { looks, link }: LookoutLinks,
        waiter: Waiter,
        host: Arc<str>,
        stop: CancellationToken,
    ) {
        let mut pace = Pace::new("*", "look");
        let mut lease = DutyLease { renewed_at: None, shared_at: Instant::now(), asked: HashMap::new() };
        // The next queue whose promoter is woken, among those with delayed tasks.
        let mut next = 0;
        let looks = async {
            loop {
                let look = async {
                    let queues = self.queues();
                    if !queues.is_empty() {
                        look_for_stops(&looks, &queues).await?;
                    }
                    lease.renew_if_due(&link, &host, &queues, &waiter).await?;
                    look_for_relayed(&looks, &queues).await?;
                    look_for_delayed(&looks, &queues, &mut next).await.map(|()| LOOK)
                };
                let wait = pace.after(look.await);
                let requested = async {
                    tokio::join!(waiter.look_requested(), tokio::time::sleep(GAP));
                };
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = self.0.added.notified() => lease.renewed_at = None,
                    () = requested => lease.renewed_at = None,
                }
            }
        };
        stop.run_until_cancelled(looks).await;
        match duties::leave(&link, &host).await {
            Ok(()) => wait::request_look(&link).await,
            Err(error) => {
                tracing::debug!(error = chain(&error), "could not hand over the duties of this host");
            }
        }
    }
}

/// This host's part in the sharing of duties.
struct DutyLease {
    /// When the lease was last renewed, or a renewal has failed. `None`: a renewal is due.
    renewed_at: Option<Instant>,
    /// When duties were last shared with other hosts.
    shared_at: Instant,
    /// The queues whose duties this host has asked for, by duty.
    asked: HashMap<String, Queue>,
}

impl DutyLease {
    async fn renew_if_due(
        &mut self,
        link: &Link,
        host: &str,
        queues: &[Arc<SharedQueue>],
        waiter: &Waiter,
    ) -> QueueResult {
        if self.renewed_at.is_some_and(|at| at.elapsed() < RENEW) {
            return Ok(());
        }
        self.renewed_at = Some(Instant::now());
        // In a cluster, the node that knows the duties is not the one of the queues, which must not wait for
        // it.
        let patience = if link.is_cluster() { LOOK } else { Duration::MAX };
        match tokio::time::timeout(patience, self.renew(link, host, queues)).await {
            Ok(Ok(hosts)) => {
                self.shared_at = Instant::now();
                waiter.share_looks(hosts);
            }
            Ok(Err(error)) if !link.is_cluster() => return Err(error),
            failed => {
                tracing::debug!(?failed, "cannot share duties with other hosts");
                if self.shared_at.elapsed() >= LEASE + RENEW {
                    queues.iter().for_each(|queue| queue.idle.note_duty(true));
                }
            }
        }
        Ok(())
    }

    /// Renews this host's duties. Returns the number of hosts that share duties.
    ///
    /// If Redis refuses the keys for this, the host has all duties. It does no harm if two hosts have the
    /// same.
    async fn renew(&mut self, link: &Link, host: &str, queues: &[Arc<SharedQueue>]) -> QueueResult<u64> {
        let served: HashMap<String, Queue> =
            queues.iter().map(|queue| (queue.queue.duty(), queue.queue.clone())).collect();
        let gone = self.asked.iter().filter(|(duty, _)| !served.contains_key(*duty));
        let gone: Vec<&Queue> = gone.map(|(_, queue)| queue).collect();
        if !gone.is_empty() {
            match duties::release(link, &gone).await {
                Ok(()) => {
                    self.asked.clear();
                    wait::request_look(link).await;
                }
                Err(error) if error.is_connection() => return Err(error),
                // The next renewal tries again: while this host lives, no other one can have these duties.
                Err(error) => tracing::debug!(error = chain(&error), "could not give up duties"),
            }
        }
        self.asked.extend(served);
        let all: Vec<&Queue> = queues.iter().map(|queue| &queue.queue).collect();
        match duties::renew(link, host, LEASE, &all).await {
            Ok(duties) => {
                queues.iter().zip(duties.has).for_each(|(queue, has)| queue.idle.note_duty(has));
                Ok(duties.hosts)
            }
            Err(error) if error.is_connection() => Err(error),
            Err(error) => {
                let error = chain(&error);
                tracing::debug!(error, "cannot share duties with other hosts; doing all of them");
                queues.iter().for_each(|queue| queue.idle.note_duty(true));
                Ok(1)
            }
        }
    }
}

/// Looks for limits, holds and pauses.
async fn look_for_stops(link: &Link, queues: &[Arc<SharedQueue>]) -> QueueResult {
    let asked: Vec<&Queue> = queues.iter().map(|queue| &queue.queue).collect();
    let learned: Vec<u64> = queues.iter().map(|queue| queue.holding.learned()).collect();
    match wait::stops(link, &asked).await {
        Ok(stops) => {
            for ((queue, stops), learned) in queues.iter().zip(stops).zip(learned) {
                match stops {
                    Ok(stops) => {
                        queue.limits.note(stops.limits);
                        queue.holding.note_found(&stops.held, learned);
                        let is_paused = stops.pause.is_some();
                        queue.idle.note_pause(if is_paused { Pause::Paused } else { Pause::Unpaused });
                    }
                    // Its node of a cluster is away, so nothing of it can be claimed anyway.
                    Err(error) if error.is_connection() => {}
                    Err(error) => note_refused(queue, chain(&error)),
                }
            }
            Ok(())
        }
        Err(error) => {
            // While Redis is unreachable, nothing can be claimed anyway.
            if !error.is_connection() {
                queues.iter().for_each(|queue| _ = queue.idle.note_pause(Pause::Refused(chain(&error))));
            }
            Err(error)
        }
    }
}

/// Notes that Redis refuses the keys of one queue. This queue waits, and the others go on.
fn note_refused(queue: &SharedQueue, error: String) {
    let is_news = queue.idle.note_pause(Pause::Refused(error.clone()));
    if is_news && OUTAGES.admits(&queue.name) {
        let queue = queue.name.as_ref();
        tracing::warn!(queue, error, "Redis refuses to tell whether the queue is paused; it waits");
    }
}

/// Looks for tasks that dead hosts and commands have left for queues in other slots.
async fn look_for_relayed(link: &Link, queues: &[Arc<SharedQueue>]) -> QueueResult {
    if !link.is_cluster() {
        return Ok(());
    }
    let held: Vec<_> = queues.iter().filter(|queue| queue.idle.has_duty()).collect();
    let asked: Vec<&Queue> = held.iter().map(|queue| &queue.queue).collect();
    for found in wait::with_relayed(link, &asked).await? {
        held[found].relays_all.store(true, Ordering::Release);
        held[found].relay_wanted.notify_one();
    }
    Ok(())
}

/// Wakes the promoters of queues that have delayed tasks. Redis is asked only about queues whose promoter
/// knows none.
async fn look_for_delayed(link: &Link, queues: &[Arc<SharedQueue>], next: &mut usize) -> QueueResult {
    let (known, unknown): (Vec<_>, Vec<_>) =
        queues.iter().filter(|queue| queue.idle.has_duty()).partition(|queue| queue.idle.has_delayed());
    let count = known.len().min(MAX_WOKEN);
    for at in *next..*next + count {
        known[at % known.len()].parked.notify_one();
    }
    *next = (*next + count) % known.len().max(1);
    let asked: Vec<&Queue> = unknown.iter().map(|queue| &queue.queue).collect();
    for found in wait::with_delayed(link, &asked).await? {
        unknown[found].parked.notify_one();
    }
    Ok(())
}
