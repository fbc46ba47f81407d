//! {{NAME}}: asks a model for a summary of a text.
//!
//! In: a task with the field `content`; and the plugin's `config`: `url` of a server with OpenAI's interface,
//! `model`, and `api_key`, if the server wants one. Out: `{"summary": …}`. If the server is busy or away, the
//! task is tried again when the server says, and a queue with `hold` waits for it.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use tqhost_handler::http::Request;
use tqhost_handler::{Failure, FieldError, Json, OrFail, Task, config, context, handler};

#[derive(Debug, Serialize)]
pub struct Summary {
    pub summary: String,
}

/// The text of an answer that came as events.
fn joined(events: &str) -> Result<String, Failure> {
    let mut text = String::new();
    for line in events.lines().filter(|line| line.starts_with("data: {")) {
        let chunk: Value = serde_json::from_str(&line[6..]).or_retry("reading the answer")?;
        text += chunk["choices"][0]["delta"]["content"]
            .as_str()
            .unwrap_or("");
    }
    Ok(text)
}

fn ask(task: &Task, prompt: &str) -> Result<String, Failure> {
    let question = json!({
        "model": config::get("model")?.as_deref().unwrap_or("small"),
        "messages": [{ "role": "user", "content": prompt }],
        "stream": true,
    });
    let url = format!("{}/chat/completions", config::require("url")?);
    let mut request = Request::post(url, question.to_string())
        .header("content-type", "application/json")
        .timeout(Duration::from_secs(30));
    if let Some(key) = config::get("api_key")? {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    context::progress(10, "waits for the model");
    let answer = request.send()?;
    let said = format!("the model's server says {}", answer.status);
    if answer.is_unavailable() {
        let busy = Failure::unavailable(said);
        let now = task.deadline_ms - context::remaining().as_millis() as u64;
        return Err(match answer.retry_after(now) {
            Some(wait) => busy.after(wait),
            None => busy,
        });
    }
    match answer.status {
        200 => joined(answer.text()?),
        500.. => Err(Failure::retry(said)),
        _ => {
            let why = String::from_utf8_lossy(&answer.body);
            Err(Failure::reject(format_args!("{said}: {why:.200}")))
        }
    }
}

pub fn summarize(task: Task) -> Result<Json<Summary>, Failure> {
    let content = task.text("content")?;
    if content.trim().is_empty() {
        return Err(FieldError::invalid("content", "is empty").into());
    }
    let summary = ask(&task, &format!("Summarize in one sentence:\n\n{content}"))?;
    Ok(Json(Summary { summary }))
}

handler!(summarize);

#[cfg(test)]
mod tests {
    use tqhost_handler::http::{self, Error, Response};
    use tqhost_handler::{run, testing};

    use super::*;

    /// Runs the handler with a server that answers like this.
    fn summary(answer: Result<Response, Error>) -> Result<Option<Vec<u8>>, Failure> {
        config::insert("url", "https://model.example/v1");
        config::insert("model", "small");
        config::insert("api_key", "k");
        http::insert(answer);
        run(Task::sample([("content", "x")]), summarize)
    }

    fn reply(status: u16, headers: &[(&str, &str)], body: &str) -> Result<Response, Error> {
        let texts = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        let headers = headers.iter().map(texts).collect();
        Ok(Response {
            status,
            headers,
            body: body.into(),
        })
    }

    #[test]
    fn the_answer_is_put_together() {
        let chunk = |text| json!({ "choices": [{ "delta": { "content": text } }] });
        let (one, two) = (chunk("A short"), chunk(" text."));
        let events = format!("data: {one}\n\ndata: {two}\n\ndata: [DONE]\n\n");
        let result = summary(reply(200, &[], &events)).expect("a summary");
        assert_eq!(result, Some(br#"{"summary":"A short text."}"#.to_vec()));
        let asked = &http::requests()[0];
        assert_eq!(asked.url, "https://model.example/v1/chat/completions");
        let question: Value = serde_json::from_slice(&asked.body).expect("JSON");
        assert_eq!(question["model"], "small");
        let key = ("authorization".to_owned(), "Bearer k".to_owned());
        assert!(asked.headers.contains(&key));
    }

    #[test]
    fn a_busy_server_is_asked_again_when_it_says() {
        assert!(summary(reply(429, &[("retry-after", "2")], "busy")).is_err());
        assert_eq!(testing::outages(), [(0, Some(Duration::from_secs(2)))]);
    }

    #[test]
    fn a_server_that_is_away_is_asked_again() {
        assert!(summary(Err(Error::Unreachable("refused".into()))).is_err());
        assert_eq!(testing::outages(), [(0, None)]);
    }
}
