//! The guards of turns that need two tasks with one id, a mark, a lease that is over, or fields and entries
//! that somebody deleted. Random steps find the others (`proofs::turns`).

use super::Case;
use super::store::{Attempt, FIRST, Gate, Step, Store, WORK, same};

pub const CASES: &[Case] = &[
    Case {
        what: "another task with the id of one that has its turn neither takes nor frees that turn",
        scenario: a_turn_belongs_to_one_entry,
        mutations: &[
            &[("if not track or entry and entry ~= under then return end", "if not track then return end")],
            &[("if not is_taken and not is_elsewhere(turns.statuses .. id, entry, id) then", "if true then")],
        ],
    },
    Case {
        what: "of two entries with one id, the one that runs has the turn",
        scenario: the_entry_that_runs_has_the_turn,
        mutations: &[&[("if track and under ~= entry then tracks.give(track, id, entry) end", "")]],
    },
    Case {
        what: "a task waits while a cancelled run under its id is stopped, and is the next one of its track",
        scenario: a_stopping_run_keeps_its_turn,
        mutations: &[
            &[("and mark_of(turns.statuses .. id, entry) == 'elsewhere'", "and false")],
            &[("local is_taken = under ~= entry and is_there(under, 0)", "local is_taken = false")],
        ],
    },
    Case {
        what: "the gate puts a task off while a cancelled run under its id is stopped",
        scenario: the_gate_puts_a_task_off,
        mutations: &[&[("if mark == 'elsewhere' then\n    put_off", "if false then\n    put_off")]],
    },
    Case {
        what: "a task that is held leaves the status of another one with its id as it is",
        scenario: a_held_task_leaves_the_status_of_another,
        mutations: &[&[(
            "if not mark_of(status, entry) and not is_elsewhere(status, entry, id) then\n    forget_end(",
            "if true then\n    forget_end(",
        )]],
    },
    Case {
        what: "a held task whose fields somebody deleted takes no place",
        scenario: held_tasks_without_fields_take_no_place,
        mutations: &[&[("if not packed then return end", "")]],
    },
    Case {
        what: "the heartbeat of a task that is cancelled while it has its turn says so",
        scenario: the_heartbeat_sees_the_mark,
        mutations: &[&[("if turns.are_limited and mark_of(status, entry) == 'here' then return 2 end", "")]],
    },
    Case {
        what: "a task that is delivered again begins with a whole lease, also if its entry was deleted",
        scenario: repeated_deliveries_begin_with_a_whole_lease,
        mutations: &[
            &[("if again == '1' and turns.are_limited and exists(entry) then", "if false then")],
            &[("turns.are_limited and exists(entry) then", "turns.are_limited then")],
            &[(
                "0, entry, 'JUSTID')\n  end\n  redis.call('PERSIST'",
                "0, entry)\n  end\n  redis.call('PERSIST'",
            )],
        ],
    },
    Case {
        what: "what another program left gets a turn or is held, before anything new is read",
        scenario: a_task_of_another_program_gets_its_turn,
        mutations: &[
            &[("not tracks.take(id, fields, field, deliveries)", "false")],
            &[("if is_foreign(history, owner[1]) then return", "if false then return")],
        ],
    },
];

/// Adds a task with this id to the queue, whose tasks follow each other.
fn add(store: &mut Store, id: &str) -> Step<String> {
    store.has_turns = true;
    store.run("XADD", &[WORK, "*", "n", "1", "tq-id", id])
}

fn claim(store: &mut Store, expected: &[&str]) -> Step {
    same("claimed", store.claim("c1")?, expected)
}

fn end(store: &mut Store, entry: &str, id: &str) -> Step {
    same("settled", store.settle("c1", &[&Attempt::named(entry, id).owned()])?, ["1"])
}

fn a_turn_belongs_to_one_entry(store: &mut Store) -> Step {
    let first = add(store, "t")?;
    claim(store, &[&first])?;
    same("begun", store.begin("c1", "t", &first)?, 1)?;
    let (second, _) = (add(store, "t")?, add(store, "u")?);
    // The second task is delivered, so that the gate finds the duplicate. The third one is held.
    claim(store, &[&second])?;
    same("a duplicate", store.begin("c1", "t", &second)?, 3)?;
    same("only the first one is there", store.length(WORK)?, 1)?;
    end(store, &first, "t")?;
    same("the next one has its turn", store.length(WORK)?, 1)
}

fn the_entry_that_runs_has_the_turn(store: &mut Store) -> Step {
    let (first, second) = (add(store, "t")?, add(store, "t")?);
    claim(store, &[&first, &second])?;
    same("begun", store.begin("c1", "t", &second)?, 1)?;
    same("a duplicate", store.begin("c1", "t", &first)?, 3)?;
    add(store, "u")?;
    claim(store, &[])
}

/// A task that was cancelled while it ran, and is not stopped yet.
fn stopping(store: &mut Store) -> Step<String> {
    let first = add(store, "t")?;
    claim(store, &[&first])?;
    same("begun", store.begin("c1", "t", &first)?, 1)?;
    same("cancelled", store.cancel(WORK, "t")?, "PROCESSING")?;
    Ok(first)
}

fn a_stopping_run_keeps_its_turn(store: &mut Store) -> Step {
    let first = stopping(store)?;
    add(store, "t")?;
    add(store, "u")?;
    claim(store, &[])?;
    end(store, &first, "t")?;
    same("its end is that of the cancelled one", store.said(WORK, "t")?, "CANCELLED")?;
    let next = store.claim("c1")?;
    same("one has its turn", next.len(), 1)?;
    same("begun", store.begin("c1", "t", &next[0])?, 1)
}

fn the_gate_puts_a_task_off(store: &mut Store) -> Step {
    stopping(store)?;
    let second = add(store, "t")?;
    same("delivered", store.read(WORK, "c1")?, second.as_str())?;
    same("put off", store.begin("c1", "t", &second)?, 6)?;
    same("delayed", store.run::<u64>("ZCARD", &["tq:{work}:delayed"])?, 1)?;
    same("with its fields", store.run::<u64>("HLEN", &["tq:{work}:parked"])?, 1)?;
    same("the first one runs", store.length(WORK)?, 1)
}

fn a_held_task_leaves_the_status_of_another(store: &mut Store) -> Step {
    let first = add(store, "t")?;
    claim(store, &[&first])?;
    same("begun", store.begin("c1", "t", &first)?, 1)?;
    end(store, &first, "t")?;
    let other = add(store, "u")?;
    claim(store, &[&other])?;
    add(store, "t")?;
    claim(store, &[])?;
    same("status", store.said(WORK, "t")?, "COMPLETED")
}

fn held_tasks_without_fields_take_no_place(store: &mut Store) -> Step {
    let first = add(store, "t")?;
    claim(store, &[&first])?;
    add(store, "u")?;
    claim(store, &[])?;
    store.run::<u64>("DEL", &["tq:{work}:parked"])?;
    add(store, "v")?;
    claim(store, &[])?;
    end(store, &first, "t")?;
    same("the next one has its turn", store.length(WORK)?, 1)?;
    same("nothing is held", store.run::<u64>("ZCARD", &["tq:{work}:delayed"])?, 0)
}

fn the_heartbeat_sees_the_mark(store: &mut Store) -> Step {
    let first = add(store, "t")?;
    claim(store, &[&first])?;
    same("begun", store.begin("c1", "t", &first)?, 1)?;
    same("cancelled", store.cancel(WORK, "t")?, "PROCESSING")?;
    same("heartbeat", store.beat("c1", "t", &first)?, 2)
}

fn repeated_deliveries_begin_with_a_whole_lease(store: &mut Store) -> Step {
    for is_deleted in [false, true] {
        store.empty()?;
        let entry = add(store, "t")?;
        claim(store, &[&entry])?;
        // Its host could not renew the lease, has stopped the handler, and finds the entry again.
        store.run::<()>("XCLAIM", &[WORK, "tqhost", "c1", "0", &entry, "IDLE", "2000", "JUSTID"])?;
        if is_deleted {
            store.run::<u64>("XDEL", &[WORK, &entry])?;
        }
        store.gate = Gate { fence: "2", again: "1", ..FIRST };
        same("begun again", store.begin("c1", "t", &entry)?, 1)?;
        if is_deleted {
            same("the attempt goes on", store.beat("c1", "t", &entry)?, 3)?;
            continue;
        }
        let (_, taken_over, ..) = store.reclaim("c2", "1000")?;
        same("another host takes nothing over", taken_over.len(), 0)?;
        let pending: Vec<(String, String, u64, u64)> =
            store.run("XPENDING", &[WORK, "tqhost", "-", "+", "10"])?;
        same("nobody died", pending[0].3, 1)?;
    }
    Ok(())
}

fn a_task_of_another_program_gets_its_turn(store: &mut Store) -> Step {
    store.run::<u64>("HSET", &["tq:{work}:history", "tqhost", "5-0"])?;
    let left = [add(store, "t")?, add(store, "u")?];
    same("delivered", store.read(WORK, "worker-7")?, left[0].as_str())?;
    same("delivered", store.read(WORK, "worker-7")?, left[1].as_str())?;
    add(store, "v")?;
    claim(store, &[])?;
    same("nothing new is read", store.length(WORK)?, 3)?;
    for entry in &left {
        store.run::<()>("XCLAIM", &[WORK, "tqhost", "worker-7", "0", entry, "IDLE", "10000", "JUSTID"])?;
    }
    let (_, entries, ..) = store.reclaim("box-9-aaaaaaaaaaaa", "1000")?;
    let taken: Vec<&str> = entries.iter().map(|(entry, ..)| entry.as_str()).collect();
    same("taken over", taken, vec![left[0].as_str()])?;
    same("the other one is held", store.run::<u64>("ZCARD", &["tq:{work}:delayed"])?, 1)
}
