//! Connections that are kept from one request to the next one of the plugin.

use serde_json::{Value, json};

use crate::support::{Authority, Bench, Web, eventually};

/// A bench with the queue `work` of the guest, which may ask these servers.
fn bench(guest: &str, origins: &[String], bounds: &str) -> Bench {
    let bench = Bench::new(&format!(
        "[queues.work]\nplugin = \"{guest}\"\nmax_retries = 0\n\
         [plugins.{guest}]\nallowed_hosts = {origins:?}\nhttp = {{ {bounds} }}\n"
    ));
    bench.install(guest, guest);
    bench
}

/// The answer to a task that asked for this page.
#[track_caller]
fn fetched(bench: &mut Bench, url: &str) -> Value {
    let id = bench.xadd("work", &[("url", url)]);
    bench.until("work", &id, "COMPLETED");
    let result: Value = serde_json::from_str(&bench.status("work", &id, "result")).expect("JSON");
    if result["error"].is_null() || result["error"] == "" { result["body"].clone() } else { result }
}

#[track_caller]
fn until_closed(web: &Web) {
    eventually("no connection is open", || (web.open().0 == 0).then_some(()));
}

#[test]
fn requests_to_one_server_share_a_connection_from_task_to_task() {
    let authority = Authority::new();
    let (plain, secure) = (Web::start(), Web::start_tls(&authority, "localhost"));
    let origins = [plain.origin(), format!("https://localhost:{}", secure.port)];
    let mut bench = bench("fetches", &origins, "keep_alive = \"5m\", ca = \"ca.pem\"");
    std::fs::write(bench.dir.path().join("ca.pem"), authority.pem()).expect("write the certificate");
    let host = bench.host();
    for (web, origin) in [(&plain, &origins[0]), (&secure, &origins[1])] {
        for requests in ["1", "2", "3"] {
            assert_eq!(fetched(&mut bench, &format!("{origin}/kept")), requests);
        }
        assert_eq!((web.connections(), web.open().0), (1, 1));
    }
    // Another version, or other grants, begin with connections of their own.
    let text = std::fs::read_to_string(bench.config()).expect("the configuration");
    bench.configure(&text.replace("keep_alive = \"5m\"", "keep_alive = \"4m\""));
    until_closed(&plain);
    until_closed(&secure);
    assert_eq!(fetched(&mut bench, &format!("{}/kept", origins[1])), "1");
    host.stop();
    until_closed(&secure);
}

#[test]
fn a_connection_is_kept_for_as_long_as_the_plugin_and_the_server_say() {
    for (bounds, page) in [
        ("keep_alive = \"0s\"", "/kept"),
        ("keep_alive = \"100ms\"", "/kept"),
        ("keep_alive = \"5m\"", "/kept-for?1"),
        ("keep_alive = \"5m\"", "/closing"),
    ] {
        let web = Web::start();
        let mut bench = bench("fetches", &[web.origin()], bounds);
        let host = bench.host();
        for connections in [1, 2] {
            assert_eq!(fetched(&mut bench, &format!("{}{page}", web.origin())), "1", "{bounds}, {page}");
            until_closed(&web);
            assert_eq!(web.connections(), connections, "{bounds}, {page}");
        }
        let head = fetched(&mut bench, &format!("{}/echo", web.origin())).to_string();
        assert_eq!(head.contains("connection: close"), bounds.contains("0s\""), "{head}");
        host.stop();
    }
}

#[test]
fn a_response_that_was_not_read_to_its_end_closes_its_connection() {
    let web = Web::start();
    let mut bench = bench("opens-many", &[web.origin()], "keep_alive = \"5m\"");
    let host = bench.host();
    let id = bench.xadd("work", &[("url", &format!("{}/left", web.origin())), ("count", "2")]);
    bench.until("work", &id, "COMPLETED");
    until_closed(&web);
    host.stop();
}

#[test]
fn a_connection_that_waits_makes_room_for_one_to_another_server() {
    let webs = [Web::start(), Web::start()];
    let origins = webs.each_ref().map(Web::origin);
    let mut bench = bench("fetches", &origins, "keep_alive = \"5m\", max_connections = 1");
    let host = bench.host();
    for (n, requests) in [(0, "1"), (0, "2"), (1, "1"), (1, "2"), (0, "1")] {
        assert_eq!(fetched(&mut bench, &format!("{}/kept", origins[n])), requests);
        until_closed(&webs[1 - n]);
    }
    assert_eq!(json!(webs.each_ref().map(Web::connections)), json!([2, 1]));
    host.stop();
}
