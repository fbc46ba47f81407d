//! Cursors: where a list or an operation goes on.
//!
//! A cursor is opaque to clients: base64 of a kind and the parts of a position. It holds no secret and grants
//! nothing, so a client that makes its own one harms nobody.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::error::OperationError;
use crate::queue::codec::is_entry_id;

/// The longest cursor that is read: an id has at most 256 bytes.
const MAX_BYTES: usize = 2048;
const SEPARATOR: char = '\u{1f}';

/// The cursor was not made by tqhost, or belongs to another list.
#[derive(Debug)]
pub(crate) struct BadCursor;

impl From<BadCursor> for OperationError {
    fn from(_: BadCursor) -> OperationError {
        OperationError::Invalid(
            "cursor: it is not one that this request gave: take `next` of the answer before, with the same \
             filters"
                .into(),
        )
    }
}

/// Makes a cursor. `kind` names the list or operation.
pub(super) fn write(kind: &str, parts: &[&str]) -> String {
    let all: Vec<&str> = [kind].into_iter().chain(parts.iter().copied()).collect();
    URL_SAFE_NO_PAD.encode(all.join(&SEPARATOR.to_string()))
}

/// Reads the parts of a cursor of this kind.
pub(super) fn read<const N: usize>(kind: &str, cursor: &str) -> Result<[String; N], BadCursor> {
    if cursor.len() > MAX_BYTES {
        return Err(BadCursor);
    }
    let text = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| BadCursor)?;
    let text = String::from_utf8(text).map_err(|_| BadCursor)?;
    let mut parts = text.splitn(N + 1, SEPARATOR).map(str::to_owned);
    if parts.next().as_deref() != Some(kind) {
        return Err(BadCursor);
    }
    parts.collect::<Vec<String>>().try_into().map_err(|_| BadCursor)
}

/// Reads a cursor of this kind that has nothing but the id of an entry.
pub(super) fn read_entry(kind: &str, cursor: &str) -> Result<String, BadCursor> {
    let [entry] = read(kind, cursor)?;
    if is_entry_id(&entry) { Ok(entry) } else { Err(BadCursor) }
}

/// Whether this is an entry id, or one with the bracket that leaves the entry itself out.
pub(super) fn is_place(text: &str) -> bool {
    let id = text.strip_prefix('(').unwrap_or(text);
    text == "-" || is_entry_id(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_comes_back_and_another_one_is_refused() {
        let cursor = write("dead", &["(5-0", "9-0"]);
        assert_eq!(read::<2>("dead", &cursor).unwrap(), ["(5-0".to_owned(), "9-0".to_owned()]);
        assert!(read::<2>("queued", &cursor).is_err());
        assert!(read::<1>("dead", &cursor).is_ok_and(|[all]| all.contains(SEPARATOR)));
        assert!(read::<3>("dead", &cursor).is_err());
        assert!(read::<2>("dead", "%%").is_err() && read::<2>("dead", &"a".repeat(3000)).is_err());
        assert!(is_place("-") && is_place("(5-0") && is_place("5-0") && !is_place("(5"));
    }
}
