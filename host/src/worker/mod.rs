//! Carries tasks from claim to settlement: the loops of one queue.
//!
//! Each queue has its own loops, one per file:
//! - [`fetcher`] and [`reclaimer`] claim tasks, and [`arrivals`] asks Redis what has to be known of them;
//! - [`intake`] and the [`gate`] decide which tasks run, [`gather`] forms batches, [`crew`] begins attempts,
//!   [`runner`] runs them, and [`settler`] settles them;
//! - [`heartbeat`] renews leases, and [`status_writer`] writes PROCESSING for attempts that run for long;
//! - [`preparer`] checks the keys before any of these loops claims or moves a task;
//! - [`promoter`] moves due tasks back to the stream;
//! - [`mover`] and [`scheduler`] enqueue tasks;
//! - [`census`] reads the queue's figures.
//!
//! [`holding`] knows whether something outside is down, and which loop may try a task then; [`ramp`] bounds
//! the starts after that. [`limits`] knows the limits that operators have set.
//!
//! [`shared`] holds the state of these loops, [`metrics`] what they count, and [`lifecycle`] starts and stops
//! them. [`notices`] and [`storm`] bound what they log.
//! [`waiter`], [`lookout`], [`janitor`] and [`recorder`] serve all queues of the host together.

pub(crate) mod alone;
mod arrivals;
pub(crate) mod backoff;
pub(crate) mod capacity;
pub(crate) mod census;
pub(crate) mod crew;
pub(crate) mod ended;
pub(crate) mod fetcher;
pub(crate) mod gate;
pub(crate) mod gather;
pub(crate) mod heartbeat;
pub(crate) mod holding;
mod host_time;
pub(crate) mod idle;
pub(crate) mod inflight;
pub(crate) mod intake;
pub(crate) mod janitor;
pub(crate) mod lifecycle;
mod limits;
pub(crate) mod lookout;
pub(crate) mod metrics;
pub(crate) mod mover;
pub(crate) mod notices;
pub(crate) mod pace;
pub(crate) mod poller;
pub(crate) mod preparer;
pub(crate) mod promoter;
mod ramp;
pub(crate) mod reclaimer;
pub(crate) mod recorder;
mod relay;
pub(crate) mod runner;
pub(crate) mod scheduler;
pub mod settle;
pub(crate) mod settler;
pub(crate) mod shared;
pub(crate) mod starts;
pub(crate) mod status_writer;
pub(crate) mod storm;
pub(crate) mod suspect;
pub(crate) mod waiter;
pub(crate) mod workers;
