//! The notes of `tqhost check`: what is valid in a configuration, and probably not meant.
//!
//! In: the configuration, and the plugins that were checked. Out: sentences, each with the way out. Not here:
//! warnings, which a host logs, too (`config`).

use std::io::ErrorKind;

use super::plugin::{CheckedPlugin, PluginVerdict};
use crate::config::units::show_duration;
use crate::config::{self, Config};
use crate::sandbox::NOT_CONCURRENT;

pub(super) fn notes(config: &Config, plugins: &[CheckedPlugin]) -> Vec<String> {
    folder_note(config)
        .into_iter()
        .chain(unused_files(config))
        .chain(config.slot_notes())
        .chain(hold_notes(&config.queues, plugins))
        .chain(wait_notes(config))
        .chain(at_once_notes(config, plugins))
        .collect()
}

/// Says that there is no folder of the plugins. That is no failure, as a host looks for their files again and
/// again.
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

/// A note for each file in `plugins_dir` that no host uses, as its plugin comes from a registry.
fn unused_files(config: &Config) -> impl Iterator<Item = String> {
    let with_source = config.plugins.iter().filter(|(_, plugin)| plugin.source.is_some());
    let files = with_source.map(|(name, _)| (name, config.plugins_dir.join(format!("{name}.wasm"))));
    files.filter(|(_, path)| path.exists()).map(|(name, path)| {
        let path = path.display();
        format!(
            "plugins.{name}.source: the plugin comes from there, and {path} is not used: remove one of them"
        )
    })
}

/// A note for each queue that calls an application and would not wait until it is up again.
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

/// A note for each queue whose attempts may take longer than their requests may wait for an answer. A plugin
/// with a `first_byte_timeout` of its own has none.
fn wait_notes(config: &Config) -> impl Iterator<Item = String> {
    let usual = config::Http::default().first_byte_timeout;
    let waits_too_short = move |queue: &&config::QueueRules| {
        let plugin = config.plugins.get(&queue.plugin);
        let waits_as_usual = |plugin: &config::Plugin| {
            !plugin.allowed_hosts.is_empty() && plugin.http.first_byte_timeout == usual
        };
        queue.timeout > usual && plugin.is_some_and(waits_as_usual)
    };
    config.queues.iter().filter(waits_too_short).map(move |queue| {
        let (name, plugin) = (&queue.name, &queue.plugin);
        let (timeout, usual) = (show_duration(queue.timeout), show_duration(usual));
        format!(
            "queues.{name}: timeout is {timeout}, and a request of plugin {plugin} waits {usual} for the \
             beginning of an answer: a slow application needs [plugins.{plugin}] \
             http = {{ first_byte_timeout = \"{timeout}\" }}"
        )
    })
}

/// A note for each bound of tasks at once that has no effect, or that makes others wait.
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

#[cfg(test)]
mod tests {
    use std::slice::from_ref;
    use std::time::Duration;

    use super::super::super::files;
    use super::super::tests::checked;
    use super::*;

    #[test]
    fn a_folder_that_is_not_there_is_noted() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = files::tests::config(folder.path());
        assert_eq!(folder_note(&config), None);
        std::fs::remove_dir(&config.plugins_dir).expect("remove a folder");
        let note = folder_note(&config).expect("a note");
        insta::assert_snapshot!(note.replace(&config.plugins_dir.display().to_string(), "FOLDER"), @r"
        plugins_dir: there is no folder FOLDER: make it and put the plugins into it, or name another one
        ");
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
        assert!(hold_notes(&queues, from_ref(&plugin)).is_empty(), "it tells of no outage");
        plugin.imports = vec!["tqhost:extensions/outage@0.1.0".into()];
        queues[2].hold = Some(config::HoldRules { after: 5, pause: Duration::from_secs(30) });
        let notes = hold_notes(&queues, from_ref(&plugin));
        // The queue `b` has another plugin, and `c` has a hold.
        assert!(matches!(&notes[..], [note] if note.starts_with("queues.a: plugin p calls")), "{notes:?}");
        plugin.grants.config.remove("secret");
        assert!(hold_notes(&queues, &[plugin]).is_empty(), "a handler that asks a model");
    }
}
