//! `tqhost cancel`, `pause` and `resume`: an operator stops a task, or stops and restarts a queue.
//!
//! In: a queue's name, and for `cancel` a task's id. Out: a sentence, or an object as JSON. Each command may
//! be repeated: the second time changes nothing. Not here: how Redis and the hosts carry it out (`queue`,
//! `worker`).

use anyhow::anyhow;
use serde_json::json;

use super::context::{open, patiently};
use super::exit::CommandError;
use super::output::Out;
use super::text;
use crate::config::Config;
use crate::config::units::show_duration;
use crate::queue::{FlowChild, Queue, Status};

/// Fails when the task is not known, or has completed or failed.
pub(super) async fn cancel(
    config: &Config,
    queue: &str,
    id: &str,
    out: &mut Out,
) -> Result<(), CommandError> {
    let queue = open(config, queue).await?;
    let name = &queue.rules.name;
    let Some(before) = patiently(|| queue.cancel(id)).await? else {
        let retention = show_duration(queue.rules.retention);
        let what = format!(
            "queue {name} knows no task {id:?}: it was never there, or it ended more than {retention} ago"
        );
        return Err(anyhow!(what).into());
    };
    if matches!(before, Status::Completed | Status::Failed) {
        return Err(anyhow!("task {id:?} cannot be cancelled: it is {} already", before.into_str()).into());
    }
    let children = cancel_children(config, &queue, id).await?;
    if out.json {
        let status = Status::Cancelled;
        out.json(&json!({ "id": id, "before": before, "status": status, "children": children }));
    } else {
        let with = if children > 0 {
            format!(", and {} of its flow with it", text::plural(children, "task"))
        } else {
            String::new()
        };
        out.line(format!("{} is cancelled{with}; it was {}", text::escape(id), before.into_str()));
    }
    Ok(())
}

/// Cancels the children of the flow that the task `id` would have joined. Gives how many had not ended.
async fn cancel_children(config: &Config, queue: &Queue, id: &str) -> Result<u64, CommandError> {
    let mut cancelled = 0;
    let children = patiently(|| queue.open_children(id, usize::MAX)).await?;
    for FlowChild { queue: name, id: child, .. } in children.iter().filter(|child| !child.status.is_end()) {
        let Some(rules) = config.queues.iter().find(|rules| rules.name == *name) else {
            return Err(anyhow!(
                "the child {child:?} is in queue {name}, which this configuration does not have"
            )
            .into());
        };
        let of_child = Queue::new(rules.clone(), queue.link.clone());
        let before = patiently(|| of_child.cancel(child)).await?;
        cancelled += u64::from(before.is_some_and(|status| !status.is_end()));
    }
    Ok(cancelled)
}

pub(super) async fn pause(config: &Config, queue: &str, out: &mut Out) -> Result<(), CommandError> {
    let queue = open(config, queue).await?;
    let changed = patiently(|| queue.pause()).await?;
    paused(&queue.rules.name, true, changed, out);
    Ok(())
}

pub(super) async fn resume(config: &Config, queue: &str, out: &mut Out) -> Result<(), CommandError> {
    let queue = open(config, queue).await?;
    let changed = patiently(|| queue.resume()).await?;
    paused(&queue.rules.name, false, changed, out);
    Ok(())
}

fn paused(queue: &str, paused: bool, changed: bool, out: &mut Out) {
    if out.json {
        return out.json(&json!({ "queue": queue, "paused": paused, "changed": changed }));
    }
    out.line(match (paused, changed) {
        (true, true) => format!("{queue} is paused in all hosts; what runs goes on"),
        (true, false) => format!("{queue} was paused already"),
        (false, true) => format!("{queue} goes on"),
        (false, false) => format!("{queue} was not paused"),
    });
}
