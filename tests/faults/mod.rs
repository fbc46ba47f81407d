//! Faults: hosts, Redis, networks and data that fail. No task is lost, and none runs more often than the
//! fault explains.
//!
//! Not here: random faults under load (`proofs::chaos`), handlers that fail (`handlers::isolation`).

mod data;
mod ends;
mod forged;
mod full_redis;
mod functions;
mod hosts;
mod killed;
mod known_again;
mod least_rights;
mod log_lines;
mod lost_replies;
mod network;
mod other_versions;
mod redis;
mod rights;
mod sizes;
mod start;
mod starting;
mod suspects;
mod tls;
mod turns;
mod worker;
