//! The example `examples/http-call/java` takes tasks from a host. It needs a JDK, 17 or newer.
//!
//! Not here: what it must do with them (`receiver`), the example in Node.js (the end-to-end tests).

use std::process::Command;

use super::support::receiver;

#[test]
fn the_example_in_java_checks_signatures_and_works_once() {
    let classes = tempfile::tempdir().expect("a folder");
    let source = receiver::example("java").join("Receiver.java");
    let compiled = Command::new("javac")
        .arg("-d")
        .arg(classes.path())
        .args(["-Xlint:all", "-Werror"])
        .arg(source)
        .output()
        .expect("run javac: install a JDK, such as openjdk-17-jdk-headless");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    receiver::takes_tasks(|| {
        let mut command = Command::new("java");
        command.arg("-cp").arg(classes.path()).arg("Receiver");
        command
    });
}
