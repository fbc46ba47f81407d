//! Files and guests that no compiler makes: too many parts, a trap before the first call, bytes changed at
//! random.

use std::time::Duration;

use super::*;
use crate::sandbox::build_section::leb128;

const LOOP: &str = "(loop $l (br $l))";

/// A handler with further definitions behind its own.
fn with(definitions: &str) -> Vec<u8> {
    let wat = module("", DONE);
    let end = wat.rfind(')').unwrap();
    embed(&format!("{} {definitions})", &wat[..end]), WORLD)
}

/// The error of a file that this sandbox can never load.
fn not_loaded(sandbox: &Sandbox, wasm: &[u8]) -> LoadError {
    match sandbox.compile(wasm).and_then(|compiled| sandbox.load(&compiled, &grants())) {
        Ok(_) => panic!("it was loaded"),
        Err(error) => {
            assert!(!error.may_pass(), "{error}");
            error
        }
    }
}

/// Checks that another plugin's next task runs at once, with every place free.
async fn still_well(sandbox: &Sandbox) {
    assert_eq!(sandbox.0.pool.free_places(), 4);
    let report = load(sandbox, &handler(ECHO)).run(attempt()).await.unwrap();
    assert_eq!(outcome(&report), Outcome::Completed { result: Some(b"1-0".to_vec()), effects: None });
}

#[tokio::test]
async fn many_memories_and_tables_are_refused_when_they_are_loaded() {
    let sandbox = testing::sandbox();
    for (part, most) in [("(memory 1)", 3), ("(table 10 funcref)", 16)] {
        let fits = load(&sandbox, &with(&part.repeat(most)));
        assert_eq!(outcome(&fits.run(attempt()).await.unwrap()), COMPLETED, "{most} of {part}");
        let why = not_loaded(&sandbox, &with(&part.repeat(most + 1))).to_string();
        assert!(why.contains("exceed") || why.contains("limit"), "{part}: {why}");
    }
    still_well(&sandbox).await;
}

#[tokio::test]
async fn a_trap_before_the_first_call_is_a_failure_of_each_attempt() {
    let sandbox = testing::sandbox();
    let mut told = std::collections::BTreeSet::new();
    for start in ["unreachable", LOOP] {
        let wasm = with(&format!("(func $start {start}) (start $start)"));
        for warm in [None, Some(crate::config::Warm { idle: 4, max_tasks: 100, concurrent: 1 })] {
            let guest = load(&sandbox, &wasm).with_grants(&Plugin { warm, ..grants() });
            for _ in 0..3 {
                let report =
                    guest.run(Attempt { timeout: Duration::from_millis(200), ..attempt() }).await.unwrap();
                let Outcome::Failed { kind, message } = outcome(&report) else { panic!("{report:?}") };
                told.insert(format!("{start}: {kind:?}: {message}\n"));
            }
        }
        still_well(&sandbox).await;
    }
    insta::assert_snapshot!(told.into_iter().collect::<String>(), @"
    (loop $l (br $l)): StartTimeout: not instantiated within 200ms
    unreachable: Trap: wasm `unreachable` instruction executed: a panic, an abort or an uncaught exception \
    without a word; `tqhost try --backtrace` says where
    ");
}

#[tokio::test]
async fn handles_of_a_guests_own_resources_have_an_end() {
    let world = "interface things { resource thing; } \
                 world test { export things; export tqhost:handler/handler@0.1.0; }";
    let extra =
        r#"(import "[export]test:test/things" "[resource-new]thing" (func $new (param i32) (result i32)))"#;
    let body = format!("(loop $l (drop (call $new (i32.const 1))) (br $l)) {DONE}");
    let sandbox = testing::sandbox();
    let report = load(&sandbox, &embed(&module(extra, &body), world)).run(attempt()).await.unwrap();
    let Outcome::Failed { kind: FailureKind::Trap, message } = outcome(&report) else { panic!("{report:?}") };
    assert!(message.contains("handle"), "{message}");
    still_well(&sandbox).await;
}

/// A component that contains another one, and so on, `depth` times.
fn nested(depth: usize) -> Vec<u8> {
    const PREAMBLE: [u8; 8] = [0, b'a', b's', b'm', 0x0d, 0, 1, 0];
    // Made from the end, backwards.
    let mut reversed: Vec<u8> = PREAMBLE.into_iter().rev().collect();
    for _ in 0..depth {
        let length = leb128(reversed.len());
        reversed.extend(length.iter().rev());
        reversed.push(4);
        reversed.extend(PREAMBLE.iter().rev());
    }
    reversed.reverse();
    reversed
}

#[tokio::test]
async fn huge_components_are_refused_or_work() {
    let sandbox = testing::sandbox();
    // Many small functions take time, but work.
    let many = load(&sandbox, &with(&"(func (result i32) (i32.const 1))".repeat(20_000)));
    assert_eq!(outcome(&many.run(attempt()).await.unwrap()), COMPLETED);
    // This function is too long for any compiler of WebAssembly.
    let why = not_loaded(&sandbox, &with(&format!("(func {})", "(drop (i32.const 1))".repeat(2_700_000))))
        .to_string();
    assert!(why.contains("size"), "{why}");
    let why = not_loaded(&sandbox, &with(&format!("(func (local {}))", "i32 ".repeat(50_001)))).to_string();
    assert!(why.contains("locals"), "{why}");
    // The data is larger than the granted memory.
    let data = format!("(memory 100) (data (memory 1) (i32.const 0) \"{}\")", "x".repeat(6 << 20));
    let report = load(&sandbox, &with(&data)).run(attempt()).await.unwrap();
    assert!(matches!(outcome(&report), Outcome::Failed { kind: FailureKind::OutOfMemory, .. }), "{report:?}");
    // Nested blocks and nested components must not be read by recursion: the overflow of its stack would end
    // the host.
    let blocks = with(&format!("(func {})", "block ".repeat(30_000) + &"end ".repeat(30_000)));
    assert_eq!(outcome(&load(&sandbox, &blocks).run(attempt()).await.unwrap()), COMPLETED);
    for depth in [10, 1000, 100_000] {
        let why = not_loaded(&sandbox, &nested(depth));
        let is_read = matches!(why, LoadError::WrongWorld { .. } | LoadError::Malformed(_));
        assert!(is_read, "{depth}: {why}");
    }
    still_well(&sandbox).await;
}

/// Pseudo-random numbers that are the same in every run (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }
}

/// Makes one to three changes: flips a bit, replaces a byte, removes, doubles or inserts a piece, or cuts the
/// end off.
fn mutate(good: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for _ in 0..=numbers.below(3) {
        let at = numbers.below(bytes.len());
        let end = (at + 1 + numbers.below(16)).min(bytes.len());
        // Most changes keep the length. After a change of length, a section is too long or too short and is
        // refused.
        match numbers.below(12) {
            0..5 => bytes[at] ^= 1 << numbers.below(8),
            5..8 => bytes[at] = numbers.below(256) as u8,
            8 => drop(bytes.drain(at..end)),
            9 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            10 => {
                let piece: Vec<u8> = (0..=numbers.below(16)).map(|_| numbers.below(256) as u8).collect();
                bytes.splice(at..at, piece);
            }
            _ => bytes.truncate(at.max(8)),
        }
    }
    bytes
}

#[tokio::test]
async fn a_file_whose_bytes_are_changed_is_refused_or_works() {
    const CASES: usize = 2000;
    let sandbox = testing::sandbox();
    let module = handler(ECHO);
    let component = crate::sandbox::component::from_bytes(&module).unwrap().into_owned();
    let mut numbers = Numbers(0x7a5c_91e3_0bd4_2f68);
    let (mut refused, mut ran) = (0, 0);
    for case in 0..CASES {
        let wasm = mutate(if case % 3 == 0 { &module } else { &component }, &mut numbers);
        let _ = sandbox.inspect(&wasm);
        match sandbox.compile(&wasm).and_then(|compiled| sandbox.load(&compiled, &grants())) {
            Err(error) => {
                assert!(!error.to_string().is_empty(), "case {case}");
                refused += 1;
            }
            Ok(handler) => {
                // Any outcome is good except a failure of the host.
                let report =
                    handler.run(Attempt { timeout: Duration::from_millis(200), ..attempt() }).await.unwrap();
                if let Outcome::Failed { message, .. } = &outcome(&report) {
                    assert!(!message.contains("the host failed"), "case {case}: {message}");
                }
                ran += 1;
            }
        }
    }
    assert!(
        refused > CASES / 4 && ran > CASES / 50,
        "{refused} were refused, {ran} ran: the changes are of the right kind"
    );
    still_well(&sandbox).await;
}

#[test]
fn a_panic_of_what_reads_a_file_is_an_error() {
    // One in forty thousand changed files made the reader of component types panic.
    let read = crate::sandbox::compiler::contained::<()>(|| panic!("taken for impossible"));
    assert!(matches!(read, Err(LoadError::Malformed(_))), "{read:?}");
}
