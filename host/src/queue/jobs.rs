//! Jobs as they stand in Redis: one text for each, in the hash that also has the orders to all hosts
//! (`orders`).
//!
//! In: the id of a job, and a text that replaces another one. Out: the text. Not here: what is in a text
//! (`operations::jobs`).

use super::error::QueueResult;
use super::keys;
use super::link::Link;
use super::reply;
use super::script::{self, ScriptCall};

/// The beginning of the field of a job. Fields of orders begin with the name of a plugin, which has no slash.
const PREFIX: &str = "/job/";

/// The id of the job whose field this is. None: the field is an order.
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

/// Writes `after` if the text is still `before`, and returns it. Otherwise returns the text that another
/// caller wrote.
pub(crate) async fn replace(link: &Link, id: &str, before: &str, after: &str) -> QueueResult<JobText> {
    call(link, id, before, after).await
}

async fn call(link: &Link, id: &str, before: &str, after: &str) -> QueueResult<JobText> {
    let field = format!("{PREFIX}{id}");
    let call = ScriptCall::new(&script::JOB).key("orders", keys::ORDERS);
    let call = call.arg("field", field).arg("before", before).arg("after", after);
    let [now, text] = link.shaped("job", reply::tuple(link.script(&call).await?))?;
    let (now_ms, text) = (link.shaped("job", reply::count(&now))?, link.shaped("job", reply::text(text))?);
    Ok(JobText { now_ms, text })
}

/// Forgets these jobs.
pub(crate) async fn forget(link: &Link, ids: &[&str]) -> QueueResult {
    let fields: Vec<String> = ids.iter().map(|id| format!("{PREFIX}{id}")).collect();
    link.command("forget jobs", redis::cmd("HDEL").arg(keys::ORDERS).arg(fields)).await.map(drop)
}
