//! Sends settlements to Redis until each one is answered.
//!
//! In: ended attempts. Out: calls that settle all that wait, up to a bound. So a busy queue needs few round
//! trips, and the attempts of an idle queue do not wait.
//!
//! There are two lanes, each with at most one call on its way. A call whose reply was lost is sent again with
//! the same number, and gets the reply of the first call. A settlement that Redis refuses is sent again in a
//! later call, and does not hold up the others. If Redis refuses a call because of one key or one size, the
//! call is halved until the attempt with it stands alone, and only this one fails. An attempt that may be too
//! large for Redis has a call of its own. It fails without being sent if Redis tells a limit that it exceeds.
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

/// Settlements in one call.
const MAX_BATCH: usize = 200;
/// After a call with this many settlements, the next call waits for [`GATHER`] to collect many again.
const BUSY: usize = 8;
const GATHER: Duration = Duration::from_millis(1);
/// Bytes after which a call takes no more settlements. Each effect and each field counts too, so that this
/// bounds for how long a call keeps Redis busy (docs/decisions/0011-effects.md).
const MAX_BYTES: usize = 1 << 20;

/// The source of ended attempts. The lanes take them one after the other.
pub(crate) type EndedAttempts = Arc<Mutex<mpsc::UnboundedReceiver<EndedAttempt>>>;

/// One lane. It ends when all attempts are settled and no more can arrive, or when it has to give up.
pub(crate) struct Settler {
    pub shared: Arc<SharedQueue>,
    pub lane: usize,
    pub ended: EndedAttempts,
    /// Told of settlements that Redis refuses for longer than a lease.
    pub pulse: FetchPulse,
    /// Cancelled when no more attempts can be sent.
    pub drained: CancellationToken,
    /// Cancelled when the lane has to give up. Tasks that are not settled then stay pending, and are
    /// reclaimed.
    pub give_up: CancellationToken,
}

impl Settler {
    /// Runs the lane. The `pace` of all lanes of a queue logs an outage once.
    pub(crate) async fn run(self, pace: Pace) {
        self.settle_all(pace).await;
        self.shared.notices.sum_up(&self.shared.name, true);
    }

    async fn settle_all(&self, mut pace: Pace) {
        let mut refused: Vec<EndedAttempt> = Vec::new();
        let mut again_at = Instant::now();
        let (mut number, mut last) = (0, 0);
        loop {
            let mut batch = tokio::select! {
                biased;
                () = self.give_up.cancelled() => break,
                () = tokio::time::sleep_until(again_at), if !refused.is_empty() => take(&mut refused),
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
                        take(&mut refused)
                    }
                },
            };
            if last >= BUSY && batch.len() < MAX_BATCH {
                tokio::time::sleep(GATHER).await;
                // If the other lane waits for ended attempts, that lane takes them.
                if let Ok(mut waiting) = self.ended.try_lock() {
                    fill(&mut batch, || waiting.try_recv().ok());
                }
            }
            last = batch.len();
            match self.carry_out(batch, &mut number, &mut pace).await {
                Ok(failed) => {
                    if let Some(wait) = failed.iter().map(|(_, wait)| *wait).max() {
                        again_at = Instant::now() + wait;
                        refused.extend(failed.into_iter().map(|(ended, _)| ended));
                    } else if refused.is_empty() {
                        pace.succeeded();
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

    /// Settles attempts. Returns the ones to send again, each with the time to wait before. The last call of
    /// the lane had this `number`.
    ///
    /// If the lane has to give up, the error holds all attempts that are not settled.
    async fn carry_out(
        &self,
        batch: Vec<EndedAttempt>,
        number: &mut u64,
        pace: &mut Pace,
    ) -> Result<Vec<(EndedAttempt, Duration)>, Vec<EndedAttempt>> {
        let (large, batch): (Vec<EndedAttempt>, Vec<EndedAttempt>) =
            batch.into_iter().partition(|ended| ended.ending.is_large());
        let mut refused = Vec::new();
        let mut calls = Vec::with_capacity(1 + large.len());
        for ended in large {
            let (queue, consumer) = (&self.shared.queue, &self.shared.consumer);
            match queue.oversize(consumer, &ended.ending).await {
                Some(why) => refused.push(self.too_large(ended, &why, pace)),
                None => calls.push(vec![ended]),
            }
        }
        if !batch.is_empty() {
            calls.push(batch);
        }
        while let Some(batch) = calls.pop() {
            match self.call(batch, number, pace).await {
                Ok(again) => refused.extend(again),
                Err(NotSettled::Refused(mut batch, refusal)) => {
                    let half = batch.split_off(batch.len() / 2);
                    if !batch.is_empty() {
                        calls.extend([half, batch]);
                        continue;
                    }
                    refused.extend(half.into_iter().map(|ended| match &refusal {
                        CallRefusal::Denied(why) => {
                            (self.decided_again(ended, FailureKind::Effects, why), Duration::ZERO)
                        }
                        CallRefusal::TooLarge(why) => self.too_large(ended, why, pace),
                    }));
                }
                Err(NotSettled::GaveUp(batch)) => {
                    let refused = refused.into_iter().map(|(ended, _)| ended);
                    return Err(batch
                        .into_iter()
                        .chain(calls.into_iter().flatten())
                        .chain(refused)
                        .collect());
                }
            }
        }
        Ok(refused)
    }

    /// Sends one call until Redis replies. Returns the attempts that are to be sent again, each with the time
    /// to wait before.
    ///
    /// A call that Redis refuses for its size may have been carried out by an earlier try. So Redis is asked
    /// what became of it before its attempts are settled in another way.
    async fn call(
        &self,
        mut batch: Vec<EndedAttempt>,
        number: &mut u64,
        pace: &mut Pace,
    ) -> Result<Vec<(EndedAttempt, Duration)>, NotSettled> {
        let (queue, consumer) = (&self.shared.queue, &*self.shared.consumer);
        *number += 1;
        let call = SettleCall { lane: self.lane, number: *number };
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
            // The keys of an attempt without effects are the host's own, so the call is worth another try.
            if error.is_denied_key() && batch.iter().any(|ended| ended.ending.effects().is_some()) {
                return Err(NotSettled::Refused(batch, CallRefusal::Denied(chain(&error))));
            }
            tokio::select! {
                () = tokio::time::sleep(self.failed(&error, pace)) => {}
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
        let mut refused = Vec::new();
        for (ended, reply) in batch.into_iter().zip(replies) {
            match reply {
                Ok(settled) => self.settled(ended, settled),
                Err(error) => refused.push(match error.conflict() {
                    Some(why) => (self.decided_again(ended, FailureKind::Effects, why), Duration::ZERO),
                    None => (ended, self.failed(&error, pace)),
                }),
            }
        }
        self.shared.settled.notify_one();
        Ok(refused)
    }

    /// Notes an error, and gives how long to wait before the next try.
    fn failed(&self, error: &QueueError, pace: &mut Pace) -> Duration {
        self.note_failure(chain(error), !error.may_pass());
        pace.failed(error)
    }

    fn note_failure(&self, error: String, is_refused: bool) {
        {
            let mut unsettled = self.shared.unsettled.lock();
            let lane = unsettled[self.lane].get_or_insert_with(Unsettled::now);
            lane.error = error;
            lane.is_refused |= is_refused;
        }
        self.tell_unsettled();
    }

    /// Notes which settlements of this lane are still refused after a call.
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
        self.tell_unsettled();
    }

    /// Tells of settlements that Redis refuses for longer than a lease. The fetcher tells of outages.
    fn tell_unsettled(&self) {
        let lease = self.shared.queue.rules.lease;
        let mut unsettled = self.shared.unsettled.lock();
        for lane in unsettled.iter_mut().flatten() {
            if lane.is_overdue(lease) && !std::mem::replace(&mut lane.is_told, true) {
                let (queue, error) = (self.shared.name.as_ref(), &lane.error);
                let seconds = lane.since.elapsed().as_secs();
                tracing::error!(queue, seconds, error, "Redis refuses to settle tasks; they stay unsettled");
            }
        }
        let overdue = unsettled.iter().flatten().find(|lane| lane.is_overdue(lease));
        self.pulse.unsettled(overdue.map(|lane| format!("tasks cannot be settled: {}", lane.error)));
    }

    /// An attempt whose output is too large for Redis counts as failed. One that failed already is settled
    /// again: the limit is lower than when its task came, and may be raised.
    fn too_large(&self, ended: EndedAttempt, why: &str, pace: &mut Pace) -> (EndedAttempt, Duration) {
        if ended.ending.may_fail() {
            return (self.decided_again(ended, FailureKind::OutputTooLarge, why), Duration::ZERO);
        }
        self.note_failure(why.to_owned(), true);
        let wait = pace.failed(&self.shared.queue.refused("settle", why));
        (ended, wait)
    }

    /// A completed attempt whose effects or result Redis refuses for good counts as failed.
    fn decided_again(&self, ended: EndedAttempt, kind: FailureKind, why: &str) -> EndedAttempt {
        let mut ended = ended;
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
        ended
    }

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
            Settled::Duplicate => self.shared.dropped_duplicate(&ending.subject().id()),
        }
        if self.shared.queue.rules.on_end.is_relayed() {
            self.shared.left.notify_one();
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
            self.tell(&ending, label);
        }
        drop(owned);
    }

    /// Logs a failure, as far as there is a line for it.
    fn tell(&self, ending: &Ending, label: SettledAs) {
        let (queue, notices) = (&*self.shared.name, &self.shared.notices);
        let task = || ending.subject().id();
        let attempt = match ending.subject() {
            EndingSubject::Task(task) => Some(task.attempt),
            EndingSubject::Malformed(_) => None,
        };
        // A task that did not run has no version to blame.
        let version = ending.version();
        match ending.settlement() {
            Settlement::Bury { reason, error } => {
                if let Some(more) = notices.admit(NoticeKind::Dead) {
                    let (task, reason) = (task(), reason.into_str());
                    tracing::warn!(
                        queue,
                        task = &*task,
                        attempt,
                        version,
                        reason,
                        error,
                        more,
                        "dead-lettered"
                    );
                }
            }
            Settlement::Park { delay, error, .. } if is_failure(label) => {
                if let Some(more) = notices.admit(NoticeKind::Retry) {
                    let (task, outcome, again_in_ms) = (task(), label.into_str(), ms(*delay));
                    tracing::warn!(
                        queue,
                        task = &*task,
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

    /// Tells of tasks that an attempt enqueued: their aliases are noted, and the promoters of other queues
    /// learn of those that are delayed.
    fn enqueued(&self, effects: &Effects) {
        if effects.tasks().iter().any(|task| task.is_relayed) {
            self.shared.left.notify_one();
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

/// Why a call settled none of its attempts.
enum NotSettled {
    GaveUp(Vec<EndedAttempt>),
    /// Redis refuses one of them, or all of them together.
    Refused(Vec<EndedAttempt>, CallRefusal),
}

/// Why Redis refuses a call, whenever it is sent.
enum CallRefusal {
    /// A key of the effects is denied.
    Denied(String),
    TooLarge(String),
}

/// Adds attempts, up to the bounds of a call.
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
fn take(refused: &mut Vec<EndedAttempt>) -> Vec<EndedAttempt> {
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
            assert_eq!((take(&mut batch).len(), batch.len()), (together, 5 - together), "{fields} {written}");
        }
    }
}
