//! `tqhost plugins push`: puts a plugin into a registry.
//!
//! In: a plugin's file, and a reference with a tag. Out: the reference with the digest, for `source` in the
//! configuration. The file is checked before, as `tqhost check` does it, with default grants. The command
//! needs no configuration. Not here: requests to the registry (`oci`).

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use clap::{Args, Subcommand};
use serde_json::json;

use super::exit::CommandResult;
use super::files::read_handler;
use super::output::Out;
use super::text;
use crate::builds::short;
use crate::chain::chain;
use crate::config::{self, OciReference};
use crate::oci::{self, Pushed, RegistryHttp};
use crate::plugins::Singles;
use crate::sandbox::{Allowance, Compiler, Sandbox, SandboxOptions};

#[derive(Debug, Subcommand)]
pub(super) enum PluginsCommand {
    /// Push a plugin's file to a registry, and print the reference for `source` in [plugins.NAME]
    Push(PushArgs),
}

#[derive(Debug, Args)]
pub(super) struct PushArgs {
    /// The plugin's file. It is checked as `tqhost check` does it
    file: PathBuf,
    /// The place in a registry, like oci://registry/team/plugin:1.4. Credentials are those of docker login
    #[arg(value_name = "REF", value_parser = pushed_reference)]
    to: OciReference,
}

pub(super) async fn run(args: PushArgs, out: &mut Out) -> CommandResult {
    let PushArgs { file, to } = args;
    let shown = file.display();
    let wasm = read_handler(&file).await?;
    let grants = config::Plugin::default();
    let sandbox = Sandbox::new(SandboxOptions::single(grants.memory, Compiler::separate()))?;
    let unfit = |error: &(dyn std::error::Error + 'static)| {
        anyhow!("{shown} cannot be used as a plugin: {}; nothing was pushed", chain(error))
    };
    let found = sandbox.inspect(&wasm).map_err(|error| unfit(&error))?;
    let loaded = Singles::new(sandbox, None).load(&wasm, &grants, &Allowance::full());
    let version = loaded.map_err(|error| unfit(&error))?.digest;
    let bytes = wasm.len() as u64;
    let pushed = Pushed { wasm: Bytes::from(wasm), exports: found.exports, imports: found.imports };
    let http = RegistryHttp::new().context("cannot make a client for registries")?;
    let digest = oci::push(http, &to, &pushed).await;
    let digest = digest.with_context(|| format!("{shown} was not pushed to {to}"))?;
    let source = to.pinned(&digest).to_string();
    let view = json!({ "source": source, "digest": digest, "version": version, "bytes": bytes });
    out.show(&view, |_| {
        format!("pushed version {}, {}\nsource = \"{source}\"", short(&version), text::size(bytes))
    });
    Ok(())
}

fn pushed_reference(text: &str) -> Result<OciReference, String> {
    let reference = OciReference::parse(text).map_err(|why| format!("it {why}"))?;
    match reference.digest {
        None => Ok(reference),
        Some(_) => Err("it has a digest, which a push prints: write only the tag".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_goes_to_a_tag() {
        assert!(pushed_reference("oci://ghcr.io/team/x:1.4").is_ok());
        let digest = "0".repeat(64);
        for (text, why) in [
            ("ghcr.io/team/x:1.4", "it does not begin with oci://"),
            ("oci://ghcr.io/team/x", "it has neither tag nor digest"),
            (&format!("oci://ghcr.io/team/x:1@sha256:{digest}"), "it has a digest"),
        ] {
            let told = pushed_reference(text).expect_err(text);
            assert!(told.starts_with(why), "{told}");
        }
    }
}
