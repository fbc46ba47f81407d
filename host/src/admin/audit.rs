//! The audit: one line in the log for every request that changes something, also where it was refused.
//!
//! In: who asked, what for, and an [`AuditNote`] that the endpoint has left in its response. Out: a line of
//! the target `tqhost::audit`, at INFO. docs/operations.md describes its fields.

use axum::http::Method;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::problem::ProblemCode;

/// The most ids in a line.
const MAX_IDS: usize = 10;
/// The most characters of what a client has sent, in a line.
const MAX_CHARS: usize = 1_000;

/// The subject of a change, and its result. The line of the log leaves out fields without a value.
#[derive(Debug, Clone, Default)]
pub(crate) struct AuditNote {
    pub queue: Option<String>,
    pub plugin: Option<String>,
    /// The tasks that were named.
    pub ids: Vec<String>,
    /// The filter as JSON, if the change is on all tasks that match.
    pub filter: Option<String>,
    pub dry_run: bool,
    pub succeeded: Option<u64>,
    pub skipped: Option<u64>,
}

impl AuditNote {
    pub(crate) fn queue(name: &str) -> AuditNote {
        AuditNote { queue: Some(name.to_owned()), ..AuditNote::default() }
    }

    pub(crate) fn task(queue: &str, id: &str) -> AuditNote {
        AuditNote { ids: vec![id.to_owned()], ..AuditNote::queue(queue) }
    }

    pub(crate) fn with_counts(self, succeeded: u64, skipped: u64) -> AuditNote {
        AuditNote { succeeded: Some(succeeded), skipped: Some(skipped), ..self }
    }

    pub(crate) fn with_filter(self, filter: &impl Serialize) -> AuditNote {
        let mut filter = serde_json::to_value(filter).unwrap_or_default();
        if let Some(all) = filter.as_object_mut() {
            all.retain(|_, value| !value.is_null());
        }
        AuditNote { filter: Some(filter.to_string()), ..self }
    }

    /// Leaves the note in the response of the endpoint.
    pub(crate) fn on(self, response: impl IntoResponse) -> Response {
        let mut response = response.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Writes the line for a request that was answered.
pub(crate) fn write(who: &str, method: &Method, path: &str, request_id: &str, response: &Response) {
    let empty = AuditNote::default();
    let note = response.extensions().get::<AuditNote>().unwrap_or(&empty);
    let code: Option<&'static str> = response.extensions().get::<ProblemCode>().map(|code| code.into_str());
    let AuditNote { queue, plugin, ids, filter, dry_run, succeeded, skipped } = note;
    let named = (!ids.is_empty()).then_some(ids.len());
    let first = ids.iter().take(MAX_IDS).map(|id| cut(id)).collect::<Vec<_>>().join(" ");
    tracing::info!(
        target: "tqhost::audit",
        who,
        method = method.as_str(),
        path = cut(path),
        request_id,
        status = response.status().as_u16(),
        code,
        queue = queue.as_deref(),
        plugin = plugin.as_deref(),
        ids = named.map(|_| cut(&first)),
        named,
        filter = filter.as_deref().map(cut),
        dry_run = dry_run.then_some(true),
        succeeded,
        skipped,
        "audit: a change was asked for"
    );
}

fn cut(text: &str) -> &str {
    text.char_indices().nth(MAX_CHARS).map_or(text, |(end, _)| &text[..end])
}
