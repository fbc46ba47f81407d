//! The guards of flows that wait for room, fail, are healed, and are cancelled: what an operator does to
//! them, and what is left in Redis afterwards.

use super::Case;
use super::store::{Attempt, JOIN, PART, Step, Store, TOLD, WORK, same};

pub const CASES: &[Case] = &[
    Case {
        what: "one call releases the children of one step, whichever flows they belong to",
        scenario: flows_share_a_step,
        mutations: &[
            &[("math.max(1, math.floor(STEP / flows_due))", "STEP")],
            &[("redis.call('ZADD', delayed, now, member)", "")],
            &[("if bytes_left <= 0 then break end", "")],
            &[("if released > 0 then", "if true then")],
        ],
    },
    Case {
        what: "a flow that was healed expires after the end of its last task",
        scenario: a_healed_flow_expires,
        mutations: &[&[("redis.call('HSET', about['status'], 'joins', flow)", "")]],
    },
    Case {
        what: "a flow expires after the end of its last task, also if that task has no status any more",
        scenario: a_flow_whose_task_lost_its_status_expires,
        mutations: &[
            &[("joins or value_in(changes, 'joins') or letter", "joins or letter")],
            &[("letter and value_in(letter, 'tq-joins')", "false")],
        ],
    },
    Case {
        what: "no task ends a flow that another one joins",
        scenario: a_task_ends_only_its_own_flow,
        mutations: &[&[("flows.leave(key_of(status, id, 'flow'), buried)", "flows.leave(joins, buried)")]],
    },
    Case {
        what: "who cancels the last task of a flow that has failed stops the release of its children",
        scenario: a_failed_flow_is_cancelled,
        mutations: &[
            &[("if has_flow then redis.call('UNLINK', children) end", "")],
            &[("if redis.call('HGET', flow, 'letter') then return 'FAILED' end", "")],
            &[("redis.pcall('HDEL', flow, 'letter')\n  end", "end")],
        ],
    },
    Case {
        what: "a flow that failed is kept for long, and longer for what is requeued",
        scenario: a_failed_flow_is_kept,
        mutations: &[
            &[("letter and FAILED_FLOW_LIVES or 86400000", "86400000")],
            &[("redis.call('PEXPIRE', key, FAILED_FLOW_LIVES, 'GT')", "")],
            &[("FAILED_FLOW_LIVES, 'GT')", "FAILED_FLOW_LIVES)")],
            &[("redis.call('PERSIST', key)", "")],
        ],
    },
    Case {
        what: "who requeues a task of a flow that has expired is told so, and the flow stays away",
        scenario: an_expired_flow_is_told,
        mutations: &[
            &[("reply = 2", "")],
            &[("if letter and redis.pcall('HEXISTS', flow, 'left') == 1 then", "if letter then")],
        ],
    },
    Case {
        what: "an end that cannot be told leaves no status behind that is not kept",
        scenario: an_untold_end_leaves_no_status,
        mutations: &[
            &[("type(added) == 'table' and tonumber(retention) > 0", "type(added) == 'table'")],
            &[("redis.pcall('HSET', ended.status, 'untold', added.err)", "")],
        ],
    },
];

fn flows_share_a_step(store: &mut Store) -> Step {
    let both = ["flow/a", "flow/b"];
    let begin = |store: &mut Store, children: usize, payload: &str| {
        store.empty()?;
        store.payload = payload.to_owned();
        for (due, flow) in ["a", "b"].into_iter().enumerate() {
            store.start_flow(flow, children, 1000)?;
            let (due, member) = ((due + 1).to_string(), format!("flow/{flow}"));
            store.run::<()>("ZADD", &["tq:{join}:delayed", "XX", &due, &member])?;
        }
        store.run::<()>("ZADD", &["tq:{join}:delayed", "3", "other"])
    };
    begin(store, 101, "1")?;
    let (moved, due) = store.promote_due(&both)?;
    same("children of one call", (moved, store.length(PART)?), (100, 100))?;
    same("those that had their share come last", due, ["other", "flow/a", "flow/b"])?;
    same("the next call", store.promote_due(&["flow/b"])?, (51, owned(&["other", "flow/a"])))?;

    // Three children have more than 1 MiB, and the second flow has to wait for the next call.
    begin(store, 5, &"x".repeat(400 << 10))?;
    let (moved, due) = store.promote_due(&both)?;
    same("large children of one call", moved, 3)?;
    same("one that got nothing keeps its place", due, ["flow/b", "other", "flow/a"])
}

/// A flow whose only child has died. The task that joins it is delivered.
fn failed_flow(store: &mut Store) -> Step<String> {
    store.start_flow("f", 1, 100)?;
    store.promote("f")?;
    let child = store.child("c1")?;
    same("buried", store.settle("c1", &[&Attempt::child(&child).buried()])?, ["1"])?;
    store.read(JOIN, "c1")
}

/// Whether the flow and its results expire.
fn expires(store: &mut Store) -> Step<[bool; 2]> {
    let of_flow: i64 = store.run("PTTL", &["tq:{join}:flow:f"])?;
    let of_results: i64 = store.run("PTTL", &["tq:{join}:flow:f:results"])?;
    Ok([of_flow > 0, of_results > 0])
}

fn a_healed_flow_expires(store: &mut Store) -> Step {
    // A queue without a retention deletes the status with the burial, and a short one may pass.
    for retention in ["0", "3600000"] {
        store.empty()?;
        store.retention = retention;
        let failed = failed_flow(store)?;
        same("dead", store.settle_in(JOIN, "c1", &[&Attempt::join(&failed, "f").buried()])?, ["1"])?;
        store.run::<u64>("DEL", &["tq:{join}:task:f"])?;
        let child = store.requeue_child("c1")?;
        same("healed", store.settle("c1", &[&Attempt::child(&child)])?, ["1"])?;
        same("before it is joined", expires(store)?, [false, false])?;
        let entry = store.read(JOIN, "c1")?;
        // An older host does not say which flow the task joins.
        same("joined", store.settle_in(JOIN, "c1", &[&Attempt::named(&entry, "f")])?, ["1"])?;
        same("after it was joined", expires(store)?, [true, true])?;
    }
    Ok(())
}

fn a_flow_whose_task_lost_its_status_expires(store: &mut Store) -> Step {
    for is_buried in [false, true] {
        store.empty()?;
        store.start_flow("f", 1, 100)?;
        store.promote("f")?;
        let child = store.child("c1")?;
        same("completed", store.settle("c1", &[&Attempt::child(&child)])?, ["1"])?;
        let entry = store.read(JOIN, "c1")?;
        store.run::<u64>("DEL", &["tq:{join}:task:f"])?;
        let attempt = Attempt::join(&entry, "f");
        let attempt = if is_buried { attempt.buried() } else { attempt };
        same("ended", store.settle_in(JOIN, "c1", &[&attempt])?, ["1"])?;
        same("after its end", expires(store)?, [true, true])?;
    }
    Ok(())
}

fn a_task_ends_only_its_own_flow(store: &mut Store) -> Step {
    store.start_flow("f", 1, 100)?;
    store.promote("f")?;
    // A producer may write any value into the field.
    store.run::<()>("SET", &["tq:{join}:flow:text", "x"])?;
    for flow in ["f", "text"] {
        store.run::<String>("XADD", &[JOIN, "*", "n", "1"])?;
        let entry = store.read(JOIN, "c1")?;
        let stranger = Attempt::join(&entry, flow).under(&entry).buried();
        same(flow, store.settle_in(JOIN, "c1", &[&stranger])?, ["1"])?;
    }
    same("the flow goes on", expires(store)?, [false, false])
}

fn a_failed_flow_is_cancelled(store: &mut Store) -> Step {
    // The task that joins the flow waits in the stream, or is dead; its queue keeps the status, or does not.
    let dead = |retention| (retention, true, "FAILED");
    for (retention, is_dead, before) in [("3600000", false, "PENDING"), dead("3600000"), dead("0")] {
        store.empty()?;
        store.retention = retention;
        store.start_flow("f", 3, 1)?;
        store.promote("f")?;
        let child = store.child("c1")?;
        same("buried", store.settle("c1", &[&Attempt::child(&child).buried()])?, ["1"])?;
        if is_dead {
            let failed = store.read(JOIN, "c1")?;
            same("dead", store.settle_in(JOIN, "c1", &[&Attempt::join(&failed, "f").buried()])?, ["1"])?;
        }
        same("before", store.cancel(JOIN, "f")?.as_str(), before)?;
        same("released later", store.promote("f")?, 0)?;
        same("nothing is left to release", store.run::<u64>("ZCARD", &["tq:{join}:delayed"])?, 0)?;
        same("staged", store.run::<u64>("EXISTS", &["tq:{join}:flow:f:children"])?, 0)?;
        same("expires", expires(store)?, [true, true])?;
        same("before that", store.cancel(JOIN, "f")?.as_str(), if is_dead { "FAILED" } else { "CANCELLED" })?;
    }
    // The last task was requeued, and has completed.
    let (letter, fields) = letter_of_join(store)?;
    same("requeued", store.requeue(JOIN, "f", &letter, &fields)?, 1)?;
    let entry = store.read(JOIN, "c1")?;
    same("completed", store.settle_in(JOIN, "c1", &[&Attempt::join(&entry, "f")])?, ["1"])?;
    same("not known", store.cancel(JOIN, "f")?, "")
}

/// The only dead letter of the task that joins the flow, and its fields.
fn letter_of_join(store: &mut Store) -> Step<(String, Vec<String>)> {
    let letters: Vec<(String, Vec<String>)> = store.run("XRANGE", &["tq:{join}:dead", "-", "+"])?;
    letters.into_iter().next().ok_or_else(|| "the last task is not dead".to_owned())
}

fn a_failed_flow_is_kept(store: &mut Store) -> Step {
    let is_long = |store: &mut Store| -> Step<[bool; 2]> {
        let [of_flow, of_results] = ["", ":results"].map(|what| format!("tq:{{join}}:flow:f{what}"));
        let days = |ms: i64| ms / 86_400_000;
        Ok([days(store.run("PTTL", &[&of_flow])?) >= 29, days(store.run("PTTL", &[&of_results])?) >= 29])
    };
    let failed = failed_flow(store)?;
    store.requeue_child("c1")?;
    same("a flow that goes on", expires(store)?, [false, false])?;
    same("dead", store.settle_in(JOIN, "c1", &[&Attempt::join(&failed, "f").buried()])?, ["1"])?;
    same("after its burial", is_long(store)?, [true, true])?;

    let fields = owned(&["n", "1", "tq-id", "child-0", "tq-flow", "0 tq:{join}:flow:f"]);
    for key in ["tq:{join}:flow:f", "tq:{join}:flow:f:results"] {
        store.run::<()>("PEXPIRE", &[key, "60000"])?;
    }
    let letter: String = store.run("XADD", &["tq:{part}:dead", "*", "n", "1"])?;
    same("a child is requeued", store.requeue(PART, "child-0", &letter, &fields)?, 1)?;
    same("after the requeueing of a child", is_long(store)?, [true, true])?;

    let (letter, fields) = letter_of_join(store)?;
    same("the last task is requeued", store.requeue(JOIN, "f", &letter, &fields)?, 1)?;
    same("while its last task lives", expires(store)?, [false, false])
}

fn an_expired_flow_is_told(store: &mut Store) -> Step {
    let failed = failed_flow(store)?;
    store.run::<u64>("DEL", &["tq:{join}:flow:f", "tq:{join}:flow:f:results"])?;
    let fields = owned(&["n", "1", "tq-id", "child-0", "tq-flow", "0 tq:{join}:flow:f"]);
    let letter: String = store.run("XADD", &["tq:{part}:dead", "*", "n", "1"])?;
    same("of a child", store.requeue(PART, "child-0", &letter, &fields)?, 2)?;
    same("dead", store.settle_in(JOIN, "c1", &[&Attempt::join(&failed, "f").buried()])?, ["1"])?;
    same("the burial makes no flow", store.run::<u64>("EXISTS", &["tq:{join}:flow:f"])?, 0)?;
    let (letter, fields) = letter_of_join(store)?;
    same("of the last task", store.requeue(JOIN, "f", &letter, &fields)?, 2)
}

fn an_untold_end_leaves_no_status(store: &mut Store) -> Step {
    for (retention, said, lives) in [("0", false, false), ("3600000", true, true)] {
        store.empty()?;
        store.retention = retention;
        store.run::<()>("SET", &[TOLD, "no stream"])?;
        let entry = store.work("c1")?;
        same("ended", store.settle("c1", &[&Attempt::completed(&entry)])?, ["1"])?;
        let status = store.status(WORK, &entry);
        same("said", store.run::<bool>("HEXISTS", &[&status, "untold"])?, said)?;
        same("it expires", store.run::<i64>("PTTL", &[&status])? > 0, lives)?;
        same("without an expiry", store.run::<i64>("PTTL", &[&status])? == -1, false)?;
    }
    Ok(())
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}
