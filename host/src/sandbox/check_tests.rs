//! Tests the results of good and bad self-checks, each a few lines of WAT.

use std::path::Path;
use std::time::{Duration, Instant};

use super::super::check::CheckError;
use super::super::testing::{self, DONE, attempt, embed, embed_in, handler, module};
use super::super::{Attempt, CHECK_TIMEOUT, Handler, LoadError};
use crate::config::{Config, Plugin};

const WORLD: &str =
    "world test { export tqhost:handler/handler@0.1.0; export tqhost:handler/lifecycle@0.1.0; }";

fn export(body: &str) -> String {
    format!(r#"(func (export "tqhost:handler/lifecycle@0.1.0#self-check") (result i32) {body})"#)
}

fn checked(body: &str) -> Vec<u8> {
    embed(&module(&export(body), DONE), WORLD)
}

fn load(wasm: &[u8]) -> Handler {
    let sandbox = testing::sandbox();
    sandbox.load(&sandbox.compile(wasm).unwrap(), &Plugin { memory: 1 << 20, ..Plugin::default() }).unwrap()
}

async fn check(body: &str) -> Result<(), CheckError> {
    load(&checked(body)).self_check(&"p".into(), Duration::from_millis(300)).await
}

/// The error of a check whose fault is in the component.
async fn failed(body: &str) -> String {
    match check(body).await {
        Err(CheckError::Failed(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_self_check_passes_or_says_what_is_wrong() {
    assert_eq!(check("(i32.const 64)").await, Ok(()));
    let says =
        "(i32.store8 (i32.const 64) (i32.const 1)) (i32.store (i32.const 68) (i32.const 80)) (i32.store
            (i32.const 72) (i32.const 2))
        (i32.store16 (i32.const 80) (i32.const 0x6f6e)) (i32.const 64)";
    assert_eq!(failed(says).await, "no");
    // A component without a self-check passes.
    let without = load(&handler(DONE));
    assert!(!without.checks_itself() && load(&checked("unreachable")).checks_itself());
    assert_eq!(without.self_check(&"p".into(), CHECK_TIMEOUT).await, Ok(()));
}

/// A self-check that makes one call, and returns the error that the call gives. `args` are numbers, those of
/// 64 bits with an `L`. The result of the call is at 64, and the error is `at` bytes further.
fn calls(interface: &str, function: &str, args: &str, at: u32) -> Vec<u8> {
    let args = args.split_whitespace().map(|arg| match arg.strip_suffix('L') {
        Some(arg) => ("i64", arg),
        None => ("i32", arg),
    });
    let types: Vec<&str> = args.clone().map(|(kind, _)| kind).collect();
    let args: String = args.map(|(kind, arg)| format!("({kind}.const {arg})")).collect();
    let (types, error) = (types.join(" "), 64 + at);
    // `fence` returns its number, and all others get the address of their result.
    let (takes, call) = match function {
        "fence" => ("(result i64)".to_owned(), "(drop (call $f))".to_owned()),
        _ => (format!("(param {types} i32)"), format!("(call $f {args} (i32.const 64))")),
    };
    let import = format!(
        r#"(import "tqhost:{interface}@0.1.0" "{function}" (func $f {takes})) (data (i32.const 16) "k")"#
    );
    let check = export(&format!(
        "{call} (if (i32.ne (i32.load8_u (i32.const 64)) (i32.const 1)) (then unreachable))
        (i32.store8 (i32.const {error}) (i32.const 1)) (i32.const {error})"
    ));
    let world = WORLD.replace("test {", &format!("test {{ import tqhost:{interface}@0.1.0;"));
    embed(&module(&format!("{import}\n{check}"), DONE), &world)
}

#[tokio::test]
async fn a_self_check_has_no_effects() {
    let file = "[queues.q]\nplugin = \"p\"\n[plugins.p]\nrecords = [\"*\"]\n";
    let config = Config::parse(file, Path::new("/srv/tqhost.toml"), &|_| None).unwrap();
    let grants = config.plugins["p"].clone();
    let mut told = Vec::new();
    for (interface, function, args, at) in [
        ("handler/state", "get", "16 1", 4),
        ("handler/state", "set", "16 1 16 1 0L", 4),
        ("handler/state", "delete", "16 1", 4),
        ("handler/state", "increment", "16 1 1L", 8),
        ("handler/outbox", "enqueue", "16 1 0 0 0L 0 0 0", 4),
        ("handler/outbox", "fan-out", "0 0 16 1 0 0 0L 0 0 0", 4),
        ("handler/flow", "results", "", 4),
        ("extensions/records", "put", "16 1 0 0", 4),
        ("extensions/records", "get", "16 1", 4),
        ("extensions/records", "delete", "16 1", 4),
        ("extensions/records", "expire", "16 1 0L", 4),
        ("extensions/delivery", "fence", "", 4),
    ] {
        let sandbox = testing::sandbox();
        let compiled = sandbox.compile(&calls(interface, function, args, at)).unwrap();
        let ended = sandbox.load(&compiled, &grants).unwrap().self_check(&"p".into(), CHECK_TIMEOUT).await;
        let Err(CheckError::Failed(why)) = ended else { panic!("{function}: {ended:?}") };
        told.push(format!("{interface} {function}: {why}"));
    }
    insta::assert_snapshot!(told.join("\n"), @r"
    handler/state get: a self-check has no task, so it reads no data and has no effects
    handler/state set: a self-check has no task, so it reads no data and has no effects
    handler/state delete: a self-check has no task, so it reads no data and has no effects
    handler/state increment: a self-check has no task, so it reads no data and has no effects
    handler/outbox enqueue: a self-check has no task, so it reads no data and has no effects
    handler/outbox fan-out: a self-check has no task, so it reads no data and has no effects
    handler/flow results: trap: a self-check has no task, so it reads no data and has no effects
    extensions/records put: a self-check has no task, so it reads no data and has no effects
    extensions/records get: a self-check has no task, so it reads no data and has no effects
    extensions/records delete: a self-check has no task, so it reads no data and has no effects
    extensions/records expire: a self-check has no task, so it reads no data and has no effects
    extensions/delivery fence: trap: a self-check has no task, so it reads no data and has no effects
    ");
}

#[tokio::test]
async fn a_self_check_has_the_limits_of_an_attempt() {
    insta::assert_snapshot!(failed("unreachable").await, @"
    trap: wasm `unreachable` instruction executed: a panic, an abort or an uncaught exception without a \
    word; `tqhost try --backtrace` says where
    ");
    let late = |why: &str| Err(CheckError::Hindered(why.into()));
    assert_eq!(
        check("(loop $l (br $l)) (i32.const 64)").await,
        late("timeout: it did not end within 300ms: it computed for most of that time")
    );
    let wat =
        module(&format!("(func $start (loop $l (br $l))) (start $start) {}", export("(i32.const 64)")), DONE);
    let loops_at_start = load(&embed(&wat, WORLD)).self_check(&"p".into(), Duration::from_millis(300)).await;
    assert_eq!(loops_at_start, late("timeout: not instantiated within 300ms"));
    let hoard = "(loop $l (br_if $l (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) unreachable";
    insta::assert_snapshot!(failed(hoard).await, @r"
    out-of-memory: it asked for 65536 bytes beside 1048576 in use; 1048576 are granted
    ");
}

#[tokio::test]
async fn a_busy_host_does_not_hold_up_a_self_check() {
    let sandbox = testing::sandbox();
    let compiled = |wasm: &[u8]| sandbox.load(&sandbox.compile(wasm).unwrap(), &Plugin::default()).unwrap();
    let busy = compiled(&handler("(loop $l (br $l)) (i32.const 16)"));
    let stop = tokio_util::sync::CancellationToken::new();
    // These attempts take all places of the sandbox.
    let running: Vec<_> = (0..4)
        .map(|_| {
            let (busy, stop) = (busy.clone(), stop.clone());
            tokio::spawn(async move {
                busy.run(Attempt { stop, timeout: Duration::from_secs(3600), ..attempt() }).await.map(|_| ())
            })
        })
        .collect();
    let started = Instant::now();
    assert_eq!(
        compiled(&checked("(i32.const 64)")).self_check(&"p".into(), CHECK_TIMEOUT).await,
        Ok(()),
        "after {:?}",
        started.elapsed()
    );
    stop.cancel();
    for attempt in running {
        assert_eq!(attempt.await.unwrap(), None);
    }
}

#[test]
fn a_self_check_of_another_shape_is_refused_when_it_is_loaded() {
    let wit = include_str!("../../../wit/handler.wit");
    let sandbox = testing::sandbox();
    let other = wit.replace("self-check: func() -> result<_, string>;", "self-check: func() -> u32;");
    let check = r#"(func (export "tqhost:handler/lifecycle@0.1.0#self-check") (result i32) (i32.const 1))"#;
    let wasm = embed_in(&module(check, DONE), WORLD, &other);
    let error = sandbox.load(&sandbox.compile(&wasm).unwrap(), &Plugin::default()).map(|_| ()).unwrap_err();
    assert!(matches!(&error, LoadError::WrongType(_)), "{error}");
    insta::assert_snapshot!(error, @r"
    the types do not match wit/handler.wit: the function `self-check`: expected `result` found `u32`
    ");
    let none = wit.replace("self-check: func() -> result<_, string>;", "check: func();");
    let check = r#"(func (export "tqhost:handler/lifecycle@0.1.0#check"))"#;
    let wasm = embed_in(&module(check, DONE), WORLD, &none);
    let error = sandbox.load(&sandbox.compile(&wasm).unwrap(), &Plugin::default()).map(|_| ()).unwrap_err();
    insta::assert_snapshot!(error, @r"
    the types do not match wit/handler.wit: tqhost:handler/lifecycle has no function `self-check`
    ");

    let interfaces = super::super::Interfaces {
        exports: ["tqhost:handler/handler@0.1.0", "tqhost:handler/lifecycle@0.2.0"].map(str::to_owned).into(),
        imports: vec![],
    };
    insta::assert_snapshot!(interfaces.check().unwrap_err(), @r"
    it exports tqhost:handler/lifecycle@0.2.0, but this tqhost runs tqhost:handler/lifecycle@0.1.0
    ");
}
