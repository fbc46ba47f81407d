//! The handlers that are written in JavaScript and Python, as hosts run them: real tasks through the real binary.
//!
//! Compiled once for all tests and runs: these components are large. Not here: projects of one's own in these languages (`authors`).

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::authors::{cache_of, tried_with};
use crate::support::{Bench, Host, within};

/// To compile a large component on a machine with much else to do.
const COMPILES: Duration = Duration::from_secs(300);

const QUEUES: &str = "
[queues.report]
plugin = \"report-csv\"
max_retries = 1
backoff = { delays = [\"1ms\"] }
[queues.vectorize]
stream = \"knowledgebase:vectorize:stream\"
group = \"vectorize-group\"
plugin = \"vectorize-text\"
max_retries = 1
backoff = { delays = [\"1ms\"] }
";

/// Who compiles first keeps it for the others.
static COMPILING: Mutex<()> = Mutex::new(());

/// A host with these handlers, loaded, and with these tables of grants.
fn host(handlers: &[&str], grants: &str) -> (Bench, Host) {
    let bench = Bench::new(QUEUES);
    // Where `tqhost try` keeps what it compiled too.
    let data = cache_of("languages").join("tqhost/try");
    let port = bench.redis.port;
    bench.configure(&format!(
        "data_dir = {data:?}\n{QUEUES}\n{grants}\n[redis]\nurl = \"redis://127.0.0.1:{port}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n"
    ));
    for handler in handlers {
        bench.install(handler, handler);
    }
    let _alone = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
    let host = bench.host_that_may_fail();
    within(COMPILES, "all handlers are loaded", || (host.logged("plugin loaded").len() == handlers.len()).then_some(()));
    host.log("tqhost is running");
    (bench, host)
}

fn result(bench: &mut Bench, stream: &str, id: &str) -> String {
    bench.until(stream, id, "COMPLETED");
    bench.status(stream, id, "result")
}

#[test]
fn rows_become_a_csv_file() {
    let (mut bench, host) = host(&["report-csv"], "");
    let rows = r#"[{"id":1,"name":"Ada \"A\", née"},{"id":2,"name":"=1+1","more":[1]}]"#;
    let all = bench.xadd("report", &[("rows", rows)]);
    let some = bench.xadd("report", &[("rows", rows), ("columns", r#"["name","nothing"]"#), ("total", "2")]);
    assert_eq!(result(&mut bench, "report", &all), "id,name,more\r\n1,\"Ada \"\"A\"\", née\",\r\n2,'=1+1,[1]\r\n");
    assert_eq!(result(&mut bench, "report", &some), "name,nothing\r\n\"Ada \"\"A\"\", née\",\r\n'=1+1,\r\n");
    let bad = [
        (vec![("other", "1")], "field `rows` is missing"),
        (vec![("rows", "[{]")], "field `rows` is not JSON"),
        (vec![("rows", "[1]")], "field `rows` is not an array of objects"),
        (vec![("rows", "[]")], "there are no columns"),
        (vec![("rows", rows), ("total", "1")], "there are 2 rows, more than the total of 1"),
    ];
    for (fields, why) in bad {
        let id = bench.xadd("report", &fields);
        bench.until("report", &id, "FAILED");
        let error = bench.status("report", &id, "error");
        assert!(error.contains(why), "{error}");
        assert_eq!(bench.dead("report").last().map(|letter| letter["tq-reason"].clone()).as_deref(), Some("rejected"));
    }
    // Two rows of three: later, and no attempt is used.
    let early = bench.xadd("report", &[("rows", rows), ("total", "3")]);
    within(COMPILES, "it is deferred", || (bench.places("report").delayed == 1).then_some(()));
    assert_eq!(bench.status("report", &early, "error"), "2 of 3 rows are there");
    assert!(!host.logged("2 rows, 2 columns").is_empty(), "{}", host.raw());
}

#[test]
fn a_configuration_that_cannot_be_used_is_retried_until_the_attempts_are_used_up() {
    let grants = "[plugins.report-csv]\nconfig = { delimiter = \"--\" }\n[plugins.vectorize-text]\nconfig = { dimensions = \"many\" }";
    let (mut bench, _host) = host(&["report-csv", "vectorize-text"], grants);
    let report = bench.xadd("report", &[("rows", "[]")]);
    let stream = "knowledgebase:vectorize:stream";
    let document = bench.xadd(stream, &[("kbId", "1"), ("content", "text")]);
    for (stream, id, why) in [("report", &report, "`delimiter` is not one character"), (stream, &document, "`dimensions` is not a number")]
    {
        bench.until(stream, id, "FAILED");
        assert!(bench.status(stream, id, "error").contains(why), "{}", bench.status(stream, id, "error"));
        assert_eq!(bench.status(stream, id, "attempt"), "2");
    }
}

#[test]
fn documents_become_pieces_with_keywords_and_vectors() {
    let (mut bench, _host) = host(&["vectorize-text"], "[plugins.vectorize-text]\nconfig = { chunk_characters = \"200\" }");
    let stream = "knowledgebase:vectorize:stream";
    let about = |what: &str| format!("A document about {what}. {}", format!("It tells of {what} again. ").repeat(4));
    let content = format!("{}\n\n{}\n\n{}", about("redis streams"), about("gardening roses"), about("redis streams"));
    let id = bench.xadd(stream, &[("kbId", "kb-7"), ("content", &content)]);
    let chinese = bench.xadd(stream, &[("kbId", "8"), ("content", "消费者组记录位置。消费者可以认领消息。")]);
    let view: Value = serde_json::from_str(&result(&mut bench, stream, &id)).expect("JSON");
    assert_eq!((&view["kbId"], &view["dimensions"], &view["method"]), (&json!("kb-7"), &json!(512), &json!("hashed-ngrams")));
    let pieces = view["chunks"].as_array().expect("pieces");
    assert_eq!(pieces.len(), 3, "{view}");
    let text =
        |piece: &Value| content[piece["from"].as_u64().expect("from") as usize..piece["to"].as_u64().expect("to") as usize].to_owned();
    assert!(text(&pieces[0]).starts_with("A document about redis") && text(&pieces[1]).starts_with("A document about gardening"));
    assert!(pieces[1]["keywords"].to_string().contains("\"roses\"") && !pieces[0]["keywords"].to_string().contains("roses"), "{view}");
    // The two pieces about the same are nearer to each other than to the third.
    let likeness = |a: &Value, b: &Value| -> f64 {
        let weights = |piece: &Value| -> Vec<(u64, f64)> { serde_json::from_value(piece["vector"].clone()).expect("a vector") };
        let b = weights(b);
        weights(a).iter().filter_map(|(place, weight)| Some(weight * b.iter().find(|(other, _)| other == place)?.1)).sum()
    };
    assert!((likeness(&pieces[0], &pieces[0]) - 1.0).abs() < 0.01, "{view}");
    assert!(likeness(&pieces[0], &pieces[2]) > likeness(&pieces[0], &pieces[1]) + 0.2, "{view}");
    assert!(result(&mut bench, stream, &chinese).contains("\"消费\""));
    let long = "x".repeat(200_001);
    for (fields, why) in [
        (vec![("content", "text")], "field `kbId` is missing"),
        (vec![("kbId", "1"), ("content", " \n ")], "field `content` is empty"),
        (vec![("kbId", " "), ("content", "text")], "field `kbId` is empty"),
        (vec![("kbId", "1"), ("content", &long)], "200001 characters"),
    ] {
        let id = bench.xadd(stream, &fields);
        bench.until(stream, &id, "FAILED");
        assert!(bench.status(stream, &id, "error").contains(why), "{}", bench.status(stream, &id, "error"));
        assert_eq!(bench.dead(stream).last().map(|letter| letter["tq-reason"].clone()).as_deref(), Some("rejected"));
    }
}

#[test]
fn they_can_be_tried() {
    let _alone = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
    for (handler, expected) in [("report-csv", "Ada Lovelace"), ("vectorize-text", "hashed-ngrams")] {
        let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins").join(handler).join("task.json");
        let view = tried_with(&cache_of("languages"), handler, &[sample.to_str().expect("UTF-8"), "--json"]).ok().json();
        assert!(view["result"].to_string().contains(expected), "{view}");
        assert_eq!((&view["log"][0]["level"], &view["progress"]["percent"]), (&json!("info"), &json!(50)), "{view}");
        let ran = tried_with(&cache_of("languages"), handler, &["--field", "other=1", "--json"]);
        assert_eq!((ran.code, &ran.json()["outcome"]), (1, &json!("reject")));
    }
}
