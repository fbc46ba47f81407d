//! Errors as pages for people, and the answers of changes.
//!
//! In: an [`ApiProblem`], or an error that becomes one. Out: a page with its status, which the guard puts
//! into the frame of the visitor.

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, RETRY_AFTER};
use axum::response::{Html, IntoResponse, Redirect, Response};
use maud::{Markup, html};

use super::layout;
use super::session::Visitor;
use crate::admin::audit::AuditNote;
use crate::admin::base_path::at;
use crate::admin::problem::{ApiProblem, ProblemCode};
use crate::operations::OperationError;
use crate::queue::QueueError;

/// A request that is not carried out.
#[derive(Debug, Clone)]
pub(super) struct PageProblem(pub ApiProblem);

/// The answer of a page, or of a change.
pub(super) type PageAnswer = Result<Response, PageProblem>;

/// Leads to the place of a change that was made, or tells why it was not. Both have the note for the audit.
pub(super) fn changed(note: AuditNote, place: Result<String, impl Into<PageProblem>>) -> PageAnswer {
    Ok(match place {
        Ok(place) => note.on(Redirect::to(&place)),
        Err(error) => note.on(error.into().into_response()),
    })
}

/// Leads back to a page, which says in words what was done.
pub(super) fn done_at(note: AuditNote, page: &str, word: &str) -> PageAnswer {
    Ok(note.on(Redirect::to(&format!("{page}?done={word}"))))
}

/// The answer with the frame of the visitor, if it is the page of a problem.
pub(super) fn framed(mut response: Response, visitor: &Visitor) -> Response {
    if let Some(problem) = response.extensions_mut().remove::<PageProblem>() {
        let page = problem.page(Some(visitor)).into_string();
        *response.body_mut() = Body::from(page);
        response.headers_mut().remove(CONTENT_LENGTH);
    }
    response
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

impl PageProblem {
    fn title(&self) -> &'static str {
        match self.0.code {
            ProblemCode::RedisUnavailable => "Redis does not answer",
            ProblemCode::Invalid => "Please correct this",
            ProblemCode::NotFound | ProblemCode::UnknownQueue | ProblemCode::UnknownPlugin => "Not there",
            ProblemCode::UnknownTask => "No such task",
            code => code.status().canonical_reason().unwrap_or("Error"),
        }
    }

    fn page(&self, visitor: Option<&Visitor>) -> Markup {
        let title = self.title();
        let main = html! {
            h1 { (title) }
            p.error role="alert" { (self.0.detail) }
            @if self.0.code.status() == StatusCode::SERVICE_UNAVAILABLE {
                p.note { "A page that only shows something comes back by itself." }
            }
            p { a href=(at("/")) { "To the overview" } }
        };
        layout::frame(visitor, title, &main)
    }
}

impl IntoResponse for PageProblem {
    fn into_response(self) -> Response {
        let code = self.0.code;
        let mut response = (code.status(), Html(self.page(None).into_string())).into_response();
        if code.status() == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, 2.into());
        }
        response.extensions_mut().insert(code);
        response.extensions_mut().insert(self);
        response
    }
}
