//! Bounds a search through a stream: how many entries it looks at, and how many bytes.
//!
//! In: each page that the search has read. Out: the size of the next page, and where it begins. Pages of
//! large entries are small, so a search never holds much more than [`PAGE_BYTES`]. Not here: reading pages,
//! and what is searched for (`alias`, `dead`, `status`).

use super::codec::StreamEntry;

/// The most entries of one search, and the most bytes.
const ENTRIES: usize = 5_000;
const BYTES: usize = 64 << 20;
/// These bounds in words.
pub(crate) const BOUNDS: &str = "5,000 entries or 64 MiB";
/// The bytes that a page should have.
const PAGE_BYTES: usize = 1 << 20;
/// The entries of the first page, before the size of entries is known, and the most entries of any other
/// page.
const FIRST_PAGE: usize = 16;
const PAGE: usize = 500;

/// The entries and bytes that a search has looked at, and the number of entries of the next page.
#[derive(Debug)]
pub(super) struct Search {
    entries: usize,
    bytes: usize,
    count: usize,
}

impl Default for Search {
    fn default() -> Search {
        Search { entries: 0, bytes: 0, count: FIRST_PAGE }
    }
}

impl Search {
    /// How many entries the next page has. None: the search has looked at enough.
    pub(super) fn page(&self) -> Option<usize> {
        (self.entries < ENTRIES && self.bytes < BYTES).then_some(self.count)
    }

    /// Notes a page. Returns where the next one begins, as XRANGE takes it. None: this was the last page.
    pub(super) fn looked_at(&mut self, page: &[StreamEntry]) -> Option<String> {
        let next = page.last().filter(|_| page.len() == self.count).map(|last| format!("({}", last.id));
        let bytes: usize = page.iter().map(StreamEntry::bytes).sum();
        self.entries += page.len();
        self.bytes += bytes;
        self.count = (PAGE_BYTES / (bytes / page.len().max(1)).max(1)).clamp(1, PAGE);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many entries of this size a search looks at, and the most bytes of one page after the first.
    fn searched(bytes: usize) -> (usize, usize) {
        let entry = StreamEntry { id: "1-0".into(), fields: vec![(vec![], vec![0; bytes])], deliveries: 1 };
        let (mut search, mut looked, mut most) = (Search::default(), 0, 0);
        while let Some(count) = search.page() {
            assert_eq!(search.looked_at(&vec![entry.clone(); count]), Some("(1-0".to_owned()));
            most = most.max(if looked == 0 { 0 } else { count * bytes });
            looked += count;
        }
        (looked, most)
    }

    #[test]
    fn a_search_ends_after_many_entries_or_many_bytes() {
        let (looked, _) = searched(10);
        assert!((ENTRIES..ENTRIES + PAGE).contains(&looked), "{looked}");
        let (looked, most) = searched(1 << 20);
        assert!((64..=64 + FIRST_PAGE).contains(&looked) && most <= PAGE_BYTES, "{looked} {most}");
        assert_eq!(Search::default().looked_at(&[]), None);
        let words = format!("{},000 entries or {} MiB", ENTRIES / 1000, BYTES >> 20);
        assert_eq!(BOUNDS, words);
    }
}
