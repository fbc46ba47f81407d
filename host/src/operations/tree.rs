//! The tree of a task: the children of the flow that it joins, the flows that it and they started, and so on.
//!
//! In: a task. Out: the part of its tree that is worth showing; or the whole tree is cancelled. A tree is
//! read page by page, across the queues of the configuration.
//!
//! Not here: what one queue knows of a flow (`queue::flow`), how a tree is shown (`status`).

use std::future::Future;
use std::pin::Pin;

use serde::Serialize;
use utoipa::ToSchema;

use super::error::{OperationError, OperationResult};
use crate::config::QueueRules;
use crate::queue::repeat::patiently;
use crate::queue::{FlowChild, FlowProgress, Queue, Status, TaskName, TaskStatus, TaskSummary};

/// The levels of a tree that are shown, below the task itself.
const LEVELS: usize = 5;
/// The most tasks of a tree that are shown.
const SHOWN: usize = 40;
/// The most tasks of a tree that are looked at. Most of them are not shown, because they have completed and
/// started no flow that goes on.
const LOOKS: usize = 400;

/// The relatives of a task.
#[derive(Debug, Default)]
pub(crate) struct Family {
    /// Its parent: the task that joins the flow which has this task as a child.
    pub child_of: Option<TaskName>,
    pub below: Branches,
}

/// The tasks and flows below a task.
#[derive(Debug, Default)]
pub(crate) struct Branches {
    /// The first children of the flow that this task joins, without those that have completed and started no
    /// flow that goes on.
    pub children: Vec<BranchView>,
    /// The tasks that join the flows which it started.
    pub flows: Vec<BranchView>,
}

/// A task below another one in the tree. The names are stable.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BranchView {
    pub queue: String,
    pub id: String,
    #[schema(value_type = String)]
    pub status: Status,
    pub progress: Option<u8>,
    pub note: Option<String>,
    pub error: Option<String>,
    pub children: Option<u64>,
    pub children_completed: Option<u64>,
    #[schema(no_recursion)]
    pub open_children: Option<Vec<BranchView>>,
    #[schema(no_recursion)]
    pub flows: Vec<BranchView>,
}

impl BranchView {
    pub(crate) fn new(queue: &str, task: TaskStatus, below: Branches) -> BranchView {
        let TaskStatus { summary, flow, .. } = task;
        let TaskSummary { id, status, progress, note, error, .. } = summary;
        BranchView {
            queue: queue.to_owned(),
            id,
            status,
            progress,
            note,
            error,
            children: flow.map(|flow| flow.children),
            children_completed: flow.map(|flow| flow.completed),
            open_children: flow.map(|_| below.children),
            flows: below.flows,
        }
    }

    /// How far the flow is that it joins.
    pub(crate) fn flow(&self) -> Option<FlowProgress> {
        Some(FlowProgress { completed: self.children_completed?, children: self.children? })
    }

    /// The tasks below it.
    pub(crate) fn below(&self) -> impl Iterator<Item = &BranchView> {
        self.open_children.iter().flatten().chain(&self.flows)
    }

    /// Whether it, or a task below it, has not completed.
    fn is_open(&self) -> bool {
        self.status != Status::Completed || self.below().any(BranchView::is_open)
    }
}

/// Looks up the relatives of a task in all queues of the configuration.
pub(crate) async fn family(
    queues: &[QueueRules],
    queue: &Queue,
    task: &TaskStatus,
) -> OperationResult<Family> {
    let parent_in = |other: Queue| {
        other.joined_by(task).map(|id| TaskName { queue: other.rules.name.clone(), id: id.to_owned() })
    };
    let mut walk = Walk { queues: Queues { all: queues, asked: queue }, shown: SHOWN, looks: LOOKS };
    let child_of = queues.iter().find_map(|rules| parent_in(walk.queues.find(&rules.name)?));
    Ok(Family { child_of, below: walk.below(queue, task, 0).await? })
}

/// The queues of a configuration, on the connection of one of them.
#[derive(Clone, Copy)]
struct Queues<'c> {
    all: &'c [QueueRules],
    /// The queue of the task that was asked about.
    asked: &'c Queue,
}

impl Queues<'_> {
    fn find(self, name: &str) -> Option<Queue> {
        let rules = self.all.iter().find(|rules| rules.name == name)?;
        Some(Queue::new(rules.clone(), self.asked.link.clone()))
    }
}

/// Goes down a tree, depth first.
struct Walk<'c> {
    queues: Queues<'c>,
    /// How many tasks may still be shown.
    shown: usize,
    /// How many tasks may still be looked at.
    looks: usize,
}

type Walked<'w, T> = Pin<Box<dyn Future<Output = OperationResult<T>> + Send + 'w>>;

impl Walk<'_> {
    /// The tasks and flows below a task that is `depth` levels below the task at the top.
    fn below<'w>(&'w mut self, queue: &'w Queue, task: &'w TaskStatus, depth: usize) -> Walked<'w, Branches> {
        Box::pin(async move {
            let mut below = Branches::default();
            if depth == LEVELS {
                return Ok(below);
            }
            if task.flow.is_some() {
                below.children = self.children(queue, &task.summary.id, depth).await?;
            }
            for flow in &task.flows {
                // None: it ended long ago and nothing is kept of it, or enough tasks were looked at or shown.
                let Some(found) = self.look(flow, None, depth).await? else { continue };
                if depth == 0 || found.is_open() {
                    below.flows.push(found);
                } else {
                    self.shown += 1;
                }
            }
            Ok(below)
        })
    }

    async fn children(&mut self, queue: &Queue, id: &str, depth: usize) -> OperationResult<Vec<BranchView>> {
        let mut open = Vec::new();
        for page in 0.. {
            let children = patiently(|| queue.children(id, page)).await?;
            if children.is_empty() {
                break;
            }
            for child in children.iter().filter(|child| !child.is_done()) {
                if self.shown == 0 || self.looks == 0 {
                    return Ok(open);
                }
                match self.look(&child.task, Some(child), depth).await? {
                    Some(found) if found.is_open() => open.push(found),
                    Some(_) => self.shown += 1,
                    None => {}
                }
            }
        }
        Ok(open)
    }

    /// A task and the tasks below it, which count as shown. If nothing is kept of the task, `child` tells
    /// what its flow knows of it. None: nothing is known of it, or enough tasks were looked at or shown.
    async fn look(
        &mut self,
        name: &TaskName,
        child: Option<&FlowChild>,
        depth: usize,
    ) -> OperationResult<Option<BranchView>> {
        if self.shown == 0 || self.looks == 0 {
            return Ok(None);
        }
        self.looks -= 1;
        let queue = self.queues.find(&name.queue);
        let kept = match &queue {
            Some(queue) => patiently(|| queue.status(&name.id)).await?,
            None => None,
        };
        let noted = |child: &FlowChild| TaskStatus {
            summary: TaskSummary::new(&name.id, child.status),
            flows: child.flows.clone(),
            ..TaskStatus::default()
        };
        let Some(task) = kept.or_else(|| child.map(noted)) else { return Ok(None) };
        self.shown -= 1;
        let below = self.below(queue.as_ref().unwrap_or(self.queues.asked), &task, depth + 1).await?;
        Ok(Some(BranchView::new(&name.queue, task, below)))
    }
}

/// Cancels what is below a task that was to join a flow: its children, the flows that they started, and what
/// is below those. Returns how many tasks had not ended.
pub(crate) async fn cancel_below(queues: &[QueueRules], queue: &Queue, id: &str) -> OperationResult<u64> {
    let queues = Queues { all: queues, asked: queue };
    let find = |name: &TaskName| {
        queues.find(&name.queue).ok_or_else(|| {
            let TaskName { queue, id } = name;
            OperationError::OutOfReach(format!(
                "the task {id:?} of the flow is in queue {queue}, which this configuration does not have"
            ))
        })
    };
    let mut cancelled = 0;
    // Tasks that join flows whose children are still to be cancelled. They themselves have ended by now.
    let mut joining = vec![TaskName { queue: queue.rules.name.clone(), id: id.to_owned() }];
    while let Some(parent) = joining.pop() {
        let of_flow = find(&parent)?;
        for page in 0.. {
            let children = patiently(|| of_flow.children(&parent.id, page)).await?;
            if children.is_empty() {
                break;
            }
            for FlowChild { task, status, flows } in children {
                let mut flows = flows;
                if !status.is_end() {
                    let (was_open, started) = cancel_one(&find(&task)?, &task.id).await?;
                    cancelled += u64::from(was_open);
                    flows = started;
                }
                // A flow that a completed task started may have led to more.
                while let Some(flow) = flows.pop() {
                    let (was_open, started) = cancel_one(&find(&flow)?, &flow.id).await?;
                    cancelled += u64::from(was_open);
                    flows.extend(started);
                    joining.push(flow);
                }
            }
        }
    }
    Ok(cancelled)
}

/// Cancels one task. Returns whether it had not ended, and the flows that it started if it had completed.
async fn cancel_one(queue: &Queue, id: &str) -> OperationResult<(bool, Vec<TaskName>)> {
    match patiently(|| queue.cancel(id)).await? {
        Some(Status::Completed) => {
            let status = patiently(|| queue.status(id)).await?;
            Ok((false, status.map_or_else(Vec::new, |status| status.flows)))
        }
        before => Ok((before.is_some_and(|before| !before.is_end()), Vec::new())),
    }
}
