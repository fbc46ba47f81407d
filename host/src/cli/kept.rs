//! The file into which a command writes dead letters, or what a job keeps.
//!
//! In: a queue. Out: a new file that only its owner may read, and whose lines are on the disk before the
//! command goes on. Not here: the form of the lines (`operations::letters`), reading them (`import`).

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde::Serialize;

use super::exit::CommandResult;
use super::progress::{CommandProgress, interrupted};
use super::text;
use crate::mask::FieldMask;
use crate::operations::{letter_lines, patiently};
use crate::queue::{DeadLetter, Queue, TaskFilter};

/// A file that grows line by line.
#[derive(Debug)]
pub(super) struct KeptFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// How many lines it has.
    pub written: u64,
}

impl KeptFile {
    /// Makes the file. There must be none.
    pub(super) fn create(path: &Path) -> CommandResult<KeptFile> {
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = made.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => {
                anyhow!("{} exists already, and is not written over: name another file", path.display())
            }
            _ => anyhow::Error::new(error).context(format!("cannot make {}", path.display())),
        })?;
        // The name must be on the disk, too.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let synced = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
        synced.with_context(|| format!("cannot make sure that {} is on the disk", path.display()))?;
        Ok(KeptFile { path: path.to_owned(), file, bytes: 0, written: 0 })
    }

    /// The file with all dead letters that match, oldest first. If this fails, the file is removed, since a
    /// part would be taken for the whole.
    pub(super) async fn filled(mut self, queue: &Queue, filter: &TaskFilter) -> CommandResult<KeptFile> {
        match self.fill(queue, filter).await {
            Ok(()) => Ok(self),
            Err(error) => {
                self.remove();
                Err(error)
            }
        }
    }

    async fn fill(&mut self, queue: &Queue, filter: &TaskFilter) -> CommandResult {
        const CUT: &str = "the file was not written";
        let mut progress = CommandProgress::begin()?;
        let begun = patiently(|| async { Ok((queue.now_ms().await?, queue.last_dead().await?)) });
        let (now_ms, last) = progress.needed(CUT, begun).await?;
        let mut next = Some("-".to_owned());
        while let Some(from) = next {
            let page = progress.needed(CUT, patiently(|| queue.dead_page(&from, &last))).await?;
            let (mut letters, after) = page;
            letters.retain(|letter| filter.takes(&letter.traits(), now_ms));
            self.add(&letters)?;
            if progress.is_interrupted() {
                return Err(interrupted(CUT));
            }
            progress.tell(|| format!("{} written", text::plural(self.written, "line")));
            next = after;
        }
        Ok(())
    }

    /// Adds dead letters, and waits until they are on the disk.
    pub(super) fn add(&mut self, letters: &[DeadLetter]) -> CommandResult {
        let lines = letter_lines(letters, &FieldMask::default());
        let written = self.file.write_all(lines.as_bytes()).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // An import would fail at a line of which only a part was written.
            let _ = self.file.set_len(self.bytes);
            let cannot = format!("cannot write to {}", self.path.display());
            return Err(anyhow::Error::new(error).context(cannot).into());
        }
        self.bytes += lines.len() as u64;
        self.written += letters.len() as u64;
        Ok(())
    }

    /// The path of the file, and the number of its lines.
    pub(super) fn told(&self) -> WrittenFile {
        WrittenFile { out: self.path.display().to_string(), written: self.written }
    }

    /// Removes the file, so that its command can be repeated after a failure.
    pub(super) fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A file that a command has written. The names are stable.
#[derive(Debug, Serialize)]
pub(super) struct WrittenFile {
    /// Its path.
    pub out: String,
    /// How many lines it has.
    pub written: u64,
}
