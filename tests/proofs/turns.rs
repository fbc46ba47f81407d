//! Random steps of three consumers on a queue that limits which tasks run beside each other, against a real
//! Redis: never more at once than may, never out of order, nothing lost, and nothing is left behind.
//!
//! Each consumer claims, begins, settles in every way, and is taken over from at any moment; it then still
//! believes that it owns its tasks. A consumer that could not renew its leases stops what it runs; then it
//! finds the entries again, or another one takes them over after the lease. Tasks are cancelled, and requeued
//! when they are dead. The test must find every script that lacks a guard ([`OF_TURNS`]). Not here: real
//! hosts (`faults::turns`), queues without such limits (`property`).

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use std::time::Duration;

use tqhost::testing::config::Config;
use tqhost::testing::queue::{
    Begun, Ending, EndingSubject, Link, Queue, Redis, SettleCall, Settled, Settlement, Start, StreamEntry,
    codec,
};
use tqhost::testing::task::{Outcome, Task};
use tqhost::testing::worker::settle;

use super::property::mutants::{Mutation, Mutator, OF_TURNS};
use crate::support::RedisServer;

const STREAM: &str = "work";
const CONSUMERS: [&str; 3] = ["c1", "c2", "c3"];
const STEPS: usize = 150;
const TASKS: usize = 50;
/// Runs of an ordinary test, and until a mutant must be found.
const RUNS: u64 = 30;
const RUNS_FOR_A_MUTANT: u64 = 60;

/// The kinds of limits: the options, how many tasks of one key may have begun, how many may be pending.
const LIMITS: [(&str, usize, usize); 4] = [
    ("serial = { field = \"key\" }", 1, usize::MAX),
    ("serial = { field = \"key\", limit = 2 }", 2, usize::MAX),
    ("max_running = 1\norder = \"strict\"", 1, 1),
    ("max_running = 2\nserial = { field = \"key\" }", 1, 2),
];

/// Gives up with a message, unless it holds.
macro_rules! check {
    ($holds:expr, $($why:tt)*) => {
        if !$holds {
            return Err(format!($($why)*));
        }
    };
}

struct World {
    random: fastrand::Rng,
    queue: Queue,
    link: Link,
    db: redis::Connection,
    limit: usize,
    most: usize,
    /// The tasks that each consumer believes to own, by entry.
    held: HashMap<&'static str, HashMap<String, Task>>,
    calls: u64,
    added: usize,
    /// The key of each task; the same for all where one order holds for all.
    keys: HashMap<String, String>,
    /// The tasks of each key that have not ended, in their order.
    order: HashMap<String, VecDeque<String>>,
    begun: HashMap<String, HashSet<String>>,
    /// The entries that a consumer runs under a lease that is not over.
    running: HashSet<String>,
    /// The entries, each with its task, whose consumers stopped them when they could not renew the leases.
    silent: HashMap<String, String>,
    /// The tasks that were cancelled while they were pending.
    marked: HashSet<String>,
}

impl World {
    async fn new(redis: &RedisServer, port: u16, seed: u64) -> World {
        let (options, limit, most) = LIMITS[seed as usize % LIMITS.len()];
        let text =
            format!("[queues.{STREAM}]\nbackoff = {{ delays = [\"1ms\"] }}\nmax_retries = 1000\n{options}\n");
        let config = Config::parse(&text, Path::new("/srv/tqhost.toml"), &|_| None).expect("a configuration");
        let mut db = redis.connection();
        redis::cmd("FLUSHALL").exec(&mut db).expect("FLUSHALL");
        let link = Redis::open(&format!("redis://127.0.0.1:{port}")).expect("a URL").link();
        let queue = Queue::new(config.queues.into_iter().next().expect("a queue"), link.clone());
        queue.ensure_group().await.expect("a group");
        World {
            random: fastrand::Rng::with_seed(seed),
            queue,
            link,
            db,
            limit,
            most,
            held: CONSUMERS.map(|name| (name, HashMap::new())).into(),
            calls: 0,
            added: 0,
            keys: HashMap::new(),
            order: HashMap::new(),
            begun: HashMap::new(),
            running: HashSet::new(),
            silent: HashMap::new(),
            marked: HashSet::new(),
        }
    }

    async fn run(mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            self.step().await?;
            self.look().await?;
        }
        // Now everything ends.
        for _ in 0..TASKS * 8 {
            self.promote().await?;
            for consumer in CONSUMERS {
                self.claim(consumer).await?;
                if !self.silent.is_empty() {
                    self.recover(consumer).await?;
                }
                for entry in self.held[consumer].keys().cloned().collect::<Vec<_>>() {
                    self.settle(consumer, &entry, completed()).await?;
                }
            }
        }
        let open: Vec<_> = self.order.values().filter(|tasks| !tasks.is_empty()).collect();
        check!(open.is_empty(), "never ended: {open:?}");
        let base = format!("tq:{{{STREAM}}}");
        let keys = ["owners", "tracks", "delayed", "parked"].map(|key| format!("{base}:{key}"));
        let left: u64 = redis::cmd("EXISTS").arg(&keys).query(&mut self.db).expect("EXISTS");
        check!(left == 0, "keys are left behind: {left}");
        Ok(())
    }

    async fn step(&mut self) -> Result<(), String> {
        let consumer = CONSUMERS[self.random.usize(..CONSUMERS.len())];
        match self.random.u32(..100) {
            0..28 if self.added < TASKS => self.add(),
            28..55 => self.claim(consumer).await?,
            55..82 => {
                let outcome = match self.random.u32(..5) {
                    0..3 => completed(),
                    3 => Outcome::Retry { message: "no".into(), after: None },
                    _ => Outcome::Reject { message: "no".into() },
                };
                if let Some(entry) = self.any_of(consumer) {
                    self.settle(consumer, &entry, outcome).await?;
                }
            }
            82..86 => self.promote().await?,
            86..89 => self.take_over(consumer),
            89..92 => self.cancel().await?,
            92..95 => self.fall_silent(consumer),
            95..98 => self.recover(consumer).await?,
            98..100 => self.reclaim(consumer).await?,
            _ => {}
        }
        Ok(())
    }

    fn any_of(&mut self, consumer: &str) -> Option<String> {
        let mut entries: Vec<String> = self.held[consumer].keys().cloned().collect();
        entries.sort();
        if entries.is_empty() { None } else { Some(entries.swap_remove(self.random.usize(..entries.len()))) }
    }

    fn add(&mut self) {
        self.added += 1;
        let key = ["a", "b", "c"][self.random.usize(..3)];
        let own = (self.random.u32(..8) == 0).then(|| format!("own-{}", self.added));
        let mut add = redis::cmd("XADD");
        add.arg(STREAM).arg("*").arg("key").arg(key).arg("n").arg(self.added);
        if let Some(own) = &own {
            add.arg("tq-id").arg(own);
        }
        let entry: String = add.query(&mut self.db).expect("XADD");
        let id = own.unwrap_or(entry);
        let key = if self.queue.rules.turns.are_strict() { "all" } else { key };
        self.keys.insert(id.clone(), key.to_owned());
        self.order.entry(key.to_owned()).or_default().push_back(id);
    }

    async fn claim(&mut self, consumer: &'static str) -> Result<(), String> {
        let count = self.random.usize(1..5);
        let claimed = self.queue.claim(&self.link, consumer, count).await.map_err(told)?;
        check!(claimed.entries.len() <= count, "claimed too many");
        for entry in claimed.entries {
            self.begin(consumer, entry, false).await?;
        }
        let (pending, ..): (usize, redis::Value, redis::Value, redis::Value) =
            redis::cmd("XPENDING").arg(STREAM).arg("tqhost").query(&mut self.db).expect("XPENDING");
        check!(pending <= self.most, "{pending} tasks are pending");
        Ok(())
    }

    async fn begin(&mut self, consumer: &'static str, entry: StreamEntry, again: bool) -> Result<(), String> {
        let task = codec::decode(&STREAM.into(), entry).map_err(|(why, _)| why.to_string())?;
        let key = self.keys[&task.id].clone();
        let waiting = &self.order[&key];
        check!(waiting.contains(&task.id), "{} has ended before", task.id);
        if self.limit == 1 {
            check!(waiting[0] == task.id, "{} is not the first one of {waiting:?}", task.id);
        }
        let begun = self.begun.entry(key).or_default();
        begun.insert(task.id.clone());
        check!(begun.len() <= self.limit, "have begun: {begun:?}");
        let start = Start { again, ..Start::of(&task, None, Duration::ZERO) };
        let answer = self.queue.begin(consumer, "plugin", &[start]).await.map_err(told)?;
        self.silent.remove(&task.entry);
        if self.marked.contains(&task.id) {
            check!(answer == [Begun::Cancelled], "{answer:?}");
            self.ended(&task.id);
            return Ok(());
        }
        check!(matches!(answer[..], [Begun::Owned { .. }]), "{answer:?}");
        let deliveries = self.pending(&task.entry).map(|(_, deliveries)| deliveries);
        check!(deliveries == Some(1), "counts as a crash: {} has {deliveries:?} deliveries", task.id);
        self.running.insert(task.entry.clone());
        self.held.get_mut(consumer).expect("a consumer").insert(task.entry.clone(), task);
        Ok(())
    }

    async fn settle(&mut self, consumer: &'static str, entry: &str, outcome: Outcome) -> Result<(), String> {
        let task = self.held.get_mut(consumer).and_then(|held| held.remove(entry)).expect("a task");
        let owns = self.owns(consumer, entry);
        let decision = settle::decide(outcome, &task, &self.queue.rules, 0.0);
        let status = format!("tq:{{{STREAM}}}:task:{}", task.id);
        let mark: Option<String> =
            redis::cmd("HGET").arg((&status, "cancel")).query(&mut self.db).expect("HGET");
        let ends = mark.is_some() || !matches!(decision.settlement, Settlement::Park { .. });
        let id = task.id.clone();
        let subject = EndingSubject::Task(Box::new(task));
        let ending =
            Ending::new(subject, decision.settlement, "plugin".into(), Some(Duration::ZERO), true, None);
        self.calls += 1;
        let call = SettleCall { lane: 0, number: self.calls };
        let settled =
            self.queue.settle(consumer, call, &[&ending]).await.map_err(told)?.remove(0).map_err(told)?;
        check!((settled == Settled::Done) == owns, "{settled:?}, and owns it: {owns}");
        if owns {
            self.running.remove(entry);
        }
        if owns && ends {
            self.ended(&id);
        }
        Ok(())
    }

    fn owns(&mut self, consumer: &str, entry: &str) -> bool {
        self.pending(entry).is_some_and(|(owner, _)| owner == consumer)
    }

    /// The owner of an entry that is pending, and how often it was delivered.
    fn pending(&mut self, entry: &str) -> Option<(String, u64)> {
        let pending: Vec<(String, String, u64, u64)> = redis::cmd("XPENDING")
            .arg((STREAM, "tqhost", entry, entry, 1))
            .query(&mut self.db)
            .expect("XPENDING");
        pending.into_iter().next().map(|(_, owner, _, deliveries)| (owner, deliveries))
    }

    fn ended(&mut self, id: &str) {
        let key = &self.keys[id];
        self.order.get_mut(key).expect("a key").retain(|task| task != id);
        self.begun.entry(key.clone()).or_default().remove(id);
    }

    async fn promote(&mut self) -> Result<(), String> {
        std::thread::sleep(Duration::from_millis(2));
        let promoted = self.queue.promote(100).await.map_err(told)?;
        check!(promoted.lost == 0, "{promoted:?}");
        Ok(())
    }

    /// Another consumer takes over what this one has. This one does not know of it.
    fn take_over(&mut self, from: &'static str) {
        let to = CONSUMERS[self.random.usize(..CONSUMERS.len())];
        for (entry, task) in self.held[from].clone() {
            if to != from && self.owns(from, &entry) {
                redis::cmd("XCLAIM")
                    .arg((STREAM, "tqhost", to, 0, &entry, "JUSTID"))
                    .exec(&mut self.db)
                    .expect("XCLAIM");
                self.running.insert(entry.clone());
                self.held.get_mut(to).expect("a consumer").insert(entry, task);
            }
        }
    }

    /// A consumer could not renew its leases until they are over, and has stopped what it ran.
    fn fall_silent(&mut self, consumer: &'static str) {
        let idle = 2 * self.queue.rules.lease.as_millis() as u64;
        for (entry, task) in self.held[consumer].clone() {
            if self.owns(consumer, &entry) {
                redis::cmd("XCLAIM")
                    .arg((STREAM, "tqhost", consumer, 0, &entry, "IDLE", idle, "JUSTID"))
                    .exec(&mut self.db)
                    .expect("XCLAIM");
                self.held.get_mut(consumer).expect("a consumer").remove(&entry);
                self.running.remove(&entry);
                self.silent.insert(entry, task.id);
            }
        }
    }

    /// A consumer finds the entries again that are pending for it and that it does not run.
    async fn recover(&mut self, consumer: &'static str) -> Result<(), String> {
        let in_flight: Vec<String> = self.held[consumer].keys().cloned().collect();
        let found = self.queue.recover(&self.link, consumer, &in_flight, 100).await.map_err(told)?;
        check!(found.lost.is_empty(), "{found:?}");
        for entry in found.entries {
            self.begin(consumer, entry, true).await?;
        }
        Ok(())
    }

    /// A consumer takes over what went without a heartbeat for a whole lease.
    async fn reclaim(&mut self, consumer: &'static str) -> Result<(), String> {
        let found = self.queue.reclaim(consumer, "-", 100, Duration::ZERO).await.map_err(told)?;
        for entry in found.entries {
            check!(!self.running.contains(&entry.id), "two owners: {} is taken over as it runs", entry.id);
            self.begin(consumer, entry, true).await?;
        }
        Ok(())
    }

    async fn cancel(&mut self) -> Result<(), String> {
        let mut ids: Vec<&String> = self.order.values().flatten().collect();
        ids.sort();
        if ids.is_empty() {
            return Ok(());
        }
        let id = ids[self.random.usize(..ids.len())].clone();
        let pending = CONSUMERS.into_iter().any(|consumer| {
            let entries: Vec<String> = self.held[consumer]
                .values()
                .filter(|task| task.id == id)
                .map(|task| task.entry.clone())
                .collect();
            entries.iter().any(|entry| self.owns(consumer, entry))
        });
        let pending = pending || self.silent.values().any(|silent| *silent == id);
        self.queue.cancel(&id).await.map_err(told)?;
        // A task that is claimed ends when its owner settles it.
        if pending {
            self.marked.insert(id);
        } else {
            self.ended(&id);
        }
        Ok(())
    }

    /// Looks whether the tracks are whole.
    async fn look(&mut self) -> Result<(), String> {
        let faults = self.queue.look_at_tracks(false, Duration::ZERO).await.map_err(told)?;
        check!(faults.is_empty(), "{faults:?}");
        Ok(())
    }
}

fn completed() -> Outcome {
    Outcome::Completed { result: None, effects: None }
}

fn told(error: impl std::error::Error) -> String {
    format!("{error}: {:?}", error.source().map(ToString::to_string))
}

/// Runs until there is a difference. Gives the number of runs, and the difference.
fn differs(redis: &RedisServer, mutation: Option<&Mutation>, runs: u64) -> (u64, Option<String>) {
    let port = Mutator::start(redis, mutation).port;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for seed in 0..runs {
        let ran = runtime.block_on(async { World::new(redis, port, seed).await.run().await });
        if let Err(why) = ran {
            return (seed + 1, Some(format!("seed {seed}: {why}")));
        }
    }
    (runs, None)
}

#[test]
fn limits_hold_and_nothing_is_lost_whatever_consumers_do() {
    let dir = tempfile::tempdir().expect("create a folder");
    let redis = RedisServer::start(dir.path(), &[]);
    assert_eq!(differs(&redis, None, RUNS).1, None);
}

#[test]
fn every_guard_of_turns_that_is_missing_is_found_out() {
    let dir = tempfile::tempdir().expect("create a folder");
    let redis = RedisServer::start(dir.path(), &[]);
    let mut not_found = Vec::new();
    for mutation in OF_TURNS {
        let (runs, difference) = differs(&redis, Some(mutation), RUNS_FOR_A_MUTANT);
        println!("{}: {runs} runs: {difference:?}", mutation.what);
        if difference.as_ref().is_none_or(|difference| !difference.contains(mutation.found)) {
            not_found.push((mutation.what, runs, difference));
        }
    }
    assert!(not_found.is_empty(), "{not_found:#?}");
}
