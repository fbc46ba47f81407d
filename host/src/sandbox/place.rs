//! Finds where a guest was when it was ended at its deadline.
//!
//! In: the error that ended the guest, with its calls and its memories. Out: words for the task's error. Not
//! here: the kind of the failure (`failure`), Python's own calls (`python`), open requests (`waits`).

use wasmtime::{Store, WasmCoreDump};

use super::failure::Whereabouts;
use super::python;
use super::state::GuestState;
use super::waits::{GuestWaits, LateWait};

/// The innermost functions that are named.
const MOST_FUNCTIONS: usize = 3;
/// Functions of runtimes and compilers, which say nothing about the handler.
const RUNTIMES: [&str; 9] =
    ["_", "Py", "runtime.", "core::", "alloc::", "std::", "<core::", "<alloc::", "<std::"];

/// The innermost calls of a guest that was ended: lines of Python, or else functions that have names.
fn place(error: &wasmtime::Error, store: &Store<GuestState>) -> Option<String> {
    let dump = error.downcast_ref::<WasmCoreDump>()?;
    let mut memories = dump.memories().iter();
    if let Some(places) = memories.find_map(|memory| python::places(memory.data(store))) {
        return Some(format!("at {places}"));
    }
    let names = dump.frames().iter().filter_map(|frame| frame.func_name());
    let names = names.map(|name| format!("{:#}", rustc_demangle::demangle(name)));
    let names: Vec<String> = names.filter(|name| !is_runtime(name)).take(MOST_FUNCTIONS).collect();
    (!names.is_empty()).then(|| format!("in {}", names.join(", called by ")))
}

fn is_runtime(name: &str) -> bool {
    // An export has a `#`, and the helpers of `tqhost new` for Go have their package.
    RUNTIMES.iter().any(|runtime| name.starts_with(runtime))
        || name.contains('#')
        || name.contains("/tqhost.")
}

/// Where a guest was when it was ended at its deadline. `said` is the place that it has logged itself. That
/// is better than its calls, by which a loop in JavaScript may seem to be in the engine's clock.
pub(super) fn whereabouts(
    error: &wasmtime::Error,
    store: &Store<GuestState>,
    waits: &GuestWaits,
    said: Option<&str>,
) -> Whereabouts {
    Whereabouts {
        is_waiting: error.is::<LateWait>(),
        place: said.map(str::to_owned).or_else(|| place(error, store)),
        ..waits.whereabouts()
    }
}
