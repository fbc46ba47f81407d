//! The names of blobs, and the content types that go with them.
//!
//! In: texts of a guest. Out: a [`BlobName`], which every store takes and which cannot leave its prefix; or
//! why the text is refused.

/// Bytes of a whole name. Every store allows twice as many, and the rest is for the prefix.
const MAX_NAME: usize = 512;
/// Bytes between two slashes. A local file has at most 255, some of them for a suffix while it is written.
const MAX_PART: usize = 200;
const MAX_CONTENT_TYPE: usize = 200;
/// The characters that a name may have beside letters, digits and slashes.
const MARKS: &[u8] = b"._-+=@:,";
/// The content type of a blob that was given none.
const UNKNOWN_TYPE: &str = "application/octet-stream";

/// A checked name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlobName(pub(super) String);

impl BlobName {
    pub(crate) fn new(name: String) -> Result<BlobName, String> {
        if name.is_empty() {
            return Err("the name is empty".into());
        }
        if name.len() > MAX_NAME {
            return Err(format!("the name has {} bytes; it may have {MAX_NAME}", name.len()));
        }
        for part in name.split('/') {
            let why = match part {
                "" => "begins or ends with `/`, or has two of them in a row",
                "." | ".." => "has a part `.` or `..`",
                _ if part.len() > MAX_PART => "has a part of more than 200 bytes",
                _ if !part.bytes().all(|byte| byte.is_ascii_alphanumeric() || MARKS.contains(&byte)) => {
                    "may have only letters of ASCII, digits, `._-+=@:,` and `/`"
                }
                _ => continue,
            };
            return Err(format!("the name \"{}\" {why}", name.escape_debug()));
        }
        Ok(BlobName(name))
    }
}

/// Checks a content type, which becomes a header.
pub(crate) fn content_type(text: String) -> Result<String, String> {
    if text.is_empty() {
        return Ok(UNKNOWN_TYPE.to_owned());
    }
    let is_plain = text.len() <= MAX_CONTENT_TYPE && text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    match text.split_once('/') {
        Some((kind, rest)) if is_plain && !kind.trim().is_empty() && !rest.trim().is_empty() => Ok(text),
        _ => Err("the content type is not one like \"text/csv; charset=utf-8\"".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_prefix() {
        let (part, name) = ("x".repeat(200), vec!["x".repeat(127); 4].join("/"));
        for name in ["a", "a/b.csv", "1700-0/report.csv", "..a", "a..", "a:b@c+d=e,f", &part, &name] {
            assert_eq!(BlobName::new(name.to_owned()).map(|name| name.0).as_deref(), Ok(name));
        }
        let (part, name) = ("x".repeat(201), vec!["x".repeat(128); 4].join("/"));
        for (name, why) in [
            ("", "is empty"),
            ("..", "has a part `.` or `..`"),
            ("../b/report.csv", "has a part `.` or `..`"),
            ("a/../../b", "has a part `.` or `..`"),
            ("a/./b", "has a part `.` or `..`"),
            ("/etc/passwd", "begins or ends with `/`"),
            ("a/", "begins or ends with `/`"),
            ("a//b", "two of them in a row"),
            ("a\\b", "may have only"),
            ("a%2e%2e", "may have only"),
            ("a b", "may have only"),
            ("a\0b", "may have only"),
            ("a#1", "may have only"),
            ("a?x", "may have only"),
            ("ä", "may have only"),
            (&part, "more than 200 bytes"),
            (&name, "it may have 512"),
        ] {
            let found = BlobName::new(name.to_owned()).expect_err(name);
            assert!(found.contains(why), "{name}: {found}");
        }
    }

    #[test]
    fn a_content_type_is_no_other_header() {
        assert_eq!(content_type(String::new()).as_deref(), Ok(UNKNOWN_TYPE));
        assert_eq!(content_type("text/csv; charset=utf-8".into()).as_deref(), Ok("text/csv; charset=utf-8"));
        for bad in ["csv", "/csv", "text/", "text/csv\r\nx: y", "text/ä", &format!("a/{}", "b".repeat(200))]
        {
            assert!(content_type(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
