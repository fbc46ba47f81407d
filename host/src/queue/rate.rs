//! A queue's rate limit, which all hosts share: places are taken before a read, and those that were not used are given back.
//!
//! Not here: when to do it (`worker::fetcher`).

use std::time::Duration;

use super::error::QueueError;
use super::script::{self, Call};
use super::{Queue, reply};
use crate::config::model::Rate;

/// This much of a second may be taken ahead of time, so that a fast queue is read in batches. At least one place.
const AHEAD: Duration = Duration::from_millis(100);

/// What became of the places that were wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Places {
    /// So many may start, at least one.
    Taken(usize),
    /// There will be one after this time.
    Wait(Duration),
}

impl Queue {
    /// Takes up to `want` places. Without a limit, it gives all of them and asks nobody.
    pub async fn take_places(&self, want: usize) -> Result<Places, QueueError> {
        let Some(rate) = self.rules.rate_limit else { return Ok(Places::Taken(want)) };
        let [taken, wait_ms] = self.places(rate, i64::try_from(want).unwrap_or(i64::MAX)).await?;
        Ok(if taken > 0 {
            Places::Taken(taken as usize)
        } else {
            Places::Wait(Duration::from_millis(wait_ms.max(1)))
        })
    }

    /// Gives back places that were not used.
    pub async fn give_places_back(&self, unused: usize) -> Result<(), QueueError> {
        match self.rules.rate_limit {
            Some(rate) if unused > 0 => {
                self.places(rate, -i64::try_from(unused).unwrap_or(i64::MAX)).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    async fn places(&self, rate: Rate, want: i64) -> Result<[u64; 2], QueueError> {
        let step = rate.per.as_secs_f64() / f64::from(rate.count);
        let ahead = (AHEAD.as_secs_f64() / step).floor().max(1.0);
        let call = Call::new(&script::RATE).key(&self.keys.rate).arg(step * 1e6).arg(ahead).arg(want);
        let reply = self.link.script(&call).await?;
        let read = |reply| {
            let [taken, wait_ms] = reply::tuple(reply)?;
            Ok([reply::count(&taken)?, reply::count(&wait_ms)?])
        };
        self.shaped("rate", read(reply))
    }
}
