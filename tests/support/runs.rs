//! Notes every run of a handler from outside: when it began, when it ended, and that nobody overlapped it.
//!
//! In: the guest `fetches`, whose tasks ask for a page of [`Runs`]; the answer comes after the `ms` that the
//! task names, or never if the client goes away. Out: the runs in the order in which they began. A host that
//! was killed or that stopped its attempt closes the connection, which ends the run.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::{Bench, Host};

/// One run of one task.
#[derive(Debug, Clone)]
pub struct Run {
    pub key: String,
    pub n: u32,
    pub began: Instant,
    /// None: it is not over.
    pub ended: Option<Instant>,
    /// The client got its answer.
    pub answered: bool,
    tcp: Arc<TcpStream>,
}

/// The time in which a host that goes on notices that it was stopped, on a busy machine.
const WAKES: Duration = Duration::from_secs(1);

/// The server. It runs until the test's process ends.
pub struct Runs {
    port: u16,
    runs: Arc<Mutex<Vec<Run>>>,
    /// When hosts that had been stopped went on.
    woken: Mutex<Vec<Instant>>,
}

impl Runs {
    pub fn start() -> Runs {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("an address").port();
        let runs: Arc<Mutex<Vec<Run>>> = Arc::default();
        let noted = runs.clone();
        thread::spawn(move || {
            for tcp in listener.incoming().map_while(Result::ok) {
                let noted = noted.clone();
                thread::spawn(move || serve(tcp, &noted));
            }
        });
        Runs { port, runs, woken: Mutex::default() }
    }

    /// The queues, and what the plugin `fetches` may do.
    pub fn queues(&self, queues: &str) -> String {
        let port = self.port;
        format!(
            "{queues}\n[plugins.fetches]\nallowed_hosts = [\"http://127.0.0.1:{port}\"]\n\
             http = {{ keep_alive = \"0s\" }}\n"
        )
    }

    /// A bench with these queues and the plugin `fetches`.
    pub fn bench(&self, queues: &str) -> Bench {
        let bench = Bench::new(&self.queues(queues));
        bench.install("fetches", "fetches");
        bench
    }

    /// Adds the task `n` of `key`, which runs for `ms`.
    pub fn add(&self, bench: &mut Bench, queue: &str, key: &str, n: u32, ms: u32) -> String {
        let url = format!("http://127.0.0.1:{}/{key}/{n}/{ms}", self.port);
        bench.xadd(queue, &[("url", &url), ("key", key)])
    }

    /// All runs so far, in the order in which they began.
    pub fn all(&self) -> Vec<Run> {
        self.runs.lock().expect("the runs").clone()
    }

    /// The runs of one key.
    pub fn of(&self, key: &str) -> Vec<Run> {
        self.all().into_iter().filter(|run| run.key == key).collect()
    }

    /// Lets a host go on that was stopped for longer than its lease, maybe just before it sent a request.
    pub fn wake(&self, host: &Host) {
        self.woken.lock().expect("the times").push(Instant::now());
        host.signal(Signal::SIGCONT);
    }

    /// The runs of one key without the requests of hosts that were stopped just before they sent them: such a
    /// run begins when its host goes on, and its task has run elsewhere meanwhile.
    pub fn in_time(&self, key: &str) -> Vec<Run> {
        let (woken, runs) = (self.woken.lock().expect("the times"), self.of(key));
        let is_late = |at: usize| {
            let run = &runs[at];
            let waits =
                |woke: &Instant| run.began.checked_duration_since(*woke).is_some_and(|late| late < WAKES);
            woken.iter().any(waits) && runs[..at].iter().any(|before| before.n == run.n)
        };
        (0..runs.len()).filter(|at| !is_late(*at)).map(|at| runs[at].clone()).collect()
    }
}

/// The most of these runs that were under way at one moment.
pub fn most_at_once(runs: &[Run]) -> usize {
    let under_way = |at: Instant| {
        runs.iter().filter(|run| run.began <= at && run.ended.is_none_or(|ended| ended > at)).count()
    };
    runs.iter().map(|run| under_way(run.began)).max().unwrap_or(0)
}

/// Asserts that the runs of a key came one after the other, in the order of their numbers. A task may have
/// run more than once, but not after a later one has begun.
#[track_caller]
pub fn assert_in_order(runs: &[Run], tasks: u32) {
    assert_eq!(most_at_once(runs), 1, "one at a time: {runs:#?}");
    let numbers: Vec<u32> = runs.iter().map(|run| run.n).collect();
    assert!(numbers.is_sorted(), "in their order: {numbers:?}");
    let mut done: Vec<u32> = runs.iter().filter(|run| run.answered).map(|run| run.n).collect();
    done.dedup();
    assert_eq!(done, (0..tasks).collect::<Vec<_>>(), "each of them ran");
}

fn serve(tcp: TcpStream, runs: &Mutex<Vec<Run>>) {
    let tcp = Arc::new(tcp);
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match (&*tcp).read(&mut piece) {
            Ok(0) | Err(_) => return,
            Ok(size) => head.extend_from_slice(&piece[..size]),
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path: Vec<&str> = head.split(' ').nth(1).unwrap_or_default().split('/').collect();
    let [_, key, n, ms] = path[..] else { return };
    let [n, ms] = [n, ms].map(|text| text.parse::<u32>().expect("a number"));
    let at = {
        let mut runs = runs.lock().expect("the runs");
        let began = Instant::now();
        // The threads that wait for the ends of these may notice them later than this one its beginning.
        for run in runs.iter_mut().filter(|run| run.ended.is_none() && is_closed(&run.tcp)) {
            run.ended = Some(began);
        }
        runs.push(Run { key: key.to_owned(), n, began, ended: None, answered: false, tcp: tcp.clone() });
        runs.len() - 1
    };
    // A client that goes away ends the wait.
    let is_closed = is_closed_within(&tcp, Duration::from_millis(ms.into()));
    let mut runs = runs.lock().expect("the runs");
    let answered = !is_closed && runs[at].ended.is_none();
    // The run ends before the client can know of it.
    runs[at].ended.get_or_insert_with(Instant::now);
    runs[at].answered = answered;
    if answered {
        let _ = (&*tcp).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok");
    }
}

/// The other side has closed the connection.
fn is_closed(tcp: &TcpStream) -> bool {
    // The request was read to its end, so only the end of the connection can be read now.
    let mut events = [PollFd::new(tcp.as_fd(), PollFlags::POLLIN)];
    poll(&mut events, PollTimeout::ZERO).expect("the state of a connection") > 0
}

/// Waits for `time`, or until the other side has closed the connection.
fn is_closed_within(tcp: &TcpStream, time: Duration) -> bool {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        tcp.set_read_timeout(Some(left)).expect("a timeout");
        match tcp.peek(&mut [0]) {
            Ok(0) => return true,
            Ok(_) => return false,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return true,
        }
    }
}
