//! Counts the requests of one plugin's handlers by result, for the metrics.
//!
//! Not here: when a request is counted (`counts`).

use std::sync::atomic::{AtomicU64, Ordering};

/// The requests of one plugin's handlers since the host started.
#[derive(Debug, Default)]
pub struct Requests(pub(super) [AtomicU64; Requests::RESULTS.len()]);

impl Requests {
    /// The values of the label `result`, in the order of the variants of `counts::RequestEnd`.
    pub const RESULTS: [&'static str; 5] = ["ok", "denied", "timeout", "error", "aborted"];

    /// The number of requests for each name in [`Self::RESULTS`].
    pub fn totals(&self) -> [(&'static str, u64); Requests::RESULTS.len()] {
        std::array::from_fn(|n| (Requests::RESULTS[n], self.0[n].load(Ordering::Relaxed)))
    }
}
