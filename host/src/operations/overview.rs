//! All queues at once, with their last hour and every incident: for the overview, the API and scrapes.
//!
//! Not here: what is an incident (`incidents`, `alarms`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::alarms::{AlarmSources, alarms};
use super::history::{Lately, histories};
use super::incidents::{self, Incident};
use super::queues::{QueueView, UncountedQueue, counted};
use crate::clock;
use crate::config::QueueRules;
use crate::guarded::Guarded;
use crate::queue::hosts::{self, HostInfo};
use crate::queue::minutes::QueueHistory;
use crate::queue::upkeep::dangers;
use crate::queue::{Link, QueueResult};

/// All queues as they are now, and what is wrong with them.
#[derive(Clone, Default)]
pub(crate) struct Overview {
    pub hosts: Vec<HostInfo>,
    pub queues: Vec<QueueView>,
    pub failed: Vec<UncountedQueue>,
    pub histories: BTreeMap<String, QueueHistory>,
    pub lately: BTreeMap<String, Lately>,
    /// The urgent ones first, and of these the newest.
    pub incidents: Vec<Incident>,
}

impl Overview {
    /// How many incidents nobody has acknowledged.
    pub(crate) fn open(&self) -> usize {
        self.incidents.iter().filter(|incident| incident.is_open()).count()
    }
}

pub(crate) async fn overview(chosen: &[QueueRules], link: &Link) -> QueueResult<Overview> {
    let now_ms = link.now_ms().await?;
    let hosts = hosts::list_known(link).await?;
    let (queues, failed) = counted(chosen, link, &hosts, now_ms).await?;
    let histories = histories(chosen, link).await?;
    let lately: BTreeMap<String, Lately> =
        histories.iter().map(|(name, history)| (name.clone(), Lately::of(history))).collect();
    let lost = hosts::lost(link, now_ms).await?;
    let dangers = dangers(link).await;
    let sources = AlarmSources {
        queues: &queues,
        hosts: &hosts,
        lost: &lost,
        failed: &failed,
        lately: Some(&lately),
        dangers: &dangers,
        now_ms,
    };
    let incidents = incidents::look(link, alarms(&sources), &sources).await?;
    Ok(Overview { hosts, queues, failed, histories, lately, incidents })
}

/// The last overview that this host has seen, for the time when Redis is away. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct LastOverview(Arc<Guarded<Option<SeenOverview>>>);

/// An overview, and when it was seen, in milliseconds since the Unix epoch by this host's clock.
#[derive(Clone)]
pub(crate) struct SeenOverview {
    pub at_ms: u64,
    pub overview: Arc<Overview>,
}

impl LastOverview {
    /// Reads the overview, and keeps it without the histories, which are large.
    pub(crate) async fn look(&self, chosen: &[QueueRules], link: &Link) -> QueueResult<Overview> {
        let mut seen = overview(chosen, link).await?;
        let histories = std::mem::take(&mut seen.histories);
        let kept = SeenOverview { at_ms: clock::now_ms(), overview: Arc::new(seen.clone()) };
        *self.0.lock() = Some(kept);
        Ok(Overview { histories, ..seen })
    }

    /// How many incidents were open in the kept overview. 0 if it is older than this time.
    pub(crate) fn open(&self, within_ms: u64) -> usize {
        let is_fresh = |seen: &SeenOverview| seen.at_ms.saturating_add(within_ms) > clock::now_ms();
        self.seen().filter(is_fresh).map_or(0, |seen| seen.overview.open())
    }

    pub(crate) fn seen(&self) -> Option<SeenOverview> {
        self.0.lock().clone()
    }
}
