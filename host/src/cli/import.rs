//! `tqhost dead import`: brings back dead letters that an export wrote.
//!
//! In: a queue and a file of JSON Lines. Out: how many were added. All lines are read before anything is
//! added, so that a wrong line is named before anything changes. A task that is dead already is left out, so
//! the command may be repeated. The command sends the lines to Redis, and a job adds them from there; hosts
//! go on with the job if the command ends. Not here: the form of a line (`operations::letters`), the job
//! (`operations::jobs`).

use std::collections::HashSet;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use serde::Serialize;

use super::context::{open, rules};
use super::exit::CommandResult;
use super::follow::carry_out;
use super::output::{Out, note};
use super::progress::{CommandProgress, interrupted};
use super::text;
use crate::config::Config;
use crate::operations::jobs::{Deed, JobOrder, new_id};
use crate::operations::{FileLine, ImportedLetter, patiently, read_line};
use crate::queue::codec::RawFields;
use crate::queue::undo::MOST_BYTES;
use crate::queue::{Queue, TaskFilter};

/// The most bytes of a line.
const MAX_LINE: u64 = 64 << 20;
/// The most dead letters in one call, and about the most bytes.
const BATCH: usize = 100;
const BATCH_BYTES: usize = 4 << 20;
/// The number of lines after which the command looks whether it is to end.
const LINES: u64 = 500;
/// Dead letters that one read looks at.
const PAGE: usize = 500;
/// Said of an import that ended before its job began.
const NOTHING: &str = "nothing was added";

#[derive(Debug, Args)]
pub(super) struct DeadImportArgs {
    /// The queue's name in the configuration
    queue: String,
    /// A file with a dead letter on each line. Nothing is added unless every line is good
    file: PathBuf,
    /// Count only, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// The result of an import. Both numbers together are the number of lines.
#[derive(Debug, Default, Serialize)]
struct ImportCounts {
    succeeded: u64,
    /// Dead already, or the task is known and has not failed.
    skipped: u64,
}

/// The dead letters of the file that name another queue.
#[derive(Debug, Default)]
struct OtherQueues {
    count: u64,
    /// The first queue that is named.
    first: Option<String>,
}

impl OtherQueues {
    fn see(&mut self, letter: ImportedLetter) {
        if let Some(from) = letter.from {
            self.count += 1;
            self.first.get_or_insert(from);
        }
    }

    /// Tells the operator, who alone can know whether the queue was renamed.
    fn tell(&self, queue: &str) {
        let Some(first) = &self.first else { return };
        let which = text::plural(self.count, "dead letter");
        note(&format!(
            "tqhost: {which} of the file were of the queue {}, not of {queue}",
            text::escape(first)
        ));
    }
}

pub(super) async fn run(config: &Config, args: DeadImportArgs, out: &mut Out) -> CommandResult {
    let DeadImportArgs { queue: name, file: path, dry_run } = args;
    out.dry_run = dry_run;
    rules(config, &name)?;
    let mut progress = CommandProgress::begin()?;
    let (ids, others) = read_all(&path, &name, &mut progress).await?;
    let queue = progress.needed(NOTHING, open(config, &name)).await?;
    let mut there = dead_already(&queue, &ids, &mut progress).await?;
    let mut counts = ImportCounts::default();
    let mut sent = LetterUpload { job: new_id(), count: 0, batch: Vec::new(), bytes: 0 };
    for (at, line) in letters(&path, &name)?.enumerate() {
        let letter = line?;
        // The second of two lines with the same id is left out.
        if !there.insert(letter.id.clone()) {
            counts.skipped += 1;
        } else if dry_run {
            counts.succeeded += 1;
        } else {
            sent.bytes += letter.bytes();
            sent.batch.push(letter.fields);
        }
        let seen = at as u64 + 1;
        if seen.is_multiple_of(LINES) && progress.look().await {
            let looked_at = format!("{} looked at", text::plural(seen, "line"));
            return Err(interrupted(if dry_run { &looked_at } else { NOTHING }));
        }
        if sent.batch.len() >= BATCH || sent.bytes >= BATCH_BYTES {
            sent.send(&queue, &mut progress).await?;
        }
    }
    sent.send(&queue, &mut progress).await?;
    drop(progress);
    others.tell(&name);
    if sent.count > 0 {
        let order = JobOrder {
            from: Some(sent.job.clone()),
            id: Some(sent.job),
            ..JobOrder::new(Deed::Import, TaskFilter::default())
        };
        let (job, _) = Box::pin(carry_out(config, &queue, order, None, out)).await?;
        counts.succeeded = job.done;
        counts.skipped += sent.count.saturating_sub(job.done);
    }
    let ImportCounts { succeeded, skipped } = counts;
    let what = if dry_run { "would be added" } else { "added" };
    let why = if skipped > 0 { " (dead already, or not failed)" } else { "" };
    let letters = text::plural(succeeded, "dead letter");
    out.show(&counts, |_| format!("{letters} {what}, {skipped} skipped{why}"));
    Ok(())
}

/// The ids of the dead letters of the file, as hashes, which take less memory. Another id may have the hash
/// of one of them.
#[derive(Default)]
struct FileIds {
    hasher: RandomState,
    hashes: HashSet<u64>,
}

impl FileIds {
    fn add(&mut self, id: &str) {
        self.hashes.insert(self.hasher.hash_one(id));
    }

    fn has(&self, id: &str) -> bool {
        self.hashes.contains(&self.hasher.hash_one(id))
    }
}

/// Reads the whole file, so that a wrong line is found before anything is added.
async fn read_all(
    path: &Path,
    queue: &str,
    progress: &mut CommandProgress,
) -> CommandResult<(FileIds, OtherQueues)> {
    let (mut ids, mut others) = (FileIds::default(), OtherQueues::default());
    let (mut read, mut bytes) = (0_u64, 0_u64);
    for letter in letters(path, queue)? {
        let letter = letter?;
        ids.add(&letter.id);
        bytes += letter.bytes() as u64;
        others.see(letter);
        read += 1;
        if read.is_multiple_of(LINES) && progress.look().await {
            return Err(interrupted(NOTHING));
        }
        progress.tell(|| format!("{} read", text::plural(read, "line")));
    }
    if bytes > MOST_BYTES {
        let most = MOST_BYTES >> 20;
        return Err(anyhow!("{} has more than {most} MiB: split it", path.display()).into());
    }
    Ok((ids, others))
}

/// The ids of the dead letters that are there, and probably in the file, too.
async fn dead_already(
    queue: &Queue,
    ids: &FileIds,
    progress: &mut CommandProgress,
) -> CommandResult<HashSet<String>> {
    let (mut there, mut after, mut examined) = (HashSet::new(), None::<String>, 0);
    loop {
        let page = patiently(|| queue.newest_dead(after.as_deref(), PAGE));
        let page = progress.needed(NOTHING, page).await?;
        examined += page.len() as u64;
        there.extend(page.iter().filter(|letter| ids.has(&letter.id)).map(|letter| letter.id.clone()));
        if page.len() < PAGE {
            return Ok(there);
        }
        after = page.last().map(|last| last.entry.clone());
        if progress.is_interrupted() {
            return Err(interrupted(NOTHING));
        }
        progress.tell(|| format!("{examined} dead letters of the queue looked at"));
    }
}

/// The dead letters that are sent to Redis, for a job that adds them. Nothing is added before there is a job,
/// and without one Redis forgets them.
struct LetterUpload {
    /// The id of this job.
    job: String,
    count: u64,
    /// The next ones to be sent, and their size in bytes.
    batch: Vec<RawFields>,
    bytes: usize,
}

impl LetterUpload {
    async fn send(&mut self, queue: &Queue, progress: &mut CommandProgress) -> CommandResult {
        if self.batch.is_empty() {
            return Ok(());
        }
        let keeping = queue.keeping(&self.job);
        let sent = progress.step(patiently(|| keeping.keep(&self.batch))).await;
        sent.ok_or_else(|| interrupted(NOTHING))?.context(NOTHING)?;
        self.count += self.batch.len() as u64;
        (self.batch, self.bytes) = (Vec::new(), 0);
        if progress.is_interrupted() {
            return Err(interrupted(NOTHING));
        }
        progress.tell(|| format!("{} sent to Redis", text::plural(self.count, "dead letter")));
        Ok(())
    }
}

/// The dead letters of the file, from its beginning. A wrong line is an error with its number.
fn letters(path: &Path, queue: &str) -> CommandResult<impl Iterator<Item = CommandResult<ImportedLetter>>> {
    let name = path.display().to_string();
    let cannot = || format!("cannot read {name}");
    // It is read twice, which a pipe cannot be.
    let kind = std::fs::metadata(path).with_context(cannot)?;
    if !kind.is_file() {
        return Err(anyhow!("cannot read {name}: it is no regular file").into());
    }
    let mut reader = BufReader::with_capacity(1 << 16, File::open(path).with_context(cannot)?);
    let (mut number, mut since_end, mut line) = (0_u64, 0_u64, Vec::new());
    let (queue, path) = (queue.to_owned(), path.to_owned());
    Ok(std::iter::from_fn(move || {
        loop {
            number += 1;
            let bad = |why: String| Some(Err(anyhow!("{} line {number}: {why}", path.display()).into()));
            match next_line(&mut reader, &mut line, &path) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
            if line.len() as u64 > MAX_LINE {
                return bad(format!("it is longer than {} MiB", MAX_LINE >> 20));
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            match read_line(&line, &queue) {
                Ok(FileLine::Letter(letter)) => {
                    since_end += 1;
                    return Some(Ok(letter));
                }
                Ok(FileLine::End(letters)) if letters == since_end => since_end = 0,
                Ok(FileLine::End(letters)) => {
                    return bad(format!(
                        "the download had {letters} dead letters, and {since_end} are in the file"
                    ));
                }
                Err(why) => return bad(why),
            }
        }
    }))
}

/// Reads a line, or the beginning of one that is too long. False at the end.
fn next_line(reader: &mut impl BufRead, line: &mut Vec<u8>, path: &Path) -> CommandResult<bool> {
    line.clear();
    let read = reader.by_ref().take(MAX_LINE + 1).read_until(b'\n', line);
    Ok(read.with_context(|| format!("cannot read {}", path.display()))? > 0)
}
