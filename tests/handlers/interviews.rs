//! The handler `interview-evaluate`: a session is evaluated once, by the rules or by a model.
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
