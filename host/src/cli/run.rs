//! `tqhost run`: starts the host.
//!
//! In: the configuration and the format of the log. Out: nothing, once the host has stopped, or why it
//! failed. Not here: the host itself (`app`).

use rustix::fs::Mode;

use super::exit::CommandError;
use crate::app;
use crate::config::Config;
use crate::logging::{self, LogFormat};

/// Runs until the host is told to stop.
pub(super) async fn run(config: Config, log_format: LogFormat) -> Result<(), CommandError> {
    // Compiled code, blobs, notes and the files of the private Redis are for the user of the host alone,
    // whatever the shell that started it allows.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let _guard = logging::init(log_format)?;
    Ok(app::run(config).await?)
}
