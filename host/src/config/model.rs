//! The configuration as the rest of the host reads it: checked values with units.
//!
//! Not here: the rules of queues (`rules`), reading and checking the file (`general` and the files beside
//! it).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;
use ipnet::IpNet;
use rustls::pki_types::CertificateDer;
use strum::{EnumString, IntoStaticStr};

use super::allowed::AllowedHost;
use super::oci::OciReference;
use super::records::RecordGrants;
use super::rules::QueueRules;
use super::secret::Secret;
use super::store::BlobSettings;

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
