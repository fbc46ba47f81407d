//! `http` of a plugin: the limits of its handlers' requests.
//!
//! In: a table. Out: an [`Http`], with the certificates of its `ca` file read and checked.
//!
//! Not here: where requests may go (`hosts`), the requests themselves (`sandbox`).

use rustls::pki_types::CertificateDer;

use super::model::Http;
use super::reader::{Item, Table};
use super::{keys, pem};

impl Default for Http {
    fn default() -> Http {
        read(&Table::absent(&keys::HTTP), 0)
    }
}

/// Reads the limits of a plugin whose queues run `at_once` tasks at once in this host.
pub(super) fn read(table: &Table, at_once: u32) -> Http {
    let default_connections = || {
        let usual: u32 = Table::absent(&keys::HTTP).value_or_default("max_connections");
        usual.max(at_once).min(keys::HTTP.most("max_connections"))
    };
    Http {
        connect_timeout: table.value_or_default("connect_timeout"),
        first_byte_timeout: table.value_or_default("first_byte_timeout"),
        between_bytes_timeout: table.value_or_default("between_bytes_timeout"),
        timeout: table.value("timeout"),
        max_concurrent: table.value_or_default("max_concurrent"),
        max_connections: table.value("max_connections").unwrap_or_else(default_connections),
        max_requests: table.value_or_default("max_requests"),
        max_request_body: table.value_or_default("max_request_body"),
        max_response_body: table.value_or_default("max_response_body"),
        keep_alive: table.value_or_default("keep_alive"),
        ca: table.get("ca").and_then(|item| read_ca(&item)).unwrap_or_default(),
    }
}

/// Reads a file of certificates in PEM.
pub(super) fn read_ca(item: &Item) -> Option<Vec<CertificateDer<'static>>> {
    let path = item.path()?;
    let read = pem::read(&path).and_then(|pem| pem::certificates(&pem));
    read.map_err(|why| item.problem(format!("{} {why}", path.display()))).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::testing::{parse, parse_in, refusals, refusals_in};

    #[test]
    fn good_tables() {
        let text = r#"
            [queues.a]
            [plugins.a.http]
            connect_timeout = "5s"
            first_byte_timeout = "2m"
            between_bytes_timeout = "10s"
            timeout = "1h"
            max_concurrent = 2
            max_connections = 20
            max_requests = 10
            max_request_body = 0
            max_response_body = "1MiB"
            keep_alive = "0s"
        "#;
        let http = parse(text).expect("valid").plugins["a"].http.clone();
        let times = [
            http.connect_timeout,
            http.first_byte_timeout,
            http.between_bytes_timeout,
            http.timeout.expect("set"),
        ];
        assert_eq!(times, [5, 120, 10, 3600].map(Duration::from_secs));
        assert_eq!((http.max_concurrent, http.max_connections, http.max_requests), (2, 20, 10));
        assert_eq!((http.max_request_body, http.max_response_body), (0, 1 << 20));
        assert_eq!(http.keep_alive, Duration::ZERO);
        assert!(parse("[queues.a]\n[plugins.a]").expect("valid").plugins["a"].http.timeout.is_none());
    }

    #[test]
    fn bad_tables() {
        let texts = [
            "connect_timeout = 5",
            "allowed_hosts = []",
            "private_addresses = [\"10.0.0.0/8\"]",
            "ca = \"missing.pem\"",
            "ca = 5",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\n[plugins.a.http]\n{}", &texts));
    }

    #[test]
    fn a_ca_file_holds_certificates() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("write");
        write(
            "good.pem",
            &rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate").cert.pem(),
        );
        write("empty.pem", "");
        write("key.pem", &rcgen::KeyPair::generate().expect("a key").serialize_pem());
        write("cut.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n");
        write("odd.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        let text = |name: &str| format!("[queues.a]\n[plugins.a]\nhttp = {{ ca = \"{name}\" }}");
        assert_eq!(parse_in(&text("good.pem"), folder.path()).expect("valid").plugins["a"].http.ca.len(), 1);
        let texts = ["empty.pem", "key.pem", "cut.pem", "odd.pem", "."];
        insta::assert_snapshot!(refusals_in(folder.path(), &text("{}"), &texts));
    }
}
