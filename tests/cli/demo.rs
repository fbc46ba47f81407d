//! The demo that `make run` shows, in a short form. It checks its own numbers, so the test looks at its exit
//! code and its last lines only.

use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn the_demo_ends_by_itself_and_its_numbers_add_up() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/run.sh");
    let mut demo = Command::new(script);
    demo.env("TQHOST_BIN", env!("CARGO_BIN_EXE_tqhost")).env("DEMO_TASKS", "600").stdin(Stdio::null());
    let output = demo.output().expect("run demo/run.sh");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    // The demo sends more than 600 if the new version is slow to load.
    let summary = stdout.lines().find(|line| line.contains("2 versions of one handler"));
    let summary = summary.unwrap_or_else(|| panic!("no summary in\n{stdout}\n{stderr}"));
    assert!(summary.contains(" completed, 1 dead, 1 retried (twice)"), "{summary}");
}
