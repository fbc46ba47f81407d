//! A value that must not be printed.

use std::fmt;

/// Text that may be a secret: `Debug` hides it, there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: String,
    apart: bool,
}

impl Secret {
    /// One that stands in the configuration itself, as many values do that are none.
    pub fn new(text: impl Into<String>) -> Self {
        Secret { text: text.into(), apart: false }
    }

    /// One that is kept apart from the configuration, in the environment or in a file of its own: nobody does that with what is none.
    pub fn kept_apart(text: impl Into<String>) -> Self {
        Secret { text: text.into(), apart: true }
    }

    /// The text itself. Call it where the value is used, never where it is shown.
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// Whether it is certainly a secret.
    pub fn is_kept_apart(&self) -> bool {
        self.apart
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
