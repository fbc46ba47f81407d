//! Section `idle`: hosts without tasks.
//!
//! Out: what they cost in processor time, memory and commands, by Redis's own figures (`INFO commandstats`,
//! `INFO cpu`); and how long a task in one of many idle queues takes, from before its XADD until a client
//! that polls sees COMPLETED. Not here: the limit that is a test (`tests/queue/idle.rs`).

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::support::{Bench, Host, eventually};
use crate::{amount, cpu, quantile, quiet_host, resident_mib};

/// How long the cost is measured.
static WHILE: LazyLock<Duration> = LazyLock::new(|| Duration::from_secs(amount(20, 1)));
/// After this time, each loop has noticed that its queue rests.
static SETTLED: LazyLock<Duration> = LazyLock::new(|| Duration::from_secs(amount(40, 0)));
/// Tasks whose time is measured.
static TASKS: LazyLock<usize> = LazyLock::new(|| amount(500, 20));
/// The pause between two tasks.
const PAUSE: Duration = Duration::from_millis(20);

pub fn hosts() {
    println!("hosts that have nothing to do, over {} s", WHILE.as_secs());
    let most = amount(500, 10);
    for (queues, hosts) in [(1, 1), (most / 5, 1), (most, 1), (most, 4)] {
        cost(queues, hosts);
    }
    let tasks = *TASKS;
    println!("a task in an idle queue, from XADD to COMPLETED, {tasks} of them one after the other, in ms");
    let mut alone = None;
    for queues in [1, most] {
        let times = latency(queues);
        let (median, p99) = (quantile(&times, 0.5), quantile(&times, 0.99));
        let of_one = alone.get_or_insert((median, p99));
        println!(
            "  in one of {queues:>3} queues: median {median:.2}, 99 of 100 {p99:.2}: \
             {:.2} and {:.2} times a single queue's",
            median / of_one.0,
            p99 / of_one.1
        );
    }
}

/// A bench with this many queues and one plugin.
fn bench(queues: usize) -> Bench {
    let head = "[defaults]\nplugin = \"empty\"\n".to_owned();
    let bench = Bench::new(&(0..queues).fold(head, |text, n| text + &format!("[queues.q{n}]\n")));
    bench.install("empty", "empty");
    bench
}

/// Starts hosts, and waits until all their queues rest.
fn at_rest(bench: &mut Bench, hosts: usize) -> Vec<Host> {
    let hosts: Vec<Host> = (0..hosts).map(|_| quiet_host(bench)).collect();
    hosts.iter().for_each(Host::until_ready);
    eventually("all queues rest", || {
        let clients: String = bench.redis("CLIENT", "LIST");
        let blocked: Vec<&str> = clients.lines().filter(|line| line.contains(" flags=b ")).collect();
        (blocked.len() == hosts.len() && blocked.iter().all(|line| line.contains(" cmd=xread ")))
            .then_some(())
    });
    hosts
}

fn cost(queues: usize, hosts: usize) {
    let mut bench = bench(queues);
    let hosts = at_rest(&mut bench, hosts);
    std::thread::sleep(*SETTLED);
    let seconds = |hosts: &[Host]| hosts.iter().map(|host| cpu(host.pid())).sum::<f64>();
    let (before, began) = ((commands(&mut bench), redis_cpu(&mut bench), seconds(&hosts)), Instant::now());
    std::thread::sleep(*WHILE);
    let took = began.elapsed().as_secs_f64();
    let each = (commands(&mut bench) - before.0) as f64 / took;
    let redis = (redis_cpu(&mut bench) - before.1) / took * 100.0;
    let share = (seconds(&hosts) - before.2) / took * 100.0;
    let (count, memory) = (hosts.len(), hosts.iter().map(resident_mib).max().unwrap_or_default());
    println!(
        "  {queues:>3} queues, {count} hosts: {each:>5.1} commands/s, {redis:.2} % of a core in Redis, \
         {share:.2} % in the hosts, {memory} MiB each"
    );
    hosts.into_iter().for_each(Host::stop);
}

/// The times of tasks, in ms. The queues take turns, so with many queues each task comes to a queue that
/// rests.
fn latency(queues: usize) -> Vec<f64> {
    let mut bench = bench(queues);
    let hosts = at_rest(&mut bench, 1);
    let mut times = Vec::with_capacity(*TASKS);
    for n in 0..*TASKS {
        let queue = format!("q{}", n % queues);
        let began = Instant::now();
        let id = bench.xadd(&queue, &[("n", "1")]);
        while bench.status(&queue, &id, "status") != "COMPLETED" {
            std::thread::yield_now();
        }
        times.push(began.elapsed().as_secs_f64() * 1000.0);
        std::thread::sleep(PAUSE);
    }
    hosts.into_iter().for_each(Host::stop);
    times
}

/// Commands that Redis has carried out so far, with those in scripts.
fn commands(bench: &mut Bench) -> u64 {
    let stats: String = bench.redis("INFO", "commandstats");
    stats.lines().filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok()).sum()
}

/// Seconds of processor time of Redis so far.
fn redis_cpu(bench: &mut Bench) -> f64 {
    let info: String = bench.redis("INFO", "cpu");
    let value = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok()).expect("a number")
    };
    value("used_cpu_user:") + value("used_cpu_sys:")
}
