//! The Lua scripts. Each is a file in `scripts/` with a header of its own. The text of the files in
//! [`SHARED`] stands in front of each script. All scripts together are a library of functions, which hosts
//! load.
//!
//! Not here: the names of keys and arguments (`layout`), sending calls (`link`), the meaning of their replies
//! (`settle`, `claim`, `produce`, `redrive`, `doctor`).

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use redis::{Cmd, ToRedisArgs};

use super::codec::RawFields;
use super::keys;
use super::layout::{self, Layout};

/// Whether a script lets tasks into a queue, lets them out, or only reads. Its first line declares this to
/// Redis, which refuses a script that may not run now before the script begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptKind {
    /// It adds tasks to a queue. A Redis whose memory is full refuses it.
    LetsIn,
    /// It moves tasks on to their end, or serves hosts and operators. It runs also when the memory of Redis
    /// is full, because only ends of tasks free memory.
    LetsOut,
    /// It only reads. It always runs, also for a user without the right to write.
    Reads,
}

impl ScriptKind {
    /// The flag that declares this to Redis.
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
    pub(super) layout: Layout,
    /// Whether its calls have a [`Told`] at their end.
    takes_told: bool,
}

/// How scripts are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    /// As a function of the library. Otherwise alone.
    pub(super) is_function: bool,
    /// With a freeze key at the end of several keys.
    pub(super) in_cluster: bool,
}

impl Form {
    /// A key that never exists, for the end of a call with several keys. While a node of a cluster gives a
    /// slot away, it cannot make keys there. It refuses a call from the beginning if it lacks one of its
    /// keys, which is so with this one. Without it, a node that still has all keys of a call would begin the
    /// script, and the script would fail in its middle, at the first key that it makes.
    pub(super) fn freeze_key(self, count: usize, first: &[u8]) -> Option<String> {
        let first = std::str::from_utf8(first).ok().filter(|_| self.in_cluster && count > 1)?;
        Some(keys::freeze(first))
    }
}

/// All scripts as functions of one library of Redis. Redis compiles it once, and not at each call. Only hosts
/// load it, because a user with the right to load functions decides which code hosts run.
///
/// The name of a function contains the digest of the script's source, and the name of the library contains
/// the digest of its text, so that hosts of different versions work side by side.
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

/// The line of a script at which a call begins. The functions of the script stand before it.
const BEGIN_CALL: &str = "\nbegin_call()\n";

struct Declared {
    kind: ScriptKind,
    name: &'static str,
    body: &'static str,
}

/// Declares scripts: each is a file in the folder `scripts/`. A file that is declared twice makes two
/// scripts, one of which only reads, or is refused on a full Redis.
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
    pub KEEP = LetsIn "keep",
    // A purge takes memory: it copies the letters that it deletes.
    pub PURGE = LetsIn "purge",
    pub CANCEL_KEPT = LetsIn "cancel",
    pub GROUP = LetsOut "group",
    pub LEAVE = LetsOut "leave",
    pub CANCEL = LetsOut "cancel",
    // This takes no more memory: the items of the list become tasks.
    pub MOVE = LetsOut "move",
    pub DUE = LetsOut "due",
    pub RELAY = LetsIn "relay",
    pub RATE = LetsOut "rate",
    pub HOLD = LetsOut "hold",
    pub END_DELETED = LetsOut "lose",
    pub FIRE = LetsIn "fire",
    pub DUTIES = LetsOut "duties",
    pub JOB = LetsOut "job",
    // A task that runs can only end when its children are staged.
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
    pub RESTORE = LetsOut "restore",
    pub FORGET = LetsOut "forget",
    pub NAMES = Reads "names",
    pub RETURN = LetsOut "return",
    pub RETURN_LOOK = Reads "return",
    pub SURVEY = Reads "survey",
    pub CLAIMED = Reads "claimed",
    pub PARKED = Reads "parked",
}

/// The names that all scripts share.
static SHARED_NAMES: LazyLock<Layout> = LazyLock::new(|| Layout::of(&layout::head(SHARED[0])));

/// The text that stands in front of every script. Scripts read parts of a call, such as one attempt of many,
/// into tables ([`Part`]): [`layout::with_readers`] adds the Lua function that does so to the text, and
/// returns the layouts of these parts, too.
static SHARED_TEXT: LazyLock<String> = LazyLock::new(|| {
    let texts: Vec<String> = SHARED.iter().map(|text| layout::with_readers(text).0).collect();
    SHARED_NAMES.declared(None) + &texts.join("\n")
});

/// The layouts of the parts of calls that scripts read into tables, by the names of the tables.
static PARTS: LazyLock<BTreeMap<String, Layout>> = LazyLock::new(|| {
    let texts = SHARED.into_iter().chain(DECLARED.iter().map(|of| of.body));
    texts.flat_map(|text| layout::with_readers(text).1).collect()
});

/// The library of this version.
pub(super) static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    let function = |of: &Declared| {
        let (script, [functions, call]) = (Script::new(of), of.texts());
        let flags = of.kind.flag().map_or_else(String::new, |flag| format!("flags = {{ '{flag}' }}, "));
        let name = &script.function;
        format!(
            "do\n{functions}\nredis.register_function({{ function_name = '{name}', {flags}\
             callback = function(keys, args)\nKEYS, ARGV = keys, args\n{call}\nend }})\nend\n"
        )
    };
    let functions: String = DECLARED.iter().map(function).collect();
    let text = format!("local KEYS, ARGV\n{}\n{functions}", *SHARED_TEXT);
    let name = format!("{LIBRARIES}{}", redis::Script::new(&text).get_hash());
    Library { text: format!("#!lua name={name}\n{text}"), name }
});

impl Declared {
    fn layout(&self) -> Layout {
        Layout::of(&layout::head(self.body))
    }

    /// The functions of the script, and the text of a call. The variables of the call are declared in front
    /// of the functions, which see them then; without functions, they are local to the call.
    fn texts(&self) -> [String; 2] {
        let (text, _) = layout::with_readers(self.body);
        let (functions, call) = text.split_once(BEGIN_CALL).expect("each script marks where its call begins");
        let layout = self.layout();
        let (declared, set) = (layout.declared(Some(&SHARED_NAMES)), layout.set(&SHARED_NAMES));
        let is_code = |line: &str| !line.is_empty() && !line.starts_with("--");
        if functions.lines().any(is_code) {
            return [declared + functions, format!("{set}{BEGIN_CALL}{call}")];
        }
        [functions.to_owned(), format!("{declared}{set}{BEGIN_CALL}{call}")]
    }
}

impl Script {
    fn new(of: &Declared) -> Script {
        let flags = of.kind.flag().map_or_else(String::new, |flag| format!(" flags={flag}"));
        let source = format!("#!lua{flags}\n{}\n{}", *SHARED_TEXT, of.texts().join("\n"));
        let sha1 = redis::Script::new(&source).get_hash().to_owned();
        let function = format!("{}_{sha1}", of.name);
        let takes_told = of.body.contains("\ntake_told()\n");
        Script { name: of.name, kind: of.kind, source, function, sha1, layout: of.layout(), takes_told }
    }

    /// The command and the name with which each call begins.
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

    /// Turns a call of the script's function into a call of the script alone. A freeze key is among its words
    /// already.
    pub(super) fn alone(&self, call: &Cmd) -> Cmd {
        let mut command = self.call(Form { is_function: false, in_cluster: false });
        command.arg(words(call).skip(2).collect::<Vec<_>>());
        command
    }

    /// The digest by which Redis knows the script. It is also a part of the function's name, where tests that
    /// watch or disturb calls find it.
    pub fn sha1(&self) -> &str {
        &self.sha1
    }
}

/// The keys of a call, or its arguments, each with its name.
#[derive(Debug, Clone, Default)]
struct NamedWords {
    words: Cmd,
    /// The name of each word. All words of a list that begins with its length ([`ScriptCall::list`]), or of a
    /// part of a call, have one name together. Empty in release builds.
    names: Vec<&'static str>,
}

impl NamedWords {
    fn add(&mut self, name: &'static str, word: impl ToRedisArgs) {
        let before = self.len();
        self.words.arg(word);
        if cfg!(debug_assertions) {
            self.names.extend((before..self.len()).map(|_| name));
        }
    }

    /// Adds the words of a part of a call under one name: the layout of the part has checked theirs.
    fn join(&mut self, name: &'static str, more: &NamedWords) {
        self.words.arg(words(&more.words).collect::<Vec<_>>());
        if more.len() > 0 {
            self.named(name);
        }
    }

    fn named(&mut self, name: &'static str) {
        if cfg!(debug_assertions) {
            self.names.push(name);
        }
    }

    fn len(&self) -> usize {
        self.words.args_iter().len()
    }
}

/// The words of a command.
pub(super) fn words(command: &Cmd) -> impl Iterator<Item = &[u8]> {
    command.args_iter().filter_map(|word| match word {
        redis::Arg::Simple(word) => Some(word),
        _ => None,
    })
}

/// One call of a script, or a part of a call. The Lua file declares the names and the order of its keys and
/// arguments. Keys come before arguments.
#[derive(Debug, Clone)]
pub struct ScriptCall<T = &'static Script> {
    pub of: T,
    keys: NamedWords,
    args: NamedWords,
    /// The keys and arguments at the end of the call.
    told: Option<Arc<Told>>,
}

/// A part of a call that a script reads into the table with this name.
pub(super) type Part = ScriptCall<&'static str>;

/// The streams that are told of ends, and the tracks: keys and arguments that come after all others. The
/// function `take_told` of lib.lua reads them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) args: Vec<Vec<u8>>,
}

impl<T> ScriptCall<T> {
    pub(super) fn of(of: T) -> ScriptCall<T> {
        ScriptCall { of, keys: NamedWords::default(), args: NamedWords::default(), told: None }
    }

    fn fits(&self, layout: &Layout) -> bool {
        layout.fits("KEYS", &self.keys.names) && layout.fits("ARGV", &self.args.names)
    }

    pub fn key(mut self, name: &'static str, key: impl AsRef<[u8]>) -> ScriptCall<T> {
        self.keys.add(name, key.as_ref());
        self
    }

    /// Adds an argument, or several of one name.
    pub fn arg(mut self, name: &'static str, arg: impl ToRedisArgs) -> ScriptCall<T> {
        self.args.add(name, arg);
        self
    }

    /// Adds names and values as the last arguments, under the name `fields`.
    pub(crate) fn fields(self, fields: &RawFields) -> ScriptCall<T> {
        fields.iter().fold(self, |call, field| call.arg("fields", field))
    }

    /// Adds names and values as one list, which begins with its length, under the name `fields`.
    pub(super) fn list(mut self, fields: &RawFields) -> ScriptCall<T> {
        self.args.words.arg(2 * fields.len());
        for field in fields {
            self.args.words.arg(field);
        }
        self.args.named("fields");
        self
    }

    pub(super) fn part(mut self, name: &'static str, part: &Part) -> ScriptCall<T> {
        debug_assert!(part.fits(&PARTS[part.of]), "{part:?}");
        self.keys.join(name, &part.keys);
        self.args.join(name, &part.args);
        self
    }
}

impl ScriptCall {
    pub fn new(script: &'static LazyLock<Script>) -> ScriptCall {
        ScriptCall::of(script)
    }

    /// Adds the keys and arguments at the end, if the script takes them.
    pub(super) fn telling(self, told: &Arc<Told>) -> ScriptCall {
        let told = self.of.takes_told.then(|| Arc::clone(told));
        ScriptCall { told, ..self }
    }

    pub(super) fn command(&self, form: Form) -> Cmd {
        let ScriptCall { of, keys, args, told } = self;
        debug_assert!(self.fits(&of.layout), "{}: {keys:?} {args:?}", of.name);
        let (told_keys, told_args) = told.as_ref().map(|told| (&told.keys, &told.args)).unzip();
        let count = keys.len() + told_keys.map_or(0, Vec::len);
        let freeze = words(&keys.words).next().and_then(|first| form.freeze_key(count, first));
        let [keys, args] = [keys, args].map(|list| words(&list.words).collect::<Vec<_>>());
        let mut command = of.call(form);
        command.arg(count + usize::from(freeze.is_some())).arg(keys).arg(told_keys).arg(freeze);
        command.arg(args).arg(told_args);
        command
    }
}

/// The call of write.lua for a command, which then works also when the memory of Redis is full. The command
/// writes a few bytes, and its first argument is its only key.
pub(super) fn write(command: &Cmd) -> ScriptCall {
    let mut words = words(command);
    let (command, key) = (words.next(), words.next().unwrap_or_default());
    let call = ScriptCall::new(&WRITE).key("key", key).arg("command", command);
    call.arg("parts", words.collect::<Vec<_>>())
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
            let words = words(&command).skip(2);
            words.map(|word| String::from_utf8_lossy(word).into_owned()).collect::<Vec<_>>()
        };
        let keys = QueueKeys::new("s", None);
        let rate = ScriptCall::new(&RATE).key("rate", &keys.rate);
        let one = rate.arg("step", "a").arg("ahead", "b").arg("want", "c");
        let freeze = keys::freeze("s");
        let told = Arc::new(Told { keys: vec![b"events".to_vec()], args: vec![b"last".to_vec()] });
        let leaving = |stream: &str| {
            let call = ScriptCall::new(&LEAVE).key("stream", stream).key("replies", "t");
            call.arg("group", "a").arg("consumer", "b")
        };
        let several = ScriptCall { told: Some(told), ..leaving("s") };
        assert_eq!(words(&one, true), ["1", keys.rate.as_str(), "a", "b", "c"]);
        assert_eq!(words(&several, false), ["3", "s", "t", "events", "a", "b", "last"]);
        assert_eq!(words(&several, true), ["4", "s", "t", "events", freeze.as_str(), "a", "b", "last"]);
        let tagged = words(&leaving("app:{t}:s"), true);
        assert_eq!(tagged[..4], ["3", "app:{t}:s", "t", keys::freeze("t").as_str()]);
    }

    #[test]
    fn every_word_of_a_call_has_a_name_that_lua_knows() {
        let of_parts = PARTS.values().flat_map(Layout::names);
        for name in declared().into_iter().flat_map(|script| script.layout.names()).chain(of_parts) {
            let is_name = |letter: char| letter.is_ascii_lowercase() || letter == '_';
            assert!(name.chars().all(is_name), "{name:?} is no name");
        }
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
