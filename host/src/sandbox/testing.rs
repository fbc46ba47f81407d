//! Small guests for tests: core modules written by hand, with the component type of wit/handler.wit embedded.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use wit_component::StringEncoding;
use wit_parser::Resolve;

use super::log_rate::Quota;
use super::{Attempt, AttemptReport, Compiler, Sandbox, SandboxOptions};
use crate::queue::NoEffects;
use crate::task::{Field, Outcome, Progress, Task};
use crate::telemetry::AttemptTrace;

/// A core module with the handler's exports around `body`, which must leave the address of the result; there
/// is room for one at 16. `extra` is put at module level before the functions.
pub(crate) fn module(extra: &str, body: &str) -> String {
    format!(
        r#"(module
            {extra}
            (memory (export "memory") 1)
            (global $next (mut i32) (i32.const 4096))
            (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
                (global.set $next (i32.add (i32.and (i32.add (global.get $next) (i32.const 7))
                    (i32.const -8)) (local.get 3)))
                (i32.sub (global.get $next) (local.get 3)))
            (func (export "tqhost:handler/handler@0.1.0#handle")
                (param $id i32) (param $id_len i32) (param $queue i32) (param $queue_len i32)
                (param $fields i32) (param $fields_len i32) (param $attempt i32) (param $max_attempts i32)
                (param $enqueued i64) (param $deadline i64) (param $traced i32) (param $trace i32)
                    (param $trace_len i32)
                (result i32)
                {body}))"#
    )
}

/// The world of a handler that imports nothing.
pub(super) const WORLD: &str = "world test { export tqhost:handler/handler@0.1.0; }";

/// A handler that imports nothing.
pub(crate) fn handler(body: &str) -> Vec<u8> {
    embed(&module("", body), WORLD)
}

/// Completes with the task's id as its result.
pub(crate) const ECHO: &str = "
    (i32.store8 (i32.const 16) (i32.const 0))
    (i32.store8 (i32.const 24) (i32.const 1))
    (i32.store (i32.const 28) (local.get $id))
    (i32.store (i32.const 32) (local.get $id_len))
    (i32.const 16)";

/// Completes without a result.
pub(crate) const DONE: &str =
    "(i32.store8 (i32.const 16) (i32.const 0)) (i32.store8 (i32.const 24) (i32.const 0)) (i32.const 16)";

/// Compiles `wat` and embeds the component type of `world`, which may use everything in wit/.
pub(crate) fn embed(wat: &str, world: &str) -> Vec<u8> {
    embed_in(wat, world, include_str!("../../../wit/handler.wit"))
}

/// Embeds the component type of `world`, with another handler.wit.
pub(crate) fn embed_in(wat: &str, world: &str, handler_wit: &str) -> Vec<u8> {
    let mut resolve = Resolve::default();
    resolve.push_str("handler.wit", handler_wit).unwrap();
    resolve.push_str("io.wit", include_str!("../../../wit/deps/io/io.wit")).unwrap();
    for (name, text) in FOREIGN {
        if world.contains(name) {
            resolve.push_str("foreign.wit", text).unwrap();
        }
    }
    let package = resolve.push_str("test.wit", &format!("package test:test; {world}")).unwrap();
    let world = resolve.select_world(&[package], Some("test")).unwrap();
    let mut bytes = wat::parse_str(wat).unwrap();
    wit_component::embed_component_metadata(&mut bytes, &resolve, world, StringEncoding::UTF8).unwrap();
    bytes
}

/// The packages that a world may use beside tqhost:handler.
const FOREIGN: &[(&str, &str)] = &[
    ("tqhost:extensions", include_str!("../../../wit/deps/extensions/extensions.wit")),
    ("wasi:sockets", "package wasi:sockets@0.3.0; interface network { ping: func(); }"),
    ("acme:api", "package acme:api; interface api { ping: func(); }"),
    (
        "wasi:logging",
        "package wasi:logging; interface logging { enum level { trace, debug, info, warn, error, critical }
         log: func(level: level, context: string, message: string); }",
    ),
    (
        "wasi:config",
        "package wasi:config@0.2.0-rc.1; interface store { variant error { upstream(string), io(string) }
         get: func(key: string) -> result<option<string>, error>; }",
    ),
    (
        "wasi:clocks",
        "package wasi:clocks@0.2.3; interface monotonic-clock { use wasi:io/poll@0.2.3.{pollable};
         now: func() -> u64; subscribe-duration: func(when: u64) -> pollable; }
         interface wall-clock { record datetime { seconds: u64, nanoseconds: u32 } now: func() -> datetime;
             }",
    ),
    ("wasi:cli", "package wasi:cli@0.2.3; interface exit { exit: func(status: result); }"),
];

pub(crate) fn sandbox() -> Sandbox {
    sandbox_for(4, 0)
}

/// A sandbox for this many attempts at once, and as many kept instances beside them.
pub(super) fn sandbox_for(max_concurrent: u32, max_warm: u32) -> Sandbox {
    let (max_memory, compiler, backtraces) = (16 << 20, Compiler::Here, false);
    let options = SandboxOptions { max_concurrent, max_warm, max_memory, compiler, backtraces };
    Sandbox::new(options).unwrap()
}

/// The outcome of a handler that is [`DONE`].
pub(super) const COMPLETED: Outcome = Outcome::Completed { result: None, effects: None };

pub(crate) fn task() -> Task {
    Task {
        fields: vec![Field { name: "name".into(), value: b"value".to_vec() }],
        enqueued_at_ms: 7,
        ..Task::bare("q".into(), "1-0")
    }
}

/// The outcome of an attempt at one task.
pub(crate) fn outcome(report: &AttemptReport) -> Outcome {
    report.outcomes(1).remove(0)
}

pub(crate) fn attempt() -> Attempt {
    Attempt {
        tasks: Arc::new(vec![task()]),
        plugin: "p".into(),
        max_attempts: 4,
        timeout: Duration::from_secs(20),
        progress: vec![Progress::default()],
        effects: Arc::new(NoEffects::default()),
        trace: AttemptTrace::default(),
        stop: CancellationToken::new(),
        disturbed: 0,
    }
}

/// The quota of a plugin whose log is not limited.
pub(super) fn quota() -> Quota {
    Quota { lines: Arc::default(), rate: u64::MAX }
}
