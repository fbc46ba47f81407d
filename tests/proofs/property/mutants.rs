//! Mutants of the scripts, each without one guard, which the property test has to find.
//!
//! In: a [`Mutation`]. Out: a port at which Redis runs the mutants. The library calls a script by its hash. A
//! [`Mutator`] is a proxy between the library and Redis that replaces the hash by the mutant's. So the
//! library is unchanged, and one line in Redis differs. A change to `lib.lua` changes every script. Not here:
//! the property test (`tests/proofs/property.rs`).

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::LazyLock;

use tqhost::testing::queue::script::{self, Script};

use crate::support::{RedisServer, files};

/// A part of a script, its replacement, and a part of the message with which the property test fails.
pub struct Mutation {
    pub what: &'static str,
    scripts: &'static [&'static LazyLock<Script>],
    text: &'static str,
    instead: &'static str,
    pub found: &'static str,
}

/// The scripts that the property test calls and that use functions of `lib.lua`.
const ALL: &[&LazyLock<Script>] = &[
    &script::SETTLE,
    &script::BEGIN,
    &script::HEARTBEAT,
    &script::CANCEL,
    &script::ENQUEUE,
    &script::PROMOTE,
    &script::REQUEUE,
    &script::FIRE,
];

/// The message when something in Redis differs from the reference.
const DIFFERS: &str = "assertion failed";

/// Every guard whose absence shows when calls come one after the other.
pub const MUTATIONS: &[Mutation] = &[
    Mutation {
        what: "settle completes without looking at XACK's answer",
        scripts: &[&script::SETTLE],
        text: "redis.call('XACK', stream, group, entry) == 1",
        instead: "redis.call('XACK', stream, group, entry) ~= nil",
        found: "Overtaken",
    },
    Mutation {
        what: "settle buries without looking for the owner",
        scripts: &[&script::SETTLE],
        text: "(anyone_may or owned(entry, consumer))",
        instead: "(anyone_may or buries or owned(entry, consumer))",
        found: "Overtaken",
    },
    Mutation {
        what: "settle parks without looking for the owner",
        scripts: &[&script::SETTLE],
        text: "(anyone_may or owned(entry, consumer))",
        instead: "(not buries or owned(entry, consumer))",
        found: "Overtaken",
    },
    Mutation {
        what: "settle gives a repeated call a reply of its own",
        scripts: &[&script::SETTLE],
        text: "if before and before >= tonumber(number) then",
        instead: "if false then",
        found: "the reply that was lost",
    },
    Mutation {
        what: "settle leaves the entry in the stream",
        scripts: &[&script::SETTLE],
        text: "redis.call('XDEL', stream, unpack(settled))",
        instead: "local _ = settled",
        found: DIFFERS,
    },
    Mutation {
        what: "settle does not commit the effects",
        scripts: &[&script::SETTLE],
        text: "for _, effect in ipairs(one.effects) do effect.kind.commit(effect) end",
        instead: "",
        found: DIFFERS,
    },
    Mutation {
        what: "settle commits the effects of an attempt that others have settled",
        scripts: &[&script::SETTLE],
        text: "if not is_ours and not has_without_entry(status, entry) then return 0 end",
        instead: "for _, effect in ipairs(one.effects) do effect.kind.commit(effect) end",
        found: "attempts have",
    },
    Mutation {
        what: "settle sets no value of a plain attempt",
        scripts: &[&script::SETTLE],
        text: "size > 0 and redis.pcall('MSET', unpack(writes))",
        instead: "false",
        found: "the values that attempts have set",
    },
    Mutation {
        what: "settle sets the values of a plain attempt that others have settled",
        scripts: &[&script::SETTLE],
        text: "if not ours or ours[attempt] then",
        instead: "if true then",
        found: "the values that attempts have set",
    },
    Mutation {
        what: "settle takes the value of one plain attempt for that of another",
        scripts: &[&script::SETTLE],
        text: "ARGV[counts + attempt]",
        instead: "ARGV[counts + 1]",
        found: "the values that attempts have set",
    },
    Mutation {
        what: "settle sets no value of an attempt that is not plain",
        scripts: &[&script::SETTLE],
        text: "redis.call('SET', one.key, one.value)\n    else",
        instead: "else",
        found: "the values that attempts have set",
    },
    Mutation {
        what: "settle completes plain attempts that others have settled",
        scripts: &[&script::SETTLE],
        text: "if ours and not ours[i] then return 0 end",
        instead: "",
        found: "Overtaken",
    },
    Mutation {
        what: "settle enqueues a task although one with its key has ended",
        scripts: &[&script::SETTLE],
        text: "if not first or first == new.id or redis.call('PTTL', new.marker) < 0 then",
        instead: "if true then",
        // The reference does not know the task that runs.
        found: "was enqueued",
    },
    Mutation {
        what: "settle gives a new task the key of a living one",
        scripts: &[&script::SETTLE],
        text: "and (first_task(marker, queue.stream) or id) == id then",
        instead: "then",
        found: "the key",
    },
    Mutation {
        what: "begin does not look for the owner",
        scripts: &[&script::BEGIN],
        text: "if not owned(entry, consumer) then",
        instead: "if false then",
        found: "Some(Owned",
    },
    Mutation {
        what: "begin overlooks that another task has the key",
        scripts: &[&script::BEGIN],
        text: "if first and first ~= id then",
        instead: "if false then",
        found: "Duplicate",
    },
    Mutation {
        what: "begin does not ask whether the task that has the key was lost",
        scripts: &[&script::BEGIN],
        text: "if holder == stream then return first end",
        instead: "",
        found: "Duplicate",
    },
    Mutation {
        what: "begin overlooks that the host died while the task ran alone",
        scripts: &[&script::BEGIN],
        text: "if has_died and tonumber(crashes) >= tonumber(max_crashes) then return 5 end",
        instead: "local _ = has_died",
        found: "Crashed",
    },
    Mutation {
        what: "begin leaves it noted that the task ran alone",
        scripts: &[&script::BEGIN],
        text: "'alone', 'cancel', 'stops', 'cancelled')",
        instead: "'cancel', 'stops', 'cancelled')",
        found: "Crashed",
    },
    Mutation {
        what: "begin does not take the key",
        scripts: &[&script::BEGIN],
        text: "if marker ~= stream then\n    redis.call('SET', marker, id)",
        instead: "if marker ~= stream then\n    local _ = id",
        found: "the key",
    },
    Mutation {
        what: "the heartbeat does not look for the owner",
        scripts: &[&script::HEARTBEAT],
        text: "if owned(entry, consumer) then",
        instead: "if true then",
        found: DIFFERS,
    },
    Mutation {
        what: "the heartbeat counts as a delivery",
        scripts: &[&script::HEARTBEAT],
        text: "0, entry, 'JUSTID')",
        instead: "0, entry)",
        found: "deliveries",
    },
    Mutation {
        what: "a reclaim of what is the consumer's own counts as a delivery",
        scripts: &[&script::RECLAIM],
        text: "if owner ~= consumer and",
        instead: "if",
        found: DIFFERS,
    },
    Mutation {
        what: "a reclaim from an owner that lives counts as a crash",
        scripts: &[&script::RECLAIM],
        text: "and idle - silence_of(owner) < outlived then",
        instead: "then",
        found: DIFFERS,
    },
    Mutation {
        what: "promote leaves the task among the delayed ones",
        scripts: &[&script::PROMOTE],
        text: "lost = lost + 1\n  end\n  redis.call('ZREM', delayed, member)",
        instead: "lost = lost + 1\n  end\n  local _ = member",
        found: DIFFERS,
    },
    Mutation {
        what: "promote leaves the fields of the task",
        scripts: &[&script::PROMOTE],
        text: "redis.call('HDEL', parked, member)\n    note_entry",
        instead: "local _ = member\n    note_entry",
        found: DIFFERS,
    },
    Mutation {
        what: "requeue leaves the dead letter",
        scripts: &[&script::REQUEUE],
        text: "redis.call('XDEL', dead, letter)",
        instead: "local _ = entry",
        found: DIFFERS,
    },
    Mutation {
        what: "cancel does not look whether the task has ended",
        scripts: &[&script::CANCEL],
        text: "if state and not is_live(state) and not is_second_entry and not is_second_delayed then",
        instead: "if false then",
        found: DIFFERS,
    },
    Mutation {
        what: "enqueue accepts a task again",
        scripts: &[&script::ENQUEUE],
        text: "if redis.call('EXISTS', status) == 1 then return 0 end",
        instead: "",
        found: DIFFERS,
    },
    Mutation {
        what: "enqueue overlooks that another task has the key",
        scripts: &[&script::ENQUEUE],
        text: "if first then",
        instead: "if false then",
        found: "Duplicate",
    },
    Mutation {
        what: "enqueue fills a queue that is full",
        scripts: &[&script::ENQUEUE],
        text: "if room(most) <= 0 then return -1 end",
        instead: "",
        found: "Full",
    },
    Mutation {
        what: "a schedule fills a queue that is full",
        scripts: &[&script::FIRE],
        text: "elseif room(most) <= 0 then",
        instead: "elseif false then",
        found: "Full",
    },
    Mutation {
        what: "move fills a queue that is full",
        scripts: &[&script::MOVE],
        text: "math.min(room(most), tonumber(limit))",
        instead: "tonumber(limit)",
        found: DIFFERS,
    },
    Mutation {
        what: "move leaves the item in the list",
        scripts: &[&script::MOVE],
        text: "redis.call('RPOP', list)",
        instead: "",
        found: DIFFERS,
    },
    Mutation {
        what: "move takes the item out of the list before Redis has accepted its task",
        scripts: &[&script::MOVE],
        text: "redis.call('XADD', stream, '*', unpack(fields))\n    redis.call('RPOP', list)",
        instead: "redis.call('RPOP', list)\n    redis.call('XADD', stream, '*', unpack(fields))",
        found: "the list",
    },
    Mutation {
        what: "move begins with the newest item",
        scripts: &[&script::MOVE],
        text: "redis.call('LINDEX', list, -1)",
        instead: "redis.call('LINDEX', list, 0)",
        found: DIFFERS,
    },
    Mutation {
        what: "recover gives entries that are in flight",
        scripts: &[&script::RECOVER],
        text: "if not skip[id] then",
        instead: "if true then",
        found: DIFFERS,
    },
    Mutation {
        what: "a reclaim counts no crash of a consumer whose name is not that of a host",
        scripts: &[&script::RECLAIM],
        text: "type(before_tqhost) == 'string' and before_tqhost ~= '0-0'",
        instead: "type(before_tqhost) == 'string'",
        found: DIFFERS,
    },
    Mutation {
        what: "the heartbeat overlooks that the task was cancelled",
        scripts: &[&script::HEARTBEAT],
        text: "if state == 'CANCELLED' then return 2 end",
        instead: "",
        found: "Cancelled",
    },
    Mutation {
        what: "a key is free although its task is there",
        scripts: ALL,
        text: "if not entry or not is_live(state) or has_place(entry, member, kept_until) \
               then return false end",
        instead: "",
        found: DIFFERS,
    },
    Mutation {
        what: "a task is taken for a duplicate of its own entry",
        scripts: ALL,
        text: "if known_entry == entry then return false end",
        instead: "",
        found: DIFFERS,
    },
    Mutation {
        what: "promote leaves the former place in the status",
        scripts: &[&script::PROMOTE],
        text: "redis.call('HSET', status, 'entry', entry)\n    redis.call('HDEL', status, 'parked_as')\n",
        instead: "",
        found: DIFFERS,
    },
    Mutation {
        what: "a consumer leaves with what is pending for it",
        scripts: &[&script::LEAVE],
        text: "if pending.err or #pending > 0 then",
        instead: "if pending.err then",
        found: DIFFERS,
    },
    Mutation {
        what: "the end of a task lets its key live on",
        scripts: ALL,
        text: "redis.call('PEXPIRE', marker, ended.lives or window_after(how))",
        instead: "local _ = id",
        found: "the key",
    },
    Mutation {
        what: "the end of a task keeps the status that is not to be kept",
        scripts: ALL,
        text: "if tonumber(retention) > 0 then",
        instead: "if true then",
        found: DIFFERS,
    },
    Mutation {
        what: "begin overlooks that another task has the id",
        scripts: &[&script::BEGIN],
        text: "if is_elsewhere(status, entry, id) then",
        instead: "if false then",
        found: "Duplicate",
    },
    Mutation {
        what: "settle overlooks that another task has the id",
        scripts: &[&script::SETTLE],
        text: "local is_second = not completes and is_elsewhere(status, entry, id)",
        instead: "local is_second = false",
        found: DIFFERS,
    },
    Mutation {
        what: "a task that was deleted keeps its key",
        scripts: ALL,
        text: "if redis.call('PTTL', marker) ~= -1 then return false end",
        instead: "do return false end",
        found: DIFFERS,
    },
    Mutation {
        what: "the heartbeat overlooks that the entry was deleted",
        scripts: &[&script::HEARTBEAT],
        text: "if #claimed > 0 then return 1 end",
        instead: "do return 1 end",
        found: "Deleted",
    },
    Mutation {
        what: "a consumer ends a task that another one runs without its entry",
        scripts: ALL,
        text: "if runner ~= consumer and kept_until > now then return false end",
        instead: "",
        found: "Gone",
    },
    Mutation {
        what: "settle does not know an entry that was deleted",
        scripts: &[&script::SETTLE],
        text: "return kept_until > 0 and runner == consumer and known_entry == entry",
        instead: "return false",
        found: "Overtaken",
    },
    Mutation {
        what: "a time of the schedule comes again",
        scripts: &[&script::FIRE],
        text: "if (tonumber(redis.call('HGET', schedule, name)) or 0) >= at then return 0 end",
        instead: "",
        found: "Known",
    },
    Mutation {
        what: "a time of the schedule that is too late has a task",
        scripts: &[&script::FIRE],
        text: "late >= 0 and now - at > late",
        instead: "false",
        found: "TooLate",
    },
    Mutation {
        what: "more starts than the rate allows",
        scripts: &[&script::RATE],
        text: "math.max(0, math.min(want, math.floor((time + ahead * step - due) / step)))",
        instead: "want",
        found: "starts within",
    },
];

/// The guards of queues that limit which tasks run beside each other, for `proofs::turns`.
pub const OF_TURNS: &[Mutation] = &[
    Mutation {
        what: "claim reads more than may run",
        scripts: &[&script::CLAIM],
        text: "most and most - running - #entries or want",
        instead: "want",
        found: "are pending",
    },
    Mutation {
        what: "a task takes a turn that another one has",
        scripts: &[&script::CLAIM],
        text: "if tracks.count_in(track) < turns.limit and not first_held(track) then",
        instead: "if true then",
        found: "not the first",
    },
    Mutation {
        what: "a retry gives its turn up",
        scripts: &[&script::CLAIM],
        text: "  if track then\n    -- The task comes back",
        instead: "  if false then\n    -- The task comes back",
        found: "never ended",
    },
    Mutation {
        what: "the end of a task does not pass its turn on",
        scripts: &[&script::SETTLE],
        text: "turns.limit and not turns.are_kept and try",
        instead: "false and try",
        found: "turn-without-task",
    },
    Mutation {
        what: "more tasks than may have the turn",
        scripts: &[&script::SETTLE],
        text: "local member = tracks.count_in(track) < turns.limit and first_held(track)",
        instead: "local member = first_held(track)",
        found: "",
    },
    Mutation {
        what: "a worker that lost its lease completes a task",
        scripts: &[&script::SETTLE],
        text: "local anyone_may = one.needs_owner ~= '1'",
        instead: "local anyone_may = completes",
        found: "and owns it: false",
    },
    Mutation {
        what: "a repeated delivery begins under what is left of its lease",
        scripts: &[&script::BEGIN],
        text: "if again == '1' and turns.are_limited and exists(entry) then",
        instead: "if false then",
        found: "two owners",
    },
    Mutation {
        what: "a lease that is renewed as a task begins counts as a crash",
        scripts: &[&script::BEGIN],
        text: "redis.call('XCLAIM', stream, group, consumer, 0, entry, 'JUSTID')",
        instead: "redis.call('XCLAIM', stream, group, consumer, 0, entry)",
        found: "counts as a crash",
    },
    Mutation {
        what: "a task that is cancelled while it runs ends at once",
        scripts: &[&script::CANCEL],
        text: "if turns.are_limited and pending_of(entry) then return false, nil, entry end",
        instead: "",
        found: "",
    },
    Mutation {
        what: "a held task that is cancelled stays in its track",
        scripts: &[&script::CANCEL],
        text: "if turns.limit then redis.call('ZREM', turns.tracks, one) end",
        instead: "",
        found: "broken-track",
    },
];

/// The hashes of a script and of its mutant.
struct Mutant {
    original: String,
    mutant: String,
}

impl Mutation {
    /// Names the mutant by all that decides whether `test` finds it out, but for the library.
    pub fn digest(&self, test: &[&str]) -> String {
        let mut all = test.concat() + self.text + self.instead + self.found;
        all.extend(self.scripts.iter().map(|script| script.sha1()));
        files::digest(all.as_bytes())
    }

    fn load(&self, db: &mut redis::Connection) -> Vec<Mutant> {
        let load = |script: &&LazyLock<Script>| {
            let places = script.source.matches(self.text).count();
            assert_eq!(
                places, 1,
                "{}: {} has the text in so many places: {}",
                self.what, script.name, self.text
            );
            let source = script.source.replace(self.text, self.instead);
            let mutant =
                redis::cmd("SCRIPT").arg("LOAD").arg(source).query(db).expect("a script that can be read");
            Mutant { original: script.sha1().to_owned(), mutant }
        };
        self.scripts.iter().map(load).collect()
    }
}

/// A proxy to Redis that replaces the hashes of scripts by those of mutants.
pub struct Mutator {
    pub port: u16,
}

impl Mutator {
    /// Loads the mutants of `mutation` into Redis, and listens until the test's process ends. Without a
    /// mutation, it changes nothing.
    pub fn start(redis: &RedisServer, mutation: Option<&Mutation>) -> Mutator {
        let mutants = mutation.map_or_else(Vec::new, |mutation| mutation.load(&mut redis.connection()));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let upstream = redis.port;
        std::thread::spawn(move || {
            let mutants = std::sync::Arc::new(mutants);
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(("127.0.0.1", upstream)).expect("Redis");
                let (back, out) =
                    (server.try_clone().expect("a socket"), client.try_clone().expect("a socket"));
                std::thread::spawn(move || pass(back, out, <[u8]>::to_vec));
                let mutants = mutants.clone();
                std::thread::spawn(move || pass(client, server, |data| mutated(data, &mutants)));
            }
        });
        Mutator { port }
    }
}

/// Passes data on. The calls of the property test are small, so each arrives in one read.
fn pass(mut from: TcpStream, mut to: TcpStream, change: impl Fn(&[u8]) -> Vec<u8>) {
    let mut buffer = [0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if to.write_all(&change(&buffer[..read])).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

fn mutated(data: &[u8], mutants: &[Mutant]) -> Vec<u8> {
    let mut data = data.to_vec();
    for Mutant { original, mutant } in mutants {
        // All hashes have the same length.
        while let Some(at) = data.windows(original.len()).position(|window| window == original.as_bytes()) {
            data[at..at + original.len()].copy_from_slice(mutant.as_bytes());
        }
    }
    data
}
