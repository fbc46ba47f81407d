//! Fuzzes `Sandbox::inspect`, which recognizes components, wraps core modules and reads names. In: any bytes.
//! Out: names, or an error with a message; never a crash.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: tqhost_fuzz::bear_panics(), |bytes: &[u8]| {
    if let Err(error) = tqhost_fuzz::sandbox().inspect(bytes) {
        assert!(!error.to_string().is_empty());
    }
});
