//! Blobs in local files: what handlers write and read, what is refused, and what a killed host leaves.
//!
//! Not here: stores in the network (`world`), the rules of names and the store itself (unit tests of the
//! host).

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::languages;
use crate::support::{Bench, eventually};

const QUEUE: &str =
    "[queues.work]\nplugin = \"keeps-blobs\"\nmax_retries = 2\nbackoff = \"none\"\nlease = \"1s\"\n";

fn bench(more: &str) -> Bench {
    let bench = Bench::new(&format!("{QUEUE}{more}"));
    bench.install("keeps-blobs", "keeps-blobs");
    bench
}

fn told(bench: &mut Bench, calls: &Value) -> String {
    bench.xadd("work", &[("do", &calls.to_string())])
}

/// The results of a new task that makes these calls.
#[track_caller]
fn done(bench: &mut Bench, calls: Value) -> Value {
    let id = told(bench, &calls);
    bench.until("work", &id, "COMPLETED");
    serde_json::from_str(&bench.status("work", &id, "result")).expect("the result is JSON")
}

#[track_caller]
fn assert_error(result: &Value, kind: &str, why: &str) {
    let error = result["error"].as_str().unwrap_or_else(|| panic!("{result} is no error"));
    assert!(error.starts_with(kind) && error.contains(why), "{error}");
}

/// All files below a folder, by their path in it, sorted.
fn files(root: &Path) -> Vec<String> {
    let (mut folders, mut found) = (vec![root.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.expect("an entry").path();
            let shown = path.strip_prefix(root).expect("below").display().to_string();
            if path.is_dir() { folders.push(path) } else { found.push(shown) }
        }
    }
    found.sort();
    found
}

#[test]
fn a_blob_is_a_local_file_that_other_tasks_of_the_plugin_read() {
    let mut bench = bench("[queues.others]\nplugin = \"other\"\n");
    bench.install("keeps-blobs", "other");
    let host = bench.host();
    let root = bench.dir.path().join(".tqhost/blobs");
    let put = json!([["get", "a/b.csv"], ["put", "a/b.csv", "text/csv", "id\n1\n"], ["get", "a/b.csv"]]);
    let results = done(&mut bench, put);
    assert_error(&results[0], "NotFound", "there is no blob `a/b.csv`");
    let url = format!("file://{}/keeps-blobs/a/b.csv", root.display());
    assert_eq!((&results[1], &results[2]), (&json!(url), &json!("id\n1\n")));
    assert_eq!(files(&root), ["keeps-blobs/a/b.csv"]);
    for (path, rights) in
        [("", 0o700), ("keeps-blobs", 0o700), ("keeps-blobs/a", 0o700), ("keeps-blobs/a/b.csv", 0o600)]
    {
        let found = fs::metadata(root.join(path)).expect("it is there").permissions().mode();
        assert_eq!(found & 0o777, rights, "no other user reads {path}");
    }
    assert_eq!(done(&mut bench, json!([["get", "a/b.csv"]])), json!(["id\n1\n"]), "a later task");
    let id = bench.xadd("others", &[("do", "[[\"get\", \"a/b.csv\"]]")]);
    bench.until("others", &id, "COMPLETED");
    assert!(bench.status("others", &id, "result").contains("NotFound"), "another plugin has its own");
    host.stop();
}

#[test]
fn a_call_that_is_refused_writes_nothing() {
    let mut bench = bench("[blobs]\nurl = \"file:kept\"\nmax_blob = \"100KiB\"\n");
    let host = bench.host();
    let root = bench.dir.path().join("kept");
    for (name, why) in [
        ("../other/a", "a part `.` or `..`"),
        ("a/../../other/a", "a part `.` or `..`"),
        ("/etc/passwd", "begins or ends with `/`"),
        ("a\u{0}b", "may have only"),
        ("a#1", "may have only"),
        ("", "is empty"),
    ] {
        let results = done(&mut bench, json!([["put", name, "", "x"], ["get", name]]));
        assert_error(&results[0], "InvalidName", why);
        assert_error(&results[1], "InvalidName", why);
    }
    let results = done(&mut bench, json!([["put", "a", "csv", "x"], ["fill", "a", 102_401], ["get", "a"]]));
    assert_error(&results[0], "InvalidName", "the content type is not one like");
    assert_error(&results[1], "TooLarge", "the blob has 102401 bytes; max_blob is 102400");
    assert_error(&results[2], "NotFound", "");
    assert_eq!(files(&root), Vec::<String>::new());
    assert_eq!(done(&mut bench, json!([["fill", "a", 102_400], ["size", "a"]]))[1], 102_400);
    symlink("/etc", root.join("keeps-blobs/etc")).expect("a link");
    let results = done(&mut bench, json!([["get", "etc/passwd"], ["put", "etc/tqhost-was-here", "", "x"]]));
    assert_error(&results[0], "Unavailable", "is a symbolic link");
    assert_error(&results[1], "Unavailable", "is a symbolic link");
    host.stop();
}

#[test]
fn no_secret_of_the_configuration_is_in_a_blob() {
    let bench = bench("[plugins.keeps-blobs]\nconfig = { key = { file = \"key\" } }\n");
    fs::write(bench.dir.path().join("key"), "hunter2-of-the-guest").expect("write");
    let mut bench = bench;
    let host = bench.host();
    let results = done(&mut bench, json!([["secret", "b"], ["get", "b"]]));
    assert_error(&results[0][1], "InvalidName", "holds a secret of the configuration");
    assert_eq!(results[1], "the key is [secret]");
    let root = bench.dir.path().join(".tqhost/blobs/keeps-blobs");
    assert_eq!(files(&root), ["b"]);
    assert_eq!(fs::read_to_string(root.join("b")).expect("a file"), "the key is [secret]");
    host.stop();
}

#[test]
fn a_blob_counts_as_memory_of_its_handler() {
    let mut bench = bench("[blobs]\nmax_blob = \"64MiB\"\n[plugins.keeps-blobs]\nmemory = \"48MiB\"\n");
    let host = bench.host();
    let folder = bench.dir.path().join(".tqhost/blobs/keeps-blobs");
    let results = done(&mut bench, json!([["fill", "a", 16 << 20]]));
    assert!(results[0].is_string(), "{results}");
    let results = done(&mut bench, json!([["fill", "b", 30 << 20]]));
    assert_error(&results[0], "TooLarge", "the plugin's memory has room for");
    assert_eq!(files(&folder), ["a"]);
    fs::write(folder.join("large"), vec![b'x'; 50 << 20]).expect("a file that something else has made");
    assert_error(&done(&mut bench, json!([["size", "large"]]))[0], "TooLarge", "has room for");
    host.stop();
}

#[test]
fn an_attempt_that_fails_leaves_its_blob_and_none_of_its_effects() {
    let mut bench = bench("[plugins.keeps-blobs]\nrecords = [\"report:*\"]\n");
    let host = bench.host();
    let calls =
        json!([["get", "7/a"], ["put", "7/a", "", "x"], ["note", "report:7", "first"], ["first", ["retry"]]]);
    let id = told(&mut bench, &calls);
    bench.until("work", &id, "COMPLETED");
    let results: Value = serde_json::from_str(&bench.status("work", &id, "result")).expect("JSON");
    assert_eq!(results[0], "x", "the second attempt finds the blob of the first one");
    assert_eq!(bench.status("work", &id, "attempt"), "2");
    let calls = json!([["put", "8/a", "", "x"], ["note", "report:8", "u"], ["trap"]]);
    let id = told(&mut bench, &calls);
    bench.until("work", &id, "FAILED");
    assert_eq!(bench.redis::<u64>("EXISTS", "report:8"), 0);
    assert!(bench.dir.path().join(".tqhost/blobs/keeps-blobs/8/a").exists());
    host.stop();
}

/// The files of unfinished writes.
fn unfinished(root: &Path) -> Vec<String> {
    files(root).into_iter().filter(|path| path.contains('#')).collect()
}

#[test]
fn a_host_that_is_killed_leaves_no_half_blob() {
    const BYTES: usize = 16 << 20;
    let mut bench = bench("");
    let root: PathBuf = bench.dir.path().join(".tqhost/blobs");
    let file = root.join("keeps-blobs/a");
    let mut host = bench.host();
    assert_eq!(done(&mut bench, json!([["fill", "a", BYTES], ["size", "a"]]))[1], BYTES);
    let mut was_unfinished = 0;
    // The files that killed hosts have left. A host that runs uses each name again, but not these.
    let mut left = Vec::new();
    for _ in 0..4 {
        // Each write replaces the blob. The host is killed in the middle of one of them.
        let calls = Value::from_iter((0..200).map(|_| json!(["fill", "a", BYTES])));
        let id = told(&mut bench, &calls);
        eventually("a write is at work", || {
            unfinished(&root).iter().any(|path| !left.contains(path)).then_some(())
        });
        host.kill();
        let now = unfinished(&root);
        was_unfinished += usize::from(now.len() > left.len());
        left = now;
        let found = fs::read(&file).expect("the blob is there");
        assert!(found.len() == BYTES && found.iter().all(|byte| *byte == 0), "{} bytes", found.len());
        host = bench.host();
        let read = done(&mut bench, json!([["size", "a"]]));
        assert_eq!(read, json!([BYTES]), "a later task reads it as a whole");
        bench.tqhost(&["cancel", "work", &id]).ok();
        bench.until("work", &id, "CANCELLED");
    }
    assert!(was_unfinished > 0, "no write was cut off, so this has shown nothing");
    host.stop();
}

#[test]
fn handlers_in_javascript_and_python_have_blobs() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let store = format!("[blobs]\nurl = \"file:{}\"", root.display());
    let (mut bench, host) = languages::host(&["in-javascript", "in-python"], &store);
    for (guest, by) in [("in-javascript", "javascript"), ("in-python", "python")] {
        let id = bench.xadd(by, &[("end", "blobs")]);
        let found: Value = serde_json::from_str(&languages::result(&mut bench, by, &id)).expect("JSON");
        let url = format!("file://{}/{guest}/{id}/rows.json", root.display());
        let text = format!("{{\"by\":\"{by}\"}}");
        let refused = ["invalid-name", "not-found"];
        let expected = json!({ "url": url, "read": { "by": by }, "bytes": text.len(), "refused": refused });
        assert_eq!(found, expected, "{guest}");
        assert_eq!(fs::read_to_string(root.join(guest).join(&id).join("rows.json")).expect("a file"), text);
    }
    host.stop();
}
