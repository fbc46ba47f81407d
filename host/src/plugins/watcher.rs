//! Watches the plugins folder, tells the plugins what it finds, and begins the loads that they ask for.
//!
//! In: hints that something changed (`watch`), and a look at every file from time to time, for changes
//! without a hint. Out: events for `registry`; loads, in a task for each file, so that no plugin waits for
//! another one's file.
//!
//! A panic here, in a load, in a step of a plugin's life, or in the background work of a plugin ends the
//! watcher, and `Plugins::unwatched` returns. Not here: what follows from an event (`life`), what a load does
//! (`loads`), the order of reading and compiling (`line`), how hints come about (`watch`).

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::catalog::Plugins;
use super::life::{Candidate, Life, LifeEvent};
use super::line::{self, Line};
use super::loader::Loader;
use super::loads::{Workshop, blocking};
use super::retries::Pauses;
use crate::file::{self, Found};
use crate::sandbox::CHECK_TIMEOUT;
use crate::watch::{FolderWatch, RESCAN};

/// How long the first scan waits for files that somebody is still writing.
const FIRST_SCAN: Duration = Duration::from_secs(10);
/// How long the first scan waits for registries, if there is no file of an earlier pull.
const FIRST_PULLS: Duration = Duration::from_secs(60);

pub(super) struct Watcher {
    workshop: Workshop,
    loads: JoinSet<()>,
    folder: FolderWatch,
}

/// Times that tests shorten.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// How long a self-check may take.
    pub(super) check: Duration,
    /// How long a content that failed waits for its next try.
    pub(super) pauses: Pauses,
    /// How long a file is compiled before others are compiled beside it.
    pub(super) patience: Duration,
}

impl Default for Times {
    fn default() -> Times {
        Times { check: CHECK_TIMEOUT, pauses: Pauses::default(), patience: line::PATIENCE }
    }
}

impl Watcher {
    pub(super) fn new(loader: Loader, registry: Plugins, times: Times) -> Watcher {
        let workshop = Workshop { loader, registry, line: Line::new(times.patience), check: times.check };
        let folder = FolderWatch::new([workshop.registry.0.folders.own.clone()]);
        Watcher { workshop, loads: JoinSet::new(), folder }
    }

    /// Tries every file that is there, then watches until it is told to stop.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let watching = async {
            self.first_scan().await;
            self.workshop.registry.0.scanned.cancel();
            loop {
                self.step().await;
            }
        };
        stop.run_until_cancelled(watching).await;
    }

    /// Tries every file that is there once.
    async fn first_scan(&mut self) {
        let (mut end, pulls_end) = (None, Instant::now() + FIRST_PULLS);
        // This is asked before each scan, which then finds what was pulled.
        let mut is_awaited = self.awaits_pulls();
        self.scan().await;
        loop {
            let plugins = self.workshop.registry.entries();
            let any = |ask: fn(&Life) -> bool| plugins.iter().any(|plugin| plugin.life(ask));
            // Plugins that failed have been tried. A retry may fail for ever.
            let is_pulling = is_awaited && Instant::now() < pulls_end;
            if !is_pulling && !any(|life| !life.is_recalled || life.is_trying()) {
                if !any(Life::is_settling) {
                    break;
                }
                // The time counts once no load is left, which may take minutes.
                if Instant::now() > *end.get_or_insert_with(|| Instant::now() + FIRST_SCAN) {
                    let dir = self.workshop.registry.0.folders.own.display();
                    tracing::warn!(%dir, "plugin files keep changing; going on without them for now");
                    break;
                }
            }
            let awaits = self.awaits_pulls();
            if self.step().await {
                is_awaited = awaits;
            }
        }
        for plugin in self.workshop.registry.entries() {
            if plugin.life(|life| life.candidate == Candidate::Absent) {
                let path = plugin.origin.path();
                let path = path.display();
                tracing::warn!(plugin = %plugin.name, %path, "plugin missing: its queues wait for it");
            }
        }
    }

    /// Whether the first file of a plugin may still come from a registry.
    fn awaits_pulls(&self) -> bool {
        self.workshop.registry.entries().iter().any(|plugin| plugin.origin.awaits_first_pull())
    }

    /// Waits for a hint, for the next time that is due, or for the end of a load. Returns whether it has
    /// looked at all files then.
    async fn step(&mut self) -> bool {
        let registry = &self.workshop.registry;
        let next = registry.entries().iter().filter_map(|plugin| plugin.life(Life::due)).min();
        let rescan = Instant::now() + RESCAN;
        tokio::select! {
            () = self.folder.hint() => {}
            () = registry.0.updated.notified() => {}
            () = registry.0.unwatched.cancelled() => panic!("a plugin's step or its work has failed"),
            Some(ended) = self.loads.join_next() => match ended {
                // The plugin would wait for ever for a load that panicked. So the watcher panics, too, and
                // `/readyz` tells of that.
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                // The loads on a file are done or were stopped, or the runtime ends.
                Ok(()) | Err(_) => return false,
            },
            () = tokio::time::sleep_until(next.map_or(rescan, |next| next.min(rescan)).into()) => {}
        }
        self.scan().await;
        true
    }

    /// Looks at all files, and begins the loads that follow.
    async fn scan(&mut self) {
        // The watch comes before the look: what happens in between is then a hint.
        if let Err(error) = self.folder.arm().await {
            let dir = self.workshop.registry.0.folders.own.display();
            let seconds = RESCAN.as_secs();
            tracing::warn!(%dir, %error, "cannot watch the plugins folder; looking at it every {seconds} s \
                instead");
        }
        let plugins = self.workshop.registry.entries();
        // A folder on a network may take its time to answer.
        let look = move || {
            let found = plugins.into_iter().map(|plugin| {
                plugin.recall();
                let found = file::look(&plugin.origin.path());
                (plugin, found)
            });
            found.collect::<Vec<_>>()
        };
        let Some(mut found) = blocking(look).await else { return };
        // Small files come before those that take minutes to compile.
        found.sort_by_key(|(_, found)| found.bytes());
        for (plugin, found) in found {
            plugin.look(Instant::now());
            let is_old = matches!(found, Found::File(stamp) if stamp.is_old());
            if let Some(work) = plugin.tell(LifeEvent::Found(found, is_old)) {
                self.workshop.begin(&mut self.loads, work);
            }
        }
    }
}
