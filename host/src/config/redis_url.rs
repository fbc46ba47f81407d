//! `[redis]`: where Redis is. Without a url the host starts a private server.
//!
//! The url may hold a password, so no message shows any part of it. Not here: the user, and TLS
//! (`redis_login`).

use std::ops::RangeInclusive;
use std::time::Duration;

use toml::de::DeValue;

use super::model::RedisServer;
use super::reader::{Item, Keys, NOT_YET};
use super::redis_login;
use super::secret::Secret;
use super::source::perhaps_secret;

pub(super) const KEYS: Keys = Keys {
    known: &["url", "wait", "ca", "cert", "key", "username", "password"],
    later: &["sentinel"],
    elsewhere: &[],
};

/// How long a host that starts waits for Redis, by default and at most.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);
const WAIT: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(3600);
const PORTS: RangeInclusive<u32> = 1..=65535;

/// The server, and how long a host that starts waits for it.
pub(super) fn read(item: Option<Item>) -> (RedisServer, Duration) {
    let table = item.and_then(|item| item.table(&KEYS));
    let get = |key| table.as_ref().and_then(|table| table.get(key));
    let wait = get("wait").and_then(|wait| wait.duration(WAIT)).unwrap_or(DEFAULT_WAIT);
    let url = get("url").and_then(|url| read_url(&url));
    let login = table.as_ref().map(|table| redis_login::read(table, url.as_ref())).unwrap_or_default();
    (url.map_or(RedisServer::Embedded, |url| RedisServer::At { url, login: Box::new(login) }), wait)
}

fn read_url(item: &Item) -> Option<Secret> {
    if matches!(item.value(), DeValue::Array(_)) {
        item.problem(format!("a list of urls (Redis Cluster) is {NOT_YET}"));
        return None;
    }
    let url = perhaps_secret(item)?;
    if !url.is_kept_apart() && redis_login::has_user(url.expose()) {
        item.is_secret();
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
    use super::super::testing::{parse, problem};
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
        let table = [
            ("", "is empty"),
            ("hunter2", "must begin with"),
            ("http://:hunter2@host", "must begin with"),
            ("redis://", "no host"),
            ("redis://:hunter2@", "no host"),
            ("redis://:hunter2@:6379", "no host"),
            ("redis://host:hunter2", "port"),
            ("redis://host:0", "port"),
            ("redis://:hunter2/x@host", "percent-encode"),
            ("redis://user:hunter2/x@host", "port"),
            ("redis://[::1", "closing bracket"),
            ("redis://[::1]hunter2", "port"),
            ("redis://host/hunter2", "database"),
            ("redis://:hunter2 @host", "spaces"),
            ("rediss://:hunter2@host#insecure", "redis.ca"),
            ("redis+unix://run/hunter2.sock", "absolute path"),
        ];
        for (url, why) in table {
            let problem = problem(&format!("[queues.a]\n[redis]\nurl = {url:?}\n"));
            assert!(problem.contains("line 3: redis.url: ") && problem.contains(why), "{url}: {problem}");
            assert!(!problem.contains("hunter2"), "{problem}");
        }
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
    fn cluster_and_sentinel_are_for_later() {
        for value in ["url = [\"redis://a\", \"redis://b\"]", "sentinel = { master = \"m\", urls = [] }"] {
            let problem = problem(&format!("[queues.a]\n[redis]\n{value}"));
            assert!(problem.contains("not supported by this version of tqhost yet"), "{problem}");
        }
    }
}
