//! Files of plugins: guests, further versions of them, and how they are installed.
//!
//! In: guests' names. Out: bytes, digests, files in `plugins/`, log lines about a version. Not here: where
//! guests are built (`bench`, `wat`).

use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::bench::guest_path;
use super::{Bench, Host, eventually};

/// Bytes of the magic number and the version, at the start of modules and components.
const HEADER: usize = 8;

/// The bytes of a guest.
pub fn guest(name: &str) -> Vec<u8> {
    std::fs::read(guest_path(name)).expect("read a guest")
}

/// A guest with a custom section: it behaves the same, and is another version.
pub fn version(guest: &str, mark: u32) -> Vec<u8> {
    marked(&self::guest(guest), mark)
}

/// Adds a custom section with `mark` to a component or a module. It is the first section, so that a truncated
/// file differs too.
pub fn marked(bytes: &[u8], mark: u32) -> Vec<u8> {
    let (header, rest) = bytes.split_at(HEADER);
    // Section id 0, its size, the length of its name, the name, the content.
    let section = [[0, 9, 4, b'm', b'a', b'r', b'k'].as_slice(), &mark.to_le_bytes()].concat();
    [header, &section, rest].concat()
}

/// The file of compiled functions in a cache.
pub fn functions(cache: &Path) -> Option<PathBuf> {
    let mut files = std::fs::read_dir(cache).ok()?.flatten().map(|file| file.path());
    files.find(|file| file.extension().is_some_and(|extension| extension == "functions"))
}

/// The name of this version in a task's status.
pub fn label(plugin: &str, bytes: &[u8]) -> String {
    format!("{plugin}@{}", &digest(bytes)[..12])
}

pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Installs a plugin as operators should: writes a file beside the plugins and renames it.
pub fn put(bench: &Bench, plugin: &str, bytes: &[u8]) {
    put_at(&bench.plugin_path(plugin), bytes);
}

/// Writes a file beside `target` and renames it to `target`.
pub fn put_at(target: &Path, bytes: &[u8]) {
    let new = target.with_extension("new");
    std::fs::write(&new, bytes).expect("write a plugin");
    std::fs::rename(new, target).expect("rename a plugin");
}

/// Waits for a log line with `what` about this version.
#[track_caller]
pub fn said(host: &Host, what: &str, bytes: &[u8]) -> Value {
    let digest = &digest(bytes)[..12];
    eventually(&format!("{what:?} of {digest}"), || {
        host.logged(what).into_iter().find(|line| line["digest"] == digest)
    })
}

/// Waits for the log line that says that this version was loaded.
#[track_caller]
pub fn loaded(host: &Host, bytes: &[u8]) -> Value {
    said(host, "plugin loaded", bytes)
}

/// The row of a plugin in `tqhost plugins`.
pub fn row(bench: &Bench, plugin: &str) -> Option<Value> {
    let all = bench.tqhost(&["plugins", "--json"]).ok().json();
    all["plugins"].as_array()?.iter().find(|row| row["name"] == plugin).cloned()
}
