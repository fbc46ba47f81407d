//! Delayed tasks: what is due goes back into the stream.
//!
//! Not here: when to look (`worker::promoter`), how a task comes to be delayed (`settle`, `produce`).

use std::time::Duration;

use super::error::QueueError;
use super::script::{self, Call};
use super::{Queue, reply};

/// What one step of promotion did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promoted {
    pub moved: u64,
    /// Members whose fields were gone: somebody deleted them.
    pub lost: u64,
    /// How long until the next task is due; zero when some are due already, none when nothing is delayed.
    pub next_due: Option<Duration>,
}

impl Queue {
    /// Moves up to `limit` delayed tasks that are due back into the stream.
    pub async fn promote(&self, limit: usize) -> Result<Promoted, QueueError> {
        let call = Call::new(&script::PROMOTE).key(&self.keys.stream).key(&self.keys.delayed).key(&self.keys.parked);
        let reply = self.link.script(&call.arg(limit)).await?;
        let read = |reply| {
            let [moved, lost, next] = reply::tuple(reply)?;
            let next_due = u64::try_from(reply::int(&next)?).ok().map(Duration::from_millis);
            Ok(Promoted { moved: reply::count(&moved)?, lost: reply::count(&lost)?, next_due })
        };
        self.shaped("promote", read(reply))
    }
}
