//! Fuzzes `Config::parse`. In: any text. Out: a configuration, or errors with a message; never a panic.
#![no_main]

use std::path::Path;

use libfuzzer_sys::{Corpus, fuzz_target};
use tqhost::testing::config::Config;

fuzz_target!(init: tqhost_fuzz::bear_panics(), |bytes: &[u8]| -> Corpus {
    let Ok(text) = std::str::from_utf8(bytes) else { return Corpus::Reject };
    // A folder that is not there, so that no input reads a file.
    let read = Config::parse(text, Path::new("/nowhere/at/all/tqhost.toml"), &|name| {
        name.starts_with('A').then(|| "secret".to_owned())
    });
    if let Err(errors) = read {
        assert!(!errors.to_string().is_empty());
    }
    Corpus::Keep
});
