//! Checks the names of queues, plugins, streams and groups.
//!
//! An error continues a sentence that begins with the name: `"…" must not begin with a dot`.

const MAX_NAME_CHARS: usize = 64;
const MAX_KEY_BYTES: usize = 512;
/// The prefix of all keys of tqhost.
pub(super) const OWN_PREFIX: &str = "tq:";
/// The prefix of the keys of queues, which `queue` builds.
const RESERVED_PREFIX: &str = "tq:{";

/// Checks the name of a queue or a plugin, which is a path segment of the HTTP API, a label of metrics and a
/// file name.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("must not be empty".into());
    }
    if name.starts_with('.') {
        return Err("must not begin with a dot".into());
    }
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
        return Err("may have only letters, digits, dots, dashes and underscores".into());
    }
    if name.len() > MAX_NAME_CHARS {
        return Err(format!("must not have more than {MAX_NAME_CHARS} characters"));
    }
    Ok(())
}

/// Checks a Redis key or the name of a group, where the configuration may leave it out.
pub(super) fn check_key_or_default(key: &str) -> Result<(), String> {
    match key {
        "" => Err("is empty: take the key out for the default, or write a name".into()),
        _ => check_key(key),
    }
}

/// Checks a Redis key, or the name of a field.
pub(super) fn check_key(key: &str) -> Result<(), String> {
    if key.is_empty() {
        return Err("is empty: write a name".into());
    }
    if key.len() > MAX_KEY_BYTES {
        return Err(format!("must not be longer than {MAX_KEY_BYTES} bytes"));
    }
    if key.chars().any(char::is_control) {
        return Err("must not have control characters in it".into());
    }
    if key.starts_with(RESERVED_PREFIX) {
        return Err(format!(
            "begins with {RESERVED_PREFIX}, as only keys of tqhost itself do: write another name"
        ));
    }
    Ok(())
}

/// Checks the key of a stream. Its braces determine the hash slot of all keys of the queue.
pub(super) fn check_stream(stream: &str) -> Result<(), String> {
    check_key_or_default(stream)?;
    let opened: Vec<_> = stream.match_indices('{').collect();
    let closed: Vec<_> = stream.match_indices('}').collect();
    match (&opened[..], &closed[..]) {
        ([], []) => Ok(()),
        ([(open, _)], [(close, _)]) if open + 1 < *close => Ok(()),
        _ => Err("has braces that are not one hash tag: write them as in \"resume:{analyze}:stream\", \
                  or without braces"
            .into()),
    }
}

/// The part of a key that Redis Cluster hashes instead of the whole key: the text between the first `{` and
/// the next `}`, if it is not empty.
pub(crate) fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    rest.split_once('}').map(|(tag, _)| tag).filter(|tag| !tag.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let longest = "x".repeat(64);
        for name in ["a", "resume-analyze", "A.b_c-9", "-", "a..b", &longest] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        let too_long = "x".repeat(65);
        for name in ["", ".", "..", ".a", "a/b", "a b", "ä", "a:b", "a\n", &too_long] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn streams() {
        let longest = "x".repeat(512);
        for stream in ["s", "resume:analyze:stream", "{tag}", "a:{b}:c", "ä", &longest] {
            assert_eq!(check_stream(stream), Ok(()), "{stream}");
        }
        let too_long = "x".repeat(513);
        for stream in
            ["", "{}", "a{", "a}", "}a{", "{a}{b}", "{{a}}", "{a}}", "a\nb", "tq:{s}:dead", &too_long]
        {
            assert!(check_stream(stream).is_err(), "{stream}");
        }
    }
}
