//! Redis hashes under keys of your own, which other programs read, too.
//!
//! In: keys of 1 to 512 bytes, and fields. Out: fields. The plugin's `records` in the host's configuration
//! grants patterns of keys. Writes are seen by this attempt at once, and by everyone else in the step that
//! completes the task, or never.
//!
//! ```
//! use std::time::Duration;
//! use tqhost_handler::{Failure, Task, records};
//!
//! fn index(task: Task) -> Result<(), Failure> {
//!     let key = format!("kb:{}", task.text("kb")?);
//!     records::put(&key, [("state", "indexed"), ("by", &task.id)])?;
//!     records::expire(&key, Duration::from_secs(24 * 60 * 60))?;
//!     Ok(())
//! }
//!
//! // In a native build, a test sees the records. Every key is granted there.
//! records::insert("kb:7", [("title", "Redis")]);
//! index(Task::sample([("kb", "7")])).unwrap();
//! let record = &records::all()["kb:7"];
//! assert_eq!((&*record["title"], &*record["state"]), (&b"Redis"[..], &b"indexed"[..]));
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Field;
#[cfg(target_family = "wasm")]
use crate::bindings::tqhost::extensions::records as host;
use crate::effects::{EffectError, millis};
#[cfg(not(target_family = "wasm"))]
use crate::memory::records as host;

/// The fields of a record, by name.
pub type Record = BTreeMap<String, Vec<u8>>;

/// Sets fields of a record, and leaves its other fields as they are.
pub fn put<N: Into<String>, V: Into<Vec<u8>>>(
    key: &str,
    fields: impl IntoIterator<Item = (N, V)>,
) -> Result<(), EffectError> {
    let field = |(name, value): (N, V)| Field { name: name.into(), value: value.into() };
    let fields: Vec<Field> = fields.into_iter().map(field).collect();
    host::put(key, &fields).map_err(EffectError::of)
}

/// All fields of a record, or `None` if there is no such key.
pub fn get(key: &str) -> Result<Option<Record>, EffectError> {
    let fields = host::get(key).map_err(EffectError::of)?;
    Ok(fields.map(|fields| fields.into_iter().map(|field| (field.name, field.value)).collect()))
}

/// Deletes a record. It is no error if there is none.
pub fn delete(key: &str) -> Result<(), EffectError> {
    host::delete(key).map_err(EffectError::of)
}

/// Deletes a record after this time, counted from the commit. A time of zero keeps it until it is deleted.
pub fn expire(key: &str, ttl: Duration) -> Result<(), EffectError> {
    host::expire(key, millis(ttl)).map_err(EffectError::of)
}

/// In a native build: adds fields to a record of this thread, as if an earlier task had put them.
#[cfg(not(target_family = "wasm"))]
pub fn insert<N: Into<String>, V: Into<Vec<u8>>>(
    key: impl Into<String>,
    fields: impl IntoIterator<Item = (N, V)>,
) {
    let fields = fields.into_iter().map(|(name, value)| (name.into(), value.into()));
    crate::memory::with(|memory| memory.records.entry(key.into()).or_default().fields.extend(fields));
}

/// In a native build: all records of this thread.
#[cfg(not(target_family = "wasm"))]
pub fn all() -> BTreeMap<String, Record> {
    crate::memory::with(|memory| {
        memory.records.iter().map(|(key, kept)| (key.clone(), kept.fields.clone())).collect()
    })
}

/// In a native build: the time after which a record is deleted, if it was given one. Nothing expires in a
/// native build.
#[cfg(not(target_family = "wasm"))]
pub fn ttl(key: &str) -> Option<Duration> {
    crate::memory::with(|memory| {
        let ttl = memory.records.get(key)?.ttl_ms;
        (ttl > 0).then(|| Duration::from_millis(ttl))
    })
}
