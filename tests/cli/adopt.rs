//! `tqhost adopt`: another consumer's stream, group and dead letters are taken over, and nothing that was
//! done runs again. What does not fit stops its queue before a task is taken. Not here: the way back
//! (`give_back`).

use serde_json::Value;

use crate::support::runs::{assert_in_order, most_at_once};
use crate::support::{Bench, Clock, Host, Ran, RedisServer, Runs, eventually};

const QUEUE: &str = "[queues.work]\nplugin = \"echo\"\nlease = \"1s\"\n";

/// A bench whose stream another consumer served.
fn bench(queues: &str) -> Bench {
    let mut bench = Bench::new(queues);
    bench.install("echo", "echo");
    let _: () = bench.redis("XGROUP", ("CREATE", "work", "tqhost", "0", "MKSTREAM"));
    bench
}

/// The other consumer reads entries, and does not acknowledge them.
fn read(bench: &mut Bench, consumer: &str, count: usize) {
    let _: redis::Value =
        bench.redis("XREADGROUP", ("GROUP", "tqhost", consumer, "COUNT", count, "STREAMS", "work", ">"));
}

fn add(bench: &mut Bench, count: usize) -> Vec<String> {
    (0..count).map(|n| bench.xadd("work", &[("n", &n.to_string())])).collect()
}

fn adopt(bench: &Bench, more: &[&str]) -> Ran {
    bench.tqhost(&[&["adopt", "work", "--json"], more].concat())
}

/// The findings of a kind.
fn of_kind<'r>(report: &'r Value, kind: &str) -> Vec<&'r Value> {
    report["found"].as_array().expect("findings").iter().filter(|item| item["kind"] == kind).collect()
}

/// Each kind with its count, in order.
fn kinds(report: &Value) -> Vec<(String, u64)> {
    let kind = |item: &Value| {
        (item["kind"].as_str().expect("a kind").to_owned(), item["count"].as_u64().expect("a count"))
    };
    report["found"].as_array().expect("findings").iter().map(kind).collect()
}

fn pairs(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
    expected.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect()
}

fn doctor_is_silent(bench: &Bench) {
    let report = bench.tqhost(&["doctor", "work", "--json"]).ok().json();
    assert_eq!(
        (&report["ok"], &report["findings"]),
        (&Value::Bool(true), &serde_json::json!([])),
        "{report:#}"
    );
}

/// How many tasks have a status.
fn statuses(bench: &mut Bench) -> usize {
    let keys: Vec<String> = bench.redis("KEYS", "tq:{work}:task:*");
    keys.len()
}

fn attempt(bench: &mut Bench, id: &str) -> u64 {
    let result: Value = serde_json::from_str(&bench.status("work", id, "result")).expect("JSON");
    result["attempt"].as_u64().expect("an attempt")
}

#[test]
fn done_tasks_stay_done_and_pending_ones_begin_anew() {
    let mut bench = bench(QUEUE);
    let done = add(&mut bench, 2);
    read(&mut bench, "old-1", 2);
    let _: u64 = bench.redis("XACK", ("work", "tqhost", &done));
    let pending = add(&mut bench, 2);
    read(&mut bench, "old-2", 2);
    // The old consumer reclaimed one again and again: five deliveries.
    for _ in 0..4 {
        let _: redis::Value = bench.redis("XCLAIM", ("work", "tqhost", "old-2", 0, &pending[1]));
    }
    let waiting = add(&mut bench, 2);

    let told = adopt(&bench, &[]).ok().json();
    let expected = [("living-consumer", 2), ("waiting", 2), ("pending", 2), ("acked", 2)];
    assert_eq!(kinds(&told), pairs(&expected), "{told:#}");
    let text = of_kind(&told, "pending")[0]["what"].as_str().expect("a text");
    assert!(text.contains("old-2") && text.contains("up to 5 times"), "{text}");
    assert!(!bench.redis::<bool>("EXISTS", "tq:{work}:history"), "looking changes nothing");

    // A consumer that lives may be at work.
    let refused = adopt(&bench, &["--yes"]);
    assert_eq!((refused.code, &refused.json()["acted"]), (1, &Value::Bool(false)), "{refused:#?}");
    assert!(!bench.redis::<bool>("EXISTS", "tq:{work}:history"));
    let did = adopt(&bench, &["--yes", "--stopped"]).ok().json();
    assert_eq!((&did["acted"], &of_kind(&did, "acked")[0]["done"]), (&Value::Bool(true), &Value::Bool(true)));
    let note: String = bench.redis("HGET", ("tq:{work}:history", "tqhost"));
    assert_eq!(note, pending[1], "what the group was given last");
    doctor_is_silent(&bench);

    let host = bench.host();
    for id in pending.iter().chain(&waiting) {
        bench.until("work", id, "COMPLETED");
        assert_eq!(attempt(&mut bench, id), 1);
    }
    eventually("they are settled", || (bench.places("work").pending == 0).then_some(()));
    assert_eq!((statuses(&mut bench), bench.places("work").dead), (4, 0), "nothing else ran");
    doctor_is_silent(&bench);
    // Beside a host, and again: nothing changes.
    let again = adopt(&bench, &["--yes", "--stopped"]).ok().json();
    assert!(of_kind(&again, "acked")[0]["step"].is_null(), "{again:#}");
    let counts = bench.tqhost(&["queues", "work", "--json"]).ok().json();
    assert_eq!((&counts["queued"], &counts["running"]), (&0.into(), &0.into()), "history does not wait");
    let deleted = adopt(&bench, &["--yes", "--stopped", "--delete-acked"]).ok().json();
    assert_eq!(of_kind(&deleted, "acked")[0]["count"], 2);
    assert_eq!(bench.places("work").length, 0);
    let last = add(&mut bench, 1);
    bench.until("work", &last[0], "COMPLETED");
    let log = host.stop_for_log();
    assert_eq!(log.logged("runs alone").len(), 0, "nothing was called a crash");
}

/// An old consumer leaves ten tasks pending in a queue with these limits, of two keys in turn, and others
/// wait. Two hosts run them all.
fn adopt_under_limits(limits: &str) -> Runs {
    let runs = Runs::start();
    let mut bench =
        runs.bench(&format!("[queues.work]\nplugin = \"fetches\"\nlease = \"1s\"\nevents = 1000\n{limits}"));
    let _: () = bench.redis("XGROUP", ("CREATE", "work", "tqhost", "0", "MKSTREAM"));
    let add = |bench: &mut Bench, n: u32| runs.add(bench, "work", ["a", "b"][n as usize % 2], n / 2, 20);
    let mut ids: Vec<String> = (0..10).map(|n| add(&mut bench, n)).collect();
    read(&mut bench, "old", 10);
    ids.extend((10..16).map(|n| add(&mut bench, n)));
    adopt(&bench, &["--yes", "--stopped"]).ok();
    let hosts: Vec<Host> = (0..2).map(|_| bench.host()).collect();
    bench.all_done("work", &ids);
    for id in &ids {
        assert_eq!(bench.status("work", id, "attempt"), "1");
    }
    let left: u64 = bench.redis("EXISTS", &["tq:{work}:owners", "tq:{work}:tracks"]);
    assert_eq!(left, 0, "tracks without tasks leave no key behind");
    eventually("all are settled", || (bench.places("work").pending == 0).then_some(()));
    doctor_is_silent(&bench);
    Host::stop_all(hosts);
    assert_eq!(runs.all().len(), ids.len(), "each ran once");
    runs
}

#[test]
fn tasks_of_an_old_consumer_take_places_one_after_the_other() {
    let runs = adopt_under_limits("max_running = 1\n");
    assert_eq!(most_at_once(&runs.all()), 1);
    let runs = adopt_under_limits("max_running = 3\n");
    assert!(most_at_once(&runs.all()) <= 3);
}

#[test]
fn an_old_consumers_tasks_of_a_key_run_in_order_before_new_ones() {
    for limits in ["", "max_running = 2\n"] {
        let runs = adopt_under_limits(&format!("{limits}serial = {{ field = \"key\" }}\n"));
        for key in ["a", "b"] {
            assert_in_order(&runs.of(key), 8);
        }
    }
}

#[test]
fn tasks_of_an_old_consumer_run_first_in_a_strict_order() {
    let runs = adopt_under_limits("max_running = 1\norder = \"strict\"\n");
    let all: Vec<(String, u32)> = runs.all().into_iter().map(|run| (run.key, run.n)).collect();
    let expected: Vec<(String, u32)> =
        (0..16).map(|n| (["a", "b"][n % 2].to_owned(), n as u32 / 2)).collect();
    assert_eq!((all, most_at_once(&runs.all())), (expected, 1));
}

#[test]
fn tasks_of_an_old_consumer_outlive_the_host_that_took_them_over() {
    let runs = Runs::start();
    let mut bench = runs
        .bench("[queues.work]\nplugin = \"fetches\"\nlease = \"1s\"\nmax_running = 1\norder = \"strict\"\n");
    let _: () = bench.redis("XGROUP", ("CREATE", "work", "tqhost", "0", "MKSTREAM"));
    let mut ids: Vec<String> = (0..4).map(|n| runs.add(&mut bench, "work", "a", n, 200)).collect();
    read(&mut bench, "old", 4);
    ids.push(runs.add(&mut bench, "work", "a", 4, 200));
    adopt(&bench, &["--yes", "--stopped"]).ok();
    for begun in [1, 3] {
        let host = bench.host();
        eventually("one more has begun", || (runs.all().len() >= begun).then_some(()));
        host.kill();
    }
    let host = bench.host();
    bench.all_done("work", &ids);
    assert_in_order(&runs.of("a"), 5);
    eventually("all are settled", || (bench.places("work").pending == 0).then_some(()));
    doctor_is_silent(&bench);
    host.stop();
}

#[test]
fn a_consumer_that_is_named_by_a_uuid_is_no_host() {
    let mut bench = bench(QUEUE);
    let ids = add(&mut bench, 2);
    let consumer = "consumer-550e8400-e29b-41d4-8716-446655440000";
    read(&mut bench, consumer, 2);
    for _ in 0..4 {
        let _: redis::Value = bench.redis("XCLAIM", ("work", "tqhost", consumer, 0, &ids[1]));
    }
    let refused = adopt(&bench, &["--yes"]);
    assert_eq!((refused.code, of_kind(&refused.json(), "living-consumer").len()), (1, 1), "{refused:#?}");
    let told = adopt(&bench, &["--yes", "--stopped"]).ok().json();
    assert_eq!(of_kind(&told, "pending")[0]["count"], 2, "{told:#}");
    assert_eq!(of_kind(&told, "running"), Vec::<&Value>::new(), "{told:#}");
    let host = bench.host();
    for id in &ids {
        bench.until("work", id, "COMPLETED");
    }
    let log = host.stop_for_log();
    assert_eq!(log.logged("runs alone").len(), 0, "its deliveries were no crashes");
}

#[test]
fn a_pending_entry_that_was_trimmed_is_told_and_ends_as_lost() {
    let mut bench = bench(QUEUE);
    let id = add(&mut bench, 1).remove(0);
    read(&mut bench, "old", 1);
    let _: u64 = bench.redis("XTRIM", ("work", "MAXLEN", 0));
    let told = adopt(&bench, &["--from", "0"]).ok().json();
    let expected = [
        ("group", 1),
        ("living-consumer", 1),
        ("pending", 1),
        ("lost-pending", 1),
        ("acked", 0),
        ("trimmed", 1),
    ];
    assert_eq!(kinds(&told), pairs(&expected), "{told:#}");
    adopt(&bench, &["--yes", "--stopped"]).ok();
    let host = bench.host();
    host.until_count("tqhost_lost_entries_total", "work", 1);
    bench.until("work", &id, "FAILED");
    assert_eq!(bench.places("work").pending, 0);
    doctor_is_silent(&bench);
    host.stop();
}

#[test]
fn deliveries_count_from_the_first_host_on() {
    let mut bench = bench("[queues.work]\nplugin = \"sleeps\"\nlease = \"1s\"\nmax_crashes = 9\n");
    bench.install("sleeps", "sleeps");
    let id = bench.xadd("work", &[("ms", "600000")]);
    read(&mut bench, "old", 1);
    for _ in 0..4 {
        let _: redis::Value = bench.redis("XCLAIM", ("work", "tqhost", "old", 0, &id));
    }
    let deliveries = |bench: &mut Bench| {
        let pending: Vec<(String, String, u64, u64)> =
            bench.redis("XPENDING", ("work", "tqhost", "-", "+", 1));
        pending[0].3
    };
    assert_eq!(deliveries(&mut bench), 5);
    let first = bench.host();
    bench.until("work", &id, "PROCESSING");
    assert_eq!(deliveries(&mut bench), 1, "the first one of tqhost");
    first.kill();
    let second = bench.host();
    eventually("it is taken over from the host that died", || (deliveries(&mut bench) == 2).then_some(()));
    second.kill();
}

/// It read ten entries at once and works on one after the other. In Redis 7.0 its XACKs are no sign of life.
#[test]
fn a_consumer_that_was_given_entries_lately_is_taken_to_work_on_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let clock = Clock::new(dir.path());
    let redis = RedisServer::start_with_env(dir.path(), &[], clock.env());
    let mut bench = Bench::on(QUEUE, dir, redis);
    let _: () = bench.redis("XGROUP", ("CREATE", "work", "tqhost", "0", "MKSTREAM"));
    let ids = add(&mut bench, 10);
    read(&mut bench, "old", 10);
    let _: u64 = bench.redis("XACK", ("work", "tqhost", &ids[0]));
    clock.shift(240);
    let told = adopt(&bench, &["--yes"]);
    let report = told.json();
    assert_eq!(
        (told.code, kinds(&report)),
        (1, pairs(&[("busy-consumer", 1), ("pending", 9), ("acked", 1)]))
    );
    let busy = of_kind(&report, "busy-consumer")[0];
    insta::assert_snapshot!(
        busy["what"].as_str().unwrap_or_default(),
        @"consumers of the group that are no hosts hold entries that they were given in the last 10m: \
          old. If they work on them, the work is done twice"
    );
    assert!(!bench.redis::<bool>("HEXISTS", ("tq:{work}:history", "tqhost")), "nothing was done");
    let stopped = adopt(&bench, &["--stopped"]).ok().json();
    assert_eq!(of_kind(&stopped, "busy-consumer").len(), 1, "it is still told");
    // With nothing in its hands it is idle, and after a time it is gone.
    clock.shift(601);
    let told = adopt(&bench, &[]).ok().json();
    assert_eq!(kinds(&told), pairs(&[("pending", 9), ("acked", 1)]), "{told:#}");
    clock.shift(240);
    let _: u64 = bench.redis("XACK", ("work", "tqhost", &ids[1..]));
    let told = adopt(&bench, &["--yes"]).ok().json();
    assert_eq!(kinds(&told), pairs(&[("acked", 10)]), "{told:#}");
}

#[test]
fn the_operator_says_where_a_group_begins_that_does_not_exist() {
    let mut bench = Bench::new(QUEUE);
    bench.install("echo", "echo");
    let ids = add(&mut bench, 4);
    let _: () = bench.redis("XGROUP", ("CREATE", "work", "old", "0"));
    let _: redis::Value =
        bench.redis("XREADGROUP", ("GROUP", "old", "c", "COUNT", 2, "STREAMS", "work", ">"));
    let _: u64 = bench.redis("XACK", ("work", "old", &ids[..2]));
    // The host would begin at 0, and run everything again: it waits.
    let host = bench.host();
    insta::assert_snapshot!(
        host.log("no task is taken")["why"].as_str().unwrap_or_default(),
        @"the stream has other consumer groups (old). tqhost deletes each entry when its task has ended, \
          also if they have not read it. Remove them, or confirm it with `tqhost adopt work --yes`"
    );
    let told = adopt(&bench, &[]).ok().json();
    assert_eq!(kinds(&told), pairs(&[("no-group", 4), ("other-group", 0), ("waiting", 4)]));
    let lacking = adopt(&bench, &["--yes"]);
    assert_eq!(lacking.code, 2, "{lacking:#?}");
    assert!(lacking.stderr.contains("--from"), "{lacking:#?}");
    assert_eq!(bench.tqhost(&["adopt", "work", "--from", "yesterday"]).code, 2);
    let groups: Vec<redis::Value> = bench.redis("XINFO", ("GROUPS", "work"));
    assert_eq!(groups.len(), 1, "nobody has created the group");

    adopt(&bench, &["--yes", "--from", &ids[2]]).ok();
    for id in &ids[2..] {
        bench.until("work", id, "COMPLETED");
    }
    eventually("they are settled", || (bench.places("work").length == 2).then_some(()));
    assert_eq!(statuses(&mut bench), 2, "what came before did not run");
    doctor_is_silent(&bench);
    let again = adopt(&bench, &["--yes"]).ok().json();
    assert_eq!(kinds(&again), pairs(&[("other-group", 0), ("acked", 2)]));
    host.stop();
}

#[test]
fn a_second_group_stops_the_queue_until_it_is_confirmed() {
    let mut bench = bench(&format!("{QUEUE}[queues.other]\nplugin = \"echo\"\n"));
    let _: () = bench.redis("XGROUP", ("CREATE", "work", "audit", "0"));
    let id = add(&mut bench, 1).remove(0);
    let host = bench.host();
    assert!(host.log("no task is taken")["why"].to_string().contains("audit"));
    let other = bench.xadd("other", &[("n", "1")]);
    bench.until("other", &other, "COMPLETED");
    let ready = eventually("the host says why it is not ready", || {
        let ready = host.get("/readyz");
        ready.body.contains("audit").then_some(ready)
    });
    assert_eq!(ready.status, 503);
    assert_eq!(bench.places("work").pending, 0, "it was not taken");
    assert_eq!(bench.status("work", &id, "status"), "");
    adopt(&bench, &["--yes"]).ok();
    bench.until("work", &id, "COMPLETED");
    host.until_ready();
    host.stop();
    // It stays confirmed. Another one is not.
    let host = bench.host();
    let next = add(&mut bench, 1).remove(0);
    bench.until("work", &next, "COMPLETED");
    host.stop();
    let _: () = bench.redis("XGROUP", ("CREATE", "work", "more", "0"));
    let host = bench.host();
    let why = host.log("no task is taken")["why"].to_string();
    assert!(why.contains("more") && !why.contains("audit"), "{why}");
    let _: u64 = bench.redis("XGROUP", ("DESTROY", "work", "more"));
    host.log("can be served now");
    host.stop();
}

#[test]
fn tasks_that_a_producer_trims_away_are_counted() {
    let mut bench = bench(QUEUE);
    let trim = |bench: &mut Bench, count: usize| {
        for n in 0..count {
            let _: String = bench.redis("XADD", ("work", "MAXLEN", 3, "*", "n", n));
        }
    };
    let first = add(&mut bench, 1);
    read(&mut bench, "old", 1);
    let _: u64 = bench.redis("XACK", ("work", "tqhost", &first));
    trim(&mut bench, 10);
    let told = adopt(&bench, &[]).ok().json();
    let expected = [("living-consumer", 1), ("waiting", 3), ("acked", 0), ("lost-unread", 7), ("trimmed", 8)];
    assert_eq!(kinds(&told), pairs(&expected), "{told:#}");
    let host = bench.host();
    bench.until_drained("work");
    bench.tqhost(&["pause", "work"]).ok();
    // The host looks every few seconds. Each look finds what was trimmed since the one before.
    let line = eventually("the host tells", || {
        trim(&mut bench, 5);
        host.logged("a producer trimmed").into_iter().next()
    });
    assert!(line["level"] == "ERROR" && line["at_least"].as_u64() > Some(0), "{line:#}");
    assert!(host.metric("tqhost_lost_entries_total{queue=\"work\"}") >= 1.0);
    bench.tqhost(&["resume", "work"]).ok();
    bench.until_drained("work");
    host.stop();
}

#[test]
fn a_cancelled_task_is_not_taken_for_a_trimmed_one() {
    let mut bench = bench(QUEUE);
    let ids = add(&mut bench, 3);
    read(&mut bench, "old", 1);
    bench.tqhost(&["cancel", "work", &ids[1]]).ok();
    read(&mut bench, "old", 1);
    let _: u64 = bench.redis("XACK", ("work", "tqhost", &[&ids[0], &ids[2]]));
    let told = adopt(&bench, &["--stopped"]).ok().json();
    assert_eq!(of_kind(&told, "lost-unread"), Vec::<&Value>::new(), "{told:#}");
}

#[test]
fn a_list_of_dead_letters_stops_the_queue_and_becomes_a_stream() {
    let mut bench = bench(&format!("{QUEUE}dead_letter = \"report:queue:dead\"\nlist = \"report:queue\"\n"));
    for n in 1..=3 {
        let item = format!("{{\"RecordId\":{n},\"RetryCount\":3}}");
        let _: u64 = bench.redis("LPUSH", ("report:queue:dead", item));
    }
    let _: u64 = bench.redis("LPUSH", ("report:queue", "{\"RecordId\":4,\"RetryCount\":1}"));
    let host = bench.host();
    insta::assert_snapshot!(
        host.log("no task is taken")["why"],
        @r#""report:queue:dead holds a list, not a stream: `tqhost adopt work` says what can be done""#
    );
    let told = adopt(&bench, &[]).ok().json();
    let expected = [("acked", 0), ("dead-list", 3), ("list-items", 1), ("retry-count", 1)];
    let mut found = kinds(&told);
    found.sort();
    assert_eq!(found, pairs(&expected), "{told:#}");
    assert_eq!(bench.redis::<u64>("LLEN", "report:queue"), 1, "the item was not taken");
    let did = adopt(&bench, &["--yes"]).ok().json();
    assert_eq!(of_kind(&did, "dead-list")[0]["count"], 3);
    host.log("can be served now");
    bench.until_drained("work");
    eventually("the item ran", || (statuses(&mut bench) == 1).then_some(()));

    let letters = bench.tqhost(&["dead", "list", "work", "--json", "--reason", "foreign"]).ok().json();
    let ids: Vec<&str> = letters["dead"]
        .as_array()
        .expect("a list")
        .iter()
        .rev()
        .map(|letter| letter["id"].as_str().expect("an id"))
        .collect();
    assert_eq!(ids.len(), 3);
    let shown = bench.tqhost(&["dead", "show", "work", ids[0], "--json"]).ok().json();
    let field = serde_json::json!([{ "name": "data", "value": "{\"RecordId\":1,\"RetryCount\":3}" }]);
    assert_eq!(shown["fields"], field, "the oldest is last in the list");
    let requeued = bench.tqhost(&["dead", "requeue", "work", ids[0], "--json"]).ok().json();
    assert_eq!(requeued, serde_json::json!({ "succeeded": 1, "skipped": 0 }));
    bench.until("work", ids[0], "COMPLETED");
    let again = adopt(&bench, &["--yes"]).ok().json();
    assert_eq!(of_kind(&again, "dead")[0]["count"], 2, "{again:#}");
    assert_eq!(of_kind(&again, "dead-foreign"), Vec::<&Value>::new());
    doctor_is_silent(&bench);
    host.stop();
}

#[test]
fn dead_letters_of_another_program_are_shown_converted_and_requeued() {
    let mut bench = bench(&format!("{QUEUE}dead_letter = \"dlq:user_activity\"\n"));
    bench.xadd("work", &[("data", "{\"eventId\":\"e0\"}")]);
    let event = "{\"eventId\":\"e1\"}";
    let fields = [
        ("original_id", "1700000000001-3"),
        ("failed_at", "2023-11-14T22:13:20Z"),
        ("fail_reason", "no such user"),
        ("consumer", "activity-1"),
        ("original_data", event),
    ];
    let entry = bench.xadd("dlq:user_activity", &fields);
    let list =
        |bench: &Bench| bench.tqhost(&["dead", "list", "work", "--json"]).ok().json()["dead"][0].clone();
    let before = list(&bench);
    assert_eq!((&before["reason"], &before["id"]), (&"foreign".into(), &format!("foreign-{entry}").into()));
    assert!(before["failed_at"].as_u64() > Some(1_700_000_000_000), "{before:#}");
    let told = adopt(&bench, &[]).ok().json();
    insta::assert_snapshot!(
        of_kind(&told, "dead-foreign")[0]["what"].as_str().unwrap_or_default(),
        @"dead letters of another program, with the fields consumer → tq-consumer, fail_reason → \
          tq-error, failed_at → tq-failed-at, original_data → the task, original_id → tq-id"
    );
    adopt(&bench, &["--yes"]).ok();
    let after = list(&bench);
    let expected = serde_json::json!({
        "id": "1700000000001-3", "reason": "foreign", "error": "no such user", "consumer": "activity-1",
        "failed_at": 1_700_000_000_000_u64, "enqueued_at": 1_700_000_000_001_u64, "queue": "work",
    });
    for (name, value) in expected.as_object().expect("an object") {
        assert_eq!(&after[name], value, "{name}");
    }
    let again = adopt(&bench, &["--yes"]).ok().json();
    assert_eq!(of_kind(&again, "dead-foreign"), Vec::<&Value>::new());
    let host = bench.host();
    bench.tqhost(&["dead", "requeue", "work", "--all", "--reason", "foreign"]).ok();
    bench.until("work", "1700000000001-3", "COMPLETED");
    let result: Value =
        serde_json::from_str(&bench.status("work", "1700000000001-3", "result")).expect("JSON");
    assert_eq!((&result["fields"], &result["attempt"]), (&serde_json::json!({ "data": event }), &1.into()));
    bench.until_drained("work");
    doctor_is_silent(&bench);
    host.stop();
}

#[test]
fn an_operator_says_what_the_fields_of_dead_letters_are() {
    let mut bench = bench(QUEUE);
    bench.xadd(
        "tq:{work}:dead",
        &[("why", "too old"), ("task", "{\"a\":\"1\",\"b\":2}"), ("when", "1700000000")],
    );
    let pairs = ["--dead-field=tq-error=why", "--dead-field=*=task", "--dead-field=tq-failed-at=when"];
    adopt(&bench, &[&["--yes"], &pairs[..]].concat()).ok();
    let letter = bench.dead("work").remove(0);
    let found = ["a", "b", "tq-error", "tq-failed-at"].map(|name| letter[name].as_str());
    assert_eq!(found, ["1", "2", "too old", "1700000000000"]);
    let bad = adopt(&bench, &["--dead-field=tq-queue=x"]);
    assert_eq!(bad.code, 2, "{bad:#?}");
}

/// The keys that a host writes only when a task ends or waits are looked at before it takes one.
#[test]
fn a_key_of_another_type_stops_its_queue_and_no_other_until_it_is_mended() {
    for key in
        ["tq:{work}:dead", "tq:{work}:delayed", "tq:{work}:parked", "report:queue", "tq:{work}:history"]
    {
        let mut bench =
            bench(&format!("{QUEUE}list = \"report:queue\"\n[queues.other]\nplugin = \"echo\"\n"));
        let _: () = bench.redis("SET", (key, "x"));
        let id = add(&mut bench, 1).remove(0);
        let host = bench.host();
        let line = host.log("no task is taken");
        assert_eq!(line["level"], "ERROR");
        assert!(line["why"].to_string().contains(&format!("{key} holds a string")), "{line:#}");
        let other = bench.xadd("other", &[("n", "1")]);
        bench.until("other", &other, "COMPLETED");
        assert_eq!((bench.status("work", &id, "status"), host.get("/readyz").status), (String::new(), 503));
        let refused = adopt(&bench, &["--yes"]);
        assert_eq!(refused.code, 1, "{refused:#?}");
        assert_eq!(of_kind(&refused.json(), "wrong-type").len(), 1);
        let _: u64 = bench.redis("DEL", key);
        bench.until("work", &id, "COMPLETED");
        host.until_ready();
        host.stop();
    }
}

#[test]
fn a_queue_that_nobody_served_has_nothing_to_adopt() {
    let bench = Bench::new(QUEUE);
    insta::assert_snapshot!(bench.tqhost(&["adopt", "work", "--yes"]).ok().stdout, @"
    work: stream work, group tqhost

    Another consumer has left nothing.

    Done.
    ");
    assert_eq!(bench.tqhost(&["adopt", "nowhere"]).code, 2);
}
