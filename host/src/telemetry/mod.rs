//! Traces: the spans of tasks, sent to a collector over OTLP.
//!
//! In: the beginnings and ends of tasks, attempts and requests. Out: spans for the collector (`export`), and
//! the texts of `traceparent` for the tasks and requests that follow. Nothing here waits for the collector: a
//! span that finds no room is dropped and counted.
//!
//! ```text
//! enqueueing ─▶ span "enqueue" ─┐
//! attempt ────▶ "wait", "run" ──┼─▶ a bounded queue ─▶ export ─▶ POST …/v1/traces
//! request ────▶ "GET" ──────────┘
//! ```
//!
//! Without a collector in the configuration, [`Traces`] is empty: no span is made, and a producer's
//! `traceparent` is passed on as it is.
//!
//! Not here: the field in which a task carries its last attempt (`queue::codec`).

mod attempt;
mod context;
mod enqueueing;
mod export;
mod request;
mod span;
mod traces;

pub use attempt::AttemptTrace;
pub(crate) use attempt::RunEnd;
pub(crate) use context::{TRACEPARENT, TraceContext, add_to};
pub(crate) use enqueueing::Enqueueing;
pub(crate) use export::TraceExport;
pub(crate) use request::{RequestSpan, RequestTrace};
pub(crate) use traces::Traces;
