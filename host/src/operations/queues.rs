//! Queues: how many tasks are in each place, how old they are, which hosts work on them.
//!
//! In: each queue's census from Redis, and what the running hosts publish about themselves. Out: views. Not
//! here: counting (`queue::census`), tables (`cli::queues`).

use futures_util::{StreamExt, stream};
use serde::Serialize;
use utoipa::ToSchema;

use crate::chain::chain;
use crate::clock::ms;
use crate::config::{QueueRules, Schedule};
use crate::queue::census::Consumer;
use crate::queue::hold::QueueHold;
use crate::queue::hosts::{HostInfo, HostQueue, STOPPING};
use crate::queue::limits::QueueLimits;
use crate::queue::pause::QueuePause;
use crate::queue::{Census, Link, Queue, QueueError, QueueResult};

/// The states of a queue on a host, the worst first. A host that stops says nothing about the queue in
/// others, so `stopping` is last.
const STATES: [&str; 10] = [
    "stalled",
    "starting",
    "waiting-for-plugin",
    "paused",
    "held",
    "waiting-for-room",
    "waiting-for-permit",
    "waiting-for-turn",
    "reading",
    STOPPING,
];
/// The state of a queue that no host has.
pub(crate) const NO_HOST: &str = "no-host";
/// The state of a queue as people are told it. Programs get the state itself.
pub(crate) fn state_words(state: &str) -> &str {
    match state {
        "reading" => "ready",
        "waiting-for-permit" | "waiting-for-turn" => "busy",
        "waiting-for-plugin" => "waits for its plugin",
        "waiting-for-room" => "waits for room",
        "held" => "on hold",
        NO_HOST => "no host",
        state => state,
    }
}

/// Queues that are counted at once.
const AT_ONCE: usize = 64;

/// A queue. The names are stable.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct QueueView {
    pub queue: String,
    pub stream: String,
    pub group: String,
    /// The node of the cluster that has the queue. Missing where there is one server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub plugin: String,
    /// The worst of its states on the hosts.
    pub state: String,
    /// Whether it was paused, in all hosts.
    pub paused: bool,
    /// The pause, with its operator and reason.
    pub pause: Option<QueuePause>,
    /// Why it waits, while something outside is down.
    pub held: Option<QueueHold>,
    /// The limits that an operator has set. Null: the configuration alone holds.
    pub limits: Option<QueueLimits>,
    pub queued: u64,
    pub running: u64,
    pub delayed: u64,
    /// Waiting for the turn of their key.
    pub held_tasks: u64,
    pub dead: u64,
    /// Tasks that wait to be taken to queues in other slots of the cluster. Missing where there is one
    /// server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outgoing: Option<u64>,
    /// How long the first queued task has been in the stream.
    pub oldest_ms: Option<u64>,
    /// Tasks completed per second over the last minute, by all hosts together.
    pub rate: f64,
    pub schedule: Option<ScheduleView>,
    pub hosts: Vec<QueueOnHost>,
    /// Whether its hosts run different versions of tqhost.
    pub versions_differ: bool,
    pub consumers: Vec<Consumer>,
}

/// A queue on one host.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct QueueOnHost {
    pub host: String,
    /// The host's version of tqhost.
    pub version: String,
    #[serde(flatten)]
    pub queue: HostQueue,
    /// Why the host still runs an earlier configuration.
    pub config_error: Option<String>,
}

/// A queue's schedule. The names are stable.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ScheduleView {
    pub cron: Vec<String>,
    pub timezone: String,
    pub next_ms: Option<u64>,
}

impl ScheduleView {
    /// `now_ms` is by this machine's clock.
    pub(crate) fn new(schedule: &Schedule, now_ms: u64) -> ScheduleView {
        let times = &schedule.times;
        ScheduleView {
            cron: times.expressions().to_vec(),
            timezone: times.zone_name().to_owned(),
            next_ms: times.next(now_ms),
        }
    }
}

impl QueueView {
    pub(crate) fn new(rules: &QueueRules, census: &Census, hosts: &[HostInfo], now_ms: u64) -> QueueView {
        let on = |host: &HostInfo| {
            let queue = host.queues.iter().find(|queue| queue.name == rules.name)?;
            Some(QueueOnHost {
                host: host.id.clone(),
                version: host.version.clone(),
                queue: queue.clone(),
                config_error: host.config_error.clone(),
            })
        };
        let hosts: Vec<QueueOnHost> = hosts.iter().filter_map(on).collect();
        // A state that this version does not know comes last.
        let badness = |view: &&QueueOnHost| {
            STATES.iter().position(|state| *state == view.queue.state).unwrap_or(STATES.len())
        };
        QueueView {
            queue: rules.name.clone(),
            stream: rules.stream.clone(),
            group: rules.group.clone(),
            node: census.node.clone(),
            plugin: rules.plugin.clone(),
            state: hosts
                .iter()
                .min_by_key(badness)
                .map_or(NO_HOST.to_owned(), |view| view.queue.state.clone()),
            paused: census.pause.is_some(),
            pause: census.pause.clone(),
            held: census.held.clone(),
            limits: census.limits.clone(),
            queued: census.waiting(),
            running: census.running,
            delayed: census.delayed,
            held_tasks: census.held_tasks,
            dead: census.dead,
            outgoing: census.outgoing,
            oldest_ms: census.oldest.map(ms),
            // `sum` of nothing would be -0.0.
            rate: hosts.iter().fold(0.0, |sum, view| sum + view.queue.rate),
            versions_differ: hosts.iter().any(|on| on.version != hosts[0].version),
            schedule: rules.schedule.as_ref().map(|schedule| ScheduleView::new(schedule, now_ms)),
            hosts,
            consumers: census.consumers.clone(),
        }
    }
}

/// Counts each of these queues. If one cannot be counted (its key has another type), the others are there all
/// the same. `now_ms` is by this machine's clock.
pub(crate) async fn queue_views(
    chosen: &[QueueRules],
    link: &Link,
    hosts: &[HostInfo],
    now_ms: u64,
) -> Vec<(String, QueueResult<QueueView>)> {
    let count = |rules: QueueRules| async move {
        let census = Queue::new(rules.clone(), link.clone()).census().await;
        let view = census.map(|census| QueueView::new(&rules, &census, hosts, now_ms));
        (rules.name, view)
    };
    // `buffered` keeps the order.
    stream::iter(chosen.to_vec()).map(count).buffered(AT_ONCE).collect().await
}

/// A queue whose tasks cannot be counted, and why.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct UncountedQueue {
    pub queue: String,
    pub error: String,
}

/// Counts the tasks of each chosen queue. Returns the views of the queues, and the queues whose tasks cannot
/// be counted. Fails if Redis cannot be reached; in a cluster, only if no queue can be counted.
pub(crate) async fn counted(
    chosen: &[QueueRules],
    link: &Link,
    hosts: &[HostInfo],
    now_ms: u64,
) -> QueueResult<(Vec<QueueView>, Vec<UncountedQueue>)> {
    let (mut views, mut failed, mut away) = (Vec::new(), Vec::new(), None);
    for (queue, view) in queue_views(chosen, link, hosts, now_ms).await {
        match view {
            Ok(view) => views.push(view),
            Err(error) => {
                let why = error.misfit(&queue).unwrap_or_else(|| chain(&error));
                failed.push(UncountedQueue { queue, error: why });
                away = away.or(Some(error).filter(QueueError::is_connection));
            }
        }
    }
    match away {
        Some(error) if views.is_empty() || !link.is_cluster() => Err(error),
        _ => Ok((views, failed)),
    }
}
