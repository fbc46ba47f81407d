//! `records` of a plugin: the Redis hashes that its handlers may read and write.
//!
//! In: patterns of keys, in which `*` stands for any text. Out: [`RecordGrants`], which also knows the keys
//! that are never granted.

use super::names::{OWN_PREFIX, check_key};

/// The keys of records that a plugin may use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordGrants {
    patterns: Vec<String>,
    /// Streams, lists and dead letters of queues. They are never granted, even if a pattern matches them.
    queue_keys: Vec<String>,
}

impl RecordGrants {
    /// `queue_keys` are the keys of all queues.
    pub(super) fn new(patterns: Vec<String>, queue_keys: Vec<String>) -> RecordGrants {
        RecordGrants { patterns, queue_keys }
    }

    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }

    /// Why the plugin may not use this key.
    pub fn check(&self, key: &str) -> Result<(), String> {
        if key.starts_with(OWN_PREFIX) {
            return Err(format!(
                "the key `{key}` is not granted: keys that begin with `tq:` are tqhost's own"
            ));
        }
        if self.queue_keys.iter().any(|other| other == key) {
            return Err(format!("the key `{key}` is not granted: it belongs to a queue"));
        }
        if self.patterns.iter().any(|pattern| covers(pattern, key)) {
            return Ok(());
        }
        let granted = match &self.patterns[..] {
            [] => "nothing".to_owned(),
            patterns => patterns.join(", "),
        };
        Err(format!("the key `{key}` is not granted: `records` of the plugin grants {granted}"))
    }
}

/// Checks one pattern.
pub(super) fn check_pattern(pattern: &str) -> Result<(), String> {
    if pattern.starts_with(OWN_PREFIX) {
        return Err(
            "begins with tq:, as only keys of tqhost itself do: write keys of your application".into()
        );
    }
    check_key(pattern)
}

/// Whether a pattern covers a key. `*` stands for any text, also for none.
fn covers(pattern: &str, key: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = key.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        // The earliest place leaves the most text for the parts behind it.
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{parse, refusals};
    use super::*;

    #[test]
    fn a_star_stands_for_any_text_and_nothing_else_does() {
        for (pattern, key, is_covered) in [
            ("kb:{kb}:*", "kb:{kb}:1", true),
            ("kb:{kb}:*", "kb:{kb}:", true),
            ("kb:{kb}:*", "kb:kb:1", false),
            ("kb", "kb", true),
            ("kb", "kb:1", false),
            ("*", "anything", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c", false),
            ("a*a", "a", false),
            ("a?c", "abc", false),
        ] {
            assert_eq!(covers(pattern, key), is_covered, "{pattern} {key}");
        }
    }

    #[test]
    fn keys_of_tqhost_and_of_queues_are_never_granted() {
        let text = "[queues.a]\nstream = \"app:a\"\nlist = \"app:list\"\n[plugins.a]\nrecords = [\"*\"]\n";
        let grants = parse(text).expect("valid").plugins.remove("a").expect("a plugin").records;
        for key in [&format!("{OWN_PREFIX}{{app:a}}:delayed"), "app:a", "app:list"] {
            assert!(grants.check(key).is_err(), "{key}");
        }
        assert_eq!(grants.check("app:b"), Ok(()));
        let why = RecordGrants::default().check("app:b").unwrap_err();
        insta::assert_snapshot!(why, @r"
        the key `app:b` is not granted: `records` of the plugin grants nothing
        ");
    }

    #[test]
    fn bad_patterns() {
        let texts = [
            &*format!("records = [\"{OWN_PREFIX}*\"]"),
            "records = [\"\"]",
            "records = \"kb:*\"",
            "records = [5]",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\n[plugins.a]\n{}", &texts));
    }
}
