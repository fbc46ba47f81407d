//! The sign of life of one fetch loop, and what it says about the loop.
//!
//!     never beaten ────────────────────────┐
//!     no event for longer than stall_after ┼─▶ not ok
//!     the last event is a fault ───────────┤
//!     tasks cannot be settled ─────────────┘
//!
//! In: beats, one for every step of the loop, and faults. Out: the [`QueueReport`]. A loop that waits for its
//! plugin is ok: it is alive, and the report says what it waits for. Not here: the whole host (`health`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use strum::IntoStaticStr;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock::ms;
use crate::guarded::Guarded;
use crate::queue::hosts::STOPPING;

/// A longer reason is cut to this length, on a character boundary.
const MAX_REASON_BYTES: usize = 500;

/// The activity of a fetch loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub(crate) enum FetchState {
    Reading,
    WaitingForPermit,
    WaitingForPlugin,
    /// A queue that its tasks enqueue to is full.
    WaitingForRoom,
    /// All hosts together run as many of its tasks as the limits allow.
    WaitingForTurn,
    Paused,
    /// The queue is on hold: something that its tasks need is down.
    Held,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct QueueReport {
    pub queue: String,
    /// `starting`, `faulted`, [`STOPPING`], or the name of a [`FetchState`].
    pub state: &'static str,
    /// How long it has been in this state.
    pub since_ms: u64,
    pub ok: bool,
    /// Why it is not ok, or what it waits for.
    pub reason: Option<String>,
}

impl QueueReport {
    /// Whether the host would take a task of the queue, now or when one that runs has ended.
    pub(crate) fn takes_tasks(&self) -> bool {
        let waits = [FetchState::WaitingForPlugin, FetchState::Paused, FetchState::Held];
        self.ok && self.state != STOPPING && waits.iter().all(|state| state.into_str() != self.state)
    }
}

/// The sign of life of one fetch loop. The loop beats at least three times per `stall_after`, even while it
/// has nothing to do. Clones share it.
#[derive(Clone)]
pub(crate) struct FetchPulse(Arc<PulseState>);

struct PulseState {
    queue: String,
    seen: Guarded<LatestEvent>,
    /// Why tasks stay unsettled for longer than a lease.
    unsettled: Guarded<Option<String>>,
    changed: Arc<Notify>,
}

struct LatestEvent {
    event: Event,
    /// A text about what the loop waits for.
    reason: Option<String>,
    /// When the event came. A repeated event keeps the time of its first one.
    since: Instant,
    /// When the last event came, repeated or not.
    last: Instant,
}

enum Event {
    Starting,
    Beat(FetchState),
    Fault(String),
}

impl LatestEvent {
    fn starting() -> Self {
        let now = Instant::now();
        LatestEvent { event: Event::Starting, reason: None, since: now, last: now }
    }
}

impl FetchPulse {
    /// `changed` is notified when the report of the queue may have changed.
    pub(super) fn new(queue: &str, changed: Arc<Notify>) -> FetchPulse {
        let (seen, unsettled) = (Guarded::new(LatestEvent::starting()), Guarded::default());
        FetchPulse(Arc::new(PulseState { queue: queue.to_owned(), seen, unsettled, changed }))
    }

    pub(super) fn queue(&self) -> &str {
        &self.0.queue
    }

    /// Forgets what the loop did before: it has to beat again.
    pub(super) fn starts_anew(&self) {
        *self.0.seen.lock() = LatestEvent::starting();
    }

    /// Notes that the loop is alive, and what it does. A beat ends a fault.
    pub(crate) fn beat(&self, state: FetchState) {
        self.event(Event::Beat(state), Instant::now());
    }

    /// Notes that the loop could not do its work. `/readyz` shows the reason, so it must not hold secrets.
    pub(crate) fn fault(&self, reason: String) {
        self.event(Event::Fault(cut(reason)), Instant::now());
    }

    /// Says what the loop waits for, until the next beat. `/readyz` shows it like the reason of a fault.
    pub(crate) fn explain(&self, reason: Option<String>) {
        self.0.seen.lock().reason = reason.map(cut);
    }

    /// Notes why tasks stay unsettled; none: they do not. The reason is shown like that of a fault, although
    /// the loop may go on reading.
    pub(crate) fn unsettled(&self, reason: Option<String>) {
        *self.0.unsettled.lock() = reason.map(cut);
        self.0.changed.notify_waiters();
    }

    fn event(&self, event: Event, now: Instant) {
        let mut seen = self.0.seen.lock();
        let is_same = match (&seen.event, &event) {
            (Event::Beat(before), Event::Beat(state)) => before == state,
            (Event::Fault(_), Event::Fault(_)) => true,
            _ => false,
        };
        if !is_same {
            seen.since = now;
        }
        seen.last = now;
        seen.event = event;
        seen.reason = None;
        drop(seen);
        if !is_same {
            self.0.changed.notify_waiters();
        }
    }

    /// The report while the host stops. `since` is for how long it has been stopping.
    pub(super) fn stopping(&self, since: Duration) -> QueueReport {
        QueueReport {
            queue: self.0.queue.clone(),
            state: STOPPING,
            since_ms: ms(since),
            ok: true,
            reason: Some("the host stops: it claims no more tasks".to_owned()),
        }
    }

    pub(super) fn report(&self, now: Instant, stall_after: Duration) -> QueueReport {
        let seen = self.0.seen.lock();
        let silent = now.saturating_duration_since(seen.last);
        let stalled = silent > stall_after;
        let no_sign = || format!("no sign of life for {} s", silent.as_secs());
        let (state, ok, reason) = match &seen.event {
            Event::Starting => ("starting", false, Some("the fetch loop has not started yet".to_owned())),
            Event::Fault(reason) if stalled => {
                ("faulted", false, Some(format!("{reason}; {} since", no_sign())))
            }
            Event::Fault(reason) => ("faulted", false, Some(reason.clone())),
            Event::Beat(state) if stalled => (state.into_str(), false, Some(no_sign())),
            Event::Beat(_) if let Some(why) = self.0.unsettled.lock().clone() => {
                ("faulted", false, Some(why))
            }
            Event::Beat(FetchState::WaitingForPlugin) => (
                FetchState::WaitingForPlugin.into_str(),
                true,
                Some("its plugin has no working version".to_owned()),
            ),
            Event::Beat(state) => (state.into_str(), true, seen.reason.clone()),
        };
        QueueReport {
            queue: self.0.queue.clone(),
            state,
            since_ms: ms(now.saturating_duration_since(seen.since)),
            ok,
            reason,
        }
    }
}

impl fmt::Debug for FetchPulse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FetchPulse").field(&self.0.queue).finish()
    }
}

fn cut(mut reason: String) -> String {
    reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
    reason
}

#[cfg(test)]
mod tests {
    use super::*;
    use FetchState::{Paused, Reading, WaitingForPermit, WaitingForPlugin};

    const STALL: Duration = Duration::from_secs(10);

    #[derive(Clone, Copy)]
    enum Do {
        Beat(u64, FetchState),
        Fault(u64, &'static str),
    }

    /// Events at seconds after the start, the second of the report, and the state, age, ok and reason in it
    /// (empty: none).
    type Row = (&'static [Do], u64, &'static str, u64, bool, &'static str);

    const TABLE: &[Row] = &[
        (&[], 0, "starting", 0, false, "the fetch loop has not started yet"),
        (&[], 99, "starting", 99, false, "the fetch loop has not started yet"),
        (&[Do::Beat(1, Reading)], 1, "reading", 0, true, ""),
        (&[Do::Beat(1, Reading)], 11, "reading", 10, true, ""),
        (&[Do::Beat(1, Reading)], 12, "reading", 11, false, "no sign of life for 11 s"),
        (&[Do::Beat(1, Reading), Do::Beat(9, Reading)], 19, "reading", 18, true, ""),
        (&[Do::Beat(1, Reading), Do::Beat(9, WaitingForPermit)], 12, "waiting-for-permit", 3, true, ""),
        (&[Do::Beat(1, WaitingForPermit)], 40, "waiting-for-permit", 39, false, "no sign of life for 39 s"),
        (&[Do::Beat(1, Paused)], 2, "paused", 1, true, ""),
        (
            &[Do::Beat(1, WaitingForPlugin)],
            5,
            "waiting-for-plugin",
            4,
            true,
            "its plugin has no working version",
        ),
        (&[Do::Beat(1, WaitingForPlugin)], 15, "waiting-for-plugin", 14, false, "no sign of life for 14 s"),
        (&[Do::Fault(1, "NOGROUP")], 2, "faulted", 1, false, "NOGROUP"),
        (&[Do::Fault(1, "refused"), Do::Fault(3, "reset")], 4, "faulted", 3, false, "reset"),
        (&[Do::Fault(1, "refused")], 21, "faulted", 20, false, "refused; no sign of life for 20 s since"),
        (&[Do::Beat(1, Reading), Do::Fault(2, "refused"), Do::Beat(3, Reading)], 4, "reading", 1, true, ""),
    ];

    #[test]
    fn a_pulse_is_judged_by_its_last_event_and_its_age() {
        for (events, at, state, since, ok, reason) in TABLE {
            let pulse = FetchPulse::new("mail", Arc::default());
            let start = pulse.0.seen.lock().since;
            let second = |n: u64| start + Duration::from_secs(n);
            for event in *events {
                match *event {
                    Do::Beat(at, state) => pulse.event(Event::Beat(state), second(at)),
                    Do::Fault(at, reason) => pulse.event(Event::Fault(reason.to_owned()), second(at)),
                }
            }
            let expected = QueueReport {
                queue: "mail".to_owned(),
                state,
                since_ms: since * 1000,
                ok: *ok,
                reason: Some((*reason).to_owned()).filter(|reason| !reason.is_empty()),
            };
            assert_eq!(pulse.report(second(*at), STALL), expected);
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        assert_eq!(cut("ü".repeat(MAX_REASON_BYTES)), "ü".repeat(MAX_REASON_BYTES / 2));
    }
}
