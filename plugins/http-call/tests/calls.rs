//! Whole calls, from the task to the outcome, with applications that the tests play.

use std::collections::HashMap;
use std::time::Duration;

use http_call::call_with;
use tqhost_handler::http::{Error, Request, Response};
use tqhost_handler::{Failure, Task, testing};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn called(
    task: &Task,
    config: &[(&str, &str)],
    send: impl FnOnce(&Request) -> Result<Response, Error>,
) -> Result<Option<Vec<u8>>, Failure> {
    let all = [&[("url", "https://app.example.com/{queue}"), ("secret", SECRET)], config].concat();
    let config: HashMap<&str, &str> = all.into_iter().collect();
    call_with(task, |key| Ok(config.get(key).map(|value| value.to_string())), send)
}

fn header<'r>(request: &'r Request, name: &str) -> Option<&'r str> {
    let mut found = request.headers.iter().filter(|(known, _)| known == name);
    let value = found.next().map(|(_, value)| value.as_str());
    assert!(found.next().is_none(), "{name} comes twice");
    value
}

#[test]
fn a_task_is_posted_with_its_headers() {
    testing::set_fence(12);
    let task = Task { id: "order.7".into(), attempt: 2, ..Task::sample([("content", "text")]) };
    let result = called(&task, &[], |request| {
        assert_eq!(request.url, "https://app.example.com/test");
        for (name, value) in [
            ("content-type", "application/json"),
            ("webhook-id", "order%2E7"),
            ("idempotency-key", "test:order%2E7"),
            ("tqhost-queue", "test"),
            ("tqhost-attempt", "2"),
            ("tqhost-fence", "12"),
            // The attempt has one minute left, and its deadline is one minute after 2026-01-01.
            ("webhook-timestamp", "1767225600"),
        ] {
            assert_eq!(header(request, name), Some(value), "{name}");
        }
        let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        let expected = serde_json::json!({ "id": "order.7", "queue": "test", "attempt": 2, "fence": 12,
            "fields": { "content": "text" } });
        assert_eq!(body, expected);
        assert!(request.timeout.is_some_and(|timeout| timeout < Duration::from_secs(60)));
        Ok(Response { status: 200, body: b"done".to_vec(), ..Response::default() })
    });
    assert_eq!(result.unwrap(), Some(b"done".to_vec()));
}

#[test]
fn a_field_is_posted_as_it_is() {
    let task = Task::sample([("data", b"\xff".as_slice())]);
    let config = [("body", "data"), ("content_type", "image/png"), ("timeout", "3s")];
    let result = called(&task, &config, |request| {
        assert_eq!(header(request, "content-type"), Some("image/png"));
        assert_eq!(
            (request.body.as_slice(), request.timeout),
            (b"\xff".as_slice(), Some(Duration::from_secs(3)))
        );
        Ok(Response { status: 204, ..Response::default() })
    });
    assert_eq!(result.unwrap(), None);
}

#[test]
fn a_wrong_configuration_costs_no_task_and_asks_nobody() {
    let task = Task::sample([("a", "1")]);
    let failed = called(&task, &[("secret", "none")], |_| panic!("nobody is asked"));
    assert!(matches!(failed, Err(Failure::Retry(retry)) if retry.message.contains("`secret` must be")));
}
