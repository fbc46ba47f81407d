//! The page of a task: the form for a copy, why the task waits, its alias, how long each part took.
//!
//! Not here: which fields completed tasks keep (`queue::keep_fields`).

use serde_json::json;

use super::{Browser, form, led_to, text, unescaped};
use crate::support::{Bench, eventually};

/// The lines of the form for a copy.
#[track_caller]
fn lines(page: &str, queue: &str) -> String {
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
    for (queue, id) in [("waits", &waits), ("done", &done), ("bad", &dead)] {
        let page = browser.page(&format!("/queues/{queue}/tasks/{id}"));
        let shown = text(&page);
        assert!(!page.contains("ada@example.com"), "{queue}: {page}");
        assert!(
            shown.contains("Left out, because they are hidden") && shown.contains("email data"),
            "{shown}"
        );
        assert_eq!(lines(&page, queue), "order=7\ntext:=\"one\\ntwo = <b>\"\n", "{queue}");
        // A browser sends line breaks as CR LF.
        let changed = lines(&page, queue).replace("order=7", "order=8").replace('\n', "\r\n");
        let answer =
            browser.press(&page, &format!("/queues/{queue}/tasks"), &[("fields", &changed), ("delay", "1h")]);
        let place = led_to(&answer);
        let copy = place.trim_end_matches("?done=enqueued").rsplit('/').next().expect("an id").to_owned();
        let listed = host.get(&format!("/v1/queues/{queue}/tasks?state=delayed&fields=true")).json();
        let copied =
            json!([{ "name": "order", "value": "8" }, { "name": "text", "value": "one\ntwo = <b>" }]);
        assert_eq!(listed["tasks"][0]["fields"], copied, "{listed}");
        let page = text(&browser.page(&format!("/queues/{queue}/tasks/{copy}")));
        assert!(page.contains("It is delayed: it goes back to its queue when it is due."), "{page}");
    }
    // The alias of a task is on its page, whether it is asked for by it or not.
    for name in [done.as_str(), "7"] {
        let page = text(&browser.page(&format!("/queues/done/tasks/{name}")));
        assert!(page.contains("Alias7") && page.contains("Waited at first"), "{page}");
    }
    eventually("the host tells of its plugin", || {
        let page = text(&browser.page(&format!("/queues/waits/tasks/{waits}")));
        page.contains("No host has a working version of plugin missing").then_some(())
    });
    bench.tqhost(&["pause", "waits", "--why", "a test"]).ok();
    let page = text(&browser.page(&format!("/queues/waits/tasks/{waits}")));
    assert!(page.contains(", because: a test."), "{page}");
    host.stop();
}
