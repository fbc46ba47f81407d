//! Stands in for the host in a native build: configuration, an outbox, values, records, blobs and answers to
//! requests in memory, one set per thread.
//!
//! In: the calls of the interfaces. Out: what the host would answer. Each module here has the functions of
//! the interface of its name, so that the modules of this crate call either.
//!
//! Not here: what a test calls (`testing` and the modules of the interfaces).

use std::cell::RefCell;
use std::collections::BTreeMap;
#[cfg(feature = "http")]
use std::collections::VecDeque;

use crate::bindings::tqhost::handler::flow::ChildResult;
use crate::bindings::tqhost::handler::outbox::NewTask;
use crate::blobs::{Blob, BlobError};
use crate::effects::EffectError;
#[cfg(feature = "http")]
use crate::http::{Error, Request, Response};

/// The most bytes of a key.
const MAX_KEY_BYTES: usize = 512;
/// Counters stay below this.
const COUNTER_BOUND: i64 = 1_000_000_000_000_000_000;

/// A task that a handler has enqueued in a native build.
#[derive(Clone, Debug)]
pub struct Sent {
    pub id: String,
    pub task: NewTask,
    /// The ids of the tasks that must complete first. Empty for a task that no flow holds back.
    pub after: Vec<String>,
    /// The index that was selected in the batch, if one was.
    pub selected: Option<usize>,
}

#[derive(Clone)]
pub(crate) struct Memory {
    pub(crate) config: BTreeMap<String, String>,
    #[cfg(feature = "http")]
    pub(crate) requests: Vec<Request>,
    #[cfg(feature = "http")]
    pub(crate) answers: VecDeque<Result<Response, Error>>,
    pub(crate) sent: Vec<Sent>,
    pub(crate) results: Vec<ChildResult>,
    /// Values with their times to live in milliseconds; 0 is without end.
    pub(crate) state: BTreeMap<String, (Vec<u8>, u64)>,
    pub(crate) records: BTreeMap<String, Kept>,
    pub(crate) blobs: BTreeMap<String, Blob>,
    pub(crate) fence: u64,
    pub(crate) refusal: Option<EffectError>,
    pub(crate) blob_refusal: Option<BlobError>,
    /// The tasks of the last call that found a service down, and how long it asks to wait in milliseconds.
    pub(crate) outages: BTreeMap<u32, Option<u64>>,
    /// The number of tasks of the batch that runs. Unknown if a test calls the handler's function directly.
    tasks: Option<usize>,
    selected: Option<usize>,
}

/// One record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    pub(crate) fields: BTreeMap<String, Vec<u8>>,
    pub(crate) ttl_ms: u64,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory {
            config: BTreeMap::new(),
            #[cfg(feature = "http")]
            requests: Vec::new(),
            #[cfg(feature = "http")]
            answers: VecDeque::new(),
            sent: Vec::new(),
            results: Vec::new(),
            state: BTreeMap::new(),
            records: BTreeMap::new(),
            blobs: BTreeMap::new(),
            fence: 1,
            refusal: None,
            blob_refusal: None,
            outages: BTreeMap::new(),
            tasks: None,
            selected: None,
        }
    }
}

thread_local! {
    static MEMORY: RefCell<Memory> = RefCell::default();
}

pub(crate) fn with<R>(use_it: impl FnOnce(&mut Memory) -> R) -> R {
    MEMORY.with_borrow_mut(use_it)
}

/// Runs one attempt, and drops its effects if it fails.
pub(crate) fn attempt<T, E>(run: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let before = with(|memory| memory.clone());
    run().inspect_err(|_| {
        with(|memory| {
            let Memory { sent, state, records, .. } = before;
            (memory.sent, memory.state, memory.records) = (sent, state, records);
        });
    })
}

/// Runs a call for several tasks. Until one is selected, calls that belong to a task panic.
pub(crate) fn batch<T>(tasks: usize, run: impl FnOnce() -> T) -> T {
    with(|memory| (memory.tasks, memory.selected) = (Some(tasks), (tasks == 1).then_some(0)));
    let results = run();
    with(|memory| (memory.tasks, memory.selected) = (None, None));
    results
}

impl Memory {
    /// The host ends the attempt here as a trap.
    fn check_selected(&self) {
        assert!(
            self.tasks.is_none() || self.selected.is_some(),
            "the call has several tasks: call `delivery::select` first"
        );
    }

    /// Begins a call that may fail.
    fn begin(&mut self) -> Result<(), EffectError> {
        self.check_selected();
        self.refusal.take().map_or(Ok(()), Err)
    }

    fn begin_with(&mut self, key: &str) -> Result<(), EffectError> {
        self.begin()?;
        if (1..=MAX_KEY_BYTES).contains(&key.len()) {
            return Ok(());
        }
        let why = format!("a key has 1 to {MAX_KEY_BYTES} bytes, this one has {}", key.len());
        Err(EffectError::TooLarge(why))
    }

    fn send(&mut self, task: &NewTask, after: Vec<String>) -> String {
        let id = format!("new-{}", self.sent.len() + 1);
        self.sent.push(Sent { id: id.clone(), task: task.clone(), after, selected: self.selected });
        id
    }
}

pub(crate) mod outbox {
    use super::{EffectError, NewTask, with};

    pub(crate) fn enqueue(task: &NewTask) -> Result<String, EffectError> {
        with(|memory| {
            memory.begin()?;
            Ok(memory.send(task, Vec::new()))
        })
    }

    pub(crate) fn fan_out(children: &[NewTask], then: &NewTask) -> Result<String, EffectError> {
        with(|memory| {
            memory.begin()?;
            let children = children.iter().map(|child| memory.send(child, Vec::new())).collect();
            Ok(memory.send(then, children))
        })
    }
}

pub(crate) mod flow {
    use super::{ChildResult, with};

    pub(crate) fn results() -> Vec<ChildResult> {
        with(|memory| {
            memory.check_selected();
            memory.results.clone()
        })
    }
}

pub(crate) mod state {
    use super::{COUNTER_BOUND, EffectError, with};

    pub(crate) fn get(key: &str) -> Result<Option<Vec<u8>>, EffectError> {
        with(|memory| {
            memory.begin_with(key)?;
            Ok(memory.state.get(key).map(|(value, _)| value.clone()))
        })
    }

    pub(crate) fn set(key: &str, value: &[u8], ttl_ms: u64) -> Result<(), EffectError> {
        with(|memory| {
            memory.begin_with(key)?;
            memory.state.insert(key.to_owned(), (value.to_vec(), ttl_ms));
            Ok(())
        })
    }

    pub(crate) fn delete(key: &str) -> Result<(), EffectError> {
        with(|memory| {
            memory.begin_with(key)?;
            memory.state.remove(key);
            Ok(())
        })
    }

    pub(crate) fn increment(key: &str, delta: i64) -> Result<i64, EffectError> {
        with(|memory| {
            memory.begin_with(key)?;
            let (value, ttl) = memory.state.get(key).cloned().unwrap_or_else(|| (b"0".to_vec(), 0));
            let before = str::from_utf8(&value).ok().and_then(|text| text.parse::<i64>().ok());
            let Some(before) = before else {
                let why = format!("the value of `{key}` is not a whole number");
                return Err(EffectError::Unavailable(why));
            };
            let sum =
                before.checked_add(delta).filter(|sum| (1 - COUNTER_BOUND..COUNTER_BOUND).contains(sum));
            let Some(sum) = sum else {
                let why = format!("the counter `{key}` would have more than 18 digits");
                return Err(EffectError::TooLarge(why));
            };
            memory.state.insert(key.to_owned(), (sum.to_string().into_bytes(), ttl));
            Ok(sum)
        })
    }
}

pub(crate) mod records {
    use super::{EffectError, with};
    use crate::Field;

    pub(crate) fn put(key: &str, fields: &[Field]) -> Result<(), EffectError> {
        with(|memory| {
            memory.begin_with(key)?;
            if !fields.is_empty() {
                let fields = fields.iter().map(|field| (field.name.clone(), field.value.clone()));
                memory.records.entry(key.to_owned()).or_default().fields.extend(fields);
            }
            Ok(())
        })
    }

    pub(crate) fn get(key: &str) -> Result<Option<Vec<Field>>, EffectError> {
        with(|memory| {
            memory.begin_with(key)?;
            let field =
                |(name, value): (&String, &Vec<u8>)| Field { name: name.clone(), value: value.clone() };
            Ok(memory.records.get(key).map(|kept| kept.fields.iter().map(field).collect()))
        })
    }

    pub(crate) fn delete(key: &str) -> Result<(), EffectError> {
        with(|memory| {
            memory.begin_with(key)?;
            memory.records.remove(key);
            Ok(())
        })
    }

    pub(crate) fn expire(key: &str, ttl_ms: u64) -> Result<(), EffectError> {
        with(|memory| {
            memory.begin_with(key)?;
            // Redis ignores this for a key that does not exist.
            if let Some(kept) = memory.records.get_mut(key) {
                kept.ttl_ms = ttl_ms;
            }
            Ok(())
        })
    }
}

pub(crate) mod blobs {
    use super::{Memory, with};
    use crate::bindings::tqhost::handler::blobs::Error;
    use crate::blobs::{Blob, BlobError};

    pub(crate) fn put(name: &str, content_type: &str, data: &[u8]) -> Result<String, Error> {
        with(|memory| {
            begin(memory, name)?;
            let content_type = match content_type {
                "" => "application/octet-stream",
                kind if kind.contains('/') => kind,
                _ => return Err(Error::InvalidName("the content type is not one like \"text/csv\"".into())),
            };
            let blob = Blob { content_type: content_type.to_owned(), data: data.to_vec() };
            memory.blobs.insert(name.to_owned(), blob);
            Ok(format!("memory:///{name}"))
        })
    }

    pub(crate) fn get(name: &str) -> Result<Vec<u8>, Error> {
        with(|memory| {
            begin(memory, name)?;
            let found = memory.blobs.get(name).map(|blob| blob.data.clone());
            found.ok_or_else(|| Error::NotFound(format!("there is no blob `{name}`")))
        })
    }

    fn begin(memory: &mut Memory, name: &str) -> Result<(), Error> {
        if let Some(refusal) = memory.blob_refusal.take() {
            return Err(match refusal {
                BlobError::InvalidName(why) => Error::InvalidName(why),
                BlobError::NotFound(why) => Error::NotFound(why),
                BlobError::TooLarge(why) => Error::TooLarge(why),
                BlobError::Unavailable(why) => Error::Unavailable(why),
            });
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+=@:,".contains(&byte);
        let is_part = |part: &str| {
            (1..=200).contains(&part.len()) && part.bytes().all(is_plain) && !matches!(part, "." | "..")
        };
        if name.len() <= 512 && name.split('/').all(is_part) {
            return Ok(());
        }
        Err(Error::InvalidName(format!("\"{}\" is not the name of a blob", name.escape_debug())))
    }
}

pub(crate) mod delivery {
    use super::with;

    pub(crate) fn fence() -> u64 {
        with(|memory| {
            memory.check_selected();
            memory.fence
        })
    }

    pub(crate) fn select(index: u32) {
        with(|memory| {
            let index = index as usize;
            if let Some(tasks) = memory.tasks {
                assert!(
                    index < tasks,
                    "`select({index})`: the call has {tasks} tasks, and the first one is 0"
                );
            }
            memory.selected = Some(index);
        });
    }
}

pub(crate) mod outage {
    use super::with;

    pub(crate) fn unavailable(index: u32, after_ms: Option<u64>) {
        with(|memory| memory.outages.insert(index, after_ms));
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::time::Duration;

    use crate::outbox::NewTask;
    use crate::{EffectError, Failure, Task, delivery, outbox, records, run, run_batch, state, testing};

    #[test]
    fn a_failed_attempt_leaves_nothing() {
        let work = |task: Task| -> Result<(), Failure> {
            outbox::enqueue(NewTask::new("q"))?;
            state::set("a", "new")?;
            records::delete("kb:1")?;
            task.text("content").map(drop).map_err(Failure::from)
        };
        state::insert("a", "old");
        records::insert("kb:1", [("a", "1")]);
        assert!(run(Task::sample([("other", "")]), work).is_err());
        assert_eq!((outbox::sent().len(), &*state::all()["a"], records::all().len()), (0, &b"old"[..], 1));
        run(Task::sample([("content", "")]), work).unwrap();
        assert_eq!((outbox::sent().len(), &*state::all()["a"], records::all().len()), (1, &b"new"[..], 0));
    }

    #[test]
    fn keys_and_counters_have_the_limits_of_the_host() {
        assert!(matches!(state::get(""), Err(EffectError::TooLarge(_))));
        assert!(matches!(records::get(&"k".repeat(513)), Err(EffectError::TooLarge(_))));
        state::insert("n", "999999999999999998");
        assert_eq!(state::increment("n", 1), Ok(999_999_999_999_999_999));
        assert!(matches!(state::increment("n", 1), Err(EffectError::TooLarge(_))));
        state::insert("n", "many");
        assert!(matches!(state::increment("n", 1), Err(EffectError::Unavailable(_))));
    }

    #[test]
    fn a_refusal_is_for_one_call() {
        testing::refuse(EffectError::NotPermitted("not `q`".into()));
        let enqueue = |_: Task| -> Result<(), Failure> {
            outbox::enqueue(NewTask::new("q"))?;
            Ok(())
        };
        let task = || Task::sample([("a", "")]);
        assert!(matches!(run(task(), enqueue), Err(Failure::Reject(why)) if why == "not `q`"));
        assert!(run(task(), enqueue).is_ok());
    }

    #[test]
    fn an_outage_is_reported_for_the_task_that_ends_with_it() {
        let task = || Task::sample([("a", "")]);
        let down = || Failure::unavailable("it is down").after(Duration::from_secs(2));
        assert!(run(task(), |_| Err::<(), _>(down())).is_err());
        assert_eq!(testing::outages(), [(0, Some(Duration::from_secs(2)))]);
        let other = |_| {
            let _ = down();
            Err::<(), _>(Failure::retry("something else"))
        };
        assert!(run(task(), other).is_err());
        assert_eq!(testing::outages(), []);
        let some = |tasks: Vec<Task>| {
            let each = |index| if index == 1 { Err(Failure::unavailable("down")) } else { Ok(()) };
            (0..tasks.len()).map(each).collect::<Vec<_>>()
        };
        run_batch(vec![task(); 3], some);
        assert_eq!(testing::outages(), [(1, None)]);
    }

    #[test]
    fn a_batch_selects_the_task_that_a_call_belongs_to() {
        let tasks = |count| vec![Task::sample([("a", "")]); count];
        let send = |index: Option<usize>| {
            move |tasks: Vec<Task>| {
                if let Some(index) = index {
                    delivery::select(index);
                }
                tasks.iter().map(|_| Ok(outbox::enqueue(NewTask::new("q"))?)).collect::<Vec<_>>()
            }
        };
        run_batch(tasks(2), send(Some(1)));
        assert_eq!(outbox::sent()[0].selected, Some(1));
        assert!(run_batch(tasks(1), send(None))[0].is_ok(), "one task needs no select");
        assert!(catch_unwind(|| run_batch(tasks(2), send(None))).is_err());
        assert!(catch_unwind(|| run_batch(tasks(2), send(Some(2)))).is_err());
    }
}
