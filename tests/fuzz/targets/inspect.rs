//! `Sandbox::inspect` on any bytes: what tells components from other files, wraps core modules and reads names.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: tqhost_fuzz::bear_panics(), |bytes: &[u8]| {
    // Whatever it says, it says it.
    if let Err(error) = tqhost_fuzz::sandbox().inspect(bytes) {
        assert!(!error.to_string().is_empty());
    }
});
