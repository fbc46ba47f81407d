//! Large payloads: what a host reads from Redis while tasks that have them run.
//!
//! The test counts bytes on the wire, because times differ on every machine. Not here: the cost of small
//! tasks (`costs`).

use std::collections::{BTreeSet, HashMap};

use crate::support::{Bench, Held, eventually};

const TASKS: usize = 100;
const PAYLOAD_BYTES: usize = 1 << 20;
/// Rounds of heartbeats over which bytes are counted.
const ROUNDS: u64 = 3;
/// The most bytes of a round, in each direction. About a tenth of that goes to Redis, and less comes back.
const MOST: u64 = 256 << 10;
/// The most memory of a host that reads tasks which are too large, in KiB: a few of them at once. All of them
/// together have 320 MiB, and take more than twice that in a host that reads them at once.
const MOST_MEMORY_KIB: u64 = 500 << 10;

/// Adds tasks with one small command. Their field `payload` is large.
const FILL: &str = "for n = 1, tonumber(ARGV[2]) do
        redis.call('XADD', KEYS[1], '*', 'url', ARGV[1], 'payload', string.rep('x', tonumber(ARGV[3])))
    end";

/// Redis's counts: leases that were renewed, bytes that it read, and bytes that it sent.
#[derive(Debug, Clone, Copy)]
struct Counts {
    renewed: u64,
    to_redis: u64,
    from_redis: u64,
}

impl Counts {
    fn read(info: &str) -> Counts {
        let stat = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
        let renewed = info
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_xclaim:calls=")?.split(',').next()?.parse().ok());
        Counts {
            renewed: renewed.unwrap_or(0),
            to_redis: stat("total_net_input_bytes:").expect("a figure"),
            from_redis: stat("total_net_output_bytes:").expect("a figure"),
        }
    }
}

#[test]
fn heartbeats_of_a_hundred_tasks_of_a_mebibyte_read_no_payload() {
    let held = Held::new();
    let mut bench = held
        .bench("[queues.work]\nplugin = \"fetches\"\nconcurrency = 100\nlease = \"3s\"\ntimeout = \"10m\"\n");
    let [(_, url)] = held.task();
    let _: () = bench.redis("EVAL", (FILL, 1, "work", url, TASKS, PAYLOAD_BYTES));
    let host = bench.host();
    bench.until_running("work", TASKS);

    // The questions of the test are no heartbeats, so the bytes of these replies do not count.
    let mut asked = 0;
    let mut info = || -> (Counts, u64) {
        let text: String = bench.redis("INFO", ("stats", "commandstats"));
        let before = asked;
        asked += text.len() as u64;
        (Counts::read(&text), before)
    };
    let first = info();
    let last = eventually("some rounds of heartbeats", || {
        let now = info();
        (now.0.renewed - first.0.renewed >= ROUNDS * TASKS as u64).then_some(now)
    });
    let read = (last.0.from_redis - first.0.from_redis).saturating_sub(last.1 - first.1) / ROUNDS;
    let sent = (last.0.to_redis - first.0.to_redis) / ROUNDS;
    println!("bytes of a round: {read} from Redis, {sent} to Redis");
    assert!(read < MOST, "a round of heartbeats read {read} bytes from Redis");
    assert!(sent < MOST, "a round of heartbeats sent {sent} bytes to Redis");
    assert!(read > 0 && sent > 0, "they are counted");

    held.end();
    bench.until_drained("work");
    for name in ["tqhost_lease_lost_total", "tqhost_reclaimed_total"] {
        assert_eq!(host.count(name, "work"), 0, "{name}");
    }
    host.stop();
}

/// The most bytes of a task's fields.
const LARGEST: usize = 16 << 20;

#[test]
fn tasks_that_are_too_large_are_dead_and_cost_a_host_little_memory() {
    const TOO_LARGE: usize = 20 << 20;
    const COUNT: usize = 16;
    let mut bench = Bench::new(
        "memory = \"1GiB\"\n[queues.work]\nplugin = \"echo\"\nconcurrency = 20\non_end = \"ends\"\n\
         [queues.ends]\nplugin = \"missing\"\n",
    );
    bench.install("echo", "echo");
    let _: () = bench.redis("EVAL", (FILL, 1, "work", "u", COUNT, TOO_LARGE));
    let last = bench.xadd("work", &[("a", "1")]);
    let host = bench.host();
    bench.until("work", &last, "COMPLETED");
    bench.until_drained("work");
    let dead = bench.dead("work");
    assert_eq!(dead.len(), COUNT);
    for letter in &dead {
        assert_eq!((letter["tq-reason"].as_str(), letter["payload"].len()), ("malformed", TOO_LARGE));
    }
    let errors: BTreeSet<&str> = dead.iter().map(|letter| letter["tq-error"].as_str()).collect();
    insta::assert_snapshot!(
        Vec::from_iter(errors).join("\n"),
        @"the task has 20971531 bytes; at most 16777216 (16MiB) are taken: keep large data in blobs"
    );
    // The tasks that tell of the ends are no larger than a host takes.
    let ends: Vec<(String, HashMap<String, String>)> = bench.redis("XRANGE", ("ends", "-", "+"));
    assert_eq!(ends.len(), COUNT + 1);
    for (_, end) in &ends[..COUNT] {
        assert!(!end.contains_key("payload") && end["url"] == "u" && end["end.reason"] == "malformed");
    }
    let (_, most) = host.memory();
    assert!(most < MOST_MEMORY_KIB, "the host took {most} KiB");
    host.stop();
}

#[test]
fn no_task_is_too_large_by_what_the_host_adds() {
    let mut bench = Bench::new(
        "[queues.work]\nplugin = \"fails-twice\"\nbackoff = \"none\"\nmax_retries = 2\non_end = \"ends\"\n\
         [queues.ends]\nplugin = \"missing\"\n[plugins.fails-twice]\nmemory = \"256MiB\"\n",
    );
    bench.install("fails-twice", "fails-twice");
    let host = bench.host();
    let payload = "x".repeat(LARGEST - "payload".len());
    let id = bench.xadd("work", &[("payload", &payload)]);
    bench.until("work", &id, "COMPLETED");
    let ends: Vec<(String, HashMap<String, String>)> = bench.redis("XRANGE", ("ends", "-", "+"));
    let end = &ends[0].1;
    assert!(
        !end.contains_key("payload") && end["end.status"] == "COMPLETED",
        "it has no room for the payload"
    );
    assert_eq!(end["end.attempts"], "3");
    // Nothing is enqueued that no host would take.
    let file = bench.dir.path().join("large");
    std::fs::write(&file, "x".repeat(LARGEST)).expect("write");
    let ran = bench.tqhost(&["enqueue", "work", &format!("payload=@{}", file.display())]);
    insta::assert_snapshot!(
        ran.ends_with(2).stderr,
        @"tqhost: a task has at most 16777216 bytes (16MiB), this one has 16777223: keep large data in blobs"
    );
    host.stop();
}
