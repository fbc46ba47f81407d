//! The files in `deploy` that something on this machine can read.
//!
//! Not here: the rules for Prometheus (`alerts`).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::support::bench::tqhost;

fn root() -> PathBuf {
    std::fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).expect("the repository")
}

#[test]
fn systemd_takes_the_unit() {
    let dir = tempfile::tempdir().expect("a folder");
    let unit = std::fs::read_to_string(root().join("deploy/tqhost.service")).expect("the unit");
    // The program that it starts has to exist.
    let unit = unit.replace("/usr/local/bin/tqhost", env!("CARGO_BIN_EXE_tqhost"));
    let file = dir.path().join("tqhost.service");
    std::fs::write(&file, unit).expect("write");
    let mut verify = Command::new("systemd-analyze");
    let output = verify.arg("verify").arg("--man=no").arg(&file).stdin(Stdio::null()).output();
    let output = output.expect("run systemd-analyze, which is a part of systemd");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("tqhost.service"), "{said}");
}

#[test]
fn the_configuration_of_the_image_is_a_good_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = std::fs::read_to_string(root().join("deploy/tqhost.toml")).expect("the configuration");
    let secrets = [("REDIS_URL", "redis://redis:6379"), ("TQHOST_ADMIN_TOKEN", "secret")];
    let text = secrets.iter().fold(text, |text, (name, value)| {
        let reference = format!("{{ env = \"{name}\" }}");
        assert!(text.contains(&reference), "{name}");
        text.replace(&reference, &format!("\"{value}\""))
    });
    let text = text.replace("\"/plugins\"", &format!("{:?}", root().join("plugins")));
    let text = text.replace("\"/data\"", &format!("{:?}", dir.path()));
    let file = dir.path().join("tqhost.toml");
    std::fs::write(&file, text).expect("write");
    tqhost(&file, &["check"]).ok();
}
