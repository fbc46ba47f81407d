//! Knows the hold of one queue: whether something outside is down, and who may try a task.
//!
//! In: how attempts ended, and what the lookout finds in Redis. Out: whether a failure is charged, when the
//! loops that claim may ask for the probe, and the [`MayClaim`] of the one that got it. A line in the log
//! when the hold begins, and one when it ends.
//!
//! The first failure after the hold began tells a host of it, if the lookout did not. So each host runs no
//! more attempts than it had running. A look that began before this host's own knowledge is ignored.
//!
//! Not here: counting failures (`queue::hold`), the settlement (`settle`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::inflight::Inflight;
use super::metrics::QueueMetrics;
use super::ramp::Ramp;
use crate::chain::chain;
use crate::clock;
use crate::config::HoldRules;
use crate::guarded::Guarded;
use crate::queue::hold::{HoldFound, OutageCounted, OutageFailure, ProbeAnswer, QueueHold};
use crate::queue::{Queue, StreamEntry, codec, wait};
use crate::task::{Outcome, Task};

/// The shortest lease of a probe. A host that is killed blocks the next probe for no longer than its lease.
const LEAST_LEASE: Duration = Duration::from_secs(5);
/// A task that failed as the probe does not come back before others could be tried: at most this long after
/// the next probe.
const LONGEST_ASIDE: Duration = Duration::from_secs(60);
/// How often a loop looks whether the probe of this host has ended without an outcome.
const LOOK: Duration = Duration::from_millis(500);

pub(crate) struct Holding {
    rules: Option<HoldRules>,
    queue: Queue,
    consumer: Arc<str>,
    inflight: Arc<Inflight>,
    metrics: Arc<QueueMetrics>,
    /// Whether the queue is held, as far as is known.
    held: watch::Sender<bool>,
    /// The last hold that is known.
    last: Guarded<Option<QueueHold>>,
    /// How many tasks may start after the last hold.
    ramp: Ramp,
    /// Raised whenever this host learns something by itself.
    learned: AtomicU64,
    /// Failures in a row may be counted in Redis.
    is_counting: AtomicBool,
    probe: Guarded<ProbeState>,
    /// Notified when this host's probe has ended.
    probed: Notify,
}

#[derive(Default)]
struct ProbeState {
    /// When to ask for the probe next. None: at once.
    ask_at: Option<Instant>,
    stage: ProbeStage,
    kept: Option<Instant>,
}

/// How far this host's probe is.
#[derive(Default, PartialEq, Eq)]
enum ProbeStage {
    #[default]
    None,
    /// A loop asks for it, or claims its task.
    Claiming(Option<String>),
    /// The task under this entry is the probe.
    Runs(String),
}

/// The right to claim tasks now. Where the queue is held, it is for one task, the probe.
pub(crate) struct MayClaim(Option<HoldProbe>);

/// The right to try one task of a held queue. It ends with the outcome of the task, or when it is given back.
struct HoldProbe(Arc<Holding>);

/// How an attempt that failed for a cause outside is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Charge {
    /// As a retry.
    AsUsual,
    /// The queue is held, so the failure is not charged. The task comes back after `least` at the earliest.
    /// `at_ms` is Redis's clock. `keeps`: others got through after its first failure, so its
    /// earlier failures still count.
    Held { at_ms: u64, least: Duration, keeps: bool },
    /// The queue is open, or others get through. The failure is charged from the task's `most`-th such
    /// failure on.
    Below { most: u32, at_ms: u64 },
}

impl Holding {
    pub(crate) fn new(
        queue: Queue,
        consumer: Arc<str>,
        inflight: Arc<Inflight>,
        metrics: Arc<QueueMetrics>,
    ) -> Arc<Holding> {
        metrics.held.set(0);
        Arc::new(Holding {
            rules: queue.rules.hold,
            queue,
            consumer,
            inflight,
            metrics,
            held: watch::Sender::new(false),
            last: Guarded::default(),
            ramp: Ramp::default(),
            learned: AtomicU64::new(0),
            is_counting: AtomicBool::new(false),
            probe: Guarded::default(),
            probed: Notify::new(),
        })
    }

    pub(crate) fn is_held(&self) -> bool {
        *self.held.borrow()
    }

    pub(crate) fn held(&self) -> watch::Receiver<bool> {
        self.held.subscribe()
    }

    /// The hold in words, as far as is known.
    pub(crate) fn told(&self) -> Option<String> {
        self.last.lock().as_ref().map(|hold| format!("on hold {}", hold.told(clock::now_ms())))
    }

    /// How many tasks may start now; fewer than otherwise for some seconds after a hold.
    pub(crate) fn room_after_hold(&self) -> usize {
        self.ramp.room()
    }

    /// Notes that these entries were claimed, and that `tasks` of them start now. Call it before they can
    /// run: the only task of a held queue is the probe.
    pub(crate) fn claimed(&self, turn: &MayClaim, entries: &[StreamEntry], tasks: usize) {
        if let (true, Some(entry)) = (turn.is_probe(), entries.first()) {
            self.probe.lock().stage = ProbeStage::Claiming(Some(entry.id.clone()));
        }
        self.ramp.started(tasks);
    }

    /// How often this host has learned something by itself, for [`Self::note_found`].
    pub(crate) fn learned(&self) -> u64 {
        self.learned.load(Ordering::Acquire)
    }

    /// Notes what a look has found that began when [`Self::learned`] gave `learned`.
    pub(crate) fn note_found(&self, found: &HoldFound, learned: u64) {
        if self.rules.is_none() || self.learned() != learned {
            return;
        }
        self.is_counting.store(found.is_counting, Ordering::Release);
        match &found.hold {
            Some(hold) => self.begin(hold.clone()),
            None => self.end(),
        }
    }

    fn begin(&self, hold: QueueHold) {
        self.metrics.held.set(1);
        let cause = hold.cause.clone();
        *self.last.lock() = Some(hold);
        if !self.held.send_if_modified(|held| !std::mem::replace(held, true)) {
            return;
        }
        self.ramp.end();
        let queue = self.queue.rules.name.as_str();
        let pause = self.rules.map_or(0, |rules| rules.pause.as_secs());
        tracing::warn!(
            queue,
            cause,
            for_seconds = pause,
            "the queue is held: something that its tasks need is down; its tasks wait and are not charged"
        );
    }

    fn end(&self) {
        self.metrics.held.set(0);
        if !self.is_held() {
            return;
        }
        // The loops that wait for the end look at this first.
        self.ramp.begin();
        if self.held.send_if_modified(|held| std::mem::replace(held, false)) {
            self.probe.lock().ask_at = None;
            *self.last.lock() = None;
            let queue = self.queue.rules.name.as_str();
            tracing::info!(queue, "the queue is held no longer: a task got through, or it was resumed");
        }
    }

    /// Waits until the queue is open, or until this host may ask for the probe.
    pub(crate) async fn may_probe(&self) {
        let mut held = self.held();
        while *held.borrow_and_update() {
            let now = Instant::now();
            let until = if self.is_probing() {
                now + LOOK
            } else {
                match self.probe.lock().ask_at.filter(|at| *at > now) {
                    Some(at) => at,
                    None => return,
                }
            };
            tokio::select! {
                _ = held.changed() => {}
                () = self.probed.notified() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// Whether this host may ask for the probe now.
    pub(crate) fn may_ask(&self) -> bool {
        !self.is_probing() && self.probe.lock().ask_at.is_none_or(|at| at <= Instant::now())
    }

    /// Whether the task of this entry must not run: the queue is held, and it is not the probe. Its read
    /// began before this host knew of the hold.
    pub(crate) fn stops(&self, entry: &str) -> bool {
        let is_probe = |probed: &str| probed == entry;
        self.is_held()
            && !matches!(&self.probe.lock().stage, ProbeStage::Claiming(Some(probed)) if is_probe(probed))
    }

    /// Whether a probe of this host is on its way. One whose task was never run ends here.
    fn is_probing(&self) -> bool {
        let mut probe = self.probe.lock();
        if matches!(&probe.stage, ProbeStage::Runs(entry) if !self.inflight.contains(entry)) {
            probe.stage = ProbeStage::None;
        }
        probe.stage != ProbeStage::None
    }

    /// Asks for the right to claim `count` tasks. `None`: not yet.
    pub(crate) async fn ask(self: &Arc<Self>, count: usize) -> Option<MayClaim> {
        if !self.is_held() {
            return Some(MayClaim(None));
        }
        if count != 1 || !self.may_ask() {
            return None;
        }
        self.probe.lock().stage = ProbeStage::Claiming(None);
        // Dropping it ends the stage.
        let probe = HoldProbe(self.clone());
        match self.queue.ask_probe(&self.consumer, self.lease()).await {
            Ok(ProbeAnswer::Granted) => {
                self.probe.lock().kept = Some(Instant::now());
                Some(MayClaim(Some(probe)))
            }
            Ok(ProbeAnswer::Open) => {
                self.learned.fetch_add(1, Ordering::AcqRel);
                self.end();
                Some(MayClaim(None))
            }
            Ok(ProbeAnswer::Wait(wait)) => {
                self.probe.lock().ask_at = Some(Instant::now() + wait);
                None
            }
            Err(error) => {
                tracing::debug!(
                    queue = self.queue.rules.name,
                    error = chain(&error),
                    "could not ask for the probe"
                );
                self.probe.lock().ask_at = Some(Instant::now() + LOOK);
                None
            }
        }
    }

    /// Renews the lease of the probe while its task is in flight.
    pub(crate) async fn keep_probe(&self) {
        let lease = self.lease();
        {
            let mut probe = self.probe.lock();
            let is_due = probe.kept.is_none_or(|at| at.elapsed() >= lease / 3);
            if !matches!(probe.stage, ProbeStage::Runs(_)) || !is_due {
                return;
            }
            probe.kept = Some(Instant::now());
        }
        let still = if self.is_probing() { lease } else { Duration::ZERO };
        self.lend(still).await;
    }

    /// Notes how the attempts of one call ended. Returns how failures for a cause outside
    /// are charged.
    pub(crate) async fn ended<'t>(
        &self,
        each: impl Iterator<Item = (&'t Task, &'t Outcome)> + Clone + Send,
    ) -> Charge {
        let Some(rules) = self.rules else { return Charge::AsUsual };
        let is_probe = self.take_probe(each.clone().map(|(task, _)| task.entry.as_str()));
        let mut down = each.clone().filter_map(|(task, outcome)| match outcome {
            Outcome::Unavailable { message, after } => Some((task, message, *after)),
            _ => None,
        });
        let is_done = each.clone().any(|(_, outcome)| matches!(outcome, Outcome::Completed { .. }));
        let is_answered = each.clone().any(|(_, outcome)| !matches!(outcome, Outcome::Failed { .. }));
        let first = down.next();
        let is_single = each.clone().count() == 1;
        let mut charge = Charge::Below { most: rules.after, at_ms: 0 };
        match first {
            Some((task, cause, after)) if !is_done => {
                let asked = down.filter_map(|(_, _, after)| after).chain(after).max();
                // Nobody knows which task of a batch makes the service fail.
                let since_ms = if is_single { codec::outages(task).since_ms } else { 0 };
                let failure = OutageFailure { task, since_ms, asked, cause, is_probe };
                charge = self.failed(&failure, &rules).await;
            }
            _ => {
                if !is_answered && is_probe {
                    self.stayed_silent().await;
                } else if is_answered && (is_probe || self.is_counting.load(Ordering::Acquire)) {
                    self.got_through(is_probe).await;
                }
            }
        }
        if is_probe {
            self.probed.notify_waiters();
        }
        charge
    }

    /// Counts a failure, and gives how it is charged.
    async fn failed(&self, failure: &OutageFailure<'_>, rules: &HoldRules) -> Charge {
        // The next probe is to be a task that was not tried yet.
        let least =
            if failure.is_probe { rules.pause + rules.pause.min(LONGEST_ASIDE) } else { Duration::ZERO };
        let held = |at_ms, keeps| Charge::Held { at_ms, least, keeps };
        let open = |at_ms| Charge::Below { most: rules.after, at_ms };
        match self.queue.count_outage(&self.consumer, failure).await {
            Ok(OutageCounted { held: Some(wait), is_alone, others_got_through, now_ms }) => {
                self.learned.fetch_add(1, Ordering::AcqRel);
                self.is_counting.store(false, Ordering::Release);
                self.probe.lock().ask_at = Some(Instant::now() + wait);
                let since_ms = self.last.lock().as_ref().map_or(now_ms, |hold| hold.since_ms);
                let until_ms = now_ms + wait.as_millis() as u64;
                let is_news = !self.is_held();
                self.begin(QueueHold { since_ms, until_ms, cause: failure.cause.to_owned() });
                if is_news {
                    wait::request_look(&self.queue.link).await;
                }
                if is_alone { open(now_ms) } else { held(now_ms, others_got_through) }
            }
            // If another attempt has begun the hold meanwhile, its end is not told here.
            Ok(OutageCounted { now_ms, .. }) => {
                self.is_counting.store(true, Ordering::Release);
                open(now_ms)
            }
            Err(error) => {
                tracing::debug!(
                    queue = self.queue.rules.name,
                    error = chain(&error),
                    "could not count a failure for a cause outside"
                );
                if self.is_held() { held(0, false) } else { open(0) }
            }
        }
    }

    async fn got_through(&self, is_probe: bool) {
        match self.queue.end_outage(&self.consumer, is_probe).await {
            Ok(()) => {
                self.is_counting.store(false, Ordering::Release);
                if is_probe {
                    self.learned.fetch_add(1, Ordering::AcqRel);
                    self.end();
                    wait::request_look(&self.queue.link).await;
                }
            }
            Err(error) => tracing::debug!(
                queue = self.queue.rules.name,
                error = chain(&error),
                "could not note that a task got through"
            ),
        }
    }

    /// Notes that the probe ended in the sandbox, by a timeout or a trap. This says nothing about the
    /// service, so the queue stays held. It waits again, because such an attempt is charged.
    async fn stayed_silent(&self) {
        let wait = match self.queue.end_silent_probe(&self.consumer).await {
            Ok(wait) => wait,
            Err(error) => {
                tracing::debug!(
                    queue = self.queue.rules.name,
                    error = chain(&error),
                    "could not note that the probe ended without an answer"
                );
                self.rules.map_or(Duration::ZERO, |rules| rules.pause)
            }
        };
        self.probe.lock().ask_at = Some(Instant::now() + wait);
    }

    /// Gives the probe back if its task, under one of these entries, was stopped without an outcome.
    pub(crate) async fn stopped<'t>(&self, entries: impl Iterator<Item = &'t str>) {
        if self.rules.is_some() && self.take_probe(entries) {
            self.lend(Duration::ZERO).await;
            self.probed.notify_waiters();
        }
    }

    /// Whether one of these entries is the probe of this host, which is no more.
    fn take_probe<'t>(&self, mut entries: impl Iterator<Item = &'t str>) -> bool {
        let mut probe = self.probe.lock();
        let is_probe = match &probe.stage {
            ProbeStage::Runs(probed) | ProbeStage::Claiming(Some(probed)) => {
                entries.any(|entry| entry == probed)
            }
            ProbeStage::Claiming(None) | ProbeStage::None => false,
        };
        if is_probe {
            probe.stage = ProbeStage::None;
        }
        is_probe
    }

    /// Renews the lease of the probe, or gives it back. If this fails, the lease ends by itself.
    async fn lend(&self, lease: Duration) {
        if let Err(error) = self.queue.keep_probe(&self.consumer, lease).await {
            tracing::debug!(
                queue = self.queue.rules.name,
                error = chain(&error),
                "could not renew the lease of the probe"
            );
        }
    }

    fn lease(&self) -> Duration {
        self.queue.rules.lease.max(LEAST_LEASE)
    }
}

impl MayClaim {
    pub(crate) fn is_probe(&self) -> bool {
        self.0.is_some()
    }

    /// The claim is over, and has this number of tasks. The right to try one is given back if there was none.
    pub(crate) async fn end(self, tasks: usize) {
        if let Some(HoldProbe(holding)) = self.0.as_ref().filter(|_| tasks == 0) {
            holding.lend(Duration::ZERO).await;
        }
    }
}

/// The claim is over. Its task, if there is one, is in flight now.
impl Drop for HoldProbe {
    fn drop(&mut self) {
        let mut probe = self.0.probe.lock();
        probe.stage = match std::mem::take(&mut probe.stage) {
            ProbeStage::Claiming(Some(entry)) => ProbeStage::Runs(entry),
            ProbeStage::Claiming(None) => ProbeStage::None,
            other => other,
        };
    }
}
