//! Judges whether a new version is good by the first tasks that it runs. It is pure: no IO, no clock.
//!
//! In: how each attempt on the version ended. Out: for each spoiled attempt whether it is charged to its
//! task, and, once, the [`ProbationVerdict`].
//!
//! ```text
//! on probation ─▶ SOUND attempts came back from the handler ─▶ good: failures are charged from now on
//!       │ └─────▶ SPOILED tasks were spoiled ─▶ bad: what it spoils is given back
//!       └ a task was spoiled MAX_GIVEN_BACK + 1 times, or LASTS is over ─▶ bad if more tasks were spoiled
//!         than attempts came back, else good
//! ```
//!
//! Invariants: before the verdict, and after a bad one, no spoiled attempt is charged. The verdict comes
//! before any task is given back more than MAX_GIVEN_BACK times. So a bad version costs no task an attempt,
//! and a task that spoils every version comes to its end: a good version, and the first one of a plugin, are
//! charged for it.
//!
//! Not here: what follows from a verdict (`life`), how a task is given back (`worker::settle`).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::guarded::Guarded;
use crate::task::{FailureKind, Outcome};

/// A version is good after this many attempts that came back from the handler, half of the first ten.
const SOUND: u32 = 5;
/// A version is bad after this many spoiled tasks, most of the first ten.
const SPOILED: usize = 6;
/// The longest probation of a version that has run a task, from its start on. A version that rested for
/// longer is judged by its first task. Without a task, a version stays on probation.
const LASTS: Duration = Duration::from_secs(5 * 60);
/// A task is given back this many times at most before the verdict. The next time it is spoiled brings the
/// verdict; if that is bad, the task is given back once more.
const MAX_GIVEN_BACK: u32 = 5;
/// How long a task waits that is given back for the first time. Each further wait is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(250);

/// The consequence of an attempt for its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ruling {
    /// The task is settled by the attempt's outcome.
    AsUsual,
    /// The attempt is not charged, and the task comes back after this time.
    GiveBack(Duration),
}

/// The end of a probation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum ProbationVerdict {
    Good,
    /// With the reason.
    Bad(String),
}

/// The probation of one version. For a version without a good one before it, only a count of its attempts.
#[derive(Debug)]
pub(super) struct Probation(Guarded<Standing>);

#[derive(Debug)]
enum Standing {
    Open(Evidence),
    Good,
    Bad,
    /// There was no good version before it, so nothing is given back. The counts decide whether a successor
    /// may be rolled back to it.
    First {
        sound: u64,
        spoiled: u64,
    },
}

#[derive(Debug)]
struct Evidence {
    since: Instant,
    sound: u32,
    /// Up to [`SPOILED`] tasks that were spoiled, and how often each was.
    spoiled: HashMap<String, u32>,
    /// How the last spoiled attempt ended.
    last_failure: String,
}

impl Probation {
    /// For a version that takes over from a good one.
    pub(super) fn new(now: Instant) -> Probation {
        Probation(Guarded::new(Standing::Open(Evidence {
            since: now,
            sound: 0,
            spoiled: HashMap::new(),
            last_failure: String::new(),
        })))
    }

    /// For a version without a good one before it.
    pub(super) fn first() -> Probation {
        Probation(Guarded::new(Standing::First { sound: 0, spoiled: 0 }))
    }

    /// Judges an attempt that has ended. `task` is unique among the tasks that the version runs, in all
    /// queues.
    pub(super) fn judge(
        &self,
        task: &str,
        outcome: &Outcome,
        now: Instant,
    ) -> (Ruling, Option<ProbationVerdict>) {
        let mut state = self.0.lock();
        match (&mut *state, end(outcome)) {
            (Standing::Good, _) | (_, End::Neither) => (Ruling::AsUsual, None),
            (Standing::Bad, End::Sound) => (Ruling::AsUsual, None),
            (Standing::Bad, End::Spoiled(_)) => (Ruling::GiveBack(FIRST_WAIT), None),
            (Standing::First { sound, spoiled }, end) => {
                *(if matches!(end, End::Sound) { sound } else { spoiled }) += 1;
                (Ruling::AsUsual, None)
            }
            (Standing::Open(evidence), End::Sound) => {
                evidence.sound += 1;
                let verdict = evidence.verdict(evidence.is_over(now));
                (Ruling::AsUsual, state.close(verdict))
            }
            (Standing::Open(evidence), End::Spoiled(why)) => {
                evidence.last_failure = why;
                let times = evidence.spoiled.entry(task.to_owned()).or_default();
                let wait = FIRST_WAIT * 2_u32.pow(*times);
                let is_last = *times == MAX_GIVEN_BACK;
                *times += 1;
                let verdict = evidence.verdict(is_last || evidence.is_over(now));
                let ruling = match verdict {
                    None => Ruling::GiveBack(wait),
                    Some(ProbationVerdict::Good) => Ruling::AsUsual,
                    // Another version will run it.
                    Some(ProbationVerdict::Bad(_)) => Ruling::GiveBack(FIRST_WAIT),
                };
                (ruling, state.close(verdict))
            }
        }
    }

    /// Ends the probation if its time is over. Returns the verdict if that is so.
    pub(super) fn look(&self, now: Instant) -> Option<ProbationVerdict> {
        let mut state = self.0.lock();
        let Standing::Open(evidence) = &*state else { return None };
        let verdict = evidence.verdict(evidence.is_over(now));
        state.close(verdict)
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(*self.0.lock(), Standing::Open(_))
    }

    /// Whether a successor may be rolled back to it.
    pub(super) fn is_good(&self) -> bool {
        match *self.0.lock() {
            Standing::Good => true,
            Standing::Open(_) | Standing::Bad => false,
            // Without attempts it counts as good: a host may be idle before the first swap.
            Standing::First { sound, spoiled } => spoiled < SPOILED as u64 || spoiled <= sound,
        }
    }

    /// Whether attempts have shown that it is good.
    pub(super) fn is_proven(&self) -> bool {
        match *self.0.lock() {
            Standing::Good => true,
            Standing::First { sound, spoiled } => sound >= u64::from(SOUND) && spoiled <= sound,
            Standing::Open(_) | Standing::Bad => false,
        }
    }
}

impl Standing {
    fn close(&mut self, verdict: Option<ProbationVerdict>) -> Option<ProbationVerdict> {
        match &verdict {
            Some(ProbationVerdict::Good) => *self = Standing::Good,
            Some(ProbationVerdict::Bad(_)) => *self = Standing::Bad,
            None => {}
        }
        verdict
    }
}

impl Evidence {
    /// The verdict, if there is enough evidence. If `is_due`, there is one in any case.
    fn verdict(&self, is_due: bool) -> Option<ProbationVerdict> {
        let spoiled = self.spoiled.len();
        if self.sound >= SOUND {
            return Some(ProbationVerdict::Good);
        }
        if spoiled >= SPOILED || (is_due && spoiled > self.sound as usize) {
            let tasks = if spoiled == 1 { "task" } else { "tasks" };
            return Some(ProbationVerdict::Bad(format!(
                "it spoiled {spoiled} {tasks}, and {} ended well; {}",
                self.sound, self.last_failure
            )));
        }
        is_due.then_some(ProbationVerdict::Good)
    }

    fn is_over(&self, now: Instant) -> bool {
        let is_empty = self.sound == 0 && self.spoiled.is_empty();
        !is_empty && now.saturating_duration_since(self.since) >= LASTS
    }
}

/// The evidence of an attempt about its version.
enum End {
    /// The handler came back, whatever it said.
    Sound,
    /// The version could not run the task.
    Spoiled(String),
    /// A slow service or the task may be the cause as well, so this says nothing about the version.
    Neither,
}

fn end(outcome: &Outcome) -> End {
    match outcome {
        Outcome::Completed { .. }
        | Outcome::Retry { .. }
        | Outcome::Reject { .. }
        | Outcome::Defer { .. } => End::Sound,
        // Something outside is down, as the handler says. That says nothing about the version.
        Outcome::Unavailable { .. } => End::Neither,
        // As a rule, making an instance takes as long for each task and waits for no service: a version that
        // is not ready in time never will be. A version that computes until the timeout in most of its tasks
        // has an endless loop, or is too slow for this queue.
        Outcome::Failed {
            kind:
                kind @ (FailureKind::Trap
                | FailureKind::Instantiate
                | FailureKind::StartTimeout
                | FailureKind::BusyTimeout
                | FailureKind::OutOfMemory),
            message,
        } => End::Spoiled(format!("{}: {message}", kind.into_str())),
        Outcome::Failed {
            kind: FailureKind::Timeout | FailureKind::OutputTooLarge | FailureKind::Effects,
            ..
        } => End::Neither,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn failed(kind: FailureKind) -> Outcome {
        Outcome::Failed { kind, message: "boom".into() }
    }

    fn trap() -> Outcome {
        failed(FailureKind::Trap)
    }

    fn ok() -> Outcome {
        Outcome::Completed { result: None, effects: None }
    }

    fn back(ms: u64) -> Ruling {
        Ruling::GiveBack(Duration::from_millis(ms))
    }

    #[test]
    fn most_of_the_first_tasks_decide() {
        let now = Instant::now();
        for kind in [
            FailureKind::Trap,
            FailureKind::Instantiate,
            FailureKind::StartTimeout,
            FailureKind::BusyTimeout,
            FailureKind::OutOfMemory,
        ] {
            let probation = Probation::new(now);
            for n in 0..4 {
                assert_eq!(probation.judge("sound", &ok(), now), (Ruling::AsUsual, None));
                assert_eq!(probation.judge(&format!("{n}"), &failed(kind), now), (back(250), None));
            }
            assert_eq!(probation.judge("5", &failed(kind), now), (back(250), None));
            let why = format!("it spoiled 6 tasks, and 4 ended well; {}: boom", kind.into_str());
            assert_eq!(
                probation.judge("6", &failed(kind), now),
                (back(250), Some(ProbationVerdict::Bad(why)))
            );
            // Attempts that still run on it are given back too, without another verdict.
            assert_eq!(probation.judge("7", &failed(kind), now), (back(250), None));
            assert_eq!(probation.judge("8", &ok(), now), (Ruling::AsUsual, None));
            assert!(!probation.is_good() && !probation.is_open());
        }
        let probation = Probation::new(now);
        for n in 0..5 {
            assert_eq!(probation.judge(&format!("{n}"), &trap(), now), (back(250), None));
        }
        let sound = [
            ok(),
            Outcome::Reject { message: String::new() },
            Outcome::Retry { message: String::new(), after: None },
            ok(),
        ];
        for outcome in sound {
            assert_eq!(probation.judge("s", &outcome, now), (Ruling::AsUsual, None));
        }
        assert_eq!(probation.judge("s", &ok(), now), (Ruling::AsUsual, Some(ProbationVerdict::Good)));
        assert_eq!(probation.judge("0", &trap(), now), (Ruling::AsUsual, None), "charged as always");
        assert!(probation.is_good());
    }

    #[test]
    fn a_task_that_is_spoiled_again_and_again_is_one_and_brings_the_verdict() {
        let now = Instant::now();
        let waits = [250, 500, 1000, 2000, 4000];
        // Nothing else ran: the version is at fault, as far as anyone can see.
        let probation = Probation::new(now);
        for wait in waits {
            assert_eq!(probation.judge("poison", &trap(), now), (back(wait), None));
        }
        let (ruling, verdict) = probation.judge("poison", &trap(), now);
        assert_eq!(
            (ruling, verdict),
            (
                back(250),
                Some(ProbationVerdict::Bad("it spoiled 1 task, and 0 ended well; trap: boom".into()))
            )
        );
        // Another task was done: it is the task.
        let probation = Probation::new(now);
        probation.judge("other", &ok(), now);
        for wait in waits {
            assert_eq!(probation.judge("poison", &trap(), now), (back(wait), None));
        }
        assert_eq!(probation.judge("poison", &trap(), now), (Ruling::AsUsual, Some(ProbationVerdict::Good)));
    }

    #[test]
    fn ends_that_a_service_or_the_task_may_have_caused_say_nothing() {
        let now = Instant::now();
        let probation = Probation::new(now);
        let down = Outcome::Unavailable { message: "it is down".into(), after: None };
        let [late, large, effects] =
            [FailureKind::Timeout, FailureKind::OutputTooLarge, FailureKind::Effects].map(failed);
        for outcome in [down, late, large, effects] {
            for n in 0..100 {
                assert_eq!(probation.judge(&format!("{n}"), &outcome, now), (Ruling::AsUsual, None));
            }
        }
        assert_eq!(probation.look(now + LASTS * 2), None, "nothing is known of it");
        assert!(probation.is_open());
    }

    #[test]
    fn time_ends_a_probation_that_has_seen_anything() {
        let now = Instant::now();
        let idle = Probation::new(now);
        assert_eq!((idle.look(now + LASTS * 100), idle.is_open()), (None, true));
        let sound = Probation::new(now);
        sound.judge("a", &ok(), now);
        assert_eq!(
            (sound.look(now + LASTS / 2), sound.look(now + LASTS)),
            (None, Some(ProbationVerdict::Good))
        );
        assert_eq!(sound.look(now + LASTS), None, "once");
        let spoiled = Probation::new(now);
        spoiled.judge("a", &trap(), now);
        assert!(matches!(spoiled.look(now + LASTS), Some(ProbationVerdict::Bad(_))));
        let late = Probation::new(now);
        assert!(matches!(
            late.judge("a", &trap(), now + LASTS),
            (Ruling::GiveBack(_), Some(ProbationVerdict::Bad(_)))
        ));
    }

    #[test]
    fn a_first_version_is_charged_and_good_until_it_fails_most() {
        let now = Instant::now();
        let first = Probation::first();
        assert!(first.is_good() && !first.is_open());
        for n in 0..5 {
            assert_eq!(first.judge(&format!("{n}"), &trap(), now), (Ruling::AsUsual, None));
            assert!(first.is_good());
        }
        first.judge("6", &trap(), now);
        assert!(!first.is_good());
        (0..6).for_each(|_| drop(first.judge("s", &ok(), now)));
        assert!(first.is_good());
        assert_eq!(first.look(now + LASTS * 2), None);
    }

    proptest! {
        /// Whatever ends in whatever order: nothing is charged before a good verdict, there is one verdict,
        /// no task is given back for ever.
        #[test]
        fn its_rules_hold_after_any_ends(ends in prop::collection::vec((0u8..12, 0u8..4, 0u64..60), 1..200)) {
            let mut now = Instant::now();
            let probation = Probation::new(now);
            let (mut verdicts, mut is_good) = (0, false);
            let mut given_back = HashMap::<u8, u32>::new();
            for (task, how, later) in ends {
                now += Duration::from_secs(later);
                let [memory, late] = [FailureKind::OutOfMemory, FailureKind::Timeout].map(failed);
                let outcome = [ok(), trap(), memory, late][usize::from(how)].clone();
                let (ruling, verdict) = probation.judge(&task.to_string(), &outcome, now);
                verdicts += usize::from(verdict.is_some());
                is_good |= verdict == Some(ProbationVerdict::Good);
                let is_spoiled = matches!(how, 1 | 2);
                prop_assert_eq!(ruling != Ruling::AsUsual, is_spoiled && !is_good);
                if ruling != Ruling::AsUsual && probation.is_open() {
                    let times = given_back.entry(task).or_default();
                    *times += 1;
                    prop_assert!(*times <= MAX_GIVEN_BACK);
                }
            }
            prop_assert!(verdicts <= 1);
            prop_assert_eq!(is_good, probation.is_good());
            prop_assert!(given_back.len() < SPOILED);
        }
    }
}
