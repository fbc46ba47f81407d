//! `tqhost doctor`: checks that every task of a queue is in exactly one place, and nothing is stuck or
//! orphaned.
//!
//! In: names of queues, and whether to repair. Out: how many tasks are in each place, the findings and their
//! remedies, and exit code 1 unless nothing is wrong or everything was repaired. Not here: how findings are
//! made (`crate::doctor`).

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::each_queue::{NamedQueues, QueueEnd, each_queue};
use super::exit::{CommandError, CommandResult};
use super::output::{Out, Paint, Tone};
use super::table::TextTable;
use super::text;
use crate::config::Config;
use crate::doctor::{self, DoctorReport, FaultKind, Warning};
use crate::operations::patiently;
use crate::queue::{Census, Queue, hosts};

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    queues: NamedQueues,
    /// Repair what can be repaired: put back tasks that no host would run, report lost tasks on their status
    #[arg(long)]
    fix: bool,
}

/// A report as JSON. The names are stable.
fn report_json(queue: &str, report: &DoctorReport) -> Value {
    let DoctorReport { census, ended, findings, more, warnings, open, .. } = report;
    let Census { queued, running, delayed, held_tasks, dead, .. } = census;
    let more: BTreeMap<&str, u64> = more.iter().map(|(kind, count)| (kind.into_str(), *count)).collect();
    json!({
        "queue": queue,
        // `ended`: tasks whose status is still kept.
        "places": {
            "queued": queued, "running": running, "delayed": delayed, "held": held_tasks, "dead": dead,
            "ended": ended,
        },
        "findings": findings,
        // How many findings of each kind are not listed.
        "more": more,
        "warnings": warnings,
        "ok": *open == 0,
    })
}

pub(super) async fn run(config: &Config, args: DoctorArgs, out: &mut Out) -> CommandResult {
    let DoctorArgs { queues, fix } = args;
    let (are_several, paint) = (queues.are_several(), out.paint);
    let strays = OnceCell::new();
    let act = async |queue: &Queue| {
        let others: Vec<Queue> =
            config.queues.iter().map(|rules| Queue::new(rules.clone(), queue.link.clone())).collect();
        let hosts = patiently(|| hosts::list(&queue.link)).await?;
        let strays =
            strays.get_or_try_init(|| doctor::strays(&queue.link, &config.queues, usize::MAX)).await?;
        let mut report = match fix {
            // This is not repeated: a second call would not report what the first one repaired before its
            // reply was lost.
            true => doctor::examine(queue, &others, &hosts, true).await?,
            false => patiently(|| doctor::examine(queue, &others, &hosts, false)).await?,
        };
        let name = &queue.rules.name;
        let beside = strays.iter().filter(|stray| stray.beside == queue.rules.stream);
        report.warnings.extend(beside.map(Warning::from));
        let text = match are_several {
            true if report.findings.is_empty() && report.warnings.is_empty() => {
                format!("{name}: {}", verdict(&report, fix, paint))
            }
            true => render(name, &report, fix, paint) + "\n",
            false => render(name, &report, fix, paint),
        };
        let is_well = report.open == 0;
        Ok::<_, CommandError>(QueueEnd { view: report_json(name, &report), text, is_well })
    };
    let cut = if fix { "what was repaired by then stays so; run it again" } else { "not all was looked at" };
    each_queue(config, &queues, ("looking at every task", cut), act, out).await
}

/// How many tasks are in each place.
fn places(queue: &str, report: &DoctorReport, paint: Paint) -> String {
    let census = &report.census;
    let mut places = TextTable::with_spare(&["ENDED", "HELD", "DELAYED", "RUNNING", "QUEUED", "DEAD"])
        .names(["QUEUE"])
        .figures(["QUEUED", "RUNNING", "DELAYED", "HELD", "DEAD", "ENDED"]);
    places.row([
        queue.into(),
        census.queued.into(),
        census.running.into(),
        census.delayed.into(),
        census.held_tasks.into(),
        census.dead.into(),
        report.ended.into(),
    ]);
    places.render(paint)
}

fn render(queue: &str, report: &DoctorReport, fix: bool, paint: Paint) -> String {
    let mut parts = vec![places(queue, report, paint)];
    if !report.findings.is_empty() {
        parts.push(findings(report, paint));
    }
    let line =
        |warning: &Warning| format!("{} {}", paint.tone(Tone::Warning, "note:"), text::escape(&warning.what));
    if !report.warnings.is_empty() {
        parts.push(report.warnings.iter().map(line).collect::<Vec<_>>().join("\n"));
    }
    parts.push(verdict(report, fix, paint));
    parts.join("\n\n")
}

/// The findings by kind. The first line of each kind says what --fix does about it.
fn findings(report: &DoctorReport, paint: Paint) -> String {
    let mut kinds: BTreeMap<FaultKind, Vec<String>> = BTreeMap::new();
    for finding in &report.findings {
        let (mark, tone) = if finding.fixed { ("fixed", Tone::Good) } else { ("wrong", Tone::Bad) };
        let about = finding.task.as_deref().unwrap_or(&finding.key);
        let line =
            format!("  {}  {}: {}", paint.tone(tone, mark), text::escape(about), text::escape(&finding.what));
        kinds.entry(finding.kind).or_default().push(line);
    }
    let block = |(kind, lines): (FaultKind, Vec<String>)| {
        let more = report.more.get(&kind).map(|count| format!("\n  … and {count} more")).unwrap_or_default();
        format!("{}: {}\n{}{more}", paint.tone(Tone::Title, kind.into_str()), remedy(kind), lines.join("\n"))
    };
    kinds.into_iter().map(block).collect::<Vec<_>>().join("\n\n")
}

/// The remedy of a finding: the effect of `--fix`, or a step for the user.
fn remedy(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::WrongType => "another program uses this key; rename or delete it",
        FaultKind::NoGroup => "--fix creates the group, from the stream's beginning",
        FaultKind::DeletedEntry => {
            "the task is lost; --fix says so on its status, when its lease is over \
             (its attempt may still end)"
        }
        FaultKind::Undeliverable => {
            "--fix puts the task back at the end of the stream; of one that has ended, it deletes the entry"
        }
        FaultKind::DelayedWithoutFields => "the task is lost; --fix says so on its status",
        FaultKind::FieldsWithoutDelay => "--fix lets the task run now",
        FaultKind::UnreadableFields => "--fix makes it due now, and its delivery makes a dead letter of it",
        FaultKind::LostTask => "--fix makes it FAILED, and frees its idempotency key after the window",
        FaultKind::EndedButThere => "it may run a second time; cancel it if it must not",
        FaultKind::DeadButAlive => "purge the dead letter if the task is not to run again",
        FaultKind::NoExpiry => "--fix lets it expire after the retention",
        FaultKind::OrphanedKey => "--fix frees the key after the window",
        FaultKind::LostChild => {
            "--fix notes it as lost: the flow fails, and its last task becomes a dead letter"
        }
        FaultKind::UncountedChild => "--fix notes it in its flow again, or how it has ended",
        FaultKind::UnreleasedChildren => "--fix enqueues them; if their flow is gone, it deletes them",
        FaultKind::UnjoinedFlow => "--fix enqueues the task that joins the flow",
        FaultKind::FlowWithoutTask => "--fix writes the status of the task that joins the flow again",
        FaultKind::TurnWithoutTask => "--fix passes its turn on; a running host does so within minutes",
        FaultKind::TrackWithoutTurn => "--fix gives it the turn; a running host does so within minutes",
        FaultKind::BrokenTrack => "--fix makes them match again; a running host does so within minutes",
        FaultKind::StuckClaim => "look into the logs of the hosts, or restart them",
        FaultKind::StuckDelayed => "look into the logs of the hosts: Redis may refuse to take more",
    }
}

fn verdict(report: &DoctorReport, fix: bool, paint: Paint) -> String {
    let findings = text::plural(report.found, "finding");
    match (report.found, report.open) {
        (0, _) => paint.tone(Tone::Good, "Nothing is wrong."),
        (_, 0) => paint.tone(Tone::Good, &format!("{findings}, all fixed.")),
        (_, open) if fix => paint.tone(Tone::Bad, &format!("{findings}, {open} of them not fixed.")),
        _ => {
            let can_fix = report.findings.iter().any(|finding| remedy(finding.kind).contains("--fix"));
            let next = if can_fix { "run it again with --fix" } else { "--fix can repair none of them" };
            paint.tone(Tone::Bad, &format!("{findings}; {next}."))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Finding;

    fn report() -> DoctorReport {
        let finding = |kind, task: Option<&str>, what: &str, fixed| Finding {
            kind,
            task: task.map(str::to_owned),
            key: "key".into(),
            what: what.into(),
            fixed,
        };
        DoctorReport {
            census: Census { queued: 2, running: 3, delayed: 1, dead: 2, ..Census::default() },
            ended: 5120,
            findings: vec![
                finding(
                    FaultKind::LostTask,
                    Some("a\u{1b}"),
                    "its status is PENDING, but it is in no place any more",
                    true,
                ),
                finding(FaultKind::NoGroup, None, "it has no group tqhost: nobody can take its tasks", false),
            ],
            more: BTreeMap::from([(FaultKind::LostTask, 7)]),
            warnings: vec![Warning { kind: "paused", what: "the queue is paused; 3 tasks wait".into() }],
            found: 9,
            open: 1,
        }
    }

    #[test]
    fn a_report_as_text() {
        insta::assert_snapshot!(render("work", &report(), true, Paint::default()));
        insta::assert_snapshot!(render("work", &DoctorReport::default(), false, Paint::default()));
    }

    #[test]
    fn a_report_as_json() {
        insta::assert_snapshot!(serde_json::to_string_pretty(&report_json("work", &report())).expect("JSON"));
    }
}
