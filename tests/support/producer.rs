//! A producer that goes on while things break.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::eventually;

/// Adds tasks to the stream `work` as fast as Redis takes them, until told to stop. Tries again while Redis is away.
pub struct Producer {
    stop: Arc<AtomicBool>,
    ids: Arc<Mutex<Vec<String>>>,
    thread: std::thread::JoinHandle<()>,
}

impl Producer {
    /// `fields` are those of every task, beside its number `n`.
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
                // A name of the task's own, so that an XADD whose reply was lost is not counted twice.
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
                // The pace of a producer; nothing waits for it.
                std::thread::sleep(Duration::from_millis(2));
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

    /// Waits until this many more tasks were accepted.
    #[track_caller]
    pub fn produce(&self, more: usize) {
        let before = self.count();
        eventually("the producer goes on", || (self.count() >= before + more).then_some(()));
    }

    /// Ends it, and gives every task that was accepted.
    pub fn stop(self) -> Vec<String> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().expect("the producer");
        Arc::try_unwrap(self.ids).expect("the producer has ended").into_inner().expect("the ids")
    }
}
