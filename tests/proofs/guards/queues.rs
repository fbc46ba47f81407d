//! The guards of the scripts that let tasks in, move them, and lend what hosts share: each is called as hosts
//! seldom call it, in the wrong order, again, or with keys of another type.

use tqhost::testing::queue::{OF_HOSTS, script};

use super::Case;
use super::store::{Attempt, JOIN, Step, Store, WORK, same};

pub const CASES: &[Case] = &[
    Case {
        what: "keys of another type are told before anything is written",
        scenario: keys_of_another_type_are_told,
        mutations: &[
            &[(
                "if bad then return bad end\nif redis.call('EXISTS', status)",
                "if redis.call('EXISTS', status)",
            )],
            &[("if bad then return bad end\nlocal at", "local at")],
            &[("if bad then return bad end\nlocal free", "local free")],
            &[("if bad then return bad end\n\nlocal last", "local last")],
        ],
    },
    Case {
        what: "items of Celery keep their ids, urgent ones come first, and few wait in the stream",
        scenario: items_of_celery,
        mutations: &[
            &[("local list = KEYS[i]", "local list = KEYS[#KEYS + lists_key - i]")],
            &[("if ahead ~= '0' then free", "if false then free")],
            &[("if id then append(fields, 'tq-id', id) end", "")],
            &[("pcall(cjson.decode, item)", "true, cjson.decode(item)")],
        ],
    },
    Case {
        what: "jobs of Sidekiq that are due come into the list of their own queue",
        scenario: jobs_that_are_due,
        mutations: &[
            &[("and content.queue == name", "")],
            &[("string.format('%.3f', now / 1000), 0", "'+inf', 0")],
            &[("is_own and redis.call('ZREM', set, job) == 1", "is_own")],
            &[("tonumber(from) + #due - moved", "tonumber(from) + #due")],
        ],
    },
    Case {
        what: "a message is put back once",
        scenario: a_message_is_put_back_once,
        mutations: &[
            &[("if redis.call('HGET', unacked, tag) ~= value then return end", "")],
            &[("redis.call('ZREM', index, tag)", "")],
        ],
    },
    Case {
        what: "two schedules that share a time enqueue one task",
        scenario: one_task_for_each_time,
        mutations: &[&[("if redis.call('EXISTS', status) == 1 then\n  result", "if false then\n  result")]],
    },
    Case {
        what: "a dead letter is requeued once",
        scenario: a_dead_letter_is_requeued_once,
        mutations: &[&[("if not fields_in(dead, letter) then return 0 end", "")]],
    },
    Case {
        what: "a dead letter is not requeued beside another task with its id, or after that has completed",
        scenario: a_dead_letter_waits_for_its_id,
        mutations: &[
            &[("if state == 'COMPLETED' or runs or", "if state == 'COMPLETED' or")],
            &[("if state == 'COMPLETED' or runs or", "if runs or")],
        ],
    },
    Case {
        what: "a delayed task is promoted once, and not before its time",
        scenario: delayed_tasks_are_promoted_once,
        mutations: &[&[("if not is_due and not (is_early and due and due ~= HELD) then return end", "")]],
    },
    Case {
        what: "a delayed task that cannot be moved comes again later, and holds up no other one",
        scenario: a_delayed_task_that_cannot_be_moved_is_put_off,
        mutations: &[
            &[("pcall(move)", "true, move()")],
            &[("redis.call('ZADD', delayed, 'XX', now + PUT_OFF, member)", "")],
        ],
    },
    Case {
        what: "a task is not cancelled in the place of another whose id looks like its entry",
        scenario: a_cancellation_finds_its_own_task,
        mutations: &[&[("return its and (value_in(its, 'tq-id') or entry) == id", "return its")]],
    },
    Case {
        what: "who cancels what waits leaves a task that a host has taken since",
        scenario: a_taken_task_does_not_wait,
        mutations: &[
            &[("if only_waiting == '1' and is_taken() then return 'PROCESSING' end", "")],
            &[("if is_its(entry) and pending_of(entry) then return true end", "")],
        ],
    },
    Case {
        what: "no group is made beside one that nobody has confirmed, and the history is noted once",
        scenario: groups_of_others,
        mutations: &[
            &[("if #others > 0 then return", "if false then return")],
            &[("redis.call('HSETNX', history, group, last)", "redis.call('HSET', history, group, last)")],
        ],
    },
    Case {
        what: "a hold begins after so many failures, lends one probe, and ends when the probe gets through",
        scenario: holds,
        mutations: &[
            &[("if not is_counted then append(hold.entries, entry) end", "append(hold.entries, entry)")],
            &[("if left > 0 then return { 1, left, 0, now } end", "")],
            &[("if hold.since and wait() == 0 then", "if hold.since then")],
            &[("if hold.task and not hold.since or is_probe == '1' then", "if true then")],
            &[("local is_counted = is_alone", "local is_counted = false")],
            &[("elseif hold.since and hold.prober == consumer then", "elseif hold.since then")],
            &[("  if hold.prober == consumer then\n    hold.last", "  if hold.since then\n    hold.last")],
        ],
    },
    Case {
        what: "a duty has one host, and a lease from before the clock went back is ignored",
        scenario: duties_have_one_host,
        mutations: &[
            &[("local is_taken = alive[holder] and holder ~= host", "local is_taken = false")],
            &[("now, now + 2 * lease)", "now, '+inf')")],
        ],
    },
    Case {
        what: "a rate begins again when the clock went back",
        scenario: a_rate_after_the_clock_went_back,
        mutations: &[&[("if due < time or due > time + step * (ahead + 1) * 2 then", "if due < time then")]],
    },
    Case {
        what: "an alias keeps the newest tasks, for as long as the longest asks",
        scenario: aliases_are_bounded,
        mutations: &[
            &[("redis.call('ZREMRANGEBYRANK', alias, 0, -most - 1)", "")],
            &[("math.max(left, tonumber(lives))", "tonumber(lives)")],
        ],
    },
];

/// Whether a call was refused because of the type of a key.
fn is_refused<T>(called: Step<T>) -> bool {
    called.is_err_and(|why| why.contains("TQTYPE"))
}

const FIRE: [&str; 4] = [WORK, "tq:{work}:delayed", "tq:{work}:schedule", "tq:{work}:task:t"];

/// A time of the schedule of this name. All of them have the same task.
fn fire(store: &mut Store, schedule: &str, time: &str) -> Step<i64> {
    store.script(&script::FIRE, &FIRE, &[schedule, time, "t", "100", "-1", "tq-id", "t"])
}

fn keys_of_another_type_are_told(store: &mut Store) -> Step {
    store.run::<()>("SET", &["tq:{work}:parked", "text"])?;
    same("enqueue", is_refused(store.enqueue("t", "60000")), true)?;
    same("delayed", store.run::<u64>("EXISTS", &["tq:{work}:delayed"])?, 0)?;
    store.run::<()>("SET", &["tq:{work}:schedule", "text"])?;
    same("fire", is_refused(fire(store, "s", "1000")), true)?;
    same("enqueued", store.length(WORK)?, 0)?;
    store.run::<()>("SET", &["items", "text"])?;
    let keys = [WORK, "tq:{work}:delayed", "items"];
    same(
        "move",
        is_refused(store.script::<u64>(&script::MOVE, &keys, &["tqhost", "10", "10", "bytes", "0", "100"])),
        true,
    )?;
    store.run::<u64>("XGROUP", &["DESTROY", WORK, "tqhost"])?;
    same("group", is_refused(group(store)), true)?;
    let groups: Vec<redis::Value> = store.run("XINFO", &["GROUPS", WORK])?;
    same("groups", groups.len(), 0)
}

fn items_of_celery(store: &mut Store) -> Step {
    let item = |id: &str| format!("{{\"headers\": {{\"id\": \"{id}\"}}}}");
    for (list, id) in [("low", "c"), ("low", "d"), ("high", "a")] {
        store.run::<u64>("LPUSH", &[list, &item(id)])?;
    }
    store.run::<u64>("LPUSH", &["high", "{"])?;
    let keys = [WORK, "tq:{work}:delayed", "high", "low"];
    let args = ["tqhost", "10", "10", "celery", "3", "1000"];
    same("moved", store.script::<u64>(&script::MOVE, &keys, &args)?, 3)?;
    same("again", store.script::<u64>(&script::MOVE, &keys, &args)?, 0)?;
    let entries: Vec<(String, Vec<String>)> = store.run("XRANGE", &[WORK, "-", "+"])?;
    let found: Vec<String> =
        entries.into_iter().map(|(_, fields)| fields.last().cloned().unwrap_or_default()).collect();
    same("in order", found, ["a", "{", "c"].map(str::to_owned))?;
    same("left", store.run::<Vec<String>>("LRANGE", &["low", "0", "-1"])?, [item("d")])
}

fn jobs_that_are_due(store: &mut Store) -> Step {
    // A job of another queue may have the name of this one in it, too.
    let job = |queue: &str, n: u32| format!("{{\"queue\": \"{queue}\", \"for\": \"own\", \"n\": {n}}}");
    for n in 0..4 {
        let queue = if n == 1 { "other" } else { "own" };
        store.run::<u64>("ZADD", &["schedule", &format!("{n}"), &job(queue, n)])?;
    }
    store.run::<u64>("ZADD", &["schedule", "9999999999", &job("own", 9)])?;
    let mut calls = Vec::new();
    for from in ["0", "1", "1"] {
        let args = ["own", from, "2"];
        calls.push(store.script::<(i64, i64)>(&script::DUE, &["schedule", "queue:own"], &args)?);
    }
    same("calls", calls, [(1, 1), (2, 1), (0, -1)])?;
    let items: Vec<String> = store.run("LRANGE", &["queue:own", "0", "-1"])?;
    same("in order", items, [3, 2, 0].map(|n| job("own", n)))?;
    same("left", store.run::<u64>("ZCARD", &["schedule"])?, 2)
}

fn a_message_is_put_back_once(store: &mut Store) -> Step {
    store.run::<u64>("HSET", &["unacked", "t", "[5, 6, 7]"])?;
    store.run::<u64>("ZADD", &["unacked_index", "1", "t"])?;
    let keys = ["unacked", "unacked_index", "items"];
    let mut put_back = |value| store.script::<u64>(&script::RESTORE, &keys, &["t", value, "5"]);
    let counts = [put_back("[4, 6, 7]")?, put_back("[5, 6, 7]")?, put_back("[5, 6, 7]")?];
    same("put back", counts, [0, 1, 0])?;
    same("items", store.run::<Vec<String>>("LRANGE", &["items", "0", "-1"])?, ["5"])?;
    same("index", store.run::<u64>("EXISTS", &["unacked_index"])?, 0)
}

fn one_task_for_each_time(store: &mut Store) -> Step {
    same("the first", fire(store, "a", "1000")?, 1)?;
    same("the second", fire(store, "b", "1000")?, 0)?;
    same("enqueued", store.length(WORK)?, 1)
}

fn a_dead_letter_is_requeued_once(store: &mut Store) -> Step {
    let letter: String = store.run("XADD", &["tq:{work}:dead", "*", "n", "1"])?;
    let fields = ["n", "1", "tq-id", "t"].map(str::to_owned);
    same("requeued", store.requeue(WORK, "t", &letter, &fields)?, 1)?;
    same("again", store.requeue(WORK, "t", &letter, &fields)?, 0)?;
    same("enqueued", store.length(WORK)?, 1)
}

fn a_dead_letter_waits_for_its_id(store: &mut Store) -> Step {
    let letter: String = store.run("XADD", &["tq:{work}:dead", "*", "n", "1"])?;
    let fields = ["n", "1", "tq-id", "t"].map(str::to_owned);
    let entry: String = store.run("XADD", &[WORK, "*", "n", "1", "tq-id", "t"])?;
    same("delivered", store.read(WORK, "c1")?, entry.as_str())?;
    same("begun", store.begin("c1", "t", &entry)?, 1)?;
    same("it runs", store.requeue(WORK, "t", &letter, &fields)?, 0)?;
    same("settled", store.settle("c1", &[&Attempt::named(&entry, "t").owned()])?, ["1"])?;
    same("it has completed", store.requeue(WORK, "t", &letter, &fields)?, 0)?;
    same("enqueued", store.length(WORK)?, 0)
}

fn delayed_tasks_are_promoted_once(store: &mut Store) -> Step {
    let packed: Vec<u8> = store.run("EVAL", &["return cmsgpack.pack({ 'n', '1', 'tq-id', 't' })", "0"])?;
    store.park(JOIN, "m", "99999999999999", &packed)?;
    same("before its time", store.promote_due(&["m"])?.0, 0)?;
    store.run::<u64>("ZADD", &["tq:{join}:delayed", "1", "m"])?;
    same("it is due", store.promote_due(&["m"])?.0, 1)?;
    same("again", store.promote_due(&["m"])?.0, 0)?;
    same("enqueued", store.length(JOIN)?, 1)
}

fn a_delayed_task_that_cannot_be_moved_is_put_off(store: &mut Store) -> Step {
    // Lua cannot pass as many values to XADD.
    let many = "local many = {} for i = 1, 9000 do many[i] = 'v' end return cmsgpack.pack(many)";
    let (many, whole) = (many, "return cmsgpack.pack({ 'n', '1', 'tq-id', 't' })");
    for (member, due, pack) in [("many", "1", many), ("whole", "2", whole)] {
        let packed: Vec<u8> = store.run("EVAL", &[pack, "0"])?;
        store.park(JOIN, member, due, &packed)?;
    }
    same("moved", store.promote_due(&["many", "whole"])?, (1, Vec::new()))?;
    same("enqueued", store.length(JOIN)?, 1)?;
    same("it comes again", store.due_in(JOIN)?.is_some_and(|due| due > 1000.0), true)
}

fn a_cancellation_finds_its_own_task(store: &mut Store) -> Step {
    let entry: String = store.run("XADD", &[WORK, "*", "n", "1", "tq-id", "t"])?;
    same("not known", store.cancel(WORK, &entry)?, "")?;
    same("waiting", store.length(WORK)?, 1)?;
    let entry: String = store.run("XADD", &[WORK, "*", "n", "1"])?;
    same("cancelled", store.cancel(WORK, &entry)?, "PENDING")?;
    same("waiting", store.length(WORK)?, 1)
}

fn a_taken_task_does_not_wait(store: &mut Store) -> Step {
    // It was delivered, and has no status yet.
    let entry = store.work("c1")?;
    same("delivered", store.cancel_if(WORK, &entry, "1")?, "PROCESSING")?;
    same("begun", store.begin("c1", &entry, &entry)?, 1)?;
    same("runs", store.cancel_if(WORK, &entry, "1")?, "PROCESSING")?;
    same("pending", store.pending(WORK)?, [entry.clone()])?;
    same("settled", store.settle("c1", &[&Attempt::completed(&entry)])?, ["1"])?;
    let entry: String = store.run("XADD", &[WORK, "*", "n", "1"])?;
    same("waits", store.cancel_if(WORK, &entry, "1")?, "PENDING")?;
    same("nothing is left", store.length(WORK)?, 0)
}

/// Prepares the group of [`WORK`] for a host. Returns 1 if it was made.
pub fn group(store: &mut Store) -> Step<u64> {
    let names = ["delayed", "parked", "dead", "history", "adopted"].map(|name| format!("tq:{{work}}:{name}"));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let args = [&["tqhost"][..], &OF_HOSTS].concat();
    store.script(&script::GROUP, &[&[WORK][..], names.as_slice(), &[WORK]].concat(), &args)
}

fn groups_of_others(store: &mut Store) -> Step {
    let entry = store.work("c1")?;
    same("it is there", group(store)?, 0)?;
    store.work("c1")?;
    same("it is there", group(store)?, 0)?;
    let noted: String = store.run("HGET", &["tq:{work}:history", "tqhost"])?;
    same("the history", noted, entry)?;
    store.run::<u64>("XGROUP", &["DESTROY", WORK, "tqhost"])?;
    store.run::<()>("XGROUP", &["CREATE", WORK, "other", "0"])?;
    let refused = group(store).is_err_and(|why| why.contains("TQGROUP"));
    same("refused", refused, true)?;
    let groups: Vec<redis::Value> = store.run("XINFO", &["GROUPS", WORK])?;
    same("groups", groups.len(), 1)
}

fn holds(store: &mut Store) -> Step {
    let call = |store: &mut Store, pause: &str, args: [&str; 9]| -> Step<i64> {
        let [what, consumer, rest @ ..] = args;
        let args = [&[what, "2", pause, consumer][..], &rest[..]].concat();
        store.script(&script::HOLD, &["hold"], &args).map(|(state, ..): (i64, i64, i64, i64)| state)
    };
    let failed = |entry| ["failed", "c1", "0", "0", entry, "0", "refused", "t", "0"];
    let ask = |consumer| ["ask", consumer, "", "1000", "", "", "", "", ""];
    same("the first failure", call(store, "60000", failed("1-0"))?, 0)?;
    same("the call is repeated", call(store, "60000", failed("1-0"))?, 0)?;
    same("the second failure", call(store, "60000", failed("2-0"))?, 1)?;
    same("nobody may try yet", call(store, "60000", ask("c1"))?, 1)?;
    same("the probe", call(store, "0", ask("c1"))?, 2)?;
    same("another one asks", call(store, "0", ask("c2"))?, 1)?;
    same("another one gives it back", call(store, "0", ["keep", "c2", "", "0", "", "", "", "", ""])?, 1)?;
    same("another one asks again", call(store, "0", ask("c2"))?, 1)?;
    let silent = |consumer| ["silent", consumer, "", "", "", "", "", "", ""];
    same("another one's attempt is silent", call(store, "0", silent("c2"))?, 1)?;
    same("another one asks once more", call(store, "0", ask("c2"))?, 1)?;
    same("the probe is silent", call(store, "60000", silent("c1"))?, 1)?;
    same("nobody may try again yet", call(store, "60000", ask("c2"))?, 1)?;
    same("the next probe", call(store, "0", ask("c1"))?, 2)?;
    let through = |consumer, is_probe| ["through", consumer, is_probe, "", "", "", "", "", ""];
    same("another attempt gets through", call(store, "0", through("c2", "0"))?, 1)?;
    same("the probe gets through", call(store, "0", through("c1", "1"))?, 0)?;
    // The task began to fail long before.
    for entry in ["3-0", "4-0"] {
        let alone = ["failed", "c1", "0", "0", entry, "0", "refused", "t", "1"];
        same("the task fails alone", call(store, "60000", alone)?, 0)?;
    }
    Ok(())
}

fn duties_have_one_host(store: &mut Store) -> Step {
    let ask = |store: &mut Store, host: &str| -> Step<(u64, Vec<u64>)> {
        store.script(&script::DUTIES, &["duties", "leases"], &[host, "10000", "d"])
    };
    same("the first", ask(store, "a")?, (1, vec![1]))?;
    same("the second", ask(store, "b")?, (2, vec![0]))?;
    store.run::<()>("ZADD", &["leases", "99999999999999", "a"])?;
    same("after the clock went back", ask(store, "b")?, (1, vec![1]))
}

fn a_rate_after_the_clock_went_back(store: &mut Store) -> Step {
    store.run::<()>("SET", &["rate", "9000000000000000"])?;
    let (taken, _): (u64, u64) = store.script(&script::RATE, &["rate"], &["100000", "1", "1"])?;
    same("taken", taken, 1)
}

fn aliases_are_bounded(store: &mut Store) -> Step {
    for (id, lives) in [("a", "600000"), ("b", "60000"), ("c", "60000")] {
        let noted: u64 = store.script(&script::ALIAS, &[WORK, "alias"], &["2", id, "", lives])?;
        same("noted", noted, 1)?;
    }
    same("kept", store.run::<u64>("ZCARD", &["alias"])?, 2)?;
    same("it lives", store.run::<i64>("PTTL", &["alias"])? > 300_000, true)
}
