//! Dead letters: lists, filters, requeue and purge; bounded however many there are.

use serde_json::{Value, json};

use super::{ask, good, post, problem, texts};
use crate::support::{Bench, Host};

const DEAD: &str = "/v1/queues/work/dead";

/// Adds dead letters as hosts write them, with these numbers in their errors.
fn add(bench: &mut Bench, numbers: std::ops::Range<usize>) {
    let mut pipe = redis::pipe();
    for n in numbers {
        let reason = if n % 2 == 0 { "rejected" } else { "retries-exhausted" };
        let (id, error) = (format!("id-{n}"), format!("cause {}", n % 4));
        let fields = [
            ("n", n.to_string()),
            ("tq-id", id),
            ("tq-queue", "work".into()),
            ("tq-reason", reason.into()),
            ("tq-error", error),
            ("tq-attempts", "1".into()),
            ("tq-enqueued-at", "1700000000000".into()),
            ("tq-failed-at", (1_700_000_000_000 + n).to_string()),
            ("tq-consumer", "box-1".into()),
            ("tq-plugin", "echo@ab12".into()),
        ];
        pipe.cmd("XADD").arg("tq:{work}:dead").arg("*").arg(&fields).ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("add dead letters");
}

fn bench(letters: usize) -> (Bench, Host) {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    add(&mut bench, 0..letters);
    let host = bench.host();
    (bench, host)
}

fn counts(done: &Value) -> [u64; 2] {
    ["succeeded", "skipped"].map(|name| done[name].as_u64().unwrap_or_else(|| panic!("a count: {done}")))
}

#[test]
fn dead_letters_are_listed_newest_first_with_filters() {
    let (bench, host) = bench(8);
    let list = |query: &str| good(&ask(&host, "GET", &format!("{DEAD}?{query}")), 200);
    let all = list("");
    assert_eq!(texts(&all["dead"], "id"), (0..8).rev().map(|n| format!("id-{n}")).collect::<Vec<_>>());
    assert_eq!((&all["examined"], &all["next"]), (&json!(8), &Value::Null));
    let mut letter = bench.tqhost(&["dead", "show", "work", "id-7", "--json"]).ok().json();
    letter.as_object_mut().expect("an object").remove("fields");
    assert_eq!(all["dead"][0], letter, "the command shows the same");
    assert_eq!(list("fields=true&limit=1")["dead"][0]["fields"], json!([{ "name": "n", "value": "7" }]));
    let table = [
        ("reason=rejected", 4),
        ("reason=rejected&error=cause+2", 2),
        ("error=cause", 8),
        ("text=id-3", 1),
        ("id=id-3", 1),
        ("id=id", 0),
        ("version=ab12", 8),
        ("version=ffff", 0),
        ("host=box-1", 8),
        ("host=box-2", 0),
        ("from=1700000000002&to=1700000000004", 3),
        ("to=2023-11-14T22:13:20Z", 1),
        ("newer_than=1h", 0),
        ("older_than=1h", 8),
    ];
    for (query, expected) in table {
        assert_eq!(list(query)["dead"].as_array().map(Vec::len), Some(expected), "{query}");
    }
    let first = list("limit=3");
    let rest = list(&format!("limit=500&cursor={}", first["next"].as_str().expect("a cursor")));
    let both = [texts(&first["dead"], "id"), texts(&rest["dead"], "id")].concat();
    assert_eq!((both, &rest["next"]), (texts(&all["dead"], "id"), &Value::Null));
    host.stop();
}

#[test]
fn dead_letters_are_counted_in_groups() {
    const ALL: usize = 12_000;
    let (bench, host) = bench(ALL);
    let groups = |query: &str| good(&ask(&host, "GET", &format!("{DEAD}/groups?{query}")), 200);
    let small = groups("text=id-11&newer_than=9999h");
    assert_eq!((&small["by"], &small["matching"]), (&json!("cause"), &json!(0)));
    let (mut cursor, mut examined, mut sums, mut pages) = (String::new(), 0, [0, 0], 0);
    loop {
        let part = groups(&format!("by=reason&limit=500{cursor}"));
        let count = |name: &str| part[name].as_u64().unwrap_or_else(|| panic!("a count: {part}"));
        assert!(count("examined") <= 5_200, "{part}");
        (examined, pages) = (examined + count("examined"), pages + 1);
        for group in part["groups"].as_array().expect("groups") {
            let place = usize::from(group["reason"] == "rejected");
            sums[place] += group["count"].as_u64().expect("a count");
            assert!(group["oldest_at"].as_u64() <= group["newest_at"].as_u64(), "{group}");
        }
        match part["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!((examined, sums, pages), (ALL as u64, [ALL as u64 / 2; 2], 3));
    let hours = groups("by=hour");
    assert_eq!(hours["groups"][0]["hour"], 1_700_000_000_000_u64 / 3_600_000 * 3_600_000, "{hours}");
    // A filter takes what a group shows.
    let causes = groups("by=cause&limit=1");
    let group = &causes["groups"][0];
    let (error, count) = (group["error"].as_str().expect("an error"), group["count"].as_u64());
    assert!(error.starts_with("cause ") && error.len() == 7, "{group}");
    assert_eq!(causes["others"].as_u64(), count.map(|count| 3 * count));
    let example = group["example"].as_str().expect("an id");
    assert_eq!(good(&ask(&host, "GET", &format!("{DEAD}?id={example}")), 200)["dead"][0]["id"], example);
    let all = bench.tqhost(&["dead", "list", "work", "--by", "reason", "--json"]).ok().json();
    assert_eq!((&all["examined"], &all["next"]), (&json!(ALL), &Value::Null), "a command looks further");
    host.stop();
}

#[test]
fn a_download_says_how_many_are_in_it_and_how_it_goes_on() {
    let (_bench, host) = bench(450);
    let answer = ask(&host, "GET", &format!("{DEAD}/export?reason=rejected"));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("content-disposition"), Some("attachment; filename=\"work-dead.jsonl\""));
    let lines: Vec<Value> = answer.body.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let lines: Vec<&Value> = lines.iter().filter(|line| line.is_object()).collect();
    assert_eq!(lines.len(), 226);
    let end = json!({ "tq-export": { "letters": 225, "examined": 450, "next": null } });
    assert_eq!((&lines[0]["id"], lines[225]), (&json!("id-448"), &end));
    assert_eq!(lines[0]["reserved"][0], json!({ "name": "tq-id", "value": "id-448" }));
    problem(&ask(&host, "GET", &format!("{DEAD}/export?cursor=AAAA")), 422, "invalid");
    host.stop();
}

#[test]
fn requeue_and_purge_add_up() {
    let (mut bench, host) = bench(12);
    let dead = |bench: &mut Bench| bench.redis::<u64>("XLEN", "tq:{work}:dead");
    let act = |what: &str, body: Value| good(&post(&host, &format!("{DEAD}/{what}"), &body), 200);
    let some = json!({ "all": true, "reason": "rejected", "error": "cause 2", "dry_run": true });
    assert_eq!(counts(&act("requeue", some)), [3, 0]);
    assert_eq!(counts(&act("purge", json!({ "ids": ["id-1", "nobody"], "dry_run": true }))), [1, 1]);
    assert_eq!(dead(&mut bench), 12, "a dry run changes nothing");
    let done = act("requeue", json!({ "ids": ["id-0", "id-1", "nobody"], "rate": "100/s" }));
    assert_eq!((counts(&done), dead(&mut bench), bench.redis::<u64>("XLEN", "work")), ([2, 1], 10, 2));
    assert_eq!(counts(&act("requeue", json!({ "ids": ["id-0"] }))), [0, 1], "it is not dead any more");
    let done = act("purge", json!({ "all": true, "reason": "rejected" }));
    assert_eq!((counts(&done), &done["next"], dead(&mut bench)), ([5, 0], &Value::Null, 5));
    let done = act("requeue", json!({ "all": true }));
    assert_eq!((counts(&done), dead(&mut bench), bench.redis::<u64>("XLEN", "work")), ([5, 0], 0, 7));
    let audit = host.until_logged("audit: a change was asked for", 6);
    let line = &audit[2];
    let named = (&line["ids"], &line["named"], &line["succeeded"], &line["skipped"]);
    assert_eq!(named, (&json!("id-0 id-1 nobody"), &json!(3), &json!(2), &json!(1)));
    assert_eq!(audit[4]["filter"], "{\"all\":true,\"reason\":\"rejected\"}");
    assert_eq!((&audit[0]["dry_run"], &audit[4]["dry_run"]), (&json!(true), &Value::Null));
    host.stop();
}

#[test]
fn twenty_thousand_dead_letters_are_walked_in_bounded_pages() {
    const ALL: usize = 20_000;
    let (mut bench, host) = bench(ALL);
    // Nothing matches: each page looks at a bounded number, and says where it goes on.
    let (mut cursor, mut examined, mut pages) = (String::new(), 0, 0);
    loop {
        let list = good(&ask(&host, "GET", &format!("{DEAD}?text=nothing+like+this{cursor}")), 200);
        let looked_at = list["examined"].as_u64().expect("a count");
        assert!(looked_at <= 5_200, "{list}");
        (examined, pages) = (examined + looked_at, pages + 1);
        match list["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!((examined, pages >= 4), (ALL as u64, true), "{pages} pages");
    // A task of which nothing is known is not looked for among all of them.
    let asked = |bench: &mut Bench| -> u64 {
        let stats: String = bench.redis("INFO", "commandstats");
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_xrevrange:calls="));
        line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
    };
    let before = asked(&mut bench);
    problem(&ask(&host, "GET", "/v1/queues/work/tasks/nobody"), 404, "unknown-task");
    let reads = asked(&mut bench) - before;
    assert!(reads <= 11, "a small page, and 5,000 dead letters in pages of 500: {reads} reads");
    let done =
        good(&post(&host, &format!("{DEAD}/purge"), &json!({ "all": true, "reason": "rejected" })), 200);
    assert_eq!(
        (counts(&done), &done["examined"], &done["next"]),
        ([ALL as u64 / 2, 0], &json!(ALL), &Value::Null)
    );
    assert_eq!(bench.redis::<usize>("XLEN", "tq:{work}:dead"), ALL / 2);
    host.stop();
}

#[test]
fn a_thousand_ids_are_one_request() {
    let (mut bench, host) = bench(999);
    let ids: Vec<String> = (0..999).map(|n| format!("id-{n}")).chain(["nobody".into()]).collect();
    let requeue = |body: Value| post(&host, &format!("{DEAD}/requeue"), &body);
    let told = [
        json!({ "ids": ids, "rate": "50/s" }),
        json!({ "ids": ids, "cursor": "AAAA" }),
        json!({ "ids": ids, "why": "mended" }),
    ]
    .map(|body| problem(&requeue(body), 422, "invalid"));
    insta::assert_snapshot!(told.join("\n"), @"
    rate: these ids take more than 10 s: send fewer at once, or all: true with filters
    cursor: one request takes all ids
    filters, state, begin, keep and why go with all, not with ids
    ");
    let done = good(&requeue(json!({ "ids": ids, "rate": "500/s" })), 200);
    assert_eq!((counts(&done), &done["next"]), ([999, 1], &Value::Null));
    assert_eq!(bench.redis::<u64>("XLEN", "work"), 999);
    host.stop();
}
