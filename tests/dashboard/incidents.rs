//! Incidents: one card for each cause, who knows of it, what changed just before; the page of hosts; and what
//! the pages show while Redis is away or full.
//!
//! Not here: every alarm there is (`operations::alarms`), what Prometheus makes of the series
//! (`world::alerts`).

use std::collections::BTreeSet;
use std::iter;

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use super::{Browser, counted, led_to, lines, running_hosts};
use crate::support::files::{digest, guest, loaded, put};
use crate::support::http::send;
use crate::support::words::{element, masked, text};
use crate::support::{Bench, Held, Host, eventually};

/// The id of a host in its announcements.
fn id(host: &Host) -> String {
    host.log("tqhost is running")["host"].as_str().expect("an id").to_owned()
}

/// The sentence of the alarm of this kind, and its way out, once the overview has it.
#[track_caller]
pub(super) fn alarm(browser: &Browser<'_>, kind: &str) -> String {
    eventually(kind, || {
        let all = incidents(browser.host);
        let mut alarms =
            all.iter().flat_map(|one| iter::once(one).chain(one["more"].as_array().into_iter().flatten()));
        let alarm = alarms.find(|alarm| alarm["kind"] == kind)?;
        let (what, way_out) = (alarm["what"].as_str()?, alarm["way_out"].as_str()?);
        // The page cuts a long one.
        let begin: String = what.chars().take(200).collect();
        cards(&browser.page("/"))
            .iter()
            .any(|card| card.contains(&begin))
            .then(|| format!("{what} {way_out}"))
    })
}

/// The cards of a page: each with what is in it.
fn cards(page: &str) -> Vec<String> {
    let section = page.split("id=\"incidents\"").nth(1).and_then(|rest| rest.split("</section>").next());
    let parts = section.expect("the incidents").split("<strong>").skip(1);
    parts.map(|card| text(&format!("<strong>{card}"))).collect()
}

pub(super) fn incidents(host: &Host) -> Vec<Value> {
    let answer = send(host.admin(), "GET", "/v1/incidents", &[], None);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["incidents"].as_array().expect("a list").clone()
}

#[test]
fn the_alarms_of_the_pages_are_series() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    bench.xadd("work", &[("a", "1")]);
    let browser = Browser::new(&host);
    insta::assert_snapshot!(alarm(&browser, "waits-for-plugin"), @"It waits for a working version of its plugin missing; 1 task waits. See the plugins: put a working file in place, or reload it.");
    for series in [
        "tqhost_alarm{kind=\"waits-for-plugin\",queue=\"work\",severity=\"urgent\"} 1",
        "tqhost_alarm{kind=\"plugin-missing\",queue=\"\",severity=\"urgent\"} 1",
    ] {
        eventually(series, || host.get("/metrics").body.contains(series).then_some(()));
    }
    // An alarm that is over is gone.
    bench.tqhost(&["pause", "work"]).ok();
    let paused = "tqhost_alarm{kind=\"paused\",queue=\"work\",severity=\"look\"} 1";
    let series = eventually(paused, || {
        let series = host.get("/metrics").body;
        series.contains(paused).then_some(series)
    });
    assert!(!series.contains("waits-for-plugin"), "{series}");
    host.stop();
}

#[test]
fn a_host_that_ends_without_stopping_is_an_alarm_and_one_that_stops_is_not() {
    let bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let (host, dies, stops) = (bench.host(), bench.host(), bench.host());
    let [died, stopped] = [&dies, &stops].map(id);
    stops.stop();
    dies.kill();
    let browser = Browser::new(&host);
    let told = alarm(&browser, "host-lost");
    insta::assert_snapshot!(masked(&told, &[(&died, "DIED")]), @"1 host ended without stopping in the last hour: it was DIED, AGE ago. See its log and its machine: memory, a crash, the network. Others take its tasks over.");
    let page = browser.page("/");
    assert!(!page.contains(&stopped), "{page}");
    let series = "tqhost_alarm{kind=\"host-lost\",queue=\"\",severity=\"look\"} 1";
    eventually(series, || host.get("/metrics").body.contains(series).then_some(()));
    host.stop();
}

#[test]
fn bad_inputs_accuse_no_version() {
    const TASKS: u64 = 25;
    let mut bench = Bench::new("[queues.work]\nplugin = \"p\"\n");
    bench.install("rejects", "p");
    let host = bench.host();
    (0..TASKS).for_each(|_| drop(bench.xadd("work", &[("a", "1")])));
    host.until_ended_as("work", "rejected", TASKS);
    eventually("the host has told of it", || {
        let plugins = bench.tqhost(&["plugins", "p", "--json"]).ok().json();
        (plugins["plugins"][0]["version_failures"] == TASKS).then_some(())
    });
    alarm(&Browser::new(&host), "dead-letters");
    let all = json!(incidents(&host)).to_string();
    assert!(!all.contains("bad-version"), "{all}");
    assert_eq!(host.get("/v1/queues/work").json()["dead"], TASKS);
    host.stop();
}

#[test]
fn the_same_trouble_on_two_hosts_is_one_card_that_says_what_follows() {
    let bench = Bench::new(
        "[queues.work]\nplugin = \"broken\"\n[queues.other]\nplugin = \"broken\"\n\
         [queues.fine]\nplugin = \"echo\"\n",
    );
    bench.install("wrong-world", "broken");
    bench.install("echo", "echo");
    let hosts = [bench.host(), bench.host()];
    let mut told = BTreeSet::new();
    for host in &hosts {
        let browser = Browser::new(host);
        let [one, two] = hosts.each_ref().map(id);
        eventually("both hosts are in one card", || {
            let all = incidents(host);
            let card = all.iter().find(|incident| incident["kind"] == "plugin-refused")?;
            let what = card["what"].as_str()?;
            let has_more = card["more"].as_array().map(Vec::len) == Some(2);
            (has_more && what.contains(&one) && what.contains(&two)).then_some(())
        });
        let shown = cards(&browser.page("/"));
        told.insert(masked(&shown[0], &[(&one, "HOST"), (&two, "HOST")]));
        assert_eq!(shown.iter().filter(|card| card.contains("broken")).count(), 1, "{shown:#?}");
        let page = browser.page("/");
        assert!(page.contains("<title>(1) Overview – tqhost</title>"), "{page}");
        // The other pages have the number, too.
        assert!(browser.page("/plugins").contains("<title>(1) Plugins – tqhost</title>"));
        assert!(page.contains("action=\"/plugins/broken/reload\""), "the way out is a button: {page}");
    }
    insta::assert_snapshot!(lines(told), @"
    Act now: plugin broken: It is failed on 2 hosts (HOST, HOST): it exports no tqhost:handler/handler; it exports tqhost:testing/greeter@0.1.0. Repair the file, or what it needs, and reload it.
    Since TIME (AGE).
    Reload
    until it ends
    for an hour
    for 8 hours
    for a week
    Acknowledge
    2 more with this cause
    queue work: It waits for a working version of its plugin broken; 0 tasks wait.
    queue other: It waits for a working version of its plugin broken; 0 tasks wait.
    ");
    // Both hosts tell since when.
    let since = hosts.each_ref().map(|host| incidents(host)[0]["since_ms"].clone());
    assert!(since[0].is_u64() && since[0] == since[1], "{since:?}");
    Host::stop_all(hosts);
}

#[test]
fn an_acknowledgement_is_seen_on_the_other_host_until_the_incident_ends() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    bench.install("echo", "echo");
    let hosts = [bench.host(), bench.host()];
    bench.tqhost(&["pause", "work"]).ok();
    let [here, there] = hosts.each_ref().map(Browser::new);
    insta::assert_snapshot!(alarm(&here, "paused"), @"It is paused; 0 tasks wait. Resume it when its tasks may run.");
    let action = "/incidents/paused%3Awork/acknowledge";
    let page = here.page("/");
    assert!(page.contains("action=\"/queues/work/resume\""), "{page}");
    let before = incidents(&hosts[0])[0]["before"]["what"].take();
    let by = hosts[0].get("/v1/queues/work").json()["pause"]["by"].take();
    let known = [(by.as_str().expect("a name"), "SOMEBODY")];
    insta::assert_snapshot!(masked(before.as_str().expect("a change"), &known), @"a change by SOMEBODY: pause");
    assert!(text(&page).contains(before.as_str().expect("a change")), "{page}");
    assert_eq!(led_to(&here.press(&page, action, &[("for", "1h")])), "/?done=acknowledged");
    let page = there.page("/");
    assert!(!page.contains("<title>("), "{page}");
    insta::assert_snapshot!(acknowledged(&page), @"
    1 acknowledged
    Acknowledged by anybody TIME (AGE ago), until TIME (in AGE).
    ");
    // It is opened again by the API of the other host, and closed there.
    let post = |body: &Value| {
        let path = "/v1/incidents/paused:work/acknowledge";
        let headers = [("content-type", "application/json")];
        send(hosts[1].admin(), "POST", path, &headers, Some(&body.to_string()))
    };
    let answer = post(&json!({ "for": "0s" }));
    assert_eq!((answer.status, answer.json()["acknowledged"].clone()), (200, Value::Null), "{answer:?}");
    assert!(here.page("/").contains("<title>(1) Overview"), "it is open again");
    assert_eq!(post(&json!({ "why": "a deploy" })).json()["acknowledged"]["why"], "a deploy");
    insta::assert_snapshot!(acknowledged(&here.page("/queues/work")), @"
    1 acknowledged
    Acknowledged by anybody TIME (AGE ago), until it ends: a deploy
    ");
    assert_eq!(post(&json!({ "for": "31d" })).status, 422);
    // An incident that is not there cannot be acknowledged, and takes no room in Redis.
    let fields: u64 = bench.redis("HLEN", "tq:hosts:incidents");
    let unknown =
        here.submit("/incidents/made-up/acknowledge", &[("form-token", &super::form_token(&here.page("/")))]);
    assert_eq!(unknown.status, 404, "{unknown:?}");
    assert_eq!(bench.redis::<u64>("HLEN", "tq:hosts:incidents"), fields);
    bench.tqhost(&["resume", "work"]).ok();
    eventually("it is over", || incidents(&hosts[0]).is_empty().then_some(()));
    Host::stop_all(hosts);
}

/// How many incidents of a page are acknowledged, and by whom.
fn acknowledged(page: &str) -> String {
    let folded = element(element(page, "data-live=\"incidents\""), "<details");
    let notes = folded.split("<p class=\"note\">").skip(2).filter_map(|note| note.split("</p>").next());
    let parts = [element(folded, "<summary")].into_iter().chain(notes);
    masked(&parts.map(text).collect::<Vec<_>>().join("\n"), &[])
}

#[test]
fn a_queue_that_begins_to_fail_is_told_within_the_minute_with_what_changed_before() {
    const GOOD: usize = 60;
    let mut bench = Bench::new("[queues.work]\nplugin = \"p\"\nmax_retries = 0\n");
    bench.install("echo", "p");
    let host = bench.host();
    let browser = Browser::new(&host);
    (0..GOOD).for_each(|_| drop(bench.xadd("work", &[("a", "1")])));
    host.until_ended_as("work", "completed", GOOD as u64);
    let bad = guest("rejects");
    put(&bench, "p", &bad);
    loaded(&host, &bad);
    // They are the smaller part of the last ten minutes.
    (0..40).for_each(|_| drop(bench.xadd("work", &[("a", "1")])));
    host.until_ended_as("work", "rejected", 40);
    let version = digest(&bad);
    let accused = format!("bad-version:p@{}", &version[..12]);
    let first = eventually("the version is accused first", || {
        let first = incidents(&host).into_iter().next()?;
        (first["id"] == accused && first["what"].as_str()?.starts_with("40 of 40 ")).then_some(first)
    });
    assert_eq!((&first["is_urgent"], &first["action"]), (&json!(true), &json!("roll-back")), "{first}");
    let good = digest(&guest("echo"));
    let known = [(&version[..12], "BAD"), (&good[..12], "GOOD")];
    let card = masked(&cards(&browser.page("/"))[0], &known);
    // How long after the change it began differs from run to run.
    let told = [card.lines().next(), first["before"]["what"].as_str()].map(Option::unwrap_or_default);
    assert!(card.contains(&masked(told[1], &known)) && card.contains("\nRoll back BAD…\n"), "{card}");
    insta::assert_snapshot!(masked(&told.join("\n"), &known), @"
    Act now: plugin p: 40 of 40 attempts on its version BAD failed in queue work in the last 10 minutes; before it came, 0 of 60 did. See the errors of its tasks; put another version in place, or roll it back.
    the load of version BAD of plugin p
    ");
    // The button leads to the page that asks, with a reason.
    let page = browser.page("/");
    let link = page.split("href=\"").find(|rest| rest.starts_with("/plugins/p/rollback?"));
    let link = link.and_then(|rest| rest.split('"').next()).expect("a link").replace("&amp;", "&");
    let asks = browser.page(&link);
    insta::assert_snapshot!(masked(&counted(&asks), &known), @"BAD stops, GOOD starts on 1 host.");
    assert!(asks.contains("value=\"40 of 40"), "{asks}");
    host.stop();
}

#[test]
fn without_redis_the_overview_keeps_what_it_saw_and_comes_back() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    bench.xadd("work", &[("a", "1")]);
    let browser = Browser::new(&host);
    alarm(&browser, "plugin-missing");
    let away = |what: &str| {
        eventually(what, || {
            let answer = browser.get("/");
            (answer.status == 503 && answer.body.contains("role=\"alert\"")).then_some(answer)
        })
    };
    let check = |answer: &crate::support::http::Response| {
        let refresh = answer.header("refresh");
        assert_eq!((refresh, answer.header("retry-after")), (Some("5"), Some("2")), "{answer:?}");
        assert_eq!(cards(&answer.body).len(), 1, "it is told once: {answer:?}");
        let parts = ["<h2 id=\"incidents\"", "<p class=\"note\""].map(|mark| element(&answer.body, mark));
        let note = masked(&parts.map(text).join(": "), &[]);
        assert!(answer.body.contains("href=\"/queues/work\""), "the queues are there: {answer:?}");
        note
    };
    // It hangs, and goes on.
    kill(bench.redis.pid(), Signal::SIGSTOP).expect("freeze Redis");
    let hung = check(&away("Redis hangs"));
    kill(bench.redis.pid(), Signal::SIGCONT).expect("go on");
    eventually("Redis goes on", || (browser.get("/").status == 200).then_some(()));
    // It is not there, and comes back.
    bench.redis.stop();
    let gone = check(&away("Redis is not there"));
    insta::assert_snapshot!(lines([hung, gone].into()), @"Redis does not answer: The queues are shown as they were at TIME (AGE ago), with 1 open incident. This page comes back by itself.");
    // Other pages come back by themselves, too; the answer to a form does not.
    let other = browser.get("/queues/work");
    assert_eq!((other.status, other.header("refresh")), (503, Some("5")), "{other:?}");
    bench.redis.start_again();
    eventually("Redis is back", || (browser.get("/").status == 200).then_some(()));
    host.stop();
}

#[test]
fn a_full_redis_is_told_once_and_the_rest_of_the_page_stays() {
    let mut bench =
        Bench::with_redis("[queues.work]\nplugin = \"echo\"\n", &["--maxmemory-policy", "noeviction"]);
    bench.install("echo", "echo");
    let hosts = [bench.host(), bench.host()];
    let browser = Browser::new(&hosts[0]);
    eventually("both hosts are there", || (running_hosts(&browser.page("/")) == 2).then_some(()));
    let _: () = bench.redis("CONFIG", ("SET", "maxmemory", "1"));
    // A host that starts now is announced, too, and a pause is taken.
    let third = bench.host();
    bench.tqhost(&["pause", "work"]).ok();
    alarm(&browser, "paused");
    eventually("three hosts are there", || (running_hosts(&browser.page("/")) == 3).then_some(()));
    let all = incidents(&hosts[0]);
    let urgent: Vec<&Value> =
        all.iter().filter(|one| one["is_urgent"] == true).map(|one| &one["id"]).collect();
    assert_eq!(urgent, ["redis-full"], "{all:?}");
    insta::assert_snapshot!(alarm(&browser, "redis-full"), @"Redis is full: it refuses new tasks. Those that it has go on to their ends. Raise maxmemory, purge dead letters with --no-undo, or shorten retention.");
    // An incident can be acknowledged all the same.
    let page = browser.page("/");
    let answer = browser.press(&page, "/incidents/redis%2Dfull/acknowledge", &[("for", "")]);
    assert_eq!(led_to(&answer), "/?done=acknowledged");
    assert!(incidents(&hosts[1]).iter().any(|one| one["acknowledged"]["by"] == "anybody"));
    let _: () = bench.redis("CONFIG", ("SET", "maxmemory", "0"));
    Host::stop_all([third].into_iter().chain(hosts));
}

#[test]
fn the_page_of_hosts_has_those_that_run_and_those_that_died_with_their_attempts() {
    let held = Held::new();
    let mut bench = held.bench("[queues.work]\nplugin = \"fetches\"\nconcurrency = 4\nlease = \"2s\"\n");
    let dies = bench.host();
    let task = bench.xadd("work", &held.task());
    bench.until_running("work", 1);
    bench.until("work", &task, "PROCESSING");
    let (lives, died) = (bench.host(), id(&dies));
    dies.kill();
    let browser = Browser::new(&lives);
    let row = eventually("the lost attempt is counted", || {
        let page = browser.page("/hosts");
        let lost = page.split("<table").nth(2)?.split("</table>").next()?;
        let row = lost.split("<tbody>").nth(1).map(text)?;
        row.ends_with('1').then_some(row)
    });
    assert!(row.contains(&died) && row.contains(" ago)"), "{row}");
    let page = browser.page("/hosts");
    let shown = text(&page);
    for part in [&id(&lives), "running", "1 of 4", "1 queue", "1 plugin", " MiB", env!("CARGO_PKG_VERSION")] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert_eq!(page.matches("scope=\"row\"").count(), 2, "{shown}");
    let hosts = send(lives.admin(), "GET", "/v1/hosts", &[], None).json();
    assert_eq!((&hosts["lost"][0]["id"], &hosts["lost"][0]["lost_attempts"]), (&json!(died), &json!(1)));
    assert_eq!(
        (&hosts["hosts"][0]["capacity"], hosts["hosts"].as_array().map(Vec::len)),
        (&json!(4), Some(1))
    );
    // The timeline of the task tells which host it was.
    let timeline = || {
        let page = browser.page(&format!("/queues/work/tasks/{task}"));
        masked(&text(element(&page, "class=\"timeline\"")), &[(&died, "DIED")])
    };
    insta::assert_snapshot!(timeline(), @"
    Enqueued TIME (AGE ago)
    Attempt 1 lost when host DIED died or fell silent at TIME (AGE ago), ran for AGE
    Version fetches@HEX
    Attempt 1 runs since TIME (AGE ago)
    Version fetches@HEX on HOST
    ");
    held.end();
    bench.until("work", &task, "COMPLETED");
    insta::assert_snapshot!(timeline(), @"
    Enqueued TIME (AGE ago)
    Attempt 1 lost when host DIED died or fell silent at TIME (AGE ago), ran for AGE
    Version fetches@HEX
    Ended COMPLETED TIME (AGE ago)
    Attempt 1, version fetches@HEX on HOST, ran for AGE
    ");
    lives.stop();
}

#[test]
fn three_hosts_that_die_are_urgent() {
    let bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let lives = bench.host();
    let dead = [bench.host(), bench.host(), bench.host()];
    let browser = Browser::new(&lives);
    eventually("all are there", || (running_hosts(&browser.page("/")) == 4).then_some(()));
    dead.into_iter().for_each(Host::kill);
    let told = eventually("all are lost", || {
        let told = incidents(&lives).into_iter().find(|one| one["id"] == "host-lost")?;
        (told["what"].as_str()?.starts_with("3 hosts ") && told["is_urgent"] == true).then_some(told)
    });
    insta::assert_snapshot!(masked(told["what"].as_str().expect("a sentence"), &[]), @"3 hosts ended without stopping in the last 10 minutes: the last was HOST, AGE ago.");
    lives.stop();
}

#[test]
fn every_page_has_the_icon_of_the_host() {
    let bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    let browser = Browser::new(&host);
    assert!(browser.page("/").contains("<link rel=\"icon\" type=\"image/svg+xml\" href=\"/favicon.svg\">"));
    let icon = browser.get("/favicon.svg");
    assert_eq!((icon.status, icon.header("content-type")), (200, Some("image/svg+xml; charset=utf-8")));
    assert!(icon.body.starts_with("<svg "), "{icon:?}");
    host.stop();
}
