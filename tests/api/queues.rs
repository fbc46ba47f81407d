//! Queues and plugins: what they show, pause and resume, reload; the queues of the configuration as it is
//! now.

use serde_json::{Value, json};

use super::{ask, good, post, problem, texts};
use crate::support::http::send;
use crate::support::{Bench, eventually, words};

#[test]
fn queues_are_shown_paused_and_resumed() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n[queues.other]\nplugin = \"echo\"\n");
    bench.install("echo", "echo");
    let host = bench.host();
    host.until_ready();
    let list = eventually("the host has announced itself", || {
        let list = good(&ask(&host, "GET", "/v1/queues"), 200);
        (list["queues"][0]["hosts"].as_array()?.len() == 1).then_some(list)
    });
    assert_eq!(
        (texts(&list["queues"], "queue"), &list["failed"]),
        (vec!["work".into(), "other".into()], &json!([]))
    );
    let paused = good(&ask(&host, "POST", "/v1/queues/work/pause"), 200);
    assert_eq!(paused, json!({ "queue": "work", "paused": true, "changed": true }));
    let again = good(&ask(&host, "POST", "/v1/queues/work/pause"), 200);
    assert_eq!(again["changed"], false);
    eventually("the fetch loop has seen the pause", || {
        host.get("/readyz").body.contains("\"paused\"").then_some(())
    });
    bench.xadd("work", &[("a", "1")]);
    let work = good(&ask(&host, "GET", "/v1/queues/work"), 200);
    assert_eq!(
        (&work["paused"], &work["queued"], &work["plugin"]),
        (&json!(true), &json!(1), &json!("echo"))
    );
    // The command line shows the same.
    let shown = bench.tqhost(&["queues", "work", "--json"]).ok().json();
    let without = |mut view: Value| {
        for name in ["oldest_ms", "consumers", "hosts", "state"] {
            view[name] = Value::Null;
        }
        view
    };
    assert_eq!(without(shown), without(work));
    let resumed = good(&ask(&host, "POST", "/v1/queues/work/resume"), 200);
    assert_eq!(resumed, json!({ "queue": "work", "paused": false, "changed": true }));
    bench.until_drained("work");
    let why = problem(&ask(&host, "GET", "/v1/queues/wrk"), 404, "unknown-queue");
    insta::assert_snapshot!(
        why,
        @r#"no queue "wrk" is configured; did you mean work? Configured: work, other"#
    );
    problem(&ask(&host, "POST", "/v1/queues/wrk/pause"), 404, "unknown-queue");
    host.stop();
}

#[test]
fn a_queue_is_limited_for_a_time_and_the_limits_are_cleared() {
    let bench = Bench::new("[queues.work]\nplugin = \"missing\"\nconcurrency = 4\n");
    let host = bench.host();
    let path = "/v1/queues/work/limits";
    let put = |body: Value| {
        let headers = [("content-type", "application/json")];
        send(host.admin(), "PUT", path, &headers, Some(&body.to_string()))
    };
    let view = good(&put(json!({ "rate": "5/s", "concurrency": 2, "for": "1h", "why": "429" })), 200);
    let limits = &view["limits"];
    assert_eq!((&view["queue"], &view["changed"]), (&json!("work"), &json!(true)));
    assert_eq!((&limits["rate"], &limits["concurrency"]), (&json!("5/s"), &json!(2)));
    assert_eq!((&limits["per_key"], &limits["why"]), (&Value::Null, &json!("429")));
    assert_eq!(limits["by"], "anybody");
    let ms = |name: &str| limits[name].as_u64().expect("a time");
    assert_eq!(ms("until_ms") - ms("since_ms"), 3_600_000);
    let shown = good(&ask(&host, "GET", "/v1/queues/work"), 200);
    assert_eq!(shown["limits"], *limits);
    for (body, why) in [
        (json!({ "why": "429" }), "nothing is limited"),
        (json!({ "rate": "5/s" }), "why"),
        (json!({ "rate": "5/s", "why": "" }), "a reason of 1 to 200"),
        (json!({ "concurrency": 5, "why": "429" }), "allows 4"),
        (json!({ "concurrency": 0, "why": "429" }), "`tqhost pause work`"),
        (json!({ "per_key": 1, "why": "429" }), "`serial`"),
        (json!({ "rate": "5/s", "for": "90", "why": "429" }), "for: \"90\" has no unit"),
        (json!({ "rate": "5/s", "burst": 9, "why": "429" }), "burst"),
    ] {
        let told = problem(&put(body), 422, "invalid");
        assert!(told.contains(why), "{told}");
    }
    let cleared = |changed| json!({ "queue": "work", "limits": null, "changed": changed });
    assert_eq!(good(&ask(&host, "DELETE", path), 200), cleared(true));
    assert_eq!(good(&ask(&host, "DELETE", path), 200), cleared(false));
    assert_eq!(good(&ask(&host, "GET", "/v1/queues/work"), 200)["limits"], Value::Null);
    host.stop();
}

#[test]
fn the_version_of_each_host_is_told_and_whether_they_differ() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    let own = env!("CARGO_PKG_VERSION");
    let view = |hosts: usize| {
        eventually("the hosts have announced themselves", || {
            let view = good(&ask(&host, "GET", "/v1/queues/work"), 200);
            (view["hosts"].as_array()?.len() == hosts).then_some(view)
        })
    };
    let alone = view(1);
    assert_eq!((&alone["hosts"][0]["version"], &alone["versions_differ"]), (&json!(own), &json!(false)));
    let shown = bench.tqhost(&["queues"]).ok().stdout;
    assert!(!shown.contains(own), "{shown}");
    let queue = json!({
        "name": "work", "state": "reading", "running": 0, "completed": 0, "retried": 0, "dead": 0, "rate": 0.0
    });
    let other = json!({
        "id": "other", "version": "99.1.0", "pid": 1, "started_at": 1, "queues": [queue], "plugins": []
    });
    bench.redis::<()>("SET", ("tq:host:other", other.to_string()));
    bench.redis::<()>("ZADD", ("tq:hosts", 1, "other"));
    let both = view(2);
    assert_eq!((&both["hosts"][1]["version"], &both["versions_differ"]), (&json!("99.1.0"), &json!(true)));
    let told = [&["queues"][..], &["queues", "work"]].map(|command| {
        let shown = bench.tqhost(command).ok().stdout;
        let line = shown.lines().find(|line| line.contains(own) && line.contains("99.1.0"));
        line.unwrap_or_else(|| panic!("no versions in {shown}")).replace(own, "OWN")
    });
    insta::assert_snapshot!(told.join("\n"), @"
    Hosts run different versions of tqhost: OWN, 99.1.0.
    Hosts run different versions of tqhost: OWN, 99.1.0.
    ");
    let shown = bench.tqhost(&["queues", "work"]).ok().stdout;
    assert!(
        shown.contains("VERSION")
            && shown.lines().any(|line| line.starts_with("other") && line.contains("  99.1.0  ")),
        "{shown}"
    );
    assert_eq!(bench.tqhost(&["queues", "work", "--json"]).ok().json()["versions_differ"], true);
    let page = ask(&host, "GET", "/queues/work").body;
    assert!(page.contains("99.1.0"), "{page}");
    let note = page.rsplit("<p class=\"note\">").next().and_then(|rest| rest.split("</p>").next());
    insta::assert_snapshot!(
        words::text(note.unwrap_or_default()),
        @"Its hosts run different versions of tqhost: finish the upgrade."
    );
    host.stop();
}

#[test]
fn a_queue_that_cannot_be_counted_hides_no_other() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n[queues.bad]\nplugin = \"echo\"\n");
    bench.redis::<()>("SET", ("bad", "text"));
    let host = bench.host();
    let list = good(&ask(&host, "GET", "/v1/queues"), 200);
    assert_eq!(
        (texts(&list["queues"], "queue"), texts(&list["failed"], "queue")),
        (vec!["work".into()], vec!["bad".into()])
    );
    assert!(texts(&list["failed"], "error")[0].contains("`tqhost adopt bad`"), "{list}");
    let tasks = "/v1/queues/bad/tasks";
    let all = json!({ "all": true });
    for answer in [
        ask(&host, "GET", "/v1/queues/bad"),
        ask(&host, "GET", "/v1/queues/%62ad"),
        ask(&host, "GET", &format!("{tasks}?state=queued")),
        ask(&host, "DELETE", &format!("{tasks}/1-0")),
        post(&host, tasks, &json!({ "fields": { "a": 1 } })),
        post(&host, &format!("{tasks}/cancel"), &all),
        post(&host, "/v1/queues/bad/drain", &all),
    ] {
        let why = problem(&answer, 409, "queue-unfit");
        assert!(why.contains("`tqhost adopt bad`") && !why.contains("repeated"), "{why}");
    }
    host.stop();
}

#[test]
fn the_api_follows_the_configuration() {
    let bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    let host = bench.host();
    good(&ask(&host, "GET", "/v1/queues/work"), 200);
    problem(&ask(&host, "GET", "/v1/queues/more"), 404, "unknown-queue");
    bench.configure_for("[queues.more]\nplugin = \"echo\"\n", bench.redis.port);
    eventually("the new queue is there", || {
        (ask(&host, "GET", "/v1/queues/more").status == 200).then_some(())
    });
    problem(&ask(&host, "GET", "/v1/queues/work"), 404, "unknown-queue");
    host.stop();
}

#[test]
fn plugins_are_shown_and_a_failed_one_is_tried_again() {
    let bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    bench.install("wrong-world", "echo");
    let host = bench.host();
    let state = |state: &str| {
        eventually(&format!("the plugin is {state}"), || {
            let list = good(&ask(&host, "GET", "/v1/plugins"), 200);
            (list["plugins"][0]["state"] == state).then_some(list)
        })
    };
    let list = state("failed");
    assert_eq!((&list["hosts"], &list["plugins"][0]["name"]), (&json!(1), &json!("echo")));
    let tried = host.logged("plugin").len();
    let answer = good(&ask(&host, "POST", "/v1/plugins/echo/reload"), 202);
    assert_eq!((&answer["plugin"], &answer["hosts"]), (&json!("echo"), &json!(1)));
    assert!(answer["at"].is_u64() && answer["dry_run"].is_null(), "{answer}");
    eventually("it is tried again", || (host.logged("plugin").len() > tried).then_some(()));
    bench.install("echo", "echo");
    good(&ask(&host, "POST", "/v1/plugins/echo/reload"), 202);
    state("active");
    problem(&ask(&host, "POST", "/v1/plugins/nothing/reload"), 404, "unknown-plugin");
    let version = state("active")["plugins"][0]["version"].clone();
    let withdrawn = good(
        &post(&host, "/v1/plugins/echo/rollback", &json!({ "version": version, "why": "wrong totals" })),
        202,
    );
    assert_eq!(
        (&withdrawn["version"], &withdrawn["withdrawn"], &withdrawn["hosts"]),
        (&version, &json!(true), &json!(1))
    );
    state("quarantined");
    for body in [json!({ "version": version, "why": "" }), json!({ "why": "wrong totals" })] {
        problem(&post(&host, "/v1/plugins/echo/rollback", &body), 422, "invalid");
    }
    problem(&post(&host, "/v1/plugins/nothing/lift", &json!({})), 404, "unknown-plugin");
    good(&post(&host, "/v1/plugins/echo/lift", &json!({})), 202);
    state("active");
    let audit = host.until_logged("audit: a change was asked for", 8);
    let statuses = audit.iter().map(|line| line["status"].clone()).collect::<Vec<_>>();
    assert_eq!(statuses, [202, 202, 404, 202, 422, 422, 404, 202]);
    host.stop();
}

#[test]
fn without_redis_there_is_a_503_that_says_when_to_try_again() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    let host = bench.host();
    good(&ask(&host, "GET", "/v1/queues"), 200);
    bench.redis.stop();
    let body = json!({ "fields": { "a": "1" } });
    for answer in [
        ask(&host, "GET", "/v1/queues"),
        ask(&host, "GET", "/v1/queues/work/tasks?state=queued"),
        ask(&host, "POST", "/v1/queues/work/pause"),
        post(&host, "/v1/queues/work/tasks", &body),
    ] {
        problem(&answer, 503, "redis-unavailable");
        assert_eq!(answer.header("retry-after"), Some("2"), "{answer:?}");
    }
    bench.redis.start_again();
    eventually("Redis is back", || (ask(&host, "GET", "/v1/queues").status == 200).then_some(()));
    host.stop();
}
