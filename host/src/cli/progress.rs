//! The progress of a command, told on a terminal, and its end by Ctrl-C or SIGTERM.
//!
//! In: the steps of a command, and a sentence now and then. Out: one line on stderr that is written over,
//! once the command has taken a second, if stderr is a terminal; and whether the user has pressed Ctrl-C. A
//! command looks at that between two steps, so that it can say how much it has done. A second Ctrl-C ends the
//! process at once.

use std::future::Future;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::anyhow;

use super::exit::{CommandError, CommandResult};
use super::{output, text};
use crate::shutdown::Signals;

/// A command that takes no longer than this tells nothing on its way.
const QUIET: Duration = Duration::from_secs(1);
/// The shortest time between two lines.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a step may go on after Ctrl-C.
const GRACE: Duration = Duration::from_secs(2);
/// The exit code of a process that Ctrl-C ended, as shells have it.
const INTERRUPTED: i32 = 130;

pub(super) struct CommandProgress {
    signals: Signals,
    is_interrupted: bool,
    line: ProgressLine,
}

impl CommandProgress {
    /// From now on Ctrl-C is only noted, so every wait of the command has to be a step.
    pub(super) fn begin() -> CommandResult<CommandProgress> {
        let signals = Signals::listen()?;
        Ok(CommandProgress { signals, is_interrupted: false, line: ProgressLine::new() })
    }

    /// Takes a step, which has two seconds to end after Ctrl-C. None: it did not end, and may have done a
    /// part.
    pub(super) async fn step<T>(&mut self, step: impl Future<Output = T>) -> Option<T> {
        self.run(None, step).await
    }

    /// Takes a step without whose result the command ends. `so_far` says what is done if Ctrl-C cuts it off.
    pub(super) async fn needed<T, E>(
        &mut self,
        so_far: &str,
        step: impl Future<Output = Result<T, E>>,
    ) -> CommandResult<T>
    where
        CommandError: From<E>,
    {
        match self.step(step).await {
            Some(done) => Ok(done?),
            None => Err(interrupted(so_far)),
        }
    }

    /// Takes a step as [`Self::step`] does. While it lasts, its line says `what` it does, and for how long.
    pub(super) async fn long_step<T>(&mut self, what: &str, step: impl Future<Output = T>) -> Option<T> {
        self.run(Some(what), step).await
    }

    async fn run<T>(&mut self, what: Option<&str>, step: impl Future<Output = T>) -> Option<T> {
        let mut step = std::pin::pin!(step);
        let was_interrupted = self.is_interrupted;
        while !self.is_interrupted {
            tokio::select! {
                done = &mut step => return Some(done),
                _ = self.signals.next() => self.is_interrupted = true,
                () = tokio::time::sleep(PAUSE), if what.is_some() => {
                    let time = self.line.begun.elapsed();
                    self.tell(|| format!("{} for {}", what.unwrap_or_default(), text::age(time)));
                }
            }
        }
        self.line.clear();
        if self.line.is_terminal && !was_interrupted {
            output::note("stopping; press Ctrl-C again to end at once");
        }
        tokio::select! {
            done = &mut step => Some(done),
            () = tokio::time::sleep(GRACE) => None,
            _ = self.signals.next() => std::process::exit(INTERRUPTED),
        }
    }

    /// Waits for something that Ctrl-C may cut off at once.
    pub(super) async fn unless_interrupted<T>(&mut self, wait: impl Future<Output = T>) -> Option<T> {
        if self.is_interrupted {
            return None;
        }
        tokio::select! {
            done = wait => Some(done),
            _ = self.signals.next() => {
                self.is_interrupted = true;
                None
            }
        }
    }

    /// Whether Ctrl-C was pressed.
    pub(super) fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// Looks whether Ctrl-C was pressed, for a command that has no steps to wait for.
    pub(super) async fn look(&mut self) -> bool {
        if !self.is_interrupted {
            self.step(tokio::task::yield_now()).await;
        }
        self.is_interrupted
    }

    /// The error of a list that Ctrl-C cut: `found` says what it has, and `next` is the cursor of the rest.
    /// None: the list is whole, as Ctrl-C came during its last step or not at all.
    pub(super) fn cut(self, is_whole: bool, found: &str, next: Option<&str>) -> Option<CommandError> {
        let goes_on = next.map(|next| format!("; --cursor {next} goes on")).unwrap_or_default();
        (self.is_interrupted && !is_whole).then(|| interrupted(&format!("{found}{goes_on}")))
    }

    /// Tells how far the command is, if that is worth a line.
    pub(super) fn tell(&mut self, line: impl FnOnce() -> String) {
        if !self.is_interrupted {
            self.line.tell(line);
        }
    }
}

/// A line on stderr that is written over.
pub(super) struct ProgressLine {
    begun: Instant,
    /// When the last line was written, if one stands there.
    told: Option<Instant>,
    is_terminal: bool,
}

impl ProgressLine {
    pub(super) fn new() -> ProgressLine {
        ProgressLine { begun: Instant::now(), told: None, is_terminal: io::stderr().is_terminal() }
    }

    pub(super) fn tell(&mut self, line: impl FnOnce() -> String) {
        let is_early = self.begun.elapsed() < QUIET || self.told.is_some_and(|told| told.elapsed() < PAUSE);
        if !self.is_terminal || is_early {
            return;
        }
        self.told = Some(Instant::now());
        let width = output::terminal_size(io::stderr()).map_or(80, |(columns, _)| columns);
        let mut stderr = io::stderr();
        let _ = write!(stderr, "\r{}\u{1b}[K", text::cut(&line(), width.saturating_sub(1)));
        let _ = stderr.flush();
    }

    /// Takes the line away, before something else is written.
    fn clear(&mut self) {
        if self.told.take().is_some() {
            let mut stderr = io::stderr();
            let _ = write!(stderr, "\r\u{1b}[K");
            let _ = stderr.flush();
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The error of a command that Ctrl-C ended. `so_far` says what it has done.
pub(super) fn interrupted(so_far: &str) -> CommandError {
    anyhow!("interrupted: {so_far}").into()
}
