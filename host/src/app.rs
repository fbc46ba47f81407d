//! Runs the host: puts the parts together, waits for a signal, takes them apart again.
//!
//! The order of both is here, as numbered comments in [`Host::start`] and [`Host::stop`], and nowhere else.
//!
//! Not here: how long each step of the end may take (`shutdown`).

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::admin::tokens::Tokens;
use crate::admin::{self, AdminState, Health, RefusedTokens};
use crate::announcer::{AnnouncedParts, Announcer};
use crate::api::{self, Api, ApiLimits, ApiParts};
use crate::blobs::Blobs;
use crate::config::{self, Config};
use crate::dashboard::{self, Dashboard};
use crate::descriptors::{self, Scarcity};
use crate::embedded::{self, Embedded};
use crate::jobs::{JobBell, JobLoop};
use crate::mask::FieldMask;
use crate::metrics::{AlarmBoard, Sources};
use crate::plugins::{Plugins, Shelf, Source, UNWATCHED, user_cache};
use crate::queue::orders::Orders;
use crate::queue::size::SizeLimits;
use crate::queue::upkeep::Danger;
use crate::queue::{self, Link, Redis};
use crate::reload::{self, ConfigReloads, FileWatch, Reloader, SandboxSize};
use crate::sandbox::{self, Compiler, Sandbox, SandboxOptions};
use crate::shutdown::{HostSignals, Loops, Signals, Stop};
use crate::supervisor;
use crate::telemetry::{TraceExport, Traces};
use crate::worker::capacity::Capacity;
use crate::worker::janitor::Janitor;
use crate::worker::lifecycle::Common;
use crate::worker::lookout::{Lookout, LookoutLinks};
use crate::worker::metrics::histogram_form;
use crate::worker::recorder::Recorder;
use crate::worker::storm;
use crate::worker::waiter::{self, Waiter};
use crate::worker::workers::Workers;

/// A fetch loop is stalled if it gave no sign of life for this long. It gives one every second or two.
const STALL_AFTER: Duration = Duration::from_secs(6);

/// Large tasks may take the handlers' memory divided by this, in addition to that memory.
const TASKS_SHARE: u64 = 4;

/// How long the last spans of traces may take to be sent at the end.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// Runs the host until SIGTERM or SIGINT. An error says why it could not start.
pub(crate) async fn run(config: Config, signals: HostSignals) -> anyhow::Result<()> {
    let HostSignals { ends: mut signals, hangup } = signals;
    let file = FileWatch::new(&config.path, hangup);
    // Before the end of the start nothing is claimed, and what it has made ends with it.
    let mut host = tokio::select! {
        biased;
        _ = signals.next() => {
            supervisor::stopping();
            tracing::info!("told to stop before the start was over: no task was taken");
            return Ok(());
        }
        host = Host::start(config, file) => host?,
    };
    host.work(&mut signals).await;
    host.stop(signals).await;
    Ok(())
}

/// All that runs.
struct Host {
    config: Config,
    file: FileWatch,
    embedded: Option<Embedded>,
    link: Link,
    plugins: Plugins,
    /// The loops that watch the files of plugins.
    watchers: Loops,
    capacity: Capacity,
    health: Health,
    workers: Workers,
    spans: TraceExport,
    reloads: ConfigReloads,
    /// All other loops of the host.
    servants: Loops,
    stop: Stop,
    size: SandboxSize,
}

/// Warns of risks in the configuration and on this machine. An error says why no host can work here.
fn check_risks(config: &Config) -> anyhow::Result<()> {
    let exposures = config.exposures();
    for warning in config.warnings.iter().chain(&exposures).map(String::as_str).chain(too_powerful()) {
        tracing::warn!("{warning}");
    }
    for note in config.slot_notes() {
        tracing::info!("{note}");
    }
    match descriptors::scarcity(config) {
        Some(Scarcity::Refused(why)) => anyhow::bail!(why),
        Some(Scarcity::Tight(why)) => tracing::warn!("{why}"),
        None => {}
    }
    Ok(())
}

/// Waits for Redis, and warns of its settings. Returns it with its version and the orders of operators.
async fn ready_redis(config: &Config) -> anyhow::Result<(Redis, String, Orders)> {
    let redis = open_redis(config)?;
    let link = redis.link();
    let (version, orders) = queue::server::wait_for(&link, config.redis_wait).await?;
    for Danger { what, way_out, .. } in queue::upkeep::dangers(&link).await {
        tracing::warn!(redis = redis.address(), "{what} {way_out}");
    }
    warn_of_limits(config, SizeLimits::of(&link).await);
    redis.use_functions().await;
    Ok((redis, version, orders))
}

/// Starts the loops that serve operators, and the pages that they see.
fn serve_operators(
    config: &Config,
    served: &Served,
    redis: &Redis,
    parts: AnnouncedParts,
    traces: &Traces,
    host_id: &Arc<str>,
    servants: &Loops,
) {
    let (link, over) = (redis.link(), &servants.over);
    let jobs = JobLoop {
        link: link.clone(),
        reloads: parts.reloads.clone(),
        mask: FieldMask::new(&config.admin.mask),
        host: host_id.clone(),
        bell: JobBell::default(),
    };
    let bell = jobs.bell.clone();
    let api = Api::new(ApiParts {
        reloads: parts.reloads.clone(),
        jobs: bell.clone(),
        link: link.clone(),
        plugins: parts.plugins.clone(),
        tokens: Tokens::of(&config.admin),
        mask: FieldMask::new(&config.admin.mask),
        listen: served.address,
        stop: over.clone(),
        limits: ApiLimits::default(),
        traces: traces.clone(),
    });
    let alarms = AlarmBoard::default();
    let _ = served.pages.set(dashboard::router(Dashboard::new(api.clone(), alarms.last())));
    let _ = served.api.set(api::router(api));
    let sources = Sources {
        alarms: alarms.clone(),
        board: parts.board.clone(),
        capacity: parts.capacity.clone(),
        health: parts.health.clone(),
        reloads: parts.reloads.clone(),
        redis: redis.clone(),
        plugins: parts.plugins.clone(),
        traces: traces.clone(),
        refused: served.refused.clone(),
    };
    let _ = served.metrics.set(sources.registry());
    let recorder = Recorder::new(host_id.clone(), link.clone(), parts.board.clone());
    servants.tracker.spawn(recorder.run(over.clone()));
    servants.tracker.spawn(jobs.run(over.clone()));
    servants.tracker.spawn(alarms.run(parts.reloads.clone(), link.clone(), over.clone()));
    servants.tracker.spawn(Announcer::new(host_id.clone(), link, parts, bell).run(over.clone()));
}

impl Host {
    async fn start(config: Config, file: FileWatch) -> anyhow::Result<Host> {
        check_risks(&config)?;
        let (servants, watchers, stop) = (Loops::default(), Loops::default(), Stop::default());
        let health = Health::new(STALL_AFTER);
        // 1. The admin address first: it tells another process on it at once, and whether this one lives
        // while the rest takes its time.
        let served = serve_admin(&config, &health, &servants).await?;
        // 2. Redis.
        let embedded = match config.redis {
            config::RedisServer::Embedded => Some(Embedded::start(&config.data_dir).await?),
            _ => None,
        };
        let (redis, redis_version, orders) = ready_redis(&config).await?;
        let link = redis.link();
        // 3. The sandbox, and the plugins that are there.
        let (plugins, size) = start_plugins(&config, &redis, orders, &watchers).await?;
        // 4. The queues. Before the first claim every group is there, if Redis lets that. Nothing waits or
        // fails after it, since a host that ended then would leave tasks behind.
        let queues = reload::prepared(&config, &link).await;
        config.keep();
        let host_id: Arc<str> = host_id().into();
        let spans = TraceExport::start(config.telemetry.as_ref(), Some(&host_id))?;
        let common = Common {
            traces: spans.traces.clone(),
            ..start_common(&config, &redis, &link, &servants, stop.clone(), host_id.clone())
        };
        let capacity = common.capacity.clone();
        let mut workers = Workers::new(common, plugins.clone(), health.clone());
        workers.board().set_histograms(histogram_form(&config));
        workers.apply(queues);
        servants.spawn(tell_when_ready(plugins.clone(), health.clone()));
        // 5. What operators and other hosts see of this host.
        let reloads = ConfigReloads::default();
        reloads.set_queues(&config.queues);
        let parts = AnnouncedParts {
            plugins: plugins.clone(),
            health: health.clone(),
            board: workers.board(),
            reloads: reloads.clone(),
            capacity: capacity.clone(),
        };
        serve_operators(&config, &served, &redis, parts, &spans.traces, &host_id, &servants);
        tracing::info!(
            host = host_id.as_ref(),
            redis = redis.address(),
            redis_version,
            admin = %served.address,
            queues = config.queues.len(),
            "tqhost is running"
        );
        servants.spawn(tell_supervisor(health.clone(), stop.claiming.clone()));
        Ok(Host {
            config,
            file,
            embedded,
            link,
            plugins,
            watchers,
            capacity,
            health,
            workers,
            spans,
            reloads,
            servants,
            stop,
            size,
        })
    }

    /// Works by the configuration as it is now, until told to stop.
    async fn work(&mut self, signals: &mut Signals) {
        loop {
            tokio::select! {
                biased;
                _ = signals.next() => break,
                () = self.file.changed() => {}
            }
            let reloader = Reloader {
                config: &mut self.config,
                workers: &mut self.workers,
                plugins: &self.plugins,
                capacity: &self.capacity,
                link: &self.link,
                reloads: &self.reloads,
                size: self.size,
            };
            tokio::select! {
                biased;
                _ = signals.next() => break,
                () = reloader.reload() => {}
            }
        }
    }

    async fn stop(self, signals: Signals) {
        let grace = self.config.shutdown_grace;
        tracing::info!(
            running = self.workers.running(),
            grace_seconds = grace.as_secs(),
            "stopping: no new tasks; waiting for those that run"
        );
        // 1. Nothing new.
        self.health.stops();
        supervisor::stopping();
        self.stop.claiming.cancel();
        // 2. What runs, which has until the end of the grace period or a second signal; then its settlements.
        self.stop.bound(grace, signals, self.workers.stop()).await;
        // 3. The spans of what ran.
        if !self.spans.finish(LAST_SPANS).await {
            tracing::warn!("the collector of traces did not take the last spans in time");
        }
        // 4. The loops that serve all queues.
        self.watchers.over.cancel();
        self.servants.over.cancel();
        self.watchers.end().await;
        self.servants.end().await;
        // 5. Redis last.
        if let Some(embedded) = self.embedded {
            embedded.stop().await;
        }
        tracing::info!("stopped");
    }
}

/// The parts of the admin server that are filled in later: it starts before there are queues.
struct Served {
    address: SocketAddr,
    refused: RefusedTokens,
    metrics: Arc<OnceLock<Registry>>,
    api: Arc<OnceLock<Router>>,
    pages: Arc<OnceLock<Router>>,
}

/// Serves the admin address.
async fn serve_admin(config: &Config, health: &Health, servants: &Loops) -> anyhow::Result<Served> {
    admin::base_path::set(&config.admin.base_path);
    let listener = admin::bind(config.admin.listen).await?;
    let address = listener.local_addr().context("cannot read the admin address")?;
    let served = Served {
        address,
        refused: RefusedTokens::default(),
        metrics: Arc::default(),
        api: Arc::default(),
        pages: Arc::default(),
    };
    let state = AdminState {
        metrics: served.metrics.clone(),
        health: health.clone(),
        tokens: Tokens::of(&config.admin),
        refused: served.refused.clone(),
        listen: address,
        api: served.api.clone(),
        pages: served.pages.clone(),
    };
    servants.tracker.spawn(admin::serve(listener, state, servants.over.clone()));
    Ok(served)
}

/// The memory of all handlers together.
fn memory(config: &Config) -> u64 {
    config.memory.unwrap_or_else(sandbox::default_memory)
}

async fn start_plugins(
    config: &Config,
    redis: &Redis,
    orders: Orders,
    watchers: &Loops,
) -> anyhow::Result<(Plugins, SandboxSize)> {
    let (grants, size) = (reload::grants(config), SandboxSize::of(config));
    let opts = SandboxOptions {
        max_concurrent: size.max_attempts,
        max_warm: size.max_warm,
        max_memory: size.max_memory,
        compiler: Compiler::separate(),
        backtraces: false,
    };
    let blobs = Blobs::open(&config.blobs)?;
    let shelf = Shelf::new(redis.link(), blobs.clone(), &config.admin);
    let of_queue = config.queues.iter().map(|queue| queue.concurrency).max().unwrap_or_default();
    let sandbox = Sandbox::within(opts, of_queue, memory(config), blobs)?;
    let (dir, pulled_dir) = (config.plugins_dir.clone(), config.pulled_dir());
    let cache_dir = config.cache_dir();
    let source = Source { sandbox, dir, pulled_dir, cache_dir, user_cache: user_cache(), orders, shelf };
    let plugins = Plugins::start(source, grants, watchers.over.clone(), &watchers.tracker).await?;
    Ok((plugins, size))
}

/// Warns of plugins that may return more than Redis takes.
fn warn_of_limits(config: &Config, limits: SizeLimits) {
    for (plugin, rules) in &config.plugins {
        let most = usize::try_from(rules.max_output).unwrap_or(usize::MAX);
        if let Some(why) = limits.refusal(most) {
            tracing::warn!(plugin, "a result of max_output is output-too-large: {why}");
        }
    }
}

/// A warning, if the host has more power over its machine than it needs.
fn too_powerful() -> Option<&'static str> {
    nix::unistd::geteuid().is_root().then_some(
        "the host runs as root: give it a user of its own, as deploy/tqhost.service and deploy/Dockerfile do",
    )
}

/// Starts the loops that serve all queues together.
fn start_common(
    config: &Config,
    redis: &Redis,
    link: &Link,
    servants: &Loops,
    stop: Stop,
    consumer: Arc<str>,
) -> Common {
    let common = Common {
        redis: redis.clone(),
        consumer,
        capacity: Capacity::new(config.concurrency).with_bytes(memory(config) / TASKS_SHARE),
        waiter: Waiter::default(),
        lookout: Lookout::default(),
        reads: redis.link(),
        traces: Traces::default(),
        stop,
    };
    let (waiter, lookout, claiming) = (common.waiter.clone(), common.lookout.clone(), &common.stop.claiming);
    let waiting = redis.link_for_waiting(waiter::BLOCK);
    // In a cluster no call blocks that connection, and it remembers what has not changed.
    let looks = if redis.is_cluster() { waiting.clone() } else { link.clone() };
    servants.tracker.spawn(waiter.clone().run(waiting, claiming.clone()));
    let host_id = common.consumer.clone();
    servants.tracker.spawn(lookout.clone().run(
        LookoutLinks { looks, link: link.clone() },
        waiter,
        host_id,
        claiming.clone(),
    ));
    servants.tracker.spawn(Janitor::new(lookout, link.clone()).run(claiming.clone()));
    servants.spawn(storm::sum_up());
    common
}

/// Tells that the host is ready once it has tried every plugin. Before that, it must not take the place of a
/// host that works. Fails the host's health if plugins are not watched any more.
pub(crate) async fn tell_when_ready(plugins: Plugins, health: Health) {
    tokio::select! {
        () = plugins.scanned() => health.started(),
        () = plugins.unwatched() => {}
    }
    plugins.unwatched().await;
    health.fail(UNWATCHED);
}

/// Tells the supervisor when the host is ready, and from then on that it lives.
async fn tell_supervisor(health: Health, claiming: CancellationToken) {
    let (is_ready, stopped) = (health.until_ready(), claiming.cancelled());
    supervisor::ready_once(is_ready, stopped, supervisor::READY_WITHIN).await;
    supervisor::signs_of_life().await;
}

/// Opens the Redis of this configuration. A command finds the embedded one of a running host.
pub(crate) fn open_redis(config: &Config) -> anyhow::Result<Redis> {
    let redis = match &config.redis {
        config::RedisServer::Embedded => Redis::open(&embedded::url(&config.data_dir)),
        config::RedisServer::At { url, login } => Redis::open_as(url.expose(), login),
        config::RedisServer::Cluster { urls, login } => {
            Redis::open_cluster(urls.iter().map(|url| url.expose()), login)
        }
        config::RedisServer::Sentinel { watch, login } => Redis::open_watched(watch, login),
    };
    Ok(redis?)
}

/// This host's name in every group: readable, and unique for each start.
fn host_id() -> String {
    let host = nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_else(|| "host".into());
    let host: String =
        host.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')).take(64).collect();
    // The random end of the id: its beginning is the time.
    let unique = uuid::Uuid::now_v7().simple().to_string();
    format!("{host}-{}-{}", std::process::id(), &unique[20..])
}
