//! `tqhost run`: starts the host. Everything else about it is in `app`.

use super::exit::Failure;
use crate::app;
use crate::config::Config;
use crate::logging::{self, LogFormat};

/// Runs until the host is told to stop.
pub async fn run(config: Config, log_format: LogFormat) -> Result<(), Failure> {
    let _guard = logging::init(log_format)?;
    Ok(app::run(config).await?)
}
