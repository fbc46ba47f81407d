//! A drain and a purge keep what they take away: it can be downloaded, and comes back once, whatever dies.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{JOBS, ask, good, post, problem, start, until_over};
use crate::support::dead_letters::add_dead;
use crate::support::http::send;
use crate::support::proxy::Proxy;
use crate::support::{Bench, Host, eventually};

const DEAD: &str = "tq:{work}:dead";
const QUEUES: &str = "[queues.work]\nplugin = \"missing\"\n";

/// The fields of an entry, byte for byte.
type RawFields = Vec<Vec<u8>>;

fn all_of(bench: &mut Bench, key: &str) -> Vec<RawFields> {
    let entries: Vec<(String, RawFields)> = bench.redis("XRANGE", (key, "-", "+"));
    entries.into_iter().map(|(_, fields)| fields).collect()
}

fn kept(id: &str) -> String {
    format!("tq:{{work}}:kept:{id}")
}

fn length(bench: &mut Bench, key: &str) -> u64 {
    bench.redis("XLEN", key)
}

/// How often each task is there, by its `tq-id`.
fn ids(bench: &mut Bench, keys: &[&str]) -> BTreeMap<Vec<u8>, usize> {
    let mut ids = BTreeMap::new();
    for fields in keys.iter().flat_map(|key| all_of(bench, key)) {
        let at = fields.iter().position(|field| field == b"tq-id").expect("tq-id");
        *ids.entry(fields[at + 1].clone()).or_default() += 1;
    }
    ids
}

fn undo(host: &Host, id: &str) -> String {
    let job = good(&post(host, &format!("/v1/jobs/{id}/undo"), &json!({})), 202);
    job["id"].as_str().expect("an id").to_owned()
}

#[test]
fn a_purge_that_two_operators_undo_gives_back_every_byte_once() {
    let mut bench = Bench::new(QUEUES);
    add_dead(&mut bench, 0..500);
    let bytes: [&[u8]; 10] = [
        b"a",
        b"\xff\x00\n",
        b"a",
        b"2",
        b"tq-id",
        b"bytes",
        b"tq-reason",
        b"crashed",
        b"tq-failed-at",
        b"5",
    ];
    let _: String = bench.redis("XADD", (DEAD, "*", &bytes[..]));
    let foreign: String = bench.redis("XADD", (DEAD, "*", "job", "1"));
    let mut before = all_of(&mut bench, DEAD);
    let hosts = [bench.host(), bench.host()];
    let id = start(&hosts[0], &json!({ "do": "purge" }));
    let done = until_over(&hosts[0], &id);
    assert_eq!((&done["done"], &done["kept"]["tasks"]), (&json!(502), &json!(502)), "{done}");
    let life: i64 = bench.redis("PTTL", kept(&id));
    assert!((86_000_000..=86_400_000).contains(&life), "{life}");
    assert_eq!((length(&mut bench, DEAD), length(&mut bench, &kept(&id))), (0, 502));

    let file = ask(&hosts[1], "GET", &format!("/v1/jobs/{id}/file"));
    let lines: Vec<Value> = file.body.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let last = lines.iter().find(|line| line["tq-export"].is_object()).expect("the last line");
    assert_eq!(last["tq-export"], json!({ "letters": 502, "examined": 502, "next": null }));
    assert!(lines.iter().any(|line| line["id"] == format!("foreign-{foreign}").as_str()));

    let path = format!("/v1/jobs/{id}/undo");
    let undos = std::thread::scope(|scope| {
        let press = |address| send(address, "POST", &path, &[("content-type", "application/json")], None);
        let presses = hosts.each_ref().map(|host| host.admin()).map(|at| scope.spawn(move || press(at)));
        presses.map(|press| good(&press.join().expect("an answer"), 202)["id"].clone())
    });
    assert_eq!(undos[0], undos[1], "both are led to the same job");
    let back = until_over(&hosts[0], undos[0].as_str().expect("an id"));
    assert_eq!(
        (&back["done"], &back["skipped"], &back["from"]),
        (&json!(502), &json!(0), &json!(id)),
        "{back}"
    );
    // The letter of another program went by its entry.
    let time = foreign.split('-').next().expect("a time").to_owned();
    let named = [String::from("tq-id"), format!("foreign-{foreign}"), "tq-failed-at".into(), time];
    before[501].extend(named.map(String::into_bytes));
    assert_eq!(all_of(&mut bench, DEAD), before, "in their order, too");
    assert_eq!(bench.status("work", "id-3", "status"), "FAILED");
    assert_eq!(bench.status("work", "id-3", "error"), "trap 3");
    let told = problem(&post(&hosts[1], &path, &json!({})), 404, "not-found");
    insta::assert_snapshot!(
        told.replace(&id, "ID"),
        @"job ID keeps nothing (any more): for 24 hours an export keeps its file, and a drain or a purge \
          what it takes away, unless it was told not to"
    );
    problem(&ask(&hosts[1], "GET", &format!("/v1/jobs/{id}/file")), 404, "not-found");
    Host::stop_all(hosts);
}

#[test]
fn a_drain_that_is_undone_runs_each_task_once() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\nevents = 1000\nretention = \"0s\"\n");
    bench.install("echo", "echo");
    bench.tqhost(&["pause", "work"]).ok();
    let host = bench.host();
    for n in 0..200 {
        bench.xadd("work", &[("n", &n.to_string())]);
    }
    bench.tqhost(&["enqueue", "work", "n=later", "--delay", "1h"]).ok();
    let id = start(&host, &json!({ "do": "drain" }));
    let done = until_over(&host, &id);
    assert_eq!((&done["done"], &done["kept"]["tasks"]), (&json!(201), &json!(201)), "{done}");
    assert_eq!((bench.places("work").length, bench.places("work").delayed), (0, 0));
    let undone = undo(&host, &id);
    let back = until_over(&host, &undone);
    assert_eq!((&back["done"], &back["skipped"]), (&json!(201), &json!(0)), "{back}");
    assert_eq!(length(&mut bench, "work"), 201, "they wait again");
    bench.tqhost(&["resume", "work"]).ok();
    bench.until_drained("work");
    // No status is kept of what has completed; all the same, nothing comes back a second time.
    problem(&post(&host, &format!("/v1/jobs/{id}/undo"), &json!({})), 404, "not-found");
    let mut ends = BTreeMap::<Vec<u8>, usize>::new();
    for event in all_of(&mut bench, "tq:{work}:events") {
        let ids = event.chunks(2).find(|pair| pair[0] == b"id" || pair[0] == b"ids").expect("an id");
        if event.iter().any(|word| word == b"COMPLETED") {
            for id in ids[1].split(|byte| *byte == b' ').filter(|id| !id.is_empty()) {
                *ends.entry(id.to_vec()).or_default() += 1;
            }
        }
    }
    assert!(ends.len() == 201 && ends.values().all(|count| *count == 1), "{}: {ends:?}", ends.len());
    host.stop();
}

#[test]
fn nothing_is_lost_or_doubled_when_hosts_die_in_the_middle() {
    const ALL: usize = 5_000;
    let mut bench = Bench::new(QUEUES);
    add_dead(&mut bench, 0..ALL);
    let way = Proxy::start(bench.redis.port);
    bench.configure_for(QUEUES, way.port);
    let once = |bench: &mut Bench, keys: &[&str], what: &str| {
        let ids = ids(bench, keys);
        assert!(ids.len() == ALL && ids.values().all(|count| *count == 1), "{what}: {}", ids.len());
    };
    let mut host = bench.host();
    way.delay(10..11);
    let id = start(&host, &json!({ "do": "purge" }));
    let keys = [DEAD, &kept(&id)];
    // Each host carries out a part, and dies in the middle of a step.
    for part in [1_000, 2_500] {
        eventually("a part is deleted", || (length(&mut bench, keys[1]) > part).then_some(()));
        host.kill();
        assert!(length(&mut bench, keys[0]) > 0, "it is not over yet");
        once(&mut bench, &keys, "after a death in the purge");
        host = bench.host();
    }
    eventually("all are deleted", || (length(&mut bench, DEAD) == 0).then_some(()));
    let done = until_over(&host, &id);
    assert_eq!((&done["state"], &done["kept"]["tasks"]), (&json!("done"), &json!(ALL)), "{done}");
    once(&mut bench, &keys[1..], "after the purge");

    let undone = undo(&host, &id);
    eventually("a part is back", || (length(&mut bench, DEAD) > 1_000).then_some(()));
    host.kill();
    assert!(length(&mut bench, keys[1]) > 0, "it is not over yet");
    once(&mut bench, &keys, "after a death in the undo");
    let host = bench.host();
    let back = until_over(&host, &undone);
    assert_eq!((&back["state"], length(&mut bench, keys[1])), (&json!("done"), 0), "{back}");
    once(&mut bench, &keys[..1], "after the undo");
    way.heal();
    host.stop();
}

#[test]
fn a_job_that_is_told_to_keep_nothing_keeps_nothing() {
    let mut bench = Bench::new(QUEUES);
    add_dead(&mut bench, 0..3);
    let host = bench.host();
    let id = start(&host, &json!({ "do": "purge", "keep": false }));
    let done = until_over(&host, &id);
    assert_eq!(
        (&done["done"], &done["kept"], &done["keep"]),
        (&json!(3), &Value::Null, &Value::Null),
        "{done}"
    );
    let told = problem(&post(&host, &format!("/v1/jobs/{id}/undo"), &json!({})), 404, "not-found");
    insta::assert_snapshot!(
        told.replace(&id, "ID"),
        @"job ID keeps nothing (any more): for 24 hours an export keeps its file, and a drain or a purge \
          what it takes away, unless it was told not to"
    );
    add_dead(&mut bench, 0..3);
    let id = start(&host, &json!({ "do": "purge" }));
    until_over(&host, &id);
    // A day later.
    assert!(bench.redis::<bool>("PEXPIRE", (kept(&id), 1)));
    eventually("it has expired", || (!bench.redis::<bool>("EXISTS", kept(&id))).then_some(()));
    problem(&post(&host, &format!("/v1/jobs/{id}/undo"), &json!({})), 404, "not-found");
    let told = [json!({ "do": "requeue", "keep": true }), json!({ "do": "import" })]
        .map(|body| problem(&post(&host, JOBS, &body), 422, "invalid"));
    insta::assert_snapshot!(told.join("\n"), @"
    keep: only drain and purge take it
    do: `POST /v1/jobs/{id}/undo` and `tqhost dead import` bring back
    ");
    host.stop();
}

#[test]
fn on_a_full_redis_only_a_job_that_keeps_nothing_goes_on() {
    let mut bench = Bench::with_redis(QUEUES, &["--maxmemory-policy", "noeviction"]);
    add_dead(&mut bench, 0..10);
    for n in 0..10 {
        bench.xadd("work", &[("n", &n.to_string())]);
    }
    let host = bench.host();
    let _: () = bench.redis("CONFIG", ("SET", "maxmemory", "1"));
    let errors = ["purge", "drain"].map(|deed| {
        let id = start(&host, &json!({ "do": deed }));
        let failed = until_over(&host, &id);
        assert_eq!((&failed["state"], &failed["done"]), (&json!("failed"), &json!(0)), "{failed}");
        failed["error"].as_str().expect("a text").to_owned()
    });
    insta::assert_snapshot!(errors.join("\n"), @"
    Redis is full, so the job can keep nothing more, and the rest stays where it is: raise its \
        maxmemory, or begin a job that keeps nothing (`--no-undo`, or \"keep\": false)
    Redis is full, so the job can keep nothing more, and the rest stays where it is: raise its \
        maxmemory, or begin a job that keeps nothing (`--no-undo`, or \"keep\": false)
    ");
    assert_eq!((length(&mut bench, DEAD), length(&mut bench, "work")), (10, 10), "nothing is lost");
    for deed in ["purge", "drain"] {
        let id = start(&host, &json!({ "do": deed, "keep": false }));
        assert_eq!(until_over(&host, &id)["done"], 10);
    }
    host.stop();
}

#[test]
fn an_undo_trusts_a_producer_no_more_than_a_host_does() {
    let mut bench = Bench::new(QUEUES);
    let forged = [
        ("n", "1"),
        ("tq-attempt", "3"),
        ("tq-deferrals", "5"),
        ("tq-crashes", "7"),
        ("tq-fence", "77"),
        ("tq-joins", "tq:{work}:flow:x"),
        ("tq-enqueued-at", "5"),
        ("tq-unknown", "x"),
        ("tq-key", "k"),
    ];
    let first = bench.xadd("work", &forged);
    let host = bench.host();
    let drain = start(&host, &json!({ "do": "drain", "all": true }));
    assert_eq!(until_over(&host, &drain)["done"], 1);
    let back = undo(&host, &drain);
    assert_eq!(until_over(&host, &back)["done"], 1);
    let fields = all_of(&mut bench, "work").pop().expect("the task is back");
    let fields: BTreeMap<String, String> = fields
        .chunks(2)
        .map(|pair| (String::from_utf8_lossy(&pair[0]).into(), String::from_utf8_lossy(&pair[1]).into()))
        .collect();
    for untold in ["tq-attempt", "tq-deferrals", "tq-crashes", "tq-fence", "tq-joins", "tq-unknown"] {
        assert!(!fields.contains_key(untold), "{fields:?}");
    }
    let time = first.split('-').next().expect("a time");
    let told = ["n", "tq-id", "tq-key", "tq-enqueued-at"].map(|name| fields[name].as_str());
    assert_eq!(told, ["1", &first, "k", time], "{fields:?}");
    host.stop();
}

#[test]
fn a_delayed_task_that_cannot_be_read_is_not_drained() {
    let mut bench = Bench::new(QUEUES);
    bench.tqhost(&["enqueue", "work", "n=1", "--delay", "1h"]).ok();
    let host = bench.host();
    eventually("it is parked", || (bench.places("work").delayed == 1).then_some(()));
    let parked: Vec<(String, Vec<u8>)> = bench.redis("HGETALL", "tq:{work}:parked");
    let _: u64 = bench.redis("HSET", ("tq:{work}:parked", &parked[0].0, "no fields"));
    let drain = start(&host, &json!({ "do": "drain", "all": true }));
    let job = until_over(&host, &drain);
    assert_eq!((&job["done"], &job["skipped"]), (&json!(0), &json!(1)), "{job}");
    assert_eq!(bench.places("work").delayed, 1);
    host.stop();
}
