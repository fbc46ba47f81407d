//! Reads a queue's figures every few seconds for the metrics.
//!
//! The figures of a resting queue are read only while they can change. The host with the queue's duties also
//! looks whether a producer trims entries that no host has read, and whether the stream has a consumer group
//! that nobody has confirmed.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::idle::Rest;
use super::notices::first_few;
use super::shared::SharedQueue;
use crate::queue::QueueResult;
use crate::queue::stand::StreamStand;

/// How often the figures are read. Those of an empty queue that rests are read less often: only the number of
/// its dead letters can change before it wakes.
const EVERY: Duration = Duration::from_secs(5);

/// How often the log has other consumer groups while nobody confirms them.
const REMIND: Duration = Duration::from_secs(60);

pub(crate) struct CensusTaker {
    pub shared: Arc<SharedQueue>,
}

/// The findings of the looks so far.
#[derive(Default)]
struct Noticed {
    /// The last look, and how many entries had been trimmed unread by then. Each server has a count of its
    /// own (`report_trims`).
    trimmed: Option<(StreamStand, u64)>,
    /// The other groups that the log had last, and when.
    groups: Option<(Vec<String>, Instant)>,
}

impl CensusTaker {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut rest = self.shared.idle.rest();
        let mut noticed = Noticed::default();
        let counts = async {
            loop {
                let rests = *rest.borrow_and_update() != Rest::Awake;
                let rests_empty = match self.shared.queue.census().await {
                    Ok(census) => {
                        let is_empty = census.waiting() + census.running + census.delayed == 0;
                        self.shared.metrics.note_census(census);
                        rests && is_empty
                    }
                    // The other loops say what is wrong with Redis.
                    Err(error) => {
                        tracing::debug!(queue = self.shared.name.as_ref(), %error, "could not count tasks");
                        false
                    }
                };
                if !self.shared.idle.has_duty() {
                    // Another host counts from here on.
                    noticed = Noticed::default();
                } else if let Err(error) = self.look_at_stream(&mut noticed).await {
                    tracing::debug!(queue = self.shared.name.as_ref(), %error, "no look at the stream");
                }
                // Until the queue wakes, or its fetcher has looked whether it should (`idle`).
                if rests_empty {
                    let _ = rest.changed().await;
                }
                tokio::time::sleep(EVERY).await;
            }
        };
        stop.run_until_cancelled(counts).await;
    }

    async fn look_at_stream(&self, noticed: &mut Noticed) -> QueueResult {
        let Some(stand) = self.shared.queue.stand().await? else { return Ok(()) };
        self.warn_of_groups(&stand, &mut noticed.groups);
        self.report_trims(&stand, &mut noticed.trimmed);
        Ok(())
    }

    /// Warns of groups that nobody has confirmed: tqhost deletes each entry when it settles the task, whether
    /// or not these groups have read it.
    fn warn_of_groups(&self, stand: &StreamStand, logged: &mut Option<(Vec<String>, Instant)>) {
        let unconfirmed = stand.others.iter().filter(|group| !group.is_confirmed);
        let groups: Vec<String> = unconfirmed.map(|group| group.name.clone()).collect();
        if groups.is_empty() {
            *logged = None;
            return;
        }
        if logged.as_ref().is_some_and(|(before, at)| *before == groups && at.elapsed() < REMIND) {
            return;
        }
        let name = self.shared.name.as_ref();
        tracing::warn!(
            queue = name,
            groups = first_few(&groups),
            "the stream has got other consumer groups, and loses each entry when its task has ended. A host \
             that starts will not serve the queue, unless `tqhost adopt {name} --yes` confirms it"
        );
        *logged = Some((groups, Instant::now()));
    }

    /// Counts and logs entries that were trimmed unread since the look `before`. A replica does not count the
    /// reads of its primary's groups, so a new primary counts from another number.
    fn report_trims(&self, stand: &StreamStand, before: &mut Option<(StreamStand, u64)>) {
        let Some(now) = stand.trimmed_unread() else { return };
        let before = before.replace((stand.clone(), now));
        let known = before.filter(|(before, _)| before.server == stand.server).map(|(_, count)| count);
        let lost = new_trims(known, now);
        if lost > 0 {
            self.shared.metrics.lost_entries.inc_by(lost);
            tracing::error!(
                queue = self.shared.name.as_ref(),
                at_least = lost,
                length = stand.length,
                added = stand.added,
                "tasks are lost: a producer trimmed them from the stream before any host read them; \
                 take MAXLEN and MINID out of its XADD"
            );
        }
    }
}

/// The least number of entries that were trimmed between two looks, which found these counts. Newer versions
/// of Redis count from 0 again when the group reads on.
fn new_trims(before: Option<u64>, now: u64) -> u64 {
    before.map_or(0, |before| if now >= before { now - before } else { now })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trimmed_task_counts_once() {
        let looks = [3, 3, 5, 0, 2, 2];
        let mut before = None;
        let counted: Vec<u64> = looks.iter().map(|now| new_trims(before.replace(*now), *now)).collect();
        assert_eq!(counted, [0, 0, 2, 0, 2, 0]);
    }
}
