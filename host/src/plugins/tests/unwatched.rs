//! Tests of a watcher that fails, which only a bug can cause: `/readyz` has an error then.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::{ECHO, Folder, QUICK, checks_the_clock, from, handler, result};
use crate::admin::tokens::Tokens;
use crate::admin::{self, AdminState, Health, RefusedTokens};
use crate::app::tell_when_ready;
use crate::file::{Found, Stamp};
use crate::plugins::life::{LifeEvent, LoadEnd};
use crate::plugins::retries::Pauses;
use crate::plugins::{Plugins, Times, UNWATCHED};

#[tokio::test]
async fn a_watcher_that_fails_is_told_of_and_what_runs_goes_on() {
    let folder = Folder::new();
    folder.put(&handler(ECHO));
    // No clock has the moment at which the next try would come: to compute it is a panic.
    let pauses = Pauses { first: Duration::MAX, longest: Duration::MAX };
    let plugins = folder.start_with(Times { pauses, ..QUICK }, from(60)).await;
    let active = plugins.subscribe("p");
    assert!(tokio::time::timeout(Duration::ZERO, plugins.unwatched()).await.is_err());
    folder.put(&checks_the_clock());
    readyz_tells(&plugins).await;
    let version = active.borrow().clone().unwrap();
    assert_eq!(result(&version).await, Some(b"1-0".to_vec()));
}

#[tokio::test]
async fn failures_in_the_background_are_told_of() {
    let folder = Folder::new();
    folder.put(&handler(ECHO));
    let plugins = folder.start().await;
    plugins.entries()[0].in_background(|_| panic!("a bug"));
    readyz_tells(&plugins).await;
    // The watcher has ended, too.
    folder.tracker.close();
    tokio::time::timeout(Duration::from_secs(20), folder.tracker.wait()).await.expect("it still watches");
}

/// Waits until `/readyz` of a host with these plugins answers that the watcher has failed.
async fn readyz_tells(plugins: &Plugins) {
    let health = Health::new(Duration::from_secs(600));
    let listener = admin::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let state = AdminState {
        metrics: Arc::default(),
        health: health.clone(),
        tokens: Tokens::default(),
        refused: RefusedTokens::default(),
        listen: address,
        api: Arc::default(),
        pages: Arc::default(),
    };
    tokio::spawn(admin::serve(listener, state, CancellationToken::new()));
    let told = tell_when_ready(plugins.clone(), health);
    tokio::time::timeout(Duration::from_secs(20), told).await.expect("nobody is told");
    let mut readyz = TcpStream::connect(address).await.unwrap();
    let request = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    readyz.write_all(request).await.unwrap();
    let mut answer = String::new();
    readyz.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains(UNWATCHED), "{answer}");
}

#[tokio::test]
async fn a_watcher_that_was_told_to_stop_has_not_failed() {
    let folder = Folder::new();
    folder.put(&handler(ECHO));
    let plugins = folder.start().await;
    folder.stop.cancel();
    folder.tracker.close();
    folder.tracker.wait().await;
    assert!(tokio::time::timeout(Duration::ZERO, plugins.unwatched()).await.is_err());
}

#[tokio::test]
async fn a_step_that_fails_is_told_of_whoever_takes_it() {
    let plugins = Plugins::without_files(&["p"]);
    let entry = plugins.entries().remove(0);
    drop(entry.tell(LifeEvent::Found(Found::File(Stamp::numbered(1)), true)));
    drop(entry.ended(1, LoadEnd::Read("0".repeat(64)), None));
    assert!(tokio::time::timeout(Duration::ZERO, plugins.unwatched()).await.is_err());
    // It is published, and nobody has made it.
    let step = || drop(entry.ended(2, LoadEnd::Made, None));
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(step)).unwrap_err();
    readyz_tells(&plugins).await;
}
