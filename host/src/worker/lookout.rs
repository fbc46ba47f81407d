//! Looks for what no entry announces, for all queues of this host together: pauses, delayed tasks of others, duties.
//!
//! A look is a few commands, however many queues there are: once a second, and at once when hosts are told to look (`queue::wait::tell`). What it
//! finds is noted in each queue's [`Idle`](super::idle::Idle), or told to its promoter.
//!
//! Delayed tasks that this host parked are known to the queue's promoter, which sleeps until they are due. For those of others (an enqueued task with a
//! delay, a host that died) the host with the queue's duties looks: whether there are delayed tasks in any queue of whose promoter knows none, and, in
//! turn, at the queues that have some.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::idle::Pause;
use super::pace::Pace;
use super::shared::Shared;
use super::waiter::Waiter;
use crate::chain::chain;
use crate::queue::{Link, Queue, QueueError, duties, wait};

/// The time between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// The least time between two looks, however often hosts are told to look.
const GAP: Duration = Duration::from_millis(50);
/// The time between two renewals of the lease of duties, and how long it lasts. A host that dies is followed by another within the sum of both.
const RENEW: Duration = Duration::from_secs(4);
const LEASE: Duration = Duration::from_secs(9);
/// Queues with delayed tasks that are looked at in one look.
const DELAYED: usize = 20;

/// The queues of one host that are looked after. Clones share it.
#[derive(Clone, Default)]
pub struct Lookout(Arc<Inner>);

#[derive(Default)]
struct Inner {
    queues: Mutex<Vec<Weak<Shared>>>,
    added: Notify,
}

/// The memory of the loop between two looks.
struct Memory {
    renewed: Option<Instant>,
    /// The queues of which this host asked for the duties, by duty.
    asked: HashMap<String, Queue>,
    /// Where the next look goes on among the queues with delayed tasks.
    turn: usize,
}

impl Lookout {
    /// Looks after a queue, soon and until it is dropped or claims nothing more.
    pub fn add(&self, queue: &Arc<Shared>) {
        self.queues_mut().push(Arc::downgrade(queue));
        self.0.added.notify_one();
    }

    /// The queues of which this host has the duties.
    pub fn held(&self) -> Vec<Arc<Shared>> {
        self.queues().into_iter().filter(|queue| queue.idle.has_duty()).collect()
    }

    /// All queues that this host serves.
    fn queues(&self) -> Vec<Arc<Shared>> {
        let mut queues = self.queues_mut();
        let serves = |queue: &Arc<Shared>| !queue.stop.claiming.is_cancelled();
        queues.retain(|queue| queue.upgrade().as_ref().is_some_and(serves));
        queues.iter().filter_map(Weak::upgrade).collect()
    }

    fn queues_mut(&self) -> MutexGuard<'_, Vec<Weak<Shared>>> {
        self.0.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `host` is its name among those that hold duties.
    pub async fn run(self, link: Link, waiter: Waiter, host: Arc<str>, stop: CancellationToken) {
        let mut pace = Pace::new("*", "look");
        let mut memory = Memory { renewed: None, asked: HashMap::new(), turn: 0 };
        loop {
            let look = tokio::select! {
                look = self.look(&link, &waiter, &host, &mut memory) => look,
                () = stop.cancelled() => break,
            };
            let wait = match look {
                Ok(()) => {
                    pace.succeeded();
                    LOOK
                }
                Err(error) => pace.failed(&error),
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.0.added.notified() => memory.renewed = None,
                () = async { tokio::join!(waiter.told(), tokio::time::sleep(GAP)); } => memory.renewed = None,
                () = stop.cancelled() => break,
            }
        }
        match duties::leave(&link, &host).await {
            Ok(()) => wait::tell(&link).await,
            Err(error) => {
                tracing::debug!(error = chain(&error), "could not hand over the duties of this host")
            }
        }
    }

    async fn look(
        &self,
        link: &Link,
        waiter: &Waiter,
        host: &str,
        memory: &mut Memory,
    ) -> Result<(), QueueError> {
        let queues = self.queues();
        if !queues.is_empty() {
            look_for_pauses(link, &queues).await?;
        }
        if memory.renewed.is_none_or(|at| at.elapsed() >= RENEW) {
            memory.renewed = Some(Instant::now());
            waiter.share_turns(hold_duties(link, host, &queues, &mut memory.asked).await?);
        }
        look_for_delayed(link, &queues, &mut memory.turn).await
    }
}

async fn look_for_pauses(link: &Link, queues: &[Arc<Shared>]) -> Result<(), QueueError> {
    let asked: Vec<&Queue> = queues.iter().map(|queue| &queue.queue).collect();
    match wait::paused(link, &asked).await {
        Ok(paused) => {
            for (queue, paused) in queues.iter().zip(paused) {
                queue.idle.note_pause(if paused { Pause::Paused } else { Pause::Unpaused });
            }
            Ok(())
        }
        Err(error) => {
            // While Redis is away, nothing can be claimed anyway.
            if !error.is_connection() {
                queues.iter().for_each(|queue| queue.idle.note_pause(Pause::Refused(chain(&error))));
            }
            Err(error)
        }
    }
}

/// Gives how many hosts there are. A host that may not ask for duties has all of them: to do them twice does no harm.
async fn hold_duties(
    link: &Link,
    host: &str,
    queues: &[Arc<Shared>],
    asked: &mut HashMap<String, Queue>,
) -> Result<u64, QueueError> {
    let before = std::mem::take(asked);
    asked.extend(queues.iter().map(|queue| (queue.queue.duty(), queue.queue.clone())));
    let gone: Vec<&Queue> =
        before.iter().filter(|(duty, _)| !asked.contains_key(*duty)).map(|(_, queue)| queue).collect();
    let all: Vec<&Queue> = queues.iter().map(|queue| &queue.queue).collect();
    let held = async {
        if !gone.is_empty() {
            duties::release(link, &gone).await?;
            wait::tell(link).await;
        }
        duties::hold(link, host, LEASE, &all).await
    };
    match held.await {
        Ok(held) => {
            queues.iter().zip(held.has).for_each(|(queue, has)| queue.idle.note_duty(has));
            Ok(held.hosts)
        }
        Err(error) if error.is_connection() => Err(error),
        Err(error) => {
            tracing::debug!(error = chain(&error), "cannot share duties with other hosts; doing all of them");
            queues.iter().for_each(|queue| queue.idle.note_duty(true));
            Ok(1)
        }
    }
}

async fn look_for_delayed(link: &Link, queues: &[Arc<Shared>], turn: &mut usize) -> Result<(), QueueError> {
    let (known, unknown): (Vec<_>, Vec<_>) =
        queues.iter().filter(|queue| queue.idle.has_duty()).partition(|queue| queue.idle.has_delayed());
    let count = known.len().min(DELAYED);
    known
        .iter()
        .cycle()
        .skip(*turn % known.len().max(1))
        .take(count)
        .for_each(|queue| queue.parked.notify_one());
    *turn = turn.wrapping_add(count);
    let asked: Vec<&Queue> = unknown.iter().map(|queue| &queue.queue).collect();
    for found in wait::with_delayed(link, &asked).await? {
        unknown[found].parked.notify_one();
    }
    Ok(())
}
