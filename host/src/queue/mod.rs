//! Holds all data of queues that Redis keeps. Each operation is a method of [`Queue`], and one script or one
//! command.
//!
//! In: a queue's configuration, tasks, settlements. Out: entries, statuses, dead letters, figures. Nothing
//! here loops over time or decides the outcome of a task: that is `worker`. Commands repeat nothing by
//! themselves, except to load a script, and what a running attempt waits for (`repeat`). Not here: examining
//! a whole queue and all of its keys (`doctor`, which builds on this module).

pub(crate) mod alias;
pub(crate) mod attempts;
pub(crate) mod cancel;
pub(crate) mod census;
pub(crate) mod changes;
pub(crate) mod claim;
mod cluster;
pub mod codec;
mod condition;
mod connect;
mod connections;
pub(crate) mod control;
pub(crate) mod dead;
pub(crate) mod delay;
pub(crate) mod duties;
pub(crate) mod effects;
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod filter;
pub(crate) mod flow;
mod group;
mod handle;
pub(crate) mod hold;
pub(crate) mod hosts;
pub(crate) mod incidents;
pub(crate) mod items;
pub(crate) mod jobs;
pub(crate) mod kept;
pub(crate) mod keys;
mod layout;
mod library;
pub(crate) mod limits;
pub(crate) mod link;
pub(crate) mod list;
pub(crate) mod listing;
pub(crate) mod minutes;
mod node;
mod nodes;
pub(crate) mod orders;
mod pace;
pub(crate) mod pause;
pub(crate) mod produce;
mod pushes;
pub(crate) mod rate;
mod reason;
pub(crate) mod redrive;
mod relay;
pub(crate) mod repeat;
pub(crate) mod reply;
pub(crate) mod rights;
pub mod schedule;
pub mod script;
mod search;
mod sentinels;
pub(crate) mod server;
mod servers;
pub(crate) mod sessions;
pub(crate) mod settle;
pub(crate) mod size;
pub(crate) mod stand;
pub(crate) mod status;
mod steps;
pub(crate) mod tally;
mod tracking;
pub(crate) mod turns;
pub(crate) mod undo;
pub(crate) mod upkeep;
mod value;
pub(crate) mod versions;
pub(crate) mod wait;

pub(crate) use alias::Meant;
pub(crate) use census::Census;
pub use claim::{Begun, HeartbeatReport, Lease, Start};
pub use codec::StreamEntry;
pub(crate) use condition::FieldCondition;
pub(crate) use dead::DeadLetter;
pub use effects::NoEffects;
pub(crate) use effects::QueueEffects;
pub(crate) use error::{QueueError, QueueResult};
pub use filter::TaskFilter;
pub(crate) use flow::FlowChild;
pub use handle::Queue;
pub use link::Link;
pub(crate) use produce::check_fields;
pub use produce::{Enqueued, NewTask};
pub(crate) use reason::Reason;
pub(crate) use redrive::{RedriveCounts, RedriveError};
pub(crate) use relay::OwnTasks;
pub(crate) use search::BOUNDS as SEARCH_BOUNDS;
pub use servers::Redis;
pub use settle::{Ending, EndingSubject, SettleCall, Settled, Settlement};
pub use status::Status;
pub(crate) use status::{FlowProgress, TaskName, TaskStatus, TaskSummary};

pub(crate) use handle::millis;
