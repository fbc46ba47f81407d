//! Tasks whose only effects set values, under the faults of the chaos test.
//!
//! First attempts of such tasks are settled many at a time: one XACK and one MSET for all of them. Each task
//! sets one value, under a key of its own, and reads it. Some do not complete.
//!
//! In: Redis after the run. Out: what is wrong. Not here: other effects (`effects`).

use std::collections::BTreeSet;

use redis::{Connection, RedisResult};
use serde_json::json;

use super::effects::{Ends, PLUGIN};

pub const VALUES: &str = "values";

fn prefix() -> String {
    format!("tq:{{{VALUES}}}:state:{PLUGIN}:v-")
}

/// Adds a task, and gives its id.
pub fn add(db: &mut Connection, number: usize, random: &mut fastrand::Rng) -> RedisResult<String> {
    let (key, value) = (format!("v-{number}"), number.to_string());
    let last = match random.u32(0..12) {
        0 => json!(["reject"]),
        1 => json!(["trap"]),
        2 => json!(["first", 1, ["retry"]]),
        3 => json!(["sleep", random.u64(0..300)]),
        _ => json!(["fence"]),
    };
    let calls = json!([["set", key, value, 0], ["get", key], last]);
    redis::cmd("XADD").arg(VALUES).arg("*").arg("do").arg(calls.to_string()).query(db)
}

/// A value is there if its task completed, and only then.
pub fn judge(db: &mut Connection, ends: &Ends) -> Vec<String> {
    let committed: BTreeSet<String> =
        ends.values().filter_map(|end| Some(end.result(1)?.as_str()?.to_owned())).collect();
    let keys: Vec<String> = redis::cmd("KEYS").arg(format!("{}*", prefix())).query(db).expect("the values");
    let kept: BTreeSet<String> = keys
        .iter()
        .map(|key| redis::cmd("GET").arg(key).query(db).expect("a value"))
        .inspect(|value: &String| assert!(keys.contains(&format!("{}{value}", prefix())), "{value}"))
        .collect();
    let told = |numbers: Vec<&String>, why: &str| {
        numbers.into_iter().map(|number| format!("{VALUES}: v-{number} {why}")).collect::<Vec<_>>()
    };
    let missing = told(committed.difference(&kept).collect(), "is missing, although its task completed");
    let added = told(kept.difference(&committed).collect(), "is there, although its task did not complete");
    [missing, added].concat()
}
