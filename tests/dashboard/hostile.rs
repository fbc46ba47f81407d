//! Markup in every place that producers, handlers and hosts can write shows as text.

use serde_json::json;

use super::Browser;
use crate::support::files::{digest, guest, row};
use crate::support::words::{element, text};
use crate::support::{Bench, eventually};

const MARKUP: &str = "<img src=x onerror=alert(1)>\"'&</pre><script>alert(2)</script>";
const ESCAPED: &str = "&lt;img src=x onerror=alert(1)&gt;&quot;'&amp;&lt;/pre&gt;&lt;script&gt;";
/// A queue's name as a flow may have noted it: it ends at the first blank.
const QUEUE: &str = "<img/src=x/onerror=alert(3)>";

/// Each page shows the markup as text, and has no such tag. `check` of each page finds inline scripts.
#[track_caller]
fn is_text(browser: &Browser, path: &str, times: usize) {
    let page = browser.page(path);
    assert!(!page.contains("<img") && !page.contains("<script>"), "{path}: {page}");
    let found = page.matches(ESCAPED).count();
    assert!(found >= times, "{path}: {found} of {times}: {page}");
}

#[test]
fn markup_shows_as_text_wherever_it_stands() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\nevents = 10\n");
    // A task with markup as id, as a field's name and value; one that a foreign consumer holds.
    bench.redis::<()>("XGROUP", &["CREATE", "work", "tqhost", "0", "MKSTREAM"]);
    bench.xadd("work", &[("tq-id", &format!("r{MARKUP}")), (MARKUP, MARKUP)]);
    let consumer = format!("c{MARKUP}");
    bench.redis::<redis::Value>("XREADGROUP", &["GROUP", "tqhost", &consumer, "STREAMS", "work", ">"]);
    bench.xadd("work", &[("tq-id", MARKUP), (MARKUP, MARKUP)]);
    let status = format!("tq:{{work}}:task:{MARKUP}");
    let known = [
        status.as_str(),
        "status",
        "PENDING",
        "error",
        MARKUP,
        "note",
        MARKUP,
        "plugin",
        MARKUP,
        "consumer",
        MARKUP,
    ];
    bench.redis::<()>("HSET", &known);
    // A failed attempt of the second task, with markup in all its parts.
    let attempt = json!({
        "attempt": "1", "plugin": MARKUP, "consumer": MARKUP, "outcome": MARKUP, "error": MARKUP,
        "log": MARKUP
    });
    bench.redis::<()>("HSET", (format!("tq:{{work}}:attempts:{MARKUP}"), "1", attempt.to_string()));
    // A dead letter with markup in each of its own fields, and one of another program.
    let names = ["tq-id", "tq-queue", "tq-reason", "tq-error", "tq-consumer", "tq-plugin", MARKUP];
    let mut letter = vec!["tq:{work}:dead", "*"];
    names.iter().for_each(|name| letter.extend([*name, MARKUP]));
    bench.redis::<()>("XADD", &letter);
    bench.redis::<()>("XADD", &["tq:{work}:dead", "*", MARKUP, MARKUP]);
    // A task that has completed with markup, and is in the middle of a tree of such tasks.
    let flow = format!("0 tq:{{work}}:flow:{MARKUP}");
    let started = format!("work {MARKUP}");
    let (flow, started) = (flow.as_str(), started.as_str());
    let done = ["status", "COMPLETED", "result", MARKUP, "joins", "1", "flow", flow, "flows", started];
    bench.redis::<()>("HSET", ("tq:{work}:task:done", &done));
    bench.redis::<()>("HSET", ("tq:{work}:flow:done", "left", "2", "total", "2"));
    let children = [format!("PENDING work {MARKUP}"), format!("PENDING {QUEUE} {MARKUP}")];
    bench.redis::<()>("HSET", ("tq:{work}:flow:done:results", "0", &children[0], "1", &children[1]));
    // A host that announces markup.
    let plugin = json!({
        "name": MARKUP, "state": MARKUP, "version": MARKUP, "error": MARKUP, "loaded_at": 1, "compile_ms": 1,
        "from_cache": false, "bytes": 1, "attempts": 1, "failures": 0, "peak_memory": 0, "reloads": 0,
        "failed_reloads": 0,
        "history": [{ "at": 1, "what": MARKUP, "version": MARKUP, "took_ms": 1, "reason": MARKUP }],
        "builds": { MARKUP: { "label": MARKUP, "commit": MARKUP, "author": MARKUP } }
    });
    let queue = json!({
        "name": "work", "state": MARKUP, "running": 0, "completed": 0, "retried": 0, "dead": 0, "rate": 0.0
    });
    let host = json!({
        "id": MARKUP, "version": MARKUP, "pid": 1, "started_at": 1, "config_error": MARKUP,
        "queues": [queue], "plugins": [plugin]
    });
    let host_key = format!("tq:host:{MARKUP}");
    bench.redis::<()>("SET", (host_key, host.to_string()));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_millis();
    bench.redis::<()>("ZADD", ("tq:hosts", now.to_string(), MARKUP));
    // A version with markup in the history, and a minute of another form.
    let minute = now / 60_000;
    let versions = json!({ MARKUP: { "completed": 1, "us": 5 } }).to_string();
    let hour = format!("tq:{{work}}:minutes:{}", minute / 60);
    bench.redis::<()>("HSET", (&hour, format!("versions:{}", minute % 60), versions));
    bench.redis::<()>("HSET", (&hour, format!("figures:{}", minute % 60), MARKUP));
    let host = bench.host();
    let browser = Browser::new(&host);
    let encoded =
        percent_encoding::utf8_percent_encode(MARKUP, percent_encoding::NON_ALPHANUMERIC).to_string();
    is_text(&browser, "/", 2);
    is_text(&browser, "/plugins", 3);
    is_text(&browser, &format!("/plugins/{encoded}"), 9);
    is_text(&browser, "/queues/work", 7);
    is_text(&browser, "/queues/work?state=running", 4);
    is_text(&browser, "/queues/work?state=dead", 3);
    is_text(&browser, "/queues/work/dead", 6);
    is_text(&browser, &format!("/queues/work/tasks/{encoded}"), 10);
    is_text(&browser, &format!("/queues/work/tasks/r{encoded}"), 3);
    // The result, the parent, two children, and the flow that it started.
    is_text(&browser, "/queues/work/tasks/done", 5);
    let page = browser.page("/queues/work/tasks/done");
    assert!(page.contains("&lt;img/src=x/onerror=alert(3)&gt;"), "{page}");
    // A query that a visitor is made to send comes back as text, too.
    let filters = format!("text={encoded}&error={encoded}&version={encoded}&reason={encoded}&host={encoded}");
    is_text(&browser, &format!("/queues/work?{filters}"), 2);
    is_text(&browser, &format!("/queues/work/dead?{filters}"), 3);
    is_text(&browser, &format!("/queues/work/dead/confirm?what=purge&{filters}"), 5);
    is_text(&browser, &format!("/login?next={encoded}"), 1);
    for wrong in [
        format!("/queues/{encoded}"),
        format!("/queues/work/tasks/x{encoded}"),
        format!("/queues/work?state={encoded}"),
        format!("/queues/work/dead?newer_than={encoded}"),
    ] {
        let answer = browser.get(&wrong);
        assert!((400..500).contains(&answer.status), "{answer:?}");
        super::check(&answer);
        assert!(!answer.body.contains("<img") && answer.body.contains("&lt;img"), "{answer:?}");
    }
    // Words of success come from a list, not from the address.
    assert!(!browser.page("/?done=words+of+somebody").contains("words of somebody"));
    host.stop();
}

#[test]
fn the_reason_of_an_order_shows_as_text() {
    let bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    bench.install("echo", "echo");
    let host = bench.host();
    eventually("the host runs a version", || {
        row(&bench, "echo").filter(|row| row["state"] == "active").map(drop)
    });
    let version = digest(&guest("echo"));
    bench.tqhost(&["rollback", "echo", "--version", &version, "--why", MARKUP]).ok();
    let (browser, why) = (Browser::new(&host), format!("withdrawn: {ESCAPED}"));
    for path in ["/plugins/echo", "/", "/queues/work"] {
        eventually("the host has obeyed", || browser.page(path).contains(&why).then_some(()));
        is_text(&browser, path, 1);
    }
    host.stop();
}

#[test]
fn large_and_binary_fields_are_cut() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let mut add = redis::cmd("XADD");
    add.arg("work").arg("*").arg("bytes").arg(vec![0xff_u8; 1000]);
    add.arg("long").arg("x".repeat(1 << 20)).arg("turned").arg("\u{202e}right to left");
    for n in 0..80 {
        add.arg(format!("more-{n}")).arg("y");
    }
    let id: String = add.query(&mut bench.db).expect("add a task");
    let host = bench.host();
    let page = Browser::new(&host).page(&format!("/queues/work/tasks/{id}"));
    assert!(text(&page).contains("ff ff ff") && page.len() < 40_000, "{} bytes", page.len());
    let notes = element(&page, "aria-labelledby=\"fields\"").split("<p class=\"note\">").skip(1);
    let notes: Vec<String> = notes.filter_map(|note| note.split("</p>").next()).map(text).collect();
    insta::assert_snapshot!(notes.join("\n"), @"
    Binary, 1000 bytes.
    The first 4096 characters of 1048576 bytes.
    There are 33 more.
    ");
    host.stop();
}
