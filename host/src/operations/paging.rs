//! The size of the pages in which lists read tasks and dead letters.
//!
//! In: how large the page before was. Out: how many tasks the next one has. Not here: how far a list reads,
//! and searches for one task (`queue::search`).

/// Tasks in one read, at first and at most.
pub(super) const FIRST: usize = 20;
const MOST: usize = 200;
/// A read with more bytes makes the next one smaller.
const BYTES: usize = 2 << 20;

/// How many tasks are read behind a page of `count` tasks that had `bytes` bytes.
pub(super) fn next(count: usize, bytes: usize) -> usize {
    if bytes > BYTES { count / 2 } else { count * 2 }.clamp(1, MOST)
}
