//! Writes an error with its causes in one line.

/// Gives `what: cause: cause`. Some errors repeat a cause in their own text; such a cause is written once.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut told = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !told.contains(&text) {
            told = format!("{told}: {text}");
        }
        next = cause.source();
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
