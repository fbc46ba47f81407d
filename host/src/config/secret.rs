//! A value that must not be printed.

use std::fmt;

/// Text that may be a secret: `Debug` hides it, there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: String,
    apart: bool,
}

impl Secret {
    /// Text that stands in the configuration itself. Most such values are no secrets.
    pub fn new(text: impl Into<String>) -> Self {
        Secret { text: text.into(), apart: false }
    }

    /// Text from the environment or a file of its own, which is certainly a secret.
    pub fn kept_apart(text: impl Into<String>) -> Self {
        Secret { text: text.into(), apart: true }
    }

    /// A secret outside of the file that was not read, because nothing here needs it.
    pub fn unread() -> Self {
        Secret { text: String::new(), apart: true }
    }

    /// Whether the text is known; where it is not, nothing may be decided by it.
    pub fn is_read(&self) -> bool {
        // A secret in the environment or a file is never empty.
        !(self.apart && self.text.is_empty())
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
