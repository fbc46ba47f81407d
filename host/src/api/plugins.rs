//! Endpoints: plugins of all hosts, and the reload of one in this host.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::audit::AuditNote;
use super::extract::PathOf;
use super::state::Api;
use crate::admin::problem::{ApiProblem, ProblemCode};
use crate::operations::{PluginView, plugin_rows};
use crate::queue::hosts;

/// The plugins of the running hosts.
#[derive(Serialize, ToSchema)]
pub(super) struct PluginList {
    /// How many hosts run.
    hosts: usize,
    /// One row for each plugin of each host.
    plugins: Vec<PluginView>,
}

/// A reload that has begun.
#[derive(Serialize, ToSchema)]
pub(super) struct ReloadView {
    plugin: String,
    /// The host that looks at its file.
    host: String,
}

/// The plugins of all running hosts: versions, states, figures
#[utoipa::path(get, path = "/v1/plugins", responses((status = 200, body = PluginList)))]
pub(super) async fn list_plugins(State(api): State<Api>) -> Result<Json<PluginList>, ApiProblem> {
    let hosts = hosts::list(api.link().await?).await?;
    Ok(Json(PluginList { hosts: hosts.len(), plugins: plugin_rows(&hosts) }))
}

/// Lets this host look at the file of a plugin now
///
/// A file that changed is taken, and one that failed is tried again, without a pause. A version that serves
/// goes on, and one in quarantine stays there until its file changes. `GET /v1/plugins` tells what came of
/// it.
#[utoipa::path(
    post,
    path = "/v1/plugins/{plugin}/reload",
    params(("plugin" = String, Path, description = "the plugin's name")),
    responses((status = 202, description = "this host looks at the file", body = ReloadView))
)]
pub(super) async fn reload_plugin(
    State(api): State<Api>,
    PathOf(name): PathOf<String>,
) -> Result<Response, ApiProblem> {
    if !api.0.plugins.reload(&name) {
        let detail = format!("no queue of this host uses a plugin {name:?}");
        return Err(ApiProblem::new(ProblemCode::UnknownPlugin, detail));
    }
    let note = AuditNote { plugin: Some(name.clone()), ..AuditNote::default() };
    let view = ReloadView { plugin: name, host: api.0.host.to_string() };
    Ok(note.on((StatusCode::ACCEPTED, Json(view))))
}
