//! `tqhost run`: starts the host.
//!
//! In: the configuration and the format of the log. Out: nothing, once the host has stopped, or why it
//! failed. Not here: the host itself (`app`).

use super::exit::CommandError;
use crate::app;
use crate::config::Config;
use crate::logging::{self, LogFormat};

/// Runs until the host is told to stop.
pub(super) async fn run(config: Config, log_format: LogFormat) -> Result<(), CommandError> {
    let _guard = logging::init(log_format)?;
    Ok(app::run(config).await?)
}
