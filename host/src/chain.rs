//! Writes an error with its causes in one line.

use crate::tls;

/// Returns `what: cause: cause`. A cause that the text before it has already is left out. An error of the TLS
/// library is put into plain words, and its own causes are left out.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(error) = tls::cause(error) {
        return tls::words(error);
    }
    let mut told = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let secure = tls::cause(cause);
        let text = secure.map_or_else(|| cause.to_string(), tls::words);
        if !told.contains(&text) {
            told = format!("{told}: {text}");
        }
        next = cause.source().filter(|_| secure.is_none());
    }
    told
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let error = Err::<(), _>(anyhow!("refused"))
            .context("connect: refused")
            .context("status")
            .expect_err("an error");
        assert_eq!(chain(error.as_ref()), "status: connect: refused");
    }
}
