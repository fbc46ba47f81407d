//! Blobs in a real server that speaks S3: moto, which checks signatures and rights.
//!
//! boto3 looks at the objects, a client that tqhost has no part in.
//!
//! Not here: local files (`handlers::blobs`), the server itself (`s3_server`).

use serde_json::{Value, json};

use crate::s3_server::S3Server;
use crate::support::{Authority, Bench, eventually};

const QUEUE: &str = "[queues.work]\nplugin = \"keeps-blobs\"\nmax_retries = 2\nbackoff = \"none\"\n";

/// A bench whose blobs are in the bucket of this server, below `prefix`.
fn bench(server: &S3Server, prefix: &str, more: &str) -> Bench {
    let bench = Bench::new("");
    // The key is a secret, so it is in a file of its own.
    std::fs::write(bench.dir.path().join("key"), &server.secret).expect("write the key");
    let blobs = format!(
        "[blobs]\nurl = \"s3://files/{prefix}\"\nendpoint = \"{}\"\naccess_key_id = \"{}\"\n\
         secret_access_key = {{ file = \"key\" }}\nmax_blob = \"10MiB\"\ntimeout = \"20s\"\n{more}",
        server.url, server.id
    );
    bench.configure_for(&format!("{QUEUE}{blobs}"), bench.redis.port);
    bench.install("keeps-blobs", "keeps-blobs");
    bench
}

fn told(bench: &mut Bench, calls: &Value) -> String {
    bench.xadd("work", &[("do", &calls.to_string())])
}

#[track_caller]
fn results(bench: &mut Bench, id: &str) -> Value {
    bench.until("work", id, "COMPLETED");
    serde_json::from_str(&bench.status("work", id, "result")).expect("the result is JSON")
}

/// The results of a new task that makes these calls.
#[track_caller]
fn done(bench: &mut Bench, calls: Value) -> Value {
    let id = told(bench, &calls);
    results(bench, &id)
}

#[track_caller]
fn assert_error(result: &Value, kind: &str, why: &str) {
    let error = result["error"].as_str().unwrap_or_else(|| panic!("{result} is no error"));
    assert!(error.starts_with(kind) && error.contains(why), "{error}");
}

#[test]
fn a_blob_is_an_object_below_the_prefix_with_its_content_type() {
    let server = S3Server::start(None);
    let mut bench = bench(&server, "tq", "");
    let host = bench.host();
    let name = "7+1/report@v1=a,b:c.csv";
    let calls = json!([
        ["get", name],
        ["put", name, "text/csv", "id\n1\n"],
        ["put", "plain", "", "x"],
        ["get", name]
    ]);
    let seen = done(&mut bench, calls);
    assert_error(&seen[0], "NotFound", "there is no blob");
    assert_eq!(seen[1], format!("s3://files/tq/keeps-blobs/{name}"));
    assert_eq!(seen[3], "id\n1\n");
    assert_eq!(
        server.objects(),
        [
            (format!("tq/keeps-blobs/{name}"), "text/csv".to_owned(), b"id\n1\n".to_vec()),
            ("tq/keeps-blobs/plain".to_owned(), "application/octet-stream".to_owned(), b"x".to_vec()),
        ]
    );
    let seen =
        done(&mut bench, json!([["fill", "large", 10 << 20], ["size", "large"], ["put", "large", "", ""]]));
    assert_eq!(seen[1], 10 << 20);
    assert_eq!(done(&mut bench, json!([["size", "large"]])), json!([0]), "it was replaced");
    host.stop();
}

#[test]
fn a_refused_write_leaves_no_object() {
    let server = S3Server::start(None);
    let mut bench = bench(&server, "tq", "");
    let host = bench.host();
    let calls = json!([
        ["put", "../other/a", "", "x"],
        ["fill", "a", (10 << 20) + 1],
        ["put", "a", "csv", "x"],
        ["get", "a"]
    ]);
    let seen = done(&mut bench, calls);
    assert_error(&seen[0], "InvalidName", "a part `.` or `..`");
    assert_error(&seen[1], "TooLarge", "max_blob is 10485760");
    assert_error(&seen[2], "InvalidName", "the content type");
    assert_error(&seen[3], "NotFound", "");
    assert_eq!(server.objects(), []);
    server.put("tq/keeps-blobs/large", 11 << 20);
    assert_error(&done(&mut bench, json!([["size", "large"]]))[0], "TooLarge", "the blob has 11534336 bytes");
    host.stop();
}

#[test]
fn a_host_without_the_right_is_told_so_and_shows_no_key() {
    let server = S3Server::start(None);
    // The key may use `tq/` only.
    let mut other = bench(&server, "elsewhere", "");
    let host = other.host();
    let seen = done(&mut other, json!([["put", "a", "", "x"]]));
    assert_error(
        &seen[0],
        "Unavailable",
        "`a` cannot be written: the object store refuses the host's credentials",
    );
    host.stop();

    let mut forged = bench(&server, "tq", "");
    let secret = format!("{}x", &server.secret[..39]);
    std::fs::write(forged.dir.path().join("key"), &secret).expect("write the key");
    let host = forged.host();
    let seen = done(&mut forged, json!([["put", "a", "", "x"], ["get", "a"]]));
    for result in seen.as_array().expect("a list") {
        assert_error(result, "Unavailable", "the object store refuses the host's credentials");
        assert!(!result.to_string().contains(&secret), "{result}");
    }
    assert!(!host.stop_for_log().raw().contains(&secret));
    assert_eq!(server.objects(), []);
}

#[test]
fn a_store_that_comes_back_gets_the_blob_of_the_next_attempt() {
    let mut server = S3Server::start(None);
    let mut bench = bench(&server, "tq", "");
    let host = bench.host();
    done(&mut bench, json!([["put", "a", "", "x"]]));
    server.stop();
    let seen = done(&mut bench, json!([["put", "b", "", "x"], ["get", "a"]]));
    assert_error(&seen[0], "Unavailable", "`b` cannot be written");
    assert_error(&seen[1], "Unavailable", "`a` cannot be read");
    server.start_again();
    // moto keeps everything in its memory, so the server that came back is empty.
    eventually("the store is used again", || {
        done(&mut bench, json!([["put", "c", "", "x"]]))[0].is_string().then_some(())
    });
    assert_eq!(server.objects().len(), 1);
    host.stop();
}

#[test]
fn a_server_with_tls_is_trusted_by_its_authority_only() {
    let authority = Authority::new();
    let server = S3Server::start(Some(&authority));
    assert!(server.url.starts_with("https://"));
    let mut untrusted = bench(&server, "tq", "");
    let host = untrusted.host();
    assert_error(&done(&mut untrusted, json!([["put", "a", "", "x"]]))[0], "Unavailable", "certificate");
    host.stop();
    let mut trusted = bench(&server, "tq", "ca = \"ca.pem\"\n");
    std::fs::write(trusted.dir.path().join("ca.pem"), authority.pem()).expect("write the certificate");
    let host = trusted.host();
    let seen = done(&mut trusted, json!([["put", "a", "", "x"], ["get", "a"]]));
    assert_eq!(seen, json!(["s3://files/tq/keeps-blobs/a", "x"]));
    host.stop();
}
