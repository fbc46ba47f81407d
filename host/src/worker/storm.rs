//! Bounds the lines of the log about a cause that all queues have in common, such as a Redis that is away:
//! the first lines are written as they are, and one line counts all others.
//!
//! In: a line that a loop wants to write. Out: whether it may. The counts are those of the process, which has
//! one Redis.
//!
//! Not here: lines about single tasks (`notices`), when a loop tells of an outage again (`pace`).

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::guarded::Guarded;

/// Lines of one kind that are written as they are, in each [`WINDOW`].
const LINES: usize = 8;
const WINDOW: Duration = Duration::from_secs(30);
/// How long the line about all others waits for further ones.
const GATHER: Duration = Duration::from_secs(2);

/// Calls to Redis that fail.
pub(super) static OUTAGES: Storm = Storm::new("calls to Redis fail in other loops, too; they try again");
/// Calls to Redis that succeed again.
pub(super) static ANSWERS: Storm = Storm::new("Redis answers other loops again, too");
/// Queues that cannot be served.
pub(super) static UNFIT: Storm =
    Storm::new("no task is taken from other queues, either; /readyz has the reasons");
/// Queues that can be served again.
pub(super) static SERVED: Storm = Storm::new("other queues can be served now, too");
/// Streams or groups that were deleted.
pub(super) static DELETED: Storm =
    Storm::new("the streams or groups of other queues were deleted, too; created anew");

/// The lines of one kind, of all queues.
pub(super) struct Storm {
    /// The line about all others.
    others: &'static str,
    state: Guarded<StormState>,
}

struct StormState {
    since: Option<Instant>,
    lines: usize,
    /// Whether there was a line about all others in this window.
    is_summed: bool,
    left_out: u64,
    queues: BTreeSet<String>,
}

impl Storm {
    const fn new(others: &'static str) -> Storm {
        let state =
            StormState { since: None, lines: 0, is_summed: false, left_out: 0, queues: BTreeSet::new() };
        Storm { others, state: Guarded::new(state) }
    }

    /// Whether a line about this queue may be written now.
    pub(super) fn admits(&self, queue: &str) -> bool {
        self.admits_at(queue, Instant::now())
    }

    fn admits_at(&self, queue: &str, now: Instant) -> bool {
        let mut state = self.state.lock();
        if state.left_out == 0 && state.since.is_none_or(|since| now.duration_since(since) >= WINDOW) {
            (state.since, state.lines, state.is_summed) = (Some(now), 0, false);
        }
        if state.lines < LINES {
            state.lines += 1;
            return true;
        }
        state.left_out += 1;
        state.queues.insert(queue.to_owned());
        false
    }

    /// Takes the number of lines that were left out, and of their queues, if it is time for the line about
    /// them: [`GATHER`] after the first line, or a [`WINDOW`] after it if there was such a line before.
    fn left_out(&self, now: Instant) -> Option<(u64, usize)> {
        let mut state = self.state.lock();
        let wait = if state.is_summed { WINDOW } else { GATHER };
        let is_due = state.since.is_some_and(|since| now.duration_since(since) >= wait);
        if state.left_out == 0 || !is_due {
            return None;
        }
        state.is_summed = true;
        let queues = std::mem::take(&mut state.queues).len();
        Some((std::mem::take(&mut state.left_out), queues))
    }
}

/// Writes the lines about all others, until this future is dropped.
pub(crate) async fn sum_up() {
    loop {
        tokio::time::sleep(GATHER).await;
        for storm in [&OUTAGES, &ANSWERS, &UNFIT, &SERVED, &DELETED] {
            if let Some((lines, queues)) = storm.left_out(Instant::now()) {
                tracing::warn!(more = lines, queues, "{}", storm.others);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_is_told_once_in_each_window() {
        let (storm, began) = (Storm::new("others, too"), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        let told = |seconds| {
            let names = (0..500).map(|n| format!("queue-{n}"));
            names.filter(|name| storm.admits_at(name, at(seconds))).count()
        };
        assert_eq!((told(0), storm.left_out(at(1))), (LINES, None));
        assert_eq!(told(1), 0);
        assert_eq!(storm.left_out(at(2)), Some((2 * 500 - LINES as u64, 500)));
        assert_eq!((storm.left_out(at(3)), told(29), storm.left_out(at(29))), (None, 0, None));
        assert_eq!(storm.left_out(at(31)), Some((500, 500)));
        assert_eq!(told(31), LINES);
    }
}
