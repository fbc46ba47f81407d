//! A steady trickle of tasks into one queue: each worker adds a task, waits until it is completed, and adds
//! the next.
//!
//! In: a stream and how many workers. Out: the completed tasks. A test uses it to see that a queue is not
//! disturbed: a lost or dead task stops the trickle, and the test fails. Not here: load without waiting
//! (`producer`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::{Bench, eventually};

/// A task that was completed.
#[derive(Debug, Clone)]
pub struct Done {
    pub id: String,
    /// `name@digest` of the version that ran it.
    pub plugin: String,
}

/// A running trickle. When it is dropped, it ends without a check.
pub struct Trickle {
    stop: Arc<AtomicBool>,
    done: Arc<Mutex<Vec<Done>>>,
    workers: Vec<JoinHandle<()>>,
}

impl Trickle {
    /// Starts this many workers on the stream of a queue.
    pub fn start(bench: &Bench, stream: &str, workers: usize) -> Trickle {
        Trickle::start_with(bench, stream, workers, "worker")
    }

    /// Like [`Trickle::start`], with tasks that have this field.
    pub fn start_with(bench: &Bench, stream: &str, workers: usize, field: &str) -> Trickle {
        let stop = Arc::new(AtomicBool::new(false));
        let done: Arc<Mutex<Vec<Done>>> = Arc::default();
        let start = |worker| {
            let (mut db, stream, field) = (bench.redis.connection(), stream.to_owned(), field.to_owned());
            let (stop, done) = (stop.clone(), done.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let add: redis::RedisResult<String> =
                        redis::cmd("XADD").arg(&stream).arg("*").arg(&field).arg(worker).query(&mut db);
                    let id = add.expect("XADD");
                    let key = format!("tq:{{{stream}}}:task:{id}");
                    let plugin = eventually(&format!("{id} of {stream} is COMPLETED"), || {
                        let fields = redis::cmd("HMGET").arg(&key).arg(&["status", "plugin"]).query(&mut db);
                        let (status, plugin): (Option<String>, Option<String>) = fields.expect("HMGET");
                        (status? == "COMPLETED").then(|| plugin.unwrap_or_default())
                    });
                    done.lock().expect("the trickle").push(Done { id, plugin });
                }
            })
        };
        let workers = (0..workers).map(start).collect();
        Trickle { stop, done, workers }
    }

    /// How many tasks are completed so far.
    pub fn count(&self) -> usize {
        self.done.lock().expect("the trickle").len()
    }

    /// The tasks that are completed so far, in the order of their ends.
    pub fn done(&self) -> Vec<Done> {
        self.done.lock().expect("the trickle").clone()
    }

    /// Waits until this many more tasks are completed.
    #[track_caller]
    pub fn more(&self, tasks: usize) {
        let before = self.count();
        eventually(&format!("{tasks} more tasks of the trickle"), || {
            assert!(self.workers.iter().all(|worker| !worker.is_finished()), "the trickle has stopped");
            (self.count() >= before + tasks).then_some(())
        });
    }

    /// Stops adding tasks, waits for those that were added, and gives all of them.
    #[track_caller]
    pub fn stop(mut self) -> Vec<Done> {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            worker.join().expect("every task of the trickle is completed");
        }
        self.done()
    }
}

impl Drop for Trickle {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
