//! Checks and effects of a plugin's life that the model does without, one at a time.
//!
//! In: an event, and the life before it. Out: the step of a life without a check; whether an effect gets
//! lost. Not here: the model (`model`), the rule that fails then (`checks`).

use super::*;

/// An effect that gets lost. A property must fail then, which shows what the effect is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum LostEffect {
    Grants,
    /// The grants of a version that was replaced, and is kept.
    GrantsOfKept,
    NoteOfRollback,
    NoteOfLateVerdict,
    LetGo,
}

impl LostEffect {
    /// Whether this effect is the lost one. `serving` is what served before the event.
    pub(super) fn is(self, effect: &Effect, event: &LifeEvent, serving: &Serving) -> bool {
        match (self, event, effect) {
            (LostEffect::Grants, LifeEvent::Granted, Effect::Regrant)
            | (LostEffect::GrantsOfKept, LifeEvent::Judged(..), Effect::Regrant)
            | (LostEffect::LetGo, _, Effect::LetGo) => true,
            (LostEffect::NoteOfRollback, LifeEvent::Judged(..), Effect::Note(_)) => {
                matches!(serving, Serving::Probation(..))
            }
            (LostEffect::NoteOfLateVerdict, LifeEvent::Judged(..), Effect::Note(_)) => {
                matches!(serving, Serving::Draining(_))
            }
            _ => false,
        }
    }
}

/// A check of the life. The model undoes one at a time, by what it tells the life or by what it makes of its
/// answer. A property must fail then, which shows what the check is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Guard {
    LateResultsAreDropped,
    GrantsStopJobs,
    GoodIsKeptInProbation,
    GoodIsKeptInDraining,
    QuarantineBeforePublishing,
    QuarantineBeforeCompiling,
    VerdictsAreOfWhatServes,
    NotesAreWrittenInOrder,
    WithdrawalsAddUp,
}

impl Guard {
    /// The step of a life without this check.
    pub(super) fn step_without(self, life: &Life, mut event: LifeEvent, now: Instant) -> (Life, Vec<Effect>) {
        let was = life;
        let mut life = was.clone();
        let mut judged = None;
        let is_hidden = self.hides_quarantine(was, &event);
        if is_hidden {
            life.quarantine = None;
            life.withdrawn.clear();
        }
        match (self, &mut event) {
            (Guard::LateResultsAreDropped, LifeEvent::Ended { load, .. }) => *load = life.load,
            (Guard::GoodIsKeptInProbation, LifeEvent::Ended { good_holds, .. }) => *good_holds = false,
            (Guard::WithdrawalsAddUp, LifeEvent::Withdrawn(_)) => life.withdrawn.clear(),
            (Guard::VerdictsAreOfWhatServes, LifeEvent::Judged(version, ProbationVerdict::Bad(_))) => {
                if let Serving::Probation(new, _) = &life.serving {
                    judged = Some(std::mem::replace(&mut version.digest, new.digest.clone()));
                }
            }
            _ => {}
        }
        let is_granted = event == LifeEvent::Granted;
        let (mut life, mut effects) = step(life, event, now);
        if is_hidden && self == Guard::QuarantineBeforeCompiling {
            life.quarantine.clone_from(&was.quarantine);
            life.withdrawn.clone_from(&was.withdrawn);
        }
        if let (Some(judged), Some(quarantine)) = (judged, &mut life.quarantine) {
            quarantine.digest = judged;
            for effect in &mut effects {
                if let Effect::Note(noted) = effect {
                    *noted = Some(quarantine.clone());
                }
            }
        }
        match self {
            Guard::GrantsStopJobs if is_granted && was.candidate.has_load() => {
                life = was.clone();
                effects.retain(|effect| *effect == Effect::Regrant);
            }
            Guard::GoodIsKeptInDraining if matches!(life.serving, Serving::Draining(_)) => {
                life.serving = Serving::Absent;
            }
            Guard::NotesAreWrittenInOrder if life.noting == Noting::Outdated => {
                life.noting = Noting::Busy;
                effects.push(Effect::Note(life.quarantine.clone()));
            }
            _ => {}
        }
        (life, effects)
    }

    /// Whether the life does not see that the content is in quarantine.
    fn hides_quarantine(self, life: &Life, event: &LifeEvent) -> bool {
        let LifeEvent::Ended { end, .. } = event else { return false };
        match (self, end, &life.candidate) {
            (Guard::QuarantineBeforeCompiling, LoadEnd::Read(digest), _) => life.is_in_quarantine(digest),
            (Guard::QuarantineBeforePublishing, LoadEnd::Made, Candidate::InWork(work)) => {
                matches!(work, LoadKind::Make(digest) if life.is_in_quarantine(digest))
            }
            _ => false,
        }
    }
}
