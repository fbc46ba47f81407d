//! Reads from the memory of a guest in which line of Python it is.
//!
//! In: the memory of a component that was made by componentize-py. Out: the places of the calls that are
//! under way, the innermost first.
//!
//! CPython describes its own structures for debuggers of other processes: a table of offsets, which begins
//! with a cookie (`Include/internal/pycore_debug_offsets.h`). So this costs nothing while the guest runs. The
//! guest may write anything into its memory: each read is checked, and the number of reads is bounded.
//!
//! Not here: other languages (`place`).

const COOKIE: &[u8] = b"xdebugpy";
/// The version whose table this reads: 3.14. Others have other tables.
const VERSION: u64 = 0x030e;
/// The table is in the static data, before the heap.
const MOST_SEARCHED: usize = 64 << 20;
/// The innermost calls that are looked at.
const MOST_FRAMES: usize = 64;
/// The innermost places that are told.
const MOST_PLACES: usize = 3;
/// The threads and interpreters that are looked at.
const MOST_THREADS: usize = 8;
const MOST_TEXT: usize = 256;
const MOST_LINES: usize = 64 * 1024;
/// Frames with this owner, or a larger one, belong to the interpreter itself.
const OF_INTERPRETER: u8 = 3;

/// The used offsets, by their index in the table behind the version.
const INTERPRETERS_HEAD: usize = 3;
const THREADS_HEAD: usize = 7;
const THREAD_NEXT: usize = 22;
const CURRENT_FRAME: usize = 24;
const PREVIOUS: usize = 30;
const EXECUTABLE: usize = 31;
const INSTRUCTION: usize = 32;
const OWNER: usize = 34;
const FILE_NAME: usize = 38;
const QUALIFIED_NAME: usize = 40;
const LINE_TABLE: usize = 41;
const FIRST_LINE: usize = 42;
const CODE: usize = 46;
const BYTES_SIZE: usize = 73;
const BYTES_VALUE: usize = 74;
const TEXT_LENGTH: usize = 77;
const TEXT_VALUE: usize = 78;

/// The places in the handler and its packages, such as `app.py:26 in b`. None if the guest runs no Python, or
/// none of its own.
pub(super) fn places(memory: &[u8]) -> Option<String> {
    // The table consists of numbers of 64 bits, so it is aligned to them.
    let words = memory[..memory.len().min(MOST_SEARCHED)].chunks_exact(COOKIE.len());
    let table = COOKIE.len() * { words }.position(|word| word == COOKIE)?;
    let guest = Interpreter { memory, table };
    if guest.word(table + COOKIE.len())? >> 16 != VERSION {
        return None;
    }
    let mut thread = guest.thread()?;
    for _ in 0..MOST_THREADS {
        let found = guest.places_of(guest.pointer(thread, CURRENT_FRAME)?);
        if !found.is_empty() {
            return Some(found.join(" at "));
        }
        thread = guest.pointer(thread, THREAD_NEXT)?;
    }
    None
}

struct Interpreter<'m> {
    memory: &'m [u8],
    /// Where the table is. It is at the beginning of the state of the runtime.
    table: usize,
}

impl Interpreter<'_> {
    fn thread(&self) -> Option<usize> {
        let interpreter = self.pointer(self.table, INTERPRETERS_HEAD)?;
        self.pointer(interpreter, THREADS_HEAD)
    }

    /// The places of a call and of its callers.
    fn places_of(&self, mut frame: usize) -> Vec<String> {
        let mut found = Vec::new();
        for _ in 0..MOST_FRAMES {
            let is_own = self.at(frame, OWNER).and_then(|owner| self.memory.get(owner));
            if is_own.is_some_and(|owner| *owner < OF_INTERPRETER) {
                found.extend(self.place(frame));
            }
            match self.pointer(frame, PREVIOUS) {
                Some(previous) if found.len() < MOST_PLACES => frame = previous,
                _ => break,
            }
        }
        found
    }

    /// The place of one call. None for the helpers of `tqhost new` and the event loop, which say nothing.
    fn place(&self, frame: usize) -> Option<String> {
        // The lowest bits of a reference are not part of it.
        let code = self.pointer(frame, EXECUTABLE)? & !3;
        let file = self.text(self.pointer(code, FILE_NAME)?)?;
        let name = file.rsplit('/').next().unwrap_or_default();
        if name.starts_with("tqhost") || file.contains("/asyncio/") || file.starts_with('<') {
            return None;
        }
        let instruction = self.pointer(frame, INSTRUCTION)?.checked_sub(self.at(code, CODE)?)? / 2;
        let line = self.line(code, instruction)?;
        Some(format!("{name}:{line} in {}", self.text(self.pointer(code, QUALIFIED_NAME)?)?))
    }

    /// The line of an instruction, by the table of a code object (`Objects/locations.md` of CPython).
    fn line(&self, code: usize, instruction: usize) -> Option<i64> {
        let table = self.pointer(code, LINE_TABLE)?;
        let size = usize::try_from(self.half(self.at(table, BYTES_SIZE)?)?).ok()?;
        let from = self.at(table, BYTES_VALUE)?;
        let mut bytes = self.memory.get(from..from.checked_add(size.min(MOST_LINES))?)?.iter();
        let mut line = i64::from(self.half(self.at(code, FIRST_LINE)?)?);
        let mut end = 0;
        while end <= instruction {
            let head = *bytes.next()?;
            end += usize::from(head & 7) + 1;
            // The columns are skipped.
            match head >> 3 & 15 {
                15 => {}
                14 => {
                    line += signed(&mut bytes)?;
                    (0..3).try_for_each(|_| varint(&mut bytes).map(drop))?;
                }
                13 => line += signed(&mut bytes)?,
                kind @ 10..13 => {
                    line += i64::from(kind) - 10;
                    bytes.nth(1)?;
                }
                _ => drop(bytes.next()?),
            }
        }
        Some(line)
    }

    /// A text that has only ASCII, as nearly all names have.
    fn text(&self, object: usize) -> Option<String> {
        let length = usize::try_from(self.half(self.at(object, TEXT_LENGTH)?)?).ok()?;
        let from = self.at(object, TEXT_VALUE)?;
        let bytes = self.memory.get(from..from.checked_add(length.min(MOST_TEXT))?)?;
        bytes
            .iter()
            .all(|byte| byte.is_ascii_graphic() || *byte == b' ')
            .then(|| String::from_utf8_lossy(bytes).into_owned())
    }

    /// The address of a part of a structure.
    fn at(&self, structure: usize, offset: usize) -> Option<usize> {
        let place = self.table.checked_add(COOKIE.len() + 8 * (1 + offset))?;
        structure.checked_add(usize::try_from(self.word(place)?).ok()?)
    }

    /// A pointer in a structure. None if it is null.
    fn pointer(&self, structure: usize, offset: usize) -> Option<usize> {
        let pointer = self.half(self.at(structure, offset)?)?;
        usize::try_from(pointer).ok().filter(|pointer| *pointer != 0)
    }

    fn half(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(*self.memory.get(at..)?.first_chunk()?))
    }

    fn word(&self, at: usize) -> Option<u64> {
        Some(u64::from_le_bytes(*self.memory.get(at..)?.first_chunk()?))
    }
}

/// A number in groups of six bits, the lowest first.
fn varint<'b>(bytes: &mut impl Iterator<Item = &'b u8>) -> Option<i64> {
    let mut number = 0;
    for shift in (0..30).step_by(6) {
        let byte = bytes.next()?;
        number |= i64::from(byte & 63) << shift;
        if byte & 64 == 0 {
            return Some(number);
        }
    }
    None
}

/// A number whose lowest bit is its sign.
fn signed<'b>(bytes: &mut impl Iterator<Item = &'b u8>) -> Option<i64> {
    let number = varint(bytes)?;
    Some(if number & 1 == 0 { number >> 1 } else { -(number >> 1) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_memory_of_any_content_is_read_within_its_bounds(
            mut bytes in proptest::collection::vec(any::<u8>(), 800..4096),
            offsets in proptest::collection::vec(0..4096_u64, 90),
        ) {
            bytes[..8].copy_from_slice(COOKIE);
            bytes[8..16].copy_from_slice(&(VERSION << 16).to_le_bytes());
            for (place, offset) in bytes[16..].chunks_exact_mut(8).zip(offsets) {
                place.copy_from_slice(&offset.to_le_bytes());
            }
            places(&bytes);
        }
    }

    #[test]
    fn numbers_have_six_bits_in_each_byte() {
        assert_eq!(varint(&mut [0x41, 0x02].iter()), Some(129));
        assert_eq!(signed(&mut [0x43, 0x02].iter()), Some(-65));
        assert_eq!(varint(&mut [0x40; 9].iter()), None);
    }
}
