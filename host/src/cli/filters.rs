//! The options that say which tasks a command is for.
//!
//! In: the arguments of the process. Out: a [`TaskFilter`]. Commands for tasks of all states and those for
//! dead letters take the same options. Not here: which of them match (`queue::filter`).

use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;

use super::exit::{CommandError, CommandResult};
use super::output::note;
use crate::api::reasons;
use crate::clock::parse_ms;
use crate::config::Config;
use crate::config::units::parse_duration;
use crate::mask::FieldMask;
use crate::queue::{FieldCondition, TaskFilter};

#[derive(Debug, Clone, Args)]
pub(super) struct TaskFilterArgs {
    /// Only those with this value of a field: tenant=acme, tenant!=acme, tenant=acme* (begins with it),
    /// data/user/id=7 (in the JSON of the field data). It may be given several times, and then all must hold
    #[arg(long = "where", value_name = "FIELD=VALUE")]
    pub conditions: Vec<String>,
    /// Only those with this text in their id, their error or the value of a field that [admin] mask does not
    /// hide; not of ended tasks' fields
    #[arg(long = "match", value_name = "TEXT")]
    pub text: Option<String>,
    /// Only those with this text in their latest error; … in it stands for any text
    #[arg(long, value_name = "TEXT")]
    pub error: Option<String>,
    /// Only those that a version with this text in name@digest ran last
    #[arg(long = "plugin", value_name = "TEXT")]
    pub version: Option<String>,
    /// Only those of hosts with this text in their name
    #[arg(long, value_name = "TEXT")]
    pub host: Option<String>,
    /// Only the task with this id
    #[arg(long = "id", value_name = "ID")]
    pub only: Option<String>,
    /// Only since this time (queued, began, due, died, ended), like 2026-11-25T03:00:00Z, or milliseconds
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub from: Option<u64>,
    /// Only up to this time
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub to: Option<u64>,
    /// Only those at least this old, like 30m: in their state, or since they were enqueued if delayed or
    /// held
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub older_than: Option<Duration>,
    /// Only those less than this old, like 30m: in their state, or since they were enqueued if delayed or
    /// held
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub newer_than: Option<Duration>,
}

impl TaskFilterArgs {
    pub(super) fn filter(self, config: &Config) -> CommandResult<TaskFilter> {
        let mask = FieldMask::new(&config.admin.mask);
        let conditions = FieldCondition::all(&self.conditions, &mask)
            .map_err(|why| CommandError::Usage(format!("--where: {why}")))?;
        if self.text.is_some() && !mask.is_empty() {
            note("--match does not look at the values that [admin] mask hides");
        }
        let TaskFilterArgs { text, error, version, host, only, from, to, older_than, newer_than, .. } = self;
        Ok(TaskFilter {
            reason: None,
            text,
            conditions,
            mask,
            error,
            version,
            host,
            id: only,
            from_ms: from,
            to_ms: to,
            older_than,
            newer_than,
            as_of_ms: None,
        })
    }
}

fn parse_time(text: &str) -> Result<u64, String> {
    parse_ms(text).ok_or_else(|| {
        format!("{text:?} is no time like 2026-11-25T03:00:00Z, and no number of milliseconds since 1970")
    })
}

#[derive(Debug, Clone, Args)]
pub(super) struct DeadFilterArgs {
    /// Only those that are dead for this reason
    #[arg(long, value_parser = PossibleValuesParser::new(reasons()))]
    reason: Option<String>,
    #[command(flatten)]
    filter: TaskFilterArgs,
}

impl DeadFilterArgs {
    pub(super) fn filter(self, config: &Config) -> CommandResult<TaskFilter> {
        let DeadFilterArgs { reason, filter } = self;
        Ok(TaskFilter { reason, ..filter.filter(config)? })
    }
}

/// Refuses a command line that names neither ids nor --all, and one with filters but without --all. Otherwise
/// a forgotten option could make a command act on other tasks.
pub(super) fn check_choice(ids: &[String], is_all: bool, filter: &TaskFilter) -> CommandResult {
    let why = match (ids.is_empty(), filter.is_empty()) {
        _ if is_all => return Ok(()),
        (false, true) => return Ok(()),
        (false, false) => "the filters go with --all, not with an id",
        (true, false) => "add --all: the filters choose among all of the queue",
        (true, true) => "name an id, or --all",
    };
    Err(CommandError::Usage(why.into()))
}
