//! `tqhost check`: whether a host could start with this configuration and these plugins. Needs no Redis.
//!
//! In: a valid configuration. Out: the queues, notes, and each plugin with what is wrong with it. A missing
//! plugin is no failure, as its queue waits for it.

mod grants;
mod notes;
mod plugin;

use anyhow::Context;
use serde::Serialize;

use super::exit::{CommandError, CommandResult};
use super::output::{Out, Paint, Tone, sheet};
use super::{files, schedule, text};
use crate::app;
use crate::blobs::Blobs;
use crate::clock::now_ms;
use crate::config::{self, Config};
use crate::operations::ScheduleView;
use crate::plugins::Singles;
use crate::sandbox::{Compiler, Sandbox, SandboxOptions};
use notes::notes;
use plugin::{CheckedPlugin, PluginVerdict, examine, pulled};

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

pub(super) async fn run(config: &Config, out: &mut Out) -> CommandResult {
    let default = config::Plugin::default();
    let grants = config.plugins.values().chain([&default]);
    let max_memory = grants.map(|plugin| plugin.memory).max().unwrap_or_default();
    let sandbox = Sandbox::new(SandboxOptions::single(max_memory, Compiler::separate()))?;
    let redis = match &config.redis {
        config::RedisServer::Embedded => format!("embedded, under {}", config.data_dir.display()),
        _ => app::open_redis(config).context("[redis]")?.address().to_owned(),
    };
    // This fails for settings that no store takes, such as a key of a wrong form. It asks the store nothing.
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
        notes: notes(config, &plugins),
        queues: config.queues.iter().map(queue).collect(),
        ok: plugins.iter().all(|plugin| plugin.state != PluginVerdict::Bad),
        plugins,
    };
    out.show(&view, |paint| render(&view, paint));
    if view.ok { Ok(()) } else { Err(CommandError::Reported) }
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
    parts.extend(view.plugins.iter().map(|plugin| plugin::render(plugin, paint)));
    let count = |state| view.plugins.iter().filter(|plugin| plugin.state == state).count() as u64;
    parts.push(match (count(PluginVerdict::Bad), count(PluginVerdict::Missing)) {
        (0, 0) => paint.tone(Tone::Good, "All good."),
        (0, 1) => paint.tone(Tone::Warning, "Good, but 1 plugin is missing."),
        (0, missing) => paint.tone(Tone::Warning, &format!("Good, but {missing} plugins are missing.")),
        (bad, _) => paint.tone(Tone::Bad, &format!("{} cannot be used.", text::plural(bad, "plugin"))),
    });
    parts.join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Paint = Paint { colour: false, width: None };

    pub(super) fn checked(folder: &std::path::Path) -> CheckView {
        let config = files::tests::config(folder);
        std::fs::write(folder.join("plugins/p.wasm"), "(module)").expect("write");
        let sandbox = Sandbox::new(SandboxOptions::single(1 << 20, Compiler::Here)).expect("a sandbox");
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
    fn bad_and_missing_plugins() {
        let folder = tempfile::tempdir().expect("a folder");
        let view = checked(folder.path());
        let text = render(&view, PLAIN);
        assert!(!text.contains("hunter2"));
        insta::assert_snapshot!(text);
        insta::assert_json_snapshot!(view);
    }
}
