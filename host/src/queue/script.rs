//! The Lua scripts: each is a file in `scripts/` with its own header, and follows the shared `lib.lua`,
//! `flows.lua` and `turns.lua`.
//!
//! Not here: sending them (`link`), the meaning of their replies (`settle`, `claim`, `produce`, `redrive`),
//! the doctor's scripts (`doctor`).

use std::sync::{Arc, LazyLock};

use redis::{Cmd, ToRedisArgs};

use super::codec::RawFields;

/// A script lets tasks into a queue, lets them out, or only reads. Its first line declares this to Redis,
/// which refuses a script that may not run now before it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptKind {
    /// It adds tasks to a queue. Redis refuses it when its memory is full.
    LetsIn,
    /// It moves tasks on to their end, or serves those who do. It also runs when the memory of Redis is full,
    /// because only ends of tasks free memory.
    LetsOut,
    /// It only reads. It always runs, and a user may call it who has no right to write.
    Reads,
}

impl ScriptKind {
    fn first_line(self) -> &'static str {
        match self {
            ScriptKind::LetsIn => "#!lua",
            ScriptKind::LetsOut => "#!lua flags=allow-oom",
            ScriptKind::Reads => "#!lua flags=no-writes",
        }
    }
}

/// A script as Redis receives it.
#[derive(Debug)]
pub struct Script {
    pub name: &'static str,
    pub kind: ScriptKind,
    pub source: String,
    sha1: String,
}

/// Declares scripts: each is a file in the folder `scripts/` beside the file that declares it. A file that is
/// declared twice makes two scripts, one of which only reads.
macro_rules! scripts {
    ($($vis:vis $constant:ident = $kind:ident $name:literal),* $(,)?) => {
        $($vis static $constant: std::sync::LazyLock<$crate::queue::script::Script> =
            std::sync::LazyLock::new(|| {
                let body = include_str!(concat!("scripts/", $name, ".lua"));
                $crate::queue::script::Script::new($crate::queue::script::ScriptKind::$kind, $name, body)
            });)*

        /// All scripts that are declared here.
        pub(crate) fn declared() -> Vec<&'static $crate::queue::script::Script> {
            vec![$(&*$constant),*]
        }
    };
}
pub(crate) use scripts;

scripts! {
    pub BEGIN = LetsOut "begin",
    pub SETTLE = LetsOut "settle",
    pub PROMOTE = LetsOut "promote",
    pub HEARTBEAT = LetsOut "heartbeat",
    pub RECLAIM = LetsOut "reclaim",
    pub RECOVER = Reads "recover",
    pub ENQUEUE = LetsIn "enqueue",
    pub REQUEUE = LetsIn "requeue",
    pub REQUEUE_LOOK = Reads "requeue",
    pub IMPORT = LetsIn "import",
    pub GROUP = LetsOut "group",
    pub LEAVE = LetsOut "leave",
    pub CANCEL = LetsOut "cancel",
    // The items of a list take memory already.
    pub MOVE = LetsOut "move",
    pub RATE = LetsOut "rate",
    pub HOLD = LetsOut "hold",
    pub END_DELETED = LetsOut "lose",
    pub FIRE = LetsIn "fire",
    pub DUTIES = LetsOut "duties",
    // The parent of the children runs, and cannot end without them.
    pub STAGE = LetsOut "stage",
    pub UNSTAGE = LetsOut "unstage",
    pub ALIAS = LetsOut "alias",
    pub STAND = Reads "stand",
    pub CLAIM = LetsOut "claim",
    pub TRACKS = LetsOut "tracks",
    pub TRACKS_LOOK = Reads "tracks",
    pub LISTED = Reads "listed",
    pub TALLY = LetsOut "tally",
    pub REACH = LetsOut "reach",
    pub WRITE = LetsOut "write",
}

impl Script {
    /// `body` may use the functions of `lib.lua`, `flows.lua` and `turns.lua`.
    pub(crate) fn new(kind: ScriptKind, name: &'static str, body: &str) -> Script {
        let shared = [
            include_str!("scripts/lib.lua"),
            include_str!("scripts/flows.lua"),
            include_str!("scripts/turns.lua"),
        ];
        let source = format!("{}\n{}\n{body}", kind.first_line(), shared.join("\n"));
        let sha1 = redis::Script::new(&source).get_hash().to_owned();
        Script { name, kind, source, sha1 }
    }

    /// Begins a call with this many keys. The caller adds the keys, then the arguments.
    pub(super) fn command(&self, keys: usize) -> Cmd {
        let mut command = redis::cmd(if self.kind == ScriptKind::Reads { "EVALSHA_RO" } else { "EVALSHA" });
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
}

/// The streams that are told of ends, and the tracks, as `take_told` of lib.lua takes them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) args: Vec<Vec<u8>>,
}

impl ScriptCall {
    pub fn new(script: &'static LazyLock<Script>) -> ScriptCall {
        ScriptCall { script, keys: Vec::new(), args: Vec::new(), last: Arc::default() }
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

    pub(super) fn command(&self) -> Cmd {
        let mut command = self.script.command(self.keys.len() + self.last.keys.len());
        command.arg(&self.keys).arg(&self.last.keys).arg(&self.args).arg(&self.last.args);
        command
    }
}

/// The call of a command that writes a few bytes, also when the memory of Redis is full. The command's first
/// argument is its only key.
pub(super) fn write(command: &Cmd) -> ScriptCall {
    let parts = command.args_iter().map(|part| match part {
        redis::Arg::Simple(part) => part,
        _ => b"0",
    });
    let parts: Vec<&[u8]> = parts.collect();
    let call = ScriptCall::new(&WRITE);
    parts.get(1).into_iter().fold(call, ScriptCall::key).arg(&parts[..1]).arg(parts.get(2..))
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
        // tracks.lua names its command by an expression, and write.lua gets it.
        run.extend(["HSCAN", "ZSCAN"]);
        assert_eq!(listed, run);
    }
}
