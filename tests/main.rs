//! End-to-end tests: the real binary, a real Redis, real components.
//!
//! Each test has a Redis, a folder and a host of its own (`support`). It waits for events, never for time.
//! `make plugins` builds the guests, and `plugins/testing/README.md` describes each of them.

mod support;

mod activity_events;
mod authors;
mod bad_input;
mod batches;
mod capacity;
mod chaos;
mod commands;
mod compiling;
mod control;
mod costs;
mod demo;
mod doctor;
mod faults;
mod faults_data;
mod faults_killed;
mod faults_network;
mod faults_redis;
mod faults_worker;
mod http;
mod idempotency;
mod idle;
mod instances;
mod isolation;
mod languages;
mod lists;
mod lost_replies;
mod model;
mod other_versions;
mod plugins;
mod property;
mod reclaim;
mod reload;
mod report_queue;
mod resume_model;
mod schedules;
mod settlements;
mod soak;
mod suspects;
mod swaps;
mod tasks;
mod tidy;
mod upkeep;
mod versions;
