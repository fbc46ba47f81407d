//! Sentinels: which server is the primary now?
//!
//! In: the addresses of Sentinels, and their name of the primary. Out: the primary, and word of a new one as
//! soon as one Sentinel tells of it. Each Sentinel is asked every second, and says by itself when it has
//! switched. Then all calls to the old primary are given up at once: it goes on taking writes for seconds,
//! and loses them when it becomes a replica.
//!
//! The answer with the higher epoch counts, because a Sentinel that was away tells of an old primary.
//!
//! Not here: whether a server believes that it is the primary (`nodes`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::aio::SendError;
use redis::{AsyncConnectionConfig, ErrorKind, RedisError, RedisResult, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use super::connect::{CONNECT_TIMEOUT, Endpoint};
use super::node::Node;
use super::reply;

/// How often each Sentinel is asked.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long a Sentinel may take for an answer.
const ANSWER: Duration = Duration::from_secs(1);
/// The least time between two tries to find the primary.
const AGAIN: Duration = Duration::from_millis(100);

/// The channel on which Sentinels tell of a new primary.
const SWITCHED: &str = "+switch-master";

#[derive(Debug)]
pub(super) struct Sentinels {
    master: String,
    all: Vec<Endpoint>,
    /// A server like the primary, but for its address.
    primary: Endpoint,
    current: Mutex<Option<Primary>>,
    /// When they were asked last.
    asking: tokio::sync::Mutex<Option<Instant>>,
    is_watched: AtomicBool,
}

#[derive(Debug, Clone)]
struct Primary {
    epoch: u64,
    node: Arc<Node>,
}

/// The primary that a Sentinel names.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NamedPrimary {
    epoch: u64,
    host: String,
    port: u16,
}

impl Sentinels {
    /// `primary` is any server with the login and the TLS of the primary.
    pub(super) fn new(master: String, all: Vec<Endpoint>, primary: Endpoint) -> Arc<Sentinels> {
        let (current, asking, is_watched) = Default::default();
        Arc::new(Sentinels { master, all, primary, current, asking, is_watched })
    }

    /// The primary, if it is known.
    pub(super) fn known(&self) -> Option<Arc<Node>> {
        self.current().as_ref().map(|primary| primary.node.clone())
    }

    /// The primary.
    pub(super) async fn primary(self: Arc<Self>) -> RedisResult<Arc<Node>> {
        let in_charge = || self.known().filter(|node| !node.is_replaced());
        if let Some(node) = in_charge() {
            return Ok(node);
        }
        let mut asked = self.asking.lock().await;
        if let Some(node) = in_charge() {
            return Ok(node);
        }
        if let Some(asked) = *asked {
            sleep_until(asked + AGAIN).await;
        }
        *asked = Some(Instant::now());
        if !self.is_watched.swap(true, Ordering::Relaxed) {
            (0..self.all.len()).for_each(|number| drop(tokio::spawn(watch(Arc::downgrade(&self), number))));
        }
        let answers = self.all.iter().map(|sentinel| async {
            let asked = tokio::time::timeout(ANSWER, self.ask(sentinel));
            asked.await.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
        });
        let answers = futures_util::future::join_all(answers).await;
        let newest = answers.iter().flatten().flatten().max_by_key(|answer| answer.epoch);
        match newest {
            Some(answer) => self.take(answer)?,
            None => {
                let error = answers.into_iter().find_map(Result::err);
                return Err(error.unwrap_or_else(|| {
                    let why = "the Sentinels know no primary by the name in redis.sentinel.master";
                    RedisError::from((ErrorKind::MasterNameNotFoundBySentinel, why))
                }));
            }
        }
        in_charge().ok_or_else(|| {
            RedisError::from((ErrorKind::Io, "the Sentinels name a server that is not the primary any more"))
        })
    }

    /// Takes what a Sentinel says, unless it is older than what is known.
    fn take(&self, answer: &NamedPrimary) -> RedisResult<()> {
        let mut current = self.current();
        let known = current.as_ref();
        let known = known.filter(|known| !known.node.is_replaced());
        if known
            .is_some_and(|known| known.epoch > answer.epoch || known.node.is_at(&answer.host, answer.port))
        {
            return Ok(());
        }
        let node = Node::named(&self.primary, &answer.host, answer.port, true)?;
        if let Some(before) = current.replace(Primary { epoch: answer.epoch, node: node.clone() }) {
            before.node.replace();
            // Nobody could renew leases between the two.
            node.interrupted();
            if !before.node.is_at(&answer.host, answer.port) {
                let (old, new) = (before.node.address.as_ref(), node.address.as_ref());
                tracing::warn!(old, new, "the Sentinels name another primary; all calls go there");
            }
        }
        Ok(())
    }

    /// Asks one Sentinel. None: it does not know the primary.
    async fn ask(&self, sentinel: &Endpoint) -> RedisResult<Option<NamedPrimary>> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_TIMEOUT));
        let mut connection = sentinel.connect(&config).await?;
        self.ask_on(&mut connection.calls).await
    }

    async fn ask_on(
        &self,
        connection: &mut redis::aio::MultiplexedConnection,
    ) -> RedisResult<Option<NamedPrimary>> {
        let ask = redis::cmd("SENTINEL").arg("MASTER").arg(&self.master).to_owned();
        match connection.send_packed_command(&ask).await?.extract_error() {
            Err(error) if error.to_string().contains("No such master") => Ok(None),
            Err(error) => Err(error),
            Ok(about) => {
                let read = answer(about);
                read.map(Some).ok_or_else(|| {
                    RedisError::from((ErrorKind::UnexpectedReturnType, "its reply has an unexpected form"))
                })
            }
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<Primary>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the fields of SENTINEL MASTER.
fn answer(about: Value) -> Option<NamedPrimary> {
    let pairs = match about {
        Value::Map(pairs) => {
            pairs.into_iter().map(|(name, value)| Some((reply::text(name).ok()?, value))).collect()
        }
        other => {
            let pairs = reply::pairs(other).ok()?;
            let text = |(name, value): (Vec<u8>, Vec<u8>)| {
                Some((String::from_utf8(name).ok()?, Value::BulkString(value)))
            };
            pairs.into_iter().map(text).collect::<Option<Vec<_>>>()
        }
    }?;
    let field = |name: &str| {
        let value = pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        value.and_then(|value| reply::text(value).ok())
    };
    Some(NamedPrimary {
        epoch: field("config-epoch")?.parse().ok()?,
        host: field("ip")?,
        port: field("port")?.parse().ok()?,
    })
}

/// Listens to one Sentinel for as long as somebody uses the primary.
async fn watch(sentinels: Weak<Sentinels>, number: usize) {
    let switched = Arc::new(Notify::new());
    while let Some(sentinel) = sentinels.upgrade().and_then(|all| all.all.get(number).cloned()) {
        if let Err(error) = listen(&sentinels, &sentinel, &switched).await {
            tracing::debug!(sentinel = number, %error, "a Sentinel does not answer");
        }
        sleep(ASK_EVERY).await;
    }
}

/// Asks one Sentinel, and again whenever it tells of a new primary, until the connection is lost.
async fn listen(sentinels: &Weak<Sentinels>, sentinel: &Endpoint, switched: &Arc<Notify>) -> RedisResult<()> {
    let tell = switched.clone();
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(ANSWER))
        .set_push_sender(move |_| {
            tell.notify_one();
            Ok::<(), SendError>(())
        });
    let mut connection = sentinel.speaking()?.connect(&config).await?;
    connection.calls.subscribe(SWITCHED).await?;
    while let Some(all) = sentinels.upgrade() {
        if let Some(answer) = all.ask_on(&mut connection.calls).await? {
            all.take(&answer)?;
        }
        drop(all);
        let _ = tokio::time::timeout(ASK_EVERY, switched.notified()).await;
    }
    Ok(())
}
