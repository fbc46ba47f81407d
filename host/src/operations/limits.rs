//! Limits of a queue while its hosts run: sets them for a time, clears them, shows them.
//!
//! In: limits as an operator writes them. Out: the limits that hold. They only lower what the configuration
//! allows, and whatever a queue cannot have is refused with the way out. Not here: what hosts do
//! (`queue::limits`).

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::changes::{self, ChangeKind, ChangeView};
use super::error::{OperationError, OperationResult};
use super::orders::{MAX_BY, reason};
use crate::config::QueueRules;
use crate::config::units::{parse_rate, show_duration, show_rate};
use crate::queue::Queue;
use crate::queue::limits::QueueLimits;
use crate::queue::repeat::patiently;

/// How long limits may hold that have a time.
const LASTING: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(365 * 24 * 3600);

/// The limits of a queue. The names are stable.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LimitView {
    pub queue: String,
    /// Null: the configuration alone holds.
    pub limits: Option<QueueLimits>,
    /// Whether they were set or cleared just now.
    pub changed: bool,
}

impl LimitView {
    fn new(queue: &Queue, limits: Option<QueueLimits>, changed: bool) -> LimitView {
        LimitView { queue: queue.rules.name.clone(), limits, changed }
    }
}

/// The limits that hold now.
pub(crate) async fn limits(queue: &Queue) -> OperationResult<LimitView> {
    Ok(LimitView::new(queue, queue.limits().await?, false))
}

/// Sets limits in place of the earlier ones, for the time `lasting`, or else until they are cleared.
pub(crate) async fn limit(
    queue: &Queue,
    limits: QueueLimits,
    lasting: Option<Duration>,
) -> OperationResult<LimitView> {
    let by = limits.by.chars().take(MAX_BY).collect();
    let limits = QueueLimits { why: reason(&limits.why)?.to_owned(), by, ..limits };
    check(&queue.rules, &limits, lasting).map_err(OperationError::Invalid)?;
    // The text may have any number of zeros before the number.
    let rate = limits.rate.as_deref().and_then(|rate| parse_rate(rate).ok()).map(show_rate);
    let limits = QueueLimits { rate, ..limits };
    let limits = patiently(|| queue.limit(limits.clone(), lasting)).await?;
    let time = lasting.map(|time| format!(" for {}", show_duration(time))).unwrap_or_default();
    let change = ChangeView::new(ChangeKind::Limit, &limits.by).queue(&queue.rules.name).why(&limits.why);
    changes::note(&queue.link, change.detail(&format!("{}{time}", limits.words()))).await;
    Ok(LimitView::new(queue, Some(limits), true))
}

/// Lets the configuration alone hold again. `by` is the operator.
pub(crate) async fn clear_limits(queue: &Queue, by: &str) -> OperationResult<LimitView> {
    let changed = patiently(|| queue.clear_limits()).await?;
    if changed {
        let change = ChangeView::new(ChangeKind::LimitCleared, by);
        changes::note(&queue.link, change.queue(&queue.rules.name)).await;
    }
    Ok(LimitView::new(queue, None, changed))
}

/// Whether the queue can have these limits.
fn check(rules: &QueueRules, limits: &QueueLimits, lasting: Option<Duration>) -> Result<(), String> {
    let queue = &rules.name;
    let QueueLimits { rate, concurrency, per_key, .. } = limits;
    if limits.are_none() {
        return Err("nothing is limited: name a rate, a concurrency or a number per key".to_owned());
    }
    if let Some(rate) = rate {
        let rate = parse_rate(rate).map_err(|why| format!("rate: {why}"))?;
        let configured = rules.rate_limit;
        if let Some(configured) = configured.filter(|_| limits.lowered_rate(configured) != Some(rate)) {
            let configured = show_rate(configured);
            return Err(format!(
                "rate: limits only lower, and the configuration of queue {queue} allows {configured}"
            ));
        }
    }
    if let Some(most) = concurrency {
        check_lowers("concurrency", *most, rules.concurrency, queue)?;
    }
    if let Some(most) = per_key {
        let tracks = rules.turns.tracks.as_ref().filter(|tracks| tracks.field.is_some());
        let Some(tracks) = tracks else {
            return Err(format!("per key: queue {queue} has no `serial`, so its tasks have no keys"));
        };
        check_lowers("per key", *most, tracks.limit, queue)?;
    }
    match lasting {
        Some(time) if !LASTING.contains(&time) => {
            let [least, most] = [LASTING.start(), LASTING.end()].map(|time| show_duration(*time));
            Err(format!("for: {} is not {least} to {most}", show_duration(time)))
        }
        _ => Ok(()),
    }
}

/// Refuses a number that does not lower the one of the configuration.
fn check_lowers(what: &str, most: u32, configured: u32, queue: &str) -> Result<(), String> {
    if most == 0 {
        return Err(format!("{what}: with 0 nothing would run: use `tqhost pause {queue}`"));
    }
    if most > configured {
        return Err(format!(
            "{what}: limits only lower, and the configuration of queue {queue} allows {configured}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn checked(queue: &str, limits: QueueLimits, seconds: u64) -> Result<(), String> {
        let text = format!("[queues.a]\n{queue}\n");
        let config = Config::parse(&text, std::path::Path::new("/srv/tqhost.toml"), &|_| None);
        let rules = config.expect("a configuration").queues.remove(0);
        check(&rules, &limits, Some(Duration::from_secs(seconds)))
    }

    #[test]
    fn limits_only_lower_what_the_configuration_allows() {
        let none = QueueLimits::default;
        let rate = |text: &str| QueueLimits { rate: Some(text.into()), ..none() };
        let most = |most| QueueLimits { concurrency: Some(most), ..none() };
        let per_key = |most| QueueLimits { per_key: Some(most), ..none() };
        let serial = "serial = { field = \"tenant\", limit = 3 }";
        for (queue, limits) in [
            ("", rate("5/s")),
            ("rate_limit = \"10/s\"", rate("600/m")),
            ("concurrency = 4", most(4)),
            (serial, per_key(3)),
        ] {
            assert_eq!(checked(queue, limits, 3600), Ok(()), "{queue}");
        }
        let told = [
            ("", none()),
            ("", rate("5")),
            ("rate_limit = \"10/s\"", rate("601/m")),
            ("concurrency = 4", most(5)),
            ("", most(0)),
            ("", per_key(1)),
            ("max_running = 1\norder = \"strict\"", per_key(1)),
            (serial, per_key(4)),
        ]
        .map(|(queue, limits)| checked(queue, limits, 3600).expect_err(queue));
        insta::assert_snapshot!(told.join("\n"), @r#"
        nothing is limited: name a rate, a concurrency or a number per key
        rate: "5" has no unit: write "5/s"
        rate: limits only lower, and the configuration of queue a allows 10/s
        concurrency: limits only lower, and the configuration of queue a allows 4
        concurrency: with 0 nothing would run: use `tqhost pause a`
        per key: queue a has no `serial`, so its tasks have no keys
        per key: queue a has no `serial`, so its tasks have no keys
        per key: limits only lower, and the configuration of queue a allows 3
        "#);
        insta::assert_snapshot!(checked("", rate("1/h"), 0).expect_err("no time"), @r"
        for: 0s is not 1s to 365d
        ");
    }
}
