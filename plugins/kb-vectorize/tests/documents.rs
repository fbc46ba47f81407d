//! Whole documents, from the task to the records: small ones, large ones in steps, and runs that follow one
//! another.
//!
//! In: tasks, and servers that the tests play. Not here: how a text is split, and how a vector is made (unit
//! tests).

use std::collections::{BTreeMap, HashMap, VecDeque};

use kb_vectorize::embed::bytes;
use kb_vectorize::{Outcome, Report, Settings, hashed, vectorize_with};
use serde_json::{Value, json};
use tqhost_handler::http::{Error, Request, Response};
use tqhost_handler::outbox::{self, NewTask};
use tqhost_handler::records::{self, Record};
use tqhost_handler::{Failure, Task, run, state};

fn settings(config: &[(&str, &str)]) -> Settings {
    let config: HashMap<&str, &str> = config.iter().copied().collect();
    Settings::read(|key| Ok(config.get(key).map(|value| value.to_string()))).unwrap()
}

fn no_server(_: &Request) -> Result<Response, Error> {
    panic!("no request is made without a model")
}

/// A task that is enqueued at this second.
fn task(id: &str, second: u64, content: &str) -> Task {
    let fields =
        [("knowledgeBaseId", "7"), ("documentId", "guide"), ("title", "Guide"), ("content", content)];
    let task = Task::sample(fields);
    Task { id: id.into(), enqueued_at_ms: task.enqueued_at_ms + second * 1000, ..task }
}

/// Runs one attempt as the host does.
fn attempt(
    task: &Task,
    settings: &Settings,
    mut send: impl FnMut(&Request) -> Result<Response, Error>,
) -> Result<Report, Failure> {
    let mut report = None;
    run(task.clone(), |task| -> Result<(), Failure> {
        report = Some(vectorize_with(&task, settings, &mut send)?);
        Ok(())
    })?;
    Ok(report.expect("a report"))
}

/// Runs a task and all tasks that come of it, and returns their reports in order.
fn all(first: &Task, settings: &Settings) -> Vec<Report> {
    let mut reports = Vec::new();
    let mut waiting = VecDeque::from([first.clone()]);
    while let Some(task) = waiting.pop_front() {
        let before = outbox::sent().len();
        reports.push(vectorize_with(&task, settings, no_server).unwrap());
        waiting.extend(outbox::sent().split_off(before).into_iter().map(|sent| of(sent.task, &sent.id)));
    }
    reports
}

fn of(new: NewTask, id: &str) -> Task {
    assert_eq!(new.queue, "test", "the handler's own queue");
    Task { id: id.into(), fields: new.fields, ..Task::sample([("", ""); 0]) }
}

/// The chunks with their numbers.
fn chunks() -> BTreeMap<String, Record> {
    records::all().into_iter().filter(|(key, _)| key.starts_with("kb:{kb}:7:chunk:guide:")).collect()
}

fn live() -> String {
    let record = &records::all()["kb:{kb}:7:document:guide"];
    String::from_utf8(record["generation"].clone()).unwrap()
}

fn sentences(count: usize, word: &str) -> String {
    (0..count).map(|n| format!("Sentence {n} is about {word}. ")).collect()
}

#[test]
fn a_small_document_is_one_commit_and_replaces_the_one_before() {
    let settings = settings(&[("dimensions", "64")]);
    let long = attempt(&task("1-0", 0, &sentences(100, "roses")), &settings, no_server).unwrap();
    assert_eq!((long.outcome, long.method.as_str(), long.parts), (Outcome::Live, "hashed-words", 0));
    assert_eq!(chunks().len(), long.chunks);
    assert!(long.chunks > 3, "{long:?}");

    let text = "# Streams\nA stream keeps entries.";
    let short = attempt(&task("2-0", 1, text), &settings, no_server).unwrap();
    assert_eq!((short.outcome, short.chunks, short.deleted), (Outcome::Live, 1, long.chunks));
    let chunks = chunks();
    let [(key, record)] = &chunks.iter().collect::<Vec<_>>()[..] else { panic!("{chunks:?}") };
    let generation = short.generation.unwrap();
    assert_eq!((*key, live()), (&format!("kb:{{kb}}:7:chunk:guide:{generation}:0"), generation.clone()));
    let vector = hashed::vector(&format!("Guide\nStreams\n{text}"), 64);
    let expected: [(&str, &[u8]); 9] = [
        ("document", b"guide"),
        ("generation", generation.as_bytes()),
        ("heading", b"Streams"),
        ("knowledgeBase", b"7"),
        ("method", b"hashed-words"),
        ("position", b"0"),
        ("text", text.as_bytes()),
        ("title", b"Guide"),
        ("vector", &bytes(&vector)),
    ];
    for (name, value) in expected {
        assert_eq!(record[name], value, "{name}");
    }
    assert_eq!(record.len(), expected.len());
    assert_eq!(outbox::sent().len(), 0);
}

#[test]
fn a_million_characters_are_written_in_steps_and_replaced_in_steps() {
    let settings = settings(&[]);
    // A character of Chinese has 3 bytes, and this one 4.
    for (second, letters) in [(0, "没有人知道这件事，"), (10, "𠮷野家的牛肉饭好，")] {
        let content = format!("{}。", letters.repeat(11)).repeat(10_000);
        assert_eq!(content.chars().count(), 1_000_000);
        let before = chunks().len();
        let reports = all(&task("1-0", second, &content), &settings);
        let start = &reports[0];
        assert_eq!(start.outcome, Outcome::Started);
        let outcomes = |outcome: Outcome| reports.iter().filter(|report| report.outcome == outcome).count();
        assert_eq!((outcomes(Outcome::Written), outcomes(Outcome::Live)), (start.parts, 1));
        assert!(start.parts > 5 && start.chunks > 1000, "{start:?}");
        // Only the chunks of the new generation are left.
        let generation = start.generation.clone().unwrap();
        assert_eq!((chunks().len(), live()), (start.chunks, generation.clone()));
        assert!(chunks().values().all(|chunk| chunk["generation"] == generation.as_bytes()));
        assert_eq!(reports.iter().map(|report| report.deleted).sum::<usize>(), before);
        assert_eq!(state::all().len(), 0, "no part is kept");
        let positions: Vec<usize> = {
            let number = |chunk: &Record| String::from_utf8_lossy(&chunk["position"]).parse().unwrap();
            let mut positions: Vec<usize> = chunks().values().map(number).collect();
            positions.sort_unstable();
            positions
        };
        assert!(positions.iter().copied().eq(0..start.chunks));
    }
}

#[test]
fn the_old_chunks_are_live_until_all_parts_are_written() {
    let settings = settings(&[]);
    let old = attempt(&task("1-0", 0, "The old text."), &settings, no_server).unwrap();
    let new = attempt(&task("2-0", 1, &sentences(30_000, "new things")), &settings, no_server).unwrap();
    assert_eq!(new.outcome, Outcome::Started);
    let sent = outbox::sent();
    for child in &sent[..new.parts] {
        assert_eq!(Some(live()), old.generation);
        attempt(&of(child.task.clone(), &child.id), &settings, no_server).unwrap();
    }
    let switch = attempt(&of(sent[new.parts].task.clone(), "9-0"), &settings, no_server).unwrap();
    assert_eq!((switch.outcome, switch.deleted, Some(live())), (Outcome::Live, 1, new.generation));
}

#[test]
fn an_earlier_run_that_ends_later_changes_nothing_and_leaves_nothing() {
    let settings = settings(&[]);
    let large = sentences(30_000, "old things");
    let old = attempt(&task("1-0", 0, &large), &settings, no_server).unwrap();
    let sent = outbox::sent();
    let run = |n: usize| attempt(&of(sent[n].task.clone(), "9-0"), &settings, no_server).unwrap().outcome;
    assert_eq!(run(0), Outcome::Written);
    let new = attempt(&task("2-0", 1, "The new text."), &settings, no_server).unwrap();
    assert_eq!(new.outcome, Outcome::Live);
    for part in 1..old.parts {
        assert_eq!(run(part), Outcome::Superseded);
    }
    assert_eq!(run(old.parts), Outcome::Superseded);
    let late = attempt(&task("1-0", 0, &large), &settings, no_server).unwrap();
    assert_eq!((late.outcome, Some(live())), (Outcome::Superseded, new.generation));
    let mut swept = old.parts + 1;
    while let Some(sweep) = outbox::sent().get(swept).cloned() {
        attempt(&of(sweep.task, &sweep.id), &settings, no_server).unwrap();
        swept += 1;
    }
    assert_eq!((state::all().len(), chunks().len()), (0, 1), "the written part was deleted");
}

#[test]
fn a_server_is_asked_in_batches_and_says_when_to_come_again() {
    let settings = settings(&[("url", "http://h/v1"), ("model", "m"), ("batch", "4")]);
    let task = task("1-0", 0, &sentences(200, "roses"));
    let mut asked = Vec::new();
    let report = attempt(&task, &settings, |request| {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let count = body["input"].as_array().unwrap().len();
        asked.push(count);
        let data: Vec<Value> = (0..count).map(|n| json!({ "index": n, "embedding": [1, n] })).collect();
        Ok(Response { status: 200, body: json!({ "data": data }).to_string().into(), ..Response::default() })
    })
    .unwrap();
    assert_eq!((report.outcome, report.method.as_str()), (Outcome::Live, "model:m"));
    assert_eq!(asked.iter().sum::<usize>(), report.chunks);
    assert!(asked[..asked.len() - 1].iter().all(|count| *count == 4), "{asked:?}");
    assert!(chunks().values().all(|chunk| chunk["vector"].len() == 8 && chunk["method"] == b"model:m"));

    let before = records::all();
    let mut requests = 0;
    let busy = attempt(&task, &settings, |_| {
        requests += 1;
        let headers = vec![("retry-after".into(), "7".into())];
        Ok(Response { status: 429, headers, ..Response::default() })
    });
    let Err(Failure::Retry(retry)) = busy else { panic!("{busy:?}") };
    assert_eq!((retry.after_ms, requests), (Some(7000), 1));
    assert!(retry.message.contains("429"), "{}", retry.message);
    assert_eq!(records::all(), before);
}

#[test]
fn parts_of_two_methods_are_not_mixed() {
    let first = settings(&[]);
    attempt(&task("1-0", 0, &sentences(30_000, "roses")), &first, no_server).unwrap();
    let part = of(outbox::sent()[0].task.clone(), "2-0");
    let failure = attempt(&part, &settings(&[("dimensions", "64")]), no_server);
    assert!(matches!(failure, Err(Failure::Reject(why)) if why.contains("64 dimensions")));
}

#[test]
fn producers_may_call_the_ids_otherwise() {
    let settings = settings(&[("knowledge_base_field", "kbId"), ("document_field", "kbId")]);
    let content = sentences(30_000, "roses");
    let task = Task::sample([("kbId", "9"), ("content", &*content)]);
    let reports = all(&task, &settings);
    assert_eq!((reports[0].outcome, reports.len() > 3), (Outcome::Started, true), "{reports:?}");
    let last = reports.last().expect("a report");
    assert_eq!(last.outcome, Outcome::Live);
    for report in &reports {
        assert_eq!((&*report.knowledge_base_id, &*report.document_id), ("9", "9"), "{report:?}");
    }
    let live = &records::all()["kb:{kb}:9:document:9"];
    assert_eq!(Some(String::from_utf8_lossy(&live["generation"]).into_owned()), last.generation);
    let missing = attempt(&Task::sample([("knowledgeBaseId", "9"), ("content", "a")]), &settings, no_server);
    assert!(matches!(missing, Err(Failure::Reject(why)) if why.contains("`kbId` is missing")));
}

#[test]
fn a_task_that_can_never_work_is_rejected() {
    let settings = settings(&[]);
    let long = "x".repeat(4_000_001);
    let title = "t".repeat(501);
    let table: [(&[(&'static str, &str)], &str); 7] = [
        (&[("documentId", "1"), ("content", "a")], "`knowledgeBaseId` is missing"),
        (&[("knowledgeBaseId", "1"), ("content", "a")], "`documentId` is missing"),
        (&[("knowledgeBaseId", " "), ("documentId", "1"), ("content", "a")], "`knowledgeBaseId` is empty"),
        (&[("knowledgeBaseId", "1"), ("documentId", "1"), ("content", " \n")], "`content` is empty"),
        (&[("knowledgeBaseId", "1"), ("documentId", "1"), ("content", "a\0")], "is binary"),
        (&[("knowledgeBaseId", "1"), ("documentId", "1"), ("content", &long)], "has 4000001 bytes"),
        (
            &[("knowledgeBaseId", "1"), ("documentId", "1"), ("content", "a"), ("title", &title)],
            "more than 500 characters",
        ),
    ];
    for (fields, why) in table {
        match attempt(&Task::sample(fields.iter().copied()), &settings, no_server) {
            Err(Failure::Reject(found)) => assert!(found.contains(why), "{found}"),
            other => panic!("{why}: {other:?}"),
        }
    }
}
