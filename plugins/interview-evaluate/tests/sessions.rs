//! Whole sessions, from the task to the evaluation, with servers that the tests play.

use std::collections::HashMap;
use std::time::Duration;

use interview_evaluate::{Evaluation, evaluate_with};
use serde_json::{Value, json};
use tqhost_handler::http::{Error, Request, Response};
use tqhost_handler::{Failure, Task, state};

const ANSWERS: &str = r#"[{"question": "What is a stream?", "answer": "A log, because it only grows."},
    {"question": "Why?"}]"#;
const MODEL: [(&str, &str); 2] = [("url", "http://llm/v1"), ("model", "m")];

fn evaluated(
    fields: &[(&'static str, &str)],
    config: &[(&str, &str)],
    send: impl FnMut(&Request) -> Result<Response, Error>,
) -> Result<Evaluation, Failure> {
    let config: HashMap<&str, &str> = config.iter().copied().collect();
    let get = |key: &str| Ok(config.get(key).map(|value| value.to_string()));
    evaluate_with(&Task::sample(fields.iter().copied()), get, send)
}

fn page(status: u16, body: &str) -> Response {
    Response { status, body: body.into(), ..Response::default() }
}

fn written(content: &Value) -> Response {
    let message = json!({ "choices": [{ "message": { "content": format!("```json\n{content}\n```") } }] });
    page(200, &message.to_string())
}

fn nobody(_: &Request) -> Result<Response, Error> {
    panic!("nobody is asked")
}

#[test]
fn a_session_is_evaluated_once() {
    let fields = [("sessionId", "7"), ("answers", ANSWERS)];
    let first = evaluated(&fields, &[], nobody).unwrap();
    assert_eq!((first.method.as_str(), first.answers.len(), first.repeated), ("rules", 2, false));
    assert_eq!((first.answers[1].score, first.score), (0, first.answers[0].score.div_ceil(2)));
    let kept = state::ttl("session:7").expect("a time to live");
    assert_eq!(kept, Duration::from_secs(30 * 24 * 60 * 60));

    // A model that is configured later is not asked for this session, unless the task says so.
    let again = evaluated(&[("sessionId", "7")], &MODEL, nobody).unwrap();
    assert_eq!(again, Evaluation { repeated: true, ..first });
    let scores =
        json!({ "answers": [{ "score": 80, "feedback": "Good." }, { "score": 21 }], "summary": "Fine." });
    let forced = [&fields[..], &[("force", "true")]].concat();
    let forced = evaluated(&forced, &MODEL, |_| Ok(written(&scores))).unwrap();
    assert_eq!((forced.method.as_str(), forced.score, forced.repeated), ("model:m", 51, false));
    assert_eq!((forced.summary.as_str(), forced.answers[0].feedback.as_str()), ("Fine.", "Good."));
}

#[test]
fn answers_come_from_the_source_with_the_session_in_its_url() {
    let config = [("source_url", "http://app/sessions/{sessionId}/answers")];
    let found = evaluated(&[("sessionId", "a/../b")], &config, |request| {
        assert_eq!(request.url, "http://app/sessions/a%2F%2E%2E%2Fb/answers");
        Ok(page(200, ANSWERS))
    });
    assert_eq!(found.unwrap().answers.len(), 2);
    const REJECTED: Option<bool> = None;
    const RETRIED: Option<bool> = Some(false);
    const DOWN: Option<bool> = Some(true);
    let ended = |answer: Result<Response, Error>| {
        let found = evaluated(&[("sessionId", "9")], &config, |_| answer.clone());
        match found {
            Err(Failure::Reject(_)) => REJECTED,
            Err(failure @ Failure::Retry(_)) => Some(failure.is_unavailable()),
            other => panic!("{answer:?}: {other:?}"),
        }
    };
    for (statuses, end) in [
        (&[400, 404, 410, 422][..], REJECTED),
        (&[408, 425, 500, 501], RETRIED),
        (&[302, 401, 403, 405, 429, 502, 503, 504, 529], DOWN),
    ] {
        for status in statuses {
            assert_eq!(ended(Ok(page(*status, ""))), end, "{status}");
        }
    }
    assert_eq!(ended(Ok(page(200, "{}"))), REJECTED);
    for (error, end) in [
        (Error::Timeout, DOWN),
        (Error::Unreachable("app refuses connections".into()), DOWN),
        (Error::Denied("not granted".into()), DOWN),
        (Error::Invalid("no url".into()), DOWN),
        (Error::Network("cut".into()), RETRIED),
        (Error::TooLarge("too large".into()), REJECTED),
    ] {
        assert_eq!(ended(Err(error.clone())), end, "{error:?}");
    }
    assert!(!state::all().contains_key("session:9"), "a failed evaluation is not kept");
}

#[test]
fn an_answer_of_the_model_that_cannot_be_used_is_a_retry() {
    let fields = [("sessionId", "8"), ("answers", ANSWERS)];
    for (answer, why) in [
        (json!("Well done!"), "not the JSON object"),
        (json!({ "answers": [{ "score": 1 }] }), "1 scores for 2 answers"),
        (json!({ "answers": [{ "score": 1 }, { "score": 101 }] }), "a score is 101"),
        (json!({ "answers": [{ "score": -1 }, { "score": 1 }] }), "not the JSON object"),
    ] {
        match evaluated(&fields, &MODEL, |_| Ok(written(&answer))) {
            Err(Failure::Retry(retry)) => assert!(retry.message.contains(why), "{}", retry.message),
            other => panic!("{answer}: {other:?}"),
        }
    }
    assert!(state::all().is_empty());
}

#[test]
fn a_task_that_can_never_work_is_rejected() {
    let many = Value::from_iter((0..101).map(|_| json!({ "question": "q" }))).to_string();
    let table: [(&[(&'static str, &str)], &str); 5] = [
        (&[("answers", ANSWERS)], "`sessionId` is missing"),
        (&[("sessionId", " "), ("answers", ANSWERS)], "`sessionId`"),
        (&[("sessionId", "1")], "no `source_url`"),
        (&[("sessionId", "1"), ("answers", "[]")], "has 0 answers"),
        (&[("sessionId", "1"), ("answers", &many)], "has 101 answers"),
    ];
    for (fields, why) in table {
        match evaluated(fields, &[], nobody) {
            Err(Failure::Reject(found)) => assert!(found.contains(why), "{found}"),
            other => panic!("{why}: {other:?}"),
        }
    }
}
