//! Enqueues the tasks of a queue's schedule.
//!
//! Every host runs this loop, and the script enqueues one task for each time. The host with the queue's
//! duties tries when the time has come. The other hosts try a little later, usually with nothing left to do.
//!
//! Only Redis's clock counts. Each look reads it, and the waits in between are durations. So a host whose
//! clock jumps is neither early nor late.
//!
//! If several times passed since the last look, only the last one gets a task.
//!
//! In: a [`Schedule`], and how far Redis says it was handled. Out: tasks in the queue.
//!
//! Not here: which times there are (`config::times`).

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::pace::Pace;
use super::shared::SharedQueue;
use crate::config::times::ScheduleTimes;
use crate::config::{Missed, Schedule};
use crate::queue::QueueResult;
use crate::queue::schedule::{Fired, SchedulePosition};

/// The longest time between two looks of the host that has the queue's duties.
const LONGEST_WITH_DUTY: Duration = Duration::from_secs(15);
/// The longest time between two looks of any other host.
const LONGEST_WITHOUT: Duration = Duration::from_secs(120);
/// How long after a scheduled time a host without the duties checks it.
const LEAVE_TO_DUTY: Duration = Duration::from_secs(2);
/// The wait before the next try when the queue is full.
const FULL: Duration = Duration::from_secs(1);
/// A scheduled time without a task for this long is missed. A host needs less time to start or to reconnect.
const LATE: Duration = Duration::from_secs(60);
/// If a schedule was handled up to a time further in the future than this, Redis's clock was wrong.
const AHEAD_MS: u64 = 60_000;

pub(crate) struct Scheduler {
    shared: Arc<SharedQueue>,
    schedule: Schedule,
    /// The schedule's name.
    name: String,
    /// Whether the notes of the queue's former schedules were removed from Redis.
    is_tidied: bool,
    /// The time up to which the schedule was handled, at the last look of this host.
    done_ms: Option<u64>,
    /// Whether a task waits because the queue is full. The log has it.
    is_full: bool,
}

/// The result of a look.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    /// The time for which a task is to be enqueued now.
    due_ms: Option<u64>,
    /// Earlier times passed, which get no task.
    passed_over: bool,
    /// How long until the next time.
    next: Option<Duration>,
}

impl Scheduler {
    pub(crate) fn new(shared: Arc<SharedQueue>, schedule: Schedule) -> Scheduler {
        let name = schedule.times.name();
        Scheduler { shared, schedule, name, is_tidied: false, done_ms: None, is_full: false }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut pace = Pace::new(&self.shared.name, "schedule");
        loop {
            let wait = pace.after(self.look().await);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Returns how long to wait before the next look.
    async fn look(&mut self) -> QueueResult<Duration> {
        if !self.is_tidied {
            self.shared.queue.forget_other_schedules(&self.name).await?;
            self.is_tidied = true;
        }
        let position = self.shared.queue.schedule_position(&self.name).await?;
        let done_ms = self.begin(position).await?;
        self.done_ms = Some(done_ms);
        let plan = plan(&self.schedule.times, done_ms, position.now_ms);
        if let Some(due_ms) = plan.due_ms {
            self.fire(due_ms, plan.passed_over).await?;
        }
        if self.is_full {
            return Ok(FULL);
        }
        let next = plan.next.unwrap_or(Duration::MAX);
        Ok(if self.shared.idle.has_duty() {
            next.min(LONGEST_WITH_DUTY)
        } else {
            next.saturating_add(LEAVE_TO_DUTY).min(LONGEST_WITHOUT)
        })
    }

    /// Returns the time up to which the schedule was handled. A new schedule begins now, and has missed
    /// nothing.
    async fn begin(&self, SchedulePosition { now_ms, done_ms }: SchedulePosition) -> QueueResult<u64> {
        let queue = &self.shared.queue;
        match done_ms {
            Some(done_ms) if done_ms <= now_ms + AHEAD_MS => Ok(done_ms),
            Some(done_ms) => {
                tracing::warn!(
                    queue = self.shared.name.as_ref(),
                    done_ms,
                    now_ms,
                    "Redis's clock went back; the schedule begins anew"
                );
                queue.reset_schedule(&self.name, now_ms).await.map(|()| now_ms)
            }
            None => {
                // A host with another configuration may have removed the note. If this host has seen the
                // note, the schedule continues from it.
                let done_ms = self.done_ms.unwrap_or(now_ms);
                queue.begin_schedule(&self.name, done_ms).await.map(|()| done_ms)
            }
        }
    }

    /// Enqueues the task of a time, and logs what became of it.
    async fn fire(&mut self, due_ms: u64, passed_over: bool) -> QueueResult {
        let (queue, scheduled_at) = (self.shared.name.as_ref(), due_ms);
        let late = match self.schedule.missed {
            Missed::Once => None,
            Missed::Skip => Some(LATE),
        };
        let fired = self.shared.queue.fire(&self.schedule, due_ms, late).await?;
        let was_full = std::mem::replace(&mut self.is_full, fired == Fired::Full);
        match fired {
            Fired::Enqueued if passed_over => {
                tracing::warn!(
                    queue,
                    scheduled_at,
                    "times of the schedule passed; there is one task for the last of them"
                );
            }
            Fired::Enqueued => tracing::debug!(queue, scheduled_at, "enqueued the task of the schedule"),
            Fired::Full if !was_full => {
                tracing::warn!(
                    queue,
                    scheduled_at,
                    "the queue is full: the task of the schedule is enqueued when there is room"
                );
            }
            Fired::TooLate => {
                tracing::warn!(queue, scheduled_at, "a time of the schedule was missed, and is left out");
            }
            Fired::Known | Fired::Full => {}
        }
        Ok(())
    }
}

/// Plans for a schedule that was handled up to `done_ms`.
fn plan(times: &ScheduleTimes, done_ms: u64, now_ms: u64) -> Plan {
    let due_ms = times.latest(now_ms).filter(|latest| *latest > done_ms);
    let passed_over = due_ms.is_some_and(|due_ms| times.next(done_ms).is_some_and(|first| first < due_ms));
    let next = times.next(now_ms).map(|next| Duration::from_millis(next.saturating_sub(now_ms)));
    Plan { due_ms, passed_over, next }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::times::{parse_cron, parse_zone};

    fn times(cron: &str) -> ScheduleTimes {
        ScheduleTimes::new(vec![parse_cron(cron).expect(cron)], parse_zone("UTC").expect("UTC"))
    }

    #[test]
    fn a_time_is_due_from_its_first_millisecond_and_only_the_last_one_of_many() {
        const MINUTE: u64 = 60_000;
        let minutely = times("* * * * *");
        let table = [
            (0, MINUTE - 1, None, false, 1),
            (0, MINUTE, Some(MINUTE), false, MINUTE),
            (0, 2 * MINUTE - 1, Some(MINUTE), false, 1),
            (MINUTE, MINUTE + 5, None, false, MINUTE - 5),
            (MINUTE, 3 * MINUTE, Some(3 * MINUTE), true, MINUTE),
            // A fast clock has handled later times.
            (5 * MINUTE, 3 * MINUTE, None, false, MINUTE),
        ];
        for (done, now, due_ms, passed_over, next) in table {
            let expected = Plan { due_ms, passed_over, next: Some(Duration::from_millis(next)) };
            assert_eq!(plan(&minutely, done, now), expected, "{done} {now}");
        }
        let year = 365 * 24 * 60 * MINUTE;
        assert_eq!(plan(&times("* * * * * *"), 1, year).due_ms, Some(year), "in one step");
    }
}
