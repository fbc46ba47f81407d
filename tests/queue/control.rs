//! Controls of a queue for producers and operators: delays, limits, pauses, cancellation.

use serde_json::json;

use crate::support::{Bench, Places, eventually};

const NOTHING: Places = Places { length: 0, pending: 0, delayed: 0, parked: 0, dead: 0 };

#[test]
fn a_producers_delay_counts_from_its_enqueueing() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    bench.install("echo", "echo");
    let host = bench.host();
    let late = bench.xadd("work", &[("n", "1"), ("tq-delay-ms", "1500")]);
    let soon = bench.xadd("work", &[("n", "2")]);
    bench.until("work", &soon, "COMPLETED");
    assert_eq!(bench.status("work", &late, "status"), "PENDING");
    assert_eq!(bench.places("work"), Places { delayed: 1, parked: 1, ..NOTHING });
    bench.until("work", &late, "COMPLETED");
    let time = |bench: &mut Bench, field| bench.status("work", &late, field).parse::<u64>().expect("a time");
    assert!(time(&mut bench, "started_at") >= time(&mut bench, "enqueued_at") + 1500);
    assert_eq!(bench.status("work", &late, "attempt"), "1");
    host.stop();
    // The task was enqueued long ago and its delay is over, so it runs at once.
    let over: String = bench.redis("XADD", ("work", "*", "n", "3", "tq-delay-ms", "1"));
    let host = bench.host();
    bench.until("work", &over, "COMPLETED");
    host.stop();
}

#[test]
fn a_full_queue_refuses_and_trims_nothing() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\nmax_backlog = 3\n");
    for n in 0..2 {
        bench.tqhost(&["enqueue", "work", &format!("n={n}")]).ok();
    }
    bench.tqhost(&["enqueue", "work", "n=2", "--delay", "1s"]).ok();
    insta::assert_snapshot!(
        bench.tqhost(&["enqueue", "work", "n=3"]).ends_with(1).stderr,
        @"tqhost: queue work is full: 3 tasks or more wait or run (max_backlog); try again later, or raise it"
    );
    let lines = bench.dir.path().join("lines");
    std::fs::write(&lines, "{\"n\": 4}\n{\"n\": 5}\n").expect("write a file");
    let refused = bench.tqhost(&["enqueue", "work", "--jsonl", &lines.display().to_string()]);
    assert!(refused.code == 1 && refused.stderr.contains("line 1"), "{refused:?}");
    let length: u64 = bench.redis("XLEN", "work");
    assert_eq!(length, 2);
    bench.install("echo", "echo");
    let host = bench.host();
    bench.until_drained("work");
    bench.tqhost(&["enqueue", "work", "n=6", "--wait"]).ok();
    host.stop();
}

#[test]
fn a_paused_queue_claims_nothing_in_any_host() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n[queues.other]\nplugin = \"echo\"\n");
    bench.install("echo", "echo");
    let hosts = [bench.host(), bench.host()];
    assert_eq!(
        bench.tqhost(&["pause", "work", "--json"]).ok().json(),
        json!({"queue": "work", "paused": true, "changed": true})
    );
    assert_eq!(bench.tqhost(&["pause", "work", "--json"]).ok().json()["changed"], false);
    for host in &hosts {
        eventually("the pause is seen", || host.get("/readyz").body.contains("paused").then_some(()));
        assert_eq!(host.get("/readyz").status, 200, "a pause is no fault");
    }
    let id = bench.xadd("work", &[("n", "1")]);
    let other = bench.xadd("other", &[("n", "1")]);
    bench.until("other", &other, "COMPLETED");
    assert_eq!(bench.places("work"), Places { length: 1, ..NOTHING });
    assert!(bench.tqhost(&["queues"]).ok().stdout.contains("paused"));
    bench.tqhost(&["resume", "work"]).ok();
    bench.until("work", &id, "COMPLETED");
    assert_eq!(bench.tqhost(&["resume", "work", "--json"]).ok().json()["changed"], false);
    crate::support::Host::stop_all(hosts);
}

#[test]
fn a_task_can_be_cancelled_wherever_it_is() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"sleeps\"\n");
    bench.install("sleeps", "sleeps");
    let enqueue = |bench: &Bench, args: &[&str]| {
        bench.tqhost(&[&["enqueue", "work"], args].concat()).ok().stdout.trim().to_owned()
    };
    // Queued tasks, by their own id, by an id of the producer, and enqueued by tqhost.
    let entry = bench.xadd("work", &[("ms", "0")]);
    let _: String = bench.redis("XADD", ("work", "*", "tq-id", "mine", "ms", "0"));
    let queued = enqueue(&bench, &["ms=0"]);
    let delayed = enqueue(&bench, &["ms=0", "--delay", "1h"]);
    for id in [&entry, &"mine".to_owned(), &queued, &delayed] {
        let before = bench.tqhost(&["cancel", "work", id, "--json"]).ok().json();
        assert_eq!(before, json!({"id": id, "before": "PENDING", "status": "CANCELLED", "children": 0}));
        assert_eq!(bench.status("work", id, "status"), "CANCELLED");
        assert!(bench.redis::<i64>("TTL", format!("tq:{{work}}:task:{id}")) > 0, "its status expires");
    }
    let unknown = bench.tqhost(&["cancel", "work", "nobody"]);
    insta::assert_snapshot!(
        unknown.ends_with(1).stderr,
        @"tqhost: queue work knows no task \"nobody\": it was never there, it ended more than 1d ago (the \
          queue's retention), or it lies behind the 5,000 entries or 64 MiB that a search reads"
    );
    assert_eq!(bench.redis::<u64>("XLEN", "work"), 0);
    let host = bench.host();
    // A running task.
    let running = bench.xadd("work", &[("ms", "600000")]);
    bench.until("work", &running, "PROCESSING");
    assert_eq!(bench.tqhost(&["cancel", "work", &running, "--json"]).ok().json()["before"], "PROCESSING");
    host.log("cancelled while it ran");
    host.until_ended_as("work", "cancelled", 1);
    // A second cancellation changes nothing and reports the same.
    assert_eq!(bench.tqhost(&["cancel", "work", &running, "--json"]).ok().json()["before"], "CANCELLED");
    // A task that has ended cannot be cancelled.
    let done = bench.xadd("work", &[("ms", "0")]);
    bench.until("work", &done, "COMPLETED");
    let late = bench.tqhost(&["cancel", "work", &done]);
    assert!(late.code == 1 && late.stderr.contains("COMPLETED already"), "{late:?}");
    assert_eq!(bench.places("work"), NOTHING);
    assert!(host.metric("tqhost_lease_lost_total{queue=\"work\"}") < 0.5, "a cancellation is no lost lease");
    host.stop();
}

#[test]
fn a_task_that_waits_under_an_unknown_entry_is_dropped_when_it_is_delivered() {
    let mut bench =
        Bench::new("[queues.work]\nplugin = \"fails-twice\"\nbackoff = { delays = [\"100ms\", \"1h\"] }\n");
    bench.install("fails-twice", "fails-twice");
    let host = bench.host();
    let id = bench.xadd("work", &[("n", "1")]);
    eventually("the second delay", || (bench.status("work", &id, "attempt") == "3").then_some(()));
    host.stop();
    // The test makes the delay end early, and a host promotes the task.
    let parked: Vec<(String, Vec<u8>)> = bench.redis("HGETALL", "tq:{work}:parked");
    assert_eq!(parked.len(), 1);
    let _: i64 = bench.redis("ZADD", ("tq:{work}:delayed", 1, &parked[0].0));
    bench.tqhost(&["pause", "work"]).ok();
    let host = bench.host();
    eventually("it is promoted", || (bench.places("work").length == 1).then_some(()));
    // The task was promoted before its time, so its status does not name its place. The task is not lost.
    assert_eq!(bench.tqhost(&["doctor", "work", "--fix", "--json"]).ok().json()["ok"], true);
    bench.tqhost(&["cancel", "work", &id]).ok();
    assert_eq!(bench.status("work", &id, "status"), "CANCELLED");
    bench.tqhost(&["resume", "work"]).ok();
    bench.until_drained("work");
    assert_eq!(bench.status("work", &id, "status"), "CANCELLED");
    assert!(bench.redis::<i64>("TTL", format!("tq:{{work}}:task:{id}")) > 0, "its status expires now");
    host.stop();
}

#[test]
fn a_rate_limit_holds_for_all_hosts_together() {
    let mut bench =
        Bench::new("[queues.work]\nplugin = \"empty\"\nconcurrency = 50\nrate_limit = \"50/s\"\n");
    bench.install("empty", "empty");
    let ids: Vec<String> = (0..150).map(|n| bench.xadd("work", &[("n", &n.to_string())])).collect();
    let hosts = [bench.host(), bench.host(), bench.host()];
    bench.until_drained("work");
    let mut started: Vec<u64> =
        ids.iter().map(|id| bench.status("work", id, "started_at").parse().expect("a time")).collect();
    started.sort_unstable();
    // The times are from Redis. In any second at most 50 tasks may start, plus a tenth of that in advance,
    // plus one because of rounding. A late reply, or a host that waits for a processor, lets a task start
    // that much later than its place was taken. Without a common limit three times as many would start.
    let least_ms = 700 - crate::support::late_ms();
    for window in started.windows(57) {
        assert!(window[56] - window[0] >= least_ms, "57 tasks started within {} ms", window[56] - window[0]);
    }
    crate::support::Host::stop_all(hosts);
}

#[test]
fn a_rate_that_was_not_used_is_not_lost_to_idle_hosts() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"empty\"\nrate_limit = \"2/s\"\n");
    bench.install("empty", "empty");
    let hosts = [bench.host(), bench.host(), bench.host()];
    // While the queue is empty, all three hosts take places and give them back.
    for host in &hosts {
        eventually("it reads", || (host.get("/readyz").status == 200).then_some(()));
    }
    let ids: Vec<String> = (0..6).map(|n| bench.xadd("work", &[("n", &n.to_string())])).collect();
    bench.until_drained("work");
    for id in ids {
        assert_eq!(bench.status("work", &id, "status"), "COMPLETED");
    }
    crate::support::Host::stop_all(hosts);
}

#[test]
fn dead_letters_are_chosen_by_their_age_and_come_back_no_faster_than_told() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"rejects\"\n");
    bench.install("rejects", "rejects");
    let host = bench.host();
    for n in 0..10 {
        bench.xadd("work", &[("n", &n.to_string())]);
    }
    eventually("all are dead", || (bench.places("work").dead == 10).then_some(()));
    host.stop();
    // Two of them died an hour ago. The test rewrites them with that time, in the form that an older host
    // wrote.
    let dead: Vec<(String, Vec<String>)> = bench.redis("XRANGE", ("tq:{work}:dead", "-", "+", "COUNT", 2));
    for (entry, fields) in dead {
        let _: u64 = bench.redis("XDEL", ("tq:{work}:dead", entry));
        let mut add = redis::cmd("XADD");
        add.arg("tq:{work}:dead").arg("*");
        for pair in fields.chunks(2) {
            let failed_at = || (pair[1].parse::<u64>().expect("ms") - 3_600_000).to_string();
            add.arg(&pair[0]).arg(if pair[0] == "tq-failed-at" { failed_at() } else { pair[1].clone() });
        }
        let _: String = add.query(&mut bench.db).expect("XADD");
    }
    let listed = |bench: &Bench, args: &[&str]| {
        bench.tqhost(&[&["dead", "list", "work", "--json"], args].concat()).ok().json()["dead"].clone()
    };
    assert_eq!(listed(&bench, &["--older-than", "59m"]).as_array().map(Vec::len), Some(2));
    assert_eq!(listed(&bench, &["--newer-than", "59m"]).as_array().map(Vec::len), Some(8));
    assert_eq!(
        bench
            .tqhost(&["dead", "purge", "work", "--all", "--older-than", "59m", "--yes", "--json"])
            .ok()
            .json()["succeeded"],
        2
    );
    let clock = |bench: &mut Bench| -> f64 {
        let (seconds, micros): (f64, f64) = redis::cmd("TIME").query(&mut bench.db).expect("TIME");
        seconds + micros / 1e6
    };
    let before = clock(&mut bench);
    let requeued =
        bench.tqhost(&["dead", "requeue", "work", "--all", "--rate", "10/s", "--json"]).ok().json();
    assert_eq!(requeued, json!({"succeeded": 8, "skipped": 0}));
    let entries: Vec<(String, Vec<String>)> = bench.redis("XRANGE", ("work", "-", "+"));
    let times: Vec<u64> = entries
        .iter()
        .map(|(id, _)| id.split('-').next().and_then(|ms| ms.parse().ok()).expect("an entry id"))
        .collect();
    assert!(times[7] - times[0] >= 7 * 100, "one in a tenth of a second: {times:?}");
    assert!(clock(&mut bench) - before >= 0.7);
    assert_eq!(bench.tqhost(&["dead", "requeue", "work", "--all", "--rate", "fast"]).code, 2);
}
