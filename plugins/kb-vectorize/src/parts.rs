//! The parts of a document that is too large for one commit.
//!
//! In: the document's text and chunks. Out: parts, as bytes that the plugin's state keeps until a task of the
//! same handler has written their chunks. A part has its text, so that no task carries more than it needs.
//!
//! ```text
//! {"first": 128, "ranges": [[0, 790, 0], …], "headings": ["Guide > Setup", …]}\n the text of the part
//! ```
//!
//! Not here: the state, and the tasks (`lib.rs`).

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::split::Chunk;

/// The most chunks of a part, so that a step that is retried loses little work.
const MAX_CHUNKS: usize = 128;
/// The most bytes that the chunks of a part commit, unless it has only one.
const MAX_BYTES: usize = 1 << 20;

/// A part of a document.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    /// The number of its first chunk in the document.
    pub first: usize,
    pub text: String,
    /// Its chunks, with ranges of `text`.
    pub chunks: Vec<Chunk>,
}

#[derive(Serialize, Deserialize)]
struct Header {
    first: usize,
    /// For each chunk its start, its end, and the index of its heading.
    ranges: Vec<(usize, usize, usize)>,
    headings: Vec<String>,
}

/// Divides chunks into parts. `bytes` tells what a chunk needs in the commit.
pub fn divide(chunks: &[Chunk], bytes: impl Fn(&Chunk) -> usize) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let (mut first, mut size) = (0, 0);
    for (n, chunk) in chunks.iter().enumerate() {
        let more = bytes(chunk);
        if n > first && (n - first == MAX_CHUNKS || size + more > MAX_BYTES) {
            parts.push(first..n);
            (first, size) = (n, 0);
        }
        size += more;
    }
    if first < chunks.len() {
        parts.push(first..chunks.len());
    }
    parts
}

/// The chunks with these numbers as bytes.
pub fn encode(text: &str, chunks: &[Chunk], part: Range<usize>) -> Vec<u8> {
    let first = part.start;
    let chunks = &chunks[part];
    let (start, end) = (chunks[0].range.start, chunks[chunks.len() - 1].range.end);
    let mut headings: Vec<String> = Vec::new();
    let ranges = chunks
        .iter()
        .map(|chunk| {
            if headings.last() != Some(&chunk.heading) {
                headings.push(chunk.heading.clone());
            }
            (chunk.range.start - start, chunk.range.end - start, headings.len() - 1)
        })
        .collect();
    let header = serde_json::to_string(&Header { first, ranges, headings }).unwrap_or_default();
    [header.as_bytes(), b"\n", &text.as_bytes()[start..end]].concat()
}

/// `None` if the bytes are no part.
pub fn decode(bytes: &[u8]) -> Option<Part> {
    let (header, text) = str::from_utf8(bytes).ok()?.split_once('\n')?;
    let Header { first, ranges, headings } = serde_json::from_str(header).ok()?;
    let chunk = |(start, end, heading): (usize, usize, usize)| {
        text.get(start..end)?;
        Some(Chunk { range: start..end, heading: headings.get(heading)?.clone() })
    };
    let chunks = ranges.into_iter().map(chunk).collect::<Option<Vec<_>>>()?;
    Some(Part { first, text: text.to_owned(), chunks })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::{Sizes, split};

    #[test]
    fn parts_have_all_chunks_with_their_texts_and_headings() {
        let text = format!("# A\n{}\n# B\n{}", "A sentence. ".repeat(600), "一句话。".repeat(2000));
        let chunks = split(&text, Sizes { chunk: 100, overlap: 30 });
        let parts = divide(&chunks, |chunk| chunk.range.len());
        assert!(parts.len() > 1 && parts.iter().all(|part| part.len() <= MAX_CHUNKS), "{parts:?}");
        let mut n = 0;
        for part in parts {
            let found = decode(&encode(&text, &chunks, part)).unwrap();
            assert_eq!(found.first, n);
            for chunk in found.chunks {
                assert_eq!(found.text[chunk.range], text[chunks[n].range.clone()]);
                assert_eq!(chunk.heading, chunks[n].heading);
                n += 1;
            }
        }
        assert_eq!(n, chunks.len());
    }

    #[test]
    fn large_chunks_make_more_parts() {
        let chunks: Vec<Chunk> = (0..5).map(|n| Chunk { range: n..n + 1, heading: String::new() }).collect();
        assert_eq!(divide(&chunks, |_| MAX_BYTES / 2), [0..2, 2..4, 4..5]);
        assert_eq!(divide(&chunks, |_| MAX_BYTES * 2).len(), 5);
        assert_eq!(divide(&[], |_| 1), []);
    }

    #[test]
    fn other_bytes_are_no_part() {
        for bytes in
            [&b""[..], b"{}\ntext", b"{\"first\":0,\"ranges\":[[0,9,0]],\"headings\":[\"\"]}\nabc", b"\xff\n"]
        {
            assert_eq!(decode(bytes), None);
        }
    }
}
