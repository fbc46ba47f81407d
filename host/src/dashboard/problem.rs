//! Errors as pages for people.
//!
//! In: an [`ApiProblem`], or an error that becomes one. Out: a page with its status.

use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{Html, IntoResponse, Response};
use maud::html;

use super::layout;
use crate::admin::base_path::at;
use crate::admin::problem::{ApiProblem, ProblemCode};
use crate::operations::OperationError;
use crate::queue::QueueError;

/// A request that is not carried out.
#[derive(Debug)]
pub(super) struct PageProblem(pub ApiProblem);

/// A value of a form or an address is wrong.
pub(super) fn invalid(detail: impl Into<String>) -> ApiProblem {
    ApiProblem::new(ProblemCode::Invalid, detail)
}

impl From<ApiProblem> for PageProblem {
    fn from(problem: ApiProblem) -> PageProblem {
        PageProblem(problem)
    }
}

impl From<OperationError> for PageProblem {
    fn from(error: OperationError) -> PageProblem {
        PageProblem(error.into())
    }
}

impl From<QueueError> for PageProblem {
    fn from(error: QueueError) -> PageProblem {
        PageProblem(error.into())
    }
}

impl IntoResponse for PageProblem {
    fn into_response(self) -> Response {
        let PageProblem(ApiProblem { code, detail }) = self;
        let title = match code {
            ProblemCode::RedisUnavailable => "Redis does not answer",
            code => code.status().canonical_reason().unwrap_or("Error"),
        };
        let main = html! {
            h1 { (title) }
            p role="alert" { (detail) }
            @if code.status() == StatusCode::SERVICE_UNAVAILABLE {
                p.note { "A page that only shows something comes back by itself." }
            }
            p { a href=(at("/")) { "To the overview" } }
        };
        let page = Html(layout::frame(None, title, &main).into_string());
        let mut response: Response = (code.status(), page).into_response();
        if code.status() == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, 2.into());
        }
        response.extensions_mut().insert(code);
        response
    }
}
