//! Compiled functions that are kept for the next compilation, so that only what has changed is compiled.
//!
//! In: the functions that were kept, as one sequence of bytes, and those that the compiler adds. Out: all of
//! them. The compiler finds a function by a key that it makes of all that the code depends on. A component in
//! JavaScript or Python has tens of thousands of functions, and most changes of its source change none. With
//! wasmtime 48 one key in eight differs from one compilation to the next, so its function is compiled again.
//!
//! Only for an author who compiles one file again and again (`tqhost try`). In a host, the file of one plugin
//! would leave code for another's.
//!
//! Not here: where the bytes are kept (`plugins::loader`).

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use wasmtime::CacheStore;

/// Bytes that are kept. A component in JavaScript has 38 MB, and one in Python 27 MB.
pub(super) const MAX_BYTES: usize = 128 << 20;

/// A key's length, in bytes: it is a SHA-256.
const KEY: usize = 32;
type Key = [u8; KEY];

/// The functions of one compilation.
#[derive(Debug)]
pub(super) struct Functions {
    /// Each is its key, the length of its code in four bytes, and its code. The last ones are the oldest.
    kept: Vec<u8>,
    places: HashMap<Key, Range<usize>>,
    new: Mutex<HashMap<Key, Vec<u8>>>,
}

impl Functions {
    /// Takes what [`Functions::all`] gave.
    pub(super) fn new(kept: Vec<u8>) -> Functions {
        let mut places = HashMap::new();
        let mut at = 0;
        while let Some((key, code)) = next(&kept, at) {
            at = code.end;
            places.insert(key, code);
        }
        Functions { kept, places, new: Mutex::default() }
    }

    /// All functions, the new ones first, up to [`MAX_BYTES`]. `None`: there is no new one.
    pub(super) fn all(&self) -> Option<Vec<u8>> {
        let new = self.added();
        if new.is_empty() {
            return None;
        }
        let mut all = Vec::with_capacity(self.kept.len());
        for (key, code) in new.iter() {
            all.extend_from_slice(key);
            all.extend_from_slice(&u32::try_from(code.len()).ok()?.to_le_bytes());
            all.extend_from_slice(code);
        }
        let mut at = 0;
        while let Some((_, code)) = next(&self.kept, at).filter(|(_, code)| all.len() + code.end <= MAX_BYTES)
        {
            at = code.end;
        }
        all.extend_from_slice(&self.kept[..at]);
        (all.len() <= MAX_BYTES).then_some(all)
    }

    fn added(&self) -> MutexGuard<'_, HashMap<Key, Vec<u8>>> {
        self.new.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The key of the function that begins at `at`, and where its code is.
fn next(kept: &[u8], at: usize) -> Option<(Key, Range<usize>)> {
    let (key, rest) = kept.get(at..)?.split_first_chunk::<KEY>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length) as usize;
    let begin = at + KEY + 4;
    (rest.len() >= length).then_some((*key, begin..begin + length))
}

impl CacheStore for Functions {
    fn get(&self, key: &[u8]) -> Option<Cow<'_, [u8]>> {
        let key: Key = key.try_into().ok()?;
        match self.places.get(&key) {
            Some(place) => Some(Cow::Borrowed(&self.kept[place.clone()])),
            // Two functions of a component may have the same code.
            None => self.added().get(&key).cloned().map(Cow::Owned),
        }
    }

    fn insert(&self, key: &[u8], code: Vec<u8>) -> bool {
        let Ok(key) = key.try_into() else { return false };
        self.added().insert(key, code);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> Key {
        [n; KEY]
    }

    #[test]
    fn an_added_function_is_found_the_next_time_and_before_older_ones() {
        let first = Functions::new(Vec::new());
        assert_eq!((first.get(&key(1)), first.all()), (None, None));
        first.insert(&key(1), b"one".to_vec());
        assert_eq!(first.get(&key(1)).as_deref(), Some(&b"one"[..]));

        let second = Functions::new(first.all().expect("a new function"));
        assert_eq!(second.all(), None, "nothing is new");
        second.insert(&key(2), Vec::new());
        let all = second.all().expect("a new function");
        assert!(all.starts_with(&key(2)) && all.ends_with(b"one"));

        let third = Functions::new(all);
        assert_eq!([1, 2].map(|n| third.get(&key(n)).map(|code| code.len())), [Some(3), Some(0)]);
    }

    #[test]
    fn a_function_that_was_cut_is_not_found() {
        let functions = Functions::new(Vec::new());
        functions.insert(&key(1), b"one".to_vec());
        let all = functions.all().expect("a new function");
        for length in 0..all.len() {
            assert_eq!(Functions::new(all[..length].to_vec()).get(&key(1)), None, "{length}");
        }
        assert!(!functions.insert(b"short", Vec::new()) && functions.get(b"short").is_none());
    }
}
