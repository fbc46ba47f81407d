//! What the loops of one queue know of each other's idleness, so that none of them asks Redis what another one knows.
//!
//! A queue *rests* while the host's [`Waiter`](super::waiter) waits for its new entries. Nothing can become pending in a resting queue unless the
//! waiter wakes it first, so whoever found nothing to do there sleeps until the rest ends, or until the queue is looked at in its turn.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

/// The idleness of one queue.
#[derive(Debug)]
pub struct Idle {
    rest: watch::Sender<Rest>,
    paused: watch::Sender<Pause>,
    duty: AtomicBool,
    delayed: AtomicBool,
}

/// Whether a queue rests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// It is read from, or cannot be.
    Awake,
    /// It is waited for. The number grows each time it is looked at in its turn.
    Resting(u64),
}

/// Whether a queue is paused, as far as is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pause {
    Unknown,
    Paused,
    Unpaused,
    /// Redis refuses to tell.
    Refused(String),
}

impl Default for Idle {
    fn default() -> Idle {
        Idle {
            rest: watch::Sender::new(Rest::Awake),
            paused: watch::Sender::new(Pause::Unknown),
            duty: AtomicBool::new(true),
            delayed: AtomicBool::new(false),
        }
    }
}

impl Idle {
    /// The queue is waited for from now on; or it was, and is looked at in its turn.
    pub fn rests(&self) {
        self.rest.send_modify(|rest| match rest {
            Rest::Awake => *rest = Rest::Resting(0),
            Rest::Resting(turns) => *turns += 1,
        });
    }

    /// The queue is read from again.
    pub fn wakes(&self) {
        self.rest.send_if_modified(|rest| std::mem::replace(rest, Rest::Awake) != Rest::Awake);
    }

    pub fn rest(&self) -> watch::Receiver<Rest> {
        self.rest.subscribe()
    }

    /// Notes what a look for a pause has found.
    pub fn note_pause(&self, found: Pause) {
        self.paused.send_if_modified(|known| std::mem::replace(known, found.clone()) != found);
    }

    pub fn paused(&self) -> watch::Receiver<Pause> {
        self.paused.subscribe()
    }

    pub fn is_unpaused(&self) -> bool {
        *self.paused.borrow() == Pause::Unpaused
    }

    /// Notes whether this host has the queue's duties.
    pub fn note_duty(&self, has: bool) {
        self.duty.store(has, Ordering::Release);
    }

    /// Whether this host has the queue's duties, which one host does for all. It does them until it knows of
    /// another that has them.
    pub fn has_duty(&self) -> bool {
        self.duty.load(Ordering::Acquire)
    }

    /// Notes whether the promoter knows of delayed tasks, and so sleeps until the next one is due.
    pub fn note_delayed(&self, some: bool) {
        self.delayed.store(some, Ordering::Release);
    }

    pub fn has_delayed(&self) -> bool {
        self.delayed.load(Ordering::Acquire)
    }
}
