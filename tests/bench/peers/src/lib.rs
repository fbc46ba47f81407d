//! Shared by the programs of the comparison: their orders, the payload, the clock, and the times that they
//! note.
//!
//! In: an order, and Redis at `REDIS_URL`:
//! ```text
//! PROGRAM fill N               enqueues N tasks at once
//! PROGRAM pace RATE SECONDS    enqueues RATE tasks a second for SECONDS
//! PROGRAM work …               runs tasks until its standard input is closed
//! ```
//! Out: tasks, and times. A payload has 200 bytes and begins with the time at which it was made. With `TIMES`
//! in its environment, a program writes times to that file when it ends, one a line: `started ENQUEUED NOW`
//! or `done ENQUEUED NOW`, in nanoseconds of the monotonic clock, which all processes of a machine share.
//! Without `TIMES` it notes nothing. Not here: the queues (`bin/`).

use std::fmt::Write as _;
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

pub type Error = Box<dyn std::error::Error + Send + Sync>;

const PAYLOAD_BYTES: usize = 200;
/// The most tasks that are enqueued in one step.
const CHUNK: usize = 500;

/// The order of a program, from its arguments.
pub enum Order {
    Fill(usize),
    Pace {
        rate: f64,
        seconds: f64,
    },
    /// Run tasks. It has the further arguments.
    Work(Vec<String>),
}

impl Order {
    pub fn from_args() -> Result<Order, Error> {
        let args: Vec<String> = std::env::args().skip(1).collect();
        match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["fill", tasks] => Ok(Order::Fill(tasks.parse()?)),
            ["pace", rate, seconds] => Ok(Order::Pace { rate: rate.parse()?, seconds: seconds.parse()? }),
            ["work", ..] => Ok(Order::Work(args[1..].to_vec())),
            _ => Err("fill N, pace RATE SECONDS, or work".into()),
        }
    }

    /// Carries out an order to enqueue. `add` enqueues the given number of tasks.
    pub async fn enqueue(&self, mut add: impl AsyncFnMut(usize) -> Result<(), Error>) -> Result<(), Error> {
        match self {
            Order::Fill(tasks) => {
                for chunk in chunks(*tasks) {
                    add(chunk).await?;
                }
            }
            Order::Pace { rate, seconds } => {
                for due in beats(*rate, *seconds) {
                    tokio::time::sleep_until(due.into()).await;
                    add(1).await?;
                }
            }
            Order::Work(_) => return Err("this is no order to enqueue".into()),
        }
        Ok(())
    }
}

pub fn redis_url() -> Result<String, Error> {
    Ok(std::env::var("REDIS_URL")?)
}

/// The sizes of the steps in which this many tasks are enqueued.
pub fn chunks(tasks: usize) -> impl Iterator<Item = usize> {
    (0..tasks).step_by(CHUNK).map(move |from| CHUNK.min(tasks - from))
}

/// The moments at which the tasks of a steady pace are due.
pub fn beats(rate: f64, seconds: f64) -> impl Iterator<Item = Instant> {
    let begin = Instant::now();
    (0..(rate * seconds) as u32).map(move |beat| begin + Duration::from_secs_f64(f64::from(beat) / rate))
}

pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Makes a payload with the present time.
pub fn payload() -> String {
    let mut payload = format!("{:020}", now_ns());
    payload.extend(std::iter::repeat_n('x', PAYLOAD_BYTES - payload.len()));
    payload
}

/// The time at which a payload was made; 0 if it is no payload.
pub fn made_at(payload: &[u8]) -> u64 {
    let digits = payload.get(..20).and_then(|digits| std::str::from_utf8(digits).ok());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_default()
}

static TIMES: LazyLock<Option<Mutex<String>>> =
    LazyLock::new(|| std::env::var_os("TIMES").map(|_| Mutex::default()));

/// Notes that the task whose payload was made at this time has reached a point now.
pub fn note(point: &str, made_at: u64) {
    note_at(point, made_at, now_ns());
}

pub fn note_at(point: &str, made_at: u64, now: u64) {
    if let Some(times) = &*TIMES {
        writeln!(times.lock().expect("the times"), "{point} {made_at} {now}")
            .expect("a String takes everything");
    }
}

/// Writes the noted times to the file.
pub fn write_times() {
    if let (Some(times), Some(path)) = (&*TIMES, std::env::var_os("TIMES")) {
        std::fs::write(path, &*times.lock().expect("the times")).expect("write the times");
    }
}

/// Ends this process when its standard input is closed, which the process that started it does, at the latest
/// when it ends.
pub fn end_with_stdin() {
    std::thread::spawn(|| {
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).ok();
        write_times();
        std::process::exit(0);
    });
}
