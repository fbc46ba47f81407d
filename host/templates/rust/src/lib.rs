//! {{NAME}}: counts the words of a text.
//!
//! In: a task with the field `content`. Out: `{"words": n}`.

use serde::Serialize;
use tqhost_handler::{Failure, FieldError, Json, Task, handler, log};

#[derive(Debug, Serialize)]
pub struct Count {
    pub words: usize,
}

pub fn count(task: Task) -> Result<Json<Count>, Failure> {
    let words = task.text("content")?.split_whitespace().count();
    if words == 0 {
        return Err(FieldError::invalid("content", "is empty").into());
    }
    log::info(format_args!("counted {words} words"));
    Ok(Json(Count { words }))
}

handler!(count);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted() {
        let Json(count) = count(Task::sample([("content", "one  two\nthree")])).expect("a count");
        assert_eq!(count.words, 3);
    }
}
