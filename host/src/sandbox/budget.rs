//! The memory budget of all handlers of a host together.
//!
//! In: the budget, and the size of each instance when it grows. Out: the start of attempts; the end of the
//! largest instance when all together outgrow the budget.
//!
//! ```text
//! a version that needed much before ─▶ its attempt waits until there is room ─▶ it starts
//! an instance outgrows the budget ─▶ kept instances are dropped ─▶ the largest instance is stopped,
//!                                                                 and its tasks are released
//! ```
//!
//! An instance of up to [`SMALL`] bytes has no account: it never waits and is never stopped. A stopped
//! attempt was within its own grant, so it is not charged and does not count against its version. The need of
//! its version is then known, so the next attempt waits for room.
//!
//! Not here: what one instance may have (`limits`), how large the machine is (`machine`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, MutexGuard};

use tokio::sync::oneshot;

use super::slices::SlicedCall;
use crate::guarded::Guarded;

/// Bytes that an instance may have without an account.
pub(super) const SMALL: u64 = 512 * 1024;

pub(super) struct Budget {
    total: u64,
    books: Guarded<Books>,
    /// Drops the instances that wait for a task. An instance with a task is stopped only if that was not
    /// enough.
    drop_kept: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Books {
    /// The bytes of all accounts together.
    used: u64,
    accounts: BTreeMap<u64, Entry>,
    /// The next account's number.
    next: u64,
    waiting: VecDeque<WaitingStart>,
}

struct Entry {
    held: u64,
    state: AccountState,
}

enum AccountState {
    /// The instance has no call yet.
    Starting,
    Running(SlicedCall),
    /// The instance waits for a task.
    Kept,
    /// The instance was stopped, and has not yet given its memory back.
    Stopped,
}

struct WaitingStart {
    bytes: u64,
    start: oneshot::Sender<Account>,
}

/// A place in the line. Drop gives it up, and lets the attempts behind it start.
struct StartPlace<'a> {
    budget: &'a Arc<Budget>,
    started: oneshot::Receiver<Account>,
}

impl Drop for StartPlace<'_> {
    fn drop(&mut self) {
        // An account that was sent meanwhile is dropped with the receiver, after this.
        self.started.close();
        self.budget.start_waiting(self.budget.books.lock());
    }
}

impl Budget {
    /// `drop_kept` drops all instances that wait for a task. It must not own them, as each instance owns the
    /// budget.
    pub(super) fn new(total: u64, drop_kept: impl Fn() + Send + Sync + 'static) -> Arc<Budget> {
        Arc::new(Budget { total, books: Guarded::default(), drop_kept: Box::new(drop_kept) })
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Opens an account for a new instance that probably needs `expected` bytes. Waits until there is room.
    pub(super) async fn start(self: &Arc<Budget>, expected: u64) -> Account {
        if expected <= SMALL {
            return Account { budget: self.clone(), number: None, held: 0, call: None };
        }
        let mut place = {
            let mut books = self.books.lock();
            if !books.has_room(expected, self.total)
                && books.accounts.values().any(|entry| matches!(entry.state, AccountState::Kept))
            {
                drop(books);
                (self.drop_kept)();
                books = self.books.lock();
            }
            if books.waiting.is_empty() && books.has_room(expected, self.total) {
                return self.open(&mut books, expected);
            }
            let (start, started) = oneshot::channel();
            books.waiting.push_back(WaitingStart { bytes: expected, start });
            StartPlace { budget: self, started }
        };
        match (&mut place.started).await {
            Ok(account) => account,
            // The caller owns the budget, and so its senders: this does not happen.
            Err(_) => std::future::pending().await,
        }
    }

    /// Whether an attempt waits for memory.
    pub(super) fn is_wanted(&self) -> bool {
        !self.books.lock().waiting.is_empty()
    }

    /// Starts the attempts at the head of the line, as long as there is room for them.
    fn start_waiting(self: &Arc<Budget>, mut books: MutexGuard<'_, Books>) {
        books.waiting.retain(|waiting| !waiting.start.is_closed());
        let mut starting = Vec::new();
        while let Some(waiting) = books.waiting.front()
            && books.has_room(waiting.bytes, self.total)
            && let Some(WaitingStart { bytes, start }) = books.waiting.pop_front()
        {
            starting.push((start, self.open(&mut books, bytes)));
        }
        drop(books);
        for (start, account) in starting {
            // If the attempt has given up, the send fails, and the drop of the account gives the memory back.
            drop(start.send(account));
        }
    }

    fn open(self: &Arc<Budget>, books: &mut Books, held: u64) -> Account {
        let number = Some(books.open(held, AccountState::Starting));
        Account { budget: self.clone(), number, held, call: None }
    }
}

impl Books {
    fn has_room(&self, bytes: u64, total: u64) -> bool {
        self.accounts.is_empty() || self.used.saturating_add(bytes) <= total
    }

    /// Opens an account. Returns its number.
    fn open(&mut self, held: u64, state: AccountState) -> u64 {
        let number = self.next;
        self.next += 1;
        self.used += held;
        self.accounts.insert(number, Entry { held, state });
        number
    }

    fn resize(&mut self, number: u64, held: u64) {
        if let Some(entry) = self.accounts.get_mut(&number) {
            self.used = self.used - entry.held + held;
            entry.held = held;
        }
        debug_assert_eq!(self.used, self.accounts.values().map(|entry| entry.held).sum::<u64>());
    }

    fn is_stopped(&self, number: u64) -> bool {
        self.accounts.get(&number).is_some_and(|entry| matches!(entry.state, AccountState::Stopped))
    }

    /// Bytes of stopped instances that are not yet given back.
    fn leaving(&self) -> u64 {
        let stopped = self.accounts.values().filter(|entry| matches!(entry.state, AccountState::Stopped));
        stopped.map(|entry| entry.held).sum()
    }

    /// Marks the largest instance as stopped; a kept instance comes before one that runs. Returns its earlier
    /// state, or None if no instance can be stopped.
    fn stop_largest(&mut self) -> Option<AccountState> {
        let may_go = self
            .accounts
            .values_mut()
            .filter(|entry| matches!(entry.state, AccountState::Running(_) | AccountState::Kept));
        let largest = may_go.max_by_key(|entry| (matches!(entry.state, AccountState::Kept), entry.held))?;
        Some(std::mem::replace(&mut largest.state, AccountState::Stopped))
    }
}

/// One instance's part of the budget. Drop gives it back.
pub(super) struct Account {
    budget: Arc<Budget>,
    /// None if the instance never had more than [`SMALL`] bytes.
    number: Option<u64>,
    held: u64,
    /// The call that is evicted if the instance is stopped.
    call: Option<SlicedCall>,
}

impl Account {
    /// Begins a call in the instance. Returns false if the instance was stopped meanwhile and must not be
    /// used.
    pub(super) fn begin(&mut self, call: SlicedCall) -> bool {
        if let Some(number) = self.number
            && let Some(entry) = self.budget.books.lock().accounts.get_mut(&number)
        {
            if matches!(entry.state, AccountState::Stopped) {
                return false;
            }
            entry.state = AccountState::Running(call.clone());
        }
        self.call = Some(call);
        true
    }

    /// Ends the call. The instance may now be kept.
    pub(super) fn end(&mut self) {
        self.call = None;
        if let Some(number) = self.number
            && let Some(entry) = self.budget.books.lock().accounts.get_mut(&number)
            && matches!(entry.state, AccountState::Running(_))
        {
            entry.state = AccountState::Kept;
        }
    }

    /// Grows the instance to `bytes` in all. Returns false if the instance itself is stopped.
    pub(super) fn grow(&mut self, bytes: u64) -> bool {
        if bytes <= SMALL.max(self.held) {
            return true;
        }
        let budget = self.budget.clone();
        let mut books = budget.books.lock();
        let number = *self.number.get_or_insert_with(|| {
            let state = self.call.clone().map_or(AccountState::Starting, AccountState::Running);
            books.open(0, state)
        });
        // Count the new size first, since it may make this instance the largest.
        books.resize(number, bytes);
        let mut drops_kept = false;
        while !books.is_stopped(number) && books.used - books.leaving() > budget.total {
            match books.stop_largest() {
                Some(AccountState::Running(call)) => call.evict(),
                Some(_) => drops_kept = true,
                None => break,
            }
        }
        let is_refused = books.is_stopped(number);
        if is_refused {
            books.resize(number, self.held);
        } else {
            self.held = bytes;
        }
        drop(books);
        if drops_kept && let Ok(guests) = tokio::runtime::Handle::try_current() {
            // Another task drops them, since this is in the middle of a call of another instance.
            guests.spawn(async move { (budget.drop_kept)() });
        }
        !is_refused
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut books = self.budget.books.lock();
        books.resize(number, 0);
        books.accounts.remove(&number);
        self.budget.start_waiting(books);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::super::number::VersionNumber;
    use super::super::slices::TimeSlices;
    use super::*;

    const MIB: u64 = 1 << 20;

    struct Host {
        budget: Arc<Budget>,
        slices: TimeSlices,
    }

    impl Host {
        fn new(mib: u64) -> Host {
            Host { budget: Budget::new(mib * MIB, || ()), slices: TimeSlices::new(1) }
        }

        /// Starts an instance and begins a call in it.
        fn begun(&self, expected: u64) -> Option<(Account, SlicedCall)> {
            let mut account = self.budget.start(expected).now_or_never()?;
            let call = self.slices.call(VersionNumber::fresh());
            assert!(account.begin(call.clone()));
            Some((account, call))
        }

        fn used(&self) -> u64 {
            self.budget.books.lock().used
        }
    }

    #[test]
    fn small_instances_are_not_counted_and_never_wait() {
        let host = Host::new(1);
        let all: Vec<_> = (0..100).map(|_| host.begun(SMALL).expect("room")).collect();
        assert!(all.into_iter().all(|(mut account, _)| account.grow(SMALL)));
        assert_eq!(host.used(), 0);
    }

    #[test]
    fn the_largest_instance_is_stopped_when_any_grows() {
        let host = Host::new(100);
        let [mut large, mut middle, mut small] = [(); 3].map(|()| host.begun(0).expect("room"));
        assert!(large.0.grow(50 * MIB) && middle.0.grow(30 * MIB) && small.0.grow(20 * MIB));
        assert!(small.0.grow(21 * MIB), "the others make room");
        assert_eq!([&large, &middle, &small].map(|(_, call)| call.is_evicted()), [true, false, false]);
        assert!(!large.0.grow(60 * MIB), "it goes");
        assert!(middle.0.grow(60 * MIB), "in the room that it leaves");
        assert!(!middle.0.grow(90 * MIB), "it is the largest itself");
        assert_eq!([&middle, &small].map(|(_, call)| call.is_evicted()), [true, false]);
        drop((large, middle));
        assert_eq!(host.used(), 21 * MIB);
        drop(small);
        assert_eq!(host.used(), 0);
    }

    #[test]
    fn an_attempt_that_needed_much_waits_before_it_starts() {
        let host = Host::new(100);
        let first = host.begun(60 * MIB).expect("room");
        let mut second = Box::pin(host.budget.start(50 * MIB));
        let mut third = Box::pin(host.budget.start(10 * MIB));
        assert!(
            second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none(),
            "in line, one behind the other"
        );
        assert!(host.begun(SMALL).is_some() && host.budget.is_wanted());
        drop(first);
        let second = second.now_or_never().expect("there is room now");
        drop(third.now_or_never().expect("for both"));
        assert_eq!(host.used(), 50 * MIB);
        // A waiter that gives up gives its memory back. An instance that needs more than the budget runs
        // alone.
        let mut given_up = Box::pin(host.budget.start(60 * MIB));
        assert!(given_up.as_mut().now_or_never().is_none());
        let mut alone = Box::pin(host.budget.start(200 * MIB));
        assert!(alone.as_mut().now_or_never().is_none());
        drop(second);
        drop(given_up);
        assert_eq!(alone.now_or_never().expect("nobody else is there").held, 200 * MIB);
        assert_eq!((host.used(), host.budget.is_wanted()), (0, false));
    }

    #[test]
    fn a_place_in_the_line_that_is_given_up_blocks_nobody() {
        let host = Host::new(100);
        let first = host.begun(60 * MIB).expect("room");
        let mut large = Box::pin(host.budget.start(90 * MIB));
        let mut small = Box::pin(host.budget.start(30 * MIB));
        assert!(large.as_mut().now_or_never().is_none() && small.as_mut().now_or_never().is_none());
        drop(large);
        let small = small.now_or_never().expect("it has room beside the first");
        assert_eq!((host.used(), host.budget.is_wanted()), (90 * MIB, false));
        // Nobody stands behind this one.
        let mut last = Box::pin(host.budget.start(90 * MIB));
        assert!(last.as_mut().now_or_never().is_none() && host.budget.is_wanted());
        drop(last);
        assert!(!host.budget.is_wanted());
        drop((first, small));
        assert_eq!(host.used(), 0);
    }

    #[tokio::test]
    async fn an_instance_that_waits_for_a_task_goes_first() {
        let host = Host::new(100);
        let [mut kept, mut running, mut grows] = [(); 3].map(|()| host.begun(0).expect("room"));
        assert!(kept.0.grow(30 * MIB) && running.0.grow(60 * MIB));
        kept.0.end();
        assert!(grows.0.grow(20 * MIB));
        assert!(!running.1.is_evicted());
        assert!(!kept.0.begin(host.slices.call(VersionNumber::fresh())), "it is not used again");
    }
}
