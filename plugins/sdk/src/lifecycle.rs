//! The generated Rust side of the optional self-check.
//!
//! In: the world `self-checked` in `wit/world.wit`. Out: the macro that exports a self-check. Only
//! [`crate::handler!`] uses this macro, and only with a `self_check` function, because a component must
//! implement what it exports.
#![allow(missing_docs, reason = "generated")]

wit_bindgen::generate!({
    path: ["../../wit", "wit"],
    world: "tqhost:sdk/self-checked",
    pub_export_macro: true,
    export_macro_name: "export_lifecycle",
    default_bindings_module: "tqhost_handler::lifecycle",
});
