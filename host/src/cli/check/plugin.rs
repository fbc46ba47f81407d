//! A plugin of the configuration, checked as a host checks it before it runs the plugin.
//!
//! In: the plugin's file, or the bytes from its registry. Out: its version, exports, imports and grants, or
//! what is wrong with it; as JSON, or as a sheet. Not here: how a plugin is loaded (`sandbox`), requests to a
//! registry (`oci`).

use jiff::tz::TimeZone;
use serde::Serialize;

use super::super::files::{FileContent, PluginFile};
use super::super::output::{Paint, Tone, sheet};
use super::super::text;
use super::grants;
use crate::builds::BuildNote;
use crate::chain::chain;
use crate::config::{self, Config, OciReference};
use crate::oci::{OciError, RegistryHttp, Repository, TRANSFER};
use crate::plugins::Singles;
use crate::sandbox::{Allowance, Sandbox};

/// A plugin as JSON. The names are stable.
#[derive(Debug, Serialize)]
pub(super) struct CheckedPlugin {
    pub plugin: String,
    pub state: PluginVerdict,
    pub file: String,
    /// The reference in its registry, with the digest that the tag has now.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    bytes: Option<u64>,
    version: Option<String>,
    #[serde(flatten)]
    build: BuildNote,
    /// Why the build cannot be read that the file tells of.
    build_error: Option<String>,
    pub queues: Vec<String>,
    pub exports: Vec<String>,
    pub imports: Vec<String>,
    #[serde(serialize_with = "grants::json")]
    pub grants: config::Plugin,
    /// Whether it imports the interface for HTTP requests.
    makes_requests: bool,
    error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum PluginVerdict {
    Good,
    Missing,
    Bad,
}

impl CheckedPlugin {
    /// Whether this is `http-call` or a plugin like it: its configuration has a `url` and a `secret`, and it
    /// can tell the host of an outage. The name of its file does not count.
    pub(super) fn calls_an_application(&self) -> bool {
        let has = |key: &str| self.grants.config.contains_key(key);
        let tells = self.imports.iter().any(|import| import.starts_with("tqhost:extensions/outage@"));
        tells && has("url") && has("secret")
    }
}

/// A plugin as its registry has it now, which is what a host would take.
pub(super) struct PulledPlugin {
    /// With the digest of the manifest.
    source: OciReference,
    /// None: a host has pulled the same file before.
    bytes: Option<Vec<u8>>,
}

/// Pulls a plugin, unless `file`, which a host may have pulled before, is the same. None: the plugin has no
/// source.
pub(super) async fn pulled(config: &Config, file: &PluginFile) -> Option<Result<PulledPlugin, OciError>> {
    let source = config.plugins.get(&file.name)?.source.as_ref()?;
    let there =
        file.content.as_ref().and_then(|content| content.as_ref().ok()).map(|content| &content.digest);
    let pulling = async {
        let repository = Repository::new(RegistryHttp::new()?, source);
        let manifest = repository.manifest().await?;
        let mut bytes = None;
        if there.is_none_or(|there| manifest.layer.digest != format!("sha256:{there}")) {
            repository.layer(&manifest.layer, bytes.insert(Vec::new())).await?;
        }
        Ok(PulledPlugin { source: source.pinned(&manifest.digest), bytes })
    };
    let within = tokio::time::timeout(TRANSFER, pulling).await;
    Some(within.unwrap_or_else(|_| Err(OciError::passing("the pull did not end in time"))))
}

/// Checks a plugin as a host does before it runs the plugin, except for the self-check. `pulled` is what its
/// registry has, if it comes from one.
pub(super) fn examine(
    config: &Config,
    sandbox: &Sandbox,
    singles: &Singles,
    file: PluginFile,
    pulled: Option<Result<PulledPlugin, OciError>>,
) -> CheckedPlugin {
    let PluginFile { name, path, queues, mut content } = file;
    let grants = config.plugins.get(&name).cloned().unwrap_or_default();
    let mut source = grants.source.clone();
    let mut pull_error = None;
    match pulled {
        Some(Ok(pulled)) => {
            source = Some(pulled.source);
            content = pulled.bytes.map(|bytes| Ok(FileContent::new(&path, bytes))).or(content);
        }
        Some(Err(error)) => pull_error = Some(format!("it cannot be pulled: {error}")),
        None => {}
    }
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
    let file_error = match content {
        None if pull_error.is_none() => return view,
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
    view.error = pull_error.or(file_error);
    view.state = if view.error.is_some() { PluginVerdict::Bad } else { PluginVerdict::Good };
    view
}

pub(super) fn render(plugin: &CheckedPlugin, paint: Paint) -> String {
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
    lines.push(("grants", grants::shown(&plugin.grants)));
    if plugin.makes_requests && plugin.grants.allowed_hosts.is_empty() {
        let note = "it can make requests (wasi:http), and allowed_hosts allows none: each would be refused";
        lines.push(("note", note.to_owned()));
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
        // The version stays with its `@`.
        let (path, version) = name.split_at(name.find('@').unwrap_or(name.len()));
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

    #[test]
    fn interfaces_of_a_package_share_a_line() {
        let names = ["wasi:io/poll@0.2.6", "tqhost:handler/types@0.1.0", "wasi:io/error@0.2.6", "odd\u{7}"]
            .map(str::to_owned);
        assert_eq!(by_package(&names), "wasi:io@0.2.6  poll, error\ntqhost:handler@0.1.0  types\nodd\\u{7}");
    }
}
