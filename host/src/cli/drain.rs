//! `tqhost drain`: cancels what waits in a queue; what runs goes on.
//!
//! In: a queue's name, filters. Out: how many were cancelled. The job keeps them for a day, and with `--out`
//! they are in a file in the end. Not here: how tasks are found and cancelled (`operations::cancel_all`), the
//! job (`many`).

use super::args::DrainArgs;
use super::context::open;
use super::exit::CommandResult;
use super::many;
use super::output::Out;
use crate::config::Config;
use crate::operations::jobs::{Deed, JobOrder};

pub(super) async fn run(config: &Config, args: DrainArgs, out: &mut Out) -> CommandResult {
    let DrainArgs { queue, filter, dry_run, yes, no_undo, out: file } = args;
    out.dry_run = dry_run;
    let order = JobOrder { keep: !no_undo, ..JobOrder::new(Deed::Drain, filter.filter(config)?) };
    many::run(config, &open(config, &queue).await?, order, (!yes, file.as_deref()), out).await
}
