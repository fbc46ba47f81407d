//! The path below which a proxy shows this host (`base_path` of `[admin]`).
//!
//! In: the base path, set once. Out: the paths of this host as a browser sees them ([`at`], which makes every
//! link to this host), and paths of requests without the base ([`strip`]).

use std::sync::OnceLock;

use axum::http::Uri;
use axum::http::uri::PathAndQuery;

/// A process has one admin address, so one base path serves all of its answers.
static BASE: OnceLock<String> = OnceLock::new();

pub(crate) fn set(base: &str) {
    // Only the first call counts, and there is only one.
    let _ = BASE.set(base.to_owned());
}

/// The base path: empty, or `/…` without a slash at its end.
pub(crate) fn get() -> &'static str {
    BASE.get().map_or("", String::as_str)
}

/// A path of this host, as a browser sees it.
pub(crate) fn at(path: &str) -> String {
    format!("{}{path}", get())
}

/// Removes the base path if the proxy has left it there. Other paths stay as they are.
pub(super) fn strip(base: &str, uri: &mut Uri) {
    let Some(whole) = uri.path_and_query().map(PathAndQuery::as_str) else { return };
    let Some(rest) = whole.strip_prefix(base).filter(|_| !base.is_empty()) else { return };
    let path = match rest.chars().next() {
        Some('/') => rest.to_owned(),
        None | Some('?') => format!("/{rest}"),
        Some(_) => return,
    };
    if let Ok(path) = path.parse::<PathAndQuery>() {
        let mut parts = std::mem::take(uri).into_parts();
        parts.path_and_query = Some(path);
        *uri = Uri::from_parts(parts).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_is_taken_away_once_and_only_as_a_whole() {
        for (path, rest) in [
            ("/tqhost", "/"),
            ("/tqhost/", "/"),
            ("/tqhost?a=1", "/?a=1"),
            ("/tqhost/queues/a?state=dead", "/queues/a?state=dead"),
            ("/tqhost//evil.example", "//evil.example"),
            ("/tqhost/tqhost/", "/tqhost/"),
            ("/tqhosts", "/tqhosts"),
            ("/queues/a", "/queues/a"),
            ("/", "/"),
        ] {
            let mut uri: Uri = path.parse().unwrap();
            strip("/tqhost", &mut uri);
            assert_eq!(uri.to_string(), rest, "{path}");
        }
        let mut uri: Uri = "/queues".parse().unwrap();
        strip("", &mut uri);
        assert_eq!(uri, "/queues");
    }
}
