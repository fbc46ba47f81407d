//! `tqhost plugins`: the plugins of the running hosts; without a host, the files that one would load.
//!
//! In: what hosts publish about themselves in Redis. Out: a row per plugin and host, with the last errors
//! below, or the rows as JSON. For one plugin, the last changes of its versions too. Not here: what hosts
//! publish (`queue::hosts`, `announcer`).

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::context::connect_if_running;
use super::exit::{CommandError, CommandResult};
use super::files;
use super::output::{Out, Paint, Tone};
use super::push::PluginsCommand;
use super::table::{Cell, TextTable};
use super::text;
use crate::builds::{BuildNote, short};
use crate::clock;
use crate::config::Config;
use crate::operations::history::{self, VersionView};
use crate::operations::{PluginView, plugin_rows};
use crate::queue::hosts;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct PluginsArgs {
    /// Show this plugin only, with the history of its versions
    #[arg(value_name = "PLUGIN")]
    pub plugin: Option<String>,
    #[command(subcommand)]
    pub command: Option<PluginsCommand>,
}

/// The whole output as JSON. The names are stable.
#[derive(Debug, Serialize)]
struct PluginsView {
    hosts: usize,
    plugins: Vec<PluginView>,
    /// The ends of attempts in the last hour, by version: all hosts and queues together.
    versions: Vec<VersionView>,
    /// Only when no host runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<Vec<FileView>>,
}

#[derive(Debug, Serialize)]
struct FileView {
    plugin: String,
    file: String,
    bytes: Option<u64>,
    version: Option<String>,
    #[serde(flatten)]
    build: BuildNote,
    error: Option<String>,
}

pub(super) async fn run(config: &Config, only: Option<&str>, out: &mut Out) -> CommandResult {
    let names: Vec<String> =
        files::plugin_names(config).into_iter().filter(|name| only.is_none_or(|only| only == name)).collect();
    let (mut hosts, mut versions) = (Vec::new(), Vec::new());
    if let Some(link) = connect_if_running(config).await? {
        hosts = hosts::list(&link).await?;
        versions = history::versions(&config.queues, &link, &hosts).await?;
    }
    let mut plugins = plugin_rows(&hosts);
    plugins.retain(|row| only.is_none_or(|only| row.plugin.name == only));
    // A plugin that this configuration does not have may be one of a host with another configuration.
    if let Some(only) = only
        && names.is_empty()
        && plugins.is_empty()
    {
        let text = format!("no queue of the configuration and no running host uses a plugin `{only}`");
        return Err(CommandError::Usage(text));
    }
    versions.retain(|view| only.is_none_or(|only| view.version.split('@').next() == Some(only)));
    let view = PluginsView {
        hosts: hosts.len(),
        plugins,
        versions,
        files: hosts.is_empty().then(|| names.iter().map(|name| file(config, name)).collect()),
    };
    out.show(&view, |paint| match &view.files {
        None => render(&view, only.is_some(), clock::now_ms(), paint),
        Some(files) => {
            let folder = config.plugins_dir.display();
            format!("No host is running. The files in {folder}:\n{}", render_files(files, paint))
        }
    });
    Ok(())
}

fn render(view: &PluginsView, with_history: bool, now_ms: u64, paint: Paint) -> String {
    let mut parts = vec![render_plugins(&view.plugins, now_ms, paint)];
    if !view.versions.is_empty() {
        let title = "What attempts came to in the last hour, on all hosts:";
        parts.push(format!("{title}\n{}", render_versions(&view.versions, paint)));
    }
    if with_history && !view.plugins.is_empty() {
        parts.push(render_history(&view.plugins, now_ms, paint));
    }
    parts.join("\n\n")
}

fn file(config: &Config, name: &str) -> FileView {
    let file = files::read(config, name);
    let mut view = FileView {
        plugin: file.name,
        file: file.path.display().to_string(),
        bytes: None,
        version: None,
        build: BuildNote::default(),
        error: None,
    };
    match file.content {
        None => view.error = Some("missing".into()),
        Some(Err(error)) => view.error = Some(error.to_string()),
        Some(Ok(content)) => {
            (view.bytes, view.version) = (Some(content.bytes.len() as u64), Some(content.digest));
            view.build = content.build;
        }
    }
    view
}

fn render_plugins(rows: &[PluginView], now_ms: u64, paint: Paint) -> String {
    if rows.is_empty() {
        return "The running hosts have no plugins.".into();
    }
    let spare = &["COMPILED", "PEAK MEMORY", "LOADED", "ATTEMPTS", "FAILURES", "HOST"];
    let mut table = TextTable::with_spare(spare)
        .names(["PLUGIN", "HOST"])
        .fixed(["STATE"])
        .names(["VERSION"])
        .figures(["LOADED", "COMPILED", "ATTEMPTS", "FAILURES", "PEAK MEMORY"]);
    let (mut errors, mut notes) = (Vec::new(), Vec::new());
    for PluginView { host, build, plugin } in rows {
        let tone = match plugin.state.as_str() {
            "active" => Tone::Good,
            "missing" => Tone::Warning,
            _ => Tone::Bad,
        };
        let trial = if plugin.on_probation { " (on probation)" } else { "" };
        let version = plugin.version.as_deref().map(|version| build.words(version) + trial);
        let compiled = match plugin.from_cache {
            true => Some("cached".to_owned()),
            false => plugin.compile_ms.map(|ms| text::took(Duration::from_millis(ms))),
        };
        table.row([
            (&plugin.name).into(),
            host.into(),
            Cell::tone(&plugin.state, tone),
            Cell::known(version),
            Cell::known(plugin.loaded_at.map(|at| text::ago(at, now_ms))),
            Cell::known(compiled),
            plugin.attempts.into(),
            plugin.failures.into(),
            text::size(plugin.peak_memory).into(),
        ]);
        if let (Some(version), Some(since)) = (&plugin.compiling, plugin.compiling_since) {
            let (name, host, version) = (&plugin.name, text::escape(host), text::escape(short(version)));
            let time = text::age_ms(now_ms.saturating_sub(since));
            notes.push(format!("{name} on {host}: {version} has been compiled for {time}"));
        }
        if let Some(error) = &plugin.error {
            let again = match plugin.retry_at.map(|at| at.saturating_sub(now_ms)) {
                None => String::new(),
                Some(0) => " (tried again now)".to_owned(),
                Some(ms) => format!(" (tried again in {})", text::age_ms(ms)),
            };
            errors.push(format!("{} on {}: {}{again}", plugin.name, text::escape(host), text::escape(error)));
        }
    }
    let mut parts = vec![table.render(paint)];
    for (tone, lines) in [(Tone::Bad, errors), (Tone::Faint, notes)] {
        if !lines.is_empty() {
            parts.push(paint.tone(tone, &lines.join("\n")));
        }
    }
    parts.join("\n\n")
}

/// The ends of attempts, by version. FAILED counts attempts that the sandbox ended, and OTHERS those that
/// found a service down or were deferred.
fn render_versions(versions: &[VersionView], paint: Paint) -> String {
    let mut table =
        TextTable::with_spare(&["OTHERS", "RETRIED", "REJECTED", "COMPLETED", "ATTEMPTS", "FAILED"])
            .names(["VERSION"])
            .figures(["ATTEMPTS", "COMPLETED", "RETRIED", "REJECTED", "FAILED", "OTHERS"]);
    for of in versions {
        table.row([
            of.words().into(),
            of.attempts.into(),
            of.completed.into(),
            of.retried.into(),
            of.rejected.into(),
            (of.trapped + of.timed_out + of.out_of_memory + of.failed).into(),
            (of.deferred + of.unavailable).into(),
        ]);
    }
    table.render(paint)
}

/// The changes of a plugin's versions, newest first.
fn render_history(rows: &[PluginView], now_ms: u64, paint: Paint) -> String {
    let mut table = TextTable::with_spare(&["TOOK", "HOST", "WHEN"])
        .figures(["WHEN"])
        .names(["HOST"])
        .texts(["CHANGE"])
        .names(["VERSION"])
        .figures(["TOOK"])
        .texts(["REASON"]);
    let mut changes: Vec<_> = rows
        .iter()
        .flat_map(|row| row.plugin.history.iter().rev().map(move |change| (row, change)))
        .collect();
    changes.sort_by_key(|(_, change)| std::cmp::Reverse(change.at));
    for (PluginView { host, plugin, .. }, change) in changes {
        let tone = match change.what.as_str() {
            "failed" | "self-check-failed" | "rolled-back" | "quarantined" => Tone::Bad,
            "removed" => Tone::Warning,
            _ => Tone::Good,
        };
        table.row([
            text::ago(change.at, now_ms).into(),
            host.into(),
            Cell::tone(&change.what, tone),
            Cell::known(change.version.as_ref().map(|version| plugin.builds.words(version))),
            Cell::known(change.took_ms.map(|ms| text::took(Duration::from_millis(ms)))),
            Cell::known(change.reason.as_ref()),
        ]);
    }
    table.render(paint)
}

fn render_files(files: &[FileView], paint: Paint) -> String {
    let mut table =
        TextTable::with_spare(&["SIZE"]).names(["PLUGIN", "FILE"]).figures(["SIZE"]).texts(["VERSION"]);
    for file in files {
        let version = match (&file.version, &file.error) {
            (Some(version), _) => Cell::from(file.build.words(version)),
            (None, error) => Cell::tone(error.as_deref().unwrap_or(text::NONE), Tone::Warning),
        };
        let size = Cell::known(file.bytes.map(text::size));
        table.row([(&file.plugin).into(), (&file.file).into(), size, version]);
    }
    table.render(paint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builds::Builds;
    use crate::queue::hosts::{HostChange, HostInfo, HostPlugin};

    const PLAIN: Paint = Paint { colour: false, width: None };

    fn change(what: &str, reason: Option<&str>) -> HostChange {
        let version = Some("77ac0aa2b7d4e5f60718".to_owned());
        HostChange {
            at: 1_700_000_100_000,
            what: what.into(),
            version,
            took_ms: Some(1234),
            reason: reason.map(str::to_owned),
        }
    }

    /// The label of the version that is active.
    fn builds() -> Builds {
        let mut builds = Builds::default();
        let (label, commit) = (Some("v1.4".to_owned()), Some("5e1f0c2".to_owned()));
        builds.add("3f1c0aa2b7d4e5f60718", BuildNote { label, commit, ..BuildNote::default() });
        builds
    }

    fn host() -> HostInfo {
        let active = HostPlugin {
            name: "resume-analyze".into(),
            state: "active".into(),
            version: Some("3f1c0aa2b7d4e5f60718".into()),
            loaded_at: Some(1_700_000_000_000),
            compile_ms: Some(1350),
            bytes: Some(2 << 20),
            attempts: 120,
            failures: 3,
            version_attempts: 100,
            version_failures: 4,
            peak_memory: 14 << 20,
            reloads: 1,
            rolled_back: 1,
            on_probation: true,
            can_go_back: Some(true),
            history: vec![change("loaded", None), change("rolled-back", Some("it spoiled\n6 tasks"))],
            builds: builds(),
            ..HostPlugin::default()
        };
        let error = Some("it exports no\nhandler".to_owned());
        let failed = HostPlugin {
            name: "mail".into(),
            state: "failed".into(),
            version: None,
            compiling: Some("77ac0aa2b7d4e5f60718".into()),
            compiling_since: Some(1_700_000_180_000),
            error,
            retry_at: Some(1_700_000_210_000),
            loaded_at: None,
            compile_ms: None,
            ..active.clone()
        };
        HostInfo { id: "box-1".into(), plugins: vec![active, failed], ..HostInfo::default() }
    }

    #[test]
    fn plugins_of_a_host() {
        let hosts = [host()];
        insta::assert_snapshot!(render_plugins(&plugin_rows(&hosts), 1_700_000_192_000, PLAIN));
        insta::assert_snapshot!(render_history(&plugin_rows(&hosts)[1..], 1_700_000_192_000, PLAIN));
        let view = PluginsView {
            hosts: 1,
            plugins: plugin_rows(&hosts).into_iter().take(1).collect(),
            versions: vec![version()],
            files: None,
        };
        insta::assert_json_snapshot!(view);
    }

    fn version() -> VersionView {
        VersionView {
            version: "resume-analyze@3f1c0aa2b7d4".into(),
            label: Some("v1.4".into()),
            attempts: 120,
            completed: 80,
            retried: 10,
            rejected: 20,
            deferred: 1,
            unavailable: 2,
            trapped: 3,
            timed_out: 2,
            out_of_memory: 1,
            failed: 1,
            mean_ms: 1.5,
        }
    }

    #[test]
    fn outcomes_of_a_version() {
        insta::assert_snapshot!(render_versions(&[version()], PLAIN), @r"
        VERSION                             ATTEMPTS  COMPLETED  RETRIED  REJECTED  FAILED  OTHERS
        resume-analyze v1.4 (3f1c0aa2b7d4)       120         80       10        20       7       3
        ");
    }

    #[test]
    fn files_when_no_host_runs() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = files::tests::config(folder.path());
        std::fs::write(folder.path().join("plugins/p.wasm"), "abc").expect("write");
        let mut files: Vec<FileView> = ["p", "b"].iter().map(|name| file(&config, name)).collect();
        for file in &mut files {
            file.file = file.file.replace(&folder.path().display().to_string(), "/srv");
        }
        insta::assert_snapshot!(render_files(&files, PLAIN));
    }
}
