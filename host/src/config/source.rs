//! Reads the text of a secret: from the file itself, the environment, or a file of its own.
//!
//! In: a string, `{ env = "NAME" }` or `{ file = "path" }`. Out: a [`Secret`], or a problem that names the
//! key and the source, never the text.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use toml::de::DeValue;

use super::keys;
use super::reader::{Item, Secrets};
use super::secret::Secret;
use super::units::show_text;

const MAX_BYTES: u64 = 64 << 10;

/// The commands that read a secret from its environment variable or its file. All check its form.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Readers {
    All,
    /// Only a running host, and commands that run handlers. For the others it stays unread.
    Hosts,
    /// All commands. For those that run no handlers it stays unread if its source is missing.
    AnyIfThere,
}

/// Reads a secret. A configuration file that holds one itself counts among the files of secrets.
pub(super) fn secret(item: &Item, readers: Readers) -> Option<Secret> {
    let secret = maybe_secret(item, readers)?;
    if !secret.is_external() {
        item.note_secret();
    }
    Some(secret)
}

/// Reads a value that may be a secret, or hold one, as a url does with a password in it.
pub(super) fn maybe_secret(item: &Item, readers: Readers) -> Option<Secret> {
    match item.value() {
        DeValue::String(text) => Some(Secret::new(text.as_ref())),
        DeValue::Table(_) => from_table(item, readers),
        _ => item.wrong_type("a string, { env = \"NAME\" } or { file = \"path\" }"),
    }
}

fn from_table(item: &Item, readers: Readers) -> Option<Secret> {
    let table = item.table(&keys::SECRET);
    let is_host = item.context().secrets == Secrets::All;
    let is_read = is_host || readers != Readers::Hosts;
    let found = match (table.get("env"), table.get("file")) {
        (Some(env), None) => {
            let name = env.string()?;
            is_read.then(|| from_env(name, item.context().env))
        }
        (None, Some(file)) => {
            let path = file.path()?;
            file.note_secret_file(&path);
            is_read.then(|| from_file(&path))
        }
        (Some(_), Some(_)) => {
            return item.refuse("has both env and file: keep one");
        }
        (None, None) => {
            return item.refuse("has no source: write { env = \"NAME\" } or { file = \"path\" }");
        }
    };
    match found {
        Some(Ok(text)) => Some(Secret::external(text)),
        Some(Err(why)) if is_host || readers == Readers::All => item.refuse(why),
        Some(Err(_)) | None => Some(Secret::unread()),
    }
}

/// The text of a source as it is meant. Editors and shells add a line break at its end, and some a mark of
/// UTF-8 at its beginning.
fn meant(text: &str) -> &str {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    text.strip_suffix('\n').map_or(text, |line| line.strip_suffix('\r').unwrap_or(line))
}

fn from_env(name: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let shown = show_text(name);
    match env(name) {
        Some(text) if meant(&text).is_empty() => Err(format!("the environment variable {shown} is empty")),
        Some(text) if text.len() as u64 > MAX_BYTES => {
            Err(format!("the environment variable {shown} is longer than 64KiB"))
        }
        Some(text) => Ok(meant(&text).to_owned()),
        None => Err(format!(
            "the environment variable {shown} is not set, or is not UTF-8: set it, for example with the file \
             of the systemd unit: `set -a; . /etc/tqhost/environment`"
        )),
    }
}

fn from_file(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let mut bytes = Vec::new();
    // A pipe or a device could block or never end.
    let is_file = path.metadata().map_err(|error| format!("cannot read {shown}: {error}"))?.is_file();
    if !is_file {
        return Err(format!("{shown} is not a regular file"));
    }
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|error| format!("cannot read {shown}: {error}"))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("{shown} is bigger than 64KiB"));
    }
    let text = String::from_utf8(bytes).map_err(|_| format!("{shown} is not UTF-8"))?;
    let text = meant(&text);
    if text.is_empty() { Err(format!("{shown} is empty")) } else { Ok(text.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{parse_in, refusals_in};
    use super::{from_env, meant};

    #[test]
    fn a_secret_comes_from_text_environment_or_file() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("key"), "from-file\r\n").expect("write");
        let text = r#"
            [queues.a]
            [plugins.a]
            config = { plain = "from-text", env = { env = "GOOD" }, file = { file = "key" }, none = "" }
        "#;
        let config = parse_in(text, folder.path()).expect("valid");
        let values = &config.plugins["a"].config;
        let exposed: Vec<_> = values.iter().map(|(name, secret)| (name.as_str(), secret.expose())).collect();
        assert_eq!(
            exposed,
            [("env", "from-env"), ("file", "from-file"), ("none", ""), ("plain", "from-text")]
        );
        let external: Vec<_> =
            values.iter().filter(|(_, secret)| secret.is_external()).map(|(name, _)| name.as_str()).collect();
        assert_eq!(external, ["env", "file"]);
    }

    #[test]
    fn a_byte_order_mark_and_a_line_break_are_no_part_of_a_secret() {
        for text in ["geheim\n", "geheim\r\n", "\u{feff}geheim", "\u{feff}geheim\n", "geheim"] {
            assert_eq!(meant(text), "geheim", "{text:?}");
            let env = |_: &str| Some(text.to_owned());
            assert_eq!(from_env("A", &env).as_deref(), Ok("geheim"), "{text:?}");
        }
        assert_eq!(meant("geheim\n\n"), "geheim\n", "only one line break is dropped");
    }

    #[test]
    fn a_secret_without_its_source_is_a_problem() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("empty"), "\n").expect("write");
        std::fs::write(folder.path().join("big"), vec![b'x'; (64 << 10) + 1]).expect("write");
        std::fs::write(folder.path().join("binary"), [0xff, 0xfe]).expect("write");
        let texts = [
            r#"{ env = "MISSING" }"#,
            r#"{ env = "EMPTY" }"#,
            r#"{ env = 5 }"#,
            r#"{ file = "missing" }"#,
            r#"{ file = "empty" }"#,
            r#"{ file = "big" }"#,
            r#"{ file = "binary" }"#,
            r#"{ file = "." }"#,
            r#"{ file = "a", env = "B" }"#,
            "{}",
            r#"{ enc = "X" }"#,
            "5",
        ];
        insta::assert_snapshot!(refusals_in(
            folder.path(),
            "[queues.a]\n[plugins.a.config]\nkey = {}\n",
            &texts
        ));
    }
}
