//! Incidents of an operator, in as few clicks as they may take: each is half of what it took once, or less.
//!
//! Not here: the same in a real browser (`tests/world`); by the command line (`cli::incident`).

use super::{Browser, counted, job_done, unescaped};
use crate::support::files::{digest, guest, loaded, put, row};
use crate::support::{Bench, Web, eventually};

/// An operator who clicks on what the pages have.
struct Operator<'h> {
    browser: Browser<'h>,
    page: String,
    clicks: u32,
}

impl Operator<'_> {
    /// Follows the first link of the page that leads to an address with this part.
    #[track_caller]
    fn follow(&mut self, part: &str) {
        let mut links = self.page.split(" href=\"").filter_map(|rest| rest.split('"').next()).map(unescaped);
        let link = links.find(|link| link.contains(part));
        let link = link.unwrap_or_else(|| panic!("no link with {part} in {}", self.page));
        self.page = self.browser.page(&link);
        self.clicks += 1;
    }

    /// Presses the button of a form that begins a job. Returns for how many tasks it was done.
    #[track_caller]
    fn begin(&mut self, action: &str) -> u64 {
        self.clicks += 1;
        let (job, _) = job_done(&self.browser, &self.browser.press(&self.page, action, &[]));
        job["done"].as_u64().expect("a count")
    }
}

#[test]
fn the_flood_of_one_tenant_is_cancelled_by_two_clicks_and_no_task_of_another() {
    const FLOOD: usize = 300;
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\nshow = [\"tenant\"]\n");
    let tenants = ["acme-labs", "initech", "Acme"];
    let mut others = Vec::new();
    for n in 0..FLOOD {
        bench.xadd("work", &[("tenant", "acme"), ("n", &n.to_string())]);
        if n % 10 == 0 {
            let tenant = tenants[n / 10 % tenants.len()];
            others.push(bench.xadd("work", &[("tenant", tenant), ("to", "sales@acme.example")]));
        }
    }
    let host = bench.host();
    let browser = Browser::new(&host);
    let mut operator = Operator { page: browser.page("/queues/work"), browser, clicks: 0 };
    // The tenant in a row, then the button.
    operator.follow("/drain?where=tenant%3Dacme");
    insta::assert_snapshot!(counted(&operator.page), @"300 tasks wait in queue work: queued, delayed or held, and match.");
    assert_eq!((operator.begin("/queues/work/drain"), operator.clicks), (FLOOD as u64, 2));
    let left: Vec<(String, Vec<String>)> = bench.redis("XRANGE", ("work", "-", "+"));
    let left: Vec<String> = left.into_iter().map(|(entry, _)| entry).collect();
    assert_eq!(left, others);
    host.stop();
}

#[test]
fn the_dead_letters_of_one_cause_come_back_by_three_clicks_from_the_overview() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    for n in 0..300 {
        let error = if n % 3 == 0 { "upstream answered 503" } else { "upstream answered 429" };
        let fields =
            [("tq-id", &*format!("id-{n}")), ("tq-reason", "retries-exhausted"), ("tq-error", error)];
        bench.xadd("tq:{work}:dead", &[&fields[..], &[("tq-plugin", "echo@aaaa")]].concat());
    }
    let host = bench.host();
    let browser = Browser::new(&host);
    let mut operator = Operator { page: browser.page("/"), browser, clicks: 0 };
    operator.follow("/queues/work/dead");
    let row =
        operator.page.split("<tr>").find(|row| row.contains("answered 503")).expect("its row").to_owned();
    operator.page = row;
    operator.follow("what=requeue");
    assert_eq!((operator.begin("/queues/work/dead/requeue"), operator.clicks), (100, 3));
    let (dead, waiting): (u64, u64) = (bench.redis("XLEN", "tq:{work}:dead"), bench.redis("XLEN", "work"));
    assert_eq!((dead, waiting), (200, 100));
    host.stop();
}

#[test]
fn a_bad_deploy_is_taken_back_and_its_dead_letters_come_back_by_four_clicks_from_the_overview() {
    const FAILED: u64 = 40;
    let (web, good, bad) = (Web::start(), guest("echo"), guest("asks-a-service"));
    let mut bench = Bench::new(&format!(
        "[queues.mail]\nmax_retries = 0\n[plugins.mail]\nallowed_hosts = [\"{}\"]\n",
        web.origin()
    ));
    put(&bench, "mail", &good);
    let host = bench.host();
    loaded(&host, &good);
    put(&bench, "mail", &bad);
    loaded(&host, &bad);
    for _ in 0..FAILED {
        bench.xadd("mail", &[("url", &format!("{}/refused", web.origin()))]);
    }
    host.until_ended_as("mail", "retries-exhausted", FAILED);
    let browser = Browser::new(&host);
    let page = eventually("the overview has a card for the version", || {
        let page = browser.page("/");
        page.contains("/plugins/mail/rollback").then_some(page)
    });
    let mut operator = Operator { page, browser, clicks: 0 };
    operator.follow("/plugins/mail/rollback");
    // The reason is that of the card, unless somebody writes another.
    let why = operator.page.split("name=\"why\"").nth(1).and_then(|rest| rest.split("value=\"").nth(1));
    let why = why.and_then(|rest| rest.split('"').next()).map(unescaped).expect("a reason");
    operator.clicks += 1;
    operator.browser.press(&operator.page, "/plugins/mail/rollback", &[("why", &why)]);
    eventually("the good version is back", || {
        row(&bench, "mail").filter(|row| row["version"] == digest(&good)).map(drop)
    });
    operator.page = operator.browser.page("/");
    operator.follow("what=requeue");
    assert_eq!((operator.begin("/queues/mail/dead/requeue"), operator.clicks), (FAILED, 4));
    bench.until_drained("mail");
    host.stop();
}
