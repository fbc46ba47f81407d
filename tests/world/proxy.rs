//! Hosts behind a real nginx, by the example of docs/operations.md: below a path, over TLS, two hosts in
//! turn, and users whom nginx has logged in.
//!
//! In: nginx, which `scripts/setup.sh --world` installs, and curl as the browser. Not here: the same without
//! a proxy (`dashboard::access` of the end-to-end tests).

use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::support::files::digest;
use super::support::web::Authority;
use super::support::{Bench, Host, eventually, words};

const DOCUMENT: &str = include_str!("../../docs/operations.md");
const TOKEN: &str = "may-do-everything";

/// The block of this language in the document, between `from` and the end of the page.
fn block(language: &str, from: &str) -> String {
    let rest = DOCUMENT.split_once(from).expect(from).1;
    let rest = rest.split_once(&format!("```{language}\n")).expect(language).1;
    rest.split_once("```").expect("the end of the block").0.to_owned()
}

/// Replaces each of these texts, which must be there.
fn replaced(mut text: String, changes: &[(&str, &str)]) -> String {
    for (from, to) in changes {
        assert!(text.contains(from), "{from} in {text}");
        text = text.replace(from, to);
    }
    text
}

/// An nginx in front of some hosts. Ends when it is dropped.
struct Nginx {
    child: Child,
    dir: PathBuf,
    port: u16,
}

impl Nginx {
    /// Starts it with the example, in which these texts are replaced.
    fn start(dir: &Path, hosts: &[Host], changes: &[(&str, &str)]) -> Nginx {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
        let authority = Authority::new();
        let (cert, key) = authority.certificate("ops.example.com");
        let files = [("ca.pem", authority.pem()), ("ops.pem", cert), ("ops.key", key)];
        for (name, text) in files {
            std::fs::write(dir.join(name), text).expect("write");
        }
        std::fs::write(dir.join("tqhost.users"), "alice:{PLAIN}wonder\n").expect("write");
        let at = |name: &str| dir.join(name).display().to_string();
        let servers: Vec<String> = hosts.iter().map(|host| format!("server {};", host.admin())).collect();
        let example = replaced(
            replaced(block("nginx", "### Behind a proxy"), changes),
            &[
                ("server 10.0.0.1:7700;\n    server 10.0.0.2:7700;", &servers.join("\n    ")),
                ("listen 443 ssl;", &format!("listen {free} ssl;")),
                ("/etc/nginx/ops.pem", &at("ops.pem")),
                ("/etc/nginx/ops.key", &at("ops.key")),
                ("/etc/nginx/tqhost.users", &at("tqhost.users")),
            ],
        );
        let own: Vec<String> = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {};", at(kind)))
            .into();
        let config = format!(
            "daemon off;\nmaster_process off;\npid {};\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log \
             off;\n{}\n{example}\n}}\n",
            at("nginx.pid"),
            own.join("\n")
        );
        std::fs::write(dir.join("nginx.conf"), config).expect("write");
        let mut command = Command::new("nginx");
        command.arg("-p").arg(dir).arg("-c").arg(dir.join("nginx.conf")).arg("-e").arg("stderr");
        let child = command.stdin(Stdio::null()).spawn().expect("start nginx: scripts/setup.sh --world");
        eventually("nginx listens", || TcpStream::connect(free).ok());
        Nginx { child, dir: dir.to_owned(), port: free.port() }
    }

    fn url(&self, path: &str) -> String {
        format!("https://ops.example.com:{}{path}", self.port)
    }

    fn curl(&self, path: &str, args: &[&str]) -> Command {
        let mut curl = Command::new("curl");
        let name = format!("ops.example.com:{}:127.0.0.1", self.port);
        curl.args(["-s", "--max-time", "60", "--resolve", &name, "--cacert"]).arg(self.dir.join("ca.pem"));
        curl.args(args).arg(self.url(path)).stdin(Stdio::null());
        curl
    }

    /// The status, the place that it leads to, and the page.
    fn ask(&self, path: &str, args: &[&str]) -> (u16, String, String) {
        let told = ["-w", "\n%{http_code} %{redirect_url}"];
        let output = self.curl(path, &[args, &told].concat()).output().expect("run curl");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let (page, told) = text.rsplit_once('\n').expect("what curl tells");
        let (status, place) = told.split_once(' ').expect("a status");
        (status.parse().expect("a status"), place.to_owned(), page.to_owned())
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The token of the forms of a page.
fn form_token(page: &str) -> String {
    let token = page.split("name=\"form-token\" value=\"").nth(1).and_then(|rest| rest.split('"').next());
    format!("form-token={}", token.unwrap_or_else(|| panic!("no form in {page}")))
}

/// Two hosts by the configuration of the document.
fn hosts(bench: &Bench) -> [Host; 2] {
    let admin = replaced(
        block("toml", "### Behind a proxy"),
        &[
            ("listen = \"10.0.0.1:7700\"", "listen = \"127.0.0.1:0\""),
            ("{ env = \"TQHOST_ADMIN_TOKEN\" }", &format!("\"{TOKEN}\"")),
            ("[\"10.0.0.9\"]", "[\"127.0.0.1\"]"),
        ],
    );
    let url = bench.redis.url();
    let ci =
        format!("[admin.tokens.ci]\nrole = \"operate\"\nhash = \"sha256:{}\"\n", digest(b"of-the-pipeline"));
    bench.configure(&format!("[queues.work]\nplugin = \"missing\"\n[redis]\nurl = \"{url}\"\n{admin}{ci}"));
    [bench.host(), bench.host()]
}

/// `alice:wonder` in base64. With `-u`, curl would write it into the places that answers lead to.
const ALICE: [&str; 2] = ["-H", "Authorization: Basic YWxpY2U6d29uZGVy"];

#[test]
fn a_user_of_nginx_works_on_two_hosts_in_turn_below_a_path() {
    let (bench, dir) = (Bench::new(""), tempfile::tempdir().expect("a folder"));
    let hosts = hosts(&bench);
    let nginx = Nginx::start(dir.path(), &hosts, &[]);
    assert_eq!(nginx.ask("/tqhost/", &[]).0, 401, "nginx asks who it is");
    let (status, _, page) = nginx.ask("/tqhost/", &ALICE);
    assert!(status == 200 && page.contains("alice") && page.contains("href=\"/tqhost/plugins\""), "{page}");
    // Nobody chooses the name.
    let forged = [&ALICE[..], &["-H", "X-Forwarded-User: mallory"]].concat();
    let page = nginx.ask("/tqhost/", &forged).2;
    assert!(page.contains("alice") && !page.contains("mallory"), "{page}");
    for asset in ["/tqhost/dashboard.css", "/tqhost/dashboard.js"] {
        assert_eq!(nginx.ask(asset, &ALICE).0, 200, "{asset}");
    }
    // Each form comes from one host, and is sent to the other one.
    let origin = format!("Origin: {}", nginx.url(""));
    for deed in ["pause", "resume", "pause", "resume"] {
        let form = form_token(&nginx.ask("/tqhost/queues/work", &ALICE).2);
        let args = [&ALICE[..], &["-H", &origin, "-d", &form]].concat();
        let (status, place, page) = nginx.ask(&format!("/tqhost/queues/work/{deed}"), &args);
        let done = nginx.url(&format!("/tqhost/queues/work?done={deed}d"));
        assert_eq!((status, place), (303, done), "{page}");
        // The next page is that of the host that did not answer before.
        nginx.ask("/tqhost/dashboard.css", &ALICE);
    }
    for host in &hosts {
        let audit = host.until_logged("audit: a change was asked for", 2);
        assert!(audit.iter().all(|line| line["who"] == "alice" && line["status"] == 303), "{audit:?}");
    }
    // A page changes by itself.
    let accept = [&ALICE[..], &["-N", "-H", "Accept: text/event-stream"]].concat();
    let mut stream = nginx.curl("/tqhost/", &accept).stdout(Stdio::piped()).spawn().expect("run curl");
    let lines = BufReader::new(stream.stdout.take().expect("stdout")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "event: page"), "the page comes at once");
    let _ = stream.kill();
    let _ = stream.wait();
    Host::stop_all(hosts);
}

#[test]
fn a_session_goes_through_nginx_to_both_hosts_and_ends_on_both() {
    let (bench, dir) = (Bench::new(""), tempfile::tempdir().expect("a folder"));
    let hosts = hosts(&bench);
    let nginx = Nginx::start(dir.path(), &hosts, &[]);
    let jar = dir.path().join("jar").display().to_string();
    let with_jar = [&ALICE[..], &["-b", &jar, "-c", &jar]].concat();
    let origin = format!("Origin: {}", nginx.url(""));
    let post = |path: &str, form: &str| {
        let args = [&with_jar[..], &["-H", &origin, "-d", form]].concat();
        nginx.ask(path, &args)
    };
    let login = form_token(&nginx.ask("/tqhost/login", &with_jar).2);
    let form = format!("{login}&token={TOKEN}&next=/plugins");
    assert_eq!(post("/tqhost/login", &form).1, nginx.url("/tqhost/plugins"));
    let kept = std::fs::read_to_string(&jar).expect("the cookies");
    let cookie = kept.lines().find(|line| line.contains("tqhost-")).expect("a cookie");
    assert!(cookie.contains("\t/tqhost\tTRUE\t"), "below the path, over HTTPS only: {cookie}");
    // The role of the token is that of the visitor, at either host.
    let pages: Vec<String> = (0..4).map(|_| nginx.ask("/tqhost/plugins", &with_jar).2).collect();
    assert!(pages.iter().all(|page| page.contains("/tqhost/logout")), "{pages:?}");
    let (status, place, page) = post("/tqhost/logout", &form_token(&pages[0]));
    assert_eq!((status, place), (303, nginx.url("/tqhost/login?done=logged-out")), "{page}");
    std::fs::write(&jar, kept).expect("write the old cookie");
    for _ in 0..4 {
        let page = nginx.ask("/tqhost/plugins", &[&ALICE[..], &["-b", &jar]].concat()).2;
        assert!(page.contains("alice") && !page.contains("/tqhost/logout"), "{page}");
    }
    // Programs come with a token.
    let api = |auth: &str, path: &str| nginx.ask(path, &["-H", auth]);
    let token = "Authorization: Bearer of-the-pipeline";
    assert_eq!(api(token, "/tqhost/v1/queues").0, 200);
    assert_eq!(api("Authorization: Bearer wrong", "/tqhost/v1/queues").0, 401);
    let (_, _, document) = api(token, "/tqhost/v1/openapi.json");
    assert!(document.contains("\"url\":\"/tqhost/\""), "{document}");
    // The name of a user opens no API, and none of its paths leads to a page.
    let alice = ["-H", "X-Forwarded-User: alice", "--path-as-is"];
    for path in ["/tqhost/v1/queues", "/tqhost/queues/../v1/../queues/work", "/tqhost/v1/../queues/work"] {
        let (status, _, page) = nginx.ask(path, &alice);
        assert!(status >= 400, "{path}: {page}");
    }
    Host::stop_all(hosts);
}

#[test]
fn a_proxy_that_drops_the_host_is_told_of_and_one_that_takes_the_prefix_away_is_not() {
    let (bench, dir) = (Bench::new(""), tempfile::tempdir().expect("a folder"));
    let hosts = hosts(&bench);
    let pause = |nginx: &Nginx| {
        let (status, _, page) = nginx.ask("/tqhost/queues/work", &ALICE);
        assert_eq!(status, 200, "{page}");
        let (form, origin) = (form_token(&page), format!("Origin: {}", nginx.url("")));
        nginx.ask("/tqhost/queues/work/pause", &[&ALICE[..], &["-H", &origin, "-d", &form]].concat())
    };
    let nginx = Nginx::start(dir.path(), &hosts, &[("proxy_set_header Host $http_host;", "")]);
    let (status, _, page) = pause(&nginx);
    assert_eq!(status, 403, "{page}");
    let told = words::text(words::element(&page, "role=\"alert\""));
    insta::assert_snapshot!(told.replace(&nginx.url(""), "NGINX"), @"the request comes from the page of another origin, which may not change anything: Host is tqhost, Origin is NGINX. Where the page is one of this host, let the proxy keep the Host header (nginx: proxy_set_header Host $http_host)");
    let strips = [("proxy_pass http://tqhost;", "proxy_pass http://tqhost/;")];
    let nginx = Nginx::start(dir.path(), &hosts, &strips);
    let (status, place, page) = pause(&nginx);
    assert_eq!((status, place), (303, nginx.url("/tqhost/queues/work?done=paused")), "{page}");
    Host::stop_all(hosts);
}
