//! Defines what a guest may import, and links it.
//!
//! Each interface that tqhost implements has one file; the rest of WASI 0.2 comes from wasmtime-wasi. The
//! filesystem is empty and every socket is refused: the only network access is HTTP requests to the hosts
//! that a plugin is granted.

mod blobs;
mod config_store;
mod context;
mod delivery;
mod flow;
pub(super) mod http;
mod logging;
mod outage;
mod outbox;
mod poll;
mod random;
mod records;
mod state;
mod stdio;
mod tasks;

use wasmtime::component::{HasData, HasSelf, Linker, ResourceTable};
use wasmtime_wasi::cli::WasiCli;
use wasmtime_wasi::clocks::WasiClocks;
use wasmtime_wasi::filesystem::WasiFilesystem;
use wasmtime_wasi::p2::bindings::{cli, clocks, filesystem, sockets};
use wasmtime_wasi::sockets::WasiSockets;
use wasmtime_wasi_io::bindings::wasi::io;

use super::state::GuestState;

/// Types and calls for the part of wit/handler.wit that this version offers.
#[allow(unsafe_code, reason = "generated")]
pub(super) mod bindings {
    wasmtime::component::bindgen!({
        path: "../wit",
        inline: "
            package tqhost:host;
            world runner {
                import tqhost:handler/context@0.1.0;
                export tqhost:handler/handler@0.1.0;
            }
        ",
        world: "tqhost:host/runner",
        exports: { default: async },
        ownership: Borrowing { duplicate_if_necessary: false },
    });
}

/// Types and traits for the interfaces of effects. These types own the values of a guest, while those above
/// borrow values of the host.
#[allow(unsafe_code, reason = "generated")]
pub(super) mod effect_bindings {
    wasmtime::component::bindgen!({
        path: "../wit",
        inline: "
            package tqhost:host;
            world effects {
                import tqhost:handler/outbox@0.1.0;
                import tqhost:handler/flow@0.1.0;
                import tqhost:handler/state@0.1.0;
                import tqhost:extensions/delivery@0.1.0;
                import tqhost:extensions/outage@0.1.0;
                import tqhost:extensions/records@0.1.0;
                import tqhost:extensions/tasks@0.1.0;
            }
        ",
        world: "tqhost:host/effects",
        imports: {
            "tqhost:handler/state.get": async | trappable,
            "tqhost:handler/state.increment": async | trappable,
            "tqhost:handler/outbox.fan-out": async | trappable,
            "tqhost:handler/flow": async | trappable,
            "tqhost:extensions/records.get": async | trappable,
            default: trappable,
        },
        trappable_error_type: {
            "tqhost:handler/outbox.error" => crate::sandbox::effects::CallError,
            "tqhost:handler/state.error" => crate::sandbox::effects::CallError,
            "tqhost:extensions/records.error" => crate::sandbox::effects::CallError,
        },
        with: { "wasi:io": wasmtime_wasi_io::bindings::wasi::io },
    });
}

/// Offered packages, their series of versions, and their interfaces. The linker accepts each compatible
/// version by itself.
const OFFERED: [(&str, &str, &[&str]); 12] = [
    ("tqhost:handler", "0.1", &["types", "context", "outbox", "flow", "state", "blobs"]),
    ("tqhost:extensions", "0.1", &["delivery", "records", "outage", "tasks"]),
    ("wasi:cli", "0.2", &["environment", "exit", "stdin", "stdout", "stderr"]),
    ("wasi:cli", "0.2", &["terminal-input", "terminal-output"]),
    ("wasi:cli", "0.2", &["terminal-stdin", "terminal-stdout", "terminal-stderr"]),
    ("wasi:clocks", "0.2", &["monotonic-clock", "wall-clock"]),
    ("wasi:filesystem", "0.2", &["preopens", "types"]),
    ("wasi:http", "0.2", &["outgoing-handler", "types"]),
    ("wasi:io", "0.2", &["error", "poll", "streams"]),
    ("wasi:random", "0.2", &["random", "insecure", "insecure-seed"]),
    ("wasi:sockets", "0.2", &["instance-network", "ip-name-lookup", "network"]),
    ("wasi:sockets", "0.2", &["tcp", "tcp-create-socket", "udp", "udp-create-socket"]),
];

/// Why a component may not import `name`, or None if it may.
pub(super) fn refusal(name: &str) -> Option<String> {
    // These have no release yet: their names have a version like 0.2.0-draft, or none, and match exactly.
    if config_store::NAMES.contains(&name) || logging::NAMES.contains(&name) {
        return None;
    }
    let (path, version) = name.split_once('@').unwrap_or((name, ""));
    let (package, interface) = path.split_once('/').unwrap_or((path, ""));
    let is_it = |(offered, _, interfaces): &&(&str, &str, &[&str])| {
        *offered == package && interfaces.contains(&interface)
    };
    Some(match (package, OFFERED.iter().find(is_it)) {
        (_, Some((_, base, _))) if is_compatible(version, base) => return None,
        (_, Some((_, base, _))) => format!("tqhost offers version {base}"),
        ("wasi:config", _) => format!("tqhost offers {}", config_store::NAMES.join(" and ")),
        ("wasi:logging", _) => format!("tqhost offers {}", logging::NAMES.join(" and ")),
        ("wasi:http", _) => "tqhost offers wasi:http/outgoing-handler and wasi:http/types".into(),
        ("tqhost:handler" | "tqhost:extensions", _) => "not offered by this version of tqhost".into(),
        _ => "tqhost does not know it".into(),
    })
}

/// Whether `name` is the interface that makes requests.
pub(super) fn makes_requests(name: &str) -> bool {
    name.starts_with("wasi:http/outgoing-handler@")
}

/// Whether `name` is the interface for blobs.
pub(super) fn keeps_blobs(name: &str) -> bool {
    name.starts_with("tqhost:handler/blobs@")
}

/// Whether `version` is a release of the series `base`, as in 0.2.6 of 0.2.
pub(super) fn is_compatible(version: &str, base: &str) -> bool {
    let patch = version.strip_prefix(base).and_then(|rest| rest.strip_prefix('.'));
    patch.is_some_and(|patch| !patch.is_empty() && patch.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Links everything that [`refusal`] allows.
pub(super) fn add_to_linker(linker: &mut Linker<GuestState>) -> wasmtime::Result<()> {
    let l = linker;
    bindings::tqhost::handler::context::add_to_linker::<_, HasSelf<GuestState>>(l, |state| state)?;
    effect_bindings::tqhost::handler::outbox::add_to_linker::<_, HasSelf<GuestState>>(l, |state| state)?;
    effect_bindings::tqhost::handler::flow::add_to_linker::<_, HasSelf<GuestState>>(l, |state| state)?;
    effect_bindings::tqhost::handler::state::add_to_linker::<_, HasSelf<GuestState>>(l, |state| state)?;
    effect_bindings::tqhost::extensions::delivery::add_to_linker::<_, HasSelf<GuestState>>(l, |state| state)?;
    effect_bindings::tqhost::extensions::records::add_to_linker::<_, HasSelf<GuestState>>(l, |state| state)?;
    effect_bindings::tqhost::extensions::outage::add_to_linker::<_, HasSelf<GuestState>>(l, |state| state)?;
    effect_bindings::tqhost::extensions::tasks::add_to_linker::<_, HasSelf<GuestState>>(l, |state| state)?;
    blobs::add_to_linker(l)?;
    config_store::add_to_linker(l)?;
    http::link::add_to_linker(l)?;
    logging::add_to_linker(l)?;
    cli::environment::add_to_linker::<_, WasiCli>(l, GuestState::cli)?;
    cli::exit::add_to_linker::<_, WasiCli>(l, GuestState::cli)?;
    cli::stdin::add_to_linker::<_, WasiCli>(l, GuestState::cli)?;
    cli::stdout::add_to_linker::<_, HasSelf<GuestState>>(l, |state| state)?;
    cli::stderr::add_to_linker::<_, HasSelf<GuestState>>(l, |state| state)?;
    cli::terminal_input::add_to_linker::<_, WasiCli>(l, GuestState::cli)?;
    cli::terminal_output::add_to_linker::<_, WasiCli>(l, GuestState::cli)?;
    cli::terminal_stdin::add_to_linker::<_, WasiCli>(l, GuestState::cli)?;
    cli::terminal_stdout::add_to_linker::<_, WasiCli>(l, GuestState::cli)?;
    cli::terminal_stderr::add_to_linker::<_, WasiCli>(l, GuestState::cli)?;
    clocks::monotonic_clock::add_to_linker::<_, WasiClocks>(l, GuestState::clocks)?;
    clocks::wall_clock::add_to_linker::<_, WasiClocks>(l, GuestState::clocks)?;
    io::error::add_to_linker::<_, Io>(l, |state| &mut state.table)?;
    io::poll::add_to_linker::<_, poll::GuestPolls>(l, poll::view)?;
    io::streams::add_to_linker::<_, Io>(l, |state| &mut state.table)?;
    filesystem::preopens::add_to_linker::<_, WasiFilesystem>(l, GuestState::filesystem)?;
    filesystem::types::add_to_linker::<_, WasiFilesystem>(l, GuestState::filesystem)?;
    sockets::instance_network::add_to_linker::<_, WasiSockets>(l, GuestState::sockets)?;
    sockets::ip_name_lookup::add_to_linker::<_, WasiSockets>(l, GuestState::sockets)?;
    let options = sockets::network::LinkOptions::default();
    sockets::network::add_to_linker::<_, WasiSockets>(l, &options, GuestState::sockets)?;
    sockets::tcp::add_to_linker::<_, WasiSockets>(l, GuestState::sockets)?;
    sockets::tcp_create_socket::add_to_linker::<_, WasiSockets>(l, GuestState::sockets)?;
    sockets::udp::add_to_linker::<_, WasiSockets>(l, GuestState::sockets)?;
    sockets::udp_create_socket::add_to_linker::<_, WasiSockets>(l, GuestState::sockets)?;
    random::add_to_linker(l)
}

struct Io;

impl HasData for Io {
    type Data<'a> = &'a mut ResourceTable;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::table;

    #[test]
    fn releases_of_a_series_are_taken_and_nothing_else_is() {
        for name in [
            "wasi:cli/exit@0.2.0",
            "wasi:cli/exit@0.2.12",
            "wasi:http/types@0.2.0",
            "tqhost:handler/context@0.1.3",
            "tqhost:handler/blobs@0.1.0",
            "wasi:filesystem/types@0.2.0",
            "wasi:sockets/tcp@0.2.0",
            "wasi:logging/logging",
        ] {
            assert_eq!(refusal(name), None, "{name}");
        }
        let texts = [
            "wasi:cli/exit@0.3.0",
            "wasi:cli/exit@0.2.0-rc-2023",
            "wasi:cli/exit",
            "wasi:filesystem/types@0.3.0",
            "wasi:sockets/raw@0.2.0",
            "wasi:http/outgoing-handler@0.3.0",
            "wasi:http/incoming-handler@0.2.0",
            "tqhost:handler/sockets@0.1.0",
            "wasi:config/store@0.2.0",
            "acme:thing/api",
        ];
        insta::assert_snapshot!(table(&texts, |name| refusal(name).unwrap()));
    }
}
