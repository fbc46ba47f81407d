//! The guards of the scripts that give a consumer its tasks: the gate, takeovers, and settlements of entries
//! that others have deleted, or whose delivery Redis forgot.

use tqhost::testing::queue::script;

use super::Case;
use super::store::{Attempt, FIRST, Gate, Step, Store, TOLD, WORK, same};

pub const CASES: &[Case] = &[
    Case {
        what: "a task that cannot begin, or whose lease cannot be renewed, holds up no other one",
        scenario: each_task_has_its_own_answer,
        mutations: &[
            &[("pcall(begin)", "true, begin()")],
            &[("try(beat)", "beat()")],
            &[("went and answer or { 0, text_of(answer) }", "went and answer or 0")],
            &[("return text_of(result)", "return 0")],
        ],
    },
    Case {
        what: "a late call of the gate does not write over a status that has expired",
        scenario: a_late_begin_leaves_what_has_ended,
        mutations: &[
            &[("redis.call('EXISTS', status) == 1 or tonumber(held) < tonumber(lease)", "true")],
            &[("redis.call('EXISTS', status) == 1 or tonumber(held)", "tonumber(held)")],
            &[(" or tonumber(held) < tonumber(lease)", "")],
        ],
    },
    Case {
        what: "a task is lost only if no entry, no status and no other host says otherwise",
        scenario: only_a_lost_task_is_told_to_be_lost,
        mutations: &[
            &[("if state == nil or exists(entry) then return false end", "")],
            &[("if state and (known_entry ~= entry or not is_live(state)) then return false end", "")],
            &[("if not state and tonumber(retention) == 0 then return false end", "")],
        ],
    },
    Case {
        what: "the heartbeat of a host that lost its lease ends no task that another host has",
        scenario: a_late_heartbeat_leaves_the_task_of_another,
        mutations: &[&[("if is_there(entry, kept_until) then return 0 end", "")]],
    },
    Case {
        what: "the end of a task leaves the key of another one",
        scenario: the_key_of_another_task_stays,
        mutations: &[&[(
            "if marker ~= stream and first_task(marker) == id then",
            "if marker ~= stream then",
        )]],
    },
    Case {
        what: "the gate ends a task that is marked as cancelled",
        scenario: the_gate_ends_a_marked_task,
        mutations: &[&[("if mark == 'here' then\n    cancel(", "if false then\n    cancel(")]],
    },
    Case {
        what: "each delivery after the first has a higher fence than those before",
        scenario: fences_grow,
        mutations: &[
            &[("if again == '1' and last >= given then given = last + 1 end", "")],
            &[("if given > 1 and given > last then", "if given > 1 then")],
            &[("redis.call('HSET', status, 'fence', given)", "")],
        ],
    },
    Case {
        what: "a crash counts only against a task that ran alone under this entry, with fewer crashes",
        scenario: only_crashes_of_runs_alone_count,
        mutations: &[
            &[("local has_died = entry_before == entry and ", "local has_died = entry_before and ")],
            &[(
                "tonumber(crashes) > tonumber(crashes_before)",
                "tonumber(crashes) >= tonumber(crashes_before)",
            )],
        ],
    },
    Case {
        what: "the status of a task that runs does not expire",
        scenario: the_status_of_a_task_that_runs_stays,
        mutations: &[
            &[(
                "redis.call('PERSIST', status)\n  set_status(status, 'status', 'PROCESSING'",
                "set_status(status, 'status', 'PROCESSING'",
            )],
            &[("  redis.call('PERSIST', status)\nend", "end")],
        ],
    },
    Case {
        what: "what is taken over from another program was delivered for the first time",
        scenario: takeovers_from_another_program,
        mutations: &[
            &[("if is_host(consumer) then return false end", "if true then return false end")],
            &[("if is_host(consumer) then return false end", "")],
            &[("before_tqhost ~= '0-0'", "true")],
            &[("    and not string.find(named, '^' .. uuid .. '$') and not", "    and not")],
            &[(" and not string.find(named, '%X' .. uuid .. '$')", "")],
        ],
    },
    Case {
        what: "a takeover is bounded in bytes",
        scenario: takeovers_are_bounded,
        mutations: &[&[("if size > bytes or #entries + #lost + held >= limit then", "if false then")]],
    },
    Case {
        what: "plain attempts are settled only if their consumer may still own them",
        scenario: plain_attempts_of_others,
        mutations: &[
            &[("not comes_after(entry, latest) and exists(entry)", "exists(entry)")],
            &[("status ~= 'CANCELLED' and status ~= 'COMPLETED' and status ~= 'FAILED'", "true")],
            &[("if not ours[i] and acked > 0 then", "if not ours[i] then")],
        ],
    },
    Case {
        what: "a settlement is refused as a whole when a key has another type",
        scenario: keys_of_another_type_refuse_a_settlement,
        mutations: &[
            &[("to_wait_for(buries and wrong_type(dead, 'stream')", "to_wait_for(false")],
            &[("parks and wrong_type(delayed, 'zset', parked, 'hash')", "false")],
        ],
    },
];

fn each_task_has_its_own_answer(store: &mut Store) -> Step {
    let entry = store.work("c1")?;
    for replies in store.beside_a_broken_one("c1", &entry)? {
        same("the whole one", replies.last(), Some(&redis::Value::Int(1)))?;
        let why = format!("{:?}", replies.first());
        same(&why, why.contains("Invalid stream ID"), true)?;
    }
    Ok(())
}

fn a_late_begin_leaves_what_has_ended(store: &mut Store) -> Step {
    // Another host takes the task over and completes it, and the status expires before the call arrives.
    let entry = store.work("c1")?;
    store.run::<()>("XCLAIM", &[WORK, "tqhost", "c2", "0", &entry, "JUSTID"])?;
    same("settled", store.settle("c2", &[&Attempt::completed(&entry)])?, ["1"])?;
    let status = store.status(WORK, &entry);
    store.run::<u64>("DEL", &[&status])?;
    store.gate = Gate { held: "20000", ..FIRST };
    same("begun late", store.begin("c1", &entry, &entry)?, 0)?;
    same("status", store.said(WORK, &entry)?, "")?;
    same("ends that were told", store.length(TOLD)?, 1)?;
    // The entry of a task that was delivered a moment ago was deleted, or that of one with a status.
    for (held, has_status) in [("0", false), ("20000", true)] {
        store.gate = Gate { held, ..FIRST };
        let entry = store.work("c1")?;
        let status = store.status(WORK, &entry);
        if has_status {
            store.run::<()>("HSET", &[&status, "status", "PENDING", "entry", &entry])?;
        }
        store.run::<u64>("XACK", &[WORK, "tqhost", &entry])?;
        store.run::<u64>("XDEL", &[WORK, &entry])?;
        same("lost", store.begin("c1", &entry, &entry)?, 4)?;
        same("status", store.said(WORK, &entry)?, "FAILED")?;
    }
    Ok(())
}

fn only_a_lost_task_is_told_to_be_lost(store: &mut Store) -> Step {
    // Another host has taken the task over and not begun it yet.
    let entry = store.work("c1")?;
    store.run::<()>("XCLAIM", &[WORK, "tqhost", "c2", "0", &entry, "JUSTID"])?;
    same("of another host", store.begin("c1", &entry, &entry)?, 0)?;
    same("status", store.said(WORK, &entry)?, "")?;
    // The other host completes it.
    same("settled", store.settle("c2", &[&Attempt::completed(&entry)])?, ["1"])?;
    same("completed", store.begin("c1", &entry, &entry)?, 0)?;
    same("status", store.said(WORK, &entry)?, "COMPLETED")?;
    // Where no statuses are kept, a task without one may have ended.
    store.retention = "0";
    let entry = store.work("c1")?;
    same("settled", store.settle("c1", &[&Attempt::completed(&entry)])?, ["1"])?;
    let told = store.length(TOLD)?;
    same("begun late", store.begin("c1", &entry, &entry)?, 0)?;
    same("ends that were told", store.length(TOLD)?, told)
}

fn a_late_heartbeat_leaves_the_task_of_another(store: &mut Store) -> Step {
    let entry = store.work("c1")?;
    same("begun", store.begin("c1", &entry, &entry)?, 1)?;
    store.run::<()>("XCLAIM", &[WORK, "tqhost", "c2", "0", &entry, "JUSTID"])?;
    store.run::<u64>("XDEL", &[WORK, &entry])?;
    same("heartbeat", store.beat("c1", &entry, &entry)?, 0)?;
    same("status", store.said(WORK, &entry)?, "PROCESSING")
}

fn the_key_of_another_task_stays(store: &mut Store) -> Step {
    store.run::<()>("SET", &["marker", "other"])?;
    let entry: String = store.run("XADD", &[WORK, "*", "n", "1"])?;
    let status = store.status(WORK, &entry);
    store.run::<()>("HSET", &[&status, "status", "PENDING", "entry", &entry])?;
    store.run::<u64>("XDEL", &[WORK, &entry])?;
    let args = ["tqhost", "3600000", "3600000", &entry, "", WORK, ""];
    let lost: u64 = store.script(&script::END_DELETED, &[WORK, &status, "marker"], &args)?;
    same("it is lost", lost, 1)?;
    same("the key", store.get("marker")?, "other")
}

fn the_gate_ends_a_marked_task(store: &mut Store) -> Step {
    let entry = store.work("c1")?;
    let status = store.status(WORK, &entry);
    store.run::<()>("HSET", &[&status, "status", "CANCELLED", "cancel", "1"])?;
    same("begun", store.begin("c1", &entry, &entry)?, 2)?;
    same("waiting", store.length(WORK)?, 0)
}

fn fences_grow(store: &mut Store) -> Step {
    let entry = store.work("c1")?;
    let begin = |store: &mut Store, fence, again| {
        store.gate = Gate { fence, again, ..FIRST };
        if again == "1" { store.begin_again("c1", &entry, &entry) } else { store.begin("c1", &entry, &entry) }
    };
    let noted = |store: &mut Store| {
        let status = store.status(WORK, &entry);
        store.run::<String>("HGET", &[&status, "fence"])
    };
    same("asked with 3", begin(store, "3", "0")?, 1)?;
    same("noted", noted(store)?, "3")?;
    same("another host may have run it", begin(store, "3", "1")?, 4)?;
    same("the call is repeated with a lower one", begin(store, "2", "1")?, 5)?;
    same("asked with 2", begin(store, "2", "0")?, 1)?;
    same("noted last", noted(store)?, "5")
}

fn only_crashes_of_runs_alone_count(store: &mut Store) -> Step {
    store.run::<String>("XADD", &[WORK, "*", "n", "1", "tq-id", "t"])?;
    let entry = store.read(WORK, "c1")?;
    store.gate = Gate { alone: "1", crashes: "3", ..FIRST };
    same("it runs alone", store.begin("c1", "t", &entry)?, 1)?;
    same("the call is repeated", store.begin("c1", "t", &entry)?, 1)?;
    store.gate = Gate { crashes: "4", ..FIRST };
    same("its host died", store.begin("c1", "t", &entry)?, 5)?;
    same("given back", store.settle("c1", &[&Attempt::named(&entry, "t").released()])?, ["1"])?;
    let entry = store.read(WORK, "c1")?;
    same("another entry", store.begin("c1", "t", &entry)?, 1)?;
    Ok(())
}

fn the_status_of_a_task_that_runs_stays(store: &mut Store) -> Step {
    // The id of a task that died comes again, or the dead letter is requeued.
    let status = store.status(WORK, "t");
    for is_requeued in [false, true] {
        store.run::<()>("HSET", &[&status, "status", "FAILED"])?;
        store.run::<()>("PEXPIRE", &[&status, "60000"])?;
        if is_requeued {
            let letter: String = store.run("XADD", &["tq:{work}:dead", "*", "n", "1"])?;
            let fields = ["n", "1", "tq-id", "t"].map(str::to_owned);
            same("requeued", store.requeue(WORK, "t", &letter, &fields)?, 1)?;
        } else {
            store.run::<String>("XADD", &[WORK, "*", "n", "1", "tq-id", "t"])?;
            let entry = store.read(WORK, "c1")?;
            same("begun", store.begin("c1", "t", &entry)?, 1)?;
        }
        same("it stays", store.run::<i64>("PTTL", &[&status])?, -1)?;
    }
    Ok(())
}

fn takeovers_from_another_program(store: &mut Store) -> Step {
    let host = "box-123-0123456789ab";
    // The group was there before tqhost, or tqhost made it.
    let other = "box-123-0123456789ab.2";
    let uuid = "550e8400-e29b-41d4-8716-446655440000";
    let named = format!("worker-{uuid}");
    for (history, owner, deliveries) in [
        ("5-0", "worker-7", 1),
        ("5-0", host, 5),
        ("5-0", other, 5),
        ("0-0", "worker-7", 5),
        ("5-0", uuid, 1),
        ("5-0", &named, 1),
    ] {
        store.empty()?;
        store.run::<u64>("HSET", &["tq:{work}:history", "tqhost", history])?;
        let entry = store.work(owner)?;
        let silent = ["IDLE", "10000", "RETRYCOUNT", "4", "JUSTID"];
        store.run::<()>("XCLAIM", &[&[WORK, "tqhost", owner, "0", &entry][..], &silent].concat())?;
        let (_, entries, ..) = store.reclaim("box-9-aaaaaaaaaaaa", "1000")?;
        let found: Vec<u64> = entries.iter().map(|(.., deliveries)| *deliveries).collect();
        same(&format!("{history} {owner}"), found, vec![deliveries])?;
    }
    Ok(())
}

fn takeovers_are_bounded(store: &mut Store) -> Step {
    let entries = [store.work("c1")?, store.work("c1")?];
    for entry in &entries {
        store.run::<()>("XCLAIM", &[WORK, "tqhost", "c1", "0", entry, "IDLE", "10000", "JUSTID"])?;
    }
    let (next, taken, ..) = store.reclaim("c2", "0")?;
    same("taken", taken.len(), 1)?;
    same("it goes on at", next, entries[1].as_str())
}

fn plain_attempts_of_others(store: &mut Store) -> Step {
    // Redis came back with older data, and has forgotten the delivery of an entry.
    let entry: String = store.run("XADD", &[WORK, "*", "n", "1"])?;
    same("not delivered", store.settle("c1", &[&Attempt::plain(&entry)])?, ["0"])?;
    same("it is delivered", store.read(WORK, "c2")?, entry.as_str())?;
    same("settled", store.settle("c2", &[&Attempt::plain(&entry)])?, ["1"])?;
    // One task was cancelled, and the entry of another one was deleted. Later, both are cancelled.
    for (retention, is_cancelled) in [("3600000", false), ("0", true)] {
        store.retention = retention;
        let (first, second) = (store.work("c1")?, store.work("c1")?);
        same("cancelled", store.cancel(WORK, &first)?, "PENDING")?;
        if is_cancelled {
            same("cancelled", store.cancel(WORK, &second)?, "PENDING")?;
        } else {
            store.run::<u64>("XDEL", &[WORK, &second])?;
        }
        let attempts = [&Attempt::plain(&first), &Attempt::plain(&second)];
        let expected = ["0", if is_cancelled { "0" } else { "1" }];
        same("settled", store.settle("c1", &attempts)?, expected)?;
    }
    Ok(())
}

fn keys_of_another_type_refuse_a_settlement(store: &mut Store) -> Step {
    for (key, is_buried) in [("tq:{work}:dead", true), ("tq:{work}:delayed", false)] {
        let entry = store.work("c1")?;
        store.run::<()>("SET", &[key, "text"])?;
        let attempt = Attempt::named(&entry, &entry);
        let attempt = if is_buried { attempt.buried() } else { attempt.delayed() };
        let replies = store.settle("c1", &[&attempt])?;
        same("refused", replies[0].contains("TQTYPE"), true)?;
        same("pending", store.pending(WORK)?, vec![entry.clone()])?;
        store.run::<u64>("DEL", &[key])?;
        same("settled", store.settle("c1", &[&attempt])?, ["1"])?;
    }
    let length: u64 = store.run("EXISTS", &["tq:{work}:dead", "tq:{work}:delayed"])?;
    same("both are in their places", length, 2)
}
