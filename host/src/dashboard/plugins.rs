//! The list of plugins: a row for each, with its state, versions and failures on all hosts together.
//!
//! Not here: the page of a plugin (`plugin`).

use std::collections::{BTreeMap, BTreeSet};

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};

use super::layout::{page, state, table};
use super::problem::PageProblem;
use super::session::Visitor;
use super::state::Dashboard;
use super::text::{data, moment, plural};
use super::values::plugin_path;
use crate::builds::Builds;
use crate::clock::now_ms;
use crate::operations::history::LATELY;
use crate::operations::known_builds;
use crate::queue::hosts::{self, HostInfo};

/// Versions of a plugin that are named in its row.
const VERSIONS: usize = 3;

const COLUMNS: [&str; 7] =
    ["Plugin", "State", "Version", "#Hosts", "#Attempts lately", "#Failed lately", "Newest since"];

/// A plugin on all hosts.
#[derive(Default)]
struct PluginSum<'h> {
    /// How many hosts have it in each state.
    states: BTreeMap<&'h str, u64>,
    versions: BTreeSet<&'h str>,
    /// When a host took its version last.
    loaded_at: Option<u64>,
    attempts: u64,
    failures: u64,
}

pub(super) async fn show(
    State(dashboard): State<Dashboard>,
    visitor: Extension<Visitor>,
) -> Result<Response, PageProblem> {
    let hosts = hosts::list(dashboard.api.link().await?).await?;
    let (plugins, builds) = (sums(&hosts), known_builds(&hosts));
    let rows = html! { @for (name, plugin) in &plugins { (row(name, plugin, &builds)) } };
    let main = html! {
        h1 { "Plugins" }
        section aria-labelledby="plugins" data-live="plugins" {
            h2 id="plugins" { "Plugins of all hosts" }
            @if plugins.is_empty() {
                p.quiet { "No host has announced its plugins in the last 15 seconds." }
            } @else {
                (table("Plugins", &COLUMNS, &rows))
                p.note {
                    "Lately is the last " (LATELY) " minutes in which a version ran. Attempts that were "
                    "deferred, or found a service down, are left out."
                }
            }
        }
    };
    Ok(page(&visitor, "Plugins", &main))
}

fn sums(hosts: &[HostInfo]) -> BTreeMap<&str, PluginSum<'_>> {
    let mut sums: BTreeMap<&str, PluginSum> = BTreeMap::new();
    for plugin in hosts.iter().flat_map(|host| &host.plugins) {
        let sum = sums.entry(&plugin.name).or_default();
        *sum.states.entry(&plugin.state).or_default() += 1;
        sum.versions.extend(plugin.version.as_deref());
        sum.loaded_at = sum.loaded_at.max(plugin.loaded_at);
    }
    for version in hosts.iter().flat_map(|host| &host.queues).flat_map(|queue| &queue.versions) {
        let plugin = version.version.rsplit_once('@').and_then(|(name, _)| sums.get_mut(name));
        if let Some(sum) = plugin {
            sum.attempts = sum.attempts.saturating_add(version.attempts);
            sum.failures = sum.failures.saturating_add(version.failures);
        }
    }
    sums
}

fn row(name: &str, plugin: &PluginSum<'_>, builds: &Builds) -> Markup {
    let PluginSum { states, versions, loaded_at, attempts, failures } = plugin;
    html! {
        tr {
            th scope="row" { a href=(plugin_path(name)) { (data(name)) } }
            td {
                @for (word, hosts) in states {
                    (state(word)) @if states.len() > 1 { " on " (plural(*hosts, "host")) } " "
                }
            }
            td {
                @for (at, version) in versions.iter().take(VERSIONS).enumerate() {
                    @if at > 0 { ", " }
                    (data(&builds.words(version)))
                }
                @if versions.is_empty() { "none" }
                @if versions.len() > VERSIONS { ", " (versions.len() - VERSIONS) " more" }
            }
            td.number { (states.values().sum::<u64>()) }
            td.number { (attempts) }
            td.number { (failures) }
            td { (moment(*loaded_at, now_ms())) }
        }
    }
}
