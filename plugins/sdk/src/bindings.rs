//! The generated Rust side of the WIT world in `wit/world.wit`.
//!
//! In: the repository's `wit/handler.wit` and this crate's `wit/`. Out: the modules `tqhost`, `wasi`, `exports` and the macro that
//! exports a handler. Used by [`crate::handler!`] and the modules beside this one; nobody else needs it.
//!
//! Outside of WebAssembly every imported function panics, so each module beside this one has a native stand-in.
#![allow(missing_docs, reason = "generated")]

wit_bindgen::generate!({
    path: ["../../wit/handler.wit", "wit"],
    world: "tqhost:sdk/rust-handler",
    generate_all,
    pub_export_macro: true,
    export_macro_name: "export_handler",
    default_bindings_module: "tqhost_handler::bindings",
});
