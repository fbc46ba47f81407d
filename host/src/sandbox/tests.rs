//! Tests the outcomes of good and bad guests, each a few lines of WAT.

mod calls;
mod hostile;
mod outages;

use std::sync::{Arc, Barrier};
use std::time::Duration;

use futures_util::FutureExt as _;

use super::testing::{self, COMPLETED, DONE, ECHO, WORLD, attempt, embed, handler, module, outcome};
use super::{Attempt, AttemptReport, Handler, LoadError, Sandbox};
use crate::config::Plugin;
use crate::task::{FailureKind, Outcome};

fn grants() -> Plugin {
    Plugin { memory: 1 << 20, max_output: 64 * 1024, ..Plugin::default() }
}

fn load(sandbox: &Sandbox, wasm: &[u8]) -> Handler {
    sandbox.load(&sandbox.compile(wasm).unwrap(), &grants()).unwrap()
}

async fn run(wasm: &[u8], attempt: Attempt) -> AttemptReport {
    load(&testing::sandbox(), wasm).run(attempt).await.unwrap()
}

async fn failure(body: &str) -> (FailureKind, String) {
    match outcome(&run(&handler(body), attempt()).await) {
        Outcome::Failed { kind, message } => (kind, message),
        other => panic!("it did not fail: {other:?}"),
    }
}

fn refused(wasm: &[u8]) -> String {
    testing::sandbox().compile(wasm).unwrap_err().to_string()
}

#[tokio::test]
async fn a_handler_gets_its_task_and_returns_bytes() {
    let report = run(&handler(ECHO), attempt()).await;
    assert_eq!(outcome(&report), Outcome::Completed { result: Some(b"1-0".to_vec()), effects: None });
    assert_eq!(report.peak_memory, 65536);
}

#[tokio::test]
async fn no_part_of_a_memory_is_left_to_the_next_attempt() {
    // These places are reset in different ways: below and above the bytes that a slot keeps, in the module's
    // data, and in grown pages.
    let places = [64, 100 << 10, 255 << 10, 257 << 10, 500 << 10, 513 << 10, 600 << 10];
    let data = [2048, 200 << 10, 300 << 10];
    let segments: String = data.map(|at| format!(r#"(data (i32.const {at}) "abcd")"#)).concat();
    let as_it_was = |at, value: u32| {
        format!("(if (i32.ne (i32.load (i32.const {at})) (i32.const {value})) (then unreachable))")
    };
    let checks: String = places
        .iter()
        .map(|at| as_it_was(*at, 0))
        .chain(data.iter().map(|at| as_it_was(*at, 0x6463_6261)))
        .collect();
    let writes: String =
        places.iter().chain(&data).map(|at| format!("(i32.store (i32.const {at}) (i32.const 77))")).collect();
    let grow = "(if (i32.ne (memory.grow (i32.const 2)) (i32.const 8)) (then unreachable))";
    let wat = module(&segments, &format!("{grow} {checks} {writes} {DONE}"))
        .replace("\"memory\") 1)", "\"memory\") 8)");
    let sandbox = testing::sandbox();
    let handler = load(&sandbox, &embed(&wat, WORLD));
    let other = load(&sandbox, &testing::handler(ECHO));
    for _ in 0..20 {
        assert_eq!(outcome(&handler.run(attempt()).await.unwrap()), COMPLETED);
        assert!(matches!(outcome(&other.run(attempt()).await.unwrap()), Outcome::Completed { .. }));
    }
}

#[tokio::test]
async fn guests_run_on_their_own_threads_and_calls_from_there_take_no_further_hop() {
    let handler = load(&testing::sandbox(), &handler(ECHO));
    let guests = handler.guests().clone();
    let threads = guests.metrics().num_workers();
    let (busy, free) = (Arc::new(Barrier::new(threads + 1)), Arc::new(Barrier::new(threads + 1)));
    for _ in 0..threads {
        let (busy, free) = (busy.clone(), free.clone());
        guests.spawn(async move {
            busy.wait();
            free.wait();
        });
    }
    busy.wait();
    let elsewhere = handler.run(attempt()).now_or_never();
    free.wait();
    assert!(elsewhere.is_none(), "a guest runs only on the threads of guests");
    // An attempt that the clock interrupts in its first poll goes on in the next one.
    let at_once =
        |handler: Handler| async move { (0..100).find_map(|_| handler.run(attempt()).now_or_never()) };
    let report = guests.spawn(at_once(handler)).await.unwrap().expect("one of them ends in its first poll");
    assert_eq!(
        outcome(&report.unwrap()),
        Outcome::Completed { result: Some(b"1-0".to_vec()), effects: None }
    );
}

#[tokio::test]
async fn an_attempt_on_the_guests_threads_ends_when_it_is_dropped() {
    let sandbox = testing::sandbox();
    let looping = load(&sandbox, &handler("(loop $l (br $l)) (i32.const 16)"));
    let guests = looping.guests().clone();
    let running = guests.spawn(async move { looping.run(attempt()).await.is_some() });
    while sandbox.0.pool.free_places() == 4 {
        tokio::task::yield_now().await;
    }
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    assert_eq!(sandbox.0.pool.free_places(), 4);
}

#[tokio::test]
async fn a_panic_of_the_host_is_a_failure_of_the_task_that_met_it() {
    use tracing::instrument::WithSubscriber as _;
    struct Broken;
    impl std::io::Write for Broken {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            panic!("on purpose: a host function that has a bug")
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let extra = r#"(import "wasi:logging/logging" "log" (func $log (param i32 i32 i32 i32 i32)))"#;
    let body = format!(
        "(call $log (i32.const 4) (i32.const 600) (i32.const 5) (i32.const 605) (i32.const 5)) {DONE}"
    );
    let world = "world test { import wasi:logging/logging; export tqhost:handler/handler@0.1.0; }";
    let sandbox = testing::sandbox();
    let handler = load(&sandbox, &embed(&module(extra, &body), world));
    let guests = handler.guests().clone();
    let broken = tracing_subscriber::fmt().with_writer(|| Broken).finish();
    let running = guests.spawn(async move { handler.run(attempt()).await }.with_subscriber(broken));
    let report = running.await.expect("the panic is contained").expect("it is not told to stop");
    let message = "the host failed while it ran the handler".to_owned();
    assert_eq!(outcome(&report), Outcome::Failed { kind: FailureKind::Trap, message });
    assert_eq!(sandbox.0.pool.free_places(), 4);
}

#[test]
fn proposals_that_no_compiler_of_handlers_needs_are_refused() {
    let compiles = |extra: &str| testing::sandbox().compile(&embed(&module(extra, DONE), WORLD)).map(drop);
    for (what, extra) in [
        ("threads", "(memory 1 1 shared)"),
        ("memory64", "(memory i64 1)"),
        ("custom page sizes", "(memory 1 (pagesize 1))"),
        ("garbage collection", "(type (struct (field i32)))"),
        ("exceptions", "(tag (param i32))"),
        ("function references", "(type $f (func)) (func (param (ref $f)))"),
        ("tail calls", "(func $f return_call $f)"),
        (
            "relaxed SIMD",
            "(func (param v128 v128) (drop (i8x16.relaxed_swizzle (local.get 0) (local.get 1))))",
        ),
    ] {
        assert!(matches!(compiles(extra), Err(LoadError::Malformed(_))), "{what}");
    }
    for (what, extra) in [
        ("several memories", "(memory 1)"),
        ("SIMD", "(func (param v128) (drop (i8x16.popcnt (local.get 0))))"),
        ("bulk memory", "(func (memory.fill (i32.const 0) (i32.const 0) (i32.const 1)))"),
        ("extended constants", "(global i32 (i32.add (i32.const 1) (i32.const 2)))"),
        ("tables of functions", "(table 1 funcref) (func (drop (table.get (i32.const 0))))"),
    ] {
        assert!(compiles(extra).is_ok(), "{what}");
    }
}

#[tokio::test]
async fn the_ways_to_fail_are_told_apart() {
    let (kind, message) = failure("unreachable").await;
    let hint =
        "a panic, an abort or an uncaught exception without a word; `tqhost try --backtrace` says where";
    assert_eq!(
        (kind, message),
        (FailureKind::Trap, format!("wasm `unreachable` instruction executed: {hint}"))
    );
    let hoard = "(loop $l (br_if $l (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) unreachable";
    let (kind, message) = failure(hoard).await;
    assert_eq!(kind, FailureKind::OutOfMemory);
    assert!(message.contains("1048576 are granted"), "{message}");
    let (kind, _) = failure("(i32.load (i32.const 0x7fffffff))").await;
    assert_eq!(kind, FailureKind::Trap);
}

#[tokio::test]
async fn a_memory_that_begins_too_large_is_out_of_memory() {
    let wat = module("", DONE).replace("\"memory\") 1)", "\"memory\") 40)");
    let report = run(&embed(&wat, WORLD), attempt()).await;
    assert!(matches!(outcome(&report), Outcome::Failed { kind: FailureKind::OutOfMemory, .. }), "{report:?}");
}

#[tokio::test]
async fn a_refused_growth_that_the_guest_bears_is_no_failure() {
    let body = format!("(drop (memory.grow (i32.const 1000))) {DONE}");
    assert_eq!(outcome(&run(&handler(&body), attempt()).await), COMPLETED);
}

#[tokio::test]
async fn results_are_measured_before_and_after_they_are_copied() {
    let result = |bytes: usize, pages: usize| {
        let body = format!(
            "(drop (memory.grow (i32.const {pages}))) (i32.store8 (i32.const 24) (i32.const 1)) (i32.store
                (i32.const 32) (i32.const {bytes})) (i32.const 16)"
        );
        handler(&body)
    };
    // A result within the slack is copied, then refused.
    let Outcome::Failed { kind, message } = outcome(&run(&result(70_000, 2), attempt()).await) else {
        panic!()
    };
    assert_eq!(
        (kind, message.as_str()),
        (FailureKind::OutputTooLarge, "the handler returned 70000 bytes, max_output is 65536")
    );
    // A result beyond the slack is never copied. This also checks the text of wasmtime that `failure` looks
    // for.
    let sandbox = testing::sandbox();
    let compiled = sandbox.compile(&result(4_000_000, 100)).unwrap();
    let big = sandbox.load(&compiled, &Plugin { memory: 16 << 20, ..grants() }).unwrap();
    let Outcome::Failed { kind, message } = outcome(&big.run(attempt()).await.unwrap()) else { panic!() };
    assert_eq!(
        (kind, message.as_str()),
        (FailureKind::OutputTooLarge, "the handler returned more than 1114112 bytes, max_output is 65536")
    );
    // A result outside of the guest's memory is a trap, not an output.
    let Outcome::Failed { kind, .. } = outcome(&run(&result(4_000_000, 1), attempt()).await) else {
        panic!()
    };
    assert_eq!(kind, FailureKind::Trap);
}

/// A guest that waits in the host, for an hour.
fn sleeping() -> Vec<u8> {
    let extra = r#"
        (import "wasi:clocks/monotonic-clock@0.2.3" "subscribe-duration" (func $subscribe (param i64)
            (result i32)))
        (import "wasi:io/poll@0.2.3" "[method]pollable.block" (func $block (param i32)))"#;
    let body = format!("(call $block (call $subscribe (i64.const 3600000000000))) {DONE}");
    let world = "world test { import wasi:clocks/monotonic-clock@0.2.3; import wasi:io/poll@0.2.3; \
                 export tqhost:handler/handler@0.1.0; }";
    embed(&module(extra, &body), world)
}

#[tokio::test]
async fn a_guest_that_waits_ends_at_its_timeout_while_others_compute() {
    let sandbox = testing::sandbox();
    let sleeping = load(&sandbox, &sleeping());
    let looping = load(&sandbox, &handler("(loop $l (br $l)) (i32.const 16)"));
    let short = || Attempt { timeout: Duration::from_millis(1000), ..attempt() };
    let (a, b, c) = tokio::join!(looping.run(short()), sleeping.run(short()), looping.run(short()));
    let ends = [
        (a, FailureKind::BusyTimeout, "it computed for most of that time"),
        (b, FailureKind::Timeout, "it slept for most of that time, with no request open"),
        (c, FailureKind::BusyTimeout, "it computed for most of that time"),
    ];
    for (report, kind, why) in ends {
        let report = report.unwrap();
        let message = format!("the handler did not end within 1s: {why}");
        assert_eq!(outcome(&report), Outcome::Failed { kind, message });
        assert!(report.duration < Duration::from_secs(5), "{report:?}");
    }
}

#[tokio::test]
async fn a_pool_that_finds_no_address_space_is_made_smaller() {
    let sandbox = testing::sandbox_for(20_000, 0);
    let report = load(&sandbox, &handler(ECHO)).run(attempt()).await.unwrap();
    assert_eq!(outcome(&report), Outcome::Completed { result: Some(b"1-0".to_vec()), effects: None });
}

#[test]
fn files_that_are_no_components_are_refused_in_words() {
    for (bytes, words) in [
        (&b""[..], "it is empty"),
        (b"hello\n", "a text file"),
        (b"\x7fELF\x02\x01\x01\x00", "native program"),
        (b"\0asm", "cut off"),
        (b"\0\0\0\0\0\0\0\0\0\0", "zeros only"),
        (b"\0asm\x0d\0\x01\0\x07\xff", "not a valid WebAssembly component"),
    ] {
        let message = refused(bytes);
        assert!(message.contains(words), "{message}");
    }
    let sandbox = testing::sandbox();
    let compiled = sandbox.compile(&handler(DONE)).unwrap();
    assert!(refused(&compiled).contains("compiled code"));
    assert!(matches!(sandbox.compile(&vec![0; (96 << 20) + 1]), Err(LoadError::TooLarge)));
}

#[test]
fn core_modules_without_a_type_are_told_what_to_do() {
    insta::assert_snapshot!(refused(&wat::parse_str("(module)").unwrap()), @"
    this is a core module without a component type, not a component (build it for wasm32-wasip2, or \
    generate its bindings with wit-bindgen from wit/handler.wit)
    ");
    let wasip1 = r#"(module (import "wasi_snapshot_preview1" "proc_exit" (func (param i32))))"#;
    insta::assert_snapshot!(refused(&wat::parse_str(wasip1).unwrap()), @"
    this is a core module without a component type, not a component (it was built for wasip1, which tqhost \
    adapts if the module has the type of its exports: generate its bindings from wit/handler.wit, with \
    wit-bindgen for example, or export the function `tqhost:handler/handler@0.1.0#handle`, or build it for \
    wasm32-wasip2)
    ");
    // The module has a type, so the message names what does not fit instead of another target.
    let imports = r#"(import "env" "fork" (func))"#;
    insta::assert_snapshot!(refused(&embed(&module(imports, DONE), WORLD)), @"
    this core module does not fit its component type, or that of its names: failed to decode world from \
    module: module was not valid: failed to resolve import `env::fork`: module requires an import \
    interface named `env` (it may import the interfaces of its world and wasi_snapshot_preview1, and must \
    export the functions of its world)
    ");
}

#[tokio::test]
async fn core_modules_whose_names_tell_their_type_run() {
    let imports =
        r#"(import "wasi:logging/logging@0.1.0-draft" "log" (func $log (param i32 i32 i32 i32 i32)))"#;
    let body =
        format!("(call $log (i32.const 2) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)) {DONE}");
    let module = module(imports, &body);
    let handler = load(&testing::sandbox(), &wat::parse_str(&module).unwrap());
    let report = handler.run(attempt()).await.unwrap();
    assert!(matches!(outcome(&report), Outcome::Completed { .. }), "{report:?}");
    // Names of others tell nothing, and functions of other types do not fit.
    let told = [
        ("wasi:logging/logging@0.1.0-draft", "acme:api/api"),
        ("handler@0.1.0#", "handler@0.2.0#"),
        ("(param i32 i32 i32 i32 i32)", "(param i32 i64 i32 i32 i32)"),
    ]
    .map(|(from, to)| refused(&wat::parse_str(module.replace(from, to)).unwrap()));
    insta::assert_snapshot!(told.join("\n"), @"
    this core module has no component type, and tqhost does not know the type of acme:api/api: embed the \
    type of its world, as wit-bindgen does
    this core module has no component type, and tqhost does not know the type of \
    tqhost:handler/handler@0.2.0: embed the type of its world, as wit-bindgen does
    this core module does not fit its component type, or that of its names: failed to decode world from \
    module: module was not valid: failed to resolve import `wasi:logging/logging@0.1.0-draft::log`: failed \
    to validate import interface `wasi:logging/logging@0.1.0-draft`: type mismatch for function `log`: \
    expected `[I32, I32, I32, I32, I32] -> []` but found `[I32, I64, I32, I32, I32] -> []` (it may import \
    the interfaces of its world and wasi_snapshot_preview1, and must export the functions of its world)
    ");
}

/// The functions of wasip1 that the module below calls.
const OF_WASIP1: &str = r#"
    (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_prestat_get" (func $directory (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
    (data (i32.const 512) "written through wasip1\n")"#;

#[tokio::test]
async fn core_modules_of_wasip1_run() {
    // The result is 17 bytes: 8 random ones, 8 of the wall clock, and the error for directory 3. Then it
    // writes a line.
    let body = "
        (if (call $random (i32.const 256) (i32.const 8)) (then unreachable))
        (if (call $clock (i32.const 0) (i64.const 1) (i32.const 264)) (then unreachable))
        (i32.store8 (i32.const 272) (call $directory (i32.const 3) (i32.const 280)))
        (i32.store (i32.const 400) (i32.const 512))
        (i32.store (i32.const 404) (i32.const 23))
        (if (call $write (i32.const 1) (i32.const 400) (i32.const 1) (i32.const 408)) (then unreachable))
        (i32.store8 (i32.const 16) (i32.const 0))
        (i32.store8 (i32.const 24) (i32.const 1))
        (i32.store (i32.const 28) (i32.const 256))
        (i32.store (i32.const 32) (i32.const 17))
        (i32.const 16)";
    // The adapter takes two pages of the module's memory.
    let wat = module(OF_WASIP1, body).replace("\"memory\") 1)", "\"memory\") 8)");
    let wasm = embed(&wat, WORLD);
    let handler = load(&testing::sandbox(), &wasm);
    let mut seen = Vec::new();
    for _ in 0..2 {
        let report = handler.run(attempt()).await.unwrap();
        let Outcome::Completed { result: Some(bytes), .. } = outcome(&report) else { panic!("{report:?}") };
        assert_eq!(bytes.len(), 17);
        let nanoseconds = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        // After 2020: it is the wall clock.
        assert!(nanoseconds > 1_577_836_800_000_000_000, "{nanoseconds}");
        assert_eq!(bytes[16], 8, "there is no such descriptor");
        seen.push(bytes[..8].to_vec());
    }
    assert_ne!(seen[0], seen[1]);
}

#[test]
fn wrong_worlds_are_named() {
    let run = r#"(module (func (export "run")))"#;
    insta::assert_snapshot!(refused(&embed(run, "world test { export run: func(); }")), @r"
    it exports no tqhost:handler/handler; it exports run
    ");

    let newer = include_str!("../../../wit/handler.wit").replace("handler@0.1.0", "handler@0.2.0");
    let wat = module("", DONE).replace("@0.1.0#", "@0.2.0#");
    let message =
        refused(&testing::embed_in(&wat, "world test { export tqhost:handler/handler@0.2.0; }", &newer));
    insta::assert_snapshot!(message, @r"
    it exports tqhost:handler/handler@0.2.0, but this tqhost runs tqhost:handler/handler@0.1.0
    ");

    let imports =
        r#"(import "wasi:sockets/network@0.3.0" "ping" (func)) (import "acme:api/api" "ping" (func))"#;
    let world = "world test { import wasi:sockets/network@0.3.0; import acme:api/api; \
                 export tqhost:handler/handler@0.1.0; }";
    insta::assert_snapshot!(refused(&embed(&module(imports, DONE), world)), @"
    it imports what handlers cannot have: wasi:sockets/network@0.3.0 (tqhost offers version 0.2); \
    acme:api/api (tqhost does not know it); build it for WASI 0.2, in Rust for wasm32-wasip2
    ");

    let of_next = include_str!("../../../wit/handler.wit").replace("handle: func(", "handle: async func(");
    let wasm = testing::embed_in(&module("", DONE), WORLD, &of_next);
    let Err(error) = testing::sandbox().compile(&wasm) else { panic!("compiled") };
    assert!(matches!(error, LoadError::Async), "{error}");
}

#[test]
fn wrong_types_are_found_when_a_component_is_loaded() {
    let other = "package tqhost:handler@0.1.0; interface handler { handle: func(task: string) -> u32; }";
    let wat = r#"(module (memory (export "memory") 1)
        (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 64))
        (func (export "tqhost:handler/handler@0.1.0#handle") (param i32 i32) (result i32) (i32.const 1)))"#;
    let sandbox = testing::sandbox();
    let compiled = sandbox.compile(&testing::embed_in(wat, WORLD, other)).unwrap();
    let Err(error) = sandbox.load(&compiled, &grants()) else { panic!("loaded") };
    assert!(matches!(error, LoadError::WrongType(_)), "{error}");
}

#[test]
fn the_outside_of_a_component_can_be_inspected() {
    let sandbox = testing::sandbox();
    let found = sandbox.inspect(&handler(DONE)).unwrap();
    assert_eq!(found.exports, ["tqhost:handler/handler@0.1.0"]);
    assert!(found.imports.iter().all(|import| import.starts_with("tqhost:handler/types")), "{found:?}");
    assert_eq!(sandbox.compatibility(), testing::sandbox().compatibility());
}

#[tokio::test]
async fn a_sandbox_may_be_dropped_by_its_last_attempt() {
    let handler = load(&testing::sandbox(), &handler(DONE));
    let handler = Arc::new(handler);
    tokio::spawn(async move { handler.run(attempt()).await }).await.unwrap().unwrap();
}
