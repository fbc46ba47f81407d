//! The tasks below a task of `tqhost status`, as a tree.
//!
//! In: the children of a flow that have not completed, and the flows that a task started. Out: lines. Not
//! here: reading them (`operations::tree`).

use super::super::output::{Paint, Tone};
use super::super::text;
use crate::operations::BranchView;
use crate::queue::{FlowProgress, Status};

/// Columns of the bar that shows progress.
const BAR: usize = 20;

/// The colour of a status.
pub(in super::super) fn tone(status: Status) -> Tone {
    match status {
        Status::Pending => Tone::Warning,
        Status::Processing => Tone::Active,
        Status::Completed => Tone::Good,
        Status::Failed => Tone::Bad,
        Status::Cancelled => Tone::Faint,
    }
}

/// How many children have completed, and lines for the first ones that have not, each with the tasks below
/// it.
pub(super) fn children(flow: FlowProgress, open: &[BranchView], paint: Paint) -> String {
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

/// Adds a line for each task, with the lines of the tasks below it, and a last line for those that are
/// hidden.
fn branches(lines: &mut Vec<String>, indent: &str, tasks: Vec<&BranchView>, hidden: u64, paint: Paint) {
    let count = tasks.len();
    for (n, one) in (1..).zip(tasks) {
        let is_last = n == count && hidden == 0;
        lines.push(format!("{indent}{} {}", if is_last { '└' } else { '├' }, branch(one, paint)));
        below(lines, &format!("{indent}{} ", if is_last { ' ' } else { '│' }), one, paint);
    }
    if hidden > 0 {
        lines.push(format!("{indent}└ and {} more", text::plural(hidden, "task")));
    }
}

/// Adds the lines of the tasks below this one.
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

/// A flow that the task started: the task that joins it, with the tasks below that one.
pub(super) fn flow(then: &BranchView, paint: Paint) -> String {
    let mut lines = vec![branch(then, paint)];
    below(&mut lines, "", then, paint);
    lines.join("\n")
}

/// `██████████████░░░░░░  70%  page 7 of 10`.
pub(super) fn progress(percent: Option<u8>, note: Option<&str>) -> String {
    let note = note.map(text::escape);
    let bar = percent.map(|percent| {
        let filled = usize::from(percent.min(100)) * BAR / 100;
        format!("{}{} {percent:>3}%", "█".repeat(filled), "░".repeat(BAR - filled))
    });
    [bar, note].into_iter().flatten().collect::<Vec<_>>().join("  ")
}
