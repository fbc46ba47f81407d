//! Gives an answer as it was before it was compressed, and text as UTF-8.
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

/// The characters of windows-1252 from 0x80 to 0x9f. The others are those of Latin-1. Browsers read all that
/// is called Latin-1 so.
const WINDOWS: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}', '\u{90}',
    '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
];

/// Takes the codings off the body, and makes it UTF-8 if it is text of a kind that is known here.
pub fn make_plain(response: &mut Response) -> Result<(), String> {
    let codings = codings(response);
    if codings.len() > MAX_CODINGS {
        return Err(format!("the answer has {} codings, one around the other", codings.len()));
    }
    // The last one was applied last.
    for coding in codings.iter().rev() {
        response.body = decoded(coding, &response.body)?;
    }
    if is_windows(response) && !response.body.is_ascii() {
        response.body = response.body.iter().map(|byte| character(*byte)).collect::<String>().into_bytes();
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

/// Whether the body is text in windows-1252 or a part of it.
fn is_windows(response: &Response) -> bool {
    let Some(value) = response.header("content-type") else { return false };
    let charset = value.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim()
            .eq_ignore_ascii_case("charset")
            .then(|| value.trim().trim_matches('"').to_ascii_lowercase())
    });
    let names = ["iso-8859-1", "iso8859-1", "latin1", "latin-1", "l1", "windows-1252", "cp1252", "us-ascii"];
    charset.is_some_and(|charset| names.contains(&charset.as_str()))
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
    fn what_cannot_be_read_is_named() {
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
        for name in ["ISO-8859-1", "\"latin1\"", "windows-1252"] {
            let given = read(&format!("text/plain; q=1; Charset={name}"), b"caf\xe9 5 \x80");
            assert_eq!(String::from_utf8(given).as_deref(), Ok("café 5 €"), "{name}");
        }
        assert_eq!(read("text/plain; charset=utf-8", "é".as_bytes()), "é".as_bytes());
        assert_eq!(read("image/png", b"\xe9"), b"\xe9");
    }
}
