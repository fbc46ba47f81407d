//! A call that settles tasks has no reply for so long that its tasks may have a status by then: another host
//! may have begun them. Such tasks come in another form and in another order, so the host asks what became of
//! the call, and does not send it again.

use tqhost::testing::queue::script;

use crate::support::proxy::Proxy;
use crate::support::{Bench, eventually};

const QUEUES: &str = "[queues.work]\nplugin = \"effects\"\nconcurrency = 100\nlease = \"6s\"\n";
const TASKS: usize = 2000;

/// Adds tasks that set a value, and as many that have no effects, in turn.
const FILL: &str = "for n = 1, tonumber(ARGV[1]) do
        local calls = n % 2 == 0 and '[[\"set\",\"v' .. n .. '\",\"x\",0]]' or '[]'
        redis.call('XADD', KEYS[1], '*', 'do', calls)
    end";

/// Whether Redis was asked by a call of settle.lua that names no task.
fn is_asked(bench: &mut Bench) -> bool {
    // Each has its time, duration and client beside the command.
    type Call = (u64, u64, u64, Vec<Vec<u8>>, String, String);
    let calls: Vec<Call> = bench.redis("SLOWLOG", ("GET", 100_000));
    let _: () = bench.redis("SLOWLOG", "RESET");
    calls.iter().any(|(_, _, _, words, ..)| {
        let is_settle = words.len() > 2
            && words[..3] == ["EVALSHA", script::SETTLE.sha1(), "5"].map(|word| word.as_bytes());
        // The five keys, then the group, retention, window, consumer and the number of the call.
        is_settle && words.get(13..18).is_some_and(|counts| counts.iter().all(|count| count == b"0"))
    })
}

#[test]
fn network_26_tasks_that_may_be_known_by_now_are_settled_once() {
    let mut bench = Bench::new(QUEUES);
    bench.install("effects", "effects");
    let proxy = Proxy::start(bench.redis.port);
    bench.configure_for(QUEUES, proxy.port);
    let sha1: String = bench.redis("SCRIPT", ("LOAD", &script::SETTLE.source));
    let _: () = bench.redis("EVAL", (FILL, 1, "work", TASKS));
    let host = bench.host();
    // A busy host settles many tasks in one call.
    eventually("some are settled", || (bench.redis::<usize>("XLEN", "work") < TASKS - 100).then_some(()));
    proxy.lose_replies(&sha1, usize::MAX);
    let _: () = bench.redis("CONFIG", ("SET", "slowlog-max-len", "100000", "slowlog-log-slower-than", "0"));
    eventually("calls of both lanes are carried out", || (proxy.hits() >= 4).then_some(()));
    let values: Vec<String> = bench.redis("KEYS", "tq:{work}:state:effects:v*");
    for value in &values {
        let _: () = bench.redis("SET", (value, "later"));
    }
    eventually("Redis is asked what became of a call", || is_asked(&mut bench).then_some(()));
    proxy.heal();
    bench.until_drained("work");
    host.until_ended_as("work", "completed", TASKS as u64);
    for value in &values {
        assert_eq!(bench.redis::<String>("GET", value), "later", "{value} was set again");
    }
    let all: Vec<String> = bench.redis("KEYS", "tq:{work}:state:effects:v*");
    assert_eq!(all.len(), TASKS / 2, "every value is set");
    assert_eq!(bench.places("work").dead, 0);
    host.stop();
}
