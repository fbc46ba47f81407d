//! Components that compilers make without options, in the world that wit/ publishes, without our helpers.
//!
//! Not here: projects of `tqhost new` (`authors`, `languages`), core modules of wasip1 (the sandbox's own
//! tests).

use serde_json::Value;

use super::authors::{cache_of, tried_with};

/// The guests with what their output and their exception look like.
const GUESTS: [(&str, &str, &str); 2] = [
    (
        "stock-python",
        "printed in Python",
        "LookupError: boom in Python at app.py:19 in handle caused by ValueError: the cause",
    ),
    ("stock-javascript", "printed in JavaScript", "received `TypeError: boom in JavaScript`"),
];

fn tried(guest: &str, field: &str) -> Value {
    tried_with(&cache_of("stock"), guest, &["--field", field, "--json"]).json()
}

#[test]
fn they_load_and_have_what_wasi_offers() {
    for (guest, printed, _) in GUESTS {
        let [one, other] = [(); 2].map(|()| tried(guest, "a=1"));
        for view in [&one, &other] {
            let found = &view["result"];
            assert!(view["outcome"] == "completed", "{guest}: {view}");
            assert!(view["log"].to_string().contains(printed), "{guest}: {view}");
            let (slept, seconds) = (found["slept"].as_f64(), found["seconds"].as_f64());
            assert!(slept.is_some_and(|slept| (0.01..20.0).contains(&slept)), "{guest}: {view}");
            // After 2020: it is the wall clock.
            assert!(seconds.is_some_and(|seconds| seconds > 1_577_836_800.0), "{guest}: {view}");
        }
        for drawn in ["uuid", "random"] {
            assert_ne!(one["result"][drawn], other["result"][drawn], "{guest}");
        }
    }
    let found = &tried("stock-python", "a=1")["result"];
    assert_eq!((&found["files"], &found["variables"]), (&"FileNotFoundError".into(), &0.into()));
}

#[test]
fn their_exceptions_are_traps_with_the_text() {
    for (guest, _, text) in GUESTS {
        let view = tried(guest, "end=throw");
        let message = view["message"].as_str().unwrap_or_default();
        assert!(view["outcome"] == "failed" && view["kind"] == "trap", "{guest}: {view}");
        assert!(message.contains(text), "{guest}: {view}");
    }
}
