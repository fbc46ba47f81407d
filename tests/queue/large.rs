//! Large payloads: what a host reads from Redis while tasks that have them run.
//!
//! The test counts bytes on the wire, because times differ on every machine. Not here: the cost of small
//! tasks (`costs`).

use crate::support::{Held, eventually};

const TASKS: usize = 100;
const PAYLOAD_BYTES: usize = 1 << 20;
/// Rounds of heartbeats over which bytes are counted.
const ROUNDS: u64 = 3;
/// The most bytes of a round, in each direction. About a tenth of that goes to Redis, and less comes back.
const MOST: u64 = 256 << 10;

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
