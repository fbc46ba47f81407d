//! Section `execution`: ways to run guests, and what each does to other work. It is the measurement behind
//! "How guests run" in ARCHITECTURE.md.
//!
//! Out: tables on stdout. This uses wasmtime without the host, since the host has only one of the ways.
//! Beside guests that compute without end run a ticker (like heartbeats and fetch loops), a socket that
//! answers (like the admin API), and short guests (like tasks of other queues). Ticker and socket run on the
//! host's runtime. All ways are measured in turn, several times.
//!
//! Not here: the ways themselves (`ways`), the real host among busy guests (`busy`).

mod ways;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;
use wasmtime::Engine;
use wasmtime::component::Component;

use self::ways::{Call, Ended, Host, Instance, Kind, Starter, Ticker, Way};
use super::{eventually, median, quantile};

const RUNS: usize = 3;
/// How long guests compute in one run.
const WINDOW: Duration = Duration::from_millis(1500);
/// The numbers of guests that compute without end.
const BUSY: [usize; 5] = [0, 1, 2, 8, 32];
/// The pause between two beats of the ticker, two requests, and two short guests.
const BEAT: Duration = Duration::from_millis(10);
/// Short calls of one throughput run.
const CALLS: u32 = 10_000;
/// Short calls at once.
const CALLERS: u32 = 4;
/// Busy guests beside the short calls of [`crowd`].
const CROWD: usize = 8;
/// Waiting guests whose memory is measured.
const WAITING: usize = 500;
/// Longer than anything here.
const LONG: Duration = Duration::from_secs(3600);

const WAYS: [Way; 7] = [
    Way { label: "fibers, the host's threads", kind: Kind::Shared, nice: 0 },
    Way { label: "fibers, own threads", kind: Kind::Own, nice: 0 },
    Way { label: "the same, nice 10", kind: Kind::Own, nice: 10 },
    Way { label: "fibers in turns", kind: Kind::Turns, nice: 0 },
    Way { label: "the same, nice 10", kind: Kind::Turns, nice: 10 },
    Way { label: "a thread each", kind: Kind::Thread, nice: 0 },
    Way { label: "the same, nice 10", kind: Kind::Thread, nice: 10 },
];

pub fn compared() {
    println!(
        "ways to run guests on {} cores, {RUNS} runs of each in turn; medians of the runs",
        ways::cores()
    );
    let (engine, component) = ways::engine(64);
    let ticker = Ticker::start(&engine);
    throughput(&engine, &component);
    for busy in BUSY {
        beside(&engine, &component, busy);
    }
    crowd(&engine, &component);
    drop(ticker);
    memory();
}

/// Runs every way in turn, each run with a new host. Gives the results of the runs by way.
fn in_turn<T>(engine: &Engine, component: &Component, run: impl Fn(&Host) -> T) -> Vec<Vec<T>> {
    let mut all: Vec<Vec<T>> = WAYS.iter().map(|_| Vec::new()).collect();
    for _ in 0..RUNS {
        for (way, seen) in WAYS.iter().zip(&mut all) {
            seen.push(run(&Host::new(engine, component, *way)));
        }
    }
    all
}

fn middle<T>(runs: &[T], value: impl Fn(&T) -> f64) -> f64 {
    median(&mut runs.iter().map(value).collect::<Vec<_>>())
}

/// Measures short calls per second without other work.
fn throughput(engine: &Engine, component: &Component) {
    println!(
        "\n  short calls per second, {CALLERS} at once, nobody else there; times those of the first way"
    );
    println!("  {:28} {:>9} {:>6} {:>9} {:>6}", "", "fresh", "times", "reused", "times");
    let rate = |host: &Host, reuse| {
        let begin = Instant::now();
        let calls = host.runtime.block_on(callers(&host.starter(), reuse, |done| done < CALLS / CALLERS));
        f64::from(calls) / begin.elapsed().as_secs_f64()
    };
    let seen = in_turn(engine, component, |host| (rate(host, false), rate(host, true)));
    let (base, base_reused) = (middle(&seen[0], |rate| rate.0), middle(&seen[0], |rate| rate.1));
    for (way, runs) in WAYS.iter().zip(&seen) {
        let (fresh, reused) = (middle(runs, |rate| rate.0), middle(runs, |rate| rate.1));
        println!(
            "  {:28} {fresh:>9.0} {:>6.2} {reused:>9.0} {:>6.2}",
            way.label,
            fresh / base,
            reused / base_reused
        );
    }
}

/// Makes short calls. Each caller goes on while `goes_on` is true of its count. Gives the count of all
/// callers.
async fn callers(
    starter: &Starter,
    reuse: bool,
    goes_on: impl Fn(u32) -> bool + Copy + Send + 'static,
) -> u32 {
    let start = |_| {
        let starter = starter.clone();
        tokio::spawn(async move {
            let (mut done, mut kept): (u32, Option<Instance>) = (0, None);
            while goes_on(done) {
                let ended = starter
                    .start(Call::Short, Instant::now() + LONG, kept.take())
                    .await
                    .expect("a short call");
                kept = reuse.then_some(ended.instance);
                done += 1;
            }
            done
        })
    };
    let mut all = 0;
    for caller in (0..CALLERS).map(start).collect::<Vec<_>>() {
        all += caller.await.expect("a caller");
    }
    all
}

/// The figures of one run with busy guests; times in ms.
struct Seen {
    /// How late each beat of the ticker was.
    ticker: Vec<f64>,
    /// How long each request took.
    requests: Vec<f64>,
    /// How long each short guest took.
    short: Vec<f64>,
    /// How late each busy guest ended.
    late: Vec<f64>,
    /// How much each busy guest computed.
    work: Vec<f64>,
}

fn beside(engine: &Engine, component: &Component, busy: usize) {
    println!(
        "\n  beside {busy} busy guests; ms: median, 99 of 100, most; \
         busy guests: how late a timeout ends them, least work to most, all work"
    );
    println!(
        "  {:28} {:^23} {:^23} {:^23} {:>15} {:>6} {:>6}",
        "", "ticker is late by", "a request takes", "a short guest takes", "timeout is late", "fair", "work"
    );
    let seen = in_turn(engine, component, |host| window(host, busy));
    let work = |runs: &[Seen]| middle(runs, |seen| seen.work.iter().sum());
    for (way, runs) in WAYS.iter().zip(&seen) {
        let of = |what: fn(&Seen) -> &[f64], share| middle(runs, |seen| quantile(what(seen), share));
        let three = |what: fn(&Seen) -> &[f64]| {
            format!("{:>7.2} {:>7.2} {:>7.2}", of(what, 0.5), of(what, 0.99), of(what, 1.0))
        };
        let (ticker, requests, short) =
            (three(|seen| &seen.ticker), three(|seen| &seen.requests), three(|seen| &seen.short));
        print!("  {:28} {ticker} {requests} {short}", way.label);
        if busy > 0 {
            let (late, latest) = (of(|seen| &seen.late, 0.5), of(|seen| &seen.late, 1.0));
            let fair = middle(runs, |seen| quantile(&seen.work, 0.0) / quantile(&seen.work, 1.0));
            print!(" {late:>7.2} {latest:>7.2} {fair:>6.2} {:>6.2}", work(runs) / work(&seen[0]));
        }
        println!();
    }
}

fn window(host: &Host, busy: usize) -> Seen {
    let starter = host.starter();
    let listener = host.runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
    let address = listener.local_addr().expect("an address");
    host.runtime.spawn(answer(listener));
    let begin = Instant::now();
    let end = begin + WINDOW;
    let busy: Vec<_> = (0..busy).map(|_| starter.start(Call::Busy, end, None)).collect();
    let ticker = host.runtime.spawn(async move {
        let mut late = Vec::new();
        // Where the guests leave the ticker no time, its first beat comes after they have ended.
        let mut due = begin + BEAT;
        while late.is_empty() || Instant::now() < end {
            tokio::time::sleep_until(due.into()).await;
            late.push(ms(due.elapsed()));
            due = Instant::now() + BEAT;
        }
        late
    });
    let short = host.runtime.spawn(async move {
        let (mut took, mut begin) = (Vec::new(), begin);
        while took.is_empty() || Instant::now() < end {
            starter.start(Call::Short, begin + LONG, None).await.expect("a short call");
            took.push(ms(begin.elapsed()));
            tokio::time::sleep(BEAT).await;
            begin = Instant::now();
        }
        took
    });
    let requests = std::thread::spawn(move || {
        let mut took = Vec::new();
        while took.is_empty() || Instant::now() < end {
            took.push(ms(request(address)));
            std::thread::sleep(BEAT);
        }
        took
    });
    let mut seen = Seen {
        ticker: Vec::new(),
        requests: Vec::new(),
        short: Vec::new(),
        late: Vec::new(),
        work: Vec::new(),
    };
    for ended in ends(host, busy) {
        seen.late.push(ms(ended.at.saturating_duration_since(end)));
        seen.work.push(ended.work as f64);
    }
    seen.ticker = host.runtime.block_on(ticker).expect("the ticker");
    seen.short = host.runtime.block_on(short).expect("the short guests");
    seen.requests = requests.join().expect("the requests");
    seen
}

fn ends(host: &Host, calls: Vec<JoinHandle<Ended>>) -> Vec<Ended> {
    calls.into_iter().map(|call| host.runtime.block_on(call).expect("it ends")).collect()
}

async fn answer(listener: tokio::net::TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut word = [0; 4];
            stream.read_exact(&mut word).await.expect("a request");
            stream.write_all(&word).await.expect("an answer");
        });
    }
}

/// A request on a new connection, like one for the metrics. Gives how long it took.
fn request(address: SocketAddr) -> Duration {
    let begin = Instant::now();
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.write_all(b"ping").expect("a request");
    stream.read_exact(&mut [0; 4]).expect("an answer");
    begin.elapsed()
}

/// Measures short calls as fast as possible beside busy guests, and the work of these.
fn crowd(engine: &Engine, component: &Component) {
    println!(
        "\n  short calls as fast as {CALLERS} callers can, beside {CROWD} busy guests, and the work \
         of these; times those of the first way"
    );
    let seen = in_turn(engine, component, |host| {
        let (starter, end) = (host.starter(), Instant::now() + WINDOW);
        let busy: Vec<_> = (0..CROWD).map(|_| starter.start(Call::Busy, end, None)).collect();
        let calls = host.runtime.block_on(callers(&starter, false, move |_| Instant::now() < end));
        let work: u64 = ends(host, busy).iter().map(|ended| ended.work).sum();
        (f64::from(calls) / WINDOW.as_secs_f64(), work as f64)
    });
    let base = middle(&seen[0], |seen| seen.1);
    for (way, runs) in WAYS.iter().zip(&seen) {
        println!(
            "  {:28} {:>9.0} calls/s, work {:.2}",
            way.label,
            middle(runs, |seen| seen.0),
            middle(runs, |seen| seen.1) / base
        );
    }
}

/// Measures the memory of a guest that waits, with its instance.
fn memory() {
    println!(
        "\n  memory of each of {WAITING} guests that wait, instances included, \
         and threads of the process meanwhile"
    );
    for way in WAYS.iter().filter(|way| way.nice == 0) {
        let (engine, component) = ways::engine(u32::try_from(WAITING).expect("a small number"));
        let host = Host::new(&engine, &component, *way);
        let starter = host.starter();
        let before = status("VmRSS:");
        let waiting: Vec<_> =
            (0..WAITING).map(|_| starter.start(Call::Waits, Instant::now() + LONG, None)).collect();
        eventually("all guests wait", || {
            (host.gate().waiting.load(Ordering::Relaxed) == WAITING).then_some(())
        });
        let (after, threads) = (status("VmRSS:"), status("Threads:"));
        host.gate().open();
        ends(&host, waiting);
        println!("  {:28} {:>6.1} KiB, {threads:.0} threads", way.label, (after - before) / WAITING as f64);
    }
}

/// A number in the status of this process.
fn status(name: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find(|line| line.starts_with(name)).expect("a line");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
