//! The dead letters of a queue: in groups, as a list, and what can be done with those that match.
//!
//! Not here: doing it (`act`).

use axum::Extension;
use axum::extract::{Path, State};
use axum::response::Response;
use maud::{Markup, html};

use super::act::export_link;
use super::layout::{done, page, shown, table};
use super::problem::PageProblem;
use super::queue::next;
use super::session::Visitor;
use super::state::Dashboard;
use super::text::{data, data_or_none, moment, plural, version};
use super::values::{Values, dead_path, link, queue_path, task_path};
use crate::api::dead::download;
use crate::builds::Builds;
use crate::clock::now_ms;
use crate::config::QueueRules;
use crate::operations::{
    self, DeadList, GroupBy, GroupKind, TaskGroup, TaskGroups, dead_list, known_builds, task_groups,
};
use crate::queue::dead::{DRAINED, FOREIGN};
use crate::queue::listing::ListedState;
use crate::queue::{Reason, hosts};

/// Dead letters on a page.
const LETTERS: usize = 25;
/// Causes on a page.
const GROUPS: usize = 50;

pub(super) async fn show(
    State(dashboard): State<Dashboard>,
    visitor: Extension<Visitor>,
    Path(name): Path<String>,
    values: Values,
) -> Result<Response, PageProblem> {
    let filter = values.filter(dashboard.api.mask())?;
    let queue = dashboard.api.queue(&name).await?;
    let by = GroupKind::Property(GroupBy::Cause);
    let groups = task_groups(&queue, ListedState::Dead, &filter, by, None, GROUPS).await?;
    let list = dead_list(&queue, &filter, values.get("cursor"), LETTERS, false).await?;
    // Labels are those of the hosts that answer.
    let builds = known_builds(&hosts::list_known(&queue.link).await.unwrap_or_default());
    let path = dead_path(&name);
    let main = html! {
        p.trail { a href=(queue_path(&name)) { "Queue " (data(&name)) } }
        h1 { "Dead letters of " (data(&name)) }
        (done(&values))
        (filter_form(&path, &values))
        section aria-labelledby="groups" {
            h2 id="groups" { "Causes" }
            (group_table(&path, &groups, &values, &builds))
        }
        section aria-labelledby="act" {
            h2 id="act" { @if filter.is_empty() { "Act on all of them" } @else { "Act on those that match" } }
            (export_link(&path, &values))
            (actions(&visitor, &path, &values))
        }
        section aria-labelledby="list" {
            h2 id="list" { "The newest ones" }
            (letters(&queue.rules, &list, &builds))
            (next(&path, list.next.as_deref(), list.examined, &values, "", "list"))
        }
    };
    Ok(page(&visitor, &format!("Dead letters of {name}"), &main))
}

/// The download of those that match, as JSON lines, the newest first. Its last line has the cursor of the
/// rest.
pub(super) async fn export(
    State(dashboard): State<Dashboard>,
    Path(name): Path<String>,
    values: Values,
) -> Result<Response, PageProblem> {
    let filter = values.filter(dashboard.api.mask())?;
    let queue = dashboard.api.queue(&name).await?;
    let permit = dashboard.api.stream_place()?;
    let lines = operations::export(queue, filter, values.get("cursor"), false, permit)?;
    Ok(download(lines, &format!("{name}-dead")))
}

fn filter_form(path: &str, values: &Values) -> Markup {
    let value = |name: &str| values.get(name).unwrap_or_default().to_owned();
    let reasons = <Reason as strum::VariantArray>::VARIANTS.iter().map(|reason| reason.into_str());
    let chosen = values.get("reason");
    html! {
        form.filter method="get" action=(path) role="search" aria-label="Filter of dead letters" {
            label { "Reason "
                select name="reason" {
                    option value="" { "any" }
                    @for reason in reasons.chain([FOREIGN, DRAINED]) {
                        option value=(reason) selected[chosen == Some(reason)] { (reason) }
                    }
                }
            }
            (values.condition_inputs())
            (values.time_inputs())
            label { "Text in id, error or field " input name="text" value=(value("text")); }
            label { "Text in the error (… for any) " input name="error" value=(value("error")); }
            label { "Version " input name="version" value=(value("version")); }
            label { "Died less than … ago "
                input name="newer_than" placeholder="1h" value=(value("newer_than")); }
            button { "Filter" }
            @if !values.filter_pairs().is_empty() { a href=(path) { "Show all" } }
        }
    }
}

fn group_table(path: &str, groups: &TaskGroups, values: &Values, builds: &Builds) -> Markup {
    let now = now_ms();
    // A group is chosen in addition to what is filtered already.
    let narrowed = |group: &TaskGroup| {
        let mut pairs: Vec<(&str, &str)> = values.filter_pairs();
        pairs.retain(|(name, _)| !["reason", "version", "error"].contains(name));
        let [reason, version, error] = asked(group);
        let narrowing = [("reason", reason), ("version", version), ("error", error.or(values.get("error")))];
        pairs.extend(narrowing.map(|(name, value)| (name, value.unwrap_or_default())));
        link(path, &pairs)
    };
    let rows = html! {
        @for group in &groups.groups {
            tr {
                th scope="row" {
                    @let error = group.error.as_deref().filter(|error| !error.is_empty());
                    @let error = html! {
                        @match error { Some(error) => (data(error)), None => "no error" }
                    };
                    @if takes_more(group, groups) { (error) } @else { a href=(narrowed(group)) { (error) } }
                }
                td { (data_or_none(group.reason.as_deref())) }
                td { (version(group.version.as_deref(), builds)) }
                td.number { (group.count) }
                td { (moment(Some(group.oldest_at), now)) }
                td { (moment(Some(group.newest_at), now)) }
            }
        }
    };
    html! {
        p.note {
            (plural(groups.matching, "dead letter")) " of the " (groups.examined)
            @if groups.next.is_none() { " that there are." }
            @else { " newest ones that were looked at; there are more." }
        }
        @if !groups.groups.is_empty() {
            (table("Causes", &["Error", "Reason", "Version", "#Count", "First", "Last"], &rows))
        }
        @if groups.others > 0 {
            p.note { (plural(groups.others, "dead letter")) " are in smaller groups, which are not shown." }
        }
    }
}

/// The reason, version and error of a group that a filter can ask for. It cannot ask for an empty one.
fn asked(group: &TaskGroup) -> [Option<&str>; 3] {
    [&group.reason, &group.version, &group.error]
        .map(|text| text.as_deref().filter(|text| !text.trim().is_empty()))
}

/// Whether the filter of a group may take dead letters of others, too.
fn takes_more(group: &TaskGroup, all: &TaskGroups) -> bool {
    let own = asked(group);
    let shares =
        |other: &&TaskGroup| own.iter().zip(asked(other)).all(|(own, other)| own.is_none() || *own == other);
    let is_alone = || all.others == 0 && all.next.is_none() && all.groups.iter().filter(shares).count() == 1;
    own.contains(&None) && !is_alone()
}

fn actions(visitor: &Visitor, path: &str, values: &Values) -> Markup {
    html! {
        @if visitor.may_change() {
            form.stacked method="get" action={ (path) "/confirm" } {
                (values.hidden_filter())
                label for="rate" { "Requeue no faster than" }
                input id="rate" name="rate" placeholder="50/s" aria-describedby="rate-note";
                p.note id="rate-note" { "Empty: as fast as it goes." }
                div.actions {
                    button name="what" value="requeue" { "Requeue…" }
                    @if visitor.may_administer() { button name="what" value="purge" { "Purge…" } }
                }
                p.note { "The next page counts them, and asks." }
            }
        }
    }
}

fn letters(rules: &QueueRules, list: &DeadList, builds: &Builds) -> Markup {
    let queue = &rules.name;
    let mut columns = vec!["Id", "Reason"];
    columns.extend(rules.show.iter().map(|place| place.name.as_str()));
    columns.extend(["#Attempts", "Died", "Version", "Error"]);
    let now = now_ms();
    let rows = html! {
        @for letter in &list.dead {
            tr {
                th scope="row" { a href=(task_path(queue, &letter.id)) { (data(&letter.id)) } }
                td { (data(&letter.reason)) }
                (shown(&letter.columns))
                td.number { (letter.attempts) }
                td { (moment(Some(letter.failed_at), now)) }
                td { (version(Some(&letter.plugin), builds)) }
                td { (data_or_none(Some(&letter.error))) }
            }
        }
    };
    html! {
        @if list.dead.is_empty() {
            p.quiet { "None among the " (list.examined) " that were looked at." }
        } @else {
            (table("Dead letters", &columns, &rows))
        }
    }
}
