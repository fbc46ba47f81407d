//! The guards of the scripts that keep what goes by itself: the children of a flow until its commit, and the
//! records of failed attempts.

use super::Case;
use super::store::{Attempt, Effect, JOIN, Step, Store, WORK, same};

pub const CASES: &[Case] = &[
    Case {
        what: "children are staged once, also when the call is repeated or arrives late",
        scenario: children_are_staged_once,
        mutations: &[
            &[("kept ~= tonumber(expected) or ", "")],
            &[(" or redis.call('EXISTS', flow) == 1", "")],
        ],
    },
    Case {
        what: "the children of a flow that did not start are deleted, and those of one that started stay",
        scenario: only_staged_children_are_deleted,
        mutations: &[
            &[("if redis.call('PTTL', children) < 0 then return 0 end", "")],
            &[("redis.call('PTTL', children) < 0", "true")],
        ],
    },
    Case {
        what: "a failed attempt is kept once, as one of the last ones, and only by the owner of its task",
        scenario: failures_are_kept_once,
        mutations: &[
            &[("if #old > 0 then redis.call('HDEL', record.key, unpack(old)) end", "")],
            &[("if one.record then add_record(one) end", "")],
            &[
                ("(anyone_may or owned(entry, consumer))", "true"),
                ("if not is_acked and not has_without_entry(status, entry) then return 0 end", ""),
            ],
        ],
    },
    Case {
        what: "the records of a task expire with its status, and by themselves if that gets lost",
        scenario: records_go_with_the_status,
        mutations: &[
            &[("redis.call('PEXPIRE', record.key, RECORDS_LIVE + one.delay)", "")],
            &[("set_status(one.status, 'attempts', record.key)", "")],
            &[("if records then redis.pcall('PEXPIRE', key_of(status, id, 'attempts'), retention) end", "")],
        ],
    },
    Case {
        what: "a key of another type in the place of records is replaced, and keeps nobody from settling",
        scenario: another_type_is_replaced,
        mutations: &[&[("redis.pcall('DEL', record.key)", "")]],
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

/// The key with the records of a task.
fn records(id: &str) -> String {
    format!("tq:{{{WORK}}}:attempts:{id}")
}

/// How many records there are. One more field of the hash counts them.
fn kept(store: &mut Store) -> Step<u64> {
    Ok(store.run::<u64>("HLEN", &[&records("t")])?.saturating_sub(1))
}

/// The task `t`, which the consumer holds.
fn taken(store: &mut Store, consumer: &str) -> Step<Attempt> {
    store.run::<String>("XADD", &[WORK, "*", "tq-id", "t"])?;
    Ok(Attempt::named(&store.read(WORK, consumer)?, "t"))
}

/// The next attempt of the task `t`, which has come back.
fn again(store: &mut Store) -> Step<Attempt> {
    Ok(Attempt::named(&store.read(WORK, "c1")?, "t"))
}

fn failures_are_kept_once(store: &mut Store) -> Step {
    let first = taken(store, "c1")?.failed();
    same("a stranger", store.settle("c2", &[&first])?, ["0"])?;
    same("a stranger keeps nothing", kept(store)?, 0)?;
    same("settled", store.settle("c1", &[&first])?, ["1"])?;
    same("repeated", store.settle_again(WORK, "c1", &[&first])?, ["1"])?;
    same("kept", kept(store)?, 1)?;
    for _ in 0..3 {
        let next = again(store)?.failed();
        same("settled", store.settle("c1", &[&next])?, ["1"])?;
    }
    same("the last ones", kept(store)?, 2)
}

fn records_go_with_the_status(store: &mut Store) -> Step {
    for ends in [Attempt::failed_for_good, |last: Attempt| last] {
        store.empty()?;
        let first = taken(store, "c1")?.failed();
        same("settled", store.settle("c1", &[&first])?, ["1"])?;
        let lives: i64 = store.run("PTTL", &[&records("t")])?;
        same("while the task lives", (2_500_000_000..=2_592_000_000).contains(&lives), true)?;
        let last = ends(again(store)?);
        same("settled", store.settle("c1", &[&last])?, ["1"])?;
        let status = store.status(WORK, "t");
        let lives = [records("t"), status].map(|key| store.run::<i64>("PTTL", &[&key]));
        for lives in lives {
            same("after the end", (3_000_000..=3_600_000).contains(&lives?), true)?;
        }
    }
    // A queue that keeps no statuses, since its configuration has changed.
    store.empty()?;
    let first = taken(store, "c1")?.failed();
    same("settled", store.settle("c1", &[&first])?, ["1"])?;
    let last = again(store)?;
    let before = std::mem::replace(&mut store.retention, "0");
    let settled = store.settle("c1", &[&last]);
    store.retention = before;
    same("settled", settled?, ["1"])?;
    same("nothing is left", kept(store)?, 0)
}

fn another_type_is_replaced(store: &mut Store) -> Step {
    store.run::<()>("SET", &[&records("t"), "x"])?;
    let first = taken(store, "c1")?.failed();
    same("settled", store.settle("c1", &[&first])?, ["1"])?;
    same("kept", kept(store)?, 1)
}
