//! What the configuration means: checked values with units, as the rest of the host reads them.
//!
//! Not here: what the file says and how it is checked (`general` and the files beside it).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use rustls::pki_types::CertificateDer;

use super::allowed::AllowedHost;
use super::secret::Secret;
use super::times::Times;

/// A whole, valid configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The file it came from; relative paths in it were resolved against its folder.
    pub path: PathBuf,
    pub plugins_dir: PathBuf,
    /// Compiled-code cache and embedded Redis.
    pub data_dir: PathBuf,
    /// How long running attempts may take to end at shutdown.
    pub shutdown_grace: Duration,
    /// Attempts running at once, of all queues together; none: only the queues' own concurrency counts.
    pub concurrency: Option<u32>,
    /// Bytes of memory of all handlers together; none: a share of what there is.
    pub memory: Option<u64>,
    pub redis: Redis,
    pub admin: Admin,
    /// In the order of the file.
    pub queues: Vec<Queue>,
    /// Grants by plugin name; a plugin that is not here has the defaults ([`Plugin::default`]).
    pub plugins: BTreeMap<String, Plugin>,
    /// What is odd but keeps nothing from running, for the log.
    pub warnings: Vec<String>,
}

/// Where Redis is.
#[derive(Debug, Clone, PartialEq)]
pub enum Redis {
    /// A private server under `data_dir`, for as long as the host lives.
    Embedded,
    /// `redis://`, `rediss://` or `redis+unix://`; may hold a password.
    Url(Secret),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Admin {
    pub listen: SocketAddr,
    /// Always there when `listen` is not a loopback address.
    pub token: Option<Secret>,
}

/// One queue and its rules.
#[derive(Debug, Clone, PartialEq)]
pub struct Queue {
    pub name: String,
    pub stream: String,
    pub group: String,
    pub plugin: String,
    /// Attempts running at once, in this host; at least 1.
    pub concurrency: u32,
    /// Tasks that a handler with `batch-handler` gets in one call.
    pub batch: Batch,
    /// Weight among the queues that compete for the host's concurrency; at least 1.
    pub priority: u32,
    pub lease: Duration,
    pub timeout: Duration,
    pub max_retries: u32,
    pub backoff: Backoff,
    pub max_deferrals: u32,
    pub max_crashes: u32,
    /// Queued, delayed and running tasks beyond which enqueueing is refused.
    pub max_backlog: u32,
    /// Tasks claimed, in all hosts together.
    pub rate_limit: Option<Rate>,
    /// Which tasks are the same task, and for how long after its end.
    pub idempotency: Idempotency,
    /// How long status and result are kept after the end; zero keeps none.
    pub retention: Duration,
    /// A Redis list whose items become tasks, with the item as the field `data`.
    pub list: Option<List>,
    /// When the host itself enqueues tasks.
    pub schedule: Option<Schedule>,
    /// The dead-letter stream's key, when it is not the default one.
    pub dead_letter: Option<String>,
}

/// How tasks are put together for one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// At least 1, which means no batches; none: as many as the queue's concurrency.
    pub max_tasks: Option<u32>,
    /// How long the first of them waits for the others.
    pub max_wait: Duration,
}

impl Queue {
    /// Tasks in one call, at most: never more than may run at once.
    pub fn largest_batch(&self) -> usize {
        self.batch.max_tasks.map_or(self.concurrency, |most| most.min(self.concurrency)) as usize
    }
}

/// Tasks that come by the clock.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    pub times: Times,
    pub missed: Missed,
    /// The fields of each of its tasks, beside [`Schedule::TIME_FIELD`].
    pub fields: Vec<(String, String)>,
}

impl Schedule {
    /// The field that tells a task the time that it was enqueued for, in milliseconds since the Unix epoch.
    pub const TIME_FIELD: &str = "scheduled_at";
}

/// What becomes of times at which no task could be enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missed {
    /// One task for all of them.
    Once,
    /// Nothing.
    Skip,
}

/// A Redis list that feeds a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    pub key: String,
    pub items: Items,
}

/// What the items of a list are; a task of the queue with another `data` is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Items {
    /// Anything.
    Bytes,
    /// One JSON value each.
    Json,
}

/// So many in so long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// At least 1.
    pub count: u32,
    pub per: Duration,
}

/// What makes two tasks one: a key that the producer gives, as `tq-key` or in a field of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Idempotency {
    /// The field that holds the key of a task without `tq-key`.
    pub field: Option<String>,
    /// How long after the end of a task its key still stands for it.
    pub window: Duration,
}

impl Default for Idempotency {
    fn default() -> Self {
        Idempotency { field: None, window: Duration::from_secs(24 * 3600) }
    }
}

/// How long a failed task waits for its next attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Backoff {
    /// `base · 2^(attempt-1)`, at most `max`, spread by ± `jitter` (0 to 1) of itself.
    Exponential {
        base: Duration,
        max: Duration,
        jitter: f64,
    },
    /// The n-th retry waits for the n-th delay; the last one serves for all further ones. Never empty.
    Delays(Vec<Duration>),
    None,
}

/// What one plugin is granted.
#[derive(Debug, Clone, PartialEq)]
pub struct Plugin {
    /// Read by the handler through `wasi:config/store`; every value may be a secret.
    pub config: BTreeMap<String, Secret>,
    /// Bytes of all memories of one instance together.
    pub memory: u64,
    /// Bytes of one result.
    pub max_output: u64,
    /// Bytes of log lines in a second, of all its handlers in this host; eight times as much at once.
    pub max_log_rate: u64,
    /// Where its handlers may send requests; empty: nowhere.
    pub allowed_hosts: Vec<AllowedHost>,
    pub http: Http,
    /// What is kept of its instances when their task has ended; None: nothing, every task has a fresh one.
    pub warm: Option<Warm>,
}

impl Plugin {
    /// The keys whose values differ.
    pub fn differences(&self, other: &Plugin) -> Vec<&'static str> {
        let Plugin { config, memory, max_output, max_log_rate, allowed_hosts, http, warm } = self;
        let differ = [
            ("config", *config != other.config),
            ("memory", *memory != other.memory),
            ("max_output", *max_output != other.max_output),
            ("max_log_rate", *max_log_rate != other.max_log_rate),
            ("allowed_hosts", *allowed_hosts != other.allowed_hosts),
            ("http", *http != other.http),
            ("instance", *warm != other.warm),
        ];
        differ.into_iter().filter_map(|(key, differs)| differs.then_some(key)).collect()
    }
}

/// Instances that are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Warm {
    /// How many wait for a task at most.
    pub idle: u32,
    /// How many tasks one of them has at most.
    pub max_tasks: u32,
}

impl Default for Plugin {
    fn default() -> Self {
        Plugin {
            config: BTreeMap::new(),
            memory: 128 << 20,
            max_output: 1 << 20,
            max_log_rate: 1 << 20,
            allowed_hosts: Vec::new(),
            http: Http::default(),
            warm: None,
        }
    }
}

/// What one request may take, and how many there may be.
#[derive(Debug, Clone, PartialEq)]
pub struct Http {
    /// For a free connection, the name's lookup, the connection and the TLS handshake together.
    pub connect_timeout: Duration,
    /// From sending to the response's head.
    pub first_byte_timeout: Duration,
    pub between_bytes_timeout: Duration,
    /// The whole of one request; none: until the attempt ends.
    pub timeout: Option<Duration>,
    /// Requests of one attempt whose response is not read to its end.
    pub max_concurrent: u32,
    /// The same of all attempts in this host.
    pub max_connections: u32,
    /// Requests of one attempt.
    pub max_requests: u32,
    pub max_request_body: u64,
    pub max_response_body: u64,
    /// Beside the system's.
    pub ca: Vec<CertificateDer<'static>>,
}

impl Default for Http {
    fn default() -> Self {
        Http {
            connect_timeout: Duration::from_secs(10),
            first_byte_timeout: Duration::from_secs(60),
            between_bytes_timeout: Duration::from_secs(30),
            timeout: None,
            max_concurrent: 8,
            max_connections: 256,
            max_requests: 1000,
            max_request_body: 16 << 20,
            max_response_body: 16 << 20,
            ca: Vec::new(),
        }
    }
}
