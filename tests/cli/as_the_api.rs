//! The command line does what the HTTP API does: fields in lists, several ids, the minutes of a queue. With
//! `--dry-run` a command changes nothing.
//!
//! Not here: masks of the API (`api::mask`), what a cancel, a retry and a pause do (`queue`, `retry`), the
//! counts of minutes (`queue::history`), orders about plugins (`plugins::orders`).

use serde_json::{Value, json};

use crate::support::{Bench, Host, eventually};

/// The value of a field that is masked.
const EMAIL: &str = "ada@lovelace.example";

/// The JSON answer of a command.
#[track_caller]
fn ask(bench: &Bench, args: &[&str]) -> Value {
    bench.tqhost(&[args, &["--json"]].concat()).ok().json()
}

/// How many items a list has.
fn count(list: &Value) -> Option<usize> {
    list.as_array().map(Vec::len)
}

/// The lines with fields, sorted.
fn fields(text: &str) -> Vec<&str> {
    let mut fields: Vec<&str> = text.lines().filter(|line| line.starts_with("  ")).collect();
    fields.sort_unstable();
    fields
}

#[test]
fn lists_show_the_fields_of_tasks_without_those_that_are_masked() {
    let mut bench = Bench::new("");
    let url = bench.redis.url();
    bench.configure(&format!(
        "[queues.waits]\nplugin = \"missing\"\n[queues.bad]\nplugin = \"rejects\"\n\
         [redis]\nurl = \"{url}\"\n[admin]\nlisten = \"127.0.0.1:0\"\nmask = [\"email\"]\n"
    ));
    bench.install("rejects", "rejects");
    let host = bench.host();
    for order in ["1", "2"] {
        bench.xadd("waits", &[("order", order), ("email", EMAIL)]);
    }
    let dead = bench.xadd("bad", &[("order", "3"), ("email", EMAIL)]);
    bench.until("bad", &dead, "FAILED");

    let list = ask(&bench, &["tasks", "waits", "--fields"]);
    assert_eq!(list, host.get("/v1/queues/waits/tasks?state=queued&fields=true").json());
    assert_eq!(list["tasks"][0]["fields"][1], json!({ "name": "email", "value": "[masked]" }));
    let text = bench.tqhost(&["tasks", "waits", "--fields"]).ok().stdout;
    assert_eq!(fields(&text), ["  email=[masked]", "  email=[masked]", "  order=1", "  order=2"], "{text}");
    assert_eq!(text.lines().count(), 7, "{text}");
    let plain = bench.tqhost(&["tasks", "waits"]).ok().stdout;
    assert_eq!((plain.lines().count(), fields(&plain)), (3, vec![]), "{plain}");
    assert!(ask(&bench, &["tasks", "waits"])["tasks"][0]["fields"].is_null());

    let list = ask(&bench, &["dead", "list", "bad", "--fields"]);
    assert_eq!(list["dead"], host.get("/v1/queues/bad/dead?fields=true").json()["dead"]);
    for args in [&["dead", "list", "bad", "--fields"][..], &["tasks", "bad", "--state", "dead", "--fields"]] {
        let text = bench.tqhost(args).ok().stdout;
        assert_eq!(fields(&text), ["  email=[masked]", "  order=3"], "{args:?}: {text}");
    }
    let refused = bench.tqhost(&["dead", "list", "bad", "--by", "error", "--fields"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    host.stop();
}

#[test]
fn a_list_with_large_fields_ends_with_a_cursor() {
    let mut bench = Bench::new("[queues.waits]\nplugin = \"missing\"\n");
    let host = bench.host();
    let large = "x".repeat(3 << 20);
    for _ in 0..4 {
        bench.xadd("waits", &[("text", &large)]);
    }
    let list = ask(&bench, &["tasks", "waits", "--fields"]);
    let next = list["next"].as_str().expect("a cursor");
    assert_eq!(count(&list["tasks"]), Some(3), "8 MiB and what goes beyond them");
    let rest = ask(&bench, &["tasks", "waits", "--fields", "--cursor", next]);
    assert_eq!((count(&rest["tasks"]), &rest["next"]), (Some(1), &Value::Null));
    let text = bench.tqhost(&["tasks", "waits", "--fields"]).ok().stdout;
    insta::assert_snapshot!(
        text.lines().last().unwrap_or_default().replace(next, "CURSOR"),
        @"There are more; --cursor CURSOR goes on."
    );
    assert_eq!(count(&ask(&bench, &["tasks", "waits"])["tasks"]), Some(4));
    host.stop();
}

/// A host, a task that has completed, and two that are delayed. Their aliases are 1, 2 and 3.
fn three() -> (Bench, Host, [String; 3]) {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\nid = { field = \"order\" }\n");
    bench.install("echo", "echo");
    let host = bench.host();
    let add = |bench: &Bench, order: &str, more: &[&str]| {
        let field = format!("order={order}");
        let task = ask(bench, &[&["enqueue", "work", &field], more].concat());
        task["id"].as_str().expect("an id").to_owned()
    };
    let done = add(&bench, "1", &[]);
    bench.until("work", &done, "COMPLETED");
    let [second, third] = ["2", "3"].map(|order| add(&bench, order, &["--delay", "2h"]));
    assert_eq!(bench.places("work").delayed, 2);
    (bench, host, [done, second, third])
}

#[test]
fn several_tasks_are_cancelled_and_the_others_are_named() {
    let (mut bench, host, [done, second, third]) = three();
    let ids = ["cancel", "work", &second, "3", &done, "nobody"];
    let dry = bench.tqhost(&[&ids[..], &["--dry-run"]].concat()).ends_with(1);
    let named = |text: &str| text.replace(&done, "1").replace(&second, "2").replace(&third, "3");
    insta::assert_snapshot!(named(&dry.stdout), @"
    2 would be cancelled; it is PENDING
    3 would be cancelled; it is PENDING
    2 tasks would be cancelled, of 4 ids
    ");
    insta::assert_snapshot!(named(&dry.stderr), @"
    tqhost: task \"1\" cannot be cancelled: it is COMPLETED already
    tqhost: queue work knows no task \"nobody\": it was never there, it ended more than 1d ago (the \
        queue's retention), or it lies behind the 5,000 entries or 64 MiB that a search reads
    ");
    let view = bench.tqhost(&[&ids[..], &["--dry-run", "--json"]].concat()).json();
    let task = |id: &str| json!({ "id": id, "before": "PENDING", "status": "CANCELLED" });
    assert_eq!((&view["tasks"], &view["dry_run"]), (&json!([task(&second), task(&third)]), &json!(true)));
    assert_eq!(bench.places("work").delayed, 2, "a look changes nothing");

    let real = bench.tqhost(&ids).ends_with(1);
    insta::assert_snapshot!(real.stdout, @"2 tasks cancelled");
    assert_eq!(real.stderr, dry.stderr);
    for id in [&second, &third] {
        bench.until("work", id, "CANCELLED");
    }
    // The second time changes nothing, and is no failure.
    let again = bench.tqhost(&["cancel", "work", &second, &third]).ok();
    insta::assert_snapshot!(again.stdout, @"0 tasks cancelled; 2 had been cancelled before");
    let view = bench.tqhost(&["cancel", "work", &second, &done, "--json"]);
    assert_eq!(view.code, 1, "{view:?}");
    let view = view.json();
    let known = json!({ "id": second, "before": "CANCELLED", "status": "CANCELLED", "children": 0 });
    assert_eq!(view["tasks"], json!([known]));
    let refused = &view["refused"][0];
    assert_eq!((&refused["id"], &refused["code"]), (&json!(done), &json!("task-ended")), "{view}");
    bench.tqhost(&["doctor", "work"]).ok();
    host.stop();
}

#[test]
fn one_task_is_looked_at_before_it_is_cancelled() {
    let (mut bench, host, [done, second, _]) = three();
    let dry = bench.tqhost(&["cancel", "work", "2", "--dry-run"]).ok();
    insta::assert_snapshot!(dry.stdout.replace(&second, "2"), @"2 would be cancelled; it is PENDING");
    assert_eq!(
        ask(&bench, &["cancel", "work", "2", "--dry-run"]),
        json!({ "id": second, "before": "PENDING", "status": "CANCELLED", "dry_run": true })
    );
    // A look fails as the cancel does.
    for id in [done.as_str(), "nobody"] {
        let (real, dry) =
            (bench.tqhost(&["cancel", "work", id]), bench.tqhost(&["cancel", "work", id, "--dry-run"]));
        assert_eq!((real.code, dry.code, &real.stderr), (1, 1, &dry.stderr), "{id}");
    }
    assert_eq!(bench.places("work").delayed, 2);
    let real = bench.tqhost(&["cancel", "work", "2"]).ok();
    insta::assert_snapshot!(real.stdout.replace(&second, "2"), @"2 is cancelled; it was PENDING");
    let many: Vec<String> = (0..1_001).map(|n| n.to_string()).collect();
    let args: Vec<&str> = ["cancel", "work"].into_iter().chain(many.iter().map(String::as_str)).collect();
    let refused = bench.tqhost(&args);
    insta::assert_snapshot!(
        refused.ends_with(2).stderr,
        @"tqhost: 1001 ids are too many for one command: it takes 1000"
    );
    host.stop();
}

#[test]
fn a_retry_that_only_looks_lets_nothing_run() {
    let (mut bench, host, [done, second, third]) = three();
    let ids = ["retry", "work", "2", &third, &done];
    let dry = bench.tqhost(&[&ids[..], &["--dry-run"]].concat()).ends_with(1);
    // The minutes and seconds are left out.
    let told: Vec<&str> =
        dry.stdout.lines().filter_map(|line| Some(line.rsplit_once(" in 1h ")?.0)).collect();
    insta::assert_snapshot!(told.join("\n").replace(&second, "2").replace(&third, "3"), @"
    2 would run now, as attempt 1; it is due
    3 would run now, as attempt 1; it is due
    ");
    let mut looked = bench.tqhost(&[&ids[..], &["--dry-run", "--json"]].concat()).json();
    assert_eq!(bench.places("work").delayed, 2, "a look changes nothing");
    assert_eq!(looked.as_object_mut().and_then(|looked| looked.remove("dry_run")), Some(json!(true)));
    // The answer is that of the command itself.
    let real = bench.tqhost(&[&ids[..], &["--json"]].concat());
    assert_eq!((real.code, real.json()), (1, looked));
    for id in [&second, &third] {
        bench.until("work", id, "COMPLETED");
    }
    host.stop();
}

#[test]
fn tasks_are_checked_without_redis() {
    let mut bench = Bench::new("[queues.work]\n");
    let write = |name: &str, text: &str| {
        let path = bench.dir.path().join(name);
        std::fs::write(&path, text).expect("write a file");
        path.to_str().expect("UTF-8").to_owned()
    };
    let good = write("good.jsonl", "{\"a\": 1}\n\n{\"a\": 2}\n");
    let bad = write("bad.jsonl", "{\"a\": 1}\nno JSON\n");
    bench.redis.stop();
    let ran = bench.tqhost(&["enqueue", "work", "--jsonl", &good, "--dry-run"]).ok();
    insta::assert_snapshot!(ran.stdout, @"2 tasks would be enqueued in work");
    let view = ask(&bench, &["enqueue", "work", "--jsonl", &good, "--dry-run"]);
    assert_eq!(view, json!({ "queue": "work", "tasks": 2, "dry_run": true }));
    let refused = bench.tqhost(&["enqueue", "work", "--jsonl", &bad, "--dry-run"]);
    assert!(refused.code == 1 && refused.stderr.contains("bad.jsonl line 2"), "{refused:?}");
    // One task is checked in the same way.
    let one = ["enqueue", "work", "a=1", "b=2", "--delay", "10s", "--dry-run"];
    insta::assert_snapshot!(bench.tqhost(&one).ok().stdout, @"1 task would be enqueued in work");
    assert_eq!(ask(&bench, &one), json!({ "queue": "work", "tasks": 1, "dry_run": true }));
    for (field, why) in [("a", "name=value"), ("a=@nowhere", "nowhere")] {
        let (dry, real) = (
            bench.tqhost(&["enqueue", "work", field, "--dry-run"]),
            bench.tqhost(&["enqueue", "work", field]),
        );
        assert!(dry.code != 0 && dry.stderr.contains(why), "{field}: {dry:?}");
        assert_eq!((dry.code, &dry.stderr), (real.code, &real.stderr), "{field}");
    }
}

#[test]
fn a_pause_and_a_resume_that_only_look_change_nothing() {
    let mut bench = Bench::new("[queues.work]\nhold = { after = 5, for = \"1h\" }\n");
    let look = |bench: &Bench, command: &str| bench.tqhost(&[command, "work", "--dry-run"]).ok().stdout;
    insta::assert_snapshot!(look(&bench, "pause") + &look(&bench, "resume"), @"
    work would be paused in all hosts; what runs would go on
    work is neither paused nor on hold
    ");
    let view = ask(&bench, &["pause", "work", "--dry-run"]);
    assert_eq!(view, json!({ "queue": "work", "paused": true, "changed": true, "dry_run": true }));
    assert_eq!(bench.redis::<Vec<String>>("KEYS", "*"), Vec::<String>::new(), "a look writes nothing");

    bench.tqhost(&["pause", "work"]).ok();
    insta::assert_snapshot!(look(&bench, "pause") + &look(&bench, "resume"), @"
    work is paused already
    work would go on
    ");
    let view = ask(&bench, &["resume", "work", "--dry-run"]);
    assert_eq!(view, json!({ "queue": "work", "paused": false, "changed": true, "dry_run": true }));
    assert_eq!(bench.redis::<u64>("EXISTS", "tq:{work}:paused"), 1, "a look ends no pause");
    bench.tqhost(&["resume", "work"]).ok();

    // A resume ends a hold, too, and a pause may stand beside it.
    let held = json!({ "since": 1, "last": 1, "cause": "503" }).to_string();
    let _: () = bench.redis("SET", ("tq:{work}:hold", held));
    insta::assert_snapshot!(look(&bench, "pause") + &look(&bench, "resume"), @"
    work would be paused in all hosts; what runs would go on
    work would go on
    ");
    assert_eq!(bench.redis::<u64>("EXISTS", "tq:{work}:hold"), 1, "a look ends no hold");
}

#[test]
fn the_minutes_of_a_queue_are_those_of_the_api() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    bench.install("echo", "echo");
    let nothing = bench.tqhost(&["queues", "work", "--history"]).ok();
    insta::assert_snapshot!(nothing.stdout, @"Nothing happened to tasks of work in the last hour.");
    let host = bench.host();
    let ids: Vec<String> = (0..3).map(|_| bench.xadd("work", &[("a", "1")])).collect();
    for id in &ids {
        bench.until("work", id, "COMPLETED");
    }
    // A host writes what it has counted when it stops.
    host.stop();
    let host = bench.host();
    // A minute may end between the two.
    let view = eventually("both have the same minutes", || {
        let view = ask(&bench, &["queues", "work", "--history"]);
        (view == host.get("/v1/queues/work/history").json()).then_some(view)
    });
    assert_eq!(view["total"]["completed"], 3, "{view}");
    let text = bench.tqhost(&["queues", "work", "--history"]).ok().stdout;
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..5], ["TIME", "COMPLETED", "FAILED", "ERRORS", "WAIT"], "{text}");
    assert_eq!(lines[lines.len() - 1][..4], ["total", "3", "0", "0.0%"], "{text}");
    let unnamed = bench.tqhost(&["queues", "--history"]);
    assert_eq!(unnamed.code, 2, "{unnamed:?}");
    host.stop();
}
