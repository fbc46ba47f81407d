//! One place for a host: started, killed and started again, with its log in files.
//!
//! The logs are files and not pipes, so that many starts cost nothing while they run and are there as evidence afterwards.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::{Host, eventually, http};

/// How long a host may take to end when it is asked to. Its grace period is a few seconds, a call to Redis ten.
const END: Duration = Duration::from_secs(60);
/// How often it is looked after.
const LOOK: Duration = Duration::from_millis(100);

pub struct Node {
    pub number: usize,
    config: PathBuf,
    logs: PathBuf,
    child: Child,
    /// Every process that ran here.
    pub pids: Vec<u32>,
    /// Starts that failed because Redis was not there: whoever looks after it starts it again.
    pub refused: u64,
    /// What it did that it should not.
    pub wrong: Vec<String>,
}

impl Node {
    pub fn start(number: usize, config: PathBuf, logs: &Path) -> Node {
        let child = spawn(&config, &log_file(logs, number, 0));
        let pids = vec![child.id()];
        Node { number, config, logs: logs.to_owned(), child, pids, refused: 0, wrong: Vec::new() }
    }

    /// Starts it anew. It has ended before.
    pub fn start_again(&mut self) {
        self.child = spawn(&self.config, &log_file(&self.logs, self.number, self.pids.len()));
        self.pids.push(self.child.id());
    }

    /// Starts it again if it ended though nobody asked it to. It may before it runs, when Redis is not there.
    pub fn look_after(&mut self) {
        if let Some(status) = self.child.try_wait().expect("look after a host") {
            if status.code() == Some(1) && !self.has_run() {
                self.refused += 1;
            } else {
                self.wrong.push(format!(
                    "host {} (start {}) ended by itself: {status}",
                    self.number,
                    self.pids.len() - 1
                ));
            }
            self.start_again();
        }
    }

    /// Looks after it for so long.
    pub fn rest(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while let left = end.saturating_duration_since(Instant::now())
            && !left.is_zero()
        {
            self.look_after();
            std::thread::sleep(left.min(LOOK));
        }
        self.look_after();
    }

    pub fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.child.id().try_into().expect("a pid")), signal);
    }

    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        let _ = self.child.wait();
    }

    /// Ends it as an operator would.
    pub fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        let asked = Instant::now();
        loop {
            match self.child.try_wait().expect("look after a host") {
                Some(status) if status.success() => return,
                // Before it listens to signals it has nothing in hand.
                Some(status)
                    if !self.has_run()
                        && (status.signal() == Some(Signal::SIGTERM as i32) || status.code() == Some(1)) =>
                {
                    return;
                }
                Some(status) => {
                    return self
                        .wrong
                        .push(format!("host {} ended with {status} after SIGTERM", self.number));
                }
                None if asked.elapsed() > END => {
                    self.wrong.push(format!("host {} did not end within {END:?} of SIGTERM", self.number));
                    return self.kill();
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Waits until it says that it is ready.
    pub fn until_ready(&mut self) {
        eventually("a host says that it is ready", || {
            self.look_after();
            let running = self.running()?;
            (http::get(running["admin"].as_str()?, "/readyz").status == 200).then_some(())
        });
    }

    fn has_run(&self) -> bool {
        self.running().is_some()
    }

    /// What it said when it ran.
    fn running(&self) -> Option<Value> {
        let text = fs::read(log_file(&self.logs, self.number, self.pids.len() - 1)).ok()?;
        let text = String::from_utf8_lossy(&text);
        text.lines()
            .find(|line| line.contains("tqhost is running"))
            .and_then(|line| serde_json::from_str(line).ok())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

fn log_file(logs: &Path, number: usize, start: usize) -> PathBuf {
    logs.join(format!("host-{number}-{start:03}.log"))
}

fn spawn(config: &Path, log: &Path) -> Child {
    let log = File::create(log).expect("create a log");
    Host::command(config).stdin(Stdio::null()).stderr(log).spawn().expect("start tqhost")
}
