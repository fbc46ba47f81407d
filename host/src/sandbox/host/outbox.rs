//! `tqhost:handler/outbox`: tasks that are enqueued when this one completes.

use super::effect_bindings::tqhost::handler::outbox::{Error, Host, NewTask};
use super::effect_bindings::tqhost::handler::types;
use crate::effects::{self, EffectError, OutboxTask};
use crate::sandbox::effects::{CallError, FlowFailed};
use crate::sandbox::state::GuestState;
use crate::task::Field;
use crate::telemetry;

type Reply<T> = Result<T, CallError>;

impl Host for GuestState {
    fn enqueue(&mut self, task: NewTask) -> Reply<String> {
        let task = self.new_task(task)?;
        let id = task.id.clone();
        self.effect(|effects| effects.enqueue(task).map(|()| id))
    }

    async fn fan_out(&mut self, children: Vec<NewTask>, then: NewTask) -> Reply<String> {
        let then = self.new_task(then)?;
        let children = children.into_iter().map(|child| self.new_task(child));
        let children = children.collect::<Result<Vec<_>, _>>()?;
        let id = then.id.clone();
        if children.is_empty() {
            return self.effect(|effects| effects.enqueue(then).map(|()| id));
        }
        // The effects note the flow before its children are staged, so that they delete all that may be
        // staged.
        let source = self.attempt.effects.source()?;
        let flow = self.effect(|effects| effects.fan_out(then, &children, &source))?;
        // The host holds the children until they are staged.
        self.lend(children.iter().map(OutboxTask::weight).sum())?;
        let staged = source.stage(&flow, children, self.patience()).await;
        self.lend(0)?;
        // The flow can no longer be committed, and the handler could do nothing about that.
        staged.map_err(|error| wasmtime::Error::from(FlowFailed(error.to_string())))?;
        Ok(id)
    }

    fn convert_error(&mut self, error: CallError) -> wasmtime::Result<Error> {
        error.refusal()
    }
}

impl GuestState {
    /// The fields that a guest gave, as they may leave the sandbox.
    pub(super) fn fields(&self, fields: Vec<types::Field>) -> Result<Vec<Field>, EffectError> {
        let masked = |field: types::Field| -> Result<Field, EffectError> {
            self.check_public(&field.name, "name of a field").map_err(EffectError::NotPermitted)?;
            Ok(Field { name: field.name, value: self.log().mask().owned(field.value) })
        };
        fields.into_iter().map(masked).collect()
    }

    fn new_task(&self, task: NewTask) -> Result<OutboxTask, EffectError> {
        let NewTask { queue, fields, delay_ms, idempotency_key } = task;
        if let Some(key) = &idempotency_key {
            self.check_public(key, "idempotency key").map_err(EffectError::NotPermitted)?;
        }
        let (fields, delay) = (self.fields(fields)?, effects::bounded_time(delay_ms));
        let mut task = self.attempt.effects.source()?.new_task(&queue, fields, delay, idempotency_key)?;
        telemetry::add_to(&mut task.fields, || self.attempt.effects.traceparent());
        Ok(task)
    }
}

impl From<EffectError> for Error {
    fn from(error: EffectError) -> Error {
        match error {
            EffectError::UnknownQueue(why) => Error::UnknownQueue(why),
            EffectError::TooLarge(why) => Error::TooLarge(why),
            EffectError::NotPermitted(why) | EffectError::Unavailable(why) => Error::NotPermitted(why),
        }
    }
}
