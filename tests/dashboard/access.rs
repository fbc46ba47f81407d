//! Access to pages and to changes: login, logout, roles, forged forms and cookies, users of a proxy, a base
//! path.

use std::collections::BTreeSet;

use serde_json::json;

use super::{Browser, FORM, check, encoded, form_token, guarded, led_to, lines, problem};
use crate::api::access::{NAMED, configure_named, named, roles_of_the_page};
use crate::support::files::digest;
use crate::support::http::{self, Events};
use crate::support::words::{element, masked, text};
use crate::support::{Bench, Host, eventually};

/// The pages, and for each change its path.
const PAGES: [&str; 9] = [
    "/",
    "/queues/work",
    "/queues/work/drain",
    "/queues/work/tasks/1-0",
    "/queues/work/dead",
    "/queues/work/dead/confirm?what=purge",
    "/queues/work/chosen?what=cancel&task=1-0",
    "/plugins",
    "/plugins/missing",
];

/// The routes of all changes, as the router has them.
fn change_routes() -> Vec<String> {
    let router = include_str!("../../host/src/dashboard/mod.rs");
    let routes = router.lines().filter(|line| line.contains(".route(\"") && line.contains("post("));
    let path = |line: &str| line.split('"').nth(1).expect("a path").to_owned();
    let paths: Vec<String> = routes.map(path).collect();
    assert_eq!(paths.len(), 25, "{paths:?}");
    paths
}

fn concrete(route: &str) -> String {
    route.replace("{queue}", "work").replace("{id}", "1-0").replace("{plugin}", "missing")
}

#[test]
fn every_change_refuses_without_session_form_token_or_own_origin() {
    let (mut bench, host) = guarded();
    let id = bench.xadd("work", &[("a", "1")]);
    let (nobody, reader, writer) =
        (Browser::new(&host), Browser::logged_in(&host, "peek"), Browser::logged_in(&host, "s3cret"));
    let (own, token) = (format!("http://{}", host.admin()), form_token(&writer.page("/queues/work")));
    let readers = form_token(&reader.page("/"));
    let mut all = change_routes();
    all.retain(|route| !["/login", "/logout"].contains(&route.as_str()));
    let mut told = BTreeSet::new();
    for route in &all {
        let path = concrete(route).replace("1-0", &id);
        let rest = [("fields", "a=1"), ("cursor", "x")];
        let send = |browser: &Browser, token: &str, headers: &[(&str, &str)]| {
            let fields = [&[("form-token", token)][..], &rest].concat();
            browser.ask("POST", &path, &[&[FORM], headers].concat(), Some(&encoded(&fields)))
        };
        let origin = ("origin", own.as_str());
        let fields = encoded(&[("form-token", &token)]);
        for (case, answer) in [
            ("no session", send(&nobody, &token, &[origin])),
            // A bearer token makes none.
            ("no session", send(&nobody, &token, &[origin, ("authorization", "Bearer s3cret")])),
            ("a reader", send(&reader, &readers, &[origin])),
            ("no form token", send(&writer, "", &[origin])),
            ("another's form token", send(&writer, &readers, &[origin])),
            ("no origin", send(&writer, &token, &[])),
            ("null", send(&writer, &token, &[("origin", "null")])),
            ("another origin", send(&writer, &token, &[("origin", "http://evil.example")])),
            ("another site", send(&writer, &token, &[origin, ("sec-fetch-site", "same-site")])),
            ("another method", writer.ask("DELETE", &path, &[origin, FORM], Some(&fields))),
        ] {
            told.insert(format!("{case}: {}", masked(&problem(&answer), &[(route, "ROUTE")])));
        }
    }
    insta::assert_snapshot!(lines(told), @"
    a reader: 403 read_token has the role read, and POST ROUTE needs the role admin
    a reader: 403 read_token has the role read, and POST ROUTE needs the role operate
    another method: 405 this page does not take this method
    another origin: 403 the request comes from the page of another origin, which may not change anything: Host is 127.0.0.1:PORT, Origin is http://evil.example. Where the page is one of this host, let the proxy keep the Host header (nginx: proxy_set_header Host $http_host)
    another site: 403 the request comes from the page of another origin, which may not change anything: Sec-Fetch-Site is same-site
    another's form token: 403 the form is not one of this session: load its page again, and send it from there
    no form token: 403 the form is not one of this session: load its page again, and send it from there
    no origin: 403 the request has neither Origin nor Sec-Fetch-Site, so it does not come from a page of this address: let the proxy keep them
    no session: 401 log in first, at /login
    null: 403 the request comes from the page of another origin, which may not change anything: Host is 127.0.0.1:PORT, Origin is null. Where the page is one of this host, let the proxy keep the Host header (nginx: proxy_set_header Host $http_host)
    ");
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
    let wrong = ["wrong", ""].map(|token| problem(&send(token, "/plugins")));
    insta::assert_snapshot!(lines(wrong.into()), @"401 No token of [admin] is like this one.");
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
    insta::assert_snapshot!(problem(&forged), @"403 the form is not one of this session: load its page again, and send it from there");
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
    let mut who = BTreeSet::new();
    for page in PAGES {
        let page = reader.page(&page.replace("1-0", &id));
        let posts = page.matches("method=\"post\"").count();
        assert_eq!((posts, page.matches("action=\"/logout\"").count()), (1, 1), "{page}");
        who.insert(text(element(&page, "class=\"who\"")));
    }
    insta::assert_snapshot!(lines(who), @"
    read_token, reading only
    Log out
    ");
    host.stop();
}

#[test]
fn without_a_token_only_names_of_this_machine_are_answered() {
    let bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    let browser = Browser::new(&host);
    let page = browser.page("/queues/work");
    assert!(!page.contains("action=\"/logout\""));
    let rebound = [("host", "evil.example:7700"), ("origin", "http://evil.example:7700"), FORM];
    let body = encoded(&[("form-token", &form_token(&page))]);
    let told = [
        browser.ask("GET", "/", &[("host", "evil.example")], None),
        browser.ask("POST", "/queues/work/pause", &rebound, Some(&body)),
        browser.get("/queues/nothing"),
        browser.get("/queues/work/nothing"),
        browser.get("/queues/work?state=none"),
        browser.get("/queues/work?cursor=none"),
    ];
    insta::assert_snapshot!(told.each_ref().map(problem).join("\n"), @r#"
    403 this address has no token, so it answers only requests to localhost or a loopback address: use one, or set token of [admin]
    403 this address has no token, so it answers only requests to localhost or a loopback address: use one, or set token of [admin]
    404 no queue "nothing" is configured. Configured: work
    404 there is no such page
    422 state: there is no state "none"
    422 cursor: it is not one that this request gave: take `next` of the answer before, with the same filters
    "#);
    assert_eq!(led_to(&browser.press(&page, "/queues/work/pause", &[])), "/queues/work?done=paused");
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
    let told = [
        ("tq.example.com:80", "https://tq.example.com"),
        ("tq.example.com:443", "http://tq.example.com"),
        ("tq.example.com:8443", "https://tq.example.com"),
        ("upstream:7700", "https://tq.example.com"),
    ]
    .map(|(host, origin)| problem(&login(host, origin)));
    insta::assert_snapshot!(told.join("\n"), @"
    403 the request comes from the page of another origin, which may not change anything: Host is tq.example.com:80, Origin is https://tq.example.com. Where the page is one of this host, let the proxy keep the Host header (nginx: proxy_set_header Host $http_host)
    403 the request comes from the page of another origin, which may not change anything: Host is tq.example.com:443, Origin is http://tq.example.com. Where the page is one of this host, let the proxy keep the Host header (nginx: proxy_set_header Host $http_host)
    403 the request comes from the page of another origin, which may not change anything: Host is tq.example.com:8443, Origin is https://tq.example.com. Where the page is one of this host, let the proxy keep the Host header (nginx: proxy_set_header Host $http_host)
    403 the request comes from the page of another origin, which may not change anything: Host is upstream:7700, Origin is https://tq.example.com. Where the page is one of this host, let the proxy keep the Host header (nginx: proxy_set_header Host $http_host)
    ");
    drop(bench);
    host.stop();
}

/// The sessions of [`NAMED`], at a host.
fn of_each_role(host: &Host) -> [Browser<'_>; 3] {
    NAMED.map(|(_, _, token)| Browser::logged_in(host, token))
}

#[test]
fn each_role_may_do_on_pages_what_the_page_for_operators_says() {
    let mut bench = named("");
    let host = bench.host();
    let id = bench.xadd("work", &[("a", "1")]);
    let page = roles_of_the_page();
    let routes: Vec<String> = change_routes();
    let [reader, operator, admin] = of_each_role(&host);
    let tokens = [&reader, &operator, &admin].map(|browser| form_token(&browser.page("/")));
    let mut told = BTreeSet::new();
    for route in &routes {
        let request = format!("POST {route}");
        let role = page.get(&request).unwrap_or_else(|| {
            panic!("{request}: give it a role in admin/roles.rs and in docs/operations.md")
        });
        if *role == "read" {
            continue;
        }
        let path = concrete(route).replace("1-0", &id);
        let of = |browser: &Browser, at: usize| browser.submit(&path, &[("form-token", &tokens[at])]);
        let mut refused = |answer: &http::Response| {
            told.insert(problem(answer).replace(&request, "REQUEST").replace(role, "ROLE"));
        };
        refused(&of(&reader, 0));
        let answer = of(&operator, 1);
        match *role {
            "operate" => assert!(![401, 403].contains(&answer.status), "{request}: {answer:?}"),
            _ => refused(&answer),
        }
        let answer = of(&admin, 2);
        assert!(![401, 403].contains(&answer.status), "{request}: {answer:?}");
    }
    insta::assert_snapshot!(lines(told), @"
    403 ci has the role operate, and REQUEST needs the role ROLE
    403 eye has the role read, and REQUEST needs the role ROLE
    ");
    bench.xadd("tq:{work}:dead", &[("tq-id", "dead"), ("tq-reason", "rejected")]);
    // A change that the visitor may not make has no button.
    let on = |browser: &Browser, path: &str| browser.page(path);
    assert!(!on(&reader, "/queues/work/dead").contains("Requeue…"));
    let dead = on(&operator, "/queues/work/dead");
    assert!(dead.contains("Requeue…") && !dead.contains("Purge…"), "{dead}");
    assert!(on(&admin, "/queues/work/dead").contains("Purge…"));
    let confirm = on(&operator, "/queues/work/dead/confirm?what=purge");
    insta::assert_snapshot!(masked(&text(element(&confirm, "<main")), &[]), @"
    Dead letters of work
    Purge dead letters of work
    1 dead letter of queue work: all of them.
    Some of them
    For example | Alias | Fields
    dead | – |
    They are kept for 24 hours: the page of the job has a button that brings them back, and a file to download. After that only a file that you have downloaded is left.
    Download as JSON lines
    This needs the role admin.
    Back, without a change
    ");
    let who = [&reader, &operator].map(|browser| text(element(&on(browser, "/"), "class=\"who\"")));
    insta::assert_snapshot!(who.join("\n"), @"
    eye, reading only
    Log out
    ci
    Log out
    ");
    host.stop();
}

/// A browser at a host, with the cookie that another one may have given.
fn at<'h>(host: &'h Host, cookie: &str) -> Browser<'h> {
    Browser { host, cookie: Some(cookie.to_owned()) }
}

#[test]
fn a_session_holds_on_all_hosts_until_one_of_them_ends_it() {
    let mut bench = named("");
    let (first, second) = (bench.host(), bench.host());
    // The form of one host is taken by another one, before and after the login.
    let (nobody, other) = (Browser::new(&first), Browser::new(&second));
    let fields = |form: &str| [("form-token", form.to_owned()), ("token", NAMED[1].2.to_owned())];
    let form = fields(&form_token(&nobody.page("/login")));
    let answer = other.submit("/login", &form.each_ref().map(|(name, value)| (*name, value.as_str())));
    assert_eq!(led_to(&answer), "/");
    let cookie = answer.header("set-cookie").and_then(|line| line.split(';').next()).expect("a cookie");
    let (one, two) = (at(&first, cookie), at(&second, cookie));
    let page = one.page("/queues/work");
    assert_eq!(led_to(&two.press(&page, "/queues/work/pause", &[])), "/queues/work?done=paused");
    let page = two.page("/queues/work");
    assert_eq!(led_to(&one.press(&page, "/queues/work/resume", &[])), "/queues/work?done=resumed");
    // It survives the host that made it.
    second.stop();
    let second = bench.host();
    let two = at(&second, cookie);
    two.page("/");

    // Every change of the cookie makes it worth nothing.
    let (name, value) = cookie.split_once('=').expect("a value");
    assert!(value.starts_with("ci."), "{cookie}");
    let (text, mark) = value.rsplit_once('.').expect("a mark");
    for forged in [
        value.replacen("ci.", "boss.", 1),
        value.replacen("ci.1", "ci.2", 1),
        format!("{text}.{}", "0".repeat(64)),
        format!("{text}."),
        format!("{text}.{}", digest(mark.as_bytes())),
        String::new(),
    ] {
        assert_ne!(forged, value);
        let place = led_to(&at(&first, &format!("{name}={forged}")).get("/"));
        assert_eq!(place, "/login?next=/", "{forged}");
    }

    // Another session of the same token stays.
    let kept = Browser::logged_in(&first, NAMED[1].2);
    let page = two.page("/");
    assert_eq!(led_to(&one.press(&page, "/logout", &[])), "/login?done=logged-out");
    let told = [&one, &two].map(|browser| {
        assert_eq!(led_to(&browser.get("/")), "/login?next=/");
        problem(&browser.press(&page, "/logout", &[]))
    });
    insta::assert_snapshot!(lines(told.into()), @"401 log in first, at /login");
    kept.page("/");
    at(&second, kept.cookie.as_deref().expect("a cookie")).page("/");
    let seconds: i64 = bench.redis("TTL", "tq:hosts:sessions:ci");
    assert!((1..=12 * 3600).contains(&seconds), "{seconds}");

    // A token that is replaced ends its sessions, and those of others go on.
    let boss = Browser::logged_in(&first, NAMED[2].2);
    let config = std::fs::read_to_string(bench.config()).expect("the configuration");
    let replaced = config.replace(&digest(NAMED[1].2.as_bytes()), &digest(b"another token"));
    assert_ne!(replaced, config);
    bench.configure(&replaced);
    let third = bench.host();
    let cookie = |browser: &Browser| browser.cookie.clone().expect("a cookie");
    assert_eq!(led_to(&at(&third, &cookie(&kept)).get("/")), "/login?next=/");
    at(&third, &cookie(&boss)).page("/");

    // Redis loses everything, the logouts, too: no session from before is open any more.
    bench.redis::<()>("FLUSHALL", &[""; 0][..]);
    eventually("the session is over", || {
        let answer = boss.get("/");
        (answer.status == 303 && led_to(&answer) == "/login?next=/").then_some(())
    });
    let anew = Browser::logged_in(&first, NAMED[2].2);
    eventually("the other hosts have the new key", || {
        (at(&third, &cookie(&anew)).get("/").status == 200).then_some(())
    });
    Host::stop_all([first, second, third]);
}

#[test]
fn while_redis_is_away_a_signed_session_may_read_and_nothing_else() {
    let mut bench = named("");
    let host = bench.host();
    let browser = Browser::logged_in(&host, NAMED[2].2);
    let page = browser.page("/queues/work");
    bench.redis.stop();
    // It is not sent to the login, and learns what is wrong.
    let answer = browser.get("/");
    assert!(answer.status != 303 && !answer.body.contains("action=\"/login\""), "{answer:?}");
    let token = form_token(&page);
    let told = ["/queues/work/pause", "/logout"].map(|action| {
        let told = problem(&browser.submit(action, &[("form-token", &token)]));
        // The rest is the error of Redis.
        told.split(": ").next().unwrap_or_default().to_owned()
    });
    insta::assert_snapshot!(lines(told.into()), @"503 Redis does not tell whether this session was ended, so it may only read");
    let mut forged = Browser::new(&host);
    forged.cookie = browser.cookie.as_ref().map(|cookie| {
        let (rest, last) = cookie.split_at(cookie.len() - 1);
        format!("{rest}{}", if last == "0" { "1" } else { "0" })
    });
    assert_eq!(led_to(&forged.get("/")), "/login?next=/");
    bench.redis.start_again();
    eventually("Redis is back", || (browser.get("/").status == 200).then_some(()));
    host.stop();
}

#[test]
fn a_user_of_the_proxy_needs_no_login_and_nobody_else_may_name_one() {
    const LINES: &str = "trusted_user_header = \"X-Forwarded-User\"\ntrusted_user_role = \"operate\"\n";
    let bench = named(LINES);
    let (host, again) = (bench.host(), bench.host());
    let alice = [("x-forwarded-user", "alice@example.com")];
    let browser = Browser::new(&host);
    let own = format!("http://{}", again.admin());
    let page = browser.ask("GET", "/queues/work", &alice, None);
    check(&page);
    assert!(!page.body.contains("/logout"), "{page:?}");
    let who = element(&page.body, "class=\"who\"");
    assert!(who.contains("alice@example.com") && who.contains("href=\"/login\""), "{who}");
    // The form of one host is taken by the other one; but not that of another user, or of nobody.
    let send = |path: &str, user: &str, token: &str| {
        let headers = [("x-forwarded-user", user), ("origin", &own), FORM];
        let form = encoded(&[("form-token", token), ("why", "a test")]);
        Browser::new(&again).ask("POST", path, &headers, Some(&form))
    };
    let token = form_token(&page.body);
    assert_eq!(led_to(&send("/queues/work/pause", "alice@example.com", &token)), "/queues/work?done=paused");
    let strangers = form_token(&browser.page("/login"));
    let told = [
        ("/queues/work/pause", "bob", &token),
        ("/queues/work/pause", "alice@example.com", &strangers),
        ("/plugins/missing/reload", "alice@example.com", &token),
    ]
    .map(|(path, user, token)| problem(&send(path, user, token)));
    insta::assert_snapshot!(told.join("\n"), @"
    403 the form is not one of this session: load its page again, and send it from there
    403 the form is not one of this session: load its page again, and send it from there
    403 alice@example.com has the role operate, and POST /plugins/{plugin}/reload needs the role admin
    ");
    // Without a name there is the login, and a token that has a higher role goes before the name.
    assert_eq!(led_to(&browser.get("/")), "/login?next=/");
    let boss = Browser::logged_in(&host, NAMED[2].2);
    assert!(text(&boss.ask("GET", "/", &alice, None).body).contains("boss"));
    // A name that is none.
    let bad = |name| ("x-forwarded-user", name);
    let told = [&[bad("a b")][..], &[bad("a,b")], &[bad("")], &[alice[0], bad("mallory")]]
        .map(|headers| problem(&browser.ask("GET", "/", headers, None)));
    insta::assert_snapshot!(lines(told.into()), @"400 x-forwarded-user must be there once, with one name of 1 to 128 visible ASCII characters and no comma: let the proxy set it");
    // Programs have tokens.
    assert_eq!(browser.ask("GET", "/v1/queues", &alice, None).status, 401);
    assert_eq!(browser.ask("GET", "/metrics", &alice, None).status, 401);
    let audit = again.until_logged("audit: a change was asked for", 4);
    assert_eq!((&audit[0]["who"], &audit[1]["who"]), (&json!("alice@example.com"), &json!("bob")));

    // A group may have a higher role than its users have by themselves, for as long as they are in it.
    configure_named(
        &bench,
        &format!(
            "{LINES}trusted_groups_header = \"X-Groups\"\ntrusted_groups = {{ \"on call\" = \"admin\" }}\n"
        ),
    );
    let grouped = bench.host();
    let own = format!("http://{}", grouped.admin());
    let browser = Browser::new(&grouped);
    let token = form_token(&browser.ask("GET", "/queues/work", &alice, None).body);
    let reload = |groups: &[(&str, &str)]| {
        let headers = [&[alice[0], ("origin", &*own), FORM], groups].concat();
        browser.ask("POST", "/plugins/missing/reload", &headers, Some(&encoded(&[("form-token", &token)])))
    };
    let told = [&[][..], &[("x-groups", "on call 2, oncall")]].map(|groups| problem(&reload(groups)));
    insta::assert_snapshot!(lines(told.into()), @"403 alice@example.com has the role operate, and POST /plugins/{plugin}/reload needs the role admin");
    for groups in [&[("x-groups", "staff, on call")][..], &[("x-groups", "staff"), ("x-groups", "on call")]] {
        assert_eq!(led_to(&reload(groups)), "/plugins/missing?done=reloading");
    }
    grouped.stop();

    // From another address than that of the proxy the header is nothing.
    configure_named(&bench, &format!("{LINES}trusted_proxies = [\"10.9.9.9\"]\n"));
    let strict = bench.host();
    let browser = Browser::new(&strict);
    for _ in 0..3 {
        assert_eq!(led_to(&browser.ask("GET", "/", &alice, None)), "/login?next=/");
    }
    let login = form_token(&browser.page("/login"));
    let headers = [alice[0], ("origin", &format!("http://{}", strict.admin())), FORM];
    let forged =
        browser.ask("POST", "/queues/work/pause", &headers, Some(&encoded(&[("form-token", &login)])));
    insta::assert_snapshot!(problem(&forged), @"401 log in first, at /login");
    let log = strict.stop_for_log();
    let told = log.logged("does not come from trusted_proxies");
    assert_eq!(told.len(), 1, "{told:?}");
    Host::stop_all([host, again]);
}

#[test]
fn below_a_base_path_every_link_leads_back_to_it() {
    let mut bench = named("base_path = \"/ops/tqhost\"");
    let host = bench.host();
    let id = bench.xadd("work", &[("a", "1")]);
    let nobody = Browser::new(&host);
    let own = format!("http://{}", host.admin());
    assert_eq!(led_to(&nobody.get("/ops/tqhost/jobs?a=1")), "/ops/tqhost/login?next=/jobs?a=1");
    let login = nobody.get("/ops/tqhost/login?next=/jobs");
    assert!(login.body.contains("action=\"/ops/tqhost/login\""), "{login:?}");
    let send = |next: &str| {
        let form = [("form-token", &*form_token(&login.body)), ("token", NAMED[2].2), ("next", next)];
        nobody.ask("POST", "/ops/tqhost/login", &[("origin", &own), FORM], Some(&encoded(&form)))
    };
    for foreign in ["//evil.example", "https://evil.example/", "/\\evil.example", ".evil.example"] {
        assert_eq!(led_to(&send(foreign)), "/ops/tqhost/");
    }
    let answer = send("/jobs");
    assert_eq!(led_to(&answer), "/ops/tqhost/jobs");
    let cookie = answer.header("set-cookie").expect("a cookie");
    assert!(cookie.contains("; path=/ops/tqhost; "), "{cookie}");
    let mut browser = Browser::new(&host);
    browser.cookie = cookie.split(';').next().map(str::to_owned);
    // Also where the proxy takes the prefix away.
    for prefix in ["/ops/tqhost", ""] {
        for page in PAGES.iter().chain(&["/jobs", "/changes", "/search?q=w", "/login", "/queues/none"]) {
            let answer = browser.get(&format!("{prefix}{}", page.replace("1-0", &id)));
            for attribute in ["href=\"", "src=\"", "action=\""] {
                for place in answer.body.split(attribute).skip(1).filter_map(|rest| rest.split('"').next()) {
                    let is_below = place.starts_with("/ops/tqhost/") || place.starts_with(['#']);
                    assert!(is_below || place == "data:,", "{prefix}{page}: {attribute}{place}");
                }
            }
        }
    }
    let page = browser.get("/ops/tqhost/queues/work").body;
    let pause = "/ops/tqhost/queues/work/pause";
    assert_eq!(led_to(&browser.press(&page, pause, &[])), "/ops/tqhost/queues/work?done=paused");
    let mut events = Events::open(
        host.admin(),
        "/ops/tqhost/queues/work",
        &[("accept", "text/event-stream"), ("cookie", browser.cookie.as_deref().expect("a cookie"))],
    );
    let event = events.next().expect("a page");
    assert!(
        event.kind == "page" && event.data.as_str().is_some_and(|page| page.contains("/ops/tqhost/jobs"))
    );
    drop(events);
    // The API, its places, and the probes.
    let token = format!("Bearer {}", NAMED[2].2);
    let auth = ("authorization", token.as_str());
    let api = |method: &str, path: &str, body| {
        let headers = [auth, ("content-type", "application/json")];
        http::send(host.admin(), method, path, &headers, body)
    };
    let document = api("GET", "/ops/tqhost/v1/openapi.json", None).json();
    assert_eq!(document["servers"][0]["url"], "/ops/tqhost/");
    let made = api("POST", "/ops/tqhost/v1/queues/work/tasks", Some("{\"fields\": {\"a\": \"1\"}}"));
    let place = made.header("location").expect("a place");
    assert!(place.starts_with("/ops/tqhost/v1/queues/work/tasks/"), "{place}");
    assert_eq!(api("GET", &place.replace("%2d", "-"), None).status, 200, "{place}");
    for probe in ["/livez", "/ops/tqhost/livez"] {
        assert_eq!(host.get(probe).status, 200);
    }
    // A wrong prefix is told with the right one.
    let told = browser.get("/tqhost/queues/work");
    assert_eq!(told.status, 404, "{told:?}");
    insta::assert_snapshot!(told.json()["detail"].as_str().expect("a detail"), @"there are GET /ops/tqhost/livez, GET /ops/tqhost/readyz, GET /ops/tqhost/metrics, the API below /ops/tqhost/v1/, and the dashboard at /ops/tqhost/; base_path of [admin] is /ops/tqhost");
    host.stop();
}
