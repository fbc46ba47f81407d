//! Sends each task to the team's own application with one POST, and takes the answer as the outcome.
//!
//! In: any task. Out: the body of a 2xx answer as the result, or a failure that says what became of the
//! request.
//!
//! ```text
//! task ─▶ body ─▶ signature ─▶ POST ─▶ answer ─▶ completed, rejected, deferred, or retried
//! ```
//!
//! The application may get the same task more than once: after a retry, and after a lost answer. The headers
//! `webhook-id` and `idempotency-key` are the same each time, and `tqhost-fence` grows.
//!
//! Not here: the configuration (`settings`), what a status means (`answer`), answers that are compressed
//! (`decode`).

use model_server::now_ms;
use tqhost_handler::http::{self, Error, Request, Response, time_left};
use tqhost_handler::{Failure, Task, config, delivery, handler};

pub mod answer;
pub mod body;
pub mod decode;
pub mod settings;
pub mod signature;

use settings::Settings;

/// The value of the header `user-agent`.
const AGENT: &str = "tqhost-http-call/1";

pub fn call(task: Task) -> Result<Option<Vec<u8>>, Failure> {
    call_with(&task, config::get, Request::send)
}

/// Runs one task. `get` reads the configuration, and `send` makes the request.
pub fn call_with(
    task: &Task,
    get: impl Fn(&str) -> Result<Option<String>, Failure>,
    send: impl FnOnce(&Request) -> Result<Response, Error>,
) -> Result<Option<Vec<u8>>, Failure> {
    let settings = Settings::read(&get)?;
    let left = time_left();
    if left < model_server::LEAST_TIME {
        return Err(Failure::retry("no time is left to call the application"));
    }
    let now_ms = now_ms(task);
    let fence = delivery::fence();
    let body = body::of(task, fence, &settings.body)?;
    let id = signature::header_id(&task.id);
    let seconds = now_ms / 1000;
    let signatures = signature::of(&settings.keys, &id, seconds, &body);
    // Ids are unique within a queue only, and the name of a queue has no colon.
    let idempotency_key = format!("{}:{id}", task.queue);
    // The host adds `traceparent`, as it does for each request of a handler.
    let request = Request::post(settings.url(&task.queue), body)
        .header("content-type", settings.content_type.as_str())
        // Each coding would be taken off again (`decode`). Nobody gains by it on the way to an application.
        .header("accept-encoding", "identity")
        .header("user-agent", AGENT)
        .header("webhook-id", id)
        .header("webhook-timestamp", seconds.to_string())
        .header("webhook-signature", signatures)
        .header("idempotency-key", idempotency_key)
        .header("tqhost-queue", task.queue.as_str())
        .header("tqhost-attempt", task.attempt.to_string())
        .header("tqhost-fence", fence.to_string())
        .timeout(settings.timeout.map_or(left, |timeout| timeout.min(left)))
        // The plugin's `max_response_body` and `max_output` are the limits.
        .max_response(usize::MAX);
    let response = send(&request).map_err(answer::missing)?;
    answer::outcome(response, settings.defer_status, now_ms)
}

/// Checks the configuration, and that the host lets requests go to the url.
fn check() -> Result<(), String> {
    let settings = Settings::read(config::get).map_err(settings::text)?;
    http::is_granted(&settings.url("check")).map_err(|error| match error {
        Error::Denied(_) => format!(
            "`url` is not granted: add {} to allowed_hosts of this plugin in the configuration",
            settings.origin()
        ),
        other => format!("`url`: {other}"),
    })
}

handler!(call, self_check = check);
