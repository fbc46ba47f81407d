//! Reads values of the command line that several commands take.
//!
//! In: the text of a value. Out: the value, or what to write instead. Not here: durations and rates
//! (`config::units`), the definition of the commands (`args`).

use crate::config::units::parse_rate;
use crate::telemetry::TraceContext;

/// Reads a number of things, of which there is at least one.
pub(super) fn at_least_one<N: TryFrom<u64>>(text: &str) -> Result<N, String> {
    let number = text.parse().ok().filter(|number| *number > 0).and_then(|number| N::try_from(number).ok());
    number.ok_or_else(|| "write a whole number from 1".to_owned())
}

/// Checks a rate, and keeps its text.
pub(super) fn checked_rate(text: &str) -> Result<String, String> {
    parse_rate(text).map(|_| text.to_owned())
}

/// Checks a trace context, and keeps its text.
pub(super) fn parse_context(text: &str) -> Result<String, String> {
    let form = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let context = TraceContext::parse(text).map(|_| text.to_owned());
    context.ok_or_else(|| format!("not a W3C trace context: write it like {form}"))
}
