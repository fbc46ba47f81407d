//! Reads of the API and of the dashboard cost Redis no more where a queue holds more tasks. Commands and
//! bytes are compared for two queues, of which one holds twice as many tasks as the other. Both hold more
//! than a request looks at, so a cost that differs grows with the queue.
//!
//! Redis's own figures are compared, which a busy machine does not change. Not here: times
//! (`make bench SECTION=operator`).

use std::ops::Range;

use super::{ask, good};
use crate::support::Bench;
use crate::support::dead_letters::add_dead;
use crate::support::requests::{self, Names};

/// The tasks in each place of the smaller queue. A request looks at 10,000 entries of a place at most.
const TASKS: usize = 12_000;
/// Tasks in one list of delayed ones: a request looks at 5,000.
const DELAYED: usize = 6_000;
/// The most that one read may cost: a list with a filter asks for 5,000 delayed tasks and their statuses.
const MOST: Cost = Cost { commands: 10_500, bytes: 8 << 20 };
/// How often a read is measured. What other loops of the host do in the meantime counts as well, so the least
/// counts.
const TIMES: usize = 3;
/// A read of the larger queue that seems to cost more is measured so often: on a busy machine the first work
/// of the host's loops takes seconds, and a cost that grows with the queue shows each time.
const AGAIN: usize = 30;
/// Other loops may do so much in each measurement.
const BESIDE: Cost = Cost { commands: 60, bytes: 40_000 };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    commands: u64,
    bytes: u64,
}

impl Cost {
    /// Whether it is one that a read of the larger queue may have, which costs this much in the smaller one.
    fn allows(self, large: Cost) -> bool {
        // Numbers have more digits.
        let most = Cost {
            commands: self.commands + BESIDE.commands,
            bytes: self.bytes + self.bytes / 5 + BESIDE.bytes,
        };
        large.commands <= most.commands.min(MOST.commands) && large.bytes <= most.bytes.min(MOST.bytes)
    }
}

/// A queue with tasks in each place, and no handler. Its producers give its tasks names.
fn bench(of: usize) -> Bench {
    let queues = "[queues.work]\nplugin = \"missing\"\nevents = 1000\nid = { field = \"n\" }\n";
    let mut bench = Bench::with_redis(queues, &["--appendonly", "no"]);
    in_parts(&mut bench, 0..of * TASKS, |bench, part| {
        let mut pipe = redis::pipe();
        part.for_each(|n| {
            pipe.cmd("XADD").arg("work").arg("*").arg("n").arg(n).ignore();
        });
        pipe.query::<()>(&mut bench.db).expect("add tasks");
    });
    in_parts(&mut bench, 0..of * TASKS, add_dead);
    let lines: String = (0..of * DELAYED).map(|n| format!("{{\"n\":\"later-{n}\"}}\n")).collect();
    let file = bench.dir.path().join("delayed.jsonl");
    std::fs::write(&file, lines).expect("write");
    let file = file.to_str().expect("UTF-8");
    bench.tqhost(&["enqueue", "work", "--jsonl", file, "--delay", "1h"]).ok();
    let _: () = bench.redis("XGROUP", ("CREATE", "work", "tqhost", "0"));
    let running = ("GROUP", "tqhost", "other", "COUNT", of * DELAYED, "STREAMS", "work", ">");
    let _: redis::Value = bench.redis("XREADGROUP", running);
    bench
}

fn in_parts(bench: &mut Bench, all: Range<usize>, mut add: impl FnMut(&mut Bench, Range<usize>)) {
    let end = all.end;
    all.step_by(1000).for_each(|begin| add(bench, begin..(begin + 1000).min(end)));
}

/// Asks what Redis has done so far, without the answers to this question.
fn spent(bench: &mut Bench, asked: &mut Cost) -> Cost {
    let text: String = bench.redis("INFO", ("stats", "commandstats"));
    let calls =
        text.lines().filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok());
    let bytes = text.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:")?.parse().ok());
    let bytes: u64 = bytes.expect("the bytes that Redis has sent");
    let spent = Cost { commands: calls.sum::<u64>() - asked.commands, bytes: bytes - asked.bytes };
    // The answer comes with its length in front, and two ends of lines.
    asked.commands += 1;
    asked.bytes += (text.len() + text.len().to_string().len() + 5) as u64;
    spent
}

/// The reads and what each of them costs. `small` is what they cost in the smaller queue, which is measured
/// first.
fn costs(of: usize, small: &[(String, Cost)]) -> Vec<(String, Cost)> {
    let mut bench = bench(of);
    let host = bench.host();
    let document = good(&ask(&host, "GET", "/v1/openapi.json"), 200);
    let last: Vec<(String, Vec<String>)> = bench.redis("XREVRANGE", ("work", "+", "-", "COUNT", 1));
    // The last task by its id and by its name, a dead one, and one that was never there.
    let (name, dead) = ((of * TASKS - 1).to_string(), format!("id-{}", of * TASKS - 2));
    let ids = [last[0].0.as_str(), &name, &dead, "nobody"];
    let paths = requests::all(&document, Names { queue: "work", plugin: "missing", ids: &ids });
    let mut asked = Cost { commands: 0, bytes: 0 };
    let mut costs = Vec::new();
    for path in paths {
        let named = [(ids[0], "last"), (ids[2], "dead"), (ids[1], "named")];
        let name = named.iter().fold(path.clone(), |path, (id, name)| path.replace(id, name));
        let limit = small.get(costs.len());
        assert!(limit.is_none_or(|(same, _)| *same == name), "{limit:?} and {name} are one read");
        let mut measure = || {
            let before = spent(&mut bench, &mut asked);
            let answer = ask(&host, "GET", &path);
            let after = spent(&mut bench, &mut asked);
            let is_there = answer.status < 400 || path.contains("nobody") && answer.status == 404;
            assert!(is_there, "{path}: {answer:?}");
            Cost { commands: after.commands - before.commands, bytes: after.bytes - before.bytes }
        };
        let mut least = measure();
        for time in 1..AGAIN {
            if limit.map_or(time == TIMES, |(_, small)| small.allows(least)) {
                break;
            }
            let cost = measure();
            least = if (cost.commands, cost.bytes) < (least.commands, least.bytes) { cost } else { least };
        }
        costs.push((name, least));
    }
    host.stop();
    costs
}

#[test]
fn no_read_costs_more_where_a_queue_holds_more_tasks() {
    let small = costs(1, &[]);
    let large = costs(2, &small);
    assert_eq!(small.len(), large.len());
    let mut grown = Vec::new();
    for ((path, small), (_, large)) in small.iter().zip(&large) {
        println!("{path}: {small:?}, {large:?}");
        if !small.allows(*large) {
            grown.push(format!("{path}: {small:?}, with twice as many tasks {large:?}"));
        }
    }
    assert!(grown.is_empty(), "{}", grown.join("\n"));
}
