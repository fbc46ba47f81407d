//! `examples/1-interview-platform`: three streams behind an application, with the statuses in its table.
//!
//! The old consumers acknowledge without deleting, add a failed task again with a count, and have no dead
//! letters.
//!
//! The table is the test's: the old consumers write it themselves, and tqhost tells the application of each
//! end. Not here: the handlers (`handlers`), holds (`queue::hold`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Map, Value, json};

use super::{OldConsumer, configuration, has_the_series_of, secret};
use crate::handlers::resume_model;
use crate::support::application::{Application, Call, Reply, SECRET};
use crate::support::{Bench, Host, eventually};

const EXAMPLE: &str = include_str!("../../examples/1-interview-platform/tqhost.toml");
const README: &str = include_str!("../../examples/1-interview-platform/README.md");

/// A queue of the platform.
struct Line {
    queue: &'static str,
    stream: &'static str,
    /// The records that its tasks are about, and the field with the record's id.
    kind: &'static str,
    field: &'static str,
    payload: &'static str,
    /// The old consumer is killed while it works on this record.
    hangs: &'static str,
}

const LINES: [Line; 3] = [
    Line {
        queue: "resume-analyze",
        stream: "resume:analyze:stream",
        kind: "resume",
        field: "resumeId",
        payload: include_str!("../../examples/1-interview-platform/resume.json"),
        hangs: "p-slow",
    },
    Line {
        queue: "kb-vectorize",
        stream: "knowledgebase:vectorize:stream",
        kind: "knowledgebase",
        field: "kbId",
        payload: include_str!("../../examples/1-interview-platform/knowledge-base.json"),
        hangs: "p-slow",
    },
    // It has been added again, and is not acknowledged yet: two entries of one session.
    Line {
        queue: "interview-evaluate",
        stream: "interview:evaluate:stream",
        kind: "session",
        field: "sessionId",
        payload: include_str!("../../examples/1-interview-platform/session.json"),
        hangs: "p-torn",
    },
];

/// The statuses that are ends.
const ENDS: [&str; 3] = ["COMPLETED", "FAILED", "CANCELLED"];

/// The application's table, and every end of a record: who ended it, and how.
#[derive(Default)]
struct Table {
    rows: BTreeMap<String, (String, String)>,
    ends: BTreeMap<String, Vec<String>>,
    /// Ends of tasks without an id.
    strange: usize,
}

impl Table {
    fn update(&mut self, row: &str, status: &str, error: &str, who: &str) {
        self.rows.insert(row.to_owned(), (status.to_owned(), error.to_owned()));
        if ENDS.contains(&status) {
            self.ends.entry(row.to_owned()).or_default().push(format!("{who} {status}"));
        }
    }

    /// Whether every record has ended.
    fn is_settled(&self) -> bool {
        self.rows.values().all(|(status, _)| ENDS.contains(&status.as_str()))
    }
}

/// The table's interface for the old consumers, and what tqhost asks and tells.
fn answer(table: &Mutex<Table>, call: &Call) -> Reply {
    let mut table = table.lock().expect("the table");
    if let Some(row) = call.path().strip_prefix("/table/") {
        let new = call.json();
        let text = |name: &str| new[name].as_str().unwrap_or_default().to_owned();
        table.update(row, &text("status"), &text("error"), "old");
        return Reply::page(204, "", "");
    }
    if let Some(session) = call.path().strip_prefix("/internal/sessions/") {
        let id = session.trim_end_matches("/answers");
        let question = format!("Record {id}: what is a stream?");
        return match id {
            "w-broken" => Reply::page(404, "", ""),
            _ => Reply::ok(&json!([{ "question": question, "answer": "A log." }]).to_string()),
        };
    }
    assert_eq!(call.path(), "/internal/ends");
    let fields = LINES.iter().map(|line| (line.kind, line.field));
    let row = fields.into_iter().find_map(|(kind, field)| {
        Some(call.field(field)).filter(|id| !id.is_empty()).map(|id| format!("{kind}/{id}"))
    });
    // An end may come twice. A duplicate is cancelled while the first task of its record goes on.
    match row {
        Some(_) if call.field("end.reason") == "duplicate" => {}
        Some(row) if call.before == 0 => {
            table.update(&row, &call.field("end.status"), &call.field("end.error"), "new");
        }
        None if call.before == 0 => table.strange += 1,
        _ => {}
    }
    Reply::page(204, "", "")
}

/// The model answers; or it asks for fewer requests, for a moment or for an hour.
const ANSWERS: u8 = 0;
const LIMITED: u8 = 1;
const LIMITED_FOR_LONG: u8 = 2;
/// It also answers for the record with which it fails otherwise.
const MENDED: u8 = 3;

fn ask_model(mood: u8, call: &Call) -> Reply {
    match mood {
        LIMITED => return Reply::page(429, "", "{}"),
        LIMITED_FOR_LONG => return Reply::page(429, "retry-after: 3600\r\n", "{}"),
        _ => {}
    }
    let body = call.json();
    let is_broken = body.to_string().contains("Record w-broken") && mood != MENDED;
    if call.path() == "/v1/embeddings" {
        let texts = body["input"].as_array().map_or(0, Vec::len);
        let data: Vec<Value> = (0..texts).map(|n| json!({ "index": n, "embedding": [0.5, -1] })).collect();
        return match is_broken {
            true => Reply::page(400, "", "{\"error\": {\"message\": \"this text is not taken\"}}"),
            false => Reply::ok(&json!({ "data": data }).to_string()),
        };
    }
    let is_interview = body["messages"][0]["content"].to_string().contains("job interview");
    let content = match is_interview {
        true => json!({ "answers": [{ "score": 70, "feedback": "Good." }], "summary": "Fine." }),
        false => resume_model::good(),
    };
    let message = json!({ "role": "assistant", "content": content.to_string() });
    match is_broken {
        true => Reply::page(500, "", "{}"),
        false => {
            Reply::ok(&json!({ "choices": [{ "message": message, "finish_reason": "stop" }] }).to_string())
        }
    }
}

/// The platform with its Redis, its table and its model.
struct Platform {
    bench: Bench,
    table: Arc<Mutex<Table>>,
    application: Application,
    model: Application,
    mood: Arc<AtomicU8>,
}

impl Platform {
    fn new() -> Platform {
        let (table, mood) = (Arc::new(Mutex::new(Table::default())), Arc::new(AtomicU8::new(ANSWERS)));
        let (rows, now) = (table.clone(), mood.clone());
        let application = Application::start(move |call| answer(&rows, call));
        let model = Application::start(move |call| ask_model(now.load(Ordering::SeqCst), call));
        let bench = Bench::new("[queues.resume-analyze]\n");
        let platform = Platform { bench, table, application, model, mood };
        platform.bench.configure(&platform.configuration());
        for plugin in ["resume-analyze", "kb-vectorize", "interview-evaluate", "http-call"] {
            platform.bench.install(plugin, plugin);
        }
        platform
    }

    /// The example's configuration for the test's servers. Its times are shorter.
    fn configuration(&self) -> String {
        let (theirs, ours) = secret(SECRET);
        let changes = [
            ("https://api.openai.com", &*self.model.origin()),
            ("http://127.0.0.1:8080", &self.application.origin()),
            ("{ env = \"OPENAI_API_KEY\" }", "\"sk-0123456789\""),
            (theirs, &ours),
            ("[defaults]\n", "[defaults]\nlease = \"1s\"\n"),
            ("base = \"2s\"", "base = \"10ms\""),
            ("for = \"30s\"", "for = \"1s\""),
        ];
        configuration(EXAMPLE, &self.bench, &changes)
    }

    fn old_consumers(&self, name: &str) -> OldConsumer {
        let table = format!("{}/table", self.application.origin());
        OldConsumer::start("interview_platform.py", self.bench.redis.port, name, &[("TABLE", &table)])
    }

    fn rows(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("the table")
    }

    fn set_mood(&self, mood: u8) {
        self.mood.store(mood, Ordering::SeqCst);
    }

    /// Submits records as the application does: a row, and an entry. One reader finds all of them.
    fn submit(&mut self, line: &Line, ids: &[String]) {
        let mut pipe = redis::pipe();
        pipe.atomic();
        for id in ids {
            let mut payload: Map<String, Value> = serde_json::from_str(line.payload).expect("a payload");
            payload.insert(line.field.to_owned(), json!(id));
            if let Some(content) = payload.get_mut("content") {
                let text = content.as_str().expect("a text");
                *content = json!(if id.ends_with("-empty") {
                    String::new()
                } else {
                    format!("{text}\n\nRecord {id}\n")
                });
            }
            let xadd = pipe.cmd("XADD").arg(line.stream).arg(&["MAXLEN", "~", "1000", "*"]);
            for (name, value) in &payload {
                xadd.arg(name).arg(value.as_str().expect("text"));
            }
            xadd.ignore();
            self.rows().rows.insert(format!("{}/{id}", line.kind), ("PENDING".into(), String::new()));
        }
        pipe.query::<()>(&mut self.bench.db).expect("XADD");
    }

    fn until_settled(&self) {
        eventually("every record has ended", || self.rows().is_settled().then_some(()));
    }

    fn until_held(&self, host: &Host) {
        for line in &LINES {
            host.until_metric(&format!("tqhost_queue_held{{queue=\"{}\"}}", line.queue), 1);
        }
    }

    /// The status and the attempt of a record's newest task, as the application reads them before the end.
    fn live_status(&mut self, line: &Line, id: &str) -> (String, String) {
        let alias = format!("tq:{{{}}}:alias:{id}", line.stream);
        let task = eventually("the record has a task", || {
            self.bench.redis::<Vec<String>>("ZRANGE", (&alias, -1, -1)).pop()
        });
        (self.bench.status(line.stream, &task, "status"), self.bench.status(line.stream, &task, "attempt"))
    }
}

fn ids(from: &str, count: usize, more: &[&str]) -> Vec<String> {
    (0..count).map(|n| format!("{from}-{n}")).chain(more.iter().map(|id| (*id).to_owned())).collect()
}

/// The findings of `adopt`, by kind.
fn found(report: &Value) -> BTreeMap<&str, u64> {
    let items = report["found"].as_array().expect("findings").iter();
    items.map(|item| (item["kind"].as_str().expect("a kind"), item["count"].as_u64().unwrap_or(0))).collect()
}

#[test]
fn tasks_of_the_old_consumers_are_taken_over_and_every_record_has_one_end() {
    let mut platform = Platform::new();
    let mut expected: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut expect = |line: &Line, ids: &[String], end: &'static str| {
        expected.extend(ids.iter().map(|id| (format!("{}/{id}", line.kind), vec![end])));
    };

    // 1. The old consumers work: 12 records each are done, one has failed four times, and one at once.
    let old = platform.old_consumers("analyze-1");
    for line in &LINES {
        let (done, failed) = (ids("o", 12, &[]), if line.kind == "session" { 1 } else { 2 });
        let failed = ids("o", 0, &["o-broken", "o-empty"][..failed]);
        platform.submit(line, &done);
        platform.bench.xadd(line.stream, &[("note", "it has no id")]);
        platform.submit(line, &failed);
        expect(line, &done, "old COMPLETED");
        expect(line, &failed, "old FAILED");
    }
    platform.until_settled();
    let error = platform.rows().rows["resume/o-broken"].1.clone();
    assert_eq!(error.chars().count(), 500, "it is cut: {error}");

    // 2. They are killed in the middle: of a batch of ten one is added again, one hangs and eight wait.
    for line in &LINES {
        let all = [ids("p", 0, &["p-unlucky", line.hangs]), ids("p", 8, &[]), ids("w", 5, &["w-broken"])];
        platform.submit(line, &all.concat());
        platform.bench.xadd(line.stream, &[("note", "it has no id")]);
        expect(line, &all.concat(), "new COMPLETED");
        expect(line, &ids("w", 0, &["w-broken"]), "new FAILED");
    }
    eventually("each is in the middle of a record", || (old.said("began").len() == 3).then_some(()));
    old.kill();

    // 3. tqhost takes over. First it only tells.
    for line in &LINES {
        let look = ["adopt", line.queue, "--stopped", "--json"];
        let told = platform.bench.tqhost(&look).ok().json();
        let (acked, waiting) = if line.kind == "session" { (18, 9) } else { (19, 8) };
        let before: u64 = platform.bench.redis("XLEN", line.stream);
        assert_eq!(before, acked + 9 + waiting, "{}: {told:#}", line.queue);
        let found = found(&told);
        let kinds = ["acked", "pending", "waiting"].map(|kind| found[kind]);
        assert_eq!((kinds, &told["acted"]), ([acked, 9, waiting], &json!(false)), "{told:#}");
        assert!(found["retry-count"] > 0, "{told:#}");
        let adopt = [&look[..], &["--delete-acked", "--yes"]].concat();
        let adopted = platform.bench.tqhost(&adopt).ok().json();
        assert_eq!((&adopted["acted"], &adopted["ok"]), (&json!(true), &json!(true)), "{adopted:#}");
        assert_eq!(platform.bench.redis::<u64>("XLEN", line.stream), 9 + waiting);
    }

    // 4. The model asks for fewer requests: the queues are held, and nothing is charged.
    platform.set_mood(LIMITED);
    let host = platform.bench.host();
    platform.until_held(&host);
    let (status, attempt) = platform.live_status(&LINES[0], "w-0");
    assert!(["PENDING", "PROCESSING"].contains(&status.as_str()) && attempt == "1", "{status} {attempt}");
    let completed = platform.rows().ends.values().flatten().any(|end| end == "new COMPLETED");
    assert!(!completed, "only a model completes a task");
    // Somebody gives a record up, whose task waits for the model.
    let given_up = ids("c", 0, &["c-left"]);
    platform.submit(&LINES[0], &given_up);
    expect(&LINES[0], &given_up, "new CANCELLED");
    platform.bench.tqhost(&["cancel", LINES[0].queue, "c-left"]).ok();
    eventually("the row of the record is cancelled", || {
        (platform.rows().rows["resume/c-left"].0 == "CANCELLED").then_some(())
    });
    platform.set_mood(ANSWERS);
    platform.until_settled();
    eventually("the messages without an id are told", || (platform.rows().strange == 3).then_some(()));

    // 5. The counts: each record has one end, in the application's table, and the model saw nothing that was
    //    done before.
    let ends = platform.rows().ends.clone();
    assert_eq!(json!(ends), json!(expected));
    for call in platform.model.calls() {
        let text = String::from_utf8(call.body).expect("text");
        assert!(!text.contains("Record o-"), "{text}");
    }
    for line in &LINES {
        let letters = platform.bench.dead(line.stream);
        let reasons: BTreeSet<&str> = letters.iter().map(|letter| &*letter["tq-reason"]).collect();
        let broken = if line.kind == "resume" { "retries-exhausted" } else { "rejected" };
        assert_eq!((letters.len(), reasons), (2, ["rejected", broken].into()), "{letters:#?}");
        assert_eq!(platform.live_status(line, "w-0"), ("COMPLETED".into(), "1".into()), "{}", line.queue);
        platform.bench.tqhost(&["doctor", line.queue]).ok();
    }
    let alias = "tq:{interview:evaluate:stream}:alias:p-torn";
    let torn: Vec<String> = platform.bench.redis("ZRANGE", (alias, 0, -1));
    let mut ends: Vec<String> =
        torn.iter().map(|id| platform.bench.status(LINES[2].stream, id, "status")).collect();
    ends.sort();
    assert_eq!(ends, ["CANCELLED", "COMPLETED"], "a session with two entries is evaluated once");

    // 6. What its page names is there: the series, and a dead letter that is brought back.
    has_the_series_of(README, &host);
    platform.set_mood(MENDED);
    let requeue = ["dead", "requeue", "resume-analyze", "w-broken", "--json"];
    let requeued = platform.bench.tqhost(&requeue).ok().json();
    assert_eq!((&requeued["succeeded"], &requeued["skipped"]), (&json!(1), &json!(0)), "{requeued}");
    eventually("the row is completed", || {
        (platform.rows().rows["resume/w-broken"].0 == "COMPLETED").then_some(())
    });

    // 7. The way back, in the middle of an outage: the old consumers go on with all that is left.
    platform.set_mood(LIMITED_FOR_LONG);
    for line in &LINES {
        platform.submit(line, &ids("b", 8, &[]));
    }
    platform.until_held(&host);
    host.stop();
    for line in &LINES {
        let back = platform.bench.tqhost(&["adopt", line.queue, "--out", "--yes", "--json"]).ok().json();
        let found = found(&back);
        assert_eq!((&back["ok"], found.contains_key("timed")), (&json!(true), false), "{back:#}");
        assert!(found["delayed"] > 0, "{back:#}");
        assert_eq!(platform.bench.redis::<u64>("XLEN", line.stream), 8);
    }
    let old = platform.old_consumers("analyze-2");
    platform.until_settled();
    old.kill();
    let rows = platform.rows();
    for row in LINES.iter().flat_map(|line| ids("b", 8, &[]).into_iter().map(move |id| (line.kind, id))) {
        assert_eq!(rows.ends[&format!("{}/{}", row.0, row.1)], ["old COMPLETED"]);
    }
    let back = rows.ends.len() - expected.len();
    assert_eq!(back, 3 * 8, "and no other record");
}
