//! `tqhost:handler/outbox`: tasks that are enqueued when this one completes.

use super::effect_bindings::tqhost::handler::outbox::{Error, Host, NewTask};
use super::effect_bindings::tqhost::handler::types;
use crate::effects::{self, EffectError, Flow, OutboxTask};
use crate::sandbox::state::GuestState;
use crate::task::Field;

type Reply<T> = wasmtime::Result<Result<T, Error>>;

impl Host for GuestState {
    fn enqueue(&mut self, task: NewTask) -> Reply<String> {
        let task = match self.new_task(task) {
            Ok(task) => task,
            Err(error) => return Ok(Err(error.into())),
        };
        let id = task.id.clone();
        self.effect(|effects| effects.enqueue(task).map(|()| id))
    }

    async fn fan_out(&mut self, children: Vec<NewTask>, then: NewTask) -> Reply<String> {
        let made = self.new_task(then).and_then(|then| {
            let children = children.into_iter().map(|child| self.new_task(child));
            Ok((children.collect::<Result<Vec<_>, _>>()?, then))
        });
        let (children, then) = match made {
            Ok(made) => made,
            Err(error) => return Ok(Err(error.into())),
        };
        let id = then.id.clone();
        if children.is_empty() {
            return self.effect(|effects| effects.enqueue(then).map(|()| id));
        }
        // The host holds the children until they are staged.
        self.lend(children.iter().map(OutboxTask::weight).sum())?;
        let flow = Flow::new(then, &children).and_then(|flow| Ok((flow, self.effects.source()?)));
        let staged = match flow {
            Ok((flow, source)) => source.stage(&flow, children).await.map(|()| flow),
            Err(error) => Err(error),
        };
        self.lend(0)?;
        match staged {
            Ok(flow) => self.effect(|effects| effects.fan_out(flow).map(|()| id)),
            Err(error) => Ok(Err(error.into())),
        }
    }
}

impl GuestState {
    /// The fields that a guest gave, as they may leave the sandbox.
    pub(super) fn fields(&self, fields: Vec<types::Field>) -> Vec<Field> {
        let masked =
            |field: types::Field| Field { name: field.name, value: self.without_secrets(field.value) };
        fields.into_iter().map(masked).collect()
    }

    fn new_task(&self, task: NewTask) -> Result<OutboxTask, EffectError> {
        let NewTask { queue, fields, delay_ms, idempotency_key } = task;
        let (fields, delay) = (self.fields(fields), effects::time(delay_ms));
        self.effects.source()?.new_task(&queue, fields, delay, idempotency_key)
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
