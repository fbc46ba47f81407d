//! Shared by the tests: a Redis and a folder for each test, hosts, commands, servers, load.
//!
//! In: nothing. Out: the types below. Not here: the tests themselves.

pub mod application;
pub mod bench;
pub mod clock;
pub mod cluster;
mod compiled;
pub mod dead_letters;
pub mod files;
pub mod first_process;
mod held;
pub mod http;
pub mod load;
pub mod names;
pub mod process;
pub mod producer;
pub mod proxy;
pub mod receiver;
pub mod redis_server;
pub mod requests;
pub mod runs;
mod slow;
pub mod soak;
pub mod swaps;
mod timing;
pub mod trickle;
pub mod wait;
pub mod wat;
pub mod watched;
pub mod web;
pub mod words;

pub use bench::{Bench, Host, Places, Ran};
pub use clock::Clock;
pub use cluster::Cluster;
pub use held::Held;
pub use load::Load;
pub use producer::Producer;
pub use redis_server::RedisServer;
pub use runs::Runs;
pub use slow::late_ms;
pub use trickle::{Done, Trickle};
pub use wait::{eventually, within};
pub use watched::Watched;
pub use web::{Authority, Web};
