//! The generated Rust side of the WIT world in `wit/world.wit`.
//!
//! In: the repository's `wit/` and this crate's `wit/`. Out: the modules `tqhost`, `wasi` and
//! `exports`, and the macro that exports a handler. [`crate::handler!`] and the other modules of this crate
//! use them; a handler does not need them.
//!
//! In a native build every imported function panics, so each module that calls one has a native substitute.
#![allow(missing_docs, reason = "generated")]

wit_bindgen::generate!({
    path: ["../../wit", "wit"],
    world: "tqhost:sdk/rust-handler",
    generate_all,
    pub_export_macro: true,
    export_macro_name: "export_handler",
    default_bindings_module: "tqhost_handler::bindings",
});
