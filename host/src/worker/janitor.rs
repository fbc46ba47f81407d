//! Cleans up the queues whose duties this host has.
//!
//! It removes the consumers of hosts that are dead for good, passes on turns that nobody uses, and finds
//! tasks and idempotency keys that deletions by other clients orphaned. One walk through all keys of Redis
//! finds the orphans of all queues. It goes in small pieces and slowly, because a shared Redis may hold
//! millions of foreign keys.
//!
//! Not here: what an orphan is (`doctor::mend`), and the check of a whole queue at once (`tqhost doctor`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::lookout::Lookout;
use super::notices::first_few;
use super::pace::Pace;
use super::shared::SharedQueue;
use crate::doctor::mend::{self, JanitorFindings};
use crate::queue::{Link, Queue, QueueResult};

/// The time between two steps. Each step sweeps one queue and looks at one part of the keys.
const STEP: Duration = Duration::from_secs(1);
/// The least time between two sweeps of a queue, and between the starts of two walks.
const EVERY: Duration = Duration::from_secs(60);
/// A consumer without deliveries for this long is dead or idle. Redis 7.0 does not count reads that return
/// nothing, so an idle consumer may be removed. Its next read creates it again.
const GONE: Duration = Duration::from_secs(3600);
/// The most consumers that one call of the script removes.
const MAX_BATCH: usize = 1000;
/// The pause between two steps of a look at a queue's tracks.
const TRACKS_APART: Duration = Duration::from_millis(20);
/// The keys of Redis that one step looks at.
const KEYS: usize = 2000;
/// The average number of statuses and markers per second whose expiry is read.
const ASKED_PER_SECOND: f64 = 50.0;
/// The wait before a second look at a suspected orphan, during which it may change.
const MOMENT: Duration = Duration::from_millis(500);

pub(crate) struct Janitor {
    lookout: Lookout,
    link: Link,
    /// When each queue was swept last, by its duty.
    swept: HashMap<String, Instant>,
    /// When the last walk through the keys began.
    walked: Option<Instant>,
    /// Where the walk continues, if it is not over.
    cursor: Option<String>,
}

impl Janitor {
    pub(crate) fn new(lookout: Lookout, link: Link) -> Janitor {
        Janitor { lookout, link, swept: HashMap::new(), walked: None, cursor: None }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut pace = Pace::new("*", "janitor");
        let steps = async {
            loop {
                let wait = pace.after(self.step().await).max(STEP);
                tokio::time::sleep(wait).await;
            }
        };
        // A step can be cancelled, because each of its writes is one script.
        stop.run_until_cancelled(steps).await;
    }

    /// Returns how long to wait before the next step, if that is longer than [`STEP`].
    async fn step(&mut self) -> QueueResult<Duration> {
        let queues = self.lookout.with_duty();
        if queues.is_empty() {
            return Ok(Duration::ZERO);
        }
        self.sweep_one(&queues).await?;
        let asked = self.look_at_keys(&queues).await?;
        Ok(Duration::from_secs_f64(asked as f64 / ASKED_PER_SECOND))
    }

    /// Sweeps the queue whose last sweep was the longest ago: removes the consumers that are gone, and passes
    /// on turns that nobody uses.
    async fn sweep_one(&mut self, queues: &[Arc<SharedQueue>]) -> QueueResult {
        let duties: HashMap<String, &Arc<SharedQueue>> =
            queues.iter().map(|queue| (queue.queue.duty(), queue)).collect();
        self.swept.retain(|duty, _| duties.contains_key(duty));
        let Some((duty, queue)) = duties.into_iter().min_by_key(|(duty, _)| self.swept.get(duty).copied())
        else {
            return Ok(());
        };
        if self.swept.get(&duty).is_some_and(|at| at.elapsed() < EVERY) {
            return Ok(());
        }
        self.swept.insert(duty, Instant::now());
        // A lease may be longer than an hour.
        let gone = GONE.max(queue.queue.rules.lease * 2);
        let removed = queue.queue.sweep_consumers(gone, MAX_BATCH).await?;
        if removed > 0 {
            tracing::info!(queue = queue.name.as_ref(), removed, "removed consumers of hosts that are gone");
        }
        let faults = queue.queue.look_at_tracks(true, TRACKS_APART).await?;
        if !faults.is_empty() {
            let (queue, turns) = (queue.name.as_ref(), faults.len());
            tracing::warn!(queue, turns, "turns that nobody used were passed on");
        }
        Ok(())
    }

    /// Looks at the next part of the keys. Returns the number of keys whose expiry was read.
    async fn look_at_keys(&mut self, queues: &[Arc<SharedQueue>]) -> QueueResult<usize> {
        let (now, is_new) = (Instant::now(), self.cursor.is_none());
        if is_new && self.walked.is_some_and(|began| now.duration_since(began) < EVERY) {
            return Ok(0);
        }
        let all: Vec<&Queue> = queues.iter().map(|queue| &queue.queue).collect();
        let part = mend::scan_part(&self.link, &all, self.cursor.as_deref(), KEYS).await?;
        let mut tended = Ok(());
        for (place, keys) in part.kept {
            match tend(&queues[place], keys).await {
                Err(error) if error.is_connection() => return Err(error),
                // Redis may refuse the keys of this queue. The walk goes on with those of other queues.
                result => tended = tended.and(result),
            }
        }
        if is_new {
            self.walked = Some(now);
        }
        self.cursor = part.next;
        tended.map(|()| part.asked)
    }
}

/// Tends the orphans among the keys of a queue, and logs what was found.
async fn tend(shared: &SharedQueue, keys: Vec<Vec<u8>>) -> QueueResult {
    let queue = shared.name.as_ref();
    let JanitorFindings { lost, never_ran, freed, expiring } =
        mend::tend(&shared.queue, keys, MOMENT).await?;
    if !lost.is_empty() {
        // Tasks that ran were counted when their entry was found missing.
        shared.metrics.lost_entries.inc_by(never_ran);
        tracing::error!(
            queue,
            tasks = lost.len(),
            first = first_few(&lost),
            "tasks are lost: somebody deleted them; their statuses say so now"
        );
    }
    if freed + expiring > 0 {
        tracing::warn!(
            queue,
            keys = freed,
            statuses = expiring,
            "idempotency keys and statuses of tasks that no longer exist will expire"
        );
    }
    Ok(())
}
