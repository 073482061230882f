//! What owners hold in the log, for those who must know before they write.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawmux_core::error::Error;
use clawmux_core::ids::Owner;
use clawmux_core::limits::quota::{Kept, Quota};

/// What owners hold in the log: as it was last committed, and what is on its way there. Cheap to clone
/// and to look at, from any thread; the writer keeps it true.
#[derive(Clone, Debug, Default)]
pub struct Holdings(Arc<Mutex<HashMap<Owner, Holding>>>);

#[derive(Clone, Copy, Debug, Default)]
struct Holding {
    kept: Kept,
    coming: Kept,
}

impl Holdings {
    /// Sets aside what an owner is about to add, where its quota leaves room for it.
    ///
    /// # Errors
    /// As [`Quota::admit`]'s.
    pub fn admit(&self, owner: &Owner, quota: Quota, more: Kept) -> Result<Coming, Error> {
        let mut all = self.lock();
        let holding = all.get(owner).copied().unwrap_or_default();
        quota.admit(holding.kept.and(holding.coming), more)?;
        all.insert(owner.clone(), Holding { coming: holding.coming.and(more), ..holding });
        Ok(Coming { holdings: self.clone(), owner: owner.clone(), more })
    }

    /// What an owner has in the log.
    pub fn of(&self, owner: &Owner) -> Kept {
        self.lock().get(owner).map(|holding| holding.kept).unwrap_or_default()
    }

    /// Those who have most, by bytes; not more than so many.
    pub fn largest(&self, limit: usize) -> Vec<(Owner, Kept)> {
        let mut all: Vec<(Owner, Kept)> =
            self.lock().iter().map(|(owner, holding)| (owner.clone(), holding.kept)).collect();
        all.sort_by(|(a, x), (b, y)| y.bytes.cmp(&x.bytes).then_with(|| a.as_str().cmp(b.as_str())));
        all.truncate(limit);
        all
    }

    /// How many owners have something.
    pub fn owners(&self) -> usize {
        self.lock().len()
    }

    /// What an owner has in the log now.
    pub(super) fn set(&self, owner: &Owner, kept: Kept) {
        let mut all = self.lock();
        let coming = all.get(owner).map(|holding| holding.coming).unwrap_or_default();
        if kept == Kept::default() && coming == kept {
            all.remove(owner);
        } else {
            all.insert(owner.clone(), Holding { kept, coming });
        }
    }

    /// What all owners have in the log now.
    pub(super) fn set_all(&self, kept: Vec<(Owner, Kept)>) {
        let mut all = self.lock();
        all.retain(|_, holding| {
            holding.kept = Kept::default();
            holding.coming != Kept::default()
        });
        for (owner, kept) in kept {
            all.entry(owner).or_default().kept = kept;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Owner, Holding>> {
        // Nothing that can panic runs under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was set aside for something on its way into the log; let go when it is there, or will not be.
#[derive(Debug)]
pub struct Coming {
    holdings: Holdings,
    owner: Owner,
    more: Kept,
}

impl Drop for Coming {
    fn drop(&mut self) {
        let mut all = self.holdings.lock();
        if let Some(holding) = all.get_mut(&self.owner) {
            holding.coming = holding.coming.without(self.more);
            if (holding.kept, holding.coming) == Default::default() {
                all.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_its_way_counts_until_it_is_there() {
        let (holdings, ada) = (Holdings::default(), Owner::from_name("ada"));
        let quota = Quota { sessions: 1, bytes: 100 };
        let more = |sessions, bytes| Kept { sessions, bytes };
        let coming = holdings.admit(&ada, quota, more(1, 60)).unwrap();
        holdings.admit(&ada, quota, more(0, 50)).unwrap_err();
        holdings.admit(&ada, quota, more(1, 1)).unwrap_err();
        holdings.admit(&Owner::Admins, quota, more(1, 100)).unwrap();
        holdings.set(&ada, more(1, 60));
        drop(coming);
        assert_eq!((holdings.of(&ada), holdings.owners()), (more(1, 60), 1));
        drop(holdings.admit(&ada, quota, more(0, 40)).unwrap());
        holdings.set(&ada, Kept::default());
        assert_eq!(holdings.owners(), 0);
        let coming = holdings.admit(&ada, quota, more(1, 60)).unwrap();
        holdings.set_all(vec![(Owner::Admins, more(2, 7))]);
        holdings.admit(&ada, quota, more(0, 50)).unwrap_err();
        drop(coming);
        assert_eq!(holdings.largest(9), [(Owner::Admins, more(2, 7))]);
    }
}
