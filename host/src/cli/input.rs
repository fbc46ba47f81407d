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
use serde::Deserialize;
use serde_json::value::RawValue;

use super::exit::{CommandError, CommandResult};
use crate::field::without_bom;
use crate::operations::{JsonMembers, text_in};
use crate::queue::NewTask;
use crate::task::Field;

/// The most bytes of a value from a file.
const MAX_VALUE: u64 = 64 << 20;
/// The most bytes of a line of a JSON Lines file.
const MAX_LINE: u64 = 16 << 20;

/// Reads `name=value`, `name=@file` and `name=@@text`.
pub(super) fn field(arg: &OsStr) -> CommandResult<Field> {
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
pub(super) fn stdin() -> CommandResult<Vec<u8>> {
    Ok(bounded(io::stdin().lock()).context("cannot read stdin")?)
}

/// Reads the fields of one JSON object, or of each object of a list. The text may have many lines. An empty
/// list is an error. `name` is the file's name, for errors.
pub(super) fn whole_objects(bytes: &[u8], name: &str) -> CommandResult<Vec<Vec<Field>>> {
    let bytes = without_bom(bytes);
    let read = if bytes.trim_ascii_start().starts_with(b"[") {
        json::<Vec<JsonMembers>>(bytes).and_then(|tasks| tasks.into_iter().map(fields_of).collect())
    } else {
        only_object(bytes).map(|fields| vec![fields])
    };
    match read {
        Ok(tasks) if tasks.is_empty() => Err(anyhow!("{name}: the list has no task").into()),
        read => read.map_err(|why| anyhow!("{name}: {why}").into()),
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
    pub(super) fn open(path: &Path) -> CommandResult<JsonLines> {
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
    ) -> CommandResult<impl Iterator<Item = CommandResult<JsonLine>> + '_> {
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
    ) -> CommandResult<Option<JsonLine>> {
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

/// Reads the fields of a text that is one JSON object.
fn only_object(bytes: &[u8]) -> Result<Vec<Field>, String> {
    if bytes.trim_ascii_start().starts_with(b"{") {
        json(bytes).and_then(fields_of)
    } else {
        Err("not a JSON object: write {\"name\": \"value\"}".to_owned())
    }
}

/// Reads a text that is one JSON value. An error says where it is.
fn json<'j, T: Deserialize<'j>>(bytes: &'j [u8]) -> Result<T, String> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| format!("not UTF-8 (at byte {})", error.valid_up_to() + 1))?;
    serde_json::from_str(text).map_err(|error| {
        let whole = error.to_string();
        let why = whole.rsplit_once(" at line ").map_or(whole.as_str(), |(why, _)| why);
        let line = if error.line() > 1 { format!("line {} ", error.line()) } else { String::new() };
        format!("not a JSON object: {line}column {}: {why}", error.column())
    })
}

/// A string becomes its text. Any other value becomes its JSON source, so that a number keeps all its digits.
fn fields_of(JsonMembers(members): JsonMembers) -> Result<Vec<Field>, String> {
    let field = |(name, source): (String, Box<RawValue>)| {
        let value = match text_in(source.get()) {
            Some(text) => text.map_err(|why| format!("field {name:?}: {why}"))?,
            None => source.get().to_owned(),
        };
        Ok(Field { name, value: value.into_bytes() })
    };
    members.into_iter().map(field).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::testing::table;

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
    fn half_of_a_surrogate_pair_is_an_error() {
        let read = only_object(br#"{"a": "\ud800"}"#).expect_err("no text");
        assert!(read.starts_with("field \"a\": "), "{read}");
    }

    #[test]
    fn one_task_or_a_list_of_them() {
        let read = |text: &str| whole_objects(text.as_bytes(), "t.json").map_err(said);
        let object = "\u{feff}\n{\n  \"a\": \"x\",\n  \"b\": [1,\n 2]\n}\n";
        assert_eq!(pairs(&read(object).expect("one")[0]), [("a", "x"), ("b", "[1,\n 2]")]);
        let tasks = read("[ {\"a\": 1.50},\n {\"a\": [1, {}]} ]\n").expect("two");
        assert_eq!(
            tasks.iter().map(|task| pairs(task)).collect::<Vec<_>>(),
            [[("a", "1.50")], [("a", "[1, {}]")]]
        );
        for (text, why) in [
            ("", "t.json: not a JSON object: write {\"name\": \"value\"}"),
            (
                "{\n  \"a\": 1\n  \"b\": 2\n}",
                "t.json: not a JSON object: line 3 column 3: expected `,` or `}`",
            ),
            ("[]", "t.json: the list has no task"),
            ("[{},]", "t.json: not a JSON object: column 5: trailing comma"),
            ("[{}, 5]", "t.json: not a JSON object: column 6: invalid type: integer"),
            ("[{}] x", "t.json: not a JSON object: column 6: trailing characters"),
            ("\n [{},\n  {\"a\" 1}]", "t.json: not a JSON object: line 3 column 8: expected `:`"),
        ] {
            let found = read(text).expect_err(text);
            assert!(found.starts_with(why), "{text}: {found}");
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
        let lines = ["[1]", "{\"a\":1", "{\"a\" 1}", "{\"a\":tru}", "{\"a\":1} {\"b\":2}", "{\"a\":\"\u{ff}"];
        let told = |line: &[u8]| only_object(line).expect_err("a bad line");
        insta::assert_snapshot!(table(&lines, |line| told(line.as_bytes())), @r#"
        [1]
            not a JSON object: write {"name": "value"}
        {"a":1
            not a JSON object: column 6: EOF while parsing an object
        {"a" 1}
            not a JSON object: column 6: expected `:`
        {"a":tru}
            not a JSON object: column 9: expected ident
        {"a":1} {"b":2}
            not a JSON object: column 9: trailing characters
        {"a":"ÿ
            not a JSON object: column 8: EOF while parsing a string
        "#);
        insta::assert_snapshot!(told(b"{\"a\":\"\xff\"}"), @"not UTF-8 (at byte 7)");
    }

    fn lines_of(text: &[u8]) -> JsonLines {
        JsonLines { file: spool(&mut &text[..]).expect("a file"), name: "tasks.jsonl".into() }
    }

    #[test]
    fn a_file_is_read_again_from_its_beginning() {
        let lines = lines_of("\u{feff}{\"a\":1}\n\n  {\"a\":2}\r\n\u{feff}{\"a\":3}".as_bytes());
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
        let texts = ["{\"a\":1}\n\n  {\"a\" 1}\n", "{}", "{\"tq-id\":\"1\"}"];
        insta::assert_snapshot!(table(&texts, |text| told(text.as_bytes())), @r#"
        {"a":1}

          {"a" 1}

            tasks.jsonl line 3: not a JSON object: column 8: expected `:`
        {}
            tasks.jsonl line 1: a task needs at least one field
        {"tq-id":"1"}
            tasks.jsonl line 1: field `tq-id`: names that start with `tq-` are reserved for tqhost
        "#);
        let long = [b"{\"a\":1}\n{\"a\":\"".as_slice(), &vec![b'x'; MAX_LINE as usize], b"\"}\n{}"].concat();
        insta::assert_snapshot!(told(&long), @"tasks.jsonl line 2: it is longer than 16 MiB");
    }

    proptest! {
        #[test]
        fn json_that_serde_writes_is_read(
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
    }
}
