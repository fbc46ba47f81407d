//! Plans the faults.
//!
//! In: a seed, a time, and what Redis may forget. Out: the steps of each lane, the same for the same input.
//! There is a lane for each host, for each host's network, for Redis and for the plugins, and lanes do not
//! wait for each other. Within a lane, the kinds of faults come in shuffled rounds, so that a short run has
//! most of them. Not here: carrying them out (`faults`).

use std::fmt;
use std::time::Duration;

use super::{HOSTS, LEASE};

/// The acknowledged writes that Redis keeps after a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// Everything: `appendfsync always`.
    All,
    /// All but the last second: `appendfsync everysec`, and the machine fails.
    AllButASecond,
    /// Everything that its replica has received: the primary fails, and the replica, which lags, is promoted.
    WhatItsReplicaHas,
}

/// A sequence of faults that break the same thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    Host(usize),
    Network(usize),
    Redis,
    Plugins,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// SIGKILL, and a new start after a while.
    HostKilled,
    /// SIGSTOP for longer than a lease, then SIGCONT.
    HostStopped,
    /// SIGTERM, and a new start.
    HostRestarted,
    /// No data passes; it arrives late, after the partition.
    Partition,
    /// The present connections stay open and silent.
    HalfOpen,
    /// Calls are carried out, their replies dropped, their connections closed.
    RepliesLost,
    /// Every piece of data is delayed.
    SlowNetwork,
    /// SIGKILL, and a new start after a while.
    RedisKilled,
    /// SIGTERM, and a new start after a while.
    RedisShutDown,
    /// DEBUG SLEEP.
    RedisSleeps,
    /// SIGSTOP, then SIGCONT.
    RedisStopped,
    /// CLIENT KILL of every connection.
    ClientsKilled,
    /// SCRIPT FLUSH and FUNCTION FLUSH.
    ScriptsFlushed,
    /// SIGKILL, and the last writes are removed from its append-only file.
    RedisCutShort,
    /// The replica is cut off, then SIGKILL of the primary, and the replica is promoted.
    RedisFailedOver,
    /// The plugin is replaced by another good version.
    PluginReplaced,
    /// A file that is no plugin, then a good version.
    PluginBad,
    /// A good version written in two halves.
    PluginHalfWritten,
    /// No file for a while.
    PluginRemoved,
}

/// One fault of a lane: the pause before it, and how long it lasts.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    pub quiet: Duration,
    pub fault: Fault,
    pub lasts: Duration,
    /// A random number for choices within the fault.
    pub choice: usize,
}

impl Lane {
    /// All lanes of a run.
    pub fn all() -> Vec<Lane> {
        let hosts = (0..HOSTS).flat_map(|host| [Lane::Host(host), Lane::Network(host)]);
        hosts.chain([Lane::Redis, Lane::Plugins]).collect()
    }

    /// The host that its faults strike; none means all hosts.
    pub fn host(self) -> Option<usize> {
        match self {
            Lane::Host(host) | Lane::Network(host) => Some(host),
            Lane::Redis | Lane::Plugins => None,
        }
    }

    fn kinds(self, keeps: Keeps) -> &'static [Fault] {
        match self {
            Lane::Host(_) => &[Fault::HostKilled, Fault::HostStopped, Fault::HostRestarted],
            Lane::Network(_) => &[Fault::Partition, Fault::RepliesLost, Fault::SlowNetwork, Fault::HalfOpen],
            // Only with `appendfsync always` has a killed Redis written everything that it acknowledged.
            Lane::Redis if keeps == Keeps::AllButASecond => &[Fault::RedisCutShort, Fault::RedisShutDown],
            Lane::Redis if keeps == Keeps::WhatItsReplicaHas => &[Fault::RedisFailedOver],
            Lane::Redis => &[
                Fault::RedisKilled,
                Fault::RedisShutDown,
                Fault::RedisSleeps,
                Fault::RedisStopped,
                Fault::ClientsKilled,
                Fault::ScriptsFlushed,
            ],
            Lane::Plugins => {
                &[Fault::PluginReplaced, Fault::PluginBad, Fault::PluginHalfWritten, Fault::PluginRemoved]
            }
        }
    }

    fn number(self) -> u64 {
        match self {
            Lane::Redis => 1,
            Lane::Plugins => 2,
            Lane::Host(host) => 10 + host as u64,
            Lane::Network(host) => 1000 + host as u64,
        }
    }

    /// The faults of this lane that begin and end within `duration`.
    pub fn plan(self, seed: u64, duration: Duration, keeps: Keeps) -> Vec<Step> {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_mul(1_000_003).wrapping_add(self.number()));
        let mut steps = Vec::new();
        let mut time = Duration::ZERO;
        let mut round: Vec<Fault> = Vec::new();
        loop {
            if round.is_empty() {
                round = self.kinds(keeps).to_vec();
                random.shuffle(&mut round);
            }
            let Some(fault) = round.pop() else { return steps };
            let mut quiet = Duration::from_millis(random.u64(300..4000));
            // There is one replica, and so one failover.
            if fault == Fault::RedisFailedOver {
                quiet += duration.mul_f64(if steps.is_empty() { 0.3 } else { 1.0 });
            }
            let lasts = Duration::from_millis(random.u64(fault.milliseconds()));
            time += quiet + lasts;
            if time > duration {
                return steps;
            }
            steps.push(Step { quiet, fault, lasts, choice: random.usize(0..1000) });
        }
    }
}

impl Fault {
    fn milliseconds(self) -> std::ops::Range<u64> {
        let lease = LEASE.as_millis() as u64;
        match self {
            Fault::HostKilled | Fault::RedisKilled | Fault::RedisShutDown => 1..2000,
            Fault::HostStopped => lease * 6 / 5..lease * 5 / 2,
            Fault::HostRestarted => 1..500,
            Fault::Partition | Fault::RedisStopped => 500..5000,
            Fault::HalfOpen | Fault::ClientsKilled | Fault::ScriptsFlushed | Fault::PluginReplaced => 1..2,
            Fault::RepliesLost => 1000..3000,
            Fault::SlowNetwork => 2000..5000,
            Fault::RedisSleeps => 500..4000,
            Fault::RedisCutShort | Fault::RedisFailedOver => 100..1000,
            Fault::PluginBad | Fault::PluginHalfWritten | Fault::PluginRemoved => 300..2000,
        }
    }

    /// The latest last heartbeat of a lease whose end this fault can explain.
    pub fn strikes_until(self, to_ms: u64) -> u64 {
        match self {
            Fault::HostKilled | Fault::HostRestarted | Fault::HostStopped => to_ms,
            // The host notices a silent connection after ten seconds.
            Fault::HalfOpen => to_ms + 12_000,
            _ => to_ms + 1000,
        }
    }

    /// Whether hosts release tasks because of it: they stop, or their plugin was removed during a claim.
    pub fn gives_back(self) -> bool {
        matches!(self, Fault::HostRestarted | Fault::PluginRemoved)
    }

    /// Whether leases may end because of it.
    pub fn ends_leases(self) -> bool {
        !matches!(
            self,
            Fault::ScriptsFlushed
                | Fault::PluginReplaced
                | Fault::PluginBad
                | Fault::PluginHalfWritten
                | Fault::PluginRemoved
        )
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Fault::HostKilled => "host: SIGKILL",
            Fault::HostStopped => "host: SIGSTOP, longer than a lease",
            Fault::HostRestarted => "host: SIGTERM",
            Fault::Partition => "network: partition",
            Fault::HalfOpen => "network: connections half open",
            Fault::RepliesLost => "network: replies lost",
            Fault::SlowNetwork => "network: slow",
            Fault::RedisKilled => "Redis: SIGKILL",
            Fault::RedisShutDown => "Redis: SHUTDOWN",
            Fault::RedisSleeps => "Redis: DEBUG SLEEP",
            Fault::RedisStopped => "Redis: SIGSTOP",
            Fault::ClientsKilled => "Redis: CLIENT KILL",
            Fault::ScriptsFlushed => "Redis: FUNCTION FLUSH",
            Fault::RedisCutShort => "Redis: SIGKILL, and its last writes gone",
            Fault::RedisFailedOver => "Redis: failover to a replica that lags",
            Fault::PluginReplaced => "plugin: a good version",
            Fault::PluginBad => "plugin: a bad file",
            Fault::PluginHalfWritten => "plugin: half written",
            Fault::PluginRemoved => "plugin: removed",
        };
        f.pad(text)
    }
}
