//! `tqhost check`: whether a host could start with this configuration and these plugins. Needs no Redis.
//!
//! In: a valid configuration. Out: the queues, and for each plugin its file, version, exports, imports and
//! grants, or what is wrong with it. A missing plugin is no failure: its queue waits for it. Granted settings
//! are printed by name only, since their values may be secrets. Not here: how a plugin is loaded (`sandbox`).

use std::io::ErrorKind;
use std::time::Duration;

use anyhow::Context;
use jiff::tz::TimeZone;
use serde::{Serialize, Serializer};
use serde_json::json;

use super::exit::{CommandError, CommandResult};
use super::files::{self, FileContent, PluginFile};
use super::output::{Out, Paint, Tone, sheet};
use super::sources::{PulledPlugin, pulled, unused_files};
use super::{schedule, text};
use crate::app;
use crate::blobs::Blobs;
use crate::builds::BuildNote;
use crate::chain::chain;
use crate::clock::{ms, now_ms};
use crate::config::units::show_duration;
use crate::config::{self, Config};
use crate::oci::OciError;
use crate::operations::ScheduleView;
use crate::plugins::Singles;
use crate::sandbox::{Allowance, Compiler, NOT_CONCURRENT, Sandbox, SandboxOptions};

/// The whole output as JSON. The names are stable.
#[derive(Debug, Serialize)]
struct CheckView {
    config: String,
    redis: String,
    warnings: Vec<String>,
    notes: Vec<String>,
    queues: Vec<CheckedQueue>,
    plugins: Vec<CheckedPlugin>,
    /// False when a plugin is bad.
    ok: bool,
}

#[derive(Debug, Serialize)]
struct CheckedQueue {
    queue: String,
    stream: String,
    plugin: String,
    schedule: Option<ScheduleView>,
    /// The schedule in words.
    #[serde(skip)]
    schedule_words: Option<String>,
}

#[derive(Debug, Serialize)]
struct CheckedPlugin {
    plugin: String,
    state: PluginVerdict,
    file: String,
    /// The registry that it comes from, with the digest that the tag has now.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    bytes: Option<u64>,
    version: Option<String>,
    #[serde(flatten)]
    build: BuildNote,
    /// Why the build is not known, although the file tells one.
    build_error: Option<String>,
    queues: Vec<String>,
    exports: Vec<String>,
    imports: Vec<String>,
    #[serde(serialize_with = "grants_json")]
    grants: config::Plugin,
    /// Whether it imports the interface for HTTP requests.
    makes_requests: bool,
    error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum PluginVerdict {
    Good,
    Missing,
    Bad,
}

/// Grants as JSON, without the values of settings. Times are milliseconds, sizes are bytes.
fn grants_json<S: Serializer>(grants: &config::Plugin, to: S) -> Result<S::Ok, S::Error> {
    let config::Plugin {
        config,
        memory,
        max_output,
        max_log_rate,
        allowed_hosts,
        http,
        warm,
        records,
        source: _,
    } = grants;
    let allowed_host = |entry: &config::AllowedHost| {
        let private: Vec<String> = entry.private_addresses.iter().map(ToString::to_string).collect();
        json!({ "host": entry.to_string(), "private_addresses": private })
    };
    let http = (!allowed_hosts.is_empty()).then(|| {
        json!({
            "connect_timeout_ms": ms(http.connect_timeout),
            "first_byte_timeout_ms": ms(http.first_byte_timeout),
            "between_bytes_timeout_ms": ms(http.between_bytes_timeout),
            "timeout_ms": http.timeout.map(ms),
            "max_concurrent": http.max_concurrent,
            "max_connections": http.max_connections,
            "max_requests": http.max_requests,
            "max_request_body": http.max_request_body,
            "max_response_body": http.max_response_body,
            "keep_alive_ms": ms(http.keep_alive),
            "ca": http.ca.len(),
        })
    });
    let instance = match warm {
        Some(warm) => {
            json!({ "warm": warm.idle, "max_tasks": warm.max_tasks, "concurrent": warm.concurrent })
        }
        None => json!("per-task"),
    };
    json!({
        "memory": memory,
        "max_output": max_output,
        "max_log_rate": max_log_rate,
        "config": config.keys().collect::<Vec<_>>(),
        "allowed_hosts": allowed_hosts.iter().map(allowed_host).collect::<Vec<_>>(),
        "http": http,
        "records": records.patterns(),
        "instance": instance,
    })
    .serialize(to)
}

fn grants_text(grants: &config::Plugin) -> String {
    let config::Plugin { config, memory, max_output, allowed_hosts, warm, records, .. } = grants;
    let mut lines = vec![format!("memory {}, output {}", text::size(*memory), text::size(*max_output))];
    lines.push(match warm {
        None => "an instance per task".to_owned(),
        Some(warm) => {
            let tasks = text::plural(warm.max_tasks.into(), "task");
            let at_once = match warm.concurrent {
                1 => String::new(),
                most => format!(", {most} at once"),
            };
            format!("{} kept warm, each for {tasks}{at_once}", text::plural(warm.idle.into(), "instance"))
        }
    });
    let list =
        |what: &str, names: Vec<String>| (!names.is_empty()).then(|| format!("{what} {}", names.join(", ")));
    lines.extend(list("records", records.patterns().to_vec()));
    lines.extend(list("config", config.keys().cloned().collect()));
    lines.extend(list("requests to", allowed_hosts.iter().map(ToString::to_string).collect()));
    for entry in allowed_hosts {
        let private = entry.private_addresses.iter().map(ToString::to_string).collect();
        lines.extend(list(&format!("  {entry} may resolve to"), private));
    }
    if !allowed_hosts.is_empty() {
        lines.extend(bounds_of_requests(&grants.http).into_iter().map(|line| format!("  {line}")));
    }
    lines.join("\n")
}

fn bounds_of_requests(http: &config::Http) -> Vec<String> {
    let whole = http.timeout.map_or("as long as the attempt".to_owned(), text::took);
    let kept = match http.keep_alive {
        Duration::ZERO => "connections are not kept".to_owned(),
        time => format!("kept for {}", text::took(time)),
    };
    let mut lines = vec![
        format!(
            "at most {} by one attempt, {} at once; {} at once in this host",
            http.max_requests, http.max_concurrent, http.max_connections
        ),
        format!(
            "bodies of {} out, {} in",
            text::size(http.max_request_body),
            text::size(http.max_response_body)
        ),
        format!(
            "times: connect {}, first byte {}, between bytes {}, all {whole}; {kept}",
            text::took(http.connect_timeout),
            text::took(http.first_byte_timeout),
            text::took(http.between_bytes_timeout)
        ),
    ];
    if !http.ca.is_empty() {
        lines.push(format!("{} beside the system's", text::plural(http.ca.len() as u64, "certificate")));
    }
    lines
}

pub(super) async fn run(config: &Config, out: &mut Out) -> CommandResult {
    let max_memory = config
        .plugins
        .values()
        .map(|plugin| plugin.memory)
        .max()
        .unwrap_or(0)
        .max(config::Plugin::default().memory);
    let sandbox = Sandbox::new(SandboxOptions {
        max_concurrent: 1,
        max_warm: 0,
        max_memory,
        compiler: Compiler::separate(),
        backtraces: false,
    })?;
    let redis = match &config.redis {
        config::RedisServer::Embedded => format!("embedded, under {}", config.data_dir.display()),
        _ => app::open_redis(config).context("[redis]")?.address().to_owned(),
    };
    // Settings that no store takes, such as a key of a wrong form. Nothing is asked of the store.
    Blobs::open(&config.blobs)?;
    let singles = Singles::new(sandbox.clone(), Some(config.cache_dir()));
    let mut plugins = Vec::new();
    for name in files::plugin_names(config) {
        let file = files::read(config, &name);
        let pulled = pulled(config, &file).await;
        plugins.push(examine(config, &sandbox, &singles, file, pulled));
    }
    let now_ms = now_ms();
    let queue = |queue: &config::QueueRules| CheckedQueue {
        queue: queue.name.clone(),
        stream: queue.stream.clone(),
        plugin: queue.plugin.clone(),
        schedule: queue.schedule.as_ref().map(|schedule| ScheduleView::new(schedule, now_ms)),
        schedule_words: queue.schedule.as_ref().map(|schedule| schedule::words(schedule, now_ms)),
    };
    let view = CheckView {
        config: config.path.display().to_string(),
        redis,
        warnings: config.warnings.iter().cloned().chain(config.exposures()).collect(),
        notes: folder_note(config)
            .into_iter()
            .chain(unused_files(config))
            .chain(config.slot_notes())
            .chain(hold_notes(&config.queues, &plugins))
            .chain(wait_notes(config))
            .chain(at_once_notes(config, &plugins))
            .collect(),
        queues: config.queues.iter().map(queue).collect(),
        ok: plugins.iter().all(|plugin| plugin.state != PluginVerdict::Bad),
        plugins,
    };
    out.show(&view, |paint| render(&view, paint));
    if view.ok { Ok(()) } else { Err(CommandError::Reported) }
}

impl CheckedPlugin {
    /// Whether it is `http-call`, or a plugin like it, whatever its file is called. Its configuration has a
    /// `url` and a `secret`, and it can tell the host of an outage.
    fn calls_an_application(&self) -> bool {
        let has = |key: &str| self.grants.config.contains_key(key);
        let tells = self.imports.iter().any(|import| import.starts_with("tqhost:extensions/outage@"));
        tells && has("url") && has("secret")
    }
}

/// Tells that the folder of the plugins is not there, which is no failure: a host looks for their files again
/// and again.
fn folder_note(config: &Config) -> Option<String> {
    let folder = &config.plugins_dir;
    let is_missing = folder.metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    is_missing.then(|| {
        format!(
            "plugins_dir: there is no folder {}: make it and put the plugins into it, or name another one",
            folder.display()
        )
    })
}

/// The queues that call an application and would not wait for it, each with the way out.
fn hold_notes(queues: &[config::QueueRules], plugins: &[CheckedPlugin]) -> Vec<String> {
    let calls = |queue: &&config::QueueRules| {
        plugins.iter().any(|plugin| plugin.plugin == queue.plugin && plugin.calls_an_application())
    };
    let note = |queue: &config::QueueRules| {
        format!(
            "queues.{}: plugin {} calls an application. While it is away or a setting is wrong, a backlog \
             becomes dead letters: give the queue hold = {{ after = 5, for = \"30s\" }}",
            queue.name, queue.plugin
        )
    };
    queues.iter().filter(|queue| queue.hold.is_none()).filter(calls).map(note).collect()
}

/// The queues whose attempts may take longer than their requests may wait for an answer, where nobody has
/// said that this is meant.
fn wait_notes(config: &Config) -> impl Iterator<Item = String> {
    let usual = config::Http::default().first_byte_timeout;
    let short = move |queue: &&config::QueueRules| {
        let plugin = config.plugins.get(&queue.plugin);
        let waits = |plugin: &config::Plugin| {
            !plugin.allowed_hosts.is_empty() && plugin.http.first_byte_timeout == usual
        };
        queue.timeout > usual && plugin.is_some_and(waits)
    };
    config.queues.iter().filter(short).map(move |queue| {
        let (name, plugin) = (&queue.name, &queue.plugin);
        let (timeout, usual) = (show_duration(queue.timeout), show_duration(usual));
        format!(
            "queues.{name}: timeout is {timeout}, and a request of plugin {plugin} waits {usual} for the \
             beginning of an answer: a slow application needs [plugins.{plugin}] \
             http = {{ first_byte_timeout = \"{timeout}\" }}"
        )
    })
}

/// The bounds of how much runs at once that another bound makes useless.
fn at_once_notes(config: &Config, plugins: &[CheckedPlugin]) -> Vec<String> {
    let mut notes = Vec::new();
    for (name, grants) in &config.plugins {
        let queues = config.queues.iter().filter(|queue| queue.plugin == *name);
        let most = queues.map(|queue| queue.concurrency).fold(0, u32::saturating_add);
        if grants.http.max_connections < most && !grants.allowed_hosts.is_empty() {
            notes.push(format!(
                "plugins.{name}.http: max_connections = {} bounds the requests of {most} tasks at once \
                 (`concurrency`): the others wait",
                grants.http.max_connections
            ));
        }
        let Some(concurrent) = grants.warm.map(|warm| warm.concurrent).filter(|tasks| *tasks > 1) else {
            continue;
        };
        if concurrent > most && most > 0 {
            notes.push(format!(
                "plugins.{name}.instance: of concurrent = {concurrent} tasks at once in an instance, \
                 its queues run {most} (`concurrency`)"
            ));
        }
        let runs_many = |plugin: &CheckedPlugin| {
            plugin.exports.iter().any(|export| export.starts_with("tqhost:extensions/concurrent-handler@"))
        };
        let checked = plugins.iter().find(|plugin| plugin.plugin == *name);
        if checked.is_some_and(|plugin| plugin.state == PluginVerdict::Good && !runs_many(plugin)) {
            notes.push(format!(
                "plugins.{name}.instance: concurrent = {concurrent} has no effect: {NOT_CONCURRENT}"
            ));
        }
    }
    notes
}

/// Does with a plugin what a host does before it runs it, except for the self-check.
fn examine(
    config: &Config,
    sandbox: &Sandbox,
    singles: &Singles,
    file: PluginFile,
    pulled: Option<Result<PulledPlugin, OciError>>,
) -> CheckedPlugin {
    let PluginFile { name, path, queues, mut content } = file;
    let mut source = config.plugins.get(&name).and_then(|plugin| plugin.source.clone());
    let mut unpulled = None;
    match pulled {
        Some(Ok(pulled)) => {
            source = Some(pulled.source);
            content = pulled.bytes.map(|bytes| Ok(FileContent::new(&path, bytes))).or(content);
        }
        Some(Err(error)) => unpulled = Some(format!("it cannot be pulled: {error}")),
        None => {}
    }
    let grants = config.plugins.get(&name).cloned().unwrap_or_default();
    let mut view = CheckedPlugin {
        plugin: name,
        state: PluginVerdict::Missing,
        file: path.display().to_string(),
        source: source.map(|source| source.to_string()),
        bytes: None,
        version: None,
        build: BuildNote::default(),
        build_error: None,
        queues,
        exports: Vec::new(),
        imports: Vec::new(),
        grants,
        makes_requests: false,
        error: None,
    };
    let problem = match content {
        None if unpulled.is_none() => return view,
        None => None,
        Some(Err(error)) => Some(format!("cannot be read: {error}")),
        Some(Ok(content)) => {
            view.bytes = Some(content.bytes.len() as u64);
            let found = sandbox.inspect(&content.bytes).map(|found| {
                view.makes_requests = found.makes_requests();
                (view.exports, view.imports) = (found.exports, found.imports);
            });
            let loaded = found.and_then(|()| singles.load(&content.bytes, &view.grants, &Allowance::full()));
            view.version = Some(content.digest);
            (view.build, view.build_error) = (content.build, content.build_error);
            loaded.err().map(|error| chain(&error))
        }
    };
    let problem = unpulled.or(problem);
    view.state = if problem.is_some() { PluginVerdict::Bad } else { PluginVerdict::Good };
    view.error = problem;
    view
}

fn render(view: &CheckView, paint: Paint) -> String {
    let mut head = vec![("configuration", view.config.clone()), ("redis", view.redis.clone())];
    head.extend(
        view.warnings.iter().map(|warning| ("warning", paint.tone(Tone::Warning, &text::escape(warning)))),
    );
    head.extend(view.notes.iter().map(|note| ("note", text::escape(note))));
    let with_stream = |queue: &CheckedQueue| {
        let stream =
            if queue.stream == queue.queue { String::new() } else { format!(" (stream {})", queue.stream) };
        let words = queue.schedule_words.as_ref();
        let schedule = words.map_or_else(String::new, |words| format!("\n  schedule {words}"));
        format!("{}{stream} → plugin {}{schedule}", queue.queue, queue.plugin)
    };
    let queues: Vec<String> = view.queues.iter().map(with_stream).collect();
    head.push(("queues", if queues.is_empty() { "none".to_owned() } else { queues.join("\n") }));
    let mut parts = vec![sheet(paint, &head)];
    parts.extend(view.plugins.iter().map(|plugin| render_plugin(plugin, paint)));
    let bad = view.plugins.iter().filter(|plugin| plugin.state == PluginVerdict::Bad).count() as u64;
    let missing = view.plugins.iter().filter(|plugin| plugin.state == PluginVerdict::Missing).count() as u64;
    parts.push(match (bad, missing) {
        (0, 0) => paint.tone(Tone::Good, "All good."),
        (0, missing) => paint.tone(Tone::Warning, &format!("Good, but {} missing.", is_or_are(missing))),
        (bad, _) => paint.tone(Tone::Bad, &format!("{} cannot be used.", text::plural(bad, "plugin"))),
    });
    parts.join("\n\n")
}

fn is_or_are(plugins: u64) -> String {
    format!("{} {}", text::plural(plugins, "plugin"), if plugins == 1 { "is" } else { "are" })
}

fn render_plugin(plugin: &CheckedPlugin, paint: Paint) -> String {
    let state = match (plugin.state, plugin.queues.len()) {
        (PluginVerdict::Good, _) => paint.tone(Tone::Good, "good"),
        (PluginVerdict::Missing, 0) => paint.tone(Tone::Warning, "missing"),
        (PluginVerdict::Missing, 1) => paint.tone(Tone::Warning, "missing: its queue waits"),
        (PluginVerdict::Missing, _) => paint.tone(Tone::Warning, "missing: its queues wait"),
        (PluginVerdict::Bad, _) => paint.tone(
            Tone::Bad,
            &format!("bad: {}", text::escape_block(plugin.error.as_deref().unwrap_or_default())),
        ),
    };
    let mut lines = vec![("state", state), ("file", plugin.file.clone())];
    lines.extend(plugin.source.iter().map(|source| ("source", source.clone())));
    if let (Some(bytes), Some(version)) = (plugin.bytes, &plugin.version) {
        lines.push(("size", text::size(bytes)));
        lines.push(("version", text::escape(&plugin.build.words(version))));
        lines.push(("build", build_words(plugin)));
    }
    lines.push(("exports", by_package(&plugin.exports)));
    lines.push(("imports", by_package(&plugin.imports)));
    lines.push(("grants", grants_text(&plugin.grants)));
    if plugin.makes_requests && plugin.grants.allowed_hosts.is_empty() {
        lines.push((
            "note",
            "it can make requests (wasi:http), and allowed_hosts allows none: each would be refused"
                .to_owned(),
        ));
    }
    lines.retain(|(_, value)| !value.is_empty());
    format!("{}\n{}", paint.tone(Tone::Title, &format!("plugin {}", plugin.plugin)), sheet(paint, &lines))
}

/// The build without its label, in words.
fn build_words(plugin: &CheckedPlugin) -> String {
    let BuildNote { commit, built_at, author, .. } = &plugin.build;
    let commit = commit.as_ref().map(|commit| format!("commit {commit}"));
    let at = built_at.map(|ms| text::local(ms, &TimeZone::UTC, "%Y-%m-%d %H:%M:%S UTC"));
    let author = author.as_ref().map(|author| format!("by {author}"));
    let known = [commit, at, author, plugin.build_error.clone()].into_iter().flatten();
    text::escape(&known.collect::<Vec<_>>().join(", "))
}

/// Interfaces of one package on one line: `wasi:io@0.2.6  poll, error, streams`.
fn by_package(names: &[String]) -> String {
    let mut packages: Vec<(String, Vec<&str>)> = Vec::new();
    for name in names {
        let (path, version) = name
            .split_once('@')
            .map_or((name.as_str(), String::new()), |(path, version)| (path, format!("@{version}")));
        let (package, interface) = path.split_once('/').unwrap_or((path, ""));
        let package = format!("{package}{version}");
        match packages.iter_mut().find(|(known, _)| *known == package) {
            Some((_, interfaces)) => interfaces.push(interface),
            None => packages.push((package, vec![interface])),
        }
    }
    let line = |(package, interfaces): &(String, Vec<&str>)| format!("{package}  {}", interfaces.join(", "));
    packages.iter().map(|package| text::escape(line(package).trim_end())).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Paint = Paint { colour: false, width: None };

    fn checked(folder: &std::path::Path) -> CheckView {
        let config = files::tests::config(folder);
        std::fs::write(folder.join("plugins/p.wasm"), "(module)").expect("write");
        let sandbox = Sandbox::new(SandboxOptions {
            max_concurrent: 1,
            max_warm: 0,
            max_memory: 1 << 20,
            compiler: Compiler::Here,
            backtraces: false,
        })
        .expect("a sandbox");
        let singles = Singles::without_cache(sandbox.clone());
        let mut plugins: Vec<CheckedPlugin> = ["p", "b"]
            .iter()
            .map(|name| files::read(&config, name))
            .map(|file| examine(&config, &sandbox, &singles, file, None))
            .collect();
        for plugin in &mut plugins {
            plugin.file = plugin.file.replace(&folder.display().to_string(), "/srv");
        }
        let queues = vec![CheckedQueue {
            queue: "a".into(),
            stream: "a".into(),
            plugin: "p".into(),
            schedule: None,
            schedule_words: None,
        }];
        CheckView {
            config: "/srv/tqhost.toml".into(),
            redis: "redis://localhost".into(),
            warnings: vec!["odd".into()],
            notes: Vec::new(),
            queues,
            plugins,
            ok: false,
        }
    }

    #[test]
    fn interfaces_of_a_package_share_a_line() {
        let names = ["wasi:io/poll@0.2.6", "tqhost:handler/types@0.1.0", "wasi:io/error@0.2.6", "odd\u{7}"]
            .map(str::to_owned);
        assert_eq!(by_package(&names), "wasi:io@0.2.6  poll, error\ntqhost:handler@0.1.0  types\nodd\\u{7}");
    }

    #[test]
    fn bad_and_missing_plugins() {
        let folder = tempfile::tempdir().expect("a folder");
        let view = checked(folder.path());
        let text = render(&view, PLAIN);
        assert!(!text.contains("hunter2"));
        insta::assert_snapshot!(text);
        insta::assert_json_snapshot!(view);
    }

    #[test]
    fn a_folder_that_is_not_there_is_noted() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = files::tests::config(folder.path());
        assert_eq!(folder_note(&config), None);
        std::fs::remove_dir(&config.plugins_dir).expect("remove a folder");
        let note = folder_note(&config).expect("a note");
        let path = config.plugins_dir.display();
        assert!(note.starts_with(&format!("plugins_dir: there is no folder {path}: ")), "{note}");
        // A file in its place makes each plugin bad, which says enough.
        std::fs::write(&config.plugins_dir, "").expect("write");
        assert_eq!(folder_note(&config), None);
        assert!(matches!(files::read(&config, "p").content, Some(Err(_))));
    }

    #[test]
    fn a_queue_that_does_not_wait_for_its_application_is_noted() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut queues = files::tests::config(folder.path()).queues;
        let mut plugin = checked(folder.path()).plugins.remove(0);
        plugin.grants.config = ["secret", "url"].map(|key| (key.to_owned(), config::Secret::new(""))).into();
        assert!(hold_notes(&queues, std::slice::from_ref(&plugin)).is_empty(), "it tells of no outage");
        plugin.imports = vec!["tqhost:extensions/outage@0.1.0".into()];
        queues[2].hold = Some(config::HoldRules { after: 5, pause: Duration::from_secs(30) });
        let notes = hold_notes(&queues, std::slice::from_ref(&plugin));
        // The queue `b` has another plugin, and `c` has a hold.
        assert!(matches!(&notes[..], [note] if note.starts_with("queues.a: plugin p calls")), "{notes:?}");
        plugin.grants.config.remove("secret");
        assert!(hold_notes(&queues, &[plugin]).is_empty(), "a handler that asks a model");
    }
}
