//! The build of a version: its label is with it wherever people are shown one; `tqhost deploy` writes it, and
//! tells what all hosts make of the file.
//!
//! Not here: what a foreign section or file may hold (the unit tests of `builds`, `build_section` and
//! `build_file`), the life of a version (`versions`).

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::dashboard::Browser;
use crate::support::bench::{guest_path, tqhost};
use crate::support::files::{digest, guest, loaded, marked, put, put_at, row};
use crate::support::words::masked;
use crate::support::{Bench, Host, Ran, eventually};

const QUEUES: &str = "[queues.work]\nplugin = \"p\"\nbackoff = \"none\"\n";

/// Writes a handler's file that is not in place.
fn built(bench: &Bench, name: &str, bytes: &[u8]) -> String {
    let path = bench.dir.path().join(name);
    fs::write(&path, bytes).expect("write a handler");
    path.to_str().expect("a path").to_owned()
}

fn deploy(bench: &Bench, file: &str, more: &[&str]) -> Ran {
    bench.tqhost(&[&["deploy", file, "--plugin", "p"], more].concat())
}

/// The output of a deploy, without the names of its hosts, which also decide about widths and the order.
fn printed(bench: &Bench, text: &str) -> String {
    let text = masked(text, &[(bench.dir.path().to_str().expect("a path"), "DIR")]);
    let mut lines: Vec<String> =
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    lines.split_mut(|line| !line.starts_with("HOST ")).for_each(<[String]>::sort);
    lines.join("\n")
}

/// A refusal of a version that was rolled back, without what differs from run to run.
fn rolled_back(told: &str, version: &str, by: &Value) -> String {
    let by = by.as_str().expect("who deploys");
    masked(told, &[(version, "VERSION"), (&version[..12], "BAD"), (by, "SOMEBODY")])
}

/// The states of the hosts in the answer of a deploy.
fn states(view: &Value) -> Vec<&str> {
    view["hosts"]
        .as_array()
        .expect("hosts")
        .iter()
        .map(|host| host["state"].as_str().expect("a state"))
        .collect()
}

/// Adds a custom section with this name and content to a component.
fn with_section(bytes: &[u8], content: &[u8]) -> Vec<u8> {
    let leb = |mut number: usize| {
        let mut bytes = Vec::new();
        while number > 0x7f {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    };
    let section = [&[14][..], b"tqhost-version", content].concat();
    [bytes, &[0], &leb(section.len()), &section].concat()
}

/// Lets tasks run until both hosts announce that the version is good.
fn confirmed(bench: &mut Bench, version: &str) -> Vec<Value> {
    eventually("all hosts have found it to be good", || {
        let id = bench.xadd("work", &[("a", "1")]);
        bench.until("work", &id, "COMPLETED");
        let shown = bench.tqhost(&["plugins", "p", "--json"]).ok().json();
        let rows = shown["plugins"].as_array().expect("rows").clone();
        let is_good = |row: &Value| row["version"] == version && row["on_probation"] == false;
        (rows.len() == 2 && rows.iter().all(is_good)).then_some(rows)
    })
}

#[test]
fn a_deploy_waits_for_all_hosts_and_its_label_is_shown_with_the_version() {
    let mut bench = Bench::new(QUEUES);
    put(&bench, "p", &guest("echo"));
    let hosts = [bench.host(), bench.host()];
    hosts.iter().for_each(|host| drop(loaded(host, &guest("echo"))));
    // The handler's file is in the work tree of this repository.
    let echo = guest_path("echo");
    let mut git = Command::new("git");
    git.arg("-C").arg(echo.parent().expect("a folder")).args(["rev-parse", "HEAD"]);
    let commit = git.output().ok().filter(|output| output.status.success());
    let commit = commit.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let echo = echo.to_str().expect("a path");
    let first = deploy(&bench, echo, &["--label", "v1.3", "--json"]).ok().json();
    assert_eq!((&first["ok"], states(&first)), (&json!(true), vec!["active", "active"]), "{first}");
    assert_eq!((&first["label"], &first["commit"]), (&json!("v1.3"), &json!(commit)), "{first}");
    assert!(first["author"].as_str().is_some_and(|author| author.contains('@')), "{first}");
    let good = first["version"].as_str().expect("a version").to_owned();
    assert_eq!(good, digest(&fs::read(bench.plugin_path("p")).expect("the file in place")));
    // The same content and label are the same version: only another time makes none.
    let again = deploy(&bench, echo, &["--label", "v1.3", "--json"]).ok().json();
    assert_eq!((&again["version"], &again["built_at"]), (&first["version"], &first["built_at"]));

    confirmed(&mut bench, &good);
    eventually("a host has kept it for the others", || {
        let kept = hosts.iter().flat_map(|host| host.logged("the version is kept for all hosts"));
        kept.into_iter().any(|line| line["digest"] == good[..12]).then_some(())
    });

    let file = built(&bench, "new.wasm", &marked(&guest("echo"), 4));
    let told = deploy(&bench, &file, &["--label", "v1.4"]).ok().stdout;
    insta::assert_snapshot!(printed(&bench, &told), @"
    version v1.4 (HEX) of p was put in place: DIR/plugins/p.wasm
    HOST VERDICT WHY
    HOST taken, on probation –
    HOST taken, on probation –
    All 2 hosts took it.
    ");
    let bad = digest(&fs::read(bench.plugin_path("p")).expect("the file in place"));
    let words = |label: &str, version: &str| format!("{label} ({})", &version[..12]);
    let (good_words, bad_words) = (words("v1.3", &good), words("v1.4", &bad));
    for row in &confirmed(&mut bench, &bad) {
        assert_eq!((&row["label"], &row["built_at"].is_u64()), (&json!("v1.4"), &true), "{row}");
        assert_eq!(row["builds"][&good]["label"], "v1.3", "{row}");
    }
    let by_api = hosts[0].get("/v1/plugins").json();
    assert_eq!(by_api["plugins"][0]["label"], "v1.4", "{by_api}");
    let table = bench.tqhost(&["plugins", "p"]).ok().stdout;
    assert!(table.contains(&bad_words) && table.contains(&good_words), "{table}");
    assert!(bench.tqhost(&["check"]).ok().stdout.contains(&bad_words));

    // Pages, and the page that asks before a rollback.
    let browser = Browser::new(&hosts[0]);
    let id = bench.xadd("work", &[("a", "1")]);
    bench.until("work", &id, "COMPLETED");
    assert!(browser.page(&format!("/queues/work/tasks/{id}")).contains(&format!("p {bad_words}")));
    for page in ["/plugins", "/plugins/p"] {
        assert!(browser.page(page).contains(&bad_words), "{page}");
    }
    let confirm = browser.page(&format!("/plugins/p/rollback?version={bad}"));
    assert!(confirm.contains(&bad_words) && confirm.contains(&good_words), "{confirm}");
    let dry = bench.tqhost(&["rollback", "p", "--why", "wrong totals", "--dry-run"]).ok().stdout;
    insta::assert_snapshot!(
        masked(&dry, &[]),
        @"version v1.4 (HEX) of p would be withdrawn: v1.4 (HEX) stops, v1.3 (HEX) starts on 2 hosts"
    );
    bench.tqhost(&["rollback", "p", "--why", "wrong totals", "--version", &bad]).ok();
    let changes = bench.tqhost(&["changes", "--plugin", "p", "--json"]).ok().json();
    let details: Vec<&str> =
        changes.as_array().expect("changes").iter().filter_map(|change| change["detail"].as_str()).collect();
    insta::assert_snapshot!(masked(&details.join("\n"), &[]), @"
    v1.4 (HEX) stops, v1.3 (HEX) starts
    v1.4 (HEX) was put in place
    v1.3 (HEX) was put in place
    ");
    let refused = deploy(&bench, &file, &["--label", "v1.4"]).ends_with(1).stderr;
    insta::assert_snapshot!(
        rolled_back(&refused, &bad, &first["author"]),
        @"tqhost: version v1.4 (BAD) of p was rolled back AGE ago by SOMEBODY (wrong totals), and this \
          file has the same handler: deploy another one, or lift it first (`tqhost lift p --version \
          VERSION`)"
    );
    // One that was kept for all hosts has its label with it.
    Host::stop_all(hosts);
    fs::remove_dir_all(bench.dir.path().join(".tqhost")).expect("remove what hosts know");
    let fresh = bench.host();
    let row =
        eventually("the good version serves", || row(&bench, "p").filter(|row| row["version"] == *good));
    assert_eq!((&row["label"], &row["builds"][&bad]["label"]), (&json!("v1.3"), &json!("v1.4")), "{row}");
    fresh.stop();
}

#[test]
fn a_handler_that_was_rolled_back_is_refused_under_any_label_until_it_is_lifted() {
    let bench = Bench::new(QUEUES);
    put(&bench, "p", &guest("echo"));
    let host = bench.host();
    loaded(&host, &guest("echo"));
    let file = built(&bench, "new.wasm", &marked(&guest("echo"), 4));
    let taken = deploy(&bench, &file, &["--label", "v1.4", "--json"]).ok().json();
    assert_eq!(states(&taken), ["active"], "{taken}");
    let bad = taken["version"].as_str().expect("a version").to_owned();
    bench.tqhost(&["rollback", "p", "--why", "wrong totals", "--version", &bad]).ok();
    let is_refused = |more: &[&str]| {
        let told = deploy(&bench, &file, more).ends_with(1).stderr;
        let told = rolled_back(&told, &bad, &taken["author"]);
        insta::allow_duplicates! {
            insta::assert_snapshot!(
                told,
                @"tqhost: version v1.4 (BAD) of p was rolled back AGE ago by SOMEBODY (wrong totals), and \
                  this file has the same handler: deploy another one, or lift it first (`tqhost lift p \
                  --version VERSION`)"
            );
        }
    };
    is_refused(&["--label", "v1.4"]);
    is_refused(&["--label", "v1.5"]);
    is_refused(&[]);
    // No host tells of the version any more, and its file is gone.
    host.stop();
    put(&bench, "p", &guest("echo"));
    is_refused(&["--label", "v1.4"]);
    is_refused(&["--label", "v1.6"]);
    // Another handler may have the label.
    let mended = built(&bench, "mended.wasm", &marked(&guest("echo"), 5));
    deploy(&bench, &mended, &["--label", "v1.4"]).ok();
    let host = bench.host();
    eventually("it is announced", || row(&bench, "p").filter(|row| row["state"] == "active"));
    bench.tqhost(&["lift", "p", "--version", &bad]).ok();
    deploy(&bench, &file, &["--label", "v1.6"]).ok();
    host.stop();
}

#[test]
fn a_version_that_no_host_takes_is_told_and_the_one_before_is_in_place_again() {
    let queues = format!("{QUEUES}[plugins.p]\nconfig = {{ self-check = \"fail\" }}\n");
    let bench = Bench::new(&queues);
    let old = guest("echo");
    put(&bench, "p", &old);
    let hosts = [bench.host(), bench.host()];
    hosts.iter().for_each(|host| drop(loaded(host, &old)));
    let file = built(&bench, "new.wasm", &guest("checks-itself"));
    let refused = deploy(&bench, &file, &["--label", "v2", "--json"]);
    let view = refused.json();
    assert_eq!((refused.code, states(&view)), (1, vec!["failed", "failed"]), "{view}");
    insta::assert_snapshot!(view["hosts"][1]["why"], @r#""self-check: the self-check is told to be `fail`""#);
    assert_eq!((&view["ok"], &view["put_back"]), (&json!(false), &json!(digest(&old))));
    let in_place = || fs::read(bench.plugin_path("p")).expect("the file in place");
    assert_eq!(in_place(), old);
    eventually("hosts run the one before, and nothing is wrong with it", || {
        let shown = bench.tqhost(&["plugins", "--json"]).ok().json();
        let rows = shown["plugins"].as_array().expect("rows").clone();
        let is_so = |row: &Value| row["state"] == "active" && row["version"] == digest(&old).as_str();
        (rows.len() == 2 && rows.iter().all(is_so)).then_some(())
    });
    let told = deploy(&bench, &file, &[]).ends_with(1).stdout;
    insta::assert_snapshot!(printed(&bench, &told), @"
    version HEX of p was put in place: DIR/plugins/p.wasm
    HOST VERDICT WHY
    HOST failed self-check: the self-check is told to be `fail`
    HOST failed self-check: the self-check is told to be `fail`
    No host took it, and the file before it is in place again: HEX. Repair the new one; `tqhost try` \
        runs it without a host. One in quarantine may run again after `tqhost lift p`.
    ");

    // Another deploy is under way.
    let lock = fs::File::open(bench.plugin_path("p").with_file_name(".p.wasm.lock")).expect("a lock");
    lock.try_lock().expect("the deploys before have ended");
    let held = deploy(&bench, &file, &[]);
    let folder = bench.dir.path().to_str().expect("a path");
    insta::assert_snapshot!(
        held.ends_with(1).stderr.replace(folder, "DIR"),
        @"tqhost: another deploy of p is under way and holds DIR/plugins/.p.wasm.lock; nothing was put in \
          place: deploy again when it has ended"
    );
    drop(lock);

    // A file that no host could take is refused before anything changes.
    let text = built(&bench, "p.wasm", b"a text");
    let wrong = built(&bench, "wrong.wasm", &guest("wrong-world"));
    let told = [
        (vec!["deploy", &text], 1),
        (vec!["deploy", &wrong, "--plugin", "p"], 1),
        (vec!["deploy", &file], 2),
        (vec!["deploy", &file, "--plugin", "q"], 2),
        (vec!["deploy", &file, "--plugin", "p", "--label", " "], 2),
        (vec!["deploy", "nothing.wasm", "--plugin", "p"], 1),
    ]
    .map(|(args, code)| bench.tqhost(&args).ends_with(code).stderr);
    insta::assert_snapshot!(told.concat().replace(folder, "DIR"), @"
    tqhost: DIR/p.wasm: this is not a WebAssembly file: it is a text file; nothing was put in place
    tqhost: DIR/wrong.wasm: it exports no tqhost:handler/handler; it exports \
        tqhost:testing/greeter@0.1.0; nothing was put in place
    tqhost: the configuration has no plugin \"new\"; --plugin names another one than the file does. It \
        has: p
    tqhost: the configuration has no plugin \"q\". It has: p
    tqhost: --label: write 1 to 60 characters, without control characters and outer spaces
    tqhost: nothing.wasm: there is no such file
    ");
    assert_eq!(in_place(), old);
    Host::stop_all(hosts);
}

#[test]
fn hosts_that_do_not_see_the_file_are_named_and_without_hosts_it_is_put_in_place() {
    let bench = Bench::new(QUEUES);
    fs::create_dir_all(bench.plugin_path("p").parent().expect("a folder")).expect("the folder of plugins");
    let file = built(&bench, "new.wasm", &guest("echo"));
    let alone = deploy(&bench, &file, &["--label", "v1"]).ok();
    insta::assert_snapshot!(printed(&bench, &alone.stdout), @"
    version v1 (HEX) of p was put in place: DIR/plugins/p.wasm
    No host that runs uses the plugin: hosts take it when they start.
    ");
    let host = bench.host();
    assert_eq!(host.log("plugin loaded")["label"], "v1");
    // Another machine has a folder of its own.
    let elsewhere = bench.dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a folder");
    put_at(&elsewhere.join("p.wasm"), &guest("echo"));
    let other: PathBuf = bench.dir.path().join("other.toml");
    let text = fs::read_to_string(bench.config()).expect("the configuration");
    fs::write(&other, format!("plugins_dir = \"elsewhere\"\n{text}")).expect("write a configuration");
    let far = Host::start(&other, "info,tqhost=debug");
    loaded(&far, &guest("echo"));
    eventually("both are announced", || {
        let rows = tqhost(&other, &["plugins", "--json"]).ok().json();
        (rows["plugins"].as_array()?.len() == 2).then_some(())
    });
    let ran = deploy(&bench, &file, &["--label", "v2", "--wait", "4s"]).ends_with(1);
    insta::assert_snapshot!(printed(&bench, &ran.stdout), @"
    version v2 (HEX) of p was put in place: DIR/plugins/p.wasm
    HOST VERDICT WHY
    HOST no answer –
    HOST taken, on probation –
    1 host did not take it within 4s. A host takes files from its own plugins_dir: put the file there, \
        too. Otherwise it may still compile: `tqhost plugins p` tells.
    ");
    Host::stop_all([host, far]);
}

#[test]
fn a_file_beside_the_plugin_tells_of_its_build_and_a_hostile_one_harms_nothing() {
    let mut bench = Bench::new(QUEUES);
    let beside = bench.plugin_path("p").with_extension("json");
    let echo = guest("echo");
    put(&bench, "p", &echo);
    fs::write(
        &beside,
        json!({ "label": "nightly", "commit": "5e1f", "built_at": "2026-11-29T16:00:00Z" }).to_string(),
    )
    .expect("write a build");
    let host = bench.host();
    assert_eq!(loaded(&host, &echo)["label"], "nightly");
    let shown = eventually("it is announced", || row(&bench, "p"));
    assert_eq!(
        (&shown["label"], &shown["commit"], &shown["built_at"], &shown["author"]),
        (&json!("nightly"), &json!("5e1f"), &json!(1_795_968_000_000_u64), &Value::Null)
    );
    let checked = bench.tqhost(&["check", "--json"]).ok().json();
    assert_eq!(checked["plugins"][0]["label"], "nightly");

    let long = format!("{{\"label\":\"{}\"}}", "x".repeat(5000));
    let twice = with_section(&with_section(&echo, b"{\"label\":\"a\"}"), b"{\"label\":\"b\"}");
    let long = with_section(&echo, long.as_bytes());
    let told = [long, with_section(&echo, b"{\"label\":\"\xff\"}"), twice].map(|hostile| {
        put(&bench, "p", &hostile);
        assert_eq!(loaded(&host, &hostile).get("label"), None);
        let why = host.logged("the plugin's version has no label").pop().expect("a line")["why"].clone();
        let why = why.as_str().expect("a text").to_owned();
        let checked = bench.tqhost(&["check"]).ok().stdout;
        assert!(checked.contains(&why), "{why}: {checked}");
        let id = bench.xadd("work", &[("a", "1")]);
        bench.until("work", &id, "COMPLETED");
        why
    });
    insta::assert_snapshot!(told.join("\n"), @"
    its section tqhost-version is not read: it has more than 4096 bytes
    its section tqhost-version is not read: invalid unicode code point at line 1 column 11
    its section tqhost-version is not read: there are 2 of them
    ");
    let sly = with_section(&echo, "{\"label\":\"v1\\u001b[2J\\u202e\\n<b>\"}".as_bytes());
    put(&bench, "p", &sly);
    assert_eq!(loaded(&host, &sly)["label"], "v1[2J<b>");
    let page = eventually("it is shown", || {
        Some(Browser::new(&host).page("/plugins/p")).filter(|page| page.contains("v1[2J"))
    });
    assert!(page.contains("v1[2J&lt;b&gt; (") && !page.contains("v1[2J<b>"), "{page}");
    host.stop();
}
