//! The role that each request needs.
//!
//! In: the method and the route of a request. Out: the least role that may send it. A request that only reads
//! needs `read`; each change has a line in [`CHANGES`]. A change without a line there needs `admin`, so a
//! forgotten line opens nothing. docs/operations.md has the same table; a test compares the two, and asks
//! each path with each role.
//!
//! A request that begins a job may need more than its line says, by the work that its body orders
//! (`api::guard`). Not here: who has which role (`tokens`), a caller without a session (`dashboard::guard`).

use axum::http::Method;

use super::problem::{ApiProblem, ProblemCode};
use super::request::is_change;
use super::tokens::Caller;
use crate::config::AccessRole::{self, Admin, Operate, Read};

/// Changes of the API and of pages, with the role that they need.
const CHANGES: [(&str, AccessRole); 45] = [
    ("POST /v1/queues/{queue}/pause", Operate),
    ("POST /v1/queues/{queue}/resume", Operate),
    ("PUT /v1/queues/{queue}/limits", Operate),
    ("DELETE /v1/queues/{queue}/limits", Operate),
    ("POST /v1/queues/{queue}/drain", Operate),
    ("POST /v1/queues/{queue}/tasks", Operate),
    ("POST /v1/queues/{queue}/tasks/cancel", Operate),
    ("DELETE /v1/queues/{queue}/tasks/{id}", Operate),
    ("POST /v1/queues/{queue}/tasks/{id}/retry", Operate),
    ("POST /v1/queues/{queue}/dead/requeue", Operate),
    ("POST /v1/queues/{queue}/dead/purge", Admin),
    ("POST /v1/queues/{queue}/jobs", Operate),
    ("DELETE /v1/jobs/{id}", Operate),
    ("POST /v1/jobs/{id}/pause", Operate),
    ("POST /v1/jobs/{id}/resume", Operate),
    ("POST /v1/jobs/{id}/undo", Operate),
    ("POST /v1/incidents/{id}/acknowledge", Operate),
    ("POST /v1/plugins/{plugin}/rollback", Admin),
    ("POST /v1/plugins/{plugin}/lift", Admin),
    ("POST /v1/plugins/{plugin}/reload", Admin),
    ("POST /queues/{queue}/pause", Operate),
    ("POST /queues/{queue}/resume", Operate),
    ("POST /queues/{queue}/limits", Operate),
    ("POST /queues/{queue}/limits/clear", Operate),
    ("POST /queues/{queue}/drain", Operate),
    ("POST /queues/{queue}/tasks", Operate),
    ("POST /queues/{queue}/tasks/{id}/cancel", Operate),
    ("POST /queues/{queue}/tasks/{id}/retry", Operate),
    ("POST /queues/{queue}/tasks/{id}/requeue", Operate),
    ("POST /queues/{queue}/dead/requeue", Operate),
    ("POST /queues/{queue}/dead/export", Operate),
    ("POST /queues/{queue}/dead/purge", Admin),
    ("POST /queues/{queue}/chosen/cancel", Operate),
    ("POST /queues/{queue}/chosen/requeue", Operate),
    ("POST /queues/{queue}/chosen/purge", Admin),
    ("POST /jobs/{id}/pause", Operate),
    ("POST /jobs/{id}/resume", Operate),
    ("POST /jobs/{id}/stop", Operate),
    ("POST /jobs/{id}/undo", Operate),
    ("POST /incidents/{id}/acknowledge", Operate),
    ("POST /plugins/{plugin}/rollback", Admin),
    ("POST /plugins/{plugin}/lift", Admin),
    ("POST /plugins/{plugin}/reload", Admin),
    // They change nothing but the session. Who has none yet passes, too.
    ("POST /login", Read),
    ("POST /logout", Read),
];

/// The role that a request needs. `route` is its path with the names of its parts; none: there is no such
/// path, and everybody may be told so.
pub(crate) fn needed(method: &Method, route: Option<&str>) -> AccessRole {
    let Some(route) = route.filter(|_| is_change(method)) else { return Read };
    let line = format!("{method} {route}");
    CHANGES.iter().find(|(known, _)| *known == line).map_or(Admin, |(_, role)| *role)
}

/// Refuses a caller with a smaller role than is needed for `what`.
pub(crate) fn check(caller: &Caller, needed: AccessRole, what: &str) -> Result<(), ApiProblem> {
    if caller.may(needed) {
        return Ok(());
    }
    let code = if caller.may(Operate) { ProblemCode::NeedsRole } else { ProblemCode::ReadOnly };
    let (name, role, needed) = (&caller.name, caller.role.into_str(), needed.into_str());
    let detail = format!("{name} has the role {role}, and {what} needs the role {needed}");
    Err(ApiProblem::new(code, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_is_not_in_the_list_needs_an_admin() {
        assert_eq!(needed(&Method::GET, Some("/v1/queues")), Read);
        assert_eq!(needed(&Method::GET, None), Read);
        assert_eq!(needed(&Method::POST, Some("/v1/queues/{queue}/pause")), Operate);
        assert_eq!(needed(&Method::POST, Some("/v1/new")), Admin);
        assert_eq!(needed(&Method::PUT, Some("/v1/queues/{queue}/pause")), Admin);
        assert_eq!(needed(&Method::POST, None), Read);
    }

    #[test]
    fn the_message_has_both_roles() {
        let (reader, operator) = (Caller::new("eye", Read), Caller::new("ci", Operate));
        let of =
            |caller, role| check(caller, role, "a purge").map_err(|problem| (problem.code, problem.detail));
        assert_eq!(of(&operator, Operate), Ok(()));
        let (code, detail) = of(&operator, Admin).unwrap_err();
        let told = "ci has the role operate, and a purge needs the role admin";
        assert_eq!((code, detail.as_str()), (ProblemCode::NeedsRole, told));
        assert_eq!(of(&reader, Operate).unwrap_err().0, ProblemCode::ReadOnly);
    }
}
