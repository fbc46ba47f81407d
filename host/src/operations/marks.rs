//! Events around a queue, as marks in its charts: versions that were loaded or went back, and changes that
//! operators made.
//!
//! In: what the running hosts say of their plugins. Out: one mark for what several hosts did at about the
//! same time. Not here: how marks are drawn (`dashboard::chart`).

use super::changes::{self, ChangeView};
use crate::builds::short;
use crate::config::QueueRules;
use crate::queue::Queue;
use crate::queue::hosts::{HostChange, HostInfo};

/// Hosts that do the same within this time do it together, in ms.
const TOGETHER_MS: u64 = 60_000;
/// The most marks of a queue: the newest ones.
const MOST: usize = 50;

/// Something that happened. The time is in ms since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HistoryMark {
    pub at_ms: u64,
    pub text: String,
}

/// The events around a queue since this time, the oldest first. Changes that cannot be read are left out.
pub(crate) async fn marks(queue: &Queue, hosts: &[HostInfo], since_ms: u64) -> Vec<HistoryMark> {
    let QueueRules { name, plugin, .. } = &*queue.rules;
    let changes = changes::list(&queue.link, None, None, usize::MAX).await.unwrap_or_default();
    let is_near = |change: &&ChangeView| {
        let is_of = |known: &Option<String>, name: &str| known.as_deref() == Some(name);
        change.at >= since_ms && (is_of(&change.queue, name) || is_of(&change.plugin, plugin))
    };
    let mut marks = of_hosts(plugin, hosts, since_ms);
    marks.extend(changes.iter().filter(is_near).map(of_change));
    marks.sort_by_key(|mark| mark.at_ms);
    marks.drain(..marks.len().saturating_sub(MOST));
    marks
}

/// `pause by ada: for 30m (the model is down)`.
fn of_change(change: &ChangeView) -> HistoryMark {
    let ChangeView { at, who, what, detail, why, .. } = change;
    let mut text = format!("{what} by {who}");
    if !detail.is_empty() {
        text += &format!(": {detail}");
    }
    if !why.is_empty() {
        text += &format!(" ({why})");
    }
    HistoryMark { at_ms: *at, text }
}

/// The events of the versions of a plugin since this time, the oldest first.
fn of_hosts(plugin: &str, hosts: &[HostInfo], since_ms: u64) -> Vec<HistoryMark> {
    let mut changes: Vec<&HostChange> = hosts
        .iter()
        .flat_map(|host| &host.plugins)
        .filter(|known| known.name == plugin)
        .flat_map(|known| &known.history)
        .filter(|change| change.at >= since_ms && words(&change.what).is_some())
        .collect();
    changes.sort_by_key(|change| change.at);
    let mut marks: Vec<(&HostChange, usize)> = Vec::new();
    for change in changes {
        let is_same = |(first, _): &&mut (&HostChange, usize)| {
            first.what == change.what
                && first.version == change.version
                && change.at - first.at <= TOGETHER_MS
        };
        match marks.iter_mut().rev().find(is_same) {
            Some((_, hosts)) => *hosts += 1,
            None => marks.push((change, 1)),
        }
    }
    marks.into_iter().map(|(change, hosts)| mark(plugin, change, hosts)).collect()
}

fn mark(plugin: &str, change: &HostChange, hosts: usize) -> HistoryMark {
    let version = short(change.version.as_deref().unwrap_or_default());
    let mut text = format!("{plugin}@{version} {}", words(&change.what).unwrap_or_default());
    if hosts > 1 {
        text += &format!(" on {hosts} hosts");
    }
    if let Some(reason) = change.reason.as_deref().filter(|reason| !reason.is_empty()) {
        text += &format!(": {reason}");
    }
    HistoryMark { at_ms: change.at, text }
}

/// The change in words. None: it does not change which version runs, or how.
fn words(what: &str) -> Option<&'static str> {
    Some(match what {
        "loaded" => "loaded",
        "regranted" => "runs with other grants",
        "rolled-back" => "rolled back",
        "restored" => "took over again",
        "lifted" => "out of quarantine",
        "removed" => "removed",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::changes::ChangeKind;
    use super::*;
    use crate::queue::hosts::HostPlugin;

    fn host(changes: &[(u64, &str, &str)]) -> HostInfo {
        let change = |(at, what, version): &(u64, &str, &str)| {
            let version = Some((*version).to_owned());
            HostChange { at: *at, what: (*what).to_owned(), version, ..HostChange::default() }
        };
        let history = changes.iter().map(change).collect();
        let plugin = HostPlugin { name: "mail".into(), history, ..HostPlugin::default() };
        HostInfo { plugins: vec![plugin], ..HostInfo::default() }
    }

    #[test]
    fn a_change_is_told_with_its_operator_and_reason() {
        let change = ChangeView { at: 7, ..ChangeView::new(ChangeKind::Pause, "ada") };
        assert_eq!(of_change(&change), HistoryMark { at_ms: 7, text: "pause by ada".into() });
        let change = change.detail("for 30m").why("the model is down");
        assert_eq!(of_change(&change).text, "pause by ada: for 30m (the model is down)");
    }

    #[test]
    fn hosts_that_load_a_version_together_are_one_mark() {
        let (old, new) = ("0123456789abcdef", "fedcba9876543210");
        let hosts = [
            host(&[(1_000, "loaded", old), (200_000, "loaded", new), (200_500, "confirmed", new)]),
            host(&[(201_000, "loaded", new), (500_000, "rolled-back", new)]),
        ];
        let shown = |since| {
            let marks = of_hosts("mail", &hosts, since);
            marks.into_iter().map(|mark| (mark.at_ms, mark.text)).collect::<Vec<_>>()
        };
        assert_eq!(
            shown(2_000),
            [
                (200_000, "mail@fedcba987654 loaded on 2 hosts".to_owned()),
                (500_000, "mail@fedcba987654 rolled back".to_owned()),
            ]
        );
        assert_eq!(shown(0).len(), 3);
        assert!(of_hosts("other", &hosts, 0).is_empty());
    }
}
