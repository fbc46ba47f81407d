//! Bounds what one instance holds: the bytes of all its memories and of what its handles stand for, and the
//! elements of all its tables.
//!
//! In: every growth that the guest asks for, its initial memories included. Out: yes or no, the peak, and the
//! last refusal, which tells an out-of-memory from other traps.

use wasmtime::ResourceLimiter;

use super::budget::Account;

/// Elements of all tables together.
const TABLE_ELEMENTS: usize = 1_000_000;

/// The reason for a refusal by the budget of all instances.
const NONE_LEFT: &str = "all handlers together have no more memory";

/// The account of one store.
pub(super) struct Limits {
    memory: u64,
    /// The instance's part of the budget of all instances.
    pub(super) account: Account,
    used: u64,
    /// Bytes of the host behind the guest's handles and effects, at the last check.
    behind_handles: u64,
    peak: u64,
    elements: usize,
    /// The size of the last permitted growth, in case the growth fails afterwards.
    pending: u64,
    /// The memory of the attempt that computes.
    of_attempt: AttemptMemory,
}

/// The memory that one attempt has asked for.
#[derive(Default)]
pub(super) struct AttemptMemory {
    /// Bytes by which the memories have grown.
    grown: u64,
    refused: Option<String>,
}

impl Limits {
    pub(super) fn new(memory: u64, account: Account) -> Limits {
        Limits {
            memory,
            account,
            used: 0,
            behind_handles: 0,
            peak: 0,
            elements: 0,
            pending: 0,
            of_attempt: AttemptMemory::default(),
        }
    }

    /// Begins a new attempt. The memory of the instance still counts; the peak and refusals begin anew.
    pub(super) fn begin(&mut self) {
        self.peak = self.used + self.behind_handles;
        self.pending = 0;
        self.of_attempt = AttemptMemory::default();
    }

    /// Counts the bytes of the host behind the guest's handles and effects. Returns false if they exceed the
    /// grant or budget.
    pub(super) fn hold(&mut self, bytes: u64) -> bool {
        let (used, memory) = (self.used, self.memory);
        let all = used.saturating_add(bytes);
        if all > memory {
            return self.refuse(format!(
                "its handles and effects stand for {bytes} bytes beside {used} in use; {memory} are granted"
            ));
        }
        if !self.account.grow(all) {
            return self.refuse(NONE_LEFT.to_owned());
        }
        self.behind_handles = bytes;
        self.peak = self.peak.max(all);
        true
    }

    /// Notes why a growth is refused. Returns false.
    fn refuse(&mut self, why: String) -> bool {
        self.of_attempt.refused = Some(why);
        false
    }

    /// The bytes that the instance may still take, by its own grant.
    pub(super) fn room(&self) -> u64 {
        self.memory.saturating_sub(self.used.saturating_add(self.behind_handles))
    }

    /// The most bytes that all memories together held at once, with what the handles stand for.
    pub(super) fn peak(&self) -> u64 {
        self.peak
    }

    /// Goes on with another attempt of the instance. Returns the memory of the one before.
    pub(super) fn turn_to(&mut self, of_attempt: AttemptMemory) -> AttemptMemory {
        std::mem::replace(&mut self.of_attempt, of_attempt)
    }

    /// Whether the attempt that computes has taken most of the memory, with these bytes of its effects.
    pub(super) fn has_taken_most(&self, effects: u64) -> bool {
        self.of_attempt.grown.saturating_add(effects) > self.memory / 2
    }

    /// Takes the last refusal, so that it counts once.
    pub(super) fn take_refused(&mut self) -> Option<String> {
        self.of_attempt.refused.take()
    }

    /// Whether little is left of the grant, as after a leak.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.used + self.behind_handles > self.memory / 4 * 3
    }

    /// The last refusal, if there was one.
    pub(super) fn refused(&self) -> Option<&str> {
        self.of_attempt.refused.as_deref()
    }
}

impl ResourceLimiter for Limits {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let delta = desired.saturating_sub(current) as u64;
        self.pending = 0;
        let before = self.used + self.behind_handles;
        let all = before.saturating_add(delta);
        let granted = self.memory;
        if all > granted {
            let why = format!("it asked for {delta} bytes beside {before} in use; {granted} are granted");
            return Ok(self.refuse(why));
        }
        if let Some(maximum) = maximum.filter(|maximum| desired > *maximum) {
            let why =
                format!("it asked for {desired} bytes in a memory that declares a maximum of {maximum}");
            return Ok(self.refuse(why));
        }
        if !self.account.grow(all) {
            return Ok(self.refuse(NONE_LEFT.to_owned()));
        }
        self.pending = delta;
        self.used += delta;
        self.of_attempt.grown += delta;
        self.peak = self.peak.max(all);
        Ok(true)
    }

    fn memory_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        self.used -= self.pending;
        self.of_attempt.grown = self.of_attempt.grown.saturating_sub(self.pending);
        self.pending = 0;
        self.of_attempt.refused.get_or_insert_with(|| error.to_string());
        Ok(())
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let elements = self.elements.saturating_add(desired.saturating_sub(current));
        if elements > TABLE_ELEMENTS || maximum.is_some_and(|maximum| desired > maximum) {
            let why = format!("it asked for {elements} table elements; {TABLE_ELEMENTS} are allowed");
            return Ok(self.refuse(why));
        }
        self.elements = elements;
        Ok(true)
    }

    fn instances(&self) -> usize {
        128
    }

    fn tables(&self) -> usize {
        64
    }

    fn memories(&self) -> usize {
        16
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::super::budget::Budget;
    use super::*;

    fn limits(memory: u64) -> Limits {
        let account = Budget::new(u64::MAX, || ()).start(0).now_or_never();
        Limits::new(memory, account.expect("a small one does not wait"))
    }

    #[test]
    fn resources_behind_handles_count_with_the_memory() {
        let mut limits = limits(100);
        assert!(limits.memory_growing(0, 60, None).unwrap());
        assert!(limits.hold(40));
        assert!(!limits.memory_growing(60, 61, None).unwrap());
        assert!(!limits.hold(41));
        insta::assert_snapshot!(limits.refused().unwrap(), @r"
        its handles and effects stand for 41 bytes beside 60 in use; 100 are granted
        ");
        assert!(limits.hold(10));
        assert_eq!(limits.room(), 30);
        assert!(limits.memory_growing(60, 90, None).unwrap());
        assert_eq!(limits.peak(), 100);
        limits.begin();
        assert_eq!((limits.peak(), limits.refused()), (100, None));
    }

    #[test]
    fn a_growth_that_fails_later_is_given_back() {
        let mut limits = limits(100);
        assert!(limits.memory_growing(0, 60, None).unwrap());
        limits.memory_grow_failed(wasmtime::format_err!("no pages")).unwrap();
        assert!(limits.memory_growing(0, 100, None).unwrap());
        assert_eq!(limits.refused(), Some("no pages"));
    }

    #[test]
    fn memory_that_an_earlier_attempt_holds_still_counts() {
        let mut limits = limits(100);
        assert!(limits.memory_growing(0, 60, None).unwrap());
        assert!(!limits.memory_growing(60, 120, None).unwrap());
        limits.begin();
        assert_eq!((limits.peak(), limits.refused()), (60, None));
        assert!(!limits.memory_growing(60, 101, None).unwrap());
        assert!(limits.memory_growing(60, 100, None).unwrap());
        assert_eq!(limits.peak(), 100);
    }
}
