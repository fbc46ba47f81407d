//! All queues at once, with their last hour and every alarm: for the overview, and for scrapes.
//!
//! Not here: what is an alarm (`alarms`).

use std::collections::BTreeMap;

use super::alarms::{Alarm, about_lost, alarms};
use super::history::{Lately, histories};
use super::queues::{QueueView, counted};
use crate::clock::now_ms;
use crate::config::QueueRules;
use crate::queue::hosts::{self, HostInfo};
use crate::queue::minutes::QueueHistory;
use crate::queue::upkeep::dangers;
use crate::queue::{Link, QueueError};

/// All queues as they are now, and what is wrong with them.
pub(crate) struct Overview {
    pub hosts: Vec<HostInfo>,
    pub queues: Vec<QueueView>,
    /// The queues that cannot be counted, each with the error.
    pub failed: Vec<(String, String)>,
    pub histories: BTreeMap<String, QueueHistory>,
    pub lately: BTreeMap<String, Lately>,
    /// The urgent ones first.
    pub alarms: Vec<Alarm>,
}

pub(crate) async fn overview(chosen: &[QueueRules], link: &Link) -> Result<Overview, QueueError> {
    let now_ms = now_ms();
    let hosts = hosts::list_known(link).await?;
    let (queues, failed) = counted(chosen, link, &hosts, now_ms).await?;
    let histories = histories(chosen, link).await?;
    let lately: BTreeMap<String, Lately> =
        histories.iter().map(|(name, history)| (name.clone(), Lately::of(history))).collect();
    let mut alarms = alarms(&queues, &hosts, &failed, &lately, &dangers(link).await);
    about_lost(&hosts::lost(link, now_ms).await?, now_ms, &mut alarms);
    alarms.sort_by_key(|alarm| !alarm.is_urgent);
    Ok(Overview { hosts, queues, failed, histories, lately, alarms })
}
