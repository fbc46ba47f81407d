//! Delayed tasks: moves those that are due back into the stream.
//!
//! In: a limit, or a task. Out: how many were moved, and the next due time. Not here: when to look
//! (`worker::promoter`), delaying a task (`settle`, `produce`).

use std::time::Duration;

use super::error::QueueResult;
use super::handle::Queue;
use super::reply;
use super::script;

/// The result of one step of promotion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promoted {
    pub moved: u64,
    /// Delayed tasks whose fields are gone. They were dropped.
    pub lost: u64,
    /// The time until the next task is due. Zero: some are due already. None: nothing is delayed.
    pub next_due: Option<Duration>,
    /// The members of delayed tasks that cannot be moved now, and why. Each is tried again ten seconds later.
    pub broken: Vec<(String, String)>,
}

/// A member of the delayed tasks, and the id of its task, which may be empty.
type Due = (Vec<u8>, String);

impl Queue {
    /// Moves up to `limit` delayed tasks that are due back into the stream.
    pub async fn promote(&self, limit: usize) -> QueueResult<Promoted> {
        // The second call, which moves the tasks, needs the keys of their statuses. So the first one lists
        // the tasks that are due.
        let (looked, due) = self.promote_these(&[], &limit.to_string()).await?;
        if due.is_empty() {
            return Ok(looked);
        }
        let (promoted, _) = self.promote_these(&due, "0").await?;
        Ok(promoted)
    }

    /// Moves the task `id`, which is delayed as `member`, back into the stream although it is not due.
    /// Returns whether it was still delayed; a repeated call changes nothing.
    pub async fn promote_early(&self, member: &str, id: &str) -> QueueResult<bool> {
        let (promoted, _) = self.promote_these(&[(member.into(), id.to_owned())], "now").await?;
        Ok(promoted.moved > 0)
    }

    /// Moves those of these members that are due, and lists up to `limit` members that are due then. With the
    /// limit `now`, it moves all of them and lists none.
    async fn promote_these(&self, members: &[Due], limit: &str) -> QueueResult<(Promoted, Vec<Due>)> {
        let keys = &self.keys;
        let mut call = self.call(&script::PROMOTE).arg("most", limit);
        for (member, id) in members {
            let status = if id.is_empty() { keys.stream.clone() } else { keys.task(id) };
            call = call.key("status", status).arg("member", member);
        }
        let reply = self.link.script(&call).await?;
        let read = |reply| {
            let [moved, lost, next, due, broken] = reply::tuple(reply)?;
            let next_due = u64::try_from(reply::int(&next)?).ok().map(Duration::from_millis);
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            let due = reply::pairs(due)?.into_iter().map(|(member, id)| (member, text(id))).collect();
            let broken = reply::pairs(broken)?.into_iter();
            let broken = broken.map(|(member, why)| (text(member), text(why))).collect();
            let (moved, lost) = (reply::count(&moved)?, reply::count(&lost)?);
            Ok((Promoted { moved, lost, next_due, broken }, due))
        };
        self.shaped("promote", read(reply))
    }
}
