//! The handler `interview-evaluate`: a session is evaluated once, by the rules or by a model, with answers of
//! the task or of the application.
//!
//! Not here: each answer of a source or a model (the handler's own tests).

use serde_json::{Value, json};

use super::llm::{Llm, Said};
use crate::support::Bench;

#[test]
fn a_session_that_is_sent_twice_is_evaluated_once() {
    let scores = json!({ "answers": [{ "score": 70, "feedback": "Good." }], "summary": "Fine." });
    let says = vec![Said::status(429, "retry-after: 0\r\n", "{}"), Said::content(&scores.to_string())];
    let llm = Llm::start(says);
    let mut bench = Bench::new(&format!(
        "[queues.interviews]\nstream = \"interview:evaluate:stream\"\ngroup = \"evaluate-group\"\n\
         plugin = \"interview-evaluate\"\nmax_retries = 1\nbackoff = \"none\"\n\
         [plugins.interview-evaluate]\nallowed_hosts = [\"{origin}\"]\n\
         config = {{ model = \"small\", url = \"{origin}/v1\" }}\n",
        origin = llm.origin()
    ));
    bench.install("interview-evaluate", "interview-evaluate");
    let host = bench.host();
    let stream = "interview:evaluate:stream";
    let answers = json!([{ "question": "What is a stream?", "answer": "A log." }]).to_string();
    let mut evaluated = |fields: &[(&str, &str)]| -> Value {
        let id = bench.xadd(stream, fields);
        bench.until(stream, &id, "COMPLETED");
        serde_json::from_str(&bench.status(stream, &id, "result")).expect("JSON")
    };
    let first = evaluated(&[("sessionId", "7"), ("answers", &answers)]);
    assert_eq!(
        (&first["method"], &first["score"], &first["repeated"]),
        (&json!("model:small"), &json!(70), &json!(false)),
        "{first}"
    );
    let again = evaluated(&[("sessionId", "7")]);
    assert_eq!((&again["score"], &again["repeated"]), (&json!(70), &json!(true)), "{again}");
    assert_eq!(llm.asked().len(), 2, "the retry, and nothing for the second task");
    host.stop();
}

#[test]
fn the_answers_come_from_the_application_and_its_errors_decide() {
    let answers = json!([{ "question": "What is a stream?", "answer": "A log, because it only grows." }]);
    let application = Llm::start(vec![
        Said::status(503, "retry-after: 0\r\n", ""),
        Said::status(200, "", &answers.to_string()),
        Said::status(404, "", ""),
        Said::status(200, "", "{}"),
        Said::status(401, "", ""),
        Said::Half,
    ]);
    let mut bench = Bench::new(&format!(
        "[queues.interviews]\nplugin = \"interview-evaluate\"\nmax_retries = 1\nbackoff = \"none\"\n\
         concurrency = 1\n\
         [plugins.interview-evaluate]\nallowed_hosts = [\"{origin}\"]\n\
         config = {{ source_url = \"{origin}/sessions/{{sessionId}}/answers\" }}\n",
        origin = application.origin()
    ));
    bench.install("interview-evaluate", "interview-evaluate");
    let host = bench.host();
    let mut ended = |session: &str, as_status: &str| -> String {
        let id = bench.xadd("interviews", &[("sessionId", session)]);
        bench.until("interviews", &id, as_status);
        id
    };
    let fine = ended("a/7", "COMPLETED");
    let gone = ended("8", "FAILED");
    let no_list = ended("9", "FAILED");
    let refused = ended("10", "FAILED");
    // A session that was evaluated is not asked for again.
    let again = ended("a/7", "COMPLETED");

    let result = |bench: &mut Bench, id: &str| -> Value {
        serde_json::from_str(&bench.status("interviews", id, "result")).expect("JSON")
    };
    let (first, second) = (result(&mut bench, &fine), result(&mut bench, &again));
    assert_eq!((&first["method"], &first["repeated"]), (&json!("rules"), &json!(false)), "{first}");
    assert_eq!((&second["score"], &second["repeated"]), (&first["score"], &json!(true)), "{second}");
    assert_eq!(bench.status("interviews", &fine, "attempt"), "2", "it was retried after 503");
    let letters: Vec<(String, String, String)> = bench
        .dead("interviews")
        .into_iter()
        .map(|mut letter| {
            let mut field = |name: &str| letter.remove(name).unwrap_or_default();
            (field("tq-id"), field("tq-reason"), field("tq-error"))
        })
        .collect();
    let says = |what: &str| format!("the source of the answers {what}");
    let of = |id: &str, reason: &str, error: String| (id.to_owned(), reason.to_owned(), error);
    assert_eq!(
        letters[..2],
        [
            of(&gone, "rejected", says("has no such session (404)")),
            of(&no_list, "rejected", says("sends no JSON list of answers (200)")),
        ]
    );
    // The first attempt met 401, and the second one half of an answer.
    assert_eq!((letters.len(), &letters[2].0, letters[2].1.as_str()), (3, &refused, "retries-exhausted"));
    let asked = application.asked();
    let lines: Vec<&str> = asked.iter().map(|asked| asked.head.lines().next().unwrap_or_default()).collect();
    let get = |session: &str| format!("GET /sessions/{session}/answers HTTP/1.1");
    assert_eq!(lines, [get("a%2F7"), get("a%2F7"), get("8"), get("9"), get("10"), get("10")]);
    host.stop();
}
