//! Carries tasks from claim to settlement: the loops of one queue.
//!
//! A newcomer finds a loop by its file: [`fetcher`] and [`reclaimer`] claim, [`gather`] puts together, [`runner`] runs, [`settler`] settles,
//! [`teller`] tells clients what runs for long, [`promoter`] brings back what is due, [`mover`] and [`scheduler`] make tasks, [`heartbeat`]
//! keeps leases, [`census`] counts. What they share is in [`shared`]; [`lifecycle`] starts and stops them.
//! For all queues together there are [`waiter`], [`lookout`] and [`janitor`]: what a host costs while nothing happens.

pub mod alone;
pub mod backoff;
pub mod capacity;
pub mod census;
pub mod crew;
pub mod fetcher;
pub mod gather;
pub mod heartbeat;
pub mod idle;
pub mod inflight;
pub mod intake;
pub mod janitor;
pub mod job;
pub mod lifecycle;
pub mod lookout;
pub mod mover;
pub mod pace;
pub mod promoter;
pub mod reclaimer;
pub mod runner;
pub mod scheduler;
pub mod settle;
pub mod settler;
pub mod shared;
pub mod stop;
pub mod suspect;
pub mod teller;
pub mod waiter;
pub mod workers;
