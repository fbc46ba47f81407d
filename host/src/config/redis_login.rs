//! `ca`, `cert`, `key`, `username` and `password` of `[redis]`: who the host is for Redis, and whom it
//! trusts.
//!
//! In: the table, and its url. Out: a [`RedisLogin`]. What clashes with the url is a problem of the key,
//! since one of two passwords would be ignored. No message shows a part of a key or a password.

use super::model::{RedisLogin, TlsIdentity};
use super::pem;
use super::reader::{Item, Table};
use super::secret::Secret;
use super::source::{Readers, secret};

/// The keys that this file reads.
const KEYS: [&str; 5] = ["ca", "cert", "key", "username", "password"];
/// The keys that are of use with TLS only.
const TLS_KEYS: [&str; 3] = ["ca", "cert", "key"];

/// Reads the keys. `urls` are those of the servers; none: there is no url, or it has a problem.
pub(super) fn read(table: &Table, urls: &[&Secret]) -> RedisLogin {
    if table.get("url").is_none() && table.get("sentinel").is_none() {
        for item in KEYS.iter().filter_map(|key| table.get(key)) {
            item.problem("needs url or sentinel beside it: the private Redis has neither users nor TLS");
        }
    }
    if let Some(first) = urls.first() {
        let url = urls.iter().find(|url| has_user(url.expose())).unwrap_or(first);
        check(table, url.expose());
    }
    let identity = identity(table);
    let password = table.get("password").and_then(|item| password(&item));
    let username = table.get("username").and_then(|item| username(&item));
    RedisLogin { username, password, ca: table.get("ca").and_then(|item| ca(&item)), identity }
}

/// Tells what does not fit to the url, or to the other keys.
fn check(table: &Table, url: &str) {
    let tell = |keys: &[&'static str], why: &str| {
        for item in keys.iter().filter_map(|key| table.get(key)) {
            item.problem(why);
        }
    };
    if !url.starts_with("rediss://") {
        tell(&TLS_KEYS, "needs TLS: write rediss:// in place of the scheme of the url");
    }
    if has_user(url) {
        tell(&["username", "password"], "redis.url has a user or a password already: take it out of the url");
    }
}

/// Whether the url itself says who the client is.
pub(super) fn has_user(url: &str) -> bool {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    if scheme.starts_with("rediss") || scheme == "redis" {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        return authority.contains('@');
    }
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    query.split('&').any(|pair| pair.starts_with("user=") || pair.starts_with("pass="))
}

pub(super) fn username(item: &Item) -> Option<String> {
    let name = item.string()?;
    if name.is_empty() || name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return item.refuse("is empty or has spaces in it, which no user of Redis has");
    }
    Some(name.to_owned())
}

pub(super) fn password(item: &Item) -> Option<Secret> {
    let password = secret(item, Readers::All)?;
    if password.expose().is_empty() {
        return item.refuse("is empty: write { env = \"REDIS_PASSWORD\" }, or take the key out");
    }
    Some(password)
}

fn ca(item: &Item) -> Option<String> {
    let read = pem_text(item)?;
    told(item, pem::certificates(read.as_bytes()))?;
    Some(read)
}

/// The certificate and its key, which need each other. A username needs a password, too.
fn identity(table: &Table) -> Option<TlsIdentity> {
    let needs = [
        ("cert", "key", "needs key beside it: the file with the private key of this certificate"),
        ("key", "cert", "needs cert beside it: the file with the certificate of this key"),
        ("username", "password", "needs password beside it: without one the user is not sent to Redis"),
    ];
    for (key, other, why) in needs {
        if let Some(item) = table.get(key)
            && table.get(other).is_none()
        {
            item.problem(why);
        }
    }
    let (cert_item, key_item) = (table.get("cert")?, table.get("key")?);
    let (cert, key) = (pem_text(&cert_item), pem_text(&key_item));
    if let Some(path) = key_item.path() {
        key_item.note_secret_file(&path);
    }
    let (cert, key) = (cert?, key?);
    let chain = told(&cert_item, pem::chain(cert.as_bytes()));
    let private = told(&key_item, pem::private_key(key.as_bytes()));
    told(&key_item, pem::belong_together(chain?, private?))?;
    Some(TlsIdentity { cert, key: Secret::external(key) })
}

/// The text of a file in PEM.
fn pem_text(item: &Item) -> Option<String> {
    let path = item.path()?;
    let text = pem::read(&path).and_then(|pem| String::from_utf8(pem).map_err(|_| "is not PEM".into()));
    told(item, text)
}

/// The value; or none, and a problem that names the file.
fn told<T>(item: &Item, read: Result<T, String>) -> Option<T> {
    let path = item.path()?;
    read.map_err(|why| item.problem(format!("{} {why}", path.display()))).ok()
}

#[cfg(test)]
mod tests {
    use super::super::model::RedisServer;
    use super::super::testing::{parse, parse_in, refusals, refusals_in};
    use super::*;

    const PLAIN: &str = "[queues.a]\n[redis]\nurl = \"redis://h\"\n";
    const TLS: &str = "[queues.a]\n[redis]\nurl = \"rediss://h\"\n";

    #[test]
    fn a_user_of_its_own_is_read() {
        let text = format!("{PLAIN}username = \"tqhost\"\npassword = {{ env = \"GOOD\" }}\n");
        let config = parse(&text).expect("valid");
        let RedisServer::At { login, .. } = &config.redis else { panic!("a server") };
        assert_eq!(login.username.as_deref(), Some("tqhost"));
        assert_eq!(login.password.as_ref().map(Secret::expose), Some("from-env"));
        assert!(!format!("{config:?}").contains("from-env"));
        let only = parse(&format!("{PLAIN}password = \"p\"\n")).expect("valid");
        assert!(matches!(&only.redis, RedisServer::At { login, .. } if login.username.is_none()));
    }

    #[test]
    fn clashing_and_missing_values_are_told_without_showing_them() {
        let texts = [
            "password = \"p\"",
            "ca = \"x\"",
            "url = \"redis://h\"\nca = \"x\"",
            "url = \"redis+unix:///s\"\ncert = \"x\"\nkey = \"x\"",
            "url = \"redis://:hunter2@h\"\npassword = \"p\"",
            "url = \"redis://u@h\"\nusername = \"u\"\npassword = \"p\"",
            "url = \"redis+unix:///s?pass=hunter2\"\npassword = \"p\"",
            "url = \"redis://h\"\nusername = \"u\"",
            "url = \"redis://h\"\nusername = \"a b\"\npassword = \"p\"",
            "url = \"redis://h\"\npassword = \"\"",
            "url = \"redis://h\"\npassword = { env = \"MISSING\" }",
            "url = \"rediss://h\"\ncert = \"x\"",
            "url = \"rediss://h\"\nkey = \"x\"",
            "url = \"rediss://h\"\nca = \"missing\"",
            "url = \"rediss://h\"\nca = 1",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\n[redis]\n{}\n", &texts));
    }

    #[test]
    fn certificates_and_keys_are_looked_at_when_they_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("write");
        let made = || rcgen::generate_simple_self_signed(["h".to_owned()]).expect("a certificate");
        let (one, other) = (made(), made());
        write("cert.pem", &one.cert.pem());
        write("key.pem", &one.signing_key.serialize_pem());
        write("other.pem", &other.signing_key.serialize_pem());
        write("text.pem", "hunter2");
        let good = format!("{TLS}ca = \"cert.pem\"\ncert = \"cert.pem\"\nkey = \"key.pem\"\n");
        let config = parse_in(&good, folder.path()).expect("valid");
        let RedisServer::At { login, .. } = &config.redis else { panic!("a server") };
        assert!(login.ca.is_some() && login.identity.is_some());
        assert!(!format!("{config:?}").contains("PRIVATE KEY"));
        let texts = [
            "cert = \"cert.pem\"\nkey = \"other.pem\"",
            "cert = \"key.pem\"\nkey = \"key.pem\"",
            "cert = \"cert.pem\"\nkey = \"text.pem\"",
            "ca = \"text.pem\"",
            "ca = \".\"",
        ];
        insta::assert_snapshot!(refusals_in(folder.path(), &format!("{TLS}{{}}\n"), &texts));
    }
}
