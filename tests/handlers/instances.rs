//! Instances for one task, and warm instances: what each of them remembers, and when it is discarded.
//!
//! The guest `remembers` counts its tasks in its memory.
//!
//! Not here: how places are shared, idle times and odd guests (unit tests of the sandbox).

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{Bench, Host, Web, eventually};

/// Rules of a queue whose tasks run one after the other, so that one instance can run them all.
const RULES: &str = "plugin = \"remembers\"\nconcurrency = 1\nmax_retries = 1\nbackoff = \"none\"";

fn config(grants: &str) -> String {
    format!("[queues.work]\n{RULES}\n[plugins.remembers]\nmemory = \"16MiB\"\n{grants}\n")
}

/// A bench with the queue `work` of the plugin `remembers`.
fn bench(grants: &str) -> Bench {
    let bench = Bench::new(&config(grants));
    bench.install("remembers", "remembers");
    bench
}

fn result(bench: &mut Bench, id: &str) -> Value {
    bench.until("work", id, "COMPLETED");
    serde_json::from_str(&bench.status("work", id, "result")).expect("a result in JSON")
}

/// Runs one task after the other, and returns how many tasks each one's instance has had.
#[track_caller]
fn tasks(bench: &mut Bench, count: usize) -> Vec<u64> {
    let mut tasks = || {
        let id = bench.xadd("work", &[("a", "1")]);
        result(bench, &id)["tasks"].as_u64().expect("a number")
    };
    (0..count).map(|_| tasks()).collect()
}

/// Runs one task that fails or does not end.
#[track_caller]
fn fails(bench: &mut Bench, fields: &[(&str, &str)]) -> String {
    let id = bench.xadd("work", fields);
    bench.until("work", &id, "FAILED");
    id
}

#[test]
fn an_instance_per_task_never_sees_anything_of_another_task() {
    for grants in ["", "instance = \"per-task\""] {
        let mut bench = bench(grants);
        let host = bench.host();
        let ids: Vec<String> = (0..10).map(|_| bench.xadd("work", &[("keep", "1000")])).collect();
        for id in &ids {
            assert_eq!(result(&mut bench, id), json!({ "tasks": 1, "kept": 1000 }));
        }
        host.stop();
    }
}

/// Runs tasks of two plugins in turn. Each task leaves what it can; returns what each of them saw.
fn looks_around(instance: &str) -> Vec<Value> {
    let queue = |name: &str| format!("[queues.{name}]\nconcurrency = 1\nmax_retries = 0\n");
    let grants = |name: &str, key: &str| {
        format!("[plugins.{name}]\nmemory = \"16MiB\"\nconfig = {{ {key} = \"small\" }}\n{instance}\n")
    };
    let text = [queue("first"), queue("second"), grants("first", "a"), grants("second", "b")].concat();
    let mut bench = Bench::new(&text);
    bench.install("looks-around", "first");
    bench.install("looks-around", "second");
    // The host's own environment is not visible to handlers.
    let host = bench.host_with_env(vec![("HOST_SECRET".to_owned(), "hunter2-888888 ".into())]);
    let mut seen = Vec::new();
    for n in 0..12 {
        let (queue, secret) = (["first", "second"][n % 2], (100_000 + n).to_string());
        let id = bench.xadd(queue, &[("secret", &secret)]);
        bench.until(queue, &id, "COMPLETED");
        seen.push(serde_json::from_str(&bench.status(queue, &id, "result")).expect("JSON"));
    }
    host.stop();
    seen
}

#[test]
fn nothing_of_another_task_is_found() {
    let seen = looks_around("");
    let mut drawn = BTreeSet::new();
    for (n, seen) in seen.iter().enumerate() {
        assert_eq!((&seen["grown"], &seen["kept"]), (&json!(true), &json!([100_000 + n])), "{seen}");
        // Memory of the pool that other tasks used is empty, and globals have their values from the file. A
        // task sees only its own plugin's configuration.
        assert_eq!(seen["found"], json!([]), "task {n}: {seen}");
        assert_eq!(
            (&seen["environment"], &seen["arguments"], &seen["folder"], &seen["stdin"]),
            (&json!([]), &json!([]), &Value::Null, &json!(0))
        );
        assert_eq!(seen["config"], json!([[if n % 2 == 0 { "a" } else { "b" }, "small"]]), "{seen}");
        for random in ["random", "seed"] {
            assert!(drawn.insert(seen[random].to_string()), "{random} comes twice: {seen}");
        }
    }
}

#[test]
fn a_kept_instance_finds_what_its_own_tasks_have_left_and_nothing_else() {
    let seen = looks_around("instance = { warm = 1, max_tasks = 2 }");
    for (n, seen) in seen.iter().enumerate() {
        // Each instance runs two tasks. The second of them finds what the first has left.
        let own = 100_000 + n;
        let (found, kept) = if n / 2 % 2 == 0 {
            (json!([]), json!([own]))
        } else {
            (json!([own - 2]), json!([own - 2, own]))
        };
        assert_eq!((&seen["found"], &seen["kept"]), (&found, &kept), "task {n}: {seen}");
        assert_eq!((&seen["environment"], &seen["stdin"]), (&json!([]), &json!(0)));
    }
    let seeds: BTreeSet<String> = seen.iter().map(|seen| seen["seed"].to_string()).collect();
    assert_eq!(seeds.len(), seen.len(), "each task draws its own");
}

#[test]
fn a_warm_instance_remembers_until_it_has_had_its_tasks() {
    let mut bench = bench("instance = { warm = 2, max_tasks = 4 }");
    let host = bench.host();
    let kept: Vec<Value> = (0..6)
        .map(|_| {
            let id = bench.xadd("work", &[("keep", "1000")]);
            result(&mut bench, &id)
        })
        .collect();
    let tasks: Vec<&Value> = kept.iter().map(|seen| &seen["tasks"]).collect();
    assert_eq!(tasks, [1, 2, 3, 4, 1, 2]);
    assert_eq!((&kept[3]["kept"], &kept[4]["kept"]), (&json!(4000), &json!(1000)));
    host.stop();
}

#[test]
fn a_trap_ends_a_warm_instance_and_what_the_handler_reports_does_not() {
    let mut bench = bench("instance = { warm = 1 }");
    let host = bench.host();
    assert_eq!(tasks(&mut bench, 2), [1, 2]);
    // The task has two attempts: the first in the instance that is there, the second in a fresh one.
    fails(&mut bench, &[("end", "trap")]);
    assert_eq!(tasks(&mut bench, 2), [1, 2]);
    // The first task has two attempts in one instance, and the second task has one.
    fails(&mut bench, &[("end", "retry")]);
    fails(&mut bench, &[("end", "reject")]);
    assert_eq!(tasks(&mut bench, 1), [6]);
    host.stop();
}

#[test]
fn attempts_at_once_have_an_instance_each() {
    let mut bench = Bench::new(
        "[queues.work]\nplugin = \"remembers\"\nconcurrency = 4\n[plugins.remembers]\n\
         instance = { warm = 2, max_tasks = 100 }\n",
    );
    bench.install("remembers", "remembers");
    let host = bench.host();
    for _ in 0..2 {
        let ids: Vec<String> = (0..4).map(|_| bench.xadd("work", &[("ms", "3000")])).collect();
        for id in &ids {
            bench.until("work", id, "PROCESSING");
        }
        let mut tasks: Vec<u64> =
            ids.iter().map(|id| result(&mut bench, id)["tasks"].as_u64().expect("a number")).collect();
        tasks.sort_unstable();
        // All four tasks run at once. Of the next four, at most two have a warm instance.
        assert!(tasks == [1, 1, 1, 1] || tasks == [1, 1, 2, 2], "{tasks:?}");
    }
    host.stop();
}

#[test]
fn the_lines_of_a_warm_instance_bear_the_task_that_it_has() {
    let mut bench = bench("instance = { warm = 1 }");
    let host = bench.host();
    let mut said = Vec::new();
    for n in 1..=5 {
        let id = bench.xadd("work", &[("a", "1")]);
        assert_eq!(result(&mut bench, &id)["tasks"], n);
        // The second text is written to a handle that the instance has from its first task.
        for text in [format!("logged by {id}"), format!("printed by {id}")] {
            let line = host.log(&text);
            assert_eq!(
                (line["task"].as_str(), line["plugin"].as_str(), line["queue"].as_str()),
                (Some(&*id), Some("remembers"), Some("work"))
            );
            said.push(text);
        }
    }
    let log = host.stop_for_log();
    for text in said {
        assert_eq!(log.logged(&text).len(), 1, "{text}");
    }
}

#[test]
fn memory_that_tasks_leave_is_the_failure_of_the_one_that_meets_the_limit() {
    let mut bench = bench("instance = { warm = 1 }");
    let host = bench.host();
    let leak = [("keep", "3000000")];
    // At most five leaks fit into 16 MiB, and the guest's own allocator decides when it asks for more.
    let (mut last, mut leaked) = (0, 0);
    for _ in 0..12 {
        let id = bench.xadd("work", &leak);
        let seen = result(&mut bench, &id);
        let tasks = seen["tasks"].as_u64().expect("a number");
        assert!((1..=5).contains(&tasks), "{seen}");
        leaked += u64::from(tasks <= last);
        assert!(tasks == last + 1 || tasks == 1, "{seen} after {last}");
        last = tasks;
    }
    assert!(leaked >= 2, "the limit was met");
    // Each time one attempt failed because of what earlier tasks had left, and the next attempt had a fresh
    // instance.
    assert_eq!(bench.places("work").dead, 0);
    let log = host.stop_for_log();
    let failed =
        log.logged("attempt ended").into_iter().filter(|line| line["outcome"] == "out-of-memory").count();
    assert_eq!(failed as u64, leaked, "{}", log.raw());
}

#[test]
fn a_task_that_is_cancelled_takes_its_instance_with_it() {
    let mut bench = bench("instance = { warm = 1 }");
    let host = bench.host();
    assert_eq!(tasks(&mut bench, 2), [1, 2]);
    let id = bench.xadd("work", &[("ms", "3600000")]);
    bench.until("work", &id, "PROCESSING");
    host.log(&format!("logged by {id}"));
    bench.tqhost(&["cancel", "work", &id]).ok();
    bench.until("work", &id, "CANCELLED");
    assert_eq!(tasks(&mut bench, 2), [1, 2]);
    host.stop();
}

#[test]
fn another_version_begins_with_instances_of_its_own() {
    let mut bench = bench("instance = { warm = 1 }");
    let host = bench.host();
    assert_eq!(tasks(&mut bench, 3), [1, 2, 3]);
    let first = bench.plugin_path("remembers");
    let mut bytes = std::fs::read(&first).expect("read the guest");
    // A custom section makes another version of the same code.
    bytes.extend([0, 3, 1, b'x', 1]);
    std::fs::write(first.with_extension("new"), bytes).expect("write");
    std::fs::rename(first.with_extension("new"), &first).expect("rename");
    eventually("the new version is loaded", || (host.logged("plugin loaded").len() == 2).then_some(()));
    assert_eq!(tasks(&mut bench, 3), [1, 2, 3]);
    host.stop();
}

#[test]
fn instance_can_be_changed_while_the_host_runs() {
    let mut bench = bench("instance = { warm = 1 }");
    let host = bench.host();
    let change = |bench: &Bench, host: &Host, grants: &str| {
        let before = host.logged("the configuration was read again").len();
        bench.configure_for(&config(grants), bench.redis.port);
        eventually("the configuration is taken", || {
            (host.logged("the configuration was read again").len() > before).then_some(())
        });
        eventually("the grants are taken", || {
            (host.logged("plugin has other grants").len() > before).then_some(())
        });
    };
    host.until_ready();
    assert_eq!(tasks(&mut bench, 2), [1, 2]);
    change(&bench, &host, "");
    assert_eq!(tasks(&mut bench, 3), [1, 1, 1]);
    change(&bench, &host, "instance = { warm = 8, max_tasks = 2 }");
    host.log("more instances may be kept than this host has room for");
    assert_eq!(tasks(&mut bench, 3), [1, 2, 1]);
    host.stop();
}

#[test]
fn requests_are_counted_for_each_task_of_a_warm_instance() {
    let web = Web::start();
    let mut bench = Bench::new(&format!(
        "[queues.work]\nplugin = \"fetches\"\nconcurrency = 1\nmax_retries = 0\n[plugins.fetches]\n\
         allowed_hosts = [\"{}\"]\n\
         http = {{ max_requests = 2 }}\ninstance = {{ warm = 1 }}\n",
        web.origin()
    ));
    bench.install("fetches", "fetches");
    let host = bench.host();
    let (good, denied) = (format!("{}/echo", web.origin()), "http://127.0.0.2:1/");
    for _ in 0..4 {
        let id = bench.xadd("work", &[("url", &good)]);
        assert_eq!(result(&mut bench, &id)["status"], 200);
        // The log names the task that made the refused request.
        let id = bench.xadd("work", &[("url", denied)]);
        assert_eq!(result(&mut bench, &id)["error"], "HttpRequestDenied");
        eventually("the refusal is logged", || {
            host.logged("is refused").iter().any(|line| line["task"] == id.as_str()).then_some(())
        });
    }
    eventually("all connections are closed", || (web.open().0 == 0).then_some(()));
    assert_eq!((web.requests(), host.stop_for_log().logged("is refused").len()), (4, 4));
}

#[test]
fn a_response_that_a_task_leaves_behind_keeps_no_connection_from_the_next_one() {
    let web = Web::start();
    let mut bench = Bench::new(&format!(
        "[queues.work]\nplugin = \"fetches\"\nconcurrency = 1\nmax_retries = 0\n[plugins.fetches]\n\
         allowed_hosts = [\"{}\"]\n\
         http = {{ max_connections = 2 }}\ninstance = {{ warm = 1 }}\n",
        web.origin()
    ));
    bench.install("fetches", "fetches");
    let host = bench.host();
    // Some responses are complete, and others never end.
    for (n, path) in ["/echo", "/stuck"].repeat(3).into_iter().enumerate() {
        let id = bench.xadd("work", &[("url", &format!("{}{path}", web.origin())), ("forget", "1")]);
        assert_eq!(
            result(&mut bench, &id),
            json!({ "status": 200, "forgotten": n + 1, "url": format!("{}{path}", web.origin()) })
        );
    }
    eventually("all connections are closed", || (web.open().0 == 0).then_some(()));
    host.stop();
}
