//! Decides the settlement of a task after an attempt. It is pure: no IO, no clock, no log.
//!
//!     (Outcome, Task, rules, jitter) ─▶ Decision { Settlement, label }
//!
//! Not here: carrying it out (`queue::settle`).

use std::time::Duration;

use super::backoff;
use super::holding::Charge;
use crate::config;
use crate::config::units::show_duration;
use crate::queue::codec::Outages;
use crate::queue::settle::DelayStart;
use crate::queue::{Reason, Settlement, codec};
use crate::task::{FailureKind, Outcome, SettledAs, Task};

/// Errors of tasks (`tq-error`) are cut at this many characters, so that they cannot fill the dead letters.
const MAX_ERROR_CHARS: usize = 500;
/// The longest wait for the next attempt that a handler may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(24 * 3600);
/// The longest deferral that a handler may ask for.
const LONGEST_DEFERRAL: Duration = Duration::from_secs(7 * 24 * 3600);

/// The wait of a task that Redis does not let begin.
const PUT_OFF: Duration = Duration::from_secs(10);
/// A task with this many crashes runs alone, even if `max_crashes` is higher.
const SUSPECT_CRASHES: u32 = 2;

/// A settlement and the name under which it is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub settlement: Settlement,
    pub label: SettledAs,
}

/// Decides after an attempt that the handler or the sandbox ended. `jitter` is a random number from -1 to 1.
pub fn decide(outcome: Outcome, task: &Task, rules: &config::QueueRules, jitter: f64) -> Decision {
    match outcome {
        Outcome::Completed { result, effects } => {
            Decision { settlement: Settlement::Complete { result, effects }, label: SettledAs::Completed }
        }
        Outcome::Retry { message, after } | Outcome::Unavailable { message, after } => {
            retry(&format!("retry: {message}"), after, task, rules, jitter)
        }
        Outcome::Failed { kind, message } => {
            retry(&format!("{}: {message}", kind.into_str()), None, task, rules, jitter)
        }
        Outcome::Reject { message } => bury(Reason::Rejected, &message),
        Outcome::Defer { message, .. } if task.deferrals >= rules.max_deferrals => {
            bury(Reason::DeferralsExhausted, &message)
        }
        Outcome::Defer { message, after } => {
            let (delay, deferrals) = (after.min(LONGEST_DEFERRAL), task.deferrals + 1);
            park(delay, task.attempt, deferrals, &message, SettledAs::Deferred)
        }
    }
}

/// Decides after an attempt that failed for a cause outside and is not charged, and notes the failure in the
/// task. `None`: the attempt is charged, or ended otherwise.
pub(crate) fn after_outage(
    outcome: &Outcome,
    task: &mut Task,
    rules: &config::QueueRules,
    charge: Charge,
    jitter: f64,
) -> Option<Decision> {
    let Outcome::Unavailable { message, after } = outcome else { return None };
    let before = codec::outages(task);
    let (free, at_ms, least) = match charge {
        Charge::AsUsual => return None,
        Charge::Held { at_ms, least, keeps_count } => {
            (if keeps_count { before.free } else { 0 }, at_ms, least)
        }
        Charge::AfterSome { most, .. } if before.free >= most => return None,
        Charge::AfterSome { at_ms, .. } => (before.free + 1, at_ms, Duration::ZERO),
    };
    let since_ms = if before.since_ms > 0 { before.since_ms } else { at_ms };
    codec::set_outages(task, Outages { free, since_ms });
    let delay = delay_of_retry(*after, task.attempt.saturating_add(before.free), rules, jitter).max(least);
    let error = format!("not charged: retry: {message}");
    Some(park(delay, task.attempt, task.deferrals, &error, SettledAs::Unavailable))
}

/// Decides after an attempt that completed, but whose effects or result Redis refuses for good.
pub(crate) fn refused(
    kind: FailureKind,
    why: &str,
    task: &Task,
    rules: &config::QueueRules,
    jitter: f64,
) -> Decision {
    decide(Outcome::Failed { kind, message: why.to_owned() }, task, rules, jitter)
}

/// The decision on a task that must not run now, because it is malformed or delayed, or because its flow
/// failed. `None`: it may run.
pub fn unrun(task: &Task, rules: &config::QueueRules) -> Option<Decision> {
    let delay = match codec::check(task, rules) {
        Ok(delay) => delay,
        Err(why) => return Some(malformed(&why.to_string())),
    };
    let failed = codec::failure_of_flow(task).map(|why| bury(Reason::FlowFailed, &why));
    failed.or_else(|| delay.map(|delay| delayed(task, delay)))
}

/// The decision on a task that has expired: it waited for its first attempt for longer than the queue allows,
/// or for any attempt for longer than its producer allows. `now_ms` is Redis's clock. `None`: it has not
/// expired.
pub fn expired(task: &Task, rules: &config::QueueRules, now_ms: u64) -> Option<Decision> {
    let times = rules.is_of_celery().then(|| codec::item_times(task, rules).ok()).flatten();
    let expires_ms = times.and_then(|times| times.expires_ms);
    // A dead letter that was brought back is to run.
    if expires_ms.is_some_and(|expires| now_ms > expires) && !codec::was_requeued(task) {
        return Some(bury(
            Reason::Expired,
            "it waited for longer than its producer allows (headers.expires)",
        ));
    }
    let most = rules.expire_after?;
    let waited = Duration::from_millis(now_ms.saturating_sub(task.waits_since_ms?));
    let is_first = task.attempt == 1 && task.deferrals == 0 && task.crashes == 0;
    let why = || {
        let waited = Duration::from_secs(waited.as_secs());
        let (waited, most) = (show_duration(waited), show_duration(most));
        format!("it waited {waited} for its first attempt, and may wait {most} (expire_after)")
    };
    (is_first && waited > most).then(|| bury(Reason::Expired, &why()))
}

/// Whether a task has to run alone, because hosts died while they ran it.
pub fn is_suspect(task: &Task, rules: &config::QueueRules) -> bool {
    task.crashes >= rules.max_crashes.min(SUSPECT_CRASHES)
}

/// The decision on a task with `max_crashes` crashes, the last one while it ran alone.
pub fn crashed(task: &Task) -> Decision {
    let error = format!(
        "{} hosts died or fell silent while they ran it, the last one while it ran nothing else",
        task.crashes
    );
    bury(Reason::Crashed, &error)
}

/// Gives a task back unchanged, because this host stops: no attempt is used.
pub fn release(task: &Task) -> Decision {
    park(Duration::ZERO, task.attempt, task.deferrals, "", SettledAs::Released)
}

/// Puts a task off that Redis does not let begin. No attempt is used, and others go on meanwhile.
pub(crate) fn cannot_begin(why: &str, task: &Task) -> Decision {
    let error = format!("it cannot begin: {why}");
    park(PUT_OFF, task.attempt, task.deferrals, &error, SettledAs::Released)
}

/// Settles a task that was cancelled, after its handler was stopped. The script ends the task because of the
/// mark in its status.
pub fn cancelled(task: &Task) -> Decision {
    Decision { label: SettledAs::Cancelled, ..release(task) }
}

/// Gives a task back after a failure that the version may have caused: no attempt is used.
pub fn give_back(outcome: &Outcome, task: &Task, delay: Duration) -> Decision {
    let error = match outcome {
        Outcome::Failed { kind, message } => format!("not charged: {}: {message}", kind.into_str()),
        _ => String::new(),
    };
    park(delay, task.attempt, task.deferrals, &error, SettledAs::GivenBack)
}

/// Parks a task whose producer asked for a delay.
fn delayed(task: &Task, delay: Duration) -> Decision {
    Decision {
        settlement: Settlement::Park {
            delay,
            from: DelayStart::Enqueueing,
            next_attempt: task.attempt,
            deferrals: task.deferrals,
            error: String::new(),
        },
        label: SettledAs::Delayed,
    }
}

/// The decision on an entry that cannot be decoded into a task.
pub fn malformed(why: &str) -> Decision {
    bury(Reason::Malformed, why)
}

fn retry(
    error: &str,
    after: Option<Duration>,
    task: &Task,
    rules: &config::QueueRules,
    jitter: f64,
) -> Decision {
    // 1 + max_retries attempts in all.
    if task.attempt > rules.max_retries {
        return bury(Reason::RetriesExhausted, error);
    }
    let delay = delay_of_retry(after, task.attempt, rules, jitter);
    park(delay, task.attempt + 1, task.deferrals, error, SettledAs::Retried)
}

fn delay_of_retry(
    after: Option<Duration>,
    attempt: u32,
    rules: &config::QueueRules,
    jitter: f64,
) -> Duration {
    match after {
        Some(after) => after.min(LONGEST_ASKED),
        None => backoff::delay(&rules.backoff, attempt, jitter),
    }
}

fn park(delay: Duration, next_attempt: u32, deferrals: u32, error: &str, label: SettledAs) -> Decision {
    let settlement =
        Settlement::Park { delay, from: DelayStart::Now, next_attempt, deferrals, error: cut(error) };
    Decision { settlement, label }
}

fn bury(reason: Reason, error: &str) -> Decision {
    Decision { settlement: Settlement::Bury { reason, error: cut(error) }, label: reason.into() }
}

fn cut(error: &str) -> String {
    error.chars().take(MAX_ERROR_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Backoff;
    use crate::sandbox::testing;
    use crate::task::FailureKind;

    fn rules() -> config::QueueRules {
        let folder = Path::new("/srv/tqhost.toml");
        let config = config::Config::parse("[queues.q]\n", folder, &|_| None).expect("a configuration");
        let backoff = Backoff::Delays([1, 5].map(Duration::from_secs).into());
        let rules = config.queues.into_iter().next().expect("a queue");
        config::QueueRules { max_retries: 2, max_deferrals: 2, max_crashes: 2, backoff, ..rules }
    }

    fn task(attempt: u32, deferrals: u32, crashes: u32) -> Task {
        Task { attempt, deferrals, crashes, ..testing::task() }
    }

    fn park(seconds: u64, next_attempt: u32, deferrals: u32, error: &str) -> Settlement {
        Settlement::Park {
            delay: Duration::from_secs(seconds),
            from: DelayStart::Now,
            next_attempt,
            deferrals,
            error: error.into(),
        }
    }

    fn dead(reason: Reason, error: &str) -> Settlement {
        Settlement::Bury { reason, error: error.into() }
    }

    #[test]
    fn every_outcome_has_its_settlement() {
        let retry = |after: Option<u64>| Outcome::Retry {
            message: "busy".into(),
            after: after.map(Duration::from_secs),
        };
        let defer = |after| Outcome::Defer { message: "not yet".into(), after: Duration::from_secs(after) };
        let trap = || Outcome::Failed { kind: FailureKind::Trap, message: "unreachable".into() };
        let table = [
            (
                Outcome::Completed { result: Some(b"x".to_vec()), effects: None },
                task(3, 0, 0),
                Settlement::Complete { result: Some(b"x".to_vec()), effects: None },
            ),
            (retry(None), task(1, 0, 0), park(1, 2, 0, "retry: busy")),
            (retry(None), task(2, 1, 0), park(5, 3, 1, "retry: busy")),
            (retry(None), task(3, 0, 0), dead(Reason::RetriesExhausted, "retry: busy")),
            (retry(Some(3)), task(1, 0, 0), park(3, 2, 0, "retry: busy")),
            (retry(Some(3600)), task(1, 0, 0), park(3600, 2, 0, "retry: busy")),
            (retry(Some(u64::MAX)), task(1, 0, 0), park(24 * 3600, 2, 0, "retry: busy")),
            (trap(), task(1, 0, 0), park(1, 2, 0, "trap: unreachable")),
            (trap(), task(3, 0, 0), dead(Reason::RetriesExhausted, "trap: unreachable")),
            (Outcome::Reject { message: "no".into() }, task(1, 0, 0), dead(Reason::Rejected, "no")),
            (defer(60), task(2, 1, 0), park(60, 2, 2, "not yet")),
            (defer(u64::MAX), task(1, 0, 0), park(7 * 24 * 3600, 1, 1, "not yet")),
            (defer(60), task(1, 2, 0), dead(Reason::DeferralsExhausted, "not yet")),
        ];
        for (outcome, task, settlement) in table {
            assert_eq!(
                decide(outcome.clone(), &task, &rules(), 0.0).settlement,
                settlement,
                "{outcome:?} on {task:?}"
            );
        }
    }

    #[test]
    fn a_task_with_a_second_crash_runs_alone_or_with_its_first_where_that_is_all_it_may_have() {
        let suspects = |max_crashes| {
            let rules = config::QueueRules { max_crashes, ..rules() };
            [0, 1, 2, 3].map(|crashes| is_suspect(&task(1, 0, crashes), &rules))
        };
        assert_eq!(suspects(1), [false, true, true, true]);
        assert_eq!(suspects(2), [false, false, true, true]);
        assert_eq!(suspects(1000), [false, false, true, true]);
        assert_eq!(crashed(&task(1, 0, 3)).label, SettledAs::Crashed);
    }

    #[test]
    fn only_a_task_that_had_no_attempt_expires() {
        let rules = config::QueueRules { expire_after: Some(Duration::from_secs(3600)), ..rules() };
        let first = |since| Task { waits_since_ms: Some(since), ..task(1, 0, 0) };
        let now_ms = 10_000_000;
        let settlement = |task: &Task| expired(task, &rules, now_ms).map(|decision| decision.settlement);
        assert_eq!(settlement(&first(now_ms - 3_600_000)), None, "it waited as long as it may");
        assert_eq!(settlement(&first(now_ms + 5)), None, "a clock was set back");
        let error = "it waited 1h1m for its first attempt, and may wait 1h (expire_after)";
        assert_eq!(settlement(&first(now_ms - 3_660_500)), Some(dead(Reason::Expired, error)));
        for (attempt, deferrals, crashes) in [(2, 0, 0), (1, 1, 0), (1, 0, 1)] {
            let begun = Task { waits_since_ms: Some(0), ..task(attempt, deferrals, crashes) };
            assert_eq!(settlement(&begun), None);
        }
        assert_eq!(settlement(&task(1, 0, 0)), None, "it was given back");
        let without = config::QueueRules { expire_after: None, ..rules.clone() };
        assert!(expired(&first(0), &without, now_ms).is_none());
    }

    #[test]
    fn a_task_of_celery_waits_until_it_is_due_and_expires() {
        let list = config::List { key: "celery".into(), items: config::Items::Celery };
        let rules = config::QueueRules { list: Some(list), ..rules() };
        let (came, second) = (1_796_039_234_000, 1000);
        let with = |headers: &str, since| {
            let item =
                format!("{{\"body\": \"\", \"headers\": {{\"id\": \"1\", \"task\": \"t\", {headers}}}}}");
            let fields = vec![crate::task::Field { name: "data".into(), value: item.into() }];
            Task { fields, enqueued_at_ms: came, waits_since_ms: since, ..testing::task() }
        };
        let later = |since| unrun(&with("\"eta\": \"2026-11-30T11:47:24Z\"", since), &rules);
        let parked = later(Some(came)).map(|decision| decision.settlement);
        let Some(Settlement::Park { delay, from: DelayStart::Enqueueing, next_attempt: 1, .. }) = parked
        else {
            panic!("{parked:?}");
        };
        assert_eq!(delay, Duration::from_secs(10));
        assert!(later(Some(came + 10 * second)).is_none(), "it was delayed");
        assert!(later(None).is_none(), "it had an attempt");
        let far = unrun(&with("\"eta\": \"2028-11-30T11:47:24Z\"", Some(came)), &rules);
        let why = "headers.eta is more than 365 days after the task came";
        assert_eq!(far.map(|decision| decision.settlement), Some(dead(Reason::Malformed, why)));
        let short = with("\"expires\": \"2026-11-30T11:47:24Z\"", Some(came));
        assert!(expired(&short, &rules, came + 10 * second).is_none());
        let why = "it waited for longer than its producer allows (headers.expires)";
        let ended = expired(&short, &rules, came + 10 * second + 1).map(|decision| decision.settlement);
        assert_eq!(ended, Some(dead(Reason::Expired, why)));
    }

    #[test]
    fn a_task_that_is_released_or_given_back_comes_back_as_it_was() {
        assert_eq!(release(&task(2, 1, 0)).settlement, park(0, 2, 1, ""));
        let trap = Outcome::Failed { kind: FailureKind::Trap, message: "unreachable".into() };
        // This is its last attempt.
        let decision = give_back(&trap, &task(3, 1, 1), Duration::from_secs(2));
        assert_eq!(
            (decision.settlement, decision.label),
            (park(2, 3, 1, "not charged: trap: unreachable"), SettledAs::GivenBack)
        );
    }

    #[test]
    fn an_outage_is_charged_by_what_is_known_of_it() {
        let down = Outcome::Unavailable { message: "down".into(), after: None };
        let error = "not charged: retry: down";
        let decided = |before: Outages, charge| {
            let mut task = task(2, 1, 0);
            codec::set_outages(&mut task, before);
            let decision = after_outage(&down, &mut task, &rules(), charge, 0.0);
            let Outages { free, since_ms } = codec::outages(&task);
            (decision.map(|decision| decision.settlement), (free, since_ms))
        };
        let below = Charge::AfterSome { most: 2, at_ms: 9 };
        let held_as =
            |least, keeps_count| Charge::Held { at_ms: 9, least: Duration::from_secs(least), keeps_count };
        let held = |least| held_as(least, false);
        let had = |free| Outages { free, since_ms: 7 };
        assert_eq!(decided(Outages::default(), below), (Some(park(5, 2, 1, error)), (1, 9)));
        assert_eq!(decided(had(1), below), (Some(park(5, 2, 1, error)), (2, 7)));
        assert_eq!(decided(had(2), below), (None, (2, 7)));
        assert_eq!(decided(had(2), held(0)), (Some(park(5, 2, 1, error)), (0, 7)));
        assert_eq!(decided(had(2), held_as(0, true)), (Some(park(5, 2, 1, error)), (2, 7)));
        assert_eq!(decided(Outages::default(), held(60)), (Some(park(60, 2, 1, error)), (0, 9)));
        assert_eq!(decided(Outages::default(), Charge::AsUsual), (None, (0, 0)));
        let other = Outcome::Retry { message: "busy".into(), after: None };
        assert!(after_outage(&other, &mut task(1, 0, 0), &rules(), held(0), 0.0).is_none());
        let asked = Outcome::Unavailable { message: "down".into(), after: Some(Duration::from_secs(3)) };
        let decision = after_outage(&asked, &mut task(1, 0, 0), &rules(), held(0), 0.0);
        assert_eq!(decision.expect("it is not charged").settlement, park(3, 1, 0, error));
        assert_eq!(
            decide(down, &task(3, 0, 0), &rules(), 0.0).settlement,
            dead(Reason::RetriesExhausted, "retry: down")
        );
    }

    #[test]
    fn errors_are_cut_at_500_characters() {
        let decision = decide(Outcome::Reject { message: "é".repeat(600) }, &task(1, 0, 0), &rules(), 0.0);
        assert_eq!(decision.settlement, dead(Reason::Rejected, &"é".repeat(500)));
    }
}
