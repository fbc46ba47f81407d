//! `tqhost run`: starts the host.
//!
//! In: the configuration and the format of the log. Out: nothing, once the host has stopped, or why it
//! failed. Not here: the host itself (`app`).

use std::time::Duration;

use anyhow::Context as _;
use rustix::fs::Mode;
use tokio::runtime::Runtime;

use super::exit::CommandResult;
use crate::app;
use crate::config::Config;
use crate::descriptors;
use crate::logging::{self, LogFormat};
use crate::shutdown::{FirstProcess, HostSignals};

/// A process that listens to signals, and has not read its configuration yet.
pub(super) struct HostProcess {
    runtime: Runtime,
    signals: HostSignals,
}

impl HostProcess {
    /// `first` has listened to signals before, if this is the first process of a container.
    pub(super) fn begin(first: Option<FirstProcess>) -> CommandResult<HostProcess> {
        descriptors::raise_limit();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        let signals = match first {
            Some(first) => first.into_signals(),
            None => {
                let _inside = runtime.enter();
                HostSignals::listen()?
            }
        };
        Ok(HostProcess { runtime, signals })
    }

    /// Runs until the host is told to stop.
    pub(super) fn run(self, config: Config, log_format: LogFormat) -> CommandResult {
        let HostProcess { runtime, signals } = self;
        // Compiled code, blobs, notes and the files of the private Redis are for the user of the host alone,
        // whatever the shell that started it allows.
        rustix::process::umask(Mode::RWXG | Mode::RWXO);
        let _guard = logging::init(log_format)?;
        let done = runtime.block_on(app::run(config, signals));
        // A compilation that is under way ends with the process.
        runtime.shutdown_timeout(Duration::from_secs(1));
        Ok(done?)
    }
}
