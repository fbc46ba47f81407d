//! Orders of an operator to all hosts about a plugin: a version is withdrawn, and lifted; its file is looked
//! at anew. With `--dry-run` none is given.
//!
//! Not here: versions that hosts roll back by themselves (`versions`), and every order of events, which the
//! model of a plugin's life goes through.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::bench::tqhost;
use crate::support::files::{digest, guest, loaded, marked, put, row};
use crate::support::words::masked;
use crate::support::{Bench, Host, eventually, http};

const QUEUES: &str = "[queues.work]\nplugin = \"p\"\n";
/// The line of the log about a version that does not run any more.
const IN_QUARANTINE: &str = "plugin version is in quarantine and does not run";

/// Waits until this host announces the version, in this state.
#[track_caller]
fn runs(bench: &Bench, hosts: usize, version: Option<&[u8]>, state: &str) {
    let version = version.map(digest);
    eventually(&format!("{hosts} hosts run {version:?}, {state}"), || {
        let shown = bench.tqhost(&["plugins", "p", "--json"]).ok().json();
        let rows = shown["plugins"].as_array().cloned().unwrap_or_default();
        let is_so = |row: &Value| row["version"].as_str() == version.as_deref() && row["state"] == state;
        (rows.len() == hosts && rows.iter().all(is_so)).then_some(())
    });
}

/// Lets tasks run until the version is confirmed.
fn confirm(bench: &mut Bench, hosts: &[Host], version: &[u8]) {
    for host in hosts {
        loaded(host, version);
    }
    eventually("the version is confirmed", || {
        let id = bench.xadd("work", &[("a", "1")]);
        bench.until("work", &id, "COMPLETED");
        hosts
            .iter()
            .all(|host| {
                host.logged("plugin version confirmed")
                    .iter()
                    .any(|line| line["digest"] == digest(version)[..12])
            })
            .then_some(())
    });
}

/// Waits until this many hosts have tried the plugin's file so often, each time in vain.
#[track_caller]
fn failed(bench: &Bench, hosts: usize, times: u64) {
    eventually(&format!("{hosts} hosts have tried it {times} times"), || {
        let shown = bench.tqhost(&["plugins", "p", "--json"]).ok().json();
        let rows = shown["plugins"].as_array().cloned().unwrap_or_default();
        let is_so = |row: &Value| row["failed_reloads"] == times && row["state"] == "failed";
        (rows.len() == hosts && rows.iter().all(is_so)).then_some(())
    });
}

/// The orders as Redis has them.
fn orders(bench: &mut Bench) -> BTreeMap<String, String> {
    let mut fields: BTreeMap<String, String> = bench.redis("HGETALL", "tq:hosts:orders");
    // The list of good versions is no order.
    fields.retain(|field, _| !field.ends_with("/good"));
    fields
}

fn completed_on(bench: &mut Bench) -> String {
    let id = bench.xadd("work", &[("a", "1")]);
    bench.until("work", &id, "COMPLETED");
    bench.status("work", &id, "plugin")
}

#[test]
fn a_version_that_an_operator_withdraws_serves_nowhere_until_it_is_lifted() {
    let mut bench = Bench::new(QUEUES);
    let echo = guest("echo");
    let (first, second) = (marked(&echo, 1), marked(&echo, 2));
    put(&bench, "p", &first);
    let mut hosts = vec![bench.host(), bench.host()];
    runs(&bench, 2, Some(&first), "active");
    put(&bench, "p", &second);
    confirm(&mut bench, &hosts, &second);

    runs(&bench, 2, Some(&second), "active");
    let order = ["rollback", "p", "--why", "it writes wrong totals"];
    let [whole, before] = [&second, &first].map(|version| digest(version));
    let version = &whole[..12];
    let named = |text: &str| {
        let text = text.replace(&whole, "WHOLE").replace(version, "VERSION");
        text.replace(&before[..12], "BEFORE")
    };
    let dry = bench.tqhost(&[&order[..], &["--dry-run"]].concat()).ok();
    insta::assert_snapshot!(
        named(&dry.stdout),
        @"version VERSION of p would be withdrawn: VERSION stops, BEFORE starts on 2 hosts"
    );
    let looked = bench.tqhost(&[&order[..], &["--dry-run", "--json"]].concat()).ok().json();
    assert_eq!(
        (&looked["version"], &looked["withdrawn"], &looked["hosts"], &looked["dry_run"]),
        (&json!(whole), &json!(true), &json!(2), &json!(true))
    );
    assert_eq!((&looked["hosts_back"], &looked["hosts_waiting"]), (&json!(2), &json!(0)));
    assert_eq!(looked["back_to"], json!([digest(&first)]));
    assert_eq!(orders(&mut bench), BTreeMap::new(), "a look gives no order");
    // Nobody can be asked.
    insta::assert_snapshot!(
        named(&bench.tqhost(&order).ends_with(2).stderr),
        @"tqhost: version VERSION of p would be withdrawn: VERSION stops, BEFORE starts on 2 hosts. Roll \
          it back? Nobody can be asked here: add --version WHOLE"
    );
    let ran = bench.tqhost(&[&order[..], &["--version", version]].concat()).ok();
    insta::assert_snapshot!(
        named(&ran.stdout),
        @"version VERSION of p is withdrawn: VERSION stops, BEFORE starts on 2 hosts within seconds"
    );
    runs(&bench, 2, Some(&first), "quarantined");
    for host in &hosts {
        let lines = host.until_logged(IN_QUARANTINE, 1);
        let (digest, reason) = (&lines[0]["digest"], &lines[0]["reason"]);
        assert_eq!((digest, reason), (&json!(version), &json!("withdrawn: it writes wrong totals")));
    }
    assert!(completed_on(&mut bench).ends_with(&digest(&first)[..12]));
    let shown = row(&bench, "p").expect("a row");
    assert_eq!(shown["error"], "withdrawn: it writes wrong totals");

    // A host that starts now knows it from its first task on.
    for host in hosts.drain(..) {
        let log = host.stop_for_log();
        assert_eq!(log.logged(IN_QUARANTINE).len(), 1, "one line, also when the file was read again");
    }
    hosts.push(bench.host());
    runs(&bench, 1, Some(&first), "quarantined");
    assert!(hosts[0].logged("plugin loaded").is_empty(), "the version that is withdrawn");
    assert!(completed_on(&mut bench).ends_with(&digest(&first)[..12]));

    let given = orders(&mut bench);
    let dry = bench.tqhost(&["lift", "p", "--dry-run"]).ok();
    insta::assert_snapshot!(
        named(&dry.stdout),
        @"version VERSION of p could run again: 1 host would be told"
    );
    let looked = bench.tqhost(&["lift", "p", "--dry-run", "--json"]).ok().json();
    assert_eq!((&looked["version"], &looked["dry_run"]), (&json!(whole), &json!(true)));
    assert_eq!(orders(&mut bench), given, "a look gives no order");
    let lifted = bench.tqhost(&["lift", "p", "--json"]).ok().json();
    assert_eq!((&lifted["version"], &lifted["withdrawn"]), (&digest(&second).into(), &false.into()));
    assert!(lifted["dry_run"].is_null() && lifted.get("hosts_waiting").is_none(), "{lifted}");
    runs(&bench, 1, Some(&second), "active");
    assert!(completed_on(&mut bench).ends_with(&digest(&second)[..12]));
    Host::stop_all(hosts);
}

#[test]
fn a_second_rollback_is_refused_and_none_brings_a_withdrawn_version_back() {
    let mut bench = Bench::new(QUEUES);
    let echo = guest("echo");
    let (good, bad) = (marked(&echo, 1), marked(&echo, 2));
    put(&bench, "p", &good);
    let hosts = [bench.host(), bench.host()];
    runs(&bench, 2, Some(&good), "active");
    put(&bench, "p", &bad);
    confirm(&mut bench, &hosts, &bad);
    runs(&bench, 2, Some(&bad), "active");
    let [good_digest, bad_digest] = [&good, &bad].map(|version| digest(version));
    let body = |version: &str| Some(json!({ "version": version, "why": "wrong totals" }).to_string());
    let send = |version: &str| {
        let json = [("content-type", "application/json")];
        http::send(hosts[0].admin(), "POST", "/v1/plugins/p/rollback", &json, body(version).as_deref())
    };
    assert_eq!(send(&bad_digest).status, 202);
    // The second operator saw the same page. The hosts may not have obeyed yet.
    let second = send(&bad_digest);
    let told = second.json();
    assert_eq!((second.status, &told["code"]), (409, &json!("not-running")), "{second:?}");
    let named = |text: &str| {
        let known = [(&good_digest[..12], "GOOD"), (&bad_digest[..12], "BAD")];
        masked(&text.replace(&bad_digest, "BAD").replace(&good_digest, "GOOD"), &known)
    };
    insta::assert_snapshot!(
        named(told["detail"].as_str().expect("a detail")),
        @"version BAD of p was already rolled back AGE ago by anybody (wrong totals): no host runs another \
          one"
    );
    runs(&bench, 2, Some(&good), "quarantined");
    let late = bench.tqhost(&["rollback", "p", "--why", "me too", "--version", &bad_digest[..12]]);
    insta::assert_snapshot!(
        named(&late.ends_with(1).stderr),
        @"tqhost: version BAD of p was already rolled back AGE ago by anybody (wrong totals): hosts run GOOD"
    );
    // An operator who means the good one: the bad one stays withdrawn, and nothing is left to run.
    let only = ["rollback", "p", "--why", "both", "--version", &good_digest, "--dry-run"];
    insta::assert_snapshot!(
        named(&bench.tqhost(&only).ok().stdout),
        @"version GOOD of p would be withdrawn: 2 hosts have nothing to go back to: their queues would wait"
    );
    assert_eq!(send(&good_digest).status, 202);
    runs(&bench, 2, None, "quarantined");
    let id = bench.xadd("work", &[("a", "1")]);
    // A host that starts now obeys both.
    let third = bench.host();
    runs(&bench, 3, None, "quarantined");
    assert!(third.logged("plugin loaded").is_empty());
    bench.tqhost(&["lift", "p", "--version", &good_digest]).ok();
    for host in &hosts {
        host.log("the last good version of the plugin runs again");
    }
    bench.until("work", &id, "COMPLETED");
    assert!(bench.status("work", &id, "plugin").ends_with(&good_digest[..12]));
    let [first, second] = hosts;
    Host::stop_all([first, second, third]);
}

#[test]
fn without_an_earlier_version_the_queue_waits_and_loses_nothing() {
    let mut bench = Bench::new(QUEUES);
    let only = guest("echo");
    put(&bench, "p", &only);
    let host = bench.host();
    runs(&bench, 1, Some(&only), "active");
    let whole = digest(&only);
    let (version, order) = (&whole[..12], ["rollback", "p", "--version", &whole[..8], "--why", "a test"]);
    let dry = bench.tqhost(&[&order[..], &["--dry-run"]].concat()).ok();
    insta::assert_snapshot!(
        dry.stdout.replace(version, "VERSION"),
        @"version VERSION of p would be withdrawn: 1 host has nothing to go back to: its queues would wait"
    );
    let view = bench.tqhost(&[&order[..], &["--json"]].concat()).ok().json();
    assert_eq!(
        (&view["hosts"], &view["hosts_back"], &view["hosts_waiting"]),
        (&json!(1), &json!(0), &json!(1))
    );
    runs(&bench, 1, None, "quarantined");
    let line = host.log(IN_QUARANTINE);
    assert_eq!((&line["digest"], &line["reason"]), (&json!(version), &json!("withdrawn: a test")));
    insta::assert_snapshot!(
        row(&bench, "p").expect("a row")["error"].as_str().unwrap_or_default(),
        @"withdrawn: a test; there is no other version to run in its place: put one there, or lift the \
          quarantine"
    );
    let id = bench.xadd("work", &[("a", "1")]);
    eventually("the queue waits for its plugin", || {
        host.get("/readyz").body.contains("waiting").then_some(())
    });
    assert_eq!(bench.places("work").length, 1);
    bench.tqhost(&["lift", "p"]).ok();
    bench.until("work", &id, "COMPLETED");
    host.stop();
}

#[test]
fn a_reload_lets_all_hosts_try_a_bad_file_again() {
    let mut bench = Bench::new(QUEUES);
    // No host tries such a file again by itself.
    put(&bench, "p", b"no component");
    let hosts = [bench.host(), bench.host()];
    failed(&bench, 2, 1);
    let dry = bench.tqhost(&["reload", "p", "--dry-run"]).ok();
    insta::assert_snapshot!(dry.stdout, @"2 hosts would look at the file of p");
    let looked = bench.tqhost(&["reload", "p", "--dry-run", "--json"]).ok().json();
    assert_eq!(
        (&looked["plugin"], &looked["hosts"], &looked["dry_run"]),
        (&json!("p"), &json!(2), &json!(true))
    );
    assert_eq!(orders(&mut bench), BTreeMap::new(), "a look gives no order");
    let ran = bench.tqhost(&["reload", "p"]).ok();
    insta::assert_snapshot!(ran.stdout, @"2 hosts look at the file of p within seconds");
    failed(&bench, 2, 2);
    // Each is an order of its own, also where the clock of who gave the last one was ahead.
    let far = 1_u64 << 50;
    let _: u64 = bench.redis("HSET", ("tq:hosts:orders", "p/reload", far));
    failed(&bench, 2, 3);
    let view = bench.tqhost(&["reload", "p", "--json"]).ok().json();
    assert_eq!(view, json!({ "plugin": "p", "at": far + 1, "hosts": 2 }));
    failed(&bench, 2, 4);
    Host::stop_all(hosts);
}

#[test]
fn a_plugin_that_only_another_host_has_is_shown_and_ordered() {
    let bench = Bench::new(QUEUES);
    put(&bench, "p", &guest("echo"));
    put(&bench, "q", &guest("echo"));
    // Another configuration has the same Redis, and a queue of another plugin.
    let (other, text) = (bench.dir.path().join("other.toml"), std::fs::read_to_string(bench.config()));
    let text = text.expect("read the configuration").replace(QUEUES, "[queues.other]\nplugin = \"q\"\n");
    std::fs::write(&other, text).expect("write a configuration");
    let alone = Host::start(&other, "info,tqhost=debug");
    alone.log("tqhost is running");
    insta::assert_snapshot!(
        tqhost(&other, &["plugins", "p"]).ends_with(2).stderr,
        @"tqhost: no queue of the configuration and no running host uses a plugin `p`"
    );
    let unknown = http::send(alone.admin(), "POST", "/v1/plugins/p/reload", &[], None);
    assert_eq!((unknown.status, &unknown.json()["code"]), (404, &json!("unknown-plugin")));

    let host = bench.host();
    runs(&bench, 1, Some(&guest("echo")), "active");
    let shown = tqhost(&other, &["plugins", "p"]).ok().stdout;
    assert!(shown.contains(&digest(&guest("echo"))[..12]) && shown.contains("CHANGE"), "{shown}");
    let rows = tqhost(&other, &["plugins", "p", "--json"]).ok().json();
    assert_eq!((&rows["plugins"][0]["name"], &rows["plugins"][1]), (&json!("p"), &Value::Null));
    insta::assert_snapshot!(
        tqhost(&other, &["reload", "p"]).ok().stdout,
        @"1 host looks at the file of p within seconds"
    );
    let reloaded = http::send(alone.admin(), "POST", "/v1/plugins/p/reload", &[], None);
    assert_eq!((reloaded.status, &reloaded.json()["hosts"]), (202, &json!(1)));
    Host::stop_all([alone, host]);
}

#[test]
fn an_order_that_cannot_be_meant_is_refused_with_the_way_out() {
    let bench = Bench::new(QUEUES);
    put(&bench, "p", &guest("echo"));
    let host = bench.host();
    runs(&bench, 1, Some(&guest("echo")), "active");
    let other = digest(b"another");
    let told = [
        &["rollback", "q", "--why", "x"][..],
        &["rollback", "p", "--why", " "],
        &["rollback", "p", "--why", "x", "--version", "abc"],
        &["rollback", "p", "--why", "x", "--version", &other],
        &["rollback", "p", "--why", "x", "--version", "00000000"],
        &["lift", "p"],
        &["reload", "q"],
    ]
    .map(|args| {
        let (ran, dry) = (bench.tqhost(args), bench.tqhost(&[args, &["--dry-run"]].concat()));
        assert_ne!(ran.code, 0, "{args:?}: {ran:?}");
        assert_eq!((dry.code, &dry.stderr), (ran.code, &ran.stderr), "{args:?}");
        ran.stderr
    });
    insta::assert_snapshot!(masked(&told.concat(), &[]), @r#"
    tqhost: no running host uses a plugin "q"
    tqhost: why: a reason of 1 to 200 characters is needed; hosts show it
    tqhost: version: "abc" is no SHA-256 in small hexadecimal digits, nor its first 8 digits or more
    tqhost: version HEX of p runs on no host any more: hosts run HEX
    tqhost: version: no running host knows a version of plugin p that begins with 00000000
    tqhost: plugin p: no version of it is in quarantine; name the version
    tqhost: no running host uses a plugin "q"
    "#);
    assert_eq!(row(&bench, "p").expect("a row")["state"], "active");
    host.stop();
}

#[test]
fn a_further_version_than_may_be_withdrawn_is_refused_and_lifts_none() {
    let mut bench = Bench::new(QUEUES);
    let version = marked(&guest("echo"), 1);
    put(&bench, "p", &version);
    let host = bench.host();
    runs(&bench, 1, Some(&version), "active");
    for n in 0..16 {
        let old = format!("{n:064x}");
        let order =
            json!({ "version": old, "withdrawn": true, "why": "old", "at": n, "by": "me" }).to_string();
        let _: u64 = bench.redis("HSET", ("tq:hosts:orders", format!("p/{old}"), order));
    }
    let refused = bench.tqhost(&["rollback", "p", "--version", &digest(&version), "--why", "slow"]);
    insta::assert_snapshot!(
        refused.ends_with(2).stderr,
        @"tqhost: 16 versions of plugin p are withdrawn: lift old ones first"
    );
    assert_eq!(bench.redis::<u64>("HLEN", "tq:hosts:orders"), 16);
    host.stop();
}
