//! Asks before a command does what cannot be taken back.

use std::io::{self, BufRead, IsTerminal, Write};
use std::iter;

use anyhow::{Context, anyhow};

use super::exit::{CommandError, CommandResult};
use super::output::{note, terminal_size};
use super::text;
use crate::operations::TaskSample;
use crate::shutdown::Signals;

/// Shows some of the tasks that the question is about.
pub(super) fn show_sample(sample: &[TaskSample]) {
    let width = terminal_size(io::stderr()).map_or(usize::MAX, |(columns, _)| columns);
    for task in sample {
        let alias = task.alias.iter().map(|alias| format!("({alias})"));
        let words: Vec<String> = iter::once(task.id.clone()).chain(alias).chain(task.words()).collect();
        note(&text::cut(&format!("  {}", text::escape(&words.join("  "))), width));
    }
}

/// Asks, and fails with the text `nothing` unless the answer is yes. Ctrl-C and SIGTERM are a no. Where
/// nobody can be asked, the error names the `option` that answers.
pub(super) async fn confirm(question: &str, option: &str, nothing: &str) -> CommandResult {
    if !io::stdin().is_terminal() {
        return Err(CommandError::Usage(format!("{question} Nobody can be asked here: add {option}")));
    }
    let mut signals = Signals::listen()?;
    let mut stderr = io::stderr();
    let _ = write!(stderr, "{question} [y/N] ");
    let _ = stderr.flush();
    let read = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer).map(|_| answer)
    });
    let answer = tokio::select! {
        answer = read => answer.map_err(io::Error::other).flatten().context("cannot read the answer")?,
        _ = signals.next() => {
            let _ = writeln!(stderr);
            "no".to_owned()
        }
    };
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(anyhow!("{nothing}").into()),
    }
}
