//! The HTTP API: real hosts, requests over real connections.
//!
//! Not here: the endpoints that need no API (`admin` in the crate, `cli::commands`).

pub(crate) mod access;
mod alias;
mod bad_requests;
mod changes;
mod dead;
mod events;
mod exports;
mod jobs;
mod limits;
mod many;
mod mask;
mod page;
mod queues;
mod retry;
mod size;
mod tasks;
mod undo;

use serde_json::Value;

use crate::support::http::{self, Response};
use crate::support::{Host, eventually};

/// The jobs of the queue `work`.
const JOBS: &str = "/v1/queues/work/jobs";

/// Begins a job on the queue `work`. Returns its id.
fn start(host: &Host, body: &Value) -> String {
    let job = good(&post(host, JOBS, body), 202);
    job["id"].as_str().unwrap_or_else(|| panic!("an id: {job}")).to_owned()
}

fn job(host: &Host, id: &str) -> Value {
    good(&ask(host, "GET", &format!("/v1/jobs/{id}")), 200)
}

/// Waits until a job runs no more.
fn until_over(host: &Host, id: &str) -> Value {
    eventually("the job is over", || Some(job(host, id)).filter(|job| job["state"] != "running"))
}

/// Sends a request without a body.
fn ask(host: &Host, method: &str, path: &str) -> Response {
    http::send(host.admin(), method, path, &[], None)
}

/// Sends a POST request with a JSON body.
fn post(host: &Host, path: &str, body: &Value) -> Response {
    post_with(host, path, body, &[])
}

fn post_with(host: &Host, path: &str, body: &Value, headers: &[(&str, &str)]) -> Response {
    let headers: Vec<_> = [("content-type", "application/json")].iter().chain(headers).copied().collect();
    http::send(host.admin(), "POST", path, &headers, Some(&body.to_string()))
}

/// The JSON of an answer with this status.
#[track_caller]
fn good(answer: &Response, status: u16) -> Value {
    assert_eq!(answer.status, status, "{answer:?}");
    answer.json()
}

/// The answer must be a problem with this status and code. Gives its text for people.
#[track_caller]
fn problem(answer: &Response, status: u16, code: &str) -> String {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{answer:?}");
    let body = answer.json();
    assert_eq!((&body["code"], &body["status"]), (&code.into(), &status.into()), "{body}");
    assert_eq!(body["type"], format!("urn:tqhost:problem:{code}"));
    body["detail"].as_str().expect("a text").to_owned()
}

/// The texts under `name` of each item.
fn texts(list: &Value, name: &str) -> Vec<String> {
    let items = list.as_array().unwrap_or_else(|| panic!("a list: {list}"));
    items.iter().map(|item| item[name].as_str().unwrap_or_default().to_owned()).collect()
}
