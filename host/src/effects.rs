//! The effects of an attempt: what is to happen in Redis when its task completes, and not otherwise.
//!
//! In: calls of the handler. Out: [`Effects`], which the step that completes the task commits. Reads of the
//! attempt see its own writes, laid over what Redis holds.
//!
//! Not here: the interfaces that guests see (`sandbox::host`), reading from Redis (`queue::effects`), and the
//! commit (`queue::settle`).

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use thiserror::Error;

use crate::field::Field;
use crate::guarded::Guarded;

/// The most children of all flows of one task. Redis keeps them until the commit.
const MAX_CHILDREN: usize = 10_000;
/// The most bytes of these children.
const MAX_STAGED_BYTES: usize = 64 << 20;
/// The most bytes of one child.
const MAX_CHILD_BYTES: usize = 4 << 20;
/// The most effects of one task. One script commits them all, and Redis does nothing else meanwhile.
const MAX_EFFECTS: usize = 1000;
/// The most bytes of all effects of one task: names, values, and [`FIXED_BYTES`] for each effect and field.
const MAX_BYTES: usize = 8 << 20;
/// The bytes that each effect, and each field of a task or a record, counts beside its names and values.
///
/// They stand for the structures that hold them in the host. A record with one field takes most: a node of
/// the tree of its fields has 11 places of 48 bytes, its own place among the records has 72 bytes in a node
/// that may be half empty, and the allocator gives a key, a name and a value at least 32 bytes each. That
/// makes 768 bytes for an effect and a field. A task takes about 350 bytes, and any further field 160.
///
/// They also bound for how long a commit keeps Redis busy, which depends more on the number of fields than on
/// their bytes: with them, [`MAX_BYTES`] are at most 20,971 effects and fields
/// (docs/decisions/0011-effects.md).
pub(crate) const FIXED_BYTES: usize = 400;
/// The end of the errors for a task whose effects are too many.
const WAY_OUT: &str = "divide the work among several tasks, as a flow does";
/// The most bytes of a key of `state` and `records`.
const MAX_KEY_BYTES: usize = 512;
/// Counters stay below this, so that Lua compares them exactly and no sum of two overflows 64 bits.
const COUNTER_BOUND: i64 = 1_000_000_000_000_000_000;

/// Longer times of handlers are shortened to this: Redis refuses times that do not fit into its clock.
const LONGEST_TIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// A time that a handler gave in milliseconds, at most [`LONGEST_TIME`].
pub(crate) fn bounded_time(ms: u64) -> Duration {
    Duration::from_millis(ms).min(LONGEST_TIME)
}

/// Why an effect, or a read, was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EffectError {
    #[error("{0}")]
    UnknownQueue(String),
    #[error("{0}")]
    NotPermitted(String),
    #[error("{0}")]
    TooLarge(String),
    #[error("{0}")]
    Unavailable(String),
}

pub(crate) type EffectReply<T> = BoxFuture<'static, Result<T, EffectError>>;

/// Answers what attempts of one queue ask about data outside of them.
///
/// Calls for a flow are repeated until a moment (`until`) while Redis does not answer.
pub trait EffectSource: Debug + Send + Sync {
    /// The committed value of a key of the plugin's state; refused if it has more bytes than `most`.
    fn state(&self, key: &str, most: u64) -> EffectReply<Option<Vec<u8>>>;
    /// The committed fields of a record; none for a key that does not exist. Refused if it takes more bytes
    /// than `most`.
    fn record(&self, key: &str, most: u64) -> EffectReply<Option<Vec<Field>>>;
    /// Keeps the children of a flow until the commit. They expire if there is none.
    fn stage(&self, flow: &FlowName, children: Vec<OutboxTask>, until: Instant) -> EffectReply<()>;
    /// Deletes staged children of flows that were not committed. It does not wait.
    fn unstage(&self, flows: Vec<FlowName>);
    /// The results of the children of a flow, in their order; refused if they have more bytes than `most`.
    fn results(&self, flow: &str, most: u64, until: Instant) -> EffectReply<Vec<ChildResult>>;
    /// Checks that a task may be enqueued. Returns it with an id.
    fn new_task(
        &self,
        queue: &str,
        fields: Vec<Field>,
        delay: Duration,
        key: Option<String>,
    ) -> Result<OutboxTask, EffectError>;
}

impl OutboxTask {
    /// The bytes of memory that it takes, about.
    pub(crate) fn weight(&self) -> usize {
        size_of::<OutboxTask>() + self.fields.len() * size_of::<Field>() + self.bytes()
    }

    /// The bytes that count for it in the bound of a task's effects.
    fn cost(&self) -> usize {
        cost(self.fields.len(), self.bytes())
    }

    /// The bytes of its fields and its key.
    pub(crate) fn bytes(&self) -> usize {
        let fields = self.fields.iter().map(Field::bytes).sum::<usize>();
        fields + self.key.as_ref().map_or(0, String::len)
    }
}

/// The result of one child of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildResult {
    pub id: String,
    pub queue: String,
    pub value: Option<Vec<u8>>,
}

/// A task that is enqueued by the step that completes another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxTask {
    pub id: String,
    /// The queue's name in the configuration.
    pub queue: String,
    pub fields: Vec<Field>,
    pub delay: Duration,
    /// Its idempotency key.
    pub key: Option<String>,
    /// Whether its queue lies in another slot of a cluster.
    pub is_relayed: bool,
}

/// A task that is enqueued when all children of its flow have completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    pub then: OutboxTask,
    /// The number of children. They are staged in Redis.
    pub children: usize,
}

/// The task that joins a flow, by which the flow is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowName {
    pub queue: String,
    pub id: String,
}

/// The flows of one task whose children may be staged.
#[derive(Debug)]
struct StagedFlows {
    source: Arc<dyn EffectSource>,
    flows: Guarded<Vec<FlowName>>,
    are_committed: AtomicBool,
}

/// Deletes the staged children of a task's flows when the last copy is dropped, unless they were committed.
#[derive(Debug, Clone, Default)]
struct Staging(Option<Arc<StagedFlows>>);

impl Staging {
    fn add(&mut self, flow: FlowName, source: &Arc<dyn EffectSource>) {
        let staged = self.0.get_or_insert_with(|| {
            let source = source.clone();
            Arc::new(StagedFlows { source, flows: Guarded::default(), are_committed: AtomicBool::new(false) })
        });
        staged.flows.lock().push(flow);
    }

    fn flows(&self) -> Vec<FlowName> {
        let flows = |staged: &Arc<StagedFlows>| staged.flows.lock().clone();
        self.0.as_ref().map(flows).unwrap_or_default()
    }
}

impl Drop for StagedFlows {
    fn drop(&mut self) {
        if !*self.are_committed.get_mut() {
            self.source.unstage(std::mem::take(self.flows.get_mut()));
        }
    }
}

impl PartialEq for Staging {
    fn eq(&self, other: &Staging) -> bool {
        self.flows() == other.flows()
    }
}

impl Eq for Staging {}

/// The change of one value of the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateChange {
    /// `ttl` counts from the commit. None: it is kept until it is deleted.
    Set {
        value: Vec<u8>,
        ttl: Option<Duration>,
    },
    Delete,
    /// Adds to the number that is stored at the commit, and leaves its time to live as it is.
    Add(i64),
}

/// The change of one record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordChange {
    /// The hash is deleted before `fields` are set.
    pub is_deleted: bool,
    pub fields: BTreeMap<String, Vec<u8>>,
    /// The time to live from the commit on. Zero: it is kept until it is deleted.
    pub ttl: Option<Duration>,
}

/// All effects of one task, as its attempt has left them so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Effects {
    tasks: Vec<OutboxTask>,
    flows: Vec<Flow>,
    state: BTreeMap<String, StateChange>,
    records: BTreeMap<String, RecordChange>,
    bytes: usize,
    /// The bytes of the children of all flows.
    staged_bytes: usize,
    staging: Staging,
}

impl Effects {
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of effects.
    pub fn len(&self) -> usize {
        self.tasks.len() + self.flows.len() + self.state.len() + self.records.len()
    }

    /// The bytes of all names and values, and `FIXED_BYTES` for each effect and each field.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn tasks(&self) -> &[OutboxTask] {
        &self.tasks
    }

    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// Whether all effects set values of the state that do not expire.
    pub fn only_sets_values(&self) -> bool {
        let keeps = |change| matches!(change, &StateChange::Set { ttl: None, .. });
        self.state.len() == self.len() && self.state.values().all(keeps)
    }

    /// Whether a promoter has work after the commit.
    pub fn has_delays(&self) -> bool {
        !self.flows.is_empty() || self.tasks.iter().any(|task| !task.delay.is_zero())
    }

    pub fn state(&self) -> &BTreeMap<String, StateChange> {
        &self.state
    }

    pub fn records(&self) -> &BTreeMap<String, RecordChange> {
        &self.records
    }

    pub fn enqueue(&mut self, task: OutboxTask) -> Result<(), EffectError> {
        self.grow(1, task.cost())?;
        self.tasks.push(task);
        Ok(())
    }

    /// Adds a flow whose children are staged next. If they are not committed, `source` is to delete them.
    pub fn fan_out(
        &mut self,
        then: OutboxTask,
        children: &[OutboxTask],
        source: &Arc<dyn EffectSource>,
    ) -> Result<FlowName, EffectError> {
        if let Some(elsewhere) = children.iter().chain([&then]).find(|task| task.is_relayed) {
            return Err(EffectError::NotPermitted(format!(
                "queue `{}` may lie in another slot of the cluster, and a flow stays within one: give the \
                 streams of its queues and of this one the same {{tag}}",
                elsewhere.queue
            )));
        }
        let too_large = |why| Err(EffectError::TooLarge(why));
        if let Some(bytes) = children.iter().map(OutboxTask::bytes).find(|bytes| *bytes > MAX_CHILD_BYTES) {
            return too_large(format!("a child has at most {MAX_CHILD_BYTES} bytes, this one has {bytes}"));
        }
        let all = self.flows.iter().map(|flow| flow.children).sum::<usize>() + children.len();
        if all > MAX_CHILDREN {
            let why = format!("the flows of a task have at most {MAX_CHILDREN} children, these have {all}");
            return too_large(why);
        }
        let bytes = self.staged_bytes + children.iter().map(OutboxTask::bytes).sum::<usize>();
        if bytes > MAX_STAGED_BYTES {
            let why = format!(
                "the children of a task's flows have at most {MAX_STAGED_BYTES} bytes, these have {bytes}"
            );
            return too_large(why);
        }
        self.grow(1, then.cost())?;
        let name = FlowName { queue: then.queue.clone(), id: then.id.clone() };
        self.staged_bytes = bytes;
        self.staging.add(name.clone(), source);
        self.flows.push(Flow { then, children: children.len() });
        Ok(name)
    }

    /// Notes that the effects were committed, so that the children of the flows stay.
    pub fn mark_committed(&self) {
        if let Staging(Some(staged)) = &self.staging {
            staged.are_committed.store(true, Ordering::Relaxed);
        }
    }

    /// The value of a key as this attempt sees it, over the `committed` one.
    pub fn state_over(&self, key: &str, committed: Option<Vec<u8>>) -> Result<Option<Vec<u8>>, EffectError> {
        Ok(match self.state.get(key) {
            None => committed,
            Some(StateChange::Set { value, .. }) => Some(value.clone()),
            Some(StateChange::Delete) => None,
            Some(StateChange::Add(delta)) => {
                Some(sum(key, committed.as_deref(), *delta)?.to_string().into_bytes())
            }
        })
    }

    /// Whether this attempt has set or deleted the key, so that its committed value does not matter any more.
    pub fn hides_state(&self, key: &str) -> bool {
        matches!(self.state.get(key), Some(StateChange::Set { .. } | StateChange::Delete))
    }

    pub fn change_state(&mut self, key: String, change: StateChange) -> Result<(), EffectError> {
        check_key(&key)?;
        let size = |change: &StateChange| match change {
            StateChange::Set { value, .. } => cost(0, key.len() + value.len()),
            StateChange::Delete | StateChange::Add(_) => cost(0, key.len()),
        };
        let before = self.state.get(&key).map(size);
        self.replace(before, size(&change))?;
        self.state.insert(key, change);
        Ok(())
    }

    /// Adds to a counter. Returns the value that this attempt sees from then on.
    pub fn increment(
        &mut self,
        key: String,
        delta: i64,
        committed: Option<Vec<u8>>,
    ) -> Result<i64, EffectError> {
        let seen = self.state_over(&key, committed)?;
        let value = sum(&key, seen.as_deref(), delta)?;
        let set_to = |ttl| StateChange::Set { value: value.to_string().into_bytes(), ttl };
        let change = match self.state.get(&key) {
            Some(StateChange::Set { ttl, .. }) => set_to(*ttl),
            Some(StateChange::Delete) => set_to(None),
            Some(StateChange::Add(before)) => StateChange::Add(bounded(&key, before.checked_add(delta))?),
            None => StateChange::Add(bounded(&key, Some(delta))?),
        };
        self.change_state(key, change)?;
        Ok(value)
    }

    /// The fields of a record as this attempt sees them, over the `committed` ones.
    pub fn record_over(&self, key: &str, committed: Option<Vec<Field>>) -> Option<Vec<Field>> {
        let Some(change) = self.records.get(key) else { return committed };
        let kept = committed.filter(|_| !change.is_deleted).unwrap_or_default();
        let mut fields: Vec<Field> =
            kept.into_iter().filter(|field| !change.fields.contains_key(&field.name)).collect();
        fields.extend(
            change.fields.iter().map(|(name, value)| Field { name: name.clone(), value: value.clone() }),
        );
        (!fields.is_empty()).then_some(fields)
    }

    pub fn put_record(&mut self, key: String, fields: Vec<Field>) -> Result<(), EffectError> {
        self.change_record(key, |change| {
            change.fields.extend(fields.into_iter().map(|field| (field.name, field.value)));
        })
    }

    pub fn delete_record(&mut self, key: String) -> Result<(), EffectError> {
        self.change_record(key, |change| *change = RecordChange { is_deleted: true, ..Default::default() })
    }

    pub fn expire_record(&mut self, key: String, ttl: Duration) -> Result<(), EffectError> {
        self.change_record(key, |change| change.ttl = Some(ttl))
    }

    fn change_record(
        &mut self,
        key: String,
        change: impl FnOnce(&mut RecordChange),
    ) -> Result<(), EffectError> {
        check_key(&key)?;
        let size = |change: &RecordChange| {
            let bytes = change.fields.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
            cost(change.fields.len(), key.len() + bytes)
        };
        let before = self.records.get(&key);
        let mut after = before.cloned().unwrap_or_default();
        change(&mut after);
        // Redis takes at most 7,000 values of one call of a script.
        if after.fields.len() > MAX_EFFECTS {
            let why = format!("the record has {} fields, {MAX_EFFECTS} are allowed", after.fields.len());
            return Err(EffectError::TooLarge(why));
        }
        self.replace(before.map(size), size(&after))?;
        self.records.insert(key, after);
        Ok(())
    }

    /// Counts an effect that costs `after` in the place of one that cost `before`, if there was one.
    fn replace(&mut self, before: Option<usize>, after: usize) -> Result<(), EffectError> {
        let bytes = self.bytes;
        self.bytes -= before.unwrap_or(0);
        debug_assert!(before.unwrap_or(0) <= bytes, "an effect costs no more than all of them");
        self.grow(usize::from(before.is_none()), after).inspect_err(|_| self.bytes = bytes)
    }

    /// Counts further effects and bytes, unless they exceed the bounds.
    fn grow(&mut self, effects: usize, bytes: usize) -> Result<(), EffectError> {
        if self.len() + effects > MAX_EFFECTS {
            let why =
                format!("a task has at most {MAX_EFFECTS} effects: tasks, values and records; {WAY_OUT}");
            return Err(EffectError::TooLarge(why));
        }
        if self.bytes + bytes > MAX_BYTES {
            let why = format!(
                "the effects of a task have at most {MAX_BYTES} bytes, with {FIXED_BYTES} for each effect \
                 and each field, these have {}; {WAY_OUT}",
                self.bytes + bytes
            );
            return Err(EffectError::TooLarge(why));
        }
        self.bytes += bytes;
        Ok(())
    }
}

/// The bytes that an effect with this many fields counts. `bytes` are those of its names and values.
fn cost(fields: usize, bytes: usize) -> usize {
    FIXED_BYTES * (1 + fields) + bytes
}

fn check_key(key: &str) -> Result<(), EffectError> {
    if (1..=MAX_KEY_BYTES).contains(&key.len()) {
        return Ok(());
    }
    Err(EffectError::TooLarge(format!("a key has 1 to {MAX_KEY_BYTES} bytes, this one has {}", key.len())))
}

/// The counter `seen` after `delta` was added to it.
fn sum(key: &str, seen: Option<&[u8]>, delta: i64) -> Result<i64, EffectError> {
    let before = match seen {
        None => Some(0),
        Some(value) => std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok()),
    };
    let Some(before) = before else {
        return Err(EffectError::Unavailable(format!("the value of `{key}` is not a whole number")));
    };
    bounded(key, before.checked_add(delta))
}

fn bounded(key: &str, value: Option<i64>) -> Result<i64, EffectError> {
    value
        .filter(|value| (-COUNTER_BOUND + 1..COUNTER_BOUND).contains(value))
        .ok_or_else(|| EffectError::TooLarge(format!("the counter `{key}` would have more than 18 digits")))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::queue::NoEffects;

    fn set(text: &str) -> StateChange {
        StateChange::Set { value: text.into(), ttl: None }
    }

    fn bytes(text: &str) -> Option<Vec<u8>> {
        Some(text.into())
    }

    #[test]
    fn an_attempt_sees_its_own_writes() {
        let mut effects = Effects::default();
        assert_eq!(effects.state_over("a", bytes("old")), Ok(bytes("old")));
        effects.change_state("a".into(), set("new")).unwrap();
        assert_eq!(effects.state_over("a", bytes("old")), Ok(bytes("new")));
        effects.change_state("a".into(), StateChange::Delete).unwrap();
        assert_eq!(effects.state_over("a", bytes("old")), Ok(None));
        assert!(effects.hides_state("a") && !effects.hides_state("b"));
    }

    #[test]
    fn a_counter_is_added_to_what_is_stored_unless_the_attempt_set_it() {
        let mut effects = Effects::default();
        assert_eq!(effects.increment("n".into(), 2, bytes("5")), Ok(7));
        assert_eq!(effects.increment("n".into(), 3, bytes("5")), Ok(10));
        assert_eq!(effects.state()["n"], StateChange::Add(5));
        effects.change_state("n".into(), StateChange::Delete).unwrap();
        assert_eq!(effects.increment("n".into(), 4, bytes("5")), Ok(4));
        assert_eq!(effects.state()["n"], set("4"));
        assert!(effects.increment("m".into(), 1, bytes("x")).is_err());
        assert!(effects.increment("m".into(), COUNTER_BOUND, None).is_err());
        assert_eq!(effects.len(), 1, "a refused effect leaves nothing");
    }

    #[test]
    fn a_record_is_merged_until_it_is_deleted() {
        let field = |name: &str, value: &str| Field { name: name.into(), value: value.into() };
        let committed = || Some(vec![field("a", "1"), field("b", "2")]);
        let mut effects = Effects::default();
        effects.put_record("k".into(), vec![field("b", "3")]).unwrap();
        assert_eq!(effects.record_over("k", committed()), Some(vec![field("a", "1"), field("b", "3")]));
        effects.delete_record("k".into()).unwrap();
        assert_eq!(effects.record_over("k", committed()), None);
        effects.put_record("k".into(), vec![field("c", "4")]).unwrap();
        assert_eq!(effects.record_over("k", committed()), Some(vec![field("c", "4")]));
    }

    #[test]
    fn effects_are_bounded_and_a_refused_one_is_not_counted() {
        let mut effects = Effects::default();
        let half = "x".repeat(MAX_BYTES / 2);
        effects.change_state("a".into(), set(&half)).unwrap();
        for _ in 0..3 {
            effects.change_state("a".into(), set(&half)).unwrap();
        }
        assert!(effects.change_state("b".into(), set(&half)).is_err());
        assert_eq!((effects.len(), effects.bytes()), (1, cost(0, MAX_BYTES / 2 + 1)));
        for n in 1..MAX_EFFECTS {
            effects.change_state(n.to_string(), StateChange::Delete).unwrap();
        }
        assert!(effects.change_state("one more".into(), StateChange::Delete).is_err());
        assert!(effects.change_state(String::new(), StateChange::Delete).is_err());
        assert!(effects.change_state("k".repeat(MAX_KEY_BYTES + 1), StateChange::Delete).is_err());
    }

    #[test]
    fn the_fixed_bytes_cover_what_holds_effects_and_fields() {
        // Lists and nodes of trees may be half empty. The smallest block of the allocator has 32 bytes.
        let task = 2 * size_of::<OutboxTask>() + 4 * 32;
        let value = 2 * size_of::<(String, StateChange)>() + 2 * 32;
        let field = 2 * size_of::<(String, Vec<u8>)>() + 2 * 32;
        let small_record =
            2 * size_of::<(String, RecordChange)>() + 11 * size_of::<(String, Vec<u8>)>() + 3 * 32;
        assert!(task.max(value).max(field) <= FIXED_BYTES && small_record <= 2 * FIXED_BYTES);
    }

    /// A task with one field, whose value has this many bytes.
    pub(crate) fn task(bytes: usize) -> OutboxTask {
        let fields = vec![Field { name: String::new(), value: vec![0; bytes] }];
        let (id, queue, delay) = ("1".into(), "q".into(), Duration::ZERO);
        OutboxTask { id, queue, fields, delay, key: None, is_relayed: false }
    }

    #[test]
    fn the_flows_of_a_task_have_bounds_and_a_refused_one_is_not_counted() {
        let source: Arc<dyn EffectSource> = Arc::new(NoEffects::default());
        let refused = |effects: &mut Effects, children: &[OutboxTask], then| {
            let before = effects.clone();
            let refused = effects.fan_out(task(then), children, &source);
            assert_eq!((&*effects, effects.staged_bytes), (&before, before.staged_bytes));
            matches!(refused, Err(EffectError::TooLarge(_)))
        };
        let mut effects = Effects::default();
        assert!(refused(&mut effects, &[task(MAX_CHILD_BYTES + 1)], 1));
        assert!(refused(&mut effects, &[task(1)], MAX_BYTES + 1));
        let large = vec![task(MAX_CHILD_BYTES); MAX_STAGED_BYTES / MAX_CHILD_BYTES];
        assert!(effects.fan_out(task(1), &large, &source).is_ok());
        assert!(refused(&mut effects, &[task(1)], 1));

        let mut effects = Effects::default();
        let most = vec![task(0); MAX_CHILDREN];
        assert!(effects.fan_out(task(1), &most[1..], &source).is_ok());
        assert!(refused(&mut effects, &most[..2], 1));
        assert!(effects.fan_out(task(1), &most[..1], &source).is_ok());
        assert_eq!((effects.len(), effects.bytes()), (2, 2 * cost(1, 1)));
    }
}
