//! The guards of the scripts that keep the children of a flow until its commit.

use super::Case;
use super::store::{Effect, JOIN, Step, Store, same};

pub const CASES: &[Case] = &[
    Case {
        what: "children are staged once, also when the call is repeated or arrives late",
        scenario: children_are_staged_once,
        mutations: &[
            &[("kept ~= tonumber(ARGV[2]) or ", "")],
            &[(" or redis.call('EXISTS', KEYS[2]) == 1", "")],
        ],
    },
    Case {
        what: "the children of a flow that did not start are deleted, and those of one that started stay",
        scenario: only_staged_children_are_deleted,
        mutations: &[
            &[("if redis.call('PTTL', KEYS[1]) < 0 then return 0 end", "")],
            &[("redis.call('PTTL', KEYS[1]) < 0", "true")],
        ],
    },
];

fn children_are_staged_once(store: &mut Store) -> Step {
    store.stage("f", 2, 100)?;
    store.stage("f", 2, 100)?;
    store.commit(Effect::flow(JOIN, "f", 2))?;
    same("released", store.promote("f")?, 2)?;
    same("late", store.stage("f", 2, 100).is_err(), true)?;
    same("left", store.run::<u64>("LLEN", &["tq:{join}:flow:f:children"])?, 0)
}

fn only_staged_children_are_deleted(store: &mut Store) -> Step {
    for starts in [false, true] {
        store.empty()?;
        store.stage("f", 2, 100)?;
        if starts {
            store.commit(Effect::flow(JOIN, "f", 2))?;
        }
        same("deleted", store.unstage("f")?, usize::from(!starts))?;
        same("deleted again", store.unstage("f")?, 0)?;
        let left = if starts { 2 } else { 0 };
        same("left", store.run::<u64>("LLEN", &["tq:{join}:flow:f:children"])?, left)?;
    }
    Ok(())
}
