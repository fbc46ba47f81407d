//! Failovers of a watched primary that lives, one after the other, under load.
//!
//! The old primary goes on taking writes until a Sentinel makes it a replica, and forgets them then. So a
//! task is lost if its producer was not told in time, and only then: each task that the last primary has must
//! be completed. `TQHOST_FAILOVERS` is the number of failovers (3).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::support::watched::client;
use crate::support::{Bench, Load, RedisServer, Watched, eventually, within};

/// The host has to work on the new primary after this time. On a machine that does nothing else it takes
/// less than 1.5 s.
const BACK: Duration = Duration::from_secs(5);
/// How often the producer asks for the primary.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// Adds tasks to the primary that the first Sentinel names.
fn load(watched: &Watched) -> Load {
    let mut sentinel = client(&watched.sentinels[0]);
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg("main");
    let (mut asked, mut at, mut primary) = (Instant::now(), 0, None);
    Load::start(Duration::from_millis(5), move |n| {
        if primary.is_none() || asked.elapsed() > ASK_EVERY {
            asked = Instant::now();
            let told: redis::RedisResult<(String, u16)> = ask.query(&mut sentinel);
            let Ok((_, port)) = told else { return false };
            if primary.is_none() || port != at {
                let opened = redis::Client::open(format!("redis://127.0.0.1:{port}"));
                primary = opened.and_then(|one| one.get_connection_with_timeout(ASK_EVERY)).ok();
                at = port;
            }
        }
        let Some(connection) = &mut primary else { return false };
        let mut add = redis::cmd("XADD");
        add.arg("work").arg("*").arg("tq-id").arg(format!("task-{n}"));
        let added = add.query::<String>(connection).is_ok();
        primary = primary.take().filter(|_| added);
        added
    })
}

fn status(server: &mut redis::Connection, id: &str) -> Option<String> {
    let mut get = redis::cmd("HGET");
    get.arg(format!("tq:{{work}}:task:{id}")).arg("status");
    get.query(server).expect("HGET")
}

/// Whether a Sentinel knows that the replica follows its primary. One that has not heard of it would undo
/// the next failover.
fn follows(sentinel: &RedisServer, replica: &RedisServer) -> bool {
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("REPLICAS").arg("main");
    let known: Vec<HashMap<String, String>> = ask.query(&mut client(sentinel)).unwrap_or_default();
    known.first().is_some_and(|known| {
        let is = |name: &str, value: &str| known.get(name).is_some_and(|known| known == value);
        is("port", &replica.port.to_string())
            && is("role-reported", "slave")
            && is("master-link-status", "ok")
    })
}

/// Lets the Sentinels make the replica the primary, while the old one lives. Returns when they have said so.
fn fail_over(watched: &Watched) -> Instant {
    let mut told = client(&watched.sentinels[0]);
    told.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let mut told = told.as_pubsub();
    told.subscribe("+switch-master").expect("SUBSCRIBE");
    let mut order = redis::cmd("SENTINEL");
    order.arg("FAILOVER").arg("main");
    let mut sentinel = client(&watched.sentinels[0]);
    // A Sentinel takes a replica only once it has heard from it that it follows.
    eventually("a Sentinel begins a failover", || order.query::<()>(&mut sentinel).ok());
    told.get_message().expect("+switch-master");
    Instant::now()
}

#[test]
fn each_task_that_the_last_primary_has_is_completed() {
    let count = std::env::var("TQHOST_FAILOVERS").ok().and_then(|count| count.parse().ok()).unwrap_or(3);
    let bench = Bench::new("[queues.unused]\n");
    let watched = Watched::start(bench.dir.path());
    for sentinel in &watched.sentinels {
        // So that a Sentinel makes the old primary a replica after 2 s, and not after 8.
        let mut hurry = redis::cmd("SENTINEL");
        hurry.arg("DEBUG").arg("INFO-PERIOD").arg(500).arg("PUBLISH-PERIOD").arg(500);
        hurry.query::<()>(&mut client(sentinel)).expect("SENTINEL DEBUG");
    }
    bench.configure(&format!("[queues.work]\nplugin = \"empty\"\nlease = \"2s\"\n{}", watched.config()));
    bench.install("empty", "empty");
    let host = bench.host();
    let load = load(&watched);
    let (mut now, mut at_risk, mut slowest) = (0, Vec::new(), Duration::ZERO);
    for n in 0..count {
        let began = Instant::now();
        let told = fail_over(&watched);
        let old = now;
        now = watched.primary_after(watched.servers[old].port);
        let mut primary = client(&watched.servers[now]);
        let id = format!("first-{n}");
        let mut add = redis::cmd("XADD");
        add.arg("work").arg("*").arg("tq-id").arg(&id);
        within(BACK, "the new primary takes a task", || add.exec(&mut primary).ok());
        within(BACK, "the host works on the new primary", || {
            (status(&mut primary, &id).as_deref() == Some("COMPLETED")).then_some(())
        });
        let back = told.elapsed();
        slowest = slowest.max(back);
        eventually("the old primary follows the new one", || {
            watched.sentinels.iter().all(|one| follows(one, &watched.servers[old])).then_some(())
        });
        println!(
            "failover {n}: the host works after {back:?}, the old primary went after {:?}",
            told.elapsed()
        );
        // A replica may lack what its primary took a moment ago.
        at_risk.push((began - Duration::from_secs(1), Instant::now()));
    }
    let accepted = load.stop();
    let mut primary = client(&watched.servers[now]);
    eventually("nothing is left in the queue", || {
        let counts: (u64, u64, u64) = redis::pipe()
            .cmd("XLEN")
            .arg("work")
            .cmd("ZCARD")
            .arg("tq:{work}:delayed")
            .cmd("XLEN")
            .arg("tq:{work}:dead")
            .query(&mut primary)
            .expect("the counts");
        (counts == (0, 0, 0)).then_some(())
    });
    let mut lost = 0;
    for task in &accepted {
        let status = status(&mut primary, &format!("task-{}", task.n));
        if status.as_deref() == Some("COMPLETED") {
            continue;
        }
        // The host may have had it when the new primary came, and has noted then that it is gone.
        let is_gone = status.as_deref().is_none_or(|status| status == "FAILED");
        assert!(is_gone, "task {} is stuck: {status:?}", task.n);
        lost += 1;
        assert!(task.is_within(&at_risk), "task {} is lost although no failover was under way", task.n);
    }
    println!("{} tasks, {lost} lost, the host worked after {slowest:?} at most", accepted.len());
    bench.tqhost(&["doctor", "work"]).ok();
    // A replica may not know how many entries its primary has read.
    let log = host.stop_for_log();
    let told = log.logged("trimmed them from the stream");
    assert!(told.is_empty(), "nobody trims the stream: {told:?}");
}
