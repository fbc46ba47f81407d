//! Faults while a host starts: signals, connections that are cut, Redis that is restarted, too few file
//! descriptors. A start is like any other moment: nothing is lost, no task runs twice without a crash, and
//! nothing needs a restart.
//!
//! Not here: a Redis that starts after the host (`start`), faults of a host that runs (`hosts`, `redis`).

use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::bench::guest_path;
use crate::support::first_process::{first_process, inner, until_handled};
use crate::support::process::{bound, compilers};
use crate::support::words::masked;
use crate::support::{Bench, Held, Host, Places, eventually};
use rustix::process::Resource;

const QUEUES: &str = "[queues.echo]\n[queues.sleeps]\n";

/// A bench whose plugins were never compiled, so that its start takes a while.
fn cold(redis_args: &[&str]) -> Bench {
    let bench = Bench::with_redis(QUEUES, redis_args);
    for guest in ["echo", "sleeps"] {
        std::fs::copy(guest_path(guest), bench.plugin_path(guest)).expect("copy a guest");
    }
    bench
}

/// One task for each queue.
fn tasks(bench: &mut Bench) -> [(&'static str, String); 2] {
    ["echo", "sleeps"].map(|queue| (queue, bench.xadd(queue, &[("ms", "1")])))
}

/// A host that is the first process, and its process id.
fn first_host(bench: &Bench) -> (Host, Pid) {
    let mut command = Host::command(&bench.config());
    command.env("TQHOST_LOG", "info,tqhost=debug");
    let host = Host::spawn(first_process(&command));
    let process = inner(host.pid());
    (host, process)
}

#[test]
fn signals_are_heard_while_redis_is_away() {
    let mut bench = Bench::new(QUEUES);
    let url = bench.redis.url();
    let rest = format!("[redis]\nurl = \"{url}\"\nwait = \"1h\"\n[admin]\nlisten = \"127.0.0.1:0\"\n");
    bench.configure(&format!("{QUEUES}{rest}"));
    bench.redis.stop();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let (mut host, process) = first_host(&bench);
        until_handled(process, signal);
        kill(process, signal).expect("send a signal");
        assert_eq!(host.ended(), 0, "{signal}: {}", host.raw());
        assert_eq!(host.logged("told to stop before the start was over").len(), 1, "{}", host.raw());
    }

    // SIGHUP is for the configuration, which is read again once the host runs.
    for guest in ["echo", "sleeps"] {
        bench.install(guest, guest);
    }
    let (mut host, process) = first_host(&bench);
    until_handled(process, Signal::SIGHUP);
    host.log("(redis.wait)");
    kill(process, Signal::SIGHUP).expect("send a signal");
    bench.configure(&format!("{QUEUES}[queues.late]\nplugin = \"echo\"\n{rest}"));
    bench.redis.start_again();
    bench.db = bench.redis.connection();
    let id = bench.xadd("late", &[("n", "1")]);
    bench.until("late", &id, "COMPLETED");
    host.log("SIGHUP: reading the configuration again");
    kill(process, Signal::SIGTERM).expect("send a signal");
    assert_eq!(host.ended(), 0, "{}", host.raw());
}

#[test]
fn sigterm_while_plugins_are_compiled_ends_the_host_before_it_takes_a_task() {
    let mut bench = cold(&[]);
    let [(queue, _), _] = tasks(&mut bench);
    let (mut host, process) = first_host(&bench);
    eventually("a plugin is compiled", || (!compilers(process).is_empty()).then_some(()));
    kill(process, Signal::SIGTERM).expect("send a signal");
    assert_eq!(host.ended(), 0, "{}", host.raw());
    assert!(host.logged("tqhost is running").is_empty(), "{}", host.raw());
    assert_eq!(bench.places(queue), Places { length: 1, ..Places::default() });
    eventually("the compilers end with it", || compilers(process).is_empty().then_some(()));
}

#[test]
fn connections_that_are_cut_while_plugins_are_compiled_are_made_anew() {
    // The server itself cuts connections that are silent for a second, those of the test, too.
    for args in [&[][..], &["--timeout", "1"]] {
        let mut bench = cold(args);
        bench.db = bench.redis.connection();
        let tasks = tasks(&mut bench);
        let host = bench.host_that_may_fail();
        eventually("a plugin is compiled", || (!compilers(host.pid()).is_empty()).then_some(()));
        bench.db = bench.redis.connection();
        let _: u64 = bench.redis("CLIENT", &["KILL", "TYPE", "normal", "SKIPME", "yes"]);
        for (queue, id) in tasks {
            eventually("the task completes", || {
                bench.db = bench.redis.connection();
                (bench.status(queue, &id, "status") == "COMPLETED").then_some(())
            });
        }
        host.stop();
    }
}

#[test]
fn a_redis_that_is_restarted_while_plugins_are_compiled_is_waited_for() {
    let mut bench = cold(&[]);
    let tasks = tasks(&mut bench);
    let mut host = bench.host_that_may_fail();
    eventually("a plugin is compiled", || (!compilers(host.pid()).is_empty()).then_some(()));
    bench.redis.stop();
    // It is away until the host has met that.
    let met = || !host.logged("Redis").is_empty() && !host.logged("tqhost is running").is_empty();
    let ended = eventually("the host has compiled", || {
        met().then_some(false).or_else(|| host.raw().contains("cannot prepare").then_some(true))
    });
    assert!(!ended, "{}", host.raw());
    assert_eq!(host.try_ended(), None);
    bench.redis.start_again();
    bench.db = bench.redis.connection();
    for (queue, id) in tasks {
        bench.until(queue, &id, "COMPLETED");
    }
    host.stop();
}

/// A host with these limits of file descriptors.
fn limited(bench: &Bench, soft: u64, hard: u64) -> Host {
    let host = Host::command(&bench.config());
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$@\""), "sh"]);
    command.arg(host.get_program()).args(host.get_args()).env("TQHOST_LOG", "info,tqhost=debug");
    Host::spawn(command)
}

#[test]
fn a_low_soft_limit_of_descriptors_is_raised_and_a_low_hard_one_is_refused() {
    let queues: String = (0..60).map(|n| format!("[queues.q{n}]\nplugin = \"echo\"\n")).collect();
    let mut bench = Bench::new(&queues);
    bench.install("echo", "echo");
    let mut host = limited(&bench, 64, 64);
    assert_eq!(host.ended(), 1);
    insta::assert_snapshot!(masked(host.raw().lines().last().expect("a line"), &[]), @"
    tqhost: the host may open at most 64 files and connections (the hard limit of the process), and its 60 \
    queues need at least 100: raise it where the host is started: `ulimit -n`, LimitNOFILE= of systemd, \
    default-ulimits or --ulimit nofile= of containers
    ");

    let tight = limited(&bench, 64, 150);
    tight.log("at most 150 files and connections");
    tight.log("tqhost is running");
    // A reload cannot ask for more than there is, either.
    let more: String = (60..120).map(|n| format!("[queues.q{n}]\nplugin = \"echo\"\n")).collect();
    bench.configure_for(&format!("{queues}{more}"), bench.redis.port);
    let told = tight.log("the configuration was changed, and cannot be used");
    let why = told["why"].as_str().unwrap_or_default();
    insta::assert_snapshot!(masked(why, &[(&bench.config().display().to_string(), "FILE")]), @"
    FILE: the host may open at most 150 files and connections (the hard limit of the process), and its 120 \
    queues need at least 160: raise it where the host is started: `ulimit -n`, LimitNOFILE= of systemd, \
    default-ulimits or --ulimit nofile= of containers
    ");
    tight.stop();

    bench.configure_for(&queues, bench.redis.port);
    let host = limited(&bench, 64, 4096);
    host.log("tqhost is running");
    let ids: Vec<String> = (0..60).map(|n| bench.xadd(&format!("q{n}"), &[("n", "1")])).collect();
    for (n, id) in ids.iter().enumerate() {
        bench.until(&format!("q{n}"), id, "COMPLETED");
    }
    assert_eq!(host.get("/readyz").status, 200);
    host.stop();
}

#[test]
fn a_host_without_a_free_descriptor_still_answers_probes() {
    let held = Held::new();
    let mut bench = held.bench("[queues.work]\nplugin = \"fetches\"\nconcurrency = 60\nbackoff = \"none\"\n");
    let host = bench.host();
    host.until_ready();
    let open = || -> Vec<u64> {
        let files = std::fs::read_dir(format!("/proc/{}/fd", host.pid())).expect("its files");
        files.filter_map(|file| file.ok()?.file_name().to_str()?.parse().ok()).collect()
    };
    let limit = (0..).find(|number| !open().contains(number)).expect("a free one") + 5;
    bound(host.pid(), Resource::Nofile, limit);
    // Each task holds a connection, as far as there are descriptors.
    for _ in 0..200 {
        bench.xadd("work", &held.task());
    }
    eventually("all are used", || {
        let open = open();
        (0..limit).all(|number| open.contains(&number)).then_some(())
    });
    for _ in 0..10 {
        assert_eq!(host.get("/livez").status, 200);
    }
    held.end();
    bound(host.pid(), Resource::Nofile, 4096);
    bench.until_drained("work");
    host.stop();
}

/// A fault that strikes a host while it starts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Blow {
    Terminate,
    Kill,
    /// All connections are cut.
    Cut,
    /// Redis is killed, and started again.
    Restart,
    /// The host stands still for a moment.
    Pause,
}

const BLOWS: [Blow; 5] = [Blow::Terminate, Blow::Kill, Blow::Cut, Blow::Restart, Blow::Pause];

/// Strikes a host that starts with cold plugins, some time after it began, and judges what became of its
/// tasks.
fn strike(blow: Blow, after: Duration, is_first: bool) {
    let what = format!("{blow:?} after {after:?}, as the first process: {is_first}");
    // By default Redis answers before it has written, where the disk is busy: a kill would lose the tasks.
    let mut bench = cold(&["--appendfsync", "always"]);
    let tasks = tasks(&mut bench);
    let (mut host, process) = if is_first {
        first_host(&bench)
    } else {
        let host = bench.host_that_may_fail();
        let process = host.pid();
        (host, process)
    };
    until_handled(process, Signal::SIGTERM);
    std::thread::sleep(after);
    match blow {
        Blow::Terminate => kill(process, Signal::SIGTERM).expect("SIGTERM"),
        Blow::Kill => kill(process, Signal::SIGKILL).expect("SIGKILL"),
        Blow::Cut => drop(bench.redis::<u64>("CLIENT", &["KILL", "TYPE", "normal", "SKIPME", "yes"])),
        Blow::Restart => {
            bench.redis.kill();
            bench.redis.start_again();
            bench.db = bench.redis.connection();
        }
        Blow::Pause => {
            kill(process, Signal::SIGSTOP).expect("SIGSTOP");
            std::thread::sleep(Duration::from_millis(300));
            kill(process, Signal::SIGCONT).expect("SIGCONT");
        }
    }
    if matches!(blow, Blow::Terminate | Blow::Kill) {
        let code = host.ended();
        assert!(blow == Blow::Kill || code == 0, "{what}: {code}: {}", host.raw());
        if blow == Blow::Terminate {
            // It ended in order: no task waits for the end of a lease.
            for (queue, _) in &tasks {
                assert_eq!(bench.places(queue).pending, 0, "{what}: {}", host.raw());
            }
        }
        host = bench.host_that_may_fail();
    }
    for (queue, id) in &tasks {
        bench.until(queue, id, "COMPLETED");
        assert_eq!(bench.places(queue), Places::default(), "{what}");
    }
    assert_eq!(host.try_ended(), None, "{what}: {}", host.raw());
    let process =
        if is_first && !matches!(blow, Blow::Terminate | Blow::Kill) { process } else { host.pid() };
    kill(process, Signal::SIGTERM).expect("SIGTERM");
    assert_eq!(host.ended(), 0, "{what}: {}", host.raw());
}

/// A few moments, or with `TQHOST_STARTS=40` each of so many moments, 50 ms apart, of each kind of host.
#[test]
fn nothing_that_strikes_a_start_at_any_moment_costs_a_task_or_needs_a_restart() {
    let steps = std::env::var("TQHOST_STARTS").ok().map(|text| text.parse().expect("a number of moments"));
    let moments: Vec<u32> = steps.map_or_else(|| vec![0, 5], |steps: u32| (0..steps).collect());
    for blow in BLOWS {
        for moment in &moments {
            let kinds: &[bool] = if steps.is_some() { &[false, true] } else { &[moment % 2 == 0] };
            for is_first in kinds {
                strike(blow, Duration::from_millis(50) * *moment, *is_first);
            }
        }
    }
}
