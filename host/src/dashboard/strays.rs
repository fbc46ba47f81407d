//! The streams that no queue reads, for the overview.
//!
//! In: the queues, and the way to Redis. Out: a sentence for each such stream. A host looks through a bounded
//! number of keys, at most once in [`EVERY`] and only if somebody looks at the page; between, it shows what
//! it found. Not here: which streams these are (`doctor::strays`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use maud::{Markup, html};

use super::text::data;
use crate::config::QueueRules;
use crate::doctor::{self, Warning};
use crate::guarded::Guarded;
use crate::queue::Link;

const EVERY: Duration = Duration::from_secs(600);
/// The most pages of keys that one look reads.
const MOST_PAGES: usize = 100;

/// The findings of the last look. Clones share it.
#[derive(Clone, Default)]
pub(super) struct StraysSeen(Arc<Guarded<StraysLook>>);

#[derive(Default)]
struct StraysLook {
    begun: Option<Instant>,
    found: Arc<[Warning]>,
}

impl StraysSeen {
    /// Looks again if the last look is long ago. An error of Redis is not worth a page.
    pub(super) async fn look(&self, link: &Link, queues: &[QueueRules]) -> Arc<[Warning]> {
        let is_due = {
            let mut look = self.0.lock();
            let is_due = look.begun.is_none_or(|begun| begun.elapsed() >= EVERY);
            // Other visitors need not wait for this look.
            look.begun = if is_due { Some(Instant::now()) } else { look.begun };
            is_due
        };
        if is_due && let Ok(found) = doctor::strays(link, queues, MOST_PAGES).await {
            self.0.lock().found = found.iter().map(Warning::from).collect();
        }
        self.0.lock().found.clone()
    }
}

pub(super) fn section(found: &[Warning]) -> Markup {
    html! {
        @if !found.is_empty() {
            section aria-labelledby="unread" {
                h2 id="unread" { "Streams that nobody reads" }
                ul { @for stray in found { li { (data(&stray.what)) } } }
            }
        }
    }
}
