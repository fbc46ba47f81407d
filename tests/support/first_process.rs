//! Processes that are the first one of a container, or of a namespace of process ids, as in an image without
//! an init: the kernel drops each signal to one that has no handler for it.
//!
//! In: a command. Out: a command that runs it so, and the id of the process as this namespace has it. Where
//! namespaces may not be made, the process is an ordinary one: an unhandled signal ends it, which a test sees
//! by its exit code.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::eventually;

/// The program that makes namespaces, with its arguments. The process ends with it.
const UNSHARE: [&str; 5] = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];

static MAY_UNSHARE: LazyLock<bool> = LazyLock::new(|| {
    let mut command = Command::new(UNSHARE[0]);
    command.args(&UNSHARE[1..]).arg("true").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
});

/// The command as the first process.
pub fn first_process(command: &Command) -> Command {
    if !*MAY_UNSHARE {
        eprintln!("no namespace of processes can be made here: signals go to an ordinary process");
    }
    let mut first = Command::new(if *MAY_UNSHARE { UNSHARE[0].as_ref() } else { command.get_program() });
    if *MAY_UNSHARE {
        first.args(&UNSHARE[1..]).arg(command.get_program());
    }
    first.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => first.env(name, value),
            None => first.env_remove(name),
        };
    }
    first
}

/// The process that [`first_process`] runs, by the id of the command's own.
pub fn inner(command: Pid) -> Pid {
    if !*MAY_UNSHARE {
        return command;
    }
    eventually("the first process is there", || {
        let children = fs::read_to_string(format!("/proc/{command}/task/{command}/children")).ok()?;
        let child = Pid::from_raw(children.split_whitespace().next()?.parse().ok()?);
        let name = fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
        (name.trim() == "tqhost").then_some(child)
    })
}

/// Whether processes are really the first ones.
pub fn is_real() -> bool {
    *MAY_UNSHARE
}

/// Waits until the process has a handler for the signal.
#[track_caller]
pub fn until_handled(process: Pid, signal: Signal) {
    eventually("the process handles the signal", || {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
        let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
        (caught >> (signal as i32 - 1) & 1 == 1).then_some(())
    });
}
