//! Endpoints: plugins of all hosts; orders to all hosts about a version, or to look at a plugin's file.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::extract::{ApiAnswer, ApiCall, JsonBody};
use super::state::Api;
use crate::admin::audit::AuditNote;
use crate::admin::problem::ApiProblem;
use crate::operations::history::{self, VersionView};
use crate::operations::{
    OperationResult, OrderView, PluginView, ReloadView, lift, plugin_rows, reload, withdraw,
};
use crate::queue::{Link, hosts};

/// The plugins of the running hosts.
#[derive(Serialize, ToSchema)]
pub(super) struct PluginList {
    /// How many hosts run.
    hosts: usize,
    /// One row for each plugin of each host.
    plugins: Vec<PluginView>,
    /// The ends of attempts in the last hour, by version: all hosts and queues together.
    versions: Vec<VersionView>,
}

/// The plugins of all running hosts: versions, states, figures
#[utoipa::path(get, path = "/v1/plugins", responses((status = 200, body = PluginList)))]
pub(super) async fn list_plugins(State(api): State<Api>) -> Result<Json<PluginList>, ApiProblem> {
    let link = api.link().await?;
    let hosts = hosts::list(link).await?;
    let versions = history::versions(&api.queues(), link, &hosts).await?;
    Ok(Json(PluginList { hosts: hosts.len(), plugins: plugin_rows(&hosts), versions }))
}

/// Lets all hosts look at the file of a plugin now
///
/// Hosts obey within seconds. A file that changed is taken, and one that failed is tried again, without a
/// pause. A version that serves goes on, and one in quarantine stays there until its file changes.
/// `GET /v1/plugins` tells what came of it.
#[utoipa::path(
    post, path = "/v1/plugins/{plugin}/reload",
    params(("plugin" = String, Path, description = "the plugin's name")),
    responses((status = 202, description = "the hosts are told", body = ReloadView))
)]
pub(super) async fn reload_plugin(ApiCall { api, path: name, caller }: ApiCall<String>) -> ApiAnswer {
    order(&api, &name, async |link| reload(link, &name, &caller.name).await).await
}

/// Which version is to be withdrawn, and why.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({ "version": "39a2c07d51e4", "why": "it writes wrong totals" })))]
pub(super) struct RollbackBody {
    /// SHA-256 of the version that the caller saw running, or its first 8 digits or more.
    version: String,
    /// The reason, which hosts show: 1 to 200 characters.
    #[schema(min_length = 1, max_length = 200)]
    why: String,
}

/// Which version may run again.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(examples(json!({})))]
pub(super) struct LiftBody {
    /// SHA-256 of the version, or its first 8 digits or more. Without it: the one that is in quarantine.
    version: Option<String>,
}

/// Withdraws a version of a plugin: hosts that run it go back to the good version before it
///
/// Hosts obey within seconds, and new ones at their start; the tasks that run go on. A host that knows no
/// good version before it runs nothing: the queues of the plugin wait there until another file is put in
/// place, or the version is lifted. The answer counts both kinds of hosts, and names the versions that start
/// (`back_to`). A version stays withdrawn until it is lifted. A version that no host runs any more, as it was
/// already rolled back, is 409 `not-running`.
#[utoipa::path(
    post, path = "/v1/plugins/{plugin}/rollback",
    params(("plugin" = String, Path, description = "the plugin's name")), request_body = RollbackBody,
    responses((status = 202, description = "the hosts are told", body = OrderView))
)]
pub(super) async fn roll_back_plugin(
    ApiCall { api, path: name, caller }: ApiCall<String>,
    JsonBody(body): JsonBody<RollbackBody>,
) -> ApiAnswer {
    let RollbackBody { version, why } = body;
    order(&api, &name, async |link| withdraw(link, &name, &version, &why, &caller.name).await).await
}

/// Lets a version run again that was withdrawn, or that hosts have rolled back
///
/// Hosts that have it in their folder take it again within seconds, on probation.
#[utoipa::path(
    post, path = "/v1/plugins/{plugin}/lift",
    params(("plugin" = String, Path, description = "the plugin's name")), request_body = LiftBody,
    responses((status = 202, description = "the hosts are told", body = OrderView))
)]
pub(super) async fn lift_plugin(
    ApiCall { api, path: name, caller }: ApiCall<String>,
    JsonBody(body): JsonBody<LiftBody>,
) -> ApiAnswer {
    let version = body.version.as_deref();
    order(&api, &name, async |link| lift(link, &name, version, &caller.name).await).await
}

async fn order<V: Serialize>(
    api: &Api,
    plugin: &str,
    give: impl AsyncFnOnce(&Link) -> OperationResult<V>,
) -> ApiAnswer {
    let given = give(api.link().await?).await;
    let note = AuditNote { plugin: Some(plugin.to_owned()), ..AuditNote::default() };
    Ok(match given {
        Ok(view) => note.on((StatusCode::ACCEPTED, Json(view))),
        Err(error) => note.on(ApiProblem::from(error)),
    })
}
