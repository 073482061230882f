//! How many bytes one owner has on the disk, and may have. Taken as they are written, from any
//! thread, so that uploads side by side can't have more than there is.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// One owner's bytes.
#[derive(Debug)]
pub(super) struct Allowance {
    used: AtomicU64,
    quota: AtomicU64,
}

impl Allowance {
    /// Of so many bytes, some of which are used; that may be more than all of them, where the quota
    /// was made smaller.
    pub(super) fn new(quota: u64, used: u64) -> Self {
        Self { used: AtomicU64::new(used), quota: AtomicU64::new(quota) }
    }

    /// Takes so many, if there are as many left.
    pub(super) fn take(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.quota());
        bytes == 0 || self.used.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Gives so many back.
    pub(super) fn give_back(&self, bytes: u64) {
        let less = |used: u64| Some(used.saturating_sub(bytes));
        let _ = self.used.fetch_update(Relaxed, Relaxed, less);
    }

    /// So many are used, as the store says. Nobody takes any meanwhile.
    pub(super) fn set_used(&self, bytes: u64) {
        self.used.store(bytes, Relaxed);
    }

    /// How many are used.
    pub(super) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// From now on there are so many in all.
    pub(super) fn set_quota(&self, quota: u64) {
        self.quota.store(quota, Relaxed);
    }

    /// How many there are in all.
    pub(super) fn quota(&self) -> u64 {
        self.quota.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_is_given_twice() {
        let allowance = Allowance::new(10_000, 0);
        let taken: u64 = std::thread::scope(|scope| {
            let takers: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..2000).filter(|_| allowance.take(3)).count() as u64 * 3))
                .collect();
            takers.into_iter().map(|taker| taker.join().unwrap()).sum()
        });
        assert_eq!((taken, allowance.used()), (9999, 9999));
        assert!(allowance.take(1) && !allowance.take(1) && allowance.take(0));
        allowance.give_back(5);
        assert!(!allowance.take(6) && allowance.take(5) && !allowance.take(u64::MAX));
    }
}
