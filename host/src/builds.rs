//! The build of a version: the label, commit, time and author that tell people which one it is.
//!
//! In: JSON that came with the file of a handler, or was kept in Redis. All of it is foreign text. Out: a
//! [`BuildNote`] whose texts are short and have no control characters; the words for a version, which are the
//! same wherever people are shown one.
//!
//! Not here: where the JSON is found (`sandbox::build_section`, `plugins::build_file`). Nothing is decided by
//! a label: versions are told apart by their digests alone.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::clock::now_ms;

/// Characters of a label, a commit and an author.
const LABEL: usize = 60;
const COMMIT: usize = 64;
const AUTHOR: usize = 80;

/// The build of a version, as its file tells it. Each part may be missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(from = "ForeignBuild")]
pub(crate) struct BuildNote {
    /// The name that people gave to the version.
    pub label: Option<String>,
    /// The commit that it was built from.
    pub commit: Option<String>,
    /// Milliseconds since the Unix epoch.
    pub built_at: Option<u64>,
    pub author: Option<String>,
}

/// A build as its file or Redis has it, before its texts are checked.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ForeignBuild {
    label: Value,
    commit: Value,
    built_at: Value,
    author: Value,
}

impl From<ForeignBuild> for BuildNote {
    fn from(found: ForeignBuild) -> BuildNote {
        BuildNote {
            label: plain(&found.label, LABEL),
            commit: plain(&found.commit, COMMIT),
            built_at: moment(&found.built_at),
            author: plain(&found.author, AUTHOR),
        }
    }
}

/// Returns the text, cut to `most` characters, without invisible characters and marks of direction.
fn plain(value: &Value, most: usize) -> Option<String> {
    let is_plain = |c: &char| {
        !c.is_control()
            && !matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    let text: String = value.as_str()?.trim().chars().filter(is_plain).take(most).collect();
    (!text.is_empty()).then_some(text)
}

/// A time like `2026-11-29T16:00:00Z`, or milliseconds since the Unix epoch.
fn moment(value: &Value) -> Option<u64> {
    let ms = match value {
        Value::String(text) => u64::try_from(text.parse::<Timestamp>().ok()?.as_millisecond()).ok(),
        value => value.as_u64(),
    };
    // Times beyond the range of calendars are left out.
    ms.filter(|ms| i64::try_from(*ms).is_ok_and(|ms| Timestamp::from_millisecond(ms).is_ok()))
}

/// The first 12 digits of a digest.
pub(crate) fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

/// The words for a version and its plugin, by a name like `mail@39a2c07d51e4`.
pub(crate) fn words_of(version: &str, label: Option<&str>) -> String {
    match (version.rsplit_once('@'), label) {
        (Some((plugin, digest)), Some(label)) => format!("{plugin} {label} ({})", short(digest)),
        (Some((plugin, digest)), None) => format!("{plugin}@{}", short(digest)),
        (None, _) => version.to_owned(),
    }
}

impl BuildNote {
    /// The build of a version that gets its label now.
    pub(crate) fn now(label: &str, commit: Option<String>, author: String) -> BuildNote {
        BuildNote::from(ForeignBuild {
            label: label.into(),
            commit: commit.into(),
            built_at: now_ms().into(),
            author: author.into(),
        })
    }

    /// A version as people are shown it: its label and the first digits of its digest.
    pub(crate) fn words(&self, digest: &str) -> String {
        let digits = short(digest);
        self.label.as_ref().map_or_else(|| digits.to_owned(), |label| format!("{label} ({digits})"))
    }
}

/// The builds of several versions, by their digests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub(crate) struct Builds(BTreeMap<String, BuildNote>);

impl Builds {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a build, unless it tells nothing.
    pub(crate) fn add(&mut self, digest: &str, build: BuildNote) {
        if build != BuildNote::default() {
            self.0.insert(digest.to_owned(), build);
        }
    }

    /// Adds the builds of digests that have none yet.
    pub(crate) fn add_unknown(&mut self, others: &Builds) {
        for (digest, build) in &others.0 {
            self.0.entry(digest.clone()).or_insert_with(|| build.clone());
        }
    }

    pub(crate) fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.0.retain(|digest, _| is_kept(digest));
    }

    /// The build of a version. The first 12 digits of its digest are enough.
    pub(crate) fn of(&self, digest: &str) -> Option<&BuildNote> {
        let (known, build) = self.0.range(digest.to_owned()..).next()?;
        (digest.len() >= 12 && known.starts_with(digest)).then_some(build)
    }

    /// A version as people are shown it.
    pub(crate) fn words(&self, digest: &str) -> String {
        self.of(digest).map_or_else(|| short(digest).to_owned(), |build| build.words(digest))
    }

    /// The label of a version, for a name like `mail@39a2c07d51e4`.
    pub(crate) fn label(&self, version: &str) -> Option<&str> {
        let (_, digest) = version.rsplit_once('@')?;
        self.of(digest)?.label.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(json: Value) -> BuildNote {
        serde_json::from_value(json).expect("a build")
    }

    #[test]
    fn foreign_texts_are_cut_and_lose_what_is_not_seen() {
        let hostile = read(json!({
            "label": format!("\u{1b}[31mv1\u{202e}\u{200b}\n{}", "x".repeat(100)),
            "commit": "\u{0}\u{7f}",
            "author": 7,
            "built_at": "yesterday",
            "other": { "deep": true }
        }));
        let label = format!("[31mv1{}", "x".repeat(LABEL - 6));
        assert_eq!(hostile, BuildNote { label: Some(label), ..BuildNote::default() });
        let ms = 1_795_968_000_000_u64;
        for time in [json!("2026-11-29T16:00:00Z"), json!("2026-11-29T17:00:00+01:00"), json!(ms)] {
            assert_eq!(read(json!({ "built_at": time })).built_at, Some(ms), "{time}");
        }
        for time in [json!(-1), json!(1.5), json!(u64::MAX), json!("-000001-01-01T00:00:00Z"), Value::Null] {
            assert_eq!(read(json!({ "built_at": time })).built_at, None, "{time}");
        }
    }

    #[test]
    fn a_version_is_shown_by_its_label_and_its_first_digits() {
        let (digest, other) = ("39a2c07d51e4aaaa", "39a2c07d51e5aaaa");
        let mut builds = Builds::default();
        builds.add(digest, read(json!({ "label": "v1.4" })));
        builds.add(other, BuildNote::default());
        assert_eq!(builds.words(digest), "v1.4 (39a2c07d51e4)");
        assert_eq!(builds.words(&digest[..12]), "v1.4 (39a2c07d51e4)");
        assert_eq!((builds.words(other), builds.words("39a2")), ("39a2c07d51e5".into(), "39a2".into()));
        assert_eq!((builds.label("mail@39a2c07d51e4"), builds.label("mail")), (Some("v1.4"), None));
        let name = format!("mail@{digest}");
        assert_eq!(words_of(&name, builds.label(&name)), "mail v1.4 (39a2c07d51e4)");
        assert_eq!((&*words_of(&name, None), &*words_of("old", None)), ("mail@39a2c07d51e4", "old"));
        let mut more = Builds::default();
        more.add(digest, read(json!({ "label": "another" })));
        builds.add_unknown(&more);
        assert_eq!(builds.words(digest), "v1.4 (39a2c07d51e4)");
    }
}
