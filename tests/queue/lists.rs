//! Queues that are fed from a Redis list: no item is lost between list and stream, and the order stays.

use std::collections::HashSet;

use crate::support::{Bench, Places, eventually};

const NOTHING: Places = Places { length: 0, pending: 0, delayed: 0, parked: 0, dead: 0 };
const REPORTS: &str = "[queues.reports]\nlist = \"report:queue\"\nplugin = \"echo\"\nconcurrency = 1\n";

/// Items in the order in which their tasks were enqueued, as the handler got them.
fn results(bench: &mut Bench) -> Vec<String> {
    let mut cursor = 0u64;
    let mut done: Vec<(u64, u64, String)> = Vec::new();
    loop {
        let (next, keys): (u64, Vec<String>) =
            bench.redis("SCAN", (cursor, "MATCH", "tq:{reports}:task:*", "COUNT", 1000));
        for key in keys {
            let result: Option<String> = bench.redis("HGET", (&key, "result"));
            let Some(result) = result else { continue };
            let result: serde_json::Value = serde_json::from_str(&result).expect("JSON");
            let (ms, sequence) =
                key.rsplit(':').next().and_then(|id| id.split_once('-')).expect("an entry id");
            let data = result["fields"]["data"].as_str().expect("the item").to_owned();
            done.push((ms.parse().expect("ms"), sequence.parse().expect("a number"), data));
        }
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    done.sort();
    done.into_iter().map(|(_, _, data)| data).collect()
}

/// Pushes items one by one, as a producer does.
fn push(bench: &mut Bench, items: impl Iterator<Item = String>) {
    for item in items {
        let _: u64 = bench.redis("LPUSH", ("report:queue", item));
    }
}

#[test]
fn items_become_tasks_in_order_with_two_hosts() {
    let mut bench = Bench::new(REPORTS);
    bench.install("echo", "echo");
    let item = |n: usize| format!("{{\"RecordId\":{n},\"RetryCount\":0}}");
    push(&mut bench, (0..300).map(item));
    let hosts = [bench.host(), bench.host()];
    push(&mut bench, (300..600).map(item));
    eventually("all are done", || (results(&mut bench).len() == 600).then_some(()));
    assert_eq!(results(&mut bench), (0..600).map(item).collect::<Vec<_>>(), "first in, first out");
    assert_eq!(bench.places("reports"), NOTHING);
    assert!(!bench.redis::<bool>("EXISTS", "report:queue"));
    crate::support::Host::stop_all(hosts);
}

#[test]
fn items_survive_hosts_that_are_killed() {
    let mut bench = Bench::new(
        "[queues.reports]\nlist = \"report:queue\"\nplugin = \"echo\"\nlease = \"1s\"\nmax_crashes = 100\n",
    );
    bench.install("echo", "echo");
    let mut sent = 0;
    for _ in 0..3 {
        let host = bench.host();
        push(&mut bench, (sent..sent + 200).map(|n| n.to_string()));
        sent += 200;
        eventually("some are moved", || (bench.redis::<usize>("LLEN", "report:queue") < 100).then_some(()));
        host.kill();
    }
    let host = bench.host();
    eventually("all are done", || (results(&mut bench).len() == sent).then_some(()));
    assert_eq!(results(&mut bench).into_iter().collect::<HashSet<_>>().len(), sent, "each once");
    bench.until_drained("reports");
    host.stop();
}

#[test]
fn a_full_queue_leaves_items_in_the_list() {
    let mut bench =
        Bench::new("[queues.reports]\nlist = \"report:queue\"\nplugin = \"echo\"\nmax_backlog = 5\n");
    push(&mut bench, (0..20).map(|n| n.to_string()));
    // The plugin is missing, so no task leaves the queue.
    let host = bench.host();
    eventually("the queue is full", || (bench.places("reports").length == 5).then_some(()));
    assert_eq!(bench.redis::<u64>("LLEN", "report:queue"), 15);
    bench.install("echo", "echo");
    eventually("all are done", || (results(&mut bench).len() == 20).then_some(()));
    host.stop();
}

#[test]
fn items_that_are_no_json_are_dead_letters_where_the_queue_says_that_they_are_json() {
    let mut bench = Bench::new(
        "[queues.reports]\nlist = { key = \"report:queue\", items = \"json\" }\nplugin = \"echo\"\n\
         concurrency = 1\n[queues.other]\nplugin = \"echo\"\n",
    );
    bench.install("echo", "echo");
    let host = bench.host();
    let bad: [&[u8]; 3] = [b"{\"RecordId\": 7, hunter2", b"", b"\"\xff\""];
    for item in bad {
        let _: u64 = bench.redis("LPUSH", ("report:queue", item));
    }
    let added = bench.xadd("reports", &[("data", "{")]);
    // A task without the field, a task with other fields, and a task of another queue need no JSON.
    let fine = [
        ("reports", bench.xadd("reports", &[("data", "[1]")])),
        ("reports", bench.xadd("reports", &[("content", "{")])),
        ("other", bench.xadd("other", &[("data", "{")])),
    ];
    bench.until("reports", &added, "FAILED");
    for (queue, id) in &fine {
        bench.until(queue, id, "COMPLETED");
    }
    bench.until_drained("reports");
    eventually("all are settled", || (bench.places("reports").dead == 4).then_some(()));
    let listed = bench.tqhost(&["dead", "list", "reports", "--reason", "malformed", "--json"]).ok().json();
    let mut errors: Vec<&str> = listed["dead"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|dead| dead["error"].as_str().expect("an error"))
        .collect();
    errors.sort_unstable();
    insta::assert_snapshot!(errors.join("\n"), @"
    the field data is not JSON: EOF while parsing a value at line 1 column 0
    the field data is not JSON: EOF while parsing an object at line 1 column 1
    the field data is not JSON: key must be a string at line 1 column 17
    the field data is not JSON: not UTF-8 at byte 1
    ");
    assert!(
        bench.tqhost(&["dead", "list", "reports", "--match", "hunter2"]).ok().stdout.contains("malformed"),
        "it is in its dead letter"
    );
    assert!(!host.stop_for_log().raw().contains("hunter2"), "the item is not in the log");
}

#[test]
fn a_key_of_another_type_is_told_and_disturbs_nobody() {
    let mut bench = Bench::new(
        "[queues.reports]\nlist = \"report:queue\"\nplugin = \"echo\"\n[queues.other]\nplugin = \"echo\"\n",
    );
    bench.install("echo", "echo");
    let _: () = bench.redis("SET", ("report:queue", "not a list"));
    let host = bench.host();
    insta::assert_snapshot!(
        host.log("no task is taken")["why"],
        @r#""report:queue holds a string, not a list: `tqhost adopt reports` says what can be done""#
    );
    let waits = bench.xadd("reports", &[("data", "x")]);
    let runs = bench.xadd("other", &[("data", "x")]);
    bench.until("other", &runs, "COMPLETED");
    assert_eq!(bench.status("reports", &waits, "status"), "");
    let _: () = bench.redis("DEL", "report:queue");
    bench.until("reports", &waits, "COMPLETED");
    let _: u64 = bench.redis("LPUSH", ("report:queue", "y"));
    eventually("it is taken", || results(&mut bench).contains(&"y".to_owned()).then_some(()));
    host.stop();
}
