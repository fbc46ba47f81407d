//! The life of a plugin's versions as a pure function of events.
//!
//! In: the life so far, an event (a look at the file, the end of a load, a verdict), and the time. Out: the
//! life after the event, and effects as data. docs/decisions/0010-life-of-a-version.md has the table of
//! states and events.
//!
//! ```text
//! candidate: absent ─▶ settling ─▶ in work: read, then make ─▶ taken      (or refused)
//! serving:                                                     probation ─▶ good ─▶ draining
//!                                                              └ bad ─▶ good; candidate: quarantined
//! ```
//!
//! Not here: IO, clocks, logs and locks (`registry` and `watcher` carry out the effects), when a probation
//! ends (`probation`).

#[cfg(test)]
mod checks;
mod event;
#[cfg(test)]
mod model;
#[cfg(test)]
mod mutants;
mod state;

use std::time::{Duration, Instant};

use super::probation::ProbationVerdict;
use super::quarantine::{Good, Quarantine};
use super::retries::Failed;
use super::status::PluginState;
use crate::builds::short;
use crate::file::{self, Found, SETTLE};
use crate::sandbox::LoadError;
use crate::watch::RESCAN;

pub(super) use event::{Digest, Effect, LifeEvent, LoadEnd, LoadKind, News, Trouble};
pub(super) use state::{Candidate, Life, Serving};
use state::{Noting, Shown};

/// The way out where a version is in quarantine and there is no other version.
const NO_OTHER: &str = "there is no other version to run in its place: put one there, or lift the quarantine";

/// Returns the life after `event`, and the effects to carry out, in their order.
pub(super) fn step(life: Life, event: LifeEvent, now: Instant) -> (Life, Vec<Effect>) {
    let mut step = Step { life, now, effects: Vec::new() };
    step.take(event);
    (step.life, step.effects)
}

struct Step {
    life: Life,
    now: Instant,
    effects: Vec<Effect>,
}

impl Step {
    fn take(&mut self, event: LifeEvent) {
        match event {
            // A quarantine of this start is newer than the note.
            LifeEvent::Recalled(_) if self.life.is_recalled => {}
            LifeEvent::Recalled(noted) => {
                self.life.is_recalled = true;
                self.life.quarantine = noted;
            }
            LifeEvent::Judged(version, ProbationVerdict::Good) => self.passed(version),
            LifeEvent::Judged(version, ProbationVerdict::Bad(why)) => self.found_bad(version, why),
            LifeEvent::Noted => self.noted(),
            LifeEvent::Withdrawn(order) => self.withdrawn(order),
            LifeEvent::Lifted(digest) => self.lifted(digest),
            _ if self.life.candidate == Candidate::Unwanted => {}
            LifeEvent::Unwanted => self.unwanted(),
            LifeEvent::Granted => self.granted(),
            LifeEvent::Found(found, is_old) => self.found(found, is_old),
            LifeEvent::Ended { load, end, good_holds } => self.ended(load, end, good_holds),
        }
    }

    fn ended(&mut self, load: u64, end: LoadEnd, good_holds: bool) {
        // A load that was stopped ends too late.
        if load != self.life.load {
            return;
        }
        let Candidate::InWork(kind) = self.life.candidate.clone() else { return };
        match (kind, end) {
            (_, LoadEnd::Changed) => self.settle(SETTLE),
            (LoadKind::Read, LoadEnd::Read(digest)) => self.read(digest),
            // The cause may pass: too many open files, a folder on a network.
            (LoadKind::Read, LoadEnd::Failed(trouble)) => {
                if self.life.failed.as_ref().is_none_or(|failed| failed.error != trouble.error) {
                    self.refuse(None, trouble);
                }
                self.settle(RESCAN + SETTLE);
            }
            (LoadKind::Make(digest), LoadEnd::Made) => self.publish(digest, good_holds),
            (LoadKind::Make(digest), LoadEnd::Failed(trouble)) => self.refuse(Some(digest), trouble),
            (LoadKind::Restore(_, good), LoadEnd::Made) => self.restored(good),
            (LoadKind::Restore(digest, good), LoadEnd::Failed(trouble)) => {
                self.not_restored(digest, good, trouble);
            }
            // A result of another kind of load is too late as well.
            (LoadKind::Read, LoadEnd::Made) | (_, LoadEnd::Read(_)) => {}
        }
    }

    fn found(&mut self, found: Found, is_old: bool) {
        // A load watches its file itself: a file that was only touched keeps its load.
        if self.life.candidate.has_load() {
            return;
        }
        if found == self.life.found {
            if self.life.due().is_some_and(|due| due <= self.now) {
                self.read_file();
            }
            return;
        }
        self.life.found = found;
        match found {
            Found::Missing => {
                self.life.candidate = Candidate::Absent;
                self.life.failed = None;
                self.show(PluginState::Missing, None, None);
                if let Some(digest) = self.withdraw() {
                    self.tell(News::Removed(digest));
                }
            }
            Found::Other(why) => {
                self.refuse(None, Trouble::lasting(why));
            }
            Found::File(_) if is_old => self.read_file(),
            Found::File(_) => self.settle(SETTLE),
        }
    }

    /// Reads the file when it has stayed the same for `pause`.
    fn settle(&mut self, pause: Duration) {
        self.life.candidate = Candidate::Settling(self.now + pause);
    }

    /// Begins the first load of a file.
    fn read_file(&mut self) {
        let bytes = self.life.found.bytes();
        if bytes > file::MAX_BYTES {
            let error = format!("{}: it has {bytes} bytes", LoadError::TooLarge);
            return self.refuse(None, Trouble::lasting(error));
        }
        // The load may take long, so it is shown where nothing else is.
        if self.life.shown.state == PluginState::Missing {
            let error = "there is a file, which is being compiled and checked, or waits for its turn";
            self.life.shown.error = Some(error.to_owned());
        }
        self.begin(LoadKind::Read);
    }

    /// Decides what to do with the content that was read.
    fn read(&mut self, digest: Digest) {
        let known = self.life.failed.as_ref().filter(|failed| failed.is_of(&digest));
        if self.life.serving.is_active(&digest) {
            // The file was touched, or the good file was put back in place of a bad one.
            self.life.candidate = Candidate::Taken;
            let is_news = self.life.shown.state != PluginState::Active;
            let had_failed = self.life.failed.take().is_some();
            self.show(PluginState::Active, None, None);
            self.lift();
            if is_news || had_failed {
                self.tell(News::ServesAgain(digest, is_news));
            }
        } else if self.life.is_in_quarantine(&digest) {
            self.refuse_quarantined(digest);
        } else if known.is_some_and(|failed| !failed.is_due(self.now)) {
            self.life.candidate = Candidate::Refused;
        } else {
            self.begin(LoadKind::Make(digest));
        }
    }

    /// Lets a version serve that a load has made.
    fn publish(&mut self, digest: Digest, good_holds: bool) {
        // Meanwhile, an attempt that still ran on the same content may have led to a bad verdict.
        if self.life.is_in_quarantine(&digest) {
            return self.refuse_quarantined(digest);
        }
        let new = Good { digest: digest.clone(), bytes: self.life.found.bytes() };
        let good = self.life.serving.good().filter(|good| good_holds && good.digest != digest).cloned();
        let on_probation = good.is_some();
        self.life.serving = match good {
            Some(good) => Serving::Probation(new.clone(), good),
            None => Serving::Good(new.clone()),
        };
        self.life.candidate = Candidate::Taken;
        self.life.failed = None;
        self.show(PluginState::Active, None, None);
        self.effects.push(Effect::Publish(new, on_probation));
        self.tell(News::Loaded(digest, on_probation));
        self.lift();
    }

    /// Refuses a content that is in quarantine, and lets the last good version serve, if there is one.
    fn refuse_quarantined(&mut self, digest: Digest) {
        let Some(Quarantine { why, good, .. }) = self.life.banned(&digest).cloned() else { return };
        let good = good.filter(|good| !self.life.is_in_quarantine(&good.digest));
        let is_alone = self.life.serving == Serving::Absent && good.is_none();
        let why = if is_alone { format!("{why}; {NO_OTHER}") } else { why };
        if self.life.shown.state != PluginState::Quarantined {
            self.tell(News::Refused(digest.clone(), why.clone()));
        }
        self.show(PluginState::Quarantined, Some(why), None);
        self.life.candidate = Candidate::Quarantined;
        match (self.life.serving.clone(), good) {
            (Serving::Absent, Some(good)) => return self.begin(LoadKind::Restore(digest, good)),
            (Serving::Draining(good), _) => {
                self.effects.push(Effect::GoBack);
                self.tell(News::Restored(good.digest.clone(), false));
                self.life.serving = Serving::Good(good);
            }
            _ => {}
        }
        self.life.failed = None;
    }

    /// Lets the last good version serve, which a load has made, while the file's content is in quarantine.
    fn restored(&mut self, good: Good) {
        self.life.candidate = Candidate::Quarantined;
        self.life.failed = None;
        self.effects.push(Effect::Publish(good.clone(), false));
        self.tell(News::Restored(good.digest.clone(), true));
        self.life.serving = Serving::Good(good);
    }

    /// Notes that the last good version cannot run, while the file's content is in quarantine.
    fn not_restored(&mut self, digest: Digest, good: Good, Trouble { error, may_pass, .. }: Trouble) {
        self.life.candidate = Candidate::Quarantined;
        let again = may_pass.then(|| self.life.pauses.next(self.life.failed.as_ref(), &digest));
        let label = short(&good.digest);
        let why = format!("{label} cannot run in its place ({error}): put another version there");
        let before = self.life.shown.error.take().unwrap_or_default();
        self.show(PluginState::Quarantined, Some(format!("{before}; {why}")), again);
        self.life.failed = Some(Failed::new(Some(digest), String::new(), again, self.now));
        self.tell(News::NotRestored(good.digest, error, again));
    }

    /// Running attempts keep their grants. Attempts that begin from now on have the configured ones.
    fn granted(&mut self) {
        self.effects.push(Effect::Regrant);
        // A content that failed may work with the new grants.
        let is_done = match self.life.candidate {
            Candidate::Quarantined => self.life.serving.active().is_some(),
            Candidate::Taken => true,
            _ => false,
        };
        if !is_done {
            self.look_again();
        }
    }

    fn unwanted(&mut self) {
        if self.life.candidate.has_load() {
            self.effects.push(Effect::Stop);
        }
        self.life.candidate = Candidate::Unwanted;
        self.show(PluginState::Missing, None, None);
        self.withdraw();
    }

    /// Lets no version serve from now on. Returns the digest of the version that did.
    fn withdraw(&mut self) -> Option<Digest> {
        let active = self.life.serving.active()?.digest.clone();
        self.effects.push(Effect::Withdraw);
        let good = self.life.serving.good().cloned();
        self.life.serving = good.map_or(Serving::Absent, Serving::Draining);
        Some(active)
    }

    /// A version has passed its probation.
    fn passed(&mut self, version: Good) {
        let digest = version.digest.clone();
        if self.life.is_in_quarantine(&digest) {
            // An operator has withdrawn it meanwhile, or other attempts on it came to another verdict.
            return;
        }
        let serving = match self.life.serving.clone() {
            Serving::Probation(new, _) if new.digest == digest => Serving::Good(new),
            // The version was replaced or removed meanwhile, and is the newest good one.
            Serving::Probation(new, _) => Serving::Probation(new, version.clone()),
            Serving::Draining(_) => Serving::Draining(version.clone()),
            Serving::Good(_) | Serving::Absent => return self.tell(News::Confirmed(digest)),
        };
        self.life.serving = serving;
        self.effects.push(Effect::Keep(version));
        // A version that was replaced may have older grants.
        if !self.life.serving.is_active(&digest) {
            self.effects.push(Effect::Regrant);
        }
        self.tell(News::Confirmed(digest));
    }

    /// A version was found to be bad.
    fn found_bad(&mut self, version: Good, why: String) {
        let digest = version.digest;
        let (reason, good) = match self.life.serving.clone() {
            Serving::Probation(new, good) if new.digest == digest => {
                let reason = format!("rolled back to {}: {why}", short(&good.digest));
                self.life.serving = Serving::Good(good.clone());
                if self.life.candidate == Candidate::Taken {
                    self.life.candidate = Candidate::Quarantined;
                }
                self.show(PluginState::Quarantined, Some(reason.clone()), None);
                self.effects.push(Effect::GoBack);
                self.tell(News::RolledBack { digest: digest.clone(), good: good.digest.clone(), why });
                (reason, good)
            }
            Serving::Draining(good) if good.digest != digest => {
                self.tell(News::BadAfterRemoval(digest.clone(), why.clone()));
                (why, good)
            }
            // A version that does not serve is not rolled back, nor is the good version to itself.
            _ => return self.tell(News::BadAfterReplacement(digest, why)),
        };
        self.tell(News::Quarantined(digest.clone(), reason.clone()));
        self.life.quarantine = Some(Quarantine { digest, why: reason, good: Some(good) });
        self.note();
    }

    /// Withdraws a version by an operator's order: it neither serves nor is kept, whatever its verdict was.
    fn withdrawn(&mut self, order: Quarantine) {
        let Quarantine { digest, why, good: earlier } = order.clone();
        self.life.withdrawn.insert(digest.clone(), order);
        let is = |good: &Good| good.digest == digest;
        // Whether the withdrawn version was to run in place of another one in quarantine.
        let stands_in = |banned: &&mut Quarantine| banned.good.as_ref().is_some_and(is);
        let replace = |banned: &mut Quarantine| {
            // Without an earlier version it stays there, since the withdrawal may be lifted.
            let earlier = earlier.clone().filter(|earlier| earlier.digest != banned.digest);
            banned.good = earlier.or(banned.good.take());
        };
        let was_noted = self.life.quarantine.as_mut().filter(stands_in).map(replace).is_some();
        let was_other = self.life.withdrawn.values_mut().filter(stands_in).map(replace).count() > 0;
        if was_noted {
            self.note();
        }
        if was_noted || was_other {
            self.look_again();
        }
        match self.life.serving.clone() {
            Serving::Probation(new, _) if is(&new) => self.found_bad(new, why),
            Serving::Probation(new, good) if is(&good) => {
                // The version on probation is the only one left.
                self.effects.push(Effect::Keep(new.clone()));
                self.life.serving = Serving::Good(new);
                self.tell(News::Refused(digest, why));
            }
            Serving::Good(good) | Serving::Draining(good) if is(&good) => {
                if self.withdraw().is_some() {
                    self.show(PluginState::Quarantined, Some(why.clone()), None);
                }
                self.life.serving = Serving::Absent;
                self.effects.push(Effect::LetGo);
                self.tell(News::Refused(digest, why));
                self.look_again();
            }
            _ => {}
        }
    }

    /// Takes a version out of quarantine. Its content is loaded like a new one.
    fn lifted(&mut self, digest: Digest) {
        if !self.life.is_in_quarantine(&digest) {
            return;
        }
        self.life.withdrawn.remove(&digest);
        if self.life.quarantine.as_ref().is_some_and(|quarantine| quarantine.digest == digest) {
            self.lift();
        }
        self.tell(News::Lifted(digest));
        if let Candidate::Quarantined | Candidate::InWork(LoadKind::Restore(..)) = self.life.candidate {
            self.look_again();
        }
    }

    /// Reads the file again, as if it was new.
    fn look_again(&mut self) {
        use Candidate::{InWork, Quarantined, Refused, Taken};
        self.life.failed = None;
        match (&self.life.candidate, self.life.found) {
            (InWork(_), _) => {
                self.effects.push(Effect::Stop);
                self.settle(SETTLE);
            }
            (Taken | Quarantined | Refused, Found::File(_)) => self.settle(Duration::ZERO),
            _ => {}
        }
    }

    /// Ends the quarantine, because another content is in the file.
    fn lift(&mut self) {
        if self.life.quarantine.take().is_some() {
            self.note();
        }
    }

    /// Writes the quarantine down for the next start. One note is written at a time.
    fn note(&mut self) {
        if self.life.noting == Noting::Idle {
            self.life.noting = Noting::Busy;
            self.effects.push(Effect::Note(self.life.quarantine.clone()));
        } else {
            self.life.noting = Noting::Outdated;
        }
    }

    fn noted(&mut self) {
        let is_outdated = self.life.noting == Noting::Outdated;
        self.life.noting = Noting::Idle;
        if is_outdated {
            self.note();
        }
    }

    /// Refuses a file that cannot be used. The version that serves stays. A failure without a digest is
    /// noted, too, so that it is news when the good file is put back.
    fn refuse(&mut self, digest: Option<Digest>, Trouble { what, error, may_pass }: Trouble) {
        self.life.candidate = Candidate::Refused;
        let again = digest.as_deref().filter(|_| may_pass);
        let again = again.map(|digest| self.life.pauses.next(self.life.failed.as_ref(), digest));
        self.show(PluginState::Failed, Some(error.clone()), again);
        self.life.failed = Some(Failed::new(digest.clone(), error.clone(), again, self.now));
        self.tell(News::Failed { what, digest, error, again });
    }

    fn begin(&mut self, kind: LoadKind) {
        let Found::File(stamp) = self.life.found else {
            return debug_assert!(false, "a load begins only where a file was found");
        };
        self.life.load += 1;
        self.life.candidate = Candidate::InWork(kind.clone());
        self.effects.push(Effect::Begin { load: self.life.load, stamp, kind });
    }

    fn show(&mut self, state: PluginState, error: Option<String>, again: Option<Duration>) {
        self.life.shown = Shown { state, error, retry_at: again.map(|pause| self.now + pause) };
    }

    fn tell(&mut self, news: News) {
        self.effects.push(Effect::Tell(news));
    }
}
