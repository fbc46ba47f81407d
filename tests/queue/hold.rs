//! `hold`: something outside is down, and the queue waits instead of using up attempts.

use std::time::{Duration, Instant};

use tqhost::testing::queue::script;

use crate::dashboard::Browser;
use crate::support::bench::guest_path;
use crate::support::files::{marked, put};
use crate::support::web::Service;
use crate::support::{Bench, Host, Places, Web, eventually};

const DOWN: Service = Service::Answers("503 Service Unavailable", "");

/// A service, and a queue whose tasks ask it.
struct Outage {
    web: Web,
    bench: Bench,
}

impl Outage {
    /// `rules` are keys of the queue `work`. The service is down.
    fn new(rules: &str) -> Outage {
        let web = Web::start();
        let bench = Bench::new(&queues(&web, rules));
        bench.install("asks-a-service", "asks-a-service");
        web.set_service(DOWN);
        Outage { web, bench }
    }

    fn add(&mut self, tasks: usize) -> Vec<String> {
        let url = format!("{}/service", self.web.origin());
        (0..tasks).map(|_| self.bench.xadd("work", &[("url", &url)])).collect()
    }

    /// The hold as `tqhost queues` shows it. None: the queue is not held.
    fn hold(&self) -> Option<serde_json::Value> {
        let shown = self.bench.tqhost(&["queues", "work", "--json"]).ok().json();
        Some(shown["held"].clone()).filter(|held| !held.is_null())
    }

    fn until_held(&self) -> serde_json::Value {
        eventually("the queue is held", || self.hold())
    }

    fn until_open(&self) {
        eventually("the queue is open", || self.hold().is_none().then_some(()));
    }

    /// Waits until the service was asked this number of times more.
    fn until_asked(&self, times: usize) {
        let before = self.web.requests();
        eventually("the service is asked again", || (self.web.requests() >= before + times).then_some(()));
    }

    /// All tasks have completed with their first attempt, and nobody is dead.
    fn all_uncharged(&mut self, ids: &[String]) {
        self.bench.all_done("work", ids);
        for id in ids {
            assert_eq!(self.bench.status("work", id, "attempt"), "1", "{id}");
        }
    }

    /// Changes the configuration, and waits until the host has read it.
    fn change(&self, host: &Host, rules: &str) {
        let before = host.logged("the configuration was read again").len();
        self.bench.configure_for(&queues(&self.web, rules), self.bench.redis.port);
        eventually("the configuration is taken", || {
            (host.logged("the configuration was read again").len() > before).then_some(())
        });
    }
}

fn queues(web: &Web, rules: &str) -> String {
    format!(
        "[queues.work]\nplugin = \"asks-a-service\"\n{rules}\n\
         [plugins.asks-a-service]\nallowed_hosts = [\"{}\"]\n",
        web.origin()
    )
}

#[test]
fn a_service_that_is_away_for_long_costs_no_attempt_and_few_requests() {
    // A task that is charged once is dead.
    let mut outage =
        Outage::new("concurrency = 4\nmax_retries = 0\nlease = \"5s\"\nhold = { after = 3, for = \"1s\" }\n");
    let hosts = [outage.bench.host(), outage.bench.host()];
    // The version has to prove itself, and finds nothing but an outage.
    let new = marked(&std::fs::read(guest_path("asks-a-service")).expect("the guest"), 1);
    outage.web.set_service(Service::Up);
    let first = outage.add(1);
    outage.bench.all_done("work", &first);
    outage.web.set_service(DOWN);
    put(&outage.bench, "asks-a-service", &new);
    for host in &hosts {
        host.until_logged("plugin loaded", 2);
    }
    let (before, began) = (outage.web.requests(), Instant::now());
    let ids = outage.add(60);
    for host in &hosts {
        let line = host.log("the queue is held");
        assert_eq!((&line["queue"], &line["cause"]), (&"work".into(), &"the service answers 503".into()));
    }
    outage.until_asked(4);
    // Some run at once in both hosts when the hold begins. Then there is one probe in a second.
    let asked = outage.web.requests() - before;
    let most = 3 + 2 * 4 + began.elapsed().as_secs() as usize + 1;
    assert!(asked <= most, "{asked} requests, not {most}, in {:?}", began.elapsed());
    let held = outage.until_held();
    assert_eq!(held["cause"], "the service answers 503");
    for host in &hosts {
        assert!(host.metric("tqhost_queue_held{queue=\"work\"}") > 0.5);
        let ready = host.get("/readyz");
        assert!(ready.status == 200 && ready.body.contains("\"held\""), "{}", ready.body);
        assert_eq!(host.logged("the queue is held:").len(), 1);
        assert!(host.logged("rolled back").is_empty());
    }
    let shown = outage.bench.tqhost(&["queues"]).ok().stdout;
    let told = [shown, hosts[0].get("/readyz").body, Browser::new(&hosts[0]).page("/")];
    for part in ["on hold since ", "next try ", "last cause: the service answers 503"] {
        assert!(told.iter().all(|text| text.contains(part)), "{part}: {told:?}");
    }
    let doctor = outage.bench.tqhost(&["doctor", "work"]).ok();
    assert!(!doctor.stdout.contains("held"), "{doctor:?}");
    assert_eq!(outage.bench.places("work").dead, 0);
    outage.web.set_service(Service::Up);
    outage.all_uncharged(&ids);
    for host in &hosts {
        assert_eq!(host.until_logged("the queue is held no longer", 1).len(), 1);
        assert!(host.metric("tqhost_queue_held{queue=\"work\"}") < 0.5);
        assert!(host.logged("rolled back").is_empty());
    }
    assert!(outage.hold().is_none());
    Host::stop_all(hosts);
}

#[test]
fn a_server_that_refuses_connections_holds_the_queue_too() {
    let mut outage = Outage::new("max_retries = 0\nhold = { after = 1, for = \"1s\" }\n");
    let gone = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", gone.local_addr().expect("an address"));
    drop(gone);
    outage.bench.configure_for(
        &queues(&outage.web, "max_retries = 0\nhold = { after = 1, for = \"1s\" }\n")
            .replace("allowed_hosts = [", &format!("allowed_hosts = [\"{}\", ", url.trim_end_matches('/'))),
        outage.bench.redis.port,
    );
    let host = outage.bench.host();
    let id = outage.bench.xadd("work", &[("url", &url)]);
    let held = outage.until_held();
    assert!(held["cause"].as_str().is_some_and(|cause| cause.contains("refuses connections")), "{held}");
    // The queue is held before the attempt that found the server away is settled.
    outage.bench.until("work", &id, "PENDING");
    let error = outage.bench.status("work", &id, "error");
    assert!(error.starts_with("not charged: retry: "), "{error}");
    host.stop();
}

#[test]
fn a_service_that_hangs_holds_the_queue_by_the_timeouts_of_requests() {
    // The handler names no timeout, so a request has a little less time than the attempt.
    let mut outage = Outage::new("timeout = \"5s\"\nmax_retries = 0\nhold = { after = 2, for = \"1s\" }\n");
    outage.web.set_service(Service::Hangs);
    let host = outage.bench.host();
    let ids = outage.add(6);
    let held = outage.until_held();
    assert_eq!(held["cause"], "no answer in time");
    // The probes find it so, too.
    outage.until_asked(2);
    assert_eq!((host.ended_as("work", "retried"), outage.bench.places("work").dead), (0, 0));
    outage.web.set_service(Service::Up);
    outage.all_uncharged(&ids);
    host.stop();
}

#[test]
fn a_probe_that_ends_without_an_answer_is_followed_by_the_pause() {
    let rules = "max_retries = 0\nbackoff = { delays = [\"1h\"] }\ntimeout = \"200ms\"\n\
                 hold = { after = 1, for = \"1s\" }\n";
    let mut outage = Outage::new(rules);
    let hosts = [outage.bench.host(), outage.bench.host()];
    outage.add(1);
    hosts.iter().for_each(|host| drop(host.log("the queue is held")));
    let ids: Vec<String> = (0..3).map(|_| outage.bench.xadd("work", &[("loops", "1")])).collect();
    for id in &ids {
        outage.bench.until("work", id, "FAILED");
    }
    let mut failed: Vec<u64> = outage
        .bench
        .dead("work")
        .iter()
        .map(|letter| letter["tq-failed-at"].parse().expect("a time"))
        .collect();
    failed.sort_unstable();
    assert!(failed.windows(2).all(|pair| pair[1] - pair[0] >= 1000), "{failed:?}");
    assert_eq!(failed.len(), ids.len());
    assert!(outage.hold().is_some(), "it says nothing about the service");
    Host::stop_all(hosts);
}

#[test]
fn the_time_that_a_service_asks_for_is_kept() {
    let mut outage = Outage::new(
        "max_retries = 0\nbackoff = { delays = [\"100ms\"] }\nhold = { after = 1, for = \"1s\" }\n",
    );
    outage.web.set_service(Service::Answers("429 Too Many Requests", "retry-after: 4\r\n"));
    let host = outage.bench.host();
    let ids = outage.add(1);
    let held = outage.until_held();
    let ms = |name: &str| held[name].as_u64().expect("a time");
    assert!((4000..6000).contains(&(ms("until_ms") - ms("since_ms"))), "{held}");
    outage.web.set_service(Service::Up);
    outage.all_uncharged(&ids);
    let started: u64 = outage.bench.status("work", &ids[0], "started_at").parse().expect("a time");
    assert!(started >= ms("until_ms"), "it is tried no earlier");
    host.stop();
}

#[test]
fn a_host_that_is_killed_with_the_probe_blocks_nobody() {
    let mut outage = Outage::new("max_retries = 0\nlease = \"1s\"\nhold = { after = 1, for = \"1s\" }\n");
    let ids = outage.add(5);
    let first = outage.bench.host();
    first.log("the queue is held");
    outage.bench.until_pending("work", 0);
    outage.web.set_service(Service::Hangs);
    outage.bench.until_pending("work", 1);
    let second = outage.bench.host();
    second.log("the queue is held");
    first.kill();
    outage.web.set_service(Service::Up);
    outage.all_uncharged(&ids);
    second.stop();
}

#[test]
fn a_service_that_comes_and_goes_loses_no_task() {
    let mut outage = Outage::new("max_retries = 0\nhold = { after = 2, for = \"1s\" }\n");
    let hosts = [outage.bench.host(), outage.bench.host()];
    let mut ids = Vec::new();
    for _ in 0..3 {
        outage.web.set_service(DOWN);
        ids.extend(outage.add(20));
        outage.until_held();
        outage.web.set_service(Service::Up);
        outage.until_open();
        outage.bench.until_drained("work");
    }
    outage.all_uncharged(&ids);
    Host::stop_all(hosts);
}

#[test]
fn resuming_ends_a_hold_at_once_and_a_pause_stands_beside_it() {
    let mut outage = Outage::new("max_retries = 0\nhold = { after = 1, for = \"1h\" }\n");
    let hosts = [outage.bench.host(), outage.bench.host()];
    let ids = outage.add(10);
    outage.until_held();
    hosts.iter().for_each(|host| drop(host.log("the queue is held")));
    outage.bench.tqhost(&["pause", "work"]).ok();
    assert!(outage.bench.tqhost(&["queues"]).ok().stdout.contains("paused"));
    assert!(outage.hold().is_some(), "it is held and paused");
    outage.web.set_service(Service::Up);
    assert_eq!(outage.bench.tqhost(&["resume", "work", "--json"]).ok().json()["changed"], true);
    outage.all_uncharged(&ids);
    assert_eq!(outage.bench.tqhost(&["resume", "work", "--json"]).ok().json()["changed"], false);
    // A hold alone is ended, too.
    outage.web.set_service(DOWN);
    let ids = outage.add(10);
    outage.until_held();
    outage.web.set_service(Service::Up);
    assert_eq!(outage.bench.tqhost(&["resume", "work", "--json"]).ok().json()["changed"], true);
    outage.all_uncharged(&ids);
    Host::stop_all(hosts);
}

#[test]
fn a_hold_is_given_changed_and_taken_away_while_the_host_runs() {
    let retries = "max_retries = 1000\nbackoff = { delays = [\"200ms\"] }\n";
    let mut outage = Outage::new(retries);
    let host = outage.bench.host();
    let ids = outage.add(1);
    outage.until_asked(2);
    assert!(outage.hold().is_none());
    let charged = host.ended_as("work", "retried");
    assert!(charged > 0, "without a hold it is an ordinary retry");
    outage.change(&host, &format!("{retries}hold = {{ after = 2, for = \"1h\" }}\n"));
    outage.until_held();
    let held = outage.web.requests();
    // A shorter rule applies to the hold that is there.
    outage.change(&host, &format!("{retries}hold = {{ after = 2, for = \"1s\" }}\n"));
    outage.until_asked(2);
    assert!(outage.web.requests() > held);
    let charged = host.ended_as("work", "retried");
    outage.change(&host, &format!("{retries}hold = {{ after = 2, for = \"1h\" }}\n"));
    outage.change(&host, retries);
    eventually("it is charged again", || (host.ended_as("work", "retried") > charged).then_some(()));
    outage.web.set_service(Service::Up);
    outage.bench.all_done("work", &ids);
    host.stop();
}

#[test]
fn a_task_that_alone_finds_the_service_down_is_charged_in_the_end() {
    let mut outage = Outage::new(
        "max_retries = 1\nbackoff = { delays = [\"500ms\"] }\nhold = { after = 3, for = \"1s\" }\n",
    );
    outage.web.set_service(Service::Up);
    let host = outage.bench.host();
    let url = format!("{}/down", outage.web.origin());
    let bad = outage.bench.xadd("work", &[("url", &url)]);
    // Each task that gets through ends the row.
    eventually("it is dead", || {
        let good = outage.add(1);
        outage.bench.until("work", &good[0], "COMPLETED");
        (outage.bench.status("work", &bad, "status") == "FAILED").then_some(())
    });
    assert_eq!(outage.bench.status("work", &bad, "attempt"), "2");
    assert!(host.ended_as("work", "unavailable") >= 3);
    assert_eq!(outage.bench.places("work"), Places { dead: 1, ..Places::default() });
    host.stop();
}

#[test]
fn a_task_that_fails_alone_does_not_hold_a_quiet_queue_again_and_is_charged() {
    let mut outage = Outage::new(
        "max_retries = 1\nbackoff = { delays = [\"100ms\"] }\nhold = { after = 3, for = \"1s\" }\n",
    );
    outage.web.set_service(Service::Up);
    let host = outage.bench.host();
    let url = format!("{}/down", outage.web.origin());
    let bad = outage.bench.xadd("work", &[("url", &url)]);
    // Nothing else has run, so the service may be down.
    outage.until_held();
    let good = outage.add(1);
    outage.bench.until("work", &good[0], "COMPLETED");
    // Nothing else runs from now on.
    outage.bench.until("work", &bad, "FAILED");
    assert_eq!(outage.bench.status("work", &bad, "attempt"), "2");
    assert!(outage.hold().is_none());
    assert_eq!(host.logged("the queue is held:").len(), 1);
    host.stop();
}

#[test]
fn two_tasks_that_fail_while_others_get_through_are_charged_in_the_end() {
    let mut outage = Outage::new(
        "max_retries = 1\nbackoff = { delays = [\"100ms\"] }\nhold = { after = 2, for = \"1s\" }\n",
    );
    outage.web.set_service(Service::Up);
    let host = outage.bench.host();
    let url = format!("{}/down", outage.web.origin());
    let bad = [(); 2].map(|()| outage.bench.xadd("work", &[("url", &url)]));
    outage.until_held();
    eventually("both have failed for good", || {
        // A healthy task comes again and again, and gets through.
        let good = outage.add(1);
        outage.bench.until("work", &good[0], "COMPLETED");
        bad.iter().all(|id| outage.bench.status("work", id, "status") == "FAILED").then_some(())
    });
    host.stop();
}

#[test]
fn the_next_task_that_is_tried_is_one_that_was_not_tried_in_this_hold() {
    let mut outage = Outage::new(
        "max_retries = 0\nbackoff = { delays = [\"10ms\"] }\nhold = { after = 1, for = \"2s\" }\n",
    );
    let host = outage.bench.host();
    outage.add(1);
    outage.until_held();
    outage.until_asked(1);
    eventually("the first try is settled", || (outage.bench.places("work").pending == 0).then_some(()));
    // The first task, if it is in the stream again, is before the second one.
    eventually("it is parked or promoted", || {
        let places = outage.bench.places("work");
        (places.length + places.delayed == 1).then_some(())
    });
    std::thread::sleep(Duration::from_millis(500));
    let before = outage.web.requests();
    outage.web.set_service(Service::Up);
    let second = outage.add(1);
    outage.bench.until("work", &second[0], "COMPLETED");
    assert_eq!(outage.web.requests(), before + 1, "the first task was tried again before");
    host.stop();
}

#[test]
fn a_host_takes_up_its_load_step_by_step_after_a_hold() {
    let mut outage = Outage::new(
        "concurrency = 50\nmax_retries = 0\ntimeout = \"60s\"\nhold = { after = 1, for = \"1s\" }\n",
    );
    let host = outage.bench.host();
    outage.add(1);
    outage.until_held();
    outage.add(500);
    eventually("what was read before the hold is given back", || {
        (outage.bench.places("work").pending == 0).then_some(())
    });
    outage.web.set_service(Service::Up);
    host.log("the queue is held no longer");
    // From now on requests stay open, so that they can be counted.
    outage.web.set_service(Service::Hangs);
    let open = eventually("some run beside each other", || {
        Some(outage.bench.places("work").pending).filter(|pending| *pending >= 2)
    });
    assert!(open <= 8, "{open} at once");
    host.kill();
}

#[test]
fn hosts_start_few_tasks_after_a_resume_and_twice_as_many_each_second() {
    let mut outage = Outage::new("concurrency = 50\nmax_retries = 0\nhold = { after = 1, for = \"1h\" }\n");
    let hosts = [outage.bench.host(), outage.bench.host()];
    let first = outage.add(1);
    outage.until_held();
    hosts.iter().for_each(|host| drop(host.log("the queue is held")));
    outage.web.set_service(Service::Up);
    let ids = outage.add(150);
    eventually("what was read before the hold is given back", || {
        (outage.bench.places("work").pending == 0).then_some(())
    });
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut outage.bench.db).expect("TIME");
    let resumed = seconds * 1000 + micros / 1000;
    outage.bench.tqhost(&["resume", "work"]).ok();
    outage.all_uncharged(&[first, ids.clone()].concat());
    let starts: Vec<u64> =
        ids.iter().map(|id| outage.bench.status("work", id, "started_at").parse().expect("a time")).collect();
    for second in 1..=5 {
        let started = starts.iter().filter(|at| **at < resumed + second * 1000).count();
        let most = hosts.len() << (second - 1);
        assert!(started <= most, "{started} tasks, not {most}, started in the first {second} s");
    }
    Host::stop_all(hosts);
}

#[test]
fn a_call_of_the_script_that_is_repeated_counts_once() {
    let script = &script::HOLD.source;
    let mut bench = Bench::new("[queues.work]\n");
    let mut call = |what: &str, consumer: &str, rest: &[&str]| -> (u64, u64) {
        let (state, wait, ..): (u64, u64, u64, u64) =
            bench.redis("EVAL", (script, 1, "tq:{work}:hold", what, 2, 30_000, consumer, rest));
        (state, wait)
    };
    let failed = ["0", "0", "1-0", "0", "down", "t1", "0"];
    assert_eq!([call("failed", "a", &failed), call("failed", "a", &failed)], [(0, 0); 2]);
    assert_eq!(call("through", "a", &["0", "0"]), (0, 0));
    assert_eq!(call("failed", "a", &failed), (0, 0));
    let (state, wait) = call("failed", "b", &["0", "0", "2-0", "0", "down", "t2", "0"]);
    assert!(state == 1 && (29_000..=30_000).contains(&wait), "{state} {wait}");
    assert_eq!(call("through", "a", &["0", "0"]).0, 1, "an attempt that began before ends nothing");
    assert_eq!(call("ask", "a", &["0", "5000"]).0, 1);
    // The time is over: one of them has the probe, also if it asks again.
    let mut call = |what: &str, consumer: &str, rest: &[&str]| -> (u64, u64) {
        let (state, wait, ..): (u64, u64, u64, u64) =
            bench.redis("EVAL", (script, 1, "tq:{work}:hold", what, 2, 0, consumer, rest));
        (state, wait)
    };
    assert_eq!([call("ask", "a", &["0", "5000"]), call("ask", "a", &["0", "5000"])], [(2, 0); 2]);
    let (state, wait) = call("ask", "b", &["0", "5000"]);
    assert!(state == 1 && (1..=5000).contains(&wait), "{state} {wait}");
    assert_eq!(call("keep", "b", &["0", "0"]).0, 1, "it is not the one that has it");
    assert_eq!(call("ask", "b", &["0", "5000"]).0, 1);
    assert_eq!(call("keep", "a", &["0", "0"]).0, 1);
    assert_eq!(call("ask", "b", &["0", "5000"]), (2, 0));
    assert_eq!([call("through", "b", &["1", "0"]), call("through", "b", &["1", "0"])], [(0, 0); 2]);
    assert_eq!(call("ask", "a", &["0", "5000"]), (0, 0));
    // Time: the service asks for more than the queue, up to an hour.
    for n in ["3-0", "4-0"] {
        call("failed", "a", &["0", "0", n, "99999999", "down", n, "0"]);
    }
    let (_, wait) = call("ask", "a", &["0", "5000"]);
    assert!((3_599_000..=3_600_000).contains(&wait), "{wait}");
}

/// The hold must not outlive its reason by more than a moment for the hosts that only look.
#[test]
fn a_host_that_ran_nothing_learns_of_the_end_as_of_the_beginning() {
    let mut outage = Outage::new("concurrency = 1\nmax_retries = 0\nhold = { after = 1, for = \"1s\" }\n");
    let busy = outage.bench.host();
    let ids = outage.add(1);
    busy.log("the queue is held");
    let idle = outage.bench.host();
    idle.log("the queue is held");
    outage.web.set_service(Service::Up);
    outage.bench.all_done("work", &ids);
    for host in [&busy, &idle] {
        host.log("the queue is held no longer");
        assert!(host.metric("tqhost_queue_held{queue=\"work\"}") < 0.5);
    }
    let began = Instant::now();
    let more = outage.add(1);
    outage.bench.all_done("work", &more);
    assert!(began.elapsed() < Duration::from_secs(30));
    Host::stop_all([busy, idle]);
}
