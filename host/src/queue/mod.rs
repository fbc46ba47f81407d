//! Holds all data of queues that Redis keeps. Each operation is a method of [`Queue`], and one script or one
//! command.
//!
//! In: a queue's configuration, tasks, settlements. Out: entries, statuses, dead letters, figures. Nothing
//! here loops over time or decides the outcome of a task: that is `worker`. Commands repeat nothing by
//! themselves, except to load a script. Not here: examining a whole queue and all of its keys (`doctor`,
//! which builds on this module).

pub mod cancel;
pub mod census;
pub mod claim;
pub mod codec;
pub mod dead;
pub mod delay;
pub mod duties;
pub mod error;
mod handle;
pub mod hosts;
pub mod keys;
pub mod link;
pub mod list;
pub mod pause;
pub mod produce;
pub mod rate;
pub(crate) mod reply;
pub mod schedule;
pub mod script;
pub mod server;
pub mod settle;
pub mod status;
pub mod upkeep;
pub mod wait;

pub use census::Census;
pub use claim::{Begun, HeartbeatReport, Lease, Start};
pub use codec::StreamEntry;
pub use dead::{DeadFilter, DeadLetter, Redriven};
pub use error::QueueError;
pub use handle::Queue;
pub use link::{Link, Redis};
pub use produce::{Enqueued, NewTask};
pub use settle::{Ending, EndingSubject, Reason, SettleCall, Settled, Settlement};
pub use status::{Status, TaskStatus};

pub(crate) use handle::millis;
