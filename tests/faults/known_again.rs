//! A call that settles tasks has no reply for so long that its tasks may have a status by then: another host
//! may have begun them. The host names such tasks in another form and order when it sends the call again.

use std::collections::BTreeMap;

use tqhost::testing::queue::script;

use crate::support::proxy::Proxy;
use crate::support::{Bench, eventually};

const QUEUES: &str = "[queues.work]\nplugin = \"effects\"\nconcurrency = 100\nlease = \"6s\"\n";
const TASKS: usize = 2000;
/// Which attempts share a call is up to the machine; on a busy one, few calls have tasks of both kinds.
const MOST_ROUNDS: usize = 40;

/// Adds tasks that set a value, and as many without effects, in turn. The ids of the latter end in 1.
const FILL: &str = "for n = tonumber(ARGV[1]), tonumber(ARGV[2]) do
        local calls = n % 2 == 0 and '[[\"set\",\"v' .. n .. '\",\"x\",0]]' or '[]'
        redis.call('XADD', KEYS[1], (1700000000000 + n) .. '-' .. n % 2, 'do', calls)
    end";

/// The calls of settle.lua since the last look: the first 32 words of each. The eighth is the key of the
/// lane's last reply. The keys of the statuses follow, in the short form those of tasks without effects
/// first.
fn settlements(bench: &mut Bench) -> Vec<Vec<Vec<u8>>> {
    // Each has its time, duration and client beside the command.
    type Call = (u64, u64, u64, Vec<Vec<u8>>, String, String);
    let calls: Vec<Call> = bench.redis("SLOWLOG", ("GET", 100_000));
    let _: () = bench.redis("SLOWLOG", "RESET");
    let is_settle = |words: &Vec<Vec<u8>>| {
        words.len() > 9 && words[0] == b"FCALL" && words[1].ends_with(script::SETTLE.sha1().as_bytes())
    };
    calls.into_iter().map(|(_, _, _, words, ..)| words).filter(is_settle).collect()
}

/// Whether the tasks of a call may be known. Then a marker follows the status of each.
fn is_long(words: &[Vec<u8>]) -> bool {
    words[9] == b"work"
}

/// Whether a call has tasks of both kinds in the short form. If they may be known, they come in the order in
/// which they ended, which is another one.
fn is_mixed(words: &[Vec<u8>]) -> bool {
    let statuses = || words[8..].iter().filter(|key| key.starts_with(b"tq:{work}:task:"));
    !is_long(words) && ["-0", "-1"].iter().all(|end| statuses().any(|key| key.ends_with(end.as_bytes())))
}

/// Adds tasks and loses the replies to their settlements, until one of them has tasks of both kinds. Gives
/// how many tasks there were.
fn lose_a_mixed_call(bench: &mut Bench, proxy: &Proxy) -> usize {
    for round in 0..MOST_ROUNDS {
        // While calls are on their way, attempts end. The next calls settle many of them.
        proxy.delay(20..40);
        let _: () = bench.redis("EVAL", (FILL, 1, "work", round * TASKS + 1, (round + 1) * TASKS));
        eventually("some are settled", || (bench.redis::<usize>("XLEN", "work") < TASKS - 100).then_some(()));
        settlements(bench);
        proxy.lose_replies(script::SETTLE.sha1(), usize::MAX);
        // A lane repeats a call that has lost its reply.
        let mut seen = BTreeMap::new();
        let is_lost = eventually("a lane repeats a call, or all is settled", || {
            for call in settlements(bench) {
                *seen.entry(call).or_insert(0) += 1;
            }
            let again: Vec<_> = seen.iter().filter(|(_, times)| **times > 1).map(|(call, _)| call).collect();
            if again.iter().any(|call| is_mixed(call)) {
                return Some(true);
            }
            let is_over = seen.values().any(|times| *times > 4) || bench.redis::<u64>("XLEN", "work") == 0;
            is_over.then_some(false)
        });
        if is_lost {
            return (round + 1) * TASKS;
        }
        proxy.heal();
        bench.until_drained("work");
    }
    panic!("no call had tasks of both kinds")
}

#[test]
fn network_26_tasks_that_may_be_known_by_now_are_settled_once() {
    let mut bench = Bench::new(QUEUES);
    bench.install("effects", "effects");
    let proxy = Proxy::start(bench.redis.port);
    bench.configure_for(QUEUES, proxy.port);
    let _: () = bench.redis("CONFIG", ("SET", "slowlog-max-len", "100000", "slowlog-log-slower-than", "0"));
    let host = bench.host();
    let tasks = lose_a_mixed_call(&mut bench, &proxy);
    let values: Vec<String> = bench.redis("KEYS", "tq:{work}:state:effects:v*");
    for value in &values {
        let _: () = bench.redis("SET", (value, "later"));
    }
    eventually("a call comes in the long form", || {
        settlements(&mut bench).iter().any(|call| is_long(call)).then_some(())
    });
    proxy.heal();
    bench.until_drained("work");
    host.until_ended_as("work", "completed", tasks as u64);
    for value in &values {
        assert_eq!(bench.redis::<String>("GET", value), "later", "{value} was set again");
    }
    let all: Vec<String> = bench.redis("KEYS", "tq:{work}:state:effects:v*");
    assert_eq!(all.len(), tasks / 2, "every value is set");
    assert_eq!(bench.places("work").dead, 0);
    host.stop();
}
