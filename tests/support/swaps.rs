//! Replaces a plugin by good and bad versions in many ways, while a producer adds tasks without a pause. Then
//! it checks every task.
//!
//! In: a seed and how many swaps. Out: a [`Verdict`]: which tasks were lost, dead or charged. Not here: who
//! runs it (a short form is `tests/plugins/swaps.rs`, a long one `make bench SECTION=swaps`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;

use super::files::{guest, label, marked, put_at, said};
use super::{Bench, Host, Places, Producer, eventually};

/// A task has one attempt, so a task that is charged for a bad version is dead. The timeout is far more than
/// a good version needs; each version that loops makes its swap as long as that.
const QUEUE: &str = "[queues.work]\nplugin = \"p\"\nmax_retries = 0\nconcurrency = 20\ntimeout = \"3s\"\n";
/// The fields of each task, for the guest `as-told`. A task of 20 ms may begin on one version and end after
/// the next was loaded.
const FIELDS: &[(&str, &str)] = &[("data", r#"{"n": "a", "ms": 20, "retries": 0, "end": "ok"}"#)];
/// Only the lines that are read here, since there are tens of thousands of tasks.
const LOG: &str = "error,tqhost::app=info,tqhost::plugins=info";
const HOSTS: usize = 2;

/// A way to replace the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    // These end with a good new version.
    Renamed,
    WrittenOver,
    InPieces,
    HalfThenWhole,
    RemovedFirst,
    Linked,
    BadThenGoodAtOnce,
    TwoGoodAtOnce,
    // These end with a file that cannot be used.
    HalfRenamed,
    CutOff,
    Empty,
    Text,
    WrongWorld,
    NotOffered,
    SelfCheckFails,
    // These end with a version that fails on every task.
    Traps,
    TrapsAtStart,
    LoopsAtStart,
    Loops,
    Panics,
    WantsTooMuch,
}

const WAYS: [(Way, &str); 21] = [
    (Way::Renamed, "good: renamed into place"),
    (Way::WrittenOver, "good: written over the old one at once"),
    (Way::InPieces, "good: written over in pieces"),
    (Way::HalfThenWhole, "good: half of it refused, then whole"),
    (Way::RemovedFirst, "good: the old one removed first"),
    (Way::Linked, "good: a symbolic link"),
    (Way::BadThenGoodAtOnce, "good: in place of one that traps, at once"),
    (Way::TwoGoodAtOnce, "good: in place of another new one, at once"),
    (Way::HalfRenamed, "refused: half a file renamed into place"),
    (Way::CutOff, "refused: cut off where it lies"),
    (Way::Empty, "refused: emptied"),
    (Way::Text, "refused: a text"),
    (Way::WrongWorld, "refused: another interface"),
    (Way::NotOffered, "refused: wants files"),
    (Way::SelfCheckFails, "refused: fails its self-check"),
    (Way::Traps, "rolled back: passes its self-check, then traps"),
    (Way::TrapsAtStart, "rolled back: traps at instantiation"),
    (Way::LoopsAtStart, "rolled back: loops at instantiation"),
    (Way::Loops, "rolled back: loops in each task"),
    (Way::Panics, "rolled back: panics"),
    (Way::WantsTooMuch, "rolled back: wants too much memory"),
];

/// The result. Everything after the blank line has to be empty.
#[derive(Debug, Default)]
pub struct Verdict {
    pub swaps: BTreeMap<&'static str, usize>,
    pub tasks: usize,
    /// Versions that ran tasks to their end.
    pub versions: usize,
    pub rolled_back: u64,
    pub refused: u64,
    /// Attempts that failed by a bad version, and were not charged.
    pub given_back: u64,

    /// Tasks that Redis accepted, and that are neither completed nor dead.
    pub lost: Vec<String>,
    pub dead: u64,
    /// Tasks that completed on another attempt than the first, and retries that a host counted.
    pub charged: Vec<String>,
    /// Tasks that were completed by a bad version.
    pub elsewhere: Vec<String>,
    /// Tasks that are left in the queue at the end.
    pub left: Places,
}

impl Verdict {
    pub fn is_good(&self) -> bool {
        let Verdict { lost, dead, charged, elsewhere, left, .. } = self;
        lost.is_empty()
            && *dead == 0
            && charged.is_empty()
            && elsewhere.is_empty()
            && *left == Places::default()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (way, count) in &self.swaps {
            writeln!(f, "  {count:>4} × {way}")?;
        }
        let Verdict {
            tasks,
            versions,
            rolled_back,
            refused,
            given_back,
            lost,
            dead,
            charged,
            elsewhere,
            left,
            ..
        } = self;
        writeln!(
            f,
            "  {tasks} tasks, completed by {versions} versions; {refused} times refused, \
             {rolled_back} times rolled back, in {HOSTS} hosts"
        )?;
        writeln!(f, "  {given_back} attempts given back")?;
        let (lost, charged, elsewhere) = (some(lost), some(charged), some(elsewhere));
        write!(
            f,
            "  lost {lost}, dead {dead}, charged {charged}, completed by a bad version {elsewhere}, \
             left in the queue {}",
            left.length + left.delayed
        )
    }
}

/// How many names there are, and the first five.
fn some(names: &[String]) -> String {
    if names.is_empty() {
        "0".to_owned()
    } else {
        format!("{} ({})", names.len(), names[..names.len().min(5)].join(", "))
    }
}

/// A generator of numbers below its argument, the same for the same seed.
pub fn random(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).expect("small")
    }
}

/// Does this many swaps, and judges them.
pub fn run(seed: u64, count: usize) -> Verdict {
    let mut random = random(seed);
    let mut swaps = Swaps::start();
    let mut verdict = Verdict::default();
    let mut plan: Vec<usize> = Vec::new();
    for _ in 0..count {
        // Each way comes before any comes again.
        if plan.is_empty() {
            plan = (0..WAYS.len()).collect();
        }
        let (way, name) = WAYS[plan.swap_remove(random(plan.len()))];
        // One in four versions is replaced before the hosts have judged it.
        let waits = random(4) > 0;
        swaps.swap(way, waits, random(3));
        *verdict.swaps.entry(name).or_default() += 1;
    }
    swaps.judge(verdict)
}

struct Swaps {
    bench: Bench,
    hosts: Vec<Host>,
    producer: Producer,
    path: PathBuf,
    mark: u32,
    /// The names of all good versions.
    good: BTreeSet<String>,
}

impl Swaps {
    fn start() -> Swaps {
        let bench = Bench::new(QUEUE);
        let path = bench.plugin_path("p");
        let first = guest("as-told");
        put_at(&path, &first);
        let hosts: Vec<Host> = (0..HOSTS).map(|_| Host::start(&bench.config(), LOG)).collect();
        hosts.iter().for_each(|host| drop(host.log("tqhost is running")));
        let producer = Producer::start(&bench.redis.url(), FIELDS);
        producer.produce(20);
        Swaps { bench, hosts, producer, path, mark: 0, good: BTreeSet::from([label("p", &first)]) }
    }

    /// A new version of a guest.
    fn next(&mut self, guest: &str) -> Vec<u8> {
        self.mark += 1;
        marked(&super::files::guest(guest), self.mark)
    }

    fn next_good(&mut self, kind: usize) -> Vec<u8> {
        let bytes = self.next(["as-told", "echo", "echo-v2"][kind]);
        self.good.insert(label("p", &bytes));
        bytes
    }

    fn swap(&mut self, way: Way, waits: bool, kind: usize) {
        let (bytes, what) = match way {
            Way::Renamed
            | Way::WrittenOver
            | Way::InPieces
            | Way::HalfThenWhole
            | Way::RemovedFirst
            | Way::Linked
            | Way::BadThenGoodAtOnce
            | Way::TwoGoodAtOnce => (self.good_one(way, kind), "plugin loaded"),
            Way::HalfRenamed
            | Way::CutOff
            | Way::Empty
            | Way::Text
            | Way::WrongWorld
            | Way::NotOffered
            | Way::SelfCheckFails => (self.unusable_one(way), "plugin cannot be used"),
            Way::Traps
            | Way::TrapsAtStart
            | Way::LoopsAtStart
            | Way::Loops
            | Way::Panics
            | Way::WantsTooMuch => {
                let bytes = self.next(match way {
                    Way::Traps => "checks-then-traps",
                    Way::TrapsAtStart => "traps-at-start",
                    Way::LoopsAtStart => "loops-at-start",
                    Way::Loops => "loops",
                    Way::Panics => "panics",
                    _ => "hoards-at-once",
                });
                put_at(&self.path, &bytes);
                (bytes, "plugin version rolled back")
            }
        };
        if waits {
            self.hosts.iter().for_each(|host| drop(said(host, what, &bytes)));
        }
        self.producer.produce(10);
    }

    fn good_one(&mut self, way: Way, kind: usize) -> Vec<u8> {
        let other = if way == Way::TwoGoodAtOnce { self.next_good(kind) } else { self.next("panics") };
        let bytes = self.next_good(kind);
        let (half, rest) = bytes.split_at(bytes.len() / 2);
        match way {
            Way::WrittenOver => fs::write(&self.path, &bytes).expect("write a plugin"),
            Way::InPieces => {
                let mut file = self.emptied();
                for piece in bytes.chunks(bytes.len() / 5 + 1) {
                    self.producer.produce(5);
                    file.write_all(piece).expect("write a piece");
                }
            }
            Way::HalfThenWhole => {
                let mut file = self.emptied();
                file.write_all(half).expect("write a half");
                self.hosts.iter().for_each(|host| drop(said(host, "plugin cannot be used", half)));
                file.write_all(rest).expect("write the rest");
            }
            Way::RemovedFirst => {
                fs::remove_file(&self.path).expect("remove a plugin");
                self.producer.produce(100);
                put_at(&self.path, &bytes);
            }
            Way::Linked => {
                let target = self.bench.dir.path().join(format!("version-{}.wasm", self.mark));
                fs::write(&target, &bytes).expect("write a version");
                let link = self.path.with_extension("link");
                std::os::unix::fs::symlink(target, &link).expect("make a link");
                fs::rename(link, &self.path).expect("rename a link");
            }
            Way::BadThenGoodAtOnce | Way::TwoGoodAtOnce => {
                put_at(&self.path, &other);
                put_at(&self.path, &bytes);
            }
            _ => put_at(&self.path, &bytes),
        }
        bytes
    }

    fn unusable_one(&mut self, way: Way) -> Vec<u8> {
        let bytes = match way {
            Way::HalfRenamed => {
                let bytes = self.next("echo");
                bytes[..bytes.len() / 2].to_vec()
            }
            Way::CutOff => {
                // New content, since half of the present version may have been refused before.
                let bytes = self.next_good(0);
                put_at(&self.path, &bytes);
                self.producer.produce(5);
                bytes[..bytes.len() / 2].to_vec()
            }
            Way::Empty => Vec::new(),
            Way::Text => {
                self.mark += 1;
                format!("echo {}", self.mark).into_bytes()
            }
            Way::WrongWorld => self.next("wrong-world"),
            Way::NotOffered => self.next("wants-more"),
            _ => self.next("checks-itself"),
        };
        match way {
            Way::CutOff => {
                let file = OpenOptions::new().write(true).open(&self.path).expect("open a plugin");
                file.set_len(bytes.len() as u64).expect("cut off a plugin");
            }
            Way::Empty => drop(self.emptied()),
            _ => put_at(&self.path, &bytes),
        }
        bytes
    }

    fn emptied(&self) -> fs::File {
        OpenOptions::new().write(true).truncate(true).open(&self.path).expect("open a plugin")
    }

    /// Installs a good version, stops the producer, waits until the hosts have run the rest, and checks every
    /// task.
    fn judge(mut self, mut verdict: Verdict) -> Verdict {
        let last = self.next_good(0);
        put_at(&self.path, &last);
        self.hosts.iter().for_each(|host| drop(said(host, "plugin loaded", &last)));
        let ids = self.producer.stop();
        let bench = &mut self.bench;
        // The loop ends when nothing is left, and fails when the hosts make no progress.
        let mut fewest = u64::MAX;
        while fewest > 0 {
            let left = |places: Places| places.length + places.delayed;
            let now = eventually("tasks are done, or none is left", || {
                let now = left(bench.places("work"));
                (now == 0 || now < fewest).then_some(now)
            });
            fewest = now;
        }
        verdict.left = Places { dead: 0, ..bench.places("work") };
        verdict.dead = bench.places("work").dead;
        verdict.tasks = ids.len();
        let mut versions = BTreeSet::new();
        for ids in ids.chunks(500) {
            let mut pipe = redis::pipe();
            for id in ids {
                pipe.cmd("HMGET").arg(format!("tq:{{work}}:task:{id}")).arg(&["status", "attempt", "plugin"]);
            }
            let found: Vec<(Option<String>, Option<String>, Option<String>)> =
                pipe.query(&mut bench.db).expect("HMGET");
            for (id, (status, attempt, plugin)) in ids.iter().zip(found) {
                let (status, plugin) = (status.unwrap_or_default(), plugin.unwrap_or_default());
                match status.as_str() {
                    "COMPLETED" => {}
                    // Dead letters are counted above.
                    "FAILED" => continue,
                    _ => verdict.lost.push(format!("{id} is {status:?}")),
                }
                if attempt.as_deref() != Some("1") {
                    verdict.charged.push(format!("{id} with attempt {attempt:?}"));
                }
                if !self.good.contains(&plugin) {
                    verdict.elsewhere.push(format!("{id} on {plugin}"));
                }
                versions.insert(plugin);
            }
        }
        verdict.versions = versions.len();
        for (number, host) in self.hosts.iter().enumerate() {
            for outcome in ["retried", "retries-exhausted"] {
                let ended = host.ended_as("work", outcome);
                if ended > 0 {
                    verdict.charged.push(format!("{ended} {outcome} in host {number}"));
                }
            }
            let reloads = |result: &str| {
                host.metric(&format!("tqhost_plugin_reloads_total{{plugin=\"p\",result=\"{result}\"}}"))
                    as u64
            };
            verdict.given_back += host.ended_as("work", "given-back");
            verdict.rolled_back += reloads("rolled-back");
            verdict.refused += reloads("failed");
        }
        Host::stop_all(self.hosts);
        verdict
    }
}
