//! The helpers for handlers as packages that could be published: a crate, an npm package and a wheel.
//!
//! They are made by `scripts/packages.sh`, without the network, and used as their users would.
//!
//! Not here: whether a registry would take them (`scripts/packages.sh FOLDER --dry-run` asks crates.io), and
//! the copies of the helpers in projects (`authors`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::Ran;

fn scripts() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts")).expect("the scripts")
}

/// Runs a command with the tools that `make setup` fetched.
#[track_caller]
fn ran(folder: &Path, args: &[&str]) -> Ran {
    let mut command = Command::new(scripts().join("build-languages.sh"));
    command.arg("--run").args(args).current_dir(folder).stdin(Stdio::null()).env_remove("CARGO_TARGET_DIR");
    Ran::from(command.output().expect("run a command")).ok()
}

#[test]
fn the_helpers_are_packages_that_could_be_published() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
    fs::create_dir_all(&folder).expect("a folder");
    let script = scripts().join("packages.sh");
    // This compiles the crate as its users get it.
    ran(&folder, &[script.to_str().expect("UTF-8"), "."]);
    let version = env!("CARGO_PKG_VERSION");
    assert!(folder.join(format!("tqhost-handler-{version}.crate")).is_file());

    let user = tempfile::tempdir().expect("a folder");
    let package = folder.join(format!("tqhost-handler-{version}.tgz"));
    ran(user.path(), &["npm", "install", "--silent", package.to_str().expect("UTF-8")]);
    fs::write(
        user.path().join("use.mjs"),
        "import { handles, text } from 'tqhost-handler';\nimport { outbox } from 'tqhost-handler/effects';\n\
         import { memory, run } from 'tqhost-handler/memory';\n\
         const handler = handles((task) => {\n  \
         outbox.enqueue({ queue: 'letters' });\n  return text(task, 'a').length;\n});\n\
         process.stdout.write(`${await run(handler, { a: 'four' })} ${memory.sent[0].queue}`);\n",
    )
    .expect("write");
    let said = ran(user.path(), &["node", "--import", "tqhost-handler/memory", "use.mjs"]).stdout;
    assert_eq!(said.trim(), "4 letters");

    let wheel = folder.join(format!("tqhost_handler-{version}-py3-none-any.whl"));
    let install = ["sh", "-c", "\"$PYTHON\" -m pip install --quiet --target packages \"$0\""];
    ran(user.path(), &[&install[..], &[wheel.to_str().expect("UTF-8")]].concat());
    let program = "from tqhost_memory import memory, run\nfrom tqhost import handles, text\n\
        from tqhost_effects import outbox\n\
        Handler = handles(lambda task: (outbox.enqueue('letters'), len(text(task, 'a')))[1])\n\
        print(run(Handler, {'a': 'four'}).decode(), memory.sent[0].queue)\n";
    fs::write(user.path().join("packages/use.py"), program).expect("write");
    let said = ran(user.path(), &["sh", "-c", "\"$PYTHON\" packages/use.py"]).stdout;
    assert_eq!(said.trim(), "4 letters");
}
