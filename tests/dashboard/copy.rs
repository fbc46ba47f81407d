//! The page of a task: the form for a copy, why the task waits, its alias, how long each part took.
//!
//! Not here: which fields completed tasks keep (`queue::keep_fields`).

use std::collections::BTreeSet;

use serde_json::json;

use super::{Browser, form, led_to, lines, text, unescaped};
use crate::support::words::{element, masked};
use crate::support::{Bench, eventually};

/// The lines of the form for a copy.
#[track_caller]
fn copied(page: &str, queue: &str) -> String {
    let form = form(page, &format!("/queues/{queue}/tasks"));
    let area = form.split("<textarea").nth(1).and_then(|rest| rest.split_once('>')).expect("a text area").1;
    let area = area.split("</textarea>").next().unwrap_or_default();
    // A browser takes away the first line break.
    unescaped(area.strip_prefix('\n').unwrap_or(area))
}

#[test]
fn a_task_is_enqueued_again_with_changes_wherever_its_fields_are_known() {
    let bench = Bench::new("");
    let redis = bench.redis.url();
    let mut bench = bench;
    bench.configure(&format!(
        "[queues.waits]\nplugin = \"missing\"\n[queues.done]\nplugin = \"echo\"\nkeep_fields = true\n\
         id = {{ field = \"order\" }}\n[queues.bad]\nplugin = \"rejects\"\n[redis]\nurl = \"{redis}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\nmask = [\"email\"]\n"
    ));
    bench.install("echo", "echo");
    bench.install("rejects", "rejects");
    let host = bench.host();
    let fields = [
        ("order", "7"),
        ("text", "one\ntwo = <b>"),
        ("email", "ada@example.com"),
        ("data", "{\"email\":1,\"n\":2}"),
    ];
    let [waits, done, dead] = ["waits", "done", "bad"].map(|queue| bench.xadd(queue, &fields));
    bench.until("done", &done, "COMPLETED");
    bench.until("bad", &dead, "FAILED");
    let browser = Browser::new(&host);
    let mut told = BTreeSet::new();
    for (queue, id) in [("waits", &waits), ("done", &done), ("bad", &dead)] {
        let page = browser.page(&format!("/queues/{queue}/tasks/{id}"));
        assert!(!page.contains("ada@example.com"), "{queue}: {page}");
        let copy = element(&page, "aria-labelledby=\"copy\"");
        told.insert(text(element(copy, "class=\"note\"")));
        assert_eq!(copied(&page, queue), "order=7\ntext:=\"one\\ntwo = <b>\"\n", "{queue}");
        // A browser sends line breaks as CR LF.
        let changed = copied(&page, queue).replace("order=7", "order=8").replace('\n', "\r\n");
        let answer =
            browser.press(&page, &format!("/queues/{queue}/tasks"), &[("fields", &changed), ("delay", "1h")]);
        let place = led_to(&answer);
        let copy = place.trim_end_matches("?done=enqueued").rsplit('/').next().expect("an id").to_owned();
        let listed = host.get(&format!("/v1/queues/{queue}/tasks?state=delayed&fields=true")).json();
        let copied =
            json!([{ "name": "order", "value": "8" }, { "name": "text", "value": "one\ntwo = <b>" }]);
        assert_eq!(listed["tasks"][0]["fields"], copied, "{listed}");
        let page = browser.page(&format!("/queues/{queue}/tasks/{copy}"));
        told.insert(text(element(&page, "class=\"waits\"")));
    }
    insta::assert_snapshot!(lines(told), @"
    It is delayed: it goes back to its queue when it is due.
    Left out, because they are hidden from this page or have no place in a line: email data.
    ");
    // The alias of a task is on its page, whether it is asked for by it or not.
    for name in [done.as_str(), "7"] {
        let page = text(&browser.page(&format!("/queues/done/tasks/{name}")));
        assert!(page.contains("\nAlias\n7\n") && page.contains("\nWaited at first\n"), "{page}");
    }
    let reasons = || -> Vec<String> {
        let page = browser.page(&format!("/queues/waits/tasks/{waits}"));
        let reasons = page.split("<p class=\"waits\">").skip(1).filter_map(|rest| rest.split("</p>").next());
        let by = host.get("/v1/queues/waits").json()["pause"]["by"].as_str().unwrap_or("-").to_owned();
        reasons.map(|reason| masked(&text(reason), &[(&by, "SOMEBODY")])).collect()
    };
    eventually("the host tells of its plugin", || {
        host.get("/v1/queues/waits").json()["state"].eq("waiting-for-plugin").then_some(())
    });
    insta::assert_snapshot!(reasons().join("\n"), @"No host has a working version of plugin missing: the page of the plugins says why.");
    bench.tqhost(&["pause", "waits", "--why", "a test"]).ok();
    insta::assert_snapshot!(reasons().join("\n"), @"The queue is paused in all hosts since TIME UTC, by SOMEBODY, because: a test.");
    host.stop();
}
