//! Builds the guests that are written by hand, since no compiler makes such code.
//!
//! In: `plugins/testing/<name>.wat`, a core module in WebAssembly's text format. Out: `<name>.wasm` beside
//! it. Not here: guests in Rust and other languages (`make plugins`).

use std::path::Path;

use wit_component::StringEncoding;
use wit_parser::Resolve;

/// Writes `target` with the component type of wit/handler.wit. It is renamed into place, since many tests
/// build the same guest at once.
pub fn build(source: &Path, target: &Path) {
    let mut bytes = wat::parse_file(source).unwrap_or_else(|error| panic!("{error}"));
    let mut resolve = Resolve::default();
    resolve.push_str("handler.wit", include_str!("../../wit/handler.wit")).expect("wit/handler.wit");
    let world = "package tqhost:by-hand; world guest { export tqhost:handler/handler@0.1.0; }";
    let package = resolve.push_str("world.wit", world).expect("a world");
    let world = resolve.select_world(&[package], Some("guest")).expect("the world");
    wit_component::embed_component_metadata(&mut bytes, &resolve, world, StringEncoding::UTF8)
        .expect("embed the type");
    let new = tempfile::NamedTempFile::new_in(target.parent().expect("a folder")).expect("a file");
    std::fs::write(new.path(), bytes).expect("write a guest");
    new.persist(target).expect("rename a guest");
}
