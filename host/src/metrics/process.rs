//! The figures of the process. They have the names that Prometheus clients use in every program.
//!
//! In: /proc and the limits of the process, at each scrape. Out: series without the prefix of tqhost. A
//! figure that the system does not tell is left out.
//!
//! Not here: the figures of queues and plugins (`metrics`).

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

#[derive(Debug)]
pub(super) struct Process {
    /// Seconds since the Unix epoch.
    started: f64,
}

impl Process {
    /// For a process that has just started.
    pub(super) fn new() -> Process {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Process { started: now.as_secs_f64() }
    }
}

impl Collector for Process {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let mut gauge = |name, help, value: Option<f64>| match value {
            Some(value) => write_one(&mut out, name, help, &ConstGauge::new(value)),
            None => Ok(()),
        };
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let bytes = |name| field(&status, name).map(|kib| kib * 1024.0);
        gauge("process_resident_memory_bytes", "Resident memory size in bytes.", bytes("VmRSS"))?;
        gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", bytes("VmSize"))?;
        gauge("process_threads", "Number of OS threads in the process.", field(&status, "Threads"))?;
        let open = std::fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as f64);
        gauge("process_open_fds", "Number of open file descriptors.", open)?;
        let most = getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft as f64);
        gauge("process_max_fds", "Maximum number of open file descriptors.", most)?;
        let help = "Start time of the process since unix epoch in seconds.";
        gauge("process_start_time_seconds", help, Some(self.started))?;
        let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return Ok(()) };
        let times = [usage.user_time(), usage.system_time()];
        let seconds: f64 = times.iter().map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6).sum();
        let help = "Total user and system CPU time spent in seconds.";
        write_one(&mut out, "process_cpu_seconds", help, &ConstCounter::new(seconds))
    }
}

/// The memory of this process in RAM, in bytes.
pub(crate) fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    field(&status, "VmRSS").map(|kib| kib as u64 * 1024)
}

/// Writes a series without labels.
pub(super) fn write_one(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: &impl EncodeMetric,
) -> fmt::Result {
    value.encode(out.encode_descriptor(name, help, None, value.metric_type())?)
}

/// A number in the form of /proc/self/status.
fn field(status: &str, name: &str) -> Option<f64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_by_its_name() {
        let status = "VmPeak:\t  20 kB\nVmRSS:\t  12 kB\nThreads:\t7\n";
        assert_eq!((field(status, "VmRSS"), field(status, "Threads")), (Some(12.0), Some(7.0)));
        assert_eq!((field(status, "Vm"), field("", "VmRSS")), (None, None));
    }
}
