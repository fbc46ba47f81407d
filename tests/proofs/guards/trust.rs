//! The guards against forged data: keys that are named in it, and fields that only hosts write.
//!
//! Not here: real hosts that are told such things (`tests/faults/forged.rs`).

use tqhost::testing::queue::script;

use super::Case;
use super::store::{Attempt, Effect, JOIN, PART, Step, Store, WORK, same};

pub const CASES: &[Case] = &[
    Case {
        what: "a flow counts only the ends of its own children",
        scenario: a_flow_knows_its_children,
        mutations: &[&[("if is_known then return index, flow end", "return index, flow")]],
    },
    Case {
        what: "a child goes to a queue of the configuration, under the keys of this queue",
        scenario: a_child_names_no_keys,
        mutations: &[
            &[("refusal or not queue\n", "refusal\n")],
            &[("if queue then flows.with_keys(child, queue, child.id) end", "")],
            &[("~= prefix then task.marker = queue.stream end", "~= prefix then local _ = prefix end")],
        ],
    },
    Case {
        what: "the id of a task that its flow holds belongs to this task",
        scenario: a_held_task_keeps_its_id,
        mutations: &[
            &[("return state == 'PENDING' and is_held(status, id)", "return false")],
            &[("or mark_of(status, '') or is_held(status, id) then", "or mark_of(status, '') then")],
        ],
    },
    Case {
        what: "what a producer wrote into reserved fields is not kept while its task is held",
        scenario: forged_fields_are_not_held,
        mutations: &[
            &[("keep_trusted(fields, status, id, entry)\n  if before", "if before")],
            &[("or produced == entry then return false", "then return false")],
            &[("if is_produced then redis.call('HSET', status, 'produced', entry) end", "")],
        ],
    },
];

fn a_flow_knows_its_children(store: &mut Store) -> Step {
    store.start_flow("f", 1, 100)?;
    store.promote("f")?;
    let child = store.child("c1")?;
    store.run::<String>("XADD", &[PART, "*", "n", "1"])?;
    let entry = store.read(PART, "c1")?;
    let status = store.status(PART, &entry);
    store.run::<u64>("HSET", &[&status, "status", "PROCESSING", "flow", &child.2])?;
    let stranger = Attempt::child(&(entry.clone(), entry, child.2.clone()));
    same("a stranger", store.settle("c1", &[&stranger])?, ["1"])?;
    same("left", store.run::<String>("HGET", &["tq:{join}:flow:f", "left"])?.as_str(), "1")?;
    same("the child", store.settle("c1", &[&Attempt::child(&child)])?, ["1"])?;
    same("joined", store.length(JOIN)?, 1)
}

fn a_child_names_no_keys(store: &mut Store) -> Step {
    for (stream, moved) in [("other", 0), (PART, 1)] {
        store.empty()?;
        store.run::<()>("SET", &["someones-text", "x", "PX", "60000"])?;
        let child = [
            PART,
            stream,
            "someones-zset",
            "someones-hash",
            "someones-status",
            "someones-text",
            "c",
            "0",
            "1000",
            "100",
            "4",
            "tq-id",
            "c",
            "tq-flow",
            "0 tq:{join}:flow:f",
        ];
        let args = [&["3600000", "0"][..], &child].concat();
        let keys = ["tq:{join}:flow:f:children", "tq:{join}:flow:f"];
        same("staged", store.script::<u64>(&script::STAGE, &keys, &args)?, 1)?;
        store.commit(Effect::flow(JOIN, "f", 1))?;
        same(stream, store.promote("f")?, moved)?;
        let foreign = ["other", "someones-zset", "someones-hash", "someones-status"];
        same("foreign keys", store.run::<u64>("EXISTS", &foreign)?, 0)?;
    }
    same("the status", store.said(PART, "c")?.as_str(), "PENDING")
}

fn a_held_task_keeps_its_id(store: &mut Store) -> Step {
    store.start_flow("f", 1, 100)?;
    store.run::<String>("XADD", &[JOIN, "*", "n", "1", "tq-id", "f"])?;
    let entry = store.read(JOIN, "c1")?;
    same("a second entry", store.begin_in(JOIN, "c1", "f", &entry, JOIN)?, 3)?;
    let fields = ["n", "1", "tq-id", "f"].map(str::to_owned);
    let letter: String = store.run("XADD", &["tq:{join}:dead", "*", "n", "1", "tq-id", "f"])?;
    same("a dead letter", store.requeue(JOIN, "f", &letter, &fields)?, 0)?;
    same("the task", store.said(JOIN, "f")?.as_str(), "PENDING")
}

/// The names of the fields of the only held task.
fn held(store: &mut Store) -> Step<Vec<String>> {
    const NAMES: &str = "local names = {} \
         for i, field in ipairs(cmsgpack.unpack(redis.call('HVALS', KEYS[1])[1])) do \
         if i % 2 == 1 then table.insert(names, field) end end table.sort(names) return names";
    store.run("EVAL", &[NAMES, "1", "tq:{work}:parked"])
}

fn forged_fields_are_not_held(store: &mut Store) -> Step {
    store.has_turns = true;
    let forged = ["*", "n", "1", "tq-id", "b", "tq-attempt", "2", "tq-crashes", "2"];
    let first: String = store.run("XADD", &[WORK, "*", "n", "1", "tq-id", "a"])?;
    store.run::<String>("XADD", &[&[WORK][..], &forged].concat())?;
    same("claimed", store.claim("c1")?, [first.as_str()])?;
    same("held", held(store)?, ["n", "tq-attempt", "tq-due-at", "tq-enqueued-at", "tq-id"])?;

    // Its entry is one of a producer also after the gate made its status name it.
    store.empty()?;
    let second: String = store.run("XADD", &[&[WORK][..], &forged].concat())?;
    store.read(WORK, "c1")?;
    same("begun", store.begin("c1", "b", &second)?, 1)?;
    let status = store.status(WORK, "b");
    let first: String = store.run("XADD", &[WORK, "*", "n", "1", "tq-id", "a"])?;
    same("claimed", store.claim("c1")?, [first.as_str()])?;
    store.run::<()>("HSET", &[&status, "cancel", "1", "stops", &first])?;
    same("put off", store.begin("c1", "b", &second)?, 6)?;
    same("delayed", held(store)?, ["n", "tq-attempt", "tq-due-at", "tq-enqueued-at", "tq-id"])
}
