//! A producer that keeps adding tasks while hosts and Redis fail.
//!
//! In: fields for every task. Out: the ids of the tasks that Redis accepted. Not here: whether they end (the
//! tests).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{eventually, slow};

/// Adds tasks to the stream `work`, one every 2 ms or in the slow mode 20 ms, until it is stopped. It
/// reconnects while Redis is away.
pub struct Producer {
    stop: Arc<AtomicBool>,
    ids: Arc<Mutex<Vec<String>>>,
    thread: std::thread::JoinHandle<()>,
}

impl Producer {
    /// Every task has `fields`, and its number as the field `n`.
    pub fn start(url: &str, fields: &'static [(&'static str, &'static str)]) -> Producer {
        let client = redis::Client::open(url).expect("a valid URL");
        let stop = Arc::new(AtomicBool::new(false));
        let ids = Arc::new(Mutex::new(Vec::new()));
        let (stopped, accepted) = (stop.clone(), ids.clone());
        let thread = std::thread::spawn(move || {
            let mut connection = None;
            let mut n = 0u64;
            while !stopped.load(Ordering::Acquire) {
                if connection.is_none() {
                    connection = client.get_connection_with_timeout(Duration::from_secs(1)).ok();
                }
                // Each XADD has an id of its own, so that one whose reply was lost is not taken for the next.
                let id = format!("task-{n}");
                let added = connection.as_mut().map(|connection| {
                    let mut add = redis::cmd("XADD");
                    add.arg("work").arg("*").arg("tq-id").arg(&id).arg("n").arg(n).arg(fields);
                    add.query::<String>(connection)
                });
                match added {
                    Some(Ok(_)) => accepted.lock().expect("the ids").push(id),
                    Some(Err(_)) => connection = None,
                    None => {}
                }
                n += 1;
                // This is the producer's pace; no test waits for it.
                std::thread::sleep(slow::pace());
            }
        });
        Producer { stop, ids, thread }
    }

    /// The tasks accepted so far.
    pub fn accepted(&self) -> Vec<String> {
        self.ids.lock().expect("the ids").clone()
    }

    fn count(&self) -> usize {
        self.ids.lock().expect("the ids").len()
    }

    /// Waits until this many more tasks are accepted.
    #[track_caller]
    pub fn produce(&self, more: usize) {
        let before = self.count();
        eventually("the producer goes on", || (self.count() >= before + more).then_some(()));
    }

    /// Stops the producer, and gives every task that was accepted.
    pub fn stop(self) -> Vec<String> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().expect("the producer");
        Arc::try_unwrap(self.ids).expect("the producer has ended").into_inner().expect("the ids")
    }
}
