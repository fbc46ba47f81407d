//! The built component in the sandbox that a host runs it in: no Redis, no host. `make test` builds it first.

use std::process::Command;

use serde_json::{Value, json};

fn tried(args: &[&str]) -> Value {
    let tqhost = std::env::var("TQHOST").unwrap_or_else(|_| "tqhost".into());
    let ran = Command::new(&tqhost)
        .args(["try", "{{NAME}}.wasm", "--json"])
        .args(args)
        .output();
    let ran = ran.unwrap_or_else(|error| panic!("{tqhost}: {error}"));
    serde_json::from_slice(&ran.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&ran.stderr)))
}

#[test]
fn the_words_of_the_sample_are_counted() {
    let ran = tried(&["task.json"]);
    assert_eq!(
        (&ran["outcome"], &ran["result"]),
        (&json!("completed"), &json!({ "words": 7 })),
        "{ran}"
    );
}

#[test]
fn a_task_without_text_is_rejected() {
    let ran = tried(&["--field", "other=1"]);
    assert_eq!(
        (&ran["outcome"], &ran["message"]),
        (&json!("reject"), &json!("field `content` is missing: it has other")),
        "{ran}"
    );
}
