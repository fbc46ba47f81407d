//! Asks Sentinels which server is the primary now.
//!
//! In: the addresses of Sentinels, and the name by which they know the primary. Out: the primary, and a new
//! one as soon as one Sentinel tells of it. Each Sentinel is asked every second, and also tells of a failover
//! unasked (`+switch-master`). Then all calls to the old primary are given up at once: that server goes on
//! taking writes for seconds, and loses them when it becomes a replica.
//!
//! The answer with the higher epoch counts, because a Sentinel that was cut off names an old primary.
//!
//! Not here: whether a server believes that it is the primary (`nodes`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::SendError;
use redis::{AsyncConnectionConfig, ErrorKind, Pipeline, RedisError, RedisResult, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use super::connect::{CONNECT_TIMEOUT, Endpoint};
use super::error::timed_out;
use super::node::Node;
use super::reply;
use crate::guarded::Guarded;

/// The time between two questions to a Sentinel.
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
    /// The login and the TLS of the primary, with the address of any server.
    like_primary: Endpoint,
    current: Guarded<Option<Primary>>,
    /// When all Sentinels were last asked, and the error if none of them named the primary. The caller that
    /// asks them holds the lock.
    asking: tokio::sync::Mutex<Option<(Instant, Option<RedisError>)>>,
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
    /// `like_primary` is any server with the login and the TLS of the primary.
    pub(super) fn new(master: String, all: Vec<Endpoint>, like_primary: Endpoint) -> Arc<Sentinels> {
        let (current, asking, is_watched) = Default::default();
        Arc::new(Sentinels { master, all, like_primary, current, asking, is_watched })
    }

    /// The primary, if it is known.
    pub(super) fn known(&self) -> Option<Arc<Node>> {
        self.current.lock().as_ref().map(|primary| primary.node.clone())
    }

    /// The primary.
    pub(super) async fn primary(self: Arc<Self>) -> RedisResult<Arc<Node>> {
        let in_charge = || self.known().filter(|node| !node.is_replaced());
        if let Some(node) = in_charge() {
            return Ok(node);
        }
        let since = Instant::now();
        let mut asked = self.asking.lock().await;
        if let Some(node) = in_charge() {
            return Ok(node);
        }
        match &*asked {
            // While this caller waited for the lock, another one asked, without success.
            Some((at, Some(error))) if *at >= since => return Err(error.clone()),
            Some((at, _)) => sleep_until(*at + AGAIN).await,
            None => {}
        }
        let at = Instant::now();
        let found = self.find().await;
        *asked = Some((at, found.as_ref().err().cloned()));
        found?;
        in_charge().ok_or_else(|| {
            RedisError::from((ErrorKind::Io, "the Sentinels name a server that is not the primary any more"))
        })
    }

    /// Asks all Sentinels, and takes the newest answer.
    async fn find(self: &Arc<Self>) -> RedisResult<()> {
        if !self.is_watched.swap(true, Ordering::Relaxed) {
            (0..self.all.len()).for_each(|number| drop(tokio::spawn(watch(Arc::downgrade(self), number))));
        }
        let answers = self.all.iter().map(|sentinel| async {
            let asked = tokio::time::timeout(ANSWER, self.ask(sentinel));
            asked.await.unwrap_or_else(|_| Err(timed_out()))
        });
        let answers = futures_util::future::join_all(answers).await;
        // The answers of the Sentinels that know the primary.
        let named = || answers.iter().flatten().flatten();
        if let Some(newest) = named().max_by_key(|answer| answer.epoch) {
            let agreed = named().filter(|answer| *answer == newest).count();
            return self.take(newest, 2 * agreed > self.all.len());
        }
        let error = answers.into_iter().find_map(Result::err);
        Err(error.unwrap_or_else(|| {
            let why = "the Sentinels know no primary by the name in redis.sentinel.master";
            RedisError::from((ErrorKind::MasterNameNotFoundBySentinel, why))
        }))
    }

    /// Takes the answer of a Sentinel. An answer with an older epoch is ignored, because it may come from a
    /// Sentinel that was cut off and still names the old primary. It counts only if the known primary is
    /// replaced already and most Sentinels agree on the answer (`is_agreed`), as after SENTINEL RESET.
    fn take(&self, answer: &NamedPrimary, is_agreed: bool) -> RedisResult<()> {
        let mut current = self.current.lock();
        if let Some(known) = &mut *current {
            let is_same = known.node.is_at(&answer.host, answer.port);
            if is_same && !known.node.is_replaced() {
                known.epoch = if is_agreed { answer.epoch } else { known.epoch.max(answer.epoch) };
                return Ok(());
            }
            // One epoch has one primary. Another address in it is another name of the same server.
            let is_old = if is_same { answer.epoch < known.epoch } else { answer.epoch <= known.epoch };
            if is_old && !(is_agreed && known.node.is_replaced()) {
                return Ok(());
            }
        }
        let node = Node::named(&self.like_primary, &answer.host, answer.port, true)?;
        if let Some(before) = current.replace(Primary { epoch: answer.epoch, node: node.clone() }) {
            before.node.replace();
            // Between the old primary and the new one, nobody could renew a lease.
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
        // While a Sentinel carries out a failover, SENTINEL MASTER names the old primary with the new epoch.
        let words = |what| redis::cmd("SENTINEL").arg(what).arg(&self.master).to_owned();
        let mut both = Pipeline::with_capacity(2);
        both.ignore_errors().add_command(words("GET-MASTER-ADDR-BY-NAME")).add_command(words("MASTER"));
        let mut replies = connection.send_packed_commands(&both, 0, 2).await?.into_iter();
        let mut reply = || replies.next().unwrap_or(Value::Nil).extract_error();
        let (address, about) = (reply()?, reply());
        match about {
            Err(error) if error.to_string().contains("No such master") => Ok(None),
            Err(error) => Err(error),
            Ok(about) => answer(address, about).map(Some).ok_or_else(|| {
                RedisError::from((ErrorKind::UnexpectedReturnType, "its reply has an unexpected form"))
            }),
        }
    }
}

/// Reads the address of the primary, and its epoch from the fields of SENTINEL MASTER.
fn answer(address: Value, about: Value) -> Option<NamedPrimary> {
    let about = reply::pairs(about).ok()?;
    let [host, port] = reply::tuple(address).ok()?;
    Some(NamedPrimary {
        epoch: reply::number_of(&about, "config-epoch")?,
        host: reply::text(host).ok()?,
        port: reply::text(port).ok()?.parse().ok()?,
    })
}

/// Listens to the Sentinel with this number until the last handle of `sentinels` is dropped.
async fn watch(sentinels: Weak<Sentinels>, number: usize) {
    let switched = Arc::new(Notify::new());
    while let Some(sentinel) = sentinels.upgrade().and_then(|all| all.all.get(number).cloned()) {
        if let Err(error) = listen(&sentinels, &sentinel, &switched).await {
            tracing::debug!(sentinel = number, %error, "a Sentinel does not answer");
        }
        sleep(ASK_EVERY).await;
    }
}

/// Asks one Sentinel every second, and whenever it tells of a new primary. Returns the error that ends the
/// connection.
async fn listen(sentinels: &Weak<Sentinels>, sentinel: &Endpoint, switched: &Arc<Notify>) -> RedisResult<()> {
    let tell = switched.clone();
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(ANSWER))
        .set_push_sender(move |_| {
            tell.notify_one();
            Ok::<(), SendError>(())
        });
    let mut connection = sentinel.taking_messages()?.connect(&config).await?;
    connection.calls.subscribe(SWITCHED).await?;
    while let Some(all) = sentinels.upgrade() {
        if let Some(answer) = all.ask_on(&mut connection.calls).await? {
            all.take(&answer, false)?;
        }
        drop(all);
        let _ = tokio::time::timeout(ASK_EVERY, switched.notified()).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_answer_counts_only_if_the_sentinels_agree_on_it() {
        let server = || Endpoint::new("redis://127.0.0.1:1", &Default::default()).expect("a URL");
        let sentinels = Sentinels::new("main".to_owned(), vec![server()], server());
        let take = |host: &str, epoch, is_agreed| {
            let answer = NamedPrimary { epoch, host: host.to_owned(), port: 1 };
            sentinels.take(&answer, is_agreed).expect("an address");
            sentinels.known().expect("a primary").address.to_string()
        };
        assert_eq!(take("a", 1, false), "a:1");
        assert_eq!(take("b", 2, false), "b:1");
        // A Sentinel that carries out a failover, one that was away, and the same server by another name.
        for (host, epoch) in [("a", 2), ("a", 1), ("c", 2)] {
            assert_eq!(take(host, epoch, false), "b:1", "{host} {epoch}");
            assert_eq!(take(host, epoch, true), "b:1", "what is in charge stays: {host} {epoch}");
        }
        assert_eq!(take("b", 5, false), "b:1");
        assert_eq!(take("a", 4, false), "b:1", "the epoch of the same server is noted");
        sentinels.known().expect("a primary").replace();
        assert_eq!(take("a", 4, false), "b:1", "one Sentinel may be cut off");
        assert_eq!(take("a", 4, true), "a:1");
    }
}
