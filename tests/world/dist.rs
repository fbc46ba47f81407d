//! The packages of `make dist`, each installed as its users do it, into a folder of its own.
//!
//! In: the program of the tests, packed by `scripts/dist.sh`, without the network. Out: a host of each
//! package, with a Redis of its own, runs a task. Not here: the build for an older glibc (`make dist`), the
//! image (`deploy`), the maintainer scripts of the Debian package, which need a root of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::support::bench::CACHES;
use super::support::{Host, Ran};

/// How a package is installed into the present folder, and where it has its program and its handlers. `$0` is
/// the folder of the packages.
const PACKAGES: [(&str, &str, &str); 4] = [
    ("tar -xzf $0/tqhost-*.tar.gz --strip-components 1", "tqhost", "handlers"),
    ("dpkg-deb -x $0/tqhost_*.deb .", "usr/bin/tqhost", "usr/share/tqhost/handlers"),
    (
        "python3 -m venv . && bin/pip install --quiet --disable-pip-version-check --no-index $0/tqhost-*.whl",
        "bin/tqhost",
        "share/tqhost/handlers",
    ),
    (
        "npm install --silent --offline $0/tqhost-*.tgz",
        "node_modules/.bin/tqhost",
        "node_modules/tqhost/handlers",
    ),
];

fn root() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).expect("the repository")
}

#[track_caller]
fn ran(folder: &Path, program: &str, args: &[&str]) -> Ran {
    let mut command = Command::new(program);
    command
        .args(args)
        .current_dir(folder)
        .stdin(Stdio::null())
        .env("LEVEL", "1")
        .env("CARGO_NET_OFFLINE", "true");
    command.env("TQHOST_BIN", env!("CARGO_BIN_EXE_tqhost")).env(CACHES, folder.join("caches"));
    Ran::from(command.output().expect("run a command")).ok()
}

/// A folder with all packages.
fn packed() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let script = root().join("scripts/dist.sh");
    ran(folder.path(), script.to_str().expect("UTF-8"), &[folder.path().to_str().expect("UTF-8")]);
    folder
}

/// Packages for all tests of this file.
fn packages() -> &'static Path {
    static PACKED: OnceLock<tempfile::TempDir> = OnceLock::new();
    PACKED.get_or_init(packed).path()
}

#[test]
fn each_package_runs_a_task_where_it_is_installed() {
    for (install, program, handlers) in PACKAGES {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        ran(folder, "sh", &["-c", install, packages().to_str().expect("UTF-8")]);
        let program = folder.join(program);
        let command = program.to_str().expect("UTF-8");
        let version = ran(folder, command, &["--version"]);
        assert_eq!(version.stdout.trim(), concat!("tqhost ", env!("CARGO_PKG_VERSION")));

        // As the README's five minutes, with a private Redis.
        let config = "[queues.resume-analyze]\nstream = \"resume:analyze:stream\"\n\
                      [admin]\nlisten = \"127.0.0.1:0\"\n";
        fs::write(folder.join("tqhost.toml"), config).expect("write");
        fs::create_dir(folder.join("plugins")).expect("a folder");
        let handler = "resume-analyze.wasm";
        fs::copy(folder.join(handlers).join(handler), folder.join("plugins").join(handler)).expect("copy");
        ran(folder, command, &["check"]);
        let mut run = Command::new(&program);
        run.args(["run", "--log-format", "json"]).current_dir(folder).env(CACHES, folder.join("caches"));
        let host = Host::spawn(run);
        host.until_ready();
        let resume = root().join("plugins/resume-analyze/samples/one-page-en.txt");
        let content = format!("content=@{}", resume.display());
        let enqueue = ["enqueue", "resume-analyze", "resumeId=7", &content, "--wait", "--json"];
        let ended = ran(folder, command, &enqueue).json();
        assert_eq!(ended["status"], "COMPLETED", "{install}: {ended}");
        host.stop();
    }
}

#[test]
fn the_same_program_makes_the_same_packages() {
    let again = packed();
    let sums = |folder: &Path| fs::read_to_string(folder.join("SHA256SUMS")).expect("the sums");
    assert_eq!(sums(packages()), sums(again.path()));
    let checked = ran(packages(), "sha256sum", &["--check", "SHA256SUMS"]);
    assert_eq!(checked.stdout.matches(": OK\n").count(), 6, "{checked:?}");
}

#[test]
fn the_service_of_the_debian_package_starts_its_program_with_its_configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    ran(folder, "sh", &["-c", "dpkg-deb -R $0/tqhost_*.deb .", packages().to_str().expect("UTF-8")]);
    for script in ["postinst", "prerm", "postrm"] {
        ran(folder, "sh", &["-n", &format!("DEBIAN/{script}")]);
    }
    let unit = fs::read_to_string(folder.join("usr/lib/systemd/system/tqhost.service")).expect("the unit");
    assert!(unit.contains("\nExecStart=/usr/bin/tqhost run --config /etc/tqhost/tqhost.toml "), "{unit}");
    assert!(!unit.contains("/usr/local"), "{unit}");
    let config = fs::read_to_string(folder.join("etc/tqhost/tqhost.toml")).expect("the configuration");
    assert!(config.contains("data_dir = \"/var/lib/tqhost\""), "{config}");
    let config = config.replace("/var/lib/tqhost", folder.join("data").to_str().expect("UTF-8"));
    let handlers = folder.join("usr/share/tqhost/handlers");
    fs::create_dir_all(folder.join("data")).expect("a folder");
    std::os::unix::fs::symlink(handlers, folder.join("data/plugins")).expect("a link");
    // The queue that it shows as a comment.
    let config = config.replace("\n# [queues.", "\n[queues.").replace("\n# stream", "\nstream");
    fs::write(folder.join("tqhost.toml"), config).expect("write");
    ran(folder, "usr/bin/tqhost", &["check", "--config", "tqhost.toml"]);
}
