//! Connections to Redis: [`Redis`] knows its address, and a [`Link`] is one connection that reconnects.
//!
//! In: commands, pipelines and calls of scripts. Out: replies, or a [`QueueError`] that distinguishes a lost
//! connection from a refusal by Redis. A connection that failed in any way is dropped. That includes a
//! timeout, because a half-open connection never answers. The next call connects again, after a growing,
//! jittered delay while Redis is unreachable.
//!
//! The `ConnectionManager` of the crate redis does not do this: it keeps a connection after a timeout, and
//! one to a server that became a replica.
//!
//! Not here: repeating a call. Only the caller knows whether that is safe.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::connect::{CONNECT_TIMEOUT, Endpoint, OpenConnection};
use super::error::QueueError;
use super::reply::{self, UnexpectedShape};
use super::script::{self, Form, Script, ScriptCall};
use crate::chain::chain;
use crate::config::RedisLogin;

/// How long a reply may take, beyond the time for which a call blocks. A stall of five seconds is survived.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The first and the longest delay between connection attempts.
const RECONNECT_DELAY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// A host sends a request at least every second. A longer time without a reply means that Redis was
/// unreachable or stalled.
const SILENCE: Duration = Duration::from_millis(1500);
/// Commands of one pipeline.
const MAX_PIPELINE: usize = 1000;
const LOAD_LIBRARY: &str = "load the library of functions";

/// The address of Redis. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Redis {
    endpoint: Endpoint,
    /// The address without its password, for messages.
    address: Arc<str>,
    reconnects: Arc<AtomicU64>,
    last_reply: Arc<std::sync::Mutex<LastReply>>,
    /// Whether Redis has the library of functions ([`Redis::use_functions`]).
    has_library: Arc<AtomicBool>,
    /// How often this host has loaded the library again. One caller at a time does, for all of them.
    loads: Arc<AtomicU64>,
    loading: Arc<Mutex<()>>,
}

/// When Redis last answered this host, over any connection.
#[derive(Debug, Default)]
struct LastReply {
    at: Option<Instant>,
    recovery: Option<Recovery>,
}

/// How long a silence is held to be a part of the outage before it.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The end of a time in which no lease could be renewed: there was no reply from Redis, or it refused writes.
#[derive(Debug, Clone, Copy)]
pub struct Recovery {
    pub since: Instant,
    /// How long that was. [`Duration::MAX`]: nobody knows, because Redis refused a write.
    pub silence: Duration,
}

impl Redis {
    /// Takes a `redis://`, `rediss://` or `redis+unix://` URL. Does not connect yet.
    pub fn open(url: &str) -> Result<Redis, QueueError> {
        Redis::open_as(url, &RedisLogin::default())
    }

    /// Like [`Redis::open`], as this user and with these certificates.
    pub(crate) fn open_as(url: &str, login: &RedisLogin) -> Result<Redis, QueueError> {
        let address: Arc<str> = without_password(url).into();
        let endpoint =
            Endpoint::new(url, login).map_err(|error| QueueError::new("read [redis]", &address, error))?;
        Ok(Redis {
            endpoint,
            address,
            reconnects: Arc::default(),
            last_reply: Arc::default(),
            has_library: Arc::default(),
            loads: Arc::default(),
            loading: Arc::default(),
        })
    }

    /// The address without its password.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The number of its database.
    pub(crate) fn database(&self) -> i64 {
        self.endpoint.client.get_connection_info().redis_settings().db()
    }

    /// How many connections were replaced after a failure, since the start.
    pub fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Relaxed)
    }

    /// From now on, scripts are called as functions of the library. Loads the library, and deletes the
    /// libraries of other versions; hosts of other versions load their own one again.
    pub(crate) async fn use_functions(&self) {
        let link = self.link();
        self.has_library.store(true, Ordering::Relaxed);
        match link.load_library(true).await {
            Ok(()) => {
                if let Err(error) = link.delete_other_libraries().await {
                    tracing::debug!(error = chain(&error), "libraries of other versions stay in Redis");
                }
            }
            // The first call loads it.
            Err(error) if error.is_connection() => {}
            Err(error) => self.do_without_library(&error),
        }
    }

    /// Sends each script alone, because Redis refuses the library: it is full, or the user lacks the right.
    fn do_without_library(&self, error: &QueueError) {
        self.has_library.store(false, Ordering::Relaxed);
        let why = chain(error);
        tracing::info!(why, "Redis takes no library of functions, so scripts are sent alone");
    }

    fn answered(&self) {
        let now = Instant::now();
        let mut last_reply = self.last_reply.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(silence) =
            last_reply.at.replace(now).map(|last| now - last).filter(|silence| *silence >= SILENCE)
        {
            // An outage may have begun with refused writes, and end with a restart.
            let before = last_reply.recovery.filter(|before| before.since.elapsed() < silence + REMEMBERED);
            let silence = before.map_or(silence, |before| before.silence.max(silence));
            last_reply.recovery = Some(Recovery { since: now, silence });
        }
    }

    /// Notes that Redis refused a write. It goes on answering reads, so there is no silence.
    fn refused_write(&self) {
        let recovery = Recovery { since: Instant::now(), silence: Duration::MAX };
        self.last_reply.lock().unwrap_or_else(PoisonError::into_inner).recovery = Some(recovery);
    }

    /// A connection for ordinary calls, which may be shared.
    pub fn link(&self) -> Link {
        self.link_blocking_for(Duration::ZERO)
    }

    /// A connection for calls that block for at most `block`. It must not be shared: other calls would wait.
    pub fn link_blocking_for(&self, block: Duration) -> Link {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(block + RESPONSE_TIMEOUT));
        Link { redis: self.clone(), config, state: Arc::new(Mutex::new(ConnectionState::default())) }
    }
}

/// One connection that reconnects. Clones share it.
#[derive(Debug, Clone)]
pub struct Link {
    redis: Redis,
    config: AsyncConnectionConfig,
    state: Arc<Mutex<ConnectionState>>,
}

#[derive(Debug, Default)]
struct ConnectionState {
    connection: Option<OpenConnection>,
    /// Counts connections, so that a late error of an old one does not close a new one.
    epoch: u64,
    failures: usize,
    not_before: Option<Instant>,
}

impl Link {
    /// When Redis answered again after a silence of [`SILENCE`] or longer, or last refused a write, over any
    /// connection of this host.
    pub fn recovery(&self) -> Option<Recovery> {
        self.redis.last_reply.lock().unwrap_or_else(PoisonError::into_inner).recovery
    }

    /// The address of this connection, without a password.
    pub fn address(&self) -> &str {
        self.redis.address()
    }

    /// Asks whether Redis answers. It refuses even a PING while it cannot save (MISCONF), and answers reads.
    pub async fn ping(&self) -> Result<(), QueueError> {
        self.ping_for("ping").await
    }

    /// Like [`Link::ping`]. An error says `what` it was for.
    pub(super) async fn ping_for(&self, what: &'static str) -> Result<(), QueueError> {
        match self.command(what, &redis::cmd("PING")).await {
            Err(error) if error.cannot_save() => Ok(()),
            reply => reply.map(drop),
        }
    }

    /// Redis's clock, in milliseconds since the Unix epoch.
    pub(crate) async fn now_ms(&self) -> Result<u64, QueueError> {
        const WHAT: &str = "ask for the time";
        let time = self.command(WHAT, &redis::cmd("TIME")).await?;
        reply::time_ms(time).map_err(|UnexpectedShape| QueueError::unexpected(WHAT, self.address()))
    }

    /// Sends one command.
    pub async fn command(&self, what: &'static str, command: &Cmd) -> Result<Value, QueueError> {
        let (mut connection, epoch) = self.connection(what).await?;
        let reply = connection.calls.send_packed_command(command).await.and_then(Value::extract_error);
        self.check(what, epoch, reply).await
    }

    /// Sends commands in one go and gives each its own reply. The outer error means that the connection
    /// failed: Redis may have carried out any of them.
    pub async fn pipeline(
        &self,
        what: &'static str,
        commands: &[Cmd],
    ) -> Result<Vec<Result<Value, QueueError>>, QueueError> {
        let mut replies = Vec::with_capacity(commands.len());
        for chunk in commands.chunks(MAX_PIPELINE) {
            let (mut connection, epoch) = self.connection(what).await?;
            let mut pipeline = Pipeline::with_capacity(chunk.len());
            pipeline.ignore_errors();
            for command in chunk {
                pipeline.add_command(command.clone());
            }
            let reply = connection.calls.send_packed_commands(&pipeline, 0, chunk.len()).await;
            for value in self.check(what, epoch, reply).await? {
                replies.push(self.check(what, epoch, value.extract_error()).await);
            }
        }
        Ok(replies)
    }

    /// How scripts are called.
    pub(super) fn form(&self) -> Form {
        if self.redis.has_library.load(Ordering::Relaxed) { Form::Function } else { Form::Alone }
    }

    /// Calls a script; loads it first when Redis does not know it.
    pub async fn script(&self, call: &ScriptCall) -> Result<Value, QueueError> {
        self.script_command(call.script, &call.command(self.form())).await
    }

    /// Calls a script with a command that [`Script::command`] began; loads it first when Redis does not know
    /// it.
    pub(super) async fn script_command(&self, script: &Script, command: &Cmd) -> Result<Value, QueueError> {
        self.loaded(script.name, script, command).await
    }

    /// Sends a command that writes a few bytes, and works although the memory of Redis is full. The command's
    /// first argument is its only key.
    pub(super) async fn write(&self, what: &'static str, command: &Cmd) -> Result<Value, QueueError> {
        self.loaded(what, &script::WRITE, &script::write(command).command(self.form())).await
    }

    async fn loaded(&self, what: &'static str, script: &Script, call: &Cmd) -> Result<Value, QueueError> {
        let loads = self.redis.loads.load(Ordering::Acquire);
        let reply = self.command(what, call).await;
        let alone = match &reply {
            Err(error) if error.is_no_function() => match self.load_library_again(loads).await {
                Ok(()) => return self.command(what, call).await,
                Err(error) if error.is_connection() => return Err(error),
                Err(error) => {
                    self.redis.do_without_library(&error);
                    &script.alone(call)
                }
            },
            Err(error) if error.is_denied_function() => {
                self.redis.do_without_library(error);
                &script.alone(call)
            }
            Err(error) if error.is_no_script() => call,
            _ => return reply,
        };
        self.load(script).await?;
        self.command(what, alone).await
    }

    /// Calls scripts in one go. Scripts that Redis forgot (restart, `SCRIPT FLUSH`) are loaded, and only
    /// their calls are repeated.
    pub async fn scripts(
        &self,
        what: &'static str,
        calls: &[ScriptCall],
    ) -> Result<Vec<Result<Value, QueueError>>, QueueError> {
        let form = self.form();
        let commands: Vec<Cmd> = calls.iter().map(|call| call.command(form)).collect();
        let mut replies = self.pipeline(what, &commands).await?;
        for (reply, call) in replies.iter_mut().zip(calls) {
            if reply.as_ref().is_err_and(QueueError::is_not_begun) {
                *reply = self.script(call).await;
            }
        }
        Ok(replies)
    }

    async fn load(&self, script: &Script) -> Result<(), QueueError> {
        self.command("load a script", redis::cmd("SCRIPT").arg("LOAD").arg(&script.source)).await.map(drop)
    }

    /// Loads the library because Redis did not have it, unless another caller of this host has loaded it
    /// since: all calls that are under way miss it at once, and to read it keeps Redis busy for some
    /// milliseconds.
    async fn load_library_again(&self, loads: u64) -> Result<(), QueueError> {
        let _loading = self.redis.loading.lock().await;
        if self.redis.loads.load(Ordering::Acquire) == loads {
            self.load_library(false).await?;
            self.redis.loads.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    /// Loads the library. `replaces`: what stands under its name goes, since a name proves nothing. Otherwise
    /// it stays, because another host has just loaded it.
    async fn load_library(&self, replaces: bool) -> Result<(), QueueError> {
        let mut load = redis::cmd("FUNCTION").arg("LOAD").clone();
        load.arg(replaces.then_some("REPLACE")).arg(&script::LIBRARY.text);
        match self.command(LOAD_LIBRARY, &load).await {
            Err(error) if !error.is_loaded() => Err(error),
            _ => Ok(()),
        }
    }

    async fn delete_other_libraries(&self) -> Result<(), QueueError> {
        const WHAT: &str = "delete libraries of other versions";
        let pattern = format!("{}*", script::LIBRARIES);
        let list =
            self.command(WHAT, redis::cmd("FUNCTION").arg("LIST").arg("LIBRARYNAME").arg(pattern)).await?;
        let names =
            library_names(list).map_err(|UnexpectedShape| QueueError::unexpected(WHAT, self.address()))?;
        for name in names.iter().filter(|name| **name != script::LIBRARY.name) {
            self.command(WHAT, redis::cmd("FUNCTION").arg("DELETE").arg(name)).await?;
        }
        Ok(())
    }

    /// The present connection, or a new one. While Redis is unreachable, callers wait in line here, so that
    /// any number of loops makes no more connection attempts than the delays allow.
    async fn connection(&self, what: &'static str) -> Result<(OpenConnection, u64), QueueError> {
        let mut state = self.state.lock().await;
        if let Some(connection) = &state.connection {
            return Ok((connection.clone(), state.epoch));
        }
        if let Some(not_before) = state.not_before {
            tokio::time::sleep_until(not_before).await;
        }
        // A handshake has a large future, which would be a part of that of every call.
        match Box::pin(self.redis.endpoint.connect(&self.config)).await {
            Ok(connection) => {
                if state.epoch > 0 {
                    self.redis.reconnects.fetch_add(1, Ordering::Relaxed);
                }
                *state = ConnectionState {
                    connection: Some(connection.clone()),
                    epoch: state.epoch + 1,
                    failures: 0,
                    not_before: None,
                };
                Ok((connection, state.epoch))
            }
            Err(error) => {
                state.not_before = Some(Instant::now() + reconnect_delay(state.failures));
                state.failures += 1;
                Err(QueueError::new(what, &self.redis.address, error))
            }
        }
    }

    /// Drops the connection if the error means that it is unusable.
    async fn check<T>(
        &self,
        what: &'static str,
        epoch: u64,
        reply: Result<T, RedisError>,
    ) -> Result<T, QueueError> {
        match reply {
            Ok(value) => {
                self.redis.answered();
                Ok(value)
            }
            Err(error) => {
                if refuses_writes(&error) {
                    self.redis.refused_write();
                }
                if ends_connection(&error) {
                    let mut state = self.state.lock().await;
                    if state.epoch == epoch {
                        state.connection = None;
                        state.not_before = Some(Instant::now() + reconnect_delay(0));
                    }
                }
                Err(QueueError::new(what, &self.redis.address, error))
            }
        }
    }
}

/// The names in a reply of FUNCTION LIST. Each library is told as names and values.
fn library_names(list: Value) -> reply::Shaped<Vec<String>> {
    let name_of = |library| -> reply::Shaped<String> {
        let mut about = reply::array(library)?.into_iter();
        while let (Some(name), Some(value)) = (about.next(), about.next()) {
            if reply::text(name)? == "library_name" {
                return reply::text(value);
            }
        }
        Err(UnexpectedShape)
    };
    reply::array(list)?.into_iter().map(name_of).collect()
}

/// A server that became a replica, or lost its primary, may have a successor at the same address.
fn ends_connection(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(kind) => matches!(
            kind,
            ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown | ServerErrorKind::BusyLoading
        ),
        ErrorKind::Io | ErrorKind::Parse => true,
        _ => error.is_unrecoverable_error() || error.is_timeout(),
    }
}

/// Whether Redis refuses the writes of all clients: it cannot save, has too few replicas, or is one.
fn refuses_writes(error: &RedisError) -> bool {
    matches!(error.code(), Some("MISCONF" | "NOREPLICAS" | "READONLY"))
}

/// The delay after the n-th failure in a row.
fn reconnect_delay(failures: usize) -> Duration {
    let (min, max) = RECONNECT_DELAY;
    let delays = ExponentialBuilder::default()
        .with_min_delay(min)
        .with_max_delay(max)
        .with_max_times(usize::MAX)
        .with_jitter();
    // With jitter a delay is up to twice as long, and never shorter.
    delays.build().nth(failures.min(16)).unwrap_or(max).min(max * 2)
}

/// The URL for display: without user, password and query.
fn without_password(url: &str) -> String {
    let url = url.split('?').next().unwrap_or_default();
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_shows_no_password() {
        assert_eq!(without_password("redis://user:p@ss@host:6379/2?x=secret"), "redis://host:6379/2");
        assert_eq!(
            without_password("redis+unix:///run/redis.sock?pass=secret"),
            "redis+unix:///run/redis.sock"
        );
        assert_eq!(without_password("redis://127.0.0.1"), "redis://127.0.0.1");
    }

    #[test]
    fn reconnect_delays_grow_and_are_bounded() {
        assert!(reconnect_delay(0) <= Duration::from_millis(200));
        for failures in [5, 100, 10_000] {
            let delay = reconnect_delay(failures);
            assert!(delay >= Duration::from_secs(2) && delay <= Duration::from_secs(4), "{delay:?}");
        }
    }
}
