//! What became of every task, told by Redis's own record of its writes.
//!
//! In: the append-only file. Out: for each task its deliveries, its ends, and whatever was not as it has to be after each single step:
//! from its XADD (or LPUSH) on a task is in one place or has one end.
//!
//! Not here: how a task had to end (`judge`).

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::Value;

use super::aof::transactions;
use super::{LIST, QUEUES};

/// A delivery that began: PROCESSING was written. The attempt may have run or not; none runs without.
#[derive(Debug, Clone)]
pub struct Begin {
    pub at_ms: u64,
    pub consumer: String,
    pub entry: String,
    /// Attempt and deferrals so far: without faults each pair begins once.
    pub turn: Turn,
}

type Turn = (u64, u64);

#[derive(Debug)]
pub struct Track {
    pub queue: &'static str,
    /// What the handler was told.
    pub told: Value,
    pub id: String,
    /// Places in which it is now.
    pub places: i64,
    /// When it was first seen in its stream or in what is delayed.
    pub from_ms: u64,
    pub begins: Vec<Begin>,
    /// `COMPLETED`, `CANCELLED`, or the reason of a dead letter.
    pub ends: Vec<String>,
    pub wrong: Vec<String>,
    /// Everything that was written about it, for the tasks that are watched.
    pub lines: Vec<String>,
}

#[derive(Default)]
pub struct History {
    pub tasks: HashMap<String, Track>,
    /// When tasks ended.
    pub ends_ms: Vec<u64>,
    watched: HashSet<String>,
    /// The task in an entry of a stream, and which turn that is.
    entries: HashMap<(&'static str, String), (String, Turn)>,
    parked: HashMap<(&'static str, String), String>,
    /// By queue and id.
    ids: HashMap<(&'static str, String), String>,
    list: VecDeque<String>,
}

/// What one step did to the tasks that it names.
#[derive(Default)]
struct Step {
    touched: Vec<String>,
    acked: bool,
    buried: bool,
}

/// What a key is to tqhost.
enum Key<'k> {
    Stream(&'static str),
    Dead(&'static str),
    Parked(&'static str),
    Status(&'static str, &'k str),
    List,
    Other,
}

fn key(bytes: &[u8]) -> Key<'_> {
    let Ok(key) = std::str::from_utf8(bytes) else { return Key::Other };
    if key == LIST {
        return Key::List;
    }
    if let Some(queue) = QUEUES.iter().find(|queue| **queue == key) {
        return Key::Stream(queue);
    }
    let Some((queue, rest)) = key.strip_prefix("tq:{").and_then(|rest| rest.split_once("}:")) else { return Key::Other };
    let Some(queue) = QUEUES.iter().find(|known| **known == queue) else { return Key::Other };
    match rest.split_once(':') {
        Some(("task", id)) => Key::Status(queue, id),
        None if rest == "dead" => Key::Dead(queue),
        None if rest == "parked" => Key::Parked(queue),
        _ => Key::Other,
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn value<'f>(fields: &[&'f [u8]], name: &str) -> Option<&'f [u8]> {
    fields.chunks(2).find(|pair| pair[0] == name.as_bytes()).and_then(|pair| pair.get(1).copied())
}

fn number(fields: &[&[u8]], name: &str) -> Option<u64> {
    value(fields, name).and_then(|value| std::str::from_utf8(value).ok()?.parse().ok())
}

/// The object that starts with the task's name, wherever it is in these bytes.
fn told(bytes: &[u8]) -> Option<Value> {
    let from = bytes.windows(5).position(|window| window == b"{\"n\":")?;
    let length = bytes[from..].iter().position(|byte| *byte == b'}')?;
    serde_json::from_slice(&bytes[from..=from + length]).ok()
}

impl History {
    /// Reads the whole file. `watched` are the names of tasks of which every write is kept.
    pub fn read(file: &[u8], watched: HashSet<String>) -> History {
        let mut history = History { watched, ..History::default() };
        for step in transactions(file) {
            history.step(&step);
        }
        history
    }

    fn step(&mut self, commands: &[Vec<&[u8]>]) {
        let mut step = Step {
            touched: Vec::new(),
            acked: commands.iter().any(|command| command[0].eq_ignore_ascii_case(b"XACK")),
            buried: commands.iter().any(|command| command.len() > 1 && matches!(key(command[1]), Key::Dead(_)) && is(command, "XADD")),
        };
        for command in commands.iter().filter(|command| command.len() > 1) {
            self.command(command, &mut step);
        }
        step.touched.sort();
        step.touched.dedup();
        for name in &step.touched {
            let Some(task) = self.tasks.get_mut(name) else { continue };
            let at_once = task.places + task.ends.len() as i64;
            if at_once != 1 && task.wrong.len() < 5 {
                let (places, ends) = (task.places, task.ends.join(", "));
                task.wrong.push(format!("in {places} places, with the ends [{ends}], after {}", shown(commands)));
            }
            if self.watched.contains(name) {
                task.lines.push(shown(commands));
            }
        }
    }

    fn command(&mut self, command: &[&[u8]], step: &mut Step) {
        match key(command[1]) {
            Key::List if is(command, "LPUSH") => {
                for item in &command[2..] {
                    if let Some(name) = self.known("listed", told(item), step) {
                        self.move_by(&name, 1);
                        self.list.push_front(name);
                    }
                }
            }
            Key::List if is(command, "RPOP") => {
                if let Some(name) = self.list.pop_back() {
                    self.move_by(&name, -1);
                    step.touched.push(name);
                }
            }
            Key::Stream(queue) if is(command, "XADD") => {
                let fields = &command[3..];
                let entry = text(command[2]);
                if let Some(name) = self.known(queue, value(fields, "data").and_then(told), step) {
                    let id = value(fields, "tq-id").map_or_else(|| entry.clone(), text);
                    self.move_by(&name, 1);
                    self.identify(queue, &name, id);
                    let turn = (number(fields, "tq-attempt").unwrap_or(1), number(fields, "tq-deferrals").unwrap_or(0));
                    let at_ms = entry.split('-').next().and_then(|ms| ms.parse().ok()).unwrap_or_default();
                    self.entries.insert((queue, entry), (name.clone(), turn));
                    let task = self.tasks.get_mut(&name).expect("a known task");
                    task.from_ms = if task.from_ms == 0 { at_ms } else { task.from_ms };
                }
            }
            Key::Stream(queue) if is(command, "XDEL") => {
                for entry in &command[2..] {
                    if let Some((name, _)) = self.entries.remove(&(queue, text(entry))) {
                        self.move_by(&name, -1);
                        step.touched.push(name);
                    }
                }
            }
            Key::Parked(queue) if is(command, "HSET") => {
                let member = text(command[2]);
                if let Some(name) = self.known(queue, told(command[3]), step) {
                    if let Some(id) = member.strip_prefix("new/") {
                        self.identify(queue, &name, id.to_owned());
                    }
                    if self.parked.insert((queue, member), name.clone()).is_none() {
                        self.move_by(&name, 1);
                    }
                }
            }
            Key::Parked(queue) if is(command, "HDEL") => {
                for member in &command[2..] {
                    if let Some(name) = self.parked.remove(&(queue, text(member))) {
                        self.move_by(&name, -1);
                        step.touched.push(name);
                    }
                }
            }
            Key::Dead(queue) if is(command, "XADD") => {
                let fields = &command[3..];
                let Some(name) = self.known(queue, value(fields, "data").and_then(told), step) else { return };
                let reason = value(fields, "tq-reason").map(text).unwrap_or_default();
                self.ends_ms.extend(number(fields, "tq-failed-at"));
                let task = self.tasks.get_mut(&name).expect("a known task");
                task.ends.push(reason);
            }
            Key::Status(queue, id) if is(command, "HSET") => {
                let Some(name) = self.ids.get(&(queue, id.to_owned())).cloned() else { return };
                self.status(&name, queue, &command[2..], step);
                step.touched.push(name);
            }
            _ => {}
        }
    }

    fn status(&mut self, name: &str, queue: &'static str, fields: &[&[u8]], step: &Step) {
        let Some(status) = value(fields, "status") else { return };
        let Some(task) = self.tasks.get_mut(name) else { return };
        match status {
            b"PROCESSING" => {
                let entry = value(fields, "entry").map(text).unwrap_or_default();
                let attempt = number(fields, "attempt").unwrap_or_default();
                let deferrals = self.entries.get(&(queue, entry.clone())).map_or(0, |(_, turn)| turn.1);
                if !task.ends.is_empty() {
                    task.wrong.push(format!("began after its end: attempt {attempt}"));
                }
                task.begins.push(Begin {
                    at_ms: number(fields, "started_at").unwrap_or_default(),
                    consumer: value(fields, "consumer").map(text).unwrap_or_default(),
                    entry,
                    turn: (attempt, deferrals),
                });
            }
            b"COMPLETED" | b"CANCELLED" => {
                if !step.acked {
                    task.wrong.push(format!("{} without an ack", text(status)));
                }
                task.ends.push(text(status));
                self.ends_ms.extend(number(fields, "finished_at"));
            }
            b"FAILED" if !step.buried => task.wrong.push("FAILED without a dead letter: lost".to_owned()),
            _ => {}
        }
    }

    /// The name of the task that was told this; noted when it is new.
    fn known(&mut self, queue: &'static str, told: Option<Value>, step: &mut Step) -> Option<String> {
        let told = told?;
        let name = told["n"].as_str()?.to_owned();
        step.touched.push(name.clone());
        self.tasks.entry(name.clone()).or_insert_with(|| Track {
            queue,
            told,
            id: String::new(),
            places: 0,
            from_ms: 0,
            begins: Vec::new(),
            ends: Vec::new(),
            wrong: Vec::new(),
            lines: Vec::new(),
        });
        Some(name)
    }

    fn identify(&mut self, queue: &'static str, name: &str, id: String) {
        let task = self.tasks.get_mut(name).expect("a known task");
        if task.id.is_empty() {
            task.id = id.clone();
            self.ids.insert((queue, id), name.to_owned());
        } else if task.id != id {
            task.wrong.push(format!("has the ids {} and {id}", task.id));
        }
    }

    fn move_by(&mut self, name: &str, places: i64) {
        if let Some(task) = self.tasks.get_mut(name) {
            task.places += places;
        }
    }
}

fn is(command: &[&[u8]], name: &str) -> bool {
    command[0].eq_ignore_ascii_case(name.as_bytes())
}

/// The commands of a step in one line.
fn shown(commands: &[Vec<&[u8]>]) -> String {
    let word = |word: &&[u8]| text(word).chars().take(120).collect::<String>();
    let command = |command: &Vec<&[u8]>| command.iter().map(word).collect::<Vec<_>>().join(" ");
    commands.iter().map(command).collect::<Vec<_>>().join(" ; ").chars().take(900).collect()
}
