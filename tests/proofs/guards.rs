//! The guards that need rare orders of calls: those of effects, flows and told ends, of deliveries, of keys
//! of another type, and of what hosts share. Each is taken out of the scripts in turn, and a short scenario
//! must notice that.
//!
//! The scenarios call the scripts as hosts do, in orders that hosts seldom produce: two consumers settle one
//! attempt, a child ends twice, Redis has no room. Not here: guards that random operations find
//! (`property/mutants.rs`), effects of real handlers (`tests/effects`).

mod flows;
mod gate;
mod queues;
mod relay;
mod staging;
mod store;
mod tracks;
mod trust;

use std::collections::HashMap;

use store::{Attempt, Effect, JOIN, Mutation, PART, Step, Store, TOLD, WORK, same};

use crate::support::RedisServer;

/// A scenario, the guards that it needs, each as a text of the scripts and its replacement.
#[derive(Clone, Copy)]
struct Case {
    what: &'static str,
    scenario: fn(&mut Store) -> Step,
    mutations: &'static [Mutation],
}

const CASES: &[Case] = &[
    Case {
        what: "only the first settlement of an attempt commits its effects",
        scenario: effects_are_committed_once,
        mutations: &[&[
            ("if not is_ours and not has_without_entry(status, entry) then return 0 end", ""),
            ("redis.call('XACK', stream, group, entry) == 1", "true"),
        ]],
    },
    Case {
        what: "an attempt that others have settled sets no value",
        scenario: values_are_set_once,
        mutations: &[&[("if not ours or ours[attempt] then", "if true then")]],
    },
    Case {
        what: "a status is copied only if nothing else wrote into it, and to where there is none",
        scenario: copied_statuses_hold_what_they_should,
        mutations: &[
            &[("redis.pcall('HLEN', status) == 2 + #changes / 2", "true")],
            &[(
                "redis.pcall('COPY', model.status, status) == 1",
                "redis.pcall('COPY', model.status, status)",
            )],
            &[("redis.call('HSET', status, unpack(model.changes))", "")],
        ],
    },
    Case {
        what: "a status with a large result is not copied",
        scenario: large_results_are_not_copied_along,
        mutations: &[&[("#(own[6] or '') <= MOST_COPIED", "true")]],
    },
    Case {
        what: "who does not hold the entry is told so before the effects are looked at",
        scenario: a_stranger_is_not_told_of_a_refusal,
        mutations: &[&[("if not is_ours and not has_without_entry(status, entry) then return 0 end", "")]],
    },
    Case {
        what: "effects that cannot be committed leave nothing",
        scenario: refused_effects_leave_nothing,
        mutations: &[
            &[("if refusal then return refusal end", "")],
            &[("if value and not (digits and #digits <= 18) then", "if false then")],
            &[("wrong_type(one.key, 'hash')", "nil")],
            &[(
                "local bad = wrong_type(one.stream, 'stream', one.delayed, 'zset', one.parked, 'hash')\n\
                 \x20   return bad and bad.err",
                "",
            )],
            &[("if bad then return bad.err end\n    if redis.call('LLEN'", "if redis.call('LLEN'")],
            &[("redis.call('LLEN', one.children) ~= tonumber(one.total)", "false")],
        ],
    },
    Case {
        what: "a task that is marked as cancelled commits nothing, and its effects are not looked at",
        scenario: a_marked_task_commits_nothing,
        mutations: &[
            &[("not is_cancelled and effects.refusal_of", "effects.refusal_of")],
            &[("if is_cancelled then\n    for", "if false then\n    for")],
            &[("redis.call('UNLINK', one.children)", "")],
        ],
    },
    Case {
        what: "a full Redis settles what ends, with its effects",
        scenario: a_full_redis_settles_everything,
        mutations: &[&[("#!lua flags=allow-oom", "#!lua")]],
    },
    Case {
        what: "a task whose key another one had within the window is a duplicate",
        scenario: the_key_of_a_task_that_ended_is_taken,
        mutations: &[&[("if not first or first == new.id or redis.call('PTTL', new.marker) < 0", "if true")]],
    },
    Case {
        what: "a child whose key another task had within the window is a duplicate, and fails its flow once",
        scenario: children_with_the_key_of_an_ended_task_are_duplicates,
        mutations: &[
            &[("if not first or first == new.id or redis.call('PTTL', new.marker) < 0", "if true")],
            &[("flows.join(flow, index, child.id, 'CANCELLED', duplicate, child.queue)", "")],
            &[("redis.call('PEXPIRE', new.status, new.retention)", "")],
        ],
    },
    Case {
        what: "a key stays with the living task that has it",
        scenario: a_key_stays_with_the_living_task,
        mutations: &[
            &[("redis.call('PTTL', new.marker) < 0", "false")],
            &[("and (first_task(marker, queue.stream) or id) == id then", "then")],
        ],
    },
    Case {
        what: "the task that joins a flow is a duplicate if another one had its key within the window",
        scenario: the_last_task_of_a_flow_may_be_a_duplicate,
        mutations: &[
            &[("if not first or first == new.id or redis.call('PTTL', new.marker) < 0", "if true")],
            &[("if enqueue(about) then\n    flows.leave(flow)", "if enqueue(about) then")],
            &[("or first == new.id or", "or")],
        ],
    },
    Case {
        what: "a child ends only if its flow can note it",
        scenario: a_child_waits_until_its_flow_can_note_its_end,
        mutations: &[
            &[("or ends and not one.is_new and join_refusal(status)", "")],
            &[("local ends = completes or buries or is_cancelled", "local ends = completes")],
            &[("local ends = completes or buries or is_cancelled", "local ends = completes or buries")],
            &[("'stream')\n  or join_refusal(status)\n", "'stream')\n")],
            &[("or join_refusal(status) ~= nil", "")],
            &[("if bad then error(bad) end", "")],
            &[("refusal or not queue\n      or", "not queue\n      or")],
            &[("flow .. ':results', 'hash')", "'none', 'hash')")],
        ],
    },
    Case {
        what: "children are released once each, as their queue has room",
        scenario: children_are_released_once,
        mutations: &[
            &[("redis.call('LPOP', children)", "local _ = children")],
            &[("if obstacle then", "if false then")],
            &[("redis.call('ZADD', delayed, now + 1000, member)", "")],
            &[("redis.call('ZREM', delayed, member)\n      redis.call('HDEL'", "redis.call('HDEL'")],
            &[("redis.call('PERSIST', one.children)", "")],
        ],
    },
    Case {
        what: "a child that completes twice is counted once",
        scenario: a_child_is_counted_once,
        mutations: &[
            &[("if before and string.find(before, '^COMPLETED ') then return end", "")],
            &[(
                "redis.call('HINCRBY', flow, 'left', -1) == 0",
                "redis.call('HINCRBY', flow, 'left', -1) <= 1",
            )],
            &[(
                "redis.call('HINCRBY', flow, 'left', -1) == 0",
                "redis.call('HINCRBY', flow, 'left', -1) < 0",
            )],
            &[("redis.call('HSET', child.status, 'flow', index .. ' ' .. flow)", "")],
            &[("try(flows.end_child, flow, id, how, changes)", "nil")],
        ],
    },
    Case {
        what: "a flow fails once, whichever of its children die",
        scenario: a_flow_fails_once,
        mutations: &[
            &[("elseif not failed_as then", "else")],
            &[("redis.call('HSET', flow, 'failed_as', redis.call('HGET', about['status'], 'entry'))", "")],
        ],
    },
    Case {
        what: "a flow that failed is joined once all children have completed after all",
        scenario: a_flow_is_healed_before_its_burial,
        mutations: &[
            &[("if failed then", "if false then")],
            &[("redis.call('XDEL', about['stream'], failed)", "")],
        ],
    },
    Case {
        what: "the dead letter of a flow goes when the flow is healed, and if it is gone the task stays away",
        scenario: a_flow_is_healed_after_its_burial,
        mutations: &[
            &[("redis.call('HSET', flow, 'letter', letter, 'dead', dead)", "")],
            &[("if joins then flows.leave(key_of(status, id, 'flow'), buried) end", "")],
            &[("if not letter then return end", "letter = letter or {}")],
            &[("redis.call('HSET', status, field, noted)", "")],
            &[("redis.call('PERSIST', flow)\n", "")],
        ],
    },
    Case {
        what: "who cancels the task that joins a flow cancels the flow",
        scenario: a_flow_is_cancelled_with_its_task,
        mutations: &[
            &[("redis.call('DEL', flow)\n", "")],
            &[("cmsgpack.unpack(redis.call('HGET', flow, 'fields'))", "nil")],
            &[("if has_flow and not known_entry and state then", "if false then")],
        ],
    },
    Case {
        what: "a call of the gate that a host gave up, because it stops, changes nothing",
        scenario: a_gate_call_that_was_given_up_changes_nothing,
        mutations: &[
            &[("if not owned(entry, consumer) then\n    -- After its lease", "if false then\n    -- After")],
            &[("if first and first ~= id then", "if first then")],
        ],
    },
    Case {
        what: "the end of a task that was only marked is told once, when the task is found",
        scenario: a_marked_task_is_told_once,
        mutations: &[
            &[("  is_untold = not found,", "")],
            &[("if is_told then\n    if told", "if false then\n    if told")],
            &[("not ended.is_untold and (told[how] or told.events)", "told[how] or told.events")],
        ],
    },
    Case {
        what: "every end is told once, also when its settlement is repeated",
        scenario: every_end_is_told_once,
        mutations: &[
            &[("if told[how] then tell(ended, id, source, before) end", "")],
            &[
                ("if not is_ours and not has_without_entry(status, entry) then return 0 end", ""),
                ("redis.call('XACK', stream, group, entry) == 1", "true"),
            ],
            &[("if before and before >= tonumber(number) then", "if false then")],
        ],
    },
];

fn effects_are_committed_once(store: &mut Store) -> Step {
    let entry = store.work("c1")?;
    let attempt = Attempt::completed(&entry).with(Effect::add("n"));
    same("first", store.settle("c1", &[&attempt])?, ["1"])?;
    same("second", store.settle("c2", &[&attempt])?, ["0"])?;
    same("counter", store.get("n")?, "1")
}

fn values_are_set_once(store: &mut Store) -> Step {
    let (first, second) = (store.work("c1")?, store.work("c1")?);
    let settle = |store: &mut Store, attempts: &[&Attempt]| store.settle("c1", attempts);
    same("first", settle(store, &[&Attempt::setter(&first, "a")])?, ["1"])?;
    store.run::<()>("SET", &["a", "later"])?;
    let both = [Attempt::setter(&first, "a"), Attempt::setter(&second, "b")];
    same("both", settle(store, &[&both[0], &both[1]])?, ["0", "1"])?;
    same("values", [store.get("a")?, store.get("b")?], ["later", "x"])
}

fn copied_statuses_hold_what_they_should(store: &mut Store) -> Step {
    // Four of each call, because fewer are not copied. Something has written into one of the statuses before.
    for noted in [0, 2] {
        let entries: Vec<String> = (0..4).map(|_| store.work("c1")).collect::<Step<_>>()?;
        let status = store.status(WORK, &entries[noted]);
        store.run::<u64>("HSET", &[&status, "note", "by hand"])?;
        let attempts: Vec<Attempt> = entries.iter().map(|entry| Attempt::plain(entry)).collect();
        same("all", store.settle("c1", &attempts.iter().collect::<Vec<_>>())?, ["1"; 4])?;
        for (n, entry) in entries.iter().enumerate() {
            let status = store.status(WORK, entry);
            let said: HashMap<String, String> = store.run("HGETALL", &[&status])?;
            let value = |name: &str| said.get(name).map(String::as_str);
            same("the end", (value("status"), value("plugin")), (Some("COMPLETED"), Some("p")))?;
            // The store says that each was enqueued at its place in the call.
            let place = (n + 1).to_string();
            same("the time", value("enqueued_at"), Some(place.as_str()))?;
            same("the note", value("note").is_some(), n == noted)?;
        }
    }
    Ok(())
}

fn large_results_are_not_copied_along(store: &mut Store) -> Step {
    let copies = |store: &mut Store| -> Step<u64> {
        let stats = store.run::<String>("INFO", &["commandstats"])?;
        let calls = stats.split("cmdstat_copy:calls=").nth(1).and_then(|rest| rest.split(',').next());
        Ok(calls.and_then(|calls| calls.parse().ok()).unwrap_or_default())
    };
    for (sizes, copied) in [([1025; 4], 0), ([1025, 1024, 3000, 1], 2)] {
        let before = copies(store)?;
        let entries: Vec<String> = (0..4).map(|_| store.work("c1")).collect::<Step<_>>()?;
        let attempts: Vec<Attempt> =
            entries.iter().zip(sizes).map(|(entry, bytes)| Attempt::resulting(entry, bytes)).collect();
        same("all", store.settle("c1", &attempts.iter().collect::<Vec<_>>())?, ["1"; 4])?;
        for (entry, bytes) in entries.iter().zip(sizes) {
            let status = store.status(WORK, entry);
            same("the result", store.run::<u64>("HSTRLEN", &[&status, "result"])?, bytes as u64)?;
        }
        same("copies", copies(store)? - before, copied)?;
    }
    Ok(())
}

fn a_stranger_is_not_told_of_a_refusal(store: &mut Store) -> Step {
    let entry = store.work("c1")?;
    same("first", store.settle("c1", &[&Attempt::completed(&entry)])?, ["1"])?;
    store.run::<()>("SET", &["n", "text"])?;
    let late = Attempt::completed(&entry).with(Effect::add("n"));
    same("late", store.settle("c2", &[&late])?, ["0"])
}

fn refused_effects_leave_nothing(store: &mut Store) -> Step {
    store.run::<()>("SET", &["text", "x"])?;
    store.stage("f", 2, 100)?;
    let refused = [
        Effect::add("text"),
        Effect::put("text"),
        Effect::task("text", "t", None),
        Effect::flow("text", "f", 2),
        Effect::flow(JOIN, "f", 3),
    ];
    for effect in refused {
        let what = format!("{effect:?}");
        let entry = store.work("c1")?;
        let attempt = Attempt::completed(&entry).with(Effect::set("before")).with(effect);
        let replies = store.settle("c1", &[&attempt])?;
        same(&what, replies[0].starts_with("TQEFFECT "), true)?;
        same(&what, store.get("before")?, "")?;
        same(&what, store.pending(WORK)?, vec![entry.clone()])?;
        same(&what, store.settle("c1", &[&Attempt::completed(&entry)])?, ["1"])?;
    }
    Ok(())
}

fn a_marked_task_commits_nothing(store: &mut Store) -> Step {
    for effect in [Effect::add("n"), Effect::put("text"), Effect::flow(JOIN, "f", 1)] {
        store.run::<()>("SET", &["text", "x"])?;
        store.run::<()>("DEL", &["tq:{join}:flow:f:children"])?;
        store.stage("f", 1, 100)?;
        let entry = store.work("c1")?;
        store.run::<()>("HSET", &[&store.status(WORK, &entry), "status", "CANCELLED", "cancel", "1"])?;
        same("settled", store.settle("c1", &[&Attempt::completed(&entry).with(effect)])?, ["1"])?;
        same("status", store.said(WORK, &entry)?, "CANCELLED")?;
        same("counter", store.get("n")?, "")?;
        same("flow", store.run::<u64>("EXISTS", &["tq:{join}:flow:f"])?, 0)?;
    }
    same("children", store.run::<u64>("EXISTS", &["tq:{join}:flow:f:children"])?, 0)
}

fn a_full_redis_settles_everything(store: &mut Store) -> Step {
    let (plain, setter, entry) = (store.work("c1")?, store.work("c1")?, store.work("c1")?);
    let attempt = Attempt::completed(&entry).with(Effect::set("a"));
    store.run::<()>("CONFIG", &["SET", "maxmemory", "1"])?;
    let replies = store.settle("c1", &[&Attempt::plain(&plain), &Attempt::setter(&setter, "b"), &attempt]);
    store.run::<()>("CONFIG", &["SET", "maxmemory", "0"])?;
    same("settled", replies?, ["1", "1", "1"])?;
    same("the values", [store.get("a")?.is_empty(), store.get("b")?.is_empty()], [false, false])?;
    same("pending", store.pending(WORK)?, Vec::<String>::new())
}

fn the_key_of_a_task_that_ended_is_taken(store: &mut Store) -> Step {
    store.run::<()>("SET", &["marker", "earlier", "PX", "60000"])?;
    let entry = store.work("c1")?;
    let attempt = Attempt::completed(&entry).with(Effect::task(PART, "t", Some("marker")));
    same("settled", store.settle("c1", &[&attempt])?, ["1"])?;
    same("status", store.said(PART, "t")?, "CANCELLED")?;
    same("enqueued", store.length(PART)?, 0)
}

/// Markers of idempotency keys.
const PART_KEY: &str = "tq:{part}:key:k";
const JOIN_KEY: &str = "tq:{join}:key:k";

fn children_with_the_key_of_an_ended_task_are_duplicates(store: &mut Store) -> Step {
    for keeps_statuses in [true, false] {
        store.empty()?;
        store.retention_there = if keeps_statuses { store.retention } else { "0" };
        store.run::<()>("SET", &[PART_KEY, "earlier", "PX", "60000"])?;
        store.stage_keyed("f", 2, 100, PART_KEY)?;
        store.commit(Effect::flow(JOIN, "f", 2))?;
        same("enqueued", store.promote("f")?, 0)?;
        same("children", store.length(PART)?, 0)?;
        for child in ["child-0", "child-1"] {
            let (said, status) = (store.said(PART, child)?, store.status(PART, child));
            same("status", said.as_str(), if keeps_statuses { "CANCELLED" } else { "" })?;
            same("it stays", store.run::<i64>("PTTL", &[&status])? == -1, false)?;
        }
        same("nothing is left to release", store.run::<u64>("ZCARD", &["tq:{join}:delayed"])?, 0)?;
        same("the flow has failed once", store.length(JOIN)?, 1)?;
        let noted = store.run::<String>("HGET", &["tq:{join}:flow:f:results", "1"])?;
        same("noted", noted.as_str(), "CANCELLED part child-1")?;
    }
    Ok(())
}

fn a_key_stays_with_the_living_task(store: &mut Store) -> Step {
    for key in [PART_KEY, JOIN_KEY] {
        store.run::<()>("SET", &[key, "living"])?;
    }
    store.stage_keyed("f", 1, 100, PART_KEY)?;
    store.commit(Effect::keyed_flow(JOIN, "f", 1, Some(JOIN_KEY)))?;
    same("enqueued", store.promote("f")?, 1)?;
    let child = store.child("c1")?;
    same("settled", store.settle("c1", &[&Attempt::child(&child)])?, ["1"])?;
    same("joined", store.length(JOIN)?, 1)?;
    for key in [PART_KEY, JOIN_KEY] {
        same("the key", store.get(key)?, "living")?;
    }
    Ok(())
}

fn the_last_task_of_a_flow_may_be_a_duplicate(store: &mut Store) -> Step {
    for (holder, joined) in [("earlier", 0), ("f", 1)] {
        store.empty()?;
        store.stage("f", 1, 100)?;
        store.commit(Effect::keyed_flow(JOIN, "f", 1, Some(JOIN_KEY)))?;
        store.promote("f")?;
        let child = store.child("c1")?;
        store.run::<()>("SET", &[JOIN_KEY, holder, "PX", "60000"])?;
        same("settled", store.settle("c1", &[&Attempt::child(&child)])?, ["1"])?;
        same(holder, store.length(JOIN)?, joined)?;
        let (said, flow) = (store.said(JOIN, "f")?, store.run::<i64>("PTTL", &["tq:{join}:flow:f"])?);
        let expected = if joined == 0 { ("CANCELLED", true) } else { ("PENDING", false) };
        same(holder, (said.as_str(), flow > 0), expected)?;
    }
    Ok(())
}

fn a_child_waits_until_its_flow_can_note_its_end(store: &mut Store) -> Step {
    for key in ["tq:{join}:flow:f:results", JOIN] {
        for how in ["complete", "bury", "marked", "begin", "lose", "cancel", "release"] {
            store.empty()?;
            store.start_flow("f", 1, 100)?;
            let what = format!("{key} {how}");
            // Somebody else writes to a key of the flow.
            let broken = |store: &mut Store| store.run::<()>("SET", &[key, "text"]);
            if how == "release" {
                store.run::<()>("SET", &["tq:{join}:flow:f:results", "text"])?;
                same(&what, store.promote("f")?, 0)?;
                same(&what, store.length(PART)?, 0)?;
                store.run::<()>("DEL", &["tq:{join}:flow:f:results"])?;
                same(&what, store.promote("f")?, 1)?;
                continue;
            }
            store.promote("f")?;
            let child = store.child("c1")?;
            if how == "lose" {
                // The script knows a task by its entry.
                let noted = format!("PENDING part {}", child.0);
                store.run::<u64>("HSET", &["tq:{join}:flow:f:results", "0", &noted])?;
            }
            let kept = store.run::<Vec<String>>("HGETALL", &["tq:{join}:flow:f:results"])?;
            broken(store)?;
            let status = store.status(PART, "child-0");
            if how == "marked" || how == "begin" {
                store.run::<()>("HSET", &[&status, "cancel", "1"])?;
            }
            if how == "lose" {
                store.run::<()>("XDEL", &[PART, &child.0])?;
                store.run::<()>("XACK", &[PART, "tqhost", &child.0])?;
            }
            let end = |store: &mut Store| match how {
                "complete" => store.settle("c1", &[&Attempt::child(&child)]).map(|replies| replies.concat()),
                "bury" => {
                    store.settle("c1", &[&Attempt::child(&child).buried()]).map(|replies| replies.concat())
                }
                "marked" => {
                    store.settle("c1", &[&Attempt::child(&child).released()]).map(|replies| replies.concat())
                }
                "begin" => {
                    store.begin_in(PART, "c1", "child-0", &child.0, PART).map(|reply| reply.to_string())
                }
                "lose" => store.lose(PART, "child-0").map(|reply| reply.to_string()),
                _ => store.cancel(PART, "child-0"),
            };
            let refused = match end(store) {
                Ok(reply) => reply == "0" || reply.contains("TQTYPE"),
                Err(why) => why.contains("TQTYPE"),
            };
            same(&what, refused, true)?;
            same(&what, store.said(PART, "child-0")?.as_str(), "PENDING")?;
            let pending = if how == "lose" { 0 } else { 1 };
            same(&what, store.pending(PART)?.len(), pending)?;
            store.run::<()>("DEL", &[key])?;
            if key == JOIN {
                store.run::<()>("XGROUP", &["CREATE", JOIN, "tqhost", "0", "MKSTREAM"])?;
            } else {
                let fields: Vec<&str> = kept.iter().map(String::as_str).collect();
                store.run::<()>("HSET", &[&[key], fields.as_slice()].concat())?;
            }
            end(store)?;
            same(&what, store.length(JOIN)?, 1)?;
        }
    }
    Ok(())
}

fn children_are_released_once(store: &mut Store) -> Step {
    store.start_flow("f", 3, 2)?;
    same("they do not expire", store.run::<i64>("PTTL", &["tq:{join}:flow:f:children"])?, -1)?;
    same("has room for", store.promote("f")?, 2)?;
    same("waiting", store.length(PART)?, 2)?;
    same("it is tried again later", store.due_in(JOIN)?.is_some_and(|ms| ms > 500.0), true)?;
    same("still full", store.promote("f")?, 0)?;
    let first = store.child("c1")?;
    same("the first child", first.1.as_str(), "child-0")?;
    same("settled", store.settle("c1", &[&Attempt::child(&first)])?, ["1"])?;
    same("room again", store.promote("f")?, 1)?;
    store.promote("f")?;
    same("released", store.length(PART)?, 2)?;
    same("nothing is left to do", store.run::<u64>("ZCARD", &["tq:{join}:delayed"])?, 0)?;
    same("nor parked", store.run::<u64>("HLEN", &["tq:{join}:parked"])?, 0)
}

fn a_child_is_counted_once(store: &mut Store) -> Step {
    store.start_flow("f", 2, 100)?;
    store.promote("f")?;
    let (first, second) = (store.child("c1")?, store.child("c1")?);
    // A producer sent the first child again while it ran.
    let copy = store.copy_of(&first, "c2")?;
    same("first", store.settle("c1", &[&Attempt::child(&first)])?, ["1"])?;
    same("joined", store.length(JOIN)?, 0)?;
    same("copy", store.settle("c2", &[&Attempt::child(&copy)])?, ["1"])?;
    same("joined after the copy", store.length(JOIN)?, 0)?;
    same("second", store.settle("c1", &[&Attempt::child(&second)])?, ["1"])?;
    same("joined after all", store.length(JOIN)?, 1)
}

fn a_flow_fails_once(store: &mut Store) -> Step {
    store.start_flow("f", 2, 100)?;
    store.promote("f")?;
    for _ in 0..2 {
        let child = store.child("c1")?;
        same("buried", store.settle("c1", &[&Attempt::child(&child).buried()])?, ["1"])?;
        same("failed", store.length(JOIN)?, 1)?;
    }
    Ok(())
}

fn a_flow_is_healed_before_its_burial(store: &mut Store) -> Step {
    store.start_flow("f", 1, 100)?;
    store.promote("f")?;
    let child = store.child("c1")?;
    same("buried", store.settle("c1", &[&Attempt::child(&child).buried()])?, ["1"])?;
    let failed = store.read(JOIN, "c1")?;
    let child = store.requeue_child("c1")?;
    same("healed", store.settle("c1", &[&Attempt::child(&child)])?, ["1"])?;
    same("joined", store.length(JOIN)?, 1)?;
    same("the failed one is gone", store.pending(JOIN)?, Vec::<String>::new())?;
    same("not it", store.read(JOIN, "c1")? != failed, true)
}

fn a_flow_is_healed_after_its_burial(store: &mut Store) -> Step {
    for is_purged in [false, true] {
        store.empty()?;
        // The queues keep no statuses, so the requeueing has to say to which flow the child belongs.
        store.retention = "0";
        store.start_flow("f", 1, 100)?;
        store.promote("f")?;
        let child = store.child("c1")?;
        same("buried", store.settle("c1", &[&Attempt::child(&child).buried()])?, ["1"])?;
        let failed = store.read(JOIN, "c1")?;
        let burial = Attempt::join(&failed, "f").buried();
        same("the flow is buried", store.settle_in(JOIN, "c1", &[&burial])?, ["1"])?;
        if is_purged {
            store.run::<u64>("DEL", &["tq:{join}:dead"])?;
        }
        let child = store.requeue_child("c1")?;
        same("healed", store.settle("c1", &[&Attempt::child(&child)])?, ["1"])?;
        same("joined", store.length(JOIN)?, u64::from(!is_purged))?;
        same("dead", store.length("tq:{join}:dead")?, 0)?;
        let expires = store.run::<i64>("PTTL", &["tq:{join}:flow:f"])? > 0;
        same("the flow expires", expires, is_purged)?;
    }
    Ok(())
}

fn a_flow_is_cancelled_with_its_task(store: &mut Store) -> Step {
    // All children are released, or one waits for room.
    for released in [3, 2] {
        store.empty()?;
        store.start_flow("f", 3, released)?;
        same("some are released", store.promote("f")?, released as u64)?;
        let told = store.length(TOLD)?;
        same("cancelled", store.cancel(JOIN, "f")?, "PENDING")?;
        same("told", store.length(TOLD)?, told + 1)?;
        same("told of its fields", store.last_told()?.contains(&"n".to_owned()), true)?;
        same("the others are not released", store.promote("f")?, 0)?;
        for _ in 0..released {
            let child = store.child("c1")?;
            same("settled", store.settle("c1", &[&Attempt::child(&child)])?, ["1"])?;
        }
        same("children", store.length(PART)?, 0)?;
        same("nothing is left to do", store.promote("f")?, 0)?;
        same("joined", store.length(JOIN)?, 0)?;
        same("status", store.said(JOIN, "f")?, "CANCELLED")?;
    }
    Ok(())
}

fn a_gate_call_that_was_given_up_changes_nothing(store: &mut Store) -> Step {
    // The call comes before the task is given back, or only after that.
    for is_late in [false, true] {
        store.empty()?;
        store.run::<String>("XADD", &[WORK, "*", "n", "1", "tq-id", "t"])?;
        let entry = store.read(WORK, "c1")?;
        if !is_late {
            same("begun", store.begin_in(WORK, "c1", "t", &entry, "marker")?, 1)?;
        }
        let given_back = Attempt::named(&entry, "t").released();
        same("given back", store.settle("c1", &[&given_back])?, ["1"])?;
        if is_late {
            same("begun late", store.begin_in(WORK, "c1", "t", &entry, "marker")?, 0)?;
        }
        same("status", store.said(WORK, "t")?.as_str(), "PENDING")?;
        same("pending", store.pending(WORK)?, Vec::<String>::new())?;
        let entry = store.read(WORK, "c2")?;
        same("begun by another", store.begin_in(WORK, "c2", "t", &entry, "marker")?, 1)?;
        same("settled", store.settle("c2", &[&Attempt::named(&entry, "t")])?, ["1"])?;
        same("waiting", store.length(WORK)?, 0)?;
    }
    Ok(())
}

fn a_marked_task_is_told_once(store: &mut Store) -> Step {
    // An older host promoted it: its status does not name its entry.
    let entry = store.work("c1")?;
    store.run::<()>("HSET", &[&store.status(WORK, "t"), "status", "PENDING", "attempt", "1"])?;
    same("cancelled", store.cancel(WORK, "t")?, "PENDING")?;
    same("told at the mark", store.length(TOLD)?, 0)?;
    same("begun", store.begin("c1", "t", &entry)?, 2)?;
    same("told", store.length(TOLD)?, 1)
}

fn every_end_is_told_once(store: &mut Store) -> Step {
    let entry = store.work("c1")?;
    let attempt = Attempt::completed(&entry).with(Effect::add("n"));
    same("settled", store.settle("c1", &[&attempt])?, ["1"])?;
    same("told", store.length(TOLD)?, 1)?;
    same("repeated", store.settle_again(WORK, "c1", &[&attempt])?, ["1"])?;
    same("told after a repeated call", store.length(TOLD)?, 1)?;
    same("a later call", store.settle("c2", &[&attempt])?, ["0"])?;
    same("told after a later call", store.length(TOLD)?, 1)
}

/// A Redis that answers only where a command has as many arguments as it demands. Redis does so since 8.2.9,
/// and so do corrected older ones.
const STRICT: Mutation = &[
    (
        "local function is_allowed(command, ...)\n",
        "local function strict(name, ...)\n\
         \x20 local about = redis.call('COMMAND', 'INFO', name)[1]\n\
         \x20 if #about[10] > 0 then about = redis.call('COMMAND', 'INFO', name .. '|' .. ...)[1] end\n\
         \x20 local has, demands = 1 + select('#', ...), about[2]\n\
         \x20 if has ~= demands and has < math.abs(demands) or demands > 0 and has > demands then\n\
         \x20   error('Wrong number of args')\n\
         \x20 end\n\
         \x20 return redis.acl_check_cmd(name, ...)\n\
         end\n\
         local function is_allowed(command, ...)\n",
    ),
    ("pcall(redis.acl_check_cmd, command, unpack(args))", "pcall(strict, command, unpack(args))"),
    ("return redis.acl_check_cmd(command)\n", "return strict(command)\n"),
];

#[test]
fn rights_are_asked_for_with_all_arguments_that_commands_demand() {
    let dir = tempfile::tempdir().expect("create a folder");
    let redis = RedisServer::start(dir.path(), &[]);
    let mut store = Store::new(&redis, Some(STRICT));
    assert_eq!(store.empty().and_then(|()| queues::group(&mut store)), Ok(0));
    // Also where the answer is no.
    let user = ["SETUSER", "default", "-xadd", "-xgroup|create", "-persist", "-lpush"];
    store.run::<()>("ACL", &user).expect("set rights");
    let refused = queues::group(&mut store).expect_err("rights are missing");
    assert!(refused.ends_with("XADD, XGROUP|CREATE, LPUSH, PERSIST"), "{refused}");
}

#[test]
fn every_guard_that_needs_a_rare_order_is_missed() {
    let dir = tempfile::tempdir().expect("create a folder");
    let redis = RedisServer::start(dir.path(), &[]);
    let mut not_missed = Vec::new();
    let others =
        [flows::CASES, staging::CASES, gate::CASES, queues::CASES, relay::CASES, tracks::CASES, trust::CASES];
    for case in CASES.iter().chain(others.into_iter().flatten()) {
        let play = |mutation| {
            let mut store = Store::new(&redis, mutation);
            store.empty().and_then(|()| (case.scenario)(&mut store))
        };
        assert_eq!(play(None), Ok(()), "{}", case.what);
        for mutation in case.mutations {
            match play(Some(*mutation)) {
                Ok(()) => not_missed.push((case.what, mutation[0].0)),
                Err(why) => println!("without {}: {why}", mutation[0].0),
            }
        }
    }
    assert!(not_missed.is_empty(), "{not_missed:#?}");
}
