//! A cluster in which something happens all the time, and three queues under load.
//!
//! Nothing here may lose what Redis has acknowledged: one after the other, a primary steps down in order, a
//! slot moves, a node hangs for less than the time after which it counts as failed, a host is killed. So
//! each accepted task must be completed in the end, and nothing may be left over. `TQHOST_STORM_SEED`
//! repeats a run's plan.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::support::{Bench, Cluster, Host, eventually};

const QUEUES: &str = "[queues.NAME]\nplugin = \"as-told\"\nlease = \"2s\"\nmax_crashes = 10\n\
                      concurrency = 5\nbackoff = { base = \"50ms\", max = \"100ms\", jitter = 0.0 }\n\
                      idempotency = { field = \"key\" }\n";
const DATA: &str = "{\"end\":\"ok\",\"ms\":30,\"retries\":1}";
const LASTS: Duration = Duration::from_secs(25);

#[test]
fn nothing_is_lost_or_left_in_a_cluster_in_which_everything_moves() {
    let seed = std::env::var("TQHOST_STORM_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("TQHOST_STORM_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let bench = Bench::new("[queues.unused]\n");
    let cluster = Cluster::start(bench.dir.path(), 3, true);
    let names: Vec<String> = (0..3).map(|primary| cluster.name_on(primary)).collect();
    let queues: String = names.iter().map(|name| QUEUES.replace("NAME", name)).collect();
    bench.configure(&format!("{queues}\n{}", cluster.config()));
    bench.install("as-told", "as-told");
    let mut hosts = vec![bench.host(), bench.host()];
    let (mut accepted, mut gone): (Vec<(usize, String)>, Vec<Host>) = Default::default();
    let end = Instant::now() + LASTS;
    while Instant::now() < end {
        for (queue, name) in names.iter().enumerate() {
            for n in 0..5 {
                let key = format!("{}-{n}", accepted.len());
                accepted.push((queue, cluster.xadd(name, &[("data", DATA), ("key", &key)])));
            }
        }
        let fault = random.u8(0..4);
        let queue = random.usize(0..names.len());
        println!(
            "{:?} left: fault {fault} at {}",
            end.saturating_duration_since(Instant::now()),
            names[queue]
        );
        match fault {
            0 => cluster.fail_over(cluster.owner(&names[queue])),
            1 => {
                let (from, slot) = (cluster.owner(&names[queue]), cluster.slot(&names[queue]));
                let to = cluster.owner(&names[(queue + 1) % names.len()]);
                if from != to {
                    cluster.begin_move(slot, from, to);
                    std::thread::sleep(Duration::from_millis(random.u64(0..3000)));
                    cluster.end_move(slot, from, to);
                }
            }
            2 => {
                let pid = cluster.nodes[cluster.owner(&names[queue])].pid();
                kill(pid, Signal::SIGSTOP).expect("stop a node");
                std::thread::sleep(Duration::from_millis(random.u64(100..1200)));
                kill(pid, Signal::SIGCONT).expect("let it go on");
            }
            _ => {
                let killed = hosts.remove(0);
                killed.signal(Signal::SIGKILL);
                // Its log is told if the test fails.
                gone.push(killed);
                hosts.push(bench.host());
            }
        }
        cluster.until_whole();
    }
    for (queue, id) in &accepted {
        let name = &names[*queue];
        let is_done = || cluster.status(name, id, "status") == "COMPLETED";
        let until = Instant::now() + Duration::from_secs(30);
        while !is_done() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(is_done(), "{id} of {name} is not completed: {}", cluster.traces(name, id));
    }
    for name in &names {
        eventually("nothing is left in the queue", || {
            let count = |command: &str, key: String| cluster.query::<u64>(redis::cmd(command).arg(key));
            let base = format!("tq:{{{name}}}");
            let left = count("XLEN", name.clone())
                + count("ZCARD", format!("{base}:delayed"))
                + count("HLEN", format!("{base}:parked"))
                + count("XLEN", format!("{base}:dead"));
            (left == 0).then_some(())
        });
        bench.tqhost(&["doctor", name]).ok();
    }
    println!("{} tasks", accepted.len());
    Host::stop_all(hosts);
}
