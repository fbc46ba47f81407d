//! Knows the limits that an operator has set for one queue.
//!
//! In: what the lookout finds in Redis. Out: the rate that holds, a lower bound of the queue's permits, and a
//! line in the log when the limits change. Not here: the limit of tasks of one key at once, which the scripts
//! read themselves (`queue/scripts/lib.lua`).

use std::sync::Arc;

use super::capacity::QueueCapacity;
use crate::config::QueueRules;
use crate::config::rules::Rate;
use crate::guarded::Guarded;
use crate::queue::limits::QueueLimits;

#[derive(Debug)]
pub(crate) struct KnownLimits {
    rules: Arc<QueueRules>,
    capacity: Arc<QueueCapacity>,
    /// The limits as they were found last.
    found: Guarded<Option<QueueLimits>>,
}

impl KnownLimits {
    pub(crate) fn new(rules: Arc<QueueRules>, capacity: Arc<QueueCapacity>) -> KnownLimits {
        KnownLimits { rules, capacity, found: Guarded::default() }
    }

    /// Notes the limits that a look has found.
    pub(crate) fn note(&self, found: Option<QueueLimits>) {
        // An older worker of the queue, with the same permits, may have noted others.
        self.capacity.lower(found.as_ref().and_then(|limits| limits.concurrency));
        let mut known = self.found.lock();
        if *known == found {
            return;
        }
        let queue = self.rules.name.as_str();
        match &found {
            Some(limits) => {
                let QueueLimits { by, why, .. } = limits;
                tracing::info!(
                    queue,
                    limits = limits.words(),
                    by,
                    why,
                    "the queue is limited by an operator"
                );
            }
            None => tracing::info!(queue, "the queue is limited by its configuration alone again"),
        }
        *known = found;
    }

    /// How many tasks may start in all hosts together.
    pub(crate) fn rate(&self) -> Option<Rate> {
        let configured = self.rules.rate_limit;
        self.found.lock().as_ref().map_or(configured, |limits| limits.lowered_rate(configured))
    }
}
