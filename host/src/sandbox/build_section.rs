//! The custom section of a handler's file that tells about its build.
//!
//! In: the bytes of a file, which are foreign. Out: the build that the section names, or the file with
//! another section. A component and a core module have the same frame: a header of 8 bytes, then sections,
//! each with its kind, its size and its content.
//!
//! Not here: the words of a build (`builds`), the file beside the handler (`plugins::build_file`).

use std::ops::Range;

use wasmparser::{BinaryReader, BinaryReaderError};

use crate::builds::BuildNote;

/// The name of the section.
const NAME: &str = "tqhost-version";
/// The most bytes of its content.
const MAX_BYTES: usize = 4096;
/// The magic number and the version.
const HEADER: usize = 8;
/// The kind of custom sections.
const CUSTOM: u8 = 0;

/// The build that the section names. None if there is no such section. The error says why it is not read.
pub(crate) fn build_in(wasm: &[u8]) -> Result<Option<BuildNote>, String> {
    let (mut sections, mut content) = (0_usize, &[][..]);
    // A file that is cut off is no error here: the loader of the file refuses it.
    let _ = each(wasm, |_, found| {
        (sections, content) = (sections + 1, found);
    });
    let refused = |why: String| Err(format!("its section {NAME} is not read: {why}"));
    match sections {
        0 => Ok(None),
        1 if content.len() > MAX_BYTES => refused(format!("it has more than {MAX_BYTES} bytes")),
        1 => serde_json::from_slice(content).map(Some).or_else(|error| refused(error.to_string())),
        sections => refused(format!("there are {sections} of them")),
    }
}

/// The file with this build in place of its earlier one.
pub(crate) fn with_build(wasm: &[u8], build: &BuildNote) -> Vec<u8> {
    let content = serde_json::to_vec(build).unwrap_or_default();
    let mut section = leb128(NAME.len());
    section.extend(NAME.bytes());
    section.extend(content);
    let mut file = without_build(wasm);
    file.push(CUSTOM);
    file.extend(leb128(section.len()));
    file.extend(section);
    file
}

/// The file without the section.
pub(crate) fn without_build(wasm: &[u8]) -> Vec<u8> {
    let (mut file, mut done) = (Vec::with_capacity(wasm.len()), 0);
    let _ = each(wasm, |range, _| {
        file.extend(&wasm[done..range.start]);
        done = range.end;
    });
    file.extend(&wasm[done..]);
    file
}

/// Visits each section of this name: its place in the file, and its content.
fn each<'w>(wasm: &'w [u8], mut visit: impl FnMut(Range<usize>, &'w [u8])) -> Result<(), BinaryReaderError> {
    let mut file = BinaryReader::new(wasm, 0);
    file.read_bytes(HEADER)?;
    while !file.eof() {
        let start = file.original_position();
        let kind = file.read_u8()?;
        let bytes = file.read_var_u32()? as usize;
        let mut section = BinaryReader::new(file.read_bytes(bytes)?, 0);
        if kind == CUSTOM && section.read_string().is_ok_and(|name| name == NAME) {
            let rest = section.bytes_remaining();
            visit(start..file.original_position(), section.read_bytes(rest)?);
        }
    }
    Ok(())
}

/// A number in LEB128.
pub(super) fn leb128(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";

    fn custom(name: &str, content: &[u8]) -> Vec<u8> {
        let section = [&leb128(name.len())[..], name.as_bytes(), content].concat();
        [&[CUSTOM][..], &leb128(section.len()), &section].concat()
    }

    fn build(label: &str) -> BuildNote {
        BuildNote { label: Some(label.to_owned()), ..BuildNote::default() }
    }

    #[test]
    fn a_build_replaces_the_one_before_and_nothing_else() {
        let file = [EMPTY, &custom("a", b"first"), &custom(NAME, b"{}"), &custom("b", &[7; 300])].concat();
        let bare = [EMPTY, &custom("a", b"first"), &custom("b", &[7; 300])].concat();
        assert_eq!(without_build(&file), bare);
        let first = with_build(&file, &build("v1"));
        let second = with_build(&first, &build("v2"));
        assert_eq!(build_in(&second), Ok(Some(build("v2"))));
        assert_eq!(without_build(&second), bare);
        assert_eq!((build_in(&bare), build_in(b"no wasm")), (Ok(None), Ok(None)));
    }

    #[test]
    fn a_hostile_section_is_not_read() {
        let with = |content: &[u8]| [EMPTY, &custom(NAME, content)].concat();
        let long = format!("{{\"label\":\"{}\"}}", "x".repeat(MAX_BYTES));
        let twice = [with(b"{\"label\":\"v1\"}"), custom(NAME, b"{\"label\":\"v2\"}")].concat();
        let told = [
            with(long.as_bytes()),
            with(b"{\"label\":\"\xff\xfe\"}"),
            with(b"7"),
            with("[".repeat(4000).as_bytes()),
            with(b"{\"label\":\"v1\",\"label\":\"v2\"}"),
            twice,
        ]
        .map(|file| build_in(&file).expect_err("hostile"));
        insta::assert_snapshot!(told.join("\n"), @"
        its section tqhost-version is not read: it has more than 4096 bytes
        its section tqhost-version is not read: invalid unicode code point at line 1 column 11
        its section tqhost-version is not read: invalid type: integer `7`, expected struct ForeignBuild at \
        line 1 column 1
        its section tqhost-version is not read: recursion limit exceeded at line 1 column 128
        its section tqhost-version is not read: duplicate field `label` at line 1 column 21
        its section tqhost-version is not read: there are 2 of them
        ");
        // The sections of a file that ends in the middle are those before its end.
        let cut = [EMPTY, &custom(NAME, b"{\"label\":\"v1\"}"), &[1, 0xff, 0xff]].concat();
        assert_eq!(build_in(&cut), Ok(Some(build("v1"))));
        assert_eq!(without_build(&cut), [EMPTY, &[1, 0xff, 0xff]].concat());
    }
}
