//! The log of changes, and pauses with a reason and a time.

use serde_json::{Value, json};

use super::{ask, good, post, problem};
use crate::support::http::Events;
use crate::support::{Bench, Host, eventually};

const QUEUES: &str = "[queues.work]\nplugin = \"echo\"\n[queues.other]\nplugin = \"echo\"\n";

/// The parts of changes that do not depend on the machine.
fn deeds(changes: &Value) -> Vec<[String; 4]> {
    let part = |change: &Value, name: &str| change[name].as_str().unwrap_or_default().to_owned();
    let all = changes.as_array().expect("changes").iter();
    all.map(|change| ["what", "queue", "detail", "why"].map(|name| part(change, name))).collect()
}

#[test]
fn a_pause_has_a_reason_and_ends_by_itself() {
    let mut bench = Bench::new(QUEUES);
    bench.install("echo", "echo");
    let host = bench.host();
    bench.tqhost(&["pause", "work", "--why", "the database moves", "--for", "1h"]).ok();
    let view = good(&ask(&host, "GET", "/v1/queues/work"), 200);
    let pause = &view["pause"];
    assert_eq!((&view["paused"], &pause["why"]), (&json!(true), &json!("the database moves")));
    assert!(pause["by"].as_str().is_some_and(|by| by.contains('@')), "{pause}");
    assert_eq!(
        pause["until_ms"].as_u64().zip(pause["since_ms"].as_u64()).map(|(a, b)| a - b),
        Some(3_600_000)
    );
    let shown = bench.tqhost(&["queues", "work"]).ok().stdout;
    for text in [shown, ask(&host, "GET", "/queues/work").body] {
        assert!(text.contains(pause["why"].as_str().expect("a reason")), "{text}");
    }
    // Without a reason and a time, a pause that stands stays, and no longer ends by itself.
    for _ in 0..2 {
        let again = bench.tqhost(&["pause", "work", "--json"]).ok().json();
        assert_eq!(again["changed"], false);
        let after = good(&ask(&host, "GET", "/v1/queues/work"), 200)["pause"].clone();
        assert_eq!((&after["why"], &after["by"]), (&pause["why"], &pause["by"]));
        assert_eq!(after["until_ms"], Value::Null);
    }
    assert_eq!(bench.redis::<i64>("PTTL", "tq:{work}:paused"), -1);
    let changes = bench.tqhost(&["changes", "--queue", "work", "--json"]).ok().json();
    assert_eq!(deeds(&changes).len(), 2, "the second order changed nothing: {changes}");
    eventually("the host obeys", || {
        let view = good(&ask(&host, "GET", "/v1/queues/work"), 200);
        (view["hosts"][0]["state"] == "paused").then_some(())
    });
    let id = bench.xadd("work", &[("a", "1")]);
    let why = json!({ "why": "it takes longer", "for": "1500ms" });
    assert_eq!(good(&post(&host, "/v1/queues/work/pause", &why), 200)["changed"], false);
    assert_eq!(good(&ask(&host, "GET", "/v1/queues/work"), 200)["pause"]["why"], "it takes longer");
    // Nobody resumes it.
    eventually("the task is done", || (bench.status("work", &id, "status") == "COMPLETED").then_some(()));
    assert_eq!(good(&ask(&host, "GET", "/v1/queues/work"), 200)["pause"], Value::Null);
    let told = [
        json!({ "for": "soon" }),
        json!({ "for": "0s" }),
        json!({ "for": "400d" }),
        json!({ "why": "x".repeat(201) }),
        json!({ "until": 1 }),
    ]
    .map(|body| problem(&post(&host, "/v1/queues/work/pause", &body), 422, "invalid"));
    insta::assert_snapshot!(told.join("\n"), @"
    for: \"soon\" is not a duration: write whole numbers with the units d, h, m, s or ms, like \"30s\" \
        or \"1m30s\"
    for: it is not a time from 1ms to 366 days
    for: it is not a time from 1ms to 366 days
    why: it has more than 200 characters
    Failed to deserialize the JSON body into the target type: until: unknown field `until`, expected \
        `why` or `for` at line 1 column 8
    ");
    assert_eq!(bench.redis::<u64>("EXISTS", "tq:{work}:paused"), 0);
    host.stop();
}

#[test]
fn every_way_in_leaves_its_name_in_the_log_of_changes() {
    let mut bench = Bench::new(QUEUES);
    bench.install("echo", "echo");
    let hosts = [bench.host(), bench.host()];
    let stream = Events::open(hosts[1].admin(), "/v1/events", &[]);
    bench.tqhost(&["pause", "work", "--why", "slow"]).ok();
    good(&post(&hosts[0], "/v1/queues/work/resume", &json!({ "why": "quick" })), 200);
    bench.tqhost(&["pause", "other"]).ok();
    // These change nothing.
    bench.tqhost(&["pause", "other"]).ok();
    bench.tqhost(&["resume", "other", "--dry-run"]).ok();
    bench.tqhost(&["drain", "other", "--yes"]).ok();
    let told: Vec<Value> =
        stream.filter(|event| event.kind == "change").take(4).map(|event| event.data).collect();
    let list = good(&ask(&hosts[0], "GET", "/v1/changes"), 200)["changes"].clone();
    let mut found = deeds(&list);
    let [_, _, detail, _] = &mut found[0];
    assert!(detail.starts_with("drain, job "), "{detail}");
    detail.truncate("drain".len());
    let expected = [
        ["job-started", "other", "drain", ""],
        ["pause", "other", "", ""],
        ["resume", "work", "", "quick"],
        ["pause", "work", "", "slow"],
    ];
    assert_eq!(found, expected);
    assert_eq!(list[2]["who"], "anybody");
    assert_eq!(
        Some(told.iter().rev().collect()),
        list.as_array().map(|list| list.iter().collect::<Vec<_>>())
    );
    assert!(list[3]["who"].as_str().is_some_and(|who| who.contains('@')), "{list}");
    let of_work = bench.tqhost(&["changes", "--queue", "work", "--json"]).ok().json();
    assert_eq!(deeds(&of_work), expected[2..]);
    assert_eq!(good(&ask(&hosts[0], "GET", "/v1/changes?queue=work&limit=1"), 200)["changes"][0], list[2]);
    let page = ask(&hosts[1], "GET", "/changes").body;
    assert!(page.contains("anybody") && page.contains("quick"), "{page}");
    problem(&ask(&hosts[0], "GET", "/v1/changes?limit=501"), 422, "invalid");
    // It is bounded, and an entry of another version is left out.
    let text = json!({ "who": "ada", "what": "later", "queue": "work", "more": 1 }).to_string();
    for _ in 0..600 {
        let entry = ("tq:hosts:changes", "MAXLEN", 500, "*", "change", &text);
        let _: String = bench.redis("XADD", entry);
    }
    let _: String = bench.redis("XADD", ("tq:hosts:changes", "*", "other", "1", "change", "[1]"));
    bench.tqhost(&["resume", "other"]).ok();
    assert_eq!(bench.redis::<u64>("XLEN", "tq:hosts:changes"), 500);
    let list = good(&ask(&hosts[0], "GET", "/v1/changes"), 200)["changes"].clone();
    assert_eq!((list.as_array().map(Vec::len), &list[1]["what"]), (Some(499), &json!("later")));
    Host::stop_all(hosts);
}
