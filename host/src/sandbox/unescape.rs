//! Resolves the escapes of other formats in a text, so that a secret is found however it was written.
//!
//! In: bytes. Out: the bytes with plain characters in place of the escapes of JSON (`\u0026`, `\/`), of HTML
//! (`&amp;`, `&#38;`) and of URLs (`%26`), and the original place of each of them. An escape that is not
//! well-formed stays as it is.
//!
//! Not here: the search for secrets (`mask`).

use std::ops::Range;

/// The longest escape of one byte of a text, such as `&#x0026;`.
pub(super) const LONGEST: usize = 8;

/// The names of HTML's entities for the characters that every encoder escapes.
const ENTITIES: [(&[u8], char); 6] =
    [(b"amp", '&'), (b"lt", '<'), (b"gt", '>'), (b"quot", '"'), (b"apos", '\''), (b"sol", '/')];

/// A text without its escapes.
pub(super) struct Unescaped {
    pub(super) bytes: Vec<u8>,
    /// The ends of the escapes: each one in `bytes`, and in the original.
    ends: Vec<(usize, usize)>,
}

/// Whether there may be an escape.
pub(super) fn may_have(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b'\\' | b'&' | b'%'))
}

impl Unescaped {
    pub(super) fn of(text: &[u8]) -> Unescaped {
        let mut found = Unescaped { bytes: Vec::with_capacity(text.len()), ends: Vec::new() };
        let mut at = 0;
        while let Some(byte) = text.get(at) {
            let rest = &text[at + 1..];
            let escape = match byte {
                b'\\' => backslash(rest),
                b'&' => entity(rest),
                b'%' => percent(rest),
                _ => None,
            };
            match escape {
                None => {
                    found.bytes.push(*byte);
                    at += 1;
                }
                Some((meant, length)) => {
                    match meant {
                        EscapeMeaning::Char(c) => found.bytes.extend(c.encode_utf8(&mut [0; 4]).bytes()),
                        EscapeMeaning::Byte(byte) => found.bytes.push(byte),
                    }
                    at += 1 + length;
                    found.ends.push((found.bytes.len(), at));
                }
            }
        }
        found
    }

    /// The range of the original for a range of `bytes`. Its escapes are whole.
    pub(super) fn original(&self, range: Range<usize>) -> Range<usize> {
        self.place(range.start)..self.place(range.end)
    }

    fn place(&self, at: usize) -> usize {
        let before = self.ends.partition_point(|(end, _)| *end <= at);
        let (end, original) = before.checked_sub(1).map_or((0, 0), |last| self.ends[last]);
        original + (at - end)
    }
}

enum EscapeMeaning {
    Char(char),
    /// A part of a character.
    Byte(u8),
}

/// The meaning of an escape that begins with a backslash, and the number of bytes behind the backslash.
fn backslash(rest: &[u8]) -> Option<(EscapeMeaning, usize)> {
    let plain = |c| Some((EscapeMeaning::Char(c), 1));
    match rest.first()? {
        b'n' => plain('\n'),
        b'r' => plain('\r'),
        b't' => plain('\t'),
        byte @ (b'"' | b'\'' | b'\\' | b'/') => plain(char::from(*byte)),
        b'x' => Some((EscapeMeaning::Char(char::from(u8::try_from(number(rest.get(1..3)?, 16)?).ok()?)), 3)),
        b'u' => {
            let unit =
                |at: usize| number(rest.get(at..at + 4)?, 16).and_then(|unit| u16::try_from(unit).ok());
            let first = unit(1)?;
            if let Some(c) = char::from_u32(first.into()) {
                return Some((EscapeMeaning::Char(c), 5));
            }
            let second = rest.get(5..7).filter(|next| next == b"\\u").and_then(|_| unit(7))?;
            let c = char::decode_utf16([first, second]).next()?.ok()?;
            Some((EscapeMeaning::Char(c), 11))
        }
        _ => None,
    }
}

/// The meaning of an escape that begins with `&`, and the number of bytes behind the `&`.
fn entity(rest: &[u8]) -> Option<(EscapeMeaning, usize)> {
    let length = rest.iter().take(LONGEST).position(|byte| *byte == b';')?;
    let c = match &rest[..length] {
        [b'#', b'x' | b'X', digits @ ..] => char::from_u32(number(digits, 16)?)?,
        [b'#', digits @ ..] => char::from_u32(number(digits, 10)?)?,
        name => ENTITIES.iter().find(|(known, _)| *known == name)?.1,
    };
    Some((EscapeMeaning::Char(c), length + 1))
}

/// The meaning of an escape that begins with `%`, and the number of bytes behind the `%`.
fn percent(rest: &[u8]) -> Option<(EscapeMeaning, usize)> {
    let byte = u8::try_from(number(rest.get(..2)?, 16)?).ok()?;
    Some((EscapeMeaning::Byte(byte), 2))
}

fn number(digits: &[u8], radix: u32) -> Option<u32> {
    // A sign is no digit.
    let text =
        std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|d| d.is_ascii_alphanumeric()))?;
    u32::from_str_radix(text, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_escape_is_resolved_and_its_place_is_known() {
        let table = [
            ("a\\u0026b", "a&b"),
            ("\\u003cB\\u003E", "<B>"),
            ("a\\/b", "a/b"),
            ("\\ud83d\\udd11", "🔑"),
            ("&amp;&lt;&gt;&quot;&#39;&#x27;&#x0026;", "&<>\"''&"),
            ("a%2fb%2F%c3%BC", "a/b/ü"),
            ("\\x27\\n\\\\", "'\n\\"),
        ];
        for (text, plain) in table {
            let found = Unescaped::of(text.as_bytes());
            assert_eq!(String::from_utf8_lossy(&found.bytes), plain);
            assert_eq!(found.original(0..plain.len()), 0..text.len(), "{text}");
        }
        let found = Unescaped::of(b"ab&amp;cd%2fe");
        assert_eq!(found.bytes, b"ab&cd/e");
        assert_eq!((found.original(2..3), found.original(3..5), found.original(6..7)), (2..7, 7..9, 12..13));
    }

    #[test]
    fn text_without_escapes_stays() {
        for text in [
            "\\",
            "\\q",
            "\\u12",
            "\\ud83d",
            "\\ud83d\\n",
            "&",
            "&;",
            "&nope;",
            "&#+1;",
            "%",
            "%2",
            "%+1",
            "&#x110000;",
        ] {
            let found = Unescaped::of(text.as_bytes());
            let expected: &[u8] = if text == "\\ud83d\\n" { b"\\ud83d\n" } else { text.as_bytes() };
            assert_eq!(found.bytes, expected, "{text}");
        }
    }
}
