//! Plugin files while the host runs: new, changed, bad and removed files.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::files::{digest, guest, label, loaded, put, row, version};
use crate::support::{Bench, Done, Held, Host, Places, Trickle, eventually};

/// The state of a queue in /readyz.
fn readiness(host: &Host, queue: &str) -> Option<Value> {
    let ready: Value = serde_json::from_str(&host.get("/readyz").body).expect("JSON");
    ready["queues"].as_array()?.iter().find(|row| row["queue"] == queue).cloned()
}

#[test]
fn a_queue_waits_for_its_plugin_and_says_so() {
    let mut bench = Bench::new("[queues.waits]\nplugin = \"late\"\n");
    let host = bench.host();
    assert_eq!(host.log("plugin missing")["plugin"], "late");
    let id = bench.xadd("waits", &[("a", "1")]);
    let said = eventually("it waits", || {
        readiness(&host, "waits").filter(|queue| queue["state"] == "waiting-for-plugin")
    });
    assert_eq!((&said["ok"], &said["reason"]), (&true.into(), &"its plugin has no working version".into()));
    assert_eq!(
        host.get("/readyz").status,
        200,
        "the other queues of a host must not be cut off because one waits"
    );
    assert_eq!(eventually("it is shown", || row(&bench, "late"))["state"], "missing");
    assert_eq!(bench.places("waits"), Places { length: 1, pending: 0, delayed: 0, parked: 0, dead: 0 });

    bench.install("echo", "late");
    bench.until("waits", &id, "COMPLETED");
    assert_eq!(bench.status("waits", &id, "attempt"), "1");
    eventually("it reads", || readiness(&host, "waits").filter(|queue| queue["state"] == "reading"));
    host.stop();
}

/// Files that are no plugins.
fn bad_files() -> Vec<(&'static str, Vec<u8>)> {
    let echo = guest("echo");
    vec![
        ("empty", vec![]),
        ("half a component", echo[..echo.len() / 2].to_vec()),
        ("half a header", echo[..4].to_vec()),
        ("text", b"#!/bin/sh\necho hello\n".to_vec()),
        ("a native library", b"\x7fELF\x02\x01\x01\0\0\0\0\0".to_vec()),
        ("a core module", b"\0asm\x01\0\0\0".to_vec()),
        ("wrong-version", guest("wrong-version")),
        ("wrong-world", guest("wrong-world")),
        ("wants-more", guest("wants-more")),
    ]
}

#[test]
fn a_bad_file_is_named_everywhere_and_the_old_version_goes_on() {
    let files = bad_files();
    // A plugin for each file: a host announces itself every few seconds, and then tells of all plugins.
    let plugins: Vec<String> = (0..files.len()).map(|n| format!("p{n}")).collect();
    let queues: String = plugins.iter().map(|plugin| format!("[queues.{plugin}]\n")).collect();
    let mut bench = Bench::new(&queues);
    plugins.iter().for_each(|plugin| bench.install("echo", plugin));
    let host = bench.host();
    host.until_logged("plugin loaded", plugins.len());
    let good = guest("echo");
    let mut errors = BTreeSet::new();
    // Each plugin gets two bad files, one after the other, so that its failures are counted.
    for failures in 1..=2 {
        let bad = files.iter().cycle().skip(failures);
        let cases: Vec<_> = plugins.iter().zip(bad).collect();
        cases.iter().for_each(|(plugin, (_, bytes))| put(&bench, plugin, bytes));
        for (plugin, (what, bytes)) in &cases {
            let line = eventually(&format!("{what} is refused"), || {
                let lines = host.logged("plugin cannot be used");
                lines.into_iter().filter(|line| line["plugin"] == **plugin).nth(failures - 1)
            });
            errors.insert(format!("{what}: {}", line["error"].as_str().expect("an error")));
            assert_eq!(line["level"], "ERROR", "{what}: {line}");
            assert_eq!(line["active"], digest(&good)[..12], "{what}: {line}");
            assert!(line["took_ms"].is_u64() && line["digest"] == digest(bytes)[..12], "{what}: {line}");
            let id = bench.xadd(plugin, &[("a", "1")]);
            bench.until(plugin, &id, "COMPLETED");
            assert_eq!(bench.status(plugin, &id, "plugin"), label(plugin, &good), "{what}");
            host.until_metric(&reloads(plugin, "failed"), failures as u64);
            assert!(host.metric(&info(plugin, "failed", &good)) > 0.5, "{what}");
        }
        for (plugin, (what, bytes)) in &cases {
            let row = eventually(&format!("`tqhost plugins` tells of {what}"), || {
                row(&bench, plugin).filter(|row| {
                    let error = row["error"].as_str().map(|error| format!("{what}: {error}"));
                    error.is_some_and(|error| errors.contains(&error))
                })
            });
            assert_eq!(
                (&row["state"], &row["version"]),
                (&"failed".into(), &digest(&good).into()),
                "{what}: {row}"
            );
            assert_eq!(row["failed_reloads"], failures, "{what}: {row}");
            let last = row["history"].as_array().and_then(|changes| changes.last()).expect("a change");
            assert_eq!(
                (&last["what"], &last["version"]),
                (&"failed".into(), &digest(bytes).into()),
                "{what}: {row}"
            );
            assert!(last["took_ms"].is_u64() && last["reason"] == row["error"], "{what}: {row}");
        }
    }
    // Each has one error, whichever plugin it is in the place of. An offset depends on the compiler.
    let told: Vec<&str> = errors.iter().filter_map(|error| error.split(" (at offset").next()).collect();
    insta::assert_snapshot!(told.join("\n"), @"
    a core module: this is a core module without a component type, not a component (build it for \
        wasm32-wasip2, or generate its bindings with wit-bindgen from wit/handler.wit)
    a native library: this is not a WebAssembly file: it is a native program or library (ELF)
    empty: this is not a WebAssembly file: it is empty
    half a component: not a valid WebAssembly component: unexpected end-of-file
    half a header: this is not a WebAssembly file: its header is cut off or of an unknown version
    text: this is not a WebAssembly file: it is a text file
    wants-more: it imports what handlers cannot have: wasi:keyvalue/store@0.2.0-draft (tqhost does not \
        know it), for tqhost:handler/handler@0.1.0#handle
    wrong-version: it exports tqhost:handler/handler@0.2.0, but this tqhost runs \
        tqhost:handler/handler@0.1.0
    wrong-world: it exports no tqhost:handler/handler; it exports tqhost:testing/greeter@0.1.0
    ");
    // The good file is back. It works again, and is not a new version.
    plugins.iter().for_each(|plugin| put(&bench, plugin, &good));
    host.until_logged("plugin file is the active version again", plugins.len());
    for plugin in &plugins {
        host.until_metric(&reloads(plugin, "ok"), 1);
        assert!(host.metric(&info(plugin, "active", &good)) > 0.5);
    }
    assert_eq!(host.get("/readyz").status, 200);
    host.stop();
}

/// The series that counts a plugin's new files with this result.
fn reloads(plugin: &str, result: &str) -> String {
    format!("tqhost_plugin_reloads_total{{plugin=\"{plugin}\",result=\"{result}\"}}")
}

/// The series that says that a plugin has this state, and these bytes as its active version.
fn info(plugin: &str, state: &str, active: &[u8]) -> String {
    let version = digest(active);
    format!("tqhost_plugin_info{{plugin=\"{plugin}\",state=\"{state}\",version=\"{version}\"}}")
}

#[test]
fn a_first_file_that_is_bad_leaves_the_tasks_queued_until_a_good_one_comes() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"p\"\n");
    bench.install("wants-more", "p");
    let host = bench.host();
    let line = host.log("plugin cannot be used");
    assert!(
        line["error"].as_str().is_some_and(|error| error.contains("wasi:keyvalue"))
            && line["active"].is_null(),
        "{line}"
    );
    let id = bench.xadd("work", &[("a", "1")]);
    eventually("it waits", || {
        readiness(&host, "work").filter(|queue| queue["state"] == "waiting-for-plugin")
    });
    assert_eq!(bench.places("work"), Places { length: 1, pending: 0, delayed: 0, parked: 0, dead: 0 });
    bench.install("echo", "p");
    bench.until("work", &id, "COMPLETED");
    host.stop();
}

#[test]
fn a_file_that_is_removed_drains_its_queue() {
    let held = Held::new();
    let mut bench = held.bench("[queues.work]\nplugin = \"fetches\"\n");
    let host = bench.host();
    let running = bench.xadd("work", &held.task());
    bench.until("work", &running, "PROCESSING");
    std::fs::remove_file(bench.plugin_path("fetches")).expect("remove a plugin");
    assert_eq!(host.log("plugin removed")["digest"], digest(&guest("fetches"))[..12]);
    let rest = bench.xadd("work", &held.task());
    assert_eq!(bench.status("work", &running, "status"), "PROCESSING");
    held.end();
    bench.until("work", &running, "COMPLETED");
    assert_eq!(bench.status("work", &running, "attempt"), "1");
    // The task was not run, though a read was waiting for entries when the file was removed.
    eventually("it waits", || {
        readiness(&host, "work").filter(|queue| queue["state"] == "waiting-for-plugin")
    });
    eventually("it is back in its place", || (bench.places("work").pending == 0).then_some(()));
    assert!(["", "PENDING"].contains(&bench.status("work", &rest, "status").as_str()));
    bench.install("fetches", "fetches");
    bench.until("work", &rest, "COMPLETED");
    assert_eq!(bench.status("work", &rest, "attempt"), "1");
    host.until_logged("attempt ended", 2);
    host.stop();
}

#[test]
fn an_attempt_ends_on_the_version_that_it_began_with() {
    let held = Held::new();
    let mut bench = held.bench("[queues.work]\nplugin = \"fetches\"\n");
    let (old, new) = (guest("fetches"), version("fetches", 1));
    let host = bench.host();
    let running = bench.xadd("work", &held.task());
    bench.until("work", &running, "PROCESSING");
    put(&bench, "fetches", &new);
    loaded(&host, &new);
    // A request that is not allowed ends at once.
    let next = bench.xadd("work", &[("url", "http://example.org/")]);
    bench.until("work", &next, "COMPLETED");
    assert_eq!(
        bench.status("work", &next, "plugin"),
        label("fetches", &new),
        "what begins after the swap begins on the new version"
    );
    assert_eq!(bench.status("work", &running, "status"), "PROCESSING", "the swap did not wait for it");
    held.end();
    bench.until("work", &running, "COMPLETED");
    assert_eq!(
        (bench.status("work", &running, "plugin"), bench.status("work", &running, "attempt")),
        (label("fetches", &old), "1".into())
    );
    assert!(bench.status("work", &running, "result").contains("opened"));
    host.stop();
}

/// Overwrites a file as `cp` does, and slower: truncated first, then piece by piece, while tasks run between
/// the pieces.
pub fn overwrite(path: &Path, bytes: &[u8], trickle: &Trickle) {
    let mut file = OpenOptions::new().write(true).truncate(true).open(path).expect("open a plugin");
    for piece in bytes.chunks(bytes.len() / 4 + 1) {
        trickle.more(1);
        file.write_all(piece).expect("write a piece");
    }
}

#[test]
fn ten_versions_are_swapped_under_load_and_nothing_is_lost() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\nmax_retries = 0\n");
    let first = guest("echo");
    put(&bench, "echo", &first);
    let host = bench.host();
    let trickle = Trickle::start(&bench, "work", 4);
    trickle.more(5);
    let mut installed = vec![label("echo", &first)];
    for mark in 1..=10 {
        let next = version(if mark % 2 == 0 { "echo" } else { "echo-v2" }, mark);
        let (old, new) = (installed.last().expect("a version").clone(), label("echo", &next));
        overwrite(&bench.plugin_path("echo"), &next, &trickle);
        let written = trickle.count();
        installed.push(new.clone());
        loaded(&host, &next);
        let at = eventually(&format!("{new} runs tasks"), || {
            trickle.done()[written..].iter().position(|task| task.plugin == new)
        });
        // While the host read, compiled and linked the new version, the old one ran tasks: more tasks ended
        // than could have been running when the file was written.
        let meanwhile =
            trickle.done()[written..written + at].iter().filter(|task| task.plugin == old).count();
        assert!(meanwhile > 4, "only {meanwhile} tasks ended on {old} while {new} was made ready");
    }
    let done = trickle.stop();
    let used: BTreeSet<&String> = done.iter().map(|task| &task.plugin).collect();
    assert_eq!(used, installed.iter().collect(), "every version ran tasks, and no other did");
    for Done { id, plugin } in &done {
        assert_eq!(bench.status("work", id, "attempt"), "1", "{id} on {plugin}");
    }
    assert_eq!(bench.places("work"), Places { length: 0, pending: 0, delayed: 0, parked: 0, dead: 0 });
    host.until_ended_as("work", "completed", done.len() as u64);
    host.until_metric("tqhost_plugin_reloads_total{plugin=\"echo\",result=\"ok\"}", 11);
    host.stop();
}

/// The only file of compiled code.
fn cached(bench: &Bench) -> PathBuf {
    let files = std::fs::read_dir(bench.dir.path().join(".tqhost/cache"))
        .expect("the cache")
        .map(|file| file.expect("a file").path());
    let mut code: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "cwasm")).collect();
    assert_eq!(code.len(), 1, "{code:?}");
    code.remove(0)
}

#[test]
fn compiled_code_is_kept_and_only_used_when_it_is_whole() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    put(&bench, "echo", &guest("echo"));
    let mut start = |from_cache: bool| {
        let host = bench.host();
        assert_eq!(host.log("plugin loaded")["from_cache"], from_cache);
        let id = bench.xadd("work", &[("a", "1")]);
        bench.until("work", &id, "COMPLETED");
        let warned = host.logged("removing a cached file that cannot be used").len();
        host.stop();
        (warned, cached(&bench))
    };
    let (warned, path) = start(false);
    assert_eq!(warned, 0);
    assert_eq!(start(true).0, 0);

    let whole = std::fs::read(&path).expect("read the cache");
    for damage in ["a changed byte", "a torn write", "nothing in it"] {
        let mut bytes = whole.clone();
        match damage {
            "a changed byte" => bytes[whole.len() / 2] ^= 1,
            "a torn write" => bytes.truncate(whole.len() / 2),
            _ => bytes.clear(),
        }
        File::create(&path).and_then(|mut file| file.write_all(&bytes)).expect("damage the cache");
        assert_eq!(start(false), (1, path.clone()), "{damage}: said, and compiled anew");
        assert_eq!(std::fs::read(&path).expect("read the cache").len(), whole.len(), "{damage}: replaced");
        assert_eq!(start(true).0, 0, "{damage}");
    }
}

#[test]
fn code_that_others_put_in_the_place_of_the_cache_is_not_run() {
    let [first, second] = [1, 2].map(|mark| version("echo", mark));
    let queue = "[queues.work]\nplugin = \"echo\"\n";
    // Code that this host has not compiled.
    let other = Bench::new(queue);
    put(&other, "echo", &second);
    let host = other.host();
    assert_eq!(loaded(&host, &second)["from_cache"], false);
    host.stop();
    let foreign = cached(&other);

    let bench = Bench::new(queue);
    put(&bench, "echo", &first);
    let plain = Host::command(&bench.config());
    let mut command = Command::new("sh");
    command.args(["-c", "umask 000; exec \"$0\" \"$@\""]).arg(plain.get_program()).args(plain.get_args());
    let host = Host::spawn(command);
    host.log("tqhost is running");
    let kept = bench.dir.path().join(".tqhost");
    let cache = kept.join("cache");
    for path in [&kept, &cache, &cached(&bench), &kept.join("last-good.toml")] {
        let rights = std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(rights & 0o077, 0, "others may do nothing with {}", path.display());
    }
    // Whoever may write to a folder above can do this at any time.
    std::fs::rename(&cache, kept.join("away")).expect("rename the cache");
    std::fs::create_dir(&cache).expect("another folder");
    std::fs::copy(&foreign, cache.join(foreign.file_name().expect("a name"))).expect("copy the code");
    put(&bench, "echo", &second);
    assert_eq!(loaded(&host, &second)["from_cache"], false, "it is compiled, not taken from there");
    host.stop();
}
