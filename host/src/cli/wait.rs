//! Waits until tasks have ended.
//!
//! In: ids of tasks that were enqueued. Out: each one's end, as soon as it is seen, in about the order of the ids.
//! It asks again and again, ever slower while nothing happens: other clients may see ends at any time, but Redis tells nobody.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::{Instant, sleep};

use super::context::patiently;
use crate::queue::{Queue, QueueError, TaskStatus};

/// The first and the longest pause between two looks.
pub const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));
/// Tasks that are looked at in one round, and calls at once.
const WINDOW: usize = 200;
const PARALLEL: usize = 32;

/// The pause after `pause` in which nothing happened.
pub fn longer(pause: Duration) -> Duration {
    (pause * 3 / 2).min(PAUSE.1)
}

/// Calls `ended` for each task with its last status, or with none when it ended and nothing of it is kept. Gives the ids of those that
/// have not ended when the time is up.
pub async fn until_end(
    queue: &Queue,
    ids: Vec<String>,
    timeout: Option<Duration>,
    mut ended: impl FnMut(&str, Option<TaskStatus>),
) -> Result<Vec<String>, QueueError> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut open = VecDeque::from(ids);
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
            if status.as_ref().is_none_or(|status| status.status.is_end()) {
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
    Ok(open.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_are_bounded() {
        let mut pause = PAUSE.0;
        for _ in 0..20 {
            let next = longer(pause);
            assert!(next >= pause && next <= PAUSE.1);
            pause = next;
        }
        assert_eq!(pause, PAUSE.1);
    }
}
