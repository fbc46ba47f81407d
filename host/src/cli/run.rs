//! `tqhost run`: starts the host. Everything else about it is in `app`.

use anyhow::anyhow;

use super::exit::Failure;
use crate::config::Config;
use crate::logging::{self, LogFormat};

/// Runs until the host is told to stop.
pub async fn run(config: Config, log_format: LogFormat) -> Result<(), Failure> {
    let _guard = logging::init(log_format)?;
    // PLACEHOLDER: to be replaced by `crate::app::run(config, …).await`.
    drop(config);
    Err(anyhow!("this build cannot run the host yet").into())
}
