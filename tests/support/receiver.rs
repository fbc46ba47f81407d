//! An application of `examples/http-call` in another language, in a process of its own.
//!
//! In: the command that starts it. Out: its port, and what it printed: a line of JSON for each task that it
//! worked on. It ends when it is dropped. Not here: applications in this process (`application`).

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::application::SECRET;
use super::{Bench, eventually};

pub struct Receiver {
    child: Child,
    pub port: u16,
    lines: Arc<Mutex<Vec<Value>>>,
}

impl Receiver {
    /// Starts an example that knows this secret, on a free port.
    pub fn start(mut command: Command, secret: &str) -> Receiver {
        let mut child = command
            .env("WEBHOOK_SECRET", secret)
            .env("PORT", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the example");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut first = String::new();
        output.read_line(&mut first).expect("its first line");
        let port = serde_json::from_str::<Value>(&first).ok().and_then(|line| line["port"].as_u64());
        let port = port.and_then(|port| port.try_into().ok()).unwrap_or_else(|| panic!("no port: {first:?}"));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = lines.clone();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line}"));
                kept.lock().expect("the lines").push(line);
            }
        });
        Receiver { child, port, lines }
    }

    pub fn origin(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The lines that it has printed about this task.
    pub fn about(&self, id: &str) -> Vec<Value> {
        let lines = self.lines.lock().expect("the lines");
        lines.iter().filter(|line| line["id"] == id).cloned().collect()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The folder of an example.
pub fn example(language: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/http-call").join(language)
}

/// Checks that an example takes its tasks as it should.
pub fn takes_tasks(command: impl Fn() -> Command) {
    let other = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    // The secret is being changed: the application knows the new one already, and the host signs with both.
    let receiver = Receiver::start(command(), other);
    let plugin = |secret: &str| {
        format!(
            "[queues.work]\nplugin = \"http-call\"\nmax_retries = 1\nbackoff = \"none\"\n\
             [queues.other]\nplugin = \"http-call\"\n\
             [plugins.http-call]\nallowed_hosts = [\"{origin}\"]\n[plugins.http-call.config]\n\
             url = \"{origin}/tasks\"\nsecret = \"{secret}\"\n",
            origin = receiver.origin()
        )
    };
    let mut bench = Bench::new(&plugin(&format!("{SECRET} {other}")));
    bench.install("http-call", "http-call");
    let host = bench.host();
    let done = bench.xadd("work", &[("content", "grüße \"x\""), ("tag", "a"), ("tag", "b")]);
    let _: String = bench.redis("XADD", ("work", "*", "content", b"\xff\x00".as_slice(), "tq-id", "order.7"));
    let bad = bench.xadd("work", &[("content", "")]);
    bench.until("work", &done, "COMPLETED");
    let result: Value = serde_json::from_str(&bench.status("work", &done, "result")).expect("JSON");
    assert_eq!(result, json!({ "bytes": "grüße \"x\"ab".len() }));
    bench.until("work", "order.7", "COMPLETED");
    let result: Value = serde_json::from_str(&bench.status("work", "order.7", "result")).expect("JSON");
    assert_eq!(result, json!({ "bytes": 2 }));
    bench.until("work", &bad, "FAILED");
    assert_eq!(bench.status("work", &bad, "error"), "the task has no content");
    eventually("it worked once on each", || {
        let worked = [done.as_str(), "order.7"].map(|id| receiver.about(id).len());
        (worked == [1, 1]).then_some(())
    });
    // A copy of a task with the same id, as after a lost answer, gets the first answer without the work.
    let _: u64 = bench.redis("DEL", format!("tq:{{work}}:task:{done}"));
    let again: String = bench.redis("XADD", ("work", "*", "content", "other", "tq-id", &done));
    bench.until("work", &done, "COMPLETED");
    let result: Value = serde_json::from_str(&bench.status("work", &done, "result")).expect("JSON");
    assert_eq!(result, json!({ "bytes": "grüße \"x\"ab".len() }), "{again} is the same task");
    assert_eq!(receiver.about(&done).len(), 1);
    // A task of another queue with this id is another task.
    let _: String = bench.redis("XADD", ("other", "*", "content", "y", "tq-id", &done));
    bench.until("other", &done, "COMPLETED");
    let result: Value = serde_json::from_str(&bench.status("other", &done, "result")).expect("JSON");
    assert_eq!(result, json!({ "bytes": 1 }));
    host.stop();

    // One field is the body, whatever is in it. The rest is in the headers.
    bench.configure_for(&format!("{}body = \"event\"\n", plugin(other)), bench.redis.port);
    let host = bench.host();
    let like_a_task =
        "{\"id\": \"e-2\", \"queue\": \"q\", \"attempt\": 7, \"fence\": 9, \"fields\": {\"a\": \"b\"}}";
    for event in ["{\"id\": \"e-1\", \"amount\": 1.5}", like_a_task, "no JSON"] {
        let id = bench.xadd("work", &[("event", event)]);
        bench.until("work", &id, "COMPLETED");
        let result: Value = serde_json::from_str(&bench.status("work", &id, "result")).expect("JSON");
        assert_eq!(result, json!({ "bytes": event.len() }));
        eventually("it worked on it", || {
            let about = receiver.about(&id);
            (about == [json!({ "id": id, "queue": "work", "attempt": 1 })]).then_some(())
        });
    }
    host.stop();

    // It refuses whoever does not know the secret.
    bench.configure_for(&plugin(SECRET), bench.redis.port);
    let host = bench.host();
    let id = bench.xadd("work", &[("content", "text")]);
    bench.until("work", &id, "FAILED");
    let error = bench.status("work", &id, "error");
    // The application explains it in words of its own, behind that.
    let (told, _) = error.split_once("(401)").expect("the status of the answer");
    insta::assert_snapshot!(told, @"retry: the application refuses the request");
    assert!(receiver.about(&id).is_empty());
    host.stop();
}
