//! Plugins: their versions and states on each host, what happened to them lately; roll back, lift a
//! quarantine, reload.

use std::collections::BTreeMap;

use axum::Extension;
use axum::extract::{Path, State};
use axum::response::{Redirect, Response};
use maud::{Markup, html};

use super::layout::{button, done, form_token, page, state, table};
use super::problem::PageProblem;
use super::queue_history;
use super::session::Visitor;
use super::state::Dashboard;
use super::text::{NONE, data, data_or_none, moment, plural, size};
use super::values::{Values, plugin_path};
use crate::admin::audit::AuditNote;
use crate::admin::base_path::at;
use crate::admin::problem::{ApiProblem, ProblemCode};
use crate::chain::chain;
use crate::clock::now_ms;
use crate::operations::history::{self, VersionView};
use crate::operations::{self, PluginView, lift, plugin_rows, withdraw, withdraw_preview};
use crate::queue::hosts;
use crate::queue::hosts::HostPlugin;

/// Changes of a plugin that are shown.
const CHANGES: usize = 10;

const COLUMNS: [&str; 10] = [
    "Plugin",
    "Host",
    "State",
    "Version",
    "Why",
    "Loaded",
    "#Attempts",
    "#Spoiled",
    "#Peak memory",
    "#Rolled back",
];

pub(super) async fn show(
    State(dashboard): State<Dashboard>,
    visitor: Extension<Visitor>,
    values: Values,
) -> Result<Response, PageProblem> {
    let link = dashboard.api.link().await?;
    let hosts = hosts::list(link).await?;
    let rows = plugin_rows(&hosts);
    let outcomes = history::versions(&dashboard.api.queues(), link).await;
    let main = html! {
        h1 { "Plugins" }
        (done(&values))
        section aria-labelledby="versions" data-live="versions" {
            h2 id="versions" { "Versions on each host" }
            @if rows.is_empty() {
                p.quiet { "No host has announced its plugins in the last 15 seconds." }
            } @else {
                (table("Plugins", &COLUMNS, &html! { @for row in &rows { (line(row)) } }))
            }
        }
        section aria-labelledby="outcomes" data-live="outcomes" {
            h2 id="outcomes" { "Outcomes of the last hour" }
            (outcomes_table(outcomes.map_err(|error| chain(&error)), &rows))
        }
        @if visitor.may_administer() && !rows.is_empty() { (orders(&visitor, &rows)) }
        section aria-labelledby="history" data-live="history" {
            h2 id="history" { "What happened to them" }
            @for row in &rows { (history(row)) }
        }
    };
    Ok(page(&visitor, "Plugins", &main))
}

/// The outcomes of each version, from the history of all queues.
fn outcomes_table(outcomes: Result<Vec<VersionView>, String>, rows: &[PluginView]) -> Markup {
    let versions = match outcomes {
        Err(why) => return html! { p.quiet { "The history cannot be read: " (data(&why)) } },
        Ok(versions) if versions.is_empty() => {
            return html! { p.quiet { "No attempt has ended in the last hour." } };
        }
        Ok(versions) => versions,
    };
    // A host counts the memory of a plugin, whatever its version.
    let peak = |version: &str| {
        let name = version.rsplit_once('@').map_or(version, |(name, _)| name);
        let of_plugin = rows.iter().filter(|row| row.plugin.name == name);
        of_plugin.map(|row| row.plugin.peak_memory).max()
    };
    let columns: Vec<&str> =
        queue_history::COLUMNS.into_iter().chain(["#Peak memory of the plugin"]).collect();
    let lines = html! {
        @for version in &versions {
            tr {
                (queue_history::version_cells(version))
                td.number { @match peak(&version.version) { Some(bytes) => (size(bytes)), None => (NONE) } }
            }
        }
    };
    html! {
        (table("Outcomes by version", &columns, &lines))
        p.note { "All hosts and queues together, by the minute. A minute is there when it is over." }
    }
}

/// The forms of the orders, which are for all hosts.
fn orders(visitor: &Visitor, rows: &[PluginView]) -> Markup {
    // The hosts that run each version of each plugin.
    let mut running: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
    for PluginView { plugin, .. } in rows {
        let versions = running.entry(&plugin.name).or_default();
        plugin.version.iter().for_each(|version| *versions.entry(version).or_default() += 1);
    }
    let version = |name: &str, what: &str, note: &str| {
        let id = format!("{what}-version-{name}");
        html! {
            label for=(id) { "Version, or its first 8 digits" }
            input id=(id) name="version" placeholder=(note);
        }
    };
    html! {
        section aria-labelledby="orders" {
            h2 id="orders" { "Roll back, lift, and reload" }
            p.note {
                "These are for all hosts, and hold within seconds. A version that is rolled back is \
                 withdrawn: each host goes back to the good version before it. Where a host knows none, the \
                 queues of the plugin wait. Lifting lets a version run again that was withdrawn or \
                 that hosts have put in quarantine. To reload is to look at the file now: a changed file is \
                 taken, and one that failed is tried again. A content in quarantine stays there until its \
                 file changes."
            }
            @for (name, versions) in running {
                @let path = plugin_path(name);
                h3 { (data(name)) }
                @for (version, hosts) in versions {
                    form.actions method="get" action={ (path) "/rollback" } {
                        input type="hidden" name="version" value=(version);
                        @let why = format!("why-{name}-{}", digits(version));
                        label for=(why) { "Why" }
                        input id=(why) name="why" required maxlength="200";
                        button.danger { "Roll back " (digits(version)) "…" }
                        span.note { "It runs on " (plural(hosts, "host")) "." }
                    }
                }
                form.actions method="post" action={ (path) "/lift" } {
                    (form_token(visitor))
                    (version(name, "lift", "the one in quarantine"))
                    button { "Lift the quarantine of " (data(name)) }
                }
                div.actions { (button(visitor, &format!("{path}/reload"), &format!("Reload {name}"))) }
            }
        }
    }
}

/// Says which version stops and which one starts, and asks.
pub(super) async fn confirm_rollback(
    State(dashboard): State<Dashboard>,
    visitor: Extension<Visitor>,
    Path(name): Path<String>,
    values: Values,
) -> Result<Response, PageProblem> {
    let (seen, why) = (seen(&values)?, values.get("why").unwrap_or_default());
    let view = withdraw_preview(dashboard.api.link().await?, &name, Some(seen), why)
        .await
        .map_err(ApiProblem::from)?;
    let [back, waiting] = [view.hosts_back, view.hosts_waiting].map(|hosts| hosts.unwrap_or_default() as u64);
    let (stops, starts) = (view.order.version.as_str(), view.back_to.iter().flatten());
    let starts: Vec<&str> = starts.map(|version| digits(version)).collect();
    let starts = if starts.is_empty() { "the version before it".to_owned() } else { starts.join(" or ") };
    let main = html! {
        p.trail { a href=(at("/plugins")) { "Plugins" } }
        h1 { "Roll back " (data(&name)) }
        @if back > 0 {
            p.count {
                strong { (digits(stops)) " stops, " (starts) " starts" } " on " (plural(back, "host")) "."
            }
        }
        @if waiting > 0 {
            p.error {
                (digits(stops)) " stops on " (plural(waiting, "host"))
                " with no version to go back to: the queues of the plugin wait there."
            }
        }
        dl.facts {
            dt { "Stops" } dd { code { (stops) } }
            dt { "Why" } dd { (data(why)) }
        }
        @if visitor.may_administer() {
            form method="post" action={ (plugin_path(&name)) "/rollback" } {
                (form_token(&visitor))
                input type="hidden" name="version" value=(stops);
                input type="hidden" name="why" value=(why);
                button.danger { "Roll back " (digits(stops)) }
            }
        } @else {
            p { "This needs the role admin." }
        }
        p { a href=(at("/plugins")) { "Back, without a change" } }
    };
    Ok(page(&visitor, &format!("Roll back {name}"), &main))
}

/// The version that the page showed.
fn seen(values: &Values) -> Result<&str, ApiProblem> {
    let missing = || ApiProblem::new(ProblemCode::Invalid, "version: begin at the page of the plugins");
    values.get("version").ok_or_else(missing)
}

pub(super) async fn roll_back(
    State(dashboard): State<Dashboard>,
    visitor: Extension<Visitor>,
    Path(name): Path<String>,
    values: Values,
) -> Result<Response, PageProblem> {
    let (seen, why) = (seen(&values)?, values.get("why").unwrap_or_default());
    withdraw(dashboard.api.link().await?, &name, seen, why, &operator(&visitor))
        .await
        .map_err(ApiProblem::from)?;
    let note = AuditNote { plugin: Some(name), ..AuditNote::default() };
    Ok(note.on(Redirect::to(&at("/plugins?done=withdrawn"))))
}

pub(super) async fn lift_quarantine(
    State(dashboard): State<Dashboard>,
    visitor: Extension<Visitor>,
    Path(name): Path<String>,
    values: Values,
) -> Result<Response, PageProblem> {
    let link = dashboard.api.link().await?;
    lift(link, &name, values.get("version"), &operator(&visitor)).await.map_err(ApiProblem::from)?;
    let note = AuditNote { plugin: Some(name), ..AuditNote::default() };
    Ok(note.on(Redirect::to(&at("/plugins?done=lifted"))))
}

/// The operator as orders, jobs and changes have it.
pub(super) fn operator(visitor: &Visitor) -> String {
    visitor.caller.name.to_string()
}

fn digits(version: &str) -> &str {
    version.get(..12).unwrap_or(version)
}

fn line(PluginView { host, plugin }: &PluginView) -> Markup {
    html! {
        tr {
            th scope="row" { (data(&plugin.name)) }
            td { (data(host)) }
            td { (state(&plugin.state)) @if plugin.on_probation { " on probation" } }
            td { (short(plugin.version.as_deref())) }
            td { (data_or_none(plugin.error.as_deref())) }
            td { (moment(plugin.loaded_at, now_ms())) }
            td.number { (plugin.attempts) }
            td.number { (plugin.failures) }
            td.number { (size(plugin.peak_memory)) }
            td.number { (plugin.rolled_back) }
        }
    }
}

fn short(version: Option<&str>) -> Markup {
    match version.and_then(|version| Some((version, version.get(..12)?))) {
        Some((version, digits)) => html! { code title=(version) { (digits) } },
        None => html! { (NONE) },
    }
}

fn history(PluginView { host, plugin }: &PluginView) -> Markup {
    let HostPlugin { name, history, .. } = plugin;
    let now = now_ms();
    let rows = html! {
        @for change in history.iter().rev().take(CHANGES) {
            tr {
                th scope="row" { (data(&change.what)) }
                td { (moment(Some(change.at), now)) }
                td { (short(change.version.as_deref())) }
                td { (data_or_none(change.reason.as_deref())) }
            }
        }
    };
    html! {
        @if !history.is_empty() {
            h3 { (data(name)) " on " (data(host)) }
            (table(&format!("Changes of {name} on {host}"), &["What", "When", "Version", "Why"], &rows))
        }
    }
}

pub(super) async fn reload(
    State(dashboard): State<Dashboard>,
    visitor: Extension<Visitor>,
    Path(name): Path<String>,
) -> Result<Response, PageProblem> {
    let by = operator(&visitor);
    operations::reload(dashboard.api.link().await?, &name, &by).await.map_err(ApiProblem::from)?;
    let note = AuditNote { plugin: Some(name), ..AuditNote::default() };
    Ok(note.on(Redirect::to(&at("/plugins?done=reloading"))))
}
