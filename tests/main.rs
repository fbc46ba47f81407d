//! End-to-end tests: the real binary, a real Redis, real components.
//!
//! Each test has a Redis, a folder and a host of its own (`support`). It waits for events, never for time.
//! `make plugins` builds the guests, and `plugins/testing/README.md` describes each of them. The name of a
//! test begins with its folder and its file: `cargo test --test e2e faults::redis::` runs one file.
//!
//! Not here: the long runs (`chaos`, `soak`), the measurements (`bench`), the fuzzer (`fuzz`). They are
//! programs of their own.

mod support;

mod api;
mod cli;
mod config;
mod dashboard;
mod effects;
mod faults;
mod handlers;
mod moving;
mod plugins;
mod proofs;
mod queue;
mod servers;
mod telemetry;
mod tidy;
