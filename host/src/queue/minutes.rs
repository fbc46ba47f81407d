//! The history of a queue: what became of its tasks in each minute, and how full it was at the end of the
//! minute. Also the history of a day in steps of ten minutes, and of a week in steps of an hour.
//!
//! In: the [`Tally`] of one host, and a [`Depth`]. Out: a [`QueueHistory`], with the counts of all hosts.
//!
//!     tallies ─▶ minutes, a hash for each hour ── folded every ten minutes ─▶ longer steps
//!
//! Folding reads whole hours and writes the sums of their minutes, so it may be done twice, and by several
//! hosts.
//!
//! Not here: counting, and when a minute ends (`worker::recorder`), the steps in Redis (`steps`), what is
//! shown (`operations::history`).

use std::ops::{Range, RangeInclusive};

use redis::{Cmd, Value};
use serde::Deserialize;
use strum::{EnumString, VariantNames};
use utoipa::ToSchema;

use super::error::QueueResult;
use super::handle::{Queue, millis};
use super::link::Link;
use super::script::{self, ScriptCall};
pub(crate) use super::steps::HistoryStep;
use super::steps::{AskedField, AskedHash, Grain, HOUR, Part, WHAT, ask, asked, fold, found, steps_of};
use super::tally::{Depth, MAX_VERSIONS, Tally};

pub(crate) const MINUTE_MS: u64 = 60_000;
/// The most minutes that are read at once. The hashes of minutes are kept for longer than this.
pub(crate) const MAX_MINUTES: u64 = 180;
/// A host folds the history of a queue once in this many minutes.
const FOLDED_EVERY: u64 = 10;
/// The most hosts of which one hash keeps the number of the last call.
const MAX_MARKS: u64 = 1000;
/// The time after the end of a minute at which it is over for a reader. Hosts write their counts about a
/// second after the end.
const LATE_MS: u64 = 3000;

/// A range of the history that ends now, by the name that people and programs use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, EnumString, VariantNames, Deserialize, ToSchema)]
pub(crate) enum HistoryRange {
    /// The last hour, by the minute.
    #[default]
    #[strum(serialize = "1h")]
    #[serde(rename = "1h")]
    Hour,
    /// The last 24 hours, in steps of ten minutes.
    #[strum(serialize = "24h")]
    #[serde(rename = "24h")]
    Day,
    /// The last seven days, in steps of an hour.
    #[strum(serialize = "7d")]
    #[serde(rename = "7d")]
    Week,
}

impl HistoryRange {
    pub(crate) fn words(self) -> &'static str {
        match self {
            HistoryRange::Hour => "the last hour",
            HistoryRange::Day => "the last 24 hours",
            HistoryRange::Week => "the last 7 days",
        }
    }
}

/// The lengths of the steps that are folded from minutes.
const FOLDED: [Grain; 2] = [Grain::TenMinutes, Grain::Hour];

/// The last steps of a queue, oldest first, without gaps. The last one may still go on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct QueueHistory {
    pub steps: Vec<HistoryStep>,
}

impl Queue {
    /// A call that adds the tally of a host to a minute. `number` grows with each call of this host about
    /// this queue. A call that is sent again has the same number, adds nothing and returns 0 instead of 1.
    pub(crate) fn tally_call(&self, minute: u64, tally: &Tally, host: &str, number: u64) -> ScriptCall {
        ScriptCall::new(&script::TALLY)
            .key("minutes", self.keys.minutes(minute / HOUR))
            .arg("figures_field", Part::Figures.field(Grain::Minute, minute))
            .arg("figures", tally.figures())
            .arg("versions_field", Part::Versions.field(Grain::Minute, minute))
            .arg("versions", tally.versions_json())
            .arg("host", host)
            .arg("number", number)
            .arg("lives", millis(Grain::Minute.kept()))
            .arg("most_versions", MAX_VERSIONS)
            .arg("most_marks", MAX_MARKS)
    }

    /// Calls that note how full the queue was at the end of a minute.
    pub(crate) fn note_depth(&self, minute: u64, depth: &Depth) -> Vec<ScriptCall> {
        let json = serde_json::to_string(depth).unwrap_or_default();
        self.write_fields(Grain::Minute, minute, &[(Part::Depth.field(Grain::Minute, minute), json)])
    }

    /// Calls that write fields and their values into the hash that has this step.
    fn write_fields(&self, grain: Grain, step: u64, fields: &[(String, String)]) -> Vec<ScriptCall> {
        let key = grain.key(self, step);
        if fields.is_empty() {
            return Vec::new();
        }
        vec![
            script::write(redis::cmd("HSET").arg(&key).arg(fields)),
            script::write(redis::cmd("PEXPIRE").arg(&key).arg(millis(grain.kept()))),
        ]
    }

    /// A command that counts the hours that have a history, among the hours that a reader sees in this
    /// minute.
    pub(crate) fn count_hours(&self, minute: u64) -> Cmd {
        let hours = (minute / HOUR).saturating_sub(MAX_MINUTES / HOUR)..=minute / HOUR;
        redis::cmd("EXISTS").arg(hours.map(|hour| self.keys.minutes(hour)).collect::<Vec<_>>()).to_owned()
    }

    /// A command that reads the minutes of an hour, for [`Queue::folded`].
    pub(crate) fn ask_hour(&self, hour: u64) -> Cmd {
        ask(self, &AskedHash::of_hour(hour))
    }

    /// Calls that write the longer steps of an hour. `last`: the last minute that is over. `reply`: the reply
    /// to [`Queue::ask_hour`]. A part of a step that is empty is left out.
    pub(crate) fn folded(&self, hour: u64, last: u64, reply: Value) -> QueueResult<Vec<ScriptCall>> {
        let asked = [AskedHash::of_hour(hour)];
        let found = found(&self.link, &asked, vec![Ok(reply)])?;
        let end = (hour + 1) * HOUR;
        let minutes = steps_of(Grain::Minute, &(hour * HOUR..end.min(last + 1)), found);
        let mut calls = Vec::new();
        for grain in FOLDED {
            let mut fields = Vec::new();
            for mut step in fold(&minutes, grain) {
                let number = step.minute / grain.minutes();
                if !step.tally.is_empty() {
                    step.tally.bound_versions();
                    fields.push((Part::Figures.field(grain, number), step.tally.figures()));
                    fields.push((Part::Versions.field(grain, number), step.tally.versions_json()));
                }
                if let Some(depth) = step.depth {
                    let json = serde_json::to_string(&depth).unwrap_or_default();
                    fields.push((Part::Depth.field(grain, number), json));
                }
            }
            calls.extend(self.write_fields(grain, hour * HOUR / grain.minutes(), &fields));
        }
        Ok(calls)
    }
}

/// Whether two minutes are in one hash.
pub(crate) fn share_hour(one: u64, other: u64) -> bool {
    one / HOUR == other / HOUR
}

/// The hours to fold at the end of a minute. `before`: the minute after which this host last folded. None: it
/// is too early to fold again. A host that stops always folds.
pub(crate) fn hours_to_fold(before: Option<u64>, minute: u64, stops: bool) -> Option<RangeInclusive<u64>> {
    let part = |minute: u64| (minute + 1) / FOLDED_EVERY;
    if !stops && before.is_some_and(|before| part(before) == part(minute)) {
        return None;
    }
    // Other hosts may have written some minutes late.
    let since = before.map_or(0, |before| before.saturating_sub(FOLDED_EVERY));
    Some(since.max(minute.saturating_sub(MAX_MINUTES)) / HOUR..=minute / HOUR)
}

/// The last `count` minutes of each of these queues, in their order. Reads at most [`MAX_MINUTES`], by one
/// command for each queue and hour. With `everything`, also reads depths and versions.
pub(crate) async fn histories(
    link: &Link,
    queues: &[Queue],
    count: u64,
    everything: bool,
) -> QueueResult<Vec<QueueResult<QueueHistory>>> {
    let now_ms = link.now_ms().await?;
    let count = count.clamp(1, MAX_MINUTES);
    let open = first_open(now_ms);
    let span = open.saturating_sub(count)..now_ms / MINUTE_MS + 1;
    let asked = asked(Grain::Minute, &span, everything);
    let commands = queues.iter().flat_map(|queue| asked.iter().map(|hash| ask(queue, hash)));
    let commands: Vec<Cmd> = commands.collect();
    let mut replies = link.pipeline(WHAT, &commands).await?.into_iter();
    let mut histories = Vec::with_capacity(queues.len());
    for _ in queues {
        let found = found(link, &asked, replies.by_ref().take(asked.len()).collect());
        histories.push(found.map(|found| QueueHistory::of(&span, open, count, found)));
    }
    Ok(histories)
}

/// The history of a queue in this range. Steps that are older than some hours are read as they were folded.
pub(crate) async fn in_range(queue: &Queue, range: HistoryRange) -> QueueResult<QueueHistory> {
    let (grain, count) = match range {
        HistoryRange::Hour => {
            let mut hour = histories(&queue.link, std::slice::from_ref(queue), HOUR, true).await?;
            return hour.pop().unwrap_or_else(|| Ok(QueueHistory::default()));
        }
        HistoryRange::Day => (Grain::TenMinutes, 144),
        HistoryRange::Week => (Grain::Hour, 168),
    };
    let now_ms = queue.link.now_ms().await?;
    let (recent, folded) = spans(now_ms, grain, count);
    let (new, old) = (asked(Grain::Minute, &recent, true), asked(grain, &folded, true));
    let commands: Vec<Cmd> = new.iter().chain(&old).map(|hash| ask(queue, hash)).collect();
    let mut replies = queue.link.pipeline(WHAT, &commands).await?;
    let old_replies = replies.split_off(new.len());
    let mut steps = steps_of(grain, &folded, found(&queue.link, &old, old_replies)?);
    let minutes =
        QueueHistory::of(&recent, first_open(now_ms), recent.end, found(&queue.link, &new, replies)?);
    steps.extend(fold(&minutes.steps, grain));
    Ok(QueueHistory { steps })
}

/// The first minute that is not over yet for a reader.
fn first_open(now_ms: u64) -> u64 {
    now_ms.saturating_sub(LATE_MS) / MINUTE_MS
}

/// The spans that are read for the last `count` longer steps: a span of minutes for the last hours, and a
/// span of longer steps before them.
fn spans(now_ms: u64, grain: Grain, count: u64) -> (Range<u64>, Range<u64>) {
    let open = first_open(now_ms);
    let recent = (open / HOUR + 1).saturating_sub(MAX_MINUTES / HOUR) * HOUR;
    let folded_end = recent / grain.minutes();
    let first = open.div_ceil(grain.minutes()).saturating_sub(count);
    (recent..now_ms / MINUTE_MS + 1, first.min(folded_end)..folded_end)
}

impl QueueHistory {
    /// The last `count` minutes of a span. Minutes from `open` on are not over: the last ones of them are
    /// left out as long as nothing was counted in them.
    fn of(span: &Range<u64>, open: u64, count: u64, found: Vec<(AskedField, Value)>) -> QueueHistory {
        let mut steps = steps_of(Grain::Minute, span, found);
        while steps.pop_if(|last| last.minute >= open && last.tally.is_empty()).is_some() {}
        let more = steps.len().saturating_sub(count as usize);
        steps.drain(..more);
        QueueHistory { steps }
    }

    /// The counts of the last `count` steps.
    pub(crate) fn last(&self, count: usize) -> Tally {
        let mut sum = Tally::default();
        self.steps.iter().rev().take(count).for_each(|step| sum.add(&step.tally));
        sum
    }

    /// The minutes that all steps have together.
    pub(crate) fn minutes(&self) -> u64 {
        self.steps.iter().map(|step| step.minutes).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::task::SettledAs;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn a_minute_that_goes_on_is_shown_only_if_something_was_counted_in_it() {
        let found = |minute| vec![((Part::Figures, minute), text(r#"{"completed":1}"#))];
        let numbers = |history: QueueHistory| {
            let counted = |step: &HistoryStep| (step.minute, step.tally.of(SettledAs::Completed));
            history.steps.iter().map(counted).collect::<Vec<_>>()
        };
        // Minutes 118 and 119 are over, 120 goes on.
        assert_eq!(numbers(QueueHistory::of(&(118..121), 120, 2, found(119))), [(118, 0), (119, 1)]);
        assert_eq!(numbers(QueueHistory::of(&(118..121), 120, 2, found(120))), [(119, 0), (120, 1)]);
    }

    #[test]
    fn a_depth_holds_until_the_next_one() {
        let depth = |at, dead| {
            let depth = Depth { queued: 0, running: 0, delayed: 0, held: 0, dead, oldest_ms: None };
            ((Part::Depth, at), text(&serde_json::to_string(&depth).unwrap_or_default()))
        };
        // The first one is of a minute before the span.
        let found = vec![depth(60, 5), ((Part::Depth, 61), text("{}")), depth(119, 6), depth(120, 7)];
        let history = QueueHistory::of(&(117..121), 121, 4, found);
        let dead: Vec<_> = history.steps.iter().map(|step| step.depth.map(|depth| depth.dead)).collect();
        assert_eq!(dead, [Some(5), Some(5), Some(6), Some(7)]);
        assert_eq!(QueueHistory::of(&(10..11), 11, 1, vec![]).steps[0].depth, None);
        // A longer step has its own depth or none.
        let steps = steps_of(Grain::Hour, &(1..4), vec![depth(2, 7)]);
        assert_eq!(
            steps.iter().map(|step| step.depth.map(|depth| depth.dead)).collect::<Vec<_>>(),
            [None, Some(7), None]
        );
    }

    proptest! {
        #[test]
        fn minutes_and_longer_steps_meet_without_a_gap(now_ms in 1_700_000_000_000..1_700_700_000_000_u64) {
            for (grain, count) in [(Grain::TenMinutes, 144), (Grain::Hour, 168)] {
                let (recent, folded) = spans(now_ms, grain, count);
                prop_assert_eq!(folded.end * grain.minutes(), recent.start);
                prop_assert!(recent.end - recent.start <= MAX_MINUTES + 1);
                // All of them together are as many steps as were asked for, or one more that goes on.
                let more = (recent.end - recent.start).div_ceil(grain.minutes());
                let steps = folded.end - folded.start + more;
                prop_assert!(steps == count || steps == count + 1, "{}", steps);
                prop_assert!(asked(grain, &folded, true).len() as u64 <= count / grain.in_hash() + 1);
            }
        }

        #[test]
        fn every_hour_is_folded_after_its_end_whatever_minutes_are_missed(
            start in 10_000..20_000_u64, gaps in prop::collection::vec(1..30_u64, 1..40),
        ) {
            let (mut before, mut minute) = (None, start);
            for gap in gaps {
                minute += gap;
                if let Some(hours) = hours_to_fold(before, minute, false) {
                    prop_assert_eq!(*hours.end(), minute / HOUR);
                    // It begins with all that has changed since the last time.
                    let changed = before.unwrap_or(minute - MAX_MINUTES);
                    prop_assert!(*hours.start() <= changed / HOUR);
                    prop_assert!(hours.count() <= 4);
                    before = Some(minute);
                } else {
                    prop_assert!(before.is_some_and(|before| minute - before < FOLDED_EVERY));
                }
            }
        }
    }
}
