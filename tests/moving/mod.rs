//! Systems that move in: an old consumer leaves its keys, and tqhost takes them over.
//!
//! In: the configurations and payloads of `examples`, and the old consumers beside this file, which are
//! programs in Python or for Node.js. Out: counts: each task has one end. Not here: what `tqhost adopt` finds
//! (`cli`).

mod interview_platform;
mod production_consumer;
mod report_download;
mod report_list;
mod user_activity;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::support::{Bench, Host};

/// The configuration of an example for a test's Redis, with further changes: what the example has, and what
/// stands in its place here.
#[track_caller]
fn configuration(example: &str, bench: &Bench, changes: &[(&str, &str)]) -> String {
    let redis = format!("redis://127.0.0.1:{}", bench.redis.port);
    let mut text = format!("{example}\n[admin]\nlisten = \"127.0.0.1:0\"\n");
    for (theirs, ours) in
        [("redis://127.0.0.1:6379", &*redis), ("../../plugins", "plugins")].iter().chain(changes)
    {
        assert!(text.contains(theirs), "{theirs}");
        text = text.replace(theirs, ours);
    }
    text
}

/// The change of an example that sets its secret.
fn secret(secret: &str) -> (&'static str, String) {
    ("{ env = \"WEBHOOK_SECRET\" }", format!("\"{secret}\""))
}

/// Asserts that a host has every series that a page names.
#[track_caller]
fn has_the_series_of(page: &str, host: &Host) {
    let metrics = host.get("/metrics").body;
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
    let names: Vec<&str> = page.split(|c| !is_name(c)).filter(|word| word.starts_with("tqhost_")).collect();
    assert!(names.len() > 3, "{names:?}");
    for name in names {
        assert!(metrics.contains(&format!("\n{name}{{")), "{name}");
    }
}

/// An old consumer, in a process of its own. Killed when it is dropped.
struct OldConsumer {
    child: Child,
    lines: Arc<Mutex<Vec<Value>>>,
}

impl OldConsumer {
    /// Starts a program of this folder for the Redis at this port.
    fn start(program: &str, port: u16, name: &str, env: &[(&str, &str)]) -> OldConsumer {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/moving");
        let interpreter: &[&str] = if program.ends_with(".mjs") { &["node"] } else { &["python3", "-B"] };
        let mut child = Command::new(interpreter[0])
            .args(&interpreter[1..])
            .arg(folder.join(program))
            .args([&port.to_string(), name])
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the old consumer");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept: Arc<Mutex<Vec<Value>>> = lines.clone();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line}"));
                kept.lock().expect("the lines").push(line);
            }
        });
        OldConsumer { child, lines }
    }

    /// The values that it printed under this name.
    fn said(&self, name: &str) -> Vec<String> {
        let lines = self.lines.lock().expect("the lines");
        lines.iter().filter_map(|line| line[name].as_str().map(str::to_owned)).collect()
    }

    /// Kills it, as a crash would.
    fn kill(mut self) {
        self.child.kill().expect("kill the consumer");
        self.child.wait().expect("its end");
    }
}

impl Drop for OldConsumer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
