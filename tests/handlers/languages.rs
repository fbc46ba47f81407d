//! The handlers that are written in JavaScript, Python and C: real tasks through the real binary, and what
//! authors see of a mistake.
//!
//! These components are large, so they are compiled once for all tests and runs.
//!
//! Not here: projects of `tqhost new` in these languages (`authors`, `everyday`), the guest in Go (`go`).

use std::path::Path;
use std::sync::PoisonError;
use std::time::Duration;

use serde_json::{Value, json};

use super::authors::{COMPILING, cache_of, host_with_caches, tried_with};
use crate::support::application::{Application, Reply};
use crate::support::files::{put, said, version};
use crate::support::web::Service;
use crate::support::words::masked;
use crate::support::{Bench, Host, Web, eventually, within};

/// The limit for compiling a large component on a busy machine.
pub const COMPILES: Duration = Duration::from_secs(600);

const QUEUES: &str = "
[queues.report]
plugin = \"report-csv\"
max_retries = 1
backoff = { delays = [\"1ms\"] }
[queues.images]
plugin = \"image-info\"
max_retries = 0
[queues.reports]
[queues.javascript]
plugin = \"in-javascript\"
enqueue_to = [\"reports\"]
max_retries = 0
batch = { max_tasks = 1 }
[queues.python]
plugin = \"in-python\"
enqueue_to = [\"reports\"]
max_retries = 0
batch = { max_tasks = 1 }
[queues.go]
plugin = \"in-go\"
enqueue_to = [\"reports\"]
max_retries = 0
[queues.javascript-batches]
plugin = \"in-javascript\"
enqueue_to = [\"reports\"]
max_retries = 0
batch = { max_wait = \"1s\" }
[queues.python-batches]
plugin = \"in-python\"
enqueue_to = [\"reports\"]
max_retries = 0
batch = { max_wait = \"1s\" }
";

/// A host that has loaded these handlers, with these tables of grants.
pub fn host(handlers: &[&str], grants: &str) -> (Bench, Host) {
    let bench = Bench::new(QUEUES);
    let port = bench.redis.port;
    bench.configure(&format!(
        "{QUEUES}\n{grants}\n[redis]\nurl = \"redis://127.0.0.1:{port}\"\n[admin]\n\
         listen = \"127.0.0.1:0\"\n"
    ));
    for handler in handlers {
        bench.install(handler, handler);
    }
    let host = host_with_caches(&bench, "languages");
    within(COMPILES, "all handlers are loaded", || {
        (host.logged("plugin loaded").len() == handlers.len()).then_some(())
    });
    host.log("tqhost is running");
    (bench, host)
}

pub fn result(bench: &mut Bench, stream: &str, id: &str) -> String {
    bench.until(stream, id, "COMPLETED");
    bench.status(stream, id, "result")
}

#[test]
fn rows_become_a_csv_file() {
    let (mut bench, host) = host(&["report-csv"], "");
    let rows = r#"[{"id":1,"name":"Ada \"A\", née"},{"id":2,"name":"=1+1","more":[1]}]"#;
    let all = bench.xadd("report", &[("rows", rows)]);
    let some = bench.xadd("report", &[("rows", rows), ("columns", r#"["name","nothing"]"#), ("total", "2")]);
    assert_eq!(
        result(&mut bench, "report", &all),
        "id,name,more\r\n1,\"Ada \"\"A\"\", née\",\r\n2,'=1+1,[1]\r\n"
    );
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
        assert_eq!(
            bench.dead("report").last().map(|letter| letter["tq-reason"].clone()).as_deref(),
            Some("rejected")
        );
    }
    // The task is early: it has two rows of three. It is deferred, and no attempt is used.
    let early = bench.xadd("report", &[("rows", rows), ("total", "3")]);
    within(COMPILES, "it is deferred", || (bench.places("report").delayed == 1).then_some(()));
    assert_eq!(bench.status("report", &early, "error"), "2 of 3 rows are there");
    host.log("2 rows, 2 columns");
}

#[test]
fn a_configuration_that_cannot_be_used_is_retried_until_the_attempts_are_used_up() {
    let grants = "[plugins.report-csv]\nconfig = { delimiter = \"--\" }";
    let (mut bench, _host) = host(&["report-csv"], grants);
    let id = bench.xadd("report", &[("rows", "[]")]);
    bench.until("report", &id, "FAILED");
    insta::assert_snapshot!(bench.status("report", &id, "error"), @r"
    retry: the configuration key `delimiter` is not one character
    ");
    assert_eq!(bench.status("report", &id, "attempt"), "2");
}

/// A file's bytes up to the end of its header, its format, width and height.
fn images() -> Vec<(Vec<u8>, &'static str, u32, u32)> {
    let png =
        [&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..], &1920_u32.to_be_bytes(), &1080_u32.to_be_bytes()].concat();
    let gif = [&b"GIF89a"[..], &320_u16.to_le_bytes(), &200_u16.to_le_bytes()].concat();
    // The JPEG has a profile that looks like a frame, a marker without a length, and a marker that repeats
    // its first byte.
    let jpeg = [
        &b"\xff\xd8\xff\xe0\0\x0b\xff\xc0\0\x11\x08\0\x01\0\x01\xff\x01"[..],
        &b"\xff\xff\xff\xc2\0\x11\x08\x01\xe0\x02\x80"[..],
    ]
    .concat();
    let riff = |chunk: &[u8]| [&b"RIFF\0\0\0\0WEBP"[..], chunk].concat();
    let lossy = riff(b"VP8 \0\0\0\0\0\0\0\x9d\x01\x2a\x40\x01\xf0\x40");
    let bits: u32 = (400 - 1) | (300 - 1) << 14;
    let lossless = riff(&[&b"VP8L\0\0\0\0\x2f"[..], &bits.to_le_bytes()].concat());
    let extended = riff(b"VP8X\0\0\0\0\0\0\0\0\xff\xff\0\0\0\x01");
    vec![
        (png, "png", 1920, 1080),
        (gif, "gif", 320, 200),
        (jpeg, "jpeg", 640, 480),
        (lossy, "webp", 320, 240),
        (lossless, "webp", 400, 300),
        (extended, "webp", 65_536, 65_537),
    ]
}

/// Adds images as they are.
fn add(bench: &mut Bench, images: &[Vec<u8>]) -> Vec<String> {
    let mut pipe = redis::pipe();
    for image in images {
        pipe.cmd("XADD")
            .arg("images")
            .arg("*")
            .arg("traceparent")
            .arg("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        pipe.arg("image").arg(&image[..]);
    }
    pipe.query(&mut bench.db).expect("XADD")
}

#[test]
fn images_tell_their_size_and_damaged_ones_are_rejected() {
    for grants in ["", "[plugins.image-info]\nmemory = \"8MiB\"\ninstance = { warm = 1 }"] {
        let (mut bench, host) = host(&["image-info"], grants);
        let good = images();
        let files: Vec<Vec<u8>> = good.iter().map(|(bytes, ..)| bytes.clone()).collect();
        let ids = add(&mut bench, &files);
        for (id, (bytes, format, width, height)) in ids.iter().zip(&good) {
            let seen: Value = serde_json::from_str(&result(&mut bench, "images", id)).expect("JSON");
            assert_eq!(
                seen,
                json!({ "format": format, "width": width, "height": height, "bytes": bytes.len() })
            );
            let line = host.log(&format!("{format}, {width} x {height}"));
            assert_eq!((&line["task"], &line["plugin"]), (&json!(id), &json!("image-info")));
        }
        // A file that is cut off is rejected. A file with a changed byte is rejected unless it is still an
        // image. There is never a trap.
        let ended = |bench: &mut Bench, files: &[Vec<u8>]| -> Vec<bool> {
            let ids = add(bench, files);
            bench.until_drained("images");
            let rejected = |id: &String| {
                let (status, error) =
                    (bench.status("images", id, "status"), bench.status("images", id, "error"));
                assert!(
                    status == "COMPLETED" || status == "FAILED" && error.starts_with("field `image` "),
                    "{id}: {status}: {error}"
                );
                status == "FAILED"
            };
            ids.iter().map(rejected).collect()
        };
        let cut: Vec<Vec<u8>> =
            files.iter().flat_map(|file| (0..file.len()).map(|length| file[..length].to_vec())).collect();
        assert!(ended(&mut bench, &cut).into_iter().all(|rejected| rejected));
        let with = |byte: u8, file: &Vec<u8>, at: usize| [&file[..at], &[byte], &file[at + 1..]].concat();
        let changed: Vec<Vec<u8>> = files
            .iter()
            .flat_map(|file| {
                (0..file.len()).flat_map(move |at| [0, 1, 0xff].map(|byte| with(byte, file, at)))
            })
            .collect();
        let rejected = ended(&mut bench, &changed);
        assert!(rejected.contains(&true) && rejected.contains(&false));
        // These need more memory than an instance begins with, many times: the instance frees a task's
        // memory.
        let large = [&files[0][..], &[0; 3 << 20]].concat();
        let ids = add(&mut bench, &[large.clone(), large.clone(), large.clone(), large]);
        ids.iter().for_each(|id| bench.until("images", id, "COMPLETED"));
        let id = bench.xadd("images", &[("picture", "1")]);
        bench.until("images", &id, "FAILED");
        assert_eq!(bench.status("images", &id, "error"), "field `image` is missing");
        host.stop();
    }
}

/// The guests in other languages, each with its queue.
const GUESTS: [&str; 2] = ["in-javascript", "in-python"];

#[test]
fn an_exception_tells_its_author_what_it_was() {
    let (mut bench, host) = host(&GUESTS, "");
    let mut ended = |queue: &str, end: &str| {
        let id = bench.xadd(queue, &[("end", end)]);
        bench.until(queue, &id, "FAILED");
        let error = bench.dead(queue).last().expect("a dead letter")["tq-error"].clone();
        (id, error)
    };
    let table = [
        ("javascript", "throw", "TypeError: boom in JavaScript", "in explode"),
        ("javascript", "number", "42", ""),
        ("javascript", "caused", "RangeError: it was not there", "caused by Error: boom in JavaScript"),
        ("javascript", "recursion", "InternalError: too much recursion", "in again"),
        ("python", "throw", "LookupError: boom in Python", "in explode"),
        ("python", "exit", "SystemExit: 3", "in work"),
        ("python", "caused", "ValueError: it was not there", "caused by LookupError: boom in Python"),
        ("python", "recursion", "RecursionError: maximum recursion depth exceeded", "in recurse"),
    ];
    for (queue, end, what, place) in table {
        let (id, error) = ended(queue, end);
        let trap = "trap: ";
        assert!(
            error.strip_prefix(trap).is_some_and(|error| error.starts_with(what) && error.contains(place)),
            "{queue} {end}: {error}"
        );
        // The log has the message with the task's id.
        let is_told = |line: &Value| {
            line["task"] == *id && line["level"] == "ERROR" && line["message"].to_string().contains(place)
        };
        eventually(&format!("{queue} {end} is logged"), || {
            host.logged(what).iter().any(is_told).then_some(())
        });
    }
    // Without the project's helper, the JavaScript engine only knows that the handler has ended.
    for (queue, what) in [("javascript", "an uncaught exception"), ("python", "LookupError: boom in Python")]
    {
        let (_, error) = ended(queue, "uncaught");
        assert!(error.starts_with("trap: ") && error.contains(what), "{queue}: {error}");
    }
    host.stop();
}

#[test]
fn clocks_sleep_and_asyncio_work_in_python_in_fresh_and_warm_instances() {
    for grants in ["", "[plugins.in-python]\ninstance = { warm = 1 }"] {
        let (mut bench, host) = host(&["in-python"], grants);
        for _ in 0..3 {
            let id = bench.xadd("python", &[("end", "clocks")]);
            let seen: Value = serde_json::from_str(&result(&mut bench, "python", &id)).expect("JSON");
            let number = |name: &str| seen[name].as_f64().expect("a number");
            assert!((0.01..20.0).contains(&number("slept")), "{seen}");
            assert_eq!(seen["both"], json!([1, 2]));
            assert!((number("now") - number("seconds")).abs() < 20.0, "{seen}");
            // After 2020: it is the wall clock.
            assert!(number("now") > 1_577_836_800.0, "{seen}");
            assert!(seen["printed"].to_string().contains("LookupError: boom in Python"), "{seen}");
        }
        host.log("warned by the module warnings");
        host.log("logged by the module logging");
        host.stop();
    }
}

#[test]
fn a_version_that_throws_is_rolled_back_and_what_follows_from_a_failed_request_is_not_held_against_it() {
    let web = Web::start();
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|taken| taken.local_addr())
        .expect("an address")
        .port();
    let closed = format!("http://127.0.0.1:{closed}");
    let (mut bench, host) = host(&GUESTS, &may_ask(&[&web.origin(), &closed], ""));
    let outside = [
        format!("{}/down", web.origin()),
        format!("{}/busy", web.origin()),
        format!("{}/cut", web.origin()),
        closed,
    ];
    for (queue, what) in
        [("javascript", "TypeError: boom in JavaScript"), ("python", "LookupError: boom in Python")]
    {
        let guest = format!("in-{queue}");
        let new = version(&guest, 1);
        put(&bench, &guest, &new);
        within(COMPILES, "the new version runs", || {
            host.logged("plugin loaded")
                .iter()
                .any(|line| line["plugin"] == *guest && line["on_probation"] == true)
                .then_some(())
        });
        for url in &outside {
            let id = bench.xadd(queue, &[("end", "throw"), ("url", url)]);
            bench.until(queue, &id, "FAILED");
            let error = bench.status(queue, &id, "error");
            assert!(error.starts_with(&format!("retry: {what}")), "{queue} {url}: {error}");
        }
        let ids = [(); 6].map(|()| bench.xadd(queue, &[("end", "throw")]));
        let reason =
            said(&host, "plugin version rolled back", &new)["reason"].as_str().expect("a reason").to_owned();
        let why = "it spoiled 6 tasks, and 1 ended well; trap: ";
        assert!(reason.starts_with(&format!("{why}{what}")), "{reason}");
        // The first version is bad too, and there is no other.
        ids.iter().for_each(|id| bench.until(queue, id, "FAILED"));
        host.until_ended_as(queue, "given-back", 6);
    }
    host.stop();
}

#[test]
fn random_values_differ_from_task_to_task() {
    let (mut bench, host) = host(&GUESTS, "");
    for queue in ["javascript", "python"] {
        let [one, other] = [(); 2].map(|()| -> Value {
            let id = bench.xadd(queue, &[("end", "random")]);
            serde_json::from_str(&result(&mut bench, queue, &id)).expect("JSON")
        });
        let drawn =
            |seen: &Value| seen["drawn"].as_array().cloned().unwrap_or_else(|| vec![seen["drawn"].clone()]);
        for (one, other) in drawn(&one).into_iter().zip(drawn(&other)) {
            assert!(one.is_f64() && one != other, "{queue}: {one} {other}");
        }
        let version = |seen: &Value| seen["uuid"].as_str().map(|uuid| (uuid.len(), uuid.as_bytes()[14]));
        assert!(one["uuid"] != other["uuid"] && version(&one) == Some((36, b'4')), "{queue}: {one} {other}");
        // A seed that the handler chose is kept.
        assert_eq!(one["seeded"], other["seeded"], "{queue}");
    }
    host.stop();
}

#[test]
fn a_printed_line_bears_its_task() {
    let (mut bench, host) = host(&GUESTS, "");
    let lines = [
        ("javascript", "info", "printed by {} {\"n\":1}"),
        ("javascript", "error", "complained by {}"),
        ("python", "info", "printed by {} {'n': 1}"),
        ("python", "warn", "complained by {}"),
        ("python", "warn", "WARNING:root:warned by {}"),
        ("python", "info", "unfinished by {}"),
    ];
    for queue in ["javascript", "python"] {
        let ids = [(); 2].map(|()| bench.xadd(queue, &[("a", "1")]));
        for id in &ids {
            let seen = result(&mut bench, queue, id);
            for (_, level, text) in lines.iter().filter(|(of, ..)| *of == queue) {
                let line = host.log(&text.replace("{}", id));
                let expected = (json!(id), json!(queue), json!(level.to_uppercase()));
                assert_eq!(
                    (line["task"].clone(), line["queue"].clone(), line["level"].clone()),
                    expected,
                    "{line}"
                );
            }
            if queue == "python" {
                let seen: Value = serde_json::from_str(&seen).expect("JSON");
                let enqueued: f64 = bench.status(queue, id, "enqueued_at").parse().expect("a time");
                let told = seen["seconds"].as_f64().expect("seconds") * 1000.0;
                // The handler's clock agrees with the host's.
                assert!((enqueued - 1000.0..enqueued + 60_000.0).contains(&told), "{enqueued} {told}");
            }
        }
    }
    // A handler can also be an async function.
    let id = bench.xadd("javascript", &[("end", "promise")]);
    assert_eq!(result(&mut bench, "javascript", &id), "{\"tasks\":1}");
    assert!(host.stop_for_log().logged("nowhere").is_empty());
}

#[test]
fn several_tasks_come_in_one_call() {
    let (mut bench, host) = host(&["in-javascript", "in-python"], "");
    for (queue, boom) in [
        ("javascript-batches", "TypeError: boom in JavaScript"),
        ("python-batches", "LookupError: boom in Python"),
    ] {
        // All tasks are enqueued in one step, so that they come together.
        let together = |bench: &mut Bench, ends: &[&str]| -> Vec<String> {
            let mut pipe = redis::pipe();
            pipe.atomic();
            for end in ends {
                pipe.cmd("XADD").arg(&[queue, "*", "end", end]);
            }
            pipe.query(&mut bench.db).expect("XADD")
        };
        let ids = together(&mut bench, &["well", "reject", "well"]);
        for id in [&ids[0], &ids[2]] {
            assert_eq!(result(&mut bench, queue, id), "{\"batch\":3}");
        }
        bench.until(queue, &ids[1], "FAILED");
        assert_eq!(bench.status(queue, &ids[1], "error"), "as told");
        // A call that fails is logged with its reason, and each task runs alone.
        let ids = together(&mut bench, &["well", "throw"]);
        assert!(result(&mut bench, queue, &ids[0]).starts_with("{\"tasks\":1"));
        bench.until(queue, &ids[1], "FAILED");
        let is_told = |line: &Value| line["batch"] == 2 && line["task"] == ids[0];
        eventually("it is told of", || host.logged(boom).iter().any(is_told).then_some(()));
    }
    host.stop();
}

#[test]
fn effects_commit_with_the_task_alone_and_in_batches() {
    let grants = GUESTS.map(|guest| format!("[plugins.{guest}]\nrecords = [\"kb:*\"]\n")).concat();
    let (mut bench, host) = host(&GUESTS, &grants);
    for language in ["javascript", "python"] {
        let plugin = format!("in-{language}");
        let expected = |count: u64| {
            json!({
                "fence": 1, "count": count, "seen": { "by": language }, "gone": true,
                "record": { "by": language, "n": "1" }, "children": [],
            })
        };
        let record = |bench: &mut Bench, key: &str| -> Vec<(String, String)> { bench.redis("HGETALL", key) };
        for n in 1..=5 {
            let _: u64 = bench.redis("DEL", format!("kb:{n}"));
        }
        // Two tasks alone, the second of which sees what the first one has committed.
        for (count, key) in [(2, "kb:1"), (4, "kb:2")] {
            let id = bench.xadd(language, &[("end", "effects"), ("key", key)]);
            let seen: Value = serde_json::from_str(&result(&mut bench, language, &id)).expect("JSON");
            assert_eq!(seen, expected(count), "{language}");
            let fields = [("by".to_owned(), language.to_owned()), ("n".to_owned(), "1".to_owned())];
            assert_eq!(record(&mut bench, key), fields, "{language}");
            let lives: i64 = bench.redis("PTTL", key);
            assert!((1..=60_000).contains(&lives), "{language}: {lives}");
        }
        // In a batch, the rejected task has no effects, and each other one has its own.
        let queue = format!("{language}-batches");
        let mut pipe = redis::pipe();
        pipe.atomic();
        for (end, key) in [("effects", "kb:3"), ("reject", "kb:4"), ("effects", "kb:5")] {
            pipe.cmd("XADD").arg(&[&queue, "*", "end", end, "key", key]);
        }
        let ids: Vec<String> = pipe.query(&mut bench.db).expect("XADD");
        bench.until(&queue, &ids[1], "FAILED");
        for id in [&ids[0], &ids[2]] {
            let seen: Value = serde_json::from_str(&result(&mut bench, &queue, id)).expect("JSON");
            assert_eq!(seen, expected(2), "{queue}");
        }
        let written = ["kb:3", "kb:4", "kb:5"].map(|key| record(&mut bench, key).len());
        assert_eq!(written, [2, 0, 2], "{queue}");
        // Queues without a common hash tag have values of their own.
        for (queue, sum) in [(language, "4"), (&*queue, "4")] {
            let count: String = bench.redis("GET", format!("tq:{{{queue}}}:state:{plugin}:count"));
            assert_eq!(count, sum, "{queue}");
            let gone: u64 = bench.redis("EXISTS", format!("tq:{{{queue}}}:state:{plugin}:gone"));
            assert_eq!(gone, 0, "{queue}");
            let late = format!("tq:{{{queue}}}:state:{plugin}:late");
            eventually("it is gone", || (bench.redis::<u64>("EXISTS", &late) == 0).then_some(()));
        }
        // Four tasks have enqueued one each, all with one key, which the first of them has.
        let enqueued: Vec<String> = bench.redis("KEYS", "tq:{reports}:task:*");
        let holder: String = bench.redis("GET", "tq:{reports}:key:once");
        assert!(enqueued.contains(&format!("tq:{{reports}}:task:{holder}")), "{enqueued:?}");
        assert_eq!(enqueued.len(), if language == "javascript" { 4 } else { 8 });
        let places = bench.places("reports");
        assert_eq!((places.length + places.delayed) as usize, enqueued.len(), "{places:?}");
    }
    host.stop();
}

/// Tables that allow the guests to send requests to these hosts.
fn may_ask(hosts: &[&str], http: &str) -> String {
    GUESTS
        .map(|guest| format!("[plugins.{guest}]\nallowed_hosts = {hosts:?}\nhttp = {{ {http} }}\n"))
        .concat()
}

#[test]
fn tasks_that_wait_share_an_instance_and_each_has_what_is_its_own() {
    let web = Web::start();
    let shares = GUESTS
        .map(|guest| {
            format!(
                "[plugins.{guest}]\nallowed_hosts = [{:?}]\ninstance = {{ concurrent = 100 }}\n",
                web.origin()
            )
        })
        .concat();
    let (mut bench, host) = host(&GUESTS, &shares);
    let url = format!("{}/size", web.origin());
    for queue in ["javascript", "python"] {
        let mut pipe = redis::pipe();
        pipe.atomic();
        for n in 0..10 {
            let end = if n == 3 { "waits, throws" } else { "waits" };
            pipe.cmd("XADD").arg(&[queue, "*", "end", end, "url", &url]);
        }
        let ids: Vec<String> = pipe.query(&mut bench.db).expect("XADD");
        for (n, id) in ids.iter().enumerate() {
            let line = host.log(&format!("waited by {id}"));
            assert_eq!(line["task"], **id, "{line}");
            if n == 3 {
                bench.until(queue, id, "FAILED");
                let error = bench.status(queue, id, "error");
                assert!(error.contains("boom in "), "{error}");
                continue;
            }
            let seen: Value = serde_json::from_str(&result(&mut bench, queue, id)).expect("JSON");
            assert_eq!(seen["count"], 201, "{queue}");
        }
    }
    // A clock that a task leaves behind is not taken for a task.
    assert_eq!(host.logged("an instance failed"), Vec::<Value>::new());
    host.stop();
}

/// Ways to misbehave in an instance with others: what becomes of the task, and whether its instance fails.
const CLUMSY: [(&str, &str, &str, bool); 22] = [
    ("python", "endless", "timeout: ", true),
    ("python", "blocks", "timeout: ", true),
    ("python", "spins", "timeout: ", false),
    ("python", "deaf", "timeout: ", false),
    ("python", "never", "timeout: ", false),
    ("python", "hoards", "out-of-memory: ", false),
    ("python", "leaves", "", false),
    ("python", "exits in a child", "trap: ", true),
    ("python", "aborts", "trap: ", true),
    ("python", "large", "output-too-large: ", false),
    ("python", "floods", "", false),
    ("python", "clocks", "", false),
    ("javascript", "endless", "timeout: ", true),
    ("javascript", "spins", "timeout: ", true),
    ("javascript", "deaf", "timeout: ", false),
    ("javascript", "never", "timeout: ", false),
    ("javascript", "sleeps", "timeout: ", false),
    ("javascript", "hoards", "out-of-memory: ", false),
    ("javascript", "leaves", "", false),
    ("javascript", "large", "output-too-large: ", false),
    ("javascript", "floods", "", false),
    ("javascript", "throw", "trap: TypeError: boom in JavaScript", false),
];

#[test]
fn a_task_that_misbehaves_beside_others_costs_them_no_attempt() {
    let shared = GUESTS.map(|guest| {
        let queue = guest.trim_start_matches("in-");
        format!(
            "[queues.shared-{queue}]\nplugin = \"{guest}\"\nconcurrency = 20\ntimeout = \"6s\"\n\
             max_retries = 0\n[plugins.{guest}]\ninstance = {{ concurrent = 20 }}\n"
        )
    });
    let (mut bench, host) = host(&GUESTS, &shared.concat());
    let mut unfair = Vec::new();
    for (language, end, error, fails) in CLUMSY {
        let queue = format!("shared-{language}");
        let failed = host.logged("an instance failed").len() + host.logged("an instance is stopped").len();
        let mut pipe = redis::pipe();
        pipe.atomic();
        for n in 0..20 {
            pipe.cmd("XADD").arg(&[queue.as_str(), "*", "end", if n == 3 { end } else { "naps" }]);
        }
        let ids: Vec<String> = pipe.query(&mut bench.db).expect("XADD");
        bench.until_drained(&queue);
        for (n, id) in ids.iter().enumerate() {
            let [status, said, attempt, result] =
                ["status", "error", "attempt", "result"].map(|field| bench.status(&queue, id, field));
            let is_right = match (n, error) {
                (3, "") => status == "COMPLETED",
                (3, error) => status == "FAILED" && said.starts_with(error),
                _ => {
                    status == "COMPLETED"
                        && attempt == "1"
                        && result == format!("{{\"id\":\"{id}\",\"count\":1}}")
                }
            };
            if !is_right {
                unfair.push(format!("{queue}, {end}: task {n}: {status} {said} {result}"));
            }
        }
        let now = host.logged("an instance failed").len() + host.logged("an instance is stopped").len();
        if (now > failed) != fails {
            unfair.push(format!("{queue}, {end}: instances that failed: {}", now - failed));
        }
    }
    for note in ["before ", "after "] {
        for line in host.logged(note) {
            let of = line["message"].as_str().and_then(|message| message.strip_prefix(note));
            if of.is_some_and(|id| line["task"] != *id) {
                unfair.push(line.to_string());
            }
        }
    }
    assert!(unfair.is_empty(), "{}", unfair.join("\n"));
    host.stop();
}

#[test]
fn requests_are_answered() {
    let web = Web::start();
    let (mut bench, host) = host(&GUESTS, &may_ask(&[&web.origin()], ""));
    let [echo, size] = ["/echo?key=value#part", "/size"].map(|path| format!("{}{path}", web.origin()));
    for queue in ["javascript", "python"] {
        let mut answered = |fields: &[(&str, &str)]| -> Value {
            let id = bench.xadd(queue, fields);
            serde_json::from_str(&result(&mut bench, queue, &id)).expect("JSON")
        };
        let seen = answered(&[("url", &echo), ("header", "x-whose")]);
        assert_eq!((&seen["status"], &seen["type"]), (&json!(200), &json!("text/plain")), "{queue}: {seen}");
        let head = seen["body"].as_str().expect("a body").to_lowercase();
        for line in [
            "get /echo?key=value http/1.1\r\n",
            &format!("\r\nhost: 127.0.0.1:{}\r\n", web.port),
            "\r\nx-whose: own\r\n",
        ] {
            assert!(head.contains(line), "{queue}: {line:?} in {head}");
        }
        // The body is larger than the host takes at once.
        let seen = answered(&[("url", &size), ("bodySize", "300000")]);
        assert_eq!((&seen["status"], &seen["body"]), (&json!(200), &json!("300000")), "{queue}: {seen}");
        let seen = answered(&[("url", &format!("{}/nowhere", web.origin()))]);
        assert_eq!(seen, json!({ "status": 404, "type": null, "body": "" }), "{queue}");
    }
    // The server answers only when both requests are there at once.
    let id = bench.xadd("javascript", &[("url", &format!("{}/meet", web.origin())), ("times", "2")]);
    assert!(result(&mut bench, "javascript", &id).contains("\"met\""));
    // The standard `Response` takes none of these by itself: three statuses, and a body after 205.
    for (status, body) in [(101, ""), (205, ""), (600, "told"), (999, "told")] {
        let url = format!("{}/status?{status}", web.origin());
        let id = bench.xadd("javascript", &[("url", &url)]);
        let seen: Value = serde_json::from_str(&result(&mut bench, "javascript", &id)).expect("JSON");
        assert_eq!(seen, json!({ "status": status, "type": null, "body": body }));
    }
    host.stop();
}

#[test]
fn requests_that_fail_become_retries_or_rejections_that_say_why() {
    let (web, other) = (Web::start(), Web::start());
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|taken| taken.local_addr())
        .expect("an address")
        .port();
    let closed = format!("http://127.0.0.1:{closed}");
    let bounds =
        "max_request_body = \"100KiB\", max_response_body = \"1MiB\", between_bytes_timeout = \"500ms\"";
    let (mut bench, host) = host(&GUESTS, &may_ask(&[&web.origin(), &closed], bounds));
    let page = |path: &str| format!("{}{path}", web.origin());
    let denied = format!(
        "retry: the request to 127.0.0.1:{} is refused: the plugin's allowed_hosts do not allow it",
        other.port
    );
    let refused = format!("retry: {} refuses connections", closed.trim_start_matches("http://"));
    let [late, early] = ["did not answer in time", "ended the connection too early"]
        .map(|why| format!("retry: 127.0.0.1:{} {why}", web.port));
    let large = "the response is larger than the plugin's max_response_body".to_owned();
    let url = "the url has no host, or a user name in it".to_owned();
    let none: [(&str, &str); 0] = [];
    let body: &[(&str, &str)] = &[("bodySize", "50000")];
    let time: &[(&str, &str)] = &[("seconds", "0.2")];
    /// A URL, other fields of its task, the error that it ends with, and the error's code.
    type Case<'c> = (String, &'c [(&'c str, &'c str)], String, &'c str);
    let table: [Case<'_>; 14] = [
        (format!("{}/echo?token=hunter2", other.origin()), &none, denied.clone(), "HTTP-request-denied"),
        (format!("{}/size", other.origin()), body, denied, "HTTP-request-denied"),
        (closed.clone(), &none, refused.clone(), "connection-refused"),
        (closed, body, refused, "connection-refused"),
        (page("/endless"), &none, large, "HTTP-response-body-size"),
        (page("/chunks"), time, late.clone(), "HTTP-response-timeout"),
        (
            page("/size"),
            &[("bodySize", "200000")],
            "the request is larger than the plugin's max_request_body".into(),
            "HTTP-request-body-size",
        ),
        (page("/cut"), &none, early, "HTTP-response-incomplete"),
        (page("/stuck"), &none, late.clone(), "connection-read-timeout"),
        (page("/silent"), time, late.clone(), "HTTP-response-timeout"),
        (page("/drip"), time, late, "HTTP-response-timeout"),
        (page("/echo"), &[("header", "host")], "the header `host` cannot be sent".into(), "forbidden"),
        (format!("http://user:hunter2@127.0.0.1:{}/", web.port), &none, url, "HTTP-request-URI-invalid"),
        (
            "ftp://127.0.0.1/".into(),
            &none,
            "the url does not begin with http:// or https://".into(),
            "HTTP-request-URI-invalid",
        ),
    ];
    for queue in ["javascript", "python"] {
        for (url, fields, why, code) in &table {
            let fields = [&[("url", url.as_str())], *fields].concat();
            let id = bench.xadd(queue, &fields);
            bench.until(queue, &id, "FAILED");
            let letter = bench.dead(queue).last().expect("a dead letter").clone();
            assert!(letter["tq-error"].starts_with(why), "{queue} {fields:?}: {letter:?}");
            let reason = if why.starts_with("retry: ") { "retries-exhausted" } else { "rejected" };
            assert_eq!(letter["tq-reason"], reason, "{queue} {fields:?}: {letter:?}");
            // A handler that catches the error gets the code.
            let id = bench.xadd(queue, &[&fields[..], &[("end", "code")]].concat());
            assert_eq!(result(&mut bench, queue, &id), *code, "{queue} {fields:?}");
        }
    }
    assert_eq!(other.requests(), 0);
    assert!(!host.raw().contains("hunter2"), "no query and no password is logged");
    // In a batch each task has its own error.
    for queue in ["javascript-batches", "python-batches"] {
        let mut pipe = redis::pipe();
        pipe.atomic();
        for url in [page("/echo"), format!("{}/echo", other.origin()), page("/cut")] {
            pipe.cmd("XADD").arg(&[queue, "*", "url", &url]);
        }
        let ids: Vec<String> = pipe.query(&mut bench.db).expect("XADD");
        assert!(result(&mut bench, queue, &ids[0]).contains("\"status\":200"));
        for (id, why) in [(&ids[1], "is refused"), (&ids[2], "too early")] {
            bench.until(queue, id, "FAILED");
            assert!(bench.status(queue, id, "error").contains(why), "{}", bench.status(queue, id, "error"));
        }
    }
    host.stop();
}

#[test]
fn without_a_grant_no_request_leaves_and_who_makes_none_is_not_told_of() {
    let web = Web::start();
    let (mut bench, host) = host(&["in-javascript", "in-python", "report-csv"], "");
    let mut told: Vec<Value> = host
        .until_logged("its allowed_hosts allows none", 2)
        .iter()
        .map(|line| line["plugin"].clone())
        .collect();
    told.sort_by_key(ToString::to_string);
    assert_eq!(told, ["in-javascript", "in-python"]);
    let errors = ["javascript", "python"].map(|queue| {
        let id = bench.xadd(queue, &[("url", &format!("{}/echo", web.origin()))]);
        bench.until(queue, &id, "FAILED");
        let error = bench.status(queue, &id, "error");
        masked(error.split_once(" at ").expect("a place in the handler").0, &[])
    });
    insta::assert_snapshot!(errors.join("\n"), @"
    retry: the request to 127.0.0.1:PORT is refused: the plugin's allowed_hosts do not allow it, or \
    max_requests were made
    retry: the request to 127.0.0.1:PORT is refused: the plugin's allowed_hosts do not allow it, or \
    max_requests were made
    ");
    assert_eq!(web.requests(), 0);
    host.stop();
}

/// Asserts the delay that a handler makes of each way to write `Retry-After`. All that is longer than a day
/// is the same to the host.
pub fn understands_retry_after(web: &Web, config: &str, guest: &str) {
    const DAY_MS: u64 = 24 * 3600 * 1000;
    for (headers, expected) in [
        ("retry-after: 20.0\r\n", Some(20_000)),
        ("retry-after: 1.5\r\n", Some(2000)),
        (
            "date: Tue, 28 Jul 2026 10:00:10 GMT\r\nretry-after: Tue, 28 Jul 2026 10:00:30 +0000\r\n",
            Some(20_000),
        ),
        ("retry-after: Fri, 31 Dec 9999 23:59:59 GMT\r\n", Some(DAY_MS)),
        ("retry-after: 99999999999999999999\r\n", Some(DAY_MS)),
    ] {
        web.set_service(Service::Answers("429 Too Many Requests", headers));
        let url = format!("url={}/service", web.origin());
        let args = ["--config", config, "--field", &url, "--json"];
        let view = tried_with(&cache_of("languages"), guest, &args).json();
        assert_eq!(view["outcome"], "unavailable", "{guest} {headers}: {view}");
        let after = view["after_ms"].as_u64().map(|after| after.min(DAY_MS));
        assert_eq!(after, expected, "{guest} {headers}: {view}");
    }
}

#[test]
fn a_busy_server_says_when_to_come_again() {
    let web = Web::start();
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("tqhost.toml");
    let closing = Application::start(|_| Reply::lost());
    let grants = may_ask(&[&web.origin(), &closing.origin()], "");
    std::fs::write(&config, format!("[queues.q]\n{grants}")).expect("write");
    let _alone = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
    for guest in GUESTS {
        let (config, url) = (config.to_str().expect("UTF-8"), format!("url={}/busy", web.origin()));
        let view =
            tried_with(&cache_of("languages"), guest, &["--config", config, "--field", &url, "--json"])
                .json();
        assert_eq!(
            (&view["outcome"], &view["after_ms"], &view["message"]),
            (&json!("unavailable"), &json!(7000), &json!("the server is busy")),
            "{view}"
        );
        // The outcome is the same if the handler ignores the answer and throws.
        let url = format!("url={}/down", web.origin());
        let view = tried_with(
            &cache_of("languages"),
            guest,
            &["--config", config, "--field", &url, "--field", "end=throw", "--json"],
        )
        .json();
        assert_eq!((&view["outcome"], &view["after_ms"]), (&json!("unavailable"), &json!(9000)), "{view}");
        // A request that names no timeout ends before the attempt does.
        let url = format!("url={}/silent", web.origin());
        let args = ["--config", config, "--field", &url, "--timeout", "5s", "--json"];
        let view = tried_with(&cache_of("languages"), guest, &args).json();
        assert_eq!(view["outcome"], "unavailable", "{view}");
        // A connection that ends before the answer is no answer at all; one that ends within it is one.
        for (url, outcome) in [(closing.origin(), "unavailable"), (format!("{}/cut", web.origin()), "retry")]
        {
            let args = ["--config", config, "--field", &format!("url={url}"), "--json"];
            let view = tried_with(&cache_of("languages"), guest, &args).json();
            assert_eq!(view["outcome"], outcome, "{view}");
        }
        understands_retry_after(&web, config, guest);
    }
}

#[test]
fn a_time_is_rounded_up_to_a_whole_number_from_0_on_and_progress_down() {
    let _alone = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
    for (guest, outcome) in
        GUESTS.into_iter().flat_map(|guest| ["retry", "unavailable", "defer"].map(|outcome| (guest, outcome)))
    {
        let args = ["--field", &format!("end={outcome}"), "--json"];
        let view = tried_with(&cache_of("languages"), guest, &args).json();
        assert_eq!((&view["outcome"], &view["after_ms"]), (&json!(outcome), &json!(2)), "{guest}: {view}");
    }
    for guest in GUESTS {
        let args = ["--field", "end=defer", "--field", "number=-0.5", "--json"];
        let view = tried_with(&cache_of("languages"), guest, &args).json();
        assert_eq!((&view["outcome"], &view["after_ms"]), (&json!("defer"), &json!(0)), "{guest}: {view}");
    }
    let args = ["--field", "end=progress", "--json"];
    let view = tried_with(&cache_of("languages"), "in-python", &args).ok().json();
    assert_eq!(view["progress"]["percent"], 33, "{view}");
}

#[test]
fn a_number_that_the_host_does_not_take_is_named_in_the_error() {
    let _alone = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
    for (guest, end, number, why) in [
        ("in-javascript", "retry", r#""soon""#, "TypeError: `afterMs` is a number of milliseconds, not soon"),
        ("in-python", "retry", "Infinity", "ValueError: `after_ms` is a number of milliseconds, not inf"),
        ("in-python", "unavailable", "NaN", "`after_ms` is a number of milliseconds, not nan"),
        ("in-python", "defer", r#""soon""#, "`after_ms` is a number of milliseconds, not 'soon'"),
        ("in-python", "count", "1.5", "ValueError: `delta` is a whole number of 64 bits, not 1.5"),
        ("in-javascript", "count", "1.5", "TypeError: `delta` is a whole number of 64 bits, not 1.5"),
        ("in-javascript", "count", "1e19", "`delta` is a whole number of 64 bits, not 10000000000000000000"),
        ("in-python", "progress", "NaN", "ValueError: `percent` is a number, not nan"),
        ("in-python", "progress", "null", "ValueError: `percent` is a number, not None"),
    ] {
        let fields = [format!("end={end}"), format!("number={number}")];
        let args = ["--field", &fields[0], "--field", &fields[1], "--json"];
        let view = tried_with(&cache_of("languages"), guest, &args).json();
        assert_eq!((&view["outcome"], &view["kind"]), (&json!("failed"), &json!("trap")), "{guest}: {view}");
        assert!(view["message"].to_string().contains(why), "{guest} {number}: {view}");
    }
}

#[test]
fn globals_are_seen_by_later_tasks_of_a_warm_instance_only() {
    let count = |bench: &mut Bench, queue: &str| -> u64 {
        let id = bench.xadd(queue, &[("a", "1")]);
        let seen: Value = serde_json::from_str(&result(bench, queue, &id)).expect("JSON");
        seen["tasks"].as_u64().expect("a number")
    };
    let warm =
        GUESTS.map(|guest| format!("[plugins.{guest}]\ninstance = {{ warm = 1, max_tasks = 3 }}\n")).concat();
    for (grants, expected) in [("", [1, 1, 1, 1, 1]), (&*warm, [1, 2, 3, 1, 2])] {
        let (mut bench, host) = host(&GUESTS, grants);
        for queue in ["javascript", "python"] {
            assert_eq!([(); 5].map(|()| count(&mut bench, queue)), expected, "{queue} {grants}");
            // A task that ends as a trap takes its instance with it.
            let id = bench.xadd(queue, &[("end", "uncaught")]);
            bench.until(queue, &id, "FAILED");
            assert_eq!(count(&mut bench, queue), 1, "{queue} {grants}");
        }
        host.stop();
    }
}

#[test]
fn they_can_be_tried() {
    let _alone = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/report-csv/task.json");
    let of_sample = [sample.to_str().expect("UTF-8"), "--json"];
    let view = tried_with(&cache_of("languages"), "report-csv", &of_sample).ok().json();
    assert!(view["result"].to_string().contains("Ada Lovelace"), "{view}");
    assert_eq!(
        (&view["log"][0]["level"], &view["progress"]["percent"]),
        (&json!("info"), &json!(50)),
        "{view}"
    );
    let ran = tried_with(&cache_of("languages"), "report-csv", &["--field", "other=1", "--json"]);
    assert_eq!((ran.code, &ran.json()["outcome"]), (1, &json!("reject")));
    let sample = format!(
        "image=@{}",
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/image-info/sample.png").display()
    );
    let view = tried_with(&cache_of("guests"), "image-info", &["--field", &sample, "--json"]).ok().json();
    assert_eq!(
        (&view["result"]["width"], &view["log"][0]["text"]),
        (&json!(32), &json!("png, 32 x 20")),
        "{view}"
    );
}
