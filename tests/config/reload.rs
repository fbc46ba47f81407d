//! The configuration file changes while the host runs: queues and grants are added, changed and removed, and
//! no task is affected.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::bench::guest_path;
use crate::support::files::row;
use crate::support::words::masked;
use crate::support::{Bench, Held, Host, Producer, Web, eventually};

const EMPTY: &str = "[queues.work]\nplugin = \"empty\"\n";

/// Writes the file as editors do, and waits until the host has read it.
fn change(bench: &Bench, host: &Host, queues: &str) {
    let before = host.logged("the configuration was read again").len();
    bench.configure_for(queues, bench.redis.port);
    eventually("the configuration is taken", || {
        (host.logged("the configuration was read again").len() > before).then_some(())
    });
}

#[test]
fn a_queue_that_is_added_works_and_one_that_is_removed_stops() {
    let mut bench = Bench::new(EMPTY);
    bench.install("empty", "empty");
    let host = bench.host();
    host.until_ready();
    change(&bench, &host, &format!("{EMPTY}[queues.more]\nplugin = \"empty\"\n"));
    for queue in ["work", "more"] {
        let id = bench.xadd(queue, &[("n", "1")]);
        bench.until(queue, &id, "COMPLETED");
    }
    change(&bench, &host, "[queues.more]\nplugin = \"empty\"\n");
    eventually("its figures are gone", || {
        (!host.get("/metrics").body.contains("queue=\"work\"")).then_some(())
    });
    host.until_ready();
    let waiting = bench.xadd("work", &[("n", "2")]);
    let id = bench.xadd("more", &[("n", "2")]);
    bench.until("more", &id, "COMPLETED");
    assert_eq!(bench.places("work").length, 1, "nobody takes {waiting}");
    change(&bench, &host, EMPTY);
    bench.until("work", &waiting, "COMPLETED");
    host.stop();
}

#[test]
fn the_buckets_of_the_metrics_follow_the_timeout() {
    let rules = |timeout: &str| format!("{EMPTY}timeout = \"{timeout}\"\n");
    let bench = Bench::new(&rules("1h"));
    bench.install("empty", "empty");
    let host = bench.host();
    host.until_ready();
    let longest = |host: &Host| {
        let text = host.get("/metrics").body;
        ["600", "1800", "3600", "21600", "86400"]
            .map(|bound| text.contains(&format!("task_duration_seconds_bucket{{le=\"{bound}.0\",")))
    };
    assert_eq!(longest(&host), [true, true, true, false, false]);
    change(&bench, &host, &rules("2h"));
    assert_eq!(longest(&host), [true, true, true, true, false]);
    change(&bench, &host, &rules("10m"));
    assert_eq!(longest(&host), [true, false, false, false, false]);
    host.stop();
}

#[test]
fn an_attempt_ends_under_the_rules_that_it_began_with() {
    let held = Held::new();
    let before = "[queues.work]\nplugin = \"fetches\"\nconcurrency = 1\n";
    let after =
        "[queues.work]\nplugin = \"fetches\"\nconcurrency = 1\ntimeout = \"200ms\"\nmax_retries = 0\n";
    let mut bench = held.bench(before);
    let host = bench.host();
    let long = bench.xadd("work", &held.task());
    bench.until("work", &long, "PROCESSING");
    // This page never answers.
    let web = Web::start();
    let next = bench.xadd("work", &[("url", &format!("{}/silent", web.origin()))]);
    let after =
        held.queues(after).replace("allowed_hosts = [", &format!("allowed_hosts = [\"{}\", ", web.origin()));
    change(&bench, &host, &after);
    // `concurrency = 1` holds for the old and the new rules together.
    assert_eq!(
        (bench.places("work").pending, bench.status("work", &long, "status").as_str()),
        (1, "PROCESSING")
    );
    // The new timeout is over for an attempt that it applies to.
    std::thread::sleep(Duration::from_millis(300));
    held.end();
    bench.until("work", &long, "COMPLETED");
    bench.until("work", &next, "FAILED");
    let dead = bench.dead("work");
    assert!(dead[0]["tq-error"].starts_with("timeout: "), "{dead:?}");
    eventually("the name that the first rules were served under is gone", || {
        let consumers: Vec<redis::Value> = bench.redis("XINFO", ("CONSUMERS", "work", "tqhost"));
        (consumers.len() == 1).then_some(())
    });
    host.stop();
}

#[test]
fn changes_under_load_lose_nothing_and_run_nothing_twice() {
    let queues = |n: u32| {
        format!(
            "concurrency = {}\n[queues.work]\nplugin = \"empty\"\nconcurrency = {}\npriority = {}\n\
             max_retries = {n}\n[queues.other{n}]\nplugin = \"empty\"\n",
            3 + n % 3,
            1 + n % 7,
            1 + n % 2
        )
    };
    let mut bench = Bench::new(&queues(0));
    bench.install("empty", "empty");
    let host = bench.host();
    let producer = Producer::start(&bench.redis.url(), &[]);
    for n in 1..=20 {
        change(&bench, &host, &queues(n));
        producer.produce(20);
    }
    let ids = producer.stop();
    bench.all_done("work", &ids);
    // Each task was committed once.
    host.until_ended_as("work", "completed", ids.len() as u64);
    assert_eq!(
        (host.count("tqhost_reclaimed_total", "work"), host.count("tqhost_lease_lost_total", "work")),
        (0, 0)
    );
    assert_eq!(bench.places("work").dead, 0);
    host.stop();
}

#[test]
fn a_bad_file_changes_nothing_and_is_reported() {
    let mut bench = Bench::new(EMPTY);
    bench.install("empty", "empty");
    let host = bench.host();
    host.until_ready();
    let good = fs::read_to_string(bench.config()).expect("the configuration");
    fs::write(bench.config(), good.replace("plugin =", "plugins =")).expect("write");
    let why = host.log("cannot be used: everything stays as it is")["why"].to_string();
    insta::assert_snapshot!(
        masked(&why, &[(bench.dir.path().to_str().expect("a path"), "DIR")]),
        @"\"DIR/tqhost.toml: 1 problem\\n  line 2: queues.work.plugins: unknown key: did you mean \
          `plugin`?\""
    );
    host.until_metric("tqhost_config_reloads_total{result=\"failed\"}", 1);
    let id = bench.xadd("work", &[("n", "1")]);
    bench.until("work", &id, "COMPLETED");
    // The memory is more than the sandbox has room for, which only the host knows.
    fs::write(bench.config(), format!("{good}[plugins.empty]\nmemory = \"1GiB\"\n")).expect("write");
    let told = eventually("it says so to the commands", || {
        let shown = bench.tqhost(&["queues"]).ok().stdout;
        shown.lines().find(|line| line.contains("plugins.empty.memory")).map(|line| line.trim().to_owned())
    });
    insta::assert_snapshot!(
        masked(&told, &[(bench.dir.path().to_str().expect("a path"), "DIR")]),
        @"DIR/tqhost.toml: plugins.empty.memory: 1024MiB is more than the 128MiB that this host has room \
          for: restart it"
    );
    fs::remove_file(bench.config()).expect("remove");
    fs::write(bench.config(), &good).expect("write");
    host.log("again what this host runs by");
    eventually("nothing is said any more", || {
        (!bench.tqhost(&["queues"]).ok().stdout.contains("1024MiB")).then_some(())
    });
    let id = bench.xadd("work", &[("n", "2")]);
    bench.until("work", &id, "COMPLETED");
    host.stop();
}

#[test]
fn grants_change_without_a_new_file() {
    let config = |model: &str| {
        format!(
            "[queues.work]\nplugin = \"reads-config\"\n[plugins.reads-config]\n\
             config = {{ model = \"{model}\" }}\n"
        )
    };
    let mut bench = Bench::new(&config("here"));
    bench.install("reads-config", "reads-config");
    let host = bench.host();
    let read = |bench: &mut Bench| {
        let id = bench.xadd("work", &[("key", "model")]);
        bench.until("work", &id, "COMPLETED");
        bench.status("work", &id, "result")
    };
    assert!(read(&mut bench).contains("here"));
    // Grants also change while the plugin's file is unusable.
    fs::write(bench.plugin_path("reads-config"), b"not wasm").expect("write");
    host.log("plugin cannot be used");
    change(&bench, &host, &config("there"));
    host.log("plugin has other grants");
    assert!(read(&mut bench).contains("there"));
    fs::copy(guest_path("reads-config"), bench.plugin_path("reads-config")).expect("copy");
    eventually("the file is the active version again", || {
        host.get("/metrics")
            .body
            .lines()
            .any(|line| line.starts_with("tqhost_plugin_info{") && line.contains("state=\"active\""))
            .then_some(())
    });
    assert!(read(&mut bench).contains("there"));
    host.stop();
}

#[test]
fn grants_change_at_once_whatever_the_file_holds_and_whatever_its_check_says() {
    let config = |check: &str, max_output: &str| {
        format!(
            "[queues.work]\nplugin = \"checks-itself\"\nmax_retries = 0\n[plugins.checks-itself]\n\
             config = {{ self-check = \"{check}\" }}\nmax_output = \"{max_output}\"\n"
        )
    };
    let mut bench = Bench::new(&config("ok", "64KiB"));
    bench.install("checks-itself", "checks-itself");
    let host = bench.host();
    host.until_ready();
    let large = "x".repeat(2048);
    let ends = |bench: &mut Bench, status: &str| {
        let id = bench.xadd("work", &[("large", &large)]);
        bench.until("work", &id, status);
    };
    ends(&mut bench, "COMPLETED");
    let given = |count: usize| drop(host.until_logged("plugin has other grants", count));
    let shown = |bench: &Bench, state: &str| {
        eventually(state, || row(bench, "checks-itself").filter(|row| row["state"] == state))
    };
    // A version that serves is not asked: its self-check would refuse these.
    change(&bench, &host, &config("trap", "1KiB"));
    given(1);
    ends(&mut bench, "FAILED");
    let taken = eventually("it is in the story", || {
        let row = row(&bench, "checks-itself")?;
        let changes = row["history"].as_array()?.clone();
        let regranted = changes.into_iter().find(|change| change["what"] == "regranted")?;
        Some((row, regranted))
    });
    let (row, regranted) = taken;
    assert!(row["error"].is_null() && row["state"] == "active", "{row}");
    assert!(regranted["version"] == row["version"] && regranted["took_ms"].is_u64(), "{regranted}");
    assert_eq!(regranted["reason"], "other config, max_output", "{regranted}");
    // New grants also arrive while the file is bad.
    fs::write(bench.plugin_path("checks-itself"), b"not wasm").expect("write");
    shown(&bench, "failed");
    change(&bench, &host, &config("trap", "64KiB"));
    given(2);
    ends(&mut bench, "COMPLETED");
    // They arrive when the file changes at the same time.
    fs::write(bench.plugin_path("checks-itself"), b"text").expect("write");
    change(&bench, &host, &config("trap", "1KiB"));
    given(3);
    ends(&mut bench, "FAILED");
    // They arrive while the file changes all the time.
    let (path, stop) = (bench.plugin_path("checks-itself"), Arc::new(AtomicBool::new(false)));
    let stopped = stop.clone();
    let touching = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            let file = fs::File::options().append(true).open(&path).expect("the plugin");
            file.set_modified(std::time::SystemTime::now()).expect("touch");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    change(&bench, &host, &config("ok", "64KiB"));
    given(4);
    stop.store(true, Ordering::Relaxed);
    touching.join().expect("the thread");
    ends(&mut bench, "COMPLETED");
    host.stop();
}

#[test]
fn a_queue_gets_another_plugin() {
    let config = |plugin: &str| format!("[queues.work]\nplugin = \"{plugin}\"\nmax_retries = 0\n");
    let mut bench = Bench::new(&config("empty"));
    bench.install("empty", "empty");
    let host = bench.host();
    let id = bench.xadd("work", &[("n", "1")]);
    bench.until("work", &id, "COMPLETED");
    change(&bench, &host, &config("echo"));
    let id = bench.xadd("work", &[("n", "2")]);
    // The host waits for the new fetch loop, which takes a moment to start.
    host.until_ready();
    assert_eq!(bench.places("work").length, 1);
    bench.install("echo", "echo");
    bench.until("work", &id, "COMPLETED");
    assert!(bench.status("work", &id, "plugin").starts_with("echo@"));
    host.stop();
}

#[test]
fn sighup_reads_secrets_again_and_what_needs_a_restart_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let secret = dir.path().join("key");
    fs::write(&secret, "first").expect("write");
    let config = format!(
        "[queues.work]\nplugin = \"reads-config\"\n[plugins.reads-config]\n\
         config = {{ model = {{ file = {:?} }} }}\n",
        secret.display()
    );
    let mut bench = Bench::new(&config);
    bench.install("reads-config", "reads-config");
    let host = bench.host();
    host.until_ready();
    fs::write(&secret, "second").expect("write");
    host.signal(Signal::SIGHUP);
    host.log("plugin has other grants");
    let id = bench.xadd("work", &[("key", "model")]);
    bench.until("work", &id, "COMPLETED");
    assert!(bench.status("work", &id, "result").contains("second"));
    change(&bench, &host, &format!("data_dir = \"elsewhere\"\nshutdown_grace = \"1s\"\n{config}"));
    assert_eq!(host.log("take effect at the next start")["keys"], "data_dir");
    host.stop();
}

#[test]
fn a_change_while_redis_is_away_is_carried_out_when_it_is_back() {
    let mut bench = Bench::new(EMPTY);
    bench.install("empty", "empty");
    let host = bench.host();
    host.until_ready();
    bench.redis.stop();
    change(&bench, &host, &format!("{EMPTY}[queues.more]\nplugin = \"empty\"\n"));
    bench.redis.start_again();
    bench.db = bench.redis.connection();
    let id = bench.xadd("more", &[("n", "1")]);
    bench.until("more", &id, "COMPLETED");
    eventually("ready", || (host.get("/readyz").status == 200).then_some(()));
    host.stop();
}

#[test]
fn a_change_does_not_hold_up_a_shutdown() {
    let before = "[queues.work]\nplugin = \"sleeps\"\n";
    let mut bench = Bench::new(before);
    bench.install("sleeps", "sleeps");
    let mut host = bench.host();
    let id = bench.xadd("work", &[("ms", "60000")]);
    bench.until("work", &id, "PROCESSING");
    change(&bench, &host, &format!("shutdown_grace = \"300ms\"\n{before}max_retries = 1\n"));
    host.signal(Signal::SIGTERM);
    crate::support::wait::within(Duration::from_secs(20), "the host ends", || host.try_ended());
    // The worker that was replaced gave its task back.
    assert_eq!(bench.places("work").pending, 0);
    assert_eq!(bench.status("work", &id, "status"), "PENDING");
}

#[test]
fn a_shorter_lease_is_no_crash_of_what_runs() {
    let config =
        |lease: &str| format!("[queues.work]\nplugin = \"sleeps\"\nmax_crashes = 1\nlease = \"{lease}\"\n");
    let mut bench = Bench::new(&config("30s"));
    bench.install("sleeps", "sleeps");
    let host = bench.host();
    let id = bench.xadd("work", &[("ms", "4000")]);
    bench.until_running("work", 1);
    change(&bench, &host, &config("1s"));
    bench.until("work", &id, "COMPLETED");
    assert_eq!((host.count("tqhost_reclaimed_total", "work"), bench.places("work").dead), (0, 0));
    host.stop();
}

#[test]
fn a_queue_that_is_removed_keeps_no_capacity_from_the_others() {
    let held = Held::new();
    let other = "concurrency = 2\n[defaults]\nplugin = \"sleeps\"\n[queues.other]\n";
    let both = format!("{other}[queues.long]\nplugin = \"fetches\"\n[queues.work]\n");
    let mut bench = held.bench(&both);
    bench.install("sleeps", "sleeps");
    let host = bench.host();
    let long = bench.xadd("long", &held.task());
    bench.until("long", &long, "PROCESSING");
    for _ in 0..50 {
        bench.xadd("work", &[("ms", "300")]);
    }
    change(&bench, &host, other);
    let ids: Vec<String> = (0..5).map(|_| bench.xadd("other", &[("ms", "0")])).collect();
    bench.all_done("other", &ids);
    assert_eq!(bench.status("long", &long, "status"), "PROCESSING", "nobody waited for it");
    held.end();
    bench.until("long", &long, "COMPLETED");
    host.stop();
}

#[test]
fn a_queue_that_comes_back_leaves_alone_what_still_runs() {
    let with = "[queues.other]\nplugin = \"sleeps\"\n[queues.work]\nplugin = \"sleeps\"\nconcurrency = 1\n";
    let mut bench = Bench::new(with);
    bench.install("sleeps", "sleeps");
    let host = bench.host();
    let long = bench.xadd("work", &[("ms", "5000")]);
    bench.until_running("work", 1);
    change(&bench, &host, "[queues.other]\nplugin = \"sleeps\"\n");
    let next = bench.xadd("work", &[("ms", "0")]);
    change(&bench, &host, with);
    // After a broken connection a host looks for unseen deliveries.
    let _: u64 = bench.redis("CLIENT", ("KILL", "TYPE", "normal", "SKIPME", "yes"));
    bench.until("work", &long, "COMPLETED");
    bench.until("work", &next, "COMPLETED");
    eventually("it still tells the commands of itself", || {
        let queues = bench.tqhost(&["queues", "work", "--json"]).ok().json();
        (queues["hosts"][0]["completed"].as_u64() >= Some(1)).then_some(())
    });
    let log = host.stop_for_log();
    assert_eq!(log.logged("delivered in a reply that was lost").len(), 0);
    assert_eq!(log.logged("attempt ended").len(), 2, "each ran once");
}

#[test]
fn commands_use_the_last_good_configuration_while_the_file_is_broken() {
    let bench = Bench::new(EMPTY);
    let refused = |what: &str| {
        let ran = bench.tqhost(&["queues"]);
        assert!(ran.code == 78 && ran.stderr.contains("not TOML"), "{what}: {ran:?}");
    };
    let good = fs::read_to_string(bench.config()).expect("the configuration");
    bench.configure(&format!("[queues\n{good}"));
    refused("no host has accepted anything");
    bench.configure(&good);
    let host = bench.host();
    change(&bench, &host, &format!("data_dir = \".tqhost\"\n{EMPTY}[queues.more]\nplugin = \"empty\"\n"));
    let copy = bench.dir.path().join(".tqhost/last-good.toml");
    eventually("what the host has read again is kept", || {
        fs::read_to_string(&copy).ok()?.contains("queues.more").then_some(())
    });
    assert_eq!(fs::metadata(&copy).expect("the copy").permissions().mode() & 0o777, 0o600);
    let good = fs::read_to_string(bench.config()).expect("the configuration");
    bench.configure(&format!("{good}[queues\n"));
    let ran = bench.tqhost(&["queues", "more", "--json"]);
    let folder = bench.dir.path().to_str().expect("a path");
    insta::assert_snapshot!(
        masked(&ran.stderr, &[(folder, "DIR")]),
        @"tqhost: DIR/tqhost.toml is broken (`tqhost check` says where); used instead: the last \
          configuration that a host accepted (DIR/.tqhost/last-good.toml)"
    );
    assert_eq!(ran.ok().json()["queue"], "more");
    let ran = bench.tqhost(&["check"]);
    assert!(ran.code == 78 && ran.stderr.contains("not TOML"), "what is wrong is told: {ran:?}");
    // A copy of another file is not taken for one of this.
    let text = fs::read_to_string(&copy).expect("the copy");
    fs::write(&copy, text.replacen("tqhost.toml", "other.toml", 1)).expect("write");
    refused("the copy is that of another file");
    host.stop();
}

#[test]
fn a_changed_queue_that_cannot_be_served_keeps_no_capacity_from_the_others() {
    let held = Held::new();
    let queues = |more: &str| {
        format!(
            "concurrency = 2\n[queues.slow]\nplugin = \"fetches\"\nconcurrency = 2\n{more}\
             [queues.fast]\nplugin = \"empty\"\nconcurrency = 2\n"
        )
    };
    let mut bench = held.bench(&queues(""));
    bench.install("empty", "empty");
    let host = bench.host();
    eventually("both queues rest", || {
        let clients: String = bench.redis("CLIENT", "LIST");
        let blocked: Vec<&str> = clients.lines().filter(|line| line.contains(" flags=b ")).collect();
        (blocked.len() == 1 && blocked[0].contains(" cmd=xread ")).then_some(())
    });
    // The last read brings as many tasks as may run, so the queue asks for more.
    let slow: Vec<String> = (0..4).map(|_| bench.xadd("slow", &held.task())).collect();
    bench.until_running("slow", 2);
    let _: () = bench.redis("SET", ("baddead", "x"));
    change(&bench, &host, &held.queues(&queues("dead_letter = \"baddead\"\n")));
    host.log("no task is taken from the queue");
    held.end();
    bench.until_pending("slow", 0);
    let ids: Vec<String> = (0..3).map(|n| bench.xadd("fast", &[("n", &n.to_string())])).collect();
    bench.all_done("fast", &ids);
    assert_eq!(bench.places("slow").length, 2, "the others of {slow:?} wait");
    host.stop();
}
