//! Finds repeated runs, and the fault that explains each.
//!
//! In: the deliveries of each task, and the faults. Out: what is wrong, and a table by kind of fault. Not
//! here: reading the deliveries (`history`).
//!
//! A run is repeated when a task is delivered again for the same turn. That happens in two ways, with
//! different causes:
//!
//! - **Taken over.** Another consumer claimed the entry after a whole lease. The cause is a fault that struck
//!   the owner's host, or Redis, after the last heartbeat.
//! - **Given back.** The consumer released the task into the stream. Its host was stopped then, its plugin
//!   was removed during the claim, or its lease could not be renewed before it began.
//!
//! A repetition without a cause is wrong. So is a fault that explains more repetitions than its hosts had
//! tasks in hand at any moment of it.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use super::CONCURRENCY;
use super::faults::Done;
use super::history::{Again, Begin, Pause, Track, time_of};
use super::plan::Fault;

/// How much later a host may give tasks back when it was kept from reaching Redis.
const LATE_MS: u64 = 15_000;

/// How much later than the end of a fault a heartbeat may arrive that its host had prepared before.
const PREPARED_MS: u64 = 1000;

pub struct Repeated<'c> {
    faults: &'c [Done],
    /// The host of each process id.
    pids: &'c HashMap<u32, usize>,
    pauses: &'c [Pause],
    /// For each fault, how many runs were repeated because of it.
    by_fault: Vec<u64>,
    /// For each fault, the changes in the number of tasks that the hosts which it struck had in hand: times
    /// and changes.
    in_hand: Vec<Vec<(u64, i64)>>,
    /// For each fault that stops a host in order, and each queue, how many entries it was given after that.
    late: HashMap<(usize, &'static str), usize>,
    total: u64,
    unexplained: u64,
    slowest_ms: u64,
    slowest: String,
}

/// The host of a consumer.
pub fn host(consumer: &str, pids: &HashMap<u32, usize>) -> Option<usize> {
    // The name of a consumer is HOST-PID-RANDOM.
    let pid = consumer.rsplit('-').nth(1).and_then(|pid| pid.parse::<u32>().ok())?;
    pids.get(&pid).copied()
}

impl<'c> Repeated<'c> {
    pub fn new(faults: &'c [Done], pids: &'c HashMap<u32, usize>, pauses: &'c [Pause]) -> Repeated<'c> {
        let (by_fault, in_hand) = (vec![0; faults.len()], vec![Vec::new(); faults.len()]);
        Repeated {
            faults,
            pids,
            pauses,
            by_fault,
            in_hand,
            late: HashMap::new(),
            total: 0,
            unexplained: 0,
            slowest_ms: 0,
            slowest: String::new(),
        }
    }

    /// Checks all deliveries of a task, and gives what is wrong with them.
    pub fn add(&mut self, name: &str, task: &Track) -> Vec<String> {
        let mut wrong = Vec::new();
        for (at, begin) in task.begins.iter().enumerate() {
            self.note(begin, task.queue);
            let Some(before) = task.begins[..at].iter().rev().find(|before| before.turn == begin.turn) else {
                continue;
            };
            self.total += 1;
            let Some(fault) = self.cause(before, begin) else {
                self.unexplained += 1;
                let how = if before.entry == begin.entry { "taken over" } else { "given back" };
                let Begin { at_ms, consumer, entry, kept_ms, turn, .. } = before;
                wrong.push(format!(
                    "run {turn:?} is repeated and no fault explains it: {entry} of {consumer}, \
                     begun at {at_ms}, kept at {kept_ms}, was {how}, \
                     and begun again by {} at {}",
                    begin.consumer, begin.at_ms
                ));
                continue;
            };
            self.by_fault[fault] += 1;
            let struck_ms = before.at_ms.max(self.faults[fault].from_ms);
            let own_pauses = self.pauses.iter().filter(|pause| pause.queue == task.queue);
            let paused_ms: u64 = own_pauses
                .map(|pause| {
                    let end_ms = pause.to_ms.unwrap_or(u64::MAX).min(begin.at_ms);
                    end_ms.saturating_sub(pause.from_ms.max(struck_ms))
                })
                .sum();
            let took_ms = begin.at_ms.saturating_sub(struck_ms).saturating_sub(paused_ms);
            // A task that was given back waits in the queue like any other, and one of a paused queue waits
            // for the operator. Neither is recovery time.
            if took_ms > self.slowest_ms && before.entry == begin.entry {
                (self.slowest_ms, self.slowest) = (took_ms, name.to_owned());
            }
        }
        wrong
    }

    /// Adds a delivery to what was in hand during each fault that strikes it.
    ///
    /// A host that stops in order reads no more, but a read of each queue may be on its way. What these bring
    /// is given back, one queue after the other, so it is counted together: as many for a queue as one read
    /// asks for.
    fn note(&mut self, begin: &Begin, queue: &'static str) {
        let host = host(&begin.consumer, self.pids);
        for (at, (done, in_hand)) in self.faults.iter().zip(&mut self.in_hand).enumerate() {
            let until_ms = done.fault.strikes_until(done.to_ms);
            let is_here = done.host.is_none_or(|struck| Some(struck) == host);
            if is_here
                && begin.at_ms <= until_ms
                && begin.until_ms.is_none_or(|end_ms| end_ms >= done.from_ms)
            {
                in_hand.push((begin.at_ms, 1));
                if done.fault == Fault::HostRestarted && begin.at_ms > done.from_ms {
                    let late = self.late.entry((at, queue)).or_default();
                    *late += 1;
                    if *late <= CONCURRENCY as usize {
                        continue;
                    }
                }
                in_hand.extend(begin.until_ms.map(|end_ms| (end_ms.max(begin.at_ms + 1), -1)));
            }
        }
    }

    /// The first fault that explains why a run was repeated. Ends of processes come first, then losses of
    /// Redis, then other faults.
    fn cause(&self, before: &Begin, begin: &Begin) -> Option<usize> {
        let host = host(&before.consumer, self.pids);
        let is_taken_over = before.entry == begin.entry;
        // A task that was given back has a new entry, whose id has the time of the release.
        let over_ms = if is_taken_over { begin.at_ms } else { time_of(&begin.entry) };
        let explains = |done: &Done, prepared_ms: u64| {
            let can = done.fault.ends_leases() || !is_taken_over && done.fault.gives_back();
            let is_here = done.host.is_none_or(|struck| Some(struck) == host);
            let struck_ms = done.fault.strikes_until(done.to_ms);
            // A claim that was on its way while Redis could not be reached arrives late, and is given back
            // late.
            let is_late = done.fault == Fault::PluginRemoved && self.is_held_up(host, struck_ms, over_ms);
            let since_ms = if is_late { over_ms.saturating_sub(LATE_MS) } else { before.kept_ms };
            let since_ms = since_ms.saturating_sub(prepared_ms);
            can && is_here && done.from_ms <= over_ms && struck_ms >= since_ms
        };
        let rank = |done: &Done| {
            (
                done.fault > Fault::HostRestarted,
                done.loss.is_none(),
                done.fault == Fault::SlowNetwork,
                done.fault > Fault::SlowNetwork,
                done.from_ms,
            )
        };
        let first = |prepared_ms: u64| {
            let all = (0..self.faults.len()).filter(|at| explains(&self.faults[*at], prepared_ms));
            all.min_by_key(|at| rank(&self.faults[*at]))
        };
        // A heartbeat that was prepared before may arrive after its host has given up the lease.
        first(0).or_else(|| first(PREPARED_MS).filter(|_| !is_taken_over))
    }

    /// Whether a fault explains that a host stopped a run and began it again under the same delivery, or
    /// called the gate twice.
    ///
    /// A process that goes on after SIGSTOP may still send a heartbeat that it had prepared before. It renews
    /// the lease in Redis, while the host counts from the time before, and stops the run.
    pub fn explains_again(&self, again: &Again) -> bool {
        let since_ms = again.kept_ms.saturating_sub(PREPARED_MS);
        self.is_held_up(host(&again.consumer, self.pids), since_ms, again.at_ms)
    }

    /// Whether a fault kept a host from writing to Redis for a part of this time.
    fn is_held_up(&self, host: Option<usize>, from_ms: u64, to_ms: u64) -> bool {
        self.faults.iter().any(|done| {
            let is_here = done.host.is_none_or(|struck| Some(struck) == host);
            let strikes = done.from_ms <= to_ms && done.fault.strikes_until(done.to_ms) >= from_ms;
            is_here && strikes && done.fault.ends_leases()
        })
    }

    /// The most tasks that the hosts which a fault struck had in hand at one moment.
    fn most_in_hand(&self, fault: usize) -> u64 {
        let mut changes = self.in_hand[fault].clone();
        changes.sort_unstable();
        let (mut now, mut most) = (0, 0);
        for (_, change) in changes {
            now += change;
            most = most.max(now);
        }
        most.unsigned_abs()
    }

    /// The faults that explain more repeated runs than their hosts had tasks in hand. A Redis that forgot
    /// deliveries may have forgotten a few of those in hand: a tenth.
    pub fn beyond_what_was_in_flight(&self) -> Vec<String> {
        let has_forgotten = self.faults.iter().any(|done| done.loss.is_some());
        let beyond = |(fault, done): (usize, &Done)| {
            let (runs, most) = (self.by_fault[fault], self.most_in_hand(fault));
            let unseen = if has_forgotten { most / 10 } else { 0 };
            (runs > most + unseen).then(|| {
                format!(
                    "{} at {}: {runs} runs were repeated, and {most} were in hand",
                    done.fault, done.from_ms
                )
            })
        };
        self.faults.iter().enumerate().filter_map(beyond).collect()
    }

    pub fn tabulate(&self, out: &mut String) -> std::fmt::Result {
        /// How often the fault came, repeated runs, tasks in hand.
        type Sum = (u64, u64, u64);
        let mut by_kind: BTreeMap<Fault, Sum> = BTreeMap::new();
        for (fault, done) in self.faults.iter().enumerate() {
            let sum = by_kind.entry(done.fault).or_default();
            *sum = (sum.0 + 1, sum.1 + self.by_fault[fault], sum.2 + self.most_in_hand(fault));
        }
        writeln!(
            out,
            "  {:<36} {:>6} {:>14} {:>9} {:>9}",
            "fault", "times", "runs repeated", "per fault", "in hand"
        )?;
        let mut line = |what: &dyn std::fmt::Display, (times, runs, in_hand): Sum| {
            let each = |sum: u64| sum as f64 / times.max(1) as f64;
            writeln!(out, "  {what:<36} {times:>6} {runs:>14} {:>9.1} {:>9.1}", each(runs), each(in_hand))
        };
        for (fault, sum) in &by_kind {
            line(fault, *sum)?;
        }
        let all =
            by_kind.values().fold(Sum::default(), |all, sum| (all.0 + sum.0, all.1 + sum.1, all.2 + sum.2));
        line(&"all", all)?;
        writeln!(
            out,
            "  repeated: {}, {} of them without a fault that explains it; \
             slowest recovery: {:.1} s from a fault until a task that it struck was taken over ({})",
            self.total,
            self.unexplained,
            self.slowest_ms as f64 / 1000.0,
            self.slowest
        )
    }
}
