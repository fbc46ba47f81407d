//! Lets a delayed task run now: a retry that waits for its backoff, or a task that was enqueued for later.
//!
//! In: a task's id or alias. Out: when it was due, or why it cannot be told to run. Only its due time
//! changes; its attempts stay as they are. A repeated call changes nothing, and says where the task is. Not
//! here: how Redis carries it out (`queue::delay`).

use serde::Serialize;
use utoipa::ToSchema;

use super::error::{OperationError, OperationResult};
use super::task::unknown_task;
use crate::queue::listing::{FoundTask, ListedState};
use crate::queue::repeat::patiently;
use crate::queue::{Meant, Queue, Status};

/// A task that runs before it was due. Times are milliseconds since the Unix epoch, by Redis's clock.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Retried {
    pub id: String,
    /// The attempt that it waits for, as before.
    pub attempt: u32,
    /// When it was due.
    pub was_due_at: Option<u64>,
}

/// Lets the task that `name` means run now; a dry run only tells what that would do.
pub(crate) async fn retry(queue: &Queue, name: &str, dry_run: bool) -> OperationResult<Retried> {
    let (id, place) = look(queue, name).await?;
    if let Some((member, retried)) = delayed(&id, &place)
        && (dry_run
            || patiently(|| queue.promote_early(member, &id)).await?
            || has_gone_on(queue, &id).await?)
    {
        return Ok(retried);
    }
    Err(refusal(queue, &id, &place).await?)
}

/// Where a task is, if it was found.
type Place = Option<(ListedState, FoundTask)>;

/// The member among the delayed tasks and the answer for the task `id`, if it is delayed.
fn delayed<'p>(id: &str, place: &'p Place) -> Option<(&'p str, Retried)> {
    let (_, task) =
        place.as_ref().filter(|(state, task)| *state == ListedState::Delayed && task.summary.id == id)?;
    let (attempt, was_due_at) = (task.summary.attempt, task.summary.due_at);
    Some((task.member(), Retried { id: id.to_owned(), attempt, was_due_at }))
}

/// The id of the task that `name` means, and its place. Fails where nothing is known of such a task.
async fn look(queue: &Queue, name: &str) -> OperationResult<(String, Place)> {
    let Some(id) = patiently(|| queue.find(name, Meant::NewestLiving)).await? else {
        return Err(refusal(queue, name, &None).await?);
    };
    let found = patiently(|| queue.located(&id)).await?;
    Ok((id, found))
}

/// Whether a task that was delayed a moment ago waits or runs in the stream: it became due meanwhile, or this
/// call had no reply and was repeated.
async fn has_gone_on(queue: &Queue, id: &str) -> OperationResult<bool> {
    let found = patiently(|| queue.located(id)).await?;
    Ok(matches!(found, Some((ListedState::Queued | ListedState::Running, _))))
}

/// Why a task that is not delayed cannot be told to run, and the way out.
async fn refusal(queue: &Queue, id: &str, place: &Place) -> OperationResult<OperationError> {
    let name = &queue.rules.name;
    let status = patiently(|| queue.status(id)).await?.map(|task| task.summary.status);
    // A status is looked for among the dead letters, too, by the id. Another name may still mean one of them.
    let may_be_dead = status.map_or(queue.rules.id.is_some(), |status| status == Status::Failed);
    if may_be_dead && let Some(letter) = patiently(|| queue.dead_named(id)).await? {
        let id = letter.id;
        return Ok(OperationError::HasEnded(format!(
            "task {id:?} is dead, so it does not wait for another attempt: `tqhost dead requeue {name} {id}` \
             brings it back"
        )));
    }
    let Some(status) = status else {
        return Ok(OperationError::UnknownTask(unknown_task(&queue.rules, id)));
    };
    if status.is_end() {
        let why = format!("task {id:?} is {} already: enqueue a new one to run it again", status.into_str());
        return Ok(OperationError::HasEnded(why));
    }
    let why = match place.as_ref().map(|(state, _)| *state) {
        Some(ListedState::Held) => format!(
            "held: it waits for its turn, and runs when the tasks before it have ended; `tqhost tasks {name} \
             --state running` and `--state delayed` show them"
        ),
        Some(ListedState::Running) => "running already".to_owned(),
        Some(ListedState::Queued) => {
            format!(
                "queued already, and runs when a host has room; `tqhost queues {name}` shows what hosts do"
            )
        }
        _ if patiently(|| queue.flow_progress(id)).await?.is_some() => format!(
            "waiting for the tasks of its flow; `tqhost status {name} {id}` shows them, and those that are \
             delayed can be told to run"
        ),
        _ => format!("{}, and was not found among the delayed tasks", status.into_str()),
    };
    Ok(OperationError::NotDelayed(format!("task {id:?} cannot be told to run now: it is {why}")))
}
