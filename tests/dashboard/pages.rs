//! Each page shows real tasks of a real host, and acts on them.

use serde_json::json;

use super::{Browser, form, form_token, hidden, job_over, led_to, text};
use crate::support::files::{digest, guest, loaded, put};
use crate::support::http::send;
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
        let page = browser.page("/");
        text(&page).contains("1 running host.").then_some(page)
    });
    assert!(
        overview.contains("href=\"/queues/work\"")
            && text(&overview).contains("dead letters of work: There is 1.")
    );

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
    assert!(text(&tab("delayed")).contains("No task is delayed."));
    assert!(text(&browser.page("/queues/work?state=queued&text=nothing")).contains("None among the 1"));

    // A task by the form, delayed, and its page.
    let page = tab("queued");
    let fields = "name=late\r\n\r\nraw = a=b \r\n";
    let made =
        browser.press(&page, "/queues/work/tasks", &[("fields", fields), ("delay", "1h"), ("key", "k")]);
    let place = led_to(&made);
    let page = browser.page(&place);
    let shown = text(&page);
    assert!(shown.contains("The task is in the queue.") && shown.contains("(delayed)"), "{shown}");
    assert!(shown.contains("late") && shown.contains(" a=b "), "{shown}");
    let again = browser.press(&tab("queued"), "/queues/work/tasks", &[("fields", "a=1"), ("key", "k")]);
    assert_eq!(led_to(&again), place.replace("enqueued", "duplicate"));
    let cancel = place.replace("?done=enqueued", "");
    let action = format!("{}/cancel", path_in(&page, "/cancel"));
    assert_eq!(led_to(&browser.press(&page, &action, &[])), format!("{cancel}?done=cancelled"));
    assert!(text(&browser.page(&cancel)).contains("CANCELLED"));
    let wrong = browser.press(&tab("queued"), "/queues/work/tasks", &[("fields", "no value")]);
    assert!(wrong.status == 422 && text(&wrong.body).contains("line 1 is not name=value"), "{wrong:?}");

    // A drain counts what waits, and leaves what runs.
    let page = browser.page("/queues/work/drain");
    assert!(text(&page).contains("1 task waits in queue work"), "{}", text(&page));
    // The filter is that of the page that counts, and goes on into the drain.
    let none = text(&browser.page("/queues/work/drain?text=nothing+like+this"));
    assert!(none.contains("0 tasks wait in queue work: queued, delayed or held, and match."), "{none}");
    assert!(none.contains("There is nothing to do."), "{none}");
    assert_eq!(browser.get("/queues/work/drain?older_than=5").status, 422);
    let other = browser.press(&page, "/queues/work/drain", &[("text", "nothing like this")]);
    let shown = job_over(&browser, &other);
    assert!(shown.contains("0 tasks are cancelled"), "{shown}");
    assert_eq!(bench.places("work").length, 2);
    let page = browser.page("/queues/work/drain?text=waits");
    assert!(text(&page).contains("1 task waits in queue work"), "{}", text(&page));
    assert!(form(&page, "/queues/work/drain").contains("name=\"text\" value=\"waits\""), "{page}");
    // Tasks that come after the count stay.
    let later = bench.xadd("work", &[task, ("name", "waits")]);
    let late = bench.tqhost(&["enqueue", "work", "name=waits", "--delay", "1h"]).ok().stdout;
    let drained = browser.press(&page, "/queues/work/drain", &[]);
    let shown = job_over(&browser, &drained);
    assert!(shown.contains("1 task is cancelled, and none is left that was counted."), "{shown}");
    let uncounted = browser.submit("/queues/work/drain", &[("form-token", &form_token(&page))]);
    assert!(uncounted.status == 422 && text(&uncounted.body).contains("begin at the page that counts"));
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
    assert!(text(&page).contains("(queued)") && !text(&page).contains("Run now"), "{page}");
    let page = browser.page(&format!("/queues/work/tasks/{late}"));
    assert!(text(&page).contains("(delayed)") && text(&page).contains("Run now"), "{page}");
    let action = format!("{}/retry", path_in(&page, "/retry"));
    let place = led_to(&browser.press(&page, &action, &[]));
    assert_eq!(place, format!("/queues/work/tasks/{late}?done=retried"));
    let after = text(&browser.page(&place));
    assert!(after.contains("The task is due now") && after.contains("(queued)"), "{after}");
    assert!(!after.contains("Run now"), "{after}");
    // The button of a page that is old.
    let again = browser.press(&page, &action, &[]);
    assert!(again.status == 409 && text(&again.body).contains("it is queued already"), "{again:?}");
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
        (text(&page).contains("failed") && page.contains("Reload its file")).then_some(page)
    });
    let overview = browser.page("/");
    assert!(text(&overview).contains("plugin echo: It is failed on"), "an alarm");
    assert!(overview.contains("<a href=\"/plugins/echo\">plugin "), "it leads to the plugin: {overview}");
    assert_eq!(browser.get("/plugins/nothing").status, 404);
    bench.install("echo", "echo");
    let reloading = led_to(&browser.press(&plugins, "/plugins/echo/reload", &[]));
    assert_eq!(reloading, "/plugins/echo?done=reloading");
    assert!(text(&browser.page(&reloading)).contains("All hosts look at the file of the plugin"));
    let is_shown = |what: &str| {
        eventually(what, || {
            let page = browser.page("/plugins/echo");
            text(&page).contains(what).then_some(page)
        })
    };
    let plugin = is_shown("Roll back…");
    let version = digest(&guest("echo"));
    let named = [("version".to_owned(), version.clone())];
    assert_eq!(hidden(&form(&plugin, "/plugins/echo/rollback")), named);
    let confirm = browser.page(&format!("/plugins/echo/rollback?version={version}"));
    let asks = format!("{} stops on 1 host with no version to go back to", &version[..12]);
    assert!(text(&confirm).contains(&asks), "{}", text(&confirm));
    assert_eq!(browser.press(&confirm, "/plugins/echo/rollback", &[]).status, 422, "without a reason");
    let why = [("why", "<b>wrong</b> totals")];
    let withdrawn = browser.press(&confirm, "/plugins/echo/rollback", &why);
    assert_eq!(led_to(&withdrawn), "/plugins/echo?done=withdrawn");
    is_shown("withdrawn: <b>wrong</b> totals; there is no other version");
    assert!(text(&browser.page("/plugins")).contains("quarantined"), "a row for the plugin");
    let again = browser.press(&confirm, "/plugins/echo/rollback", &why);
    let told = text(&again.body);
    assert!(again.status == 409 && told.contains("ago by anybody"), "{again:?}");
    let plugin = is_shown("Lift…");
    assert_eq!(hidden(&form(&plugin, "/plugins/echo/lift")), named);
    let confirm = browser.page(&format!("/plugins/echo/lift?version={version}"));
    assert!(text(&confirm).contains(&format!("{} may run again on 1 host.", &version[..12])), "{confirm}");
    assert_eq!(led_to(&browser.press(&confirm, "/plugins/echo/lift", &[])), "/plugins/echo?done=lifted");
    is_shown("active on 1 host");
    let page = browser.page("/queues/work");
    let paused = led_to(&browser.press(&page, "/queues/work/pause", &[]));
    let page = browser.page(&paused);
    assert!(text(&page).contains("The queue is paused in all hosts."));
    eventually("the fetch loop has seen the pause", || {
        host.get("/readyz").body.contains("\"paused\"").then_some(())
    });
    let id = bench.xadd("work", &[("a", "1")]);
    eventually("the pause is an alarm", || {
        text(&browser.page("/")).contains("It is paused; 1 task waits").then_some(())
    });
    led_to(&browser.press(&page, "/queues/work/resume", &[]));
    bench.until("work", &id, "COMPLETED");
    let shown = text(&browser.page(&format!("/queues/work/tasks/{id}")));
    assert!(shown.contains("Result") && shown.contains("nothing keeps its fields"), "{shown}");
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
    assert!(text(&page).contains("The configuration allows 50/s.") && !page.contains("/limits/clear"));
    let why = "<b>the model</b> answers 429";
    let filled = [("rate", " 5/s "), ("concurrency", ""), ("per_key", "1"), ("for", "1h"), ("why", why)];
    let limited = led_to(&browser.press(&page, "/queues/work/limits", &filled));
    let page = browser.page(&limited);
    let told = text(&page);
    for part in [
        "The queue is limited in all hosts within seconds.",
        "Limited to rate 5/s, 1 of one key at once, since ",
        " UTC, by anybody, because: <b>the model</b> answers 429.",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(text(&browser.page("/")).contains("limited"));
    let refused = browser.press(&page, "/queues/work/limits", &[("concurrency", "many"), ("why", "x")]);
    assert!(refused.status == 422 && text(&refused.body).contains("no whole number"), "{refused:?}");
    let cleared = led_to(&browser.press(&page, "/queues/work/limits/clear", &[]));
    let page = browser.page(&cleared);
    assert!(text(&page).contains("by its configuration alone again") && !text(&page).contains(why));
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
    let timeline = page.split("id=\"timeline\"").nth(1).and_then(|rest| rest.split("</ol>").next());
    let timeline = timeline.expect("a timeline");
    let steps: Vec<String> = timeline.split("<li").skip(1).map(|step| text(&format!("<li{step}"))).collect();
    let [enqueued, first, second, end] = &steps[..] else { panic!("four steps: {steps:#?}") };
    assert!(enqueued.starts_with("Enqueued ") && enqueued.ends_with(" ago)"), "{enqueued}");
    for (number, step) in [(1, first), (2, second)] {
        for part in [
            format!("Attempt {number} retry"),
            "Version remembers@".to_owned(),
            format!("on {}", bench.status("work", &id, "consumer")),
            "retry: as told".to_owned(),
            format!("Log of attempt {number}, its last 2 lines"),
            format!("printed by {id}\nINFO logged by {id}"),
        ] {
            assert!(step.contains(&part), "{part} in {step}");
        }
    }
    assert_eq!(timeline.matches("<details>").count(), 2, "folded, without a script: {timeline}");
    assert!(end.starts_with("Ended FAILED"), "{end}");
    let done = bench.xadd("work", &[("a", "1")]);
    bench.until("work", &done, "COMPLETED");
    let shown = text(&browser.page(&format!("/queues/work/tasks/{done}")));
    assert!(shown.contains("Ended COMPLETED") && shown.contains("Attempt 1, version remembers@"), "{shown}");
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
    assert!(text(&browser.page("/queues/work?state=ended")).contains("keeps no events"));
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
    assert!(text(&answer.body).contains("Redis at"), "{answer:?}");
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
    let told = |what: &str| {
        eventually(what, || text(&browser.page("/")).contains(what).then_some(()));
    };
    told("queue work: Hosts have different rules for it.");
    told("has entries (1), and no queue reads it: if a producer means this queue, its stream is");
    told("Redis: Redis keeps nothing on disk: a restart loses all tasks. Set appendonly to yes.");
    let _: () = bench.redis("CONFIG", ("SET", "maxmemory-policy", "allkeys-lru"));
    told("Redis: Redis may evict keys when its memory is full, and with them whole queues.");
    let used: String = bench.redis("INFO", "memory");
    let used = used.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("used_memory");
    let most = used.parse::<u64>().expect("bytes") * 20 / 19;
    let _: () = bench.redis("CONFIG", ("SET", "maxmemory", most));
    told("% of its maxmemory, and refuses new tasks when it is full.");
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
    let alarm = format!("{TASKS} of {TASKS} attempts on its version {}", &digest(&bad)[..12]);
    let shown = || text(&browser.page("/"));
    eventually("the alarm", || shown().contains(&format!("Act now: plugin p: {alarm}")).then_some(()));
    assert!(text(&browser.page("/queues/work")).contains(&alarm));
    bench.tqhost(&["rollback", "p", "--version", &digest(&bad), "--why", "it rejects all"]).ok();
    host.log("the last good version of the plugin runs again");
    let id = bench.xadd("work", &[("a", "1")]);
    bench.until("work", &id, "COMPLETED");
    eventually("the alarm is over", || (!shown().contains("attempts on its version")).then_some(()));
    host.stop();
}

#[test]
fn the_hosts_of_a_queue_are_shown_with_their_last_sign_of_life() {
    let bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    let browser = Browser::new(&host);
    let page = eventually("the host is announced", || {
        let page = browser.page("/queues/work");
        page.contains("Hosts of this queue").then_some(page)
    });
    let table = page.split(">Hosts of this queue<").nth(1).and_then(|rest| rest.split("</table>").next());
    let shown = text(table.expect("the table of hosts"));
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
