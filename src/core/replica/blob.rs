//! What stands for bytes that are too large for one message: which bytes they are, and in how many parts.
//!
//! The parts are messages of their own, which are there before anything speaks of the blob. Whoever reads them knows
//! by the digest whether they are what was written.

use std::ops::Range;

use sha2::{Digest as _, Sha256};

use super::digest::Digest;
use super::value::{Value, fields, unreadable};
use crate::error::Error;
use crate::hex::hex;

/// The most bytes of a blob.
pub const BLOB_BYTES_MAX: usize = 64 << 20;

/// How large the parts are that are written.
const PART_BYTES: u64 = 512 * 1024;

/// The largest parts that are read.
const PART_BYTES_MAX: u64 = 1000 * 1000;

/// Bytes in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blob {
    /// Their SHA-256.
    pub sha256: Digest,
    /// How many they are.
    pub bytes: u64,
    /// How large each part is, but for the last one.
    part_bytes: u64,
}

fields! {
    Blob { sha256, bytes, part_bytes }
}

impl Blob {
    /// What stands for these bytes.
    pub fn of(content: &[u8]) -> Self {
        let sha256 = Sha256::digest(content).into();
        Self { sha256, bytes: content.len() as u64, part_bytes: PART_BYTES }
    }

    /// It, where it can be one.
    ///
    /// # Errors
    /// `InvalidRequest` where it has too many bytes or none, or parts that no message takes.
    pub(super) fn checked(self) -> Result<Self, Error> {
        let Self { bytes, part_bytes, .. } = self;
        if bytes == 0 || bytes > BLOB_BYTES_MAX as u64 || part_bytes == 0 || part_bytes > PART_BYTES_MAX {
            return Err(unreadable(format_args!("{bytes} bytes in parts of {part_bytes} are no blob")));
        }
        Ok(self)
    }

    /// It by its digest, in digits.
    pub fn name(&self) -> String {
        hex(&self.sha256)
    }

    /// How many parts it has.
    pub fn parts(&self) -> u64 {
        self.bytes.div_ceil(self.part_bytes)
    }

    /// Which of its bytes are in a part.
    pub fn part(&self, nth: u64) -> Range<usize> {
        let place = |nth: u64| usize::try_from((nth * self.part_bytes).min(self.bytes)).unwrap_or(usize::MAX);
        place(nth)..place(nth + 1)
    }

    /// It as a message in the place of its bytes.
    pub fn to_message(&self) -> Vec<u8> {
        super::value::named(MESSAGE, self.to_json()).to_string().into_bytes()
    }

    /// The blob that a message stands for; none where it is a message of its own.
    pub fn of_message(message: &[u8]) -> Option<Self> {
        let is_short = message.len() <= ENVELOPE_BYTES_MAX;
        let json = is_short.then(|| serde_json::from_slice(message).ok()).flatten()?;
        let (name, blob) = super::value::variant(json).ok()?;
        (name == MESSAGE).then(|| Self::from_json(blob).and_then(Self::checked).ok()).flatten()
    }
}

/// The longest message that stands for a blob, in bytes.
pub(super) const ENVELOPE_BYTES_MAX: usize = 1024;

const MESSAGE: &str = "blob";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_whole() {
        for bytes in [1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES] {
            let content: Vec<u8> = (0..bytes).map(|nth| (nth % 251) as u8).collect();
            let blob = Blob::of(&content);
            let parts: Vec<&[u8]> = (0..blob.parts()).map(|nth| &content[blob.part(nth)]).collect();
            assert!(parts.iter().all(|part| !part.is_empty() && part.len() as u64 <= PART_BYTES));
            assert_eq!((parts.concat(), blob.name().len()), (content, 64));
        }
    }

    #[test]
    fn a_message_is_a_blob_or_none() {
        let blob = Blob::of(b"content");
        assert_eq!(Blob::of_message(&blob.to_message()), Some(blob));
        let wrong = [
            Blob { bytes: 0, ..blob },
            Blob { bytes: BLOB_BYTES_MAX as u64 + 1, ..blob },
            Blob { part_bytes: 0, ..blob },
            Blob { part_bytes: PART_BYTES_MAX + 1, ..blob },
        ];
        for blob in wrong {
            assert_eq!(Blob::of_message(&blob.to_message()), None);
        }
        for message in [&b"{}"[..], b"", b"{\"order\":{}}", b"[1]", &[b' '; ENVELOPE_BYTES_MAX + 1]] {
            assert_eq!(Blob::of_message(message), None);
        }
    }
}
