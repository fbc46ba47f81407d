//! Asks before a command does what cannot be taken back.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::{Context, anyhow};

use super::exit::CommandError;
use super::progress::INTERRUPTED;

/// Whether somebody can be asked.
pub(super) fn can_ask() -> bool {
    io::stdin().is_terminal()
}

/// Asks, and fails unless the answer is yes; `nothing` says what was not done then. `alone` is the message
/// where nobody can be asked.
pub(super) async fn confirm(question: &str, alone: &str, nothing: &str) -> Result<(), CommandError> {
    if !can_ask() {
        return Err(CommandError::Usage(alone.to_owned()));
    }
    let mut stderr = io::stderr();
    let _ = write!(stderr, "{question} [y/N] ");
    let _ = stderr.flush();
    let read = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer).map(|_| answer)
    });
    // A command that has counted before notes Ctrl-C, which would end nothing by itself any more.
    let answer = tokio::select! {
        answer = read => answer.map_err(io::Error::other).flatten().context("cannot read the answer")?,
        _ = tokio::signal::ctrl_c() => {
            let _ = writeln!(stderr, "\ntqhost: {nothing}");
            std::process::exit(INTERRUPTED);
        }
    };
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(anyhow!("{nothing}").into()),
    }
}
