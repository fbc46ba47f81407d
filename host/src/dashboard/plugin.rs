//! The page of a plugin: its versions with what became of their attempts, its hosts, its grants, its changes.
//!
//! Not here: what the buttons of a version do (`orders`), the list of plugins (`plugins`).

use std::collections::BTreeMap;

use axum::extract::Path;
use maud::{Markup, html};

use super::layout::{button, done, page, state};
use super::problem::PageAnswer;
use super::queue_history::about_ms;
use super::session::Visitor;
use super::state::PageCall;
use super::table::{PageCell, cell, count, figure, table, text_or_none, time};
use super::text::{NONE, age, data, data_or_none, grouped, plural, size};
use super::values::{link, plugin_path, queue_path};
use crate::admin::base_path::at;
use crate::admin::problem::{ApiProblem, ProblemCode};
use crate::builds::{BuildNote, Builds, short};
use crate::chain::chain;
use crate::clock::now_ms;
use crate::config;
use crate::operations::history::{self, VersionView};
use crate::operations::{PluginView, known_builds, plugin_rows};
use crate::queue::hosts;
use crate::queue::hosts::HostChange;
use crate::queue::orders::{self, VersionOrder, Withdrawn};

/// Versions, groups of hosts, and changes that are shown.
const VERSIONS: usize = 12;
const GROUPS: usize = 12;
const CHANGES: usize = 20;
/// Hosts of a group that are named.
const NAMED: usize = 3;

/// A version of the plugin, as far as hosts know it.
#[derive(Default)]
struct KnownVersion<'p> {
    /// The whole digest, or its first digits if only attempts of the version are known.
    digest: &'p str,
    /// How many hosts run it, and since when the first of them.
    hosts: u64,
    since: Option<u64>,
    /// The last change that a host has told of it.
    last: Option<&'p HostChange>,
    /// The order that withdrew it.
    order: Option<&'p VersionOrder>,
    /// Its attempts of the last hour.
    outcomes: Option<&'p VersionView>,
}

pub(super) async fn show(call: PageCall, Path(name): Path<String>) -> PageAnswer {
    let PageCall { dashboard, visitor, values } = call;
    let redis = dashboard.api.link().await?;
    let hosts = hosts::list(redis).await?;
    let grants = dashboard.api.parts().plugins.grants(&name);
    let rows: Vec<PluginView> =
        plugin_rows(&hosts).into_iter().filter(|row| row.plugin.name == name).collect();
    if rows.is_empty() && grants.is_none() {
        let detail = format!("no running host uses a plugin {name:?}");
        return Err(ApiProblem::new(ProblemCode::UnknownPlugin, detail).into());
    }
    let queues = dashboard.api.queues();
    let own: Vec<_> = queues.iter().filter(|queue| queue.plugin == name).cloned().collect();
    let outcomes = history::versions(&own, redis, &hosts).await;
    let withdrawn = orders::list(redis).await?.withdrawn.remove(&name).unwrap_or_default();
    let builds = known_builds(&hosts);
    let is_own = |version: &&VersionView| version.version.rsplit_once('@').is_some_and(|(of, _)| of == name);
    let outcomes: Result<Vec<&VersionView>, String> =
        outcomes.as_ref().map(|all| all.iter().filter(is_own).collect()).map_err(|error| chain(error));
    let versions = known(&rows, &withdrawn, outcomes.as_deref().unwrap_or_default());
    let main = html! {
        p.trail { a href=(at("/plugins")) { "Plugins" } }
        h1 { "Plugin " (data(&name)) }
        (done(&values))
        section aria-labelledby="hosts" data-live="hosts" {
            h2 id="hosts" { "On the hosts" }
            (hosts_table(&rows))
            @if visitor.may_administer() {
                div.actions {
                    (button(&visitor, &format!("{}/reload", plugin_path(&name)), "Reload its file"))
                }
            }
        }
        section aria-labelledby="versions" data-live="versions" {
            h2 id="versions" { "Versions" }
            (versions_table(&visitor, &plugin_path(&name), &versions, &builds))
            @if let Err(why) = &outcomes { p.quiet { "The history cannot be read: " (data(why)) } }
        }
        section aria-labelledby="grants" {
            h2 id="grants" { "Grants" }
            (grants_list(grants.as_ref(), own.iter().map(|queue| queue.name.as_str())))
        }
        section aria-labelledby="changes" data-live="changes" {
            h2 id="changes" { "What happened" }
            (changes_table(&rows, &builds))
            p { a href=(link(&at("/changes"), &[("plugin", &name)])) { "Changes of operators" } }
        }
    };
    Ok(page(&visitor, &format!("Plugin {name}"), &main))
}

/// Hosts that say the same have one row. Rows of hosts on which the plugin is not active come first, and stay
/// if there are more than [`GROUPS`].
fn hosts_table(rows: &[PluginView]) -> Markup {
    if rows.is_empty() {
        return html! { p.quiet { "No host has announced this plugin in the last 15 seconds." } };
    }
    let mut groups: BTreeMap<_, Vec<&PluginView>> = BTreeMap::new();
    for row in rows {
        let plugin = &row.plugin;
        let key =
            (plugin.state == "active", &plugin.state, &plugin.version, plugin.on_probation, &plugin.error);
        groups.entry(key).or_default().push(row);
    }
    let rows = groups.iter().take(GROUPS).map(|((_, word, version, on_probation, error), hosts)| {
        let names = html! {
            @for host in hosts.iter().take(NAMED) { (data(&host.host)) " " }
            @if hosts.len() > NAMED { "and " (plural((hosts.len() - NAMED) as u64, "other")) }
        };
        let runs = version.as_ref().zip(hosts.first()).map(|(version, host)| host.build.words(version));
        let memory = hosts.iter().map(|host| host.plugin.peak_memory).max().unwrap_or(0);
        vec![
            cell("Hosts", names),
            cell("State", html! { (state(word)) @if *on_probation { " on probation" } }),
            text_or_none("Runs", runs.as_deref()),
            figure("Peak memory", size(memory)),
            text_or_none("Why", error.as_deref()),
        ]
    });
    html! {
        (table("Hosts", rows))
        @if groups.len() > GROUPS { p.note { "Hosts differ in " (groups.len()) " ways." } }
    }
}

/// The versions by their digests.
type KnownVersions<'p> = BTreeMap<&'p str, KnownVersion<'p>>;

fn entry<'k, 'p>(known: &'k mut KnownVersions<'p>, digest: &'p str) -> &'k mut KnownVersion<'p> {
    known.entry(digest).or_insert_with(|| KnownVersion { digest, ..KnownVersion::default() })
}

/// The versions of which hosts know something: those that run first, then by the last change.
fn known<'p>(
    rows: &'p [PluginView],
    withdrawn: &'p Withdrawn,
    outcomes: &[&'p VersionView],
) -> Vec<KnownVersion<'p>> {
    let mut known = KnownVersions::new();
    for PluginView { plugin, .. } in rows {
        if let Some(version) = &plugin.version {
            let known = entry(&mut known, version);
            known.hosts += 1;
            known.since = [known.since, plugin.loaded_at].into_iter().flatten().min();
        }
        if let Some(version) = &plugin.back_to {
            entry(&mut known, version);
        }
        for change in &plugin.history {
            let Some(version) = &change.version else { continue };
            let known = entry(&mut known, version);
            if known.last.is_none_or(|last| last.at <= change.at) {
                known.last = Some(change);
            }
        }
    }
    for order in withdrawn.values() {
        entry(&mut known, &order.version).order = Some(order);
    }
    for version in outcomes {
        let digits = version.version.rsplit_once('@').map_or("", |(_, digits)| digits);
        let whole = known.keys().find(|digest| !digits.is_empty() && digest.starts_with(digits)).copied();
        entry(&mut known, whole.unwrap_or(digits)).outcomes = Some(version);
    }
    let mut versions: Vec<KnownVersion> = known.into_values().collect();
    let at = |version: &KnownVersion| version.since.max(version.last.map(|last| last.at));
    versions.sort_by_key(|version| std::cmp::Reverse((version.hosts, at(version))));
    versions
}

fn versions_table(visitor: &Visitor, path: &str, versions: &[KnownVersion<'_>], builds: &Builds) -> Markup {
    if versions.is_empty() {
        return html! { p.quiet { "No host knows a version of it: deploy its file." } };
    }
    let now = now_ms();
    let row = |version: &KnownVersion| {
        let unknown = BuildNote::default();
        let build = builds.of(version.digest).unwrap_or(&unknown);
        let name = html! { span title=(version.digest) { (data(&build.words(version.digest))) } };
        let mut row = vec![
            cell("Version", name),
            cell("State", stand(version)),
            time("Since", version.since.or(version.last.map(|last| last.at)), now),
        ];
        row.extend(outcome_cells(version.outcomes));
        row.push(cell("Built", origin(build, now)));
        row.push(cell("Action", action(visitor, path, version)));
        row
    };
    html! {
        (table("Versions", versions.iter().take(VERSIONS).map(row)))
        @if versions.len() > VERSIONS {
            p.note { "Hosts know " (versions.len() - VERSIONS) " older ones." }
        }
        p.note {
            "Attempts of the last hour on all hosts, by the minute. Others were deferred, or found a service "
            "down. A version is told apart by its digits; labels come with its file, and anybody may "
            "write them."
        }
    }
}

/// The state of a version on the hosts.
fn stand(version: &KnownVersion<'_>) -> Markup {
    html! {
        @if version.hosts > 0 { (state("active")) " on " (plural(version.hosts, "host")) " " }
        @if let Some(VersionOrder { why, by, .. }) = version.order {
            (state("withdrawn")) " by " (data_or_none(Some(by))) ": " (data(why))
        } @else if version.hosts == 0 {
            @match version.last.map(|last| last.what.as_str()) {
                Some("loaded" | "confirmed" | "regranted" | "restored" | "lifted") | None => "does not run",
                Some(what) => (state(what)),
            }
        }
    }
}

fn outcome_cells(outcomes: Option<&VersionView>) -> [PageCell<'static>; 4] {
    let shown = |column, count: fn(&VersionView) -> u64| {
        figure(column, outcomes.map_or_else(|| NONE.to_owned(), |version| grouped(count(version))))
    };
    let others = |version: &VersionView| version.deferred + version.unavailable;
    let mean = outcomes.map_or_else(|| NONE.to_owned(), |version| about_ms(version.mean_ms));
    [
        shown("Attempts", |version| version.attempts),
        shown("Failed", |version| {
            version.attempts.saturating_sub(version.completed + version.deferred + version.unavailable)
        }),
        shown("Others", others),
        figure("Time each", mean),
    ]
}

/// Where a version comes from.
fn origin(BuildNote { commit, built_at, author, .. }: &BuildNote, now: u64) -> Markup {
    html! {
        @if let Some(commit) = commit { span title=(commit) { (data(short(commit))) } " " }
        @if let Some(at) = built_at { span.note { (age(now.saturating_sub(*at))) " ago" } " " }
        @if let Some(author) = author { "by " (data(author)) }
    }
}

/// The page that asks before a version stops or may run again.
fn action(visitor: &Visitor, path: &str, version: &KnownVersion<'_>) -> Markup {
    let is_refused = version.last.is_some_and(|last| ["quarantined", "rolled-back"].contains(&&*last.what));
    let (deed, label) = match (version.order.is_some() || is_refused, version.hosts > 0) {
        _ if !visitor.may_administer() => return html! { (NONE) },
        (true, _) => ("lift", "Lift…"),
        (false, true) => ("rollback", "Roll back…"),
        (false, false) => return html! { (NONE) },
    };
    html! {
        form.inline method="get" action={ (path) "/" (deed) } {
            input type="hidden" name="version" value=(version.digest);
            button { (label) }
        }
    }
}

/// The grants of this host's configuration, and the queues that run the plugin.
fn grants_list<'q>(grants: Option<&config::Plugin>, queues: impl Iterator<Item = &'q str>) -> Markup {
    let Some(grants) = grants else {
        return html! { p.quiet { "No queue in the configuration of this host uses the plugin." } };
    };
    let list = |names: Vec<String>| match names.is_empty() {
        true => html! { "none" },
        false => html! { @for name in &names { (data(name)) " " } },
    };
    let hosts = grants.allowed_hosts.iter().map(ToString::to_string).collect();
    let instance = grants.warm.map_or_else(
        || "a fresh one for each task".to_owned(),
        |warm| format!("{} kept, each for {} tasks", warm.idle, warm.max_tasks),
    );
    html! {
        dl.facts {
            dt { "Queues" }
            dd { @for queue in queues { a href=(queue_path(queue)) { (data(queue)) } " " } }
            dt { "Allowed hosts" } dd { (list(hosts)) }
            dt { "Records" } dd { (list(grants.records.patterns().to_vec())) }
            dt { "Configuration" } dd { (list(grants.config.keys().cloned().collect())) }
            dt { "Memory" } dd { (size(grants.memory)) }
            dt { "Output" } dd { (size(grants.max_output)) }
            dt { "Instance" } dd { (instance) }
        }
        p.note { "As the configuration of this host has them. Changes of them are among those below." }
    }
}

/// The changes of all hosts, the newest first. Changes that tell the same have one row, with their number.
fn changes_table(rows: &[PluginView], builds: &Builds) -> Markup {
    let mut changes: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    for change in rows.iter().flat_map(|row| &row.plugin.history) {
        let (newest, times) = changes.entry((&change.what, &change.version, &change.reason)).or_default();
        (*newest, *times) = ((*newest).max(change.at), *times + 1);
    }
    let mut changes: Vec<_> = changes.into_iter().collect();
    changes.sort_by_key(|(_, (newest, _))| std::cmp::Reverse(*newest));
    if changes.is_empty() {
        return html! { p.quiet { "Nothing yet: loads, rollbacks and refusals of its files stand here." } };
    }
    let now = now_ms();
    let rows = changes.iter().take(CHANGES).map(|((what, version, reason), (newest, times))| {
        vec![
            time("Last", Some(*newest), now),
            cell("What", state(what)),
            text_or_none("Version", version.as_ref().map(|version| builds.words(version)).as_deref()),
            count("Times", *times),
            text_or_none("Why", reason.as_deref()),
        ]
    });
    table("Changes", rows)
}
