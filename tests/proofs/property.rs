//! Random operations and crashes against a real Redis, compared with a reference after every step.
//!
//! `property/reference.rs` says where each task must be. `property/world.rs` carries the same operation out
//! through `queue::Queue`, and `property/attempts.rs` ends attempts. `property/look.rs` reads where each task
//! is. No operation waits: the test itself
//! ends leases and delays. `property/mutants.rs` has scripts that each lack one guard; the test must find
//! every one of them.
//!
//! `TQHOST_PROPTEST_CASES` sets the number of cases. Not here: hosts (`faults`), interleavings within an
//! operation (`model.rs`).

mod attempts;
mod look;
pub mod mutants;
mod reference;
mod world;

use std::cell::Cell;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::support::RedisServer;
use mutants::{MUTATIONS, Mutation, Mutator};
use world::World;

/// Cases of an ordinary run.
const CASES: u32 = 500;
const STEPS: usize = 80;
/// The test must find a script without a guard within this many cases.
const CASES_FOR_A_MUTANT: u32 = 1000;
/// In this many cases there must be no difference while all guards are there.
const CASES_WITHOUT_A_MUTANT: u32 = 30;

/// The mutants are in this many tests, which run beside each other.
const SHARDS: usize = 4;
/// The text of this test. A change in it may make a mutant harder to find.
const TEST: &[&str] = &[
    include_str!("property.rs"),
    include_str!("property/attempts.rs"),
    include_str!("property/look.rs"),
    include_str!("property/reference.rs"),
    include_str!("property/world.rs"),
];

/// Consumers that live at the same time.
pub const CONSUMERS: usize = 3;
/// The values of the state that attempts set.
pub const VALUES: usize = 3;

/// Numbers choose among what is there, so every sequence makes sense, also a shortened one.
#[derive(Debug, Clone, Copy)]
pub enum Op {
    Enqueue {
        delayed: bool,
        key: Option<usize>,
    },
    /// A producer's XADD.
    Add {
        has_id: bool,
        key: Option<usize>,
    },
    /// Another XADD with an id that was used before.
    AddAgain {
        nth: usize,
    },
    /// An XDEL by somebody else.
    Delete {
        nth: usize,
    },
    /// The n-th time of the schedule. A late time has no task.
    Fire {
        nth: usize,
        is_late: bool,
    },
    /// Takes as many places for starts as the rate limit allows, and uses some of them.
    Start {
        wanted: usize,
        used: usize,
    },
    /// A producer's LPUSH to the list.
    Push,
    /// Moves items of the list into the queue. A repeated call follows one whose reply was lost.
    Move {
        limit: usize,
        is_repeated: bool,
    },
    /// Redis refuses the tasks of items that are moved.
    MoveRefused,
    /// The previous call was carried out, but its reply was lost, so it is sent again.
    EnqueueAgain {
        nth: usize,
    },
    Read {
        consumer: usize,
        count: usize,
    },
    /// Delivered, but the consumer never sees it.
    ReadUnheard {
        consumer: usize,
        count: usize,
    },
    Recover {
        consumer: usize,
        count: usize,
    },
    /// With `alone`, a task that may have brought consumers down runs alone.
    Begin {
        consumer: usize,
        alone: bool,
    },
    Beat {
        consumer: usize,
    },
    Settle {
        consumer: usize,
        nth: usize,
        end: End,
    },
    /// Settles all that the consumer holds, in one call. The tasks end in these two ways in turn.
    SettleAll {
        consumer: usize,
        ends: [End; 2],
    },
    SettleAgain {
        nth: usize,
    },
    Reclaim {
        consumer: usize,
        count: usize,
        /// Whether the owners died or are still alive.
        died: bool,
    },
    ReclaimUnheard {
        consumer: usize,
        count: usize,
    },
    /// A lease ends.
    Silence {
        nth: usize,
    },
    /// A delay ends.
    Ripen {
        nth: usize,
    },
    Promote {
        limit: usize,
    },
    /// An operator lets a delayed task run now; the call is repeated.
    RunNow {
        nth: usize,
    },
    Requeue {
        nth: usize,
    },
    RequeueAll,
    Purge {
        nth: usize,
    },
    Cancel {
        nth: usize,
    },
    Pause,
    Resume,
    Crash {
        consumer: usize,
    },
    Leave {
        consumer: usize,
    },
    ForgetScripts,
}

#[derive(Debug, Clone, Copy)]
pub enum End {
    Complete,
    /// Completes, and enqueues a task with this idempotency key, counts, and writes to a record.
    Effects {
        delayed: bool,
        key: Option<usize>,
    },
    /// Completes, and sets `count` values of the state, from the value `first` on.
    Values {
        first: usize,
        count: usize,
        has_result: bool,
    },
    Retry,
    Defer,
    Reject,
    Release,
}

fn op() -> impl Strategy<Value = Op> {
    let consumer = || 0..CONSUMERS;
    let nth = || 0..100usize;
    // There are few keys, so that some tasks share one.
    let key = || prop_oneof![2 => Just(None), 1 => (0..3usize).prop_map(Some)];
    let values = || {
        (0..VALUES, any::<usize>(), any::<bool>()).prop_map(|(first, count, has_result)| End::Values {
            first,
            count: 1 + count % (VALUES - first),
            has_result,
        })
    };
    let end = || {
        prop_oneof![
            3 => Just(End::Complete),
            2 => (any::<bool>(), key()).prop_map(|(delayed, key)| End::Effects { delayed, key }),
            3 => values(),
            3 => Just(End::Retry),
            1 => Just(End::Defer),
            2 => Just(End::Reject),
            2 => Just(End::Release),
        ]
    };
    prop_oneof![
        6 => (any::<bool>(), key()).prop_map(|(delayed, key)| Op::Enqueue { delayed, key }),
        6 => (any::<bool>(), key()).prop_map(|(has_id, key)| Op::Add { has_id, key }),
        1 => nth().prop_map(|nth| Op::EnqueueAgain { nth }),
        4 => nth().prop_map(|nth| Op::AddAgain { nth }),
        2 => nth().prop_map(|nth| Op::Delete { nth }),
        2 => (0..6usize, prop::bool::weighted(0.2)).prop_map(|(nth, is_late)| Op::Fire { nth, is_late }),
        2 => (1..5usize, 0..5usize).prop_map(|(wanted, used)| Op::Start { wanted, used }),
        3 => Just(Op::Push),
        3 => (1..4usize, any::<bool>()).prop_map(|(limit, is_repeated)| Op::Move { limit, is_repeated }),
        1 => Just(Op::MoveRefused),
        10 => (consumer(), 1..4usize).prop_map(|(consumer, count)| Op::Read { consumer, count }),
        1 => (consumer(), 1..4usize).prop_map(|(consumer, count)| Op::ReadUnheard { consumer, count }),
        2 => (consumer(), 1..4usize).prop_map(|(consumer, count)| Op::Recover { consumer, count }),
        6 => (consumer(), any::<bool>()).prop_map(|(consumer, alone)| Op::Begin { consumer, alone }),
        4 => consumer().prop_map(|consumer| Op::Beat { consumer }),
        14 => (consumer(), nth(), end()).prop_map(|(consumer, nth, end)| Op::Settle { consumer, nth, end }),
        3 => (consumer(), [end(), end()]).prop_map(|(consumer, ends)| Op::SettleAll { consumer, ends }),
        4 => nth().prop_map(|nth| Op::SettleAgain { nth }),
        6 => (consumer(), 1..4usize, any::<bool>())
            .prop_map(|(consumer, count, died)| Op::Reclaim { consumer, count, died }),
        1 => (consumer(), 1..4usize).prop_map(|(consumer, count)| Op::ReclaimUnheard { consumer, count }),
        8 => nth().prop_map(|nth| Op::Silence { nth }),
        6 => nth().prop_map(|nth| Op::Ripen { nth }),
        5 => (1..4usize).prop_map(|limit| Op::Promote { limit }),
        2 => nth().prop_map(|nth| Op::RunNow { nth }),
        2 => nth().prop_map(|nth| Op::Requeue { nth }),
        1 => Just(Op::RequeueAll),
        1 => nth().prop_map(|nth| Op::Purge { nth }),
        2 => nth().prop_map(|nth| Op::Cancel { nth }),
        1 => Just(Op::Pause),
        1 => Just(Op::Resume),
        2 => consumer().prop_map(|consumer| Op::Crash { consumer }),
        1 => consumer().prop_map(|consumer| Op::Leave { consumer }),
        1 => Just(Op::ForgetScripts),
    ]
}

/// A consumer falls silent while it has a task, another one takes it over, and the first one settles it
/// nevertheless. Most guards are about this sequence, and random operations seldom produce it.
fn overtaken() -> impl Strategy<Value = Vec<Op>> {
    let effects = End::Effects { delayed: false, key: Some(0) };
    let values = End::Values { first: 0, count: 1, has_result: true };
    let end = prop_oneof![
        Just(End::Complete),
        Just(effects),
        Just(values),
        Just(End::Retry),
        Just(End::Reject),
        Just(End::Release)
    ];
    (0..CONSUMERS, 0..100usize, end).prop_map(|(consumer, nth, end)| {
        let other = (consumer + 1) % CONSUMERS;
        vec![
            Op::Read { consumer, count: 1 },
            Op::Begin { consumer, alone: false },
            Op::Silence { nth },
            Op::Silence { nth },
            Op::Reclaim { consumer: other, count: 3, died: true },
            Op::Settle { consumer, nth, end },
        ]
    })
}

/// Consumers fall silent with a task one after the other, and sometimes with a task that ran alone.
fn brought_down() -> impl Strategy<Value = Vec<Op>> {
    let round = (any::<bool>(), prop_oneof![3 => Just(true), 1 => Just(false)], 0..100usize);
    (0..CONSUMERS, prop::collection::vec(round, 3..6)).prop_map(|(first, rounds)| {
        let mut consumer = first;
        let mut ops = vec![Op::Read { consumer, count: 1 }];
        for (alone, died, nth) in rounds {
            ops.extend([Op::Begin { consumer, alone }, Op::Silence { nth }, Op::Silence { nth }]);
            consumer = (consumer + 1) % CONSUMERS;
            ops.push(Op::Reclaim { consumer, count: 3, died });
        }
        ops.push(Op::Begin { consumer, alone: false });
        ops
    })
}

/// One of several tasks is cancelled while they run, and then all of them set values in one call.
fn cancelled_meanwhile() -> impl Strategy<Value = Vec<Op>> {
    let values = || {
        (0..VALUES, any::<bool>()).prop_map(|(first, has_result)| End::Values {
            first,
            count: VALUES - first,
            has_result,
        })
    };
    (0..CONSUMERS, 0..100usize, [values(), values()]).prop_map(|(consumer, nth, ends)| {
        let add = Op::Add { has_id: false, key: None };
        let read = Op::Read { consumer, count: 4 };
        vec![add, add, add, read, Op::Cancel { nth }, Op::SettleAll { consumer, ends }]
    })
}

/// A case: whether the statuses of ended tasks are kept, and the operations.
fn case() -> impl Strategy<Value = (bool, Vec<Op>)> {
    let some = prop_oneof![
        30 => op().prop_map(|op| vec![op]),
        1 => overtaken(),
        1 => brought_down(),
        1 => cancelled_meanwhile(),
    ];
    let ops = prop::collection::vec(some, 1..STEPS).prop_map(|ops| ops.concat());
    (prop_oneof![3 => Just(true), 1 => Just(false)], ops)
}

async fn play(redis: &RedisServer, url: &str, (keeps, ops): (bool, Vec<Op>)) -> Result<(), TestCaseError> {
    let mut world = World::new(redis, url, keeps).await?;
    for op in ops {
        world.step(op).await?;
    }
    world.drain().await
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

#[test]
fn every_place_is_the_one_that_the_reference_says() {
    let dir = tempfile::tempdir().expect("create a folder");
    let redis = RedisServer::start(dir.path(), &[]);
    let runtime = runtime();
    let cases = std::env::var("TQHOST_PROPTEST_CASES")
        .map_or(CASES, |text| text.parse().expect("TQHOST_PROPTEST_CASES is a number"));
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let checked =
        TestRunner::new(config).run(&case(), |case| runtime.block_on(play(&redis, &redis.url(), case)));
    if let Err(failed) = checked {
        panic!("{failed}");
    }
}

/// Runs the same cases each time, with the scripts of `mutation`. Returns how many cases ran, and the first
/// difference.
fn differs(redis: &RedisServer, mutation: Option<&Mutation>, cases: u32) -> (u32, Option<String>) {
    let (runtime, mutator) = (runtime(), Mutator::start(redis, mutation));
    let url = format!("redis://127.0.0.1:{}", mutator.port);
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 0, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let played = Cell::new(0);
    let checked = runner.run(&case(), |(keeps, mut ops)| {
        played.set(played.get() + 1);
        // After Redis forgets the scripts, the library would load the ones with all guards.
        ops.retain(|op| !matches!(op, Op::ForgetScripts));
        runtime.block_on(play(redis, &url, (keeps, ops)))
    });
    let difference = match checked {
        Ok(()) => None,
        Err(TestError::Fail(why, _)) => Some(why.message().to_owned()),
        Err(error) => Some(error.to_string()),
    };
    (played.get(), difference)
}

/// Runs one of [`SHARDS`] parts of the mutants. A mutant that was found out in an earlier run on this machine
/// is left out, unless its script, the change or this test has changed since. `TQHOST_MUTANTS=all` runs all.
fn find_out(shard: usize) {
    let known = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mutants-found-out-{shard}"));
    let before = fs::read_to_string(&known).unwrap_or_default();
    let is_known =
        |mutant: &str| std::env::var("TQHOST_MUTANTS").is_err() && before.lines().any(|line| line == mutant);
    let dir = tempfile::tempdir().expect("create a folder");
    let redis = RedisServer::start(dir.path(), &[]);
    let (mut found, mut not_found) = (Vec::new(), Vec::new());
    let mut is_right_with_all_guards = false;
    for mutation in MUTATIONS.iter().skip(shard).step_by(SHARDS) {
        let mutant = mutation.digest(TEST);
        if !is_known(&mutant) {
            if !std::mem::replace(&mut is_right_with_all_guards, true) {
                assert_eq!(differs(&redis, None, CASES_WITHOUT_A_MUTANT).1, None, "with all guards");
            }
            let (cases, difference) = differs(&redis, Some(mutation), CASES_FOR_A_MUTANT);
            println!("{}: {cases} cases: {difference:?}", mutation.what);
            if difference.as_ref().is_none_or(|difference| !difference.contains(mutation.found)) {
                not_found.push((mutation.what, cases, difference));
                continue;
            }
        }
        found.push(mutant);
    }
    fs::write(known, found.join("\n")).expect("note the mutants");
    assert!(not_found.is_empty(), "{not_found:#?}");
}

#[test]
fn every_guard_that_is_missing_is_found_out_in_the_first_quarter() {
    find_out(0);
}

#[test]
fn every_guard_that_is_missing_is_found_out_in_the_second_quarter() {
    find_out(1);
}

#[test]
fn every_guard_that_is_missing_is_found_out_in_the_third_quarter() {
    find_out(2);
}

#[test]
fn every_guard_that_is_missing_is_found_out_in_the_last_quarter() {
    find_out(3);
}
