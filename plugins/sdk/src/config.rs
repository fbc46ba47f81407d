//! The values that the host's configuration grants this plugin (`[plugins.<name>] config = { … }`).
//!
//! In: a key. Out: its value, or `None` if the key is not granted. In a native build, only what a test
//! inserts is granted.
//!
//! Every failure here is a retry: the host or its operator must fix the cause, and the task is correct.

use crate::Failure;

pub fn get(key: &str) -> Result<Option<String>, Failure> {
    #[cfg(target_family = "wasm")]
    return crate::bindings::wasi::config::store::get(key).map_err(failure);
    #[cfg(not(target_family = "wasm"))]
    Ok(crate::memory::with(|memory| memory.config.get(key).cloned()))
}

/// A value that the handler cannot work without. The task is retried if the key is not granted.
pub fn require(key: &str) -> Result<String, Failure> {
    get(key)?.ok_or_else(|| {
        Failure::retry(format_args!("the plugin is not granted the configuration key `{key}`"))
    })
}

/// All granted keys with their values.
pub fn all() -> Result<Vec<(String, String)>, Failure> {
    #[cfg(target_family = "wasm")]
    return crate::bindings::wasi::config::store::get_all().map_err(failure);
    #[cfg(not(target_family = "wasm"))]
    Ok(crate::memory::with(|memory| memory.config.clone().into_iter().collect()))
}

/// In a native build: grants this thread a value.
#[cfg(not(target_family = "wasm"))]
pub fn insert(key: impl Into<String>, value: impl Into<String>) {
    crate::memory::with(|memory| memory.config.insert(key.into(), value.into()));
}

#[cfg(target_family = "wasm")]
fn failure(error: crate::bindings::wasi::config::store::Error) -> Failure {
    use crate::bindings::wasi::config::store::Error;
    let (Error::Upstream(why) | Error::Io(why)) = error;
    Failure::retry(format_args!("reading the plugin's configuration: {why}"))
}
