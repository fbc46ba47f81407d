//! Finds the program for the private Redis.
//!
//! In: a list of folders as in `PATH`. Out: the path of `redis-server` in them, or of `valkey-server` if
//! `redis-server` is missing or too old; or why neither can be used.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use super::error::EmbeddedError;

const NAMES: [&str; 2] = ["redis-server", "valkey-server"];
const OLDEST: (u32, u32) = (7, 0);
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Finds a program in `path`, a list of folders as in `PATH`. If none can be used, the error is about the
/// first one that was found.
pub(super) async fn find(path: &OsStr) -> Result<PathBuf, EmbeddedError> {
    let mut first_error = None;
    for name in NAMES {
        let mut programs = std::env::split_paths(path).map(|folder| folder.join(name));
        let Some(program) = programs.find(|program| is_executable(program)) else { continue };
        match check_version(&program).await {
            Ok(()) => return Ok(program),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    Err(first_error.unwrap_or(EmbeddedError::NoProgram))
}

fn is_executable(path: &Path) -> bool {
    let metadata = path.metadata();
    path.is_absolute() && metadata.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

async fn check_version(program: &Path) -> Result<(), EmbeddedError> {
    let unknown = |why: String| EmbeddedError::NoVersion { program: program.to_owned(), why };
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).kill_on_drop(true).output();
    let output = match timeout(VERSION_TIMEOUT, output).await {
        Err(_) => return Err(unknown("no answer within 10 seconds".into())),
        Ok(Err(error)) => return Err(unknown(error.to_string())),
        Ok(Ok(output)) => String::from_utf8_lossy(&output.stdout).into_owned(),
    };
    match parse_version(&output) {
        None => Err(unknown(format!("{:?}", output.chars().take(100).collect::<String>()))),
        Some((version, found)) if version < OLDEST => {
            Err(EmbeddedError::TooOld { program: program.to_owned(), found: found.to_owned() })
        }
        Some(_) => Ok(()),
    }
}

/// Reads the version from a text like `Redis server v=7.0.15 sha=00000000:0 …`.
fn parse_version(output: &str) -> Option<((u32, u32), &str)> {
    let found = output.split_whitespace().find_map(|word| word.strip_prefix("v="))?;
    let mut numbers = found.split('.').map(str::parse);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return None };
    Some(((major, minor), found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let table = [
            ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", Some(((7, 0), "7.0.15"))),
            ("Valkey server v=8.1.1 sha=0 malloc=libc", Some(((8, 1), "8.1.1"))),
            ("Redis server v=6.2.7", Some(((6, 2), "6.2.7"))),
            ("Redis server", None),
            ("v=x.y", None),
        ];
        for (output, version) in table {
            assert_eq!(parse_version(output), version, "{output}");
        }
    }
}
