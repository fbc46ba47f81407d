//! Effects that are refused: each with a clear error, and nothing is written.

use serde_json::{Value, json};

use super::{bench, done, error, told};
use crate::support::redis_server::denies;
use crate::support::words::masked;

#[test]
fn an_effect_without_a_grant_is_refused_with_the_way_out() {
    let mut bench = bench(
        "[queues.work]\nplugin = \"effects\"\nenqueue_to = [\"next\"]\n[queues.next]\nplugin = \"effects\"\n\
         [queues.third]\nplugin = \"effects\"\n[plugins.effects]\nrecords = [\"kb:*\", \"next\"]\n",
    );
    let host = bench.host();
    let task = |queue: &str| json!({ "queue": queue, "fields": { "do": "[]" } });
    let reserved = json!({ "queue": "next", "fields": { "tq-id": "x" } });
    let long = "k".repeat(513);
    let calls = json!([
        ["enqueue", task("third")], ["enqueue", task("nowhere")], ["enqueue", reserved],
        ["enqueue", { "queue": "next", "fields": {} }], ["put", "other", { "x": 1 }],
        ["record", "tq:{work}:delayed"], ["drop", "next"], ["set", long, "x", 0], ["set", "", "x", 0],
        ["add", "n", 1_000_000_000_000_000_000_i64]
    ]);
    let seen = done(&mut bench, "work", calls);
    for (n, why) in [
        "queue `third` is not in `enqueue_to` of queue `work`",
        "queue `nowhere` is not in `enqueue_to` of queue `work`",
        "names that start with `tq-` are reserved",
        "a task needs at least one field",
        "the key `other` is not granted: `records` of the plugin grants kb:*, next",
        "keys that begin with `tq:` are tqhost's own",
        "the key `next` is not granted: it belongs to a queue",
        "a key has 1 to 512 bytes, this one has 513",
        "a key has 1 to 512 bytes, this one has 0",
        "more than 18 digits",
    ]
    .into_iter()
    .enumerate()
    {
        assert!(error(&seen[n]).contains(why), "{n}: {}", seen[n]);
    }
    let keys: Vec<String> = bench.redis("KEYS", "*state*");
    assert_eq!(keys, Vec::<String>::new());
    assert_eq!(bench.places("next").length + bench.places("third").length, 0);
    host.stop();
}

#[test]
fn names_and_keys_with_a_secret_of_the_configuration_are_refused() {
    const SECRET: &str = "hunter2-of-the-effects";
    let mut bench = bench(
        "[queues.work]\nplugin = \"effects\"\nenqueue_to = [\"next\"]\n[queues.next]\nplugin = \"effects\"\n\
         [plugins.effects]\nrecords = [\"kb:*\"]\nconfig = { key = { env = \"TEST_KEY\" } }\n",
    );
    let host = bench.host_with_env(vec![("TEST_KEY".into(), SECRET.into())]);
    let (key, record) = (format!("of-{SECRET}"), format!("kb:{SECRET}"));
    let plain = json!({ "queue": "next", "fields": { "do": "[]" } });
    let named = json!({ "queue": "next", "fields": { (key.clone()): "1" } });
    let keyed = json!({ "queue": "next", "fields": { "do": "[]" }, "key": key });
    let calls = json!([
        ["set", key, "x", 0], ["get", key], ["delete", key], ["add", key, 1],
        ["put", record, { "x": 1 }], ["record", record], ["drop", record], ["expire", record, 1000],
        ["put", "kb:1", { (key.clone()): 1 }], ["enqueue", named], ["enqueue", keyed],
        ["fan-out", [named], plain], ["fan-out", [keyed], plain], ["fan-out", [plain], keyed],
        ["set", "v", format!("it is {SECRET}"), 0], ["put", "kb:2", { "x": SECRET }]
    ]);
    let seen = done(&mut bench, "work", calls);
    let told: Vec<&str> = (0..14).map(|n| error(&seen[n])).collect();
    insta::assert_snapshot!(told.join("\n"), @r#"
    TooLarge("the key holds a secret of the configuration")
    TooLarge("the key holds a secret of the configuration")
    TooLarge("the key holds a secret of the configuration")
    TooLarge("the key holds a secret of the configuration")
    NotPermitted("the key holds a secret of the configuration")
    NotPermitted("the key holds a secret of the configuration")
    NotPermitted("the key holds a secret of the configuration")
    NotPermitted("the key holds a secret of the configuration")
    NotPermitted("the name of a field holds a secret of the configuration")
    NotPermitted("the name of a field holds a secret of the configuration")
    NotPermitted("the idempotency key holds a secret of the configuration")
    NotPermitted("the name of a field holds a secret of the configuration")
    NotPermitted("the idempotency key holds a secret of the configuration")
    NotPermitted("the idempotency key holds a secret of the configuration")
    "#);
    assert_eq!((&seen[14], &seen[15]), (&json!(null), &json!(null)), "values are masked instead");
    assert_eq!(bench.redis::<String>("GET", "tq:{work}:state:effects:v"), "it is [secret]");
    assert_eq!(bench.redis::<String>("HGET", ("kb:2", "x")), "[secret]");
    let keys = ["*hunter2*", "kb:1", "tq:{next}:task:*"].map(|like| bench.redis::<Vec<String>>("KEYS", like));
    assert!(keys.iter().all(Vec::is_empty), "{keys:?}");
    host.stop();
}

#[test]
fn a_strict_order_takes_no_delayed_task_of_a_handler() {
    let mut bench = bench(
        "[queues.work]\nplugin = \"effects\"\nenqueue_to = [\"line\"]\n\
         [queues.line]\nplugin = \"effects\"\nmax_running = 1\norder = \"strict\"\n",
    );
    let host = bench.host();
    let task = |delay: u64| json!({ "queue": "line", "fields": { "do": "[]" }, "delay": delay });
    let seen = done(&mut bench, "work", json!([["enqueue", task(5000)], ["enqueue", task(0)]]));
    insta::assert_snapshot!(error(&seen[0]), @r#"
    NotPermitted("queue `line` runs its tasks in a strict order, and takes none with a delay")
    "#);
    bench.until("line", seen[1].as_str().expect("an id"), "COMPLETED");
    let known: Vec<String> = bench.redis("KEYS", "tq:{line}:task:*");
    assert_eq!((known.len(), bench.places("line").delayed), (1, 0), "nothing else came");
    host.stop();
}

#[test]
fn too_many_and_too_large_effects_are_refused() {
    let mut bench = bench("[queues.work]\nplugin = \"effects\"\n");
    let host = bench.host();
    let many: Vec<_> = (0..1001).map(|n| json!(["set", n.to_string(), "x", 0])).collect();
    let seen = done(&mut bench, "work", json!(many));
    assert_eq!(seen[999], json!(null));
    insta::assert_snapshot!(error(&seen[1000]), @"
    TooLarge(\"a task has at most 1000 effects: tasks, values and records; divide the work among several \
    tasks, as a flow does\")
    ");
    assert_eq!(bench.redis::<String>("GET", "tq:{work}:state:effects:999"), "x");
    assert_eq!(bench.redis::<u64>("EXISTS", "tq:{work}:state:effects:1000"), 0);
    let large = "x".repeat(1 << 20);
    let calls: Vec<_> = (0..8).map(|n| json!(["set", format!("large{n}"), large, 0])).collect();
    let seen = done(&mut bench, "work", json!(calls));
    assert_eq!(seen[6], json!(null));
    insta::assert_snapshot!(error(&seen[7]), @"
    TooLarge(\"the effects of a task have at most 8388608 bytes, with 400 for each effect and each field, \
    these have 8391856; divide the work among several tasks, as a flow does\")
    ");
    host.stop();
}

/// As many fields as a record or a task may have. They have few bytes.
fn many_fields() -> Value {
    Value::Object((0..1000).map(|n| (n.to_string(), json!(""))).collect())
}

/// Calls that write such fields into each of some records.
fn puts(prefix: &str, records: usize) -> Vec<Value> {
    (0..records).map(|n| json!(["put", format!("{prefix}:{n}"), many_fields()])).collect()
}

#[test]
fn too_many_fields_are_refused_at_the_call_and_what_fits_is_committed() {
    let mut bench = bench(
        "[queues.work]\nplugin = \"effects\"\nenqueue_to = [\"next\"]\n[queues.next]\nplugin = \"effects\"\n\
         [plugins.effects]\nrecords = [\"kb:*\"]\n",
    );
    let host = bench.host();
    // Each record counts 400 bytes for itself and for each field, so there is room for 20 of them.
    let mut calls = puts("kb", 21);
    calls.push(json!(["enqueue", { "queue": "next", "fields": many_fields() }]));
    calls.push(json!(["put", "kb:small", { "x": 1 }]));
    let seen = done(&mut bench, "work", json!(calls));
    insta::assert_snapshot!([error(&seen[20]), error(&seen[21])].join("\n"), @"
    TooLarge(\"the effects of a task have at most 8388608 bytes, with 400 for each effect and each field, \
    these have 8469185; divide the work among several tasks, as a flow does\")
    TooLarge(\"the effects of a task have at most 8388608 bytes, with 400 for each effect and each field, \
    these have 8469180; divide the work among several tasks, as a flow does\")
    ");
    assert_eq!((&seen[19], &seen[22]), (&json!(null), &json!(null)));
    let written = ["kb:0", "kb:19", "kb:20", "kb:small"].map(|key| bench.redis::<u64>("HLEN", key));
    assert_eq!((written, bench.places("next").length), ([1000, 1000, 0, 1], 0));
    host.stop();
}

#[test]
fn fields_of_effects_count_as_memory_of_the_plugin() {
    let mut bench = bench(
        "[queues.work]\nplugin = \"effects\"\nmax_retries = 0\n\
         [plugins.effects]\nrecords = [\"kb:*\"]\nmemory = \"8MiB\"\n",
    );
    let host = bench.host();
    // The guest itself needs the same memory when the calls are refused.
    let seen = done(&mut bench, "work", json!(puts("other", 20)));
    insta::assert_snapshot!(error(&seen[19]), @r#"
    NotPermitted("the key `other:19` is not granted: `records` of the plugin grants kb:*")
    "#);
    let id = told(&mut bench, "work", &json!(puts("kb", 20)));
    bench.until("work", &id, "FAILED");
    let why = bench.status("work", &id, "error");
    assert!(why.starts_with("out-of-memory: "), "{why}");
    assert_eq!(bench.redis::<u64>("EXISTS", "kb:0"), 0);
    host.stop();
}

#[test]
fn an_attempt_whose_record_redis_denies_fails_alone() {
    let queues = "[queues.work]\nplugin = \"effects\"\nmax_retries = 0\n\
                  [plugins.effects]\nrecords = [\"kb:*\", \"other:*\"]\n";
    let mut bench = bench(queues);
    let rules = bench.tqhost(&["check", "--acl", "--json"]).ok().json();
    assert_eq!(rules[0]["role"], "host");
    let rule = rules[0]["rule"].as_array().expect("a rule").iter().map(|word| word.as_str().expect("a word"));
    let rule: Vec<&str> = rule.filter(|word| *word != "~other:*").collect();
    let _: () = bench.redis("ACL", (&["SETUSER", "tqhost"][..], &rule, ">SECRET"));
    bench.configure_url(queues, &format!("redis://tqhost:SECRET@127.0.0.1:{}", bench.redis.port));
    // They wait, so that one call settles several of them.
    let calls =
        [json!([]), json!([["put", "kb:1", { "x": 1 }]]), json!([["put", "other:1", { "x": 1 }]]), json!([])];
    let ids = [0, 1, 2, 3].map(|n| told(&mut bench, "work", &calls[n]));
    let host = bench.host();
    for n in [0, 1, 3] {
        bench.until("work", &ids[n], "COMPLETED");
    }
    bench.until("work", &ids[2], "FAILED");
    let why = bench.status("work", &ids[2], "error");
    assert!(denies(&why), "{why}");
    let task = bench.tqhost(&["status", "work", &ids[2], "--json"]).ok().json();
    assert_eq!(
        (&task["attempts"][0]["outcome"], &task["attempts"][0]["error"]),
        (&json!("effects"), &json!(why))
    );
    assert_eq!(bench.redis::<u64>("EXISTS", "kb:1"), 1);
    assert_eq!(bench.redis::<u64>("EXISTS", "other:1"), 0);
    // The rule also allows the commands that the host asks for in advance.
    bench.tqhost(&["doctor", "work"]).ok();
    host.stop();
}

#[test]
fn a_queue_that_does_not_exist_is_a_problem_of_the_configuration() {
    let bench = bench("[queues.work]\nplugin = \"effects\"\nenqueue_to = [\"next\"]\n");
    let ran = bench.tqhost(&["check"]);
    assert_eq!(ran.code, 78, "{ran:?}");
    insta::assert_snapshot!(masked(&ran.stderr, &[(&bench.config().display().to_string(), "FILE")]), @r#"
    tqhost: FILE: 1 problem
      line 3: queues.work.enqueue_to: "next" is not a queue: add a table [queues.next], or take the name out
    "#);
}
