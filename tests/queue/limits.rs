//! `tqhost limit`: an operator lowers what a queue may run while its hosts run.
//!
//! Not here: the words of the command (`cli`), a full Redis (`faults::full_redis`).

use serde_json::{Value, json};

use crate::support::{Bench, Host, eventually};

const LIMITED: &str = "the queue is limited by an operator";
const ENDED: &str = "the queue is limited by its configuration alone again";

/// The time of Redis's clock in ms.
fn now_ms(bench: &mut Bench) -> u64 {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut bench.db).expect("TIME");
    seconds * 1000 + micros / 1000
}

fn limit(bench: &Bench, args: &[&str]) -> Value {
    bench.tqhost(&[&["limit", "work", "--json"], args].concat()).ok().json()
}

/// Adds tasks that run until they are cancelled.
fn add(bench: &mut Bench, tasks: usize, key: &str) -> Vec<String> {
    (0..tasks).map(|_| bench.xadd("work", &[("ms", "600000"), ("key", key)])).collect()
}

/// Cancels this number of tasks that run.
fn cancel_running(bench: &mut Bench, ids: &mut Vec<String>, tasks: usize) {
    for _ in 0..tasks {
        let at = eventually("one runs", || {
            ids.iter().position(|id| bench.status("work", id, "status") == "PROCESSING")
        });
        let id = ids.remove(at);
        bench.tqhost(&["cancel", "work", &id]).ok();
    }
}

#[test]
fn a_rate_holds_for_all_hosts_together_until_its_end() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"empty\"\nconcurrency = 50\n");
    bench.install("empty", "empty");
    let hosts = [bench.host(), bench.host()];
    hosts.iter().for_each(Host::until_ready);
    let view = limit(&bench, &["--rate", "5/s", "--for", "8s", "--why", "the model answers 429"]);
    let ms = |name: &str| view["limits"][name].as_u64().expect("a time");
    let (since, until) = (ms("since_ms"), ms("until_ms"));
    assert_eq!((&view["changed"], until - since), (&json!(true), 8000));
    for host in &hosts {
        let line = host.log(LIMITED);
        let told = ["queue", "limits", "why"].map(|name| line[name].as_str().expect("a text"));
        assert_eq!(told, ["work", "rate 5/s", "the model answers 429"]);
    }
    // Reads that began before may still bring what the queue's concurrency allows.
    let ids: Vec<String> = (0..250).map(|_| bench.xadd("work", &[("n", "1")])).collect();
    bench.until_drained("work");
    let mut starts: Vec<u64> =
        ids.iter().map(|id| bench.status("work", id, "started_at").parse().expect("a time")).collect();
    starts.sort_unstable();
    let limited: Vec<u64> = starts.iter().copied().filter(|at| (since + 3000..until).contains(at)).collect();
    assert!(!limited.is_empty() && limited.len() <= 27, "{} in five seconds", limited.len());
    // In a second five tasks may start, one in advance, and one because of rounding.
    let least_ms = 900 - crate::support::late_ms();
    for window in limited.windows(8) {
        assert!(window[7] - window[0] >= least_ms, "8 tasks started within {} ms", window[7] - window[0]);
    }
    hosts.iter().for_each(|host| drop(host.log(ENDED)));
    assert_eq!(limit(&bench, &[]), json!({ "queue": "work", "limits": null, "changed": false }));
    Host::stop_all(hosts);
}

#[test]
fn a_faster_rate_begins_at_once_also_where_places_of_a_slow_one_were_taken() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"empty\"\nrate_limit = \"100/s\"\n");
    bench.install("empty", "empty");
    limit(&bench, &["--rate", "1/h", "--why", "a test"]);
    let host = bench.host();
    let ids: Vec<String> = (0..20).map(|_| bench.xadd("work", &[("n", "1")])).collect();
    bench.until("work", &ids[0], "COMPLETED");
    assert_eq!(bench.places("work").length, 19);
    limit(&bench, &["--clear"]);
    bench.all_done("work", &ids);
    host.stop();
}

#[test]
fn each_host_runs_no_more_than_the_lower_concurrency_and_nothing_is_stopped() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"sleeps\"\nconcurrency = 5\ntimeout = \"1h\"\n");
    bench.install("sleeps", "sleeps");
    // Hosts that start later obey, too.
    let view = limit(&bench, &["--concurrency", "2", "--for", "6s", "--why", "a test"]);
    let until = view["limits"]["until_ms"].as_u64().expect("a time");
    let hosts = [bench.host(), bench.host()];
    let mut ids = add(&mut bench, 12, "a");
    bench.until_pending("work", 4);
    let grown = eventually("more run", || (bench.places("work").pending > 4).then(|| now_ms(&mut bench)));
    assert!(grown >= until, "{} ms before the end of the limits", until - grown);
    bench.until_running("work", 10);
    // The running tasks go on, and nothing begins until fewer run than may.
    limit(&bench, &["--concurrency", "1", "--why", "a test"]);
    hosts.iter().for_each(|host| drop(host.until_logged(LIMITED, 2)));
    assert_eq!(bench.places("work").pending, 10);
    cancel_running(&mut bench, &mut ids, 9);
    eventually("each host runs one", || {
        let places = bench.places("work");
        (places.pending == 2 && places.length == 3).then_some(())
    });
    limit(&bench, &["--clear"]);
    bench.until_pending("work", 3);
    Host::stop_all(hosts);
}

#[test]
fn fewer_tasks_of_one_key_run_until_the_limit_is_cleared() {
    let mut bench = Bench::new(
        "[queues.work]\nplugin = \"sleeps\"\nconcurrency = 20\ntimeout = \"1h\"\n\
         serial = { field = \"key\", limit = 3 }\n",
    );
    bench.install("sleeps", "sleeps");
    limit(&bench, &["--per-key", "1", "--why", "a tenant floods"]);
    let host = bench.host();
    let mut ids = add(&mut bench, 6, "a");
    add(&mut bench, 2, "b");
    bench.until_pending("work", 2);
    eventually("the others are held", || (bench.places("work").delayed == 6).then_some(()));
    // The end of a task calls up the next one, also by a command.
    cancel_running(&mut bench, &mut ids, 1);
    eventually("the next one runs", || (bench.places("work").delayed == 5).then_some(()));
    bench.until_pending("work", 2);
    // A value that cannot be read limits nothing: three of the key may run after the next end.
    let _: () = bench.redis("SET", ("tq:{work}:limits", "{\"per_key\":\"one\"}"));
    cancel_running(&mut bench, &mut ids, 1);
    bench.until_pending("work", 4);
    assert_eq!(limit(&bench, &["--clear"])["changed"], true);
    assert_eq!(bench.tqhost(&["doctor", "work", "--json"]).ok().json()["ok"], true);
    host.stop();
}

#[test]
fn limits_that_cannot_be_read_do_not_stop_the_queue() {
    let mut bench =
        Bench::new("[queues.work]\nplugin = \"empty\"\nserial = { field = \"key\", limit = 2 }\n");
    bench.install("empty", "empty");
    let host = bench.host();
    for value in ["1795242534558", "[1]", "", "{\"rate\":7}", "{\"rate\":\"fast\",\"burst\":{}}"] {
        let _: () = bench.redis("SET", ("tq:{work}:limits", value));
        let ids: Vec<String> = (0..3).map(|_| bench.xadd("work", &[("key", "a")])).collect();
        bench.all_done("work", &ids);
        bench.tqhost(&["queues", "work"]).ok();
    }
    let _: u64 = bench.redis("DEL", "tq:{work}:limits");
    let _: u64 = bench.redis("HSET", ("tq:{work}:limits", "rate", "1/h"));
    let id = bench.xadd("work", &[("key", "a")]);
    bench.until("work", &id, "COMPLETED");
    // The next limits take its place.
    limit(&bench, &["--per-key", "1", "--why", "a test"]);
    host.log(LIMITED);
    host.stop();
}

#[test]
fn limits_are_shown_with_their_reason_and_refused_with_the_way_out() {
    let bench = Bench::new("[queues.work]\nplugin = \"missing\"\nconcurrency = 4\nrate_limit = \"10/s\"\n");
    let view = limit(&bench, &["--rate", "5/s", "--concurrency", "2", "--why", " the model answers 429 "]);
    let by = view["limits"]["by"].as_str().expect("a text").to_owned();
    assert!(by.contains('@'), "{by}");
    assert_eq!(view["limits"]["until_ms"], Value::Null);
    let shown = bench.tqhost(&["queues", "work", "--json"]).ok().json();
    assert_eq!(shown["limits"], view["limits"]);
    let told = [&["limit", "work"][..], &["queues", "work"]].map(|command| {
        let shown = bench.tqhost(command).ok().stdout;
        let line = shown.lines().find(|line| line.contains("429"));
        let line = line.unwrap_or_else(|| panic!("no limits in {shown}")).replace(&by, "SOMEBODY");
        // The time is left out.
        line.split(", ").filter(|part| !part.starts_with("since ")).collect::<Vec<_>>().join(", ")
    });
    insta::assert_snapshot!(told.join("\n"), @"
    work is limited: rate 5/s, concurrency 2 in each host, by SOMEBODY, because: the model answers 429
    limits   rate 5/s, concurrency 2 in each host, by SOMEBODY, because: the model answers 429
    ");
    assert!(bench.tqhost(&["queues", "--match", "limited"]).ok().stdout.contains("no host, limited"));
    let refused = [
        &["--rate", "11/s", "--why", "x"][..],
        &["--concurrency", "5", "--why", "x"],
        &["--per-key", "1", "--why", "x"],
        &["--rate", "5", "--why", "x"],
        &["--concurrency", "0", "--why", "x"],
        &["--rate", "5/s"],
        &["--rate", "5/s", "--why", " "],
        &["--clear", "--rate", "5/s", "--why", "x"],
        &["--why", "x"],
    ]
    .map(|args| {
        let told = bench.tqhost(&[&["limit", "work"], args].concat()).ends_with(2).stderr;
        // The usage follows.
        format!("{args:?}\n  {}\n", told.split("\n\n").next().unwrap_or_default().trim_end())
    });
    insta::assert_snapshot!(refused.concat(), @r#"
    ["--rate", "11/s", "--why", "x"]
      tqhost: rate: limits only lower, and the configuration of queue work allows 10/s
    ["--concurrency", "5", "--why", "x"]
      tqhost: concurrency: limits only lower, and the configuration of queue work allows 4
    ["--per-key", "1", "--why", "x"]
      tqhost: per key: queue work has no `serial`, so its tasks have no keys
    ["--rate", "5", "--why", "x"]
      error: invalid value '5' for '--rate <RATE>': "5" has no unit: write "5/s"
    ["--concurrency", "0", "--why", "x"]
      error: invalid value '0' for '--concurrency <NUMBER>': write a whole number from 1
    ["--rate", "5/s"]
      error: the following required arguments were not provided:
      --why <TEXT>
    ["--rate", "5/s", "--why", " "]
      tqhost: why: a reason of 1 to 200 characters is needed; hosts show it
    ["--clear", "--rate", "5/s", "--why", "x"]
      error: the argument '--clear' cannot be used with:
      --rate <RATE>
      --concurrency <NUMBER>
      --per-key <NUMBER>
    ["--why", "x"]
      error: the following required arguments were not provided:
      <--rate <RATE>|--concurrency <NUMBER>|--per-key <NUMBER>>
    "#);
    assert_eq!(limit(&bench, &[])["limits"], view["limits"], "nothing was changed");
    let cleared = [(); 2].map(|()| bench.tqhost(&["limit", "work", "--clear"]).ok().stdout);
    insta::assert_snapshot!(cleared.concat(), @"
    work is limited by its configuration alone again
    work was not limited
    ");
    let changes = bench.tqhost(&["changes", "--json"]).ok().json();
    let changes: Vec<Value> = changes.as_array().expect("a list").iter().rev().cloned().collect();
    let whats = ["limit", "limit-cleared"].map(|what| json!(what));
    assert_eq!(changes.iter().map(|change| change["what"].clone()).collect::<Vec<_>>(), whats, "{changes:?}");
    insta::assert_snapshot!(changes[0]["detail"], @r#""rate 5/s, concurrency 2 in each host""#);
    assert_eq!(changes[0]["why"], view["limits"]["why"]);
}
