//! A redis-server for one test.
//!
//! In: a folder, and further arguments. Out: a server with a port, a socket and an append-only file. It ends
//! when it is dropped. Not here: what is in it (`bench`).

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::eventually;

/// The configuration of a Sentinel, which it writes, too.
const SENTINEL: &str = "sentinel.conf";

/// A running redis-server on a TCP port and a Unix socket, with an append-only file.
pub struct RedisServer {
    child: Child,
    dir: PathBuf,
    pub port: u16,
    bus: u16,
    extra: Vec<String>,
    env: Vec<(String, PathBuf)>,
}

impl RedisServer {
    /// Starts a server whose files are under `dir`. `extra` are further arguments, in which `{port}` stands
    /// for the port, and `{bus}` for another one that is free.
    pub fn start(dir: &Path, extra: &[&str]) -> RedisServer {
        RedisServer::start_with_env(dir, extra, Vec::new())
    }

    /// Like [`RedisServer::start`], with additions to its environment.
    pub fn start_with_env(dir: &Path, extra: &[&str], env: Vec<(String, PathBuf)>) -> RedisServer {
        let dir = dir.join("redis");
        std::fs::create_dir_all(&dir).expect("create the folder of redis-server");
        let extra: Vec<String> = extra.iter().map(ToString::to_string).collect();
        // Another process may take the free port before redis-server does. Then the server ends, and another
        // port is tried.
        for _ in 0..20 {
            let (port, bus) = (free_port(), free_port());
            let words =
                |word: &String| word.replace("{port}", &port.to_string()).replace("{bus}", &bus.to_string());
            let extra: Vec<String> = extra.iter().map(words).collect();
            let child = spawn(&dir, port, &extra, &env);
            let mut server = RedisServer { child, dir: dir.clone(), port, bus, extra, env: env.clone() };
            if server.answers() {
                return server;
            }
        }
        panic!(
            "redis-server does not start: {}",
            std::fs::read_to_string(dir.join("log")).unwrap_or_default()
        );
    }

    /// Starts a Sentinel that watches a server.
    pub fn sentinel(dir: &Path, watched: &RedisServer) -> RedisServer {
        std::fs::create_dir_all(dir.join("redis")).expect("create the folder of the Sentinel");
        let text = format!("sentinel monitor main 127.0.0.1 {} 1\n", watched.port);
        std::fs::write(dir.join("redis").join(SENTINEL), text).expect("write its configuration");
        RedisServer::start(dir, &["--sentinel"])
    }

    /// The port on which the nodes of a cluster speak to each other.
    pub fn bus(&self) -> u16 {
        self.bus
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A connection through the Unix socket.
    pub fn connection(&self) -> redis::Connection {
        let client =
            redis::Client::open(format!("redis+unix://{}", self.socket().display())).expect("a valid URL");
        eventually("redis-server takes a connection", || client.get_connection().ok())
    }

    /// Stops the server with SIGTERM; its data stays.
    pub fn stop(&mut self) {
        self.end(Signal::SIGTERM);
    }

    /// Kills the server with SIGKILL. Data that it wrote to the operating system stays.
    pub fn kill(&mut self) {
        self.end(Signal::SIGKILL);
    }

    /// The append-only file. A replica begins a new one after its first synchronization with the primary.
    pub fn append_only_file(&self) -> PathBuf {
        let file = |number: u32| self.dir.join(format!("appendonlydir/appendonly.aof.{number}.incr.aof"));
        (2..5).rev().map(file).find(|path| path.exists()).unwrap_or_else(|| file(1))
    }

    /// Starts the server again on the same port, with the same data.
    pub fn start_again(&mut self) {
        self.child = spawn(&self.dir, self.port, &self.extra, &self.env);
        assert!(self.answers(), "redis-server does not start again");
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().expect("a pid"))
    }

    /// The folder of its files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("s")
    }

    /// Waits until the server answers. False when it has ended instead.
    fn answers(&mut self) -> bool {
        let client =
            redis::Client::open(format!("redis+unix://{}", self.socket().display())).expect("a valid URL");
        eventually("redis-server answers, or ends", || {
            if self.child.try_wait().expect("look after redis-server").is_some() {
                return Some(false);
            }
            let mut connection = client.get_connection().ok()?;
            // A server that loads its data answers LOADING, which does not count. One that asks for a
            // password does.
            let reply: redis::RedisResult<String> = redis::cmd("PING").query(&mut connection);
            match reply {
                Ok(_) => Some(true),
                Err(error) if matches!(error.code(), Some("NOAUTH")) => Some(true),
                Err(_) => None,
            }
        })
    }

    fn end(&mut self, signal: Signal) {
        let _ = kill(self.pid(), signal);
        let _ = self.child.wait();
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.end(Signal::SIGKILL);
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.expect("find a free port").port()
}

fn spawn(dir: &Path, port: u16, extra: &[String], env: &[(String, PathBuf)]) -> Child {
    let log = std::fs::File::create(dir.join("log")).expect("create the log of redis-server");
    let mut command = Command::new("redis-server");
    if extra.iter().any(|word| word == "--sentinel") {
        command.arg(dir.join(SENTINEL));
    }
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--unixsocket"]).arg(dir.join("s"));
    command.arg("--dir").arg(dir).args([
        "--appendonly",
        "yes",
        "--appendfsync",
        "everysec",
        "--save",
        "",
        "--enable-debug-command",
        "yes",
    ]);
    command.args(extra).envs(env.iter().cloned()).stdin(Stdio::null()).stdout(log);
    command.spawn().expect("start redis-server: is it installed? (`make setup`)")
}

/// Whether an error of Redis says that a right is missing. Each of its versions has words of its own.
pub fn denies(error: &str) -> bool {
    let error = error.to_lowercase();
    ["permissions", "can't access", "can't run this command"].iter().any(|words| error.contains(words))
}
