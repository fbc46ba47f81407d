//! The end of a command: the exit codes, and the one place where an error is printed.
//!
//! In: the [`CommandError`] of a command, or what clap says about a wrong command line. Out: a line on stderr
//! and an exit code.

use std::error::Error;
use std::io::{self, Write};

use anyhow::anyhow;
use serde_json::json;

use super::text;
use crate::chain::chain;
use crate::operations::OperationError;
use crate::queue::QueueError;
use crate::queue::server::Unusable;

/// The command did what it was asked.
pub(crate) const DONE: u8 = 0;
/// Something failed, for example Redis, a file, a task that was waited for, or a plugin that was checked.
pub(crate) const FAILED: u8 = 1;
/// The command line is wrong, or names a queue that is not configured.
pub(crate) const USAGE: u8 = 2;
/// The configuration is missing or wrong (`EX_CONFIG` of sysexits).
pub(crate) const CONFIG: u8 = 78;

pub(crate) type CommandResult<T = ()> = Result<T, CommandError>;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) enum CommandError {
    Failed(anyhow::Error),
    /// The command has printed the failure itself.
    Reported,
    Usage(String),
    Config(String),
}

impl CommandError {
    pub(crate) fn code(&self) -> u8 {
        match self {
            CommandError::Failed(_) | CommandError::Reported => FAILED,
            CommandError::Usage(_) => USAGE,
            CommandError::Config(_) => CONFIG,
        }
    }

    /// Puts `what` in front of the text of a failure.
    pub(super) fn context(self, what: &str) -> CommandError {
        match self {
            CommandError::Failed(error) => CommandError::Failed(error.context(what.to_owned())),
            other => other,
        }
    }

    /// If Redis failed the command because a key has another type, returns an error that names the queue and
    /// the way out. Returns any other error as it is.
    pub(super) fn naming(self, queue: &str) -> CommandError {
        match self {
            CommandError::Failed(error) => CommandError::Failed(naming(error, queue)),
            other => other,
        }
    }

    /// Whether an error of Redis for which `is` holds is among the causes.
    pub(super) fn is_caused_by(&self, is: fn(&QueueError) -> bool) -> bool {
        matches!(self, CommandError::Failed(error) if error.chain().filter_map(queue_error).any(is))
    }

    /// The text to print, if any.
    pub(super) fn message(&self) -> Option<String> {
        match self {
            CommandError::Failed(error) => Some(chain(error.as_ref())),
            CommandError::Reported => None,
            CommandError::Usage(text) | CommandError::Config(text) => Some(text.clone()),
        }
    }

    /// The error for people; empty if it has no text.
    pub(super) fn words(&self) -> String {
        self.message().map_or_else(String::new, |message| format!("tqhost: {}", text::escape_block(&message)))
    }

    /// Prints the error, if it has a text, and returns the exit code. A closed stderr does not change the
    /// code.
    pub(crate) fn report(&self, json: bool) -> u8 {
        if let Some(message) = self.message() {
            let line = if json { json!({ "error": message }).to_string() } else { self.words() };
            let _ = writeln!(io::stderr(), "{line}");
        }
        self.code()
    }
}

fn queue_error<'e>(cause: &'e (dyn Error + 'static)) -> Option<&'e QueueError> {
    cause.downcast_ref()
}

/// The error with the name of the queue in place of the first cause that is a key of another type, and
/// without the causes below that one.
fn naming(error: anyhow::Error, queue: &str) -> anyhow::Error {
    let mut texts = Vec::new();
    for cause in error.chain() {
        if let Some(misfit) = queue_error(cause).and_then(|error| error.misfit(queue)) {
            texts.push(misfit);
            return anyhow!(texts.join(": "));
        }
        texts.push(cause.to_string());
    }
    error
}

/// Prints what clap has to say: a help text, the version, or why the command line is wrong. Returns the exit
/// code.
pub(super) fn usage(error: &clap::Error, json: bool) -> u8 {
    if !error.use_stderr() {
        let _ = error.print();
        return DONE;
    }
    if json {
        let text = error.render().to_string();
        return CommandError::Usage(text.trim_start_matches("error: ").trim_end().to_owned()).report(true);
    }
    let _ = error.print();
    USAGE
}

impl From<anyhow::Error> for CommandError {
    fn from(error: anyhow::Error) -> Self {
        CommandError::Failed(error)
    }
}

impl From<QueueError> for CommandError {
    fn from(error: QueueError) -> Self {
        CommandError::Failed(error.into())
    }
}

impl From<OperationError> for CommandError {
    fn from(error: OperationError) -> Self {
        match error {
            OperationError::UnknownQueue(_) | OperationError::Invalid(_) => {
                CommandError::Usage(error.to_string())
            }
            OperationError::Redis(error) => error.into(),
            OperationError::Stopped { cause: Some(cause), .. } => (*cause).into(),
            error => CommandError::Failed(error.into()),
        }
    }
}

impl From<Unusable> for CommandError {
    fn from(error: Unusable) -> Self {
        match error {
            Unusable::Redis(error) => error.into(),
            error => CommandError::Failed(error.into()),
        }
    }
}
