//! Access to pages and to changes: login, logout, the reading token, forged forms.

use super::{Browser, FORM, check, encoded, form_token, guarded, led_to, text};
use crate::support::Bench;
use crate::support::http::Response;

/// The pages, and for each change its path.
const PAGES: [&str; 7] = [
    "/",
    "/queues/work",
    "/queues/work/drain",
    "/queues/work/tasks/1-0",
    "/queues/work/dead",
    "/queues/work/dead/confirm?what=purge",
    "/plugins",
];

/// The paths of all changes, as the router has them.
fn changes() -> Vec<String> {
    let router = include_str!("../../host/src/dashboard/mod.rs");
    let routes = router.lines().filter(|line| line.contains(".route(\"") && line.contains("post("));
    let path = |line: &str| line.split('"').nth(1).expect("a path").to_owned();
    let paths: Vec<String> = routes.map(path).collect();
    assert_eq!(paths.len(), 17, "{paths:?}");
    let change =
        |path: String| path.replace("{queue}", "work").replace("{id}", "1-0").replace("{plugin}", "missing");
    let logins = ["/login", "/logout"];
    paths.into_iter().filter(|path| !logins.contains(&path.as_str())).map(change).collect()
}

#[track_caller]
fn refused(answer: &Response, status: u16, part: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    check(answer);
    assert!(text(&answer.body).contains(part), "{part} in {answer:?}");
}

#[test]
fn every_change_refuses_without_session_form_token_or_own_origin() {
    let (mut bench, host) = guarded();
    let id = bench.xadd("work", &[("a", "1")]);
    let (nobody, reader, writer) =
        (Browser::new(&host), Browser::logged_in(&host, "peek"), Browser::logged_in(&host, "s3cret"));
    let (own, token) = (format!("http://{}", host.admin()), form_token(&writer.page("/queues/work")));
    let readers = form_token(&reader.page("/"));
    let all = changes();
    for path in &all {
        let path = path.replace("1-0", &id);
        let rest = [("fields", "a=1"), ("cursor", "x")];
        let send = |browser: &Browser, token: &str, headers: &[(&str, &str)]| {
            let fields = [&[("form-token", token)][..], &rest].concat();
            browser.ask("POST", &path, &[&[FORM], headers].concat(), Some(&encoded(&fields)))
        };
        let origin = ("origin", own.as_str());
        refused(&send(&nobody, &token, &[origin]), 401, "log in");
        refused(&send(&reader, &readers, &[origin]), 403, "for reading only");
        refused(&send(&writer, "", &[origin]), 403, "not one of this session");
        refused(&send(&writer, &readers, &[origin]), 403, "not one of this session");
        refused(&send(&writer, &token, &[]), 403, "not come from a page of this address");
        refused(&send(&writer, &token, &[("origin", "null")]), 403, "not come from");
        refused(&send(&writer, &token, &[("origin", "http://evil.example")]), 403, "not come from");
        refused(&send(&writer, &token, &[origin, ("sec-fetch-site", "same-site")]), 403, "not come from");
        // A bearer token makes no session.
        let bearer = [origin, ("authorization", "Bearer s3cret")];
        refused(&send(&nobody, &token, &bearer), 401, "log in");
        let answer = writer.ask("DELETE", &path, &[origin, FORM], Some(&encoded(&[("form-token", &token)])));
        refused(&answer, 405, "does not take this method");
    }
    let kept = (bench.redis::<u64>("XLEN", "work"), bench.redis::<u64>("EXISTS", "tq:{work}:paused"));
    assert_eq!(kept, (1, 0), "nothing was changed");
    // A change that is refused in each wrong way works in the right one.
    assert_eq!(
        led_to(&writer.submit("/queues/work/pause", &[("form-token", &token)])),
        "/queues/work?done=paused"
    );
    assert_eq!(bench.redis::<u64>("EXISTS", "tq:{work}:paused"), 1);
    let log = host.stop_for_log().raw();
    assert!(
        !log.contains("s3cret") && !log.contains("peek") && !log.contains(&token),
        "no secret is in the log"
    );
    let audit = log.lines().filter(|line| line.contains("audit: a change was asked for"));
    assert_eq!(audit.count(), all.len() * 10 + 3, "each refused change has a line, too");
}

#[test]
fn pages_need_a_session_and_a_logout_ends_it() {
    let (bench, host) = guarded();
    let nobody = Browser::new(&host);
    for page in PAGES {
        let place = led_to(&nobody.get(page));
        assert_eq!(place, format!("/login?next={page}"), "{page}");
    }
    for open in ["/dashboard.css", "/dashboard.js"] {
        assert_eq!(nobody.get(open).status, 200, "{open}");
    }
    let login = nobody.page("/login?next=/plugins");
    let send = |token: &str, next: &str| {
        let form = form_token(&login);
        nobody.submit("/login", &[("form-token", &form), ("token", token), ("next", next)])
    };
    refused(&send("wrong", "/plugins"), 401, "No token of [admin] is like this one.");
    refused(&send("", "/plugins"), 401, "No token of [admin] is like this one.");
    assert_eq!(led_to(&send("s3cret", "/plugins")), "/plugins");
    for foreign in ["//evil.example", "https://evil.example/", "/\\evil.example"] {
        assert_eq!(led_to(&send("s3cret", foreign)), "/");
    }
    let logins = host.until_logged("audit: a change was asked for", 6);
    let who: Vec<_> = logins.iter().map(|line| line["who"].as_str().unwrap_or_default()).collect();
    assert_eq!(who, ["nobody", "nobody", "token", "token", "token", "token"]);
    let own = format!("http://{}", host.admin());
    let forged =
        nobody.ask("POST", "/login", &[("origin", &own), FORM], Some(&encoded(&[("token", "s3cret")])));
    refused(&forged, 403, "not one of this session");
    let browser = Browser::logged_in(&host, "s3cret");
    let page = browser.page("/");
    // The cookie of one session is none of another name.
    let mut other = Browser::new(&host);
    other.cookie = browser.cookie.as_ref().map(|cookie| format!("x{cookie}"));
    led_to(&other.get("/"));
    assert_eq!(led_to(&browser.press(&page, "/logout", &[])), "/login?done=logged-out");
    assert!(led_to(&browser.get("/")).starts_with("/login?"), "the cookie is worth nothing any more");
    drop(bench);
    host.stop();
}

#[test]
fn the_reading_token_sees_everything_and_no_form_that_changes() {
    let (mut bench, host) = guarded();
    let id = bench.xadd("work", &[("a", "1")]);
    let reader = Browser::logged_in(&host, "peek");
    for page in PAGES {
        let page = reader.page(&page.replace("1-0", &id));
        let posts = page.matches("method=\"post\"").count();
        assert_eq!((posts, page.matches("action=\"/logout\"").count()), (1, 1), "{page}");
        assert!(text(&page).contains("reading only"));
    }
    host.stop();
}

#[test]
fn without_a_token_only_names_of_this_machine_are_answered() {
    let bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    let browser = Browser::new(&host);
    let page = browser.page("/queues/work");
    assert!(!page.contains("action=\"/logout\""));
    refused(&browser.ask("GET", "/", &[("host", "evil.example")], None), 403, "has no token");
    let rebound = [("host", "evil.example:7700"), ("origin", "http://evil.example:7700"), FORM];
    let body = encoded(&[("form-token", &form_token(&page))]);
    refused(&browser.ask("POST", "/queues/work/pause", &rebound, Some(&body)), 403, "has no token");
    assert_eq!(led_to(&browser.press(&page, "/queues/work/pause", &[])), "/queues/work?done=paused");
    refused(&browser.get("/queues/nothing"), 404, "no queue \"nothing\" is configured");
    refused(&browser.get("/queues/work/nothing"), 404, "no such page");
    refused(&browser.get("/queues/work?state=none"), 422, "there is no state");
    refused(&browser.get("/queues/work?cursor=none"), 422, "cursor");
    host.stop();
}

#[test]
fn a_proxy_may_write_the_host_with_its_port_or_in_capitals() {
    let (bench, host) = guarded();
    let nobody = Browser::new(&host);
    let login = |host: &str, origin: &str| {
        let form = form_token(&nobody.page("/login"));
        let headers = [("host", host), ("origin", origin), ("sec-fetch-site", "same-origin"), FORM];
        let fields = [("form-token", form.as_str()), ("token", "s3cret"), ("next", "/plugins")];
        nobody.ask("POST", "/login", &headers, Some(&encoded(&fields)))
    };
    for (host, origin) in [
        ("tq.example.com", "https://tq.example.com"),
        ("tq.example.com:443", "https://tq.example.com"),
        ("tq.example.com:80", "http://tq.example.com"),
        ("TQ.Example.com", "https://tq.example.com"),
        ("TQ.example.com:8443", "https://tq.example.com:8443"),
    ] {
        assert_eq!(led_to(&login(host, origin)), "/plugins", "{host} {origin}");
    }
    for (host, origin) in [
        ("tq.example.com:80", "https://tq.example.com"),
        ("tq.example.com:443", "http://tq.example.com"),
        ("tq.example.com:8443", "https://tq.example.com"),
        ("upstream:7700", "https://tq.example.com"),
    ] {
        refused(&login(host, origin), 403, "not come from a page of this address");
    }
    drop(bench);
    host.stop();
}

#[test]
fn logins_with_one_token_end_no_session_of_another() {
    let (bench, host) = guarded();
    let writer = Browser::logged_in(&host, "s3cret");
    let nobody = Browser::new(&host);
    let form = form_token(&nobody.page("/login"));
    // More than the host keeps.
    for _ in 0..1_001 {
        let answer = nobody.submit("/login", &[("form-token", &form), ("token", "peek")]);
        assert_eq!(answer.status, 303, "{answer:?}");
    }
    writer.page("/");
    drop(bench);
    host.stop();
}
