//! The rate limit of a queue, which all hosts share. A host takes places before a read, and gives back those
//! that it did not use.
//!
//! In: the rate that holds now, and how many places are wanted. Out: how many were taken, or how long to
//! wait. Redis keeps one time, so hosts may learn of another rate one after the other. A faster rate does not
//! wait for places that were taken at a slower one, which look as if the clock had been put back.
//!
//! Not here: when to take places (`worker::fetcher`), which rate holds (`worker::limits`).

use std::time::Duration;

use super::error::QueueResult;
use super::handle::Queue;
use super::reply;
use super::script;
use crate::config::rules::Rate;

/// Places of this part of a second may be taken early, so that a fast queue is read in batches. At least one.
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
    /// Takes up to `want` places for new tasks. Without a rate, gives all of them without a call to Redis.
    pub async fn take_places(&self, rate: Option<Rate>, want: usize) -> QueueResult<Places> {
        self.take(rate, want, 0).await
    }

    /// Takes up to `want` places for tasks that are taken over. They may take one place more early than new
    /// tasks, so each place is offered to them before a new task can have it.
    pub async fn take_places_again(&self, rate: Option<Rate>, want: usize) -> QueueResult<Places> {
        self.take(rate, want, 1).await
    }

    async fn take(&self, rate: Option<Rate>, want: usize, early: u32) -> QueueResult<Places> {
        let Some(rate) = rate else { return Ok(Places::Taken(want)) };
        let want = i64::try_from(want).unwrap_or(i64::MAX);
        let [taken, wait_ms] = self.places(rate, want, early).await?;
        Ok(if taken > 0 {
            Places::Taken(taken as usize)
        } else {
            Places::Wait(Duration::from_millis(wait_ms.max(1)))
        })
    }

    /// Gives back places that were not used. `rate` is the one at which they were taken.
    pub async fn give_places_back(&self, rate: Option<Rate>, unused: usize) -> QueueResult {
        match rate {
            Some(rate) if unused > 0 => {
                self.places(rate, -i64::try_from(unused).unwrap_or(i64::MAX), 0).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    /// `early` places more than usual may be taken early. One is too few for the script to believe that the
    /// clock was put back.
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
