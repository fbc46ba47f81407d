//! Carries out the plan of faults, each lane in a thread of its own.
//!
//! In: the steps of a lane, and the host, proxy, Redis or plugins that it breaks. Out: what was done and
//! when, by the clock of this machine, which is also Redis's. A lane repairs what it broke before it ends.
//! Not here: the plan (`plan`).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use tqhost::testing::queue::script;

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
    /// Only writes that Redis acknowledged in this time may be lost.
    pub loss: Option<Loss>,
}

/// The begin and the end of a time, in milliseconds.
pub type Loss = (u64, u64);

pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Carries out the steps of a lane. It begins none after `until`.
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

/// Carries out the steps of a host's lane, and restarts the host if it ends by itself between them.
pub fn run_on_host(lane: Lane, steps: &[Step], until: Instant, node: &mut Node) -> Vec<Done> {
    let one = |step: &Step| {
        node.rest(step.quiet);
        note(lane, step, |step| {
            to_host(node, step);
            None
        })
    };
    // The plan does not know how long a host takes to stop, so the time is checked here.
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
    let calls = [
        &script::SETTLE,
        &script::BEGIN,
        &script::PROMOTE,
        &script::HEARTBEAT,
        &script::RECLAIM,
        &script::CLAIM,
    ];
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

/// Carries out a fault of Redis, and gives the time whose writes it may have lost. A failover needs `pair`.
pub fn to_redis(
    redis: &mut RedisServer,
    pair: Option<&Pair>,
    proxies: &[Proxy],
    url: &str,
    step: &Step,
) -> Option<Loss> {
    // On a new connection: CLIENT KILL would close one that is kept.
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
        _ => {
            ask(redis::cmd("SCRIPT").arg("FLUSH"));
            ask(redis::cmd("FUNCTION").arg("FLUSH"));
        }
    }
    None
}

/// A time, and the length of the append-only file with every write that was acknowledged before it. With a
/// busy disk, Redis answers before it writes.
fn written(redis: &RedisServer) -> (u64, u64) {
    let mut db = redis.connection();
    eventually("Redis has written what it acknowledged", || {
        let at_ms = now_ms();
        let info: String = redis::cmd("INFO").arg("persistence").query(&mut db).ok()?;
        let length = std::fs::metadata(redis.append_only_file()).expect("the append-only file").len();
        info.contains("aof_buffer_length:0\r").then_some((at_ms, length))
    })
}

/// The handler with a custom section: another digest, the same work.
fn version(plugin: &str, number: usize) -> Vec<u8> {
    let mut wasm = std::fs::read(guest_path(plugin)).expect("read a handler");
    let name = format!("v{number:04}");
    wasm.extend([0, 1 + name.len() as u8, name.len() as u8]);
    wasm.extend(name.as_bytes());
    wasm
}

/// Carries out a fault on one of the plugins with these files.
pub fn to_plugins(paths: &[PathBuf; 3], step: &Step) -> Option<Loss> {
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

/// Installs a file by renaming, as operators should.
fn write_whole(path: &Path, bytes: &[u8]) {
    let new = path.with_extension("new");
    std::fs::write(&new, bytes).expect("write a file");
    std::fs::rename(new, path).expect("rename a file");
}
