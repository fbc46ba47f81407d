//! Failures for a cause outside of the handler, until the attempt ends.
//!
//! In: the messages of all failures that `Failure::unavailable` made. Out: calls of the host, one for each
//! task that ends with such a failure. A failure that the handler dropped or replaced is not reported.
//!
//! The interface's function is called through a pointer that only [`note`] sets. So the built file imports
//! the interface only if the handler can make such a failure.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::mem::ManuallyDrop;

use crate::Failure;
#[cfg(target_family = "wasm")]
use crate::bindings::tqhost::extensions::outage as host;
#[cfg(not(target_family = "wasm"))]
use crate::memory::outage as host;

/// The most messages that are kept. A batch has fewer tasks.
const MAX_NOTED: usize = 10_000;

/// It needs no drop: otherwise its first use would allocate, in every handler.
struct Noted {
    messages: ManuallyDrop<BTreeSet<String>>,
    tell: Option<fn(u32, Option<u64>)>,
}

thread_local! {
    static NOTED: RefCell<Noted> = const {
        RefCell::new(Noted { messages: ManuallyDrop::new(BTreeSet::new()), tell: None })
    };
}

/// Begins an attempt.
pub(crate) fn begin() {
    NOTED.with_borrow_mut(|noted| noted.messages.clear());
    #[cfg(not(target_family = "wasm"))]
    crate::memory::with(|memory| memory.outages.clear());
}

/// Notes the message of a failure for a cause outside.
pub(crate) fn note(message: &str) {
    NOTED.with_borrow_mut(|noted| {
        if noted.messages.len() < MAX_NOTED {
            noted.messages.insert(message.to_owned());
        }
        noted.tell = Some(host::unavailable);
    });
}

/// Whether the failure was made for a cause outside.
pub(crate) fn is_noted(failure: &Failure) -> bool {
    let Failure::Retry(retry) = failure else { return false };
    NOTED.with_borrow(|noted| noted.messages.contains(&retry.message))
}

/// Tells the host how the task at this place of the call ended, if a service was down.
pub(crate) fn tell<T>(index: usize, result: &Result<T, Failure>) {
    let Err(failure @ Failure::Retry(retry)) = result else { return };
    if is_noted(failure)
        && let Some(tell) = NOTED.with_borrow(|noted| noted.tell)
    {
        tell(u32::try_from(index).unwrap_or(u32::MAX), retry.after_ms);
    }
}
