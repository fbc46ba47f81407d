//! Classifies why an attempt failed: a kind and a message.
//!
//! In: the error that ended the guest, and what the host observed. Out: the [`FailureKind`] and a bounded
//! text.

use std::time::Duration;

use wasmtime::{Error, Trap, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use super::effects::FlowFailed;
use super::limits::Limits;
use super::log::{GuestLog, clean};
use super::mask::Mask;
use crate::task::FailureKind;

/// Largest size of any text that leaves the sandbox for an error field, in bytes.
pub(super) const MAX_MESSAGE: usize = 4 * 1024;

/// A part of wasmtime's error for a value that is too large to copy. The error has no public type; a test
/// checks the text.
const TOO_MUCH_COPIED: &str = "fuel allocated for hostcalls has been exhausted";

/// The part of the attempt in which the guest failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Instantiate,
    Call,
}

impl Phase {
    /// The failure of a guest that was ended by its timeout. `who` was called, as the message says, and has
    /// `waited` for services, clocks and other handlers.
    pub(super) fn timed_out(
        self,
        who: &str,
        timeout: Duration,
        waited: Duration,
        whereabouts: &Whereabouts,
        mask: &Mask,
    ) -> (FailureKind, String) {
        if self == Phase::Instantiate {
            return (FailureKind::StartTimeout, format!("not instantiated within {timeout:?}"));
        }
        let place = whereabouts.place.as_deref().map(|place| format!(", {place}")).unwrap_or_default();
        let late = |how: &str| bounded(&format!("{who} did not end within {timeout:?}: {how}{place}"), mask);
        if waited < timeout / 2 {
            return (FailureKind::BusyTimeout, late("it computed for most of that time"));
        }
        let message = match &whereabouts.requests {
            Some(requests) => late(&format!("it waited for most of that time, and {requests}")),
            None if whereabouts.is_waiting => late("it slept for most of that time, with no request open"),
            None => late("it waited for most of that time, for a service, a clock or other handlers"),
        };
        (FailureKind::Timeout, message)
    }
}

/// Where a guest was that was ended by its timeout.
#[derive(Debug, Default)]
pub(super) struct Whereabouts {
    /// It waited in a call of the host: for a clock, or for an answer.
    pub(super) is_waiting: bool,
    /// Its open requests, in words.
    pub(super) requests: Option<String>,
    /// The calls of the guest, in words.
    pub(super) place: Option<String>,
}

/// The bytes that a call may return.
#[derive(Debug, Clone, Copy)]
pub(super) struct OutputBounds {
    pub(super) max_output: u64,
    /// The most bytes that the host copies. A larger result is not measured.
    pub(super) copied: u64,
}

/// Finds the kind and the message of a failure.
pub(super) fn classify(
    error: &Error,
    phase: Phase,
    limits: &Limits,
    output: OutputBounds,
    log: &GuestLog,
) -> (FailureKind, String) {
    if let Some(FlowFailed(why)) = error.downcast_ref::<FlowFailed>() {
        return (FailureKind::Effects, bounded(why, log.mask()));
    }
    // A guest that was refused memory fails in many ways: unreachable, abort, exit, an exception of its
    // language.
    if let Some(refused) = limits.refused() {
        return (FailureKind::OutOfMemory, with_last_words(refused, log));
    }
    if let Some(trap) = error.downcast_ref::<Trap>() {
        return (FailureKind::Trap, bounded(&trapped(*trap, log.last_words()), log.mask()));
    }
    if let Some(I32Exit(code)) = error.downcast_ref::<I32Exit>() {
        let why = format!("the handler called exit({code}) instead of returning");
        return (FailureKind::Trap, with_last_words(&why, log));
    }
    let cause = error.root_cause().to_string();
    if cause.contains(TOO_MUCH_COPIED) {
        let OutputBounds { max_output, copied } = output;
        // A refused argument of a host function has a backtrace, a refused result has none.
        return if error.downcast_ref::<WasmBacktrace>().is_none() {
            let why = format!("the handler returned more than {copied} bytes, max_output is {max_output}");
            (FailureKind::OutputTooLarge, why)
        } else {
            let why = format!(
                "it passed more than {copied} bytes to a function of the host, max_output is {max_output}"
            );
            (FailureKind::Trap, with_last_words(&why, log))
        };
    }
    let kind = if phase == Phase::Instantiate { FailureKind::Instantiate } else { FailureKind::Trap };
    (kind, with_last_words(&cause, log))
}

/// The message for a trap. What the guest said last is its cause, so it comes first: tables cut the end.
fn trapped(trap: Trap, last_words: Option<&str>) -> String {
    let text = trap.to_string();
    let text = text.strip_prefix("wasm trap: ").unwrap_or(&text);
    let hint = match (trap, last_words) {
        // Compilers put the stack at the bottom of the memory, where its overflow looks like a bad pointer.
        (Trap::MemoryOutOfBounds, _) => ": a bad pointer, or a stack overflow",
        (Trap::UnreachableCodeReached, None) => {
            ": a panic, an abort or an uncaught exception without a word; `tqhost try --backtrace` says where"
        }
        // Many languages end in this way after they have printed the reason.
        (Trap::UnreachableCodeReached, Some(words)) => return words.to_owned(),
        _ => "",
    };
    match last_words {
        Some(words) => format!("{words} ({text}{hint})"),
        None => format!("{text}{hint}"),
    }
}

/// The kind and the message of an exception that the handler did not catch, in an instance that goes on.
pub(super) fn uncaught(refused: Option<&str>, log: &GuestLog) -> (FailureKind, String) {
    match (refused, log.last_words()) {
        (Some(refused), _) => (FailureKind::OutOfMemory, with_last_words(refused, log)),
        (None, Some(words)) => (FailureKind::Trap, bounded(words, log.mask())),
        (None, None) => (FailureKind::Trap, "an uncaught exception, and nothing was logged about it".into()),
    }
}

/// The calls of the guest in which the error happened, the innermost first.
pub(super) fn backtrace(error: &Error, mask: &Mask) -> Vec<String> {
    let Some(trace) = error.downcast_ref::<WasmBacktrace>() else { return Vec::new() };
    // The first line is a title, and a note tells how to have lines where there are none.
    let lines = trace.to_string();
    let lines = lines.lines().skip(1).filter(|line| !line.starts_with("note:"));
    lines.map(|line| bounded(line.trim_end(), mask)).collect()
}

fn with_last_words(cause: &str, log: &GuestLog) -> String {
    match log.last_words() {
        Some(words) => bounded(&format!("{cause}: {words}"), log.mask()),
        None => bounded(cause, log.mask()),
    }
}

/// Masks the secrets in a text, escapes what could forge a log line, and cuts it at [`MAX_MESSAGE`].
pub(super) fn bounded(text: &str, mask: &Mask) -> String {
    let text = mask.text(text);
    clean(&text.as_bytes()[..text.floor_char_boundary(MAX_MESSAGE)]).into_owned()
}
