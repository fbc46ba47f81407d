//! A test's workbench: a folder with a configuration and plugins, a Redis, hosts and commands that use them.
//!
//! In: queues as TOML, guests to install, commands. Out: what Redis, hosts and commands show. What a
//! [`Bench`] or a [`Host`] started ends when it is dropped. Not here: starting redis-server (`redis_server`),
//! waiting (`wait`).

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redis::{Connection, FromRedisValue, ToRedisArgs};
use serde_json::Value;

use super::compiled::Compiled;
use super::http::{self, Response};
use super::proxy::Proxy;
use super::{RedisServer, eventually, slow, timing, wait, wat};

/// The folder, the Redis and a connection to it for one test.
pub struct Bench {
    compiled: Compiled,
    /// Between the hosts and Redis, in the slow mode.
    slow: Option<Proxy>,
    pub dir: tempfile::TempDir,
    pub redis: RedisServer,
    pub db: Connection,
}

/// Counts all places in which a task can be at one moment: a task that moves between two separate commands
/// would be seen in neither place. It is a script, since Redis refuses transactions when its memory is full.
const PLACES: &str = "local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1])
    return { redis.call('XLEN', KEYS[1]), pending.err and 0 or pending[1], redis.call('ZCARD', KEYS[2]), \
     redis.call('HLEN', KEYS[3]), KEYS[4] and redis.call('XLEN', KEYS[4]) or 0 }";

impl Bench {
    /// A Redis and a configuration with these queues (TOML, without `[redis]` and `[admin]`). The plugins
    /// folder is empty.
    pub fn new(queues: &str) -> Bench {
        Bench::with_redis(queues, &[])
    }

    /// Like [`Bench::new`], with further arguments for redis-server.
    pub fn with_redis(queues: &str, redis_args: &[&str]) -> Bench {
        let dir = tempfile::tempdir().expect("create a folder");
        let redis = RedisServer::start(dir.path(), redis_args);
        Bench::on(queues, dir, redis)
    }

    /// Like [`Bench::new`], with a Redis that is running and a folder.
    pub fn on(queues: &str, dir: tempfile::TempDir, redis: RedisServer) -> Bench {
        timing::note();
        let db = redis.connection();
        std::fs::create_dir(dir.path().join("plugins")).expect("create plugins/");
        let (compiled, slow) = (Compiled::new(dir.path()), slow::proxy(redis.port));
        let bench = Bench { compiled, slow, dir, redis, db };
        bench.configure_for(queues, bench.redis.port);
        bench
    }

    /// Configures a Redis on this port of this machine, usually a proxy's, for hosts and commands that start
    /// from now on. In the slow mode the port of the bench's Redis stands for a proxy.
    pub fn configure_for(&self, queues: &str, port: u16) {
        let slow = self.slow.as_ref().filter(|_| port == self.redis.port);
        let port = slow.map_or(port, |proxy| proxy.port);
        self.configure_url(queues, &format!("redis://127.0.0.1:{port}"));
    }

    /// Like [`Bench::configure_for`], with a whole URL.
    pub fn configure_url(&self, queues: &str, url: &str) {
        self.configure(&format!("{queues}\n[redis]\nurl = \"{url}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n"));
    }

    /// Replaces the whole configuration file.
    pub fn configure(&self, text: &str) {
        std::fs::write(self.config(), text).expect("write the configuration");
    }

    pub fn config(&self) -> PathBuf {
        self.dir.path().join("tqhost.toml")
    }

    pub fn plugin_path(&self, plugin: &str) -> PathBuf {
        self.dir.path().join("plugins").join(format!("{plugin}.wasm"))
    }

    /// Installs the guest as the plugin of this name, by renaming.
    pub fn install(&self, guest: &str, plugin: &str) {
        let target = self.plugin_path(plugin);
        let new = target.with_extension("new");
        let source = guest_path(guest);
        self.compiled.give(&source);
        std::fs::copy(source, &new).expect("copy a guest");
        std::fs::rename(new, target).expect("rename a guest");
    }

    /// Starts a host and waits until it runs.
    pub fn host(&self) -> Host {
        let host = self.host_that_may_fail();
        host.log("tqhost is running");
        host
    }

    /// Starts a host, and waits for nothing.
    pub fn host_that_may_fail(&self) -> Host {
        Host::start(&self.config(), "info,tqhost=debug")
    }

    /// Starts a host with additions to its environment, and waits for nothing.
    pub fn host_with_env(&self, env: Vec<(String, PathBuf)>) -> Host {
        Host::start_with_env(&self.config(), "info,tqhost=debug", env)
    }

    /// Runs a command of tqhost with this configuration.
    pub fn tqhost(&self, args: &[&str]) -> Ran {
        tqhost(&self.config(), args)
    }

    /// Sends any command to Redis.
    pub fn redis<T: FromRedisValue>(&mut self, name: &str, args: impl ToRedisArgs) -> T {
        redis::cmd(name).arg(args).query(&mut self.db).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Adds a task as a producer does that knows only XADD. Gives the entry's id, which is the task's.
    pub fn xadd(&mut self, stream: &str, fields: &[(&str, &str)]) -> String {
        let mut command = redis::cmd("XADD");
        command.arg(stream).arg("*");
        for (name, value) in fields {
            command.arg(name).arg(value);
        }
        command.query(&mut self.db).expect("XADD")
    }

    /// One field of a task's status; empty when it is not there.
    pub fn status(&mut self, stream: &str, id: &str, field: &str) -> String {
        let value: Option<String> = self.redis("HGET", (format!("tq:{{{stream}}}:task:{id}"), field));
        value.unwrap_or_default()
    }

    /// Waits until a task has this status. If it does not come, the panic tells where the task is.
    #[track_caller]
    pub fn until(&mut self, stream: &str, id: &str, status: &str) {
        let end = Instant::now() + wait::LIMIT;
        while self.status(stream, id, "status") != status {
            if Instant::now() >= end {
                let found: Vec<String> = self.redis("HGETALL", format!("tq:{{{stream}}}:task:{id}"));
                let places = self.places(stream);
                panic!("{id} of {stream} does not become {status}: {found:?}, {places:?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Queued, pending, delayed and dead tasks of a stream with the group `tqhost`.
    pub fn places(&mut self, stream: &str) -> Places {
        self.count_places(stream, &["delayed", "parked", "dead"])
    }

    /// Like [`Bench::places`], without the dead letters.
    pub fn places_but_dead(&mut self, stream: &str) -> Places {
        self.count_places(stream, &["delayed", "parked"])
    }

    fn count_places(&mut self, stream: &str, beside: &[&str]) -> Places {
        let keys: Vec<String> = beside.iter().map(|place| format!("tq:{{{stream}}}:{place}")).collect();
        let (length, pending, delayed, parked, dead) =
            self.redis("EVAL", (PLACES, 1 + keys.len(), stream, keys, "tqhost"));
        Places { length, pending, delayed, parked, dead }
    }

    /// The dead letters of a stream, oldest first, each with its fields by name.
    pub fn dead(&mut self, stream: &str) -> Vec<HashMap<String, String>> {
        let entries: Vec<(String, Vec<String>)> =
            self.redis("XRANGE", (format!("tq:{{{stream}}}:dead"), "-", "+"));
        entries
            .into_iter()
            .map(|(_, fields)| fields.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
            .collect()
    }

    /// Waits until this many tasks of a stream are claimed.
    #[track_caller]
    pub fn until_pending(&mut self, stream: &str, pending: u64) {
        eventually(&format!("{pending} tasks of {stream} are claimed"), || {
            (self.places(stream).pending == pending).then_some(())
        });
    }

    /// Waits until this many tasks of a stream are claimed and marked as running. A claimed task is marked a
    /// moment later.
    #[track_caller]
    pub fn until_running(&mut self, stream: &str, running: usize) {
        eventually(&format!("{running} tasks of {stream} run"), || {
            let pending: Vec<(String, String, u64, u64)> =
                self.redis("XPENDING", (stream, "tqhost", "-", "+", 1000));
            let begun =
                pending.iter().filter(|(id, ..)| self.status(stream, id, "status") == "PROCESSING").count();
            (begun == running && pending.len() == running).then_some(())
        });
    }

    /// Waits until the stream's tasks are in no place, and asserts that each of `ids` was completed.
    #[track_caller]
    pub fn all_done(&mut self, stream: &str, ids: &[String]) {
        self.db = self.redis.connection();
        self.until_drained(stream);
        for id in ids {
            assert_eq!(self.status(stream, id, "status"), "COMPLETED", "{id}");
        }
        assert_eq!(self.places(stream), Places::default());
    }

    /// Waits until nothing is queued, running or delayed.
    #[track_caller]
    pub fn until_drained(&mut self, stream: &str) {
        eventually(&format!("{stream} is drained"), || {
            let Places { length, pending, delayed, parked, .. } = self.places(stream);
            ((length, pending, delayed, parked) == (0, 0, 0, 0)).then_some(())
        });
    }
}

/// Where a queue's tasks are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Places {
    /// Queued and running.
    pub length: u64,
    pub pending: u64,
    pub delayed: u64,
    pub parked: u64,
    pub dead: u64,
}

/// The file of a guest of `plugins/testing`, or of a handler in `plugins`. Builds guests that are written as
/// `.wat`.
pub fn guest_path(guest: &str) -> PathBuf {
    let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins");
    let places = [plugins.join("testing"), plugins].map(|dir| dir.join(format!("{guest}.wasm")));
    let source = places[0].with_extension("wat");
    if source.is_file() {
        wat::build(&source, &places[0]);
    }
    let found = places.iter().find(|path| path.is_file());
    found.cloned().unwrap_or_else(|| panic!("{guest}.wasm is not built: run `make plugins`"))
}

/// The output and the exit code of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    #[track_caller]
    pub fn ok(self) -> Ran {
        self.ends_with(0)
    }

    #[track_caller]
    pub fn ends_with(self, code: i32) -> Ran {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("not JSON ({error}): {self:#?}"))
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8 output");
        Ran { code: code(output.status), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// The variable that names the user's caches.
pub const CACHES: &str = "XDG_CACHE_HOME";

/// The user's caches, for a host with this configuration and its commands.
pub fn caches(config: &Path) -> PathBuf {
    config.with_file_name("caches")
}

/// Runs a command of tqhost.
pub fn tqhost(config: &Path, args: &[&str]) -> Ran {
    timing::note();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tqhost"));
    command.arg("--config").arg(config).args(args).stdin(Stdio::null()).env_remove("TQHOST_LOG");
    command.env(CACHES, caches(config));
    command.output().expect("run tqhost").into()
}

/// The lines, each of them some time after it was written in the slow mode. The host is never held up.
fn late(lines: impl Iterator<Item = String> + Send + 'static) -> Box<dyn Iterator<Item = String> + Send> {
    let Some(mut delay) = slow::lines() else { return Box::new(lines) };
    let (sender, late) = channel();
    std::thread::spawn(move || {
        for line in lines {
            let _ = sender.send((Instant::now() + delay(), line));
        }
    });
    Box::new(late.into_iter().map(|(due, line)| {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        line
    }))
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or(-1)
}

/// The log of a host so far. While the host runs, a line may come later than its effect in Redis or over
/// HTTP. A test that counts lines, or asserts that there is none, uses the log of a host that has ended
/// ([`Host::stop_for_log`]).
pub struct Log {
    lines: Receiver<Value>,
    seen: Mutex<Vec<Value>>,
    raw: Arc<Mutex<String>>,
}

impl Log {
    /// The lines whose message contains `text`.
    pub fn logged(&self, text: &str) -> Vec<Value> {
        let mut seen = self.seen.lock().expect("the log");
        seen.extend(self.lines.try_iter());
        seen.iter()
            .filter(|line| line["message"].as_str().is_some_and(|message| message.contains(text)))
            .cloned()
            .collect()
    }

    /// The whole text, with lines that are not JSON.
    pub fn raw(&self) -> String {
        self.raw.lock().expect("the log").clone()
    }
}

/// A running host. Killed when dropped.
pub struct Host {
    child: Child,
    log: Option<Log>,
    /// The thread that reads the log; it ends with the host's last line.
    reader: Option<JoinHandle<()>>,
    /// Where it listens, once it has said so.
    admin: OnceLock<String>,
}

impl Host {
    /// `log` is the value of `TQHOST_LOG`.
    pub fn start(config: &Path, log: &str) -> Host {
        let mut command = Host::command(config);
        command.env("TQHOST_LOG", log);
        Host::spawn(command)
    }

    fn start_with_env(config: &Path, log: &str, env: Vec<(String, PathBuf)>) -> Host {
        let mut command = Host::command(config);
        command.env("TQHOST_LOG", log).envs(env);
        Host::spawn(command)
    }

    /// The command that starts a host, for a test that changes something about it.
    pub fn command(config: &Path) -> Command {
        // Tests run at the same time: two hosts on the default port are one too many.
        let text = std::fs::read_to_string(config).unwrap_or_default();
        assert!(!text.contains("[redis]") || text.contains("listen = "), "admin.listen is not in\n{text}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tqhost"));
        command
            .arg("--config")
            .arg(config)
            .args(["run", "--log-format", "json"])
            .env(CACHES, caches(config))
            .env("TQHOST_LOG", "info,tqhost=debug");
        command
    }

    /// Starts a host, and waits for nothing.
    pub fn spawn(mut command: Command) -> Host {
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("start tqhost");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let (sender, lines) = channel();
        let raw = Arc::new(Mutex::new(String::new()));
        let kept = raw.clone();
        let written = late(stderr.lines().map_while(Result::ok));
        let reader = std::thread::spawn(move || {
            for line in written {
                kept.lock().expect("the log").push_str(&format!("{line}\n"));
                if let Ok(json) = serde_json::from_str(&line) {
                    let _ = sender.send(json);
                }
            }
        });
        let log = Log { lines, seen: Mutex::default(), raw };
        Host { child, log: Some(log), reader: Some(reader), admin: OnceLock::new() }
    }

    /// Waits for a log line whose message contains `text`, and returns it. Earlier lines count too. Fails at
    /// once when the host has ended without it.
    #[track_caller]
    pub fn log(&self, text: &str) -> Value {
        eventually(&format!("a log line with {text:?}; the log:\n{}", self.raw()), || {
            let ended = self.reader.as_ref().is_none_or(JoinHandle::is_finished);
            let found = self.logged(text).into_iter().next();
            assert!(found.is_some() || !ended, "the log ended without {text:?}:\n{}", self.raw());
            found
        })
    }

    /// The log lines so far whose message contains `text`.
    pub fn logged(&self, text: &str) -> Vec<Value> {
        self.log.as_ref().expect("a log").logged(text)
    }

    /// Waits until exactly this many lines have a message that contains `text`. Fails at once when there are
    /// more.
    #[track_caller]
    pub fn until_logged(&self, text: &str, lines: usize) -> Vec<Value> {
        eventually(&format!("{lines} log lines with {text:?}"), || {
            let found = self.logged(text);
            assert!(found.len() <= lines, "more than {lines} lines with {text:?}: {found:#?}");
            (found.len() == lines).then_some(found)
        })
    }

    /// The whole log so far.
    pub fn raw(&self) -> String {
        self.log.as_ref().expect("a log").raw()
    }

    /// Sends a GET request to the admin address.
    pub fn get(&self, path: &str) -> Response {
        http::get(self.admin(), path)
    }

    /// The address of its API.
    pub fn admin(&self) -> &str {
        // A log may have megabytes, and a test may ask a thousand times: the log is searched once.
        let said = || self.log("tqhost is running")["admin"].as_str().expect("the admin address").to_owned();
        self.admin.get_or_init(said)
    }

    /// Waits until `/readyz` says that the host is ready.
    #[track_caller]
    pub fn until_ready(&self) {
        eventually("/readyz says 200", || (self.get("/readyz").status == 200).then_some(()));
    }

    /// Waits until `/readyz` says that the host is not ready, with a reason that contains `why`.
    #[track_caller]
    pub fn until_unready(&self, why: &str) {
        let unready = |answer: &Response| {
            answer.status == 503 && answer.body.to_lowercase().contains(&why.to_lowercase())
        };
        eventually(&format!("/readyz says {why:?}"), || unready(&self.get("/readyz")).then_some(()));
    }

    /// How many attempts of a queue ended with this outcome, by this host's count.
    pub fn ended_as(&self, queue: &str, outcome: &str) -> u64 {
        self.metric(&format!("tqhost_tasks_total{{queue=\"{queue}\",outcome=\"{outcome}\"}}")) as u64
    }

    /// Waits until this many attempts have ended with this outcome. The host counts an end a moment after
    /// Redis shows it.
    #[track_caller]
    pub fn until_ended_as(&self, queue: &str, outcome: &str, tasks: u64) {
        self.until_metric(&format!("tqhost_tasks_total{{queue=\"{queue}\",outcome=\"{outcome}\"}}"), tasks);
    }

    /// Waits until a counter of a queue has this value.
    #[track_caller]
    pub fn until_count(&self, name: &str, queue: &str, value: u64) {
        self.until_metric(&format!("{name}{{queue=\"{queue}\"}}"), value);
    }

    /// Waits until a series has this value. Fails at once when it is greater.
    #[track_caller]
    pub fn until_metric(&self, series: &str, value: u64) {
        let mut found = 0;
        eventually(&format!("{series} is {value}"), || {
            found = self.metric(series) as u64;
            assert!(found <= value, "{series} is {found}, more than {value}");
            (found == value).then_some(())
        });
    }

    /// The value of a counter of a queue.
    pub fn count(&self, name: &str, queue: &str) -> u64 {
        self.metric(&format!("{name}{{queue=\"{queue}\"}}")) as u64
    }

    /// The value of a series, such as `tqhost_tasks_total{queue="q",outcome="completed"}`. The order of the
    /// labels does not matter.
    pub fn metric(&self, series: &str) -> f64 {
        let text = self.get("/metrics").body;
        let (name, labels) = series.trim_end_matches('}').split_once('{').unwrap_or((series, ""));
        let labels: Vec<&str> = labels.split(',').filter(|label| !label.is_empty()).collect();
        let found = text.lines().find(|line| {
            let Some((head, _)) = line.rsplit_once(' ') else { return false };
            let (line_name, line_labels) = head.trim_end_matches('}').split_once('{').unwrap_or((head, ""));
            line_name == name
                && labels.iter().all(|label| line_labels.split(',').any(|known| known == *label))
        });
        let line = found.unwrap_or_else(|| panic!("no series {series} in\n{text}"));
        line.rsplit_once(' ').and_then(|(_, value)| value.parse().ok()).expect("a number")
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().expect("a pid"))
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("send a signal");
    }

    /// The memory that the host uses now, and the most that it has used, in KiB.
    pub fn memory(&self) -> (u64, u64) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("read /proc");
        let value = |name| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap_or_else(|| panic!("no {name} in {status}"));
            line.trim().trim_end_matches(" kB").parse().expect("a number")
        };
        (value("VmRSS:"), value("VmHWM:"))
    }

    /// Whether the host has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("look after the host").is_some()
    }

    /// Waits until the host has ended, and gives its exit code (-1 when a signal ended it). Its log is
    /// complete then.
    #[track_caller]
    pub fn ended(&mut self) -> i32 {
        let code = eventually("the host ends", || self.try_ended());
        self.reader.take().map(JoinHandle::join).transpose().expect("read the log");
        assert!([0, -1, 1, 78].contains(&code), "{code}: {}", self.raw());
        code
    }

    /// The exit code, if the host has ended.
    pub fn try_ended(&mut self) -> Option<i32> {
        self.child.try_wait().expect("look after the host").map(code)
    }

    /// Stops the host with SIGTERM and waits until it has ended.
    #[track_caller]
    pub fn stop(self) {
        self.stop_for_log();
    }

    /// Stops the host with SIGTERM, and gives its complete log.
    #[track_caller]
    pub fn stop_for_log(self) -> Log {
        self.signal(Signal::SIGTERM);
        self.stopped()
    }

    /// Stops hosts with SIGTERM, all at the same time: each of them waits for its last read, for up to a
    /// second.
    #[track_caller]
    pub fn stop_all(hosts: impl IntoIterator<Item = Host>) {
        let hosts: Vec<Host> = hosts.into_iter().collect();
        hosts.iter().for_each(|host| host.signal(Signal::SIGTERM));
        for host in hosts {
            host.stopped();
        }
    }

    /// Waits until a host that was told to stop has ended, and gives its complete log.
    #[track_caller]
    fn stopped(mut self) -> Log {
        assert_eq!(self.ended(), 0, "{}", self.raw());
        self.log.take().expect("a log")
    }

    /// Kills the host with SIGKILL, as a crash would.
    pub fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        self.ended();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(log) = self.log.as_ref().filter(|_| std::thread::panicking()) {
            eprintln!("the log of host {}:\n{}", self.child.id(), log.raw());
        }
    }
}
