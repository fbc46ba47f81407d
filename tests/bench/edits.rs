//! Section `edits`: how long an author waits from saving a file to the result of the task.
//!
//! Out: for each language of `tqhost new`, the seconds of `make watch` between a change of the handler and
//! the line that the changed handler logs, and those that a host takes to load the handler for the first time
//! and after each change. The tools and packages of the project are there before.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::page::{Spread, machine, replace};
use super::support::files::{digest, put};
use super::support::{Bench, within};
use crate::{REPS, amount, from_env};

/// The languages of `tqhost new`, and the file that the author changes.
const LANGUAGES: [(&str, &str); 5] = [
    ("rust", "src/lib.rs"),
    ("go", "handler.go"),
    ("javascript", "handler.js"),
    ("typescript", "handler.ts"),
    ("python", "app.py"),
];
/// The word that each template logs.
const LOGGED: &str = "counted";
/// The longest wait for a build. The first one may load packages.
const PATIENCE: Duration = Duration::from_secs(900);

pub fn times() {
    let reps = *REPS;
    println!("edits: from saving to the result, {reps} changes of each handler");
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let mut table = format!(
        "{}\n\n| language | seconds | least to most | a host loads the first | and a change |\n\
         |---|---:|---:|---:|---:|\n",
        machine(reps)
    );
    for (language, file) in &LANGUAGES[..amount(LANGUAGES.len(), 1)] {
        let (seconds, versions) = changes(folder.path(), language, file, reps);
        let Spread { median, least, most } = Spread::of(seconds).expect("a change");
        let (first, others) = loads(&versions);
        let change = Spread::of(others).expect("a change").median;
        println!(
            "  {language:12} {median:5.1} s ({least:.1} to {most:.1}); in a host {first:.1} s for the first, \
             {change:.1} s for a change"
        );
        table +=
            &format!("| `{language}` | {median:.1} | {least:.1} to {most:.1} | {first:.1} | {change:.1} |\n");
    }
    if from_env("WRITE", 0) == 1 {
        replace("edits", &table);
    }
}

/// The seconds that each change took, and the component before and after each.
fn changes(folder: &Path, language: &str, file: &str, reps: usize) -> (Vec<f64>, Vec<Vec<u8>>) {
    let tqhost = env!("CARGO_BIN_EXE_tqhost");
    let name = format!("in-{language}");
    let made = Command::new(tqhost).args(["new", &name, "--lang", language]).current_dir(folder).output();
    let made = made.expect("start tqhost");
    assert!(made.status.success(), "{made:?}");
    let project = folder.join(name);
    let file = project.join(file);
    let text = fs::read_to_string(&file).expect("the handler");
    let watch = Watch::start(&project, tqhost);
    watch.until(LOGGED);
    let built = || fs::read(project.join(format!("in-{language}.wasm"))).expect("the component");
    let (mut seconds, mut versions) = (Vec::new(), vec![built()]);
    for rep in 0..reps {
        // It is a part of names, too.
        let words = format!("recounted{rep}");
        fs::write(&file, text.replace(LOGGED, &words)).expect("write");
        let saved = Instant::now();
        watch.until(&words);
        seconds.push(saved.elapsed().as_secs_f64());
        versions.push(built());
    }
    (seconds, versions)
}

/// The seconds that a host without tasks takes to load the first version, and those for each of the others.
fn loads(versions: &[Vec<u8>]) -> (f64, Vec<f64>) {
    let bench = Bench::new("[queues.work]\nplugin = \"p\"\n");
    let host = bench.host();
    let load = |bytes: &Vec<u8>| {
        put(&bench, "p", bytes);
        let name = &digest(bytes)[..12];
        let line = within(PATIENCE, "it is loaded", || {
            host.logged("plugin loaded").into_iter().find(|line| line["digest"] == name)
        });
        line["took_ms"].as_f64().expect("a time") / 1000.0
    };
    let mut seconds: Vec<f64> = versions.iter().map(load).collect();
    host.stop();
    (seconds.remove(0), seconds)
}

/// `make watch`. It is ended when it is dropped.
struct Watch {
    make: Child,
    lines: Receiver<String>,
}

impl Watch {
    fn start(project: &Path, tqhost: &str) -> Watch {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/build-languages.sh");
        let mut command = Command::new(fs::canonicalize(script).expect("the script"));
        command.args(["--run", "make", "watch"]).current_dir(project).stdin(Stdio::null());
        command.env("TQHOST", tqhost).env_remove("CARGO_TARGET_DIR").process_group(0);
        let mut make = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start make");
        let (sender, lines) = channel();
        let outputs: [Box<dyn Read + Send>; 2] =
            [Box::new(make.stdout.take().expect("a pipe")), Box::new(make.stderr.take().expect("a pipe"))];
        for output in outputs {
            let sender = sender.clone();
            std::thread::spawn(move || {
                BufReader::new(output).lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
            });
        }
        Watch { make, lines }
    }

    fn until(&self, words: &str) {
        within(PATIENCE, words, || self.lines.try_iter().find(|line| line.contains(words)));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.make.id().try_into().expect("a process"));
        let _ = killpg(group, Signal::SIGTERM);
        let _ = self.make.wait();
    }
}
