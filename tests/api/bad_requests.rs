//! Requests that are wrong: each gets a problem with its status and code, which names what is wrong.

use std::collections::BTreeSet;

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
        (tasks, "", 400, "bad-request"),
        (tasks, "{", 400, "bad-request"),
        (tasks, "[]", 422, "invalid"),
        (tasks, "{}", 422, "invalid"),
        (tasks, "{\"fields\": {}}", 422, "invalid"),
        (tasks, "{\"fields\": []}", 422, "invalid"),
        (tasks, "{\"fields\": {\"tq-id\": \"x\"}}", 422, "invalid"),
        (tasks, "{\"fields\": {\"a\": {\"base64\": \"%\"}}}", 422, "invalid"),
        (tasks, "{\"fields\": {\"a\": 1}, \"delay\": \"5\"}", 422, "invalid"),
        (tasks, "{\"fields\": {\"a\": 1}, \"key\": \"\"}", 422, "invalid"),
        (tasks, "{\"fields\": {\"a\": 1}, \"dealy\": \"5s\"}", 422, "invalid"),
        ("/v1/queues/strict/tasks", "{\"fields\": {\"a\": 1}, \"delay\": \"5s\"}", 422, "invalid"),
        ("/v1/queues/work/tasks/cancel", "{}", 422, "invalid"),
        ("/v1/queues/work/tasks/cancel", "{\"all\": true, \"rate\": \"5/s\"}", 422, "invalid"),
        ("/v1/queues/work/tasks/cancel", "{\"all\": true, \"state\": \"dead\"}", 422, "invalid"),
        ("/v1/queues/work/tasks/cancel", "{\"all\": true, \"cursor\": \"x\"}", 422, "invalid"),
        ("/v1/queues/work/dead/requeue", "{\"all\": true, \"rate\": \"fast\"}", 422, "invalid"),
        ("/v1/queues/work/dead/requeue", "{\"all\": true, \"state\": \"queued\"}", 422, "invalid"),
        ("/v1/queues/work/dead/requeue", "{\"all\": true, \"reason\": \"x\"}", 422, "invalid"),
        ("/v1/queues/work/dead/purge", "{\"all\": true, \"rate\": \"5/s\"}", 422, "invalid"),
        ("/v1/queues/work/dead/purge", "{\"all\": true, \"ids\": [\"1\"]}", 422, "invalid"),
        ("/v1/queues/work/dead/purge", "{\"all\": 1}", 422, "invalid"),
        ("/v1/queues/none/dead/purge", "{\"all\": true}", 404, "unknown-queue"),
    ]
    .map(|(path, body, status, code)| {
        let answer = send(host.admin(), "POST", path, &[("content-type", "application/json")], Some(body));
        let path = path.trim_start_matches("/v1/queues/");
        format!("{path} `{body}`\n  {}\n", problem(&answer, status, code))
    });
    insta::assert_snapshot!(bodies.concat(), @"
    work/tasks ``
      Failed to parse the request body as JSON: EOF while parsing a value at line 1 column 0
    work/tasks `{`
      Failed to parse the request body as JSON: EOF while parsing an object at line 1 column 1
    work/tasks `[]`
      Failed to deserialize the JSON body into the target type: invalid type: sequence, expected a JSON \
        object at line 1 column 0
    work/tasks `{}`
      Failed to deserialize the JSON body into the target type: missing field `fields` at line 1 column \
        2
    work/tasks `{\"fields\": {}}`
      a task needs at least one field
    work/tasks `{\"fields\": []}`
      Failed to deserialize the JSON body into the target type: fields: invalid type: sequence, \
        expected an object with the task's fields at line 1 column 11
    work/tasks `{\"fields\": {\"tq-id\": \"x\"}}`
      field `tq-id`: names that start with `tq-` are reserved for tqhost
    work/tasks `{\"fields\": {\"a\": {\"base64\": \"%\"}}}`
      field \"a\": base64 cannot be read: Invalid symbol 37, offset 0.
    work/tasks `{\"fields\": {\"a\": 1}, \"delay\": \"5\"}`
      delay: \"5\" has no unit: write \"5s\"
    work/tasks `{\"fields\": {\"a\": 1}, \"key\": \"\"}`
      an idempotency key has at least one byte, this one is empty
    work/tasks `{\"fields\": {\"a\": 1}, \"dealy\": \"5s\"}`
      Failed to deserialize the JSON body into the target type: dealy: unknown field `dealy`, expected \
        one of `fields`, `delay`, `key` at line 1 column 28
    strict/tasks `{\"fields\": {\"a\": 1}, \"delay\": \"5s\"}`
      delay: the queue strict runs its tasks in a strict order (order = \"strict\"), so none can wait \
        while later ones run: enqueue it when it is due
    work/tasks/cancel `{}`
      send ids, or all: true, with filters if you like
    work/tasks/cancel `{\"all\": true, \"rate\": \"5/s\"}`
      rate: only requeue takes it
    work/tasks/cancel `{\"all\": true, \"state\": \"dead\"}`
      state: what has ended cannot be cancelled: send queued, delayed, held or running
    work/tasks/cancel `{\"all\": true, \"cursor\": \"x\"}`
      cursor: it is not one that this request gave: take `next` of the answer before, with the same \
        filters
    work/dead/requeue `{\"all\": true, \"rate\": \"fast\"}`
      rate: \"fast\" is not a rate: write a whole number from 1 to 1000000 and s, m or h, like \"100/s\"
    work/dead/requeue `{\"all\": true, \"state\": \"queued\"}`
      state: only cancel takes it
    work/dead/requeue `{\"all\": true, \"reason\": \"x\"}`
      reason: \"x\" is none of rejected, retries-exhausted, deferrals-exhausted, crashed, malformed, \
        flow-failed, expired, foreign, drained
    work/dead/purge `{\"all\": true, \"rate\": \"5/s\"}`
      rate: only requeue takes it
    work/dead/purge `{\"all\": true, \"ids\": [\"1\"]}`
      ids and all exclude each other: send one of them
    work/dead/purge `{\"all\": 1}`
      Failed to deserialize the JSON body into the target type: all: invalid type: integer `1`, \
        expected a boolean at line 1 column 9
    none/dead/purge `{\"all\": true}`
      no queue \"none\" is configured. Configured: work, strict
    ");
    let queries = [
        "/v1/queues/work/tasks",
        "/v1/queues/work/tasks?state=resting",
        "/v1/queues/work/tasks?state=queued&limit=0",
        "/v1/queues/work/tasks?state=queued&limit=501",
        "/v1/queues/work/tasks?state=queued&limit=many",
        "/v1/queues/work/tasks?state=queued&stat=x",
        "/v1/queues/work/tasks?state=queued&from=yesterday",
        "/v1/queues/work/tasks?state=queued&older_than=5",
        "/v1/queues/work/history?minutes=0",
        "/v1/queues/work/history?minutes=181",
        "/v1/queues/work/history?minutes=many",
        "/v1/queues/work/history?hours=1",
        "/v1/queues/work/dead?cursor=AAAA",
        "/v1/queues/work/dead?fields=perhaps",
        "/v1/queues/work/dead/groups?reason=tired",
        "/v1/queues/work/tasks?state=dead&reason=tired",
        "/v1/queues/work/dead/groups?by=colour",
        "/v1/queues/work/dead/groups?cursor=AAAA",
    ]
    .map(|path| {
        let told = problem(&ask(&host, "GET", path), 422, "invalid");
        format!("{}\n  {told}\n", path.trim_start_matches("/v1/queues/work/"))
    });
    insta::assert_snapshot!(queries.concat(), @"
    tasks
      Failed to deserialize query string: missing field `state`
    tasks?state=resting
      state: \"resting\" is none of queued, running, delayed, held, dead, ended
    tasks?state=queued&limit=0
      limit: 0 is not 1 to 500
    tasks?state=queued&limit=501
      limit: 501 is not 1 to 500
    tasks?state=queued&limit=many
      Failed to deserialize query string: limit: invalid digit found in string
    tasks?state=queued&stat=x
      Failed to deserialize query string: stat: unknown field `stat`, expected one of `state`, `limit`, \
        `cursor`, `fields`, `reason`, `where`, `text`, `error`, `version`, `host`, `id`, `from`, `to`, \
        `older_than`, `newer_than`
    tasks?state=queued&from=yesterday
      Failed to deserialize query string: from: invalid value: string \"yesterday\", expected \
        milliseconds since the Unix epoch, or a time like 2026-11-25T03:00:00Z
    tasks?state=queued&older_than=5
      older_than: \"5\" has no unit: write \"5s\"
    history?minutes=0
      minutes: 0 is not between 1 and 180
    history?minutes=181
      minutes: 181 is not between 1 and 180
    history?minutes=many
      Failed to deserialize query string: minutes: invalid digit found in string
    history?hours=1
      Failed to deserialize query string: hours: unknown field `hours`, expected `minutes` or `range`
    dead?cursor=AAAA
      cursor: it is not one that this request gave: take `next` of the answer before, with the same \
        filters
    dead?fields=perhaps
      Failed to deserialize query string: fields: provided string was not `true` or `false`
    dead/groups?reason=tired
      reason: \"tired\" is none of rejected, retries-exhausted, deferrals-exhausted, crashed, \
        malformed, flow-failed, expired, foreign, drained
    tasks?state=dead&reason=tired
      reason: \"tired\" is none of rejected, retries-exhausted, deferrals-exhausted, crashed, \
        malformed, flow-failed, expired, foreign, drained
    dead/groups?by=colour
      by: \"colour\" is none of cause, error, version, reason, hour
    dead/groups?cursor=AAAA
      cursor: it is not one that this request gave: take `next` of the answer before, with the same \
        filters
    ");
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
    let mut told = BTreeSet::new();
    for ((method, path), list) in paths.iter().flat_map(|path| lists.map(|list| (path, list))) {
        let method = method.to_uppercase();
        let answer = send(host.admin(), &method, path, &[("content-type", "application/json")], Some(list));
        told.insert(problem(&answer, 422, "invalid"));
    }
    insta::assert_snapshot!(
        Vec::from_iter(told).join("\n"),
        @"Failed to deserialize the JSON body into the target type: invalid type: sequence, expected a \
          JSON object at line 1 column 0"
    );
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
