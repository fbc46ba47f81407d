//! The life of a plugin's version: its self-check, its probation, and the way back if it is bad.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use serde_json::Value;

use super::files::overwrite;
use crate::support::files::{digest, guest, label, loaded, put, row, said, version};
use crate::support::swaps::random;
use crate::support::{Bench, Done, Host, Places, Trickle, eventually};

#[track_caller]
fn rolled_back(host: &Host, bytes: &[u8]) -> Value {
    said(host, "plugin version rolled back", bytes)
}

/// Waits until `tqhost plugins` shows this for the plugin `p`.
#[track_caller]
fn shown(bench: &Bench, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    eventually(&format!("`tqhost plugins` shows {what}"), || row(bench, "p").filter(|row| is_so(row)))
}

/// Each task must be completed in its first attempt, on one of these versions, and nothing may be left
/// anywhere.
#[track_caller]
fn untouched(bench: &mut Bench, done: &[Done], versions: &[&[u8]]) {
    let good: Vec<String> = versions.iter().map(|bytes| label("p", bytes)).collect();
    for Done { id, plugin } in done {
        assert_eq!(bench.status("work", id, "attempt"), "1", "{id} on {plugin}");
        assert_eq!(bench.status("work", id, "error"), "", "{id} on {plugin}");
        assert!(good.contains(plugin), "{id} on {plugin}, not on {good:?}");
    }
    assert_eq!(bench.places("work"), Places::default());
}

/// The metric of plugin reloads with this result.
fn reloads(result: &str) -> String {
    format!("tqhost_plugin_reloads_total{{plugin=\"p\",result=\"{result}\"}}")
}

#[test]
fn a_bad_version_is_rolled_back_under_load_as_if_nothing_had_happened() {
    // Each task has only one attempt.
    let mut bench = Bench::new("[queues.work]\nplugin = \"p\"\nmax_retries = 0\n");
    let good = guest("echo");
    put(&bench, "p", &good);
    let host = bench.host();
    let trickle = Trickle::start(&bench, "work", 8);
    trickle.more(10);
    let (mut given_back, mut reasons) = (0, BTreeSet::new());
    for (count, bad) in
        ["checks-then-traps", "traps-at-start", "hoards-at-once", "panics"].into_iter().enumerate()
    {
        let bytes = guest(bad);
        put(&bench, "p", &bytes);
        let line = rolled_back(&host, &bytes);
        assert_eq!(
            (&line["plugin"], &line["level"], line["good"].as_str()),
            (&"p".into(), &"ERROR".into(), Some(&digest(&good)[..12]))
        );
        reasons.insert(line["reason"].as_str().and_then(|why| why.split("; ").next()).map(str::to_owned));
        trickle.more(30);
        let row = shown(&bench, "the quarantine", |row| row["rolled_back"] == count + 1);
        assert_eq!(
            (&row["state"], &row["version"]),
            (&"quarantined".into(), &digest(&good).into()),
            "{bad}: {row}"
        );
        assert!(row["error"].as_str().is_some_and(|error| error.contains("rolled back to")), "{bad}: {row}");
        host.until_metric(&reloads("rolled-back"), count as u64 + 1);
        given_back = eventually("those it spoiled are given back", || {
            Some(host.ended_as("work", "given-back")).filter(|now| *now >= given_back + 6)
        });
    }
    insta::assert_snapshot!(
        Vec::from_iter(reasons.into_iter().flatten()).join("\n"),
        @"it spoiled 6 tasks, and 0 ended well"
    );
    assert!(
        host.metric(&format!(
            "tqhost_plugin_info{{plugin=\"p\",state=\"quarantined\",version=\"{}\"}}",
            digest(&good)
        )) > 0.5
    );
    let done = trickle.stop();
    untouched(&mut bench, &done, &[&good]);
    for outcome in ["retried", "retries-exhausted", "released"] {
        assert_eq!(host.ended_as("work", outcome), 0, "{outcome}");
    }
    host.until_ended_as("work", "completed", done.len() as u64);
    host.stop();
}

#[test]
fn a_version_that_loops_is_rolled_back() {
    // The timeout is far more than the good version needs while the bad one computes in every slot.
    let mut bench = Bench::new("[queues.work]\nplugin = \"p\"\nmax_retries = 0\ntimeout = \"3s\"\n");
    let good = guest("echo");
    put(&bench, "p", &good);
    let host = bench.host();
    let trickle = Trickle::start(&bench, "work", 8);
    trickle.more(10);
    let mut reasons = Vec::new();
    for (count, bad) in (1..).zip(["loops-at-start", "loops"]) {
        let bad = guest(bad);
        put(&bench, "p", &bad);
        let reason = rolled_back(&host, &bad)["reason"].as_str().expect("a reason").to_owned();
        reasons.extend(reason.rsplit_once("; ").map(|(_, why)| why.to_owned()));
        trickle.more(30);
        eventually("those it spoiled are given back", || {
            (host.ended_as("work", "given-back") >= 6 * count).then_some(())
        });
    }
    insta::assert_snapshot!(reasons.join("\n"), @"
    timeout: not instantiated within 3s
    timeout: the handler did not end within 3s: it computed for most of that time
    ");
    let done = trickle.stop();
    untouched(&mut bench, &done, &[&good]);
    host.until_metric(&reloads("rolled-back"), 2);
    assert_eq!(host.ended_as("work", "retries-exhausted"), 0);
    host.stop();
}

/// The last line of a plugin's history.
#[track_caller]
fn last_change(row: &Value) -> Value {
    row["history"].as_array().and_then(|changes| changes.last()).expect("a change").clone()
}

#[test]
fn a_self_check_that_a_service_holds_up_is_tried_again_and_one_that_says_no_is_not() {
    // This server accepts connections, and does not answer yet.
    let service = TcpListener::bind("127.0.0.1:0").expect("listen");
    service.set_nonblocking(true).expect("a listener that does not wait");
    let origin = format!("http://{}", service.local_addr().expect("an address"));
    let grants =
        format!("[plugins.p]\nallowed_hosts = [\"{origin}\"]\nconfig = {{ service = \"{origin}/\" }}\n");
    let mut bench = Bench::new(&format!(
        "[queues.p]\n[queues.q]\n[queues.r]\n{grants}[plugins.q]\nconfig = {{ self-check = \"no\" }}\n"
    ));
    [("p", "echo"), ("q", "echo"), ("r", "echo-v2")]
        .iter()
        .for_each(|(name, guest)| bench.install(guest, name));
    let host = bench.host();
    let (old, new, bad) = (guest("echo"), guest("checks-a-service"), guest("checks-itself"));
    put(&bench, "q", &bad);
    assert!(said(&host, "plugin cannot be used", &bad)["again_in_ms"].is_null());
    put(&bench, "p", &new);
    let _asks = eventually("the self-check asks", || service.accept().ok());
    // Other plugins do not wait for it.
    put(&bench, "r", &old);
    eventually("another plugin has its version", || {
        host.logged("plugin loaded")
            .into_iter()
            .find(|line| line["plugin"] == "r" && line["digest"] == digest(&old)[..12])
    });
    assert_eq!(host.logged("plugin cannot be used").len(), 1, "the self-check still waits");
    let line = said(&host, "plugin cannot be used", &new);
    insta::assert_snapshot!(
        line["error"].as_str().unwrap_or_default(),
        @"self-check: timeout: it did not end within 10s: it waited for most of that time, for a \
          service, a clock or other handlers"
    );
    assert_eq!(line["again_in_ms"], 10_000, "{line}");
    let id = bench.xadd("p", &[("a", "1")]);
    bench.until("p", &id, "COMPLETED");
    assert_eq!(bench.status("p", &id, "plugin"), label("p", &old));
    let waits = shown(&bench, "when it is tried again", |row| row["retry_at"].is_u64());
    assert_eq!((&waits["state"], &waits["version"]), (&"failed".into(), &digest(&old).into()), "{waits}");
    let text = bench.tqhost(&["plugins", "p"]).ok().stdout;
    assert!(text.contains(&format!("{} (", line["error"].as_str().expect("an error"))), "{text}");

    service.set_nonblocking(false).expect("a listener that waits");
    std::thread::spawn(move || {
        for mut client in service.incoming().map_while(Result::ok) {
            // The request that the host gave up is one of these.
            let head =
                BufReader::new(&client).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            head.for_each(drop);
            let _ = client.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        }
    });
    loaded(&host, &new);
    let id = bench.xadd("p", &[("a", "1")]);
    bench.until("p", &id, "COMPLETED");
    assert_eq!(bench.status("p", &id, "plugin"), label("p", &new));
    let row = shown(&bench, "that it is active", |row| row["state"] == "active");
    assert!(row["retry_at"].is_null() && last_change(&row)["what"] == "loaded", "{row}");
    // The version failed first, so it would have been tried first.
    assert_eq!(host.logged("plugin cannot be used").iter().filter(|line| line["plugin"] == "q").count(), 1);
    host.stop();
}

#[test]
fn a_version_whose_self_check_fails_gets_no_task() {
    let plugins = ["fail", "trap", "hoard", "loop", "ok"];
    let queue =
        |name: &str| format!("[queues.{name}]\n[plugins.{name}]\nconfig = {{ self-check = \"{name}\" }}\n");
    let queues: String = plugins.iter().map(|name| queue(name)).collect();
    let mut bench = Bench::new(&queues);
    plugins.iter().for_each(|name| bench.install("echo", name));
    let host = bench.host();
    let (old, new) = (guest("echo"), guest("checks-itself"));
    let mut errors = Vec::new();
    for plugin in plugins[..4].iter().copied() {
        put(&bench, plugin, &new);
        let refused =
            || host.logged("plugin cannot be used").into_iter().find(|line| line["plugin"] == plugin);
        let line = eventually(&format!("{plugin} is refused"), refused);
        let error = line["error"].as_str().expect("an error");
        // Numbers of bytes depend on the compiler, and what a loop waited for on the machine.
        let error = error.split_inclusive("10s").next().unwrap_or_default().split(' ');
        let is_size = |word: &str| word.len() > 5 && word.bytes().all(|byte| byte.is_ascii_digit());
        errors.push(error.map(|word| if is_size(word) { "N" } else { word }).collect::<Vec<_>>().join(" "));
        assert_eq!(line["active"], digest(&old)[..12], "{line}");
        let id = bench.xadd(plugin, &[("a", "1")]);
        bench.until(plugin, &id, "COMPLETED");
        assert_eq!(bench.status(plugin, &id, "plugin"), label(plugin, &old));
        let row = eventually("it is shown", || row(&bench, plugin).filter(|row| row["state"] == "failed"));
        assert_eq!(row["error"], line["error"], "{row}");
        let last = last_change(&row);
        assert_eq!(
            (&last["what"], &last["version"]),
            (&"self-check-failed".into(), &digest(&new).into()),
            "{row}"
        );
        let (took, least) = (last["took_ms"].as_u64(), if plugin == "loop" { 10_000 } else { 0 });
        assert!(took >= Some(least) && line["took_ms"].is_u64(), "{line}\n{row}");
        assert_eq!(
            (row["retry_at"].is_u64(), line["again_in_ms"].is_u64()),
            (plugin == "loop", plugin == "loop"),
            "{line}\n{row}"
        );
    }
    insta::assert_snapshot!(errors.join("\n"), @"
    self-check: the self-check is told to be `fail`
    self-check: trap: wasm `unreachable` instruction executed: a panic, an abort or an uncaught \
        exception without a word; `tqhost try --backtrace` says where
    self-check: out-of-memory: it asked for N bytes beside N in use; N are granted: memory allocation \
        of N bytes failed
    self-check: timeout: it did not end within 10s
    ");
    put(&bench, "ok", &new);
    eventually("it passes", || {
        host.logged("plugin loaded").into_iter().find(|line| line["digest"] == digest(&new)[..12])
    });
    let id = bench.xadd("ok", &[("a", "1")]);
    bench.until("ok", &id, "COMPLETED");
    assert_eq!(bench.status("ok", &id, "plugin"), label("ok", &new));
    host.stop();

    // At a start there is no old version, so the queue waits. The code is in the cache now, and the
    // self-check still runs.
    bench.configure_for(&queue("fail"), bench.redis.port);
    let host = bench.host();
    assert!(host.log("plugin cannot be used")["active"].is_null());
    let id = bench.xadd("fail", &[("a", "1")]);
    eventually("it waits", || host.get("/readyz").body.contains("waiting-for-plugin").then_some(()));
    assert_eq!(bench.status("fail", &id, "status"), "");
    bench.install("echo", "fail");
    bench.until("fail", &id, "COMPLETED");
    host.stop();
}

#[test]
fn a_bad_first_version_is_charged_as_always() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"p\"\nmax_retries = 1\nbackoff = \"none\"\n");
    put(&bench, "p", &guest("checks-then-traps"));
    let host = bench.host();
    for _ in 0..10 {
        bench.xadd("work", &[("a", "1")]);
    }
    eventually("all are dead", || (bench.places("work").dead == 10).then_some(()));
    for dead in bench.dead("work") {
        assert_eq!(
            (dead["tq-reason"].as_str(), dead["tq-attempts"].as_str()),
            ("retries-exhausted", "2"),
            "{dead:?}"
        );
    }
    assert_eq!(host.ended_as("work", "given-back"), 0);
    host.until_metric(&reloads("rolled-back"), 0);
    assert_eq!(shown(&bench, "it", |_| true)["state"], "active");
    host.stop();
}

#[test]
fn a_quarantine_lasts_until_there_is_another_content() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"p\"\nmax_retries = 0\n");
    let (good, bad) = (guest("echo"), guest("checks-then-traps"));
    put(&bench, "p", &good);
    let host = bench.host();
    let trickle = Trickle::start(&bench, "work", 4);
    trickle.more(5);
    put(&bench, "p", &bad);
    rolled_back(&host, &bad);
    let path = bench.plugin_path("p");
    let quarantined = |count: usize| {
        let what = "plugin version is in quarantine";
        eventually(&format!("{what} for the {count}. time"), || {
            (host.logged(what).len() == count).then_some(())
        });
    };
    // A touched file causes no message. A file that is rewritten in pieces is unusable for a while, and then
    // has its known content.
    std::fs::File::options()
        .append(true)
        .open(&path)
        .and_then(|file| file.set_modified(std::time::SystemTime::now()))
        .expect("touch");
    overwrite(&path, &bad, &trickle);
    // The file is removed and copied there again.
    std::fs::remove_file(&path).expect("remove a plugin");
    host.log("plugin removed");
    put(&bench, "p", &bad);
    eventually("it is refused", || {
        (!host.logged("plugin version is in quarantine").is_empty()).then_some(())
    });
    host.log("the last good version of the plugin runs again");
    trickle.more(10);
    // An unusable file is there in between.
    let before = host.logged("plugin version is in quarantine").len();
    let failures = host.logged("plugin cannot be used").len();
    put(&bench, "p", b"text");
    eventually("it is refused", || (host.logged("plugin cannot be used").len() > failures).then_some(()));
    put(&bench, "p", &bad);
    quarantined(before + 1);
    trickle.more(10);
    assert_eq!((host.logged("plugin loaded").len(), host.logged("plugin version rolled back").len()), (2, 1));
    let given_back = host.ended_as("work", "given-back");
    host.stop();

    // The next host recognizes the bad file, and has the compiled code of the good version.
    let host = bench.host();
    assert_eq!(host.log("plugin version is in quarantine")["digest"], digest(&bad)[..12]);
    said(&host, "the last good version of the plugin runs again", &good);
    trickle.more(10);
    shown(&bench, "the quarantine", |row| row["state"] == "quarantined" && row["version"] == digest(&good));
    assert_eq!(host.ended_as("work", "given-back"), 0, "beside {given_back} before");

    // A new content is a new version, and a good one stays.
    let better = guest("echo-v2");
    put(&bench, "p", &better);
    loaded(&host, &better);
    said(&host, "plugin version confirmed", &better);
    let done = trickle.stop();
    untouched(&mut bench, &done, &[&good, &better]);
    assert!(done.iter().any(|task| task.plugin == label("p", &better)));
    // The commands are told a moment after the log.
    shown(&bench, "it", |row| row["state"] == "active" && row["on_probation"] == false);

    let text = bench.tqhost(&["plugins", "p"]).ok().stdout;
    for change in ["quarantined", "restored", "loaded", "confirmed"] {
        assert!(text.contains(change), "{change} in\n{text}");
    }
    assert_eq!(bench.tqhost(&["plugins", "q"]).code, 2);
    host.stop();
}

/// Waits until this many attempts of a task have ended in this host.
#[track_caller]
fn until_attempts(host: &Host, id: &str, attempts: usize) {
    eventually(&format!("{attempts} attempts of {id}"), || {
        let ended = host.logged("attempt ended").iter().filter(|line| line["task"] == id).count();
        assert!(ended <= attempts, "{ended} attempts of {id}, more than {attempts}");
        (ended == attempts).then_some(())
    });
}

#[test]
fn a_task_that_traps_on_every_version_comes_to_its_end() {
    let mut bench =
        Bench::new("[queues.work]\nplugin = \"p\"\nmax_retries = 2\nbackoff = { base = \"100ms\" }\n");
    let (old, new) = (version("traps-if-told", 1), version("traps-if-told", 2));
    put(&bench, "p", &old);
    let host = bench.host();
    let id = bench.xadd("work", &[("a", "1")]);
    bench.until("work", &id, "COMPLETED");

    // Other tasks ended well, but too few to find the new version good. It is found good once the task has
    // been given back five times.
    put(&bench, "p", &new);
    loaded(&host, &new);
    for _ in 0..4 {
        let id = bench.xadd("work", &[("a", "1")]);
        bench.until("work", &id, "COMPLETED");
    }
    let poison = bench.xadd("work", &[("trap", "yes")]);
    said(&host, "plugin version confirmed", &new);
    let dead = eventually("it is dead", || bench.dead("work").into_iter().next());
    assert_eq!(
        (&dead["tq-id"], &dead["tq-attempts"], &dead["tq-reason"]),
        (&poison, &"3".into(), &"retries-exhausted".into())
    );
    assert_eq!(dead["tq-plugin"], label("p", &new));
    host.until_ended_as("work", "given-back", 5);
    until_attempts(&host, &poison, 5 + 3);

    // The task is the only one. The version is found bad, and the task ends on the last good version.
    let next = version("traps-if-told", 3);
    put(&bench, "p", &next);
    loaded(&host, &next);
    let poison = bench.xadd("work", &[("trap", "yes")]);
    let line = rolled_back(&host, &next);
    insta::assert_snapshot!(
        line["reason"].as_str().unwrap_or_default(),
        @"it spoiled 1 task, and 0 ended well; trap: wasm `unreachable` instruction executed: a panic, \
          an abort or an uncaught exception without a word; `tqhost try --backtrace` says where"
    );
    let dead = eventually("it is dead", || bench.dead("work").into_iter().nth(1));
    assert_eq!(
        (&dead["tq-id"], &dead["tq-attempts"], &dead["tq-plugin"]),
        (&poison, &"3".into(), &label("p", &new))
    );
    host.until_ended_as("work", "given-back", 5 + 6);
    until_attempts(&host, &poison, 6 + 3);
    host.stop();
}

#[test]
fn two_hosts_judge_each_for_itself() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"p\"\nmax_retries = 0\nconcurrency = 4\n");
    let (good, bad) = (guest("echo"), guest("checks-then-traps"));
    put(&bench, "p", &good);
    let hosts = [bench.host(), bench.host()];
    let trickle = Trickle::start(&bench, "work", 16);
    trickle.more(20);
    put(&bench, "p", &bad);
    for host in &hosts {
        rolled_back(host, &bad);
    }
    trickle.more(50);
    let done = trickle.stop();
    untouched(&mut bench, &done, &[&good]);
    for host in &hosts {
        host.until_metric(&reloads("rolled-back"), 1);
        assert_eq!(host.ended_as("work", "retries-exhausted"), 0);
    }
    Host::stop_all(hosts);
}

#[test]
fn twenty_versions_good_and_bad_in_any_order_lose_and_spoil_nothing() {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_nanos()
        as u64;
    println!("seed {seed}");
    let mut random = random(seed);
    let mut bench = Bench::new("[queues.work]\nplugin = \"p\"\nmax_retries = 0\n");
    let first = guest("echo");
    put(&bench, "p", &first);
    let hosts = [bench.host(), bench.host()];
    let trickle = Trickle::start(&bench, "work", 8);
    trickle.more(5);
    let mut installed = vec![first];
    for mark in 1..=20 {
        let name = ["echo", "echo-v2", "checks-then-traps", "traps-at-start", "panics"][random(5)];
        let is_good = name.starts_with("echo");
        let next = version(name, mark);
        put(&bench, "p", &next);
        if is_good {
            installed.push(next.clone());
        }
        // Some versions are replaced again before their probation can end.
        match random(3) {
            0 => trickle.more(1),
            1 => hosts.iter().for_each(|host| drop(loaded(host, &next))),
            _ => {
                for host in &hosts {
                    if is_good {
                        loaded(host, &next)
                    } else {
                        rolled_back(host, &next)
                    };
                }
                trickle.more(5);
            }
        }
    }
    let last = version("echo", 99);
    put(&bench, "p", &last);
    hosts.iter().for_each(|host| drop(loaded(host, &last)));
    installed.push(last);
    trickle.more(20);
    let done = trickle.stop();
    let good: Vec<&[u8]> = installed.iter().map(Vec::as_slice).collect();
    untouched(&mut bench, &done, &good);
    for host in hosts {
        assert_eq!(
            (host.ended_as("work", "retried"), host.ended_as("work", "retries-exhausted")),
            (0, 0),
            "seed {seed}"
        );
        host.stop();
    }
}
