//! The alarms of the dashboard as series, so that one rule of Prometheus carries all of them.
//!
//! In: a scrape, which asks for a new look. Out: the alarms of the look before. So a scrape never waits for
//! Redis, and a host that is not scraped looks at nothing.
//!
//! Not here: finding alarms (`operations::alarms`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::guarded::Guarded;
use crate::operations::LastOverview;
use crate::operations::incidents::Incident;
use crate::queue::Link;
use crate::reload::ConfigReloads;

/// The shortest time between two looks. A look reads as much as the overview of the dashboard.
const EVERY: Duration = Duration::from_secs(5);

/// Kind, queue and severity, with the number of alarms that have them.
pub(super) type Counts = BTreeMap<(&'static str, String, &'static str), u64>;

/// The alarms of the last look. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct AlarmBoard(Arc<Board>);

#[derive(Default)]
struct Board {
    counts: Guarded<Counts>,
    asked: Notify,
    last: LastOverview,
}

impl AlarmBoard {
    /// Looks once, and then after each scrape.
    pub(crate) async fn run(self, reloads: ConfigReloads, link: Link, stop: CancellationToken) {
        let looking = async {
            loop {
                let counts = match self.0.last.look(&reloads.queues(), &link).await {
                    Ok(seen) => count(&seen.incidents),
                    Err(error) => {
                        tracing::debug!(%error, "could not look for alarms");
                        Counts::from([(("redis-away", String::new(), "urgent"), 1)])
                    }
                };
                self.note(counts);
                tokio::time::sleep(EVERY).await;
                self.0.asked.notified().await;
            }
        };
        stop.run_until_cancelled(looking).await;
    }

    /// The overview of the last look.
    pub(crate) fn last(&self) -> LastOverview {
        self.0.last.clone()
    }

    pub(super) fn note(&self, counts: Counts) {
        *self.0.counts.lock() = counts;
    }

    /// The alarms of the last look. Asks for the next look.
    pub(super) fn scrape(&self) -> Counts {
        self.0.asked.notify_one();
        self.0.counts.lock().clone()
    }
}

fn count(incidents: &[Incident]) -> Counts {
    let mut counts = Counts::new();
    for alarm in incidents.iter().flat_map(Incident::alarms) {
        let severity = if alarm.is_urgent { "urgent" } else { "look" };
        let queue = alarm.queue.clone().unwrap_or_default();
        *counts.entry((alarm.kind, queue, severity)).or_default() += 1;
    }
    counts
}
