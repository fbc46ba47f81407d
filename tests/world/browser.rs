//! The dashboard in a headless Chromium: an incident by clicks, pictures of each page, and what axe finds.
//!
//! In: `TQHOST_BROWSER`, the folder of the packages that `scripts/browser.sh` installs;
//! `TQHOST_SCREENSHOTS`, a folder for the pictures, if they are to be kept. The clicks are in
//! `browser/incident.mjs`. Not here: what every page must have (`dashboard` of the end-to-end tests).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::support::Bench;
use super::support::files::{guest, label, loaded};

const TASKS: usize = 60;

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
    // Nobody has a handler for the second queue.
    let queues = "[queues.mail]\nmax_retries = 0\nevents = 200\n[queues.reports]\n";
    let mut bench = Bench::new(queues);
    bench.install("echo", "mail");
    let host = bench.host();
    host.until_ready();
    let (good, bad) = (guest("echo"), guest("always-fails"));
    loaded(&host, &good);
    past_hour(&mut bench, "mail", &label("mail", &good));
    bench.install("always-fails", "mail");
    loaded(&host, &bad);
    for n in 0..TASKS {
        bench.xadd("mail", &[("to", &format!("user{n}@example.com")), ("text", "Your report is ready.")]);
    }
    bench.xadd("reports", &[("month", "2026-10")]);
    host.until_ended_as("mail", "retries-exhausted", TASKS as u64);
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
    let ran = Command::new("node")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/world/browser/incident.mjs"))
        .args([format!("http://{}/", host.admin()), format!("http://{}/", guarded.admin())])
        .arg(&pictures)
        .arg(TASKS.to_string())
        .env("TQHOST_BROWSER", packages)
        .stderr(Stdio::inherit())
        .output()
        .expect("run node");
    let told = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{told}");
    let told: Value = serde_json::from_str(told.lines().last().unwrap_or_default()).expect("JSON");
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
    for page in ["overview", "queue", "dead-letters", "task", "plugins", "confirm", "drain", "login"] {
        for look in ["light", "dark", "phone"] {
            assert!(pictures.join(format!("{page}-{look}.png")).exists(), "{page} {look}");
        }
    }
    host.until_ended_as("mail", "completed", TASKS as u64);
    assert_eq!(bench.redis::<u64>("XLEN", "tq:{mail}:dead"), 0);
    guarded.stop();
    host.stop();
}
