//! Tests the analysis with a model. The test gives the server's replies.
//!
//! In: replies. Checked: the task's result or failure, the requests, and that a reply of the wrong form is
//! not accepted.
//!
//! Not here: real requests, which the host's end-to-end tests make.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use resume_analyze::analysis::{self, Analysis};
use resume_analyze::dates::Month;
use resume_analyze::model::answer::Answer;
use resume_analyze::model::{self, Settings};
use serde_json::{Value, json};
use tqhost_handler::Failure;
use tqhost_handler::http::{Error, Request, Response};

const KEY: &str = "sk-very-secret";
const RESUME: &str = "Maya Lindqvist\nmaya@example.com | +46 70 123 45 67 | github.com/maya\nEXPERIENCE\n\
                      Engineer, Acme, 2021-03 - present\n\
                      - Built a billing service in Rust; Rust cut costs by 40%\n";

fn now() -> Month {
    Month::new(2026, 1)
}

fn settings(more: &[(&str, &str)]) -> Result<Option<Settings>, Failure> {
    let base = [("model", "small"), ("url", "https://llm.example/v1/"), ("api_key", KEY)];
    let values: HashMap<&str, &str> = base.iter().chain(more).copied().collect();
    Settings::read(|key| Ok(values.get(key).map(|value| (*value).to_owned())))
}

fn good() -> Value {
    let part = |score: u32| json!({ "score": score, "why": "so it is" });
    json!({
        "isResume": true,
        "isResumeBecause": "it has work and a way to reach a person",
        "parts": {
            "contact": part(13), "structure": part(10), "experience": part(20), "achievements": part(9),
            "skills": part(6), "education": part(0), "form": part(7),
        },
        "strengths": ["Figures."],
        "suggestions": ["Name a school."],
        "contact": {
            "name": "Maya Lindqvist",
            "email": "maya@example.com",
            "phone": "+46 70 1234567",
            "location": null,
            "links": ["github.com/maya"],
        },
        "experience": {
            "periods": [{ "from": "2021-03", "to": null, "present": true }],
            "yearsStated": null,
        },
        "education": [{
            "level": "master",
            "degree": "MSc",
            "school": "Riverton University",
            "field": null,
            "from": 2010,
            "to": 2012,
        }],
        "skills": [
            { "name": "Rust", "category": "language" },
            { "name": "rust", "category": "language" },
            { "name": "COBOL", "category": "language" },
        ],
    })
}

fn reply(content: &str) -> Response {
    let message = json!({ "role": "assistant", "content": content, "refusal": null });
    let body = json!({ "choices": [{ "index": 0, "message": message, "finish_reason": "stop" }] });
    Response { status: 200, body: body.to_string().into_bytes(), ..Response::default() }
}

fn status(status: u16, headers: &[(&str, &str)], body: &str) -> Response {
    let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    Response { status, headers, body: body.as_bytes().to_vec() }
}

/// Runs an analysis that gets these replies, one for each request. Returns its result and the requests.
fn play(replies: Vec<Result<Response, Error>>) -> (Result<Analysis, Failure>, Vec<Request>) {
    let (requests, replies) = (RefCell::new(Vec::new()), RefCell::new(replies.into_iter()));
    let send = |request: &Request| {
        requests.borrow_mut().push(request.clone());
        replies.borrow_mut().next().expect("one request more than there are replies")
    };
    let rules = analysis::analyze("7", RESUME, now()).unwrap();
    let settings = settings(&[]).unwrap().expect("a model");
    let result = model::analyze(&settings, RESUME, rules, now(), 1_785_232_800_000, send);
    assert!(replies.borrow_mut().next().is_none(), "all replies are asked for");
    (result, requests.into_inner())
}

/// The failure after a single reply, in the form that [`told`] returns.
fn failure(reply: Result<Response, Error>) -> (bool, Option<u64>, String) {
    told(play(vec![reply]).0.expect_err("a failure"))
}

/// Whether the failure is a retry, its delay in milliseconds, and its message, which must not have the key.
fn told(failure: Failure) -> (bool, Option<u64>, String) {
    let told = match failure {
        Failure::Retry(retry) => (true, retry.after_ms, retry.message),
        Failure::Reject(message) => (false, None, message),
        Failure::Defer(_) => panic!("no deferral"),
    };
    assert!(!told.2.contains(KEY), "{}", told.2);
    told
}

#[test]
fn a_good_answer_becomes_the_same_form_as_the_rules() {
    let (result, requests) = play(vec![Ok(reply(&good().to_string()))]);
    let (found, rules) = (result.unwrap(), analysis::analyze("7", RESUME, now()).unwrap());
    assert_eq!(
        (found.method, found.model.as_deref(), found.score, found.is_resume),
        ("model", Some("small"), 65, true)
    );
    assert_eq!(found.years_of_experience, Some(4.9));
    let skills: Vec<_> = found.skills.iter().map(|skill| (skill.name.as_ref(), skill.mentions)).collect();
    assert_eq!(skills, [("Rust", 2), ("COBOL", 0)]);
    let (found, rules) = (serde_json::to_value(found).unwrap(), serde_json::to_value(rules).unwrap());
    let shape = |value: &Value| {
        value.as_object().unwrap().keys().filter(|key| *key != "model").cloned().collect::<Vec<_>>()
    };
    assert_eq!(shape(&found), shape(&rules));
    for same in ["resumeId", "language", "words", "sections"] {
        assert_eq!(found[same], rules[same], "{same}");
    }
    let shape = |parts: &Value| {
        parts
            .as_array()
            .unwrap()
            .iter()
            .map(|part| (part["name"].clone(), part["max"].clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(shape(&found["parts"]), shape(&rules["parts"]));
    assert_eq!(
        found["experience"]["periods"][0],
        json!({ "from": "2021-03", "to": "2026-01", "present": true })
    );

    let [request] = &requests[..] else { panic!("one request") };
    assert_eq!(request.url, "https://llm.example/v1/chat/completions");
    assert!(request.headers.contains(&("authorization".into(), format!("Bearer {KEY}"))));
    assert!(request.timeout.is_some_and(|timeout| timeout < Duration::from_secs(60)));
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!((&body["model"], &body["temperature"]), (&json!("small"), &json!(0)));
    assert!(body["messages"][1]["content"].as_str().unwrap().contains("Maya Lindqvist"));
    assert!(!body.to_string().contains(KEY));
}

#[test]
fn what_stands_around_an_answer_is_overlooked() {
    let json = good().to_string();
    for content in [
        format!("```json\n{json}\n```"),
        format!("Here it is:\n```\n{json}\n```\nAnything else?"),
        format!("<think>{{ no }} hm</think>\n{json}"),
    ] {
        assert!(Answer::check(&content, now()).is_ok(), "{content}");
    }
}

#[test]
fn a_wrong_answer_is_asked_for_again_once() {
    let (result, requests) =
        play(vec![Ok(reply("I would rather not use JSON")), Ok(reply(&good().to_string()))]);
    assert_eq!(result.unwrap().score, 65);
    let body: Value = serde_json::from_slice(&requests[1].body).unwrap();
    let messages = body["messages"].as_array().unwrap();
    assert_eq!((messages.len(), &messages[2]["content"]), (4, &json!("I would rather not use JSON")));
    assert!(messages[3]["content"].as_str().unwrap().contains("it has no JSON object"), "{messages:?}");

    let (result, _) = play(vec![Ok(reply("{")), Ok(reply("{\"isResume\": 1}"))]);
    assert_eq!(
        told(result.unwrap_err()),
        (true, None, "the model's answer is not usable, twice: `isResume` must be true or false".into())
    );
}

#[test]
fn each_value_of_an_answer_is_checked() {
    let table = [
        ("/parts/contact/score", json!(16), "`parts.contact.score` must be a whole number from 0 to 15"),
        ("/parts/contact/score", json!(-1), "`parts.contact.score`"),
        ("/parts/contact/score", json!(1.5), "`parts.contact.score`"),
        ("/parts/contact/score", json!("12"), "`parts.contact.score`"),
        ("/parts/contact/score", json!(1e300), "`parts.contact.score`"),
        ("/parts/form", Value::Null, "`parts.form.score`"),
        ("/parts/form/why", json!("\u{0} \n"), "`parts.form.why` must be text"),
        ("/strengths", json!("many"), "`strengths` must be a list"),
        ("/strengths/0", json!({}), "`strengths[0]` must be text"),
        ("/contact", json!([]), "`contact.links` must be a list"),
        ("/contact/email", json!(7), "`contact.email` must be text or null"),
        (
            "/experience/periods/0/from",
            json!("March 2021"),
            "`experience.periods[0].from` must be a month such as 2021-03",
        ),
        ("/experience/periods/0/from", json!("2021-13"), "`experience.periods[0].from`"),
        (
            "/experience/periods/0/from",
            json!("2027-01"),
            "`experience.periods[0]` must be a period that does not end before it begins",
        ),
        (
            "/experience/yearsStated",
            json!(1000),
            "`experience.yearsStated` must be a whole number from 0 to 70",
        ),
        ("/education/0/level", json!("guru"), "`education[0].level` must be one of school, associate"),
        ("/education/0/to", json!(20120), "`education[0].to`"),
        ("/skills/0/category", json!("magic"), "`skills[0].category` must be one of language"),
        ("/skills/0/name", Value::Null, "`skills[0].name` must be text"),
    ];
    for (at, value, problem) in table {
        let mut answer = good();
        *answer.pointer_mut(at).expect(at) = value.clone();
        let found = Answer::check(&answer.to_string(), now()).expect_err(at);
        assert!(found.contains(problem), "{at} {value}: {found}");
    }
    let mut answer = good();
    answer["isResume"] = json!(false);
    assert!(
        Answer::check(&answer.to_string(), now())
            .unwrap_err()
            .contains("`parts.achievements.score` must be a whole number from 0 to 0")
    );
    for text in ["", "[]", "{]}", "} {", "null"] {
        assert!(Answer::check(text, now()).is_err(), "{text:?}");
    }
}

#[test]
fn what_is_too_much_is_cut_and_what_is_unknown_is_dropped() {
    let mut answer = good();
    answer["suggestions"] = json!(vec!["x ".repeat(5000); 50]);
    answer["skills"] =
        json!((0..500).map(|n| json!({ "name": format!("S{n}"), "category": "soft" })).collect::<Vec<_>>());
    answer["score"] = json!(100);
    answer["hire"] = json!({ "now": true });
    answer["parts"]["bonus"] = json!({ "score": 50, "why": "asked for" });
    answer["parts"]["form"]["score"] = json!(7.0);
    let found = play(vec![Ok(reply(&answer.to_string()))]).0.unwrap();
    assert_eq!((found.score, found.parts.len(), found.suggestions.len(), found.skills.len()), (65, 7, 8, 60));
    assert!(found.suggestions.iter().all(|text| text.chars().count() <= 301));
    let json = serde_json::to_string(&found).unwrap();
    assert!(!json.contains("hire") && !json.contains("bonus") && json.len() < 16 * 1024, "{json}");
}

#[test]
fn a_way_to_reach_the_person_has_to_stand_in_the_resume() {
    let mut answer = good();
    answer["contact"]["email"] = json!("attacker@evil.example");
    answer["contact"]["phone"] = json!("+1 900 666 6666");
    answer["contact"]["links"] =
        json!(["https://evil.example/login", "javascript:alert(1)", "GitHub.com/maya"]);
    let contact = play(vec![Ok(reply(&answer.to_string()))]).0.unwrap().contact;
    assert_eq!(
        (contact.email.as_deref(), contact.phone.as_deref()),
        (Some("maya@example.com"), Some("+46 70 123 45 67"))
    );
    assert_eq!(contact.links, ["GitHub.com/maya"]);
}

#[test]
fn refusals_and_cut_answers_reject() {
    let choice = |choice: Value| failure(Ok(status(200, &[], &json!({ "choices": [choice] }).to_string())));
    let (retry, _, why) = choice(
        json!({ "message": { "content": null, "refusal": "I cannot\nhelp" }, "finish_reason": "stop" }),
    );
    assert_eq!((retry, why.as_str()), (false, "the model refuses: I cannot help"));
    let (retry, _, why) = choice(json!({ "message": { "content": "" }, "finish_reason": "content_filter" }));
    assert!(!retry && why.contains("content_filter"), "{why}");
    let (retry, _, why) = choice(json!({ "message": { "content": "{\"isRes" }, "finish_reason": "length" }));
    assert!(!retry && why.contains("max_tokens"), "{why}");
    for body in ["", "<html>", "{}", "{\"choices\": []}", "{\"choices\": [{\"message\": {}}]}"] {
        assert!(failure(Ok(status(200, &[], body))).0, "{body}");
    }
}

#[test]
fn each_status_has_its_end() {
    let table = [
        (status(429, &[("retry-after", "7")], ""), true, Some(7000)),
        (status(429, &[("retry-after", "Tue, 28 Jul 2026 10:00:30 GMT")], ""), true, Some(30_000)),
        (status(429, &[], ""), true, None),
        (status(503, &[("retry-after", "0")], ""), true, Some(0)),
        (status(500, &[("retry-after", "7")], ""), true, Some(7000)),
        (status(529, &[("retry-after", "120")], ""), true, Some(120_000)),
        (status(502, &[], "<html>"), true, None),
        (status(504, &[("retry-after", "3")], ""), true, Some(3000)),
        (status(408, &[], ""), true, None),
        (status(401, &[], ""), true, None),
        (status(402, &[], ""), true, None),
        (status(403, &[], ""), true, None),
        (status(404, &[], ""), true, None),
        (status(405, &[], ""), true, None),
        (status(302, &[("location", "https://elsewhere.example")], ""), true, None),
        (status(400, &[], ""), false, None),
        (status(413, &[], ""), false, None),
        (status(422, &[], ""), false, None),
    ];
    for (reply, retry, after) in table {
        let told = failure(Ok(reply.clone()));
        assert_eq!((told.0, told.1), (retry, after), "{}: {}", reply.status, told.2);
        assert!(told.2.contains(&reply.status.to_string()), "{}", told.2);
    }
    let (_, _, why) = failure(Ok(status(
        400,
        &[],
        &json!({ "error": { "message": format!("no {KEY}\nplease") } }).to_string(),
    )));
    assert_eq!(why, "the model's server does not take the request (400): no [key] please");
    let body = json!({ "error": { "message": format!("Incorrect API key provided: {KEY}") } }).to_string();
    assert!(!failure(Ok(status(401, &[], &body))).2.contains("Incorrect"));
    assert!(failure(Ok(status(402, &[], ""))).2.contains("credit"));
}

#[test]
fn a_key_that_is_repeated_is_taken_out_however_it_is_written() {
    let escaped = format!(
        "{{\"choices\": [{{\"message\": {{\"refusal\": \"no {}\"}}}}]}}",
        KEY.replace('s', "\\u0073")
    );
    assert_eq!(failure(Ok(status(200, &[], &escaped))).2, "the model refuses: no [key]");
    let mut answer = good();
    answer["strengths"] = json!([format!("Knows {KEY}.")]);
    let found = play(vec![Ok(reply(&answer.to_string()))]).0.unwrap();
    assert_eq!(found.strengths, ["Knows [key]."]);
}

#[test]
fn a_long_resume_is_sent_in_part_and_the_result_says_so() {
    let content = format!("{RESUME}{}", "- Did one thing more, and then another\n".repeat(200));
    let rules = analysis::analyze("7", &content, now()).unwrap();
    let settings = settings(&[("max_chars", "500")]).unwrap().expect("a model");
    let send = |request: &Request| {
        assert!(request.body.len() < 20_000, "{}", request.body.len());
        Ok(reply(&good().to_string()))
    };
    let found = model::analyze(&settings, &content, rules, now(), 0, send).unwrap();
    assert_eq!(
        found.note.unwrap(),
        format!("the model has read the first 500 of {} characters", content.trim().chars().count())
    );
}

#[test]
fn no_response_is_a_retry() {
    for error in [
        Error::Timeout,
        Error::Unreachable("llm.example refuses connections".into()),
        Error::Network("llm.example ended the connection too early".into()),
        Error::Denied("no".into()),
        Error::Invalid("the header `authorization` cannot be sent".into()),
        Error::TooLarge("the response is larger than 2 bytes".into()),
    ] {
        let text = error.to_string();
        let (retry, after, why) = failure(Err(error));
        assert!(retry && after.is_none() && (why.contains(&text) || why.contains("in time")), "{why}");
    }
}

#[test]
fn what_every_task_would_meet_is_told_apart_from_what_one_task_may_cause() {
    let table = [
        (Err(Error::Timeout), true),
        (Err(Error::Unreachable("llm.example refuses connections".into())), true),
        (Err(Error::Denied("no".into())), true),
        (Err(Error::Invalid("the header `authorization` cannot be sent".into())), true),
        (Err(Error::Network("llm.example ended the connection too early".into())), false),
        (Err(Error::TooLarge("the response is larger than 2 bytes".into())), false),
    ];
    let down = [302, 401, 402, 403, 404, 405, 429, 502, 503, 504, 529].map(|code| (code, true));
    let failed = [400, 408, 413, 422, 425, 500, 501].map(|code| (code, false));
    let statuses = down.into_iter().chain(failed).map(|(code, is_down)| (Ok(status(code, &[], "")), is_down));
    for (reply, is_down) in table.into_iter().chain(statuses) {
        let failure = play(vec![reply]).0.expect_err("a failure");
        assert_eq!(failure.is_unavailable(), is_down, "{failure:?}");
    }
}

#[test]
fn the_configuration_is_checked() {
    assert!(Settings::read(|_| Ok(None)).unwrap().is_none());
    assert!(Settings::read(|_| Ok(Some("  ".into()))).unwrap().is_none());
    assert!(
        settings(&[
            ("temperature", "none"),
            ("response_format", "json_object"),
            ("max_chars", "500"),
            ("max_tokens", "9")
        ])
        .is_ok()
    );
    for (key, value) in [
        ("temperature", "hot"),
        ("temperature", "NaN"),
        ("response_format", "xml"),
        ("max_chars", "499"),
        ("max_chars", "many"),
        ("max_tokens", "0"),
        ("url", ""),
        ("model", ""),
    ] {
        let failure = settings(&[(key, value)]).err().expect(key);
        assert!(failure.is_unavailable(), "{failure:?}");
        let (retry, _, why) = told(failure);
        assert!(retry && why.contains(&format!("`{key}`")), "{why}");
    }
}
