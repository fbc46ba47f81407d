//! HTTP requests of handlers: which addresses they may reach, which resources they may use, and that no other
//! plugin notices.
//!
//! Not here: which addresses are public (unit tests of the sandbox).

use serde_json::Value;

use crate::support::names::names;
use crate::support::{Authority, Bench, Host, Places, Web, eventually};

/// The most memory that a host may use, in KiB: the host itself in a debug build, and ten attempts. Each
/// attempt has 16 MiB of memory, host memory for its handles, and buffers for what it reads and writes at
/// once.
const MEMORY: u64 = (96 << 10) + 10 * (24 << 10);

/// A bench with the plugin and queue `fetches`, whose file is the guest, with these grants and rules, and the
/// queue `other` of a plugin that works.
fn bench(guest: &str, grants: &str, rules: &str) -> Bench {
    let bench = Bench::new(&format!(
        "shutdown_grace = \"0s\"\n\
         [queues.work]\nplugin = \"{guest}\"\nmax_retries = 0\nbackoff = \"none\"\n{rules}\n\
         [queues.other]\nplugin = \"echo\"\n\
         [plugins.{guest}]\nmemory = \"16MiB\"\n{grants}\n"
    ));
    bench.install(guest, guest);
    bench.install("echo", "echo");
    bench
}

/// Runs one task to its completion and returns its result.
#[track_caller]
fn result(bench: &mut Bench, fields: &[(&str, &str)]) -> Value {
    let id = bench.xadd("work", fields);
    bench.until("work", &id, "COMPLETED");
    serde_json::from_str(&bench.status("work", &id, "result")).expect("a result in JSON")
}

#[track_caller]
fn fetched(bench: &mut Bench, url: &str) -> Value {
    result(bench, &[("url", url)])
}

/// The error code of a request; empty if it succeeds.
#[track_caller]
fn error(bench: &mut Bench, url: &str) -> String {
    fetched(bench, url)["error"].as_str().unwrap_or_default().to_owned()
}

/// The host must run the next task of another plugin, and no connection may be left.
#[track_caller]
fn still_well(bench: &mut Bench, host: &Host, web: &Web) {
    eventually("all connections are closed", || (web.open().0 == 0).then_some(()));
    let id = bench.xadd("other", &[("a", "1")]);
    bench.until("other", &id, "COMPLETED");
    assert_eq!(host.get("/readyz").status, 200);
    let (now, most) = host.memory();
    assert!(most < MEMORY, "the host uses {now} KiB and has used {most} KiB");
}

#[test]
fn a_request_goes_to_the_hosts_that_are_allowed_and_nowhere_else() {
    let (web, other) = (Web::start(), Web::start());
    let port = web.port;
    let mut bench = bench(
        "fetches",
        &format!("allowed_hosts = [\"{}\", \"http://*.example.org:{port}\"]", web.origin()),
        "",
    );
    let host = bench.host();
    let found =
        result(&mut bench, &[("url", &format!("{}/echo?key=value", web.origin())), ("headers", "x-own: 1")]);
    assert_eq!((&found["status"], &found["type"]), (&200.into(), &"text/plain".into()), "{found}");
    let head = found["body"].as_str().expect("a body").to_lowercase();
    for line in
        ["get /echo?key=value http/1.1\r\n", &format!("\r\nhost: 127.0.0.1:{port}\r\n"), "\r\nx-own: 1\r\n"]
    {
        assert!(head.contains(line), "{line:?} in {head}");
    }
    assert_eq!(head.matches("host:").count(), 1, "{head}");
    // Other spellings of the same address.
    for spelling in ["2130706433", "0x7f.1", "0177.0.0.1", "127.0.0.1."] {
        let found = fetched(&mut bench, &format!("http://{spelling}:{port}/echo"));
        assert_eq!(found["status"], 200, "{spelling}: {found}");
        assert!(
            found["body"]
                .as_str()
                .is_some_and(|head| head.to_lowercase().contains(&format!("\r\nhost: 127.0.0.1:{port}\r\n"))),
            "{found}"
        );
    }
    assert_eq!(web.requests(), 5);

    let denied = "HttpRequestDenied";
    let invalid = "HttpRequestUriInvalid";
    for (url, code) in [
        (format!("http://127.0.0.2:{port}/echo?token=hunter2"), denied),
        (format!("http://localhost:{port}/echo"), denied),
        (format!("http://[::1]:{port}/echo"), denied),
        (format!("http://[::ffff:127.0.0.1]:{port}/echo"), denied),
        (format!("http://0.0.0.0:{port}/echo"), denied),
        (format!("https://127.0.0.1:{port}/echo"), denied),
        (format!("http://127.0.0.1:{}/echo", other.port), denied),
        (format!("http://example.org:{port}/echo"), denied),
        (format!("http://127.0.0.1.example.net:{port}/echo"), denied),
        ("http://127.0.0.1/echo".to_owned(), denied),
        ("http://169.254.169.254/latest/meta-data".to_owned(), denied),
        (format!("http://user:hunter2@127.0.0.1:{port}/echo"), invalid),
        (format!("http://127.0.0.1:{port}@127.0.0.1:{}/echo", other.port), invalid),
        (format!("ftp://127.0.0.1:{port}/echo"), "HttpProtocolError"),
    ] {
        assert_eq!(error(&mut bench, &url), code, "{url}");
    }
    assert_eq!((web.requests(), other.requests()), (5, 0));
    let said = host
        .log(&format!("a request to http://127.0.0.2:{port} is refused: allowed_hosts does not allow it"));
    assert_eq!(
        (&said["plugin"], &said["queue"], &said["level"]),
        (&"fetches".into(), &"work".into(), &"WARN".into()),
        "{said}"
    );
    assert!(said["task"].is_string(), "{said}");
    assert!(!host.raw().contains("hunter2"), "no query and no password is logged");

    // The host sets the headers about the connection.
    for header in [
        "host: evil.example",
        "connection: keep-alive",
        "transfer-encoding: chunked",
        "proxy-authorization: x",
    ] {
        let found = result(&mut bench, &[("url", &format!("{}/echo", web.origin())), ("headers", header)]);
        assert!(
            found["error"].as_str().is_some_and(|error| error.contains("Forbidden")),
            "{header}: {found}"
        );
    }
    let found = result(&mut bench, &[("url", &format!("{}/echo", web.origin())), ("method", "CONNECT")]);
    assert_eq!(found["error"], "HttpRequestMethodInvalid", "{found}");
    still_well(&mut bench, &host, &web);
    host.stop();
}

#[test]
fn a_redirect_is_a_new_request() {
    let (web, other) = (Web::start(), Web::start());
    let mut bench = bench(
        "fetches",
        &format!("allowed_hosts = [\"{}\", \"http://localhost:{}\"]", web.origin(), web.port),
        "",
    );
    let host = bench.host();
    let to = |target: &str| format!("{}/redirect?to={target}", web.origin());
    let mut follow = |url: &str| result(&mut bench, &[("url", url), ("redirects", "2")]);
    let found = follow(&to(&format!("http://localhost:{}/echo", web.port)));
    assert_eq!(found["status"], 200, "{found}");
    assert!(
        found["body"].as_str().is_some_and(|head| head.to_lowercase().contains("\r\nhost: localhost:")),
        "{found}"
    );
    for target in [
        format!("{}/echo", other.origin()),
        "http://169.254.169.254/latest".to_owned(),
        format!("http://[::1]:{}/", web.port),
    ] {
        let found = follow(&to(&target));
        assert_eq!(
            (&found["error"], &found["url"]),
            (&"HttpRequestDenied".into(), &target.into()),
            "{found}"
        );
    }
    assert_eq!(other.requests(), 0);
    let found = fetched(&mut bench, &to("http://169.254.169.254/"));
    assert_eq!(found["status"], 302, "the host follows none: {found}");
    host.stop();
}

#[test]
fn a_name_of_an_address_that_is_not_public_is_refused_and_so_is_a_redirect_to_it() {
    let web = Web::start();
    let port = web.port;
    let grants = format!("allowed_hosts = [\"{}\", \"http://*.test:{port}\"]", web.origin());
    let mut bench = bench("fetches", &grants, "");
    let known = [
        ("inside.test", "127.0.0.1"),
        ("mapped.test", "::ffff:127.0.0.1"),
        ("metadata.test", "169.254.169.254"),
        ("platform.test", "168.63.129.16"),
        ("zero.test", "0.0.0.0"),
    ];
    let host = bench.host_with_env(names(bench.dir.path(), &known));
    host.log("tqhost is running");
    let prohibited = "DestinationIpProhibited";
    for (name, address) in known {
        assert_eq!(error(&mut bench, &format!("http://{name}:{port}/echo")), prohibited, "{name}");
        host.log(&format!("a request to http://{name}:{port} is refused: it is at {address}, "));
    }
    let redirect = format!("{}/redirect?to=http://inside.test:{port}/echo", web.origin());
    let found = result(&mut bench, &[("url", &redirect), ("redirects", "1")]);
    assert_eq!((&found["error"], web.requests()), (&prohibited.into(), 1), "{found}");
    assert!(error(&mut bench, &format!("http://unknown.test:{port}/echo")).starts_with("DnsError"));
    still_well(&mut bench, &host, &web);

    // The entry names the address, so a request may use that name, but no other form of it. The running host
    // takes the entry over.
    let text = std::fs::read_to_string(bench.config()).expect("the configuration");
    let (entry, named) = (format!("\"http://*.test:{port}\""), "private_addresses = [\"127.0.0.1\"]");
    bench.configure(&text.replace(&entry, &format!("{{ host = {entry}, {named} }}")));
    host.log("plugin has other grants");
    assert_eq!(fetched(&mut bench, &format!("http://inside.test:{port}/echo"))["status"], 200);
    for name in ["mapped.test", "metadata.test"] {
        assert_eq!(error(&mut bench, &format!("http://{name}:{port}/echo")), prohibited, "{name}");
    }
    assert_eq!(web.requests(), 2);
    still_well(&mut bench, &host, &web);
    host.stop();
}

#[test]
fn private_addresses_are_of_one_entry_and_serve_no_other() {
    let web = Web::start();
    let port = web.port;
    // The owner of the first name's DNS servers can point it to the address of the second name.
    let grants = format!(
        "allowed_hosts = [\"http://hooks.test:{port}\", \
         {{ host = \"http://ledger.test:{port}\", private_addresses = [\"127.0.0.0/8\"] }}]"
    );
    let mut bench = bench("fetches", &grants, "");
    let checked = bench.tqhost(&["check"]).ok().stdout;
    for line in [
        format!("requests to http://hooks.test:{port}, http://ledger.test:{port}\n"),
        format!("http://ledger.test:{port} may resolve to 127.0.0.0/8\n"),
    ] {
        assert!(checked.contains(&line), "{line:?} in {checked}");
    }
    assert_eq!(checked.matches("may resolve to").count(), 1, "{checked}");
    let json = bench.tqhost(&["check", "--json"]).ok().json();
    let expected = serde_json::json!([
        { "host": format!("http://hooks.test:{port}"), "private_addresses": [] },
        { "host": format!("http://ledger.test:{port}"), "private_addresses": ["127.0.0.0/8"] },
    ]);
    assert_eq!(json["plugins"][0]["grants"]["allowed_hosts"], expected, "{json}");

    let host = bench
        .host_with_env(names(bench.dir.path(), &[("hooks.test", "127.0.0.1"), ("ledger.test", "127.0.0.1")]));
    host.log("tqhost is running");
    let prohibited = "DestinationIpProhibited";
    let [hooks, ledger] = ["hooks", "ledger"].map(|name| format!("http://{name}.test:{port}"));
    assert_eq!(error(&mut bench, &format!("{hooks}/echo")), prohibited);
    let why = "it is at 127.0.0.1, a loopback address, which is not in private_addresses of its entry in \
        allowed_hosts";
    host.log(&format!("a request to {hooks} is refused: {why}"));
    assert_eq!(
        (fetched(&mut bench, &format!("{ledger}/echo"))["status"].clone(), web.requests()),
        (200.into(), 1)
    );
    // Neither an earlier connection nor a redirect gives the right to the other name.
    assert_eq!(error(&mut bench, &format!("{hooks}/echo")), prohibited);
    let found =
        result(&mut bench, &[("url", &format!("{ledger}/redirect?to={hooks}/echo")), ("redirects", "1")]);
    assert_eq!((&found["error"], web.requests()), (&prohibited.into(), 2), "{found}");
    still_well(&mut bench, &host, &web);
    host.stop();
}

#[test]
fn ends_of_requests_are_counted() {
    let web = Web::start();
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|taken| taken.local_addr())
        .expect("an address")
        .port();
    let grants = format!(
        "allowed_hosts = [\"{}\", \"http://127.0.0.1:{closed}\"]\nhttp = {{ max_response_body = \"1MiB\" }}",
        web.origin()
    );
    let mut bench = bench("fetches", &grants, "timeout = \"3s\"");
    let host = bench.host();
    let counted = |host: &Host| {
        let of = |result| {
            host.metric(&format!("tqhost_http_requests_total{{plugin=\"fetches\",result=\"{result}\"}}"))
                as u64
        };
        ["ok", "denied", "timeout", "error", "aborted"].map(of)
    };
    assert_eq!(counted(&host), [0; 5]);
    for _ in 0..3 {
        assert_eq!(fetched(&mut bench, &format!("{}/echo", web.origin()))["status"], 200);
    }
    assert_eq!(error(&mut bench, "http://example.com/"), "HttpRequestDenied");
    let found = result(&mut bench, &[("url", &format!("{}/silent", web.origin())), ("firstByteMs", "100")]);
    assert_eq!(found["error"], "ConnectionReadTimeout", "{found}");
    assert_eq!(error(&mut bench, &format!("http://127.0.0.1:{closed}/")), "ConnectionRefused");
    assert!(error(&mut bench, &format!("{}/endless", web.origin())).starts_with("HttpResponseBodySize"));
    eventually("all are counted", || (counted(&host) == [3, 1, 1, 2, 0]).then_some(()));
    let id = bench.xadd("work", &[("url", &format!("{}/silent?key=hunter2", web.origin()))]);
    bench.until("work", &id, "FAILED");
    let late = bench.status("work", &id, "error");
    let open = format!("it waited for most of that time, and GET {}/silent has been open for ", web.origin());
    assert!(late.starts_with("timeout: ") && late.contains(&open), "{late}");
    eventually("it is counted", || (counted(&host) == [3, 1, 1, 2, 1]).then_some(()));
    // The count continues with another version and with other grants.
    let mut bytes = std::fs::read(bench.plugin_path("fetches")).expect("read the guest");
    bytes.extend([0, 3, 1, b'x', 1]);
    std::fs::write(bench.plugin_path("fetches").with_extension("new"), bytes).expect("write");
    std::fs::rename(bench.plugin_path("fetches").with_extension("new"), bench.plugin_path("fetches"))
        .expect("rename");
    eventually("the new version is loaded", || (host.logged("plugin loaded").len() == 3).then_some(()));
    assert_eq!(fetched(&mut bench, &format!("{}/echo", web.origin()))["status"], 200);
    let text = std::fs::read_to_string(bench.config()).expect("the configuration");
    bench.configure(&text.replace("1MiB", "2MiB"));
    host.log("plugin has other grants");
    assert_eq!(fetched(&mut bench, &format!("{}/echo", web.origin()))["status"], 200);
    eventually("they are counted", || (counted(&host) == [5, 1, 1, 2, 1]).then_some(()));
    host.stop();
}

#[test]
fn without_allowed_hosts_every_request_is_refused_and_it_is_said() {
    let web = Web::start();
    let mut bench = bench("fetches", "", "");
    let host = bench.host();
    let said = host.log("its allowed_hosts allows none");
    assert_eq!(
        (&said["plugin"], &said["level"]),
        (&"fetches".into(), &"INFO".into()),
        "a handler may do without: {said}"
    );
    assert_eq!(error(&mut bench, &format!("{}/echo", web.origin())), "HttpRequestDenied");
    assert_eq!(host.log("is refused: allowed_hosts does not allow it")["level"], "WARN");
    assert_eq!(web.requests(), 0);
    host.stop();

    let checked = bench.tqhost(&["check"]).ok().stdout;
    let of_requests = |checked: &str| {
        let lines = checked.lines().filter(|line| line.contains("requests")).map(str::trim);
        lines.collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(of_requests(&checked), @r"
    note     it can make requests (wasi:http), and allowed_hosts allows none: each would be refused
    ");
    let text = std::fs::read_to_string(bench.config()).expect("the configuration");
    bench.configure(
        &text
            .replace("[plugins.fetches]", "[plugins.fetches]\nallowed_hosts = [\"https://api.example.com\"]"),
    );
    let checked = bench.tqhost(&["check"]).ok().stdout;
    insta::assert_snapshot!(of_requests(&checked), @"requests to https://api.example.com");
    let json = bench.tqhost(&["check", "--json"]).ok().json();
    assert_eq!(
        (&json["plugins"][0]["makes_requests"], &json["plugins"][1]["makes_requests"]),
        (&true.into(), &false.into()),
        "{json}"
    );
}

#[test]
fn every_wait_has_an_end_that_the_handler_is_told_of() {
    let web = Web::start();
    let times = "between_bytes_timeout = \"500ms\", timeout = \"50s\"";
    let mut bench =
        bench("fetches", &format!("allowed_hosts = [\"{}\"]\nhttp = {{ {times} }}", web.origin()), "");
    let host = bench.host();
    let found = result(&mut bench, &[("url", &format!("{}/silent", web.origin())), ("firstByteMs", "200")]);
    assert_eq!(found["error"], "ConnectionReadTimeout", "{found}");
    let found = fetched(&mut bench, &format!("{}/stuck", web.origin()));
    assert_eq!(
        (&found["status"], &found["size"], &found["error"]),
        (&200.into(), &1.into(), &"ConnectionReadTimeout".into()),
        "{found}"
    );
    let found = fetched(&mut bench, &format!("{}/cut", web.origin()));
    assert_eq!((&found["size"], &found["error"]), (&10.into(), &"HttpResponseIncomplete".into()), "{found}");
    assert_eq!(
        error(&mut bench, &format!("{}/big-head", web.origin())),
        "HttpResponseHeaderSectionSize(None)"
    );
    still_well(&mut bench, &host, &web);
    host.stop();

    // The timeout is for the whole request, even while bytes keep coming.
    let text = std::fs::read_to_string(bench.config()).expect("the configuration");
    bench.configure(&text.replace("timeout = \"50s\"", "timeout = \"2s\", max_response_body = \"4GiB\""));
    let host = bench.host();
    let found = fetched(&mut bench, &format!("{}/endless", web.origin()));
    assert_eq!((&found["status"], &found["error"]), (&200.into(), &"HttpResponseTimeout".into()), "{found}");
    // The bytes come one by one, so no single wait is long.
    let found = fetched(&mut bench, &format!("{}/drip", web.origin()));
    assert_eq!((&found["status"], &found["error"]), (&200.into(), &"HttpResponseTimeout".into()), "{found}");
    assert_eq!(error(&mut bench, &format!("{}/drip-head", web.origin())), "HttpResponseTimeout");
    let found =
        result(&mut bench, &[("url", &format!("{}/drip-head", web.origin())), ("firstByteMs", "300")]);
    assert_eq!(found["error"], "ConnectionReadTimeout", "{found}");
    still_well(&mut bench, &host, &web);
    host.stop();
}

#[test]
fn a_request_ends_with_its_attempt() {
    let web = Web::start();
    let grants = format!("allowed_hosts = [\"{}\"]\nhttp = {{ max_response_body = \"4GiB\" }}", web.origin());
    let mut bench = bench("fetches", &grants, "timeout = \"500ms\"");
    let host = bench.host();
    let paths = ["/silent", "/stuck", "/endless"];
    let ids = paths.map(|path| bench.xadd("work", &[("url", &format!("{}{path}", web.origin()))]));
    for id in &ids {
        bench.until("work", id, "FAILED");
        assert!(
            bench.status("work", id, "error").starts_with("timeout: "),
            "{}",
            bench.status("work", id, "error")
        );
    }
    still_well(&mut bench, &host, &web);
    // A task that is cancelled ends its request too.
    let text = std::fs::read_to_string(bench.config()).expect("the configuration");
    host.stop();
    bench.configure(&text.replace("timeout = \"500ms\"", "timeout = \"1h\"\nlease = \"1s\""));
    let (host, before) = (bench.host(), web.requests());
    let id = bench.xadd("work", &[("url", &format!("{}/silent", web.origin()))]);
    eventually("it is asked", || (web.requests() > before).then_some(()));
    bench.tqhost(&["cancel", "work", &id]).ok();
    still_well(&mut bench, &host, &web);
    host.stop();
}

#[test]
fn bodies_are_cut_at_their_bound() {
    let web = Web::start();
    let bounds = "max_request_body = \"100KiB\", max_response_body = \"1MiB\"";
    let mut bench =
        bench("fetches", &format!("allowed_hosts = [\"{}\"]\nhttp = {{ {bounds} }}", web.origin()), "");
    let host = bench.host();
    let found = fetched(&mut bench, &format!("{}/endless", web.origin()));
    assert!(
        found["error"].as_str().is_some_and(|error| error.starts_with("HttpResponseBodySize(Some(")),
        "{found}"
    );
    assert!(found["size"].as_u64().is_some_and(|size| size <= 1 << 20 && size > 900 << 10), "{found}");
    let found = fetched(&mut bench, &format!("{}/chunks", web.origin()));
    assert!(
        found["error"].as_str().is_some_and(|error| error.starts_with("HttpResponseBodySize(Some(")),
        "{found}"
    );
    assert_eq!(
        error(&mut bench, &format!("{}/declared", web.origin())),
        "HttpResponseBodySize(Some(1073741824))"
    );
    let post = |size: &'static str| {
        [
            ("url", format!("{}/size", web.origin())),
            ("method", "POST".to_owned()),
            ("bodySize", size.to_owned()),
        ]
    };
    let mut sent = |size| {
        let fields = post(size);
        result(&mut bench, &fields.each_ref().map(|(name, value)| (*name, value.as_str())))
    };
    assert_eq!(sent("102400")["body"], "102400");
    let found = sent("1000000");
    assert!(
        found["error"].as_str().is_some_and(|error| error.starts_with("HttpRequestBodySize(Some(")),
        "{found}"
    );
    still_well(&mut bench, &host, &web);
    host.stop();
}

#[test]
fn requests_at_once_are_bounded() {
    let web = Web::start();
    let bounds = "max_concurrent = 4, max_requests = 40";
    let grants = format!("allowed_hosts = [\"{}\"]\nhttp = {{ {bounds} }}", web.origin());
    let mut bench = bench("opens-many", &grants, "");
    let host = bench.host();
    let stuck = format!("{}/stuck", web.origin());
    let found = result(&mut bench, &[("url", &stuck), ("count", "50")]);
    assert_eq!(found["statuses"], serde_json::json!({ "200": 4 }), "{found}");
    assert_eq!(
        found["errors"],
        serde_json::json!({ "ConnectionLimitReached": 36, "HttpRequestDenied": 10 }),
        "{found}"
    );
    assert_eq!(web.open().1, 4);
    still_well(&mut bench, &host, &web);
    host.stop();
}

#[test]
fn attempts_together_have_no_more_connections_than_their_plugin() {
    let web = Web::start();
    let bounds = "max_connections = 3, connect_timeout = \"2s\"";
    let mut bench =
        bench("fetches", &format!("allowed_hosts = [\"{}\"]\nhttp = {{ {bounds} }}", web.origin()), "");
    let host = bench.host();
    let ids: Vec<String> =
        (0..5).map(|_| bench.xadd("work", &[("url", &format!("{}/silent", web.origin()))])).collect();
    let ended = |bench: &mut Bench| {
        ids.iter().filter(|id| bench.status("work", id, "status") == "COMPLETED").cloned().collect::<Vec<_>>()
    };
    let ended =
        eventually("two get no connection", || Some(ended(&mut bench)).filter(|ended| ended.len() == 2));
    for id in ended {
        let found = bench.status("work", &id, "result");
        assert!(found.contains("\"ConnectionLimitReached\""), "{found}");
    }
    assert_eq!(web.open(), (3, 3));
    for id in &ids {
        bench.tqhost(&["cancel", "work", id]);
    }
    still_well(&mut bench, &host, &web);
    host.stop();
}

#[test]
fn a_response_that_is_not_read_keeps_its_connection_from_others() {
    let web = Web::start();
    let bounds = "max_connections = 2, connect_timeout = \"2s\"";
    let mut bench =
        bench("opens-many", &format!("allowed_hosts = [\"{}\"]\nhttp = {{ {bounds} }}", web.origin()), "");
    let host = bench.host();
    // The response has no body, so its connection is already closed. It still counts until the handler has
    // read the end of the response.
    let found = result(&mut bench, &[("url", &format!("{}/nowhere", web.origin())), ("count", "3")]);
    assert_eq!(
        (&found["statuses"]["404"], &found["errors"]["ConnectionLimitReached"]),
        (&2.into(), &1.into()),
        "{found}"
    );
    still_well(&mut bench, &host, &web);
    host.stop();
}

#[test]
fn names_that_are_not_found_hold_up_no_other_plugin() {
    const SLOW: usize = 9;
    const TASKS: usize = 8;
    let web = Web::start();
    let port = web.port;
    let slow = |n| {
        format!(
            "[queues.slow-{n}]\nconcurrency = {TASKS}\n\
             [plugins.slow-{n}]\nallowed_hosts = [\"http://*.test\"]\nhttp = {{ connect_timeout = \"1s\" }}\n"
        )
    };
    let mut bench = Bench::new(&format!(
        "shutdown_grace = \"0s\"\n[queues.work]\nplugin = \"fetches\"\n\
         [plugins.fetches]\nallowed_hosts = [{{ \
         host = \"http://*.test:{port}\", private_addresses = [\"127.0.0.1\"] }}]\n{}",
        (0..SLOW).map(slow).collect::<String>()
    ));
    bench.install("fetches", "fetches");
    for n in 0..SLOW {
        bench.install("fetches", &format!("slow-{n}"));
    }
    let host = bench
        .host_with_env(names(bench.dir.path(), &[("found.test", "127.0.0.1"), ("not-found.test", "never")]));
    let queues = || (0..SLOW).flat_map(|n| std::iter::repeat_n(format!("slow-{n}"), TASKS));
    let ids: Vec<(String, String)> =
        queues().map(|queue| (bench.xadd(&queue, &[("url", "http://not-found.test")]), queue)).collect();
    for (id, queue) in &ids {
        bench.until(queue, id, "COMPLETED");
        let found = bench.status(queue, id, "result");
        assert!(found.contains("\"DnsTimeout\""), "{found}");
    }
    // Requests that wait for a DNS answer go on, although their tasks have ended.
    let found = fetched(&mut bench, &format!("http://found.test:{port}/echo"));
    assert_eq!(found["status"], 200, "{found}");
    host.stop();
}

#[test]
fn certificates_are_checked() {
    let authority = Authority::new();
    let (good, wrong_name, plain) =
        (Web::start_tls(&authority, "localhost"), Web::start_tls(&authority, "other.example"), Web::start());
    let hosts = [&good, &wrong_name, &plain].map(|web| format!("https://localhost:{}", web.port));
    let mut bench = bench("fetches", &format!("allowed_hosts = {hosts:?}\nhttp = {{ ca = \"ca.pem\" }}"), "");
    std::fs::write(bench.dir.path().join("ca.pem"), authority.pem()).expect("write the certificate");
    let host = bench.host();
    let found = fetched(&mut bench, &format!("{}/echo", hosts[0]));
    assert_eq!(found["status"], 200, "{found}");
    assert!(
        found["body"].as_str().is_some_and(|head| head
            .to_lowercase()
            .contains(&format!("\r\nhost: localhost:{}\r\n", good.port))),
        "{found}"
    );
    assert_eq!(error(&mut bench, &format!("{}/echo", hosts[1])), "TlsCertificateError");
    let refused = "is refused: there is no secure connection: the certificate of the server is";
    host.log(&format!("{refused} for other.example, not for localhost"));
    // This server cannot read a TLS greeting, and closes the connection.
    assert_eq!(error(&mut bench, &format!("{}/echo", hosts[2])), "ConnectionTerminated");
    still_well(&mut bench, &host, &good);
    host.stop();

    let text = std::fs::read_to_string(bench.config()).expect("the configuration");
    bench.configure(&text.replace("http = { ca = \"ca.pem\" }", ""));
    let host = bench.host();
    assert_eq!(error(&mut bench, &format!("{}/echo", hosts[0])), "TlsCertificateError");
    host.log(&format!("{refused} signed by nobody that is trusted"));
    assert_eq!((good.requests(), wrong_name.requests()), (1, 0));
    host.stop();
}

#[test]
fn a_certificate_that_signed_itself_is_trusted_when_it_is_named_itself() {
    let [own, other] = ["localhost", "localhost"].map(Authority::for_server);
    let [good, bad] = [&own, &other].map(Web::start_tls_of);
    let hosts = [&good, &bad].map(|web| format!("https://localhost:{}", web.port));
    let mut bench = bench("fetches", &format!("allowed_hosts = {hosts:?}\nhttp = {{ ca = \"ca.pem\" }}"), "");
    std::fs::write(bench.dir.path().join("ca.pem"), own.pem()).expect("write the certificate");
    let host = bench.host();
    let found = fetched(&mut bench, &format!("{}/echo", hosts[0]));
    assert_eq!(found["status"], 200, "{found}");
    assert_eq!(error(&mut bench, &format!("{}/echo", hosts[1])), "TlsCertificateError");
    host.log("is that of an authority (CA:TRUE): name this very certificate in `ca`");
    host.stop();
}

#[test]
fn busy_guests_hold_up_no_request() {
    let web = Web::start();
    let mut bench = Bench::new(&format!(
        "shutdown_grace = \"0s\"\n[queues.work]\nplugin = \"fetches\"\n[queues.busy]\nplugin = \"loops\"\n\
         timeout = \"1h\"\n\
         [plugins.fetches]\nallowed_hosts = [\"{}\"]\n",
        web.origin()
    ));
    bench.install("fetches", "fetches");
    bench.install("loops", "loops");
    let host = bench.host();
    for _ in 0..8 {
        bench.xadd("busy", &[("a", "1")]);
    }
    bench.until_pending("busy", 8);
    let found = fetched(&mut bench, &format!("{}/echo", web.origin()));
    assert_eq!(found["status"], 200, "{found}");
    assert_eq!(bench.places("busy"), Places { length: 8, pending: 8, ..Places::default() });
    host.stop();
}

#[test]
fn a_guest_cannot_make_the_host_hold_what_it_may_not_hold_itself() {
    let web = Web::start();
    let mut bench = bench("hoards-requests", "", "");
    let host = bench.host();
    let ids: Vec<String> = (0..10).map(|_| bench.xadd("work", &[("a", "1")])).collect();
    for id in &ids {
        bench.until("work", id, "FAILED");
        let error = bench.status("work", id, "error");
        let error = error.replace(|c: char| c.is_ascii_digit(), "");
        insta::allow_duplicates! { insta::assert_snapshot!(error, @r"
        out-of-memory: its handles and effects stand for  bytes beside  in use;  are granted
        ") };
    }
    still_well(&mut bench, &host, &web);
    host.stop();
}
