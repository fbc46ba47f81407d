//! The log of changes: the newest entries of one stream, which all hosts and commands share.
//!
//! In: a text. Out: texts with their times, the newest first. Not here: what is in them
//! (`operations::changes`).

use super::error::{QueueError, QueueResult};
use super::keys;
use super::link::Link;
use super::reply::{self, Shaped, UnexpectedShape};

/// The most entries that are kept.
pub(crate) const MOST_CHANGES: usize = 500;
const TEXT: &str = "change";

/// A change as it stands in Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChangeEntry {
    /// Its id begins with the time, in milliseconds since the Unix epoch, by Redis's clock.
    pub id: String,
    pub text: String,
}

/// Adds a change, and deletes the oldest ones beyond [`MOST_CHANGES`].
pub(crate) async fn add(link: &Link, text: &str) -> QueueResult {
    let mut add = redis::cmd("XADD");
    add.arg(keys::CHANGES).arg("MAXLEN").arg(MOST_CHANGES).arg("*").arg(TEXT).arg(text);
    link.write("note a change", &add).await.map(drop)
}

/// All changes after the entry `after`, the newest first. None: all that are kept.
pub(crate) async fn list(link: &Link, after: Option<&str>) -> QueueResult<Vec<ChangeEntry>> {
    const WHAT: &str = "read the log of changes";
    let from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
    let mut ask = redis::cmd("XREVRANGE");
    ask.arg(keys::CHANGES).arg("+").arg(from).arg("COUNT").arg(MOST_CHANGES);
    let read = |item| -> Shaped<Option<ChangeEntry>> {
        let [id, fields] = reply::tuple(item)?;
        let mut fields = reply::array(fields)?.into_iter();
        // Another version may write further fields.
        while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
            if reply::text(name)? == TEXT {
                return Ok(Some(ChangeEntry { id: reply::text(id)?, text: reply::text(value)? }));
            }
        }
        Ok(None)
    };
    let found = reply::each(link.command(WHAT, &ask).await?, read)
        .map_err(|UnexpectedShape| QueueError::unexpected(WHAT, link.address()))?;
    Ok(found.into_iter().flatten().collect())
}
