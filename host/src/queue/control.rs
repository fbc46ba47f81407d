//! Pauses a queue in all hosts, and resumes it; limits it, and clears the limits. Resuming also ends a hold.
//! Hosts get a signal to look, and look every second anyway.
//!
//! Not here: the text of a pause (`pause`) and of limits (`limits`), how hosts look (`wait`), and what they
//! hold up (`worker`).

use std::time::Duration;

use redis::Value;

use super::error::QueueResult;
use super::handle::{Queue, millis};
use super::limits::QueueLimits;
use super::pause::QueuePause;
use super::{hold, reply, wait};

/// The result of an order to pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseChange {
    /// The queue was not paused before.
    New,
    /// It was paused, with another reason or end.
    Other,
    /// It was paused, and the order changed nothing.
    None,
}

impl Queue {
    /// Stops all hosts from claiming tasks, within about two seconds. Running tasks go on. If the queue is
    /// paused already, an order without a reason and a time keeps that pause, but without its end.
    pub async fn pause(&self, by: &str, why: &str, time: Option<Duration>) -> QueueResult<PauseChange> {
        const WHAT: &str = "pause";
        let since_ms = self.now_ms().await?;
        let until_ms = time.map(|time| since_ms + millis(time).max(1));
        let pause = QueuePause { since_ms, until_ms, by: by.to_owned(), why: why.to_owned() };
        let mut set = redis::cmd("SET");
        set.arg(&self.keys.paused).arg(serde_json::to_string(&pause).unwrap_or_default());
        let keeps_standing = why.is_empty() && time.is_none();
        if let Some(until) = until_ms {
            set.arg("PXAT").arg(until);
        }
        set.arg(if keeps_standing { "NX" } else { "GET" });
        // With NX the reply is nil if there was a pause, and with GET if there was none.
        let is_new = (self.link.write(WHAT, &set).await? == Value::Nil) != keeps_standing;
        let mut change = if is_new { PauseChange::New } else { PauseChange::Other };
        if !is_new && keeps_standing {
            let get = redis::cmd("GET").arg(&self.keys.paused).to_owned();
            let standing = QueuePause::read(&self.link.command(WHAT, &get).await?);
            if standing.as_ref().is_some_and(|standing| standing.until_ms.is_none()) {
                change = PauseChange::None;
            } else {
                // The standing pause may have ended meanwhile.
                let lasting = QueuePause { until_ms: None, ..standing.unwrap_or(pause) };
                let text = serde_json::to_string(&lasting).unwrap_or_default();
                let set = redis::cmd("SET").arg(&self.keys.paused).arg(text).to_owned();
                self.link.write(WHAT, &set).await?;
            }
        }
        wait::request_look(&self.link).await;
        Ok(change)
    }

    /// Ends the pause and the hold. Returns whether there was one.
    pub async fn resume(&self) -> QueueResult<bool> {
        const WHAT: &str = "resume";
        let reply = self.link.command(WHAT, redis::cmd("DEL").arg(&self.keys.paused)).await?;
        let was_paused = self.shaped(WHAT, reply::count(&reply))? > 0;
        let was_held = match &self.rules.hold {
            None => false,
            Some(rules) => {
                let value = self.link.command(WHAT, redis::cmd("GETDEL").arg(&self.keys.hold)).await?;
                hold::found(&value, rules).hold.is_some()
            }
        };
        wait::request_look(&self.link).await;
        Ok(was_paused || was_held)
    }

    /// Sets the limits in place of those before, in all hosts within about two seconds. They hold for this
    /// time, or until they are cleared. Returns them with their times.
    pub(crate) async fn limit(
        &self,
        limits: QueueLimits,
        time: Option<Duration>,
    ) -> QueueResult<QueueLimits> {
        let since_ms = self.now_ms().await?;
        let until_ms = time.map(|time| since_ms + millis(time).max(1));
        let limits = QueueLimits { since_ms, until_ms, ..limits };
        let mut set = redis::cmd("SET");
        set.arg(&self.keys.limits).arg(serde_json::to_string(&limits).unwrap_or_default());
        if let Some(until) = until_ms {
            set.arg("PXAT").arg(until);
        }
        self.link.write("limit", &set).await?;
        wait::request_look(&self.link).await;
        Ok(limits)
    }

    /// Clears the limits. Returns whether there were some.
    pub(crate) async fn clear_limits(&self) -> QueueResult<bool> {
        const WHAT: &str = "clear limits";
        let reply = self.link.command(WHAT, redis::cmd("DEL").arg(&self.keys.limits)).await?;
        let had_some = self.shaped(WHAT, reply::count(&reply))? > 0;
        wait::request_look(&self.link).await;
        Ok(had_some)
    }
}
