//! Waits until tasks have ended.
//!
//! In: ids of tasks that were enqueued. Out: the end of each, as soon as it is seen, roughly in the order of
//! the ids. Redis does not announce ends, so this polls, and more slowly while nothing happens. Not here:
//! printing the ends (`enqueue`).

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::{Instant, sleep};

use crate::operations::patiently;
use crate::queue::{Queue, QueueResult, TaskStatus};

/// The first and the longest pause between two polls.
pub(super) const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));
/// The most tasks that one round polls.
const WINDOW: usize = 200;
/// The most calls at once.
const PARALLEL: usize = 32;

/// The next pause, when nothing happened during `pause`.
pub(super) fn longer(pause: Duration) -> Duration {
    (pause * 3 / 2).min(PAUSE.1)
}

/// Waits until all tasks of `open` have ended, or the time is up. Calls `ended` for each task that has, with
/// its last status, or with none if no status is kept, and removes it from `open`.
pub(super) async fn until_end(
    queue: &Queue,
    open: &mut VecDeque<String>,
    timeout: Option<Duration>,
    mut ended: impl FnMut(&str, Option<TaskStatus>),
) -> QueueResult {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut pause = PAUSE.0;
    while !open.is_empty() {
        let is_last_look = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let looks = open.iter().take(WINDOW).map(async |id| {
            let status = patiently(|| queue.status(id)).await?;
            Ok((id.clone(), status))
        });
        let seen: Vec<(String, Option<TaskStatus>)> =
            stream::iter(looks).buffered(PARALLEL).try_collect().await?;
        let looked_at = seen.len();
        let mut over = HashSet::new();
        for (id, status) in seen {
            if status.as_ref().is_none_or(|status| status.summary.status.is_end()) {
                ended(&id, status);
                over.insert(id);
            }
        }
        open.retain(|id| !over.contains(id));
        if is_last_look {
            break;
        }
        if over.len() == looked_at {
            continue;
        }
        pause = if over.is_empty() { longer(pause) } else { PAUSE.0 };
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        sleep(left.map_or(pause, |left| left.min(pause))).await;
    }
    Ok(())
}
