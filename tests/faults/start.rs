//! How a host starts and ends beside what else the machine starts: Redis, and a service manager.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Bench, Held, Host, Places, eventually};

const QUEUE: &str = "[queues.work]\nplugin = \"echo\"\n";

/// Writes a configuration with `wait`.
fn configure(bench: &Bench, wait: &str) {
    let url = bench.redis.url();
    bench.configure(&format!(
        "{QUEUE}[redis]\nurl = \"{url}\"\nwait = \"{wait}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n"
    ));
}

#[test]
fn a_host_waits_for_a_redis_that_starts_after_it() {
    let mut bench = Bench::new("");
    configure(&bench, "10m");
    bench.install("echo", "echo");
    bench.redis.stop();
    let host = bench.host_that_may_fail();
    let told = host.log("the host waits for it (redis.wait)");
    assert!(told["error"].as_str().is_some_and(|why| why.contains("did not answer")), "{told}");
    bench.redis.start_again();
    host.log("tqhost is running");
    bench.db = bench.redis.connection();
    let id = bench.xadd("work", &[("a", "1")]);
    bench.until("work", &id, "COMPLETED");
    let log = host.stop_for_log();
    assert_eq!(log.logged("(redis.wait)").len(), 1, "it is told once");
}

#[test]
fn a_host_that_waited_long_enough_ends_and_says_why() {
    let mut bench = Bench::new("");
    configure(&bench, "700ms");
    bench.redis.stop();
    let mut host = bench.host_that_may_fail();
    assert_eq!(host.ended(), 1);
    assert!(host.raw().contains("did not answer"), "{}", host.raw());
    assert_eq!(host.logged("(redis.wait)").len(), 1);
}

#[test]
fn a_service_manager_is_told_that_a_host_is_ready_lives_and_stops() {
    let held = Held::new();
    let mut bench = held.bench("[queues.work]\nplugin = \"fetches\"\n");
    let path = bench.dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let next = || {
        let mut text = [0; 256];
        let length = socket.recv(&mut text).expect("the host tells something");
        String::from_utf8_lossy(&text[..length]).trim().to_owned()
    };
    let mut command = Host::command(&bench.config());
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "300000");
    let mut host = Host::spawn(command);
    assert_eq!(next(), "READY=1");
    assert_eq!([next(), next()], ["WATCHDOG=1", "WATCHDOG=1"]);
    bench.xadd("work", &held.task());
    bench.until_running("work", 1);
    host.signal(Signal::SIGTERM);
    while next() != "STOPPING=1" {}
    let answer = eventually("it is not ready", || {
        let answer = host.get("/readyz");
        (answer.status == 503).then_some(answer)
    });
    let report: Value = serde_json::from_str(&answer.body).expect("JSON");
    assert_eq!(report["stopping"], true, "{report}");
    held.end();
    assert_eq!(host.ended(), 0);
    assert_eq!(bench.places("work"), Places::default());
}

#[test]
fn a_service_manager_is_told_ready_when_readyz_says_so_and_not_before() {
    let mut bench = Bench::new(&format!("{QUEUE}[queues.other]\nplugin = \"echo\"\n"));
    bench.install("echo", "echo");
    // A queue that cannot be read: its stream has another type.
    let _: () = bench.redis("SET", &["other", "a string"]);
    let path = bench.dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    let mut command = Host::command(&bench.config());
    command.env("NOTIFY_SOCKET", &path);
    let host = Host::spawn(command);
    host.log("tqhost is running");
    // It works: the other queue is served.
    let id = bench.xadd("work", &[("a", "1")]);
    bench.until("work", &id, "COMPLETED");
    host.until_unready("other");
    let mut text = [0; 256];
    socket.set_nonblocking(true).expect("does not block");
    assert_eq!(socket.recv(&mut text).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
    let _: () = bench.redis("DEL", &["other"]);
    let told = eventually("the host tells something", || {
        let length = socket.recv(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text[..length]).trim().to_owned())
    });
    assert_eq!((told.as_str(), host.get("/readyz").status), ("READY=1", 200));
    host.stop();
}

#[test]
fn a_host_that_stops_in_order_is_shown_as_stopping_and_never_as_stalled() {
    // A host is stalled after 6 s of silence, and announces itself every 3 s.
    const LONGER_MS: u64 = 10_000;
    let held = Held::new();
    let mut bench = held.bench("[queues.work]\nplugin = \"fetches\"\n[queues.idle]\nplugin = \"fetches\"\n");
    let mut host = bench.host();
    host.until_ready();
    bench.xadd("work", &held.task());
    bench.until_running("work", 1);
    // This one waits until another host takes it.
    host.signal(Signal::SIGTERM);
    host.log("stopping");
    bench.xadd("work", &held.task());
    let scrape = || {
        for queue in ["work", "idle"] {
            for series in ["tqhost_fetch_stalled", "tqhost_queue_ready"] {
                let value = host.metric(&format!("{series}{{queue=\"{queue}\"}}"));
                assert!(value == 0.0, "{series} of {queue} is {value}");
            }
        }
    };
    eventually("it stops for longer than a host may be silent", || {
        scrape();
        let report: Value = serde_json::from_str(&host.get("/readyz").body).expect("JSON");
        let queues = report["queues"].as_array().expect("queues");
        let are_stopping = queues.iter().all(|queue| queue["state"] == "stopping" && queue["ok"] == true);
        assert!(report["stopping"] == true && are_stopping, "{report}");
        queues.iter().all(|queue| queue["since_ms"].as_u64() >= Some(LONGER_MS)).then_some(())
    });
    for queue in bench.tqhost(&["queues", "--json"]).ok().json().as_array().expect("queues") {
        assert_eq!((&queue["state"], &queue["hosts"][0]["state"]), (&"stopping".into(), &"stopping".into()));
    }
    assert!(bench.tqhost(&["queues"]).ok().stdout.contains("stopping"));
    for path in ["/", "/queues/work"] {
        let page = host.get(path).body;
        assert!(page.contains("stopping") && !page.contains("stalled"), "{page}");
        assert!(!page.contains("Act now") && !page.contains("Look: "), "{page}");
    }
    held.end();
    assert_eq!(host.ended(), 0);
}

#[test]
fn files_open_to_others_are_told_once_at_the_start() {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    let bench = Bench::new("[queues.work]\n[plugins.work]\nconfig = { key = { file = \"key\" } }\n");
    let path = |name: &str| bench.dir.path().join(name);
    std::fs::write(path("key"), "hunter2").expect("write");
    for (name, mode) in [("", 0o755), ("plugins", 0o777), ("key", 0o644)] {
        set_permissions(path(name), Permissions::from_mode(mode)).expect("set the rights");
    }
    let host = bench.host();
    let log = host.stop_for_log();
    let lines = log.logged("other users of this machine can write to");
    assert!(lines.len() == 1 && lines[0]["message"].to_string().contains("plugins"), "{lines:?}");
    let lines = log.logged("other users of this machine can read secrets in");
    assert!(lines.len() == 1 && lines[0]["message"].to_string().contains("chmod o-r"), "{lines:?}");
    assert_eq!((&lines[0]["level"], log.raw().contains("hunter2")), (&"WARN".into(), false));
    let as_root = usize::from(nix::unistd::geteuid().is_root());
    assert_eq!(log.logged("the host runs as root").len(), as_root);
    let checked = bench.tqhost(&["check"]).ok();
    assert!(checked.stdout.contains("chmod o-w") && checked.stdout.contains("chmod o-r"), "{checked:?}");
}
