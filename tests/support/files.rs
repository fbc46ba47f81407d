//! Files of plugins: guests, the same guests as other versions, and the ways in which files come to their place.

use std::path::Path;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::bench::guest_path;
use super::{Bench, Host, eventually};

/// The magic number and the version, of a module as of a component.
const HEADER: usize = 8;

/// The bytes of a guest.
pub fn guest(name: &str) -> Vec<u8> {
    std::fs::read(guest_path(name)).expect("read a guest")
}

/// The same component with a custom section: it does the same, and is another version.
pub fn version(guest: &str, mark: u32) -> Vec<u8> {
    marked(&self::guest(guest), mark)
}

/// The same for the bytes of a component or a module. The mark stands first, so that a part of the file is another one too.
pub fn marked(bytes: &[u8], mark: u32) -> Vec<u8> {
    let (header, rest) = bytes.split_at(HEADER);
    // Section id 0, its size, the length of its name, the name, the content.
    let section = [[0, 9, 4, b'm', b'a', b'r', b'k'].as_slice(), &mark.to_le_bytes()].concat();
    [header, &section, rest].concat()
}

/// How a status names the version in these bytes.
pub fn label(plugin: &str, bytes: &[u8]) -> String {
    format!("{plugin}@{}", &digest(bytes)[..12])
}

pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a file beside the plugins and renames it: the way that a careful operator takes.
pub fn put(bench: &Bench, plugin: &str, bytes: &[u8]) {
    put_at(&bench.plugin_path(plugin), bytes);
}

/// The same with the file's path.
pub fn put_at(target: &Path, bytes: &[u8]) {
    let new = target.with_extension("new");
    std::fs::write(&new, bytes).expect("write a plugin");
    std::fs::rename(new, target).expect("rename a plugin");
}

/// Waits for the line that says so of this version.
#[track_caller]
pub fn said(host: &Host, what: &str, bytes: &[u8]) -> Value {
    let digest = &digest(bytes)[..12];
    eventually(&format!("{what:?} of {digest}"), || {
        host.logged(what).into_iter().find(|line| line["digest"] == digest)
    })
}

/// Waits for the line that says that this version was loaded.
#[track_caller]
pub fn loaded(host: &Host, bytes: &[u8]) -> Value {
    said(host, "plugin loaded", bytes)
}
