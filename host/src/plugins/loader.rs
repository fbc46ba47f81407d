//! Makes a handler of a plugin's bytes, through the cache.
//!
//! Its functions block and compute for long, so they are not called on threads of the runtime. Not here: how
//! many plugins are compiled at a time (`line`).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::cache::Cache;
use crate::config;
use crate::sandbox::{Allowance, Compiled, FunctionFiles, Handler, LoadError, Sandbox};

#[derive(Clone)]
pub(super) struct Loader {
    sandbox: Sandbox,
    /// [`Sandbox::compatibility`].
    compatibility: String,
    cache: Cache,
}

/// A handler that was compiled, or loaded from the cache.
pub(super) struct Prepared {
    pub(super) handler: Handler,
    /// How long that took.
    pub(super) took: Duration,
    pub(super) from_cache: bool,
}

impl Loader {
    pub(super) fn new(sandbox: Sandbox, cache: Cache) -> Loader {
        let compatibility = sandbox.compatibility();
        Loader { sandbox, compatibility, cache }
    }

    /// Loads the version from the cache, or compiles it. `digest` is the SHA-256 of `wasm`. After compiling,
    /// the cache is pruned: `in_use` returns the digests of the versions whose code stays; `None`: all code
    /// stays.
    pub(super) fn load(
        &self,
        wasm: &[u8],
        digest: &str,
        grants: &config::Plugin,
        allowance: &Allowance,
        in_use: impl FnOnce() -> Option<BTreeSet<String>>,
    ) -> Result<Prepared, LoadError> {
        let started = Instant::now();
        if let Some(loaded) = self.load_cached(digest, grants)? {
            return Ok(loaded);
        }
        let name = self.name(digest);
        let (known, mut next) = (self.cache.functions(&self.compatibility), None);
        let mut begin = || next.insert(self.cache.new_functions()?).file.try_clone().ok();
        let files = FunctionFiles { known, next: &mut begin };
        let Compiled { code, has_functions } = self.sandbox.compile_with(allowance, files, wasm)?;
        let handler = self.sandbox.load(&code, grants)?;
        self.cache.put(&name, &code);
        if let Some(next) = next.filter(|_| has_functions) {
            self.cache.keep_functions(&self.compatibility, next);
        }
        if let Some(in_use) = in_use() {
            let in_use = in_use.iter().map(|digest| self.name(digest));
            self.cache.prune(&in_use.chain([name]).collect(), &self.compatibility);
        }
        Ok(Prepared { handler, took: started.elapsed(), from_cache: false })
    }

    /// Loads a version if the cache has its code. An error may pass by itself.
    pub(super) fn load_cached(
        &self,
        digest: &str,
        grants: &config::Plugin,
    ) -> Result<Option<Prepared>, LoadError> {
        let started = Instant::now();
        let name = self.name(digest);
        let Some(code) = self.cache.get(&name).map_err(LoadError::Hindered)? else { return Ok(None) };
        match self.sandbox.load(&code, grants) {
            Ok(handler) => Ok(Some(Prepared { handler, took: started.elapsed(), from_cache: true })),
            // The code is sound, and may be the last copy of this version, so it stays.
            Err(error) if error.may_pass() => Err(error),
            Err(error) => {
                tracing::warn!(digest, %error, "what the cache holds cannot be used");
                self.cache.remove(&name);
                Ok(None)
            }
        }
    }

    fn name(&self, digest: &str) -> String {
        format!("{digest}-{}", self.compatibility)
    }
}
