//! A version that throws in every task, in each language: it is rolled back under load, and nothing is
//! charged.
//!
//! Not here: other bad versions and the rules of probation (`plugins`).

use super::authors::{compile, host_with_caches};
use super::languages::COMPILES;
use crate::support::files::{guest, said};
use crate::support::{Bench, Done, Trickle, within};

/// A good version, a bad one, and what the bad one says. The bad versions throw at tasks with the field
/// `end`.
const VERSIONS: [(&str, &str, &str); 4] = [
    ("echo", "panics", "boom on attempt 1"),
    ("in-javascript", "stock-javascript", "TypeError: boom in JavaScript"),
    ("in-python", "stock-python", "LookupError: boom in Python"),
    ("in-go", "throws-in-go", "panic: boom in Go"),
];

#[test]
fn a_version_that_throws_is_rolled_back_in_every_language_and_no_attempt_is_charged() {
    for (good, bad, what) in VERSIONS {
        // Each task has only one attempt.
        let queues = "[queues.work]\nplugin = \"p\"\nmax_retries = 0\n";
        let mut bench = Bench::new(queues);
        // Both are compiled before the host starts.
        for guest in [bad, good] {
            bench.install(guest, "p");
            compile(&bench, "languages");
        }
        let host = host_with_caches(&bench, "languages");
        host.log("tqhost is running");
        let trickle = Trickle::start_with(&bench, "work", 4, "end");
        trickle.more(10);
        bench.install(bad, "p");
        within(COMPILES, "the bad version runs", || (host.logged("plugin loaded").len() == 2).then_some(()));
        let line = said(&host, "plugin version rolled back", &guest(bad));
        assert!(line["reason"].to_string().contains(what), "{bad}: {line}");
        trickle.more(20);
        for Done { id, .. } in trickle.stop() {
            let of_task = ["attempt", "error"].map(|field| bench.status("work", &id, field));
            assert_eq!(of_task, ["1", ""], "{bad}: {id}");
        }
        let given_back = host.ended_as("work", "given-back");
        assert!(given_back >= 6, "{bad}: {given_back}");
        for outcome in ["retried", "retries-exhausted"] {
            assert_eq!(host.ended_as("work", outcome), 0, "{bad}: {outcome}");
        }
        assert!(bench.dead("work").is_empty(), "{bad}");
        host.stop();
    }
}
