//! One plugin in the host: the life of its versions, the versions themselves, and its figures.
//!
//! In: events, from the watcher, from attempts and from a change of the configuration. Out: the version that
//! attempts begin on, as a value that can be watched; the job that an event asks for; what is shown to
//! people.
//!
//! Each event is one step of `life`, and its effects are carried out under the same lock, so nobody sees half
//! of them. Not here: what follows from an event (`life`), how a job is done (`jobs`), what is logged
//! (`news`).

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::figures::Figures;
use super::history::{History, What};
use super::life::{self, Effect, JobEnd, JobKind, Life, LifeEvent, Serving, short};
use super::loader::Prepared;
use super::locked::Locked;
use super::probation::Probation;
use super::quarantine::{Good, Lineage, Notes, Quarantine};
use super::retries::Pauses;
use super::status::PluginStatus;
use super::version::{Version, WhenJudged};
use crate::clock::{ms, now_ms};
use crate::config;
use crate::file::Stamp;
use crate::queue::orders::VersionOrder;
use crate::sandbox::Handler;

/// One plugin in the registry.
pub(super) struct PluginEntry {
    pub(super) name: Arc<str>,
    /// Path of its file.
    pub(super) path: PathBuf,
    pub(super) figures: Arc<Figures>,
    active: watch::Sender<Option<Arc<Version>>>,
    notes: Notes,
    /// Cancelled when a step of this life is lost.
    unwatched: CancellationToken,
    record: Mutex<Record>,
    /// Held while the good versions are noted, so that the last note is the newest.
    noting: Mutex<()>,
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
    /// The last order of an operator about a version.
    order: Option<VersionOrder>,
    /// The result of the job that runs, or ran last.
    pub(super) prepared: Option<Prepared>,
    /// Ends the job that runs.
    stop: CancellationToken,
    /// When that job began, without the wait for its turn.
    pub(super) began: Instant,
    /// Probations that attempts may still bring to an end.
    probations: Vec<(String, Weak<Probation>)>,
    loaded_at_ms: u64,
    pub(super) history: History,
}

/// A job that is to be done, and what it needs.
pub(super) struct Work {
    pub(super) job: u64,
    pub(super) stamp: Stamp,
    pub(super) kind: JobKind,
    pub(super) grants: config::Plugin,
    /// The result of the job before.
    pub(super) handler: Option<Handler>,
    pub(super) stop: CancellationToken,
}

/// The objects that come with an event.
pub(super) enum Brought {
    Nothing,
    Prepared(Prepared),
    /// The version whose probation has ended.
    Version(Arc<Version>),
}

impl PluginEntry {
    pub(super) fn new(
        name: &str,
        path: PathBuf,
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
            order: None,
            prepared: None,
            stop: CancellationToken::new(),
            began: Instant::now(),
            probations: Vec::new(),
            loaded_at_ms: 0,
            history: History::default(),
        };
        PluginEntry {
            name: name.into(),
            path,
            figures: Arc::default(),
            active: watch::Sender::new(None),
            notes,
            unwatched,
            record: Mutex::new(record),
            noting: Mutex::new(()),
        }
    }

    /// Takes one step of the plugin's life. Gives the job that it asks for.
    pub(super) fn tell(self: &Arc<Self>, event: LifeEvent, brought: Brought) -> Option<Work> {
        self.step(&mut self.record(), event, brought)
    }

    /// Other grants, or the same, from now on.
    pub(super) fn grant(self: &Arc<Self>, grants: &config::Plugin) {
        let (mut record, since) = (self.record(), Instant::now());
        let differences = record.grants.differences(grants);
        if record.grants == *grants {
            return;
        }
        record.grants = grants.clone();
        self.step(&mut record, LifeEvent::Granted, Brought::Nothing);
        let (reason, took) = (format!("other {}", differences.join(", ")), since.elapsed());
        let digest = record.life.serving.active().map(|active| active.digest.clone());
        if digest.is_some() {
            record.history.add(What::Regranted, digest.as_deref(), Some(took), Some(&reason));
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

    /// Looks, once, what an earlier start had put in quarantine, and which versions were good. Blocking.
    pub(super) fn recall(self: &Arc<Self>) {
        if self.life(|life| life.is_recalled) {
            return;
        }
        let (noted, lineage) = (self.notes.read(&self.name), self.notes.read_lineage(&self.name));
        let mut record = self.record();
        record.lineage = lineage.unwrap_or_default();
        self.step(&mut record, LifeEvent::Recalled(noted), Brought::Nothing);
        // A quarantine that was lifted before this start is not lifted again: it may be a newer one.
        if let Some(order) = record.order.clone().filter(|order| order.withdrawn) {
            self.obey(&mut record, order);
        }
    }

    /// The last order of an operator about a version, or the same one as before.
    pub(super) fn order(self: &Arc<Self>, order: &VersionOrder) {
        let mut record = self.record();
        if record.order.as_ref() == Some(order) {
            return;
        }
        record.order = Some(order.clone());
        if record.life.is_recalled {
            self.obey(&mut record, order.clone());
        }
    }

    fn obey(self: &Arc<Self>, record: &mut LockedRecord<'_>, order: VersionOrder) {
        let VersionOrder { version: digest, withdrawn, why, .. } = order;
        let event = if withdrawn {
            let good = record.lineage.before(&digest).cloned();
            LifeEvent::Withdrawn(Quarantine { digest, why: format!("withdrawn: {why}"), good })
        } else {
            LifeEvent::Lifted(digest)
        };
        let work = self.step(record, event, Brought::Nothing);
        debug_assert!(work.is_none(), "an order begins no job");
    }

    /// Ends a probation whose time is over.
    pub(super) fn look(&self, now: Instant) {
        let active = self.active.borrow().clone();
        active.iter().for_each(|version| version.look(now));
    }

    /// A job has its turn.
    pub(super) fn begins(&self) {
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

    fn step(
        self: &Arc<Self>,
        record: &mut LockedRecord<'_>,
        mut event: LifeEvent,
        brought: Brought,
    ) -> Option<Work> {
        // Attempts and changes of the configuration take steps too, and the life must not go on after a step
        // that was lost. So a panic ends the watcher, wherever it happens.
        let unwatched = self.unwatched.clone().drop_guard();
        if let LifeEvent::Ended(_, JobEnd::Checked(_, good_holds)) = &mut event {
            *good_holds = record.good.as_ref().is_some_and(|good| good.probation.is_good());
        }
        let is_awaited = record.life.awaits(&event);
        // A copy: should the step panic, the life is what it was before.
        let (life, effects) = life::step(record.life.clone(), event, Instant::now());
        record.life = life;
        let told = match brought {
            Brought::Nothing => None,
            Brought::Prepared(prepared) => {
                let old = if is_awaited { record.prepared.replace(prepared) } else { Some(prepared) };
                record.drop_later(old);
                None
            }
            Brought::Version(version) => Some(version),
        };
        let mut work = None;
        for effect in effects {
            work = self.carry_out(record, effect, told.as_ref()).or(work);
        }
        if !record.life.candidate.has_job() {
            let old = record.prepared.take();
            record.drop_later(old);
        }
        unwatched.disarm();
        work
    }

    fn carry_out(
        self: &Arc<Self>,
        record: &mut LockedRecord<'_>,
        effect: Effect,
        told: Option<&Arc<Version>>,
    ) -> Option<Work> {
        let active = self.active.borrow().clone();
        match effect {
            Effect::Begin { job, stamp, kind } => {
                record.stop = CancellationToken::new();
                let handler = record.prepared.as_ref().map(|prepared| prepared.handler.clone());
                let (grants, stop) = (record.grants.clone(), record.stop.clone());
                return Some(Work { job, stamp, kind, grants, handler, stop });
            }
            Effect::Stop => record.stop.cancel(),
            Effect::Publish(version, on_probation) => {
                let prepared = record.prepared.take().expect("it was made and checked before");
                let probation = record.probation(&version, on_probation);
                let (name, figures) = (self.name.clone(), self.figures.clone());
                let judged = self.when_judged();
                let version = Version::new(name, figures, version, prepared, probation, judged);
                let version = Arc::new(version);
                if !on_probation {
                    record.set_good(Some(version.clone()));
                    self.is_good(record, &version);
                }
                self.activate(record, Some(version));
            }
            Effect::GoBack => {
                let good = record.good.clone();
                self.activate(record, good);
            }
            Effect::Keep(version) => {
                let good = active.filter(|active| active.digest == version.digest).or(told.cloned());
                good.iter().for_each(|good| self.is_good(record, good));
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
            Effect::Note(quarantine) => {
                self.in_background(move |entry| {
                    entry.notes.write(&entry.name, quarantine.as_ref());
                    entry.tell(LifeEvent::Noted, Brought::Nothing);
                });
            }
            Effect::Tell(news) => {
                let since = told.map(|version| version.since.elapsed());
                record.publish_news(self, news, since, active.as_deref());
            }
        }
        None
    }

    /// A version is the one to go back to from now on. The next start knows it, and the one before it.
    fn is_good(self: &Arc<Self>, record: &mut Record, version: &Version) {
        let good = Good { digest: version.digest.clone(), bytes: version.bytes };
        if record.lineage.add(good) {
            self.in_background(|entry| {
                let _turn = entry.noting.lock().unwrap_or_else(PoisonError::into_inner);
                let lineage = entry.record().lineage.clone();
                entry.notes.write_lineage(&entry.name, &lineage);
            });
        }
    }

    /// Versions live as long as their attempts, and do not keep the plugin.
    fn when_judged(self: &Arc<Self>) -> Arc<WhenJudged> {
        let entry = Arc::downgrade(self);
        Arc::new(move |version, verdict| {
            let Some(entry) = entry.upgrade() else { return };
            let good = Good { digest: version.digest.clone(), bytes: version.bytes };
            let work = entry.tell(LifeEvent::Judged(good, verdict), Brought::Version(version.clone()));
            debug_assert!(work.is_none(), "a verdict begins no job");
        })
    }

    /// Does what may block. The life waits for it, so a panic in it ends the watcher, which is told.
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

    /// Nobody is told of none after none.
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
        let retry_at_ms = shown
            .retry_at
            .map(|at| now_ms().saturating_add(ms(at.saturating_duration_since(Instant::now()))));
        PluginStatus {
            name: self.name.to_string(),
            state: shown.state,
            digest: active.map(|version| version.digest.clone()),
            on_probation: matches!(record.life.serving, Serving::Probation(..)),
            can_go_back: active
                .map(|version| record.life.can_go_back(record.lineage.before(&version.digest))),
            error: shown.error.clone(),
            retry_at_ms,
            loaded_at_ms: active.map(|_| record.loaded_at_ms),
            compile_ms: active.map(|version| ms(version.took)),
            from_cache: active.map(|version| version.from_cache),
            bytes: active.map(|version| version.bytes),
            figures: self.figures.clone(),
            history: record.history.list(),
        }
    }

    fn record(&self) -> LockedRecord<'_> {
        Locked::new(self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

type LockedRecord<'s> = Locked<MutexGuard<'s, Record>, Box<dyn Send>>;

impl LockedRecord<'_> {
    /// Drops what may take long when the lock is released.
    fn drop_later<T: Send + 'static>(&mut self, old: Option<T>) {
        self.let_go(old.map(|old| Box::new(old) as Box<dyn Send>));
    }

    fn set_good(&mut self, good: Option<Arc<Version>>) {
        let old = std::mem::replace(&mut self.good, good);
        self.drop_later(old);
    }
}

impl Record {
    /// The probation of this content. A copy of the file has the same one: attempts on either bring one
    /// verdict.
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
