//! Queues that are fed from a Redis list: what producers LPUSH there becomes tasks, in order.
//!
//! Not here: when to look (`worker::mover`).

use std::time::Duration;

use super::error::QueueError;
use super::link::Link;
use super::script::{self, Call};
use super::{Queue, reply};

impl Queue {
    /// Waits for up to `block` until there is something in `list`. Takes nothing: the oldest item is moved from the list's end to its end.
    /// `link` is used for nothing else.
    pub async fn wait_for_item(&self, link: &Link, list: &str, block: Duration) -> Result<bool, QueueError> {
        let mut wait = redis::cmd("BLMOVE");
        wait.arg(list).arg(list).arg("RIGHT").arg("RIGHT").arg(block.as_secs_f64());
        Ok(link.command("wait for a list", &wait).await? != redis::Value::Nil)
    }

    /// Makes up to `limit` tasks of the oldest items. Gives how many.
    pub async fn move_items(&self, list: &str, limit: usize) -> Result<u64, QueueError> {
        let call = Call::new(&script::MOVE).key(&self.keys.stream).key(&self.keys.delayed).key(list);
        let reply = self.link.script(&call.arg(limit).arg(self.rules.max_backlog)).await?;
        self.shaped("move", reply::count(&reply))
    }
}
