//! How much of prompts that wait is in memory: a share for each owner, and twice that for all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawmux_core::ids::Owner;
use clawmux_core::limits::quota::Held;

/// What prompts that wait take of memory, in all sessions. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Queued(Arc<Mutex<Held>>);

impl Queued {
    /// Room for a prompt of so many bytes, where its owner has no more than `each` then; none where it is
    /// to wait in the store.
    pub(super) fn room(&self, owner: &Owner, bytes: u64, each: u64) -> Option<Room> {
        let taken = self.lock().take(owner, bytes, each);
        taken.then(|| Room { queued: self.clone(), owner: owner.clone(), bytes })
    }

    /// What is taken of all, in bytes.
    pub fn bytes(&self) -> u64 {
        self.lock().all()
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        // Nothing that can panic runs under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room that a prompt has while it waits.
#[derive(Debug)]
pub(super) struct Room {
    queued: Queued,
    owner: Owner,
    bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.queued.lock().give_back(&self.owner, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_comes_back() {
        let queued = Queued::default();
        let ada = Owner::from_name("ada");
        let room = queued.room(&ada, 60, 100);
        assert!(room.is_some() && queued.room(&ada, 60, 100).is_none());
        assert_eq!(queued.bytes(), 60);
        drop(room);
        assert!(queued.room(&ada, 60, 100).is_some());
        assert_eq!(queued.bytes(), 0);
    }
}
