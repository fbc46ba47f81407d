//! Evaluates the answers of an interview, once per session.
//!
//! In: a task with the field `sessionId`, and optionally `answers` (a JSON list of [`Answer`]s). Without
//! `answers`, they come from `source_url` of the plugin's configuration. Out: an [`Evaluation`] as JSON, by
//! rules, or by a model if the configuration names one.
//!
//! ```text
//! sessionId ─▶ state: evaluated before? ─▶ answers ─▶ rules or model ─▶ result and state, in one commit
//! ```
//!
//! A session that was evaluated before gets the same evaluation again, and no model is asked. So a producer
//! that sends a session twice pays once.
//!
//! Not here: the rules (`rules`), and the model (`model`).

use std::time::Duration;

use model_server::setting;
use serde::{Deserialize, Serialize};
use tqhost_handler::http::{Error, Request, Response};
use tqhost_handler::{Failure, FieldError, Json, Task, config, handler, log, state};

pub mod model;
pub mod rules;

/// How long an evaluation is kept for a session that comes again.
const KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);
const MAX_SESSION: usize = 200;
const MAX_ANSWERS: usize = 100;
/// The most bytes of all questions and answers together.
const MAX_BYTES: usize = 256 * 1024;
const MAX_RESPONSE: usize = 1024 * 1024;

/// One question with its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub question: String,
    #[serde(default)]
    pub answer: String,
    /// Words that a good answer has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expected: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Evaluation {
    pub session_id: String,
    /// `rules`, or `model:` and the model's name.
    pub method: String,
    /// The mean of the answers' scores, from 0 to 100.
    pub score: u32,
    pub answers: Vec<Judged>,
    /// In the model's words. Empty with the rules.
    pub summary: String,
    /// Whether this is the evaluation of an earlier task.
    #[serde(default)]
    pub repeated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    pub question: String,
    pub score: u32,
    pub feedback: String,
}

pub fn evaluate(task: Task) -> Result<Json<Evaluation>, Failure> {
    evaluate_with(&task, config::get, Request::send).map(Json)
}

/// Runs one task. `get` reads the configuration, and `send` makes requests.
pub fn evaluate_with(
    task: &Task,
    get: impl Fn(&str) -> Result<Option<String>, Failure>,
    mut send: impl FnMut(&Request) -> Result<Response, Error>,
) -> Result<Evaluation, Failure> {
    let session = task.text("sessionId")?.trim();
    if !(1..=MAX_SESSION).contains(&session.len()) {
        return Err(FieldError::invalid("sessionId", "must have 1 to 200 bytes").into());
    }
    let settings = model::Settings::read(&get)?;
    let key = format!("session:{session}");
    let is_forced = task.text_opt("force")? == Some("true");
    if let Some(before) = state::get_json::<Evaluation>(&key)?.filter(|_| !is_forced) {
        log::info("the session was evaluated before");
        return Ok(Evaluation { repeated: true, ..before });
    }
    let now_ms = model_server::now_ms(task);
    let answers: Vec<Answer> = match (task.has("answers"), setting(&get, "source_url")?) {
        (true, _) => task.json("answers")?,
        (false, Some(url)) => fetched(&url, session, now_ms, &mut send)?,
        (false, None) => {
            let why = "is missing, and the plugin's configuration has no `source_url`";
            return Err(FieldError::invalid("answers", why).into());
        }
    };
    check(&answers)?;
    let (method, judged, summary) = match &settings {
        None => (rules::METHOD.to_owned(), answers.iter().map(rules::judge).collect(), String::new()),
        Some(settings) => {
            let (judged, summary) = model::judge(settings, &answers, now_ms, &mut send)?;
            (settings.label(), judged, summary)
        }
    };
    let sum: u32 = judged.iter().map(|judged: &Judged| judged.score).sum();
    let count = u32::try_from(judged.len()).unwrap_or(u32::MAX).max(1);
    let score = (sum + count / 2) / count;
    let session_id = session.to_owned();
    let evaluation = Evaluation { session_id, method, score, answers: judged, summary, repeated: false };
    state::set_for(&key, serde_json::to_vec(&evaluation).unwrap_or_default(), KEPT)?;
    log::info(format_args!("{} answers by {}: score {score}", evaluation.answers.len(), evaluation.method));
    Ok(evaluation)
}

/// The answers of a session, from the application's own server.
fn fetched(
    url: &str,
    session: &str,
    now_ms: u64,
    send: &mut impl FnMut(&Request) -> Result<Response, Error>,
) -> Result<Vec<Answer>, Failure> {
    let url = url.replace("{sessionId}", &encoded(session));
    let request = Request::get(url).header("accept", "application/json").max_response(MAX_RESPONSE);
    let response = send(&request).map_err(unsent)?;
    let says = |what: &str| format!("the source of the answers {what} ({})", response.status);
    match response.status {
        200 => serde_json::from_slice(&response.body)
            .map_err(|_| Failure::reject(says("sends no JSON list of answers"))),
        // The session was deleted, and no attempt brings it back.
        404 | 410 => Err(Failure::reject(says("has no such session"))),
        408 | 425 | 429 | 500.. => {
            let failure = match response.status {
                429 | 502..=504 | 529 => Failure::unavailable(says("is not available")),
                _ => Failure::retry(says("failed")),
            };
            Err(response.retry_after(now_ms).into_iter().fold(failure, Failure::after))
        }
        // The operator corrects the address and the grant. Any task would have met these.
        401 | 403 => Err(Failure::unavailable(says("refuses the request"))),
        300..=399 | 405 => Err(Failure::unavailable(format_args!(
            "{}: look at `source_url` of the plugin's configuration",
            says("does not take the request")
        ))),
        _ => Err(Failure::reject(says("does not take the request"))),
    }
}

/// The failure if the source gives no response. A wrong address or a missing grant hits every task, as a
/// source that is down does.
fn unsent(error: Error) -> Failure {
    match error {
        Error::Invalid(why) | Error::Denied(why) => Failure::unavailable(why),
        other => other.into(),
    }
}

/// An id as a part of a url's path.
fn encoded(id: &str) -> String {
    id.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-_~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
        encoded
    })
}

fn check(answers: &[Answer]) -> Result<(), Failure> {
    let wrong = |why: String| Err(FieldError::invalid("answers", why).into());
    if !(1..=MAX_ANSWERS).contains(&answers.len()) {
        return wrong(format!("has {} answers, an interview has 1 to {MAX_ANSWERS}", answers.len()));
    }
    match answers.iter().map(|answer| answer.question.len() + answer.answer.len()).sum::<usize>() {
        bytes if bytes > MAX_BYTES => wrong(format!("has {bytes} bytes, more than {MAX_BYTES}")),
        _ => Ok(()),
    }
}

handler!(evaluate);
