//! Turns what a guest prints into log lines of the host.
//!
//! In: bytes on stdout and stderr, messages from wasi:logging. Out: one tracing event with target `guest` for
//! each line; the guest's last words for the error of a failed attempt, and its last lines.
//!
//! The size of a line, of all lines of an attempt, and the rate of a plugin (`log_rate`) are bounded. No
//! output of a guest can end a log line, move the reader's cursor, or show a secret of its plugin.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use strum::IntoStaticStr;
use tracing::Level;

use super::last_lines::LastLines;
use super::last_words::LastWords;
use super::log_rate::Quota;
use super::mask::Mask;
use crate::task::Task;

/// Largest size of one line, in bytes; the rest of a longer line is dropped.
pub(super) const MAX_LINE: usize = 8 * 1024;
/// Largest size of all lines of one attempt, in bytes.
pub(super) const BUDGET: usize = 256 * 1024;
/// Bytes that each line costs beside its text, so that empty lines are not free.
const LINE_COST: usize = 32;

/// The beginning of a message by which a guest tells, shortly before its deadline, where it computes. The
/// event loops of `tqhost new` send it.
const PLACE: &str = "its deadline is near: it computes ";

/// The attempt that a line belongs to.
#[derive(Debug, Clone)]
pub(super) struct Subject {
    /// Each line of a batch has the id of the first task. One line before the others lists all ids.
    tasks: Arc<Vec<Task>>,
    plugin: Arc<str>,
    /// `name@digest` of the version. None during a self-check.
    label: Option<Arc<str>>,
    mask: Arc<Mask>,
    quota: Quota,
}

/// The log of one attempt. The default log has no attempt, and drops all lines.
#[derive(Debug, Default)]
pub(super) struct GuestLog {
    subject: Option<Subject>,
    mask: Arc<Mask>,
    /// The bytes that the attempt may still log.
    budget: usize,
    is_over_budget: bool,
    /// Whether the ids of the batch's tasks were logged.
    has_listed_batch: bool,
    /// The unfinished lines, by [`GuestStream`].
    lines: [Vec<u8>; 2],
    last: LastWords,
    /// The place of the guest, as its last message with [`PLACE`] tells it.
    place: Option<String>,
    last_lines: LastLines,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub(super) enum GuestStream {
    Stdout,
    Stderr,
}

impl GuestLog {
    pub(super) fn new(
        tasks: Arc<Vec<Task>>,
        plugin: Arc<str>,
        label: Option<Arc<str>>,
        mask: Arc<Mask>,
        quota: Quota,
    ) -> GuestLog {
        let subject = Some(Subject { tasks, plugin, label, mask: mask.clone(), quota });
        GuestLog { subject, mask, budget: BUDGET, ..GuestLog::default() }
    }

    /// Masks secrets in the texts of this attempt.
    pub(super) fn mask(&self) -> &Mask {
        &self.mask
    }

    pub(super) fn subject(&self) -> Option<Subject> {
        self.subject.clone()
    }

    /// Takes bytes of a stream. Whole lines are logged at once. The rest waits for the end of its line.
    pub(super) fn write(&mut self, stream: GuestStream, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = match piece.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (piece, false),
            };
            // More is kept than a line may have: one byte more shows that it is cut, and a secret that begins
            // before the cut has to be found.
            let most = self.most_of_line();
            let line = &mut self.lines[stream as usize];
            let room = most.saturating_sub(line.len());
            line.extend_from_slice(&text[..text.len().min(room)]);
            if ends {
                self.end_line(stream);
            }
        }
    }

    /// Takes one message of wasi:logging.
    pub(super) fn message(&mut self, level: Level, context: &str, message: &str) {
        let text = if context.is_empty() {
            Cow::Borrowed(message)
        } else {
            Cow::Owned(format!("{context}: {message}"))
        };
        let mask = self.mask.clone();
        let text = mask.text(&text);
        let text = clean(text.as_bytes());
        if let Some(place) = text.strip_prefix(PLACE) {
            self.place = Some(place.to_owned());
        } else if level == Level::ERROR {
            self.last.note_error(&text);
        }
        self.last_lines.add(Some(level), &text);
        self.emit(level, "log", &text);
    }

    /// Logs unfinished lines. Call it when the attempt has ended.
    pub(super) fn finish(&mut self) {
        for stream in [GuestStream::Stdout, GuestStream::Stderr] {
            if !self.lines[stream as usize].is_empty() {
                self.end_line(stream);
            }
        }
    }

    /// The message of a panic or an exception, or else the last line on stderr or at level error.
    pub(super) fn last_words(&self) -> Option<&str> {
        self.last.text()
    }

    pub(super) fn place(&self) -> Option<&str> {
        self.place.as_deref()
    }

    /// Takes the last lines. They include lines that the host's own log has dropped.
    pub(super) fn take_last_lines(&mut self) -> String {
        std::mem::take(&mut self.last_lines).text()
    }

    fn end_line(&mut self, stream: GuestStream) {
        let line = std::mem::take(&mut self.lines[stream as usize]);
        let is_cut = line.len() >= self.most_of_line();
        let mask = self.mask.clone();
        let masked = mask.bytes(&line);
        // A cut line may end with the beginning of a secret, so its end is removed.
        let shown = if is_cut {
            &masked[..masked.len().saturating_sub(mask.longest()).min(MAX_LINE)]
        } else {
            &masked[..]
        };
        let text = clean_part(shown, is_cut);
        if stream == GuestStream::Stderr {
            self.last.note_stderr(&text);
        }
        if !text.is_empty() {
            self.last_lines.add(None, &text);
            self.emit(Level::INFO, stream.into_str(), &text);
        }
    }

    fn most_of_line(&self) -> usize {
        MAX_LINE + 1 + self.mask.longest()
    }

    fn emit(&mut self, level: Level, stream: &str, text: &str) {
        let cost = text.len().saturating_add(LINE_COST);
        let (level, text) = if cost <= self.budget {
            self.budget -= cost;
            (level, text)
        } else if self.is_over_budget {
            return;
        } else {
            self.is_over_budget = true;
            self.budget = 0;
            (Level::WARN, "the handler has printed more than its budget; the rest of this attempt is dropped")
        };
        if let Some(subject) = &self.subject {
            if !std::mem::replace(&mut self.has_listed_batch, true) && subject.tasks.len() > 1 {
                let ids: Vec<&str> = subject.tasks.iter().map(|task| task.id.as_str()).collect();
                let list = format!("a batch of the tasks {}", ids.join(" "));
                subject.send(level, "host", &clean(list.as_bytes()));
            }
            subject.send(level, stream, text);
        }
    }
}

impl Subject {
    /// Logs a refusal of the host. It does not count against the attempt's budget, which the guest could use
    /// up first; the caller limits the number of refusals.
    pub(super) fn refused(&self, text: &str) {
        self.send(Level::WARN, "http", &clean(self.mask.text(text).as_bytes()));
    }

    fn send(&self, level: Level, stream: &str, text: &str) {
        let Some(first) = self.tasks.first() else { return };
        let (queue, task, plugin) = (&*first.queue, clean(first.id.as_bytes()), &*self.plugin);
        let batch = Some(self.tasks.len()).filter(|tasks| *tasks > 1);
        let attempt = first.attempt;
        let version =
            self.label.as_deref().and_then(|label| label.rsplit_once('@')).map(|(_, digest)| digest);
        macro_rules! send {
            ($send:ident, $level:ident) => {
                // A line that the log filter drops does not count against the plugin's rate.
                if tracing::enabled!(target: "guest", Level::$level)
                    && self.quota.take(&self.plugin, text.len())
                {
                    tracing::$send!(
                        target: "guest",
                        queue,
                        task = &*task,
                        attempt,
                        batch,
                        plugin,
                        version,
                        stream,
                        "{text}"
                    );
                }
            };
        }
        match level {
            Level::ERROR => send!(error, ERROR),
            Level::WARN => send!(warn, WARN),
            Level::INFO => send!(info, INFO),
            Level::DEBUG => send!(debug, DEBUG),
            Level::TRACE => send!(trace, TRACE),
        }
    }
}

/// Makes one line of text that cannot look like several: control characters, line separators and marks that
/// reorder text are escaped, and a line over [`MAX_LINE`] is cut.
pub(super) fn clean(bytes: &[u8]) -> Cow<'_, str> {
    clean_part(bytes, bytes.len() > MAX_LINE)
}

/// Cleans bytes as [`clean`] does. `cut` says whether bytes are missing at the end.
fn clean_part(bytes: &[u8], cut: bool) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_LINE)]);
    if !cut && !text.chars().any(is_unsafe) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\t' => out.push(' '),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            c if is_unsafe(c) => write!(out, "\\u{{{:x}}}", u32::from(c)).expect("a String takes everything"),
            c => out.push(c),
        }
    }
    if cut {
        out.push_str(" … (cut)");
    }
    Cow::Owned(out)
}

fn is_unsafe(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use crate::config::Secret;

    const SECRET: &str = "hunter2-and-more";

    fn mask() -> Mask {
        Mask::new(&[("key".to_owned(), Secret::external(SECRET))].into())
    }

    fn tasks() -> Arc<Vec<Task>> {
        Arc::new(vec![testing::task()])
    }

    /// Runs `print` and returns the text of a subscriber.
    fn printed(print: impl FnOnce(&mut GuestLog)) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_max_level(Level::TRACE)
            .with_writer(Arc::new(file.reopen().unwrap()))
            .finish();
        let mut log = GuestLog::new(
            tasks(),
            "p".into(),
            Some("p@0123456789ab".into()),
            Arc::new(mask()),
            testing::quota(),
        );
        tracing::subscriber::with_default(subscriber, || print(&mut log));
        std::fs::read_to_string(file.path()).unwrap()
    }

    #[test]
    fn lines_are_put_together_from_pieces() {
        let out = printed(|log| {
            log.write(GuestStream::Stdout, b"one\ntw");
            log.write(GuestStream::Stdout, b"o\nthree");
            log.finish();
        });
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines.len(), 3, "{out}");
        assert!(
            lines[1].starts_with(
                " INFO guest: two queue=\"q\" task=\"1-0\" attempt=1 plugin=\"p\" version=\"0123456789ab\" \
                 stream=\"stdout\""
            ),
            "{out}"
        );
    }

    #[test]
    fn a_message_cannot_forge_a_line() {
        let out = printed(|log| log.message(Level::WARN, "ctx", "a\nERROR fake \u{1b}[2J\u{202e}"));
        assert_eq!(out.lines().count(), 1, "{out}");
        assert!(out.contains("ctx: a\\nERROR fake \\u{1b}[2J\\u{202e}"), "{out}");
    }

    #[test]
    fn long_lines_are_cut_and_a_flood_ends_with_one_notice() {
        let out = printed(|log| {
            log.write(GuestStream::Stdout, &vec![b'x'; 3 * MAX_LINE]);
            log.write(GuestStream::Stdout, b"\n");
            for _ in 0..100_000 {
                log.write(GuestStream::Stdout, b"again and again\n");
            }
        });
        assert!(out.lines().next().unwrap().contains("x … (cut)"));
        assert!(out.len() < 3 * BUDGET, "{}", out.len());
        let notices: Vec<&str> =
            out.lines().map(str::trim).filter(|line| !line.starts_with("INFO ")).collect();
        insta::assert_snapshot!(notices.join("\n"), @"
        WARN guest: the handler has printed more than its budget; the rest of this attempt is dropped \
        queue=\"q\" task=\"1-0\" attempt=1 plugin=\"p\" version=\"0123456789ab\" stream=\"stdout\"
        ");
    }

    #[test]
    fn a_secret_comes_through_in_no_line() {
        let out = printed(|log| {
            log.write(GuestStream::Stdout, b"in two: hunter2");
            log.write(GuestStream::Stdout, b"-and-more\n");
            log.message(Level::ERROR, "the key", SECRET);
            log.subject().expect("a subject").refused(&format!("http://{SECRET}.example"));
            log.write(GuestStream::Stderr, format!("401 for {SECRET}").as_bytes());
            log.finish();
            assert_eq!(log.last_words(), Some("401 for [secret]"));
        });
        assert_eq!((out.lines().count(), out.matches("[secret]").count()), (4, 4), "{out}");
        assert!(!out.contains("hunter2"), "{out}");
    }

    #[test]
    fn a_secret_does_not_come_through_where_a_line_is_cut() {
        let longest = mask().longest();
        for before in MAX_LINE - longest - 2..=MAX_LINE + 2 * longest {
            // The secret at the start is masked as well, which makes the line shorter than its bytes.
            let out = printed(|log| {
                log.write(
                    GuestStream::Stdout,
                    format!("{SECRET}{}{SECRET}\n", "x".repeat(before)).as_bytes(),
                );
            });
            assert!(!out.contains("hunter"), "{before}: {out}");
            assert_eq!(out.contains(" … (cut)"), before + 2 * SECRET.len() > MAX_LINE + longest, "{before}");
        }
    }

    #[test]
    fn the_last_lines_have_no_secret_and_a_bound_also_after_a_flood() {
        let mut log = GuestLog::new(tasks(), "p".into(), None, Arc::new(mask()), testing::quota());
        for _ in 0..100_000 {
            log.write(GuestStream::Stdout, b"again and again\n");
        }
        log.message(Level::WARN, "", &format!("the key is {SECRET}\nand more"));
        log.write(GuestStream::Stderr, b"the end");
        log.finish();
        let last = log.take_last_lines();
        assert!(last.ends_with("\nWARN the key is [secret]\\nand more\nthe end"), "{last}");
        assert!(last.len() <= 4096 && log.take_last_lines().is_empty(), "{}", last.len());
    }
}
