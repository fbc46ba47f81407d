//! Carries out operations on Redis, by the library, and on the reference, and compares the replies.
//!
//! In: operations. Out: an error when a reply or a state differs. Not here: the rules (`reference`), how
//! attempts end (`attempts`), the comparison of states (`look`), the choice of operations
//! (`tests/proofs/property.rs`).

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq};
use tqhost::testing::config::{self, times};
use tqhost::testing::queue::DeadChoice;
use tqhost::testing::queue::PauseChange;
use tqhost::testing::queue::Places as Starts;
use tqhost::testing::queue::codec;
use tqhost::testing::queue::{
    Begun, Enqueued, HeartbeatReport, Lease, Link, NewTask, Queue, Redis, Start, Status, StreamEntry,
    TaskFilter,
};
use tqhost::testing::task::{Field, Origin};
use tqhost::testing::worker::settle;

use super::attempts::{Call, Held};
use super::look::{Entries, PARKED, name_of, pairs};
use super::reference::{Known, Place, Reference};
use super::{CONSUMERS, End, Op};
use crate::support::RedisServer;

pub const HOUR: Duration = Duration::from_secs(3600);
const MAX_BACKLOG: usize = 8;
/// Starts per second.
const RATE: u32 = 20;
/// Starts that may be taken ahead of time: those of a tenth of a second.
const AHEAD: u64 = RATE as u64 / 10;

pub const STREAM: &str = "work";
pub const GROUP: &str = "tqhost";
/// The record that effects write to.
pub const RECORD: &str = "record";
/// The list whose items become tasks.
pub const LIST: &str = "items";
/// The most items that the list has.
const MAX_ITEMS: usize = 5;

pub type Step = Result<(), TestCaseError>;

/// A consumer, and the tasks that it believes to own.
pub struct Consumer {
    pub name: String,
    pub held: Vec<Held>,
}

pub struct World {
    pub reference: Reference,
    pub queue: Queue,
    link: Link,
    pub db: redis::Connection,
    pub consumers: Vec<Consumer>,
    started: usize,
    added: usize,
    enqueued: Vec<NewTask>,
    /// The calls that settled attempts.
    pub settled: Vec<Call>,
    /// The number of each consumer's last call.
    pub numbers: HashMap<String, u64>,
    /// How many calls there were.
    pub calls: u64,
    schedule: config::Schedule,
    /// Redis's clock (µs) before and after places for starts were taken, and how many places were used.
    starts: Vec<(u64, u64, u64)>,
}

impl World {
    /// Empties Redis and creates the group. The library reaches Redis at `url`. `keeps` says whether the
    /// statuses of ended tasks are kept.
    pub async fn new(server: &RedisServer, url: &str, keeps: bool) -> Result<World, TestCaseError> {
        let mut db = server.connection();
        redis::cmd("FLUSHALL").exec(&mut db).expect("FLUSHALL");
        let redis = Redis::open(url).expect("a valid URL");
        let rules = config::QueueRules {
            name: STREAM.into(),
            stream: STREAM.into(),
            group: GROUP.into(),
            plugin: STREAM.into(),
            concurrency: 10,
            batch: config::Batch { max_tasks: None, max_wait: Duration::ZERO },
            priority: 1,
            lease: HOUR,
            timeout: HOUR,
            max_retries: 2,
            backoff: config::Backoff::Delays([HOUR].into()),
            max_deferrals: 1,
            max_crashes: 2,
            max_backlog: MAX_BACKLOG as u32,
            rate_limit: Some(config::Rate { count: RATE, per: Duration::from_secs(1) }),
            hold: None,
            turns: Default::default(),
            idempotency: Default::default(),
            id: None,
            expire_after: None,
            retention: if keeps { HOUR } else { Duration::ZERO },
            list: Some(config::List { key: LIST.into(), items: config::Items::Bytes }),
            schedule: None,
            dead_letter: None,
            // Tasks of the outbox go to the queue itself.
            enqueue_to: vec![config::TargetQueue {
                name: STREAM.into(),
                stream: STREAM.into(),
                group: GROUP.into(),
                dead_letter: None,
                max_backlog: MAX_BACKLOG as u32,
                key: vec![],
                id: None,
                retention: if keeps { HOUR } else { Duration::ZERO },
                is_strict: false,
                leads_back: true,
                is_relayed: false,
            }],
            flow_partners: vec![],
            on_end: Default::default(),
            events: 0,
            failed_attempts: 10,
            show: vec![],
            keep_fields: false,
        };
        let consumers =
            (0..CONSUMERS).map(|n| Consumer { name: format!("c{n}"), held: Vec::new() }).collect();
        let queue = Queue::new(rules, redis.link());
        queue.ensure_group().await.map_err(failed)?;
        let cron = times::parse_cron("0 0 * * *").expect("a cron expression");
        let times = times::ScheduleTimes::new(vec![cron], times::parse_zone("UTC").expect("a time zone"));
        Ok(World {
            schedule: config::Schedule { times, missed: config::Missed::Once, fields: Vec::new() },
            starts: Vec::new(),
            reference: Reference::new(keeps),
            queue,
            link: redis.link_blocking_for(Duration::ZERO),
            db,
            consumers,
            started: CONSUMERS,
            added: 0,
            enqueued: Vec::new(),
            settled: Vec::new(),
            numbers: HashMap::new(),
            calls: 0,
        })
    }

    pub async fn step(&mut self, op: Op) -> Step {
        self.carry_out(op).await?;
        self.compare()
    }

    async fn carry_out(&mut self, op: Op) -> Step {
        match op {
            Op::Enqueue { delayed, key } => {
                let mut task = NewTask::new(vec![self.field()], if delayed { HOUR } else { Duration::ZERO })
                    .expect("a task");
                if let Some(key) = key {
                    task = task.with_key(format!("k{key}")).expect("a key");
                }
                let expected = match self.reference.holder(key, task.id()) {
                    Some(first) => Enqueued::Duplicate(first),
                    None if self.reference.backlog() >= MAX_BACKLOG => Enqueued::Full,
                    None => Enqueued::Accepted,
                };
                prop_assert_eq!(self.enqueue(&task).await?, expected.clone());
                if expected == Enqueued::Accepted {
                    self.reference.enqueue(&self.name(), task.id(), delayed, key);
                    self.enqueued.push(task);
                }
            }
            Op::Add { has_id, key } => {
                let id = has_id.then(|| format!("own-{}", self.added));
                self.add(id, key)?;
            }
            Op::AddAgain { nth } => {
                let names = self.reference.names(|task| task.id.starts_with("own-"));
                if let Some(name) = chosen(&names, nth) {
                    let Known { id, key, .. } = self.reference.task(&name).clone();
                    if !self.reference.is_deleted(&id) {
                        self.add(Some(id), key)?;
                    }
                }
            }
            Op::Delete { nth } => self.delete(nth).await?,
            Op::Fire { nth, is_late } => {
                let (time, late) = (1000 * (1 + nth as u64), is_late.then_some(HOUR));
                let is_full = self.reference.backlog() >= MAX_BACKLOG;
                let fired = self.queue.fire(&self.schedule, time, late).await.map_err(failed)?;
                prop_assert_eq!(fired, self.reference.fire(time, is_late, is_full));
            }
            Op::Start { wanted, used } => self.start(wanted, used).await?,
            Op::Push => {
                if self.reference.list.len() < MAX_ITEMS {
                    let item = self.number();
                    self.redis::<u64>("LPUSH", (LIST, &item))?;
                    self.reference.list.push_back(item);
                }
            }
            Op::Move { limit, is_repeated } => {
                self.move_items(limit).await?;
                // A host whose reply was lost calls again.
                if is_repeated {
                    self.move_items(limit).await?;
                }
            }
            Op::MoveRefused => self.move_refused().await?,
            Op::EnqueueAgain { nth } => {
                if let Some(task) = chosen(&self.enqueued, nth) {
                    prop_assert_eq!(self.enqueue(&task).await?, Enqueued::Accepted);
                }
            }
            Op::Read { consumer, count } => {
                let entries = self.read(consumer, count).await?;
                self.admit(consumer, entries, true)?;
            }
            Op::ReadUnheard { consumer, count } => drop(self.read(consumer, count).await?),
            Op::Recover { consumer, count } => {
                let Consumer { name, held } = &self.consumers[consumer];
                let in_flight: Vec<String> = held.iter().map(|held| held.task.entry.clone()).collect();
                let found = self.queue.recover(&self.link, name, &in_flight, count).await.map_err(failed)?;
                let is_unseen = |entry: &str| {
                    self.reference.owned(name, entry) && !in_flight.iter().any(|held| held == entry)
                };
                let unseen = self.reference.pending().filter(|(_, entry, ..)| is_unseen(entry)).count();
                prop_assert_eq!(
                    (found.entries.len(), found.lost, found.more),
                    (count.min(unseen), vec![], unseen > count)
                );
                prop_assert!(found.entries.iter().all(|entry| is_unseen(&entry.id)));
                self.admit(consumer, found.entries, false)?;
            }
            Op::Begin { consumer, alone } => self.begin(consumer, alone).await?,
            Op::Beat { consumer } => self.beat(consumer).await?,
            Op::Settle { consumer, nth, end } => {
                let held = self.consumers[consumer].held.len();
                if let Some(one) = nth.checked_rem(held) {
                    self.end(consumer, one..one + 1, [end; 2]).await?;
                }
            }
            Op::SettleAll { consumer, ends } => {
                let held = self.consumers[consumer].held.len();
                if held > 0 {
                    self.end(consumer, 0..held, ends).await?;
                }
            }
            Op::SettleAgain { nth } => self.settle_again(nth).await?,
            Op::Reclaim { consumer, count, died } => {
                let entries = self.reclaim(consumer, count, died).await?;
                self.admit(consumer, entries, false)?;
            }
            Op::ReclaimUnheard { consumer, count } => drop(self.reclaim(consumer, count, true).await?),
            Op::Silence { nth } => {
                let kept: Vec<(String, String, String)> = self
                    .reference
                    .pending()
                    .filter(|found| !found.3)
                    .map(|(name, entry, owner, _)| (name.into(), entry.into(), owner.into()))
                    .collect();
                if let Some((name, entry, owner)) = chosen(&kept, nth) {
                    let idle = 2 * HOUR.as_millis() as u64;
                    self.redis::<redis::Value>(
                        "XCLAIM",
                        (STREAM, GROUP, owner, 0, &entry, "IDLE", idle, "JUSTID"),
                    )?;
                    self.reference.task(&name).silent = true;
                    // Another consumer may take it over and write its status.
                    let held = self.consumers.iter_mut().flat_map(|consumer| &mut consumer.held);
                    held.filter(|held| held.task.entry == entry).for_each(|held| held.known = true);
                }
            }
            Op::Ripen { nth } => {
                let delayed =
                    self.reference.names(|task| task.place == Place::Delayed && task.ripe.is_none());
                if let Some(name) = chosen(&delayed, nth) {
                    let member = self.member(&name)?;
                    let score = self.reference.ripen(&name);
                    self.redis::<u64>("ZADD", (format!("tq:{{{STREAM}}}:delayed"), "XX", score, member))?;
                }
            }
            Op::Promote { limit } => {
                let promoted = self.queue.promote(limit).await.map_err(failed)?;
                prop_assert_eq!((promoted.moved, promoted.lost), (self.reference.promote(limit) as u64, 0));
            }
            Op::RunNow { nth } => {
                let delayed = self.reference.names(|task| task.place == Place::Delayed);
                if let Some(name) = chosen(&delayed, nth) {
                    let (member, id) = (self.member(&name)?, self.reference.task(&name).id.clone());
                    prop_assert!(self.queue.promote_early(&member, &id).await.map_err(failed)?);
                    self.reference.run_now(&name);
                    prop_assert!(!self.queue.promote_early(&member, &id).await.map_err(failed)?);
                }
            }
            Op::Requeue { nth } => {
                if let Some(id) = self.id(|_| true, nth) {
                    let dead = self.reference.dead(&id);
                    let done =
                        self.queue.requeue(&DeadChoice::Ids(vec![id.clone()]), None).await.map_err(failed)?;
                    let is_done = dead.is_some_and(|name| self.reference.requeue(&name));
                    prop_assert_eq!(
                        (done.succeeded, done.skipped),
                        (u64::from(is_done), u64::from(!is_done))
                    );
                }
            }
            Op::RequeueAll => {
                let letters = self.queue.dead_letters(&TaskFilter::default(), 1000).await.map_err(failed)?;
                let done =
                    self.queue.requeue(&DeadChoice::All(Box::default()), None).await.map_err(failed)?;
                // Oldest first. The comparison of places shows whether each of them was dead.
                let names = letters.iter().map(|letter| name_of(pairs(&letter.fields), &letter.id));
                let requeued = names.filter(|name| self.reference.requeue(name)).count();
                let expected = (requeued as u64, (letters.len() - requeued) as u64);
                prop_assert_eq!((done.succeeded, done.skipped), expected);
            }
            Op::Purge { nth } => {
                if let Some(id) = self.id(|task| task.place == Place::Dead, nth) {
                    let dead = self.reference.dead(&id).expect("a dead letter");
                    let done = self.queue.purge(&DeadChoice::Ids(vec![id.clone()])).await.map_err(failed)?;
                    prop_assert_eq!((done.succeeded, done.skipped), (1, 0));
                    self.reference.task(&dead).place = Place::Nowhere;
                }
            }
            Op::Cancel { nth } => {
                // Tasks whose entry was deleted are left out: cancelling them leaves a mark, which the
                // reference does not have.
                if let Some(id) = self.id(|_| true, nth).filter(|id| !self.reference.is_deleted(id)) {
                    let before = self.queue.cancel(&id).await.map_err(failed)?;
                    prop_assert_eq!(before, self.reference.cancel(&id));
                }
            }
            Op::Pause => prop_assert_eq!(
                self.queue.pause("", "", None).await.map_err(failed)? == PauseChange::New,
                !std::mem::replace(&mut self.reference.paused, true)
            ),
            Op::Resume => prop_assert_eq!(
                self.queue.resume().await.map_err(failed)?,
                std::mem::take(&mut self.reference.paused)
            ),
            Op::Crash { consumer } => {
                self.consumers[consumer] = Consumer { name: format!("c{}", self.started), held: Vec::new() };
                self.started += 1;
            }
            Op::Leave { consumer } => {
                let name = &self.consumers[consumer].name;
                self.queue.leave(name, 1).await.map_err(failed)?;
                if self.reference.pending().all(|(_, _, owner, _)| owner != name) {
                    self.numbers.remove(name);
                }
            }
            Op::ForgetScripts => self.redis::<()>("SCRIPT", "FLUSH")?,
        }
        Ok(())
    }

    /// Lets a new consumer end all tasks that are left. Then each task must have exactly one end.
    pub async fn drain(&mut self) -> Step {
        self.step(Op::Resume).await?;
        for consumer in 0..CONSUMERS {
            self.step(Op::Crash { consumer }).await?;
        }
        let mut rounds = 0;
        while self.reference.backlog() > 0 || !self.reference.list.is_empty() {
            prop_assert!(rounds < 20, "something is stuck: {:?}", self.reference);
            rounds += 1;
            for _ in 0..MAX_BACKLOG {
                self.step(Op::Ripen { nth: 0 }).await?;
                self.step(Op::Silence { nth: 0 }).await?;
            }
            let count = MAX_BACKLOG;
            for op in [
                Op::Move { limit: count, is_repeated: false },
                Op::Promote { limit: count },
                Op::Reclaim { consumer: 0, count, died: true },
                Op::Read { consumer: 0, count },
                Op::Begin { consumer: 0, alone: false },
            ] {
                self.step(op).await?;
            }
            while !self.consumers[0].held.is_empty() {
                self.step(Op::Settle { consumer: 0, nth: 0, end: End::Complete }).await?;
            }
        }
        for (name, task) in &self.reference.tasks {
            prop_assert!(task.ended.is_some() || task.deleted, "{name}: {task:?}");
            prop_assert_eq!(task.commits, u32::from(task.ended == Some(Status::Completed)), "{}", name);
        }
        Ok(())
    }

    /// The member of a task among the delayed ones.
    fn member(&mut self, name: &str) -> Result<String, TestCaseError> {
        let parked: Vec<(String, String)> =
            self.redis("EVAL", (PARKED, 1, format!("tq:{{{STREAM}}}:parked")))?;
        Ok(parked.into_iter().find(|(_, its)| its == name).expect("a delayed task").0)
    }

    /// Adds a task as a producer does, unless the backlog is full.
    fn add(&mut self, id: Option<String>, key: Option<usize>) -> Step {
        if self.reference.backlog() < MAX_BACKLOG {
            let Field { name, value } = self.field();
            let mut add = redis::cmd("XADD");
            add.arg(STREAM).arg("*").arg(&name).arg(value);
            if let Some(id) = &id {
                add.arg("tq-id").arg(id);
            }
            if let Some(key) = key {
                add.arg("tq-key").arg(format!("k{key}"));
            }
            let entry: String = add.query(&mut self.db).map_err(failed)?;
            self.reference.add(&self.name(), &id.unwrap_or(entry), key);
        }
        Ok(())
    }

    /// Moves items of the list into the queue. A reply that was lost makes no difference, so each call is
    /// compared.
    async fn move_items(&mut self, limit: usize) -> Step {
        let room = MAX_BACKLOG.saturating_sub(self.reference.backlog());
        let expected = limit.min(room).min(self.reference.list.len());
        prop_assert_eq!(
            self.queue.move_items(&[LIST.to_owned()], limit).await.map_err(failed)?,
            expected as u64
        );
        let newest: Entries = self.redis("XREVRANGE", (STREAM, "+", "-", "COUNT", expected.max(1)))?;
        for (entry, fields) in newest.iter().take(expected).rev() {
            // The oldest item is the first one. The comparison of places shows whether it is this one.
            let item = self.reference.list.pop_front().unwrap_or_default();
            prop_assert_eq!(fields.get("data"), Some(&item));
            self.reference.add(&item, entry, None);
        }
        Ok(())
    }

    /// Redis refuses the tasks of items, so the items stay where they are.
    async fn move_refused(&mut self) -> Step {
        let is_moved =
            self.reference.list.len().min(MAX_BACKLOG.saturating_sub(self.reference.backlog())) > 0;
        self.redis::<()>("ACL", ("SETUSER", "default", "-xadd"))?;
        let moved = self.queue.move_items(&[LIST.to_owned()], 1).await;
        self.redis::<()>("ACL", ("SETUSER", "default", "+xadd"))?;
        prop_assert_eq!(moved.is_err(), is_moved, "{:?}", moved);
        Ok(())
    }

    /// Deletes an entry that waits, or one that a consumer holds. The consumer sends a heartbeat at once,
    /// since the result would otherwise depend on the next reclaims.
    async fn delete(&mut self, nth: usize) -> Step {
        let entries: Entries = self.redis("XRANGE", (STREAM, "-", "+"))?;
        let is_held = |consumer: &Consumer, entry: &str| {
            self.reference.owned(&consumer.name, entry)
                && consumer.held.iter().any(|held| held.task.entry == entry)
        };
        let holder = |entry: &str| self.consumers.iter().position(|consumer| is_held(consumer, entry));
        let able: Vec<(String, String, Option<usize>)> = entries
            .into_iter()
            .map(|(entry, fields)| (name_of(&fields, &entry), holder(&entry), entry))
            .filter(|(name, holder, _)| holder.is_some() || self.reference.queue.contains(name))
            .map(|(name, holder, entry)| (name, entry, holder))
            .collect();
        let Some((name, entry, holder)) = chosen(&able, nth) else { return Ok(()) };
        // Ids with several tasks are left out, as the reference does not know how these affect each other
        // here.
        let id = self.reference.task(&name).id.clone();
        if self.reference.names(|task| task.id == id).len() > 1 {
            return Ok(());
        }
        self.redis::<u64>("XDEL", (STREAM, &entry))?;
        self.reference.delete(&name);
        match holder {
            Some(consumer) => self.beat(consumer).await,
            None => Ok(()),
        }
    }

    /// Takes places for starts, gives back the unused ones, and checks the rate.
    async fn start(&mut self, wanted: usize, used: usize) -> Step {
        let from = self.now_us()?;
        match self.queue.take_places(self.queue.rules.rate_limit, wanted).await.map_err(failed)? {
            Starts::Taken(taken) => {
                let used = used.min(taken);
                self.queue
                    .give_places_back(self.queue.rules.rate_limit, taken - used)
                    .await
                    .map_err(failed)?;
                let to = self.now_us()?;
                self.starts.push((from, to, used as u64));
                let step = 1_000_000 / u64::from(RATE);
                let mut sum = 0;
                for (first, _, used) in self.starts.iter().rev() {
                    sum += used;
                    prop_assert!(
                        sum <= (to - first) / step + AHEAD,
                        "{} starts within {} us",
                        sum,
                        to - first
                    );
                }
            }
            Starts::Wait(time) => prop_assert!(
                time <= Duration::from_secs(1) / RATE + Duration::from_millis(1),
                "waits for {:?}",
                time
            ),
        }
        Ok(())
    }

    fn now_us(&mut self) -> Result<u64, TestCaseError> {
        let (seconds, us): (u64, u64) = redis::cmd("TIME").query(&mut self.db).map_err(failed)?;
        Ok(seconds * 1_000_000 + us)
    }

    /// The id of the `nth` of these tasks.
    fn id(&self, is: impl Fn(&Known) -> bool, nth: usize) -> Option<String> {
        chosen(&self.reference.names(is), nth).map(|name| self.reference.tasks[&name].id.clone())
    }

    /// The name of the task that was added last.
    fn name(&self) -> String {
        self.added.to_string()
    }

    /// A number that no other task has.
    fn number(&mut self) -> String {
        self.added += 1;
        self.name()
    }

    /// A field with a number that no other task has.
    pub fn field(&mut self) -> Field {
        Field { name: "n".into(), value: self.number().into() }
    }

    async fn enqueue(&self, task: &NewTask) -> Result<Enqueued, TestCaseError> {
        let mut replies = self.queue.enqueue(std::slice::from_ref(task)).await.map_err(failed)?;
        replies.remove(0).map_err(failed)
    }

    async fn read(&mut self, consumer: usize, count: usize) -> Result<Vec<StreamEntry>, TestCaseError> {
        // A read without entries would block for about 100 ms, as long as Redis's timers take.
        if self.reference.queue.is_empty() {
            return Ok(Vec::new());
        }
        let name = &self.consumers[consumer].name;
        let entries = self.queue.read(&self.link, name, count, None).await.map_err(failed)?;
        prop_assert_eq!(entries.len(), count.min(self.reference.queue.len()));
        for entry in &entries {
            prop_assert_eq!(
                self.reference.read(name, &entry.id),
                Some(name_of(pairs(&entry.fields), &codec::id_of(entry)))
            );
        }
        Ok(entries)
    }

    async fn reclaim(
        &mut self,
        consumer: usize,
        count: usize,
        died: bool,
    ) -> Result<Vec<StreamEntry>, TestCaseError> {
        let name = &self.consumers[consumer].name;
        let silent = self.reference.pending().filter(|found| found.3).count();
        let first = self.queue.first_abandoned("-", self.queue.rules.lease).await.map_err(failed)?;
        prop_assert_eq!(first.is_some(), silent > 0);
        // All consumers made calls a moment ago, long after the leases that the test let expire. So the limit
        // decides whether an owner counts as dead.
        let outlived = if died { 10 * HOUR } else { HOUR / 2 };
        let found = self
            .queue
            .reclaim(name, first.as_deref().unwrap_or("-"), count, outlived)
            .await
            .map_err(failed)?;
        prop_assert!(found.lost.is_empty());
        prop_assert_eq!(found.entries.len(), count.min(silent));
        for entry in &found.entries {
            prop_assert!(self.reference.reclaim(name, &entry.id, died), "{} was kept alive", entry.id);
        }
        Ok(found.entries)
    }

    /// Takes in entries like the host's intake: an entry that is held already stays as it is, and a plain
    /// task that was read begins without a script.
    fn admit(&mut self, consumer: usize, entries: Vec<StreamEntry>, is_read: bool) -> Step {
        let queue: Arc<str> = STREAM.into();
        for entry in entries {
            let task = codec::decode(&queue, entry).map_err(failed)?;
            let name = self.reference.find(&task.entry).unwrap_or_default();
            let known = self.reference.task(&name);
            let Place::Pending { deliveries, .. } = known.place else {
                return Err(TestCaseError::fail(format!("{known:?} was delivered")));
            };
            let expected = (known.attempt, known.deferrals, known.crashes + deliveries - 1);
            prop_assert_eq!((task.attempt, task.deferrals, task.crashes), expected);
            let held = &mut self.consumers[consumer].held;
            if !held.iter().any(|held| held.task.entry == task.entry) {
                let begun =
                    is_read && task.origin != Origin::Other && task.crashes == 0 && known.key.is_none();
                let known = !begun || task.origin != Origin::Producer;
                held.push(Held { task, begun, known, crashed: false });
            }
        }
        Ok(())
    }

    /// Lets everything that is held pass the gate, or writes that it runs. With `alone`, suspects run alone.
    async fn begin(&mut self, consumer: usize, alone: bool) -> Step {
        let Consumer { name, held } = &mut self.consumers[consumer];
        let (mut new, rest): (Vec<Held>, Vec<Held>) = held.drain(..).partition(|held| !held.crashed);
        *held = rest;
        if new.is_empty() {
            return Ok(());
        }
        let rules = &self.queue.rules;
        let keys: Vec<_> = new.iter().map(|held| codec::idempotency_key(&held.task, rules)).collect();
        let starts = new.iter().zip(&keys).map(|(Held { task, .. }, key)| {
            let start = Start::of(task, key.as_deref(), Duration::ZERO);
            Start { alone: alone && settle::is_suspect(task, rules), ..start }
        });
        let tasks: Vec<Start<'_>> = starts.collect();
        let begun = self.queue.begin(name, "plugin", &tasks).await.map_err(failed)?;
        let mut expected: Vec<Option<Begun>> =
            tasks.iter().map(|task| self.reference.begin(name, task, rules.max_crashes, false)).collect();
        for (task, begun) in tasks.iter().zip(&mut expected).filter(|(_, begun)| begun.is_none()) {
            *begun = self.reference.begin(name, task, rules.max_crashes, true);
        }
        prop_assert_eq!(begun.iter().cloned().map(Some).collect::<Vec<_>>(), expected);
        let mut begun = begun.into_iter();
        new.retain_mut(|held| {
            let begun = begun.next();
            (held.begun, held.known, held.crashed) =
                (matches!(begun, Some(Begun::Owned { .. })), true, begun == Some(Begun::Crashed));
            held.begun || held.crashed
        });
        held.extend(new);
        Ok(())
    }

    /// Sends heartbeats. The consumer keeps a task whose lease is lost, and settles it late.
    async fn beat(&mut self, consumer: usize) -> Step {
        let Consumer { name, held } = &mut self.consumers[consumer];
        if held.is_empty() {
            return Ok(());
        }
        // Progress can be written only to a status that exists.
        let beat = |Held { task, begun, known, .. }: &Held| HeartbeatReport {
            entry: task.entry.clone(),
            task_id: task.id.clone(),
            key: codec::idempotency_key(task, &self.queue.rules).map(Cow::into_owned),
            progress: (*begun && *known).then(|| (1, "on its way".into())),
        };
        let leases =
            self.queue.heartbeat(name, &held.iter().map(beat).collect::<Vec<_>>()).await.map_err(failed)?;
        let mut expected = Vec::new();
        for Held { task, known, .. } in held {
            let owned = self.reference.find(&task.entry).filter(|_| self.reference.owned(name, &task.entry));
            expected.push(if let Some(owned) = owned {
                self.reference.task(&owned).silent = false;
                Lease::Renewed
            } else if self.reference.kept(name, &task.entry).is_some() {
                // The heartbeat has written a status.
                *known = true;
                Lease::Deleted
            } else if self.reference.status(&task.id) == Some(Status::Cancelled) {
                Lease::Cancelled
            } else {
                Lease::Lost
            });
        }
        prop_assert_eq!(leases, expected);
        Ok(())
    }

    fn redis<T: redis::FromRedisValue>(
        &mut self,
        name: &str,
        args: impl redis::ToRedisArgs,
    ) -> Result<T, TestCaseError> {
        redis::cmd(name)
            .arg(args)
            .query(&mut self.db)
            .map_err(|error| TestCaseError::fail(format!("{name}: {error}")))
    }
}

pub fn chosen<T: Clone>(all: &[T], nth: usize) -> Option<T> {
    if all.is_empty() { None } else { Some(all[nth % all.len()].clone()) }
}

pub fn failed(error: impl std::fmt::Debug) -> TestCaseError {
    TestCaseError::fail(format!("{error:?}"))
}
