//! A primary and its replica, and Sentinels that watch them.
//!
//! In: a folder. Out: the servers, which the Sentinels know, and the primary that these name. Not here: what
//! is in them.

use std::path::Path;

use super::{RedisServer, eventually};

/// A primary with a replica, and three Sentinels that watch it.
pub struct Watched {
    pub servers: Vec<RedisServer>,
    pub sentinels: Vec<RedisServer>,
}

impl Watched {
    pub fn start(dir: &Path) -> Watched {
        let words = ["--repl-diskless-sync-delay", "0", "--replica-priority", "100"];
        let primary = RedisServer::start(&dir.join("primary"), &words);
        let of = format!("127.0.0.1 {}", primary.port);
        let replica = RedisServer::start(&dir.join("replica"), &[&words[..], &["--replicaof", &of]].concat());
        eventually("the replica has the data of its primary", || {
            let info: String = redis::cmd("INFO").arg("replication").query(&mut replica.connection()).ok()?;
            info.contains("master_link_status:up").then_some(())
        });
        let sentinels: Vec<RedisServer> =
            (0..3).map(|n| RedisServer::sentinel(&dir.join(format!("sentinel-{n}")), &primary)).collect();
        let watched = Watched { servers: vec![primary, replica], sentinels };
        for sentinel in &watched.sentinels {
            eventually("a Sentinel knows the others, and the replica", || {
                let about: Vec<String> =
                    redis::cmd("SENTINEL").arg("MASTER").arg("main").query(&mut client(sentinel)).ok()?;
                let field =
                    |name: &str| Some(about[about.iter().position(|field| field == name)? + 1].clone());
                (field("num-slaves")? == "1" && field("num-other-sentinels")? == "2").then_some(())
            });
        }
        watched
    }

    pub fn config(&self) -> String {
        let urls: Vec<String> = self.sentinels.iter().map(|one| format!("\"{}\"", one.url())).collect();
        format!(
            "[redis]\nsentinel = {{ master = \"main\", urls = [{}] }}\n[admin]\nlisten = \"127.0.0.1:0\"\n",
            urls.join(", ")
        )
    }

    /// The server that all Sentinels name, once they agree on another one than `before`.
    pub fn primary_after(&self, before: u16) -> usize {
        eventually("the Sentinels agree on another primary", || {
            let named = self.sentinels.iter().map(|sentinel| {
                let mut ask = redis::cmd("SENTINEL");
                ask.arg("GET-MASTER-ADDR-BY-NAME").arg("main");
                let (_, port): (String, u16) = ask.query(&mut client(sentinel)).ok()?;
                Some(port)
            });
            let named: Option<Vec<u16>> = named.collect();
            let first = *named.as_ref()?.first()?;
            let agree = named?.iter().all(|port| *port == first);
            (agree && first != before).then(|| self.servers.iter().position(|server| server.port == first))?
        })
    }
}

/// A connection to a server or a Sentinel.
pub fn client(server: &RedisServer) -> redis::Connection {
    let client = redis::Client::open(server.url()).expect("a valid URL");
    eventually("a Sentinel takes a connection", || client.get_connection().ok())
}
