//! Queues that limit which tasks run beside each other, in all hosts together: `max_running`, `serial` and
//! `order`.
//!
//! Not here: the same under faults (`faults::turns`).

use std::collections::HashMap;
use std::time::Duration;

use crate::support::runs::{Run, assert_in_order, most_at_once};
use crate::support::{Bench, Host, Places, Runs, eventually, within};

const SERIAL: &str = "[queues.track]\nplugin = \"fetches\"\nserial = { field = \"key\" }\n";
const STRICT: &str = "[queues.line]\nplugin = \"as-told\"\nmax_running = 1\norder = \"strict\"\n\
                      backoff = { delays = [\"50ms\"] }\nevents = 1000\n";

/// Asserts that no track has left anything behind.
#[track_caller]
fn assert_no_tracks(bench: &mut Bench, stream: &str) {
    let left: u64 =
        bench.redis("EXISTS", &[format!("tq:{{{stream}}}:owners"), format!("tq:{{{stream}}}:tracks")]);
    assert_eq!(left, 0, "tracks without tasks leave no key behind");
}

/// How many tasks are held.
fn held(bench: &mut Bench, stream: &str) -> usize {
    let members: Vec<String> = bench.redis("ZRANGE", (format!("tq:{{{stream}}}:tracks"), 0, -1));
    members.iter().filter(|member| member.contains("/h/")).count()
}

/// Adds a task that does as it is told, with `retries` failed attempts before.
fn tell(bench: &mut Bench, key: &str, retries: u32, end: &str) -> String {
    let data = format!("{{\"n\":\"{key}\",\"ms\":10,\"retries\":{retries},\"end\":\"{end}\"}}");
    bench.xadd("line", &[("data", &data), ("key", key)])
}

#[test]
fn no_more_tasks_run_in_all_hosts_together_than_max_running() {
    let runs = Runs::start();
    let mut bench = runs.bench("[queues.few]\nplugin = \"fetches\"\nmax_running = 3\n");
    let hosts: Vec<Host> = (0..3).map(|_| bench.host()).collect();
    let ids: Vec<String> = (0..60).map(|n| runs.add(&mut bench, "few", "k", n, 40)).collect();
    bench.all_done("few", &ids);
    let all = runs.all();
    assert_eq!((all.len(), most_at_once(&all)), (60, 3));
    // A host whose place was taken goes on when the others are gone.
    let mut hosts = hosts.into_iter();
    let last = hosts.next().expect("a host");
    Host::stop_all(hosts);
    let ids: Vec<String> = (60..70).map(|n| runs.add(&mut bench, "few", "k", n, 10)).collect();
    bench.all_done("few", &ids);
    last.stop();
}

#[test]
fn a_queue_at_its_limit_says_so_and_goes_on_when_another_host_is_done() {
    let runs = Runs::start();
    let mut bench = runs.bench("[queues.few]\nplugin = \"fetches\"\nmax_running = 1\n");
    let first = bench.host();
    let long = runs.add(&mut bench, "few", "k", 0, 600_000);
    eventually("it runs", || (runs.all().len() == 1).then_some(()));
    let second = bench.host();
    let next = runs.add(&mut bench, "few", "k", 1, 1);
    eventually("the second host waits", || {
        second.get("/readyz").body.contains("waiting-for-turn").then_some(())
    });
    assert_eq!(bench.places("few"), Places { length: 2, pending: 1, ..Places::default() });
    bench.tqhost(&["cancel", "few", &long]).ok();
    bench.until("few", &next, "COMPLETED");
    assert_eq!(most_at_once(&runs.all()), 1);
    Host::stop_all([first, second]);
}

#[test]
fn tasks_of_one_key_run_in_their_order_and_others_beside_them() {
    let runs = Runs::start();
    let mut bench = runs.bench(SERIAL);
    let mut ids = Vec::new();
    for n in 0..12 {
        for key in ["a", "b", "c", "d"] {
            ids.push(runs.add(&mut bench, "track", key, n, 30));
        }
    }
    let hosts: Vec<Host> = (0..3).map(|_| bench.host()).collect();
    bench.all_done("track", &ids);
    for key in ["a", "b", "c", "d"] {
        assert_in_order(&runs.of(key), 12);
    }
    assert!(most_at_once(&runs.all()) > 1, "keys run beside each other");
    assert_no_tracks(&mut bench, "track");
    Host::stop_all(hosts);
}

#[test]
fn tasks_that_are_held_keep_no_promoter_busy() {
    let runs = Runs::start();
    let mut bench = runs.bench(SERIAL);
    let host = bench.host();
    let ids: Vec<String> = (0..3).map(|n| runs.add(&mut bench, "track", "k", n, 600_000)).collect();
    eventually("two are held", || (held(&mut bench, "track") == 2).then_some(()));
    // Looks for delayed tasks count what is not held, and only promoters ask for what is due first.
    let calls = |bench: &mut Bench| {
        let text: String = bench.redis("INFO", "commandstats");
        ["zcount", "zrange"].map(|name| -> u64 {
            let calls = format!("cmdstat_{name}:calls=");
            let line = text.lines().find_map(|line| line.strip_prefix(&calls));
            line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
        })
    };
    eventually("some looks wake no promoter", || {
        let before = calls(&mut bench);
        let after =
            eventually("some looks", || Some(calls(&mut bench)).filter(|now| now[0] >= before[0] + 4));
        (after[1] == before[1]).then_some(())
    });
    for id in &ids {
        bench.tqhost(&["cancel", "track", id]).ok();
    }
    bench.until_drained("track");
    host.stop();
}

#[test]
fn a_busy_key_starves_no_other_one() {
    let runs = Runs::start();
    let mut bench = runs.bench(SERIAL);
    let busy: Vec<String> = (0..300).map(|n| runs.add(&mut bench, "track", "busy", n, 5)).collect();
    let other = runs.add(&mut bench, "track", "other", 0, 1);
    let host = bench.host();
    bench.until("track", &other, "COMPLETED");
    assert_ne!(
        bench.status("track", &busy[299], "status"),
        "COMPLETED",
        "it did not wait for all of the busy key"
    );
    let waits = bench.tqhost(&["status", "track", &busy[299], "--json"]).ok().json();
    insta::assert_snapshot!(waits["note"], @r#""waits for its turn""#);
    let counted = bench.tqhost(&["queues", "track", "--json"]).ok().json();
    assert!(counted["held_tasks"].as_u64() > Some(0) && counted["delayed"] == 0, "{counted}");
    bench.all_done("track", &busy);
    assert_in_order(&runs.of("busy"), 300);
    host.stop();
}

#[test]
fn a_limit_bounds_each_key_and_a_task_without_a_key_runs_beside_all() {
    let runs = Runs::start();
    let mut bench = runs.bench(&SERIAL.replace(" }", ", limit = 2 }"));
    let hosts = [bench.host(), bench.host()];
    let mut ids: Vec<String> = Vec::new();
    for n in 0..15 {
        ids.push(runs.add(&mut bench, "track", "a", n, 40));
        // An empty value is no key.
        ids.push(runs.add(&mut bench, "track", "", n, 40));
    }
    bench.all_done("track", &ids);
    assert_eq!(most_at_once(&runs.of("a")), 2);
    assert!(most_at_once(&runs.of("")) > 2);
    assert_no_tracks(&mut bench, "track");
    Host::stop_all(hosts);
}

/// How many tasks of a tenant with a backlog of 300 ended before all tasks of the tenants with few, which
/// were added after them.
fn ended_before_the_few(options: &str) -> usize {
    let runs = Runs::start();
    let mut bench = runs.bench(&format!("[queues.track]\nplugin = \"fetches\"\n{options}"));
    let many: Vec<String> = (0..300).map(|n| runs.add(&mut bench, "track", "many", n, 20)).collect();
    let mut few = Vec::new();
    for n in 0..3 {
        for tenant in ["a", "b", "c", "d"] {
            few.push(runs.add(&mut bench, "track", tenant, n, 20));
        }
    }
    let host = bench.host();
    bench.all_done("track", &few);
    bench.all_done("track", &many);
    host.stop();
    let (of_many, of_few): (Vec<Run>, Vec<Run>) = runs.all().into_iter().partition(|run| run.key == "many");
    assert_eq!((of_many.len(), of_few.len()), (300, 12), "each task ran once");
    let last = of_few.iter().filter_map(|run| run.ended).max();
    of_many.iter().filter(|run| run.ended < last).count()
}

#[test]
fn a_tenant_with_a_backlog_keeps_no_other_one_waiting() {
    let fair = ended_before_the_few("serial = { field = \"key\", limit = 2 }\n");
    assert!(fair < 60, "{fair} of its tasks went before those of the others");
    let one_line = ended_before_the_few("");
    assert!(one_line > 250, "without a limit the others wait for all: {one_line}");
}

#[test]
fn every_end_of_a_task_passes_its_turn_on() {
    let runs = Runs::start();
    let mut bench = runs.bench(&format!("{SERIAL}idempotency = {{ field = \"once\" }}\n"));
    let host = bench.host();
    let first = runs.add(&mut bench, "track", "a", 0, 600_000);
    eventually("it runs", || (runs.all().len() == 1).then_some(()));
    let waits = runs.add(&mut bench, "track", "a", 1, 1);
    let malformed = bench.xadd("track", &[("key", "a"), ("tq-attempt", "x")]);
    let duplicates: Vec<String> =
        (0..2).map(|_| bench.xadd("track", &[("key", "a"), ("url", "no"), ("once", "1")])).collect();
    let own: Vec<String> =
        (0..2).map(|_| bench.xadd("track", &[("key", "a"), ("url", "no"), ("tq-id", "own")])).collect();
    let deleted = runs.add(&mut bench, "track", "a", 2, 600_000);
    let last = runs.add(&mut bench, "track", "a", 3, 1);
    eventually("all others are held", || (held(&mut bench, "track") == 8).then_some(()));
    assert_eq!(own.len(), 2);
    // One that is held is cancelled, and then the one that has the turn.
    bench.tqhost(&["cancel", "track", &waits]).ok();
    assert_eq!(held(&mut bench, "track"), 7);
    bench.tqhost(&["cancel", "track", &first]).ok();
    eventually("the last but one runs", || (runs.of("a").len() == 2).then_some(()));
    bench.until("track", &malformed, "FAILED");
    bench.until("track", &duplicates[0], "COMPLETED");
    bench.until("track", &duplicates[1], "CANCELLED");
    bench.until("track", "own", "COMPLETED");
    let entry = bench.status("track", &deleted, "entry");
    let _: u64 = bench.redis("XDEL", ("track", entry));
    // Its handler may still end it, so it keeps the turn until it is cancelled.
    assert_eq!(bench.status("track", &last, "status"), "PENDING");
    bench.tqhost(&["cancel", "track", &deleted]).ok();
    bench.until("track", &last, "COMPLETED");
    let numbers: Vec<u32> = runs.all().iter().map(|run| run.n).collect();
    assert_eq!(numbers, [0, 2, 3]);
    bench.until_drained("track");
    assert_no_tracks(&mut bench, "track");
    host.stop();
}

/// The events of the queue: (id, status).
fn events(bench: &mut Bench) -> Vec<(String, String)> {
    let entries: Vec<(String, HashMap<String, String>)> =
        bench.redis("XRANGE", ("tq:{line}:events", "-", "+"));
    entries.into_iter().map(|(_, fields)| (fields["id"].clone(), fields["status"].clone())).collect()
}

#[test]
fn a_task_that_is_sent_again_while_its_retry_waits_takes_no_turn() {
    let mut bench = Bench::new(
        "[queues.track]\nplugin = \"fails-twice\"\nserial = { field = \"key\" }\n\
         backoff = { delays = [\"1h\"] }\n",
    );
    bench.install("fails-twice", "fails-twice");
    let host = bench.host();
    let task = [("key", "a"), ("tq-id", "x")];
    bench.xadd("track", &task);
    eventually("its retry waits", || (bench.places("track").delayed == 1).then_some(()));
    let next = bench.xadd("track", &[("key", "a")]);
    eventually("the next one is held", || (held(&mut bench, "track") == 1).then_some(()));
    bench.xadd("track", &task);
    eventually("the second one has ended", || (bench.places("track").length == 0).then_some(()));
    let owners: HashMap<String, String> = bench.redis("HGETALL", "tq:{track}:owners");
    assert_eq!(owners.into_keys().collect::<Vec<_>>(), ["x"], "the retry keeps its turn");
    assert_eq!((held(&mut bench, "track"), &*bench.status("track", &next, "status")), (1, "PENDING"));
    bench.tqhost(&["doctor", "track"]).ok();
    host.stop();
}

#[test]
fn in_a_strict_order_the_next_task_waits_for_the_retries_of_the_one_before() {
    let mut bench = Bench::new(STRICT);
    bench.install("as-told", "as-told");
    let ids: Vec<String> = (0..12).map(|n| tell(&mut bench, &format!("{n}"), n % 3, "ok")).collect();
    let hosts: Vec<Host> = (0..3).map(|_| bench.host()).collect();
    bench.all_done("line", &ids);
    let mut order: Vec<String> = events(&mut bench).into_iter().map(|(id, _)| id).collect();
    order.dedup();
    assert_eq!(order, ids, "nothing happens to a task before the one before it has ended");
    assert_no_tracks(&mut bench, "line");
    Host::stop_all(hosts);
}

#[test]
fn in_a_strict_order_a_released_task_keeps_its_place_and_a_requeued_one_joins_the_tail() {
    // The grace is over at once, so a running task is given back.
    let mut bench = Bench::new(&format!("shutdown_grace = \"0s\"\n{STRICT}"));
    bench.install("as-told", "as-told");
    let host = bench.host();
    let bad = tell(&mut bench, "0", 0, "reject");
    bench.until("line", &bad, "FAILED");
    let data = "{\"n\":\"1\",\"ms\":1500,\"retries\":0,\"end\":\"ok\"}";
    let slow = bench.xadd("line", &[("data", data)]);
    let later: Vec<String> = (2..5).map(|n| tell(&mut bench, &format!("{n}"), 0, "ok")).collect();
    bench.until_running("line", 1);
    bench.tqhost(&["dead", "requeue", "line", &bad]).ok();
    host.stop();
    assert_eq!(bench.status("line", &slow, "status"), "PENDING");
    let host = bench.host();
    eventually("all have ended", || {
        let ended = events(&mut bench).iter().filter(|(_, status)| status != "PENDING").count();
        (ended == 6).then_some(())
    });
    let ended: Vec<String> =
        events(&mut bench).into_iter().filter(|(_, status)| status != "PENDING").map(|(id, _)| id).collect();
    let expected: Vec<&String> = [&bad, &slow].into_iter().chain(&later).chain([&bad]).collect();
    assert_eq!(ended.iter().collect::<Vec<_>>(), expected);
    host.stop();
}

#[test]
fn a_strict_order_takes_no_delays() {
    let mut bench = Bench::new(STRICT);
    bench.install("as-told", "as-told");
    let refused = bench.tqhost(&["enqueue", "line", "a=1", "--delay", "10s"]);
    assert!(refused.code == 2 && refused.stderr.contains("strict order"), "{refused:#?}");
    let host = bench.host();
    let id = bench.xadd("line", &[("a", "1"), ("tq-delay-ms", "5")]);
    bench.until("line", &id, "FAILED");
    insta::assert_snapshot!(
        bench.status("line", &id, "error"),
        @"tq-delay-ms: the queue runs its tasks in a strict order, and takes none with a delay"
    );
    host.stop();
}

#[test]
fn tasks_that_were_held_run_after_serial_is_taken_out() {
    let runs = Runs::start();
    let mut bench = runs.bench(SERIAL);
    let host = bench.host();
    let first = runs.add(&mut bench, "track", "a", 0, 600_000);
    let ids: Vec<String> = (1..6).map(|n| runs.add(&mut bench, "track", "a", n, 1)).collect();
    eventually("they are held", || (held(&mut bench, "track") == 5).then_some(()));
    let config = std::fs::read_to_string(bench.config()).expect("the configuration");
    bench.configure(&config.replace("serial = { field = \"key\" }\n", ""));
    for id in &ids {
        bench.until("track", id, "COMPLETED");
    }
    bench.tqhost(&["cancel", "track", &first]).ok();
    // When it is put in again, what is left of the tracks holds nothing up.
    bench.configure(&config);
    host.until_logged("the configuration was read again", 2);
    let next = runs.add(&mut bench, "track", "a", 6, 1);
    within(Duration::from_secs(120), "the turn that nobody uses is passed on", || {
        (bench.status("track", &next, "status") == "COMPLETED").then_some(())
    });
    host.stop();
}

#[test]
fn the_doctor_finds_turns_that_nobody_uses_and_passes_them_on() {
    let runs = Runs::start();
    let mut bench = runs.bench(SERIAL);
    let host = bench.host();
    let first = runs.add(&mut bench, "track", "a", 0, 600_000);
    let second = runs.add(&mut bench, "track", "a", 1, 1);
    eventually("it is held", || (held(&mut bench, "track") == 1).then_some(()));
    bench.tqhost(&["doctor", "track"]).ok();
    host.kill();
    // Another program deletes the task that has the turn, and all that is known of it.
    let _: u64 = bench.redis("XACK", ("track", "tqhost", &first));
    let _: u64 = bench.redis("XDEL", ("track", &first));
    let _: u64 = bench.redis("DEL", format!("tq:{{track}}:task:{first}"));
    let found = bench.tqhost(&["doctor", "track", "--json"]);
    let kinds: Vec<_> = found.json()["findings"].as_array().expect("findings").clone();
    assert_eq!(
        (kinds.len(), kinds[0]["kind"].as_str(), kinds[0]["task"].as_str()),
        (1, Some("turn-without-task"), Some(&*first))
    );
    assert!(bench.tqhost(&["doctor", "track", "--fix"]).ok().stdout.contains("all fixed"));
    bench.tqhost(&["doctor", "track"]).ok();
    // Nobody has the turn.
    let _: u64 = bench.redis("DEL", "tq:{track}:owners");
    let third = runs.add(&mut bench, "track", "a", 2, 1);
    let found = bench.tqhost(&["doctor", "track", "--fix", "--json"]).json();
    assert_eq!(found["findings"][0]["kind"], "broken-track", "{found}");
    let host = bench.host();
    bench.all_done("track", &[second, third]);
    assert_no_tracks(&mut bench, "track");
    host.stop();
}
