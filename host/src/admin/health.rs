//! Decides whether this host is ready, by the last sign of life of each fetch loop.
//!
//! In: a [`FetchPulse`] for each fetch loop; one call of [`Health::started`]; the reason if something failed
//! for good ([`Health::fail`]); that the host stops ([`Health::stops`]). Out: a [`Readiness`], with which
//! `/readyz` answers.
//!
//! The fetch loops of a host that stops end in order, so their silence then means nothing: each queue is
//! `stopping`, and ok.
//!
//! Not here: which loop is well (`pulse`). Pings to Redis: an answer to one does not mean that tasks are
//! read.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::pulse::{FetchPulse, QueueReport};
use crate::guarded::Guarded;

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
    /// Wakes [`Health::until_ready`] to look again.
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

    /// The pulse of this queue's fetch loop, which is new or starts anew. The host is not ready until it
    /// beats.
    pub(crate) fn queue(&self, name: &str) -> FetchPulse {
        let mut pulses = self.0.pulses.lock();
        if let Some(pulse) = pulses.iter().find(|pulse| pulse.queue() == name) {
            pulse.starts_anew();
            return pulse.clone();
        }
        let pulse = FetchPulse::new(name, self.0.changed.clone());
        pulses.push(pulse.clone());
        pulse
    }

    /// Forgets the queue: this host does not run it any more.
    pub(crate) fn remove(&self, name: &str) {
        self.0.pulses.lock().retain(|pulse| pulse.queue() != name);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::pulse::FetchState::{Reading, WaitingForPlugin};
    use crate::queue::hosts::STOPPING;

    const STALL: Duration = Duration::from_secs(10);

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
}
