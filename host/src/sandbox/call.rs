//! Finds the functions that a component exports for tqhost, calls them with tasks, and reads their replies.
//!
//! In: a linked component; later an instance of it and the tasks of one attempt. Out: [`Exports`]; later the
//! [`Ended`] of the call.
//!
//! Not here: the instance, its limits and its time (`handler`), the self-check (`check`), the meaning of
//! errors (`failure`).

use std::marker::PhantomData;
use std::time::Instant;

use wasmtime::Store;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{
    self as engine, ComponentExportIndex, ComponentNamedList, InstancePre, Lift, Lower, TypedFunc,
};

use super::attempt::{Attempt, deadline_ms};
use super::component;
use super::error::LoadError;
use super::failure::Phase;
use super::host::bindings::{exports::tqhost::handler::handler as guest, tqhost::handler::types};
use super::reply::Reply;
use super::state::GuestState;
use super::warm::Instance;
use crate::task::Task;

type HandleBatch = Export<(&'static [guest::Task<'static>],), (Vec<Reply>,)>;

/// A component that is ready to be instantiated, with the places of its functions.
#[derive(Clone)]
pub(super) struct Exports {
    pub(super) pre: InstancePre<GuestState>,
    handle: Export<(guest::Task<'static>,), (Reply,)>,
    /// The function for several tasks at once.
    pub(super) handle_batch: Option<HandleBatch>,
    /// The function that runs many tasks at once.
    pub(super) run: Option<Export<(), ()>>,
    /// The function to call before the first attempt.
    pub(super) self_check: Option<Export<(), (Result<(), String>,)>>,
}

impl Exports {
    /// Checks the signatures of the functions as well: a wrong one would fail every attempt.
    pub(super) fn find(pre: InstancePre<GuestState>) -> Result<Exports, LoadError> {
        let handle = Export::find(&pre, component::HANDLER_OFFERED, "handle")?
            .ok_or_else(|| LoadError::WrongType(format!("there is no {}", component::HANDLER_OFFERED)))?;
        let mut handle_batch = Export::find(&pre, component::BATCH_OFFERED, "handle-batch")?;
        if handle_batch.is_none() {
            handle_batch = Export::find(&pre, component::BATCH_BEFORE, "handle-batch")?;
        }
        let run = Export::find(&pre, component::CONCURRENT_OFFERED, "run")?;
        let self_check = Export::find(&pre, component::LIFECYCLE_OFFERED, "self-check")?;
        Ok(Exports { pre, handle, handle_batch, run, self_check })
    }
}

/// A function of a component, with its checked type.
pub(super) struct Export<P, R> {
    index: ComponentExportIndex,
    takes_and_returns: PhantomData<fn(P) -> R>,
}

impl<P, R> Clone for Export<P, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P, R> Copy for Export<P, R> {}

impl<P: ComponentNamedList + Lower, R: ComponentNamedList + Lift> Export<P, R> {
    /// Finds a function of an interface, if the component exports it.
    fn find(pre: &InstancePre<GuestState>, interface: &str, name: &str) -> Result<Option<Self>, LoadError> {
        let component = pre.component();
        let Some((_, found)) = component.get_export(None, interface) else { return Ok(None) };
        let Some((ComponentItem::ComponentFunc(function), index)) = component.get_export(Some(&found), name)
        else {
            let interface = interface.split('@').next().unwrap_or(interface);
            return Err(LoadError::WrongType(format!("{interface} has no function `{name}`")));
        };
        function
            .typecheck::<P, R>(&pre.instance_type())
            .map_err(|error| LoadError::WrongType(format!("the function `{name}`: {error:#}")))?;
        Ok(Some(Export { index, takes_and_returns: PhantomData }))
    }

    /// The function in an instance. It must be an instance of the component in which the function was found.
    #[allow(unsafe_code, reason = "to check the type again for every task costs as much as a small task")]
    pub(super) fn of(
        self,
        instance: &engine::Instance,
        store: &mut Store<GuestState>,
    ) -> wasmtime::Result<TypedFunc<P, R>> {
        let function = instance.get_func(store, self.index);
        let function =
            function.ok_or_else(|| wasmtime::format_err!("the instance is of another component"))?;
        // SAFETY: `find` has checked the type of the function at this index, and the index is used only with
        // its own component.
        Ok(unsafe { TypedFunc::new_unchecked(function) })
    }
}

/// Makes the instance if there is none yet.
async fn running<'i>(
    exports: &Exports,
    instance: &'i mut Instance,
) -> Result<(&'i mut Store<GuestState>, &'i engine::Instance), (wasmtime::Error, Phase)> {
    let Instance { store, running, .. } = instance;
    let running = match running {
        Some(running) => running,
        None => running.insert(
            exports.pre.instantiate_async(&mut *store).await.map_err(|error| (error, Phase::Instantiate))?,
        ),
    };
    Ok((store, running))
}

/// Calls the function that runs many tasks at once, which takes them by itself.
pub(super) async fn run(
    run: Export<(), ()>,
    exports: &Exports,
    instance: &mut Instance,
) -> Result<(), (wasmtime::Error, Phase)> {
    let (store, instance) = running(exports, instance).await?;
    let failed = |error| (error, Phase::Call);
    run.of(instance, store).map_err(failed)?.call_async(store, ()).await.map_err(failed)
}

/// Calls the function for one task or for several. Makes the instance first if there is none yet.
pub(super) async fn call(
    exports: &Exports,
    instance: &mut Instance,
    attempt: &Attempt,
    deadline: Instant,
) -> Result<Vec<Reply>, (wasmtime::Error, Phase)> {
    let (store, instance) = running(exports, instance).await?;
    // Instantiation has already taken time from the attempt.
    let deadline_ms = deadline_ms(deadline);
    let shown = |task, fields| shown(task, fields, attempt.max_attempts, deadline_ms);
    let failed = |error| (error, Phase::Call);
    if let (Some(handle_batch), 2..) = (exports.handle_batch, attempt.tasks.len()) {
        let fields: Vec<Vec<types::Field<'_>>> = attempt.tasks.iter().map(fields).collect();
        let tasks: Vec<guest::Task<'_>> =
            attempt.tasks.iter().zip(&fields).map(|(task, fields)| shown(task, fields)).collect();
        let function: TypedFunc<(&[guest::Task<'_>],), _> =
            handle_batch.of(instance, store).map_err(failed)?;
        let (replies,) = function.call_async(store, (&tasks,)).await.map_err(failed)?;
        return Ok(replies);
    }
    // A handler without batches gets only the first task. `reply::ended` reports the wrong number of replies.
    let Some(task) = attempt.tasks.first() else { return Ok(Vec::new()) };
    let fields = fields(task);
    let function: TypedFunc<(guest::Task<'_>,), _> = exports.handle.of(instance, store).map_err(failed)?;
    let (reply,) = function.call_async(store, (shown(task, &fields),)).await.map_err(failed)?;
    Ok(vec![reply])
}

fn fields(task: &Task) -> Vec<types::Field<'_>> {
    task.fields.iter().map(|field| types::Field { name: &field.name, value: &field.value }).collect()
}

fn shown<'t>(
    task: &'t Task,
    fields: &'t [types::Field<'t>],
    max_attempts: u32,
    deadline_ms: u64,
) -> guest::Task<'t> {
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

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
