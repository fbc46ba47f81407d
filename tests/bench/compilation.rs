//! Section `compilation`: the time of short tasks while the host compiles a large component for another
//! queue, next to their time while it does not.
//!
//! Out: the times from XADD to COMPLETED, in turn with and without a compilation. It fails when the p99 is
//! more than [`MOST`] times as long. A keyspace notification of Redis announces each end, so the measurement
//! does not poll; the clock is that of this process. Every version is a new one, so that none is in the
//! cache.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::files::{digest, functions, guest, marked, put};
use crate::support::process::Uses;
use crate::support::{Bench, RedisServer, within};
use crate::{IS_TEST, amount, median, quiet_host};

const QUEUES: &str = "[queues.short]\nplugin = \"echo\"\n[queues.large]\nplugin = \"report-csv\"\n";
static ROUNDS: LazyLock<u32> = LazyLock::new(|| amount(3, 1));
/// How long each round measures without a compilation.
static QUIET: LazyLock<Duration> = LazyLock::new(|| Duration::from_secs(amount(6, 1)));
/// The pause between two tasks.
const PACE: Duration = Duration::from_millis(5);
/// The greatest allowed ratio of the p99 with a compilation to the p99 without.
const MOST: f64 = 2.0;
/// How long the host takes to notice a new file.
const NOTICED: Duration = Duration::from_millis(150);

pub fn others() {
    let rounds = *ROUNDS;
    println!(
        "latency of short tasks (echo, one each {PACE:?}), {rounds} rounds without and with \
         a 12 MB component in JavaScript being compiled"
    );
    println!(
        "  (in brackets: the median, over the seconds, of the p99 of each; \
         another program that takes the machine for a moment does not change it)"
    );
    let mut bench = Bench::with_redis(QUEUES, &["--appendonly", "no"]);
    let _: () = bench.redis("CONFIG", ("SET", "notify-keyspace-events", "Kg"));
    let large = guest(amount("report-csv", "resume-analyze"));
    bench.install("echo", "echo");
    put(&bench, "report-csv", &large);
    let host = quiet_host(&bench);
    within(Duration::from_secs(600), "it is ready", || (host.get("/readyz").status == 200).then_some(()));
    println!("  before: {}", Uses::of(host.pid()));
    let meter = Meter::start(&bench.redis);
    let (mut without, mut with, mut took) = (Times::default(), Times::default(), Vec::new());
    for round in 1..=rounds {
        let quiet = Instant::now();
        // A measurement has to last this long.
        std::thread::sleep(*QUIET);
        let put_at = Instant::now();
        let next = marked(&large, round);
        let name = &digest(&next)[..12];
        // All of it is compiled, as the first file of its language is.
        functions(&bench.dir.path().join(".tqhost/cache")).map_or(Ok(()), fs::remove_file).expect("remove");
        put(&bench, "report-csv", &next);
        let line = within(Duration::from_secs(600), "it is compiled", || {
            host.logged("plugin loaded").into_iter().find(|line| line["digest"] == name)
        });
        let done = Instant::now();
        assert_eq!(line["from_cache"], false);
        let (mut before, mut during) = (meter.between(quiet, put_at), meter.between(put_at + NOTICED, done));
        let seconds = (done - put_at - NOTICED).as_secs_f64();
        println!(
            "  {round}: without {}; with {}; {}; compiled in {seconds:.1} s",
            before.told(),
            during.told(),
            during.against(&mut before)
        );
        println!("     {}", Uses::of(host.pid()));
        without.add(before);
        with.add(during);
        took.push(seconds);
    }
    println!("  all: without {}; with {}; {}", without.told(), with.told(), with.against(&mut without));
    let ratio = at(&mut with.all, 0.99) / at(&mut without.all, 0.99);
    assert!(
        *IS_TEST || ratio <= MOST,
        "the p99 of the others is {ratio:.2} times as long while something is compiled, \
         more than {MOST} times"
    );
    println!(
        "  {} tasks without, {} with; compiled in {:.1} s (median)",
        without.all.len(),
        with.all.len(),
        median(&mut took)
    );
    assert_eq!(meter.stop(), 0, "tasks without an end");
    assert_eq!(bench.places("short").dead, 0, "every task was completed");
    host.stop();
}

/// Times of tasks, in ms.
#[derive(Default)]
struct Times {
    all: Vec<f64>,
    /// The p99 of each second.
    seconds: Vec<f64>,
}

impl Times {
    fn add(&mut self, other: Times) {
        self.all.extend(other.all);
        self.seconds.extend(other.seconds);
    }

    fn told(&mut self) -> String {
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|part| at(&mut self.all, part));
        format!("p50 {p50:.2} p99 {p99:.2} [{:.2}] max {max:.1} ms", median(&mut self.seconds))
    }

    fn against(&mut self, other: &mut Times) -> String {
        let mut ratio = |part| at(&mut self.all, part) / at(&mut other.all, part);
        let (p50, p99) = (ratio(0.5), ratio(0.99));
        format!(
            "p50 {p50:.2} times, p99 {p99:.2} times [{:.2}]",
            median(&mut self.seconds) / median(&mut other.seconds)
        )
    }
}

/// The quantile `part` of the values.
fn at(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() as f64 * part) as usize).min(values.len() - 1)]
}

/// Adds tasks at a steady pace, and notes how long each took.
struct Meter {
    stop: Arc<AtomicBool>,
    notes: Arc<Mutex<Notes>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Notes {
    sent: HashMap<String, Instant>,
    /// When each task was added, and how many ms it took.
    done: Vec<(Instant, f64)>,
}

impl Meter {
    fn start(redis: &RedisServer) -> Meter {
        let stop = Arc::new(AtomicBool::new(false));
        let notes: Arc<Mutex<Notes>> = Arc::default();
        let (mut db, mut listening) = (redis.connection(), redis.connection());
        listening.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        let (stopped, shared) = (stop.clone(), notes.clone());
        let listener = std::thread::spawn(move || {
            let mut events = listening.as_pubsub();
            events.psubscribe("__keyspace@0__:tq:{short}:task:*").expect("PSUBSCRIBE");
            while !stopped.load(Ordering::Relaxed) || !shared.lock().expect("the notes").sent.is_empty() {
                let Ok(message) = events.get_message() else { continue };
                let now = Instant::now();
                // The status of a task gets an expiry when the task ends.
                if message.get_payload_bytes() != b"expire" {
                    continue;
                }
                let id = message.get_channel_name().rsplit(':').next().unwrap_or_default();
                let mut notes = shared.lock().expect("the notes");
                if let Some(sent) = notes.sent.remove(id) {
                    notes.done.push((sent, (now - sent).as_secs_f64() * 1000.0));
                }
            }
        });
        let (stopped, shared) = (stop.clone(), notes.clone());
        let sender = std::thread::spawn(move || {
            let (begin, mut n) = (Instant::now(), 0_u32);
            while !stopped.load(Ordering::Relaxed) {
                let id = format!("t{n}");
                shared.lock().expect("the notes").sent.insert(id.clone(), Instant::now());
                let _: String = redis::cmd("XADD")
                    .arg("short")
                    .arg("*")
                    .arg("tq-id")
                    .arg(id)
                    .arg("n")
                    .arg(n)
                    .query(&mut db)
                    .expect("XADD");
                n += 1;
                std::thread::sleep((begin + PACE * n).saturating_duration_since(Instant::now()));
            }
        });
        Meter { stop, notes, threads: vec![sender, listener] }
    }

    /// The times of the tasks that were added from `from` to `to`.
    fn between(&self, from: Instant, to: Instant) -> Times {
        let done: Vec<(Instant, f64)> =
            within(Duration::from_secs(60), "tasks of this time are done", || {
                let notes = self.notes.lock().expect("the notes");
                let open = notes.sent.values().any(|sent| *sent <= to);
                (!open).then(|| {
                    notes.done.iter().filter(|(sent, _)| (from..to).contains(sent)).copied().collect()
                })
            });
        let mut seconds: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        done.iter().for_each(|(sent, ms)| seconds.entry((*sent - from).as_secs()).or_default().push(*ms));
        let seconds = seconds.into_values().map(|mut second| at(&mut second, 0.99)).collect();
        Times { all: done.into_iter().map(|(_, ms)| ms).collect(), seconds }
    }

    /// Stops adding tasks, and gives how many were added and not completed.
    fn stop(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("the meter"));
        self.notes.lock().expect("the notes").sent.len()
    }
}
