//! Bounds the ended attempts that wait to be settled.
//!
//! In: the end of an attempt. Out: an [`EndedAttempt`] for the settler. [`Room`] bounds how many there are,
//! and how many bytes they hold.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::inflight::Ownership;
use crate::queue::Ending;
use crate::task::SettledAs;

/// An ended attempt takes a unit of room, and another one for each of these bytes.
const BYTES_PER_UNIT: usize = 64 << 10;
/// The least and the most units of a queue's room. Between these, a queue has four units for each permit.
const LEAST_UNITS: usize = 256;
const MOST_UNITS: usize = 4096;

/// The end of one attempt, on its way to Redis.
#[derive(Debug)]
pub(crate) struct EndedAttempt {
    pub ending: Ending,
    pub label: SettledAs,
    /// Dropped when the settlement is known.
    pub owned: Ownership,
    /// When Redis first refused to settle it.
    pub refused_since: Option<Instant>,
    _room: OwnedSemaphorePermit,
}

/// The bound of the attempts that wait to be settled, in tasks and in bytes.
///
/// An attempt that ends while there is no room keeps its permit until there is.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    units: Arc<Semaphore>,
    most: usize,
}

impl Room {
    /// Room for a queue with this concurrency.
    pub(crate) fn new(concurrency: usize) -> Room {
        let most = concurrency.saturating_mul(4).clamp(LEAST_UNITS, MOST_UNITS);
        Room { units: Arc::new(Semaphore::new(most)), most }
    }

    /// Waits until there is room for this ended attempt, and then frees its permit. `None`: never, since the
    /// semaphore is not closed.
    pub(crate) async fn ended(
        &self,
        ending: Ending,
        label: SettledAs,
        mut owned: Ownership,
    ) -> Option<EndedAttempt> {
        // An ended attempt that is larger than the whole room takes all of it.
        let units = (1 + ending.bytes() / BYTES_PER_UNIT).min(self.most);
        let _room =
            self.units.clone().acquire_many_owned(u32::try_from(units).unwrap_or(u32::MAX)).await.ok()?;
        owned.has_run();
        Some(EndedAttempt { ending, label, owned, refused_since: None, _room })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::super::capacity::Capacity;
    use super::super::inflight::Inflight;
    use super::super::inflight::tests::own;
    use super::*;
    use crate::queue::codec::StreamEntry;
    use crate::queue::{EndingSubject, Settlement};

    fn ending(bytes: usize) -> Ending {
        let entry = StreamEntry { id: "1-0".into(), fields: Vec::new(), deliveries: 1 };
        let settlement = Settlement::Complete { result: Some(vec![0; bytes]), effects: None };
        Ending::new(EndingSubject::Malformed(entry), settlement, "plugin".into(), None, false, None)
    }

    #[tokio::test]
    async fn an_end_that_finds_no_room_keeps_its_permit_until_there_is_some() {
        let (room, table, capacity) =
            (Room::new(1), Arc::new(Inflight::default()), Capacity::new(None).queue(3, 1));
        let [large, small, larger] =
            ["1-0", "2-0", "3-0"].map(|entry| own(&table, &capacity, entry).expect("a new entry"));
        // All units but two.
        let first = room
            .ended(ending((LEAST_UNITS - 3) * BYTES_PER_UNIT), SettledAs::Completed, large)
            .await
            .expect("there is room");
        let second = room.ended(ending(0), SettledAs::Completed, small).await.expect("there is room");
        assert_eq!(capacity.taken(), 1, "what has run has no permit any more, although it is not settled");
        let mut third = std::pin::pin!(room.ended(ending(usize::pow(2, 24)), SettledAs::Completed, larger));
        assert!(third.as_mut().now_or_never().is_none());
        drop(second);
        assert!(third.as_mut().now_or_never().is_none());
        assert_eq!(capacity.taken(), 1);
        drop(first);
        let third = third.await.expect("there is room");
        assert_eq!((capacity.taken(), table.len()), (0, 1));
        drop(third);
        assert_eq!(table.len(), 0);
    }
}
