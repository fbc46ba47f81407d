//! The build of a plugin's file, which the file itself tells, or else the file `NAME.json` beside it.
//!
//! In: the path of a plugin's file and its bytes. Out: the build. It is foreign text, which people are shown,
//! and does not keep a version from running. Blocking.
//!
//! Not here: the section of the file (`sandbox::build_section`), the words of a build (`builds`).

use std::path::Path;

use serde_json::Value;

use crate::builds::BuildNote;
use crate::file::{self, Found};
use crate::sandbox::build_in;

/// The largest file that is read.
const MAX_BYTES: u64 = 64 << 10;

/// The build of the version with these bytes and this digest. The error says why it is not known.
pub(crate) fn build_of(path: &Path, wasm: &[u8], digest: &str) -> Result<BuildNote, String> {
    match build_in(wasm)? {
        Some(build) => Ok(build),
        None => {
            let beside = path.with_extension("json");
            read(&beside, digest).map_err(|why| format!("{} is not read: {why}", beside.display()))
        }
    }
}

fn read(path: &Path, digest: &str) -> Result<BuildNote, String> {
    let bytes = match file::look(path) {
        Found::Missing => return Ok(BuildNote::default()),
        Found::Other(why) => return Err(why.to_owned()),
        Found::File(stamp) if stamp.bytes() > MAX_BYTES => {
            return Err(format!("it has more than {MAX_BYTES} bytes"));
        }
        Found::File(stamp) => file::read(path, stamp).map_err(|error| error.to_string())?,
    };
    let json: Value = match bytes {
        None => return Err("somebody writes to it".to_owned()),
        Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| error.to_string())?,
    };
    match json.get("version") {
        Some(version) if version.as_str() != Some(digest) => {
            Err("its `version` is not the SHA-256 of the plugin's file".to_owned())
        }
        _ => serde_json::from_value(json).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_file_beside_tells_what_the_plugin_does_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.b.wasm");
        let label = |json: &str| {
            fs::write(folder.path().join("a.b.json"), json).expect("write");
            build_of(&path, b"\0asm\x0d\0\x01\0", "39a2").map(|build| build.label)
        };
        assert_eq!(build_of(&path, b"", "39a2"), Ok(BuildNote::default()));
        assert_eq!(label(r#"{"label": "v1.4"}"#), Ok(Some("v1.4".to_owned())));
        assert_eq!(label(r#"{"version": "39a2", "label": "v1.4"}"#), Ok(Some("v1.4".to_owned())));
        for (json, why) in [
            (r#"{"version": "8adb", "label": "v1.3"}"#, "is not the SHA-256"),
            (r#"{"label": "v1"#, "is not read"),
            ("7", "is not read"),
            (&" ".repeat(70_000), "more than 65536 bytes"),
        ] {
            let refused = label(json).expect_err(why);
            assert!(refused.contains(why) && refused.contains("a.b.json"), "{refused}");
        }
        // The plugin's own word counts more.
        let named = crate::sandbox::with_build(
            b"\0asm\x0d\0\x01\0",
            &BuildNote { label: Some("own".to_owned()), ..BuildNote::default() },
        );
        assert_eq!(build_of(&path, &named, "39a2").map(|build| build.label), Ok(Some("own".to_owned())));
    }
}
