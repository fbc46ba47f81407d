//! Follows every task through Redis's record of its writes.
//!
//! In: the append-only file. Out: for each task its deliveries, its ends, and every violation of these rules,
//! which are checked after each step:
//!
//! - From its XADD (or LPUSH) on, a task is in one place or has one end.
//! - An entry of one consumer is given to another one only after a whole lease without a heartbeat.
//! - A requeued dead letter may have a further end.
//! - An id that its producer sent twice is one task: all entries but one are dropped.
//!
//! A plain task begins without a script, so a delivery counts as a begin: an XCLAIM for a consumer that did
//! not have the entry. Redis writes one for each entry of XREADGROUP. An XCLAIM for the consumer that has the
//! entry is a heartbeat.
//!
//! Not here: how a task has to end (`judge`), the orders of operators (`orders`).

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use serde_json::Value;

use super::aof::transactions;
use super::{LEASE, LIST, QUEUES, rows};

/// A delivery. The attempt may have run or not. No attempt runs without a delivery.
#[derive(Debug, Clone)]
pub struct Begin {
    pub at_ms: u64,
    pub consumer: String,
    pub entry: String,
    /// When the consumer sent the last heartbeat.
    pub kept_ms: u64,
    /// When the consumer ceased to own the entry; none while it owns it.
    pub until_ms: Option<u64>,
    /// Without faults, each turn begins once.
    pub turn: Turn,
    /// When it had renewed the lease before that, the latest time first.
    kept_before_ms: [u64; 2],
    /// How often PROCESSING was written for this delivery.
    marks: u64,
}

/// A run that a host of a queue with turns began again under the same delivery, with a higher fence.
#[derive(Debug)]
pub struct Again {
    pub consumer: String,
    pub at_ms: u64,
    /// When the lease was renewed before.
    pub kept_ms: u64,
}

/// How often the task was requeued, its attempt, and deferrals so far.
pub type Turn = (usize, u64, u64);

#[derive(Debug)]
pub struct Track {
    pub queue: &'static str,
    /// The payload, which tells the handler what to do.
    pub told: Value,
    pub id: String,
    /// The number of places in which it is now.
    pub places: i64,
    /// When it was first in its stream or delayed.
    pub from_ms: u64,
    pub begins: Vec<Begin>,
    /// The runs that began again under the same delivery.
    pub again: Vec<Again>,
    /// How often PROCESSING was written.
    pub marks: u64,
    /// `COMPLETED`, `CANCELLED`, [`DUPLICATE`], or the reason of a dead letter.
    pub ends: Vec<String>,
    /// The reasons of the dead letters from which it was requeued.
    pub requeued: Vec<String>,
    /// When it ended for the last time.
    pub ended_ms: Option<u64>,
    /// When it was cancelled.
    pub cancelled_ms: u64,
    /// It was cancelled while it ran in a queue with turns, where it ends when its host settles it.
    is_marked: bool,
    /// When a host wrote that its entry was deleted.
    pub lost_ms: Vec<u64>,
    /// The id of the task that had its key.
    pub first: Option<String>,
    /// How often its producer sent it, without the entries that were dropped.
    copies: i64,
    pub dropped: u64,
    pub wrong: Vec<String>,
    /// Every write about it, for a task that is watched.
    pub lines: Vec<String>,
}

/// The end of a task whose key another task had.
pub const DUPLICATE: &str = "DUPLICATE";

/// A delivery while a queue was paused.
#[derive(Debug)]
pub struct Claim {
    pub queue: &'static str,
    pub consumer: String,
    pub paused_ms: u64,
    pub at_ms: u64,
}

/// A pause of a queue.
#[derive(Debug)]
pub struct Pause {
    pub queue: &'static str,
    pub from_ms: u64,
    /// None: it was not over at the end of the record.
    pub to_ms: Option<u64>,
}

#[derive(Default)]
pub struct History {
    pub tasks: HashMap<String, Track>,
    pub pauses: Vec<Pause>,
    pub while_paused: Vec<Claim>,
    /// The times at which tasks ended.
    pub ends_ms: Vec<u64>,
    watched: HashSet<String>,
    /// The tasks in the entries of the streams.
    entries: HashMap<(&'static str, String), Queued>,
    parked: HashMap<(&'static str, String), String>,
    letters: HashMap<(&'static str, String), String>,
    /// The queues that are paused, and their places in `pauses`.
    paused: HashMap<&'static str, usize>,
    /// The names of tasks by queue and id.
    ids: HashMap<(&'static str, String), String>,
    list: VecDeque<String>,
    /// The latest time in the file so far.
    now_ms: u64,
}

/// A task in a stream.
struct Queued {
    name: String,
    turn: Turn,
    /// Whether its delivery parks it until its producer's delay is over.
    is_delayed: bool,
    /// The consumer that owns it.
    owner: Option<String>,
}

/// The effects of one step on its tasks. A settlement is one step for many tasks.
#[derive(Default)]
struct Step {
    /// The tasks, each with the index of the command in the step.
    touched: Vec<(String, usize)>,
    at: usize,
    acked: HashSet<String>,
    buried: HashSet<String>,
    /// Tasks, each with an entry of it that was deleted.
    deleted: Vec<(String, String)>,
    /// Entries under which tasks have ended or were parked, so their deliveries were not dropped.
    settled: Vec<String>,
    /// Tasks, each with an entry that its consumer owns no more.
    released: Vec<(String, String)>,
    /// Whether it is a single command of a producer, not a script.
    is_single: bool,
    /// Entries that were delivered.
    claimed: HashSet<String>,
}

/// The meaning of a Redis key.
pub enum Key<'k> {
    Stream(&'static str),
    Dead(&'static str),
    Parked(&'static str),
    Status(&'static str, &'k str),
    Paused(&'static str),
    List,
    Other,
}

pub fn key(bytes: &[u8]) -> Key<'_> {
    let Ok(key) = std::str::from_utf8(bytes) else { return Key::Other };
    if key == LIST {
        return Key::List;
    }
    if let Some(queue) = QUEUES.iter().find(|queue| **queue == key) {
        return Key::Stream(queue);
    }
    let Some((queue, rest)) = key.strip_prefix("tq:{").and_then(|rest| rest.split_once("}:")) else {
        return Key::Other;
    };
    let Some(queue) = QUEUES.iter().find(|known| **known == queue) else { return Key::Other };
    match rest.split_once(':') {
        Some(("task", id)) => Key::Status(queue, id),
        None if rest == "dead" => Key::Dead(queue),
        None if rest == "parked" => Key::Parked(queue),
        None if rest == "paused" => Key::Paused(queue),
        _ => Key::Other,
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn value<'f>(fields: &[&'f [u8]], name: &str) -> Option<&'f [u8]> {
    fields.chunks(2).find(|pair| pair[0] == name.as_bytes()).and_then(|pair| pair.get(1).copied())
}

pub fn number(fields: &[&[u8]], name: &str) -> Option<u64> {
    value(fields, name).and_then(|value| std::str::from_utf8(value).ok()?.parse().ok())
}

/// Finds the payload, a JSON object that begins with the task's name, anywhere in these bytes.
pub fn told(bytes: &[u8]) -> Option<Value> {
    let from = bytes.windows(5).position(|window| window == b"{\"n\":")?;
    let length = bytes[from..].iter().position(|byte| *byte == b'}')?;
    serde_json::from_slice(&bytes[from..=from + length]).ok()
}

impl History {
    /// Reads the whole file. It keeps every write about the tasks whose names are in `watched`.
    pub fn read(file: &[u8], watched: HashSet<String>) -> History {
        let mut history = History { watched, ..History::default() };
        for step in transactions(file) {
            history.step(&step);
        }
        history
    }

    fn step(&mut self, commands: &[Vec<&[u8]>]) {
        let mut step = Step { is_single: commands.len() == 1, ..Step::default() };
        for (at, command) in commands.iter().enumerate().filter(|(_, command)| command.len() > 1) {
            step.at = at;
            self.command(command, &mut step);
        }
        // XACK has no time, but what the step writes after it may have one.
        for (name, entry) in std::mem::take(&mut step.released) {
            let last = self.tasks.get_mut(&name).and_then(|task| task.begins.last_mut());
            if let Some(last) = last.filter(|last| last.entry == entry) {
                last.until_ms = Some(self.now_ms);
            }
        }
        let mut by_name: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        std::mem::take(&mut step.touched)
            .into_iter()
            .for_each(|(name, at)| by_name.entry(name).or_default().push(at));
        for (name, mut places) in by_name {
            places.dedup();
            let shown = || shown(places.iter().map(|at| commands[*at].as_slice()));
            let Some(task) = self.tasks.get_mut(&name) else { continue };
            let at_once = task.places + task.ends.len() as i64;
            if at_once == task.copies - 1 && task.copies > 1 {
                (task.copies, task.dropped) = (task.copies - 1, task.dropped + 1);
                let is_dropped = |begin: &Begin| {
                    step.deleted.contains(&(name.clone(), begin.entry.clone()))
                        && !step.settled.contains(&begin.entry)
                };
                task.begins.retain(|begin| !is_dropped(begin));
            } else if at_once != task.copies && task.wrong.len() < 5 {
                let (places, ends) = (task.places, task.ends.join(", "));
                task.wrong.push(format!("in {places} places, with the ends [{ends}], after {}", shown()));
            }
            if self.watched.contains(&name) {
                task.lines.push(shown());
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
                    step.touch(name);
                }
            }
            Key::Stream(queue) if is(command, "XADD") => {
                let fields = &command[3..];
                let entry = text(command[2]);
                if let Some(name) = self.known(queue, value(fields, "data").and_then(told), step) {
                    let id = value(fields, "tq-id").map_or_else(|| entry.clone(), text);
                    self.move_by(&name, 1);
                    self.identify(queue, &name, id);
                    let task = self.tasks.get_mut(&name).expect("a known task");
                    task.look_at_payload(value(fields, "pad").map_or(0, <[u8]>::len));
                    if step.is_single
                        && task.told["again"] == true
                        && task.places + task.ends.len() as i64 > 1
                    {
                        task.copies += 1;
                    }
                    let lives = task.requeued.len() + usize::from(task.is_dead());
                    let turn = (
                        lives,
                        number(fields, "tq-attempt").unwrap_or(1),
                        number(fields, "tq-deferrals").unwrap_or(0),
                    );
                    let at_ms = time_of(&entry);
                    self.now_ms = self.now_ms.max(at_ms);
                    let is_delayed = number(fields, "tq-delay-ms").is_some_and(|delay| delay > 0);
                    self.entries
                        .insert((queue, entry), Queued { name: name.clone(), turn, is_delayed, owner: None });
                    let task = self.tasks.get_mut(&name).expect("a known task");
                    task.from_ms = if task.from_ms == 0 { at_ms } else { task.from_ms };
                }
            }
            Key::Stream(queue) if is(command, "XCLAIM") => self.claim(queue, command, step),
            Key::Stream(queue) if is(command, "XACK") => {
                for entry in &command[3..] {
                    if let Some(queued) = self.entries.get_mut(&(queue, text(entry))) {
                        queued.owner = None;
                        let task = self.tasks.get_mut(&queued.name).expect("a known task");
                        // A task that is put aside in the step that delivers it has not begun.
                        if step.claimed.contains(&text(entry)) {
                            task.begins.retain(|begin| begin.entry.as_bytes() != *entry);
                        }
                        step.released.push((queued.name.clone(), text(entry)));
                        step.acked.insert(queued.name.clone());
                        step.touched.push((queued.name.clone(), step.at));
                    }
                }
            }
            Key::Stream(queue) if is(command, "XDEL") => {
                for entry in &command[2..] {
                    if let Some(queued) = self.entries.remove(&(queue, text(entry))) {
                        self.move_by(&queued.name, -1);
                        step.deleted.push((queued.name.clone(), text(entry)));
                        step.touch(queued.name);
                    }
                }
            }
            Key::Parked(queue) if is(command, "HSET") => {
                let member = text(command[2]);
                if let Some(name) = self.known(queue, told(command[3]), step) {
                    let task = self.tasks.get_mut(&name).expect("a known task");
                    task.look_at_payload(command[3].len());
                    // The write has no time, so the time of the last write before it is used.
                    task.from_ms = if task.from_ms == 0 { self.now_ms } else { task.from_ms };
                    if let Some(id) = member.strip_prefix("new/") {
                        self.identify(queue, &name, id.to_owned());
                    }
                    step.settled.push(member.clone());
                    if self.parked.insert((queue, member), name.clone()).is_none() {
                        self.move_by(&name, 1);
                    }
                }
            }
            Key::Parked(queue) if is(command, "HDEL") => {
                for member in &command[2..] {
                    if let Some(name) = self.parked.remove(&(queue, text(member))) {
                        self.move_by(&name, -1);
                        step.touch(name);
                    }
                }
            }
            Key::Dead(queue) if is(command, "XADD") => {
                let fields = &command[3..];
                let Some(name) = self.known(queue, value(fields, "data").and_then(told), step) else {
                    return;
                };
                let reason = value(fields, "tq-reason").map(text).unwrap_or_default();
                let failed_ms = number(fields, "tq-failed-at");
                self.ends_ms.extend(failed_ms);
                self.letters.insert((queue, text(command[2])), name.clone());
                let task = self.tasks.get_mut(&name).expect("a known task");
                task.look_at_payload(value(fields, "pad").map_or(0, <[u8]>::len));
                task.ends.push(reason);
                task.ended_ms = failed_ms;
                step.buried.insert(name);
            }
            Key::Dead(queue) if is(command, "XDEL") => {
                for entry in &command[2..] {
                    let Some(name) = self.letters.remove(&(queue, text(entry))) else { continue };
                    let task = self.tasks.get_mut(&name).expect("a known task");
                    task.requeued.extend(task.ends.pop());
                    step.touch(name);
                }
            }
            Key::Paused(queue) if is(command, "SET") => {
                // A pause by hand is the time alone.
                let pause: Value = serde_json::from_slice(command[2]).unwrap_or_default();
                let from_ms = pause["since_ms"].as_u64().or(pause.as_u64()).unwrap_or_default();
                self.paused.insert(queue, self.pauses.len());
                self.pauses.push(Pause { queue, from_ms, to_ms: None });
            }
            Key::Paused(queue) => {
                if let Some(pause) = self.paused.remove(queue) {
                    let pause = &mut self.pauses[pause];
                    pause.to_ms = Some(self.now_ms.max(pause.from_ms));
                }
            }
            Key::Status(queue, id) if is(command, "HSET") => {
                let Some(name) = self.ids.get(&(queue, id.to_owned())).cloned() else { return };
                self.status(&name, queue, &command[2..], step);
                step.touch(name);
            }
            _ => {}
        }
    }

    /// `XCLAIM key group consumer 0 entry TIME ms …`: a delivery or a heartbeat.
    fn claim(&mut self, queue: &'static str, command: &[&[u8]], step: &mut Step) {
        let (consumer, entry) = (text(command[3]), text(command[5]));
        let at_ms = number(&command[6..], "TIME").unwrap_or_default();
        self.now_ms = self.now_ms.max(at_ms);
        let Some(queued) = self.entries.get_mut(&(queue, entry.clone())) else { return };
        let task = self.tasks.get_mut(&queued.name).expect("a known task");
        step.touched.push((queued.name.clone(), step.at));
        let before = queued.owner.replace(consumer.clone());
        if let Some(pause) = self.paused.get(queue).filter(|_| before.as_ref() != Some(&consumer)) {
            let paused_ms = self.pauses[*pause].from_ms;
            self.while_paused.push(Claim { queue, consumer: consumer.clone(), paused_ms, at_ms });
        }
        if queued.is_delayed {
            return;
        }
        let last = task.begins.last_mut().filter(|last| last.entry == entry);
        if before.as_ref() == Some(&consumer) {
            if let Some(last) = last {
                last.kept_before_ms = [last.kept_ms, last.kept_before_ms[0]];
                last.kept_ms = at_ms;
            }
            return;
        }
        if let (Some(last), Some(_)) = (last, before) {
            last.until_ms = Some(at_ms);
            let silent_ms = at_ms.saturating_sub(last.kept_ms);
            if silent_ms < LEASE.as_millis() as u64 {
                task.wrong.push(format!(
                    "taken from {} by {consumer}, {silent_ms} ms after it was kept",
                    last.consumer
                ));
            }
        }
        step.claimed.insert(entry.clone());
        task.begins.push(Begin {
            at_ms,
            consumer,
            entry,
            kept_ms: at_ms,
            until_ms: None,
            turn: queued.turn,
            kept_before_ms: [at_ms; 2],
            marks: 0,
        });
    }

    fn status(&mut self, name: &str, queue: &'static str, fields: &[&[u8]], step: &mut Step) {
        let Some(task) = self.tasks.get_mut(name) else { return };
        // The fence is written after PROCESSING, where it is higher than before. Queues without turns renew
        // no lease then, and their handlers are not stopped.
        let has_turns = rows::rules(queue).is_some();
        if let (Some(last), Some(_)) =
            (task.begins.last().filter(|last| has_turns && last.marks > 1), value(fields, "fence"))
        {
            let Begin { consumer, kept_ms, kept_before_ms: [before_ms, first_ms], .. } = last;
            // A host that was silent for a whole lease claims the entry from itself, and renews the lease
            // once more when it asks whether the task may run.
            let is_claimed_from_itself = before_ms.saturating_sub(*first_ms) >= LEASE.as_millis() as u64;
            let before_ms = if is_claimed_from_itself { *first_ms } else { *before_ms };
            task.again.push(Again { consumer: consumer.clone(), at_ms: *kept_ms, kept_ms: before_ms });
        }
        let Some(status) = value(fields, "status") else { return };
        match status {
            b"PROCESSING" => {
                let entry = value(fields, "entry").map(text).unwrap_or_default();
                let attempt = number(fields, "attempt").unwrap_or_default();
                let consumer = value(fields, "consumer").map(text);
                task.marks += 1;
                if let Some(last) = task.begins.last_mut().filter(|last| last.entry == entry) {
                    last.marks += 1;
                }
                if !task.ends.is_empty() {
                    task.wrong.push(format!("began after its end: attempt {attempt}"));
                }
                let queued = self.entries.get(&(queue, entry));
                if queued.is_none_or(|queued| {
                    queued.owner != consumer || queued.turn.1 != attempt || queued.is_delayed
                }) {
                    task.wrong.push(format!(
                        "PROCESSING, attempt {attempt}, by {}, which had no such delivery",
                        consumer.unwrap_or_default()
                    ));
                }
            }
            // It was only marked, by the step that wrote its end just before.
            b"CANCELLED" if value(fields, "cancel") == Some(b"1") => {
                task.is_marked = true;
                if task.ends.last().is_some_and(|end| end == "CANCELLED") {
                    task.ends.pop();
                }
            }
            b"COMPLETED" | b"CANCELLED" => {
                let at_ms = number(fields, "finished_at").unwrap_or_default();
                self.ends_ms.push(at_ms);
                task.ended_ms = Some(at_ms);
                step.settled.extend(value(fields, "entry").map(text));
                let first = value(fields, "duplicate_of").map(text);
                let end = if first.is_some() { DUPLICATE.to_owned() } else { text(status) };
                if end == "CANCELLED" {
                    task.cancelled_ms = if task.is_marked { task.cancelled_ms } else { at_ms };
                } else if !step.acked.contains(name) {
                    task.wrong.push(format!("{end} without an ack"));
                }
                // The deliveries of a duplicate's entry do not count among the runs of the task's other
                // entries.
                if first.is_some() && task.told["again"] == true {
                    let entry = value(fields, "entry").unwrap_or_default();
                    task.begins.retain(|begin| begin.entry.as_bytes() != entry);
                }
                let is_another = first.is_none() || task.first.is_none();
                task.ends.extend(is_another.then_some(end));
                task.first = first.or(task.first.take());
            }
            b"FAILED" if !step.buried.contains(name) => {
                task.lost_ms.push(number(fields, "finished_at").unwrap_or_default());
            }
            _ => {}
        }
    }

    /// The name of the task with this payload. A new task is added.
    fn known(&mut self, queue: &'static str, told: Option<Value>, step: &mut Step) -> Option<String> {
        let told = told?;
        let name = told["n"].as_str()?.to_owned();
        step.touch(name.clone());
        self.tasks.entry(name.clone()).or_insert_with(|| Track {
            queue,
            told,
            id: String::new(),
            places: 0,
            from_ms: 0,
            begins: Vec::new(),
            again: Vec::new(),
            marks: 0,
            ends: Vec::new(),
            requeued: Vec::new(),
            ended_ms: None,
            cancelled_ms: 0,
            is_marked: false,
            lost_ms: Vec::new(),
            first: None,
            copies: 1,
            dropped: 0,
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

impl Track {
    fn is_dead(&self) -> bool {
        self.ends.last().is_some_and(|end| !["COMPLETED", "CANCELLED", DUPLICATE].contains(&end.as_str()))
    }

    /// Checks that a write of the task's fields has its whole payload.
    fn look_at_payload(&mut self, bytes: usize) {
        let pad = self.told["pad"].as_u64().unwrap_or_default();
        if (bytes as u64) < pad {
            self.wrong.push(format!("has {bytes} bytes of its payload of {pad}"));
        }
    }
}

impl Step {
    fn touch(&mut self, name: String) {
        self.touched.push((name, self.at));
    }
}

/// The time in an entry's id.
pub fn time_of(entry: &str) -> u64 {
    entry.split('-').next().and_then(|ms| ms.parse().ok()).unwrap_or_default()
}

fn is(command: &[&[u8]], name: &str) -> bool {
    command[0].eq_ignore_ascii_case(name.as_bytes())
}

/// The commands as one line, truncated to 900 characters.
fn shown<'c>(commands: impl Iterator<Item = &'c [&'c [u8]]>) -> String {
    let word = |word: &&[u8]| text(word).chars().take(120).collect::<String>();
    let command = |command: &[&[u8]]| command.iter().map(word).collect::<Vec<_>>().join(" ");
    commands.map(command).collect::<Vec<_>>().join(" ; ").chars().take(900).collect()
}
