//! The commands on the pages: the README's tour runs as it stands, and the binary takes every command.
//!
//! In: the Markdown files of the repository. Not here: the examples of docs/commands*.md (`examples`), what
//! the commands do (`commands`, `doctor`, `handlers::authors`), and the lists of keys and metrics
//! (`config::bad_input`, `commands`).

use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{Bench, Host, Ran, eventually, files};

const README: &str = include_str!("../../README.md");
const STREAM: &str = "resume:analyze:stream";

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The blocks of a page between the lines with three backquotes, each with its language.
pub fn blocks(page: &str) -> Vec<(&str, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(&str, String)> = None;
    for line in page.lines() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(language), None) => open = Some((language, String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some((_, text))) => text.extend([line, "\n"]),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block has no end: {open:?}");
    blocks
}

/// The commands of a block: its lines, where a backslash joins a line to the next one.
fn commands(block: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    for line in block.lines() {
        match commands.last_mut().filter(|last| last.ends_with('\\')) {
            Some(last) => {
                last.pop();
                last.push_str(line.trim_start());
            }
            None => commands.push(line.to_owned()),
        }
    }
    commands
}

#[test]
fn the_page_of_rights_shows_what_the_command_prints() {
    let page = include_str!("../../docs/acl.md");
    let all = blocks(page);
    let of =
        |language| all.iter().filter(move |(found, _)| *found == language).map(|(_, text)| text.as_str());
    let bench = Bench::new("");
    let config: String = of("toml").collect();
    bench.configure(&format!("{config}[redis]\nurl = \"{}\"\n", bench.redis.url()));
    let printed = bench.tqhost(&["check", "--acl"]).ok().stdout;
    let shown: String = of("sh").collect();
    assert!(shown == printed, "docs/acl.md shows\n{shown}\nand the command prints\n{printed}");
}

#[test]
fn every_alert_has_its_paragraph_in_the_order_of_an_incident() {
    let rules = include_str!("../../deploy/alerts.yaml");
    let page = include_str!("../../docs/incidents.md");
    let incident = page.split("\n## ").find(|part| part.starts_with("An incident\n")).expect("the section");
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let mut headings: Vec<&str> = incident.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    for alert in &alerts {
        let paragraph = incident.split("\n### ").find(|part| part.lines().next() == Some(alert));
        let words = paragraph.map_or(0, |text| text.split_whitespace().count());
        assert!(words > 20, "{alert} has no paragraph that says what to do");
    }
    // The alerts by which no other one fires come first.
    assert_eq!(headings[..3], ["NoHost", "HostDown", "HostNotReady"]);
    headings.retain(|heading| !alerts.contains(heading));
    assert_eq!(headings, Vec::<&str>::new(), "there is no such alert");
}

#[test]
fn every_alarm_of_the_dashboard_is_in_the_table() {
    let code = |source: &'static str| source.split("#[cfg(test)]").next().unwrap_or_default();
    let sources = [
        code(include_str!("../../host/src/operations/alarms/mod.rs")),
        code(include_str!("../../host/src/operations/alarms/queues.rs")),
        code(include_str!("../../host/src/operations/alarms/plugins.rs")),
        code(include_str!("../../host/src/operations/alarms/hosts.rs")),
        code(include_str!("../../host/src/queue/upkeep.rs")),
    ];
    // Each alarm is added in one place, and two of these places are the functions that others call.
    let places = |of: &str| sources.iter().map(|source| source.matches(of).count()).sum::<usize>();
    let alarms = places(" add(") + places("alarms.push(alarm(") - 2;
    let page = include_str!("../../docs/incidents.md");
    let section = page.split("\n## ").find(|part| part.starts_with("The alarms of the dashboard\n"));
    let rows = section.expect("the section").lines().filter_map(|line| line.strip_prefix("| ")).skip(1);
    let told: Vec<&str> = rows.map(|row| row.split(" | ").next().unwrap_or_default()).collect();
    for alarm in &told {
        // The page has a sign in the place of each name and figure.
        let is_it = |line: &str| alarm.split('…').all(|part| line.contains(part.trim()));
        let is_known = sources.iter().flat_map(|source| source.lines()).any(is_it);
        assert!(is_known, "there is no alarm {alarm:?}");
    }
    let section = section.expect("the section");
    let kinds =
        section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.rsplit(" | ").next());
    let kinds: Vec<&str> = kinds.skip(1).flat_map(|cell| cell.split(", ")).collect();
    for kind in &kinds {
        let quoted = kind.replace('`', "\"");
        assert!(sources.iter().any(|source| source.contains(&quoted)), "there is no alarm of kind {kind}");
    }
    assert_eq!(
        kinds.iter().collect::<BTreeSet<_>>().len(),
        alarms + 1,
        "a plugin's alarm has two kinds: {kinds:?}"
    );
    assert_eq!(told.iter().collect::<BTreeSet<_>>().len(), alarms, "{told:#?}");
}

/// A shell in the folder of the bench that finds `tqhost`, `~/tqhost` and the bench's Redis where the README
/// says that they are.
pub struct Shell<'b> {
    bench: &'b Bench,
    home: PathBuf,
}

impl Shell<'_> {
    pub fn new(bench: &Bench) -> Shell<'_> {
        let home = bench.dir.path().join("home");
        let (bin, built) = (home.join("bin"), home.join("tqhost/target/debug"));
        std::fs::create_dir_all(&bin).expect("a folder");
        std::fs::create_dir_all(&built).expect("a folder");
        for folder in [&bin, &built] {
            symlink(env!("CARGO_BIN_EXE_tqhost"), folder.join("tqhost")).expect("a link");
        }
        symlink(root().join("plugins"), home.join("tqhost/plugins")).expect("a link");
        // The README's Redis has the usual port, and a test's has a free one.
        let client = bin.join("redis-cli");
        let path = std::env::var("PATH").expect("PATH");
        let script = format!("#!/bin/sh\nPATH={path}\nexec redis-cli -u {} \"$@\"\n", bench.redis.url());
        std::fs::write(&client, script).expect("write a script");
        std::fs::set_permissions(&client, PermissionsExt::from_mode(0o755)).expect("make it run");
        Shell { bench, home }
    }

    pub fn command(&self, line: &str) -> Command {
        let path = format!("{}:{}", self.home.join("bin").display(), std::env::var("PATH").expect("PATH"));
        let mut command = Command::new("sh");
        command.args(["-euc", line]).current_dir(self.bench.dir.path()).env("HOME", &self.home);
        command.env("PATH", path).env_remove("TQHOST_LOG").stdin(Stdio::null());
        command
    }

    /// Runs a line, however it ends.
    pub fn ran(&self, line: &str) -> Ran {
        Ran::from(self.command(line).output().expect("run a shell"))
    }

    fn run(&self, line: &str) -> Ran {
        self.ran(line).ok()
    }
}

#[test]
fn the_tour_of_the_readme_runs_as_it_stands() {
    let bench = Bench::new("");
    std::fs::remove_dir(bench.dir.path().join("plugins")).expect("an empty folder");
    let port = format!("127.0.0.1:{}", bench.redis.port);
    let tour = README.split_once("**1. The configuration.**").expect("the first step").1;
    let tour = tour.split_once("**Your own handler.**").expect("the end of the tour").0;
    let blocks = blocks(tour);
    let configuration = blocks.iter().find(|(language, _)| *language == "toml").expect("a configuration");
    assert!(configuration.1.contains("127.0.0.1:6379"), "{}", configuration.1);
    let configuration = configuration.1.replace("127.0.0.1:6379", &port);
    bench.configure(&format!("{configuration}\n[admin]\nlisten = \"127.0.0.1:0\"\n"));

    let resume = std::fs::read(root().join("plugins/resume-analyze.wasm")).expect("a built handler");
    let new = files::marked(&resume, 2);
    std::fs::write(bench.dir.path().join("new.wasm"), &new).expect("write a new version");
    let shell = Shell::new(&bench);
    let (mut host, mut task) = (None, String::new());
    let mut redis = bench.redis.connection();
    let mut done = Vec::new();
    for line in blocks.iter().filter(|(language, _)| language.is_empty()).flat_map(|(_, text)| commands(text))
    {
        let line = line.replace(" ID", &format!(" {task}"));
        if line.ends_with("tqhost run") {
            let started = Host::spawn(shell.command(&format!("exec {line} --log-format json")));
            started.log("tqhost is running");
            host = Some(started);
            continue;
        }
        let ran = shell.run(&line);
        if line.starts_with("redis-cli XADD") {
            ran.stdout.trim().clone_into(&mut task);
            let key = format!("tq:{{{STREAM}}}:task:{task}");
            let status = eventually("the task ends", || {
                let status: Option<String> =
                    redis::cmd("HGET").arg(&key).arg("status").query(&mut redis).ok();
                status.filter(|status| ["COMPLETED", "FAILED"].contains(&status.as_str()))
            });
            done.push(status);
        } else if line.contains(&task) && !task.is_empty() && !line.contains("requeue") {
            assert!(ran.stdout.contains(&task), "{line}: {ran:?}");
        } else if line.starts_with("tqhost deploy") {
            assert!(ran.stdout.contains("version v2 (") && ran.stdout.contains("taken"), "{ran:?}");
        }
    }
    assert_eq!(done, ["COMPLETED", "FAILED"], "a resume, and one without text");
    host.expect("the tour starts a host").stop();
}

/// Every page of the repository.
fn pages() -> Vec<PathBuf> {
    let listed = Command::new("git").args(["ls-files", "*.md"]).current_dir(root()).output().expect("git");
    let listed = String::from_utf8(listed.stdout).expect("UTF-8");
    listed.lines().map(|path| root().join(path)).collect()
}

/// The commands of a program on a page, without its name: the lines of blocks that begin with it, and what
/// stands between backquotes in the text.
pub fn calls(page: &str, program: &str) -> BTreeSet<String> {
    let program = format!("{program} ");
    let mut calls = BTreeSet::new();
    for line in blocks(page).iter().flat_map(|(_, text)| commands(text)) {
        let line = line.strip_prefix("$ ").unwrap_or(&line);
        // A comment stands behind several blanks.
        let line = line.split("   ").next().unwrap_or(line);
        calls.extend(line.strip_prefix(&program).map(str::to_owned));
    }
    let text = page.replace('\n', " ");
    let code = text.split('`').skip(1).step_by(2).filter_map(|code| code.strip_prefix(&program));
    // COMMAND stands for each of them.
    calls.extend(code.filter(|call| !call.starts_with("COMMAND")).map(str::to_owned));
    calls
}

#[test]
fn the_binary_takes_every_command_of_the_pages() {
    let (mut seen, mut refused) = (0, Vec::new());
    // Some of them write files.
    let dir = tempfile::tempdir().expect("a folder");
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page");
        for call in calls(&text, "tqhost") {
            // With `--help` a command checks its arguments, and does nothing.
            let mut command = Command::new("sh");
            let line = format!("set -- {call} --help; exec \"$TQHOST\" \"$@\"");
            command.args(["-uc", &line]).env("TQHOST", env!("CARGO_BIN_EXE_tqhost")).current_dir(&dir);
            let output = command.output().expect("run a shell");
            if !output.status.success() {
                let error = String::from_utf8_lossy(&output.stderr);
                refused.push(format!("{}: `tqhost {call}`: {error}", page.display()));
            }
            seen += 1;
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(seen > 50, "{seen} commands");
}

#[test]
fn the_makefiles_have_every_target_and_the_benchmark_every_section_of_the_pages() {
    let makefile = |path: &str| std::fs::read_to_string(root().join(path)).expect("a Makefile");
    let of_projects = ["go", "javascript", "python", "rust", "typescript"]
        .map(|it| makefile(&format!("host/templates/{it}/Makefile")));
    let (ours, sections) = (makefile("Makefile"), include_str!("../bench/main.rs"));
    let has =
        |makefile: &str, target: &str| makefile.lines().any(|line| line.starts_with(&format!("{target}:")));
    let mut seen = 0;
    for page in pages() {
        for call in calls(&std::fs::read_to_string(&page).expect("a page"), "make") {
            // The text says `name` for any of them.
            let section = call.split(' ').find_map(|word| word.strip_prefix("SECTION="));
            let is_there = section.is_none_or(|it| it == "name" || sections.contains(&format!("\"{it}\"")));
            assert!(is_there, "{}: `make {call}`: there is no such section", page.display());
            // Variables come last.
            let targets = call.split(' ').take_while(|word| !word.contains('='));
            for target in targets.filter(|word| !word.is_empty()) {
                let is_there = has(&ours, target) || of_projects.iter().any(|makefile| has(makefile, target));
                assert!(is_there, "{}: `make {call}`: there is no target {target}", page.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 20, "{seen} targets");
}
