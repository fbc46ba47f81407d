//! Decompresses an answer, and turns text in windows-1252 into UTF-8.
//!
//! In: a response, whose body is changed. Out: why it cannot be read, if so. A request asks for
//! answers without any coding, but proxies that always compress do so all the same.
//!
//! Not here: what the answer means (`answer`).

use std::io::Read;

use tqhost_handler::http::Response;

/// The most bytes of an answer when it is no longer compressed: the default of the host's
/// `max_response_body`. A small answer may become a very large one.
pub const MOST: usize = 16 << 20;
/// Codings of one answer, one around the other.
const MAX_CODINGS: usize = 4;

/// The names under which servers send windows-1252, Latin-1 or ASCII, which are read alike.
const WESTERN: [&str; 18] = [
    "windows-1252",
    "x-cp1252",
    "cp1252",
    "iso-8859-1",
    "iso8859-1",
    "iso88591",
    "iso_8859-1",
    "iso_8859-1:1987",
    "iso-ir-100",
    "latin1",
    "latin-1",
    "l1",
    "csisolatin1",
    "cp819",
    "ibm819",
    "us-ascii",
    "ascii",
    "ansi_x3.4-1968",
];
/// The names under which servers send UTF-8.
const UTF_8: [&str; 4] = ["utf-8", "utf8", "utf8mb4", "unicode-1-1-utf-8"];

/// The characters of windows-1252 from 0x80 to 0x9f. The others are those of Latin-1. Browsers read all that
/// is called Latin-1 so.
const WINDOWS: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}', '\u{90}',
    '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
];

/// Takes the codings off the body, and makes it UTF-8 if it is text in windows-1252. Text in another charset
/// is an error that names it: nobody could read it where it is shown.
pub fn make_plain(response: &mut Response) -> Result<(), String> {
    let codings = codings(response);
    if codings.len() > MAX_CODINGS {
        return Err(format!("the answer has {} codings, one around the other", codings.len()));
    }
    // The last one was applied last.
    for coding in codings.iter().rev() {
        response.body = decoded(coding, &response.body)?;
    }
    let Some(charset) = charset(response) else { return Ok(()) };
    if WESTERN.contains(&charset.as_str()) {
        if !response.body.is_ascii() {
            response.body =
                response.body.iter().map(|byte| character(*byte)).collect::<String>().into_bytes();
        }
    } else if !UTF_8.contains(&charset.as_str()) && is_text(response) && !is_utf8_text(&response.body) {
        let shown: String = charset.chars().take(40).collect();
        return Err(format!(
            "the answer is text in the charset `{shown}`, which cannot be read here: answer in UTF-8"
        ));
    }
    Ok(())
}

fn codings(response: &Response) -> Vec<String> {
    let named = response.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("content-encoding"));
    let all = named.flat_map(|(_, value)| value.split(','));
    let all = all.map(|coding| coding.trim().to_ascii_lowercase());
    all.filter(|coding| !coding.is_empty() && coding != "identity").collect()
}

fn decoded(coding: &str, body: &[u8]) -> Result<Vec<u8>, String> {
    let read = match coding {
        "gzip" | "x-gzip" => bounded(flate2::read::MultiGzDecoder::new(body)),
        // By the standard with the frame of zlib, and by some servers without.
        "deflate" => bounded(flate2::read::ZlibDecoder::new(body)).or_else(|error| match error {
            Fault::Large => Err(error),
            Fault::Broken => bounded(flate2::read::DeflateDecoder::new(body)),
        }),
        "br" => bounded(brotli_decompressor::Decompressor::new(body, 4096)),
        "zstd" => match ruzstd::decoding::StreamingDecoder::new(body) {
            Ok(decoder) => bounded(decoder),
            Err(_) => Err(Fault::Broken),
        },
        other => {
            let shown: String = other.chars().take(40).collect();
            return Err(format!(
                "the answer is coded as `{shown}`, which nobody asked for: answer without \
                 `content-encoding`, or with gzip, br, zstd or deflate"
            ));
        }
    };
    read.map_err(|fault| match fault {
        Fault::Large => format!("the answer has more than {} MiB without its coding `{coding}`", MOST >> 20),
        Fault::Broken => format!("the answer is not what its header says: it cannot be read as `{coding}`"),
    })
}

enum Fault {
    Large,
    Broken,
}

fn bounded(decoder: impl Read) -> Result<Vec<u8>, Fault> {
    let mut plain = Vec::new();
    let read = decoder.take(MOST as u64 + 1).read_to_end(&mut plain);
    match read {
        Ok(_) if plain.len() > MOST => Err(Fault::Large),
        Err(_) => Err(Fault::Broken),
        Ok(_) => Ok(plain),
    }
}

/// The charset that the header names, in small letters.
fn charset(response: &Response) -> Option<String> {
    let charset = response.header("content-type")?.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim()
            .eq_ignore_ascii_case("charset")
            .then(|| value.trim().trim_matches(['"', '\'']).to_ascii_lowercase())
    });
    charset.filter(|charset| !charset.is_empty())
}

/// Whether the header says that the body is text. Some servers name a charset for pictures, too.
fn is_text(response: &Response) -> bool {
    let value = response.header("content-type").unwrap_or_default();
    let kind = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let endings = ["json", "xml", "yaml", "javascript", "x-www-form-urlencoded"];
    kind.starts_with("text/") || endings.iter().any(|ending| kind.ends_with(ending))
}

/// Whether the body can be text in UTF-8, whatever it is called. Letters in UTF-16 have zeros, and ISO-2022
/// begins each change of the alphabet with ESC: such a body is UTF-8 only by its bytes.
fn is_utf8_text(body: &[u8]) -> bool {
    str::from_utf8(body).is_ok() && !body.iter().any(|byte| matches!(byte, 0 | 0x1b))
}

fn character(byte: u8) -> char {
    match byte {
        0x80..=0x9f => WINDOWS[usize::from(byte - 0x80)],
        _ => char::from(byte),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "café und Kuchen";

    /// The text as other programs code it.
    const CODED: [(&str, &str); 6] = [
        ("gzip", "1f8b08000000000002034b4e4c3bbc52a1342f45c1bb343923350f0077f6a12610000000"),
        ("X-GZIP", "1f8b08000000000002034b4e4c3bbc52a1342f45c1bb343923350f0077f6a12610000000"),
        ("deflate", "789c4b4e4c3bbc52a1342f45c1bb343923350f00392d067c"),
        ("deflate", "4b4e4c3bbc52a1342f45c1bb343923350f00"),
        ("br", "8b0780636166c3a920756e64204b756368656e03"),
        ("zstd", "28b52ffd0058810000636166c3a920756e64204b756368656e"),
    ];

    fn response(headers: &[(&str, &str)], body: &[u8]) -> Response {
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Response { status: 200, headers, body: body.to_vec() }
    }

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
    }

    fn read(coding: &str, body: &[u8]) -> Result<String, String> {
        let mut response = response(&[("Content-Encoding", coding)], body);
        make_plain(&mut response)?;
        Ok(String::from_utf8(response.body).expect("UTF-8"))
    }

    #[test]
    fn each_coding_is_taken_off() {
        for (coding, body) in CODED {
            assert_eq!(read(coding, &hex(body)).as_deref(), Ok(TEXT), "{coding}");
        }
        assert_eq!(read("identity", TEXT.as_bytes()).as_deref(), Ok(TEXT));
        let (_, gzip) = CODED[0];
        let twice = {
            use std::io::Write as _;
            let mut writer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
            writer.write_all(&hex(gzip)).expect("write");
            writer.finish().expect("finish")
        };
        assert_eq!(read("gzip, deflate", &twice).as_deref(), Ok(TEXT));
    }

    #[test]
    fn an_unknown_coding_is_named() {
        for (coding, body, why) in [
            ("compress", "x", "coded as `compress`"),
            ("gzip", "no gzip", "cannot be read as `gzip`"),
            ("br", "no brotli at all", "cannot be read as `br`"),
            ("zstd", "no zstd", "cannot be read as `zstd`"),
            ("deflate", "\u{7}no deflate", "cannot be read as `deflate`"),
            ("gzip,gzip,gzip,gzip,gzip", "", "5 codings"),
        ] {
            let error = read(coding, body.as_bytes()).expect_err(coding);
            assert!(error.contains(why), "{error}");
        }
        let (_, gzip) = CODED[0];
        let cut = &hex(gzip)[..20];
        assert!(read("gzip", cut).expect_err("it is cut").contains("cannot be read"));
    }

    #[test]
    fn an_answer_that_grows_without_end_is_refused() {
        use std::io::Write as _;
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        writer.write_all(&vec![0; MOST + 1]).expect("write");
        let bomb = writer.finish().expect("finish");
        assert!(bomb.len() < 100_000);
        assert!(read("gzip", &bomb).expect_err("it is too large").contains("more than 16 MiB"));
    }

    #[test]
    fn text_of_the_west_is_given_as_utf_8() {
        let read = |content_type: &str, body: &[u8]| {
            let mut response = response(&[("content-type", content_type)], body);
            make_plain(&mut response).expect("an answer");
            response.body
        };
        for name in ["ISO-8859-1", "ISO_8859-1", "\"latin1\"", "windows-1252"] {
            let given = read(&format!("text/plain; q=1; Charset={name}"), b"caf\xe9 5 \x80");
            assert_eq!(String::from_utf8(given).as_deref(), Ok("café 5 €"), "{name}");
        }
        assert_eq!(read("text/plain; charset=utf-8", "é".as_bytes()), "é".as_bytes());
        assert_eq!(read("image/png", b"\xe9"), b"\xe9");
    }

    #[test]
    fn an_unknown_charset_is_named_unless_the_text_is_utf_8() {
        let read = |content_type: &str, body: &[u8]| {
            let mut response = response(&[("content-type", content_type)], body);
            make_plain(&mut response).map(|()| response.body)
        };
        for (charset, body) in [
            ("GBK", &b"\xc4\xe3\xba\xc3"[..]),
            ("shift_jis", b"\x82\xb1\x82\xf1"),
            ("ISO-8859-2", b"Wa\xb3\xeasa"),
            ("utf-16", b"\xff\xfeh\0i\0"),
            ("utf-16le", b"{\0}\0"),
            ("iso-2022-jp", b"\x1b$B$3$s\x1b(B"),
        ] {
            let why = read(&format!("text/plain; charset=\"{charset}\""), body).expect_err(charset);
            let expected = format!("the charset `{}`", charset.to_ascii_lowercase());
            assert!(why.contains(&expected) && why.contains("UTF-8"), "{why}");
            assert!(read(&format!("application/problem+json;charset={charset}"), body).is_err(), "{charset}");
            // It may be called by a wrong name, and what is no text stays as it is.
            let given = read(&format!("text/plain; charset={charset}"), "{\"a\": \"é\"}".as_bytes());
            assert_eq!(given.as_deref(), Ok("{\"a\": \"é\"}".as_bytes()), "{charset}");
            let given = read(&format!("image/png; charset={charset}"), body);
            assert_eq!(given.as_deref(), Ok(body), "{charset}");
        }
        for content_type in ["text/plain", "text/plain; charset=", "text/plain; charset=utf8"] {
            assert_eq!(read(content_type, b"\xff").as_deref(), Ok(&b"\xff"[..]), "{content_type}");
        }
    }
}
