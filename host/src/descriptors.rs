//! The limit of file descriptors of this process: raised at the start, and compared with the configuration.
//!
//! In: the limit of the process, and the configuration. Out: why a host with these queues could not work, or
//! a warning. Not here: the descriptors that are kept for probes (`admin::listener`).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;

/// The descriptors of a host without queues: its threads, shared connections, watched folders, compilers, and
/// requests to the admin address.
const BASE: u64 = 40;
/// Descriptors for connections that come and go, such as those of browsers.
const AT_EASE: u64 = 100;

/// Raises the soft limit to the hard limit: shells and containers often start programs with a low one.
pub(crate) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // The host goes on with the lower limit, and `scarcity` says if that is too low.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

/// Too few descriptors for a configuration.
#[derive(Debug)]
pub(crate) enum Scarcity {
    /// Some queues could never read their tasks.
    Refused(String),
    /// At the peak of work, requests of handlers could fail.
    Tight(String),
}

/// Compares what the queues need with the limit of the process.
pub(crate) fn scarcity(config: &Config) -> Option<Scarcity> {
    let limit = getrlimit(Resource::Nofile).current?;
    let lists = config.queues.iter().filter(|queue| queue.list.is_some()).count() as u64;
    let requesting = config.plugins.values().filter(|plugin| !plugin.allowed_hosts.is_empty());
    let requests: u64 = requesting.map(|plugin| u64::from(plugin.http.max_connections)).sum();
    assess(limit, config.queues.len() as u64, lists, requests)
}

fn assess(limit: u64, queues: u64, lists: u64, requests: u64) -> Option<Scarcity> {
    // Each queue at work has a connection to Redis, and each list that it takes its tasks from another one.
    let least = BASE + queues + lists;
    let way_out = "raise it where the host is started: `ulimit -n`, LimitNOFILE= of systemd, \
                   default-ulimits or --ulimit nofile= of containers";
    if limit < least {
        return Some(Scarcity::Refused(format!(
            "the host may open at most {limit} files and connections (the hard limit of the process), \
             and its {queues} queues need at least {least}: {way_out}"
        )));
    }
    let enough = least + requests + AT_EASE;
    (limit < enough).then(|| {
        Scarcity::Tight(format!(
            "the host may open at most {limit} files and connections (the hard limit of the process); \
             with its {queues} queues, and the {requests} connections of handlers (http.max_connections), it \
             can need {enough}: {way_out}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_enough_tight_or_too_low() {
        assert!(matches!(assess(64, 60, 0, 0), Some(Scarcity::Refused(why)) if why.contains("at least 100")));
        assert!(matches!(assess(101, 60, 2, 0), Some(Scarcity::Refused(_))));
        assert!(matches!(assess(102, 60, 2, 0), Some(Scarcity::Tight(why)) if why.contains("can need 202")));
        assert!(
            matches!(assess(1024, 1, 0, 2000), Some(Scarcity::Tight(why)) if why.contains("2000 connections"))
        );
        assert!(assess(1024, 500, 0, 384).is_none());
    }
}
