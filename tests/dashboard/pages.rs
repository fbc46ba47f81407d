//! Each page shows real tasks of a real host, and acts on them.

use serde_json::json;

use super::incidents::{alarm, incidents};
use super::{
    Browser, counted, done, form, form_token, hidden, job_done, led_to, matched, problem, running_hosts,
};
use crate::support::files::{digest, guest, loaded, put, row};
use crate::support::http::send;
use crate::support::words::{element, masked, text};
use crate::support::{Bench, Held, Host, eventually};

#[test]
fn queue_and_task_pages_show_and_change_tasks() {
    let held = Held::new();
    let mut bench = held.bench("[queues.work]\nplugin = \"fetches\"\nconcurrency = 1\nevents = 100\n");
    let host = bench.host();
    // It has no url, and is rejected.
    let dead = bench.xadd("work", &[("name", "dead one")]);
    bench.until("work", &dead, "FAILED");
    let [task] = held.task();
    let running = bench.xadd("work", &[task, ("name", "runs")]);
    bench.until_running("work", 1);
    let queued = bench.xadd("work", &[task, ("name", "waits")]);
    let browser = Browser::new(&host);
    let overview = eventually("the host has announced itself", || {
        Some(browser.page("/")).filter(|page| running_hosts(page) == 1)
    });
    assert!(overview.contains("href=\"/queues/work\""), "{overview}");
    // Once a minute has ended, it also says how many are new.
    let alarm = alarm(&browser, "dead-letters");
    insta::assert_snapshot!(alarm.split('.').next().unwrap_or_default(), @"There is 1");

    // The words are those of the command line.
    eventually("its only permit is taken", || {
        let shown = bench.tqhost(&["queues", "work"]).ok().stdout;
        (shown.contains("busy") && text(&browser.page("/queues/work")).contains("busy")).then_some(())
    });

    let tab = |state: &str| browser.page(&format!("/queues/work?state={state}"));
    for (state, id) in [("queued", &queued), ("running", &running), ("dead", &dead), ("ended", &dead)] {
        let page = tab(state);
        assert!(text(&page).contains(id.as_str()), "{state}: {page}");
    }
    let filtered = browser.page("/queues/work?state=queued&text=nothing");
    insta::assert_snapshot!([&tab("delayed"), &filtered].map(|page| no_tasks(page)).join("\n"), @"
    No task is delayed. One that is tried again later, or was enqueued for later, is here.
    None among the 1 that were looked at.
    ");

    // A task by the form, delayed, and its page.
    let page = tab("queued");
    let fields = "name=late\r\n\r\nraw = a=b \r\n";
    let made =
        browser.press(&page, "/queues/work/tasks", &[("fields", fields), ("delay", "1h"), ("key", "k")]);
    let place = led_to(&made);
    let page = browser.page(&place);
    insta::assert_snapshot!(done(&page), @"The task is in the queue.");
    let shown = text(&page);
    assert!(shown.contains("(delayed)"), "{shown}");
    assert!(shown.contains("late") && page.contains("> a=b <"), "{page}");
    let again = browser.press(&tab("queued"), "/queues/work/tasks", &[("fields", "a=1"), ("key", "k")]);
    assert_eq!(led_to(&again), place.replace("enqueued", "duplicate"));
    let cancel = place.replace("?done=enqueued", "");
    let action = format!("{}/cancel", path_in(&page, "/cancel"));
    assert_eq!(led_to(&browser.press(&page, &action, &[])), format!("{cancel}?done=cancelled"));
    assert!(text(&browser.page(&cancel)).contains("CANCELLED"));
    let wrong = browser.press(&tab("queued"), "/queues/work/tasks", &[("fields", "no value")]);
    insta::assert_snapshot!(problem(&wrong), @"422 fields: line 1 is not name=value");

    // A drain counts what waits, and leaves what runs.
    let page = browser.page("/queues/work/drain");
    assert_eq!(matched(&page), 1, "{page}");
    // The filter is that of the page that counts, and goes on into the drain.
    let none = browser.page("/queues/work/drain?text=nothing+like+this");
    assert!(!none.contains("method=\"post\" action=\"/queues/work/drain\""), "{none}");
    insta::assert_snapshot!([&page, &none].map(|page| counted(page)).join("\n"), @"
    1 task waits in queue work: queued, delayed or held.
    0 tasks wait in queue work: queued, delayed or held, and match.
    ");
    assert_eq!(browser.get("/queues/work/drain?older_than=5").status, 422);
    let other = browser.press(&page, "/queues/work/drain", &[("text", "nothing like this")]);
    assert_eq!(job_done(&browser, &other).0["done"], 0);
    assert_eq!(bench.places("work").length, 2);
    let page = browser.page("/queues/work/drain?text=waits");
    assert_eq!(matched(&page), 1, "{page}");
    assert!(form(&page, "/queues/work/drain").contains("name=\"text\" value=\"waits\""), "{page}");
    // Tasks that come after the count stay.
    let later = bench.xadd("work", &[task, ("name", "waits")]);
    let late = bench.tqhost(&["enqueue", "work", "name=waits", "--delay", "1h"]).ok().stdout;
    let drained = browser.press(&page, "/queues/work/drain", &[]);
    insta::assert_snapshot!(done(&job_done(&browser, &drained).1), @"1 task is cancelled, and none is left that was counted.");
    let uncounted = browser.submit("/queues/work/drain", &[("form-token", &form_token(&page))]);
    insta::assert_snapshot!(problem(&uncounted), @"422 begin: begin at the page that counts");
    for id in [later.as_str(), late.trim()] {
        assert_eq!(bench.tqhost(&["cancel", "work", id, "--json"]).ok().json()["before"], "PENDING");
    }
    assert_eq!(bench.status("work", &queued, "status"), "CANCELLED");
    assert_eq!(bench.status("work", &running, "status"), "PROCESSING");

    // The dead one: its fields, its error, and requeue.
    let page = browser.page(&format!("/queues/work/tasks/{dead}"));
    let shown = text(&page);
    assert!(shown.contains("dead one") && shown.contains("rejected") && shown.contains("FAILED"), "{shown}");
    let action = format!("{}/requeue", path_in(&page, "/requeue"));
    assert!(led_to(&browser.press(&page, &action, &[])).ends_with("?done=requeued"));
    // The running one: its host, and cancel.
    let page = browser.page(&format!("/queues/work/tasks/{running}"));
    assert!(text(&page).contains("(running)") && text(&page).contains("runs"), "{page}");
    let action = format!("{}/cancel", path_in(&page, "/cancel"));
    assert!(led_to(&browser.press(&page, &action, &[])).ends_with("?done=cancelled"));
    bench.until("work", &running, "CANCELLED");
    held.end();
    host.stop();
}

/// The words of the page of a queue that lists no tasks.
fn no_tasks(page: &str) -> String {
    text(element(element(page, "data-live=\"tasks\""), "class=\"quiet\""))
}

/// The path in front of `end` of the form's action.
fn path_in(page: &str, end: &str) -> String {
    let actions = page.split("action=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let found = actions.filter_map(|action| action.strip_suffix(end)).next();
    found.unwrap_or_else(|| panic!("a form for {end} in {page}")).to_owned()
}

#[test]
fn a_delayed_task_has_a_button_that_lets_it_run_now() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    let late = bench.tqhost(&["enqueue", "work", "a=1", "--delay", "1h"]).ok().stdout.trim().to_owned();
    let queued = bench.xadd("work", &[("a", "2")]);
    let browser = Browser::new(&host);
    let page = browser.page(&format!("/queues/work/tasks/{queued}"));
    assert!(text(&page).contains("(queued)") && !page.contains("/retry\""), "{page}");
    let page = browser.page(&format!("/queues/work/tasks/{late}"));
    assert!(text(&page).contains("(delayed)"), "{page}");
    let action = format!("{}/retry", path_in(&page, "/retry"));
    let place = led_to(&browser.press(&page, &action, &[]));
    assert_eq!(place, format!("/queues/work/tasks/{late}?done=retried"));
    let after = browser.page(&place);
    assert!(text(&after).contains("(queued)") && !after.contains("/retry\""), "{after}");
    insta::assert_snapshot!(done(&after), @"The task is due now: it runs when a host has room.");
    // The button of a page that is old.
    let again = browser.press(&page, &action, &[]);
    insta::assert_snapshot!(masked(&problem(&again), &[]), @r#"409 task "ID" cannot be told to run now: it is queued already, and runs when a host has room; `tqhost queues work` shows what hosts do"#);
    assert_eq!((bench.places("work").length, bench.places("work").delayed), (2, 0));
    host.stop();
}

#[test]
fn pause_resume_and_reload_by_forms() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    bench.install("wrong-world", "echo");
    let host = bench.host();
    let browser = Browser::new(&host);
    let plugins = eventually("the plugin has failed", || {
        let page = browser.page("/plugins/echo");
        (text(&page).contains("failed") && page.contains("/plugins/echo/reload\"")).then_some(page)
    });
    insta::assert_snapshot!(masked(&alarm(&browser, "plugin-refused"), &[]), @"It is failed on HOST: it exports no tqhost:handler/handler; it exports tqhost:testing/greeter@0.1.0. Repair the file, or what it needs, and reload it.");
    let overview = browser.page("/");
    assert!(overview.contains("<a href=\"/plugins/echo\">plugin "), "it leads to the plugin: {overview}");
    assert_eq!(browser.get("/plugins/nothing").status, 404);
    bench.install("echo", "echo");
    let reloading = led_to(&browser.press(&plugins, "/plugins/echo/reload", &[]));
    assert_eq!(reloading, "/plugins/echo?done=reloading");
    insta::assert_snapshot!(done(&browser.page(&reloading)), @"All hosts look at the file of the plugin within seconds.");
    // The button of a version that runs, or of one that was withdrawn.
    let has_button = |order: &str| {
        let action = format!("action=\"/plugins/echo/{order}\"");
        eventually(order, || Some(browser.page("/plugins/echo")).filter(|page| page.contains(&action)))
    };
    let plugin = has_button("rollback");
    let version = digest(&guest("echo"));
    let known = [(&version[..12], "VERSION")];
    let named = [("version".to_owned(), version.clone())];
    assert_eq!(hidden(&form(&plugin, "/plugins/echo/rollback")), named);
    let confirm = browser.page(&format!("/plugins/echo/rollback?version={version}"));
    insta::assert_snapshot!(masked(&text(element(&confirm, "class=\"error\"")), &known), @"VERSION stops on 1 host with no version to go back to: the queues of the plugin wait there.");
    assert_eq!(browser.press(&confirm, "/plugins/echo/rollback", &[]).status, 422, "without a reason");
    let why = [("why", "<b>wrong</b> totals")];
    let withdrawn = browser.press(&confirm, "/plugins/echo/rollback", &why);
    assert_eq!(led_to(&withdrawn), "/plugins/echo?done=withdrawn");
    eventually("the host obeys", || row(&bench, "echo").filter(|row| row["state"] == "quarantined"));
    let plugin = browser.page("/plugins/echo");
    let why = text(element(element(&plugin, "data-live=\"hosts\""), "<tbody"));
    insta::assert_snapshot!(masked(why.rsplit(" | ").next().unwrap_or_default(), &[]), @"withdrawn: <b>wrong</b> totals; there is no other version to run in its place: put one there, or lift the quarantine");
    assert!(text(&browser.page("/plugins")).contains("quarantined"), "a row for the plugin");
    let again = browser.press(&confirm, "/plugins/echo/rollback", &[("why", "x")]);
    insta::assert_snapshot!(masked(&problem(&again), &known), @"409 version VERSION of echo was already rolled back AGE ago by anybody (<b>wrong</b> totals): no host runs another one");
    let plugin = has_button("lift");
    assert_eq!(hidden(&form(&plugin, "/plugins/echo/lift")), named);
    let confirm = browser.page(&format!("/plugins/echo/lift?version={version}"));
    insta::assert_snapshot!(masked(&counted(&confirm), &known), @"VERSION may run again on 1 host.");
    assert_eq!(led_to(&browser.press(&confirm, "/plugins/echo/lift", &[])), "/plugins/echo?done=lifted");
    has_button("rollback");
    let page = browser.page("/queues/work");
    let paused = led_to(&browser.press(&page, "/queues/work/pause", &[]));
    let page = browser.page(&paused);
    insta::assert_snapshot!(done(&page), @"The queue is paused in all hosts.");
    eventually("the fetch loop has seen the pause", || {
        host.get("/readyz").body.contains("\"paused\"").then_some(())
    });
    let id = bench.xadd("work", &[("a", "1")]);
    insta::assert_snapshot!(alarm(&browser, "paused"), @"It is paused; 1 task waits. Resume it when its tasks may run.");
    led_to(&browser.press(&page, "/queues/work/resume", &[]));
    bench.until("work", &id, "COMPLETED");
    let page = browser.page(&format!("/queues/work/tasks/{id}"));
    assert!(page.contains(">Result<"), "{page}");
    insta::assert_snapshot!(text(element(&page, "aria-labelledby=\"fields\"")), @"
    Fields
    The task has completed, and nothing keeps its fields. New tasks of the queue keep them with keep_fields = true in its configuration.
    ");
    host.stop();
}

#[test]
fn a_queue_is_limited_by_a_form_and_says_by_whom_and_why() {
    let bench = Bench::new(
        "[queues.work]\nplugin = \"missing\"\nrate_limit = \"50/s\"\n\
         serial = { field = \"key\", limit = 3 }\n",
    );
    let host = bench.host();
    let browser = Browser::new(&host);
    let page = browser.page("/queues/work");
    assert!(!page.contains("/limits/clear"), "{page}");
    insta::assert_snapshot!(text(element(&page, "id=\"rate-note\"")), @"The configuration allows 50/s.");
    let why = "<b>the model</b> answers 429";
    let filled = [("rate", " 5/s "), ("concurrency", ""), ("per_key", "1"), ("for", "1h"), ("why", why)];
    let limited = led_to(&browser.press(&page, "/queues/work/limits", &filled));
    let page = browser.page(&limited);
    let figures = text(element(&page, "data-live=\"figures\""));
    let limits = masked(figures.lines().last().unwrap_or_default(), &[]);
    insta::assert_snapshot!([done(&page), limits].join("\n"), @"
    The queue is limited in all hosts within seconds.
    Limited to rate 5/s, 1 of one key at once, since TIME UTC, until TIME UTC, by anybody, because: <b>the model</b> answers 429.
    ");
    assert!(text(&browser.page("/")).contains("limited"));
    let refused = browser.press(&page, "/queues/work/limits", &[("concurrency", "many"), ("why", "x")]);
    insta::assert_snapshot!(problem(&refused), @r#"422 concurrency: "many" is no whole number"#);
    let cleared = led_to(&browser.press(&page, "/queues/work/limits/clear", &[]));
    let page = browser.page(&cleared);
    assert!(!text(&page).contains(why), "{page}");
    insta::assert_snapshot!(done(&page), @"The queue is limited by its configuration alone again.");
    host.stop();
}

#[test]
fn a_task_has_a_timeline_from_its_enqueueing_to_its_end() {
    let mut bench =
        Bench::new("[queues.work]\nplugin = \"remembers\"\nmax_retries = 1\nbackoff = \"none\"\n");
    bench.install("remembers", "remembers");
    let host = bench.host();
    let browser = Browser::new(&host);
    let id = bench.xadd("work", &[("end", "retry")]);
    bench.until("work", &id, "FAILED");
    let page = browser.page(&format!("/queues/work/tasks/{id}"));
    let timeline = element(&page, "class=\"timeline\"");
    let consumer = bench.status("work", &id, "consumer");
    insta::assert_snapshot!(masked(&text(timeline), &[(&consumer, "CONSUMER"), (&id, "THIS")]), @"
    Enqueued TIME (AGE ago)
    Attempt 1 retry TIME (AGE ago), ran for AGE
    Version remembers@HEX on CONSUMER
    retry: as told
    Log of attempt 1, its last 2 lines
    printed by THIS
    INFO logged by THIS
    Attempt 2 retry TIME (AGE ago), ran for AGE
    Version remembers@HEX on CONSUMER
    retry: as told
    Log of attempt 2, its last 2 lines
    printed by THIS
    INFO logged by THIS
    Ended FAILED TIME (AGE ago)
    ");
    assert_eq!(timeline.matches("<details>").count(), 2, "folded, without a script: {timeline}");
    let done = bench.xadd("work", &[("a", "1")]);
    bench.until("work", &done, "COMPLETED");
    let page = browser.page(&format!("/queues/work/tasks/{done}"));
    insta::assert_snapshot!(masked(&text(element(&page, "class=\"timeline\"")), &[]), @"
    Enqueued TIME (AGE ago)
    Ended COMPLETED TIME (AGE ago)
    Attempt 1, version remembers@HEX on HOST, ran for AGE
    ");
    host.stop();
}

#[test]
fn lists_go_on_and_every_state_has_a_page() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let ids: Vec<String> = (0..60).map(|n| bench.xadd("work", &[("n", &n.to_string())])).collect();
    let host = bench.host();
    let browser = Browser::new(&host);
    let mut page = browser.page("/queues/work");
    let mut shown = Vec::new();
    for _ in 0..3 {
        shown.extend(ids.iter().filter(|id| page.contains(&format!(">{id}<"))).cloned());
        let next = page.split("href=\"").skip(1).find(|link| link.contains(">Next page<"));
        let Some(next) = next.and_then(|link| link.split('"').next()) else { break };
        page = browser.page(next.split('#').next().unwrap_or_default().replace("&amp;", "&").as_str());
    }
    assert_eq!(shown, ids, "each once, in their order");
    insta::assert_snapshot!(no_tasks(&browser.page("/queues/work?state=ended")), @"queue work keeps no events, so nobody knows which of its tasks ended lately: set `events` of [queues.work], for example to 1000");
    for state in ["running", "delayed", "held", "dead"] {
        browser.page(&format!("/queues/work?state={state}"));
    }
    // The API shows the same.
    let listed = send(host.admin(), "GET", "/v1/queues/work", &[], None).json();
    assert_eq!(listed["queued"], json!(60));
    host.stop();
}

#[test]
fn without_redis_the_page_says_so() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    let browser = Browser::new(&host);
    browser.page("/");
    bench.redis.stop();
    let answer = browser.get("/");
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("2")), "{answer:?}");
    assert!(answer.body.contains(&format!("127.0.0.1:{}", bench.redis.port)), "{answer:?}");
    bench.redis.start_again();
    eventually("Redis is back", || (browser.get("/").status == 200).then_some(()));
    host.stop();
}

#[test]
fn a_key_of_another_type_is_told_with_the_name_of_its_queue() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n[queues.bad]\nplugin = \"echo\"\n");
    bench.redis::<()>("SET", ("bad", "text"));
    let host = bench.host();
    let browser = Browser::new(&host);
    let overview = text(&browser.page("/"));
    assert!(overview.contains("`tqhost adopt bad`"), "{overview}");
    let token = form_token(&browser.page("/queues/work?state=queued"));
    for answer in [
        browser.get("/queues/bad"),
        browser.get("/queues/%62ad?state=queued"),
        browser.submit("/queues/bad/tasks", &[("form-token", &token), ("fields", "a=1")]),
    ] {
        assert!(answer.status == 409 && text(&answer.body).contains("`tqhost adopt bad`"), "{answer:?}");
    }
    host.stop();
}

#[test]
fn the_overview_tells_what_is_wrong_with_redis_and_with_rules() {
    let mut bench = Bench::with_redis("[queues.work]\n", &["--appendonly", "no", "--save", ""]);
    let host = bench.host();
    let other = bench.dir.path().join("other.toml");
    let rules = std::fs::read_to_string(bench.config()).expect("the configuration");
    std::fs::write(&other, rules.replace("[queues.work]\n", "[queues.work]\nmax_retries = 7\n"))
        .expect("write");
    // A producer has the name of the stream wrong.
    bench.xadd("worrk", &[("a", "1")]);
    let other = Host::start(&other, "info");
    let browser = Browser::new(&host);
    let page = eventually("the overview has the stream that nobody reads", || {
        Some(browser.page("/")).filter(|page| page.contains("aria-labelledby=\"unread\""))
    });
    let mut told = vec![
        text(element(element(&page, "aria-labelledby=\"unread\""), "<li")),
        alarm(&browser, "rules-differ"),
        alarm(&browser, "redis-keeps-nothing"),
    ];
    let _: () = bench.redis("CONFIG", ("SET", "maxmemory-policy", "allkeys-lru"));
    told.push(alarm(&browser, "redis-may-evict"));
    let used: String = bench.redis("INFO", "memory");
    let used = used.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("used_memory");
    let most = used.parse::<u64>().expect("bytes") * 20 / 19;
    let _: () = bench.redis("CONFIG", ("SET", "maxmemory", most));
    let memory = alarm(&browser, "redis-memory");
    told.extend(memory.rsplit('%').next().map(str::to_owned));
    insta::assert_snapshot!(told.join("\n"), @r#"
    the stream "worrk" has entries (1), and no queue reads it: if a producer means this queue, its stream is "work"
    Hosts have different rules for it. Give all hosts the same configuration, unless this is a rollout that goes on.
    Redis keeps nothing on disk: a restart loses all tasks. Set appendonly to yes.
    Redis may evict keys when its memory is full, and with them whole queues. Set maxmemory-policy to noeviction.
     of its maxmemory, and refuses new tasks when it is full. Raise maxmemory, purge dead letters with --no-undo, or shorten retention.
    "#);
    other.stop();
    host.stop();
}

#[test]
fn a_version_that_rejects_every_task_is_an_alarm_until_it_is_rolled_back() {
    const TASKS: u64 = 20;
    let mut bench = Bench::new("[queues.work]\nplugin = \"p\"\n");
    bench.install("echo", "p");
    let host = bench.host();
    let browser = Browser::new(&host);
    let id = bench.xadd("work", &[("a", "1")]);
    bench.until("work", &id, "COMPLETED");
    let bad = guest("rejects");
    put(&bench, "p", &bad);
    loaded(&host, &bad);
    (0..TASKS).for_each(|_| drop(bench.xadd("work", &[("a", "1")])));
    host.until_ended_as("work", "rejected", TASKS);
    let begin = format!("{TASKS} of {TASKS} ");
    let told = eventually("all attempts are told", || {
        Some(alarm(&browser, "bad-version")).filter(|told| told.starts_with(&begin))
    });
    assert!(incidents(&host)[0]["is_urgent"] == true && told.contains(&digest(&bad)[..12]), "{told}");
    insta::assert_snapshot!(masked(&told, &[]), @"20 of 20 attempts on its version HEX failed in queue work in the last 10 minutes; before it came, 0 of 1 did. See the errors of its tasks; put another version in place, or roll it back.");
    assert!(text(&browser.page("/queues/work")).contains(&told));
    bench.tqhost(&["rollback", "p", "--version", &digest(&bad), "--why", "it rejects all"]).ok();
    host.log("the last good version of the plugin runs again");
    let id = bench.xadd("work", &[("a", "1")]);
    bench.until("work", &id, "COMPLETED");
    eventually("the alarm is over", || {
        (!host.get("/v1/incidents").body.contains("bad-version")).then_some(())
    });
    host.stop();
}

#[test]
fn the_hosts_of_a_queue_are_shown_with_their_last_sign_of_life() {
    let bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    let browser = Browser::new(&host);
    let id = host.log("tqhost is running")["host"].as_str().expect("an id").to_owned();
    let shown = eventually("the host is announced", || {
        let page = browser.page("/queues/work");
        Some(text(element(&page, "data-live=\"hosts\""))).filter(|shown| shown.contains(&id))
    });
    assert!(shown.contains("Announced") && shown.contains(" ago"), "{shown}");
    host.stop();
}

#[test]
fn the_actions_of_a_task_change_with_its_state() {
    let held = Held::new();
    let mut bench = held.bench("[queues.work]\nplugin = \"fetches\"\nmax_retries = 0\n");
    let host = bench.host();
    let browser = Browser::new(&host);
    let id = bench.xadd("work", &held.task());
    bench.until_running("work", 1);
    let path = format!("/queues/work/tasks/{id}");
    // A browser puts this part in place when it looks again.
    let actions = || {
        let page = browser.page(&path);
        let part = page.split("data-live=\"actions\"").nth(1).expect("the live part");
        part.split("</div>").next().unwrap_or_default().to_owned()
    };
    assert!(actions().contains(">Cancel<"), "{}", actions());
    held.end();
    bench.until("work", &id, "COMPLETED");
    // It has replaced the button by nothing, so the part has to be there.
    let left = actions();
    assert!(!left.contains("<form"), "{left}");
    let dead = bench.xadd("work", &[("name", "has no url")]);
    bench.until("work", &dead, "FAILED");
    let page = browser.page(&format!("/queues/work/tasks/{dead}"));
    let part = page.split("data-live=\"actions\"").nth(1).expect("the live part");
    assert!(part.contains(">Requeue<") && !page.contains(">Cancel<"), "{page}");
    host.stop();
}

#[test]
fn the_search_finds_queues_and_tasks_of_all_queues() {
    let queues = "[queues.mail]\nplugin = \"missing\"\n[queues.mail-fast]\nplugin = \"missing\"\n\
                  [queues.orders]\nplugin = \"echo\"\nid = { field = \"order\" }\n";
    let mut bench = Bench::new(queues);
    bench.install("echo", "echo");
    let host = bench.host();
    let browser = Browser::new(&host);
    let search = |text: &str| browser.get(&format!("/search?q={text}"));
    let (same, id) = ("1-0", bench.xadd("orders", &[("order", "A7"), ("n", "1")]));
    bench.until("orders", &id, "COMPLETED");
    // The only match is shown at once.
    for text in [&id, "A7"] {
        assert_eq!(led_to(&search(text)), format!("/queues/orders/tasks/{id}"), "{text}");
    }
    assert_eq!(led_to(&search("fast")), "/queues/mail-fast");
    // Several are a list.
    for stream in ["mail", "mail-fast"] {
        bench.redis::<String>("XADD", (stream, same, "n", "1"));
    }
    let page = search(same).body;
    assert!(
        page.contains("/queues/mail/tasks/1%2D0") && page.contains("/queues/mail%2Dfast/tasks/"),
        "{page}"
    );
    let page = search("mail").body;
    assert!(page.contains("Queue <a href=\"/queues/mail\">") && page.contains("mail%2Dfast"), "{page}");
    assert!(search("%3Cb%3E").body.contains("&lt;b&gt;"), "a text is no markup");
    host.stop();
}
