//! Hosts, producers, enqueuers and readers with exactly the rights that `tqhost check --acl` prints.
//!
//! In: a configuration with most kinds of queues. Out: every part works, and Redis has refused nothing, by
//! its own log. Not here: rights that are missing (`rights`).

use std::collections::{BTreeSet, HashMap};

use serde_json::{Value, json};
use tqhost::testing::config::Config;
use tqhost::testing::queue::{Queue, Redis};

use crate::dashboard::{Browser, form_token};
use crate::support::bench::guest_path;
use crate::support::files::{digest, guest};
use crate::support::http::{self, Events};
use crate::support::{Bench, Held, Host, Places, eventually};

const PARTS: &str = "[defaults]\nlease = \"2s\"\nbackoff = { delays = [\"10ms\"] }\n\
     [queues.work]\nplugin = \"echo\"\nlist = \"items\"\nid = { field = \"n\" }\nevents = 100\n\
     idempotency = { field = \"once\", window = \"1h\" }\ndead_letter = \"work:dead\"\n\
     on_end = { completed = \"told\", dead = \"told\", cancelled = \"told\" }\n\
     rate_limit = \"1000/s\"\nhold = { after = 5, for = \"1s\" }\nexpire_after = \"1h\"\n\
     [queues.told]\nplugin = \"echo\"\n\
     [queues.fails]\nplugin = \"always-fails\"\nmax_retries = 1\n\
     [queues.effects]\nplugin = \"effects\"\nenqueue_to = [\"part\", \"join\"]\n\
     [queues.part]\nplugin = \"effects\"\n[queues.join]\nplugin = \"effects\"\n\
     [queues.turns]\nplugin = \"echo\"\nserial = { field = \"of\" }\nidempotency = { field = \"once\" }\n\
     [queues.brief]\nplugin = \"echo\"\nretention = \"0s\"\nidempotency = { field = \"once\" }\n\
     [queues.long]\nstream = \"app:{tag}:long\"\nplugin = \"fetches\"\nserial = { field = \"of\" }\n\
     [queues.clock]\nplugin = \"echo\"\nschedule = { cron = \"* * * * * *\" }\n\
     [plugins.effects]\nrecords = [\"team:*\"]\n";

/// The queues, as a user of Redis of one role. The role is also the user's name.
fn configuration(bench: &Bench, held: &Held, role: &str) -> String {
    let url = format!("redis://{role}:p@127.0.0.1:{}", bench.redis.port);
    format!("{}\n[redis]\nurl = \"{url}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n", held.queues(PARTS))
}

/// The users of all roles, with the rights that the command prints for this configuration.
fn make_users(bench: &mut Bench) -> HashMap<String, Vec<String>> {
    let printed = bench.tqhost(&["check", "--acl", "--json"]).ok().json();
    let mut rules = HashMap::new();
    for view in printed.as_array().expect("a list") {
        let role = view["role"].as_str().expect("a role").to_owned();
        let words: Vec<String> = serde_json::from_value(view["rule"].clone()).expect("words");
        let mut set = vec!["SETUSER", role.as_str()];
        set.extend(words.iter().map(String::as_str));
        set.push(">p");
        let _: () = bench.redis("ACL", set);
        rules.insert(role, words);
    }
    rules
}

/// A bench with these users.
fn bench(held: &Held) -> (Bench, HashMap<String, Vec<String>>) {
    let mut bench = held.bench(PARTS);
    for guest in ["echo", "always-fails", "effects"] {
        bench.install(guest, guest);
    }
    let rules = make_users(&mut bench);
    (bench, rules)
}

/// Claims the tasks of the queue `turns`, as a host does. Nobody runs them.
fn claim_turns(bench: &Bench) {
    let config = Config::load(&bench.config()).expect("a configuration");
    let rules = config.queues.into_iter().find(|rules| rules.name == "turns").expect("the queue");
    let link = Redis::open(&bench.redis.url()).expect("a URL").link();
    let queue = Queue::new(rules, link.clone());
    let claim = async {
        queue.ensure_group().await?;
        queue.claim(&link, "c", 10).await
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(claim).expect("a claim");
}

/// Asserts that Redis has refused nothing to a user.
#[track_caller]
fn nothing_was_refused(bench: &mut Bench) {
    let log: Vec<HashMap<String, redis::Value>> = bench.redis("ACL", ("LOG", 50));
    let text = |value: &redis::Value| redis::from_redis_value_ref::<String>(value).unwrap_or_default();
    // The client library tells its name to newer versions, and does not mind a refusal. A host that may not
    // look at the settings of Redis warns of less.
    let refused: Vec<String> = log
        .iter()
        .map(|entry| ["username", "reason", "object"].map(|name| text(&entry[name])).join(" "))
        .filter(|line| !line.ends_with("client|setinfo") && !line.ends_with("config|get"))
        .collect();
    assert_eq!(refused, Vec::<String>::new());
}

struct Roles<'b> {
    bench: &'b Bench,
    held: &'b Held,
}

impl Roles<'_> {
    /// Runs a command as this role.
    fn run(&self, role: &str, args: &[&str]) -> crate::support::Ran {
        let file = self.bench.dir.path().join(format!("{role}.toml"));
        std::fs::write(&file, configuration(self.bench, self.held, role)).expect("write");
        crate::support::bench::tqhost(&file, args)
    }

    fn host(&self) -> Host {
        self.bench.configure(&configuration(self.bench, self.held, "host"));
        self.bench.host()
    }

    /// Enqueues a task as an enqueuer, and gives its id.
    fn enqueue(&self, args: &[&str]) -> String {
        let ran = self.run("enqueuer", &[&["enqueue"], args].concat()).ok();
        ran.stdout.split_whitespace().next().expect("an id").to_owned()
    }
}

#[test]
fn every_part_works_with_the_least_rights() {
    let held = Held::new();
    let (mut bench, _) = bench(&held);
    // Another connection looks at Redis while the commands run.
    let mut look = bench.redis.connection();
    let mut until = |key: &str, status: &str| {
        eventually(&format!("{key} is {status}"), || {
            let found: Option<String> =
                redis::cmd("HGET").arg(key).arg("status").query(&mut look).expect("HGET");
            (found.as_deref() == Some(status)).then_some(())
        });
    };
    {
        let roles = Roles { bench: &bench, held: &held };
        let host = roles.host();
        // An enqueuer: at once, with a delay, with a key, twice with the same key, in a queue with turns.
        let now = roles.enqueue(&["work", "n=1"]);
        let late = roles.enqueue(&["work", "n=2", "--delay", "50ms"]);
        let keyed = roles.enqueue(&["work", "n=3", "--key", "k"]);
        let again = roles.run("enqueuer", &["enqueue", "work", "n=3", "--key", "k"]);
        assert!(again.stdout.contains(&keyed) || again.stderr.contains(&keyed), "{again:?}");
        roles.enqueue(&["turns", "of=a", "once=1"]);
        let turn = roles.enqueue(&["turns", "of=a"]);
        for id in [&now, &late, &keyed] {
            until(&format!("tq:{{work}}:task:{id}"), "COMPLETED");
        }
        until(&format!("tq:{{turns}}:task:{turn}"), "COMPLETED");
        // Retries, a dead letter, and its requeueing; effects, a flow, and a record.
        let failed = roles.enqueue(&["fails", "n=1"]);
        until(&format!("tq:{{fails}}:task:{failed}"), "FAILED");
        roles.run("host", &["dead", "requeue", "fails", &failed]).ok();
        until(&format!("tq:{{fails}}:task:{failed}"), "FAILED");
        let child = json!({ "queue": "part", "fields": { "do": [["add", "n", 1]] } });
        let join = json!({ "queue": "join", "fields": { "do": [["results"]] } });
        let flow = json!(["fan-out", [child.clone(), child], join]);
        let calls = json!([["put", "team:1", { "a": "b" }], ["record", "team:1"], flow]);
        let flow = roles.enqueue(&["effects", &format!("do={calls}")]);
        until(&format!("tq:{{effects}}:task:{flow}"), "COMPLETED");
        // A reader looks at everything.
        for args in [
            &["queues"][..],
            &["queues", "work"],
            &["queues", "clock"],
            &["status", "work", &now],
            &["status", "work", "2"],
            &["dead", "list", "fails"],
            &["dead", "show", "fails", &failed],
            &["dead", "requeue", "fails", "--all", "--dry-run"],
            &["tasks", "work"],
            &["tasks", "work", "--state", "running"],
            &["tasks", "work", "--state", "delayed"],
            &["tasks", "turns", "--state", "held"],
            &["tasks", "work", "--state", "ended"],
            &["plugins"],
            &["pause", "work", "--dry-run"],
            &["limit", "work"],
        ] {
            let ran = roles.run("reader", args);
            assert!(!ran.stderr.contains("refused"), "{args:?}: {ran:?}");
        }
        // Pause, cancel, resume; an order about a plugin.
        roles.run("host", &["pause", "work"]).ok();
        roles.run("host", &["limit", "work", "--concurrency", "1", "--why", "a test"]).ok();
        roles.run("host", &["limit", "work", "--clear"]).ok();
        let waits = roles.enqueue(&["work", "n=4", "--delay", "1h"]);
        roles.run("host", &["cancel", "work", &waits]).ok();
        roles.run("host", &["resume", "work"]).ok();
        roles.run("host", &["reload", "echo"]).ok();
        roles.run("host", &["deploy", guest_path("echo").to_str().expect("a path")]).ok();
        until(&format!("tq:{{work}}:task:{waits}"), "CANCELLED");
        // A host dies with a task, and another one takes it over.
        let url = held.task()[0].1.to_owned();
        let long = roles.enqueue(&["long", &format!("url={url}")]);
        until(&format!("tq:app:{{tag}}:long:task:{long}"), "PROCESSING");
        host.kill();
        held.end();
        let host = roles.host();
        until(&format!("tq:app:{{tag}}:long:task:{long}"), "COMPLETED");
        host.log("took over tasks whose host fell silent");
        // The doctor, as an operator.
        for queue in ["work", "fails", "effects", "turns", "long"] {
            roles.run("operator", &["doctor", queue]).ok();
        }
        let adopted = roles.run("operator", &["adopt", "work"]);
        assert!(!adopted.stderr.contains("NOPERM"), "{adopted:?}");
        host.stop();
    }
    let _: u64 = bench.redis("LPUSH", ("items", "1"));
    let host = bench.host();
    bench.until_drained("work");
    host.stop();
    nothing_was_refused(&mut bench);
}

/// The requests to the HTTP API, in their order: each path of its document, with bodies for it.
fn api_requests(long: &str, echo: &str) -> Vec<(&'static str, &'static str, Vec<Value>)> {
    let all = json!({ "all": true });
    let rarely = |body: Value| [&[json!({ "all": true, "dry_run": true })], &[body][..]].concat();
    let reads = [
        "/v1/queues",
        "/v1/queues/{queue}",
        "/v1/queues/{queue}/history",
        "/v1/queues/{queue}/tasks",
        "/v1/queues/{queue}/tasks/{id}",
        "/v1/queues/{queue}/tasks/{id}/events",
        "/v1/queues/{queue}/groups",
        "/v1/queues/{queue}/dead",
        "/v1/queues/{queue}/dead/groups",
        "/v1/queues/{queue}/dead/export",
        "/v1/queues/{queue}/events",
        "/v1/changes",
        "/v1/jobs",
        "/v1/jobs/{id}",
        "/v1/jobs/{id}/file",
        "/v1/incidents",
        "/v1/hosts",
        "/v1/plugins",
        "/v1/events",
    ];
    let reads = reads.map(|path| ("GET", path, vec![Value::Null]));
    let tasks = [json!({ "fields": { "n": 9, "of": "x" } }), json!({ "fields": { "n": 8 }, "delay": "1h" })];
    let changes = [
        ("POST", "/v1/queues/{queue}/tasks", tasks.to_vec()),
        ("POST", "/v1/queues/{queue}/pause", vec![Value::Null]),
        ("POST", "/v1/queues/{queue}/resume", vec![Value::Null]),
        ("PUT", "/v1/queues/{queue}/limits", vec![json!({ "concurrency": 1, "why": "a test" })]),
        ("DELETE", "/v1/queues/{queue}/limits", vec![Value::Null]),
        ("POST", "/v1/queues/{queue}/tasks/{id}/retry", vec![Value::Null]),
        ("POST", "/v1/queues/{queue}/dead/requeue", rarely(json!({ "all": true, "rate": "100/s" }))),
        ("POST", "/v1/queues/{queue}/dead/purge", rarely(all.clone())),
        ("DELETE", "/v1/queues/{queue}/tasks/{id}", vec![Value::Null]),
        ("POST", "/v1/queues/{queue}/tasks/cancel", vec![json!({ "ids": [long] }), all.clone()]),
        ("POST", "/v1/queues/{queue}/drain", rarely(all)),
        ("POST", "/v1/queues/{queue}/jobs", vec![json!({ "do": "drain" }), json!({ "do": "requeue" })]),
        ("POST", "/v1/jobs/{id}/pause", vec![Value::Null]),
        ("POST", "/v1/jobs/{id}/resume", vec![Value::Null]),
        ("POST", "/v1/jobs/{id}/undo", vec![Value::Null]),
        ("DELETE", "/v1/jobs/{id}", vec![Value::Null]),
        ("POST", "/v1/incidents/{id}/acknowledge", vec![json!({ "for": "1h" })]),
        ("POST", "/v1/plugins/{plugin}/reload", vec![Value::Null]),
        ("POST", "/v1/plugins/{plugin}/rollback", vec![json!({ "version": echo, "why": "a test" })]),
        ("POST", "/v1/plugins/{plugin}/lift", vec![json!({ "version": echo })]),
    ];
    reads.into_iter().chain(changes).collect()
}

/// The queries with which a path is asked.
fn queries(path: &str) -> &'static [&'static str] {
    match path.rsplit('/').next() {
        Some("tasks") => &[
            "?state=queued&fields=true",
            "?state=running&text=url",
            "?state=delayed&older_than=1ms",
            "?state=held",
            "?state=ended&newer_than=1h",
            "?state=dead&error=failed",
        ],
        Some("groups") if path.contains("/dead/") => &["", "?by=version", "?by=hour"],
        Some("groups") => &["?state=queued&by=n", "?state=held&by=n", "?state=dead&by=data/id"],
        _ => &[""],
    }
}

#[test]
fn the_api_and_the_dashboard_need_no_more_than_the_rights_of_a_host() {
    let held = Held::new();
    let (mut bench, _) = bench(&held);
    let url = held.task()[0].1.to_owned();
    let queues = ["work", "fails", "turns", "long", "effects", "clock"];
    let (host, dead, later) = {
        let roles = Roles { bench: &bench, held: &held };
        let host = roles.host();
        let dead: Vec<String> =
            ["a", "b", "c", "d"].iter().map(|n| roles.enqueue(&["fails", &format!("n={n}")])).collect();
        let later: Vec<String> =
            ["e", "f"].iter().map(|n| roles.enqueue(&["work", &format!("n={n}"), "--delay", "1h"])).collect();
        (host, dead, later)
    };
    let long: Vec<String> =
        (0..3).map(|_| bench.xadd("app:{tag}:long", &[("url", &url), ("of", "x")])).collect();
    eventually("tasks are dead, run, and wait for their turn", || {
        let lists = [("fails", "dead", 4), ("long", "running", 1), ("long", "held", 2)];
        let count = |queue: &str, state: &str| {
            let answer = host.get(&format!("/v1/queues/{queue}/tasks?state={state}"));
            answer.json()["tasks"].as_array().map(Vec::len)
        };
        lists.iter().all(|(queue, state, tasks)| count(queue, state) == Some(*tasks)).then_some(())
    });

    // The dashboard comes first, because the requests to the API leave nothing to act upon.
    let browser = Browser::new(&host);
    browser.page("/");
    for page in ["", "/echo", "/echo/rollback?version=", "/echo/lift?version="] {
        let version = if page.ends_with('=') { digest(&guest("echo")) } else { String::new() };
        browser.page(&format!("/plugins{page}{version}"));
    }
    for queue in queues {
        let states = ["queued", "running", "delayed", "held", "dead", "ended"];
        for state in states {
            browser.page(&format!("/queues/{queue}?state={state}"));
        }
        for page in ["drain", "dead", "dead?by=version", "dead/confirm?what=purge"] {
            browser.page(&format!("/queues/{queue}/{page}"));
        }
    }
    browser.page(&format!("/queues/fails/tasks/{}", dead[0]));
    let page = browser.page(&format!("/queues/long/tasks/{}", long[0]));
    let token = form_token(&page);
    let submit = |path: &str, fields: &[(&str, &str)]| {
        let fields = [&[("form-token", token.as_str())], fields].concat();
        let answer = browser.submit(path, &fields);
        assert!(answer.status == 303 || answer.status == 200, "{path}: {answer:?}");
    };
    submit("/queues/work/pause", &[]);
    submit("/queues/work/limits", &[("concurrency", "1"), ("why", "a test")]);
    submit("/queues/work/limits/clear", &[]);
    submit("/queues/work/tasks", &[("fields", "n=7"), ("delay", "1h")]);
    submit("/queues/work/resume", &[]);
    submit(&format!("/queues/work/tasks/{}/retry", later[0]), &[]);
    submit(&format!("/queues/fails/tasks/{}/requeue", dead[0]), &[]);
    submit(&format!("/queues/long/tasks/{}/cancel", long[2]), &[]);

    let document = host.get("/v1/openapi.json").json();
    let plugins = host.get("/v1/plugins").json();
    let rows = plugins["plugins"].as_array().expect("rows");
    let echo = rows.iter().find(|row| row["name"] == "echo").expect("its row");
    let requests = api_requests(&long[0], echo["version"].as_str().expect("its version"));
    let known: BTreeSet<String> = document["paths"]
        .as_object()
        .expect("paths")
        .iter()
        .flat_map(|(path, item)| {
            let methods = item.as_object().expect("an item").keys();
            methods.map(move |method| format!("{} {path}", method.to_uppercase()))
        })
        .collect();
    let asked: BTreeSet<String> =
        requests.iter().map(|(method, path, _)| format!("{method} {path}")).collect();
    assert_eq!(asked, known, "every path is asked");
    let mut streams = Vec::new();
    for (method, template, bodies) in requests {
        for queue in queues {
            let id = match queue {
                "fails" => &dead[1],
                "work" => &later[1],
                _ => &long[1],
            };
            let path = template.replace("{queue}", queue).replace("{id}", id).replace("{plugin}", "echo");
            if template.ends_with("/events") {
                let events = Events::open(host.admin(), &path, &[]);
                // A queue has no stream unless it keeps events, and a task has none in another queue.
                assert!(events.status < 500, "{path}: {}", events.status);
                streams.push(events);
                continue;
            }
            for (query, body) in
                queries(&path).iter().flat_map(|query| bodies.iter().map(move |b| (query, b)))
            {
                let body = (!body.is_null()).then(|| body.to_string());
                let headers = [("content-type", "application/json")];
                let path = format!("{path}{query}");
                let answer = http::send(host.admin(), method, &path, &headers, body.as_deref());
                // There is no earlier version, no quarantine, and not each task in each queue.
                assert!([200, 202, 404, 409].contains(&answer.status), "{method} {path}: {answer:?}");
            }
        }
    }
    held.end();
    host.stop();
    let events = streams.into_iter().map(Iterator::count);
    assert!(events.sum::<usize>() > 0, "the streams have told of the changes");
    nothing_was_refused(&mut bench);
}

/// Acts that each role is refused, and a few that it may do.
const ACTS: &[(&str, &str, bool)] = &[
    ("producer", "XADD work * a b", true),
    ("producer", "LPUSH items a", true),
    ("producer", "LPUSH work a", false),
    ("producer", "XADD items * a b", false),
    ("producer", "XADD work:dead * a b", false),
    ("producer", "XADD tq:{work}:events * a b", false),
    ("producer", "XREADGROUP GROUP tqhost c STREAMS work >", false),
    ("producer", "XRANGE work - +", false),
    ("producer", "XDEL work 1-1", false),
    ("producer", "DEL work", false),
    ("producer", "HSET tq:{work}:task:1-1 status PENDING", false),
    ("producer", "HGET tq:{work}:task:1-1 result", false),
    ("producer", "ZADD tq:{work}:delayed 0 a", false),
    ("producer", "HSET tq:{work}:parked a b", false),
    ("producer", "SET tq:{work}:key:a b", false),
    ("producer", "SET tq:{work}:paused 1", false),
    ("producer", "SCRIPT LOAD x", false),
    ("producer", "EVALSHA x 1 work", false),
    ("producer", "EVAL x 0", false),
    ("producer", "FCALL x 0", false),
    ("producer", "INFO", false),
    ("producer", "CONFIG GET requirepass", false),
    ("enqueuer", "HSET tq:{work}:task:1-1 status PENDING", true),
    ("enqueuer", "SET tq:{work}:paused 1", false),
    ("enqueuer", "HSET tq:{join}:flow:x left 1", false),
    ("enqueuer", "HGET tq:{join}:flow:x:results 0", false),
    ("enqueuer", "XADD work:dead * a b", false),
    ("enqueuer", "XREADGROUP GROUP tqhost c STREAMS work >", false),
    ("enqueuer", "XACK work tqhost 1-1", false),
    ("enqueuer", "XDEL work 1-1", false),
    ("enqueuer", "EVAL x 0", false),
    ("enqueuer", "CONFIG GET requirepass", false),
    ("reader", "XRANGE work - +", true),
    ("reader", "XADD work * a b", false),
    ("reader", "XDEL work 1-1", false),
    ("reader", "HSET tq:{work}:task:1-1 status PENDING", false),
    ("reader", "SET tq:{work}:paused 1", false),
    ("reader", "EVALSHA x 1 work", false),
    ("reader", "EVAL x 0", false),
    ("reader", "GET team:1", false),
    ("reader", "GET tq:hosts:orders", false),
    ("reader", "GET tq:hosts:sessions", false),
    ("reader", "CONFIG GET requirepass", false),
    ("host", "HSET team:1 a b", true),
    ("host", "XADD someone:else * a b", false),
    ("host", "GET someone:else", false),
    ("host", "FLUSHALL", false),
    ("host", "KEYS *", false),
    ("host", "RENAME work items", false),
    ("host", "EVAL x 0", false),
    ("host", "CONFIG GET requirepass", false),
    ("host", "CONFIG SET save x", false),
    ("host", "ACL LIST", false),
    ("operator", "RENAME work items", true),
    ("operator", "CONFIG GET requirepass", false),
    ("operator", "XADD someone:else * a b", false),
    ("operator", "FLUSHALL", false),
    ("operator", "ACL LIST", false),
];

#[test]
fn each_role_is_refused_what_it_does_not_need() {
    let held = Held::new();
    let (mut bench, rules) = bench(&held);
    for (role, act, is_allowed) in ACTS {
        let words: Vec<&str> = act.split(' ').collect();
        let told: String = bench.redis("ACL", ("DRYRUN", role, words));
        assert_eq!(told == "OK", *is_allowed, "{role} {act}: {told}");
    }
    for role in rules.keys() {
        let is_refused = |(of, _, is_allowed): &&(&str, &str, bool)| of == role && !is_allowed;
        assert!(ACTS.iter().filter(is_refused).count() > 2, "{role}");
    }
}

#[test]
fn an_enqueuer_ends_a_lost_task_that_has_its_turn_or_keeps_no_status() {
    let held = Held::new();
    let (mut bench, _) = bench(&held);
    let (turn, brief) = (["enqueue", "turns", "of=a", "once=1"], ["enqueue", "brief", "n=1", "once=1"]);
    let roles = Roles { bench: &bench, held: &held };
    let lost = [&turn, &brief].map(|args| roles.enqueue(&args[1..]));
    bench.xadd("turns", &[("of", "a"), ("n", "next")]);
    claim_turns(&bench);
    assert_eq!(bench.places("turns"), Places { length: 1, pending: 1, delayed: 1, parked: 1, dead: 0 });
    assert_eq!(bench.redis::<u64>("DEL", ("turns", "brief")), 2);
    let roles = Roles { bench: &bench, held: &held };
    for (args, lost) in [&turn, &brief].iter().zip(&lost) {
        assert_ne!(&roles.enqueue(&args[1..]), lost, "the key is free");
    }
    assert_eq!(bench.status("turns", &lost[0], "status"), "FAILED");
    assert_eq!(bench.status("brief", &lost[1], "status"), "");
    let next: Vec<(String, Vec<String>)> = bench.redis("XRANGE", ("turns", "-", "+"));
    assert!(next.len() == 2 && next[0].1.contains(&"next".to_owned()), "the next one has its turn: {next:?}");
    nothing_was_refused(&mut bench);
}

#[test]
fn a_client_that_lacks_a_right_leaves_the_end_of_a_lost_task_to_a_host() {
    let held = Held::new();
    let (mut bench, rules) = bench(&held);
    // A program that enqueues and waits, without the rights that free turns and delete statuses.
    let enqueuer = ["SETUSER", "enqueuer", "-zrem", "-del"].map(str::to_owned);
    let _: () = bench.redis("ACL", [&enqueuer[..], &rules["reader"][2..]].concat());
    bench.tqhost(&["pause", "join"]).ok();
    let task = |queue: &str, key: &str| json!({ "queue": queue, "key": key, "fields": { "do": [] } });
    let host = Roles { bench: &bench, held: &held }.host();
    for (children, then) in [("part", "join"), ("join", "part")] {
        let calls = json!([["fan-out", [task(children, "child")], task(then, "last")]]);
        let flow = Roles { bench: &bench, held: &held }.enqueue(&["effects", &format!("do={calls}")]);
        bench.until("effects", &flow, "COMPLETED");
    }
    eventually("a last task and a child wait", || (bench.places("join").length == 2).then_some(()));
    host.stop();
    Roles { bench: &bench, held: &held }.enqueue(&["turns", "of=a", "--key", "turn"]);
    claim_turns(&bench);
    Roles { bench: &bench, held: &held }.enqueue(&["brief", "n=1", "--key", "brief"]);
    assert_eq!(bench.redis::<u64>("DEL", ("turns", "join", "brief")), 3);
    for (queue, key, end) in [
        ("turns", "turn", "FAILED"),
        ("join", "child", "FAILED"),
        ("join", "last", "FAILED"),
        // It keeps no statuses.
        ("brief", "brief", ""),
    ] {
        let lost: String = bench.redis("GET", format!("tq:{{{queue}}}:key:{key}"));
        let again = ["enqueue", queue, "n=1", "--key", key];
        assert_eq!(Roles { bench: &bench, held: &held }.enqueue(&again[1..]), lost, "a duplicate");
        assert_eq!(bench.status(queue, &lost, "status"), "PENDING", "nothing was written");
        let ran = Roles { bench: &bench, held: &held }.run("host", &again).ok();
        assert_ne!(ran.stdout.trim(), lost, "the key is free");
        assert_eq!(bench.status(queue, &lost, "status"), end);
    }
}

#[test]
fn a_client_that_may_not_read_a_flow_leaves_the_end_of_its_lost_child_to_a_host() {
    let held = Held::new();
    let (mut bench, _) = bench(&held);
    // With such wide patterns of keys, an enqueuer may change a flow. It has no right to HGETALL.
    let _: () = bench.redis("ACL", ("SETUSER", "enqueuer", "~tq:{part}:*", "~tq:{join}:*"));
    bench.tqhost(&["pause", "part"]).ok();
    let task = |queue: &str, key: &str| json!({ "queue": queue, "key": key, "fields": { "do": [] } });
    let host = Roles { bench: &bench, held: &held }.host();
    let calls = json!([["fan-out", [task("part", "child")], task("join", "last")]]);
    let flow = Roles { bench: &bench, held: &held }.enqueue(&["effects", &format!("do={calls}")]);
    bench.until("effects", &flow, "COMPLETED");
    eventually("the child waits", || (bench.places("part").length == 1).then_some(()));
    host.stop();
    let lost: String = bench.redis("GET", "tq:{part}:key:child");
    assert_eq!(bench.redis::<u64>("DEL", "part"), 1);
    let again = ["enqueue", "part", "n=1", "--key", "child"];
    assert_eq!(Roles { bench: &bench, held: &held }.enqueue(&again[1..]), lost, "a duplicate");
    assert_eq!(bench.status("part", &lost, "status"), "PENDING", "nothing was written");
    let ran = Roles { bench: &bench, held: &held }.run("host", &again).ok();
    assert_ne!(ran.stdout.trim(), lost, "the key is free");
    assert_eq!(bench.status("part", &lost, "status"), "FAILED");
    let last: Vec<(String, Vec<String>)> = bench.redis("XRANGE", ("join", "-", "+"));
    assert!(last.len() == 1 && last[0].1.contains(&"tq-flow-failed".to_owned()), "{last:?}");
    nothing_was_refused(&mut bench);
}

#[test]
fn an_enqueuer_needs_every_command_of_its_rule() {
    let held = Held::new();
    let (mut bench, rules) = bench(&held);
    let commands: Vec<String> =
        rules["enqueuer"].iter().filter(|word| word.starts_with('+')).cloned().collect();
    assert!(commands.len() > 10, "{commands:?}");
    for command in commands {
        let _: () = bench.redis("FLUSHALL", "SYNC");
        let _: () = bench.redis("SCRIPT", "FLUSH");
        let _: () = bench.redis("ACL", ("LOG", "RESET"));
        let without = command.replacen('+', "-", 1);
        let _: () = bench.redis("ACL", ("SETUSER", "enqueuer", &without));
        let keyed = [["work", "n=1", "once=1"], ["turns", "of=a", "once=2"], ["brief", "n=1", "once=3"]];
        let enqueue = |bench: &Bench, args: &[&str]| -> String {
            let ran = Roles { bench, held: &held }.run("enqueuer", &[&["enqueue"], args].concat());
            ran.stdout.split_whitespace().next().unwrap_or_default().to_owned()
        };
        let lost = keyed.map(|args| enqueue(&bench, &args));
        enqueue(&bench, &keyed[0]);
        enqueue(&bench, &["work", "n=1", "--delay", "1h"]);
        enqueue(&bench, &keyed[1]);
        bench.xadd("turns", &[("of", "a")]);
        claim_turns(&bench);
        // The tasks that have the keys are lost: their entries are gone. One of them has its turn.
        let _: u64 = bench.redis("DEL", ("work", "turns", "brief"));
        let again = keyed.map(|args| enqueue(&bench, &args));
        // Without a right that only some ends need, a lost task keeps its key, and Redis is not asked.
        let is_kept = lost.iter().zip(&again).any(|(lost, again)| !lost.is_empty() && lost == again);
        let log: Vec<HashMap<String, redis::Value>> = bench.redis("ACL", ("LOG", 50));
        assert!(is_kept || !log.is_empty(), "nothing needs {command}");
        let _: () = bench.redis("ACL", ("SETUSER", "enqueuer", &command));
    }
}
