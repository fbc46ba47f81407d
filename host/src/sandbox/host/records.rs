//! `tqhost:extensions/records`: Redis hashes under the keys of the team that the plugin is granted.

use super::effect_bindings::tqhost::extensions::records::{Error, Host};
use super::effect_bindings::tqhost::handler::types;
use crate::effects::{self, EffectError, Effects};
use crate::sandbox::effects::CallError;
use crate::sandbox::state::GuestState;
use crate::task::Field;

type Reply<T> = Result<T, CallError>;

impl Host for GuestState {
    fn put(&mut self, key: String, fields: Vec<types::Field>) -> Reply<()> {
        let fields = self.fields(fields)?;
        self.change_record(key, |effects, key| effects.put_record(key, fields))
    }

    async fn get(&mut self, key: String) -> Reply<Option<Vec<types::Field>>> {
        self.check_record(&key)?;
        let source = self.attempt.effects.source()?;
        let committed = source.record(&key, self.limits.room()).await;
        let record = self.attempt.effects.effects()?.record_over(&key, committed?);
        let shown = |Field { name, value }| types::Field { name, value };
        Ok(record.map(|fields| fields.into_iter().map(shown).collect()))
    }

    fn delete(&mut self, key: String) -> Reply<()> {
        self.change_record(key, Effects::delete_record)
    }

    fn expire(&mut self, key: String, ttl_ms: u64) -> Reply<()> {
        self.change_record(key, |effects, key| effects.expire_record(key, effects::bounded_time(ttl_ms)))
    }

    fn convert_error(&mut self, error: CallError) -> wasmtime::Result<Error> {
        error.refusal()
    }
}

impl From<EffectError> for Error {
    fn from(error: EffectError) -> Error {
        match error {
            EffectError::NotPermitted(why) | EffectError::UnknownQueue(why) => Error::NotPermitted(why),
            EffectError::TooLarge(why) => Error::TooLarge(why),
            EffectError::Unavailable(why) => Error::Unavailable(why),
        }
    }
}

impl GuestState {
    fn change_record(
        &mut self,
        key: String,
        change: impl FnOnce(&mut Effects, String) -> Result<(), EffectError>,
    ) -> Reply<()> {
        self.check_record(&key)?;
        self.effect(|effects| change(effects, key))
    }

    fn check_record(&self, key: &str) -> Result<(), EffectError> {
        let checked = self.check_public(key, "key");
        checked.and_then(|()| self.granted.records.check(key)).map_err(EffectError::NotPermitted)
    }
}
