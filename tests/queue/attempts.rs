//! The last failed attempts of a task: what is kept of them, where, and for how long.
//!
//! Not here: how pages show them (`dashboard`), the scripts' own guards (`proofs::guards`).

use serde_json::{Value, json};

use crate::support::{Bench, eventually};

/// The key with the failed attempts of a task.
fn key(id: &str) -> String {
    format!("tq:{{work}}:attempts:{id}")
}

fn bench(guest: &str, rules: &str) -> Bench {
    let bench = Bench::new(&format!("[queues.work]\nplugin = \"{guest}\"\nbackoff = \"none\"\n{rules}\n"));
    bench.install(guest, guest);
    bench
}

fn attempts(bench: &Bench, id: &str) -> Vec<Value> {
    let task = bench.tqhost(&["status", "work", id, "--json"]).ok().json();
    task["attempts"].as_array().expect("a list").clone()
}

/// How long (ms) the status and the attempts of a task are kept. -1: without end, -2: they are not there.
fn lives(bench: &mut Bench, id: &str) -> [i64; 2] {
    [format!("tq:{{work}}:task:{id}"), key(id)].map(|key| bench.redis::<i64>("PTTL", key))
}

fn kept(bench: &mut Bench) -> Vec<String> {
    bench.redis("KEYS", key("*"))
}

#[test]
fn the_last_failed_attempts_are_kept_with_the_end_of_their_log() {
    let mut bench = bench("remembers", "max_retries = 4\nfailed_attempts = 3");
    let host = bench.host();
    let id = bench.xadd("work", &[("end", "trap")]);
    bench.until("work", &id, "FAILED");
    let kept = attempts(&bench, &id);
    let numbers: Vec<_> = kept.iter().map(|one| one["attempt"].as_u64()).collect();
    assert_eq!(numbers, [Some(3), Some(4), Some(5)]);
    let label = bench.status("work", &id, "plugin");
    for one in &kept {
        assert_eq!((&one["outcome"], &one["plugin"]), (&json!("trap"), &json!(label)), "{one}");
        assert_eq!(one["consumer"], bench.status("work", &id, "consumer"));
        assert!(one["error"].as_str().is_some_and(|error| error.starts_with("trap: ")), "{one}");
        assert_eq!(one["log"], format!("printed by {id}\nINFO logged by {id}"));
        let [from, to, took] =
            ["started_at", "finished_at", "duration_ms"].map(|name| one[name].as_u64().expect("a time"));
        assert_eq!(to - from, took);
    }
    let times: Vec<_> = kept.iter().map(|one| one["finished_at"].as_u64()).collect();
    assert!(times.is_sorted(), "{times:?}");
    let [status, attempts] = lives(&mut bench, &id);
    assert!(0 < status && 0 < attempts && attempts <= 24 * 3_600_000, "{status} and {attempts}");

    let shown = bench.tqhost(&["status", "work", &id]).ok().stdout;
    assert!(shown.contains("ATTEMPT  BEGAN"), "{shown}");
    // The table of the attempts comes first.
    let lines: Vec<&str> = shown.lines().collect();
    insta::assert_snapshot!(lines[lines.len() - 3..].join("\n").replace(&id, "ID"), @"
    log of the last one, attempt 5
    printed by ID
    INFO logged by ID
    ");

    // After a requeue they stay, and the next ones are added.
    bench.tqhost(&["dead", "requeue", "work", &id]).ok();
    eventually("it is dead again", || {
        let numbers: Vec<_> = attempts_of(&bench, &id);
        (numbers == [3, 4, 5]
            && bench.places("work").dead == 1
            && bench.status("work", &id, "status") == "FAILED")
            .then_some(())
    });
    bench.tqhost(&["dead", "purge", "work", &id, "--yes"]).ok();
    assert!(lives(&mut bench, &id)[1] > 0, "they go with the status, not with the dead letter");
    host.stop();
}

fn attempts_of(bench: &Bench, id: &str) -> Vec<u64> {
    attempts(bench, id).iter().filter_map(|one| one["attempt"].as_u64()).collect()
}

#[test]
fn they_go_with_the_status_of_the_task_however_it_ends() {
    let mut bench = bench("as-told", "retention = \"1h\"");
    let host = bench.host();
    let told =
        |retries: u32, end: &str| json!({ "n": "x", "ms": 0, "retries": retries, "end": end }).to_string();
    let done = bench.xadd("work", &[("data", &told(2, "ok"))]);
    bench.until("work", &done, "COMPLETED");
    assert_eq!(attempts_of(&bench, &done), [1, 2]);
    let rejected = bench.xadd("work", &[("data", &told(0, "reject"))]);
    bench.until("work", &rejected, "FAILED");
    let one = &attempts(&bench, &rejected)[..];
    assert!(matches!(one, [one] if one["outcome"] == "reject" && one["attempt"] == 1), "{one:?}");
    for id in [&done, &rejected] {
        let [status, attempts] = lives(&mut bench, id);
        assert!((1..=3_600_000).contains(&status) && (1..=3_600_000).contains(&attempts), "{id}");
    }
    // One that completes at once, or is deferred, has none.
    let plain = bench.xadd("work", &[("data", &told(0, "ok"))]);
    bench.until("work", &plain, "COMPLETED");
    let deferred = bench.xadd("work", &[("data", &told(0, "defer"))]);
    eventually("it is deferred", || (bench.status("work", &deferred, "status") == "PENDING").then_some(()));
    assert_eq!(attempts(&bench, &plain), Vec::<Value>::new());
    assert_eq!(lives(&mut bench, &plain)[1], -2);
    assert!(attempts(&bench, &deferred).iter().all(|one| one["outcome"] == "defer"));
    host.stop();
}

#[test]
fn a_task_that_waits_keeps_them_and_a_cancelled_one_until_its_status_expires() {
    let queue = "[queues.work]\nplugin = \"as-told\"\nbackoff = { delays = [\"1h\"] }\n";
    let mut bench = Bench::new(queue);
    bench.install("as-told", "as-told");
    let host = bench.host();
    let data = json!({ "n": "x", "ms": 0, "retries": 1, "end": "ok" }).to_string();
    let [cancelled, left] = [(); 2].map(|()| bench.xadd("work", &[("data", &data)]));
    eventually("both are delayed", || (bench.places("work").delayed == 2).then_some(()));
    let month = 30 * 24 * 3_600_000;
    for id in [&cancelled, &left] {
        let [status, attempts] = lives(&mut bench, id);
        assert!(status == -1 && attempts > month && attempts <= month + 2 * 3_600_000, "{attempts}");
    }
    bench.tqhost(&["cancel", "work", &cancelled]).ok();
    let [status, attempts] = lives(&mut bench, &cancelled);
    assert!(0 < status && 0 < attempts && attempts <= 24 * 3_600_000, "{status} and {attempts}");
    host.stop();
    // A team that goes back to its own consumer finds none.
    bench.tqhost(&["adopt", "work", "--out", "--yes"]).ok();
    assert_eq!(kept(&mut bench), Vec::<String>::new());
}

#[test]
fn the_record_of_an_attempt_that_ended_with_its_host_is_kept_as_long_as_the_others() {
    let mut bench = bench("as-told", "lease = \"2s\"");
    let dies = bench.host();
    let data = json!({ "n": "x", "ms": 20_000, "retries": 0, "end": "ok" }).to_string();
    let id = bench.xadd("work", &[("data", &data)]);
    bench.until("work", &id, "PROCESSING");
    let plugin = bench.status("work", &id, "plugin");
    dies.kill();
    let host = bench.host();
    let kept =
        eventually("the attempt is noted", || Some(attempts(&bench, &id)).filter(|all| !all.is_empty()));
    assert_eq!((kept.len(), &kept[0]["outcome"]), (1, &json!("lost")));
    assert_eq!(kept[0]["plugin"], json!(plugin), "the status was read before the next attempt began");
    let [month, lives] = [30 * 24 * 3_600_000, lives(&mut bench, &id)[1]];
    assert!(lives > month - 60_000 && lives <= month, "{lives}");
    host.kill();
}

#[test]
fn a_queue_may_keep_none() {
    for rules in ["failed_attempts = 0", "retention = \"0s\""] {
        let mut bench = bench("as-told", rules);
        let host = bench.host();
        let data = json!({ "n": "x", "ms": 0, "retries": 2, "end": "reject" }).to_string();
        bench.xadd("work", &[("data", &data)]);
        eventually("it is dead", || (bench.places("work").dead == 1).then_some(()));
        host.until_ended_as("work", "retried", 2);
        assert_eq!(kept(&mut bench), Vec::<String>::new(), "{rules}");
        host.stop();
    }
}
