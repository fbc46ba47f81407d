//! The fields of tasks, as operators use them: the command line, the API and the pages take the same
//! conditions (`where`), and select, count and show the same tasks.
//!
//! Not here: what each condition means (`queue::condition` in the crate).

use serde_json::{Value, json};

use super::{Browser, encoded, job_done, matched, problem};
use crate::support::http::{self, Response};
use crate::support::words::text;
use crate::support::{Bench, Host};

/// The tasks of each tenant, and those of all.
const EACH: usize = 250;
const ALL: usize = 4 * EACH;

/// A flood of one tenant, between tasks of others whose names and texts are like its own.
fn flood() -> (Bench, Host) {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    let mut pipe = redis::pipe();
    for n in 0..ALL {
        let tenant = ["acme", "acme-labs", "beta", "gamma"][n % 4];
        let data = json!({ "user": { "id": n }, "to": "sales@acme.example" }).to_string();
        let mail = "sales@acme.example";
        let fields = [("tenant", tenant), ("mail", mail), ("data", &data)];
        pipe.cmd("XADD").arg("work").arg("*").arg(&fields).ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("add tasks");
    (bench, host)
}

/// How many tasks of each tenant are left, in the order of [`flood`].
fn left(bench: &mut Bench) -> [usize; 4] {
    let entries: Vec<(String, Vec<String>)> = bench.redis("XRANGE", ("work", "-", "+"));
    ["acme", "acme-labs", "beta", "gamma"]
        .map(|tenant| entries.iter().filter(|(_, fields)| fields[1] == tenant).count())
}

fn post(host: &Host, path: &str, body: &Value) -> Response {
    let headers = [("content-type", "application/json")];
    http::send(host.admin(), "POST", path, &headers, Some(&body.to_string()))
}

/// A query with these conditions.
fn query(conditions: &[&str]) -> String {
    encoded(&conditions.iter().map(|condition| ("where", *condition)).collect::<Vec<_>>())
}

#[test]
fn a_tenants_flood_is_cancelled_and_no_task_of_others() {
    let (mut bench, host) = flood();
    let browser = Browser::new(&host);
    let cases: [(&[&str], usize); 6] = [
        (&["tenant=acme"], EACH),
        (&["tenant=acme*"], 2 * EACH),
        (&["tenant=acme*", "tenant!=acme"], EACH),
        (&["tenant!=acme*"], 2 * EACH),
        (&["data/user/id=7", "mail=*"], 1),
        (&["tenant=acme", "data/user/id=7"], 0),
    ];
    for (conditions, count) in cases {
        let options: Vec<&str> = conditions.iter().flat_map(|condition| ["--where", condition]).collect();
        let run = |command: &[&str]| bench.tqhost(&[command, &options, &["--json"]].concat()).ok().json();
        for command in [&["cancel", "work", "--all", "--dry-run"][..], &["drain", "work", "--dry-run"]] {
            assert_eq!(run(command)["succeeded"], count, "{command:?} {conditions:?}");
        }
        let listed = run(&["tasks", "work", "--limit", "1000"]);
        assert_eq!(listed["tasks"].as_array().map(Vec::len), Some(count), "{conditions:?}");
        let body = json!({ "all": true, "dry_run": true, "where": conditions });
        for path in ["tasks/cancel", "drain"] {
            let counted = post(&host, &format!("/v1/queues/work/{path}"), &body).json();
            assert_eq!(counted["succeeded"], count, "{path} {conditions:?}: {counted}");
        }
        let path = format!("/v1/queues/work/tasks?state=queued&limit=500&{}", query(conditions));
        let listed = host.get(&path).json();
        assert_eq!(listed["tasks"].as_array().map(Vec::len), Some(count), "{conditions:?}: {listed}");
        let page = browser.page(&format!("/queues/work/drain?{}", query(conditions)));
        assert_eq!(matched(&page), count, "{conditions:?}: {page}");
        for condition in conditions {
            assert!(page.contains(&format!("value=\"{condition}\"")), "{condition}: {page}");
        }
    }
    // A sample tells what would be cancelled.
    let body = json!({ "all": true, "dry_run": true, "where": ["tenant=acme"] });
    let counted = post(&host, "/v1/queues/work/drain", &body).json();
    let sample = counted["sample"].as_array().expect("a sample");
    assert!(sample.len() == 5 && sample.iter().all(|task| task["fields"][0]["value"] == "acme"), "{counted}");
    let page = text(&browser.page(&format!("/queues/work/drain?{}", query(&["tenant=acme"]))));
    assert_eq!(page.matches("tenant=acme ").count(), 5, "{page}");
    let page = browser.page(&format!("/queues/work?{}", query(&["tenant=acme"])));
    assert!(page.contains("href=\"/queues/work/drain?where=tenant%3Dacme\""), "{page}");
    // Each of the three cancels exactly those that it counted.
    let cancel = ["cancel", "work", "--all", "--where", "tenant=acme", "--yes", "--json"];
    assert_eq!(bench.tqhost(&cancel).ok().json()["succeeded"], EACH);
    assert_eq!(left(&mut bench), [0, EACH, EACH, EACH]);
    let page = browser.page(&format!("/queues/work/drain?{}", query(&["tenant=acme*", "tenant!=acme"])));
    let (job, _) = job_done(&browser, &browser.press(&page, "/queues/work/drain", &[]));
    assert_eq!(job["done"], EACH, "{job}");
    assert_eq!(left(&mut bench), [0, 0, EACH, EACH]);
    let audit = host.until_logged("audit: a change was asked for", cases.len() * 2 + 2);
    let last = audit.last().expect("a line");
    assert_eq!(last["filter"], "{\"where\":[\"tenant=acme*\",\"tenant!=acme\"]}");
    let body = json!({ "all": true, "where": ["mail=sales@acme.example", "tenant!=gamma"] });
    assert_eq!(post(&host, "/v1/queues/work/tasks/cancel", &body).json()["succeeded"], EACH);
    assert_eq!(left(&mut bench), [0, 0, 0, EACH]);
    host.stop();
}

#[test]
fn dead_letters_of_one_tenant_are_found_requeued_and_deleted() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    for (n, tenant) in ["acme", "acme-labs", "acme", "beta"].into_iter().enumerate() {
        let id = format!("id-{n}");
        let fields = [("tenant", tenant), ("tq-id", &id), ("tq-reason", "rejected"), ("tq-error", "acme")];
        bench.xadd("tq:{work}:dead", &fields);
    }
    let host = bench.host();
    let of_acme = |command: &[&str]| {
        bench.tqhost(&[command, &["--where", "tenant=acme", "--json"]].concat()).ok().json()
    };
    assert_eq!(of_acme(&["dead", "list", "work"])["matching"], 2);
    assert_eq!(of_acme(&["dead", "list", "work", "--by", "error"])["matching"], 2);
    assert_eq!(of_acme(&["tasks", "work", "--state", "dead"])["tasks"].as_array().map(Vec::len), Some(2));
    let conditions = query(&["tenant=acme"]);
    for (path, name, count) in
        [("dead?", "dead", 2), ("dead/groups?", "groups", 1), ("tasks?state=dead&", "tasks", 2)]
    {
        let list = host.get(&format!("/v1/queues/work/{path}{conditions}")).json();
        assert_eq!(list[name].as_array().map(Vec::len), Some(count), "{list}");
    }
    let browser = Browser::new(&host);
    let page = browser.page(&format!("/queues/work/dead?{conditions}"));
    assert_eq!(page.matches("name=\"task\"").count(), 2, "{page}");
    let export = browser.get(&format!("/queues/work/dead/export?{conditions}"));
    assert!(export.body.contains("\"letters\":2"), "{export:?}");
    let page = browser.page(&format!("/queues/work/dead/confirm?what=purge&{conditions}"));
    assert_eq!(matched(&page), 2, "{page}");
    assert_eq!(of_acme(&["dead", "requeue", "work", "--all"])["succeeded"], 2);
    assert_eq!(of_acme(&["dead", "purge", "work", "--all", "--yes"])["succeeded"], 0);
    assert_eq!(bench.redis::<u64>("XLEN", "tq:{work}:dead"), 2);
    host.stop();
}

#[test]
fn a_condition_that_cannot_be_read_or_is_about_a_hidden_field_is_refused() {
    let mut bench = Bench::new("");
    let redis = bench.redis.port;
    bench.configure(&format!(
        "[queues.work]\nplugin = \"missing\"\n[redis]\nurl = \"redis://127.0.0.1:{redis}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\nmask = [\"email\"]\n"
    ));
    bench.xadd("work", &[("email", "ada@lovelace"), ("tenant", "acme")]);
    let host = bench.host();
    let browser = Browser::new(&host);
    let told = |answer: &Response| {
        assert_eq!(answer.status, 422, "{answer:?}");
        answer.json()["detail"].as_str().expect("a detail").to_owned()
    };
    let mut reasons = Vec::new();
    for condition in ["tenant", "Email=ada*", "data/user/email!=a"] {
        let query = query(&["tenant=acme", condition]);
        let why = told(&host.get(&format!("/v1/queues/work/dead?{query}")));
        let commands: [&[&str]; 6] = [
            &["tasks", "work"],
            &["dead", "list", "work"],
            &["cancel", "work", "--all", "--yes"],
            &["drain", "work", "--yes"],
            &["dead", "requeue", "work", "--all"],
            &["dead", "purge", "work", "--all", "--yes"],
        ];
        for command in commands {
            let ran = bench.tqhost(&[command, &["--where", condition]].concat());
            assert!(ran.code == 2 && ran.stderr.contains(&why), "{command:?}: {ran:?}");
        }
        if let Some((field, _)) = condition.split_once(['!', '=']) {
            let why = told(&host.get(&format!("/v1/queues/work/groups?state=queued&by={field}")));
            let ran = bench.tqhost(&["tasks", "work", "--by", field]);
            assert!(ran.code == 2 && ran.stderr.contains(&why), "{ran:?}");
            reasons.push(why);
        }
        for path in ["tasks?state=queued&", "dead/groups?"] {
            assert_eq!(told(&host.get(&format!("/v1/queues/work/{path}{query}"))), why, "{path}");
        }
        for path in ["tasks/cancel", "drain", "dead/requeue", "dead/purge"] {
            let body = json!({ "all": true, "where": [condition] });
            assert_eq!(told(&post(&host, &format!("/v1/queues/work/{path}"), &body)), why, "{path}");
        }
        for page in ["", "/dead", "/drain", "/dead/confirm"] {
            let answer = browser.get(&format!("/queues/work{page}?what=purge&{query}"));
            assert_eq!(problem(&answer), format!("422 {why}"), "{page}");
        }
        reasons.push(why);
    }
    insta::assert_snapshot!(reasons.join("\n"), @r#"
    where: "tenant" is no condition: write tenant=acme, tenant!=acme or tenant=acme*
    by: "Email": Email is hidden by mask in [admin], and a filter would tell its values
    where: "Email=ada*": Email is hidden by mask in [admin], and a filter would tell its values
    by: "data/user/email": email is hidden by mask in [admin], and a filter would tell its values
    where: "data/user/email!=a": email is hidden by mask in [admin], and a filter would tell its values
    "#);
    // A body takes a list only, and a query any number of them up to 16.
    let body = json!({ "all": true, "where": "tenant=acme" });
    assert_eq!(post(&host, "/v1/queues/work/drain", &body).status, 422);
    let list = |count| host.get(&format!("/v1/queues/work/dead?{}", query(&vec!["tenant=acme"; count])));
    assert_eq!((list(16).status, list(17).status), (200, 422));
    assert_eq!(bench.places("work").length, 1);
    host.stop();
}

#[test]
fn each_question_shows_some_of_the_tasks_without_hidden_values() {
    let mut bench = Bench::new("");
    let redis = bench.redis.port;
    bench.configure(&format!(
        "[queues.work]\nplugin = \"missing\"\nid = {{ field = \"order\" }}\n\
         [redis]\nurl = \"redis://127.0.0.1:{redis}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\nmask = [\"email\"]\n"
    ));
    let (long, body) = ("x".repeat(200), json!({ "email": "ada@lovelace", "n": 1 }).to_string());
    for n in 0..7 {
        let (order, id) = (format!("order-{n}"), format!("dead-{n}"));
        let fields = [("order", &*order), ("email", "ada@lovelace"), ("body", &body), ("long", &long)];
        bench.xadd("work", &fields);
        bench.xadd("tq:{work}:dead", &[&fields[..], &[("tq-id", &id), ("tq-reason", "rejected")]].concat());
    }
    let host = bench.host();
    let sample = |path: &str, more: Value| -> Value {
        let mut body = json!({ "all": true, "dry_run": true });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        post(&host, &format!("/v1/queues/work/{path}"), &body).json()["sample"].take()
    };
    for path in ["tasks/cancel", "drain", "dead/requeue", "dead/purge"] {
        let tasks = sample(path, json!({}));
        let tasks = tasks.as_array().unwrap_or_else(|| panic!("{path}: {tasks}"));
        let aliases: Vec<&Value> = tasks.iter().map(|task| &task["alias"]).collect();
        assert_eq!(aliases, ["order-0", "order-1", "order-2", "order-3", "order-4"], "{path}");
        let fields = json!([
            { "name": "order", "value": "order-0" },
            { "name": "email", "value": "[masked]" },
            { "name": "body", "value": "{\"email\":\"[masked]\",\"n\":1}" },
            { "name": "long", "value": format!("{}…", &long[..80]) },
        ]);
        assert_eq!(tasks[0]["fields"], fields, "{path}");
        assert_eq!(sample(path, json!({ "text": "nothing like this" })), json!([]), "{path}");
        assert_eq!(sample(path, json!({ "where": ["order=order-6"] }))[0]["alias"], "order-6", "{path}");
    }
    let browser = Browser::new(&host);
    for (page, orders) in [
        ("drain", 0..5),
        ("drain?where=order%3D*", 0..5),
        ("dead/confirm?what=requeue", 0..5),
        ("dead/confirm?what=purge", 0..5),
        ("dead/confirm?what=purge&where=order%3D*", 0..5),
    ] {
        let page = browser.page(&format!("/queues/work/{page}"));
        let shown = text(&page);
        for n in 0..7 {
            let is_shown = shown.contains(&format!("order=order-{n} email=[masked]"));
            assert_eq!(is_shown, orders.contains(&n), "{n}: {shown}");
        }
        assert!(!page.contains("ada@lovelace") && page.contains("href=\"/queues/work/tasks/"), "{page}");
    }
    host.stop();
}

#[test]
fn tasks_are_counted_by_a_field() {
    let (mut bench, host) = flood();
    bench.xadd("work", &[("mail", "x")]);
    let run = |args: &[&str]| bench.tqhost(&[&["tasks", "work"], args].concat());
    let counted = run(&["--by", "tenant", "--json"]).ok().json();
    assert_eq!(counted, host.get("/v1/queues/work/groups?state=queued&by=tenant&limit=50").json());
    let groups = counted["groups"].as_array().expect("groups");
    let counts = |value: &Value| groups.iter().find(|group| group["value"] == *value).map(|it| &it["count"]);
    for tenant in ["acme", "acme-labs", "beta", "gamma"] {
        assert_eq!(counts(&json!(tenant)), Some(&json!(EACH)), "{counted}");
    }
    assert_eq!((groups.len(), counts(&Value::Null)), (5, Some(&json!(1))), "{counted}");
    assert_eq!(groups[4]["value"], Value::Null, "the fewest come last: {counted}");
    let sums = ["matching", "examined", "others", "more_groups"].map(|name| counted[name].as_u64());
    assert_eq!((sums, &counted["by"]), ([Some(1001), Some(1001), Some(0), Some(0)], &json!("tenant")));

    let table = run(&["--by", "tenant", "--where", "tenant=acme*", "--where", "tenant!=acme"]).ok().stdout;
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        (&rows[0][..2], &rows[1][..2]),
        (&["VALUE", "COUNT"][..], &["acme-labs", "250"][..]),
        "{table}"
    );
    // A place in JSON has a value for each task, of which the first ones are shown.
    let by_id = run(&["--by", "data/user/id", "--limit", "10"]).ok().stdout;
    let ends = [&table, &by_id].map(|shown| shown.lines().last().unwrap_or_default());
    insta::assert_snapshot!(ends.join("\n"), @"
    250 of 1001 queued tasks.
    1001 of 1001 queued tasks. 991 of them are in 990 smaller groups; --limit shows more.
    ");
    let refused = [&["--by", ""][..], &["--by", "tenant", "--state", "ended"]].map(|args| {
        let ran = run(args);
        format!("{} {}", ran.code, ran.stderr)
    });
    insta::assert_snapshot!(refused.concat(), @r#"
    2 tqhost: --by: "": it names no field
    2 tqhost: state: the fields of ended tasks are not known
    "#);
    host.stop();
}

#[test]
fn lists_have_the_columns_that_a_queue_names() {
    let mut bench = Bench::new("");
    let redis = bench.redis.port;
    bench.configure(&format!(
        "[queues.work]\nplugin = \"missing\"\nshow = [\"tenant\", \"data/user/id\", \"email\"]\n\
         [redis]\nurl = \"redis://127.0.0.1:{redis}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\nmask = [\"email\"]\n"
    ));
    let data = json!({ "user": { "id": 7 } }).to_string();
    let fields = [("tenant", "acme"), ("data", &*data), ("email", "ada@lovelace")];
    bench.xadd("work", &fields);
    bench.xadd("work", &[("other", "x")]);
    bench.xadd("tq:{work}:dead", &[&fields[..], &[("tq-id", "1"), ("tq-reason", "rejected")]].concat());
    let host = bench.host();
    let rows = |args: &[&str]| -> Vec<Vec<String>> {
        let table = bench.tqhost(args).ok().stdout;
        table.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let tasks = rows(&["tasks", "work"]);
    assert_eq!(tasks[0][2..5], ["tenant", "data/user/id", "email"], "{tasks:?}");
    assert_eq!(tasks[1][2..5], ["acme", "7", "[masked]"], "{tasks:?}");
    assert_eq!(tasks[2][2..5], ["–", "–", "–"], "{tasks:?}");
    let dead = rows(&["dead", "list", "work"]);
    assert_eq!(
        (&dead[0][2..4], &dead[1][2..5]),
        (&["tenant", "data/user/id"].map(String::from)[..], &["acme", "7", "[masked]"].map(String::from)[..]),
        "{dead:?}"
    );
    let browser = Browser::new(&host);
    for path in ["/queues/work", "/queues/work?state=dead", "/queues/work/dead"] {
        let page = browser.page(path);
        for part in ["<th scope=\"col\">tenant</th>", "<th scope=\"col\">data/user/id</th>"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        let masked = "<td><bdi class=\"data\">[masked]</bdi></td>";
        assert!(page.contains(masked), "{page}");
        for (field, value) in [("tenant", "acme"), ("data%2Fuser%2Fid", "7")] {
            let of = if path.ends_with("work") { "drain" } else { "dead" };
            let place = format!("/queues/work/{of}?where={field}%3D{value}");
            let link = format!("<td><a href=\"{place}\"><bdi class=\"data\">{value}</bdi></a></td>");
            assert!(page.contains(&link), "{link}: {page}");
            // The page is of the tasks with this value, and has the button for them.
            let page = browser.page(&place);
            let button = if of == "drain" {
                "name=\"matched\" value=\"1\""
            } else {
                "name=\"what\" value=\"requeue\""
            };
            assert!(page.contains(button), "{place}: {page}");
        }
        assert!(!page.contains("ada@"), "{page}");
    }
    host.stop();
}
