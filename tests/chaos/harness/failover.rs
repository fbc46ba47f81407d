//! A replica of Redis that is promoted when the primary fails.
//!
//! In: a primary. Out: a promoted replica, and the time whose writes may be lost. The replica follows the
//! primary through a proxy of its own, so that it can lag. After the failover, its append-only file is the
//! record of what happened; writes that it had not received never happened. Not here: when the failover comes
//! (`plan`).

use std::path::Path;
use std::time::Duration;

use crate::support::proxy::Proxy;
use crate::support::{RedisServer, eventually};

use super::faults::{Loss, now_ms};

pub struct Pair {
    pub replica: RedisServer,
    /// The proxy between the replica and its primary.
    wire: Proxy,
    /// The proxy of producers and commands; hosts have their own.
    pub front: Proxy,
}

impl Pair {
    /// Adds a replica, whose files are under `folder`, to an empty primary.
    pub fn of(primary: &RedisServer, folder: &Path, arguments: &[&str]) -> Pair {
        let (wire, front) = (Proxy::start(primary.port), Proxy::start(primary.port));
        let of = format!("127.0.0.1 {}", wire.port);
        let replica = RedisServer::start(folder, &[arguments, &["--replicaof", &of]].concat());
        let mut db = replica.connection();
        eventually("the replica follows, and writes down what it hears", || {
            let info: String = redis::cmd("INFO").query(&mut db).ok()?;
            let is = |what: &str| info.contains(what);
            (is("master_link_status:up") && is("aof_rewrite_in_progress:0") && is("aof_rewrite_scheduled:0"))
                .then_some(())
        });
        Pair { replica, wire, front }
    }

    /// Promotes the replica, after it has lagged for `lag`. Gives the time whose writes may be lost although
    /// the primary acknowledged them.
    pub fn fail_over(&self, primary: &mut RedisServer, proxies: &[Proxy], lag: Duration) -> Loss {
        let mut db = primary.connection();
        let from_ms = eventually("the replica is level with its primary", || {
            let at_ms = now_ms();
            // WAIT waits for the last write of this connection, and for all writes before it.
            let level: (String, u64) = redis::pipe()
                .cmd("SET")
                .arg("chaos:level")
                .arg(at_ms)
                .cmd("WAIT")
                .arg(1)
                .arg(1000)
                .query(&mut db)
                .ok()?;
            (level.1 == 1).then_some(at_ms)
        });
        self.wire.part();
        std::thread::sleep(lag);
        primary.kill();
        let to_ms = now_ms();
        let mut db = self.replica.connection();
        redis::cmd("REPLICAOF").arg("NO").arg("ONE").query::<()>(&mut db).expect("promote the replica");
        proxies.iter().chain([&self.front]).for_each(|proxy| proxy.lead_to(self.replica.port));
        (from_ms, to_ms)
    }
}
