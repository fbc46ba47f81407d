//! The last hour on the overview and on the page of a queue: small charts, rates, alarms, outcomes by
//! version.

use serde_json::json;

use super::{Browser, text};
use crate::support::Bench;

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

    let overview = browser.page("/");
    let shown = text(&overview);
    for part in [
        "work, the last 60 minutes: 5 completed, 15 failed, at most ",
        "queue work: 15 of 20 attempts (75 %) failed in the last 10 minutes.",
        "dead letters of work: There are 15. 15 new ones came in the last 10 minutes.",
        "75.0 %",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    // A queue in which nothing has ended has no chart.
    assert_eq!(overview.matches("<svg class=\"spark\"").count(), 1, "{overview}");
    assert!(overview.contains("role=\"img\" aria-labelledby=\"last-hour-0\""), "{overview}");

    let page = browser.page("/queues/work");
    let shown = text(&page);
    for part in [
        "5 completed and 15 failed; at most ",
        "15 (75.0 %)",
        "95 of 100 tasks waited for at most ",
        "15 of 20 attempts (75 %) failed",
        "as-told@",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
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
    assert!(text(&idle).contains("Nothing has ended in the last hour."), "{idle}");
    host.stop();
}
