//! Files in an object store, in a part of it that is the plugin's own.
//!
//! In: names and bytes. Out: a file's URL, or its bytes. A name has 1 to 512 bytes: letters of ASCII, digits,
//! `._-+=@:,`, and `/` between its parts. The host's `max_blob` says how large a file may be.
//!
//! A blob is written at once, not with the end of the task: an attempt that fails later leaves it. So name
//! blobs by the task's id, and write the URL with an effect or return it. Whoever reads the URL then finds a
//! whole file.
//!
//! ```
//! use tqhost_handler::{Failure, Task, blobs, records};
//!
//! fn export(task: Task) -> Result<String, Failure> {
//!     let rows = blobs::get(task.text("source")?)?; // rejects the task if there is no such blob
//!     let url = blobs::put(&format!("{}/rows.csv", task.id), "text/csv", rows)?;
//!     records::put("report:7", [("url", url.as_str())])?;
//!     Ok(url)
//! }
//!
//! // In a native build, a test sees the blobs.
//! blobs::insert("rows.csv", "id\n1\n");
//! let task = Task::sample([("source", "rows.csv")]);
//! let name = format!("{}/rows.csv", task.id);
//! assert_eq!(export(task).unwrap(), format!("memory:///{name}"));
//! let blob = &blobs::all()[&name];
//! assert_eq!((&*blob.content_type, &*blob.data), ("text/csv", &b"id\n1\n"[..]));
//! ```

#[cfg(not(target_family = "wasm"))]
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;

use crate::Failure;
use crate::bindings::tqhost::handler::blobs as interface;
#[cfg(target_family = "wasm")]
use crate::bindings::tqhost::handler::blobs as host;
#[cfg(not(target_family = "wasm"))]
use crate::memory::blobs as host;

/// Why a call was refused. With `?`, `Unavailable` becomes a retry, and every other error a rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlobError {
    /// The name, or the content type, is not a valid one.
    InvalidName(String),
    NotFound(String),
    /// The blob is larger than `max_blob`, or than the room in the plugin's memory.
    TooLarge(String),
    /// The store did not answer, or refused the host. It may work later.
    Unavailable(String),
}

/// Writes a blob as a whole, in the place of an earlier one of this name. Returns its URL. An empty content
/// type stands for bytes of any kind.
pub fn put(name: &str, content_type: &str, data: impl AsRef<[u8]>) -> Result<String, BlobError> {
    host::put(name, content_type, data.as_ref()).map_err(BlobError::from)
}

/// The bytes of a blob.
pub fn get(name: &str) -> Result<Vec<u8>, BlobError> {
    host::get(name).map_err(BlobError::from)
}

/// In a native build: a blob of this thread.
#[cfg(not(target_family = "wasm"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    pub content_type: String,
    pub data: Vec<u8>,
}

/// In a native build: adds a blob to those of this thread, as if an earlier task had put it.
#[cfg(not(target_family = "wasm"))]
pub fn insert(name: impl Into<String>, data: impl Into<Vec<u8>>) {
    let blob = Blob { content_type: "application/octet-stream".to_owned(), data: data.into() };
    crate::memory::with(|memory| memory.blobs.insert(name.into(), blob));
}

/// In a native build: all blobs of this thread, also those of attempts that failed.
#[cfg(not(target_family = "wasm"))]
pub fn all() -> BTreeMap<String, Blob> {
    crate::memory::with(|memory| memory.blobs.clone())
}

impl BlobError {
    /// The text of the host.
    pub fn message(&self) -> &str {
        match self {
            BlobError::InvalidName(why)
            | BlobError::NotFound(why)
            | BlobError::TooLarge(why)
            | BlobError::Unavailable(why) => why,
        }
    }
}

impl fmt::Display for BlobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl Error for BlobError {}

impl From<BlobError> for Failure {
    fn from(error: BlobError) -> Failure {
        match error {
            BlobError::Unavailable(why) => Failure::retry(why),
            other => Failure::reject(other),
        }
    }
}

impl From<interface::Error> for BlobError {
    fn from(error: interface::Error) -> BlobError {
        match error {
            interface::Error::InvalidName(why) => BlobError::InvalidName(why),
            interface::Error::NotFound(why) => BlobError::NotFound(why),
            interface::Error::TooLarge(why) => BlobError::TooLarge(why),
            interface::Error::Unavailable(why) => BlobError::Unavailable(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Task, run, testing};

    #[test]
    fn a_blob_is_there_at_once() {
        let work = |task: Task| -> Result<String, Failure> {
            put("a/b.csv", "text/csv", "id\n")?;
            Ok(task.text("missing")?.to_owned())
        };
        assert!(run(Task::sample([("a", "")]), work).is_err());
        assert_eq!(get("a/b.csv"), Ok(b"id\n".to_vec()), "the attempt failed, and its blob is there");
        assert!(matches!(get("other"), Err(BlobError::NotFound(_))));
    }

    #[test]
    fn names_have_the_rules_of_the_host() {
        for name in ["", "../a", "a//b", "/a", "a/", "a b", "ä", "a/./b", &"x".repeat(201)] {
            assert!(matches!(put(name, "", ""), Err(BlobError::InvalidName(_))), "{name}");
            assert!(matches!(get(name), Err(BlobError::InvalidName(_))), "{name}");
        }
        assert!(matches!(put("a", "csv", ""), Err(BlobError::InvalidName(_))));
        assert!(all().is_empty());
        assert!(put("a:1@b,c/d+e=f", "", "").is_ok());
    }

    #[test]
    fn a_store_that_is_away_retries_and_other_errors_reject() {
        testing::refuse_blob(BlobError::Unavailable("away".into()));
        let work = |_: Task| -> Result<String, Failure> { Ok(put("a", "", "")?) };
        let task = || Task::sample([("a", "")]);
        assert!(matches!(run(task(), work), Err(Failure::Retry(retry)) if retry.message == "away"));
        assert!(run(task(), work).is_ok(), "a refusal is for one call");
        assert!(matches!(Failure::from(get("b").unwrap_err()), Failure::Reject(_)));
    }
}
