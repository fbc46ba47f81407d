//! Tells of a request what every answer needs: its id, and whether it asks for a change.
//!
//! Not here: who may ask (`api::guard`), the line of a change (`audit`).

use axum::http::{HeaderMap, HeaderName, Method};
use uuid::Uuid;

/// The longest id of a request that is taken from the client.
const MAX_REQUEST_ID: usize = 128;

pub(crate) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

pub(crate) fn is_change(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// The id that the client gave to its request, or a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(&REQUEST_ID).and_then(|id| id.to_str().ok());
    let is_good = |id: &&str| {
        (1..=MAX_REQUEST_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
    };
    given.filter(is_good).map_or_else(|| Uuid::now_v7().to_string(), str::to_owned)
}
