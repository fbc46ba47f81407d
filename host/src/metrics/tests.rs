//! Tests the names of all series, against docs/monitoring.md, and that a scrape shows what there is.
//!
//! Not here: the scrape over HTTP (`admin`).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use prometheus_client::encoding::text;
use strum::VariantArray as _;

use super::{AlarmBoard, Sources};
use crate::admin::{FetchState, Health, RefusedTokens};
use crate::config::Config;
use crate::config::model::HistogramForm;
use crate::plugins::Plugins;
use crate::queue::{Census, Queue, Redis};
use crate::reload::ConfigReloads;
use crate::task::SettledAs;
use crate::telemetry::Traces;
use crate::worker::capacity::Capacity;
use crate::worker::workers::QueueBoard;

/// The contract: others write dashboards and alerts that use these names.
const PROMISED: [&str; 14] = [
    "tqhost_tasks_total",
    "tqhost_task_duration_seconds",
    "tqhost_task_wait_seconds",
    "tqhost_queue_tasks",
    "tqhost_queue_oldest_seconds",
    "tqhost_lost_entries_total",
    "tqhost_lease_lost_total",
    "tqhost_reclaimed_total",
    "tqhost_plugin_reloads_total",
    "tqhost_plugin_info",
    "tqhost_guest_memory_bytes",
    "tqhost_http_requests_total",
    "tqhost_redis_reconnects_total",
    "tqhost_fetch_stalled",
];

/// The sources of a host with one queue and one plugin.
struct Host {
    board: QueueBoard,
    health: Health,
    reloads: ConfigReloads,
    plugins: Plugins,
}

fn queue(name: &str, concurrency: u32) -> Queue {
    queue_with(name, &format!("concurrency = {concurrency}"))
}

fn queue_with(name: &str, rules: &str) -> Queue {
    let text = format!("[redis]\nurl = \"redis://127.0.0.1:1\"\n[queues.{name}]\n{rules}\n");
    let config = Config::parse(&text, Path::new("/tqhost.toml"), &|_| None).expect("a configuration");
    Queue::new(config.queues[0].clone(), Redis::open("redis://127.0.0.1:1").unwrap().link())
}

impl Host {
    fn new() -> Host {
        let host = Host {
            board: QueueBoard::default(),
            health: Health::new(Duration::from_secs(600)),
            reloads: ConfigReloads::default(),
            plugins: Plugins::without_files(&["mail"]),
        };
        host.board.show(queue("mail", 7));
        host.health.queue("mail");
        host.plugins.status()[0].figures.version("0123456789ab");
        host
    }

    fn scrape(&self) -> String {
        let alarms = AlarmBoard::default();
        alarms.note([(("paused", "work".to_owned(), "look"), 1)].into());
        let sources = Sources {
            board: self.board.clone(),
            capacity: Capacity::new(None),
            health: self.health.clone(),
            reloads: self.reloads.clone(),
            redis: Redis::open("redis://127.0.0.1:1").unwrap(),
            plugins: self.plugins.clone(),
            traces: Traces::default(),
            refused: RefusedTokens::default(),
            alarms,
        };
        let mut out = String::new();
        text::encode(&mut out, &sources.registry()).unwrap();
        out
    }
}

#[track_caller]
fn assert_lines(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|found| found == *line), "no {line}\n{text}");
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
    let page = include_str!("../../../docs/monitoring.md");
    let is_series = |line: &&str| line.starts_with("tqhost_") || line.starts_with("process_");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")).filter(is_series);
    rows.filter_map(|row| row.split_once('`'))
        .map(|(series, _)| {
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            (name.to_owned(), labels.trim_end_matches('}').to_owned())
        })
        .collect()
}

#[test]
fn all_series_exist_from_the_start_under_their_promised_names() {
    let scraped = scraped(&Host::new().scrape());
    assert_eq!(scraped, documented(), "docs/monitoring.md");
    for name in PROMISED {
        assert!(scraped.contains_key(name), "{name}");
    }
}

#[test]
fn every_outcome_and_every_state_starts_at_zero() {
    let text = Host::new().scrape();
    for outcome in SettledAs::VARIANTS.iter().map(SettledAs::into_str) {
        assert_lines(&text, &[&format!("tqhost_tasks_total{{queue=\"mail\",outcome=\"{outcome}\"}} 0")]);
    }
    for state in ["queued", "running", "delayed", "held", "dead"] {
        assert_lines(&text, &[&format!("tqhost_queue_tasks{{queue=\"mail\",state=\"{state}\"}} 0")]);
    }
    for result in ["ok", "failed", "rolled-back"] {
        let series = format!("tqhost_plugin_reloads_total{{plugin=\"mail\",result=\"{result}\"}} 0");
        assert_lines(&text, &[&series]);
    }
    assert_lines(
        &text,
        &["tqhost_queue_oldest_seconds{queue=\"mail\"} 0.0", "tqhost_redis_reconnects_total 0"],
    );
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn counts_of_a_queue_are_shown() {
    let host = Host::new();
    let mail = host.board.queue("mail");
    SettledAs::VARIANTS.iter().for_each(|outcome| mail.settled(*outcome));
    // Another worker of the same queue counts on.
    host.board.queue("mail").settled(SettledAs::Completed);
    mail.split_batches.inc();
    mail.lost_entries.inc_by(2);
    mail.lease_lost.inc_by(3);
    mail.reclaimed.inc_by(4);
    mail.duration.observe(Duration::from_millis(3));
    mail.wait.observe(Duration::from_secs(601));
    let oldest = Some(Duration::from_millis(1500));
    *mail.census() =
        Census { queued: 5, running: 6, delayed: 7, held_tasks: 9, dead: 8, oldest, ..Census::default() };
    host.board.queue("other");
    assert_eq!(mail.dead(), 7);
    assert_lines(
        &host.scrape(),
        &[
            "tqhost_tasks_total{queue=\"mail\",outcome=\"completed\"} 2",
            "tqhost_tasks_total{queue=\"other\",outcome=\"completed\"} 0",
            "tqhost_batches_total{queue=\"mail\",result=\"whole\"} 0",
            "tqhost_batches_total{queue=\"mail\",result=\"apart\"} 1",
            "tqhost_task_duration_seconds_bucket{le=\"0.002\",queue=\"mail\"} 0",
            "tqhost_task_duration_seconds_bucket{le=\"0.005\",queue=\"mail\"} 1",
            "tqhost_task_wait_seconds_bucket{le=\"600.0\",queue=\"mail\"} 0",
            "tqhost_task_wait_seconds_bucket{le=\"+Inf\",queue=\"mail\"} 1",
            "tqhost_queue_tasks{queue=\"mail\",state=\"queued\"} 5",
            "tqhost_queue_tasks{queue=\"mail\",state=\"running\"} 6",
            "tqhost_queue_tasks{queue=\"mail\",state=\"delayed\"} 7",
            "tqhost_queue_tasks{queue=\"mail\",state=\"held\"} 9",
            "tqhost_queue_tasks{queue=\"mail\",state=\"dead\"} 8",
            "tqhost_queue_oldest_seconds{queue=\"mail\"} 1.5",
            "tqhost_lost_entries_total{queue=\"mail\"} 2",
            "tqhost_lease_lost_total{queue=\"mail\"} 3",
            "tqhost_reclaimed_total{queue=\"mail\"} 4",
        ],
    );
}

#[test]
fn a_fetch_loop_is_shown_as_it_is_now() {
    let host = Host::new();
    host.health.queue("mail").beat(FetchState::Reading);
    assert_lines(&host.scrape(), &["tqhost_fetch_stalled{queue=\"mail\"} 0"]);
    host.health.queue("mail").fault("refused".to_owned());
    assert_lines(&host.scrape(), &["tqhost_fetch_stalled{queue=\"mail\"} 1"]);
    host.health.stops();
    let stopping = ["tqhost_fetch_stalled{queue=\"mail\"} 0", "tqhost_queue_ready{queue=\"mail\"} 0"];
    assert_lines(&host.scrape(), &stopping);
    host.health.remove("mail");
    assert!(!host.scrape().contains("fetch_stalled"));
}

#[test]
fn capacity_and_work_of_a_host_are_shown() {
    let host = Host::new();
    host.board.show(queue("other", 3));
    assert_lines(
        &host.scrape(),
        &[
            "tqhost_capacity 10",
            "tqhost_ready 0",
            "tqhost_queue_concurrency{queue=\"mail\"} 7",
            "tqhost_queue_attempts{queue=\"mail\"} 0",
            "tqhost_queue_ready{queue=\"mail\"} 0",
            "tqhost_queue_paused{queue=\"mail\"} 0",
            concat!("tqhost_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
        ],
    );
    for (state, takes) in
        [(FetchState::Reading, 1), (FetchState::Paused, 0), (FetchState::WaitingForPlugin, 0)]
    {
        host.health.queue("mail").beat(state);
        assert_lines(&host.scrape(), &[&format!("tqhost_queue_ready{{queue=\"mail\"}} {takes}")]);
    }
}

#[test]
fn attempts_are_shown_for_the_last_few_versions() {
    let host = Host::new();
    let figures = host.plugins.status()[0].figures.clone();
    for digest in ["a", "b", "c", "d"] {
        figures.version(digest);
    }
    let text = host.scrape();
    assert_lines(
        &text,
        &["tqhost_plugin_attempts_total{plugin=\"mail\",version=\"d\",outcome=\"trapped\"} 0"],
    );
    assert!(!text.contains("version=\"a\""), "{text}");
    assert_eq!(text.matches("tqhost_plugin_attempts_total{").count(), 3 * 9);
}

#[test]
fn series_of_the_process_have_no_prefix_of_tqhost() {
    let text = Host::new().scrape();
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name}\n{text}")).parse().expect("a number")
    };
    assert!(value("process_resident_memory_bytes") > 1e6);
    assert!(value("process_open_fds") >= 3.0 && value("process_max_fds") >= value("process_open_fds"));
    assert!(value("process_cpu_seconds_total") >= 0.0 && value("process_threads") >= 1.0);
    assert!(value("process_start_time_seconds") > 1.7e9);
}

#[test]
fn hundreds_of_queues_make_a_bounded_number_of_series() {
    let scrape = |histograms| {
        let host = Host::new();
        host.board.set_histograms(histograms);
        (0..500).for_each(|n| host.board.show(queue(&format!("queue-{n}"), 10)));
        (0..500).for_each(|n| drop(host.health.queue(&format!("queue-{n}"))));
        host.scrape()
    };
    let series = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
    let [full, few, one] = [HistogramForm::Full, HistogramForm::Few, HistogramForm::Host].map(scrape);
    println!("series: {} full, {} few, {} host", series(&full), series(&few), series(&one));
    assert!(series(&few) <= 26_200 && series(&one) <= 17_200, "{} {}", series(&few), series(&one));
    assert!(full.contains("tqhost_task_wait_seconds_bucket{le=\"0.025\",queue=\"queue-499\"} 0"));
    assert!(
        few.contains("{le=\"60.0\",queue=\"queue-499\"} 0")
            && !few.contains("{le=\"0.025\",queue=\"queue-499\"}")
    );
    assert!(one.contains("tqhost_task_wait_seconds_count{queue=\"*\"} 0"), "one pair for all");
    assert_eq!(one.matches("tqhost_task_wait_seconds_count").count(), 1);
}

#[test]
fn the_histograms_of_all_queues_do_not_go_back_when_a_queue_is_removed() {
    let host = Host::new();
    host.board.set_histograms(HistogramForm::Host);
    // A queue that is added again counts from 0.
    for (at, name) in (1..).zip(["mail", "other", "mail"]) {
        let queue = host.board.queue(name);
        queue.duration.observe(Duration::from_secs(2));
        queue.wait.observe(Duration::from_secs(1));
        let lines = [
            format!("tqhost_task_duration_seconds_count{{queue=\"*\"}} {at}"),
            format!("tqhost_task_duration_seconds_sum{{queue=\"*\"}} {}.0", 2 * at),
            format!("tqhost_task_wait_seconds_bucket{{le=\"1.0\",queue=\"*\"}} {at}"),
        ];
        assert_lines(&host.scrape(), &lines.each_ref().map(String::as_str));
        host.board.forget(name);
        assert_lines(&host.scrape(), &lines.each_ref().map(String::as_str));
    }
}

/// The upper bounds of a queue's histogram in a scrape.
fn bounds(text: &str, series: &str, queue: &str) -> Vec<String> {
    let of_queue = format!("\",queue=\"{queue}\"}} ");
    let lines = text.lines().filter_map(|line| line.strip_prefix(series)?.strip_prefix("_bucket{le=\""));
    lines.filter_map(|line| Some(line.split_once(&of_queue)?.0.to_owned())).collect()
}

#[test]
fn a_queue_with_a_long_timeout_has_buckets_up_to_it() {
    const SERIES: [&str; 2] = ["tqhost_task_duration_seconds", "tqhost_task_wait_seconds"];
    let host = Host::new();
    let mail = |text: &str| SERIES.map(|series| bounds(text, series, "mail"));
    for (form, few) in [(HistogramForm::Full, false), (HistogramForm::Few, true)] {
        host.board.set_histograms(form);
        let always = if few { 6 } else { 18 };
        for (timeout, longer) in [
            ("1ms", &[][..]),
            ("10m", &[]),
            ("601s", &["1800.0"]),
            ("30m", &["1800.0"]),
            ("31m", &["1800.0", "3600.0"]),
            ("2h", &["1800.0", "3600.0", "21600.0"]),
            ("24h", &["1800.0", "3600.0", "21600.0", "86400.0"]),
            ("7d", &["1800.0", "3600.0", "21600.0", "86400.0"]),
            // The last one that was told counts.
            ("60s", &[]),
        ] {
            host.board.show(queue_with("mail", &format!("timeout = \"{timeout}\"")));
            for bounds in mail(&host.scrape()) {
                assert_eq!(bounds[always - 1], "600.0", "{timeout}");
                assert_eq!(bounds[always..bounds.len() - 1], *longer, "{timeout}");
                assert_eq!(bounds.last().expect("bounds"), "+Inf");
            }
        }
    }
    // One pair for all queues has the bounds that the longest timeout asks for, whichever queue that is.
    host.board.set_histograms(HistogramForm::Host);
    for others in ["a", "z"] {
        host.board.show(queue_with(others, "timeout = \"1h\""));
        host.board.queue(others).duration.observe(Duration::from_secs(1801));
        host.board.queue("mail").duration.observe(Duration::from_secs(601));
        let text = host.scrape();
        assert_eq!(SERIES.map(|series| bounds(&text, series, "*").len()), [21, 21]);
        host.board.queue(others).set_timeout(Duration::from_secs(1));
    }
    host.board.queue("mail").set_timeout(Duration::from_secs(3600));
    assert_lines(
        &host.scrape(),
        &[
            "tqhost_task_duration_seconds_bucket{le=\"600.0\",queue=\"*\"} 0",
            "tqhost_task_duration_seconds_bucket{le=\"1800.0\",queue=\"*\"} 2",
            "tqhost_task_duration_seconds_bucket{le=\"3600.0\",queue=\"*\"} 4",
            "tqhost_task_duration_seconds_bucket{le=\"+Inf\",queue=\"*\"} 4",
        ],
    );
}

#[test]
fn counts_of_a_plugin_are_shown_until_no_queue_uses_it() {
    let host = Host::new();
    let figures = host.plugins.status()[0].figures.clone();
    figures.reloads.inc();
    figures.failed_reloads.inc_by(2);
    figures.rolled_back.inc_by(3);
    figures.peak_memory.set(u64::MAX);
    assert_lines(
        &host.scrape(),
        &[
            "tqhost_plugin_reloads_total{plugin=\"mail\",result=\"ok\"} 1",
            "tqhost_plugin_reloads_total{plugin=\"mail\",result=\"failed\"} 2",
            "tqhost_plugin_reloads_total{plugin=\"mail\",result=\"rolled-back\"} 3",
            "tqhost_plugin_info{plugin=\"mail\",version=\"\",state=\"missing\"} 1",
            &format!("tqhost_guest_memory_bytes{{plugin=\"mail\"}} {}", u64::MAX),
            "tqhost_http_requests_total{plugin=\"mail\",result=\"denied\"} 0",
            "tqhost_guest_log_lines_dropped_total{plugin=\"mail\"} 0",
        ],
    );
    host.plugins.update(BTreeMap::new());
    assert!(!host.scrape().contains("plugin="));
}
