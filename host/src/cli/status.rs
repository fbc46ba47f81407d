//! `tqhost status`: shows a task, once or until its end.
//!
//! In: a queue's name and a task's id or alias. Out: a sheet for people, or a view as JSON; with
//! `--watch`, one of them or a line for every change, until the end or Ctrl-C. Not here: what Redis keeps of
//! a task (`queue::status`).

mod tree;

use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use jiff::tz::TimeZone;
use tokio::time::sleep;

use super::context::open;
use super::exit::CommandResult;
use super::output::{Out, Paint, Tone, sheet};
use super::progress::CommandProgress;
use super::table::{Cell, TextTable};
use super::{text, value, wait};
use crate::clock;
use crate::config::units::show_duration;
use crate::config::{self, Config};
use crate::mask::{FieldMask, MASKED};
use crate::operations::tree::{Family, family};
use crate::operations::{TaskView, patiently, unknown_task};
use crate::queue::attempts::FailedAttempt;
use crate::queue::kept::{KeptFields, MOST_KEPT};
use crate::queue::{Meant, Queue, Status, TaskName, TaskStatus};
pub(super) use tree::tone;

/// The most columns of an error in the table of attempts.
const ERROR_WIDTH: usize = 80;

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// The queue's name in the configuration
    queue: String,
    /// The task's id, as enqueue printed it; or the name that the queue's `id` gives to it
    id: String,
    /// Print a line for every change until the task has ended
    #[arg(long)]
    watch: bool,
}

pub(super) async fn run(config: &Config, args: StatusArgs, out: &mut Out) -> CommandResult {
    let queue = open(config, &args.queue).await?;
    let Some(id) = patiently(|| queue.find(&args.id, Meant::Newest)).await? else {
        return Err(anyhow!(unknown_task(&queue.rules, &args.id)).into());
    };
    if !args.watch {
        return once(config, &queue, &args.id, &id, out).await;
    }
    let mask = FieldMask::new(&config.admin.mask);
    let mut progress = CommandProgress::begin()?;
    // After Ctrl-C the user has seen enough.
    progress.unless_interrupted(watch(&queue, (&args.id, &id), &mask, out)).await.unwrap_or(Ok(()))
}

/// Shows the task as it is now. `name` is the id or alias that the user gave.
async fn once(config: &Config, queue: &Queue, name: &str, id: &str, out: &mut Out) -> CommandResult {
    let Some(task) = patiently(|| queue.status(id)).await? else {
        return Err(anyhow!(unknown_task(&queue.rules, name)).into());
    };
    let family = family(&config.queues, queue, &task).await?;
    let mask = FieldMask::new(&config.admin.mask);
    let attempts = patiently(|| queue.failed_attempts(id)).await?;
    let zone = TimeZone::system();
    let mut shown = render(&queue.rules, &task, &family, clock::now_ms(), &zone, out.paint);
    if let Some(fields) = kept_fields(&task, &mask) {
        shown += &format!("\n\n{fields}");
    }
    shown += &failed_below(&attempts, &zone, out.paint);
    let view = TaskView::new(&queue.rules.name, &task).with_masked_fields(&mask);
    out.show(&view.with_family(family).with_attempts(attempts), |_| shown);
    Ok(())
}

/// Shows every change of the task until its end.
async fn watch(queue: &Queue, (name, id): (&str, &str), mask: &FieldMask, out: &mut Out) -> CommandResult {
    let zone = TimeZone::system();
    let mut pause = wait::PAUSE.0;
    let mut last: Option<TaskStatus> = None;
    loop {
        let Some(task) = patiently(|| queue.status(id)).await? else {
            let kept = show_duration(queue.rules.retention);
            return Err(match last {
                Some(_) => anyhow!("task {id} ended, and nothing of it is kept (retention {kept})"),
                None => anyhow!(unknown_task(&queue.rules, name)),
            }
            .into());
        };
        if last.as_ref() == Some(&task) {
            pause = wait::longer(pause);
        } else {
            let view = TaskView::new(&queue.rules.name, &task).with_masked_fields(mask);
            out.show(&view, |paint| change(&task, clock::now_ms(), &zone, paint));
            pause = wait::PAUSE.0;
        }
        if task.summary.status.is_end() {
            if let Some(result) = task.result.filter(|_| !out.json) {
                out.line(value::shown(&result));
            }
            return Ok(());
        }
        if out.is_closed() {
            return Ok(());
        }
        last = Some(task);
        sleep(pause).await;
    }
}

fn render(
    rules: &config::QueueRules,
    task: &TaskStatus,
    family: &Family,
    now_ms: u64,
    zone: &TimeZone,
    paint: Paint,
) -> String {
    let summary = &task.summary;
    let mut status = paint.tone(tone(summary.status), summary.status.into_str());
    if let Some(due) = summary.due_at.filter(|due| summary.status == Status::Pending && *due > now_ms) {
        status += &format!(", delayed for {}", text::age_ms(due - now_ms));
    }
    let mut lines = vec![
        ("task", text::escape(&summary.id)),
        ("queue", rules.name.clone()),
        ("status", status),
        ("attempt", format!("{} of {}", summary.attempt, rules.max_retries.saturating_add(1))),
    ];
    if let Some(flow) = task.flow {
        lines.push(("children", tree::children(flow, &family.below.children, paint)));
    }
    lines.extend(family.below.flows.iter().map(|then| ("flow", tree::flow(then, paint))));
    for (at, TaskName { queue, id }) in task.first_sent.iter().enumerate() {
        let label = if at == 0 { "outbox" } else { "" };
        lines.push((label, format!("{queue} {}", text::escape(id))));
    }
    let more = task.sent.saturating_sub(task.first_sent.len() as u64);
    if more > 0 {
        lines.push(("", format!("and {more} more")));
    }
    if let Some(TaskName { queue, id }) = &family.child_of {
        lines.push(("child of", format!("{queue} {}", text::escape(id))));
    }
    if summary.progress.is_some() || summary.note.is_some() {
        lines.push(("progress", tree::progress(summary.progress, summary.note.as_deref())));
    }
    let texts = [
        ("error", &summary.error),
        ("unfinished", &task.unfinished),
        ("plugin", &summary.plugin),
        ("consumer", &summary.consumer),
    ];
    for (label, text) in texts {
        if let Some(text) = text.as_deref().filter(|text| !text.is_empty()) {
            lines.push((label, text::escape_block(text)));
        }
    }
    let times = [
        ("enqueued", summary.enqueued_at),
        ("started", summary.started_at),
        ("finished", summary.finished_at),
    ];
    for (label, time) in times {
        if let Some(time) = time {
            lines.push((label, text::when(time, now_ms, zone)));
        }
    }
    if let Some(result) = &task.result {
        lines.push(("result", value::shown(result)));
    }
    sheet(paint, &lines)
}

/// The fields that a completed task keeps, without what is hidden.
fn kept_fields(task: &TaskStatus, mask: &FieldMask) -> Option<String> {
    let fields = match task.fields.as_ref()? {
        KeptFields::Kept(fields) => fields,
        KeptFields::TooLarge(bytes) => {
            return Some(format!("its fields are not kept: they have {bytes} bytes, more than {MOST_KEPT}"));
        }
    };
    let line = |(name, value): &(Vec<u8>, Vec<u8>)| {
        let value = match mask.shown_bytes(name, value) {
            Some(value) => value::shown(&value),
            None => MASKED.to_owned(),
        };
        format!("{}={value}", text::escape(&String::from_utf8_lossy(name)))
    };
    let mut lines = vec!["its fields".to_owned()];
    lines.extend(fields.iter().map(line));
    Some(lines.join("\n"))
}

/// The attempts that failed, for the end of a sheet; nothing if there are none.
pub(super) fn failed_below(attempts: &[FailedAttempt], zone: &TimeZone, paint: Paint) -> String {
    if attempts.is_empty() { String::new() } else { format!("\n\n{}", failed(attempts, zone, paint)) }
}

/// The attempts that failed, and the log of the last one.
fn failed(attempts: &[FailedAttempt], zone: &TimeZone, paint: Paint) -> String {
    let mut table = TextTable::with_spare(&["HOST", "RAN", "VERSION", "BEGAN"])
        .figures(["ATTEMPT"])
        .fixed(["BEGAN"])
        .figures(["RAN"])
        .texts(["OUTCOME"])
        .names(["VERSION", "HOST"])
        .texts(["ERROR"]);
    for one in attempts {
        table.row([
            one.attempt.into(),
            text::local(one.started_at, zone, "%Y-%m-%d %H:%M:%S").into(),
            text::took(Duration::from_millis(one.duration_ms)).into(),
            Cell::tone(&one.outcome, Tone::Bad),
            (&one.plugin).into(),
            (&one.consumer).into(),
            text::cut(&text::escape(&one.error), ERROR_WIDTH).into(),
        ]);
    }
    let mut shown = table.render(paint);
    if let Some(last) = attempts.last().filter(|last| !last.log.is_empty()) {
        let title = format!("log of the last one, attempt {}", last.attempt);
        shown += &format!("\n\n{}\n{}", paint.tone(Tone::Faint, &title), text::escape_block(&last.log));
    }
    shown
}

/// One line of `--watch`.
fn change(task: &TaskStatus, now_ms: u64, zone: &TimeZone, paint: Paint) -> String {
    let summary = &task.summary;
    let word = paint.tone(tone(summary.status), &format!("{:<10}", summary.status.into_str()));
    let mut parts = vec![text::local(now_ms, zone, "%H:%M:%S"), word, format!("attempt {}", summary.attempt)];
    match summary.status {
        Status::Processing if summary.progress.is_some() || summary.note.is_some() => {
            parts.push(tree::progress(summary.progress, summary.note.as_deref()));
        }
        Status::Pending if let Some(due) = summary.due_at.filter(|due| *due > now_ms) => {
            parts.push(format!("in {}", text::age_ms(due - now_ms)));
        }
        _ => {}
    }
    parts.extend(task.flow.map(|flow| format!("{} of {} children completed", flow.completed, flow.children)));
    if summary.status != Status::Completed {
        parts.extend(summary.error.as_deref().map(text::escape));
    }
    parts.join("  ").trim_end().to_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::operations::BranchView;
    use crate::operations::tree::Branches;
    use crate::queue::{FlowProgress, TaskSummary};

    const NOW: u64 = 1_700_000_100_000;
    const PLAIN: Paint = Paint { colour: false, width: None };

    pub(crate) fn rules() -> config::QueueRules {
        let folder = std::path::Path::new("/srv/tqhost.toml");
        let config = Config::parse("[queues.resume-analyze]\n", folder, &|_| None).expect("a configuration");
        config.queues.into_iter().next().expect("a queue")
    }

    fn task() -> TaskSummary {
        TaskSummary {
            attempt: 2,
            error: Some("trap: \u{1b}[2Junreachable".into()),
            progress: Some(70),
            note: Some("page 7 of 10".into()),
            plugin: Some("resume-analyze@3f1c".into()),
            consumer: Some("box-1".into()),
            enqueued_at: Some(NOW - 72_000),
            started_at: Some(NOW - 2_000),
            ..TaskSummary::new("0190b8e4", Status::Processing)
        }
    }

    #[test]
    fn a_running_task() {
        insta::assert_snapshot!(render(
            &rules(),
            &task().into(),
            &Family::default(),
            NOW,
            &TimeZone::UTC,
            PLAIN
        ));
        insta::assert_snapshot!(change(&task().into(), NOW, &TimeZone::UTC, PLAIN));
    }

    #[test]
    fn a_completed_task() {
        let result = Some(br#"{"score":0.9,"skills":["rust"]}"#.to_vec());
        let summary = TaskSummary {
            status: Status::Completed,
            progress: None,
            note: None,
            error: None,
            finished_at: Some(NOW),
            ..task()
        };
        let done = TaskStatus { summary, result, ..TaskStatus::default() };
        insta::assert_snapshot!(render(&rules(), &done, &Family::default(), NOW, &TimeZone::UTC, PLAIN));
        insta::assert_json_snapshot!(TaskView::new("resume-analyze", &done));
    }

    #[test]
    fn failed_attempts_have_a_row_each() {
        let one = |attempt: u32, error: &str, log: &str| FailedAttempt {
            attempt,
            started_at: NOW - 60_000,
            finished_at: NOW - 58_500,
            duration_ms: 1_500,
            outcome: "retry".into(),
            error: error.into(),
            plugin: "resume-analyze@3f1c".into(),
            consumer: "box-1".into(),
            log: log.into(),
        };
        let attempts = [one(1, "retry: busy", "not shown"), one(2, "retry: \u{1b}[2J", "one\ntwo \u{1b}[2J")];
        insta::assert_snapshot!(failed(&attempts, &TimeZone::UTC, PLAIN), @r"
        ATTEMPT  BEGAN                 RAN  OUTCOME  VERSION              HOST   ERROR
              1  2023-11-14 22:14:00  1.5s  retry    resume-analyze@3f1c  box-1  retry: busy
              2  2023-11-14 22:14:00  1.5s  retry    resume-analyze@3f1c  box-1  retry: \u{1b}[2J

        log of the last one, attempt 2
        one
        two \u{1b}[2J
        ");
    }

    #[test]
    fn a_delayed_task() {
        let delayed = TaskSummary {
            status: Status::Pending,
            due_at: Some(NOW + 192_000),
            progress: None,
            note: None,
            ..task()
        };
        let sheet = render(&rules(), &delayed.clone().into(), &Family::default(), NOW, &TimeZone::UTC, PLAIN);
        insta::assert_snapshot!(sheet);
        insta::assert_snapshot!(change(&delayed.into(), NOW, &TimeZone::UTC, PLAIN), @r"
        22:15:00  PENDING     attempt 2  in 3m 12s  trap: \u{1b}[2Junreachable
        ");
    }

    #[test]
    fn a_flow_shows_the_children_that_have_not_completed() {
        let of = |task: TaskSummary, below| BranchView::new("query", task.into(), below);
        let running = || TaskSummary { error: None, ..task() };
        let failed = TaskSummary { progress: None, note: None, status: Status::Failed, ..task() };
        let plain = || TaskSummary { progress: None, note: None, ..running() };
        let flow = Some(FlowProgress { completed: 1, children: 2 });
        let joins = TaskStatus { summary: plain(), flow, ..TaskStatus::default() };
        let children = vec![of(running(), Branches::default())];
        let inner = BranchView::new("query", joins, Branches { children, flows: vec![] });
        let done = TaskSummary { status: Status::Completed, ..plain() };
        let open = [
            of(running(), Branches::default()),
            of(done, Branches { children: vec![], flows: vec![inner] }),
            of(failed, Branches::default()),
        ];
        let flow = FlowProgress { completed: 9_995, children: 10_000 };
        insta::assert_snapshot!(tree::children(flow, &open, PLAIN));
    }
}
