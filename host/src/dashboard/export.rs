//! The download of the dead letters that match, as JSON lines, the newest first.
//!
//! It is read in pages while the client takes them, so it needs little memory however many there are. If
//! Redis fails on the way, the connection is cut, and the client knows that the download is not whole.

use std::io;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream;

use super::problem::PageProblem;
use super::state::Dashboard;
use super::values::Values;
use crate::operations::{DeadList, dead_list};

/// Dead letters in one read. They may be large.
const PAGE: usize = 50;

/// Where a download goes on.
enum ExportPlace {
    Begin,
    After(String),
    End,
}

pub(super) async fn export(
    State(dashboard): State<Dashboard>,
    Path(name): Path<String>,
    values: Values,
) -> Result<Response, PageProblem> {
    let filter = values.filter()?;
    let queue = dashboard.api.queue(&name).await?;
    // A download may take long, so it counts as a stream.
    let permit = dashboard.api.stream_place()?;
    let pages = stream::unfold(
        (ExportPlace::Begin, permit, queue, filter),
        |(place, permit, queue, filter)| async move {
            let cursor = match &place {
                ExportPlace::Begin => None,
                ExportPlace::After(cursor) => Some(cursor.as_str()),
                ExportPlace::End => return None,
            };
            let page = dead_list(&queue, &filter, cursor, PAGE, true).await;
            let (lines, place) = match page {
                Ok(DeadList { dead, next, .. }) => {
                    let mut lines = String::new();
                    for letter in &dead {
                        lines += &serde_json::to_string(letter).unwrap_or_default();
                        lines.push('\n');
                    }
                    (Ok(lines), next.map_or(ExportPlace::End, ExportPlace::After))
                }
                Err(error) => (Err(io::Error::other(error.to_string())), ExportPlace::End),
            };
            Some((lines, (place, permit, queue, filter)))
        },
    );
    let file: String = name
        .chars()
        .map(|char| if char.is_ascii_alphanumeric() || char == '-' { char } else { '_' })
        .collect();
    let headers = [
        (CONTENT_TYPE, "application/jsonl; charset=utf-8".to_owned()),
        (CONTENT_DISPOSITION, format!("attachment; filename=\"{file}-dead.jsonl\"")),
    ];
    Ok((headers, Body::from_stream(pages)).into_response())
}
