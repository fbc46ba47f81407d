//! Compiled functions that are kept for the next compilation, so that only what has changed is compiled.
//!
//! In: the functions that were kept, as one sequence of bytes, and new functions of the compiler. Out: all of
//! them. The compiler finds a function by a key, the SHA-256 of all that its code depends on. A component in
//! JavaScript or Python has tens of thousands of functions, which belong to the runtime of its language. So a
//! change of its source changes hardly any, and two plugins of one language share most of their functions.
//! With wasmtime 48 one key in twelve differs from one compilation to the next, and its function is compiled
//! again.
//!
//! Somebody who could make up these bytes could make the host run any code. So they are kept in a folder of
//! this user alone (`plugins::cache`). They carry their own SHA-256: after a torn write, all is compiled
//! again.
//!
//! Not here: where the bytes are kept (`plugins::loader`).

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use sha2::{Digest as _, Sha256};
use wasmtime::CacheStore;

use crate::guarded::Guarded;

/// Bytes that are kept. A component in JavaScript has 38 MB, and one in Python 27 MB.
pub(super) const MAX_BYTES: usize = 128 << 20;

/// The length of a key, in bytes. It is a SHA-256, like the digest behind the last function.
const KEY: usize = 32;
type Key = [u8; KEY];
/// The largest file of functions, in bytes.
pub(super) const MAX_FILE_BYTES: u64 = (MAX_BYTES + KEY) as u64;

/// The functions of one compilation.
#[derive(Debug, Default)]
pub(super) struct Functions {
    /// Each is its key, the length of its code in four bytes, and its code. The last ones are the least
    /// recently used.
    kept: Vec<u8>,
    places: HashMap<Key, CodePlace>,
    new: Guarded<HashMap<Key, Vec<u8>>>,
}

/// Where the code of a kept function is.
#[derive(Debug)]
struct CodePlace {
    bytes: Range<usize>,
    is_used: AtomicBool,
}

impl Functions {
    /// Reads the bytes that [`Functions::write`] wrote, without their number. Other bytes have no functions.
    pub(super) fn new(mut kept: Vec<u8>) -> Functions {
        let expected = kept.split_off(kept.len().saturating_sub(KEY));
        if Sha256::digest(&kept)[..] != expected {
            kept.clear();
        }
        let (mut places, mut at) = (HashMap::new(), 0);
        while let Some((key, bytes)) = next(&kept, at) {
            at = bytes.end;
            places.insert(key, CodePlace { bytes, is_used: AtomicBool::new(false) });
        }
        Functions { kept, places, new: Guarded::default() }
    }

    /// Writes the number of bytes, in eight bytes, then the functions: first the new ones, then the used
    /// ones, then the others, up to `most` bytes. If no function is new, writes the number 0 only.
    pub(super) fn write(&self, most: usize, to: &mut impl Write) -> io::Result<()> {
        let new = self.new.lock();
        if new.is_empty() {
            return to.write_all(&0_u64.to_le_bytes());
        }
        let mut kept: Vec<(&Key, &CodePlace)> = self.places.iter().collect();
        kept.sort_by_key(|(_, place)| (!place.is_used.load(Ordering::Relaxed), place.bytes.start));
        let kept = kept.into_iter().map(|(key, place)| (key, &self.kept[place.bytes.clone()]));
        let (mut all, mut length) = (Vec::new(), 0);
        for (key, code) in new.iter().map(|(key, code)| (key, &code[..])).chain(kept) {
            let with_it = length + KEY + 4 + code.len();
            if with_it > most {
                break;
            }
            length = with_it;
            all.push((key, code));
        }
        to.write_all(&((length + KEY) as u64).to_le_bytes())?;
        let mut digest = Sha256::new();
        for (key, code) in all {
            let length = u32::try_from(code.len()).map_err(io::Error::other)?.to_le_bytes();
            for part in [key, &length[..], code] {
                digest.update(part);
                to.write_all(part)?;
            }
        }
        to.write_all(&digest.finalize())
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
            Some(place) => {
                place.is_used.store(true, Ordering::Relaxed);
                Some(Cow::Borrowed(&self.kept[place.bytes.clone()]))
            }
            // Two functions of a component may have the same code.
            None => self.new.lock().get(&key).cloned().map(Cow::Owned),
        }
    }

    fn insert(&self, key: &[u8], code: Vec<u8>) -> bool {
        let Ok(key) = key.try_into() else { return false };
        self.new.lock().insert(key, code);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> Key {
        [n; KEY]
    }

    /// Returns the bytes for the next compilation, 1,000 at most.
    fn written(functions: &Functions) -> Vec<u8> {
        let mut bytes = Vec::new();
        functions.write(1000, &mut bytes).expect("write");
        let kept = bytes.split_off(8);
        assert_eq!(bytes, (kept.len() as u64).to_le_bytes());
        kept
    }

    fn found(functions: &Functions) -> [Option<usize>; 3] {
        [1, 2, 3].map(|n| functions.get(&key(n)).map(|code| code.len()))
    }

    #[test]
    fn functions_are_found_the_next_time_and_the_least_recently_used_go_first() {
        let first = Functions::new(Vec::new());
        assert_eq!((found(&first), written(&first)), ([None; 3], Vec::new()));
        let large = 400;
        first.insert(&key(1), vec![1; large]);
        assert_eq!(found(&first), [Some(large), None, None]);

        let second = Functions::new(written(&first));
        assert_eq!(written(&second), b"", "nothing is new");
        second.insert(&key(2), vec![2; large]);

        let third = Functions::new(written(&second));
        assert!(third.get(&key(1)).is_some(), "it is used");
        third.insert(&key(3), b"three".to_vec());
        assert_eq!(found(&Functions::new(written(&third))), [Some(large), Some(large), Some(5)]);
        third.insert(&key(4), vec![4; 200]);
        assert_eq!(found(&Functions::new(written(&third))), [Some(large), None, Some(5)]);
    }

    #[test]
    fn functions_that_are_not_as_they_were_written_are_not_found() {
        let functions = Functions::new(Vec::new());
        functions.insert(&key(1), b"one".to_vec());
        let all = written(&functions);
        assert_eq!(found(&Functions::new(all.clone()))[0], Some(3));
        for at in 0..all.len() {
            let mut changed = all.clone();
            changed[at] ^= 1;
            for bytes in [changed, all[..at].to_vec()] {
                assert_eq!(found(&Functions::new(bytes)), [None; 3], "{at}");
            }
        }
        assert!(!functions.insert(b"short", Vec::new()) && functions.get(b"short").is_none());
    }
}
