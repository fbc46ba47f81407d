//! The functions that a component exports for tqhost: found once, called with tasks, their replies understood.
//!
//! In: a linked component; later an instance of it and the tasks of one attempt. Out: [`Exports`]; later the [`Ended`] of the call.
//!
//! Not here: the instance, its limits and its time (`handler`), the self-check (`check`), the meaning of errors (`failure`).

use std::borrow::Cow;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use wasmtime::component::types::ComponentItem;
use wasmtime::component::{ComponentExportIndex, ComponentNamedList, InstancePre, Lift, Lower};

use super::failure::{self, Phase};
use super::handler::{Attempt, Ended};
use super::host::bindings::{Runner, RunnerIndices, exports::tqhost::handler::handler as guest, tqhost::handler::types};
use super::mask::Mask;
use super::state::State;
use super::warm::{Instance, Running};
use super::{LoadError, component};
use crate::task::{FailureKind, Outcome, Task};

type Reply = Result<Option<Vec<u8>>, guest::Failure>;

/// A component that is ready to be instantiated, and where its functions are.
#[derive(Clone)]
pub(super) struct Exports {
    pub(super) pre: InstancePre<State>,
    handler: RunnerIndices,
    /// For several tasks at once.
    pub(super) handle_batch: Option<ComponentExportIndex>,
    /// The function to call before the first attempt.
    pub(super) self_check: Option<ComponentExportIndex>,
}

impl Exports {
    /// Looks at the functions' signatures as well: a wrong one would fail the first attempt and every other.
    pub(super) fn find(pre: InstancePre<State>) -> Result<Exports, LoadError> {
        let find = Find(&pre);
        find.function::<(guest::Task<'_>,), (Reply,)>(component::HANDLER_OFFERED, "handle")?
            .ok_or_else(|| LoadError::WrongType(format!("there is no {}", component::HANDLER_OFFERED)))?;
        let handle_batch = find.function::<(&[guest::Task<'_>],), (Vec<Reply>,)>(component::BATCH_OFFERED, "handle-batch")?;
        let self_check = find.function::<(), (Result<(), String>,)>(component::LIFECYCLE_OFFERED, "self-check")?;
        let handler = RunnerIndices::new(&pre).map_err(|error| LoadError::WrongType(format!("{error:#}")))?;
        Ok(Exports { pre, handler, handle_batch, self_check })
    }
}

struct Find<'p>(&'p InstancePre<State>);

impl Find<'_> {
    /// A function of an interface, if the component exports that.
    fn function<P, R>(&self, interface: &str, name: &str) -> Result<Option<ComponentExportIndex>, LoadError>
    where
        P: ComponentNamedList + Lower,
        R: ComponentNamedList + Lift,
    {
        let component = self.0.component();
        let Some((_, found)) = component.get_export(None, interface) else { return Ok(None) };
        let Some((ComponentItem::ComponentFunc(function), index)) = component.get_export(Some(&found), name) else {
            let interface = interface.split('@').next().unwrap_or(interface);
            return Err(LoadError::WrongType(format!("{interface} has no function `{name}`")));
        };
        function
            .typecheck::<P, R>(&self.0.instance_type())
            .map_err(|error| LoadError::WrongType(format!("the function `{name}`: {error:#}")))?;
        Ok(Some(index))
    }
}

/// Calls the function for one task or for several, in an instance that is made first if need be.
pub(super) async fn call(
    exports: &Exports,
    instance: &mut Instance,
    attempt: &Attempt,
    deadline: Instant,
) -> Result<Vec<Reply>, (wasmtime::Error, Phase)> {
    let Instance { store, running, .. } = instance;
    let Running { instance, handler } = match running {
        Some(running) => running,
        None => {
            let made = async {
                let instance = exports.pre.instantiate_async(&mut *store).await?;
                let handler: Runner = exports.handler.load(&mut *store, &instance)?;
                Ok(Running { instance, handler })
            };
            running.insert(made.await.map_err(|error| (error, Phase::Instantiate))?)
        }
    };
    // By the clock that the handler may have of others; to make the instance has taken time from the attempt.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let deadline_ms = u64::try_from((now + deadline.saturating_duration_since(Instant::now())).as_millis()).unwrap_or(u64::MAX);
    let fields: Vec<Vec<types::Field<'_>>> = attempt.tasks.iter().map(fields).collect();
    let mut tasks = attempt.tasks.iter().zip(&fields).map(|(task, fields)| shown(task, fields, attempt.max_attempts, deadline_ms));
    let failed = |error| (error, Phase::Call);
    if let (Some(handle_batch), 2..) = (&exports.handle_batch, attempt.tasks.len()) {
        let tasks: Vec<guest::Task<'_>> = tasks.collect();
        let function = instance.get_typed_func::<(&[guest::Task<'_>],), (Vec<Reply>,)>(&mut *store, handle_batch).map_err(failed)?;
        let (replies,) = function.call_async(store, (&tasks,)).await.map_err(failed)?;
        return Ok(replies);
    }
    let mut replies = Vec::with_capacity(1);
    // Whoever gives several tasks to a handler that takes one has as many replies as were asked for, and that is seen.
    if let Some(task) = tasks.next() {
        replies.push(handler.tqhost_handler_handler().call_handle(store, task).await.map_err(failed)?);
    }
    Ok(replies)
}

fn fields(task: &Task) -> Vec<types::Field<'_>> {
    task.fields.iter().map(|field| types::Field { name: &field.name, value: &field.value }).collect()
}

fn shown<'t>(task: &'t Task, fields: &'t [types::Field<'t>], max_attempts: u32, deadline_ms: u64) -> guest::Task<'t> {
    guest::Task {
        id: &task.id,
        queue: &task.queue,
        fields,
        attempt: task.attempt,
        max_attempts,
        enqueued_at_ms: task.enqueued_at_ms,
        deadline_ms,
        traceparent: task.traceparent.as_deref(),
    }
}

/// What replies mean for `tasks` tasks.
pub(super) fn ended(replies: Vec<Reply>, tasks: usize, max_output: u64, mask: &Mask) -> Ended {
    if replies.len() != tasks {
        let message = format!("the handler gave {} results for {tasks} tasks", replies.len());
        return Ended::Failed { kind: FailureKind::Trap, message };
    }
    Ended::Each(replies.into_iter().map(|reply| outcome(reply, max_output, mask)).collect())
}

fn outcome(reply: Reply, max_output: u64, mask: &Mask) -> Outcome {
    match reply {
        Ok(Some(result)) if result.len() as u64 > max_output => Outcome::Failed {
            kind: FailureKind::OutputTooLarge,
            message: format!("the handler returned {} bytes, max_output is {max_output}", result.len()),
        },
        Ok(result) => Outcome::Completed { result: result.map(|result| without_secrets(result, mask)) },
        Err(guest::Failure::Retry(retry)) => {
            Outcome::Retry { message: failure::bounded(retry.message, mask), after: retry.after_ms.map(Duration::from_millis) }
        }
        Err(guest::Failure::Reject(message)) => Outcome::Reject { message: failure::bounded(message, mask) },
        Err(guest::Failure::Defer(defer)) => {
            Outcome::Defer { message: failure::bounded(defer.message, mask), after: Duration::from_millis(defer.after_ms) }
        }
    }
}

fn without_secrets(result: Vec<u8>, mask: &Mask) -> Vec<u8> {
    match mask.bytes(&result) {
        Cow::Owned(masked) => masked,
        Cow::Borrowed(_) => result,
    }
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
