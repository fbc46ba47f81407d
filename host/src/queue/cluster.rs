//! The nodes of a Redis Cluster: which one has a slot?
//!
//! In: the addresses of some nodes. Out: the primary of each slot. Any node may be asked for the map of
//! slots. That is done at the start, after each sign that the map has changed, repeatedly while a primary
//! does not answer, and every [`REFRESH`]. If a node says where a slot is, that corrects the map at once.
//! Calls go on by the present map while the next one is asked for.
//!
//! Not here: what refusals mean (`nodes`), how calls are repeated (`link`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use redis::{AsyncConnectionConfig, ErrorKind, RedisError, RedisResult, Value};
use tokio::time::Instant;

use super::connect::{CONNECT_TIMEOUT, Endpoint};
use super::error::timed_out;
use super::node::Node;
use super::reply::{self, Shaped, UnexpectedShape};

/// The number of slots.
pub(super) const SLOTS: u16 = 16_384;
/// How long a map counts without a sign of a change.
const REFRESH: Duration = Duration::from_secs(30);
/// The pause between two maps while something is wrong: at first, and after [`FAILOVER`].
const AGAIN: Duration = Duration::from_millis(200);
const SELDOM: Duration = Duration::from_secs(2);
/// A failover takes less than this in most clusters.
const FAILOVER: Duration = Duration::from_secs(20);
/// How long a node may take to tell its map, before the next one is asked.
const ANSWER: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Cluster {
    seeds: Vec<Endpoint>,
    map: RwLock<SlotMap>,
    /// Locked while a map is asked for.
    refreshing: Arc<tokio::sync::Mutex<()>>,
    is_stale: AtomicBool,
    /// How often slots have changed hands.
    moves: AtomicU64,
}

#[derive(Debug, Default)]
struct SlotMap {
    /// The primary of each slot; empty before the first map.
    owners: Vec<Option<Arc<Node>>>,
    /// All primaries.
    nodes: Vec<Arc<Node>>,
    /// When this map came. None: there is none yet.
    at: Option<Instant>,
    /// How many maps were asked for. Each request begins with another node.
    asked: usize,
}

/// The first and the last slot of a range, and the host and port of its primary.
type Range = (u16, u16, String, u16);

impl Cluster {
    /// `seeds`: at least one.
    pub(super) fn new(seeds: Vec<Endpoint>) -> Arc<Cluster> {
        let (map, refreshing, is_stale, moves) = Default::default();
        Arc::new(Cluster { seeds, map, refreshing, is_stale, moves })
    }

    /// How often slots have changed hands.
    pub(super) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// The primary of a slot by the present map; without a slot any primary.
    pub(super) fn known(self: &Arc<Self>, slot: Option<u16>) -> Option<Arc<Node>> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        if map.at.is_some_and(|at| at.elapsed() >= REFRESH) {
            self.mark_stale();
        }
        match slot {
            Some(slot) => map.owners.get(usize::from(slot)).cloned().flatten(),
            None => map.nodes.iter().find(|node| !node.is_suspected()).or(map.nodes.first()).cloned(),
        }
    }

    /// Like [`Cluster::known`], but waits for the first map.
    pub(super) async fn of(self: &Arc<Self>, slot: Option<u16>) -> RedisResult<Arc<Node>> {
        let known = self.refreshed().await.map(|()| self.known(slot))?;
        known.ok_or_else(|| {
            self.mark_stale();
            let why = "no node of the cluster serves the slot of this key at the moment";
            RedisError::from((ErrorKind::ClusterConnectionNotFound, why))
        })
    }

    /// All primaries. Waits for the first map.
    pub(super) async fn all(&self) -> RedisResult<Vec<Arc<Node>>> {
        self.refreshed().await?;
        Ok(self.map.read().unwrap_or_else(PoisonError::into_inner).nodes.clone())
    }

    /// Notes a sign that the map has changed.
    pub(super) fn mark_stale(self: &Arc<Self>) {
        self.is_stale.store(true, Ordering::Relaxed);
        self.ask_soon();
    }

    /// Notes that a node does not answer. Asks for the map until it does, or is no primary any more.
    pub(super) fn suspect(self: &Arc<Self>, node: &Node) {
        node.suspect();
        self.ask_soon();
    }

    /// Asks for maps in a task of its own, until one shows that nothing is wrong.
    fn ask_soon(self: &Arc<Self>) {
        let Ok(lock) = self.refreshing.clone().try_lock_owned() else { return };
        let weak = Arc::downgrade(self);
        tokio::spawn(async move {
            let began = Instant::now();
            while let Some(cluster) = weak.upgrade().filter(|cluster| cluster.is_doubtful()) {
                if let Err(error) = cluster.refresh().await {
                    tracing::debug!(%error, "no node of the cluster tells its slots");
                }
                drop(cluster);
                tokio::time::sleep(if began.elapsed() < FAILOVER { AGAIN } else { SELDOM }).await;
            }
            drop(lock);
            // A sign that came just now found the lock taken.
            if let Some(cluster) = weak.upgrade().filter(|cluster| cluster.is_doubtful()) {
                cluster.ask_soon();
            }
        });
    }

    /// Whether there is a sign that the map is wrong.
    fn is_doubtful(&self) -> bool {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        self.is_stale.load(Ordering::Relaxed) || map.nodes.iter().any(|node| node.is_suspected())
    }

    /// Notes that a slot is at this address, as the node `by` says. Returns the node there.
    pub(super) fn moved(self: &Arc<Self>, slot: u16, address: &str, by: &Node) -> Option<Arc<Node>> {
        let node = self.node_at(address, by)?;
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let owner = map.owners.get_mut(usize::from(slot))?;
        if !owner.replace(node.clone()).is_some_and(|before| Arc::ptr_eq(&before, &node)) {
            node.interrupted();
            self.moves.fetch_add(1, Ordering::Release);
        }
        Some(node)
    }

    /// The node at an address, which the node `by` named. An address without a host is at the host of `by`.
    pub(super) fn node_at(&self, address: &str, by: &Node) -> Option<Arc<Node>> {
        let (host, port) = address.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = if host.is_empty() { by.endpoint.host_and_port()?.0 } else { host };
        let port = port.parse().ok()?;
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        map.node(&self.seeds, host, port).ok()
    }

    /// Makes sure that there is a map.
    async fn refreshed(&self) -> RedisResult<()> {
        let has_map = || self.map.read().unwrap_or_else(PoisonError::into_inner).at.is_some();
        if has_map() {
            return Ok(());
        }
        let _lock = self.refreshing.lock().await;
        if has_map() { Ok(()) } else { self.refresh().await }
    }

    /// Asks one node after the other, until one tells its map.
    async fn refresh(&self) -> RedisResult<()> {
        self.is_stale.store(false, Ordering::Relaxed);
        let asked: Vec<Endpoint> = {
            let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
            map.asked += 1;
            let known = map.nodes.iter().map(|node| &node.endpoint);
            let mut known: Vec<Endpoint> = known.chain(&self.seeds).cloned().collect();
            let first = map.asked % known.len();
            known.rotate_left(first);
            known
        };
        let (mut failure, mut doubtful_map) = (None, None);
        for endpoint in asked {
            let told = tokio::time::timeout(ANSWER, ask(&endpoint)).await;
            match told.unwrap_or_else(|_| Err(timed_out())) {
                Ok((ranges, true)) => return self.take(ranges),
                // A node that is cut off from the others keeps the map that it had. If all nodes say that
                // the cluster is down, one map is as good as another.
                Ok((ranges, false)) => doubtful_map = doubtful_map.or(Some(ranges)),
                Err(error) => failure = Some(error),
            }
        }
        if let Some(ranges) = doubtful_map {
            return self.take(ranges);
        }
        self.is_stale.store(true, Ordering::Relaxed);
        Err(failure.unwrap_or_else(|| RedisError::from((ErrorKind::Io, "no node of the cluster is known"))))
    }

    fn take(&self, ranges: Vec<Range>) -> RedisResult<()> {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if map.take(&self.seeds, ranges)? {
            self.moves.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }
}

impl SlotMap {
    fn node(&mut self, seeds: &[Endpoint], host: &str, port: u16) -> RedisResult<Arc<Node>> {
        if let Some(known) = self.nodes.iter().find(|node| node.is_at(host, port)) {
            return Ok(known.clone());
        }
        let like = seeds.first().ok_or((ErrorKind::InvalidClientConfig, "a cluster has no url"))?;
        let node = Node::named(like, host, port, false)?;
        self.nodes.push(node.clone());
        Ok(node)
    }

    /// Makes `ranges` the map. Returns whether a slot has another primary than before.
    fn take(&mut self, seeds: &[Endpoint], ranges: Vec<Range>) -> RedisResult<bool> {
        let (is_first, mut have_moved) = (self.at.is_none(), false);
        let mut owners: Vec<Option<Arc<Node>>> = vec![None; usize::from(SLOTS)];
        for (first, last, host, port) in ranges {
            let node = self.node(seeds, &host, port)?;
            let slots = usize::from(first)..=usize::from(last);
            let is_other =
                |before: &Option<Arc<Node>>| before.as_ref().is_none_or(|before| !Arc::ptr_eq(before, &node));
            if self.owners.get(slots.clone()).into_iter().flatten().any(is_other) {
                // No host could renew leases while the slots changed hands.
                node.interrupted();
                have_moved = true;
            }
            owners.get_mut(slots).into_iter().flatten().for_each(|owner| *owner = Some(node.clone()));
        }
        let is_primary = |node: &Arc<Node>| owners.iter().flatten().any(|owner| Arc::ptr_eq(owner, node));
        for gone in self.nodes.extract_if(.., |node| !is_primary(node)) {
            gone.replace();
            if !is_first {
                tracing::warn!(node = gone.address.as_ref(), "a node of the cluster is no primary any more");
            }
        }
        (self.owners, self.at) = (owners, Some(Instant::now()));
        Ok(have_moved)
    }
}

/// Asks one node for its map of the slots. Returns the map, and whether the node calls the cluster healthy.
async fn ask(node: &Endpoint) -> RedisResult<(Vec<Range>, bool)> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_TIMEOUT));
    let mut connection = node.connect(&config).await?;
    let ask = redis::cmd("CLUSTER").arg("SLOTS").to_owned();
    let slots = connection.calls.send_packed_command(&ask).await?.extract_error()?;
    let host = node.host_and_port().map_or("", |(host, _)| host);
    let ranges = read(slots, host).map_err(|UnexpectedShape| {
        RedisError::from((ErrorKind::UnexpectedReturnType, "its reply has an unexpected form"))
    })?;
    // A user may lack the right to ask this.
    let info = connection.calls.send_packed_command(redis::cmd("CLUSTER").arg("INFO")).await?;
    let info = info.extract_error().ok().and_then(|info| reply::text(info).ok());
    Ok((ranges, info.is_none_or(|info| info.contains("cluster_state:ok"))))
}

/// Reads the reply of CLUSTER SLOTS. `asked` is the host that was asked, which some servers leave out.
fn read(slots: Value, asked: &str) -> Shaped<Vec<Range>> {
    let range = |value| -> Shaped<Option<Range>> {
        let mut parts = reply::array(value)?.into_iter();
        let mut next = || parts.next().ok_or(UnexpectedShape);
        let (first, last) = (number(next()?)?, number(next()?)?);
        let mut primary = reply::array(next()?)?.into_iter();
        let mut next = || primary.next().ok_or(UnexpectedShape);
        let host = reply::optional(next()?)?.filter(|host| !host.is_empty());
        let (host, port) = (host.unwrap_or_else(|| asked.to_owned()), number(next()?)?);
        // A node calls another one `?` as long as it does not know the other's name.
        Ok((host != "?" && last < SLOTS).then_some((first, last, host, port)))
    };
    reply::array(slots)?.into_iter().filter_map(|slots| range(slots).transpose()).collect()
}

/// A slot, or a port.
fn number(value: Value) -> Shaped<u16> {
    u16::try_from(reply::int(&value)?).map_err(|_| UnexpectedShape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_read() {
        let text = |text: &str| Value::BulkString(text.into());
        let range = |first, last, host, port| {
            let primary = Value::Array(vec![host, Value::Int(port), text("id"), Value::Array(vec![])]);
            let replica =
                Value::Array(vec![text("10.0.0.9"), Value::Int(1), text("id"), Value::Array(vec![])]);
            Value::Array(vec![Value::Int(first), Value::Int(last), primary, replica])
        };
        let slots = Value::Array(vec![
            range(0, 9, text("10.0.0.1"), 7000),
            range(10, 10, Value::Nil, 7001),
            range(11, 16_383, text(""), 7002),
            range(12, 13, text("?"), 7003),
        ]);
        let found = read(slots, "asked").expect("a map");
        let expected: Vec<Range> =
            [(0, 9, "10.0.0.1", 7000), (10, 10, "asked", 7001), (11, 16_383, "asked", 7002)]
                .map(|(first, last, host, port)| (first, last, host.to_owned(), port))
                .into();
        assert_eq!(found, expected);
        assert!(read(Value::Array(vec![Value::Int(1)]), "asked").is_err());
    }
}
