//! The handler `resume-analyze` with a language model: how a task ends, whatever the model's server answers.
//!
//! Not here: each way in which an answer can be wrong (the handler's own tests).

use serde_json::{Value, json};

use super::llm::{Llm, Said};
use crate::support::words::masked;
use crate::support::{Bench, Host};

const KEY: &str = "sk-hunter2-0123456789";
const CONTENT: &str = "Maya Lindqvist\nmaya@example.com\nEXPERIENCE\nEngineer, Acme, 2021-03 - present\n\
    - Built a billing service in Rust, and cut its costs by 40%\n";

/// A bench with the handler, which uses this server. `rules` are further keys of the queue, `config` of the
/// plugin's configuration.
fn bench(llm: &Llm, rules: &str, config: &str) -> Bench {
    let bench = Bench::new(&format!(
        "shutdown_grace = \"0s\"\n\
         [queues.resumes]\nplugin = \"resume-analyze\"\nmax_retries = 1\n\
         backoff = {{ base = \"1ms\", max = \"10s\", jitter = 0 }}\n{rules}\n\
         [plugins.resume-analyze]\nallowed_hosts = [\"{origin}\"]\n\
         config = {{ model = \"small\", url = \"{origin}/v1\", \
         api_key = {{ env = \"LLM_KEY\" }}{config} }}\n",
        origin = llm.origin()
    ));
    bench.install("resume-analyze", "resume-analyze");
    bench
}

fn start(bench: &Bench) -> Host {
    let host = bench.host_with_env(vec![("LLM_KEY".to_owned(), KEY.into())]);
    host.log("tqhost is running");
    host
}

/// A model's answer that the handler takes.
pub fn good() -> Value {
    let part = |score: u32| json!({ "score": score, "why": "so it is" });
    json!({
        "isResume": true,
        "isResumeBecause": "it has work and a way to reach a person",
        "parts": {
            "contact": part(13),
            "structure": part(10),
            "experience": part(20),
            "achievements": part(9),
            "skills": part(6),
            "education": part(0),
            "form": part(7),
        },
        "strengths": ["Figures."],
        "suggestions": ["Name a school."],
        "contact": {
            "name": "Maya Lindqvist",
            "email": "maya@example.com",
            "phone": null,
            "location": null,
            "links": [],
        },
        "experience": {
            "periods": [{ "from": "2021-03", "to": null, "present": true }],
            "yearsStated": null,
        },
        "education": [],
        "skills": [{ "name": "Rust", "category": "language" }],
    })
}

fn good_content() -> Said {
    Said::content(&good().to_string())
}

/// Runs one task with a server that gives these answers. Returns the bench, the id and the server. The API
/// key must be nowhere but at the server.
#[track_caller]
fn ended(says: Vec<Said>, rules: &str, status: &str) -> (Bench, String, Llm) {
    let llm = Llm::start(says);
    let mut bench = bench(&llm, rules, "");
    let host = start(&bench);
    let id = bench.xadd("resumes", &[("resumeId", "7"), ("content", CONTENT)]);
    bench.until("resumes", &id, status);
    bench.until_drained("resumes");
    nowhere_but_at_the_server(&mut bench, host, &llm);
    (bench, id, llm)
}

#[track_caller]
fn completed(says: Vec<Said>) -> (Value, Llm) {
    let (mut bench, id, llm) = ended(says, "", "COMPLETED");
    let result: Value =
        serde_json::from_str(&bench.status("resumes", &id, "result")).expect("a result in JSON");
    assert_eq!(
        (&result["method"], &result["model"], &result["score"]),
        (&"model".into(), &"small".into(), &65.into()),
        "{result}"
    );
    (result, llm)
}

/// The error and the reason of a task that died, and how many requests the server got.
#[track_caller]
fn died(says: Vec<Said>, rules: &str) -> (String, String, usize) {
    let (mut bench, _, llm) = ended(says, rules, "FAILED");
    let letter = bench.dead("resumes").pop().expect("a dead letter");
    (letter["tq-error"].clone(), letter["tq-reason"].clone(), llm.asked().len())
}

#[track_caller]
fn nowhere_but_at_the_server(bench: &mut Bench, host: Host, llm: &Llm) {
    for asked in llm.asked() {
        assert!(asked.head.contains(&format!("authorization: Bearer {KEY}\r\n")), "{}", asked.head);
        assert!(!asked.body.to_string().contains(KEY), "{}", asked.body);
    }
    let keys: Vec<String> = bench.redis("KEYS", "*");
    assert!(!keys.is_empty());
    for key in keys {
        let held: redis::Value = match bench.redis::<String>("TYPE", &key).as_str() {
            "string" => bench.redis("GET", &key),
            "hash" => bench.redis("HGETALL", &key),
            "stream" => bench.redis("XRANGE", (&key, "-", "+")),
            "zset" => bench.redis("ZRANGE", (&key, 0, -1)),
            "set" => bench.redis("SMEMBERS", &key),
            "list" => bench.redis("LRANGE", (&key, 0, -1)),
            other => panic!("{key} is a {other}"),
        };
        assert!(!format!("{held:?}").contains(KEY), "{key}: {held:?}");
    }
    let checked = bench.tqhost(&["dead", "list", "resumes", "--json"]);
    assert!(!checked.stdout.contains(KEY) && !checked.stderr.contains(KEY), "{checked:?}");
    let log = host.stop_for_log().raw();
    assert!(!log.contains(KEY), "{log}");
}

#[test]
fn a_model_is_asked_and_its_answer_is_the_result() {
    let (result, llm) = completed(vec![good_content()]);
    assert_eq!(
        (&result["resumeId"], &result["contact"]["name"]),
        (&"7".into(), &"Maya Lindqvist".into()),
        "{result}"
    );
    let [asked] = &llm.asked()[..] else { panic!("one request") };
    assert!(asked.head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{}", asked.head);
    assert_eq!((&asked.body["model"], &asked.body["temperature"]), (&"small".into(), &0.into()));
    assert_eq!(asked.body["response_format"]["type"], "json_schema");
    let user = asked.body["messages"][1]["content"].as_str().expect("a message");
    assert!(user.contains("Engineer, Acme") && user.ends_with("</resume>"), "{user}");
}

#[test]
fn without_a_model_nothing_is_asked_and_nobody_is_alarmed() {
    let llm = Llm::start(vec![good_content()]);
    let mut bench = Bench::new("[queues.resumes]\nplugin = \"resume-analyze\"\n");
    bench.install("resume-analyze", "resume-analyze");
    let host = bench.host();
    let id = bench.xadd("resumes", &[("resumeId", "7"), ("content", CONTENT)]);
    bench.until("resumes", &id, "COMPLETED");
    let result: Value =
        serde_json::from_str(&bench.status("resumes", &id, "result")).expect("a result in JSON");
    assert_eq!((&result["method"], result.get("model")), (&"rules".into(), None), "{result}");
    assert_eq!(llm.asked().len(), 0);
    let alarming: Vec<Value> = host
        .stop_for_log()
        .logged("")
        .into_iter()
        .filter(|line| line["plugin"] == "resume-analyze" && line["level"] == "WARN")
        .collect();
    assert!(alarming.is_empty(), "{alarming:?}");
}

#[test]
fn an_answer_in_a_fence_or_put_right_is_as_good() {
    let (_, llm) = completed(vec![Said::content(&format!("Sure:\n```json\n{}\n```", good()))]);
    assert_eq!(llm.asked().len(), 1);
    let (_, llm) = completed(vec![Said::content("{\"isResume\": tr}"), good_content()]);
    let last = llm.asked()[1].body["messages"][3]["content"].to_string();
    insta::assert_snapshot!(last, @"
    \"This answer cannot be used: it is not JSON: expected ident at line 1 column 16. Give the whole JSON \
    object again, put right, and nothing else.\"
    ");
}

#[test]
fn a_server_that_recovers_gets_the_task_done() {
    let (_, llm) = completed(vec![Said::status(500, "", "oops"), good_content()]);
    assert_eq!(llm.asked().len(), 2);
    let (_, llm) = completed(vec![Said::Half, good_content()]);
    assert_eq!(llm.asked().len(), 2);
}

#[test]
fn a_busy_server_is_asked_when_it_says() {
    let (_, llm) = completed(vec![
        Said::status(429, "retry-after: 1\r\n", "{\"error\":{\"message\":\"slow down\"}}"),
        good_content(),
    ]);
    let asked = llm.asked();
    assert_eq!(asked.len(), 2);
    // The backoff would be a millisecond. Redis's clock and this one may differ a little.
    assert!((asked[1].at - asked[0].at).as_millis() >= 950, "{asked:?}");

    // The delay is a date by the server's clock. The test does not wait for it and only checks when the task
    // is due.
    let headers = "date: Tue, 28 Jul 2026 10:00:00 GMT\r\nretry-after: Tue, 28 Jul 2026 10:10:00 GMT\r\n";
    let llm = Llm::start(vec![Said::status(503, headers, "")]);
    let mut bench = bench(&llm, "", "");
    let text = std::fs::read_to_string(bench.config()).expect("the configuration");
    bench.configure(&text.replace("max = \"10s\"", "max = \"1h\""));
    let host = start(&bench);
    let id = bench.xadd("resumes", &[("resumeId", "7"), ("content", CONTENT)]);
    bench.until("resumes", &id, "PENDING");
    let number = |text: String| text.parse::<u64>().expect("a time");
    let due = number(bench.status("resumes", &id, "due_at"));
    let enqueued = number(bench.status("resumes", &id, "enqueued_at"));
    assert!((600_000..900_000).contains(&(due - enqueued)), "{due} - {enqueued}");
    nowhere_but_at_the_server(&mut bench, host, &llm);
}

#[test]
fn a_model_that_gives_no_good_answer_is_a_retry_with_the_reason() {
    let wrong = Said::content(&good().to_string().replace("\"score\":13", "\"score\":99"));
    let (error, reason, asked) = died(vec![wrong], "");
    insta::assert_snapshot!(error, @r"
    retry: the model's answer is not usable, twice: `parts.contact.score` must be a whole number from 0 to 15
    ");
    assert_eq!(
        (reason.as_str(), asked),
        ("retries-exhausted", 4),
        "two attempts, each with one chance to put it right"
    );
    let (error, _, asked) =
        died(vec![Said::content("no"), Said::content("no, really"), Said::status(500, "", "")], "");
    assert_eq!(asked, 3);
    insta::assert_snapshot!(error, @"retry: the model's server failed (500)");
}

#[test]
fn an_error_that_no_attempt_would_change_is_rejected() {
    let refused = json!({ "message": { "content": null, "refusal": "I will not" }, "finish_reason": "stop" });
    let filtered = json!({ "message": { "content": "" }, "finish_reason": "content_filter" });
    let cut = json!({ "message": { "content": "{\"isRes" }, "finish_reason": "length" });
    let errors = [
        Said::choice(&refused),
        Said::choice(&filtered),
        Said::choice(&cut),
        Said::status(400, "", &format!("{{\"error\":{{\"message\":\"bad {KEY}\"}}}}")),
    ]
    .map(|said| {
        let (error, reason, asked) = died(vec![said], "");
        assert_eq!((reason.as_str(), asked), ("rejected", 1), "{error}");
        error
    });
    insta::assert_snapshot!(errors.join("\n"), @"
    the model refuses: I will not
    the model's server filtered the answer (content_filter)
    the model's answer was cut off (length): raise `max_tokens` or lower `max_chars` in the plugin's \
    configuration
    the model's server does not take the request (400): bad [key]
    ");
}

#[test]
fn a_fault_that_the_operator_can_mend_is_retried_and_told() {
    let body = format!("{{\"error\":{{\"message\":\"Incorrect API key provided: {KEY}\"}}}}");
    let (error, reason, asked) = died(vec![Said::status(401, "", &body)], "");
    insta::assert_snapshot!(error, @r"
    retry: the model's server refuses the key (401): look at `api_key` of the plugin's configuration
    ");
    assert_eq!((reason.as_str(), asked), ("retries-exhausted", 2));

    // The grant is missing.
    let llm = Llm::start(vec![good_content()]);
    let mut bench = bench(&llm, "", "");
    let text = std::fs::read_to_string(bench.config()).expect("the configuration");
    bench.configure(&text.replace("allowed_hosts = [", "allowed_hosts = [] #"));
    let host = start(&bench);
    let id = bench.xadd("resumes", &[("resumeId", "7"), ("content", CONTENT)]);
    bench.until("resumes", &id, "FAILED");
    insta::assert_snapshot!(masked(&bench.status("resumes", &id, "error"), &[]), @"
    retry: asking the model: the request to 127.0.0.1:PORT is refused: the plugin's allowed_hosts do not \
    allow it, or max_requests were made
    ");
    assert_eq!(llm.asked().len(), 0);
    host.stop();
}

#[test]
fn a_server_that_is_slow_or_gone_is_a_retry_with_the_reason() {
    let (error, reason, asked) = died(vec![Said::Silence], "timeout = \"2s\"");
    assert_eq!((reason.as_str(), asked), ("retries-exhausted", 2));
    insta::assert_snapshot!(error, @"retry: the model did not answer in time");
    let (error, _, asked) = died(vec![Said::Half], "");
    assert_eq!(asked, 2);
    insta::assert_snapshot!(masked(&error, &[]), @r"
    retry: asking the model: 127.0.0.1:PORT ended the connection too early
    ");
}
