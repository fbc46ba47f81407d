//! The history of a queue: what became of its tasks in each minute, and how full it was at the end of it.
//!
//! In: the [`Tally`] of one host, and a [`Depth`]. Out: a [`QueueHistory`], with what all hosts counted. Each
//! hour of a queue has one hash, with three fields for each minute; docs/decisions/0021-history.md says why.
//!
//! Not here: counting and the minutes' ends (`worker::recorder`), what is shown (`operations::history`).

use std::array;
use std::collections::BTreeMap;
use std::fmt;
use std::iter;
use std::ops::Range;
use std::time::Duration;

use redis::{Cmd, Value};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use strum::{EnumCount as _, VariantArray as _};

use super::census::Census;
use super::error::QueueError;
use super::handle::{Queue, millis};
use super::link::Link;
use super::reply;
use super::script::{self, ScriptCall};
use crate::task::{AttemptEnd, SettledAs};

pub(crate) const MINUTE_MS: u64 = 60_000;
/// The minutes of one hash.
const HOUR: u64 = 60;
/// A hash expires so long after the last write. It covers [`MAX_MINUTES`] at any time.
const KEPT: Duration = Duration::from_secs(4 * 3600);
/// The most minutes that are read at once.
pub(crate) const MAX_MINUTES: u64 = 180;
/// The versions that are counted in one minute.
pub(crate) const MAX_VERSIONS: usize = 8;
/// The hosts whose last call is kept in one hash.
const MAX_MARKS: u64 = 1000;
/// A minute is over for a reader so long after its end: hosts write it about a second later.
const LATE_MS: u64 = 3000;

/// Upper bounds, in seconds, of the buckets for running and for waiting times. Each includes its bound. One
/// more bucket takes what is longer.
pub(crate) const BOUNDS: [f64; 22] = [
    0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
    600.0, 1800.0, 3600.0, 21_600.0, 86_400.0,
];

/// How many times fell into each bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TimeBuckets(pub [u64; BOUNDS.len() + 1]);

/// The counts of one host between two moments; or those of all hosts in some minutes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Attempts settled, in the order of [`SettledAs::VARIANTS`].
    pub settled: [u64; SettledAs::COUNT],
    /// How long tasks waited for their first attempt or their next one.
    pub waited: TimeBuckets,
    /// How long attempts ran.
    pub ran: TimeBuckets,
    /// By `name@digest`, with the first digits.
    pub versions: BTreeMap<String, VersionTally>,
}

/// The ends of attempts on one version of a plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct VersionTally {
    /// In the order of [`AttemptEnd::VARIANTS`].
    pub ends: [u64; AttemptEnd::COUNT],
    /// How long they ran, all together, in microseconds.
    pub ran_us: u64,
}

impl VersionTally {
    pub(crate) fn add(&mut self, other: &VersionTally) {
        let ends = self.ends.iter_mut().zip(other.ends);
        ends.for_each(|(to, from)| *to = to.saturating_add(from));
        self.ran_us = self.ran_us.saturating_add(other.ran_us);
    }

    /// The counts since `before`; all of them, if they have begun anew since then.
    fn since(&self, before: &VersionTally) -> VersionTally {
        let is_new = self.ends.iter().zip(before.ends).any(|(now, before)| *now < before);
        if is_new {
            return self.clone();
        }
        VersionTally {
            ends: array::from_fn(|at| self.ends[at] - before.ends[at]),
            ran_us: self.ran_us.saturating_sub(before.ran_us),
        }
    }
}

/// How many tasks were in each place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct Depth {
    pub queued: u64,
    pub running: u64,
    pub delayed: u64,
    /// Waiting for the turn of their key.
    pub held: u64,
    pub dead: u64,
    /// How long the first queued task had been in the stream.
    pub oldest_ms: Option<u64>,
}

/// One minute of a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Minute {
    /// Minutes since the Unix epoch, by Redis's clock.
    pub number: u64,
    pub tally: Tally,
    /// As a host saw the queue last, up to the end of the minute. None: no host has told.
    pub depth: Option<Depth>,
}

/// The last minutes of a queue, oldest first, without gaps. The last one may still go on, if a host that
/// stopped has counted something in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct QueueHistory {
    pub minutes: Vec<Minute>,
}

impl TimeBuckets {
    /// Which bucket takes this time.
    pub(crate) fn bucket(seconds: f64) -> usize {
        BOUNDS.partition_point(|bound| *bound < seconds)
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The time, in seconds, that this part of them does not exceed, as far as the buckets tell: inside of
    /// a bucket they count as spread evenly. What is longer than all bounds counts as the last bound.
    pub(crate) fn quantile(&self, part: f64) -> Option<f64> {
        let rank = part * self.count() as f64;
        let mut before = 0.0;
        for (at, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = *count as f64;
            if before + count >= rank {
                let lower = at.checked_sub(1).map_or(0.0, |at| BOUNDS[at]);
                let upper = BOUNDS.get(at).copied().unwrap_or(lower);
                return Some(lower + (upper - lower) * ((rank - before) / count).clamp(0.0, 1.0));
            }
            before += count;
        }
        None
    }
}

impl Tally {
    pub(crate) fn is_empty(&self) -> bool {
        self.settled.iter().all(|count| *count == 0)
            && self.waited.count() == 0
            && self.ran.count() == 0
            && self.versions.is_empty()
    }

    pub(crate) fn of(&self, outcome: SettledAs) -> u64 {
        self.settled[outcome as usize]
    }

    pub(crate) fn add(&mut self, other: &Tally) {
        let add = |to: &mut [u64], from: &[u64]| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = to.saturating_add(*from));
        };
        add(&mut self.settled, &other.settled);
        add(&mut self.waited.0, &other.waited.0);
        add(&mut self.ran.0, &other.ran.0);
        for (version, tally) in &other.versions {
            self.versions.entry(version.clone()).or_default().add(tally);
        }
    }

    /// The counts since `before`. Versions without an attempt since then are left out.
    pub(crate) fn since(&self, before: &Tally) -> Tally {
        let mut new = self.clone();
        let subtract = |to: &mut [u64], from: &[u64]| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = to.saturating_sub(*from));
        };
        subtract(&mut new.settled, &before.settled);
        subtract(&mut new.waited.0, &before.waited.0);
        subtract(&mut new.ran.0, &before.ran.0);
        new.versions.retain(|version, tally| {
            if let Some(before) = before.versions.get(version) {
                *tally = tally.since(before);
            }
            tally.ends.iter().any(|count| *count > 0)
        });
        new
    }

    /// The figures as a JSON object without zeros: outcomes by name, `w` and `r` with the number of a bucket.
    fn figures(&self) -> String {
        let outcomes = SettledAs::VARIANTS.iter().map(|outcome| outcome.into_str().to_owned());
        let named = outcomes.zip(self.settled);
        let buckets = |letter: char, times: &TimeBuckets| {
            let name = move |(at, count)| (format!("{letter}{at}"), count);
            times.0.into_iter().enumerate().map(name).collect::<Vec<_>>()
        };
        let all = named.chain(buckets('w', &self.waited)).chain(buckets('r', &self.ran));
        json_of(all)
    }

    fn versions_json(&self) -> String {
        let version = |(name, tally): (&String, &VersionTally)| {
            let ends = AttemptEnd::VARIANTS.iter().map(|end| end.into_str().to_owned()).zip(tally.ends);
            let figures = json_of(ends.chain(iter::once(("us".to_owned(), tally.ran_us))));
            format!("{}:{figures}", serde_json::Value::from(name.as_str()))
        };
        format!("{{{}}}", self.versions.iter().map(version).collect::<Vec<_>>().join(","))
    }

    /// Names that this version of tqhost does not know are left out.
    fn read_figures(&mut self, json: &[u8]) {
        let CountPairs(figures) = serde_json::from_slice(json).unwrap_or_default();
        for (name, count) in figures {
            let place = match name.split_at_checked(1) {
                Some(("w", bucket)) => bucket.parse().ok().and_then(|at: usize| self.waited.0.get_mut(at)),
                Some(("r", bucket)) if bucket.parse::<usize>().is_ok() => {
                    bucket.parse().ok().and_then(|at: usize| self.ran.0.get_mut(at))
                }
                _ => SettledAs::VARIANTS
                    .iter()
                    .find(|outcome| outcome.into_str() == name)
                    .map(|outcome| &mut self.settled[*outcome as usize]),
            };
            if let Some(place) = place {
                *place = count as u64;
            }
        }
    }

    fn read_versions(&mut self, json: &[u8]) {
        let versions: BTreeMap<String, BTreeMap<String, f64>> =
            serde_json::from_slice(json).unwrap_or_default();
        for (version, figures) in versions {
            let count = |name: &str| figures.get(name).map_or(0, |count| *count as u64);
            let mut tally = VersionTally { ran_us: count("us"), ..VersionTally::default() };
            for end in AttemptEnd::VARIANTS {
                tally.ends[*end as usize] = count(end.into_str());
            }
            self.versions.insert(version, tally);
        }
    }
}

/// The members of a JSON object, in their order. Many of them are read for one page.
#[derive(Default)]
struct CountPairs(Vec<(String, f64)>);

impl<'de> Deserialize<'de> for CountPairs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<CountPairs, D::Error> {
        struct PairsReader;
        impl<'de> Visitor<'de> for PairsReader {
            type Value = CountPairs;

            fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
                to.write_str("an object of counts")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<CountPairs, M::Error> {
                let mut pairs = Vec::with_capacity(16);
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(CountPairs(pairs))
            }
        }
        from.deserialize_map(PairsReader)
    }
}

/// A JSON object of those that are not 0.
fn json_of(figures: impl Iterator<Item = (String, u64)>) -> String {
    let figures: BTreeMap<String, u64> = figures.filter(|(_, count)| *count > 0).collect();
    serde_json::to_string(&figures).unwrap_or_default()
}

impl Depth {
    pub(crate) fn is_zero(&self) -> bool {
        self.queued + self.running + self.delayed + self.held + self.dead == 0
    }
}

impl From<&Census> for Depth {
    fn from(census: &Census) -> Depth {
        Depth {
            queued: census.queued,
            running: census.running,
            delayed: census.delayed,
            held: census.held_tasks,
            dead: census.dead,
            oldest_ms: census.oldest.map(millis),
        }
    }
}

/// The kinds of fields of a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Figures,
    Versions,
    Depth,
}

impl Part {
    fn field(self, minute: u64) -> String {
        let name = match self {
            Part::Figures => "figures",
            Part::Versions => "versions",
            Part::Depth => "depth",
        };
        format!("{name}:{}", minute % HOUR)
    }
}

impl Queue {
    /// A call that adds the tally of a host to a minute. `number` grows with each call of this host about
    /// this queue, so a call that is sent again adds nothing: it gives 0 then, and else 1.
    pub(crate) fn tally_call(&self, minute: u64, tally: &Tally, host: &str, number: u64) -> ScriptCall {
        ScriptCall::new(&script::TALLY)
            .key("minutes", self.keys.minutes(minute / HOUR))
            .arg("figures_field", Part::Figures.field(minute))
            .arg("figures", tally.figures())
            .arg("versions_field", Part::Versions.field(minute))
            .arg("versions", tally.versions_json())
            .arg("host", host)
            .arg("number", number)
            .arg("lives", millis(KEPT))
            .arg("most_versions", MAX_VERSIONS)
            .arg("most_marks", MAX_MARKS)
    }

    /// Calls that note how full the queue was at the end of a minute.
    pub(crate) fn note_depth(&self, minute: u64, depth: &Depth) -> [ScriptCall; 2] {
        let key = self.keys.minutes(minute / HOUR);
        let json = serde_json::to_string(depth).unwrap_or_default();
        [
            script::write(redis::cmd("HSET").arg(&key).arg(Part::Depth.field(minute)).arg(json)),
            script::write(redis::cmd("PEXPIRE").arg(&key).arg(millis(KEPT))),
        ]
    }

    /// A command that counts the hours with a history, of those that a reader sees in this minute.
    pub(crate) fn count_hours(&self, minute: u64) -> Cmd {
        let hours = (minute / HOUR).saturating_sub(MAX_MINUTES / HOUR)..=minute / HOUR;
        redis::cmd("EXISTS").arg(hours.map(|hour| self.keys.minutes(hour)).collect::<Vec<_>>()).to_owned()
    }
}

/// Whether two minutes are in one hash.
pub(crate) fn share_hour(one: u64, other: u64) -> bool {
    one / HOUR == other / HOUR
}

/// The last minutes of each of these queues, in their order: `count` of them, at most [`MAX_MINUTES`]. Takes
/// one command for each queue and hour. Depths and versions are read if everything is asked for.
pub(crate) async fn histories(
    link: &Link,
    queues: &[Queue],
    count: u64,
    everything: bool,
) -> Result<Vec<Result<QueueHistory, QueueError>>, QueueError> {
    const WHAT: &str = "read the history";
    let now_ms = link.now_ms().await?;
    let count = count.clamp(1, MAX_MINUTES);
    let over = now_ms.saturating_sub(LATE_MS) / MINUTE_MS;
    let span = over.saturating_sub(count)..now_ms / MINUTE_MS + 1;
    let asked = asked(&span, everything);
    let commands: Vec<Cmd> = queues
        .iter()
        .flat_map(|queue| asked.iter().map(|(hour, fields)| ask(queue, *hour, fields)))
        .collect();
    let mut replies = link.pipeline(WHAT, &commands).await?.into_iter();
    let mut histories = Vec::with_capacity(queues.len());
    for _ in queues {
        let mut found = Vec::new();
        let replies: Vec<_> = replies.by_ref().take(asked.len()).collect();
        let read = asked.iter().zip(replies).try_for_each(|((_, fields), reply)| {
            let values = reply::array(reply?).map_err(|_| QueueError::unexpected(WHAT, link.address()))?;
            found.extend(fields.iter().copied().zip(values));
            Ok(())
        });
        histories.push(read.map(|()| QueueHistory::of(&span, over, count, found)));
    }
    Ok(histories)
}

type AskedField = (Part, u64);

/// The fields that are asked of each hour's hash. A depth is asked for from the beginning of the first hour
/// on, since it is only written when it changes, and once an hour.
fn asked(span: &Range<u64>, everything: bool) -> Vec<(u64, Vec<AskedField>)> {
    let mut hours: BTreeMap<u64, Vec<AskedField>> = BTreeMap::new();
    let begin = if everything { span.start / HOUR * HOUR } else { span.start };
    for minute in begin..span.end {
        let fields = hours.entry(minute / HOUR).or_default();
        if everything {
            fields.push((Part::Depth, minute));
        }
        if span.contains(&minute) {
            fields.push((Part::Figures, minute));
            if everything {
                fields.push((Part::Versions, minute));
            }
        }
    }
    hours.into_iter().collect()
}

fn ask(queue: &Queue, hour: u64, fields: &[AskedField]) -> Cmd {
    let mut ask = redis::cmd("HMGET");
    ask.arg(queue.keys.minutes(hour));
    for (part, minute) in fields {
        ask.arg(part.field(*minute));
    }
    ask
}

impl QueueHistory {
    /// `over` is the first minute that goes on. `found` is in the order of the minutes.
    fn of(span: &Range<u64>, over: u64, count: u64, found: Vec<(AskedField, Value)>) -> QueueHistory {
        let mut minutes: Vec<Minute> =
            span.clone().map(|number| Minute { number, ..Minute::default() }).collect();
        let mut depths = BTreeMap::new();
        for ((part, number), value) in found {
            let Ok(json) = reply::bytes(value) else { continue };
            let minute = number.checked_sub(span.start).and_then(|at| minutes.get_mut(at as usize));
            match (part, minute) {
                (Part::Depth, _) => {
                    // Another form is left out, which another version may have written.
                    depths.extend(serde_json::from_slice::<Depth>(&json).ok().map(|depth| (number, depth)));
                }
                (Part::Figures, Some(minute)) => minute.tally.read_figures(&json),
                (Part::Versions, Some(minute)) => minute.tally.read_versions(&json),
                (_, None) => {}
            }
        }
        for minute in &mut minutes {
            minute.depth = depths.range(..=minute.number).next_back().map(|(_, depth)| *depth);
        }
        while minutes.pop_if(|last| last.number >= over && last.tally.is_empty()).is_some() {}
        let more = minutes.len().saturating_sub(count as usize);
        minutes.drain(..more);
        QueueHistory { minutes }
    }

    /// The counts of the last `count` minutes.
    pub(crate) fn last(&self, count: usize) -> Tally {
        let mut sum = Tally::default();
        self.minutes.iter().rev().take(count).for_each(|minute| sum.add(&minute.tally));
        sum
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn times(seconds: &[f64]) -> TimeBuckets {
        let mut times = TimeBuckets::default();
        seconds.iter().for_each(|time| times.0[TimeBuckets::bucket(*time)] += 1);
        times
    }

    #[test]
    fn a_bucket_includes_its_bound() {
        for (at, bound) in BOUNDS.iter().enumerate() {
            assert_eq!((TimeBuckets::bucket(*bound), TimeBuckets::bucket(bound * 1.001)), (at, at + 1));
        }
        assert_eq!((TimeBuckets::bucket(0.0), TimeBuckets::bucket(1e9)), (0, BOUNDS.len()));
    }

    #[test]
    fn quantiles_are_spread_within_a_bucket() {
        assert_eq!(TimeBuckets::default().quantile(0.5), None);
        // Four between 25 and 50 ms.
        let four = times(&[0.03, 0.03, 0.04, 0.05]);
        let quantile = |part| four.quantile(part).map(|time| (time * 1e6).round());
        assert_eq!(
            [quantile(0.0), quantile(0.5), quantile(1.0)],
            [Some(25_000.0), Some(37_500.0), Some(50_000.0)]
        );
        // A time that is longer than a day counts as a day.
        assert_eq!(times(&[1e6]).quantile(0.99), Some(86_400.0));
    }

    proptest! {
        #[test]
        fn a_quantile_is_in_the_bucket_of_the_true_one(
            seconds in prop::collection::vec(0.0001..100_000.0_f64, 1..200), part in 0.01..1.0_f64,
        ) {
            let found = times(&seconds).quantile(part).expect("a quantile");
            let mut sorted = seconds;
            sorted.sort_by(f64::total_cmp);
            let rank = ((part * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len());
            let at = TimeBuckets::bucket(sorted[rank - 1]);
            let lower = at.checked_sub(1).map_or(0.0, |at| BOUNDS[at]);
            let upper = BOUNDS.get(at).copied().unwrap_or(lower);
            prop_assert!((lower..=upper).contains(&found), "{found} is not within {lower} and {upper}");
        }

        #[test]
        fn what_is_written_is_read(
            settled in prop::array::uniform16(0..1_000_000_000_u64), waited in 0..BOUNDS.len() + 1,
            ran in 0..BOUNDS.len() + 1, ends in prop::array::uniform9(0..1000_u64), ran_us in 0..1000_u64,
        ) {
            let mut tally = Tally { settled, ..Tally::default() };
            tally.waited.0[waited] = 7;
            tally.ran.0[ran] = 8;
            tally.versions.insert("a\"b@0123456789ab".into(), VersionTally { ends, ran_us });
            let mut read = Tally::default();
            read.read_figures(tally.figures().as_bytes());
            read.read_versions(tally.versions_json().as_bytes());
            prop_assert_eq!(&read, &tally);
            // The differences of two counts add up to the second one.
            let mut later = tally.clone();
            later.add(&tally);
            let mut new = tally.clone();
            new.versions.retain(|_, version| version.ends != [0; AttemptEnd::COUNT]);
            prop_assert_eq!(later.since(&tally), new);
            prop_assert!(later.since(&later).is_empty());
        }

        #[test]
        fn every_minute_is_asked_once_whatever_the_hour(start in 1000..2000_u64, count in 1..=MAX_MINUTES) {
            let span = start..start + count;
            let asked = asked(&span, true);
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

    #[test]
    fn unknown_names_are_left_out() {
        let mut tally = Tally::default();
        tally.read_figures(br#"{"completed":2,"retried":1e+2,"w3":4,"w99":5,"r":1,"rx":2,"levitated":9}"#);
        assert_eq!((tally.of(SettledAs::Completed), tally.of(SettledAs::Retried)), (2, 100));
        assert_eq!((tally.waited.0[3], tally.waited.count(), tally.ran.count()), (4, 4, 0));
        tally.read_figures(b"no JSON");
        tally.read_versions(b"[]");
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn a_version_whose_counts_began_anew_is_counted_whole() {
        let version = |completed, ran_us| {
            let mut tally = VersionTally { ran_us, ..VersionTally::default() };
            tally.ends[AttemptEnd::Completed as usize] = completed;
            Tally { versions: BTreeMap::from([("a@1".to_owned(), tally)]), ..Tally::default() }
        };
        assert_eq!(version(7, 70).since(&version(5, 50)), version(2, 20));
        assert_eq!(version(3, 30).since(&version(5, 50)), version(3, 30));
        assert!(version(5, 50).since(&version(5, 50)).versions.is_empty());
    }

    #[test]
    fn a_minute_that_goes_on_is_shown_only_if_something_was_counted_in_it() {
        let found = |minute| vec![((Part::Figures, minute), text(r#"{"completed":1}"#))];
        let numbers = |history: QueueHistory| {
            let counted = |minute: &Minute| (minute.number, minute.tally.of(SettledAs::Completed));
            history.minutes.iter().map(counted).collect::<Vec<_>>()
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
        let dead: Vec<_> =
            history.minutes.iter().map(|minute| minute.depth.map(|depth| depth.dead)).collect();
        assert_eq!(dead, [Some(5), Some(5), Some(6), Some(7)]);
        assert_eq!(QueueHistory::of(&(10..11), 11, 1, vec![]).minutes[0].depth, None);
    }
}
