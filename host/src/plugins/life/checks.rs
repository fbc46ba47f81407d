//! Checks the rules of a plugin's life in every state of the model. Also checks that a rule fails without
//! each guard, and without each effect that it rests on.
//!
//! Not here: the model (`model`).

use stateright::{Checker, HasDiscoveries, Model, Property};

use super::model::{EventBudget, Kind, LET_GO, ModelVersion, System, World, digest};
use super::mutants::{Guard, LostEffect};
use super::*;

const GOOD: &str = "the last good version is kept until another one is found to be good";
const GRANTS: &str = "what serves or is kept has the configured grants";
const BANNED: &str = "what was found to be bad neither serves nor is kept";
const WITHDRAWN: &str = "what an operator has withdrawn neither serves nor is kept";
const NOTED: &str = "the last note on disk says what is true";
const AGREED: &str = "what serves is what the life says";
const CHECKED: &str = "what serves was compiled and checked";
const REST: &str = "it comes to rest, as its file says, by its own events";
const WRONG: &str = "nothing is done twice or for nothing";

const SEEN: [&str; 10] = [
    "on probation",
    "rolled back",
    "removed during its probation",
    "restored after a start",
    "a note is outdated while it is written",
    "a result is late",
    "hindered, and due again",
    "withdrawn, with nothing else",
    "lifted, and on probation again",
    "two are withdrawn",
];

pub(super) fn properties() -> Vec<Property<System>> {
    vec![
        Property::always(GOOD, |_, world: &World| world.wrong != Some(LET_GO)),
        Property::always(WRONG, |_, world: &World| world.wrong.is_none_or(|wrong| wrong == LET_GO)),
        Property::always(GRANTS, |_, world: &World| {
            [world.active, world.good].iter().flatten().all(|version| version.grants == world.grants)
        }),
        Property::always(BANNED, |_, world: &World| {
            let versions = [world.active, world.good];
            let is_bad = |version: &ModelVersion| world.banned == Some(digest(version.content));
            !versions.iter().flatten().any(is_bad)
        }),
        Property::always(WITHDRAWN, |_, world: &World| {
            let is_withdrawn = |version: &ModelVersion| world.withdrawn.contains(&digest(version.content));
            !world.life.is_recalled || ![world.active, world.good].iter().flatten().any(is_withdrawn)
        }),
        Property::always(NOTED, |_, world: &World| {
            let is_written = world.life.is_recalled && world.writing.is_empty();
            !is_written || world.noted == world.life.quarantine
        }),
        Property::always(AGREED, |_, world: &World| {
            let is_same = |version: Option<ModelVersion>, said: Option<&Good>| {
                version.map(|version| digest(version.content)) == said.map(|said| said.digest.clone())
            };
            let is_wanted = world.life.candidate != Candidate::Unwanted;
            is_same(world.active, world.life.serving.active())
                && is_same(world.good, world.life.serving.good())
                && (is_wanted || world.active.is_none())
        }),
        Property::always(CHECKED, |model: &System, world: &World| {
            world.active.is_none_or(|active| {
                let kind = model.contents[usize::from(active.content)];
                !matches!(kind, Kind::FailsToCompile | Kind::FailsItsCheck)
            })
        }),
        Property::always(REST, System::comes_to_rest),
        Property::sometimes(SEEN[0], |_, world: &World| matches!(world.life.serving, Serving::Probation(..))),
        Property::sometimes(SEEN[1], |_, world: &World| world.life.candidate == Candidate::Quarantined),
        Property::sometimes(SEEN[2], |_, world: &World| {
            let is_draining = matches!(world.life.serving, Serving::Draining(_));
            is_draining && !world.on_probation.is_empty()
        }),
        Property::sometimes(SEEN[3], |_, world: &World| {
            let is_restored = world.life.candidate == Candidate::Quarantined;
            is_restored && world.left.restarts == 0 && world.active.is_some()
        }),
        Property::sometimes(SEEN[4], |_, world: &World| world.life.noting == Noting::Outdated),
        Property::sometimes(SEEN[5], |_, world: &World| {
            world.ended.iter().any(|(load, ..)| *load != world.life.load)
        }),
        Property::sometimes(SEEN[6], |_, world: &World| {
            world.life.candidate == Candidate::Refused && world.is_due()
        }),
        Property::sometimes(SEEN[7], |_, world: &World| {
            world.life.candidate == Candidate::Quarantined && world.active.is_none()
        }),
        Property::sometimes(SEEN[8], |_, world: &World| {
            let is_lifted = world.left.orders == 0 && world.withdrawn.is_empty();
            is_lifted && matches!(world.life.serving, Serving::Probation(..))
        }),
        Property::sometimes(SEEN[9], |_, world: &World| world.withdrawn.len() > 1),
    ]
}

const NOTHING: EventBudget = EventBudget {
    changes: 0,
    grants: 0,
    restarts: 0,
    hindrances: 0,
    doubts: 0,
    removals: 0,
    neighbours: 0,
    orders: 0,
};
/// Contents that attempts judge.
const JUDGED: System = System {
    contents: &[Kind::Fine, Kind::Doubtful, Kind::Spoils],
    budget: EventBudget { changes: 4, grants: 1, restarts: 1, ..NOTHING },
    makes_room: true,
    lacks: None,
    loses: None,
};
/// Contents that fail before attempts run.
const REFUSED: System = System {
    contents: &[Kind::Fine, Kind::Fine, Kind::FailsToCompile, Kind::FailsItsCheck],
    budget: EventBudget { changes: 3, grants: 1, hindrances: 1, ..NOTHING },
    ..JUDGED
};
/// One good and one bad content, and whatever else may go wrong.
const HINDERED: System = System {
    contents: &[Kind::Fine, Kind::Spoils],
    budget: EventBudget {
        changes: 3,
        grants: 1,
        restarts: 1,
        hindrances: 1,
        doubts: 1,
        removals: 1,
        ..NOTHING
    },
    ..JUDGED
};

/// An operator withdraws versions, and lifts quarantines.
const ORDERED: System = System {
    contents: &[Kind::Fine, Kind::Doubtful],
    budget: EventBudget { changes: 3, restarts: 1, orders: 2, ..NOTHING },
    ..JUDGED
};
/// Beside another plugin whose file never ends to compile.
const BESIDE: System = System {
    contents: &[Kind::Fine, Kind::Doubtful],
    budget: EventBudget { changes: 4, grants: 1, neighbours: 1, ..NOTHING },
    ..JUDGED
};

/// Checks all states. Fails with the steps to the first state in which a property does not hold. The states
/// `unseen` need not occur in this model.
fn holds(model: System, unseen: &[&str]) {
    let checker = model.checker().threads(2).spawn_bfs().join();
    let (states, steps, depth) = (checker.unique_state_count(), checker.state_count(), checker.max_depth());
    println!("{states} states, {steps} steps, depth {depth}");
    for property in checker.model().properties() {
        match checker.discovery(property.name) {
            Some(path) if !SEEN.contains(&property.name) => {
                panic!("{}: {:#?}\n{:#?}", property.name, path.clone().into_actions(), path.last_state())
            }
            None if SEEN.contains(&property.name) => {
                assert!(unseen.contains(&property.name), "never seen: {}", property.name);
            }
            _ => {}
        }
    }
    assert!(states > 10_000, "the model is smaller than it was meant to be: {states} states");
}

/// Checks that this property fails without the guard or the effect that the model leaves out.
fn missed(model: System, property: &'static str) {
    let lacks = (model.lacks, model.loses);
    let checker =
        model.checker().threads(2).finish_when(HasDiscoveries::AllOf([property].into())).spawn_bfs().join();
    let path = checker.discovery(property).unwrap_or_else(|| panic!("{lacks:?} is not missed: {property}"));
    println!("{lacks:?}: {property}: {:?}", path.into_actions());
}

#[test]
fn good_and_bad_versions_grants_and_a_restart() {
    holds(JUDGED, &[SEEN[6], SEEN[7], SEEN[8], SEEN[9]]);
}

#[test]
fn files_that_are_refused() {
    holds(REFUSED, &[SEEN[1], SEEN[3], SEEN[4], SEEN[7], SEEN[8], SEEN[9]]);
}

#[test]
fn hindrances_doubts_and_an_end() {
    holds(HINDERED, &[SEEN[7], SEEN[8], SEEN[9]]);
}

#[test]
fn versions_that_an_operator_withdraws_and_lifts() {
    holds(ORDERED, &[SEEN[6]]);
    missed(System { loses: Some(LostEffect::LetGo), ..ORDERED }, WITHDRAWN);
    missed(System { lacks: Some(Guard::WithdrawalsAddUp), ..ORDERED }, WITHDRAWN);
}

#[test]
fn no_plugin_waits_for_the_file_of_another() {
    holds(BESIDE, &[SEEN[3], SEEN[6], SEEN[7], SEEN[8], SEEN[9]]);
    missed(System { makes_room: false, ..BESIDE }, REST);
}

#[test]
fn every_guard_is_missed() {
    for (guard, property) in [
        (Guard::LateResultsAreDropped, WRONG),
        (Guard::GrantsStopJobs, GRANTS),
        (Guard::GoodIsKeptInProbation, GOOD),
        (Guard::GoodIsKeptInDraining, GOOD),
        (Guard::QuarantineBeforeCompiling, WRONG),
        (Guard::QuarantineBeforePublishing, BANNED),
        (Guard::VerdictsAreOfWhatServes, REST),
        (Guard::NotesAreWrittenInOrder, NOTED),
    ] {
        missed(System { lacks: Some(guard), ..JUDGED }, property);
    }
}

#[test]
fn every_effect_that_a_rule_rests_on_is_missed() {
    for (effect, property) in [
        (LostEffect::Grants, GRANTS),
        (LostEffect::GrantsOfKept, GRANTS),
        (LostEffect::NoteOfRollback, NOTED),
        (LostEffect::NoteOfLateVerdict, NOTED),
    ] {
        missed(System { loses: Some(effect), ..JUDGED }, property);
    }
}
