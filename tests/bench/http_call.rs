//! Section `http-call`: tasks through the handler `http-call`, next to a bare client that sends the same
//! requests to the same application.
//!
//! The application reads each request whole and answers at once, on the same machine. The bare client has as
//! many connections as the host has attempts at once, sends a request, reads the answer, and sends the next
//! one. It has no Redis, signs nothing, and would lose what a crash interrupts.
//!
//! In, from the environment: `REPS` (repetitions, 5), `WRITE=1`. Out: a table with medians and spreads, and
//! ratios within each repetition. With `WRITE=1` the table also replaces the one of docs/performance.md.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use super::page::{Spread, grouped, machine, replace};
use super::support::application::plugin;
use super::support::{Bench, within};
use super::{REPS, amount, from_env, quiet_host};

/// The section's name.
const NAME: &str = "http-call";
/// Tasks of one run.
static TASKS: LazyLock<usize> = LazyLock::new(|| amount(10_000, 50));
const PATIENCE: Duration = Duration::from_secs(120);
/// The size of a task's only field, in bytes.
const CONTENT: usize = 500;

/// The cases: how many attempts at once, the `instance` of the plugin, and the row's name.
const CASES: [(usize, &str, &str); 3] = [
    (10, "\"per-task\"", "`http-call`, 10 at once"),
    (10, "{ warm = 10 }", "`http-call`, 10 at once, `warm = 10`"),
    (50, "{ warm = 50 }", "`http-call`, 50 at once, `warm = 50`"),
];

pub fn throughput() {
    let (reps, tasks, write) = (*REPS, *TASKS, from_env("WRITE", 0u8) != 0);
    println!("http-call: {reps} repetitions of {tasks} tasks");
    let mut runs: Vec<[Vec<f64>; 2]> = vec![<[Vec<f64>; 2]>::default(); CASES.len()];
    for rep in 0..reps {
        let mut order: Vec<(usize, bool)> =
            (0..CASES.len()).flat_map(|case| [(case, false), (case, true)]).collect();
        fastrand::Rng::with_seed(rep as u64).shuffle(&mut order);
        for (at, is_host) in order {
            let (concurrency, instance, what) = CASES[at];
            let application = Application::start();
            let rate = match is_host {
                true => host(&application, concurrency, instance),
                false => bare(&application, concurrency),
            };
            let what = if is_host { what.to_owned() } else { format!("bare client, {concurrency} at once") };
            println!("  {} of {reps}  {what:40} {:>9} tasks/s", rep + 1, grouped(rate));
            runs[at][usize::from(is_host)].push(rate);
        }
    }
    let text = table(reps, &runs);
    println!("\n{text}");
    if write {
        replace(NAME, &text);
    }
}

/// Tasks per second of a backlog.
fn host(application: &Application, concurrency: usize, instance: &str) -> f64 {
    let origin = format!("http://127.0.0.1:{}", application.port);
    let granted = plugin(&origin, "")
        .replace("[plugins.http-call]\n", &format!("[plugins.http-call]\ninstance = {instance}\n"));
    let queues = format!("[queues.work]\nplugin = \"http-call\"\nconcurrency = {concurrency}\n{granted}");
    let mut bench = Bench::with_redis(&queues, &["--appendonly", "no"]);
    let content = "x".repeat(CONTENT);
    let (tasks, mut pipe) = (*TASKS, redis::pipe());
    for _ in 0..tasks {
        pipe.cmd("XADD").arg("work").arg("*").arg("content").arg(&content).ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("XADD");
    let host = quiet_host(&bench);
    bench.install("http-call", "http-call");
    let left =
        |bench: &mut Bench| redis::cmd("XLEN").arg("work").query::<usize>(&mut bench.db).expect("XLEN");
    within(PATIENCE, "a tenth is done", || (left(&mut bench) <= tasks - tasks / 10).then_some(()));
    let (first, begin) = (left(&mut bench), Instant::now());
    within(PATIENCE, "all are done", || (left(&mut bench) == 0).then_some(()));
    let seconds = begin.elapsed().as_secs_f64();
    assert_eq!(application.requests(), tasks, "each task is one request");
    assert_eq!(bench.places("work").dead, 0, "every task was completed");
    host.stop();
    first as f64 / seconds
}

/// Requests per second of a client that does nothing else.
fn bare(application: &Application, concurrency: usize) -> f64 {
    let (tasks, begin) = (*TASKS, Instant::now());
    let clients: Vec<_> = (0..concurrency)
        .map(|n| {
            let port = application.port;
            let requests = tasks / concurrency + usize::from(n < tasks % concurrency);
            thread::spawn(move || send(port, requests))
        })
        .collect();
    for client in clients {
        client.join().expect("a client");
    }
    assert_eq!(application.requests(), tasks);
    tasks as f64 / begin.elapsed().as_secs_f64()
}

/// Sends requests of the same size as the handler's, one after the other on one connection.
fn send(port: u16, requests: usize) {
    let body = format!(
        r#"{{"id":"1700000000000-0","queue":"work","attempt":1,"fence":1,"fields":{{"content":"{}"}}}}"#,
        "x".repeat(CONTENT)
    );
    let request = format!(
        "POST /tasks/work HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n\
         user-agent: tqhost-http-call/1\r\nwebhook-id: 1700000000000-0\r\nwebhook-timestamp: 1700000000\r\n\
         webhook-signature: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=\r\n\
         idempotency-key: work:1700000000000-0\r\ntqhost-queue: work\r\ntqhost-attempt: 1\r\n\
         tqhost-fence: 1\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("connect");
    stream.set_nodelay(true).expect("set an option");
    let mut stream = BufReader::new(stream);
    for _ in 0..requests {
        stream.get_mut().write_all(request.as_bytes()).expect("send");
        read(&mut stream).expect("an answer");
    }
}

/// Reads a request or an answer to its end. None if there is none.
fn read(stream: &mut BufReader<TcpStream>) -> Option<()> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        stream.read_line(&mut head).ok().filter(|read| *read > 0)?;
    }
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()
}

/// An application that answers each request at once, and counts them. It runs until the process ends.
pub struct Application {
    pub port: u16,
    requests: Arc<AtomicUsize>,
}

impl Application {
    pub fn start() -> Application {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("an address").port();
        let requests: Arc<AtomicUsize> = Arc::default();
        let counted = requests.clone();
        thread::spawn(move || {
            for tcp in listener.incoming().map_while(Result::ok) {
                let counted = counted.clone();
                let _ = tcp.set_nodelay(true);
                thread::spawn(move || {
                    let mut stream = BufReader::new(tcp);
                    while read(&mut stream).is_some() {
                        counted.fetch_add(1, Ordering::SeqCst);
                        let page = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                        if stream.get_mut().write_all(page).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Application { port, requests }
    }

    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

fn table(reps: usize, runs: &[[Vec<f64>; 2]]) -> String {
    let spread = |values: Vec<f64>| Spread::of(values).expect("a run");
    let mut text = format!("{}\n\n", machine(reps));
    text.push_str("| tasks | bare client/s | tasks/s | ratio |\n|---|---:|---:|---:|\n");
    for ((.., what), [bare, host]) in CASES.iter().zip(runs) {
        let ratio = spread(host.iter().zip(bare).map(|(host, bare)| host / bare).collect());
        text.push_str(&format!(
            "| {what} | {} | {} | {:.2} ({:.2} to {:.2}) |\n",
            grouped(spread(bare.clone()).median),
            grouped(spread(host.clone()).median),
            ratio.median,
            ratio.least,
            ratio.most,
        ));
    }
    text
}
