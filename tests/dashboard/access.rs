//! Access to pages and to changes: login, logout, roles, forged forms and cookies, users of a proxy, a base
//! path.

use serde_json::json;

use super::{Browser, FORM, check, encoded, form_token, guarded, led_to, text};
use crate::api::access::{NAMED, configure_named, named, roles_of_the_page};
use crate::support::files::digest;
use crate::support::http::{self, Events, Response};
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

/// The paths of all changes.
fn changes() -> Vec<String> {
    let logins = ["/login", "/logout"];
    change_routes().iter().filter(|route| !logins.contains(&route.as_str())).map(|r| concrete(r)).collect()
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
        refused(&send(&reader, &readers, &[origin]), 403, "read_token has the role read, and POST ");
        refused(&send(&writer, "", &[origin]), 403, "not one of this session");
        refused(&send(&writer, &readers, &[origin]), 403, "not one of this session");
        refused(&send(&writer, &token, &[]), 403, "not come from a page of this address");
        refused(&send(&writer, &token, &[("origin", "null")]), 403, "Origin is null");
        let evil = ("origin", "http://evil.example");
        refused(&send(&writer, &token, &[evil]), 403, "Origin is http://evil.example.");
        let site = ("sec-fetch-site", "same-site");
        refused(&send(&writer, &token, &[origin, site]), 403, "Sec-Fetch-Site is same-site");
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
        let told = format!("Host is {host}, Origin is {origin}. Where the page is one of this host, let the");
        refused(&login(host, origin), 403, &told);
    }
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
        let needs = |name: &str, of| format!("{name} has the role {of}, and {request} needs the role {role}");
        refused(&of(&reader, 0), 403, &needs("eye", "read"));
        let answer = of(&operator, 1);
        match *role {
            "operate" => assert!(![401, 403].contains(&answer.status), "{request}: {answer:?}"),
            _ => refused(&answer, 403, &needs("ci", "operate")),
        }
        let answer = of(&admin, 2);
        assert!(![401, 403].contains(&answer.status), "{request}: {answer:?}");
    }
    bench.xadd("tq:{work}:dead", &[("tq-id", "dead"), ("tq-reason", "rejected")]);
    // A change that the visitor may not make has no button.
    let on = |browser: &Browser, path: &str| browser.page(path);
    assert!(!on(&reader, "/queues/work/dead").contains("Requeue…"));
    let dead = on(&operator, "/queues/work/dead");
    assert!(dead.contains("Requeue…") && !dead.contains("Purge…"), "{dead}");
    assert!(on(&admin, "/queues/work/dead").contains("Purge…"));
    let confirm = text(&on(&operator, "/queues/work/dead/confirm?what=purge"));
    assert!(confirm.contains("This needs the role admin."), "{confirm}");
    assert!(
        text(&on(&operator, "/")).contains("ci") && text(&on(&reader, "/")).contains("eye, reading only")
    );
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
    for browser in [&one, &two] {
        assert_eq!(led_to(&browser.get("/")), "/login?next=/");
        refused(&browser.press(&page, "/logout", &[]), 401, "log in first, at /login");
    }
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
    assert!(answer.status != 303 && !text(&answer.body).contains("Log in"), "{answer:?}");
    for action in ["/queues/work/pause", "/logout"] {
        let form = [("form-token", form_token(&page))];
        let form = form.each_ref().map(|(name, value)| (*name, value.as_str()));
        refused(&browser.submit(action, &form), 503, "Redis does not tell whether this session was ended");
    }
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
    assert!(text(&page.body).contains("alice@example.com"), "{page:?}");
    assert!(!page.body.contains("/logout") && page.body.contains("Log in with a token"));
    // The form of one host is taken by the other one; but not that of another user, or of nobody.
    let send = |path: &str, user: &str, token: &str| {
        let headers = [("x-forwarded-user", user), ("origin", &own), FORM];
        let form = encoded(&[("form-token", token), ("why", "a test")]);
        Browser::new(&again).ask("POST", path, &headers, Some(&form))
    };
    let token = form_token(&page.body);
    assert_eq!(led_to(&send("/queues/work/pause", "alice@example.com", &token)), "/queues/work?done=paused");
    refused(&send("/queues/work/pause", "bob", &token), 403, "not one of this session");
    let strangers = form_token(&browser.page("/login"));
    refused(&send("/queues/work/pause", "alice@example.com", &strangers), 403, "not one of this session");
    let told =
        "alice@example.com has the role operate, and POST /plugins/{plugin}/reload needs the role admin";
    refused(&send("/plugins/missing/reload", "alice@example.com", &token), 403, told);
    // Without a name there is the login, and a token that has a higher role goes before the name.
    assert_eq!(led_to(&browser.get("/")), "/login?next=/");
    let boss = Browser::logged_in(&host, NAMED[2].2);
    assert!(text(&boss.ask("GET", "/", &alice, None).body).contains("boss"));
    // A name that is none.
    for bad in ["a b", "a,b", ""] {
        let answer = browser.ask("GET", "/", &[("x-forwarded-user", bad)], None);
        refused(&answer, 400, "x-forwarded-user must be there once");
    }
    let twice = [alice[0], ("x-forwarded-user", "mallory")];
    refused(&browser.ask("GET", "/", &twice, None), 400, "x-forwarded-user must be there once");
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
    refused(&reload(&[]), 403, "alice@example.com has the role operate");
    refused(&reload(&[("x-groups", "on call 2, oncall")]), 403, "alice@example.com has the role operate");
    for lines in [&[("x-groups", "staff, on call")][..], &[("x-groups", "staff"), ("x-groups", "on call")]] {
        assert_eq!(led_to(&reload(lines)), "/plugins/missing?done=reloading");
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
    refused(&forged, 401, "log in first");
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
    assert!(told.status == 404 && told.body.contains("base_path of [admin] is /ops/tqhost"), "{told:?}");
    host.stop();
}
