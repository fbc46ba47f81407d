//! Makes the vectors of texts: with a model, or without one by hashing words.
//!
//! In: the [`Method`] from the plugin's configuration, and texts. Out: one vector for each text, all with the
//! same number of dimensions. A model is asked at any server with OpenAI's `POST {url}/embeddings`, for
//! several texts in one request.
//!
//! If the server asks for fewer requests (429), the attempt ends as an outage, and is repeated after the time
//! that the server names.
//!
//! Not here: the server's other answers (`model_server`), and the texts (`split`).

use model_server::{Server, setting, wrong};
use serde::Deserialize;
use serde_json::json;
use tqhost_handler::Failure;
use tqhost_handler::http::{Error, Request, Response};

use crate::hashed;

/// The default of `dimensions` without a model.
const DIMENSIONS: usize = 512;
/// The most dimensions of a vector. A chunk with a larger one would be mostly vector.
const MAX_DIMENSIONS: usize = 16_384;
/// The default of `batch`: texts of one request.
const BATCH: usize = 64;
/// The most bytes of a response. A number of a vector has about 12 bytes there, or 22 with indentation.
const MAX_RESPONSE: usize = 16 * 1024 * 1024;

/// How vectors are made.
pub enum Method {
    Hashed { dimensions: usize },
    Model { server: Server, dimensions: Option<usize>, batch: usize },
}

impl Method {
    pub fn read(get: impl Fn(&str) -> Result<Option<String>, Failure>) -> Result<Method, Failure> {
        let dimensions = match setting(&get, "dimensions")?.map(|text| text.parse()) {
            None => None,
            Some(Ok(dimensions @ 16..=MAX_DIMENSIONS)) => Some(dimensions),
            Some(_) => return Err(wrong("dimensions", "a whole number from 16 to 16384")),
        };
        let batch = match setting(&get, "batch")?.map(|text| text.parse()) {
            None => BATCH,
            Some(Ok(batch @ 1..=2048)) => batch,
            Some(_) => return Err(wrong("batch", "a whole number from 1 to 2048")),
        };
        Ok(match Server::read(&get)? {
            None => Method::Hashed { dimensions: dimensions.unwrap_or(DIMENSIONS) },
            Some(server) => Method::Model { server, dimensions, batch },
        })
    }

    /// The label that each chunk has. Vectors with different labels cannot be compared.
    pub fn label(&self) -> String {
        match self {
            Method::Hashed { .. } => hashed::METHOD.to_owned(),
            Method::Model { server, .. } => format!("model:{}", server.model),
        }
    }

    /// The texts that are embedded together.
    pub fn batch(&self) -> usize {
        match self {
            Method::Hashed { .. } => BATCH,
            Method::Model { batch, .. } => *batch,
        }
    }

    /// The vectors of at most [`Method::batch`] texts, in their order.
    pub fn embed(
        &self,
        texts: &[String],
        now_ms: u64,
        send: &mut impl FnMut(&Request) -> Result<Response, Error>,
    ) -> Result<Vec<Vec<f32>>, Failure> {
        match self {
            Method::Hashed { dimensions } => {
                Ok(texts.iter().map(|text| hashed::vector(text, *dimensions)).collect())
            }
            Method::Model { server, dimensions, .. } => {
                let mut body = json!({ "model": server.model, "input": texts, "encoding_format": "float" });
                if let Some(dimensions) = dimensions {
                    body["dimensions"] = json!(dimensions);
                }
                let reply = server.post("/embeddings", body.to_string(), MAX_RESPONSE, now_ms, send)?;
                vectors(&reply, texts.len(), *dimensions)
                    .map_err(|why| Failure::retry(format_args!("the model's answer is not usable: {why}")))
            }
        }
    }
}

#[derive(Deserialize)]
struct Reply {
    data: Vec<Embedding>,
}

#[derive(Deserialize)]
struct Embedding {
    index: Option<usize>,
    embedding: Vec<f32>,
}

/// The vectors of a reply. The server may send them in any order, with their indexes.
fn vectors(reply: &str, count: usize, dimensions: Option<usize>) -> Result<Vec<Vec<f32>>, String> {
    // The text of serde_json's error is left out, because it may quote the reply.
    let reply: Reply =
        serde_json::from_str(reply).map_err(|_| "it is not the JSON of embeddings".to_owned())?;
    if reply.data.len() != count {
        return Err(format!("it has {} vectors for {count} texts", reply.data.len()));
    }
    let mut vectors = vec![Vec::new(); count];
    for (place, Embedding { index, embedding }) in reply.data.into_iter().enumerate() {
        let index = index.unwrap_or(place);
        let slot = vectors.get_mut(index).filter(|slot| slot.is_empty());
        *slot.ok_or_else(|| format!("the index {index} is wrong or comes twice"))? = embedding;
    }
    let expected = dimensions.unwrap_or_else(|| vectors.first().map_or(0, Vec::len));
    if let Some(other) = vectors.iter().find(|vector| vector.len() != expected) {
        return Err(format!("a vector has {} dimensions instead of {expected}", other.len()));
    }
    if !(1..=MAX_DIMENSIONS).contains(&expected) && count > 0 {
        return Err(format!(
            "its vectors have {expected} dimensions, the handler takes 1 to {MAX_DIMENSIONS}"
        ));
    }
    if vectors.iter().flatten().any(|weight| !weight.is_finite()) {
        return Err("a vector has a number that is too large".to_owned());
    }
    Ok(vectors)
}

/// The bytes that a vector field of a Redis index reads: 32-bit floats, the lowest byte first.
pub fn bytes(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|weight| weight.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn method(config: &[(&str, &str)]) -> Result<Method, Failure> {
        let config: HashMap<&str, &str> = config.iter().copied().collect();
        Method::read(|key| Ok(config.get(key).map(|value| value.to_string())))
    }

    fn retry_text<T>(result: Result<T, Failure>) -> String {
        match result {
            Err(failure @ Failure::Retry(_)) if !failure.is_unavailable() => panic!("{failure:?}"),
            Err(Failure::Retry(retry)) => retry.message,
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("no failure"),
        }
    }

    #[test]
    fn a_wrong_configuration_is_named() {
        assert_eq!(method(&[]).unwrap().label(), "hashed-words");
        for (config, key) in [
            (&[("model", "m")][..], "`url`"),
            (&[("url", "http://h")], "`model`"),
            (&[("dimensions", "many")], "`dimensions`"),
            (&[("dimensions", "1")], "`dimensions`"),
            (&[("batch", "0")], "`batch`"),
        ] {
            assert!(retry_text(method(config)).contains(key), "{config:?}");
        }
    }

    #[test]
    fn a_model_is_asked_for_several_texts_at_once() {
        let method = method(&[
            ("model", "m"),
            ("url", "http://h/v1/"),
            ("api_key", "sk-12345678"),
            ("dimensions", "16"),
        ])
        .unwrap();
        assert_eq!(method.label(), "model:m");
        let vector = |weight: f32| json!(vec![weight; 16]);
        let reply = json!({ "data": [
            { "index": 1, "embedding": vector(2.0) }, { "index": 0, "embedding": vector(1.0) },
        ] });
        let mut asked = Vec::new();
        let mut send = |request: &Request| {
            asked.push(request.clone());
            Ok(Response { status: 200, body: reply.to_string().into_bytes(), ..Response::default() })
        };
        let found = method.embed(&["a".into(), "b".into()], 0, &mut send).unwrap();
        assert_eq!(found, [vec![1.0; 16], vec![2.0; 16]]);
        let [request] = &asked[..] else { panic!("one request") };
        assert_eq!(request.url, "http://h/v1/embeddings");
        assert!(request.headers.contains(&("authorization".into(), "Bearer sk-12345678".into())));
        let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!(
            body,
            json!({ "model": "m", "input": ["a", "b"], "encoding_format": "float", "dimensions": 16 })
        );
    }

    #[test]
    fn an_answer_that_cannot_be_used_says_why() {
        let table = [
            ("<html>", None, "not the JSON"),
            (r#"{"data": []}"#, None, "0 vectors for 2 texts"),
            (r#"{"data": [{"embedding": [1]}, {"embedding": [1, 2]}]}"#, None, "2 dimensions instead of 1"),
            (r#"{"data": [{"embedding": [1]}, {"embedding": [1]}]}"#, Some(2), "1 dimensions instead of 2"),
            (r#"{"data": [{"embedding": []}, {"embedding": []}]}"#, None, "0 dimensions"),
            (r#"{"data": [{"index": 1, "embedding": [1]}, {"index": 1, "embedding": [1]}]}"#, None, "twice"),
            (
                r#"{"data": [{"index": 5, "embedding": [1]}, {"index": 1, "embedding": [1]}]}"#,
                None,
                "index 5",
            ),
            (r#"{"data": [{"embedding": [1e39]}, {"embedding": [1]}]}"#, None, "too large"),
        ];
        for (reply, dimensions, why) in table {
            let error = vectors(reply, 2, dimensions).unwrap_err();
            assert!(error.contains(why), "{reply}: {error}");
        }
    }

    #[test]
    fn a_vector_is_little_endian() {
        assert_eq!(bytes(&[1.0, -2.0]), [0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]);
    }
}
