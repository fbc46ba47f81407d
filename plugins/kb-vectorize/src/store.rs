//! The records of a document: one for the document, and one for each chunk.
//!
//! In: the ids of the knowledge base and of the document, and chunks. Out: records under these keys:
//!
//! | key | holds |
//! |---|---|
//! | `<prefix>:<kb>:chunk:<document>:<generation>:<n>` | a chunk of one generation of the document |
//! | `<prefix>:<kb>:document:<document>` | which generation is live, and which others may have chunks |
//!
//! Each run of a document writes a generation of its own. Only the document's record says which one is live,
//! so a change of this record replaces all chunks at once, however many they are.
//!
//! Not here: the order of the steps (`lib.rs`), and the text of a chunk (`split`).

use serde::{Deserialize, Serialize};
use tqhost_handler::records;
use tqhost_handler::{Failure, FieldError, Task};

/// The most bytes of an id. A key has room for two of them and the rest.
const MAX_ID: usize = 150;

/// The names of the fields that hold the ids.
#[derive(Clone, Debug)]
pub struct Names {
    pub kb: String,
    pub document: String,
}

impl Default for Names {
    fn default() -> Names {
        Names { kb: "knowledgeBaseId".to_owned(), document: "documentId".to_owned() }
    }
}

/// The keys of one document.
pub struct Keys {
    /// The prefix and the knowledge base.
    base: String,
    document: String,
}

impl Keys {
    pub fn of(task: &Task, prefix: &str, names: &Names) -> Result<Keys, FieldError> {
        let kb = id(task, &names.kb)?;
        Ok(Keys { base: format!("{prefix}:{kb}"), document: id(task, &names.document)? })
    }

    pub fn document(&self) -> String {
        format!("{}:document:{}", self.base, self.document)
    }

    pub fn chunk(&self, generation: &str, n: usize) -> String {
        format!("{}:chunk:{}:{generation}:{n}", self.base, self.document)
    }
}

/// An id as a part of a key.
fn id(task: &Task, field: &str) -> Result<String, FieldError> {
    let id = task.text(field)?.trim();
    let escaped = escaped(id);
    match escaped.len() {
        0 => Err(FieldError::invalid(field, "is empty")),
        1..=MAX_ID => Ok(escaped),
        bytes => {
            Err(FieldError::invalid(field, format_args!("needs {bytes} bytes of a key, at most {MAX_ID}")))
        }
    }
}

/// Writes what has a meaning in keys and patterns as `%` and its code, so that two ids never share a key.
fn escaped(id: &str) -> String {
    id.chars().fold(String::new(), |mut escaped, c| {
        if c.is_control() || c.is_whitespace() || ":%{}*?[]\\".contains(c) {
            escaped.push_str(&format!("%{:02x}", u32::from(c)));
        } else {
            escaped.push(c);
        }
        escaped
    })
}

/// One run of a document. Of two runs, the one that was enqueued later has the greater id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    pub id: String,
    /// Its chunks have the numbers from 0 to here.
    pub chunks: usize,
}

/// The generations in the document's record.
#[derive(Debug, Default)]
pub struct Document {
    live: Option<Generation>,
    /// Generations that are not live, and whose chunks may exist: they are older or still being written.
    others: Vec<Generation>,
}

impl Document {
    pub fn read(keys: &Keys) -> Result<Document, Failure> {
        let key = keys.document();
        let Some(record) = records::get(&key)? else { return Ok(Document::default()) };
        let text = |name: &str| record.get(name).and_then(|value| str::from_utf8(value).ok());
        let wrong = |field: &str| {
            Failure::retry(format_args!(
                "the field `{field}` of the record `{key}` is not what was written there"
            ))
        };
        let live = match text("generation") {
            None => None,
            Some(id) => {
                let chunks = text("chunks").and_then(|chunks| chunks.parse().ok());
                Some(Generation { id: id.to_owned(), chunks: chunks.ok_or_else(|| wrong("chunks"))? })
            }
        };
        let others = match text("others") {
            None => Vec::new(),
            Some(json) => serde_json::from_str(json).map_err(|_| wrong("others"))?,
        };
        Ok(Document { live, others })
    }

    /// Whether a later run of the document is live already.
    pub fn is_newer_than(&self, generation: &str) -> bool {
        self.live.as_ref().is_some_and(|live| *live.id > *generation)
    }

    /// Notes that chunks of this generation will be written.
    pub fn begin(&mut self, generation: Generation) {
        self.others.retain(|other| other.id != generation.id);
        self.others.push(generation);
    }

    /// Makes a generation the live one.
    pub fn switch(&mut self, generation: Generation) {
        self.others.retain(|other| other.id != generation.id);
        let before = self.live.replace(generation.clone());
        self.others.extend(before.filter(|before| before.id != generation.id));
    }

    /// Deletes up to `most` chunks of generations that are older than the live one. Returns how many it has
    /// deleted.
    pub fn sweep(&mut self, keys: &Keys, most: usize) -> Result<usize, Failure> {
        let Some(live) = &self.live else { return Ok(0) };
        let mut deleted = 0;
        for old in self.others.iter_mut().filter(|other| other.id < live.id) {
            while old.chunks > 0 && deleted < most {
                old.chunks -= 1;
                deleted += 1;
                records::delete(&keys.chunk(&old.id, old.chunks))?;
            }
        }
        self.others.retain(|other| other.chunks > 0);
        Ok(deleted)
    }

    /// Whether there are chunks that a sweep would delete.
    pub fn has_old_chunks(&self) -> bool {
        self.live.as_ref().is_some_and(|live| self.others.iter().any(|other| other.id < live.id))
    }

    /// Writes the generations into the record, with these other fields of it.
    pub fn write(&self, keys: &Keys, fields: &[(&str, String)]) -> Result<(), Failure> {
        let others = serde_json::to_string(&self.others).unwrap_or_default();
        let mut all = vec![("others", others)];
        if let Some(live) = &self.live {
            all.extend([("generation", live.id.clone()), ("chunks", live.chunks.to_string())]);
        }
        all.extend_from_slice(fields);
        Ok(records::put(&keys.document(), all)?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn generation(id: &str, chunks: usize) -> Generation {
        Generation { id: id.into(), chunks }
    }

    fn keys(kb: &str, document: &str) -> Keys {
        let task = Task::sample([("knowledgeBaseId", kb), ("documentId", document)]);
        Keys::of(&task, "kb:{kb}", &Names::default()).unwrap()
    }

    #[test]
    fn two_ids_never_share_a_key() {
        let ids =
            [("a", "b:c"), ("a:chunk:b", "c"), ("a", "b%3ac"), ("{a}", "b"), ("a", "b*"), ("甲", "乙 丙")];
        let all: BTreeSet<String> =
            ids.iter().map(|(kb, document)| keys(kb, document).chunk("1", 0)).collect();
        assert_eq!(all.len(), ids.len());
        assert_eq!(keys("{7}", "a:b").chunk("1-2", 3), "kb:{kb}:%7b7%7d:chunk:a%3ab:1-2:3");
        let long = "x".repeat(151);
        for (kb, document) in [("", "a"), ("a", " \t"), ("a", &*long)] {
            let task = Task::sample([("knowledgeBaseId", kb), ("documentId", document)]);
            assert!(Keys::of(&task, "kb", &Names::default()).is_err());
        }
    }

    #[test]
    fn only_older_generations_are_swept_and_in_steps() {
        let keys = keys("7", "a");
        let mut document = Document::default();
        document.begin(generation("1", 3));
        assert_eq!(document.sweep(&keys, 10).unwrap(), 0, "nothing is live");
        document.switch(generation("1", 3));
        document.begin(generation("2", 4));
        document.begin(generation("9", 5));
        assert!(!document.has_old_chunks());
        document.switch(generation("2", 4));
        document.write(&keys, &[("title", "A".into())]).unwrap();

        let mut document = Document::read(&keys).unwrap();
        assert!(document.is_newer_than("1") && !document.is_newer_than("2"));
        assert_eq!(document.sweep(&keys, 2).unwrap(), 2);
        assert!(document.has_old_chunks());
        assert_eq!(document.sweep(&keys, 2).unwrap(), 1);
        assert!(!document.has_old_chunks());
        assert_eq!(document.others, [generation("9", 5)], "a later run is not touched");
        assert_eq!(records::all()[&keys.document()]["generation"], b"2");
    }

    #[test]
    fn a_record_that_somebody_changed_is_a_retry() {
        let keys = keys("7", "b");
        records::insert(keys.document(), [("generation", "1"), ("chunks", "many")]);
        assert!(matches!(Document::read(&keys), Err(Failure::Retry(_))));
    }
}
