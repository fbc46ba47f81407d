//! Endpoint: the log of changes.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::extract::QueryOf;
use super::state::Api;
use crate::admin::problem::{ApiProblem, invalid};
use crate::operations::changes::{self, ChangeView};
use crate::queue::changes::MOST_CHANGES;

/// The last changes.
#[derive(Serialize, ToSchema)]
pub(super) struct ChangeList {
    /// The newest first.
    changes: Vec<ChangeView>,
}

/// The query of a list of changes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangesQuery {
    queue: Option<String>,
    plugin: Option<String>,
    limit: Option<usize>,
}

/// The last 500 changes of operators: pauses, jobs, rollbacks and the like
#[utoipa::path(
    get, path = "/v1/changes",
    params(
        ("queue" = Option<String>, Query, description = "only changes of this queue"),
        ("plugin" = Option<String>, Query, description = "only changes of this plugin"),
        ("limit" = Option<usize>, Query, minimum = 1, maximum = 500, description = "the most changes"),
    ),
    responses((status = 200, body = ChangeList))
)]
pub(super) async fn list_changes(
    State(api): State<Api>,
    QueryOf(query): QueryOf<ChangesQuery>,
) -> Result<Json<ChangeList>, ApiProblem> {
    let limit = query.limit.unwrap_or(MOST_CHANGES);
    if !(1..=MOST_CHANGES).contains(&limit) {
        return Err(invalid(format!("limit: {limit} is not 1 to {MOST_CHANGES}")));
    }
    let (queue, plugin) = (query.queue.as_deref(), query.plugin.as_deref());
    Ok(Json(ChangeList { changes: changes::list(api.link().await?, queue, plugin, limit).await? }))
}
