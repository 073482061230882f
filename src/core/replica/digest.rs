//! The chain over all records: two stores with one digest had the same records in the same order.

use sha2::{Digest as _, Sha256};

/// The digest of all records up to one of them.
pub type Digest = [u8; 32];

/// That of none.
pub const NONE: Digest = [0; 32];

/// The digest after one record more: over the one before it, where it is in the log, under which subject, and what
/// it says.
pub fn chained(before: &Digest, position: u64, subject: &str, record: &[u8]) -> Digest {
    Sha256::new()
        .chain_update(before)
        .chain_update(position.to_be_bytes())
        .chain_update((subject.len() as u64).to_be_bytes())
        .chain_update(subject)
        .chain_update(record)
        .finalize()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_tells_in_its_place() {
        let first = chained(&NONE, 1, "a", b"bc");
        assert_eq!(first, chained(&NONE, 1, "a", b"bc"));
        for other in [
            chained(&first, 1, "a", b"bc"),
            chained(&NONE, 2, "a", b"bc"),
            chained(&NONE, 1, "ab", b"c"),
            chained(&NONE, 1, "a", b"bd"),
        ] {
            assert_ne!(first, other);
        }
    }
}
