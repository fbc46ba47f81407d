//! Schedules: which of their times were handled, and the task of each time.
//!
//! One hash has a field for each schedule of the queue: the last time that was handled, in milliseconds. Most
//! queues have one schedule. Hosts with an older configuration may have another one for a while.
//!
//! Not here: which times there are (`config::times`), when to look (`worker::scheduler`).

use std::time::Duration;

use super::codec;
use super::error::QueueResult;
use super::handle::{Queue, millis};
use super::reply::{self, UnexpectedShape};
use super::script;
use crate::config::Schedule;

/// The position of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulePosition {
    /// Redis's clock.
    pub now_ms: u64,
    /// Times up to this one are handled. None: the schedule is new.
    pub done_ms: Option<u64>,
}

/// The result of handling one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fired {
    /// This call put the task of this time into the queue.
    Enqueued,
    /// The time was handled before.
    Known,
    /// The queue has as many tasks as `max_backlog` allows. Nothing was written.
    Full,
    /// The call came too late. The time counts as handled, and has no task.
    TooLate,
}

/// The id of the task of a time. It depends on the time alone: hosts with different schedules that have a
/// time in common make one task for it.
pub fn task_id(time_ms: u64) -> String {
    format!("schedule-{time_ms}")
}

impl Queue {
    /// The position of the schedule with this name.
    pub async fn schedule_position(&self, name: &str) -> QueueResult<SchedulePosition> {
        const WHAT: &str = "look at the schedule";
        let get = redis::cmd("HGET").arg(&self.keys.schedule).arg(name).to_owned();
        let replies = self.link.pipeline(WHAT, &[redis::cmd("TIME"), get]).await?;
        let [time, done] = self.shaped(WHAT, replies.try_into().map_err(|_| UnexpectedShape))?;
        let done_ms = match done? {
            redis::Value::Nil => None,
            done => Some(self.shaped(WHAT, reply::count(&done))?),
        };
        Ok(SchedulePosition { now_ms: self.shaped(WHAT, reply::time_ms(time?))?, done_ms })
    }

    /// Begins a new schedule: its times up to this one count as handled.
    pub async fn begin_schedule(&self, name: &str, done_ms: u64) -> QueueResult {
        let begin = redis::cmd("HSETNX").arg(&self.keys.schedule).arg(name).arg(done_ms).to_owned();
        self.link.write("begin the schedule", &begin).await.map(drop)
    }

    /// Sets the position of a schedule, even if later times were handled.
    pub async fn reset_schedule(&self, name: &str, done_ms: u64) -> QueueResult {
        let reset = redis::cmd("HSET").arg(&self.keys.schedule).arg(name).arg(done_ms).to_owned();
        self.link.write("begin the schedule anew", &reset).await.map(drop)
    }

    /// Deletes the queue's other schedules, which an older configuration had.
    pub async fn forget_other_schedules(&self, name: &str) -> QueueResult {
        const WHAT: &str = "forget former schedules";
        let names = redis::cmd("HKEYS").arg(&self.keys.schedule).to_owned();
        let mut former = self.link.read(WHAT, &names, |names| reply::each(names, reply::bytes)).await?;
        former.retain(|known| known != name.as_bytes());
        if former.is_empty() {
            return Ok(());
        }
        self.link.command(WHAT, redis::cmd("HDEL").arg(&self.keys.schedule).arg(former)).await.map(drop)
    }

    /// Enqueues the task of a time, unless the time was handled before, or was longer ago than `late`. May be
    /// repeated after an error.
    pub async fn fire(
        &self,
        schedule: &Schedule,
        time_ms: u64,
        late: Option<Duration>,
    ) -> QueueResult<Fired> {
        let id = task_id(time_ms);
        let call = self.call(&script::FIRE).key("status", self.keys.task(&id));
        let late_ms = late.map_or(-1, |late| i64::try_from(millis(late)).unwrap_or(i64::MAX));
        let call = call.arg("name", schedule.times.name()).arg("time", time_ms).arg("id", &id);
        let call = call.arg("most", self.rules.max_backlog).arg("late", late_ms);
        let mut fields: codec::RawFields =
            schedule.fields.iter().map(|(name, value)| codec::raw(name, value)).collect();
        fields.push(codec::raw(Schedule::TIME_FIELD, &time_ms));
        fields.push(codec::raw("tq-id", &id));
        let reply = self.link.script(&call.fields(&fields)).await?;
        let read = |reply| match reply::int(&reply)? {
            1 => Ok(Fired::Enqueued),
            0 => Ok(Fired::Known),
            -1 => Ok(Fired::Full),
            -2 => Ok(Fired::TooLate),
            _ => Err(UnexpectedShape),
        };
        self.shaped("fire", read(reply))
    }
}
