//! Takes a version of a plugin out of service on all hosts, lets one run again, and lets all hosts look at a
//! plugin's file.
//!
//! In: the name of a plugin, and the version that is meant, where one is named. Out: an order in Redis, which
//! hosts obey within seconds. A preview chooses and checks the same version, and gives no order.
//!
//! Not here: what a host does about an order (`plugins`).

use std::collections::{BTreeMap, BTreeSet};

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::changes::{self, ChangeKind, ChangeView, MAX_WHY};
use super::error::{OperationError, OperationResult};
use super::plugins::{PluginView, plugin_rows};
use crate::builds::Builds;
use crate::clock::now_ms;
use crate::config::units::show_duration;
use crate::queue::Link;
use crate::queue::hosts;
use crate::queue::orders::{self, MAX_ORDERS, MAX_WITHDRAWN, Orders, VersionOrder, Withdrawn};

/// The longest name of an operator, in characters.
pub(super) const MAX_BY: usize = 80;
/// The shortest beginning of a version that may stand for it.
const MIN_PREFIX: usize = 8;
const DIGEST: usize = 64;

/// An order about a version.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OrderView {
    pub plugin: String,
    #[serde(flatten)]
    pub order: VersionOrder,
    /// How many hosts that run now use the plugin.
    pub hosts: usize,
    /// How many of them run the version that is withdrawn, and go back to another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts_back: Option<usize>,
    /// How many of them run it and have nothing to go back to: there the queues of the plugin wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts_waiting: Option<usize>,
    /// SHA-256 of the versions that start in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_to: Option<BTreeSet<String>>,
    /// SHA-256 of the versions that run now.
    #[serde(skip)]
    pub running: BTreeSet<String>,
    /// The builds of these versions, by their SHA-256, as far as hosts know them.
    #[serde(skip_serializing_if = "Builds::is_empty")]
    pub builds: Builds,
}

impl OrderView {
    /// The versions that start in place of a withdrawn one. None: there are none, or hosts of an older tqhost
    /// do not tell.
    pub(crate) fn starts(&self) -> Option<String> {
        let starts = self.back_to.iter().flatten().map(|version| self.builds.words(version));
        Some(starts.collect::<Vec<_>>().join(" or ")).filter(|starts| !starts.is_empty())
    }
}

/// An order to look at a plugin's file.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReloadView {
    pub plugin: String,
    /// When it was given: milliseconds since the Unix epoch, by the clock of the machine that gave it.
    pub at: u64,
    /// How many hosts that run now use the plugin.
    pub hosts: usize,
}

/// Withdraws the version that the caller saw running: no host runs it until it is lifted. It is refused if no
/// host runs it any more: another operator may have withdrawn it meanwhile.
pub(crate) async fn withdraw(
    link: &Link,
    plugin: &str,
    seen: &str,
    why: &str,
    by: &str,
) -> OperationResult<OrderView> {
    let view = withdraw_preview(link, plugin, Some(seen), Some(why)).await?;
    give(link, view, by).await
}

/// The reason of an order.
pub(super) fn reason(why: &str) -> OperationResult<&str> {
    let why = why.trim();
    if why.is_empty() || why.chars().count() > MAX_WHY {
        let text = format!("why: a reason of 1 to {MAX_WHY} characters is needed; hosts show it");
        return Err(OperationError::Invalid(text));
    }
    Ok(why)
}

/// Tells which version would be withdrawn, without an order: `version`, or the one that all hosts run. Fails
/// where the order would fail, except that the reason may be missing.
pub(crate) async fn withdraw_preview(
    link: &Link,
    plugin: &str,
    version: Option<&str>,
    why: Option<&str>,
) -> OperationResult<OrderView> {
    let why = why.map(reason).transpose()?;
    let rows = rows(link, plugin).await?;
    let orders = orders::list(link).await?;
    let withdrawn = orders.withdrawn.get(plugin).cloned().unwrap_or_default();
    let active = rows.iter().filter_map(|row| row.plugin.version.as_deref());
    // One that was just withdrawn may run for some seconds more.
    let active = active.filter(|version| !withdrawn.contains_key(*version));
    let (known, none) = (withdrawn.keys().map(String::as_str), "no host runs a version of it now");
    let version = match version {
        None => chosen_version(plugin, None, active, &rows, none)?,
        named => chosen_version(plugin, named, active.chain(known), &rows, none)?,
    };
    still_runs(plugin, &version, &rows, &withdrawn, now_ms())?;
    check_room(&orders.last, plugin)?;
    if withdrawn.len() >= MAX_WITHDRAWN && !withdrawn.contains_key(&version) {
        let text = format!("{MAX_WITHDRAWN} versions of plugin {plugin} are withdrawn: lift old ones first");
        return Err(OperationError::Invalid(text));
    }
    let (back, waiting) = count_hosts(&rows, &version);
    let of_version = rows.iter().filter(|row| row.plugin.version.as_deref() == Some(&version));
    let back_to: BTreeSet<String> = of_version.filter_map(|row| row.plugin.back_to.clone()).collect();
    let builds = builds_of(&rows, |known| known == version || back_to.contains(known));
    let (why, by) = (why.unwrap_or_default().to_owned(), String::new());
    let order = VersionOrder { version, withdrawn: true, why, at: now_ms(), by };
    Ok(OrderView {
        plugin: plugin.to_owned(),
        order,
        hosts: rows.len(),
        hosts_back: Some(back),
        hosts_waiting: Some(waiting),
        back_to: Some(back_to),
        running: running(&rows),
        builds,
    })
}

/// Refuses a version that no host runs any more.
fn still_runs(
    plugin: &str,
    version: &str,
    rows: &[PluginView],
    withdrawn: &Withdrawn,
    now_ms: u64,
) -> OperationResult {
    let running = running(rows);
    let builds = builds_of(rows, |_| true);
    let others: Vec<String> = running
        .iter()
        .filter(|other| **other != version && !withdrawn.contains_key(*other))
        .map(|other| builds.words(other))
        .collect();
    let others = match others.as_slice() {
        [] => "no host runs another one".to_owned(),
        others => format!("hosts run {}", others.join(" and ")),
    };
    let shown = builds.words(version);
    if let Some(VersionOrder { at, by, why, .. }) = withdrawn.get(version) {
        let ago = show_duration(Duration::from_secs(now_ms.saturating_sub(*at) / 1000));
        let by = if by.is_empty() { "another operator" } else { by };
        let text = format!(
            "version {shown} of {plugin} was already rolled back {ago} ago by {by} ({why}): {others}"
        );
        return Err(OperationError::NotRunning(text));
    }
    if running.contains(version) {
        return Ok(());
    }
    let text = format!("version {shown} of {plugin} runs on no host any more: {others}");
    Err(OperationError::NotRunning(text))
}

/// The versions that run now.
fn running(rows: &[PluginView]) -> BTreeSet<String> {
    rows.iter().filter_map(|row| row.plugin.version.clone()).collect()
}

/// The builds of the versions that are named, as far as a host knows them.
fn builds_of(rows: &[PluginView], is_named: impl Fn(&str) -> bool) -> Builds {
    let mut builds = Builds::default();
    rows.iter().for_each(|row| builds.add_unknown(&row.plugin.builds));
    builds.retain(is_named);
    builds
}

/// Lets a version run again that was withdrawn, or rolled back by the hosts. None: the one that is in
/// quarantine.
pub(crate) async fn lift(
    link: &Link,
    plugin: &str,
    version: Option<&str>,
    by: &str,
) -> OperationResult<OrderView> {
    let view = lift_preview(link, plugin, version).await?;
    give(link, view, by).await
}

/// Tells which version could run again, without an order. Fails where the order would fail.
pub(crate) async fn lift_preview(
    link: &Link,
    plugin: &str,
    version: Option<&str>,
) -> OperationResult<OrderView> {
    let rows = rows(link, plugin).await?;
    let Orders { withdrawn, last, .. } = orders::list(link).await?;
    let withdrawn = withdrawn.get(plugin).into_iter().flat_map(|withdrawn| withdrawn.keys());
    let banned = rows.iter().filter(|row| row.plugin.state == "quarantined").filter_map(|row| {
        let is_banned = |what: &str| ["quarantined", "rolled-back"].contains(&what);
        row.plugin.history.iter().rev().find(|change| is_banned(&change.what))?.version.as_deref()
    });
    let known = banned.chain(withdrawn.map(String::as_str));
    let version = chosen_version(plugin, version, known, &rows, "no version of it is in quarantine")?;
    check_room(&last, plugin)?;
    let running = running(&rows);
    let builds = builds_of(&rows, |known| known == version || running.contains(known));
    let (why, by) = (String::new(), String::new());
    let order = VersionOrder { version, withdrawn: false, why, at: now_ms(), by };
    let (plugin, hosts) = (plugin.to_owned(), rows.len());
    let (hosts_back, hosts_waiting, back_to) = (None, None, None);
    Ok(OrderView { plugin, order, hosts, hosts_back, hosts_waiting, back_to, running, builds })
}

/// Lets all hosts look at the plugin's file, and try again what failed.
pub(crate) async fn reload(link: &Link, plugin: &str, by: &str) -> OperationResult<ReloadView> {
    let view = reload_preview(link, plugin).await?;
    orders::give_reload(link, plugin, view.at).await?;
    changes::note(link, ChangeView::new(ChangeKind::Reload, by).plugin(plugin)).await;
    Ok(view)
}

/// Tells how many hosts would look at the plugin's file, without an order. Fails where the order would fail.
pub(crate) async fn reload_preview(link: &Link, plugin: &str) -> OperationResult<ReloadView> {
    let hosts = rows(link, plugin).await?.len();
    let given = orders::list(link).await?.reloads;
    check_room(&given, plugin)?;
    // Hosts obey each new time, also where the clock is behind that of the last order.
    let at = now_ms().max(given.get(plugin).map_or(0, |last| last.wrapping_add(1)));
    Ok(ReloadView { plugin: plugin.to_owned(), at, hosts })
}

async fn rows(link: &Link, plugin: &str) -> OperationResult<Vec<PluginView>> {
    let mut rows = plugin_rows(&hosts::list(link).await?);
    rows.retain(|row| row.plugin.name == plugin);
    if rows.is_empty() {
        return Err(OperationError::UnknownPlugin(format!("no running host uses a plugin {plugin:?}")));
    }
    Ok(rows)
}

/// How many hosts run the version and go back to another one, and how many have nothing to go back to. Hosts
/// that do not tell count with the first.
fn count_hosts(rows: &[PluginView], version: &str) -> (usize, usize) {
    let (back, waiting): (Vec<_>, Vec<_>) = rows
        .iter()
        .filter(|row| row.plugin.version.as_deref() == Some(version))
        .partition(|row| row.plugin.can_go_back != Some(false));
    (back.len(), waiting.len())
}

/// The version whose digits begin with `named`, or without a name the only one of `usual`. A version that is
/// named in full need not be known: its file may come later. `none` says why there is no usual one.
fn chosen_version<'v>(
    plugin: &str,
    named: Option<&str>,
    usual: impl Iterator<Item = &'v str>,
    rows: &'v [PluginView],
    none: &str,
) -> OperationResult<String> {
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

/// Refuses an order for which there is no room among those of its kind.
fn check_room<T>(given: &BTreeMap<String, T>, plugin: &str) -> OperationResult {
    if given.len() < MAX_ORDERS || given.contains_key(plugin) {
        return Ok(());
    }
    let text = format!(
        "{MAX_ORDERS} plugins have an order of this kind: remove old ones from the hash tq:hosts:orders"
    );
    Err(OperationError::Invalid(text))
}

/// Gives an order in the name of `by`, and notes it in the log of changes.
async fn give(link: &Link, view: OrderView, by: &str) -> OperationResult<OrderView> {
    let order = VersionOrder { by: by.chars().take(MAX_BY).collect(), ..view.order };
    let view = OrderView { order, ..view };
    orders::give(link, &view.plugin, &view.order).await?;
    let VersionOrder { version, withdrawn, why, by, .. } = &view.order;
    let words = view.builds.words(version);
    let (kind, detail) = match (*withdrawn, view.starts()) {
        (true, Some(starts)) => (ChangeKind::Rollback, format!("{words} stops, {starts} starts")),
        (true, None) => (ChangeKind::Rollback, format!("{words} stops")),
        (false, _) => (ChangeKind::Lift, format!("{words} may run")),
    };
    changes::note(link, ChangeView::new(kind, by).plugin(&view.plugin).detail(&detail).why(why)).await;
    Ok(view)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builds::BuildNote;
    use crate::queue::hosts::HostPlugin;

    /// A host that runs this version, as it announces it; `can_go_back` is left out by older ones.
    fn row(version: Option<&str>, can_go_back: Option<bool>) -> PluginView {
        let version = version.map(str::to_owned);
        let plugin = HostPlugin { name: "p".into(), version, can_go_back, ..HostPlugin::default() };
        PluginView { host: "box".to_owned(), build: BuildNote::default(), plugin }
    }

    #[test]
    fn hosts_are_counted_by_what_a_withdrawal_brings_them() {
        let rows = [
            row(Some("a"), Some(true)),
            row(Some("a"), Some(false)),
            row(Some("a"), Some(false)),
            row(Some("a"), None),
            row(Some("b"), Some(false)),
            row(None, None),
        ];
        assert_eq!(["a", "b", "c"].map(|version| count_hosts(&rows, version)), [(2, 2), (0, 1), (0, 0)]);
    }

    #[test]
    fn a_version_that_does_not_run_any_more_is_not_withdrawn_again() {
        let rows = [row(Some("aaaaaaaaaaaaaaaa"), None), row(Some("bbbbbbbbbbbbbbbb"), None)];
        let order = |by: &str| VersionOrder {
            version: "bbbbbbbbbbbbbbbb".into(),
            withdrawn: true,
            why: "slow".into(),
            at: 30_000,
            by: by.into(),
        };
        let refused = |version: &str, by: &str| {
            let withdrawn = Withdrawn::from([("bbbbbbbbbbbbbbbb".to_owned(), order(by))]);
            still_runs("p", version, &rows, &withdrawn, 61_000).err().map(|error| error.to_string())
        };
        assert_eq!(refused("aaaaaaaaaaaaaaaa", "ada@box"), None);
        // The host that still runs it obeys in a moment.
        insta::assert_snapshot!(refused("bbbbbbbbbbbbbbbb", "ada@box").expect("refused"), @r"
        version bbbbbbbbbbbb of p was already rolled back 31s ago by ada@box (slow): hosts run aaaaaaaaaaaa
        ");
        insta::assert_snapshot!(refused("bbbbbbbbbbbbbbbb", "").expect("refused"), @"
        version bbbbbbbbbbbb of p was already rolled back 31s ago by another operator (slow): hosts run \
        aaaaaaaaaaaa
        ");
        insta::assert_snapshot!(refused("cccccccccccccccc", "").expect("refused"), @r"
        version cccccccccccc of p runs on no host any more: hosts run aaaaaaaaaaaa
        ");
    }

    #[test]
    fn a_version_is_named_in_full_by_its_beginning_or_by_being_the_only_one() {
        let (a, b) = (format!("{:0<64}", "aaaaaaaa"), format!("{:0<64}", "aaaaaaab"));
        let of = |named: Option<&str>, usual: &[&str]| {
            chosen_version("p", named, usual.iter().copied(), &[], "none runs")
                .map_err(|error| error.to_string())
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
