//! The dashboard: real hosts, and a client that knows HTML as little as a browser without JavaScript.
//!
//! Not here: the same in a real browser (`tests/world`).

mod access;
mod chosen;
mod copy;
mod dead;
mod fields;
mod history;
mod hostile;
mod incidents;
mod live;
mod mask;
mod pages;
mod steps;

use std::collections::BTreeSet;

use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::support::http::{self, Response};
use crate::support::words::{element, text, unescaped};
use crate::support::{Bench, Host, eventually};

/// A browser without JavaScript: it keeps a cookie, and sends forms as pages have them.
pub(crate) struct Browser<'h> {
    host: &'h Host,
    cookie: Option<String>,
}

impl Browser<'_> {
    pub(crate) fn new(host: &Host) -> Browser<'_> {
        Browser { host, cookie: None }
    }

    /// Logs in at the form.
    fn logged_in<'h>(host: &'h Host, token: &str) -> Browser<'h> {
        let mut browser = Browser::new(host);
        let page = browser.page("/login");
        let answer = browser.submit("/login", &[("form-token", &form_token(&page)), ("token", token)]);
        assert_eq!((answer.status, answer.header("location")), (303, Some("/")), "{answer:?}");
        let cookie = answer.header("set-cookie").expect("a cookie").to_owned();
        assert!(cookie.contains("; httponly; samesite=strict") && cookie.contains("; path=/"), "{cookie}");
        browser.cookie = cookie.split(';').next().map(str::to_owned);
        browser
    }

    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&str>) -> Response {
        let cookie = self.cookie.iter().map(|cookie| ("cookie", cookie.as_str()));
        let headers: Vec<_> = headers.iter().copied().chain(cookie).collect();
        http::send(self.host.admin(), method, path, &headers, body)
    }

    fn get(&self, path: &str) -> Response {
        self.ask("GET", path, &[], None)
    }

    /// A page that must be there and be well made.
    #[track_caller]
    pub(crate) fn page(&self, path: &str) -> String {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        check(&answer);
        answer.body
    }

    /// Sends a form, as a browser does.
    pub(crate) fn submit(&self, path: &str, fields: &[(&str, &str)]) -> Response {
        let origin = format!("http://{}", self.host.admin());
        self.ask("POST", path, &[("origin", &origin), FORM], Some(&encoded(fields)))
    }

    /// Takes the form with this action from a page, and sends it with these values in addition.
    #[track_caller]
    fn press(&self, page: &str, action: &str, more: &[(&str, &str)]) -> Response {
        let form = form(page, action);
        let hidden = hidden(&form);
        let mut fields: Vec<(&str, &str)> =
            hidden.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        fields.extend(more);
        self.submit(action, &fields)
    }
}

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

fn encoded(fields: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}

/// The form with this action. One that changes something comes before one that asks.
#[track_caller]
fn form(page: &str, action: &str) -> String {
    let start = format!("action=\"{}\"", action.replace('&', "&amp;"));
    let at = page.find(&format!("method=\"post\" {start}")).or_else(|| page.find(&start));
    let at = at.unwrap_or_else(|| panic!("no form {action} in {page}"));
    page[at..].split("</form>").next().unwrap_or_default().to_owned()
}

/// The names and values of the hidden fields.
fn hidden(form: &str) -> Vec<(String, String)> {
    let value = |field: &str, name: &str| {
        let (_, rest) = field.split_once(&format!(" {name}=\""))?;
        Some(unescaped(rest.split('"').next()?))
    };
    let fields = form.split("<input type=\"hidden\"").skip(1);
    fields.filter_map(|field| Some((value(field, "name")?, value(field, "value")?))).collect()
}

pub(crate) fn form_token(page: &str) -> String {
    let tokens = hidden(page).into_iter().find(|(name, _)| name == "form-token");
    tokens.unwrap_or_else(|| panic!("a form token in {page}")).1
}

/// The status of a request that is not carried out, and what its page says.
#[track_caller]
fn problem(answer: &Response) -> String {
    check(answer);
    format!("{} {}", answer.status, text(element(&answer.body, "role=\"alert\"")))
}

/// Different texts, a line for each, in their order.
fn lines(told: BTreeSet<String>) -> String {
    told.into_iter().collect::<Vec<_>>().join("\n")
}

/// The words of a page about what was done.
#[track_caller]
fn done(page: &str) -> String {
    text(element(page, "role=\"status\""))
}

/// How many running hosts the overview counts.
fn running_hosts(overview: &str) -> u64 {
    let link = text(element(element(overview, "data-live=\"queues\""), "href=\"/hosts\""));
    link.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("no count: {link}"))
}

/// How many tasks the form of a page that asks is for. 0: it has no form.
fn matched(page: &str) -> usize {
    let count = page.split("name=\"matched\" value=\"").nth(1).and_then(|rest| rest.split('"').next());
    count.map_or(0, |count| count.parse().expect("a count"))
}

/// The words of a page that asks about how many.
#[track_caller]
fn counted(page: &str) -> String {
    text(element(page, "class=\"count\""))
}

/// The job to which an answer leads, once it has done all, and its page.
#[track_caller]
fn job_done(browser: &Browser, answer: &Response) -> (Value, String) {
    let place = led_to(answer);
    let job = eventually("the job is over", || {
        browser.page(&place);
        let job = browser.get(&format!("/v1{place}")).json();
        job["ended_at"].is_u64().then_some(job)
    });
    assert_eq!(job["state"], "done", "{job}");
    (job, browser.page(&place))
}

/// The place where a change leads to.
#[track_caller]
fn led_to(answer: &Response) -> String {
    assert_eq!(answer.status, 303, "{answer:?}");
    let place = answer.header("location").expect("a place");
    percent_decode_str(place).decode_utf8_lossy().into_owned()
}

/// Checks what holds for every page: the headers, nothing inline, nothing of another address, one heading.
#[track_caller]
fn check(answer: &Response) {
    let policy = answer.header("content-security-policy").expect("a policy");
    for part in [
        "default-src 'none'",
        "style-src 'self'",
        "script-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "connect-src 'self'",
        "img-src 'self' data:",
    ] {
        assert!(policy.split("; ").any(|known| known == part), "{part} in {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(answer.header("content-type"), Some("text/html; charset=utf-8"));
    let page = &answer.body;
    for tag in page.split('<').skip(1).filter_map(|part| part.split_once('>').map(|(tag, _)| tag)) {
        let name = tag.split([' ', '/']).next().unwrap_or_default();
        assert!(!["style", "iframe", "object", "embed", "base"].contains(&name), "<{tag}>");
        assert!(name != "script" || tag == "script src=\"/dashboard.js\" defer", "<{tag}>");
        let attributes = tag.split('"').step_by(2);
        for attribute in attributes.flat_map(str::split_whitespace) {
            let is_inline = attribute.starts_with("style=") || attribute.starts_with("on");
            assert!(!is_inline, "{attribute} in <{tag}>");
        }
        for place in ["href=\"", "src=\"", "action=\""] {
            let Some((_, place)) = tag.split_once(place) else { continue };
            let is_own = place.starts_with(['/', '#']) && !place.starts_with("//");
            assert!(is_own || place.starts_with("data:,"), "<{tag}>");
        }
    }
    for once in ["<h1>", "<main id=\"main\"", "<html lang=\"en\">"] {
        assert_eq!(page.matches(once).count(), 1, "{once} in {page}");
    }
    // The steps of charts have titles, too.
    let head = page.split("</head>").next().unwrap_or_default();
    assert_eq!(head.matches("<title>").count(), 1, "{head}");
}

/// A host that asks for a token, with the queue `work`, of which no handler is there.
fn guarded() -> (Bench, Host) {
    let bench = Bench::new("");
    let redis = bench.redis.port;
    bench.configure(&format!(
        "[queues.work]\nplugin = \"missing\"\nevents = 10\n[redis]\nurl = \"redis://127.0.0.1:{redis}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"s3cret\"\nread_token = \"peek\"\n"
    ));
    let host = bench.host();
    (bench, host)
}
