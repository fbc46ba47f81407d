//! `tqhost cancel`, `pause` and `resume`: an operator stops a task, or stops and restarts a queue.
//!
//! In: a queue's name, and for `cancel` a task's id or alias. Out: a sentence, or an object as JSON. Each
//! command may be repeated: the second time changes nothing. Not here: how Redis and the hosts carry it out
//! (`queue`, `worker`).

use anyhow::anyhow;
use serde_json::json;

use super::context::{open, patiently};
use super::exit::CommandError;
use super::output::Out;
use super::{text, tree};
use crate::config::Config;
use crate::config::units::show_duration;
use crate::queue::{FlowProgress, Meant, Status, TaskName};

/// Fails when the task is not known, or has completed or failed. A task that is dead because a child of its
/// flow did not complete stays dead, and the rest of the flow is cancelled.
pub(super) async fn cancel(
    config: &Config,
    queue: &str,
    id: &str,
    out: &mut Out,
) -> Result<(), CommandError> {
    let queue = open(config, queue).await?;
    let name = &queue.rules.name;
    let found = patiently(|| queue.find(id, Meant::NewestLiving)).await?;
    let before = match &found {
        Some(id) => patiently(|| queue.cancel(id)).await?,
        None => None,
    };
    let (Some(id), Some(before)) = (found.as_deref(), before) else {
        let retention = show_duration(queue.rules.retention);
        let what = format!(
            "queue {name} knows no task {id:?}: it was never there, or it ended more than {retention} ago"
        );
        return Err(anyhow!(what).into());
    };
    let left = |flow: FlowProgress| flow.completed < flow.children;
    let flow_goes_on =
        before == Status::Failed && patiently(|| queue.flow_progress(id)).await?.is_some_and(left);
    if matches!(before, Status::Completed | Status::Failed) && !flow_goes_on {
        let mut why = format!("task {id:?} cannot be cancelled: it is {} already", before.into_str());
        for TaskName { queue, id } in
            patiently(|| queue.status(id)).await?.into_iter().flat_map(|task| task.flows)
        {
            why += &format!(". It started a flow, which you cancel with `tqhost cancel {queue} {id}`");
        }
        return Err(anyhow!(why).into());
    }
    let children = tree::cancel_below(config, &queue, id).await?;
    if out.json {
        let status = if flow_goes_on { Status::Failed } else { Status::Cancelled };
        out.json(&json!({ "id": id, "before": before, "status": status, "children": children }));
    } else if flow_goes_on {
        let with = match children {
            0 => "no task of its flow goes on".to_owned(),
            children => format!("this cancelled {} of its flow", text::plural(children, "task")),
        };
        out.line(format!("{} stays FAILED; {with}", text::escape(id)));
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
        (false, false) => format!("{queue} was neither paused nor held"),
    });
}
