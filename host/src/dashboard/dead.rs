//! The dead letters of a queue: in groups, as a list, and what can be done with those that match.
//!
//! Not here: doing it (`act`).

use axum::extract::Path;
use maud::{Markup, html};

use super::act::export_link;
use super::chosen;
use super::layout::{done, field, page};
use super::list::{ShownTasks, list_request};
use super::problem::PageAnswer;
use super::session::Visitor;
use super::state::PageCall;
use super::table::{cell, count, table, text_or_none, time};
use super::text::{data, grouped, plural, version};
use super::values::{Values, dead_path, link, queue_path};
use crate::api::dead::download;
use crate::api::reasons;
use crate::builds::Builds;
use crate::clock::now_ms;
use crate::operations::jobs::Deed;
use crate::operations::{
    self, GroupBy, GroupKey, GroupKind, TaskGroup, TaskGroups, known_builds, task_groups,
};
use crate::queue::hosts;
use crate::queue::listing::ListedState;

/// Causes on a page.
const GROUPS: usize = 50;

pub(super) async fn show(call: PageCall, Path(name): Path<String>) -> PageAnswer {
    let PageCall { dashboard, visitor, values } = call;
    let filter = values.filter(dashboard.api.mask())?;
    let queue = dashboard.api.queue(&name).await?;
    let by = GroupKind::Property(GroupBy::Cause);
    let groups = task_groups(&queue, ListedState::Dead, &filter, by, None, GROUPS).await?;
    let request = list_request(ListedState::Dead, filter.clone(), &values);
    let list = operations::list(&queue, &request).await?;
    // Labels are those of the hosts that answer.
    let builds = known_builds(&hosts::list_known(&queue.link).await.unwrap_or_default());
    let path = dead_path(&name);
    let (listed, values) = (ListedState::Dead, &values);
    let tasks = ShownTasks { visitor: &visitor, rules: &queue.rules, listed, values, builds: &builds };
    let is_empty = groups.examined == 0 && list.examined == 0 && filter.is_empty();
    let main = html! {
        p.trail { a href=(queue_path(&name)) { "Queue " (data(&name)) } }
        h1 { "Dead letters of " (data(&name)) }
        (done(values))
        @if is_empty {
            p.quiet {
                "There are none. A task that will not be tried again is kept here, with its reason and its \
                 fields, until somebody requeues or purges it."
            }
        } @else {
            (filter_form(&path, values))
            section aria-labelledby="groups" {
                h2 id="groups" { "Causes" }
                (group_table(&path, &groups, values, &builds, &chosen::deeds(&visitor, listed)))
            }
            section aria-labelledby="act" {
                h2 id="act" {
                    @if filter.is_empty() { "Act on all of them" } @else { "Act on those that match" }
                }
                (actions(&visitor, &path, values))
                (export_link(&path, values))
            }
            section aria-labelledby="tasks" {
                h2 id="tasks" { "The newest ones" }
                (tasks.section(&list))
            }
        }
    };
    Ok(page(&visitor, &format!("Dead letters of {name}"), &main))
}

/// The download of those that match, as JSON lines, the newest first. Its last line has the cursor of the
/// rest.
pub(super) async fn export(call: PageCall, Path(name): Path<String>) -> PageAnswer {
    let PageCall { dashboard, values, .. } = call;
    let filter = values.filter(dashboard.api.mask())?;
    let queue = dashboard.api.queue(&name).await?;
    let permit = dashboard.api.stream_place()?;
    let lines = operations::export(queue, filter, values.get("cursor"), None, permit)?;
    Ok(download(lines, &format!("{name}-dead")))
}

fn filter_form(path: &str, values: &Values) -> Markup {
    let chosen = values.get("reason");
    html! {
        form.filter method="get" action=(path) role="search" aria-label="Filter of dead letters" {
            label { "Reason "
                select name="reason" {
                    option value="" { "any" }
                    @for reason in reasons() {
                        option value=(reason) selected[chosen == Some(reason)] { (reason) }
                    }
                }
            }
            (values.condition_inputs())
            (values.time_inputs())
            (values.inputs(&[
                ("Text in id, error or field", "text", None),
                ("Text in the error (… for any)", "error", None),
                ("Version", "version", None),
                ("Died less than … ago", "newer_than", Some("1h")),
            ]))
            button { "Filter" }
            @if !values.filter_pairs().is_empty() { a href=(path) { "Show all" } }
        }
    }
}

fn group_table(path: &str, groups: &TaskGroups, values: &Values, builds: &Builds, deeds: &[Deed]) -> Markup {
    let now = now_ms();
    // A group is chosen in addition to what is filtered already. A deed leads to the page that asks.
    let narrowed = |group: &TaskGroup, deed: Option<Deed>| {
        let mut pairs: Vec<(&str, &str)> = values.filter_pairs();
        pairs.retain(|(name, _)| !["reason", "version", "error"].contains(name));
        let [reason, version, error] = asked(group);
        let narrowing = [("reason", reason), ("version", version), ("error", error.or(values.get("error")))];
        pairs.extend(narrowing.map(|(name, value)| (name, value.unwrap_or_default())));
        pairs.extend(deed.map(|deed| ("what", deed.into())));
        link(&format!("{path}{}", if deed.is_some() { "/confirm" } else { "" }), &pairs)
    };
    let row = |group: &TaskGroup| {
        let error = group.key.error.as_deref().filter(|error| !error.is_empty());
        let error = html! { @match error { Some(error) => (data(error)), None => "no error" } };
        let is_exact = !takes_more(group, groups);
        let error = html! { @if is_exact { a href=(narrowed(group, None)) { (error) } } @else { (error) } };
        let acts = html! {
            @for deed in deeds.iter().filter(|_| is_exact) {
                a.button href=(narrowed(group, Some(*deed))) { (deed.label()) "…" } " "
            }
        };
        let act = (!deeds.is_empty()).then(|| cell("Act", acts));
        let row = vec![
            cell("Error", error),
            text_or_none("Reason", group.key.reason.as_deref()),
            cell("Version", version(group.key.version.as_deref(), builds)),
            count("Count", group.count),
            time("First", Some(group.oldest_at), now),
            time("Last", Some(group.newest_at), now),
        ];
        row.into_iter().chain(act).collect()
    };
    html! {
        p.note {
            (plural(groups.matching, "dead letter")) " of the " (grouped(groups.examined as u64))
            @if groups.next.is_none() { " that there are." }
            @else { " newest ones that were looked at; there are more." }
        }
        @if !groups.groups.is_empty() { (table("Causes", groups.groups.iter().map(row))) }
        @if groups.others > 0 {
            p.note { (plural(groups.others, "dead letter")) " are in smaller groups, which are not shown." }
        }
    }
}

/// The reason, version and error of a group that a filter can ask for. It cannot ask for an empty one.
fn asked(group: &TaskGroup) -> [Option<&str>; 3] {
    let GroupKey { reason, version, error, .. } = &group.key;
    [reason, version, error].map(|text| text.as_deref().filter(|text| !text.trim().is_empty()))
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
                (field("rate", "Requeue no faster than", "50/s", "Empty: as fast as it goes."))
                div.actions {
                    button name="what" value="requeue" { "Requeue…" }
                    @if visitor.may_administer() { button name="what" value="purge" { "Purge…" } }
                    button name="what" value="export" { "Export…" }
                }
                p.note { "The next page counts them, and asks." }
            }
        }
    }
}
