//! Commands on all tasks that match, which are jobs: `cancel --all`, `drain`, `dead requeue`, `purge` and
//! `export`.
//!
//! In: the order for a job. Out: how many tasks the job was on, as a sentence or as JSON. A command that asks
//! first shows their number and some of them; its job leaves tasks alone that come later. Not here: how the
//! job is carried out (`follow`), and which arguments there are (`cancel`, `drain`, `redrive`).

use std::path::Path;

use serde_json::json;

use super::confirm::{confirm, show_sample};
use super::exit::CommandResult;
use super::follow::carry_out;
use super::kept::WrittenFile;
use super::output::Out;
use super::progress::{CommandProgress, interrupted};
use super::text;
use crate::config::Config;
use crate::operations::ManyDone;
use crate::operations::jobs::{self, Deed, JobCount, JobOrder};
use crate::queue::Queue;

/// How a command carries out its job.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ManyOptions<'p> {
    /// Whether the user is asked first.
    pub asks: bool,
    /// A new file, to which the tasks are written that the job keeps.
    pub file: Option<&'p Path>,
}

/// Begins the job, carries it out, and tells the result. A dry run only counts the tasks.
pub(super) async fn run(
    config: &Config,
    queue: &Queue,
    mut order: JobOrder,
    options: ManyOptions<'_>,
    out: &mut Out,
) -> CommandResult {
    let deed = order.deed;
    if out.dry_run {
        tell(deed, &count(queue, &order).await?.into(), None, out);
        return Ok(());
    }
    if options.asks {
        order.counted = Some(ask(queue, &order).await?);
    }
    let (job, file) = Box::pin(carry_out(config, queue, order, options.file, out)).await?;
    tell(deed, &ManyDone::from(&job), file, out);
    Ok(())
}

/// Tells the result, and what is in the file.
pub(super) fn tell(deed: Deed, done: &ManyDone, file: Option<WrittenFile>, out: &mut Out) {
    if out.json {
        let mut view = view(deed, done);
        if let Some(WrittenFile { out, written }) = file {
            (view["out"], view["written"]) = (json!(out), json!(written));
        }
        out.json(&view);
        return;
    }
    let file = file.map_or_else(String::new, |file| format!("; {} has {}", file.out, file.written));
    out.line(sentence(deed, done, out.dry_run) + &file);
}

/// Counts the tasks, shows some of them, and asks. Returns the place that a job has which is on these tasks
/// and on none that come later, and their number.
async fn ask(queue: &Queue, order: &JobOrder) -> CommandResult<(String, Option<u64>)> {
    let JobCount { matched, begin, sample, .. } = count(queue, order).await?;
    show_sample(&sample);
    let (name, many) = (&queue.rules.name, text::plural(matched, order.deed.noun()));
    let end = if order.keep { " (they are kept for a day)" } else { " for good" };
    let question = match (order.deed, order.filter.is_empty()) {
        (Deed::Cancel, _) => format!("Cancel {many} of {name}?"),
        (Deed::Drain, true) => format!("Cancel {many} that wait in {name}?"),
        (Deed::Drain, false) => format!("Cancel {many} that wait and match in {name}?"),
        (Deed::Purge, true) => format!("Delete {many} of {name}{end}?"),
        (Deed::Purge, false) => format!("Delete {many} that match of {name}{end}?"),
        // These take nothing away, so that no command asks before them.
        (Deed::Requeue | Deed::Export | Deed::Import, _) => format!("Go on with {many} of {name}?"),
    };
    confirm(&question, "--yes", &format!("nothing was {}", order.deed.done())).await?;
    Ok((begin, Some(matched)))
}

/// Counts the tasks that a job would be on.
async fn count(queue: &Queue, order: &JobOrder) -> CommandResult<JobCount> {
    let mut progress = CommandProgress::begin()?;
    let mut all = JobCount::default();
    loop {
        let cursor = all.next.clone();
        let part = Box::pin(jobs::count(queue, order, cursor.as_deref()));
        let Some(part) = progress.unless_interrupted(part).await else {
            return Err(interrupted(&format!("nothing was {}", order.deed.done())));
        };
        all.add(part?);
        if all.next.is_none() {
            return Ok(all);
        }
        let many = text::plural(all.matched, order.deed.noun());
        progress.tell(|| format!("{many} counted, {} looked at", all.examined));
    }
}

/// The result as JSON. The names are stable.
fn view(deed: Deed, done: &ManyDone) -> serde_json::Value {
    let ManyDone { succeeded, skipped, children, without_flow, examined, job, sample, .. } = done;
    let mut view = json!({ "succeeded": succeeded, "skipped": skipped });
    if let Deed::Cancel | Deed::Drain = deed {
        // A request may stop halfway and has a cursor in `next`. A command does not, but has the same names.
        (view["children"], view["examined"], view["next"]) = (json!(children), json!(examined), json!(null));
        if let Some(sample) = sample {
            view["sample"] = json!(sample);
        }
    } else if deed == Deed::Export {
        view["job"] = json!(job);
    } else if *without_flow > 0 {
        view["without_flow"] = json!(without_flow);
    }
    view
}

/// The result for people.
fn sentence(deed: Deed, done: &ManyDone, dry_run: bool) -> String {
    let ManyDone { succeeded, skipped, children, without_flow, .. } = done;
    let done = if dry_run { format!("would be {}", deed.done()) } else { deed.done().to_owned() };
    let mut sentence = format!("{} {done}", text::plural(*succeeded, deed.noun()));
    match deed {
        Deed::Cancel | Deed::Drain => {
            if *children > 0 {
                sentence += &format!(", and {} of their flows", text::plural(*children, "task"));
            }
            if *skipped > 0 {
                sentence += &format!("; {skipped} {}", deed.why_skipped());
            }
        }
        Deed::Requeue | Deed::Purge | Deed::Export | Deed::Import => {
            sentence += &format!(", {skipped} skipped");
            if *skipped > 0 {
                sentence += &format!(" ({})", deed.why_skipped());
            }
        }
    }
    if *without_flow > 0 {
        sentence += &format!(
            ". The flow of {without_flow} of them has expired: its results are gone, and nothing joins its \
             children"
        );
    }
    sentence
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_numbers_are_told() {
        let flows =
            ". The flow of 3 of them has expired: its results are gone, and nothing joins its children";
        let table = [
            (Deed::Cancel, [1, 0, 0, 0], "1 task cancelled"),
            (
                Deed::Cancel,
                [2, 1, 4, 0],
                "2 tasks cancelled, and 4 tasks of their flows; 1 had ended meanwhile",
            ),
            (
                Deed::Drain,
                [0, 1, 0, 0],
                "0 tasks cancelled; 1 had ended or begun meanwhile, or wait for their flow",
            ),
            (Deed::Purge, [7, 2, 0, 0], "7 dead letters deleted, 2 skipped (not dead)"),
            (Deed::Requeue, [7, 0, 0, 3], &format!("7 dead letters requeued, 0 skipped{flows}")),
        ];
        for (deed, [succeeded, skipped, children, without_flow], told) in table {
            let done = ManyDone { succeeded, skipped, children, without_flow, ..ManyDone::default() };
            assert_eq!(sentence(deed, &done, false), told);
        }
        let done = ManyDone { succeeded: 7, skipped: 2, ..ManyDone::default() };
        let told =
            "7 dead letters would be requeued, 2 skipped (not dead, sent again, or they can never run)";
        assert_eq!(sentence(Deed::Requeue, &done, true), told);
    }
}
