//! Good versions are where all hosts find them: a host that never had one goes back to it, and to nothing
//! that no host vouches for.
//!
//! Not here: orders (`orders`), good versions in an object store, of which the code is the same but for the
//! place.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::files::{digest, guest, loaded, marked, put};
use crate::support::{Bench, Host, eventually};

const QUEUES: &str = "[queues.work]\nplugin = \"p\"\n";
const KEPT: &str = "the version is kept for all hosts";

/// Writes the configuration of hosts that share everything but their `data_dir`, and with this token.
fn configure(bench: &Bench, data_dir: &str, token: &str) -> PathBuf {
    let url = bench.redis.url();
    let text = format!(
        "data_dir = \"{data_dir}\"\n{QUEUES}\n[redis]\nurl = \"{url}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"{token}\"\n"
    );
    bench.configure(&text);
    let path = bench.dir.path().join(format!("{data_dir}.toml"));
    std::fs::write(&path, text).expect("write a configuration");
    path
}

fn host(bench: &Bench, data_dir: &str, token: &str) -> Host {
    let host = Host::start(&configure(bench, data_dir, token), "info,tqhost=debug");
    host.log("tqhost is running");
    host
}

/// A good version that a host has run, and a bad one in its place; both hosts run the bad one, and the second
/// one knows nothing else.
fn incident(bench: &mut Bench) -> (Vec<u8>, Vec<u8>, Host) {
    let echo = guest("echo");
    let (good, bad) = (marked(&echo, 1), marked(&echo, 2));
    put(bench, "p", &good);
    let first = host(bench, "first", "secret");
    loaded(&first, &good);
    // It is kept when attempts have shown that it is good, not before.
    for _ in 0..5 {
        assert!(first.logged(KEPT).is_empty());
        let id = bench.xadd("work", &[("a", "1")]);
        bench.until("work", &id, "COMPLETED");
    }
    first.until_logged(KEPT, 1);
    put(bench, "p", &bad);
    loaded(&first, &bad);
    eventually("the version is confirmed", || {
        let id = bench.xadd("work", &[("a", "1")]);
        bench.until("work", &id, "COMPLETED");
        (!first.logged("plugin version confirmed").is_empty()).then_some(())
    });
    first.until_logged(KEPT, 2);
    (good, bad, first)
}

fn rows(bench: &Bench, hosts: usize) -> Vec<Value> {
    eventually("all hosts are announced", || {
        let shown = bench.tqhost(&["plugins", "p", "--json"]).ok().json();
        let rows = shown["plugins"].as_array().cloned().unwrap_or_default();
        (rows.len() == hosts && rows.iter().all(|row| !row["loaded_at"].is_null())).then_some(rows)
    })
}

#[test]
fn a_host_that_never_had_the_good_version_goes_back_to_it() {
    let mut bench = Bench::new(QUEUES);
    let (good, bad, first) = incident(&mut bench);
    let fresh = host(&bench, "fresh", "secret");
    loaded(&fresh, &bad);
    // A host learns from others what they have kept.
    eventually("both hosts can go back to the good version", || {
        let back_to: Vec<Value> = rows(&bench, 2).iter().map(|row| row["back_to"].clone()).collect();
        (back_to == [json!(digest(&good)), json!(digest(&good))]).then_some(())
    });
    let [stops, starts] = [&bad, &good].map(|version| digest(version)[..12].to_owned());
    let order = ["rollback", "p", "--version", &stops, "--why", "wrong totals", "--json"];
    let given = bench.tqhost(&order).ok().json();
    assert_eq!((&given["hosts_back"], &given["back_to"]), (&json!(2), &json!([digest(&good)])), "{given}");
    for host in [&first, &fresh] {
        let line = host.log("the last good version of the plugin runs again");
        assert_eq!(line["digest"], starts, "{line}");
    }
    first.stop();
    let id = bench.xadd("work", &[("a", "1")]);
    bench.until("work", &id, "COMPLETED");
    assert!(bench.status("work", &id, "plugin").ends_with(&starts));
    // One that starts now has the bad file, and nothing else.
    let late = host(&bench, "late", "secret");
    assert_eq!(late.log("the last good version of the plugin runs again")["digest"], starts);
    assert!(late.logged("plugin loaded").is_empty(), "the version that is withdrawn");
    Host::stop_all([fresh, late]);
}

#[test]
fn a_version_that_no_host_vouches_for_is_not_gone_back_to() {
    let mut bench = Bench::new(QUEUES);
    let (good, bad, first) = incident(&mut bench);
    first.stop();
    let evil = marked(&guest("echo"), 3);
    // Somebody who may write to Redis lists a version of its own, with the mark of a good one.
    let list: String = bench.redis("HGET", ("tq:hosts:orders", "p/good"));
    let mut listed: Value = serde_json::from_str(&list).expect("a list");
    assert_eq!(listed.as_array().map(Vec::len), Some(2), "{listed}");
    for version in listed.as_array_mut().expect("a list") {
        if version["digest"] == digest(&good) {
            version["digest"] = json!(digest(&evil));
        }
    }
    let _: () = bench.redis("SET", (format!("tq:hosts:version:{}", digest(&evil)), evil.clone()));
    let _: u64 = bench.redis("HSET", ("tq:hosts:orders", "p/good", listed.to_string()));
    let fresh = host(&bench, "fresh", "secret");
    loaded(&fresh, &bad);
    let left_out = "a good version that another host kept is left out";
    fresh.log(&format!("{left_out}: its mark is not that of the token of [admin] here"));
    assert_eq!(rows(&bench, 1)[0]["can_go_back"], false);
    // The list is true again, and the bytes are not.
    let _: u64 = bench.redis("HSET", ("tq:hosts:orders", "p/good", list));
    let _: () = bench.redis("SET", (format!("tq:hosts:version:{}", digest(&good)), evil));
    eventually("the list is read", || (rows(&bench, 1)[0]["can_go_back"] == true).then_some(()));
    bench.tqhost(&["rollback", "p", "--version", &digest(&bad), "--why", "wrong totals"]).ok();
    let error = eventually("the version cannot run", || {
        let shown = bench.tqhost(&["plugins", "p", "--json"]).ok().json();
        let row = &shown["plugins"][0];
        let error = row["error"].as_str().filter(|error| error.contains(&digest(&good)[..12]));
        error.filter(|_| row["version"].is_null()).map(|error| error.replace(&digest(&good)[..12], "GOOD"))
    });
    insta::assert_snapshot!(
        error,
        @"withdrawn: wrong totals; GOOD cannot run in its place (it cannot be compiled or loaded for now: \
          its file is not what was kept): put another version there"
    );
    fresh.stop();
}
