//! Processes as `/proc` shows them.
//!
//! In: a process id. Out: the resources that it uses, and the compilers that it has started. Not here:
//! starting and ending hosts (`bench`).

use std::fmt;
use std::fs;

use nix::unistd::Pid;
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

/// The resources that a process uses at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uses {
    /// Open file descriptors.
    pub files: u64,
    pub threads: u64,
    /// Mappings of memory.
    pub mappings: u64,
    /// Memory in RAM.
    pub resident_kib: u64,
    /// Memory in RAM, where each shared page is divided by the number of processes that share it.
    pub proportional_kib: u64,
    /// Memory in RAM that is not backed by a file.
    pub anonymous_kib: u64,
}

impl Uses {
    pub fn of(pid: Pid) -> Uses {
        let folder =
            |name: &str| fs::read_dir(format!("/proc/{pid}/{name}")).expect("read /proc").count() as u64;
        let text = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).expect("read /proc");
        let rollup = text("smaps_rollup");
        let kib = |name: &str| -> u64 {
            let line = rollup
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap_or_else(|| panic!("no {name} in {rollup}"));
            line.trim().trim_end_matches(" kB").parse().expect("a number")
        };
        Uses {
            files: folder("fd"),
            threads: folder("task"),
            mappings: text("maps").lines().count() as u64,
            resident_kib: kib("Rss:"),
            proportional_kib: kib("Pss:"),
            anonymous_kib: kib("Anonymous:"),
        }
    }
}

/// The processes that compile plugins for this host.
pub fn compilers(of: Pid) -> Vec<Pid> {
    let parent = format!("PPid:\t{of}\n");
    let pids = fs::read_dir("/proc")
        .expect("read /proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let compiles = |pid: &i32| {
        // A process that has ended meanwhile does not count.
        let text = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        text("cmdline").split('\0').nth(1) == Some("compile") && text("status").contains(&parent)
    };
    pids.filter(compiles).map(Pid::from_raw).collect()
}

/// Whether a process has not ended. A zombie has ended.
pub fn is_there(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ") && !status.contains("State:\tX")
}

/// Lowers a resource limit of a running process.
pub fn bound(pid: Pid, resource: Resource, most: u64) {
    // The process inherited the hard limit of this one. It stays the same, as raising it needs privileges.
    let limit = Rlimit { current: Some(most), maximum: getrlimit(resource).maximum };
    prlimit(rustix::process::Pid::from_raw(pid.as_raw()), resource, limit).expect("set a limit");
}

impl fmt::Display for Uses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Uses { files, threads, mappings, resident_kib, proportional_kib, anonymous_kib } = self;
        let [resident, proportional, anonymous] =
            [resident_kib, proportional_kib, anonymous_kib].map(|kib| *kib as f64 / 1024.0);
        write!(
            f,
            "{files:>4} files, {threads:>3} threads, {mappings:>5} mappings, {resident:>6.1} MiB resident \
             (PSS {proportional:.1}, anonymous {anonymous:.1})"
        )
    }
}
