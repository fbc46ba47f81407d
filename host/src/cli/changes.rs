//! `tqhost changes`: who changed something, when and why.
//!
//! In: a queue or a plugin, if only its changes are wanted. Out: a table, the newest first, or an array as
//! JSON. Not here: what is noted (`operations::changes`).

use clap::{Args, value_parser};

use super::context::connect;
use super::exit::CommandResult;
use super::output::{Out, Paint};
use super::table::{Cell, TextTable};
use super::text;
use crate::clock::now_ms;
use crate::config::Config;
use crate::operations::changes::{self, ChangeView};
use crate::queue::changes::MOST_CHANGES;

#[derive(Debug, Args)]
pub(super) struct ChangesArgs {
    /// Only changes of this queue
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// Only changes of this plugin
    #[arg(long, value_name = "PLUGIN", conflicts_with = "queue")]
    plugin: Option<String>,
    /// The most changes
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = value_parser!(u16).range(1..=500))]
    limit: u16,
}

pub(super) async fn run(config: &Config, args: ChangesArgs, out: &mut Out) -> CommandResult {
    let ChangesArgs { queue, plugin, limit } = args;
    let link = connect(config).await?;
    let all = changes::list(&link, queue.as_deref(), plugin.as_deref(), limit.into()).await?;
    out.show(&all, |paint| table(&all, now_ms(), paint));
    Ok(())
}

fn table(all: &[ChangeView], now_ms: u64, paint: Paint) -> String {
    if all.is_empty() {
        return format!("None of the last {MOST_CHANGES} changes is of this kind.");
    }
    let mut table = TextTable::with_spare(&["DETAIL", "OF", "WHO", "WHY"])
        .figures(["WHEN"])
        .names(["WHO"])
        .fixed(["CHANGE"])
        .names(["OF", "DETAIL", "WHY"]);
    for change in all {
        table.row([
            text::ago(change.at, now_ms).into(),
            Cell::known(Some(&change.who)),
            (&change.what).into(),
            Cell::known(change.subject()),
            Cell::known(Some(&change.detail)),
            Cell::known(Some(&change.why)),
        ]);
    }
    table.render(paint)
}
