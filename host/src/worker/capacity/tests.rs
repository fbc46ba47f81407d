//! Tests of the permits of one host.

use futures_util::FutureExt as _;

use super::*;

/// Takes the permits that are free now, without waiting.
fn now(queue: &Arc<QueueCapacity>, most: usize) -> Option<Permits> {
    queue.acquire(most).now_or_never()
}

fn count(permits: &Option<Permits>) -> usize {
    permits.as_ref().map_or(0, Permits::count)
}

#[test]
fn all_queues_together_have_what_the_host_has() {
    let capacity = Capacity::new(Some(4));
    let (a, b) = (capacity.queue(3, 1), capacity.queue(3, 1));
    let held = now(&a, 10);
    let other = now(&b, 10);
    assert_eq!((count(&held), count(&other), count(&now(&a, 10))), (3, 1, 0));
    drop(held);
    assert_eq!(count(&now(&b, 10)), 2, "its own concurrency bounds it");
}

#[test]
fn permits_above_a_lowered_bound_are_not_granted_again() {
    let capacity = Capacity::new(None);
    let queue = capacity.queue(3, 1);
    let mut held = now(&queue, 3);
    queue.resize(1, 1);
    drop(held.as_mut().and_then(Permits::split_one));
    assert_eq!(count(&now(&queue, 3)), 0);
    drop(held);
    assert_eq!(count(&now(&queue, 3)), 1);
    queue.resize(10, 1);
    capacity.resize(Some(4));
    let held = now(&queue, 10);
    assert_eq!(count(&held), 4);
    capacity.resize(Some(6));
    assert_eq!(count(&now(&queue, 10)), 2);
    capacity.resize(None);
    assert_eq!(count(&now(&queue, 10)), 6);
}

#[test]
fn a_lower_concurrency_stands_beside_that_of_the_configuration() {
    let queue = Capacity::new(None).queue(4, 1);
    let held = now(&queue, 3);
    queue.lower(Some(2));
    assert!(now(&queue, 4).is_none() && !queue.has_room(), "what runs goes on");
    drop(held);
    assert_eq!(count(&now(&queue, 4)), 2);
    queue.resize(1, 1);
    assert_eq!(count(&now(&queue, 4)), 1, "the lower one of both");
    queue.resize(10, 1);
    assert_eq!(count(&now(&queue, 10)), 2);
    queue.lower(None);
    assert_eq!(count(&now(&queue, 10)), 10);
}

#[tokio::test]
async fn a_permit_that_comes_free_wakes_who_waits() {
    let queue = Capacity::new(Some(1)).queue(1, 1);
    let held = queue.acquire(1).await;
    let mut waiting = std::pin::pin!(queue.acquire(1));
    assert!(waiting.as_mut().now_or_never().is_none());
    drop(held);
    assert_eq!(waiting.await.count(), 1);
}

#[tokio::test]
async fn a_waiter_that_gives_up_leaves_nothing_behind() {
    let capacity = Capacity::new(Some(1));
    let (a, b) = (capacity.queue(1, 1), capacity.queue(1, 1));
    let held = a.acquire(1).await;
    {
        let mut waiting = std::pin::pin!(b.acquire(1));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(held);
        // Granted to it by now.
        assert_eq!(count(&now(&a, 1)), 0);
    }
    assert_eq!(count(&now(&a, 1)), 1);
}

#[tokio::test]
async fn a_queue_that_is_gone_takes_nothing_along() {
    let capacity = Capacity::new(Some(1));
    let (a, b) = (capacity.queue(1, 1), capacity.queue(1, 1));
    b.wants_more(true);
    assert_eq!(count(&now(&a, 1)), 0);
    drop(b);
    assert_eq!(count(&now(&a, 1)), 1);
}

/// Starts of each queue while all of them want all they can get, and `rounds` attempts end in random
/// order.
fn shares(priorities: &[u32], limit: u32, rounds: usize) -> Vec<usize> {
    let capacity = Capacity::new(Some(limit));
    let queues: Vec<_> = priorities.iter().map(|priority| capacity.queue(limit, *priority)).collect();
    queues.iter().for_each(|queue| queue.wants_more(true));
    let mut running: Vec<(usize, Permits)> = Vec::new();
    let mut starts = vec![0; queues.len()];
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..rounds {
        for (n, queue) in queues.iter().enumerate() {
            while let Some(permits) = queue.take(1) {
                running.push((n, permits));
                starts[n] += 1;
            }
        }
        running.swap_remove(random.usize(..running.len()));
    }
    starts
}

#[test]
fn starts_go_by_priority() {
    for (priorities, limit) in
        [(vec![2, 1], 1), (vec![2, 1], 10), (vec![5, 3, 1], 3), (vec![1, 1, 1], 7), (vec![1000, 1], 10)]
    {
        let rounds = 20_000;
        let starts = shares(&priorities, limit, rounds);
        let (all, weight): (usize, u32) = (starts.iter().sum(), priorities.iter().sum());
        for (start, priority) in starts.iter().zip(&priorities) {
            let due = all as f64 * f64::from(*priority) / f64::from(weight);
            assert!(
                (*start as f64 - due).abs() <= f64::from(limit) + 2.0,
                "{priorities:?} {limit}: {starts:?}"
            );
        }
    }
}

#[test]
fn a_line_that_is_closed_keeps_nothing_from_the_others() {
    let capacity = Capacity::new(Some(2));
    let (a, b) = (capacity.queue(2, 1), capacity.queue(2, 1));
    let mut held = now(&a, 2);
    a.wants_more(true);
    drop(held.as_mut().and_then(Permits::split_one));
    assert_eq!(count(&now(&b, 2)), 0, "its place is kept");
    a.close();
    assert_eq!(count(&now(&b, 2)), 1);
    drop(held);
    assert_eq!(count(&now(&b, 2)), 2);
}

#[test]
fn large_tasks_leave_room_for_small_ones() {
    let capacity = Capacity::new(None).with_bytes(1 << 20);
    let (large, small) = (capacity.queue(9, 1), capacity.queue(9, 1));
    let held: Vec<_> = (0..4).map(|_| (now(&large, 1), large.take_bytes(300 << 10))).collect();
    assert!(held.iter().all(|(permit, bytes)| count(permit) == 1 && bytes.is_some()));
    assert_eq!((large.has_room(), small.has_room()), (false, true));
    assert_eq!((count(&now(&large, 1)), count(&now(&small, 9))), (0, 9));
    assert!(small.take_bytes(LARGE - 1).is_none());
    let mut waiting = std::pin::pin!(large.acquire(9));
    assert!(waiting.as_mut().now_or_never().is_none());
    drop(held.into_iter().next());
    assert_eq!(waiting.now_or_never().map(|permits| permits.count()), Some(9));
}

#[test]
fn idleness_saves_nothing_up() {
    let capacity = Capacity::new(Some(1));
    let (a, b) = (capacity.queue(1, 1), capacity.queue(1, 1));
    for _ in 0..1000 {
        assert_eq!(count(&now(&a, 1)), 1);
    }
    a.wants_more(true);
    b.wants_more(true);
    let mut starts = [0, 0];
    for _ in 0..100 {
        for (n, queue) in [&a, &b].into_iter().enumerate() {
            starts[n] += count(&queue.take(1));
        }
    }
    assert!(starts[0].abs_diff(starts[1]) <= 2, "{starts:?}");
}

#[test]
fn permits_that_were_not_used_are_no_starts() {
    let capacity = Capacity::new(Some(1));
    let (a, b) = (capacity.queue(1, 1), capacity.queue(1, 1));
    b.wants_more(true);
    let held = b.take(1);
    for _ in 0..10 {
        // Looks into an empty queue.
        a.wants_more(true);
        a.wants_more(false);
    }
    drop(held);
    now(&a, 1).into_iter().for_each(Permits::unused);
    let shares = &capacity.pool.lock().shares;
    assert!(shares[&0].due <= shares[&1].due);
}
