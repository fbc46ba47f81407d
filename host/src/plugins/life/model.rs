//! A model of one plugin and everything around it: the file, the loads, the attempts, the notes on disk. All
//! of its states are checked.
//!
//! The life in the model is the code that the host runs. Around it, everything happens in every order: files
//! come, change and vanish; grants change; loads end, are hindered, and report late; attempts lead to
//! verdicts, also on versions that were replaced; the host starts again.
//!
//! Not here: what must always hold (`checks`), that the watcher and the registry carry out what the effects
//! say (`plugins::tests`), who compiles at once (`line`).

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use stateright::{Model, Property};

use super::mutants::{Guard, LostEffect};
use super::*;
use crate::file::Stamp;
use crate::plugins::changes::Milestone;
use crate::plugins::retries::Pauses;

/// The fate of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Fine,
    FailsToCompile,
    FailsItsCheck,
    /// Its attempts say that it is bad.
    Spoils,
    /// Its attempts say either.
    Doubtful,
}

/// How many events may still come from outside. Without a budget there would be endless states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct EventBudget {
    /// The file gets a content, the same or another one, or vanishes.
    pub(super) changes: u8,
    pub(super) grants: u8,
    pub(super) restarts: u8,
    /// Loads that fail for a cause that may pass.
    pub(super) hindrances: u8,
    /// The attempts on a good version show that it is bad.
    pub(super) doubts: u8,
    /// The plugin is wanted no more.
    pub(super) removals: u8,
    /// Another plugin's file is compiled, which never ends.
    pub(super) neighbours: u8,
    /// An operator withdraws a version, or lifts a quarantine.
    pub(super) orders: u8,
}

impl EventBudget {
    /// The budget that is left after an event.
    fn without(mut self, act: Act) -> EventBudget {
        let left = match act {
            Act::Put(_) | Act::Vanish => &mut self.changes,
            Act::Grant => &mut self.grants,
            Act::Restart => &mut self.restarts,
            Act::End(true) => &mut self.hindrances,
            Act::Hear(_, false) => &mut self.doubts,
            Act::Unwant => &mut self.removals,
            Act::Neighbour => &mut self.neighbours,
            Act::Withdraw(_) | Act::Lift(_) => &mut self.orders,
            _ => return self,
        };
        *left -= 1;
        self
    }
}

#[derive(Debug, Clone)]
pub(super) struct System {
    pub(super) contents: &'static [Kind],
    pub(super) budget: EventBudget,
    /// Whether a file that compiles for long makes room for others, as in `line`.
    pub(super) makes_room: bool,
    pub(super) lacks: Option<Guard>,
    pub(super) loses: Option<LostEffect>,
}

/// A version in the host's memory, or what a load has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ModelVersion {
    pub(super) content: u8,
    /// The grants of the configuration when the version was made.
    pub(super) grants: u8,
}

/// A load that runs, and the grants that it was given.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ModelLoad {
    load: u64,
    stamp: Stamp,
    kind: LoadKind,
    pub(super) grants: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) life: Life,
    lacks: Option<Guard>,
    loses: Option<LostEffect>,
    /// The number of its stamp, and its content.
    file: Option<(u64, u8)>,
    stamps: u64,
    running: Option<ModelLoad>,
    /// Loads that have ended, before the life hears of it.
    pub(super) ended: Vec<(u64, LoadEnd, Option<ModelVersion>)>,
    pub(super) active: Option<ModelVersion>,
    pub(super) good: Option<ModelVersion>,
    /// Versions whose probation has not ended, as they were when it began.
    pub(super) on_probation: Vec<ModelVersion>,
    pub(super) grants: u8,
    /// Another plugin has the turn to compile.
    is_turn_taken: bool,
    /// The note on disk, and those that are being written.
    pub(super) noted: Option<Quarantine>,
    pub(super) writing: Vec<Option<Quarantine>>,
    pub(super) left: EventBudget,
    /// Watched: a content that was found to be bad, until another one was taken.
    pub(super) banned: Option<Digest>,
    /// Watched: what operators have withdrawn.
    pub(super) withdrawn: BTreeSet<Digest>,
    /// Watched: something that must never be done, and was.
    pub(super) wrong: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Put(u8),
    Vanish,
    Grant,
    Restart,
    Unwant,
    Look,
    /// Time passes until something is due.
    Wait,
    /// The load ends; with whether it was hindered.
    End(bool),
    /// The load notices that the file has another content.
    Change,
    /// The life hears of a load that has ended; with whether the good version holds.
    Hear(usize, bool),
    Judge(usize, bool),
    Withdraw(u8),
    Lift(u8),
    /// A note is on disk.
    Write(usize),
    /// Another plugin takes the turn to compile.
    Neighbour,
    /// It has had it for long.
    MakeRoom,
}

/// Watched: the good version was let go of.
pub(super) const LET_GO: &str = "the good version was let go of";

/// The present, which does not move. Instead of waiting, the model makes due what waits for a time.
fn now() -> Instant {
    static NOW: OnceLock<Instant> = OnceLock::new();
    *NOW.get_or_init(|| Instant::now() + Duration::from_secs(1))
}

fn new_life() -> Life {
    let hour = Duration::from_secs(3600);
    Life::new(Pauses { first: hour, longest: hour })
}

pub(super) fn digest(content: u8) -> Digest {
    content.to_string()
}

/// A withdrawal without an earlier version to go back to.
fn withdrawal(digest: Digest) -> LifeEvent {
    LifeEvent::Withdrawn(Quarantine { digest, why: "withdrawn".into(), good: None })
}

/// Whether the log says of this version that it does not run.
fn is_logged(effect: &Effect, version: &str) -> bool {
    match effect {
        Effect::Tell(News::Refused(digest, _) | News::RolledBack { digest, .. }) => digest == version,
        _ => false,
    }
}

fn content(digest: &str) -> u8 {
    digest.parse().expect("a content")
}

impl World {
    fn found(&self) -> Found {
        self.file.map_or(Found::Missing, |(stamp, _)| Found::File(Stamp::numbered(stamp)))
    }

    /// Takes a step of the life, and carries out its effects. `brought` is the version that a load has made
    /// or that a verdict is about.
    fn tell(&mut self, event: LifeEvent, brought: Option<ModelVersion>) {
        let before = self.life.serving.good().cloned();
        let was_serving = self.life.serving.clone();
        let (life, effects) = match self.lacks {
            Some(guard) => guard.step_without(&self.life, event.clone(), now()),
            None => step(self.life.clone(), event.clone(), now()),
        };
        self.life = life;
        if let LifeEvent::Withdrawn(Quarantine { digest, .. }) = &event {
            let was_kept = before.as_ref().is_some_and(|before| before.digest == *digest);
            let was_used = was_kept || was_serving.is_active(digest);
            let lines = effects.iter().filter(|effect| is_logged(effect, digest)).count();
            if lines != usize::from(was_used) {
                self.wrong = Some("the log has not one line about what is withdrawn");
            }
        }
        if let LifeEvent::Judged(version, ProbationVerdict::Bad(_)) = &event {
            // As `found_bad`: of the version on probation; or, once its file is gone and nothing serves, the
            // late verdict about it, unless it is the good one.
            let is_banned = match &was_serving {
                Serving::Probation(new, _) => new.digest == version.digest,
                Serving::Draining(good) => good.digest != version.digest,
                Serving::Absent | Serving::Good(_) => false,
            };
            if is_banned {
                self.banned = Some(version.digest.clone());
            }
        }
        for effect in effects {
            if matches!(event, LifeEvent::Judged(..)) && matches!(effect, Effect::Begin { .. }) {
                self.wrong = Some("a verdict begins a load");
            }
            if !self.loses.is_some_and(|lost| lost.is(&effect, &event, &was_serving)) {
                self.carry_out(effect, brought);
            }
        }
        let after = self.life.serving.good().cloned();
        if let Some(before) = before.filter(|before| after.as_ref() != Some(before)) {
            // A better version takes its place, it does not hold any more, or an operator withdraws it.
            let may_let_go = match &event {
                LifeEvent::Judged(version, ProbationVerdict::Good) => after.as_ref() == Some(version),
                LifeEvent::Ended { good_holds, .. } => !good_holds,
                LifeEvent::Withdrawn(withdrawal) => withdrawal.digest == before.digest,
                _ => false,
            };
            // One with the same digest is the same version, whichever size was noted of it.
            if !may_let_go && after.is_none_or(|after| after.digest != before.digest) {
                self.wrong = Some(LET_GO);
            }
        }
        let taken = self.active.filter(|_| self.life.candidate == Candidate::Taken);
        if taken.is_some_and(|taken| self.banned.as_ref().is_some_and(|bad| content(bad) != taken.content)) {
            self.banned = None;
        }
        self.renumber();
    }

    fn carry_out(&mut self, effect: Effect, brought: Option<ModelVersion>) {
        match effect {
            Effect::Begin { load, stamp, kind } => {
                if self.running.is_some() {
                    self.wrong = Some("two loads at once");
                }
                if matches!(&kind, LoadKind::Make(digest) if self.life.is_in_quarantine(digest)) {
                    self.wrong = Some("what is in quarantine is compiled");
                }
                self.running = Some(ModelLoad { load, stamp, kind, grants: self.grants });
            }
            Effect::Stop => self.running = None,
            Effect::Publish(_, on_probation) => {
                let Some(version) = brought else {
                    self.wrong = Some("nothing was made to be published");
                    return;
                };
                self.active = Some(version);
                if !on_probation {
                    self.good = self.active;
                } else if self.on_probation.iter().all(|other| other.content != version.content) {
                    self.on_probation.push(version);
                }
            }
            Effect::GoBack => self.active = self.good,
            // It is the active one, or was replaced before its verdict came.
            Effect::Keep(version) => {
                let active = self.active.filter(|active| digest(active.content) == version.digest);
                self.good = active.or(brought);
            }
            Effect::Withdraw => self.active = None,
            Effect::LetGo => self.good = None,
            Effect::Regrant => {
                let versions = [&mut self.active, &mut self.good];
                versions.into_iter().flatten().for_each(|version| version.grants = self.grants);
            }
            Effect::Note(quarantine) => self.writing.push(quarantine),
            Effect::Tell(_) => {}
        }
    }

    /// Replaces the numbers of loads: only whether a load is the last one makes a difference.
    fn renumber(&mut self) {
        let last = self.life.load;
        let renumbered = |load: u64| u64::from(load == last);
        self.life.load = renumbered(last);
        self.running.iter_mut().for_each(|running| running.load = renumbered(running.load));
        self.ended.iter_mut().for_each(|(load, ..)| *load = renumbered(*load));
    }

    /// The watcher looks at the file. Before its first look, it reads the notes of an earlier start.
    fn look(&mut self) {
        if !self.life.is_recalled {
            self.tell(LifeEvent::Recalled(self.noted.clone()), None);
            for digest in self.withdrawn.clone() {
                self.tell(withdrawal(digest), None);
            }
        }
        self.tell(LifeEvent::Found(self.found(), false), None);
    }

    /// How the load that runs ends, and the version that it has made.
    fn end(&self, running: &ModelLoad, kinds: &[Kind], is_hindered: bool) -> (LoadEnd, Option<ModelVersion>) {
        let failed = |what: Milestone, error: &str| {
            (LoadEnd::Failed(Trouble { what, error: error.into(), may_pass: is_hindered }), None)
        };
        let made = |digest: &str| {
            let version = ModelVersion { content: content(digest), grants: running.grants };
            (LoadEnd::Made, Some(version))
        };
        let kind = |digest: &str| kinds[usize::from(content(digest))];
        match &running.kind {
            _ if is_hindered => failed(Milestone::Failed, "hindered"),
            LoadKind::Read => {
                let is_same = self.found() == Found::File(running.stamp);
                let read = self.file.filter(|_| is_same).map(|(_, content)| digest(content));
                (read.map_or(LoadEnd::Changed, LoadEnd::Read), None)
            }
            LoadKind::Make(digest) => match kind(digest) {
                Kind::FailsToCompile => failed(Milestone::Failed, "no good"),
                Kind::FailsItsCheck => failed(Milestone::SelfCheckFailed, "no good"),
                Kind::Fine | Kind::Spoils | Kind::Doubtful => made(digest),
            },
            LoadKind::Restore(_, good) => made(&good.digest),
        }
    }

    /// Whether the file has another content than the one that the load is about.
    fn has_changed(&self, running: &ModelLoad) -> bool {
        let now = self.file.map(|(_, content)| digest(content));
        match &running.kind {
            LoadKind::Read => false,
            LoadKind::Make(digest) | LoadKind::Restore(digest, _) => now.as_ref() != Some(digest),
        }
    }

    /// Whether the load waits for its turn to compile. A good version comes back from the cache here, and
    /// needs none.
    fn is_waiting(&self) -> bool {
        let is_compiling = |running: &ModelLoad| matches!(running.kind, LoadKind::Make(_));
        self.is_turn_taken && self.running.as_ref().is_some_and(is_compiling)
    }

    pub(super) fn is_due(&self) -> bool {
        self.life.due().is_some_and(|due| due <= now())
    }

    /// Whether nothing is left to do about the file, and the outcome is right.
    fn is_at_rest(&self, kinds: &[Kind]) -> bool {
        let Some((_, content)) = self.file else { return self.life.candidate == Candidate::Absent };
        if self.life.found != self.found() {
            return false;
        }
        match (&self.life.candidate, kinds[usize::from(content)]) {
            (Candidate::Taken, Kind::Fine | Kind::Spoils | Kind::Doubtful) => {
                self.active.is_some_and(|active| active.content == content)
            }
            // A content is in quarantine by the host's verdict or by an operator's order (`life.banned`). The
            // good version serves in its place, if there is one that may. Only an operator puts a fine
            // content there.
            (Candidate::Quarantined, kind) => {
                let quarantine = self.life.banned(&digest(content));
                let may_serve = |good: &Good| !self.life.is_in_quarantine(&good.digest);
                let has_good = quarantine.is_some_and(|bad| bad.good.as_ref().is_some_and(may_serve))
                    || self.life.serving.good().is_some();
                let is_rightly_there = kind != Kind::Fine || self.life.is_in_quarantine(&digest(content));
                is_rightly_there && (self.active.is_some() || !has_good)
            }
            (Candidate::Refused, Kind::FailsToCompile | Kind::FailsItsCheck) => true,
            _ => false,
        }
    }
}

impl Model for System {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            life: new_life(),
            lacks: self.lacks,
            loses: self.loses,
            file: None,
            stamps: 0,
            running: None,
            ended: Vec::new(),
            active: None,
            good: None,
            on_probation: Vec::new(),
            grants: 0,
            is_turn_taken: false,
            noted: None,
            writing: Vec::new(),
            left: self.budget,
            banned: None,
            withdrawn: BTreeSet::new(),
            wrong: None,
        }]
    }

    fn actions(&self, world: &World, acts: &mut Vec<Act>) {
        let left = &world.left;
        if left.changes > 0 {
            acts.extend((0..self.contents.len() as u8).map(Act::Put));
            acts.extend(world.file.map(|_| Act::Vanish));
        }
        let is_wanted = world.life.candidate != Candidate::Unwanted;
        acts.extend((left.grants > 0 && is_wanted).then_some(Act::Grant));
        acts.extend((left.removals > 0 && is_wanted).then_some(Act::Unwant));
        acts.extend((left.restarts > 0).then_some(Act::Restart));
        acts.push(Act::Look);
        if world.life.due().is_some() && !world.is_due() {
            acts.push(Act::Wait);
        }
        if let Some(running) = &world.running {
            acts.extend((!world.is_waiting()).then_some(Act::End(false)));
            acts.extend((left.hindrances > 0).then_some(Act::End(true)));
            acts.extend(world.has_changed(running).then_some(Act::Change));
        }
        for (n, (_, end, _)) in world.ended.iter().enumerate() {
            acts.push(Act::Hear(n, true));
            acts.extend((*end == LoadEnd::Made && left.doubts > 0).then_some(Act::Hear(n, false)));
        }
        for (n, version) in world.on_probation.iter().enumerate() {
            let kind = self.contents[usize::from(version.content)];
            acts.extend((kind != Kind::Spoils).then_some(Act::Judge(n, true)));
            acts.extend((kind != Kind::Fine).then_some(Act::Judge(n, false)));
        }
        if left.orders > 0 {
            let contents = 0..self.contents.len() as u8;
            acts.extend(contents.clone().map(Act::Withdraw));
            acts.extend(contents.map(Act::Lift));
        }
        acts.extend((0..world.writing.len()).map(Act::Write));
        acts.extend((left.neighbours > 0).then_some(Act::Neighbour));
        acts.extend((world.is_turn_taken && self.makes_room).then_some(Act::MakeRoom));
    }

    fn next_state(&self, last: &World, act: Act) -> Option<World> {
        let mut world = World { left: last.left.without(act), ..last.clone() };
        match act {
            Act::Put(content) => {
                world.stamps += 1;
                world.file = Some((world.stamps, content));
            }
            Act::Vanish => world.file = None,
            Act::Grant => {
                world.grants += 1;
                world.tell(LifeEvent::Granted, None);
            }
            Act::Unwant => world.tell(LifeEvent::Unwanted, None),
            Act::Restart => {
                let World { file, stamps, grants, noted, left, withdrawn, .. } = world;
                let banned = noted.as_ref().map(|noted| noted.digest.clone());
                let new = self.init_states().remove(0);
                world = World { file, stamps, grants, noted, left, banned, withdrawn, ..new };
            }
            Act::Look => world.look(),
            Act::Wait => world.life.falls_due(now()),
            Act::End(is_hindered) => {
                let running = world.running.take()?;
                let (end, made) = world.end(&running, self.contents, is_hindered);
                world.ended.push((running.load, end, made));
            }
            Act::Change => {
                let running = world.running.take()?;
                world.ended.push((running.load, LoadEnd::Changed, None));
            }
            Act::Hear(n, good_holds) => {
                let (load, end, made) = world.ended.remove(n);
                world.tell(LifeEvent::Ended { load, end, good_holds }, made);
            }
            Act::Judge(n, is_good) => {
                let version = world.on_probation.remove(n);
                let bad = ProbationVerdict::Bad("bad".into());
                let verdict = if is_good { ProbationVerdict::Good } else { bad };
                let judged = Good { digest: digest(version.content), bytes: 1 };
                world.tell(LifeEvent::Judged(judged, verdict), Some(version));
            }
            Act::Withdraw(content) => {
                world.withdrawn.insert(digest(content));
                world.tell(withdrawal(digest(content)), None);
            }
            Act::Lift(content) => {
                world.withdrawn.remove(&digest(content));
                world.banned.take_if(|banned| *banned == digest(content));
                world.tell(LifeEvent::Lifted(digest(content)), None);
            }
            Act::Neighbour => world.is_turn_taken = true,
            Act::MakeRoom => world.is_turn_taken = false,
            Act::Write(n) => {
                world.noted = world.writing.remove(n);
                world.tell(LifeEvent::Noted, None);
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<System>> {
        checks::properties()
    }
}

impl System {
    /// Whether the plugin comes to rest although nothing else happens: nobody has to change a file, and no
    /// verdict has to come.
    pub(super) fn comes_to_rest(&self, world: &World) -> bool {
        let mut world = world.clone();
        for _ in 0..16 {
            let act = match &world.running {
                Some(running) if world.has_changed(running) => Act::Change,
                Some(_) if world.is_waiting() && self.makes_room => Act::MakeRoom,
                Some(_) if world.is_waiting() => return false,
                Some(_) => Act::End(false),
                None if !world.ended.is_empty() => Act::Hear(0, true),
                None if world.life.candidate == Candidate::Unwanted => return world.active.is_none(),
                None if world.is_at_rest(self.contents) => return true,
                None if world.life.due().is_some() && !world.is_due() => Act::Wait,
                None => Act::Look,
            };
            let Some(next) = self.next_state(&world, act) else { return false };
            world = next;
        }
        false
    }
}

impl Life {
    /// Makes everything due that waits for a time.
    fn falls_due(&mut self, now: Instant) {
        if let Candidate::Settling(until) = &mut self.candidate {
            *until = now;
        }
        self.failed.iter_mut().for_each(|failed| failed.falls_due(now));
        self.shown.retry_at.iter_mut().for_each(|at| *at = now);
    }
}
