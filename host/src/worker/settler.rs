//! Sends settlements to Redis until each one is answered.
//!
//! In: ended attempts. Out: calls that each settle all attempts that wait, up to a bound. So a busy queue
//! needs few round trips, and the attempts of an idle queue do not wait.
//!
//! There are two lanes, each with at most one call on its way. A call whose reply was lost is sent again with
//! the same number, and gets the reply of the first call. A settlement that Redis refuses is sent again in a
//! later call, and does not hold up the others. If Redis refuses a whole call because of a key or its size,
//! the call is halved until the attempt at fault is alone in a call, and only this attempt fails. An attempt
//! that may be too large for Redis has a call of its own. It fails without being sent if Redis tells a limit
//! that it exceeds.
//!
//! Settlements that Redis refuses for longer than a lease make the host unready, and are logged as an error.
//!
//! Not here: what the settlement is (`settle`), how much may wait (`ended`).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ended::EndedAttempt;
use super::notices::NoticeKind;
use super::pace::Pace;
use super::settle;
use super::shared::{SharedQueue, Unsettled};
use crate::admin::FetchPulse;
use crate::chain::chain;
use crate::clock::ms;
use crate::effects::Effects;
use crate::queue::repeat::Cuts;
use crate::queue::{Ending, EndingSubject, QueueError, SettleCall, Settled, Settlement, wait};
use crate::task::{FailureKind, SettledAs};

/// The most settlements of one call.
const MAX_BATCH: usize = 200;
/// After a call with this many settlements, the next call waits for [`GATHER`] to collect many again.
const BUSY: usize = 8;
const GATHER: Duration = Duration::from_millis(1);
/// A call of this many bytes takes no more settlements. Each effect and each field counts as some bytes, so
/// this bounds for how long a call keeps Redis busy (docs/decisions/0011-effects.md).
const MAX_BYTES: usize = 1 << 20;

/// The source of ended attempts. The lanes take them one after the other.
pub(crate) type EndedAttempts = Arc<Mutex<mpsc::UnboundedReceiver<EndedAttempt>>>;

/// One lane. It ends when all attempts are settled and no more can arrive, or when it has to give up.
pub(crate) struct Settler {
    pub shared: Arc<SharedQueue>,
    pub lane: usize,
    pub ended: EndedAttempts,
    /// The number of the lane's last call.
    pub last_call: u64,
    /// The lanes of a queue log an outage together.
    pub pace: Pace,
    /// Has the error while Redis refuses settlements for longer than a lease.
    pub pulse: FetchPulse,
    /// Cancelled when no more attempts can be sent.
    pub drained: CancellationToken,
    /// Cancelled when the lane has to give up. Tasks that are not settled then stay pending, and are
    /// reclaimed.
    pub give_up: CancellationToken,
}

impl Settler {
    pub(crate) async fn run(mut self) {
        self.settle_all().await;
        self.shared.notices.sum_up(&self.shared.name, true);
    }

    async fn settle_all(&mut self) {
        let mut refused: Vec<EndedAttempt> = Vec::new();
        let mut again_at = Instant::now();
        let mut last_size = 0;
        loop {
            let mut batch = tokio::select! {
                biased;
                () = self.give_up.cancelled() => break,
                () = tokio::time::sleep_until(again_at), if !refused.is_empty() => take_batch(&mut refused),
                () = self.shared.notices.due(), if self.lane == 0 => {
                    self.shared.notices.sum_up(&self.shared.name, false);
                    continue;
                }
                batch = self.next() => match batch {
                    Some(batch) => batch,
                    None if refused.is_empty() => return,
                    // No more ended attempts can arrive, so only the refused ones are left.
                    None => {
                        tokio::select! {
                            () = tokio::time::sleep_until(again_at) => {}
                            () = self.give_up.cancelled() => break,
                        }
                        take_batch(&mut refused)
                    }
                },
            };
            if last_size >= BUSY && batch.len() < MAX_BATCH {
                tokio::time::sleep(GATHER).await;
                // While the other lane waits for ended attempts, it holds the lock, and takes them.
                if let Ok(mut waiting) = self.ended.try_lock() {
                    fill(&mut batch, || waiting.try_recv().ok());
                }
            }
            last_size = batch.len();
            match self.settle(batch).await {
                Ok(retries) => {
                    if let Some(wait) = retries.iter().map(|retry| retry.wait).max() {
                        again_at = Instant::now() + wait;
                        refused.extend(retries.into_iter().map(|retry| retry.ended));
                    } else if refused.is_empty() {
                        self.pace.succeeded();
                    }
                    self.note_refused(&mut refused);
                }
                Err(batch) => {
                    refused.extend(batch);
                    break;
                }
            }
        }
        if !refused.is_empty() {
            let queue = &self.shared.queue.rules.name;
            tracing::warn!(
                queue,
                tasks = refused.len(),
                "stopped before these tasks could be settled; another host will run them again"
            );
        }
    }

    /// Takes the attempts that wait, up to the bounds of a call. `None`: there are none, and no more can
    /// arrive.
    async fn next(&self) -> Option<Vec<EndedAttempt>> {
        let mut waiting = self.ended.lock().await;
        let first = tokio::select! {
            biased;
            ended = waiting.recv() => ended?,
            () = self.drained.cancelled() => waiting.try_recv().ok()?,
        };
        let mut batch = vec![first];
        fill(&mut batch, || waiting.try_recv().ok());
        Some(batch)
    }

    /// Settles attempts. Returns those to send again. If the lane has to give up, the error holds all
    /// attempts that are not settled.
    async fn settle(&mut self, batch: Vec<EndedAttempt>) -> Result<Vec<Retry>, Vec<EndedAttempt>> {
        let (large, batch): (Vec<EndedAttempt>, Vec<EndedAttempt>) =
            batch.into_iter().partition(|ended| ended.ending.is_large());
        let mut retries = Vec::new();
        let mut calls = Vec::with_capacity(1 + large.len());
        for ended in large {
            match self.shared.queue.oversize(&self.shared.consumer, &ended.ending).await {
                Some(why) => retries.push(self.too_large(ended, &why)),
                None => calls.push(vec![ended]),
            }
        }
        if !batch.is_empty() {
            calls.push(batch);
        }
        while let Some(batch) = calls.pop() {
            match self.call(batch).await {
                Ok(again) => retries.extend(again),
                Err(NotSettled::Refused(mut batch, refusal)) => {
                    let half = batch.split_off(batch.len() / 2);
                    if !batch.is_empty() {
                        calls.extend([half, batch]);
                        continue;
                    }
                    retries.extend(half.into_iter().map(|ended| match &refusal {
                        CallRefusal::Denied(why) => self.as_failed(ended, FailureKind::Effects, why),
                        CallRefusal::TooLarge(why) => self.too_large(ended, why),
                    }));
                }
                Err(NotSettled::GaveUp(mut unsettled)) => {
                    unsettled.extend(calls.into_iter().flatten());
                    unsettled.extend(retries.into_iter().map(|retry| retry.ended));
                    return Err(unsettled);
                }
            }
        }
        Ok(retries)
    }

    /// Sends one call until Redis replies. Returns the attempts to send again.
    ///
    /// A call that Redis refuses for its size may have been carried out by an earlier try. So Redis is asked
    /// for the results of such a call before its attempts are settled in another way.
    async fn call(&mut self, mut batch: Vec<EndedAttempt>) -> Result<Vec<Retry>, NotSettled> {
        let shared = self.shared.clone();
        let (queue, consumer) = (&shared.queue, &*shared.consumer);
        self.last_call += 1;
        let call = SettleCall { lane: self.lane, number: self.last_call };
        let (mut refusal, mut cuts) = (None, Cuts::default());
        let replies = loop {
            for ended in &mut batch {
                // After half a lease, another host may own the task.
                if ended.owned.age() >= queue.rules.lease / 2 {
                    ended.ending.may_be_known();
                }
            }
            let endings: Vec<&Ending> = batch.iter().map(|ended| &ended.ending).collect();
            let asked = async {
                match refusal {
                    Some(_) => queue.settled_before(consumer, call, &endings).await,
                    None => queue.settle(consumer, call, &endings).await.map(Some),
                }
            };
            let error = tokio::select! {
                biased;
                replies = asked => match replies {
                    Ok(Some(replies)) => break replies,
                    Ok(None) => match refusal {
                        Some(refusal) => return Err(NotSettled::Refused(batch, refusal)),
                        None => continue,
                    },
                    Err(error) => error,
                },
                () = self.give_up.cancelled() => return Err(NotSettled::GaveUp(batch)),
            };
            // Without effects, a call has the host's own keys only, so it is worth another try.
            if error.is_denied_key() && batch.iter().any(|ended| ended.ending.effects().is_some()) {
                return Err(NotSettled::Refused(batch, CallRefusal::Denied(chain(&error))));
            }
            let wait = self.failed(&error);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.give_up.cancelled() => return Err(NotSettled::GaveUp(batch)),
            }
            let is_large = batch.iter().any(|ended| ended.ending.is_large());
            let is_too_large = cuts.show_its_size(&error, is_large, &queue.link).await;
            if error.is_oversize() || is_too_large {
                let bytes: usize = batch.iter().map(|ended| ended.ending.bytes()).sum();
                let why = format!("Redis refuses a call of {bytes} bytes: {}", chain(&error));
                refusal = Some(CallRefusal::TooLarge(why));
            }
        };
        let mut retries = Vec::new();
        for (ended, reply) in batch.into_iter().zip(replies) {
            match reply {
                Ok(settled) => self.settled(ended, settled),
                Err(error) => retries.push(match error.conflict() {
                    Some(why) => self.as_failed(ended, FailureKind::Effects, why),
                    None => Retry { ended, wait: self.failed(&error) },
                }),
            }
        }
        shared.settled.notify_one();
        Ok(retries)
    }

    /// Notes an error. Returns how long to wait before the next try.
    fn failed(&mut self, error: &QueueError) -> Duration {
        self.note_failure(chain(error), !error.may_pass());
        self.pace.failed(error)
    }

    fn note_failure(&self, error: String, is_refused: bool) {
        {
            let mut unsettled = self.shared.unsettled.lock();
            let lane = unsettled[self.lane].get_or_insert_with(Unsettled::now);
            lane.last_error = error;
            lane.is_refused |= is_refused;
        }
        self.log_unsettled();
    }

    /// Notes since when the settlements of this lane are refused that are `refused` after a call.
    fn note_refused(&self, refused: &mut [EndedAttempt]) {
        if refused.is_empty() && self.shared.unsettled.lock()[self.lane].is_none() {
            return;
        }
        let now = Instant::now();
        let since = refused.iter_mut().map(|ended| *ended.refused_since.get_or_insert(now)).min();
        {
            let mut unsettled = self.shared.unsettled.lock();
            match (&mut unsettled[self.lane], since) {
                (Some(lane), Some(since)) => lane.since = since,
                (lane, _) => *lane = None,
            }
        }
        self.log_unsettled();
    }

    /// Logs settlements that Redis refuses for longer than a lease, and makes the host unready. The fetcher
    /// does so in an outage.
    fn log_unsettled(&self) {
        let lease = self.shared.queue.rules.lease;
        let mut unsettled = self.shared.unsettled.lock();
        for lane in unsettled.iter_mut().flatten() {
            if lane.is_overdue(lease) && !std::mem::replace(&mut lane.is_logged, true) {
                let (queue, error) = (self.shared.name.as_ref(), &lane.last_error);
                let seconds = lane.since.elapsed().as_secs();
                tracing::error!(queue, seconds, error, "Redis refuses to settle tasks; they stay unsettled");
            }
        }
        let overdue = unsettled.iter().flatten().find(|lane| lane.is_overdue(lease));
        self.pulse.unsettled(overdue.map(|lane| format!("tasks cannot be settled: {}", lane.last_error)));
    }

    /// Decides on an attempt that is too large for Redis. A completed attempt counts as failed. An attempt
    /// that failed already is sent again: the limit is lower than when its task came, and may be raised.
    fn too_large(&mut self, ended: EndedAttempt, why: &str) -> Retry {
        if ended.ending.may_fail() {
            return self.as_failed(ended, FailureKind::OutputTooLarge, why);
        }
        self.note_failure(why.to_owned(), true);
        let wait = self.pace.failed(&self.shared.queue.refused("settle", why));
        Retry { ended, wait }
    }

    /// Settles a completed attempt as failed, because Redis refuses its effects or result for good.
    fn as_failed(&self, mut ended: EndedAttempt, kind: FailureKind, why: &str) -> Retry {
        let jitter = fastrand::f64() * 2.0 - 1.0;
        if let EndingSubject::Task(task) = ended.ending.subject() {
            let rules = &self.shared.queue.rules;
            let decision = settle::refused(kind, why, task, rules, jitter);
            if let Some(more) = self.shared.notices.admit(NoticeKind::Refused) {
                tracing::warn!(
                    queue = rules.name,
                    task = task.id,
                    kind = kind.into_str(),
                    why,
                    more,
                    "completed, but Redis refuses what it would write; the attempt counts as failed"
                );
            }
            ended.label = decision.label;
            ended.ending.settle_as(decision.settlement, kind);
        }
        Retry { ended, wait: Duration::ZERO }
    }

    /// Counts and logs the result of a settlement, and wakes the loops that work on what it left in Redis.
    fn settled(&self, ended: EndedAttempt, settled: Settled) {
        let EndedAttempt { ending, label, owned, .. } = ended;
        let is_done = matches!(settled, Settled::Done | Settled::Unfinished);
        if settled == Settled::Unfinished
            && let Some(more) = self.shared.notices.admit(NoticeKind::Unfinished)
        {
            tracing::error!(
                queue = self.shared.name.as_ref(),
                task = &*ending.subject().id(),
                more,
                "the task has ended, but its flow or the next task of its key was not told: its status says \
                 why (`unfinished`). `tqhost doctor --fix` tells them, with a configuration of all the queues"
            );
        }
        match settled {
            Settled::Done | Settled::Unfinished => self.shared.metrics.settled(label),
            Settled::Overtaken => tracing::debug!(task = &*ending.subject().id(), "was settled before"),
            Settled::Duplicate => self.shared.count_duplicate(&ending.subject().id()),
        }
        if self.shared.queue.rules.on_end.is_relayed() {
            self.shared.relay_wanted.notify_one();
        }
        match ending.settlement() {
            Settlement::Park { .. } => self.shared.parked.notify_one(),
            Settlement::Complete { effects: Some(effects), .. } => {
                if is_done {
                    effects.mark_committed();
                }
                self.enqueued(effects);
            }
            _ => {}
        }
        if is_done {
            self.log_failure(&ending, label);
        }
        drop(owned);
    }

    /// Logs an attempt that failed, if there is a line for it.
    fn log_failure(&self, ending: &Ending, label: SettledAs) {
        let (queue, notices) = (&*self.shared.name, &self.shared.notices);
        let subject = ending.subject();
        let id = subject.id();
        let task = &*id;
        let attempt = match subject {
            EndingSubject::Task(task) => Some(task.attempt),
            EndingSubject::Malformed(_) => None,
        };
        // A task that did not run has no version to blame.
        let version = ending.version();
        match ending.settlement() {
            Settlement::Bury { reason, error } => {
                if let Some(more) = notices.admit(NoticeKind::Dead) {
                    let reason = reason.into_str();
                    tracing::warn!(queue, task, attempt, version, reason, error, more, "dead-lettered");
                }
            }
            Settlement::Park { delay, error, .. } if is_failure(label) => {
                if let Some(more) = notices.admit(NoticeKind::Retry) {
                    let (outcome, again_in_ms) = (label.into_str(), ms(*delay));
                    tracing::warn!(
                        queue,
                        task,
                        attempt,
                        version,
                        outcome,
                        error,
                        again_in_ms,
                        more,
                        "an attempt failed; the task is tried again"
                    );
                }
            }
            _ => {}
        }
    }

    /// Notes the aliases of the tasks that an attempt has enqueued, and asks all hosts to look for the
    /// delayed ones.
    fn enqueued(&self, effects: &Effects) {
        if effects.tasks().iter().any(|task| task.is_relayed) {
            self.shared.relay_wanted.notify_one();
        }
        let aliased = self.shared.queue.aliased(effects);
        if !aliased.is_empty() {
            let queue = self.shared.queue.clone();
            drop(self.shared.runners.spawn(async move {
                if let Err(error) = queue.note_outbox_aliases(&aliased).await {
                    let (queue, error) = (&queue.rules.name, chain(&error));
                    tracing::debug!(
                        queue,
                        error,
                        "new tasks are found by their alias once they are delivered"
                    );
                }
            }));
        }
        if effects.has_delays() {
            let link = self.shared.queue.link.clone();
            drop(self.shared.runners.spawn(async move { wait::request_look(&link).await }));
        }
    }
}

/// Whether a task that comes back does so because its attempt failed.
fn is_failure(label: SettledAs) -> bool {
    matches!(label, SettledAs::Retried | SettledAs::GivenBack | SettledAs::Unavailable)
}

/// An attempt that is to be sent again, not before the end of `wait`.
struct Retry {
    ended: EndedAttempt,
    wait: Duration,
}

/// Why a call settled none of its attempts.
enum NotSettled {
    /// The lane has to give up.
    GaveUp(Vec<EndedAttempt>),
    /// Redis refuses one of the attempts, or all of them together.
    Refused(Vec<EndedAttempt>, CallRefusal),
}

/// Why Redis refuses a call for good.
enum CallRefusal {
    /// The user of Redis may not use a key of the effects.
    Denied(String),
    TooLarge(String),
}

/// Adds attempts to a batch, up to the bounds of a call.
fn fill(batch: &mut Vec<EndedAttempt>, mut next: impl FnMut() -> Option<EndedAttempt>) {
    let mut bytes: usize = batch.iter().map(|ended| ended.ending.bytes()).sum();
    while batch.len() < MAX_BATCH
        && bytes < MAX_BYTES
        && let Some(ended) = next()
    {
        bytes += ended.ending.bytes();
        batch.push(ended);
    }
}

/// Takes as many refused attempts as fit into one call.
fn take_batch(refused: &mut Vec<EndedAttempt>) -> Vec<EndedAttempt> {
    let (mut batch, mut rest) = (Vec::new(), std::mem::take(refused).into_iter());
    fill(&mut batch, || rest.next());
    *refused = rest.collect();
    batch
}

#[cfg(test)]
mod tests {
    use super::super::capacity::Capacity;
    use super::super::ended::Room;
    use super::super::inflight::Inflight;
    use super::super::inflight::tests::own;
    use super::*;
    use crate::queue::StreamEntry;
    use crate::task::Field;

    /// The end of a task with this many fields, which writes as many into a record.
    fn ending(fields: usize, written: usize) -> Ending {
        let field = |n: usize| Field { name: n.to_string(), value: Vec::new() };
        let mut effects = Effects::default();
        effects.put_record("k".into(), (0..written).map(field).collect()).expect("few enough");
        let fields = vec![(Vec::new(), Vec::new()); fields];
        let entry = StreamEntry { id: "1-0".into(), fields, deliveries: 1 };
        let settlement = Settlement::Complete { result: None, effects: Some(Box::new(effects)) };
        Ending::new(EndingSubject::Malformed(entry), settlement, "plugin".into(), None, false, None)
    }

    #[tokio::test]
    async fn a_call_takes_fewer_attempts_if_these_have_many_fields_also_when_it_is_sent_again() {
        let (table, capacity) = (Arc::new(Inflight::default()), Capacity::new(None).queue(1, 1));
        let room = Room::new(1);
        for (fields, written, together) in [(1, 1, 5), (1, 1000, 3), (1000, 1, 3)] {
            let (sender, mut waiting) = mpsc::unbounded_channel();
            for n in 0..5 {
                let held = own(&table, &capacity, &format!("{n}-0")).expect("a new entry");
                let ended = room.ended(ending(fields, written), SettledAs::Completed, held).await;
                sender.send(ended.expect("there is room")).expect("it is taken below");
            }
            let mut batch = Vec::new();
            fill(&mut batch, || waiting.try_recv().ok());
            assert_eq!(batch.len(), together, "{fields} {written}");
            while let Ok(ended) = waiting.try_recv() {
                batch.push(ended);
            }
            assert_eq!(
                (take_batch(&mut batch).len(), batch.len()),
                (together, 5 - together),
                "{fields} {written}"
            );
        }
    }
}
