//! Tests the private Redis with the real `redis-server`, and with programs that only look like one.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use tokio::time::{Instant, sleep};

use super::{Embedded, EmbeddedError, MAX_SOCKET_PATH_BYTES, socket, socket_path, url};

/// Waits until the condition holds, which other processes make true.
async fn eventually<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition().await {
        assert!(Instant::now() < deadline, "not within 30 s: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

async fn ask(data_dir: &Path, command: &str) -> String {
    socket::ask(&socket_path(data_dir), format!("{command}\r\n").as_bytes()).await.expect("an answer")
}

fn temp() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Makes a folder with a program of that name, and gives it as a value for `PATH`.
fn fake(folder: &Path, name: &str, script: &str) -> OsString {
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).expect("a folder");
    let program = bin.join(name);
    // Another process writes it: a program cannot be run while this process, or a fork of it in another test,
    // has it open for writing.
    let write = r#"printf '#!/bin/sh\n%s\n' "$1" > "$2" && chmod 755 "$2""#;
    let written = Command::new("sh").args(["-c", write, "sh", script]).arg(&program).status().expect("sh");
    assert!(written.success());
    bin.into_os_string()
}

#[tokio::test]
async fn written_data_is_there_after_a_restart() {
    let dir = temp();
    let redis = Embedded::start(dir.path()).await.expect("a server");
    assert!(redis.server.pid().is_some());
    assert_eq!(ask(dir.path(), "SET k v").await, "+OK");
    assert_eq!(fs::metadata(dir.path().join("redis")).expect("folder").permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(socket_path(dir.path())).expect("socket").permissions().mode() & 0o777, 0o700);
    redis.stop().await;
    assert!(!socket_path(dir.path()).exists(), "the server removed its socket");

    let redis = Embedded::start(dir.path()).await.expect("a second server");
    assert_eq!(ask(dir.path(), "STRLEN k").await, ":1");
    assert!(dir.path().join("redis/redis.log.1").exists(), "the first log was kept");
    redis.stop().await;
}

#[tokio::test]
async fn a_killed_server_is_started_again() {
    let dir = temp();
    let redis = Embedded::start(dir.path()).await.expect("a server");
    assert_eq!(ask(dir.path(), "SET k v").await, "+OK");
    let first = redis.server.pid().expect("a pid");
    kill(first, Signal::SIGKILL).expect("kill");
    eventually("another process", || async { redis.server.pid().is_some_and(|pid| pid != first) }).await;
    eventually("it answers", || async {
        socket::ping(&socket_path(dir.path())).await == Some(socket::PingReply::Pong)
    })
    .await;
    assert_eq!(ask(dir.path(), "STRLEN k").await, ":1");
    redis.stop().await;
}

#[tokio::test]
async fn a_dropped_server_ends() {
    let dir = temp();
    drop(Embedded::start(dir.path()).await.expect("a server"));
    eventually("the socket is gone", || async { !socket_path(dir.path()).exists() }).await;
}

#[tokio::test]
async fn an_orphan_is_shut_down_first() {
    let dir = temp();
    fs::create_dir(dir.path().join("redis")).expect("a folder");
    let mut orphan = Command::new("redis-server")
        .args(["--port", "0", "--appendonly", "yes", "--save", "", "--unixsocket"])
        .arg(socket_path(dir.path()))
        .arg("--dir")
        .arg(dir.path().join("redis"))
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server");
    eventually("the orphan answers", || async {
        socket::ping(&socket_path(dir.path())).await == Some(socket::PingReply::Pong)
    })
    .await;
    assert_eq!(ask(dir.path(), "SET k v").await, "+OK");

    let redis = Embedded::start(dir.path()).await.expect("a server");
    assert!(orphan.wait().expect("wait").success(), "the orphan ended in peace");
    assert_eq!(ask(dir.path(), "STRLEN k").await, ":1");
    redis.stop().await;
}

#[tokio::test]
async fn a_long_data_dir_has_its_socket_elsewhere() {
    let dir = temp();
    let long = dir.path().join("long ".repeat(30));
    let socket = socket_path(&long);
    assert!(
        socket.as_os_str().len() <= MAX_SOCKET_PATH_BYTES && !socket.starts_with(&long),
        "{}",
        socket.display()
    );
    assert_eq!(socket, socket_path(&long));
    assert_ne!(socket, socket_path(&long.join("other")));
    let redis = Embedded::start(&long).await.expect("a server");
    assert_eq!(ask(&long, "PING").await, "+PONG");
    let parent = socket.parent().expect("a folder");
    assert_eq!(fs::metadata(parent).expect("folder").permissions().mode() & 0o777, 0o700);
    redis.stop().await;
    fs::remove_dir_all(parent).expect("remove");
}

#[test]
fn the_url_is_percent_encoded() {
    assert_eq!(url(Path::new("/var/lib/tqhost")), "redis+unix:///var/lib/tqhost/redis/redis.sock");
    assert_eq!(url(Path::new("/a b/100%?#ä")), "redis+unix:///a%20b/100%25%3F%23%C3%A4/redis/redis.sock");
}

#[tokio::test]
async fn a_program_that_will_not_do_is_refused() {
    let dir = temp();
    let path = fake(dir.path(), "redis-server", "echo Redis server v=6.2.7 sha=0");
    let error = Embedded::start_from(dir.path(), &path).await.expect_err("too old");
    insta::assert_snapshot!(error.to_string().replace(&*path.to_string_lossy(), "PROGRAM"), @"
    PROGRAM/redis-server is of version 6.2.7, but tqhost needs 7.0 or newer: install a newer one, or set \
    redis.url
    ");

    let path = fake(dir.path(), "redis-server", "echo hello");
    let error = Embedded::start_from(dir.path(), &path).await.expect_err("no version");
    assert!(matches!(error, EmbeddedError::NoVersion { .. }), "{error}");

    let script = "case $1 in --version) echo Server v=8.0.0;; *) echo cannot find my file; exit 3;; esac";
    let path = fake(dir.path(), "valkey-server", script);
    let error = Embedded::start_from(dir.path(), &path).await.expect_err("it ends");
    insta::assert_snapshot!(error.to_string().replace(&*path.to_string_lossy(), "PROGRAM"), @r"
    the private Redis ended at its start (exit status: 3); the end of its log:
    cannot find my file
    ");
}

#[tokio::test]
async fn a_folder_of_somebody_else_is_refused() {
    let dir = temp();
    let elsewhere: PathBuf = dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a folder");
    std::os::unix::fs::symlink(&elsewhere, dir.path().join("redis")).expect("a link");
    let error = Embedded::start(dir.path()).await.expect_err("a link");
    assert!(matches!(error, EmbeddedError::Foreign { .. }), "{error}");
}
