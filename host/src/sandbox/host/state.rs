//! `tqhost:handler/state`: values of the plugin that outlive its tasks.

use super::effect_bindings::tqhost::handler::state::{Error, Host};
use crate::effects::{self, EffectError, StateChange};
use crate::sandbox::effects::CallError;
use crate::sandbox::state::GuestState;

type Reply<T> = Result<T, CallError>;

impl Host for GuestState {
    async fn get(&mut self, key: String) -> Reply<Option<Vec<u8>>> {
        let committed = self.committed(&key).await?;
        Ok(self.attempt.effects.effects()?.state_over(&key, committed)?)
    }

    fn set(&mut self, key: String, value: Vec<u8>, ttl_ms: u64) -> Reply<()> {
        let value = self.log().mask().owned(value);
        let ttl = (ttl_ms > 0).then(|| effects::bounded_time(ttl_ms));
        self.change_state(key, StateChange::Set { value, ttl })
    }

    fn delete(&mut self, key: String) -> Reply<()> {
        self.change_state(key, StateChange::Delete)
    }

    async fn increment(&mut self, key: String, delta: i64) -> Reply<i64> {
        let committed = self.committed(&key).await?;
        self.effect(|effects| effects.increment(key, delta, committed))
    }

    fn convert_error(&mut self, error: CallError) -> wasmtime::Result<Error> {
        error.refusal()
    }
}

impl GuestState {
    fn change_state(&mut self, key: String, change: StateChange) -> Reply<()> {
        self.check_state(&key)?;
        self.effect(|effects| effects.change_state(key, change))
    }

    fn check_state(&self, key: &str) -> Result<(), EffectError> {
        self.check_public(key, "key").map_err(EffectError::NotPermitted)
    }

    /// The committed value of a key, unless this attempt has set or deleted it.
    async fn committed(&mut self, key: &str) -> Reply<Option<Vec<u8>>> {
        self.check_state(key)?;
        let source = self.attempt.effects.source()?;
        if self.attempt.effects.effects()?.hides_state(key) {
            return Ok(None);
        }
        Ok(source.state(key, self.limits.room()).await?)
    }
}

impl From<EffectError> for Error {
    fn from(error: EffectError) -> Error {
        match error {
            // Both are the same in each attempt, and the interface has one error for that.
            EffectError::TooLarge(why) | EffectError::NotPermitted(why) => Error::TooLarge(why),
            other => Error::Unavailable(other.to_string()),
        }
    }
}
