//! `[telemetry]`: the collector of traces, and which traces it gets.
//!
//! In: the table. Out: a [`Telemetry`], or none without the table: then no traces are sent.

use http::{HeaderName, HeaderValue};
use url::Url;

use super::http::read_ca;
use super::model::Telemetry;
use super::reader::{Item, Table};
use super::secret::Secret;
use super::source::{Readers, secret};

const MAX_SERVICE: usize = 100;
/// The path of the collector for traces.
const TRACES: &str = "/v1/traces";
/// Headers that the host sets itself.
const OWN: [&str; 5] = ["host", "content-type", "content-length", "connection", "transfer-encoding"];

pub(super) fn read(table: &Table) -> Option<Telemetry> {
    let headers = table.named("headers");
    Some(Telemetry {
        headers: headers.into_iter().filter_map(|(name, value)| read_header(name, &value)).collect(),
        sample: table.value_or_default("sample"),
        max_traces: table.value_or_default("max_traces"),
        service: table.text_or_default("service", check_service),
        ca: table.get("ca").and_then(|item| read_ca(&item)).unwrap_or_default(),
        otlp: read_url(table)?,
    })
}

fn read_url(table: &Table) -> Option<String> {
    const FORM: &str = "write the collector's address, like \"http://collector:4318\"";
    let item = table.required("otlp", FORM)?;
    let text = item.string()?;
    let url = match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => url,
        // The text is not shown, because a password may be in it.
        _ => {
            return item.refuse(format!("is not an http or https url: {FORM}"));
        }
    };
    if !url.username().is_empty() || url.password().is_some() {
        return item.refuse(
            "has a user name or a password in it: write headers = { authorization = { env = \"NAME\" } }",
        );
    }
    if url.query().is_some() || url.fragment().is_some() {
        return item.refuse(format!("has a part after the path (? or #): {FORM}"));
    }
    if url.port() == Some(4317) {
        item.warn("port 4317 is usually that of gRPC; this is OTLP over HTTP, usually on port 4318");
    }
    let mut url = url;
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(&if path.ends_with(TRACES) { path } else { path + TRACES });
    Some(url.into())
}

fn read_header(name: &str, item: &Item) -> Option<(String, Secret)> {
    let Ok(header) = HeaderName::try_from(name) else {
        return item.refuse("is not the name of a header");
    };
    if OWN.contains(&header.as_str()) {
        return item.refuse("is a header that the host sets itself: leave it out");
    }
    let value = secret(item, Readers::AnyIfThere)?;
    if !value.is_loaded() {
        return None;
    }
    if HeaderValue::try_from(value.expose()).is_err() {
        return item.refuse("has characters in it that a header cannot carry, such as a line end");
    }
    Some((header.as_str().to_owned(), value))
}

fn check_service(name: &str) -> Result<String, String> {
    if (1..=MAX_SERVICE).contains(&name.len()) && !name.chars().any(char::is_control) {
        return Ok(name.to_owned());
    }
    Err(format!("is no name of a service: write 1 to {MAX_SERVICE} bytes of text"))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{parse, parse_as_command, problem, refusals};

    #[test]
    fn good_tables() {
        assert_eq!(parse("[queues.a]").expect("valid").telemetry, None);
        let text = "[queues.a]\n[telemetry]\notlp = \"http://collector:4318\"";
        let telemetry = parse(text).expect("valid").telemetry.expect("a collector");
        assert_eq!(telemetry.otlp, "http://collector:4318/v1/traces");
        assert_eq!(
            (telemetry.sample, telemetry.max_traces, telemetry.service.as_str(), telemetry.headers.len()),
            (1.0, 1000, "tqhost", 0)
        );
        let text = r#"
            [queues.a]
            [telemetry]
            otlp = "https://example.com/otlp/"
            headers = { Authorization = { env = "GOOD" }, x-scope = "team" }
            sample = 0.1
            max_traces = 20
            service = "orders"
        "#;
        let telemetry = parse(text).expect("valid").telemetry.expect("a collector");
        assert_eq!(telemetry.otlp, "https://example.com/otlp/v1/traces");
        assert_eq!((telemetry.sample, telemetry.max_traces, telemetry.service.as_str()), (0.1, 20, "orders"));
        let headers: Vec<_> =
            telemetry.headers.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
        assert_eq!(headers, [("authorization", "from-env"), ("x-scope", "team")]);
        let text = "[queues.a]\n[telemetry]\notlp = \"http://c:4317/v1/traces\"\nsample = 0";
        let config = parse(text).expect("valid");
        assert_eq!(config.telemetry.expect("a collector").otlp, "http://c:4317/v1/traces");
        insta::assert_snapshot!(config.warnings[0], @"
        line 3: telemetry.otlp: port 4317 is usually that of gRPC; this is OTLP over HTTP, usually on port \
        4318
        ");
    }

    #[test]
    fn a_command_leaves_out_the_headers_that_it_does_not_have() {
        let text = r#"
            [queues.a]
            [telemetry]
            otlp = "http://c"
            headers = { a = { env = "GOOD" }, b = { env = "MISSING" }, c = { file = "missing" } }
        "#;
        let telemetry = parse_as_command(text).expect("valid").telemetry.expect("a collector");
        let headers: Vec<_> =
            telemetry.headers.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
        assert_eq!(headers, [("a", "from-env")]);
        assert!(problem(text).contains("2 problems"), "a host needs them all");
    }

    #[test]
    fn bad_tables() {
        let texts = [
            "",
            "otlp = \"collector:4318\"",
            "otlp = \"http://\"",
            "otlp = 4318",
            "otlp = \"http://a:hunter2@c\"",
            "otlp = \"http://c?x=1\"",
            "sample = 2",
            "service = \"a\\n\"",
            "ca = \"missing.pem\"",
            "headers = []",
            "headers = { \"a b\" = \"1\" }",
            "headers = { Host = \"1\" }",
            "headers = { a = \"1\\n\" }",
            "headers = { a = { env = \"MISSING\" } }",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\n[telemetry]\n{}", &texts));
    }
}
