//! The plugins of the running hosts, as they announce them.

use serde::Serialize;
use utoipa::ToSchema;

use crate::queue::hosts::{HostInfo, HostPlugin};

/// A plugin on one host. The names are stable.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PluginView {
    /// The host's id.
    pub host: String,
    #[serde(flatten)]
    pub plugin: HostPlugin,
}

/// The rows by plugin, then in the order of the hosts.
pub(crate) fn plugin_rows(hosts: &[HostInfo]) -> Vec<PluginView> {
    let row =
        |host: &HostInfo, plugin: &HostPlugin| PluginView { host: host.id.clone(), plugin: plugin.clone() };
    let mut rows: Vec<_> =
        hosts.iter().flat_map(|host| host.plugins.iter().map(move |plugin| row(host, plugin))).collect();
    rows.sort_by(|a, b| a.plugin.name.cmp(&b.plugin.name));
    rows
}
