//! A Redis that asks for a certificate and a user: hosts and commands have them from keys of their own.
//!
//! In: a redis-server that speaks TLS only, with certificates made here. Not here: what is wrong with the
//! keys of the configuration (`config::redis_login`).

use std::path::Path;

use crate::support::web::Authority;
use crate::support::words::masked;
use crate::support::{Bench, RedisServer, eventually};

const QUEUES: &str = "[queues.work]\nplugin = \"echo\"\n";

/// A bench whose Redis takes only clients with a certificate of its authority.
fn bench() -> Bench {
    bench_of(&[])
}

/// Like [`bench`], with further arguments for redis-server.
fn bench_of(more: &[&str]) -> Bench {
    let dir = tempfile::tempdir().expect("create a folder");
    let file = |name: &str| dir.path().join(name).display().to_string();
    let authority = Authority::new();
    write(dir.path(), "ca.pem", &authority.pem());
    write(dir.path(), "other-ca.pem", &Authority::new().pem());
    for (name, what) in [("server", "127.0.0.1"), ("client", "client")] {
        let (cert, key) = authority.certificate(what);
        write(dir.path(), &format!("{name}.pem"), &cert);
        write(dir.path(), &format!("{name}.key"), &key);
    }
    let (ca, cert, key) = (file("ca.pem"), file("server.pem"), file("server.key"));
    let tls = [
        ["--port", "0"],
        ["--tls-port", "{port}"],
        ["--tls-auth-clients", "yes"],
        ["--tls-ca-cert-file", &ca],
        ["--tls-cert-file", &cert],
        ["--tls-key-file", &key],
    ];
    let redis = RedisServer::start(dir.path(), &[tls.as_flattened(), more].concat());
    let mut bench = Bench::on(QUEUES, dir, redis);
    bench.install("echo", "echo");
    let _: () = bench.redis("ACL", ("SETUSER", "tqhost", "on", ">p@ss/word", "~*", "&*", "+@all"));
    bench
}

fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).expect("write");
}

/// Configures these keys beside the url.
fn configure(bench: &Bench, keys: &str) {
    let url = format!("rediss://127.0.0.1:{}", bench.redis.port);
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    bench.configure(&format!("{QUEUES}\n[redis]\nurl = \"{url}\"\nwait = \"0s\"\n{keys}\n{admin}"));
}

const IDENTITY: &str = "cert = \"client.pem\"\nkey = \"client.key\"\n";
const LOGIN: &str = "username = \"tqhost\"\npassword = { file = \"password\" }\n";

#[test]
fn a_host_has_its_certificate_and_its_user_from_keys_of_their_own() {
    let mut bench = bench();
    write(bench.dir.path(), "password", "p@ss/word\n");
    configure(&bench, &format!("ca = \"ca.pem\"\n{IDENTITY}{LOGIN}"));
    let host = bench.host();
    let id = bench.xadd("work", &[("n", "1")]);
    bench.until("work", &id, "COMPLETED");
    bench.tqhost(&["queues", "work"]).ok();
    let users: String = bench.redis("CLIENT", "LIST");
    let of_host = users.lines().filter(|line| line.contains("user=tqhost")).count();
    assert!(of_host > 0, "{users}");
    assert!(!host.raw().contains("p@ss/word"));
    host.stop();
}

#[test]
fn the_nodes_of_a_cluster_have_tls_too() {
    let words = ["--cluster-enabled", "yes", "--cluster-port", "{bus}", "--tls-cluster", "yes"];
    let mut bench = bench_of(&[&words[..], &["--cluster-announce-ip", "127.0.0.1"]].concat());
    let _: () = bench.redis("CLUSTER", ("ADDSLOTSRANGE", 0, 16_383));
    eventually("the node serves all slots", || {
        let info: String = bench.redis("CLUSTER", "INFO");
        info.contains("cluster_state:ok").then_some(())
    });
    write(bench.dir.path(), "password", "p@ss/word\n");
    let keys = format!("ca = \"ca.pem\"\n{IDENTITY}{LOGIN}");
    let (port, admin) = (bench.redis.port, "[admin]\nlisten = \"127.0.0.1:0\"\n");
    bench.configure(&format!("{QUEUES}\n[redis]\nurl = [\"rediss://127.0.0.1:{port}\"]\n{keys}\n{admin}"));
    let host = bench.host();
    let id = bench.xadd("work", &[("n", "1")]);
    bench.until("work", &id, "COMPLETED");
    bench.tqhost(&["queues", "work"]).ok();
    host.stop();
}

#[test]
fn a_refusal_of_redis_ends_the_start_with_the_reason() {
    let bench = bench();
    write(bench.dir.path(), "password", "p@ss/word");
    write(bench.dir.path(), "wrong", "hunter2");
    let ca = "ca = \"ca.pem\"\n";
    let wrong = "username = \"tqhost\"\npassword = { file = \"wrong\" }\n";
    const NOBODY: &str = "was not asked: there is no secure connection: the certificate of the server ";
    let table = [
        (format!("{ca}{LOGIN}"), "the server asks for a certificate of the client"),
        (format!("ca = \"other-ca.pem\"\n{IDENTITY}{LOGIN}"), NOBODY),
        (format!("{IDENTITY}{LOGIN}"), NOBODY),
        (format!("{ca}{IDENTITY}{wrong}"), "refused the credentials; check user and password in [redis]"),
    ];
    for (keys, why) in table {
        configure(&bench, &keys);
        let mut host = bench.host_that_may_fail();
        assert_eq!(host.ended(), 1, "{keys}");
        eventually("the log has the reason", || host.raw().contains(why).then_some(()));
        assert!(!host.raw().contains("hunter2"));
    }
}

/// A bench whose Redis shows this certificate.
fn bench_with(name: &str, authority: &Authority) -> Bench {
    let dir = tempfile::tempdir().expect("create a folder");
    let (cert, key) = authority.own();
    write(dir.path(), "server.pem", &cert);
    write(dir.path(), "server.key", &key);
    write(dir.path(), name, &authority.pem());
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (cert, key) = (file("server.pem"), file("server.key"));
    let tls = [
        ["--port", "0"],
        ["--tls-port", "{port}"],
        ["--tls-auth-clients", "no"],
        ["--tls-ca-cert-file", &cert],
        ["--tls-cert-file", &cert],
        ["--tls-key-file", &key],
    ];
    let redis = RedisServer::start(dir.path(), tls.as_flattened());
    let bench = Bench::on(QUEUES, dir, redis);
    bench.install("echo", "echo");
    bench
}

#[test]
fn a_certificate_that_signed_itself_is_trusted_when_ca_names_it_and_its_name_counts() {
    let mut bench = bench_with("self.pem", &Authority::for_server("127.0.0.1"));
    configure(&bench, "ca = \"self.pem\"\n");
    let host = bench.host();
    let id = bench.xadd("work", &[("n", "1")]);
    bench.until("work", &id, "COMPLETED");
    bench.tqhost(&["queues", "work"]).ok();
    host.stop();

    // Another one with the same name is not this one.
    write(bench.dir.path(), "self.pem", &Authority::for_server("127.0.0.1").pem());
    let mut host = bench.host_that_may_fail();
    assert_eq!(host.ended(), 1);
    insta::assert_snapshot!(masked(host.raw().lines().last().expect("a line"), &[]), @"
    tqhost: connect: Redis at rediss://127.0.0.1:PORT was not asked: there is no secure connection: the \
    certificate of the server is that of an authority (CA:TRUE): name this very certificate in `ca`, or \
    make one for a server, with -addext basicConstraints=critical,CA:FALSE for openssl req
    ");

    let bench = bench_with("self.pem", &Authority::for_server("redis.internal"));
    configure(&bench, "ca = \"self.pem\"\n");
    let ran = bench.tqhost(&["queues"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    insta::assert_snapshot!(masked(&ran.stderr, &[]), @"
    tqhost: connect: Redis at rediss://127.0.0.1:PORT was not asked: there is no secure connection: the \
    certificate of the server is for redis.internal, not for 127.0.0.1
    ");
}
