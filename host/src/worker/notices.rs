//! Bounds the lines about single tasks of one queue: one line a second of each kind, with a count of the
//! others.
//!
//! In: something that happened to a task. Out: whether it gets a line of its own. If not, the task is
//! counted, and the next line of the kind has the count, or a line that sums up a second later.
//!
//! Not here: lines about queues (`storm`), what guests print (`sandbox`).

use std::time::Duration;

use strum::{EnumCount, VariantArray};
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::Level;

use crate::guarded::Guarded;

/// The time between two lines of a kind.
const PAUSE: Duration = Duration::from_secs(1);
/// The most ids that a line names.
const NAMED: usize = 5;

/// The kinds of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumCount, VariantArray)]
pub(crate) enum NoticeKind {
    /// An attempt failed, and the task comes back.
    Retry,
    /// A task became a dead letter.
    Dead,
    /// Redis refuses the effects or the result of an attempt.
    Refused,
    /// Redis refused the begin of a task, which is tried again.
    BeginRefused,
    /// Redis refused the heartbeat of a task, which is tried again.
    HeartbeatRefused,
    /// Redis refused to let a delayed task into its stream, which is tried again.
    PromoteRefused,
    /// Another queue did not take a task that an attempt has left for it.
    RelayRefused,
    /// A task ended, and its flow or its track could not be told.
    Unfinished,
    /// A task was not run, as another one has its key or its id.
    Duplicate,
    /// A task was not run, or was stopped, as this host does not own it any more.
    Lost,
    /// A task was cancelled while it ran.
    Cancelled,
    /// An entry was deleted by somebody else while it was pending.
    Deleted,
}

impl NoticeKind {
    /// The step that Redis refused, as lines name it. `None`: the kind is not about a single step.
    pub(crate) fn step(self) -> Option<&'static str> {
        match self {
            NoticeKind::BeginRefused => Some("begin"),
            NoticeKind::HeartbeatRefused => Some("heartbeat"),
            NoticeKind::PromoteRefused => Some("promote"),
            NoticeKind::RelayRefused => Some("relay"),
            _ => None,
        }
    }

    /// The line that sums up further tasks.
    fn summary(self) -> (Level, &'static str) {
        match self {
            NoticeKind::Retry => (Level::WARN, "further attempts failed; tried again"),
            NoticeKind::Dead => (Level::WARN, "further tasks were dead-lettered"),
            NoticeKind::Refused => {
                (Level::WARN, "further tasks completed, but Redis refuses what they would write")
            }
            NoticeKind::BeginRefused
            | NoticeKind::HeartbeatRefused
            | NoticeKind::PromoteRefused
            | NoticeKind::RelayRefused => {
                (Level::WARN, "Redis refused this step of further tasks; tried again")
            }
            NoticeKind::Unfinished => {
                (Level::ERROR, "further tasks have ended, and their flows or keys were not told")
            }
            NoticeKind::Deleted => {
                (Level::ERROR, "further entries were deleted by somebody else while pending")
            }
            NoticeKind::Duplicate => (Level::INFO, "further tasks were not run: duplicates"),
            NoticeKind::Lost => (Level::INFO, "further tasks were not run or stopped: others own them"),
            NoticeKind::Cancelled => (Level::INFO, "further tasks were cancelled while they ran"),
        }
    }
}

/// The lines about tasks of one queue.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    kinds: Guarded<[Throttle; NoticeKind::COUNT]>,
    /// Notified when the first line of a kind is left out.
    left_out: Notify,
}

/// The lines of one kind.
#[derive(Debug, Clone, Copy, Default)]
struct Throttle {
    /// No line of the kind is written before.
    until: Option<Instant>,
    /// Tasks that were left out since the last line.
    more: u64,
}

impl Notices {
    /// Returns `Some` if a line may be written now, with the number of tasks that were left out since the
    /// last line, if there are any.
    pub(crate) fn admit(&self, kind: NoticeKind) -> Option<Option<u64>> {
        self.admit_of(kind, 1)
    }

    /// Like [`Notices::admit`], for a line about this many tasks.
    pub(crate) fn admit_of(&self, kind: NoticeKind, tasks: u64) -> Option<Option<u64>> {
        let (admitted, is_first) = self.kinds.lock()[kind as usize].admit(Instant::now(), tasks);
        if is_first {
            self.left_out.notify_one();
        }
        admitted
    }

    /// Waits until lines that were left out can be summed up.
    pub(crate) async fn due(&self) {
        loop {
            let waiting =
                self.kinds.lock().iter().filter(|kind| kind.more > 0).filter_map(|kind| kind.until).min();
            match waiting {
                Some(until) => return tokio::time::sleep_until(until).await,
                None => self.left_out.notified().await,
            }
        }
    }

    /// Writes lines that sum up what was left out: for each kind that has waited for a second, or for all
    /// kinds.
    pub(crate) fn sum_up(&self, queue: &str, all: bool) {
        let now = Instant::now();
        for kind in NoticeKind::VARIANTS {
            let Some(more) = self.kinds.lock()[*kind as usize].take(now, all) else { continue };
            let (step, (level, text)) = (kind.step(), kind.summary());
            match level {
                Level::ERROR => tracing::error!(queue, step, more, "{text}"),
                Level::WARN => tracing::warn!(queue, step, more, "{text}"),
                _ => tracing::info!(queue, step, more, "{text}"),
            }
        }
    }
}

impl Throttle {
    /// Returns the result of [`Notices::admit`], and whether this is the first line that is left out.
    fn admit(&mut self, now: Instant, tasks: u64) -> (Option<Option<u64>>, bool) {
        if self.until.is_some_and(|until| now < until) {
            let is_first = self.more == 0;
            self.more += tasks;
            return (None, is_first);
        }
        self.until = Some(now + PAUSE);
        let more = std::mem::take(&mut self.more);
        (Some((more > 0).then_some(more)), false)
    }

    /// Takes the number of tasks that were left out, if it is time to sum up.
    fn take(&mut self, now: Instant, all: bool) -> Option<u64> {
        let is_due = all || self.until.is_none_or(|until| until <= now);
        if self.more == 0 || !is_due {
            return None;
        }
        self.until = Some(now + PAUSE);
        Some(std::mem::take(&mut self.more))
    }
}

/// The first few of some ids, for a line that has their number beside them.
pub(crate) fn first_few(ids: &[String]) -> String {
    let end = if ids.len() > NAMED { ", …" } else { "" };
    ids[..ids.len().min(NAMED)].join(", ") + end
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_burst_is_one_line_a_second_and_each_is_counted() {
        let (mut lines, began) = (Throttle::default(), Instant::now());
        let at = |ms| began + Duration::from_millis(ms);
        assert_eq!(lines.admit(began, 1), (Some(None), false));
        assert_eq!(lines.admit(at(10), 1), (None, true));
        assert_eq!(lines.admit(at(999), 1), (None, false));
        assert_eq!(lines.take(at(999), false), None);
        assert_eq!(lines.admit(at(1000), 1), (Some(Some(2)), false));
        assert_eq!(lines.admit(at(1500), 1), (None, true));
        assert_eq!(lines.take(at(2000), false), Some(1));
        assert_eq!(lines.admit(at(2500), 1), (None, true), "the summary is a line, too");
        assert_eq!((lines.take(at(2500), true), lines.take(at(9000), true)), (Some(1), None));
        assert_eq!(lines.admit(at(9000), 1), (Some(None), false));
    }

    #[tokio::test]
    async fn a_line_that_was_left_out_is_due_a_second_later() {
        let notices = Notices::default();
        let began = Instant::now();
        assert_eq!(notices.admit(NoticeKind::Dead), Some(None));
        assert!(notices.due().now_or_never().is_none(), "nothing was left out");
        assert_eq!(notices.admit(NoticeKind::Dead), None);
        assert_eq!(notices.admit(NoticeKind::Retry), Some(None), "each kind has its own line");
        notices.due().await;
        assert!(began.elapsed() >= PAUSE);
        notices.sum_up("q", false);
        assert!(notices.due().now_or_never().is_none(), "it was told");
    }

    #[test]
    fn few_ids_are_named() {
        let ids = |count: u32| (0..count).map(|n| n.to_string()).collect::<Vec<_>>();
        assert_eq!(first_few(&ids(2)), "0, 1");
        assert_eq!(first_few(&ids(60_000)), "0, 1, 2, 3, 4, …");
    }
}
