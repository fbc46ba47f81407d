//! Orders of operators to all hosts: which version of a plugin is withdrawn, or may run again.
//!
//! In Redis, a plugin has at most one order, the last one. Hosts read all orders when they start and then
//! every few seconds (`announcer`); what follows from one is the life of the plugin (`plugins`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::error::QueueError;
use super::keys;
use super::link::Link;
use super::reply;

/// The most plugins that have an order.
pub(crate) const MAX_ORDERS: usize = 1000;

/// An order about one version of a plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct VersionOrder {
    /// SHA-256 of the version, in hexadecimal.
    pub version: String,
    /// It is withdrawn: no host runs it. Otherwise it may run again.
    pub withdrawn: bool,
    /// The operator's reason.
    pub why: String,
    /// Milliseconds since the Unix epoch, by the clock of who gave the order.
    pub at: u64,
}

/// Gives an order. It replaces the last one for this plugin. The caller sees to [`MAX_ORDERS`].
pub(crate) async fn give(link: &Link, plugin: &str, order: &VersionOrder) -> Result<(), QueueError> {
    let json = serde_json::to_string(order).unwrap_or_default();
    link.command("give an order", redis::cmd("HSET").arg(keys::ORDERS).arg(plugin).arg(json)).await.map(drop)
}

/// The last order for each plugin. One that another version of tqhost wrote in another form is left out.
pub(crate) async fn list(link: &Link) -> Result<BTreeMap<String, VersionOrder>, QueueError> {
    const WHAT: &str = "list orders";
    let found = link.command(WHAT, redis::cmd("HGETALL").arg(keys::ORDERS)).await?;
    let pairs = reply::pairs(found).map_err(|_| QueueError::unexpected(WHAT, link.address()))?;
    let order = |(plugin, json): (Vec<u8>, Vec<u8>)| {
        Some((String::from_utf8(plugin).ok()?, serde_json::from_slice(&json).ok()?))
    };
    Ok(pairs.into_iter().filter_map(order).collect())
}
