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
mod dead_groups;
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
mod queues;
mod redrive;
mod retry;
mod run;
mod status;
mod tasks;
mod token;
mod trial;
mod trial_log;

mod confirm;
mod context;
pub(crate) mod exit;
mod field_lines;
mod files;
mod filters;
mod input;
mod kept;
mod many;
mod output;
mod progress;
mod readers;
mod refused;
mod schedule;
mod shell;
mod table;
#[cfg(test)]
mod table_tests;
mod task_file;
mod templates;
mod text;
mod value;
mod wait;
mod watch;

use std::env;
use std::ffi::OsString;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches};

use tokio::runtime::Runtime;

use crate::config::Config;
use crate::sandbox::{self, Cores};
use crate::shutdown::FirstProcess;
use args::{Cli, Command, RunArgs};
use exit::CommandError;
use output::{Out, note};
use run::HostProcess;

/// Runs the command and gives the exit code.
pub fn main() -> u8 {
    let first = match FirstProcess::listen() {
        Ok(first) => first,
        Err(error) => return CommandError::from(error).report(false),
    };
    let args: Vec<OsString> = env::args_os().collect();
    // A command line that cannot be read says all the same in which form its error is wanted.
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

fn execute(cli: Cli, queue: Option<&str>, first: Option<FirstProcess>) -> Result<(), CommandError> {
    let Cli { config, json, run: args, command } = cli;
    let host = match command {
        None | Some(Command::Run(_)) => Some(HostProcess::begin(first)?),
        _ => {
            first.map_or(Ok(()), FirstProcess::end_with_signals).context("cannot listen to signals")?;
            None
        }
    };
    // The commands for authors of handlers need no configuration.
    match command {
        Some(Command::New(args)) => {
            let mut out = Out::new(json);
            let done = new::run(&args, &mut out);
            return finish(done, out);
        }
        Some(Command::Token) => {
            let mut out = Out::new(json);
            token::run(&mut out);
            return finish(Ok(()), out);
        }
        Some(Command::Completions { shell }) => {
            let mut out = Out::new(json);
            let done = shell::completions(shell, &mut out);
            return finish(done, out);
        }
        Some(Command::Complete { words }) => {
            let runtime = commands_runtime()?;
            let mut out = Out::new(json);
            runtime.block_on(complete::names(&words)).iter().for_each(|name| out.line(name));
            runtime.shutdown_background();
            return finish(Ok(()), out);
        }
        Some(Command::Man(args)) => {
            let mut out = Out::new(json);
            let done = shell::man(&args, &mut out);
            return finish(done, out);
        }
        Some(Command::Try(args)) => {
            let runtime = commands_runtime()?;
            let mut out = Out::new(json);
            let done = runtime.block_on(trial::run(config.as_deref(), args, &mut out));
            // A compilation that is under way ends with the process.
            runtime.shutdown_background();
            return finish(done, out);
        }
        Some(Command::Compile { reservation, host, behind, keeps_functions }) => {
            return Ok(sandbox::serve_compiler(
                reservation,
                if behind { Cores::Half } else { Cores::All },
                host,
                keeps_functions,
            )?);
        }
        _ => {}
    }
    let config = context::config_file(config.as_deref())?;
    // Commands that run no handlers load the configuration without the handlers' secrets, which the user may
    // not have.
    let runs_handlers = matches!(command, None | Some(Command::Run(_) | Command::Check { acl: false }));
    // The other commands look at what hosts do, and these go on with the last good configuration.
    let is_about_the_file = runs_handlers || matches!(command, Some(Command::Check { .. }));
    let load = if runs_handlers { Config::load } else { Config::load_for_commands };
    let last_good = || (!is_about_the_file).then(|| Config::last_good(&config)).flatten();
    let config = match load(&config) {
        Ok(good) => good,
        Err(errors) => {
            let (good, copy) = last_good().ok_or_else(|| CommandError::Config(errors.to_string()))?;
            note(&format!(
                "tqhost: {} is broken (`tqhost check` says where); \
                 used instead: the last configuration that a host accepted ({})",
                good.path.display(),
                copy.display()
            ));
            good
        }
    };
    let command = match command {
        None | Some(Command::Run(_)) => {
            let log_format = match command {
                Some(Command::Run(RunArgs { log_format })) => log_format.or(args.log_format),
                _ => args.log_format,
            };
            return host.map_or(Ok(()), |host| host.run(config, log_format.unwrap_or_default()));
        }
        Some(command) => command,
    };
    let runtime = commands_runtime()?;
    let mut out = Out::new(json);
    let done = runtime.block_on(async {
        let done = match command {
            // These returned above.
            Command::Run(_)
            | Command::New(_)
            | Command::Try(_)
            | Command::Token
            | Command::Completions { .. }
            | Command::Complete { .. }
            | Command::Man(_)
            | Command::Compile { .. } => Ok(()),
            Command::Check { acl: true } => acl::run(&config, &mut out),
            Command::Check { acl: false } => check::run(&config, &mut out),
            Command::Enqueue(args) => enqueue::run(&config, args, &mut out).await,
            Command::Status(args) => status::run(&config, args, &mut out).await,
            Command::Tasks(args) => tasks::run(&config, args, &mut out).await,
            Command::Cancel(args) => cancel::run(&config, args, &mut out).await,
            Command::Retry(args) => retry::run(&config, args, &mut out).await,
            Command::Drain(args) => drain::run(&config, args, &mut out).await,
            Command::Pause(args) => control::pause(&config, args, &mut out).await,
            Command::Resume(args) => control::resume(&config, args, &mut out).await,
            Command::Limit(args) => limit::run(&config, args, &mut out).await,
            Command::Queues(args) => queues::run(&config, args, &mut out).await,
            Command::Doctor(args) => doctor::run(&config, args, &mut out).await,
            Command::Adopt(args) => adopt::run(&config, args, &mut out).await,
            Command::Dead(command) => dead::run(&config, command, &mut out).await,
            Command::Changes(args) => changes::run(&config, args, &mut out).await,
            Command::Jobs(args) => jobs::run(&config, args, &mut out).await,
            Command::Deploy(args) => deploy::run(&config, args, &mut out).await,
            Command::Rollback(args) => control::roll_back(&config, args, &mut out).await,
            Command::Lift(args) => control::lift(&config, args, &mut out).await,
            Command::Reload(args) => control::reload(&config, args, &mut out).await,
            Command::Plugins { plugin } => plugins::run(&config, plugin.as_deref(), &mut out).await,
        };
        match done {
            Err(failure) => Err(context::explain(failure, &config, queue).await),
            done => done,
        }
    });
    // A question that Ctrl-C has ended still reads from the terminal: that ends with the process.
    runtime.shutdown_background();
    finish(done, out)
}

fn commands_runtime() -> Result<Runtime, CommandError> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?)
}

fn finish(done: Result<(), CommandError>, out: Out) -> Result<(), CommandError> {
    done.and(out.finish().context("cannot write to stdout").map_err(CommandError::from))
}
