//! Plugins that come from registries, for `check`.
//!
//! In: the configuration. Out: a plugin as its registry has it now, which is what a host would take. Not
//! here: requests to the registry (`oci`), whether a host can run it (`check`).

use super::files::PluginFile;
use crate::config::{Config, OciReference};
use crate::oci::{OciError, RegistryHttp, Repository, TRANSFER};

/// The files that no host uses, as their plugins come from registries.
pub(super) fn unused_files(config: &Config) -> impl Iterator<Item = String> {
    let with_source = config.plugins.iter().filter(|(_, plugin)| plugin.source.is_some());
    let files = with_source.map(|(name, _)| (name, config.plugins_dir.join(format!("{name}.wasm"))));
    files.filter(|(_, path)| path.exists()).map(|(name, path)| {
        let path = path.display();
        format!(
            "plugins.{name}.source: the plugin comes from there, and {path} is not used: remove one of them"
        )
    })
}

/// A plugin as its registry has it now.
pub(super) struct PulledPlugin {
    /// With the digest of the manifest.
    pub source: OciReference,
    /// None: what a host has pulled is the same.
    pub bytes: Option<Vec<u8>>,
}

/// `file` is the one that a host has pulled, if it has. None: the plugin has no source.
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
