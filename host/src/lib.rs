//! tqhost: task queues on Redis Streams, with the business work in sandboxed WebAssembly components.
//!
//! The binary in `main.rs` is thin; everything it does is here. ARCHITECTURE.md describes the way of a task
//! through these modules.

pub mod admin;
pub mod announcer;
pub mod app;
pub mod chain;
pub mod cli;
pub mod config;
pub mod doctor;
pub mod embedded;
mod file;
pub mod logging;
pub mod metrics;
pub mod plugins;
pub mod queue;
pub mod reload;
pub mod sandbox;
pub mod shutdown;
pub mod task;
pub mod worker;
