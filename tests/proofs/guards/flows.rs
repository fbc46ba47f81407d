//! The guards of flows that wait for room, fail, are healed, and are cancelled: what an operator does to
//! them, and what is left in Redis afterwards.

use super::Case;
use super::store::{PART, Step, Store, same};

pub const CASES: &[Case] = &[Case {
    what: "one call releases the children of one step, whichever flows they belong to",
    scenario: flows_share_a_step,
    mutations: &[
        &[("math.max(1, math.floor(STEP / flows_due))", "STEP")],
        &[("redis.call('ZADD', KEYS[2], now, member)", "")],
        &[("if bytes_left <= 0 then break end", "")],
        &[("if released > 0 then", "if true then")],
    ],
}];

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

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}
