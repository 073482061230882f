//! Where a plugin may keep values.
//!
//! A namespace belongs to the plugins that were granted it, and is kept apart for each agent and each
//! owner of sessions: what one user's conversation wrote, no other one reads.

use std::fmt;

/// The longest name of a namespace, in bytes.
pub(super) const NAMESPACE_BYTES_MAX: usize = 64;

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 512;

/// The largest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 256 * 1024;

/// How much all keys and values of a namespace may have together for one agent and owner, in bytes.
pub const QUOTA_BYTES: u64 = 16 * 1024 * 1024;

/// The most keys of a namespace for one agent and owner.
pub const QUOTA_KEYS: u64 = 10_000;

/// The most keys that a list answers with; what follows is asked for by the last one.
pub const LISTED_MAX: usize = 1_000;

/// `store:NAMESPACE`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoreGrant {
    /// The namespace.
    pub namespace: String,
}

impl StoreGrant {
    /// Reads what stands behind `store:`.
    ///
    /// # Errors
    /// Why it is not understood.
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        if (1..=NAMESPACE_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_name) {
            Ok(Self { namespace: text.to_owned() })
        } else {
            Err(format!(
                "a namespace is 1 to {NAMESPACE_BYTES_MAX} of the characters a-z, A-Z, 0-9, _, - and ."
            ))
        }
    }
}

impl fmt::Display for StoreGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_one_plain_word() {
        assert_eq!(StoreGrant::parse("notes-2.x_y").unwrap().to_string(), "notes-2.x_y");
        for text in ["", "a b", "a/b", "ä", "a\n", &"x".repeat(NAMESPACE_BYTES_MAX + 1)] {
            assert!(StoreGrant::parse(text).is_err(), "{text:?}");
        }
    }
}
