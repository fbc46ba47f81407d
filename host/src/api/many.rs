//! The frame of each operation on many tasks.
//!
//! In: a checked body, and what is done with the tasks that it means. Out: the answer, with a note for the
//! audit. Not here: what a body may say (`body`), and the operations.

use axum::Json;
use axum::response::Response;
use serde::Serialize;

use super::body::{Many, ManyBody};
use super::state::Api;
use crate::admin::audit::AuditNote;
use crate::admin::problem::ApiProblem;
use crate::operations::OperationError;
use crate::queue::Queue;

/// Lets `act` change the tasks that the body means. `counts` tells how many succeeded, and were skipped.
pub(super) async fn change_many<T: Serialize>(
    api: &Api,
    name: &str,
    body: &ManyBody,
    act: impl AsyncFnOnce(&Queue, &Many<'_>) -> Result<T, OperationError>,
    counts: impl FnOnce(&T) -> (u64, u64),
) -> Result<Response, ApiProblem> {
    let many = body.many(api.mask())?;
    let queue = api.queue(name).await?;
    let note = AuditNote { dry_run: body.dry_run, ..AuditNote::queue(name) };
    let note = match &many {
        Many::Ids(ids) => AuditNote { ids: ids.to_vec(), ..note },
        Many::All(_) => note.with_filter(body),
    };
    Ok(match act(&queue, &many).await {
        Ok(done) => {
            let (succeeded, skipped) = counts(&done);
            note.with_counts(succeeded, skipped).on(Json(done))
        }
        Err(error) => note.on(ApiProblem::from(error)),
    })
}
