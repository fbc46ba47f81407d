//! Gives a core module the component type that its compiler left out.
//!
//! In: a core module without a type, and the names that it imports and exports. Out: the module with a type,
//! if it exports the handler's function and names only interfaces that are known here. So a language needs no
//! generator of bindings: the names of its imports and exports are enough.
//!
//! Not here: whether the functions have the right types (`wit_component` checks that), whether a handler may
//! have the imports (`component`).

use std::collections::BTreeSet;

use wit_component::{StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

use super::error::LoadError;

/// The packages whose interfaces are known, each after those that it uses.
const PACKAGES: [(&str, &str); 7] = [
    ("handler.wit", include_str!("../../../wit/handler.wit")),
    ("io.wit", include_str!("../../../wit/deps/io/io.wit")),
    ("extensions.wit", include_str!("../../../wit/deps/extensions/extensions.wit")),
    ("clocks.wit", include_str!("../../../plugins/sdk/wit/deps/clocks/clocks.wit")),
    ("http.wit", include_str!("../../../plugins/sdk/wit/deps/http/http.wit")),
    ("store.wit", include_str!("../../../plugins/sdk/wit/deps/config/store.wit")),
    ("logging.wit", include_str!("../../../plugins/sdk/wit/deps/logging/logging.wit")),
];

/// The interfaces that a module names.
#[derive(Debug, Default)]
pub(super) struct Named {
    imports: BTreeSet<String>,
    exports: BTreeSet<String>,
}

impl Named {
    /// Notes the module name of an import.
    pub(super) fn note_import(&mut self, module: &str) {
        // The name of an interface begins with a package and a colon. Other names belong to adapters, or are
        // unknown.
        if module.contains(':') && !self.imports.contains(module) {
            self.imports.insert(module.to_owned());
        }
    }

    /// Notes the name of an export. A function of an interface is exported as `interface#function`. The
    /// export that frees its result has a prefix before that.
    pub(super) fn note_export(&mut self, name: &str) {
        let name = name.strip_prefix("cabi_post_").unwrap_or(name);
        if let Some((interface, _)) = name.split_once('#') {
            self.exports.insert(interface.to_owned());
        }
    }

    /// Whether the module exports the function of a handler, under the name that a component gives it.
    pub(super) fn is_handler(&self) -> bool {
        self.exports.iter().any(|name| name.starts_with("tqhost:handler/handler@"))
    }

    /// The module with the type of a world that has these interfaces.
    pub(super) fn typed(&self, module: &[u8]) -> Result<Vec<u8>, LoadError> {
        let mut resolve = Resolve::default();
        for (file, text) in PACKAGES {
            resolve.push_source(file, text).map_err(unexpected)?;
        }
        let known: BTreeSet<String> =
            resolve.interfaces.iter().filter_map(|(id, _)| resolve.id_of(id)).collect();
        let named = self.imports.union(&self.exports);
        let unknown: Vec<String> = named.filter(|name| !known.contains(*name)).cloned().collect();
        if !unknown.is_empty() {
            return Err(LoadError::UnknownInterfaces { names: unknown });
        }
        let imports = self.imports.iter().map(|name| format!("  import {name};\n"));
        let exports = self.exports.iter().map(|name| format!("  export {name};\n"));
        let lines: String = imports.chain(exports).collect();
        let world = format!("package tqhost:untyped@0.1.0;\nworld module {{\n{lines}}}\n");
        let package = resolve.push_source("world.wit", &world).map_err(unexpected)?;
        let world = resolve.select_world(&[package], Some("module")).map_err(unexpected)?;
        let mut typed = module.to_vec();
        embed_component_metadata(&mut typed, &resolve, world, StringEncoding::UTF8).map_err(unexpected)?;
        Ok(typed)
    }
}

/// An error that does not happen: the texts are part of the binary, and were read in its tests.
fn unexpected(error: impl std::fmt::Display) -> LoadError {
    LoadError::NoComponent(format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use wit_component::dummy_module;
    use wit_parser::{LiftLowerAbi, ManglingAndAbi};

    use super::super::testing::sandbox;
    use super::*;
    use crate::config::Plugin;

    #[test]
    fn a_component_of_every_published_function_loads() {
        let mut resolve = Resolve::default();
        for (file, text) in PACKAGES {
            resolve.push_source(file, text).unwrap();
        }
        let all: Vec<String> = resolve.interfaces.iter().filter_map(|(id, _)| resolve.id_of(id)).collect();
        let is_export = |name: &&String| {
            ["/handler@", "/lifecycle@", "/batch-handler@", "/concurrent-handler@"]
                .iter()
                .any(|export| name.contains(export))
        };
        let (exports, imports): (Vec<&String>, Vec<&String>) = all.iter().partition(is_export);
        assert_eq!((exports.len(), imports.len() > 12), (4, true), "{imports:?}");
        let lines = |word: &str, names: &[&String]| -> String {
            names.iter().map(|name| format!("{word} {name};\n")).collect()
        };
        let world = format!(
            "package tqhost:whole@0.1.0;\nworld whole {{\n{}{}}}\n",
            lines("import", &imports),
            lines("export", &exports)
        );
        let package = resolve.push_source("world.wit", &world).unwrap();
        let world = resolve.select_world(&[package], Some("whole")).unwrap();
        // The module has no type: it gets that of all its names.
        let module = dummy_module(&resolve, world, ManglingAndAbi::Legacy(LiftLowerAbi::Sync));
        let sandbox = sandbox();
        let found = sandbox.inspect(&module).unwrap();
        assert!(exports.iter().all(|name| found.exports.contains(name)), "{found:?}");
        let missing: Vec<_> = imports.iter().filter(|name| !found.imports.contains(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        sandbox.load(&sandbox.compile(&module).unwrap(), &Plugin::default()).unwrap();
    }
}
