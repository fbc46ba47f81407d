//! `tqhost try`: runs a handler's self-check, then one task or a batch. It uses the real sandbox with the
//! real limits, without Redis and without a host.
//!
//!     file ─▶ Singles (stable, compiled) ─▶ Handler::self_check ─▶ run ─▶ AttemptReport ─▶ text or JSON
//!     task, fields, configuration ─▶ Attempt ─────────────────────────┘
//!
//! Not here: how fields are read (`input`), the handler's log (`trial_log`), what a queue would do next
//! (`worker::settle`).

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use serde::Serialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::args::TryArgs;
use super::context::rules;
use super::exit::CommandError;
use super::files::short;
use super::output::{Out, Tone, note};
use super::trial_log::{LogLine, TrialLog};
use super::{input, text, value};
use crate::chain::chain;
use crate::config::{self, Config};
use crate::field::HOST_FIELDS;
use crate::plugins::{self, Single, Singles, Watch};
use crate::queue::{NoEffects, check_fields};
use crate::sandbox::{
    Allowance, Attempt, AttemptReport, CHECK_TIMEOUT, Compiler, Ended, Sandbox, SandboxOptions,
};
use crate::task::{Field, Origin, Outcome, Progress, Task};

/// The attempt as JSON. The names are stable; a value that does not apply is null.
#[derive(Debug, Serialize)]
struct TryView {
    handler: String,
    version: String,
    bytes: u64,
    compile_ms: f64,
    /// Whether the compiled code came from the cache.
    from_cache: bool,
    /// How long the self-check took; null for a handler without one.
    self_check_ms: Option<f64>,
    /// The end of the task. For a batch: `failed` if the call failed, the end of all tasks if they ended
    /// alike, else `mixed`.
    #[serde(flatten)]
    end: EndView,
    /// For a batch: the end of each task.
    tasks: Option<Vec<TriedTask>>,
    progress: Option<ProgressView>,
    log: Vec<LogLine>,
    /// The median time of all runs: the call, and making the instance where one was made for it.
    run_ms: f64,
    /// The time of the fastest run.
    least_ms: f64,
    /// The time of the slowest run.
    most_ms: f64,
    runs: usize,
    /// By the plugin's configuration: `per-task` for a fresh instance in each run, `warm` where one is kept.
    instance: &'static str,
    /// In bytes.
    peak_memory: u64,
}

#[derive(Debug, Serialize)]
struct EndView {
    outcome: &'static str,
    /// Why the sandbox ended the attempt.
    kind: Option<&'static str>,
    message: Option<String>,
    /// After how long the handler asks to be tried again.
    after_ms: Option<u64>,
    result: Option<Value>,
}

#[derive(Debug, Serialize)]
struct TriedTask {
    id: String,
    #[serde(flatten)]
    end: EndView,
}

#[derive(Debug, Serialize)]
struct ProgressView {
    percent: u8,
    note: String,
}

/// A trial, without the bytes of handler and task, which may change between runs.
struct Trial {
    args: TryArgs,
    plugin: Arc<str>,
    grants: config::Plugin,
    rules: Arc<config::QueueRules>,
    singles: Singles,
    log: TrialLog,
    /// The content of stdin, which cannot be read twice.
    stdin: Option<Vec<u8>>,
    /// Whether the grants come from a configuration.
    is_granted: bool,
}

/// `config` is the path of the configuration; `is_named` is whether the command line named it.
pub(super) async fn run(
    config: &Path,
    is_named: bool,
    args: TryArgs,
    out: &mut Out,
) -> Result<(), CommandError> {
    let (plugin, rules, grants) = granted(config, is_named, &args)?;
    if args.timeout.is_some_and(|timeout| timeout.is_zero()) {
        return Err(CommandError::Usage(
            "--timeout 0s leaves the handler no time: write one from 1ms up".into(),
        ));
    }
    if args.watch && args.task.as_deref().is_some_and(is_stdin) {
        return Err(CommandError::Usage("stdin cannot be watched: write the task to a file".into()));
    }
    let stdin = match &args.task {
        Some(path) if is_stdin(path) => Some(input::stdin()?),
        _ => None,
    };
    let log = TrialLog::start((!out.json).then_some(out.paint))?;
    let sandbox = Sandbox::new(SandboxOptions {
        max_concurrent: 1,
        max_warm: 0,
        max_memory: grants.memory,
        compiler: Compiler::separate(),
    })?;
    let singles = Singles::new(sandbox, cache_dir().as_deref());
    let is_granted = is_named || args.plugin.is_some() || args.queue.is_some();
    let trial =
        Trial { args, plugin: plugin.into(), grants, rules: rules.into(), singles, log, stdin, is_granted };
    if !trial.args.watch {
        let handler = trial.read_handler().await?;
        return trial.once(&handler, trial.tasks().await?, out).await;
    }
    tokio::select! {
        // First, so that Ctrl-C is listened to before anything is compiled.
        biased;
        stopped = tokio::signal::ctrl_c() => Ok(stopped.context("cannot wait for Ctrl-C")?),
        never = trial.watch(out) => never,
    }
}

impl Trial {
    /// Runs every new version of the files, for ever. A bad version is reported, and the next one awaited.
    async fn watch(&self, out: &mut Out) -> Result<(), CommandError> {
        let of_fields = self.args.fields.iter().filter_map(|arg| input::file_of(arg));
        let files = [Some(self.args.handler.as_path()), self.args.task.as_deref()]
            .into_iter()
            .flatten()
            .chain(of_fields);
        let mut watch = Watch::new(files.map(Path::to_owned).collect());
        let mut last = None;
        loop {
            match (self.read_handler().await, self.tasks().await) {
                (Ok(handler), Ok(tasks)) => {
                    let now = Some((handler, tasks));
                    // A file whose time has changed may have the same content.
                    if now != last
                        && let Some((handler, tasks)) = &now
                    {
                        let tried = tokio::select! {
                            biased;
                            tried = self.once(handler, tasks.clone(), out) => tried,
                            // The author of a handler that never ends need not wait for its timeout. A file
                            // whose content is unchanged starts the run again.
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

    async fn read_handler(&self) -> Result<Vec<u8>, CommandError> {
        let path = &self.args.handler;
        Ok(plugins::read(path).await.map_err(|error| anyhow!("{}: {error:#}", path.display()))?)
    }

    /// The fields of each task: those of the file, then those of the command line. A field of the command
    /// line replaces fields with the same name.
    async fn tasks(&self) -> Result<Vec<Vec<Field>>, CommandError> {
        let mut tasks = match (&self.stdin, &self.args.task) {
            (Some(bytes), _) => input::whole_objects(bytes, "stdin")?,
            (None, Some(path)) => {
                let is_file = fs::metadata(path).map(|meta| meta.is_file()).unwrap_or(true);
                let bytes = if is_file { plugins::read(path).await } else { input::read_value(path) };
                input::whole_objects(
                    &bytes.map_err(|error| anyhow!("{}: {error:#}", path.display()))?,
                    &path.display().to_string(),
                )?
            }
            (None, None) => vec![Vec::new()],
        };
        let named = self.args.fields.iter().map(|arg| input::field(arg)).collect::<Result<Vec<_>, _>>()?;
        for fields in &mut tasks {
            fields.retain(|field| !named.iter().any(|other| other.name == field.name));
            fields.extend(named.iter().cloned());
            // The handler may be one of a queue that is told of ends, so it may get fields that tell of them.
            check_fields(fields, &[HOST_FIELDS])
                .map_err(|error| CommandError::from(anyhow!("the task: {error}")))?;
        }
        Ok(tasks)
    }

    async fn once(&self, handler: &[u8], tasks: Vec<Vec<Field>>, out: &mut Out) -> Result<(), CommandError> {
        let path = self.args.handler.display();
        let (singles, bytes, grants) = (self.singles.clone(), handler.to_vec(), self.grants.clone());
        // Loading may take long, so it runs on another thread, and Ctrl-C need not wait for it. When this
        // future is dropped, the guard stops it.
        let allowance = Allowance::full();
        let _stops = allowance.cancel.clone().drop_guard();
        let loaded = tokio::task::spawn_blocking(move || singles.load(&bytes, &grants, &allowance)).await;
        let single =
            loaded.context("compiling failed")?.map_err(|error| anyhow!("{path}: {}", chain(&error)))?;
        if tasks.len() > 1 && !single.handler.takes_batches() {
            let why = "it exports no tqhost:extensions/batch-handler: give it one task instead of a list";
            return Err(anyhow!("{path}: {why}").into());
        }
        if !out.json {
            let how = if single.from_cache { "loaded, compiled before," } else { "compiled" };
            let version = short(&single.digest);
            out.line(format!(
                "{path}: {}, version {version}, {how} in {}",
                text::size(single.bytes),
                took(single.took)
            ));
        }
        // An earlier trial may have been aborted before it reset the log.
        self.log.mute(false);
        self.log.take();
        let self_check = self.self_check(&single).await?;
        if let (Some(duration), false) = (self_check, out.json) {
            out.line(format!("self-check passed in {}", took(duration)));
        }
        let tasks = Arc::new(self.deliver(tasks));
        let progress = Progress::default();
        let (mut last, mut durations) = (None::<AttemptReport>, Vec::new());
        for run in 0..self.args.runs {
            self.log.mute(run > 0);
            let attempt = self.attempt(&tasks, progress.clone());
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
        let report = last.context("nothing was run")?;
        let (percent_note, log) = (progress.take(), self.log.take());
        let view = TryView {
            self_check_ms: self_check.map(millis),
            instance: if self.grants.warm.is_some() { "warm" } else { "per-task" },
            ..view(&self.args.handler, &single, (&tasks, &report), durations, percent_note, log)
        };
        match out.json {
            true => out.json(&view),
            false => self.render(&view, &report, &tasks, out),
        }
        if is_completed(&report, tasks.len()) { Ok(()) } else { Err(CommandError::Reported) }
    }

    /// Runs the self-check, if there is one, and gives how long it took.
    async fn self_check(&self, single: &Single) -> Result<Option<Duration>, CommandError> {
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

    /// Makes tasks of the fields, as if they had been delivered now.
    fn deliver(&self, tasks: Vec<Vec<Field>>) -> Vec<Task> {
        let id = &self.args.id;
        let ids: Vec<String> = match tasks.len() {
            1 => vec![id.clone()],
            several => (1..=several).map(|n| format!("{id}-{n}")).collect(),
        };
        let task = |(id, fields): (String, Vec<Field>)| Task {
            entry: id.clone(),
            id,
            queue: self.rules.name.as_str().into(),
            fields,
            attempt: self.args.attempt,
            deferrals: 0,
            crashes: 0,
            fence: 1,
            enqueued_at_ms: text::now_ms(),
            traceparent: None,
            delay: None,
            origin: Origin::Producer,
            joins: None,
            reserved: Vec::new(),
        };
        ids.into_iter().zip(tasks).map(task).collect()
    }

    fn attempt(&self, tasks: &Arc<Vec<Task>>, progress: Progress) -> Attempt {
        Attempt {
            tasks: tasks.clone(),
            plugin: self.plugin.clone(),
            max_attempts: self.rules.max_retries.saturating_add(1).max(self.args.attempt),
            timeout: self.args.timeout.unwrap_or(self.rules.timeout),
            progress: vec![progress],
            effects: Arc::new(NoEffects::of(self.rules.clone())),
            stop: CancellationToken::new(),
        }
    }

    fn render(&self, view: &TryView, report: &AttemptReport, tasks: &[Task], out: &mut Out) {
        if let Some(ProgressView { percent, note }) = &view.progress {
            out.line(format!("progress {percent}%  {}", text::escape(note)));
        }
        let memory = format!("{} of {} memory", text::size(view.peak_memory), text::size(self.grants.memory));
        let runs = match view.runs {
            1 => String::new(),
            runs => {
                let how = if self.grants.warm.is_some() {
                    "in instances that are kept"
                } else {
                    "each in a fresh instance"
                };
                format!(
                    " (median of {runs} runs, {how}: {} to {})",
                    took(ms(view.least_ms)),
                    took(ms(view.most_ms))
                )
            }
        };
        let said = out.paint.tone(view.end.tone(), view.end.outcome);
        out.line(format!("{said} in {}{runs}, {memory}", took(ms(view.run_ms))));
        let outcomes = report.outcomes(tasks.len());
        match &view.tasks {
            None => {
                for line in [view.end.words(), outcomes.first().and_then(result)].into_iter().flatten() {
                    out.line(line);
                }
            }
            Some(_) if matches!(report.ended, Ended::Failed { .. }) => {
                out.line(view.end.words().unwrap_or_default());
                out.line("a host would run each of these tasks again, alone");
            }
            Some(views) => {
                for (TriedTask { id, end }, outcome) in views.iter().zip(&outcomes) {
                    let said = out.paint.tone(end.tone(), end.outcome);
                    let words = end.words().or_else(|| result(outcome)).unwrap_or_default();
                    out.line(format!("{}  {said}  {words}", text::escape(id)).trim_end());
                }
            }
        }
    }
}

impl EndView {
    fn new(outcome: &Outcome) -> EndView {
        let mut view = EndView::named("completed");
        let after_ms = |after: Duration| u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        match outcome {
            Outcome::Completed { result, .. } => view.result = result.as_deref().map(value::result_json),
            Outcome::Retry { message, after } => {
                (view.outcome, view.message, view.after_ms) =
                    ("retry", Some(message.clone()), after.map(after_ms));
            }
            Outcome::Reject { message } => (view.outcome, view.message) = ("reject", Some(message.clone())),
            Outcome::Defer { message, after } => {
                (view.outcome, view.message, view.after_ms) =
                    ("defer", Some(message.clone()), Some(after_ms(*after)));
            }
            Outcome::Failed { kind, message } => {
                (view.outcome, view.kind, view.message) =
                    ("failed", Some(kind.into_str()), Some(message.clone()));
            }
        }
        view
    }

    fn named(outcome: &'static str) -> EndView {
        EndView { outcome, kind: None, message: None, after_ms: None, result: None }
    }

    /// The common end of a batch.
    fn of_all(report: &AttemptReport, outcomes: &[Outcome]) -> EndView {
        if let (Ended::Failed { .. }, [first, ..]) = (&report.ended, outcomes) {
            return EndView::new(first);
        }
        let mut ends: Vec<&str> = outcomes.iter().map(|outcome| EndView::new(outcome).outcome).collect();
        ends.dedup();
        EndView::named(if let [alike] = ends[..] { alike } else { "mixed" })
    }

    fn tone(&self) -> Tone {
        match self.outcome {
            "completed" => Tone::Good,
            "reject" | "failed" => Tone::Bad,
            _ => Tone::Warning,
        }
    }

    /// The error, and after how long the handler asks to be tried again.
    fn words(&self) -> Option<String> {
        let after = self
            .after_ms
            .map(|after_ms| format!("again after {}", text::took(Duration::from_millis(after_ms))));
        let message = self.message.as_deref().map(text::escape);
        let words: Vec<String> =
            [self.kind.map(str::to_owned), message, after].into_iter().flatten().collect();
        (!words.is_empty()).then(|| words.join(": "))
    }
}

fn result(outcome: &Outcome) -> Option<String> {
    let Outcome::Completed { result, .. } = outcome else { return None };
    Some(result.as_deref().map_or_else(|| "no result".to_owned(), value::shown))
}

fn is_completed(report: &AttemptReport, tasks: usize) -> bool {
    report.outcomes(tasks).iter().all(|outcome| matches!(outcome, Outcome::Completed { .. }))
}

fn view(
    path: &Path,
    single: &Single,
    (tasks, report): (&[Task], &AttemptReport),
    mut durations: Vec<Duration>,
    progress: Option<(u8, String)>,
    log: Vec<LogLine>,
) -> TryView {
    durations.sort();
    let nth = |n: usize| durations.get(n).copied().map_or(0.0, millis);
    let outcomes = report.outcomes(tasks.len());
    let (end, each) = match &outcomes[..] {
        [outcome] => (EndView::new(outcome), None),
        several => {
            let views = tasks
                .iter()
                .zip(several)
                .map(|(task, outcome)| TriedTask { id: task.id.clone(), end: EndView::new(outcome) });
            (EndView::of_all(report, several), Some(views.collect()))
        }
    };
    TryView {
        handler: path.display().to_string(),
        version: single.digest.clone(),
        bytes: single.bytes,
        compile_ms: millis(single.took),
        from_cache: single.from_cache,
        self_check_ms: None,
        end,
        tasks: each,
        progress: progress.map(|(percent, note)| ProgressView { percent, note }),
        log,
        run_ms: nth(durations.len() / 2),
        least_ms: nth(0),
        most_ms: nth(durations.len().saturating_sub(1)),
        runs: durations.len(),
        instance: "per-task",
        peak_memory: report.peak_memory,
    }
}

/// The plugin's name, the rules of its queue and its grants: from the configuration where one was asked for,
/// else the defaults.
fn granted(
    path: &Path,
    is_named: bool,
    args: &TryArgs,
) -> Result<(String, config::QueueRules, config::Plugin), CommandError> {
    let stem = args.handler.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    if !is_named && args.plugin.is_none() && args.queue.is_none() {
        // A queue with the default rules.
        let config = Config::parse("[queues.try]\n", Path::new("/tqhost.toml"), &|_| None);
        let config = config.map_err(|errors| CommandError::Config(errors.to_string()))?;
        let rules = rules(&config, "try")?.clone();
        return Ok((stem, rules, config::Plugin::default()));
    }
    let config = Config::load(path).map_err(|errors| CommandError::Config(errors.to_string()))?;
    let of_queue = args.queue.as_deref().map(|name| rules(&config, name)).transpose()?;
    let plugin = args.plugin.clone().or_else(|| of_queue.map(|queue| queue.plugin.clone())).unwrap_or(stem);
    let user = config.queues.iter().find(|queue| queue.plugin == plugin);
    if user.is_none() && !config.plugins.contains_key(&plugin) {
        let file = config.path.display();
        let why = format!(
            "{file} has no plugin {plugin:?}: name one with --plugin or --queue, \
             or leave --config out for the defaults"
        );
        return Err(CommandError::Usage(why));
    }
    let grants = config.plugins.get(&plugin).cloned().unwrap_or_default();
    let Some(rules) = of_queue.or(user).or(config.queues.first()) else {
        return Err(CommandError::Config(format!("{} has no queue", config.path.display())));
    };
    Ok((plugin, rules.clone(), grants))
}

/// Where compiled handlers are kept between trials.
fn cache_dir() -> Option<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(caches.join("tqhost/try/cache"))
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

fn millis(duration: Duration) -> f64 {
    // To the microsecond: the timer is not more exact.
    duration.as_micros() as f64 / 1000.0
}

fn ms(value: f64) -> Duration {
    Duration::from_micros((value * 1000.0) as u64)
}

/// A duration for display. Times below 100 ms have two decimals, since users compare them.
fn took(duration: Duration) -> String {
    if duration < Duration::from_millis(100) {
        format!("{:.2}ms", millis(duration))
    } else {
        text::took(duration)
    }
}

#[cfg(test)]
mod tests;
