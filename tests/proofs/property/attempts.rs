//! The ends of attempts: how consumers settle the tasks that they hold, alone and several in one call.
//!
//! In: tasks that a consumer holds, and how each is to end. Out: an error when a reply differs from the
//! reference. Not here: the rules (`reference`), the other operations (`world`).

use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq};
use tqhost::testing::config::QueueRules;
use tqhost::testing::effects::{Effects, OutboxTask, StateChange};
use tqhost::testing::queue::{Ending, EndingSubject, SettleCall, Settled, Settlement, codec};
use tqhost::testing::task::{Field, Outcome, Task};
use tqhost::testing::worker::settle;

use super::End;
use super::look::name_of;
use super::reference::{NewEffects, NewFromOutbox};
use super::world::{HOUR, RECORD, STREAM, Step, World, chosen, failed};

/// A task that a consumer believes to own.
pub struct Held {
    pub task: Task,
    /// It may run: it passed the gate, or is a plain task. A task that may not run can only be released, or
    /// buried as crashed.
    pub begun: bool,
    /// It may have a status.
    pub known: bool,
    /// The gate said that its consumer died while it ran alone.
    pub crashed: bool,
}

/// A call that settled attempts.
#[derive(Clone)]
pub struct Call {
    consumer: String,
    number: u64,
    endings: Vec<Ending>,
    settled: Vec<Settled>,
}

impl World {
    /// Settles some of the tasks that a consumer holds, in one call. They end in these two ways in turn.
    pub async fn end(&mut self, consumer: usize, which: Range<usize>, ends: [End; 2]) -> Step {
        let name = self.consumers[consumer].name.clone();
        let held: Vec<Held> = self.consumers[consumer].held.drain(which).collect();
        let mut endings = Vec::new();
        for (n, held) in held.into_iter().enumerate() {
            let end = ends[n % ends.len()];
            let number = matches!(end, End::Effects { .. } | End::Values { .. }).then(|| self.field());
            endings.push(ending(held, end, number, &self.queue.rules));
        }
        self.settle_and_note(Call { consumer: name, number: 0, endings, settled: Vec::new() }).await
    }

    /// Sends a call again, or settles its attempts by a new call.
    pub async fn settle_again(&mut self, nth: usize) -> Step {
        let Some(call) = chosen(&self.settled, nth) else { return Ok(()) };
        match self.numbers.get(&call.consumer).copied() {
            // It is the same call again: its reply was lost, or it was delayed and arrives after a later one.
            Some(last) if nth.is_multiple_of(2) || last == call.number => {
                let is_last = last == call.number;
                let again = SettleCall { lane: 0, number: call.number };
                let batch: Vec<&Ending> = call.endings.iter().collect();
                let replies = self.queue.settle(&call.consumer, again, &batch).await;
                // Nobody waits for the reply to a call that was delayed.
                if is_last {
                    let replies: Result<Vec<Settled>, _> = replies.map_err(failed)?.into_iter().collect();
                    prop_assert!(replies.map_err(failed)? == call.settled, "the reply that was lost");
                }
                Ok(())
            }
            _ => self.settle_and_note(call).await,
        }
    }

    /// Settles attempts by a new call.
    async fn settle_and_note(&mut self, mut call: Call) -> Step {
        self.calls += 1;
        call.number = self.calls;
        self.numbers.insert(call.consumer.clone(), call.number);
        call.settled = self.settle(&call).await?;
        self.settled.push(call);
        Ok(())
    }

    async fn settle(&mut self, call: &Call) -> Result<Vec<Settled>, TestCaseError> {
        let Call { consumer, number, endings, .. } = call;
        let batch: Vec<&Ending> = endings.iter().collect();
        let call = SettleCall { lane: 0, number: *number };
        let replies = self.queue.settle(consumer, call, &batch).await.map_err(failed)?;
        let settled: Vec<Settled> = replies.into_iter().collect::<Result<_, _>>().map_err(failed)?;
        let mut expected = vec![Settled::Overtaken; batch.len()];
        // The script begins with those in the short form, and among these with those without a result.
        let mut order: Vec<usize> = (0..batch.len()).collect();
        order.sort_by_key(|n| match batch[*n].settlement() {
            Settlement::Complete { result, .. } if batch[*n].is_short() => u8::from(result.is_some()),
            _ => 2,
        });
        for n in order {
            let (EndingSubject::Task(task), settlement) = (batch[n].subject(), batch[n].settlement()) else {
                return Err(TestCaseError::fail("only tasks are settled"));
            };
            let new = new_effects(settlement);
            expected[n] =
                self.reference.settle(consumer, &task.entry, settlement, task.crashes, new.as_ref());
        }
        prop_assert_eq!(&settled, &expected);
        Ok(settled)
    }
}

/// The effects of an attempt that counts, adds to the record, and enqueues a task with the field `number`.
fn effects(number: Field, delayed: bool, key: Option<usize>) -> Effects {
    let mut effects = Effects::default();
    let name = String::from_utf8_lossy(&number.value).into_owned();
    let task = OutboxTask {
        id: format!("outbox-{name}"),
        queue: STREAM.into(),
        fields: vec![number],
        delay: if delayed { HOUR } else { Duration::ZERO },
        key: key.map(|key| format!("k{key}")),
        is_relayed: false,
    };
    effects.increment("count".into(), 1, None).expect("a counter");
    effects.put_record(RECORD.into(), vec![Field { name, value: b"1".to_vec() }]).expect("a record");
    effects.enqueue(task).expect("a task");
    effects
}

/// The effects of an attempt that only sets values. Plain attempts with such effects are settled in the short
/// form.
fn values(number: &Field, first: usize, count: usize) -> Effects {
    let mut effects = Effects::default();
    for n in first..first + count {
        let change = StateChange::Set { value: number.value.clone(), ttl: None };
        effects.change_state(format!("v{n}"), change).expect("a value");
    }
    effects
}

/// The effects that a settlement commits.
fn new_effects(settlement: &Settlement) -> Option<NewEffects> {
    let Settlement::Complete { effects: Some(effects), .. } = settlement else { return None };
    let Some(task) = effects.tasks().first() else {
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let value = |change: &StateChange| match change {
            StateChange::Set { value, .. } => text(value),
            StateChange::Delete | StateChange::Add(_) => String::new(),
        };
        let values = effects.state().iter().map(|(key, change)| (key.clone(), value(change)));
        return Some(NewEffects::Values(values.collect()));
    };
    let name = name_of(task.fields.iter().map(|field| (&field.name, &field.value)), &task.id);
    let key = task.key.as_ref().and_then(|key| key.strip_prefix('k')?.parse().ok());
    let delayed = !task.delay.is_zero();
    Some(NewEffects::Task(NewFromOutbox { name, id: task.id.clone(), delayed, key }))
}

/// The settlement of an attempt, from the function that the host uses. `number` is the field of the task that
/// it enqueues, or the value that it sets.
fn ending(held: Held, end: End, number: Option<Field>, rules: &QueueRules) -> Ending {
    let Held { task, begun, known, crashed } = held;
    let decide = |outcome| settle::decide(outcome, &task, rules, 0.0);
    let completed = |effects: Option<Effects>| {
        decide(Outcome::Completed { result: Some(b"done".into()), effects: effects.map(Box::new) })
    };
    let verdict = match end {
        _ if crashed => settle::crashed(&task),
        _ if !begun => settle::release(&task),
        End::Effects { delayed, key } => completed(number.map(|number| effects(number, delayed, key))),
        End::Values { first, count, has_result } => {
            let effects = number.map(|number| Box::new(values(&number, first, count)));
            decide(Outcome::Completed { result: has_result.then(|| b"done".into()), effects })
        }
        End::Complete => completed(None),
        End::Retry => decide(Outcome::Retry { message: "busy".into(), after: None }),
        End::Defer => decide(Outcome::Defer { message: "not yet".into(), after: HOUR }),
        End::Reject => decide(Outcome::Reject { message: "no".into() }),
        End::Release => settle::release(&task),
    };
    let key = codec::idempotency_key(&task, rules).map(Cow::into_owned);
    Ending::new(
        EndingSubject::Task(Box::new(task)),
        verdict.settlement,
        "plugin".into(),
        Some(Duration::ZERO),
        known,
        key,
    )
}
