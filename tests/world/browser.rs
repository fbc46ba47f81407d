//! The dashboard in a headless Chromium: an incident by clicks, pictures of each page, and what axe finds.
//!
//! A queue backs up, since the newest version of its handler fails, or waits for a service.
//!
//! In: `TQHOST_BROWSER`, the folder of the packages that `scripts/from-npm.sh` installs;
//! `TQHOST_SCREENSHOTS`, a folder for the pictures, if they are to be kept. The clicks are in
//! `browser/incident.mjs`. Not here: what every page must have (`dashboard` of the end-to-end tests).

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::support::files::{guest, label, loaded};
use super::support::{Bench, Web};

/// Tasks that fail, and tasks that get no answer or wait behind those.
const TASKS: usize = 60;
const WAITING: usize = 25;
/// As many attempts as the queue may have at once.
const RUNNING: usize = 2;

/// Writes what hosts would have counted in the last hour, for the charts: a busy queue without failures.
fn past_hour(bench: &mut Bench, queue: &str, version: &str) {
    let (seconds, _): (u64, u64) = bench.redis("TIME", &[""; 0][..]);
    let now = seconds / 60;
    for minute in now - 55..now - 1 {
        let done = 30 + (minute * 7) % 23 + (minute * 3) % 11;
        let figures =
            format!("{{\"completed\":{done},\"w5\":{},\"w6\":6,\"r7\":{},\"r8\":4}}", done - 6, done - 4);
        let versions = format!("{{\"{version}\":{{\"completed\":{done},\"us\":{}}}}}", done * 9_000);
        let depth = format!(
            "{{\"queued\":{},\"running\":2,\"delayed\":0,\"held\":0,\"dead\":0,\"oldest_ms\":null}}",
            minute % 9
        );
        let key = format!("tq:{{{queue}}}:minutes:{}", minute / 60);
        for (part, value) in [("figures", figures), ("versions", versions), ("depth", depth)] {
            bench.redis::<u64>("HSET", (key.clone(), format!("{part}:{}", minute % 60), value));
        }
    }
}

#[test]
fn an_incident_is_found_and_repaired_by_clicks() {
    let web = Web::start();
    // Nobody has a handler for the second queue.
    let queues = format!(
        "[queues.mail]\nconcurrency = {RUNNING}\nmax_retries = 0\ntimeout = \"10m\"\nevents = 200\n\
         [queues.reports]\n[plugins.mail]\nallowed_hosts = [\"{}\"]\n",
        web.origin()
    );
    let mut bench = Bench::new(&queues);
    bench.install("echo", "mail");
    let host = bench.host();
    host.until_ready();
    let (good, bad) = (guest("echo"), guest("asks-a-service"));
    loaded(&host, &good);
    past_hour(&mut bench, "mail", &label("mail", &good));
    // The newest version asks a service, which refuses most requests and never answers others.
    bench.install("asks-a-service", "mail");
    loaded(&host, &bad);
    let mut send = |n: usize, url: &str| {
        let to = format!("user{n}@example.com");
        bench.xadd("mail", &[("to", &to), ("text", "Your report is ready."), ("url", url)]);
    };
    (0..TASKS).for_each(|n| send(n, &format!("{}/refused", web.origin())));
    host.until_ended_as("mail", "retries-exhausted", TASKS as u64);
    (TASKS..TASKS + WAITING).for_each(|n| send(n, &web.held()));
    bench.xadd("reports", &[("month", "2026-10")]);
    bench.until_running("mail", RUNNING);
    let other = Bench::new("");
    let redis = other.redis.url();
    other.configure(&format!(
        "[queues.mail]\n[redis]\nurl = \"{redis}\"\n[admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"s3cret\"\n"
    ));
    let guarded = other.host();
    let packages = std::env::var_os("TQHOST_BROWSER");
    let packages = packages.expect("TQHOST_BROWSER is not set: run `make test-world`");
    let kept = std::env::var_os("TQHOST_SCREENSHOTS").map(PathBuf::from);
    let pictures = kept.unwrap_or_else(|| bench.dir.path().join("pictures"));
    let mut node = Command::new("node")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/world/browser/incident.mjs"))
        .args([format!("http://{}/", host.admin()), format!("http://{}/", guarded.admin())])
        .arg(&pictures)
        .args([TASKS.to_string(), (WAITING - RUNNING).to_string(), label("mail", &bad)])
        .env("TQHOST_BROWSER", packages)
        .stdout(Stdio::piped())
        .spawn()
        .expect("run node");
    let mut told = String::new();
    for line in BufReader::new(node.stdout.take().expect("stdout")).lines().map_while(Result::ok) {
        if line == "requeued" {
            // Attempts of the bad version still wait for the service.
            web.open_held();
        }
        told = line;
    }
    assert!(node.wait().expect("wait for node").success(), "{told}");
    let told: Value = serde_json::from_str(&told).expect("JSON");
    eprintln!("the incident took {} clicks and {} s", told["steps"], told["seconds"]);
    assert_eq!(told["serious"], serde_json::json!([]), "axe, and the width on a phone");
    assert_eq!(told["told"], serde_json::json!([]), "the console is silent");
    assert!(
        told["seen"].as_u64().is_some_and(|ms| ms < 10_000),
        "the alarm is seen within ten seconds: {told}"
    );
    assert_eq!(
        (&told["first"], &told["switched"]),
        (&"Skip to the content".into(), &"Resume updates".into())
    );
    for page in [
        "overview",
        "queue",
        "chosen",
        "dead-letters",
        "task",
        "plugins",
        "plugin",
        "confirm",
        "drain",
        "hosts",
        "login",
    ] {
        for look in ["light", "dark", "phone"] {
            assert!(pictures.join(format!("{page}-{look}.png")).exists(), "{page} {look}");
        }
    }
    host.until_ended_as("mail", "completed", (TASKS + WAITING) as u64);
    assert_eq!(bench.redis::<u64>("XLEN", "tq:{mail}:dead"), 0);
    guarded.stop();
    host.stop();
}
