//! Spoiled data, payloads of every kind, and large quantities: bad entries are set aside, and the rest runs.
//!
//! Clocks that jump are here too, because times are data.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::proxy::Proxy;
use crate::support::{Bench, Clock, Host, Places, RedisServer, eventually};

/// Two retries without a delay.
const TWICE: &str =
    "[queues.work]\nplugin = \"fails-twice\"\nbackoff = { delays = [\"100ms\"] }\nlease = \"1s\"\n";

fn start(queues: &str, guests: &[&str]) -> (Bench, Host) {
    let bench = Bench::new(queues);
    for guest in guests {
        bench.install(guest, guest);
    }
    let host = bench.host();
    (bench, host)
}

#[test]
fn data_29_new_entries_that_somebody_else_trimmed_are_gone_and_the_rest_is_done() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"empty\"\n");
    bench.install("empty", "empty");
    let ids: Vec<String> = (0..100).map(|n| bench.xadd("work", &[("n", &n.to_string())])).collect();
    assert_eq!(bench.redis::<u64>("XTRIM", ("work", "MAXLEN", 30)), 70);
    let host = bench.host();
    bench.until_drained("work");
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(bench.status("work", id, "status"), if n < 70 { "" } else { "COMPLETED" });
    }
    host.until_ended_as("work", "completed", 30);
    host.until_ready();
    host.stop();
}

#[test]
fn data_29_entries_that_were_trimmed_unread_are_counted_by_one_host() {
    let (mut bench, first) = start("[queues.work]\nplugin = \"empty\"\n", &["empty"]);
    let second = bench.host();
    let id = bench.xadd("work", &[("n", "1")]);
    bench.until("work", &id, "COMPLETED");
    bench.tqhost(&["pause", "work"]).ok();
    let mut trimmed = 0;
    let mut trim = || {
        bench.xadd("work", &[("n", "1")]);
        trimmed += bench.redis::<u64>("XTRIM", ("work", "MAXLEN", 0));
    };
    let count = |host: &Host| host.count("tqhost_lost_entries_total", "work");
    // One of them has the duty to look.
    let has_duty = eventually("a host counts them", || {
        trim();
        [&first, &second].iter().position(|host| count(host) > 0)
    });
    let (one, other) = if has_duty == 0 { (first, second) } else { (second, first) };
    let counted = count(&one);
    one.stop();
    eventually("the other host has the duty", || {
        trim();
        (count(&other) > 0).then_some(())
    });
    assert!(counted + count(&other) <= trimmed, "{counted} and {} of {trimmed}", count(&other));
    other.stop();
}

#[test]
fn data_29_running_tasks_whose_entries_somebody_else_trimmed_are_counted_and_may_end() {
    let (mut bench, host) =
        start("[queues.work]\nplugin = \"sleeps\"\nlease = \"1s\"\nconcurrency = 20\n", &["sleeps"]);
    // The tasks take longer than several leases. Heartbeats go on, although the entries that they renew are
    // deleted.
    let ids: Vec<String> = (0..10).map(|_| bench.xadd("work", &[("ms", "3500")])).collect();
    bench.until_running("work", 10);
    assert_eq!(bench.redis::<u64>("XTRIM", ("work", "MAXLEN", 0)), 10);
    host.until_count("tqhost_lost_entries_total", "work", 10);
    let line = host.log("were deleted by somebody else");
    assert!(
        line["first"].as_str().is_some_and(|first| ids.iter().any(|id| first.starts_with(id.as_str()))),
        "{line}"
    );
    bench.tqhost(&["doctor", "work", "--fix"]).ok();
    for id in &ids {
        bench.until("work", id, "COMPLETED");
    }
    host.until_ended_as("work", "completed", 10);
    assert_eq!(host.count("tqhost_lost_entries_total", "work"), 10);
    assert_eq!(host.count("tqhost_lease_lost_total", "work"), 0);
    assert_eq!(bench.places("work"), Places::default());
    host.stop();
}

#[test]
fn data_29_a_task_whose_entry_somebody_else_trimmed_is_lost_with_its_host() {
    let (mut bench, host) = start("[queues.work]\nplugin = \"sleeps\"\nlease = \"1s\"\n", &["sleeps"]);
    let id = bench.xadd("work", &[("ms", "60000")]);
    bench.until_running("work", 1);
    assert_eq!(bench.redis::<u64>("XTRIM", ("work", "MAXLEN", 0)), 1);
    host.until_count("tqhost_lost_entries_total", "work", 1);
    host.kill();
    let next = bench.host();
    eventually("a doctor ends it after its lease", || {
        bench.tqhost(&["doctor", "work", "--fix"]);
        (bench.status("work", &id, "status") == "FAILED").then_some(())
    });
    assert!(bench.status("work", &id, "error").starts_with("lost: "));
    assert!(bench.redis::<i64>("TTL", format!("tq:{{work}}:task:{id}")) > 0, "its status expires");
    next.stop();
}

#[test]
fn data_30_a_status_of_another_type_is_replaced() {
    let (mut bench, host) = start(TWICE, &["fails-twice"]);
    let _: () = bench.redis("SET", ("tq:{work}:task:mine", "in the way"));
    let id: String = bench.redis("XADD", ("work", "*", "tq-id", "mine", "n", "1"));
    let other = bench.xadd("work", &[("n", "2")]);
    bench.until("work", &other, "COMPLETED");
    bench.until_drained("work");
    assert_eq!(bench.redis::<String>("TYPE", "tq:{work}:task:mine"), "hash");
    assert_eq!(
        (bench.status("work", "mine", "status").as_str(), bench.status("work", &id, "status").as_str()),
        ("COMPLETED", "")
    );
    host.stop();
}

/// A key of another type is in the place of the delayed tasks. Tasks that need it wait, all others run, and
/// nothing is lost.
fn in_the_way(key: &str) {
    let queues = format!("{TWICE}[queues.other]\nplugin = \"empty\"\n");
    let (mut bench, host) = start(&queues, &["fails-twice", "empty"]);
    host.until_ready();
    let _: () = bench.redis("SET", (key, "in the way"));
    let id = bench.xadd("work", &[("n", "1")]);
    eventually("the log names the key", || {
        let lines = host.logged("a call to Redis failed; trying again");
        let names = |line: &Value| {
            line["loop"] == "settle" && line["error"].as_str().is_some_and(|error| error.contains(key))
        };
        lines.iter().any(names).then_some(())
    });
    let (length, (pending, ..)): (u64, (u64, redis::Value, redis::Value, redis::Value)) =
        (bench.redis("XLEN", "work"), bench.redis("XPENDING", ("work", "tqhost")));
    assert_eq!((length, pending), (1, 1), "it is not acked before it can be delayed");
    let other = bench.xadd("other", &[("n", "1")]);
    bench.until("other", &other, "COMPLETED");
    let _: () = bench.redis("DEL", key);
    bench.until("work", &id, "COMPLETED");
    assert_eq!(bench.places("work"), Places::default());
    assert_eq!(bench.status("work", &id, "attempt"), "3");
    host.stop();
}

#[test]
fn data_30_a_set_of_delayed_tasks_of_another_type_is_waited_out() {
    in_the_way("tq:{work}:delayed");
}

#[test]
fn data_30_parked_fields_of_another_type_are_waited_out() {
    in_the_way("tq:{work}:parked");
}

#[test]
fn data_30_a_stream_of_another_type_stops_only_its_queue() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"empty\"\n[queues.other]\nplugin = \"empty\"\n");
    bench.install("empty", "empty");
    let host = bench.host();
    host.until_ready();
    let _: () = bench.redis("SET", ("work", "in the way"));
    host.until_unready("wrong kind");
    let other = bench.xadd("other", &[("n", "1")]);
    bench.until("other", &other, "COMPLETED");
    assert_eq!(bench.tqhost(&["enqueue", "work", "n=1"]).code, 1);
    let _: () = bench.redis("DEL", "work");
    let id = bench.xadd("work", &[("n", "1")]);
    bench.until("work", &id, "COMPLETED");
    host.until_ready();
    host.stop();
}

#[test]
fn data_30_delayed_tasks_that_cannot_be_read_do_not_hold_up_the_others() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"empty\"\n");
    bench.install("empty", "empty");
    let good = bench.tqhost(&["enqueue", "work", "n=1", "--delay", "10ms"]).ok().stdout.trim().to_owned();
    // The fields are not MessagePack, cut off, not a list of names and values, or missing.
    for (score, member, fields) in [
        (1, "a", &b"\xc1"[..]),
        (2, "b", b"\x92\xa1n"),
        (3, "c", b"\x93\xa1n\xa11\xa1m"),
        (4, "d", b"\x92\x90\x90"),
    ] {
        let _: i64 = bench.redis("ZADD", ("tq:{work}:delayed", score, member));
        let _: i64 = bench.redis("HSET", ("tq:{work}:parked", member, fields));
    }
    let _: i64 = bench.redis("ZADD", ("tq:{work}:delayed", 5, "e"));
    let host = bench.host();
    bench.until("work", &good, "COMPLETED");
    bench.until_drained("work");
    assert_eq!(bench.places("work"), Places { dead: 4, ..Places::default() });
    let dead = bench.tqhost(&["dead", "list", "work", "--json"]).ok().stdout;
    assert_eq!(dead.matches("malformed").count(), 4, "{dead}");
    // This is the task without fields.
    host.until_count("tqhost_lost_entries_total", "work", 1);
    host.stop();
}

#[test]
fn data_31_any_bytes_arrive_as_they_were_sent() {
    let queues =
        "[queues.work]\nplugin = \"echo\"\nmax_retries = 0\n[plugins.echo]\nmax_output = \"16MiB\"\n";
    let (mut bench, host) = start(queues, &["echo"]);
    let every: Vec<u8> = (0..=255).collect();
    for bytes in [&b"a\0b"[..], b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"half \xe2\x82", &every] {
        let id: String = bench.redis("XADD", ("work", "*", "value", bytes));
        bench.until("work", &id, "COMPLETED");
        let result: Value = serde_json::from_str(&bench.status("work", &id, "result")).expect("JSON");
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = std::str::from_utf8(bytes).map_or(json!({ "hex": hex }), |text| json!(text));
        assert_eq!(result["fields"]["value"], expected);
    }
    // A name may contain a NUL, but it must be text.
    let nul: String = bench.redis("XADD", ("work", "*", &b"a\0b"[..], "1"));
    bench.until("work", &nul, "COMPLETED");
    // Names and values may be empty or large.
    let empty = bench.xadd("work", &[("", "")]);
    let large = bench.xadd("work", &[("large", &"x".repeat(1 << 20))]);
    bench.until("work", &empty, "COMPLETED");
    bench.until("work", &large, "COMPLETED");
    let result: Value = serde_json::from_str(&bench.status("work", &large, "result")).expect("JSON");
    assert_eq!(result["fields"]["large"].as_str().map(str::len), Some(1 << 20));
    host.stop();
}

#[test]
fn data_31_binary_values_survive_delay_death_and_requeue() {
    let queues = "[queues.work]\nplugin = \"work\"\nmax_retries = 1\nbackoff = { delays = [\"100ms\"] }\n";
    let mut bench = Bench::new(queues);
    bench.install("always-fails", "work");
    let host = bench.host();
    let bytes: Vec<u8> = (0..=255).collect();
    let id: String = bench.redis("XADD", ("work", "*", "value", &bytes));
    bench.until("work", &id, "FAILED");
    host.stop();
    bench.install("echo", "work");
    let host = bench.host();
    bench.tqhost(&["dead", "requeue", "work", &id]).ok();
    bench.until("work", &id, "COMPLETED");
    let result: Value = serde_json::from_str(&bench.status("work", &id, "result")).expect("JSON");
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(result["fields"]["value"], json!({ "hex": hex }));
    assert_eq!(bench.places("work"), Places::default());
    host.stop();
}

#[test]
fn data_31_a_payload_over_the_plugins_memory_is_its_own_tasks_trouble() {
    let queues = "[queues.work]\nplugin = \"echo\"\nmax_retries = 1\nbackoff = \"none\"\n[plugins.echo]\n\
        memory = \"4MiB\"\n";
    let (mut bench, host) = start(queues, &["echo"]);
    let before = bench.xadd("work", &[("n", "1")]);
    let large = bench.xadd("work", &[("large", &"x".repeat(8 << 20))]);
    let after = bench.xadd("work", &[("n", "2")]);
    bench.until("work", &before, "COMPLETED");
    bench.until("work", &after, "COMPLETED");
    bench.until("work", &large, "FAILED");
    let error = bench.status("work", &large, "error");
    assert!(error.starts_with("out-of-memory: "), "{error}");
    assert_eq!(bench.places("work"), Places { dead: 1, ..Places::default() });
    let kept: u64 = bench.redis("MEMORY", ("USAGE", "tq:{work}:dead", "SAMPLES", 0));
    assert!(kept > 8 << 20, "its dead letter has all of it");
    host.stop();
}

#[test]
fn data_33_one_id_for_two_tasks_is_one_task() {
    let (mut bench, host) = start(TWICE, &["fails-twice"]);
    for n in ["1", "2"] {
        bench.xadd("work", &[("tq-id", "same"), ("n", n)]);
    }
    bench.until_drained("work");
    host.until_ended_as("work", "completed", 1);
    host.until_ended_as("work", "duplicate", 1);
    assert_eq!(host.ended_as("work", "retried"), 2);
    assert_eq!(
        (bench.status("work", "same", "status").as_str(), bench.status("work", "same", "attempt").as_str()),
        ("COMPLETED", "3")
    );
    assert!(bench.redis::<i64>("TTL", "tq:{work}:task:same") > 0);
    host.stop();
}

#[test]
fn data_33_one_id_for_two_dead_letters_and_a_cancelled_task() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"work\"\n");
    bench.install("rejects", "work");
    let host = bench.host();
    for dead in [1, 2] {
        bench.xadd("work", &[("tq-id", "same"), ("n", "1")]);
        eventually("it is dead", || {
            (bench.places("work") == Places { dead, ..Places::default() }).then_some(())
        });
    }
    host.stop();
    // Each step removes the oldest entry.
    for (length, succeeded) in [(1, 1), (2, 1), (2, 0)] {
        let told =
            bench.tqhost(&["dead", "requeue", "work", "same", "--json"]).ends_with(1 - succeeded).json();
        assert_eq!(told, json!({"succeeded": succeeded, "skipped": 1 - succeeded}));
        assert_eq!(bench.places("work"), Places { length, dead: 2 - length, ..Places::default() });
    }
    // The cancellation reaches the entry that the status names. The other one runs.
    bench.tqhost(&["cancel", "work", "same"]).ok();
    assert_eq!(bench.places("work"), Places { length: 1, ..Places::default() });
    bench.install("echo", "work");
    let host = bench.host();
    bench.until("work", "same", "COMPLETED");
    bench.until_drained("work");
    host.stop();
}

#[test]
fn data_35_20_000_delayed_tasks_due_at_once() {
    let mut bench = Bench::new(
        "[queues.work]\nplugin = \"empty\"\nconcurrency = 100\nmax_backlog = 100000\nretention = \"0s\"\n",
    );
    bench.install("empty", "empty");
    let mut pipe = redis::pipe();
    // `tqhost enqueue --delay` writes them in this form: ["n", "1"] in MessagePack.
    for n in 0..20_000 {
        pipe.cmd("ZADD").arg("tq:{work}:delayed").arg(1).arg(format!("new/{n}")).ignore();
        pipe.cmd("HSET").arg("tq:{work}:parked").arg(format!("new/{n}")).arg(&b"\x92\xa1n\xa11"[..]).ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("file delayed tasks");
    let steps = steps_of(&bench);
    let host = bench.host();
    bench.until_drained("work");
    host.until_ended_as("work", "completed", 20_000);
    host.until_ready();
    host.stop();
    let _: () = bench.redis("ECHO", THE_END);
    // One step moves 100 of them, with six commands for each. Much more at once would hold up everybody else.
    let longest = steps.join().expect("the steps");
    assert!((100..=1000).contains(&longest), "a script ran {longest} commands while all others waited");
}

const THE_END: &str = "that is all";

/// Counts the commands that each script runs, until somebody says [`THE_END`]. Gives the most of one call.
fn steps_of(bench: &Bench) -> JoinHandle<usize> {
    let mut redis = TcpStream::connect(("127.0.0.1", bench.redis.port)).expect("connect");
    redis.write_all(b"MONITOR\r\n").expect("ask");
    let mut lines = BufReader::new(redis).lines().map(|line| line.expect("a line"));
    assert_eq!(lines.next().as_deref(), Some("+OK"));
    thread::spawn(move || {
        let (mut now, mut most) = (0, 0);
        for line in lines.take_while(|line| !line.contains(THE_END)) {
            // A script's own commands come after the call.
            now = if line.contains(" lua] ") { now + 1 } else { 0 };
            most = most.max(now);
        }
        most
    })
}

#[test]
fn data_35_dead_tasks_behind_100_000_healthy_ones_are_found() {
    let (mut bench, dead) = behind_healthy_ones(100_000);
    let host = bench.host();
    for id in &dead {
        bench.until("work", id, "COMPLETED");
    }
    // New tasks do not wait for the search.
    let new = bench.xadd("work", &[("n", "new")]);
    bench.until("work", &new, "COMPLETED");
    host.until_count("tqhost_reclaimed_total", "work", 50);
    assert_eq!(bench.places("work").pending, 100_000, "no healthy one was touched");
    host.stop();
}

/// Pending tasks: `healthy` of a host that is alive, followed by 50 of a host that has been silent for an
/// hour.
fn behind_healthy_ones(healthy: usize) -> (Bench, Vec<String>) {
    let mut bench = Bench::new(
        "[queues.work]\nplugin = \"empty\"\nlease = \"10m\"\nconcurrency = 10\nmax_crashes = 10\n",
    );
    bench.install("empty", "empty");
    let _: () = bench.redis("XGROUP", ("CREATE", "work", "tqhost", "0", "MKSTREAM"));
    let mut ids: Vec<String> = Vec::new();
    while ids.len() < healthy + 50 {
        let mut pipe = redis::pipe();
        for n in 0..5000.min(healthy + 50 - ids.len()) {
            pipe.cmd("XADD").arg("work").arg("*").arg("n").arg(n);
        }
        ids.extend(pipe.query::<Vec<String>>(&mut bench.db).expect("XADD"));
        let _: redis::Value =
            bench.redis("XREADGROUP", ("GROUP", "tqhost", "alive", "COUNT", 5000, "STREAMS", "work", ">"));
    }
    let dead = ids.split_off(healthy);
    let mut claim = redis::cmd("XCLAIM");
    claim.arg("work").arg("tqhost").arg("dead").arg(0).arg(&dead).arg("IDLE").arg(3_600_000).arg("JUSTID");
    claim.query::<Vec<String>>(&mut bench.db).expect("XCLAIM");
    (bench, dead)
}

#[test]
fn data_36_10_000_dead_letters_requeued_twice_at_once_and_killed_halfway() {
    let queues = "[queues.work]\nplugin = \"rejects\"\nconcurrency = 100\nmax_backlog = 100000\n";
    let mut bench = Bench::new(queues);
    bench.install("rejects", "rejects");
    let mut pipe = redis::pipe();
    for n in 0..10_000 {
        pipe.cmd("XADD").arg("work").arg("*").arg("n").arg(n);
    }
    let ids: Vec<String> = pipe.query(&mut bench.db).expect("XADD");
    let host = bench.host();
    eventually("all are dead", || {
        (bench.places("work") == Places { dead: 10_000, ..Places::default() }).then_some(())
    });
    host.stop();
    // The network is slow, so that the test can act between two calls.
    let proxy = Proxy::start(bench.redis.port);
    proxy.delay(5..30);
    bench.configure_for(queues, proxy.port);
    let requeue = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tqhost"));
        command.arg("--config").arg(bench.config()).args(["dead", "requeue", "work", "--all", "--json"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("start tqhost")
    };
    let mut killed = requeue();
    let mut db = bench.redis.connection();
    let mut dead = || redis::cmd("XLEN").arg("tq:{work}:dead").query::<u64>(&mut db).expect("XLEN");
    eventually("some are requeued", || (dead() < 9000).then_some(()));
    killed.kill().expect("kill a command");
    killed.wait().expect("the end of a command");
    let left = eventually("Redis has done what the command had sent", || {
        let before = dead();
        thread::sleep(Duration::from_millis(200));
        (dead() == before).then_some(before)
    });
    assert!(left > 0, "it was killed halfway");
    let both = [requeue(), requeue()].map(|command| {
        let output = command.wait_with_output().expect("the end of a command");
        assert!(output.status.success());
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")
    });
    let succeeded: u64 = both.iter().map(|report| report["succeeded"].as_u64().expect("a number")).sum();
    assert_eq!(succeeded, left, "{both:?}");
    assert_eq!(bench.places_but_dead("work").length, 10_000);
    assert_eq!(dead(), 0);
    let entries: Vec<(String, Vec<String>)> = bench.redis("XRANGE", ("work", "-", "+"));
    let named = |fields: &[String]| {
        fields.chunks(2).find(|pair| pair[0] == "tq-id").map(|pair| pair[1].clone()).expect("an id")
    };
    let requeued: HashSet<String> = entries.iter().map(|(_, fields)| named(fields)).collect();
    assert_eq!(requeued, ids.into_iter().collect(), "each came back once");
}

#[test]
fn data_37_10_000_consumer_names() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"empty\"\nlease = \"1s\"\n");
    bench.install("empty", "empty");
    let _: () = bench.redis("XGROUP", ("CREATE", "work", "tqhost", "0", "MKSTREAM"));
    let mut pipe = redis::pipe();
    for n in 0..10_000 {
        pipe.cmd("XGROUP").arg("CREATECONSUMER").arg("work").arg("tqhost").arg(format!("host-{n}")).ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("XGROUP CREATECONSUMER");
    // One of them died with a task.
    let left = bench.xadd("work", &[("n", "1")]);
    let _: redis::Value = bench.redis("XREADGROUP", ("GROUP", "tqhost", "host-5000", "STREAMS", "work", ">"));
    let host = bench.host();
    let ids: Vec<String> = (0..100).map(|n| bench.xadd("work", &[("n", &n.to_string())])).collect();
    bench.until("work", &left, "COMPLETED");
    bench.all_done("work", &ids);
    bench.tqhost(&["queues", "work", "--json"]).ok();
    host.until_ready();
    host.stop();
}

const CLOCKS: &str = "[queues.work]\nplugin = \"sleeps\"\nlease = \"1s\"\nmax_crashes = 10\n\
                      [queues.twice]\nplugin = \"fails-twice\"\nbackoff = { delays = [\"1s\"] }\n";

#[test]
fn data_39_a_hosts_clock_that_jumps_changes_no_lease_and_no_delay() {
    let mut bench = Bench::new(CLOCKS);
    bench.install("sleeps", "sleeps");
    bench.install("fails-twice", "fails-twice");
    let clock = Clock::new(bench.dir.path());
    clock.shift(3600);
    let shifted = bench.host_with_env(clock.env());
    let time = |host: &Host| {
        host.log("tqhost is running")["timestamp"]
            .as_str()
            .expect("a time")
            .parse::<jiff::Timestamp>()
            .expect("a time")
    };
    assert!(time(&shifted).duration_since(jiff::Timestamp::now()).as_secs() > 3500, "its clock is ahead");
    let other = bench.host();
    for jump in [-3600, 3600, 0] {
        let slow: Vec<String> = (0..4).map(|_| bench.xadd("work", &[("ms", "2000")])).collect();
        let retried: Vec<String> = (0..4).map(|n| bench.xadd("twice", &[("n", &n.to_string())])).collect();
        bench.until_running("work", 4);
        clock.shift(jump);
        bench.all_done("work", &slow);
        bench.all_done("twice", &retried);
        for id in retried {
            let time =
                |bench: &mut Bench, field| bench.status("twice", &id, field).parse::<u64>().expect("a time");
            let took = time(&mut bench, "finished_at") - time(&mut bench, "enqueued_at");
            assert!((2000..20_000).contains(&took), "two delays of a second took {took} ms");
        }
    }
    for host in [shifted, other] {
        assert_eq!(
            (host.count("tqhost_reclaimed_total", "work"), host.count("tqhost_lease_lost_total", "work")),
            (0, 0)
        );
        host.until_ready();
        host.stop();
    }
}

#[test]
fn data_39_redis_s_clock_that_jumps_loses_nothing_and_commits_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let clock = Clock::new(dir.path());
    let redis = RedisServer::start_with_env(dir.path(), &[], clock.env());
    let mut bench = Bench::on(CLOCKS, dir, redis);
    bench.install("sleeps", "sleeps");
    bench.install("fails-twice", "fails-twice");
    let hosts = [bench.host(), bench.host()];
    let committed = |queue: &str| hosts.iter().map(|host| host.ended_as(queue, "completed")).sum::<u64>();
    let jump = |bench: &mut Bench, shift| {
        let time = |bench: &mut Bench| bench.redis::<(i64, i64)>("TIME", &[""; 0]).0;
        let before = time(bench);
        clock.shift(shift);
        eventually("Redis's clock has jumped", || ((time(bench) - before).abs() > 3500).then_some(()));
    };
    let slow = |bench: &mut Bench| {
        let ids: Vec<String> = (0..6).map(|_| bench.xadd("work", &[("ms", "1500")])).collect();
        bench.until_running("work", 6);
        ids
    };
    // The clock jumps ahead, so leases and delays end early. Tasks may run twice, and are committed once.
    let retried: Vec<String> = (0..6).map(|n| bench.xadd("twice", &[("n", &n.to_string())])).collect();
    let ids = slow(&mut bench);
    jump(&mut bench, 3600);
    bench.all_done("work", &ids);
    bench.all_done("twice", &retried);
    eventually("each was committed once", || {
        ((committed("work"), committed("twice")) == (6, 6)).then_some(())
    });
    // The clock jumps back. A task that was delayed before waits until the clock reaches its time again. No
    // other task waits for that.
    let late = bench.xadd("twice", &[("n", "1")]);
    eventually("it is delayed", || (bench.places("twice").delayed == 1).then_some(()));
    let ids = slow(&mut bench);
    jump(&mut bench, 0);
    bench.all_done("work", &ids);
    let ids = slow(&mut bench);
    bench.all_done("work", &ids);
    eventually("each was committed once", || (committed("work") == 18).then_some(()));
    assert_eq!(bench.places("twice").delayed, 1);
    jump(&mut bench, 3600);
    bench.until("twice", &late, "COMPLETED");
    for host in hosts {
        host.until_ready();
        host.stop();
    }
}
