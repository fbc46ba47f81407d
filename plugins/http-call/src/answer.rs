//! Decides what an answer of the application means for the task.
//!
//! In: a response, or the error in its place. Out: the result, or a [`Failure`].
//!
//! | answer | outcome |
//! |---|---|
//! | `defer_status` | deferred |
//! | 2xx | completed |
//! | 400, 410, 413, 415, 422 | rejected, in the words of the application |
//! | 3xx, 401, 403, 404, 405, 429, 502, 503, 504; no answer, or none in time | an outage |
//! | everything else | a retry |
//!
//! An outage is a retry that any task would have met. Its causes are the address, the grant, the secret, and
//! a service that is down or asks for fewer requests. The operator or time corrects them, and no task should
//! pay for them: a queue with `hold` waits until then. Where no answer began, most likely nobody could give
//! one. 500 and a connection that ends within the answer may be the task's own doing, so they use up its
//! attempts.

use std::fmt;
use std::time::Duration;

use model_server::line;
use serde_json::Value;
use tqhost_handler::Failure;
use tqhost_handler::http::{Error, Response};

use crate::decode::make_plain;

/// How long a deferred task waits if the answer does not say it.
const DEFERRED: Duration = Duration::from_secs(60);
/// The most characters of the application's own words.
const MAX_WORDS: usize = 400;
/// Some programs begin a text in UTF-8 with this.
const BOM: &[u8] = "\u{feff}".as_bytes();
/// The most items of a list of errors in a text.
const MAX_ITEMS: usize = 5;
/// How deep an object is looked into for words.
const MAX_DEPTH: usize = 4;
/// Where frameworks write what went wrong, the most telling first: problem+json, FastAPI and Django
/// (`detail`); Express, NestJS, Laravel and Spring (`message`); items of FastAPI's lists (`msg`); OAuth
/// (`error_description`); OpenAI and others (`error`, an object or a text); lists (`errors`).
const TELLING: [&str; 7] = ["detail", "message", "msg", "error_description", "error", "errors", "title"];

/// The outcome of a response. `now_ms` is compared with a `Retry-After` date if the response has no `Date`.
pub fn outcome(
    mut response: Response,
    defer_status: Option<u16>,
    now_ms: u64,
) -> Result<Option<Vec<u8>>, Failure> {
    let status = response.status;
    let unread = make_plain(&mut response).err();
    if let Some(why) = &unread {
        if (200..300).contains(&status) {
            return Err(Failure::retry(why));
        }
        // Its status says what becomes of the task, and its words cannot be read.
        response.body.clear();
    }
    let says = |what: &str| {
        let words = words(&response).or_else(|| unread.clone());
        let explanation = words.map(|words| format!(": {words}")).unwrap_or_default();
        format!("the application {what} ({status}){explanation}")
    };
    if Some(status) == defer_status {
        let after = response.retry_after(now_ms).unwrap_or(DEFERRED);
        return Err(Failure::defer(says("defers the task"), after));
    }
    let failure = match status {
        200..=299 => return Ok(Some(response.body).filter(|body| !body.is_empty())),
        400 | 410 | 413 | 415 | 422 => {
            Failure::reject(words(&response).unwrap_or_else(|| says("rejects the task")))
        }
        300..=399 => outage(format_args!(
            "the application answers with a redirect ({status}){}, which is not followed: set `url` of the \
             plugin's configuration to the final address",
            elsewhere(&response)
        )),
        401 | 403 => outage(format_args!(
            "{}: look at `secret` of the plugin's configuration, and at the clocks of both machines",
            says("refuses the request")
        )),
        404 => outage(format_args!(
            "{}: look at `url` of the plugin's configuration",
            says("has no such address")
        )),
        405 => outage(format_args!(
            "{}: look at `url` of the plugin's configuration",
            says("takes no POST here")
        )),
        429 => outage(says("asks for fewer requests")),
        502..=504 => outage(says("is not available")),
        408 | 409 | 425 => Failure::retry(says("asks to try again")),
        _ => Failure::retry(says("failed")),
    };
    Err(response.retry_after(now_ms).into_iter().fold(failure, Failure::after))
}

/// The failure if there is no response.
pub fn missing(error: Error) -> Failure {
    match error {
        Error::Timeout => outage("the application did not answer in time"),
        Error::Unreachable(why) => outage(format_args!("calling the application: {why}")),
        Error::Invalid(why) => outage(format_args!("the plugin's configuration: {why}")),
        Error::Denied(why) => outage(why),
        // The connection ended within the answer, so maybe within the work on this task.
        other => Failure::retry(format_args!("calling the application: {other}")),
    }
}

/// A failure that any task would have met.
pub fn outage(text: impl fmt::Display) -> Failure {
    Failure::unavailable(text)
}

/// The words of a JSON value, or a plain text.
fn words(response: &Response) -> Option<String> {
    let media_type = response.header("content-type")?.split(';').next()?.trim().to_ascii_lowercase();
    let text = if media_type == "application/json" || media_type.ends_with("+json") {
        let json = response.body.strip_prefix(BOM).unwrap_or(&response.body);
        told(&serde_json::from_slice(json).ok()?, MAX_DEPTH)?
    } else if media_type == "text/plain" {
        // Four bytes of UTF-8 are one character at most, and the text may be long.
        String::from_utf8_lossy(&response.body[..response.body.len().min(4 * MAX_WORDS)]).into_owned()
    } else {
        return None;
    };
    Some(line(text.trim_start_matches('\u{feff}'), MAX_WORDS)).filter(|text| !text.is_empty())
}

/// The words in a text, in the most telling member of an object, or in the items of a list.
fn told(value: &Value, depth: usize) -> Option<String> {
    let deeper = depth.checked_sub(1)?;
    match value {
        Value::String(text) => Some(text.clone()).filter(|text| !text.trim().is_empty()),
        Value::Array(items) => {
            let texts: Vec<String> =
                items.iter().take(MAX_ITEMS).filter_map(|item| told(item, deeper)).collect();
            let more = if items.len() > MAX_ITEMS { "; …" } else { "" };
            (!texts.is_empty()).then(|| texts.join("; ") + more)
        }
        Value::Object(members) => {
            let words = TELLING.iter().find_map(|name| told(members.get(*name)?, deeper));
            match (members.get("loc").and_then(place), words) {
                (Some(place), Some(words)) => Some(format!("{place}: {words}")),
                (_, words) => words,
            }
        }
        _ => None,
    }
}

/// `body.items.0` for the place of a wrong value, as FastAPI has it.
fn place(loc: &Value) -> Option<String> {
    let parts = loc.as_array()?.iter().take(MAX_ITEMS).map(|part| match part {
        Value::String(name) => name.clone(),
        other => other.to_string(),
    });
    Some(parts.collect::<Vec<_>>().join(".")).filter(|place| !place.is_empty())
}

/// Where a redirect leads, without the query, which may hold a secret.
fn elsewhere(response: &Response) -> String {
    let target = response.header("location").and_then(|target| target.split(['?', '#']).next());
    let target = target.map(|target| match target.split_once("://") {
        Some((scheme, rest)) => {
            let host = rest.find('/').unwrap_or(rest.len());
            let user = rest[..host].rfind('@').map_or(0, |at| at + 1);
            format!("{scheme}://{}", &rest[user..])
        }
        None => target.to_owned(),
    });
    target.map(|target| format!(" to {}", line(&target, 200))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, headers: &[(&str, &str)], body: &str) -> Response {
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Response { status, headers, body: body.into() }
    }

    fn failed(status: u16, headers: &[(&str, &str)], body: &str) -> Failure {
        outcome(response(status, headers, body), Some(409), 0).expect_err("a failure")
    }

    const PROBLEM: (&str, &str) = ("content-type", "application/problem+json; charset=utf-8");

    #[test]
    fn a_body_is_the_result() {
        for (status, body, result) in [(200, "ok", Some(b"ok".to_vec())), (202, "", None), (204, "", None)] {
            assert_eq!(outcome(response(status, &[], body), Some(409), 0).unwrap(), result);
        }
    }

    #[test]
    fn a_rejection_has_the_words_of_the_application() {
        let detail = r#"{"title": "Unprocessable", "detail": "no such\n session"}"#;
        for (status, headers, body, text) in [
            (422, &[PROBLEM][..], detail, "no such session"),
            (400, &[PROBLEM], r#"{"title": "Bad", "detail": 7}"#, "Bad"),
            (410, &[("content-type", "text/plain")], " gone \n", "gone"),
            (413, &[PROBLEM], "no JSON", "the application rejects the task (413)"),
            (415, &[("content-type", "text/html")], "<p>", "the application rejects the task (415)"),
            (400, &[], detail, "the application rejects the task (400)"),
        ] {
            let failure = failed(status, headers, body);
            assert!(matches!(&failure, Failure::Reject(why) if why == text), "{status}: {failure:?}");
        }
        let long = failed(400, &[("content-type", "text/plain")], &"é".repeat(10_000));
        assert!(matches!(&long, Failure::Reject(why) if why.chars().count() == MAX_WORDS + 1), "{long:?}");
    }

    #[test]
    fn the_words_of_each_framework_are_the_error() {
        let spring = r#"{"timestamp": 1, "status": 400, "error": "Bad Request", "message": "", "path": "/"}"#;
        for (body, text) in [
            (
                r#"{"detail": [{"type": "missing", "loc": ["body", "items", 0], "msg": "Field required"}]}"#,
                "body.items.0: Field required",
            ),
            (r#"{"detail": "Not Found"}"#, "Not Found"),
            (r#"{"message": "no such user", "stack": "…"}"#, "no such user"),
            (
                r#"{"statusCode": 400, "message": ["a must be set", "b is long"], "error": "Bad Request"}"#,
                "a must be set; b is long",
            ),
            (spring, "Bad Request"),
            (
                r#"{"error": {"message": "too many tokens", "type": "invalid_request_error", "code": null}}"#,
                "too many tokens",
            ),
            (
                r#"{"error": "invalid_grant", "error_description": "the code has expired"}"#,
                "the code has expired",
            ),
            (r#"{"errors": [{"message": "a"}, {"detail": "b"}, 7]}"#, "a; b"),
            (r#"["a", "b", "c", "d", "e", "f"]"#, "a; b; c; d; e; …"),
            ("\u{feff}{\"title\": \"Bad\"}", "Bad"),
            (r#""just a text""#, "just a text"),
            (
                r#"{"error": {"error": {"error": {"error": "deep"}}}}"#,
                "the application rejects the task (422)",
            ),
            (r#"{"id": 7}"#, "the application rejects the task (422)"),
        ] {
            let failure = failed(422, &[("content-type", "application/json")], body);
            assert!(matches!(&failure, Failure::Reject(why) if why == text), "{body}: {failure:?}");
        }
    }

    #[test]
    fn an_answer_in_another_coding_is_read_or_named() {
        let coding = [PROBLEM, ("content-encoding", "compress")];
        let charset = [("content-type", "application/json; charset=GBK")];
        for (headers, body, why) in [
            (&coding[..], &b"x"[..], "the answer is coded as `compress`"),
            (&charset, b"{\"detail\": \"\xc4\xe3\"}", "the answer is text in the charset `gbk`"),
        ] {
            let response = |status| Response { body: body.into(), ..response(status, headers, "") };
            let result = outcome(response(422), None, 0);
            let Err(Failure::Reject(told)) = result else { panic!("{result:?}") };
            assert!(told.starts_with(&format!("the application rejects the task (422): {why}")), "{told}");
            let result = outcome(response(503), None, 0);
            let Err(Failure::Retry(retry)) = result else { panic!("{result:?}") };
            assert!(retry.message.contains(&format!("is not available (503): {why}")), "{}", retry.message);
            let result = outcome(response(200), None, 0);
            let Err(Failure::Retry(retry)) = result else { panic!("{result:?}") };
            assert!(retry.message.starts_with(why), "{}", retry.message);
        }
    }

    #[test]
    fn everything_else_is_tried_again() {
        for (status, text) in [
            (301, "a redirect (301)"),
            (304, "a redirect (304)"),
            (401, "`secret`"),
            (403, "`secret`"),
            (404, "`url`"),
            (405, "`url`"),
            (408, "try again (408): slow"),
            (418, "failed (418): slow"),
            (425, "try again (425): slow"),
            (429, "fewer requests (429): slow"),
            (500, "failed (500): slow"),
            (501, "failed (501): slow"),
            (503, "not available (503): slow"),
            (599, "failed (599): slow"),
        ] {
            let failure = failed(status, &[PROBLEM, ("retry-after", "7")], r#"{"detail": "slow"}"#);
            let Failure::Retry(retry) = failure else { panic!("{status}: {failure:?}") };
            assert!(retry.message.contains(text), "{status}: {}", retry.message);
            assert_eq!(retry.after_ms, Some(7000), "{status}");
            let is_outage = matches!(status, 300..=399 | 401 | 403..=405 | 429 | 502..=504);
            assert_eq!(Failure::Retry(retry).is_unavailable(), is_outage, "{status}");
        }
        let date =
            [("retry-after", "Tue, 28 Jul 2026 10:00:30 GMT"), ("date", "Tue, 28 Jul 2026 10:00:10 GMT")];
        assert!(matches!(failed(503, &date, ""), Failure::Retry(retry) if retry.after_ms == Some(20_000)));
        assert!(matches!(failed(500, &[], ""), Failure::Retry(retry) if retry.after_ms.is_none()));
    }

    #[test]
    fn one_status_defers() {
        let after = |headers| match failed(409, headers, r#"{"detail": "no inputs yet"}"#) {
            Failure::Defer(deferral) => (deferral.message, deferral.after_ms),
            other => panic!("{other:?}"),
        };
        assert_eq!(after(&[]), ("the application defers the task (409)".to_owned(), 60_000));
        let told = after(&[PROBLEM, ("retry-after", "5")]);
        assert_eq!(told, ("the application defers the task (409): no inputs yet".to_owned(), 5000));
    }

    #[test]
    fn a_redirect_names_its_target_without_secrets() {
        let target = ("location", "https://user:hunter2@sso.example.com/login?token=hunter2#hunter2");
        let Failure::Retry(retry) = failed(302, &[target], "") else { panic!("no retry") };
        assert!(retry.message.contains("(302) to https://sso.example.com/login, which"), "{}", retry.message);
        assert!(!retry.message.contains("hunter2"), "{}", retry.message);
    }

    #[test]
    fn an_error_of_the_network_is_tried_again() {
        for (error, is_outage) in [
            (Error::Timeout, true),
            (Error::Unreachable("refused".into()), true),
            (Error::Denied("denied".into()), true),
            (Error::Invalid("no host".into()), true),
            (Error::TooLarge("large".into()), false),
            (Error::Network("cut".into()), false),
        ] {
            let failure = missing(error.clone());
            assert!(matches!(failure, Failure::Retry(_)), "{error:?}");
            assert_eq!(failure.is_unavailable(), is_outage, "{error:?}");
        }
    }
}
