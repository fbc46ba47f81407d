//! The command line of `tqhost`.
//!
//!     args ─▶ configuration ─▶ a command ─▶ Out (stdout) ─▶ exit code
//!                                  └─ CommandError ─▶ exit::report (stderr)
//!
//! In: the arguments of the process. Out: text or JSON, and an exit code. Each command has a file; the second
//! half of the list below is what they share. Commands print what `operations`, `queue` and `doctor` give
//! them, and decide nothing.

mod args;
mod examples;

mod acl;
mod adopt;
mod cancel;
mod changes;
mod check;
mod complete;
mod control;
mod dead;
mod deploy;
mod doctor;
mod drain;
mod enqueue;
mod history;
mod import;
mod jobs;
mod limit;
mod new;
mod plugins;
mod push;
mod queues;
mod redrive;
mod retry;
mod run;
mod status;
mod tasks;
mod token;
mod trial;

mod confirm;
mod context;
mod each_queue;
mod each_task;
pub(crate) mod exit;
mod files;
mod filters;
mod follow;
mod groups;
mod input;
mod kept;
mod lists;
mod many;
mod output;
mod progress;
mod readers;
mod schedule;
mod shell;
mod table;
mod task_file;
mod templates;
mod text;
mod value;
mod wait;
mod watch;

use std::env;
use std::ffi::OsString;
use std::path::Path;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches};

use crate::config::Config;
use crate::logging::LogFormat;
use crate::sandbox::{self, Cores};
use crate::shutdown::FirstProcess;
use args::{Cli, Command, RunArgs};
use exit::{CommandError, CommandResult};
use output::{Out, note};
use plugins::PluginsArgs;
use push::PluginsCommand;
use run::HostProcess;

/// Runs the command, and returns the exit code.
pub fn main() -> u8 {
    let first = match FirstProcess::listen() {
        Ok(first) => first,
        Err(error) => return CommandError::from(error).report(false),
    };
    let args: Vec<OsString> = env::args_os().collect();
    // Even if the command line cannot be read, `--json` in it says in which form its error is printed.
    let wants_json = args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--json");
    let read = examples::command().try_get_matches_from(&args).and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches)?;
        if cli.run.log_format.is_some() && !matches!(cli.command, None | Some(Command::Run(_))) {
            let why = "--log-format is an option of run only";
            return Err(Cli::command().error(ErrorKind::ArgumentConflict, why));
        }
        Ok((cli, named_queue(&matches).cloned()))
    });
    let (cli, queue) = match read {
        Ok(read) => read,
        Err(error) => return exit::usage(&error, wants_json),
    };
    let json = cli.json;
    match execute(cli, queue.as_deref(), first) {
        Ok(()) => exit::DONE,
        Err(failure) => failure.report(json),
    }
}

/// The queue that the command line names.
fn named_queue(matches: &ArgMatches) -> Option<&String> {
    match matches.subcommand() {
        Some((_, command)) => named_queue(command),
        None => matches.try_get_one("queue").ok().flatten(),
    }
}

fn execute(cli: Cli, queue: Option<&str>, first: Option<FirstProcess>) -> CommandResult {
    let Cli { config, json, run: args, command } = cli;
    let named = config.as_deref();
    let command = match command {
        None => return run_host(named, args.log_format, first),
        Some(Command::Run(RunArgs { log_format })) => {
            return run_host(named, log_format.or(args.log_format), first);
        }
        Some(command) => command,
    };
    first.map_or(Ok(()), FirstProcess::end_with_signals).context("cannot listen to signals")?;
    if let Command::Compile { reservation, host, behind } = command {
        let cores = if behind { Cores::Half } else { Cores::All };
        return Ok(sandbox::serve_compiler(reservation, cores, host)?);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    let mut out = Out::new(json);
    let done = match command {
        // The commands for authors of handlers and for shells need no configuration.
        Command::New(args) => new::run(&args, &mut out),
        Command::Token => {
            token::run(&mut out);
            Ok(())
        }
        Command::Completions { shell } => shell::completions(shell, &mut out),
        Command::Complete { words } => {
            runtime.block_on(complete::names(&words)).iter().for_each(|name| out.line(name));
            Ok(())
        }
        Command::Man(args) => shell::man(&args, &mut out),
        Command::Schema => {
            out.line(format!("{:#}", crate::config::schema()));
            Ok(())
        }
        Command::Try(args) => runtime.block_on(trial::run(named, args, &mut out)),
        Command::Plugins(PluginsArgs { command: Some(PluginsCommand::Push(args)), .. }) => {
            runtime.block_on(push::run(args, &mut out))
        }
        command => {
            let config = loaded(&context::config_file(named)?, &command)?;
            runtime.block_on(async {
                match perform(command, &config, &mut out).await {
                    Err(failure) => Err(context::explain(failure, &config, queue).await),
                    done => done,
                }
            })
        }
    };
    // A thread may still read the answer to a question that Ctrl-C ended, or compile for a trial. It ends
    // with the process.
    runtime.shutdown_background();
    done.and(out.finish().context("cannot write to stdout").map_err(CommandError::from))
}

fn run_host(
    named: Option<&Path>,
    log_format: Option<LogFormat>,
    first: Option<FirstProcess>,
) -> CommandResult {
    let host = HostProcess::begin(first)?;
    host.run(context::load_config(named)?, log_format.unwrap_or_default())
}

/// The configuration for a command. A command that runs no handlers needs none of their secrets, which the
/// user may not have. If the file is wrong, a command uses the last good configuration, as hosts do; only
/// `check` is about the file itself.
fn loaded(path: &Path, command: &Command) -> CommandResult<Config> {
    let is_about_the_file = matches!(command, Command::Check { .. });
    let config = match command {
        Command::Check { acl: false } => Config::load(path),
        _ => Config::load_for_commands(path),
    };
    let errors = match config {
        Ok(good) => return Ok(good),
        Err(errors) => errors,
    };
    let last_good = (!is_about_the_file).then(|| Config::last_good(path)).flatten();
    let (good, copy) = last_good.ok_or_else(|| CommandError::Config(errors.to_string()))?;
    note(&format!(
        "tqhost: {} is broken (`tqhost check` says where); used instead: the last configuration that a host \
         accepted ({})",
        good.path.display(),
        copy.display()
    ));
    Ok(good)
}

async fn perform(command: Command, config: &Config, out: &mut Out) -> CommandResult {
    match command {
        Command::Check { acl: true } => acl::run(config, out),
        Command::Check { acl: false } => check::run(config, out).await,
        Command::Enqueue(args) => enqueue::run(config, args, out).await,
        Command::Status(args) => status::run(config, args, out).await,
        Command::Tasks(args) => tasks::run(config, args, out).await,
        Command::Cancel(args) => cancel::run(config, args, out).await,
        Command::Retry(args) => retry::run(config, args, out).await,
        Command::Drain(args) => drain::run(config, args, out).await,
        Command::Pause(args) => control::pause(config, args, out).await,
        Command::Resume(args) => control::resume(config, args, out).await,
        Command::Limit(args) => limit::run(config, args, out).await,
        Command::Queues(args) => queues::run(config, args, out).await,
        Command::Doctor(args) => doctor::run(config, args, out).await,
        Command::Adopt(args) => adopt::run(config, args, out).await,
        Command::Dead(command) => dead::run(config, command, out).await,
        Command::Changes(args) => changes::run(config, args, out).await,
        Command::Jobs(args) => jobs::run(config, args, out).await,
        Command::Deploy(args) => deploy::run(config, args, out).await,
        Command::Rollback(args) => control::roll_back(config, args, out).await,
        Command::Lift(args) => control::lift(config, args, out).await,
        Command::Reload(args) => control::reload(config, args, out).await,
        Command::Plugins(args) => plugins::run(config, args.plugin.as_deref(), out).await,
        // `execute` has carried out the others, which need no configuration.
        Command::Run(_)
        | Command::New(_)
        | Command::Try(_)
        | Command::Token
        | Command::Completions { .. }
        | Command::Complete { .. }
        | Command::Man(_)
        | Command::Schema
        | Command::Compile { .. } => Ok(()),
    }
}
