//! Teams with other task queues move in, and their producers stay as they are: the examples of Celery and
//! Sidekiq, with the real clients of both.
//!
//! In: the examples; a producer and an application for each, which are programs of their own. Out: what
//! becomes of each task, in the eyes of the team's client and of tqhost.

mod celery;
mod sidekiq;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::support::application::SECRET;
use super::support::{Bench, Host};

/// A folder of the repository.
fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// A program of the team that answers lines of JSON. It ends when it is dropped.
struct Program {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Program {
    fn start(command: &mut Command) -> Program {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start a program");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Program { child, output }
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("read a line");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line:?}"))
    }

    fn call(&mut self, call: &Value) -> Value {
        let input = self.child.stdin.as_mut().expect("a pipe");
        writeln!(input, "{call}").expect("write a call");
        self.line()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A system that has moved in: its producer, its application, and the configuration of its example.
struct System {
    // They end before their Redis does.
    producer: Program,
    _application: Program,
    bench: Bench,
}

impl System {
    /// `command` makes the command of a program of the team.
    fn start(example: &str, programs: [Command; 2], changes: &[(&str, &str)]) -> System {
        let bench = Bench::new("");
        bench.install("http-call", "http-call");
        let [producer, application] = programs.map(|mut command| {
            command.env("REDIS_URL", bench.redis.url()).env("WEBHOOK_SECRET", SECRET).env("PORT", "0");
            let log = bench.dir.path().join("programs.log");
            command.stderr(File::options().create(true).append(true).open(log).expect("a file"));
            Program::start(&mut command)
        });
        let mut system = System { producer, _application: application, bench };
        let listens = system._application.line()["port"].as_str().expect("a port").to_owned();
        let redis = system.bench.redis.url();
        let (address, secret) = (format!("127.0.0.1:{listens}"), format!("\"{SECRET}\""));
        let mut text = format!("{example}\n[admin]\nlisten = \"127.0.0.1:0\"\n");
        let all = [
            ("redis://127.0.0.1:6379", &*redis),
            ("../../plugins", "plugins"),
            ("127.0.0.1:3000", &address),
            ("{ env = \"WEBHOOK_SECRET\" }", &secret),
            ("for = \"30s\"", "for = \"1s\""),
        ];
        for (theirs, ours) in all.iter().chain(changes) {
            assert!(text.contains(theirs), "{theirs}");
            text = text.replace(theirs, ours);
        }
        system.bench.configure(&text);
        system
    }

    /// Starts a host that serves the queues.
    fn host(&self) -> Host {
        let host = self.bench.host();
        host.until_ready();
        host
    }

    fn status(&self, queue: &str, id: &str) -> Value {
        self.bench.tqhost(&["status", queue, id, "--json"]).ok().json()
    }
}
