//! The ways into the admin address other than `token` and `read_token` of `[admin]`: tokens with names and
//! roles, and users whom a proxy has logged in. Also the path below which the proxy shows the host.
//!
//! In: the table `[admin]`, and the two tokens that were read. Out: [`NamedToken`]s, a [`TrustedProxy`], a
//! path. A named token is in the configuration as its SHA-256 only. A slow hash, as for passwords, would add
//! nothing: tokens are long random texts, which nobody finds by trying. It would cost time at every request.
//!
//! Not here: `token` and `read_token` (`admin`), which request needs which role (`admin::roles` of the host).

use std::collections::BTreeMap;

use http::HeaderName;
use ipnet::IpNet;
use sha2::{Digest as _, Sha256};

use super::model::{AccessRole, NamedToken, TrustedProxy};
use super::names::check_name;
use super::reader::{Item, Table};
use super::secret::Secret;
use super::source::{Readers, secret};
use super::units::show_text;
use super::{addresses, keys};

/// Headers that browsers and programs send themselves, or that proxies pass on as they came.
const OF_CLIENTS: [&str; 15] = [
    "accept",
    "accept-encoding",
    "accept-language",
    "authorization",
    "cache-control",
    "connection",
    "content-type",
    "cookie",
    "host",
    "last-event-id",
    "origin",
    "referer",
    "user-agent",
    "x-forwarded-proto",
    "x-request-id",
];
const MAX_BASE_PATH: usize = 100;
/// The names by which the audit calls users without a named token.
pub(crate) const AUDIT_NAMES: [&str; 4] = ["token", "read_token", "anybody", "nobody"];
const WAY_OUT: &str = "`tqhost token` prints a token and its hash";
/// The first parts of the host's own paths: below one of them, a path could mean two things.
const OWN_PATHS: [&str; 13] = [
    "livez",
    "readyz",
    "metrics",
    "v1",
    "queues",
    "jobs",
    "plugins",
    "hosts",
    "incidents",
    "changes",
    "search",
    "login",
    "logout",
];

/// The named tokens. `plain_tokens` are in the configuration as they are, each with the name of its setting.
pub(super) fn tokens(table: &Table, plain_tokens: [(&str, Option<&Secret>); 2]) -> Vec<NamedToken> {
    let Some(tokens_item) = table.get("tokens") else { return Vec::new() };
    let hashed = plain_tokens.into_iter().filter_map(|(name, token)| {
        let token = token.filter(|token| token.is_loaded())?;
        Some((name.to_owned(), format!("{:x}", Sha256::digest(token.expose()))))
    });
    let mut hashes: Vec<(String, String)> = hashed.collect();
    let mut tokens = Vec::new();
    for (name, item) in table.named("tokens") {
        let Some(token) = parse_named_token(name, &item) else { continue };
        let of_same = hashes.iter().find(|(_, hash)| token.hash.is_loaded() && hash == token.hash.expose());
        if let Some((other, _)) = of_same {
            item.at("hash").problem(format!("is that of {other}, too: each token needs one of its own"));
            continue;
        }
        hashes.push((name.to_owned(), token.hash.expose().to_owned()));
        tokens.push(token);
    }
    let has_admin = tokens.iter().any(|token| token.role == AccessRole::Admin);
    if !has_admin && table.get("token").is_none() {
        tokens_item.problem("has no token with role = \"admin\": nobody could roll back a plugin over HTTP");
    }
    tokens
}

fn parse_named_token(name: &str, item: &Item) -> Option<NamedToken> {
    let checked = check_name(name);
    let checked = match AUDIT_NAMES.contains(&name) {
        true => Err("is the name of somebody else in the audit: write another one".to_owned()),
        false => checked,
    };
    if let Err(why) = checked {
        return item.refuse(format!("{} {why}", show_text(name)));
    }
    let table = item.table(&keys::TOKEN);
    // This reports a missing role; the role itself is read below.
    table.required("role", "write \"read\", \"operate\" or \"admin\"");
    let hash = table.required("hash", WAY_OUT).and_then(|item| read_hash(&item));
    Some(NamedToken { name: name.to_owned(), role: table.word("role")?, hash: hash? })
}

/// The digits behind `sha256:`. The text is never shown: it may be a token in the wrong place.
fn read_hash(item: &Item) -> Option<Secret> {
    let hash = secret(item, Readers::Hosts)?;
    // A command does not load secrets, and needs no hash.
    if !hash.is_loaded() {
        return Some(hash);
    }
    let digits = hash.expose().strip_prefix("sha256:").map(str::to_ascii_lowercase);
    let is_hash = |digits: &String| digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    let Some(digits) = digits.filter(is_hash) else {
        return item.refuse(format!("is not sha256: and 64 hexadecimal digits: {WAY_OUT}"));
    };
    if digits == format!("{:x}", Sha256::digest("")) {
        return item.refuse(format!("is the hash of an empty text: {WAY_OUT}"));
    }
    Some(Secret::new(digits))
}

/// The proxy that logs users in, if there is one.
pub(super) fn proxy(table: &Table, has_token: bool) -> Option<TrustedProxy> {
    let from = table.get("trusted_proxies").map(|item| proxies(&item, &table.list("trusted_proxies")));
    let role = table.word_or_default("trusted_user_role");
    let groups = groups(table);
    let Some(item) = table.get("trusted_user_header") else {
        for key in ["trusted_proxies", "trusted_user_role", "trusted_groups_header"] {
            if let Some(item) = table.get(key) {
                item.problem("needs trusted_user_header beside it, which has the user's name");
            }
        }
        return None;
    };
    if !has_token {
        item.problem("needs token beside it: programs and Prometheus have no proxy to log them in");
    }
    let header = read_header(&item)?;
    if groups.as_ref().is_some_and(|(of_groups, _)| *of_groups == header) {
        return item.refuse("is trusted_groups_header, too: the name of the user needs a header of its own");
    }
    let loopback = || ["127.0.0.0/8", "::1/128"].iter().filter_map(|block| block.parse().ok()).collect();
    Some(TrustedProxy { header, role, groups, from: from.unwrap_or_else(loopback) })
}

/// The header with the groups of a user, and the role of each group.
fn groups(table: &Table) -> Option<(HeaderName, BTreeMap<String, AccessRole>)> {
    let header = match (table.get("trusted_groups_header"), table.get("trusted_groups")) {
        (Some(header), Some(_)) => header,
        (Some(header), None) => {
            return header.refuse("needs trusted_groups beside it, like { sre = \"admin\" }");
        }
        (None, Some(roles)) => {
            return roles.refuse("needs trusted_groups_header beside it, which has the user's groups");
        }
        (None, None) => return None,
    };
    let mut roles = BTreeMap::new();
    for (name, item) in table.named("trusted_groups") {
        let is_sane = |name: &str| name.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b',');
        if name.is_empty() || name.trim() != name || !is_sane(name) {
            item.problem(format!("{} is no group: write visible ASCII without a comma", show_text(name)));
        }
        // Groups have the roles that tokens have.
        if let Some(role) = item.word(keys::TOKEN.key("role")) {
            roles.insert(name.to_owned(), role);
        }
    }
    Some((read_header(&header)?, roles))
}

/// A header that only the proxy sets.
fn read_header(item: &Item) -> Option<HeaderName> {
    let text = item.string()?;
    let Ok(header) = HeaderName::try_from(text) else {
        return item.refuse(format!("{} is not the name of a header", show_text(text)));
    };
    if OF_CLIENTS.contains(&header.as_str()) || header.as_str().starts_with("sec-") {
        return item.refuse("is a header that browsers send: write one that only the proxy sets");
    }
    Some(header)
}

fn proxies(item: &Item, entries: &[Item]) -> Vec<IpNet> {
    let blocks = addresses::read(entries);
    let is_mapped =
        |block: &IpNet| matches!(block, IpNet::V6(block) if block.addr().to_ipv4_mapped().is_some());
    if blocks.iter().any(is_mapped) {
        item.problem("has an IPv4 address in the form of IPv6, which no client has: write it like 10.0.0.9");
    }
    if blocks.iter().any(|block| block.prefix_len() == 0) {
        item.problem(
            "has a block of all addresses, so everybody could be any user: write the proxy's addresses",
        );
    }
    blocks
}

/// The path below which a proxy shows the host: empty, or `/…` without a slash at its end.
pub(super) fn base_path(table: &Table) -> String {
    let path = table.checked("base_path", check_base_path);
    path.unwrap_or_default()
}

fn check_base_path(path: &str) -> Result<(), String> {
    const FORM: &str = "write a path like \"/tqhost\"";
    let Some(parts) = path.strip_prefix('/').filter(|rest| !rest.is_empty() && !rest.ends_with('/')) else {
        return Err(format!("does not begin with a slash, or ends with one: {FORM}"));
    };
    let is_plain = |part: &str| {
        let is_known = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
        !["", ".", ".."].contains(&part) && part.bytes().all(is_known)
    };
    if path.len() > MAX_BASE_PATH || !parts.split('/').all(is_plain) {
        return Err(format!(
            "has more than {MAX_BASE_PATH} characters, or others than letters, digits, dashes, dots, \
             underscores and single slashes: {FORM}"
        ));
    }
    let first = parts.split('/').next().unwrap_or_default();
    if OWN_PATHS.contains(&first) {
        return Err(format!("begins with /{first}, as a path of the host itself does: {FORM}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{parse, parse_as_command, problem, refusals};
    use super::*;

    const ADMIN: &str = "[queues.a]\n[admin]\n";
    const HASH: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789ABCDEF";

    #[test]
    fn good_tokens() {
        let other = HASH.replace("0123", "3210");
        let text = format!(
            "{ADMIN}listen = \"0.0.0.0:80\"\n[admin.tokens.ci]\nrole = \"operate\"\nhash = \"{HASH}\"\n\
             [admin.tokens.\"j.doe\"]\nrole = \"admin\"\nhash = \"{other}\"\n"
        );
        let admin = parse(&text).expect("valid").admin;
        let found: Vec<_> = admin.tokens.iter().map(|token| (token.name.as_str(), token.role)).collect();
        assert_eq!(found, [("ci", AccessRole::Operate), ("j.doe", AccessRole::Admin)]);
        assert_eq!(format!("sha256:{}", admin.tokens[0].hash.expose()), HASH.to_ascii_lowercase());
        assert!(!format!("{admin:?}").contains("0123456789"), "{admin:?}");
        // A command does not need the hash.
        let text = text.replacen(&format!("\"{HASH}\""), "{ env = \"MISSING\" }", 1);
        assert!(!parse_as_command(&text).expect("valid").admin.tokens[0].hash.is_loaded());
        insta::assert_snapshot!(problem(&text), @"
        /etc/tqhost/tqhost.toml: 1 problem
          line 6: admin.tokens.ci.hash: the environment variable \"MISSING\" is not set, or is not UTF-8: \
          set it, for example with the file of the systemd unit: `set -a; . /etc/tqhost/environment`
        ");
    }

    #[test]
    fn bad_tokens() {
        let clear = format!("sha256:{:x}", Sha256::digest("0123456789abcdef"));
        let empty = format!("sha256:{:x}", Sha256::digest(""));
        let good = format!("role = \"admin\"\nhash = \"{HASH}\"");
        let texts = [
            "[admin.tokens.ci]\nrole = \"admin\"",
            &*format!("[admin.tokens.ci]\nhash = \"{HASH}\""),
            &*format!("[admin.tokens.ci]\nrole = \"root\"\nhash = \"{HASH}\""),
            "[admin.tokens.ci]\nrole = \"admin\"\nhash = \"hunter2\"",
            "[admin.tokens.ci]\nrole = \"admin\"\nhash = \"sha256:hunter2\"",
            &*format!("[admin.tokens.ci]\nrole = \"admin\"\nhash = \"{empty}\""),
            &*format!("[admin.tokens.ci]\n{good}\ntoken = \"hunter2\""),
            &*format!("[admin.tokens.token]\n{good}"),
            &*format!("[admin.tokens.\"a b\"]\n{good}"),
            &*format!("[admin.tokens.ci]\n{good}\n[admin.tokens.cd]\n{good}"),
            &*format!("token = \"0123456789abcdef\"\n[admin.tokens.ci]\nrole = \"read\"\nhash = \"{clear}\""),
            &*format!("[admin.tokens.ci]\nrole = \"operate\"\nhash = \"{HASH}\""),
            "tokens = []",
        ];
        insta::assert_snapshot!(refusals(&format!("{ADMIN}{{}}"), &texts));
    }

    #[test]
    fn proxies_and_paths() {
        let parsed = |text: &str| parse(&format!("{ADMIN}{text}")).expect(text).admin;
        let header = "token = \"x\"\ntrusted_user_header = \"X-Forwarded-User\"\n";
        let proxy = parsed(header).proxy.expect("a proxy");
        assert_eq!((proxy.header.as_str(), proxy.role), ("x-forwarded-user", AccessRole::Read));
        let is_trusted = |proxy: &TrustedProxy, from: &str| proxy.trusts(from.parse().expect(from));
        assert!(is_trusted(&proxy, "127.0.0.1") && is_trusted(&proxy, "::1"));
        assert!(is_trusted(&proxy, "::ffff:127.0.0.1") && !is_trusted(&proxy, "10.0.0.1"));
        let more = format!("{header}trusted_proxies = [\"10.1.0.0/16\"]\ntrusted_user_role = \"operate\"");
        let proxy = parsed(&more).proxy.expect("a proxy");
        assert!(is_trusted(&proxy, "10.1.2.3") && !is_trusted(&proxy, "127.0.0.1"));
        assert_eq!(proxy.role, AccessRole::Operate);
        let groups = "trusted_groups_header = \"X-Groups\"\n\
            trusted_groups = { sre = \"admin\", \"/team/on call\" = \"operate\" }\n";
        let proxy = parsed(&format!("{header}{groups}")).proxy.expect("a proxy");
        for (groups, role) in [
            (&["sre", "/team/on call"][..], AccessRole::Admin),
            (&["all", "/team/on call"], AccessRole::Operate),
            (&["SRE"], AccessRole::Read),
            (&[], AccessRole::Read),
        ] {
            assert_eq!(proxy.role_of(groups.iter().copied()), role, "{groups:?}");
        }
        assert_eq!(parsed("").base_path, "");
        for path in ["/tqhost", "/a/b-c/d.e"] {
            assert_eq!(parsed(&format!("base_path = \"{path}\"")).base_path, path);
        }
        let texts = [
            "trusted_user_header = \"X-User\"",
            "token = \"x\"\ntrusted_user_header = \"X User\"",
            "token = \"x\"\ntrusted_user_header = \"Cookie\"",
            "token = \"x\"\ntrusted_user_header = \"x-request-id\"",
            "token = \"x\"\ntrusted_user_header = \"Sec-Fetch-User\"",
            &*format!("{header}trusted_proxies = [\"::ffff:10.0.0.9\"]"),
            "trusted_user_role = \"read\"",
            "trusted_proxies = [\"10.0.0.1\"]",
            &*format!("{header}trusted_proxies = [\"0.0.0.0/0\"]"),
            &*format!("{header}trusted_proxies = [\"proxy\"]"),
            &*format!("{header}trusted_user_role = \"all\""),
            &*format!("token = \"x\"\n{groups}"),
            &*format!("{header}trusted_groups_header = \"X-Groups\""),
            &*format!("{header}trusted_groups = {{ a = \"read\" }}"),
            &*format!("{header}{groups}").replace("X-Groups", "cookie"),
            &*format!("{header}{groups}").replace("X-Groups", "x-forwarded-user"),
            &*format!("{header}{groups}").replace("admin", "root"),
            &*format!("{header}{groups}").replace("sre", "\"a,b\""),
            "base_path = \"tqhost\"",
            "base_path = \"/\"",
            "base_path = \"/tqhost/\"",
            "base_path = \"//evil.example\"",
            "base_path = \"/a/../b\"",
            "base_path = \"/a b\"",
            "base_path = \"/v1/tqhost\"",
        ];
        insta::assert_snapshot!(refusals(&format!("{ADMIN}{{}}"), &texts));
    }
}
