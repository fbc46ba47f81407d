//! The Lua scripts: each is a file in `scripts/` with its own header, and follows the files that all share
//! (`SHARED`). Together they are a library of functions, which hosts load.
//!
//! Not here: sending them (`link`), the meaning of their replies (`settle`, `claim`, `produce`, `redrive`,
//! `doctor`).

use std::sync::{Arc, LazyLock};

use redis::{Cmd, ToRedisArgs};

use super::codec::RawFields;
use super::keys;

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
    fn flag(self) -> Option<&'static str> {
        match self {
            ScriptKind::LetsIn => None,
            ScriptKind::LetsOut => Some("allow-oom"),
            ScriptKind::Reads => Some("no-writes"),
        }
    }
}

/// One of the scripts. Redis can receive it in two forms, with the same effect: alone, with all that it needs
/// (`source`), or as a function of the [`Library`].
#[derive(Debug)]
pub struct Script {
    pub name: &'static str,
    pub kind: ScriptKind,
    pub source: String,
    sha1: String,
    /// Its name in the library.
    function: String,
}

/// How scripts are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    /// As a function of the library, or alone.
    pub(super) is_function: bool,
    /// With a freeze key.
    pub(super) in_cluster: bool,
}

impl Form {
    /// A key that never exists, which comes after all other keys of a call with several keys. While a slot
    /// of a cluster moves, a node refuses a call of which one key is there and another is not. Without this
    /// key a call whose keys are all there would begin, and fail at the first key that it makes.
    pub(super) fn freeze_key(self, count: usize, first: &[u8]) -> Option<String> {
        let first = std::str::from_utf8(first).ok().filter(|_| self.in_cluster && count > 1)?;
        Some(keys::freeze(first))
    }
}

/// All scripts as functions of one library of Redis. Redis reads it once, so that a call costs only what it
/// does. Only hosts load it, because a user who loads functions decides which code hosts run.
///
/// A function is named after its script and the digest of its source, and the library after the digest of
/// its text, so that hosts of different versions work side by side.
pub(super) struct Library {
    pub(super) name: String,
    pub(super) text: String,
}

/// The beginning of the name of each library.
pub(super) const LIBRARIES: &str = "tqhost_";

/// The functions that scripts share.
const SHARED: [&str; 6] = [
    include_str!("scripts/lib.lua"),
    include_str!("scripts/ends.lua"),
    include_str!("scripts/places.lua"),
    include_str!("scripts/flows.lua"),
    include_str!("scripts/turns.lua"),
    include_str!("scripts/effects.lua"),
];

/// The line of a script at which a call begins. What stands before it are functions of the script.
const BEGIN_CALL: &str = "\nbegin_call()\n";

struct Declared {
    kind: ScriptKind,
    name: &'static str,
    body: &'static str,
}

/// Declares scripts: each is a file in the folder `scripts/`. A file that is declared twice makes two
/// scripts, one of which only reads.
macro_rules! scripts {
    ($(pub $constant:ident = $kind:ident $name:literal),* $(,)?) => {
        const DECLARED: &[Declared] = &[$(Declared {
            kind: ScriptKind::$kind,
            name: $name,
            body: include_str!(concat!("scripts/", $name, ".lua")),
        }),*];

        scripts! { @statics 0usize; $($constant)* }

        /// All scripts.
        pub fn declared() -> Vec<&'static Script> {
            vec![$(&*$constant),*]
        }
    };
    (@statics $at:expr; $first:ident $($rest:ident)*) => {
        pub static $first: LazyLock<Script> = LazyLock::new(|| Script::new(&DECLARED[$at]));
        scripts! { @statics $at + 1; $($rest)* }
    };
    (@statics $at:expr;) => {};
}

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
    pub RELAY = LetsIn "relay",
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
    // The doctor, adopt and give-back call the rest.
    pub EXAMINE = LetsOut "examine",
    pub EXAMINE_LOOK = Reads "examine",
    pub MEND = LetsOut "mend",
    pub MEND_LOOK = Reads "mend",
    pub CONVERT = LetsOut "convert",
    pub REPLACE = LetsOut "replace",
    pub ADOPT = LetsOut "adopt",
    pub FORGET = LetsOut "forget",
    pub NAMES = Reads "names",
    pub RETURN = LetsOut "return",
    pub RETURN_LOOK = Reads "return",
    pub SURVEY = Reads "survey",
    pub CLAIMED = Reads "claimed",
    pub PARKED = Reads "parked",
}

/// The library of this version.
pub(super) static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    let function = |script: &Script, body: &str| {
        let flags = script.kind.flag().map_or_else(String::new, |flag| format!("flags = {{ '{flag}' }}, "));
        let name = &script.function;
        let (functions, call) = body.split_once(BEGIN_CALL).unwrap_or(("", body));
        format!(
            "do\n{functions}\nredis.register_function({{ function_name = '{name}', {flags}\
             callback = function(keys, args)\nKEYS, ARGV = keys, args{BEGIN_CALL}{call}\nend }})\nend\n"
        )
    };
    let functions: String = DECLARED.iter().map(|of| function(&Script::new(of), of.body)).collect();
    let text = format!("local KEYS, ARGV\n{}\n{functions}", SHARED.join("\n"));
    let name = format!("{LIBRARIES}{}", redis::Script::new(&text).get_hash());
    Library { text: format!("#!lua name={name}\n{text}"), name }
});

impl Script {
    fn new(of: &Declared) -> Script {
        let flags = of.kind.flag().map_or_else(String::new, |flag| format!(" flags={flag}"));
        let source = format!("#!lua{flags}\n{}\n{}", SHARED.join("\n"), of.body);
        let sha1 = redis::Script::new(&source).get_hash().to_owned();
        Script { name: of.name, kind: of.kind, source, function: format!("{}_{sha1}", of.name), sha1 }
    }

    /// Begins a call with this many keys. The caller adds the keys, then the arguments.
    pub(super) fn command(&self, keys: usize, form: Form) -> Cmd {
        let mut command = self.call(form);
        command.arg(keys);
        command
    }

    /// The two words with which each call begins.
    fn call(&self, form: Form) -> Cmd {
        let (mut command, name) = match (form.is_function, self.kind) {
            (true, ScriptKind::Reads) => (redis::cmd("FCALL_RO"), &self.function),
            (true, _) => (redis::cmd("FCALL"), &self.function),
            (false, ScriptKind::Reads) => (redis::cmd("EVALSHA_RO"), &self.sha1),
            (false, _) => (redis::cmd("EVALSHA"), &self.sha1),
        };
        command.arg(name);
        command
    }

    /// The call of the script alone in place of its function.
    pub(super) fn alone(&self, call: &Cmd) -> Cmd {
        let mut command = self.call(Form { is_function: false, in_cluster: false });
        for part in call.args_iter().skip(2) {
            if let redis::Arg::Simple(part) = part {
                command.arg(part);
            }
        }
        command
    }

    /// The digest by which Redis knows the script. Tests that watch or disturb its calls find it in the name
    /// of its function, too.
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

    pub(super) fn command(&self, form: Form) -> Cmd {
        let keys = self.keys.len() + self.last.keys.len();
        let freeze = self.keys.first().and_then(|first| form.freeze_key(keys, first));
        let mut command = self.script.command(keys + usize::from(freeze.is_some()), form);
        command.arg(&self.keys).arg(&self.last.keys).arg(freeze).arg(&self.args).arg(&self.last.args);
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

    use super::super::keys::QueueKeys;
    use super::*;

    #[test]
    fn in_a_cluster_a_call_of_several_keys_has_a_key_that_never_exists() {
        let words = |call: &ScriptCall, in_cluster| {
            let command = call.command(Form { is_function: false, in_cluster });
            let words = command.args_iter().skip(2).map(|word| match word {
                redis::Arg::Simple(word) => String::from_utf8_lossy(word).into_owned(),
                _ => String::new(),
            });
            words.collect::<Vec<_>>()
        };
        let keys = QueueKeys::new("s", None);
        let one = ScriptCall::new(&RATE).key(&keys.rate).arg("a");
        let freeze = keys::freeze("s");
        let told = Arc::new(Told { keys: vec![b"events".to_vec()], args: vec![b"last".to_vec()] });
        let several = ScriptCall::new(&PROMOTE).key("s").key("t").arg("a").telling(told);
        assert_eq!(words(&one, true), ["1", keys.rate.as_str(), "a"]);
        assert_eq!(words(&several, false), ["3", "s", "t", "events", "a", "last"]);
        assert_eq!(words(&several, true), ["4", "s", "t", "events", freeze.as_str(), "a", "last"]);
        let tagged = ScriptCall::new(&PROMOTE).key("app:{t}:s").key("u");
        assert_eq!(words(&tagged, true), ["3", "app:{t}:s", "u", keys::freeze("t").as_str()]);
    }

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
        // Only operators run convert.lua (`rights`).
        run.remove("RENAME");
        assert_eq!(listed, run);
    }
}
