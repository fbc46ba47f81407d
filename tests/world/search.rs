//! The index of plugins/kb-vectorize/README.md, in a Redis with search.
//!
//! In: the commands of that page as they stand there, and pages of this repository as documents. Out: what a
//! search finds. `scripts/search-redis.sh` fetches the server. Not here: how chunks are written
//! (`handlers::kb_vectorize` of the end-to-end tests).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::support::{Bench, RedisServer, eventually};

const README: &str = include_str!("../../plugins/kb-vectorize/README.md");
/// The knowledge base of the commands.
const KB: &str = "7";
/// The knowledge base of the queries.
const QUERIES: &str = "queries";
/// The text that a search asks for.
const QUERY: &str = "append-only file, maxmemory-policy noeviction, persistence of Redis";
/// The document that answers it, and the heading of the answer.
const OPERATIONS: &str = "# Operations\n## Redis\nTurn on the persistence of Redis: an append-only file. \
     Set the maxmemory-policy noeviction.\n";
const ANSWER: &str = "Operations > Redis";

/// A chunk that a search found, by the names of its fields.
type Hit = HashMap<String, String>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The folder of a Redis with search.
fn search_redis() -> PathBuf {
    let mut script = Command::new(root().join("scripts/search-redis.sh"));
    let output = script.stdin(Stdio::null()).output().expect("run scripts/search-redis.sh");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).expect("UTF-8").trim_end())
}

/// A bench on a Redis with search, with the handler without a model.
fn bench() -> Bench {
    let dir = tempfile::tempdir().expect("create a folder");
    let redis = RedisServer::start_with_env(dir.path(), &[], vec![("PATH".to_owned(), search_redis())]);
    let queue = "[queues.vectorize]\nplugin = \"kb-vectorize\"\nenqueue_to = [\"vectorize\"]\n\
         [plugins.kb-vectorize]\nrecords = [\"kb:{kb}:*\"]\n";
    let bench = Bench::on(queue, dir, redis);
    bench.install("kb-vectorize", "kb-vectorize");
    bench
}

/// The words of the page's command that begins with `name`. A quoted word has blanks in it.
fn command(name: &str) -> Vec<String> {
    let section = README.split_once("## The index").expect("the section about the index").1;
    let commands = section.split("```").skip(1).step_by(2).flat_map(|block| block.split("\n\n"));
    let command = commands.map(str::trim).find(|command| command.starts_with(name)).expect("the command");
    let words = command.split('"').enumerate().flat_map(|(n, part)| match n % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect(),
        _ => vec![part.to_owned()],
    });
    words.collect()
}

/// Writes a document, and waits until its chunks are live. Gives its result.
fn add(bench: &mut Bench, kb: &str, document: &str, content: &str) -> Value {
    let fields = [("knowledgeBaseId", kb), ("documentId", document), ("content", content)];
    let id = bench.xadd("vectorize", &fields);
    bench.until("vectorize", &id, "COMPLETED");
    serde_json::from_str(&bench.status("vectorize", &id, "result")).expect("a result in JSON")
}

/// Runs the page's search with this vector, and with a filter in place of the `*`.
fn search(bench: &mut Bench, query: &[u8], filter: &str) -> Vec<Hit> {
    search_in(bench, &command("FT.CREATE")[1], query, filter)
}

/// Like [`search`], in another index.
fn search_in(bench: &mut Bench, index: &str, query: &[u8], filter: &str) -> Vec<Hit> {
    let mut words = command("FT.SEARCH");
    index.clone_into(&mut words[1]);
    let mut search = redis::Cmd::new();
    for word in words {
        match word.as_str() {
            "…2048 bytes…" => search.arg(query),
            _ => search.arg(word.replacen("*=>", &format!("{filter}=>"), 1)),
        };
    }
    // The number of hits, and then a key and its fields for each.
    let reply: Vec<redis::Value> = search.query(&mut bench.db).expect("FT.SEARCH");
    let fields = reply.into_iter().skip(2).step_by(2);
    fields.map(|fields| redis::from_redis_value(fields).expect("the fields of a hit")).collect()
}

/// The vector of a chunk, as its weights.
fn weights(vector: &[u8]) -> Vec<f32> {
    vector.chunks_exact(4).map(|weight| f32::from_le_bytes(weight.try_into().expect("4 bytes"))).collect()
}

/// The distances of all chunks from the query, the nearest first, without the index.
fn distances(bench: &mut Bench, query: &[u8]) -> Vec<f32> {
    let query = weights(query);
    let keys: Vec<String> = bench.redis("KEYS", format!("kb:{{kb}}:{KB}:chunk:*"));
    let vectors = keys.iter().map(|key| bench.redis("HGET", (key, "vector")));
    let vectors: Vec<Vec<u8>> = vectors.collect();
    let product = |vector: &Vec<u8>| -> f32 { weights(vector).iter().zip(&query).map(|(a, b)| a * b).sum() };
    let mut distances: Vec<f32> = vectors.iter().map(|vector| 1.0 - product(vector)).collect();
    distances.sort_by(f32::total_cmp);
    distances
}

/// Waits until the index has as many chunks as there are.
fn until_indexed(bench: &mut Bench, index: &str) {
    let keys: Vec<String> = bench.redis("KEYS", format!("kb:{{kb}}:{KB}:chunk:*"));
    eventually("all chunks are in the index", || {
        let about: Vec<redis::Value> = bench.redis("FT.INFO", index);
        let pairs = about.chunks(2).map(|pair| (&pair[0], &pair[1]));
        let text = |value: &redis::Value| redis::from_redis_value::<String>(value.clone()).ok();
        let mut counts = pairs.filter(|(name, _)| text(name).as_deref() == Some("num_docs"));
        let (_, count) = counts.next().expect("the number of chunks");
        (text(count) == Some(keys.len().to_string())).then_some(())
    });
}

#[test]
fn the_documented_search_finds_the_chunk_that_answers_the_query() {
    let mut bench = bench();
    let host = bench.host();
    // One document is there before the index, and the others come later.
    let page = |name: &str| std::fs::read_to_string(root().join(name)).expect("a page");
    add(&mut bench, KB, "reliability", &page("docs/reliability.md"));
    let create = command("FT.CREATE");
    let () = bench.redis(&create[0], &create[1..]);
    let report = add(&mut bench, KB, "operations", OPERATIONS);
    add(&mut bench, KB, "handlers", &page("docs/handlers.md"));
    add(&mut bench, "8", "operations", OPERATIONS);
    add(&mut bench, QUERIES, "1", QUERY);
    let key: Vec<String> = bench.redis("KEYS", format!("kb:{{kb}}:{QUERIES}:chunk:*"));
    let query: Vec<u8> = bench.redis("HGET", (&key[0], "vector"));
    until_indexed(&mut bench, &create[1]);

    let hits = search(&mut bench, &query, "*");
    assert_eq!(hits.len(), 20, "as many as the page asks for");
    assert_eq!((hits[0]["document"].as_str(), hits[0]["heading"].as_str()), ("operations", ANSWER));
    assert!(hits[0]["text"].contains("noeviction"), "{:?}", hits[0]);
    assert_eq!(hits[0]["generation"], report["generation"]);
    let exact = distances(&mut bench, &query);
    let distance = |hit: &Hit| hit["distance"].parse::<f32>().expect("a number");
    let found: Vec<f32> = hits.iter().map(distance).collect();
    assert!(found.is_sorted(), "the nearest come first: {found:?}");
    assert!((found[0] - exact[0]).abs() < 1e-4, "{} is not {}", found[0], exact[0]);
    // The index is approximate, so it may miss a few of the nearest chunks.
    let nearest = found.iter().filter(|found| **found < exact[19] + 1e-4).count();
    assert!(nearest >= 15, "{nearest} of the 20 nearest: {found:?}, {:?}", &exact[..20]);
    let exactly = |word: &String| word.replace("HNSW", "FLAT").replace("SCHEMA", "LANGUAGE chinese SCHEMA");
    let flat = create.iter().map(exactly).collect::<Vec<_>>().join(" ");
    let flat = flat.split(' ').collect::<Vec<_>>();
    let () = bench.redis("FT.CREATE", ("flat", &flat[2..]));
    until_indexed(&mut bench, "flat");
    for (hit, exact) in search_in(&mut bench, "flat", &query, "*").iter().zip(&exact) {
        let found = distance(hit);
        assert!((found - exact).abs() < 1e-4, "the nearest in their order: {found} is not {exact}");
    }

    let filtered = |bench: &mut Bench, filter: &str| {
        search(bench, &query, filter).into_iter().map(|hit| hit["document"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(filtered(&mut bench, "(@document:{reliability})"), vec!["reliability"; 20]);
    assert_eq!(filtered(&mut bench, "(@method:{\"hashed-words\"})").len(), 20);
    assert_eq!(filtered(&mut bench, "(@method:{\"model:small\"})").len(), 0);
    assert_eq!(filtered(&mut bench, "(@text:noeviction)")[0], "operations");

    // Only an index for Chinese finds words of a Chinese text.
    add(&mut bench, KB, "streams", "# 消费者组\n未确认的消息可以被其他消费者认领。");
    for (index, found) in [(&*create[1], 0), ("flat", 1)] {
        until_indexed(&mut bench, index);
        let hits = search_in(&mut bench, index, &query, "(@text:消息)");
        assert_eq!(hits.len(), found, "{index}");
        assert!(hits.iter().all(|hit| hit["document"] == "streams"), "{hits:?}");
    }
    assert_eq!(search_in(&mut bench, "flat", &query, "(@text:noeviction)")[0]["document"], "operations");

    // A document that is written again is found by its new chunks only.
    add(&mut bench, KB, "operations", "# New\nThe append-only file holds the tasks.");
    until_indexed(&mut bench, &create[1]);
    let hits = search(&mut bench, &query, "(@document:{operations})");
    assert_eq!(hits.iter().map(|hit| hit["heading"].as_str()).collect::<Vec<_>>(), ["New"]);
    assert!(bench.dead("vectorize").is_empty());
    host.stop();
}
