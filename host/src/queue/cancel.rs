//! Cancels tasks: queued, delayed or running.
//!
//! In: a task's id. Out: the status that the task had before.
//!
//! Not here: stopping the handler of a running task (`worker::heartbeat` learns of the cancellation).

use super::error::QueueError;
use super::handle::Queue;
use super::reply;
use super::script;
use super::status::Status;

impl Queue {
    /// Cancels a task that has not ended, and gives the status that it had before; none for an unknown task.
    /// A task that has ended stays as it is, but no further child of the flow that it joins is released. A
    /// call may be repeated: the second one gives CANCELLED.
    pub async fn cancel(&self, id: &str) -> Result<Option<Status>, QueueError> {
        let keys = &self.keys;
        self.note_queued_alias(id).await?;
        // Only the status of the task names its marker.
        let marker = self.link.command("cancel", redis::cmd("HGET").arg(keys.task(id)).arg("marker")).await?;
        let marker = match marker {
            redis::Value::Nil => keys.marker(None),
            marker => self.shaped("cancel", reply::bytes(marker))?,
        };
        let flow = keys.flow(id);
        let call = |entry: &str| {
            let call = self.ending_call(&script::CANCEL).key(&keys.delayed).key(&keys.parked);
            let call = call.key(keys.task(id)).key(&marker).key(&flow.about).key(&flow.children);
            call.arg(id).arg(entry)
        };
        let mut before = self.shaped("cancel", reply::bytes(self.link.script(&call("")).await?))?;
        if before.is_empty() {
            // Without an entry the task has ended meanwhile, and has a status now, or it was never there.
            let entry = self.find_queued(id).await?.map(|entry| entry.id).unwrap_or_default();
            before = self.shaped("cancel", reply::bytes(self.link.script(&call(&entry)).await?))?;
        }
        Ok(Status::parse(&before))
    }
}
