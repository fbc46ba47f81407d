//! Configuration: `tqhost.toml` in, a checked [`Config`] or all its problems out.

pub mod model;
pub mod secret;

pub use model::{Admin, Backoff, Config, Plugin, Queue, Redis};
pub use secret::Secret;
