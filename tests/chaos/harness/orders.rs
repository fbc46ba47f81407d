//! Orders of operators by the command line: cancel, pause, resume, requeue. And a comparison of the orders
//! with what Redis did.
//!
//! In: the orders with their answers, and the history. Out: what Redis did without an order, and orders that
//! were confirmed and not carried out. An order without an answer may have been carried out or not. An answer
//! that Redis may have forgotten is ignored. Not here: the producers (`load`).

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::{Connection, RedisResult};
use serde_json::Value;

use super::QUEUES;
use super::faults::{Done, Loss, now_ms};
use super::history::{Claim, History, Pause, Track, told};
use super::load::Sent;
use super::repeated::host;
use super::rows;
use crate::support::bench::tqhost;
use crate::support::eventually;

/// How long a queue is paused, in ms.
const PAUSED: std::ops::Range<u64> = 5000..7000;
/// The time between two pauses.
const UNPAUSED: Duration = Duration::from_secs(2);
/// After this time, all hosts know of a pause. Hosts promise two seconds; debug builds are slower.
const KNOWN_MS: u64 = 4000;
/// The pause between two orders.
const REST: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Cancel,
    Requeue,
    Pause,
    Resume,
}

#[derive(Debug, Clone)]
pub struct Order {
    pub kind: Kind,
    /// The name of a task or of a queue.
    pub name: String,
    pub from_ms: u64,
    pub to_ms: u64,
    /// Whether the answer confirmed that this order changed something.
    pub is_done: bool,
}

/// Gives one order after the other until it is stopped. At the end, no queue is paused.
pub fn give(url: &str, config: &Path, seed: u64, stop: &AtomicBool) -> Sent {
    let mut random = fastrand::Rng::with_seed(seed.wrapping_add(104_729));
    let client = redis::Client::open(url).expect("a valid URL");
    let mut orders: Vec<Order> = Vec::new();
    let (mut paused, mut since): (Option<(&str, Duration)>, _) = (None, Instant::now());
    while !stop.load(Ordering::Acquire) {
        std::thread::sleep(REST);
        let time = paused.map_or(UNPAUSED, |(_, time)| time);
        if since.elapsed() >= time {
            let queue = paused.map_or(QUEUES[random.usize(..QUEUES.len())], |(queue, _)| queue);
            let kind = if paused.is_some() { Kind::Resume } else { Kind::Pause };
            let order = order(config, kind, queue, queue, None);
            // A fault may have kept the order from Redis, or its answer from here.
            if kind == Kind::Pause || order.is_done {
                since = Instant::now();
                paused = paused.is_none().then(|| (queue, Duration::from_millis(random.u64(PAUSED))));
            }
            orders.push(order);
            continue;
        }
        let queue = QUEUES[random.usize(..QUEUES.len())];
        let connection = client.get_connection_with_timeout(Duration::from_secs(1));
        let kind = if random.u32(0..4) == 0 { Kind::Requeue } else { Kind::Cancel };
        let found = connection.and_then(|mut db| match kind {
            Kind::Requeue => dead(&mut db, queue, &mut random),
            _ if random.bool() => waiting(&mut db, queue, &mut random),
            _ => delayed(&mut db, queue),
        });
        // A task that is sent twice may run after it was cancelled, under its second entry, so it gets no
        // orders. Every other task gets at most one order of each kind.
        if let Ok(Some((told, id))) = found
            && let Some(name) = told["n"].as_str()
            && told["again"] != true
            && !orders.iter().any(|order| order.kind == kind && order.name == name)
        {
            orders.push(order(config, kind, queue, name, Some(&id)));
        }
    }
    eventually("no queue is paused", || {
        let resumed = QUEUES.map(|queue| order(config, Kind::Resume, queue, queue, None));
        resumed.iter().all(|order| order.is_done).then_some(())
    });
    Sent { orders, ..Sent::default() }
}

fn order(config: &Path, kind: Kind, queue: &str, name: &str, id: Option<&str>) -> Order {
    let from_ms = now_ms();
    let words: &[&str] = match kind {
        Kind::Cancel => &["cancel"],
        Kind::Requeue => &["dead", "requeue"],
        Kind::Pause => &["pause"],
        Kind::Resume => &["resume"],
    };
    let ran = tqhost(config, &[&["--json"], words, &[queue], id.as_slice()].concat());
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
    let is_done = ran.code == 0
        && match kind {
            Kind::Cancel => answer["before"] != "CANCELLED",
            Kind::Requeue => answer["succeeded"] == 1,
            Kind::Pause => answer["changed"] == true,
            Kind::Resume => true,
        };
    Order { kind, name: name.to_owned(), from_ms, to_ms: now_ms(), is_done }
}

/// The payload of a task, and its id.
type Found = RedisResult<Option<(Value, String)>>;

fn in_entry(
    entries: Vec<(String, HashMap<String, redis::Value>)>,
    random: &mut fastrand::Rng,
) -> Option<(Value, String)> {
    if entries.is_empty() {
        return None;
    }
    let (entry, fields) = &entries[random.usize(..entries.len())];
    let text = |name: &str| redis::from_redis_value_ref::<String>(fields.get(name)?).ok();
    Some((told(text("data")?.as_bytes())?, text("tq-id").unwrap_or_else(|| entry.clone())))
}

/// A task that waits in the stream or runs.
fn waiting(db: &mut Connection, queue: &str, random: &mut fastrand::Rng) -> Found {
    let entries = redis::cmd("XRANGE").arg(queue).arg("-").arg("+").arg("COUNT").arg(20).query(db)?;
    Ok(in_entry(entries, random))
}

fn dead(db: &mut Connection, queue: &str, random: &mut fastrand::Rng) -> Found {
    let entries = redis::cmd("XREVRANGE")
        .arg(format!("tq:{{{queue}}}:dead"))
        .arg("+")
        .arg("-")
        .arg("COUNT")
        .arg(20)
        .query(db)?;
    Ok(in_entry(entries, random))
}

/// A delayed task. Its id is after `new/` in its member, or is its name where producers give ids, or is the
/// member, which is its first entry.
fn delayed(db: &mut Connection, queue: &str) -> Found {
    let parked: Vec<(String, Vec<u8>)> =
        redis::cmd("HRANDFIELD").arg(format!("tq:{{{queue}}}:parked")).arg(1).arg("WITHVALUES").query(db)?;
    let found = parked.into_iter().next().and_then(|(member, packed)| {
        let told = told(&packed)?;
        let id = match (member.strip_prefix("new/"), queue) {
            (Some(id), _) => id.to_owned(),
            (None, "keyed" | "later") => told["n"].as_str()?.to_owned(),
            (None, _) if told["own"] == true => told["n"].as_str()?.to_owned(),
            // The member of a held task ends with its entry.
            (None, _) if rows::rules(queue).is_some() => member.rsplit('/').next()?.to_owned(),
            _ => member,
        };
        Some((told, id))
    });
    Ok(found)
}

/// Where a task differs from the orders about it.
pub fn of_task(name: &str, task: &Track, sent: &Sent, losses: &[Loss]) -> Vec<String> {
    let of = |kind: Kind| sent.orders.iter().filter(move |order| order.kind == kind && order.name == name);
    let is_kept = |order: &&Order| order.is_done && !is_lost((order.from_ms, order.to_ms), losses);
    let mut wrong = Vec::new();
    let is_cancelled = task.ends.iter().any(|end| end == "CANCELLED");
    let cancels = |order: &Order| {
        order.from_ms <= task.cancelled_ms && (!order.is_done || task.cancelled_ms <= order.to_ms)
    };
    if is_cancelled && !of(Kind::Cancel).any(cancels) {
        wrong.push("is CANCELLED, and nobody cancelled it then".to_owned());
    }
    if !is_cancelled && of(Kind::Cancel).any(|order| is_kept(&order)) {
        wrong.push(format!("was cancelled, and ended as {:?}", task.ends));
    }
    let (requeued, ordered) = (task.requeued.len(), of(Kind::Requeue).count());
    if requeued > ordered || requeued < of(Kind::Requeue).filter(is_kept).count() {
        wrong.push(format!("was requeued {requeued} times by {ordered} orders"));
    }
    wrong
}

/// Finds what is wrong with pauses: pauses without an order, orders without a pause, and claims during a
/// pause.
pub fn of_queues(
    history: &History,
    sent: &Sent,
    losses: &[Loss],
    faults: &[Done],
    pids: &HashMap<u32, usize>,
) -> Vec<String> {
    let pauses = || sent.orders.iter().filter(|order| order.kind == Kind::Pause);
    let is_one = |order: &Order, pause: &Pause| {
        order.name == pause.queue && order.from_ms <= pause.from_ms && pause.from_ms <= order.to_ms
    };
    let mut wrong = Vec::new();
    for pause in history.pauses.iter().filter(|pause| !pauses().any(|order| is_one(order, pause))) {
        wrong.push(format!("{} was paused at {}, and nobody ordered it", pause.queue, pause.from_ms));
    }
    for order in pauses().filter(|order| order.is_done && !is_lost((order.from_ms, order.to_ms), losses)) {
        if !history.pauses.iter().any(|pause| is_one(order, pause)) {
            wrong.push(format!(
                "{} was paused at {}, and Redis knows nothing of it",
                order.name, order.from_ms
            ));
        }
    }
    // A fault of the last seconds may keep a host from learning of the pause, or delay a claim.
    let is_late = |claim: &&Claim| {
        let struck = |done: &Done| {
            let is_here = done.host.is_none_or(|struck| Some(struck) == host(&claim.consumer, pids));
            let is_now =
                done.from_ms <= claim.at_ms && claim.at_ms <= done.fault.strikes_until(done.to_ms) + KNOWN_MS;
            done.fault.ends_leases() && is_here && is_now
        };
        claim.at_ms > claim.paused_ms + KNOWN_MS && !faults.iter().any(struck)
    };
    for Claim { queue, consumer, paused_ms, at_ms } in history.while_paused.iter().filter(is_late) {
        wrong.push(format!(
            "{consumer} claimed a task of {queue} at {at_ms}, which was paused at {paused_ms}"
        ));
    }
    wrong
}

/// Whether Redis may have forgotten what was requested and answered in this time.
pub fn is_lost((from_ms, to_ms): (u64, u64), losses: &[Loss]) -> bool {
    losses.iter().any(|loss| from_ms <= loss.1 && to_ms >= loss.0)
}

/// Whether Redis may have forgotten that this task was requeued.
pub fn is_requeue_lost(name: &str, sent: &Sent, losses: &[Loss]) -> bool {
    let is_it = |order: &Order| {
        order.kind == Kind::Requeue && order.name == name && is_lost((order.from_ms, order.to_ms), losses)
    };
    sent.orders.iter().any(is_it)
}
