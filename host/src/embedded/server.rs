//! The process of the private Redis, and the thread that owns it.
//!
//! In: what to launch. Out: a process that runs until [`Server::stop`] or the end of the host.
//!
//! The kernel ends the process when the thread that spawned it ends ("parent death signal"), which also a
//! `kill -9` of the host causes. So one thread spawns the process, waits for its end and spawns it again,
//! until [`Server::stop`].

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, getppid};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::clock::ms;
use crate::guarded::Guarded;

const STOP_TIMEOUT: Duration = Duration::from_secs(15);
const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(10);
/// After a server has run for this long, the delay before its next start is [`FIRST_DELAY`] again.
const STEADY: Duration = Duration::from_secs(60);
const MAX_LOG_BYTES: u64 = 1 << 20;

/// The program to start, and its files.
pub(super) struct Launch {
    pub program: PathBuf,
    /// Holds the server's files.
    pub folder: PathBuf,
    pub socket: PathBuf,
    pub log: PathBuf,
}

/// The handle of the thread. Dropping it asks the server to end, and does not wait for that.
#[derive(Debug)]
pub(super) struct Server {
    shared: Arc<Supervision>,
    /// Resolves when the thread has ended the process and released the lock.
    ended: oneshot::Receiver<()>,
}

#[derive(Debug, Default)]
struct Supervision {
    state: Guarded<ServerState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ServerState {
    /// Set until the process is reaped, so it is never the pid of another process.
    pid: Option<Pid>,
    /// Whether the server has answered once. From then on it is started again when it ends.
    ready: bool,
    /// Whether the server is to end for good.
    stopping: bool,
    /// Why the server ended before it was ready.
    failed: Option<String>,
}

impl Server {
    /// Starts the thread, which holds `lock` until the process has ended.
    pub(super) fn start(launch: Launch, lock: File) -> io::Result<Server> {
        let shared = Arc::new(Supervision::default());
        let (done, ended) = oneshot::channel();
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new().name("redis-server".into()).spawn(move || {
            of_thread.supervise(&launch);
            // Dropping the file is not enough: another thread of the host may just be forking a process,
            // which then has a copy of the handle.
            let _ = lock.unlock();
            drop(done);
        })?;
        Ok(Server { shared, ended })
    }

    #[cfg(test)]
    pub(super) fn pid(&self) -> Option<Pid> {
        self.shared.state.lock().pid
    }

    /// Notes whether the server is `ready`. Returns an error with the reason if it ended before that.
    pub(super) fn check(&self, ready: bool) -> Result<(), String> {
        let mut state = self.shared.state.lock();
        state.ready |= ready;
        state.failed.clone().map_or(Ok(()), Err)
    }

    /// Asks the server to end, and kills it if it takes longer than [`STOP_TIMEOUT`]. Waits for its end.
    pub(super) async fn stop(mut self) {
        self.shared.end(Signal::SIGTERM);
        if timeout(STOP_TIMEOUT, &mut self.ended).await.is_err() {
            tracing::warn!("the private Redis does not end: killing it");
            self.shared.end(Signal::SIGKILL);
            let _ = (&mut self.ended).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.end(Signal::SIGTERM);
    }
}

impl Supervision {
    /// Ends the server for good, by this signal.
    fn end(&self, signal: Signal) {
        let mut state = self.state.lock();
        state.stopping = true;
        self.changed.notify_all();
        if let Some(pid) = state.pid {
            let _ = kill(pid, signal);
        }
    }

    /// Runs in the thread: starts the server, waits for its end, and starts it again after a delay.
    fn supervise(&self, launch: &Launch) {
        let mut delay = FIRST_DELAY;
        loop {
            let started = Instant::now();
            let why = match self.spawn(launch) {
                Ok(Some(child)) => self.wait(child),
                Ok(None) => return,
                Err(error) => format!("cannot run {}: {error}", launch.program.display()),
            };
            let mut state = self.state.lock();
            if state.stopping {
                return;
            }
            if !state.ready {
                state.failed = Some(why);
                return;
            }
            if started.elapsed() > STEADY {
                delay = FIRST_DELAY;
            }
            tracing::error!(
                %why,
                log = %launch.log.display(),
                again_in_ms = ms(delay),
                "the private Redis ended: starting it again"
            );
            let stopping = self.changed.wait_timeout_while(state, delay, |state| !state.stopping);
            drop(stopping);
            delay = (delay * 2).min(MAX_DELAY);
        }
    }

    /// Starts the process. None: the server is to end.
    fn spawn(&self, launch: &Launch) -> io::Result<Option<Child>> {
        let mut command = command(launch)?;
        let mut state = self.state.lock();
        if state.stopping {
            return Ok(None);
        }
        let child = command.spawn()?;
        state.pid = i32::try_from(child.id()).ok().map(Pid::from_raw);
        Ok(Some(child))
    }

    /// Waits for the end of the process, and returns how it ended. The process is reaped after `state` has
    /// forgotten its pid, so that this pid is not yet that of another process.
    fn wait(&self, mut child: Child) -> String {
        let pid = self.state.lock().pid;
        if let Some(pid) = pid {
            while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
        }
        let mut state = self.state.lock();
        state.pid = None;
        child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
    }
}

/// The command that starts the server, with its log.
fn command(launch: &Launch) -> io::Result<Command> {
    if launch.log.metadata().is_ok_and(|metadata| metadata.len() > MAX_LOG_BYTES) {
        rotate(&launch.log)?;
    }
    let log = OpenOptions::new().create(true).append(true).open(&launch.log)?;
    let mut command = Command::new(&launch.program);
    command.args(["--port", "0", "--daemonize", "no", "--unixsocketperm", "700"]);
    command.arg("--unixsocket").arg(&launch.socket).arg("--dir").arg(&launch.folder);
    command.args(["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]);
    command.args(["--maxmemory-policy", "noeviction"]);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    // Ctrl-C in the terminal must not end it: the host needs Redis until its attempts are settled.
    command.process_group(0);
    end_with_this_thread(&mut command);
    Ok(command)
}

/// Makes the kernel send SIGTERM to the process when the spawning thread ends.
#[allow(unsafe_code, reason = "the signal must be asked for between fork and exec")]
fn end_with_this_thread(command: &mut Command) {
    let host = Pid::this();
    let hook = move || {
        nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
        // If the host died before the line above, the signal never comes.
        if getppid() == host { Ok(()) } else { Err(Errno::ESRCH.into()) }
    };
    // SAFETY: between fork and exec of a process with threads only async-signal-safe calls are allowed. The
    // hook makes two system calls (prctl, getppid) and builds errors from plain numbers: no allocation, no
    // lock.
    unsafe {
        command.pre_exec(hook);
    }
}

/// Renames the last log, so that a new log begins. There are at most these two.
pub(super) fn rotate(log: &Path) -> io::Result<()> {
    match std::fs::rename(log, log.with_extension("log.1")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
