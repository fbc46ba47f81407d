//! The effects of attempts in Redis: answers what attempts read, checks what they enqueue, and turns their
//! effects into keys and arguments of `scripts/settle.lua`.
//!
//! Not here: the buffer of an attempt (`crate::effects`), the commit itself (`settle`).

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::codec;
use super::error::QueueResult;
use super::handle::{Queue, millis};
use super::keys::{FlowKeys, QueueKeys};
use super::produce::{self, NewTask};
use super::repeat;
use super::reply;
use super::script::{Part, ScriptCall};
use super::value::idempotency_key;
use crate::chain::chain;
use crate::config::{self, TargetQueue};
use crate::effects::{
    ChildResult, EffectError, EffectReply, EffectSource, Effects, Flow, FlowName, OutboxTask, RecordChange,
    StateChange,
};
use crate::guarded::Guarded;
use crate::task::Field;

/// A queue counts as full when this many of its tasks wait to be taken to other slots.
const MOST_WAITING: u64 = 10_000;
/// How long the node of another queue may take to tell how full that queue is.
const ANSWER: Duration = Duration::from_secs(1);

/// How long an attempt waits for a value or a record. Most failovers, and slots that move, take less time. It
/// is worth the wait, because an attempt that fails is charged.
const PATIENCE: Duration = Duration::from_secs(10);

/// Answers attempts of one queue from Redis.
pub(crate) struct QueueEffects {
    queue: Queue,
    /// The host's own runtime drives the connections, because a busy guest would delay them on its runtime.
    runtime: Handle,
}

impl QueueEffects {
    /// Call it on the runtime that drives the connections.
    pub(crate) fn new(queue: Queue) -> QueueEffects {
        QueueEffects { queue, runtime: Handle::current() }
    }

    /// Calls `read` on the host's runtime. While Redis is away, the call is repeated until `until`.
    fn read<T: Send + 'static, F: Future<Output = QueueResult<T>> + Send + 'static>(
        &self,
        until: Instant,
        read: impl Fn(Queue) -> F + Send + Sync + 'static,
    ) -> EffectReply<T> {
        let queue = self.queue.clone();
        let repeated = async move { repeat::until(until, &queue.link, false, || read(queue.clone())).await };
        let reading = self.runtime.spawn(repeated);
        let read = async {
            let read = reading.await.map_err(|_| stops())?;
            read.map_err(|error| EffectError::Unavailable(chain(&error)))
        };
        read.boxed()
    }
}

impl fmt::Debug for QueueEffects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueEffects").field("queue", &self.queue.rules.name).finish_non_exhaustive()
    }
}

impl EffectSource for QueueEffects {
    fn state(&self, key: &str, most: u64) -> EffectReply<Option<Vec<u8>>> {
        let too_large = too_large("value", key, most);
        let key = self.queue.keys.state(&self.queue.rules.plugin, key);
        let read = self.read(Instant::now() + PATIENCE, move |queue| {
            let key = key.clone();
            async move {
                const WHAT: &str = "read a value of the state";
                let size = queue.link.command(WHAT, redis::cmd("STRLEN").arg(&key)).await?;
                if queue.shaped(WHAT, reply::count(&size))? > most {
                    return Ok(None);
                }
                let value = queue.link.command(WHAT, redis::cmd("GET").arg(key)).await?;
                queue.shaped(WHAT, reply::optional_bytes(value)).map(Some)
            }
        });
        async move { read.await?.ok_or(too_large) }.boxed()
    }

    fn record(&self, key: &str, most: u64) -> EffectReply<Option<Vec<Field>>> {
        let key = key.to_owned();
        let too_large = too_large("record", &key, most);
        let read = self.read(Instant::now() + PATIENCE, move |queue| {
            let key = key.clone();
            async move {
                const WHAT: &str = "read a record";
                // A record takes more memory in Redis than its bytes. If the user may not run this command,
                // nothing bounds the records of other programs.
                let size = queue.link.command(WHAT, redis::cmd("MEMORY").arg("USAGE").arg(&key)).await;
                if size.is_ok_and(|size| reply::count(&size).is_ok_and(|size| size > most)) {
                    return Ok(None);
                }
                let pairs = reply::pairs(queue.link.command(WHAT, redis::cmd("HGETALL").arg(key)).await?);
                let pairs = queue.shaped(WHAT, pairs)?;
                if pairs.is_empty() {
                    return Ok(Some(None));
                }
                let field = |(name, value): (Vec<u8>, Vec<u8>)| Field {
                    name: String::from_utf8_lossy(&name).into_owned(),
                    value,
                };
                Ok(Some(Some(pairs.into_iter().map(field).collect())))
            }
        });
        async move { read.await?.ok_or(too_large) }.boxed()
    }

    /// If the attempt ends meanwhile, nobody waits for the reply: the staging stops and deletes its children.
    fn stage(&self, flow: &FlowName, children: Vec<OutboxTask>, until: Instant) -> EffectReply<()> {
        let queue = self.queue.clone();
        let Some(keys) = queue.flow_keys(flow) else {
            return std::future::ready(Err(EffectError::UnknownQueue(flow.queue.clone()))).boxed();
        };
        let (mut sender, receiver) = oneshot::channel();
        self.runtime.spawn(async move {
            let staged = tokio::select! {
                biased;
                () = sender.closed() => None,
                staged = queue.stage(&keys, &children, until) => Some(staged),
            };
            if staged.is_none_or(|staged| sender.send(staged).is_err()) {
                unstage(&queue, &[keys]).await;
            }
        });
        let staged = async {
            let staged = receiver.await.map_err(|_| stops())?;
            staged.map_err(|error| EffectError::Unavailable(chain(&error)))
        };
        staged.boxed()
    }

    fn unstage(&self, flows: Vec<FlowName>) {
        let queue = self.queue.clone();
        let keys: Vec<FlowKeys> = flows.iter().filter_map(|flow| queue.flow_keys(flow)).collect();
        self.runtime.spawn(async move { unstage(&queue, &keys).await });
    }

    fn results(&self, flow: &str, most: u64, until: Instant) -> EffectReply<Vec<ChildResult>> {
        let queue = &self.queue;
        let Some(id) = queue.keys.flow_of(flow.as_bytes()) else {
            let why = format!("{flow} is no flow of queue `{}`", queue.rules.name);
            return std::future::ready(Err(EffectError::Unavailable(why))).boxed();
        };
        let keys = queue.keys.flow(&id);
        let read = self.read(until, move |queue| {
            let keys = keys.clone();
            async move { queue.results(&keys, most).await }
        });
        async move { read.await? }.boxed()
    }

    fn new_task(
        &self,
        queue: &str,
        fields: Vec<Field>,
        delay: Duration,
        key: Option<String>,
    ) -> Result<OutboxTask, EffectError> {
        new_task(&self.queue.rules, queue, fields, delay, key)
    }
}

/// The error of a call whose task on the host's runtime has ended without a result.
fn stops() -> EffectError {
    EffectError::Unavailable("the host stops".into())
}

/// Deletes staged children. If that fails, they expire.
async fn unstage(queue: &Queue, flows: &[FlowKeys]) {
    if let Err(error) = queue.unstage(flows).await {
        let queue = &queue.rules.name;
        tracing::debug!(queue, error = chain(&error), "could not delete staged children; they expire");
    }
}

fn too_large(what: &str, key: &str, most: u64) -> EffectError {
    EffectError::TooLarge(format!(
        "the {what} `{key}` does not fit into the {most} bytes of memory that the handler may still use"
    ))
}

/// Makes a new task for `queue`, with an id, after checking that attempts under these rules may enqueue it.
pub(crate) fn new_task(
    rules: &config::QueueRules,
    queue: &str,
    fields: Vec<Field>,
    delay: Duration,
    key: Option<String>,
) -> Result<OutboxTask, EffectError> {
    let Some(target) = rules.enqueue_to.iter().find(|target| target.name == queue) else {
        let why = format!("queue `{queue}` is not in `enqueue_to` of queue `{}`", rules.name);
        return Err(EffectError::NotPermitted(why));
    };
    if target.is_strict && !delay.is_zero() {
        let why = format!("queue `{queue}` runs its tasks in a strict order, and takes none with a delay");
        return Err(EffectError::NotPermitted(why));
    }
    let refused = |why: produce::NotATask| EffectError::NotPermitted(why.to_string());
    let task = NewTask::new(fields, delay).map_err(refused)?;
    let task = match key {
        Some(key) => task.with_key(key).map_err(refused)?,
        None => task,
    };
    Ok(task.into_outbox(target))
}

/// Adds an effect to a call as scripts take it: its kind, and the keys and arguments of this kind.
pub(super) fn with_effect<T>(call: ScriptCall<T>, name: &'static str, effect: &Part) -> ScriptCall<T> {
    call.arg(name, effect.of.trim_start_matches("effects.")).part(name, effect)
}

impl Queue {
    /// The effects of an ended attempt as parts of a call of settle.lua, in the order in which they commit.
    pub(super) fn effect_calls(&self, effects: Option<&Effects>) -> Vec<Part> {
        let Some(effects) = effects else { return Vec::new() };
        let state = effects.state().iter().map(|(key, change)| {
            let key = self.keys.state(&self.rules.plugin, key);
            match change {
                StateChange::Set { value, ttl } => {
                    let set = Part::of("effects.S").key("key", key);
                    set.arg("value", value).arg("ttl", ttl.map_or(0, millis))
                }
                StateChange::Delete => Part::of("effects.D").key("key", key),
                StateChange::Add(delta) => Part::of("effects.A").key("key", key).arg("delta", delta),
            }
        });
        let records = effects.records().iter().map(|(key, change)| record_call(key, change));
        let tasks = effects.tasks().iter().filter_map(|task| self.task_call(task));
        let flows = effects.flows().iter().filter_map(|flow| self.flow_call(flow));
        state.chain(records).chain(tasks).chain(flows).collect()
    }

    /// A queue that this one enqueues to, with its keys.
    pub(super) fn target(&self, name: &str) -> Option<(&TargetQueue, QueueKeys)> {
        let target = self.rules.enqueue_to.iter().find(|target| target.name == name)?;
        Some((target, QueueKeys::new(&target.stream, target.dead_letter.as_deref())))
    }

    /// The keys of a flow. None: its queue is not configured any more, which the check of its task has
    /// excluded.
    fn flow_keys(&self, flow: &FlowName) -> Option<FlowKeys> {
        self.target(&flow.queue).map(|(_, keys)| keys.flow(&flow.id))
    }

    /// None: the queue is not configured any more, which the check of the task has excluded.
    fn flow_call(&self, flow: &Flow) -> Option<Part> {
        let (target, keys) = self.target(&flow.then.queue)?;
        let names = keys.flow(&flow.then.id);
        let mut fields = outbox_fields(&flow.then);
        fields.push(codec::raw("tq-joins", &names.about));
        let call = Part::of("effects.F")
            .key("about", names.about)
            .key("children", names.children)
            .key("stream", &keys.stream)
            .key("delayed", &keys.delayed)
            .key("parked", &keys.parked)
            .key("dead", &keys.dead)
            .key("status", keys.task(&flow.then.id))
            .key("marker", keys.marker(outbox_key(&flow.then, target).as_deref()))
            .arg("id", &flow.then.id)
            .arg("total", flow.children)
            .arg("group", &target.group)
            .arg("delay", millis(flow.then.delay))
            .arg("retention", millis(target.retention));
        Some(call.list(&fields))
    }

    /// The first queue that this one enqueues to and that is full: it has as many tasks as its `max_backlog`.
    /// Queues whose tasks lead back here are left out. If too many tasks wait to be taken to other slots, the
    /// key of these tasks is returned in place of a queue's name.
    pub(crate) async fn full_target(&self) -> QueueResult<Option<&str>> {
        const WHAT: &str = "look for room in other queues";
        if self.relays() {
            let waiting = self.link.command(WHAT, redis::cmd("XLEN").arg(&self.keys.out)).await?;
            if self.shaped(WHAT, reply::count(&waiting))? >= MOST_WAITING {
                return Ok(Some(&self.keys.out));
            }
        }
        let targets = || self.rules.enqueue_to.iter().filter(|target| !target.leads_back);
        let mut commands = Vec::new();
        for target in targets() {
            let keys = QueueKeys::new(&target.stream, None);
            commands.push(redis::cmd("XLEN").arg(&keys.stream).clone());
            commands.push(redis::cmd("ZCARD").arg(&keys.delayed).clone());
        }
        let asking = self.link.pipeline(WHAT, &commands);
        let replies = if self.relays() {
            // While the node of another queue is away, its tasks wait here.
            let Ok(replies) = tokio::time::timeout(ANSWER, asking).await else { return Ok(None) };
            replies?
        } else {
            asking.await?
        };
        for (target, counts) in targets().zip(replies.chunks(2)) {
            let mut tasks = 0;
            // A key of another type refuses the enqueueing, not the attempt, so it counts as empty.
            for count in counts.iter().flatten() {
                tasks += self.shaped(WHAT, reply::count(count))?;
            }
            if tasks >= u64::from(target.max_backlog) {
                return Ok(Some(&target.name));
            }
        }
        Ok(None)
    }

    /// Whether tasks of this queue go to queues in other slots.
    pub(crate) fn relays(&self) -> bool {
        self.rules.on_end.is_relayed() || self.rules.enqueue_to.iter().any(|target| target.is_relayed)
    }

    /// A task that waits to be taken to another queue, as an effect of its attempt.
    fn relay_call(&self, target: &TargetQueue, task: &OutboxTask) -> Part {
        let to = [codec::raw("to", &target.stream), codec::raw("delay", &millis(task.delay))];
        let fields = to.into_iter().chain(outbox_fields(task)).collect();
        Part::of("effects.O").key("out", &self.keys.out).list(&fields)
    }

    /// None: the queue is not configured any more, which the check of the task has excluded.
    fn task_call(&self, task: &OutboxTask) -> Option<Part> {
        let (target, _) = self.target(&task.queue)?;
        if target.is_relayed {
            return Some(self.relay_call(target, task));
        }
        let key = outbox_key(task, target);
        Some(enqueue_call(target, &task.id, millis(task.delay), key.as_deref(), outbox_fields(task)))
    }
}

/// The effect that enqueues a task in the queue `target`.
pub(super) fn enqueue_call(
    target: &TargetQueue,
    id: &str,
    delay_ms: u64,
    key: Option<&[u8]>,
    fields: codec::RawFields,
) -> Part {
    let keys = QueueKeys::new(&target.stream, target.dead_letter.as_deref());
    Part::of("effects.T")
        .key("stream", &keys.stream)
        .key("delayed", &keys.delayed)
        .key("parked", &keys.parked)
        .key("status", keys.task(id))
        .key("marker", keys.marker(key))
        .arg("id", id)
        .arg("delay", delay_ms)
        .arg("retention", millis(target.retention))
        .list(&fields)
}

/// The idempotency key of a task that goes to this queue.
pub(super) fn outbox_key<'t>(task: &'t OutboxTask, target: &TargetQueue) -> Option<Cow<'t, [u8]>> {
    idempotency_key(task.key.as_deref(), &task.fields, &target.key)
}

/// The fields that the entry of a task has.
pub(super) fn outbox_fields(task: &OutboxTask) -> codec::RawFields {
    produce::entry_fields(&task.id, task.key.as_deref(), &task.fields)
}

fn record_call(key: &str, change: &RecordChange) -> Part {
    let ttl = change.ttl.map_or(-1, |ttl| i64::try_from(millis(ttl)).unwrap_or(i64::MAX));
    let fields = change.fields.iter().map(|(name, value)| (name.clone().into_bytes(), value.clone()));
    Part::of("effects.H")
        .key("key", key)
        .arg("deletes", i32::from(change.is_deleted))
        .arg("ttl", ttl)
        .list(&fields.collect())
}

/// A source for attempts without a Redis: nothing is committed, and only the rules of a queue are checked.
#[derive(Debug, Default)]
pub struct NoEffects {
    rules: Option<Arc<config::QueueRules>>,
    /// The staged children of each flow, for a test or a trial that looks at them.
    staged: Guarded<Vec<(FlowName, Vec<OutboxTask>)>>,
}

impl NoEffects {
    /// For attempts of this queue. The default is for attempts of no queue, which may enqueue nothing.
    pub(crate) fn of(rules: Arc<config::QueueRules>) -> NoEffects {
        NoEffects { rules: Some(rules), staged: Guarded::default() }
    }

    /// The children of each flow.
    pub(crate) fn staged(&self) -> Vec<(FlowName, Vec<OutboxTask>)> {
        self.staged.lock().clone()
    }
}

impl EffectSource for NoEffects {
    fn state(&self, _: &str, _: u64) -> EffectReply<Option<Vec<u8>>> {
        std::future::ready(Ok(None)).boxed()
    }

    fn record(&self, _: &str, _: u64) -> EffectReply<Option<Vec<Field>>> {
        std::future::ready(Ok(None)).boxed()
    }

    fn stage(&self, flow: &FlowName, children: Vec<OutboxTask>, _: Instant) -> EffectReply<()> {
        self.staged.lock().push((flow.clone(), children));
        std::future::ready(Ok(())).boxed()
    }

    fn unstage(&self, flows: Vec<FlowName>) {
        self.staged.lock().retain(|(flow, _)| !flows.contains(flow));
    }

    fn results(&self, _: &str, _: u64, _: Instant) -> EffectReply<Vec<ChildResult>> {
        std::future::ready(Ok(Vec::new())).boxed()
    }

    fn new_task(
        &self,
        queue: &str,
        fields: Vec<Field>,
        delay: Duration,
        key: Option<String>,
    ) -> Result<OutboxTask, EffectError> {
        match &self.rules {
            Some(rules) => new_task(rules, queue, fields, delay, key),
            None => Err(EffectError::UnknownQueue(format!("there is no queue `{queue}`"))),
        }
    }
}
