//! An incident by the command line alone: a queue backs up, since the newest version of its handler fails.
//!
//! In: the commands of docs/incidents.md, as they stand there. Out: each of them shows what the page says,
//! and the queue is as it was. Not here: the same by clicks (`browser` of the tests in `tests/world`).

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::pages::{Shell, blocks};
use crate::support::files::{digest, guest, label, put, row as row_of};
use crate::support::{Bench, Web, eventually};

const PAGE: &str = include_str!("../../docs/incidents.md");
/// The version on the page.
const VERSION: &str = "49c1d7ac9af1";
/// Tasks that fail, and tasks that get no answer or wait behind those.
const FAILED: usize = 40;
const WAITING: usize = 25;

/// The commands of the page.
fn commands(version: &str) -> Vec<String> {
    let section = PAGE.split("\n## ").find(|part| part.starts_with("An incident by the command line\n"));
    let blocks = blocks(section.expect("the section"));
    let lines = blocks.iter().flat_map(|(_, text)| text.lines());
    lines.map(|line| line.split("   ").next().unwrap_or(line).replace(VERSION, version)).collect()
}

/// The words of the line that begins with `first`.
#[track_caller]
fn row<'t>(text: &'t str, first: &str) -> Vec<&'t str> {
    let mut rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found = rows.find(|words| words.first() == Some(&first));
    found.unwrap_or_else(|| panic!("no line of {first} in:\n{text}"))
}

#[test]
fn an_incident_is_found_and_repaired_by_commands() {
    let (web, good, bad) = (Web::start(), guest("echo"), guest("asks-a-service"));
    let queues = format!(
        "[queues.mail]\nconcurrency = 2\nmax_retries = 0\n[queues.reports]\n[plugins.mail]\n\
         allowed_hosts = [\"{}\"]\n",
        web.origin()
    );
    let mut bench = Bench::new(&queues);
    put(&bench, "mail", &good);
    put(&bench, "reports", &good);
    let host = bench.host();
    let id = bench.xadd("mail", &[("to", "user0@example.com")]);
    bench.until("mail", &id, "COMPLETED");
    // The newest version asks a service, which refuses most requests and never answers others.
    put(&bench, "mail", &bad);
    eventually("the host tells of it", || {
        row_of(&bench, "mail").filter(|row| row["version"] == digest(&bad)).map(drop)
    });
    for _ in 0..FAILED {
        bench.xadd("mail", &[("url", &format!("{}/down", web.origin()))]);
    }
    host.until_ended_as("mail", "retries-exhausted", FAILED as u64);
    for _ in 0..WAITING {
        bench.xadd("mail", &[("url", &web.held())]);
    }
    bench.until_running("mail", 2);

    let (version, begin) = (label("mail", &bad), Instant::now());
    let steps = commands(&version["mail@".len()..]);
    let [queues, causes, withdraw, look, requeue, watch] = &steps[..] else {
        panic!("the page has {} commands", steps.len());
    };
    assert!(PAGE.contains("in six commands"), "the page says how many");
    let shell = Shell::new(&bench);
    let shows = |line: &str| shell.ran(line).ok().stdout;
    // A queue backs up, and has dead letters.
    let seen = shows(queues);
    let (head, mail) = (row(&seen, "QUEUE"), row(&seen, "mail"));
    let under = |name: &str| mail[head.iter().position(|known| *known == name).expect("a column")];
    let counts = [under("QUEUED"), under("RUNNING"), under("DEAD")];
    assert_eq!(counts, [&(WAITING - 2).to_string(), "2", &FAILED.to_string()], "{seen}");
    // All of them are of one version.
    let found = shows(causes);
    assert!(found.contains(&format!("{FAILED} of {FAILED} ")), "{found}");
    assert!(row(&found, &version).contains(&&*FAILED.to_string()), "{found}");
    let starts = shows(withdraw);
    assert!(starts.contains("starts on 1 host"), "{starts}");
    // The page says to repeat it until the version before is there.
    let before = &label("mail", &good)["mail@".len()..];
    eventually("the good version is back", || row(&shows(look), "mail").contains(&before).then_some(()));
    let requeued = shows(requeue);
    assert!(requeued.contains(&format!("{FAILED} ")) && requeued.contains(" requeued"), "{requeued}");
    // Attempts of the bad version still wait for the service.
    web.open_held();
    let mut watching = shell.command(&format!("exec {watch}")).stdout(Stdio::piped()).spawn().expect("run");
    let mut lines = BufReader::new(watching.stdout.take().expect("stdout")).lines().map_while(Result::ok);
    let mut places = BTreeMap::new();
    let is_drained = lines.by_ref().take(10_000).any(|line| {
        let mut words = line.split_whitespace();
        if let (Some(place), Some(count), None) = (words.next(), words.next(), words.next()) {
            places.insert(place.to_owned(), count.to_owned());
        }
        // The dead ones are the last line of the four.
        line.starts_with("dead ")
            && ["queued", "running", "delayed", "dead"].iter().all(|place| places[*place] == "0")
    });
    assert!(is_drained, "{places:?}");
    kill(Pid::from_raw(watching.id().try_into().expect("a pid")), Signal::SIGINT).expect("SIGINT");
    assert_eq!(watching.wait().expect("wait").code(), Some(0), "Ctrl-C is how it ends");
    eprintln!("the incident took {} commands and {:.1?}", steps.len(), begin.elapsed());
    host.stop();
}
