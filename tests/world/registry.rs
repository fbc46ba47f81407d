//! Plugins from a real registry: docker-registry of Debian.
//!
//! Not here: what a hostile registry answers (`host/src/oci/tests.rs`), files in `plugins/` (`plugins`).

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::registry_server::RegistryServer;
use crate::support::files::{digest, guest, label, loaded, put, row, said, version};
use crate::support::words::masked;
use crate::support::{Bench, Done, Host, Places, Ran, Trickle, eventually};

const QUEUE: &str = "[queues.work]\nplugin = \"p\"\nmax_retries = 0\n";
/// The log line about a pull that failed.
const NOT_PULLED: &str = "the plugin cannot be pulled";

/// A bench whose plugin `p` comes from this source.
fn bench(source: &str) -> Bench {
    Bench::new(&with_source(source))
}

fn with_source(source: &str) -> String {
    format!("{QUEUE}[plugins.p]\nsource = \"{source}\"\n")
}

/// Pushes a plugin, and returns the reference that was printed.
#[track_caller]
fn push(bench: &Bench, bytes: &[u8], reference: &str) -> String {
    let pushed = push_as(bench, bytes, reference, Path::new("/nowhere")).ok().json();
    assert_eq!(pushed["version"], digest(bytes));
    pushed["source"].as_str().expect("a reference").to_owned()
}

/// Pushes with the credentials of docker in this folder.
fn push_as(bench: &Bench, bytes: &[u8], reference: &str, docker: &Path) -> Ran {
    let file = bench.dir.path().join("pushed.wasm");
    fs::write(&file, bytes).expect("write a plugin");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tqhost"));
    command.args(["plugins", "push", "--json"]).arg(&file).arg(reference).stdin(Stdio::null());
    command.env("DOCKER_CONFIG", docker).output().expect("run tqhost").into()
}

/// Pushes a version to the tag, and lets the hosts look.
#[track_caller]
fn roll_out(bench: &Bench, bytes: &[u8], reference: &str) {
    push(bench, bytes, reference);
    ask(bench);
}

/// Hosts ask the registry now, not within a minute.
fn ask(bench: &Bench) {
    bench.tqhost(&["reload", "p"]).ok();
}

#[track_caller]
fn shown(bench: &Bench, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    eventually(&format!("`tqhost plugins` shows {what}"), || row(bench, "p").filter(|row| is_so(row)))
}

/// The row of a plugin whose registry gave nothing, with this in its error.
#[track_caller]
fn shown_error(bench: &Bench, why: &str) -> Value {
    shown(bench, why, |row| row["error"].as_str().is_some_and(|error| error.contains(why)))
}

/// Each task was completed in its first attempt, on one of these versions.
#[track_caller]
fn untouched(bench: &mut Bench, done: &[Done], versions: &[&[u8]]) {
    let good: Vec<String> = versions.iter().map(|bytes| label("p", bytes)).collect();
    for Done { id, plugin } in done {
        assert_eq!(bench.status("work", id, "attempt"), "1", "{id} on {plugin}");
        assert!(good.contains(plugin), "{id} on {plugin}, not on {good:?}");
    }
    assert_eq!(bench.places("work"), Places::default());
}

#[track_caller]
fn runs(bench: &mut Bench, bytes: &[u8]) {
    let id = bench.xadd("work", &[("a", "b")]);
    bench.until("work", &id, "COMPLETED");
    assert_eq!(bench.status("work", &id, "plugin"), label("p", bytes));
}

#[test]
fn a_new_digest_of_a_tag_replaces_the_version_while_tasks_run() {
    let registry = RegistryServer::start();
    let source = registry.reference("1");
    let mut bench = bench(&source);
    let (first, second) = (guest("echo"), version("echo", 1));
    let pinned = push(&bench, &first, &source);
    assert!(pinned.starts_with(&format!("{source}@sha256:")), "{pinned}");
    assert_eq!(push(&bench, &first, &source), pinned, "the same file has the same digest");
    let checked = bench.tqhost(&["check", "--json"]).ok().json();
    assert_eq!(
        (&checked["plugins"][0]["source"], &checked["plugins"][0]["state"]),
        (&pinned.into(), &"good".into())
    );

    let host = bench.host();
    // The first scan has waited for the registry.
    assert_eq!(host.logged("plugin missing").len(), 0);
    loaded(&host, &first);
    let trickle = Trickle::start(&bench, "work", 4);
    trickle.more(10);
    roll_out(&bench, &second, &source);
    assert_eq!(loaded(&host, &second)["on_probation"], true);
    trickle.more(20);
    said(&host, "plugin version confirmed", &second);
    let row = shown(&bench, "the second version", |row| row["version"] == digest(&second));
    assert_eq!((&row["state"], &row["error"]), (&"active".into(), &Value::Null));
    let done = trickle.stop();
    untouched(&mut bench, &done, &[&first, &second]);
    // Each version was pulled once.
    assert_eq!(host.stop_for_log().logged("plugin pulled").len(), 2);
}

#[test]
fn a_layer_that_is_not_the_one_of_the_manifest_is_refused() {
    let registry = RegistryServer::start();
    let source = registry.reference("1");
    let mut bench = bench(&source);
    let (first, second) = (guest("echo"), version("echo", 1));
    push(&bench, &first, &source);
    let host = bench.host();
    loaded(&host, &first);
    push(&bench, &second, &source);
    // Somebody with access to the storage has put another plugin in its place.
    fs::write(registry.blob(&digest(&second)), version("echo", 2)).expect("change a blob");
    ask(&bench);
    let row = shown_error(&bench, "");
    assert_eq!((&row["state"], &row["version"]), (&"failed".into(), &digest(&first).into()), "{row}");
    let error = row["error"].as_str().unwrap_or_default();
    insta::assert_snapshot!(masked(error, &[]), @"oci://127.0.0.1:PORT/team/p:1 cannot be pulled: the layer is not the one of its manifest: its digest is sha256:HEX, not sha256:HEX");
    let checked = bench.tqhost(&["check", "--json"]).ends_with(1).json();
    let checked = checked["plugins"][0]["error"].as_str().unwrap_or_default();
    let [cause, other] = [error, checked].map(|error| error.split_once(": ").expect("a cause").1);
    assert_eq!(cause, other);
    runs(&mut bench, &first);
    // Another tag is no answer to a digest, and no tag at all is none to anything.
    let unknown = format!("{source}@sha256:{}", "0".repeat(64));
    bench.configure_for(&with_source(&unknown), bench.redis.port);
    shown_error(&bench, "MANIFEST_UNKNOWN");
    runs(&mut bench, &first);
    host.stop();
}

#[test]
fn a_private_registry_is_asked_with_the_credentials_of_docker() {
    let registry = RegistryServer::start_private();
    let source = registry.reference("1");
    let mut bench = bench(&source);
    let docker = bench.dir.path().join("docker");
    fs::create_dir(&docker).expect("a folder");
    let first = guest("echo");
    let refused = push_as(&bench, &first, &source, &docker);
    assert!(format!("{refused:?}").contains("docker login"), "{refused:?}");

    let mut command = Host::command(&bench.config());
    command.env("DOCKER_CONFIG", &docker);
    let host = Host::spawn(command);
    host.log("tqhost is running");
    let row = shown_error(&bench, "401 UNAUTHORIZED");
    assert_eq!(row["state"], "missing", "{row}");
    // The credentials are read again at each try.
    fs::write(docker.join("config.json"), registry.login()).expect("log in");
    push_as(&bench, &first, &source, &docker).ok();
    ask(&bench);
    loaded(&host, &first);
    runs(&mut bench, &first);
    host.log("the plugin's source answers again");
    let log = host.stop_for_log();
    assert!(!log.raw().contains("secret") && !log.raw().contains("Y2k6c2VjcmV0"));
}

#[test]
fn a_registry_that_is_away_changes_nothing_for_what_was_pulled() {
    let mut registry = RegistryServer::start();
    let source = registry.reference("1");
    let mut bench = bench(&source);
    let (first, second) = (guest("echo"), version("echo", 1));
    let pinned = push(&bench, &first, &source);
    let host = bench.host();
    loaded(&host, &first);
    registry.stop();
    for _ in 0..3 {
        ask(&bench);
        shown_error(&bench, "cannot be reached");
    }
    let row = row(&bench, "p").expect("a row");
    assert_eq!((&row["state"], &row["version"]), (&"active".into(), &digest(&first).into()), "{row}");
    runs(&mut bench, &first);
    assert_eq!(host.stop_for_log().logged(NOT_PULLED).len(), 1);

    // A start needs no registry, and one by digest does not even ask it.
    let host = bench.host();
    host.until_ready();
    runs(&mut bench, &first);
    host.log(NOT_PULLED);
    registry.start_again();
    roll_out(&bench, &second, &source);
    loaded(&host, &second);
    host.log("the plugin's source answers again");
    loaded_again(&bench, &second);
    bench.configure_for(&with_source(&pinned), bench.redis.port);
    loaded_again(&bench, &first);
    host.stop();
    registry.stop();
    let host = bench.host();
    runs(&mut bench, &first);
    assert_eq!(host.stop_for_log().logged(NOT_PULLED).len(), 0);

    // Without the file there is nothing to run.
    fs::remove_dir_all(bench.dir.path().join(".tqhost/pulled")).expect("remove the files");
    let host = bench.host();
    let row = shown_error(&bench, "cannot be reached");
    assert_eq!((&row["state"], &row["version"]), (&"missing".into(), &Value::Null), "{row}");
    registry.start_again();
    ask(&bench);
    runs(&mut bench, &first);
    host.stop();
}

#[track_caller]
fn loaded_again(bench: &Bench, bytes: &[u8]) {
    shown(bench, "the version", |row| row["version"] == digest(bytes) && row["state"] == "active");
}

#[test]
fn a_bad_version_from_a_registry_is_rolled_back_like_a_file() {
    let registry = RegistryServer::start();
    let source = registry.reference("1");
    let mut bench = bench(&source);
    let (good, bad, better) = (guest("echo"), guest("traps-at-start"), version("echo", 1));
    push(&bench, &good, &source);
    let host = bench.host();
    loaded(&host, &good);
    let trickle = Trickle::start(&bench, "work", 8);
    trickle.more(10);
    roll_out(&bench, &bad, &source);
    said(&host, "plugin version rolled back", &bad);
    trickle.more(20);
    let row = shown(&bench, "the quarantine", |row| row["state"] == "quarantined");
    assert_eq!(row["version"], digest(&good), "{row}");
    roll_out(&bench, &better, &source);
    loaded(&host, &better);
    trickle.more(10);
    let done = trickle.stop();
    untouched(&mut bench, &done, &[&good, &better]);
    host.stop();
}

#[test]
fn a_source_that_comes_and_goes_with_the_configuration_is_followed() {
    let registry = RegistryServer::start();
    let source = registry.reference("1");
    let mut bench = Bench::new(QUEUE);
    let (file, pulled) = (guest("echo"), version("echo", 1));
    put(&bench, "p", &file);
    let host = bench.host();
    let trickle = Trickle::start(&bench, "work", 4);
    trickle.more(10);
    // While nothing is there, the file's version runs on.
    bench.configure_for(&with_source(&source), bench.redis.port);
    let row = shown_error(&bench, "");
    assert_eq!((&row["state"], &row["version"]), (&"failed".into(), &digest(&file).into()), "{row}");
    insta::assert_snapshot!(masked(row["error"].as_str().unwrap_or_default(), &[]), @"oci://127.0.0.1:PORT/team/p:1 cannot be pulled: the registry 127.0.0.1:PORT has no team/p with 1 (404 MANIFEST_UNKNOWN): push it, or correct the reference");
    let pinned = push(&bench, &pulled, &source);
    ask(&bench);
    loaded(&host, &pulled);
    trickle.more(10);
    let notes = bench.tqhost(&["check", "--json"]).ok().json();
    assert!(notes["notes"][0].as_str().is_some_and(|note| note.starts_with("plugins.p.source: ")), "{notes}");
    let refused = bench.tqhost(&["deploy", "p.wasm"]).ends_with(2);
    assert!(refused.stderr.contains(&format!("push p.wasm {source}")), "{}", refused.stderr);
    bench.configure_for(QUEUE, bench.redis.port);
    loaded_again(&bench, &file);
    // The same artifact is not pulled a second time.
    bench.configure_for(&with_source(&pinned), bench.redis.port);
    loaded_again(&bench, &pulled);
    let done = trickle.stop();
    untouched(&mut bench, &done, &[&file, &pulled]);
    host.stop();
}

#[test]
fn a_file_that_is_no_plugin_is_not_pushed() {
    let registry = RegistryServer::start();
    let bench = Bench::new(QUEUE);
    let refused = push_as(&bench, b"\0asm\x01\0\0\0", &registry.reference("1"), Path::new("/nowhere"));
    assert_eq!(refused.code, 1, "{refused:?}");
    insta::assert_snapshot!(masked(&refused.stderr, &[(&bench.dir.path().display().to_string(), "DIR")]), @r#"{"error":"DIR/pushed.wasm cannot be used as a plugin: this is a core module without a component type, not a component (build it for wasm32-wasip2, or generate its bindings with wit-bindgen from wit/handler.wit); nothing was pushed"}"#);
    bench.configure_for(&with_source(&registry.reference("1")), bench.redis.port);
    // The registry has nothing of that name, so nothing was pushed.
    let checked = bench.tqhost(&["check", "--json"]).ends_with(1).json();
    insta::assert_snapshot!(masked(checked["plugins"][0]["error"].as_str().unwrap_or_default(), &[]), @"it cannot be pulled: the registry 127.0.0.1:PORT has no team/p with 1 (404 MANIFEST_UNKNOWN): push it, or correct the reference");
}
