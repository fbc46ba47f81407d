//! A value that must not be printed.

use std::fmt;

/// Text that may be a secret: `Debug` hides it, there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: String,
    /// Whether it comes from the environment or a file of its own, and not from the configuration file.
    is_external: bool,
}

impl Secret {
    /// Text of the configuration file itself. Most such values are no secrets.
    pub fn new(text: impl Into<String>) -> Self {
        Secret { text: text.into(), is_external: false }
    }

    /// Text from the environment or a file of its own, which is certainly a secret.
    pub fn external(text: impl Into<String>) -> Self {
        Secret { text: text.into(), is_external: true }
    }

    /// An external secret that was not read, because this command does not need it.
    pub fn unread() -> Self {
        Secret { text: String::new(), is_external: true }
    }

    /// Whether the text was read. Nothing may be decided by the text of an unread secret.
    pub fn is_loaded(&self) -> bool {
        // An external secret that was read is never empty.
        !(self.is_external && self.text.is_empty())
    }

    /// The text itself. Call it where the value is used, never where it is shown.
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// Whether it is certainly a secret.
    pub fn is_external(&self) -> bool {
        self.is_external
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
