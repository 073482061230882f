//! What an owner may keep, and what all owners may have in memory: sums and their bounds.
//!
//! There is no lock, clock or store in here. Whoever drives this keeps the sums true: it adds what it
//! takes and gives back what it lets go.

use std::collections::HashMap;

use crate::error::limit::Limit;
use crate::error::{Detail, Error, ErrorCode};
use crate::ids::Owner;

/// What a row of the store takes besides what is in it, about, in bytes.
pub const ROW_BYTES: u64 = 64;

/// What an owner has in the store, or is about to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The number of sessions.
    pub sessions: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl Kept {
    /// The sum of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            sessions: self.sessions.saturating_add(other.sessions),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// The difference; never below zero.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self {
            sessions: self.sessions.saturating_sub(other.sessions),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

/// The most that each owner may have in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// `limits.sessions`; 0 = no limit.
    pub sessions: u64,
    /// `limits.store_bytes`; 0 = no limit.
    pub bytes: u64,
}

impl Quota {
    /// Whether somebody who has `kept` may have `more`.
    ///
    /// # Errors
    /// `TooLarge` with the limit that is met, and what to do.
    pub fn admit(self, kept: Kept, more: Kept) -> Result<(), Error> {
        let over = |has: u64, more: u64, most: u64| most > 0 && more > 0 && has.saturating_add(more) > most;
        if over(kept.sessions, more.sessions, self.sessions) {
            let most = self.sessions;
            return Err(ErrorCode::TooLarge
                .error(format!("there are {} sessions and {most} are allowed: delete some", kept.sessions))
                .with(Detail::Limit { name: Limit::Sessions, limit: most }));
        }
        if over(kept.bytes, more.bytes, self.bytes) {
            let (has, more, most) = (kept.bytes, more.bytes, self.bytes);
            return Err(ErrorCode::TooLarge
                .error(format!(
                    "the sessions have {has} bytes, and with {more} more they would have more than the {most} that \
                     are allowed: delete some"
                ))
                .with(Detail::Limit { name: Limit::StoreBytes, limit: most }));
        }
        Ok(())
    }
}

/// Bytes that are held in memory, by owner and in all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    by: HashMap<Owner, u64>,
    all: u64,
}

impl Held {
    /// Takes so many bytes, where their owner has no more than `each` then and all together no more
    /// than twice that. Says whether they were taken.
    pub fn take(&mut self, owner: &Owner, bytes: u64, each: u64) -> bool {
        let own = self.of(owner).saturating_add(bytes);
        let all = self.all.saturating_add(bytes);
        let fits = own <= each && all <= each.saturating_mul(2);
        if fits && bytes > 0 {
            self.by.insert(owner.clone(), own);
            self.all = all;
        }
        fits
    }

    /// Gives back what was taken.
    pub fn give_back(&mut self, owner: &Owner, bytes: u64) {
        self.all = self.all.saturating_sub(bytes);
        if let Some(own) = self.by.get_mut(owner) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                self.by.remove(owner);
            }
        }
    }

    /// What is held of an owner.
    pub fn of(&self, owner: &Owner) -> u64 {
        self.by.get(owner).copied().unwrap_or(0)
    }

    /// What is held of all.
    pub fn all(&self) -> u64 {
        self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_quota_is_met_and_says_what_to_do() {
        let quota = Quota { sessions: 2, bytes: 100 };
        let kept = |sessions, bytes| Kept { sessions, bytes };
        quota.admit(kept(1, 90), kept(1, 10)).unwrap();
        let error = quota.admit(kept(2, 0), kept(1, 1)).unwrap_err();
        assert_eq!(error.detail, Some(Detail::Limit { name: Limit::Sessions, limit: 2 }));
        assert!(error.message.contains("delete some"), "{error}");
        let error = quota.admit(kept(2, 90), kept(0, 11)).unwrap_err();
        assert_eq!(error.code, ErrorCode::TooLarge);
        assert_eq!(error.detail, Some(Detail::Limit { name: Limit::StoreBytes, limit: 100 }));
        assert!(error.message.contains("90 bytes") && error.message.contains("delete some"), "{error}");
        quota.admit(kept(9, 900), kept(0, 0)).unwrap();
        Quota::default().admit(kept(9, u64::MAX), kept(1, 11)).unwrap();
    }

    proptest! {
        /// Whoever takes and lets go, nobody holds more than his share, all no more than twice that, and
        /// in the end nothing is left.
        #[test]
        fn shares_are_kept(script in proptest::collection::vec((0u8..4, 0u64..60, any::<bool>()), 0..100)) {
            let (mut held, mut taken) = (Held::default(), Vec::new());
            for (who, bytes, takes) in script {
                let owner = Owner::from_name(&format!("u{who}"));
                if takes {
                    if held.take(&owner, bytes, 100) {
                        taken.push((owner, bytes));
                    }
                } else if let Some((owner, bytes)) = taken.pop() {
                    held.give_back(&owner, bytes);
                }
                let sum: u64 = taken.iter().map(|(_, bytes)| bytes).sum();
                prop_assert_eq!(held.all(), sum);
                prop_assert!(sum <= 200);
                for who in 0..4 {
                    let owner = Owner::from_name(&format!("u{who}"));
                    let own: u64 = taken.iter().filter(|(of, _)| *of == owner).map(|(_, bytes)| bytes).sum();
                    prop_assert_eq!(held.of(&owner), own);
                    prop_assert!(own <= 100);
                }
            }
            for (owner, bytes) in taken {
                held.give_back(&owner, bytes);
            }
            prop_assert_eq!(held, Held::default());
        }
    }
}
