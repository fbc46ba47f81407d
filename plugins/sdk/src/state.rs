//! Values of the plugin that outlive its tasks.
//!
//! In: keys of 1 to 512 bytes, and values. Out: values. Writes are seen by this attempt at once, and by
//! everyone else in the step that completes the task, or never. All queues of a plugin share its values; no
//! other plugin sees them.
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use tqhost_handler::{Failure, Task, state};
//!
//! #[derive(Default, Deserialize, Serialize)]
//! struct Seen {
//!     pages: u32,
//! }
//!
//! fn crawl(task: Task) -> Result<(), Failure> {
//!     let key = format!("site:{}", task.text("site")?);
//!     let mut seen: Seen = state::get_json(&key)?.unwrap_or_default();
//!     seen.pages += 1;
//!     state::set_json(&key, &seen)?;
//!     state::increment("pages", 1)?; // Tasks that run at the same time all count.
//!     Ok(())
//! }
//!
//! // In a native build, a test sees the values.
//! state::insert("pages", "41");
//! crawl(Task::sample([("site", "a")])).unwrap();
//! assert_eq!(state::all()["pages"], b"42");
//! assert_eq!(state::all()["site:a"], br#"{"pages":1}"#);
//! ```
//!
//! If two tasks change the same value at the same time, the one that completes last wins. [`increment`] loses
//! nothing, because the commit adds to what is stored then.

#[cfg(not(target_family = "wasm"))]
use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Failure;
#[cfg(target_family = "wasm")]
use crate::bindings::tqhost::handler::state as host;
use crate::effects::{EffectError, millis};
#[cfg(not(target_family = "wasm"))]
use crate::memory::state as host;

/// The value of a key, or `None` if there is none.
pub fn get(key: &str) -> Result<Option<Vec<u8>>, EffectError> {
    host::get(key).map_err(EffectError::of)
}

/// A value that is JSON. A value that is not the JSON expected is a retry, because the task is not at fault.
pub fn get_json<T: DeserializeOwned>(key: &str) -> Result<Option<T>, Failure> {
    let Some(value) = get(key)? else { return Ok(None) };
    serde_json::from_slice(&value).map(Some).map_err(|why| {
        Failure::retry(format_args!("the value of `{key}` in the state is not the JSON expected: {why}"))
    })
}

/// Keeps a value until it is deleted.
pub fn set(key: &str, value: impl AsRef<[u8]>) -> Result<(), EffectError> {
    host::set(key, value.as_ref(), 0).map_err(EffectError::of)
}

/// Keeps a value for this time, counted from the commit. A time of zero keeps it until it is deleted.
pub fn set_for(key: &str, value: impl AsRef<[u8]>, ttl: Duration) -> Result<(), EffectError> {
    host::set(key, value.as_ref(), millis(ttl)).map_err(EffectError::of)
}

/// Keeps a value as JSON until it is deleted. A value that JSON cannot represent is a rejection.
pub fn set_json(key: &str, value: &impl Serialize) -> Result<(), Failure> {
    let value = serde_json::to_vec(value).map_err(|why| {
        Failure::reject(format_args!("the value of `{key}` cannot be written as JSON: {why}"))
    })?;
    Ok(set(key, value)?)
}

/// Deletes a value. It is no error if there is none.
pub fn delete(key: &str) -> Result<(), EffectError> {
    host::delete(key).map_err(EffectError::of)
}

/// Adds `delta` to a counter, a whole number of at most 18 digits that begins at 0. Returns the value that
/// this attempt sees. The commit adds `delta` to whatever is stored then, so no count is lost.
pub fn increment(key: &str, delta: i64) -> Result<i64, EffectError> {
    host::increment(key, delta).map_err(EffectError::of)
}

/// In a native build: puts a value into this thread's state, as if an earlier task had written it.
#[cfg(not(target_family = "wasm"))]
pub fn insert(key: impl Into<String>, value: impl Into<Vec<u8>>) {
    crate::memory::with(|memory| memory.state.insert(key.into(), (value.into(), 0)));
}

/// In a native build: all values of this thread's state.
#[cfg(not(target_family = "wasm"))]
pub fn all() -> BTreeMap<String, Vec<u8>> {
    crate::memory::with(|memory| {
        memory.state.iter().map(|(key, (value, _))| (key.clone(), value.clone())).collect()
    })
}

/// In a native build: for how long a value is kept. `None`: until it is deleted, or there is no such value.
/// Nothing expires in a native build.
#[cfg(not(target_family = "wasm"))]
pub fn ttl(key: &str) -> Option<Duration> {
    crate::memory::with(|memory| {
        let (_, ttl) = memory.state.get(key)?;
        (*ttl > 0).then(|| Duration::from_millis(*ttl))
    })
}
