//! How much one call of a script that settles tasks does, while Redis does nothing else.
//!
//! Not here: what a task costs on average (`costs`).

use std::collections::HashMap;
use std::time::Duration;

use serde_json::json;
use tqhost::testing::queue::script::SETTLE;

use crate::support::{Bench, eventually};

/// The commands that Redis noted: each with its arguments and its time.
fn noted(bench: &mut Bench) -> Vec<(Vec<Vec<u8>>, Duration)> {
    /// Its number, its time, microseconds, and its arguments.
    type Noted = (u64, u64, u64, Vec<Vec<u8>>, redis::Value, redis::Value);
    let entries: Vec<Noted> = bench.redis("SLOWLOG", ("GET", -1));
    entries.into_iter().map(|(_, _, micros, args, ..)| (args, Duration::from_micros(micros))).collect()
}

/// Lets Redis note every command from now on.
fn note_all(bench: &mut Bench) {
    for (name, value) in [("slowlog-log-slower-than", "0"), ("slowlog-max-len", "100000")] {
        let _: () = bench.redis("CONFIG", ("SET", name, value));
    }
    let _: () = bench.redis("SLOWLOG", "RESET");
}

/// The times of the calls that settled tasks.
fn settle_calls(bench: &mut Bench) -> Vec<Duration> {
    let is_settle =
        |args: &[Vec<u8>]| args.get(1).is_some_and(|name| name.ends_with(SETTLE.sha1().as_bytes()));
    noted(bench).into_iter().filter(|(args, _)| is_settle(args)).map(|(_, time)| time).collect()
}

#[test]
fn the_ends_of_children_take_no_longer_when_the_task_that_joins_them_is_large() {
    let mut bench = Bench::new(
        "[queues.work]\nplugin = \"effects\"\nenqueue_to = [\"part\", \"join\"]\n\
         [queues.part]\nplugin = \"effects\"\nconcurrency = 200\n[queues.join]\nplugin = \"missing\"\n",
    );
    bench.install("effects", "effects");
    let host = bench.host();
    // Its field has 19 bytes for each of these numbers.
    let longest = [1, 50_000].map(|numbers| {
        let child = json!({ "queue": "part", "fields": { "do": [["sleep", 1000]] } });
        let calls = json!([["fan-out", vec![child; 200], { "queue": "join", "fields": { "x": "X" } }]]);
        let field = format!("[{}1e15]", "1e15,".repeat(numbers - 1));
        let id = bench.xadd("work", &[("do", &calls.to_string().replace("\"X\"", &field))]);
        bench.until("work", &id, "COMPLETED");
        note_all(&mut bench);
        let before = bench.places("join").length;
        eventually("the flow is joined", || (bench.places("join").length > before).then_some(()));
        settle_calls(&mut bench).into_iter().max().expect("a call")
    });
    // The time that Redis needs to give a script the larger flow, once.
    let flows: Vec<String> = bench.redis("KEYS", "tq:{join}:flow:*");
    let sizes: HashMap<String, u64> = flows
        .into_iter()
        .filter(|key| !key.ends_with(":results"))
        .map(|key| (key.clone(), bench.redis("HSTRLEN", (&key, "fields"))))
        .collect();
    let (largest, bytes) = sizes.into_iter().max_by_key(|(_, bytes)| *bytes).expect("a flow");
    assert!(bytes > 900_000, "{bytes}");
    note_all(&mut bench);
    for _ in 0..5 {
        let _: () = bench.redis("EVAL", ("redis.call('HGETALL', KEYS[1])", 1, &largest));
    }
    let copies = noted(&mut bench).into_iter().filter(|(args, _)| args[0] == b"EVAL").map(|(_, time)| time);
    let once = copies.max().expect("a call");
    // The last child's end copies the task a few times, and no other one does.
    let most = longest[0] * 2 + once * 20;
    assert!(longest[1] <= most, "{longest:?}, and a copy takes {once:?}");
    host.stop();
}

#[test]
fn a_call_settles_fewer_tasks_if_it_tells_their_large_fields_to_another_queue() {
    let mut bench = Bench::new(
        "[queues.work]\nplugin = \"sleeps\"\nconcurrency = 60\non_end = \"told\"\n\
         [queues.told]\nplugin = \"missing\"\n",
    );
    bench.install("sleeps", "sleeps");
    let payload = "x".repeat(400_000);
    let ids: Vec<String> = (0..60).map(|_| bench.xadd("work", &[("ms", "2000"), ("x", &payload)])).collect();
    let host = bench.host();
    bench.until_running("work", 60);
    note_all(&mut bench);
    bench.all_done("work", &ids);
    assert_eq!(bench.places("told").length, 60);
    // A call takes no more after a mebibyte, so it takes three of them.
    let calls = settle_calls(&mut bench).len();
    assert!(calls >= 20, "{calls} calls");
    host.stop();
}
