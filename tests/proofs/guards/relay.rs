//! The guards of a task that comes from another slot of a cluster.
//!
//! Not here: hosts that take it there (`tests/servers/relay.rs`), all orders of their steps (`tests/model`).

use super::Case;
use super::store::{PART, Step, Store, same};

pub const CASES: &[Case] = &[
    Case {
        what: "a task from another slot is enqueued once",
        scenario: a_task_comes_once,
        mutations: &[&[("if redis.call('EXISTS', new.status) == 0 then", "if true then")]],
    },
    Case {
        what: "a call that comes too late enqueues nothing",
        scenario: a_late_call_does_nothing,
        mutations: &[&[("if now > tonumber(ends) then return false end", "")]],
    },
    Case {
        what: "a task whose status is no status is not taken for enqueued",
        scenario: a_foreign_status_is_told,
        mutations: &[&[(
            "local why = bad and bad.err or kind.refusal(new)",
            "local why = kind.refusal(new)",
        )]],
    },
];

fn a_task_comes_once(store: &mut Store) -> Step {
    let done = Some(vec!["1".to_owned()]);
    same("the first call", store.relay("a", 10_000)?, done.clone())?;
    same("the second", store.relay("a", 10_000)?, done)?;
    same("entries", store.length(PART)?, 1)
}

fn a_late_call_does_nothing(store: &mut Store) -> Step {
    same("a late call", store.relay("a", -1)?, None)?;
    same("entries", store.length(PART)?, 0)
}

fn a_foreign_status_is_told(store: &mut Store) -> Step {
    let status = store.status(PART, "a");
    store.run::<()>("SET", &[&status, "x"])?;
    let told = store.relay("a", 10_000)?.unwrap_or_default().concat();
    if !told.starts_with("TQTYPE") {
        return Err(format!("it says {told}"));
    }
    same("entries", store.length(PART)?, 0)
}
