//! Every read that an operator can make over HTTP: the paths of the API, from its OpenAPI document, and the
//! pages of the dashboard, from its router. A path that is new is among them.
//!
//! In: names that stand for the parameters of paths. Out: paths with queries. Not here: streams of events,
//! downloads, which are read as they are written, and the pages of a rollback, a lift and a job.

use serde_json::Value;

/// The queries of paths that take some. A path that is not here is asked without any.
const QUERIES: [(&str, &[&str]); 10] = [
    (
        "/v1/queues/{queue}/tasks",
        &[
            "state=queued",
            "state=running",
            "state=delayed",
            "state=held",
            "state=dead",
            "state=ended",
            "state=queued&limit=500",
            "state=queued&text=nothing-has-this",
            "state=delayed&text=nothing-has-this",
            "state=dead&text=nothing-has-this",
        ],
    ),
    ("/v1/queues/{queue}/dead", &["", "limit=500", "text=nothing-has-this"]),
    ("/v1/queues/{queue}/dead/groups", &["by=cause", "by=error", "by=version", "by=reason", "by=hour"]),
    ("/v1/queues/{queue}/groups", &["state=queued&by=tenant", "state=dead&by=data/user/id"]),
    ("/v1/queues/{queue}/history", &["", "minutes=180"]),
    ("/queues/{queue}", &["", "state=running", "state=delayed", "state=dead", "text=nothing-has-this"]),
    ("/queues/{queue}/dead", &["", "reason=rejected", "text=nothing-has-this"]),
    ("/queues/{queue}/dead/confirm", &["what=purge", "what=requeue&reason=rejected"]),
    ("/queues/{queue}/drain", &[""]),
    ("/queues/{queue}/chosen", &["what=cancel&task=1-0"]),
];

/// The names in paths.
#[derive(Debug, Clone, Copy)]
pub struct Names<'n> {
    pub queue: &'n str,
    pub plugin: &'n str,
    /// Tasks of the queue; some of them may not exist.
    pub ids: &'n [&'n str],
}

/// All reads, pages and API. `document` is the OpenAPI document of the host.
pub fn all(document: &Value, names: Names) -> Vec<String> {
    let paths = document["paths"].as_object().expect("paths").iter();
    let mut read: Vec<&str> =
        paths.filter(|(_, item)| item.get("get").is_some()).map(|(path, _)| path.as_str()).collect();
    let router = include_str!("../../host/src/dashboard/mod.rs");
    let routes = router.lines().filter(|line| line.contains(".route(\"") && line.contains("get("));
    read.extend(routes.map(|line| line.split('"').nth(1).expect("a path")));
    assert!(read.len() > 15, "{read:?}");
    for (path, _) in QUERIES {
        assert!(read.contains(&path), "{path} is no path any more");
    }
    // The pages that confirm a rollback and a lift name a version, and those of a job name one that has
    // begun. There is none of them here.
    let without = ["/events", "/export", "/rollback", "/lift", "/jobs/{id}", "/file"];
    let is_whole = |path: &&str| !without.iter().any(|end| path.ends_with(end));
    read.into_iter().filter(is_whole).flat_map(|path| requests(path, names)).collect()
}

/// The requests for one path.
fn requests(path: &str, names: Names) -> Vec<String> {
    let queries = QUERIES.iter().find(|(known, _)| *known == path).map_or(&[""][..], |(_, queries)| queries);
    let path = path.replace("{queue}", names.queue).replace("{plugin}", names.plugin);
    let ids = if path.contains("{id}") { names.ids } else { &[""][..] };
    let of_id = |id: &&str| {
        let path = path.replace("{id}", id);
        queries.iter().map(move |query| match query.is_empty() {
            true => path.clone(),
            false => format!("{path}?{query}"),
        })
    };
    ids.iter().flat_map(of_id).collect()
}
