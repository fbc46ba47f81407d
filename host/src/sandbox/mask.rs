//! Replaces a plugin's secrets in what its handlers write.
//!
//! In: the granted configuration; later bytes that a handler writes. Out: those bytes with [`REPLACEMENT`] in
//! the place of each secret. A secret is a value that comes from the environment or from a file, not from the
//! configuration's own text. A handler gets it unchanged, and may write it by mistake into a log line, an
//! error text or a result.
//!
//! The mask protects against mistakes only. It finds the text of a secret and each of its lines: plain, with
//! the escapes of JSON, HTML and URLs (`unescape`), in the debug output of Rust and Python, and in base64,
//! also within a longer text such as a header of basic authentication. It does not find a secret in another
//! form (hexadecimal, cut in two, encoded twice).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::form_urlencoded;

use super::unescape::{self, Unescaped};
use crate::config::Secret;

/// The text that replaces a secret.
const REPLACEMENT: &str = "[secret]";
/// The shortest secret that is masked, in bytes. A shorter text would be found in unrelated texts.
const SHORTEST: usize = 8;
/// The longest secret that is looked for in base64, in bytes. A longer one is no password, and would make
/// many forms.
const LONGEST_IN_BASE64: usize = 4 * 1024;

/// The characters that are encoded in a URL: all but the unreserved ones (RFC 3986).
const ENCODED_IN_URL: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The characters that `encodeURIComponent` of JavaScript encodes.
const OF_JAVASCRIPT: &AsciiSet =
    &ENCODED_IN_URL.remove(b'!').remove(b'\'').remove(b'(').remove(b')').remove(b'*');
/// The characters that `quote` of Python encodes.
const OF_PYTHON: &AsciiSet = &ENCODED_IN_URL.remove(b'/');

/// The bytes that are unescaped at once, without the overlap with the next step.
const STEP: usize = 256 * 1024;

/// Finds the secrets of one plugin. The default mask finds nothing.
#[derive(Debug, Default)]
pub(super) struct Mask {
    finders: Option<Finders>,
    longest: usize,
}

#[derive(Debug)]
struct Finders {
    /// Finds all forms.
    forms: AhoCorasick,
    /// Finds the plain texts, in bytes whose escapes were resolved.
    plain: AhoCorasick,
}

impl Mask {
    pub(super) fn new(config: &BTreeMap<String, Secret>) -> Mask {
        let texts = config.values().filter(|secret| secret.is_external()).map(Secret::expose);
        // A key of several lines is printed line by line, or with its line breaks escaped.
        let texts = texts.flat_map(|text| std::iter::once(text).chain(text.lines().map(str::trim)));
        let texts = texts.filter(|text| text.len() >= SHORTEST);
        let plain: BTreeSet<&str> = texts.collect();
        let longest_plain = plain.iter().map(|text| text.len()).max().unwrap_or_default();
        let forms: BTreeSet<String> = plain.iter().flat_map(|text| forms(text)).collect();
        let longest = forms.iter().map(String::len).max().unwrap_or_default();
        let finders = (!plain.is_empty()).then(|| Finders { forms: finder(&forms), plain: finder(&plain) });
        Mask { finders, longest: longest.max(longest_plain * unescape::LONGEST) }
    }

    /// The length of the longest form of a secret, in bytes; 0 if there is no secret.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    pub(super) fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.bytes(text.as_bytes()) {
            Cow::Borrowed(_) => text.into(),
            // A secret is text, so the text without it is text, too.
            Cow::Owned(masked) => String::from_utf8_lossy(&masked).into_owned().into(),
        }
    }

    pub(super) fn bytes<'b>(&self, bytes: &'b [u8]) -> Cow<'b, [u8]> {
        let found = self.find(bytes);
        if found.is_empty() {
            return bytes.into();
        }
        let mut masked = Vec::with_capacity(bytes.len());
        let mut from = 0;
        for Range { start, end } in found {
            masked.extend_from_slice(&bytes[from..start]);
            masked.extend_from_slice(REPLACEMENT.as_bytes());
            from = end;
        }
        masked.extend_from_slice(&bytes[from..]);
        masked.into()
    }

    /// The bytes without secrets. They are copied only if there is one.
    pub(super) fn owned(&self, bytes: Vec<u8>) -> Vec<u8> {
        match self.bytes(&bytes) {
            Cow::Owned(masked) => masked,
            Cow::Borrowed(_) => bytes,
        }
    }

    /// Where secrets are, in their order.
    fn find(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        let Some(finders) = &self.finders else { return Vec::new() };
        let mut found: Vec<Range<usize>> =
            finders.forms.find_iter(bytes).map(|found| found.range()).collect();
        if !unescape::may_have(bytes) {
            return found;
        }
        let mut from = 0;
        while from < bytes.len() {
            // The step is longer than [`STEP`], so that a secret that begins before its end is whole in it,
            // also if the step begins within an escape.
            let step = &bytes[from..(from + STEP + self.longest + unescape::LONGEST).min(bytes.len())];
            let plain = Unescaped::of(step);
            let in_step = finders.plain.find_iter(&plain.bytes).map(|found| plain.original(found.range()));
            found.extend(in_step.map(|range| from + range.start..from + range.end));
            from += STEP;
        }
        found.sort_by_key(|range| (range.start, range.end));
        found.dedup_by(|next, last| {
            let overlaps = next.start < last.end;
            if overlaps {
                last.end = last.end.max(next.end);
            }
            overlaps
        });
        found
    }
}

fn finder(texts: &BTreeSet<impl AsRef<[u8]>>) -> AhoCorasick {
    // The default kind takes a kilobyte for each byte of a long key.
    let kind = AhoCorasickKind::ContiguousNFA;
    let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).kind(Some(kind)).build(texts);
    finder.expect("a secret has 64 KiB at most, far from the 2 GiB that cannot be looked for")
}

/// All forms in which a secret is looked for.
fn forms(text: &str) -> impl Iterator<Item = String> {
    [text.to_owned()].into_iter().chain(written(text)).chain(in_url(text)).chain(in_base64(text))
}

/// The encoded forms of a text in a URL, and in the body of an HTML form.
fn in_url(text: &str) -> [String; 4] {
    let [strict, javascript, python] =
        [ENCODED_IN_URL, OF_JAVASCRIPT, OF_PYTHON].map(|set| utf8_percent_encode(text, set).to_string());
    [strict, javascript, python, form_urlencoded::byte_serialize(text.as_bytes()).collect()]
}

/// The base64 forms of a text, in both alphabets and at each offset in the encoded bytes. The first and last
/// digits may depend on the neighbouring bytes, so they are left out.
fn in_base64(text: &str) -> impl Iterator<Item = String> {
    let text = (text.len() <= LONGEST_IN_BASE64).then_some(text);
    text.into_iter().flat_map(|text| {
        (0..3).flat_map(move |before| {
            let bytes = [&[0; 3][..before], text.as_bytes()].concat();
            // A digit is six bits.
            let own = (before * 8).div_ceil(6)..bytes.len() * 8 / 6;
            [STANDARD_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)]
                .map(|digits| digits[own.clone()].to_owned())
        })
    })
}

/// The forms of a text between quotes: in JSON, in ASCII-only JSON (Python's default), and in the debug
/// output of Rust and of Python.
fn written(text: &str) -> [String; 5] {
    let json = serde_json::Value::from(text).to_string();
    let json = json[1..json.len() - 1].to_owned();
    let mut ascii = String::with_capacity(json.len());
    for c in json.chars() {
        if matches!(c, ' '..='~') {
            ascii.push(c);
        } else {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| ascii.push_str(&format!("\\u{unit:04x}")));
        }
    }
    let python = text.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t");
    let rust = format!("{text:?}");
    let rust = rust[1..rust.len() - 1].to_owned();
    [json, ascii, rust, python.replace('\'', "\\'"), python]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(secrets: &[&str]) -> Mask {
        let named = secrets.iter().enumerate().map(|(n, text)| (n.to_string(), Secret::external(*text)));
        Mask::new(&named.collect())
    }

    #[test]
    fn secrets_are_taken_out_wherever_they_stand() {
        let mask = mask(&["hunter2-of-the-echo", "hunter2-of", "bücher🔑bücher"]);
        for (said, shown) in [
            ("", ""),
            ("nothing of it", "nothing of it"),
            ("hunter2-of-the-echo", "[secret]"),
            ("a hunter2-of-the-echohunter2-of b", "a [secret][secret] b"),
            ("hunter2-of-the-ech", "[secret]-the-ech"),
            ("{\"key\":\"bücher🔑bücher\"}", "{\"key\":\"[secret]\"}"),
        ] {
            assert_eq!(mask.text(said), shown);
            assert_eq!(mask.bytes(said.as_bytes()), shown.as_bytes());
        }
        assert_eq!(mask.bytes(b"\xff\xfehunter2-of\xff"), b"\xff\xfe[secret]\xff".as_slice());
        assert_eq!(mask.longest(), "hunter2-of-the-echo".len() * unescape::LONGEST);
    }

    #[test]
    fn a_key_of_several_lines_is_found_line_by_line() {
        let mask = mask(&["-----BEGIN KEY-----\n  MIIEvQIBADAN  \nshort\n-----END KEY-----"]);
        assert_eq!(mask.text("key: MIIEvQIBADAN\\nshort"), "key: [secret]\\nshort");
    }

    #[test]
    fn a_secret_between_quotes_is_found_however_it_is_written() {
        let secret = "pa\"ss\\word'ü🔑\n2nd-line-of-it";
        let mask = mask(&[secret]);
        let mut ascii = String::new();
        for unit in serde_json::to_string(secret).unwrap().encode_utf16() {
            if unit < 128 {
                ascii.push(unit as u8 as char);
            } else {
                ascii.push_str(&format!("\\u{unit:04x}"));
            }
        }
        // Python escapes one kind of quotes, since the text has both.
        let python = "'pa\"ss\\\\word\\'ü🔑\\n2nd-line-of-it'".to_owned();
        for said in [serde_json::json!({ "key": secret }).to_string(), ascii, format!("{secret:?}"), python] {
            let shown = mask.text(&said).into_owned();
            assert!(
                !shown.contains("ss") && !shown.contains("2nd") && shown.contains("[secret]"),
                "{said} is {shown}"
            );
        }
    }

    #[test]
    fn a_secret_is_found_with_the_escapes_of_other_formats() {
        let secret = "a/key&with<more>of\"it'+ü";
        let mask = mask(&[secret]);
        for said in [
            // JSON of Go, of PHP and of C#.
            r#"a/key\u0026with\u003cmore\u003eof\"it'+ü"#,
            r#"a\/key&with<more>of\"it'+\u00fc"#,
            r"a/key\u0026with\u003Cmore\u003Eof\u0022it\u0027\u002B\u00FC",
            // HTML of Go, of Python and of PHP.
            "a/key&amp;with&lt;more&gt;of&#34;it&#39;+ü",
            "a/key&amp;with&lt;more&gt;of&quot;it&#x27;+ü",
            "a/key&amp;with&lt;more&gt;of&quot;it&#039;+&#252;",
            "a%2fkey%26with%3cmore%3eof%22it%27%2b%c3%bc",
        ] {
            assert_eq!(mask.text(&format!("{{\"key\": {said}}}")), "{\"key\": [secret]}", "{said}");
        }
        // It may lie across the end of a step.
        for before in STEP - 60..STEP + 60 {
            let said = format!("{}a\\/key&amp;with<more>of\"it'+ü.", "x".repeat(before));
            assert!(mask.text(&said).ends_with("x[secret]."), "{before}");
        }
    }

    #[test]
    fn a_secret_in_a_url_is_found_however_it_is_encoded() {
        let secret = "a key/with (a few)*+~ü";
        let mask = mask(&[secret]);
        for said in [
            "a%20key%2Fwith%20%28a%20few%29%2A%2B~%C3%BC",
            "a%20key%2Fwith%20(a%20few)*%2B~%C3%BC",
            "a%20key/with%20%28a%20few%29%2A%2B~%C3%BC",
            "a+key%2Fwith+%28a+few%29*%2B%7E%C3%BC",
        ] {
            assert_eq!(mask.text(&format!("GET /?key={said}&n=1")), "GET /?key=[secret]&n=1", "{said}");
        }
    }

    #[test]
    fn a_secret_in_base64_is_found_wherever_it_begins() {
        // Its base64 has digits that differ between the two alphabets.
        let secret = "pass>>>word???ü";
        let mask = mask(&[secret]);
        for before in 0..7 {
            for after in 0..4 {
                let bytes = format!("{}{secret}{}", "u".repeat(before), "z".repeat(after));
                for said in [STANDARD_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)] {
                    let shown = mask.text(&said).into_owned();
                    let left = shown.replace(REPLACEMENT, "");
                    // The neighbouring bytes are left, and up to two digits at each end of the secret.
                    assert!(
                        shown.contains(REPLACEMENT) && left.len() <= (before + after) * 8 / 6 + 4,
                        "{bytes}: {said} is {shown}"
                    );
                }
            }
        }
        assert_eq!(mask.text("Basic bWU6cGFzcz4+PndvcmQ/Pz/DvA=="), "Basic bWU6[secret]A==");
        // A long secret is not looked for in base64.
        let long = Mask::new(&BTreeMap::from([("key".to_owned(), Secret::external("long ".repeat(1000)))]));
        assert!(long.text(&STANDARD_NO_PAD.encode("long ".repeat(1000))).starts_with("bG9u"));
    }

    #[test]
    fn short_values_and_words_of_the_configuration_are_left() {
        let config = [("model", Secret::new("a-long-name-of-a-model")), ("pin", Secret::external("1234567"))];
        let mask = Mask::new(&config.map(|(name, secret)| (name.to_owned(), secret)).into());
        assert_eq!(mask.text("a-long-name-of-a-model 1234567"), "a-long-name-of-a-model 1234567");
        assert_eq!(mask.longest(), 0);
        assert!(matches!(mask.bytes(b"x"), Cow::Borrowed(_)));
    }
}
