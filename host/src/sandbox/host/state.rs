//! `tqhost:handler/state`: values of the plugin that outlive its tasks.

use super::effect_bindings::tqhost::handler::state::{Error, Host};
use crate::effects::{self, EffectError, StateChange};
use crate::sandbox::state::GuestState;

type Reply<T> = wasmtime::Result<Result<T, Error>>;

impl Host for GuestState {
    async fn get(&mut self, key: String) -> Reply<Option<Vec<u8>>> {
        let committed = match self.committed(&key).await? {
            Ok(committed) => committed,
            Err(error) => return Ok(Err(error.into())),
        };
        Ok(self.attempt.effects.effects()?.state_over(&key, committed).map_err(Error::from))
    }

    fn set(&mut self, key: String, value: Vec<u8>, ttl_ms: u64) -> Reply<()> {
        let value = self.without_secrets(value);
        let ttl = (ttl_ms > 0).then(|| effects::bounded_time(ttl_ms));
        self.change_state(key, StateChange::Set { value, ttl })
    }

    fn delete(&mut self, key: String) -> Reply<()> {
        self.change_state(key, StateChange::Delete)
    }

    async fn increment(&mut self, key: String, delta: i64) -> Reply<i64> {
        let committed = match self.committed(&key).await? {
            Ok(committed) => committed,
            Err(error) => return Ok(Err(error.into())),
        };
        self.effect(|effects| effects.increment(key, delta, committed))
    }
}

impl GuestState {
    fn change_state(&mut self, key: String, change: StateChange) -> Reply<()> {
        match self.check_state(&key) {
            Ok(()) => self.effect(|effects| effects.change_state(key, change)),
            Err(error) => Ok(Err(error.into())),
        }
    }

    fn check_state(&self, key: &str) -> Result<(), EffectError> {
        self.check_public(key, "key").map_err(EffectError::NotPermitted)
    }

    /// The committed value of a key, unless this attempt has set or deleted it.
    async fn committed(&mut self, key: &str) -> wasmtime::Result<Result<Option<Vec<u8>>, EffectError>> {
        if let Err(error) = self.check_state(key) {
            return Ok(Err(error));
        }
        let source = match self.attempt.effects.source() {
            Ok(source) => source,
            Err(error) => return Ok(Err(error)),
        };
        if self.attempt.effects.effects()?.hides_state(key) {
            return Ok(Ok(None));
        }
        Ok(source.state(key, self.limits.room()).await)
    }
}

impl From<EffectError> for Error {
    fn from(error: EffectError) -> Error {
        match error {
            // The interface has no other error for what is the same in each attempt.
            EffectError::TooLarge(why) | EffectError::NotPermitted(why) => Error::TooLarge(why),
            other => Error::Unavailable(other.to_string()),
        }
    }
}
