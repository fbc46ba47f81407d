//! The configuration as the rest of the host reads it: checked values with units.
//!
//! Not here: reading and checking the file (`general` and the files beside it).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;
use ipnet::IpNet;
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use strum::{EnumString, IntoStaticStr};

use super::allowed::AllowedHost;
use super::oci::OciReference;
use super::place::{FieldPlace, ValueAt};
use super::records::RecordGrants;
use super::secret::Secret;
use super::store::BlobSettings;
use super::times::ScheduleTimes;

/// A whole, valid configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The file it came from; relative paths in it were resolved against its folder.
    pub path: PathBuf,
    pub plugins_dir: PathBuf,
    /// Compiled-code cache, embedded Redis, and blobs unless `blobs` says otherwise.
    pub data_dir: PathBuf,
    /// How long running attempts may take to end at shutdown.
    pub shutdown_grace: Duration,
    /// Attempts running at once, of all queues together. None: only each queue's own concurrency is a bound.
    pub concurrency: Option<u32>,
    /// Bytes of memory of all handlers together. None: a share of the machine's memory.
    pub memory: Option<u64>,
    pub redis: RedisServer,
    /// How long a host that starts waits for a Redis that cannot be reached.
    pub redis_wait: Duration,
    pub admin: Admin,
    /// The collector of traces. None: no traces are sent.
    pub telemetry: Option<Telemetry>,
    /// Where handlers keep files.
    pub blobs: BlobSettings,
    /// In the order of the file.
    pub queues: Vec<QueueRules>,
    /// Grants by plugin name; a plugin that is not here has the defaults ([`Plugin::default`]).
    pub plugins: BTreeMap<String, Plugin>,
    /// Oddities that do not keep the host from running, for the log.
    pub warnings: Vec<String>,
    /// The files that hold secrets; the configuration file is among them if it holds one itself.
    pub secret_files: BTreeSet<PathBuf>,
}

impl Config {
    /// Where compiled code is kept.
    pub(crate) fn cache_dir(&self) -> PathBuf {
        self.data_dir.join("cache")
    }

    /// Where plugins from registries are kept.
    pub(crate) fn pulled_dir(&self) -> PathBuf {
        self.data_dir.join("pulled")
    }

    /// Where the file of a plugin is, if it is there.
    pub(crate) fn plugin_path(&self, plugin: &str) -> PathBuf {
        let has_source = self.plugins.get(plugin).is_some_and(|plugin| plugin.source.is_some());
        let folder = if has_source { self.pulled_dir() } else { self.plugins_dir.clone() };
        folder.join(format!("{plugin}.wasm"))
    }
}

/// The collector of traces.
#[derive(Debug, Clone, PartialEq)]
pub struct Telemetry {
    /// The whole url for traces.
    pub otlp: String,
    pub headers: Vec<(String, Secret)>,
    /// The part of the traces that begin here and are sent.
    pub sample: f64,
    /// The most of them in a second.
    pub max_traces: u32,
    pub service: String,
    /// Certificates that are trusted in addition to those of the system.
    pub ca: Vec<CertificateDer<'static>>,
}

/// Where Redis is.
#[derive(Debug, Clone, PartialEq)]
pub enum RedisServer {
    /// A private server under `data_dir`, for as long as the host lives.
    Embedded,
    /// The url is `redis://`, `rediss://` or `redis+unix://`; it may hold a password.
    At { url: Secret, login: Box<RedisLogin> },
    /// A cluster, by the urls of some of its nodes, which know the others.
    Cluster { urls: Vec<Secret>, login: Box<RedisLogin> },
    /// The primary that Sentinels name.
    Sentinel { watch: Box<SentinelWatch>, login: Box<RedisLogin> },
}

/// The Sentinels that watch a primary.
#[derive(Debug, Clone, PartialEq)]
pub struct SentinelWatch {
    /// Their name of the primary.
    pub master: String,
    /// All have the same scheme, which is that of the primary, too. At least one.
    pub urls: Vec<Secret>,
    /// The host's user at the Sentinels. Only set beside `password`.
    pub username: Option<String>,
    pub password: Option<Secret>,
}

/// The host's identity for Redis, and whom it trusts, beside what the url says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RedisLogin {
    /// Only set beside `password`.
    pub username: Option<String>,
    pub password: Option<Secret>,
    /// The certificates of authorities, in PEM, that are trusted in place of the system's.
    pub ca: Option<String>,
    pub identity: Option<TlsIdentity>,
}

/// A client's certificate and its private key, in PEM.
#[derive(Debug, Clone, PartialEq)]
pub struct TlsIdentity {
    pub cert: String,
    pub key: Secret,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Admin {
    pub listen: SocketAddr,
    /// It has the role admin. When `listen` is not a loopback address, this or one of `tokens` is set.
    pub token: Option<Secret>,
    /// The token with which everything can be read and nothing changed. Only set beside another one.
    pub read_token: Option<Secret>,
    pub tokens: Vec<NamedToken>,
    /// The proxy that logs users in. Only set beside a token.
    pub proxy: Option<TrustedProxy>,
    /// The path below which a proxy shows the host: empty, or `/…` without a slash at its end.
    pub base_path: String,
    /// Fields, and keys in JSON, whose values the API and the dashboard hide: in small letters.
    pub mask: Vec<String>,
    /// None: by the number of queues.
    pub histograms: Option<HistogramForm>,
}

/// A role: each may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, EnumString, IntoStaticStr)]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum AccessRole {
    /// See everything that is not masked.
    Read,
    /// Change tasks and queues.
    Operate,
    /// Change versions of plugins, and delete for good.
    Admin,
}

/// A token that the configuration has as its hash.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedToken {
    pub name: String,
    pub role: AccessRole,
    /// SHA-256 of the token, in hexadecimal.
    pub hash: Secret,
}

/// A proxy that logs users in, and tells their names in a header.
#[derive(Debug, Clone, PartialEq)]
pub struct TrustedProxy {
    pub header: HeaderName,
    /// The role of its users, if no group gives them a higher one.
    pub role: AccessRole,
    /// The header with the groups of the user, and the roles of groups.
    pub groups: Option<(HeaderName, BTreeMap<String, AccessRole>)>,
    /// The addresses of which the headers count.
    pub from: Vec<IpNet>,
}

impl TrustedProxy {
    pub(crate) fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.from.iter().any(|block| block.contains(&peer))
    }

    /// The role of a user in these groups: the highest of theirs.
    pub(crate) fn role_of<'g>(&self, groups: impl Iterator<Item = &'g str>) -> AccessRole {
        let roles = self.groups.iter().map(|(_, roles)| roles);
        let of_groups = groups.filter_map(|group| roles.clone().find_map(|roles| roles.get(group)));
        of_groups.copied().fold(self.role, AccessRole::max)
    }
}

/// The histograms that `/metrics` shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum HistogramForm {
    /// Two for each queue.
    #[default]
    Full,
    /// Two for each queue, with few buckets.
    #[strum(serialize = "few-buckets")]
    Few,
    /// Two for all queues together.
    Host,
}

/// One queue and its rules.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueRules {
    pub name: String,
    pub stream: String,
    pub group: String,
    pub plugin: String,
    /// Attempts running at once, in this host; at least 1.
    pub concurrency: u32,
    /// How many tasks a handler that exports `batch-handler` gets in one call.
    pub batch: Batch,
    /// Weight among the queues that compete for the host's concurrency; at least 1.
    pub priority: u32,
    pub lease: Duration,
    pub timeout: Duration,
    pub max_retries: u32,
    pub backoff: Backoff,
    pub max_deferrals: u32,
    pub max_crashes: u32,
    /// Enqueueing is refused at this many queued, delayed and running tasks.
    pub max_backlog: u32,
    /// How many tasks may be claimed, in all hosts together.
    pub rate_limit: Option<Rate>,
    /// When the queue waits because something outside is down.
    pub hold: Option<HoldRules>,
    /// Which tasks may run beside each other, in all hosts together.
    pub turns: RunLimits,
    /// The rule by which tasks count as one task, and how long it holds after its end.
    pub idempotency: Idempotency,
    /// The place of the name under which clients find a task, beside its own id.
    pub id: Option<ValueAt>,
    /// How long a task may wait for its first attempt. One that waited longer is dead.
    pub expire_after: Option<Duration>,
    /// How long status and result are kept after the end; zero keeps none.
    pub retention: Duration,
    /// A Redis list whose items become tasks, with the item as the field `data`.
    pub list: Option<List>,
    /// When the host itself enqueues tasks.
    pub schedule: Option<Schedule>,
    /// The key of the dead-letter stream, if it is not the default one.
    pub dead_letter: Option<String>,
    /// The queues that the outbox of its handler may name.
    pub enqueue_to: Vec<TargetQueue>,
    /// The queues, this one among them, whose tasks may be in a flow with its own: those that a queue which
    /// enqueues here may name. None if no queue does.
    pub flow_partners: Vec<TargetQueue>,
    /// The queues that are told of the ends of its tasks.
    pub on_end: OnEnd,
    /// How many entries of events about its tasks are kept, approximately. 0: none.
    pub events: u32,
    /// How many failed attempts of each task are kept. 0: none.
    pub failed_attempts: u32,
    /// The fields that lists of its tasks show as columns.
    pub show: Vec<FieldPlace>,
    /// Whether a task that has completed keeps its fields for as long as its status is kept.
    pub keep_fields: bool,
}

impl QueueRules {
    /// Whether completed tasks keep their fields: they do so in their statuses.
    pub(crate) fn keeps_fields(&self) -> bool {
        self.keep_fields && !self.retention.is_zero()
    }

    /// A short text that is the same in hosts that treat the tasks alike. What each host may choose for
    /// itself does not count.
    pub(crate) fn mark(&self) -> String {
        let shared = QueueRules { concurrency: 1, priority: 1, show: Vec::new(), ..self.clone() };
        let digest = Sha256::digest(format!("{shared:?}"));
        digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The queues that are told of ends, by outcome, and what they are told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OnEnd {
    pub completed: Option<TargetQueue>,
    pub dead: Option<TargetQueue>,
    pub cancelled: Option<TargetQueue>,
    /// The fields of an ended task that the task for its end has, too; none: all of them.
    pub fields: Option<Vec<String>>,
}

impl OnEnd {
    pub(crate) fn targets(&self) -> impl Iterator<Item = &TargetQueue> {
        [&self.completed, &self.dead, &self.cancelled].into_iter().flatten()
    }

    /// Whether the tasks for ends go by a relay, because a queue for one of them lies in another slot.
    pub(crate) fn is_relayed(&self) -> bool {
        self.targets().any(|target| target.is_relayed)
    }
}

/// Which tasks of a queue may run beside each other, in all hosts together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunLimits {
    /// The most tasks that run; none: only the hosts' own limits count.
    pub max_running: Option<u32>,
    pub tracks: Option<Tracks>,
}

impl RunLimits {
    /// Whether hosts must ask before they claim a task, and must still own it when they complete it.
    pub fn are_limited(&self) -> bool {
        self.max_running.is_some() || self.tracks.is_some()
    }

    /// Whether each task begins when the one before it has ended.
    pub fn are_strict(&self) -> bool {
        self.tracks.as_ref().is_some_and(|tracks| tracks.field.is_none())
    }
}

/// The tracks of a queue: tasks of one track begin in their order, and at most `limit` of them have begun and
/// not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracks {
    /// The field whose value names a task's track; none: all tasks are in one track.
    pub field: Option<String>,
    pub limit: u32,
}

/// The rules of a queue that another queue needs to send tasks there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetQueue {
    pub name: String,
    pub stream: String,
    pub group: String,
    pub dead_letter: Option<String>,
    pub max_backlog: u32,
    /// The places of the idempotency key of a task without one of its own.
    pub key: Vec<ValueAt>,
    /// The place of the name under which clients find a task.
    pub id: Option<ValueAt>,
    pub retention: Duration,
    /// Its tasks run in a strict order, so it takes none with a delay.
    pub is_strict: bool,
    /// Whether its own tasks may lead back to the queue that sends tasks to it. Then neither waits until the
    /// other one has room: both could wait for ever.
    pub leads_back: bool,
    /// It may lie in another slot of a cluster than the queue that sends tasks to it, so a relay takes them
    /// there.
    pub is_relayed: bool,
}

/// When a queue waits because something outside is down, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldRules {
    /// Failures for an outside cause in a row, in all hosts together; at least 1.
    pub after: u32,
    pub pause: Duration,
}

/// How tasks are gathered for one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// At least 1, which means no batches. None: as many as the queue's concurrency.
    pub max_tasks: Option<u32>,
    /// How long the first of them waits for the others.
    pub max_wait: Duration,
}

impl QueueRules {
    /// Whether failed attempts are kept. They go with the status of their task.
    pub fn keeps_failed_attempts(&self) -> bool {
        self.failed_attempts > 0 && self.retention > Duration::ZERO
    }

    /// The most tasks in one call, which is never more than may run at once.
    pub fn largest_batch(&self) -> usize {
        self.batch.max_tasks.map_or(self.concurrency, |most| most.min(self.concurrency)) as usize
    }
}

/// Tasks that the host enqueues at given times.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    pub times: ScheduleTimes,
    pub missed: Missed,
    /// The fields of each of its tasks, beside [`Schedule::TIME_FIELD`].
    pub fields: Vec<(String, String)>,
}

impl Schedule {
    /// The field with the time that the task was enqueued for, in milliseconds since the Unix epoch.
    pub const TIME_FIELD: &str = "scheduled_at";
}

/// How times are handled at which no task could be enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum Missed {
    /// One task for all missed times.
    Once,
    /// No task.
    Skip,
}

/// A Redis list that feeds a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    pub key: String,
    pub items: Items,
}

/// The form of a list's items. A task of the queue whose `data` has another form is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr)]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum Items {
    /// Any bytes.
    Bytes,
    /// Each item is one JSON value.
    Json,
    /// The messages of Celery, as kombu writes them.
    Celery,
    /// The jobs of Sidekiq.
    Sidekiq,
}

/// At most `count` in each time of length `per`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// At least 1.
    pub count: u32,
    pub per: Duration,
}

/// Tasks with the same key count as one task. The producer gives the key, as `tq-key` or in another field.
#[derive(Debug, Clone, PartialEq)]
pub struct Idempotency {
    /// The places of the key of a task without `tq-key`. Several values make one key; empty: there is none.
    pub key: Vec<ValueAt>,
    /// How long after the end of a task its key is still held.
    pub window: Duration,
    /// Whether the key of a task that is dead or cancelled is free at once.
    pub releases_on_failure: bool,
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
    /// The n-th retry waits for the n-th delay, and all further retries for the last one. Never empty.
    Delays(Vec<Duration>),
    None,
}

/// The grants of one plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct Plugin {
    /// The handler reads it through `wasi:config/store`. Every value may be a secret.
    pub config: BTreeMap<String, Secret>,
    /// Bytes of all memories of one instance together.
    pub memory: u64,
    /// Bytes of one result.
    pub max_output: u64,
    /// Bytes of log lines per second, of all its handlers in this host. A burst may be eight times as large.
    pub max_log_rate: u64,
    /// Where its handlers may send requests. Empty: nowhere.
    pub allowed_hosts: Vec<AllowedHost>,
    pub http: Http,
    /// The instances that are kept when their task has ended. None: every task has a fresh instance.
    pub warm: Option<Warm>,
    /// Redis hashes of the team that its handlers may read and write.
    pub records: RecordGrants,
    /// The registry that the plugin comes from. None: its file is in `plugins_dir`.
    pub source: Option<OciReference>,
}

impl Plugin {
    /// The keys whose values differ.
    pub fn differences(&self, other: &Plugin) -> Vec<&'static str> {
        let Plugin { config, memory, max_output, max_log_rate, allowed_hosts, http, warm, records, source } =
            self;
        let differ = [
            ("config", *config != other.config),
            ("memory", *memory != other.memory),
            ("max_output", *max_output != other.max_output),
            ("max_log_rate", *max_log_rate != other.max_log_rate),
            ("allowed_hosts", *allowed_hosts != other.allowed_hosts),
            ("http", *http != other.http),
            ("instance", *warm != other.warm),
            ("records", *records != other.records),
            ("source", *source != other.source),
        ];
        differ.into_iter().filter_map(|(key, differs)| differs.then_some(key)).collect()
    }
}

/// Instances that are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Warm {
    /// The most instances that wait for a task.
    pub idle: u32,
    /// The most tasks that one instance runs.
    pub max_tasks: u32,
    /// The most tasks that one instance runs at the same time.
    pub concurrent: u32,
}

/// The limits of one request, and of their number.
#[derive(Debug, Clone, PartialEq)]
pub struct Http {
    /// The wait for a free connection, the lookup of the name, the connection and the TLS handshake together.
    pub connect_timeout: Duration,
    /// From the connection to the head of the response, including the time to send the request.
    pub first_byte_timeout: Duration,
    pub between_bytes_timeout: Duration,
    /// One request as a whole. None: only the end of the attempt bounds it.
    pub timeout: Option<Duration>,
    /// Requests of one attempt whose response is not read to its end yet.
    pub max_concurrent: u32,
    /// Requests of all attempts of the plugin in this host whose response is not read to its end yet.
    pub max_connections: u32,
    /// All requests of one attempt.
    pub max_requests: u32,
    pub max_request_body: u64,
    pub max_response_body: u64,
    /// How long a connection waits for another request; zero: each request has its own.
    pub keep_alive: Duration,
    /// Certificates that are trusted in addition to those of the system.
    pub ca: Vec<CertificateDer<'static>>,
}
