//! State and records: what an attempt sees, what is committed, and what a failed attempt leaves.

use serde_json::{Value, json};

use super::{bench, done, error, results, told};
use crate::support::{Bench, eventually};

const QUEUE: &str = "[queues.work]\nplugin = \"effects\"\nmax_retries = 2\nbackoff = \"none\"\n\
     [plugins.effects]\nrecords = [\"kb:*\"]\n";

#[test]
fn an_attempt_sees_its_own_writes_and_the_commit_shows_them_to_all() {
    let mut bench = bench(QUEUE);
    let host = bench.host();
    let calls = json!([
        ["get", "a"],
        ["set", "a", "1", 0],
        ["get", "a"],
        ["delete", "a"],
        ["get", "a"],
        ["set", "a", "2", 60000],
        ["add", "n", 5],
        ["add", "n", -2],
        ["get", "n"]
    ]);
    let expected = json!([null, null, "1", null, null, null, 5, 3, "3"]);
    assert_eq!(done(&mut bench, "work", calls), expected);
    let calls = json!([["get", "a"], ["add", "n", 1], ["delete", "a"]]);
    assert_eq!(done(&mut bench, "work", calls), json!(["2", 4, null]));
    assert_eq!(done(&mut bench, "work", json!([["get", "a"], ["get", "n"]])), json!([null, "4"]));
    let ttl: i64 = bench.redis("TTL", "tq:{work}:state:effects:n");
    assert_eq!(ttl, -1, "a counter is kept until it is deleted");
    host.stop();
}

#[test]
fn a_value_lives_as_long_as_it_was_told_to() {
    let mut bench = bench(QUEUE);
    let host = bench.host();
    done(&mut bench, "work", json!([["set", "a", "1", 60000], ["set", "b", "1", 1]]));
    let ttl: i64 = bench.redis("PTTL", "tq:{work}:state:effects:a");
    assert!((1..=60_000).contains(&ttl), "{ttl}");
    eventually("the other value is gone", || {
        (bench.redis::<u64>("EXISTS", "tq:{work}:state:effects:b") == 0).then_some(())
    });
    host.stop();
}

#[test]
fn a_failed_attempt_leaves_nothing_and_the_next_one_does_not_see_it() {
    let mut bench = bench(QUEUE);
    let host = bench.host();
    let calls = json!([
        ["get", "a"], ["set", "a", "1", 0], ["put", "kb:1", {"x": 1}], ["add", "n", 1],
        ["first", 1, ["retry"]], ["first", 2, ["trap"]]
    ]);
    let seen = done(&mut bench, "work", calls);
    assert_eq!((&seen[0], &seen[3]), (&json!(null), &json!(1)), "the third attempt begins anew");
    let id = told(&mut bench, "work", &json!([["set", "b", "1", 0], ["put", "kb:2", {"x": 1}], ["reject"]]));
    bench.until("work", &id, "FAILED");
    let keys: Vec<String> = bench.redis("KEYS", "*");
    assert!(!keys.iter().any(|key| key == "kb:2" || key.ends_with(":b")), "{keys:?}");
    assert_eq!(bench.redis::<String>("GET", "tq:{work}:state:effects:n"), "1");
    host.stop();
}

#[test]
fn tasks_that_count_at_the_same_time_all_count() {
    let mut bench = bench(QUEUE);
    let ids: Vec<String> = (0..40)
        .map(|_| told(&mut bench, "work", &json!([["add", "n", 1], ["sleep", 20], ["add", "n", 1]])))
        .collect();
    let host = bench.host();
    for id in &ids {
        bench.until("work", id, "COMPLETED");
    }
    assert_eq!(bench.redis::<String>("GET", "tq:{work}:state:effects:n"), "80");
    host.stop();
}

#[test]
fn records_are_hashes_of_the_team() {
    let mut bench = bench(QUEUE);
    let () = bench.redis("HSET", ("kb:1", "old", "1", "both", "1"));
    let host = bench.host();
    let calls = json!([
        ["record", "kb:1"], ["put", "kb:1", {"both": "2", "new": "2"}], ["record", "kb:1"],
        ["record", "kb:2"], ["put", "kb:3", {"x": "1"}], ["drop", "kb:3"], ["expire", "kb:1", 60000]
    ]);
    let seen = done(&mut bench, "work", calls);
    let after = json!({"old": "1", "both": "2", "new": "2"});
    assert_eq!(seen, json!([{"old": "1", "both": "1"}, null, after, null, null, null, null]));
    let fields: std::collections::BTreeMap<String, String> = bench.redis("HGETALL", "kb:1");
    assert_eq!(json!(fields), after);
    assert!(bench.redis::<i64>("PTTL", "kb:1") > 0);
    assert_eq!(bench.redis::<u64>("EXISTS", "kb:3"), 0);
    done(
        &mut bench,
        "work",
        json!([["drop", "kb:1"], ["put", "kb:1", {"last": "1"}], ["expire", "kb:1", 0]]),
    );
    assert_eq!(bench.redis::<Vec<String>>("HKEYS", "kb:1"), ["last"]);
    assert_eq!(bench.redis::<i64>("PTTL", "kb:1"), -1);
    host.stop();
}

#[test]
fn effects_that_do_not_fit_what_redis_holds_fail_the_attempt_and_write_nothing() {
    let mut bench = bench(QUEUE);
    let host = bench.host();
    let () = bench.redis("SET", ("kb:text", "x"));
    let calls = json!([["set", "a", "1", 0], ["put", "kb:text", {"x": 1}]]);
    let id = told(&mut bench, "work", &calls);
    bench.until("work", &id, "FAILED");
    let dead = bench.dead("work").remove(0);
    assert_eq!((dead["tq-reason"].as_str(), dead["tq-attempts"].as_str()), ("retries-exhausted", "3"));
    assert!(dead["tq-error"].starts_with("effects: ") && dead["tq-error"].contains("kb:text"), "{dead:?}");
    assert_eq!(bench.redis::<u64>("EXISTS", "tq:{work}:state:effects:a"), 0);
    // INCRBY takes no leading zeros, and a time to live has a bound.
    let seen = done(&mut bench, "work", json!([["set", "m", "007", 0], ["set", "a", "1", u64::MAX]]));
    assert_eq!(seen, json!([null, null]));
    let id = told(&mut bench, "work", &json!([["set", "b", "1", 0], ["add", "m", 1]]));
    bench.until("work", &id, "FAILED");
    assert_eq!(bench.redis::<u64>("EXISTS", "tq:{work}:state:effects:b"), 0);
    // The value changes between the attempt and its commit. The handler has read the value when it begins to
    // wait.
    let _: () = bench.redis("CONFIG", &["RESETSTAT"]);
    let id = told(&mut bench, "work", &json!([["add", "n", 1], ["get", "later"], ["sleep", 4000]]));
    eventually("the handler has read both values", || {
        let info: String = bench.redis("INFO", "commandstats");
        info.lines().any(|line| line.starts_with("cmdstat_strlen:calls=2,")).then_some(())
    });
    let () = bench.redis("SET", ("tq:{work}:state:effects:n", "no number"));
    eventually("the attempt failed", || bench.status("work", &id, "error").contains("number").then_some(()));
    let () = bench.redis("DEL", "tq:{work}:state:effects:n");
    bench.until("work", &id, "COMPLETED");
    host.stop();
}

#[test]
fn effects_are_committed_on_a_full_redis() {
    let mut bench = bench(&format!("{QUEUE}[queues.plain]\nplugin = \"effects\"\n"));
    let host = bench.host();
    let calls = json!([["sleep", 1000], ["set", "a", "1", 0], ["put", "kb:1", {"x": "1"}], ["add", "n", 1]]);
    let id = told(&mut bench, "work", &calls);
    let plain = told(&mut bench, "work", &json!([["sleep", 1000]]));
    let other = told(&mut bench, "plain", &json!([["sleep", 1000]]));
    bench.until_running("work", 2);
    let () = bench.redis("CONFIG", ("SET", "maxmemory", "1"));
    bench.until("work", &plain, "COMPLETED");
    bench.until("plain", &other, "COMPLETED");
    assert_eq!(results(&mut bench, "work", &id)[3], 1);
    let written: u64 = bench.redis("EXISTS", ("kb:1", "tq:{work}:state:effects:a"));
    assert_eq!(written, 2);
    assert_eq!(bench.redis::<String>("GET", "tq:{work}:state:effects:n"), "1");
    host.stop();
}

#[test]
fn the_fence_grows_with_every_delivery() {
    let mut bench = bench(QUEUE);
    let host = bench.host();
    let fence = |result: &Value| result[1].as_u64().expect("a number");
    let id = told(&mut bench, "work", &json!([["first", 2, ["retry"]], ["fence"]]));
    assert_eq!(fence(&results(&mut bench, "work", &id)), 3);
    let id = told(&mut bench, "work", &json!([["first", 3, ["retry"]], ["fence"]]));
    bench.until("work", &id, "FAILED");
    // The requeued task has attempts 1 to 3 again, and fails again.
    bench.tqhost(&["dead", "requeue", "work", &id]).ok();
    eventually("it is dead again", || {
        let dead = bench.dead("work");
        dead.iter().any(|letter| letter["tq-id"] == id && letter["tq-fence"] == "6").then_some(())
    });
    host.stop();
}

#[test]
fn a_task_that_is_taken_over_has_a_higher_fence() {
    let mut bench =
        bench("[defaults]\nlease = \"1s\"\nmax_crashes = 5\n[queues.work]\nplugin = \"effects\"\n");
    let host = bench.host();
    let id = told(&mut bench, "work", &json!([["fence"], ["fence"], ["sleep", 3000]]));
    bench.until_running("work", 1);
    host.kill();
    let host = bench.host();
    assert_eq!(results(&mut bench, "work", &id)[1], 2);
    host.stop();
}

#[test]
fn a_task_that_is_taken_from_a_consumer_that_lives_has_a_higher_fence() {
    let mut bench = bench("[queues.work]\nplugin = \"effects\"\nlease = \"1s\"\n");
    let () = bench.redis("XGROUP", ("CREATE", "work", "tqhost", 0, "MKSTREAM"));
    let id = told(&mut bench, "work", &json!([["fence"], ["sleep", 2000]]));
    let lives = ("GROUP", "tqhost", "lives", "COUNT", 1, "STREAMS", "work", ">");
    let _: redis::Value = bench.redis("XREADGROUP", lives);
    let _: redis::Value =
        bench.redis("XCLAIM", ("work", "tqhost", "lives", 0, &id, "IDLE", 60_000, "JUSTID"));
    let host = bench.host();
    bench.until("work", &id, "PROCESSING");
    // The consumer takes it back, and then shows that it lives.
    let _: redis::Value = bench.redis("XCLAIM", ("work", "tqhost", "lives", 0, &id, "JUSTID"));
    eventually("the host took it over again, and completed it", || {
        let _: redis::Value = bench.redis("XREADGROUP", lives);
        (bench.status("work", &id, "status") == "COMPLETED").then_some(())
    });
    assert_eq!(results(&mut bench, "work", &id)[0], 3);
    let deliveries: Vec<String> =
        bench.redis("HMGET", (format!("tq:{{work}}:task:{id}"), &["fence", "attempt"]));
    assert_eq!(deliveries, ["3", "1"]);
    host.stop();
}

#[test]
fn a_handler_in_c_has_effects() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"in-c\"\nenqueue_to = [\"next\"]\n[queues.next]\n");
    bench.install("in-c", "in-c");
    let host = bench.host();
    let id = bench.xadd("work", &[("to", "next"), ("n", "7")]);
    bench.until("work", &id, "COMPLETED");
    assert_eq!(bench.status("work", &id, "result"), "1");
    let id = bench.xadd("work", &[("to", "elsewhere")]);
    bench.until("work", &id, "FAILED");
    insta::assert_snapshot!(bench.status("work", &id, "error"), @r"
    queue `elsewhere` is not in `enqueue_to` of queue `work`
    ");
    assert_eq!(bench.redis::<String>("GET", "tq:{work}:state:in-c:count"), "2");
    let next: Vec<(String, Vec<String>)> = bench.redis("XRANGE", ("next", "-", "+"));
    assert_eq!((next.len(), &next[0].1[..4]), (1, &["to", "next", "n", "7"].map(String::from)[..]));
    host.stop();
}

#[test]
fn a_foreign_value_or_record_that_does_not_fit_into_the_memory_is_not_read() {
    let mut bench = bench(&QUEUE.replace("records =", "memory = \"16MiB\"\nrecords ="));
    let host = bench.host();
    let large = "x".repeat(20 << 20);
    let () = bench.redis("SET", ("tq:{work}:state:effects:a", &large));
    let () = bench.redis("HSET", ("kb:1", "text", &large));
    let seen = done(&mut bench, "work", json!([["get", "a"], ["record", "kb:1"], ["get", "b"]]));
    let told = [&seen[0], &seen[1]].map(|one| error(one).replace(|c: char| c.is_ascii_digit(), ""));
    insta::assert_snapshot!(told.join("\n"), @r#"
    TooLarge("the value `a` does not fit into the  bytes of memory that the handler may still use")
    TooLarge("the record `kb:` does not fit into the  bytes of memory that the handler may still use")
    "#);
    assert_eq!(seen[2], Value::Null);
    host.stop();
}
