//! A lock's guard that keeps values which are to be dropped after the lock is released.
//!
//! When the last holder of a version drops it, its compiled code and its instances are freed, which takes
//! time. Others that wait for a lock of the registry must not wait for that. So a value that is replaced or
//! removed under a lock is handed to [`Locked::drop_later`].

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;

use crate::guarded::Guarded;

thread_local! {
    /// How many of these locks this thread holds.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// A lock that is held.
pub(super) struct Locked<'g, T> {
    // Fields are dropped in their order.
    guard: MutexGuard<'g, T>,
    old: Vec<Box<dyn Send>>,
}

impl<'g, T> Locked<'g, T> {
    pub(super) fn new(guarded: &'g Guarded<T>) -> Locked<'g, T> {
        let guard = guarded.lock();
        HELD.set(HELD.get() + 1);
        Locked { guard, old: Vec::new() }
    }

    /// Drops a value after the lock is released.
    pub(super) fn drop_later<O: Send + 'static>(&mut self, old: Option<O>) {
        self.old.extend(old.map(|old| Box::new(old) as Box<dyn Send>));
    }
}

impl<T> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// Whether this thread holds such a lock.
pub(super) fn is_held() -> bool {
    HELD.get() > 0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    struct Old(Arc<AtomicU32>);

    impl Drop for Old {
        fn drop(&mut self) {
            self.0.fetch_add(u32::from(!is_held()), Ordering::Relaxed);
        }
    }

    #[test]
    fn a_released_value_is_dropped_when_the_lock_is_free() {
        let (guarded, dropped) = (Guarded::new(0), Arc::new(AtomicU32::new(0)));
        let mut locked = Locked::new(&guarded);
        locked.drop_later(Some(Old(dropped.clone())));
        locked.drop_later(Some(Old(dropped.clone())));
        *locked += 10;
        assert!(is_held());
        drop(locked);
        assert_eq!((*guarded.lock(), dropped.load(Ordering::Relaxed), is_held()), (10, 2, false));
    }
}
