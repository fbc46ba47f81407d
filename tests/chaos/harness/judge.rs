//! Judges whether every task came to its one end, and collects evidence.
//!
//! In: Redis after the run, its record of every write, the replies that producers and operators got, the
//! faults, the hosts' logs. Out: a [`Verdict`]. The payload of each task says how it has to end. Conservation
//! and commits are judged by Redis's record, which no host writes; the statuses that clients see are compared
//! with it. Not here: reading the record (`history`), repeated runs (`repeated`), orders (`orders`).

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::path::Path;

use redis::Connection;
use serde_json::Value;

use super::faults::{Done, Loss};
use super::history::{DUPLICATE, History, Track, Turn};
use super::load::Sent;
use super::orders::{is_lost, is_requeue_lost, of_queues, of_task};
use super::repeated::Repeated;
use super::rows::{self, Rows};
use super::{LIST, MAX_RETRIES, QUEUES, TOGETHER};

/// The most guilty tasks whose whole history is shown.
const SHOWN: usize = 20;

/// How long a host may still know of something that Redis forgot.
pub const REMEMBERED_MS: u64 = 30_000;

/// The result of a run.
pub struct Verdict {
    /// Names of tasks that were accepted and are in no place.
    pub lost: Vec<String>,
    /// Names of tasks that have not ended.
    pub stuck: Vec<String>,
    /// Names of tasks with more than one end.
    pub twice: Vec<String>,
    /// Everything else that is wrong, a line each.
    pub wrong: Vec<String>,
    pub table: String,
    /// The guilty tasks, with every write about them and every line of the logs that names them.
    pub evidence: String,
}

impl Verdict {
    pub fn is_good(&self) -> bool {
        self.lost.is_empty() && self.stuck.is_empty() && self.twice.is_empty() && self.wrong.is_empty()
    }
}

/// The input of the judge.
pub struct Case<'c> {
    pub db: &'c mut Connection,
    pub append_only_file: &'c Path,
    pub logs: &'c Path,
    pub sent: &'c Sent,
    pub faults: &'c [Done],
    /// The host of each process id.
    pub pids: &'c HashMap<u32, usize>,
    /// Errors that were found before.
    pub wrong: Vec<String>,
}

/// The time from a task's first place until it has ended and its last host no longer holds it.
fn life(task: &Track) -> (u64, u64) {
    let held_until_ms = task.begins.last().map_or(Some(0), |begin| begin.until_ms);
    let ended = task.ended_ms.zip(held_until_ms).map(|(ended_ms, until_ms)| ended_ms.max(until_ms));
    (task.from_ms, ended.unwrap_or(u64::MAX))
}

pub fn judge(case: Case) -> Verdict {
    let file = std::fs::read(case.append_only_file).expect("read the append-only file");
    let history = History::read(&file, HashSet::new());
    let mut rows = Rows::read(&file);
    let losses: Vec<Loss> = case.faults.iter().filter_map(|done| done.loss).collect();
    let unowned = rows::spoke_without_owning(&history, case.logs, case.faults, case.pids, &losses);
    rows.wrong.extend(unowned);
    let (mut lost, mut stuck, mut twice) = (Vec::new(), Vec::new(), Vec::new());
    // Each with the task's name, if it is about a task.
    let mut wrong: Vec<(Option<&str>, String)> = case.wrong.into_iter().map(|why| (None, why)).collect();
    wrong.extend(places_left(case.db).into_iter().map(|why| (None, why)));
    let (forgotten, missing): (Vec<_>, Vec<_>) = case
        .sent
        .accepted
        .iter()
        .filter(|(name, _)| !history.tasks.contains_key(*name))
        .partition(|(_, asked)| is_lost(**asked, &losses));
    lost.extend(missing.into_iter().map(|(name, _)| name.clone()));
    wrong.extend(
        of_queues(&history, case.sent, &losses, case.faults, case.pids).into_iter().map(|why| (None, why)),
    );
    let statuses = statuses(case.db, &history);
    let runs = runs(case.logs);
    let mut repeated = Repeated::new(case.faults, case.pids, &history.pauses);
    let mut keys: HashMap<&str, Vec<&Track>> = HashMap::new();
    for (name, task) in &history.tasks {
        match (task.ends.len(), task.places) {
            (0, 0) => lost.push(name.clone()),
            (0, _) => stuck.push(name.clone()),
            (1, _) => {}
            _ => twice.push(name.clone()),
        }
        let status = statuses.get(name.as_str());
        let problems = task.wrong.iter().cloned().chain(as_told(task, status, is_lost(life(task), &losses)));
        wrong.extend(problems.map(|why| (Some(name.as_str()), why)));
        wrong.extend(repeated.add(name, task).into_iter().map(|why| (Some(name.as_str()), why)));
        wrong.extend(
            of_task(name, task, case.sent, &losses).into_iter().map(|why| (Some(name.as_str()), why)),
        );
        let seen = runs.get(&(task.queue.to_owned(), task.id.clone())).copied().unwrap_or_default();
        // Redis may have forgotten deliveries of the task, or that it was requeued. A host may also know an
        // entry that Redis forgot, if the task has another one: it was sent twice, or Redis forgot the step
        // that gave the task its next entry.
        let has_more_entries = task.told["again"] == true
            || task.told["delay"].is_u64()
            // Commands enqueue with a delay.
            || name.starts_with("command-")
            || task.told["end"] == "defer"
            || task.told["row"].is_string()
            || task.told["retries"].as_u64() > Some(0)
            || !task.requeued.is_empty();
        let knows_more =
            |at_ms: u64| has_more_entries && is_lost((at_ms.saturating_sub(REMEMBERED_MS), at_ms), &losses);
        let is_forgotten = is_lost(life(task), &losses)
            || is_requeue_lost(name, case.sent, &losses)
            || knows_more(task.from_ms);
        if !task.lost_ms.iter().all(|at_ms| knows_more(*at_ms)) {
            wrong.push((Some(name), "FAILED without a dead letter: lost".to_owned()));
        }
        if seen > (task.begins.len() + task.again.len()) as u64 && !is_forgotten {
            wrong.push((
                Some(name),
                format!(
                    "ran {seen} times, was delivered {} times, and began again {} times",
                    task.begins.len(),
                    task.again.len()
                ),
            ));
        }
        if seen > 0 && task.ends == [DUPLICATE] && !is_forgotten {
            wrong.push((Some(name), format!("ran {seen} times, and is a duplicate")));
        }
        let unexplained = task.again.iter().filter(|again| !repeated.explains_again(again));
        wrong.extend(unexplained.map(|again| {
            (Some(name.as_str()), format!("began again at {}, and no fault explains it", again.at_ms))
        }));
        if let Some(key) = task.told["key"].as_str() {
            keys.entry(key).or_default().push(task);
        }
    }
    for (key, tasks) in &keys {
        let ended_as = |end: &str| tasks.iter().filter(|task| task.ends == [end]).count();
        let run = tasks.len() - ended_as("CANCELLED") - ended_as(DUPLICATE);
        // A Redis that forgot the owner of the key gives it to the next task, while the first one still runs.
        if run > 1 && tasks.iter().any(|task| is_lost(life(task), &losses)) {
            continue;
        }
        // A cancelled task may have had the key before, or not.
        if run != 1 && (run > 1 || ended_as("CANCELLED") == 0) {
            wrong.push((
                None,
                format!("of the {} tasks with the key {key}, {run} were run, not one", tasks.len()),
            ));
        }
        let named: HashSet<&str> = tasks.iter().filter_map(|task| task.first.as_deref()).collect();
        let is_first = |task: &&&Track| named.contains(task.id.as_str()) && task.ends != [DUPLICATE];
        if named.len() > 1 || tasks.iter().filter(is_first).count() != named.len() {
            wrong.push((None, format!("duplicates of the key {key} are said to be those of {named:?}")));
        }
    }
    wrong.extend(rows.wrong.iter().map(|(name, why)| (Some(name.as_str()), why.clone())));
    wrong.extend(rows::left(case.db).into_iter().map(|why| (None, why)));
    let batched = batched(&statuses);
    if batched.alone > 100 && batched.together == 0 {
        wrong.push((None, format!("none of {} tasks of `{TOGETHER}` came with another", batched.alone)));
    }
    wrong.extend(repeated.beyond_what_was_in_flight().into_iter().map(|why| (None, why)));
    let mut table = String::new();
    let _ = tabulate(&mut table, &history, case.sent, &repeated, runs.values().sum());
    rows.tabulate(&mut table);
    let _ = writeln!(table, "  forgotten by Redis, as it may: {} tasks that were accepted", forgotten.len());
    let _ = writeln!(
        table,
        "  batches: {} tasks of `{TOGETHER}` were completed with others, {} alone",
        batched.together, batched.alone
    );
    let guilty: Vec<String> = lost
        .iter()
        .chain(&stuck)
        .chain(&twice)
        .cloned()
        .chain(wrong.iter().filter_map(|(name, _)| name.map(str::to_owned)))
        .collect();
    let shown: HashSet<String> = guilty.into_iter().take(SHOWN).collect();
    let evidence = evidence(&file, &shown, case.logs);
    let wrong: Vec<String> = wrong
        .into_iter()
        .map(|(name, why)| name.map_or_else(|| why.clone(), |name| format!("{name}: {why}")))
        .collect();
    let _ = writeln!(
        table,
        "  lost {}   stuck {}   committed twice {}   otherwise wrong {}",
        lost.len(),
        stuck.len(),
        twice.len(),
        wrong.len()
    );
    Verdict { lost, stuck, twice, wrong, table, evidence }
}

/// The places that are not empty after the run.
fn places_left(db: &mut Connection) -> Vec<String> {
    let mut left = Vec::new();
    for queue in QUEUES {
        let mut pipe = redis::pipe();
        pipe.cmd("XLEN")
            .arg(queue)
            .cmd("ZCARD")
            .arg(format!("tq:{{{queue}}}:delayed"))
            .cmd("HLEN")
            .arg(format!("tq:{{{queue}}}:parked"));
        pipe.cmd("XPENDING").arg(queue).arg("tqhost");
        type Pending = (u64, redis::Value, redis::Value, redis::Value);
        let (length, delayed, parked, (pending, ..)): (u64, u64, u64, Pending) =
            pipe.query(db).expect("the places");
        if (length, delayed, parked, pending) != (0, 0, 0, 0) {
            left.push(format!(
                "{queue}: {length} in the stream, {pending} pending, {delayed} delayed, {parked} parked"
            ));
        }
    }
    let items: u64 = redis::cmd("LLEN").arg(LIST).query(db).expect("LLEN");
    if items > 0 {
        left.push(format!("{items} items in the list"));
    }
    left
}

/// The status of a task as clients see it.
struct Seen {
    status: String,
    attempt: u64,
    result: Option<Value>,
}

fn statuses<'h>(db: &mut Connection, history: &'h History) -> HashMap<&'h str, Seen> {
    let named: Vec<(&String, &Track)> =
        history.tasks.iter().filter(|(_, task)| !task.id.is_empty()).collect();
    let mut seen = HashMap::new();
    for chunk in named.chunks(500) {
        let mut pipe = redis::pipe();
        for (_, task) in chunk {
            pipe.cmd("HMGET")
                .arg(format!("tq:{{{}}}:task:{}", task.queue, task.id))
                .arg(&["status", "attempt", "result"]);
        }
        let replies: Vec<(Option<String>, Option<u64>, Option<String>)> =
            pipe.query(db).expect("the statuses");
        for ((name, _), (status, attempt, result)) in chunk.iter().zip(replies) {
            let result = result.and_then(|result| serde_json::from_str(&result).ok());
            let status = status.unwrap_or_default();
            seen.insert(name.as_str(), Seen { status, attempt: attempt.unwrap_or_default(), result });
        }
    }
    seen
}

/// How many tasks of [`TOGETHER`] were completed with others, and alone.
struct Batched {
    together: usize,
    alone: usize,
}

fn batched(statuses: &HashMap<&str, Seen>) -> Batched {
    let sizes = statuses.values().filter_map(|seen| seen.result.as_ref()?["together"].as_u64());
    let (together, alone): (Vec<u64>, Vec<u64>) = sizes.partition(|size| *size > 1);
    Batched { together: together.len(), alone: alone.len() }
}

/// Where the task's end differs from what its payload asks for.
///
/// `is_forgotten` says that Redis forgot something while the task was there. It may have forgotten which task
/// holds the key, so that the holder ends as a duplicate after it was run.
fn as_told(task: &Track, seen: Option<&Seen>, is_forgotten: bool) -> Vec<String> {
    let [end] = task.ends.as_slice() else { return Vec::new() };
    let Some(seen) = seen else { return vec!["has no status".to_owned()] };
    let mut wrong = Vec::new();
    let retries = task.told["retries"].as_u64().unwrap_or_default();
    let (expected, turns, attempt) = match task.told["end"].as_str() {
        // A duplicate is delivered, but does not run.
        _ if end == DUPLICATE && task.told["key"].is_string() && task.marks == 0 => (DUPLICATE, 1, 0),
        _ if retries > MAX_RETRIES => ("retries-exhausted", MAX_RETRIES + 1, MAX_RETRIES + 1),
        Some("reject") => ("rejected", retries + 1, retries + 1),
        Some("defer") => ("deferrals-exhausted", super::MAX_DEFERRALS + 1, 1),
        _ => ("COMPLETED", retries + 1, retries + 1),
    };
    if end == "CANCELLED" {
        // It may have been cancelled in any of its turns.
        return if seen.status == "CANCELLED" {
            wrong
        } else {
            vec![format!("its status says {:?}, not CANCELLED", seen.status)]
        };
    }
    if end != expected || task.requeued.iter().any(|end| end != expected) {
        wrong.push(format!("ended as {end}, not {expected}"));
    }
    let status = match end.as_str() {
        "COMPLETED" => "COMPLETED",
        DUPLICATE => "CANCELLED",
        _ => "FAILED",
    };
    let turns = turns * (1 + task.requeued.len() as u64);
    if seen.status != status {
        wrong.push(format!("its status says {:?}, not {status}", seen.status));
    }
    let distinct: HashSet<Turn> = task.begins.iter().map(|begin| begin.turn).collect();
    let may_have_run = end == DUPLICATE && (is_forgotten || task.told["again"] == true);
    if distinct.len() as u64 != turns && !may_have_run {
        wrong.push(format!("began {distinct:?} (times requeued, attempt, deferrals), not {turns} of them"));
    }
    if attempt > 0 && seen.attempt != attempt {
        wrong.push(format!("ended on attempt {}, not {attempt}: a fault used one up", seen.attempt));
    }
    let result = |name: &str| seen.result.as_ref().map(|result| result[name].clone());
    if end == "COMPLETED"
        && (result("n") != Some(task.told["n"].clone()) || result("attempt") != Some(attempt.into()))
    {
        wrong.push(format!("has the result {:?}", seen.result));
    }
    if let (Some(delay), Some(first)) = (task.told["delay"].as_u64(), task.begins.first())
        && first.at_ms < task.from_ms + delay
    {
        wrong.push(format!(
            "began {} ms after it was added, not {delay}",
            first.at_ms.saturating_sub(task.from_ms)
        ));
    }
    wrong
}

/// How often each task's handler logged that it runs, by queue and id. The last lines of a killed host may be
/// missing.
fn runs(logs: &Path) -> HashMap<(String, String), u64> {
    let mut runs = HashMap::new();
    for path in log_files(logs) {
        let text = std::fs::read(path).expect("read a log");
        for line in String::from_utf8_lossy(&text)
            .lines()
            .filter(|line| line.contains("\"guest\"") && line.contains("\"runs\""))
        {
            // The last line of a killed host may be truncated.
            let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
            let (Some(queue), Some(task)) = (line["queue"].as_str(), line["task"].as_str()) else { continue };
            *runs.entry((queue.to_owned(), task.to_owned())).or_default() += 1;
        }
    }
    runs
}

pub fn log_files(logs: &Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(logs)
        .expect("the logs")
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .collect();
    files.sort();
    files
}

/// The whole history of these tasks.
fn evidence(file: &[u8], names: &HashSet<String>, logs: &Path) -> String {
    if names.is_empty() {
        return String::new();
    }
    let history = History::read(file, names.clone());
    let mut out = String::new();
    for name in names {
        let Some(task) = history.tasks.get(name) else {
            let _ = writeln!(out, "{name}: nothing was ever written about it");
            continue;
        };
        let _ = writeln!(out, "{name} (id {}): {}\n  Redis wrote:", task.id, task.told);
        for line in &task.lines {
            let _ = writeln!(out, "    {line}");
        }
        let _ = writeln!(out, "  the hosts logged:");
        for path in log_files(logs) {
            let text = std::fs::read(&path).expect("read a log");
            let id = format!("\"task\":\"{}\"", task.id);
            for line in String::from_utf8_lossy(&text).lines().filter(|line| line.contains(&id)) {
                let _ =
                    writeln!(out, "    {}: {line}", path.file_stem().unwrap_or_default().to_string_lossy());
            }
        }
    }
    out
}

fn tabulate(
    out: &mut String,
    history: &History,
    sent: &Sent,
    repeated: &Repeated,
    seen: u64,
) -> std::fmt::Result {
    repeated.tabulate(out)?;
    let ended = |is: fn(&str) -> bool| {
        history.tasks.values().filter(|task| task.ends.iter().any(|end| is(end))).count()
    };
    let (completed, cancelled, duplicates) =
        (ended(|end| end == "COMPLETED"), ended(|end| end == "CANCELLED"), ended(|end| end == DUPLICATE));
    let dead = ended(|end| !["COMPLETED", "CANCELLED", DUPLICATE].contains(&end));
    let requeued: usize = history.tasks.values().map(|task| task.requeued.len()).sum();
    let (large, again) = history
        .tasks
        .values()
        .fold((0, 0), |sum, task| (sum.0 + u64::from(task.told["pad"].is_u64()), sum.1 + task.dropped));
    writeln!(
        out,
        "  tasks: {} ({} were sent without a reply, and may be among them); \
         {completed} completed, {dead} dead, {cancelled} cancelled, {duplicates} duplicates",
        history.tasks.len(),
        sent.unsure
    )?;
    writeln!(
        out,
        "  of them: {requeued} times one was requeued, {large} had 1 MiB, \
         {again} entries of one that was sent twice were dropped; {} pauses",
        history.pauses.len()
    )?;
    let (begun, told) =
        history.tasks.values().fold((0, 0), |sum, task| (sum.0 + task.begins.len(), sum.1 + task.marks));
    writeln!(
        out,
        "  runs: {begun} were delivered; of {told} clients were told PROCESSING; {seen} said so in the logs"
    )?;
    let mut ends = history.ends_ms.clone();
    ends.sort_unstable();
    let pause = ends.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
    writeln!(out, "  longest time in which no task ended: {:.1} s", pause as f64 / 1000.0)
}
