//! Alarms about versions and hosts, on the pages and as series.
//!
//! Not here: every alarm there is (`operations::alarms`), what Prometheus makes of the series
//! (`world::alerts`).

use super::{Browser, text};
use crate::support::{Bench, eventually};

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
    let [died, stopped] =
        [&dies, &stops].map(|host| host.log("tqhost is running")["host"].as_str().expect("an id").to_owned());
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
