//! Which error has which code, and the errors in the OpenAPI document.
//!
//! An error of Redis does not know its queue, so [`naming`] notes the one in the request's path.

use std::future::Future;

use axum::http::Method;
use percent_encoding::percent_decode_str;
use utoipa::openapi::extensions::ExtensionsBuilder;
use utoipa::openapi::path::Operation;
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, ResponseBuilder};

use crate::admin::problem::{ApiProblem, ProblemCode};
use crate::admin::request::is_change;
use crate::admin::roles::needed;
use crate::chain::chain;
use crate::operations::OperationError;
use crate::queue::QueueError;

tokio::task_local! {
    /// The queue that a request is about.
    static QUEUE: Option<String>;
}

/// Answers the request for this path of the API or of a page. The problems that it meets name the queue of
/// the path.
pub(super) async fn naming<T>(path: &str, answer: impl Future<Output = T>) -> T {
    let rest = ["/v1/queues/", "/queues/"].iter().find_map(|prefix| path.strip_prefix(prefix));
    let name = rest.and_then(|rest| rest.split('/').next());
    let queue = name.map(|name| percent_decode_str(name).decode_utf8_lossy().into_owned());
    QUEUE.scope(queue, answer).await
}

impl From<QueueError> for ApiProblem {
    fn from(error: QueueError) -> ApiProblem {
        let queue = QUEUE.try_with(Clone::clone).ok().flatten();
        let misfit = queue.as_deref().and_then(|queue| error.misfit(queue));
        if let Some(why) = misfit.or_else(|| error.unfit(queue.as_deref().unwrap_or("QUEUE"))) {
            return ApiProblem::new(ProblemCode::QueueUnfit, why);
        }
        let code = if error.is_connection() {
            ProblemCode::RedisUnavailable
        } else if error.is_wrong_type() {
            ProblemCode::QueueUnfit
        } else {
            ProblemCode::RedisRefused
        };
        ApiProblem::new(code, chain(&error))
    }
}

impl From<OperationError> for ApiProblem {
    fn from(error: OperationError) -> ApiProblem {
        let code = match error {
            OperationError::Redis(error) => return error.into(),
            OperationError::Stopped { cause, succeeded, in_doubt } => {
                return stopped(cause, succeeded, in_doubt);
            }
            OperationError::JobFailed { may_pass: true, .. } => ProblemCode::RedisRefused,
            OperationError::JobFailed { may_pass: false, .. } => ProblemCode::QueueUnfit,
            OperationError::UnknownQueue(_) => ProblemCode::UnknownQueue,
            OperationError::UnknownTask(_) => ProblemCode::UnknownTask,
            OperationError::HasEnded(_) => ProblemCode::TaskEnded,
            OperationError::NotDelayed(_) => ProblemCode::NotDelayed,
            OperationError::NotRunning(_) => ProblemCode::NotRunning,
            OperationError::Invalid(_) => ProblemCode::Invalid,
            OperationError::NoEvents(_) => ProblemCode::NoEvents,
            OperationError::UnknownPlugin(_) => ProblemCode::UnknownPlugin,
            OperationError::NotFound(_) => ProblemCode::NotFound,
            OperationError::TooManyJobs(_) => ProblemCode::Busy,
            OperationError::OutOfReach(_) => ProblemCode::UnknownQueue,
        };
        ApiProblem::new(code, error.to_string())
    }
}

/// Work on many tasks ended early: its client learns how far it came.
fn stopped(cause: Option<Box<OperationError>>, succeeded: u64, in_doubt: bool) -> ApiProblem {
    let late = || ApiProblem::new(ProblemCode::TimedOut, "the last task took too long");
    let problem = cause.map_or_else(late, |cause| ApiProblem::from(*cause));
    // Nothing can be done, now or by another request, until an operator has mended the queue.
    if succeeded == 0 && problem.code == ProblemCode::QueueUnfit {
        return problem;
    }
    let doubt = if in_doubt { ", and perhaps those of the last step" } else { "" };
    let detail = format!(
        "{}; {succeeded} were done before{doubt}. The request may be repeated: it skips what is done",
        problem.detail
    );
    ApiProblem { detail, ..problem }
}

/// Adds to every operation the role that it needs, and the problems that any of them can have.
pub(super) fn document(document: &mut OpenApi) {
    for (path, item) in &mut document.paths.paths {
        let all = [
            (Method::GET, &mut item.get),
            (Method::POST, &mut item.post),
            (Method::PUT, &mut item.put),
            (Method::DELETE, &mut item.delete),
        ];
        for (method, operation) in all {
            if let Some(operation) = operation {
                let role = needed(&method, Some(path)).into_str();
                operation.extensions = Some(ExtensionsBuilder::new().add("x-role", role).build());
                add(operation, is_change(&method));
            }
        }
    }
}

fn add(operation: &mut Operation, changes: bool) {
    let mut kinds = vec![
        ("400", "the request cannot be read"),
        ("401", "the token is missing or wrong"),
        ("403", "the token has a smaller role than x-role, or the request comes from a foreign page"),
        ("404", "there is no such path, queue, task or plugin"),
        ("409", "the queue or task does not allow it"),
        ("422", "a value in the request is wrong"),
        ("500", "a fault of tqhost"),
        ("503", "too many requests at once, or Redis is away or refuses; Retry-After says when to try again"),
    ];
    if changes {
        kinds.push(("413", "the body is larger than 4 MiB"));
        kinds.push(("415", "the body is not application/json"));
    }
    for (status, description) in kinds {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("ProblemBody"))).build();
        let response =
            ResponseBuilder::new().description(description).content("application/problem+json", content);
        let responses = &mut operation.responses.responses;
        responses.entry(status.to_owned()).or_insert_with(|| response.build().into());
    }
}
