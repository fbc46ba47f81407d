//! Configuration: `tqhost.toml` in, a checked [`Config`] or all its problems out.
//!
//!     text ─▶ spanned TOML ─▶ general ─▶ redis_url, admin, blobs, queue, plugin ─▶ Config
//!                                └─ reader: each wrong value is a problem with key and line ─▶ ConfigErrors
//!
//! `load` reads the file, and `last_good` keeps a copy for commands. There is one file per element of the
//! configuration, each with its bounds and tests. docs/configuration.md and docs/configuration-queues.md
//! document the same for users; a test of `keys` checks that they have every key. The values are below
//! (`model`, `rules`, `allowed`, `store`, `times`, `secret`), what reads them above.
//!
//! Not here: watching the file, and exit codes.

mod access;
mod addresses;
mod admin;
pub(crate) mod allowed;
mod backoff;
mod blobs;
mod bounded;
mod edits;
mod exposure;
mod general;
mod hold;
mod hosts;
mod http;
mod idempotency;
mod instance;
mod keys;
mod last_good;
mod list;
mod load;
pub(crate) mod model;
mod names;
mod oci;
mod pem;
mod place;
mod plugin;
mod problem;
mod queue;
mod reader;
pub(crate) mod records;
mod redis_login;
mod redis_url;
pub(crate) mod rules;
mod schedule;
mod schema;
pub(crate) mod secret;
mod slots;
mod source;
pub(crate) mod store;
mod streams;
mod targets;
mod telemetry;
#[cfg(test)]
pub(crate) mod testing;
pub mod times;
mod turns;
pub(crate) mod units;
mod value;

pub(crate) use access::AUDIT_NAMES;
pub(crate) use allowed::AllowedHost;
pub(crate) use model::{AccessRole, Http, RedisLogin, RedisServer, SentinelWatch, Telemetry, TrustedProxy};
pub use model::{Config, Plugin, Warm};
pub(crate) use oci::{OciReference, is_digest, is_local};
pub(crate) use place::{FieldPlace, Pointer, ValueAt};
pub(crate) use records::RecordGrants;
pub use rules::{Backoff, Missed, QueueRules, Schedule};
pub(crate) use rules::{HoldRules, Items, List, OnEnd, TargetQueue};
pub(crate) use schema::schema;
pub(crate) use secret::Secret;
pub(crate) use store::{BlobSettings, BlobStore, Bucket};

pub(crate) use edits::{edits, nearest};
pub(crate) use names::{check_name, hash_tag};

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::testing::{problem, refusals, table};
    use super::*;

    const DOCUMENT: &str = include_str!("../../../docs/configuration.md");

    #[test]
    fn all_problems_are_told_at_once() {
        let text = r#"plugin_dir = "plugins"
shutdown_grace = "30"

[redis]
url = "http://:hunter2@localhost"

[admin]
listen = "0.0.0.0:7700"

[queues.resume-analyze]
lease = "10ms"
max_retires = 3
priority = 0
backoff = { base = "5m" }

[queues.reports]
stream = "resume-analyze"

[plugins.reports]
memory = "64MB"
config = { api_key = { env = "MISSING" } }
"#;
        insta::assert_snapshot!(problem(text));
    }

    #[test]
    fn syntax_errors_have_line_and_column_and_no_text_of_the_file() {
        let texts = [
            "[redis]\nurl = \"redis://:hunter2@host\nx = 1\n",
            "token = hunter2\n[queues.a]\n",
            "lease = \"5s\"\n\"lease\" = \"hunter2\"",
            "lease = \"5s\"\n[queues.a]",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\n{}", &texts));
    }

    #[test]
    fn files_that_cannot_be_read() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("binary"), [b'a', 0xff]).expect("write");
        std::fs::write(folder.path().join("big"), vec![b'#'; (1 << 20) + 1]).expect("write");
        let texts = ["missing", ".", "binary", "big"];
        insta::assert_snapshot!(table(&texts, |name| {
            let error = Config::load(&folder.path().join(name)).expect_err(name).to_string();
            error.replace(folder.path().to_str().expect("UTF-8"), "FOLDER")
        }));
    }

    #[test]
    fn a_file_is_loaded_with_absolute_paths() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tqhost.toml");
        std::fs::write(&path, "[queues.a]\n").expect("write");
        let config = Config::load(&path).expect("valid");
        assert_eq!((&config.path, config.data_dir), (&path, folder.path().join(".tqhost")));
    }

    /// The text from a heading of the document to the next one of the same level.
    fn section(heading: &str) -> &'static str {
        let start =
            DOCUMENT.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no heading {heading}"))
                + 1
                + heading.len();
        let level = format!("\n{} ", &heading[..heading.find(' ').unwrap_or_default()]);
        let text = &DOCUMENT[start..];
        text.find(&level).map_or(text, |end| &text[..end])
    }

    #[test]
    fn the_example_of_the_document_is_valid() {
        let example = section("## Example")
            .split("```")
            .nth(1)
            .and_then(|block| block.strip_prefix("toml\n"))
            .expect("an example");
        let env = |name: &str| {
            ["TQHOST_ADMIN_TOKEN", "LLM_KEY", "BLOBS_KEY"].contains(&name).then(|| "secret".to_owned())
        };
        let config = Config::parse(example, Path::new("/etc/tqhost/tqhost.toml"), &env)
            .unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(config.warnings, Vec::<String>::new());
        for key in keys::QUEUE.here() {
            let is_there =
                example.contains(&format!("\n{key} = ")) || example.contains(&format!(".{key}]\n"));
            assert!(is_there, "{key} is missing in the example");
        }
    }
}
