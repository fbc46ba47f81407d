//! Analyzes a resume by rules: who it is of, what it shows, how good it is as a document, and what would make it better.
//!
//! In: a task with the fields `resumeId` and `content` (the resume's text). Out: the [`analysis::Analysis`] as JSON. `content` that is missing,
//! empty, not UTF-8, a file instead of its text, too short or too long is rejected: no attempt reads it better. A text that can be read and is
//! no resume completes, with `isResume: false`, why, and a low score: whoever sent it wants to know that.
//!
//! ```text
//! content ─▶ text ─▶ sections ─▶ contact, skills, education, dates ─▶ analysis ─▶ score
//! ```
//!
//! It knows what its rules know and says so (`method: "rules"`). The same task gives the same result whenever it is run: what is still going on is
//! counted up to the time when the task was enqueued.
//!
//! Not here: reading PDF or Word files, and judging the person.

use tqhost_handler::{Failure, FieldError, Json, Task, handler, log};

pub mod analysis;
pub mod contact;
pub mod dates;
pub mod education;
pub mod score;
pub mod sections;
mod skill_list;
pub mod skills;
pub mod text;

pub fn analyze(task: Task) -> Result<Json<analysis::Analysis>, Failure> {
    let resume_id = task.text("resumeId")?;
    if resume_id.trim().is_empty() {
        return Err(FieldError::invalid("resumeId", "is empty").into());
    }
    let now = dates::Month::of_epoch_ms(task.enqueued_at_ms);
    let analysis = analysis::analyze(resume_id, task.text("content")?, now).map_err(|why| FieldError::invalid("content", why))?;
    log::info(format_args!("resume {resume_id}: score {}, {} skills", analysis.score, analysis.skills.len()));
    Ok(Json(analysis))
}

handler!(analyze);
