//! Tests the names of all series, against the list here and docs/operations.md, and what a scrape shows.
//!
//! Not here: the scrape over HTTP (`admin`).

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Metrics, PluginRow, Totals, label};
use crate::task::SettledAs;

/// The contract: others write dashboards and alerts that use these names.
const DESIGN: [(&str, &str); 14] = [
    ("tqhost_tasks_total", "queue,outcome"),
    ("tqhost_task_duration_seconds", "queue"),
    ("tqhost_task_wait_seconds", "queue"),
    ("tqhost_queue_tasks", "queue,state"),
    ("tqhost_queue_oldest_seconds", "queue"),
    ("tqhost_lost_entries_total", "queue"),
    ("tqhost_lease_lost_total", "queue"),
    ("tqhost_reclaimed_total", "queue"),
    ("tqhost_plugin_reloads_total", "plugin,result"),
    ("tqhost_plugin_info", "plugin,version,state"),
    ("tqhost_guest_memory_bytes", "plugin"),
    ("tqhost_http_requests_total", "plugin,result"),
    ("tqhost_redis_reconnects_total", ""),
    ("tqhost_fetch_stalled", "queue"),
];

/// Series that are no part of that contract.
const MORE: [(&str, &str); 2] =
    [("tqhost_batches_total", "queue,result"), ("tqhost_guest_log_lines_dropped_total", "plugin")];

fn row(plugin: &str, version: &str, state: &str, peak_memory: u64) -> PluginRow {
    PluginRow {
        plugin: plugin.to_owned(),
        version: version.to_owned(),
        state: state.to_owned(),
        peak_memory,
        requests: vec![("ok", 3), ("denied", 0)],
        log_lines_dropped: 5,
    }
}

/// Maps the name of each scraped series to its label names. The three series of a histogram count as one.
fn scraped(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let series = line.rsplit_once(' ').unwrap().0;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let name =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        let names = labels
            .trim_end_matches('}')
            .split(',')
            .filter_map(|pair| pair.split_once('='))
            .map(|(label, _)| label);
        let names = names.filter(|label| *label != "le").collect::<Vec<_>>().join(",");
        found.insert(name.to_owned(), names);
    }
    found
}

fn documented() -> BTreeMap<String, String> {
    let page = include_str!("../../../docs/operations.md");
    let series = page.lines().filter_map(|line| line.strip_prefix("| `tqhost_")?.split_once('`'));
    series
        .map(|(series, _)| {
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            (format!("tqhost_{name}"), labels.trim_end_matches('}').to_owned())
        })
        .collect()
}

#[test]
fn all_series_exist_from_the_start_under_their_promised_names() {
    let metrics = Metrics::new();
    metrics.queue("mail");
    metrics.set_plugins(&[row("mail", "abc", "active", 0)]);
    let promised: BTreeMap<String, String> =
        DESIGN.iter().chain(&MORE).map(|(name, labels)| ((*name).to_owned(), (*labels).to_owned())).collect();
    assert_eq!(scraped(&metrics.encode()), promised);
    assert_eq!(documented(), promised, "docs/operations.md");
}

#[test]
fn every_outcome_and_every_state_starts_at_zero() {
    let metrics = Metrics::new();
    metrics.queue("mail");
    let text = metrics.encode();
    for outcome in SettledAs::ALL {
        let line = format!("tqhost_tasks_total{{queue=\"mail\",outcome=\"{}\"}} 0\n", label(outcome));
        assert!(text.contains(&line), "{line}{text}");
    }
    for state in ["queued", "running", "delayed", "dead"] {
        let line = format!("tqhost_queue_tasks{{queue=\"mail\",state=\"{state}\"}} 0\n");
        assert!(text.contains(&line), "{line}{text}");
    }
    assert!(text.contains("tqhost_redis_reconnects_total 0\n"));
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn outcomes_are_told_apart() {
    for (index, outcome) in SettledAs::ALL.into_iter().enumerate() {
        assert_eq!(outcome as usize, index);
    }
    let names: std::collections::BTreeSet<&str> = SettledAs::ALL.map(label).into();
    assert_eq!(names.len(), SettledAs::ALL.len());
}

#[test]
fn what_is_counted_is_shown_and_totalled() {
    let metrics = Metrics::new();
    let mail = metrics.queue("mail");
    for outcome in SettledAs::ALL {
        mail.settled(outcome);
    }
    // A second handle of the same queue counts on.
    metrics.queue("mail").settled(SettledAs::Completed);
    mail.lost_entries(2);
    mail.lease_lost(3);
    mail.reclaimed(4);
    mail.duration(Duration::from_millis(3));
    mail.wait(Duration::from_secs(601));
    mail.census(5, 6, 7, 8, Some(Duration::from_millis(1500)));
    mail.fetch_stalled(true);
    metrics.redis_reconnected();
    let totals = Totals {
        completed: 2,
        retried: 1,
        deferred: 1,
        dead: 5,
        released: 1,
        reclaimed: 4,
        lease_lost: 3,
        lost_entries: 2,
    };
    assert_eq!(mail.totals(), totals);
    assert_eq!(metrics.queue("other").totals(), Totals::default());
    let text = metrics.encode();
    for line in [
        "tqhost_tasks_total{queue=\"mail\",outcome=\"completed\"} 2",
        "tqhost_task_duration_seconds_bucket{le=\"0.002\",queue=\"mail\"} 0",
        "tqhost_task_duration_seconds_bucket{le=\"0.005\",queue=\"mail\"} 1",
        "tqhost_task_wait_seconds_bucket{le=\"600.0\",queue=\"mail\"} 0",
        "tqhost_task_wait_seconds_bucket{le=\"+Inf\",queue=\"mail\"} 1",
        "tqhost_queue_tasks{queue=\"mail\",state=\"queued\"} 5",
        "tqhost_queue_tasks{queue=\"mail\",state=\"running\"} 6",
        "tqhost_queue_tasks{queue=\"mail\",state=\"delayed\"} 7",
        "tqhost_queue_tasks{queue=\"mail\",state=\"dead\"} 8",
        "tqhost_queue_oldest_seconds{queue=\"mail\"} 1.5",
        "tqhost_fetch_stalled{queue=\"mail\"} 1",
        "tqhost_fetch_stalled{queue=\"other\"} 0",
        "tqhost_redis_reconnects_total 1",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line}\n{text}");
    }
    mail.census(0, 0, 0, 0, None);
    mail.fetch_stalled(false);
    let text = metrics.encode();
    assert!(text.contains("tqhost_queue_oldest_seconds{queue=\"mail\"} 0.0\n"), "{text}");
    assert!(text.contains("tqhost_fetch_stalled{queue=\"mail\"} 0\n"), "{text}");
}

#[test]
fn a_former_plugin_version_leaves_nothing_behind() {
    let metrics = Metrics::new();
    metrics.set_plugins(&[row("mail", "v1", "active", 10), row("gone", "v1", "active", 10)]);
    metrics.plugin_reload("mail", "ok");
    metrics.plugin_reload("mail", "failed");
    metrics.set_plugins(&[row("mail", "v1", "active", 10), row("mail", "v2", "quara\"ntined", u64::MAX)]);
    let text = metrics.encode();
    let info: Vec<&str> = text.lines().filter(|line| line.starts_with("tqhost_plugin_info{")).collect();
    assert_eq!(info, [r#"tqhost_plugin_info{plugin="mail",version="v2",state="quara\"ntined"} 1"#]);
    let memory: Vec<&str> =
        text.lines().filter(|line| line.starts_with("tqhost_guest_memory_bytes{")).collect();
    for line in ["{plugin=\"mail\",result=\"ok\"} 3\n", "{plugin=\"mail\",result=\"denied\"} 0\n"] {
        assert!(text.contains(&format!("tqhost_http_requests_total{line}")), "{line}{text}");
    }
    assert!(text.contains("tqhost_guest_log_lines_dropped_total{plugin=\"mail\"} 5\n"), "{text}");
    assert_eq!(memory, [format!("tqhost_guest_memory_bytes{{plugin=\"mail\"}} {}", i64::MAX)]);
    for line in [
        "tqhost_plugin_reloads_total{plugin=\"mail\",result=\"ok\"} 1\n",
        "tqhost_plugin_reloads_total{plugin=\"mail\",result=\"failed\"} 1\n",
        "tqhost_plugin_reloads_total{plugin=\"mail\",result=\"rolled-back\"} 0\n",
        "tqhost_plugin_reloads_total{plugin=\"gone\",result=\"ok\"} 0\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
}
