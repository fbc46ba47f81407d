//! Loads the file: text in, a checked [`Config`] or all its problems out.
//!
//! Not here: the elements of the configuration (`general` and the files beside it).

use std::cell::RefCell;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::general;
use super::model::Config;
use super::problem::{ConfigErrors, Problem, column_of, line_of};
use super::reader::{self, Secrets};
use super::units::show_text;

const MAX_FILE_BYTES: u64 = 1 << 20;
/// The number of syntax errors in a message. One mistake can cause many more, so the first few are enough.
const MAX_SYNTAX_ERRORS: usize = 10;
/// The parser's message for a key or a table that is there twice. Its place is the second key.
const DUPLICATE: &str = "duplicate key";

impl Config {
    /// Reads and checks the file, with the secrets that it points to.
    pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
        Config::load_with(path, Secrets::All)
    }

    /// Reads and checks the file without the secrets that only a running host needs, which stay unread.
    pub fn load_for_commands(path: &Path) -> Result<Config, ConfigErrors> {
        Config::load_with(path, Secrets::ForCommands)
    }

    fn load_with(path: &Path, secrets: Secrets) -> Result<Config, ConfigErrors> {
        let path = std::path::absolute(path)
            .map_err(|error| ConfigErrors::of_file(path, format!("is not a path: {error}")))?;
        let text = read_text(&path).map_err(|why| ConfigErrors::of_file(&path, why))?;
        Config::parse_with(&text, &path, &|name| std::env::var(name).ok(), secrets)
    }

    /// Checks `text` as if it stood in the file `path`; `env` looks up environment variables.
    pub fn parse(
        text: &str,
        path: &Path,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Config, ConfigErrors> {
        Config::parse_with(text, path, env, Secrets::All)
    }

    /// Like [`Config::load_for_commands`], with this text instead of the file's.
    pub(super) fn parse_for_commands(text: &str, path: &Path) -> Result<Config, ConfigErrors> {
        Config::parse_with(text, path, &|name| std::env::var(name).ok(), Secrets::ForCommands)
    }

    pub(super) fn parse_with(
        text: &str,
        path: &Path,
        env: &dyn Fn(&str) -> Option<String>,
        secrets: Secrets,
    ) -> Result<Config, ConfigErrors> {
        let (document, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            // A message names the key that is there twice. Behind another error, the parser may take any text
            // for a key, also a secret: then no key is shown.
            let may_show_key = errors.iter().all(|error| error.message() == DUPLICATE);
            let told = errors.iter().take(MAX_SYNTAX_ERRORS);
            let problems = told.map(|error| syntax_problem(text, error, may_show_key)).collect();
            return Err(ConfigErrors::new(path, problems));
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        let cx = reader::Context {
            text,
            path,
            folder,
            env,
            secrets,
            problems: RefCell::default(),
            warnings: RefCell::default(),
            secret_files: RefCell::default(),
        };
        let file = DeValue::Table(document.into_inner());
        let config = general::read(&cx, &file, path);
        let problems = cx.problems.take();
        if problems.is_empty() { Ok(config) } else { Err(ConfigErrors::new(path, problems)) }
    }
}

pub(super) fn read_text(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err("there is no such file: write one (docs/configuration.md has an example), \
                 or name it with --config or TQHOST_CONFIG"
                .into())
        }
        Err(error) => Err(format!("cannot be read: {error}")),
        Ok(_) if bytes.len() as u64 > MAX_FILE_BYTES => {
            Err("is bigger than 1MiB: is this the right file?".into())
        }
        Ok(_) => String::from_utf8(bytes)
            .map_err(|error| format!("is not UTF-8 (at byte {})", error.utf8_error().valid_up_to())),
    }
}

/// Only the parser's message, without the line of the file: that may hold a secret. With `may_show_key`, the
/// place of the error is a key, which is shown.
fn syntax_problem(text: &str, error: &toml::de::Error, may_show_key: bool) -> Problem {
    let offset = error.span().map(|span| span.start);
    let column = offset.map_or_else(String::new, |offset| format!("column {}: ", column_of(text, offset)));
    let mut message = error.message().replace('\n', ", ");
    if may_show_key && let Some(key) = error.span().and_then(|span| text.get(span)) {
        let key = show_text(key.trim_matches(['"', '\'']));
        message = format!("{message} {key}: write each key and each table once");
    }
    Problem {
        line: offset.map(|offset| line_of(text, offset)),
        key: String::new(),
        text: format!("{column}not TOML: {message}"),
    }
}
