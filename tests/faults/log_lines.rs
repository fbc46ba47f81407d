//! The log of a host to which the same thing happens many times: a bounded number of lines, and right counts.
//!
//! Not here: what single lines say (the tests of what they tell), lines that guests print (`handlers`).

use serde_json::Value;

use crate::support::{Bench, Held, Host, eventually};

/// The sum of a number over all lines with a text, and the number of these lines.
fn sum(lines: &[Value], of: impl Fn(&Value) -> u64) -> u64 {
    lines.iter().map(of).sum()
}

fn more(line: &Value) -> u64 {
    line["more"].as_u64().unwrap_or_default()
}

#[test]
fn retries_and_dead_letters_are_a_few_lines_that_count_all() {
    const TASKS: u64 = 300;
    let mut bench = Bench::new(
        "[queues.work]\nplugin = \"always-fails\"\nmax_retries = 1\nbackoff = \"none\"\nconcurrency = 50\n",
    );
    bench.install("always-fails", "always-fails");
    for n in 0..TASKS {
        bench.xadd("work", &[("n", &n.to_string())]);
    }
    let host = bench.host();
    host.until_ended_as("work", "retries-exhausted", TASKS);
    let log = host.stop_for_log();
    for (one, others) in [
        ("an attempt failed; the task is tried again", "further attempts failed"),
        ("dead-lettered", "further tasks were dead-lettered"),
    ] {
        let (lines, summed) = (log.logged(one), log.logged(others));
        let lines: Vec<Value> =
            lines.into_iter().filter(|line| line["queue"] == "work" && !line["task"].is_null()).collect();
        assert_eq!(
            sum(&lines, |line| 1 + more(line)) + sum(&summed, more),
            TASKS,
            "{one}: {lines:?} {summed:?}"
        );
        assert!(lines.len() + summed.len() < 100, "{one}: {} lines", lines.len());
        let first = &lines[0];
        assert_eq!(
            (&first["level"], first["version"].as_str().map(str::len)),
            (&"WARN".into(), Some(12)),
            "{first}"
        );
        assert!(first["attempt"].is_u64() && first["error"].as_str().is_some_and(|error| !error.is_empty()));
    }
    let retry = &log.logged("an attempt failed; the task is tried again")[0];
    assert_eq!((&retry["outcome"], &retry["attempt"]), (&"retried".into(), &1.into()), "{retry}");
    let ended = &log.logged("attempt ended")[0];
    assert_eq!((&ended["outcome"], &ended["given_back"]), (&"retry".into(), &false.into()), "{ended}");
    for text in ["Some(", "None", "Retry {", "[\""] {
        let shown =
            log.raw().lines().filter(|line| line.contains("tqhost::worker")).any(|line| line.contains(text));
        assert!(!shown, "{text} is debug text of Rust: {}", log.raw());
    }
}

#[test]
fn lost_tasks_are_a_count_with_the_first_ids() {
    const TASKS: usize = 40;
    let held = Held::new();
    let mut bench = held.bench("[queues.work]\nplugin = \"fetches\"\nconcurrency = 40\nlease = \"2s\"\n");
    let host = bench.host();
    let ids: Vec<String> = (0..TASKS).map(|_| bench.xadd("work", &held.task())).collect();
    bench.until_running("work", TASKS);
    let _: u64 = bench.redis("XDEL", ("work", &ids));
    host.until_count("tqhost_lost_entries_total", "work", TASKS as u64);
    held.end();
    let log = host.stop_for_log();
    let lines = log.logged("entries were deleted by somebody else while");
    let count = |line: &Value| line["entries"].as_u64().unwrap_or_default() + more(line);
    assert_eq!(sum(&lines, count), TASKS as u64, "{lines:?}");
    let first = lines[0]["first"].as_str().expect("ids");
    assert!(first.split(", ").count() <= 6 && ids.iter().any(|id| first.starts_with(id.as_str())), "{first}");
}

#[test]
fn lines_of_a_handler_name_the_attempt_and_the_version() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"as-told\"\nbackoff = \"none\"\n");
    bench.install("as-told", "as-told");
    let host = bench.host();
    let id = bench.xadd("work", &[("data", "{\"n\": 1, \"ms\": 0, \"retries\": 1, \"end\": \"ok\"}")]);
    bench.until("work", &id, "COMPLETED");
    let plugins = bench.tqhost(&["plugins", "--json"]).ok().stdout;
    let log = host.stop_for_log();
    let lines = log.logged("runs");
    let lines: Vec<&Value> = lines.iter().filter(|line| line["target"] == "guest").collect();
    let attempts: Vec<u64> = lines.iter().filter_map(|line| line["attempt"].as_u64()).collect();
    assert_eq!(attempts, [1, 2], "{lines:?}");
    let version = lines[0]["version"].as_str().expect("a version");
    assert!(version.len() == 12 && plugins.contains(version), "{version}: {plugins}");
}

/// Lines of the host for people: without those for debugging.
fn told(host: &Host) -> usize {
    host.logged("").iter().filter(|line| line["level"] != "DEBUG").count()
}

#[test]
fn one_event_of_hundreds_of_queues_is_one_line() {
    const QUEUES: usize = 500;
    let queues: String = (0..QUEUES).map(|n| format!("[queues.q{n}]\nplugin = \"echo\"\n")).collect();
    let mut bench = Bench::new(&queues);
    bench.install("echo", "echo");
    let _: () = bench.redis("ACL", ("SETUSER", "host", "on", ">p", "~*", "+@all", "-hincrby"));
    bench.configure_url(&queues, &format!("redis://host:p@127.0.0.1:{}", bench.redis.port));
    let host = bench.host();
    let others = host.log("no task is taken from other queues, either");
    let lines = host.logged("no task is taken from the queue").len();
    assert!((1..=16).contains(&lines), "{lines} lines");
    assert!(others["queues"].as_u64().is_some_and(|queues| queues > 100), "{others}");
    let _: () = bench.redis("ACL", ("SETUSER", "host", "+hincrby"));
    host.until_ready();
    host.log("other queues can be served now, too");
    assert!(told(&host) < 60, "{} lines: {}", told(&host), host.raw());
    // Redis goes away, and comes back.
    let before = told(&host);
    bench.redis.kill();
    host.log("a call to Redis failed; trying again");
    bench.redis.start_again();
    bench.db = bench.redis.connection();
    // Users are not kept in the append-only file.
    let _: () = bench.redis("ACL", ("SETUSER", "host", "on", ">p", "~*", "+@all"));
    host.until_ready();
    let id = bench.xadd("q7", &[("n", "1")]);
    bench.until("q7", &id, "COMPLETED");
    eventually("the log tells of the end", || (!host.logged("Redis answers").is_empty()).then_some(()));
    let lines = told(&host) - before;
    assert!(lines < 60, "{lines} lines: {}", host.raw());
    host.stop();
}
