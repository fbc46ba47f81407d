//! Work on the rows that somebody has chosen: their boxes, a page that shows them and asks, and the result.
//!
//! In: the ids of a list's boxes. Out: work on exactly these tasks. A task that has ended meanwhile, or is
//! not dead any more, is skipped, and the page says why. Everything works without JavaScript; the script
//! adds a box for all of the page, and lets a list stand still while a box is chosen.
//!
//! Not here: work on all that match a filter, which is a job (`act`).

use axum::extract::Path;
use maud::{Markup, html};

use super::confirm::{ConfirmForm, Confirmation};
use super::layout::{page, samples, state};
use super::problem::{PageAnswer, changed};
use super::session::Visitor;
use super::state::PageCall;
use super::table::{BOXES, PageCell, cell, link as to_task, table};
use super::text::{NONE, data, plural};
use super::values::{Values, dead_path, link, queue_path, task_path};
use crate::admin::audit::AuditNote;
use crate::admin::problem::{ApiProblem, invalid};
use crate::api::guard::role_of;
use crate::operations::changes::{self, ChangeView, check_why};
use crate::operations::jobs::Deed;
use crate::operations::{MOST_IDS, ManyDone, TaskSample, act_on_named, patiently};
use crate::queue::listing::ListedState;

/// The name of a box.
const BOX: &str = "task";
/// Tasks whose state is shown after the work.
const SHOWN: usize = 50;

/// The work that the visitor may do on chosen tasks of this state.
pub(super) fn deeds(visitor: &Visitor, listed: ListedState) -> Vec<Deed> {
    let deeds: &[Deed] = match listed {
        ListedState::Dead => &[Deed::Requeue, Deed::Purge],
        ListedState::Ended => &[],
        _ => &[Deed::Cancel],
    };
    deeds.iter().copied().filter(|deed| visitor.caller.may(role_of(*deed))).collect()
}

/// The beginning of a row: its box, if something can be done with it.
pub(super) fn tick<'c>(deeds: &[Deed], id: &str) -> Vec<PageCell<'c>> {
    let tick = html! { input type="checkbox" name=(BOX) value=(id) aria-label={ "Choose " (id) }; };
    if deeds.is_empty() { Vec::new() } else { vec![cell(BOXES, tick)] }
}

/// A list with boxes, and the buttons that lead to the page that asks.
pub(super) fn form(queue: &str, deeds: &[Deed], place: &[(&str, &str)], list: &Markup) -> Markup {
    html! {
        @if deeds.is_empty() { (list) } @else {
            form.chosen method="get" action={ (queue_path(queue)) "/chosen" } {
                @for (name, value) in place { input type="hidden" name=(name) value=(value); }
                (list)
                div.actions {
                    span.note { "With the chosen ones:" }
                    @for deed in deeds {
                        button name="what" value=(<&str>::from(deed)) { (deed.label()) "…" }
                    }
                }
            }
        }
    }
}

/// The values that lead back to the list.
fn place(values: &Values) -> Vec<(&str, &str)> {
    let state = values.get("state").map(|state| ("state", state));
    values.filter_pairs().into_iter().chain(state).collect()
}

/// The link to the list.
fn trail(list: &str, name: &str, place: &[(&str, &str)]) -> Markup {
    let page = if is_of_queue(place) { "Queue " } else { "Dead letters of " };
    html! { a href=(list) { (page) (data(name)) } }
}

fn is_of_queue(place: &[(&str, &str)]) -> bool {
    place.iter().any(|(name, _)| *name == "state")
}

/// The address of the list.
pub(super) fn back(name: &str, place: &[(&str, &str)]) -> String {
    let page = if is_of_queue(place) { queue_path(name) } else { dead_path(name) };
    format!("{}#tasks", link(&page, place))
}

fn ids(values: &Values) -> Result<Vec<String>, ApiProblem> {
    let ids: Vec<String> = values.all(BOX).map(str::to_owned).collect();
    match ids.len() {
        0 => Err(invalid("no row is chosen: go back, and tick the boxes of some")),
        1..=MOST_IDS => Ok(ids),
        many => Err(invalid(format!("{many} rows are chosen, and {MOST_IDS} at most go together"))),
    }
}

/// The chosen tasks that the work did not reach in time.
fn not_reached(ids: &[String], done: &ManyDone) -> u64 {
    (ids.len() as u64).saturating_sub(done.examined)
}

/// A line about the rows that are skipped, if there are any.
fn left_out(deed: Deed, skipped: u64) -> Markup {
    html! {
        @if skipped > 0 {
            p.error {
                (plural(skipped, "chosen row")) " left out: " (deed.why_skipped())
                @if matches!(deed, Deed::Requeue | Deed::Purge) {
                    ", or not among the newest 5,000 dead letters and without a status"
                }
                "."
            }
        }
    }
}

/// Shows the chosen tasks, and asks.
pub(super) async fn confirm(call: PageCall, Path(name): Path<String>) -> PageAnswer {
    let asked = [Deed::Cancel, Deed::Requeue, Deed::Purge];
    let deed = asked.into_iter().find(|deed| call.values.get("what") == Some((*deed).into()));
    let deed = deed.ok_or_else(|| invalid("what: it is neither cancel, requeue nor purge"))?;
    let ids = ids(&call.values)?;
    let queue = call.dashboard.api.queue(&name).await?;
    let may = call.visitor.caller.may(role_of(deed));
    let queues = call.dashboard.api.queues();
    let counted = match may {
        true => act_on_named(&queues, &queue, &ids, (deed, None), true, None).await?,
        false => ManyDone { examined: ids.len() as u64, ..ManyDone::default() },
    };
    let (count, left) = (counted.succeeded, not_reached(&ids, &counted));
    let sample = TaskSample::of_ids(&queue, &ids, call.dashboard.api.mask()).await?;
    let (words, place) = (plural(count, deed.noun()), place(&call.values));
    let back = back(&name, &place);
    let form = ConfirmForm {
        action: format!("{}/chosen/{}", queue_path(&name), <&str>::from(deed)),
        hidden: html! {
            @for (name, value) in &place { input type="hidden" name=(name) value=(value); }
            @for id in &ids { input type="hidden" name=(BOX) value=(id); }
        },
        why: Some((false, String::new())),
        button: format!("{} {words}", deed.label()),
        is_dangerous: deed != Deed::Requeue,
    };
    let asked = Confirmation {
        trail: trail(&back, &name, &place),
        back: &back,
        heading: format!("{} {words} of", deed.label()),
        name: &name,
        told: html! {
            p.count { strong { (words) } " of queue " (data(&name)) ", chosen by hand." }
            (left_out(deed, counted.skipped))
            @if left > 0 { p.error { (plural(left, "row")) " not counted in time: they are meant, too." } }
            @if may && count == 0 { p { "There is nothing to do." } }
            (samples(&name, &sample))
            @match deed {
                Deed::Requeue => {}
                Deed::Purge => p.error { "What is purged is deleted for good." },
                _ => p.error {
                    "They are cancelled for good, with the tasks of their flows. A handler that runs is \
                     stopped."
                },
            }
        },
        role: role_of(deed),
        form: (count > 0).then_some(form),
        more: html! {},
    };
    Ok(asked.page(&call.visitor))
}

/// Works on the chosen tasks, and says what became of them.
pub(super) async fn act(call: PageCall, Path(name): Path<String>, deed: Deed) -> PageAnswer {
    let (ids, why) = (ids(&call.values)?, call.values.trimmed("why"));
    check_why(why)?;
    let queue = call.dashboard.api.queue(&name).await?;
    let note = AuditNote { ids: ids.clone(), ..AuditNote::queue(&name) };
    let queues = call.dashboard.api.queues();
    let done = match act_on_named(&queues, &queue, &ids, (deed, None), false, None).await {
        Ok(done) => done,
        Err(error) => return changed(note, Err(error)),
    };
    let (count, left) = (done.succeeded, not_reached(&ids, &done));
    let words = plural(count, deed.noun());
    if count > 0 {
        let change = ChangeView::chosen(deed, &call.visitor.caller.name).queue(&name);
        changes::note(&queue.link, change.detail(&format!("{words}, chosen by hand")).why(why)).await;
    }
    // The status of a purged task would tell how it had ended before the purge.
    let mut rows = Vec::new();
    for id in ids.iter().take(SHOWN).filter(|_| deed != Deed::Purge) {
        // The work is done, so an error of Redis does not fail the page.
        let task = patiently(|| queue.status(id)).await.ok().flatten();
        let status = task.map_or_else(|| html! { (NONE) }, |task| state(task.summary.status.into_str()));
        rows.push(vec![to_task("Task", &task_path(&name, id), id), cell("State now", status)]);
    }
    let place = place(&call.values);
    let list = back(&name, &place);
    let title = format!("{words} {} {}", if count == 1 { "is" } else { "are" }, deed.done());
    let main = html! {
        p.trail { (trail(&list, &name, &place)) }
        h1 { (title) }
        @if count > 0 { p.done role="status" { (title) ", chosen by hand." } }
        (left_out(deed, done.skipped))
        @if left > 0 { p.error { (plural(left, "row")) " not reached in time: choose them again." } }
        @if !rows.is_empty() { (table("The chosen tasks", rows)) }
        p { a.button href=(list) { "Back to the list" } }
    };
    let note = note.with_counts(count, done.skipped);
    Ok(note.on(page(&call.visitor, &title, &main)))
}
