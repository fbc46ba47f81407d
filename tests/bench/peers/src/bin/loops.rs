//! The least that a queue on Redis Streams can cost: read a batch, do nothing with it, ack and delete it with
//! the next read.
//!
//! In: the orders of `peers`. `loops work [status] [warm] [BATCH] [GUEST.wasm]` writes with `status` a record
//! that expires for every message, and runs with a guest every message in a fresh instance (`sandbox`), or
//! with `warm` in one that each loop keeps. BATCH is the number of messages of one read. `loops pace RATE
//! SECONDS` also watches statuses when `WATCH` has the prefix of their keys: a task is done when a client can
//! see the last change of its status. Out: tasks, and their times. Not here: everything else of a task queue,
//! such as leases, retries, dead letters and limits.

#[path = "loops/imports.rs"]
mod imports;
#[path = "loops/sandbox.rs"]
mod sandbox;

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use peers::{
    Error, Order, beats, chunks, end_with_stdin, made_at, note_at, now_ns, payload, redis_url, write_times,
};
use redis::{Cmd, Connection, Pipeline, Value, cmd, pipe};
use sandbox::Sandbox;

const STREAM: &str = "work";
const GROUP: &str = "tqhost";
const FIELD: &str = "content";
/// One loop works while another one waits for Redis. More loops would wait for each other.
const LOOPS: usize = 3;
const BATCH: usize = 100;
const RETENTION_SECONDS: u32 = 24 * 60 * 60;
/// The longest wait for a status.
const PATIENCE: Duration = Duration::from_secs(5);
/// The watch ends when no status has changed for this long.
const AFTERMATH: Duration = Duration::from_millis(300);

fn main() -> Result<(), Error> {
    match Order::from_args()? {
        Order::Fill(tasks) => {
            let mut redis = connect()?;
            for chunk in chunks(tasks) {
                let mut adds = pipe();
                for _ in 0..chunk {
                    adds.add_command(add(&payload())).ignore();
                }
                adds.query::<()>(&mut redis)?;
            }
            Ok(())
        }
        Order::Pace { rate, seconds } => pace(rate, seconds),
        Order::Work(args) => {
            let has = |name: &str| args.iter().any(|arg| arg == name);
            let guest =
                args.iter().find(|arg| arg.ends_with(".wasm")).map(|path| Sandbox::load(path)).transpose()?;
            let batch = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(BATCH);
            end_with_stdin();
            work(&Rules { status: has("status"), warm: has("warm"), batch, guest })
        }
    }
}

fn connect() -> Result<Connection, Error> {
    Ok(redis::Client::open(redis_url()?)?.get_connection()?)
}

fn add(payload: &str) -> Cmd {
    let mut add = cmd("XADD");
    add.arg(STREAM).arg("*").arg(FIELD).arg(payload);
    add
}

/// One message: its id and its payload.
type Message = (String, Vec<u8>);

/// The work of the loops on each message.
struct Rules {
    /// Whether a record is written.
    status: bool,
    /// Whether an instance is kept for the next message.
    warm: bool,
    /// The largest number of messages in one read.
    batch: usize,
    guest: Option<Sandbox>,
}

fn work(rules: &Rules) -> Result<(), Error> {
    let created: redis::RedisResult<()> =
        cmd("XGROUP").arg(&["CREATE", STREAM, GROUP, "0", "MKSTREAM"]).query(&mut connect()?);
    if let Err(error) = created
        && error.code() != Some("BUSYGROUP")
    {
        return Err(error.into());
    }
    thread::scope(|scope| {
        for number in 0..LOOPS {
            scope.spawn(move || {
                // The other loops do not end by themselves, so the first error ends the process.
                if let Err(error) = one_loop(number, rules) {
                    eprintln!("loops: {error}");
                    std::process::exit(1);
                }
            });
        }
    });
    Ok(())
}

fn one_loop(number: usize, rules: &Rules) -> Result<(), Error> {
    let mut redis = connect()?;
    let mut runner = rules.guest.as_ref().map(|guest| guest.runner(rules.warm));
    let read = |wait: bool| {
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(GROUP).arg(format!("loop-{number}")).arg("COUNT").arg(rules.batch);
        if wait {
            read.arg("BLOCK").arg(0);
        }
        read.arg("STREAMS").arg(STREAM).arg(">");
        read
    };
    let (wait, go_on) = (read(true), read(false));
    let mut batch = Vec::new();
    loop {
        if batch.is_empty() {
            batch = messages(wait.query(&mut redis)?);
            continue;
        }
        let is_full = batch.len() == rules.batch;
        let mut settle = Pipeline::with_capacity(2 * batch.len() + 3);
        let (mut ack, mut delete) = (cmd("XACK"), cmd("XDEL"));
        ack.arg(STREAM).arg(GROUP);
        delete.arg(STREAM);
        for (id, payload) in &batch {
            peers::note("started", made_at(payload));
            let result = runner.as_mut().map(|runner| runner.run(id, FIELD, payload)).transpose()?.flatten();
            if rules.status {
                record(&mut settle, id, result);
            }
            ack.arg(id);
            delete.arg(id);
        }
        settle.add_command(ack).add_command(delete);
        if is_full {
            settle.add_command(go_on.clone());
        }
        let mut replies: Vec<Value> = settle.query(&mut redis)?;
        let now = now_ns();
        for (_, payload) in &batch {
            note_at("done", made_at(payload), now);
        }
        batch = if is_full { replies.pop().map(messages).unwrap_or_default() } else { Vec::new() };
    }
}

fn record(settle: &mut Pipeline, id: &str, result: Option<Vec<u8>>) {
    let key = format!("job:{id}");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_millis() as u64;
    let set = settle
        .cmd("HSET")
        .arg(&key)
        .arg("status")
        .arg("COMPLETED")
        .arg("attempt")
        .arg(1)
        .arg("finished_at_ms")
        .arg(now);
    if let Some(result) = result {
        set.arg("result").arg(result);
    }
    settle.cmd("EXPIRE").arg(&key).arg(RETENTION_SECONDS);
}

/// The messages in the reply of an XREADGROUP of one stream. A nil reply has none.
fn messages(reply: Value) -> Vec<Message> {
    let list = |value: Value| if let Value::Array(items) = value { items } else { Vec::new() };
    let bytes = |value: Value| if let Value::BulkString(bytes) = value { bytes } else { Vec::new() };
    let Some(stream) = list(reply).pop() else { return Vec::new() };
    let entries = list(stream).pop().map(list).unwrap_or_default();
    let message = |entry: Value| {
        let [id, fields] = <[Value; 2]>::try_from(list(entry)).ok()?;
        let payload = list(fields).into_iter().nth(1).map(bytes)?;
        Some((String::from_utf8(bytes(id)).ok()?, payload))
    };
    entries.into_iter().filter_map(message).collect()
}

/// Enqueues at a steady pace. With `WATCH`, it also waits until each task is completed, and notes when that
/// was visible.
fn pace(rate: f64, seconds: f64) -> Result<(), Error> {
    let mut redis = connect()?;
    let prefix = std::env::var("WATCH").ok();
    let watch = prefix.clone().map(|prefix| watch(&prefix)).transpose()?;
    let mut made: HashMap<String, u64> = HashMap::new();
    for due in beats(rate, seconds) {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let payload = payload();
        made.insert(add(&payload).query(&mut redis)?, made_at(payload.as_bytes()));
    }
    let (Some(prefix), Some(watch)) = (prefix, watch) else { return Ok(()) };
    for id in made.keys() {
        let end = Instant::now() + PATIENCE;
        while cmd("HGET")
            .arg(format!("{prefix}{id}"))
            .arg("status")
            .query::<Option<String>>(&mut redis)?
            .as_deref()
            != Some("COMPLETED")
        {
            if Instant::now() > end {
                return Err(format!("the task {id} is not completed").into());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
    for (id, seen) in watch.join().expect("the watch panics")? {
        if let Some(made_at) = made.get(&id) {
            note_at("done", *made_at, seen);
        }
    }
    write_times();
    Ok(())
}

type Watch = thread::JoinHandle<Result<HashMap<String, u64>, Error>>;

/// Notes the last change of each hash whose key has this prefix, until nothing changes any more.
fn watch(prefix: &str) -> Result<Watch, Error> {
    let mut redis = connect()?;
    cmd("CONFIG").arg(&["SET", "notify-keyspace-events", "Kh"]).query::<()>(&mut redis)?;
    let channel = format!("__keyspace@0__:{prefix}");
    let (ready, is_ready) = std::sync::mpsc::channel();
    let watch = thread::spawn(move || {
        let mut events = redis.as_pubsub();
        events.psubscribe(format!("{}*", channel.replace('[', "\\[")))?;
        ready.send(()).ok();
        let mut seen = HashMap::new();
        loop {
            // The first change may come late; after the last one, the watch ends soon.
            events.set_read_timeout(Some(if seen.is_empty() { PATIENCE } else { AFTERMATH }))?;
            match events.get_message() {
                Ok(event) => {
                    let now = now_ns();
                    if let Some(id) = event.get_channel_name().strip_prefix(&channel) {
                        seen.insert(id.to_owned(), now);
                    }
                }
                Err(error) if error.is_timeout() => return Ok(seen),
                Err(error) => return Err(error.into()),
            }
        }
    });
    is_ready.recv().map_err(|_| "the watch ended before it began")?;
    Ok(watch)
}
