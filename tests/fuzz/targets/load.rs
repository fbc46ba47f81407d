//! Fuzzes the loading of a plugin file. In: any bytes. Out: a handler that is compiled, linked, self-checked
//! and run on one task, or an error with a message; never a crash.
#![no_main]

use std::sync::{Arc, OnceLock};

use libfuzzer_sys::{Corpus, fuzz_target};
use tokio::runtime::{Builder, Runtime};
use tqhost::testing::config::Plugin;
use tqhost::testing::task::Outcome;

fuzz_target!(init: tqhost_fuzz::bear_panics(), |bytes: &[u8]| -> Corpus {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let runtime =
        RUNTIME.get_or_init(|| Builder::new_current_thread().enable_all().build().expect("a runtime"));
    let sandbox = tqhost_fuzz::sandbox();
    let grants = Plugin { memory: 2 << 20, ..Plugin::default() };
    let handler = match sandbox.compile(bytes).and_then(|code| sandbox.load(&code, &grants)) {
        Ok(handler) => handler,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return Corpus::Keep;
        }
    };
    let plugin: Arc<str> = "p".into();
    // The host allows a self-check 10 seconds; a guest that waits so long would only delay the fuzzer.
    let _ = runtime.block_on(handler.self_check(&plugin, std::time::Duration::from_millis(100)));
    let report = runtime.block_on(handler.run(tqhost_fuzz::attempt())).expect("nobody stops it");
    if let [Outcome::Failed { message, .. }] = &report.outcomes(1)[..] {
        assert!(!message.contains("the host failed"), "{message}");
    }
    Corpus::Keep
});
