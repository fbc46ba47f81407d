//! Analyzes a resume: its contact details and its content, how good it is as a document, and how to make it
//! better. It uses rules, or a model if the plugin's configuration names one.
//!
//! In: a task with the fields `resumeId` and `content` (the resume's text). Out: the [`analysis::Analysis`]
//! as JSON. The task is rejected if `content` is missing, empty, not UTF-8, a file instead of its text, too
//! short or too long, because a retry cannot help. If the text is readable but is not a resume, the task
//! completes with `isResume: false`, the reason, and a low score, because the sender wants to know this.
//!
//! ```text
//! content ─▶ text ─▶ sections ─▶ contact, skills, education, dates ─▶ analysis ─▶ score
//!                                                                        └─▶ model
//! ```
//!
//! A result of the rules says so (`method: "rules"`). With the rules, the same task always gives the same
//! result: work that is still going on is counted up to the time when the task was enqueued.
//!
//! Not here: reading PDF or Word files, and judging the person.

use tqhost_handler::http::Request;
use tqhost_handler::{Failure, FieldError, Json, Task, config, handler, log};

pub mod analysis;
pub mod contact;
pub mod dates;
pub mod education;
pub mod facts;
pub mod model;
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
    let content = task.text("content")?;
    let now = dates::Month::of_epoch_ms(task.enqueued_at_ms);
    let mut analysis =
        analysis::analyze(resume_id, content, now).map_err(|why| FieldError::invalid("content", why))?;
    if let Some(settings) = model::Settings::read(config::get)? {
        let now_ms = model_server::now_ms(&task);
        analysis = model::analyze(&settings, content, analysis, now, now_ms, Request::send)?;
    }
    log::info(format_args!(
        "resume {resume_id}: score {} by {}, {} skills",
        analysis.score,
        analysis.method,
        analysis.skills.len()
    ));
    Ok(Json(analysis))
}

handler!(analyze);
