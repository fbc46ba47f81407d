//! Reads the files of plugins. A plugin of the configuration has its file in `plugins_dir`, or in the folder
//! for plugins from registries. A command line may name any other file.
//!
//! In: the configuration, or a path. Out: the bytes of a file with their digest, or why it cannot be read.
//! Not here: the plugins that a running host has loaded (`plugins`).

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use sha2::{Digest, Sha256};

use super::exit::CommandResult;
use super::text;
use crate::builds::BuildNote;
use crate::config::Config;
use crate::file::MAX_BYTES;
use crate::plugins;
use crate::secrets::hex;

/// A plugin's file.
#[derive(Debug)]
pub(super) struct PluginFile {
    pub name: String,
    pub path: PathBuf,
    /// The queues that run it.
    pub queues: Vec<String>,
    /// None when there is no such file.
    pub content: Option<io::Result<FileContent>>,
}

/// The content of a plugin's file.
#[derive(Debug)]
pub(super) struct FileContent {
    pub bytes: Vec<u8>,
    /// SHA-256 in hexadecimal: the plugin's version.
    pub digest: String,
    pub build: BuildNote,
    /// Why the build cannot be read that the file tells of.
    pub build_error: Option<String>,
}

impl FileContent {
    /// `path` is that of the file, beside which its build may be.
    pub(super) fn new(path: &Path, bytes: Vec<u8>) -> FileContent {
        let digest = digest_of(&bytes);
        let (build, build_error) = match plugins::build_of(path, &bytes, &digest) {
            Ok(build) => (build, None),
            Err(why) => (BuildNote::default(), Some(why)),
        };
        FileContent { bytes, digest, build, build_error }
    }

    /// The version in words, for display.
    pub(super) fn version(&self) -> String {
        text::escape(&self.build.words(&self.digest))
    }
}

/// SHA-256 in hexadecimal.
pub(super) fn digest_of(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Reads a handler's file that the command line names, once it is stable.
pub(super) async fn read_handler(path: &Path) -> CommandResult<Vec<u8>> {
    Ok(plugins::read(path).await.map_err(|error| anyhow!("{}: {error:#}", path.display()))?)
}

/// Every plugin that the configuration names. Plugins of queues come first.
pub(super) fn plugin_names(config: &Config) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let of_queues = config.queues.iter().map(|queue| &queue.plugin);
    of_queues.chain(config.plugins.keys()).filter(|name| seen.insert(*name)).cloned().collect()
}

/// Reads the file of the plugin `name`.
pub(super) fn read(config: &Config, name: &str) -> PluginFile {
    let path = config.plugin_path(name);
    let content = match content(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        content => Some(content),
    };
    let queues =
        config.queues.iter().filter(|queue| queue.plugin == name).map(|queue| queue.name.clone()).collect();
    PluginFile { name: name.to_owned(), path, queues, content }
}

fn content(path: &Path) -> io::Result<FileContent> {
    // To open a FIFO would block for ever.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::new(
            ErrorKind::FileTooLarge,
            format!("it is larger than {} MiB", MAX_BYTES >> 20),
        ));
    }
    Ok(FileContent::new(path, bytes))
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use super::*;

    /// A configuration whose plugins lie in `folder`.
    pub(crate) fn config(folder: &Path) -> Config {
        let text = "[queues.a]\nplugin = \"p\"\n[queues.b]\n[queues.c]\nplugin = \"p\"\n\
                    [plugins.p]\nmemory = \"64MiB\"\nconfig = { key = \"hunter2\" }\n\
                    allowed_hosts = [\"https://api.example.com\", \
                    { host = \"http://ledger.internal\", private_addresses = [\"10.0.0.0/8\"] }]\n\
                    http = { timeout = \"90s\" }\n\
                    instance = { warm = 4, max_tasks = 50 }\n";
        fs::create_dir_all(folder.join("plugins")).expect("a folder");
        Config::parse(text, &folder.join("tqhost.toml"), &|_| None).expect("a configuration")
    }

    #[test]
    fn a_file_is_named_after_its_plugin() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = config(folder.path());
        fs::write(folder.path().join("plugins/p.wasm"), "abc").expect("write");
        assert_eq!(plugin_names(&config), ["p", "b"]);
        let file = read(&config, "p");
        assert_eq!(file.queues, ["a", "c"]);
        let content = file.content.expect("a file").expect("readable");
        assert_eq!((content.bytes.as_slice(), &*content.version()), (b"abc".as_slice(), "ba7816bf8f01"));
        assert!(read(&config, "b").content.is_none());
    }
}
