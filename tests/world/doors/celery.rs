//! `examples/6-celery`: tasks that Celery's client adds run in the application, and `AsyncResult` tells their
//! ends.

use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::super::support::{Bench, Host, eventually};
use super::{Program, System, folder};

const EXAMPLE: &str = include_str!("../../../examples/6-celery/tqhost.toml");

/// A command of a Python with Celery, the team's modules, and the client that checks webhooks.
fn python(program: &str) -> Command {
    let mut script = Command::new(folder("scripts/from-pypi.sh"));
    let tools = script.arg("celery").stdin(Stdio::null()).output().expect("run from-pypi.sh");
    assert!(tools.status.success(), "{}", String::from_utf8_lossy(&tools.stderr));
    let tools = String::from_utf8(tools.stdout).expect("UTF-8");
    let mut command = Command::new(format!("{}/python3", tools.trim_end()));
    let modules = [folder("examples/6-celery"), folder("clients/python")];
    let modules = std::env::join_paths(modules).expect("paths");
    command.arg("-B").arg(folder(program)).env("PYTHONPATH", modules);
    command
}

fn start(changes: &[(&str, &str)]) -> System {
    let programs = ["tests/world/doors/producer.py", "examples/6-celery/door.py"].map(python);
    System::start(EXAMPLE, programs, changes)
}

/// Adds a task, and returns its id.
fn add(producer: &mut Program, task: &str, args: Value, options: Value) -> String {
    let made = producer.call(&json!({ "task": task, "args": args, "options": options }));
    made["id"].as_str().expect("an id").to_owned()
}

/// Waits for the end of a task, and returns its status and its result as Celery's client tells them.
fn get(producer: &mut Program, id: &str) -> (String, Value) {
    let mut told = producer.call(&json!({ "get": id }));
    (told["status"].as_str().expect("a status").to_owned(), told["value"].take())
}

#[test]
fn tasks_of_celery_run_in_the_application_and_async_result_tells_their_ends() {
    let mut system = start(&[]);
    let host = system.host();
    let producer = &mut system.producer;
    let sum = add(producer, "shop.total", json!([[1, 2, 3]]), json!({ "kwargs": { "discount": 1 } }));
    assert_eq!(get(producer, &sum), ("SUCCESS".to_owned(), json!(5)));
    // Two attempts meet a bank that is away. The retries are those of the task's own code.
    let order = json!([{ "id": 7, "amount": 5, "fails": 1 }]);
    let paid = add(producer, "shop.charge", order, json!({}));
    assert_eq!(get(producer, &paid), ("SUCCESS".to_owned(), json!({ "order": 7, "paid": 5 })));
    let refused = add(producer, "shop.charge", json!([{ "id": 8, "amount": 0 }]), json!({}));
    let failed = json!({ "raised": "ValueError: order 8 has no amount" });
    assert_eq!(get(producer, &refused), ("FAILURE".to_owned(), failed));
    let unknown = add(producer, "shop.nothing", json!([]), json!({}));
    let failed = json!({ "raised": "RuntimeError: rejected: there is no task shop.nothing" });
    assert_eq!(get(producer, &unknown), ("FAILURE".to_owned(), failed));
    let chain = producer.call(&json!({ "chain": [["shop.total", [[1, 2]]], ["shop.charge", []]] }));
    let chained = chain["id"].as_str().expect("an id").to_owned();
    assert_eq!(get(producer, &chained).0, "FAILURE", "3 is no order: the result was passed on");
    // The ids are one: tqhost tells of the same tasks.
    assert_eq!(system.status("celery", &sum)["status"], "COMPLETED");
    assert_eq!(system.status("celery", &paid)["attempt"], 2);
    assert_eq!(system.status("celery", &refused)["status"], "FAILED");
    let key = format!("celery-task-meta-{sum}");
    let lives: i64 = system.bench.redis("TTL", &key);
    assert!((86_000..=86_400).contains(&lives), "{lives}");
    host.stop();
}

/// The key of Celery's list for a priority.
fn list(priority: u8) -> String {
    if priority == 0 { "celery".to_owned() } else { format!("celery\x06\x16{priority}") }
}

fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the time").as_millis()
}

/// The ids of tasks in the order in which they began, as their statuses tell it.
fn begun(bench: &mut Bench, ids: &[String]) -> Vec<String> {
    let mut times: Vec<(u64, String)> = ids
        .iter()
        .map(|id| (bench.status("celery:tasks", id, "started_at").parse().expect("a time"), id.clone()))
        .collect();
    times.sort();
    times.into_iter().map(|(_, id)| id).collect()
}

#[test]
fn urgent_tasks_of_celery_overtake_others_and_later_ones_wait() {
    let mut system = start(&[("max_retries = 100", "max_retries = 100\nconcurrency = 1")]);
    // Far more than hosts take ahead.
    let low: Vec<String> = (0..100)
        .map(|_| add(&mut system.producer, "shop.total", json!([[1]]), json!({ "priority": 9 })))
        .collect();
    let due = now_ms() + 15_000;
    let later = add(&mut system.producer, "shop.total", json!([[1]]), json!({ "countdown": 15 }));
    assert_eq!(system.bench.redis::<u64>("LLEN", list(9)), 100);
    let hosts = [system.host(), system.host()];
    eventually("the last one is delayed", || {
        (system.bench.places("celery:tasks").delayed == 1).then_some(())
    });
    let priorities = [6, 3, 0].map(|priority| json!({ "priority": priority }));
    let urgent = priorities.map(|options| add(&mut system.producer, "shop.total", json!([[1]]), options));
    assert_eq!(system.status("celery", &later)["status"], "PENDING");
    for id in low.iter().chain(&urgent) {
        assert_eq!(get(&mut system.producer, id).0, "SUCCESS");
    }
    let order = begun(&mut system.bench, &[&low[..], &urgent[..]].concat());
    let place = |id: &String| order.iter().position(|begun| begun == id).expect("it ran");
    assert!(place(&urgent[2]) < place(&low[99]), "{order:?}");
    assert_eq!(get(&mut system.producer, &later), ("SUCCESS".to_owned(), json!(1)));
    let began: u128 = system.bench.status("celery:tasks", &later, "started_at").parse().expect("a time");
    assert!(began >= due, "it waited: {due}, {began}");
    assert_eq!(system.status("celery", &later)["attempt"], 1);
    Host::stop_all(hosts);
}

#[test]
fn tasks_of_celery_that_expire_or_cannot_be_read_never_run() {
    let mut system = start(&[]);
    let late = add(&mut system.producer, "shop.total", json!([[1]]), json!({ "expires": 0.2 }));
    std::thread::sleep(Duration::from_millis(400));
    let kept = add(&mut system.producer, "shop.total", json!([[1]]), json!({ "expires": 600 }));
    let whole: String = system.bench.redis("LINDEX", ("celery", 0));
    let cancelled = add(&mut system.producer, "shop.total", json!([[1]]), json!({}));
    system.bench.tqhost(&["cancel", "celery", &cancelled]).ok();
    let bad = [
        "{".to_owned(),
        "{\"body\": \"W10=\"}".to_owned(),
        whole.replace(&kept, "soon").replace("\"eta\": null", "\"eta\": \"soon\""),
    ];
    for item in &bad {
        let _: u64 = system.bench.redis("LPUSH", ("celery", item));
    }
    let host = system.host();
    assert_eq!(get(&mut system.producer, &kept), ("SUCCESS".to_owned(), json!(1)));
    let (status, value) = get(&mut system.producer, &late);
    assert_eq!(status, "REVOKED", "{value}");
    assert_eq!(get(&mut system.producer, &cancelled).0, "REVOKED");
    eventually("they are dead", || (system.bench.places("celery:tasks").dead == 4).then_some(()));
    let mut reasons: Vec<String> =
        system.bench.dead("celery:tasks").iter().map(|dead| dead["tq-reason"].clone()).collect();
    reasons.sort();
    assert_eq!(reasons, ["expired", "malformed", "malformed", "malformed"]);
    host.stop();
}

/// The kinds of all findings of `adopt`, with their counts.
fn found(ran: &Value) -> Vec<(String, u64)> {
    let found = ran["found"].as_array().expect("a list").iter();
    let of = |item: &Value| {
        (item["kind"].as_str().expect("a kind").to_owned(), item["count"].as_u64().expect("a count"))
    };
    found.map(of).collect()
}

#[test]
fn messages_that_stopped_workers_had_taken_come_back_as_they_were() {
    let mut system = start(&[]);
    let options = [json!({}), json!({ "priority": 3 }), json!({ "countdown": 3600 }), json!({})];
    let ids = options.map(|options| add(&mut system.producer, "shop.total", json!([[1]]), options));
    let items = |bench: &mut Bench| {
        let mut items: Vec<Value> = Vec::new();
        for priority in [0, 3, 6, 9] {
            let some: Vec<String> = bench.redis("LRANGE", (list(priority), 0, -1));
            items.extend(some.iter().map(|item| serde_json::from_str(item).expect("JSON")));
        }
        items.sort_by_key(|item: &Value| item["headers"]["id"].to_string());
        items
    };
    let before = items(&mut system.bench);
    // Another queue's message is none of this queue's.
    let _: u64 = system.bench.redis("HSET", ("unacked", "other", "[{}, \"\", \"mail\"]"));
    assert_eq!(system.producer.call(&json!({ "take": 2 })), json!({ "taken": true }));
    assert_eq!(system.bench.redis::<u64>("HLEN", "unacked"), 3);
    let plan = system.bench.tqhost(&["adopt", "celery", "--json"]).ok().json();
    assert_eq!(found(&plan)[..2], [("list-items".to_owned(), 2), ("unacked".to_owned(), 2)], "{plan}");
    let refused = system.bench.tqhost(&["adopt", "celery", "--yes", "--json"]).ends_with(1).json();
    assert_eq!(refused["acted"], false, "a worker that took a message just now may live");
    let done = system.bench.tqhost(&["adopt", "celery", "--yes", "--stopped", "--json"]).ok().json();
    assert_eq!(found(&done)[1], ("unacked".to_owned(), 2), "{done}");
    assert_eq!(system.bench.redis::<Vec<String>>("HKEYS", "unacked"), ["other"]);
    assert_eq!(system.bench.redis::<u64>("ZCARD", "unacked_index"), 0);
    assert_eq!(items(&mut system.bench), before);
    // A host takes them, and gives them back before they ran.
    system.bench.tqhost(&["pause", "celery"]).ok();
    let host = system.host();
    eventually("they are moved", || items(&mut system.bench).is_empty().then_some(()));
    host.stop();
    let out = ["adopt", "celery", "--out", "--yes", "--stopped", "--json"];
    system.bench.tqhost(&out).ok();
    assert_eq!(items(&mut system.bench), before);
    system.bench.tqhost(&["resume", "celery"]).ok();
    let host = system.host();
    for id in [&ids[0], &ids[1], &ids[3]] {
        assert_eq!(get(&mut system.producer, id).0, "SUCCESS");
    }
    eventually("the last one waits", || (system.bench.places("celery:tasks").delayed == 1).then_some(()));
    host.stop();
    system.bench.tqhost(&[&out[..], &["--early"]].concat()).ok();
    let left = items(&mut system.bench);
    assert_eq!(left, before.into_iter().filter(|item| item["headers"]["id"] == ids[2]).collect::<Vec<_>>());
}
