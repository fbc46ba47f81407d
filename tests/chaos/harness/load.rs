//! The producers: XADD and LPUSH on direct connections, and `tqhost enqueue`.
//!
//! In: a seed. Out: the tasks that were accepted ([`Sent`]). Every task has a unique name, and its payload
//! says what its handler does, so that the judge knows how it has to end. A task whose reply was lost may be
//! in Redis or not. Some tasks with an id are sent twice, whatever the reply was. Not here: cancelling and
//! requeueing (`orders`).

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::Connection;
use serde_json::{Value, json};

use super::faults::now_ms;
use super::orders::Order;
use super::rows;
use super::{LIST, MAX_RETRIES, QUEUES, TOGETHER};
use crate::support::bench::tqhost;

/// A producer waits while this many tasks of its queue are in the stream.
const ENOUGH: u64 = 400;
/// A queue with turns has a lower bound, since a task that waits for a retry holds up others. Delayed and
/// held tasks count, too.
const ENOUGH_WITH_TURNS: u64 = 24;
/// Tasks of one `tqhost enqueue`.
const LINES: usize = 20;

/// One in how many tasks has a large payload, and its bytes.
const LARGE: (usize, usize) = (150, 1 << 20);
/// The most tasks of a queue between the two times at which a task is sent.
const LATER: usize = 40;

/// Queues whose producers give no ids.
const PLAIN: [&str; 2] = ["plain", TOGETHER];

/// The tasks that producers sent, and the orders that operators gave.
#[derive(Debug, Default)]
pub struct Sent {
    /// The tasks that Redis or the command accepted, with the times of the request and of its reply.
    pub accepted: HashMap<String, (u64, u64)>,
    /// How many tasks have no reply.
    pub unsure: u64,
    pub orders: Vec<Order>,
}

impl Sent {
    pub fn merge(&mut self, other: Sent) {
        self.accepted.extend(other.accepted);
        self.unsure += other.unsure;
        self.orders.extend(other.orders);
    }
}

/// A task of a queue: its name, its payload, and its other fields.
fn task(
    queue: &str,
    number: usize,
    random: &mut fastrand::Rng,
) -> (String, Value, Vec<(&'static str, String)>) {
    let name = format!("{queue}-{number}");
    let rules = rows::rules(queue);
    let ms = match random.u32(0..100) {
        0..5 => random.u64(1000..3000),
        5..50 => random.u64(0..300),
        _ => 0,
    };
    let (retries, end) = match random.u32(0..100) {
        0..10 => (random.u64(1..=3), "ok"),
        10..13 => (9, "ok"),
        13..17 => (0, "defer"),
        17..20 => (random.u64(0..2), "reject"),
        _ => (0, "ok"),
    };
    // Where one task holds up others, it is shorter.
    let ms = if rules.is_some() { ms / 5 } else { ms };
    let mut told = json!({ "n": name, "ms": ms, "retries": retries, "end": end });
    // A task without `tq-id` may be a plain one, which begins without a script.
    let has_no_id = PLAIN.contains(&queue) || rules.is_some() && random.bool();
    let mut fields = if has_no_id { Vec::new() } else { vec![("tq-id", name.clone())] };
    match queue {
        "keyed" => {
            // About three tasks have one key.
            let key = format!("k{}", number / 6 * 2 + random.usize(0..2));
            told["key"] = json!(key);
            fields.push(("tq-key", key));
        }
        "later" => {
            let delay = random.u64(100..3000);
            told["delay"] = json!(delay);
            fields.push(("tq-delay-ms", delay.to_string()));
        }
        _ => {}
    }
    if let Some(rules) = rules {
        let row = format!("row-{}", random.usize(0..rules.rows));
        (told["row"], told["own"]) = (json!(row), json!(!has_no_id));
        fields.push(("row", row));
    }
    if queue != "listed" && number % LARGE.0 == LARGE.0 / 2 {
        told["pad"] = json!(LARGE.1);
        fields.push(("pad", "x".repeat(LARGE.1)));
    }
    // Only tasks that complete are sent twice: after another end, the second one runs again.
    if ["keyed", "later"].contains(&queue) && end == "ok" && retries <= MAX_RETRIES && random.u32(0..10) == 0
    {
        told["again"] = json!(true);
    }
    (name, told, fields)
}

/// Adds tasks to one queue until it is told to stop.
pub fn produce(url: &str, queue: &str, pause: Duration, seed: u64, stop: &AtomicBool) -> Sent {
    let client = redis::Client::open(url).expect("a valid URL");
    let place = QUEUES.iter().position(|known| *known == queue).unwrap_or_default();
    let mut random = fastrand::Rng::with_seed(seed.wrapping_add(7919 * (place as u64 + 1)));
    let mut connection: Option<Connection> = None;
    let mut sent = Sent::default();
    let mut number = 0;
    // Commands to send again, each with the number of the task before which it is sent.
    let mut again: VecDeque<(usize, redis::Cmd)> = VecDeque::new();
    while !stop.load(Ordering::Acquire) {
        std::thread::sleep(pause);
        let Some(db) = connection.as_mut() else {
            connection = client.get_connection_with_timeout(Duration::from_secs(1)).ok();
            continue;
        };
        let mut places = redis::pipe();
        places.cmd("XLEN").arg(queue).cmd("ZCARD").arg(format!("tq:{{{queue}}}:delayed"));
        let waiting: redis::RedisResult<(u64, u64)> = places.query(db);
        let has_turns = rows::rules(queue).is_some();
        match waiting {
            Ok((waiting, _)) if waiting >= ENOUGH => continue,
            Ok((waiting, delayed)) if has_turns && waiting + delayed >= ENOUGH_WITH_TURNS => continue,
            Ok(_) => {}
            Err(_) => {
                connection = None;
                continue;
            }
        }
        while let Some((_, add)) = again.pop_front_if(|(before, _)| *before <= number) {
            // The reply does not matter: a producer that sends a task twice does not know its state either.
            let _ = add.exec(db);
        }
        let (name, told, fields) = task(queue, number, &mut random);
        number += 1;
        let mut add = redis::cmd(if queue == "listed" { "LPUSH" } else { "XADD" });
        if queue == "listed" {
            add.arg(LIST).arg(told.to_string());
        } else {
            add.arg(queue).arg("*").arg("data").arg(told.to_string());
            for (name, value) in fields {
                add.arg(name).arg(value);
            }
        }
        let from_ms = now_ms();
        let added = add.exec(db);
        if told["again"] == true {
            again.push_back((number + random.usize(0..LATER), add));
        }
        if added.is_ok() {
            sent.accepted.insert(name, (from_ms, now_ms()));
        } else {
            sent.unsure += 1;
            connection = None;
        }
    }
    sent
}

/// Runs `tqhost enqueue` with a delay, again and again. A command that fails may have enqueued some of its
/// tasks.
pub fn enqueue(config: &Path, folder: &Path, stop: &AtomicBool) -> Sent {
    let mut sent = Sent::default();
    let file: PathBuf = folder.join("tasks.jsonl");
    let mut number = 0;
    while !stop.load(Ordering::Acquire) {
        let names: Vec<String> = (number..number + LINES).map(|number| format!("command-{number}")).collect();
        number += LINES;
        let line = |name: &String| {
            let told = json!({ "n": name, "ms": 10, "retries": 0, "end": "ok" });
            json!({ "data": told.to_string() }).to_string()
        };
        std::fs::write(&file, names.iter().map(line).collect::<Vec<_>>().join("\n")).expect("write tasks");
        let path = file.to_str().expect("a path");
        let from_ms = now_ms();
        let ran = tqhost(config, &["--json", "enqueue", "later", "--jsonl", path, "--delay", "1s"]);
        if ran.code == 0 {
            assert_eq!(ran.stdout.lines().count(), LINES, "an id for each task: {ran:?}");
            sent.accepted.extend(names.into_iter().map(|name| (name, (from_ms, now_ms()))));
        } else {
            sent.unsure += LINES as u64;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    sent
}
