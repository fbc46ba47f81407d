//! Tests with servers that are fetched from public registries: `make test-world`. `cargo test` does not run
//! them by itself.
//!
//! Not here: the end-to-end tests, which need no network (`tests/main.rs`).

mod alerts;
mod blobs;
mod browser;
mod chart;
mod clients;
mod deploy;
mod dist;
mod doors;
mod java;
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
#[path = "../handlers/llm.rs"]
mod llm;
mod openapi;
mod packages;
mod proxy;
mod registry;
mod registry_server;
mod s3_server;
mod search;
#[allow(dead_code, unused_imports, reason = "the end-to-end tests use the rest")]
#[path = "../support/mod.rs"]
mod support;
