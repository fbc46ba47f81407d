//! An export is a job: each dead letter is in its file once, whatever dies, and all of them stay.

use serde_json::{Value, json};

use super::{ask, good, job, post, problem, start, until_over};
use crate::support::dead_letters::add_dead;
use crate::support::proxy::Proxy;
use crate::support::words::masked;
use crate::support::{Bench, Ran, eventually};

const QUEUES: &str = "[queues.work]\nplugin = \"missing\"\n";
const DEAD: &str = "tq:{work}:dead";

/// An entry of a stream, byte for byte.
type RawEntry = (String, Vec<Vec<u8>>);

fn entries(bench: &mut Bench, key: &str) -> Vec<RawEntry> {
    bench.redis("XRANGE", (key, "-", "+"))
}

#[test]
fn an_export_has_each_dead_letter_once_although_its_hosts_die() {
    const ALL: usize = 5_000;
    let mut bench = Bench::new(QUEUES);
    add_dead(&mut bench, 0..ALL);
    let before = entries(&mut bench, DEAD);
    let way = Proxy::start(bench.redis.port);
    bench.configure_for(QUEUES, way.port);
    let mut host = bench.host();
    way.delay(10..11);
    let id = start(&host, &json!({ "do": "export", "why": "the audit" }));
    let (kept, file) = (format!("tq:{{work}}:kept:{id}"), format!("/v1/jobs/{id}/file"));
    // Later ones are not in it.
    add_dead(&mut bench, ALL..ALL + 5);
    let mut early = Vec::new();
    for part in [1_000, 2_500] {
        let copied = |bench: &mut Bench| bench.redis::<u64>("XLEN", &kept);
        eventually("a part is copied", || (copied(&mut bench) > part).then_some(()));
        host.kill();
        assert!(copied(&mut bench) < ALL as u64, "it is not over yet");
        host = bench.host();
        // Steps do their work, but fail, and are repeated.
        way.lose_replies(&kept, 3);
        early.push(problem(&ask(&host, "GET", &file), 409, "not-running").replace(&id, "ID"));
    }
    insta::assert_snapshot!(early.join("\n"), @"
    job ID is running: its file is not whole
    job ID is running: its file is not whole
    ");
    let done = until_over(&host, &id);
    assert_eq!((&done["state"], &done["kept"]["tasks"]), (&json!("done"), &json!(ALL)), "{done}");
    let told = (&done["done"], &done["skipped"], &done["why"]);
    assert_eq!(told, (&json!(ALL), &json!(0), &json!("the audit")), "{done}");
    assert_eq!(entries(&mut bench, &kept), before, "each once, byte for byte");
    assert_eq!(entries(&mut bench, DEAD)[..ALL], before, "all of them stay");
    let lines = ask(&host, "GET", &file).body;
    let end = json!({ "tq-export": { "letters": ALL, "examined": ALL, "next": null } }).to_string();
    assert!(lines.lines().any(|line| line == end), "{}", &lines[lines.len() - 200..]);
    let told = problem(&post(&host, &format!("/v1/jobs/{id}/undo"), &json!({})), 409, "not-running");
    insta::assert_snapshot!(told.replace(&id, "ID"), @"job ID is an export, which took nothing away");
    way.heal();
    host.stop();
}

#[test]
fn an_exported_file_brings_back_what_matched() {
    let mut bench = Bench::new(QUEUES);
    add_dead(&mut bench, 0..40);
    let before = entries(&mut bench, DEAD);
    let export = ["dead", "export", "work", "--all", "--reason", "crashed"];
    let begun = bench.tqhost(&[&export[..], &["--json"]].concat()).ok().json();
    let id = begun["job"].as_str().expect("an id").to_owned();
    assert_eq!(begun, json!({ "succeeded": 10, "skipped": 0, "job": id }));
    let Ran { stdout, stderr, .. } = bench.tqhost(&export).ok();
    insta::assert_snapshot!(stdout + &masked(&stderr, &[]), @"
    10 dead letters exported, 0 skipped
    tqhost: for 24 hours, `tqhost jobs file HEX --out FILE` writes them to a file
    ");

    let _: u64 = bench.redis("DEL", DEAD);
    let path = bench.dir.path().join("crashed.jsonl");
    let path = path.to_str().expect("a path");
    bench.tqhost(&["jobs", "file", &id, "--out", path]).ok();
    bench.tqhost(&["dead", "import", "work", path]).ok();
    let fields = |entries: Vec<RawEntry>| entries.into_iter().map(|(_, fields)| fields).collect::<Vec<_>>();
    let crashed = before.into_iter().filter(|(_, fields)| fields.contains(&b"crashed".to_vec())).collect();
    assert_eq!(fields(entries(&mut bench, DEAD)), fields(crashed));
}

#[test]
fn on_a_full_redis_an_export_says_which_way_needs_no_memory() {
    let mut bench = Bench::with_redis(QUEUES, &["--maxmemory-policy", "noeviction"]);
    add_dead(&mut bench, 0..10);
    let host = bench.host();
    let _: () = bench.redis("CONFIG", ("SET", "maxmemory", "1"));
    let failed = until_over(&host, &start(&host, &json!({ "do": "export" })));
    let why = failed["error"].as_str().expect("a text");
    assert_eq!((&failed["state"], &failed["done"]), (&json!("failed"), &json!(0)), "{failed}");
    insta::assert_snapshot!(
        why,
        @"Redis is full, so the job can keep nothing more, and the rest stays where it is: raise its \
          maxmemory, or run `tqhost dead export --all --out FILE`, which keeps nothing in Redis"
    );
    let path = bench.dir.path().join("all.jsonl");
    let written = bench.tqhost(&["dead", "export", "work", "--all", "--out", path.to_str().expect("a path")]);
    insta::assert_snapshot!(
        written.ok().stdout.replace(path.to_str().expect("a path"), "FILE"),
        @"10 dead letters written to FILE, 0 skipped"
    );
    host.stop();
}

#[test]
fn an_export_that_has_lost_what_it_copied_fails_and_a_part_is_no_file() {
    let mut bench = Bench::new(QUEUES);
    add_dead(&mut bench, 0..5_000);
    let way = Proxy::start(bench.redis.port);
    bench.configure_for(QUEUES, way.port);
    let host = bench.host();
    way.delay(10..11);
    let [lost, stopped] = ["a", "b"].map(|why| start(&host, &json!({ "do": "export", "why": why })));
    let path = |id: &str, end: &str| format!("/v1/jobs/{id}{end}");
    let copied = |bench: &mut Bench, id: &str| bench.redis::<u64>("XLEN", format!("tq:{{work}}:kept:{id}"));
    eventually("parts are copied", || {
        (copied(&mut bench, &lost) > 500 && copied(&mut bench, &stopped) > 500).then_some(())
    });
    good(&post(&host, &path(&lost, "/pause"), &json!({})), 200);
    good(&ask(&host, "DELETE", &path(&stopped, "")), 200);
    let told = problem(&ask(&host, "GET", &path(&stopped, "/file")), 409, "not-running");
    insta::assert_snapshot!(told.replace(&stopped, "ID"), @"job ID is stopped: its file is not whole");
    // A day later.
    eventually("nobody takes a step", || {
        let job = job(&host, &lost);
        (job["state"] == "paused" && job["host"] == "").then_some(())
    });
    let order = format!("/job/{lost}");
    let text: String = bench.redis("HGET", ("tq:hosts:orders", &order));
    let mut text: Value = serde_json::from_str(&text).expect("a job");
    text["kept"]["until"] = json!(1);
    let _: u64 = bench.redis("HSET", ("tq:hosts:orders", &order, text.to_string()));
    good(&post(&host, &path(&lost, "/resume"), &json!({})), 200);
    let failed = until_over(&host, &lost);
    assert_eq!(failed["state"], "failed", "{failed}");
    insta::assert_snapshot!(failed["error"], @r#""what it had copied has expired: begin a new one""#);
    way.heal();
    host.stop();
}

#[test]
fn an_export_of_nothing_is_an_empty_file() {
    let bench = Bench::new(QUEUES);
    let host = bench.host();
    let id = start(&host, &json!({ "do": "export" }));
    assert_eq!(until_over(&host, &id)["state"], "done");
    let file = ask(&host, "GET", &format!("/v1/jobs/{id}/file"));
    assert_eq!(file.status, 200);
    assert!(file.body.contains(r#"{"tq-export":{"letters":0,"examined":0,"next":null}}"#), "{}", file.body);
    host.stop();
}
