//! Access: tokens, foreign pages, request ids, and that no path is left open.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use super::{ask, good, post_with, problem};
use crate::support::files::digest;
use crate::support::http::{Response, send};
use crate::support::{Bench, Host};

const TOKEN: (&str, &str) = ("authorization", "Bearer s3cret");
const READ: (&str, &str) = ("authorization", "Bearer peek");

/// A host that asks for a token.
fn guarded() -> (Bench, Host) {
    let bench = Bench::new("");
    let redis = bench.redis.port;
    std::fs::write(bench.dir.path().join("read"), "peek\n").expect("write");
    bench.configure(&format!(
        "[queues.work]\nplugin = \"missing\"\nevents = 10\n[redis]\nurl = \"redis://127.0.0.1:{redis}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"s3cret\"\nread_token = {{ file = \"read\" }}\n"
    ));
    let host = bench.host();
    (bench, host)
}

/// All keys but those that a host makes by itself, some seconds after its start: it takes its duties, and
/// notes how full its queues are.
fn keys_of_queues(bench: &mut Bench) -> BTreeSet<String> {
    let all: Vec<String> = bench.redis("KEYS", "*");
    all.into_iter().filter(|key| !key.starts_with("tq:host") && !key.contains(":minutes:")).collect()
}

/// The value of a series, with the token.
fn host_metric(host: &Host, series: &str) -> f64 {
    let body = send(host.admin(), "GET", "/metrics", &[READ], None).body;
    let line = body.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {series} in {body}"))
}

/// Every path with its methods, as the OpenAPI document has them.
fn operations(document: &Value) -> Vec<(String, String)> {
    let paths = document["paths"].as_object().expect("paths");
    let methods = |path: &str, item: &Value| -> Vec<(String, String)> {
        item.as_object()
            .expect("an item")
            .keys()
            .map(|method| (method.to_uppercase(), path.to_owned()))
            .collect()
    };
    paths.iter().flat_map(|(path, item)| methods(path, item)).collect()
}

#[test]
fn every_path_that_changes_something_refuses_without_the_token() {
    let (mut bench, host) = guarded();
    let document = good(&send(host.admin(), "GET", "/v1/openapi.json", &[READ], None), 200);
    let all = operations(&document);
    assert_eq!(document["security"], json!([{ "token": [] }]));
    // The paths that clients rely on.
    let expected = [
        ("GET", "/v1/queues"),
        ("GET", "/v1/queues/{queue}"),
        ("GET", "/v1/queues/{queue}/history"),
        ("POST", "/v1/queues/{queue}/pause"),
        ("POST", "/v1/queues/{queue}/resume"),
        ("PUT", "/v1/queues/{queue}/limits"),
        ("DELETE", "/v1/queues/{queue}/limits"),
        ("POST", "/v1/queues/{queue}/drain"),
        ("GET", "/v1/queues/{queue}/tasks"),
        ("POST", "/v1/queues/{queue}/tasks"),
        ("POST", "/v1/queues/{queue}/tasks/cancel"),
        ("GET", "/v1/queues/{queue}/tasks/{id}"),
        ("DELETE", "/v1/queues/{queue}/tasks/{id}"),
        ("POST", "/v1/queues/{queue}/tasks/{id}/retry"),
        ("GET", "/v1/queues/{queue}/tasks/{id}/events"),
        ("GET", "/v1/queues/{queue}/groups"),
        ("GET", "/v1/queues/{queue}/dead"),
        ("GET", "/v1/queues/{queue}/dead/groups"),
        ("GET", "/v1/queues/{queue}/dead/export"),
        ("POST", "/v1/queues/{queue}/dead/requeue"),
        ("POST", "/v1/queues/{queue}/dead/purge"),
        ("GET", "/v1/queues/{queue}/events"),
        ("POST", "/v1/queues/{queue}/jobs"),
        ("GET", "/v1/changes"),
        ("GET", "/v1/jobs"),
        ("GET", "/v1/jobs/{id}"),
        ("DELETE", "/v1/jobs/{id}"),
        ("POST", "/v1/jobs/{id}/pause"),
        ("POST", "/v1/jobs/{id}/resume"),
        ("POST", "/v1/jobs/{id}/undo"),
        ("GET", "/v1/jobs/{id}/file"),
        ("GET", "/v1/incidents"),
        ("POST", "/v1/incidents/{id}/acknowledge"),
        ("GET", "/v1/hosts"),
        ("GET", "/v1/plugins"),
        ("POST", "/v1/plugins/{plugin}/lift"),
        ("POST", "/v1/plugins/{plugin}/reload"),
        ("POST", "/v1/plugins/{plugin}/rollback"),
        ("GET", "/v1/events"),
    ];
    let found: BTreeSet<(&str, &str)> =
        all.iter().map(|(method, path)| (method.as_str(), path.as_str())).collect();
    assert_eq!(found, expected.into_iter().collect());
    let id = bench.xadd("work", &[("a", "1")]);
    let before = keys_of_queues(&mut bench);
    let address = host.admin();
    for (method, path) in &all {
        let path = path.replace("{queue}", "work").replace("{id}", &id).replace("{plugin}", "missing");
        let body = Some("{\"all\": true, \"fields\": {\"a\": \"1\"}}").filter(|_| method == "POST");
        let asked = |headers: &[(&str, &str)]| -> Response {
            let headers = [&[("content-type", "application/json")], headers].concat();
            send(address, method, &path, &headers, body)
        };
        // A wrong token is answered late.
        let answers: Vec<Response> = std::thread::scope(|scope| {
            let wrong = [&[][..], &[("authorization", "Bearer wrong")], &[("authorization", "Basic s3cret")]];
            let asking = wrong.map(|headers| scope.spawn(|| asked(headers)));
            asking.map(|answer| answer.join().expect("an answer")).into()
        });
        for answer in answers {
            problem(&answer, 401, "unauthorized");
            assert_eq!(answer.header("www-authenticate"), Some("bearer"), "{method} {path}");
        }
        if method != "GET" {
            problem(&asked(&[READ]), 403, "read-only");
            problem(&asked(&[TOKEN, ("origin", "http://evil.example")]), 403, "foreign-origin");
        }
    }
    assert_eq!(keys_of_queues(&mut bench), before, "nothing was changed");
    assert_eq!(bench.redis::<u64>("XLEN", "work"), 1);
    // The right token does what the others were refused.
    let answer = send(host.admin(), "POST", "/v1/queues/work/pause", &[TOKEN], None);
    assert_eq!(good(&answer, 200)["changed"], true);
    assert_eq!(
        good(&send(host.admin(), "GET", "/v1/queues", &[READ], None), 200)["queues"][0]["paused"],
        true
    );
    assert_eq!(send(host.admin(), "GET", "/metrics", &[READ], None).status, 200);
    assert_eq!(host.get("/metrics").status, 401);
    assert_eq!(host.get("/livez").status, 200);
    let wrong = 2 * all.len() as u64;
    assert!((host_metric(&host, "tqhost_refused_tokens_total") - wrong as f64).abs() < 0.5);
    let told = host.logged("wrong token of [admin]");
    assert!(told[0]["level"] == "WARN" && told[0]["from"] == "127.0.0.1", "{told:?}");
    assert!(told.len() <= 3, "told once a minute: {told:?}");
    let log = host.stop_for_log().raw();
    assert!(!log.contains("s3cret") && !log.contains("peek"), "no token is in the log");
    let audit: Vec<&str> = log.lines().filter(|line| line.contains("\"target\":\"tqhost::audit\"")).collect();
    let changes = all.iter().filter(|(method, _)| method != "GET").count();
    assert_eq!(audit.len(), changes * 5 + 1, "each refused change has a line, too");
    let of = |who: &str, status: u16| {
        let (who, status) = (format!("\"who\":\"{who}\""), format!("\"status\":{status}"));
        audit.iter().filter(|line| line.contains(&who) && line.contains(&status)).count()
    };
    assert_eq!((of("nobody", 401), of("read_token", 403)), (changes * 3, changes));
    assert_eq!((of("token", 403), of("token", 200)), (changes, 1));
}

/// The role of each change, as the page for operators has them.
pub(crate) fn roles_of_the_page() -> BTreeMap<String, &'static str> {
    let page = include_str!("../../docs/operations.md");
    let mut roles = BTreeMap::new();
    for role in ["read", "operate", "admin"] {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{role}` | ")));
        let row = row.unwrap_or_else(|| panic!("docs/operations.md has no row of the role {role}"));
        for request in row.split('`').filter(|word| word.contains(" /")) {
            assert_eq!(roles.insert(request.to_owned(), role), None, "{request} is there twice");
        }
    }
    roles
}

/// A host with a token of each role: its name and text.
pub(crate) const NAMED: [(&str, &str, &str); 3] = [
    ("eye", "read", "may-only-look-at-it"),
    ("ci", "operate", "may-work-on-queues"),
    ("boss", "admin", "may-do-everything"),
];

/// A bench with a queue `work`, these lines in `[admin]`, and the tokens of [`NAMED`].
pub(crate) fn named(lines: &str) -> Bench {
    let bench = Bench::new("");
    configure_named(&bench, lines);
    bench
}

pub(crate) fn configure_named(bench: &Bench, lines: &str) {
    let url = bench.redis.url();
    let tokens = NAMED.map(|(name, role, token)| {
        let hash = digest(token.as_bytes());
        format!("[admin.tokens.{name}]\nrole = \"{role}\"\nhash = \"sha256:{hash}\"\n")
    });
    bench.configure(&format!(
        "[queues.work]\nplugin = \"missing\"\nevents = 10\n[redis]\nurl = \"{url}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n{lines}\n{}",
        tokens.concat()
    ));
}

#[test]
fn each_role_may_do_what_the_page_says_and_nothing_else() {
    let mut bench = named("");
    let host = bench.host();
    let auth = |token: &str| format!("Bearer {token}");
    let asked = |token: &str, method: &str, path: &str, body: Option<&str>| {
        let auth = auth(token);
        let headers = [("content-type", "application/json"), ("authorization", auth.as_str())];
        send(host.admin(), method, path, &headers, body)
    };
    let [(_, _, look), (ci, _, operate), (boss, _, administer)] = NAMED;
    let document = good(&asked(look, "GET", "/v1/openapi.json", None), 200);
    let page = roles_of_the_page();
    let id = bench.xadd("work", &[("a", "1")]);
    let (mut changes, mut refusals) = (0, BTreeSet::new());
    for (method, path) in operations(&document) {
        let role = document["paths"][&path][method.to_lowercase()]["x-role"].as_str().expect("a role");
        let request = format!("{method} {path}");
        let on_page = page.get(&request).copied().unwrap_or(if method == "GET" { "read" } else { "none" });
        assert_eq!(role, on_page, "{request}: give it a role in admin/roles.rs and in docs/operations.md");
        let path = path.replace("{queue}", "work").replace("{id}", &id).replace("{plugin}", "missing");
        if method == "GET" {
            continue;
        }
        changes += 1;
        let told = problem(&asked(look, &method, &path, Some("{}")), 403, "read-only");
        refusals.insert(told.replace(&request, role));
        let answer = asked(operate, &method, &path, Some("{}"));
        match role {
            "operate" => assert!(![401, 403].contains(&answer.status), "{request}: {answer:?}"),
            _ => {
                let told = problem(&answer, 403, "needs-role");
                refusals.insert(told.replace(&request, role));
            }
        }
        let answer = asked(administer, &method, &path, Some("{}"));
        assert!(![401, 403].contains(&answer.status), "{request}: {answer:?}");
    }
    assert!(changes > 10, "{changes}");
    // The role of a job is in its body.
    let purge = Some("{\"do\": \"purge\"}");
    let told = problem(&asked(operate, "POST", "/v1/queues/work/jobs", purge), 403, "needs-role");
    refusals.insert(told);
    insta::assert_snapshot!(Vec::from_iter(refusals).join("\n"), @"
    ci has the role operate, and admin needs the role admin
    ci has the role operate, and this job needs the role admin
    eye has the role read, and admin needs the role admin
    eye has the role read, and operate needs the role operate
    ");
    let job = good(&asked(administer, "POST", "/v1/queues/work/jobs", purge), 202);
    assert_eq!(job["who"], boss);
    let resume = format!("/v1/jobs/{}/resume", job["id"].as_str().expect("an id"));
    problem(&asked(operate, "POST", &resume, None), 403, "needs-role");
    let drain = Some("{\"do\": \"drain\"}");
    assert_eq!(good(&asked(operate, "POST", "/v1/queues/work/jobs", drain), 202)["who"], ci);
    for wrong in [&digest(look.as_bytes()), &format!("sha256:{}", digest(look.as_bytes())), ""] {
        problem(&asked(wrong, "GET", "/v1/queues", None), 401, "unauthorized");
    }
    let log = host.stop_for_log().raw();
    for (name, _, token) in NAMED {
        assert!(!log.contains(token) && !log.contains(&digest(token.as_bytes())[..12]), "{name} in the log");
        assert!(log.contains(&format!("\"who\":\"{name}\"")), "{name} is in the audit");
    }
    let told = bench.tqhost(&["check"]);
    let told = format!("{}{}", told.stdout, told.stderr);
    assert!(!told.contains(&digest(look.as_bytes())[..12]), "{told}");
}

#[test]
fn a_new_token_fits_its_hash() {
    let bench = Bench::new("");
    let made = bench.tqhost(&["token", "--json"]).ok().json();
    let token = made["token"].as_str().expect("a token");
    assert_eq!(made["hash"], format!("sha256:{}", digest(token.as_bytes())));
    let shown = bench.tqhost(&["token"]).ok().stdout;
    let words: Vec<&str> = shown.split_whitespace().collect();
    let [_, token, _, hash] = words[..] else { panic!("{shown}") };
    assert_eq!((token.len(), hash), (64, format!("sha256:{}", digest(token.as_bytes())).as_str()));
}

#[test]
fn without_a_token_only_this_machine_may_ask_and_no_foreign_page() {
    let bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    let port = host.admin().rsplit(':').next().expect("a port").to_owned();
    let asked = |method: &str, headers: &[(&str, &str)]| {
        let path = if method == "GET" { "/v1/queues" } else { "/v1/queues/work/pause" };
        send(host.admin(), method, path, headers, None)
    };
    for name in ["localhost", "127.0.0.1", "[::1]"] {
        good(&asked("GET", &[("host", &format!("{name}:{port}"))]), 200);
    }
    let document = good(&ask(&host, "GET", "/v1/openapi.json"), 200);
    assert_eq!(document["security"], Value::Null, "it asks for no token");
    // DNS rebinding: the page's own name leads to this address.
    for foreign in ["evil.example", "localhost.evil.example", "10.0.0.1"] {
        let name = format!("{foreign}:{port}");
        let origin = format!("http://{name}");
        for method in ["GET", "POST"] {
            problem(&asked(method, &[("host", &name)]), 403, "foreign-host");
            problem(&asked(method, &[("host", &name), ("origin", &origin)]), 403, "foreign-host");
        }
    }
    // Forms and scripts of other pages.
    let (own, other) = (format!("http://{}", host.admin()), format!("http://localhost:{port}"));
    for origin in ["http://evil.example", "null", &other] {
        problem(&asked("POST", &[("origin", origin)]), 403, "foreign-origin");
    }
    problem(&asked("POST", &[("sec-fetch-site", "cross-site")]), 403, "foreign-origin");
    assert_eq!(
        good(&asked("POST", &[("origin", &own), ("sec-fetch-site", "same-origin")]), 200)["changed"],
        true
    );
    // A script of another page asks first, and no answer lets it go on.
    let asks = [("origin", "http://evil.example"), ("access-control-request-method", "DELETE")];
    let answer = asked("OPTIONS", &asks);
    assert!(!answer.head.contains("access-control-"), "{answer:?}");
    problem(&answer, 405, "method-not-allowed");
    host.stop();
}

#[test]
fn a_host_that_starts_gives_ids_and_writes_the_audit() {
    let mut bench = Bench::new("");
    let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
    let (url, free) = (bench.redis.url(), free.to_string());
    bench.configure(&format!(
        "[queues.work]\nplugin = \"missing\"\n[redis]\nurl = \"{url}\"\nwait = \"10m\"\n\
         [admin]\nlisten = \"{free}\"\n"
    ));
    bench.redis.stop();
    let host = bench.host_that_may_fail();
    host.log("the host waits for it (redis.wait)");
    let asked = |method: &str, path: &str, id: &str| send(&free, method, path, &[("x-request-id", id)], None);
    let read = asked("GET", "/v1/queues", "read-1");
    problem(&read, 503, "starting");
    assert_eq!(read.header("x-request-id"), Some("read-1"));
    for (path, id) in [("/v1/queues/work/pause", "change-1"), ("/queues/work/pause", "change-2")] {
        let answer = asked("POST", path, id);
        problem(&answer, 503, "starting");
        assert_eq!(answer.header("x-request-id"), Some(id));
    }
    let lines = host.until_logged("audit: a change was asked for", 2);
    for (line, id) in lines.iter().zip(["change-1", "change-2"]) {
        let told = ["request_id", "who", "code"].map(|name| line[name].as_str());
        assert_eq!(told, [id, "anybody", "starting"].map(Some), "{line}");
    }
}

#[test]
fn a_request_has_an_id_in_its_answer_and_in_the_audit() {
    let bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    let body = json!({ "all": true });
    let path = "/v1/queues/work/dead/purge";
    let answer = post_with(&host, path, &body, &[("x-request-id", "mine-7")]);
    assert_eq!((answer.status, answer.header("x-request-id")), (200, Some("mine-7")));
    let line = host.log("audit: a change was asked for");
    let told = ["request_id", "method", "path", "queue", "who"].map(|name| line[name].as_str());
    assert_eq!(told, ["mine-7", "POST", path, "work", "anybody"].map(Some));
    assert_eq!(
        (&line["status"], &line["succeeded"], &line["target"]),
        (&json!(200), &json!(0), &json!("tqhost::audit"))
    );
    let long = "x".repeat(129);
    for given in [&[][..], &[("x-request-id", long.as_str())], &[("x-request-id", "with a space")]] {
        let answer = send(host.admin(), "GET", "/v1/nothing", given, None);
        let id = answer.header("x-request-id").expect("an id");
        assert_eq!(id.len(), 36, "{answer:?}");
    }
    assert_eq!(host.logged("audit: a change was asked for").len(), 1, "reads have no line");
    assert_eq!(ask(&host, "GET", "/v1/queues").status, 200);
    host.stop();
}

#[test]
fn a_listener_that_others_reach_needs_a_token() {
    let bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let (redis, url) = ("[queues.work]\nplugin = \"missing\"\n[redis]\n", "url = \"redis://127.0.0.1:1\"\n");
    bench.configure(&format!("{redis}{url}[admin]\nlisten = \"0.0.0.0:0\"\nread_token = \"peek\"\n"));
    let checked = |bench: &Bench| {
        let folder = bench.dir.path().to_str().expect("a path");
        bench.tqhost(&["check"]).ends_with(78).stderr.replace(folder, "DIR")
    };
    insta::assert_snapshot!(checked(&bench), @"
    tqhost: DIR/tqhost.toml: 3 problems
      line 6: admin.token: is required, because 0.0.0.0:0 can be reached from other machines: write \
        token = { env = \"TQHOST_ADMIN_TOKEN\" }
      line 7: admin.read_token: has 4 characters, and 0.0.0.0:0 can be reached from other machines, \
        where somebody may guess it: write 16 at least (`openssl rand -hex 32` prints a good one)
      line 7: admin.read_token: needs token beside it: with read_token alone nobody could change \
        anything
    ");
    let tokens = "token = \"0123456789abcde\"\nread_token = \"0123456789abcdef\"\n";
    bench.configure(&format!("{redis}{url}[admin]\nlisten = \"0.0.0.0:0\"\n{tokens}"));
    insta::assert_snapshot!(checked(&bench), @"
    tqhost: DIR/tqhost.toml: 1 problem
      line 7: admin.token: has 15 characters, and 0.0.0.0:0 can be reached from other machines, where \
        somebody may guess it: write 16 at least (`openssl rand -hex 32` prints a good one)
    ");
}

#[test]
fn silent_clients_keep_nobody_from_asking_whether_the_host_lives() {
    let bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    host.until_ready();
    let body = format!(
        "POST /login HTTP/1.1\r\nHost: {0}\r\nOrigin: http://{0}\r\nContent-Length: 9\r\n\r\n",
        host.admin()
    );
    let parts: [&[u8]; 4] = [b"", b"GET /livez HTTP/1.1\r\nHost: ", b"GET /", body.as_bytes()];
    for part in parts {
        // More than the host takes connections.
        let silent: Vec<TcpStream> = (0..100)
            .map(|_| {
                let mut stream = TcpStream::connect(host.admin()).expect("connect");
                stream.write_all(part).expect("a part of a request");
                stream
            })
            .collect();
        for path in ["/livez", "/readyz"] {
            let mut stream = TcpStream::connect(host.admin()).expect("connect");
            // Less than the 5 seconds for which a silent connection may stay.
            stream.set_read_timeout(Some(Duration::from_secs(4))).expect("a time-out");
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", host.admin());
            stream.write_all(request.as_bytes()).expect("a request");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer while others are silent");
            assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
        }
        drop(silent);
    }
    host.stop();
}

#[test]
fn health_and_metrics_are_not_for_foreign_pages_and_names_not_for_strangers() {
    let bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let open = bench.host();
    open.until_ready();
    let foreign = [("host", "evil.example:7700")];
    for path in ["/metrics", "/readyz", "/v1/queues", "/"] {
        let answer = send(open.admin(), "GET", path, &foreign, None);
        assert_eq!(answer.status, 403, "{path}: {answer:?}");
        assert!(!answer.body.contains("work"), "{path}: {answer:?}");
        assert_eq!(open.get(path).status, 200, "{path}");
    }
    assert_eq!(send(open.admin(), "GET", "/livez", &foreign, None).status, 200);
    open.stop();

    let (_bench, host) = guarded();
    host.until_ready();
    let answer = host.get("/readyz");
    assert_eq!((answer.status, answer.json()), (200, json!({ "ready": true })));
    for headers in [[TOKEN], [READ]] {
        let answer = send(host.admin(), "GET", "/readyz", &headers, None);
        assert_eq!(answer.json()["queues"][0]["queue"], "work", "{answer:?}");
    }
    for path in ["/v1/queues", "/v1/nothing", "/v1/openapi.json", "/readyz", "/metrics", "/livez", "/nothing"]
    {
        let answer = send(host.admin(), "GET", path, &[READ], None);
        let told = ["x-content-type-options", "cache-control"].map(|name| answer.header(name));
        assert_eq!(told, [Some("nosniff"), Some("no-store")], "{path}: {answer:?}");
    }
    host.stop();
}
