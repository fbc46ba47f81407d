//! `tqhost:extensions/records`: Redis hashes under the keys of the team that the plugin is granted.

use super::effect_bindings::tqhost::extensions::records::{Error, Host};
use super::effect_bindings::tqhost::handler::types;
use crate::effects::{self, EffectError, Effects};
use crate::sandbox::state::GuestState;
use crate::task::Field;

type Reply<T> = wasmtime::Result<Result<T, Error>>;

impl Host for GuestState {
    fn put(&mut self, key: String, fields: Vec<types::Field>) -> Reply<()> {
        match self.fields(fields) {
            Ok(fields) => self.change_record(key, |effects, key| effects.put_record(key, fields)),
            Err(error) => Ok(Err(error.into())),
        }
    }

    async fn get(&mut self, key: String) -> Reply<Option<Vec<types::Field>>> {
        let source = match self.check_record(&key).and_then(|()| self.attempt.effects.source()) {
            Ok(source) => source,
            Err(error) => return Ok(Err(error.into())),
        };
        let committed = source.record(&key, self.limits.room()).await;
        let effects = self.attempt.effects.effects()?;
        let shown = |fields: Vec<Field>| {
            fields.into_iter().map(|Field { name, value }| types::Field { name, value }).collect()
        };
        Ok(committed.map(|committed| effects.record_over(&key, committed).map(shown)).map_err(Error::from))
    }

    fn delete(&mut self, key: String) -> Reply<()> {
        self.change_record(key, Effects::delete_record)
    }

    fn expire(&mut self, key: String, ttl_ms: u64) -> Reply<()> {
        self.change_record(key, |effects, key| effects.expire_record(key, effects::bounded_time(ttl_ms)))
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
        match self.check_record(&key) {
            Ok(()) => self.effect(|effects| change(effects, key)),
            Err(error) => Ok(Err(error.into())),
        }
    }

    fn check_record(&self, key: &str) -> Result<(), EffectError> {
        let checked = self.check_public(key, "key");
        checked.and_then(|()| self.records.check(key)).map_err(EffectError::NotPermitted)
    }
}
