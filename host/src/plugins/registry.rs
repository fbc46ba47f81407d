//! One plugin in the host: the life of its versions, the versions themselves, and its figures.
//!
//! In: events from the watcher, from loads, from attempts and from a change of the configuration. Out: the
//! version that attempts begin on, as a value that can be watched; the load that follows from an event; the
//! status that people are shown.
//!
//! Each event is one step of `life`. All effects of a step are carried out under one lock, so that nobody
//! sees some of them without the others. Not here: what follows from an event (`life`), how a load is done
//! (`loads`), what is logged (`news`).

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Instant;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::changes::{Milestone, VersionChanges};
use super::figures::Figures;
use super::life::{self, Candidate, Effect, Life, LifeEvent, LoadEnd, LoadKind, Serving};
use super::loader::Prepared;
use super::locked::Locked;
use super::origin::Origin;
use super::probation::Probation;
use super::quarantine::{Good, Lineage, Notes, Quarantine};
use super::retries::Pauses;
use super::shelf::Shelf;
use super::status::{PluginState, PluginStatus};
use super::version::{Version, WhenJudged};
use crate::builds::{BuildNote, Builds, short};
use crate::clock::{ms, now_ms};
use crate::config;
use crate::file::Stamp;
use crate::guarded::Guarded;
use crate::queue::orders::{GoodVersion, VersionOrder, Withdrawn};

/// One plugin in the registry.
pub(super) struct PluginEntry {
    pub(super) name: Arc<str>,
    /// Where its file is.
    pub(super) origin: Origin,
    pub(super) figures: Arc<Figures>,
    active: watch::Sender<Option<Arc<Version>>>,
    notes: Notes,
    /// Cancelled when a step of this plugin's life has panicked.
    unwatched: CancellationToken,
    record: Guarded<Record>,
    /// Held while the good versions are noted, so that the last note is the newest.
    noting: Guarded<()>,
}

/// The part of a plugin that events change.
pub(super) struct Record {
    life: Life,
    /// The configured grants.
    grants: config::Plugin,
    /// The version to go back to.
    good: Option<Arc<Version>>,
    /// The good versions, also of the starts before.
    lineage: Lineage,
    /// The list of the good versions that are kept for all hosts.
    listed: Vec<GoodVersion>,
    /// The versions of the list that this host trusts, the newest first.
    trusted: Vec<GoodVersion>,
    /// The versions that operators have withdrawn.
    withdrawn: Withdrawn,
    /// The last order of an operator about any version.
    last_order: Option<VersionOrder>,
    /// Ends the load that runs.
    stop: CancellationToken,
    /// When that load began, without the wait for its turn.
    pub(super) began: Instant,
    /// The probations that attempts still run under, by the digest of their version.
    probations: Vec<(String, Weak<Probation>)>,
    loaded_at_ms: u64,
    pub(super) changes: VersionChanges,
    /// The builds of the versions that people are shown.
    pub(super) builds: Builds,
}

/// A load that is to be done, with its inputs.
pub(super) struct Work {
    pub(super) plugin: Arc<PluginEntry>,
    pub(super) load: u64,
    pub(super) stamp: Stamp,
    pub(super) kind: LoadKind,
    pub(super) grants: config::Plugin,
    pub(super) stop: CancellationToken,
}

impl PluginEntry {
    pub(super) fn new(
        name: &str,
        origin: Origin,
        grants: config::Plugin,
        notes: Notes,
        pauses: Pauses,
        unwatched: CancellationToken,
    ) -> PluginEntry {
        let record = Record {
            life: Life::new(pauses),
            grants,
            good: None,
            lineage: Lineage::default(),
            listed: Vec::new(),
            trusted: Vec::new(),
            withdrawn: Withdrawn::new(),
            last_order: None,
            stop: CancellationToken::new(),
            began: Instant::now(),
            probations: Vec::new(),
            loaded_at_ms: 0,
            changes: VersionChanges::default(),
            builds: Builds::default(),
        };
        PluginEntry {
            name: name.into(),
            origin,
            figures: Arc::default(),
            active: watch::Sender::new(None),
            notes,
            unwatched,
            record: Guarded::new(record),
            noting: Guarded::new(()),
        }
    }

    /// Takes one step of the plugin's life. Returns the load that it asks for.
    pub(super) fn tell(self: &Arc<Self>, event: LifeEvent) -> Option<Work> {
        self.step(&mut self.record(), event, None, None)
    }

    /// A load has ended, and may have made a version. Returns the load that comes next.
    pub(super) fn ended(self: &Arc<Self>, load: u64, end: LoadEnd, made: Option<Prepared>) -> Option<Work> {
        let mut record = self.record();
        let good_holds = record.good.as_ref().is_some_and(|good| good.probation.is_good());
        self.step(&mut record, LifeEvent::Ended { load, end, good_holds }, made, None)
    }

    /// Takes the configured grants, which may be the same as before.
    pub(super) fn grant(self: &Arc<Self>, grants: &config::Plugin) {
        let (mut record, since) = (self.record(), Instant::now());
        if record.grants.source != grants.source {
            record.grants.source.clone_from(&grants.source);
            self.origin.change(grants.source.clone());
        }
        let differences = record.grants.differences(grants);
        if record.grants == *grants {
            return;
        }
        record.grants = grants.clone();
        self.step(&mut record, LifeEvent::Granted, None, None);
        let (reason, took) = (format!("other {}", differences.join(", ")), since.elapsed());
        let digest = record.life.serving.active().map(|active| active.digest.clone());
        if digest.is_some() {
            record.changes.add(Milestone::Regranted, digest.as_deref(), Some(took), Some(&reason));
        }
        let digest = digest.as_deref().map(short);
        let (plugin, took_ms) = (&*self.name, ms(took));
        tracing::info!(
            plugin,
            digest,
            took_ms,
            reason,
            "plugin has other grants: attempts that begin from now on have them"
        );
    }

    /// Reads, once, which version an earlier start has put in quarantine, and which versions were good.
    /// Blocking.
    pub(super) fn recall(self: &Arc<Self>) {
        if self.life(|life| life.is_recalled) {
            return;
        }
        let (noted, lineage) = (self.notes.read(&self.name), self.notes.read_lineage(&self.name));
        let mut record = self.record();
        record.lineage = lineage.unwrap_or_default();
        self.step(&mut record, LifeEvent::Recalled(noted), None, None);
        // An order from before this start that lifts a quarantine is not carried out: the quarantine that was
        // read may be newer.
        for order in record.withdrawn.clone().into_values() {
            self.withdraw(&mut record, order);
        }
    }

    /// Takes the list of the good versions that are kept for all hosts, which may be the same as before.
    pub(super) fn share(&self, listed: &[GoodVersion], shelf: &Shelf) {
        let mut record = self.record();
        if record.listed != listed {
            record.listed = listed.to_vec();
            record.trusted = shelf.trusted(&self.name, listed);
        }
    }

    /// The version with this digest, if it is kept for all hosts.
    pub(super) fn kept(&self, digest: &str) -> Option<GoodVersion> {
        self.record().trusted.iter().find(|version| version.digest == digest).cloned()
    }

    /// The digest of the version that serves, if it should be kept for all hosts and is not: attempts have
    /// shown that it is good, and its file is there.
    pub(super) fn unkept(&self) -> Option<String> {
        let record = self.record();
        let Serving::Good(good) = &record.life.serving else { return None };
        let is_kept = record.trusted.iter().any(|version| version.digest == good.digest);
        let is_proven = record.good.as_ref().is_some_and(|good| good.probation.is_proven());
        (record.life.candidate == Candidate::Taken && is_proven && !is_kept).then(|| good.digest.clone())
    }

    /// Notes what the file with this digest tells of its build, or why it cannot be read.
    pub(super) fn learn_build(&self, digest: &str, build: Result<BuildNote, String>) {
        match build {
            Err(why) => {
                let (plugin, digest) = (&*self.name, short(digest));
                tracing::warn!(plugin, digest, why, "the plugin's version has no label");
            }
            Ok(build) => {
                let mut record = self.record();
                let shown = record.shown();
                record.builds.retain(|known| shown.contains(known));
                record.builds.add(digest, build);
            }
        }
    }

    /// The build of a version; empty where nothing is known of it.
    pub(super) fn build(&self, digest: &str) -> BuildNote {
        self.record().builds.of(digest).cloned().unwrap_or_default()
    }

    /// Notes that a version is kept for all hosts now.
    pub(super) fn note_kept(&self, version: GoodVersion) {
        self.record().trusted.insert(0, version);
    }

    /// Takes the orders of operators about versions, which may be the same as before.
    pub(super) fn order(self: &Arc<Self>, withdrawn: &Withdrawn, last: Option<&VersionOrder>) {
        let mut record = self.record();
        let before = std::mem::replace(&mut record.withdrawn, withdrawn.clone());
        let last_before = std::mem::replace(&mut record.last_order, last.cloned());
        if !record.life.is_recalled {
            return;
        }
        let lifted = last.filter(|last| !last.withdrawn && last_before.as_ref() != Some(last));
        let gone = before.keys().filter(|version| !withdrawn.contains_key(*version));
        let lifted: BTreeSet<&String> = lifted.map(|last| &last.version).into_iter().chain(gone).collect();
        for digest in lifted {
            self.obey(&mut record, LifeEvent::Lifted(digest.clone()));
        }
        for order in withdrawn.values().filter(|order| before.get(&order.version) != Some(order)) {
            self.withdraw(&mut record, order.clone());
        }
    }

    fn withdraw(self: &Arc<Self>, record: &mut LockedRecord<'_>, order: VersionOrder) {
        let VersionOrder { version: digest, why, .. } = order;
        let good = record.earlier(&digest);
        self.obey(
            record,
            LifeEvent::Withdrawn(Quarantine { digest, why: format!("withdrawn: {why}"), good }),
        );
    }

    fn obey(self: &Arc<Self>, record: &mut LockedRecord<'_>, event: LifeEvent) {
        let work = self.step(record, event, None, None);
        debug_assert!(work.is_none(), "an order begins no load");
    }

    /// Ends a probation whose time is over.
    pub(super) fn look(&self, now: Instant) {
        let active = self.active.borrow().clone();
        active.iter().for_each(|version| version.look(now));
    }

    /// Notes the time at which a load has its turn: to read, and once more to compile.
    pub(super) fn has_turn(&self) {
        self.record().began = Instant::now();
    }

    pub(super) fn life<T>(&self, ask: impl FnOnce(&Life) -> T) -> T {
        ask(&self.record().life)
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Option<Arc<Version>>> {
        self.active.subscribe()
    }

    /// The digests of the versions that serve or may have to, also after the next start.
    pub(super) fn in_use(&self) -> Vec<String> {
        let record = self.record();
        let known = record.lineage.all().map(|good| good.digest.as_str());
        record.life.in_use().chain(known).map(str::to_owned).collect()
    }

    /// Takes one step of the plugin's life. Returns the load that the step asks for. `made` is what a load
    /// has made, and `judged` the version whose probation has ended.
    fn step(
        self: &Arc<Self>,
        record: &mut LockedRecord<'_>,
        event: LifeEvent,
        mut made: Option<Prepared>,
        judged: Option<&Arc<Version>>,
    ) -> Option<Work> {
        // After a step that panicked, the life must not go on, whoever took the step: the watcher, an
        // attempt, or a change of the configuration. So the panic ends the watcher.
        let unwatched = self.unwatched.clone().drop_guard();
        // The step works on a copy: if it panics, the life is as before.
        let (life, effects) = life::step(record.life.clone(), event, Instant::now());
        record.life = life;
        let mut work = None;
        for effect in effects {
            work = self.carry_out(record, effect, &mut made, judged).or(work);
        }
        record.drop_later(made);
        unwatched.disarm();
        work
    }

    /// Carries out one effect of a step. Returns the load that it asks for.
    fn carry_out(
        self: &Arc<Self>,
        record: &mut LockedRecord<'_>,
        effect: Effect,
        made: &mut Option<Prepared>,
        judged: Option<&Arc<Version>>,
    ) -> Option<Work> {
        let active = self.active.borrow().clone();
        match effect {
            Effect::Begin { load, stamp, kind } => {
                record.stop = CancellationToken::new();
                let (plugin, grants, stop) = (self.clone(), record.grants.clone(), record.stop.clone());
                return Some(Work { plugin, load, stamp, kind, grants, stop });
            }
            Effect::Stop => record.stop.cancel(),
            Effect::Publish(version, on_probation) => {
                let prepared = made.take().expect("it was made and checked before");
                let probation = record.probation(&version, on_probation);
                let (name, figures) = (self.name.clone(), self.figures.clone());
                let judged = self.when_judged();
                let version = Version::new(name, figures, version, prepared, probation, judged);
                let version = Arc::new(version);
                if !on_probation {
                    record.set_good(Some(version.clone()));
                    self.note_good(record, &version);
                }
                self.activate(record, Some(version));
            }
            Effect::GoBack => {
                let good = record.good.clone();
                self.activate(record, good);
            }
            Effect::Keep(version) => {
                let good = active.filter(|active| active.digest == version.digest);
                let good = good.or(judged.cloned());
                good.iter().for_each(|good| self.note_good(record, good));
                record.set_good(good);
            }
            Effect::Withdraw => self.activate(record, None),
            Effect::LetGo => record.set_good(None),
            Effect::Regrant => {
                let grants = record.grants.clone();
                let regranted = |version: &Arc<Version>| version.regranted(&grants);
                let (good, active) = (record.good.as_ref().map(regranted), active.as_ref().map(regranted));
                record.set_good(good);
                self.set_active(record, active);
            }
            Effect::Note(quarantine) => self.in_background(move |entry| {
                entry.notes.write(&entry.name, quarantine.as_ref());
                entry.tell(LifeEvent::Noted);
            }),
            Effect::Tell(news) => {
                let since = judged.map(|version| version.since.elapsed());
                record.publish_news(self, news, since, active.as_deref());
            }
        }
        None
    }

    /// Notes that a version is the one to go back to from now on. The next start knows it, and the one
    /// before.
    fn note_good(self: &Arc<Self>, record: &mut Record, version: &Version) {
        let good = Good { digest: version.digest.clone(), bytes: version.bytes };
        if record.lineage.add(good) {
            self.in_background(|entry| {
                let _turn = entry.noting.lock();
                let lineage = entry.record().lineage.clone();
                entry.notes.write_lineage(&entry.name, &lineage);
            });
        }
    }

    /// The callback for the end of a probation. It does not keep the plugin: versions live as long as their
    /// attempts.
    fn when_judged(self: &Arc<Self>) -> Arc<WhenJudged> {
        let entry = Arc::downgrade(self);
        Arc::new(move |version, verdict| {
            let Some(entry) = entry.upgrade() else { return };
            let good = Good { digest: version.digest.clone(), bytes: version.bytes };
            let event = LifeEvent::Judged(good, verdict);
            let work = entry.step(&mut entry.record(), event, None, Some(version));
            debug_assert!(work.is_none(), "a verdict begins no load");
        })
    }

    /// Does work that may block. The life waits for this work, so a panic in it ends the watcher, and
    /// `/readyz` tells of that.
    pub(super) fn in_background(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let entry = self.clone();
        tokio::task::spawn_blocking(move || {
            let unwatched = entry.unwatched.clone().drop_guard();
            work(&entry);
            unwatched.disarm();
        });
    }

    fn activate(&self, record: &mut LockedRecord<'_>, version: Option<Arc<Version>>) {
        record.loaded_at_ms = now_ms();
        self.set_active(record, version);
    }

    /// Publishes the active version. No version after no version is no change.
    fn set_active(&self, record: &mut LockedRecord<'_>, version: Option<Arc<Version>>) {
        if version.is_some() || self.active.borrow().is_some() {
            let old = self.active.send_replace(version);
            record.drop_later(old);
        }
    }

    pub(super) fn status(&self) -> PluginStatus {
        let record = self.record();
        let active = self.active.borrow().clone();
        let active = active.as_ref();
        let shown = &record.life.shown;
        let compiling = match &record.life.candidate {
            Candidate::InWork(LoadKind::Make(digest)) => {
                Some((digest.to_string(), now_ms().saturating_sub(ms(record.began.elapsed()))))
            }
            _ => None,
        };
        let earlier = active.and_then(|version| record.earlier(&version.digest));
        let back_to = active.and_then(|_| record.life.goes_back_to(earlier.as_ref()));
        let mut builds = record.builds.clone();
        record.trusted.iter().for_each(|version| {
            if builds.of(&version.digest).is_none() {
                builds.add(&version.digest, version.build.clone());
            }
        });
        let pull = self.origin.trouble();
        let retry_at = shown.retry_at.or(pull.as_ref().map(|pull| pull.retry_at));
        let wait = |until: Instant| ms(until.saturating_duration_since(Instant::now()));
        PluginStatus {
            name: self.name.to_string(),
            state: match &pull {
                // The tag names something that cannot be used, like a file that cannot be used.
                Some(pull) if pull.is_refusal && shown.state == PluginState::Active => PluginState::Failed,
                _ => shown.state,
            },
            digest: active.map(|version| version.digest.clone()),
            on_probation: matches!(record.life.serving, Serving::Probation(..)),
            can_go_back: active.map(|_| back_to.is_some()),
            back_to: back_to.map(|good| good.digest.clone()),
            compiling,
            error: shown.error.clone().or_else(|| pull.as_ref().map(|pull| pull.error.clone())),
            retry_at_ms: retry_at.map(|at| now_ms().saturating_add(wait(at))),
            loaded_at_ms: active.map(|_| record.loaded_at_ms),
            compile_ms: active.map(|version| ms(version.took)),
            from_cache: active.map(|version| version.from_cache),
            bytes: active.map(|version| version.bytes),
            figures: self.figures.clone(),
            history: record.changes.list(),
            builds,
        }
    }

    /// The grants that the configuration of this host has.
    pub(super) fn grants(&self) -> config::Plugin {
        self.record().grants.clone()
    }

    fn record(&self) -> LockedRecord<'_> {
        Locked::new(&self.record)
    }
}

type LockedRecord<'s> = Locked<'s, Record>;

impl LockedRecord<'_> {
    fn set_good(&mut self, good: Option<Arc<Version>>) {
        let old = std::mem::replace(&mut self.good, good);
        self.drop_later(old);
    }
}

impl Record {
    /// The digests of the versions of which people are shown something.
    fn shown(&self) -> BTreeSet<String> {
        let lineage = self.lineage.all().map(|good| good.digest.as_str());
        let all = self.life.in_use().chain(lineage).chain(self.changes.digests());
        all.map(str::to_owned).collect()
    }

    /// The newest good version that may run in place of this one.
    fn earlier(&self, digest: &str) -> Option<Good> {
        let trusted = self.trusted.iter();
        let trusted = trusted.map(|version| Good { digest: version.digest.clone(), bytes: version.bytes });
        let may_run = |good: &Good| {
            good.digest != digest
                && !self.withdrawn.contains_key(&good.digest)
                && !self.life.is_in_quarantine(&good.digest)
        };
        self.lineage.all().cloned().chain(trusted).find(may_run)
    }

    /// The probation of a version. If the same content was loaded before, both have one probation, and
    /// attempts on both lead to one verdict.
    fn probation(&mut self, version: &Good, on_probation: bool) -> Arc<Probation> {
        if !on_probation {
            return Arc::new(Probation::first());
        }
        self.probations.retain(|(_, probation)| probation.strong_count() > 0);
        let same = self.probations.iter().find(|(digest, _)| *digest == version.digest);
        let same = same.and_then(|(_, probation)| probation.upgrade()).filter(|same| same.is_open());
        same.unwrap_or_else(|| {
            let probation = Arc::new(Probation::new(Instant::now()));
            self.probations.push((version.digest.clone(), Arc::downgrade(&probation)));
            probation
        })
    }
}
