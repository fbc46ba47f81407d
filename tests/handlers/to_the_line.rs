//! A newcomer's mistakes in Python and JavaScript: one command leads from the dead letter to the line.
//!
//! The projects are made by the real `tqhost new` and built by their own `make`, with the tools that
//! `make setup` fetched.
//!
//! Not here: mistakes that the build tells (`build_errors`), traps of other guests (the sandbox's own tests).

use std::fs;
use std::path::Path;

use super::authors::{built, host_with_caches};
use super::languages::COMPILES;
use crate::support::files::put_at;
use crate::support::{Bench, Ran, Web, within};

/// Long enough for an instance on a busy machine.
const TIMEOUT: &str = "5s";

/// The line of the file with this mark, which is a comment at its end.
fn line_of(program: &str, mark: &str) -> usize {
    let at = program.lines().position(|line| line.ends_with(mark));
    at.unwrap_or_else(|| panic!("{mark} is nowhere")) + 1
}

/// Makes each mistake once in a host, and looks at its dead letter by one command. Its error has these words;
/// one with `:@` stands for the place of this mark.
fn lead_to_the_line(lang: &str, file: &str, program: &str, mistakes: &[(&str, &[&str])]) {
    let component = built(
        lang,
        "line",
        |project: &Path| {
            fs::write(project.join(file), program).expect("write");
            let world = project.join("wit/world.wit");
            let text = fs::read_to_string(&world).expect("the world");
            fs::write(world, text.replace("// import ", "import ")).expect("write");
        },
        "build",
    );
    let web = Web::start();
    let origin = web.origin();
    let rules = format!("[queues.line]\nmax_retries = 0\ntimeout = \"{TIMEOUT}\"\n");
    let mut bench = Bench::new(&rules);
    let service = format!("{origin}/silent?key=hunter2");
    let grants = format!("allowed_hosts = [{origin:?}]\nconfig = {{ service = {service:?} }}\n");
    bench.configure_for(&format!("{rules}[plugins.line]\n{grants}"), bench.redis.port);
    put_at(&bench.plugin_path("line"), &fs::read(component).expect("the component"));
    let host = host_with_caches(&bench, "line");
    host.log("plugin loaded");
    let ids: Vec<String> =
        mistakes.iter().map(|(mistake, _)| bench.xadd("line", &[("mistake", mistake)])).collect();
    for (id, (mistake, words)) in ids.iter().zip(mistakes) {
        within(COMPILES, mistake, || (bench.status("line", id, "status") == "FAILED").then_some(()));
        let Ran { stdout, .. } = bench.tqhost(&["dead", "show", "line", id]).ok();
        let error = stdout.lines().find(|line| line.starts_with("error")).unwrap_or_default();
        for word in *words {
            let place = word.strip_prefix(":@").map(|mark| format!("{file}:{}", line_of(program, mark)));
            let word = place.as_deref().unwrap_or(word);
            assert!(error.contains(word), "{mistake}: {word} is not in\n{stdout}");
        }
        assert!(!stdout.contains("hunter2"), "{stdout}");
        // The log of the attempt is there, too.
        assert!(stdout.contains(&format!("it makes the mistake {mistake}")), "{stdout}");
    }
}

#[test]
fn mistakes_in_python_lead_to_the_line() {
    let program = r#"import importlib
import time

import tqhost_http
from tqhost import config, handles, log, text


def typo(task):
    return task.idd  # typo


def late(task):
    return importlib.import_module("turtle").up()  # late


def ungranted(task):
    return tqhost_http.request("GET", "http://models.example/v1").status  # ungranted


def endless(task):
    number = 1
    while number:
        number = number * 3 % 7  # endless


def sleeps(task):
    time.sleep(60)  # sleeps


def waits(task):
    return tqhost_http.request("GET", config("service")).status  # waits


def missing(task):
    return text(task, "content")


def handle(task):
    mistake = text(task, "mistake")
    log("info", f"it makes the mistake {mistake}")
    return globals()[mistake](task)


Handler = handles(handle)
"#;
    let late = "ModuleNotFoundError: `turtle` is imported while a task runs, and was not imported when the \
        component was built: import it at the top of app.py";
    let mistakes: [(&str, &[&str]); 7] = [
        ("typo", &["trap: AttributeError: 'Task' object has no attribute 'idd'", ":@# typo"]),
        ("late", &[late, ":@# late"]),
        ("ungranted", &["models.example", "allowed_hosts", ":@# ungranted"]),
        ("endless", &["timeout: the handler did not end within 5s: it computed", " in endless at app.py:"]),
        ("sleeps", &["timeout: ", "it slept for most of that time, with no request open", ":@# sleeps"]),
        ("waits", &["did not answer in time", ":@# waits"]),
        ("missing", &["field `content` is missing: it has mistake"]),
    ];
    lead_to_the_line("python", "app.py", program, &mistakes);
}

#[test]
fn mistakes_in_javascript_lead_to_the_line() {
    let program = r#"import { config, handles, text } from './tqhost.js';

const mistakes = {
  typo: (task) => task.fieldz.length, // typo
  late: (task) => import(text(task, 'mistake')), // late
  ungranted: async () => (await fetch('http://models.example/v1')).status,
  endless() {
    let number = 1;
    while (number) number = (number * 3) % 7; // endless
  },
  sleeps: () => new Promise((resolve) => setTimeout(resolve, 60_000)),
  waits: async () => (await fetch(config('service'))).status, // waits
  missing: (task) => text(task, 'content'),
};

export const handler = handles((task) => {
  const mistake = text(task, 'mistake');
  console.log(`it makes the mistake ${mistake}`);
  return mistakes[mistake](task);
});
"#;
    let mistakes: [(&str, &[&str]); 7] = [
        ("typo", &["trap: TypeError: ", "fieldz", ":@// typo"]),
        ("late", &["Dynamic require of \"late\" is not supported", ":@// late"]),
        ("ungranted", &["models.example", "allowed_hosts"]),
        ("endless", &["timeout: the handler did not end within 5s: it computed", ":@// endless"]),
        ("sleeps", &["timeout: ", "it slept for most of that time, with no request open"]),
        ("waits", &["did not answer in time", ":@// waits"]),
        ("missing", &["field `content` is missing: it has mistake"]),
    ];
    lead_to_the_line("javascript", "handler.js", program, &mistakes);
}
