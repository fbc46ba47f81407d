//! The process that compiles a plugin: its failures affect nothing else.
//!
//! It compiles a component of 12 MB, which takes long, so a test has time to disturb it. A test that waits
//! until it has ended compiles one of 680 KB.
//!
//! Not here: the messages about bad files (`files`), the latency of tasks during compilation (`make bench
//! SECTION=compilation`).

use std::fs;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::Resource;
use serde_json::Value;

use crate::support::bench::{CACHES, caches};
use crate::support::files::{digest, functions, guest, label, loaded, put, row, version};
use crate::support::process::{self, compilers};
use crate::support::words::masked;
use crate::support::{Bench, Host, Ran, Trickle, eventually, within};

const QUEUES: &str = "[queues.work]\nplugin = \"p\"\n[queues.other]\nplugin = \"echo\"\n";
const SECRET: &str = "hunter2-of-the-environment";
/// The content of a task that the guest `resume-analyze` completes.
const RESUME: &str = "Maya Lindqvist\nmaya@example.com\nEXPERIENCE\nEngineer, Acme, 2021-03 - present\n\
    - Built a billing service in Rust, and cut its costs by 40%\n";

/// A host that runs tasks, with a plugin `p` that has no file.
fn bench() -> (Bench, Host) {
    let bench = Bench::new(QUEUES);
    bench.install("echo", "echo");
    let host = bench.host_with_env(vec![("TEST_SECRET".into(), SECRET.into())]);
    host.log("tqhost is running");
    host.until_ready();
    (bench, host)
}

/// A large component that is different in each test, because the host does not compile the same content
/// twice.
fn large(mark: u32) -> Vec<u8> {
    version("in-javascript", mark)
}

/// The process that compiles for a host, once it has confined itself.
#[track_caller]
fn compiler(host: &Host) -> Pid {
    let is_confined = |pid: &Pid| {
        // This is its last step before it reads the file.
        fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).is_ok_and(|score| score.trim() == "1000")
    };
    eventually("it compiles", || compilers(host.pid()).first().copied().filter(is_confined))
}

/// Waits until `tqhost plugins` shows that this version of `p` was refused.
#[track_caller]
fn refused(bench: &Bench, version: &[u8]) -> Value {
    let version = digest(version);
    let is_it = |change: &Value| change["what"] == "failed" && change["version"] == *version;
    eventually("it is refused", || {
        row(bench, "p").filter(|row| row["history"].as_array().and_then(|all| all.last()).is_some_and(is_it))
    })
}

/// The plugin's queue must work with a good version.
#[track_caller]
fn works(bench: &mut Bench, host: &Host) {
    let good = guest("echo-v2");
    put(bench, "p", &good);
    loaded(host, &good);
    let id = bench.xadd("work", &[("a", "1")]);
    bench.until("work", &id, "COMPLETED");
    assert_eq!(bench.status("work", &id, "plugin"), label("p", &good));
}

#[test]
fn it_has_no_secrets_and_is_bounded() {
    let (mut bench, host) = bench();
    put(&bench, "p", &large(1));
    let pid = compiler(&host);
    // The compiler is stopped while the test looks at it.
    kill(pid, Signal::SIGSTOP).expect("stop");
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("its limits");
    let row = eventually("it is shown", || row(&bench, "p").filter(|row| row["compiling"].is_string()));
    insta::assert_snapshot!(
        row["error"],
        @r#""there is a file, which is being compiled and checked, or waits for its turn""#
    );
    for (name, most) in
        [("Max cpu time", "600"), ("Max data size", "4294967296"), ("Max core file size", "0")]
    {
        let limit = limits.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        assert_eq!(limit.split_whitespace().next(), Some(most), "{name}");
    }
    assert!(
        fs::read_to_string(format!("/proc/{}/environ", host.pid())).expect("the host's").contains(SECRET)
    );
    let environ = fs::read_to_string(format!("/proc/{pid}/environ")).expect("its own");
    assert!(environ.is_empty() || environ.starts_with("LD_LIBRARY_PATH="), "{environ}");
    // The compiler has none of the host's files and connections. It may have those that the host itself was
    // started with.
    let open: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("its files")
        .filter_map(|file| Some(fs::read_link(file.ok()?.path()).ok()?.display().to_string()))
        .collect();
    let folder = bench.dir.path().display().to_string();
    assert!(open.len() >= 3, "{open:?}");
    assert!(
        open.iter()
            .all(|file| !file.starts_with("socket:") && !file.contains("epoll") && !file.contains(&folder)),
        "{open:?}"
    );
    works(&mut bench, &host);
    host.stop();
}

/// Disturbs the compiler of a component in each of these ways. The component must be refused for good, and
/// nothing else may change. Returns the errors.
#[track_caller]
fn errors_of_the_file(harms: &[&dyn Fn(Pid)]) -> String {
    let (mut bench, host) = bench();
    let trickle = Trickle::start(&bench, "other", 2);
    let mut errors = Vec::new();
    for (n, harm) in (0..).zip(harms) {
        let bytes = large(n);
        put(&bench, "p", &bytes);
        harm(compiler(&host));
        let row = refused(&bench, &bytes);
        assert!(row["retry_at"].is_null(), "{row}");
        errors.push(row["error"].as_str().expect("an error").to_owned());
    }
    trickle.more(5);
    works(&mut bench, &host);
    trickle.stop();
    host.stop();
    errors.join("\n")
}

#[test]
fn a_crash_of_it_is_an_error_of_the_file() {
    // The first signal may be caught by a handler that looks for a cause in the code, finds none, and lets
    // the next signal end the process.
    let crash = |signal| {
        move |pid| {
            eventually("it crashes", || {
                let _ = kill(pid, signal);
                (!process::is_there(pid)).then_some(())
            });
        }
    };
    let [segv, abrt, ill] = [Signal::SIGSEGV, Signal::SIGABRT, Signal::SIGILL].map(crash);
    let errors = errors_of_the_file(&[&segv, &abrt, &ill]);
    // The last words of the process are left out.
    let told = errors.lines().filter_map(|error| Some(error.rsplit_once(": ")?.0));
    insta::assert_snapshot!(told.collect::<Vec<_>>().join("\n"), @"
    not a valid WebAssembly component: compiling it ends with SIGSEGV
    not a valid WebAssembly component: compiling it ends with SIGABRT
    not a valid WebAssembly component: compiling it ends with SIGILL
    ");
}

#[test]
fn a_compilation_that_takes_too_much_is_refused() {
    // The test lowers the limits instead of using a larger file.
    let time = |pid| process::bound(pid, Resource::Cpu, 1);
    let memory = |pid| process::bound(pid, Resource::Data, 64 << 20);
    insta::assert_snapshot!(errors_of_the_file(&[&time, &memory]), @"
    compiling it takes more than 600 s of processor time
    compiling it takes more memory than it may have, 4096 MiB or what the system allows
    ");
}

#[test]
fn one_that_the_system_killed_is_tried_again() {
    let (mut bench, host) = bench();
    let bytes = version("resume-analyze", 30);
    put(&bench, "p", &bytes);
    kill(compiler(&host), Signal::SIGKILL).expect("kill");
    let row = refused(&bench, &bytes);
    assert!(row["retry_at"].is_u64(), "{row}");
    insta::assert_snapshot!(
        row["error"].as_str().unwrap_or_default(),
        @"it cannot be compiled or loaded for now: the process that compiled it was killed, as a system \
          without free memory does"
    );
    within(Duration::from_secs(600), "it is compiled at the next try", || {
        host.logged("plugin loaded").into_iter().find(|line| line["digest"] == digest(&bytes)[..12])
    });
    let id = bench.xadd("work", &[("resumeId", "7"), ("content", RESUME)]);
    bench.until("work", &id, "COMPLETED");
    host.stop();
}

#[test]
fn it_is_broken_off_when_its_file_is_replaced() {
    let (mut bench, host) = bench();
    let slow = large(40);
    put(&bench, "p", &slow);
    let pid = compiler(&host);
    // The compiler would never end by itself.
    kill(pid, Signal::SIGSTOP).expect("stop");
    eventually("hosts and people are told that it is compiled", || {
        row(&bench, "p").filter(|row| row["compiling"] == digest(&slow) && row["compiling_since"].is_u64())
    });
    assert_eq!(host.logged("compiling the plugin").len(), 1);
    let told = bench.tqhost(&["plugins"]).ok().stdout;
    let line = told.lines().find(|line| line.contains(&digest(&slow)[..12])).expect("a line");
    let (line, _seconds) = line.rsplit_once(' ').expect("how long it takes");
    insta::assert_snapshot!(
        masked(line, &[(&digest(&slow)[..12], "SLOW")]),
        @"p on HOST: SLOW has been compiled for"
    );
    works(&mut bench, &host);
    assert!(!process::is_there(pid), "it is gone");
    assert_eq!(host.logged("changed while it was compiled").len(), 1);
    eventually("it is not compiled any more", || row(&bench, "p").filter(|row| row["compiling"].is_null()));
    assert!(host.stop_for_log().logged("plugin cannot be used").is_empty(), "that is no failure");
}

#[test]
fn others_do_not_wait_for_one_that_takes_long() {
    let queues = |more: &str| {
        format!(
            "{QUEUES}[plugins.echo]\nconfig = {{ {more} }}\n[queues.checked]\n[plugins.checked]\n\
             config = {{ self-check = \"ok\", {more} }}\n"
        )
    };
    let bench = Bench::new(&queues("a = \"1\""));
    bench.install("echo", "echo");
    bench.install("checks-itself", "checked");
    let host = bench.host();
    host.until_ready();
    put(&bench, "p", &large(60));
    let pid = compiler(&host);
    // The compiler would never end by itself.
    kill(pid, Signal::SIGSTOP).expect("stop");
    // Other grants take effect at once, also for a plugin with a self-check.
    bench.configure_for(&queues("a = \"2\""), bench.redis.port);
    within(Duration::from_secs(20), "both have other grants", || {
        (host.logged("plugin has other grants").len() == 2).then_some(())
    });
    // A plugin whose compiled code is in the cache loads at once.
    put(&bench, "checked", &guest("echo"));
    within(Duration::from_secs(20), "it has another version", || {
        host.logged("plugin loaded")
            .into_iter()
            .find(|line| line["plugin"] == "checked" && line["digest"] == digest(&guest("echo"))[..12])
    });
    // A plugin that must be compiled loads after a while.
    let other = guest("echo-v2");
    put(&bench, "echo", &other);
    within(Duration::from_secs(120), "the other plugin has its version", || {
        host.logged("plugin loaded").into_iter().find(|line| line["digest"] == digest(&other)[..12])
    });
    assert!(process::is_there(pid));
    // No queue needs the plugin any more.
    bench.configure_for("[queues.other]\nplugin = \"echo\"\n", bench.redis.port);
    eventually("the process that compiles has ended", || (!process::is_there(pid)).then_some(()));
    assert!(host.stop_for_log().logged("plugin cannot be used").is_empty(), "that is no failure");
}

#[test]
fn a_host_and_the_commands_of_its_user_compile_a_file_once() {
    let (bench, host) = bench();
    let file = bench.dir.path().join("h.wasm");
    let tried = |bytes: &[u8], with: &[&str]| -> Value {
        fs::write(&file, bytes).expect("write");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tqhost"));
        command.arg("try").arg(&file).args(["--field", "a=1", "--json"]).args(with);
        let ran = Ran::from(command.env(CACHES, caches(&bench.config())).output().expect("run tqhost"));
        ran.ok().json()["from_cache"].take()
    };
    let [first, second, third] = [70, 71, 72].map(|mark| version("echo", mark));
    // The author knows no configuration.
    assert_eq!(tried(&first, &[]), false);
    put(&bench, "p", &first);
    assert_eq!(loaded(&host, &first)["from_cache"], true);
    assert!(host.logged("compiling the plugin").is_empty());

    put(&bench, "p", &second);
    assert_eq!(loaded(&host, &second)["from_cache"], false);
    let config = bench.config().display().to_string();
    assert_eq!(tried(&second, &["--config", &config, "--plugin", "p"]), true);
    let cache = bench.dir.path().join(".tqhost/cache");
    assert!(functions(&cache).is_some(), "the next version needs only what has changed");
    host.stop();

    put(&bench, "p", &third);
    bench.tqhost(&["check"]).ok();
    // The host keeps the code for itself: the commands keep the latest few.
    let host = bench.host();
    assert_eq!(loaded(&host, &third)["from_cache"], true);
    host.stop();
    fs::remove_dir_all(caches(&bench.config())).expect("remove the caches");
    let host = bench.host();
    assert_eq!(loaded(&host, &third)["from_cache"], true);
    host.stop();
}

#[test]
fn it_ends_with_its_host() {
    for end in [Signal::SIGKILL, Signal::SIGTERM] {
        let (bench, host) = bench();
        put(&bench, "p", &large(50));
        let pid = compiler(&host);
        host.signal(end);
        eventually("the process that compiles has ended", || (!process::is_there(pid)).then_some(()));
        drop(host);
    }
}
