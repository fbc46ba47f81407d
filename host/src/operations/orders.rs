//! Takes a version of a plugin out of service on all hosts, and lets one run again.
//!
//! In: the name of a plugin, and the version that is meant, where one is named. Out: an order in Redis, which
//! hosts obey within seconds.
//!
//! Not here: what a host does about an order (`plugins`).

use serde::Serialize;
use utoipa::ToSchema;

use super::error::OperationError;
use super::plugins::{PluginView, plugin_rows};
use crate::clock::now_ms;
use crate::queue::Link;
use crate::queue::hosts;
use crate::queue::orders::{self, MAX_ORDERS, VersionOrder};

/// The longest reason, in characters: hosts show it, and announce it.
const MAX_WHY: usize = 200;
/// The shortest beginning of a version that may stand for it.
const MIN_PREFIX: usize = 8;
const DIGEST: usize = 64;

/// An order that was given.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OrderView {
    pub plugin: String,
    #[serde(flatten)]
    pub order: VersionOrder,
    /// How many hosts that run now use the plugin.
    pub hosts: usize,
}

/// Withdraws a version: no host runs it until it is lifted. None: the version that all hosts run.
pub(crate) async fn withdraw(
    link: &Link,
    plugin: &str,
    version: Option<&str>,
    why: &str,
) -> Result<OrderView, OperationError> {
    let why = why.trim();
    if why.is_empty() || why.chars().count() > MAX_WHY {
        let text = format!("why: a reason of 1 to {MAX_WHY} characters is needed; hosts show it");
        return Err(OperationError::Invalid(text));
    }
    let rows = rows(link, plugin).await?;
    let active = rows.iter().filter_map(|row| row.plugin.version.as_deref());
    let version = meant(plugin, version, active, &rows, "no host runs a version of it now")?;
    give(link, plugin, version, true, why, rows.len()).await
}

/// Lets a version run again that was withdrawn, or rolled back by the hosts. None: the one that is in
/// quarantine.
pub(crate) async fn lift(
    link: &Link,
    plugin: &str,
    version: Option<&str>,
) -> Result<OrderView, OperationError> {
    let rows = rows(link, plugin).await?;
    let withdrawn = orders::list(link).await?.remove(plugin).filter(|order| order.withdrawn);
    let banned = rows.iter().filter(|row| row.plugin.state == "quarantined").filter_map(|row| {
        let is_banned = |what: &str| ["quarantined", "rolled-back"].contains(&what);
        row.plugin.history.iter().rev().find(|change| is_banned(&change.what))?.version.as_deref()
    });
    let known = banned.chain(withdrawn.as_ref().map(|order| order.version.as_str()));
    let version = meant(plugin, version, known, &rows, "no version of it is in quarantine")?;
    give(link, plugin, version, false, "", rows.len()).await
}

async fn rows(link: &Link, plugin: &str) -> Result<Vec<PluginView>, OperationError> {
    let mut rows = plugin_rows(&hosts::list(link).await?);
    rows.retain(|row| row.plugin.name == plugin);
    if rows.is_empty() {
        return Err(OperationError::UnknownPlugin(format!("no running host uses a plugin {plugin:?}")));
    }
    Ok(rows)
}

/// The version that is meant. One that is named in full need not be known: its file may come later.
fn meant<'v>(
    plugin: &str,
    named: Option<&str>,
    usual: impl Iterator<Item = &'v str>,
    rows: &'v [PluginView],
    none: &str,
) -> Result<String, OperationError> {
    let mut found: Vec<&str> = match named {
        None => usual.collect(),
        Some(name) => {
            let is_hex = name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            if !is_hex || !(MIN_PREFIX..=DIGEST).contains(&name.len()) {
                let text = format!(
                    "version: {name:?} is no SHA-256 in small hexadecimal digits, nor its first {MIN_PREFIX} \
                     digits or more"
                );
                return Err(OperationError::Invalid(text));
            }
            if name.len() == DIGEST {
                return Ok(name.to_owned());
            }
            let known = rows.iter().flat_map(|row| {
                let changes = row.plugin.history.iter().filter_map(|change| change.version.as_deref());
                changes.chain(row.plugin.version.as_deref())
            });
            known.chain(usual).filter(|version| version.starts_with(name)).collect()
        }
    };
    found.sort_unstable();
    found.dedup();
    match (found.as_slice(), named) {
        ([version], _) => Ok((*version).to_owned()),
        ([], None) => Err(OperationError::Invalid(format!("plugin {plugin}: {none}; name the version"))),
        ([], Some(name)) => Err(OperationError::Invalid(format!(
            "version: no running host knows a version of plugin {plugin} that begins with {name}"
        ))),
        (several, _) => Err(OperationError::Invalid(format!(
            "version: several are meant, name one of them: {}",
            several.join(", ")
        ))),
    }
}

async fn give(
    link: &Link,
    plugin: &str,
    version: String,
    withdrawn: bool,
    why: &str,
    hosts: usize,
) -> Result<OrderView, OperationError> {
    let known = orders::list(link).await?;
    if known.len() >= MAX_ORDERS && !known.contains_key(plugin) {
        let text =
            format!("{MAX_ORDERS} plugins have an order: remove old ones from the hash tq:hosts:orders");
        return Err(OperationError::Invalid(text));
    }
    let order = VersionOrder { version, withdrawn, why: why.to_owned(), at: now_ms() };
    orders::give(link, plugin, &order).await?;
    Ok(OrderView { plugin: plugin.to_owned(), order, hosts })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_named_in_full_by_its_beginning_or_by_being_the_only_one() {
        let (a, b) = (format!("{:0<64}", "aaaaaaaa"), format!("{:0<64}", "aaaaaaab"));
        let of = |named: Option<&str>, usual: &[&str]| {
            meant("p", named, usual.iter().copied(), &[], "none runs").map_err(|error| error.to_string())
        };
        assert_eq!(of(None, &[&a, &a]), Ok(a.clone()));
        assert_eq!(of(Some("aaaaaaaa"), &[&a, &b]), Ok(a.clone()));
        assert_eq!(of(Some(&b), &[&a]), Ok(b.clone()));
        for (named, usual, text) in [
            (None, &[][..], "none runs; name the version"),
            (None, &[&*a, &*b], "several are meant"),
            (Some("aaaaaaa"), &[&*a], "is no SHA-256"),
            (Some("AAAAAAAA"), &[&*a], "is no SHA-256"),
            (Some("bbbbbbbb"), &[&*a], "begins with bbbbbbbb"),
        ] {
            let error = of(named, usual).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }
}
