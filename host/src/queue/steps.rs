//! The steps of a history as they stand in Redis: hashes, with three fields for each step.
//!
//! In: a span of steps. Out: the commands that read it, and the [`HistoryStep`]s in their replies.
//! docs/decisions/0021-history.md says why the fields are these.
//!
//! Not here: which steps are read and written (`minutes`), the form of the counts (`tally`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use redis::{Cmd, Value};

use super::error::QueueResult;
use super::handle::Queue;
use super::link::Link;
use super::reply;
use super::tally::{Depth, Tally};

/// The minutes of an hour.
pub(super) const HOUR: u64 = 60;
/// The purpose of the commands, for errors.
pub(super) const WHAT: &str = "read the history";

/// How long the steps of a history are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grain {
    Minute,
    TenMinutes,
    Hour,
}

impl Grain {
    /// The number of minutes of a step.
    pub(super) const fn minutes(self) -> u64 {
        match self {
            Grain::Minute => 1,
            Grain::TenMinutes => 10,
            Grain::Hour => HOUR,
        }
    }

    /// The number of steps in one hash: the steps of an hour, of six hours, or of a day.
    pub(super) const fn in_hash(self) -> u64 {
        match self {
            Grain::Minute => 60,
            Grain::TenMinutes => 36,
            Grain::Hour => 24,
        }
    }

    /// The time after its last write at which a hash expires.
    pub(super) const fn kept(self) -> Duration {
        let hours = match self {
            Grain::Minute => 4,
            Grain::TenMinutes => 25,
            Grain::Hour => 7 * 24 + 2,
        };
        Duration::from_secs(hours * 3600)
    }

    /// The key of the hash that has this step. Steps are numbered from the Unix epoch.
    pub(super) fn key(self, queue: &Queue, step: u64) -> String {
        let hash = step / self.in_hash();
        match self {
            Grain::Minute => queue.keys.minutes(hash),
            Grain::TenMinutes => queue.keys.ten_minutes(hash),
            Grain::Hour => queue.keys.hours(hash),
        }
    }
}

/// The history of one minute of a queue, or of some minutes that follow each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HistoryStep {
    /// The first minute, since the Unix epoch, by Redis's clock.
    pub minute: u64,
    /// The number of minutes. A last step that still goes on has fewer minutes than others.
    pub minutes: u64,
    pub tally: Tally,
    /// How full the queue was when a host last looked, up to the end of the step. None: not known.
    pub depth: Option<Depth>,
}

/// The kinds of fields of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Figures,
    Versions,
    Depth,
}

impl Part {
    /// The field of a step in its hash.
    pub(super) fn field(self, grain: Grain, step: u64) -> String {
        let name = match self {
            Part::Figures => "figures",
            Part::Versions => "versions",
            Part::Depth => "depth",
        };
        format!("{name}:{}", step % grain.in_hash())
    }
}

/// A part of the step with this number.
pub(super) type AskedField = (Part, u64);

/// A hash, and the fields that are read from it.
pub(super) struct AskedHash {
    grain: Grain,
    /// The hashes of a grain are numbered from the Unix epoch.
    number: u64,
    fields: Vec<AskedField>,
}

impl AskedHash {
    /// All fields of the minutes of an hour.
    pub(super) fn of_hour(hour: u64) -> AskedHash {
        let parts = [Part::Figures, Part::Versions, Part::Depth];
        let minutes = hour * HOUR..(hour + 1) * HOUR;
        let fields = minutes.flat_map(|minute| parts.map(|part| (part, minute))).collect();
        AskedHash { grain: Grain::Minute, number: hour, fields }
    }
}

/// The fields to read for a span of steps. The depth of a minute is only written when it changes, and once an
/// hour, so depths are read from the beginning of the first hour on.
pub(super) fn asked(grain: Grain, span: &Range<u64>, everything: bool) -> Vec<AskedHash> {
    let mut hashes: BTreeMap<u64, Vec<AskedField>> = BTreeMap::new();
    let from_hour = everything && grain == Grain::Minute;
    let begin = if from_hour { span.start / HOUR * HOUR } else { span.start };
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
    hashes.into_iter().map(|(number, fields)| AskedHash { grain, number, fields }).collect()
}

/// A command that reads these fields.
pub(super) fn ask(queue: &Queue, AskedHash { grain, number, fields }: &AskedHash) -> Cmd {
    let mut ask = redis::cmd("HMGET");
    ask.arg(grain.key(queue, number * grain.in_hash()));
    for (part, step) in fields {
        ask.arg(part.field(*grain, *step));
    }
    ask
}

/// The fields that were asked for, in their order, each with its value.
pub(super) fn found(
    link: &Link,
    asked: &[AskedHash],
    replies: Vec<QueueResult<Value>>,
) -> QueueResult<Vec<(AskedField, Value)>> {
    let mut found = Vec::new();
    for (hash, reply) in asked.iter().zip(replies) {
        let values = link.shaped(WHAT, reply::array(reply?))?;
        debug_assert_eq!(values.len(), hash.fields.len(), "HMGET has a value for each field");
        found.extend(hash.fields.iter().copied().zip(values));
    }
    Ok(found)
}

/// The steps of a span, with the values that were found. A minute without a depth has that of the minute
/// before it.
pub(super) fn steps_of(grain: Grain, span: &Range<u64>, found: Vec<(AskedField, Value)>) -> Vec<HistoryStep> {
    let length = grain.minutes();
    let step = |number| HistoryStep { minute: number * length, minutes: length, ..HistoryStep::default() };
    let mut steps: Vec<HistoryStep> = span.clone().map(step).collect();
    let mut depths = BTreeMap::new();
    for ((part, number), value) in found {
        let Ok(json) = reply::bytes(value) else { continue };
        let step = number.checked_sub(span.start).and_then(|at| steps.get_mut(at as usize));
        match (part, step) {
            (Part::Depth, _) => {
                // A depth in another form, from another version of tqhost, is left out.
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

/// Sums minutes up to longer steps. A longer step has the same first minute in every history.
pub(super) fn fold(minutes: &[HistoryStep], grain: Grain) -> Vec<HistoryStep> {
    let number = |minute: &HistoryStep| minute.minute / grain.minutes();
    let sum_up = |minutes: &[HistoryStep]| {
        let mut sum = HistoryStep { minutes: minutes.len() as u64, ..HistoryStep::default() };
        for minute in minutes {
            sum.minute = number(minute) * grain.minutes();
            sum.tally.add(&minute.tally);
            sum.depth = minute.depth.or(sum.depth);
        }
        sum
    };
    minutes.chunk_by(|one, next| number(one) == number(next)).map(sum_up).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::task::SettledAs;

    proptest! {
        #[test]
        fn every_minute_is_asked_once_whatever_the_hour(start in 1000..2000_u64, count in 1..=180_u64) {
            let span = start..start + count;
            let asked = asked(Grain::Minute, &span, true);
            prop_assert!(asked.len() as u64 <= count / HOUR + 2);
            for hash in &asked {
                prop_assert!(hash.fields.iter().all(|(_, minute)| minute / HOUR == hash.number));
            }
            let all: Vec<AskedField> = asked.into_iter().flat_map(|hash| hash.fields).collect();
            for part in [Part::Figures, Part::Versions] {
                let of: Vec<u64> =
                    all.iter().filter(|(kind, _)| *kind == part).map(|(_, minute)| *minute).collect();
                prop_assert_eq!(of, span.clone().collect::<Vec<_>>());
            }
        }
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
}
