//! The files in `deploy` that something on this machine can read.
//!
//! Not here: the rules for Prometheus (`alerts`), the chart for Kubernetes (`chart`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::support::Bench;
use super::support::bench::tqhost;

pub(super) fn root() -> PathBuf {
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
    let secrets = [
        ("REDIS_URL", "redis://redis:6379"),
        ("TQHOST_ADMIN_TOKEN", "secret-of-the-admin"),
        ("TQHOST_READ_TOKEN", "open-to-the-readers"),
    ];
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

/// The documents of a YAML file in `deploy`, or at an absolute path, as JSON.
pub(super) fn documents(file: &str) -> Vec<Value> {
    const READ: &str =
        "import json, sys, yaml\nprint(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let mut script = Command::new(root().join("scripts/from-pypi.sh"));
    let folder = script.arg("yaml").stdin(Stdio::null()).output().expect("run from-pypi.sh");
    assert!(folder.status.success(), "{}", String::from_utf8_lossy(&folder.stderr));
    let folder = String::from_utf8(folder.stdout).expect("UTF-8");
    let mut python = Command::new(Path::new(folder.trim_end()).join("python3"));
    let read = python.args(["-c", READ]).arg(root().join("deploy").join(file)).output().expect("run Python");
    assert!(read.status.success(), "{file}: {}", String::from_utf8_lossy(&read.stderr));
    serde_json::from_slice(&read.stdout).expect("JSON")
}

/// The text of a file in `deploy`.
pub(super) fn text(file: &str) -> String {
    std::fs::read_to_string(root().join("deploy").join(file)).expect("a file")
}

/// The names of the environment that the configuration of the image asks for.
fn wanted_names() -> BTreeSet<String> {
    let config = text("tqhost.toml");
    let names = config.split("env = \"").skip(1).filter_map(|rest| rest.split_once('"'));
    names.map(|(name, _)| name.to_owned()).collect()
}

/// All objects with this key, wherever they are, by the value of the key.
pub(super) fn found<'v>(value: &'v Value, key: &str, all: &mut Vec<&'v Value>) {
    match value {
        Value::Object(map) => {
            all.extend(map.get(key));
            map.values().for_each(|value| found(value, key, all));
        }
        Value::Array(values) => values.iter().for_each(|value| found(value, key, all)),
        _ => {}
    }
}

pub(super) fn strings(values: &[Value], key: &str) -> Vec<String> {
    values.iter().map(|value| value[key].as_str().expect(key).to_owned()).collect()
}

#[test]
fn the_manifest_for_compose_refers_to_what_is_there() {
    let all = documents("compose.yaml");
    let [manifest] = &all[..] else { panic!("{all:?}") };
    let services = manifest["services"].as_object().expect("services");
    for (name, service) in services {
        if let Value::Object(build) = &service["build"] {
            let context = root().join("deploy").join(build["context"].as_str().expect("a folder"));
            assert!(context.join(build["dockerfile"].as_str().expect("a file")).is_file(), "{build:?}");
            // Docker reads it from the folder that the image is built from.
            assert!(context.join(".dockerignore").is_file());
        }
        for other in service["depends_on"].as_object().into_iter().flat_map(|others| others.keys()) {
            assert!(services.contains_key(other), "{name} depends on {other}");
        }
        for volume in service["volumes"].as_array().expect("volumes") {
            let source = volume.as_str().and_then(|volume| volume.split(':').next()).expect("a source");
            let is_there = match source.starts_with('.') {
                true => root().join("deploy").join(source).exists(),
                false => manifest["volumes"].as_object().is_some_and(|all| all.contains_key(source)),
            };
            assert!(is_there, "{name}: {volume}");
        }
    }
    let env = services["tqhost"]["environment"].as_object().expect("names");
    for name in wanted_names() {
        assert!(env.contains_key(&name), "{name}");
    }
    assert!(services["tqhost"]["ports"][0].as_str().is_some_and(|port| port.ends_with(":7700")));
}

#[test]
fn the_image_knows_whether_its_host_is_alive_and_runs_without_rights() {
    let dockerfile = text("Dockerfile");
    assert!(dockerfile.contains("\nUSER 10001\n"), "{dockerfile}");
    let check =
        dockerfile.split("HEALTHCHECK ").nth(1).and_then(|check| check.split_once("CMD [")).expect("a check");
    let (check, _) = check.1.split_once("]\n").expect("its end");
    let check = format!("[{}]", check.replace("\\\n", ""));
    let bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    let host = bench.host();
    let (_, port) = host.admin().rsplit_once(':').expect("a port");
    let command: Vec<String> = serde_json::from_str(&check.replace("7700", port)).expect("a command");
    let answers = || Command::new(&command[0]).args(&command[1..]).status().expect("run bash").success();
    assert!(answers());
    host.stop();
    assert!(!answers());
}
