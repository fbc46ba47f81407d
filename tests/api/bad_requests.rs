//! Requests that are wrong: each gets a problem with its status and code, which names what is wrong.

use serde_json::{Value, json};

use super::{ask, good, post, problem};
use crate::support::Bench;
use crate::support::dead_letters::add_dead;
use crate::support::http::send;

#[test]
fn the_fault_of_a_request_is_told() {
    let bench = Bench::new(
        "[queues.work]\nplugin = \"missing\"\n[queues.strict]\nplugin = \"missing\"\nmax_running = 1\n\
         order = \"strict\"\n",
    );
    let host = bench.host();
    let tasks = "/v1/queues/work/tasks";
    let bodies = [
        (tasks, "", 400, "bad-request", "EOF"),
        (tasks, "{", 400, "bad-request", "line 1"),
        (tasks, "[]", 422, "invalid", "expected a JSON object"),
        (tasks, "{}", 422, "invalid", "fields"),
        (tasks, "{\"fields\": {}}", 422, "invalid", "at least one field"),
        (tasks, "{\"fields\": []}", 422, "invalid", "object"),
        (tasks, "{\"fields\": {\"tq-id\": \"x\"}}", 422, "invalid", "tq-id"),
        (tasks, "{\"fields\": {\"a\": {\"base64\": \"%\"}}}", 422, "invalid", "\"a\""),
        (tasks, "{\"fields\": {\"a\": 1}, \"delay\": \"5\"}", 422, "invalid", "delay"),
        (tasks, "{\"fields\": {\"a\": 1}, \"key\": \"\"}", 422, "invalid", "empty"),
        (tasks, "{\"fields\": {\"a\": 1}, \"dealy\": \"5s\"}", 422, "invalid", "dealy"),
        ("/v1/queues/strict/tasks", "{\"fields\": {\"a\": 1}, \"delay\": \"5s\"}", 422, "invalid", "strict"),
        ("/v1/queues/work/tasks/cancel", "{}", 422, "invalid", "ids"),
        ("/v1/queues/work/tasks/cancel", "{\"all\": true, \"rate\": \"5/s\"}", 422, "invalid", "rate"),
        ("/v1/queues/work/tasks/cancel", "{\"all\": true, \"state\": \"dead\"}", 422, "invalid", "state"),
        ("/v1/queues/work/tasks/cancel", "{\"all\": true, \"cursor\": \"x\"}", 422, "invalid", "cursor"),
        ("/v1/queues/work/dead/requeue", "{\"all\": true, \"rate\": \"fast\"}", 422, "invalid", "rate"),
        ("/v1/queues/work/dead/requeue", "{\"all\": true, \"state\": \"queued\"}", 422, "invalid", "state"),
        ("/v1/queues/work/dead/requeue", "{\"all\": true, \"reason\": \"x\"}", 422, "invalid", "crashed"),
        ("/v1/queues/work/dead/purge", "{\"all\": true, \"rate\": \"5/s\"}", 422, "invalid", "rate"),
        ("/v1/queues/work/dead/purge", "{\"all\": true, \"ids\": [\"1\"]}", 422, "invalid", "exclude"),
        ("/v1/queues/work/dead/purge", "{\"all\": 1}", 422, "invalid", "boolean"),
        ("/v1/queues/none/dead/purge", "{\"all\": true}", 404, "unknown-queue", "none"),
    ];
    for (path, body, status, code, why) in bodies {
        let answer = send(host.admin(), "POST", path, &[("content-type", "application/json")], Some(body));
        let told = problem(&answer, status, code);
        assert!(told.contains(why), "{path} {body}: {told}");
    }
    let queries = [
        ("/v1/queues/work/tasks", "state"),
        ("/v1/queues/work/tasks?state=resting", "queued, running"),
        ("/v1/queues/work/tasks?state=queued&limit=0", "limit"),
        ("/v1/queues/work/tasks?state=queued&limit=501", "limit"),
        ("/v1/queues/work/tasks?state=queued&limit=many", "limit"),
        ("/v1/queues/work/tasks?state=queued&stat=x", "stat"),
        ("/v1/queues/work/tasks?state=queued&from=yesterday", "from"),
        ("/v1/queues/work/tasks?state=queued&older_than=5", "older_than"),
        ("/v1/queues/work/history?minutes=0", "minutes: 0 is not between 1 and 180"),
        ("/v1/queues/work/history?minutes=181", "minutes"),
        ("/v1/queues/work/history?minutes=many", "minutes"),
        ("/v1/queues/work/history?hours=1", "hours"),
        ("/v1/queues/work/dead?cursor=AAAA", "cursor"),
        ("/v1/queues/work/dead?fields=perhaps", "fields"),
        ("/v1/queues/work/dead/groups?reason=tired", "rejected, retries-exhausted"),
        ("/v1/queues/work/tasks?state=dead&reason=tired", "rejected, retries-exhausted"),
        ("/v1/queues/work/dead/groups?by=colour", "cause, error, version, reason, hour"),
        ("/v1/queues/work/dead/groups?cursor=AAAA", "cursor"),
    ];
    for (path, why) in queries {
        let told = problem(&ask(&host, "GET", path), 422, "invalid");
        assert!(told.contains(why), "{path}: {told}");
    }
    let plain = send(host.admin(), "POST", tasks, &[("content-type", "text/plain")], Some("{}"));
    problem(&plain, 415, "unsupported-media-type");
    problem(&ask(&host, "POST", tasks), 415, "unsupported-media-type");
    problem(&ask(&host, "GET", "/v1/nothing"), 404, "not-found");
    problem(&ask(&host, "GET", "/v1/queues/work/"), 404, "not-found");
    let answer = ask(&host, "PUT", "/v1/queues/work/pause");
    problem(&answer, 405, "method-not-allowed");
    assert_eq!(answer.header("allow"), Some("post"), "{answer:?}");
    problem(&ask(&host, "GET", "/v1/queues/%ff"), 400, "bad-request");
    let large = json!({ "fields": { "a": "x".repeat(4 << 20) } });
    problem(&post(&host, tasks, &large), 413, "too-large");
    let fits = json!({ "fields": { "a": "x".repeat(3 << 20) } });
    good(&post(&host, tasks, &fits), 202);
    host.stop();
}

/// The structs that serde derives can be read from a list: `[null, true]` would say `"all": true`.
#[test]
fn a_list_is_no_body_whatever_is_in_it() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    bench.xadd("work", &[("a", "1")]);
    add_dead(&mut bench, 0..3);
    let document = good(&ask(&host, "GET", "/v1/openapi.json"), 200);
    let paths = document["paths"].as_object().expect("paths").iter();
    let takes_body = |item: &Value, method: &str| !item[method]["requestBody"].is_null();
    let paths: Vec<(&str, String)> = paths
        .flat_map(|(path, item)| ["post", "put"].map(|method| (method, path, item)))
        .filter(|(method, _, item)| takes_body(item, method))
        .map(|(method, path, _)| {
            (
                method,
                path.replace("{queue}", "work").replace("{plugin}", "missing").replace("{id}", "paused:work"),
            )
        })
        .collect();
    assert_eq!(paths.len(), 12, "{paths:?}");
    let lists = [
        "[]",
        "[null, true]",
        "[[\"id-1\"]]",
        "[{\"a\": \"x\"}, null, null]",
        "[null, \"why\"]",
        "[{\"all\": true}]",
    ];
    for ((method, path), list) in paths.iter().flat_map(|path| lists.map(|list| (path, list))) {
        let method = method.to_uppercase();
        let answer = send(host.admin(), &method, path, &[("content-type", "application/json")], Some(list));
        let told = problem(&answer, 422, "invalid");
        assert!(told.contains("expected a JSON object"), "{path} {list}: {told}");
    }
    let places = bench.places("work");
    assert_eq!((places.length, places.dead), (1, 3), "nothing was done");
    host.stop();
}

#[test]
fn the_document_has_the_reasons_that_are_taken() {
    let bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    let told = problem(&ask(&host, "GET", "/v1/queues/work/dead?reason=tired"), 422, "invalid");
    let (_, known) = told.split_once(" is none of ").expect("the reasons");
    for reason in known.split(", ") {
        good(&ask(&host, "GET", &format!("/v1/queues/work/dead?reason={reason}")), 200);
    }
    let document = good(&ask(&host, "GET", "/v1/openapi.json"), 200);
    let pattern = json!(format!("^({})$", known.replace(", ", "|")));
    let body = &document["components"]["schemas"]["ManyBody"]["properties"]["reason"];
    assert_eq!(body["pattern"], pattern, "{body}");
    let parameters = document["paths"]["/v1/queues/{queue}/dead"]["get"]["parameters"].as_array();
    let parameter = parameters.expect("parameters").iter().find(|parameter| parameter["name"] == "reason");
    assert_eq!(parameter.expect("reason")["schema"]["pattern"], pattern);
    host.stop();
}

#[test]
fn an_id_of_any_kind_is_found_or_unknown() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    let odd = "a/b ?#%é\"\n\u{1f}";
    let escaped = "a%2Fb%20%3F%23%25%C3%A9%22%0A%1F";
    bench.redis::<String>("XADD", ("work", "*", "a", "1", "tq-id", odd));
    let task = good(&ask(&host, "GET", &format!("/v1/queues/work/tasks/{escaped}")), 200);
    assert_eq!((&task["id"], &task["status"]), (&json!(odd), &json!("PENDING")));
    let list = good(&ask(&host, "GET", &format!("/v1/queues/work/tasks?state=queued&id={escaped}")), 200);
    assert_eq!(list["tasks"][0]["id"], odd);
    assert_eq!(
        good(&ask(&host, "DELETE", &format!("/v1/queues/work/tasks/{escaped}")), 200)["before"],
        "PENDING"
    );
    assert_eq!(bench.redis::<u64>("XLEN", "work"), 0);
    host.stop();
}
