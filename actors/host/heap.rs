//! Gives memory back to the operating system.
//!
//! The allocator of glibc keeps what was freed below something that is still in use: after two
//! thousand strangers with a full buffer each the process stayed at 300 MB for good, all but 50 of
//! it free; and under a steady load of runs it grew by 7 MB every ten thousand, with 12 of 129 in use. So
//! it has fewer arenas to scatter over, large pieces go straight back, and what is free is given back
//! when many connections are gone and whenever the process has grown by a few megabytes. Where the
//! allocator is another one, it is left to itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use clawmux_core::time::Timestamp;

/// How many have to be gone, and for how long none of this may have been done, before what they
/// held is given back.
const GONE_MIN: usize = 64;
const INTERVAL: Duration = Duration::from_secs(5);

/// By how many bytes, at least, the process has to have grown since memory was given back, and how often
/// that is looked at.
const GROWN_MIN: u64 = 8 << 20;
const GROWTH_INTERVAL: Duration = Duration::from_secs(15);

/// How many arenas there are at most. By itself glibc makes eight for each core.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const ARENAS_MAX: i32 = 4;

/// From how many bytes on a piece of memory is mapped for itself, and given back when it is freed; and how
/// many free ones may lie at the top of an arena. By itself glibc raises both to what was freed last.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_MIN: i32 = 128 * 1024;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const FREE_TOP_MAX: i32 = 1024 * 1024;

/// Has the allocator keep little. To be called before there are other threads.
pub fn keep_little() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (option, value) in [
        (libc::M_ARENA_MAX, ARENAS_MAX),
        (libc::M_MMAP_THRESHOLD, MAPPED_MIN),
        (libc::M_TRIM_THRESHOLD, FREE_TOP_MAX),
    ] {
        // SAFETY: it takes no pointer, and the options are documented ones. What it does not take stays
        // as it was.
        unsafe { libc::mallopt(option, value) };
    }
}

/// Looks at how much memory there is, and gives back what is free.
#[derive(Debug)]
pub(crate) struct Peak {
    /// How many connections there were at most since memory was given back, and when that was.
    most: usize,
    at: Timestamp,
    /// When it was looked at how much the process has grown.
    looked: Timestamp,
    trimmed: Arc<Trimmed>,
}

/// What became of it.
#[derive(Debug, Default)]
struct Trimmed {
    /// How many bytes were resident after memory was given back; 0 = not known.
    resident_bytes: AtomicU64,
    is_under_way: AtomicBool,
}

impl Peak {
    /// There were none until now.
    pub(crate) fn new(now: Timestamp) -> Self {
        Self { most: 0, at: now, looked: now, trimmed: Arc::default() }
    }

    /// There are so many connections now: where most of them are gone, or the process has grown, what is
    /// free is given back.
    pub(crate) fn now(&mut self, count: usize, now: Timestamp) {
        self.most = self.most.max(count);
        let are_gone = self.most >= 2 * count + GONE_MIN && now.since(self.at) >= INTERVAL;
        if are_gone || self.has_grown(now) {
            (self.most, self.at) = (count, now);
            self.give_back();
        }
    }

    /// Whether the process has grown; looked at now and then.
    fn has_grown(&mut self, now: Timestamp) -> bool {
        if now.since(self.looked) < GROWTH_INTERVAL {
            return false;
        }
        self.looked = now;
        let Some(resident) = resident_bytes() else { return false };
        has_grown(resident, self.trimmed.resident_bytes.load(Relaxed))
    }

    /// Has the allocator give back what is free, on a thread of its own.
    fn give_back(&self) {
        if self.trimmed.is_under_way.swap(true, Relaxed) {
            return;
        }
        let trimmed = self.trimmed.clone();
        // Ends by itself, and nobody waits for it.
        drop(tokio::task::spawn_blocking(move || {
            let begun = crate::runtime::clock::now();
            let before = resident_bytes().unwrap_or_default();
            trim();
            let after = resident_bytes().unwrap_or_default();
            trimmed.resident_bytes.store(after, Relaxed);
            trimmed.is_under_way.store(false, Relaxed);
            let took_ms = crate::runtime::clock::now().millis_since(begun);
            tracing::debug!(before, after, took_ms, "free memory given back");
        }));
    }
}

/// Whether so much is more than after memory was given back last, by enough to do it again.
fn has_grown(resident: u64, after: u64) -> bool {
    resident >= after.saturating_add(GROWN_MIN).saturating_add(after / 8)
}

fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes no pointer, and takes the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// How many bytes of memory that belongs to no file are resident, where the system says so.
fn resident_bytes() -> Option<u64> {
    let said = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = said.split(' ').skip(1).map(|pages| pages.parse::<u64>().ok());
    let (resident, of_files) = (pages.next()??, pages.next()??);
    // SAFETY: it takes no pointer.
    let page_bytes = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    Some(resident.saturating_sub(of_files) * page_bytes)
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn it_has_grown_by_a_share_of_what_it_was() {
        assert!(has_grown(GROWN_MIN, 0) && !has_grown(GROWN_MIN - 1, 0));
        let large = 10 * GROWN_MIN;
        assert!(!has_grown(large + GROWN_MIN, large) && has_grown(large + 3 * GROWN_MIN, large));
    }

    /// Leaves so many bytes of an arena free below what stays in use, the last of them.
    fn fragment(bytes: usize) -> Vec<Vec<u8>> {
        let pieces: Vec<Vec<u8>> = (0..bytes / 4096).map(|_| vec![1; 4000]).collect();
        pieces.into_iter().enumerate().filter(|(at, _)| at % 64 == 63).map(|(_, piece)| piece).collect()
    }

    #[actix::test]
    async fn what_steady_work_leaves_free_is_given_back() {
        const BYTES: usize = 96 << 20;
        let begun = Timestamp::from_millis(1_000_000);
        let mut peak = Peak::new(begun);
        let kept = fragment(BYTES);
        let grown = resident_bytes().unwrap();
        assert!(grown > BYTES as u64 * 9 / 10, "nothing was kept: {grown}");
        // The same few connections all the time.
        peak.now(3, begun.after(GROWTH_INTERVAL / 2));
        assert_eq!(peak.at, begun, "not so soon");
        peak.now(3, begun.after(GROWTH_INTERVAL));
        while peak.trimmed.resident_bytes.load(Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let after = peak.trimmed.resident_bytes.load(Relaxed);
        assert!(after + BYTES as u64 / 2 < grown, "{grown} bytes before, {after} after");
        peak.now(3, begun.after(2 * GROWTH_INTERVAL));
        assert_eq!(peak.at, begun.after(GROWTH_INTERVAL), "it has not grown since");
        drop(kept);
    }
}
