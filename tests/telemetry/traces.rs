//! The spans of a task's way, and how they hang together.

use serde_json::{Value, json};

use super::collector::{Collector, Seen};
use super::{ABOVE, SPAN, TRACE, with};
use crate::support::web::Web;
use crate::support::{Bench, eventually, http};

/// The kinds of spans, as OTLP numbers them.
const INTERNAL: i32 = 1;
const CLIENT: i32 = 3;
const PRODUCER: i32 = 4;
const CONSUMER: i32 = 5;

/// A queue `one` whose tasks enqueue to `two`, which makes requests and tells `ended` of its ends.
fn chain(web: &Web) -> String {
    format!(
        "[defaults]\nbackoff = \"none\"\n[queues.one]\nplugin = \"effects\"\nenqueue_to = [\"two\"]\n\
         [queues.two]\nplugin = \"fetches\"\non_end = \"ended\"\n[queues.ended]\nplugin = \"echo\"\n\
         [plugins.fetches]\nallowed_hosts = [\"{}\"]\n",
        web.origin()
    )
}

fn bench(queues: &str) -> Bench {
    let bench = Bench::new(queues);
    for guest in ["effects", "fetches", "echo", "fails-twice", "rejects"] {
        bench.install(guest, guest);
    }
    bench
}

/// Enqueues a task whose handler enqueues another one, which requests `/echo`. Gives the head of that
/// request, and the result of the task that was told of the end.
fn run_chain(bench: &mut Bench, web: &Web, traceparent: Option<&str>) -> (String, Value) {
    let url = format!("{}/echo", web.origin());
    let calls = json!([["enqueue", { "queue": "two", "fields": { "url": url } }]]).to_string();
    let mut fields = vec![("do", calls.as_str())];
    fields.extend(traceparent.map(|context| ("traceparent", context)));
    let first = bench.xadd("one", &fields);
    bench.until("one", &first, "COMPLETED");
    let seen: Value = serde_json::from_str(&bench.status("one", &first, "result")).expect("JSON");
    let second = seen[0].as_str().expect("an id").to_owned();
    bench.until("two", &second, "COMPLETED");
    let head: Value = serde_json::from_str(&bench.status("two", &second, "result")).expect("JSON");
    let told = eventually("the end is told", || {
        let keys: Vec<String> = bench.redis("KEYS", "tq:{ended}:task:*");
        let result: Option<String> = bench.redis("HGET", (keys.first()?, "result"));
        result
    });
    (head["body"].as_str().expect("a head").to_owned(), serde_json::from_str(&told).expect("JSON"))
}

/// The value of `traceparent` in the head of a request.
fn header(head: &str) -> Option<&str> {
    head.lines().find_map(|line| line.strip_prefix("traceparent: "))
}

fn context(span: &Seen) -> String {
    format!("00-{}-{}-01", span.trace, span.span)
}

#[test]
fn one_trace_leads_from_the_producer_through_two_queues_to_the_request_of_a_handler() {
    let (collector, web) = (Collector::start(), Web::start());
    let mut bench = bench(&with(&collector, &chain(&web)));
    let host = bench.host();
    let (head, told) = run_chain(&mut bench, &web, Some(ABOVE));
    let [one, two, ended, request] =
        ["run one", "run two", "run ended", "GET"].map(|name| collector.span(name));
    let parents = [(&one, SPAN), (&two, &one.span), (&request, &two.span), (&ended, &two.span)];
    for (span, parent) in parents {
        assert_eq!((span.trace.as_str(), span.parent.as_str()), (TRACE, parent), "{span:?}");
        assert_eq!((span.service.as_str(), &span.error), ("tqhost", &None), "{span:?}");
    }
    assert_eq!([&one, &two, &ended, &request].map(|span| span.kind), [CONSUMER, CONSUMER, CONSUMER, CLIENT]);
    for (queue, run) in [("one", &one), ("two", &two), ("ended", &ended)] {
        let wait = collector.span(&format!("wait {queue}"));
        assert_eq!((wait.kind, &wait.parent, wait.times.1), (INTERNAL, &run.parent, run.times.0));
        let attributes = [
            ("messaging.system", "tqhost"),
            ("messaging.destination.name", queue),
            ("messaging.operation.type", "process"),
            ("tqhost.attempt", "1"),
            ("tqhost.outcome", "completed"),
        ];
        for (name, value) in attributes {
            assert_eq!(run.attributes[name], value, "{run:?}");
        }
    }
    // The application and the last queue got the names of spans that the collector has.
    assert_eq!(header(&head), Some(context(&request).as_str()), "{head}");
    assert_eq!(told["traceparent"], context(&two));
    assert_eq!(request.attributes["http.response.status_code"], "200");
    assert_eq!(request.attributes["server.port"], web.port.to_string());
    host.until_metric("tqhost_trace_spans_total{result=\"sent\"}", 7);
    host.stop();
}

#[test]
fn without_a_collector_a_context_goes_on_as_it_is() {
    let web = Web::start();
    let mut bench = bench(&chain(&web));
    let host = bench.host();
    let (head, told) = run_chain(&mut bench, &web, Some(ABOVE));
    assert_eq!((header(&head), &told["traceparent"]), (Some(ABOVE), &json!(ABOVE)));
    host.stop();
}

#[test]
fn the_beginner_of_a_trace_decides_whether_it_is_sent() {
    let (collector, web) = (Collector::start(), Web::start());
    let mut bench = bench(&(with(&collector, &chain(&web)) + "sample = 0\n"));
    let host = bench.host();
    let (head, told) = run_chain(&mut bench, &web, None);
    let begun = header(&head).expect("a context");
    assert!(begun.ends_with("-00"), "{begun}");
    assert_eq!(told["traceparent"], begun);
    // This one has a span, so it comes after all that might have come before.
    let id = bench.xadd("ended", &[("traceparent", ABOVE)]);
    bench.until("ended", &id, "COMPLETED");
    collector.span("run ended");
    let names: Vec<String> = collector.spans().into_iter().map(|span| span.name).collect();
    assert_eq!(names, ["wait ended", "run ended"]);
    host.stop();
}

#[test]
fn traces_over_the_bound_are_left_out_as_a_whole() {
    const TASKS: usize = 200;
    let collector = Collector::start();
    let queues = "[queues.work]\nplugin = \"effects\"\nenqueue_to = [\"part\"]\n\
         [queues.part]\nplugin = \"effects\"\n";
    let mut bench = bench(&(with(&collector, queues) + "max_traces = 1\n"));
    let calls = json!([["enqueue", { "queue": "part", "fields": { "do": [["fence"]] } }]]).to_string();
    let ids: Vec<String> = (0..TASKS).map(|_| bench.xadd("work", &[("do", calls.as_str())])).collect();
    let host = bench.host();
    bench.all_done("work", &ids);
    // The tasks of `part` go on with these traces, so all traces are counted now.
    let left_out = host.metric("tqhost_traces_left_out_total") as usize;
    assert!((1..TASKS).contains(&left_out), "{left_out} traces are left out: is it one in a second?");
    // This producer has decided.
    let own = bench.xadd("work", &[("do", calls.as_str()), ("traceparent", ABOVE)]);
    bench.until("work", &own, "COMPLETED");
    bench.until_drained("part");
    let sent = TASKS - left_out + 1;
    collector.until("run part", sent);
    host.stop();
    let (runs, parts) = (collector.until("run work", sent), collector.until("run part", sent));
    assert_eq!((runs.len(), parts.len()), (sent, sent));
    assert!(runs.iter().any(|run| run.trace == TRACE));
    for run in &runs {
        assert!(parts.iter().any(|part| part.trace == run.trace && part.parent == run.span), "{run:?}");
    }
}

#[test]
fn commands_and_the_api_begin_a_span_and_retries_link_to_the_attempt_before() {
    let collector = Collector::start();
    let queues = "[queues.work]\nplugin = \"fails-twice\"\nbackoff = \"none\"\nmax_retries = 2\n";
    let mut bench = bench(&with(&collector, queues));
    let host = bench.host();
    let ran = bench.tqhost(&["enqueue", "work", "a=1", "--traceparent", ABOVE]).ok();
    bench.until("work", ran.stdout.trim(), "COMPLETED");
    let enqueued = collector.span("enqueue work");
    assert_eq!((enqueued.kind, enqueued.parent.as_str()), (PRODUCER, SPAN));
    assert_eq!(enqueued.attributes["messaging.message.id"], ran.stdout.trim());
    let runs = collector.until("run work", 3);
    let links: Vec<&[String]> = runs.iter().map(|run| run.links.as_slice()).collect();
    assert_eq!(links, [&[][..], &[runs[0].span.clone()], &[runs[1].span.clone()]]);
    let outcomes: Vec<_> = runs.iter().map(|run| run.attributes["tqhost.outcome"].as_str()).collect();
    assert_eq!(outcomes, ["retry", "retry", "completed"]);
    assert!(runs[0].error.is_some() && runs[2].error.is_none(), "{runs:?}");
    for run in &runs {
        assert_eq!((run.trace.as_str(), &run.parent), (TRACE, &enqueued.span), "{run:?}");
    }
    let wrong = bench.tqhost(&["enqueue", "work", "a=1", "--traceparent", "00-1-2-3"]).ends_with(2);
    insta::assert_snapshot!(
        wrong.stderr.lines().next().unwrap_or_default(),
        @"error: invalid value '00-1-2-3' for '--traceparent <CONTEXT>': not a W3C trace context: write it \
          like 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    );

    // A task of the API begins below the caller's span. Its own field comes first.
    for (fields, header, parent) in [
        (json!({ "a": "1" }), ABOVE.replace(SPAN, "00000000000000aa"), "00000000000000aa"),
        (json!({ "traceparent": ABOVE.replace(SPAN, "00000000000000bb") }), ABOVE.into(), "00000000000000bb"),
    ] {
        let headers = [("content-type", "application/json"), ("traceparent", header.as_str())];
        let body = json!({ "fields": fields }).to_string();
        let answer = http::send(host.admin(), "POST", "/v1/queues/work/tasks", &headers, Some(&body));
        assert_eq!(answer.status, 202, "{answer:?}");
        let id = answer.json()["id"].as_str().expect("an id").to_owned();
        bench.until("work", &id, "COMPLETED");
        let enqueued = eventually("the span of its enqueueing", || {
            let of_task = |span: &Seen| span.attributes.get("messaging.message.id") == Some(&id);
            collector.spans().into_iter().find(|span| span.name == "enqueue work" && of_task(span))
        });
        assert_eq!(enqueued.parent, parent);
    }
    host.stop();
}

#[test]
fn a_requeued_task_goes_on_with_its_trace_and_who_is_told_of_its_death_stands_below_it() {
    let collector = Collector::start();
    let queues = "[queues.work]\nplugin = \"rejects\"\non_end = { dead = \"told\", fields = [\"a\"] }\n\
         [queues.told]\nplugin = \"echo\"\n";
    let mut bench = bench(&with(&collector, queues));
    let host = bench.host();
    let id = bench.xadd("work", &[("a", "1")]);
    bench.until("work", &id, "FAILED");
    let (run, told) = (collector.span("run work"), collector.span("run told"));
    assert_eq!((&told.trace, &told.parent), (&run.trace, &run.span));
    bench.tqhost(&["dead", "requeue", "work", &id]).ok();
    let runs = collector.until("run work", 2);
    assert_eq!((runs[0].parent.as_str(), &runs[1].parent), ("", &runs[0].span), "{runs:?}");
    assert_eq!((&runs[0].trace, &runs[1].links), (&runs[1].trace, &vec![runs[0].span.clone()]));
    assert_eq!(collector.until("wait work", 2)[0].parent, runs[0].span);
    host.stop();
}

#[test]
fn the_tasks_of_a_flow_stand_below_the_run_that_made_them() {
    let collector = Collector::start();
    let queues = "[queues.work]\nplugin = \"effects\"\nenqueue_to = [\"part\", \"join\"]\n\
         [queues.part]\nplugin = \"effects\"\n[queues.join]\nplugin = \"effects\"\n";
    let mut bench = bench(&with(&collector, queues));
    let host = bench.host();
    let own = ABOVE.replace(SPAN, "00000000000000aa");
    let children = json!([
        { "queue": "part", "fields": { "do": [["fence"]] } },
        { "queue": "part", "fields": { "do": [["fence"]], "traceparent": own } },
    ]);
    let calls = json!([["fan-out", children, { "queue": "join", "fields": { "do": [["results"]] } }]]);
    bench.xadd("work", &[("do", &calls.to_string()), ("traceparent", ABOVE)]);
    let join = collector.span("run join");
    let work = collector.span("run work");
    let parents: Vec<String> = collector.until("run part", 2).into_iter().map(|span| span.parent).collect();
    assert!(parents.contains(&work.span) && parents.contains(&"00000000000000aa".to_owned()), "{parents:?}");
    assert_eq!((join.trace.as_str(), join.parent), (TRACE, work.span));
    host.stop();
}

/// A flow of children in two queues, one of which completes at its third attempt. So does the last task.
const FLOW: &str = "[defaults]\nbackoff = \"none\"\nmax_retries = 2\n\
     [queues.work]\nplugin = \"effects\"\nenqueue_to = [\"part\", \"flaky\", \"join\"]\n\
     [queues.part]\nplugin = \"effects\"\n[queues.flaky]\nplugin = \"fails-twice\"\n\
     [queues.join]\nplugin = \"fails-twice\"\n";

/// Enqueues the task that makes the flow, and waits until the last task has completed. Gives the id of that.
fn run_flow(bench: &mut Bench) -> String {
    let (other, quiet) = (ABOVE.replace('4', "5"), ABOVE.replace("-01", "-00"));
    let children = json!([
        { "queue": "flaky", "fields": { "a": "1" } },
        { "queue": "part", "fields": { "do": [["fence"]], "traceparent": other } },
        { "queue": "part", "fields": { "do": [["fence"]], "traceparent": quiet } },
    ]);
    let calls = json!([["fan-out", children, { "queue": "join", "fields": { "a": "1" } }]]);
    bench.xadd("work", &[("do", &calls.to_string()), ("traceparent", ABOVE)]);
    let flow = eventually("the flow begins", || {
        let keys: Vec<String> = bench.redis("KEYS", "tq:{join}:flow:*:results");
        keys.into_iter().next()
    });
    let id = flow.trim_start_matches("tq:{join}:flow:").trim_end_matches(":results").to_owned();
    bench.until("join", &id, "COMPLETED");
    id
}

#[test]
fn each_attempt_of_a_flows_last_task_links_to_the_last_attempts_of_the_children() {
    let collector = Collector::start();
    let mut bench = bench(&with(&collector, FLOW));
    let (first, second) = (bench.host(), bench.host());
    run_flow(&mut bench);
    let (work, part, flaky) =
        (collector.span("run work"), collector.span("run part"), collector.until("run flaky", 3));
    assert_ne!(part.trace, TRACE);
    assert_eq!(flaky.iter().map(|run| run.links.len()).collect::<Vec<_>>(), [0, 1, 1]);
    let joins = collector.until("run join", 3);
    let mut children = [part.span, flaky[2].span.clone()];
    children.sort();
    for (at, join) in joins.iter().enumerate() {
        assert_eq!((join.trace.as_str(), &join.parent), (TRACE, &work.span), "{join:?}");
        let mut links = join.links.clone();
        let before: Vec<String> = links.drain(..links.len() - 2).collect();
        let expected = at.checked_sub(1).map(|before| joins[before].span.clone());
        assert_eq!(before, expected.into_iter().collect::<Vec<_>>(), "{join:?}");
        links.sort();
        assert_eq!(links, children, "{join:?}");
    }
    first.stop();
    second.stop();
}

#[test]
fn a_flow_of_many_children_has_128_links() {
    let collector = Collector::start();
    let mut bench = bench(&with(&collector, FLOW));
    let host = bench.host();
    let child = json!({ "queue": "part", "fields": { "do": [["fence"]] } });
    let join = json!({ "queue": "part", "fields": { "do": [["results"]] } });
    let calls = json!([["fan-out", vec![child; 130], join]]).to_string();
    bench.xadd("work", &[("do", &calls), ("traceparent", ABOVE)]);
    let runs = collector.until("run part", 131);
    let (joins, children): (Vec<&Seen>, Vec<&Seen>) = runs.iter().partition(|run| !run.links.is_empty());
    assert_eq!((joins.len(), joins[0].links.len()), (1, 128));
    assert!(joins[0].links.iter().all(|link| children.iter().any(|child| child.span == *link)));
    let kept: Vec<String> = bench.redis("KEYS", "tq:{part}:flow:*:results");
    let bytes: usize = bench.redis("HSTRLEN", (kept[0].trim_end_matches(":results"), "spans"));
    assert_eq!(bytes, 128 * 56);
    host.stop();
}

#[test]
fn without_a_collector_a_flow_keeps_no_spans() {
    let mut bench = bench(FLOW);
    let host = bench.host();
    let join = run_flow(&mut bench);
    let spans: Option<String> = bench.redis("HGET", (format!("tq:{{join}}:flow:{join}"), "spans"));
    assert_eq!(spans, None);
    for queue in ["part", "flaky"] {
        let statuses: Vec<String> = bench.redis("KEYS", format!("tq:{{{queue}}}:task:*"));
        assert!(!statuses.is_empty());
        for status in statuses {
            let span: Option<String> = bench.redis("HGET", (&status, "traceparent"));
            assert_eq!(span, None, "{status}");
        }
    }
    host.stop();
}

#[test]
fn each_task_of_a_batch_has_its_own_trace() {
    let collector = Collector::start();
    let queues = "[queues.work]\nplugin = \"effects-together\"\nenqueue_to = [\"part\"]\n\
         batch = { max_tasks = 2, max_wait = \"1s\" }\n[queues.part]\nplugin = \"effects\"\n";
    let mut bench = bench(&with(&collector, queues));
    bench.install("effects-together", "effects-together");
    let calls = json!([["enqueue", { "queue": "part", "fields": { "do": [["fence"]] } }]]).to_string();
    let traces = [TRACE.to_owned(), TRACE.replace('4', "5")];
    for trace in &traces {
        bench.xadd("work", &[("do", &calls), ("traceparent", &ABOVE.replace(TRACE, trace))]);
    }
    let host = bench.host();
    let (parts, runs) = (collector.until("run part", 2), collector.until("run work", 2));
    for trace in &traces {
        let of_trace = |span: &&Seen| span.trace == *trace;
        let (part, run) = (parts.iter().find(of_trace), runs.iter().find(of_trace));
        assert_eq!(part.expect("a span").parent, run.expect("a span").span);
    }
    host.stop();
}

#[test]
fn the_span_of_a_task_that_was_cancelled_while_it_ran_says_so() {
    let collector = Collector::start();
    for limit in ["", "max_running = 1\n"] {
        let queues = format!("[queues.work]\nplugin = \"sleeps\"\nlease = \"1s\"\n{limit}");
        let mut bench = bench(&with(&collector, &queues));
        bench.install("sleeps", "sleeps");
        let host = bench.host();
        let trace = format!("{:032x}", 7 + limit.len());
        let above = ABOVE.replace(TRACE, &trace);
        let id = bench.xadd("work", &[("ms", "60000"), ("traceparent", &above)]);
        bench.until_running("work", 1);
        bench.tqhost(&["cancel", "work", &id]).ok();
        host.until_ended_as("work", "cancelled", 1);
        let runs = collector.until("run work", if limit.is_empty() { 1 } else { 2 });
        let run = runs.iter().find(|run| run.trace == trace).expect("its span");
        assert_eq!(run.attributes["tqhost.outcome"], "cancelled", "{limit}");
        assert!(host.logged("does not own the task any more").is_empty(), "{limit}");
        host.stop();
    }
}

#[test]
fn the_task_that_tells_of_a_cancelled_one_stands_below_its_last_attempt() {
    let collector = Collector::start();
    let queues = "[queues.work]\nplugin = \"fails-twice\"\nbackoff = { delays = [\"1h\"] }\n\
         on_end = \"told\"\n[queues.told]\nplugin = \"echo\"\n";
    let mut bench = bench(&with(&collector, queues));
    let host = bench.host();
    let id = bench.xadd("work", &[("traceparent", ABOVE)]);
    let run = collector.span("run work");
    eventually("it is delayed", || (bench.places("work").delayed == 1).then_some(()));
    bench.tqhost(&["cancel", "work", &id]).ok();
    assert_eq!(collector.span("run told").parent, run.span);
    host.stop();
}
