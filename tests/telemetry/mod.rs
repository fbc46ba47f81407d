//! Traces: the spans that hosts and commands send, and the trace contexts that tasks and requests carry.

mod collector;
mod outages;
mod traces;

use collector::Collector;

/// A trace that somebody else has begun, and the last span of it.
const ABOVE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// The queues of a configuration, and the collector beside them.
fn with(collector: &Collector, queues: &str) -> String {
    format!("{queues}\n[telemetry]\notlp = \"{}\"\n", collector.origin())
}
