//! The counts of tasks in a span of time: how they were settled, how long they waited and ran, and how the
//! attempts on each version ended. Also how full their queue was.
//!
//! In: counts of one host, or JSON that a host of another version may have written. Out: sums, differences,
//! quantiles, and the same JSON. Not here: keeping them (`minutes`), counting (`worker::metrics`).

use std::array;
use std::collections::BTreeMap;
use std::iter;

use serde::{Deserialize, Serialize};
use strum::{EnumCount as _, VariantArray as _};

use super::census::Census;
use super::handle::millis;
use crate::task::{AttemptEnd, SettledAs};

/// The most versions that are counted in one step of a history.
pub(crate) const MAX_VERSIONS: usize = 8;

/// Upper bounds, in seconds, of the buckets for running and for waiting times. A bucket includes its bound.
/// One more bucket has all longer times.
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
    /// By `name@digest`, with the first digits of the digest.
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

    /// The counts since `before`. If a count is smaller now, counting has begun anew, and all counts are new.
    fn since(&self, before: &VersionTally) -> VersionTally {
        let began_anew = self.ends.iter().zip(before.ends).any(|(now, before)| *now < before);
        if began_anew {
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
    /// How long the first queued task had been in the stream. None: no task was queued.
    pub oldest_ms: Option<u64>,
}

impl TimeBuckets {
    /// The place of the bucket for this time.
    pub(crate) fn bucket(seconds: f64) -> usize {
        BOUNDS.partition_point(|bound| *bound < seconds)
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The time, in seconds, that this part of the times does not exceed. The times within a bucket count as
    /// spread evenly, and times longer than all bounds count as the last bound. None: no time was counted.
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

    /// The counts as a JSON object without zeros: outcomes by name, waiting times as `w` and the number of
    /// the bucket, running times as `r` and the number.
    pub(super) fn figures(&self) -> String {
        let outcomes = SettledAs::VARIANTS.iter().map(|outcome| outcome.into_str().to_owned());
        let waited = self.waited.0.into_iter().enumerate().map(|(at, count)| (format!("w{at}"), count));
        let ran = self.ran.0.into_iter().enumerate().map(|(at, count)| (format!("r{at}"), count));
        json_of(outcomes.zip(self.settled).chain(waited).chain(ran))
    }

    /// The versions as a JSON object: the counts of each one by name, and `us` for the running time.
    pub(super) fn versions_json(&self) -> String {
        let version = |(name, tally): (&String, &VersionTally)| {
            let ends = AttemptEnd::VARIANTS.iter().map(|end| end.into_str().to_owned()).zip(tally.ends);
            let figures = json_of(ends.chain(iter::once(("us".to_owned(), tally.ran_us))));
            format!("{}:{figures}", serde_json::Value::from(name.as_str()))
        };
        format!("{{{}}}", self.versions.iter().map(version).collect::<Vec<_>>().join(","))
    }

    /// Leaves out all but the [`MAX_VERSIONS`] versions with the most attempts.
    pub(super) fn bound_versions(&mut self) {
        let attempts = |tally: &VersionTally| tally.ends.iter().sum::<u64>();
        let mut all: Vec<u64> = self.versions.values().map(attempts).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        let Some(most) = all.get(MAX_VERSIONS) else { return };
        self.versions.retain(|_, tally| attempts(tally) > *most);
    }

    /// Reads what [`Tally::figures`] wrote. Names that this version of tqhost does not know are left out.
    pub(super) fn read_figures(&mut self, json: &[u8]) {
        // A page reads many of these objects, so their names are not copied.
        let figures: BTreeMap<&str, f64> = serde_json::from_slice(json).unwrap_or_default();
        for (name, count) in figures {
            let bucket: Option<(&str, usize)> =
                name.split_at_checked(1).and_then(|(kind, at)| Some((kind, at.parse().ok()?)));
            let place = match bucket {
                Some(("w", at)) => self.waited.0.get_mut(at),
                Some(("r", at)) => self.ran.0.get_mut(at),
                _ => {
                    let outcome = SettledAs::VARIANTS.iter().find(|outcome| outcome.into_str() == name);
                    outcome.map(|outcome| &mut self.settled[*outcome as usize])
                }
            };
            if let Some(place) = place {
                *place = count as u64;
            }
        }
    }

    /// Reads what [`Tally::versions_json`] wrote.
    pub(super) fn read_versions(&mut self, json: &[u8]) {
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

/// A JSON object of the counts that are not 0.
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
            queued: census.waiting(),
            running: census.running,
            delayed: census.delayed,
            held: census.held_tasks,
            dead: census.dead,
            oldest_ms: census.oldest.map(millis),
        }
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
        fn a_tally_is_read_as_it_was_written(
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
}
