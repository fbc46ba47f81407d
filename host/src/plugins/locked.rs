//! A lock's guard that also keeps what was taken out of what it guards.
//!
//! With the last holder of a version go its compiled code and its instances, which takes time. Whoever waits
//! for a lock of the registry must not wait for that, so what is replaced or removed under one is handed to
//! [`Locked::let_go`], and dropped after the lock is released.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

thread_local! {
    /// How many of these locks this thread holds.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// A lock that is held. `G` is its guard, `T` is what it may have to let go of.
pub(super) struct Locked<G, T> {
    // Fields are dropped in their order.
    guard: G,
    old: Vec<T>,
}

impl<G, T> Locked<G, T> {
    pub(super) fn new(guard: G) -> Locked<G, T> {
        HELD.set(HELD.get() + 1);
        Locked { guard, old: Vec::new() }
    }

    /// Keeps these until the lock is released.
    pub(super) fn let_go(&mut self, old: impl IntoIterator<Item = T>) {
        self.old.extend(old);
    }
}

impl<G, T> Drop for Locked<G, T> {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
    }
}

impl<G: Deref, T> Deref for Locked<G, T> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut, T> DerefMut for Locked<G, T> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// Whether this thread holds such a lock.
pub(super) fn is_held() -> bool {
    HELD.get() > 0
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    struct Old(Arc<Mutex<u32>>);

    impl Drop for Old {
        fn drop(&mut self) {
            *self.0.try_lock().expect("the lock is free") += u32::from(!is_held());
        }
    }

    #[test]
    fn a_released_value_is_dropped_when_the_lock_is_free() {
        let mutex = Arc::new(Mutex::new(0));
        let mut locked = Locked::new(mutex.lock().unwrap());
        locked.let_go([Old(mutex.clone()), Old(mutex.clone())]);
        *locked += 10;
        assert!(is_held());
        drop(locked);
        assert_eq!((*mutex.lock().unwrap(), is_held()), (12, false));
    }
}
