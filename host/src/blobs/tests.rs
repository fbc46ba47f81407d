//! Tests of the store with local files, and of a store in the network that does not answer.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Instant;

use super::*;
use crate::config::{BlobStore, Bucket};

fn settings(store: BlobStore) -> BlobSettings {
    BlobSettings { store, max_blob: 1000, timeout: Duration::from_secs(20), ca: Vec::new() }
}

fn local(root: &Path) -> Blobs {
    Blobs::open(&settings(BlobStore::Files(root.to_owned()))).expect("a store")
}

fn name(text: &str) -> BlobName {
    BlobName::new(text.to_owned()).expect("a name")
}

async fn put(blobs: &Blobs, plugin: &str, at: &str, text: &str) -> Result<String, BlobError> {
    blobs.put(plugin, &name(at), "text/plain".to_owned(), Bytes::copy_from_slice(text.as_bytes())).await
}

async fn get(blobs: &Blobs, plugin: &str, at: &str) -> Result<String, BlobError> {
    let data = blobs.find(plugin, &name(at)).await?.read().await?;
    Ok(String::from_utf8(data).expect("text"))
}

#[tokio::test]
async fn a_blob_is_a_file_in_the_folder_of_its_plugin() {
    let dir = tempfile::tempdir().expect("a folder");
    let root = dir.path().join("deep/blobs of mine");
    let blobs = local(&root);
    assert_eq!(
        get(&blobs, "p", "a/b.csv").await,
        Err(BlobError::NotFound("there is no blob `a/b.csv`".into()))
    );
    assert!(!root.exists(), "a read makes no folder");
    let url = put(&blobs, "p", "a/b.csv", "first").await.expect("written");
    let file = root.join("p/a/b.csv");
    assert_eq!(url::Url::parse(&url).expect("a url").to_file_path(), Ok(file.clone()), "{url}");
    assert_eq!(get(&blobs, "p", "a/b.csv").await.as_deref(), Ok("first"));
    put(&blobs, "p", "a/b.csv", "second").await.expect("replaced");
    assert_eq!(fs::read_to_string(&file).expect("a file"), "second");
    put(&blobs, "p", "empty", "").await.expect("an empty one");
    assert_eq!(get(&blobs, "p", "empty").await.as_deref(), Ok(""));
    assert!(matches!(get(&blobs, "q", "a/b.csv").await, Err(BlobError::NotFound(_))), "another plugin's");
    let names: Vec<_> = fs::read_dir(root.join("p/a"))
        .expect("a folder")
        .map(|entry| entry.expect("one").file_name())
        .collect();
    assert_eq!(names, ["b.csv"], "nothing is left beside it");
}

#[tokio::test]
async fn a_blob_that_is_too_large_is_neither_written_nor_read() {
    let dir = tempfile::tempdir().expect("a folder");
    let blobs = local(dir.path());
    let why = BlobError::TooLarge("the blob has 1001 bytes; max_blob is 1000".into());
    assert_eq!(put(&blobs, "p", "a", &"x".repeat(1001)).await, Err(why.clone()));
    assert!(!dir.path().join("p").exists());
    fs::create_dir(dir.path().join("p")).expect("a folder");
    fs::write(dir.path().join("p/a"), "x".repeat(1001)).expect("a file of somebody else");
    assert_eq!(get(&blobs, "p", "a").await, Err(why));
}

#[tokio::test]
async fn no_link_leads_out_of_the_folder() {
    let (dir, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("another"));
    fs::write(other.path().join("secret"), "hunter2").expect("a file");
    let blobs = local(dir.path());
    put(&blobs, "p", "a", "x").await.expect("written");
    symlink(other.path(), dir.path().join("p/linked")).expect("a link to a folder");
    symlink(other.path().join("secret"), dir.path().join("p/file")).expect("a link to a file");
    symlink(other.path().join("new"), dir.path().join("p/new")).expect("a link to nothing");
    symlink(other.path(), dir.path().join("q")).expect("a link in the place of a plugin's folder");
    let mut told = Vec::new();
    for (plugin, at) in [("p", "linked/secret"), ("p", "file"), ("p", "new"), ("q", "secret")] {
        for answer in [get(&blobs, plugin, at).await, put(&blobs, plugin, at, "x").await] {
            let Err(BlobError::Unavailable(why)) = answer else { panic!("{at}: {answer:?}") };
            told.push(why.replace(&dir.path().display().to_string(), "DIR"));
        }
    }
    told.dedup();
    insta::assert_snapshot!(told.join("\n"), @r"
    the object store cannot be used: DIR/p/linked is a symbolic link: put a file or a folder there
    the object store cannot be used: DIR/p/file is a symbolic link: put a file or a folder there
    the object store cannot be used: DIR/p/new is a symbolic link: put a file or a folder there
    the object store cannot be used: DIR/q is a symbolic link: put a file or a folder there
    ");
    assert_eq!(fs::read_to_string(other.path().join("secret")).expect("the file"), "hunter2");
    assert_eq!(fs::read_dir(other.path()).expect("the folder").count(), 1);
}

#[tokio::test]
async fn a_folder_is_no_blob_and_a_blob_no_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    let blobs = local(dir.path());
    put(&blobs, "p", "a/b", "x").await.expect("written");
    assert!(get(&blobs, "p", "a").await.is_err());
    assert!(put(&blobs, "p", "a", "y").await.is_err());
    assert!(put(&blobs, "p", "a/b/c", "y").await.is_err());
    assert_eq!(get(&blobs, "p", "a/b").await.as_deref(), Ok("x"));
}

#[tokio::test]
async fn a_folder_that_cannot_be_made_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("blobs"), "a file").expect("a file");
    let blobs = local(&dir.path().join("blobs"));
    let answer = put(&blobs, "p", "a", "x").await;
    let shown = dir.path().join("blobs").display().to_string();
    assert!(matches!(&answer, Err(BlobError::Unavailable(why)) if why.contains(&shown)), "{answer:?}");
}

/// A store at this address, with the time for one call.
fn away(endpoint: String, timeout: Duration) -> Blobs {
    let bucket = Bucket { name: "files".into(), prefix: "tq".into() };
    let [id, secret] = ["id", "hunter2-of-the-store"].map(crate::config::Secret::new);
    let key = Some(crate::config::store::S3Key { id, secret, session_token: None });
    let store = BlobStore::S3 { bucket, endpoint: Some(endpoint), region: None, key };
    Blobs::open(&BlobSettings { timeout, ..settings(store) }).expect("a store")
}

#[tokio::test]
async fn a_store_that_gives_no_answer_is_unavailable_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let blobs =
        away(format!("http://{}", listener.local_addr().expect("an address")), Duration::from_millis(300));
    let started = Instant::now();
    let answer = put(&blobs, "p", "a", "x").await;
    assert_eq!(answer, Err(BlobError::Unavailable("the object store gave no answer within 300ms".into())));
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    let (mut tcp, _) = listener.accept().expect("a connection");
    let mut head = [0; 32];
    tcp.read_exact(&mut head).expect("a request");
    assert!(head.starts_with(b"PUT /files/tq/p/a HTTP/1.1\r\n"), "{:?}", String::from_utf8_lossy(&head));
}

#[tokio::test]
async fn a_store_that_is_away_is_unavailable_without_its_secrets() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let blobs = away(format!("http://{address}"), Duration::from_secs(20));
    for answer in [put(&blobs, "p", "a", "x").await, get(&blobs, "p", "a").await] {
        let Err(BlobError::Unavailable(why)) = answer else { panic!("{answer:?}") };
        assert!(why.starts_with("`a` cannot be ") && !why.contains("hunter2"), "{why}");
        assert!(why.len() < 500, "{why}");
    }
}
