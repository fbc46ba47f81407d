//! The results of a flow, for the task that runs after its children.
//!
//! In: nothing. Out: one [`ChildResult`] for each child, in the order in which
//! [`outbox::fan_out`](crate::outbox::fan_out) got them.
//!
//! ```
//! use tqhost_handler::{Failure, Json, Task, flow};
//!
//! fn sum(_: Task) -> Result<Json<u64>, Failure> {
//!     let counts = flow::results().iter().map(|child| child.json::<u64>()).collect::<Result<Vec<_>, _>>()?;
//!     Ok(Json(counts.iter().sum()))
//! }
//!
//! // In a native build, a test gives the results.
//! flow::insert("pages", Some(b"20"));
//! flow::insert("pages", Some(b"22"));
//! assert_eq!(sum(Task::sample([("book", "7")])).unwrap(), Json(42));
//! ```

use serde::de::DeserializeOwned;

pub use crate::bindings::tqhost::handler::flow::ChildResult;

use crate::Failure;
#[cfg(target_family = "wasm")]
use crate::bindings::tqhost::handler::flow as host;
#[cfg(not(target_family = "wasm"))]
use crate::memory::flow as host;

/// The results of the children. It is empty for a task that follows no flow.
pub fn results() -> Vec<ChildResult> {
    host::results()
}

/// Each of these rejects the task if the child gave no such result, because no attempt would find another
/// one.
impl ChildResult {
    /// The bytes of the result.
    pub fn bytes(&self) -> Result<&[u8], Failure> {
        self.value.as_deref().ok_or_else(|| self.failure("is missing"))
    }

    /// The result as UTF-8 text.
    pub fn text(&self) -> Result<&str, Failure> {
        str::from_utf8(self.bytes()?).map_err(|_| self.failure("is not UTF-8 text"))
    }

    /// The result as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(self.bytes()?)
            .map_err(|why| self.failure(&format!("is not the JSON expected: {why}")))
    }

    fn failure(&self, why: &str) -> Failure {
        Failure::reject(format_args!("the result of task {} in queue `{}` {why}", self.task_id, self.queue))
    }
}

/// In a native build: adds the result of one more child.
#[cfg(not(target_family = "wasm"))]
pub fn insert(queue: impl Into<String>, value: Option<&[u8]>) {
    crate::memory::with(|memory| {
        let task_id = format!("child-{}", memory.results.len() + 1);
        memory.results.push(ChildResult { task_id, queue: queue.into(), value: value.map(<[u8]>::to_vec) });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_by_type_and_errors_name_the_child() {
        insert("a", Some(b"[1]"));
        insert("b", None);
        let results = results();
        assert_eq!((results[0].text().unwrap(), results[0].json::<Vec<u8>>().unwrap()), ("[1]", vec![1]));
        let Err(Failure::Reject(why)) = results[1].bytes() else { panic!("there is no result") };
        assert_eq!(why, "the result of task child-2 in queue `b` is missing");
        assert!(matches!(results[0].json::<u8>(), Err(Failure::Reject(_))));
    }
}
