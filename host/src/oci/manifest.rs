//! The manifest of a plugin in a registry.
//!
//! To pull: in, the bytes of a manifest; out, the layer with the component, or why the artifact is no plugin.
//! To push: in, a component; out, the bytes of its config and its manifest. Not here: requests (`http`).

use serde::Deserialize;
use serde_json::json;

use super::call::{OciError, digest_of};
use crate::config::is_digest;

/// The type of the config, which says that the artifact is a component.
pub(super) const CONFIG_TYPE: &str = "application/vnd.wasm.config.v0+json";
pub(super) const LAYER_TYPE: &str = "application/wasm";
pub(super) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// The types of manifests that a registry may send. Only the first can be a plugin; the message about another
/// one names its type.
pub(super) const ACCEPTED: &str = "application/vnd.oci.image.manifest.v1+json, \
    application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.v2+json, \
    application/vnd.docker.distribution.manifest.list.v2+json";
/// The bytes at the beginning of a component. A core module begins with other bytes.
const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";
/// The most characters of a type that are shown.
const MAX_TYPE: usize = 80;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub digest: String,
    pub layer: Layer,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layer {
    pub digest: String,
    pub size: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManifestJson {
    media_type: Option<String>,
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: String,
    digest: String,
    size: u64,
}

/// Reads a manifest. `digest`: the digest of the bytes.
pub(super) fn read(bytes: &[u8], digest: String) -> Result<Manifest, OciError> {
    let wrong = |why: String| {
        OciError::lasting(format!("it is no plugin: {why}; `tqhost plugins push` makes one of a component"))
    };
    let read: ManifestJson = serde_json::from_slice(bytes)
        .map_err(|_| OciError::lasting("the registry gave something else than a manifest"))?;
    if let Some(kind) = read.media_type.filter(|kind| kind != MANIFEST_TYPE) {
        return Err(wrong(format!("its manifest is of the type {}", shown(&kind))));
    }
    let config = read.config.ok_or_else(|| wrong("its manifest has no config".to_owned()))?;
    if config.media_type != CONFIG_TYPE {
        let found = shown(&config.media_type);
        return Err(wrong(format!("its config is of the type {found}, not {CONFIG_TYPE}")));
    }
    let [layer] = &read.layers[..] else {
        return Err(wrong(format!("it has {} layers, not one", read.layers.len())));
    };
    if layer.media_type != LAYER_TYPE {
        let found = shown(&layer.media_type);
        return Err(wrong(format!("its layer is of the type {found}, not {LAYER_TYPE}")));
    }
    if !is_digest(&layer.digest) {
        return Err(wrong("the digest of its layer is not of the form sha256:…".to_owned()));
    }
    Ok(Manifest { digest, layer: Layer { digest: layer.digest.clone(), size: layer.size } })
}

/// Returns the bytes of the config and of the manifest for a component. They depend on nothing else.
pub(super) fn make(wasm: &[u8], exports: &[String], imports: &[String]) -> (Vec<u8>, Vec<u8>) {
    let is_component = wasm.starts_with(COMPONENT);
    let layer = digest_of(wasm);
    let mut config = json!({
        // A time would give each push another digest.
        "created": "1970-01-01T00:00:00Z",
        "architecture": "wasm",
        "os": if is_component { "wasip2" } else { "wasip1" },
        "layerDigests": [layer],
    });
    if is_component {
        config["component"] = json!({ "exports": exports, "imports": imports, "target": null });
    }
    let config = config.to_string().into_bytes();
    let descriptor =
        |kind: &str, digest: &str, size: usize| json!({ "mediaType": kind, "digest": digest, "size": size });
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": descriptor(CONFIG_TYPE, &digest_of(&config), config.len()),
        "layers": [descriptor(LAYER_TYPE, &layer, wasm.len())],
    });
    (config, manifest.to_string().into_bytes())
}

/// A type as a registry names it, without characters that a terminal might interpret.
fn shown(kind: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '+' | '-' | '_');
    kind.chars().filter(is_plain).take(MAX_TYPE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_that_was_made_is_read() {
        let names = ["tqhost:handler/task-handler@0.1.0".to_owned()];
        let (config, manifest) = make(b"\0asm\x0d\0\x01\0", &names, &[]);
        assert_eq!(make(b"\0asm\x0d\0\x01\0", &names, &[]).1, manifest);
        let read = read(&manifest, "d".into()).expect("a plugin");
        let layer = Layer { digest: digest_of(b"\0asm\x0d\0\x01\0"), size: 8 };
        assert_eq!(read, Manifest { digest: "d".into(), layer });
        assert!(String::from_utf8(config).expect("text").contains("\"os\":\"wasip2\""));
    }

    #[test]
    fn other_artifacts_are_refused_and_named() {
        let good = String::from_utf8(make(b"x", &[], &[]).1).expect("text");
        let digest = digest_of(b"x");
        for (from, to, why) in [
            (
                MANIFEST_TYPE,
                "application/vnd.index+json",
                "its manifest is of the type application/vnd.index",
            ),
            (CONFIG_TYPE, "application/vnd.config+json", "vnd.config+json, not application/vnd.wasm"),
            (LAYER_TYPE, "application/\\u001b[2Jtar", "its layer is of the type application/2Jtar, not"),
            ("\"layers\":[", "\"layers\":[],\"others\":[", "it has 0 layers, not one"),
            ("\"config\"", "\"other\"", "its manifest has no config"),
            (&digest, "sha256:../../../etc/passwd", "not of the form sha256"),
            (&digest, "sha512:12", "not of the form sha256"),
            ("\"size\":1", "\"size\":-1", "something else than a manifest"),
            ("{", "", "something else than a manifest"),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good, "{from}");
            let told = read(bad.as_bytes(), String::new()).expect_err(why);
            assert!(told.why.contains(why) && !told.may_pass, "{told}");
        }
    }
}
