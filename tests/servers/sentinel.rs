//! A primary that Sentinels watch.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::support::words::masked;
use crate::support::{Bench, RedisServer, Watched, eventually, watched::client};

fn add(server: &RedisServer) -> String {
    let mut add = redis::cmd("XADD");
    add.arg("work").arg("*").arg("n").arg(1);
    add.query(&mut client(server)).expect("XADD")
}

#[track_caller]
fn until_done(server: &RedisServer, id: &str) {
    eventually("the task is completed", || {
        let mut get = redis::cmd("HGET");
        get.arg(format!("tq:{{work}}:task:{id}")).arg("status");
        let status: Option<String> = get.query(&mut client(server)).ok()?;
        (status.as_deref() == Some("COMPLETED")).then_some(())
    });
}

#[test]
fn the_host_follows_the_primary_that_the_sentinels_name() {
    let bench = Bench::new("[queues.unused]\n");
    let mut watched = Watched::start(bench.dir.path());
    bench.configure(&format!("[queues.work]\nplugin = \"empty\"\nlease = \"5s\"\n{}", watched.config()));
    bench.install("empty", "empty");
    let host = bench.host();
    host.log("min-replicas-to-write is 0");
    let id = add(&watched.servers[0]);
    until_done(&watched.servers[0], &id);
    // A failover while the old primary lives. It goes on taking writes for seconds, which are lost: the host
    // must not send it any.
    let old = watched.servers[0].port;
    let began = Instant::now();
    let mut failover = redis::cmd("SENTINEL");
    failover.arg("FAILOVER").arg("main").query::<()>(&mut client(&watched.sentinels[0])).expect("a failover");
    host.log("the Sentinels name another primary");
    println!("told after {:?}", began.elapsed());
    let now = watched.primary_after(old);
    let id = add(&watched.servers[now]);
    until_done(&watched.servers[now], &id);
    host.until_ready();
    eventually("the old primary is a replica, and has the data of the new one", || {
        let info: String =
            redis::cmd("INFO").arg("replication").query(&mut client(&watched.servers[1 - now])).ok()?;
        info.contains("master_link_status:up").then_some(())
    });
    // Commands ask the Sentinels, too. One of these may be away.
    watched.sentinels[0].kill();
    let done = bench.tqhost(&["enqueue", "work", "n=1", "--wait"]).ok();
    assert!(done.stdout.contains("COMPLETED"), "{done:?}");
    let left = host.stop_for_log();
    assert!(left.raw().contains("stopped"));
}

#[test]
fn a_primary_that_dies_or_hangs_is_given_up() {
    let bench = Bench::new("[queues.unused]\n");
    let watched = Watched::start(bench.dir.path());
    for sentinel in &watched.sentinels {
        let mut set = redis::cmd("SENTINEL");
        set.arg("SET").arg("main").arg("down-after-milliseconds").arg(1000);
        set.query::<()>(&mut client(sentinel)).expect("SENTINEL SET");
    }
    bench.configure(&format!("[queues.work]\nplugin = \"empty\"\nlease = \"5s\"\n{}", watched.config()));
    bench.install("empty", "empty");
    let host = bench.host();
    let id = add(&watched.servers[0]);
    until_done(&watched.servers[0], &id);
    let pid = watched.servers[0].pid();
    kill(pid, Signal::SIGSTOP).expect("stop the primary");
    let now = watched.primary_after(watched.servers[0].port);
    let began = Instant::now();
    let id = add(&watched.servers[now]);
    until_done(&watched.servers[now], &id);
    assert!(began.elapsed() < Duration::from_secs(10), "not after a timeout: {:?}", began.elapsed());
    kill(pid, Signal::SIGCONT).expect("let it go on");
    host.stop();
}

#[test]
fn a_primary_that_sentinels_do_not_know_is_told() {
    let bench = Bench::new("[queues.work]\n");
    let sentinel = RedisServer::sentinel(&bench.dir.path().join("sentinel"), &bench.redis);
    let config = |master: &str, url: &str| {
        let redis = format!("wait = \"0s\"\nsentinel = {{ master = \"{master}\", urls = [\"{url}\"] }}");
        bench.configure(&format!("[queues.work]\n[redis]\n{redis}\n[admin]\nlisten = \"127.0.0.1:0\"\n"));
    };
    config("other", &sentinel.url());
    let refused = bench.tqhost(&["queues"]);
    insta::assert_snapshot!(
        masked(&refused.ends_with(1).stderr, &[]),
        @"tqhost: find the nodes: Redis at other of the Sentinels redis://127.0.0.1:PORT did not answer: \
          the Sentinels know no primary by the name in redis.sentinel.master - MasterNameNotFoundBySentinel"
    );
    config("main", &bench.redis.url());
    let refused = bench.tqhost(&["queues"]);
    assert!(refused.code == 1 && refused.stderr.contains("SENTINEL"), "{refused:?}");
}
