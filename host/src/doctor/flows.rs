//! Looks at the flows that end in a task of the queue, for those that can never be joined.
//!
//!     flow ─▶ its task, its staged children ─▶ the children that it waits for, in pages ─▶ suspects
//!
//! In: keys that the walk found. Out: suspects. Not here: whether they are wrong (`mend`), the statuses and
//! places of the children, which the examination of their own queues looks at.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use redis::{Cmd, Value};

use super::mend::{FaultKind, Suspect};
use super::walk::FIRST;
use super::{BATCH, Examination, Warning};
use crate::queue::keys::FlowKeys;
use crate::queue::reply::{self, Shaped, optional};
use crate::queue::{Queue, QueueResult, Status};

const WHAT: &str = "look at a flow";
/// Children in one step.
const CHILDREN: u64 = 100;

/// A child that its flow waits for.
struct AwaitedChild {
    index: u64,
    /// The name of its queue.
    queue: String,
    id: String,
}

/// The state of a flow, and of the task that joins it.
struct FlowLook {
    /// None when only its children are there.
    total: Option<u64>,
    left: i64,
    has_failed: bool,
    /// Children that are not enqueued yet.
    staged: u64,
    /// Whether the key of the flow, or that of its staged children, has a time to live.
    expires: bool,
    children_expire: bool,
    /// Whether a promoter will release children.
    is_due: bool,
    /// Whether the status of the task that joins it names this flow.
    has_task: bool,
    /// Whether that task waits neither in the stream nor among the delayed tasks.
    is_held: bool,
}

impl Examination<'_> {
    /// Looks at the flows among these keys.
    pub(super) async fn flows(&mut self, keys: &[Vec<u8>]) -> QueueResult {
        let ids: BTreeSet<String> = keys.iter().filter_map(|key| self.queue.keys.flow_of(key)).collect();
        for id in ids {
            self.flow(&id).await?;
            self.decide(BATCH).await?;
        }
        self.decide(1).await
    }

    async fn flow(&mut self, id: &str) -> QueueResult {
        let names = self.queue.keys.flow(id);
        let Some(look) = self.queue.look_at_flow(id, &names).await? else { return Ok(()) };
        let mut suspect = |kind| self.suspect(kind, &names.about, id, &names.about);
        let is_forgotten = look.staged > 0 && !look.children_expire && !look.is_due;
        let Some(total) = look.total else {
            if is_forgotten {
                suspect(FaultKind::UnreleasedChildren);
            }
            return Ok(());
        };
        // A flow that expires is over. A failed one has delivered its task.
        if look.expires || look.has_failed {
            return Ok(());
        }
        if look.left <= 0 {
            if look.is_held {
                suspect(FaultKind::UnjoinedFlow);
            }
            return Ok(());
        }
        if !look.has_task {
            suspect(FaultKind::FlowWithoutTask);
        }
        if is_forgotten {
            suspect(FaultKind::UnreleasedChildren);
        }
        self.children(id, &names, total, total.saturating_sub(look.staged)).await
    }

    /// Looks at the children that were released, which are the first ones.
    async fn children(&mut self, id: &str, names: &FlowKeys, total: u64, released: u64) -> QueueResult {
        let mut completed = 0;
        let mut without_status: BTreeMap<String, Vec<AwaitedChild>> = BTreeMap::new();
        for start in (0..released).step_by(CHILDREN as usize) {
            let mut read = redis::cmd("HMGET");
            read.arg(&names.results).arg((start..released.min(start + CHILDREN)).collect::<Vec<_>>());
            let notes = self.queue.shaped(WHAT, reply::array(self.queue.link.command(WHAT, &read).await?))?;
            let mut awaited = Vec::new();
            for (index, note) in (start..).zip(notes) {
                let note = self.queue.shaped(WHAT, optional(note))?;
                completed += u64::from(note.as_ref().is_some_and(|note| note.starts_with("COMPLETED ")));
                match note {
                    // Somebody deleted what the flow knows about this child.
                    None => {
                        let child = format!("{id}#{index}");
                        self.suspect_child(FaultKind::LostChild, names, index, &child, None);
                    }
                    Some(note) => awaited.extend(AwaitedChild::read(index, &note)),
                }
            }
            self.look_for_statuses(names, awaited, &mut without_status).await?;
            self.decide(BATCH).await?;
        }
        for (queue, children) in without_status {
            self.look_for_children(names, &queue, children).await?;
        }
        if completed == total {
            self.suspect(FaultKind::UnjoinedFlow, &names.about, id, &names.about);
        }
        Ok(())
    }

    /// Looks at the statuses of children. Returns the children without one, by their queue.
    async fn look_for_statuses(
        &mut self,
        names: &FlowKeys,
        children: Vec<AwaitedChild>,
        without: &mut BTreeMap<String, Vec<AwaitedChild>>,
    ) -> QueueResult {
        let mut asked = Vec::new();
        for child in children {
            match self.others.iter().find(|queue| queue.rules.name == child.queue) {
                Some(queue) => asked.push((queue.keys.task(&child.id), child)),
                None => self.warn_of_unknown_queue(&child),
            }
        }
        let ask = |(status, _): &(String, AwaitedChild)| {
            redis::cmd("HMGET").arg(status).arg("status").arg("flow").to_owned()
        };
        let replies = self.queue.link.pipeline(WHAT, &asked.iter().map(ask).collect::<Vec<_>>()).await?;
        for ((key, child), reply) in asked.into_iter().zip(replies) {
            let said = match reply {
                // The examination of the child's queue tells of that.
                Err(error) if error.is_wrong_type() => continue,
                reply => self.queue.shaped(WHAT, reply::tuple(reply?))?,
            };
            let [status, flow] = said.map(optional);
            let (status, flow) = (self.queue.shaped(WHAT, status)?, self.queue.shaped(WHAT, flow)?);
            let is_live =
                status.as_ref().and_then(|text| text.parse().ok()).is_some_and(|is: Status| !is.is_end());
            if status.is_none() && flow.is_none() {
                without.entry(child.queue.clone()).or_default().push(child);
            } else if !is_live || flow != Some(child.at(names)) {
                self.suspect_child(FaultKind::UncountedChild, names, child.index, &child.id, Some(key));
            }
        }
        Ok(())
    }

    /// Searches a queue for children that have no status.
    async fn look_for_children(
        &mut self,
        names: &FlowKeys,
        queue: &str,
        children: Vec<AwaitedChild>,
    ) -> QueueResult {
        let Some(queue) = self.others.iter().find(|known| known.rules.name == queue) else { return Ok(()) };
        let mut missing: HashSet<String> = children.iter().map(|child| child.id.clone()).collect();
        // A task that was promoted during the first search is found by the second one.
        for _ in 0..2 {
            queue.find_all(&mut missing, FIRST, usize::MAX).await?;
        }
        for child in children {
            let is_lost = missing.contains(&child.id);
            let kind = if is_lost { FaultKind::LostChild } else { FaultKind::UncountedChild };
            self.suspect_child(kind, names, child.index, &child.id, Some(queue.keys.task(&child.id)));
        }
        Ok(())
    }

    fn suspect_child(
        &mut self,
        kind: FaultKind,
        names: &FlowKeys,
        index: u64,
        id: &str,
        status: Option<String>,
    ) {
        let key = status.as_ref().unwrap_or(&names.results).as_str();
        let suspect = Suspect::new(kind, &format!("{index} {}", names.about), id, key);
        self.suspects.push(Suspect { status, ..suspect });
    }

    fn warn_of_unknown_queue(&mut self, child: &AwaitedChild) {
        const KIND: &str = "unknown-queue";
        let what = format!(
            "a flow waits for tasks of the queue {:?}, which this configuration does not have",
            child.queue
        );
        if !self.report.warnings.iter().any(|known| known.kind == KIND && known.what == what) {
            self.report.warnings.push(Warning { kind: KIND, what });
        }
    }
}

impl AwaitedChild {
    /// Reads what the flow notes about a child. None: the child has ended.
    fn read(index: u64, note: &str) -> Option<AwaitedChild> {
        let (queue, id) = note.strip_prefix("PENDING ")?.split_once(' ')?;
        Some(AwaitedChild { index, queue: queue.to_owned(), id: id.to_owned() })
    }

    /// How the status of the child names its flow.
    fn at(&self, names: &FlowKeys) -> String {
        format!("{} {}", self.index, names.about)
    }
}

impl Queue {
    /// None: a key of the flow has another type, or is gone.
    async fn look_at_flow(&self, id: &str, names: &FlowKeys) -> QueueResult<Option<FlowLook>> {
        let command = |name: &str, args: &[&str]| -> Cmd { redis::cmd(name).arg(args).to_owned() };
        let commands = [
            command("HMGET", &[&names.about, "total", "left", "failed_as"]),
            command("HMGET", &[&self.keys.task(id), "joins", "status", "entry", "parked_as"]),
            command("LLEN", &[&names.children]),
            command("PTTL", &[&names.about]),
            command("PTTL", &[&names.children]),
            command("ZSCORE", &[&self.keys.delayed, &format!("flow/{id}")]),
        ];
        let mut replies = Vec::new();
        for reply in self.link.pipeline(WHAT, &commands).await? {
            match reply {
                Err(error) if error.is_wrong_type() => return Ok(None),
                reply => replies.push(reply?),
            }
        }
        let look = |replies: Vec<Value>| -> Shaped<FlowLook> {
            let [about, status, staged, expires, children_expire, due] = reply::tuple(Value::Array(replies))?;
            let [total, left, failed] = reply::tuple::<3>(about)?.map(optional);
            let [joins, status, entry, parked] = reply::tuple::<4>(status)?.map(optional);
            let is_nowhere = entry?.is_none() && parked?.is_none();
            Ok(FlowLook {
                total: total?.and_then(|total| total.parse().ok()),
                left: left?.and_then(|left| left.parse().ok()).unwrap_or(0),
                has_failed: failed?.is_some(),
                staged: reply::count(&staged)?,
                expires: reply::int(&expires)? != -1,
                children_expire: reply::int(&children_expire)? != -1,
                is_due: due != Value::Nil,
                has_task: joins?.as_ref() == Some(&names.about),
                is_held: is_nowhere && status?.as_deref() == Some(Status::Pending.into_str()),
            })
        };
        self.shaped(WHAT, look(replies)).map(Some)
    }
}
