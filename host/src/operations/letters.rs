//! Dead letters as lines of JSON: what an export writes, and what an import reads.
//!
//! In: dead letters, or lines. Out: a line with all that Redis holds of a dead letter, byte for byte; or the
//! fields of its entry. A name or value that is no text is written as `{"base64": …}`. A download ends with a
//! line that says how many came before it, so that a part of one is not taken for the whole. Where fields are
//! hidden, its lines lack the host's own fields, and no import takes them.
//!
//! Not here: files (`cli`), requests (`api`, `dashboard`), adding a dead letter to Redis (`queue::undo`).

use std::io;
use std::time::Duration;

use futures_util::{Stream, stream};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use super::cursor;
use super::dead::DeadView;
use super::error::{OperationError, OperationResult};
use super::json::{FieldView, bytes_of};
use super::paging;
use crate::field::without_bom;
use crate::mask::FieldMask;
use crate::queue::codec::{self, MAX_ID_BYTES, RawFields};
use crate::queue::repeat::patiently;
use crate::queue::undo::MOST_FIELDS;
use crate::queue::{DeadLetter, Queue, TaskFilter};

/// The most dead letters that one download looks at, and for how long.
const LOOKS: u64 = 100_000;
const TIME: Duration = Duration::from_secs(600);
const KIND: &str = "dead-export";

/// A dead letter as a line.
#[derive(Serialize)]
struct LetterLine {
    /// The producer's fields, and a summary for people, which an import does not read.
    #[serde(flatten)]
    view: DeadView,
    /// The host's own fields, as they stand in the dead letter. None: the fields are hidden.
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved: Option<Vec<FieldView>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    masked: bool,
}

/// The last line of a download.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndLine {
    #[serde(rename = "tq-export")]
    end: ExportEnd,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportEnd {
    /// How many dead letters came before this line.
    letters: u64,
    /// How many were looked at.
    examined: u64,
    /// The cursor of the next download; null: these were all.
    next: Option<String>,
    /// Fields are hidden, so that no import takes them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    masked: bool,
}

/// One line for each dead letter, without the values that the mask names.
pub(crate) fn letter_lines(letters: &[DeadLetter], mask: &FieldMask) -> String {
    let (mut lines, masked) = (String::new(), !mask.is_empty());
    for letter in letters {
        let mut view = DeadView::new(letter.clone(), true);
        FieldView::mask(view.fields.iter_mut().flatten(), mask);
        let reserved = letter.raw.iter().filter(|(name, _)| is_reserved(name)).cloned().collect();
        let reserved = (!masked).then(|| FieldView::all(&reserved));
        // Texts and numbers can always be written.
        lines += &serde_json::to_string(&LetterLine { view, reserved, masked }).unwrap_or_default();
        lines.push('\n');
    }
    lines
}

fn is_reserved(name: &[u8]) -> bool {
    std::str::from_utf8(name).is_ok_and(codec::is_of_host)
}

/// A line of a file with dead letters.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FileLine {
    Letter(ImportedLetter),
    /// A download ends here. It has this number of letters.
    End(u64),
}

/// A dead letter that is to be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImportedLetter {
    /// The task's id.
    pub id: String,
    /// All fields of its entry.
    pub fields: RawFields,
    /// The queue that it names, if that is another one: its table may have been renamed since.
    pub from: Option<String>,
}

impl ImportedLetter {
    /// Its approximate size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        codec::bytes_in(&self.fields)
    }
}

/// The part of a line that an import reads.
#[derive(Deserialize)]
struct GivenLetter {
    id: String,
    queue: String,
    failed_at: u64,
    fields: Vec<FieldView>,
    #[serde(default)]
    reserved: Vec<FieldView>,
    #[serde(default)]
    masked: bool,
}

/// Reads a line. `queue` is the queue for which the dead letters are.
pub(crate) fn read_line(line: &[u8], queue: &str) -> Result<FileLine, String> {
    // The file may have a mark at its beginning, or be put together from files that have one.
    let line = without_bom(line);
    if let Ok(EndLine { end }) = serde_json::from_slice(line) {
        return Ok(FileLine::End(end.letters));
    }
    let given: GivenLetter = serde_json::from_slice(line).map_err(|why| {
        format!("this is no line of `dead purge --out`, or of a download of dead letters: {why}")
    })?;
    let GivenLetter { id, queue: of, failed_at, fields, reserved, masked } = given;
    if masked {
        let why = "fields are hidden in this file (mask in [admin]), so nothing can be brought back from it: \
                   write it with `tqhost jobs file` or `tqhost dead export --out`";
        return Err(why.to_owned());
    }
    if id.is_empty() || id.len() > MAX_ID_BYTES {
        return Err(format!("id: it is not text of 1 to {MAX_ID_BYTES} bytes"));
    }
    let count = fields.len() + reserved.len();
    if count > MOST_FIELDS {
        return Err(format!("fields: with those of `reserved`, {count} of them are more than {MOST_FIELDS}"));
    }
    let from = Some(of).filter(|of| !of.is_empty() && of != queue);
    let own = raw_fields("fields", &fields)?;
    if let Some((name, _)) = own.iter().find(|(name, _)| is_reserved(name)) {
        let name = String::from_utf8_lossy(name).into_owned();
        return Err(format!("fields: {name:?} belongs to the host, and so to `reserved`"));
    }
    let hosts = raw_fields("reserved", &reserved)?;
    if let Some((name, _)) = hosts.iter().find(|(name, _)| !is_reserved(name)) {
        let name = String::from_utf8_lossy(name).into_owned();
        return Err(format!("reserved: {name:?} is a field of the task, and belongs to `fields`"));
    }
    let named = |name: &str| hosts.iter().rev().find(|(known, _)| known == name.as_bytes());
    if named("tq-id").is_some_and(|(_, known)| *known != id.as_bytes()) {
        return Err("id: `reserved` has another tq-id".to_owned());
    }
    // Another program's dead letter goes by its entry, which is a new one after the import.
    let missing = |name: &str| named(name).is_none();
    let known = [("tq-id", id.clone()), ("tq-failed-at", failed_at.to_string())];
    let added: Vec<_> =
        known.iter().filter(|(name, _)| missing(name)).map(|(name, value)| codec::raw(name, value)).collect();
    let fields = own.into_iter().chain(hosts).chain(added).collect();
    Ok(FileLine::Letter(ImportedLetter { id, fields, from }))
}

fn raw_fields(list: &str, given: &[FieldView]) -> Result<RawFields, String> {
    let read = |(number, FieldView { name, value }): (usize, &FieldView)| {
        let bytes = |what: &str, value: &Value| {
            bytes_of(value).map_err(|why| format!("{list}: {what} of number {number}: {why}"))
        };
        Ok((bytes("name", name)?, bytes("value", value)?))
    };
    (1..).zip(given).map(read).collect()
}

/// A download, which reads one page after the other.
struct Download {
    queue: Queue,
    filter: TaskFilter,
    /// The dead letter behind which the next page begins. None: the newest one is the first.
    after: Option<String>,
    is_over: bool,
    /// How many dead letters are in the lines so far, and how many were looked at.
    letters: u64,
    examined: u64,
    /// The size of the next page.
    count: usize,
    /// The download must have all dead letters, at least this number, however long it takes.
    whole: Option<u64>,
    ends: Instant,
}

impl Download {
    /// The lines of the next page. The last ones end with the [`EndLine`].
    async fn next(&mut self) -> OperationResult<String> {
        let now_ms = patiently(|| self.queue.now_ms()).await?;
        let page = patiently(|| self.queue.newest_dead(self.after.as_deref(), self.count)).await?;
        self.examined += page.len() as u64;
        self.after = page.last().map(|last| last.entry.clone()).filter(|_| page.len() == self.count);
        let bytes: usize = page.iter().map(DeadLetter::bytes).sum();
        self.count = paging::next(self.count, bytes);
        let is_late = self.whole.is_none() && (self.examined >= LOOKS || Instant::now() >= self.ends);
        self.is_over = self.after.is_none() || is_late;
        if let Some(all) = self.whole.filter(|all| self.is_over && self.examined < *all) {
            let why = format!("{} of {all} were left when they were read", self.examined);
            return Err(OperationError::OutOfReach(format!("{why}: the file is not whole")));
        }
        let is_chosen = |letter: &DeadLetter| self.filter.takes(&letter.traits(), now_ms);
        let matching: Vec<DeadLetter> = page.into_iter().filter(is_chosen).collect();
        self.letters += matching.len() as u64;
        let mut lines = letter_lines(&matching, &self.filter.mask);
        if self.is_over {
            let next = self.after.as_ref().map(|entry| cursor::write(KIND, &[entry]));
            let (letters, examined, masked) = (self.letters, self.examined, !self.filter.mask.is_empty());
            let line = EndLine { end: ExportEnd { letters, examined, next, masked } };
            lines += &serde_json::to_string(&line).unwrap_or_default();
            lines.push('\n');
        }
        Ok(lines)
    }
}

/// The lines of a download: the dead letters that match, the newest first, and a last line that counts them.
/// A part is read when the one before was taken. The mask of the filter hides fields. `whole`: all of them,
/// at least this number, are in one download, however long it takes. `held` is kept until the end.
pub(crate) fn export<H: Send + 'static>(
    queue: Queue,
    filter: TaskFilter,
    cursor: Option<&str>,
    whole: Option<u64>,
    held: H,
) -> OperationResult<impl Stream<Item = Result<String, io::Error>> + Send + 'static> {
    let after = cursor.map(|cursor| cursor::read_entry(KIND, cursor)).transpose()?;
    let (is_over, letters, examined, count) = (false, 0, 0, paging::FIRST);
    let ends = Instant::now() + TIME;
    let download = Download { queue, filter, after, is_over, letters, examined, count, whole, ends };
    Ok(stream::unfold((download, held), async |(mut download, held)| {
        if download.is_over {
            return None;
        }
        let lines = download.next().await.map_err(|error| io::Error::other(error.to_string()));
        // Behind an error the file would lack lines.
        download.is_over |= lines.is_err();
        Some((lines, (download, held)))
    }))
}

/// A name for the file of a download: other characters than ASCII letters and digits become `_`.
pub(crate) fn file_name(name: &str) -> String {
    let safe = |char: char| if char.is_ascii_alphanumeric() || char == '-' { char } else { '_' };
    format!("{}.jsonl", name.chars().map(safe).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::StreamEntry;

    fn letter(fields: &[(&[u8], &[u8])]) -> DeadLetter {
        let fields = fields.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        DeadLetter::read(StreamEntry { id: "1700000000000-5".into(), fields, deliveries: 1 })
    }

    fn read(line: &str) -> Result<FileLine, String> {
        read_line(line.as_bytes(), "work")
    }

    #[test]
    fn every_byte_comes_back() {
        let fields: [(&[u8], &[u8]); 6] = [
            (b"a", b"1"),
            (b"a", b"\xff\x00"),
            (b"\xfe", b"{\"base64\": \"/w==\"}"),
            (b"tq-id", b"7"),
            (b"tq-key", b"\xff"),
            (b"tq-failed-at", b"5"),
        ];
        let before = letter(&fields);
        let line = letter_lines(std::slice::from_ref(&before), &FieldMask::default());
        for line in [line.clone(), format!("\u{feff}{line}")] {
            let Ok(FileLine::Letter(after)) = read(&line) else { panic!("{line}") };
            assert_eq!((after.id.as_str(), &after.fields), ("7", &before.raw), "{line}");
        }
    }

    #[test]
    fn another_programs_dead_letter_keeps_its_name_and_time() {
        let line = letter_lines(&[letter(&[(b"job", b"1")])], &FieldMask::default());
        let Ok(FileLine::Letter(after)) = read(&line) else { panic!("{line}") };
        assert_eq!(after.id, "foreign-1700000000000-5");
        let added = &after.fields[1..];
        assert_eq!(added, [codec::raw("tq-id", &after.id), codec::raw("tq-failed-at", "1700000000000")]);
    }

    #[test]
    fn a_wrong_line_says_why() {
        let line = |id: &str, queue: &str, fields: &str, reserved: &str| {
            read(&format!(
                "{{\"id\":{id},\"queue\":{queue},\"failed_at\":1,\"fields\":[{fields}],\
                 \"reserved\":[{reserved}]}}"
            ))
        };
        let field = |name: &str, value: &str| format!("{{\"name\":{name},\"value\":{value}}}");
        assert!(line("\"1\"", "\"work\"", &field("\"a\"", "\"b\""), "").is_ok());
        let table = [
            (line("\"\"", "\"\"", "", ""), "id: "),
            (
                line("\"1\"", "\"\"", &field("\"tq-id\"", "\"1\""), ""),
                "fields: \"tq-id\" belongs to the host",
            ),
            (line("\"1\"", "\"\"", "", &field("\"a\"", "\"1\"")), "reserved: \"a\" is a field of the task"),
            (line("\"1\"", "\"\"", "", &field("\"tq-id\"", "\"2\"")), "id: `reserved` has another"),
            (line("\"1\"", "\"\"", &field("\"a\"", "5"), ""), "fields: value of number 1: "),
            (line("\"1\"", "\"\"", &field("\"a\"", "{\"base64\":\"%\"}"), ""), "fields: value of number 1: "),
            (
                read("{\"id\":\"1\",\"queue\":\"\",\"failed_at\":1,\"fields\":[],\"masked\":true}"),
                "fields are hidden",
            ),
            (read("{}"), "this is no line of"),
            (read("{\"a\": \"1\"}"), "this is no line of"),
            (read("no JSON"), "this is no line of"),
        ];
        for (read, why) in table {
            let told = read.expect_err(why);
            assert!(told.starts_with(why), "{told}");
        }
        let many = vec![field("\"a\"", "\"1\""); MOST_FIELDS];
        let one = field("\"tq-a\"", "\"1\"");
        assert!(line("\"1\"", "\"\"", &many.join(","), "").is_ok());
        let told = line("\"1\"", "\"\"", &many.join(","), &one).expect_err("too many fields");
        assert!(told.starts_with("fields: ") && told.contains("3401"), "{told}");
        for mark in ["", "\u{feff}"] {
            let end =
                read(&format!("{mark}{{\"tq-export\":{{\"letters\":3,\"examined\":9,\"next\":null}}}}"));
            assert_eq!(end, Ok(FileLine::End(3)));
        }
    }

    #[test]
    fn a_dead_letter_may_name_another_queue() {
        for (queue, from) in [("work", None), ("", None), ("other", Some("other"))] {
            let line = format!(
                "{{\"id\":\"1\",\"queue\":\"{queue}\",\"failed_at\":1,\"fields\":[],\"reserved\":[]}}"
            );
            let Ok(FileLine::Letter(letter)) = read(&line) else { panic!("{line}") };
            assert_eq!(letter.from.as_deref(), from, "{line}");
        }
    }

    #[test]
    fn a_file_has_a_plain_name() {
        assert_eq!(file_name("a/b\"ü-1"), "a_b__-1.jsonl");
    }
}
