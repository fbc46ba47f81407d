//! A mutex that can be locked after a panic. One attempt that panics must not end the work of the others.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value that threads share. Its lock is held for a moment, and never while something is awaited.
#[derive(Debug, Default)]
pub(crate) struct Guarded<T>(Mutex<T>);

impl<T> Guarded<T> {
    pub(crate) const fn new(value: T) -> Guarded<T> {
        Guarded(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}
