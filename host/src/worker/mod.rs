//! Carries tasks from claim to settlement: the loops of one queue.
//!
//! Each queue has its own loops, one per file:
//! - [`fetcher`] and [`reclaimer`] claim tasks;
//! - [`gather`] forms batches, [`runner`] runs attempts, [`settler`] settles them;
//! - [`heartbeat`] renews leases, and [`status_writer`] writes PROCESSING for attempts that run for long;
//! - [`promoter`] moves due tasks back to the stream;
//! - [`mover`] and [`scheduler`] enqueue tasks;
//! - [`census`] reads the queue's figures.
//!
//! [`shared`] holds the state of these loops, [`metrics`] what they count, and [`lifecycle`] starts and stops
//! them.
//! [`waiter`], [`lookout`] and [`janitor`] serve all queues of the host together.

pub mod alone;
pub mod backoff;
pub mod capacity;
pub mod census;
pub mod common;
pub mod crew;
pub mod fetcher;
pub mod gate;
pub mod gather;
pub mod gathering;
pub mod heartbeat;
pub mod idle;
pub mod inflight;
pub mod intake;
pub mod janitor;
pub mod job;
pub mod lifecycle;
pub mod lookout;
pub mod metrics;
pub mod mover;
pub mod pace;
pub mod promoter;
pub mod reclaimer;
pub mod runner;
pub mod scheduler;
pub mod settle;
pub mod settler;
pub mod shared;
pub mod starts;
pub mod status_writer;
pub mod suspect;
pub mod waiter;
pub mod workers;
