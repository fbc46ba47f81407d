//! Why there is no private Redis, as the user reads it.

use std::path::PathBuf;

/// Why there is no private Redis.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EmbeddedError {
    #[error("another tqhost (pid {pid}) runs with this data_dir ({})", .data_dir.display())]
    Busy { pid: String, data_dir: PathBuf },
    #[error(
        "there is no redis-server and no valkey-server on PATH for a private Redis: install one (Debian, \
         Ubuntu: apt install redis-server; Fedora: dnf install valkey; Homebrew: brew install redis), or set \
         redis.url"
    )]
    NoProgram,
    #[error(
        "{} is of version {found}, but tqhost needs 7.0 or newer: install a newer one, or set redis.url",
        .program.display()
    )]
    TooOld { program: PathBuf, found: String },
    #[error("{} does not tell its version: {why}", .program.display())]
    NoVersion { program: PathBuf, why: String },
    #[error("cannot {what} {}", .path.display())]
    Io { what: &'static str, path: PathBuf, source: std::io::Error },
    #[error(
        "{} is not a folder that belongs to this user: give it to the user, or choose another data_dir",
        .path.display()
    )]
    Foreign { path: PathBuf },
    #[error("the private Redis ended at its start ({why}); the end of its log:\n{log}")]
    Ended { why: String, log: String },
    #[error("the private Redis does not answer; the end of its log:\n{log}")]
    Silent { log: String },
}
