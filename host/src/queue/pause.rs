//! Pauses a queue in all hosts, and resumes it. Hosts look once a second.

use super::Queue;
use super::error::QueueError;
use super::reply;

impl Queue {
    /// No host claims tasks from now on, within about two seconds; what runs goes on. False when it was paused before.
    pub async fn pause(&self) -> Result<bool, QueueError> {
        let now = self.now_ms().await?;
        let set = redis::cmd("SET").arg(&self.keys.paused).arg(now).arg("NX").to_owned();
        Ok(self.link.command("pause", &set).await? != redis::Value::Nil)
    }

    /// False when it was not paused.
    pub async fn resume(&self) -> Result<bool, QueueError> {
        let reply = self.link.command("resume", redis::cmd("DEL").arg(&self.keys.paused)).await?;
        self.shaped("resume", reply::count(&reply)).map(|deleted| deleted > 0)
    }

    pub async fn is_paused(&self) -> Result<bool, QueueError> {
        let reply = self.link.command("look for a pause", redis::cmd("EXISTS").arg(&self.keys.paused)).await?;
        self.shaped("look for a pause", reply::count(&reply)).map(|there| there > 0)
    }
}
