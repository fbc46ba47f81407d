//! The history of queues: throughput, errors and times of the last hour, day or week, from what all hosts
//! have counted.
//!
//! In: steps of a queue's history from Redis. Out: views with stable names, and what alarms ask of the last
//! minutes.
//!
//! Not here: counting (`worker::recorder`), the form in Redis (`queue::minutes`), charts
//! (`dashboard::chart`).

use std::collections::BTreeMap;

use serde::Serialize;
use strum::VariantArray as _;
use utoipa::ToSchema;

use super::plugins::known_builds;
use crate::builds::{Builds, words_of};
use crate::config::QueueRules;
use crate::queue::hosts::HostInfo;
use crate::queue::minutes::{self, HistoryStep, MINUTE_MS, QueueHistory};
use crate::queue::tally::{Depth, Tally, TimeBuckets, VersionTally};
use crate::queue::{Link, Queue, QueueResult, Reason};
use crate::task::{AttemptEnd, SettledAs};

/// The minutes of the overview.
pub(crate) const OVERVIEW: u64 = 60;
/// The minutes from which rates and alarms are made.
pub(crate) const LATELY: usize = 10;
/// A queue with a backlog should finish something within this number of minutes.
pub(crate) const SILENT: usize = 5;

/// The last minutes of a queue, in all hosts; or the last day or week in longer steps. The names are stable.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HistoryView {
    pub queue: String,
    /// How long each of `minutes` is: 60,000; 600,000 for a day; 3,600,000 for a week.
    pub step_ms: u64,
    /// All minutes together.
    pub total: SpanView,
    /// The oldest first, without gaps. A minute is there once it is over; hosts that stopped may have counted
    /// something in a later one. The last one of the longer steps still goes on.
    pub minutes: Vec<StepView>,
    /// The ends of attempts, by version of the handler.
    pub versions: Vec<VersionView>,
}

/// The counts of some time. The names are stable.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct SpanView {
    /// Tasks completed.
    pub completed: u64,
    /// Attempts that failed, and tasks that died without one.
    pub failed: u64,
    /// New dead letters.
    pub dead: u64,
    /// Tasks completed per second.
    pub per_second: f64,
    /// `failed`, as a part of `failed` and `completed`, from 0 to 1. None if there were none.
    pub error_rate: Option<f64>,
    /// How often tasks were settled in each way, by the names in the metrics.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// How long tasks waited for an attempt. None if there was none.
    pub waiting: Option<Percentiles>,
    /// How long attempts ran.
    pub running: Option<Percentiles>,
}

/// A minute, or a longer step. The names are stable.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StepView {
    /// Its beginning: milliseconds since the Unix epoch, by Redis's clock.
    pub from_ms: u64,
    #[serde(flatten)]
    pub counted: SpanView,
    /// How full the queue was at its end, as a host saw it last.
    pub depth: Option<Depth>,
}

/// The times that 50, 95 and 99 of 100 do not exceed. They are made from buckets, so they are not exact.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct Percentiles {
    pub count: u64,
    pub p50_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
}

/// The ends of attempts on one version. The names are stable.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VersionView {
    /// `NAME@` and the first digits of the file's SHA-256.
    pub version: String,
    /// The name that people gave it, where a running host knows it.
    pub label: Option<String>,
    pub attempts: u64,
    pub completed: u64,
    pub retried: u64,
    pub rejected: u64,
    pub deferred: u64,
    pub unavailable: u64,
    pub trapped: u64,
    pub timed_out: u64,
    pub out_of_memory: u64,
    /// Ended by the sandbox for another reason.
    pub failed: u64,
    /// How long an attempt ran on average.
    pub mean_ms: f64,
}

/// The last minutes of a queue, for rates and alarms.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Lately {
    /// The last [`LATELY`] minutes.
    pub counted: SpanView,
    /// Tasks that ended in the last [`SILENT`] minutes.
    pub finished: u64,
    /// When the minutes began in each of which more than [`FAILING`] of the attempts failed, up to now;
    /// minutes without attempts between them count as such. Milliseconds since the Unix epoch.
    pub failing_since_ms: Option<u64>,
    /// When the minutes began at whose ends there were dead letters, up to now. None: there are none, or
    /// there were some when the history begins.
    pub dead_since_ms: Option<u64>,
}

/// A larger part of failed attempts than this is failing.
pub(super) const FAILING: f64 = 0.1;

/// Whether a settlement in this way is a failure.
fn fails(outcome: SettledAs) -> bool {
    use SettledAs as S;
    !matches!(outcome, S::Completed | S::Deferred | S::Released | S::Delayed | S::Cancelled | S::Duplicate)
}

pub(crate) fn completed(tally: &Tally) -> u64 {
    tally.of(SettledAs::Completed)
}

pub(crate) fn failed(tally: &Tally) -> u64 {
    SettledAs::VARIANTS.iter().filter(|outcome| fails(**outcome)).map(|outcome| tally.of(*outcome)).sum()
}

fn dead(tally: &Tally) -> u64 {
    Reason::VARIANTS.iter().map(|reason| tally.of((*reason).into())).sum()
}

impl SpanView {
    fn of(tally: &Tally, minutes: u64) -> SpanView {
        let (completed, failed) = (completed(tally), failed(tally));
        let all = completed + failed;
        let counts = SettledAs::VARIANTS.iter().map(|outcome| (outcome.into_str(), tally.of(*outcome)));
        SpanView {
            completed,
            failed,
            dead: dead(tally),
            per_second: rounded(completed as f64 / (minutes.max(1) * 60) as f64),
            error_rate: (all > 0).then(|| rounded(failed as f64 / all as f64)),
            outcomes: counts.filter(|(_, count)| *count > 0).collect(),
            waiting: Percentiles::of(&tally.waited),
            running: Percentiles::of(&tally.ran),
        }
    }
}

impl Percentiles {
    pub(crate) fn of(times: &TimeBuckets) -> Option<Percentiles> {
        let ms = |part| times.quantile(part).map(|seconds| rounded(seconds * 1000.0));
        Some(Percentiles { count: times.count(), p50_ms: ms(0.5)?, p95_ms: ms(0.95)?, p99_ms: ms(0.99)? })
    }
}

/// Four digits behind the point say more than the buckets know.
fn rounded(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}

impl VersionView {
    /// The version as people are shown it.
    pub(crate) fn words(&self) -> String {
        words_of(&self.version, self.label.as_deref())
    }

    fn of(version: String, tally: &VersionTally, builds: &Builds) -> VersionView {
        let count = |end: AttemptEnd| tally.ends[end as usize];
        let attempts: u64 = tally.ends.iter().sum();
        VersionView {
            label: builds.label(&version).map(str::to_owned),
            version,
            attempts,
            completed: count(AttemptEnd::Completed),
            retried: count(AttemptEnd::Retried),
            rejected: count(AttemptEnd::Rejected),
            deferred: count(AttemptEnd::Deferred),
            unavailable: count(AttemptEnd::Unavailable),
            trapped: count(AttemptEnd::Trapped),
            timed_out: count(AttemptEnd::TimedOut),
            out_of_memory: count(AttemptEnd::OutOfMemory),
            failed: count(AttemptEnd::Failed),
            mean_ms: rounded(tally.ran_us as f64 / 1000.0 / attempts.max(1) as f64),
        }
    }
}

impl HistoryView {
    /// `builds` has the labels that hosts know.
    pub(crate) fn of(queue: &str, history: &QueueHistory, builds: &Builds) -> HistoryView {
        let total = history.last(history.steps.len());
        let step = |step: &HistoryStep| StepView {
            from_ms: step.minute * MINUTE_MS,
            counted: SpanView::of(&step.tally, step.minutes),
            depth: step.depth,
        };
        HistoryView {
            queue: queue.to_owned(),
            step_ms: history.steps.iter().map(|step| step.minutes).max().unwrap_or(1) * MINUTE_MS,
            total: SpanView::of(&total, history.minutes()),
            minutes: history.steps.iter().map(step).collect(),
            versions: total
                .versions
                .into_iter()
                .map(|(version, tally)| VersionView::of(version, &tally, builds))
                .collect(),
        }
    }
}

impl Lately {
    pub(crate) fn of(history: &QueueHistory) -> Lately {
        let lately = history.last(LATELY);
        let last = history.last(SILENT);
        Lately {
            counted: SpanView::of(&lately, LATELY as u64),
            finished: completed(&last) + dead(&last) + last.of(SettledAs::Cancelled),
            failing_since_ms: failing_since(&history.steps),
            dead_since_ms: dead_since(&history.steps),
        }
    }
}

fn failing_since(steps: &[HistoryStep]) -> Option<u64> {
    let part = |step: &HistoryStep| SpanView::of(&step.tally, step.minutes).error_rate;
    let judged = steps.iter().rev().filter_map(|step| Some((step, part(step)?)));
    let failing = judged.take_while(|(_, part)| *part > FAILING);
    failing.last().map(|(step, _)| step.minute * MINUTE_MS)
}

fn dead_since(steps: &[HistoryStep]) -> Option<u64> {
    let has_dead = |step: &HistoryStep| step.depth.is_some_and(|depth| depth.dead > 0);
    let before = steps.iter().rposition(|step| !has_dead(step))?;
    steps.get(before + 1).map(|step| step.minute * MINUTE_MS)
}

/// The last `count` minutes of a queue: at most [`minutes::MAX_MINUTES`].
pub(crate) async fn history(queue: &Queue, count: u64) -> QueueResult<QueueHistory> {
    let mut histories = minutes::histories(&queue.link, std::slice::from_ref(queue), count, true).await?;
    histories.pop().unwrap_or_else(|| Ok(QueueHistory::default()))
}

/// The ends of attempts by version in the last [`OVERVIEW`] minutes, in all hosts and all of these queues. A
/// queue whose history cannot be read is left out. Labels are those that these hosts know.
pub(crate) async fn versions(
    chosen: &[QueueRules],
    link: &Link,
    hosts: &[HostInfo],
) -> QueueResult<Vec<VersionView>> {
    let queues: Vec<Queue> = chosen.iter().map(|rules| Queue::new(rules.clone(), link.clone())).collect();
    let mut sum = Tally::default();
    for history in minutes::histories(link, &queues, OVERVIEW, true).await?.into_iter().flatten() {
        history.steps.iter().for_each(|step| sum.add(&step.tally));
    }
    let builds = known_builds(hosts);
    Ok(sum.versions.into_iter().map(|(version, tally)| VersionView::of(version, &tally, &builds)).collect())
}

/// The last [`OVERVIEW`] minutes of each of these queues, by name. A queue whose history cannot be read is
/// left out.
pub(crate) async fn histories(
    chosen: &[QueueRules],
    link: &Link,
) -> QueueResult<BTreeMap<String, QueueHistory>> {
    let queues: Vec<Queue> = chosen.iter().map(|rules| Queue::new(rules.clone(), link.clone())).collect();
    let read = minutes::histories(link, &queues, OVERVIEW, false).await?;
    let names = chosen.iter().map(|rules| rules.name.clone());
    Ok(names.zip(read).filter_map(|(name, history)| Some((name, history.ok()?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    fn history(minutes: &[&[(SettledAs, u64)]]) -> QueueHistory {
        let step = |(minute, counts): (u64, &&[(SettledAs, u64)])| {
            let mut step = HistoryStep { minute, minutes: 1, ..HistoryStep::default() };
            counts.iter().for_each(|(outcome, count)| step.tally.settled[*outcome as usize] = *count);
            step
        };
        QueueHistory { steps: (100..).zip(minutes).map(step).collect() }
    }

    #[test]
    fn sums_and_rates_are_those_of_the_minutes() {
        let history = history(&[
            &[(SettledAs::Completed, 60), (SettledAs::Deferred, 5)],
            &[],
            &[(SettledAs::Completed, 30), (SettledAs::Retried, 6), (SettledAs::Rejected, 4)],
        ]);
        let view = HistoryView::of("mail", &history, &Builds::default());
        assert_eq!((view.total.completed, view.total.failed, view.total.dead), (90, 10, 4));
        assert_eq!((view.step_ms, view.total.per_second, view.total.error_rate), (60_000, 0.5, Some(0.1)));
        assert_eq!(
            view.minutes.iter().map(|minute| minute.from_ms).collect::<Vec<_>>(),
            [6_000_000, 6_060_000, 6_120_000]
        );
        assert_eq!(view.minutes[1].counted.error_rate, None);
        assert_eq!(
            view.minutes[2].counted.outcomes,
            BTreeMap::from([("completed", 30), ("retried", 6), ("rejected", 4)])
        );
        assert_eq!(view.total.waiting, None);
    }

    #[test]
    fn the_last_minutes_are_those_at_the_end() {
        let minutes: [(usize, &[(SettledAs, u64)]); 3] = [
            (3, &[(SettledAs::Completed, 1000)]),
            (5, &[(SettledAs::Completed, 7)]),
            (5, &[(SettledAs::Cancelled, 1), (SettledAs::Released, 9)]),
        ];
        let minutes: Vec<&[_]> =
            minutes.iter().flat_map(|(times, counts)| std::iter::repeat_n(*counts, *times)).collect();
        let lately = Lately::of(&history(&minutes));
        assert_eq!((lately.counted.completed, lately.finished), (35, 5));
        assert_eq!(Lately::of(&QueueHistory::default()), Lately::default());
    }

    #[test]
    fn failures_and_dead_letters_began_in_a_minute() {
        let failed = |count| vec![(SettledAs::Completed, 90), (SettledAs::Retried, count)];
        let since = |minutes: &[Vec<(SettledAs, u64)>]| {
            let minutes: Vec<&[_]> = minutes.iter().map(Vec::as_slice).collect();
            Lately::of(&history(&minutes)).failing_since_ms.map(|ms| ms / MINUTE_MS)
        };
        // No attempt failed, or the last minute is not a failing one.
        assert_eq!(since(&[]), None);
        assert_eq!(since(&[failed(50), failed(10)]), None);
        // The first of the failing minutes; a minute without an attempt does not end them.
        assert_eq!(since(&[failed(50), failed(0), failed(20), vec![], failed(30), vec![]]), Some(102));
        let dead = |counts: &[u64]| {
            let depth = |dead| Depth { queued: 0, running: 0, delayed: 0, held: 0, dead, oldest_ms: None };
            let step = |(minute, dead): (u64, &u64)| HistoryStep {
                minute,
                minutes: 1,
                tally: Tally::default(),
                depth: Some(depth(*dead)),
            };
            let steps = (100..).zip(counts).map(step).collect();
            Lately::of(&QueueHistory { steps }).dead_since_ms.map(|ms| ms / MINUTE_MS)
        };
        assert_eq!((dead(&[]), dead(&[0, 0]), dead(&[3, 4])), (None, None, None));
        assert_eq!((dead(&[3, 0, 4, 5]), dead(&[0, 1])), (Some(102), Some(101)));
    }

    #[test]
    fn every_dead_letter_is_a_failure() {
        assert!(Reason::VARIANTS.iter().all(|reason| fails((*reason).into())));
    }

    #[test]
    fn a_version_has_the_mean_of_its_attempts() {
        let mut tally = VersionTally { ran_us: 3_000_000, ..VersionTally::default() };
        tally.ends[AttemptEnd::Completed as usize] = 3;
        tally.ends[AttemptEnd::TimedOut as usize] = 1;
        let view = VersionView::of("a@1".into(), &tally, &Builds::default());
        assert_eq!((view.attempts, view.completed, view.timed_out, view.mean_ms), (4, 3, 1, 750.0));
    }
}
