//! The history on the overview and on the page of a queue: charts with values, marks and links, rates,
//! alarms, outcomes by version.

use serde_json::json;

use super::Browser;
use super::incidents::alarm;
use crate::support::Bench;
use crate::support::words::{element, masked, text};

#[test]
fn the_pages_show_what_ended_and_warn_of_failures() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"as-told\"\n[queues.idle]\nplugin = \"as-told\"\n");
    bench.install("as-told", "as-told");
    let first = bench.host();
    for end in ["ok", "reject", "reject", "reject"].iter().cycle().take(20) {
        let data = json!({ "n": "a", "ms": 0, "retries": 0, "end": end }).to_string();
        bench.xadd("work", &[("data", &data)]);
    }
    bench.until_drained("work");
    // It writes what it has counted, and the next host knows nothing else of it.
    first.stop();
    let host = bench.host();
    let browser = Browser::new(&host);

    let failing = alarm(&browser, "attempts-fail");
    insta::assert_snapshot!([&*failing, &*alarm(&browser, "dead-letters")].join("\n"), @"
    15 of 20 attempts (75 %) failed in the last 10 minutes. See the errors of its tasks, and the outcomes by version on the page of the queue.
    There are 15. 15 new ones came in the last 10 minutes. Find their causes; then requeue or purge them.
    ");
    let overview = browser.page("/");
    assert!(text(&overview).contains("75.0 %"), "{overview}");
    insta::assert_snapshot!(beginning(&overview, "last-hour-0"), @"work, the last 60 minutes: 5 completed, 15 failed, at most");
    // A queue in which nothing has ended has no chart.
    assert_eq!(overview.matches("<svg class=\"spark\"").count(), 1, "{overview}");
    assert!(overview.contains("role=\"img\" aria-labelledby=\"last-hour-0\""), "{overview}");

    let page = browser.page("/queues/work");
    let shown = text(&page);
    for part in ["15 (75.0 %)", &failing, "as-told@"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let told = ["throughput-text", "times-text"].map(|id| beginning(&page, id));
    insta::assert_snapshot!(told.join("\n"), @"
    5 completed and 15 failed; at most
    95 of 100 tasks waited for at most
    ");
    let version = page.split("Outcomes by version").nth(2).expect("the table of versions");
    let row = version.split("<tbody>").nth(1).and_then(|rest| rest.split("</tbody>").next()).expect("rows");
    let cells: Vec<String> = row.split("<td").skip(1).map(|cell| text(&format!("<td{cell}"))).collect();
    assert_eq!(cells[..4], ["20", "5", "0", "15"], "{row}");
    let charts: Vec<&str> = page.split("<figure class=\"chart\">").skip(1).collect();
    assert!(charts.len() >= 2, "{page}");
    for chart in charts {
        assert!(chart.contains("<title id=") && chart.contains("<desc id=") && chart.contains(" d=\"M"));
    }
    // The page of the plugin has the same, of all queues together.
    let plugin = browser.page("/plugins/as-told");
    let table = plugin.split(">Versions<").nth(2).expect("the table of versions");
    let row = table.split("<tbody>").nth(1).and_then(|rest| rest.split("</tbody>").next()).expect("rows");
    let cells: Vec<String> = row.split("<td").skip(1).map(|cell| text(&format!("<td{cell}"))).collect();
    assert!(cells[2..5] == ["20", "15", "0"] && cells[5].ends_with('s'), "{row}");
    let idle = browser.page("/queues/idle");
    let history = element(&idle, "aria-labelledby=\"history\"");
    insta::assert_snapshot!(text(element(history, "class=\"quiet\"")), @"Nothing has ended in the last hour.");
    host.stop();
}

/// The words of a chart, up to what differs from run to run.
fn beginning(page: &str, id: &str) -> String {
    let words = text(element(page, &format!(" id=\"{id}\"")));
    words.split_inclusive("at most").next().unwrap_or_default().to_owned()
}

/// The steps of the first chart: their titles, and the links of those that have one.
fn steps(page: &str) -> Vec<(String, Option<String>)> {
    let chart = page.split("<svg class=\"steps\"").nth(1).and_then(|rest| rest.split("</svg>").next());
    let chart = chart.expect("a chart");
    let mut before = chart;
    let mut steps = Vec::new();
    while let Some((head, rest)) = before.split_once("<title>") {
        let link = head.rsplit_once("<a href=\"").filter(|_| !head.ends_with("<g>"));
        let link = link.and_then(|(_, link)| Some(super::unescaped(link.split('"').next()?)));
        steps.push((rest.split("</title>").next().unwrap_or_default().to_owned(), link));
        before = rest;
    }
    steps
}

#[test]
fn each_step_of_a_chart_tells_its_values_and_leads_to_its_tasks() {
    let mut bench =
        Bench::new("[defaults]\nplugin = \"as-told\"\n[queues.told]\nevents = 1000\n[queues.silent]\n");
    bench.install("as-told", "as-told");
    let first = bench.host();
    for queue in ["told", "silent"] {
        for end in ["ok", "reject", "ok"] {
            let data = json!({ "n": "a", "ms": 0, "retries": 0, "end": end }).to_string();
            bench.xadd(queue, &[("data", &data)]);
        }
        bench.until_drained(queue);
    }
    first.stop();
    let host = bench.host();
    let browser = Browser::new(&host);
    for (queue, listed) in [("told", ["COMPLETED", "FAILED"]), ("silent", ["rejected", "as-told@"])] {
        for (range, least) in [("1h", 59), ("24h", 144), ("7d", 168)] {
            let page = browser.page(&format!("/queues/{queue}?range={range}"));
            let steps = steps(&page);
            assert!(steps.len() >= least, "{range}: {}", steps.len());
            let mut found = steps.iter().filter(|(title, _)| title.contains(": 2 completed, 1 failed"));
            // The tasks may have ended in two minutes.
            let Some((title, link)) = found.next_back() else { continue };
            let link = link.as_deref().unwrap_or_else(|| panic!("a link of {title}"));
            assert!(link.contains("from=") && link.contains("to="), "{link}");
            let tasks = text(&browser.page(link.split('#').next().unwrap_or_default()));
            assert!(listed.iter().all(|word| tasks.contains(word)), "{link}: {tasks}");
            // A step in which nothing ended has no link, and its time has no tasks.
            assert!(
                steps.iter().any(|(title, link)| title.contains(": 0 completed, 0 failed") && link.is_none())
            );
            let earlier = link.replacen("from=", "from=2001-01-01T00:00:00Z&none=", 1);
            let earlier = earlier.replacen("to=", "to=2001-01-01T00:00:01Z&none=", 1);
            let none = browser.page(earlier.split('#').next().unwrap_or_default());
            assert!(!none.contains(&format!("href=\"/queues/{queue}/tasks/")), "{none}");
        }
    }
    bench.tqhost(&["pause", "told", "--why", "the model is down"]).ok();
    let page = browser.page("/queues/told?range=24h");
    let by = host.get("/v1/queues/told").json()["pause"]["by"].as_str().expect("a name").to_owned();
    let parts = [" id=\"history\"", "<summary", "class=\"marks\""].map(|mark| {
        let history = element(&page, "aria-labelledby=\"history\"");
        masked(&text(element(history, mark)), &[(&by, "SOMEBODY")])
    });
    insta::assert_snapshot!(parts.join("\n"), @"
    The last 24 hours
    These charts as a table
    TIME UTC pause by SOMEBODY (the model is down)
    TIME UTC as-told@HEX loaded
    ");
    insta::assert_snapshot!(beginning(&page, "throughput-text"), @"2 completed and 1 failed; at most");
    assert!(page.contains("<path class=\"mark\" d=\"M"), "{page}");
    assert_eq!(browser.get("/queues/told?range=2h").status, 422);
    assert_eq!(browser.get("/queues/told?state=ended&from=yesterday").status, 422);
    host.stop();
}
