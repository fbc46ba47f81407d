//! Knows the hold of one queue: whether something outside is down, and who may try a task.
//!
//! While a queue is held, one task at a time is tried in all hosts: the *probe*.
//!
//! In: how attempts ended, and what the lookout finds in Redis. Out: whether a failure is charged, when the
//! loops that claim may ask for the probe, and a [`MayClaim`] for the loop that got it. A line in the log
//! when the hold begins, and one when it ends.
//!
//! A host learns of a hold by its lookout, or by its own first failure after the hold began. So it begins no
//! more attempts than were running then. The result of a look is ignored if this host has learned something
//! newer while it looked.
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
use crate::queue::{Queue, QueueError, StreamEntry, codec, wait};
use crate::task::{Outcome, Task};

/// The shortest lease of a probe. A host that is killed blocks the next probe for no longer than its lease.
const LEAST_LEASE: Duration = Duration::from_secs(5);
/// A task that failed as the probe comes back after the next probe, so that this one is another task: up to
/// this long after it.
const LONGEST_ASIDE: Duration = Duration::from_secs(60);
/// How often a loop looks whether the probe of this host has ended without an outcome.
const LOOK: Duration = Duration::from_millis(500);

pub(crate) struct Holding {
    rules: Option<HoldRules>,
    queue: Queue,
    consumer: Arc<str>,
    inflight: Arc<Inflight>,
    metrics: Arc<QueueMetrics>,
    /// The hold of the queue, as far as this host knows.
    hold: watch::Sender<Option<QueueHold>>,
    /// How many tasks may start after the last hold.
    ramp: Ramp,
    /// How often this host has learned something without its lookout.
    learned: AtomicU64,
    /// Redis may have a count of failures in a row, which a success has to reset.
    is_counting: AtomicBool,
    probe: Guarded<ProbeState>,
    /// Notified when this host's probe has ended.
    probed: Notify,
}

#[derive(Default)]
struct ProbeState {
    /// When to ask for the probe next. `None`: at once.
    ask_at: Option<Instant>,
    stage: ProbeStage,
    /// When the lease of the probe was renewed.
    renewed: Option<Instant>,
}

/// How far this host's probe is.
#[derive(Default, PartialEq, Eq)]
enum ProbeStage {
    #[default]
    None,
    /// A loop asks for the probe, or claims a task for it. The entry of this task, once it is claimed.
    Claiming(Option<String>),
    /// The task with this entry is the probe, and is in flight.
    Runs(String),
}

/// The right to claim tasks now, until the claim is over. With the state of a held queue, it is for one task,
/// the probe.
pub(crate) struct MayClaim(Option<Arc<Holding>>);

/// How an attempt that failed for a cause outside is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Charge {
    /// As a retry.
    AsUsual,
    /// Not at all, because the queue is held. The task comes back after `least` at the earliest. `at_ms` is
    /// Redis's clock. `keeps_count`: other tasks got through after the task's first failure, so its earlier
    /// failures still count.
    Held { at_ms: u64, least: Duration, keeps_count: bool },
    /// As a retry, if the task has failed `most` times for such a cause before. The queue is open, or other
    /// tasks get through. `at_ms` is Redis's clock.
    AfterSome { most: u32, at_ms: u64 },
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
            hold: watch::Sender::new(None),
            ramp: Ramp::default(),
            learned: AtomicU64::new(0),
            is_counting: AtomicBool::new(false),
            probe: Guarded::default(),
            probed: Notify::new(),
        })
    }

    pub(crate) fn is_held(&self) -> bool {
        self.hold.borrow().is_some()
    }

    /// The hold in words.
    pub(crate) fn in_words(&self) -> Option<String> {
        self.hold.borrow().as_ref().map(|hold| format!("on hold {}", hold.told(clock::now_ms())))
    }

    /// How many tasks may start now; fewer than otherwise for some seconds after a hold.
    pub(crate) fn room_after_hold(&self) -> usize {
        self.ramp.room()
    }

    /// Notes that these entries were claimed, and that `tasks` of them start now. It is called before they
    /// can run, since a held queue runs no task but the probe.
    pub(crate) fn claimed(&self, right: &MayClaim, entries: &[StreamEntry], tasks: usize) {
        debug_assert!(!right.is_probe() || entries.len() <= 1, "a probe is one task");
        if let (true, Some(entry)) = (right.is_probe(), entries.first()) {
            self.probe.lock().stage = ProbeStage::Claiming(Some(entry.id.clone()));
        }
        self.ramp.started(tasks);
    }

    /// How often this host has learned something without its lookout, for [`Self::note_found`].
    pub(crate) fn learned(&self) -> u64 {
        self.learned.load(Ordering::Acquire)
    }

    /// Notes the result of a look. [`Self::learned`] returned `learned` when the look began.
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
        // A hold that is known already may have a later end now.
        if !self.hold.send_if_modified(|known| known.replace(hold).is_none()) {
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
        // The loops that wait for the end of the hold then look at the ramp.
        self.ramp.begin();
        if self.hold.send_if_modified(|hold| hold.take().is_some()) {
            self.probe.lock().ask_at = None;
            let queue = self.queue.rules.name.as_str();
            tracing::info!(queue, "the queue is held no longer: a task got through, or it was resumed");
        }
    }

    /// Waits until the queue is open, or until this host may ask for the probe.
    pub(crate) async fn may_probe(&self) {
        let mut hold = self.hold.subscribe();
        while hold.borrow_and_update().is_some() {
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
                _ = hold.changed() => {}
                () = self.probed.notified() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// Whether this host may ask for the probe now.
    pub(crate) fn may_ask(&self) -> bool {
        !self.is_probing() && self.probe.lock().ask_at.is_none_or(|at| at <= Instant::now())
    }

    /// Whether the task of this entry must not run: the queue is held, and the task is not the probe. It was
    /// read before this host knew of the hold.
    pub(crate) fn stops(&self, entry: &str) -> bool {
        let is_probe =
            matches!(&self.probe.lock().stage, ProbeStage::Claiming(Some(probe)) if probe == entry);
        self.is_held() && !is_probe
    }

    /// Whether this host has a probe. A probe that is not in flight any more, and had no outcome, ends here.
    fn is_probing(&self) -> bool {
        let mut probe = self.probe.lock();
        if matches!(&probe.stage, ProbeStage::Runs(entry) if !self.inflight.contains(entry)) {
            probe.stage = ProbeStage::None;
        }
        probe.stage != ProbeStage::None
    }

    /// Asks for the right to claim `count` tasks. `None`: this host may not claim them now.
    pub(crate) async fn ask(self: &Arc<Self>, count: usize) -> Option<MayClaim> {
        if !self.is_held() {
            return Some(MayClaim(None));
        }
        if count != 1 || !self.may_ask() {
            return None;
        }
        self.probe.lock().stage = ProbeStage::Claiming(None);
        // Dropping the right ends the stage.
        let right = MayClaim(Some(self.clone()));
        match self.queue.ask_probe(&self.consumer, self.lease()).await {
            Ok(ProbeAnswer::Granted) => {
                self.probe.lock().renewed = Some(Instant::now());
                Some(right)
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
                self.log(&error, "could not ask for the probe");
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
            let is_due = probe.renewed.is_none_or(|at| at.elapsed() >= lease / 3);
            if !matches!(probe.stage, ProbeStage::Runs(_)) || !is_due {
                return;
            }
            probe.renewed = Some(Instant::now());
        }
        let lease = if self.is_probing() { lease } else { Duration::ZERO };
        self.renew_probe(lease).await;
    }

    /// Notes the outcomes of one call, a single task or a batch. Returns how failures for a cause outside are
    /// charged.
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
        let any_completed = each.clone().any(|(_, outcome)| matches!(outcome, Outcome::Completed { .. }));
        let mut charge = Charge::AfterSome { most: rules.after, at_ms: 0 };
        if let Some((task, cause, after)) = down.next()
            && !any_completed
        {
            let asked = down.filter_map(|(_, _, after)| after).chain(after).max();
            // Nobody knows which task of a batch makes the service fail.
            let is_single = each.count() == 1;
            let since_ms = if is_single { codec::outages(task).since_ms } else { 0 };
            let failure = OutageFailure { task, since_ms, asked, cause, is_probe };
            charge = self.failed(&failure, &rules).await;
        } else if each.clone().all(|(_, outcome)| matches!(outcome, Outcome::Failed { .. })) {
            if is_probe {
                self.probe_was_silent(&rules).await;
            }
        } else if is_probe || self.is_counting.load(Ordering::Acquire) {
            self.got_through(is_probe).await;
        }
        if is_probe {
            self.probed.notify_waiters();
        }
        charge
    }

    /// Counts a failure for a cause outside. Returns how it is charged.
    async fn failed(&self, failure: &OutageFailure<'_>, rules: &HoldRules) -> Charge {
        // The next probe is to be another task.
        let aside = rules.pause + rules.pause.min(LONGEST_ASIDE);
        let least = if failure.is_probe { aside } else { Duration::ZERO };
        let held = |at_ms, keeps_count| Charge::Held { at_ms, least, keeps_count };
        let open = |at_ms| Charge::AfterSome { most: rules.after, at_ms };
        match self.queue.count_outage(&self.consumer, failure).await {
            Ok(OutageCounted { held: Some(wait), is_alone, others_got_through, now_ms }) => {
                self.learned.fetch_add(1, Ordering::AcqRel);
                self.is_counting.store(false, Ordering::Release);
                self.probe.lock().ask_at = Some(Instant::now() + wait);
                let since_ms = self.hold.borrow().as_ref().map(|hold| hold.since_ms);
                let (is_news, since_ms) = (since_ms.is_none(), since_ms.unwrap_or(now_ms));
                let until_ms = now_ms + wait.as_millis() as u64;
                self.begin(QueueHold { since_ms, until_ms, cause: failure.cause.to_owned() });
                if is_news {
                    wait::request_look(&self.queue.link).await;
                }
                if is_alone { open(now_ms) } else { held(now_ms, others_got_through) }
            }
            // A hold that another attempt has begun meanwhile does not end because of this answer.
            Ok(OutageCounted { now_ms, .. }) => {
                self.is_counting.store(true, Ordering::Release);
                open(now_ms)
            }
            Err(error) => {
                self.log(&error, "could not count a failure for a cause outside");
                if self.is_held() { held(0, false) } else { open(0) }
            }
        }
    }

    /// Notes that a task got through to the service.
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
            Err(error) => self.log(&error, "could not note that a task got through"),
        }
    }

    /// Notes that the probe ended in the sandbox, by a timeout or a trap. This says nothing about the
    /// service, so the queue stays held. It waits again, because such an attempt is charged.
    async fn probe_was_silent(&self, rules: &HoldRules) {
        let noted = self.queue.end_silent_probe(&self.consumer).await;
        let wait = noted.unwrap_or_else(|error| {
            self.log(&error, "could not note that the probe ended without an answer");
            rules.pause
        });
        self.probe.lock().ask_at = Some(Instant::now() + wait);
    }

    /// Gives the probe back if its task, under one of these entries, was stopped without an outcome.
    pub(crate) async fn stopped<'t>(&self, entries: impl Iterator<Item = &'t str>) {
        if self.rules.is_some() && self.take_probe(entries) {
            self.renew_probe(Duration::ZERO).await;
            self.probed.notify_waiters();
        }
    }

    /// Whether one of these entries is this host's probe. If so, the probe has ended.
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

    /// Renews the lease of the probe. A lease of zero gives the probe back. If this fails, the lease ends by
    /// itself.
    async fn renew_probe(&self, lease: Duration) {
        if let Err(error) = self.queue.keep_probe(&self.consumer, lease).await {
            self.log(&error, "could not renew the lease of the probe");
        }
    }

    fn log(&self, error: &QueueError, message: &str) {
        tracing::debug!(queue = self.queue.rules.name, error = chain(error), "{message}");
    }

    fn lease(&self) -> Duration {
        self.queue.rules.lease.max(LEAST_LEASE)
    }
}

impl MayClaim {
    pub(crate) fn is_probe(&self) -> bool {
        self.0.is_some()
    }

    /// Ends the claim, which has claimed this number of tasks. A probe without a task is given back.
    pub(crate) async fn end(self, tasks: usize) {
        if let Some(holding) = self.0.as_ref().filter(|_| tasks == 0) {
            holding.renew_probe(Duration::ZERO).await;
        }
    }
}

impl Drop for MayClaim {
    /// Ends the claim. Its task, if there is one, is in flight now.
    fn drop(&mut self) {
        let Some(holding) = &self.0 else { return };
        let mut probe = holding.probe.lock();
        probe.stage = match std::mem::take(&mut probe.stage) {
            ProbeStage::Claiming(Some(entry)) => ProbeStage::Runs(entry),
            ProbeStage::Claiming(None) => ProbeStage::None,
            other => other,
        };
    }
}
