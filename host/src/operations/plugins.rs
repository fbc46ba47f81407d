//! The plugins of the running hosts, as they announce them.

use serde::Serialize;
use utoipa::ToSchema;

use crate::builds::{BuildNote, Builds};
use crate::queue::hosts::{HostInfo, HostPlugin};

/// A plugin on one host. The names are stable.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PluginView {
    /// The host's id.
    pub host: String,
    /// The build of the version that runs tasks.
    #[serde(flatten)]
    pub build: BuildNote,
    #[serde(flatten)]
    pub plugin: HostPlugin,
}

/// The rows by plugin, then in the order of the hosts.
pub(crate) fn plugin_rows(hosts: &[HostInfo]) -> Vec<PluginView> {
    let row = |host: &HostInfo, plugin: &HostPlugin| {
        let build = plugin.version.as_deref().and_then(|version| plugin.builds.of(version));
        PluginView {
            host: host.id.clone(),
            build: build.cloned().unwrap_or_default(),
            plugin: plugin.clone(),
        }
    };
    let mut rows: Vec<_> =
        hosts.iter().flat_map(|host| host.plugins.iter().map(move |plugin| row(host, plugin))).collect();
    rows.sort_by(|a, b| a.plugin.name.cmp(&b.plugin.name));
    rows
}

/// The builds of all versions of which a host knows one.
pub(crate) fn known_builds(hosts: &[HostInfo]) -> Builds {
    let mut builds = Builds::default();
    hosts.iter().flat_map(|host| &host.plugins).for_each(|plugin| builds.add_unknown(&plugin.builds));
    builds
}
