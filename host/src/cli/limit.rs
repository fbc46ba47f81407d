//! `tqhost limit`: an operator limits a queue in all hosts while they run, for a time or until it is cleared.
//!
//! In: a queue's name, and limits. Out: a sentence that says what holds now, or an object as JSON. Not here:
//! which limits a queue can have (`operations::limits`), how hosts obey (`worker::limits`).

use std::time::Duration;

use clap::{ArgGroup, Args};

use super::context::{open, operator};
use super::exit::CommandResult;
use super::output::Out;
use super::readers::{at_least_one, checked_rate};
use super::text::escape;
use crate::clock;
use crate::config::Config;
use crate::config::units::parse_duration;
use crate::operations::{self, LimitView};
use crate::queue::limits::QueueLimits;

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("limits").multiple(true).requires("why")))]
pub(super) struct LimitArgs {
    /// The queue's name in the configuration
    queue: String,
    /// Start no more tasks than this in all hosts together, like 5/s or 100/h
    #[arg(long, value_name = "RATE", value_parser = checked_rate, group = "limits")]
    rate: Option<String>,
    /// Run no more attempts than this at once in each host
    #[arg(long, value_name = "NUMBER", value_parser = at_least_one::<u32>, group = "limits")]
    concurrency: Option<u32>,
    /// Run no more tasks than this of one key at once, in all hosts together. For queues with `serial`
    #[arg(long, value_name = "NUMBER", value_parser = at_least_one::<u32>, group = "limits")]
    per_key: Option<u32>,
    /// How long the limits hold, like 30m or 2h [default: until they are cleared]
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, requires = "limits")]
    lasting: Option<Duration>,
    /// The reason, which everybody is shown who looks at the queue
    #[arg(long, value_name = "TEXT", requires = "limits")]
    why: Option<String>,
    /// Clear the limits: the configuration alone holds again
    #[arg(long, conflicts_with = "limits")]
    clear: bool,
}

/// Sets limits, clears them, or shows them.
pub(super) async fn run(config: &Config, args: LimitArgs, out: &mut Out) -> CommandResult {
    let LimitArgs { queue, rate, concurrency, per_key, lasting, why, clear } = args;
    let queue = open(config, &queue).await?;
    let view = match why {
        Some(why) => {
            let limits =
                QueueLimits { rate, concurrency, per_key, why, by: operator(), ..QueueLimits::default() };
            operations::limit(&queue, limits, lasting).await?
        }
        None if clear => operations::clear_limits(&queue, &operator()).await?,
        None => operations::limits(&queue).await?,
    };
    out.show(&view, |_| sentence(&view, clear));
    Ok(())
}

fn sentence(LimitView { queue, limits, changed }: &LimitView, clear: bool) -> String {
    match limits {
        Some(limits) => format!("{queue} is limited: {}", escape(&limits.told(clock::now_ms()))),
        None if *changed => format!("{queue} is limited by its configuration alone again"),
        None if clear => format!("{queue} was not limited"),
        None => format!("{queue} is limited by its configuration alone"),
    }
}
