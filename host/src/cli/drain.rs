//! `tqhost drain`: cancels what waits in a queue; what runs goes on.
//!
//! In: a queue's name, filters. Out: how many were cancelled. The job keeps them for a day, and with `--out`
//! they are in a file in the end. Not here: how tasks are found and cancelled (`operations::cancel_all`), the
//! job (`many`).

use std::path::PathBuf;

use clap::Args;

use super::context::open;
use super::exit::CommandResult;
use super::filters::TaskFilterArgs;
use super::many::{self, ManyOptions};
use super::output::Out;
use crate::config::Config;
use crate::operations::jobs::{Deed, JobOrder};

#[derive(Debug, Args)]
pub(super) struct DrainArgs {
    /// The queue's name in the configuration
    queue: String,
    #[command(flatten)]
    filter: TaskFilterArgs,
    /// Count only, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask before cancelling
    #[arg(long)]
    yes: bool,
    /// Keep nothing: otherwise, `jobs undo` brings them back for 24 hours, and they take memory in Redis
    #[arg(long)]
    no_undo: bool,
    /// Write them to this new file in the end, as JSON Lines; `dead import` brings them back as dead letters
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dry_run", "no_undo"])]
    out: Option<PathBuf>,
}

pub(super) async fn run(config: &Config, args: DrainArgs, out: &mut Out) -> CommandResult {
    let DrainArgs { queue, filter, dry_run, yes, no_undo, out: file } = args;
    out.dry_run = dry_run;
    let order = JobOrder { keep: !no_undo, ..JobOrder::new(Deed::Drain, filter.filter(config)?) };
    let options = ManyOptions { asks: !yes, file: file.as_deref() };
    many::run(config, &open(config, &queue).await?, order, options, out).await
}
