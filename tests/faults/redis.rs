//! Redis in trouble: data that a restart lost, streams and groups deleted under running tasks, failovers,
//! refused writes, changed credentials.
//!
//! Not here: restarts, outages and stalls (`hosts`), the network (`network`).

use std::time::Duration;

use crate::support::proxy::Proxy;
use crate::support::redis_server::denies;
use crate::support::words::masked;
use crate::support::{Bench, Held, Host, Places, Producer, RedisServer, eventually};

const EMPTY: &str = "[queues.work]\nplugin = \"empty\"\nlease = \"2s\"\n";
const SLEEPS: &str =
    "[queues.work]\nplugin = \"sleeps\"\nlease = \"1s\"\nconcurrency = 10\nmax_crashes = 10\n";

/// The host must run a task of the queue `work`, and be ready.
fn works(bench: &mut Bench, host: &Host) {
    let id = bench.xadd("work", &[("ms", "0")]);
    bench.until("work", &id, "COMPLETED");
    host.until_ready();
}

#[test]
fn redis_12_everysec_a_crash_of_redis_alone_loses_nothing_that_it_had_written() {
    let mut bench = Bench::new(EMPTY);
    bench.install("empty", "empty");
    let host = bench.host();
    let producer = Producer::start(&bench.redis.url(), &[]);
    for _ in 0..3 {
        producer.produce(100);
        bench.redis.kill();
        bench.redis.start_again();
    }
    let accepted = producer.stop();
    // While an fsync keeps the disk busy, Redis answers up to two seconds before it writes. A kill loses what
    // it had not written.
    let written = std::fs::read(bench.redis.append_only_file()).expect("the append-only file");
    let written = String::from_utf8_lossy(&written);
    let kept: Vec<String> =
        accepted.iter().filter(|id| written.contains(&format!("\r\n{id}\r\n"))).cloned().collect();
    assert!(kept.len() * 2 > accepted.len(), "{} of {} were written", kept.len(), accepted.len());
    bench.all_done("work", &kept);
    works(&mut bench, &host);
    host.stop();
}

#[test]
fn redis_12_everysec_a_crash_of_the_machine_loses_the_tail_and_nothing_else() {
    let mut bench = Bench::new(EMPTY);
    bench.install("empty", "empty");
    let host = bench.host();
    let producer = Producer::start(&bench.redis.url(), &[]);
    producer.produce(200);
    // Everything accepted so far is on the disk. Then the machine loses what it had not written yet.
    let kept = producer.accepted();
    let file = bench.redis.append_only_file();
    let on_disk = std::fs::metadata(&file).expect("the append-only file").len();
    producer.produce(200);
    bench.redis.kill();
    let before = std::fs::metadata(&file).expect("the append-only file").len();
    assert!(before > on_disk);
    let tail = std::fs::OpenOptions::new().write(true).open(&file).expect("open the append-only file");
    tail.set_len(on_disk).expect("cut the append-only file");
    bench.redis.start_again();
    producer.produce(100);
    let ids = producer.stop();
    bench.db = bench.redis.connection();
    bench.until_drained("work");
    let lost: Vec<&String> =
        ids.iter().filter(|id| bench.status("work", id, "status") != "COMPLETED").collect();
    assert!(!lost.is_empty() && lost.len() <= 210, "what was in the tail is lost: {}", lost.len());
    assert!(lost.iter().all(|id| !kept.contains(id)), "what was on the disk is not: {lost:?}");
    assert_eq!(bench.places("work"), Places::default(), "nothing is stuck");
    works(&mut bench, &host);
    host.stop();
}

#[test]
fn redis_12_without_persistence_everything_is_lost_and_the_host_goes_on() {
    let mut bench = Bench::with_redis(SLEEPS, &["--appendonly", "no"]);
    bench.install("sleeps", "sleeps");
    let host = bench.host();
    let lost: Vec<String> = (0..20).map(|_| bench.xadd("work", &[("ms", "2500")])).collect();
    bench.until_running("work", 10);
    bench.redis.kill();
    bench.redis.start_again();
    bench.db = bench.redis.connection();
    host.log("created anew");
    works(&mut bench, &host);
    let ids: Vec<String> = (0..20).map(|_| bench.xadd("work", &[("ms", "100")])).collect();
    bench.all_done("work", &ids);
    // Attempts whose tasks were gone wrote nothing.
    for id in lost {
        assert_eq!(bench.status("work", &id, "status"), "");
    }
    host.stop();
}

#[test]
fn redis_13_the_group_is_destroyed_while_tasks_run() {
    let mut bench = Bench::new(SLEEPS);
    bench.install("sleeps", "sleeps");
    let host = bench.host();
    let ids: Vec<String> = (0..20).map(|_| bench.xadd("work", &[("ms", "2500")])).collect();
    bench.until_running("work", 10);
    assert!(bench.redis::<bool>("XGROUP", ("DESTROY", "work", "tqhost")));
    host.log("created anew");
    bench.all_done("work", &ids);
    // Each task was committed once.
    host.until_ended_as("work", "completed", 20);
    works(&mut bench, &host);
    host.stop();
}

#[test]
fn redis_13_the_stream_is_deleted_while_tasks_run() {
    let mut bench = Bench::new(SLEEPS);
    bench.install("sleeps", "sleeps");
    let host = bench.host();
    let lost: Vec<String> = (0..10).map(|_| bench.xadd("work", &[("ms", "60000")])).collect();
    bench.until_running("work", 10);
    assert!(bench.redis::<bool>("DEL", "work"));
    host.log("created anew");
    host.log("were deleted by somebody else");
    for id in &lost {
        bench.until("work", id, "FAILED");
        assert!(bench.redis::<i64>("TTL", format!("tq:{{work}}:task:{id}")) > 0, "its status expires");
    }
    host.until_count("tqhost_lost_entries_total", "work", 10);
    let ids: Vec<String> = (0..20).map(|_| bench.xadd("work", &[("ms", "100")])).collect();
    bench.all_done("work", &ids);
    works(&mut bench, &host);
    host.stop();
}

#[test]
fn redis_13_the_stream_is_deleted_between_a_delivery_and_the_begin_of_its_task() {
    let mut bench = Bench::new(SLEEPS);
    let proxy = Proxy::start(bench.redis.port);
    bench.configure_for(SLEEPS, proxy.port);
    bench.install("sleeps", "sleeps");
    let host = bench.host();
    works(&mut bench, &host);
    // The read is at Redis. Its reply arrives after the stream is deleted.
    proxy.part();
    let lost = bench.xadd("work", &[("ms", "60000")]);
    bench.until_pending("work", 1);
    assert!(bench.redis::<bool>("DEL", "work"));
    proxy.heal();
    bench.until("work", &lost, "FAILED");
    assert!(bench.redis::<i64>("TTL", format!("tq:{{work}}:task:{lost}")) > 0, "its status expires");
    host.log("were deleted by somebody else");
    host.until_count("tqhost_lost_entries_total", "work", 1);
    assert_eq!(host.count("tqhost_lease_lost_total", "work"), 0);
    works(&mut bench, &host);
    host.stop();
}

/// A bench whose host uses a proxy, and a replica of its Redis that the host does not know.
struct Pair {
    bench: Bench,
    /// The proxy that host and producer use.
    front: Proxy,
    /// The proxy between the replica and its primary.
    wire: Proxy,
    replica: RedisServer,
    _dir: tempfile::TempDir,
}

fn pair(queues: &str, guest: &str) -> Pair {
    let mut bench = Bench::new(queues);
    bench.install(guest, guest);
    let (front, wire) = (Proxy::start(bench.redis.port), Proxy::start(bench.redis.port));
    bench.configure_for(queues, front.port);
    let dir = tempfile::tempdir().expect("a folder");
    let master = format!("127.0.0.1 {}", wire.port);
    let replica =
        RedisServer::start(dir.path(), &["--replicaof", &master, "--repl-diskless-sync-delay", "0"]);
    let _: () = bench.redis("CONFIG", ("SET", "repl-diskless-sync-delay", "0"));
    let mut db = replica.connection();
    eventually("the replica follows", || {
        let info: String = redis::cmd("INFO").arg("replication").query(&mut db).ok()?;
        info.contains("master_link_status:up").then_some(())
    });
    Pair { bench, front, wire, replica, _dir: dir }
}

/// Waits until the replica has received everything, by Redis's own count.
fn until_level(bench: &mut Bench) {
    // WAIT speaks of the writes of its own connection and of those before them, so this one writes something.
    let _: () = bench.redis("SETEX", ("level", 60, 1));
    eventually("the replica is level with its primary", || {
        let level: u64 = bench.redis("WAIT", (1, 100));
        (level == 1).then_some(())
    });
}

#[test]
fn redis_15_failover_to_a_replica_that_lags_behind() {
    let Pair { mut bench, front, wire, replica, _dir } = pair(EMPTY, "empty");
    let host = bench.host();
    let producer = Producer::start(&format!("redis://127.0.0.1:{}", front.port), &[]);
    producer.produce(200);
    let kept = producer.accepted();
    until_level(&mut bench);
    // From here on the replica receives nothing: it will not know the tasks that are accepted and completed
    // now.
    wire.part();
    producer.produce(100);
    bench.redis.kill();
    front.lead_to(replica.port);
    let mut db = replica.connection();
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").query::<()>(&mut db).expect("promote the replica");
    producer.produce(100);
    let ids = producer.stop();
    bench.redis = replica;
    bench.db = db;
    bench.until_drained("work");
    let lost: Vec<&String> =
        ids.iter().filter(|id| bench.status("work", id, "status") != "COMPLETED").collect();
    assert!(
        !lost.is_empty() && lost.len() <= 110,
        "what the replica had not heard of is lost: {}",
        lost.len()
    );
    assert!(lost.iter().all(|id| !kept.contains(id)), "what it had is not: {lost:?}");
    assert_eq!(bench.places("work"), Places::default(), "nothing is stuck");
    host.until_ready();
    host.stop();
}

#[test]
fn redis_17_a_demoted_primary_is_left_for_its_successor() {
    let Pair { mut bench, front, wire: _wire, replica, _dir } = pair(SLEEPS, "sleeps");
    let host = bench.host();
    let ids: Vec<String> = (0..20).map(|_| bench.xadd("work", &[("ms", "2500")])).collect();
    bench.until_running("work", 10);
    until_level(&mut bench);
    // The roles change while tasks run. The host stays connected to the old primary, which is now read-only.
    let mut db = replica.connection();
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").query::<()>(&mut db).expect("promote the replica");
    front.lead_to(replica.port);
    let _: () = bench.redis("REPLICAOF", ("127.0.0.1", replica.port));
    let old = std::mem::replace(&mut bench.redis, replica);
    bench.db = db;
    bench.all_done("work", &ids);
    for id in &ids {
        assert_eq!(bench.status("work", id, "attempt"), "1");
    }
    eventually("it says why", || host.raw().contains("read only replica").then_some(()));
    works(&mut bench, &host);
    host.stop();
    drop(old);
}

#[test]
fn redis_18_without_memory_nothing_is_accepted_and_everything_is_settled() {
    let queues = "[defaults]\nlease = \"2s\"\nbackoff = { delays = [\"100ms\"] }\n\
                  [queues.work]\nplugin = \"sleeps\"\n[queues.twice]\nplugin = \"fails-twice\"\n\
                  [queues.bad]\nplugin = \"rejects\"\n";
    let mut bench = Bench::with_redis(queues, &["--maxmemory-policy", "noeviction"]);
    for guest in ["sleeps", "fails-twice", "rejects"] {
        bench.install(guest, guest);
    }
    let host = bench.host();
    let mut running = Vec::new();
    for _ in 0..5 {
        running.push(bench.xadd("work", &[("ms", "3000")]));
    }
    bench.until_running("work", 5);
    bench.tqhost(&["pause", "twice"]).ok();
    bench.tqhost(&["pause", "bad"]).ok();
    host.log("tqhost is running");
    eventually("the pauses are seen", || {
        (host.get("/readyz").body.matches("\"paused\"").count() == 2).then_some(())
    });
    let (twice, bad) = (bench.xadd("twice", &[("n", "1")]), bench.xadd("bad", &[("n", "1")]));
    let _: () = bench.redis("CONFIG", ("SET", "maxmemory", "1"));
    // The command is refused with a reason, and nothing is half written.
    let refused = bench.tqhost(&["enqueue", "work", "ms=0"]);
    assert!(refused.code == 1 && refused.stderr.contains("maxmemory"), "{refused:?}");
    let delayed = bench.tqhost(&["enqueue", "work", "ms=0", "--delay", "1s"]);
    assert!(delayed.code == 1 && delayed.stderr.contains("maxmemory"), "{delayed:?}");
    // Running tasks are settled, and queued and delayed tasks still run.
    for id in &running {
        bench.until("work", id, "COMPLETED");
    }
    bench.until_drained("work");
    bench.tqhost(&["resume", "bad"]).ok();
    bench.until("bad", &bad, "FAILED");
    bench.tqhost(&["resume", "twice"]).ok();
    bench.until("twice", &twice, "COMPLETED");
    // Redis has memory again, and no restart is needed.
    let _: () = bench.redis("CONFIG", ("SET", "maxmemory", "0"));
    works(&mut bench, &host);
    bench.tqhost(&["enqueue", "work", "ms=0", "--wait"]).ok();
    host.stop();
}

/// Redis refuses all writes with `code` between `refuse` and `allow`. Tasks that run meanwhile end
/// afterwards.
fn writes_refused(code: &str, refuse: impl FnOnce(&mut Bench), allow: impl FnOnce(&mut Bench)) {
    let mut bench = Bench::new(SLEEPS);
    bench.install("sleeps", "sleeps");
    let host = bench.host();
    let ids: Vec<String> = (0..20).map(|_| bench.xadd("work", &[("ms", "2500")])).collect();
    bench.until_running("work", 10);
    refuse(&mut bench);
    host.until_unready(code);
    let refused = bench.tqhost(&["enqueue", "work", "ms=0"]);
    assert!(refused.code == 1 && refused.stderr.contains(code), "{refused:?}");
    eventually("the attempts have ended", || (host.logged("attempt ended").len() >= 10).then_some(()));
    assert_eq!(bench.places("work").length, 20, "nothing is settled");
    allow(&mut bench);
    bench.all_done("work", &ids);
    // Each task was committed once.
    host.until_ended_as("work", "completed", 20);
    works(&mut bench, &host);
    host.stop();
}

/// Waits until Redis has saved its data, or could not.
fn until_saved(bench: &mut Bench, status: &str) {
    eventually(&format!("the last save is {status}"), || {
        // A save that is already running is enough.
        let _ = redis::cmd("BGSAVE").query::<redis::Value>(&mut bench.db);
        let info: String = bench.redis("INFO", "persistence");
        info.contains(&format!("rdb_last_bgsave_status:{status}")).then_some(())
    });
}

/// Keeps Redis from saving its data: a folder is in the place of the file.
fn keep_from_saving(bench: &mut Bench) {
    std::fs::create_dir(bench.redis.dir().join("dump.rdb")).expect("create a folder");
    std::fs::write(bench.redis.dir().join("dump.rdb/full"), "").expect("write a file");
    let _: () = bench.redis("CONFIG", ("SET", "save", "3600 1"));
    until_saved(bench, "err");
}

fn let_save(bench: &mut Bench) {
    std::fs::remove_dir_all(bench.redis.dir().join("dump.rdb")).expect("remove a folder");
    until_saved(bench, "ok");
}

#[test]
fn redis_20_misconf_writes_are_refused_until_redis_can_save() {
    writes_refused("MISCONF", keep_from_saving, let_save);
}

#[test]
fn redis_20_a_host_that_starts_while_redis_cannot_save_waits_for_it() {
    let mut bench = Bench::new(EMPTY);
    bench.install("empty", "empty");
    keep_from_saving(&mut bench);
    let host = bench.host_that_may_fail();
    host.log("Redis cannot be used yet; the host waits for it (redis.wait)");
    let_save(&mut bench);
    works(&mut bench, &host);
    host.stop();
}

#[test]
fn redis_20_noreplicas_writes_are_refused_until_there_are_enough() {
    writes_refused(
        "NOREPLICAS",
        |bench| bench.redis("CONFIG", ("SET", "min-replicas-to-write", "1")),
        |bench| bench.redis("CONFIG", ("SET", "min-replicas-to-write", "0")),
    );
}

#[test]
fn redis_20_hosts_whose_writes_are_refused_for_longer_than_a_lease_keep_their_tasks() {
    let names: Vec<String> = (0..20).map(|n| format!("q{n}")).collect();
    let head = "[defaults]\nplugin = \"fetches\"\nlease = \"6s\"\ntimeout = \"5m\"\n".to_owned();
    let queues = names.iter().fold(head, |text, name| text + &format!("[queues.{name}]\n"));
    let held = Held::new();
    let mut bench = held.bench(&queues);
    let hosts = [bench.host(), bench.host()];
    hosts.iter().for_each(Host::until_ready);
    for name in &names {
        bench.xadd(name, &held.task());
    }
    for name in &names {
        bench.until_running(name, 1);
    }
    // The pending entry of each queue: its id, owner, ms since the last heartbeat, and deliveries.
    let pending = |bench: &mut Bench| -> Vec<(String, String, u64, u64)> {
        let of = |name: &String| -> Vec<(String, String, u64, u64)> {
            bench.redis("XPENDING", (name, "tqhost", "-", "+", 1))
        };
        names.iter().flat_map(of).collect()
    };
    let owners = |bench: &mut Bench| -> Vec<(String, u64)> {
        pending(bench).into_iter().map(|(_, owner, _, deliveries)| (owner, deliveries)).collect()
    };
    let before = owners(&mut bench);
    let _: () = bench.redis("CONFIG", ("SET", "min-replicas-to-write", "1"));
    eventually("all leases are over", || {
        pending(&mut bench).iter().all(|(_, _, idle, _)| *idle > 6500).then_some(())
    });
    let _: () = bench.redis("CONFIG", ("SET", "min-replicas-to-write", "0"));
    eventually("all tasks have an owner again", || {
        pending(&mut bench).iter().all(|(_, _, idle, _)| *idle < 6000).then_some(())
    });
    assert_eq!(owners(&mut bench), before, "no task changed its owner, and none is charged with a crash");
    for name in &names {
        let of = |counter: &str| hosts.iter().map(|host| host.count(counter, name)).sum::<u64>();
        assert_eq!((of("tqhost_reclaimed_total"), of("tqhost_lease_lost_total")), (0, 0), "{name}");
    }
    held.end();
    for name in &names {
        bench.until_drained(name);
    }
    Host::stop_all(hosts);
}

/// The ids of the clients that wait in a blocking read.
pub fn blocked(bench: &mut Bench) -> Vec<u64> {
    let list: String = bench.redis("CLIENT", "LIST");
    let reading = list.lines().filter(|line| line.contains("cmd=xreadgroup") && line.contains("flags=b"));
    reading.filter_map(|line| line.strip_prefix("id=")?.split(' ').next()?.parse().ok()).collect()
}

#[test]
fn redis_22_unblocked_reads_are_tried_again() {
    let mut bench = Bench::new(EMPTY);
    bench.install("empty", "empty");
    let host = bench.host();
    for _ in 0..3 {
        let unblocked = eventually("a read is ended with an error", || {
            let id = *blocked(&mut bench).first()?;
            (bench.redis::<u64>("CLIENT", ("UNBLOCK", id, "ERROR")) == 1).then_some(id)
        });
        eventually("it reads again", || blocked(&mut bench).contains(&unblocked).then_some(()));
    }
    works(&mut bench, &host);
    let log = host.stop_for_log();
    assert!(log.logged("was deleted").is_empty(), "nothing was deleted: {}", log.raw());
}

#[test]
fn redis_22_a_group_destroyed_under_a_blocked_read_is_created_anew() {
    let mut bench = Bench::new(EMPTY);
    bench.install("empty", "empty");
    let host = bench.host();
    eventually("the host waits for tasks", || (blocked(&mut bench).len() == 1).then_some(()));
    assert!(bench.redis::<bool>("XGROUP", ("DESTROY", "work", "tqhost")));
    let id = bench.xadd("work", &[("n", "1")]);
    bench.until("work", &id, "COMPLETED");
    host.log("created anew");
    host.until_ready();
    host.stop();
}

#[test]
fn redis_23_while_redis_loads_its_data_the_host_waits() {
    let mut bench = Bench::new(SLEEPS);
    bench.install("sleeps", "sleeps");
    let mut filler = redis::pipe();
    for n in 0..2000 {
        filler.cmd("SET").arg(format!("filler:{n}")).arg("x".repeat(100)).ignore();
    }
    filler.query::<()>(&mut bench.db).expect("fill Redis");
    let host = bench.host();
    let ids: Vec<String> = (0..5).map(|_| bench.xadd("work", &[("ms", "500")])).collect();
    bench.until_running("work", 5);
    // Each of its commands takes a millisecond to load, and Redis answers others meanwhile.
    let _: () = bench
        .redis("CONFIG", ("SET", "key-load-delay", "1000", "loading-process-events-interval-bytes", "1024"));
    let mut loading = bench.redis.connection();
    let load = std::thread::spawn(move || redis::cmd("DEBUG").arg("LOADAOF").query::<()>(&mut loading));
    eventually("a settlement is refused while Redis loads", || {
        let lines = host.logged("a call to Redis failed; trying again");
        let told = |line: &serde_json::Value| {
            line["error"].as_str().is_some_and(|error| error.contains("loading the dataset"))
        };
        lines.iter().any(|line| line["loop"] == "settle" && told(line)).then_some(())
    });
    load.join().expect("the thread").expect("DEBUG LOADAOF");
    bench.all_done("work", &ids);
    works(&mut bench, &host);
    host.stop();
}

#[test]
fn redis_16_a_node_of_a_cluster_is_told_from_one_server_and_what_a_cluster_would_refuse() {
    let queues = "[queues.work]\nlist = \"items\"\n";
    let bench = Bench::new(queues);
    let dir = bench.dir.path().join("cluster");
    let extra = ["--cluster-enabled", "yes", "--cluster-port", "{bus}"];
    let cluster = RedisServer::start(&dir, &extra);
    bench.configure_url(queues, &cluster.url());
    for args in [&["run"][..], &["queues"]] {
        let refused = bench.tqhost(args);
        assert_eq!(refused.code, 1, "{refused:?}");
        let last = refused.stderr.lines().last().unwrap_or_default();
        insta::allow_duplicates! { insta::assert_snapshot!(masked(last, &[]), @"
        tqhost: Redis at redis://127.0.0.1:PORT is a node of a cluster: write redis.url as a list of urls \
        of some of its nodes, like [\"redis://127.0.0.1:PORT\"]
        ") };
    }
    let view = bench.tqhost(&["check", "--json"]).json();
    insta::assert_snapshot!(view["notes"][0].as_str().expect("a note"), @"
    queues.work.list: a Redis Cluster would refuse it: \"items\" may lie in another slot than the stream \
    \"work\": write stream = \"{items}:stream\", which changes nothing for producers
    ");
}

/// Closes all connections but the test's own.
fn cut(bench: &mut Bench) {
    let _: i64 = bench.redis("CLIENT", ("KILL", "TYPE", "normal", "SKIPME", "yes"));
}

#[test]
fn redis_16_a_sentinel_is_told_from_the_redis_that_it_watches() {
    let bench = Bench::new(EMPTY);
    let sentinel = RedisServer::sentinel(&bench.dir.path().join("sentinel"), &bench.redis);
    bench.configure_url(EMPTY, &sentinel.url());
    for args in [&["run"][..], &["queues"], &["enqueue", "work", "n=1"]] {
        let refused = bench.tqhost(args);
        assert_eq!(refused.code, 1, "{refused:?}");
        let last = refused.stderr.lines().last().unwrap_or_default();
        insta::allow_duplicates! { insta::assert_snapshot!(masked(last, &[]), @"
        tqhost: redis://127.0.0.1:PORT is a Sentinel, which holds no tasks: write its url into \
        redis.sentinel in place of redis.url, like sentinel = { master = \"main\", urls = \
        [\"redis://127.0.0.1:PORT\"] }
        ") };
    }
}

#[test]
fn redis_23_a_password_that_changed_and_changed_back() {
    let mut bench = Bench::new(EMPTY);
    bench.install("empty", "empty");
    let _: () = bench.redis("ACL", ("SETUSER", "host", "on", ">right", "~*", "&*", "+@all"));
    bench.configure_url(EMPTY, &format!("redis://host:right@127.0.0.1:{}", bench.redis.port));
    let host = bench.host();
    works(&mut bench, &host);
    let _: () = bench.redis("ACL", ("SETUSER", "host", "resetpass", ">wrong"));
    cut(&mut bench);
    host.until_unready("refused the credentials");
    host.until_unready("authentication failed");
    let id = bench.xadd("work", &[("n", "1")]);
    let _: () = bench.redis("ACL", ("SETUSER", "host", "resetpass", ">right"));
    bench.until("work", &id, "COMPLETED");
    works(&mut bench, &host);
    assert!(!host.stop_for_log().raw().contains("right"), "no password is logged");
}

#[test]
fn redis_23_a_password_that_is_suddenly_needed() {
    let mut bench = Bench::new(EMPTY);
    bench.install("empty", "empty");
    let host = bench.host();
    works(&mut bench, &host);
    let _: () = bench.redis("CONFIG", ("SET", "requirepass", "secret"));
    cut(&mut bench);
    host.until_unready("refused the credentials");
    host.until_unready("NOAUTH");
    let refused = bench.tqhost(&["enqueue", "work", "n=1"]);
    assert!(refused.code == 1 && refused.stderr.contains("refused the credentials"), "{refused:?}");
    let _: () = bench.redis("CONFIG", ("SET", "requirepass", ""));
    works(&mut bench, &host);
    host.stop();
}

#[test]
fn redis_23_a_redis_that_takes_no_more_clients() {
    let mut bench = Bench::new(EMPTY);
    bench.install("empty", "empty");
    let host = bench.host();
    works(&mut bench, &host);
    let _: () = bench.redis("CONFIG", ("SET", "maxclients", "1"));
    cut(&mut bench);
    let id = bench.xadd("work", &[("n", "1")]);
    // Redis gives the reason and closes at once, so the client may lose the reason before it reads it.
    host.until_unready("did not answer");
    let _: () = bench.redis("CONFIG", ("SET", "maxclients", "1000"));
    bench.until("work", &id, "COMPLETED");
    works(&mut bench, &host);
    host.stop();
}

/// A host whose Redis user loses the right to `command` while a task runs.
fn denied(command: &str, mut see: impl FnMut(&mut Bench, &Host)) {
    let queues = "[queues.work]\nplugin = \"sleeps\"\nlease = \"2s\"\n";
    let mut bench = Bench::new(queues);
    bench.install("sleeps", "sleeps");
    let _: () = bench.redis("ACL", ("SETUSER", "host", "on", ">p", "~*", "&*", "+@all"));
    bench.configure_url(queues, &format!("redis://host:p@127.0.0.1:{}", bench.redis.port));
    let host = bench.host();
    let running = bench.xadd("work", &[("ms", "3000")]);
    bench.until("work", &running, "PROCESSING");
    let _: () = bench.redis("ACL", ("SETUSER", "host", format!("-{command}")));
    see(&mut bench, &host);
    let _: () = bench.redis("ACL", ("SETUSER", "host", format!("+{command}")));
    bench.until("work", &running, "COMPLETED");
    works(&mut bench, &host);
    assert_eq!(bench.status("work", &running, "attempt"), "1");
    assert_eq!(
        host.count("tqhost_lease_lost_total", "work"),
        0,
        "a refusal is no lost lease: {}",
        host.raw()
    );
    host.stop();
}

/// The log must say which loop is refused, or which step of a task.
fn refused(host: &Host, place: &str) {
    let told = |reason: &serde_json::Value| reason.as_str().is_some_and(denies);
    eventually("the refusal is in the log", || {
        let calls = host.logged("a call to Redis failed; trying again");
        let steps = host.logged("Redis refused a step of a task; trying again");
        let is_told = calls.iter().any(|line| line["loop"] == place && told(&line["error"]))
            || steps.iter().any(|line| line["step"] == place && told(&line["why"]));
        is_told.then_some(())
    });
}

#[test]
fn redis_23_denied_xclaim_stops_heartbeats_and_nothing_else() {
    denied("xclaim", |bench, host| {
        refused(host, "heartbeat");
        let other = bench.xadd("work", &[("ms", "0")]);
        bench.until("work", &other, "COMPLETED");
        host.until_ready();
    });
}

#[test]
fn redis_23_denied_xreadgroup_makes_the_host_unready() {
    denied("xreadgroup", |_, host| {
        refused(host, "fetch");
        host.until_unready("no permissions");
    });
}

#[test]
fn redis_23_denied_xpending_is_not_taken_for_a_lost_lease() {
    denied("xpending", |bench, host| {
        refused(host, "heartbeat");
        // A task that is claimed now cannot begin, and is not dropped.
        bench.xadd("work", &[("tq-id", "other"), ("ms", "0")]);
        eventually("it is delivered", || (bench.places("work").pending == 2).then_some(()));
        refused(host, "begin");
        assert_eq!(bench.status("work", "other", "status"), "");
    });
}

#[test]
fn redis_23_denied_xack_keeps_what_has_ended_until_it_can_be_settled() {
    denied("xack", |bench, host| {
        refused(host, "settle");
        assert_eq!(bench.places("work"), Places { length: 1, pending: 1, ..Places::default() });
    });
}

#[test]
fn redis_21_a_busy_script_of_somebody_else_is_waited_out() {
    let mut bench = Bench::new(SLEEPS);
    bench.install("sleeps", "sleeps");
    let host = bench.host();
    let ids: Vec<String> = (0..10).map(|_| bench.xadd("work", &[("ms", "2500")])).collect();
    bench.until_running("work", 10);
    let _: () = bench.redis("CONFIG", ("SET", "busy-reply-threshold", "100"));
    let mut busy = bench.redis.connection();
    busy.set_read_timeout(Some(Duration::from_secs(30))).expect("set a time-out");
    let script =
        std::thread::spawn(move || redis::cmd("EVAL").arg("while true do end").arg(0).query::<()>(&mut busy));
    host.until_unready("BUSY");
    let _: () = bench.redis("SCRIPT", "KILL");
    assert!(script.join().expect("the thread").is_err());
    bench.all_done("work", &ids);
    works(&mut bench, &host);
    host.stop();
}
