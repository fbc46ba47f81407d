//! Asks before a command does what cannot be taken back.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::{Context, anyhow};

use super::exit::CommandError;
use crate::shutdown::Signals;

/// Asks, and fails unless the answer is yes; Ctrl-C or SIGTERM is a no. `nothing` says what was not done
/// then. `option` is the one that answers where nobody can be asked.
pub(super) async fn confirm(question: &str, option: &str, nothing: &str) -> Result<(), CommandError> {
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
