//! The rate limit of a queue, which all hosts share. A place is the right to start one task. A host takes
//! places before a read, and gives back the places that it did not use.
//!
//! In: the rate that holds now, and how many places are wanted. Out: how many were taken, or how long to
//! wait. Redis keeps only the time up to which places are taken, so hosts may learn of a new rate one after
//! the other. If that time is farther ahead than the rate of a call allows, the script begins anew. So a
//! faster rate does not wait for places that were taken at a slower rate.
//!
//! Not here: when to take places (`worker::fetcher`), which rate holds (`worker::limits`).

use std::time::Duration;

use super::error::QueueResult;
use super::handle::Queue;
use super::reply;
use super::script;
use crate::config::rules::Rate;

/// The places of this time may be taken early, so that a fast queue is read in batches. At least one place.
const AHEAD: Duration = Duration::from_millis(100);

/// The answer to a request for places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Places {
    /// This many tasks may start, at least one.
    Taken(usize),
    /// The next place is free after this time.
    Wait(Duration),
}

/// The seconds from one place to the next.
pub(super) fn step(rate: &Rate) -> f64 {
    rate.per.as_secs_f64() / f64::from(rate.count)
}

impl Queue {
    /// Takes up to `want` places for new tasks. Without a rate, returns all of them without a call to Redis.
    pub async fn take_places(&self, rate: Option<Rate>, want: usize) -> QueueResult<Places> {
        self.take(rate, want, 0).await
    }

    /// Takes up to `want` places for tasks that are taken over. These tasks may take one more place early
    /// than new tasks, so they can take each place before a new task can.
    pub async fn take_places_again(&self, rate: Option<Rate>, want: usize) -> QueueResult<Places> {
        self.take(rate, want, 1).await
    }

    async fn take(&self, rate: Option<Rate>, want: usize, early: u32) -> QueueResult<Places> {
        let Some(rate) = rate else { return Ok(Places::Taken(want)) };
        let want = i64::try_from(want).unwrap_or(i64::MAX);
        let [taken, wait_ms] = self.places(rate, want, early).await?;
        if taken > 0 {
            return Ok(Places::Taken(taken as usize));
        }
        Ok(Places::Wait(Duration::from_millis(wait_ms.max(1))))
    }

    /// Gives back places that were not used. `rate` is the one at which they were taken.
    pub async fn give_places_back(&self, rate: Option<Rate>, unused: usize) -> QueueResult {
        let unused = i64::try_from(unused).unwrap_or(i64::MAX);
        match rate {
            Some(rate) if unused > 0 => self.places(rate, -unused, 0).await.map(drop),
            _ => Ok(()),
        }
    }

    /// Takes places, or gives places back if `want` is negative. Returns how many places were taken, and the
    /// milliseconds until the next one is free. `early`: how many more places than usual may be taken early.
    /// One more is not enough to make the script begin anew in the next call.
    async fn places(&self, rate: Rate, want: i64, early: u32) -> QueueResult<[u64; 2]> {
        let step = step(&rate);
        let ahead = (AHEAD.as_secs_f64() / step).floor().max(1.0) + f64::from(early);
        let call = self.call(&script::RATE).arg("step", step * 1e6);
        let call = call.arg("ahead", ahead).arg("want", want);
        let reply = self.link.script(&call).await?;
        let read = |reply| {
            let [taken, wait_ms] = reply::tuple(reply)?;
            Ok([reply::count(&taken)?, reply::count(&wait_ms)?])
        };
        self.shaped("rate", read(reply))
    }
}
