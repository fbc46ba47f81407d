//! Requeue and purge of the dead letters that match: a page that counts and asks, and the steps.
//!
//! The page begins the walk: its cursor says which dead letter is the last one, so those that die after the
//! count are left alone. A step is bounded; where more is left, its page has a form that goes on. So has the
//! page that counts: it hands on where the walk began, where it goes on, and what it has counted.

use axum::Extension;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::layout::{form_token, page};
use super::problem::PageProblem;
use super::queue::invalid;
use super::session::Visitor;
use super::state::Dashboard;
use super::text::{data, plural};
use super::values::{Values, dead_path, link};
use crate::admin::audit::AuditNote;
use crate::admin::problem::ApiProblem;
use crate::config::model::Rate;
use crate::config::units::parse_rate;
use crate::operations::{DeadPart, redrive_part, redrive_walk};
use crate::queue::redrive::{Counted, Redrive};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    Requeue,
    Purge,
}

impl Deed {
    fn verb(self) -> &'static str {
        match self {
            Deed::Requeue => "requeue",
            Deed::Purge => "purge",
        }
    }

    fn label(self) -> &'static str {
        match self {
            Deed::Requeue => "Requeue",
            Deed::Purge => "Purge",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Deed::Requeue => "requeued",
            Deed::Purge => "deleted",
        }
    }
}

/// Counts, and asks.
pub(super) async fn confirm(
    State(dashboard): State<Dashboard>,
    visitor: Extension<Visitor>,
    Path(name): Path<String>,
    values: Values,
) -> Result<Response, PageProblem> {
    let deed = match values.get("what") {
        Some("requeue") => Deed::Requeue,
        Some("purge") => Deed::Purge,
        _ => return Err(invalid("what: it is neither requeue nor purge").into()),
    };
    let (filter, rate) = (values.filter(dashboard.api.mask())?, rate(&values)?);
    let queue = dashboard.api.queue(&name).await?;
    let begin = match values.get("begin") {
        Some(begin) => begin.to_owned(),
        None => redrive_walk(&queue).await?,
    };
    let dead = queue.census().await?.dead;
    // Every dead letter can be purged. Others are counted in steps, as a page is bounded.
    let is_known = filter.is_empty() && deed == Deed::Purge;
    let (count, examined, next) = if is_known {
        (dead, dead, None)
    } else {
        // Asking which of them can be requeued would cost Redis several commands for each.
        let what = Redrive::Count(if deed == Deed::Purge { Counted::Purged } else { Counted::Tried });
        let at = values.get("at").unwrap_or(&begin);
        let part = redrive_part(&queue, DeadPart { filter: &filter, what, cursor: Some(at) }).await?;
        (values.sum("counted", part.succeeded), values.sum("examined", part.examined), part.next)
    };
    let has_more = next.is_some();
    let path = dead_path(&name);
    let many = plural(count, "dead letter");
    let title = format!("{} dead letters of {name}", deed.label());
    let main = html! {
        p.trail { a href=(link(&path, &values.filter_pairs())) { "Dead letters of " (data(&name)) } }
        h1 { (deed.label()) " dead letters" }
        p.count {
            @if has_more { "At least " }
            strong { (many) } " of queue " (data(&name))
            @if !filter.is_empty() || has_more { " match." }
            @else if count == examined { ": all of them." }
            @else { " can be requeued." }
            @if !is_known { " " (examined) " were looked at" @if has_more { ", the oldest of " (dead) } "." }
        }
        (filter_words(&values))
        @if deed == Deed::Purge { p.error { "What is purged is deleted for good. Export it before." } }
        (export_link(&dashboard, &path, &values))
        @if deed == Deed::Purge {
            p.note {
                "`tqhost dead import` brings them back. The last line of the file says how many it has: \
                 those of the newest 100,000 dead letters. It also says how to get older ones."
            }
        }
        @if !visitor.may_change() {
            p { "This session may only read." }
        } @else if count == 0 && !has_more {
            p { "There is nothing to do." }
        } @else if count > 0 {
            @let label = confirm_label(deed, if has_more { "all that match" } else { &many }, rate);
            (step_form(&visitor, &path, deed, &values, &begin, [0, 0], &label, None))
        }
        @if let Some(next) = &next {
            p.note {
                "Younger ones may match, too."
                @if count == 0 { " With JavaScript this page goes on by itself; leave it to stop." }
            }
            (count_form(&path, deed, &values, &begin, next, [count, examined]))
        }
        p { a href=(link(&path, &values.filter_pairs())) { "Back, without a change" } }
    };
    Ok(page(&visitor, &title, &main))
}

/// Counts further. As long as none is found there is nothing else to do, so it goes on by itself.
fn count_form(
    path: &str,
    deed: Deed,
    values: &Values,
    begin: &str,
    at: &str,
    [counted, examined]: [u64; 2],
) -> Markup {
    html! {
        form method="get" action={ (path) "/confirm" } data-continue[counted == 0] {
            input type="hidden" name="what" value=(deed.verb());
            (values.hidden_filter())
            @if let Some(rate) = values.get("rate") { input type="hidden" name="rate" value=(rate); }
            input type="hidden" name="begin" value=(begin);
            input type="hidden" name="at" value=(at);
            input type="hidden" name="counted" value=(counted);
            input type="hidden" name="examined" value=(examined);
            button { "Go on counting" }
        }
    }
}

/// The link to the file with the dead letters that match.
pub(super) fn export_link(dashboard: &Dashboard, path: &str, values: &Values) -> Markup {
    html! {
        @if dashboard.api.gives_whole_letters().is_ok() {
            p { a href=(link(&format!("{path}/export"), &values.filter_pairs())) { "Export as JSON lines" } }
        } @else {
            p.note { "Fields are hidden here, so there is no export: use `tqhost dead purge --out FILE`." }
        }
    }
}

fn confirm_label(deed: Deed, many: &str, rate: Option<Rate>) -> String {
    let pace =
        rate.map(|rate| format!(", {} every {}", rate.count, crate::config::units::show_duration(rate.per)));
    format!("{} {many}{}", deed.label(), pace.unwrap_or_default())
}

fn filter_words(values: &Values) -> Markup {
    html! {
        @let pairs = values.filter_pairs();
        @if !pairs.is_empty() {
            dl.facts { @for (name, value) in pairs { dt { (name) } dd { (data(value)) } } }
        }
    }
}

#[allow(clippy::too_many_arguments, reason = "these are the fields of one form")]
fn step_form(
    visitor: &Visitor,
    path: &str,
    deed: Deed,
    values: &Values,
    cursor: &str,
    so_far: [u64; 2],
    label: &str,
    goes_on_in: Option<u64>,
) -> Markup {
    html! {
        form method="post" action={ (path) "/" (deed.verb()) } data-continue=[goes_on_in] {
            (form_token(visitor))
            (values.hidden_filter())
            @if let Some(rate) = values.get("rate") { input type="hidden" name="rate" value=(rate); }
            input type="hidden" name="cursor" value=(cursor);
            input type="hidden" name="succeeded" value=(so_far[0]);
            input type="hidden" name="skipped" value=(so_far[1]);
            button class=[(deed == Deed::Purge).then_some("danger")] { (label) }
        }
    }
}

pub(super) async fn requeue(
    State(dashboard): State<Dashboard>,
    visitor: Extension<Visitor>,
    Path(name): Path<String>,
    values: Values,
) -> Result<Response, PageProblem> {
    let what = Redrive::Requeue(rate(&values)?);
    step(&dashboard, &visitor, &name, &values, Deed::Requeue, what).await
}

pub(super) async fn purge(
    State(dashboard): State<Dashboard>,
    visitor: Extension<Visitor>,
    Path(name): Path<String>,
    values: Values,
) -> Result<Response, PageProblem> {
    step(&dashboard, &visitor, &name, &values, Deed::Purge, Redrive::Purge).await
}

async fn step(
    dashboard: &Dashboard,
    visitor: &Visitor,
    name: &str,
    values: &Values,
    deed: Deed,
    what: Redrive,
) -> Result<Response, PageProblem> {
    let filter = values.filter(dashboard.api.mask())?;
    let cursor = values.counted_cursor()?;
    let queue = dashboard.api.queue(name).await?;
    let note = AuditNote::queue(name).with_filter(&values.filter_map());
    let part = match redrive_part(&queue, DeadPart { filter: &filter, what, cursor: Some(cursor) }).await {
        Ok(part) => part,
        Err(error) => return Ok(note.on(PageProblem::from(error).into_response())),
    };
    let note = note.with_counts(part.succeeded, part.skipped);
    let so_far = [values.sum("succeeded", part.succeeded), values.sum("skipped", part.skipped)];
    let path = dead_path(name);
    let main = html! {
        p.trail { a href=(path) { "Dead letters of " (data(name)) } }
        h1 { (deed.label()) " dead letters" }
        p.done role="status" {
            (plural(so_far[0], "dead letter")) " "
            @if so_far[0] == 1 { "is " } @else { "are " } (deed.done())
            @if so_far[1] > 0 { ", " (so_far[1]) " skipped: they are not dead any more, or can never run" }
            @if part.next.is_some() { "; more are left." } @else { ", and none is left that was counted." }
        }
        @if part.without_flow > 0 {
            p.note { (part.without_flow) " of this step belong to a flow that is not known any more." }
        }
        @if let Some(next) = &part.next {
            p.note { "With JavaScript this page goes on by itself; leave it to stop." }
            @let wait = part.wait_ms.unwrap_or(0);
            (step_form(visitor, &path, deed, values, next, so_far, "Go on", Some(wait)))
        }
        p { a href=(super::values::queue_path(name)) { "Watch queue " (data(name)) } }
        p { a href=(path) { "To the dead letters" } }
    };
    Ok(note.on(page(visitor, deed.label(), &main)))
}

fn rate(values: &Values) -> Result<Option<Rate>, ApiProblem> {
    let rate = values.get("rate").map(|text| parse_rate(text.trim())).transpose();
    rate.map_err(|why| invalid(format!("rate: {why}")))
}
