//! `make test SLOW=1`: replies of Redis and lines of logs come late, at random.
//!
//! In: `TQHOST_TEST_SLOW`, a seed. Out: a proxy between the hosts of a bench and its Redis, and delays for
//! lines. A test that fails in this mode takes one event for a sign of another. Not here: faults (`proxy`).

use std::ops::Range;
use std::sync::LazyLock;
use std::time::Duration;

use super::proxy::Proxy;

/// The longest delays are longer than a usual step of a test, and shorter than a lease.
const REPLY_MS: Range<u64> = 0..40;
const LINE_MS: Range<u64> = 0..300;

static SEED: LazyLock<Option<u64>> = LazyLock::new(|| {
    let seed = std::env::var("TQHOST_TEST_SLOW").ok().filter(|seed| !seed.is_empty())?;
    Some(seed.parse().unwrap_or_else(|_| panic!("TQHOST_TEST_SLOW is a number, not {seed:?}")))
});

/// A number for this test from the seed, so that each test has the same delays again.
fn seed() -> Option<u64> {
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let of_test = name.bytes().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    SEED.map(|seed| seed ^ of_test)
}

/// A proxy that delays the replies of the Redis on this port.
pub fn proxy(port: u16) -> Option<Proxy> {
    let seed = seed()?;
    let proxy = Proxy::start(port);
    proxy.delay_replies(REPLY_MS, seed);
    Some(proxy)
}

/// How long a producer waits between two tasks. Hosts whose Redis is slow do less.
pub fn pace() -> Duration {
    Duration::from_millis(if SEED.is_some() { 20 } else { 2 })
}

/// How much later than without this mode a reply of Redis may come.
pub fn late_ms() -> u64 {
    if SEED.is_some() { REPLY_MS.end } else { 0 }
}

/// Delays for the lines of one log, in their order. None outside of this mode.
pub fn lines() -> Option<impl FnMut() -> Duration + Send + 'static> {
    let mut random = fastrand::Rng::with_seed(seed()?);
    Some(move || Duration::from_millis(random.u64(LINE_MS)))
}
