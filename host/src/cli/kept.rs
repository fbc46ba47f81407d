//! The file into which a command writes dead letters, or what a job keeps.
//!
//! In: a queue. Out: a new file that only its owner may read, whose lines are on the disk before the command
//! goes on. Not here: the form of the lines (`operations::letters`), reading them (`import`).

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};

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

    /// Adds all dead letters that match, oldest first.
    pub(super) async fn add_all(
        &mut self,
        queue: &Queue,
        filter: &TaskFilter,
        progress: &mut CommandProgress,
    ) -> CommandResult {
        let begun = patiently(|| async { Ok((queue.now_ms().await?, queue.last_dead().await?)) });
        let cut = || interrupted("the file was not written");
        let (now_ms, last) = progress.step(begun).await.ok_or_else(cut)??;
        let mut next = Some("-".to_owned());
        while let Some(from) = next {
            let page = progress.step(patiently(|| queue.dead_page(&from, &last))).await;
            let (mut letters, after) = page.ok_or_else(cut)??;
            letters.retain(|letter| filter.takes(&letter.traits(), now_ms));
            self.add(&letters)?;
            if progress.is_interrupted() {
                return Err(cut());
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
            // A part of a line is worth nothing, and an import would stumble over it.
            let _ = self.file.set_len(self.bytes);
            return Err(anyhow::Error::new(error).context(format!("cannot write to {}", self.name())).into());
        }
        self.bytes += lines.len() as u64;
        self.written += letters.len() as u64;
        Ok(())
    }

    pub(super) fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Takes the file away again, as its command has failed and may be repeated.
    pub(super) fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}
