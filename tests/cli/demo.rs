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
    let summary = stdout.lines().rfind(|line| line.contains(" tasks: ")).unwrap_or_default();
    // The demo sends more than 600 if the new version is slow to load, and takes its time.
    let is_figure = |word: &&str| word.parse().is_ok_and(|figure: u32| figure > 2);
    let words = summary.split(' ').map(|word| if is_figure(&word) { "N" } else { word });
    insta::assert_snapshot!(
        words.collect::<Vec<_>>().join(" "),
        @"N tasks: N completed, 1 dead, 1 retried (twice); 2 versions of one handler; N s"
    );
}
