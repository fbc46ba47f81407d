//! The dashboard in a headless Chromium: an incident by clicks, pictures of each page, and what axe finds.
//!
//! In: `TQHOST_BROWSER`, the folder of the packages that `scripts/browser.sh` installs;
//! `TQHOST_SCREENSHOTS`, a folder for the pictures, if they are to be kept. The clicks are in
//! `browser/incident.mjs`. Not here: what every page must have (`dashboard` of the end-to-end tests).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::support::{Bench, bench};

const TASKS: usize = 60;

#[test]
fn an_incident_is_found_and_repaired_by_clicks() {
    // Nobody has a handler for the second queue.
    let queues = "[queues.mail]\nmax_retries = 0\nevents = 200\n[queues.reports]\n";
    let mut bench = Bench::new(queues);
    bench.install("always-fails", "mail");
    let host = bench.host();
    host.until_ready();
    for n in 0..TASKS {
        bench.xadd("mail", &[("to", &format!("user{n}@example.com")), ("text", "Your report is ready.")]);
    }
    bench.xadd("reports", &[("month", "2026-10")]);
    host.until_ended_as("mail", "retries-exhausted", TASKS as u64);
    let packages = std::env::var_os("TQHOST_BROWSER");
    let packages = packages.expect("TQHOST_BROWSER is not set: run `make test-world`");
    let kept = std::env::var_os("TQHOST_SCREENSHOTS").map(PathBuf::from);
    let pictures = kept.unwrap_or_else(|| bench.dir.path().join("pictures"));
    let ran = Command::new("node")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/world/browser/incident.mjs"))
        .arg(format!("http://{}/", host.admin()))
        .args([bench::guest_path("echo"), bench.plugin_path("mail"), pictures.clone()])
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
    for page in ["overview", "queue", "dead-letters", "task", "plugins", "confirm"] {
        for look in ["light", "dark", "phone"] {
            assert!(pictures.join(format!("{page}-{look}.png")).exists(), "{page} {look}");
        }
    }
    host.until_ended_as("mail", "completed", TASKS as u64);
    assert_eq!(bench.redis::<u64>("XLEN", "tq:{mail}:dead"), 0);
    host.stop();
}
