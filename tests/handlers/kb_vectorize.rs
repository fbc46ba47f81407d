//! The handler `kb-vectorize`: documents become Redis hashes, in one commit or in steps.
//!
//! Not here: how a text is split, and each order of two runs (the handler's own tests).

use std::collections::HashMap;

use serde_json::{Value, json};

use super::llm::{Llm, Said};
use crate::support::{Bench, eventually};

const DOCUMENT: &str = "kb:{kb}:7:document:guide";

/// A bench with the handler, and a table of its grants.
fn bench(grants: &str) -> Bench {
    let bench = Bench::new(&format!(
        "[queues.vectorize]\nplugin = \"kb-vectorize\"\nenqueue_to = [\"vectorize\"]\nconcurrency = 4\n\
         max_retries = 1\nbackoff = {{ base = \"1ms\", max = \"10s\", jitter = 0 }}\n\
         [plugins.kb-vectorize]\nrecords = [\"kb:{{kb}}:*\"]\n{grants}"
    ));
    bench.install("kb-vectorize", "kb-vectorize");
    bench
}

fn add(bench: &mut Bench, content: &str) -> String {
    let fields =
        [("knowledgeBaseId", "7"), ("documentId", "guide"), ("title", "Guide"), ("content", content)];
    bench.xadd("vectorize", &fields)
}

fn result(bench: &mut Bench, id: &str) -> Value {
    bench.until("vectorize", id, "COMPLETED");
    serde_json::from_str(&bench.status("vectorize", id, "result")).expect("a result in JSON")
}

fn chunks(bench: &mut Bench) -> Vec<String> {
    bench.redis("KEYS", "kb:{kb}:7:chunk:guide:*")
}

fn live(bench: &mut Bench) -> Option<String> {
    bench.redis("HGET", (DOCUMENT, "generation"))
}

#[test]
fn a_million_characters_replace_a_small_document_and_are_replaced_by_one() {
    let mut bench = bench("");
    let host = bench.host();
    let id = add(&mut bench, "# Streams\nA stream keeps entries. 消息会保留。");
    let small = result(&mut bench, &id);
    assert_eq!(
        (&small["outcome"], &small["chunks"], &small["method"]),
        (&json!("live"), &json!(1), &json!("hashed-words"))
    );
    let generation = live(&mut bench).expect("a generation");
    let chunk: HashMap<String, redis::Value> =
        bench.redis("HGETALL", format!("kb:{{kb}}:7:chunk:guide:{generation}:0"));
    assert_eq!(chunk["heading"], redis::Value::BulkString(b"Streams".to_vec()));
    let redis::Value::BulkString(vector) = &chunk["vector"] else { panic!("{chunk:?}") };
    let length: f32 = vector
        .chunks_exact(4)
        .map(|weight| f32::from_le_bytes(weight.try_into().expect("4 bytes")).powi(2))
        .sum();
    assert!(vector.len() == 4 * 512 && (length - 1.0).abs() < 1e-4, "{length}");

    let large = format!("{}。", "没有人知道这件事，".repeat(11)).repeat(10_000);
    assert_eq!(large.chars().count(), 1_000_000);
    let id = add(&mut bench, &large);
    let started = result(&mut bench, &id);
    assert_eq!(started["outcome"], "started", "{started}");
    eventually("the new generation is live", || {
        (live(&mut bench).as_deref() == started["generation"].as_str()).then_some(())
    });
    bench.until_drained("vectorize");
    assert_eq!(chunks(&mut bench).len() as u64, started["chunks"].as_u64().expect("a number"));
    let parts: Vec<String> = bench.redis("KEYS", "tq:*part:*");
    assert_eq!(parts, [""; 0], "no part is kept");

    let id = add(&mut bench, "A small document again.");
    let again = result(&mut bench, &id);
    eventually("old chunks are deleted", || (chunks(&mut bench).len() == 1).then_some(()));
    assert_eq!(live(&mut bench).as_deref(), again["generation"].as_str());
    assert!(bench.dead("vectorize").is_empty());
    host.stop();
}

#[test]
fn a_busy_server_of_embeddings_is_asked_again_and_nothing_is_written_meanwhile() {
    let vector = json!({ "data": [{ "index": 0, "embedding": [0.5, -1] }] }).to_string();
    let says = [
        Said::status(200, "", &vector),
        Said::status(429, "retry-after: 1\r\n", "{}"),
        Said::status(200, "", &vector),
    ];
    let llm = Llm::start(says.to_vec());
    let mut bench = bench(&format!(
        "allowed_hosts = [\"{origin}\"]\n\
         config = {{ model = \"small\", url = \"{origin}/v1\", batch = \"1\" }}\n",
        origin = llm.origin()
    ));
    let host = bench.host();
    let id = add(&mut bench, "# One\nThe first chunk.\n# Two\nThe second chunk.");
    eventually("the retry waits", || (bench.places("vectorize").delayed == 1).then_some(()));
    assert_eq!((chunks(&mut bench).len(), live(&mut bench)), (0, None));
    let report = result(&mut bench, &id);
    assert_eq!((&report["method"], &report["chunks"]), (&json!("model:small"), &json!(2)));
    let asked = llm.asked();
    assert_eq!(asked.len(), 4);
    assert!((asked[2].at - asked[1].at).as_millis() >= 1000, "it waits as long as the server says");
    assert_eq!(asked[0].body["input"], json!(["Guide\nOne\n# One\nThe first chunk."]));
    let generation = live(&mut bench).expect("a generation");
    let vector: Vec<u8> = bench.redis("HGET", (format!("kb:{{kb}}:7:chunk:guide:{generation}:1"), "vector"));
    assert_eq!(vector, [0, 0, 0, 0x3f, 0, 0, 0x80, 0xbf]);
    host.stop();
}
