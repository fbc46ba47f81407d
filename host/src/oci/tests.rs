//! Answers that a registry may give, and a hostile one will: a small server gives each of them.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use super::call::digest_of;
use super::manifest;
use super::{OciError, RegistryHttp, Repository};
use crate::config::OciReference;

const WASM: &[u8] = b"\0asm\x0d\0\x01\0";
/// The connection is not used again.
const CLOSE: &str = "connection: close\r\n";

/// Answers each request, given by its first line and its headers, and then closes the connection.
struct Registry {
    address: String,
    asked: Receiver<String>,
}

impl Registry {
    fn start(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Registry {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let ((told, asked), answer) = (channel(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, told, answer) =
                    (stream.expect("a connection"), told.clone(), answer.clone());
                std::thread::spawn(move || {
                    let (mut head, mut byte) = (Vec::new(), [0]);
                    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
                        head.push(byte[0]);
                    }
                    let head = String::from_utf8_lossy(&head).into_owned();
                    let _ = told.send(head.clone());
                    // Whoever has heard enough closes the connection.
                    let _ = stream.write_all(&answer(&head));
                });
            }
        });
        Registry { address, asked }
    }

    /// A registry with this plugin under every tag, whose answers for layers are `layer`.
    fn with_layer(layer: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Registry {
        Registry::start(move |head| match head.contains("/manifests/") {
            true => ok(&manifest::make(WASM, &[], &[]).1),
            false => layer(),
        })
    }

    fn reference(&self, rest: &str) -> OciReference {
        OciReference::parse(&format!("oci://{}/team/x{rest}", self.address)).expect("a reference")
    }

    async fn pull(&self, rest: &str) -> Result<Vec<u8>, OciError> {
        let repository = Repository::new(RegistryHttp::new()?, &self.reference(rest));
        let manifest = repository.manifest().await?;
        let mut bytes = Vec::new();
        repository.layer(&manifest.layer, &mut bytes).await?;
        Ok(bytes)
    }
}

fn ok(body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\n{CLOSE}content-length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
}

fn status(line: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {line}\r\n{headers}{CLOSE}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

#[track_caller]
fn assert_refused(pulled: Result<Vec<u8>, OciError>, may_pass: bool, why: &str) {
    let error = pulled.expect_err("the pull must fail");
    assert!(error.why.contains(why), "{error} does not have {why:?}");
    assert_eq!(error.may_pass, may_pass, "{error}");
}

#[tokio::test]
async fn a_plugin_is_pulled_by_tag_and_by_digest() {
    let registry = Registry::with_layer(|| ok(WASM));
    let digest = digest_of(&manifest::make(WASM, &[], &[]).1);
    assert_eq!(registry.pull(":1").await.expect("by tag"), WASM);
    assert_eq!(registry.pull(&format!(":1@{digest}")).await.expect("by digest"), WASM);
    let asked: Vec<String> = registry.asked.try_iter().collect();
    assert!(asked[0].starts_with("GET /v2/team/x/manifests/1 ") && asked[2].contains(&digest), "{asked:?}");
    let other = format!("@{}", digest_of(b"other"));
    assert_refused(registry.pull(&other).await, false, "another manifest than that of sha256:");
}

#[tokio::test]
async fn layers_that_are_not_those_of_the_manifest_are_refused() {
    let other = Registry::with_layer(|| ok(b"\0asm\x0d\0\x01\x01"));
    assert_refused(other.pull(":1").await, false, "the layer is not the one of its manifest");
    let short = Registry::with_layer(|| ok(&WASM[..5]));
    assert_refused(short.pull(":1").await, true, "ended 3 bytes early");
    let broken = Registry::with_layer(|| b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n\0asm".to_vec());
    assert_refused(broken.pull(":1").await, true, "broke off");
    // Without a length it may go on for ever. The host hears no more than the manifest says.
    let endless = Registry::with_layer(|| {
        [b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n".as_slice(), &vec![0; 64 << 20]].concat()
    });
    assert_refused(endless.pull(":1").await, false, "longer than the 8 bytes of its manifest");
}

#[tokio::test]
async fn a_plugin_that_is_too_large_is_refused_before_it_is_pulled() {
    let made = String::from_utf8(manifest::make(WASM, &[], &[]).1).expect("text");
    let large = made.replace("\"size\":8", "\"size\":100663297");
    assert_ne!(large, made);
    let registry = Registry::start(move |_| ok(large.as_bytes()));
    assert_refused(registry.pull(":1").await, false, "has 100663297 bytes, and may have 96 MiB");
    assert_eq!(registry.asked.try_iter().count(), 1);
}

#[tokio::test]
async fn manifests_without_an_end_and_other_answers_are_refused() {
    let endless = Registry::start(|_| ok(&vec![b' '; 2 << 20]));
    assert_refused(endless.pull(":1").await, false, "more than 1048576 bytes");
    let page = Registry::start(|_| ok(b"<html>"));
    assert_refused(page.pull(":1").await, false, "something else than a manifest");
    let garbage = Registry::start(|_| b"\x16\x03\x01".to_vec());
    assert_refused(garbage.pull(":1").await, true, "cannot be reached");
    let unknown = r#"{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "\u001b[2J"}]}"#;
    for (line, may_pass, why) in [
        ("404 Not Found", false, "has no team/x with 1 (404 MANIFEST_UNKNOWN): push it"),
        ("429 Too Many", true, "was asked too often (429 MANIFEST_UNKNOWN)"),
        ("500 No", true, "does not work (500 MANIFEST_UNKNOWN)"),
        ("302 Found", false, "answers 302 MANIFEST_UNKNOWN"),
    ] {
        let registry = Registry::start(move |_| status(line, "location: http://127.0.0.1:1/\r\n", unknown));
        assert_refused(registry.pull(":1").await, may_pass, why);
    }
    let away = Registry { address: "127.0.0.1:1".into(), asked: channel().1 };
    assert_refused(away.pull(":1").await, true, "127.0.0.1:1 cannot be reached");
}

#[tokio::test]
async fn a_layer_may_be_elsewhere_but_not_everywhere() {
    let store = Registry::start(|_| ok(WASM));
    let to = format!("location: http://{}/stored\r\n", store.address);
    let registry = Registry::with_layer(move || status("307 Temporary Redirect", &to, ""));
    assert_eq!(registry.pull(":1").await.expect("from the store"), WASM);
    let asked = store.asked.try_iter().next().expect("it was asked");
    assert!(asked.starts_with("GET /stored ") && !asked.to_lowercase().contains("authorization"), "{asked}");

    let circle = Registry::with_layer(|| status("302 Found", "location: /v2/again\r\n", ""));
    assert_refused(circle.pull(":1").await, false, "redirects too often");
    let file = Registry::with_layer(|| status("302 Found", "location: file:///etc/passwd\r\n", ""));
    assert_refused(file.pull(":1").await, false, "leads to a place without TLS");
}

#[tokio::test]
async fn a_header_that_has_expired_is_asked_for_again() {
    // As registries of AWS answer: an old header gets no question.
    for refusal in ["403 Forbidden", "400 Bad Request"] {
        let given = std::sync::atomic::AtomicUsize::new(0);
        let registry = Registry::start(move |head| {
            let host = head.lines().find_map(|line| line.strip_prefix("host: ")).expect("a host").to_owned();
            if head.starts_with("GET /token") {
                let number = given.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1;
                return ok(format!("{{\"token\": \"t{number}\"}}").as_bytes());
            }
            match (head.contains("/manifests/"), head.contains("Bearer t1"), head.contains("Bearer t2")) {
                (true, true, _) | (true, _, true) => ok(&manifest::make(WASM, &[], &[]).1),
                (false, true, _) => status(refusal, "", ""),
                (false, _, true) => ok(WASM),
                _ => {
                    let asks = format!("www-authenticate: Bearer realm=\"http://{host}/token\"\r\n");
                    status("401 Unauthorized", &asks, "")
                }
            }
        });
        assert_eq!(registry.pull(":1").await.expect(refusal), WASM);
    }
    let elsewhere = "www-authenticate: Bearer realm=\"http://registry.example/token\"\r\n";
    let registry = Registry::start(move |_| status("401 Unauthorized", elsewhere, ""));
    assert_refused(registry.pull(":1").await, false, "a service for tokens that is not on TLS");
}

#[tokio::test]
async fn a_token_is_fetched_once_and_only_over_tls_for_others() {
    let registry = Registry::start(|head| {
        let host = head.lines().find_map(|line| line.strip_prefix("host: ")).expect("a host").to_owned();
        if head.starts_with("GET /token?scope=repository%3Ateam%2Fx%3Apull&service=r ") {
            return ok(br#"{"token": "abc"}"#);
        }
        match head.contains("authorization: Bearer abc") {
            true if head.contains("/manifests/") => ok(&manifest::make(WASM, &[], &[]).1),
            true => ok(WASM),
            false => {
                let asks = format!("Bearer realm=\"http://{host}/token\",service=\"r\"");
                status("401 Unauthorized", &format!("www-authenticate: {asks}\r\n"), "")
            }
        }
    });
    assert_eq!(registry.pull(":1").await.expect("with a token"), WASM);
    assert_eq!(registry.asked.try_iter().count(), 4, "refused, token, manifest, layer");

    let asks = "www-authenticate: Basic realm=\"r\"\r\n";
    let private = Registry::start(move |_| status("401 Unauthorized", asks, ""));
    assert_refused(private.pull(":1").await, false, "docker login writes them");
}
