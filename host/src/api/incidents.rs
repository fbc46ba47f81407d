//! Endpoints: what is wrong, who knows of it, and the hosts.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::extract::{ApiAnswer, ApiCall, JsonBody};
use super::state::Api;
use crate::admin::audit::AuditNote;
use crate::admin::problem::ApiProblem;
use crate::clock::now_ms;
use crate::operations::incidents::{self, Incident};
use crate::operations::overview;
use crate::queue::hosts::{self, HostInfo, LostHost};
use crate::queue::incidents::Acknowledgement;

/// The incidents.
#[derive(Serialize, ToSchema)]
pub(super) struct IncidentList {
    /// The urgent ones first, and of these the newest.
    incidents: Vec<Incident>,
}

/// All hosts.
#[derive(Serialize, ToSchema)]
pub(super) struct HostList {
    /// The hosts that run.
    hosts: Vec<HostInfo>,
    /// The hosts that ended without stopping within the last hour.
    lost: Vec<LostHost>,
}

/// For how long an incident is acknowledged.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(examples(json!({ "for": "1h", "why": "the mail provider knows" })))]
pub(super) struct AcknowledgeBody {
    /// A time like `1h`, at most 30 days. Without it: until the incident ends. `0s` opens it again.
    r#for: Option<String>,
    /// The reason, which pages show: up to 200 characters.
    #[schema(max_length = 200)]
    why: String,
}

/// An incident that somebody knows of.
#[derive(Serialize, ToSchema)]
pub(super) struct AcknowledgedView {
    id: String,
    /// Null: it is open again.
    acknowledged: Option<Acknowledgement>,
}

/// One incident for each cause of trouble, the urgent ones first
#[utoipa::path(get, path = "/v1/incidents", responses((status = 200, body = IncidentList)))]
pub(super) async fn list_incidents(State(api): State<Api>) -> Result<Json<IncidentList>, ApiProblem> {
    let seen = overview(&api.queues(), api.link().await?).await?;
    Ok(Json(IncidentList { incidents: seen.incidents }))
}

/// Says that the caller knows of an incident, or opens it again
#[utoipa::path(
    post, path = "/v1/incidents/{id}/acknowledge",
    params(("id" = String, Path, description = "the incident's id")), request_body = AcknowledgeBody,
    responses((status = 200, description = "it is noted, for all hosts", body = AcknowledgedView))
)]
pub(super) async fn acknowledge_incident(
    ApiCall { api, path: id, caller }: ApiCall<String>,
    JsonBody(body): JsonBody<AcknowledgeBody>,
) -> ApiAnswer {
    let note = AuditNote { ids: vec![id.clone()], ..AuditNote::default() };
    let noted =
        incidents::acknowledge(api.link().await?, &id, body.r#for.as_deref(), &body.why, &caller.name).await;
    let noted = noted.map(|acknowledged| Json(AcknowledgedView { id, acknowledged }));
    Ok(note.on(noted.map_err(ApiProblem::from)))
}

/// The hosts that run, and those that ended without stopping
#[utoipa::path(get, path = "/v1/hosts", responses((status = 200, body = HostList)))]
pub(super) async fn list_hosts(State(api): State<Api>) -> Result<Json<HostList>, ApiProblem> {
    let link = api.link().await?;
    Ok(Json(HostList { hosts: hosts::list_known(link).await?, lost: hosts::lost(link, now_ms()).await? }))
}
