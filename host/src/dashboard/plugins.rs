//! The list of plugins: a row for each, with its state, versions and failures on all hosts together.
//!
//! Not here: the page of a plugin (`plugin`).

use std::collections::{BTreeMap, BTreeSet};

use maud::html;

use super::layout::{page, state};
use super::problem::PageAnswer;
use super::state::PageCall;
use super::table::{PageCell, cell, count, link, sorted, time};
use super::text::{data, plural};
use super::values::plugin_path;
use crate::admin::base_path::at;
use crate::builds::Builds;
use crate::clock::now_ms;
use crate::operations::history::LATELY;
use crate::operations::known_builds;
use crate::queue::hosts::{self, HostInfo};

/// Versions of a plugin that are named in its row.
const VERSIONS: usize = 3;

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

pub(super) async fn show(PageCall { dashboard, visitor, values }: PageCall) -> PageAnswer {
    let hosts = hosts::list(dashboard.api.link().await?).await?;
    let (plugins, builds) = (sums(&hosts), known_builds(&hosts));
    let row = |(name, plugin): (&&str, &PluginSum)| row(name, plugin, &builds);
    let main = html! {
        h1 { "Plugins" }
        section aria-label="Plugins of all hosts" data-live="plugins" {
            @if plugins.is_empty() {
                p.quiet {
                    "No host has announced its plugins in the last 15 seconds. A plugin is a file in the "
                    "folder " code { "plugins_dir" } " of a host: " code { "tqhost deploy FILE" }
                    " puts one there."
                }
            } @else {
                (sorted("Plugins", plugins.iter().map(row), &values, &at("/plugins")))
                p.note {
                    "Of all hosts together. Lately is the last " (LATELY) " minutes in which a version ran. \
                     Attempts that were deferred, or found a service down, are left out."
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

fn row(name: &str, plugin: &PluginSum<'_>, builds: &Builds) -> Vec<PageCell<'static>> {
    let PluginSum { states, versions, loaded_at, attempts, failures } = plugin;
    let known: Vec<String> = versions.iter().take(VERSIONS).map(|version| builds.words(version)).collect();
    let stand = html! {
        @for (word, hosts) in states {
            (state(word)) @if states.len() > 1 { " on " (plural(*hosts, "host")) } " "
        }
    };
    let shown = html! {
        @for (at, version) in known.iter().enumerate() { @if at > 0 { ", " } (data(version)) }
        @if known.is_empty() { "none" }
        @if versions.len() > VERSIONS { ", " (versions.len() - VERSIONS) " more" }
    };
    vec![
        link("Plugin", &plugin_path(name), name),
        cell("State", stand).by(states.keys().next().copied()),
        cell("Version", shown).by(known.first().map(String::as_str)),
        count("Hosts", states.values().sum()),
        count("Attempts lately", *attempts),
        count("Failed lately", *failures),
        time("Newest since", *loaded_at, now_ms()),
    ]
}
