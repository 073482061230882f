//! What every record carries, and which of a session's count.
//!
//! A **token** is the revision of a slot's entry as its owner wrote it: each owner of a slot has a higher one than all
//! before it. It is not the epoch of the owner's process: a slot that moves to an older node would then come with a
//! lower token, and be refused for ever.
//!
//! A record whose token is lower than one before it in the same session is a breach: compare-and-set should have
//! refused it. Every replica passes over such a record, by the same rule, so that all of them stay equal; the sequence
//! of its subject has moved all the same.
//!
//! What is kept beside sessions is owned by nobody and written by all nodes. There the token is the epoch of the node
//! that wrote the record: it says whose that is and no more, and each record counts.

/// The revision of a slot's entry, and so the fencing token of whoever wrote it. 0 = there is no entry yet. Of a record that
/// is not of a session: the epoch of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// A place in the stream, from 1 on. As the last one of a subject 0 says that the subject is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

/// A record as its owner counts it: no two records of one process have the same, whatever session they are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(pub u64);

/// What names a record of a subject in the whole cluster. Only one process ever has a token of a slot, and only one an
/// epoch, so that with its own count no two records of a subject have the same stamp, but for copies of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Under which token it was written.
    pub token: Token,
    /// Which of its owner's records it is.
    pub record: RecordId,
}

/// Whether a record counts, after others of its session of which `highest` was the highest token.
pub fn accepts(highest: Token, token: Token) -> bool {
    token >= highest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_token_counts_after_a_higher_one() {
        assert!(accepts(Token(0), Token(1)) && accepts(Token(4), Token(4)) && accepts(Token(4), Token(9)));
        assert!(!accepts(Token(4), Token(3)));
    }
}
