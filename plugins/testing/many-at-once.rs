//! Runs many tasks at once in one instance, and ends each as its field `do` says, after `ms` milliseconds.
//!
//! `ok` (the default) returns `id`, `most` (the most tasks that the instance has had at once) and `in` (the
//! number of tasks that it has had); `effects` enqueues to `reports`, counts a key, reports progress and logs
//! before it waits, and again at its end; `throw`, `retry` and `reject` end this task alone. `late` never
//! ends, but stops when it is told to; `deaf` does not stop. `nobody` makes the calls of `effects` for no
//! task, and returns what the host said. The others misbehave for the whole instance: `trap`, `loop`,
//! `hoard`, `return` (from `run`), `sleep` (blocks for ever), `stray` (computes for no task), `twice` (ends
//! twice).
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

fn text<'t>(task: &'t Task, name: &str) -> Option<&'t str> {
    let field = task.fields.iter().find(|field| field.name == name)?;
    str::from_utf8(&field.value).ok()
}

fn what(task: &Task) -> &str {
    text(task, "do").unwrap_or("ok")
}

fn waiting(number: u32, task: Task) -> Waiting {
    let ms: u64 = text(&task, "ms").and_then(|ms| ms.parse().ok()).unwrap_or(0);
    let ms = if ["late", "deaf"].contains(&what(&task)) { 1_000_000 } else { ms };
    Waiting { number, task, timer: subscribe_duration(ms * 1_000_000) }
}

impl Concurrent for Guest {
    fn run() {
        let news = tasks::subscribe();
        let (mut all, mut most, mut had): (Vec<Waiting>, usize, u32) = (Vec::new(), 0, 0);
        loop {
            while let Some(event) = tasks::next() {
                match event {
                    Event::Close => return,
                    Event::Stop(number) => {
                        if let Some(place) =
                            all.iter().position(|one| one.number == number && what(&one.task) != "deaf")
                        {
                            all.remove(place);
                            tasks::fail(number);
                        }
                    }
                    Event::Start(start) => {
                        let one = waiting(start.number, start.task);
                        tasks::enter(Some(one.number));
                        if what(&one.task) == "effects" {
                            effects(&one.task, "before");
                        }
                        tasks::enter(None);
                        all.push(one);
                        had += 1;
                        most = most.max(all.len());
                    }
                }
            }
            let pollables: Vec<&Pollable> =
                [&news].into_iter().chain(all.iter().map(|one| &one.timer)).collect();
            let mut ready = poll(&pollables);
            ready.sort_unstable_by(|a, b| b.cmp(a));
            for index in ready {
                if index > 0 {
                    let one = all.remove(index as usize - 1);
                    let result = format!("{{\"id\":\"{}\",\"most\":{most},\"in\":{had}}}", one.task.id);
                    if end(&one, result) {
                        return;
                    }
                }
            }
        }
    }
}

/// Ends a task as it says. Returns whether `run` is to return.
fn end(one: &Waiting, result: String) -> bool {
    let number = one.number;
    tasks::enter(Some(number));
    let ended = match what(&one.task) {
        "retry" => Err(Failure::Retry(Retry { message: "as told".into(), after_ms: None })),
        "reject" => Err(Failure::Reject("as told".into())),
        "effects" => {
            effects(&one.task, "after");
            Ok(Some(result.into_bytes()))
        }
        "nobody" => {
            tasks::enter(None);
            let said = effects(&one.task, "nobody");
            tasks::enter(Some(number));
            Ok(Some(said.into_bytes()))
        }
        "throw" => {
            log(Level::Error, "", &format!("boom of {}", one.task.id));
            tasks::fail(number);
            return false;
        }
        "return" => return true,
        "stray" => {
            tasks::enter(None);
            compute()
        }
        "twice" => {
            tasks::finish(number, Ok(None));
            Ok(None)
        }
        other => {
            misbehave(other);
            Ok(Some(result.into_bytes()))
        }
    };
    tasks::finish(number, ended.as_ref().map(Option::as_deref));
    false
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

fn misbehave(what: &str) {
    match what {
        "trap" => core::arch::wasm32::unreachable(),
        "loop" => compute(),
        "sleep" => subscribe_duration(u64::MAX / 2).block(),
        "hoard" => loop {
            let grown = core::arch::wasm32::memory_grow(0, 16);
            if grown == usize::MAX {
                core::arch::wasm32::unreachable();
            }
        },
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
            "stray" => compute(),
            "twice" | "return" => core::arch::wasm32::unreachable(),
            other => misbehave(other),
        }
        Ok(Some(format!("{{\"id\":\"{}\",\"alone\":true}}", task.id).into_bytes()))
    }
}
