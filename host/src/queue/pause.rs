//! Pauses a queue in all hosts, and resumes it. Resuming also ends a hold. Hosts get a signal to look, and
//! look every second anyway.
//!
//! Not here: how hosts look (`wait`), and what a pause holds up (`worker`).

use super::error::QueueError;
use super::handle::Queue;
use super::{hold, reply, wait};

impl Queue {
    /// Stops all hosts from claiming tasks, within about two seconds. Running tasks go on. False when the
    /// queue was paused before.
    pub async fn pause(&self) -> Result<bool, QueueError> {
        let now = self.now_ms().await?;
        let set = redis::cmd("SET").arg(&self.keys.paused).arg(now).arg("NX").to_owned();
        let is_new = self.link.write("pause", &set).await? != redis::Value::Nil;
        wait::request_look(&self.link).await;
        Ok(is_new)
    }

    /// False when it was neither paused nor held.
    pub async fn resume(&self) -> Result<bool, QueueError> {
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
}
