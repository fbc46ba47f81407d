//! Finds out which functions of a plugin call what it imports, by the names that its compiler left.
//!
//! In: a component's bytes and the names of imports. Out: a few functions for each import. Rust's names begin
//! with the crate, so they tell which dependency needs an import. A file without names has no such functions.

use std::collections::{BTreeMap, BTreeSet};

use wasmparser::{BinaryReaderError, KnownCustom, Name, Operator, Parser, Payload, TypeRef};

/// Functions that are named for one import.
const MOST: usize = 3;
/// The most characters of a function's name.
const MAX_NAME: usize = 120;

/// The content of one core module of the component.
#[derive(Default)]
struct CoreModule {
    /// The functions that it imports, by their module's name.
    imported: Vec<String>,
    /// The functions that call an imported one: the imported one, and the caller.
    calls: BTreeSet<(u32, u32)>,
    /// How many of its own functions were read.
    own: u32,
    names: BTreeMap<u32, String>,
}

/// The first functions that call functions of each import. Parts that cannot be read are left out: the file
/// is refused for them.
pub(super) fn callers(component: &[u8], imports: &[&str]) -> Vec<Vec<String>> {
    let mut found = vec![Vec::new(); imports.len()];
    let mut open: Vec<CoreModule> = Vec::new();
    for payload in Parser::new(0).parse_all(component).map_while(Result::ok) {
        match payload {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => {
                open.push(CoreModule::default());
            }
            Payload::End(_) => {
                let Some(module) = open.pop() else { continue };
                for (import, found) in imports.iter().zip(&mut found) {
                    module.add_callers(import, found);
                }
            }
            payload => {
                if let Some(module) = open.last_mut() {
                    // The other parts can still be read.
                    let _ = module.read(payload);
                }
            }
        }
    }
    found
}

impl CoreModule {
    fn read(&mut self, payload: Payload) -> Result<(), BinaryReaderError> {
        match payload {
            Payload::ImportSection(imports) => {
                for import in imports.into_imports() {
                    let import = import?;
                    if matches!(import.ty, TypeRef::Func(_) | TypeRef::FuncExact(_)) {
                        self.imported.push(import.module.to_owned());
                    }
                }
            }
            Payload::CodeSectionEntry(body) => {
                let imported = u32::try_from(self.imported.len()).unwrap_or(u32::MAX);
                let caller = imported.saturating_add(self.own);
                self.own += 1;
                for operator in body.get_operators_reader()? {
                    if let Operator::Call { function_index } = operator?
                        && function_index < imported
                    {
                        self.calls.insert((function_index, caller));
                    }
                }
            }
            Payload::CustomSection(section) => {
                let KnownCustom::Name(names) = section.as_known() else { return Ok(()) };
                for part in names {
                    let Name::Function(functions) = part? else { continue };
                    for function in functions {
                        let function = function?;
                        self.names.insert(function.index, shown(function.name));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn add_callers(&self, import: &str, found: &mut Vec<String>) {
        let of_import = |called: &u32| self.imported.get(*called as usize).is_some_and(|name| name == import);
        let callers = self.calls.iter().filter(|(called, _)| of_import(called));
        for name in callers.filter_map(|(_, caller)| self.names.get(caller)) {
            if found.len() < MOST && !found.contains(name) {
                found.push(name.clone());
            }
        }
    }
}

/// A function's name as its author wrote it.
fn shown(name: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(name)).chars().take(MAX_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_of_an_import_are_named() {
        let component = wat::parse_str(
            r#"(component (core module
                (import "acme:api/api" "get" (func (param i32)))
                (import "wasi:io/poll@0.2.6" "poll" (func))
                (func $_ZN4acme5cache4load17h0123456789abcdefE i32.const 1 call 0)
                (func $other call 1)
                (func $again (call 3) (call 0 (i32.const 2)))
            ))"#,
        );
        let found =
            callers(&component.expect("a component"), &["acme:api/api", "wasi:io/poll@0.2.6", "none"]);
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(found, [names(&["acme::cache::load", "again"]), names(&["other"]), names(&[])]);
        assert_eq!(callers(b"nothing", &["a"]), [names(&[])]);
    }
}
