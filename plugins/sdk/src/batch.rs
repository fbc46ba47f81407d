//! The generated Rust side of the optional batch handler.
//!
//! In: the world `batching` in `wit/world.wit`. Out: the macro that exports a batch handler. Only
//! [`crate::handler!`] uses this macro, and only with a `batch` function, because a component must implement
//! what it exports.
#![allow(missing_docs, reason = "generated")]

wit_bindgen::generate!({
    path: ["../../wit", "wit"],
    world: "tqhost:sdk/batching",
    with: { "tqhost:handler/types@0.1.0": crate::bindings::tqhost::handler::types },
    pub_export_macro: true,
    export_macro_name: "export_batch",
    default_bindings_module: "tqhost_handler::batch",
});
