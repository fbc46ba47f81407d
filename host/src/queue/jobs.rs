//! Jobs as they stand in Redis: one text for each, among the orders to all hosts (`orders`).
//!
//! In: a text in place of another one. Out: the texts. Not here: what is in them (`operations::jobs`).

use super::error::{QueueError, QueueResult};
use super::keys;
use super::link::Link;
use super::reply::{self, Shaped, UnexpectedShape};
use super::script::{self, ScriptCall};

/// The beginning of the field of a job. Names of plugins have no slash, so no plugin has it.
const PREFIX: &str = "/job/";

/// The id of the job that a field of the orders has.
pub(super) fn id_of(field: &str) -> Option<&str> {
    field.strip_prefix(PREFIX)
}

/// A job at a moment of Redis's clock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct JobText {
    pub now_ms: u64,
    /// Empty: there is no job with this id.
    pub text: String,
}

/// The text of a job.
pub(crate) async fn find(link: &Link, id: &str) -> QueueResult<JobText> {
    call(link, id, "", "").await
}

/// Writes `after` if the text is still `before`: then the reply has `after`, and otherwise what another one
/// wrote.
pub(crate) async fn replace(link: &Link, id: &str, before: &str, after: &str) -> QueueResult<JobText> {
    call(link, id, before, after).await
}

async fn call(link: &Link, id: &str, before: &str, after: &str) -> QueueResult<JobText> {
    let field = format!("{PREFIX}{id}");
    let call = ScriptCall::new(&script::JOB).key("orders", keys::ORDERS);
    let call = call.arg("field", field).arg("before", before).arg("after", after);
    let read = |reply| -> Shaped<JobText> {
        let [now, text] = reply::tuple(reply)?;
        Ok(JobText { now_ms: reply::count(&now)?, text: reply::text(text)? })
    };
    let reply = link.script(&call).await?;
    read(reply).map_err(|UnexpectedShape| QueueError::unexpected("job", link.address()))
}

/// Forgets these jobs.
pub(crate) async fn forget(link: &Link, ids: &[&str]) -> QueueResult {
    let fields: Vec<String> = ids.iter().map(|id| format!("{PREFIX}{id}")).collect();
    link.command("forget jobs", redis::cmd("HDEL").arg(keys::ORDERS).arg(fields)).await.map(drop)
}
