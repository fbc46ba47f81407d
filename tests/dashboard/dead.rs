//! Dead letters: their causes, a filter, and what is done with those that match.

use super::{Browser, counted, done, encoded, form, form_token, hidden, job_done, matched, problem};
use crate::support::dead_letters::add_dead;
use crate::support::words::{element, masked, text};
use crate::support::{Bench, Host};

/// A queue with so many dead letters, of four causes, of which every second one was rejected.
fn bench(letters: usize) -> (Bench, Host) {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    add_dead(&mut bench, 0..letters);
    let host = bench.host();
    (bench, host)
}

fn dead(bench: &mut Bench) -> u64 {
    bench.redis("XLEN", "tq:{work}:dead")
}

const DEAD: &str = "/queues/work/dead";

/// The words of the page of dead letters about their causes.
#[track_caller]
fn causes(page: &str) -> String {
    text(element(element(page, "aria-labelledby=\"groups\""), "class=\"note\""))
}

#[test]
fn causes_are_told_apart_and_each_leads_to_its_own() {
    let (_bench, host) = bench(40);
    let browser = Browser::new(&host);
    let page = browser.page(DEAD);
    insta::assert_snapshot!(causes(&page), @"40 dead letters of the 40 that there are.");
    for cause in ["no such page …", "timeout: … ms", "too large", "trap …"] {
        assert!(page.contains(&format!(">{cause}</bdi></a>")), "{cause}: {page}");
    }
    let cause = page.split("<a href=\"").skip(1).find(|link| link.contains("error=timeout")).expect("a link");
    let cause = cause.split('"').next().expect("a link").replace("&amp;", "&");
    let page = browser.page(&cause);
    insta::assert_snapshot!(causes(&page), @"10 dead letters of the 40 that there are.");
    assert!(!text(&page).contains("trap "), "{page}");
    let page = browser.page(&format!("{DEAD}?reason=rejected&text=id-2&version=&error="));
    insta::assert_snapshot!(causes(&page), @"6 dead letters of the 40 that there are.");
    host.stop();
}

#[test]
fn a_status_is_a_cause_and_the_text_of_each_row_leads_to_its_own_letters() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    for (n, status) in [503, 503, 429, 503, 429].into_iter().enumerate() {
        let (id, error) = (format!("id-{n}"), format!("upstream answered {status} to request {n}5550{n}"));
        let fields =
            [("tq-id", &*id), ("tq-reason", "rejected"), ("tq-error", &error), ("tq-plugin", "e@aa")];
        bench.xadd("tq:{work}:dead", &fields);
    }
    let groups = bench.tqhost(&["dead", "list", "work", "--by", "cause", "--json"]).ok().json();
    let shown: Vec<_> = groups["groups"].as_array().expect("groups").iter().collect();
    let told: Vec<_> = shown.iter().map(|group| (group["error"].as_str(), group["count"].as_u64())).collect();
    let causes = [503, 429].map(|status| format!("upstream answered {status} to request …"));
    assert_eq!(told, [(Some(&*causes[0]), Some(3)), (Some(&*causes[1]), Some(2))]);
    let host = bench.host();
    let browser = Browser::new(&host);
    let page = browser.page(DEAD);
    for (cause, count) in causes.iter().zip([3, 2]) {
        let before = page.split(&format!("{cause}</bdi></a>")).next().expect("the text of the link");
        let link =
            before.rsplit("<a href=\"").next().and_then(|rest| rest.split('"').next()).expect("a link");
        let page = browser.page(&link.replace("&amp;", "&"));
        assert_eq!(page.matches("name=\"task\"").count(), count, "{page}");
    }
    host.stop();
}

#[test]
fn a_cause_whose_filter_would_take_more_has_no_link() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    // A filter cannot ask for an empty error.
    for (id, reason, error) in
        [("a", "rejected", ""), ("b", "rejected", "no such page"), ("c", "crashed", "")]
    {
        let fields = [("tq-id", id), ("tq-reason", reason), ("tq-error", error), ("tq-plugin", "echo@aaaa")];
        bench.xadd("tq:{work}:dead", &fields);
    }
    let host = bench.host();
    let browser = Browser::new(&host);
    let page = browser.page(DEAD);
    let all: Vec<String> = page
        .split(" href=\"")
        .filter_map(|rest| rest.split('"').next())
        .filter(|link| link.contains("?reason="))
        .map(|link| link.replace("&amp;", "&"))
        .collect();
    // The buttons in the row lead to the page that asks.
    let (asks, links): (Vec<String>, Vec<String>) = all.into_iter().partition(|link| link.contains("what="));
    assert_eq!((asks.len(), links.len()), (4, 2), "{asks:?} {links:?}");
    for ask in &asks {
        let page = browser.page(ask);
        let deed = if ask.ends_with("what=purge") { "purge" } else { "requeue" };
        assert!(page.contains(&format!("action=\"{DEAD}/{deed}\"")) && matched(&page) == 1, "{ask}: {page}");
    }
    for link in
        ["reason=rejected&version=echo%40aaaa&error=no+such+page", "reason=crashed&version=echo%40aaaa"]
    {
        assert!(links.contains(&format!("{DEAD}?{link}")), "{link} in {links:?}");
    }
    host.stop();
}

#[test]
fn a_requeue_is_for_those_that_were_counted() {
    let (mut bench, host) = bench(40);
    let browser = Browser::new(&host);
    let page = browser.page(&format!("{DEAD}/confirm?what=requeue&rate=100/s&reason=rejected&error=large"));
    insta::assert_snapshot!(counted(&page), @"10 dead letters of queue work match. 40 were looked at.");
    insta::assert_snapshot!(text(element(&form(&page, &format!("{DEAD}/requeue")), "<button")), @"Requeue 10 dead letters, 100/s");
    assert_eq!((dead(&mut bench), bench.redis::<u64>("XLEN", "work")), (40, 0), "nothing is done yet");
    // These die after the count.
    add_dead(&mut bench, 40..44);
    let answer = browser.press(&page, &format!("{DEAD}/requeue"), &[("why", "mended")]);
    let (job, page) = job_done(&browser, &answer);
    assert_eq!((&job["done"], &job["why"]), (&10.into(), &"mended".into()), "{job}");
    insta::assert_snapshot!(done(&page), @"10 dead letters are requeued, and none is left that was counted.");
    assert!(page.contains("<dt>Why</dt><dd><bdi class=\"data\">mended<"), "{page}");
    assert_eq!((dead(&mut bench), bench.redis::<u64>("XLEN", "work")), (34, 10));
    let audit = host.until_logged("audit: a change was asked for", 1);
    assert_eq!(audit[0]["filter"], "{\"reason\":\"rejected\",\"error\":\"large\"}");
    assert_eq!(audit[0]["who"], "anybody");
    assert_eq!(host.until_logged("a job is over", 1)[0]["done"], 10);
    let none = browser.page(&format!("{DEAD}/confirm?what=requeue&text=nothing+like+this"));
    assert!(!none.contains(&format!("action=\"{DEAD}/requeue\"")), "{none}");
    insta::assert_snapshot!(counted(&none), @"0 dead letters of queue work match. 34 were looked at.");
    host.stop();
}

#[test]
fn a_purge_offers_an_export_and_needs_the_page_that_counts() {
    let (mut bench, host) = bench(120);
    let browser = Browser::new(&host);
    let page = browser.page(&format!("{DEAD}/confirm?what=purge&version=bbbb"));
    insta::assert_snapshot!(counted(&page), @"60 dead letters of queue work match. 120 were looked at.");
    let export = browser.get(&format!("{DEAD}/export?version=bbbb"));
    assert_eq!(export.header("content-type"), Some("application/jsonl; charset=utf-8"));
    assert_eq!(export.header("content-disposition"), Some("attachment; filename=\"work-dead.jsonl\""));
    let lines: Vec<serde_json::Value> = export
        .body
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(serde_json::Value::is_object)
        .collect();
    assert_eq!(lines.len(), 61, "{}", export.body);
    let end = serde_json::json!({ "letters": 60, "examined": 120, "next": null });
    assert_eq!(lines[60]["tq-export"], end, "the last line says how many there are");
    assert_eq!((&lines[0]["id"], &lines[0]["fields"][0]["value"]), (&"id-119".into(), &"119".into()));
    let token = form_token(&form(&page, &format!("{DEAD}/purge")));
    let straight = browser.submit(&format!("{DEAD}/purge"), &[("form-token", &token)]);
    insta::assert_snapshot!(problem(&straight), @"422 begin: begin at the page that counts");
    assert_eq!(dead(&mut bench), 120);
    let (job, _) = job_done(&browser, &browser.press(&page, &format!("{DEAD}/purge"), &[]));
    assert_eq!((&job["done"], dead(&mut bench)), (&60.into(), 60));
    let page = browser.page(&format!("{DEAD}/confirm?what=export&version=aaaa"));
    let (job, page) = job_done(&browser, &browser.press(&page, &format!("{DEAD}/export"), &[]));
    assert_eq!((&job["done"], &job["kept"]["tasks"]), (&60.into(), &60.into()), "{job}");
    assert!(page.contains("/file\"") && !page.contains("/undo\""), "{page}");
    insta::assert_snapshot!(done(&page), @"60 dead letters are exported, all that were counted. They stay.");
    assert_eq!(dead(&mut bench), 60, "they stay");
    let file = bench.dir.path().join("dead.jsonl");
    std::fs::write(&file, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).expect("write");
    let import = ["dead", "import", "work", file.to_str().expect("a path"), "--json"];
    assert_eq!(bench.tqhost(&import).ok().json()["succeeded"], 60, "the download brings them back");
    assert_eq!(browser.get(&format!("{DEAD}/confirm?what=other")).status, 422);
    assert_eq!(browser.get(&format!("{DEAD}/confirm?what=requeue&rate=fast")).status, 422);
    host.stop();
}

#[test]
fn a_large_purge_is_one_press() {
    const ALL: usize = 25_000;
    let (mut bench, host) = bench(ALL);
    let browser = Browser::new(&host);
    // How far it looks depends on the time that it takes.
    let told = causes(&browser.page(DEAD));
    let (_, told) = told.split_once(" of the ").expect("a count");
    let told = told.trim_start_matches(|c: char| c.is_ascii_digit() || c == ',');
    insta::assert_snapshot!(told, @" newest ones that were looked at; there are more.");
    let page = browser.page(&format!("{DEAD}/confirm?what=purge"));
    insta::assert_snapshot!(counted(&page), @"25,000 dead letters of queue work: all of them.");
    // With a filter, a page counts a part.
    let part = browser.page(&format!("{DEAD}/confirm?what=requeue&reason=rejected"));
    insta::assert_snapshot!(counted(&part), @"At least 5,000 dead letters of queue work match. 10,000 were looked at, the oldest of 25,000.");
    // So many are known, and the button is for all of them.
    let buttons =
        ["requeue", "confirm"].map(|deed| text(element(&part, &format!("action=\"{DEAD}/{deed}\""))));
    insta::assert_snapshot!(buttons.join("\n"), @"
    Why
    It is shown to everybody who looks at the change.
    Requeue all that match
    Go on counting
    ");
    let begun = browser.press(&page, &format!("{DEAD}/purge"), &[]);
    let (_, page) = job_done(&browser, &begun);
    assert_eq!(dead(&mut bench), 0);
    // One more press takes it back.
    let job = begun.header("location").expect("the page of the job");
    let undo = format!("{job}/undo");
    let list = browser.page("/jobs");
    assert!(form(&list, &undo).contains("25,000"), "{list}");
    let kept = text(element(element(&page, "data-live=\"job\""), "<p class=\"note\""));
    let button = text(element(&page, &format!("action=\"{undo}\"")));
    insta::assert_snapshot!(masked(&[done(&page), button, kept].join("\n"), &[]), @"
    25,000 dead letters are deleted, and none is left that was counted.
    Undo: bring back 25,000 dead letters
    25,000 dead letters can be brought back until TIME TIME (in AGE). Download as JSON lines
    ");
    let (undone, shown) = job_done(&browser, &browser.press(&page, &undo, &[]));
    insta::assert_snapshot!(done(&shown), @"25,000 tasks are brought back, and none is left that was counted.");
    assert_eq!(dead(&mut bench), ALL as u64);
    let by = format!("href=\"/jobs/{}\">Undone", undone["id"].as_str().expect("an id").replace('-', "%2D"));
    for page in ["/jobs", job] {
        let page = browser.page(page);
        assert!(page.contains(&by), "{by}: {page}");
    }
    host.stop();
}

#[test]
fn letters_that_can_never_run_are_not_counted_for_a_requeue() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    add_dead(&mut bench, 0..2);
    bench.xadd("tq:{work}:dead", &[("tq-id", "large"), ("tq-reason", "malformed"), ("tq-packed", "x")]);
    let host = bench.host();
    let browser = Browser::new(&host);
    let told =
        ["requeue", "purge"].map(|deed| counted(&browser.page(&format!("{DEAD}/confirm?what={deed}"))));
    insta::assert_snapshot!(told.join("\n"), @"
    2 dead letters of queue work can be requeued. 3 were looked at.
    3 dead letters of queue work: all of them.
    ");
    host.stop();
}

#[test]
fn the_count_goes_on_until_it_has_found_those_that_match() {
    // One step looks at 10,000, and the one that matches is younger.
    const OLDER: usize = 20_500;
    let (mut bench, host) = bench(OLDER + 1);
    let browser = Browser::new(&host);
    let last = format!("id-{OLDER}");
    let mut page = browser.page(&format!("{DEAD}/confirm?what=requeue&rate=100/s&text={last}"));
    // This one dies after the count has begun.
    add_dead(&mut bench, OLDER..OLDER + 1);
    let mut told = Vec::new();
    for _ in 0..2 {
        told.push(counted(&page));
        assert!(!page.contains(&format!("action=\"{DEAD}/requeue\"")), "nothing to requeue is known: {page}");
        let more = form(&page, &format!("{DEAD}/confirm"));
        assert!(more.contains("data-continue"), "{more}");
        let values = hidden(&more);
        let values: Vec<_> = values.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        page = browser.page(&format!("{DEAD}/confirm?{}", encoded(&values)));
    }
    told.push(counted(&page));
    insta::assert_snapshot!(told.join("\n"), @"
    At least 0 dead letters of queue work match. 10,000 were looked at, the oldest of 20,501.
    At least 0 dead letters of queue work match. 20,000 were looked at, the oldest of 20,502.
    1 dead letter of queue work match. 20,501 were looked at.
    ");
    let (job, page) = job_done(&browser, &browser.press(&page, &format!("{DEAD}/requeue"), &[]));
    assert_eq!((&job["done"], &job["rate"]), (&1.into(), &"100/s".into()), "{job}");
    insta::assert_snapshot!(done(&page), @"1 dead letter is requeued, and none is left that was counted.");
    assert_eq!((dead(&mut bench), bench.redis::<u64>("XLEN", "work")), (OLDER as u64 + 1, 1));
    host.stop();
}
