//! Logs the requests of an attempt that were refused.
//!
//! In: what is refused, and why. Out: one line for each refusal, and a limit on their number.
//!
//! Not here: which requests are refused (`mod`, `connect`, `exchange`).

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::guarded::Guarded;
use crate::sandbox::log::Subject;

/// Largest number of different refusals that one attempt logs.
const MAX_REFUSALS: usize = 32;

/// Logs refusals: each one once, [`MAX_REFUSALS`] at most, however much else the guest has printed.
#[derive(Clone)]
pub(super) struct Refusals {
    /// The attempt's log would be wrong: when a stopped request logs last, it may be the log of another
    /// attempt.
    pub(super) subject: Option<Subject>,
    pub(super) seen: Arc<Guarded<BTreeSet<String>>>,
}

impl Refusals {
    pub(super) fn tell(&self, what: &str, why: &str) {
        let text = format!("{what} is refused: {why}");
        let mut seen = self.seen.lock();
        let more = match seen.len() {
            MAX_REFUSALS.. => return,
            count => count + 1 == MAX_REFUSALS,
        };
        if seen.insert(text.clone()) {
            let text = if more { "further refusals are not logged".to_owned() } else { text };
            if let Some(subject) = &self.subject {
                subject.refused(&text);
            }
        }
    }
}
