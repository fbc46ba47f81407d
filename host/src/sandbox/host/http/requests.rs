//! Counts the requests of one plugin's handlers by their ends, for the metrics.
//!
//! Not here: when a request is counted (`counts`).

use std::sync::atomic::{AtomicU64, Ordering};

use strum::{EnumCount, IntoStaticStr, VariantArray};

/// How a request ended. Its name is the value of the label `result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumCount, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub(super) enum RequestEnd {
    /// There was a response, and the handler got as much of it as it wanted.
    Ok,
    /// The host refused the request: its host, its address, or too many requests at once.
    Denied,
    Timeout,
    /// The request failed: the name, the connection, TLS, the server, or a size limit.
    Error,
    /// The attempt ended, or the handler dropped the request, before there was a response.
    Aborted,
}

/// The requests of one plugin's handlers since the host started.
#[derive(Debug, Default)]
pub struct Requests([AtomicU64; RequestEnd::COUNT]);

impl Requests {
    pub(super) fn count(&self, end: RequestEnd) {
        self.0[end as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The number of requests for each end, with its name.
    pub fn totals(&self) -> [(&'static str, u64); RequestEnd::COUNT] {
        let count = |n: usize| self.0[n].load(Ordering::Relaxed);
        std::array::from_fn(|n| (RequestEnd::VARIANTS[n].into_str(), count(n)))
    }
}
