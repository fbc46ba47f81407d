//! Errors as RFC 9457 describes them: `application/problem+json`, with a code that does not change.
//!
//! In: a [`ProblemCode`] and a text for people. Out: a response. docs/api.md lists the codes, and a test
//! looks that none is missing there. Not here: which error has which code (`api::problems`).

use axum::Json;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use strum::{IntoStaticStr, VariantArray};
use utoipa::ToSchema;

/// The kind of a problem, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub(crate) enum ProblemCode {
    Unauthorized,
    ReadOnly,
    /// The caller may change something, but not this.
    NeedsRole,
    ForeignHost,
    ForeignOrigin,
    NotFound,
    UnknownQueue,
    UnknownTask,
    UnknownPlugin,
    MethodNotAllowed,
    /// The request cannot be read.
    BadRequest,
    /// The request can be read, and a value in it is wrong.
    Invalid,
    TooLarge,
    UnsupportedMediaType,
    QueueFull,
    TaskEnded,
    NotDelayed,
    /// The version of a plugin that the caller saw running runs no more.
    NotRunning,
    NoEvents,
    /// A key of the queue has another type, or other groups need its entries.
    QueueUnfit,
    Busy,
    TimedOut,
    Starting,
    RedisUnavailable,
    RedisRefused,
    Internal,
}

impl ProblemCode {
    pub(crate) fn status(self) -> StatusCode {
        use ProblemCode as Code;
        match self {
            Code::Unauthorized => StatusCode::UNAUTHORIZED,
            Code::ReadOnly | Code::NeedsRole | Code::ForeignHost | Code::ForeignOrigin => {
                StatusCode::FORBIDDEN
            }
            Code::NotFound | Code::UnknownQueue | Code::UnknownTask | Code::UnknownPlugin => {
                StatusCode::NOT_FOUND
            }
            Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Code::BadRequest => StatusCode::BAD_REQUEST,
            Code::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Code::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::QueueFull => StatusCode::TOO_MANY_REQUESTS,
            Code::TaskEnded | Code::NotDelayed | Code::NotRunning | Code::NoEvents | Code::QueueUnfit => {
                StatusCode::CONFLICT
            }
            Code::Busy | Code::TimedOut | Code::Starting | Code::RedisUnavailable | Code::RedisRefused => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// After how many seconds the same request may succeed.
    fn retry_after(self) -> Option<u32> {
        match self {
            ProblemCode::QueueFull | ProblemCode::Busy | ProblemCode::Starting => Some(1),
            ProblemCode::TimedOut | ProblemCode::RedisUnavailable => Some(2),
            ProblemCode::RedisRefused => Some(5),
            _ => None,
        }
    }
}

/// An error for the client.
#[derive(Debug, Clone)]
pub(crate) struct ApiProblem {
    pub code: ProblemCode,
    pub detail: String,
}

/// An error as RFC 9457 describes it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProblemBody {
    /// `urn:tqhost:problem:` and the code.
    r#type: String,
    /// The status in words.
    title: &'static str,
    status: u16,
    /// The kind of the problem, for programs. It does not change.
    code: &'static str,
    /// The mistake or fault, for people.
    detail: String,
}

impl ApiProblem {
    pub(crate) fn new(code: ProblemCode, detail: impl Into<String>) -> ApiProblem {
        ApiProblem { code, detail: detail.into() }
    }
}

/// A value of a request is wrong.
pub(crate) fn invalid(detail: impl Into<String>) -> ApiProblem {
    ApiProblem::new(ProblemCode::Invalid, detail)
}

impl IntoResponse for ApiProblem {
    fn into_response(self) -> Response {
        let (code, status): (&'static str, _) = (self.code.into_str(), self.code.status());
        let body = ProblemBody {
            r#type: format!("urn:tqhost:problem:{code}"),
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            code,
            detail: self.detail,
        };
        // `Json` sets a status and a content type, too. Those that are named here take their place.
        let mut response = (status, [(CONTENT_TYPE, "application/problem+json")], Json(body)).into_response();
        if let Some(seconds) = self.code.retry_after() {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.code == ProblemCode::Unauthorized {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // The audit learns the code from here, as it does not read bodies.
        response.extensions_mut().insert(self.code);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_documented_with_its_status() {
        let page = include_str!("../../../docs/api.md");
        for code in ProblemCode::VARIANTS {
            let row = format!("| `{}` | {} |", code.into_str(), code.status().as_u16());
            assert!(page.contains(&row), "docs/api.md has no row that begins with {row}");
        }
    }
}
