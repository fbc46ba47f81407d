//! The grants of a plugin, as `tqhost check` shows them.
//!
//! In: the plugin's part of the configuration. Out: JSON, or lines for people. Settings are shown by name
//! only, since their values may be secrets.

use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::json;

use super::super::text;
use crate::clock::ms;
use crate::config;

/// Grants as JSON. Times are milliseconds, sizes are bytes.
pub(super) fn json<S: Serializer>(grants: &config::Plugin, to: S) -> Result<S::Ok, S::Error> {
    let config::Plugin {
        config,
        memory,
        max_output,
        max_log_rate,
        allowed_hosts,
        http,
        warm,
        records,
        source: _,
    } = grants;
    let allowed_host = |entry: &config::AllowedHost| {
        let private: Vec<String> = entry.private_addresses.iter().map(ToString::to_string).collect();
        json!({ "host": entry.to_string(), "private_addresses": private })
    };
    let http = (!allowed_hosts.is_empty()).then(|| {
        json!({
            "connect_timeout_ms": ms(http.connect_timeout),
            "first_byte_timeout_ms": ms(http.first_byte_timeout),
            "between_bytes_timeout_ms": ms(http.between_bytes_timeout),
            "timeout_ms": http.timeout.map(ms),
            "max_concurrent": http.max_concurrent,
            "max_connections": http.max_connections,
            "max_requests": http.max_requests,
            "max_request_body": http.max_request_body,
            "max_response_body": http.max_response_body,
            "keep_alive_ms": ms(http.keep_alive),
            "ca": http.ca.len(),
        })
    });
    let instance = match warm {
        Some(warm) => {
            json!({ "warm": warm.idle, "max_tasks": warm.max_tasks, "concurrent": warm.concurrent })
        }
        None => json!("per-task"),
    };
    json!({
        "memory": memory,
        "max_output": max_output,
        "max_log_rate": max_log_rate,
        "config": config.keys().collect::<Vec<_>>(),
        "allowed_hosts": allowed_hosts.iter().map(allowed_host).collect::<Vec<_>>(),
        "http": http,
        "records": records.patterns(),
        "instance": instance,
    })
    .serialize(to)
}

/// Grants as lines of text.
pub(super) fn shown(grants: &config::Plugin) -> String {
    let config::Plugin { config, memory, max_output, allowed_hosts, warm, records, .. } = grants;
    let mut lines = vec![format!("memory {}, output {}", text::size(*memory), text::size(*max_output))];
    lines.push(match warm {
        None => "an instance per task".to_owned(),
        Some(warm) => {
            let tasks = text::plural(warm.max_tasks.into(), "task");
            let instances = text::plural(warm.idle.into(), "instance");
            match warm.concurrent {
                1 => format!("{instances} kept warm, each for {tasks}"),
                concurrent => format!("{instances} kept warm, each for {tasks}, {concurrent} at once"),
            }
        }
    });
    let list =
        |what: &str, names: Vec<String>| (!names.is_empty()).then(|| format!("{what} {}", names.join(", ")));
    lines.extend(list("records", records.patterns().to_vec()));
    lines.extend(list("config", config.keys().cloned().collect()));
    lines.extend(list("requests to", allowed_hosts.iter().map(ToString::to_string).collect()));
    for entry in allowed_hosts {
        let private = entry.private_addresses.iter().map(ToString::to_string).collect();
        lines.extend(list(&format!("  {entry} may resolve to"), private));
    }
    if !allowed_hosts.is_empty() {
        lines.extend(bounds_of_requests(&grants.http).iter().map(|line| format!("  {line}")));
    }
    lines.join("\n")
}

fn bounds_of_requests(http: &config::Http) -> Vec<String> {
    let whole = http.timeout.map_or_else(|| "as long as the attempt".to_owned(), text::took);
    let kept = match http.keep_alive {
        Duration::ZERO => "connections are not kept".to_owned(),
        time => format!("kept for {}", text::took(time)),
    };
    let mut lines = vec![
        format!(
            "at most {} by one attempt, {} at once; {} at once in this host",
            http.max_requests, http.max_concurrent, http.max_connections
        ),
        format!(
            "bodies of {} out, {} in",
            text::size(http.max_request_body),
            text::size(http.max_response_body)
        ),
        format!(
            "times: connect {}, first byte {}, between bytes {}, all {whole}; {kept}",
            text::took(http.connect_timeout),
            text::took(http.first_byte_timeout),
            text::took(http.between_bytes_timeout)
        ),
    ];
    if !http.ca.is_empty() {
        lines.push(format!("{} beside the system's", text::plural(http.ca.len() as u64, "certificate")));
    }
    lines
}
