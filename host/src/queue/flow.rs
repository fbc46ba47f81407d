//! Flows: children whose results another task joins.
//!
//! In: the children of a flow that is to start; later the id of the task that joins it. Out: the results of
//! the children, and how far the flow is.
//!
//! Not here: the start of a flow (`settle`), releasing its children (`scripts/promote.lua`), counting their
//! ends (`scripts/ends.lua`).

use std::time::{Duration, Instant};

use super::codec;
use super::effects::{outbox_fields, outbox_key};
use super::error::QueueResult;
use super::handle::{Queue, millis};
use super::keys::FlowKeys;
use super::repeat;
use super::reply;
use super::script::{self, Part, ScriptCall};
use super::size::{NEVER_TOO_LARGE, SizeLimits};
use super::status::{FlowProgress, Status, TaskName, TaskStatus};
use crate::effects::{ChildResult, EffectError, OutboxTask};

/// How long staged children live after the attempt's timeout, because outages may delay its settlement.
const STAGED: Duration = Duration::from_secs(24 * 3600);
/// The most children of one call of stage.lua.
const STAGE_PAGE: usize = 100;
/// A call takes no further child once its children have this many bytes.
const STAGE_BYTES: usize = 1 << 20;
/// How many results one command reads.
const RESULTS_PAGE: usize = 200;

/// A child of a flow, as the flow knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FlowChild {
    pub task: TaskName,
    /// [`Status::Pending`] until it has ended.
    pub status: Status,
    /// The tasks that join the flows which it started itself.
    pub flows: Vec<TaskName>,
}

impl FlowChild {
    /// Whether it has completed and started nothing.
    pub(crate) fn is_done(&self) -> bool {
        self.status == Status::Completed && self.flows.is_empty()
    }
}

impl Queue {
    /// How far the flow is that the task `id` joins. None: there is none, or it has expired.
    pub(crate) async fn flow_progress(&self, id: &str) -> QueueResult<Option<FlowProgress>> {
        const WHAT: &str = "read a flow";
        let mut read = redis::cmd("HMGET");
        read.arg(self.keys.flow(id).about).arg("left").arg("total");
        let reply = self.link.command(WHAT, &read).await?;
        let progress = |reply| {
            let [left, total] = reply::tuple(reply)?;
            let (left, children) = (reply::count(&left)?, reply::count(&total)?);
            Ok((children > 0).then(|| FlowProgress { completed: children.saturating_sub(left), children }))
        };
        self.shaped(WHAT, progress(reply))
    }

    /// One page of the children of the flow that the task `id` joins: those that were released, in their
    /// order. Empty after the last page.
    pub(crate) async fn children(&self, id: &str, page: usize) -> QueueResult<Vec<FlowChild>> {
        const WHAT: &str = "read the children of a flow";
        let child = |noted: &str, flows: Option<&String>| {
            let (status, task) = noted.split_once(' ')?;
            Some(FlowChild {
                status: status.parse().ok()?,
                task: TaskName::read(task)?,
                flows: flows.map_or_else(Vec::new, |flows| TaskName::read_list(flows)),
            })
        };
        let mut read = redis::cmd("HMGET");
        read.arg(self.keys.flow(id).results);
        for index in page * RESULTS_PAGE..(page + 1) * RESULTS_PAGE {
            read.arg(index).arg(format!("{index}:flows"));
        }
        let noted = reply::each(self.link.command(WHAT, &read).await?, reply::optional);
        let noted: Vec<Option<String>> = self.shaped(WHAT, noted)?;
        let children = noted.chunks(2).filter_map(|noted| child(noted[0].as_ref()?, noted[1].as_ref()));
        Ok(children.collect())
    }

    /// The id of the task of this queue that joins the flow of a child. None: the flow is another queue's.
    pub(crate) fn joined_by<'t>(&self, child: &'t TaskStatus) -> Option<&'t str> {
        child.child_of.as_ref()?.strip_prefix(&self.keys.flow("").about)
    }

    /// Stages children until the commit of their flow. If the commit never comes, or this call fails, some
    /// children may stay until they expire. Calls that Redis does not answer are repeated until `until`.
    pub(super) async fn stage(
        &self,
        flow: &FlowKeys,
        children: &[OutboxTask],
        until: Instant,
    ) -> QueueResult {
        const WHAT: &str = "keep the children of a flow";
        let largest = children.iter().flat_map(|child| &child.fields).map(|field| field.value.len()).max();
        let largest = largest.unwrap_or_default();
        let is_large = largest > NEVER_TOO_LARGE;
        if is_large && let Some(why) = SizeLimits::of(&self.link).await.refusal(largest) {
            return Err(self.refused(WHAT, &why));
        }
        let lives = millis(self.rules.timeout + STAGED);
        let mut staged = 0;
        while staged < children.len() {
            let page = page_of(&children[staged..]);
            debug_assert!(!page.is_empty(), "the first child always fits, so the loop ends");
            let call = ScriptCall::new(&script::STAGE).key("children", &flow.children);
            let mut call = call.key("flow", &flow.about).arg("lives", lives).arg("expected", staged);
            for (index, child) in (staged..).zip(page) {
                if let Some(part) = self.child_call(flow, index, child) {
                    call = call.part("children", &part);
                }
            }
            let kept = repeat::until(until, &self.link, is_large, || self.link.script(&call)).await?;
            staged += page.len();
            if self.shaped(WHAT, reply::count(&kept))? != staged as u64 {
                return Err(self.refused(WHAT, "those that were kept before are gone"));
            }
        }
        Ok(())
    }

    /// A child as stage.lua takes it; `index` is its place in the flow. None: its queue is not configured any
    /// more, which the check of the task has excluded.
    fn child_call(&self, flow: &FlowKeys, index: usize, child: &OutboxTask) -> Option<Part> {
        let (target, keys) = self.target(&child.queue)?;
        let mut fields = outbox_fields(child);
        fields.push(codec::raw(codec::FLOW, &format!("{index} {}", flow.about)));
        let call = Part::of("child")
            .arg("queue", &target.name)
            .arg("stream", &keys.stream)
            .arg("delayed", &keys.delayed)
            .arg("parked", &keys.parked)
            .arg("status", keys.task(&child.id))
            .arg("marker", keys.marker(outbox_key(child, target).as_deref()))
            .arg("id", &child.id)
            .arg("delay", millis(child.delay))
            .arg("retention", millis(target.retention))
            .arg("most", target.max_backlog);
        Some(call.list(&fields))
    }

    /// Deletes the staged children of flows that were not committed. Those of other flows stay.
    pub(super) async fn unstage(&self, flows: &[FlowKeys]) -> QueueResult {
        let call = |flow: &FlowKeys| ScriptCall::new(&script::UNSTAGE).key("children", &flow.children);
        let calls: Vec<ScriptCall> = flows.iter().map(call).collect();
        let replies = self.link.scripts("delete staged children", &calls).await?;
        replies.into_iter().try_for_each(|reply| reply.map(drop))
    }

    /// The results of a flow's children; a child that did not complete has none. They are refused if the flow
    /// has expired, or if they have more bytes than `most`. Sizes are read first, so that the host never
    /// holds more than `most` bytes.
    pub(super) async fn results(
        &self,
        flow: &FlowKeys,
        most: u64,
    ) -> QueueResult<Result<Vec<ChildResult>, EffectError>> {
        const WHAT: &str = "read the results of a flow";
        let total = self.link.command(WHAT, redis::cmd("HGET").arg(&flow.about).arg("total")).await?;
        if total == redis::Value::Nil {
            let why = "the flow has expired, so the results of its children are gone: start the flow again";
            return Ok(Err(EffectError::Unavailable(why.to_owned())));
        }
        let total = self.shaped(WHAT, reply::count(&total))?;
        let (mut results, mut bytes) = (Vec::new(), 0);
        for start in (0..total).step_by(RESULTS_PAGE) {
            let value = |index: u64| {
                redis::cmd("HSTRLEN").arg(&flow.results).arg(format!("{index}:value")).to_owned()
            };
            let sizes: Vec<_> = (start..total.min(start + RESULTS_PAGE as u64)).map(value).collect();
            for size in self.link.pipeline(WHAT, &sizes).await? {
                bytes += self.shaped(WHAT, reply::count(&size?))?;
            }
            if bytes > most {
                let why = format!(
                    "the results of the flow do not fit into the {most} bytes of memory that the handler has \
                     left"
                );
                return Ok(Err(EffectError::TooLarge(why)));
            }
            let mut read = redis::cmd("HMGET");
            read.arg(&flow.results);
            for index in start..total.min(start + RESULTS_PAGE as u64) {
                read.arg(index).arg(format!("{index}:value"));
            }
            let found = self.shaped(WHAT, reply::array(self.link.command(WHAT, &read).await?))?;
            let mut found = found.into_iter();
            while let (Some(end), Some(value)) = (found.next(), found.next()) {
                let end = self.shaped(WHAT, reply::optional(end))?.unwrap_or_default();
                // The status, the queue and the id.
                let mut parts = end.splitn(3, ' ').skip(1).map(str::to_owned);
                results.push(ChildResult {
                    queue: parts.next().unwrap_or_default(),
                    id: parts.next().unwrap_or_default(),
                    value: self.shaped(WHAT, reply::optional_bytes(value))?,
                });
            }
        }
        Ok(Ok(results))
    }
}

/// The first of these children, as many as one call of stage.lua takes.
fn page_of(children: &[OutboxTask]) -> &[OutboxTask] {
    let mut bytes = 0;
    let fits = |child: &&OutboxTask| {
        let fits = bytes < STAGE_BYTES;
        bytes += child.bytes();
        fits
    };
    &children[..children.iter().take(STAGE_PAGE).take_while(fits).count()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effects::tests::task as child;

    #[test]
    fn children_are_staged_in_pages_of_a_hundred_or_a_mebibyte() {
        let pages = |sizes: &[usize]| {
            let children: Vec<OutboxTask> = sizes.iter().copied().map(child).collect();
            let (mut pages, mut rest) = (Vec::new(), &children[..]);
            while !rest.is_empty() {
                let page = page_of(rest).len();
                pages.push(page);
                rest = &rest[page..];
            }
            pages
        };
        assert_eq!(pages(&[1; 250]), [100, 100, 50]);
        assert_eq!(pages(&[400 << 10; 7]), [3, 3, 1]);
        assert_eq!(pages(&[4 << 20, 4 << 20, 1]), [1, 1, 1]);
    }
}
