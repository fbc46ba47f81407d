//! Streams of events: of a task, a queue and the host, taken up again by the id of the last event.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{ask, good, post, problem};
use crate::support::http::{Event, Events};
use crate::support::proxy::Proxy;
use crate::support::{Bench, Held};

/// The task and its status in each event.
fn moves(events: &[Event]) -> Vec<(String, String)> {
    let text = |event: &Event, name: &str| event.data[name].as_str().expect("text").to_owned();
    events.iter().map(|event| (text(event, "id"), text(event, "status"))).collect()
}

#[test]
fn the_changes_of_a_task_are_told_until_its_end() {
    let held = Held::new();
    let mut bench = held.bench("[queues.work]\nplugin = \"fetches\"\n");
    let host = bench.host();
    let id = bench.xadd("work", &held.task());
    bench.until("work", &id, "PROCESSING");
    let path = format!("/v1/queues/work/tasks/{id}/events");
    let mut events = Events::open(host.admin(), &path, &[]);
    assert_eq!(events.status, 200);
    let first = events.next().expect("the first event");
    assert_eq!((first.kind.as_str(), &first.data["status"]), ("task", &json!("PROCESSING")));
    held.end();
    let rest: Vec<Event> = events.collect();
    let last = rest.last().expect("the end");
    assert_eq!((&last.data["status"], &last.data["id"]), (&json!("COMPLETED"), &json!(id)));
    let again = Events::open(host.admin(), &path, &[("last-event-id", &last.id)]);
    assert_eq!(again.status, 204, "the client knows the end");
    let late: Vec<Event> = Events::open(host.admin(), &path, &[("last-event-id", &first.id)]).collect();
    assert_eq!((late.len(), late.first()), (1, Some(last)));
    problem(&ask(&host, "GET", "/v1/queues/work/tasks/nobody/events"), 404, "unknown-task");
    host.stop();
}

#[test]
fn the_events_of_a_queue_are_taken_up_again() {
    let mut bench =
        Bench::new("[queues.work]\nplugin = \"echo\"\nevents = 1000\n[queues.quiet]\nplugin = \"echo\"\n");
    bench.install("echo", "echo");
    let host = bench.host();
    let path = "/v1/queues/work/events";
    let mut events = Events::open(host.admin(), path, &[]);
    let done: Vec<String> = (0..3).map(|_| bench.xadd("work", &[("a", "1")])).collect();
    let seen: Vec<Event> = events.by_ref().take(3).collect();
    let ids = |events: &[Event]| {
        let mut ids: Vec<String> = moves(events).into_iter().map(|(id, _)| id).collect();
        ids.sort();
        ids
    };
    assert_eq!(ids(&seen), done);
    assert!(seen.iter().all(|event| event.kind == "task" && event.data["status"] == "COMPLETED"), "{seen:?}");
    let more = bench.xadd("work", &[("a", "1")]);
    let rest: Vec<Event> =
        Events::open(host.admin(), path, &[("last-event-id", &seen[0].id)]).take(3).collect();
    assert_eq!(rest[..2], seen[1..]);
    assert_eq!(rest[2].data["id"], more);
    // The event that the client had last is kept no more.
    let gap: Vec<Event> = Events::open(host.admin(), path, &[("last-event-id", "5-0")]).take(2).collect();
    assert_eq!((gap[0].kind.as_str(), gap[1].kind.as_str()), ("gap", "task"));
    problem(&ask(&host, "GET", "/v1/queues/quiet/events"), 409, "no-events");
    let wrong = crate::support::http::send(host.admin(), "GET", path, &[("last-event-id", "x")], None);
    problem(&wrong, 422, "invalid");
    // A stream ends with its host, and does not hold it up.
    host.stop();
    assert_eq!(events.next().map(|event| event.data["id"].clone()), Some(json!(more)));
    assert_eq!(events.next(), None);
}

#[test]
fn tasks_that_are_completed_together_share_entries_in_which_streams_and_pages_go_on() {
    const TASKS: usize = 300;
    let mut bench = Bench::new("");
    // Replies come late, so that ends gather for the next call even if the machine is busy.
    let proxy = Proxy::start(bench.redis.port);
    proxy.delay_replies(20..21, 0);
    let queue = "[queues.work]\nplugin = \"echo\"\nconcurrency = 50\nevents = 1000\n";
    bench.configure_for(queue, proxy.port);
    bench.install("echo", "echo");
    let added: Vec<String> = (0..TASKS).map(|n| bench.xadd("work", &[("n", &n.to_string())])).collect();
    let host = bench.host();
    bench.until_drained("work");
    let entries: usize = bench.redis("XLEN", "tq:{work}:events");
    assert!(entries < TASKS, "{entries} entries tell of {TASKS} tasks");
    let path = "/v1/queues/work/events";
    let stream = |after: &str, count| -> Vec<Event> {
        Events::open(host.admin(), path, &[("last-event-id", after)]).take(count).collect()
    };
    let all = stream("0-0", TASKS + 1).split_off(1);
    let mut ids: Vec<String> = moves(&all).into_iter().map(|(id, _)| id).collect();
    let newest: Vec<String> = ids.iter().rev().cloned().collect();
    ids.sort();
    let mut sorted = added.clone();
    sorted.sort();
    assert_eq!(ids, sorted, "each task is told once");
    let inner = all.iter().position(|event| event.id.ends_with("/2")).expect("an entry with several tasks");
    assert_eq!(stream(&all[inner].id, 3), all[inner + 1..inner + 4]);

    let (mut listed, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = format!("/v1/queues/work/tasks?state=ended&limit=7{cursor}");
        let page = good(&ask(&host, "GET", &page), 200);
        let tasks = page["tasks"].as_array().expect("tasks");
        listed.extend(tasks.iter().map(|task| task["id"].as_str().expect("an id").to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(listed, newest);
    host.stop();
}

#[test]
fn the_host_tells_of_all_queues_and_of_plugins() {
    let mut bench = Bench::new(
        "[queues.a]\nplugin = \"echo\"\nevents = 10\n[queues.b]\nplugin = \"echo\"\nevents = 10\n",
    );
    bench.install("echo", "echo");
    let host = bench.host();
    host.until_ready();
    let mut events = Events::open(host.admin(), "/v1/events", &[("last-event-id", "1000")]);
    let loaded = events.next().expect("the plugin was loaded");
    assert_eq!(
        (loaded.kind.as_str(), &loaded.data["plugin"], &loaded.data["what"]),
        ("plugin", &json!("echo"), &json!("loaded"))
    );
    for queue in ["a", "b"] {
        let id = bench.xadd(queue, &[("n", "1")]);
        let event = events.next().expect("an event");
        assert_eq!(
            (&event.data["queue"], &event.data["id"], &event.data["status"]),
            (&json!(queue), &json!(id), &json!("COMPLETED"))
        );
        assert_eq!(event.id, event.data["at"].to_string());
    }
    bench.install("echo-v2", "echo");
    let change = events.next().expect("a change");
    assert_eq!((change.kind.as_str(), &change.data["what"]), ("plugin", &json!("loaded")));
    host.stop();
}

#[test]
fn a_client_that_goes_on_behind_an_event_of_the_host_misses_nothing() {
    let mut bench = Bench::new(
        "[queues.busy]\nplugin = \"missing\"\nevents = 1000\n\
         [queues.quiet]\nplugin = \"missing\"\nevents = 1000\n",
    );
    let mut add = |queue: &str, at: usize| -> String {
        let (key, id) = (format!("tq:{{{queue}}}:events"), format!("{queue}-{at}"));
        let entry = [format!("{at}-0"), "id".into(), id, "status".into(), "COMPLETED".into()];
        bench.redis("XADD", (key, &entry))
    };
    let busy: Vec<usize> = (0..100).map(|n| 10_000 + 100 * n).collect();
    busy.iter().for_each(|at| drop(add("busy", *at)));
    add("quiet", 30_000);
    let host = bench.host();
    let mut known = "5000".to_owned();
    let mut seen = BTreeSet::new();
    // Each client leaves after the event of the quiet queue, which is the newest of all.
    let mut clients = 0;
    while seen.len() < busy.len() + 1 {
        for event in Events::open(host.admin(), "/v1/events", &[("last-event-id", &known)]) {
            let id = event.data["id"].as_str().expect("an id").to_owned();
            let is_last = id == "quiet-30000";
            (known, _) = (event.id, seen.insert(id));
            if is_last {
                break;
            }
        }
        clients += 1;
        assert!(clients < 20, "{seen:?}");
    }
    assert!(clients > 1, "the first one has seen all of the busy queue");
    host.stop();
}

#[test]
fn a_client_that_goes_on_misses_nothing_of_a_queue_that_could_not_be_read() {
    let mut bench = Bench::new(
        "[queues.broken]\nplugin = \"missing\"\nevents = 10\n\
         [queues.good]\nplugin = \"missing\"\nevents = 10\n",
    );
    let host = bench.host();
    let note = |bench: &mut Bench, queue: &str, at: usize| -> String {
        let entry = [format!("{at}-0"), "id".into(), queue.into(), "status".into(), "COMPLETED".into()];
        bench.redis("XADD", (format!("tq:{{{queue}}}:events"), &entry))
    };
    let key = "tq:{broken}:events";
    let _: () = bench.redis("SET", (key, "of another type"));
    note(&mut bench, "good", 30_000);
    let stream = |known: &str| Events::open(host.admin(), "/v1/events", &[("last-event-id", known)]);
    let first = stream("5000").next().expect("the event of the good queue");
    assert_eq!(first.data["queue"], json!("good"));
    assert!(bench.redis::<bool>("DEL", key));
    note(&mut bench, "broken", 20_000);
    let mut again = stream(&first.id);
    let missed = again.next().expect("the event of the other queue");
    assert_eq!(missed.data["queue"], json!("broken"));
    let last = again.next().expect("an event");
    assert_eq!((&last.data["queue"], last.id.as_str()), (&json!("good"), "30000"), "all queues are read");
    host.stop();
}

#[test]
fn the_number_of_streams_is_bounded() {
    let bench = Bench::new("[queues.work]\nplugin = \"missing\"\nevents = 10\n");
    let host = bench.host();
    let open: Vec<Events> =
        (0..24).map(|_| Events::open(host.admin(), "/v1/queues/work/events", &[])).collect();
    assert!(open.iter().all(|events| events.status == 200));
    problem(&ask(&host, "GET", "/v1/events"), 503, "busy");
    assert_eq!(good(&ask(&host, "GET", "/v1/queues"), 200)["failed"], Value::Array(Vec::new()));
    let task = json!({ "fields": { "a": "1" } });
    good(&post(&host, "/v1/queues/work/tasks", &task), 202);
    drop(open);
    host.stop();
}

/// Adds events as hosts note them, and deletes all but the last one in the same moment.
fn add_events(bench: &mut Bench, ids: &[&str], and_trim: bool) {
    let mut pipe = redis::pipe();
    pipe.atomic();
    for id in ids {
        let event = ["id", id, "status", "COMPLETED", "attempt", "1"];
        pipe.cmd("XADD").arg("tq:{work}:events").arg("*").arg(&event).ignore();
    }
    if and_trim {
        pipe.cmd("XTRIM").arg("tq:{work}:events").arg("MAXLEN").arg(1).ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("add events");
}

#[test]
fn a_stream_that_misses_events_says_so() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\nevents = 10\n");
    let host = bench.host();
    let mut of_queue = Events::open(host.admin(), "/v1/queues/work/events", &[]);
    let mut of_host = Events::open(host.admin(), "/v1/events", &[("last-event-id", "1000")]);
    let next = |events: &mut Events| {
        let event = events.next().expect("an event");
        (event.kind, event.data)
    };
    let task = |kind: &str, data: &Value, id: &str| assert_eq!((kind, &data["id"]), ("task", &json!(id)));
    let steps = [(&["a", "b"][..], false), (&["c"], false), (&["d", "e", "f"], true), (&["g"], false)];
    for (ids, and_trim) in steps {
        add_events(&mut bench, ids, and_trim);
        for (events, about) in [(&mut of_queue, json!({})), (&mut of_host, json!({ "queue": "work" }))] {
            let left = if and_trim { &ids[ids.len() - 1..] } else { ids };
            if and_trim {
                assert_eq!(next(events), ("gap".to_owned(), about), "{ids:?}");
            }
            for id in left {
                let (kind, data) = next(events);
                task(&kind, &data, id);
            }
        }
    }
    // A client of the host that comes later has missed some, too, and is told once.
    let mut late = Events::open(host.admin(), "/v1/events", &[("last-event-id", "1000")]);
    assert_eq!(next(&mut late).0, "gap");
    for id in ["f", "g"] {
        let (kind, data) = next(&mut late);
        task(&kind, &data, id);
    }
    let mut late = Events::open(host.admin(), "/v1/queues/work/events", &[("last-event-id", "5-0")]);
    assert_eq!(next(&mut late).0, "gap");
    let (kind, data) = next(&mut late);
    task(&kind, &data, "f");
    host.stop();
}
