//! Decides whether this host is ready, by the last sign of life of each fetch loop.
//!
//! In: a [`FetchPulse`] for each fetch loop, which beats at every step; one call of [`Health::started`]; the
//! reason if something failed for good ([`Health::fail`]); that the host stops ([`Health::stops`]). Out:
//! [`Health::ready`], and the [`QueueReport`]s that `/readyz` answers with.
//!
//!     never beaten ─┐
//!     last beat older than stall_after ─┼─▶ not ok ─▶ not ready ◀─ failed, stopping
//!     last event is a fault ─┤
//!  tasks cannot be settled ──┘
//!
//! The fetch loops of a host that stops end in order, so their silence then means nothing: each queue is
//! `stopping`, and ok.
//!
//! A loop that waits for its plugin is ok: it is alive, and the report says what it waits for.
//!
//! Not here: pings to Redis. An answer to a ping does not mean that tasks are read.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
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
    /// As many of its tasks run, in all hosts together, as may.
    WaitingForTurn,
    Paused,
    /// Something that its tasks need is down.
    Held,
}

/// The health of the process. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Health(Arc<HealthState>);

#[derive(Debug)]
struct HealthState {
    stall_after: Duration,
    started: AtomicBool,
    /// When the host began to stop.
    stopping: OnceLock<Instant>,
    failed: OnceLock<&'static str>,
    /// One for each queue, in the order in which the queues were added.
    pulses: Guarded<Vec<FetchPulse>>,
    /// Wakes those who wait until the host is ready.
    changed: Arc<Notify>,
}

/// The answer of `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Readiness {
    pub ready: bool,
    /// The first scan of the plugins is done.
    pub started: bool,
    /// It claims no more tasks, and ends when those that run are settled.
    pub stopping: bool,
    /// A part that the host needs, and that has ended. Only a restart of the host brings it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<&'static str>,
    pub queues: Vec<QueueReport>,
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

impl Health {
    /// A fetch loop that has not beaten for longer than `stall_after` is stalled.
    pub(crate) fn new(stall_after: Duration) -> Self {
        Health(Arc::new(HealthState {
            stall_after,
            started: AtomicBool::new(false),
            stopping: OnceLock::new(),
            failed: OnceLock::new(),
            pulses: Guarded::default(),
            changed: Arc::default(),
        }))
    }

    /// Notes that the first scan of the plugins is done.
    pub(crate) fn started(&self) {
        self.0.started.store(true, Ordering::Release);
        self.0.changed.notify_waiters();
    }

    /// Notes that the host stops: from now on it is not ready.
    pub(crate) fn stops(&self) {
        self.0.stopping.get_or_init(Instant::now);
    }

    /// Notes that a part that the host needs has ended: the host is not ready until it is restarted.
    /// `/readyz` shows the reason to clients that may read.
    pub(crate) fn fail(&self, reason: &'static str) {
        self.0.failed.get_or_init(|| reason);
    }

    /// The pulse of this queue's fetch loop. The host is not ready until the pulse beats.
    pub(crate) fn queue(&self, name: &str) -> FetchPulse {
        let mut pulses = self.0.pulses.lock();
        if let Some(pulse) = pulses.iter().find(|pulse| pulse.0.queue == name) {
            *pulse.0.seen.lock() = LatestEvent::starting();
            return pulse.clone();
        }
        let pulse = FetchPulse(Arc::new(PulseState {
            queue: name.to_owned(),
            seen: Guarded::new(LatestEvent::starting()),
            unsettled: Guarded::default(),
            changed: self.0.changed.clone(),
        }));
        pulses.push(pulse.clone());
        pulse
    }

    /// Forgets the queue: this host does not run it any more.
    pub(crate) fn remove(&self, name: &str) {
        self.0.pulses.lock().retain(|pulse| pulse.0.queue != name);
        self.0.changed.notify_waiters();
    }

    /// Waits until the host is ready. That may be never.
    pub(crate) async fn until_ready(&self) {
        loop {
            let mut changed = pin!(self.0.changed.notified());
            changed.as_mut().enable();
            if self.report().ready {
                return;
            }
            changed.await;
        }
    }

    pub(crate) fn report(&self) -> Readiness {
        self.report_at(Instant::now())
    }

    fn report_at(&self, now: Instant) -> Readiness {
        let started = self.0.started.load(Ordering::Acquire);
        let stops_since = self.0.stopping.get();
        let report = |pulse: &FetchPulse| match stops_since {
            Some(since) => pulse.stopping(now.saturating_duration_since(*since)),
            None => pulse.report(now, self.0.stall_after),
        };
        let queues: Vec<QueueReport> = self.0.pulses.lock().iter().map(report).collect();
        let stopping = stops_since.is_some();
        let failed = self.0.failed.get().copied();
        Readiness {
            ready: started && !stopping && failed.is_none() && queues.iter().all(|queue| queue.ok),
            started,
            stopping,
            failed,
            queues,
        }
    }
}

/// The sign of life of one fetch loop. The loop beats at least three times per `stall_after`, also while it
/// has nothing to do.
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
    /// The loop is alive, and `state` is what it does. A beat ends a fault.
    pub(crate) fn beat(&self, state: FetchState) {
        self.event(Event::Beat(state), Instant::now());
    }

    /// The loop could not do its work. `/readyz` shows the reason, so it must not hold secrets.
    pub(crate) fn fault(&self, reason: String) {
        self.event(Event::Fault(cut(reason)), Instant::now());
    }

    /// Says what the loop waits for, until the next beat. `/readyz` shows it like the reason of a fault.
    pub(crate) fn explain(&self, reason: Option<String>) {
        self.0.seen.lock().reason = reason.map(cut);
    }

    /// Tasks stay unsettled for this reason, which is shown like that of a fault; none: they do not. The loop
    /// may go on reading meanwhile.
    pub(crate) fn unsettled(&self, reason: Option<String>) {
        *self.0.unsettled.lock() = reason.map(cut);
        self.0.changed.notify_waiters();
    }

    fn event(&self, event: Event, now: Instant) {
        let mut seen = self.0.seen.lock();
        let same = match (&seen.event, &event) {
            (Event::Beat(before), Event::Beat(state)) => before == state,
            (Event::Fault(_), Event::Fault(_)) => true,
            _ => false,
        };
        if !same {
            seen.since = now;
        }
        seen.last = now;
        seen.event = event;
        seen.reason = None;
        drop(seen);
        if !same {
            self.0.changed.notify_waiters();
        }
    }

    /// The report while the host stops. `since` is how long it has been stopping.
    fn stopping(&self, since: Duration) -> QueueReport {
        QueueReport {
            queue: self.0.queue.clone(),
            state: STOPPING,
            since_ms: ms(since),
            ok: true,
            reason: Some("the host stops: it claims no more tasks".to_owned()),
        }
    }

    fn report(&self, now: Instant, stall_after: Duration) -> QueueReport {
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
            let health = Health::new(STALL);
            health.started();
            let pulse = health.queue("mail");
            let start = pulse.0.seen.lock().since;
            let second = |n: u64| start + Duration::from_secs(n);
            for event in *events {
                match *event {
                    Do::Beat(at, state) => pulse.event(Event::Beat(state), second(at)),
                    Do::Fault(at, reason) => pulse.event(Event::Fault(reason.to_owned()), second(at)),
                }
            }
            let report = health.report_at(second(*at));
            let row = QueueReport {
                queue: "mail".to_owned(),
                state,
                since_ms: since * 1000,
                ok: *ok,
                reason: Some((*reason).to_owned()).filter(|reason| !reason.is_empty()),
            };
            let (started, stopping, failed, queues) = (true, false, None, vec![row]);
            assert_eq!(report, Readiness { ready: *ok, started, stopping, failed, queues });
        }
    }

    #[test]
    fn ready_needs_the_start_and_every_loop() {
        let health = Health::new(STALL);
        assert!(!health.report().ready);
        let (mail, report) = (health.queue("mail"), health.queue("report"));
        mail.beat(Reading);
        report.beat(WaitingForPlugin);
        assert!(!health.report().ready, "not started");
        health.started();
        assert!(health.report().ready);
        report.fault("refused".to_owned());
        assert!(!health.report().ready);
        report.beat(Reading);
        assert!(health.report().ready);
        let names: Vec<String> = health.report().queues.into_iter().map(|queue| queue.queue).collect();
        assert_eq!(names, ["mail", "report"]);
    }

    #[test]
    fn the_loops_of_a_host_that_stops_are_stopping_and_never_stalled() {
        let health = Health::new(STALL);
        health.started();
        let (mail, report) = (health.queue("mail"), health.queue("report"));
        mail.beat(Reading);
        health.stops();
        // The last read of a loop may still fail.
        report.fault("refused".to_owned());
        let long_after = Instant::now() + Duration::from_secs(300);
        let seen = health.report_at(long_after);
        assert!(seen.stopping && !seen.ready, "{seen:?}");
        for queue in &seen.queues {
            assert!(queue.ok && !queue.takes_tasks() && queue.state == STOPPING, "{queue:?}");
            assert!(queue.since_ms >= 300_000, "{queue:?}");
        }
        assert_eq!(seen.queues.len(), 2);
    }

    #[tokio::test]
    async fn a_wait_for_readiness_ends_with_the_last_missing_part() {
        let health = Health::new(STALL);
        let (mail, report) = (health.queue("mail"), health.queue("report"));
        let waiter = tokio::spawn({
            let health = health.clone();
            async move { health.until_ready().await }
        });
        tokio::task::yield_now().await;
        health.started();
        mail.beat(Reading);
        report.fault("refused".to_owned());
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        report.beat(Reading);
        waiter.await.expect("it is woken");
    }

    #[test]
    fn a_failure_for_good_makes_it_unready_for_good() {
        let health = Health::new(STALL);
        health.started();
        let pulse = health.queue("mail");
        pulse.beat(Reading);
        assert!(health.report().ready);
        health.fail("the watcher has failed");
        pulse.beat(Reading);
        let report = health.report();
        assert!(!report.ready && report.started && report.queues[0].ok, "{report:?}");
        assert_eq!(report.failed, Some("the watcher has failed"));
    }

    #[test]
    fn a_loop_that_starts_anew_has_to_beat_again() {
        let health = Health::new(STALL);
        health.started();
        health.queue("mail").beat(Reading);
        assert!(health.report().ready);
        let again = health.queue("mail");
        assert!(!health.report().ready);
        assert_eq!(health.report().queues.len(), 1);
        again.beat(Reading);
        assert!(health.report().ready);
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let health = Health::new(STALL);
        health.queue("mail").fault("ü".repeat(MAX_REASON_BYTES));
        let reason = health.report().queues.remove(0).reason.unwrap();
        assert_eq!(reason, "ü".repeat(MAX_REASON_BYTES / 2));
    }
}
