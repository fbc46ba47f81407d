//! Queues whose tasks wait for their turn, under the faults of the chaos test: one in a strict order, one
//! with `serial`, and one with `serial`, a limit and `max_running`.
//!
//! A *row* is what one turn is for: all tasks of the queue with a strict order, and those of one key in the
//! others. In: Redis's record of every write, and what handlers said in the logs. Out: what is wrong by these
//! rules:
//!
//! - **Never two owners.** Of a row, and of the queue, no more tasks are pending after any step than may run.
//!   A lease passes on only when it is over (`history`), and the one under which a run began again counts
//!   from that begin. A handler that says something has an owner that still owns the task.
//! - **First come, first served.** What begins is the oldest task of its row that has not ended, also after a
//!   retry. A requeued task joins the tail. Several tasks of a row at once have no order.
//! - **No row starves.** A row that could run has no more tasks of other rows in front of it than waited in
//!   the stream when its wait began. It is counted in deliveries, so pauses and slow machines do not matter.
//!
//! The record has nothing that Redis forgot, so only the logs may differ from it, and only near a loss. Not
//! here: how tasks have to end (`judge`).

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt::Write as _;
use std::path::Path;

use redis::Connection;
use serde_json::Value;

use super::LEASE;
use super::aof::transactions;
use super::faults::{Done, Loss};
use super::history::{Begin, History, Key, key, number, text, told, value};
use super::judge::{REMEMBERED_MS, log_files};
use super::orders::is_lost;
use super::plan::Fault;
use super::repeated::host;

/// A queue with turns.
pub struct Rules {
    pub queue: &'static str,
    /// Its options, in TOML.
    pub options: &'static str,
    /// How many tasks of one row may run.
    limit: usize,
    /// How many tasks of the queue may run.
    most: usize,
    /// How many rows its producer uses.
    pub rows: usize,
}

pub const RULES: [Rules; 3] = [
    Rules { queue: "strict", options: "max_running = 1\norder = \"strict\"\n", limit: 1, most: 1, rows: 1 },
    Rules { queue: "serial", options: "serial = { field = \"row\" }\n", limit: 1, most: usize::MAX, rows: 6 },
    Rules {
        queue: "shared",
        options: "serial = { field = \"row\", limit = 2 }\nmax_running = 5\n",
        limit: 2,
        most: 5,
        rows: 4,
    },
];

/// How much later than another one took over a handler may still speak. A host stops it before the lease
/// ends, and a busy machine may be late with that.
const BUSY_MS: u64 = 500;

/// The rules of a queue, if its tasks have turns.
pub fn rules(queue: &str) -> Option<&'static Rules> {
    RULES.iter().find(|rules| rules.queue == queue)
}

/// A queue and one of its rows.
type Name = (&'static str, String);

#[derive(Default)]
struct Row {
    /// The tasks that have not ended, in the order in which they joined.
    line: VecDeque<String>,
    wait: Option<Wait>,
}

/// The time in which a row could run a task and does not.
struct Wait {
    /// The task that is next.
    next: String,
    /// How many entries were in front of it.
    ahead: u64,
    /// How many tasks of other rows have begun since.
    passed: u64,
}

struct Task {
    row: Name,
    entries: BTreeSet<String>,
    parked: BTreeSet<String>,
}

#[derive(Default)]
struct Entry {
    task: String,
    owner: Option<String>,
    /// Its task was marked as PROCESSING before, or another consumer had it.
    is_known: bool,
    /// When the latest run that is no first one began.
    again_ms: Option<u64>,
}

/// The effects of one step.
#[derive(Default)]
struct Step {
    touched: BTreeSet<String>,
    /// Entries that were delivered for the first time, and not put aside at once.
    delivered: Vec<(&'static str, String)>,
    /// The task that was marked as PROCESSING last, by its entry, and since when it runs.
    marked: Option<((&'static str, String), u64)>,
}

/// The rows, as far as the record has been read.
#[derive(Default)]
pub struct Rows {
    tasks: HashMap<String, Task>,
    entries: BTreeMap<(&'static str, String), Entry>,
    /// The tasks of the members of the parked ones.
    members: HashMap<(&'static str, String), String>,
    rows: BTreeMap<Name, Row>,
    /// Each with the name of a task.
    pub wrong: Vec<(String, String)>,
    begun: u64,
    /// The most tasks that went before a row that waited.
    most_passed: u64,
}

impl Rows {
    pub fn read(file: &[u8]) -> Rows {
        let mut rows = Rows::default();
        for commands in transactions(file) {
            let mut step = Step::default();
            for command in commands.iter().filter(|command| command.len() > 2) {
                match key(command[1]) {
                    Key::Stream(queue) if rules(queue).is_some() => rows.stream(queue, command, &mut step),
                    Key::Parked(queue) if rules(queue).is_some() => rows.parked(queue, command, &mut step),
                    Key::Status(queue, _) if rules(queue).is_some() => rows.status(queue, command, &mut step),
                    _ => {}
                }
            }
            rows.look(step);
        }
        rows
    }

    fn stream(&mut self, queue: &'static str, command: &[&[u8]], step: &mut Step) {
        match command[0].to_ascii_uppercase().as_slice() {
            b"XADD" => {
                let (entry, fields) = (text(command[2]), &command[3..]);
                let Some(name) = self.known(queue, value(fields, "data").and_then(told), step) else {
                    return;
                };
                let task = self.tasks.get_mut(&name).expect("a known task");
                task.entries.insert(entry.clone());
                let line = &mut self.rows.entry(task.row.clone()).or_default().line;
                if !line.contains(&name) {
                    line.push_back(name.clone());
                }
                self.entries.insert((queue, entry), Entry { task: name, ..Entry::default() });
            }
            b"XCLAIM" => self.claim(queue, command, step),
            b"XACK" => {
                // An entry that was delivered in the same step is held, and has not begun.
                for entry in &command[3..] {
                    let at = (queue, text(entry));
                    step.delivered.retain(|delivered| *delivered != at);
                    if let Some(entry) = self.entries.get_mut(&at) {
                        entry.owner = None;
                        step.touched.insert(entry.task.clone());
                    }
                }
            }
            b"XDEL" => {
                for entry in &command[2..] {
                    let Some(gone) = self.entries.remove(&(queue, text(entry))) else { continue };
                    if let Some(task) = self.tasks.get_mut(&gone.task) {
                        task.entries.remove(&text(entry));
                    }
                    step.touched.insert(gone.task);
                }
            }
            _ => {}
        }
    }

    /// A delivery, a heartbeat or a takeover.
    fn claim(&mut self, queue: &'static str, command: &[&[u8]], step: &mut Step) {
        let (consumer, at) = (text(command[3]), (queue, text(command[5])));
        let at_ms = number(&command[6..], "TIME").unwrap_or_default();
        let Some(entry) = self.entries.get_mut(&at) else { return };
        step.touched.insert(entry.task.clone());
        let Some(before) = entry.owner.replace(consumer.clone()) else { return step.delivered.push(at) };
        if before == consumer {
            return;
        }
        entry.is_known = true;
        // A host counts its lease from the begin of the run, and stops the handler after nine tenths of it.
        let least_ms = LEASE.as_millis() as u64 * 9 / 10;
        if let Some(again_ms) = entry.again_ms.take().filter(|again_ms| at_ms < again_ms + least_ms) {
            let why = format!(
                "two owners: {before} began it again at {again_ms}, and {consumer} took it over at {at_ms}"
            );
            self.wrong.push((entry.task.clone(), why));
        }
    }

    fn parked(&mut self, queue: &'static str, command: &[&[u8]], step: &mut Step) {
        if command[0].eq_ignore_ascii_case(b"HSET") {
            let Some(name) = self.known(queue, told(command[3]), step) else { return };
            self.tasks.get_mut(&name).expect("a known task").parked.insert(text(command[2]));
            self.members.insert((queue, text(command[2])), name);
        } else if command[0].eq_ignore_ascii_case(b"HDEL") {
            for member in &command[2..] {
                let Some(name) = self.members.remove(&(queue, text(member))) else { continue };
                if let Some(task) = self.tasks.get_mut(&name) {
                    task.parked.remove(&text(member));
                }
                step.touched.insert(name);
            }
        }
    }

    /// A status, which may say that a run has begun, and with which fence. The fence is written after it, and
    /// only where it is higher than before.
    fn status(&mut self, queue: &'static str, command: &[&[u8]], step: &mut Step) {
        if !command[0].eq_ignore_ascii_case(b"HSET") {
            return;
        }
        let fields = &command[2..];
        if value(fields, "status") == Some(b"PROCESSING") {
            let at = (queue, value(fields, "entry").map(text).unwrap_or_default());
            self.has_begun(step);
            step.marked = number(fields, "started_at").map(|started_ms| (at, started_ms));
        }
        let is_fence = value(fields, "fence").is_some();
        if let Some((at, started_ms)) = step.marked.take_if(|_| is_fence)
            && let Some(entry) = self.entries.get_mut(&at)
        {
            entry.again_ms = entry.is_known.then_some(started_ms);
            entry.is_known = true;
        }
    }

    /// The name of the task with this payload, if it is in a row. A new task is added.
    fn known(&mut self, queue: &'static str, told: Option<Value>, step: &mut Step) -> Option<String> {
        let told = told?;
        let (name, row) = (told["n"].as_str()?.to_owned(), told["row"].as_str()?.to_owned());
        step.touched.insert(name.clone());
        self.tasks.entry(name.clone()).or_insert_with(|| Task {
            row: (queue, row),
            entries: BTreeSet::new(),
            parked: BTreeSet::new(),
        });
        Some(name)
    }

    /// The task that was marked last has begun.
    fn has_begun(&mut self, step: &mut Step) {
        if let Some((at, _)) = step.marked.take()
            && let Some(entry) = self.entries.get_mut(&at)
        {
            entry.is_known = true;
        }
    }

    /// Checks the rules after a step.
    fn look(&mut self, mut step: Step) {
        self.has_begun(&mut step);
        for at in &step.delivered {
            let Some(name) = self.entries.get(at).map(|entry| entry.task.clone()) else { continue };
            self.begin(&name);
        }
        let mut touched: BTreeSet<Name> = BTreeSet::new();
        for name in &step.touched {
            let Some(task) = self.tasks.get(name) else { continue };
            touched.insert(task.row.clone());
            if task.entries.is_empty() && task.parked.is_empty() {
                let row = self.rows.entry(task.row.clone()).or_default();
                row.line.retain(|waiting| waiting != name);
            }
        }
        for name in touched {
            self.count_owners(&name);
            self.look_at_wait(&name);
        }
    }

    /// A task was delivered, and begins.
    fn begin(&mut self, name: &str) {
        self.begun += 1;
        let (queue, row) = self.tasks[name].row.clone();
        let Some(rules) = rules(queue) else { return };
        for ((of, other), waiting) in &mut self.rows {
            let Some(wait) = waiting.wait.as_mut().filter(|_| *of == queue && *other != row) else {
                continue;
            };
            wait.passed += 1;
            self.most_passed = self.most_passed.max(wait.passed);
            if wait.passed == wait.ahead + 1 {
                let Wait { next, ahead, .. } = wait;
                let why =
                    format!("starves: {ahead} tasks were in front of it, and more of other rows have begun");
                self.wrong.push((next.clone(), why));
            }
        }
        let Row { line, wait } = self.rows.entry((queue, row)).or_default();
        *wait = None;
        if let Some(first) = line.front().filter(|first| rules.limit == 1 && *first != name) {
            let why = format!("out of order: it begins before {first}, which has not ended");
            self.wrong.push((name.to_owned(), why));
        }
    }

    fn is_owned(&self, queue: &'static str, name: &str) -> bool {
        let owned = |entry: &String| {
            self.entries.get(&(queue, entry.clone())).is_some_and(|entry| entry.owner.is_some())
        };
        self.tasks.get(name).is_some_and(|task| task.entries.iter().any(owned))
    }

    fn count_owners(&mut self, name: &Name) {
        let Some(rules) = rules(name.0) else { return };
        let owned = |row: &Row| row.line.iter().filter(|task| self.is_owned(name.0, task)).count();
        let of_row = self.rows.get(name).map_or(0, owned);
        let of_queue: usize =
            self.rows.iter().filter(|(of, _)| of.0 == name.0).map(|(_, row)| owned(row)).sum();
        if of_row > rules.limit || of_queue > rules.most {
            let last = self.rows[name].line.iter().rfind(|task| self.is_owned(name.0, task));
            let why =
                format!("two owners: {of_row} tasks of {} and {of_queue} of {} run at once", name.1, name.0);
            self.wrong.push((last.cloned().unwrap_or_default(), why));
        }
    }

    /// Notes from when on a row could run a task.
    fn look_at_wait(&mut self, name: &Name) {
        let Some(rules) = rules(name.0) else { return };
        let Some(row) = self.rows.get(name) else { return };
        // A task that waits for its retry keeps its turn. One that is held has no turn yet.
        let is_held = |task: &String| {
            self.tasks[task].parked.iter().all(|member| member.contains("/h/"))
                && !self.is_owned(name.0, task)
        };
        let (ready, busy): (Vec<&String>, Vec<&String>) = row.line.iter().partition(|task| is_held(task));
        let next = ready.first().filter(|_| busy.len() < rules.limit).map(|next| (*next).clone());
        let is_ahead = |(at, entry): &(&(&'static str, String), &Entry)| {
            at.0 == name.0 && entry.owner.is_none() && Some(&entry.task) != next.as_ref()
        };
        let ahead = self.entries.iter().filter(is_ahead).count();
        let Some(row) = self.rows.get_mut(name) else { return };
        row.wait = match (next, row.wait.take()) {
            (Some(next), Some(wait)) if wait.next == next => Some(wait),
            (Some(next), _) => Some(Wait { next, ahead: ahead as u64, passed: 0 }),
            (None, _) => None,
        };
    }

    pub fn tabulate(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "  turns: {} tasks in {} rows began {} times; at most {} went before a row that waited",
            self.tasks.len(),
            self.rows.len(),
            self.begun,
            self.most_passed
        );
    }
}

/// The tracks that queues have left behind.
pub fn left(db: &mut Connection) -> Vec<String> {
    let left = |rules: &Rules| {
        let keys = ["owners", "tracks"].map(|name| format!("tq:{{{}}}:{name}", rules.queue));
        let left: u64 = redis::cmd("EXISTS").arg(&keys).query(db).expect("EXISTS");
        (left > 0).then(|| format!("{}: tracks without tasks have left a key behind", rules.queue))
    };
    RULES.iter().filter_map(left).collect()
}

/// Handlers that said something while their hosts did not own the tasks.
pub fn spoke_without_owning(
    history: &History,
    logs: &Path,
    faults: &[Done],
    pids: &HashMap<u32, usize>,
    losses: &[Loss],
) -> Vec<(String, String)> {
    let names: HashMap<(&str, &str), &String> =
        history.tasks.iter().map(|(name, task)| ((task.queue, task.id.as_str()), name)).collect();
    let mut wrong = Vec::new();
    for path in log_files(logs) {
        let file = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let Some(of) = file.split('-').nth(1).and_then(|number| number.parse::<usize>().ok()) else {
            continue;
        };
        let bytes = std::fs::read(&path).expect("read a log");
        for line in String::from_utf8_lossy(&bytes).lines().filter(|line| line.contains("\"guest\"")) {
            // The last line of a killed host may be truncated.
            let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
            let (Some(queue), Some(id)) = (line["queue"].as_str(), line["task"].as_str()) else { continue };
            let time = line["timestamp"].as_str().and_then(|time| time.parse::<jiff::Timestamp>().ok());
            let (Some(time), Some(name)) = (time, names.get(&(queue, id)).filter(|_| rules(queue).is_some()))
            else {
                continue;
            };
            let at_ms = u64::try_from(time.as_millisecond()).unwrap_or_default();
            let begins = &history.tasks[*name].begins;
            let its = |begin: &&Begin| host(&begin.consumer, pids) == Some(of) && begin.at_ms <= at_ms + 1;
            let own = begins.iter().rev().find(its);
            let taken_ms = own.and_then(|own| {
                let taken = |begin: &&Begin| {
                    begin.entry == own.entry && begin.at_ms >= own.at_ms && begin.consumer != own.consumer
                };
                begins.iter().find(taken).map(|begin| begin.at_ms)
            });
            if own.is_some() && taken_ms.is_none_or(|taken_ms| at_ms <= taken_ms + BUSY_MS) {
                continue;
            }
            // A process that was stopped does not know how late it is, and Redis may have forgotten that the
            // host owns the task.
            let was_stopped = |done: &Done| {
                done.fault == Fault::HostStopped
                    && done.host == Some(of)
                    && (done.from_ms..=done.to_ms + 2 * BUSY_MS).contains(&at_ms)
            };
            let is_forgotten = is_lost((at_ms.saturating_sub(REMEMBERED_MS), at_ms), losses);
            if !is_forgotten && !faults.iter().any(was_stopped) {
                let said = &line["message"];
                let why = format!(
                    "two owners: host {of} runs it at {at_ms} (it says {said}), and does not own it: \
                     taken over at {taken_ms:?}"
                );
                wrong.push(((*name).clone(), why));
            }
        }
    }
    wrong
}
