//! Tasks with effects, under the faults of the chaos test.
//!
//! Each task of `counted` adds to a counter, replaces a record, and enqueues one task to `after`. Some also
//! start a flow of children in `part`, which a task of `joined` joins. The first effect of every task, in
//! each of these queues, is the counter of its queue. `told` gets a task for each end of `counted`, `part`
//! and `joined`.
//!
//! In: Redis after the run, its record of every write, and the records that were seen meanwhile. Out: what is
//! wrong. A handler that cannot read from Redis goes on without that effect, and its result says so, so the
//! results say what must have been committed. This holds too where Redis forgets: it forgets a task's effects
//! together with its end. A host that runs a task of the forgotten effects tells that it is lost. Not here:
//! tasks that only set values (`values`), and all other queues (`judge`).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{Connection, RedisResult};
use serde_json::{Value, json};

use super::aof::transactions;
use super::faults::{Loss, now_ms};
use super::judge::REMEMBERED_MS;
use super::orders::is_lost;
use super::values::{self, VALUES};
use crate::support::bench::tqhost;

pub const PLUGIN: &str = "effects";
const COUNTED: &str = "counted";
const AFTER: &str = "after";
const PART: &str = "part";
const JOINED: &str = "joined";
const TOLD: &str = "told";
pub const QUEUES: [&str; 6] = [COUNTED, AFTER, PART, JOINED, TOLD, VALUES];
/// The queues whose ends are told.
const TELLING: [&str; 3] = [COUNTED, PART, JOINED];
/// How many tasks a producer lets wait.
const ENOUGH: u64 = 100;
const CHILDREN: usize = 3;
/// The records, each of which many tasks replace.
const RECORDS: usize = 4;
/// One task in so many is cancelled soon after it was added.
const CANCELLED: usize = 12;

/// The queues, in TOML.
pub fn queues() -> String {
    let mut text = format!("[plugins.{PLUGIN}]\nrecords = [\"kb:*\"]\n");
    for queue in QUEUES {
        let _ = writeln!(text, "[queues.{queue}]\nplugin = \"{PLUGIN}\"");
        if TELLING.contains(&queue) {
            let _ = writeln!(text, "on_end = \"{TOLD}\"");
        }
        if queue == COUNTED {
            let _ = writeln!(text, "enqueue_to = [\"{AFTER}\", \"{PART}\", \"{JOINED}\"]");
        }
    }
    text
}

/// The tasks that the producer enqueued.
#[derive(Debug, Default)]
pub struct Seen {
    /// The ids of the tasks that Redis accepted, with the times of the request and of its reply.
    pub accepted: Vec<(String, (u64, u64))>,
    /// The accepted tasks that set values, with these times.
    values: Vec<(String, (u64, u64))>,
    /// Records that no commit can have left.
    wrong: Vec<String>,
}

fn record(number: usize) -> String {
    format!("kb:{}", number % RECORDS)
}

/// The calls of a task. Effects: 0 the counter, 1 and 2 the record, 3 the task of `after`, 4 the flow.
fn calls(number: usize, random: &mut fastrand::Rng) -> Value {
    let count = json!(["add", "n", 1]);
    let value = number.to_string();
    let fields: serde_json::Map<String, Value> =
        ["a", "b", "c"].into_iter().map(|name| (name.to_owned(), json!(value))).collect();
    let after = json!({ "queue": AFTER, "fields": { "do": [count] }, "delay": random.u64(0..3) * 300 });
    let mut calls = vec![
        count.clone(),
        json!(["drop", record(number)]),
        json!(["put", record(number), fields]),
        json!(["enqueue", after]),
    ];
    if random.u32(0..3) == 0 {
        let dies = (random.u32(0..4) == 0).then(|| random.usize(0..CHILDREN));
        let child = |index: usize| {
            let last = if dies == Some(index) { json!(["reject"]) } else { json!(["first", 1, ["retry"]]) };
            json!({ "queue": PART, "fields": { "do": [count, last] } })
        };
        let then = json!({
            "queue": JOINED, "fields": { "do": [count, ["results"]] }, "delay": random.u64(0..2) * 400
        });
        calls.push(json!(["fan-out", (0..CHILDREN).map(child).collect::<Vec<_>>(), then]));
    }
    calls.push(json!(["sleep", random.u64(0..300)]));
    calls.push(match random.u32(0..20) {
        0 => json!(["reject"]),
        1 => json!(["trap"]),
        2..6 => json!(["first", random.u64(1..=3), ["retry"]]),
        _ => json!(["fence"]),
    });
    json!(calls)
}

/// Adds tasks, looks at the records, and cancels some tasks, until it is told to stop.
pub fn produce(url: &str, config: &Path, pause: Duration, seed: u64, stop: &AtomicBool) -> Seen {
    let client = redis::Client::open(url).expect("a valid URL");
    let mut random = fastrand::Rng::with_seed(seed.wrapping_add(15_485_863));
    let mut seen = Seen::default();
    let mut connection: Option<Connection> = None;
    let mut number = 0;
    while !stop.load(Ordering::Acquire) {
        std::thread::sleep(pause);
        let Some(db) = connection.as_mut() else {
            connection = client.get_connection_with_timeout(Duration::from_secs(1)).ok();
            continue;
        };
        match add(db, number, &mut random, &mut seen) {
            Ok(None) => {}
            Ok(Some(id)) => {
                number += 1;
                if number % CANCELLED == 0 {
                    // Whether it was in time is in Redis.
                    let _ = tqhost(config, &["cancel", COUNTED, &id]);
                }
            }
            Err(_) => {
                number += 1;
                connection = None;
            }
        }
    }
    seen
}

/// Gives the id of the new task, or nothing if enough tasks wait.
fn add(
    db: &mut Connection,
    number: usize,
    random: &mut fastrand::Rng,
    seen: &mut Seen,
) -> RedisResult<Option<String>> {
    let key = record(random.usize(..RECORDS));
    let fields: BTreeMap<String, String> = redis::cmd("HGETALL").arg(&key).query(db)?;
    seen.wrong.extend(half_written(&key, &fields));
    let waiting: u64 = redis::cmd("XLEN").arg(COUNTED).query(db)?;
    if waiting >= ENOUGH {
        return Ok(None);
    }
    let from_ms = now_ms();
    let id = values::add(db, number, random)?;
    seen.values.push((id, (from_ms, now_ms())));
    let mut add = redis::cmd("XADD");
    add.arg(COUNTED).arg("*").arg("do").arg(calls(number, random).to_string());
    // A task without `tq-id` is a plain one but for its effects.
    let own_id = random.bool().then(|| format!("{COUNTED}-{number}"));
    if let Some(id) = &own_id {
        add.arg("tq-id").arg(id);
    }
    let from_ms = now_ms();
    let entry: String = add.query(db)?;
    let id = own_id.unwrap_or(entry);
    seen.accepted.push((id.clone(), (from_ms, now_ms())));
    Ok(Some(id))
}

/// A record has nothing yet, or all fields of one commit.
fn half_written(key: &str, fields: &BTreeMap<String, String>) -> Option<String> {
    let first = fields.values().next()?;
    let is_whole = fields.len() == 3 && fields.values().all(|value| value == first);
    (!is_whole).then(|| format!("the record {key} is written by half: {fields:?}"))
}

/// The end of a task.
#[derive(Default)]
pub struct End {
    status: String,
    error: String,
    /// The results of its calls.
    results: Vec<Value>,
    /// The flow of which it is a child.
    flow: Option<String>,
    finished_ms: u64,
}

impl End {
    fn has_completed(&self) -> bool {
        self.status == "COMPLETED"
    }

    /// Whether the host that ran it told that it is lost, after Redis may have forgotten the step that
    /// enqueued it.
    fn may_be_forgotten(&self, losses: &[Loss]) -> bool {
        let known_from_ms = self.finished_ms.saturating_sub(REMEMBERED_MS);
        self.status == "FAILED"
            && self.error.starts_with("lost: ")
            && is_lost((known_from_ms, self.finished_ms), losses)
    }

    /// The result of a call that had an effect.
    pub fn result(&self, call: usize) -> Option<&Value> {
        self.results.get(call).filter(|result| self.has_completed() && result.get("error").is_none())
    }
}

pub type Ends = HashMap<String, End>;

/// All tasks of a queue.
fn ends(db: &mut Connection, queue: &str) -> Ends {
    let prefix = format!("tq:{{{queue}}}:task:");
    let keys: Vec<String> = redis::cmd("KEYS").arg(format!("{prefix}*")).query(db).expect("the statuses");
    let mut ends = Ends::new();
    for keys in keys.chunks(500) {
        let mut pipe = redis::pipe();
        for key in keys {
            pipe.cmd("HMGET").arg(key).arg(&["status", "error", "result", "flow", "finished_at"]);
        }
        let found: Vec<[Option<String>; 5]> = pipe.query(db).expect("the statuses");
        for (key, [status, error, result, flow, finished]) in keys.iter().zip(found) {
            let results = result.and_then(|result| serde_json::from_str(&result).ok()).unwrap_or_default();
            let (status, error) = (status.unwrap_or_default(), error.unwrap_or_default());
            let finished_ms = finished.and_then(|at| at.parse().ok()).unwrap_or_default();
            ends.insert(key[prefix.len()..].to_owned(), End { status, error, results, flow, finished_ms });
        }
    }
    ends
}

/// Finds wrong effects, and makes a line for the table. `losses` are the times whose writes Redis may
/// have forgotten.
pub fn judge(
    db: &mut Connection,
    append_only_file: &Path,
    seen: &Seen,
    losses: &[Loss],
) -> (Vec<String>, String) {
    let mut wrong = seen.wrong.clone();
    let by_queue: HashMap<&str, Ends> = QUEUES.iter().map(|queue| (*queue, ends(db, queue))).collect();
    for (queue, ends) in &by_queue {
        for (id, end) in ends {
            if !["COMPLETED", "FAILED", "CANCELLED"].contains(&end.status.as_str()) {
                wrong.push(format!("{queue}: {id} is {:?}", end.status));
            }
        }
        if *queue == VALUES {
            wrong.extend(values::judge(db, ends));
            continue;
        }
        let counted = ends.values().filter(|end| end.result(0).is_some()).count();
        let counter: Option<usize> =
            redis::cmd("GET").arg(format!("tq:{{{queue}}}:state:{PLUGIN}:n")).query(db).expect("a counter");
        if counter.unwrap_or_default() != counted {
            wrong.push(format!(
                "{queue}: {counted} tasks that count completed, and the counter is {counter:?}"
            ));
        }
    }
    let counted = &by_queue[COUNTED];
    for (queue, accepted) in [(COUNTED, &seen.accepted), (VALUES, &seen.values)] {
        for (id, asked) in accepted {
            if !by_queue[queue].contains_key(id) && !is_lost(*asked, losses) {
                wrong.push(format!("{queue}: {id} was accepted and is lost"));
            }
        }
    }
    for number in 0..RECORDS {
        let key = record(number);
        let fields: BTreeMap<String, String> = redis::cmd("HGETALL").arg(&key).query(db).expect("a record");
        wrong.extend(half_written(&key, &fields));
        let writer = fields.get("a");
        if writer.is_none() && counted.values().filter(|end| end.has_completed()).count() > 50 {
            wrong.push(format!("nobody wrote the record {key}"));
        }
    }
    wrong.extend(outbox(counted, &by_queue[AFTER], losses));
    wrong.extend(flows(&by_queue, losses));
    let told = told(&std::fs::read(append_only_file).expect("read the append-only file"));
    wrong.extend(ends_that_are_told(&by_queue, &told, losses));
    let of = |queue: &str, status: &str| by_queue[queue].values().filter(|end| end.status == status).count();
    let each = |queue| {
        format!("{queue} {}+{}+{}", of(queue, "COMPLETED"), of(queue, "FAILED"), of(queue, "CANCELLED"))
    };
    let line = format!("  effects (completed + dead + cancelled): {}\n", QUEUES.map(each).join(", "));
    (wrong, line)
}

/// Each task whose result names a task of `after` enqueued it, and nobody else did.
fn outbox(parents: &Ends, after: &Ends, losses: &[Loss]) -> Vec<String> {
    let named: HashSet<&str> = parents.values().filter_map(|end| end.result(3)?.as_str()).collect();
    let mut wrong: Vec<String> = named
        .iter()
        .filter(|id| !after.get(**id).is_some_and(End::has_completed))
        .map(|id| format!("{AFTER}: {id} did not complete: {:?}", after.get(*id).map(|end| &end.error)))
        .collect();
    wrong.extend(
        after
            .iter()
            .filter(|(id, end)| !named.contains(id.as_str()) && !end.may_be_forgotten(losses))
            .map(|(id, end)| format!("{AFTER}: nobody enqueued {id}: {} {}", end.status, end.error)),
    );
    wrong
}

/// Each flow that was started has all children, and its last task ended as they did.
fn flows(by_queue: &HashMap<&str, Ends>, losses: &[Loss]) -> Vec<String> {
    let mut children: HashMap<&str, Vec<&End>> = HashMap::new();
    // A child without a flow is one of which Redis forgot all but that it is lost.
    for end in by_queue[PART].values().filter(|end| end.flow.is_some() || !end.may_be_forgotten(losses)) {
        let flow = end.flow.as_deref().unwrap_or_default();
        children.entry(flow.rsplit(':').next().unwrap_or_default()).or_default().push(end);
    }
    let mut wrong = Vec::new();
    let started: HashSet<&str> = by_queue[COUNTED]
        .values()
        // The fan-out is the only one of the later calls that gives a text.
        .filter_map(|end| end.result(4)?.as_str())
        .collect();
    let joined = &by_queue[JOINED];
    let is_joined =
        |(id, end): &(&String, &End)| started.contains(id.as_str()) || !end.may_be_forgotten(losses);
    let joins = joined.iter().filter(is_joined).count();
    if (started.len(), started.len()) != (joins, children.len()) {
        wrong.push(format!(
            "{} flows were started, {} have children, {joins} are joined",
            started.len(),
            children.len(),
        ));
    }
    for id in started {
        let parts = children.get(id).map_or(&[][..], Vec::as_slice);
        if parts.len() != CHILDREN {
            wrong.push(format!("the flow {id} has {} children", parts.len()));
        }
        let Some(join) = joined.get(id) else { continue };
        let all = parts.iter().all(|end| end.has_completed());
        let values = join
            .results
            .get(1)
            .and_then(Value::as_array)
            .map_or(0, |results| results.iter().filter(|result| result[1].is_string()).count());
        let is_right = if all {
            join.has_completed() && values == CHILDREN
        } else {
            join.status == "FAILED" && join.error.starts_with("child ")
        };
        if !is_right {
            let ended: Vec<&str> = parts.iter().map(|end| end.status.as_str()).collect();
            wrong.push(format!("the flow {id}: {ended:?}, joined {}: {} {values}", join.status, join.error));
        }
    }
    wrong
}

/// An end of a task for which Redis got a task: queue, id and status.
type Name = (String, String, String);

/// The ends for which Redis got a task, each as often as it was told.
fn told(file: &[u8]) -> HashMap<Name, Vec<End>> {
    let mut told: HashMap<Name, Vec<End>> = HashMap::new();
    for step in transactions(file) {
        for command in step.iter().filter(|command| command.len() > 4 && command[1] == TOLD.as_bytes()) {
            // An entry that was released or parked comes a second time, with fields of tqhost.
            let is_new = !command.iter().any(|part| part.starts_with(b"tq-"));
            if !command[0].eq_ignore_ascii_case(b"XADD") || !is_new {
                continue;
            }
            let value = |name: &str| {
                let pair = command[3..].chunks(2).find(|pair| pair[0] == name.as_bytes());
                pair.and_then(|pair| pair.get(1))
                    .map_or_else(String::new, |v| String::from_utf8_lossy(v).into())
            };
            let status = value("end.status");
            let end = End {
                status: status.clone(),
                error: value("end.error"),
                finished_ms: value("end.finished_at").parse().unwrap_or_default(),
                ..End::default()
            };
            told.entry((value("end.queue"), value("end.id"), status)).or_default().push(end);
        }
    }
    told
}

/// Each end is told once. A task that Redis had forgotten may also have been told as lost: Redis remembered
/// the step before, which is done again and enqueues it a second time.
fn ends_that_are_told(
    by_queue: &HashMap<&str, Ends>,
    told: &HashMap<Name, Vec<End>>,
    losses: &[Loss],
) -> Vec<String> {
    let mut wrong: Vec<String> = told
        .iter()
        .filter(|((queue, id, status), tellings)| {
            let end = by_queue.get(queue.as_str()).and_then(|ends| ends.get(id));
            let is_its_end = tellings.len() == 1 && end.is_some_and(|end| end.status == *status);
            !is_its_end && !tellings.iter().all(|telling| telling.may_be_forgotten(losses))
        })
        .map(|(end, tellings)| format!("told {} times: {end:?}", tellings.len()))
        .collect();
    for queue in TELLING {
        for (id, end) in &by_queue[queue] {
            if !told.contains_key(&(queue.to_owned(), id.clone(), end.status.clone())) {
                wrong.push(format!("{queue}: nobody was told that {id} is {}", end.status));
            }
        }
    }
    wrong
}
