//! The types that a handler may return.
//!
//! In: `()`, bytes, text, [`Json`], or an option of one of them. Out: the bytes that the host keeps as the
//! task's result, or none.

use serde::Serialize;

use crate::Failure;

/// A value that can be a task's result.
pub trait Output {
    /// The bytes of the result. `None` completes the task without a result.
    fn into_bytes(self) -> Result<Option<Vec<u8>>, Failure>;
}

/// A result that is kept as JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct Json<T>(pub T);

impl Output for () {
    fn into_bytes(self) -> Result<Option<Vec<u8>>, Failure> {
        Ok(None)
    }
}

impl Output for Vec<u8> {
    fn into_bytes(self) -> Result<Option<Vec<u8>>, Failure> {
        Ok(Some(self))
    }
}

impl Output for String {
    fn into_bytes(self) -> Result<Option<Vec<u8>>, Failure> {
        Ok(Some(self.into_bytes()))
    }
}

impl Output for &str {
    fn into_bytes(self) -> Result<Option<Vec<u8>>, Failure> {
        Ok(Some(self.as_bytes().to_vec()))
    }
}

impl<T: Serialize> Output for Json<T> {
    fn into_bytes(self) -> Result<Option<Vec<u8>>, Failure> {
        // This fails only because of the handler's own types: for example, a map whose keys are not strings.
        // Another attempt would fail as well, so the task is rejected.
        serde_json::to_vec(&self.0)
            .map(Some)
            .map_err(|why| Failure::reject(format_args!("the result cannot be written as JSON: {why}")))
    }
}

impl<O: Output> Output for Option<O> {
    fn into_bytes(self) -> Result<Option<Vec<u8>>, Failure> {
        self.map_or(Ok(None), O::into_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn outputs_become_bytes() {
        assert_eq!(().into_bytes().unwrap(), None);
        assert_eq!(Output::into_bytes("ok").unwrap(), Some(b"ok".to_vec()));
        assert_eq!(Json([1, 2]).into_bytes().unwrap(), Some(b"[1,2]".to_vec()));
        assert_eq!(None::<Json<u8>>.into_bytes().unwrap(), None);
        assert!(matches!(Json(BTreeMap::from([((1, 2), 3)])).into_bytes(), Err(Failure::Reject(_))));
    }
}
