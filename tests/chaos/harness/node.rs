//! A host that is started, killed and started again.
//!
//! In: a configuration. Out: the host's processes, a log file for each, and what the host did wrong. Logs are
//! files, not pipes, so that they stay as evidence. Not here: when it is killed (`plan`, `faults`).

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::{Host, eventually, http};

/// How long a host may take to end after SIGTERM. Its grace period is 2 seconds, the timeout of a call to
/// Redis ten.
const END: Duration = Duration::from_secs(60);
/// The pause between two checks whether it still runs.
const LOOK: Duration = Duration::from_millis(100);

pub struct Node {
    pub number: usize,
    config: PathBuf,
    logs: PathBuf,
    child: Child,
    /// The ids of all processes of this host.
    pub pids: Vec<u32>,
    /// Starts that failed because Redis was not there.
    pub refused: u64,
    /// The errors of the host.
    pub wrong: Vec<String>,
}

impl Node {
    pub fn start(number: usize, config: PathBuf, logs: &Path) -> Node {
        let child = spawn(&config, &log_file(logs, number, 0));
        let pids = vec![child.id()];
        Node { number, config, logs: logs.to_owned(), child, pids, refused: 0, wrong: Vec::new() }
    }

    /// Starts the host again. It has to have ended.
    pub fn start_again(&mut self) {
        self.child = spawn(&self.config, &log_file(&self.logs, self.number, self.pids.len()));
        self.pids.push(self.child.id());
    }

    /// Starts the host again if it ended by itself. That is wrong, unless it found no Redis at its start.
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

    /// Waits for this time, and starts the host again whenever it ends by itself.
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

    /// Stops the host with SIGTERM.
    pub fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        let asked = Instant::now();
        loop {
            match self.child.try_wait().expect("look after a host") {
                Some(status) if status.success() => return,
                // Before it runs, a host has no tasks, and may not yet listen to signals.
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

    /// Waits until `/readyz` says that the host is ready.
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

    /// The log line with which the host says that it runs.
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
