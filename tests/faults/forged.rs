//! A program with few rights in Redis tries to make a host act with the rights of a host. It writes names of
//! keys into the data of a queue, and fields that only hosts write.
//!
//! Not here: what each role may do at all (`least_rights`).

use redis::{Commands as _, Connection, ToRedisArgs};
use serde_json::{Value, json};

use crate::effects::{done, results};
use crate::support::{Bench, Held, Places, eventually};

/// The rights to the queue `work` that a program needs for `tqhost enqueue`.
const ENQUEUER: &str = "reset on >p ~items ~tq:hosts:told ~tq:{work}:alias:* ~tq:{work}:attempts:* \
     ~tq:{work}:delayed ~tq:{work}:key:* ~tq:{work}:parked ~tq:{work}:task:* ~work +evalsha +exists +get \
     +hdel +hget +hmget +hset +info +lpush +persist +pexpire +ping +pttl +script|load +set +time +type +xadd \
     +xlen +xpending +xrange +zadd +zcard +zremrangebyrank";

/// A connection of a program that may enqueue to `work`.
fn enqueuer(bench: &mut Bench) -> Connection {
    let words: Vec<&str> = ENQUEUER.split_whitespace().collect();
    let _: () = bench.redis("ACL", ("SETUSER", "enqueuer", words));
    let client = redis::Client::open(format!("redis://enqueuer:p@127.0.0.1:{}", bench.redis.port));
    client.and_then(|client| client.get_connection()).expect("a connection")
}

fn hset(forger: &mut Connection, key: &str, fields: &[(&str, impl ToRedisArgs)]) {
    let mut set = redis::cmd("HSET");
    set.arg(key);
    for (name, value) in fields {
        set.arg(name).arg(value);
    }
    set.exec(forger).expect("HSET");
}

/// Adds a task with this id to `work`.
fn add(forger: &mut Connection, id: &str) {
    redis::cmd("XADD").arg(&["work", "*", "n", "1", "tq-id", id]).exec(forger).expect("XADD");
}

/// A value as MessagePack.
fn packed(bench: &mut Bench, value: &Value) -> Vec<u8> {
    bench.redis("EVAL", ("return cmsgpack.pack(cjson.decode(ARGV[1]))", 0, value.to_string()))
}

/// The fields of the only delayed task of a queue.
fn parked(bench: &mut Bench, queue: &str) -> Value {
    const UNPACK: &str =
        "return cjson.encode(cmsgpack.unpack(redis.call('HVALS', KEYS[1])[1] or cmsgpack.pack({})))";
    let fields: String = bench.redis("EVAL", (UNPACK, 1, format!("tq:{{{queue}}}:parked")));
    serde_json::from_str(&fields).expect("JSON")
}

#[test]
fn a_staged_child_cannot_name_a_queue_or_a_key_that_its_writer_may_not_write_to() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\nlist = \"items\"\n[queues.admin]\n");
    bench.install("echo", "echo");
    let mut forger = enqueuer(&mut bench);
    let flow = "tq:{work}:task:zz";
    let child = json!({
        "queue": "admin", "stream": "admin", "delayed": "tq:{admin}:delayed", "parked": "tq:{admin}:parked",
        "status": "someones-hash", "marker": "someones-text", "id": "x", "delay": "0", "retention": "1000",
        "most": "100", "fields": ["n", "1", "tq-id", "x", "tq-flow", format!("0 {flow}")],
    });
    let child = packed(&mut bench, &child);
    let member = packed(&mut bench, &json!(["tq-joins", flow]));
    let of_flow = [("left", "1"), ("total", "1"), ("status", "PENDING")];
    hset(&mut forger, flow, &of_flow);
    let _: u64 = forger.lpush(format!("{flow}:children"), child).expect("LPUSH");
    let _: u64 = forger.hset("tq:{work}:parked", "flow/zz", member).expect("HSET");
    let _: u64 = forger.zadd("tq:{work}:delayed", "flow/zz", 0).expect("ZADD");
    let host = bench.host();
    eventually("the host looked at it", || (bench.places("work").delayed == 0).then_some(()));
    assert_eq!(bench.redis::<u64>("EXISTS", &["someones-hash", "someones-text"]), 0);
    assert_eq!(bench.places("admin"), Places::default());
    host.stop();
}

#[test]
fn a_status_cannot_name_a_key_that_its_writer_may_not_write_to() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\nlist = \"items\"\n[queues.admin]\n");
    bench.install("echo", "echo");
    let mut forger = enqueuer(&mut bench);
    bench.xadd("someones-stream", &[("n", "1")]);
    let _: u64 = bench.redis("HSET", ("someones-flow", "left", "1"));
    let _: () = bench.redis("SET", ("someones-text", "cancelled"));
    let status = |id: &str| format!("tq:{{work}}:task:{id}");
    let of_task = [("status", "PENDING"), ("attempts", "someones-stream"), ("joins", "someones-flow")];
    hset(&mut forger, &status("ended"), &of_task);
    hset(&mut forger, &status("cancelled"), &[("status", "PENDING"), ("marker", "someones-text")]);
    for id in ["ended", "cancelled"] {
        add(&mut forger, id);
    }
    bench.tqhost(&["cancel", "work", "cancelled"]).ok();
    let host = bench.host();
    bench.until("work", "ended", "COMPLETED");
    for key in ["someones-stream", "someones-flow", "someones-text"] {
        assert_eq!(bench.redis::<i64>("PTTL", key), -1, "{key}");
    }
    host.stop();
}

#[test]
fn the_end_of_a_lost_task_frees_no_key_that_its_writer_chose() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\nlist = \"items\"\n[queues.admin]\n");
    let mut forger = enqueuer(&mut bench);
    bench.host().stop();
    let _: () = bench.redis("SET", ("tq:{admin}:state:p:counter", "5"));
    let of_task = [("status", "PENDING"), ("entry", "1-1"), ("marker", "tq:{admin}:state:p:counter")];
    hset(&mut forger, "tq:{work}:task:5", &of_task);
    let found = bench.tqhost(&["doctor", "work", "--fix", "--json"]).ok().json();
    assert_eq!(found["findings"][0]["kind"], "lost-task", "{found:#}");
    bench.until("work", "5", "FAILED");
    assert_eq!(bench.redis::<i64>("PTTL", "tq:{admin}:state:p:counter"), -1);
}

#[test]
fn a_producer_that_knows_an_id_cannot_run_in_its_place() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    bench.install("echo", "echo");
    let added = bench.tqhost(&["enqueue", "work", "n=good", "--delay", "1h", "--json"]).ok().json();
    let id = added["id"].as_str().expect("an id").to_owned();
    bench.xadd("work", &[("n", "evil"), ("tq-id", &id), ("tq-enqueued-at", "1")]);
    let host = bench.host();
    eventually("the forged entry is gone", || (bench.places("work").length == 0).then_some(()));
    assert_eq!((bench.status("work", &id, "status"), bench.places("work").delayed), ("PENDING".into(), 1));
    host.stop();
}

#[test]
fn a_child_cannot_end_in_a_flow_that_its_writer_made_up() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\nlist = \"items\"\n[queues.admin]\n");
    bench.install("echo", "echo");
    let mut forger = enqueuer(&mut bench);
    let flow = "tq:{work}:task:made-up";
    let fields = packed(&mut bench, &json!(["n", "1", "tq-id", "x"]));
    let of_flow = [
        ("left", "1"),
        ("total", "1"),
        ("stream", "admin"),
        ("delayed", "tq:{admin}:delayed"),
        ("parked", "tq:{admin}:parked"),
        ("dead", "tq:{admin}:dead"),
        ("status", "someones-hash"),
        ("marker", "someones-text"),
        ("group", "tqhost"),
        ("id", "x"),
        ("delay", "0"),
        ("retention", "1000"),
    ];
    hset(&mut forger, flow, &of_flow);
    hset(&mut forger, flow, &[("fields", fields)]);
    let _: u64 = forger.hset(format!("{flow}:results"), "0", "PENDING work child").expect("HSET");
    let of_child = [("status", "PENDING"), ("flow", &format!("0 {flow}"))];
    hset(&mut forger, "tq:{work}:task:child", &of_child);
    add(&mut forger, "child");
    let host = bench.host();
    eventually("it ends", || (bench.places("work").length == 0).then_some(()));
    host.log("its flow or the next task of its key was not told");
    let unfinished = bench.status("work", "child", "unfinished");
    insta::assert_snapshot!(unfinished, @"
    TQFLOW tq:{work}:task:made-up is no flow of a queue that this configuration has: a host that runs \
    children needs the queue that joins them, and the one that starts them
    ");
    assert_eq!(bench.redis::<u64>("EXISTS", &["someones-hash", "someones-text"]), 0);
    assert_eq!(bench.places("admin"), Places::default());
    host.stop();
}

/// The fields of the next entry tell what the host believed, after a task has failed for the first time.
#[test]
fn a_producer_cannot_write_what_only_a_host_knows_of_a_task() {
    const QUEUES: &str = "[queues.work]\nplugin = \"always-fails\"\nbackoff = { delays = [\"1h\"] }\n";
    let forged = [
        ("n", "1"),
        ("tq-attempt", "3"),
        ("tq-deferrals", "5"),
        ("tq-crashes", "4294967295"),
        ("tq-fence", "77"),
        ("tq-joins", "tq:{work}:flow:x"),
        ("tq-enqueued-at", "5"),
        ("tq-unknown", "x"),
    ];
    let ways = [
        ("", vec![]),
        ("", vec![("tq-id", "x")]),
        // The host parks it before it runs, and writes the next entry itself.
        ("", vec![("tq-id", "x"), ("tq-delay-ms", "1")]),
        ("serial = { field = \"n\" }\n", vec![]),
    ];
    for (rules, own) in ways {
        let mut bench = Bench::new(&format!("{QUEUES}{rules}"));
        bench.install("always-fails", "always-fails");
        let first = bench.xadd("work", &[&forged[..], &own[..]].concat());
        let host = bench.host();
        host.until_ended_as("work", "retried", 1);
        let fields: Vec<String> = serde_json::from_value(parked(&mut bench, "work")).expect("texts");
        let mut fields: Vec<(&str, &str)> = fields.chunks(2).map(|pair| (&*pair[0], &*pair[1])).collect();
        fields.sort_unstable();
        let id = own.first().map_or(first.as_str(), |(_, id)| id);
        let fence = if own.len() > 1 { "2" } else { "1" };
        let enqueued_at = first.split('-').next().expect("a time");
        let expected = [
            ("n", "1"),
            ("tq-attempt", "2"),
            ("tq-enqueued-at", enqueued_at),
            ("tq-fence", fence),
            ("tq-id", id),
        ];
        assert_eq!(fields, expected, "{rules} {own:?}");
        host.stop();
    }
}

#[test]
fn a_producer_cannot_make_a_task_run_alone() {
    let held = Held::new();
    let mut bench = held.bench("[defaults]\nlease = \"1500ms\"\n[queues.work]\nplugin = \"fetches\"\n");
    let id = bench.xadd("work", &[("tq-crashes", "2"), ("tq-id", "x"), held.task()[0]]);
    let host = bench.host();
    bench.until("work", "x", "PROCESSING");
    assert_eq!(bench.status("work", "x", "alone"), "", "{id}");
    host.kill();
    // The status names its entry by now, and still no host wrote it.
    let host = bench.host();
    host.until_count("tqhost_reclaimed_total", "work", 1);
    host.until_count("tqhost_task_wait_seconds_count", "work", 1);
    assert_eq!(bench.status("work", "x", "alone"), "");
    held.end();
    bench.until("work", "x", "COMPLETED");
    host.stop();
}

#[test]
fn numbers_beyond_all_bounds_are_malformed() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    bench.install("echo", "echo");
    let max = u64::MAX.to_string();
    bench.xadd("work", &[("n", "1"), ("tq-id", "x"), ("tq-enqueued-at", &max), ("tq-delay-ms", "1")]);
    let many: Vec<(&str, &str)> = vec![("tq-key", "x"); 51];
    bench.xadd("work", &[&many[..], &[("n", "1"), ("tq-id", "many")]].concat());
    let host = bench.host();
    for (id, why) in [
        ("x", "tq-enqueued-at is 253402300799999 at most"),
        ("many", "the task has 52 fields whose names begin with tq-; at most 50 are taken"),
    ] {
        bench.until("work", id, "FAILED");
        assert_eq!(bench.status("work", id, "error"), why);
    }
    host.stop();
}

const FLOW: &str = "[defaults]\nbackoff = \"none\"\nmax_retries = 0\n\
     [queues.work]\nplugin = \"effects\"\nenqueue_to = [\"part\", \"join\"]\n\
     [queues.part]\nplugin = \"effects\"\n[queues.join]\nplugin = \"effects\"\n";

/// Starts a flow with one child, which makes these calls, and gives the id of the task that joins it.
#[track_caller]
fn start(bench: &mut Bench, calls: Value) -> String {
    let child = json!({ "queue": "part", "fields": { "do": calls } });
    let then = json!({ "queue": "join", "fields": { "do": [["results"]] } });
    let seen = done(bench, "work", json!([["fan-out", [child], then]]));
    seen[0].as_str().unwrap_or_else(|| panic!("{seen}")).to_owned()
}

#[test]
fn a_producer_cannot_read_or_take_the_results_of_a_flow() {
    let mut bench = Bench::new(FLOW);
    bench.install("effects", "effects");
    let host = bench.host();
    let ended = start(&mut bench, json!([["fence"]]));
    let real = results(&mut bench, "join", &ended);
    assert_eq!(real, json!([[["part", "[1]"]]]));
    let joins = format!("tq:{{join}}:flow:{ended}");
    let calls = json!([["results"]]).to_string();
    let forged = bench.xadd("join", &[("do", &calls), ("tq-joins", &joins)]);
    assert_eq!(results(&mut bench, "join", &forged), json!([[]]), "it is not its flow");
    // The id of a task that its flow holds belongs to that task.
    bench.tqhost(&["pause", "part"]).ok();
    eventually("the pause is known", || {
        host.get("/readyz").body.contains("\"queue\":\"part\",\"state\":\"paused\"").then_some(())
    });
    let held = start(&mut bench, json!([["fence"]]));
    let joins = format!("tq:{{join}}:flow:{held}");
    bench.xadd("join", &[("do", &calls), ("tq-id", &held), ("tq-joins", &joins)]);
    bench.until_drained("join");
    assert_eq!(bench.status("join", &held, "status"), "PENDING");
    bench.tqhost(&["resume", "part"]).ok();
    assert_eq!(results(&mut bench, "join", &held), real);
    host.stop();
}

#[test]
fn a_producer_cannot_end_the_child_of_a_flow() {
    let mut bench = Bench::new(FLOW);
    bench.install("effects", "effects");
    let host = bench.host();
    let id = start(&mut bench, json!([["sleep", 600_000]]));
    bench.until_pending("part", 1);
    // The task is dead at first, in its own queue or in a stream of the team, and an operator requeues it.
    let flow = format!("0 tq:{{join}}:flow:{id}");
    let calls = json!([["need", "key"]]).to_string();
    let forged = [("do", calls.as_str()), ("tq-flow", &flow)];
    bench.xadd("tq:{part}:dead", &[&forged[..], &[("tq-id", "letter"), ("tq-reason", "rejected")]].concat());
    bench.xadd("part", &forged);
    eventually("both are dead", || (bench.places("part").dead == 2).then_some(()));
    done(&mut bench, "part", json!([["set", "key", "1", 0]]));
    let told = bench.tqhost(&["dead", "requeue", "part", "--all", "--json"]).ok().json();
    assert_eq!(told, json!({ "succeeded": 2, "skipped": 0, "without_flow": 2 }));
    host.until_ended_as("part", "completed", 3);
    assert_eq!(bench.redis::<u64>("HGET", (format!("tq:{{join}}:flow:{id}"), "left")), 1);
    assert_eq!(bench.status("join", &id, "status"), "PENDING");
    host.stop();
}

#[test]
fn tasks_run_even_if_their_ids_look_like_entries_that_no_stream_can_have() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    // One more than the largest number in an id of a stream.
    let ids = ["18446744073709551616-1", "1-18446744073709551616"];
    for id in ids {
        for command in [&["status", "work", id][..], &["cancel", "work", id], &["retry", "work", id]] {
            let ran = bench.tqhost(command);
            assert_eq!(ran.code, 1, "{command:?}: {ran:?}");
            insta::allow_duplicates! { insta::assert_snapshot!(ran.stderr.replace(id, "ID"), @"
            tqhost: queue work knows no task \"ID\": it was never there, it ended more than 1d ago (the \
            queue's retention), or it lies behind the 5,000 entries or 64 MiB that a search reads
            ") };
        }
    }
    let host = bench.host();
    bench.tqhost(&["pause", "work"]).ok();
    for id in ids {
        bench.xadd("work", &[("tq-id", id), ("n", "1")]);
    }
    bench.tqhost(&["cancel", "work", ids[0]]).ok();
    bench.install("echo", "echo");
    bench.tqhost(&["resume", "work"]).ok();
    bench.until("work", ids[1], "COMPLETED");
    bench.until_drained("work");
    assert_eq!(bench.status("work", ids[0], "status"), "CANCELLED");
    host.stop();
}
