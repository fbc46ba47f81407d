//! `[admin]`: the address of the HTTP API, the tokens that it asks for, and the fields that it hides.
//!
//! In: the table. Out: an [`Admin`]. Without the table, the server listens on a loopback address only.
//!
//! Not here: tokens with names, the proxy in front (`access`).

use std::net::SocketAddr;

use super::access;
use super::model::Admin;
use super::reader::{Item, Table};
use super::secret::Secret;
use super::source::{Readers, secret};
use super::units::show_text;

/// The most bytes of a name that is masked.
const MAX_NAME: usize = 200;
/// The fewest characters of a token. Random letters and digits of this length cannot be guessed.
const MIN_TOKEN: usize = 16;

pub(super) fn read(table: &Table) -> Admin {
    let (listen_item, token_item) = (table.get("listen"), table.get("token"));
    let listen = table.text_or_default("listen", parse_listen);
    let has_token = token_item.is_some() || table.get("tokens").is_some();
    if let Some(item) = &listen_item
        && !listen.ip().is_loopback()
        && !has_token
    {
        let why = format!(
            "is required, because {listen} can be reached from other machines: \
             write token = {{ env = \"TQHOST_ADMIN_TOKEN\" }}"
        );
        item.named_as(table.key_of("token")).problem(why);
    }
    let token = token_item.as_ref().and_then(|item| token_of(item, listen));
    let read_item = table.get("read_token");
    let read_token = read_item.as_ref().and_then(|item| token_of(item, listen));
    if let Some(item) = &read_item {
        if !has_token {
            item.problem("needs token beside it: with read_token alone nobody could change anything");
        } else if let (Some(token), Some(read_token)) = (&token, &read_token)
            && token.is_loaded()
            && read_token.is_loaded()
            && token.expose() == read_token.expose()
        {
            item.problem("is the same as token: write another one, which is for reading only");
        }
    }
    let known = [("token", token.as_ref()), ("read_token", read_token.as_ref())];
    let tokens = access::tokens(table, known);
    let (proxy, base_path) = (access::proxy(table, has_token), access::base_path(table));
    let histograms = table.word("histograms");
    let mask = read_mask(table);
    Admin { listen, token, read_token, tokens, proxy, base_path, mask, histograms }
}

/// The names of fields. Each problem is reported at its name.
fn read_mask(table: &Table) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for item in table.list("mask") {
        let Some(name) = item.checked(check_masked) else { continue };
        let name = name.to_ascii_lowercase();
        match names.contains(&name) {
            true => item.problem(format!("{} is there twice (capitals do not matter)", show_text(&name))),
            false => names.push(name),
        }
    }
    names
}

fn check_masked(name: &str) -> Result<(), String> {
    match name {
        "" => Err("is empty: write the name of a field, or of a key in JSON".to_owned()),
        _ if name.len() > MAX_NAME => Err(format!("has {} bytes: write {MAX_NAME} at most", name.len())),
        _ if name.trim() != name => Err("begins or ends with a space".to_owned()),
        _ => Ok(()),
    }
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "is not an IP address with a port: write \"127.0.0.1:7700\"".to_owned())
}

fn token_of(item: &Item, listen: SocketAddr) -> Option<Secret> {
    let token = secret(item, Readers::Hosts)?;
    if !token.is_loaded() {
        return Some(token);
    }
    if token.expose().is_empty() {
        return item.refuse("is empty: write a long random text, or { env = \"TQHOST_ADMIN_TOKEN\" }");
    }
    if !token.expose().bytes().all(|byte| byte.is_ascii_graphic()) {
        return item.refuse(
            "has spaces, line ends or non-ASCII characters in it, which an Authorization header cannot carry",
        );
    }
    let length = token.expose().len();
    if length < MIN_TOKEN && !listen.ip().is_loopback() {
        let way_out = "`openssl rand -hex 32` prints a good one";
        return item.refuse(format!(
            "has {length} characters, and {listen} can be reached from other machines, where somebody may \
             guess it: write {MIN_TOKEN} at least ({way_out})"
        ));
    }
    Some(token)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{parse, parse_as_command, refusals, table};

    #[test]
    fn tokens_that_a_command_has_not_read_are_not_compared() {
        let external = "token = { env = \"MISSING\" }\nread_token = { file = \"missing\" }";
        let admin = parse_as_command(&format!("[queues.a]\n[admin]\n{external}")).expect("valid").admin;
        let are_unread = [admin.token, admin.read_token].map(|token| token.is_some_and(|it| !it.is_loaded()));
        assert_eq!(are_unread, [true, true]);
        let read = |tokens: &str| parse_as_command(&format!("[queues.a]\n[admin]\n{tokens}"));
        assert!(read("token = \"x\"\nread_token = { env = \"GOOD\" }").is_ok());
        let texts = ["token = \"x\"\nread_token = \"x\"", "token = \"\""];
        insta::assert_snapshot!(table(&texts, |text| read(text).expect_err(text).to_string()), @r#"
        token = "x"
        read_token = "x"
            /etc/tqhost/tqhost.toml: 1 problem
            line 4: admin.read_token: is the same as token: write another one, which is for reading only
        token = ""
            /etc/tqhost/tqhost.toml: 1 problem
            line 3: admin.token: is empty: write a long random text, or { env = "TQHOST_ADMIN_TOKEN" }
        "#);
    }

    #[test]
    fn a_command_takes_the_configuration_of_the_image_without_its_tokens() {
        let text = include_str!("../../../deploy/tqhost.toml").replace("\"REDIS_URL\"", "\"REDIS\"");
        let config = parse_as_command(&text).unwrap_or_else(|errors| panic!("{errors}"));
        assert!(config.admin.token.is_some() && config.admin.read_token.is_some());
    }

    #[test]
    fn good_admin_tables() {
        let table = [
            ("", "127.0.0.1:7700", None),
            ("[admin]", "127.0.0.1:7700", None),
            ("[admin]\nlisten = \"127.0.0.1:0\"", "127.0.0.1:0", None),
            ("[admin]\nlisten = \"[::1]:80\"\ntoken = \"t\"", "[::1]:80", Some("t")),
            (
                "[admin]\nlisten = \"127.0.0.1:80\"\ntoken = { env = \"GOOD\" }",
                "127.0.0.1:80",
                Some("from-env"),
            ),
            (
                "[admin]\nlisten = \"0.0.0.0:80\"\ntoken = \"0123456789abcdef\"",
                "0.0.0.0:80",
                Some("0123456789abcdef"),
            ),
        ];
        for (text, listen, token) in table {
            let admin = parse(&format!("{text}\n[queues.a]")).expect(text).admin;
            assert_eq!(admin.listen.to_string(), listen, "{text}");
            assert_eq!(admin.token.as_ref().map(|token| token.expose()), token, "{text}");
        }
    }

    #[test]
    fn bad_admin_tables() {
        let texts = [
            "listen = \"localhost:80\"",
            "listen = \"127.0.0.1\"",
            "listen = 7700",
            "listen = \"0.0.0.0:80\"",
            "token = \"\"",
            "token = \"a b\"",
            "listen = \"0.0.0.0:80\"\ntoken = { env = \"MISSING\" }",
            "listen = \"0.0.0.0:80\"\ntoken = \"0123456789abcde\"",
            "listen = \"[::]:80\"\ntoken = \"0123456789abcdef\"\nread_token = \"t\"",
            "read_token = \"x\"",
            "token = \"x\"\nread_token = \"x\"",
            "token = { env = \"GOOD\" }\nread_token = \"from-env\"",
            "token = \"x\"\nread_token = \"\"",
            "mask = \"email\"",
            "mask = [1]",
            "mask = [\"\"]",
            "mask = [\" email\"]",
            "mask = [\"email\", \"Email\"]",
            "histograms = \"none\"",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\n[admin]\n{}", &texts));
    }
}
