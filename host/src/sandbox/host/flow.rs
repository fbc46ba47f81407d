//! `tqhost:handler/flow`: the results of the flow that the task joins.

use super::effect_bindings::tqhost::handler::flow::{ChildResult, Host};
use crate::effects::EffectError;
use crate::sandbox::effects::FlowFailed;
use crate::sandbox::state::GuestState;

impl Host for GuestState {
    async fn results(&mut self) -> wasmtime::Result<Vec<ChildResult>> {
        let Some(flow) = self.attempt.effects.task()?.joins.clone() else { return Ok(Vec::new()) };
        // The guest needs as much memory as the host for a moment.
        let read = self.attempt.effects.source()?.results(&flow, self.limits.room(), self.patience());
        let results = read.await.map_err(|error| match error {
            EffectError::Unavailable(why) => FlowFailed(why).into(),
            error => wasmtime::Error::from(error),
        })?;
        Ok(results
            .into_iter()
            .map(|result| ChildResult { task_id: result.id, queue: result.queue, value: result.value })
            .collect())
    }
}
