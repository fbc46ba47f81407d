//! The effects of one attempt while it runs: one buffer for each of its tasks, and which task is selected.
//! Beside them, the outages that the guest reports for its tasks.
//!
//! In: calls of the guest. Out: the buffers and outages, which go with the outcomes of their tasks.
//!
//! Not here: what an effect is (`crate::effects`), the interfaces (`host`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::effects::{EffectError, EffectSource, Effects};
use crate::task::Task;
use crate::telemetry::{AttemptTrace, RequestTrace};

/// Why a guest in a self-check has no effects.
const IN_CHECK: &str = "a self-check has no task, so it reads no data and has no effects";
/// Why a guest with several tasks at once has no effects while none of them computes.
const BETWEEN: &str = "the call belongs to no task that runs, so it reads no data and has no effects";

/// Ends the attempt, because Redis did not keep or give what a flow needs. It is not the fault of the guest.
#[derive(Debug, Error)]
#[error("{0}")]
pub(super) struct FlowFailed(pub(super) String);

/// Why a call of a guest has no result.
#[derive(Debug)]
pub(crate) enum CallError<E = EffectError> {
    /// The guest gets this error.
    Refused(E),
    /// The call ends as a trap.
    Trap(wasmtime::Error),
}

impl From<EffectError> for CallError {
    fn from(error: EffectError) -> CallError {
        CallError::Refused(error)
    }
}

impl<E> From<wasmtime::Error> for CallError<E> {
    fn from(error: wasmtime::Error) -> CallError<E> {
        CallError::Trap(error)
    }
}

impl CallError {
    /// The error in the words of an interface. The outer error is a trap.
    pub(super) fn refusal<E: From<EffectError>>(self) -> wasmtime::Result<E> {
        match self {
            CallError::Refused(error) => Ok(error.into()),
            CallError::Trap(trap) => Err(trap),
        }
    }
}

/// The effects of an attempt.
#[derive(Default)]
pub(super) struct AttemptEffects {
    tasks: Arc<Vec<Task>>,
    /// None in a self-check, and where no task runs.
    source: Option<Arc<dyn EffectSource>>,
    /// Whether other tasks of the instance run, but calls belong to none of them.
    is_between: bool,
    each: Vec<Effects>,
    /// The task that calls belong to. None in a batch, until the guest selects one.
    selected: Option<usize>,
    outages: Outages,
    trace: AttemptTrace,
}

/// The tasks of an attempt for which a service was down, and how long it asks to wait.
pub(super) type Outages = BTreeMap<usize, Option<Duration>>;

impl AttemptEffects {
    pub(super) fn new(
        tasks: Arc<Vec<Task>>,
        source: Option<Arc<dyn EffectSource>>,
        trace: AttemptTrace,
    ) -> AttemptEffects {
        let each = vec![Effects::default(); tasks.len()];
        let selected = (tasks.len() == 1).then_some(0);
        AttemptEffects { tasks, source, each, selected, is_between: false, outages: Outages::new(), trace }
    }

    /// The effects for calls between those of the tasks of an instance. Each call is refused.
    pub(super) fn of_nobody() -> AttemptEffects {
        AttemptEffects { is_between: true, ..AttemptEffects::default() }
    }

    /// Drops what the task has done, and refuses more of it.
    pub(super) fn close(&mut self) {
        (self.source, self.is_between) = (None, true);
        self.each.fill(Effects::default());
        self.outages.clear();
    }

    /// Makes further calls belong to a task of the batch.
    pub(super) fn select(&mut self, index: usize) -> wasmtime::Result<()> {
        let tasks = self.tasks.len();
        if index >= tasks {
            wasmtime::bail!("`select({index})`: the call has {tasks} tasks, and the first one is 0");
        }
        self.selected = Some(index);
        Ok(())
    }

    /// Notes that a service which a task needs is down. A self-check has no task, so nothing follows from it.
    pub(super) fn note_outage(&mut self, index: usize, after: Option<Duration>) -> wasmtime::Result<()> {
        if self.source.is_none() {
            return Ok(());
        }
        let tasks = self.tasks.len();
        if index >= tasks {
            wasmtime::bail!("`unavailable({index})`: the call has {tasks} tasks, and the first one is 0");
        }
        self.outages.insert(index, after);
        Ok(())
    }

    /// The task that calls belong to.
    pub(super) fn task(&self) -> wasmtime::Result<&Task> {
        let task = self.selected.and_then(|index| self.tasks.get(index));
        task.ok_or_else(|| wasmtime::format_err!("{}", self.why_none()))
    }

    /// The effects of the task that calls belong to.
    pub(super) fn effects(&mut self) -> wasmtime::Result<&mut Effects> {
        let why = self.why_none();
        let effects = self.selected.and_then(|index| self.each.get_mut(index));
        effects.ok_or_else(|| wasmtime::format_err!("{why}"))
    }

    /// The `traceparent` for new tasks of the task that calls belong to.
    pub(super) fn traceparent(&self) -> Option<String> {
        let index = self.selected?;
        self.tasks.get(index).and_then(|task| self.trace.traceparent(index, task))
    }

    /// The trace of the requests of the attempt.
    pub(super) fn request_trace(&self) -> RequestTrace {
        self.trace.requests(&self.tasks)
    }

    /// The source that answers reads.
    pub(super) fn source(&self) -> Result<Arc<dyn EffectSource>, EffectError> {
        self.source.clone().ok_or_else(|| EffectError::Unavailable(self.why_none().to_owned()))
    }

    fn why_none(&self) -> &'static str {
        if self.is_between {
            BETWEEN
        } else if self.source.is_none() {
            IN_CHECK
        } else {
            "the call has several tasks: call `select` of tqhost:extensions/delivery first"
        }
    }

    /// The bytes of all effects.
    pub(super) fn bytes(&self) -> u64 {
        self.each.iter().map(Effects::bytes).sum::<usize>() as u64
    }

    /// Takes the effects of each task, and the outages.
    pub(super) fn take(&mut self) -> (Vec<Effects>, Outages) {
        (std::mem::take(&mut self.each), std::mem::take(&mut self.outages))
    }
}
