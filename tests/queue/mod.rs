//! Queues: the life of a task, and every feature of a queue on hosts that work.
//!
//! Not here: faults (`faults`).

mod activity_events;
mod alias;
mod attempts;
mod batches;
mod capacity;
mod control;
mod costs;
mod expiry;
mod history;
mod hold;
mod idempotency;
mod idle;
mod keep_fields;
mod large;
mod limits;
mod lists;
mod longest_call;
mod rates;
mod reclaim;
mod repeated_ids;
mod report_queue;
mod schedules;
mod settlements;
mod tasks;
mod turns;
mod upkeep;
