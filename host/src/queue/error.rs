//! The error of a call to Redis, with a method for each property on which a caller's reaction depends.

use std::fmt;

use redis::{ErrorKind, RedisError, ServerErrorKind, make_extension_error};

use crate::tls;

pub(crate) type QueueResult<T = ()> = Result<T, QueueError>;

/// A call to Redis that did not succeed.
#[derive(Debug, Clone)]
pub struct QueueError {
    /// The action that failed, as a verb phrase or a script's name.
    what: &'static str,
    /// The address of Redis, without a password.
    address: String,
    source: RedisError,
}

impl QueueError {
    pub(super) fn new(what: &'static str, address: &str, source: RedisError) -> QueueError {
        QueueError { what, address: address.to_owned(), source }
    }

    /// Redis carried out a call, but refused a part of it.
    pub(super) fn refused(what: &'static str, address: &str, why: String) -> QueueError {
        QueueError::new(what, address, RedisError::from((ErrorKind::Extension, "refused", why)))
    }

    /// The user may not use these keys.
    pub(super) fn denied_keys(address: &str, keys: String) -> QueueError {
        let source = make_extension_error("TQKEYS".to_owned(), Some(keys));
        QueueError::new("look for rights", address, source)
    }

    pub(crate) fn unexpected(what: &'static str, address: &str) -> QueueError {
        let source = RedisError::from((ErrorKind::UnexpectedReturnType, "its reply has an unexpected form"));
        QueueError::new(what, address, source)
    }

    /// Redis has not answered in the time that the caller has.
    pub(super) fn no_reply(what: &'static str, address: &str) -> QueueError {
        QueueError::new(what, address, RedisError::from((ErrorKind::Io, "no reply in time")))
    }

    /// The error of the crate redis.
    pub(super) fn source(&self) -> &RedisError {
        &self.source
    }

    /// The server is in no cluster, though redis.url is a list.
    pub(super) fn is_no_cluster(&self) -> bool {
        self.source.detail().is_some_and(|why| why.contains("cluster support disabled"))
    }

    /// Redis does not know the script.
    pub(super) fn is_no_script(&self) -> bool {
        self.source.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
    }

    /// Redis does not have the function.
    pub(super) fn is_no_function(&self) -> bool {
        self.source.code() == Some("ERR") && self.source.detail() == Some("Function not found")
    }

    /// Redis did not begin a script or a function: it does not know it, or the user may not call functions.
    pub(super) fn is_not_begun(&self) -> bool {
        self.is_no_script() || self.is_no_function() || self.is_denied_function()
    }

    /// Another host has loaded the library.
    pub(super) fn is_loaded(&self) -> bool {
        self.source
            .detail()
            .is_some_and(|why| why.starts_with("Library '") && why.ends_with("already exists"))
    }

    /// The user may not call functions.
    pub(super) fn is_denied_function(&self) -> bool {
        self.source.code() == Some("NOPERM") && self.source.detail().is_some_and(|why| why.contains("'fcall"))
    }

    /// The stream or its group was deleted, or the whole database was flushed.
    pub fn is_no_group(&self) -> bool {
        let text = self.source.to_string();
        matches!(self.source.code(), Some("NOGROUP" | "UNBLOCKED"))
            || text.contains("NOGROUP")
            || text.contains("no such key")
    }

    /// A key holds another type.
    pub(crate) fn is_wrong_type(&self) -> bool {
        self.source.code() == Some("WRONGTYPE")
    }

    /// A key of the queue has another type: Redis refused a command, or a script named the key.
    pub(crate) fn is_misfit(&self) -> bool {
        self.is_wrong_type() || self.source.code() == Some("TQTYPE")
    }

    /// The message about a key of another type, with the queue's name and the way out. None: the error is
    /// about something else.
    pub(crate) fn misfit(&self, queue: &str) -> Option<String> {
        if self.is_wrong_type() {
            return Some(format!(
                "a key of the queue {queue} has another type: `tqhost adopt {queue}` says which one and what \
                 can be done, and `tqhost doctor {queue}` if it is the key of a task"
            ));
        }
        self.unfit(queue).filter(|_| self.is_misfit())
    }

    /// Why no host can serve the queue with this name, and the way out: the user lacks rights, a key has
    /// another type, or other groups need the entries. None: the error is about something else.
    pub(crate) fn unfit(&self, queue: &str) -> Option<String> {
        let detail = self.source.detail().unwrap_or_default();
        match self.source.code()? {
            "TQTYPE" => Some(format!("{detail}: `tqhost adopt {queue}` says what can be done")),
            "TQRIGHTS" => Some(format!(
                "the user of [redis] may not run these commands, which tqhost needs: {detail}. Allow them \
                 with ACL SETUSER; `tqhost check --acl` prints the whole rule"
            )),
            "TQKEYS" => Some(format!(
                "the user of [redis] may not read and write these keys, which tqhost needs: {detail}. Allow \
                 them with ACL SETUSER; `tqhost check --acl` prints the whole rule"
            )),
            "NOPERM" => Some(format!(
                "the user of [redis] may not call scripts, which tqhost needs: {detail}. Allow it with \
                 ACL SETUSER; `tqhost check --acl` prints the whole rule"
            )),
            "TQGROUP" => Some(format!(
                "the stream has other consumer groups ({detail}). tqhost deletes each entry when its task \
                 has ended, also if they have not read it. Remove them, or confirm it with \
                 `tqhost adopt {queue} --yes`"
            )),
            _ => None,
        }
    }

    /// Redis refused the credentials, or needs some and got none.
    pub fn is_authentication(&self) -> bool {
        self.source.kind() == ErrorKind::AuthenticationFailed
            || matches!(self.source.code(), Some("WRONGPASS" | "NOAUTH"))
    }

    /// Redis could not be reached or did not answer. It may or may not have carried out the call.
    pub fn is_connection(&self) -> bool {
        !matches!(self.source.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
    }

    /// The source of an error of TLS, for which `chain` has words. None: it is no error of TLS.
    fn tls_cause(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.source).filter(|cause| tls::cause(*cause).is_some())
    }

    /// TLS was asked for, and no answer came in time: a server without TLS gives none.
    pub(crate) fn may_lack_tls(&self) -> bool {
        self.address.starts_with("rediss://") && self.source.is_timeout()
    }

    /// The same call may succeed later: Redis is away, starts, changes its roles or is full.
    pub(crate) fn may_pass(&self) -> bool {
        use ServerErrorKind::{Ask, BusyLoading, ClusterDown, MasterDown, Moved, ReadOnly, TryAgain};
        let passes = match self.source.kind() {
            ErrorKind::Server(kind) => {
                matches!(kind, Ask | BusyLoading | ClusterDown | MasterDown | Moved | ReadOnly | TryAgain)
            }
            ErrorKind::UnexpectedReturnType => false,
            _ => self.is_connection(),
        };
        passes || self.is_out_of_memory() || self.source.code() == Some("BUSY")
    }

    /// Why the effects of an attempt can never be committed. Nothing was written, and another try would be
    /// refused as well. None: the error is about something else.
    pub fn conflict(&self) -> Option<&str> {
        self.source.detail()?.strip_prefix("TQEFFECT ")
    }

    /// The user of this connection may not touch a key of the call, which then did nothing.
    pub(crate) fn is_denied_key(&self) -> bool {
        self.source.code() == Some("NOPERM") && self.source.detail().is_some_and(|why| why.contains("access"))
    }

    /// Redis, or a proxy before it, refuses the size of the call, and would refuse it again.
    pub(crate) fn is_oversize(&self) -> bool {
        let detail = self.source.detail().unwrap_or_default();
        // Without a login, Redis refuses long calls by another limit.
        let is_limit = detail.contains("Protocol error") && !detail.contains("unauthenticated");
        self.source.code() == Some("ERR") && (is_limit || detail.contains("max request size"))
    }

    /// The connection was cut while Redis had not answered yet.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_connection() && !self.source.is_timeout()
    }

    /// Redis refuses the writes of all clients: it cannot save, has too few replicas, is a replica, starts,
    /// or runs a long script; or the slot of the key moves, or no node serves it.
    pub(super) fn refuses_writes(&self) -> bool {
        matches!(
            self.source.code(),
            Some("MISCONF" | "NOREPLICAS" | "READONLY" | "LOADING" | "MASTERDOWN" | "BUSY")
                | Some("TRYAGAIN" | "ASK" | "CLUSTERDOWN")
        )
    }

    /// Redis refuses writes because it could not save its data.
    pub(crate) fn cannot_save(&self) -> bool {
        self.source.code() == Some("MISCONF")
    }

    /// The memory of Redis is full, so it refused the call before it began.
    pub fn is_out_of_memory(&self) -> bool {
        self.source.code() == Some("OOM")
    }
}

/// The error of a call that took too long.
pub(super) fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QueueError { what, address, .. } = self;
        if self.is_authentication() {
            write!(
                f,
                "{what}: Redis at {address} refused the credentials; check user and password in [redis]"
            )
        } else if self.source.kind() == ErrorKind::InvalidClientConfig {
            write!(f, "{what}: {address} is not an address of a Redis")
        } else if self.is_out_of_memory() {
            write!(
                f,
                "{what}: Redis at {address} is full, and takes no new tasks: raise its maxmemory, purge dead \
                 letters with --no-undo, or wait until queued tasks have ended"
            )
        } else if self.tls_cause().is_some() {
            write!(f, "{what}: Redis at {address} was not asked")
        } else if self.is_connection() {
            write!(f, "{what}: Redis at {address} did not answer")
        } else {
            write!(f, "{what}: Redis at {address} refused")
        }
    }
}

impl std::error::Error for QueueError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // Redis's text about full memory says no more than the message above.
        (!self.is_out_of_memory()).then(|| self.tls_cause().unwrap_or(&self.source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_login_is_no_limit_of_size() {
        let is_oversize = |detail: &str| {
            let source = make_extension_error("ERR".to_owned(), Some(detail.to_owned()));
            QueueError::new("settle", "a", source).is_oversize()
        };
        assert!(is_oversize("Protocol error: invalid bulk length"));
        assert!(is_oversize("max request size exceeded"));
        assert!(!is_oversize("Protocol error: unauthenticated multibulk length"));
        assert!(!is_oversize("syntax error"));
    }
}
