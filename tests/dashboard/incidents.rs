//! Incidents: one card for each cause, who knows of it, what changed just before; the page of hosts; and what
//! the pages show while Redis is away or full.
//!
//! Not here: every alarm there is (`operations::alarms`), what Prometheus makes of the series
//! (`world::alerts`).

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use super::{Browser, led_to, text};
use crate::support::files::{digest, guest, loaded, put};
use crate::support::http::send;
use crate::support::{Bench, Held, Host, eventually};

/// The id of a host in its announcements.
fn id(host: &Host) -> String {
    host.log("tqhost is running")["host"].as_str().expect("an id").to_owned()
}

/// The cards of a page: each with what is in it.
fn cards(page: &str) -> Vec<String> {
    let section = page.split("id=\"incidents\"").nth(1).and_then(|rest| rest.split("</section>").next());
    let parts = section.expect("the incidents").split("<strong>").skip(1);
    parts.map(|card| text(&format!("<strong>{card}"))).collect()
}

/// Waits for a page whose first cards satisfy this.
#[track_caller]
fn until_cards(browser: &Browser<'_>, what: &str, is_it: impl Fn(&[String]) -> bool) -> Vec<String> {
    eventually(what, || Some(cards(&browser.page("/"))).filter(|cards| is_it(cards)))
}

fn incidents(host: &Host) -> Vec<Value> {
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
    let shown = "It waits for a working version of its plugin missing; 1 task waits.";
    eventually("the page has the alarm", || text(&browser.page("/")).contains(shown).then_some(()));
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
    let shown = format!("1 host ended without stopping in the last hour: it was {died}");
    let page = eventually("the page has the alarm", || {
        Some(text(&browser.page("/"))).filter(|page| page.contains(&shown))
    });
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
    let page = text(&Browser::new(&host).page("/"));
    assert!(page.contains(&format!("There are {TASKS}.")) && !page.contains("plugin p:"), "{page}");
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
    for host in &hosts {
        let browser = Browser::new(host);
        let shown = until_cards(&browser, "both hosts are in one card", |cards| {
            cards.first().is_some_and(|card| {
                card.contains("plugin broken: It is failed on 2 hosts (")
                    && card.contains("2 more with this cause")
            })
        });
        assert!(shown[0].starts_with("Act now: ") && shown[0].contains("Since "), "{shown:#?}");
        assert!(shown[0].contains("queue other: It waits for"), "{shown:#?}");
        assert_eq!(shown.iter().filter(|card| card.contains("broken")).count(), 1, "{shown:#?}");
        let page = browser.page("/");
        assert!(page.contains("<title>(1) Overview – tqhost</title>"), "{page}");
        // The other pages have the number, too.
        assert!(browser.page("/plugins").contains("<title>(1) Plugins – tqhost</title>"));
        assert!(page.contains("action=\"/plugins/broken/reload\""), "the way out is a button: {page}");
    }
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
    until_cards(&here, "the pause is an incident", |cards| cards.iter().any(|card| card.contains("paused")));
    let action = "/incidents/paused%3Awork/acknowledge";
    let page = here.page("/");
    assert!(page.contains("action=\"/queues/work/resume\""), "{page}");
    assert!(text(&page).contains(": pause."), "the change before is told: {}", text(&page));
    assert_eq!(led_to(&here.press(&page, action, &[("for", "1h")])), "/?done=acknowledged");
    let page = there.page("/");
    let shown = text(&page);
    assert!(shown.contains("1 acknowledged") && !page.contains("<title>("), "{shown}");
    assert!(shown.contains("Acknowledged by anybody") && shown.contains(", until "), "{shown}");
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
    let page = text(&here.page("/queues/work"));
    assert!(page.contains("1 acknowledged") && page.contains("until it ends: a deploy"), "{page}");
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
    let shown = until_cards(&browser, "the version is accused first", |cards| {
        cards.first().is_some_and(|card| card.contains("40 of 40 attempts on its version"))
    });
    let roll_back = format!("Roll back {}…", &version[..12]);
    let loaded = format!("the load of version {} of plugin p", &version[..12]);
    for part in [roll_back.as_str(), "Act now: plugin p:", "Since ", &loaded] {
        assert!(shown[0].contains(part), "{part}: {shown:#?}");
    }
    // The button leads to the page that asks, with a reason.
    let page = browser.page("/");
    let link = page.split("href=\"").find(|rest| rest.starts_with("/plugins/p/rollback?"));
    let link = link.and_then(|rest| rest.split('"').next()).expect("a link").replace("&amp;", "&");
    let asks = browser.page(&link);
    let stops = format!("{} stops, ", &version[..12]);
    assert!(text(&asks).contains(&stops) && asks.contains("value=\"40 of 40"), "{asks}");
    host.stop();
}

#[test]
fn without_redis_the_overview_keeps_what_it_saw_and_comes_back() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    bench.xadd("work", &[("a", "1")]);
    let browser = Browser::new(&host);
    until_cards(&browser, "the host tells of itself", |cards| {
        cards.iter().any(|card| card.contains("missing"))
    });
    let away = |what: &str| {
        eventually(what, || {
            let answer = browser.get("/");
            let is_it = answer.status == 503 && text(&answer.body).contains("Redis does not answer");
            is_it.then_some(answer)
        })
    };
    let check = |answer: &crate::support::http::Response| {
        let (shown, refresh) = (text(&answer.body), answer.header("refresh"));
        assert_eq!((refresh, answer.header("retry-after")), (Some("5"), Some("2")), "{answer:?}");
        assert_eq!(cards(&answer.body).len(), 1, "it is told once: {shown}");
        assert!(shown.contains("The queues are shown as they were at "), "{shown}");
        assert!(answer.body.contains("href=\"/queues/work\""), "the queues are there: {shown}");
    };
    // It hangs, and goes on.
    kill(bench.redis.pid(), Signal::SIGSTOP).expect("freeze Redis");
    check(&away("Redis hangs"));
    kill(bench.redis.pid(), Signal::SIGCONT).expect("go on");
    eventually("Redis goes on", || (browser.get("/").status == 200).then_some(()));
    // It is not there, and comes back.
    bench.redis.stop();
    check(&away("Redis is not there"));
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
    eventually("both hosts are there", || text(&browser.page("/")).contains("2 running hosts").then_some(()));
    let _: () = bench.redis("CONFIG", ("SET", "maxmemory", "1"));
    // A host that starts now is announced, too, and a pause is taken.
    let third = bench.host();
    bench.tqhost(&["pause", "work"]).ok();
    let shown = until_cards(&browser, "Redis is full", |cards| {
        cards.iter().any(|card| card.contains("It is paused"))
    });
    eventually("three hosts are there", || {
        text(&browser.page("/")).contains("3 running hosts").then_some(())
    });
    let urgent: Vec<&String> = shown.iter().filter(|card| card.starts_with("Act now")).collect();
    assert!(matches!(urgent[..], [card] if card.contains("Redis: Redis is full")), "{shown:#?}");
    // An incident can be acknowledged all the same.
    let page = browser.page("/");
    let answer = browser.press(&page, "/incidents/redis%2Dfull/acknowledge", &[("for", "")]);
    assert_eq!(led_to(&answer), "/?done=acknowledged");
    assert!(text(&browser.page("/")).contains("1 acknowledged"));
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
        let lost = page.split("Hosts that ended without stopping").nth(2)?.split("</table>").next()?;
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
        text(
            page.split("id=\"timeline\"")
                .nth(1)
                .and_then(|rest| rest.split("</ol>").next())
                .expect("a timeline"),
        )
    };
    let lost = format!("Attempt 1 lost when host {died} died or fell silent at ");
    let shown = timeline();
    assert!(shown.contains(&lost) && shown.contains("Attempt 1 runs since "), "{shown}");
    assert!(shown.contains("Version fetches@"), "{shown}");
    held.end();
    bench.until("work", &task, "COMPLETED");
    let shown = timeline();
    assert!(shown.contains(&lost) && shown.contains("Ended COMPLETED"), "{shown}");
    lives.stop();
}

#[test]
fn three_hosts_that_die_are_urgent() {
    let bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let lives = bench.host();
    let dead = [bench.host(), bench.host(), bench.host()];
    let browser = Browser::new(&lives);
    eventually("all are there", || text(&browser.page("/")).contains("4 running hosts").then_some(()));
    dead.into_iter().for_each(Host::kill);
    let told = "Act now: hosts: 3 hosts ended without stopping in the last 10 minutes: the last was ";
    until_cards(&browser, told, |cards| cards.iter().any(|card| card.starts_with(told)));
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
