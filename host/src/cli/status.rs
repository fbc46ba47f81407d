//! `tqhost status`: shows a task, once or until its end.
//!
//! In: a queue's name and a task's id or alias. Out: a sheet for people, or a view as JSON; with
//! `--watch`, one of them or a line for every change, until the end or Ctrl-C. Not here: what Redis keeps of
//! a task (`queue::status`).

use std::time::Duration;

use anyhow::anyhow;
use jiff::tz::TimeZone;
use tokio::time::sleep;

use super::args::StatusArgs;
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
use crate::operations::{BranchView, TaskView, patiently, unknown_task};
use crate::queue::attempts::FailedAttempt;
use crate::queue::kept::{KeptFields, MOST_KEPT};
use crate::queue::{FlowProgress, Meant, Queue, Status, TaskName, TaskStatus};

/// Columns of the bar that shows progress.
const BAR: usize = 20;
/// The most columns of an error in the table of attempts.
const ERROR_WIDTH: usize = 80;

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

/// Shows the task as it is. `name` is what the user calls it.
async fn once(config: &Config, queue: &Queue, name: &str, id: &str, out: &mut Out) -> CommandResult {
    let Some(task) = patiently(|| queue.status(id)).await? else {
        return Err(anyhow!(unknown_task(&queue.rules, name)).into());
    };
    let family = family(&config.queues, queue, &task).await?;
    let mask = FieldMask::new(&config.admin.mask);
    let attempts = patiently(|| queue.failed_attempts(id)).await?;
    if out.json {
        let view = TaskView::new(&queue.rules.name, &task).with_masked_fields(&mask);
        out.json(&view.with_family(family).with_attempts(attempts));
        return Ok(());
    }
    let zone = TimeZone::system();
    out.line(render(&queue.rules, &task, &family, clock::now_ms(), &zone, out.paint));
    if let Some(lines) = kept_fields(&task, &mask) {
        out.line(format!("\n{lines}"));
    }
    if !attempts.is_empty() {
        out.line(format!("\n{}", failed(&attempts, &zone, out.paint)));
    }
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
        let is_end = task.status.is_end();
        if is_end
            && !out.json
            && let Some(result) = &task.result
        {
            out.line(value::shown(result));
        }
        if is_end || out.is_closed() {
            return Ok(());
        }
        last = Some(task);
        sleep(pause).await;
    }
}

/// The colour of a status.
pub(super) fn tone(status: Status) -> Tone {
    match status {
        Status::Pending => Tone::Warning,
        Status::Processing => Tone::Active,
        Status::Completed => Tone::Good,
        Status::Failed => Tone::Bad,
        Status::Cancelled => Tone::Faint,
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
    let mut status = paint.tone(tone(task.status), task.status.into_str());
    if let Some(due) = task.due_at.filter(|due| task.status == Status::Pending && *due > now_ms) {
        status += &format!(", delayed for {}", text::age(Duration::from_millis(due - now_ms)));
    }
    let mut lines = vec![
        ("task", text::escape(&task.id)),
        ("queue", rules.name.clone()),
        ("status", status),
        ("attempt", format!("{} of {}", task.attempt, rules.max_retries.saturating_add(1))),
    ];
    if let Some(flow) = task.flow {
        lines.push(("children", children(flow, &family.below.children, paint)));
    }
    lines.extend(family.below.flows.iter().map(|then| ("flow", flow(then, paint))));
    let (all, named) = &task.sent;
    for (at, TaskName { queue, id }) in named.iter().enumerate() {
        let label = if at == 0 { "outbox" } else { "" };
        lines.push((label, format!("{queue} {}", text::escape(id))));
    }
    if *all > named.len() as u64 {
        lines.push(("", format!("and {} more", all - named.len() as u64)));
    }
    if let Some(TaskName { queue, id }) = &family.child_of {
        lines.push(("child of", format!("{queue} {}", text::escape(id))));
    }
    if task.progress.is_some() || task.note.is_some() {
        lines.push(("progress", progress(task.progress, task.note.as_deref())));
    }
    let texts = [
        ("error", &task.error),
        ("unfinished", &task.unfinished),
        ("plugin", &task.plugin),
        ("consumer", &task.consumer),
    ];
    for (label, text) in texts {
        if let Some(text) = text.as_deref().filter(|text| !text.is_empty()) {
            lines.push((label, text::escape_block(text)));
        }
    }
    let times =
        [("enqueued", task.enqueued_at), ("started", task.started_at), ("finished", task.finished_at)];
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
    Some(["its fields".to_owned()].into_iter().chain(fields.iter().map(line)).collect::<Vec<_>>().join("\n"))
}

/// The attempts that failed, and the log of the last one.
pub(super) fn failed(attempts: &[FailedAttempt], zone: &TimeZone, paint: Paint) -> String {
    let mut table = TextTable::new(&["HOST", "RAN", "VERSION", "BEGAN"])
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

/// How many have completed, and lines for the first others with what is below them.
fn children(flow: FlowProgress, open: &[BranchView], paint: Paint) -> String {
    let mut lines = vec![completed(flow)];
    branches(&mut lines, "", open.iter().collect(), hidden(flow, open), paint);
    lines.join("\n")
}

fn completed(flow: FlowProgress) -> String {
    format!("{} of {} completed", flow.completed, flow.children)
}

/// The children that have not completed and are not shown.
fn hidden(flow: FlowProgress, open: &[BranchView]) -> u64 {
    let shown = open.iter().filter(|child| child.status != Status::Completed).count();
    flow.children.saturating_sub(flow.completed).saturating_sub(shown as u64)
}

/// A line for each of some tasks, and below it those of the tasks below it.
fn branches(lines: &mut Vec<String>, indent: &str, tasks: Vec<&BranchView>, hidden: u64, paint: Paint) {
    let last = tasks.len();
    for (n, one) in (1..).zip(tasks) {
        let is_last = n == last && hidden == 0;
        lines.push(format!("{indent}{} {}", if is_last { '└' } else { '├' }, branch(one, paint)));
        below(lines, &format!("{indent}{} ", if is_last { ' ' } else { '│' }), one, paint);
    }
    if hidden > 0 {
        lines.push(format!("{indent}└ and {} more", text::plural(hidden, "task")));
    }
}

fn below(lines: &mut Vec<String>, indent: &str, one: &BranchView, paint: Paint) {
    let open = one.open_children.as_deref().unwrap_or_default();
    let hidden = one.flow().map_or(0, |flow| hidden(flow, open));
    branches(lines, indent, one.below().collect(), hidden, paint);
}

/// One line about a task of a tree.
fn branch(task: &BranchView, paint: Paint) -> String {
    let word = paint.tone(tone(task.status), task.status.into_str());
    let mut line = format!("{} {}  {word}", task.queue, text::escape(&task.id));
    if let Some(flow) = task.flow() {
        line += &format!("  {}", completed(flow));
    }
    if task.progress.is_some() || task.note.is_some() {
        line += &format!("  {}", progress(task.progress, task.note.as_deref()));
    }
    if let Some(error) = &task.error {
        line += &format!("  {}", text::escape(error));
    }
    line
}

/// A flow that the task started, with what is below the task that joins it.
fn flow(then: &BranchView, paint: Paint) -> String {
    let mut lines = vec![branch(then, paint)];
    below(&mut lines, "", then, paint);
    lines.join("\n")
}

/// `██████████████░░░░░░  70%  page 7 of 10`.
fn progress(percent: Option<u8>, note: Option<&str>) -> String {
    let note = note.map(text::escape);
    let bar = percent.map(|percent| {
        let filled = usize::from(percent.min(100)) * BAR / 100;
        format!("{}{} {percent:>3}%", "█".repeat(filled), "░".repeat(BAR - filled))
    });
    [bar, note].into_iter().flatten().collect::<Vec<_>>().join("  ")
}

/// One line of `--watch`.
fn change(task: &TaskStatus, now_ms: u64, zone: &TimeZone, paint: Paint) -> String {
    let word = paint.tone(tone(task.status), &format!("{:<10}", task.status.into_str()));
    let mut parts = vec![text::local(now_ms, zone, "%H:%M:%S"), word, format!("attempt {}", task.attempt)];
    match task.status {
        Status::Processing if task.progress.is_some() || task.note.is_some() => {
            parts.push(progress(task.progress, task.note.as_deref()));
        }
        Status::Pending => parts.extend(
            task.due_at
                .filter(|due| *due > now_ms)
                .map(|due| format!("in {}", text::age(Duration::from_millis(due - now_ms)))),
        ),
        _ => {}
    }
    parts.extend(task.flow.map(|flow| format!("{} of {} children completed", flow.completed, flow.children)));
    if task.status != Status::Completed {
        parts.extend(task.error.as_deref().map(text::escape));
    }
    parts.join("  ").trim_end().to_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::operations::tree::Branches;

    const NOW: u64 = 1_700_000_100_000;
    const PLAIN: Paint = Paint { colour: false, width: None };

    pub(crate) fn rules() -> config::QueueRules {
        let folder = std::path::Path::new("/srv/tqhost.toml");
        let config = Config::parse("[queues.resume-analyze]\n", folder, &|_| None).expect("a configuration");
        config.queues.into_iter().next().expect("a queue")
    }

    fn task() -> TaskStatus {
        TaskStatus {
            attempt: 2,
            error: Some("trap: \u{1b}[2Junreachable".into()),
            progress: Some(70),
            note: Some("page 7 of 10".into()),
            plugin: Some("resume-analyze@3f1c".into()),
            consumer: Some("box-1".into()),
            enqueued_at: Some(NOW - 72_000),
            started_at: Some(NOW - 2_000),
            ..TaskStatus::new("0190b8e4", Status::Processing)
        }
    }

    #[test]
    fn a_running_task() {
        insta::assert_snapshot!(render(&rules(), &task(), &Family::default(), NOW, &TimeZone::UTC, PLAIN));
        insta::assert_snapshot!(change(&task(), NOW, &TimeZone::UTC, PLAIN));
    }

    #[test]
    fn a_completed_task() {
        let result = Some(br#"{"score":0.9,"skills":["rust"]}"#.to_vec());
        let done = TaskStatus {
            status: Status::Completed,
            progress: None,
            note: None,
            error: None,
            result,
            finished_at: Some(NOW),
            ..task()
        };
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
        let delayed = TaskStatus {
            status: Status::Pending,
            due_at: Some(NOW + 192_000),
            progress: None,
            note: None,
            ..task()
        };
        assert!(
            render(&rules(), &delayed, &Family::default(), NOW, &TimeZone::UTC, PLAIN)
                .contains("PENDING, delayed for 3m 12s")
        );
        assert!(
            change(&delayed, NOW, &TimeZone::UTC, PLAIN)
                .contains("PENDING     attempt 2  in 3m 12s  trap: \\u{1b}[2J")
        );
    }

    #[test]
    fn a_flow_shows_the_children_that_have_not_completed() {
        let of = |task: TaskStatus, below| BranchView::new("query", task, below);
        let running = || TaskStatus { error: None, ..task() };
        let failed = TaskStatus { progress: None, note: None, status: Status::Failed, ..task() };
        let plain = || TaskStatus { progress: None, note: None, ..running() };
        let joins = TaskStatus { flow: Some(FlowProgress { completed: 1, children: 2 }), ..plain() };
        let inner = of(joins, Branches { children: vec![of(running(), Branches::default())], flows: vec![] });
        let done = TaskStatus { status: Status::Completed, ..plain() };
        let open = [
            of(running(), Branches::default()),
            of(done, Branches { children: vec![], flows: vec![inner] }),
            of(failed, Branches::default()),
        ];
        let flow = FlowProgress { completed: 9_995, children: 10_000 };
        insta::assert_snapshot!(children(flow, &open, PLAIN));
    }
}
