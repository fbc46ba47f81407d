//! Turns a plugin's bytes into a component, and checks its exports and imports.
//!
//! In: the bytes of the file. Out: a component's bytes and the names it exports and imports, or a
//! [`LoadError`] that says what is wrong. A core module is turned into a component if it has an embedded
//! component type, or if its names tell that type.
//!
//! Not here: compiling (`Sandbox::compile`), the types of the functions (the linker checks them).

use std::borrow::Cow;

use serde::Serialize;
use wasi_preview1_component_adapter_provider::WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER;
use wasmparser::{Parser, Payload};
use wasmtime::Engine;
use wasmtime::component::Component;

use super::error::{LoadError, MAX_FILE, RefusedImport};
use super::untyped::Named;
use super::{callers, host};

const HANDLER: &str = "tqhost:handler/handler";
pub(super) const HANDLER_OFFERED: &str = "tqhost:handler/handler@0.1.0";
pub(super) const BATCH_OFFERED: &str = "tqhost:extensions/batch-handler@0.1.0";
/// The name of the same interface in components that were built before there was `tqhost:extensions`.
pub(super) const BATCH_BEFORE: &str = "tqhost:handler/batch-handler@0.1.0";
pub(super) const CONCURRENT_OFFERED: &str = "tqhost:extensions/concurrent-handler@0.1.0";
pub(super) const LIFECYCLE_OFFERED: &str = "tqhost:handler/lifecycle@0.1.0";
/// Interfaces that a component may export beside its handler: the name that is taken, and the name that an
/// error tells instead of one of another version.
const OPTIONAL: [(&str, &str); 4] = [
    (BATCH_OFFERED, BATCH_OFFERED),
    (BATCH_BEFORE, BATCH_OFFERED),
    (CONCURRENT_OFFERED, CONCURRENT_OFFERED),
    (LIFECYCLE_OFFERED, LIFECYCLE_OFFERED),
];

/// The exported and imported names of a component.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Interfaces {
    pub exports: Vec<String>,
    pub imports: Vec<String>,
}

impl Interfaces {
    /// Checks all names. One error lists all refused imports.
    pub fn check(&self) -> Result<(), LoadError> {
        let (mut handlers, mut is_offered) = (Vec::new(), false);
        for export in &self.exports {
            let (name, version) = export.split_once('@').unwrap_or((export, ""));
            if name == HANDLER {
                handlers.push(export.as_str());
                is_offered |= host::is_compatible(version, "0.1");
            }
        }
        if handlers.is_empty() {
            return Err(LoadError::WrongWorld { exports: self.exports.clone() });
        }
        if !is_offered {
            return Err(LoadError::WrongVersion {
                found: handlers.join(" and "),
                offered: HANDLER_OFFERED.into(),
            });
        }
        // Without this check, an export of another version would be ignored silently.
        for (taken, offered) in OPTIONAL {
            let (name, _) = taken.split_once('@').unwrap_or((taken, ""));
            let is_of_other_version = |export: &&String| match export.split_once('@') {
                Some((other, version)) => other == name && !host::is_compatible(version, "0.1"),
                None => false,
            };
            if let Some(found) = self.exports.iter().find(is_of_other_version) {
                return Err(LoadError::WrongVersion { found: found.clone(), offered: offered.into() });
            }
        }
        let refused = |name: &String| {
            let why = host::refusal(name)?;
            Some(RefusedImport { name: name.clone(), why, callers: Vec::new() })
        };
        let imports: Vec<RefusedImport> = self.imports.iter().filter_map(refused).collect();
        if imports.is_empty() { Ok(()) } else { Err(LoadError::NotOffered { imports }) }
    }

    /// Whether the component imports an interface for requests.
    pub fn makes_requests(&self) -> bool {
        self.imports.iter().any(|import| host::makes_requests(import))
    }

    /// Whether the component imports the interface for blobs.
    pub(super) fn keeps_blobs(&self) -> bool {
        self.imports.iter().any(|import| host::keeps_blobs(import))
    }
}

/// Makes component bytes from any kind of WebAssembly file.
pub(super) fn from_bytes(bytes: &[u8]) -> Result<Cow<'_, [u8]>, LoadError> {
    if bytes.len() as u64 > MAX_FILE {
        return Err(LoadError::TooLarge);
    }
    if Engine::detect_precompiled(bytes).is_some() {
        return Err(LoadError::NotWasm(
            "it holds compiled code, which is never taken from a plugin file".into(),
        ));
    }
    if Parser::is_component(bytes) {
        return Ok(Cow::Borrowed(bytes));
    }
    if Parser::is_core_wasm(bytes) {
        return from_module(bytes).map(Cow::Owned);
    }
    Err(LoadError::NotWasm(match bytes {
        [] => "it is empty".into(),
        [0x7f, b'E', b'L', b'F', ..] => "it is a native program or library (ELF)".into(),
        [0, b'a', b's', b'm', ..] => "its header is cut off or of an unknown version".into(),
        [b'\0', rest @ ..] if rest.iter().all(|byte| *byte == 0) => "it holds zeros only".into(),
        _ if std::str::from_utf8(&bytes[..bytes.len().min(512)]).is_ok_and(|text| !text.contains('\0')) => {
            "it is a text file".into()
        }
        _ => "it does not begin with the WebAssembly header".into(),
    }))
}

/// The module name of the functions of wasip1.
const WASIP1: &str = "wasi_snapshot_preview1";

/// Wraps a core module that carries its component type, as wit-bindgen leaves it, or whose names tell its
/// type (`untyped`). Functions of wasip1 become calls of WASI 0.2, through the adapter that wasmtime's
/// project publishes.
fn from_module(bytes: &[u8]) -> Result<Vec<u8>, LoadError> {
    let (mut typed, mut wasip1, mut named) = (false, false, Named::default());
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(malformed)? {
            Payload::CustomSection(section) => typed |= section.name().starts_with("component-type"),
            Payload::ImportSection(imports) => {
                for import in imports.into_imports() {
                    let module = import.map_err(malformed)?.module;
                    wasip1 |= module == WASIP1;
                    named.note_import(module);
                }
            }
            Payload::ExportSection(exports) => {
                for export in exports {
                    named.note_export(export.map_err(malformed)?.name);
                }
            }
            _ => {}
        }
    }
    let bytes = match typed {
        true => Cow::Borrowed(bytes),
        false if named.is_handler() => Cow::Owned(named.typed(bytes)?),
        false => return Err(LoadError::CoreModuleWithoutComponentType { wasip1 }),
    };
    let encode = || {
        let mut encoder = wit_component::ComponentEncoder::default().validate(true).module(&bytes)?;
        if wasip1 {
            encoder = encoder.adapter(WASIP1, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER)?;
        }
        encoder.encode()
    };
    encode().map_err(|error| {
        let why = format!("{error:#}");
        let is_invalid = error.chain().any(|cause| cause.is::<wasmparser::BinaryReaderError>());
        if is_invalid { LoadError::Malformed(why) } else { LoadError::NoComponent(why) }
    })
}

/// Checks the names of a component without compiling it. The error names the callers of each refused import.
pub(super) fn check(component: &[u8]) -> Result<(), LoadError> {
    interfaces(component)?.check().map_err(|mut error| {
        if let LoadError::NotOffered { imports } = &mut error {
            let names: Vec<String> = imports.iter().map(|import| import.name.clone()).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            for (import, callers) in imports.iter_mut().zip(callers::callers(component, &names)) {
                import.callers = callers;
            }
        }
        error
    })
}

/// Reads the outermost names of a component without compiling it.
pub(super) fn interfaces(component: &[u8]) -> Result<Interfaces, LoadError> {
    let mut found = Interfaces { exports: Vec::new(), imports: Vec::new() };
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(component) {
        match payload.map_err(malformed)? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    found.imports.push(import.map_err(malformed)?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    found.exports.push(export.map_err(malformed)?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Reads the outermost names of a compiled component.
pub(super) fn interfaces_of(component: &Component) -> Interfaces {
    let ty = component.component_type();
    Interfaces {
        exports: ty.exports(component.engine()).map(|(name, _)| name.to_owned()).collect(),
        imports: ty.imports(component.engine()).map(|(name, _)| name.to_owned()).collect(),
    }
}

fn malformed(error: wasmparser::BinaryReaderError) -> LoadError {
    LoadError::Malformed(error.to_string())
}
