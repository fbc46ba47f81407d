//! Queues with a Redis list in front: turns what producers LPUSH there into tasks, in order.
//!
//! In: the lists of a queue, a limit. Out: how many items became tasks. Not here: when to look
//! (`worker::mover`, `worker::poller`), reading an item (`items`).

use std::time::Duration;

use super::error::QueueResult;
use super::handle::Queue;
use super::link::Link;
use super::reply;
use super::script;
use crate::config::Items;

/// A call of the script ends after this many bytes of items, since it takes long to parse JSON.
const BYTES: usize = 4 << 20;
/// The number of Celery's tasks that wait in the stream for each attempt that the queue may run at once. The
/// others stay in their lists, where urgent tasks overtake them. Celery's workers fetch as many.
const AHEAD: u32 = 4;

impl Queue {
    /// Waits for up to `block` until `list` has an item, and returns whether it has one. The list is not
    /// changed: the oldest item moves from the end of the list to the same end. Nothing else may use `link`.
    pub async fn wait_for_item(&self, link: &Link, list: &str, block: Duration) -> QueueResult<bool> {
        const WHAT: &str = "wait for a list";
        let mut wait = redis::cmd("BLMOVE");
        wait.arg(list).arg(list).arg("RIGHT").arg("RIGHT").arg(block.as_secs_f64());
        match link.command(WHAT, &wait).await {
            // When the memory of Redis is full, it refuses BLMOVE, and also the LPUSH of producers.
            Err(error) if error.is_out_of_memory() => {
                let count = redis::cmd("LLEN").arg(list).to_owned();
                let length = link.read(WHAT, &count, |length| reply::count(&length)).await?;
                if length > 0 { Ok(true) } else { Err(error) }
            }
            reply => Ok(reply? != redis::Value::Nil),
        }
    }

    /// Turns up to `limit` of the oldest items into tasks, list by list. Returns their number.
    pub async fn move_items(&self, lists: &[String], limit: usize) -> QueueResult<u64> {
        let items = self.rules.list.as_ref().map_or(Items::Bytes, |list| list.items);
        let ahead = if self.rules.is_of_celery() { AHEAD.saturating_mul(self.rules.concurrency) } else { 0 };
        let call = lists.iter().fold(self.call(&script::MOVE), |call, list| call.key("lists", list));
        let call = call.arg("limit", limit).arg("most", self.rules.max_backlog);
        let call = call.arg("items", items.into_str()).arg("ahead", ahead).arg("bytes", BYTES);
        let reply = self.link.script(&call).await?;
        self.shaped("move", reply::count(&reply))
    }

    /// Puts jobs of Sidekiq that are due into the queue's list. Looks at up to `limit` jobs of `set` that are
    /// due, without the first `from`. Returns the `from` of the next call. None: no more jobs are due.
    pub async fn move_due(&self, set: &str, from: u64, limit: usize) -> QueueResult<Option<u64>> {
        const WHAT: &str = "move jobs that are due";
        let Some(list) = &self.rules.list else { return Ok(None) };
        let Some(sidekiq) = list.sidekiq() else { return Ok(None) };
        let call = self.call(&script::DUE).key("set", set).key("list", &list.key);
        let call = call.arg("name", sidekiq.queue).arg("from", from).arg("limit", limit);
        let [_, next] = self.shaped(WHAT, reply::tuple(self.link.script(&call).await?))?;
        Ok(self.shaped(WHAT, reply::int(&next))?.try_into().ok())
    }
}
