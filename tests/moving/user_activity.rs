//! `examples/3-user-activity`: events on a stream, whose old consumer acknowledges without deleting, leaves
//! what it could not do pending, and writes dead letters of its own form.
//!
//! Not here: duplicates and crashes under load (`queue::activity_events`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{OldConsumer, configuration, secret};
use crate::support::application::{Application, Reply, SECRET};
use crate::support::{Bench, eventually};

const STREAM: &str = "events:user_activity";
const GROUP: &str = "activity_processors";
const DEAD: &str = "dlq:user_activity";

const EXAMPLE: &str = include_str!("../../examples/3-user-activity/tqhost.toml");
const EVENT: &str = include_str!("../../examples/3-user-activity/event.json");

/// The example's event, with another id and another action.
fn event(id: &str, action: &str) -> String {
    let mut event: Value = serde_json::from_str(EVENT).expect("the example's event");
    (event["eventId"], event["action"]) = (json!(id), json!(action));
    event.to_string()
}

#[test]
fn tasks_of_the_old_consumer_are_taken_over_and_every_event_has_one_end() {
    let application = Application::start(|call| {
        let event: Value = serde_json::from_slice(&call.body).expect("an event");
        match event["action"].as_str() {
            Some("broken") => Reply::page(422, "content-type: text/plain\r\n", "unknown action: broken"),
            _ => Reply::page(204, "", ""),
        }
    });
    let mut bench = Bench::new("[queues.activity]\n");
    let (theirs, ours) = secret(SECRET);
    // The times are shorter than the example's.
    let changes = [
        ("http://127.0.0.1:3000", &*application.origin()),
        (theirs, &ours),
        ("base = \"1s\"", "base = \"10ms\""),
        ("lease = \"2m\"", "lease = \"1s\""),
    ];
    bench.configure(&configuration(EXAMPLE, &bench, &changes));
    bench.install("http-call", "http-call");
    let add = |bench: &mut Bench, id: &str, action: &str| bench.xadd(STREAM, &[("data", &event(id, action))]);

    // 1. The old consumer works: it does 20 events, buries one, and is killed in the middle of another one.
    let times = [("IDLE_MS", "0"), ("CLAIM_SECONDS", "0.05")];
    let old = OldConsumer::start("user_activity.py", bench.redis.port, "worker-1", &times);
    for n in 0..20 {
        add(&mut bench, &format!("old-{n}"), "page_view");
    }
    add(&mut bench, "old-0", "page_view"); // a duplicate
    add(&mut bench, "old-broken", "broken");
    eventually("a dead letter is there", || (bench.redis::<u64>("XLEN", DEAD) == 1).then_some(()));
    eventually("all are done", || (old.said("processed").len() == 20).then_some(()));
    add(&mut bench, "slow", "slow");
    eventually("it is in the middle of one", || (old.said("began") == ["slow"]).then_some(()));
    let new: Vec<String> = (0..10).map(|n| format!("new-{n}")).collect();
    for id in &new {
        add(&mut bench, id, "page_view");
    }
    add(&mut bench, "new-0", "page_view"); // a duplicate
    add(&mut bench, "new-broken", "broken");
    let processed = old.said("processed");
    old.kill();
    let (pending, ..): (u64, redis::Value, redis::Value, redis::Value) =
        bench.redis("XPENDING", (STREAM, GROUP));
    assert_eq!((pending, bench.redis::<u64>("XLEN", STREAM)), (1, 35), "what the old consumer left");

    // 2. tqhost takes over.
    let told = bench.tqhost(&["adopt", "activity", "--stopped", "--json"]);
    assert_eq!(told.json()["acted"], false, "it only tells: {told:?}");
    assert_eq!(bench.redis::<u64>("XLEN", STREAM), 35);
    let adopt = ["adopt", "activity", "--stopped", "--delete-acked", "--yes", "--json"];
    let adopted = bench.tqhost(&adopt).ok().json();
    assert_eq!((&adopted["acted"], &adopted["ok"]), (&json!(true), &json!(true)), "{adopted}");
    let host = bench.host();
    eventually("nothing is left", || (bench.redis::<u64>("XLEN", STREAM) == 0).then_some(()));

    // 3. The counts: each event was processed once, by the old consumer or by the application, or is dead.
    let mut ends: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for id in processed {
        ends.entry(id).or_default().push("old");
    }
    for call in application.calls() {
        let event: Value = serde_json::from_slice(&call.body).expect("an event");
        let end = if event["action"] == "broken" { "refused" } else { "new" };
        ends.entry(event["eventId"].as_str().expect("an id").to_owned()).or_default().push(end);
    }
    let letters = bench.tqhost(&["dead", "list", "activity", "--reason", "foreign", "--json"]).ok().json();
    assert!(letters.to_string().contains("unknown action: broken"), "the old reason is shown: {letters}");
    assert_eq!(bench.redis::<u64>("XLEN", DEAD), 2, "the old one and a new one");
    let expected = |id: &String| match id.as_str() {
        "new-broken" => vec!["refused"],
        id if id.starts_with("old-") => vec!["old"],
        _ => vec!["new"],
    };
    let all: BTreeSet<String> = (0..20)
        .map(|n| format!("old-{n}"))
        .chain(new)
        .chain(["slow", "new-broken"].map(String::from))
        .collect();
    assert_eq!(ends.keys().cloned().collect::<BTreeSet<_>>(), all);
    for (id, found) in &ends {
        assert_eq!(*found, expected(id), "{id}");
    }
    assert_eq!(bench.tqhost(&["doctor", "activity"]).code, 0);

    // 4. The old dead letter runs again when somebody asks for it, with the event as it was.
    let requeue = ["dead", "requeue", "activity", "--all", "--reason", "foreign", "--json"];
    let requeued = bench.tqhost(&requeue).ok().json();
    assert_eq!((&requeued["succeeded"], &requeued["skipped"]), (&json!(1), &json!(0)), "{requeued}");
    eventually("it is dead again", || (bench.redis::<u64>("XLEN", DEAD) == 2).then_some(()));
    let last = application.calls().pop().expect("a call");
    assert_eq!(String::from_utf8(last.body).expect("text"), event("old-broken", "broken"));
    host.stop();

    // 5. The way back: the old consumer goes on with what waits.
    add(&mut bench, "back", "page_view");
    let back = bench.tqhost(&["adopt", "activity", "--out", "--yes", "--json"]).ok().json();
    assert_eq!(back["ok"], true, "{back}");
    let old = OldConsumer::start("user_activity.py", bench.redis.port, "worker-2", &times);
    eventually("it works again", || (old.said("processed") == ["back"]).then_some(()));
    old.kill();
}
