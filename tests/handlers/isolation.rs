//! Handlers that misbehave: how their tasks end, and that no other queue notices.
//!
//! Each test runs one kind of bad handler beside a healthy queue under a steady trickle of tasks.
//! `plugins/testing/README.md` lists the guests.

use std::time::Instant;

use serde_json::Value;

use crate::support::bench::guest_path;
use crate::support::files::row;
use crate::support::names::names;
use crate::support::{Bench, Host, Places, Trickle, Web, eventually};

/// Slots of the bad queue. It gets twice as many tasks.
const SLOTS: usize = 4;
const TASKS: usize = 2 * SLOTS;
/// The most memory that a host may use, in KiB: the host itself in a debug build, and all instances of the
/// bad plugin at their limit.
const MEMORY: u64 = (128 << 10) + (SLOTS as u64) * (16 << 10);

/// A bench with the queues `bad`, whose plugin is the guest, `healthy` and `other`. `rules` are further keys
/// of the bad queue.
fn bench(guest: &str, rules: &str) -> Bench {
    let bench = Bench::new(&format!(
        "shutdown_grace = \"0s\"\n\
         [queues.bad]\nplugin = \"{guest}\"\nconcurrency = {SLOTS}\nmax_retries = 1\nbackoff = \"none\"\n\
         {rules}\n\
         [queues.healthy]\nplugin = \"echo\"\n\
         [queues.other]\nplugin = \"empty\"\n\
         [plugins.{guest}]\nmemory = \"16MiB\"\n"
    ));
    for plugin in [guest, "echo", "empty"] {
        bench.install(plugin, plugin);
    }
    bench
}

/// Runs tasks of a bad handler beside the healthy queue until each of them is dead with this kind of failure
/// after two attempts. Returns the host and the ids.
#[track_caller]
fn all_die(guest: &str, rules: &str, fields: &[(&str, &str)], kind: &str) -> (Bench, Host, Vec<String>) {
    let mut bench = bench(guest, rules);
    let host = bench.host();
    let trickle = Trickle::start(&bench, "healthy", 2);
    trickle.more(1);
    let ids: Vec<String> = (0..TASKS).map(|_| bench.xadd("bad", fields)).collect();
    for id in &ids {
        bench.until("bad", id, "FAILED");
    }
    // The trickle has continued meanwhile, and still does.
    trickle.more(3);
    assert_eq!(
        bench.places("bad"),
        Places { length: 0, pending: 0, delayed: 0, parked: 0, dead: TASKS as u64 }
    );
    for letter in bench.dead("bad") {
        assert!(letter["tq-error"].starts_with(&format!("{kind}: ")), "{letter:?}");
        assert_eq!(
            (letter["tq-reason"].as_str(), letter["tq-attempts"].as_str()),
            ("retries-exhausted", "2"),
            "{letter:?}"
        );
        assert!(ids.contains(&letter["tq-id"]), "{letter:?}");
    }
    still_well(&mut bench, &host);
    for task in trickle.stop() {
        assert_eq!(bench.status("healthy", &task.id, "attempt"), "1", "{task:?} is no worse for it");
    }
    assert_eq!(bench.places("healthy").dead, 0);
    (bench, host, ids)
}

/// The host must be ready, run tasks of another plugin, and have used at most [`MEMORY`].
#[track_caller]
fn still_well(bench: &mut Bench, host: &Host) {
    still_well_within(bench, host, MEMORY);
}

/// Like `is_well`, with another bound, in KiB.
#[track_caller]
fn still_well_within(bench: &mut Bench, host: &Host, bound: u64) {
    let next = bench.xadd("other", &[("a", "1")]);
    bench.until("other", &next, "COMPLETED");
    assert_eq!(host.get("/livez").status, 200);
    let ready = host.get("/readyz");
    assert_eq!(ready.status, 200, "{}", ready.body);
    let (now, most) = host.memory();
    assert!(most < bound, "the host uses {now} KiB and has used {most} KiB");
}

/// The log lines of guests that contain `text`, for one task. Each must have its queue, its plugin and its
/// task id.
fn lines_of(host: &Host, text: &str, queue: &str, plugin: &str, id: &str) -> Vec<Value> {
    let lines: Vec<Value> = host
        .logged(text)
        .into_iter()
        .filter(|line| line["target"] == "guest" && line["task"] == id)
        .collect();
    for line in &lines {
        assert_eq!((line["queue"].as_str(), line["plugin"].as_str()), (Some(queue), Some(plugin)), "{line}");
    }
    lines
}

#[test]
fn traps() {
    let (_bench, host, _) = all_die("traps", "", &[("a", "1")], "trap");
    host.stop();
}

#[test]
fn panics_with_the_text_in_the_log_and_in_the_error() {
    let (mut bench, host, ids) = all_die("panics", "", &[("a", "1")], "trap");
    for letter in bench.dead("bad") {
        assert!(letter["tq-error"].contains("boom on attempt 2"), "{letter:?}");
    }
    for id in ids {
        for attempt in [1, 2] {
            let text = format!("boom on attempt {attempt}");
            eventually(&text, || (!lines_of(&host, &text, "bad", "panics", &id).is_empty()).then_some(()));
        }
    }
    host.stop();
}

#[test]
fn a_stack_that_overflows() {
    let (_bench, host, _) = all_die("overflows-stack", "", &[("a", "1")], "trap");
    host.stop();
    let (mut bench, host, _) = all_die("overflows-call-stack", "", &[("a", "1")], "trap");
    for letter in bench.dead("bad") {
        assert!(letter["tq-error"].contains("call stack exhausted"), "{letter:?}");
    }
    host.stop();
}

#[test]
fn hoarded_memory_one_piece_after_the_other() {
    let (_bench, host, _) = all_die("hoards", "", &[("a", "1")], "out-of-memory");
    let peak = host.metric("tqhost_guest_memory_bytes{plugin=\"hoards\"}");
    assert!((1.0..=16.0 * f64::from(1 << 20)).contains(&peak), "an instance had {peak} bytes");
    host.stop();
}

#[test]
fn hoarded_memory_at_once() {
    let (_bench, host, _) = all_die("hoards-at-once", "", &[("a", "1")], "out-of-memory");
    host.stop();
}

#[test]
fn many_small_memories_count_together() {
    let (_bench, host, _) = all_die("hoards-memories", "", &[("a", "1")], "out-of-memory");
    let peak = host.metric("tqhost_guest_memory_bytes{plugin=\"hoards-memories\"}");
    let (grant, page) = (f64::from(16 << 20), f64::from(64 << 10));
    assert!((grant - page..=grant).contains(&peak), "all memories of an instance had {peak} bytes");
    host.stop();
}

#[test]
fn many_small_tables_count_together() {
    let (mut bench, host, _) = all_die("hoards-tables", "", &[("a", "1")], "out-of-memory");
    for letter in bench.dead("bad") {
        insta::allow_duplicates! { insta::assert_snapshot!(letter["tq-error"], @r"
        out-of-memory: it asked for 1000100 table elements; 1000000 are allowed
        ") };
    }
    host.stop();
}

#[test]
fn handles_have_an_end() {
    let (mut bench, host, _) = all_die("hoards-handles", "", &[("a", "1")], "trap");
    for letter in bench.dead("bad") {
        insta::allow_duplicates! { insta::assert_snapshot!(letter["tq-error"], @r"
        trap: resource table has no free keys
        ") };
    }
    host.stop();
}

#[test]
fn a_trap_before_the_first_call() {
    let (_bench, host, _) = all_die("traps-at-start", "", &[("a", "1")], "trap");
    host.stop();
}

#[test]
fn a_loop_before_the_first_call() {
    let (_bench, host, _) = all_die("loops-at-start", "timeout = \"500ms\"", &[("a", "1")], "timeout");
    host.stop();
}

#[test]
fn floods_of_errors_are_cut_and_cleaned() {
    let (mut bench, host, _) =
        all_die("floods-errors", "", &[("bytes", "3000000"), ("end", "retry")], "output-too-large");
    for end in ["retry", "reject", "defer"] {
        let id = bench.xadd("bad", &[("bytes", "1000000"), ("end", end)]);
        let error = eventually("it has ended", || {
            Some(bench.status("bad", &id, "error")).filter(|error| !error.is_empty())
        });
        assert!(error.contains("forged") && error.len() < 5000, "{end}: {error:.1000}");
        assert!(!error.contains(['\n', '\u{1b}']), "{end}: no line ends in it: {error:.1000}");
    }
    // The handler asked for the longest possible wait. It is cut to the longest one allowed: a week.
    let now: (u64, u64) = bench.redis("TIME", &[] as &[&str]);
    let due: Vec<(String, u64)> = bench.redis("ZRANGE", ("tq:{bad}:delayed", 0, -1, "WITHSCORES"));
    assert!(due.len() == 2 && due.iter().all(|(_, due)| *due < (now.0 + 8 * 24 * 3600) * 1000), "{due:?}");
    still_well(&mut bench, &host);
    let log = host.stop_for_log().raw();
    assert!(
        log.lines().all(|line| !line.starts_with("{\"level\"") && !line.contains('\u{1b}')),
        "no line of the log is forged"
    );
}

#[test]
fn huge_arguments_of_host_functions_end_the_attempt() {
    let (mut bench, host, _) =
        all_die("floods-arguments", "", &[("bytes", "3000000"), ("call", "log")], "trap");
    // Long arguments are allowed up to a bound, and one byte more is refused.
    for (call, fits) in [
        ("log", "100000"),
        ("progress", "100000"),
        ("config", "100000"),
        ("random", "100000"),
        ("authority", "1024"),
        ("path", "16383"),
        ("method", "64"),
    ] {
        let id = bench.xadd("bad", &[("bytes", fits), ("call", call)]);
        bench.until("bad", &id, "COMPLETED");
    }
    for (call, too_long) in [("authority", "1025"), ("path", "16384"), ("method", "65")] {
        let id = bench.xadd("bad", &[("bytes", too_long), ("call", call)]);
        bench.until("bad", &id, "FAILED");
        assert_eq!(bench.status("bad", &id, "error"), format!("the {call} is refused"));
    }
    still_well(&mut bench, &host);
    host.stop();
}

#[test]
fn a_result_that_is_too_big() {
    let (mut bench, host, _) = all_die("big-result", "", &[("bytes", "1048577")], "output-too-large");
    let fits = bench.xadd("bad", &[("bytes", "1048576")]);
    bench.until("bad", &fits, "COMPLETED");
    assert_eq!(bench.status("bad", &fits, "result").len(), 1 << 20);
    let dead = bench.dead("bad");
    assert!(!dead.is_empty(), "the tasks before");
    for letter in &dead {
        assert_eq!(
            bench.status("bad", &letter["tq-id"], "result"),
            "",
            "a result over the limit is no result"
        );
    }
    // The limit of the configuration counts, to the byte.
    let config = std::fs::read_to_string(bench.config()).expect("the configuration");
    bench.configure(&config.replace("memory =", "max_output = \"1KiB\"\nmemory ="));
    host.log("plugin has other grants");
    let (fits, over) = (bench.xadd("bad", &[("bytes", "1024")]), bench.xadd("bad", &[("bytes", "1025")]));
    bench.until("bad", &fits, "COMPLETED");
    bench.until("bad", &over, "FAILED");
    assert!(bench.status("bad", &over, "error").starts_with("output-too-large: "));
    assert_eq!(bench.status("bad", &over, "result"), "");
    host.stop();
}

#[test]
fn loops_end_at_the_timeout() {
    let (_bench, host, _) = all_die("loops", "timeout = \"500ms\"", &[("a", "1")], "timeout");
    host.stop();
}

#[test]
fn sleepers_in_a_host_call_end_at_the_timeout() {
    let (_bench, host, _) = all_die("sleeps", "timeout = \"500ms\"", &[("ms", "3600000")], "timeout");
    host.stop();
}

#[test]
fn busy_loops_in_every_slot_keep_nobody_else_from_working() {
    busy("loops", None, [("a", "1"); SLOTS]);
}

#[test]
fn loops_in_host_calls_in_every_slot_keep_nobody_else_from_working() {
    // A task without a call is rejected.
    let calls = ["random", "poll", "log", "progress"].map(|call| ("call", call));
    busy("loops-in-host", Some(("a", "1")), calls);
}

/// Runs a handler that never ends in every slot, and a task with each of these fields. A task with the field
/// `short` fails at once.
#[track_caller]
fn busy(guest: &str, short: Option<(&str, &str)>, fields: [(&str, &str); SLOTS]) {
    let bad = format!(
        "[queues.bad]\nplugin = \"{guest}\"\nconcurrency = {SLOTS}\ntimeout = \"1h\"\nlease = \"1s\"\n"
    );
    let mut bench = Bench::new(&format!(
        "shutdown_grace = \"0s\"\n{bad}\
         [queues.ends]\nplugin = \"{guest}\"\nmax_retries = 1\nbackoff = \"none\"\ntimeout = \"500ms\"\n\
         [queues.healthy]\nplugin = \"echo\"\n\
         [queues.other]\nplugin = \"empty\"\n"
    ));
    for plugin in [guest, "echo", "empty"] {
        bench.install(plugin, plugin);
    }
    let host = bench.host();
    // After short attempts, the next one begins on a thread of the host.
    for field in short.into_iter().flat_map(|field| [field; 10]) {
        let id = bench.xadd("bad", &[field]);
        bench.until("bad", &id, "FAILED");
    }
    let ids = fields.map(|field| bench.xadd("bad", &[field]));
    bench.until_running("bad", SLOTS);
    // A second host has room for the tasks, and reclaims any task that has had no heartbeat for a lease. It
    // serves no other queue.
    let takes_over = bench.dir.path().join("takes-over.toml");
    let (url, admin) = (format!("redis://127.0.0.1:{}", bench.redis.port), "127.0.0.1:0");
    std::fs::write(&takes_over, format!("{bad}[redis]\nurl = \"{url}\"\n[admin]\nlisten = \"{admin}\"\n"))
        .expect("write");
    let second = Host::start(&takes_over, "info,tqhost=debug");
    second.until_ready();
    // Meanwhile the first host fetches, answers, and ends attempts that exceed a timeout. The test waits for
    // three times two timeouts, which are three leases.
    let trickle = Trickle::start(&bench, "healthy", 2);
    trickle.more(50);
    for _ in 0..3 {
        let ends = bench.xadd("ends", &[fields[0]]);
        bench.until("ends", &ends, "FAILED");
        assert!(bench.status("ends", &ends, "error").starts_with("timeout: "));
        still_well(&mut bench, &host);
    }
    trickle.stop();
    assert!(second.metric("tqhost_reclaimed_total{queue=\"bad\"}") < 0.5, "every lease was kept");
    second.stop();
    // The tasks still hold every slot, on their first attempt: no attempt was ended to make room, and no
    // lease was lost because the machine was busy.
    let waits = bench.xadd("bad", &[fields[0]]);
    eventually("the next task waits for a slot", || {
        let ready: Value = serde_json::from_str(&host.get("/readyz").body).expect("JSON");
        let queue = ready["queues"].as_array()?.iter().find(|queue| queue["queue"] == "bad")?.clone();
        (queue["state"] == "waiting-for-permit" && queue["ok"] == true).then_some(())
    });
    for id in &ids {
        assert_eq!(
            (bench.status("bad", id, "status"), bench.status("bad", id, "attempt")),
            ("PROCESSING".into(), "1".into())
        );
    }
    assert_eq!(bench.status("bad", &waits, "status"), "");
    assert!(host.metric("tqhost_lease_lost_total{queue=\"bad\"}") < 0.5);
    assert!(host.metric("tqhost_reclaimed_total{queue=\"bad\"}") < 0.5);
    // The host can still be stopped, and the tasks go back without a used attempt.
    host.stop();
    for id in &ids {
        assert_eq!(
            (bench.status("bad", id, "status"), bench.status("bad", id, "attempt")),
            ("PENDING".into(), "1".into())
        );
    }
}

#[test]
fn floods_of_log_lines_are_cut_and_the_cut_is_said() {
    floods("floods-log");
}

#[test]
fn floods_of_output_are_cut_and_the_cut_is_said() {
    floods("floods-stdout");
}

#[track_caller]
fn floods(guest: &str) {
    const CUT: &str = "the handler has printed more than its budget";
    let mut bench = bench(guest, "");
    let text = std::fs::read_to_string(bench.config()).expect("the configuration");
    bench.configure(&text.replace("memory = \"16MiB\"", "memory = \"16MiB\"\nmax_log_rate = \"10MiB\""));
    let host = bench.host();
    let trickle = Trickle::start(&bench, "healthy", 2);
    let ids: Vec<String> = (0..TASKS).map(|_| bench.xadd("bad", &[("a", "1")])).collect();
    for id in &ids {
        bench.until("bad", id, "COMPLETED");
        eventually("the line about the cut", || {
            (lines_of(&host, CUT, "bad", guest, id).len() == 1).then_some(())
        });
    }
    trickle.more(3);
    still_well(&mut bench, &host);
    trickle.stop();
    // Each attempt may print 256 KiB; the rest of its 10 MiB is dropped. JSON can make each byte longer, and
    // adds fields to each line.
    for id in &ids {
        let printed: usize = lines_of(&host, "", "bad", guest, id)
            .iter()
            .map(|line| line["message"].as_str().map_or(0, str::len))
            .sum();
        assert!(printed <= 260 << 10, "{printed} bytes of {id} were logged");
    }
    host.stop();
}

#[test]
fn a_plugin_that_floods_the_log_is_held_to_its_rate_and_no_other_is() {
    const FLOODS: usize = 40;
    /// Bytes per second; the plugin may use eight seconds of that at once.
    const RATE: f64 = 256.0 * 1024.0;
    let mut bench = bench("floods-log", "");
    let text = std::fs::read_to_string(bench.config()).expect("the configuration");
    let text = text.replace("memory = \"16MiB\"", "memory = \"16MiB\"\nmax_log_rate = \"256KiB\"");
    bench.configure(&format!("{text}[queues.once]\n"));
    bench.install("floods-log", "once");
    let host = bench.host();
    let printed = |plugin: &str| -> Vec<usize> {
        let of = |line: &Value| line["target"] == "guest" && line["plugin"] == plugin;
        host.logged("")
            .iter()
            .filter(|line| of(line))
            .map(|line| line["message"].as_str().map_or(0, str::len))
            .collect()
    };
    let began = Instant::now();
    let ids: Vec<String> = (0..FLOODS).map(|_| bench.xadd("bad", &[("a", "1")])).collect();
    for id in &ids {
        bench.until("bad", id, "COMPLETED");
    }
    // The log limit of another plugin's attempt is not affected.
    let id = bench.xadd("once", &[("a", "1")]);
    bench.until("once", &id, "COMPLETED");
    eventually("the line about the cut", || {
        (lines_of(&host, "the handler has printed more than its budget", "once", "once", &id).len() == 1)
            .then_some(())
    });
    let lines = printed("once");
    assert!(lines.iter().sum::<usize>() > 200 << 10, "{lines:?}");
    let (shown, most) = (printed("floods-log"), RATE * (8.0 + began.elapsed().as_secs_f64()));
    assert!(
        (shown.iter().sum::<usize>() as f64) < most,
        "{} bytes are more than {most}",
        shown.iter().sum::<usize>()
    );
    // Dropped lines are counted and reported.
    let dropped = (FLOODS * lines.len() - shown.len()) as u64;
    eventually("it is counted", || {
        (host.metric("tqhost_guest_log_lines_dropped_total{plugin=\"floods-log\"}") as u64 == dropped)
            .then_some(())
    });
    let told = eventually("it is told of", || {
        let told = host.logged("it logs more than its max_log_rate");
        (told.iter().filter_map(|line| line["lines"].as_u64()).sum::<u64>() == dropped).then_some(told)
    });
    assert!(told.iter().all(|line| line["plugin"] == "floods-log" && line["level"] == "WARN"), "{told:?}");
    assert!(
        told.len() <= 1 + began.elapsed().as_secs() as usize / 10,
        "not more often than every ten seconds: {told:?}"
    );
    host.stop();
}

#[test]
fn floods_of_progress_are_written_no_oftener_than_any_other() {
    let mut bench = bench("floods-progress", "");
    let host = bench.host();
    let trickle = Trickle::start(&bench, "healthy", 1);
    let commands = |bench: &mut Bench| {
        let info: String = bench.redis("INFO", "stats");
        let line =
            info.lines().find_map(|line| line.strip_prefix("total_commands_processed:")).expect("a count");
        line.parse::<u64>().expect("a number")
    };
    let before = commands(&mut bench);
    let ids: Vec<String> = (0..TASKS).map(|_| bench.xadd("bad", &[("a", "1")])).collect();
    for id in &ids {
        bench.until("bad", id, "COMPLETED");
        assert_eq!(bench.status("bad", id, "result"), "1000000");
    }
    // The handlers made eight million reports. The other commands are the test's own and the trickle's.
    let written = commands(&mut bench) - before;
    assert!(written < 200_000, "{written} commands");
    trickle.more(3);
    still_well(&mut bench, &host);
    trickle.stop();
    host.stop();
}

#[test]
fn files_that_are_huge_or_have_other_bytes_are_told_of_and_nothing_else_happens() {
    let mut bench = bench("echo-v2", "");
    let host = bench.host();
    host.until_ready();
    let trickle = Trickle::start(&bench, "healthy", 2);
    let put = |bytes: &[u8], length: u64| {
        let new = bench.plugin_path("echo-v2").with_extension("new");
        std::fs::write(&new, bytes).expect("write");
        std::fs::File::options()
            .write(true)
            .open(&new)
            .and_then(|file| file.set_len(length))
            .expect("a length");
        std::fs::rename(new, bench.plugin_path("echo-v2")).expect("rename");
    };
    let good = std::fs::read(guest_path("echo-v2")).expect("read a guest");
    // A sparse file of 16 GiB, which the host must not read.
    put(&good, 16 << 30);
    let line = eventually("it is told of", || {
        host.logged("plugin cannot be used")
            .iter()
            .find(|line| line.to_string().contains("larger than 96 MiB"))
            .cloned()
    });
    let why = "the file is larger than 96 MiB: it has 17179869184 bytes";
    assert!(line["error"] == why && line["digest"].is_null() && line["took_ms"].is_u64(), "{line}");
    // The file was not read, so its version is unknown.
    let row = eventually("it is shown", || row(&bench, "echo-v2").filter(|row| row["error"] == why));
    let last = row["history"].as_array().and_then(|changes| changes.last()).expect("a change");
    assert!(last["version"].is_null() && last["took_ms"].is_u64() && last["reason"] == why, "{row}");
    let told = || {
        let of_it = |text| host.logged(text).iter().filter(|line| line["plugin"] == "echo-v2").count();
        ["plugin cannot be used", "plugin loaded", "is the active version again"]
            .map(of_it)
            .iter()
            .sum::<usize>()
    };
    for n in 1..=10 {
        // The changes are spread over the file, header and end included.
        let mut bytes = good.clone();
        let at = good.len() * n / 11;
        bytes[at] ^= 0x41;
        let before = told();
        put(&bytes, bytes.len() as u64);
        eventually("it is refused or loaded", || (told() > before).then_some(()));
    }
    let before = told();
    put(&good, good.len() as u64);
    eventually("the good one is loaded", || (told() > before).then_some(()));
    let id = bench.xadd("bad", &[("a", "1")]);
    bench.until("bad", &id, "COMPLETED");
    trickle.more(3);
    still_well(&mut bench, &host);
    for task in trickle.stop() {
        assert_eq!(bench.status("healthy", &task.id, "attempt"), "1", "{task:?} is no worse for it");
    }
    host.stop();
}

/// A handler that misbehaves, the fields of its tasks (`WEB` is a web server with bad pages), and how they
/// must end.
type Case = (&'static str, &'static [(&'static str, &'static str)], Ends);

enum Ends {
    /// Dead after one attempt, with an error that begins with this text.
    Dies(&'static str),
    /// Completed, with a result that contains this text.
    Completes(&'static str),
    /// The handler is refused when it is loaded, for a reason that contains this text, and its tasks wait.
    Waits(&'static str),
}
use Ends::{Completes, Dies, Waits};

/// Every way in which a handler can misbehave. `plugins/testing/README.md` has the list, and a test in `tidy`
/// checks that each guest of it is here.
#[rustfmt::skip]
const MISBEHAVING: [Case; 57] = [
    ("traps", &[("a", "1")], Dies("trap: ")),
    ("panics", &[("a", "1")], Dies("trap: ")),
    ("overflows-stack", &[("a", "1")], Dies("trap: ")),
    ("overflows-call-stack", &[("a", "1")], Dies("trap: ")),
    ("traps-at-start", &[("a", "1")], Dies("trap: ")),
    ("loops-at-start", &[("a", "1")], Dies("timeout: not instantiated within ")),
    ("checks-then-traps", &[("a", "1")], Dies("trap: ")),
    ("checks-itself", &[("a", "1")], Waits("the self-check is not told what to do")),
    ("loops", &[("a", "1")], Dies("timeout: ")),
    ("loops-in-host", &[("call", "clock")], Dies("timeout: ")),
    ("loops-in-host", &[("call", "remaining")], Dies("timeout: ")),
    ("loops-in-host", &[("call", "progress")], Dies("timeout: ")),
    ("loops-in-host", &[("call", "config")], Dies("timeout: ")),
    ("loops-in-host", &[("call", "log")], Dies("timeout: ")),
    ("loops-in-host", &[("call", "poll")], Dies("timeout: ")),
    ("loops-in-host", &[("call", "random")], Dies("timeout: ")),
    ("sleeps", &[("ms", "3600000")], Dies("timeout: ")),
    ("hoards", &[("a", "1")], Dies("out-of-memory: ")),
    ("hoards-at-once", &[("a", "1")], Dies("out-of-memory: ")),
    ("hoards-memories", &[("a", "1")], Dies("out-of-memory: ")),
    ("hoards-tables", &[("a", "1")], Dies("out-of-memory: ")),
    ("hoards-handles", &[("a", "1")], Dies("trap: ")),
    ("hoards-requests", &[("a", "1")], Dies("out-of-memory: ")),
    ("floods-log", &[("a", "1")], Completes("")),
    ("floods-stdout", &[("a", "1")], Completes("")),
    ("floods-progress", &[("a", "1")], Completes("")),
    ("big-result", &[("bytes", "1048577")], Dies("output-too-large: ")),
    ("big-result", &[("bytes", "3000000")], Dies("output-too-large: ")),
    ("floods-errors", &[("bytes", "1000000"), ("end", "retry")], Dies("retry: ")),
    ("floods-errors", &[("bytes", "1000000"), ("end", "reject")], Dies("")),
    ("floods-errors", &[("bytes", "1000000"), ("end", "defer")], Dies("")),
    ("floods-errors", &[("bytes", "3000000"), ("end", "retry")], Dies("output-too-large: ")),
    ("floods-arguments", &[("bytes", "3000000"), ("call", "log")], Dies("trap: ")),
    ("floods-arguments", &[("bytes", "3000000"), ("call", "progress")], Dies("trap: ")),
    ("floods-arguments", &[("bytes", "3000000"), ("call", "config")], Dies("trap: ")),
    ("floods-arguments", &[("bytes", "3000000"), ("call", "random")], Dies("trap: ")),
    ("floods-arguments", &[("bytes", "3000000"), ("call", "authority")], Dies("trap: ")),
    ("floods-arguments", &[("bytes", "1000000"), ("call", "authority")], Dies("the authority is refused")),
    ("floods-arguments", &[("bytes", "1000000"), ("call", "path")], Dies("the path is refused")),
    ("floods-arguments", &[("bytes", "1000000"), ("call", "method")], Dies("the method is refused")),
    ("floods-arguments", &[("bytes", "1000000"), ("call", "header")], Dies("trap: total size of fields")),
    ("floods-arguments", &[("bytes", "100000"), ("call", "headers")], Dies("trap: total size of fields")),
    ("opens-many", &[("url", "WEB/stuck"), ("count", "200")], Completes("ConnectionLimitReached")),
    ("fetches", &[("url", "WEB/endless")], Completes("HttpResponse")),
    ("fetches", &[("url", "WEB/chunks")], Completes("HttpResponse")),
    ("fetches", &[("url", "WEB/drip")], Completes("HttpResponseTimeout")),
    ("fetches", &[("url", "WEB/silent")], Completes("HttpResponseTimeout")),
    (
        "fetches",
        &[("url", "WEB/redirect?to=http://169.254.169.254/"), ("redirects", "1")],
        Completes("HttpRequestDenied"),
    ),
    ("fetches", &[("url", "http://inside.test/")], Completes("DestinationIpProhibited")),
    ("reads-config", &[("a", "1")], Completes("\"all\":{}")),
    ("looks-around", &[("secret", "123456")], Completes("\"found\":[]")),
    ("remembers", &[("keep", "1000000"), ("end", "trap")], Dies("trap: ")),
    ("wants-files", &[("a", "1")], Completes("0 directories")),
    ("wants-more", &[("a", "1")], Waits("wasi:keyvalue")),
    ("wants-sockets", &[("a", "1")], Completes("access-denied access-denied permanent-resolver-failure")),
    ("wrong-version", &[("a", "1")], Waits("tqhost:handler/handler@0.2.0")),
    ("wrong-world", &[("a", "1")], Waits("it exports no tqhost:handler/handler")),
];

#[test]
fn handlers_that_need_more_memory_together_than_there_is_are_not_charged_for_it() {
    const TOTAL: u64 = 128;
    const EACH: u64 = 60;
    const AT_ONCE: u64 = 8;
    let mut bench = Bench::new(&format!(
        "memory = \"{TOTAL}MiB\"\n[queues.large]\nplugin = \"takes-memory\"\nconcurrency = {AT_ONCE}\n\
         max_retries = 0\n\
         [queues.healthy]\nplugin = \"echo\"\n[queues.other]\nplugin = \"empty\"\n"
    ));
    for plugin in ["takes-memory", "echo", "empty"] {
        bench.install(plugin, plugin);
    }
    let host = bench.host();
    let trickle = Trickle::start(&bench, "healthy", 2);
    trickle.more(1);
    let (before, _) = host.memory();
    let mib = EACH.to_string();
    let ids: Vec<String> = (0..2 * AT_ONCE).map(|_| bench.xadd("large", &[("mib", &mib)])).collect();
    for id in &ids {
        bench.until("large", id, "COMPLETED");
        assert_eq!(bench.status("large", id, "attempt"), "1", "however often it was stopped");
    }
    assert!(!host.logged("all handlers together need more memory than they have").is_empty());
    trickle.more(3);
    // Attempts that were stopped may hold as much again until they have ended. Without the budget, all
    // attempts at once would use more than this bound.
    let bound = before + ((2 * TOTAL) << 10);
    assert!(bound < before + ((AT_ONCE * EACH) << 10));
    still_well_within(&mut bench, &host, bound);
    for task in trickle.stop() {
        assert_eq!(bench.status("healthy", &task.id, "attempt"), "1", "{task:?} has room at any time");
    }
}

#[test]
fn after_each_of_them_the_host_is_what_it_was() {
    /// Attempts at once.
    const ATTEMPTS: u64 = 12;
    /// MiB that the host may keep after first use: 16 tables of 128 KiB for each place in the pool (one more
    /// than attempts, for self-checks); 256 KiB of memory for each handler and attempt at once; and the code
    /// of more than fifty handlers.
    const KEPT: u64 = (ATTEMPTS + 1) * 2 + (MISBEHAVING.len() * SLOTS) as u64 / 4 + 24;
    /// MiB that the host may hold for an attempt outside of its memory, until it has failed.
    const HELD: u64 = 24;
    let web = Web::start();
    let name = |n: usize| format!("{}-{n}", MISBEHAVING[n].0);
    let queue = |n: usize| {
        let timeout = if matches!(MISBEHAVING[n].2, Dies(text) if text.starts_with("timeout: ")) {
            "100ms"
        } else {
            "60s"
        };
        format!(
            "[queues.{0}]\nconcurrency = {SLOTS}\nmax_retries = 0\nmax_deferrals = 0\nbackoff = \"none\"\n\
             timeout = \"{timeout}\"\n\
             [plugins.{0}]\nmemory = \"16MiB\"\nallowed_hosts = [\"{1}\", \"http://inside.test\"]\n\
             http = {{ timeout = \"500ms\" }}\n",
            name(n),
            web.origin()
        )
    };
    let queues: String = (0..MISBEHAVING.len()).map(queue).collect();
    let mut bench = Bench::new(&format!(
        "concurrency = {ATTEMPTS}\nshutdown_grace = \"0s\"\n{queues}[queues.healthy]\nplugin = \"echo\"\n\
         [queues.other]\nplugin = \"empty\"\n"
    ));
    for (n, (guest, ..)) in MISBEHAVING.iter().enumerate() {
        bench.install(guest, &name(n));
    }
    bench.install("echo", "echo");
    bench.install("empty", "empty");
    let host = bench.host_with_env(names(bench.dir.path(), &[("inside.test", "127.0.0.1")]));
    host.until_ready();
    let trickle = Trickle::start(&bench, "healthy", 2);
    trickle.more(50);
    let (before, _) = host.memory();
    let mut most = 0;
    // The allocator keeps some memory for each of its threads, and a thread may not have met every handler in
    // the first round.
    for round in 0..3 {
        for (n, (guest, fields, end)) in MISBEHAVING.iter().enumerate() {
            let fields: Vec<(&str, String)> =
                fields.iter().map(|(name, value)| (*name, value.replace("WEB", &web.origin()))).collect();
            let fields: Vec<(&str, &str)> =
                fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let ids: Vec<String> = (0..TASKS).map(|_| bench.xadd(&name(n), &fields)).collect();
            for id in &ids {
                match end {
                    Completes(text) => {
                        bench.until(&name(n), id, "COMPLETED");
                        let result = bench.status(&name(n), id, "result");
                        assert!(result.contains(text), "{guest} {fields:?}: {result:.1000}");
                    }
                    Dies(text) => {
                        bench.until(&name(n), id, "FAILED");
                        let error = bench.status(&name(n), id, "error");
                        assert!(
                            error.starts_with(text) && error.len() < 5000,
                            "{guest} {fields:?}: {error:.1000}"
                        );
                    }
                    Waits(text) => {
                        assert_eq!(bench.status(&name(n), id, "status"), "", "{guest}");
                        let told =
                            |line: &Value| line["plugin"] == name(n) && line.to_string().contains(text);
                        eventually(&format!("{guest} is refused"), || {
                            host.logged("plugin").iter().any(told).then_some(())
                        });
                    }
                }
            }
            // After each handler the next task of another plugin runs at once, the trickle continues, and the
            // host is ready.
            trickle.more(2);
            still_well_within(&mut bench, &host, before + ((KEPT + SLOTS as u64 * (16 + HELD)) << 10));
            // In the last round all of that memory is already allocated. Growth beyond one grant is a leak.
            let bound = if round < 2 { before + (KEPT << 10) } else { most + (16 << 10) };
            let now = eventually(
                &format!("less than {bound} KiB ({before} before all) after {guest} {fields:?}"),
                || {
                    let (now, _) = host.memory();
                    (now < bound).then_some(now)
                },
            );
            most = if round < 2 { most.max(now) } else { most };
        }
    }
    eventually("all connections are closed", || (web.open().0 == 0).then_some(()));
    for (n, (guest, _, end)) in MISBEHAVING.iter().enumerate() {
        let waiting = if matches!(end, Waits(_)) { 3 * TASKS as u64 } else { 0 };
        let places = bench.places_but_dead(&name(n));
        assert_eq!((places.length, places.pending, places.delayed), (waiting, 0, 0), "{guest}");
    }
    for task in trickle.stop() {
        assert_eq!(bench.status("healthy", &task.id, "attempt"), "1", "{task:?} is no worse for it");
    }
    for name in ["tqhost_lease_lost_total", "tqhost_reclaimed_total"] {
        assert_eq!(host.count(name, "healthy") + host.count(name, "other"), 0, "{name}");
    }
    host.stop();
}

/// A handler has its secrets in plain text, and prints them by mistake.
#[test]
fn no_secret_gets_out_though_its_handler_says_it() {
    const SECRET: &str = "hunter2-that-is-told";
    let ends = ["ok", "retry", "reject", "defer", "panic"];
    let mut bench = Bench::new(
        "[queues.tells]\nplugin = \"tells-secrets\"\nmax_retries = 0\nmax_deferrals = 0\n\
         [plugins.tells-secrets]\nconfig = { api_key = { env = \"TEST_API_KEY\" } }\n",
    );
    bench.install("tells-secrets", "tells-secrets");
    let host = bench.host_with_env(vec![("TEST_API_KEY".into(), SECRET.into())]);
    let shown = bench.xadd("tells", &[("end", "ok"), ("ms", "3000")]);
    eventually("its progress", || (bench.status("tells", &shown, "note") == "noted: [secret]").then_some(()));
    let ids = ends.map(|end| (end, bench.xadd("tells", &[("end", end)])));
    for (end, id) in &ids {
        let (status, field, text) = match *end {
            "ok" => ("COMPLETED", "result", "returned: [secret]"),
            "retry" => ("FAILED", "error", "retried: [secret]"),
            "reject" => ("FAILED", "error", "rejected: [secret]"),
            "defer" => ("FAILED", "error", "deferred: [secret]"),
            _ => ("FAILED", "error", "panicked: [secret]"),
        };
        bench.until("tells", id, status);
        let told = bench.status("tells", id, field);
        assert!(told.contains(text), "{end}: {told}");
        for said in ["printed: [secret]", "complained: [secret]", "logged: [secret]"] {
            eventually(said, || {
                (!lines_of(&host, said, "tells", "tells-secrets", id).is_empty()).then_some(())
            });
        }
    }
    bench.until("tells", &shown, "COMPLETED");
    let pages = [host.get("/metrics").body, host.get("/readyz").body];
    let log = host.stop_for_log().raw();
    bench.redis.stop();
    let stored = written(&bench);
    assert!(
        stored.contains("noted: [secret]") && log.contains("printed: [secret]"),
        "what was looked into is the right thing"
    );
    assert!(!log.contains(SECRET), "the log has a secret:\n{log}");
    assert!(!stored.contains(SECRET), "Redis has a secret");
    assert!(pages.iter().all(|page| !page.contains(SECRET)), "{pages:?}");
}

/// Everything that was ever written to a Redis that has stopped: its append-only file has every change since
/// the start.
fn written(bench: &Bench) -> String {
    let mut stored = Vec::new();
    for file in
        std::fs::read_dir(bench.dir.path().join("redis/appendonlydir")).expect("the append-only files")
    {
        stored.extend(std::fs::read(file.expect("a file").path()).expect("read"));
    }
    String::from_utf8_lossy(&stored).into_owned()
}

#[test]
fn a_plugin_reads_its_own_configuration_and_no_secret_gets_out() {
    const SECRETS: [&str; 3] = ["hunter2-of-the-echo", "hunter2-of-the-quiet", "hunter2-in-a-file"];
    let mut bench = Bench::new(
        "[queues.reads]\nplugin = \"reads-config\"\n\
         [queues.keeps]\nplugin = \"echo\"\n\
         [queues.fails]\nplugin = \"panics\"\nmax_retries = 0\n\
         [queues.quiet]\nplugin = \"reads-all\"\nretention = \"0s\"\n\
         [plugins.reads-config]\nconfig = { model = \"small\" }\n\
         [plugins.echo]\nconfig = { model = \"large\", api_key = { env = \"TEST_API_KEY\" } }\n\
         [plugins.panics]\nconfig = { api_key = { file = \"key\" } }\n\
         [plugins.reads-all]\nconfig = { api_key = { env = \"TEST_QUIET_KEY\" } }\n",
    );
    std::fs::write(bench.dir.path().join("key"), SECRETS[2]).expect("write a secret");
    for (guest, plugin) in [
        ("reads-config", "reads-config"),
        ("echo", "echo"),
        ("panics", "panics"),
        ("reads-config", "reads-all"),
    ] {
        bench.install(guest, plugin);
    }
    let mut command = Host::command(&bench.config());
    command.env("TEST_API_KEY", SECRETS[0]).env("TEST_QUIET_KEY", SECRETS[1]);
    let host = Host::spawn(command);
    host.log("tqhost is running");
    let read = bench.xadd("reads", &[("a", "1")]);
    bench.until("reads", &read, "COMPLETED");
    let result: Value = serde_json::from_str(&bench.status("reads", &read, "result")).expect("JSON");
    // The handler does not see the grants of other plugins.
    assert_eq!(
        result,
        serde_json::json!({ "model": "small", "not-granted": null, "all": { "model": "small" } })
    );
    let kept = bench.xadd("keeps", &[("a", "1")]);
    bench.until("keeps", &kept, "COMPLETED");
    let failed = bench.xadd("fails", &[("a", "1")]);
    bench.until("fails", &failed, "FAILED");
    // The handler returns its secret, but the queue keeps no results.
    bench.xadd("quiet", &[("a", "1")]);
    bench.until_drained("quiet");
    host.until_ended_as("quiet", "completed", 1);
    eventually("an announcement", || bench.redis::<Vec<String>>("KEYS", "tq:host:*").first().cloned());
    let pages = [host.get("/metrics").body, host.get("/readyz").body];
    let log = host.stop_for_log().raw();
    bench.redis.stop();
    let stored = written(&bench);
    assert!(stored.contains("small") && stored.contains(&kept), "the file is the right one");
    for secret in SECRETS {
        // The secret as a list of byte values would be a leak too.
        let numbers = format!("{:?}", secret.as_bytes());
        for form in [secret, numbers.trim_matches(['[', ']'])] {
            assert!(!log.contains(form), "the log has a secret:\n{log}");
            assert!(!stored.contains(form), "Redis has a secret");
            assert!(pages.iter().all(|page| !page.contains(form)), "{pages:?}");
        }
    }
}

#[test]
fn a_secret_with_the_escapes_of_other_formats_does_not_get_out() {
    const SECRET: &str = "hunter2/of&the<echo>";
    let mut bench = Bench::new(
        "[queues.work]\nplugin = \"echo\"\n[plugins.echo]\nconfig = { key = { env = \"TEST_API_KEY\" } }\n",
    );
    bench.install("echo", "echo");
    let host = bench.host_with_env(vec![("TEST_API_KEY".into(), SECRET.into())]);
    let fields = [
        ("plain", SECRET),
        ("html", "hunter2/of&amp;the&lt;echo&gt;"),
        ("numbers", "hunter2/of&#38;the&#x3c;echo&#62;"),
        ("url", "hunter2%2fof%26the%3cecho%3e"),
        ("other", "a &amp; b"),
    ];
    let id = bench.xadd("work", &fields);
    bench.until("work", &id, "COMPLETED");
    let result: Value = serde_json::from_str(&bench.status("work", &id, "result")).expect("JSON");
    for (name, _) in &fields[..4] {
        assert_eq!(result["fields"][name], "[secret]", "{result}");
    }
    assert_eq!(result["fields"]["other"], "a &amp; b", "{result}");
    host.stop();
}
