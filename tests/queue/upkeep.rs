//! The upkeep of a queue, and the warnings that an operator gets before data is lost.

use crate::support::{Bench, Host, eventually};

#[test]
fn data_37_names_of_hosts_that_are_gone_are_removed_and_what_is_pending_is_not() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\nmax_crashes = 100\n");
    bench.install("echo", "echo");
    let pending = bench.xadd("work", &[("n", "1")]);
    let _: () = bench.redis("XGROUP", ("CREATE", "work", "tqhost", "0"));
    let _: redis::Value =
        bench.redis("XREADGROUP", ("GROUP", "tqhost", "holds-one", "COUNT", 1, "STREAMS", "work", ">"));
    let mut pipe = redis::pipe();
    for n in 0..2000 {
        pipe.cmd("XGROUP").arg("CREATECONSUMER").arg("work").arg("tqhost").arg(format!("gone-{n}")).ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("consumers");
    let consumers =
        |bench: &mut Bench| bench.redis::<Vec<redis::Value>>("XINFO", ("CONSUMERS", "work", "tqhost")).len();
    assert_eq!(consumers(&mut bench), 2001);
    let queue = queue(&bench);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let sweep =
        |limit| runtime.block_on(queue.sweep_consumers(std::time::Duration::ZERO, limit)).expect("a sweep");
    // Idle times count from the consumer's last command, in whole milliseconds.
    eventually("a first part is removed", || (sweep(500) == 500).then_some(()));
    assert_eq!(consumers(&mut bench), 1501);
    assert_eq!(sweep(10_000), 1500);
    assert_eq!(consumers(&mut bench), 1, "the one with something pending stays");
    let host = bench.host();
    // Its task is reclaimed after the lease, and then its name can be removed.
    bench.redis::<redis::Value>(
        "XCLAIM",
        ("work", "tqhost", "holds-one", 0, &pending, "IDLE", 60_000, "JUSTID"),
    );
    bench.until("work", &pending, "COMPLETED");
    assert!(sweep(10_000) >= 1);
    let left: Vec<Vec<redis::Value>> = bench.redis("XINFO", ("CONSUMERS", "work", "tqhost"));
    assert!(!format!("{left:?}").contains("holds-one"), "{left:?}");
    host.stop();
}

/// The queue of the library, on the test's Redis.
fn queue(bench: &Bench) -> tqhost::testing::queue::Queue {
    let config = tqhost::testing::config::Config::load(&bench.config()).expect("a configuration");
    let redis = tqhost::testing::queue::Redis::open(&bench.redis.url()).expect("a URL");
    tqhost::testing::queue::Queue::new(config.queues[0].clone(), redis.link())
}

#[test]
fn redis_19_what_may_lose_tasks_is_told_at_the_start() {
    let mut bench = Bench::with_redis(
        "[queues.work]\nplugin = \"echo\"\n",
        &["--maxmemory-policy", "allkeys-lru", "--appendonly", "no"],
    );
    bench.install("echo", "echo");
    bench.xadd("work", &[("n", "1")]);
    let host = bench.host();
    for text in ["maxmemory-policy to noeviction", "a restart loses all tasks"] {
        assert_eq!(host.log(text)["level"], "WARN", "{text}");
    }
    host.stop();
}

#[test]
fn a_redis_that_keeps_what_it_was_given_causes_no_warning() {
    let bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    bench.install("echo", "echo");
    let host = bench.host();
    eventually("it reads", || (host.get("/readyz").status == 200).then_some(()));
    let raw = host.stop_for_log().raw();
    // Tests may run as root, which has a line of its own.
    let told = raw.lines().filter(|line| line.contains("\"WARN\"") || line.contains("\"ERROR\""));
    let told: Vec<&str> = told.filter(|line| !line.contains("the host runs as root")).collect();
    assert!(told.is_empty(), "{raw}");
}

#[test]
fn a_second_group_that_comes_while_hosts_run_is_told_and_loses_what_ends() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    bench.install("echo", "echo");
    let hosts = [bench.host(), bench.host()];
    hosts.iter().for_each(|host| host.until_ready());
    let _: () = bench.redis("XGROUP", ("CREATE", "work", "audit", "0"));
    // A queue at rest is not looked at, and loses nothing.
    let id = bench.xadd("work", &[("n", "1")]);
    bench.until("work", &id, "COMPLETED");
    let what = "the stream has got other consumer groups";
    let told = eventually("a host tells of it", || hosts.iter().find_map(|host| host.logged(what).pop()));
    assert_eq!((&told["level"], &told["queue"]), (&"WARN".into(), &"work".into()), "{told}");
    assert_eq!(told["groups"], "audit", "{told}");
    insta::assert_snapshot!(
        told["message"].as_str().unwrap_or_default(),
        @"the stream has got other consumer groups, and loses each entry when its task has ended. A \
          host that starts will not serve the queue, unless `tqhost adopt work --yes` confirms it"
    );
    // The hosts go on, and the other group does not get what has ended.
    let next = bench.xadd("work", &[("n", "2")]);
    bench.until("work", &next, "COMPLETED");
    eventually("it is settled", || (bench.places("work").length == 0).then_some(()));
    let read = ("GROUP", "audit", "c", "COUNT", 10, "STREAMS", "work", ">");
    assert_eq!(bench.redis::<Option<redis::Value>>("XREADGROUP", read), None);
    // Confirmed, it stops no host that starts.
    bench.tqhost(&["adopt", "work", "--yes"]).ok();
    Host::stop_all(hosts);
    let host = bench.host();
    host.until_ready();
    assert!(host.logged("no task is taken").is_empty() && host.logged(what).is_empty());
    host.stop();
}

#[test]
fn an_enqueue_that_is_repeated_after_its_task_has_ended_is_no_second_task() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"empty\"\nretention = \"0s\"\n");
    bench.install("empty", "empty");
    let host = bench.host();
    let queue = queue(&bench);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let field = tqhost::testing::task::Field { name: "n".into(), value: b"1".to_vec() };
    let task = tqhost::testing::queue::NewTask::new(vec![field], std::time::Duration::ZERO).expect("a task");
    for _ in 0..2 {
        let accepted = runtime.block_on(queue.enqueue(std::slice::from_ref(&task))).expect("a reply");
        assert!(matches!(accepted[0], Ok(tqhost::testing::queue::Enqueued::Accepted)), "{accepted:?}");
        bench.until_drained("work");
        host.until_ended_as("work", "completed", 1);
    }
    bench.xadd("work", &[("n", "2")]);
    host.until_ended_as("work", "completed", 2);
    assert_eq!(bench.status("work", task.id(), "status"), "", "nothing is told of it");
    assert!((1..=60).contains(&bench.redis::<i64>("TTL", format!("tq:{{work}}:task:{}", task.id()))));
    host.stop();
}
