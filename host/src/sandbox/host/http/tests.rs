//! Tests which requests are allowed, before any connection is made.

use std::net::SocketAddr;

use tokio::runtime::Handle;

use super::*;
use crate::config::allowed::parse_host;
use crate::config::{Config, Plugin};
use crate::sandbox::log::GuestLog;
use crate::sandbox::number::VersionNumber;
use crate::sandbox::slices::TimeSlices;
use crate::sandbox::testing;

pub(super) fn target(url: &str) -> Target {
    Target::of(&url.parse().expect(url)).expect(url)
}

/// The grant of a plugin with this list of `allowed_hosts`, with this lookup.
pub(super) fn grant_with(hosts: &str, lookup: fn(&str, u16) -> std::io::Result<Vec<SocketAddr>>) -> Grant {
    let text = format!(
        "[queues.a]\n[plugins.a]\nallowed_hosts = {hosts}\nhttp = {{ max_concurrent = 2, max_requests = 5 }}"
    );
    let config = Config::parse(&text, std::path::Path::new("/x/tqhost.toml"), &|_| None).expect("valid");
    let polls = TimeSlices::new(1).polls(VersionNumber::fresh());
    Grant { lookup, ..Grant::new(&config.plugins["a"], Handle::current(), polls, Arc::default()) }
}

fn client(hosts: &[&str]) -> Hooks {
    let log =
        GuestLog::new(Arc::new(vec![testing::task()]), "p".into(), None, Arc::default(), testing::quota());
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    Client::new(
        Arc::new(grant_with(&format!("{hosts:?}"), |_, _| Ok(Vec::new()))),
        log.subject(),
        deadline,
        RequestTrace::default(),
        Arc::default(),
        CancellationToken::new(),
        true,
    )
    .hooks
}

fn request(url: &str) -> http::Request<WasiBody> {
    use http_body_util::{BodyExt, Empty};
    let body = Empty::new().map_err(|never: std::convert::Infallible| match never {}).boxed_unsync();
    http::Request::get(url).body(body).expect(url)
}

#[test]
fn targets_have_one_spelling() {
    let table = [
        ("http://example.com/a?b=c", "http://example.com"),
        ("https://EXAMPLE.com:443/", "https://example.com"),
        ("https://example.com.:8443/", "https://example.com:8443"),
        ("http://example.com:/", "http://example.com"),
        ("http://2130706433/", "http://127.0.0.1"),
        ("http://0x7f000001/", "http://127.0.0.1"),
        ("http://017700000001/", "http://127.0.0.1"),
        ("http://127.1/", "http://127.0.0.1"),
        ("http://0177.0.0.0x1./", "http://127.0.0.1"),
        ("http://[0:0:0:0:0:0:0:1]:81/", "http://[::1]:81"),
        ("http://[::FFFF:7f00:1]/", "http://[::ffff:127.0.0.1]"),
    ];
    for (url, shown) in table {
        // Some parsers write an embedded address as hexadecimal digits.
        let shown = shown.replace(
            "[::ffff:127.0.0.1]",
            &format!("{}", parse_host("[::ffff:127.0.0.1]").expect("an address")),
        );
        assert_eq!(target(url).to_string(), shown, "{url}");
    }
}

#[test]
fn a_text_that_is_no_target_is_none() {
    for url in [
        "http://user@example.com/",
        "http://user:password@127.0.0.1/",
        "http://example.com@127.0.0.1/",
        "ftp://example.com/",
        "http://999.999.999.999/",
        "http://1.2.3.4.5/",
        "http://example.com:99999/",
        "http://a..b/",
        "/relative",
        "*",
    ] {
        if let Ok(uri) = url.parse() {
            assert_eq!(Target::of(&uri), None, "{url}");
        }
    }
}

#[tokio::test]
async fn only_allowed_hosts_are_asked() {
    let hosts = ["https://api.example.com", "http://127.0.0.1:8080", "https://*.example.org"];
    for (url, allowed) in [
        ("https://api.example.com/v1", true),
        ("https://API.EXAMPLE.COM./v1", true),
        ("http://api.example.com/", false),
        ("https://api.example.com:8443/", false),
        ("https://example.com/", false),
        ("https://a.example.org/", true),
        ("https://example.org/", false),
        ("http://127.0.0.1:8080/", true),
        ("http://2130706433:8080/", true),
        ("http://127.0.0.1/", false),
        ("http://127.0.0.2:8080/", false),
        ("http://localhost:8080/", false),
        ("http://[::1]:8080/", false),
        ("http://169.254.169.254/", false),
    ] {
        let admitted = client(&hosts).admit(request(url), None).map(drop);
        match allowed {
            true => assert!(admitted.is_ok(), "{url}: {admitted:?}"),
            false => assert!(matches!(admitted, Err(Error::HttpRequestDenied)), "{url}: {admitted:?}"),
        }
    }
    assert!(matches!(
        client(&[]).admit(request("https://api.example.com/"), None).map(drop),
        Err(Error::HttpRequestDenied)
    ));
}

#[tokio::test]
async fn requests_are_counted() {
    let mut client = client(&["http://a.example"]);
    let open: Vec<_> = (0..2)
        .map(|_| client.admit(request("http://a.example/"), None).map_err(|error| error.to_string()))
        .collect();
    assert!(open.iter().all(Result::is_ok));
    let third = client.admit(request("http://a.example/"), None).map(drop);
    assert!(matches!(third, Err(Error::ConnectionLimitReached)), "{third:?}");
    drop(open);
    for _ in 0..2 {
        assert!(client.admit(request("http://a.example/"), None).is_ok());
    }
    let sixth = client.admit(request("http://a.example/"), None).map(drop);
    assert!(matches!(sixth, Err(Error::HttpRequestDenied)), "{sixth:?}");
}

#[tokio::test]
async fn a_guest_can_shorten_the_timeouts_only() {
    let mut client = client(&["http://a.example"]);
    let asked = |seconds| RequestOptions {
        connect_timeout: Some(Duration::from_secs(seconds)),
        first_byte_timeout: Some(Duration::from_secs(seconds)),
        between_bytes_timeout: Some(Duration::from_secs(seconds)),
    };
    let mut times = |options| {
        client
            .admit(request("http://a.example/"), options)
            .map_err(|error| error.to_string())
            .expect("admitted")
            .times
    };
    let bounds = Plugin::default().http;
    for (options, [connect, first_byte, between_bytes]) in [
        (None, [bounds.connect_timeout, bounds.first_byte_timeout, bounds.between_bytes_timeout]),
        (Some(asked(1)), [Duration::from_secs(1); 3]),
        (
            Some(asked(3600)),
            [bounds.connect_timeout, bounds.first_byte_timeout, bounds.between_bytes_timeout],
        ),
    ] {
        let times = times(options);
        assert_eq!(
            [times.connect, times.first_byte, times.between_bytes],
            [connect, first_byte, between_bytes]
        );
    }
}
