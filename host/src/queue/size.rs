//! How large a value may be for Redis.
//!
//! In: a connection. Out: the limits of the server, and why it refuses a value. Not here: what becomes of an
//! attempt whose result is too large (`worker::settler`).

use super::link::Link;
use super::reply;

/// The most bytes of a value that Redis never refuses for its size: its limits are at least a mebibyte, and
/// the rest of a call counts, too.
pub(crate) const NEVER_TOO_LARGE: usize = (1 << 20) - REST_OF_CALL;
/// The most bytes of a call beside its largest value.
const REST_OF_CALL: usize = 64 << 10;

/// The limits of Redis for the size of one value, as far as Redis tells them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SizeLimits {
    /// `proto-max-bulk-len`, the most bytes of one value.
    bulk: Option<u64>,
    /// `client-query-buffer-limit`, the most bytes that Redis has read of a call and not yet carried out.
    query: Option<u64>,
}

impl SizeLimits {
    const BULK: &str = "proto-max-bulk-len";
    const QUERY: &str = "client-query-buffer-limit";

    /// Asks Redis for its limits. If its user may not ask, no limit is known.
    pub(crate) async fn of(link: &Link) -> SizeLimits {
        let ask = redis::cmd("CONFIG").arg("GET").arg(Self::BULK).arg(Self::QUERY).to_owned();
        let reply = link.command("ask for its limits", &ask).await.ok();
        let pairs = reply.and_then(|reply| reply::pairs(reply).ok()).unwrap_or_default();
        let [bulk, query] = [Self::BULK, Self::QUERY].map(|name| reply::number_of(&pairs, name));
        SizeLimits { bulk, query }
    }

    /// Why Redis refuses a value of this many bytes. None: Redis takes it, as far as is known.
    pub(crate) fn refusal(self, bytes: usize) -> Option<String> {
        // The name and the value of each limit, and the most bytes of a value under it.
        let bulk = self.bulk.map(|limit| (Self::BULK, limit, limit));
        let query = self.query.map(|limit| (Self::QUERY, limit, limit.saturating_sub(REST_OF_CALL as u64)));
        let (name, limit, most) = bulk.into_iter().chain(query).min_by_key(|(_, _, most)| *most)?;
        let is_refused = bytes as u64 > most;
        is_refused.then(|| format!("Redis refuses a value of {bytes} bytes, its limit {name} is {limit}"))
    }
}

/// Whether Redis may refuse a result for its size.
pub(crate) fn is_large(result: Option<&[u8]>) -> bool {
    result.is_some_and(|result| result.len() > NEVER_TOO_LARGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_that_comes_first_refuses_a_value() {
        let limits = |bulk, query| SizeLimits { bulk, query };
        let most = 1 << 20;
        assert_eq!(limits(Some(most), Some(1 << 30)).refusal(1 << 20), None);
        let refused = limits(Some(most), Some(1 << 30)).refusal((1 << 20) + 1);
        let why = "Redis refuses a value of 1048577 bytes, its limit proto-max-bulk-len is 1048576";
        assert_eq!(refused.as_deref(), Some(why));
        let refused = limits(Some(1 << 29), Some(most));
        assert_eq!(refused.refusal(NEVER_TOO_LARGE), None);
        let why = "Redis refuses a value of 983041 bytes, its limit client-query-buffer-limit is 1048576";
        assert_eq!(refused.refusal(NEVER_TOO_LARGE + 1).as_deref(), Some(why));
        assert_eq!(limits(None, None).refusal(usize::MAX), None, "nothing is known");
    }
}
