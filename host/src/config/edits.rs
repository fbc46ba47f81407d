//! The known word that somebody probably meant, for "did you mean".
//!
//! Not here: which words are compared (`reader`, `times`, `doctor::strays`, the commands).

/// How many letters must be inserted, removed or changed to turn `a` into `b`; `-` and `_` are equal.
pub(crate) fn edits(a: &str, b: &str) -> usize {
    let fold = |text: &str| text.to_ascii_lowercase().replace('-', "_");
    strsim::levenshtein(&fold(a), &fold(b))
}

/// The known word that `word` was probably meant to be.
pub(crate) fn nearest<'k>(word: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let near = known.map(|known| (edits(word, known), known)).filter(|(edits, _)| *edits <= most_edits(word));
    if word.len() > 64 { None } else { near.min().map(|(_, known)| known) }
}

/// The most edits that may still be a slip.
pub(super) fn most_edits(word: &str) -> usize {
    (word.len() / 3).clamp(1, 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_found() {
        let known = ["max_retries", "lease", "timeout", "max_crashes"];
        let table = [
            ("max-retries", Some("max_retries")),
            ("maxRetries", Some("max_retries")),
            ("leese", Some("lease")),
            ("retries", None),
            ("timeuot", Some("timeout")),
            ("colour", None),
        ];
        for (word, meant) in table {
            assert_eq!(nearest(word, known.into_iter()), meant, "{word}");
        }
    }
}
