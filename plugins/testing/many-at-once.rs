//! Runs many tasks at once in one instance, and ends each as its field `do` says, after `ms` milliseconds.
//!
//! `ok` (the default) returns `id`, `most` (the most tasks that the instance has had at once), `in` (the
//! number of tasks that it has had) and `left` (the milliseconds until its deadline), and has used `bytes` of
//! memory for a moment; `effects` enqueues to `reports`, counts a key, reports progress and logs before it
//! waits, and again at its end; `throw`, `retry`, `reject`, `big` (a result of 3 MiB) and `floods` (of log
//! lines) end this task alone. `late` never ends, but stops when it is told to; `deaf` does not stop, and
//! `stubborn` computes when it is told to. `nobody` makes the calls of `effects` for no task, and returns
//! what the host said. The others misbehave for the whole instance, as [`misbehave`] and [`shared`] say.
//!
//! By `handle`, that is alone, each returns ok with `alone`; but those that misbehave do it again.
#![cfg(target_family = "wasm")]
#![allow(missing_docs, reason = "generated")]

use std::fmt::Write as _;

wit_bindgen::generate!({
    path: ["../../wit", "../sdk/wit/deps/clocks", "../sdk/wit/deps/logging"],
    inline: "
        package tqhost:many;
        world many {
            import tqhost:handler/context@0.1.0;
            import tqhost:handler/outbox@0.1.0;
            import tqhost:handler/state@0.1.0;
            import tqhost:extensions/tasks@0.1.0;
            import wasi:clocks/monotonic-clock@0.2.3;
            import wasi:logging/logging@0.1.0-draft;
            export tqhost:handler/handler@0.1.0;
            export tqhost:extensions/concurrent-handler@0.1.0;
        }
    ",
    world: "tqhost:many/many",
    generate_all,
});

use exports::tqhost::extensions::concurrent_handler::Guest as Concurrent;
use exports::tqhost::handler::handler::Guest as Handler;
use tqhost::extensions::tasks::{self, Event};
use tqhost::handler::outbox::{self, NewTask};
use tqhost::handler::types::{Failure, Field, Retry, Task};
use tqhost::handler::{context, state};
use wasi::clocks::monotonic_clock::subscribe_duration;
use wasi::io::poll::{Pollable, poll};
use wasi::logging::logging::{Level, log};

struct Guest;
export!(Guest);

struct Waiting {
    number: u32,
    task: Task,
    timer: Pollable,
}

/// What the instance has had so far.
struct Seen {
    most: usize,
    had: u32,
    /// Whether it still asks for tasks.
    asks: bool,
}

/// The end of a task as the guest sees it.
enum End {
    /// The host knows of it.
    Told,
    Reply(Result<Option<Vec<u8>>, Failure>),
    /// `run` is to return.
    Return,
}

fn text<'t>(task: &'t Task, name: &str) -> Option<&'t str> {
    let field = task.fields.iter().find(|field| field.name == name)?;
    str::from_utf8(&field.value).ok()
}

fn what(task: &Task) -> &str {
    text(task, "do").unwrap_or("ok")
}

fn waiting(number: u32, task: Task) -> Waiting {
    let ms: u64 = text(&task, "ms").and_then(|ms| ms.parse().ok()).unwrap_or(0);
    let ms = if ["late", "deaf", "stubborn"].contains(&what(&task)) { 1_000_000 } else { ms };
    Waiting { number, task, timer: subscribe_duration(ms * 1_000_000) }
}

impl Concurrent for Guest {
    fn run() {
        let news = tasks::subscribe();
        let mut all: Vec<Waiting> = Vec::new();
        let mut seen = Seen { most: 0, had: 0, asks: true };
        loop {
            while seen.asks
                && let Some(event) = tasks::next()
            {
                match event {
                    Event::Close => return,
                    Event::Stop(number) => stop(&mut all, number),
                    Event::Start(start) => {
                        let one = waiting(start.number, start.task);
                        tasks::enter(Some(one.number));
                        if what(&one.task) == "effects" {
                            effects(&one.task, "before");
                        }
                        tasks::enter(None);
                        all.push(one);
                        seen.had += 1;
                        seen.most = seen.most.max(all.len());
                    }
                }
            }
            let news = seen.asks.then_some(&news);
            let pollables: Vec<&Pollable> = all.iter().map(|one| &one.timer).chain(news).collect();
            let mut ready = poll(&pollables);
            ready.sort_unstable_by(|a, b| b.cmp(a));
            for index in ready {
                if (index as usize) < all.len() {
                    let one = all.remove(index as usize);
                    tasks::enter(Some(one.number));
                    match end(&one, &all, &mut seen) {
                        End::Told => {}
                        End::Reply(reply) => {
                            tasks::finish(one.number, reply.as_ref().map(Option::as_deref));
                        }
                        End::Return => return,
                    }
                }
            }
        }
    }
}

fn stop(all: &mut Vec<Waiting>, number: u32) {
    let Some(place) = all.iter().position(|one| one.number == number) else { return };
    match what(&all[place].task) {
        "deaf" => {}
        "stubborn" => {
            tasks::enter(Some(number));
            compute()
        }
        _ => {
            all.remove(place);
            tasks::fail(number);
        }
    }
}

/// Ends a task that computes as it says, beside `others`.
fn end(one: &Waiting, others: &[Waiting], seen: &mut Seen) -> End {
    let (number, task) = (one.number, &one.task);
    let bytes = text(task, "bytes").and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
    if bytes > 0 {
        let timers: Vec<Pollable> = (0..150).map(|_| subscribe_duration(1)).collect();
        drop(core::hint::black_box((vec![1_u8; bytes], timers)));
    }
    let Seen { most, had, .. } = seen;
    let left = context::remaining_ms();
    let result = format!("{{\"id\":\"{}\",\"most\":{most},\"in\":{had},\"left\":{left}}}", task.id);
    End::Reply(match what(task) {
        "retry" => Err(Failure::Retry(Retry { message: "as told".into(), after_ms: None })),
        "reject" => Err(Failure::Reject("as told".into())),
        "effects" => {
            effects(task, "after");
            Ok(Some(result.into_bytes()))
        }
        "nobody" => {
            tasks::enter(None);
            let said = effects(task, "nobody");
            tasks::enter(Some(number));
            Ok(Some(said.into_bytes()))
        }
        "throw" => {
            log(Level::Error, "", &format!("boom of {}", task.id));
            tasks::fail(number);
            return End::Told;
        }
        "return" => return End::Return,
        what => {
            shared(what, number, others, seen);
            misbehave(what);
            Ok(Some(if what == "big" { vec![b'x'; 3 << 20] } else { result.into_bytes() }))
        }
    })
}

/// Ways to misbehave that only a shared instance has.
fn shared(what: &str, number: u32, others: &[Waiting], seen: &mut Seen) {
    match what {
        // It computes, blocks or traps when it has said that no task computes.
        "stray" | "sleep between" | "trap between" => tasks::enter(None),
        // It ends, or enters, what is not there; or ends what is not its own.
        "twice" => tasks::finish(number, Ok(None)),
        "unknown" => tasks::enter(Some(1_000_000)),
        "ends unknown" => tasks::finish(1_000_000, Ok(None)),
        "ends another" => tasks::finish(others[0].number, Ok(None)),
        // It says all the time that another one computes.
        "enters" => loop {
            others.iter().for_each(|other| tasks::enter(Some(other.number)));
        },
        // It never asks for a task again.
        "silent" => seen.asks = false,
        _ => {}
    }
}

/// Makes calls that need a task, and returns what the host refused.
fn effects(task: &Task, note: &str) -> String {
    let id = text(task, "as").unwrap_or(&task.id);
    log(Level::Info, "", &format!("{note} of {id}"));
    context::progress(50, &format!("{note} of {id}"));
    let mut said = String::new();
    let fields = vec![Field { name: "of".into(), value: id.into() }];
    let new = NewTask { queue: "reports".into(), fields, delay_ms: 0, idempotency_key: None };
    if let Err(error) = outbox::enqueue(&new) {
        let _ = write!(said, "{error:?} ");
    }
    if let Err(error) = state::increment(id, 1) {
        let _ = write!(said, "{error:?}");
    }
    said
}

/// Ways to misbehave, alone or together.
fn misbehave(what: &str) {
    match what {
        "trap" | "trap between" => core::arch::wasm32::unreachable(),
        "panic" => panic!("as told"),
        "loop" | "stray" => compute(),
        "calls" => loop {
            context::progress(1, "again");
        },
        "sleep" | "sleep between" => subscribe_duration(u64::MAX / 2).block(),
        "hoard" => loop {
            if core::arch::wasm32::memory_grow(0, 16) == usize::MAX {
                core::arch::wasm32::unreachable();
            }
        },
        // It takes nearly all, and ends well.
        "leak" => {
            while core::arch::wasm32::memory_size(0) < 240
                && core::arch::wasm32::memory_grow(0, 1) != usize::MAX
            {}
        }
        "handles" => {
            let mut held = Vec::new();
            loop {
                held.push(subscribe_duration(1));
            }
        }
        "hoards handles" => core::mem::forget((0..3050).map(|_| subscribe_duration(1)).collect::<Vec<_>>()),
        "floods" => (0..5000).for_each(|n| log(Level::Info, "", &format!("line {n}"))),
        _ => {}
    }
}

fn compute() -> ! {
    let mut n = 0_u64;
    loop {
        n = core::hint::black_box(n.wrapping_add(1));
    }
}

impl Handler for Guest {
    fn handle(task: Task) -> Result<Option<Vec<u8>>, Failure> {
        match what(&task) {
            "effects" => drop(["before", "after"].map(|note| effects(&task, note))),
            "enters" => compute(),
            "twice" | "return" | "unknown" | "ends unknown" | "ends another" => {
                core::arch::wasm32::unreachable()
            }
            // In an instance of its own this is more than it may hold.
            "hoards handles" => misbehave("handles"),
            other => misbehave(other),
        }
        Ok(Some(format!("{{\"id\":\"{}\",\"alone\":true}}", task.id).into_bytes()))
    }
}
