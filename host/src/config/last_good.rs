//! The last configuration that a host accepted, for commands while the file is broken.
//!
//! In: a configuration that a host runs by. Out: a copy of its file in `data_dir`, which only its owner may
//! read; or the configuration from this copy. Not here: when a command may use it (`cli`).

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use toml::de::DeTable;

use super::keys;
use super::load::read_text;
use super::model::Config;

const NAME: &str = "last-good.toml";
/// The beginning of the copy's first line. The path of the file follows.
const HEAD: &str = "# The last configuration that a host accepted, a copy of ";

impl Config {
    /// Keeps a copy of the file. Without one, commands fail while the file is broken, and nothing else does.
    pub(crate) fn keep(&self) {
        if let Err(error) = self.write_copy() {
            let folder = self.data_dir.display();
            tracing::warn!(%folder, %error, "cannot keep a copy of the configuration for commands");
        }
    }

    fn write_copy(&self) -> io::Result<()> {
        // The file may have changed since it was read; then its next look keeps it.
        let Ok(text) = read_text(&self.path) else { return Ok(()) };
        if !Config::parse(&text, &self.path, &|name| std::env::var(name).ok()).is_ok_and(|now| now == *self) {
            return Ok(());
        }
        let copy = format!("{HEAD}{}\n{text}", self.path.display());
        let path = self.data_dir.join(NAME);
        if fs::read(&path).is_ok_and(|old| old == copy.as_bytes()) {
            return Ok(());
        }
        fs::create_dir_all(&self.data_dir)?;
        // Two hosts may share the folder.
        let temporary = path.with_extension(format!("{}.tmp", uuid::Uuid::now_v7()));
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)
            .and_then(|mut file| file.write_all(copy.as_bytes()))
            .and_then(|()| fs::rename(&temporary, &path))
            .inspect_err(|_| drop(fs::remove_file(&temporary)))
    }

    /// The last configuration that a host accepted from this file, which is broken now, without the secrets
    /// that only a host needs; and where its copy is.
    pub(crate) fn last_good(path: &Path) -> Option<(Config, PathBuf)> {
        let path = std::path::absolute(path).ok().filter(|path| path.exists())?;
        // The folder may be told by a part of the file that is right.
        let text = read_text(&path).unwrap_or_default();
        let (document, _) = DeTable::parse_recoverable(&text);
        let named = document.get_ref().get("data_dir").and_then(|value| value.get_ref().as_str());
        let copy = path.parent()?.join(named.unwrap_or(keys::TOP.text("data_dir"))).join(NAME);
        let kept = read_text(&copy).ok()?;
        let (of, text) = kept.strip_prefix(HEAD)?.split_once('\n')?;
        let config = (Path::new(of) == path).then(|| Config::parse_for_commands(text, &path).ok())??;
        Some((config, copy))
    }
}
