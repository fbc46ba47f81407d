//! A model of claim, begin, heartbeat, reclaim, settle and promote, checked in all its states.
//!
//! `store.rs` is Redis with the scripts as steps. `system.rs` has the hosts and all faults. This
//! file has the properties that must always hold, and models that each lack one guard of the scripts: the
//! check must find every missing guard. `turns.rs` and `relay.rs` are models of their own, of tasks
//! that wait for their turn, and of those that go to another slot of a cluster.
//!
//! Not here: the scripts themselves (`tests/proofs/property.rs` runs them). docs/laboratory.md says what is
//! modelled and what is not. This is a crate of its own, because the host's tests are not optimised.

#![cfg(test)]

mod relay;
mod store;
mod system;
mod turns;

use stateright::{Checker, HasDiscoveries, Model, Property};

use store::{Guards, Status};
use system::{Faults, Life, Stage, State, Step, System};

/// One task, and faults of every kind.
const ONE: System = System {
    tasks: 1,
    are_delayed: false,
    permits: 1,
    faults: Faults { crashes: 2, stops: 1, stalls: 1, lost_replies: 1, cancels: 0 },
    guards: Guards::ALL,
};
/// Two tasks that may run in one host.
const TWO: System = System {
    tasks: 2,
    are_delayed: false,
    permits: 2,
    faults: Faults { crashes: 1, stops: 0, stalls: 1, lost_replies: 0, cancels: 0 },
    guards: Guards::ALL,
};
/// One task that was enqueued with a delay, and that somebody cancels. After its promotion nothing says under
/// which entry it waits, and it still begins without a script.
const CANCELLED: System = System {
    tasks: 1,
    are_delayed: true,
    permits: 1,
    faults: Faults { crashes: 2, stops: 1, stalls: 0, lost_replies: 1, cancels: 1 },
    guards: Guards::ALL,
};

const CONSERVATION: &str = "a task is in one place";
const COMMIT: &str = "a task is completed once";
const OWNER: &str = "a failure counts only from the owner";
const LEASE: &str = "a lease passes on only by a claim";
const DELIVERIES: &str = "deliveries are 1 + crashes";
const ATTEMPTS: &str = "only a retry uses an attempt";
const STATUS: &str = "the status tells the place";
const COUNTED: &str = "who settled a task is told so";
const ALONE: &str = "only a crash while it runs alone makes a task dead";
const CANCELLATION: &str = "what is said to be cancelled stays so";
const EFFECTS: &str = "effects are committed with the end of their task";
const JOIN: &str = "a flow is joined when all its children have completed";
const TOLD: &str = "every end is told once";
const END: &str = "an end can be reached";

/// Each of these must be reached in some state, or the model is too small to prove anything.
const SEEN: [&str; 6] =
    ["completed", "retried", "dead", "dead by crashes", "overtaken", "taken back from the dead"];

fn properties(model: &System) -> Vec<Property<System>> {
    let mut all = vec![
        Property::always(CONSERVATION, |model: &System, state: &State| {
            (0..model.tasks).all(|task| state.store.places(task) == 1)
        }),
        Property::always(COMMIT, |_: &System, state: &State| {
            state.store.tasks.iter().all(|task| task.commits <= 1)
        }),
        Property::always(OWNER, |_: &System, state: &State| !state.store.failed_by_a_stranger),
        Property::always(LEASE, |_: &System, state: &State| {
            pending(state).all(|pending| pending.owner == pending.claimed_by)
        }),
        Property::always(DELIVERIES, |_: &System, state: &State| {
            pending(state).all(|pending| pending.deliveries == 1 + pending.losses)
        }),
        Property::always(ATTEMPTS, |_: &System, state: &State| {
            let there = state
                .store
                .stream
                .iter()
                .map(|entry| entry.payload)
                .chain(state.store.delayed.iter().map(|(_, payload)| *payload));
            there
                .into_iter()
                .all(|payload| payload.attempt == 1 + state.store.tasks[usize::from(payload.task)].retries)
        }),
        Property::always(STATUS, status_tells_the_place),
        Property::always(ALONE, |_: &System, state: &State| {
            !state.store.tasks.iter().any(|task| task.is_wronged)
        }),
        Property::always(COUNTED, |_: &System, state: &State| !state.is_miscounted),
        Property::always(CANCELLATION, |_: &System, state: &State| {
            state
                .store
                .tasks
                .iter()
                .all(|task| !task.is_said_to_be_cancelled || task.status == Status::Cancelled)
        }),
        Property::always(EFFECTS, |_: &System, state: &State| {
            state.store.tasks.iter().all(|task| task.effects == task.commits)
        }),
        Property::always(JOIN, |_: &System, state: &State| {
            let completed = state.store.tasks.iter().filter(|task| task.commits > 0).count();
            let left = state.store.tasks.len() - completed;
            usize::from(state.store.left) == left && state.store.joined == u8::from(left == 0)
        }),
        Property::always(TOLD, |_: &System, state: &State| {
            state.store.tasks.iter().all(|task| task.told == task.commits + task.dead + task.cancelled)
        }),
        Property::always(END, System::comes_to_an_end),
        Property::sometimes(SEEN[0], |_: &System, state: &State| {
            state.store.tasks.iter().any(|task| task.commits == 1)
        }),
        Property::sometimes(SEEN[1], |_: &System, state: &State| {
            state.store.stream.iter().any(|entry| entry.payload.attempt == 2)
        }),
        Property::sometimes(SEEN[2], |_: &System, state: &State| {
            state.store.tasks.iter().any(|task| task.dead == 1)
        }),
        Property::sometimes(SEEN[3], |_: &System, state: &State| {
            state.store.tasks.iter().any(|task| task.dead == 1 && task.died_alone)
        }),
        Property::sometimes(SEEN[4], |_: &System, state: &State| {
            let settling = state
                .hosts
                .iter()
                .flat_map(|host| &host.held)
                .find(|hold| matches!(hold.stage, Stage::Settling(_)));
            settling.is_some_and(|hold| state.store.tasks[usize::from(hold.of.payload.task)].commits == 1)
        }),
        Property::sometimes(SEEN[5], |_: &System, state: &State| {
            state.hosts.iter().any(|host| host.life == Life::Down)
                && state
                    .hosts
                    .iter()
                    .flat_map(|host| &host.held)
                    .any(|hold| hold.of.payload.crashes > 0 && hold.stage == Stage::Alone)
        }),
    ];
    if model.faults.cancels > 0 {
        all.push(Property::sometimes("marked as cancelled", |_: &System, state: &State| {
            state.store.tasks.iter().any(|task| task.is_marked)
        }));
        all.push(Property::sometimes("marked while it ran, unheard", |_: &System, state: &State| {
            let begun =
                state.hosts.iter().flat_map(|host| &host.held).find(|hold| hold.stage == Stage::Begun);
            begun.is_some_and(|hold| state.store.tasks[usize::from(hold.of.payload.task)].is_marked)
        }));
    }
    all
}

fn pending(state: &State) -> impl Iterator<Item = &store::Pending> {
    state.store.stream.iter().filter_map(|entry| entry.pending.as_ref())
}

fn status_tells_the_place(_: &System, state: &State) -> bool {
    let of = |task: u8| state.store.tasks[usize::from(task)].status;
    let ends = state.store.tasks.iter().all(|task| match task.status {
        Status::Completed => task.commits > 0,
        Status::Failed => task.dead > 0,
        Status::Pending | Status::Processing => (task.commits, task.dead, task.cancelled) == (0, 0, 0),
        Status::Cancelled => (task.commits, task.dead) == (0, 0) && task.is_marked != (task.cancelled > 0),
    });
    ends && state.store.delayed.iter().all(|(_, payload)| of(payload.task) == Status::Pending)
}

/// Visits all states. Fails with the steps to the first state in which a property does not hold.
fn holds(model: System) {
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!(
        "{} states, {} steps, depth {}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth()
    );
    checker.assert_properties();
    assert!(checker.unique_state_count() > 10_000, "the model is smaller than it was meant to be");
}

/// The steps to a state in which `property` does not hold.
fn found_out(model: System, property: &'static str) -> Vec<Step> {
    let checker =
        model.checker().threads(1).finish_when(HasDiscoveries::AllOf([property].into())).spawn_bfs().join();
    let path = checker.discovery(property).unwrap_or_else(|| panic!("not found out: {property}"));
    let is_held = checker.model().property(property).condition;
    let good = path.into_vec().into_iter().take_while(|(state, _)| is_held(checker.model(), state));
    let steps: Vec<Step> = good.filter_map(|(_, step)| step).collect();
    println!("{property}: {steps:?}");
    steps
}

fn without(change: impl FnOnce(&mut Guards)) -> System {
    less(ONE, change)
}

fn less(mut model: System, change: impl FnOnce(&mut Guards)) -> System {
    change(&mut model.guards);
    model
}

#[test]
fn one_task_two_hosts_and_every_fault() {
    // 4.8 million states take some minutes, too long for each run of the tests.
    let large = std::env::var_os("TQHOST_MODEL_LARGE").map(|_| Faults {
        crashes: 2,
        stops: 1,
        stalls: 2,
        lost_replies: 2,
        cancels: 0,
    });
    holds(System { faults: large.unwrap_or(ONE.faults), ..ONE });
}

#[test]
fn one_task_that_is_cancelled() {
    holds(CANCELLED);
}

#[test]
fn without_the_replies_that_are_kept_a_settlement_is_not_counted() {
    let path = found_out(without(|guards| guards.repeated_calls_get_their_reply = false), COUNTED);
    assert!(matches!(path.last(), Some(Step::Settle(..))), "{path:?}");
}

#[test]
fn a_settlement_or_a_gate_that_overlooks_the_mark_undoes_a_cancellation() {
    for change in [
        (|guards: &mut Guards| guards.settlement_honours_the_mark = false) as fn(&mut Guards),
        |guards: &mut Guards| {
            guards.gate_honours_the_mark = false;
        },
    ] {
        let path = found_out(less(CANCELLED, change), CANCELLATION);
        assert!(path.iter().any(|step| matches!(step, Step::Promote(_))), "{path:?}");
    }
}

#[test]
fn two_tasks_two_hosts_and_some_faults() {
    holds(TWO);
}

#[test]
fn without_the_owner_check_a_failure_counts_twice() {
    let model = without(|guards| guards.failures_look_for_the_owner = false);
    found_out(model.clone(), OWNER);
    let path = found_out(model, CONSERVATION);
    let settled = path.iter().filter(|step| matches!(step, Step::Settle(..) | Step::Arrive(_))).count();
    assert_eq!(settled, 2, "two settlements of one attempt: {path:?}");
}

#[test]
fn without_the_acks_answer_a_completion_counts_twice() {
    let model = without(|guards| guards.completion_needs_the_ack = false);
    found_out(model.clone(), CONSERVATION);
    let path = found_out(model, COMMIT);
    let settled = path.iter().filter(|step| matches!(step, Step::Settle(..) | Step::Arrive(_))).count();
    assert_eq!(settled, 2, "two settlements of one attempt: {path:?}");
}

#[test]
fn effects_that_do_not_wait_for_the_ack_are_those_of_an_attempt_that_was_overtaken() {
    let path = found_out(without(|guards| guards.effects_wait_for_the_ack = false), EFFECTS);
    let settled = path.iter().filter(|step| matches!(step, Step::Settle(..) | Step::Arrive(_))).count();
    assert!(settled > 0, "{path:?}");
}

#[test]
fn a_child_that_is_counted_twice_joins_its_flow_too_early() {
    let change = |guards: &mut Guards| {
        guards.completion_needs_the_ack = false;
        guards.children_count_once = false;
    };
    let path = found_out(less(TWO, change), JOIN);
    assert!(matches!(path.last(), Some(Step::Settle(..))), "{path:?}");
}

#[test]
fn an_end_that_is_found_by_its_mark_is_told_then_and_not_before() {
    let path = found_out(less(CANCELLED, |guards| guards.found_marks_are_told = false), TOLD);
    assert!(matches!(path.last(), Some(Step::Settle(..) | Step::Begin(..))), "{path:?}");
    let path = found_out(less(CANCELLED, |guards| guards.marks_are_not_told = false), TOLD);
    assert!(matches!(path.last(), Some(Step::Cancel(_))), "{path:?}");
}

#[test]
fn a_heartbeat_that_does_not_look_steals() {
    let model = without(|guards| guards.heartbeat_looks_for_the_owner = false);
    found_out(model.clone(), OWNER);
    let path = found_out(model, LEASE);
    assert!(matches!(path.last(), Some(Step::Heartbeat(..))), "{path:?}");
}

#[test]
fn a_heartbeat_without_justid_counts_as_a_crash() {
    let path = found_out(without(|guards| guards.heartbeat_counts_nothing = false), DELIVERIES);
    assert!(matches!(path.last(), Some(Step::Heartbeat(..))), "{path:?}");
}

#[test]
fn a_claim_of_ones_own_entry_that_is_counted_counts_as_a_crash() {
    let path = found_out(without(|guards| guards.own_claims_count_nothing = false), DELIVERIES);
    assert!(matches!(path.last(), Some(Step::Reclaim(_) | Step::ReclaimUnheard(_))), "{path:?}");
}

#[test]
fn a_claim_from_an_owner_that_lived_on_that_is_counted_counts_as_a_crash() {
    let path = found_out(less(TWO, |guards| guards.living_owners_count_nothing = false), DELIVERIES);
    assert!(matches!(path.last(), Some(Step::Reclaim(_))), "{path:?}");
}

#[test]
fn a_host_that_runs_suspects_beside_others_makes_the_wrong_ones_dead() {
    let path = found_out(less(TWO, |guards| guards.suspects_run_alone = false), ALONE);
    assert!(
        path.iter().any(|step| matches!(step, Step::Alone(..)))
            && matches!(path.last(), Some(Step::Begin(..))),
        "{path:?}"
    );
}
