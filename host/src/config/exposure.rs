//! Finds what other users of this machine can read or write, and should not.
//!
//! In: a valid configuration, and the rights of the files that it names. Out: one sentence for each kind,
//! with the way out. Others are users who are neither the owner nor in the group; a file counts only if they
//! can reach it through all folders above it. What the host keeps must also be closed to the group, where it
//! is the host's to close. Not here: who the host itself is (`app`), the folder of compiled code, which the
//! host closes itself (`plugins::folder`).

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::model::Config;
use super::store::BlobStore;

/// The rights of others in a file's mode.
const READ: u32 = 0o004;
const WRITE: u32 = 0o002;
const SEARCH: u32 = 0o001;
/// How many bits the rights of the group are above those of others.
const GROUP: u32 = 3;
/// Files that one sentence names.
const NAMED: usize = 5;

impl Config {
    /// One sentence for each kind of file that is open to others.
    pub(crate) fn exposures(&self) -> Vec<String> {
        let plugins: BTreeSet<&str> = self.queues.iter().map(|queue| queue.plugin.as_str()).collect();
        let files = plugins.iter().map(|name| self.plugins_dir.join(format!("{name}.wasm")));
        let code: Vec<PathBuf> = [self.plugins_dir.clone()].into_iter().chain(files).collect();
        let kept = vec![self.data_dir.clone()];
        let blobs = match &self.blobs.store {
            BlobStore::Files(root) => vec![root.clone()],
            _ => Vec::new(),
        };
        let above = self.path.parent().map(Path::to_owned);
        let config: Vec<PathBuf> = [self.path.clone()].into_iter().chain(above).collect();
        let secrets: Vec<PathBuf> = self.secret_files.iter().cloned().collect();
        let kinds = [
            (&code, WRITE, "can write to {}, and so choose the code of handlers", "chmod o-w {}"),
            (&kept, WRITE, "can write to {}, and so replace what the host keeps there", "chmod o-w {}"),
            (&config, WRITE, "can write to {}, and so change the configuration", "chmod o-w {}"),
            (&secrets, READ, "can read secrets in {}", "chmod o-r {}"),
            (&blobs, READ, "can read the files of handlers in {}", "chmod o-rx {}"),
        ];
        let others = kinds.into_iter().filter_map(|(files, right, what, way_out)| {
            told(
                files.iter().filter(|path| is_open(path, right)),
                "other users of this machine",
                what,
                way_out,
            )
        });
        let what = "can write to {}, and so replace what the host keeps there";
        let group = kept.iter().chain(&blobs).filter(|path| is_open_to_group(path));
        others.chain(told(group, "the users of a group", what, "chmod g-w {}")).collect()
    }
}

fn told<'f>(open: impl Iterator<Item = &'f PathBuf>, who: &str, what: &str, way_out: &str) -> Option<String> {
    let open: Vec<String> = open.map(|path| path.display().to_string()).take(NAMED).collect();
    let fill = |text: &str, between| text.replace("{}", &open.join(between));
    (!open.is_empty()).then(|| format!("{who} {}: {}", fill(what, ", "), fill(way_out, " ")))
}

/// Whether the group can write to a folder of this user. Where the folder belongs to somebody else, as an
/// orchestrator's volumes do, its group is how the host reaches it.
fn is_open_to_group(path: &Path) -> bool {
    let right = (WRITE | SEARCH) << GROUP;
    let own = nix::unistd::geteuid().as_raw();
    path.metadata().is_ok_and(|found| found.uid() == own && found.mode() & right == right)
}

/// Whether others have this right to the file, and can reach it. A file that is not there is open to nobody.
fn is_open(path: &Path, right: u32) -> bool {
    let Ok(path) = path.canonicalize() else { return false };
    let has = |path: &Path, right| path.metadata().is_ok_and(|found| found.mode() & right == right);
    let is_reached = path.ancestors().skip(1).all(|folder| has(folder, SEARCH));
    let needed = if right == WRITE && path.is_dir() { WRITE | SEARCH } else { right };
    is_reached && has(&path, needed)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::testing::parse_in;
    use super::*;

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("set the rights");
    }

    #[test]
    fn files_that_others_can_read_or_write_are_told_with_the_way_out() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path();
        for name in ["plugins", "data", "data/blobs"] {
            fs::create_dir(folder.join(name)).expect("a folder");
        }
        set(&folder.join("data/blobs"), 0o700);
        for name in ["plugins/a.wasm", "token", "tqhost.toml"] {
            fs::write(folder.join(name), "secret").expect("a file");
            set(&folder.join(name), 0o640);
        }
        let told = |text: &str| {
            let config = parse_in(&format!("data_dir = \"data\"\n[queues.a]\n{text}"), folder);
            let all = config.expect("valid").exposures();
            all.join("\n").replace(&folder.display().to_string(), "/etc/tqhost")
        };
        let text = "[admin]\ntoken = { file = \"token\" }\n";
        set(folder, 0o755);
        assert_eq!(told(text), "");
        let table = [
            ("plugins", 0o777),
            ("plugins/a.wasm", 0o646),
            ("data", 0o703),
            ("data/blobs", 0o705),
            ("tqhost.toml", 0o602),
            ("token", 0o644),
        ];
        let mut rows = String::new();
        for (name, mode) in table {
            let path = folder.join(name);
            let before = path.metadata().expect("its rights").mode();
            set(&path, mode);
            rows += &format!("{name} {mode:o}\n    {}\n", told(text).replace('\n', "\n    "));
            // Nobody reaches it when the folder above is closed.
            set(folder, 0o700);
            assert_eq!(told(text), "", "{name}");
            set(folder, 0o755);
            set(&path, before & 0o7777);
        }
        set(&folder.join("data"), 0o770);
        rows += &format!("data 770\n    {}", told(text));
        insta::assert_snapshot!(rows);
        set(&folder.join("data"), 0o750);
        set(&folder.join("tqhost.toml"), 0o644);
        for own in [
            "[admin]\ntoken = \"t\"\n",
            "[admin.tokens.ci]\nrole = \"admin\"\nhash = \"sha256:0123456789abcdef0123456789abcdef\
             0123456789abcdef0123456789abcdef\"\n",
            "[redis]\nurl = \"redis://:p@h\"\n",
            "[redis]\nurl = \"redis://h\"\npassword = \"p\"\n",
        ] {
            insta::allow_duplicates! { insta::assert_snapshot!(told(own), @"
            other users of this machine can read secrets in /etc/tqhost/tqhost.toml: chmod o-r \
            /etc/tqhost/tqhost.toml
            ") };
        }
        assert_eq!(told("[redis]\nurl = \"redis://h\"\n"), "");
    }
}
