//! A Redis Cluster for one test: real servers, each with its own folder.
//!
//! In: how many primaries, each with a replica or without. Out: the cluster, whose slots are in equal parts
//! on the primaries; commands, which go to the node that has their key; moves of slots. Not here: what is in
//! it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use redis::{Cmd, Connection, FromRedisValue, RedisError};

use super::proxy::Proxy;
use super::{RedisServer, eventually};

const SLOTS: usize = 16_384;
/// How long a node may take for an answer. One that was stopped gives none.
const PATIENCE: Duration = Duration::from_secs(2);

pub struct Cluster {
    /// The primaries first, in the order of their slots; then a replica of each, if there are some.
    pub nodes: Vec<RedisServer>,
    primaries: usize,
    /// In which order nodes are asked: those that did not answer come last.
    order: RefCell<Vec<usize>>,
    connections: RefCell<HashMap<u16, Connection>>,
    /// Through which the nodes hear of each other, if [`Cluster::part`] may be called.
    buses: Vec<Proxy>,
}

impl Cluster {
    /// The nodes name a primary as failed when it has not answered for 2 s.
    pub fn start(dir: &Path, primaries: usize, with_replicas: bool) -> Cluster {
        Cluster::form(dir, primaries, with_replicas, |_| Vec::new())
    }

    /// Like [`Cluster::start`], with replicas, for a test that parts the nodes.
    pub fn to_be_parted(dir: &Path, primaries: usize) -> Cluster {
        Cluster::form(dir, primaries, true, |nodes| {
            nodes.iter().map(|node| Proxy::start(node.bus())).collect()
        })
    }

    fn form(
        dir: &Path,
        primaries: usize,
        with_replicas: bool,
        buses: impl Fn(&[RedisServer]) -> Vec<Proxy>,
    ) -> Cluster {
        let count = if with_replicas { 2 * primaries } else { primaries };
        let start = |number: usize| {
            let words = [
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                "{bus}",
                "--cluster-node-timeout",
                "2000",
                "--repl-diskless-sync-delay",
                "0",
            ];
            RedisServer::start(&dir.join(format!("node-{number}")), &words)
        };
        let nodes: Vec<RedisServer> = (0..count).map(start).collect();
        let cluster = Cluster {
            buses: buses(&nodes),
            nodes,
            primaries,
            order: RefCell::new((0..count).collect()),
            connections: RefCell::default(),
        };
        for number in 0..primaries {
            let (first, last) = (SLOTS * number / primaries, SLOTS * (number + 1) / primaries - 1);
            cluster.ok(number, redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(first).arg(last));
        }
        for number in 0..count {
            cluster.ok(number, redis::cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(number + 1));
        }
        for (number, bus) in cluster.buses.iter().enumerate() {
            let announce = ["SET", "cluster-announce-bus-port", &bus.port.to_string()];
            cluster.ok(number, redis::cmd("CONFIG").arg(&announce));
        }
        let (port, bus) = (cluster.nodes[0].port, cluster.nodes[0].bus());
        let bus = cluster.buses.first().map_or(bus, |proxy| proxy.port);
        for number in 1..count {
            let meet = redis::cmd("CLUSTER").arg("MEET").arg("127.0.0.1").arg(port).arg(bus).to_owned();
            cluster.ok(number, &meet);
        }
        cluster.until_whole();
        for number in primaries..count {
            let id = cluster.id(number - primaries);
            cluster.ok(number, redis::cmd("CLUSTER").arg("REPLICATE").arg(id));
        }
        for number in primaries..count {
            let replication = redis::cmd("INFO").arg("replication").to_owned();
            eventually("a replica has the data of its primary", || {
                let info: String = cluster.ask(number, &replication).ok()?;
                info.contains("master_link_status:up").then_some(())
            });
            // Before this it sends none of its writes to the replica, and keeps them.
            eventually("the primary knows that the replica has its data", || {
                let info: String = cluster.ask(number - primaries, &replication).ok()?;
                info.contains("state=online").then_some(())
            });
        }
        cluster.until_whole();
        cluster
    }

    /// Lets no node hear of another one, and none take another one for failed.
    pub fn part(&self) {
        self.set_timeout(60_000);
        self.buses.iter().for_each(Proxy::part);
    }

    /// Ends what [`Cluster::part`] began.
    pub fn heal(&self) {
        self.buses.iter().for_each(Proxy::heal);
        self.set_timeout(2000);
    }

    fn set_timeout(&self, ms: u64) {
        for number in 0..self.nodes.len() {
            self.ok(number, redis::cmd("CONFIG").arg("SET").arg("cluster-node-timeout").arg(ms));
        }
    }

    /// Waits until all nodes know all nodes and slots.
    pub fn until_whole(&self) {
        let count = format!("cluster_known_nodes:{}\r\n", self.nodes.len());
        for number in 0..self.nodes.len() {
            eventually("a node knows the whole cluster", || {
                let info: String = self.ask(number, redis::cmd("CLUSTER").arg("INFO")).ok()?;
                (info.contains("cluster_state:ok") && info.contains(&count)).then_some(())
            });
        }
    }

    /// `[redis]` and `[admin]` of a host that is told of the first two nodes.
    pub fn config(&self) -> String {
        let urls: Vec<String> = self.nodes.iter().take(2).map(|node| format!("\"{}\"", node.url())).collect();
        format!("[redis]\nurl = [{}]\n[admin]\nlisten = \"127.0.0.1:0\"\n", urls.join(", "))
    }

    /// A name whose slot is on this primary, as the cluster was at its start.
    pub fn name_on(&self, primary: usize) -> String {
        let names = (0..).map(|n| format!("on-{primary}-{n}"));
        let mut fitting = names.filter(|name| self.slot(name) * self.primaries / SLOTS == primary);
        fitting.next().expect("a name")
    }

    pub fn slot(&self, key: &str) -> usize {
        self.ask(0, redis::cmd("CLUSTER").arg("KEYSLOT").arg(key)).expect("CLUSTER KEYSLOT")
    }

    /// The node that has the slot of this key now.
    pub fn owner(&self, key: &str) -> usize {
        let ask = redis::cmd("EXISTS").arg(key).to_owned();
        eventually("a node has the slot", || {
            (0..self.nodes.len()).find(|number| self.ask::<u64>(*number, &ask).is_ok())
        })
    }

    /// Lets the replica of a primary take its place in order, so that no write is lost, and waits until the
    /// old primary follows it.
    ///
    /// Each request begins a failover anew, so there is another one only once Redis has given the first one
    /// up, which it does after 5 seconds. Other primaries do not vote for it soon after another failover.
    pub fn fail_over(&self, primary: usize) {
        let follower = eventually("the primary has a replica", || {
            (0..self.nodes.len()).find(|number| self.follows(*number, primary))
        });
        let mut asked: Option<Instant> = None;
        eventually("the replica has taken the place of its primary", || {
            if self.follows(primary, follower) {
                return Some(());
            }
            if asked.is_none_or(|asked| asked.elapsed() > Duration::from_secs(8)) {
                asked = Some(Instant::now());
                let _: Result<redis::Value, _> = self.ask(follower, redis::cmd("CLUSTER").arg("FAILOVER"));
            }
            None
        });
    }

    /// Whether a node is the replica of another one, and has its data.
    pub fn follows(&self, number: usize, primary: usize) -> bool {
        let info: String = self.ask(number, redis::cmd("INFO").arg("replication")).unwrap_or_default();
        let port = format!("master_port:{}\r\n", self.nodes[primary].port);
        info.contains("role:slave") && info.contains(&port) && info.contains("master_link_status:up")
    }

    /// All places in which a node has tasks of a queue, and their turns. A key that it does not have counts
    /// as empty.
    pub fn places(&self, number: usize, stream: &str) -> Vec<redis::Value> {
        let key = |of: &str| format!("tq:{{{stream}}}:{of}");
        let commands = [
            redis::cmd("XRANGE").arg(stream).arg("-").arg("+").clone(),
            redis::cmd("XPENDING").arg(stream).arg("tqhost").clone(),
            redis::cmd("ZRANGE").arg(key("delayed")).arg(0).arg(-1).clone(),
            redis::cmd("HKEYS").arg(key("parked")).clone(),
            redis::cmd("HGETALL").arg(key("owners")).clone(),
            redis::cmd("ZRANGE").arg(key("tracks")).arg(0).arg(-1).clone(),
        ];
        commands.iter().map(|command| self.ask(number, command).unwrap_or(redis::Value::Nil)).collect()
    }

    /// The places where a task is or has been, for the message of a test that fails.
    pub fn traces(&self, stream: &str, id: &str) -> String {
        let entry: redis::Value = self.query(redis::cmd("XRANGE").arg(stream).arg(id).arg(id));
        let mut told = format!("status {:?}, entry {entry:?}", self.status(stream, id, "status"));
        for (number, node) in self.nodes.iter().enumerate() {
            let role: Option<redis::Value> = self.ask(number, &redis::cmd("ROLE")).ok();
            let text = std::fs::read(node.append_only_file()).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let told_of = text.matches(&format!("\r\n{id}\r\n")).count();
            let log = std::fs::read_to_string(node.dir().join("log")).unwrap_or_default();
            let words = ["slot", "ailover", "FAIL", "elect", "reconfigur", "epoch"];
            let log: Vec<&str> =
                log.lines().filter(|line| words.iter().any(|word| line.contains(word))).collect();
            told += &format!("\n{}", log[log.len().saturating_sub(60)..].join("\n"));
            told += &format!(
                "; node {number} at {} is {role:?}, and its file names the id {told_of} times",
                node.port
            );
        }
        told
    }

    /// The id by which the nodes know a node.
    pub fn id(&self, number: usize) -> String {
        self.ask(number, redis::cmd("CLUSTER").arg("MYID")).expect("CLUSTER MYID")
    }

    /// Sends a command to one node.
    pub fn ask<T: FromRedisValue>(&self, number: usize, command: &Cmd) -> Result<T, RedisError> {
        let mut connections = self.connections.borrow_mut();
        let node = &self.nodes[number];
        let connection = match connections.get_mut(&node.port) {
            Some(connection) => connection,
            None => {
                let opened = redis::Client::open(node.url())?.get_connection_with_timeout(PATIENCE)?;
                connections.entry(node.port).or_insert(opened)
            }
        };
        connection.set_read_timeout(Some(PATIENCE))?;
        let reply = command.query(connection);
        if reply.as_ref().is_err_and(RedisError::is_io_error) {
            connections.remove(&node.port);
        }
        reply
    }

    #[track_caller]
    pub fn ok(&self, number: usize, command: &Cmd) {
        let _: redis::Value = self.ask(number, command).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Sends a command to whichever node takes it.
    #[track_caller]
    pub fn query<T: FromRedisValue>(&self, command: &Cmd) -> T {
        eventually("a node takes a command", || {
            let order = self.order.borrow().clone();
            order.into_iter().find_map(|number| match self.ask(number, command) {
                Ok(reply) => Some(reply),
                Err(error) => {
                    if error.is_io_error() {
                        let mut order = self.order.borrow_mut();
                        order.retain(|other| *other != number);
                        order.push(number);
                    }
                    None
                }
            })
        })
    }

    /// Adds a task, and gives its id.
    pub fn xadd(&self, stream: &str, fields: &[(&str, &str)]) -> String {
        self.query(redis::cmd("XADD").arg(stream).arg("*").arg(fields))
    }

    /// A field of a task's status; empty where there is none.
    pub fn status(&self, stream: &str, id: &str, field: &str) -> String {
        let key = format!("tq:{{{stream}}}:task:{id}");
        self.query::<Option<String>>(redis::cmd("HGET").arg(key).arg(field)).unwrap_or_default()
    }

    /// The committed value of a counter of the plugin `effects`.
    pub fn counted(&self, stream: &str, key: &str) -> u64 {
        let get = redis::cmd("GET").arg(format!("tq:{{{stream}}}:state:effects:{key}")).clone();
        self.query::<Option<u64>>(&get).unwrap_or_default()
    }

    #[track_caller]
    pub fn until(&self, stream: &str, id: &str, status: &str) {
        eventually(
            &format!("{id} of {stream} is {status}, not {}", self.status(stream, id, "status")),
            || (self.status(stream, id, "status") == status).then_some(()),
        );
    }

    /// Waits until these tasks are completed and the queue is empty.
    #[track_caller]
    pub fn all_done(&self, stream: &str, ids: &[String]) {
        for id in ids {
            self.until(stream, id, "COMPLETED");
        }
        eventually("the stream is empty", || {
            (self.query::<u64>(redis::cmd("XLEN").arg(stream)) == 0).then_some(())
        });
    }

    /// Begins to move a slot: its keys go over one by one from now on.
    pub fn begin_move(&self, slot: usize, from: usize, to: usize) {
        let set = |what: &str, of: usize| {
            redis::cmd("CLUSTER").arg("SETSLOT").arg(slot).arg(what).arg(self.id(of)).to_owned()
        };
        // After a failover, a node may take a primary for a replica until it has heard of it.
        eventually("both nodes agree to the move", || {
            let _: redis::Value = self.ask(to, &set("IMPORTING", from)).ok()?;
            self.ask::<redis::Value>(from, &set("MIGRATING", to)).ok()
        });
    }

    /// Moves one key of a slot that is being moved.
    pub fn move_key(&self, key: &str, from: usize, to: usize) {
        let port = self.nodes[to].port;
        let migrate = redis::cmd("MIGRATE").arg("127.0.0.1").arg(port).arg(key).arg(0).arg(5000).to_owned();
        self.ok(from, &migrate);
    }

    /// Moves the keys that are left, and ends the move.
    pub fn end_move(&self, slot: usize, from: usize, to: usize) {
        eventually("all keys of the slot are moved", || {
            let list = redis::cmd("CLUSTER").arg("GETKEYSINSLOT").arg(slot).arg(1000).to_owned();
            let keys: Vec<String> = self.ask(from, &list).expect("CLUSTER GETKEYSINSLOT");
            keys.iter().for_each(|key| self.move_key(key, from, to));
            keys.is_empty().then_some(())
        });
        let id = self.id(to);
        for number in [to, from] {
            self.ok(number, redis::cmd("CLUSTER").arg("SETSLOT").arg(slot).arg("NODE").arg(&id));
        }
        // The others hear of it; a replica would refuse the command.
        eventually("all nodes know who has the slot", || {
            let knows = |number: usize| {
                let slots: String = self.ask(number, redis::cmd("CLUSTER").arg("NODES")).ok()?;
                let line = slots.lines().find(|line| line.starts_with(&id))?;
                let mut ranges = line.split(' ').skip(8).filter_map(|range| {
                    let (first, last) = range.split_once('-').unwrap_or((range, range));
                    Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
                });
                ranges.any(|range| range.contains(&slot)).then_some(())
            };
            (0..self.nodes.len()).all(|number| knows(number).is_some()).then_some(())
        });
    }
}
