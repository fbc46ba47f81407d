//! The idle state of one queue, shared by its loops, so that no loop asks Redis for what another loop knows.
//!
//! A queue *rests* while the host's [`Waiter`](super::waiter) waits for its new entries. In a resting queue
//! nothing can become pending before the waiter wakes it. A loop that has nothing to do sleeps until then, or
//! until the queue is to look for itself.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct IdleState {
    rest: watch::Sender<Rest>,
    paused: watch::Sender<Pause>,
    duty: AtomicBool,
    delayed: AtomicBool,
}

/// Whether a queue rests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// The fetcher reads from it, or cannot.
    Awake,
    /// The waiter waits for it. The number counts the looks of the queue, so that each look is a change.
    Resting(u64),
}

/// Whether a queue is paused, as far as is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pause {
    Unknown,
    Paused,
    Unpaused,
    /// Redis refuses to tell.
    Refused(String),
}

impl Default for IdleState {
    fn default() -> IdleState {
        IdleState {
            rest: watch::Sender::new(Rest::Awake),
            paused: watch::Sender::new(Pause::Unknown),
            duty: AtomicBool::new(true),
            delayed: AtomicBool::new(false),
        }
    }
}

impl IdleState {
    /// Notes that the waiter waits for the queue, or that the queue has looked for itself and rests on.
    pub(crate) fn rests(&self) {
        self.rest.send_modify(|rest| match rest {
            Rest::Awake => *rest = Rest::Resting(0),
            Rest::Resting(looks) => *looks += 1,
        });
    }

    /// Notes that the fetcher reads from the queue again.
    pub(crate) fn wakes(&self) {
        self.rest.send_if_modified(|rest| std::mem::replace(rest, Rest::Awake) != Rest::Awake);
    }

    pub(crate) fn rest(&self) -> watch::Receiver<Rest> {
        self.rest.subscribe()
    }

    /// Notes the result of a look for a pause. Returns whether it is new.
    pub(crate) fn note_pause(&self, found: Pause) -> bool {
        self.paused.send_if_modified(|known| std::mem::replace(known, found.clone()) != found)
    }

    pub(crate) fn paused(&self) -> watch::Receiver<Pause> {
        self.paused.subscribe()
    }

    pub(crate) fn is_unpaused(&self) -> bool {
        *self.paused.borrow() == Pause::Unpaused
    }

    /// Notes whether this host has the queue's duties.
    pub(crate) fn note_duty(&self, has: bool) {
        self.duty.store(has, Ordering::Release);
    }

    /// Whether this host has the queue's duties, which one host does for all hosts.
    ///
    /// It is true until this host learns that another one has them.
    pub(crate) fn has_duty(&self) -> bool {
        self.duty.load(Ordering::Acquire)
    }

    /// Notes whether the promoter knows of delayed tasks, and so sleeps until the next one is due.
    pub(crate) fn note_delayed(&self, some: bool) {
        self.delayed.store(some, Ordering::Release);
    }

    pub(crate) fn has_delayed(&self) -> bool {
        self.delayed.load(Ordering::Acquire)
    }
}
