//! Writes the history of all queues of this host, minute by minute.
//!
//! In: the counts of the queues, which are those of the metrics. Out: at the end of each minute, the counts
//! of this host in this minute, added to those of other hosts. For the queues whose duties this host has,
//! also how full they are. A host that stops writes its counts of the unfinished minute.
//!
//!     counts ─▶ difference to the minute before ─▶ a call of tally.lua ─▶ sent until it is answered
//!
//! Every ten minutes, and when it stops, a host folds the minutes of the queues whose duties it has into the
//! longer steps of a day and a week. This includes the counts of hosts of other versions.
//!
//! A minute ends by Redis's clock, for which the host asks once a minute. A queue in which nothing was
//! counted costs one command when this host takes up its duties, and one every ten minutes. Not here: the
//! form of the history, reading it, and how minutes are folded (`queue::minutes`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::metrics::QueueMetrics;
use super::workers::QueueBoard;
use crate::chain::chain;
use crate::clock::now_ms;
use crate::queue::minutes::{MINUTE_MS, hours_to_fold, share_hour};
use crate::queue::script::ScriptCall;
use crate::queue::tally::{Depth, Tally};
use crate::queue::{Link, Queue, QueueError, QueueResult, reply};

/// The time between two looks at the clock.
const TICK: Duration = Duration::from_secs(1);
/// The time before the next try after an error.
const AGAIN: Duration = Duration::from_secs(5);
/// The most calls that are sent together, so that Redis is not busy for long.
const MAX_CALLS: usize = 50;

pub(crate) struct Recorder {
    host: Arc<str>,
    link: Link,
    board: QueueBoard,
    queues: Vec<RecordedQueue>,
    /// The number of the last call.
    number: u64,
    /// How far Redis's clock is ahead of this host's, in milliseconds.
    ahead_ms: i64,
    /// When the counting of the present minute began, by Redis's clock.
    began_ms: Option<u64>,
}

/// A queue, until its last attempt is settled and written.
struct RecordedQueue {
    queue: Queue,
    metrics: Arc<QueueMetrics>,
    /// This host's name as a writer of this queue's history.
    writer: String,
    /// The counts that are in the history, or in `pending`.
    written: Tally,
    /// A call that has no answer yet.
    pending: Option<ScriptCall>,
    /// The depth that this host wrote last, and its minute.
    noted_depth: Option<(u64, Depth)>,
    /// Whether the queue has a history in Redis. `None`: this host has not looked.
    has_history: Option<bool>,
    /// The last minute that this host folded.
    folded: Option<u64>,
    /// Nothing more can be counted.
    is_gone: bool,
}

impl Recorder {
    pub(crate) fn new(host: Arc<str>, link: Link, board: QueueBoard) -> Recorder {
        Recorder { host, link, board, queues: Vec::new(), number: 0, ahead_ms: 0, began_ms: None }
    }

    /// Runs until `stop` is cancelled, when all tasks are settled.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            let wait = if is_done(self.tick().await) { TICK } else { AGAIN };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => break,
            }
        }
        if is_done(self.send().await) || self.link.is_cluster() {
            is_done(self.end_span(true).await);
        }
    }

    async fn tick(&mut self) -> QueueResult {
        let sent = self.send().await;
        if self.is_redis_away(&sent) {
            return sent;
        }
        let now_ms = now_ms().saturating_add_signed(self.ahead_ms);
        if self.began_ms.is_none_or(|began| began / MINUTE_MS != now_ms / MINUTE_MS) {
            self.end_span(false).await?;
        }
        sent
    }

    /// Whether further calls would fail, too. In a cluster the nodes of other queues may answer.
    fn is_redis_away(&self, result: &QueueResult) -> bool {
        result.is_err() && !self.link.is_cluster()
    }

    /// Writes the counts since the last span, if the minute is over, or if the host stops.
    async fn end_span(&mut self, stops: bool) -> QueueResult {
        let ended_ms = self.link.now_ms().await?;
        self.ahead_ms = ended_ms as i64 - now_ms() as i64;
        let began_ms = *self.began_ms.get_or_insert(ended_ms);
        if began_ms / MINUTE_MS == ended_ms / MINUTE_MS && !stops {
            // This is the first span, or the two clocks have drifted apart.
            return Ok(());
        }
        self.began_ms = Some(ended_ms);
        self.follow_board();
        let minute = minute_of(began_ms, ended_ms);
        for queue in self.queues.iter_mut().filter(|queue| queue.pending.is_none()) {
            // Only this loop holds the counts of a queue that is gone.
            queue.is_gone = Arc::strong_count(&queue.metrics) == 1;
            let counts = queue.metrics.tally();
            let tally = counts.since(&queue.written);
            queue.written = counts;
            if !tally.is_empty() {
                queue.has_history = Some(true);
                self.number += 1;
                queue.pending = Some(queue.queue.tally_call(minute, &tally, &queue.writer, self.number));
            }
        }
        let mut written = self.send().await;
        if !stops && !self.is_redis_away(&written) {
            self.queues.retain(|queue| queue.pending.is_some() || !queue.is_gone);
            written = written.and(self.note_depths(minute).await);
        }
        if self.is_redis_away(&written) {
            return written;
        }
        self.fold(minute, stops).await.and(written)
    }

    /// Folds the hours of queues that may have changed since the last time. A host that stops does so for all
    /// queues with a history that it knows of, as no other host may be there.
    async fn fold(&mut self, minute: u64, stops: bool) -> QueueResult {
        let with_duty = self.with_duty();
        let mut hours = Vec::new();
        for queue in &mut self.queues {
            let is_due = if stops {
                queue.has_history == Some(true)
            } else {
                with_duty.contains(queue.queue.rules.name.as_str())
            };
            if let Some(due) = is_due.then(|| hours_to_fold(queue.folded, minute, stops)).flatten() {
                hours.extend(due.map(|hour| (queue.queue.clone(), hour)));
                queue.folded = Some(minute);
            }
        }
        let mut failed = Vec::new();
        for part in hours.chunks(MAX_CALLS) {
            match self.fold_hours(part, minute).await {
                Ok(unfolded) => failed.extend(unfolded),
                Err(error) if self.link.is_cluster() => {
                    failed.extend(part.iter().map(|(queue, _)| (queue.rules.name.as_str(), error.clone())));
                }
                Err(error) => {
                    self.queues.iter_mut().for_each(|queue| queue.folded = None);
                    return Err(error);
                }
            }
        }
        for (name, _) in &failed {
            let unfolded = self.queues.iter_mut().filter(|queue| queue.queue.rules.name == *name);
            unfolded.for_each(|queue| queue.folded = None);
        }
        failed.pop().map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Folds these hours. Returns the errors of the hours that were not folded, each with the queue's name.
    async fn fold_hours<'h>(
        &self,
        hours: &'h [(Queue, u64)],
        minute: u64,
    ) -> QueueResult<Vec<(&'h str, QueueError)>> {
        let commands: Vec<_> = hours.iter().map(|(queue, hour)| queue.ask_hour(*hour)).collect();
        let replies = self.link.pipeline("read the history", &commands).await?;
        let (mut names, mut calls, mut unfolded) = (Vec::new(), Vec::new(), Vec::new());
        for ((queue, hour), reply) in hours.iter().zip(replies) {
            let name = queue.rules.name.as_str();
            match reply.and_then(|reply| queue.folded(*hour, minute, reply)) {
                Ok(folded) => {
                    names.extend(folded.iter().map(|_| name));
                    calls.extend(folded);
                }
                Err(error) if error.may_pass() => unfolded.push((name, error)),
                // A key of another type is in the way.
                Err(error) => log(&error),
            }
        }
        for (names, calls) in names.chunks(2 * MAX_CALLS).zip(calls.chunks(2 * MAX_CALLS)) {
            let replies = self.link.scripts("write the history", calls).await?;
            for (name, reply) in names.iter().zip(replies) {
                match reply {
                    Err(error) if error.may_pass() => unfolded.push((*name, error)),
                    Err(error) => log(&error),
                    Ok(_) => {}
                }
            }
        }
        Ok(unfolded)
    }

    /// The queues whose duties this host has.
    fn with_duty(&self) -> HashSet<Arc<str>> {
        self.board.queues().into_iter().filter(|entry| entry.has_duty()).map(|entry| entry.name).collect()
    }

    /// Takes up the queues that are new, and those whose rules have changed.
    fn follow_board(&mut self) {
        for entry in self.board.queues() {
            let known = self.queues.iter_mut().find(|known| Arc::ptr_eq(&known.metrics, &entry.metrics));
            if let Some(known) = known {
                known.queue = entry.queue;
                continue;
            }
            // If the queue was removed and added again, a call of its old counts may have no answer yet.
            let namesakes = self.queues.iter().filter(|known| *known.queue.rules.name == *entry.name).count();
            let writer =
                if namesakes == 0 { self.host.to_string() } else { format!("{}.{namesakes}", self.host) };
            self.queues.push(RecordedQueue {
                queue: entry.queue,
                metrics: entry.metrics,
                writer,
                written: Tally::default(),
                pending: None,
                noted_depth: None,
                has_history: None,
                folded: None,
                is_gone: false,
            });
        }
    }

    /// Sends the calls that have no answer yet. A call that Redis refuses for good is given up.
    async fn send(&mut self) -> QueueResult {
        let mut waiting: Vec<&mut RecordedQueue> =
            self.queues.iter_mut().filter(|queue| queue.pending.is_some()).collect();
        let mut failed = None;
        for part in waiting.chunks_mut(MAX_CALLS) {
            let calls: Vec<ScriptCall> = part.iter().filter_map(|queue| queue.pending.clone()).collect();
            let replies = match self.link.scripts("write the history", &calls).await {
                Err(error) if self.link.is_cluster() => {
                    failed = Some(error);
                    continue;
                }
                replies => replies?,
            };
            for (queue, reply) in part.iter_mut().zip(replies) {
                match reply {
                    Err(error) if error.may_pass() => failed = Some(error),
                    reply => {
                        is_done(reply.map(drop));
                        queue.pending = None;
                    }
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Notes how full the queues are whose duties this host has, where that has changed. The depth of a queue
    /// that is not empty is also noted once an hour, for readers of the last hour.
    async fn note_depths(&mut self, minute: u64) -> QueueResult {
        let with_duty = self.with_duty();
        let (mut counted, mut empty) = (Vec::new(), Vec::new());
        for queue in &mut self.queues {
            if !with_duty.contains(queue.queue.rules.name.as_str()) {
                (queue.noted_depth, queue.has_history) = (None, None);
            } else if queue.metrics.has_census() {
                let depth = Depth::from(&*queue.metrics.census());
                let is_new = queue.noted_depth.is_none() && queue.has_history.is_none();
                let list = if is_new && depth.is_zero() { &mut empty } else { &mut counted };
                list.push((queue, depth));
            }
        }
        for part in empty.chunks_mut(2 * MAX_CALLS) {
            let commands: Vec<_> = part.iter().map(|(queue, _)| queue.queue.count_hours(minute)).collect();
            let replies = self.link.pipeline("read the history", &commands).await?;
            for ((queue, _), reply) in part.iter_mut().zip(replies) {
                let has_none = reply.is_ok_and(|hours| matches!(reply::count(&hours), Ok(0)));
                queue.has_history = Some(!has_none);
            }
        }
        let mut calls = Vec::new();
        for (queue, depth) in counted.into_iter().chain(empty) {
            let is_known = match queue.noted_depth {
                Some((before, noted)) => noted == depth && (share_hour(before, minute) || depth.is_zero()),
                // An empty queue with a history may have another depth there, written by another host.
                None => depth.is_zero() && queue.has_history == Some(false),
            };
            if !is_known {
                calls.extend(queue.queue.note_depth(minute, &depth));
                queue.noted_depth = Some((minute, depth));
            }
        }
        for part in calls.chunks(2 * MAX_CALLS) {
            match self.link.scripts("write the history", part).await {
                Ok(replies) => replies.into_iter().filter_map(Result::err).for_each(|error| log(&error)),
                Err(error) => {
                    self.queues.iter_mut().for_each(|queue| queue.noted_depth = None);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// Logs the error, if there is one. Returns whether there was none.
fn is_done(result: QueueResult) -> bool {
    result.inspect_err(log).is_ok()
}

/// For debugging only: the other loops say what is wrong with Redis.
fn log(error: &QueueError) {
    tracing::debug!(error = chain(error), "could not write the history");
}

/// The minute to which a span counts: the minute of its middle, but no earlier than half a minute before its
/// end. So a span that ends a moment after a minute counts to this minute. A span that was long because of an
/// outage counts to its end, not to the middle of the outage.
fn minute_of(began_ms: u64, ended_ms: u64) -> u64 {
    let back = (ended_ms.saturating_sub(began_ms) / 2).min(MINUTE_MS / 2);
    (ended_ms - back) / MINUTE_MS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_span_counts_to_the_minute_that_it_covers() {
        let at = |minute: u64, seconds: f64| minute * MINUTE_MS + (seconds * 1000.0) as u64;
        let table = [
            // A minute, written a moment after its end.
            (at(7, 0.4), at(8, 0.7), 7),
            (at(7, 0.9), at(8, 0.0), 7),
            // A host that stops in the middle of a minute, and just after one.
            (at(7, 0.5), at(7, 20.0), 7),
            (at(7, 0.5), at(7, 0.6), 7),
            // A host that started just before the minute's end.
            (at(7, 59.0), at(8, 0.5), 7),
            // Redis was away for ten minutes.
            (at(7, 0.5), at(17, 31.0), 17),
            // The clock was put back.
            (at(7, 0.5), at(6, 10.0), 6),
        ];
        for (began, ended, minute) in table {
            assert_eq!(minute_of(began, ended), minute, "{began} to {ended}");
        }
    }

    proptest! {
        #[test]
        fn spans_that_follow_each_other_count_to_minutes_in_order(
            start in 0..MINUTE_MS, late in prop::collection::vec(0..1500_u64, 2..50),
        ) {
            // A host that starts within a minute, and ends each one up to 1.5 seconds late.
            let mut began = MINUTE_MS + start;
            for (minute, late) in (1..).zip(late) {
                let ended = (minute + 1) * MINUTE_MS + late;
                let counted = minute_of(began, ended);
                let is_right = counted == minute || minute == 1 && counted == 2;
                prop_assert!(is_right, "{began} to {ended}: {counted}");
                began = ended;
            }
        }
    }
}
