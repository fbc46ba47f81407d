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
mod testing;
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

    use super::testing::problem;
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
        let expected = concat!(
            r#"/etc/tqhost/tqhost.toml: 11 problems
  line 1: plugin_dir: unknown key: did you mean `plugins_dir`?
  line 2: shutdown_grace: "30" has no unit: write "30s"
  line 5: redis.url: the url must begin with redis://, rediss:// or redis+unix://, "#,
            r#"like "redis://127.0.0.1:6379"
  line 8: admin.token: is required, because 0.0.0.0:7700 can be reached from other machines: "#,
            r#"write token = { env = "TQHOST_ADMIN_TOKEN" }
  line 11: queues.resume-analyze.lease: "10ms" is out of bounds: write "1s" to "1d"
  line 12: queues.resume-analyze.max_retires: unknown key: did you mean `max_retries`?
  line 13: queues.resume-analyze.priority: 0 is out of bounds: write 1 to 1000
  line 14: queues.resume-analyze.backoff: base ("5m") is longer than max ("1m") (which was not set here): "#,
            r#"raise max or lower base
  line 17: queues.reports.stream: "resume-analyze" is the stream of the queue "resume-analyze" too: "#,
            r#"give every queue its own
  line 20: plugins.reports.memory: "64MB" is not a size: "#,
            r#"write a whole number with the unit B, KiB, MiB or GiB, like "64MiB"
  line 21: plugins.reports.config.api_key: the environment variable "MISSING" is not set, or is not UTF-8: "#,
            "set it, for example with the file of the systemd unit: `set -a; . /etc/tqhost/environment`",
        );
        assert_eq!(problem(text), expected);
    }

    #[test]
    fn syntax_errors_have_line_and_column_and_no_text_of_the_file() {
        let told = problem("[queues.a]\n[redis]\nurl = \"redis://:hunter2@host\nx = 1\n");
        assert!(
            told.contains("line 3: column ") && told.contains("not TOML: ") && !told.contains("hunter2"),
            "{told}"
        );
        let told = problem("[queues.a]\ntoken = hunter2\n[queues.a]\n");
        assert!(
            told.contains("line 2: column 9: ") && told.contains("line 3: ") && !told.contains("hunter2"),
            "{told}"
        );
        let twice = "line 3: column 1: not TOML: duplicate key \"lease\": write each key and each table once";
        assert!(problem("[queues.a]\nlease = \"5s\"\n\"lease\" = \"hunter2\"").ends_with(twice));
        let twice = "line 3: column 9: not TOML: duplicate key \"a\": write each key and each table once";
        assert!(problem("[queues.a]\nlease = \"5s\"\n[queues.a]").ends_with(twice));
    }

    #[test]
    fn files_that_cannot_be_read() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("binary"), [b'a', 0xff]).expect("write");
        std::fs::write(folder.path().join("big"), vec![b'#'; (1 << 20) + 1]).expect("write");
        for (name, why) in [
            ("missing", "no such file"),
            (".", "cannot be read"),
            ("binary", "at byte 1"),
            ("big", "bigger than 1MiB"),
        ] {
            let error = Config::load(&folder.path().join(name)).expect_err(name).to_string();
            assert!(error.contains(why) && error.contains(folder.path().to_str().expect("UTF-8")), "{error}");
        }
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
