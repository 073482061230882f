//! Gives memory back to the operating system.
//!
//! The allocator of glibc keeps what was freed below something that is still in use: after two
//! thousand strangers with a full buffer each the process stayed at 300 MB for good, all but 50 of
//! it free. Where the allocator is another one, it is left to itself.

use std::time::Duration;

use clawmux_core::time::Timestamp;

/// How many have to be gone, and for how long none of this may have been done, before what they
/// held is given back.
const GONE_MIN: usize = 64;
const INTERVAL: Duration = Duration::from_secs(5);

/// How many there were at most since memory was given back, and when that was.
#[derive(Debug)]
pub(crate) struct Peak {
    most: usize,
    at: Timestamp,
}

impl Peak {
    /// There were none until now.
    pub(crate) fn new(now: Timestamp) -> Self {
        Self { most: 0, at: now }
    }

    /// There are so many now: where most of them are gone, what they held is given back.
    pub(crate) fn now(&mut self, count: usize, now: Timestamp) {
        self.most = self.most.max(count);
        if self.most >= 2 * count + GONE_MIN && now.since(self.at) >= INTERVAL {
            (self.most, self.at) = (count, now);
            give_back();
        }
    }
}

/// Has the allocator give back what is free, on a thread of its own.
fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let begun = crate::clock::now();
        // Ends by itself, and nobody waits for it.
        drop(tokio::task::spawn_blocking(move || {
            // SAFETY: it takes no pointer, and takes the allocator's own locks.
            let gave = unsafe { libc::malloc_trim(0) } != 0;
            let took_ms = crate::clock::now().millis_since(begun);
            tracing::debug!(gave, took_ms, "free memory given back");
        }));
    }
}
