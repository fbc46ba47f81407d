//! Logs the requests of an attempt that were refused.
//!
//! In: a refused request, and why it is refused. Out: one line for each refusal, up to [`MAX_REFUSALS`].
//!
//! Not here: which requests are refused (`mod`, `connect`, `exchange`).

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::guarded::Guarded;
use crate::sandbox::log::Subject;

/// Largest number of different refusals that one attempt logs. In the place of the last one, a line says that
/// there may be more.
const MAX_REFUSALS: usize = 32;

/// Logs refusals, each text once. They do not count against what the guest may print.
#[derive(Clone)]
pub(super) struct Refusals {
    /// The attempt. Its log cannot stand here: when a stopped request is refused late, that log may already
    /// be another attempt's.
    pub(super) subject: Option<Subject>,
    pub(super) seen: Arc<Guarded<BTreeSet<String>>>,
}

impl Refusals {
    pub(super) fn tell(&self, what: &str, why: &str) {
        let text = format!("{what} is refused: {why}");
        let mut seen = self.seen.lock();
        if seen.len() == MAX_REFUSALS || !seen.insert(text.clone()) {
            return;
        }
        if let Some(subject) = &self.subject {
            let is_last = seen.len() == MAX_REFUSALS;
            subject.refused(if is_last { "further refusals are not logged" } else { &text });
        }
    }
}
