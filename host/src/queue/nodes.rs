//! The servers of Redis: one, the primary that Sentinels name, or the nodes of a cluster.
//!
//! In: the configuration, the keys of calls, and what servers answer. Out: the server for a call. This is
//! what a refusal means:
//!
//! | answer | meaning |
//! |---|---|
//! | MOVED | another node has the slot: ask there at once, and ask for the whole map |
//! | ASK | the key has moved already, the slot moves: ask there, this once |
//! | TRYAGAIN | some keys of the call have moved: nothing was done, ask again until the slot has moved |
//! | CLUSTERDOWN, MASTERDOWN | Redis counts as unreachable: the caller asks again later, perhaps at another node |
//! | LOADING, NOREPLICAS | Redis counts as unreachable: the caller asks again later |
//! | READONLY, a connection that fails | another server may be in charge by now: find out |
//! | UNBLOCKED | the slot or the role moved during a blocked read: the caller handles it as NOGROUP |
//!
//! Not here: connections (`connections`), sending (`link`), asking Sentinels (`sentinels`) and nodes
//! (`cluster`).

use std::sync::Arc;

use redis::{Cmd, RedisError, RedisResult};

use super::cluster::{Cluster, SLOTS};
use super::node::Node;
use super::script::words;
use super::sentinels::Sentinels;

/// Where a call goes.
#[derive(Debug, Clone)]
pub(super) enum Destination {
    /// Any server will do.
    Any,
    /// The primary that has this slot.
    Slot(u16),
    Node(Arc<Node>),
}

impl Destination {
    pub(super) fn slot(&self) -> Option<u16> {
        if let Destination::Slot(slot) = self { Some(*slot) } else { None }
    }
}

/// All servers.
#[derive(Debug, Clone)]
pub(super) enum Nodes {
    Single(Arc<Node>),
    Sentinel(Arc<Sentinels>),
    Cluster(Arc<Cluster>),
}

/// Where a call that a node of a cluster refused is sent.
#[derive(Debug)]
pub(super) enum Redirect {
    To(Arc<Node>),
    /// To this node, behind an ASKING.
    Asking(Arc<Node>),
    /// To the same node, later.
    Later,
}

impl Nodes {
    /// The server for a call.
    pub(super) async fn of(&self, to: &Destination) -> RedisResult<Arc<Node>> {
        match self.known(to).filter(|node| !node.is_replaced()) {
            Some(node) => Ok(node),
            // The boxed future is large: without the box every call would be as large.
            None => Box::pin(self.find(to)).await,
        }
    }

    /// Asks Sentinels or nodes of a cluster for the server of a destination.
    async fn find(&self, to: &Destination) -> RedisResult<Arc<Node>> {
        match (self, to) {
            (_, Destination::Node(node)) | (Nodes::Single(node), _) => Ok(node.clone()),
            (Nodes::Sentinel(sentinels), _) => sentinels.clone().primary().await,
            (Nodes::Cluster(cluster), to) => cluster.of(to.slot()).await,
        }
    }

    /// The server of a destination, if it is known without asking.
    pub(super) fn known(&self, to: &Destination) -> Option<Arc<Node>> {
        match (self, to) {
            (_, Destination::Node(node)) | (Nodes::Single(node), _) => Some(node.clone()),
            (Nodes::Sentinel(sentinels), _) => sentinels.known(),
            (Nodes::Cluster(cluster), to) => cluster.known(to.slot()),
        }
    }

    /// All primaries.
    pub(super) async fn all(&self) -> RedisResult<Vec<Arc<Node>>> {
        match self {
            Nodes::Cluster(cluster) => cluster.all().await,
            _ => Ok(vec![self.of(&Destination::Any).await?]),
        }
    }

    /// How often slots have changed hands.
    pub(super) fn moves(&self) -> u64 {
        match self {
            Nodes::Cluster(cluster) => cluster.moves(),
            _ => 0,
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Nodes::Cluster(_))
    }

    /// The destination of a call with this key.
    pub(super) fn destination_of_key(&self, key: &[u8]) -> Destination {
        match self {
            Nodes::Cluster(_) => Destination::Slot(slot_of(key)),
            _ => Destination::Any,
        }
    }

    /// The destination of a command by its first key. None: it has no key, or this is no cluster.
    pub(super) fn destination_of(&self, command: &Cmd) -> Option<Destination> {
        let key = first_key(command).filter(|_| self.is_cluster())?;
        Some(Destination::Slot(slot_of(key)))
    }

    /// Finds out whether another server is in charge by now: this one cannot be reached, or says that it is
    /// not.
    pub(super) fn suspect(&self, node: &Node) {
        match self {
            // Sentinels tell of another primary unasked, and each new connection asks for the server's role.
            Nodes::Single(_) | Nodes::Sentinel(_) => {}
            Nodes::Cluster(cluster) => cluster.suspect(node),
        }
    }

    /// Where a call is sent that `node` refused with this error. None: the error is the reply.
    pub(super) fn redirect(&self, error: &RedisError, node: &Node) -> Option<Redirect> {
        let Nodes::Cluster(cluster) = self else { return None };
        match error.code()? {
            "MOVED" => {
                cluster.mark_stale();
                let (address, slot) = error.redirect_node()?;
                cluster.moved(slot, address, node).map(Redirect::To)
            }
            "ASK" => cluster.node_at(error.redirect_node()?.0, node).map(Redirect::Asking),
            "TRYAGAIN" => Some(Redirect::Later),
            // This node may be cut off from the others.
            "CLUSTERDOWN" | "MASTERDOWN" | "UNBLOCKED" => {
                cluster.mark_stale();
                None
            }
            _ => None,
        }
    }
}

/// The first key of a command that tqhost sends. All its keys have one slot.
fn first_key(command: &Cmd) -> Option<&[u8]> {
    let mut words = words(command);
    match words.next()? {
        b"PING" | b"TIME" | b"INFO" | b"CONFIG" | b"SCAN" | b"SCRIPT" | b"FUNCTION" | b"ROLE" => None,
        b"EVALSHA" | b"EVALSHA_RO" | b"FCALL" | b"FCALL_RO" => words.nth(2),
        b"XGROUP" | b"XINFO" | b"MEMORY" => words.nth(1),
        b"XREAD" | b"XREADGROUP" => words.skip_while(|word| *word != b"STREAMS").nth(1),
        _ => words.next(),
    }
}

/// The slot of a key in a cluster: CRC-16 (XMODEM) of its hash tag, as the specification of Redis Cluster
/// has it.
fn slot_of(key: &[u8]) -> u16 {
    let find = |from: &[u8], what| from.iter().position(|byte| *byte == what);
    let tag = find(key, b'{').map(|open| &key[open + 1..]);
    let tag = tag.and_then(|rest| find(rest, b'}').map(|end| &rest[..end])).filter(|tag| !tag.is_empty());
    let crc = tag.unwrap_or(key).iter().fold(0u16, |crc, byte| {
        (0..8)
            .fold(crc ^ u16::from(*byte) << 8, |crc, _| crc << 1 ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 })
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_slots_that_redis_gives_them() {
        // As CLUSTER KEYSLOT of Redis 7.0.15 tells.
        for (key, slot) in [("123456789", 12739), ("foo", 12182), ("a{foo}b", 12182), ("{}foo", 9500)] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
    }

    #[test]
    fn a_command_goes_where_its_first_key_is() {
        let key = |words: &[&str]| {
            let mut command = redis::cmd(words[0]);
            command.arg(&words[1..]);
            first_key(&command).map(|key| String::from_utf8_lossy(key).into_owned())
        };
        let table: [(&[&str], Option<&str>); 8] = [
            (&["GET", "k"], Some("k")),
            (&["TIME"], None),
            (&["FCALL", "f", "2", "k", "l", "a"], Some("k")),
            (&["EVALSHA_RO", "sha", "1", "k"], Some("k")),
            (&["XINFO", "GROUPS", "k"], Some("k")),
            (&["XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "STREAMS", "k", ">"], Some("k")),
            (&["MEMORY", "USAGE", "k"], Some("k")),
            (&["SCAN", "0", "MATCH", "k"], None),
        ];
        for (words, expected) in table {
            assert_eq!(key(words).as_deref(), expected, "{words:?}");
        }
    }
}
