//! The log of a handler during `tqhost try`: printed at once, or kept for the JSON.
//!
//! In: all log events of this process. Out: the lines of the guest, and the host's warnings on stderr. The
//! sandbox limits the lines of each attempt. Not here: how the sandbox makes events of a guest's output.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::sync::Arc;

use anyhow::Context as _;
use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::super::output::{Paint, Tone, note};
use crate::guarded::Guarded;

/// One line of a handler's log, as JSON. The names are stable.
#[derive(Debug, Clone, Serialize)]
pub(super) struct LogLine {
    pub level: &'static str,
    /// `stdout`, `stderr`, or `log` for wasi:logging.
    pub stream: String,
    pub text: String,
}

/// A layer of `tracing` that takes the lines. Clones share the lines that are kept.
#[derive(Debug, Clone)]
pub(super) struct TrialLog {
    /// How lines are printed. None: lines are kept instead.
    paint: Option<Paint>,
    kept: Arc<Guarded<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    lines: Vec<LogLine>,
    is_muted: bool,
}

impl TrialLog {
    /// Starts to listen, which fails if it is called twice in a process.
    pub(super) fn start(paint: Option<Paint>) -> anyhow::Result<TrialLog> {
        let log = TrialLog { paint, kept: Arc::default() };
        tracing_subscriber::registry().with(log.clone()).try_init().context("logging was already started")?;
        Ok(log)
    }

    /// The lines that were kept since the last call.
    pub(super) fn take(&self) -> Vec<LogLine> {
        std::mem::take(&mut self.kept.lock().lines)
    }

    /// While muted, all lines are dropped.
    pub(super) fn mute(&self, is_muted: bool) {
        self.kept.lock().is_muted = is_muted;
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for TrialLog {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let meta = event.metadata();
        let mut words = Words::default();
        if meta.target() != "guest" {
            if *meta.level() <= Level::WARN && meta.target().starts_with("tqhost") {
                event.record(&mut words);
                note(&format!("tqhost: {}", words.message));
            }
            return;
        }
        event.record(&mut words);
        // An event without a stream is the sandbox's note of a failure, of which the outcome says more.
        if words.stream.is_empty() || self.kept.lock().is_muted {
            return;
        }
        let line = LogLine { level: level(*meta.level()), stream: words.stream, text: words.message };
        match self.paint {
            Some(paint) => {
                let tone = match *meta.level() {
                    Level::ERROR => Tone::Bad,
                    Level::WARN => Tone::Warning,
                    Level::INFO => Tone::Active,
                    _ => Tone::Faint,
                };
                let _ = writeln!(
                    io::stdout(),
                    "{} {}",
                    paint.tone(tone, &format!("{:5} {:6}", line.level, line.stream)),
                    line.text
                );
            }
            None => self.kept.lock().lines.push(line),
        }
    }
}

fn level(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// The fields of an event that are used.
#[derive(Debug, Default)]
struct Words {
    message: String,
    stream: String,
}

impl Visit for Words {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "stream" {
            value.clone_into(&mut self.stream);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        }
    }
}
