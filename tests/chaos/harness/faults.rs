//! Carries the plan out: each lane in a thread of its own, with the one thing that it breaks.
//!
//! Out: what was done and when, by the clock of this machine, which is Redis's too. A lane mends what it broke before it ends.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use tqhost::queue::script;

use super::PLUGINS;
use super::failover::Pair;
use super::node::Node;
use super::plan::{Fault, Lane, Step};
use crate::support::bench::guest_path;
use crate::support::proxy::Proxy;
use crate::support::{RedisServer, eventually};

/// A fault that was carried out.
#[derive(Debug, Clone)]
pub struct Done {
    pub fault: Fault,
    pub host: Option<usize>,
    pub from_ms: u64,
    pub to_ms: u64,
    /// What Redis acknowledged in this time, and only that, may be gone.
    pub loss: Option<Loss>,
}

/// From when to when, in milliseconds.
pub type Loss = (u64, u64);

pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Goes through the steps of a lane; begins none when its time is up.
pub fn run(
    lane: Lane,
    steps: &[Step],
    until: Instant,
    mut carry_out: impl FnMut(&Step) -> Option<Loss>,
) -> Vec<Done> {
    let one = |step: &Step| {
        std::thread::sleep(step.quiet);
        note(lane, step, &mut carry_out)
    };
    steps.iter().take_while(|step| Instant::now() + step.quiet < until).map(one).collect()
}

/// The same for a host's own lane: in the quiet times it is looked after.
pub fn run_on_host(lane: Lane, steps: &[Step], until: Instant, node: &mut Node) -> Vec<Done> {
    let one = |step: &Step| {
        node.rest(step.quiet);
        note(lane, step, |step| {
            to_host(node, step);
            None
        })
    };
    // A host that is asked to stop takes its time, which no plan knows.
    steps.iter().take_while(|step| Instant::now() + step.quiet < until).map(one).collect()
}

fn note(lane: Lane, step: &Step, carry_out: impl FnOnce(&Step) -> Option<Loss>) -> Done {
    let from_ms = now_ms();
    let loss = carry_out(step);
    Done { fault: step.fault, host: lane.host(), from_ms, to_ms: now_ms(), loss }
}

fn to_host(node: &mut Node, step: &Step) {
    match step.fault {
        Fault::HostStopped => {
            node.signal(Signal::SIGSTOP);
            std::thread::sleep(step.lasts);
            node.signal(Signal::SIGCONT);
        }
        Fault::HostRestarted => {
            node.stop();
            std::thread::sleep(step.lasts);
            node.start_again();
        }
        _ => {
            node.kill();
            std::thread::sleep(step.lasts);
            node.start_again();
        }
    }
}

pub fn to_network(proxy: &Proxy, step: &Step) -> Option<Loss> {
    let calls = [&script::SETTLE, &script::BEGIN, &script::PROMOTE, &script::HEARTBEAT, &script::RECLAIM];
    match step.fault {
        Fault::HalfOpen => proxy.forget_connections(),
        Fault::Partition => proxy.part(),
        Fault::SlowNetwork => proxy.delay(1..50 + step.choice as u64 / 10),
        _ => {
            let which = step.choice % (calls.len() + 1);
            let pattern = calls.get(which).map_or("XREADGROUP", |script| script.sha1());
            proxy.lose_replies(pattern, 1 + step.choice / 50);
        }
    }
    std::thread::sleep(step.lasts);
    proxy.heal();
    None
}

/// Gives what it may have forgotten. `pair` is what a failover needs.
pub fn to_redis(
    redis: &mut RedisServer,
    pair: Option<&Pair>,
    proxies: &[Proxy],
    url: &str,
    step: &Step,
) -> Option<Loss> {
    // Through a connection of its own: CLIENT KILL would cut one that is kept.
    let ask = |command: &mut redis::Cmd| {
        let connection = redis::Client::open(url)
            .expect("a valid URL")
            .get_connection_with_timeout(Duration::from_secs(20));
        let asked = connection.and_then(|mut connection| command.query::<redis::Value>(&mut connection));
        asked.expect("Redis does what it is told");
    };
    match step.fault {
        Fault::RedisKilled => {
            redis.kill();
            std::thread::sleep(step.lasts);
            redis.start_again();
        }
        Fault::RedisShutDown => {
            redis.stop();
            std::thread::sleep(step.lasts);
            redis.start_again();
        }
        Fault::RedisCutShort => {
            let (from_ms, length) = written(redis);
            std::thread::sleep(step.lasts);
            redis.kill();
            let to_ms = now_ms();
            let file = std::fs::OpenOptions::new()
                .write(true)
                .open(redis.append_only_file())
                .expect("open the append-only file");
            file.set_len(length).expect("cut the append-only file");
            redis.start_again();
            return Some((from_ms, to_ms));
        }
        Fault::RedisFailedOver => {
            return Some(pair.expect("a replica").fail_over(redis, proxies, step.lasts));
        }
        Fault::RedisStopped => {
            kill(redis.pid(), Signal::SIGSTOP).expect("stop redis-server");
            std::thread::sleep(step.lasts);
            kill(redis.pid(), Signal::SIGCONT).expect("let redis-server go on");
        }
        Fault::RedisSleeps => ask(redis::cmd("DEBUG").arg("SLEEP").arg(step.lasts.as_secs_f64())),
        Fault::ClientsKilled => ask(redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal")),
        _ => ask(redis::cmd("SCRIPT").arg("FLUSH")),
    }
    None
}

/// A moment, and the length of the append-only file with all that was acknowledged before it. A busy disk
/// makes Redis answer before it writes.
fn written(redis: &RedisServer) -> (u64, u64) {
    let mut db = redis.connection();
    eventually("Redis has written what it acknowledged", || {
        let at_ms = now_ms();
        let info: String = redis::cmd("INFO").arg("persistence").query(&mut db).ok()?;
        let length = std::fs::metadata(redis.append_only_file()).expect("the append-only file").len();
        info.contains("aof_buffer_length:0\r").then_some((at_ms, length))
    })
}

/// The handler with a custom section of its own: another digest, the same work.
fn version(plugin: &str, number: usize) -> Vec<u8> {
    let mut wasm = std::fs::read(guest_path(plugin)).expect("read a handler");
    let name = format!("v{number:04}");
    wasm.extend([0, 1 + name.len() as u8, name.len() as u8]);
    wasm.extend(name.as_bytes());
    wasm
}

/// Does it to one of the plugins, whose files these are.
pub fn to_plugins(paths: &[PathBuf; 2], step: &Step) -> Option<Loss> {
    let which = step.choice / 8 % PLUGINS.len();
    let (path, good) = (paths[which].as_path(), version(PLUGINS[which], step.choice % 8));
    match step.fault {
        Fault::PluginBad => {
            let bad =
                [b"no component".as_slice(), b"\0asm\x0d\0\x01\0", &good[..200]][step.choice % 3].to_vec();
            write_whole(path, &bad);
            std::thread::sleep(step.lasts);
            write_whole(path, &good);
        }
        Fault::PluginHalfWritten => {
            std::fs::write(path, &good[..good.len() / 2]).expect("write half a plugin");
            std::thread::sleep(step.lasts);
            std::fs::write(path, &good).expect("write a plugin");
        }
        Fault::PluginRemoved => {
            std::fs::remove_file(path).expect("remove a plugin");
            std::thread::sleep(step.lasts);
            write_whole(path, &good);
        }
        _ => write_whole(path, &good),
    }
    None
}

/// As a careful operator does.
fn write_whole(path: &Path, bytes: &[u8]) {
    let new = path.with_extension("new");
    std::fs::write(&new, bytes).expect("write a file");
    std::fs::rename(new, path).expect("rename a file");
}
