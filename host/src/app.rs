//! Runs the host: puts the parts together, waits for a signal, takes them apart again.
//!
//! The order of both is here, as numbered comments, and nowhere else.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::{self, AdminState, Health, Metrics};
use crate::announcer::{Announcer, Refresh};
use crate::config::{self, Config};
use crate::embedded::{self, Embedded};
use crate::plugins::{Plugins, Source, UNWATCHED};
use crate::queue::{self, Queue, Redis};
use crate::reload::{self, ConfigRefusal, FileWatch, Reloader};
use crate::sandbox::{self, Compiler, Sandbox, SandboxOptions};
use crate::worker::capacity::Capacity;
use crate::worker::janitor::Janitor;
use crate::worker::lifecycle::Host;
use crate::worker::lookout::Lookout;
use crate::worker::stop::Stop;
use crate::worker::waiter::{self, Waiter};
use crate::worker::workers::Workers;

/// A fetch loop that gave no sign for so long is stalled. It gives one every second or two.
const STALL_AFTER: Duration = Duration::from_secs(6);
/// How long settlements may take after the last attempt has ended: Redis may be away.
const SETTLE_GRACE: Duration = Duration::from_secs(5);

/// How long the rest may take, when all tasks are settled or given up.
const LAST_GRACE: Duration = Duration::from_secs(2);

/// Runs the host until SIGTERM or SIGINT. An error says why it could not start.
pub async fn run(mut config: Config) -> anyhow::Result<()> {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    // 1. The admin address first: it tells another process on it at once, and whether this one lives while
    // the rest takes its time.
    let listener = admin::bind(config.admin.listen).await?;
    let admin_address = listener.local_addr().context("cannot read the admin address")?;
    let metrics = Metrics::new();
    let health = Health::new(STALL_AFTER);
    let refresh: Arc<OnceLock<Refresh>> = Arc::default();
    let serving = CancellationToken::new();
    let servants = TaskTracker::new();
    let state = AdminState {
        metrics: metrics.clone(),
        health: health.clone(),
        token: config.admin.token.clone(),
        refresh: Arc::new({
            let refresh = refresh.clone();
            // Nothing to refresh before there are queues.
            move |metrics| refresh.get().into_iter().for_each(|refresh| refresh(metrics))
        }),
    };
    servants.spawn(admin::serve(listener, state, serving.clone()));

    // 2. Redis.
    let embedded = match config.redis {
        config::RedisServer::Embedded => Some(Embedded::start(&config.data_dir).await?),
        config::RedisServer::Url(_) => None,
    };
    let redis = open_redis(&config)?;
    let link = redis.link();
    let redis_version = queue::server::check(&link).await?;
    for danger in queue::upkeep::dangers(&link).await {
        tracing::warn!(redis = redis.address(), "{danger}");
    }

    // 3. The sandbox, and the plugins that are there.
    let max_attempts = reload::attempts(&config);
    let grants = reload::grants(&config);
    let max_memory = grants.values().map(|grant| grant.memory).max().unwrap_or_default();
    let max_warm = reload::warm(&config);
    let opts =
        SandboxOptions { max_concurrent: max_attempts, max_warm, max_memory, compiler: Compiler::apart() };
    let sandbox = Sandbox::within(opts, config.memory.unwrap_or_else(sandbox::default_memory))?;
    let watching = CancellationToken::new();
    let watchers = TaskTracker::new();
    let source =
        Source { sandbox, dir: config.plugins_dir.clone(), cache_dir: config.data_dir.join("cache") };
    let plugins = Plugins::start(source, grants, watching.clone(), &watchers).await?;

    // 4. The queues. Before the first claim: every group is there, and signals are heard. A host that ended
    // now would leave tasks behind.
    let mut signals = Signals::listen()?;
    let mut file = FileWatch::new(&config.path).context("cannot listen to SIGHUP")?;
    let queues: Vec<Queue> =
        config.queues.iter().map(|rules| Queue::new(rules.clone(), link.clone())).collect();
    for queue in &queues {
        queue
            .ensure_group()
            .await
            .with_context(|| format!("cannot prepare the queue `{}`", queue.rules.name))?;
    }
    let host = Host {
        redis: redis.clone(),
        consumer: host_id().into(),
        capacity: Capacity::new(config.concurrency),
        waiter: Waiter::default(),
        lookout: Lookout::default(),
        reads: redis.link(),
        stop: Stop::default(),
    };
    let (host_id, capacity, stop) = (host.consumer.clone(), host.capacity.clone(), host.stop.clone());
    let (waiter, lookout) = (host.waiter.clone(), host.lookout.clone());
    servants.spawn(waiter.clone().run(redis.link_blocking_for(waiter::BLOCK), stop.claiming.clone()));
    servants.spawn(lookout.clone().run(link.clone(), waiter, host_id.clone(), stop.claiming.clone()));
    servants.spawn(Janitor::new(lookout, link.clone()).run(stop.claiming.clone()));
    let mut workers = Workers::new(host, plugins.clone(), metrics.clone(), health.clone());
    workers.apply(queues);
    servants.spawn({
        let (plugins, health, serving) = (plugins.clone(), health.clone(), serving.clone());
        let told = async move {
            // Ready is who has tried every plugin: whoever replaces a host that works must not be believed
            // before that.
            tokio::select! {
                () = plugins.scanned() => health.started(),
                () = plugins.unwatched() => {}
            }
            plugins.unwatched().await;
            health.fail(UNWATCHED);
        };
        async move { serving.run_until_cancelled(told).await }
    });

    // 5. What others see of it.
    let refused = ConfigRefusal::default();
    let announcer = Announcer::new(
        host_id.clone(),
        link.clone(),
        redis.clone(),
        plugins.clone(),
        health,
        workers.board(),
        refused.clone(),
    );
    let _ = refresh.set(announcer.refresher());
    servants.spawn(announcer.run(serving.clone()));
    tracing::info!(
        host = host_id.as_ref(),
        redis = redis.address(),
        redis_version,
        admin = %admin_address,
        queues = config.queues.len(),
        "tqhost is running"
    );

    // 6. Work by the configuration as it is now, until told to stop.
    loop {
        tokio::select! {
            biased;
            () = signals.next() => break,
            () = file.changed() => {}
        }
        let reloader = Reloader {
            config: &mut config,
            workers: &mut workers,
            plugins: &plugins,
            capacity: &capacity,
            link: &link,
            metrics: &metrics,
            refused: &refused,
            max_memory,
            max_attempts,
            max_warm,
        };
        tokio::select! {
            biased;
            () = signals.next() => break,
            () = reloader.reload() => {}
        }
    }
    let running = workers.running();
    tracing::info!(
        running,
        grace_seconds = config.shutdown_grace.as_secs(),
        "stopping: no new tasks; waiting for those that run"
    );

    // 7. Nothing new; then an end to what runs, at the end of the grace period or on a second signal; then to
    // what cannot be settled.
    stop.claiming.cancel();
    let deadline = tokio::spawn({
        let (stop, grace) = (stop.clone(), config.shutdown_grace);
        async move {
            tokio::select! {
                () = tokio::time::sleep(grace) => {
                    tracing::warn!("the grace period is over: stopping attempts that still run");
                }
                () = signals.next() => tracing::warn!("told to stop again: stopping attempts that still run"),
            }
            stop.running.cancel();
            tokio::time::sleep(SETTLE_GRACE).await;
            stop.settling.cancel();
        }
    });
    workers.stop().await;
    deadline.abort();

    // 8. The rest, and Redis last.
    watching.cancel();
    serving.cancel();
    for tracker in [watchers, servants] {
        tracker.close();
        // Whoever waits for a Redis that is away ends with the process.
        if tokio::time::timeout(LAST_GRACE, tracker.wait()).await.is_err() {
            tracing::debug!("some loops did not end in time");
        }
    }
    if let Some(embedded) = embedded {
        embedded.stop().await;
    }
    tracing::info!("stopped");
    Ok(())
}

/// Where this configuration's Redis is: also for the commands, which find the embedded one of a running host.
pub fn open_redis(config: &Config) -> anyhow::Result<Redis> {
    let redis = match &config.redis {
        config::RedisServer::Embedded => Redis::open(&embedded::url(&config.data_dir)),
        config::RedisServer::Url(url) => Redis::open(url.expose()),
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

/// SIGTERM and SIGINT, from [`Signals::listen`] on. Before that, they end the process.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Signals> {
        let terminate = signal(SignalKind::terminate()).context("cannot listen to SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot listen to SIGINT")?;
        Ok(Signals { terminate, interrupt })
    }

    /// Waits for one that was not waited for yet.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
