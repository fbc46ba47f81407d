//! A replica of Redis that is promoted when the primary is gone.
//!
//! The replica hears of everything through a wire of its own, and until it is promoted it is what a replica
//! is: a moment behind. Its append-only file then is the record of what happened: what it had not heard of
//! has never been.

use std::path::Path;
use std::time::Duration;

use crate::support::proxy::Proxy;
use crate::support::{RedisServer, eventually};

use super::faults::{Loss, now_ms};

pub struct Pair {
    pub replica: RedisServer,
    /// Between the replica and its primary.
    wire: Proxy,
    /// Between the primary and whoever is no host.
    pub front: Proxy,
}

impl Pair {
    /// Adds a replica, whose files are under `folder`, to a primary that has nothing yet.
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

    /// Promotes the replica, which lags by so much. Gives from when to when the primary acknowledged what is
    /// gone.
    pub fn fail_over(&self, primary: &mut RedisServer, proxies: &[Proxy], lag: Duration) -> Loss {
        let mut db = primary.connection();
        let from_ms = eventually("the replica is level with its primary", || {
            let at_ms = now_ms();
            // WAIT is about what this connection wrote, and all that came before.
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
