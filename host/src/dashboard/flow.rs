//! The relatives of a task, as a list in lists, and the tasks that it enqueued.
//!
//! Not here: which relatives are worth showing (`operations::tree`).

use maud::{Markup, html};

use super::layout::state;
use super::text::{data, grouped};
use super::values::task_path;
use crate::operations::{BranchView, TaskView};
use crate::queue::TaskName;

/// The flow of a task; nothing for a task without relatives.
pub(super) fn section(task: &TaskView) -> Markup {
    let flows = task.flows.as_deref().unwrap_or_default();
    if task.children.is_none() && task.child_of.is_none() && flows.is_empty() {
        return html! {};
    }
    html! {
        section aria-labelledby="flow" data-live="flow" {
            h2 id="flow" { "Flow" }
            @if let Some(parent) = &task.child_of {
                p {
                    "It is a child of the flow that "
                    a href=(task_path(&parent.queue, &parent.id)) { (data(&parent.id)) }
                    " in queue " (data(&parent.queue)) " joins."
                }
            }
            @if let Some(children) = task.children {
                p { (task.children_completed.unwrap_or(0)) " of " (children) " children have completed." }
                (branches(task.open_children.as_deref().unwrap_or_default()))
            }
            @if !flows.is_empty() {
                p { "It started these flows:" }
                (branches(flows))
            }
        }
    }
}

/// The tasks that the handler enqueued when the task completed; nothing if there are none.
pub(super) fn enqueued(task: &TaskView) -> Markup {
    let (all, named) = (task.enqueued, &task.enqueued_tasks);
    html! {
        @if all > 0 {
            section aria-labelledby="enqueued" data-live="enqueued" {
                h2 id="enqueued" { "What it enqueued" }
                ul.tree {
                    @for TaskName { queue, id } in named {
                        li { a href=(task_path(queue, id)) { (data(id)) } " in " (data(queue)) }
                    }
                }
                @if all > named.len() as u64 {
                    p.note { "They are " (grouped(all)) ", of which the first " (named.len()) " are kept." }
                }
            }
        }
    }
}

fn branches(tasks: &[BranchView]) -> Markup {
    html! {
        @if !tasks.is_empty() {
            ul.tree {
                @for task in tasks {
                    li {
                        a href=(task_path(&task.queue, &task.id)) { (data(&task.id)) }
                        " in " (data(&task.queue)) " " (state(task.status.into_str()))
                        @if let Some(progress) = task.progress { " " (progress) " %" }
                        @if let Some(children) = task.children {
                            " " (task.children_completed.unwrap_or(0)) " of " (children) " children"
                        }
                        @if let Some(text) = task.error.as_ref().or(task.note.as_ref()) { " " (data(text)) }
                        (branches(task.open_children.as_deref().unwrap_or_default()))
                        (branches(&task.flows))
                    }
                }
            }
        }
    }
}
