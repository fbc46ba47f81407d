//! Calls that are too large for Redis, by its own limits: the attempt fails, and nothing else waits for it.
//!
//! Not here: the limit of a plugin (`handlers::isolation`), large tasks that Redis takes (`queue::large`).

use serde_json::{Value, json};

use crate::dashboard::Browser;
use crate::support::{Bench, Host, Places, eventually};

const BIG: &str = "[queues.big]\nplugin = \"big-result\"\nconcurrency = 10\ntimeout = \"5s\"\n\
     max_retries = 1\nbackoff = \"none\"\n[plugins.big-result]\nmax_output = \"8MiB\"\n";
const BULK: [&str; 2] = ["--proto-max-bulk-len", "1mb"];
const QUERY: [&str; 2] = ["--client-query-buffer-limit", "1mb"];

/// Two tasks with results of this size are dead, with an error that begins like this, and all small ones
/// complete.
#[track_caller]
fn only_the_large_ones_fail(bench: &mut Bench, host: &Host, bytes: &str, error: &str) {
    let large: Vec<String> = (0..2).map(|_| bench.xadd("big", &[("bytes", bytes)])).collect();
    let small: Vec<String> = (0..10).map(|_| bench.xadd("big", &[("bytes", "10")])).collect();
    for id in &small {
        bench.until("big", id, "COMPLETED");
    }
    for id in &large {
        bench.until("big", id, "FAILED");
    }
    for letter in bench.dead("big") {
        assert_eq!(
            (&*letter["tq-reason"], &*letter["tq-attempts"]),
            ("retries-exhausted", "2"),
            "{letter:?}"
        );
        assert!(letter["tq-error"].starts_with(error), "{letter:?}");
        assert_eq!(letter["bytes"], bytes, "it keeps its fields");
    }
    assert_eq!(bench.places("big"), Places { dead: 2, ..Places::default() });
    let record = bench.status("big", &large[0], "attempts");
    let records: Vec<String> = bench.redis("HVALS", record);
    let is_told = |record: &String| record.contains("output-too-large");
    assert!(records.iter().any(is_told), "{records:?}");
    host.until_ready();
}

#[test]
fn a_result_beyond_the_longest_value_of_redis_fails_its_attempt_and_is_never_sent() {
    let mut bench = Bench::with_redis(BIG, &BULK);
    bench.install("big-result", "big-result");
    let host = bench.host();
    let error =
        "output-too-large: Redis refuses a value of 1100000 bytes, its limit proto-max-bulk-len is 1048576";
    only_the_large_ones_fail(&mut bench, &host, "1100000", error);
    let most = bench.xadd("big", &[("bytes", "1048576")]);
    bench.until("big", &most, "COMPLETED");
    assert!(host.metric("tqhost_redis_reconnects_total") < 0.5, "no connection was lost");
    host.stop();
}

#[test]
fn a_result_beyond_the_query_buffer_of_redis_fails_its_attempt_and_is_never_sent() {
    let mut bench = Bench::with_redis(BIG, &QUERY);
    bench.install("big-result", "big-result");
    let host = bench.host();
    let error =
        "output-too-large: Redis refuses a value of 3000000 bytes, its limit client-query-buffer-limit";
    only_the_large_ones_fail(&mut bench, &host, "3000000", error);
    assert!(host.metric("tqhost_redis_reconnects_total") < 0.5, "no connection was lost");
    host.stop();
}

#[test]
fn a_host_that_may_not_ask_for_the_limits_learns_of_them_when_redis_refuses_a_call() {
    for limit in [BULK, QUERY] {
        let mut bench = Bench::with_redis(BIG, &limit);
        bench.install("big-result", "big-result");
        let _: () = bench.redis("ACL", ("SETUSER", "default", "-config"));
        let host = bench.host();
        only_the_large_ones_fail(
            &mut bench,
            &host,
            "3000000",
            "output-too-large: Redis refuses a call of 3000",
        );
        host.stop();
    }
}

#[test]
fn an_effect_beyond_the_longest_value_of_redis_fails_its_attempt_and_commits_nothing() {
    let queues = "[queues.work]\nplugin = \"effects\"\nenqueue_to = [\"out\"]\nmax_retries = 0\n\
         [queues.out]\nplugin = \"missing\"\n";
    let mut bench = Bench::with_redis(queues, &BULK);
    bench.install("effects", "effects");
    let host = bench.host();
    // Each of these numbers is written with 18 digits.
    let numbers = vec![1e15; 60_000];
    let short = format!("[{}1e15]", "1e15,".repeat(numbers.len() - 1));
    let long = json!(numbers).to_string().len();
    let calls = |field: &str| {
        let calls = json!([["set", "key", "1", 0], ["enqueue", { "queue": "out", "fields": { "x": "X" } }]]);
        calls.to_string().replace("\"X\"", field)
    };
    let large = bench.xadd("work", &[("do", &calls(&short))]);
    let small = bench.xadd("work", &[("do", &calls("[]"))]);
    bench.until("work", &small, "COMPLETED");
    bench.until("work", &large, "FAILED");
    let letter = bench.dead("work").remove(0);
    let error =
        format!("output-too-large: Redis refuses a value of {long} bytes, its limit proto-max-bulk-len");
    assert!(letter["tq-error"].starts_with(&error), "{:?}", letter["tq-error"]);
    assert_eq!(bench.places("out").length, 1, "only the small one was enqueued");
    host.stop();
}

#[test]
fn a_failed_attempt_that_redis_does_not_take_back_is_an_alarm_and_waits_until_the_limit_is_raised() {
    let queues =
        "[queues.work]\nplugin = \"always-fails\"\nconcurrency = 4\nlease = \"1s\"\nmax_retries = 0\n";
    let mut bench = Bench::new(queues);
    bench.install("always-fails", "always-fails");
    let large = bench.xadd("work", &[("x", &"x".repeat(1_100_000))]);
    // An operator lowers the limit after the task came.
    let _: () = bench.redis("CONFIG", ("SET", "proto-max-bulk-len", "1mb"));
    let host = bench.host();
    host.until_unready("proto-max-bulk-len");
    let ready: Value = serde_json::from_str(&host.get("/readyz").body).expect("JSON");
    let queue = &ready["queues"][0];
    assert_eq!((&queue["queue"], &queue["ok"]), (&json!("work"), &json!(false)));
    let reason = queue["reason"].as_str().expect("a reason");
    insta::assert_snapshot!(reason, @r"
    tasks cannot be settled: Redis refuses a value of 1100000 bytes, its limit proto-max-bulk-len is 1048576
    ");
    let line = host.log("Redis refuses to settle tasks");
    assert_eq!((&line["level"], &line["queue"]), (&json!("ERROR"), &json!("work")));
    insta::assert_snapshot!(line["error"].as_str().expect("an error"), @r"
    Redis refuses a value of 1100000 bytes, its limit proto-max-bulk-len is 1048576
    ");
    let browser = Browser::new(&host);
    eventually("the page has an alarm", || browser.page("/").contains(reason).then_some(()));
    // The others go on.
    let small = bench.xadd("work", &[("x", "1")]);
    bench.until("work", &small, "FAILED");
    assert_eq!(bench.places("work").pending, 1);
    let _: () = bench.redis("CONFIG", ("SET", "proto-max-bulk-len", "512mb"));
    bench.until("work", &large, "FAILED");
    host.until_ready();
    assert_eq!(host.logged("Redis refuses to settle tasks").len(), 1);
    host.stop();
}
