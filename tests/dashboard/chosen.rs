//! Rows that somebody has chosen by their boxes, without JavaScript: work on exactly these.

use serde_json::json;

use super::{Browser, form, hidden, led_to, problem};
use crate::api::access::{NAMED, named};
use crate::support::Bench;
use crate::support::dead_letters::add_dead;
use crate::support::http::Response;
use crate::support::words::{element, masked, text};

const PAGE: &str = "/queues/work/chosen";

/// The ids of the boxes of a page.
fn boxes(page: &str) -> Vec<String> {
    let boxes = page.split("<input type=\"checkbox\" name=\"task\" value=\"").skip(1);
    boxes.filter_map(|rest| rest.split('"').next().map(str::to_owned)).collect()
}

/// Ticks boxes on a page and presses a button: the page that asks.
#[track_caller]
fn choose(browser: &Browser, page: &str, what: &str, ids: &[&str]) -> String {
    let list = form(page, PAGE);
    assert!(list.contains(&format!("name=\"what\" value=\"{what}\"")), "{what} in {list}");
    let mut fields = hidden(&list);
    fields.push(("what".to_owned(), what.to_owned()));
    fields.extend(ids.iter().map(|id| ("task".to_owned(), (*id).to_owned())));
    let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    browser.page(&format!("{PAGE}?{}", super::encoded(&fields)))
}

/// The page that says what was done.
#[track_caller]
fn done(answer: Response) -> String {
    assert_eq!(answer.status, 200, "{answer:?}");
    super::check(&answer);
    answer.body
}

/// The paragraphs of a page, without its links.
fn told(page: &str) -> String {
    let parts = element(page, "<main").split("<p").skip(1).filter_map(|part| part.split_once("</p>"));
    let parts = parts.map(|(part, _)| text(&format!("<p{part}"))).filter(|part| part.ends_with('.'));
    parts.collect::<Vec<_>>().join("\n")
}

#[test]
fn chosen_tasks_are_cancelled_and_no_other() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\nshow = [\"tenant\"]\n");
    let ids: Vec<String> = (0..5).map(|n| bench.xadd("work", &[("tenant", &format!("t{n}"))])).collect();
    let host = bench.host();
    let browser = Browser::new(&host);
    let page = browser.page("/queues/work");
    assert_eq!(boxes(&page), ids);
    let asks = choose(&browser, &page, "cancel", &[&ids[1], &ids[3]]);
    insta::assert_snapshot!(told(&asks), @"
    2 tasks of queue work, chosen by hand.
    They are cancelled for good, with the tasks of their flows. A handler that runs is stopped.
    It is shown to everybody who looks at the change.
    ");
    assert!(asks.contains(">tenant=t1<"), "{asks}");
    assert!(asks.contains("href=\"/queues/work?state=queued#tasks\""), "the way back: {asks}");
    assert_eq!(bench.places("work").length, 5, "nothing is done yet");
    // One of them is cancelled meanwhile.
    bench.tqhost(&["cancel", "work", &ids[3]]).ok();
    let why = [("why", "a <b>flood</b>")];
    let shown = done(browser.press(&asks, &format!("{PAGE}/cancel"), &why));
    insta::assert_snapshot!(told(&shown), @"
    1 task is cancelled, chosen by hand.
    1 chosen row left out: had ended meanwhile.
    ");
    assert_eq!(shown.matches(">CANCELLED<").count(), 2, "{shown}");
    assert_eq!(bench.places("work").length, 3);
    for (n, id) in ids.iter().enumerate() {
        let expected = if n % 2 == 1 { "CANCELLED" } else { "PENDING" };
        assert_eq!(bench.tqhost(&["status", "work", id, "--json"]).ok().json()["status"], expected, "{n}");
    }
    let changes = browser.page("/changes");
    let change = masked(&text(element(&changes, "<tbody")), &[]);
    insta::assert_snapshot!(change, @"TIME (AGE ago) | anybody | cancel | work | 1 task, chosen by hand | a <b>flood</b>");
    let audit = host.until_logged("audit: a change was asked for", 1);
    let counted = ["ids", "named", "succeeded", "skipped"].map(|name| audit[0][name].clone());
    assert_eq!(counted, [json!(format!("{} {}", ids[1], ids[3])), json!(2), json!(1), json!(1)]);
    // The page that asks tells of those that have ended.
    insta::assert_snapshot!(told(&choose(&browser, &page, "cancel", &[&ids[0], &ids[1]])), @"
    1 task of queue work, chosen by hand.
    1 chosen row left out: had ended meanwhile.
    They are cancelled for good, with the tasks of their flows. A handler that runs is stopped.
    It is shown to everybody who looks at the change.
    ");
    host.stop();
}

#[test]
fn chosen_dead_letters_are_requeued_or_deleted_and_no_other() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    add_dead(&mut bench, 0..8);
    let host = bench.host();
    let browser = Browser::new(&host);
    let left = |bench: &mut Bench| -> Vec<String> {
        let letters: Vec<(String, Vec<String>)> = bench.redis("XRANGE", ("tq:{work}:dead", "-", "+"));
        letters.into_iter().map(|(_, fields)| fields[1].clone()).collect()
    };
    for list in ["/queues/work/dead?reason=rejected", "/queues/work?state=dead"] {
        let page = browser.page(list);
        let asks = choose(&browser, &page, "requeue", &["id-2"]);
        assert!(asks.contains(&format!("href=\"{list}#tasks\"")), "the way back to {list}: {asks}");
    }
    let page = browser.page("/queues/work/dead");
    assert_eq!(boxes(&page).len(), 8);
    let asks = choose(&browser, &page, "requeue", &["id-1", "id-4"]);
    let shown = done(browser.press(&asks, &format!("{PAGE}/requeue"), &[]));
    insta::assert_snapshot!(told(&shown), @"2 dead letters are requeued, chosen by hand.");
    assert!(shown.contains(">PENDING<"), "{shown}");
    assert_eq!(bench.redis::<u64>("XLEN", "work"), 2);
    assert_eq!(left(&mut bench), ["0", "2", "3", "5", "6", "7"]);
    let asks = choose(&browser, &page, "purge", &["id-1", "id-7", "id-3"]);
    insta::assert_snapshot!(told(&asks), @"
    2 dead letters of queue work, chosen by hand.
    1 chosen row left out: not dead, or not among the newest 5,000 dead letters and without a status.
    What is purged is deleted for good.
    It is shown to everybody who looks at the change.
    ");
    insta::assert_snapshot!(told(&done(browser.press(&asks, &format!("{PAGE}/purge"), &[]))), @"
    2 dead letters are deleted, chosen by hand.
    1 chosen row left out: not dead, or not among the newest 5,000 dead letters and without a status.
    ");
    assert_eq!(left(&mut bench), ["0", "2", "5", "6"]);
    let many = format!("what=purge{}", "&task=x".repeat(1_001));
    let told = ["what=cancel", "what=drain&task=id-2", &many]
        .map(|query| problem(&browser.get(&format!("{PAGE}?{query}"))));
    insta::assert_snapshot!(told.join("\n"), @"
    422 no row is chosen: go back, and tick the boxes of some
    422 what: it is neither cancel, requeue nor purge
    422 1001 rows are chosen, and 1000 at most go together
    ");
    host.stop();
}

#[test]
fn boxes_are_for_those_who_may_do_something_with_them() {
    let mut bench = named("");
    add_dead(&mut bench, 0..2);
    let host = bench.host();
    for (name, role, token) in NAMED {
        let browser = Browser::logged_in(&host, token);
        let page = browser.page("/queues/work/dead");
        assert_eq!(boxes(&page).len(), if role == "read" { 0 } else { 2 }, "{name}");
        assert_eq!(page.contains("value=\"purge\">Purge…"), role == "admin", "{name}: {page}");
        let asks = browser.page(&format!("{PAGE}?what=purge&task=id-1"));
        assert_eq!(asks.contains(&format!("action=\"{PAGE}/purge\"")), role == "admin", "{name}: {asks}");
        let fields = [("form-token", &*super::form_token(&asks)), ("task", "id-1")];
        let answer = browser.submit(&format!("{PAGE}/purge"), &fields);
        assert_eq!(answer.status, if role == "admin" { 200 } else { 403 }, "{name}: {answer:?}");
    }
    assert_eq!(bench.redis::<u64>("XLEN", "tq:{work}:dead"), 1);
    assert!(led_to(&Browser::new(&host).get(PAGE)).starts_with("/login?next="));
    host.stop();
}
