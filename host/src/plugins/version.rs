//! One version of a plugin that works. Attempts run on it, and their outcomes decide its probation.
//!
//! In: attempts. Out: for each of their tasks the outcome and whether it is charged; for the registry the end
//! of the probation.
//!
//! Not here: the rule of the probation (`probation`), what follows from its end (`life`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::figures::{Figures, VersionFigures};
use super::loader::Prepared;
use super::locked;
use super::probation::{Probation, ProbationVerdict, Ruling};
use super::quarantine::Good;
use crate::builds::short;
use crate::config;
use crate::sandbox::{Attempt, AttemptReport, Ended, Handler};
use crate::task::{FailureKind, Outcome};

/// One version of a plugin that works. Attempts hold it until they end.
pub(crate) struct Version {
    pub plugin: Arc<str>,
    label: Arc<str>,
    /// SHA-256 of the file, in hex.
    pub digest: String,
    pub handler: Handler,
    /// Shared by all versions of the plugin.
    pub figures: Arc<Figures>,
    /// The counts of its attempts, which its queues keep.
    pub own_figures: Arc<VersionFigures>,
    /// Size of the file.
    pub(super) bytes: u64,
    /// How long it took to compile the version, or to load its compiled code.
    pub(super) took: Duration,
    pub(super) from_cache: bool,
    pub(super) since: Instant,
    /// Shared by all copies of this version.
    pub(super) probation: Arc<Probation>,
    judged: Arc<WhenJudged>,
}

/// Tells the registry that the version's probation has ended.
pub(super) type WhenJudged = dyn Fn(&Arc<Version>, ProbationVerdict) + Send + Sync;

/// An attempt that has ended.
#[derive(Debug)]
pub(crate) struct RanAttempt {
    pub duration: Duration,
    /// The last lines that the handler has logged.
    pub last_lines: String,
    pub judged: Judged,
}

/// The consequences of an attempt.
#[derive(Debug)]
pub(crate) enum Judged {
    /// For each task, in their order.
    Each(Vec<(Outcome, Ruling)>),
    /// The call for several tasks failed, or another task made the instance fail. This says nothing about any
    /// of the tasks, nor about the version: each task is to run again by itself.
    Split { kind: FailureKind, message: String },
}

impl Version {
    /// A version that attempts may begin on from now on.
    pub(super) fn new(
        plugin: Arc<str>,
        figures: Arc<Figures>,
        version: Good,
        prepared: Prepared,
        probation: Arc<Probation>,
        judged: Arc<WhenJudged>,
    ) -> Version {
        let (Good { digest, bytes }, Prepared { handler, took, from_cache }) = (version, prepared);
        let label: Arc<str> = format!("{plugin}@{}", short(&digest)).into();
        handler.belongs_to(figures.share.clone(), label.clone());
        let own_figures = figures.version(short(&digest));
        Version {
            label,
            plugin,
            digest,
            handler,
            figures,
            own_figures,
            bytes,
            took,
            from_cache,
            since: Instant::now(),
            probation,
            judged,
        }
    }

    /// The version as people are shown it: `name@digest`, with the first 12 digits.
    pub(crate) fn label(&self) -> Arc<str> {
        self.label.clone()
    }

    /// The first 12 digits of its digest.
    pub(crate) fn short(&self) -> &str {
        short(&self.digest)
    }

    /// Runs one attempt on this version, and counts it. `None`: the attempt was stopped.
    pub(crate) async fn run(self: &Arc<Self>, attempt: Attempt) -> Option<RanAttempt> {
        let tasks = attempt.tasks.clone();
        let AttemptReport { ended, peak_memory, duration, last_lines, .. } =
            self.handler.run(attempt).await?;
        let ran = |judged| Some(RanAttempt { duration, last_lines, judged });
        self.figures.peak_memory.inner().fetch_max(peak_memory, Ordering::Relaxed);
        let outcomes = match ended {
            Ended::Each(outcomes) => outcomes,
            Ended::Failed { kind, message } if tasks.len() == 1 => vec![Outcome::Failed { kind, message }],
            Ended::Failed { kind, message } | Ended::Disturbed { kind, message } => {
                return ran(Judged::Split { kind, message });
            }
        };
        let judged = tasks.iter().zip(outcomes).map(|(task, outcome)| {
            self.figures.record(&outcome);
            // Queues of one plugin may have tasks with the same id.
            let name = format!("{}:{}", task.queue, task.id);
            let (ruling, verdict) = self.probation.judge(&name, &outcome, Instant::now());
            self.found(verdict);
            (outcome, ruling)
        });
        ran(Judged::Each(judged.collect()))
    }

    /// This version with other grants.
    pub(super) fn regranted(&self, grants: &config::Plugin) -> Arc<Version> {
        let handler = self.handler.with_grants(grants);
        handler.belongs_to(self.figures.share.clone(), self.label.clone());
        Arc::new(Version {
            plugin: self.plugin.clone(),
            label: self.label.clone(),
            digest: self.digest.clone(),
            handler,
            figures: self.figures.clone(),
            own_figures: self.own_figures.clone(),
            bytes: self.bytes,
            took: self.took,
            from_cache: self.from_cache,
            since: self.since,
            probation: self.probation.clone(),
            judged: self.judged.clone(),
        })
    }

    /// Ends a probation whose time is over.
    pub(super) fn look(self: &Arc<Self>, now: Instant) {
        self.found(self.probation.look(now));
    }

    fn found(self: &Arc<Self>, verdict: Option<ProbationVerdict>) {
        if let Some(verdict) = verdict {
            (self.judged)(self, verdict);
        }
    }
}

impl Drop for Version {
    fn drop(&mut self) {
        debug_assert!(
            !locked::is_held(),
            "a version of {} is dropped under a lock of the registry",
            self.plugin
        );
    }
}

impl std::fmt::Debug for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Version")
            .field("plugin", &self.plugin)
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}
