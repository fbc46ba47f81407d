//! Queues with a Redis list in front: turns what producers LPUSH there into tasks, in order.
//!
//! In: a list, a limit. Out: how many items became tasks. Not here: when to look (`worker::mover`).

use std::time::Duration;

use super::error::QueueResult;
use super::handle::Queue;
use super::link::Link;
use super::reply;
use super::script;

impl Queue {
    /// Waits for up to `block` until `list` has an item. Takes nothing: the oldest item moves from the end of
    /// the list to the same end. Nothing else may use `link`.
    pub async fn wait_for_item(&self, link: &Link, list: &str, block: Duration) -> QueueResult<bool> {
        const WHAT: &str = "wait for a list";
        let mut wait = redis::cmd("BLMOVE");
        wait.arg(list).arg(list).arg("RIGHT").arg("RIGHT").arg(block.as_secs_f64());
        let error = match link.command(WHAT, &wait).await {
            Err(error) if error.is_out_of_memory() => error,
            reply => return Ok(reply? != redis::Value::Nil),
        };
        // BLMOVE is refused when the memory of Redis is full, and so is the LPUSH of producers.
        let length = link.command(WHAT, redis::cmd("LLEN").arg(list)).await?;
        if self.shaped(WHAT, reply::count(&length))? > 0 { Ok(true) } else { Err(error) }
    }

    /// Turns up to `limit` of the oldest items into tasks. Returns their number.
    pub async fn move_items(&self, list: &str, limit: usize) -> QueueResult<u64> {
        let call = self.call(&script::MOVE).key("list", list).arg("limit", limit);
        let call = call.arg("most", self.rules.max_backlog);
        let reply = self.link.script(&call).await?;
        self.shaped("move", reply::count(&reply))
    }
}
