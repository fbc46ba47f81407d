//! The history of a queue: what became of its tasks in each minute, and how full it was at the end of it; for
//! a day in steps of ten minutes, and for a week in steps of an hour.
//!
//! In: the [`Tally`] of one host, and a [`Depth`]. Out: a [`QueueHistory`], with what all hosts counted.
//!
//!     tallies ─▶ minutes, a hash for each hour ── folded every ten minutes ─▶ longer steps
//!
//! Each hash has three fields for each step; docs/decisions/0021-history.md says why. Folding reads whole
//! hours and writes the same again, so it may be done twice, and by several hosts.
//!
//! Not here: counting and the minutes' ends (`worker::recorder`), the form of the counts (`tally`), what is
//! shown (`operations::history`).

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use redis::{Cmd, Value};
use serde::Deserialize;
use strum::{EnumString, VariantNames};
use utoipa::ToSchema;

use super::error::{QueueError, QueueResult};
use super::handle::{Queue, millis};
use super::link::Link;
use super::reply;
use super::script::{self, ScriptCall};
use super::tally::{Depth, MAX_VERSIONS, Tally};

pub(crate) const MINUTE_MS: u64 = 60_000;
const HOUR: u64 = 60;
/// The most minutes that are read at once. They are there at any time, since their hashes are kept for
/// longer.
pub(crate) const MAX_MINUTES: u64 = 180;
/// The minutes between two times at which a host folds the history of a queue.
const FOLDED_EVERY: u64 = 10;
/// The hosts whose last call is kept in one hash.
const MAX_MARKS: u64 = 1000;
/// A minute is over for a reader so long after its end: hosts write it about a second later.
const LATE_MS: u64 = 3000;
const WHAT: &str = "read the history";

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

/// How long the steps of a history are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grain {
    Minute,
    TenMinutes,
    Hour,
}

/// The grains of longer steps.
const FOLDED: [Grain; 2] = [Grain::TenMinutes, Grain::Hour];

impl Grain {
    /// The minutes of a step.
    const fn minutes(self) -> u64 {
        match self {
            Grain::Minute => 1,
            Grain::TenMinutes => 10,
            Grain::Hour => HOUR,
        }
    }

    /// The steps of one hash: those of an hour, of six hours, or of a day.
    const fn in_hash(self) -> u64 {
        match self {
            Grain::Minute => 60,
            Grain::TenMinutes => 36,
            Grain::Hour => 24,
        }
    }

    /// A hash expires so long after its last write.
    const fn kept(self) -> Duration {
        let hours = match self {
            Grain::Minute => 4,
            Grain::TenMinutes => 25,
            Grain::Hour => 7 * 24 + 2,
        };
        Duration::from_secs(hours * 3600)
    }

    /// The key of the hash with this step.
    fn key(self, queue: &Queue, step: u64) -> String {
        let hash = step / self.in_hash();
        match self {
            Grain::Minute => queue.keys.minutes(hash),
            Grain::TenMinutes => queue.keys.ten_minutes(hash),
            Grain::Hour => queue.keys.hours(hash),
        }
    }
}

/// A minute of a queue, or some that follow each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HistoryStep {
    /// The first minute, since the Unix epoch, by Redis's clock.
    pub minute: u64,
    /// How many minutes there are. The last step has fewer, if it still goes on.
    pub minutes: u64,
    pub tally: Tally,
    /// As a host saw the queue last, up to the end of the step. None: no host has told.
    pub depth: Option<Depth>,
}

/// The last steps of a queue, oldest first, without gaps. The last one may still go on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct QueueHistory {
    pub steps: Vec<HistoryStep>,
}

/// The kinds of fields of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Figures,
    Versions,
    Depth,
}

const PARTS: [Part; 3] = [Part::Figures, Part::Versions, Part::Depth];

impl Part {
    fn field(self, grain: Grain, step: u64) -> String {
        let name = match self {
            Part::Figures => "figures",
            Part::Versions => "versions",
            Part::Depth => "depth",
        };
        format!("{name}:{}", step % grain.in_hash())
    }
}

impl Queue {
    /// A call that adds the tally of a host to a minute. `number` grows with each call of this host about
    /// this queue, so a call that is sent again adds nothing: it gives 0 then, and else 1.
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
        self.write_fields(Grain::Minute, minute, &[Part::Depth.field(Grain::Minute, minute), json])
    }

    /// Calls that write fields, each with its value, into the hash with this step.
    fn write_fields(&self, grain: Grain, step: u64, fields: &[String]) -> Vec<ScriptCall> {
        let key = grain.key(self, step);
        if fields.is_empty() {
            return Vec::new();
        }
        vec![
            script::write(redis::cmd("HSET").arg(&key).arg(fields)),
            script::write(redis::cmd("PEXPIRE").arg(&key).arg(millis(grain.kept()))),
        ]
    }

    /// A command that counts the hours with a history, among the hours that a reader sees in this minute.
    pub(crate) fn count_hours(&self, minute: u64) -> Cmd {
        let hours = (minute / HOUR).saturating_sub(MAX_MINUTES / HOUR)..=minute / HOUR;
        redis::cmd("EXISTS").arg(hours.map(|hour| self.keys.minutes(hour)).collect::<Vec<_>>()).to_owned()
    }

    /// A command that reads an hour, for [`Queue::folded`].
    pub(crate) fn ask_hour(&self, hour: u64) -> Cmd {
        ask(self, Grain::Minute, hour, &fields_of_hour(hour))
    }

    /// Calls that write the longer steps of an hour, as far as the last minute that is over. `reply` tells
    /// its minutes. Steps in which nothing was counted, and that no host saw, are left out.
    pub(crate) fn folded(&self, hour: u64, last: u64, reply: Value) -> QueueResult<Vec<ScriptCall>> {
        let found = paired(&fields_of_hour(hour), reply).ok_or_else(|| unreadable(&self.link))?;
        let end = (hour + 1) * HOUR;
        let minutes = steps_of(Grain::Minute, &(hour * HOUR..end.min(last + 1)), found);
        let mut calls = Vec::new();
        for grain in FOLDED {
            let mut fields = Vec::new();
            for mut step in fold(&minutes, grain) {
                let number = step.minute / grain.minutes();
                if !step.tally.is_empty() {
                    step.tally.bound_versions();
                    fields.extend([Part::Figures.field(grain, number), step.tally.figures()]);
                    fields.extend([Part::Versions.field(grain, number), step.tally.versions_json()]);
                }
                if let Some(depth) = step.depth {
                    let json = serde_json::to_string(&depth).unwrap_or_default();
                    fields.extend([Part::Depth.field(grain, number), json]);
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

/// The hours to fold at the end of a minute, where all was folded at the end of the minute `before`. None:
/// not yet, unless the host stops. Other hosts may have written some minutes late.
pub(crate) fn hours_to_fold(before: Option<u64>, minute: u64, stops: bool) -> Option<RangeInclusive<u64>> {
    let part = |minute: u64| (minute + 1) / FOLDED_EVERY;
    if !stops && before.is_some_and(|before| part(before) == part(minute)) {
        return None;
    }
    let since = before.map_or(0, |before| before.saturating_sub(FOLDED_EVERY));
    Some(since.max(minute.saturating_sub(MAX_MINUTES)) / HOUR..=minute / HOUR)
}

/// The steps of one hour or less together: a longer step begins where its minutes do.
fn fold(minutes: &[HistoryStep], grain: Grain) -> Vec<HistoryStep> {
    let longer = |minutes: &[HistoryStep]| {
        let mut sum = HistoryStep { minutes: minutes.len() as u64, ..HistoryStep::default() };
        sum.minute = minutes.first().map_or(0, |first| first.minute / grain.minutes() * grain.minutes());
        minutes.iter().for_each(|minute| sum.tally.add(&minute.tally));
        sum.depth = minutes.iter().rev().find_map(|minute| minute.depth);
        sum
    };
    let are_together =
        |one: &HistoryStep, next: &HistoryStep| one.minute / grain.minutes() == next.minute / grain.minutes();
    minutes.chunk_by(are_together).map(longer).collect()
}

/// The last minutes of each of these queues, in their order: `count` of them, at most [`MAX_MINUTES`]. Takes
/// one command for each queue and hour. Depths and versions are read if everything is asked for.
pub(crate) async fn histories(
    link: &Link,
    queues: &[Queue],
    count: u64,
    everything: bool,
) -> QueueResult<Vec<QueueResult<QueueHistory>>> {
    let now_ms = link.now_ms().await?;
    let count = count.clamp(1, MAX_MINUTES);
    let over = first_open(now_ms);
    let span = over.saturating_sub(count)..now_ms / MINUTE_MS + 1;
    let asked = asked(Grain::Minute, &span, everything);
    let commands: Vec<Cmd> = queues
        .iter()
        .flat_map(|queue| asked.iter().map(|(hour, fields)| ask(queue, Grain::Minute, *hour, fields)))
        .collect();
    let mut replies = link.pipeline(WHAT, &commands).await?.into_iter();
    let mut histories = Vec::with_capacity(queues.len());
    for _ in queues {
        let found = found(link, &asked, replies.by_ref().take(asked.len()).collect());
        histories.push(found.map(|found| QueueHistory::of(&span, over, count, found)));
    }
    Ok(histories)
}

/// The history of a queue in this range. What is older than some hours comes from the folded steps.
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
    let commands: Vec<Cmd> = new
        .iter()
        .map(|(hash, fields)| ask(queue, Grain::Minute, *hash, fields))
        .chain(old.iter().map(|(hash, fields)| ask(queue, grain, *hash, fields)))
        .collect();
    let mut replies = queue.link.pipeline(WHAT, &commands).await?;
    let old_replies = replies.split_off(new.len());
    let mut steps = steps_of(grain, &folded, found(&queue.link, &old, old_replies)?);
    let minutes =
        QueueHistory::of(&recent, first_open(now_ms), recent.end, found(&queue.link, &new, replies)?);
    steps.extend(fold(&minutes.steps, grain));
    Ok(QueueHistory { steps })
}

/// The first minute that is not over for a reader.
fn first_open(now_ms: u64) -> u64 {
    now_ms.saturating_sub(LATE_MS) / MINUTE_MS
}

/// The spans that are read for `count` longer steps up to now: the minutes of the last hours, and the steps
/// before them.
fn spans(now_ms: u64, grain: Grain, count: u64) -> (Range<u64>, Range<u64>) {
    let open = first_open(now_ms);
    let recent = (open / HOUR + 1).saturating_sub(MAX_MINUTES / HOUR) * HOUR;
    let folded_end = recent / grain.minutes();
    let first = open.div_ceil(grain.minutes()).saturating_sub(count);
    (recent..now_ms / MINUTE_MS + 1, first.min(folded_end)..folded_end)
}

type AskedField = (Part, u64);
/// A hash, and the fields that are asked of it.
type AskedHash = (u64, Vec<AskedField>);

fn fields_of_hour(hour: u64) -> Vec<AskedField> {
    (hour * HOUR..(hour + 1) * HOUR).flat_map(|minute| PARTS.map(|part| (part, minute))).collect()
}

/// The fields that are asked of each hash. The depth of a minute is asked for from the beginning of the first
/// hour on, since it is only written when it changes, and once an hour.
fn asked(grain: Grain, span: &Range<u64>, everything: bool) -> Vec<AskedHash> {
    let mut hashes: BTreeMap<u64, Vec<AskedField>> = BTreeMap::new();
    let from_begin = everything && grain == Grain::Minute;
    let begin = if from_begin { span.start / HOUR * HOUR } else { span.start };
    for step in begin..span.end {
        let fields = hashes.entry(step / grain.in_hash()).or_default();
        if everything {
            fields.push((Part::Depth, step));
        }
        if span.contains(&step) {
            fields.push((Part::Figures, step));
            if everything {
                fields.push((Part::Versions, step));
            }
        }
    }
    hashes.into_iter().collect()
}

fn ask(queue: &Queue, grain: Grain, hash: u64, fields: &[AskedField]) -> Cmd {
    let mut ask = redis::cmd("HMGET");
    ask.arg(grain.key(queue, hash * grain.in_hash()));
    for (part, step) in fields {
        ask.arg(part.field(grain, *step));
    }
    ask
}

/// The fields that were asked for, in their order.
fn found(
    link: &Link,
    asked: &[AskedHash],
    replies: Vec<QueueResult<Value>>,
) -> QueueResult<Vec<(AskedField, Value)>> {
    let mut found = Vec::new();
    for ((_, fields), reply) in asked.iter().zip(replies) {
        found.extend(paired(fields, reply?).ok_or_else(|| unreadable(link))?);
    }
    Ok(found)
}

fn paired(fields: &[AskedField], reply: Value) -> Option<Vec<(AskedField, Value)>> {
    Some(fields.iter().copied().zip(reply::array(reply).ok()?).collect())
}

fn unreadable(link: &Link) -> QueueError {
    QueueError::unexpected(WHAT, link.address())
}

/// The steps of a span, with what was found of them. The depth of a minute holds until the next one is found.
fn steps_of(grain: Grain, span: &Range<u64>, found: Vec<(AskedField, Value)>) -> Vec<HistoryStep> {
    let length = grain.minutes();
    let step = |number| HistoryStep { minute: number * length, minutes: length, ..HistoryStep::default() };
    let mut steps: Vec<HistoryStep> = span.clone().map(step).collect();
    let mut depths = BTreeMap::new();
    for ((part, number), value) in found {
        let Ok(json) = reply::bytes(value) else { continue };
        let step = number.checked_sub(span.start).and_then(|at| steps.get_mut(at as usize));
        match (part, step) {
            (Part::Depth, _) => {
                // Another form is left out, which another version may have written.
                depths.extend(serde_json::from_slice::<Depth>(&json).ok().map(|depth| (number, depth)));
            }
            (Part::Figures, Some(step)) => step.tally.read_figures(&json),
            (Part::Versions, Some(step)) => step.tally.read_versions(&json),
            (_, None) => {}
        }
    }
    for (number, step) in span.clone().zip(&mut steps) {
        let first = if grain == Grain::Minute { 0 } else { number };
        step.depth = depths.range(first..=number).next_back().map(|(_, depth)| *depth);
    }
    steps
}

impl QueueHistory {
    /// The last `count` minutes of a span. `over` is the first minute that goes on: it is there if something
    /// was counted in it. `found` is in the order of the minutes.
    fn of(span: &Range<u64>, over: u64, count: u64, found: Vec<(AskedField, Value)>) -> QueueHistory {
        let mut steps = steps_of(Grain::Minute, span, found);
        while steps.pop_if(|last| last.minute >= over && last.tally.is_empty()).is_some() {}
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

    proptest! {
        #[test]
        fn every_minute_is_asked_once_whatever_the_hour(start in 1000..2000_u64, count in 1..=MAX_MINUTES) {
            let span = start..start + count;
            let asked = asked(Grain::Minute, &span, true);
            prop_assert!(asked.len() as u64 <= count / HOUR + 2);
            for (hour, fields) in &asked {
                prop_assert!(fields.iter().all(|(_, minute)| minute / HOUR == *hour));
            }
            let all: Vec<AskedField> = asked.into_iter().flat_map(|(_, fields)| fields).collect();
            for part in [Part::Figures, Part::Versions] {
                let of: Vec<u64> =
                    all.iter().filter(|(kind, _)| *kind == part).map(|(_, minute)| *minute).collect();
                prop_assert_eq!(of, span.clone().collect::<Vec<_>>());
            }
        }
    }

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

    fn minute(minute: u64, completed: u64) -> HistoryStep {
        let mut step = HistoryStep { minute, minutes: 1, ..HistoryStep::default() };
        step.tally.settled[SettledAs::Completed as usize] = completed;
        step
    }

    #[test]
    fn longer_steps_begin_at_their_clock_and_the_last_one_may_go_on() {
        let minutes: Vec<HistoryStep> = (65..83).map(|at| minute(at, at)).collect();
        let shown = |step: &HistoryStep| (step.minute, step.minutes, step.tally.of(SettledAs::Completed));
        let tens: Vec<_> = fold(&minutes, Grain::TenMinutes).iter().map(shown).collect();
        assert_eq!(tens, [(60, 5, (65..70).sum()), (70, 10, (70..80).sum()), (80, 3, (80..83).sum())]);
        let hours: Vec<_> = fold(&minutes, Grain::Hour).iter().map(shown).collect();
        assert_eq!(hours, [(60, 18, (65..83).sum())]);
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
