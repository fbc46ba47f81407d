//! `[redis]`: where Redis is: one server, a cluster, or the primary that Sentinels name. Without any of them
//! the host starts a private server.
//!
//! The url may hold a password, so no message shows any part of it. Not here: the user, and TLS
//! (`redis_login`).

use std::ops::RangeInclusive;
use std::time::Duration;

use super::model::{RedisServer, SentinelWatch};
use super::reader::{Item, Table};
use super::redis_login;
use super::secret::Secret;
use super::source::{Readers, maybe_secret};

const PORTS: RangeInclusive<u32> = 1..=65535;

/// The server, and how long a host that starts waits for it.
pub(super) fn read(table: &Table) -> (RedisServer, Duration) {
    let (url, sentinel) = (table.get("url"), table.get("sentinel"));
    if let (Some(_), Some(sentinel)) = (&url, &sentinel) {
        sentinel.problem("redis.url is set, too: take one of them out");
    }
    let nodes = url.as_ref().filter(|url| url.value().is_array()).map(read_nodes);
    let single = url.filter(|_| nodes.is_none()).and_then(|url| read_url(&url));
    // Nothing is required of a table that is not there. At most one of the three is, but for a problem.
    let watch = read_sentinel(&table.table("sentinel"));
    let urls: Vec<&Secret> = match (&nodes, &single, &watch) {
        (Some(nodes), ..) => nodes.iter().collect(),
        (None, Some(url), _) => vec![url],
        (None, None, Some(watch)) => watch.urls.iter().collect(),
        (None, None, None) => Vec::new(),
    };
    let login = Box::new(redis_login::read(table, &urls));
    let server = match (watch, nodes, single) {
        (Some(watch), ..) => RedisServer::Sentinel { watch: Box::new(watch), login },
        (None, Some(urls), _) => RedisServer::Cluster { urls, login },
        (None, None, Some(url)) => RedisServer::At { url, login },
        (None, None, None) => RedisServer::Embedded,
    };
    (server, table.value_or_default("wait"))
}

/// The urls of some nodes of a cluster.
fn read_nodes(item: &Item) -> Vec<Secret> {
    let urls = read_list(item, "the node", |url| {
        let database =
            url.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map_or("", |(_, path)| path);
        match database.split(['?', '#']).next() {
            None | Some("" | "0") => Ok(()),
            Some(_) => Err("names a database other than 0: a cluster has no other"),
        }
    });
    if urls.is_empty() && item.value().as_array().is_some_and(|list| list.is_empty()) {
        item.problem("is empty: name at least one node of the cluster, like [\"redis://10.0.0.1:6379\"]");
    }
    urls
}

fn read_sentinel(table: &Table) -> Option<SentinelWatch> {
    let way_out = "sentinel = { master = \"main\", urls = [\"redis://10.0.0.1:26379\"] }";
    let (master, urls) = (table.required("master", way_out), table.required("urls", way_out));
    let username = table.get("username").and_then(|item| redis_login::username(&item));
    let password = table.get("password").and_then(|item| redis_login::password(&item));
    if let (Some(item), None) = (table.get("username"), table.get("password")) {
        item.problem("needs password beside it: without one the user is not sent to the Sentinels");
    }
    let master = master?.checked(|name| {
        let is_name = !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control());
        if is_name { Ok(()) } else { Err("is not the name of a primary, as in SENTINEL MONITOR".to_owned()) }
    });
    let list = urls?;
    let urls = read_list(&list, "the Sentinel", |url| {
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        if redis_login::has_user(url) {
            Err("has a user or a password: write username and password beside urls")
        } else if rest.contains(['/', '?']) {
            Err("has more than a host and a port")
        } else {
            Ok(())
        }
    });
    if urls.is_empty() && list.value().as_array().is_some_and(|list| list.is_empty()) {
        list.problem("is empty: name at least one Sentinel, better all");
    }
    (!urls.is_empty()).then_some(SentinelWatch { master: master?, urls, username, password })
}

/// Urls of servers of one kind, with one scheme.
fn read_list(item: &Item, what: &str, check: impl Fn(&str) -> Result<(), &'static str>) -> Vec<Secret> {
    let mut urls: Vec<Secret> = Vec::new();
    for item in item.list().unwrap_or_default() {
        let Some(url) = read_url(&item) else { continue };
        let scheme = |url: &Secret| url.expose().split("://").next().unwrap_or_default().to_owned();
        if !scheme(&url).starts_with("redis") || scheme(&url).contains("unix") {
            item.problem(format!("{what} needs a host and a port, like \"redis://10.0.0.1:6379\""));
        } else if let Err(why) = check(url.expose()) {
            item.problem(why);
        } else if urls.first().is_some_and(|first| scheme(first) != scheme(&url)) {
            item.problem("has another scheme than the first url: all servers speak TLS, or none does");
        } else {
            urls.push(url);
        }
    }
    urls
}

fn read_url(item: &Item) -> Option<Secret> {
    let url = maybe_secret(item, Readers::All)?;
    if !url.is_external() && redis_login::has_user(url.expose()) {
        // The configuration file itself has a password in it.
        item.note_secret();
    }
    check_url(url.expose()).map_err(|why| item.problem(why)).ok().map(|()| url)
}

fn check_url(url: &str) -> Result<(), &'static str> {
    const FORM: &str =
        "the url must begin with redis://, rediss:// or redis+unix://, like \"redis://127.0.0.1:6379\"";
    if url.is_empty() {
        return Err("the url is empty: take the key out for a private Redis, \
             or write a url like \"redis://127.0.0.1:6379\"");
    }
    if url.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("the url has spaces or line breaks in it: percent-encode them");
    }
    let (scheme, rest) = url.split_once("://").ok_or(FORM)?;
    match scheme {
        "rediss" if rest.contains('#') => {
            Err("the url ends with a # and a word, such as #insecure: the host \
             trusts no server unseen; name the certificate in redis.ca (in a password, percent-encode #)")
        }
        "redis" | "rediss" => check_server(rest),
        "redis+unix" | "unix" => match rest.split(['?', '#']).next() {
            Some(path) if path.starts_with('/') && path.len() > 1 => Ok(()),
            _ => Err("the url has no absolute path: write \"redis+unix:///run/redis/redis.sock\""),
        },
        _ => Err(FORM),
    }
}

/// Checks the part after `redis://`: `[user:password@]host[:port][/database][?options]`.
fn check_server(rest: &str) -> Result<(), &'static str> {
    const PORT: &str =
        "the port in the url is not a number from 1 to 65535 (in a password, percent-encode / ? # @ and :)";
    const HOST: &str =
        "the url has no host: write \"redis://127.0.0.1:6379\" (in a password, percent-encode / ? # @ and :)";
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let address = authority.rsplit_once('@').map_or(authority, |(_, address)| address);
    let (host, port) = match address.strip_prefix('[').map(|v6| v6.split_once(']')) {
        Some(Some((host, after))) => {
            (host, if after.is_empty() { None } else { Some(after.strip_prefix(':').ok_or(PORT)?) })
        }
        Some(None) => return Err("the url has an IPv6 address without its closing bracket"),
        None => address.split_once(':').map_or((address, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err(HOST);
    }
    if let Some(port) = port
        && !port.parse::<u32>().is_ok_and(|port| PORTS.contains(&port))
    {
        return Err(PORT);
    }
    let database =
        tail.strip_prefix('/').map_or("", |path| path.split(['?', '#']).next().unwrap_or_default());
    if !database.is_empty() && database.parse::<u32>().is_err() {
        return Err(
            "the database after the host in the url is not a number, like \"redis://127.0.0.1:6379/0\"",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{parse, problem, refusals};
    use super::*;

    #[test]
    fn good_urls() {
        let table = [
            "redis://127.0.0.1:6379",
            "redis://localhost",
            "redis://:hunter2@redis.example.com:6380/3",
            "rediss://user:p%40ss@[::1]:6379/0?protocol=resp3",
            "redis+unix:///run/redis.sock?db=2",
            "unix:///run/redis.sock",
        ];
        for url in table {
            assert_eq!(check_url(url), Ok(()), "{url}");
        }
    }

    #[test]
    fn bad_urls_are_refused_without_showing_them() {
        let texts = [
            "",
            "hunter2",
            "http://:hunter2@host",
            "redis://",
            "redis://:hunter2@",
            "redis://:hunter2@:6379",
            "redis://host:hunter2",
            "redis://host:0",
            "redis://:hunter2/x@host",
            "redis://user:hunter2/x@host",
            "redis://[::1",
            "redis://[::1]hunter2",
            "redis://host/hunter2",
            "redis://:hunter2 @host",
            "rediss://:hunter2@host#insecure",
            "redis+unix://run/hunter2.sock",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\n[redis]\nurl = \"{}\"\n", &texts));
    }

    #[test]
    fn without_a_url_redis_is_embedded() {
        for text in ["[queues.a]", "[queues.a]\n[redis]"] {
            assert!(matches!(parse(text).expect("valid").redis, RedisServer::Embedded));
        }
        let config = parse("[queues.a]\n[redis]\nurl = { env = \"REDIS\" }").expect("valid");
        assert!(
            matches!(&config.redis, RedisServer::At { url, .. } if url.expose() == "redis://:hunter2@host")
        );
        assert!(!format!("{config:?}").contains("hunter2"));
    }

    #[test]
    fn a_list_of_urls_is_a_cluster() {
        let config = parse("[queues.a]\n[redis]\nurl = [\"redis://a:1\", \"redis://b\"]").expect("valid");
        assert!(matches!(&config.redis, RedisServer::Cluster { urls, .. } if urls.len() == 2));
        let texts = [
            "[]",
            "[\"redis://a\", 1]",
            "[\"redis://a/2\"]",
            "[\"redis://a\", \"rediss://b\"]",
            "[\"redis+unix:///s\"]",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\n[redis]\nurl = {}", &texts));
    }

    #[test]
    fn sentinels_name_the_primary() {
        let text = "[queues.a]\n[redis]\nusername = \"u\"\npassword = \"hunter2\"\n\
                    sentinel = { master = \"main\", password = \"p\", \
                    urls = [\"redis://a:1\", \"redis://b:2\"] }";
        let config = parse(text).expect("valid");
        let RedisServer::Sentinel { watch, login } = &config.redis else { panic!("Sentinels") };
        assert_eq!((watch.master.as_str(), watch.urls.len(), watch.username.as_deref()), ("main", 2, None));
        assert!(watch.password.is_some() && login.username.as_deref() == Some("u"));
        let texts = [
            "{ urls = [\"redis://a\"] }",
            "{ master = \"m\" }",
            "{ master = \"m\", urls = [] }",
            "{ master = \"a b\", urls = [\"redis://a\"] }",
            "{ master = \"m\", urls = [\"redis://u:p@a\"] }",
            "{ master = \"m\", urls = [\"redis://a/1\"] }",
            "{ master = \"m\", urls = [\"redis://a\"], username = \"u\" }",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\n[redis]\nsentinel = {}", &texts));
        let both = problem(
            "[queues.a]\n[redis]\nurl = \"redis://a\"\nsentinel = { master = \"m\", urls = [\"redis://a\"] }",
        );
        insta::assert_snapshot!(both, @r"
        /etc/tqhost/tqhost.toml: 1 problem
          line 4: redis.sentinel: redis.url is set, too: take one of them out
        ");
    }
}
