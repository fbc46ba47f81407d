//! The host's own log, on stderr.
//!
//! In: a [`LogFormat`] from the command line, directives from `TQHOST_LOG`. Out: the global subscriber of
//! `tracing`, and a [`LogGuard`] that waits for the last lines when it is dropped.
//!
//!     event ─▶ filter ─▶ text | JSON ─▶ LogWriter (bounded) ─▶ a thread ─▶ stderr
//!
//! Code that logs never waits for stderr. If nobody reads the pipe, lines are dropped, and the log says how
//! many once it is read again. If the pipe is closed, all lines are dropped.
//!
//! Not here: what a guest may log (`sandbox`), what the levels mean (docs/monitoring.md).

use std::env;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Condvar, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::guarded::Guarded;

const VARIABLE: &str = "TQHOST_LOG";

/// The directives before those of the variable, which can change each of them. wasmtime_wasi_http is off
/// because it warns at each mistake of a guest.
const BASE: &str = "info,wasmtime=warn,wasmtime_wasi=warn,wasmtime_wasi_http=off,cranelift=warn,notify=warn";

/// Bytes of lines that may wait for stderr. Further lines are dropped.
const MAX_WAITING_BYTES: usize = 4 << 20;

/// How long the process may wait for stderr when it ends.
const FLUSH_WAIT: Duration = Duration::from_secs(1);

/// `--log-format`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, the event's fields at its top level.
    Json,
}

/// Starts logging, once in a process. Keep the guard until the end.
pub(crate) fn init(format: LogFormat) -> anyhow::Result<LogGuard> {
    let directives = match env::var(VARIABLE) {
        Ok(directives) => directives,
        Err(env::VarError::NotPresent) => String::new(),
        Err(env::VarError::NotUnicode(_)) => bail!("{VARIABLE} is not valid UTF-8"),
    };
    let filter = filter(&directives)?;
    let ansi = io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let (lines, guard) = LogWriter::start(io::stderr(), MAX_WAITING_BYTES)
        .context("cannot start the thread that writes the log")?;
    subscriber(format, filter, ansi, lines).try_init().context("logging was already started")?;
    Ok(guard)
}

/// Waits on drop until all lines are written, for [`FLUSH_WAIT`] at most.
#[must_use = "the last lines are lost without it"]
pub(crate) struct LogGuard(LogWriter);

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.0.flush_within(FLUSH_WAIT);
    }
}

fn subscriber<W>(
    format: LogFormat,
    filter: EnvFilter,
    ansi: bool,
    writer: W,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // The library prints its own errors with eprintln!, which panics on a closed stderr, so they are off.
    let builder =
        tracing_subscriber::fmt().with_writer(writer).with_env_filter(filter).log_internal_errors(false);
    match format {
        LogFormat::Text => Box::new(builder.with_ansi(ansi).finish()),
        LogFormat::Json => {
            Box::new(builder.with_ansi(false).json().flatten_event(true).with_span_list(false).finish())
        }
    }
}

fn filter(directives: &str) -> anyhow::Result<EnvFilter> {
    let directives = directives.trim();
    if directives.is_empty() {
        return EnvFilter::builder().parse(BASE).context("the default log filter");
    }
    // The parser takes neither spaces nor empty words.
    let mut words = directives.split(',').map(str::trim).filter(|word| !word.is_empty());
    let tidy = words.clone().collect::<Vec<_>>().join(",");
    // The parser takes a word that is no level for a target, so a misspelt level would change nothing,
    // without any message. Directives with fields, in braces, are left to the parser.
    let is_misspelt = |word: &&str| !word.contains(['=', '[']) && word.parse::<LevelFilter>().is_err();
    if !directives.contains('{')
        && let Some(word) = words.find(is_misspelt)
    {
        bail!(
            "{VARIABLE}: `{word}` is not a level (off, error, warn, info, debug, trace) and not target=level"
        );
    }
    EnvFilter::builder()
        .parse(format!("{BASE},{tidy}"))
        .map_err(|error| anyhow!("{VARIABLE}: `{directives}`: {error}"))
}

/// Lines on their way to a writer that may be slow, stuck or gone. Clones share them.
#[derive(Clone)]
struct LogWriter(Arc<LogBuffer>);

struct LogBuffer {
    waiting: Guarded<PendingLines>,
    /// Notified when lines arrive, and when all lines are written.
    changed: Condvar,
    max_bytes: usize,
}

#[derive(Default)]
struct PendingLines {
    text: Vec<u8>,
    /// The number of lines that were dropped since the last write.
    dropped: u64,
    is_writing: bool,
}

impl LogWriter {
    fn start(out: impl Write + Send + 'static, max_bytes: usize) -> io::Result<(LogWriter, LogGuard)> {
        let lines = LogWriter(Arc::new(LogBuffer {
            waiting: Guarded::default(),
            changed: Condvar::new(),
            max_bytes,
        }));
        let of_thread = lines.clone();
        thread::Builder::new().name("log".to_owned()).spawn(move || of_thread.write_to(out))?;
        Ok((lines.clone(), LogGuard(lines)))
    }

    /// Runs in the thread, until the process ends.
    fn write_to(&self, mut out: impl Write) {
        loop {
            let waiting = self.0.waiting.lock();
            let mut waiting = self
                .0
                .changed
                .wait_while(waiting, |waiting| waiting.text.is_empty())
                .unwrap_or_else(PoisonError::into_inner);
            let text = std::mem::take(&mut waiting.text);
            let dropped = std::mem::take(&mut waiting.dropped);
            waiting.is_writing = true;
            drop(waiting);
            // There is nowhere to report that the log itself cannot be written.
            let _ = out.write_all(&text);
            let _ = out.flush();
            if dropped > 0 {
                tracing::warn!(dropped, "log lines were dropped: stderr was not read fast enough");
            }
            self.0.waiting.lock().is_writing = false;
            self.0.changed.notify_all();
        }
    }

    /// Waits until all lines are written. Returns false if that takes longer than `limit`.
    fn flush_within(&self, limit: Duration) -> bool {
        let waiting = self.0.waiting.lock();
        let unwritten = |waiting: &mut PendingLines| waiting.is_writing || !waiting.text.is_empty();
        let (_waiting, waited) = self
            .0
            .changed
            .wait_timeout_while(waiting, limit, unwritten)
            .unwrap_or_else(PoisonError::into_inner);
        !waited.timed_out()
    }
}

impl Write for LogWriter {
    /// One call is one line, as `tracing_subscriber` writes them.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut waiting = self.0.waiting.lock();
        if waiting.text.len() + line.len() > self.0.max_bytes {
            waiting.dropped += 1;
        } else {
            waiting.text.extend_from_slice(line);
            self.0.changed.notify_all();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LogWriter;

    fn make_writer(&'a self) -> LogWriter {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// In the place of stderr: takes one write for each permission, and passes the text on.
    struct Gate {
        permissions: mpsc::Receiver<()>,
        written: mpsc::Sender<String>,
    }

    impl Write for Gate {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.permissions.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            self.written
                .send(String::from_utf8(text.to_vec()).unwrap())
                .map_err(|_| io::ErrorKind::BrokenPipe)?;
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn gate() -> (Gate, mpsc::Sender<()>, mpsc::Receiver<String>) {
        let (permit, permissions) = mpsc::channel();
        let (written, shown) = mpsc::channel();
        (Gate { permissions, written }, permit, shown)
    }

    fn logged(format: LogFormat, directives: &str, log: impl FnOnce()) -> String {
        let (gate, permit, shown) = gate();
        let (lines, guard) = LogWriter::start(gate, MAX_WAITING_BYTES).unwrap();
        tracing::subscriber::with_default(subscriber(format, filter(directives).unwrap(), false, lines), log);
        for _ in 0..9 {
            permit.send(()).unwrap();
        }
        drop(guard);
        shown.try_iter().collect()
    }

    #[test]
    fn text_is_plain_where_there_is_no_terminal() {
        let text = logged(LogFormat::Text, "", || tracing::info!(task = "t-1", "task done\u{1b}[31m"));
        assert!(text.contains(" INFO tqhost::logging::tests: task done"), "{text}");
        assert!(text.contains("task=\"t-1\"") && !text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn json_has_the_fields_at_its_top() {
        let text = logged(LogFormat::Json, "", || tracing::warn!(task = "t-1", attempt = 2, "trying again"));
        let line: serde_json::Value = serde_json::from_str(text.strip_suffix('\n').unwrap()).unwrap();
        assert_eq!((&line["level"], &line["message"]), (&"WARN".into(), &"trying again".into()));
        assert_eq!((&line["task"], &line["attempt"]), (&"t-1".into(), &2.into()));
        assert!(line["timestamp"].is_string());
    }

    #[test]
    fn noisy_crates_are_quiet_until_they_are_named() {
        let log = || {
            tracing::info!(target: "wasmtime::engine", "one");
            tracing::warn!(target: "cranelift_codegen::isa", "two");
            tracing::debug!(target: "notify::inotify", "three");
            tracing::debug!(target: "tqhost", "four");
            tracing::info!(target: "tqhost", "five");
        };
        let shown = |directives: &str| {
            let text = logged(LogFormat::Text, directives, log);
            ["one", "two", "three", "four", "five"]
                .into_iter()
                .filter(|word| text.contains(word))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(shown(""), "two five");
        assert_eq!(shown("debug"), "two four five");
        assert_eq!(shown("wasmtime=info, notify=trace,"), "one two three five");
        assert_eq!(shown("error"), "two");
        assert_eq!(shown("error,cranelift=off"), "");
    }

    #[test]
    fn a_bad_filter_names_the_variable() {
        for bad in ["verbose", "inof,tqhost=debug", "tqhost=loud", "tqhost=[", "info debug"] {
            let error = format!("{:#}", filter(bad).unwrap_err());
            assert!(error.starts_with("TQHOST_LOG: `"), "{bad}: {error}");
        }
        for good in
            ["", " ", "OFF", "warn", "info,tqhost=debug", "[task{id=1}]=trace", "tqhost::worker=debug,"]
        {
            assert!(filter(good).is_ok(), "{good}");
        }
    }

    #[test]
    fn a_stuck_writer_costs_lines_and_nothing_else() {
        let (gate, permit, shown) = gate();
        let (mut lines, guard) = LogWriter::start(gate, 6).unwrap();
        lines.write_all(b"one\n").unwrap();
        // The thread has taken the line, and waits for the permission to write it.
        while !lines.0.waiting.lock().is_writing {
            thread::yield_now();
        }
        for _ in 0..100 {
            lines.write_all(b"two\n").unwrap();
        }
        assert_eq!(lines.0.waiting.lock().dropped, 99);
        assert!(!lines.flush_within(Duration::ZERO));
        permit.send(()).unwrap();
        permit.send(()).unwrap();
        drop(guard);
        assert_eq!(shown.try_iter().collect::<Vec<_>>(), ["one\n", "two\n"]);
        assert_eq!(lines.0.waiting.lock().dropped, 0);
    }

    #[test]
    fn a_closed_writer_is_not_waited_for() {
        let (gate, permit, _) = gate();
        drop(permit);
        let (mut lines, _guard) = LogWriter::start(gate, 100).unwrap();
        for _ in 0..100 {
            lines.write_all(b"lost\n").unwrap();
            assert!(lines.flush_within(Duration::from_secs(60)));
        }
    }
}
