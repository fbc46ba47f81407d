//! The Lua scripts: each is a file in `scripts/` with its own header, and follows the shared `lib.lua` and
//! `turns.lua`.
//!
//! Not here: sending them (`link`), the meaning of their replies (`settle`, `claim`, `produce`, `redrive`),
//! the doctor's scripts (`doctor`).

use std::sync::{Arc, LazyLock};

use redis::{Cmd, ToRedisArgs};

use super::codec::RawFields;

/// A script as Redis receives it.
#[derive(Debug)]
pub struct Script {
    pub name: &'static str,
    pub source: String,
    sha1: String,
    /// Whether it only reads, so that a user may call it who has no right to write.
    only_reads: bool,
}

/// The scripts that only read. Redis sees to it.
const ONLY_READ: [&str; 2] = ["listed", "stand"];

/// Declares scripts: each is a file in the folder `scripts/` beside the file that declares it.
macro_rules! scripts {
    ($($vis:vis $constant:ident = $name:literal),* $(,)?) => {
        $($vis static $constant: std::sync::LazyLock<$crate::queue::script::Script> =
            std::sync::LazyLock::new(|| {
                $crate::queue::script::Script::new($name, include_str!(concat!("scripts/", $name, ".lua")))
            });)*
    };
}
pub(crate) use scripts;

scripts! {
    pub BEGIN = "begin",
    pub SETTLE = "settle",
    pub PROMOTE = "promote",
    pub HEARTBEAT = "heartbeat",
    pub RECLAIM = "reclaim",
    pub RECOVER = "recover",
    pub ENQUEUE = "enqueue",
    pub REQUEUE = "requeue",
    pub IMPORT = "import",
    pub GROUP = "group",
    pub LEAVE = "leave",
    pub CANCEL = "cancel",
    pub MOVE = "move",
    pub RATE = "rate",
    pub HOLD = "hold",
    pub END_DELETED = "lose",
    pub FIRE = "fire",
    pub DUTIES = "duties",
    pub STAGE = "stage",
    pub UNSTAGE = "unstage",
    pub ALIAS = "alias",
    pub STAND = "stand",
    pub CLAIM = "claim",
    pub TRACKS = "tracks",
    pub LISTED = "listed",
    pub TALLY = "tally",
    pub REACH = "reach",
}

impl Script {
    /// `body` may use the functions of `lib.lua` and `turns.lua`.
    pub(crate) fn new(name: &'static str, body: &str) -> Script {
        let shared = [include_str!("scripts/lib.lua"), include_str!("scripts/turns.lua")];
        let source = format!("{}\n{body}", shared.join("\n"));
        let sha1 = redis::Script::new(&source).get_hash().to_owned();
        Script { name, source, sha1, only_reads: ONLY_READ.contains(&name) }
    }

    /// Begins a call with this many keys. The caller adds the keys, then the arguments.
    pub(super) fn command(&self, keys: usize) -> Cmd {
        self.begin(self.only_reads, keys)
    }

    fn begin(&self, only_reads: bool, keys: usize) -> Cmd {
        let mut command = redis::cmd(if only_reads { "EVALSHA_RO" } else { "EVALSHA" });
        command.arg(&self.sha1).arg(keys);
        command
    }

    /// The name of the script in Redis, for tests that watch or disturb its calls.
    pub fn sha1(&self) -> &str {
        &self.sha1
    }
}

/// One call of a script. Keys come before arguments.
#[derive(Debug, Clone)]
pub struct ScriptCall {
    pub script: &'static Script,
    keys: Vec<Vec<u8>>,
    args: Vec<Vec<u8>>,
    /// Keys and arguments that come after all others.
    last: Arc<Told>,
    /// Whether this call only reads. Its script may write in other calls.
    only_reads: bool,
}

/// The streams that are told of ends, and the tracks, as `take_told` of lib.lua takes them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) args: Vec<Vec<u8>>,
}

impl ScriptCall {
    pub fn new(script: &'static LazyLock<Script>) -> ScriptCall {
        let only_reads = script.only_reads;
        ScriptCall { script, keys: Vec::new(), args: Vec::new(), last: Arc::default(), only_reads }
    }

    pub fn key(mut self, key: impl AsRef<[u8]>) -> ScriptCall {
        self.keys.push(key.as_ref().to_vec());
        self
    }

    pub fn arg(mut self, arg: impl ToRedisArgs) -> ScriptCall {
        self.args.extend(arg.to_redis_args());
        self
    }

    /// Adds what comes after all other keys and arguments.
    pub(super) fn telling(self, last: Arc<Told>) -> ScriptCall {
        ScriptCall { last, ..self }
    }

    /// Redis is to see to it that this call only reads.
    pub(super) fn only_reading(self) -> ScriptCall {
        ScriptCall { only_reads: true, ..self }
    }

    pub(super) fn command(&self) -> Cmd {
        let mut command = self.script.begin(self.only_reads, self.keys.len() + self.last.keys.len());
        command.arg(&self.keys).arg(&self.last.keys).arg(&self.args).arg(&self.last.args);
        command
    }
}

/// Appends names and values as a script's last arguments.
pub(super) fn with_fields(call: ScriptCall, fields: RawFields) -> ScriptCall {
    fields.into_iter().fold(call, |call, (name, value)| call.arg(name).arg(value))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    /// The commands that a script runs, as it names them in its calls.
    fn commands(source: &str) -> impl Iterator<Item = &str> {
        let after_call = source.split("call('").skip(1);
        after_call.filter_map(|rest| rest.split('\'').next())
    }

    #[test]
    fn a_host_asks_for_the_right_to_every_command_of_the_scripts() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/queue/scripts");
        let group = fs::read_to_string(dir.join("group.lua")).expect("group.lua");
        let list = group.split("[[").nth(1).and_then(|rest| rest.split("]]").next()).expect("the list");
        let listed: BTreeSet<&str> =
            list.split_whitespace().filter_map(|name| name.split('|').next()).collect();
        let scripts = fs::read_dir(dir).expect("the scripts").map(|entry| entry.expect("a script").path());
        let sources: Vec<String> = scripts.map(|path| fs::read_to_string(path).expect("a script")).collect();
        let mut run: BTreeSet<&str> = sources.iter().flat_map(|source| commands(source)).collect();
        // tracks.lua names its command by an expression.
        run.extend(["HSCAN", "ZSCAN"]);
        assert_eq!(listed, run);
    }
}
