//! `tqhost try`: runs a handler's self-check, then one task or a batch. It uses the real sandbox with the
//! real limits, without Redis and without a host.
//!
//!     file ─▶ Singles (stable, compiled) ─▶ Handler::self_check ─▶ run ─▶ AttemptReport ─▶ text or JSON
//!     task, fields, configuration ─▶ Attempt ─────────────────────────┘
//!
//! Not here: how fields are read (`input`), the handler's log (`log`), what a queue would do next
//! (`worker::settle`).

mod effects;
mod grants;
mod log;
mod view;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::Args;
use tokio_util::sync::CancellationToken;

use super::context::{explain, load_config, open};
use super::exit::{CommandError, CommandResult};
use super::files::read_handler;
use super::output::{Out, note};
use super::readers::at_least_one;
use super::redrive::letter;
use super::task_file::{ExportedTask, GivenTask, given, limits};
use super::{input, text};
use crate::blobs::Blobs;
use crate::builds::short;
use crate::chain::chain;
use crate::clock;
use crate::config;
use crate::config::units::parse_duration;
use crate::field::HOST_FIELDS;
use crate::plugins::{self, Single, Singles, Watch};
use crate::queue::{NoEffects, check_fields};
use crate::sandbox::{Allowance, Attempt, AttemptReport, CHECK_TIMEOUT, Compiler, Sandbox, SandboxOptions};
use crate::shutdown::Signals;
use crate::task::{Progress, Task};
use crate::telemetry::AttemptTrace;

use grants::TrialGrants;
use log::TrialLog;
use view::{Tried, is_completed, took};

/// The most bytes of a blob, and the most blobs that are told.
const MAX_BLOB_IN_MEMORY: u64 = 16 << 20;
const MOST_BLOBS: usize = 100;

#[derive(Debug, Args)]
pub(super) struct TryArgs {
    /// The handler's file
    #[arg(value_name = "HANDLER.wasm")]
    handler: PathBuf,
    /// A file with one JSON object whose values become the task's fields, as on a line of enqueue --jsonl (-
    /// is stdin); or with a list of them, for a handler that takes batches; or one that dead export wrote
    #[arg(value_name = "TASK.json", required_unless_present_any = ["fields", "dead"])]
    task: Option<PathBuf>,
    /// Take the task from this dead letter, with the grants and limits of its queue. The dead letter stays
    #[arg(long, num_args = 2, value_names = ["QUEUE", "ID"], conflicts_with_all = ["task", "queue"])]
    dead: Option<Vec<String>>,
    /// One more field of each task, or one instead of the file's: name=value, or name=@FILE for the content
    /// of a file
    #[arg(long = "field", value_name = "NAME=VALUE")]
    fields: Vec<OsString>,
    /// Grant what [plugins.NAME] of the configuration grants [default: the plugin of --queue; with --config,
    /// the file's name]
    #[arg(long, value_name = "NAME")]
    plugin: Option<String>,
    /// Take timeout and attempts from this queue of the configuration
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Which attempt at the task this is [default: the dead letter's, or 1]
    #[arg(long, value_name = "NUMBER", value_parser = at_least_one::<u32>)]
    attempt: Option<u32>,
    /// The task's id; those of a list are ID-1, ID-2 and so on [default: the dead letter's, or try]
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Stop the handler after this time, like 10s [default: the queue's, or 60s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Run it this many times, each in a fresh instance unless the plugin's `instance` keeps them, and print
    /// the median time; stop at the first run that does not complete
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=100_000),
        conflicts_with = "watch"
    )]
    runs: u32,
    /// If the handler traps, or computes until its timeout, show the calls in which it was, with the lines of
    /// their source where the file has debug information
    #[arg(long)]
    backtrace: bool,
    /// Run again whenever the handler, the task's file or a field's has changed, until Ctrl-C
    #[arg(long)]
    watch: bool,
}

/// A trial, without the bytes of handler and task, which may change between runs.
struct Trial {
    args: TryArgs,
    plugin: Arc<str>,
    grants: config::Plugin,
    rules: Arc<config::QueueRules>,
    singles: Singles,
    /// The blobs of all runs.
    blobs: Blobs,
    log: TrialLog,
    /// The content of stdin, which cannot be read twice, if the task is there.
    stdin: Option<Vec<u8>>,
    /// The task of a dead letter.
    dead: Option<ExportedTask>,
    /// Whether rules and grants come from a configuration.
    is_granted: bool,
}

/// `named` is the configuration that the command line names.
pub(super) async fn run(named: Option<&Path>, mut args: TryArgs, out: &mut Out) -> CommandResult {
    let mut dead = None;
    if let Some([queue, id]) = args.dead.as_deref() {
        dead = Some(dead_letter(named, queue, id).await?);
        args.queue = Some(queue.clone());
    }
    let TrialGrants { plugin, mut rules, mut grants, cache_dir } =
        TrialGrants::find(named, &args.handler, args.plugin.as_deref(), args.queue.as_deref())?;
    if args.timeout.is_some_and(|timeout| timeout.is_zero()) {
        let why = "--timeout 0s leaves the handler no time: write one from 1ms up";
        return Err(CommandError::Usage(why.into()));
    }
    if args.watch {
        check_watched(&args)?;
    }
    let stdin = match &args.task {
        Some(path) if is_stdin(path) => Some(input::stdin()?),
        _ => None,
    };
    let is_granted = cache_dir.is_some();
    if !is_granted && let Some(limits) = limits(args.task.as_deref(), stdin.as_deref()) {
        limits.apply(&mut rules, &mut grants);
    }
    let log = TrialLog::start((!out.json).then_some(out.paint))?;
    let blobs = Blobs::in_memory(MAX_BLOB_IN_MEMORY)?;
    let compiler = if args.backtrace { Compiler::Here } else { Compiler::separate() };
    let options =
        SandboxOptions { backtraces: args.backtrace, ..SandboxOptions::single(grants.memory, compiler) };
    let sandbox = Sandbox::within(options, 1, u64::MAX, blobs.clone())?;
    let singles = match args.backtrace {
        // Code with the lines of its source is of no use to others, so it is not kept.
        true => Singles::without_cache(sandbox),
        false => Singles::new(sandbox, cache_dir),
    };
    let (plugin, rules) = (plugin.into(), rules.into());
    let trial = Trial { args, plugin, grants, rules, singles, blobs, log, stdin, dead, is_granted };
    if !trial.args.watch {
        let handler = read_handler(&trial.args.handler).await?;
        return trial.once(&handler, trial.tasks().await?, out).await;
    }
    let mut signals = Signals::listen()?;
    tokio::select! {
        biased;
        _ = signals.next() => Ok(()),
        never = trial.watch(out) => never,
    }
}

impl Trial {
    /// Runs every new version of the files, until stdout is closed. A bad version is reported, and the next
    /// one awaited.
    async fn watch(&self, out: &mut Out) -> CommandResult {
        let mut files = vec![self.args.handler.clone()];
        files.extend(self.args.task.clone());
        files.extend(self.args.fields.iter().filter_map(|arg| input::file_of(arg)).map(Path::to_owned));
        let mut watch = Watch::new(files);
        let mut last = None;
        loop {
            match (read_handler(&self.args.handler).await, self.tasks().await) {
                (Ok(handler), Ok(tasks)) => {
                    let now = Some((handler, tasks));
                    // A file whose time has changed may have the same content.
                    if now != last
                        && let Some((handler, tasks)) = &now
                    {
                        let tried = tokio::select! {
                            biased;
                            tried = self.once(handler, tasks.clone(), out) => tried,
                            // The author of a handler that never ends need not wait for its timeout. The run
                            // begins anew even if the content of the file is the same.
                            () = watch.changed() => {
                                if !out.json {
                                    note("tqhost: broken off, as a file has changed");
                                }
                                continue;
                            }
                        };
                        if let Err(failure) = tried {
                            failure.report(out.json);
                        }
                    }
                    last = now;
                }
                (Err(failure), _) | (_, Err(failure)) => {
                    failure.report(out.json);
                    last = None;
                }
            }
            if out.is_closed() {
                return Ok(());
            }
            if !out.json {
                note("tqhost: waiting for the next version (Ctrl-C ends)");
            }
            watch.changed().await;
        }
    }

    /// The tasks of the file, each with the fields of the command line as well. Such a field replaces fields
    /// with the same name.
    async fn tasks(&self) -> CommandResult<Vec<GivenTask>> {
        let mut tasks = match (&self.stdin, &self.args.task, &self.dead) {
            (Some(bytes), ..) => given(bytes, "stdin")?,
            (None, Some(path), _) => {
                let is_file = !is_no_file(path);
                let bytes = if is_file { plugins::read(path).await } else { input::read_value(path) };
                let bytes = bytes.map_err(|error| anyhow!("{}: {error:#}", path.display()))?;
                given(&bytes, &path.display().to_string())?
            }
            (None, None, Some(dead)) => vec![GivenTask { fields: dead.fields()?, known: Some(dead.clone()) }],
            (None, None, None) => vec![GivenTask { fields: Vec::new(), known: None }],
        };
        let named = self.args.fields.iter().map(|arg| input::field(arg)).collect::<Result<Vec<_>, _>>()?;
        for GivenTask { fields, known } in &mut tasks {
            fields.retain(|field| !named.iter().any(|other| other.name == field.name));
            fields.extend(named.iter().cloned());
            // The queue of the handler may be told of the ends of other tasks, so fields about ends are good.
            if known.is_none() {
                check_fields(fields, &[HOST_FIELDS]).map_err(|error| anyhow!("the task: {error}"))?;
            }
        }
        Ok(tasks)
    }

    /// Compiles the handler, or takes its code from the cache, and tells of it. Fails if the handler cannot
    /// take this number of tasks in one call.
    async fn load(&self, handler: &[u8], tasks: usize, out: &mut Out) -> CommandResult<Single> {
        let path = self.args.handler.display();
        let (singles, bytes, grants) = (self.singles.clone(), handler.to_vec(), self.grants.clone());
        // Loading may take long, so it runs on another thread, and Ctrl-C does not wait for it. The guard
        // stops it when this future is dropped.
        let allowance = Allowance::full();
        let _stops = allowance.cancel.clone().drop_guard();
        let loaded = tokio::task::spawn_blocking(move || singles.load(&bytes, &grants, &allowance)).await;
        let single =
            loaded.context("compiling failed")?.map_err(|error| anyhow!("{path}: {}", chain(&error)))?;
        if tasks > 1 && !single.handler.takes_batches() {
            let why = "it exports no tqhost:extensions/batch-handler: give it one task instead of a list";
            return Err(anyhow!("{path}: {why}").into());
        }
        if !out.json {
            let how = if single.from_cache { "loaded, compiled before," } else { "compiled" };
            let (version, size, took) = (short(&single.digest), text::size(single.bytes), took(single.took));
            out.line(format!("{path}: {size}, version {version}, {how} in {took}"));
        }
        Ok(single)
    }

    async fn once(&self, handler: &[u8], tasks: Vec<GivenTask>, out: &mut Out) -> CommandResult {
        let single = self.load(handler, tasks.len(), out).await?;
        // An earlier trial may have been aborted before it reset the log.
        self.log.mute(false);
        self.log.take();
        let self_check = self.self_check(&single).await?;
        if let (Some(duration), false) = (self_check, out.json) {
            out.line(format!("self-check passed in {}", took(duration)));
        }
        let tasks = Arc::new(self.deliver(tasks));
        let (progress, source) = (Progress::default(), Arc::new(NoEffects::of(self.rules.clone())));
        let (mut last, mut durations) = (None::<AttemptReport>, Vec::new());
        for run in 0..self.args.runs {
            self.log.mute(run > 0);
            let attempt = self.attempt(&tasks, progress.clone(), source.clone());
            let report =
                single.handler.run(attempt).await.ok_or_else(|| anyhow!("the attempt was stopped"))?;
            durations.push(report.duration);
            let is_completed = is_completed(&report, tasks.len());
            let peak = last.as_ref().map_or(0, |report| report.peak_memory).max(report.peak_memory);
            last = Some(AttemptReport { peak_memory: peak, ..report });
            if !is_completed {
                break;
            }
        }
        self.log.mute(false);
        let report = &last.context("nothing was run")?;
        durations.sort();
        let (handler, grants, tasks) = (&self.args.handler, &self.grants, &tasks[..]);
        let (single, progress, log) = (&single, progress.take(), self.log.take());
        let (staged, blobs) = (source.staged(), self.blobs.kept(MOST_BLOBS).await?);
        let tried = Tried {
            handler,
            single,
            self_check,
            tasks,
            grants,
            report,
            durations,
            progress,
            log,
            staged,
            blobs,
        };
        match out.json {
            true => out.json(&tried.json()),
            false => tried.render(out),
        }
        if is_completed(report, tasks.len()) { Ok(()) } else { Err(CommandError::Reported) }
    }

    /// Runs the self-check, if there is one, and returns how long it took.
    async fn self_check(&self, single: &Single) -> CommandResult<Option<Duration>> {
        if !single.handler.checks_itself() {
            return Ok(None);
        }
        let started = Instant::now();
        single.handler.self_check(&self.plugin, CHECK_TIMEOUT).await.map_err(|error| {
            let hint = if self.is_granted {
                ""
            } else {
                " (it was granted the defaults: --plugin or --queue take grants from a configuration)"
            };
            anyhow!("{}: self-check: {error}{hint}", self.args.handler.display())
        })?;
        Ok(Some(started.elapsed()))
    }

    /// Makes tasks of what was given, as if a queue had delivered them now. Values of the command line
    /// replace those that a queue knew.
    fn deliver(&self, tasks: Vec<GivenTask>) -> Vec<Task> {
        let several = tasks.len() > 1;
        let task = |(n, GivenTask { fields, known }): (usize, GivenTask)| {
            let known = known.as_ref();
            let named = self.args.id.clone().or_else(|| known.map(|known| known.id.clone()));
            let mut id = named.unwrap_or_else(|| "try".to_owned());
            if several {
                id += &format!("-{n}");
            }
            let queue = known.map_or(self.rules.name.as_str(), |known| &known.queue);
            Task {
                fields,
                attempt: self.args.attempt.or(known.map(|known| known.attempt)).unwrap_or(1),
                fence: known.map_or(1, |known| known.fence),
                enqueued_at_ms: known.map_or_else(clock::now_ms, |known| known.enqueued_at),
                traceparent: known.and_then(|known| known.traceparent.clone()),
                ..Task::bare(queue.into(), &id)
            }
        };
        (1..).zip(tasks).map(task).collect()
    }

    fn attempt(&self, tasks: &Arc<Vec<Task>>, progress: Progress, effects: Arc<NoEffects>) -> Attempt {
        let attempt = tasks.iter().map(|task| task.attempt).max().unwrap_or(1);
        Attempt {
            tasks: tasks.clone(),
            plugin: self.plugin.clone(),
            max_attempts: self.rules.max_retries.saturating_add(1).max(attempt),
            timeout: self.args.timeout.unwrap_or(self.rules.timeout),
            progress: vec![progress],
            effects,
            trace: AttemptTrace::default(),
            stop: CancellationToken::new(),
            disturbed: 0,
        }
    }
}

/// The task of a dead letter in the Redis of the configuration.
async fn dead_letter(named: Option<&Path>, queue: &str, id: &str) -> CommandResult<ExportedTask> {
    let config = load_config(named)?;
    let export = async {
        let queue = open(&config, queue).await?;
        ExportedTask::of(&letter(&queue, id).await?, &queue.rules, &config)
    };
    match export.await {
        Ok(task) => Ok(task),
        Err(failure) => Err(explain(failure, &config, None).await),
    }
}

/// Checks that task and fields can be read again and again. A file that is missing may come later.
fn check_watched(args: &TryArgs) -> CommandResult {
    let task = args.task.as_deref().filter(|path| is_stdin(path) || is_no_file(path));
    let field = args.fields.iter().filter_map(|arg| input::file_of(arg)).find(|path| is_no_file(path));
    let (what, path) = match (task, field) {
        (Some(path), _) => ("task", path),
        (None, Some(path)) => ("field", path),
        (None, None) => return Ok(()),
    };
    let name = if is_stdin(path) { "stdin".to_owned() } else { path.display().to_string() };
    Err(CommandError::Usage(format!("{name} cannot be watched: write the {what} to a file")))
}

/// Whether the path leads to something other than a file, for example a FIFO.
fn is_no_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| !meta.is_file())
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}
