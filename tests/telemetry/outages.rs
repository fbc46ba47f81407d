//! Collectors that are down, hang, or refuse: no task waits for them.

use std::time::Instant;

use super::collector::{Collector, Manner};
use super::{ABOVE, with};
use crate::support::Bench;

const QUEUES: &str = "[queues.work]\nplugin = \"echo\"\n";
const TROUBLE: &str = "the collector of traces does not take spans";

fn bench(collector: &str) -> Bench {
    let bench = Bench::new(&format!("{QUEUES}\n[telemetry]\notlp = \"{collector}\"\n"));
    bench.install("echo", "echo");
    bench
}

/// Runs some tasks to their end.
fn run(bench: &mut Bench, tasks: usize) {
    let ids: Vec<String> = (0..tasks).map(|_| bench.xadd("work", &[("traceparent", ABOVE)])).collect();
    bench.all_done("work", &ids);
}

#[test]
fn a_collector_that_is_not_there_costs_no_task_and_is_told_once() {
    let begun = Instant::now();
    // Nobody listens on this port.
    let mut bench = bench("http://127.0.0.1:1");
    let host = bench.host();
    run(&mut bench, 50);
    host.log(TROUBLE);
    run(&mut bench, 50);
    host.until_metric("tqhost_trace_spans_total{result=\"sent\"}", 0);
    let log = host.stop_for_log();
    // It is told again after a minute.
    let most = 1 + begun.elapsed().as_secs() as usize / 60;
    assert!((1..=most).contains(&log.logged(TROUBLE).len()), "{:?}", log.logged(TROUBLE));
    assert_eq!(log.logged("the last spans of traces could not be sent").len(), 1);
}

#[test]
fn a_collector_that_hangs_does_not_hold_up_the_end_of_the_host() {
    let collector = Collector::start();
    collector.set(Manner::Hangs);
    let mut bench = bench(&collector.origin());
    let host = bench.host();
    run(&mut bench, 20);
    crate::support::eventually("the collector is asked", || collector.heads().first().cloned());
    let log = host.stop_for_log();
    assert_eq!(log.logged("the collector of traces did not take the last spans in time").len(), 1);
}

#[test]
fn spans_wait_for_a_collector_that_comes_back() {
    let collector = Collector::start();
    collector.set(Manner::Answers(503));
    let mut bench = bench(&collector.origin());
    let host = bench.host();
    run(&mut bench, 20);
    host.log(TROUBLE);
    run(&mut bench, 20);
    collector.set(Manner::Takes);
    assert_eq!(collector.until("run work", 40).len(), 40);
    host.log("the collector of traces takes spans again");
    host.until_metric("tqhost_trace_spans_total{result=\"dropped\"}", 0);
    host.until_metric("tqhost_trace_spans_total{result=\"sent\"}", 80);
    host.stop();
}

#[test]
fn spans_that_are_refused_are_dropped_and_the_last_ones_are_sent_at_the_end() {
    let collector = Collector::start();
    collector.set(Manner::Answers(401));
    let mut bench = bench(&collector.origin());
    bench.configure_for(&(with(&collector, QUEUES) + "headers = { x-key = \"abc\" }\n"), bench.redis.port);
    let host = bench.host();
    run(&mut bench, 5);
    host.until_metric("tqhost_trace_spans_total{result=\"refused\"}", 10);
    host.log("the collector of traces refuses spans");
    collector.set(Manner::Takes);
    run(&mut bench, 5);
    host.stop();
    assert_eq!(collector.until("run work", 5).len(), 5);
    assert!(collector.heads().iter().all(|head| head.contains("x-key: abc\r\n")), "{:?}", collector.heads());
}
