//! Tasks that run until the test ends them: the guest `fetches` waits for a page that the test opens.
//!
//! In: queues as TOML that name the plugin `fetches`. Out: a bench with this plugin, and fields for tasks.
//! Not here: the page (`web`).

use super::{Bench, Web};

/// The page that such tasks wait for.
pub struct Held {
    web: Web,
    url: String,
}

impl Held {
    pub fn new() -> Held {
        let web = Web::start();
        let url = web.held();
        Held { web, url }
    }

    /// A bench with these queues and the plugin `fetches`.
    pub fn bench(&self, queues: &str) -> Bench {
        let bench = Bench::new(&self.queues(queues));
        bench.install("fetches", "fetches");
        bench
    }

    /// The queues, and what the plugin may do.
    pub fn queues(&self, queues: &str) -> String {
        format!("{queues}\n[plugins.fetches]\nallowed_hosts = [\"{}\"]\n", self.web.origin())
    }

    /// The fields of a task that runs until [`Held::end`].
    pub fn task(&self) -> [(&str, &str); 1] {
        [("url", &self.url)]
    }

    /// Ends all such tasks, and those that begin later end at once.
    pub fn end(&self) {
        self.web.open_held();
    }
}
