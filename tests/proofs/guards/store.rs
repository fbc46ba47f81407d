//! Calls the scripts on a Redis, all of them without one guard if the test asks for that.
//!
//! In: attempts and their effects. Out: replies, and what Redis holds. Each reply that cannot be understood
//! is an error, so a mutant that breaks a script is noticed too. Not here: the library's own calls
//! (`queue`), which `property` plays.

mod attempt;

use std::collections::HashMap;
use std::fmt::Debug;

use redis::{Connection, FromRedisValue};
use tqhost::testing::queue::script::{self, Script};

use crate::support::RedisServer;
pub use attempt::{Attempt, Child, Effect};

pub const WORK: &str = "work";
pub const PART: &str = "part";
pub const JOIN: &str = "join";
pub const TOLD: &str = "told";
const GROUP: &str = "tqhost";
const HOUR_MS: &str = "3600000";
/// The queues of flows, as a host names them.
const PARTNERS: &str = r#"[
    {"stream": "part", "base": "tq:{part}", "dead": "tq:{part}:dead", "group": "tqhost"},
    {"stream": "join", "base": "tq:{join}", "dead": "tq:{join}:dead", "group": "tqhost"}
]"#;

/// An error says where a scenario went another way.
pub type Step<T = ()> = Result<T, String>;
/// Texts of the scripts with their replacements, which together take out one guard.
pub type Mutation = &'static [(&'static str, &'static str)];

pub fn same<A: PartialEq<B> + Debug, B: Debug>(what: &str, found: A, expected: B) -> Step {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?}, not {expected:?}")) }
}

fn key(queue: &str, what: &str) -> String {
    format!("tq:{{{queue}}}:{what}")
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// A Redis whose scripts lack the guard of a mutation, if there is one.
pub struct Store {
    db: Connection,
    mutation: Option<Mutation>,
    /// The number of the last call of settle.lua.
    number: u64,
    pub retention: &'static str,
    /// The retention of the queue of children.
    pub retention_there: &'static str,
    /// The value of the only field that is each child's own.
    pub payload: String,
    /// The delivery that the gate is asked about.
    pub gate: Gate,
    /// Whether the tasks of a queue follow each other in one track.
    pub has_turns: bool,
}

/// A delivery, as the gate takes it: how long (ms) ago it was, the crashes, whether the task runs alone, its
/// fence, and whether another host may have run it.
#[derive(Debug, Clone, Copy)]
pub struct Gate {
    pub held: &'static str,
    pub crashes: &'static str,
    pub alone: &'static str,
    pub fence: &'static str,
    pub again: &'static str,
}

/// A first delivery, just now.
pub const FIRST: Gate = Gate { held: "0", crashes: "0", alone: "0", fence: "1", again: "0" };

/// The reply of a reclaim: where it goes on, entries with their fields and deliveries, deleted ones, and what
/// was held.
pub type Reclaimed = (String, Vec<(String, Vec<String>, u64)>, Vec<String>, Vec<Vec<String>>);

/// The reply of a claim: what stopped it, entries with their fields, and what was held.
type Claimed = (u64, Vec<(String, Vec<String>)>, Vec<Vec<String>>);

impl Store {
    pub fn new(redis: &RedisServer, mutation: Option<Mutation>) -> Store {
        let scripts = [
            &script::SETTLE,
            &script::PROMOTE,
            &script::CANCEL,
            &script::REQUEUE,
            &script::BEGIN,
            &script::HEARTBEAT,
            &script::RECLAIM,
            &script::ENQUEUE,
            &script::FIRE,
            &script::MOVE,
            &script::DUE,
            &script::RESTORE,
            &script::GROUP,
            &script::HOLD,
            &script::DUTIES,
            &script::RATE,
            &script::ALIAS,
            &script::CLAIM,
            &script::END_DELETED,
            &script::STAGE,
            &script::UNSTAGE,
            &script::RELAY,
        ];
        for (text, _) in mutation.into_iter().flatten() {
            let is_there = scripts.iter().any(|script| script.source.matches(text).count() == 1);
            assert!(is_there, "no script has this text once: {text}");
        }
        Store {
            db: redis.connection(),
            mutation,
            number: 0,
            retention: HOUR_MS,
            retention_there: HOUR_MS,
            payload: "1".to_owned(),
            gate: FIRST,
            has_turns: false,
        }
    }

    pub fn run<T: FromRedisValue>(&mut self, name: &str, args: &[&str]) -> Step<T> {
        redis::cmd(name).arg(args).query(&mut self.db).map_err(|error| format!("{name}: {error}"))
    }

    /// Empties Redis, and creates the groups.
    pub fn empty(&mut self) -> Step {
        self.run::<()>("FLUSHALL", &[])?;
        for queue in [WORK, PART, JOIN] {
            self.run::<()>("XGROUP", &["CREATE", queue, GROUP, "0", "MKSTREAM"])?;
        }
        Ok(())
    }

    fn call<T: FromRedisValue>(&mut self, source: &str, keys: &[String], args: &[String]) -> Step<T> {
        let mut source = source.to_owned();
        for (text, instead) in self.mutation.into_iter().flatten() {
            source = source.replace(text, instead);
        }
        let mut call = redis::cmd("EVAL");
        call.arg(source).arg(keys.len()).arg(keys).arg(args);
        call.query(&mut self.db).map_err(|error| format!("a script: {error}"))
    }

    /// Calls a script that may end tasks of `queue`, whose ends are all told to [`TOLD`].
    fn ending<T: FromRedisValue>(
        &mut self,
        source: &str,
        queue: &str,
        mut keys: Vec<String>,
        args: Vec<String>,
    ) -> Step<T> {
        keys.extend(owned(&[TOLD, TOLD, TOLD, queue]));
        let mut last = owned(&["", "0", queue, PARTNERS]);
        if self.has_turns {
            keys.extend(["owners", "tracks", "delayed", "parked", "limits"].map(|what| key(queue, what)));
            last = owned(&["", "1", &key(queue, "task:"), "+0", queue, PARTNERS]);
        }
        let all = [owned(&[GROUP, self.retention, HOUR_MS]), args, last].concat();
        self.call(source, &keys, &all)
    }

    /// Calls a script with these keys and arguments.
    pub fn script<T: FromRedisValue>(&mut self, script: &Script, keys: &[&str], args: &[&str]) -> Step<T> {
        self.call(&script.source, &owned(keys), &owned(args))
    }

    pub fn status(&self, queue: &str, id: &str) -> String {
        key(queue, &format!("task:{id}"))
    }

    /// The status of a task.
    pub fn said(&mut self, queue: &str, id: &str) -> Step<String> {
        let status = self.status(queue, id);
        self.run::<Option<String>>("HGET", &[&status, "status"]).map(Option::unwrap_or_default)
    }

    /// A value, empty if there is none.
    pub fn get(&mut self, key: &str) -> Step<String> {
        self.run::<Option<String>>("GET", &[key]).map(Option::unwrap_or_default)
    }

    pub fn length(&mut self, stream: &str) -> Step<u64> {
        self.run("XLEN", &[stream])
    }

    pub fn pending(&mut self, queue: &str) -> Step<Vec<String>> {
        let pending: Vec<(String, String, u64, u64)> =
            self.run("XPENDING", &[queue, GROUP, "-", "+", "100"])?;
        Ok(pending.into_iter().map(|(entry, ..)| entry).collect())
    }

    fn delivered(&mut self, queue: &str, consumer: &str) -> Step<(String, Vec<String>)> {
        type Reply = Option<Vec<(String, Vec<(String, Vec<String>)>)>>;
        let args = ["GROUP", GROUP, consumer, "COUNT", "1", "STREAMS", queue, ">"];
        let read: Reply = self.run("XREADGROUP", &args)?;
        let mut entries = read.into_iter().flatten().flat_map(|(_, entries)| entries);
        entries.next().ok_or_else(|| format!("{queue} has no new entry"))
    }

    /// The next entry of a queue, which the consumer then holds.
    pub fn read(&mut self, queue: &str, consumer: &str) -> Step<String> {
        self.delivered(queue, consumer).map(|(entry, _)| entry)
    }

    /// A new task, which the consumer holds.
    pub fn work(&mut self, consumer: &str) -> Step<String> {
        self.run::<String>("XADD", &[WORK, "*", "n", "1"])?;
        self.read(WORK, consumer)
    }

    /// The next child, which the consumer then holds.
    pub fn child(&mut self, consumer: &str) -> Step<Child> {
        let (entry, fields) = self.delivered(PART, consumer)?;
        let value = |name: &str| {
            let pair = fields.chunks(2).find(|pair| pair[0] == name);
            pair.map(|pair| pair[1].clone()).ok_or_else(|| format!("the child has no {name}: {fields:?}"))
        };
        Ok((entry, value("tq-id")?, value("tq-flow")?))
    }

    /// Another entry with the id and the flow of a child, which the consumer then holds.
    pub fn copy_of(&mut self, (_, id, flow): &Child, consumer: &str) -> Step<Child> {
        self.run::<String>("XADD", &[PART, "*", "n", "1", "tq-id", id, "tq-flow", flow])?;
        self.child(consumer)
    }

    /// The attempts of tasks of [`WORK`], or of children.
    pub fn settle(&mut self, consumer: &str, attempts: &[&Attempt]) -> Step<Vec<String>> {
        let is_child = attempts.iter().any(|attempt| attempt.fields.iter().any(|name| name == "tq-flow"));
        self.settle_in(if is_child { PART } else { WORK }, consumer, attempts)
    }

    pub fn settle_in(&mut self, queue: &str, consumer: &str, attempts: &[&Attempt]) -> Step<Vec<String>> {
        self.number += 1;
        self.settle_again(queue, consumer, attempts)
    }

    /// Repeats the last call. Plain attempts come first, those with a result last, then plain ones that set a
    /// value, then those with effects.
    pub fn settle_again(&mut self, queue: &str, consumer: &str, attempts: &[&Attempt]) -> Step<Vec<String>> {
        let mut keys = vec![queue.to_owned()];
        keys.extend(["delayed", "parked", "dead"].map(|what| key(queue, what)));
        keys.push(key(queue, &format!("settled:{consumer}")));
        let (plain, other): (Vec<&Attempt>, Vec<&Attempt>) =
            attempts.iter().partition(|attempt| attempt.is_plain);
        let number = self.number.to_string();
        let (setters, plain): (Vec<&Attempt>, Vec<&Attempt>) =
            plain.into_iter().partition(|attempt| !attempt.effects.is_empty());
        keys.extend(plain.iter().chain(&setters).map(|attempt| self.status(queue, &attempt.id)));
        keys.extend(setters.iter().map(|attempt| attempt.effects[0].keys[0].clone()));
        let count = |of: &[&Attempt]| of.len().to_string();
        let results: Vec<String> = plain.iter().filter_map(|attempt| attempt.result.clone()).collect();
        let [without, with] = [plain.len() - results.len(), results.len()].map(|count| count.to_string());
        let mut args =
            owned(&[consumer, &number, &without, &with, &count(&setters), "0", &count(&setters), "p"]);
        for block in [&plain, &setters] {
            args.extend(block.iter().map(|attempt| attempt.entry.clone()));
            args.extend((1..=block.len()).map(|enqueued_at_ms| enqueued_at_ms.to_string()));
            args.extend(block.iter().map(|_| "0".to_owned()));
            args.extend(block.iter().filter_map(|attempt| attempt.result.clone()));
        }
        args.extend(setters.iter().map(|_| "1".to_owned()));
        args.extend(setters.iter().map(|attempt| attempt.effects[0].values[1].clone()));
        for Attempt { how, needs_owner, has_record, entry, id, fields, effects, delay, .. } in other {
            keys.extend([self.status(queue, id), queue.to_owned()]);
            let needs_owner = if *needs_owner { "1" } else { "" };
            args.extend(owned(&[how, needs_owner, "", entry, "1", "p", "1", "0", id, "", "", delay]));
            let joins = fields.chunks(2).find(|pair| pair[0] == "tq-joins");
            let fields = match (*how, joins) {
                ("COMPLETED", Some(pair)) => owned(&["joins", &pair[1]]),
                ("COMPLETED", None) => Vec::new(),
                _ => fields.clone(),
            };
            args.push(fields.len().to_string());
            args.extend(fields);
            args.push(effects.len().to_string());
            for effect in effects {
                keys.extend_from_slice(&effect.keys);
                args.extend_from_slice(&effect.values);
            }
            if *has_record {
                keys.push(key(queue, &format!("attempts:{id}")));
                args.extend(owned(&["1", "2", "1", "retry", "log"]));
            } else {
                args.push(String::new());
            }
        }
        let named: HashMap<String, String> = self
            .ending::<Vec<(String, String)>>(&script::SETTLE.source, queue, keys, args)?
            .into_iter()
            .collect();
        let result = |attempt: &&Attempt| named.get(&attempt.entry).map_or_else(|| "1".into(), Clone::clone);
        Ok(attempts.iter().map(result).collect())
    }

    /// Stages children, whose queue has room for `most`.
    pub fn stage(&mut self, flow: &str, children: usize, most: usize) -> Step {
        self.stage_keyed(flow, children, most, PART)
    }

    /// Stages children that share an idempotency key, which `marker` holds.
    pub fn stage_keyed(&mut self, flow: &str, children: usize, most: usize, marker: &str) -> Step {
        let about = key(JOIN, &format!("flow:{flow}"));
        let mut args = owned(&[HOUR_MS, "0"]);
        for n in 0..children {
            let (id, of, most) = (format!("child-{n}"), format!("{n} {about}"), most.to_string());
            args.extend(owned(&[PART, PART]));
            args.extend(["delayed", "parked", &format!("task:{id}")].map(|what| key(PART, what)));
            args.extend(owned(&[
                marker,
                &id,
                "0",
                self.retention_there,
                &most,
                "6",
                "n",
                &self.payload,
                "tq-id",
                &id,
                "tq-flow",
                &of,
            ]));
        }
        let keys = [format!("{about}:children"), about];
        let staged: usize = self.call(&script::STAGE.source, &keys, &args)?;
        same("staged", staged, children)
    }

    /// Deletes staged children, and gives how many lists of them.
    pub fn unstage(&mut self, flow: &str) -> Step<usize> {
        let list = key(JOIN, &format!("flow:{flow}:children"));
        self.call(&script::UNSTAGE.source, &[list], &[])
    }

    /// A task of [`WORK`] starts a flow.
    pub fn start_flow(&mut self, flow: &str, children: usize, most: usize) -> Step {
        self.stage(flow, children, most)?;
        self.commit(Effect::flow(JOIN, flow, children))
    }

    /// A task of [`WORK`] commits the start of a flow.
    pub fn commit(&mut self, flow: Effect) -> Step {
        let entry = self.work("c1")?;
        let attempt = Attempt::completed(&entry).with(flow);
        same("started", self.settle("c1", &[&attempt])?, ["1"])
    }

    /// Releases children now, and gives how many.
    pub fn promote(&mut self, flow: &str) -> Step<u64> {
        self.run::<()>("ZADD", &[&key(JOIN, "delayed"), "XX", "0", &format!("flow/{flow}")])?;
        self.promote_due(&[&format!("flow/{flow}")]).map(|(moved, _)| moved)
    }

    /// Moves these delayed members of [`JOIN`] that are due. Gives how many tasks that were, and which
    /// members are due next, in their order.
    pub fn promote_due(&mut self, members: &[&str]) -> Step<(u64, Vec<String>)> {
        let keys = [JOIN.to_owned(), key(JOIN, "delayed"), key(JOIN, "parked")];
        let keys = [keys.to_vec(), vec![JOIN.to_owned(); members.len()]].concat();
        let args = owned(&[GROUP, self.retention, HOUR_MS, "100"]);
        let args = [args, owned(members), owned(&["", JOIN, PARTNERS])].concat();
        let (moved, without_fields, _, due, _): (u64, u64, i64, Vec<String>, Vec<String>) =
            self.call(&script::PROMOTE.source, &keys, &args)?;
        same("members without fields", without_fields, 0)?;
        Ok((moved, due.into_iter().step_by(2).collect()))
    }

    /// Takes a task from another slot to [`PART`], with a call that counts until `counts` ms from now. None:
    /// it came too late.
    pub fn relay(&mut self, id: &str, counts: i64) -> Step<Option<Vec<String>>> {
        let (seconds, micros): (i64, i64) = self.run("TIME", &[])?;
        let until = (seconds * 1000 + micros / 1000 + counts).to_string();
        let keys = [PART.to_owned(), key(PART, "delayed"), key(PART, "parked"), self.status(PART, id)];
        let keys = [keys.to_vec(), owned(&[PART])].concat();
        let args = owned(&[&until, "T", id, "0", HOUR_MS, "2", "tq-id", id]);
        self.call(&script::RELAY.source, &keys, &args)
    }

    /// Parks a delayed task under this name, with packed fields.
    pub fn park(&mut self, queue: &str, member: &str, due: &str, packed: &[u8]) -> Step {
        self.run::<()>("ZADD", &[&key(queue, "delayed"), due, member])?;
        let mut set = redis::cmd("HSET");
        set.arg(key(queue, "parked")).arg(member).arg(packed);
        set.exec(&mut self.db).map_err(|error| format!("HSET: {error}"))
    }

    /// How long (ms) until the next delayed task of a queue is due. None: there is none.
    pub fn due_in(&mut self, queue: &str) -> Step<Option<f64>> {
        let first: Vec<(String, f64)> =
            self.run("ZRANGE", &[&key(queue, "delayed"), "0", "0", "WITHSCORES"])?;
        let (seconds, micros): (f64, f64) = self.run("TIME", &[])?;
        Ok(first.first().map(|(_, due)| due - seconds * 1000.0 - micros / 1000.0))
    }

    /// Brings the only dead letter of the children back, and gives the entry to the consumer.
    pub fn requeue_child(&mut self, consumer: &str) -> Step<Child> {
        let dead = key(PART, "dead");
        let letters: Vec<(String, Vec<String>)> = self.run("XRANGE", &[&dead, "-", "+"])?;
        let Some((letter, fields)) = letters.into_iter().next() else {
            return Err("no child is dead".to_owned());
        };
        same("requeued", self.requeue(PART, "child-0", &letter, &fields)?, 1)?;
        self.child(consumer)
    }

    /// Brings a dead letter back with these fields, and gives the reply.
    pub fn requeue(&mut self, queue: &str, id: &str, letter: &str, fields: &[String]) -> Step<u64> {
        let keys = [queue.to_owned(), key(queue, "dead"), self.status(queue, id)];
        let args = owned(&[GROUP, self.retention, HOUR_MS, letter, "1", ""]);
        let args = [args, fields.to_vec(), owned(&["", queue, PARTNERS])].concat();
        self.call(&script::REQUEUE.source, &keys, &args)
    }

    /// The fields with which the last end was told.
    pub fn last_told(&mut self) -> Step<Vec<String>> {
        let told: Vec<(String, Vec<String>)> = self.run("XREVRANGE", &[TOLD, "+", "-", "COUNT", "1"])?;
        Ok(told.into_iter().flat_map(|(_, fields)| fields).collect())
    }

    /// Cancels a task whose entry is not known, and gives the status before.
    pub fn cancel(&mut self, queue: &str, id: &str) -> Step<String> {
        self.cancel_if(queue, id, "")
    }

    /// Like [`Store::cancel`]; with `1` only if the task waits.
    pub fn cancel_if(&mut self, queue: &str, id: &str, only_waiting: &str) -> Step<String> {
        let mut keys = vec![queue.to_owned()];
        keys.extend(["delayed", "parked", &format!("task:{id}")].map(|what| key(queue, what)));
        keys.push(queue.to_owned());
        let flow = key(queue, &format!("flow:{id}"));
        keys.extend([format!("{flow}:children"), flow].into_iter().rev());
        self.ending(&script::CANCEL.source, queue, keys, owned(&[id, "", only_waiting, "", "", ""]))
    }

    /// The gate's reply for a task of [`WORK`].
    pub fn begin(&mut self, consumer: &str, id: &str, entry: &str) -> Step<u64> {
        self.begin_in(WORK, consumer, id, entry, WORK)
    }

    /// The gate's reply for a task whose idempotency key `marker` holds.
    pub fn begin_in(
        &mut self,
        queue: &str,
        consumer: &str,
        id: &str,
        entry: &str,
        marker: &str,
    ) -> Step<u64> {
        let replies: Vec<redis::Value> = self.ask_gate(queue, consumer, id, entry, marker)?;
        match replies.into_iter().next() {
            Some(redis::Value::Int(reply)) => Ok(reply.unsigned_abs()),
            refused => Err(format!("{refused:?}")),
        }
    }

    /// The gate's reply for a task of [`WORK`] that gets a higher fence than it was asked with.
    pub fn begin_again(&mut self, consumer: &str, id: &str, entry: &str) -> Step<u64> {
        let replies: Vec<(u64, u64)> = self.ask_gate(WORK, consumer, id, entry, WORK)?;
        Ok(replies.first().map(|(_, fence)| *fence).unwrap_or_default())
    }

    fn ask_gate<T: FromRedisValue>(
        &mut self,
        queue: &str,
        consumer: &str,
        id: &str,
        entry: &str,
        marker: &str,
    ) -> Step<T> {
        let keys =
            vec![queue.to_owned(), key(queue, "delayed"), key(queue, "parked"), self.status(queue, id)];
        let keys = [keys, owned(&[marker, queue])].concat();
        let Gate { held, crashes, alone, fence, again } = self.gate;
        let delivery = owned(&[consumer, "p", "10000", "3", entry, "1", "1", id]);
        let args = [delivery, owned(&[held, crashes, alone, fence, again])].concat();
        self.ending(&script::BEGIN.source, queue, keys, args)
    }

    /// The reply of a heartbeat for one task of [`WORK`].
    pub fn beat(&mut self, consumer: &str, id: &str, entry: &str) -> Step<u64> {
        let keys = vec![WORK.to_owned(), self.status(WORK, id), WORK.to_owned()];
        let args = owned(&[consumer, "10000", entry, id, "", ""]);
        let replies: Vec<u64> = self.ending(&script::HEARTBEAT.source, WORK, keys, args)?;
        Ok(replies.first().copied().unwrap_or_default())
    }

    /// The replies of the gate and of a heartbeat for two tasks of [`WORK`]. The first one has no entry that
    /// Redis could read.
    pub fn beside_a_broken_one(&mut self, consumer: &str, entry: &str) -> Step<[Vec<redis::Value>; 2]> {
        let (broken, whole) = (self.status(WORK, "x"), self.status(WORK, entry));
        let keys = owned(&[WORK, &key(WORK, "delayed"), &key(WORK, "parked"), &broken, WORK, WORK]);
        let keys = [keys, owned(&[&whole, WORK, WORK])].concat();
        let delivery = |entry| owned(&[entry, "1", "1", entry, "0", "0", "0", "1", "0"]);
        let args = [owned(&[consumer, "p", "10000", "3"]), delivery("x"), delivery(entry)].concat();
        let begun = self.ending(&script::BEGIN.source, WORK, keys, args)?;
        let keys = owned(&[WORK, &broken, WORK, &whole, WORK]);
        let args = owned(&[consumer, "10000", "x", "x", "", "", entry, entry, "", ""]);
        Ok([begun, self.ending(&script::HEARTBEAT.source, WORK, keys, args)?])
    }

    /// Takes over entries of [`WORK`] that had no heartbeat for a second. Their owners died if they gave no
    /// sign of life for an hour.
    pub fn reclaim(&mut self, consumer: &str, bytes: &str) -> Step<Reclaimed> {
        let keys = vec![WORK.to_owned(), key(WORK, "delayed"), key(WORK, "history")];
        let args = owned(&[consumer, "1000", "-", "100", bytes, HOUR_MS, "", "", ""]);
        self.ending(&script::RECLAIM.source, WORK, keys, args)
    }

    /// Claims entries of [`WORK`], a queue whose tasks follow each other.
    pub fn claim(&mut self, consumer: &str) -> Step<Vec<String>> {
        let args = owned(&[consumer, "10", "", "", ""]);
        let keys = vec![WORK.to_owned(), key(WORK, "delayed"), key(WORK, "history")];
        let (_, entries, _): Claimed = self.ending(&script::CLAIM.source, WORK, keys, args)?;
        Ok(entries.into_iter().map(|(entry, _)| entry).collect())
    }

    /// Enqueues a task of [`WORK`], and gives the reply.
    pub fn enqueue(&mut self, id: &str, delay: &str) -> Step<i64> {
        let mut keys = vec![WORK.to_owned()];
        keys.extend(["delayed", "parked", &format!("task:{id}")].map(|what| key(WORK, what)));
        keys.extend(owned(&[WORK, WORK]));
        self.ending(&script::ENQUEUE.source, WORK, keys, owned(&[delay, id, "100", "n", "1", "tq-id", id]))
    }

    /// Ends a task whose entry was deleted. Its status names this entry.
    pub fn lose(&mut self, queue: &str, id: &str) -> Step<u64> {
        let status = self.status(queue, id);
        let entry: String = self.run("HGET", &[&status, "entry"])?;
        let keys = vec![queue.to_owned(), status, queue.to_owned()];
        self.ending(&script::END_DELETED.source, queue, keys, vec![entry])
    }
}
