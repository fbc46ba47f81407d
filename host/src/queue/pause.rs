//! Pauses a queue in all hosts, and resumes it. Hosts get a signal to look, and look every second anyway.
//!
//! Not here: how hosts look (`wait`), and what a pause holds up (`worker`).

use super::error::QueueError;
use super::handle::Queue;
use super::{reply, wait};

impl Queue {
    /// Stops all hosts from claiming tasks, within about two seconds. Running tasks go on. False when the
    /// queue was paused before.
    pub async fn pause(&self) -> Result<bool, QueueError> {
        let now = self.now_ms().await?;
        let set = redis::cmd("SET").arg(&self.keys.paused).arg(now).arg("NX").to_owned();
        let is_new = self.link.command("pause", &set).await? != redis::Value::Nil;
        wait::request_look(&self.link).await;
        Ok(is_new)
    }

    /// False when it was not paused.
    pub async fn resume(&self) -> Result<bool, QueueError> {
        let reply = self.link.command("resume", redis::cmd("DEL").arg(&self.keys.paused)).await?;
        wait::request_look(&self.link).await;
        self.shaped("resume", reply::count(&reply)).map(|deleted| deleted > 0)
    }
}
