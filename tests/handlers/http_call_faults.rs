//! `http-call` with applications that are slow, away, flapping or lying, and with hosts that are killed:
//! nothing is lost, and the application sees one id for one task.
//!
//! Not here: what each answer means (`http_call`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::http_call::bench;
use crate::support::application::{Application, Call, Reply};
use crate::support::names::names;
use crate::support::{Authority, Bench, Host, Web, eventually};

/// Rules for tasks that are tried until they succeed.
const STUBBORN: &str = "max_retries = 1000\nlease = \"1s\"";

/// Waits until all tasks are completed, and asserts what holds whatever happened: the calls for a task have
/// one id, the same fields, and fences of their own.
#[track_caller]
fn all_completed(bench: &mut Bench, application: &Application, ids: &[String]) {
    bench.all_done("work", ids);
    let mut calls: BTreeMap<String, Vec<Call>> = BTreeMap::new();
    for call in application.calls() {
        calls.entry(call.id().to_owned()).or_default().push(call);
    }
    let known: BTreeSet<&String> = ids.iter().collect();
    assert_eq!(calls.keys().collect::<BTreeSet<_>>(), known);
    for (id, calls) in calls {
        // Deliveries of one task may overlap, so their calls may arrive in another order.
        let fences: BTreeSet<u64> = calls.iter().map(Call::fence).collect();
        assert_eq!(fences.len(), calls.len(), "each delivery of {id} has a fence of its own");
        let fields: BTreeSet<String> = calls.iter().map(|call| call.json()["fields"].to_string()).collect();
        assert_eq!(fields.len(), 1, "{id}: {fields:?}");
    }
}

#[test]
fn an_application_that_lies_once_gets_the_task_again() {
    let other = Web::start();
    let target = format!("location: {}/echo\r\n", other.origin());
    let application = Application::start(move |call| match (call.before, call.field("lie").as_str()) {
        (0, "too short") => Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf".to_vec()),
        (0, "no length") => Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\nx".to_vec()),
        (0, "two lengths") => {
            Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx".to_vec())
        }
        (0, "no http") => Reply::Raw(b"\x16\x03\x01 hello".to_vec()),
        (0, "endless") => Reply::Endless,
        (0, "silent") => Reply::Silence,
        (0, "lost") => Reply::lost(),
        (0, "elsewhere") => Reply::page(307, &target, ""),
        (0, "inside") => Reply::page(302, "location: http://169.254.169.254/latest\r\n", ""),
        (0, "large") => Reply::ok(&"x".repeat(2 << 20)),
        _ => Reply::ok("the truth"),
    });
    let mut bench = bench(&application.origin(), STUBBORN, "timeout = \"2s\"");
    let host = bench.host();
    let lies = [
        "too short",
        "no length",
        "two lengths",
        "no http",
        "endless",
        "silent",
        "lost",
        "elsewhere",
        "inside",
        "large",
    ];
    let ids: Vec<String> = lies.iter().map(|lie| bench.xadd("work", &[("lie", lie)])).collect();
    all_completed(&mut bench, &application, &ids);
    for (lie, id) in lies.iter().zip(&ids) {
        assert_eq!(bench.status("work", id, "result"), "the truth", "{lie}");
        assert_eq!(application.calls_for(id).len(), 2, "{lie}");
    }
    assert_eq!(other.requests(), 0, "no redirect is followed");
    host.stop();
}

/// A body that is longer than its length must not become the answer to another task.
#[test]
fn bytes_after_an_answer_are_no_answer() {
    let forged = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n0!\
        HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged";
    let application = Application::start(move |call| match call.field("n").as_str() {
        "0" => Reply::Raw(forged.to_vec()),
        n => Reply::ok(&format!("{n}!")),
    });
    let mut bench = bench(&application.origin(), "concurrency = 1", "");
    let host = bench.host();
    let ids = ["0", "1", "2"].map(|n| bench.xadd("work", &[("n", n)]));
    all_completed(&mut bench, &application, &ids);
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(bench.status("work", id, "result"), format!("{n}!"));
    }
    host.stop();
}

#[test]
fn an_application_that_comes_later_or_flaps_gets_every_task() {
    // The port is taken and nobody listens: connections are refused.
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    drop(taken);
    let rules = "max_retries = 1000\nbackoff = { base = \"10ms\", max = \"100ms\" }\nconcurrency = 4";
    let mut bench = Bench::new(&format!(
        "[queues.work]\nplugin = \"http-call\"\n{rules}\n{}",
        crate::support::application::plugin(&format!("http://{address}"), "")
    ));
    bench.install("http-call", "http-call");
    let host = bench.host();
    let ids: Vec<String> = (0..40).map(|n| bench.xadd("work", &[("n", &n.to_string())])).collect();
    eventually("a task was refused", || {
        ids.iter().any(|id| bench.status("work", id, "error").contains("refuses connections")).then_some(())
    });
    let worked: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let done = worked.clone();
    let application = Application::on(TcpListener::bind(address).expect("the port"), move |call| {
        // Every second delivery of a task finds it down, or loses its answer after the work.
        let number = call.field("n").parse::<usize>().expect("a number") + call.before;
        if number.is_multiple_of(4) {
            return Reply::page(503, "retry-after: 0\r\n", "");
        }
        done.lock().expect("the work").insert(call.id().to_owned());
        if number.is_multiple_of(2) { Reply::lost() } else { Reply::ok("done") }
    });
    all_completed(&mut bench, &application, &ids);
    assert_eq!(worked.lock().expect("the work").len(), ids.len());
    host.stop();
}

/// The host renews the lease of a task while its answer is awaited, so no other host gets the task.
#[test]
fn an_answer_that_takes_longer_than_two_leases_is_waited_for() {
    let gate: Arc<Gate> = Arc::default();
    let held = gate.clone();
    let truth = "the truth ".repeat(8);
    let body = truth.clone();
    let application = Application::start(move |call| match call.field("answer").as_str() {
        "trickles" => Reply::Trickle { body: body.clone(), pause: Duration::from_millis(50) },
        _ => {
            held.pass();
            Reply::ok(&body)
        }
    });
    let mut bench = bench(&application.origin(), "lease = \"1s\"\nmax_retries = 0", "");
    let hosts = [bench.host(), bench.host()];
    let ids: Vec<String> =
        ["trickles", "late"].iter().map(|answer| bench.xadd("work", &[("answer", answer)])).collect();
    eventually("both are called", || (application.count() >= 2).then_some(()));
    // The trickle takes four leases. The other answer begins after its end.
    bench.until("work", &ids[0], "COMPLETED");
    gate.open();
    all_completed(&mut bench, &application, &ids);
    for id in &ids {
        assert_eq!(application.calls_for(id).len(), 1, "{id}");
        assert_eq!(bench.status("work", id, "result"), truth, "{id}");
        let [started, finished] = ["started_at", "finished_at"]
            .map(|field| bench.status("work", id, field).parse::<u64>().expect("a time"));
        assert!(finished - started > 2000, "{id}: {started} to {finished}");
    }
    Host::stop_all(hosts);
}

/// One wrong line, or an application that is down, must not turn a backlog into dead letters.
#[test]
fn a_queue_with_a_hold_waits_for_an_application_that_takes_no_task() {
    for answer in [401, 404, 503] {
        let is_right: Arc<AtomicBool> = Arc::default();
        let right = is_right.clone();
        let application = Application::start(move |_| match right.load(Ordering::SeqCst) {
            true => Reply::ok("done"),
            false => Reply::page(answer, "", ""),
        });
        let rules = "max_retries = 0\nconcurrency = 2\nhold = { after = 2, for = \"1s\" }";
        let mut bench = bench(&application.origin(), rules, "");
        let host = bench.host();
        let ids: Vec<String> = (0..30).map(|n| bench.xadd("work", &[("n", &n.to_string())])).collect();
        // Two tries begin the hold, two may run beside them, and then one task at a time is tried.
        eventually("a task was tried during the hold", || (application.count() >= 5).then_some(()));
        assert!(application.count() < ids.len(), "{} calls for {answer}", application.count());
        is_right.store(true, Ordering::SeqCst);
        all_completed(&mut bench, &application, &ids);
        assert_eq!(bench.places("work").dead, 0, "{answer}");
        host.stop();
    }
}

#[test]
fn check_notes_a_queue_that_would_not_wait() {
    for (rules, noted) in [("", 1), ("hold = {}", 0)] {
        let bench = bench("http://127.0.0.1:1", rules, "");
        let view = bench.tqhost(&["check", "--json"]).ok().json();
        let notes = view["notes"].as_array().expect("notes");
        assert_eq!(notes.len(), noted, "{rules}: {notes:?}");
        if let [note] = &notes[..] {
            insta::assert_snapshot!(note.as_str().expect("a note"), @"
            queues.work: plugin http-call calls an application. While it is away or a setting is wrong, a \
            backlog becomes dead letters: give the queue hold = { after = 5, for = \"30s\" }
            ");
        }
    }
}

#[test]
fn check_notes_a_queue_whose_attempts_may_take_longer_than_their_requests() {
    let rules = |timeout: &str| format!("hold = {{}}\ntimeout = \"{timeout}\"");
    for (timeout, plugin, noted) in [
        ("30s", "", false),
        ("10m", "", true),
        ("10m", "\n[plugins.http-call.http]\nfirst_byte_timeout = \"10m\"", false),
    ] {
        let bench = bench("http://127.0.0.1:1", &rules(timeout), plugin);
        let view = bench.tqhost(&["check", "--json"]).ok().json();
        let notes = view["notes"].as_array().expect("notes");
        assert_eq!(notes.len(), usize::from(noted), "{timeout} {plugin}: {notes:?}");
        if let [note] = &notes[..] {
            insta::assert_snapshot!(note.as_str().expect("a note"), @"
            queues.work: timeout is 10m, and a request of plugin http-call waits 1m for the beginning of an \
            answer: a slow application needs [plugins.http-call] http = { first_byte_timeout = \"10m\" }
            ");
        }
    }
}

/// A mistyped name, an expired certificate or a service that was deleted is the fault of no task.
#[test]
fn a_queue_with_a_hold_waits_while_there_is_no_answer_at_all() {
    let rules = "max_retries = 0\nconcurrency = 2\nhold = { after = 2, for = \"1s\" }";
    let known = [("localhost", "127.0.0.1")];
    let (untrusted, cuts) =
        (Web::start_tls(&Authority::new(), "localhost"), Application::start(|_| Reply::lost()));
    let table = [
        ("http://mistyped.test".to_owned(), "mistyped.test could not be looked up"),
        (format!("https://localhost:{}", untrusted.port), "is not trusted"),
        (cuts.origin(), "ended the connection too early"),
    ];
    for (origin, cause) in table {
        let mut bench = bench(&origin, rules, "");
        let host = bench.host_with_env(names(bench.dir.path(), &known));
        let ids: Vec<String> = (0..10).map(|n| bench.xadd("work", &[("n", &n.to_string())])).collect();
        host.log("the queue is held");
        let held = bench.tqhost(&["queues", "work", "--json"]).ok().json()["held"].clone();
        assert!(held["cause"].as_str().is_some_and(|told| told.contains(cause)), "{held}");
        // The operator corrects it.
        let application = Application::start(|_| Reply::ok("done"));
        let text = std::fs::read_to_string(bench.config()).expect("the configuration");
        bench.configure(&text.replace(&origin, &application.origin()));
        all_completed(&mut bench, &application, &ids);
        assert_eq!((bench.places("work").dead, host.ended_as("work", "retried")), (0, 0), "{cause}");
        host.stop();
    }
}

/// Holds calls until it is opened.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn pass(&self) {
        drop(self.1.wait_while(self.0.lock().expect("the gate"), |is_open| !*is_open).expect("the gate"));
    }

    fn open(&self) {
        *self.0.lock().expect("the gate") = true;
        self.1.notify_all();
    }
}

#[test]
fn a_host_that_is_killed_between_the_call_and_its_answer_loses_nothing() {
    let gate: Arc<Gate> = Arc::default();
    let held = gate.clone();
    // Each task's first call is answered only when its host is gone.
    let application = Application::start(move |call| {
        if call.before == 0 {
            held.pass();
        }
        Reply::ok(&format!("{} of {}", call.before + 1, call.id()))
    });
    let rules = format!("{STUBBORN}\nconcurrency = 5\nmax_crashes = 5");
    let mut bench = bench(&application.origin(), &rules, "");
    let first = bench.host();
    let ids: Vec<String> = (0..12).map(|n| bench.xadd("work", &[("n", &n.to_string())])).collect();
    eventually("five calls are made", || (application.count() == 5).then_some(()));
    first.kill();
    gate.open();
    let second = bench.host();
    all_completed(&mut bench, &application, &ids);
    for id in &ids {
        let calls = application.calls_for(id).len();
        assert_eq!(bench.status("work", id, "result"), format!("{calls} of {id}"), "the last call counts");
    }
    let twice = ids.iter().filter(|id| application.calls_for(id).len() == 2).count();
    assert_eq!((twice, application.count()), (5, 17), "only what the killed host ran comes again");
    second.stop();
}

#[test]
fn hosts_that_are_killed_again_and_again_lose_nothing() {
    let application = Application::start(|call| Reply::ok(call.id()));
    let rules = format!("{STUBBORN}\nmax_crashes = 100");
    let mut bench = bench(&application.origin(), &rules, "");
    let ids: Vec<String> = (0..600).map(|n| bench.xadd("work", &[("n", &n.to_string())])).collect();
    let mut in_hand = 0;
    for round in 1..=3 {
        let host = bench.host();
        let made = application.count();
        eventually("it makes calls", || (application.count() >= made + 30 * round).then_some(()));
        host.kill();
        let calls = application.calls();
        let called: BTreeSet<&str> = calls.iter().map(|call| call.id()).collect();
        in_hand += called.iter().filter(|id| bench.status("work", id, "status") != "COMPLETED").count();
    }
    let last = bench.host();
    all_completed(&mut bench, &application, &ids);
    for id in &ids {
        assert_eq!(bench.status("work", id, "result"), *id);
    }
    // Each kill can repeat what its host had in hand, and no more: what ran, and what was not settled yet.
    let repeated = application.count() - ids.len();
    assert!(repeated <= in_hand, "{repeated} calls are repeated, and {in_hand} were in hand");
    last.stop();
}
