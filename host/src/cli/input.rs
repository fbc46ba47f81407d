//! Reads the fields of tasks, for `enqueue` and `try`.
//!
//! In: arguments (`name=value`), JSON objects, lines of JSON. Out: the fields of tasks, or an error that
//! names the place. A value from a file has at most 64 MiB, a line 16 MiB. Not here: sending the tasks
//! (`enqueue`).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde::de::{DeserializeOwned, IgnoredAny};

use super::exit::CommandError;
use crate::field::without_bom;
use crate::queue::NewTask;
use crate::task::Field;

/// The most bytes of a value from a file.
const MAX_VALUE: u64 = 64 << 20;
/// The most bytes of a line of a JSON Lines file.
const MAX_LINE: u64 = 16 << 20;

/// Reads `name=value`, `name=@file` and `name=@@text`.
pub(super) fn field(arg: &OsStr) -> Result<Field, CommandError> {
    let bytes = arg.as_bytes();
    let shown = || arg.to_string_lossy();
    let Some(equals) = bytes.iter().position(|byte| *byte == b'=') else {
        return Err(CommandError::Usage(format!(
            "{:?} is not a field: write name=value or name=@file",
            shown()
        )));
    };
    let (name, value) = (&bytes[..equals], &bytes[equals + 1..]);
    let name = match std::str::from_utf8(name) {
        Ok("") => return Err(CommandError::Usage(format!("{:?} has no name: write name=value", shown()))),
        Ok(name) => name.to_owned(),
        Err(_) => return Err(CommandError::Usage(format!("the name of {:?} is not UTF-8", shown()))),
    };
    let value = match value {
        [b'@', b'@', ..] => value[1..].to_vec(),
        [b'@'] => {
            return Err(CommandError::Usage(format!(
                "field {name}: no file is named after @ (write {name}=@@ for the text @)"
            )));
        }
        [b'@', path @ ..] => {
            let path = Path::new(OsStr::from_bytes(path));
            read_value(path).with_context(|| format!("field {name}: cannot read {}", path.display()))?
        }
        value => value.to_vec(),
    };
    Ok(Field { name, value })
}

/// The file that an argument takes its field's value from, if any.
pub(super) fn file_of(arg: &OsStr) -> Option<&Path> {
    let bytes = arg.as_bytes();
    let equals = bytes.iter().position(|byte| *byte == b'=')?;
    match &bytes[equals + 1..] {
        [b'@', b'@', ..] | [b'@'] => None,
        [b'@', path @ ..] => Some(Path::new(OsStr::from_bytes(path))),
        _ => None,
    }
}

/// Reads a file of any kind, for example a FIFO, whole.
pub(super) fn read_value(path: &Path) -> Result<Vec<u8>, anyhow::Error> {
    bounded(File::open(path)?)
}

fn bounded(from: impl Read) -> Result<Vec<u8>, anyhow::Error> {
    let mut value = Vec::new();
    from.take(MAX_VALUE + 1).read_to_end(&mut value)?;
    if value.len() as u64 > MAX_VALUE {
        return Err(anyhow!("it is larger than {} MiB", MAX_VALUE >> 20));
    }
    Ok(value)
}

/// Reads all of stdin.
pub(super) fn stdin() -> Result<Vec<u8>, CommandError> {
    Ok(bounded(io::stdin().lock()).context("cannot read stdin")?)
}

/// Reads the fields of one JSON object, or of each object of a list. The text may have many lines. An empty
/// list is an error. `name` is the file's name, for errors.
pub(super) fn whole_objects(bytes: &[u8], name: &str) -> Result<Vec<Vec<Field>>, CommandError> {
    let bytes = without_bom(bytes);
    let read = if bytes.trim_ascii_start().starts_with(b"[") {
        objects(bytes)
    } else {
        only_object(bytes).map(|fields| vec![fields])
    };
    read.map_err(|why| anyhow!("{name}: {why}").into())
}

fn objects(list: &[u8]) -> Result<Vec<Vec<Field>>, String> {
    let whole = utf8(list)?;
    let mut rest = whole.trim_ascii_start().strip_prefix('[').unwrap_or(whole).trim_ascii_start();
    let mut tasks = Vec::new();
    loop {
        let number = tasks.len() + 1;
        if rest.starts_with(']') {
            return Err(if tasks.is_empty() {
                "the list has no task".into()
            } else {
                format!("task {number} is missing after the comma")
            });
        }
        if rest.is_empty() {
            return Err(format!("task {number}: it ends too early"));
        }
        let (fields, after) =
            object(rest).map_err(|mistake| format!("task {number}: {}", mistake.within(whole)))?;
        tasks.push(fields);
        let after = after.trim_ascii_start();
        match after.as_bytes() {
            [b',', ..] => rest = after[1..].trim_ascii_start(),
            [b']'] => return Ok(tasks),
            [b']', ..] => return Err("something follows the list".into()),
            _ => return Err(format!("task {number}: expected `,` or `]` after it")),
        }
    }
}

/// One line of a JSON Lines file.
#[derive(Debug)]
pub(super) struct JsonLine {
    /// The line's number, from 1. Blank lines count.
    pub number: u64,
    pub bytes: usize,
    pub task: NewTask,
}

/// A JSON Lines file that can be read more than once.
#[derive(Debug)]
pub(super) struct JsonLines {
    file: File,
    name: String,
}

impl JsonLines {
    /// Opens a file. Stdin (`-`) and pipes are first copied to a private temporary file.
    pub(super) fn open(path: &Path) -> Result<JsonLines, CommandError> {
        let is_stdin = path == Path::new("-");
        let name = if is_stdin { "stdin".to_owned() } else { path.display().to_string() };
        let cannot = || format!("cannot read {name}");
        let file = if is_stdin {
            spool(&mut io::stdin().lock()).with_context(cannot)?
        } else {
            let mut file = File::open(path).with_context(cannot)?;
            let kind = file.metadata().with_context(cannot)?;
            if kind.is_file() { file } else { spool(&mut file).with_context(cannot)? }
        };
        Ok(JsonLines { file, name })
    }

    /// Reads the file from its beginning. Every line that is not blank is a task.
    pub(super) fn tasks(
        &self,
        delay: Duration,
    ) -> Result<impl Iterator<Item = Result<JsonLine, CommandError>> + '_, CommandError> {
        let mut file = &self.file;
        file.rewind().with_context(|| format!("cannot read {}", self.name))?;
        let mut reader = BufReader::with_capacity(1 << 16, file);
        let mut number = 0;
        Ok(std::iter::from_fn(move || self.next(&mut reader, &mut number, delay).transpose()))
    }

    fn next(
        &self,
        reader: &mut impl BufRead,
        number: &mut u64,
        delay: Duration,
    ) -> Result<Option<JsonLine>, CommandError> {
        let mut line = Vec::new();
        loop {
            *number += 1;
            line.clear();
            let read = reader
                .by_ref()
                .take(MAX_LINE + 2)
                .read_until(b'\n', &mut line)
                .with_context(|| format!("cannot read {}", self.name))?;
            let bad = |why: String| CommandError::from(anyhow!("{} line {number}: {why}", self.name));
            if read == 0 {
                return Ok(None);
            }
            let text = without_bom(&line).trim_ascii();
            if text.len() as u64 > MAX_LINE || (line.len() as u64 > MAX_LINE && !line.ends_with(b"\n")) {
                return Err(bad(format!("it is longer than {} MiB", MAX_LINE >> 20)));
            }
            if !text.is_empty() {
                let task = only_object(without_bom(&line))
                    .and_then(|fields| NewTask::new(fields, delay).map_err(|error| error.to_string()));
                return Ok(Some(JsonLine { number: *number, bytes: text.len(), task: task.map_err(bad)? }));
            }
        }
    }
}

fn spool(from: &mut impl Read) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    io::copy(from, &mut file)?;
    Ok(file)
}

/// Reads a text that is one JSON object.
fn only_object(bytes: &[u8]) -> Result<Vec<Field>, String> {
    let whole = utf8(bytes)?;
    let (fields, after) = object(whole.trim_ascii_start()).map_err(|mistake| mistake.within(whole))?;
    if after.is_empty() {
        Ok(fields)
    } else {
        Err(Mistake::at(after, "something follows the object").within(whole))
    }
}

/// The text, without the blanks at its end.
fn utf8(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes.trim_ascii_end())
        .map_err(|error| format!("not UTF-8 (at byte {})", error.valid_up_to() + 1))
}

/// A mistake in an object.
struct Mistake {
    /// How many bytes are left after the mistake in the text. `None`: the text is no object at all.
    left: Option<usize>,
    why: String,
}

impl Mistake {
    fn at(rest: &str, why: &str) -> Mistake {
        Mistake { left: Some(rest.len()), why: why.to_owned() }
    }

    /// The message, with the place within the whole text, whose end is that of the text that was read.
    fn within(&self, whole: &str) -> String {
        let Mistake { left, why } = self;
        let Some(left) = left else { return format!("not a JSON object: {why}") };
        let before = &whole[..whole.len() - left];
        let line = before.matches('\n').count();
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let line = if line == 0 { String::new() } else { format!("line {} ", line + 1) };
        format!("not a JSON object: {line}column {column}: {why}")
    }
}

/// Reads the JSON object at the beginning of `text` as fields, in its order. Also gives the text after it. A
/// string becomes its text. Any other value becomes its JSON source, so that a number keeps all its digits.
fn object(text: &str) -> Result<(Vec<Field>, &str), Mistake> {
    let Some(rest) = text.strip_prefix('{') else {
        return Err(Mistake { left: None, why: "write {\"name\": \"value\"}".to_owned() });
    };
    let mut rest = rest.trim_ascii_start();
    let mut fields = Vec::new();
    if let Some(after) = rest.strip_prefix('}') {
        return Ok((fields, after));
    }
    loop {
        let (name, _, after) = json::<String>(rest).map_err(|why| Mistake::at(rest, &why))?;
        rest = after.strip_prefix(':').ok_or_else(|| Mistake::at(after, "expected `:`"))?.trim_ascii_start();
        let value = if rest.starts_with('"') {
            let (value, _, after) = json::<String>(rest).map_err(|why| Mistake::at(rest, &why))?;
            rest = after;
            value.into_bytes()
        } else {
            let (_, written, after) = json::<IgnoredAny>(rest).map_err(|why| Mistake::at(rest, &why))?;
            rest = after;
            written.as_bytes().to_vec()
        };
        fields.push(Field { name, value });
        match rest.as_bytes() {
            [b',', ..] => rest = rest[1..].trim_ascii_start(),
            [b'}', ..] => return Ok((fields, &rest[1..])),
            _ => return Err(Mistake::at(rest, "expected `,` or `}`")),
        }
    }
}

/// Parses the JSON value at the beginning of `text`. Gives the value, its source, and the text after it.
fn json<T: DeserializeOwned>(text: &str) -> Result<(T, &str, &str), String> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<T>();
    match values.next() {
        Some(Ok(value)) => {
            let (written, rest) = text.split_at(values.byte_offset());
            Ok((value, written, rest.trim_ascii_start()))
        }
        Some(Err(error)) => {
            // serde_json's position is relative to `text`, so the caller adds its own.
            let message = error.to_string();
            Err(message.split(" at line ").next().unwrap_or_default().to_owned())
        }
        None => Err("it ends too early".into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pairs(fields: &[Field]) -> Vec<(&str, &str)> {
        fields
            .iter()
            .map(|field| (field.name.as_str(), std::str::from_utf8(&field.value).expect("text")))
            .collect()
    }

    fn said(failure: CommandError) -> String {
        match failure {
            CommandError::Failed(error) => format!("{error:#}"),
            CommandError::Usage(text) => format!("usage: {text}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_mark_of_utf_8_is_skipped() {
        let text = "\u{feff}{\"a\": 1}\n\u{feff}\n\u{feff}{\"a\": 2}\n";
        let lines =
            JsonLines { file: spool(&mut text.as_bytes()).expect("a file"), name: "tasks.jsonl".into() };
        let tasks: Vec<JsonLine> = lines
            .tasks(Duration::ZERO)
            .expect("a file")
            .collect::<Result<_, _>>()
            .map_err(said)
            .expect("tasks");
        assert_eq!(tasks.iter().map(|line| line.number).collect::<Vec<_>>(), [1, 3]);
        let list = whole_objects("\u{feff}[{\"a\": 1}]".as_bytes(), "t.json").map_err(said).expect("a list");
        assert_eq!(list.len(), 1);
    }

    #[test]
    fn one_task_or_a_list_of_them() {
        let read = |text: &str| whole_objects(text.as_bytes(), "t.json").map_err(said);
        assert_eq!(read(" {\"a\": 1}\n").expect("one").len(), 1);
        let tasks = read("[ {\"a\": 1.50},\n {\"a\": [1, {}]} ]\n").expect("two");
        assert_eq!(
            tasks.iter().map(|task| pairs(task)).collect::<Vec<_>>(),
            [[("a", "1.50")], [("a", "[1, {}]")]]
        );
        for (text, why) in [
            ("[]", "t.json: the list has no task"),
            ("[{},]", "t.json: task 2 is missing after the comma"),
            ("[{}, 5]", "t.json: task 2: not a JSON object"),
            ("[{} {}]", "t.json: task 1: expected `,` or `]` after it"),
            ("[{}", "t.json: task 1: expected `,` or `]` after it"),
            ("[{}] x", "t.json: something follows the list"),
            ("[{\"a\": }]", "t.json: task 1: not a JSON object: column 8: "),
            ("[", "t.json: task 1: it ends too early"),
            ("\n [{},\n  {\"a\" 1}]", "t.json: task 2: not a JSON object: line 3 column 8: expected `:`"),
        ] {
            let found = read(text).expect_err(text);
            assert!(found.contains(why), "{text}: {found}");
        }
    }

    #[test]
    fn fields_from_arguments() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("cv.bin");
        std::fs::write(&path, [0xff, b'\n']).expect("write");
        let from_file = field(format!("content=@{}", path.display()).as_ref()).expect("a field");
        assert_eq!(from_file, Field { name: "content".into(), value: vec![0xff, b'\n'] });
        for (arg, name, value) in [
            ("a=1", "a", "1"),
            ("a=", "a", ""),
            ("a=b=c", "a", "b=c"),
            ("a=@@home", "a", "@home"),
            ("a=@@", "a", "@"),
        ] {
            assert_eq!(field(arg.as_ref()).expect(arg), Field { name: name.into(), value: value.into() });
            assert_eq!(file_of(arg.as_ref()), None, "{arg}");
        }
        for (arg, path) in
            [("a=@x/y.txt", Some("x/y.txt")), ("a=@x=@y", Some("x=@y")), ("a=@", None), ("@x", None)]
        {
            assert_eq!(file_of(arg.as_ref()), path.map(Path::new), "{arg}");
        }
        assert_eq!(field(OsStr::from_bytes(b"a=\xff")).expect("bytes").value, [0xff]);
    }

    #[test]
    fn bad_arguments_say_what_to_write() {
        for (arg, why) in [
            ("content", "usage: \"content\" is not a field: write name=value or name=@file"),
            ("=x", "usage: \"=x\" has no name"),
            ("a=@", "usage: field a: no file is named after @"),
            ("cv=@/no/such.txt", "field cv: cannot read /no/such.txt: No such file"),
        ] {
            let told = said(field(arg.as_ref()).expect_err(arg));
            assert!(told.contains(why), "{told}");
        }
    }

    #[test]
    fn values_are_taken_as_they_are_written() {
        let line = concat!(
            r#"{"s": "ü\n\"", "n":123456789012345678901.50, "b" :true,"#,
            r#""z":null, "o": {"x": [1, "}"]}, "n": -1e2 }"#
        );
        let expected = [
            ("s", "ü\n\""),
            ("n", "123456789012345678901.50"),
            ("b", "true"),
            ("z", "null"),
            ("o", r#"{"x": [1, "}"]}"#),
            ("n", "-1e2"),
        ];
        assert_eq!(pairs(&only_object(line.as_bytes()).expect("fields")), expected);
    }

    #[test]
    fn bad_lines_say_where() {
        for (line, why) in [
            ("[1]", "not a JSON object: write"),
            ("{\"a\":1", "column 7: expected `,` or `}`"),
            ("{\"a\":1,}", "column 8:"),
            ("{\"a\" 1}", "column 6: expected `:`"),
            ("{a:1}", "column 2:"),
            ("{\"a\":tru}", "column 6: expected ident"),
            ("{\"a\":1} {\"b\":2}", "column 8: something follows"),
            ("{\"a\":\"x", "column 6: EOF while parsing a string"),
        ] {
            let told = only_object(line.as_bytes()).expect_err(line);
            assert!(told.contains(why), "{line}: {told}");
        }
        assert!(only_object(b"{\"a\":\"\xff\"}").expect_err("bytes").contains("not UTF-8 (at byte 7)"));
    }

    #[test]
    fn an_object_may_have_many_lines() {
        let fields = whole_objects(b"\n{\n  \"a\": \"x\",\n  \"b\": [1,\n 2]\n}\n", "t.json")
            .expect("fields")
            .remove(0);
        assert_eq!(pairs(&fields), [("a", "x"), ("b", "[1,\n 2]")]);
        let told = |text: &str| said(whole_objects(text.as_bytes(), "t.json").expect_err(text));
        assert_eq!(
            told("{\n  \"a\": 1\n  \"b\": 2\n}"),
            "t.json: not a JSON object: line 3 column 3: expected `,` or `}`"
        );
        assert!(told("").starts_with("t.json: not a JSON object: write"));
        assert!(told("{\"a\":").ends_with("column 6: it ends too early"));
        assert!(told("\n {} {}").ends_with("line 2 column 4: something follows the object"));
    }

    fn lines_of(text: &[u8]) -> JsonLines {
        JsonLines { file: spool(&mut &text[..]).expect("a file"), name: "tasks.jsonl".into() }
    }

    #[test]
    fn a_file_is_read_again_from_its_beginning() {
        let lines = lines_of(b"{\"a\":1}\n\n  {\"a\":2}\r\n{\"a\":3}");
        for _ in 0..2 {
            let numbers: Vec<u64> = lines
                .tasks(Duration::ZERO)
                .expect("a file")
                .map(|task| task.expect("a task").number)
                .collect();
            assert_eq!(numbers, [1, 3, 4]);
        }
    }

    #[test]
    fn a_bad_line_is_named() {
        let told = |text: &[u8]| {
            let lines = lines_of(text);
            let found = lines.tasks(Duration::ZERO).expect("a file").find_map(Result::err);
            said(found.expect("an error"))
        };
        assert!(told(b"{\"a\":1}\n\nx\n").starts_with("tasks.jsonl line 3: not a JSON object"));
        assert!(
            told(b"  {\"a\" 1}\n").starts_with("tasks.jsonl line 1: not a JSON object: column 8: expected")
        );
        assert_eq!(told(b"{}"), "tasks.jsonl line 1: a task needs at least one field");
        assert!(told(b"{\"tq-id\":\"1\"}").contains("line 1: field `tq-id`"));
        let long = [b"{\"a\":1}\n{\"a\":\"".as_slice(), &vec![b'x'; MAX_LINE as usize], b"\"}\n{}"].concat();
        assert_eq!(told(&long), "tasks.jsonl line 2: it is longer than 16 MiB");
    }

    proptest! {
        #[test]
        fn what_serde_writes_is_read(
            values in prop::collection::vec(("\\PC{0,6}", "\\PC{0,12}", any::<Option<f64>>()), 1..6)
        ) {
            let mut line = String::from("{");
            let mut expected = Vec::new();
            for (index, (name, text, number)) in values.iter().enumerate() {
                let value =
                    number.map_or_else(|| serde_json::json!(text), |number| serde_json::json!(number));
                line += &format!("{}{}: {value}", if index == 0 { "" } else { "," }, serde_json::json!(name));
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                expected.push(Field { name: name.clone(), value: value.into_bytes() });
            }
            line.push('}');
            prop_assert_eq!(only_object(line.as_bytes()), Ok(expected));
        }

        #[test]
        fn any_line_is_read_or_refused(line in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = only_object(&line);
        }
    }
}
