//! Asks `wasi:sockets` for a TCP socket, a UDP socket and the addresses of a name, and returns what it is
//! told of each. The host refuses all of them.
#![cfg(target_family = "wasm")]

use tqhost_handler::{Failure, Task, handler};

wit_bindgen::generate!({
    path: ["../../wit/deps/io", "../sdk/wit/deps/clocks", "../sdk/wit/deps/http", "wit"],
    world: "tqhost:testing/sockets",
    generate_all,
});

use wasi::sockets::network::{ErrorCode, IpAddressFamily};
use wasi::sockets::{instance_network, ip_name_lookup, tcp_create_socket, udp_create_socket};

fn handle(_: Task) -> Result<String, Failure> {
    let network = instance_network::instance_network();
    let tcp = told(tcp_create_socket::create_tcp_socket(IpAddressFamily::Ipv4));
    let udp = told(udp_create_socket::create_udp_socket(IpAddressFamily::Ipv6));
    let name = told(ip_name_lookup::resolve_addresses(&network, "localhost"));
    Ok(format!("{tcp} {udp} {name}"))
}

fn told<T>(asked: Result<T, ErrorCode>) -> &'static str {
    match asked {
        Ok(_) => "given",
        Err(ErrorCode::AccessDenied) => "access-denied",
        Err(ErrorCode::PermanentResolverFailure) => "permanent-resolver-failure",
        Err(_) => "another error",
    }
}

handler!(handle);
