//! A producer that notes when each of its tasks was acknowledged.
//!
//! In: how a task is sent, and the pace. Out: the tasks that were acknowledged. A task whose acknowledgement
//! was lost is not among them, and is not sent again. Not here: where the tasks go (the tests).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A task that a server has acknowledged.
#[derive(Debug)]
pub struct Accepted {
    pub n: usize,
    pub at: Instant,
}

impl Accepted {
    /// The task was acknowledged in one of these times.
    pub fn is_within(&self, times: &[(Instant, Instant)]) -> bool {
        times.iter().any(|(from, to)| (*from..*to).contains(&self.at))
    }
}

pub struct Load {
    stop: Arc<AtomicBool>,
    accepted: Arc<Mutex<Vec<Accepted>>>,
    thread: JoinHandle<()>,
}

impl Load {
    /// Calls `send` for the numbers from 0 on, one each `pace`. It says whether the task was acknowledged.
    pub fn start(pace: Duration, mut send: impl FnMut(usize) -> bool + Send + 'static) -> Load {
        let (stop, accepted): (Arc<AtomicBool>, Arc<Mutex<Vec<Accepted>>>) = Default::default();
        let (stopped, noted) = (stop.clone(), accepted.clone());
        let thread = std::thread::spawn(move || {
            for n in 0.. {
                if stopped.load(Ordering::Acquire) {
                    break;
                }
                if send(n) {
                    noted.lock().expect("the tasks").push(Accepted { n, at: Instant::now() });
                }
                // This is the producer's pace; no test waits for it.
                std::thread::sleep(pace);
            }
        });
        Load { stop, accepted, thread }
    }

    /// How many tasks are acknowledged so far.
    pub fn count(&self) -> usize {
        self.accepted.lock().expect("the tasks").len()
    }

    pub fn stop(self) -> Vec<Accepted> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().expect("the producer");
        std::mem::take(&mut *self.accepted.lock().expect("the tasks"))
    }
}
